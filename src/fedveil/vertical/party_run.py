"""One party's side of a whole run: epochs, evaluations, records and checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from fedveil.base.untrusted import MOST_JOB_BYTES, read_bytes
from fedveil.errors import ExchangeError, LimitReached, PeerAtLimit, RunFolderError
from fedveil.link.channel import Exchange
from fedveil.privacy.ledger import Ledger, Line
from fedveil.record.account_lines import SENT, keep_accounts
from fedveil.record.model_file import write_model
from fedveil.record.recorder import CROSSES, Metrics
from fedveil.record.run_folder import METRICS, uninterrupted
from fedveil.record.sealed_message import intact
from fedveil.vertical import account, bundle, step_checkpoint
from fedveil.vertical.calibration import usable
from fedveil.vertical.calibrator import CALIBRATOR, Calibrator
from fedveil.vertical.crossed import sentences
from fedveil.vertical.epsilon_limit import REACHED
from fedveil.vertical.label_watch import LabelWatch
from fedveil.vertical.log_lines import line
from fedveil.vertical.party_log import PartyLog, Progress
from fedveil.vertical.party_parts import PartyParts, Setting, assemble, changed_since
from fedveil.vertical.returned_gradients import projection
from fedveil.vertical.step import Batch
from fedveil.vertical.step_checkpoint import Checkpoint, check_begins, forget_after, saved_steps
from fedveil.vertical.step_window import StepWindow
from fedveil.vertical.task import SUBSETS, Measured, Subset, aligned_by, files_of, lone_classes
from fedveil.vertical.told_failures import as_part_failure, told_failure

T = TypeVar("T")
#: The file in a run's folder with the secret seed of a party on a machine of its own.
OWN_SEED = "own-seed"


def begin(
    setting: Setting, progress: Progress | None = None, say: Callable[[str], None] | None = None
) -> PartyRun:
    """Build a party's objects from `setting`, and return its side of the run.

    `progress` is called with each of the party's records, `say` with each sentence for its user.
    """
    if not saved_steps(setting.folder):
        check_begins(setting.folder)
    log = PartyLog(setting.party, setting.folder, progress, say)
    return PartyRun(setting, assemble(setting, log), log)


class PartyRun:
    """One party's side of a run: training, evaluations, predictions, checkpoints.

    First call `load` with a step that all parties have saved, then `settle`. After that, `train` or
    another method can run.
    """

    def __init__(self, setting: Setting, parts: PartyParts, log: PartyLog) -> None:
        self.setting, self.name = setting, setting.party
        self.party = parts.party
        self.log = log
        self.stopped: str | None = None
        self.done = 0
        #: The SHA-256 of this party's part of the model bundle, set at the end of the run.
        self.contents: bytes | None = None
        self._parts = parts
        self._has_told = False
        #: A sentence if the loaded state is not the trained model, or "".
        self.unfinished = ""
        self._window = StepWindow(self.party)
        self._metrics = Metrics()
        if not saved_steps(setting.folder):
            parts.releases.begin()
            self._checkpoint()

    @property
    def _sends(self) -> bool:
        return any(crossing.sender == self.name for crossing in self.setting.split.crossings)

    @property
    def total(self) -> int:
        return self.setting.job.epochs * self._parts.order.steps

    @property
    def most_ahead(self) -> int:
        """The most messages that an honest peer sends before it learns that the run has ended.

        A peer waits for an answer in every training step, so it is ahead by at most one batch of
        training. It may not have to wait in an evaluation or a calibration, so it can also be ahead
        by all batches of one evaluation and one calibration. A batch has at most one message per
        crossing and micro-batch, and one `ready` or `commit`. The last message may be an abort.
        """
        job, order, held_out = self.setting.job, self._parts.order, self._parts.rows["test"].count
        batches = 1 + -(-held_out // order.batch_size) + -(-order.aside // order.batch_size)
        return batches * (len(self.setting.split.crossings) * job.in_flight + 1) + 1

    def load(self, step: int) -> None:
        """Load the checkpoint of `step` without changing the folder.

        Raises RunFolderError if the checkpoint is damaged, or is of another job, model or data.
        """
        folder = self.setting.folder
        saved = Checkpoint.read(folder, step)
        if changed := changed_since(saved.fingerprint, self._parts.fingerprint):
            raise RunFolderError(f"{folder.path} was made with {changed}")
        metrics = Metrics.vouched(folder, saved.metrics_bytes, saved.metrics_digest)
        with intact(folder.path / METRICS):
            for record in metrics.records:
                line(record)
        saved.give(folder, self.party)
        self._window = StepWindow(self.party, saved.window)
        looks = sum("look" in record for record in metrics.records)
        calibrations = sum("calibration" in record for record in metrics.records)
        self._parts.releases.restore(step, looks, calibrations)
        self._parts.require_reports(looks, calibrations)
        self.done, self._metrics = step, metrics
        self.unfinished = step_checkpoint.unfinished(folder, step, self.total)

    def settle(self, *, to_train: bool = True) -> None:
        """Open the log of the run.

        If `to_train` is True, also removes from the run folder everything that was saved after the
        loaded step. Otherwise nothing is removed: the step may be older than the party's last one.
        """
        if not to_train:
            self.log.open_events(self._metrics)
            return
        forget_after(self.setting.folder, self.done)
        if self.done < self.total:  # a calibrator is fitted only after the last step
            self.setting.folder.remove(CALIBRATOR)
        self._parts.releases.settle(self.done)
        self.log.open(self._metrics)

    def train(self) -> Exchange[None]:
        """Run all remaining steps, and write the final files of the run.

        The run ends early, without an error, if a step or an evaluation would bring an example's
        cost above the `privacy.max_epsilon` of its party. If no step of the run was done before,
        raises LimitReached for this party's limit, and PeerAtLimit for another party's.
        """
        self.stopped = None
        try:
            yield from self._train_or_stop()
        finally:
            self.keep_account()
        self._finish()

    def _train_or_stop(self) -> Exchange[None]:
        try:
            yield from self._train()
        except (LimitReached, PeerAtLimit) as limit:
            self.stopped = REACHED if isinstance(limit, LimitReached) else str(limit)
            if isinstance(limit, LimitReached):
                self.log.note(str(limit))
                yield from self.party.end(REACHED, at_limit=True)
            if not self.done:
                raise
        if self.stopped is not None:
            if self._parts.gradients.watch is not None:
                self._parts.gradients.watch.run_ended()
            if self.done not in saved_steps(self.setting.folder):
                self._checkpoint()

    def _train(self) -> Exchange[None]:
        job, parts = self.setting.job, self._parts
        if not self._has_told:
            self.log.show_records()
            for sentence in account.opening(self.setting.split, self.name):
                self.log.say(sentence)
            held_out = self.setting.rows["test"].count
            # Only parties on different machines have seeds of their own.
            apart = self.setting.own_seed is not None
            ids_by = aligned_by(job.alignment.by, self.setting.task) if apart else None
            for sentence in sentences(job, self.setting.split, parts.order, held_out, ids_by):
                self.log.event(f"{CROSSES}{sentence}")
            labels = [self.setting.rows[subset].labels for subset in SUBSETS]
            for sentence in lone_classes(self.setting.task, *labels):
                self.log.confide(sentence)
            if (forecast := parts.limit.forecast(job.epochs)) is not None:
                self.log.confide(forecast)
        self._has_told = True
        self._watch_labels()
        if self.done < self.total:
            bundle.retire(self.setting.folder)
        while self.done < self.total:
            number = self.done + 1
            epoch, within = divmod(self.done, parts.order.steps)
            batch = parts.rows["train"].batch(parts.order.of_step(number))
            sent = int(parts.releases.train[batch.positions].max())
            self._check_limit(f"step {number}", sent + 1, "train", batch.positions)
            parts.releases.begin_step(number, batch.positions)
            loss = yield from self.party.step(number, batch, settled=epoch > 0)
            self.done = number
            self._window.add(loss, batch.rows)
            if parts.gradients.watch is not None:
                parts.gradients.watch.step_ended(last=number == self.total)
            if number % job.record.every_steps == 0 or number == self.total:
                self._record_step(epoch, within + 1)
            if within + 1 == parts.order.steps and self._looks_after(epoch):
                yield from self._evaluate(epoch)
            if number == self.total and parts.order.aside:
                yield from self._calibrate(epoch)
            if number % job.checkpoint.every_steps == 0 or number == self.total:
                self._checkpoint()

    def evaluate(self) -> Exchange[dict[str, Any]]:
        """Evaluate the held-out examples. Returns the metrics at the leader, {} at a follower."""
        measured = Measured(self.setting.task)
        yield from self._look(lambda outputs, batch: measured.add(outputs, batch.labels))
        return measured.quality()

    def predict(self) -> Exchange[npt.NDArray[Any] | None]:
        found: list[npt.NDArray[Any]] = []
        yield from self._look(lambda outputs, batch: found.append(outputs.float().numpy()))
        return np.concatenate(found) if found else None

    def figures(self) -> list[Line]:
        """Return this party's epsilons so far. At the leader, includes the labels' epsilon."""
        parts, split, delta = self._parts, self.setting.split, self.setting.job.privacy.delta
        found = account.figures(split, self.name, parts.releases, delta, parts.label_loss)
        return [*found, *told_failure(self.setting.folder)] if found else []

    def keep_account(self) -> None:
        if self._sends:
            ids = {subset: rows.ids for subset, rows in self.setting.rows.items()}
            self.setting.folder.write_atomically(SENT, self._parts.releases.table(ids))
        keep_accounts(self.setting.folder, self.figures(), self.log.event)

    def ledger(self) -> Ledger:
        parts = self._parts
        return account.ledger_of(self.setting.split, self.name, parts.releases, parts.label_loss)

    def close(self) -> None:
        self.log.close()
        self._parts.reports.close()
        self._parts.releases.close()

    def _watch_labels(self) -> None:
        split, gradients = self.setting.split, self._parts.gradients
        if self.name == split.leader and self.done < self.total and gradients.watch is None:
            classes = self.setting.task.classes
            left = self.total - self.done
            for sentence in self._projection():
                self.log.confide(sentence)
            gradients.watch = LabelWatch(
                split, classes, gradients.returned, self.log.confide, left,
                tells_loss=self.setting.job.tells_loss, drawn=self._parts.label_loss is not None,
            )  # fmt: skip

    def _projection(self) -> Iterable[str]:
        settings = self.setting.job.privacy.label_protection
        labels = self._parts.rows["train"].labels
        if settings is None or labels is None:
            return ()
        # One more example of each class counts, so neither share is 0. Marvell does the same.
        share = (int((labels == 1).sum()) + 1) / (labels.numel() + 2)
        return projection(self.setting.split, settings, share, self.setting.job.epochs)

    def _look(self, take: Callable[[torch.Tensor, Batch], None]) -> Exchange[None]:
        parts, held_out = self._parts, self._parts.rows["test"]
        looks = parts.releases.looks + 1
        self._check_look(looks)
        parts.releases.begin_look()
        self._check_look(looks)  # another process may have scored the examples since
        order = replace(parts.order, count=held_out.count, aside=0)
        for number, positions in enumerate(order.in_turn(), start=1):
            batch = held_out.batch(positions)
            outputs = yield from self.party.look(number, batch, occasion=self.done)
            if outputs is not None:
                take(outputs.cpu(), batch)

    def _check_look(self, looks: int) -> None:
        everything = np.arange(self._parts.rows["test"].count)
        what = f"evaluation {looks} of the held-out examples"
        self._check_limit(what, looks, "test", everything)

    def _check_limit(
        self, what: str, times: int, subset: Subset, positions: npt.NDArray[np.int64]
    ) -> None:
        """Raise LimitReached if sending examples once more would exceed `privacy.max_epsilon`.

        `positions` are the positions of the examples in `subset`. `times` is how often the run will
        have sent them, this time included. Uses of the examples in scoring with this run's model
        bundle count too. `what` names the step or the evaluation in the error.
        """
        parts, ids = self._parts, self._parts.rows[subset].ids
        if self.setting.job.privacy.max_epsilon is None:
            return  # without reading in every step what was scored
        own = ids[positions] if len(ids) else ids
        scored = bundle.most_scored(self.setting.folder.path / bundle.BUNDLE, own)
        parts.limit.check(what, times, labelled=subset == "train", scored=scored)

    def _calibrate(self, epoch: int) -> Exchange[None]:
        """Run the model on the training examples that no step uses. The leader fits its calibrator.

        The calibrator is fitted to the true labels even under LabelDP, because it stays with the
        leader.
        """
        parts, rows = self._parts, self.setting.rows["train"]
        aside = parts.order.set_aside
        sent = int(parts.releases.train[aside].max())
        self._check_limit("calibration", sent + 1, "train", aside)
        parts.releases.begin_calibration()
        size, found = parts.order.batch_size, list[torch.Tensor]()
        for number, start in enumerate(range(0, len(aside), size), start=1):
            batch = rows.batch(aside[start : start + size])
            outputs = yield from self.party.look(number, batch, subset="calibration")
            if outputs is not None:
                found.append(outputs.float().cpu())
        if found:
            labels = rows.batch(aside).labels
            assert labels is not None, "the leader has the labels"
            settings = self.setting.job.scoring
            values = torch.cat(found).numpy()
            good = usable(values)
            if not good.all():
                self.log.confide(
                    f"calibration uses {good.sum():,} of {len(good):,} examples set aside: the "
                    f"model's output for the others is NaN or infinite"
                )
            if not good.any():
                raise ExchangeError("no example that is set aside has a finite output to calibrate")
            fitted = Calibrator.fitted(values[good], labels.numpy()[good], settings.threshold)
            self.setting.folder.write_atomically(CALIBRATOR, fitted.written())
            self.log.note(str(fitted))
        self.log.record(epoch=epoch, calibration=self.done, examples=len(aside))
        self._window.look_away()

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
        self.log.record(epoch=epoch, look=self.done, **shown, seconds=time.perf_counter() - began)
        self._window.look_away()

    def _record_step(self, epoch: int, within: int) -> None:
        task = self.setting.task
        figures = self._window.figures(task.unit, task.units_per_example)
        self._window = StepWindow(self.party)
        self.log.record(epoch=epoch, step=within, steps=self._parts.order.steps, **figures)

    def _checkpoint(self) -> None:
        metrics_bytes, metrics_digest = self.log.synced()
        with as_part_failure(self.setting.folder, self.name), uninterrupted():
            Checkpoint(
                step=self.done,
                fingerprint=self._parts.fingerprint,
                metrics_bytes=metrics_bytes,
                metrics_digest=metrics_digest,
                window=self._window.kept,
                tensors=self.party.state(),
            ).write(self.setting.folder)

    def _finish(self) -> None:
        with uninterrupted():
            write_model(self.setting.folder, self.party.modules)
        self._bundle()
        why = "" if self.stopped is None else f": {self.stopped}"
        self.log.event(f"finished after step {self.done}{why}")

    def _bundle(self) -> None:
        setting, releases = self.setting, self._parts.releases
        columns: Callable[[str], Mapping[str, str]] | None = getattr(setting.task, "schema", None)
        if columns is None:
            return
        files = dict(files_of(setting.task, self.name))
        calibrator = setting.folder.path / CALIBRATOR
        if calibrator.exists():
            with intact(calibrator):
                files[CALIBRATOR] = read_bytes(calibrator, MOST_JOB_BYTES)
        subsets = SUBSETS if self._sends else ()
        times = {"train": releases.train}
        times["test"] = np.full(len(setting.rows["test"].ids), releases.looks)
        self.contents = bundle.write_contents(
            setting.folder.within(bundle.BUNDLE),
            setting.job,
            party=self.name,
            step=self.done,
            modules=self.party.modules,
            columns=columns(self.name),
            files=files,
            sent=bundle.sent_file(
                [setting.rows[subset].ids for subset in subsets],
                [times[subset] for subset in subsets],
                [subset == "train" for subset in subsets],
            ),
        )
