"""Adds the rules and the advice of every protection, including a user's own, to a job's rules."""

from __future__ import annotations

from collections.abc import Iterable

from fedveil.federated.blocks import JobFields
from fedveil.protections.advice import Rule
from fedveil.protections.base import Protection
from fedveil.protections.catalog import POSITIONS
from fedveil.settings.rules import Check, Rules

#: The keys that `JobFields.cohort` reads, besides the name of the protection.
_COHORT = ("clients", "audit.canaries", "deployment.clients_per_node")


def add_rules_of_protections(rules: Rules[JobFields]) -> None:
    for position in POSITIONS.values():
        reads = ("protection.name", f"protection.{position.block}", *_COHORT)
        for rule in position.rules:
            rules.rule(*reads)(_of_position(position, rule))
        for rule in position.advice:
            rules.advised(_of_position(position, rule))
    rules.rule("protection", *_COHORT)(_own_position_fits)
    rules.rule("protection", *_COHORT)(_no_node_unmasks)
    rules.advised(_own_position_advises)


def _of_position(position: type[Protection], rule: Rule) -> Check[JobFields]:
    def check(job: JobFields) -> str | None:
        if job.protection.position is not position:
            return None
        sentence = rule(job.protection.settings, job.cohort)
        return None if sentence is None else f"protection.{position.block}.{sentence}"

    check.__doc__ = rule.__doc__
    return check


def _no_node_unmasks(job: JobFields) -> str | None:
    """Under secure aggregation, `deployment.clients_per_node` must be 1 or at most a limit, so that
    the server and the clients of one node cannot together unmask other clients. Let n be the number
    of a round's clients that share secrets, and t their threshold. The limit is t - 1, or
    2t - n - 1 with `active_security`. If the masking graph is sparse, the limit is at most n/5, and
    less with few `neighbours`.

    Returns an error message, or None if the job follows this rule.
    """
    protection, clients = job.protection, job.cohort.per_round
    most = job.deployment.clients_per_node
    if most == 1 or clients is None:
        return None
    limit = protection.position.most_per_operator(protection.settings, clients)
    if limit is None or most <= limit:
        return None
    return (
        f"deployment.clients_per_node = {most} is outside [1, {max(limit, 1)}]: the operator of "
        f"such a node and the server could unmask others of {clients} clients in a round"
    )


def _own_position_fits(job: JobFields) -> str | None:
    """A job must meet the rules that a protection of yours adds.

    Returns an error message, or None if the job follows this rule.
    """
    return _said_by_own(job, job.protection.position.rules)


def _own_position_advises(job: JobFields) -> str | None:
    return _said_by_own(job, job.protection.position.advice)


def _said_by_own(job: JobFields, rules: Iterable[Rule]) -> str | None:
    if job.protection.name in POSITIONS:
        return None
    found = [_of_position(job.protection.position, rule)(job) for rule in rules]
    return "; ".join(filter(None, found)) or None
