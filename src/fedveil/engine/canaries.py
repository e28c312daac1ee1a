"""Canary clients of a simulated run, and what their reports give away of them.

A canary has no data. In every round it sends an update that was made before the run: a direction
of its own, of the greatest length that the protection lets through, forwards or backwards as its
coin says. That is the game of `privacy.one_run_audit`, in which the coin decides between two
neighbours, replace-one, as far apart as two clients' whole data can be; so what is found stands
beside what the ledger states for a client that is drawn in every round. Directions are at right
angles to each other, and all canaries turn round after every round: what they do to the model in
one round they take back in the next, and noise that comes a second time cancels in the scores.

The observer sees what the promise is about: each canary's own reports, through the protection's
`reading`; and where these say nothing, or the promise is not one against the server, which alone
reads them, the aggregates. Where the promise is that of Gaussian noise around clips that stay, the
noise in what it sees is measured as well (`privacy.measured_noise`): what canaries sent is known.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from fedveil._arrays import Bools, Float64s
from fedveil._validate import finite_vector, integer
from fedveil.engine.executors.client_side import ClientSide, Made, Trained, Training
from fedveil.engine.executors.executor import Executor
from fedveil.engine.executors.reports import encoded
from fedveil.engine.job_protection import report_entropy
from fedveil.engine.run_records import CANARIES
from fedveil.entropy import Seeded
from fedveil.errors import InvalidValue
from fedveil.federated.job import Job
from fedveil.message import Message, only_fields, take, take_array
from fedveil.privacy.audit import rounded_down
from fedveil.privacy.finding import BOUND, CONFIDENCE, Finding, Measured
from fedveil.privacy.intervals import share
from fedveil.privacy.loss import Gaussian
from fedveil.privacy.measured_noise import MeasuredNoise
from fedveil.privacy.one_run_audit import OneRunAudit, audit_run
from fedveil.privacy.promise import Figure
from fedveil.protections.base import Aggregate, Protection, RoundContext, State, Update
from fedveil.protections.reading import Reading
from fedveil.rounds.answers import Answer, ClientId
from fedveil.rounds.loop import MergeableHalf

#: Of all chances to exceed a true claim, 1 - CONFIDENCE, the part that the noise's bound has.
_NOISE_ERROR = 0.001
BY_NOISE = f"{BOUND}, if noise is Gaussian and alike in every entry"


class Directions:
    """Vectors of length 1 at right angles: rows of a cosine transform, with the signs of a seed."""

    def __init__(self, seed: int, count: int, dimension: int) -> None:
        if count > dimension:
            raise InvalidValue(
                f"audit.canaries = {count} is more than the model's {dimension} parameters: each "
                f"canary needs a direction of its own"
            )
        draw = Seeded(seed, "canary directions")
        self._signs = np.where(draw.bernoulli(0.5, dimension), 1.0, -1.0)
        self._rows = draw.permutation(dimension)[:count]

    def vector(self, number: int) -> Float64s:
        """One of them."""
        n, row = len(self._signs), int(self._rows[number])
        turns = (2 * np.arange(n, dtype=np.int64) + 1) * row % (4 * n)
        length = math.sqrt((2 if row else 1) / n)
        vector: Float64s = self._signs * length * np.cos(np.pi / (2 * n) * turns)
        return vector

    def along(self, vector: Float64s) -> Float64s:
        """The inner products of a vector with all of them."""
        from scipy.fft import dct  # a third of a second to import

        products: Float64s = dct(self._signs * vector, norm="ortho")[self._rows]
        return products


class Evidence:
    """What was seen of each canary, added up over the rounds: larger where its coin is likelier 1.

    `own`: in its own reports, less what the other canaries' reports hold in its direction, which
    can be nothing but noise that they share. `summed`: in the aggregates. `told`: whether reports
    say anything. `noise`: what they, or else the aggregates, hold beside what canaries sent.
    """

    def __init__(self, directions: Directions, included: Bools, dimension: int) -> None:
        self._directions, self._signs = directions, np.where(included, 1.0, -1.0)
        count = len(included)
        self.own, self.summed = np.zeros(count), np.zeros(count)
        self.rounds, self.told = 0, False
        self.noise = MeasuredNoise(dimension)
        self._found, self._shared = np.zeros(count), np.zeros(0)

    def read(self, number: int, reading: Reading, update: Update) -> None:
        """A canary's report of the round; `update` is what it sends where its coin shows 1."""
        if reading.empty:
            return
        self.told = True
        weighed = reading.weight * reading.estimate
        if reading.scaled:
            rest = reading.estimate - self._signs[number] * update
            self.noise.add(float(rest @ rest))
            self._shared = weighed + (self._shared if len(self._shared) else 0.0)
            self._found[number] = weighed @ update
        elif reading.log_likelihood is None:
            self.own[number] += weighed @ update
        else:
            self.own[number] += reading.log_likelihood(update) - reading.log_likelihood(-update)

    def close(self, length: float) -> None:
        """All reports of the round have been read; `length` is that of its updates, signed."""
        self.rounds += 1
        others = len(self.own) - 1
        if len(self._shared) and others:
            along = length * self._directions.along(self._shared)
            self._found -= (along - self._found) / others
        self.own += self._found
        self._found, self._shared = np.zeros(len(self.own)), np.zeros(0)

    def sum(self, aggregate: Aggregate, length: float) -> None:
        """The round's outcome, which everybody may see."""
        total = aggregate.reports * aggregate.update.astype(np.float64)
        along = self._directions.along(total)
        self.summed += length * along
        if not self.told:
            rest = along - length * self._signs
            self.noise.add(float(total @ total - along @ along + rest @ rest))

    @property
    def scores(self) -> Float64s:
        """Of all canaries."""
        return self.own if self.told else self.summed

    def state(self) -> State:
        """For a checkpoint."""
        arrays = {"own": self.own, "summed": self.summed}
        return {**arrays, "rounds": self.rounds, "told": self.told, **self.noise.state()}

    def restore(self, state: State) -> None:
        """Go on from `state`, which anything may be."""
        only_fields(state, "own", "summed", "rounds", "told", *self.noise.state())
        count = len(self.own)
        self.own, self.summed = (
            np.array(finite_vector(name, take_array(state, name, np.float64, (count,))))
            for name in ("own", "summed")
        )
        self.rounds = integer("rounds", take(state, "rounds", int), 0)
        self.told = take(state, "told", bool)
        self.noise.restore(state)


