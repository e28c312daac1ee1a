"""Runs a job from its first round to its last, with any engine."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedveil.base.message import take_array
from fedveil.base.validate import finite_vector, integer
from fedveil.data.datasets import Dataset
from fedveil.engine.assembly import (
    ModelShape,
    check_buffers,
    load_data,
    make_model,
    make_task,
    report_entropy,
    start_vector,
)
from fedveil.engine.budget import admit, thin_promise
from fedveil.engine.callbacks import Beginning, Callback, Callbacks
from fedveil.engine.canaries import Canaries
from fedveil.engine.client_evaluation import HeldOut
from fedveil.engine.cohorts import Cohorts
from fedveil.engine.executors.client_states import open_states
from fedveil.engine.executors.executor import Executor
from fedveil.engine.finished_run import Run
from fedveil.engine.job_protection import in_clear
from fedveil.engine.other_accounts import other_accounts
from fedveil.engine.own_layer_evaluation import make_test
from fedveil.engine.round_checkpoint import LATEST, Checkpoint
from fedveil.engine.run_fingerprint import run_fingerprint
from fedveil.engine.run_records import TRAINER, all_failed, check, counted, without_result
from fedveil.engine.server_optimizer import make_optimizer
from fedveil.engine.stopping import Stopping
from fedveil.errors import InvalidValue, LimitReached, RunFailed, RunFolderError, RunStopped
from fedveil.federated.job import Job
from fedveil.pages.run_folder_page import keep_page
from fedveil.privacy.ledger import Ledger
from fedveil.protections.base import Aggregate, Protection, RoundContext, Spending, State
from fedveil.record.account_lines import keep_accounts
from fedveil.record.finding_lines import add_finding
from fedveil.record.lifecycle import beginning, how_to_resume, introduce
from fedveil.record.metric_names import LOSS
from fedveil.record.model_file import write_model
from fedveil.record.recorder import Metrics, Record, Recorder, find_board
from fedveil.record.run_folder import METRICS, RunFolder, uninterrupted
from fedveil.record.saved_job import keep_job
from fedveil.record.sealed_message import intact
from fedveil.record.started_rounds import Attempts
from fedveil.rounds.loop import Outcome, drive
from fedveil.rounds.outcomes import ClientId, short

Progress = Callable[[Record], None]


class Engine(ABC):
    """Carries the messages of a job: the simulator, or the deployed federation."""

    #: A sentence that says how to resume an interrupted run. `{folder}` stands for its folder.
    how_to_resume: str
    #: True if reports leave a machine. The reports of an interrupted round have then cost privacy
    #: too.
    reports_leave: bool

    def settle(self, job: Job, dataset: Dataset) -> Job:
        """Return the job with its number of clients. Raises if the job cannot run on `dataset`."""
        return job

    def check(self, job: Job, shape: ModelShape) -> str | None:
        """Return the trainer's name, or None if unknown. Raises if no trainer fits the model."""
        return None  # other machines may train it

    def try_out(  # noqa: B027 - as above
        self, job: Job, shape: ModelShape, folder: RunFolder
    ) -> None:
        """Train the model on one batch. Saves the traceback of an error in `folder`."""

    @abstractmethod
    def protection(self, job: Job, dimension: int) -> Protection:
        """Return the job's protection for updates of `dimension` entries."""

    def held_out(self) -> HeldOut | None:
        """Return the examples that each client holds out, or None if this engine has none."""
        return None

    def identify(self) -> Iterable[npt.NDArray[Any]]:
        """Return arrays that a resumed run must have unchanged, besides the test examples."""
        return ()

    @abstractmethod
    def describe(self) -> Iterable[str]:
        """Return lines about the clients for the run's event log."""

    @abstractmethod
    def start(
        self,
        job: Job,
        shape: ModelShape,
        protection: Protection,
        folder: Path,
        event: Callable[[str], None],
    ) -> Executor:
        """Start the executor. Clients may keep states in `folder`. `event` logs a line."""


