"""The statements that NIST SP 800-226 requires of a privacy claim, made from a run's folder.

A statement that cannot be made from the folder has no sentences, only the reason why.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from fedveil.pages.dossier.account import Account, Evidence
from fedveil.pages.finding_text import conclusion
from fedveil.pages.guarantee_text import attackers, figure_of, meaning, returned
from fedveil.pages.run_page import plain
from fedveil.pages.vertical_page import is_apart
from fedveil.privacy.audit import rounded_down
from fedveil.privacy.finding import Finding
from fedveil.privacy.guarantee_strength import Figure, promise
from fedveil.privacy.loss import format_delta, format_epsilon
from fedveil.protections.catalog import POSITIONS
from fedveil.record.account_lines import FAILURE, UNPROTECTED, WHENEVER, influenced_part

_REPLACE = (
    "Two inputs are neighbours if {unit} is replaced by any other (replace-one, the relation of "
    "bounded differential privacy)."
)

_ELSEWHERE = (
    "What the other parties sent: this record has one party's account only, and each other party "
    "states its own."
)
_UNMEASURED = (
    "Nobody measured the running time, memory and power of the senders' machines in this run."
)


@dataclass(frozen=True)
class Statement:
    """A statement of a dossier: key, title and sentences. Without sentences, `missing` says why."""

    key: str
    title: str
    lines: list[str] = field(default_factory=list)
    missing: str = ""

    @property
    def text(self) -> str:
        """The sentences as one paragraph, or the reason why there are none."""
        return " ".join(self.lines) if self.lines else f"Not stated: {self.missing}"


def statements(evidence: Evidence) -> list[Statement]:
    """Return all statements about a run, in the order in which SP 800-226 introduces them."""
    found = _vertical(evidence) if evidence.vertical else _federated(evidence)
    epsilons = [f"{Figure(a.epsilon, a.delta)} for {a.of}." for a in evidence.accounts]
    return [
        Statement("epsilon", "Epsilon and delta", epsilons, _no_account(evidence)),
        *found,
        Statement("composition", "Composition", _composition(evidence.accounts),
                  "no releases are known"),
        _bounds(evidence.run.findings, vertical=evidence.vertical),
        _attacks(evidence.run.findings),
        Statement("integrity", "The run's records", _integrity(evidence)),
        *_unknown(),
    ]  # fmt: skip


def worst(accounts: list[Account]) -> Account | None:
    """Return the account with the largest epsilon, or None if there is none."""
    return max(accounts, key=lambda account: account.epsilon, default=None)


def _federated(evidence: Evidence) -> Iterator[Statement]:
    run, last = evidence.run, evidence.run.last
    unit = "one example of a client" if last["unit"] == "example" else "a client's whole data"
    yield Statement("unit", "Unit and neighbouring relation",
                    [f"The protected unit is {unit}.", _REPLACE.format(unit=unit)])  # fmt: skip
    yield Statement("meaning", "What an attacker learns at most", [meaning(last)])
    against = attackers(run.job)
    trusted = "The server is trusted." if last["rests_on_server"] else (
        "The server is not trusted with the data, but to follow the protocol where the "
        "protection's own page says so.")  # fmt: skip
    if last["promise_run_every_round"] == "none":
        against = ""
    holds = [f"The guarantee holds against {against}.", trusted] if against else []
    none = f"the protection {run.job['protection']['name']} states no finite epsilon here"
    if run.job["protection"]["name"] not in POSITIONS:
        none = "the protection is a class of the user's own, which the dossier does not load"
    yield Statement("trust", "Trust model", holds, none)
    name = run.job["protection"]["name"]
    settings = {k: v for k, v in _settings(run.job["protection"]).items() if v is not None}
    told = _words(settings)
    yield Statement("mechanism", "Mechanism", [f"{name}{f' ({told})' if told else ''}."])
    yield Statement("not_covered", "What is not covered", list(_open(evidence)))
    yield Statement("side_channels", "Side channels", list(_channels(last["in_clear"])))
    yield _randomness(str(last["randomness"]))


def _settings(switch: dict[str, Any]) -> dict[str, Any]:
    position = POSITIONS.get(str(switch["name"]))
    block = position.block if position is not None else "own"
    return dict(switch.get(block or "") or {})


def _words(block: Mapping[str, Any]) -> str:
    """Return the keys and values of a job's block. Keys of inner blocks stand in brackets."""
    return ", ".join(
        f"{key} ({_words(value)})" if isinstance(value, Mapping) else f"{key} {plain(value)}"
        for key, value in block.items()
    )


