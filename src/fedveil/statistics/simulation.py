"""Simulates the clients of a question: encodes their rows and makes their reports."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from fedveil.base.array_types import Float64s, Int64s
from fedveil.base.message import Message, encode, encoded_bytes
from fedveil.entropy import Entropy
from fedveil.errors import ClientWithheld, ReportRejected
from fedveil.protections.always_answers import answer_trained
from fedveil.protections.base import ClientContext, ClientRound, Protection, Update
from fedveil.rounds.loop import Carrier, MergeableHalf
from fedveil.rounds.outcomes import Answer, ClientId, Folded, Refused, Report, Withheld
from fedveil.statistics.carriage import Carriage
from fedveil.statistics.clients import Clients
from fedveil.statistics.encodings import Rows
from fedveil.statistics.one_hot import Frequencies
from fedveil.statistics.plan import Layout
from fedveil.statistics.schedule import Step
from fedveil.statistics.tables import log


class Contributions:
    """Computes each client's vector for one round, with a section for each part of the questions.

    A part is a question, or one level of a question's tree. `layout` says which parts there are,
    and `carriage` encodes the vector as an update.
    """

    def __init__(
        self, layout: Layout, clients: Clients, carriage: Carriage, entropy: Entropy
    ) -> None:
        self._layout, self._clients, self._carriage = layout, clients, carriage
        self._entropy = entropy
        rows = entropy.stream("encoding")
        self._rows = [part.rows(clients, rows.stream(i)) for i, part in enumerate(layout.parts)]

    def of(self, client: ClientId) -> Update:
        """Return a client's update for this round, from which its protection makes the report.

        Also logs how many of the client's rows are used if there are too many, and how many values
        are missing or were clipped to the range of a question. These numbers are in the client's
        own log only.
        """
        entropy = self._entropy.stream("rows", client)
        carried = self._carriage.most_rows(self._layout.largest)
        chosen = self._clients.contributed(client, entropy, carried)
        if log.isEnabledFor(logging.INFO):
            _log_cut(self._rows, chosen)
        if isinstance(self._carriage.protection, Frequencies):
            missing = self._entropy.stream("missing", client)
            return self._codes(chosen, 1, missing).astype(np.float32)
        joint = self._layout.vector(self._rows, chosen)
        return self._carriage.update(joint, self._entropy.stream("rounding", client))

    def counts(self, cohort: Sequence[ClientId]) -> Float64s:
        """Return the sum of the one-hot codes of all clients in `cohort`, before perturbation."""
        stream = self._entropy.stream
        chosen = [self._clients.contributed(c, stream("rows", c)) for c in cohort]
        return self._codes(np.concatenate(chosen), len(cohort), stream("missing"))

    def _codes(self, chosen: Int64s, reports: int, entropy: Entropy) -> Float64s:
        """Return the sum of all one-hot codes in `reports` reports, before perturbation.

        `chosen` has the positions of the contributed rows. Each of them gives one code. Every
        report has the same number of codes, so a client with fewer rows adds codes of excluded
        rows. These are zero or, in a quantile search (`Below`), drawn with `entropy`.
        """
        protection, spare = self._carriage.protection, self._layout.parts[0].encoding.spare
        assert isinstance(protection, Frequencies), "codes are those of rr and oue"
        codes = self._rows[0].total(chosen)
        missing = reports * protection.rows - len(chosen)
        if spare and missing:
            codes[0] += entropy.bernoulli(spare, missing).sum()
        return codes


def _log_cut(rows: Sequence[Rows], chosen: Any) -> None:
    moved = sum(int(encoded.moved[chosen].sum()) for encoded in rows)
    lost = sum(int(encoded.lost[chosen].sum()) for encoded in rows)
    if moved or lost:
        said = "%d values were moved into their range, %d are missing or have no cell"
        log.info(said, moved, lost)


class Simulated(Carrier):
    """Carries the messages of one round, `step`, to simulated clients in this process.

    `made` computes the clients' updates.
    """

    def __init__(
        self, protection: Protection, made: Contributions, step: Step, entropy: Entropy
    ) -> None:
        self._protection, self._made, self._step = protection, made, step
        self._round, self._origin = step.round, cache(step.origin)
        self._entropy = entropy
        self._model = np.zeros(protection.dimension, np.float32)
        self._halves: dict[ClientId, ClientRound] = {}

    def ask(self, phase: str, messages: Mapping[ClientId, Message]) -> Iterator[Answer]:
        for client, message in messages.items():
            answer = self._answer(client, message)
            yield answer if isinstance(answer, Answer) else Report(client, encode(answer))

    def fold(
        self, phase: str, messages: Mapping[ClientId, Message], server: MergeableHalf
    ) -> Iterator[Answer]:
        """Send `messages` to the clients, and add their reports to `server`, one after another.

        Yields one answer per client: `Folded` if its report was added, `Refused` if `server`
        rejected it, and otherwise the client's own answer, such as `Withheld`. `phase` is not
        used.
        """
        for client, message in messages.items():
            answer = self._answer(client, message)
            if isinstance(answer, Answer):
                yield answer
                continue
            try:
                server.receive(client, answer)
                yield Folded(client, encoded_bytes(answer))
            except ReportRejected as rejected:
                yield Refused(client, encoded_bytes(answer), rejected.reason)

    def _answer(self, client: ClientId, message: Message) -> Answer | Message:
        half = self._halves.pop(client, None) or self._half(client)
        try:
            if not half.wants_update(message):
                answered = half.respond(message, None)
            else:
                before = half.keep() if len(self._protection.flow) > 1 else {}
                spare, train = partial(self._alike, before, client), partial(self._trained, client)
                first = half
                reply = answer_trained(self._protection, lambda n: first, spare, message, train)
                half, answered = reply.half, reply.message
        except ClientWithheld as why:
            return Withheld(client, str(why))
        if len(self._protection.flow) > 1:
            self._halves[client] = half
        return answered

    def _trained(self, client: ClientId) -> tuple[Update, int]:
        return self._made.of(client), 1

    def _half(self, client: ClientId) -> ClientRound:
        entropy = self._entropy.stream("report", self._round, client)
        context = ClientContext(client, self._round, self._model, 1, entropy, origin=self._origin)
        return self._protection.client_round(context)

    def _alike(self, kept: Message, client: ClientId) -> ClientRound:
        other = self._half(client)
        if kept:
            other.take_up(kept)
        return other
