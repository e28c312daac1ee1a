"""dp_encrypt: each client clips its update and adds Gaussian noise (local differential privacy)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
import numpy.typing as npt
from pydantic import Field

from fedveil.base import reused_memory
from fedveil.base.array_types import Int64s, into_floats
from fedveil.base.message import Message, Value, encoded_bytes, only_fields, take_array
from fedveil.base.packing import add
from fedveil.entropy import Entropy
from fedveil.errors import ClientWithheld, FedveilWarning, InvalidValue, MessageInvalid
from fedveil.mechanisms.gaussian import GaussianMechanism, sum_of_squares
from fedveil.mechanisms.unclipped_sum import GaussianSum
from fedveil.privacy.audit import Case
from fedveil.privacy.grid_sensitivity import LARGEST
from fedveil.protections.advice import Cohort
from fedveil.protections.base import (
    Aggregate,
    ClientContext,
    JobContext,
    Protection,
    RoundContext,
    Spending,
    State,
    Update,
)
from fedveil.protections.description import Whose
from fedveil.protections.directions import Direction
from fedveil.protections.exact_sum import MAX_MAGNITUDE, ExactSum
from fedveil.protections.grid_report import GridReport
from fedveil.protections.mindspore_names import Dialect
from fedveil.protections.one_report import OneReportClient, OneReportRound
from fedveil.protections.reading import Reading
from fedveil.protections.robust_combining import CombiningRule, Sum
from fedveil.rounds.outcomes import ClientId
from fedveil.settings.settings import Settings

#: A report's values lie within clip + 10 sigma of zero.
_REACH_SIGMAS = 10


class DPEncryptSettings(Settings):
    """Parameters of `dp_encrypt`: the clipping norm, and epsilon, delta and kind of the noise."""

    WEAKENS: ClassVar[Mapping[str, Direction]] = {
        "dp_eps": "loss",
        "dp_delta": "loss",
        "dp_norm_clip": "none",
        "noise": "loss",
    }

    dp_eps: float = Field(50.0, gt=0, description="epsilon of one report")
    dp_delta: float = Field(0.01, gt=0, lt=1, description="delta of one report; 1/clients is usual")
    dp_norm_clip: float = Field(1.0, gt=0, description="each update is clipped to this L2 norm")
    noise: Literal["discrete", "continuous"] = Field(
        "discrete",
        description="discrete: a Gaussian on a fine grid; continuous: the floating-point "
        "Gaussian of other systems",
    )


def _delta_small(settings: DPEncryptSettings, cohort: Cohort) -> str | None:
    delta, number = settings.dp_delta, cohort.clients
    if number is None or delta * number <= 1:
        return None
    return (
        f"dp_delta = {delta!r} is above 1/clients = {1 / number:g}: such a delta allows a "
        "mechanism that publishes one client's data"
    )


class DPEncrypt(Protection):
    """Every client sends its clipped update plus Gaussian noise. The server takes the mean.

    Clients have equal weights, because their numbers of examples would be sent unprotected.

    Privacy: (dp_eps, dp_delta) for a client's whole update in one report, replace-one, against
    everyone who reads the report, as `GaussianMechanism` states. With continuous noise (a
    floating-point Gaussian) the stated epsilon is infinite.

    Under `privacy.unit: example`, the update is a sum of clipped contributions and is not clipped
    itself. (dp_eps, dp_delta) then holds for one example that is certainly in the round's batch.
    The stated cost of a report is smaller, because the example is in the batch only with some
    probability (`GaussianSum`).
    """

    name = block = "dp_encrypt"
    settings_type = DPEncryptSettings
    gaussian_noise = "report"
    loop = sum_of_squares
    cost_parameter = "dp_eps"
    advice = (_delta_small,)
    dialect = Dialect()
    takes_variates = True
    combinations = ("mean", "median", "trimmed_mean")

    def __init__(self, settings: DPEncryptSettings, context: JobContext) -> None:
        super().__init__(settings, context)
        chosen = settings.dp_eps, settings.dp_delta, settings.dp_norm_clip
        self._mechanism: GaussianMechanism | GaussianSum
        self._form: _Form
        if context.unit == "example":
            rate = context.sampling_rate
            self._mechanism = GaussianSum(*chosen, dimension=self.dimension, rate=rate)
            step, largest = self._mechanism.step, LARGEST * self._mechanism.step
            self._form = _GridForm(self._mechanism, self.dimension, step, largest)
        else:
            self._mechanism = GaussianMechanism(*chosen, settings.noise, context.apart)
            step, largest = self._mechanism.grid(self.dimension).step, settings.dp_norm_clip
            if settings.noise == "discrete":
                self._form = _GridForm(self._mechanism, self.dimension, step, largest)
            else:
                self._form = _FloatForm(self._mechanism, self.dimension)
        self._loss, self.norm_clip = self._mechanism.loss, self._mechanism.clip

    @classmethod
    def units(cls, settings: DPEncryptSettings) -> Sequence[Whose]:
        return ("client", "example") if settings.noise == "discrete" else ("client",)

    @staticmethod
    def audit_cases(eps: float) -> Iterator[Case]:
        """Yield audit cases with epsilons of about `eps`.

        The inputs are two opposite updates or, in the second case, two opposite examples of a
        sampled batch.
        """
        gaussian, update = GaussianMechanism(eps, 1e-3, clip=1.0), np.array([1.0, 0.0])
        yield Case(
            "gaussian, an update", gaussian.privatize, 4 * update, -4 * update, gaussian.loss
        )
        summed = GaussianSum(2 * eps, 1e-3, 1.0, dimension=2, rate=0.5)

        def of_batch(example: npt.NDArray[np.float64], entropy: Entropy) -> npt.NDArray[np.float64]:
            return summed.privatize(example * entropy.bernoulli(0.5, 1), entropy)

        yield Case("gaussian, an example", of_batch, update, -update, summed.loss)

    def spending(self, state: State) -> Sequence[Spending]:
        return [Spending(self._loss)]

    def carried(self, update: Update, told: Message) -> Update:
        if isinstance(self._mechanism, GaussianSum):
            return update
        return self._mechanism.clipped(update).astype(np.float32)

    def server_round(self, context: RoundContext) -> DPEncryptServerRound:
        return DPEncryptServerRound(context, self._form, self.context.combining)

    def client_round(self, context: ClientContext) -> DPEncryptClientRound:
        return DPEncryptClientRound(context, self._form)

    def reading(self, context: RoundContext, report: Message) -> Reading:
        """Return the noisy update in `report`, and the likelihood of the report given an update."""
        output = self._form.read(report).astype(np.float64) * self._form.step

        def log_likelihood(update: Update) -> float:
            return self._mechanism.log_likelihood(output, update)

        return Reading(output, np.ones_like(output), log_likelihood=log_likelihood)


class DPEncryptServerRound(OneReportRound):
    """The server's half of a round: combines the clients' noisy reports.

    The argument `combining` says how, for example by their mean. `form` decodes the reports. The
    result does not depend on the order of the reports.
    """

    sums = ("_sum",)

    def __init__(self, context: RoundContext, form: _Form, combining: CombiningRule) -> None:
        super().__init__(context)
        self._form = form
        self._sum = combining.empty_sum(form.empty_sum())

    @property
    def longest(self) -> int:
        return encoded_bytes({"round": self._context.round, **self._form.blank()})

    def _fold(self, client: ClientId, message: Message) -> None:
        only_fields(message, "round", *self._form.fields)
        try:
            self._form.fold(message, self._sum)
        except MessageInvalid:
            raise
        except ValueError as error:
            raise MessageInvalid(f"the report cannot be added: {error}") from None

    def _merge_sums(self, other: DPEncryptServerRound) -> None:
        self._sum.merge(other._sum)

    def _aggregate(self) -> Aggregate:
        mean = self._sum.value(self.reports)
        mean *= self._form.step  # a power of two, or 1
        return Aggregate(mean, self.reports)


class DPEncryptClientRound(OneReportClient):
    """Sends the noised update. Raises `ClientWithheld` if an entry of the update is not finite.

    With discrete noise, the caller then reports an update of zero instead (`always_answers`).
    """

    def __init__(self, context: ClientContext, form: _Form) -> None:
        super().__init__(context)
        self._form = form

    def _report(self, opening: Message, update: Update) -> Message:
        try:
            report = self._form.write(update, self._context.entropy)
        except InvalidValue as error:
            raise ClientWithheld(str(error)) from None
        return {"round": self._context.round, **report}


class _Form(Protocol):
    """Encodes a report's values as message fields, and adds up such reports.

    `fields` are the names of these fields. Values are encoded as multiples of `step`, which is 1 if
    they are encoded as floats.
    """

    fields: tuple[str, ...]
    step: float

    def write(self, update: Update, entropy: Entropy) -> dict[str, Value]:
        """Return the report's fields: the encoded `update` with noise from `entropy`."""

    def blank(self) -> dict[str, Value]:
        """Return the fields of a report with arbitrary values, to compute a report's length."""

    def read(self, message: Message) -> npt.NDArray[Any]:
        """Return an untrusted report's values, divided by `step`. Checks every field."""

    def fold(self, message: Message, into: Sum) -> None:
        """Add the untrusted report `message` to the sum `into`.

        Raises `MessageInvalid` or another `ValueError`, and adds nothing, if it is invalid.
        """

    def empty_sum(self) -> Sum:
        """Return an empty running sum of reports."""