def _vertical(evidence: Evidence) -> Iterator[Statement]:
    job = evidence.run.job
    yield Statement("unit", "Unit and neighbouring relation", [
        "The protected unit is one example of a party: its values, or its label.",
        _REPLACE.format(unit="one example"),
    ])  # fmt: skip
    found = worst(evidence.accounts)
    says = [] if found is None else [
        "In the account with the largest epsilon, the guarantee is "
        f"{promise(found.epsilon, found.delta)}."]  # fmt: skip
    yield Statement("meaning", "What an attacker learns at most", says, _no_account(evidence))
    yield Statement("trust", "Trust model", [
        "A party's guarantee holds against the other parties and everyone who reads what it sends. "
        "A party trusts its own machine."])  # fmt: skip
    privacy = {
        key: value
        for key, value in job["privacy"].items()
        if value not in (None, {}, []) and key != "randomness"
    }
    told = _words(privacy)
    yield Statement("mechanism", "Mechanism", [f"{told}."] if told else [],
                    "the parties' messages are sent without protection")  # fmt: skip
    bare = [line.what for party in evidence.parties.values() for line in party.accounts
            if line.what.endswith(UNPROTECTED) or influenced_part(line.what)
            or line.what == FAILURE]  # fmt: skip
    yield Statement("not_covered", "What is not covered", [
        *(f"No finite epsilon covers {what}." for what in bare), returned(job),
        *[_ELSEWHERE] * is_apart(evidence.parties),
        "The ids that all parties have in common, the order of batches and the sizes of messages."
    ])  # fmt: skip
    yield Statement("side_channels", "Side channels", [
        "A feature under embedding_dp is a bit and a label under label_dp is a class, so neither "
        "has rounded noise. The noise of returned gradients is continuous.", _UNMEASURED,
    ])  # fmt: skip
    seeded = job["privacy"]["randomness"] == "seeded"
    yield _randomness(
        "the operating system of the machine of this party" if is_apart(evidence.parties) else
        "simulation randomness" if seeded else "system randomness")  # fmt: skip


def _no_account(evidence: Evidence) -> str:
    """Return the reason why a run has no account."""
    if is_apart(evidence.parties):
        return "this party has no account. Each other party has its own, on its own machine"
    return "no party has an account"


def _open(evidence: Evidence) -> Iterator[str]:
    last = evidence.run.last
    for what in last["in_clear"]:
        yield f"Sent in the clear, with no finite epsilon: {what}."
    if figure_of(last, "run_every_round").promise == "none":
        yield "The reports: nothing is promised about what they or their sum reveal."
    for line in evidence.run.accounts:
        if WHENEVER in line.what:
            yield f"The number of rounds, which depends on their results. It is covered by {line}."
    yield "Who took part in which round, and when: the server knows its clients."
    yield "The choice of settings from private data, unless the ledger charged it."


def _channels(in_clear: object) -> Iterator[str]:
    yield (
        "Noise of a built-in protection is drawn from an exact discrete distribution or rounded to "
        "a grid before it is sent, except under dp_encrypt with noise: continuous."
    )
    yield (
        "The length of a built-in protection's report is fixed or, under signds, follows from the "
        "perturbed report itself."
    )
    timed = any("time" in str(what) for what in in_clear) if isinstance(in_clear, list) else False
    yield (
        "The time at which a report is sent depends on the data, and no epsilon covers it."
        if timed else
        _UNMEASURED
    )  # fmt: skip


def _randomness(said: str) -> Statement:
    lines = [f"{said[0].upper()}{said[1:]}."]
    if said.startswith("simulation"):
        lines.append("Anyone with the job can remove the noise: the guarantee holds for a "
                     "deployment with system randomness, not for this run.")  # fmt: skip
    return Statement("randomness", "Source of randomness", lines)