class Federation:
    """One job, run in one folder by one engine. `stack` closes what this object opens.

    `dataset` replaces the job's dataset, for example by a part of it. The folder is opened only
    after data, model and protection are checked, so a job that cannot run leaves nothing behind.
    """

    def __init__(
        self,
        job: Job,
        engine: Engine,
        open_folder: Callable[[], RunFolder],
        stack: ExitStack,
        warn: Callable[[str], None] | None = None,
        dataset: Dataset | None = None,
        callbacks: Iterable[Callback] = (),
    ) -> None:
        began = time.perf_counter()
        self._engine = engine
        task = make_task(job)
        self._dataset = load_data(job) if dataset is None else dataset
        self.job = job = engine.settle(job, self._dataset)
        shape = ModelShape.of(self._dataset)
        self._model = make_model(job, shape)
        shape = shape.given(self._model)
        self._trainer = engine.check(job, shape)
        self._test = make_test(job, self._model, task, self._dataset.test, engine.held_out())
        self._layout = self._test.layout
        check_buffers(job, self._layout)
        if job.record.tensorboard:
            find_board()
        self._callbacks = Callbacks(job.record.callbacks, callbacks)
        self._weights = start_vector(job, self._layout)
        self._protection = engine.protection(job, len(self._weights))
        self._state: State = self._protection.initial_state()
        self._canaries = Canaries(job, self._protection)
        self._cohorts = Cohorts(job)
        self._optimizer = make_optimizer(job, self._layout.trainable)
        self._stopping = Stopping(job.stopping, task.measures)
        self._ledger = Ledger(adaptive=self._protection.adaptive)
        self._fingerprint = run_fingerprint(
            job, self._dataset, engine.identify(), shape.fingerprint
        )
        self._folder = open_folder()
        stack.callback(self._folder.close)
        engine.try_out(job, shape, self._folder)
        how = engine.how_to_resume.format(folder=self._folder.path)
        stack.enter_context(how_to_resume(lambda: how, RunStopped))
        self._done = 0
        metrics = self._restore(Checkpoint.read(self._folder, job.checkpoint.every))
        if job.keeps_state and not engine.reports_leave:
            self._test.clients = open_states(self._folder.path, self._done)
        self._ledger.note_in_clear(in_clear(job, self._protection, leaves=engine.reports_leave))
        has_begun = engine.reports_leave and self._done > 0
        self._attempts = Attempts(self._folder, self._done, has_begun=has_begun)
        keep_job(self._folder, job, job.own_names)
        self._recorder = Recorder(self._folder, metrics, tensorboard=job.record.tensorboard)
        stack.callback(self._recorder.close)
        path, event = self._folder.path, self._recorder.event
        executor = engine.start(job, shape, self._protection, path, event)
        self._executor = self._canaries.beside(executor)
        stack.callback(self._executor.close)
        randomness = f"randomness of reports: {report_entropy(job).description}"
        thin = list(filter(None, [thin_promise(job, self._protection)]))
        first = (f"rounds: {job.rounds} in all", randomness, *engine.describe())
        said = (*first, *self._test.part.explain(), *self._layout.explain(), *job.warnings, *thin)
        lines = [*said, *self._charge_begun()]
        introduce(self._recorder.event, beginning("round", self._done), began, lines)
        for sentence in thin:
            (warn or (lambda text: None))(sentence)

    def _restore(self, saved: Checkpoint | None) -> Metrics:
        """Restore the state of checkpoint `saved`, if any. Returns the metrics that it covers."""
        if saved is None:
            return Metrics()
        path = self._folder.path
        if saved.fingerprint != self._fingerprint:
            raise RunFolderError(
                f"{path} belongs to another job, another model or other data than those given now"
            )
        with intact(path / LATEST):
            self._done = integer("round", saved.round, 1, self.job.rounds)
            shape = self._weights.shape
            self._weights = take_array(vars(saved), "weights", np.float32, shape).copy()
            finite_vector("weights", self._weights)
            self._optimizer.restore(saved.optimizer)
            self._protection.check_state(saved.protection)
            self._state = saved.protection
            self._ledger = Ledger.from_state(saved.ledger)
            self._canaries.restore(saved.canaries)
            if self._ledger.adaptive != self._protection.adaptive:
                raise InvalidValue("field adaptive does not match the protection")
        metrics = Metrics.vouched(self._folder, saved.metrics_bytes, saved.metrics_digest)
        with intact(path / METRICS):
            check(metrics.records, saved.round)
        with intact(path / LATEST):
            self._stopping.restore(saved.best, metrics.records, len(self._weights))
        return metrics

    def run(self, progress: Progress | None = None) -> Run:
        """Run all remaining rounds and return the finished run."""
        run = None
        try:
            run = self._run(progress)
            return run
        except RunFolderError as error:  # nothing more can be saved
            raise RunStopped(str(error)) from error
        finally:
            self._callbacks.end(run)

    def _run(self, progress: Progress | None) -> Run:
        tell = progress or (lambda record: None)
        stopped = None
        try:
            for record in self._recorder.records:
                tell(record)
            self._callbacks.begin(Beginning(self.job, self._folder.path, self._done))
            while self._done < self.job.rounds and stopped is None:
                stopped = self._stopping.why(self._recorder.records)
                if stopped is None:
                    tell(record := self._round(self._done + 1))
                    stopped = self._callbacks.round(record)
        except LimitReached as limit:
            stopped = str(limit)
        except (RunStopped, KeyboardInterrupt) as end:
            with suppress(RunFolderError):  # losing the log line is fine, losing the error is not
                self._recorder.event(f"ended after round {self._done}: {str(end) or 'interrupted'}")
            raise
        return self._finish(stopped)

    def _finish(self, stopped: str | None) -> Run:
        if stopped is not None and self._done:  # a finished run must not be replayed on resume
            with uninterrupted():
                self._checkpoint()
        failure = without_result(self._recorder.records, stopped)
        if failure is not None:
            self._recorder.event(f"ended after round {self._done} without a result: {failure}")
            raise RunFailed(f"{failure}; the record is in {self._folder.path}")
        self._weights, which = self._stopping.kept(self._weights)
        self._layout.write(torch.from_numpy(self._weights))
        claim = self._ledger.figures(self.job.privacy.delta)["run_every_round"]
        audit = self._canaries.finding(claim)
        with uninterrupted():
            if audit is not None:
                add_finding(self._folder, audit)
                self._recorder.event("; ".join(filter(None, [str(audit), audit.limits])))
            write_model(self._folder, self._model)
            others = list(other_accounts(self.job, self._protection, self._done))
            keep_accounts(self._folder, others, self._recorder.event)
            if which is not None:
                self._recorder.event(which)
            self._recorder.event(f"finished after round {self._done}: {stopped or 'the last'}")
            if which or LOSS not in self._recorder.records[-1]:
                quality = self._test.quality(self._weights)
                figures = [f"{n} {v:.4f}" for n, v in quality.items() if isinstance(v, float)]
                self._recorder.event(f"the model at its end: {', '.join(figures)}")
            if self.job.record.page:
                keep_page(self._folder, self._recorder.event)
        records, path = self._recorder.records, self._folder.path
        return Run(self.job, records, self._model, path, self._ledger, stopped, audit, others)

    def _round(self, number: int) -> Record:
        began = time.perf_counter()
        drawn = self._cohorts.draw(number)
        state = self._state
        spending = self._protection.spending(state)
        admit(self.job, self._ledger, spending, drawn, number)
        cohort = [*drawn, *self._canaries.clients]
        context = RoundContext(cohort, number, self._weights, state)
        server = self._protection.server_round(context)
        self._executor.open(context)
        opening = dict.fromkeys(cohort, server.opening())
        begun = partial(self._begun, number, spending)
        outcome = drive(server, self._executor, opening, self._protection.trains, begun)
        applied = outcome.result(lambda: self._apply(server.aggregate()))
        if outcome.hopeless is not None:
            raise RunStopped(all_failed(number, outcome.hopeless))
        outcome.bytes_down += len(cohort) * self._weights.nbytes
        outcome.charged.difference_update(self._canaries.clients)
        if applied is None and outcome.charged:
            self._state = self._protection.cut_off(self._state, self._ledger.charges(spending))
        paid = spending if applied is None else self._protection.spent(state, applied)
        self._ledger.record_many(paid, round=number, clients=sorted(outcome.charged))
        evaluation = time.perf_counter()
        quality = self._evaluate(number)
        outcome.seconds["evaluation"] = time.perf_counter() - evaluation
        outcome.seconds["round"] = time.perf_counter() - began
        record = {
            "round": number,
            "clients": len(cohort),
            "reports": applied or 0,
            **counted(outcome),
            **self._canaries.counted(),
            **quality,
            **({} if self._trainer is None else {TRAINER: self._trainer}),
            **self._protection.shown(state),
            **self._privacy(),
            **{f"seconds_{name}": value for name, value in sorted(outcome.seconds.items())},
        }
        self._keep(record, outcome)
        return record

    def _apply(self, aggregate: Aggregate) -> int:
        """Update the weights with a round's aggregate. Returns the number of reports in it."""
        self._canaries.saw(aggregate)
        self._weights = self._optimizer.step(self._weights, aggregate.update)
        self._state = aggregate.state
        return aggregate.reports

    def _begun(
        self, number: int, spending: Sequence[Spending], asked: Collection[ClientId]
    ) -> None:
        """Record the cost of reports just before their request, so that an ended run has paid."""
        if self._engine.reports_leave:
            self._attempts.begin(number, self._ledger.charges(spending))

    def _charge_begun(self) -> Iterator[str]:
        """Charge the cohorts of interrupted rounds. Yields a line for the event log for each round.

        Each round costs what it cost when it began, and is charged before it restarts, so that a
        restart cannot exceed a limit. Seeded reports are repeated byte for byte and cost no more.
        """
        if self.job.privacy.randomness == "seeded":
            return
        for number, cost in sorted(self._attempts.begun, key=itemgetter(0)):
            cohort = self._cohorts.begun(number)
            self._ledger.record_many(cost, round=number, clients=cohort, ahead=True)
            self._state = self._protection.cut_off(self._state, cost)
        for number, times in Counter(number for number, _ in self._attempts.begun).items():
            yield (
                f"round {number} was started before ({times}x) and interrupted: its reports may "
                f"have been sent, so they are charged"
            )

    def _evaluate(self, number: int) -> dict[str, Any]:
        if number % self.job.evaluation.every and number != self.job.rounds:
            return {}
        return self._test.quality(self._weights)

    def _privacy(self) -> dict[str, Any]:
        randomness = report_entropy(self.job).description
        record: dict[str, Any] = {"unit": self.job.privacy.unit, "randomness": randomness}
        for name, figure in self._ledger.figures(self.job.privacy.delta).items():
            record[f"epsilon_{name}"], record[f"delta_{name}"] = figure
            record[f"promise_{name}"] = figure.promise
        record["in_clear"] = list(self._ledger.in_clear)
        record["rests_on_server"] = self._protection.rests_on_server(self._protection.settings)
        return record

    def _keep(self, record: Record, outcome: Outcome) -> None:
        """Save the round's record, then a checkpoint, which covers everything before it."""
        number = record["round"]
        with uninterrupted():
            for text in sorted(outcome.warnings):
                self._recorder.event(f"round {number}: {text}")
            for reason, clients in sorted(outcome.unusable.items()):
                text = f"{clients} clients report an update of zero: {short(reason)}"
                self._recorder.event(f"round {number}: {text}")
            if outcome.void is not None:
                self._recorder.event(f"round {number}: {outcome.void}")
            self._recorder.record(record)
            self._done = number
            self._stopping.saw(self._recorder.records, self._weights)
            if number % self.job.checkpoint.every == 0 or number == self.job.rounds:
                self._checkpoint()

    def _checkpoint(self) -> None:
        Checkpoint(
            round=self._done,
            metrics_bytes=self._recorder.metrics_bytes,
            metrics_digest=self._recorder.metrics_digest,
            fingerprint=self._fingerprint,
            weights=self._weights,
            optimizer=self._optimizer.state(),
            protection=self._state,
            ledger=self._ledger.to_state(),
            canaries=self._canaries.state(),
            best=self._stopping.state(),
        ).write(self._folder)
        self._attempts.checkpointed(self._done)
        if self._test.clients is not None:
            self._test.clients.forget_before(self._done)
