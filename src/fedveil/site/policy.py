"""A site's policy: a file of the owner's rules for jobs. It is fully checked when it is loaded."""

from __future__ import annotations

import re
from collections.abc import Collection

from pydantic import Field

from fedveil.federated.job import Job
from fedveil.settings import allowed
from fedveil.settings.checked_job import CheckedJob
from fedveil.settings.rules import Rules
from fedveil.settings.settings import RunName
from fedveil.site.account import Limits
from fedveil.site.policy_blocks import (
    Allowed,
    ClearSettings,
    CodeSettings,
    DataSetSettings,
    EpsilonSettings,
    FileName,
    JobsSettings,
    PublicKey,
    ServerSettings,
    StrengthSettings,
)


class Policy(CheckedJob):
    """The rules that a site's owner sets for jobs. No job, server or app can relax one of them."""

    name: RunName = Field("site", description="name of the site")
    protections: list[Allowed] = Field(
        ["distributed_dp", "pw_encrypt"],
        min_length=1,
        description="protections under which a report may leave",
    )
    strength: StrengthSettings = Field(default_factory=StrengthSettings)
    epsilon: EpsilonSettings = Field(default_factory=EpsilonSettings)
    clear: ClearSettings = Field(default_factory=ClearSettings)
    jobs: JobsSettings = Field(default_factory=JobsSettings)
    code: CodeSettings = Field(default_factory=CodeSettings)
    people: dict[str, PublicKey] = Field(
        default_factory=dict,
        description="names of people, each with the public key that `fedveil identity` prints",
    )
    starters: list[str] = Field(
        default_factory=list,
        description="people who may start runs: each job needs the signature of one of them. "
        "Empty: the server decides who starts runs",
    )
    data: dict[str, DataSetSettings] = Field(
        default_factory=dict, description="the data sets that jobs may train on, by name"
    )
    servers: dict[str, ServerSettings] = Field(
        default_factory=dict, description="the servers that this site takes jobs from, by name"
    )
    counter: FileName | None = Field(
        None,
        description="file on another disk that counts the accounts' lines. It detects that the "
        "whole folder was replaced by an older copy. null: no such file",
    )

    @property
    def limits(self) -> Limits:
        """The limits of epsilon that the policy sets for every account of the site."""
        most = self.epsilon
        return Limits(
            most.run, most.month, most.ever, most.delta, self.strength.unit, most.exact_sums
        )

    def _broken(self, wrong: Collection[allowed.Path]) -> list[str]:
        return RULES.broken(self, wrong)

    @property
    def warnings(self) -> list[str]:
        """Sentences about settings of this policy that are valid but probably not intended."""
        return RULES.advice(self)


RULES = Rules[Policy]()


@RULES.rule("people", "starters", "jobs.signed_by")
def _people_known(policy: Policy) -> str | None:
    """`starters` and `jobs.signed_by` may only name people who are listed under `people`.

    Returns an error message, or None if the policy follows this rule.
    """
    for key, names in (("starters", policy.starters), ("jobs.signed_by", policy.jobs.signed_by)):
        for name in names:
            if name not in policy.people:
                return f"{key} has {allowed.plain(name)}, whose public key is not in people: add it"
    return None


@RULES.rule("jobs.template", "jobs.may_differ")
def _keys_of_a_job(policy: Policy) -> str | None:
    """`jobs.may_differ` names keys or blocks of a job, and needs `jobs.template`.

    Returns an error message, or None if the policy follows this rule.
    """
    if policy.jobs.may_differ and policy.jobs.template is None:
        return "jobs.may_differ needs jobs.template, the job from which others may differ"
    known = {".".join(path[:n]) for path in allowed.keys(Job) for n in range(1, len(path) + 1)}
    for key in policy.jobs.may_differ:
        if key not in known:
            return f"jobs.may_differ has {allowed.plain(key)}, which is no key of a job: correct it"
    return None


@RULES.rule("data", "servers")
def _names_of_files(policy: Policy) -> str | None:
    """Names in `data` and `servers` have only letters, digits, - and _, because they name files.

    Returns an error message, or None if the policy follows this rule.
    """
    for key, names in (("data", policy.data), ("servers", policy.servers)):
        for name in names:
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", name):
                return f"{key} has the name {allowed.plain(name)}: use letters, digits, - and _"
    return None


@RULES.rule("data")
def _one_account_each(policy: Policy) -> str | None:
    """`named` is different in each block of `data`, because a data set has one account.

    Returns an error message, or None if the policy follows this rule.
    """
    names = [block.named for block in policy.data.values()]
    twice = next((name for name in names if names.count(name) > 1), None)
    return None if twice is None else f"data has two blocks with named = {twice}: keep one of them"


@RULES.rule("code.modules", "clear.answer_after_s")
def _timed_code(policy: Policy) -> str | None:
    """`code.modules` needs `clear.answer_after_s`, so that no duration reveals data.

    Returns an error message, or None if the policy follows this rule.
    """
    for name in policy.code.modules:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,63}", name):
            return f"code.modules has {allowed.plain(name)}: name a module in the folder code"
    if policy.code.modules and policy.clear.answer_after_s is None:
        return "code.modules needs clear.answer_after_s, since the code chooses how long it trains"
    return None


@RULES.advised
def _no_job(policy: Policy) -> str | None:
    jobs = policy.jobs
    if jobs.digests or jobs.template or jobs.signed_by:
        return None
    return "no job may run yet: add one to jobs.digests, jobs.template or jobs.signed_by"


@RULES.advised
def _no_data(policy: Policy) -> str | None:
    return None if policy.data else "no job may train yet: name a data set in data"


@RULES.advised
def _unsigned(policy: Policy) -> str | None:
    if policy.strength.active_security:
        return None
    return (
        "strength.active_security is false: a server that lies can then open the updates in a sum"
    )


@RULES.advised
def _weak(policy: Policy) -> str | None:
    if not policy.code.modules or policy.code.isolation == "strong":
        return None
    return "code.isolation is weak: a study's code can read all files of this user"


@RULES.advised
def _timed(policy: Policy) -> str | None:
    if policy.clear.answer_after_s is not None:
        return None
    return "clear.answer_after_s is null: the time of a report tells something about the data"
