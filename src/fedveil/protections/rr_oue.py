"""rr and oue: clients quantise each weight, and send a perturbed one-hot code of the result."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import ROUND_UP, Decimal, localcontext
from functools import lru_cache, partial
from typing import Any, ClassVar, TypeVar, get_args

import numpy as np
import numpy.typing as npt

from fedveil.base import reused_memory
from fedveil.base.array_types import Uint8s
from fedveil.base.message import Message, Value, encoded_bytes, only_fields, take, take_array
from fedveil.entropy import Seeded
from fedveil.errors import ClientWithheld, InvalidValue, LimitReached, MessageInvalid
from fedveil.mechanisms.adaptive_budget import AdaptiveBudget
from fedveil.mechanisms.unary.cohort_sum import CohortSum
from fedveil.mechanisms.unary.encoding import Kind, Report, ReportKind, Running, UnaryEncoding
from fedveil.mechanisms.unary.known_choices import choices, truths
from fedveil.mechanisms.unary.likelihood import log_rounded, stated_log_likelihood
from fedveil.privacy.audit import Case
from fedveil.privacy.choice_audit import Choice
from fedveil.privacy.loss import PrivacyLoss, as_written
from fedveil.protections.base import (
    Aggregate,
    ClientContext,
    JobContext,
    Protection,
    RoundContext,
    ServerRound,
    Spending,
    State,
    Update,
)
from fedveil.protections.cost_key import CostKey
from fedveil.protections.one_report import OneReportClient, OneReportRound
from fedveil.protections.reading import Reading
from fedveil.protections.unary_settings import UnarySettings, unfit_for_audit
from fedveil.rounds.outcomes import ClientId

T = TypeVar("T")

_TOKEN_BYTES = 32
_AMOUNT = re.compile(r"[0-9]+(\.[0-9]+)?(E[+-]?[0-9]{1,4})?")


# All clients of a round need the same encoding, and its exact probabilities are slow to compute.
_encoding = lru_cache(maxsize=8)(UnaryEncoding)


@lru_cache(maxsize=8)
def _cost(encoding: UnaryEncoding, dimension: int) -> Decimal:
    """Return the epsilon of a report of `dimension` parameters, as a decimal never rounded down."""
    with localcontext(prec=60, rounding=ROUND_UP):
        return as_written(encoding.loss_per_parameter.epsilon) * dimension


class Unary(Protection):
    """Clients send perturbed one-hot codes of weights or updates. The server estimates the mean.

    `UnaryEncoding`, with the value range `clip`, defines the report and its privacy. A report of d
    parameters costs d * 2 eps (rr) or d * eps (oue), pure, replace-one. The aggregate is an
    unbiased estimate of the mean of the clipped and rounded values.

    With `adaptive`, every round has its own epsilon. `AdaptiveBudget` computes the next one from
    the weights before a round and from the sum of these weights and the round's aggregate, even if
    the server's optimiser sets other weights. Clients refuse an epsilon below the job's `eps`, and
    an epsilon at which one report costs more than `total_eps`. They have no other way to check it,
    so deployments need `total_eps`.

    `total_eps` limits the total epsilon of a client that takes part in every round. The total is
    the sum of the rounds' pure losses, which is valid even if they are chosen adaptively.

    With `fidelity: aggregate`, in simulation only, each client sends 32 random bytes and its
    rounded values without noise, and the server draws the sum of the reports from its distribution.
    """

    block = "unary"
    settings_type = UnarySettings
    cost_parameter = CostKey("eps", total="total_eps")
    settings: UnarySettings
    kind: ClassVar[Kind]

    def __init__(self, settings: UnarySettings, context: JobContext) -> None:
        super().__init__(settings, context)
        self.encoding(settings.eps)
        self.norm_clip = settings.clip * self.dimension**0.5
        if settings.adaptive and settings.total_eps is None and not context.simulated:
            raise InvalidValue(
                "protection.unary.total_eps is not given: outside simulation adaptive needs it, "
                "so that a client can refuse an unbounded epsilon"
            )
        if settings.fidelity == "aggregate" and not context.simulated:
            raise InvalidValue(
                "protection.unary.fidelity = 'aggregate' is for simulation only, since its "
                "reports are not private on their own: use per_client"
            )
        if settings.fidelity == "aggregate" and settings.report == "bits":
            raise InvalidValue(
                "protection.unary.fidelity = 'aggregate' needs report = 'sum': the aggregate "
                "has the same distribution, but the upload bytes of 'bits' would be wrong"
            )

    @classmethod
    def adapts(cls, settings: UnarySettings) -> bool:
        return settings.adaptive

    @classmethod
    def weaker(
        cls, asked: Any, demanded: Any, clients: int, expected: int | None = None
    ) -> str | None:
        """Return a reason if `asked` has `report: bits` but `demanded` has `sum`, else None."""
        if (asked.report, demanded.report) == ("bits", "sum"):
            return "reports are bits instead of sums, which reveal less"
        return None

    @classmethod
    def unauditable(cls, settings: Any) -> str | None:
        return unfit_for_audit(settings)

    @classmethod
    def audit_cases(cls, eps: float) -> Iterator[Case]:
        """Yield an audit case for each kind of report, with loss `eps` (rr) or `eps` / 2 (oue)."""
        for report in get_args(ReportKind):
            unary = UnaryEncoding(cls.kind, eps / 2, cells=4, report=report)
            values = np.array([-4.0]), np.array([4.0])  # beyond the clip
            name = f"{cls.kind}, {report} of a parameter"
            yield Case(name, unary.perturb, *values, unary.loss_per_parameter)

    def most_of_a_report(self) -> tuple[float, float]:
        """Return a report's largest epsilon (`total_eps` if `adaptive`) and its largest delta."""
        if self.adaptive and self.settings.total_eps:
            return self.settings.total_eps, 0.0
        return super().most_of_a_report()

    def encoding(self, eps: float) -> UnaryEncoding:
        job = self.settings
        return _encoding(self.kind, eps, job.cells, job.rounding, job.report, job.clip)

    def report_cost(self, eps: float) -> Decimal:
        """Return a whole report's epsilon, never rounded down. `eps` is that of the encoding."""
        return _cost(self.encoding(eps), self.dimension)

    def initial_state(self) -> State:
        return {"eps": self.settings.eps, "spent": "0"}

    def check_state(self, state: State) -> None:
        only_fields(state, *self.initial_state(), *(["stop"] if "stop" in state else []))
        eps = take(state, "eps", float)
        if eps < self.settings.eps or (eps > self.settings.eps and not self.adaptive):
            raise MessageInvalid(f"field eps holds {eps!r}, which no round of this job uses")
        self.encoding(eps)
        if not _AMOUNT.fullmatch(take(state, "spent", str)):
            raise MessageInvalid("field spent is not an amount")
        if "stop" in state:
            take(state, "stop", str)

    def spending(self, state: State) -> Sequence[Spending]:
        loss = self.encoding(take(state, "eps", float)).loss_per_parameter
        return [Spending(loss, self.context.dimension)]

    def server_round(self, context: RoundContext) -> ServerRound:
        """Return the server's part in a round. Raises `LimitReached` if the run must stop."""
        if "stop" in context.state:
            raise LimitReached(take(context.state, "stop", str))
        total, spent = self.settings.total_eps, self.spent_after(context.state)
        if total is not None and spent > as_written(total):
            raise LimitReached(
                f"protection.unary.total_eps = {total!r}: round {context.round} would raise the "
                f"loss of a client in every round to {spent}"
            )
        if self.settings.fidelity == "aggregate":
            return UnaryCohortRound(context, self, self.context.clients_per_round)
        return UnaryServerRound(context, self)

    def spent_after(self, state: State) -> Decimal:
        """Return a client's total epsilon at the end of a round that starts with `state`."""
        with localcontext(prec=60, rounding=ROUND_UP):
            spent = Decimal(take(state, "spent", str))
            return spent + self.report_cost(take(state, "eps", float))

    def cut_off(self, state: State, cost: Sequence[tuple[PrivacyLoss, int]]) -> State:
        with localcontext(prec=60, rounding=ROUND_UP):
            spent = Decimal(take(state, "spent", str))
            spent += sum(as_written(loss.epsilon) * count for loss, count in cost)
        return {**state, "spent": str(spent)}

    def client_round(self, context: ClientContext) -> UnaryClientRound:
        return UnaryClientRound(context, self)

    def coded(self, model: Update, update: Update) -> Update:
        """Return the vector to encode: `update` or, if `target` is "weights", the new weights."""
        with np.errstate(over="ignore"):  # a weight beyond float32 is clipped like any other
            return model + update if self.settings.target == "weights" else update

    def reading(self, context: RoundContext, report: Message) -> Reading:
        """Return an estimate of the update from one report, and the report's likelihood.

        With `fidelity: aggregate`, a report has the rounded values, so the estimate has no noise.
        Otherwise, a report of sums has no likelihood if `cells` > 127: it would be too costly.
        """
        encoding = self.encoding(take(context.state, "eps", float))
        size = encoding.packed_size(self.dimension)
        exact = self.settings.fidelity == "aggregate"
        packed = take_array(report, "states" if exact else "report", "uint8", (size,))
        sent = encoding.unpack(packed, self.dimension)
        law = log_rounded(encoding, sent) if exact else stated_log_likelihood(encoding, sent)
        estimate = encoding.values(sent) if exact else encoding.estimate([sent], 1)
        if self.settings.target == "weights":
            estimate = estimate - context.model
        coded = partial(self.coded, context.model)
        told = None if law is None else lambda update: law(coded(update))
        true = (lambda update: truths(encoding, sent, coded(update))) if self.choices() else None
        return Reading(estimate, np.ones_like(estimate), log_likelihood=told, truths=true)

    def choices(self) -> Sequence[Choice]:
        """Return a report's random choices, or [] with `adaptive` or `fidelity: aggregate`."""
        fixed = not self.adaptive and self.settings.fidelity == "per_client"
        return choices(self.encoding(self.settings.eps), self.dimension) if fixed else ()