class _GridForm(GridReport):
    """Encodes reports as whole multiples of the grid's step.

    `limit` is the largest possible entry of an update plus ten standard deviations of the noise, in
    steps. A larger value is written as the limit, which costs no privacy.
    """

    def __init__(
        self,
        mechanism: GaussianMechanism | GaussianSum,
        dimension: int,
        step: float,
        largest: float,
    ) -> None:
        limit = math.ceil((largest + _REACH_SIGMAS * mechanism.sigma) / step)
        super().__init__(step, limit, dimension, np.int32)
        self._mechanism = mechanism

    def write(self, update: Update, entropy: Entropy) -> dict[str, Value]:
        draw = self._mechanism.drawing(update, entropy)

        def limited(part: slice) -> Int64s:
            multiples = draw(part)
            return np.clip(multiples, -self.limit, self.limit, out=multiples)

        return self.written_parts(limited)

    def fold(self, message: Message, into: Sum) -> None:
        if isinstance(into, _WholeSum):
            self.add(message, into.total)
        else:
            into.add(self.read(message))

    def empty_sum(self) -> _WholeSum:
        return _WholeSum(self._dimension)


class _FloatForm:
    fields: tuple[str, ...] = ("update",)
    step = 1.0

    def __init__(self, mechanism: GaussianMechanism, dimension: int) -> None:
        self._mechanism = mechanism
        self._dimension = dimension
        self._limit = mechanism.clip + _REACH_SIGMAS * mechanism.sigma
        if self._limit > MAX_MAGNITUDE:
            raise InvalidValue(
                f"dp_norm_clip = {mechanism.clip!r} leads to values of up to {self._limit:g}; "
                "continuous noise allows at most 2^40"
            )

    def write(self, update: Update, entropy: Entropy) -> dict[str, Value]:
        warnings.warn(
            "noise = continuous is for comparison only: the low bits of floating-point noise "
            "can distinguish updates, so there is no epsilon",
            FedveilWarning,
            stacklevel=3,
        )
        return {"update": self._mechanism.privatize(update, entropy)}

    def blank(self) -> dict[str, Value]:
        return {"update": np.empty(self._dimension, np.float32)}

    def read(self, message: Message) -> npt.NDArray[np.float32]:
        values = take_array(message, "update", "float32", (self._dimension,))
        if not max(values.max(initial=0.0), -values.min(initial=0.0)) <= self._limit:
            raise MessageInvalid("field update holds a value that is NaN or beyond its range")
        return values

    def fold(self, message: Message, into: Sum) -> None:
        into.add(self.read(message))

    def empty_sum(self) -> ExactSum:
        return ExactSum(self._dimension)


class _WholeSum:
    """A sum of int32 vectors. It is exact and independent of the order of the vectors."""

    def __init__(self, length: int) -> None:
        self.total = reused_memory.zeros(length, np.int64)

    def add(self, vector: npt.NDArray[np.int32], weight: int = 1) -> None:
        add(vector if weight == 1 else weight * vector, self.total)

    def merge(self, other: _WholeSum) -> None:
        self.total += other.total

    def value(self, divisor: int = 1) -> npt.NDArray[np.float64]:
        return into_floats(self.total, divisor=divisor)
