"""Runs the remaining rounds of a job, with the simulator or any other engine."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import torch

from fedveil.base.quantity import quantity
from fedveil.engine.assembly import report_entropy
from fedveil.engine.background_save import BackgroundSave
from fedveil.engine.budget import admit
from fedveil.engine.callbacks import Beginning
from fedveil.engine.executors.executor import Executor
from fedveil.engine.finished_run import Presentation, Run
from fedveil.engine.language_results import before_after
from fedveil.engine.next_protection import advise
from fedveil.engine.other_accounts import other_accounts
from fedveil.engine.run_parts import Parts
from fedveil.engine.run_records import (
    SECONDS,
    TRAINER,
    all_failed,
    counted,
    figures_of,
    without_result,
)
from fedveil.engine.run_state import RunState
from fedveil.errors import (
    LimitReached,
    OutputLost,
    RoundVoid,
    RunFailed,
    RunFolderError,
    RunStopped,
)
from fedveil.federated.job import Job
from fedveil.privacy.client_tally import Kind
from fedveil.privacy.ledger import Ledger
from fedveil.protections.base import RoundContext, Spending, State
from fedveil.protections.own_errors import own_errors
from fedveil.record.account_lines import keep_accounts
from fedveil.record.before_after import keep_before_after
from fedveil.record.finding_lines import add_finding
from fedveil.record.metric_names import LOSS, in_words
from fedveil.record.model_file import write_model
from fedveil.record.recorder import NO_RESULT, Record, Recorder
from fedveil.record.run_folder import RunFolder, uninterrupted
from fedveil.record.started_rounds import Attempts
from fedveil.rounds.loop import Outcome, drive
from fedveil.rounds.outcomes import ClientId, short

Progress = Callable[[Record], None]


@dataclass(eq=False)
class Federation:
    """A started run. Its method `run` runs the remaining rounds.

    `parts` are the run's model, protection and other parts, and `state` is its state between two
    rounds. `attempts` records on disk which rounds have begun. `reports_leave` is True if reports
    leave a machine (`Engine.reports_leave`).
    """

    parts: Parts
    state: RunState
    folder: RunFolder
    attempts: Attempts
    recorder: Recorder
    executor: Executor
    reports_leave: bool
    presentation: Presentation | None = None
    saving: BackgroundSave = field(default_factory=BackgroundSave)

    @property
    def job(self) -> Job:
        return self.parts.job

    def run(self, progress: Progress | None = None) -> Run:
        """Run all remaining rounds and return the finished run.

        `progress` is called with each round's record.
        """
        run = None
        try:
            with self.saving:
                run = self._run(progress)
            return run
        except RunFolderError as error:  # nothing more can be saved
            raise RunStopped(str(error)) from error
        finally:
            self.parts.callbacks.end(run)

    def _run(self, progress: Progress | None) -> Run:
        tell = progress or (lambda record: None)
        stopped, by_callback = None, False
        try:
            for record in self.recorder.records:
                tell(record)
            begins = Beginning(self.job, self.folder.path, self.state.done)
            self.parts.callbacks.begin(begins)
            while self.state.done < self.job.rounds and stopped is None:
                stopped = self.parts.stopping.why(self.recorder.records)
                if stopped is None:
                    stopped = self._tell(self._round(self.state.done + 1), tell)
                    by_callback = stopped is not None
        except LimitReached as limit:
            stopped = str(limit)
            if self.attempts.without_record(self.state.done) or self._unrepeated:
                self._tell(self._cut_off(self.state.done + 1), tell)
        except (RunStopped, OutputLost, KeyboardInterrupt) as end:
            with suppress(RunFolderError):  # losing the log line is fine, losing the error is not
                why = str(end) or "interrupted"
                self.recorder.event(f"ended after round {self.state.done}: {why}")
            raise
        return self._finish(stopped, by_callback)

    def _tell(self, record: Record, tell: Progress) -> str | None:
        """Show a round's record by `tell`, and pass it to the callbacks.

        Returns a reason to stop the run, or None. The callbacks get the record even if
        showing it fails, because a resumed run does not call them again for this round.
        """
        try:
            tell(record)
        finally:
            stopped = self.parts.callbacks.round(record)
        return stopped

    def _finish(self, stopped: str | None, by_callback: bool) -> Run:
        parts, state = self.parts, self.state
        if stopped is not None and state.done:  # a finished run must not be replayed on resume
            self._checkpoint()
        self.saving.wait()
        failure = without_result(self.recorder.records, stopped)
        if failure is not None:
            self.recorder.event(f"ended after round {state.done}{NO_RESULT}{failure}")
            self._keep_page()
            raise RunFailed(f"{failure}; the record is in {self.folder.path}")
        state.weights, which = parts.stopping.kept(state.weights)
        parts.test.layout.write(torch.from_numpy(state.weights))
        claim = state.ledger.figures(parts.job.privacy.delta)["run_every_round"]
        audit = parts.canaries.finding(claim)
        with uninterrupted():
            if audit is not None:
                add_finding(self.folder, audit)
                self.recorder.event("; ".join(filter(None, [str(audit), audit.limits])))
            write_model(self.folder, parts.model)
            others = list(
                other_accounts(parts.job, parts.protection, state.done, by_callback=by_callback)
            )
            keep_accounts(self.folder, others, self.recorder.event)
            if which is not None:
                self.recorder.event(which)
            if which or LOSS not in self.recorder.records[-1]:
                quality = in_words(parts.test.quality(state.weights))
                self.recorder.event(f"the model at its end: {quality}")
            if compared := list(before_after(parts, state.first, state.weights)):
                keep_before_after(self.folder, compared)
            shape = parts.shape.example_shape
            advise(self.recorder.event, parts.job, parts.test.layout, claim, parts.examples, shape)
            # This line makes the run a finished one, so every file but the page comes first.
            self.recorder.event(f"finished after round {state.done}: {stopped or 'the last'}")
            self._keep_page()
        return Run(
            job=parts.job,
            metrics=self.recorder.records,
            model=parts.model,
            folder=self.folder.path,
            ledger=state.ledger,
            stopped=stopped,
            audit=audit,
            others=others,
            kept_round=parts.stopping.best_round(self.recorder.records),
            presentation=self.presentation,
        )

    def _keep_page(self) -> None:
        if self.presentation is not None and self.parts.job.record.page:
            self.presentation.page(self.folder, self.recorder.event)

    def _round(self, number: int) -> Record:
        began = time.perf_counter()
        parts, state = self.parts, self.state
        before = state.protection
        drawn = parts.cohorts.draw(number)
        spending = parts.protection.spending(before)
        cohort = [*drawn, *parts.canaries.clients]
        context = RoundContext.of_sent(
            state.weights, parts.protection.dimension, cohort, number, before,
            state.summed.last, self.executor.told,
        )  # fmt: skip
        with own_errors(parts.protection):
            server = parts.protection.server_round(context)  # may refuse the round by its own limit
        admit(parts.job, state.ledger, spending, drawn, number, begun=self._has_begun)
        again = number in self._unrepeated
        with own_errors(parts.protection):
            self.executor.open(context)
            opening = dict.fromkeys(cohort, server.opening())
            outcome = drive(
                server, self.executor, opening, parts.protection.trains,
                lambda asked: self._begin(number, spending),
            )  # fmt: skip
            self.saving.wait()  # it reads the state that the round now changes
            applied = outcome.result(lambda: state.apply(server.aggregate()))
        if outcome.hopeless is not None:
            raise RunStopped(all_failed(number, outcome.hopeless))
        outcome.bytes_down += len(cohort) * state.weights.nbytes
        if again:  # a report may have left before, also from a client that now withholds its own
            outcome.charged.update(parts.cohorts.begun(number))
        outcome.charged.difference_update(parts.canaries.clients)
        self._settle(number, () if applied is None else outcome.reported)
        if applied is None and outcome.charged:
            cost = state.ledger.charges(spending)
            state.protection = parts.protection.cut_off(state.protection, cost)
        limited = parts.job.privacy.max_epsilon is not None
        paid = parts.protection.paid(before, applied, limited=limited)
        state.ledger.record_many(paid, round=number, clients=sorted(outcome.charged))
        return self._recorded(number, cohort, applied, before, outcome, began)

    def _cut_off(self, number: int) -> Record:
        """Record the interrupted round `number` as void, because a limit forbids repeating it.

        The record includes the costs of all interrupted rounds, so that a later start does not
        charge these rounds again.
        """
        began = time.perf_counter()
        self._charge(self._unrepeated.items())
        why = "it was interrupted, and a limit on the privacy cost forbids its repetition"
        outcome = Outcome(void=RoundVoid(self.parts.protection.trains, 0, 0, why))
        cohort = self.parts.cohorts.begun(number)
        outcome.dropped.update(cohort)
        return self._recorded(number, cohort, None, self.state.protection, outcome, began)

    def _recorded(
        self,
        number: int,
        cohort: Sequence[ClientId],
        applied: int | None,
        before: State,
        outcome: Outcome,
        began: float,
    ) -> Record:
        """Evaluate the model after round `number`. Saves and returns the round's record.

        `applied` is the number of reports in the aggregate, or None if the round is void. `before`
        is the protection's state at the round's start, and `began` the time of this start.
        """
        parts = self.parts
        evaluation = time.perf_counter()
        quality = self._evaluate(number)
        outcome.seconds["evaluation"] = time.perf_counter() - evaluation
        outcome.seconds["round"] = time.perf_counter() - began
        record = {
            "round": number,
            "clients": len(cohort),
            "reports": applied or 0,
            **counted(outcome),
            **parts.canaries.counted(),
            **self.executor.shown(),
            **quality,
            **({} if parts.trainer is None else {TRAINER: parts.trainer}),
            **figures_of(parts.protection, before, quality),
            **self._privacy(self.state.ledger),
            **{f"{SECONDS}{name}": value for name, value in sorted(outcome.seconds.items())},
        }
        self._keep(record, outcome)
        return record

    def _settle(self, number: int, summed: Collection[ClientId]) -> None:
        clients = set(summed).difference(self.parts.canaries.clients)
        if self.parts.test.clients is not None:  # a resumed run needs the states that remain
            clients = self.parts.test.clients.settle(number, clients)
        self.state.summed.note(number, clients)

    def _begin(self, number: int, spending: Sequence[Spending]) -> None:
        """Record on disk that round `number` begins, before its reports are requested.

        Each report costs `spending`. If the round is interrupted, a restart finds this record and
        charges the whole cohort. Does nothing in a simulation, where no report leaves a machine.
        """
        if self.reports_leave:
            ledger, cost = self.state.ledger.copy(), self.state.ledger.charges(spending)
            sent = {**self._unrepeated, number: cost}
            for each, kind in sent.items():
                cohort = self.parts.cohorts.begun(each)
                ledger.record_many(kind, round=each, clients=cohort, ahead=True)
            stated = {"round": max(sent), **self._privacy(ledger)}
            self.attempts.begin(number, cost, stated)

    def charge_begun(self) -> Iterator[str]:
        """Charge the clients of interrupted rounds. Yields a line for the event log for each round.

        A round is charged before it is repeated, so a restart cannot exceed a limit. Seeded reports
        are not charged, because their repetitions are equal byte for byte.
        """
        if self.job.privacy.randomness == "seeded":
            return
        self._charge(self.attempts.begun)
        for number, times in Counter(number for number, _ in self.attempts.begun).items():
            yield (
                f"round {number} was started before ({times}x) and interrupted: its reports may "
                f"have been sent, so they are charged"
            )

    @property
    def _has_begun(self) -> bool:
        """True if this or an earlier process has completed a round of the run.

        In a deployment, also true if a round was only begun. Rounds that must be repeated count.
        """
        return self.state.done > 0 or bool(self.attempts.begun) or self.recorder.went_back

    @property
    def _unrepeated(self) -> dict[int, Kind]:
        """Map each interrupted round that is not repeated yet to the cost of one of its reports.

        With seeded randomness, the ledger does not contain these costs yet. Otherwise the result is
        empty, because `charge_begun` has already charged all interrupted rounds.
        """
        if self.job.privacy.randomness != "seeded":
            return {}
        return {number: cost for number, cost in self.attempts.begun if number > self.state.done}

    def _charge(self, begun: Iterable[tuple[int, Kind]]) -> None:
        for number, cost in sorted(begun, key=itemgetter(0)):
            cohort = self.parts.cohorts.begun(number)
            self.state.ledger.record_many(cost, round=number, clients=cohort, ahead=True)
            self.state.protection = self.parts.protection.cut_off(self.state.protection, cost)

    def _evaluate(self, number: int) -> dict[str, Any]:
        if number % self.job.evaluation.every and number != self.job.rounds:
            return {}
        return self.parts.test.quality(self.state.weights)

    def _privacy(self, ledger: Ledger) -> dict[str, Any]:
        job, protection = self.job, self.parts.protection
        randomness = report_entropy(job).description
        record: dict[str, Any] = {"unit": job.privacy.unit, "randomness": randomness}
        for name, figure in ledger.figures(job.privacy.delta).items():
            record[f"epsilon_{name}"], record[f"delta_{name}"] = figure
            record[f"promise_{name}"] = figure.promise
        record["in_clear"] = list(ledger.in_clear)
        record["rests_on_server"] = protection.rests_on_server(protection.settings)
        return record

    def _keep(self, record: Record, outcome: Outcome) -> None:
        number = record["round"]
        with uninterrupted():
            for text in sorted(outcome.warnings):
                self.recorder.event(f"round {number}: {text}")
            for reason, clients in sorted(outcome.unusable.items()):
                report = "report" if clients > 1 else "reports"
                text = f"{quantity(clients, 'client')} {report} an update of zero: {short(reason)}"
                self.recorder.event(f"round {number}: {text}")
            if outcome.void is not None:
                self.recorder.event(f"round {number}: {outcome.void}")
            self.recorder.record(record)
            self.state.done = number
            self.parts.stopping.saw(self.recorder.records, self.state.weights)
            if number % self.job.checkpoint.every == 0 or number == self.job.rounds:
                self._checkpoint()
            else:
                self.saving.start(self.recorder.sync)
            if self.reports_leave or self.parts.test.clients is not None:
                self.saving.wait()

    def _checkpoint(self) -> None:
        done, checkpoint = self.state.done, self.state.checkpoint(self.recorder)

        def save() -> None:
            self.recorder.sync()
            checkpoint.write(self.folder)
            self.attempts.checkpointed(done)
            if self.parts.test.clients is not None:
                self.parts.test.clients.forget_before(done)

        self.saving.start(save)