class _ServerRound(OneReportRound):
    """The server's part in a round. The subclasses differ in how they add up reports."""

    #: The field of a report that grows with the model, and the report's other fields.
    packed: ClassVar[str] = "report"
    beside: ClassVar[Mapping[str, Value]] = {}

    def __init__(self, context: RoundContext, protection: Unary) -> None:
        super().__init__(context)
        self._protection = protection
        self._eps: float = take(context.state, "eps", float)
        self._encoding = protection.encoding(self._eps)
        self._dimension = len(context.model)

    def opening(self) -> Message:
        return {"round": self._context.round, "eps": self._eps}

    @abstractmethod
    def _sums(self) -> Running:
        """Return, for each parameter, the sum of the states whose bits are 1, over all reports.

        A state is a rounded value from -cells to cells. A one-hot code has one bit for each state.
        """

    @property
    def longest(self) -> int:
        size = self._encoding.packed_size(self._dimension)
        blank: dict[str, Value] = {self.packed: np.empty(size, np.uint8), **self.beside}
        return encoded_bytes({"round": self._context.round, **blank})

    def _read(self, message: Message, name: str, read: Callable[[Uint8s], T]) -> T:
        packed = take_array(message, name, "uint8", (None,))
        try:
            return read(packed)
        except InvalidValue as error:
            raise MessageInvalid(f"field {name}: {error}") from None

    def _aggregate(self) -> Aggregate:
        update = self._encoding.estimate(self._sums(), self.reports, overwrite=True)
        if self._protection.settings.target == "weights":
            update -= self._context.model
        return Aggregate(update, self.reports, self._next_state(update))

    def _next_state(self, update: npt.NDArray[np.float64]) -> State:
        spent = str(self._protection.spent_after(self._context.state))
        eps = self._protection.settings.eps
        if not self._protection.settings.adaptive:
            return {"eps": eps, "spent": spent}
        model = self._context.model.astype(np.float64)
        try:
            next_eps = AdaptiveBudget(eps).next(model, model + update)
            self._protection.encoding(next_eps)
        except InvalidValue as error:
            return {"eps": eps, "spent": spent, "stop": f"protection.unary.adaptive: {error}"}
        return {"eps": next_eps, "spent": spent}


