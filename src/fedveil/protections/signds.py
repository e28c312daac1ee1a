"""signds: clients send privately selected dimensions of their updates, and one sign.

They can also send a bit about the size of the update's largest entries.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from fedveil.base.array_types import Int8s
from fedveil.base.message import Message, Value, encoded_bytes, only_fields, take
from fedveil.errors import ClientWithheld, FedveilWarning, InvalidValue, MessageInvalid
from fedveil.mechanisms.randomized_response import BinaryRandomizedResponse
from fedveil.mechanisms.signds.dimension_selection import SignDS
from fedveil.mechanisms.signds.index_code import decode_indices, encode_indices, longest_code
from fedveil.mechanisms.signds.step_estimate import MagnitudeEstimator
from fedveil.privacy.audit import Case
from fedveil.privacy.choice_audit import Choice, told_true
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
from fedveil.protections.directions import Direction
from fedveil.protections.mindspore_names import Dialect
from fedveil.protections.one_report import OneReportClient, OneReportRound
from fedveil.protections.reading import Reading
from fedveil.rounds.outcomes import ClientId
from fedveil.settings.settings import Settings

#: The source requires a top-k set with more dimensions than this.
_FEW_DIMENSIONS = 50


class SignDSSettings(Settings):
    """Parameters of `signds`: the entries that a report names, epsilons, and the server's step."""

    WEAKENS: ClassVar[Mapping[str, Direction]] = {
        "sign_k": "none",
        "sign_eps": "loss",
        "sign_thr_ratio": "none",
        "sign_global_lr": "none",
        "sign_dim_out": "none",
        "sign_mag_eps": "loss",
        "magnitude": "loss",
        "regrow": "none",
    }

    sign_k: float = Field(
        0.01,
        gt=0,
        le=0.25,
        description="share of an update's entries that count as its largest (the top-k set)",
    )
    sign_eps: float = Field(
        100.0, gt=0, le=100, description="epsilon of the entries and the sign that a report names"
    )
    sign_thr_ratio: float = Field(
        0.6,
        ge=0.5,
        le=1,
        description="smallest expected share of the top-k set among the entries that a report "
        "names",
    )
    sign_global_lr: float = Field(1.0, gt=0, description="the server's step under magnitude: fixed")
    sign_dim_out: int = Field(
        0,
        ge=0,
        le=50,
        description="number of entries that a report names; 0: the largest number that "
        "sign_thr_ratio allows",
    )
    sign_mag_eps: float | None = Field(
        None,
        gt=0,
        le=100,
        description="epsilon of the bit about the size of the largest entries. null: sign_eps",
    )
    magnitude: Literal["estimated", "fixed"] = Field(
        "estimated",
        description="estimated: the clients' bits about the size of their largest entries decide "
        "the server's step; fixed: the step is sign_global_lr, and clients send no bit",
    )
    regrow: bool = Field(
        False,
        description="if true, the estimated magnitude grows again after it was below that of most "
        "clients for five rounds in a row",
    )


