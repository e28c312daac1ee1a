"""One party's side of a whole run: epochs, evaluations, records and checkpoints.

A party alone on its machine agrees with its peers on the step from which to resume, restores it and
runs `train` over its channels.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedveil.entropy import Entropy, Seeded
from fedveil.errors import LimitReached, PartFailed, PeerAtLimit, RunFolderError
from fedveil.link.channel import Exchange
from fedveil.mechanisms.label_dp import LabelDP
from fedveil.privacy.ledger import Ledger, Line
from fedveil.privacy.loss import PrivacyLoss
from fedveil.record.account_lines import keep_accounts
from fedveil.record.model_file import write_model
from fedveil.record.recorder import Metrics, Record, Recorder
from fedveil.record.run_folder import METRICS, TRACEBACK, RunFolder, uninterrupted
from fedveil.record.saved_job import keep_job
from fedveil.record.sealed_message import intact
from fedveil.vertical import account, noisy_labels
from fedveil.vertical.crossing_reports import Reports
from fedveil.vertical.epsilon_limit import Limit
from fedveil.vertical.job import VerticalJob
from fedveil.vertical.job_split import own_functions
from fedveil.vertical.label_watch import LabelWatch
from fedveil.vertical.log_lines import line
from fedveil.vertical.party import Party
from fedveil.vertical.returned_gradients import ReturnedGradients, projection, saved_key
from fedveil.vertical.rows import Order, Rows
from fedveil.vertical.split import Crossing, SplitModel, module_of
from fedveil.vertical.step import Batch, Occasion
from fedveil.vertical.step_checkpoint import Checkpoint, check_begins, forget_after, held
from fedveil.vertical.step_window import StepWindow
from fedveil.vertical.task import Measured, Subset, Task, files_of

Progress = Callable[[Record], None]


@dataclass(frozen=True)
class Setting:
    """Everything from which a party's side of a run is built.

    `rows` are its examples in the agreed order. The leader's `order_seed` determines the order of
    training. `entropy` is the randomness of everything that the party sends, `folder` its run
    folder. `own_seed` determines its initial weights and dropout; None uses the job's seed.
    """

    job: VerticalJob
    task: Task
    split: SplitModel
    party: str
    rows: Mapping[Subset, Rows]
    entropy: Entropy
    order_seed: int
    folder: RunFolder
    own_seed: int | None = None


class PartyRun:
    """A party in a run. Call `restore` with a step that all parties have saved, then `train`.
    If `train` has ended with an error, call both again.
    """

    def __init__(
        self,
        setting: Setting,
        progress: Progress | None = None,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self.setting, self.name = setting, setting.party
        self.records: list[Record] = []
        job, split = setting.job, setting.split
        is_leader = self.name == split.leader
        self._has_told = False
        self._tell = progress or (lambda record: None)
        self._say = say or (lambda sentence: None)
        self._reports = Reports(setting.entropy, setting.folder.path, self.event)
        self._order = Order(setting.order_seed, setting.rows["train"].count, job.batch_size)
        # Randomness drawn again from a seed is the same, and reveals nothing new.
        fresh = not isinstance(setting.entropy, Seeded)
        self._releases = account.Releases(
            setting.folder, self._order, fresh=fresh, epochs=job.epochs
        )
        self._fingerprint = _fingerprint(setting)
        self._rows = dict(setting.rows)
        self._label_loss = self._protect_labels() if is_leader else None
        most, delta = job.privacy.max_epsilon, job.privacy.delta
        self._limit = Limit(split, self.name, most, delta, self._label_loss)
        self.stopped: str | None = None
        self._returned = self._protect_gradients(is_leader)
        self._watch: LabelWatch | None = None
        self.party = Party(
            self.name,
            split,
            loss=setting.task.loss if is_leader else None,
            in_flight=job.in_flight,
            seed=job.seed if setting.own_seed is None else setting.own_seed,
            device=job.device,
            tell_loss=job.record.followers_see_loss,
            report=self._reports,
            returned=self._send_back if is_leader else None,
        )
        self.done = 0
        self._window = StepWindow(self.party)
        self._recorder: Recorder | None = None
        self._metrics = Metrics()
        if not held(setting.folder):
            check_begins(setting.folder)
            self._checkpoint()

    @property
    def total(self) -> int:
        return self.setting.job.epochs * self._order.steps

    def restore(self, step: int) -> None:
        """Load the checkpoint after `step`, and remove everything later from the folder."""
        self.load(step)
        self.settle()

    def load(self, step: int) -> None:
        """Load the checkpoint after `step`. Raises an error if one of its files is damaged."""
        folder = self.setting.folder
        saved = Checkpoint.read(folder, step)
        if saved.fingerprint != self._fingerprint:
            raise RunFolderError(f"{folder.path} was made with another job, model or data")
        metrics = Metrics.vouched(folder, saved.metrics_bytes, saved.metrics_digest)
        with intact(folder.path / METRICS):
            for record in metrics.records:
                line(record)
        saved.give(folder, self.party)
        self._window = StepWindow(self.party, saved.window)
        self._releases.restore(step, looks=sum("look" in record for record in metrics.records))
        for crossing in self.setting.split.crossings:
            if crossing.sender == self.name and crossing.privacy and crossing.privacy.reuse:
                self._reports.require(crossing, self._releases.examples(step))
        self.done, self._metrics = step, metrics

    def settle(self) -> None:
        """Make the folder contain the loaded state and nothing later."""
        forget_after(self.setting.folder, self.done)
        self._releases.settle(self.done)
        if self._recorder is not None:
            self._recorder.close()
        self._recorder = Recorder(self.setting.folder, self._metrics, durable=False)
        self.records = self._recorder.records

    def train(self) -> Exchange[None]:
        """Run all remaining steps, and write the files with which a run ends.

        The run ends early, without an error, before a step or an evaluation that would bring an
        example of any party above that party's `privacy.max_epsilon`. If one of this party's own
        modules fails, the traceback is saved in its folder.
        """
        self.stopped = None
        try:
            yield from self._train()
        except LimitReached as limit:
            self.stopped = str(limit)
            yield from self.party.end("its own privacy.max_epsilon is reached", at_limit=True)
            if not self.done:
                raise
        except PeerAtLimit as limit:
            self.stopped = str(limit)
            if not self.done:
                raise
        except PartFailed as failure:
            whole = "".join(traceback.format_exception(failure.__cause__))
            self.setting.folder.write_atomically(TRACEBACK, whole.encode())
            failure.add_note(f"the traceback is in {self.setting.folder.path / TRACEBACK}")
            raise
        finally:
            self.keep_account()
        if self.stopped is not None and self.done not in held(self.setting.folder):
            self._checkpoint()
        self._finish()

    def _train(self) -> Exchange[None]:
        job = self.setting.job
        if not self._has_told:
            for record in self.records:
                self._tell(record)
            for sentence in account.opening(self.setting.split, self.name):
                self.say(sentence)
            if (forecast := self._limit.forecast(job.epochs)) is not None:
                self.say(forecast)
        self._has_told = True
        self._watch_labels()
        while self.done < self.total:
            number = self.done + 1
            epoch, within = divmod(self.done, self._order.steps)
            batch = self._rows["train"].batch(self._order.of_step(number))
            sent = int(self._releases.train[batch.positions].max())
            self._limit.check(f"step {number}", sent + 1, labelled=True)
            self._releases.begin_step(number, batch.positions)
            loss = yield from self.party.step(number, batch, settled=epoch > 0)
            self.done = number
            self._window.add(loss, batch.rows)
            if self._watch is not None:
                self._watch.step_ended(last=number == self.total)
            if number % job.record.every_steps == 0 or number == self.total:
                self._record_step(epoch, within + 1)
            if within + 1 == self._order.steps and self._looks_after(epoch):
                yield from self._evaluate(epoch)
            if number % job.checkpoint.every_steps == 0 or number == self.total:
                self._checkpoint()

    def evaluate(self) -> Exchange[dict[str, Any]]:
        """Evaluate the held-out examples. Returns the task's averages and metrics at the leader."""
        measured = Measured(self.setting.task)
        yield from self._look(lambda outputs, batch: measured.add(outputs, batch.labels))
        return measured.quality()

    def predict(self) -> Exchange[npt.NDArray[Any] | None]:
        """Run the model on the held-out examples. Returns the outputs at the leader."""
        found: list[npt.NDArray[Any]] = []
        yield from self._look(lambda outputs, batch: found.append(outputs.float().numpy()))
        return np.concatenate(found) if found else None

    def figures(self) -> list[Line]:
        """Return this party's epsilons so far. A leader's include the epsilon of its labels."""
        delta, split = self.setting.job.privacy.delta, self.setting.split
        found = account.figures(split, self.name, self._releases, delta, self._label_loss)
        if found and (self.setting.folder.path / TRACEBACK).exists():
            found.append(
                Line(math.inf, 0.0, "the failure of a part, which the other parties were told")
            )
        return found

    def keep_account(self) -> None:
        """Write how often each example was sent so far, and this party's account."""
        if any(crossing.sender == self.name for crossing in self.setting.split.crossings):
            ids = {subset: rows.ids for subset, rows in self.setting.rows.items()}
            self.setting.folder.write_atomically(account.SENT, self._releases.table(ids))
        keep_accounts(self.setting.folder, self.figures(), self.event)

    def ledger(self) -> Ledger:
        return account.ledger_of(self.setting.split, self.name, self._releases, self._label_loss)

    def say(self, sentence: str) -> None:
        """Write a sentence to the log, and show it to the user who started this party."""
        self.event(sentence)
        self._say(sentence)

    def event(self, text: str) -> None:
        assert self._recorder is not None, "restore comes first"
        self._recorder.event(text)

    def close(self) -> None:
        if self._recorder is not None:
            self._recorder.close()
        self._reports.close()
        self._releases.close()

    def _watch_labels(self) -> None:
        """At the leader, measure what its gradients reveal in the first and last steps."""
        split = self.setting.split
        has_told = self._watch is not None and self._watch.has_told
        if self.name == split.leader and self.done < self.total and not has_told:
            classes = self.setting.task.classes
            left = self.total - self.done
            for sentence in self._projection():
                self.say(sentence)
            self._watch = LabelWatch(split, classes, self._returned, self.say, left)

    def _projection(self) -> Iterable[str]:
        settings, labels = self.setting.job.privacy.label_protection, self._rows["train"].labels
        if settings is None or labels is None:
            return ()
        share = float((labels == 1).float().mean())
        return projection(self.setting.split, settings, share, self.setting.job.epochs)

    def _send_back(
        self, crossing: Crossing, gradient: torch.Tensor, labels: torch.Tensor, occasion: Occasion
    ) -> torch.Tensor:
        return (self._watch or self._returned)(crossing, gradient, labels, occasion)

    def _look(self, take: Callable[[torch.Tensor, Batch], None]) -> Exchange[None]:
        """Evaluate all held-out examples. The leader calls `take` with each batch's outputs."""
        looks = self._releases.looks + 1
        self._limit.check(f"evaluation {looks} of the held-out examples", looks, labelled=False)
        self._releases.begin_look()
        order = replace(self._order, count=self._rows["test"].count)
        for number, positions in enumerate(order.in_turn(), start=1):
            batch = self._rows["test"].batch(positions)
            outputs = yield from self.party.look(number, batch, occasion=self.done)
            if outputs is not None:
                take(outputs.cpu(), batch)

    def _looks_after(self, epoch: int) -> bool:
        every, ended = self.setting.job.evaluation.every_epochs, epoch + 1
        return every is not None and (ended == self.setting.job.epochs or ended % every == 0)

    def _evaluate(self, epoch: int) -> Exchange[None]:
        began = time.perf_counter()
        quality = yield from self.evaluate()
        shown = {
            f"test_{name}" if isinstance(value, float) else name: value
            for name, value in quality.items()
        }
        self._keep(epoch=epoch, look=self.done, **shown, seconds=time.perf_counter() - began)
        self._window.look_away()

    def _record_step(self, epoch: int, within: int) -> None:
        task = self.setting.task
        figures = self._window.figures(task.unit, task.units_per_example)
        self._window = StepWindow(self.party)
        self._keep(epoch=epoch, step=within, steps=self._order.steps, **figures)

    def _keep(self, **figures: Any) -> None:
        record = {"party": self.name, **figures}
        assert self._recorder is not None, "restore comes first"
        self._recorder.record(record)
        self._tell(record)

    def _checkpoint(self) -> None:
        metrics_bytes, metrics_digest = 0, ""
        if self._recorder is not None:
            self._recorder.sync()
            metrics_bytes = self._recorder.metrics_bytes
            metrics_digest = self._recorder.metrics_digest
        with uninterrupted():
            Checkpoint(
                step=self.done,
                fingerprint=self._fingerprint,
                metrics_bytes=metrics_bytes,
                metrics_digest=metrics_digest,
                window=self._window.kept,
                tensors=self.party.state(),
            ).write(self.setting.folder)

    def _finish(self) -> None:
        with uninterrupted():
            write_model(self.setting.folder, self.party.modules)
        why = "" if self.stopped is None else f": {self.stopped}"
        self.event(f"finished after step {self.done}{why}")

    def _protect_gradients(self, is_leader: bool) -> ReturnedGradients:
        settings, setting = self.setting.job.privacy.label_protection, self.setting
        if settings is None or not is_leader:
            return ReturnedGradients(None, b"")
        return ReturnedGradients(settings, saved_key(setting.folder, setting.entropy))

    def _protect_labels(self) -> PrivacyLoss | None:
        """Draw the labels for training, once for the run. Returns the loss of a label.

        A resumed run reads the file that has them before anything is computed from them.
        """
        settings = self.setting.job.privacy.label_dp
        rows = self._rows["train"]
        if settings is None or rows.labels is None:
            return None
        classes = self.setting.task.classes
        assert classes is not None, "make_task has checked it"
        mechanism = LabelDP(settings.eps)
        path = self.setting.folder.path / noisy_labels.LABELS
        if path.exists():
            told = noisy_labels.kept(path, rows, classes)
        elif any(held(self.setting.folder)):
            raise RunFolderError(
                f"{path} is missing: it contains the labels that the run trains on"
            )
        else:
            told = noisy_labels.drawn(rows, mechanism, classes, self.setting.entropy)
            self.setting.folder.write_atomically(noisy_labels.LABELS, noisy_labels.file_of(told))
        self._rows["train"] = told
        return mechanism.loss


def keep_run(folder: RunFolder, job: VerticalJob, task: Task, parties: Iterable[str]) -> None:
    """Save the job, and those files of the task that `parties` need to resume the run."""
    keep_job(folder, job, own_functions(job))
    for party in parties:
        for name, data in files_of(task, party).items():
            folder.write_atomically(name, data)


def _fingerprint(setting: Setting) -> str:
    """Return a digest of everything that must be unchanged if a run is resumed."""
    digest = hashlib.sha256(json.dumps(setting.job.agreed(), sort_keys=True).encode())
    digest.update(f"{setting.party} {setting.order_seed}".encode())
    for part in setting.split.owned_by(setting.party):
        for name, tensor in module_of(part).state_dict().items():
            digest.update(f"{part.name} {name} {tuple(tensor.shape)} {tensor.dtype}".encode())
    for subset in ("train", "test"):
        digest.update(setting.rows[subset].fingerprint())
    return digest.hexdigest()
