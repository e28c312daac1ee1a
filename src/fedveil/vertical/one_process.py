"""Runs a vertical job with every party in one process.

Each party's folder in the run folder has the same files as on a machine of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from fedveil.entropy import Seeded
from fedveil.errors import FewCommon, RunFolderError
from fedveil.learning.device import check_device
from fedveil.link.channel import Exchange, drive_together
from fedveil.privacy.ledger import Ledger, Line
from fedveil.record.lifecycle import beginning, how_to_resume, log_start
from fedveil.record.recorder import Record
from fedveil.record.run_folder import RunFolder
from fedveil.record.saved_job import reopen
from fedveil.vertical import bundle
from fedveil.vertical.job import VerticalJob, job_of_run
from fedveil.vertical.job_split import keep_run, make_split, make_task, report_entropy, threads
from fedveil.vertical.part_memory import check_memory
from fedveil.vertical.party_log import Progress
from fedveil.vertical.party_parts import Setting
from fedveil.vertical.party_run import OWN_SEED, PartyRun, begin
from fedveil.vertical.rows import LITTLE, Rows, align, with_hint
from fedveil.vertical.signatures import Signatures
from fedveil.vertical.split import Joined, SplitModel
from fedveil.vertical.step_checkpoint import from_last_step, last_common, trained_step
from fedveil.vertical.task import SUBSETS, Columns, Subset, Task, id_hint_of, notes_of

COMMAND = "fedveil vertical run"

T = TypeVar("T")

_SEEDED = (
    "initial weights are drawn from the job's seed, which all parties know: for simulation only"
)


@dataclass(frozen=True)
class VerticalRun:
    """A finished run: the model, and each party's records, epsilons (`figures`) and ledger."""

    job: VerticalJob
    split: SplitModel
    folder: Path
    records: Mapping[str, list[Record]]
    figures: Mapping[str, list[Line]]
    ledgers: Mapping[str, Ledger]
    #: Returns the run in a folder as HTML for a notebook, or None.
    html: Callable[[Path], str] | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        """Return the folder, task, parties and quality, and not every key and record."""
        last = self.metrics[-1] if self.metrics else {}
        known = [name for name in ("accuracy", "loss") if f"test_{name}" in last][:1]
        quality = "".join(f", {name}={last[f'test_{name}']:.4g}" for name in known)
        return (
            f"VerticalRun(folder={str(self.folder)!r}, task={self.job.task.name!r}, "
            f"parties={self.split.parties!r}{quality})"
        )

    def _repr_html_(self) -> str | None:
        return None if self.html is None else self.html(self.folder)

    @property
    def leader(self) -> str:
        return self.split.leader

    @property
    def metrics(self) -> list[Record]:
        return self.records[self.leader]

    @property
    def model(self) -> Joined:
        """Return all parts as one module. On separate machines, no party has all parts."""
        return self.split.joined()


def _silent(sentence: str) -> None: ...


def evaluate(
    folder: str | Path, say: Callable[[str], None] = _silent
) -> tuple[dict[str, Any], dict[str, list[Line]]]:
    """Evaluate the run in `folder` on held-out examples, protected as in training.

    Returns the metrics, and each party's epsilons by the party's name. `say` is called with a
    sentence if the run's training has not ended. Raises RunFolderError if it has saved no step.
    """
    with ExitStack() as stack:
        parties = reopened(folder, stack, to_look=True)
        quality = parties.look(PartyRun.evaluate, say)
        return quality, parties.figures()