class UnaryServerRound(_ServerRound):
    """The server's part in a round with `fidelity: per_client`: adds up clients' reports."""

    sums = ("_running",)

    def __init__(self, context: RoundContext, protection: Unary) -> None:
        super().__init__(context, protection)
        self._running: Running = reused_memory.zeros(self._dimension, np.int64)

    def _fold(self, client: ClientId, message: Message) -> None:
        only_fields(message, "round", "report")
        self._read(message, "report", partial(self._encoding.add_packed, self._running))

    def _merge_sums(self, other: UnaryServerRound) -> None:
        self._running += other._running

    def _sums(self) -> Running:
        return self._running


class UnaryCohortRound(_ServerRound):
    """The server's part in a round with `fidelity: aggregate`, which is for simulations only.

    A client sends the state of each parameter (its rounded value) without noise. For each
    parameter, this class counts the clients in each state. From these counts it draws the sum of
    all clients' noisy reports at once.
    """

    sums = ("_cohort", "_key")
    packed = "states"
    beside: ClassVar[Mapping[str, Value]] = {"token": bytes(_TOKEN_BYTES)}

    def __init__(self, context: RoundContext, protection: Unary, clients_per_round: int) -> None:
        super().__init__(context, protection)
        capacity = max(clients_per_round, len(context.cohort))
        self._cohort = CohortSum(self._dimension, self._encoding.cells, capacity)
        self._key = 0

    def _fold(self, client: ClientId, message: Message) -> None:
        only_fields(message, "round", "states", "token")
        token = take(message, "token", bytes)
        if len(token) != _TOKEN_BYTES:
            raise MessageInvalid("field token has the wrong length")
        unpack = partial(self._encoding.unpack, dimension=self._dimension)
        states = self._read(message, "states", unpack)
        if np.abs(states).max(initial=0) > self._encoding.cells:
            raise MessageInvalid("field states holds a state outside its range")
        self._cohort.add(states.astype(np.int16, copy=False))
        self._key ^= int.from_bytes(token, "little")

    def _merge_sums(self, other: UnaryCohortRound) -> None:
        self._cohort.merge(other._cohort)
        self._key ^= other._key

    def _sums(self) -> Running:
        entropy = Seeded(self._key, "unary cohort", self._context.round)
        return self._cohort.draw(self._encoding.exact_p, self._encoding.exact_q, entropy)


