"""not_encrypt: plain federated averaging. The server sees every update."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
from pydantic import Field

from fedveil.base.message import Message, Value, encoded_bytes, only_fields, take, take_array
from fedveil.errors import ClientWithheld, MessageInvalid
from fedveil.privacy.loss import PrivacyLoss
from fedveil.protections.base import (
    Aggregate,
    ClientContext,
    Protection,
    RoundContext,
    Spending,
    State,
    Update,
)
from fedveil.protections.description import Whose
from fedveil.protections.directions import Direction
from fedveil.protections.exact_sum import ExactSum
from fedveil.protections.mindspore_names import Dialect
from fedveil.protections.one_report import OneReportClient, OneReportRound
from fedveil.protections.reading import Reading
from fedveil.protections.robust_combining import CombiningRule
from fedveil.rounds.outcomes import ClientId
from fedveil.settings.settings import Settings


class NotEncryptSettings(Settings):
    """Parameters of `not_encrypt`: the largest weight of a client."""

    WEAKENS: ClassVar[Mapping[str, Direction]] = {"max_examples": "none"}

    max_examples: int = Field(
        65_535,
        ge=1,
        le=1 << 31,
        description="largest weight of a client under `server.weighting: by_size`. A client "
        "with more examples sends no report, and a report that claims more is "
        "refused",
    )


class NotEncrypt(Protection):
    """Every client sends its update unprotected. The server takes the weighted mean.

    Privacy: none. Everyone who reads a report learns the exact update (epsilon is infinite).
    """

    name = block = "not_encrypt"
    settings_type = NotEncryptSettings
    settings: NotEncryptSettings
    perturbs = False
    plain_reports = True
    dialect = Dialect()
    takes_variates = True
    combinations = ("mean", "median", "trimmed_mean", "norm_bound")
    #: An app without fedveil already does this.
    for_apps = False

    @classmethod
    def units(cls, settings: NotEncryptSettings) -> Sequence[Whose]:
        """Return "client" and "example". Neither is protected, so a job may choose either unit."""
        return ("client", "example")

    def spending(self, state: State) -> Sequence[Spending]:
        return [Spending(PrivacyLoss(math.inf, per="update"))]

    def server_round(self, context: RoundContext) -> NotEncryptServerRound:
        return NotEncryptServerRound(context, self.largest_weight, self.context.combining)

    def client_round(self, context: ClientContext) -> NotEncryptClientRound:
        return NotEncryptClientRound(context, self.largest_weight)

    def reading(self, context: RoundContext, report: Message) -> Reading:
        return Reading.exact(take_array(report, "update", "float32", context.model.shape))

    @property
    def largest_weight(self) -> int | None:
        """The largest weight of a client, or None if clients have equal weights."""
        return self.settings.max_examples if self.context.weighting == "by_size" else None


class NotEncryptServerRound(OneReportRound):
    """Adds up `weight * update` exactly. A weight is 1, or the client's number of examples."""

    sums = ("_sum", "_total")

    def __init__(
        self,
        context: RoundContext,
        largest_weight: int | None,
        combining: CombiningRule = CombiningRule(),  # noqa: B008 - it is frozen
    ) -> None:
        super().__init__(context)
        self._largest = largest_weight
        self._sum = combining.empty_sum(ExactSum(len(context.model)))
        self._total = 0

    @property
    def longest(self) -> int:
        report: dict[str, Value] = {"round": self._context.round}
        report["update"] = np.empty(len(self._context.model), np.float32)
        if self._largest is not None:
            report["examples"] = self._largest
        return encoded_bytes(report)

    def _fold(self, client: ClientId, message: Message) -> None:
        weighed, largest = self._largest is not None, self._largest or 1
        only_fields(message, "round", "update", *(["examples"] if weighed else []))
        update = take_array(message, "update", "float32", self._context.model.shape)
        examples = take(message, "examples", int) if weighed else 1
        if not 1 <= examples <= largest:
            raise MessageInvalid(f"field examples is outside [1, {largest}]")
        try:
            self._sum.add(update, examples)
        except ValueError as error:
            raise MessageInvalid(f"field update: {error}") from None
        self._total += examples

    def _merge_sums(self, other: NotEncryptServerRound) -> None:
        self._sum.merge(other._sum)
        self._total += other._total

    def _aggregate(self) -> Aggregate:
        return Aggregate(self._sum.value(self._total), self.reports)


class NotEncryptClientRound(OneReportClient):
    """Sends the update. If the server weights clients by size, also sends its example count."""

    def __init__(self, context: ClientContext, largest_weight: int | None) -> None:
        super().__init__(context)
        self._largest = largest_weight

    def _report(self, opening: Message, update: Update) -> Message:
        report: dict[str, int | Update] = {"round": self._context.round, "update": update}
        if self._largest is None:
            return report
        if self._context.examples > self._largest:
            raise ClientWithheld(
                f"the client has more than protection.not_encrypt.max_examples = {self._largest} "
                f"examples"
            )
        report["examples"] = self._context.examples
        return report
