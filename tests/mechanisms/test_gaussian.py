"""The Gaussian mechanism: its calibration, its clipping, its noise, and attempts to break it."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from dp_accounting.pld import privacy_loss_mechanism
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from fedveil.entropy import Entropy, Seeded
from fedveil.errors import InvalidValue
from fedveil.mechanisms import gaussian
from fedveil.mechanisms.gaussian import GaussianMechanism, clip_to_grid
from fedveil.privacy.gaussian_curve import analytic_sigma
from statistical_checks import ERROR_RATE, loss_at_least

Array = npt.NDArray[Any]
Sampler = Callable[[Array, Entropy], Array]

#: (eps, delta, sigma for sensitivity 1): bisection of Balle and Wang's theorem 8 in 700 digits.
KNOWN = [
    (1e-6, 1e-300, 36475988.4809531),
    (1e-6, 1e-5, 38021.98146874745),
    (1e-6, 0.9999999, 0.09386632424116369),
    (1e-3, 1e-12, 5412.302193843927),
    (0.1, 1e-5, 30.74956613197745),
    (0.5, 0.01, 3.1469130986066802),
    (1, 1e-5, 3.730631634815942),
    (1, 0.1, 1.0858777651918565),
    (4.8, 1e-6, 1.0158357881000308),
    (50, 0.01, 0.12460112363122812),
    (50, 0.001, 0.13412430797038183),
    (100, 1e-30, 0.14764248196644436),
    (1e4, 1e-300, 0.009161526577279082),
    (1e4, 0.99, 0.006955362219039968),
]


def log_delta(eps: float, mu: float) -> float:
    """ln of delta(eps) for noise of sensitivity / mu, by quadrature.

    delta = ∫ phi(z) (1 - e^(-mu (z - x))) dz over z > x = eps / mu - mu / 2.
    """
    x = eps / mu - mu / 2
    value, _ = integrate.quad(
        lambda u: math.exp(-x * u - u * u / 2) * -math.expm1(-mu * u),
        *(0, math.inf),
        epsabs=0,
        epsrel=1e-11,
        limit=500,
    )
    return -x * x / 2 - math.log(2 * math.pi) / 2 + math.log(value)


@pytest.mark.parametrize(("eps", "delta", "sigma"), KNOWN)
def test_sigma_is_the_analytic_one(eps: float, delta: float, sigma: float) -> None:
    assert analytic_sigma(eps, delta, 1.0) == pytest.approx(sigma, rel=1e-12)
    assert analytic_sigma(eps, delta, 3.0) == pytest.approx(3 * sigma, rel=1e-12)


@given(
    st.floats(-6, 4).map(lambda e: 10.0**e),
    st.one_of(st.floats(-300, -0.4).map(lambda e: 10.0**e), st.floats(0.4, 0.6)),
)
def test_sigma_is_just_enough_by_quadrature(eps: float, delta: float) -> None:
    sigma = analytic_sigma(eps, delta, 1.0)
    assert log_delta(eps, 1 / (sigma * (1 + 1e-8))) <= math.log(delta)
    assert log_delta(eps, 1 / (sigma * (1 - 1e-8))) > math.log(delta)


@pytest.mark.parametrize("eps", [0.1, 1.0, 10.0, 50.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.01, 0.3])
def test_sigma_agrees_with_dp_accounting(eps: float, delta: float) -> None:
    sigma = GaussianMechanism(eps, delta, clip=1.5).sigma
    theirs = privacy_loss_mechanism.GaussianPrivacyLoss(sigma, sensitivity=3.0)
    assert theirs.get_delta_for_epsilon(eps) == pytest.approx(delta, rel=1e-9)


@given(st.floats(-20, 12), st.floats(-300, -1e-9), st.floats(0.001, 2))
def test_sigma_falls_with_eps_and_delta(log_eps: float, log_delta: float, more: float) -> None:
    eps, delta = 10**log_eps, 10**log_delta
    sigma = analytic_sigma(eps, delta, 1.0)
    assert 0 < analytic_sigma(eps * (1 + more), delta, 1.0) <= sigma < math.inf
    assert analytic_sigma(eps, delta ** (1 / (1 + more)), 1.0) <= sigma


def test_what_it_states() -> None:
    mechanism = GaussianMechanism(50, 0.01, 1.0)
    assert mechanism.sigma == pytest.approx(2 * 0.12460112363122812)
    loss = mechanism.loss
    assert (loss.epsilon, loss.delta, loss.per, loss.neighbours) == (50, 0.01, "update", "replace")
    assert loss.release is not None
    assert loss.release.ratio == pytest.approx(0.12460112363122812)  # type: ignore[union-attr]
    assert GaussianMechanism(50, 0.01, 1.0, noise="continuous").loss.epsilon == math.inf


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((0, 0.1, 1), r"eps = 0 is outside \[7\.8\d+e-31, 1\.2\d+e\+30\]"),
        ((1, 0, 1), r"delta = 0 is outside \(0, 1\)"),
        ((1, 1, 1), r"delta = 1 is outside \(0, 1\)"),
        ((1, 0.1, -2), "clip = -2 is outside"),
        ((1, 0.1, math.nan), "clip = nan is not finite"),
        (("1", 0.1, 1), "eps = '1' is not a number"),
        ((1, 0.1, 1, "gamma"), "noise = 'gamma' is not one of discrete, continuous"),
        ((1e12, 0.1, 1), r"clip = 1 need discrete noise of sigma = 1\.4\d+e-06, which is outside"),
        ((1e-30, 1e-300, 1e10), r"sigma = 6\.\d+e\+41, which is outside \[38147, 1\.2\d+e\+30\]"),
    ],
)
def test_bad_arguments_are_named(arguments: Any, sentence: str) -> None:
    with pytest.raises(InvalidValue, match=sentence):
        GaussianMechanism(*arguments)


@pytest.mark.parametrize("noise", ["discrete", "continuous"])
@pytest.mark.parametrize(
    ("update", "sentence"),
    [
        (np.array([1.0, np.nan]), "update holds NaN or infinity"),
        (np.array([1.0, -np.inf], np.float32), "update holds NaN or infinity"),
        (np.zeros((2, 2)), r"update has shape \(2, 2\)"),
        (np.zeros(2, complex), "update has dtype complex128"),
        (np.zeros(2, np.longdouble), r"update has dtype float\d+, float64 is the widest"),
    ],
)
def test_what_cannot_be_reported_is_refused(noise: Any, update: Array, sentence: str) -> None:
    with pytest.raises(InvalidValue, match=sentence):
        GaussianMechanism(1, 1e-5, 1.0, noise).privatize(update, Seeded(0))


# Clipping

CLIPS = st.sampled_from([1.0, 0.3, 1e-20, 7e25, 2.0**-100])
ENTRIES = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.floats(-2, 2),
    st.sampled_from([0.0, -0.0, 5e-324, -5e-324, 1.7e308, 1e-300, 2.0**-29, 1.0, 0.1, 0.6, 0.8]),
)


def squared_norm(values: Array, unit: float = 1.0) -> Fraction:
    return (
        sum((Fraction(value) ** 2 for value in values.tolist()), Fraction()) * Fraction(unit) ** 2
    )


@given(
    st.lists(ENTRIES, max_size=12), CLIPS, st.integers(0, 29), st.sampled_from(["f4", "f8"]),
    st.booleans(),
)  # fmt: skip
def test_clipping_holds_in_exact_arithmetic(
    entries: list[float], clip: float, bits: int, dtype: str, near: bool
) -> None:
    with np.errstate(over="ignore"):
        vector = np.array(entries, dtype)
    vector[np.isinf(vector)] = 3e38
    if near:
        vector = np.ldexp(np.sign(vector), -2).astype(dtype) * np.array(clip, dtype)
    step = math.ldexp(1.0, math.frexp(clip)[1] - 1 - bits)
    multiples = clip_to_grid(vector, clip, step)
    assert squared_norm(multiples, step) <= Fraction(clip) ** 2
    exact_norm2 = squared_norm(vector)
    for value, multiple in zip(vector.tolist(), multiples.tolist(), strict=True):
        exact = Fraction(value) / Fraction(step)
        assert abs(multiple) <= abs(exact)
        assert multiple == 0 or (multiple > 0) == (value > 0)
        if exact_norm2 < Fraction(clip) ** 2 * Fraction(999_999, 1_000_000):
            assert multiple == math.trunc(exact)
        else:
            norm = Fraction(math.isqrt(math.ceil(exact_norm2 * 4**1000)), 2**1000)
            shrunk = abs(exact) * Fraction(clip) / norm
            assert shrunk * (1 - Fraction(1, 10**6)) - 1 < abs(multiple)
            assert abs(multiple) <= shrunk * (1 + Fraction(1, 10**6))


def test_a_norm_that_floating_point_cannot_see_is_cut() -> None:
    """|u|² = 1 + 2^-58: its norm rounds to 1, and so would pass a floating-point comparison."""
    vector = np.array([1.0, 2.0**-29])
    assert float(np.linalg.norm(vector)) == 1.0
    multiples = clip_to_grid(vector, 1.0, 2.0**-29)
    assert multiples.tolist() == [2**29 - 1, 0]
    assert squared_norm(vector) > 1 >= squared_norm(multiples, 2.0**-29)


def test_known_clipping() -> None:
    assert clip_to_grid(np.array([3.0, -4.0]), 1.0, 0.125).tolist() == [4, -6]
    assert clip_to_grid(np.array([0.3, -0.4]), 1.0, 0.125).tolist() == [2, -3]
    assert clip_to_grid(np.array([1e300, -1e-300, 0]), 1.0, 0.125).tolist() == [8, 0, 0]
    assert clip_to_grid(np.array([5e-324]), 1.0, 0.125).tolist() == [0]
    assert clip_to_grid(np.zeros(0), 1.0, 0.125).tolist() == []


@given(st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=40), st.sampled_from(["f4", "f8"]))
def test_compiled_and_numpy_loops_agree(entries: list[float], dtype: str) -> None:
    pytest.importorskip("numba")
    with np.errstate(over="ignore"):
        vector = np.clip(np.array(entries), -1e38, 1e38).astype(dtype)
    squares: Any = gaussian.sum_of_squares
    rounded: Any = gaussian._round_to_grid
    for scale in (1.0, 1 / 3e38, 2.0**-140):
        ours, theirs = np.zeros((2, gaussian._LANES))
        assert squares(vector, scale, ours) == squares.numpy_path(vector, scale, theirs)
    ours, theirs = np.empty((2, len(vector)), np.int64)
    factor = 2.0**28 / max(1.0, float(abs(vector).max()))
    assert rounded(vector, factor, ours) == rounded.numpy_path(vector, factor, theirs)
    assert ours.tobytes() == theirs.tobytes()


# The grid and what is released on it


@given(st.floats(-3, 5), st.floats(-20, -0.1), st.floats(-25, 25), st.floats(0, 9.5))
def test_the_grid_is_what_the_guarantee_needs(
    log_eps: float, log_delta: float, log_clip: float, log_dimension: float
) -> None:
    dimension = int(10**log_dimension)
    mechanism = GaussianMechanism(10**log_eps, 10**log_delta, 10**log_clip)
    grid = mechanism.grid(dimension)
    assert math.frexp(grid.step)[0] == 0.5
    assert grid.step <= mechanism.sigma / 1024
    fine = mechanism.clip / (16 * math.sqrt(max(dimension, 1)))
    assert grid.step <= max(fine, mechanism.sigma / 2**18)
    assert grid.step > min(fine, mechanism.sigma / 1024) / 2
    needed = (Fraction(mechanism.sigma) / Fraction(grid.step)) ** 2
    assert needed * (1 + Fraction(1, 2**30)) + 16 <= grid.noise.variance
    assert grid.noise.variance <= needed * (1 + Fraction(2, 10**5))
    assert mechanism.clip / grid.step <= 2**30


@pytest.mark.parametrize(
    ("eps", "delta", "clip"),
    [(1, 1e-5, 1.0), (1, 0.1, 0.5), (50, 0.01, 1.0), (0.1, 1e-9, 4.0), (200, 1e-3, 1.0)],
)
def test_the_discrete_noise_is_private_as_stated(eps: float, delta: float, clip: float) -> None:
    """The hockey-stick divergence of two inputs 2 · clip apart, summed over the outputs."""
    mechanism = GaussianMechanism(eps, delta, clip)
    grid = mechanism.grid(1)
    shift = math.floor(2 * clip / grid.step)
    x = np.arange(-40 * math.isqrt(grid.noise.variance), 60 * math.isqrt(grid.noise.variance))
    logs = -(x.astype(float) ** 2) / (2 * grid.noise.variance)
    other = -((x - shift).astype(float) ** 2) / (2 * grid.noise.variance)
    terms = np.exp(logs) * -np.expm1(np.minimum(0, eps + other - logs))
    exact = math.fsum(terms) / math.fsum(np.exp(logs))
    assert 0.99 * delta < exact <= delta


def test_the_smoothing_is_what_the_proof_says() -> None:
    """Σ exp(-(n - x)² / 32) is the same for all x to within a factor of 1 ± 2e-137."""
    with localcontext() as context:
        context.prec = 180
        sums = [
            sum((-((n - Decimal(x)) ** 2) / 32).exp() for n in range(-125, 126))
            for x in ("0", "0.25", "0.5", "0.123")
        ]
        assert max(sums) / min(sums) - 1 < Decimal("4e-137")
        assert max(sums) / min(sums) - 1 > Decimal("1e-138")  # and the bound is not idle


@pytest.mark.parametrize(
    ("given_type", "type_"), [("f2", "f4"), ("f4", "f4"), (">f4", "f4"), ("f8", "f8"), ("i8", "f8")]
)
def test_reports_are_the_clipped_update_and_the_noise(given_type: str, type_: str) -> None:
    mechanism = GaussianMechanism(5, 1e-5, 2.0)
    update = np.linspace(-3, 3, 1000).astype(given_type)
    grid = mechanism.grid(1000)
    report = mechanism.privatize(update, Seeded(1))
    assert report.dtype == np.dtype(type_)
    clipped = clip_to_grid(update.astype(type_), 2.0, grid.step)
    expected = clipped + grid.noise.draw(1000, Seeded(1))
    assert (report.astype(np.float64) / grid.step).tolist() == expected.tolist()
    assert mechanism.multiples(update, Seeded(1)).tolist() == expected.tolist()
    strided = np.repeat(update, 2)[::2]
    assert mechanism.privatize(strided, Seeded(1)).tobytes() == report.tobytes()


@pytest.mark.parametrize("noise", ["discrete", "continuous"])
def test_none_and_one_coordinate(noise: Any) -> None:
    mechanism = GaussianMechanism(1, 1e-5, 1.0, noise)
    assert mechanism.privatize(np.zeros(0, np.float32), Seeded(0)).shape == (0,)
    reports = [mechanism.privatize(np.array([9.0]), Seeded(i))[0] for i in range(2000)]
    z = (np.mean(reports) - 1.0) / mechanism.sigma * 2000**0.5
    assert abs(z) < stats.norm.isf(ERROR_RATE / 2)


def test_continuous_noise_is_normal_and_clipped() -> None:
    mechanism = GaussianMechanism(1, 1e-5, 0.5, noise="continuous")
    report = mechanism.privatize(np.zeros(200_001), Seeded(2)) / mechanism.sigma
    assert stats.kstest(report, "norm").pvalue > ERROR_RATE
    assert abs(np.corrcoef(report[:100_000], report[100_001:])[0, 1]) < 5 / 100_000**0.5
    for update in (np.full(4, 1e300), np.full(4, 1e-300), np.zeros(4), np.array([3.0, 4.0, 0, 0])):
        kept = mechanism.privatize(update, Seeded(3)) - mechanism.privatize(0 * update, Seeded(3))
        norm = math.hypot(*update.tolist()) if update[0] < 1e200 else 2e300
        np.testing.assert_allclose(kept, update * min(1, 0.5 / max(norm, 0.5)), atol=1e-14)


# Attempts to break it


def naive(update: Array, sigma: float, entropy: Entropy) -> Array:
    """Add a normal number in floating point, as a simple implementation does."""
    noised: Array = update + sigma * entropy.generator().standard_normal(len(update))
    return noised


def low_bits_say_zero(report: Array) -> bool:
    """Mironov's attack on the inputs 0 and 2^-6 (in every coordinate).

    2^-6 + noise is a multiple of 2^-59: where it is small, the noise was near -2^-6, and the
    subtraction is exact. 0 + noise keeps all the bits of a small noise: what is no multiple of
    2^-59 was made from 0.
    """
    return bool(np.any(np.ldexp(report, 59) % 1 != 0))


@pytest.mark.parametrize("which", ["naive", "continuous", "discrete"])
def test_low_bits_break_floating_point_noise_and_not_ours(which: str) -> None:
    eps, delta, trials = 1.0, 1e-5, 200
    zero, other = np.zeros(4096), np.full(4096, 2.0**-6)  # both of norm at most 1
    sigma = GaussianMechanism(eps, delta, 1.0).sigma
    samplers: dict[str, Sampler] = {
        "naive": lambda update, entropy: naive(update, sigma, entropy),
        "continuous": GaussianMechanism(eps, delta, 1.0, "continuous").privatize,
        "discrete": GaussianMechanism(eps, delta, 1.0).privatize,
    }
    named = {
        name: sum(
            low_bits_say_zero(samplers[which](update, Seeded(i, name))) for i in range(trials)
        )
        for name, update in (("zero", zero), ("other", other))
    }
    assert named["other"] == 0  # the attack is never wrong
    if which == "discrete":
        assert named["zero"] == 0
    else:  # (eps, delta) allows at most e^eps · 0 + delta
        success = stats.binomtest(named["zero"], trials).proportion_ci(0.999999).low
        assert success > 0.6


def epsilon_at_least(
    mechanism: GaussianMechanism, a: Array, b: Array, entropy: Entropy, trials: int = 12_000
) -> float:
    """A lower bound on epsilon, right with probability 0.999: guess a or b from reports.

    The test is the most powerful one, <report, a - b> against the loss eps, decided in advance:
    Pr[yes | a] <= e^eps Pr[yes | b] + delta.
    """
    direction = (a - b) / np.linalg.norm(a - b)
    limit = mechanism.eps * mechanism.sigma**2 / (2 * mechanism.clip)
    yes = [
        sum(float(mechanism.privatize(update, entropy) @ direction) > limit for _ in range(trials))
        for update in (a, b)
    ]
    return loss_at_least(yes[0], yes[1], trials, mechanism.delta)


@pytest.mark.parametrize("dimension", [1, 20])
def test_a_guessing_game_stays_below_the_claim(dimension: int) -> None:
    """The updates are far longer than the clip. Those of its length have the same reports."""
    mechanism = GaussianMechanism(1.0, 0.1, 1.0)
    a = np.sign(Seeded(4).generator().standard_normal(dimension)) / dimension**0.5
    assert 0.6 < epsilon_at_least(mechanism, 1e6 * a, -1e6 * a, Seeded(5, dimension)) < 1.0
    step = mechanism.grid(dimension).step
    for update in (a, -a):
        near, far = (mechanism.privatize(x, Seeded(5, "near")) for x in (update, 1e6 * update))
        assert np.abs(near - far).max() <= step


def test_a_guessing_game_finds_planted_bugs(monkeypatch: pytest.MonkeyPatch) -> None:
    a = np.array([1.0])
    halved = GaussianMechanism(1.0, 0.1, 1.0)
    halved.sigma /= 2  # calibrated to the clipping norm instead of twice that
    assert epsilon_at_least(halved, a, -a, Seeded(6), 4000) > 1.5
    unclipped = GaussianMechanism(1.0, 0.1, 1.0)
    monkeypatch.setattr(
        gaussian, "clipping_to_grid", lambda v, clip, step: lambda part: np.int64(v[part] / step)
    )
    assert epsilon_at_least(unclipped, 2 * a, -2 * a, Seeded(7), 4000) > 1.5


def test_the_same_seed_gives_the_same_report() -> None:
    mechanism = GaussianMechanism(1, 1e-5, 1.0)
    update = np.linspace(-1, 1, 40_000, dtype=np.float32)
    first = mechanism.privatize(update, Seeded(8))
    assert first.tobytes() == mechanism.privatize(update, Seeded(8)).tobytes()
    assert first.tobytes() != mechanism.privatize(update, Seeded(9)).tobytes()


@pytest.mark.parametrize("noise", ["discrete", "continuous"])
def test_a_likelihood_is_the_densitys_at_the_distance_from_the_clipped_update(noise: Any) -> None:
    mechanism = GaussianMechanism(2.0, 1e-5, 0.5, noise)
    output, long = np.array([0.25, -1.0, 2.0]), np.array([3.0, 0.0, -4.0])
    near = mechanism.log_likelihood(output, output / 8)
    far = mechanism.log_likelihood(output, long)
    squares = [float(np.sum((output - kept) ** 2)) for kept in (output / 8, long / 10)]
    expected = (squares[1] - squares[0]) / (2 * mechanism.sigma**2)
    assert near - far == pytest.approx(expected, rel=0.01)
