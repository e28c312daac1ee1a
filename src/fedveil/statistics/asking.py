"""Runs a question file: charges the account, runs the rounds, and computes the answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedveil.base.array_types import Float64s
from fedveil.entropy import Entropy, Secure, Seeded
from fedveil.errors import LimitReached, RunFailed
from fedveil.privacy.ledger import Ledger, Line
from fedveil.privacy.loss import exactly
from fedveil.protections.base import TIMING, Protection, RoundContext, Spending
from fedveil.record.data_account import DataAccount
from fedveil.rounds.loop import Carrier, Outcome, drive
from fedveil.rounds.outcomes import ClientId
from fedveil.statistics.answering import answer_of
from fedveil.statistics.answers import Answers
from fedveil.statistics.carriage import Carriage, Participants, make_protection
from fedveil.statistics.clients import Clients, load
from fedveil.statistics.estimates import Sums
from fedveil.statistics.one_hot import Frequencies
from fedveil.statistics.plan import Layout
from fedveil.statistics.question import QuestionFile
from fedveil.statistics.schedule import Schedule, Step
from fedveil.statistics.simulation import Contributions, Simulated


class Engine(ABC):
    """Carries a question's messages to clients. Subclasses: `Simulator`, and one for Flower.

    `who` describes the clients. `reports_leave` is True if reports leave the machine on which they
    are made.
    """

    reports_leave: bool
    who: Participants

    @abstractmethod
    def carrier(self, step: Step, layout: Layout, carriage: Carriage) -> Carrier:
        """Return the object that sends a round's messages to the clients and collects the answers.

        `step` is the round. It has one or more parts: questions, or levels of a question's tree. A
        client's answers to all parts form one joint vector. `layout` says which section of the
        vector belongs to which part, and `carriage` encodes the vector as an update.
        """

    def drawn(
        self, step: Step, layout: Layout, carriage: Carriage, cohort: Sequence[ClientId]
    ) -> Float64s | None:
        """Draw the aggregate of a round from its distribution, without making any report.

        Returns None if this engine cannot do so. Then the caller must ask the clients in `cohort`
        for their reports. `step` is the round. A client's answers to the round's parts (questions,
        or levels of a question's tree) form one joint vector. `layout` says which section of it
        belongs to which part, and `carriage` encodes it as an update.
        """
        return None


class Simulator(Engine):
    """Simulates clients in this process. Each client holds rows of one table."""

    reports_leave = False

    def __init__(self, file: QuestionFile, clients: Clients) -> None:
        self._file, self._clients = file, clients
        self.who = Participants(len(clients))
        self._entropy: Entropy = Secure()
        if file.randomness == "seeded":
            self._entropy = Seeded(file.seed, "statistics")

    def carrier(self, step: Step, layout: Layout, carriage: Carriage) -> Carrier:
        entropy = self._entropy.stream(step.round)
        made = Contributions(layout, self._clients, carriage, entropy)
        return Simulated(carriage.protection, made, step, entropy)

    def drawn(
        self, step: Step, layout: Layout, carriage: Carriage, cohort: Sequence[ClientId]
    ) -> Float64s | None:
        """Draw the aggregate of the reports of `cohort` from its exact distribution.

        Makes no single report. Returns None, and draws nothing, if the question file's `fidelity`
        is `per_client`. `step` is the round. `layout` says how the round's parts divide a client's
        joint vector. `carriage` encodes the joint vector as an update.
        """
        if self._file.fidelity == "per_client":
            return None
        assert isinstance(carriage.protection, Frequencies), "the question file has checked it"
        entropy = self._entropy.stream(step.round)
        counts = Contributions(layout, self._clients, carriage, entropy).counts(cohort)
        law, codes = carriage.protection.law, len(cohort) * carriage.protection.rows
        return law.shares(law.ones(counts.astype(np.int64), codes, entropy.stream("ones")), codes)


class Asking:
    """Runs all rounds of one question file.

    `engine` carries messages to the clients. If the path of the account file is relative, it is
    relative to the folder `root`.
    """

    def __init__(self, file: QuestionFile, engine: Engine, root: Path = Path()) -> None:
        self.file, self._engine = file, engine
        self._clients = engine.who.clients
        self._schedule = Schedule(file)
        self._ledger = Ledger()
        self._account: DataAccount | None = None
        if file.account is not None:
            self._account = DataAccount(root / file.account, file.unit)
        #: The sums of each part in each round, by the question's name.
        self._sums: dict[str, list[list[Sums]]] = {}
        self._rejected: Counter[str] = Counter()
        self._reports = 0
        self._influence: dict[str, float] = {}
        self._against = ""

    def run(self, progress: Callable[[str], None] = lambda text: None) -> Answers:
        """Run all rounds, and return the answers.

        `progress` is called with a line of text before each round. Raises `RunFailed` if a round is
        void or, before the account is charged, if there are too few clients. Raises `LimitReached`
        before a round that would cost more than `max_epsilon`.
        """
        if self._schedule.too_few(self._clients):
            raise RunFailed(
                f"{self._clients} clients are too few for {self._schedule.rounds} rounds, of which "
                "each asks others"
            )
        done = 0
        while (step := self._schedule.next(done)) is not None:
            progress(f"round {step.round} of at most {self._schedule.rounds}")
            self._round(step)
            done = step.round
        answers = {
            name: answer_of(self.file, name, self._sums.get(name, []), self._schedule)
            for name in self.file.questions
        }
        return Answers(
            file=self.file,
            answers=answers,
            lines=self._lines(),
            in_clear=self._ledger.in_clear,
            clients=self._clients,
            reports=self._reports,
            rejected=dict(self._rejected),
            influence=self._influence,
        )

    def _round(self, step: Step) -> None:
        layout = self._schedule.layout(step)
        cohort = self._schedule.cohort(step, self._clients)
        rounds = 1 if self.file.local else self._schedule.rounds
        protection = make_protection(self.file, layout.dimension, rounds, self._engine.who)
        carriage = Carriage(protection)
        spending = protection.spending(protection.initial_state())
        self._check(spending, step, cohort)
        mean = self._engine.drawn(step, layout, carriage, cohort)
        if mean is None:
            mean, reports = self._driven(step, layout, carriage, cohort, spending)
        else:
            reports = len(cohort)
            self._charge(spending, step, cohort)
            self._ledger.record_many(spending, round=step.round, clients=cohort)
        self._reports = max(self._reports, reports)
        self._note(protection)
        self._add(step, layout, carriage, mean, reports)

    def _driven(
        self,
        step: Step,
        layout: Layout,
        carriage: Carriage,
        cohort: Sequence[ClientId],
        spending: Sequence[Spending],
    ) -> tuple[Float64s, int]:
        protection = carriage.protection
        state, model = protection.initial_state(), np.zeros(protection.dimension, np.float32)
        context = RoundContext(cohort, step.round, model, state, step.origin)
        server = protection.server_round(context)
        carrier = self._engine.carrier(step, layout, carriage)
        charge = partial(self._charge, spending, step)
        opening = dict.fromkeys(cohort, server.opening())
        outcome = drive(server, carrier, opening, protection.trains, charge)
        aggregate = outcome.result(server.aggregate)
        self._rejected.update(outcome.rejected)
        reports = None if aggregate is None else aggregate.reports
        limited = self.file.max_epsilon is not None
        paid = protection.paid(state, reports, limited=limited)
        self._ledger.record_many(paid, round=step.round, clients=sorted(outcome.charged))
        if aggregate is None:
            raise RunFailed(_why(outcome))
        return aggregate.update, aggregate.reports

    def _check(self, spending: Sequence[Spending], step: Step, cohort: Sequence[ClientId]) -> None:
        """Raise `LimitReached` if the round `step` would bring the total cost above `max_epsilon`.

        `spending` is what this round costs each client of `cohort`.
        """
        limit, delta = self.file.max_epsilon, self.file.delta
        if limit is None:
            return
        ahead = self._ledger.preview(spending, round=step.round, clients=cohort, delta=delta)
        if ahead["run_most_drawn"].epsilon > limit:
            raise LimitReached(
                f"round {step.round} would cost {ahead['run_most_drawn']}, above max_epsilon = "
                f"{exactly(limit)}"
            )

    def _charge(
        self, spending: Sequence[Spending], step: Step, asked: Collection[ClientId]
    ) -> None:
        """Charge `spending`, the cost of the round `step`, to the account, if there is one.

        Call this method before the clients `asked` make their reports. (The charge does not depend
        on them.) Under rr and oue, only round 1 is charged, because all rounds cost the same and
        each client takes part in only one.
        """
        if self._account is not None and (step.round == 1 or not self.file.local):
            what = f"round {step.round} of {self.file.name}"
            self._account.charge(spending, self.file.max_epsilon, self.file.delta, what)

    def _note(self, protection: Protection) -> None:
        if self._engine.reports_leave and protection.always_reports:
            self._ledger.note_in_clear([TIMING])
        kind, settings = type(protection), protection.settings
        self._against = kind.against(settings)

    def _lines(self) -> list[Line]:
        figure = self._ledger.figures(self.file.delta)["run_most_drawn"]
        whose = "a client's whole data" if self.file.unit == "client" else "one row"
        lines = [Line(*figure, f"{whose}, against {self._against}")]
        if self._account is not None:
            lines.append(self._account.line(self.file.delta))
        return lines

    def _add(
        self, step: Step, layout: Layout, carriage: Carriage, mean: Float64s, reports: int
    ) -> None:
        total, noise = carriage.total(mean, reports), carriage.variance(mean, reports)
        # With `unit: row` the rows are independent, unless only some of the clients were asked.
        alone = self.file.unit == "row" and not (self.file.local and reports < self._clients)
        rows = None if alone else self.file.rows_of_a_client or 1
        found: dict[str, list[Sums]] = {}
        for part, ball, where in zip(layout.parts, layout.balls, layout.slices, strict=True):
            # Assumes that clients that did not report are like those that reported.
            factor = 1.0 if alone else self._clients / reports
            scale = 1.0 if self.file.local else ball.scale
            values = total if self.file.local else ball.back(total[where], reports)
            values, variance = values * factor, noise[where] * (scale * factor) ** 2
            most, own = self._influence.get(part.question, 0.0), carriage.influence()
            self._influence[part.question] = max(most, own * scale * factor)
            sums = Sums(values, variance, reports, self._clients, rows)
            found.setdefault(part.question, []).append(sums)
        for name, sums_of in found.items():
            if name in step.prefixes:
                self._schedule.trees[name].answered(sums_of[0].values, sums_of[0].noise)
            if step.edge:
                self._searched(step, sums_of[0])
            self._sums.setdefault(name, []).append(sums_of)

    def _searched(self, step: Step, sums: Sums) -> None:
        search = self._schedule.turns[step.round - 1].search
        assert search is not None, "only a search has an edge"
        codes = sums.clients * self.file.codes
        share, noise = sums.values[0] / codes, sums.noise[0] / codes**2
        search.answered(step.edge, float(share), float(noise), sums.asked)


def _why(outcome: Outcome) -> str:
    reasons = outcome.rejected + outcome.withheld + outcome.failed
    said = "".join(f"; {count} x {reason}" for reason, count in reasons.most_common(3))
    return f"{outcome.void}{said}"


def ask(
    question: QuestionFile | str | Path | dict[str, Any],
    data: Any = None,
    *,
    progress: Callable[[str], None] = lambda text: None,
) -> Answers:
    """Simulate the clients of a table on this machine, and return the answers to a question file.

    `question` is a question file, its path, or its keys. `data` replaces the data that the file
    names: a path, columns by name, a DataFrame, an array, or a data set
    (`statistics.tables.as_table`). `progress` is called with a line of text before each round.

        >>> import fedveil
        >>> answers = fedveil.ask(
        ...     {
        ...         "protection": "not_encrypt",
        ...         "questions": {"old": {"ask": "count", "where": "age >= 65"}},
        ...     },
        ...     {"age": [70, 41, 66, 12]},
        ... )
        >>> answers["old"].value
        2.0
    """
    file = parse_question(question)
    clients = load(file, data)
    return Asking(file, Simulator(file, clients)).run(progress)


def parse_question(question: QuestionFile | str | Path | dict[str, Any]) -> QuestionFile:
    """Return `question` as a question file. A path is loaded, and keys are checked."""
    if isinstance(question, QuestionFile):
        return question
    if isinstance(question, dict):
        return QuestionFile.read(question, [])
    return QuestionFile.load(question)
