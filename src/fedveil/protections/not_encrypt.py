"""not_encrypt: plain federated averaging. The server sees every update."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedveil.errors import MessageInvalid
from fedveil.message import Message, only_fields, take, take_array
from fedveil.privacy.loss import PrivacyLoss
from fedveil.protections.base import (
    Aggregate,
    ClientContext,
    Dialect,
    Protection,
    RoundContext,
    Spending,
    State,
    Update,
    Weighting,
)
from fedveil.protections.exact_sum import ExactSum
from fedveil.protections.one_report import OneReportClient, OneReportRound
from fedveil.rounds.answers import ClientId

#: A client that claims more examples is refused.
MAX_EXAMPLES = 1 << 31


class NotEncrypt(Protection):
    """Every client sends its update as it is; the aggregate is their weighted mean.

    Privacy: none. Whoever reads a report reads the update exactly (epsilon is infinite).
    """

    name = "not_encrypt"
    block = None
    perturbs = False
    dialect = Dialect()
    #: An app without fedveil does the same.
    for_apps = False

    def spending(self, state: State) -> Sequence[Spending]:
        """A plain update promises nothing."""
        return [Spending(PrivacyLoss(math.inf, per="update"))]

    def server_round(self, context: RoundContext) -> NotEncryptServerRound:
        return NotEncryptServerRound(context, self.context.weighting)

    def client_round(self, context: ClientContext) -> NotEncryptClientRound:
        return NotEncryptClientRound(context, self.context.weighting)


class NotEncryptServerRound(OneReportRound):
    """Running exact sums of `examples * update` and of `examples` (of 1 each, weighted equally)."""

    sums = ("_sum", "_total")

    def __init__(self, context: RoundContext, weighting: Weighting) -> None:
        super().__init__(context)
        self._by_size = weighting == "by_size"
        self._sum = ExactSum(len(context.model))
        self._total = 0

    def _fold(self, client: ClientId, message: Message) -> None:
        only_fields(message, "round", "update", *(["examples"] if self._by_size else []))
        update = take_array(message, "update", "float32", self._context.model.shape)
        examples = take(message, "examples", int) if self._by_size else 1
        if not 1 <= examples <= MAX_EXAMPLES:
            raise MessageInvalid("field examples is outside its range")
        try:
            self._sum.add(update, examples)
        except ValueError as error:
            raise MessageInvalid(f"field update: {error}") from None
        self._total += examples

    def _merge_sums(self, other: NotEncryptServerRound) -> None:
        self._sum.merge(other._sum)
        self._total += other._total

    def _aggregate(self) -> Aggregate:
        mean = self._sum.value()
        mean /= self._total
        return Aggregate(mean, self.reports)


class NotEncryptClientRound(OneReportClient):
    """Sends the update, and how many examples it was made from where the server weighs by size."""

    def __init__(self, context: ClientContext, weighting: Weighting) -> None:
        super().__init__(context)
        self._by_size = weighting == "by_size"

    def _report(self, opening: Message, update: Update) -> Message:
        report: dict[str, int | Update] = {"round": self._context.round, "update": update}
        if self._by_size:
            report["examples"] = self._context.examples
        return report
