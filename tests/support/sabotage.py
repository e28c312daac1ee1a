"""Faults planted in the shipped code, each as a context within which it is active.

The protections are the shipped ones and claim what they always claim. A mechanism, or the place
that hands out randomness, is patched. Simulations must run in the calling process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from typing import Any
from unittest.mock import patch

import numpy as np

from fedveil.engine.executors.client_side import ClientSide
from fedveil.entropy import Entropy
from fedveil.mechanisms import central_noise, gaussian
from fedveil.mechanisms.central_noise import CentralNoise
from fedveil.mechanisms.distributed_gaussian import DistributedGaussian
from fedveil.mechanisms.exact.discrete_gaussian import DiscreteGaussian
from fedveil.mechanisms.randomized_response import BinaryRandomizedResponse
from fedveil.mechanisms.signds.dimension_selection import SelectionPlan, SignDS
from fedveil.mechanisms.signds.inlier_law import InlierLaw
from fedveil.mechanisms.unary.encoding import UnaryEncoding
from fedveil.protections.base import Protection
from fedveil.protections.distributed_dp import DistributedDP

Sabotage = Callable[[], AbstractContextManager[Any]]
_LEAST_Q = Fraction(1, 1 << 20)


def same_noise_each_round() -> AbstractContextManager[Any]:
    """Draw from the first round's stream in every round, at clients and a noisy server."""
    return _streams_of(1)


def same_noise_every_second_round() -> AbstractContextManager[Any]:
    """Draw from the stream of the round before the last one."""
    return _streams_of(2)


@contextmanager
def _streams_of(rounds: int) -> Iterator[None]:
    """Draw from the streams of the first `rounds` rounds, in turn."""
    reports, central = ClientSide._new_half, Protection.noise_entropy

    def stuck(self: ClientSide, client: int) -> Any:
        entropy = self._entropy
        self._entropy = _Stuck(entropy, self._round, rounds)  # type: ignore[assignment]
        try:
            return reports(self, client)
        finally:
            self._entropy = entropy

    def stuck_centre(self: Protection, round: int) -> Entropy:
        return central(self, (round - 1) % rounds + 1)

    with (
        patch.object(ClientSide, "_new_half", stuck),
        patch.object(Protection, "noise_entropy", stuck_centre),
    ):
        yield


class _Stuck:
    """Returns a client's stream of one of the first rounds in every round."""

    def __init__(self, entropy: Entropy, round: int, rounds: int) -> None:
        self._entropy, self._round, self._rounds = entropy, round, rounds

    def stream(self, name: str, round: int, client: int) -> Entropy:
        assert round == self._round
        return self._entropy.stream(name, (round - 1) % self._rounds + 1, client)


@contextmanager
def same_noise_for_all_clients() -> Iterator[None]:
    """Draw for all clients of a round from one stream."""
    reports = ClientSide._new_half

    def shared(self: ClientSide, client: int) -> Any:
        entropy = self._entropy
        self._entropy = _Shared(entropy)  # type: ignore[assignment]
        try:
            return reports(self, client)
        finally:
            self._entropy = entropy

    with patch.object(ClientSide, "_new_half", shared):
        yield


class _Shared:
    def __init__(self, entropy: Entropy) -> None:
        self._entropy = entropy

    def stream(self, name: str, round: int, client: int) -> Entropy:
        return self._entropy.stream(name, round, 0)


def half_the_noise() -> AbstractContextManager[Any]:
    """Add Gaussian noise of half the standard deviation."""
    return _noise_over(2)


def an_eighth_of_the_noise() -> AbstractContextManager[Any]:
    """Add Gaussian noise of an eighth of the standard deviation."""
    return _noise_over(8)