class UnaryClientRound(OneReportClient):
    """The client's part in a round: clips, encodes and perturbs the new weights or the update."""

    def __init__(self, context: ClientContext, protection: Unary) -> None:
        super().__init__(context)
        self._protection = protection

    def _report(self, opening: Message, update: Update) -> Message:
        encoding = self._protection.encoding(self._accept(opening))
        job, entropy = self._protection.settings, self._context.entropy
        model, exact = self._context.model, job.fidelity == "aggregate"

        def report(part: slice) -> Report:
            some = update[part]
            start = model[part] if job.target == "weights" else np.zeros_like(some)
            states = encoding.encode_moved(start, some, entropy)
            return states if exact else encoding.perturb_states(states, entropy)

        try:
            packed = encoding.pack_parts(len(update), report)
        except InvalidValue as error:
            raise ClientWithheld(f"the update cannot be coded: {error}") from None
        if exact:
            token = entropy.token(_TOKEN_BYTES)
            return {"round": self._context.round, "states": packed, "token": token}
        return {"round": self._context.round, "report": packed}

    def _accept(self, opening: Message) -> float:
        try:
            only_fields(opening, "round", "eps")
            round, eps = take(opening, "round", int), take(opening, "eps", float)
        except MessageInvalid as error:
            raise ClientWithheld(f"the opening is malformed: {error}") from None
        job = self._protection.settings
        if round != self._context.round:
            raise ClientWithheld("the message is not the opening of this round")
        if not (eps == job.eps or (job.adaptive and eps > job.eps)):
            raise ClientWithheld(f"the opening's eps = {eps!r} is not allowed by the job")
        try:
            cost = self._protection.report_cost(eps)
        except InvalidValue as error:
            raise ClientWithheld(f"the opening's {error}") from None
        if job.total_eps is not None and cost > as_written(job.total_eps):
            raise ClientWithheld(
                f"the opening's eps = {eps!r} would cost {cost}, more than the job's total_eps"
            )
        return float(eps)


class RR(Unary):
    """rr: randomised response on every bit of a one-hot code."""

    name = kind = "rr"


class OUE(Unary):
    """oue: optimised unary encoding. The 1 of a one-hot code stays 1 with probability 1/2."""

    name = kind = "oue"