class CanaryTraining(Training):
    """What takes the place of local training: update after update, made before the run."""

    chunk = least = 1

    def __init__(self, directions: Directions, included: Bools, length: float, first: int) -> None:
        self._directions, self._included = directions, included
        self._length, self._first = length, first
        self._round = 0

    @property
    def length(self) -> float:
        """That of this round's updates: negative in even rounds, where canaries turn round."""
        return self._length if self._round % 2 else -self._length

    def open(self, round: int, model: Update) -> None:
        self._round = round

    def examples(self, client: ClientId) -> int:
        """It counts as a client with one example."""
        return 1

    def if_included(self, client: ClientId) -> Update:
        """The update of this round if the client's coin shows 1; otherwise it is the opposite."""
        return (self.length * self._directions.vector(client - self._first)).astype(np.float32)

    def updates(self, clients: Sequence[ClientId]) -> Iterator[Answer]:
        for client in clients:
            sign = 1 if self._included[client - self._first] else -1
            yield Trained(client, sign * self.if_included(client))


class Canaries(Executor):
    """The canaries of a run beside its clients, whose messages `carrier` carries.

    Their clients' halves are the protection's own. They never drop out.
    """

    def __init__(self, job: Job, protection: Protection) -> None:
        count, first = job.audit.canaries, job.clients.number
        assert first is not None  # the engine has settled it
        self.clients = range(first, first + count)
        self._job, self._protection = job, protection
        self._included = Seeded(job.seed, "canary coins").bernoulli(0.5, count)
        directions = Directions(job.seed, count, protection.dimension)
        self._evidence = Evidence(directions, self._included, protection.dimension)
        length = job.audit.norm or protection.norm_clip
        length = length if math.isfinite(length) else 1.0
        self._moved = 2 * min(length, protection.norm_clip)
        self._trusts_server = protection.rests_on_server(job.protection.settings)
        self._training = CanaryTraining(directions, self._included, length, first)
        model = np.empty(protection.dimension, np.float32)
        self._side = ClientSide(protection, self._training, model, report_entropy(job))
        self._context: RoundContext
        self.carrier: Executor

    def beside(self, carrier: Executor) -> Executor:
        """Carry the other clients' messages by `carrier`; itself, or that where there is none."""
        self.carrier = carrier
        return self if self.clients else carrier

    def open(self, context: RoundContext) -> None:
        self._context = context
        self._side.model[:] = context.model
        self._side.open(context.round)
        others = [client for client in context.cohort if client not in self.clients]
        self.carrier.open(replace(context, cohort=others))

    def ask(self, phase: str, messages: Mapping[ClientId, Message]) -> Iterator[Answer]:
        """The canaries' answers, read on their way, and the others'."""
        yield from self._answers(phase, messages)
        yield from self.carrier.ask(phase, self._others(messages))

    def fold(
        self, phase: str, messages: Mapping[ClientId, Message], server: MergeableHalf
    ) -> Iterator[Answer]:
        yield from self._answers(phase, messages)
        yield from self.carrier.fold(phase, self._others(messages), server)

    def close(self) -> None:
        self.carrier.close()

    def _others(self, messages: Mapping[ClientId, Message]) -> Mapping[ClientId, Message]:
        return {c: message for c, message in messages.items() if c not in self.clients}

    def _answers(self, phase: str, messages: Mapping[ClientId, Message]) -> Iterator[Answer]:
        asked = {c: message for c, message in messages.items() if c in self.clients}
        reports = phase == self._protection.trains
        for answer in self._side.answers(asked):
            if reports and isinstance(answer, Made) and not self._trusts_server:
                reading = self._protection.reading(self._context, answer.message)
                update = self._training.if_included(answer.client)
                self._evidence.read(answer.client - self.clients.start, reading, update)
            yield encoded(answer)
        if reports:
            self._evidence.close(self._training.length)

    def saw(self, aggregate: Aggregate) -> None:
        """A round's aggregate is out."""
        if self.clients:
            self._evidence.sum(aggregate, self._training.length)

    def state(self) -> State:
        """For a checkpoint; nothing where there are no canaries."""
        return self._evidence.state() if self.clients else {}

    def restore(self, state: State) -> None:
        """Go on from what a checkpoint holds, which may be anything."""
        if self.clients:
            self._evidence.restore(state)
        else:
            only_fields(state)

    def counted(self) -> dict[str, int]:
        """What a round's record says of them."""
        return {CANARIES: len(self.clients)} if self.clients else {}

    def finding(self, claim: Figure) -> Finding | None:
        """What they show of `claim`, the whole run's for a client that is drawn in every round."""
        if not self.clients or not self._evidence.rounds:
            return None
        state, told = self._protection.initial_state(), self._evidence
        spent = self._protection.spending(state)
        gaussian = all(isinstance(spending.loss.release, Gaussian) for spending in spent)
        measured = gaussian and claim.delta > 0 and not state
        confidence = CONFIDENCE + (_NOISE_ERROR if measured else 0)
        audit = audit_run(
            told.scores, self._included, claim, gaussian=gaussian, confidence=confidence
        )
        figures = _figures(audit)
        if measured:
            figures.append(self._by_noise(claim))
        what = "each canary's own reports" if self._evidence.told else "the aggregates"
        settings = self._job.protection.settings.model_dump(mode="json")
        return Finding(
            attack=CANARIES,
            effort="standard",
            protection=self._job.protection.name,
            figures=figures,
            settings={**settings, "rounds": self._evidence.rounds},
            epsilon=claim.epsilon,
            delta=claim.delta,
            saw=f"{what} of {self._evidence.rounds} rounds",
        )

    def _by_noise(self, claim: Figure) -> Measured:
        """What the noise shows of rounds that had an outcome: a void one has shown nothing."""
        seen = self._evidence.noise
        rounds = max(1, seen.releases // (len(self.clients) if self._evidence.told else 1))
        bound = seen.lower_bound(self._moved, rounds, delta=claim.delta, error=_NOISE_ERROR)
        return Measured(BY_NOISE, float(rounded_down(bound, 3)), cases=seen.releases)


def _figures(audit: OneRunAudit) -> list[Measured]:
    m = audit.canaries
    return [
        Measured(BOUND, float(rounded_down(audit.bound, 3)), cases=m),
        Measured(f"{BOUND}, if canaries tell nothing of each other",
                 float(rounded_down(audit.alone, 3)), cases=m),
        Measured("the most that so many could show", float(rounded_down(audit.reachable, 3)),
                 cases=m),
        share("coins guessed right", audit.right_of_all, m, guess=0.5),
    ]  # fmt: skip
