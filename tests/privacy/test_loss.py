"""Statements: what a loss may say beside its release, and figures that are never rounded down."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedveil.errors import InvalidValue
from fedveil.mechanisms.embedding_dp import EmbeddingDP
from fedveil.mechanisms.unary.encoding import UnaryEncoding
from fedveil.privacy import (
    Gaussian,
    Ledger,
    LossDistribution,
    PrivacyLoss,
    SampledGaussian,
    compose,
)
from fedveil.privacy.loss import format_delta, format_epsilon

#: An epsilon as a person writes it, at most 15 digits: a float holds that many.
WRITTEN = st.integers(1, 10**15 - 1).flatmap(
    lambda digits: st.integers(-16, -12).map(lambda power: Decimal(digits).scaleb(power))
)


# Losses that also name their release


def test_a_statement_that_its_gaussian_release_contradicts_is_refused():
    with pytest.raises(InvalidValue) as refused:
        PrivacyLoss(1.0, 1e-6, release=Gaussian(0.317))
    assert str(refused.value) == (
        "epsilon = 1.0 at delta = 1e-06 is more than its release promises: that takes Gaussian "
        "noise of a ratio of at least 4.22468, not 0.317"
    )


@pytest.mark.parametrize("delta", [0.9, 0.3, 1e-6, 1e-30])
@pytest.mark.parametrize("ratio", [0.05, 0.317, 1.0, 30.0, 1e4])
def test_a_gaussian_statement_may_be_looser_and_never_tighter(ratio, delta):
    """The least epsilon is found by composition, which works the curve out in another way."""
    least = compose([(PrivacyLoss(1e9, 1e-300, release=Gaussian(ratio)), 1)], delta)
    PrivacyLoss(least + 1e-6, delta, release=Gaussian(ratio))
    if least > 0:
        with pytest.raises(InvalidValue, match="more than its release promises"):
            PrivacyLoss(least * (1 - 1e-6), delta, release=Gaussian(ratio))


def test_a_statement_that_its_distribution_contradicts_is_refused():
    """Loss 2 with probability 1/4, else -1: 1/4 * (1 - e^(1 - 2)) of it lies above 1."""
    release = LossDistribution(1e-3, -1000, np.array([0.75, *np.zeros(2999), 0.25]))
    above = 0.25 * -math.expm1(-1.0)
    PrivacyLoss(1.0, above, release=release)
    with pytest.raises(InvalidValue) as refused:
        PrivacyLoss(1.0, above * 0.99, release=release)
    assert str(refused.value) == (
        f"epsilon = 1.0 at delta = {above * 0.99!r} is more than its release promises: at that "
        f"epsilon its delta is {format_delta(release.delta(1.0))}"
    )
    failing = LossDistribution(0.5, 0, np.array([0.25, 0.5]), infinite=0.25)
    with pytest.raises(InvalidValue, match=r"epsilon = 3\.0 is below .* largest loss, inf"):
        PrivacyLoss(3.0, release=failing)
    assert failing.delta(0.2) == pytest.approx(0.5 * -math.expm1(0.2 - 0.5) + 0.25)
    assert failing.delta(9.0) == 0.25
    with pytest.raises(InvalidValue, match="more than its release promises"):
        PrivacyLoss(9.0, 0.2, release=failing)
    PrivacyLoss(9.0, 0.25, release=failing)


def test_a_table_states_the_epsilon_that_is_known_and_the_loss_of_a_part():
    laws, part = [[0.7, 0.3], [0.3, 0.7]], PrivacyLoss(0.25, per="bit")
    for known in (math.log(7 / 3), 0.95):
        loss = PrivacyLoss.from_laws(laws, epsilon=known, per="example", part=part)
        assert (loss.epsilon, loss.delta, loss.per, loss.part) == (known, 0.0, "example", part)
    unknown = PrivacyLoss.from_laws([[0.5, 0.4, 0.1], [0.4, 0.6, 0.0]])
    assert math.log(3 / 2) <= unknown.epsilon < math.log(3 / 2) + 1e-3
    assert unknown.delta == pytest.approx(0.1)
    assert unknown.part is None


def test_a_distribution_keeps_masses_of_its_own():
    masses = np.array([0.25, 0.75])
    release = LossDistribution(0.5, 0, masses)
    masses[:] = 0.5, 0.5  # the caller's array is still the caller's
    assert release.masses.tolist() == [0.25, 0.75]
    with pytest.raises(ValueError, match="read-only"):
        release.masses[0] = 1.0


def test_a_described_release_is_held_to_its_statement_when_it_is_worked_out():
    class Coin:
        def distribution(self):
            return LossDistribution.from_laws([[0.9, 0.1], [0.1, 0.9]], math.log(9))

    loss = PrivacyLoss(1.0, 1e-6, release=Coin())
    with pytest.raises(InvalidValue, match="more than its release promises"):
        Ledger().record(loss, round=0, client=0)


@pytest.mark.parametrize("claimed", [PrivacyLoss(0.1, 1e-9), PrivacyLoss(9.5, 1e-5)])
def test_a_sampled_release_that_is_claimed_too_private_is_not_composed(claimed):
    release = SampledGaussian(0.5, 1.0)
    false = PrivacyLoss(claimed.epsilon, claimed.delta, per="example", release=release)
    true = PrivacyLoss(10.0, 1e-5, per="example", release=release)
    with pytest.raises(InvalidValue, match="more than its release promises"):
        compose([(true, 2), (false, 1)], delta=1e-4)
    assert compose([(true, 1)], delta=1e-5) <= 10


# Never below the decimal that was written


@given(WRITTEN)
def test_a_single_pure_epsilon_is_never_below_the_decimal_it_is_written_as(written):
    loss, ledger = PrivacyLoss(float(written)), Ledger()
    ledger.record(loss, round=0, client=0)
    for delta in (0.0, 1e-5):
        for name, figure in ledger.figures(delta).items():
            assert Decimal(repr(figure.epsilon)) >= written, name
    assert Decimal(repr(compose([(loss, 1)]))) >= written
    for digits in (1, 3, 6, 17):
        assert Decimal(format_epsilon(loss.epsilon, digits).replace(",", "")) >= written


@given(st.lists(WRITTEN, min_size=1, max_size=6))
def test_adaptive_rounds_never_add_up_below_their_decimals(written):
    """Three rounds of 10.2 are 30.6; as floats they are 30.599999999999998."""
    ledger = Ledger(adaptive=True)
    for number, epsilon in enumerate(written):
        ledger.record_many([(PrivacyLoss(float(epsilon)), 1)], round=number, clients=[0, 1])
    for figure in (ledger.epsilon(), ledger.epsilon_every_round()):
        assert Decimal(repr(figure)) >= sum(written)
        assert figure <= float(sum(written)) * (1 + 1e-14)


@given(st.floats(1e-3, 40.0))
def test_twice_and_half_an_epsilon_are_not_below_it(eps):
    written = Decimal(repr(eps))
    code = UnaryEncoding("rr", eps, cells=1, report="bits").loss_per_parameter
    assert Decimal(repr(code.epsilon)) >= 2 * written
    crossing = EmbeddingDP(eps).loss
    assert Decimal(repr(crossing.per_bit.epsilon)) >= written / 2
    assert Decimal(repr(crossing.per_vector(3).epsilon)) >= 3 * written / 2


@given(st.floats(1e-6, 300.0))
def test_the_bit_of_an_oue_code_is_not_stated_too_low(eps):
    stated = UnaryEncoding("oue", eps, cells=1).loss_per_bit.epsilon
    with localcontext(prec=60):
        exact = ((Decimal(eps).exp() + 1) / 2).ln()
        assert exact <= Decimal(stated) <= exact * (1 + Decimal("1e-15"))


@pytest.mark.parametrize(
    "number", [np.float64(0.1), np.float32(0.7), 1, 10**17 + 1, Decimal("0.1000000000000000001")]
)
def test_numbers_of_other_kinds_are_rounded_up_to_floats(number):
    loss = PrivacyLoss(number, np.float64(0.0))
    assert type(loss.epsilon) is float
    assert type(loss.delta) is float
    assert Decimal(str(number)) <= Decimal(repr(loss.epsilon)) < Decimal(str(number)) * 2
    assert compose([(loss, 1)]) == loss.epsilon


@given(st.floats(1e-300, 1.0))
def test_a_delta_is_shown_rounded_up(delta):
    shown = Decimal(format_delta(delta))
    assert Decimal(repr(delta)) <= shown <= Decimal(repr(delta)) * Decimal("1.00001")


def test_how_deltas_look():
    assert [format_delta(x) for x in (0.0, 1e-5, 0.01, 1.2345644e-5, 1.0)] == [
        "0", "1e-05", "0.01", "1.23457e-05", "1",
    ]  # fmt: skip