#: The kinds of releases without Gaussian noise (`law` in a record), in words.
_LAWS = {"none": "what is sent unprotected", "stated": "a mechanism with a stated epsilon",
         "table": "a mechanism with a tabulated loss"}  # fmt: skip


def _law(release: Mapping[str, Any]) -> str:
    """Return a release's mechanism in words. The size of Gaussian noise is rounded down."""
    if release["law"] == "gaussian":
        return f"Gaussian noise of {rounded_down(release['ratio'])} times the sensitivity"
    if release["law"] == "sampled gaussian":
        multiplier = rounded_down(release["multiplier"])
        return f"a secret sample with Gaussian noise of {multiplier} times the clipping norm"
    return _LAWS[release["law"]]


def _composition(accounts: list[Account]) -> list[str]:
    found = []
    for account in accounts:
        laws = [f"{r['count']:,} × {_law(r)}, for each {r['per']}" for r in account.releases]
        how = "the privacy curves are composed"
        if account.adaptive:
            how = "epsilons add up, since losses may depend on earlier rounds"
        if any(r["law"] == "none" for r in account.releases):
            how = "one of them is not protected, so no epsilon is finite"
        found.append(f"For {account.of}: {', '.join(laws) or 'no release'}; {how}.")
    return found


def _bounds(findings: object, *, vertical: bool = False) -> Statement:
    lines = []
    for finding in _findings(findings):
        for bound in finding.bounds:
            claim = bound.claim(finding.epsilon)
            limit = f"true epsilons up to {format_epsilon(bound.unseen)} would probably be missed"
            if math.isinf(bound.unseen):
                limit = "every true epsilon would probably be missed"
            elif math.isnan(bound.unseen):
                limit = "nobody worked out which true epsilons it would miss"
            lines.append(
                f"{bound.name}: {_lower(bound.value)} of {format_epsilon(claim)} claimed, from "
                f"{bound.cases:,} cases, at 95% confidence. It assumes that the attacker saw "
                f"{finding.saw or 'the report'}; {limit}. {finding.verdict.capitalize()}."
            )
    missing = "the run was not audited. `audit.canaries` audits it"
    if vertical:
        missing = "no audit gives a lower bound for a vertical run"
    return Statement("audit", "Audit: lower bounds on epsilon", lines, missing)


def _lower(value: float) -> str:
    return rounded_down(value) if math.isfinite(value) else "unknown"


def _attacks(findings: object) -> Statement:
    lines = [
        f"{finding.attack} at effort {finding.effort}: {conclusion(finding)}"
        for finding in _findings(findings)
    ]
    return Statement("attacks", "Attacks tried", lines,
                     "nobody attacked this run. A failed attack would prove nothing")  # fmt: skip


def _findings(findings: object) -> list[Finding]:
    return [f for f in findings if isinstance(f, Finding)] if isinstance(findings, list) else []


def _integrity(evidence: Evidence) -> list[str]:
    run = evidence.run
    ends = dict.fromkeys(party.ended or "not ended" for party in evidence.parties.values())
    state = run.ended or "; ".join(ends)
    lines = [f"The run's end: {state or 'still running, or killed'}."]
    lines.append(
        "The job equals its copy from the start of the run, and each party's account follows from "
        "the job and its counts."
        if evidence.vertical else
        "The job equals its copy from the start of the run, the metrics equal the checkpoint's "
        "digest, and the ledger adds up to the last record."
    )  # fmt: skip
    if run.unfinished:
        lines.append(f"{run.unfinished.capitalize()}.")
    lines.append("Digests are no signatures: whoever can rewrite all files can forge a run. "
                 "Findings of attacks have no digest.")  # fmt: skip
    return lines


def _unknown() -> Iterator[Statement]:
    """Yield the statements that cannot be made from a run's folder, each with the reason why."""
    reason = "the run's folder does not hold it. Whoever deploys the model must add it"
    for key, title in {
        "purpose": "Intended use of the model",
        "collection": "How the data were collected, and who may read them",
        "retention": "How long the raw data are kept",
    }.items():
        yield Statement(key, title, [], reason)


def shown(account: Account) -> tuple[str, str]:
    """Return an account's epsilon and delta as text, rounded up."""
    return format_epsilon(account.epsilon), format_delta(account.delta)
