"""Privacy accounts of a finished run, read from its folder and checked for consistency.

Digests are not signatures: a folder in which all files were rewritten consistently is accepted.
"""

from __future__ import annotations

import csv
import hashlib
import io
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from shlex import quote
from typing import Any

from fedveil.base.quantity import quantity
from fedveil.base.untrusted import MOST_STREAMED_BYTES, opened
from fedveil.engine.round_checkpoint import Checkpoint
from fedveil.errors import RunFolderError
from fedveil.mechanisms.embedding_dp import EmbeddingDP
from fedveil.pages.dossier.releases import releases_of
from fedveil.pages.read_run import ReadRun, party_folders, read_run, refuse_edited_job
from fedveil.pages.vertical_page import is_vertical, parties_of
from fedveil.privacy.client_tally import Kind
from fedveil.privacy.compose import Charge, cost
from fedveil.privacy.ledger import Ledger, Line
from fedveil.privacy.loss import PrivacyLoss
from fedveil.record.account_lines import ACCOUNTS, LABEL, OWN_REPORTS, SENT, UNPROTECTED
from fedveil.record.event_log import faults
from fedveil.record.finding_lines import FINDINGS
from fedveil.record.logged_account import check_logged
from fedveil.record.recorder import Metrics
from fedveil.record.run_folder import CHECKPOINT, EVENTS, JOB, METRICS, MODEL, RunFolder
from fedveil.record.saved_job import BEGAN
from fedveil.record.sealed_message import intact
from fedveil.record.started_rounds import Attempts
from fedveil.vertical.account import looks_begun

#: The texts of a party's account lines: for the bits that a part of the model sends for an
#: example, for a label, and for the whole run.
_BITS = re.compile(r"an example's (\d+) bits of (.+), sent once")
#: Runs of earlier versions name the example, not its reports.
_SENT = re.compile(rf"(?:{OWN_REPORTS}|an example) in the run, sent (?:once|(\d+) times)")
#: The client that is charged for rounds without a record. It takes part in every round.
_CLIENT = 0
#: Largest relative difference between a stated epsilon and the epsilon of the charges.
_SAME = 1e-9
#: Files whose digests a dossier lists, if the run has them.
_FILES = (JOB, METRICS, EVENTS, ACCOUNTS, FINDINGS, MODEL, f"{CHECKPOINT}/latest", SENT)


@dataclass(frozen=True)
class Account:
    """A stated epsilon and delta, and the releases from which they follow.

    `of` says whose privacy is covered. If `adaptive` is True, losses may depend on earlier rounds,
    so the epsilons of the releases add up. If `releases` is empty, `missing` says why.
    """

    of: str
    epsilon: float
    delta: float
    adaptive: bool
    releases: list[dict[str, Any]]
    missing: str = ""


@dataclass(frozen=True)
class Evidence:
    """A run, its privacy accounts, and the SHA-256 digests of its files by name.

    Each account states one epsilon of the run. `parties` has the run of a vertical job as each
    party recorded it, by the party's name. It is empty for a federated run.
    """

    run: ReadRun
    accounts: list[Account]
    files: Mapping[str, str]
    parties: Mapping[str, ReadRun]

    @property
    def vertical(self) -> bool:
        return is_vertical(self.run)


def read_evidence(path: Path) -> Evidence:
    """Read a run's folder and check it. Raises `RunFolderError` if it is damaged or was edited.

    No other process may write to the folder during the call.
    """
    with closing(RunFolder.reopen(path)) as folder:
        run = read_run(path)
        with intact(path):
            if not (path / BEGAN).is_file():
                raise RunFolderError(f"{path / BEGAN} is missing, the job that the run began with")
            refuse_edited_job(path)
            if is_vertical(run):
                parties = _whole_parties(run)
                accounts = [a for n, party in parties.items() for a in _of_party(n, party, run)]
            else:
                parties, accounts = {}, _of_ledger(folder, run)
            if not accounts and not parties:
                raise RunFolderError(f"{path} holds no records: no client has sent anything yet")
            places = [path, *(party.folder for party in parties.values())]
            for fault in chain.from_iterable(faults(place / EVENTS) for place in places):
                raise RunFolderError(fault)
            names = (place / name for place in places for name in _FILES)
            files = {str(n.relative_to(path)): _digest(n) for n in names if n.is_file()}
        return Evidence(run, accounts, files, parties)