def _noise_over(divisor: int) -> AbstractContextManager[Any]:
    add_to = DiscreteGaussian.add_to

    def divided(self: DiscreteGaussian, values: Any, entropy: Entropy) -> None:
        noise = np.zeros(len(values), np.int64)
        add_to(self, noise, entropy)
        values += (noise // divisor).astype(values.dtype)

    return patch.object(DiscreteGaussian, "add_to", divided)


def clip_twice_too_large() -> AbstractContextManager[Any]:
    """Clip updates to twice the norm that the noise is made for."""
    return _clip_times(2)


def clip_eight_times_too_large() -> AbstractContextManager[Any]:
    """Clip updates to eight times the norm that the noise is made for."""
    return _clip_times(8)


@contextmanager
def _clip_times(factor: int) -> Iterator[None]:
    to_grid, rounded = gaussian.clipping_to_grid, DistributedGaussian.rounded

    def wide_grid(vector: Any, clip: float, step: float) -> Any:
        return to_grid(vector, factor * clip, step)

    def wide_rounded(self: DistributedGaussian, *given: Any) -> Any:
        wide = copy(self)
        wide.radius, wide.limit = factor * self.radius, factor**2 * self.limit
        return rounded(wide, *given)

    with (
        patch.object(gaussian, "clipping_to_grid", wide_grid),
        patch.object(central_noise, "clipping_to_grid", wide_grid),
        patch.object(CentralNoise, "within", lambda self, multiples: True),
        patch.object(DistributedGaussian, "rounded", wide_rounded),
    ):
        yield


@contextmanager
def a_tenth_of_the_shares_missing() -> Iterator[None]:
    """Let every tenth client of `distributed_dp` send its vector without noise."""
    vector = DistributedDP.vector

    def without(self: DistributedDP, update: Any, context: Any, told: Any) -> Any:
        if context.client % 10:
            return vector(self, update, context, told)
        assert isinstance(self.noise, DistributedGaussian)
        return self.noise.rounded(update, self.signs(context.round), context.entropy)

    with patch.object(DistributedDP, "vector", without):
        yield


def bit_in_clear() -> AbstractContextManager[Any]:
    """Let randomised response always tell the truth."""
    return patch.object(
        BinaryRandomizedResponse, "perturb", lambda self, bits, entropy: np.asarray(bits)
    )


@contextmanager
def selection_of_twice_the_epsilon() -> Iterator[None]:
    """Let SignDS prefer top-k dimensions as if for twice its epsilon."""
    select = SignDS.select

    def sharper(self: SignDS, update: Any, entropy: Entropy) -> Any:
        other, dim = copy(self), len(update)
        other._plans = {dim: _sharper(self.plan(dim), dim, 2 * self.eps)}
        return select(other, update, entropy)

    with patch.object(SignDS, "select", sharper):
        yield


def _sharper(plan: SelectionPlan, dim: int, eps: float) -> SelectionPlan:
    return replace(plan, law=InlierLaw(dim, plan.topk, plan.dim_out, plan.threshold, eps))


def epsilon_off_by_a_hundredth() -> AbstractContextManager[Any]:
    """Perturb codes as rarely as at eps + 0.01."""
    return _codes(lambda kind, q: 1 / (1 + (1 / q - 1) * Fraction(np.exp(0.01))))


def lies_off_by_a_hundredth() -> AbstractContextManager[Any]:
    """Lower the probability that a bit is flipped by 0.01, but not to 0."""
    return _codes(lambda kind, q: max(q - Fraction(1, 100), _LEAST_Q))


def half_the_lies() -> AbstractContextManager[Any]:
    """Flip bits half as often."""
    return _codes(lambda kind, q: q / 2)


@contextmanager
def _codes(changed: Callable[[str, Fraction], Fraction]) -> Iterator[None]:
    """Perturb codes with another q than the encoding states."""
    perturb = UnaryEncoding.perturb_states

    @lru_cache(maxsize=4)
    def other(kind: str, eps: float, cells: int, report: str, value_range: float) -> UnaryEncoding:
        made = UnaryEncoding(kind, eps, cells, "nearest", report, value_range)  # type: ignore[arg-type]
        made.exact_q = Fraction(float(changed(kind, made.exact_q)))
        made.exact_p = 1 - made.exact_q if kind == "rr" else made.exact_p
        return made

    def perturbed(self: UnaryEncoding, states: Any, entropy: Entropy) -> Any:
        own = other(self.kind, self.eps, self.cells, self.report, self.value_range)
        return perturb(own, states, entropy)

    with patch.object(UnaryEncoding, "perturb_states", perturbed):
        yield


#: No fault.
none = nullcontext
