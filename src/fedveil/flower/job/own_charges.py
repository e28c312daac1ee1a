"""A deployed client's own accounts: the cost of its reports, and answers that left too late."""

from __future__ import annotations

import logging
from functools import cache, partial

from fedveil.base.message import Message as Words
from fedveil.engine.job_protection import job_digest
from fedveil.federated.job import Job
from fedveil.flower.app.clear_metrics import LATE
from fedveil.flower.job.member import Member
from fedveil.flower.own_account import OwnLedger, asked_spending, count_report, total_of
from fedveil.flower.own_file import number_in
from fedveil.protections.base import Protection

_log = logging.getLogger("flwr")


def charge(job: Job, member: Member, protection: Protection, asked: Words) -> None:
    """Charge a report to the client's own account, or nothing if the job's randomness is seeded.

    `asked` is the server's message that requests the report.
    """
    if job.privacy.randomness != "secure":  # seeded draws are only for tests
        return
    file = partial(member.accounts.file, job_digest(job), member.client)
    if limits := member.own_limits(job):
        OwnLedger(file("account")).begin(number_in(file("reports")) or 0)
    if job.privacy.max_epsilon is not None:
        limits.append((job.privacy.max_epsilon, job.privacy.delta))
    limits += total_of(job.protection.position, protection.settings)
    # An invalid message is refused before the report is counted.
    cost = asked_spending(protection, asked) if limits else []
    spending = asked_spending(protection, {})
    count_report(file("reports"), spending, job.rounds + job.deployment.repeats)
    if limits:
        OwnLedger(file("account")).charge(cost, limits)


def left_late(job: Job, member: Member) -> None:
    """Record that an answer leaves after its fixed time, so its time may depend on the data.

    The record is in a separate file, not in the account of the reports. That account must not be
    created before the client has a limit: `charge` then creates it, and refuses to do so if earlier
    reports would be missing from it.
    """
    digest = job_digest(job)
    _warn_late(digest, member.client)
    OwnLedger(member.accounts.file(digest, member.client, "late")).note([LATE])
    if member.owner is not None:
        member.owner.left_late()


@cache
def _warn_late(job: bytes, client: int) -> None:
    """Log the first late answer of a client in a job. `job` is the job's digest."""
    _log.warning(
        "client %d answered the server after the fixed time (answer_after_s). When it answers may "
        "reveal something about its examples: a longer time is needed. The client's account notes "
        "this, and the log does not repeat it",
        client,
    )