class SignDSProtection(Protection):
    """Clients report selected dimensions, one sign for them, and one bit about the magnitude.

    The magnitude is the mean absolute value of an update's largest entries. In each dimension, the
    aggregate of n reports is (step / n) * (number of +1 - number of -1). The server's step depends
    on the setting `magnitude`:

    - `estimated`: the step is 2 * r_est * n, where r_est is the server's estimate of the magnitude.
      The bits of a round first update r_est, then the step is computed. If fewer than 5% of the
      reports have a bit, r_est does not change, and the step is `sign_global_lr`.
    - `fixed`: the step is `sign_global_lr`, and no bit is sent.

    Clients have equal weights.

    Privacy: sign_eps per update for dimensions and sign, plus sign_mag_eps for the bit. Both are
    pure and replace-one. Source: MindSpore Federated's document on SignDS.
    """

    name = block = "signds"
    settings_type = SignDSSettings
    cost_parameter = "sign_eps"
    settings: SignDSSettings
    dialect = Dialect(uploads_as_they_are=True)

    def __init__(self, settings: SignDSSettings, context: JobContext) -> None:
        super().__init__(settings, context)
        self.mechanism = SignDS(
            settings.sign_k, settings.sign_eps, settings.sign_thr_ratio, settings.sign_dim_out
        )
        self.response = BinaryRandomizedResponse(settings.sign_mag_eps or settings.sign_eps)
        self.estimated = settings.magnitude == "estimated"

    def initial_state(self) -> State:
        """Return the initial estimate of the magnitude, or {} with `magnitude: fixed`."""
        return _state_of(MagnitudeEstimator()) if self.estimated else {}

    def check_state(self, state: State) -> None:
        """Raise `ValueError` unless `state` has a valid estimate of the magnitude.

        With `magnitude: fixed`, `state` must be empty.
        """
        only_fields(state, *self.initial_state())
        if self.estimated:
            _estimator(state, self.settings.regrow)

    @staticmethod
    def audit_cases(eps: float) -> Iterator[Case]:
        """Yield two audit cases with the epsilon `eps`: a perturbed bit, and a SignDS selection.

        A selection is the dimensions and the sign of a report. The two inputs are the bits 0 and 1
        in the first case, and two opposite updates in the second.
        """
        response = BinaryRandomizedResponse(eps)
        bits = np.array([False]), np.array([True])
        yield Case("randomised response, a bit", response.perturb, *bits, response.loss)
        selection = SignDS(k=0.25, eps=eps, thr_ratio=0.5, dim_out=2)
        ramp = np.linspace(-1, 1, 8, dtype=np.float32)
        yield Case("signds, an update", selection.select, ramp, -ramp, selection.loss)

    def spending(self, state: State) -> Sequence[Spending]:
        """Return the loss of the selection and, if a magnitude bit is sent, the loss of the bit."""
        selection = Spending(self.mechanism.loss)
        return [selection, Spending(self.response.loss)] if self.estimated else [selection]

    def server_round(self, context: RoundContext) -> SignDSServerRound:
        return SignDSServerRound(context, self)

    def client_round(self, context: ClientContext) -> SignDSClientRound:
        return SignDSClientRound(context, self)

    def reading(self, context: RoundContext, report: Message) -> Reading:
        """Return an attacker's estimate of the update's direction, from one `report`.

        The estimate has the report's sign in each selected dimension, and weight 0 in all others.
        """
        estimate = super().reading(context, report).estimate
        sign, bit = take(report, "sign", int), report.get("bit")
        code, dim_out = take(report, "indices", bytes), self.mechanism.plan(self.dimension).dim_out
        indices = decode_indices(code, self.dimension, dim_out)

        def log_likelihood(update: Update) -> float:
            selection = self.mechanism.log_probability(indices, sign, update)
            if bit is None:
                return selection.log_probability
            truth = bool(_told_estimator(context.state).bit(selection.magnitude))
            return selection.log_probability + self.response.log_probability(bool(bit), truth)

        def truths(update: Update) -> list[Int8s]:
            told = self.mechanism.log_probability(indices, sign, update)
            favoured = told.log_probability == self.mechanism.most_probable(self.dimension)
            found = [favoured, sign > 0]
            if bit is not None:
                found.append(bool(bit) == bool(_told_estimator(context.state).bit(told.magnitude)))
            return [np.array([one], np.int8) for one in found]

        weight = np.zeros(self.dimension)
        weight[indices] = 1.0
        return Reading(estimate, weight, scaled=False, log_likelihood=log_likelihood, truths=truths)

    def choices(self) -> Sequence[Choice]:
        """Return a report's random choices: selection, sign and, if sent, the magnitude bit."""
        chance = self.mechanism.chance_of_favoured(self.dimension)
        found = [
            Choice("a favoured selection", self.mechanism.eps, chance, 1),
            Choice("the sign", 0.0, told_true, 1),
        ]
        if self.estimated:
            found.append(Choice("the bit of the magnitude", self.response.eps, told_true, 1))
        return found


