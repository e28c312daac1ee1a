"""Canary clients of a simulated run, and what their reports reveal about them.

A canary is an artificial client with a fixed direction and a secret coin. Its update points along
the direction if the coin shows 1, and against it if the coin shows 0. In even rounds all canaries
reverse their updates. An observer of the reports, or of the sums, guesses the coins as in
`privacy.one_run_audit`. The resulting lower bound is comparable to the ledger's epsilon for a
client that takes part in every round.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedveil.base.array_types import Bools, Float64s
from fedveil.base.message import Message, only_fields, prefixed, take, within
from fedveil.base.quantity import quantity
from fedveil.base.validate import integer
from fedveil.engine.canary_bounds import Canvass
from fedveil.engine.canary_directions import Directions
from fedveil.engine.canary_evidence import ReportEvidence
from fedveil.engine.canary_sums import SumEvidence
from fedveil.engine.executors.client_side import ClientSide, Made, Trained, Training
from fedveil.engine.executors.executor import Executor
from fedveil.engine.executors.reports import encoded
from fedveil.engine.job_protection import report_entropy
from fedveil.engine.run_records import CANARIES
from fedveil.entropy import Seeded
from fedveil.federated.job import Job
from fedveil.privacy.finding import Finding
from fedveil.privacy.guarantee_strength import Figure
from fedveil.privacy.loss import Gaussian
from fedveil.protections.base import Aggregate, Protection, RoundContext, State, Update
from fedveil.rounds.loop import MergeableHalf
from fedveil.rounds.outcomes import Answer, ClientId

#: Lengths of the canaries' updates as multiples of the clip, used in turn. A missing clip shows in
#: every canary. A clip that is slightly too large shows best in the first.
BEYOND = (1.5, 8.0, 64.0)
#: Lengths of the updates if a perturbed report has no clip. Anything that a report reveals about an
#: update's length shows at one of them.
SIZES = (1.0, 2.0**-6, 2.0**6)


class CanaryTraining(Training):
    """The training of canaries: yields updates that were fixed before the run."""

    chunk = least = 1

    def __init__(
        self, directions: Directions, included: Bools, lengths: Sequence[float], first: int
    ) -> None:
        self._directions, self._included = directions, included
        self._lengths, self._first = lengths, first
        self._round = 0

    @property
    def turn(self) -> int:
        """The factor that multiplies all canaries' updates: 1 in odd rounds, -1 in even rounds."""
        return 1 if self._round % 2 else -1

    def open(self, round: int, model: Update) -> None:
        self._round = round

    def examples(self, client: ClientId) -> int:
        return 1

    def unit(self, client: ClientId) -> Float64s:
        """Return the unit vector along which the canary's update points if its coin shows 1.

        The coin is a secret bit that decides the sign of the canary's updates.
        """
        return self.turn * self._directions.vector(client - self._first)

    def if_included(self, client: ClientId) -> Update:
        """Return the update that the canary sends in this round if its coin shows 1.

        The coin is a secret bit that decides the sign of the canary's updates.
        """
        number = client - self._first
        length = self._lengths[number % len(self._lengths)]
        return (length * self.unit(client)).astype(np.float32)

    def updates(self, clients: Sequence[ClientId]) -> Iterator[Answer]:
        for client in clients:
            sign = 1 if self._included[client - self._first] else -1
            yield Trained(client, sign * self.if_included(client))