def predict(
    folder: str | Path, say: Callable[[str], None] = _silent
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Compute the predictions of the run in `folder` for the held-out examples.

    Returns their ids, and the last part's outputs for them. `say` and errors are as in `evaluate`.
    """
    with ExitStack() as stack:
        parties = reopened(folder, stack, to_look=True)
        outputs = parties.look(PartyRun.predict, say)
        assert outputs is not None, "the leader has the outputs"
        return parties.ids, outputs


def look(
    folder: str | Path, how: Callable[[PartyRun], Exchange[T]], say: Callable[[str], None] = _silent
) -> T:
    """Load the run in `folder`, run an exchange of messages, and return the leader's result.

    `how` takes a party's `PartyRun` and returns the party's side of the exchange. An example is
    `PartyRun.evaluate`. `say` and errors are as in `evaluate`.
    """
    with ExitStack() as stack:
        return reopened(folder, stack, to_look=True).look(how, say)


def reopened(
    path: str | Path,
    stack: ExitStack,
    progress: Progress | None = None,
    say: Callable[[str], None] | None = None,
    encoded: bool = False,
    *,
    to_look: bool = False,
) -> Parties:
    """Return the parties of the run in the folder `path`. `stack` closes the parties' files.

    `progress` receives each of the leader's records, and `say` each sentence for the user. If
    `encoded` is True, messages are encoded as between machines. If `to_look` is True, a run without
    a trained model is refused.
    """
    folder, job = reopen(path, job_of_run, stack)
    if (folder.path / OWN_SEED).exists():
        raise RunFolderError(
            f"{folder.path} contains one party of a run on several machines. Its leader resumes it "
            f"with `fedveil vertical leader --resume {quote(str(folder.path))}`, and evaluates "
            f"and predicts with --listen HOST:PORT"
        )
    stack.enter_context(threads(job.threads))
    parties = Parties(job, folder.path, encoded)
    if to_look:
        trained_step(folder.path, {name: folder.within(name) for name in parties.split.parties})
    parties.enter(folder, stack, progress, say)
    return parties


class Parties:
    """All parties of a job, connected in one process. Nothing is written before `enter`.

    `old` is the folder of a resumed run, or None. If `encoded` is True, messages are encoded as
    between machines.
    """

    def __init__(self, job: VerticalJob, old: Path | None, encoded: bool) -> None:
        self._began = time.perf_counter()
        check_device("device", job.device)
        self.job = job
        self.task: Task = make_task(job, old)
        check_memory(job, self.task)
        self.split = make_split(job, self.task)
        self._encoded = encoded
        names = (self.task.leader, *self.task.followers)
        self._notes: list[str] = []
        self._rows: dict[Subset, dict[str, Rows]] = {}
        owned = {
            subset: {name: self.task.owned(name, subset) for name in names} for subset in SUBSETS
        }
        self._read: list[str] = [said for name in names for said in notes_of(self.task, name)]
        for subset in SUBSETS:
            positions = self._align(owned, subset)
            self._rows[subset] = {
                name: Rows.aligned(columns, self.split.columns(name), positions[name])
                for name, columns in owned[subset].items()
            }
        self.ids = self._rows["test"][self.task.leader].ids
        self.runs: dict[str, PartyRun] = {}

    def enter(
        self,
        folder: RunFolder,
        stack: ExitStack,
        progress: Progress | None,
        say: Callable[[str], None] | None,
    ) -> None:
        """Save the job in `folder`, and open a folder in it for each party.

        `stack` closes the files. `progress` receives each of the leader's records, and `say` each
        sentence for the user.
        """
        self.folder = folder
        self._said: set[str] = set()
        self._tell = say or (lambda sentence: None)
        for sentence in self._read:
            self._say(sentence)
        keep_run(folder, self.job, self.task, self.split.parties)
        for name in self.split.parties:
            setting = Setting(
                job=self.job,
                task=self.task,
                split=self.split,
                party=name,
                rows={subset: self._rows[subset][name] for subset in SUBSETS},
                entropy=report_entropy(self.job),
                order_seed=self.job.seed,
                folder=folder.within(name),
            )
            shown = progress if name == self.split.leader else None
            self.runs[name] = begin(setting, shown, self._say)
            stack.callback(self.runs[name].close)

    def _say(self, sentence: str) -> None:
        if sentence not in self._said:
            self._said.add(sentence)
            self._tell(sentence)

    def last_common_step(self) -> int:
        folders = {name: run.setting.folder for name, run in self.runs.items()}
        return last_common(self.folder.path, folders)

    def train(self, step: int) -> VerticalRun:
        """Train from `step`, a step that all parties have saved, to the end of the run."""
        with how_to_resume(lambda: from_last_step(COMMAND, self.folder.path)):
            self._restore(step, to_train=True)
            what = beginning("step", step)
            for run in self.runs.values():
                randomness = f"randomness of reports: {run.setting.entropy.description}"
                log_start(
                    run.log.event,
                    what,
                    self._began,
                    [randomness, _SEEDED, *self._read, *self._notes],
                )
            self._say(_SEEDED)
            self._together(PartyRun.train)
            self._bundle()
        return VerticalRun(
            job=self.job,
            split=self.split,
            folder=self.folder.path,
            records={name: run.log.records for name, run in self.runs.items()},
            figures=self.figures(),
            ledgers={name: run.ledger() for name, run in self.runs.items()},
        )

    def look(self, how: Callable[[PartyRun], Exchange[T]], say: Callable[[str], None]) -> T:
        """Run an exchange of messages from the last saved step. Returns the leader's result.

        `how` takes a party's `PartyRun` and returns the party's side of the exchange. An example is
        `PartyRun.evaluate`. `say` is called with a sentence if training has not ended.
        """
        self._restore(self.last_common_step(), to_train=False)
        for sentence in {run.unfinished for run in self.runs.values()} - {""}:
            say(sentence)
        try:
            return self._together(how)[self.split.leader]
        finally:
            for run in self.runs.values():
                if not isinstance(run.setting.entropy, Seeded):  # seeded reports are only repeated
                    run.keep_account()

    def figures(self) -> dict[str, list[Line]]:
        return {name: run.figures() for name, run in self.runs.items()}

    def _bundle(self) -> None:
        """Write the manifest into every party's model bundle, if all parties have a bundle.

        The manifest is not signed, because one user has the files of all parties.
        """
        contents = {name: run.contents for name, run in self.runs.items()}
        known = {name: found for name, found in contents.items() if found is not None}
        if len(known) < len(contents):
            return
        leader = self.runs[self.split.leader]
        manifest = bundle.manifest_of(self.job, self.split.leader, "", leader.done, known)
        for run in self.runs.values():
            folder = run.setting.folder.within(bundle.BUNDLE)
            bundle.write_manifest(folder, manifest, Signatures())

    def _restore(self, step: int, *, to_train: bool) -> None:
        for run in self.runs.values():
            run.load(step)
        for run in self.runs.values():
            run.settle(to_train=to_train)

    def _together(self, how: Callable[[PartyRun], Exchange[T]]) -> dict[str, T]:
        exchanges = {name: how(run) for name, run in self.runs.items()}
        return drive_together(exchanges, encoded=self._encoded)

    def _align(
        self, owned: Mapping[Subset, Mapping[str, Columns]], subset: Subset
    ) -> dict[str, npt.NDArray[Any]]:
        own = owned[subset]
        try:
            positions = align({n: columns.ids for n, columns in own.items()}, self.task.leader)
        except FewCommon as error:
            raise FewCommon(with_hint(str(error), self._id_hint(owned))) from None
        common = len(positions[self.task.leader])
        fewest = min(len(columns) for columns in own.values() if len(columns))
        if common * LITTLE < fewest:
            few = (
                f"{subset}: all parties have only {common:,} of the smallest table's {fewest:,} ids"
            )
            self._read.append(with_hint(few, self._id_hint(owned)))
        for name, columns in own.items():
            left_out = len(columns) - len(positions[name])
            if left_out > 0:
                self._notes.append(
                    f"{left_out} of {len(columns)} {subset} examples of {name} are left "
                    f"out: not all parties have them"
                )
        return positions

    def _id_hint(self, owned: Mapping[Subset, Mapping[str, Columns]]) -> str:
        names = [name for name, columns in owned["train"].items() if len(columns)]
        held = {n: np.concatenate([owned[s][n].ids for s in SUBSETS]) for n in names}
        return id_hint_of(self.task, held)