class SignDSServerRound(OneReportRound):
    """Adds up the clients' signs in each dimension, and counts the magnitude bits they send."""

    sums = ("_signs", "_bits", "_ones")

    def __init__(self, context: RoundContext, protection: SignDSProtection) -> None:
        super().__init__(context)
        self._protection = protection
        self._dim_out = protection.mechanism.plan(protection.dimension).dim_out
        self._signs = np.zeros(protection.dimension, np.int32)
        self._bits = 0
        self._ones = 0

    def opening(self) -> Message:
        opening = super().opening()
        if not self._protection.estimated:
            return opening
        state = self._context.state
        return {**opening, "estimate": state["estimate"], "phase": state["phase"]}

    @property
    def longest(self) -> int:
        code = bytes(longest_code(self._protection.dimension, self._dim_out))
        report: dict[str, Value] = {"round": self._context.round, "sign": -1, "indices": code}
        return encoded_bytes(report | ({"bit": True} if self._protection.estimated else {}))

    def _fold(self, client: ClientId, message: Message) -> None:
        with_bit = self._protection.estimated and "bit" in message
        only_fields(message, "round", "sign", "indices", *(["bit"] if with_bit else []))
        sign = take(message, "sign", int)
        if sign not in (1, -1):
            raise MessageInvalid("field sign is neither 1 nor -1")
        bit = take(message, "bit", bool) if with_bit else False
        code = take(message, "indices", bytes)
        indices = decode_indices(code, self._protection.dimension, self._dim_out)
        self._signs[indices] += sign
        self._bits += with_bit
        self._ones += bit

    def _merge_sums(self, other: SignDSServerRound) -> None:
        self._signs += other._signs
        self._bits += other._bits
        self._ones += other._ones

    def _aggregate(self) -> Aggregate:
        settings = self._protection.settings
        step = settings.sign_global_lr
        state: State = {}
        if self._protection.estimated:
            estimator = _estimator(self._context.state, settings.regrow)
            if estimator.enough(self._bits, self.reports):
                estimator.update_counts(self._ones, self._bits, self._protection.response.eps)
            step = estimator.global_step(step, self._bits, self.reports)
            state = _state_of(estimator)
        return Aggregate(self._signs * step / self.reports, self.reports, state)


class SignDSClientRound(OneReportClient):
    """Sends privately selected dimensions, one sign and, if asked, a perturbed magnitude bit."""

    def __init__(self, context: ClientContext, protection: SignDSProtection) -> None:
        super().__init__(context)
        self._protection = protection

    def _report(self, opening: Message, update: Update) -> Message:
        protection, entropy = self._protection, self._context.entropy
        _warn_of_small_set(protection.settings.sign_k, protection.dimension)
        try:
            estimator = _told_estimator(opening) if protection.estimated else None
            selection = protection.mechanism.select(update, entropy)
        except (InvalidValue, MessageInvalid) as error:
            raise ClientWithheld(str(error)) from None
        report: dict[str, Value] = {
            "round": self._context.round,
            "sign": selection.sign,
            "indices": encode_indices(selection.indices, protection.dimension),
        }
        if estimator is not None:
            bit = bool(estimator.bit(selection.magnitude))
            report["bit"] = bool(protection.response.perturb(bit, entropy))
        return report


def _warn_of_small_set(sign_k: float, dimension: int) -> None:
    if sign_k * dimension <= _FEW_DIMENSIONS:
        warnings.warn(
            f"protection.signds.sign_k = {sign_k:g} of {dimension} dimensions gives a top-k set "
            f"of {sign_k * dimension:g}: SignDS needs more than {_FEW_DIMENSIONS} to learn",
            FedveilWarning,
            stacklevel=3,
        )


def _told_estimator(opening: Message) -> MagnitudeEstimator:
    return MagnitudeEstimator(take(opening, "estimate", float), phase=take(opening, "phase", str))


def _estimator(state: State, regrow: bool) -> MagnitudeEstimator:
    return MagnitudeEstimator(
        take(state, "estimate", float),
        phase=take(state, "phase", str),
        zeros=take(state, "zeros", int),
        regrow=regrow,
    )


def _state_of(estimator: MagnitudeEstimator) -> State:
    return {"estimate": estimator.estimate, "phase": estimator.phase, "zeros": estimator.zeros}
