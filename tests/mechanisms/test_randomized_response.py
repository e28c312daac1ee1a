"""Binary randomised response: the law, its inversion, and the loss it claims."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from fedveil.entropy import Seeded
from fedveil.errors import InvalidValue
from fedveil.mechanisms.randomized_response import BinaryRandomizedResponse
from scripted_entropy import Scripted
from statistical_checks import ERROR_RATE, loss_at_least

TRIALS = 200_000


def lie_probability(eps: float, digits: int = 400) -> Decimal:
    with localcontext() as context:
        context.prec = digits
        return 1 / (1 + Decimal(eps).exp())


@pytest.mark.parametrize("eps", [1e-6, 0.1, 1.0, 3.0])
@pytest.mark.parametrize("truth", [0, 1])
def test_a_bit_is_kept_with_the_stated_probability(eps: float, truth: int) -> None:
    response = BinaryRandomizedResponse(eps)
    out = response.perturb(np.full(TRIALS, truth), Seeded(1, "law", truth))
    kept = int((out == truth).sum())
    expected = float(1 - lie_probability(eps))
    assert response.keep_probability == pytest.approx(expected, rel=1e-15)
    assert binomtest(kept, TRIALS, expected).pvalue > ERROR_RATE


def test_bits_are_perturbed_independently() -> None:
    out = BinaryRandomizedResponse(1.0).perturb(np.zeros(TRIALS, bool), Seeded(2, "pairs"))
    both = int((out[::2] & out[1::2]).sum())
    expected = float(lie_probability(1.0)) ** 2
    assert binomtest(both, TRIALS // 2, expected).pvalue > ERROR_RATE


@pytest.mark.parametrize("eps", [100.0, 40.0, 1e-300])
def test_a_draw_that_64_bits_do_not_decide_reads_on(eps: float) -> None:
    """Uniform reals just below and just above the probability of a lie, at 64 * n bits."""
    response = BinaryRandomizedResponse(eps)
    for words in (3, 6):
        with localcontext() as context:
            context.prec = 500
            floor = int(lie_probability(eps, 500) * Decimal(2) ** (64 * words))
        for offset, lies in ((-1, True), (1, False)):
            uniform = Scripted.real(floor + offset, words)
            assert bool(response.perturb(False, uniform)) is lies


def test_small_words_alone_never_lie_at_a_large_eps() -> None:
    # 2^-64 is far more than the probability of a lie: a draw that stopped there would lie
    response = BinaryRandomizedResponse(100.0)
    assert not response.perturb(False, Scripted(0, 1))


def test_shape_and_type_are_kept() -> None:
    response = BinaryRandomizedResponse(1.0)
    for truth in (np.zeros((3, 4), bool), np.ones(5, np.uint8), np.array(1), np.empty(0, int)):
        out = response.perturb(truth, Seeded(3))
        assert out.shape == truth.shape
        assert out.dtype == truth.dtype
        assert np.isin(out, (0, 1)).all()


@given(st.floats(1e-3, 100), st.integers(1, 10**6), st.data())
def test_the_estimate_is_the_source_formula(eps: float, n: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, n))
    p = 1 - lie_probability(eps)
    with localcontext() as context:
        context.prec = 400
        printed = (count - n + n * p) / (2 * p - 1)
    estimate = BinaryRandomizedResponse(eps).estimate_ones(count, n)
    assert estimate == pytest.approx(float(printed), rel=1e-12, abs=1e-9)


@given(st.floats(1e-9, 100), st.integers(0, 10**6), st.data())
def test_rounding_never_moves_an_estimate_across_one_half(
    eps: float, n: int, data: st.DataObject
) -> None:
    count = data.draw(st.integers(0, n))
    estimate = BinaryRandomizedResponse(eps).estimate_ones(count, n)
    assert (estimate > n / 2) == (2 * count > n)
    assert (estimate == n / 2) == (2 * count == n)


def test_the_estimate_is_unbiased() -> None:
    n, ones, repeats = 50, 20, 4000
    response = BinaryRandomizedResponse(0.7)
    truth = np.arange(n) < ones
    out = response.perturb(np.tile(truth, (repeats, 1)), Seeded(4, "bias"))
    estimates = [response.estimate_ones(int(c), n) for c in out.sum(axis=1)]
    q = float(lie_probability(0.7))
    deviation = math.sqrt(n * q * (1 - q)) / (1 - 2 * q)
    assert abs(np.mean(estimates) - ones) < 4.9 * deviation / math.sqrt(repeats)  # 1e-6
    assert np.std(estimates) == pytest.approx(deviation, rel=0.06)


def test_the_loss_is_the_claim_and_a_planted_bug_is_above_it() -> None:
    eps = 1.0
    response = BinaryRandomizedResponse(eps)
    assert (response.loss.epsilon, response.loss.delta, response.loss.per) == (eps, 0.0, "bit")
    bits = np.array([[0], [1]]).repeat(TRIALS, axis=1)

    def bound(mechanism: BinaryRandomizedResponse) -> float:
        zeros, ones = mechanism.perturb(bits, Seeded(5, "game")).sum(axis=1)
        return loss_at_least(int(ones), int(zeros), TRIALS)

    assert eps - 0.05 < bound(response) <= eps
    lies_half_as_often = BinaryRandomizedResponse(2 * eps)
    assert bound(lies_half_as_often) > eps


@pytest.mark.parametrize("eps", [0, -1, math.nan, math.inf, 1e5, "1", True])
def test_a_wrong_eps_is_refused(eps: object) -> None:
    with pytest.raises(InvalidValue, match="eps = "):
        BinaryRandomizedResponse(eps)  # type: ignore[arg-type]


@pytest.mark.parametrize("bits", [[0, 2], [-1], [0.0, 1.0], ["a"]])
def test_what_is_no_bit_is_refused(bits: list[object]) -> None:
    with pytest.raises(InvalidValue, match="bits holds other values"):
        BinaryRandomizedResponse(1.0).perturb(bits, Seeded(0))


@pytest.mark.parametrize("eps", [0.3, 2.5])
def test_the_probabilities_of_both_answers_sum_to_1(eps: float) -> None:
    response = BinaryRandomizedResponse(eps)
    for truth in (False, True):
        told = [math.exp(response.log_probability(answer, truth)) for answer in (truth, not truth)]
        assert told[0] == pytest.approx(response.keep_probability, rel=1e-12)
        assert sum(told) == pytest.approx(1.0, rel=1e-12)