def _of_ledger(folder: RunFolder, run: ReadRun) -> list[Account]:
    """Return a list with the account of a client (or example) that is in every round.

    The list is empty if the run has no checkpoint. Raises RunFolderError if the run's records do
    not agree with the ledger in the checkpoint.
    """
    checkpoint = Checkpoint.read(folder)
    if checkpoint is None and run.started:
        raise RunFolderError(
            f"{folder.path} has no checkpoint, but {run.unfinished}. Resume the run first"
        )
    if checkpoint is None or not run.records:
        return []
    kept = Metrics.vouched(folder, checkpoint.metrics_bytes, checkpoint.metrics_digest)
    if len(kept.records) != len(run.records):
        raise RunFolderError(
            f"{folder.path / METRICS} holds {quantity(len(run.records), 'record')}, but the "
            f"checkpoint covers {len(kept.records)}. Resume the run with: "
            f"fedveil run --resume {quote(str(folder.path))}"
        )
    ledger, delta = Ledger.from_state(checkpoint.ledger), run.job["privacy"]["delta"]
    last = replace(run, started={}).last
    for name, figure in ledger.figures(delta).items():
        stated = (last[f"epsilon_{name}"], last[f"delta_{name}"])
        if not _same(stated[0], figure.epsilon) or stated[1] != figure.delta:
            raise RunFolderError(
                f"{folder.path / METRICS} does not state what the ledger adds up to: "
                f"epsilon_{name} is {stated[0]} at delta {stated[1]}, and the ledger's is "
                f"{figure.epsilon} at delta {figure.delta}"
            )
    for number, charges in _started(folder, run, checkpoint.round):
        ledger.record_many(charges, round=number, clients=[_CLIENT], ahead=True)
    figure = ledger.figure_every_round(delta)
    rates = [run.job["clients"]["fraction"], run.job["training"].get("sampling_rate") or 1.0]
    releases = releases_of(
        ledger.charges_every_round(figure.delta), rates, adaptive=ledger.adaptive
    )
    whose = "one example of a client" if run.last["unit"] == "example" else "a client"
    what = f"{whose} in every round"
    return [Account(what, figure.epsilon, figure.delta, ledger.adaptive, releases)]


def _started(folder: RunFolder, run: ReadRun, done: int) -> Iterator[tuple[int, Kind]]:
    """Yield (round, charges) for each start of a round that the run's records do not contain.

    The charges are the privacy losses of one report in this round. A round that was started several
    times is yielded several times. But if the run's randomness comes from a seed, repeated reports
    are equal, so the round is yielded only once. `done` is the last round in the checkpoint.
    """
    if not run.started:
        return
    begun = Attempts(folder, done).begun
    # Repeated reports that are seeded are equal.
    yield from dict(begun).items() if run.job["privacy"]["randomness"] == "seeded" else begun


def _whole_parties(run: ReadRun) -> dict[str, ReadRun]:
    """Return the records of the parties of a vertical run, by the party's name.

    Raises RunFolderError if a party's records are missing, or if its account is not the latest one
    that its event log has.
    """
    parties = parties_of(run)
    for folder in party_folders(run.folder, EVENTS):
        if folder.name not in parties:
            raise RunFolderError(f"{folder / METRICS} is missing: the party's records")
    for party in parties.values():
        _check_logged(party)
    return parties


def _check_logged(party: ReadRun) -> None:
    """Raise RunFolderError unless the log of a party has its account, and nothing newer.

    Every session ends with the lines of the account in the log. A session that was killed has none,
    but has sent tensors that no saved account counts.
    """
    file, again = party.folder / ACCOUNTS, "Resume the run, and let it end"
    if check_logged(party.folder, party.accounts, party.events):
        raise RunFolderError(
            f"{file} is older than the run's last session, which did not end. {again}"
        )
    times = [int(sent[1] or 1) for line in party.accounts if (sent := _SENT.fullmatch(line.what))]
    if times and looks_begun(party.folder) > max(times):
        raise RunFolderError(f"{file} does not count an evaluation that was begun. Evaluate again")