class Canaries(Executor):
    """An executor that runs the canaries and passes all other clients' messages to `carrier`."""

    def __init__(self, job: Job, protection: Protection) -> None:
        count, first = job.audit.canaries, job.clients.number
        assert first is not None  # the engine has set it
        self.clients = range(first, first + count)
        self._job, self._protection = job, protection
        self._included = Seeded(job.seed, "canary coins").bernoulli(0.5, count)
        # Directions take as much memory as ten copies of the model.
        directions = Directions(job.seed, count, protection.dimension if count else 0)
        lengths, clip = _lengths(job, protection), protection.norm_clip
        moved = min(clip, *lengths)
        self._moved = 2 * moved if math.isfinite(clip) else None
        included, self._rounds = self._included, 0
        if count:
            protection.audited = True
            self._reports = ReportEvidence(
                directions, included, moved, protection.dimension, protection.choices()
            )
            self._sums = SumEvidence(directions, included, moved, protection)
        self._trusts_server = protection.rests_on_server(job.protection.settings)
        self._training = CanaryTraining(directions, included, lengths, first)
        model = np.empty(protection.dimension, np.float32)
        self._side = ClientSide(protection, self._training, model, report_entropy(job))
        self._context: RoundContext
        self.carrier: Executor

    def beside(self, carrier: Executor) -> Executor:
        """Return an executor for all clients. `carrier` is the executor of the real clients.

        With canaries, the result is this object, which passes the real clients' messages to
        `carrier`. Without canaries, the result is `carrier`.
        """
        self.carrier = carrier
        return self if self.clients else carrier

    @property
    def told(self) -> Message:
        return self.carrier.told

    def open(self, context: RoundContext) -> None:
        self._context = context
        self._side.model[:] = context.model
        self._side.open(context.round, context.told)
        others = [client for client in context.cohort if client not in self.clients]
        self.carrier.open(replace(context, cohort=others))

    def ask(self, phase: str, messages: Mapping[ClientId, Message]) -> Iterator[Answer]:
        yield from self._answers(phase, messages)
        yield from self.carrier.ask(phase, self._others(messages))

    def fold(
        self, phase: str, messages: Mapping[ClientId, Message], server: MergeableHalf
    ) -> Iterator[Answer]:
        yield from self._answers(phase, messages)
        yield from self.carrier.fold(phase, self._others(messages), server)

    def shown(self) -> dict[str, Any]:
        return self.carrier.shown()

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
                unit = self._training.unit(answer.client)
                update = self._training.if_included(answer.client)
                self._reports.read(answer.client - self.clients.start, reading, unit, update)
            yield encoded(answer)
        if reports and asked:
            self._rounds += 1
            self._reports.close(self._training.turn)

    def saw(self, aggregate: Aggregate) -> None:
        if not self._reports.told:
            self._sums.see(aggregate, self._context.round, self._training.turn)

    def state(self) -> State:
        if not self.clients:
            return {}
        own, summed = self._reports.state(), self._sums.state()
        return {**prefixed("own", own), **prefixed("sum", summed), "rounds": self._rounds}

    def restore(self, state: State) -> None:
        only_fields(state, *self.state())
        if self.clients:
            self._rounds = integer("rounds", take(state, "rounds", int), 0)
            self._reports.restore(within("own", state))
            self._sums.restore(within("sum", state))

    def counted(self) -> dict[str, int]:
        """Return an entry for a round's record: the number of canaries. Empty if there are none."""
        return {CANARIES: len(self.clients)} if self.clients else {}

    def finding(self, claim: Figure) -> Finding | None:
        """Return the result of testing `claim`, the epsilon of a client that joins every round.

        Returns None without canaries, or before the first round.
        """
        if not self.clients or not self._rounds:
            return None
        state, told = self._protection.initial_state(), self._reports.told
        spent = self._protection.spending(state)
        gaussian = all(isinstance(spending.loss.release, Gaussian) for spending in spent)
        measured = gaussian and claim.delta > 0 and not state
        canvass = Canvass(
            self._included, self._reports, self._sums, self._moved, gaussian, measured
        )
        what = "each canary's own reports" if told else "the aggregates"
        settings = self._job.protection.settings.model_dump(mode="json")
        return Finding(
            attack=CANARIES,
            effort="standard",
            protection=self._job.protection.name,
            figures=canvass.figures(claim),
            settings={**settings, "rounds": self._rounds},
            epsilon=claim.epsilon,
            delta=claim.delta,
            saw=f"{what} of {quantity(self._rounds, 'round')}",
        )


def _lengths(job: Job, protection: Protection) -> Sequence[float]:
    if job.audit.norm is not None:
        return (job.audit.norm,)
    if math.isfinite(protection.norm_clip):
        return [beyond * protection.norm_clip for beyond in BEYOND]
    return SIZES if protection.perturbs else (1.0,)