def _of_party(name: str, party: ReadRun, run: ReadRun) -> Iterator[Account]:
    lines = {line.what: line for line in party.accounts}
    for what, line in lines.items():
        sent = _SENT.fullmatch(what)
        if sent is not None:
            charges = _charges_of_example(lines, int(sent[1] or 1), run)
            if LABEL in lines:
                charges = _costlier(charges, _charges_with_label(party, lines, run), line.delta)
            yield _followed(party, name, line, charges)
        elif what == LABEL:
            yield _followed(party, name, line, [_label(run)])


def _label(run: ReadRun) -> Charge:
    """Return the privacy charge of a label under the job's LabelDP."""
    settings = run.job["privacy"]["label_dp"]
    return PrivacyLoss(settings["eps"] if settings else math.inf, per="example"), 1


def _costlier(some: list[Charge], others: list[Charge], delta: float) -> list[Charge]:
    return max(some, others, key=lambda charges: cost(charges, delta))


def _charges_with_label(party: ReadRun, lines: Mapping[str, Line], run: ReadRun) -> list[Charge]:
    """Return the privacy charges of a party's costliest training example under LabelDP.

    It is charged for its label, too. Held-out examples are not, but may have been sent more often.
    """
    path = party.folder / SENT
    with intact(path), opened(path, MOST_STREAMED_BYTES) as file:
        rows = csv.DictReader(io.TextIOWrapper(file, "utf-8", newline=""))
        times = max((int(row["times"]) for row in rows if row["subset"] == "train"), default=0)
    sent = _charges_of_example(lines, times, run) if times else []
    return [*sent, _label(run)]


def _charges_of_example(lines: Mapping[str, Line], times: int, run: ReadRun) -> list[Charge]:
    """Return the privacy charges of an example whose tensors a party sent `times` times.

    `lines` are the lines of the party's account. Each key is a line's text, `Line.what`. A text of
    the form "an example's N bits of PART, sent once" gives the number of bits that a part of the
    model sends. The job of `run` gives the privacy settings of that part. If they include `reuse`,
    the bits are drawn once and charged once. The charge is infinite if any line is about
    unprotected values.
    """
    if any(what.endswith(UNPROTECTED) for what in lines):
        return [(PrivacyLoss(math.inf, per="example"), 1)]
    charges: list[Charge] = []
    for what in lines:
        if (bits := _BITS.fullmatch(what)) is not None:
            own = run.job["parts"].get(bits[2], {}).get("privacy")
            settings = (own or run.job["privacy"])["embedding_dp"] or {}
            count = int(bits[1]) * (1 if settings.get("reuse") else times)
            charges += EmbeddingDP(settings.get("eps")).loss.charges(count)
    return [(loss.resolved(), count) for loss, count in charges]


def _followed(party: ReadRun, name: str, line: Line, charges: list[Charge]) -> Account:
    """Check the epsilon in `line` against `charges`, and return both as an `Account`.

    `line` is one line of a party's `accounts.jsonl`, and `charges` are the privacy charges that it
    summarises. `party` is the party's run, and `name` the party's name. Raises `RunFolderError` if
    the epsilon of the charges differs from that of `line`.
    """
    follows = cost(charges, line.delta)
    if not _same(line.epsilon, follows):
        raise RunFolderError(
            f"{party.folder / ACCOUNTS} does not follow from the job: epsilon {line.epsilon} for "
            f"{line.what}, where {follows} follows"
        )
    releases = releases_of(charges, [], adaptive=False)
    return Account(f"{name}: {line.what}", line.epsilon, line.delta, False, releases)


def _same(stated: float, found: float) -> bool:
    return stated == found or math.isclose(stated, found, rel_tol=_SAME)


def _digest(path: Path) -> str:
    with opened(path, MOST_STREAMED_BYTES) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
