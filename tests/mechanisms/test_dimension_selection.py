"""SignDS: the plan against independent computations, the law of what is selected, its loss."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import fields
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import combinations, pairwise, product
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, chisquare

from fedveil.entropy import Seeded
from fedveil.errors import FedveilWarning, InvalidValue
from fedveil.mechanisms.signds import top_k
from fedveil.mechanisms.signds.dimension_selection import Selection, SignDS
from fedveil.mechanisms.signds.top_k import TopSet, flat_vector
from fedveil.privacy import audit
from scripted_entropy import Scripted
from statistical_checks import ERROR_RATE, loss_at_least


def e_to(x: float, digits: int = 120) -> Fraction:
    with localcontext() as context:
        context.prec = digits
        return Fraction(Decimal(x).exp())


# --- the plan, against enumeration -----------------------------------------------------------


def enumerated_laws(dim: int, topk_size: int, h: int, eps: float) -> list[list[Fraction]]:
    """Pr[v] for every threshold 1..h, by adding up all subsets: the definition itself."""
    inside = [sum(i < topk_size for i in subset) for subset in combinations(range(dim), h)]
    e = e_to(eps)
    laws = []
    for threshold in range(1, h + 1):
        weights = [e if v >= threshold else Fraction(1) for v in inside]
        total = sum(weights)
        law = [Fraction(0)] * (h + 1)
        for v, weight in zip(inside, weights, strict=True):
            law[v] += weight / total
        laws.append(law)
    return laws


def enumerated_best(laws: list[list[Fraction]]) -> tuple[int, Fraction]:
    """The smallest threshold with the largest E[v]/h, and that ratio."""
    h = len(laws)
    ratios = [sum(v * p for v, p in enumerate(law)) / h for law in laws]
    best = max(ratios)
    return 1 + ratios.index(best), best


@pytest.mark.parametrize("dim", [1, 2, 5, 8, 11])
@pytest.mark.parametrize("k", [0.1, 0.25, 0.5, 1.0])
@pytest.mark.parametrize("eps", [0.01, 1.0, 4.0, 100.0])
def test_every_size_and_threshold_is_the_best_by_enumeration(
    dim: int, k: float, eps: float
) -> None:
    topk_size = max(1, int(k * dim))
    best = {}
    for h in range(1, dim + 1):
        laws = enumerated_laws(dim, topk_size, h, eps)
        best[h] = enumerated_best(laws)
        plan = SignDS(k, eps, dim_out=h).plan(dim)
        assert (plan.topk, plan.dim_out) == (topk_size, h)
        assert (plan.threshold, plan.expected_ratio) == (best[h][0], float(best[h][1]))
        law = laws[plan.threshold - 1]
        assert plan.law.pmf().shape == (h + 1,)
        assert plan.law.pmf() == pytest.approx([float(p) for p in law], rel=1e-15, abs=0)

    for ratio in (0.2, 0.5, 0.6, 0.75, 1.0):
        good = [h for h in best if best[h][1] >= Fraction(ratio)]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            plan = SignDS(k, eps, ratio).plan(dim)
        assert plan.dim_out == max(good, default=1)
        assert bool(caught) == (not good)


# --- the plan, at full size ------------------------------------------------------------------


def exact_best(dim: int, topk_size: int, h: int, e: Fraction) -> tuple[int, Fraction]:
    """The best threshold and its E[v]/h from binomial coefficients, for h <= topk <= dim - h."""
    weights = [math.comb(topk_size, v) * math.comb(dim - topk_size, h - v) for v in range(h + 1)]
    n, m = e.numerator, e.denominator
    below, below_v = 0, 0
    above, above_v = sum(weights), sum(v * w for v, w in enumerate(weights))
    best = (0, Fraction(-1))
    for threshold in range(h + 1):
        if threshold:
            ratio = Fraction(m * below_v + n * above_v, (m * below + n * above) * h)
            if ratio > best[1]:
                best = (threshold, ratio)
        below, below_v = below + weights[threshold], below_v + threshold * weights[threshold]
        above, above_v = above - weights[threshold], above_v - threshold * weights[threshold]
    return best


def test_the_sources_lenet_selects_238_with_threshold_143() -> None:
    plan = SignDS(k=0.2, eps=100, thr_ratio=0.6).plan(66_521)
    assert (plan.topk, plan.dim_out, plan.threshold) == (13_304, 238, 143)
    e = e_to(100.0)
    by_hand = {h: exact_best(66_521, 13_304, h, e) for h in range(222, 262)}
    assert by_hand[238] == (143, pytest.approx(plan.expected_ratio, rel=1e-15))
    good = [h for h, (_, ratio) in by_hand.items() if ratio >= Fraction(0.6)]
    assert max(good) == 238


@pytest.mark.parametrize(("dim", "k", "eps"), [(400, 0.25, 3.0), (5000, 0.01, 20.0)])
def test_the_best_ratio_never_rises_with_the_number_of_output_dimensions(
    dim: int, k: float, eps: float
) -> None:
    # what lets the search halve its range, from binomial coefficients
    ratios = [exact_best(dim, int(k * dim), h, e_to(eps))[1] for h in range(1, int(k * dim) + 1)]
    assert all(a > b for a, b in pairwise(ratios))
    for goal in (0.5, 0.6, 0.8):
        plan = SignDS(k, eps, goal).plan(dim)
        assert plan.dim_out == max(h for h, ratio in enumerate(ratios, 1) if ratio >= goal)


def test_a_hundred_million_dimensions_are_planned_to_the_last_digit() -> None:
    plan = SignDS(k=0.01, eps=100).plan(10**8)
    threshold, ratio = exact_best(10**8, 10**6, plan.dim_out, e_to(100.0))
    assert plan.threshold == threshold
    assert plan.expected_ratio == pytest.approx(float(ratio), rel=1e-15)
    assert exact_best(10**8, 10**6, plan.dim_out + 1, e_to(100.0))[1] < Fraction(0.6)
    assert math.fsum(plan.law.pmf()) == pytest.approx(1, abs=1e-14)
    assert (plan.law.pmf() > 0).all()


def test_a_threshold_that_rounding_would_lose_is_found() -> None:
    # E[v] = 1e-16 or so: above 0, so that the best threshold is 1
    plan = SignDS(k=1e-16, eps=0.1, dim_out=1).plan(10**16)
    assert (plan.topk, plan.threshold) == (1, 1)
    assert plan.expected_ratio == pytest.approx(1e-16 * math.exp(0.1), rel=1e-12)


def test_where_one_dimension_misses_the_ratio_the_warning_says_what_to_expect() -> None:
    mechanism = SignDS(k=0.01, eps=0.5)
    with pytest.warns(FedveilWarning, match=r"top-k dimensions is 0\.01638"):
        plan = mechanism.plan(10_000)
    # one dimension is an inlier with probability k e^eps / (1 - k + k e^eps)
    expected = 0.01 * math.exp(0.5) / (0.99 + 0.01 * math.exp(0.5))
    assert (plan.dim_out, plan.threshold) == (1, 1)
    assert plan.expected_ratio == pytest.approx(expected, rel=1e-14)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert mechanism.plan(10_000) is plan  # cached, and warned of once


def test_the_number_of_output_dimensions_is_used_as_given() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert SignDS(k=0.01, eps=0.1, dim_out=50).plan(1000).dim_out == 50
        assert SignDS(dim_out=7).plan(7).dim_out == 7
    with pytest.raises(InvalidValue, match=r"dim_out = 8 is outside \[0, 7\]"):
        SignDS(dim_out=8).plan(7)


def test_topk_is_the_floor_and_at_least_one() -> None:
    assert SignDS(k=0.01, dim_out=1).plan(99).topk == 1
    assert SignDS(k=0.01, dim_out=1).plan(199).topk == 1
    assert SignDS(k=0.01, dim_out=1).plan(201).topk == 2


@pytest.mark.parametrize(("k", "dim"), [(0.29, 100), (0.57, 100), (0.58, 50), (0.036, 750)])
def test_the_top_k_set_is_as_large_as_the_decimal_says(k: float, dim: int) -> None:
    assert math.floor(k * dim) + 1 == round(k * dim) == SignDS(k=k, dim_out=1).plan(dim).topk


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"k": 0.0}, r"k = 0.0 is outside \(0, 1\]"),
        ({"k": 1.1}, "k = 1.1"),
        ({"k": math.nan}, "k = nan"),
        ({"eps": 0}, "eps = 0"),
        ({"eps": math.inf}, "eps = inf"),
        ({"thr_ratio": 0}, "thr_ratio = 0"),
        ({"thr_ratio": 1.01}, "thr_ratio = 1.01"),
        ({"dim_out": -1}, "dim_out = -1"),
        ({"dim_out": 2.0}, "dim_out = 2.0"),
    ],
)
def test_a_wrong_setting_is_refused(arguments: dict[str, object], sentence: str) -> None:
    with pytest.raises(InvalidValue, match=sentence):
        SignDS(**arguments)  # type: ignore[arg-type]


# --- what is selected: the whole law ---------------------------------------------------------


def p_value(counts: Counter[object], law: dict[object, Fraction], trials: int) -> float:
    """Chi-square of the counts against the law; what is not in the law must not occur."""
    assert set(counts) <= set(law)
    expected = [float(p) * trials for p in law.values()]
    return float(chisquare([counts[outcome] for outcome in law], expected).pvalue)


@pytest.mark.parametrize(
    ("update", "top"),
    [
        # sign -> the top-k set, worked by hand; ties go to the lowest index, -0.0 equals 0.0
        ([0.4, 0.1, -0.2, 0.3, 0.5, -0.3, 0.0], {1: {4, 0}, -1: {5, 2}}),
        ([0.0, -0.0, 0.0, 0.0, -0.0, 0.0, 0.0], {1: {0, 1}, -1: {0, 1}}),
        ([-1.0, -0.0, -1.0, 0.0, -1.0, -1.0, -2.0], {1: {1, 3}, -1: {6, 0}}),
    ],
)
def test_a_selection_has_exactly_the_stated_probability(
    update: list[float], top: dict[int, set[int]]
) -> None:
    mechanism = SignDS(k=0.3, eps=1.3, dim_out=3)
    vector = np.array(update, np.float32)
    e = e_to(1.3)
    weights = {
        (sign, subset): e if len(set(subset) & top[sign]) >= mechanism.plan(7).threshold else 1
        for sign in (1, -1)
        for subset in combinations(range(7), 3)
    }
    total = sum(weights.values())
    law = {outcome: Fraction(weight) / total for outcome, weight in weights.items()}

    trials = 4000
    entropy = Seeded(1, "law")
    counts: Counter[object] = Counter()
    for _ in range(trials):
        selection = mechanism.select(vector, entropy)
        counts[selection.sign, tuple(selection.indices.tolist())] += 1
    assert p_value(counts, law, trials) > ERROR_RATE


@pytest.mark.parametrize("eps", [1e-9, 0.3, 5.0, 100.0])
def test_the_number_of_inliers_has_its_exact_law(eps: float) -> None:
    mechanism = SignDS(k=0.25, eps=eps, dim_out=8)
    plan = mechanism.plan(60)
    trials = 300_000
    drawn = plan.law.sampler.draw(trials, Seeded(2, "inliers"))
    counts = np.bincount(drawn, minlength=9)
    assert len(counts) == 9
    common = plan.law.pmf() * trials > 5
    rare = [counts[~common].sum()], [plan.law.pmf()[~common].sum() * trials]
    assert binomtest(int(rare[0][0]), trials, min(rare[1][0] / trials, 1)).pvalue > ERROR_RATE
    observed, expected = counts[common], plan.law.pmf()[common]
    if len(observed) > 1:
        test = chisquare(observed, expected / expected.sum() * observed.sum())
        assert test.pvalue > ERROR_RATE


@pytest.mark.parametrize("eps", [1e-9, 3.0, 100.0])
def test_a_draw_that_64_bits_do_not_decide_reads_on(eps: float) -> None:
    """Uniform reals just below and above each cumulative probability, at 320 bits."""
    plan = SignDS(k=0.25, eps=eps, dim_out=8).plan(60)
    weights = [
        math.comb(15, v) * math.comb(45, 8 - v) * (e_to(eps, 300) if v >= plan.threshold else 1)
        for v in range(9)
    ]
    for v in range(8):
        below = Fraction(sum(weights[: v + 1])) / sum(weights)
        floor = int(below * 2**320)
        for offset, expected in ((-1, v), (1, v + 1)):
            assert plan.law.draw(Scripted.real(floor + offset, 5)) == expected


def test_indices_are_uniform_inside_and_outside_at_full_size() -> None:
    dim, trials = 20_000, 400
    mechanism = SignDS(k=0.2, eps=100)
    plan = mechanism.plan(dim)
    update = Seeded(3, "update").generator().standard_normal(dim).astype(np.float32)
    rank = np.empty((2, dim), np.int64)
    for row, sign in enumerate((1, -1)):
        rank[row, np.lexsort((np.arange(dim), -sign * update))] = np.arange(dim)
    entropy = Seeded(4, "full size")
    inside, outside, inliers, pluses = Counter(), Counter(), [], 0
    for _ in range(trials):
        selection = mechanism.select(update, entropy)
        assert len(selection.indices) == plan.dim_out
        assert (np.diff(selection.indices) > 0).all()
        ranks = rank[0 if selection.sign == 1 else 1, selection.indices]
        member = ranks < plan.topk
        inside.update((ranks[member] * 20 // plan.topk).tolist())
        outside.update(((ranks[~member] - plan.topk) * 20 // (dim - plan.topk)).tolist())
        inliers.append(int(member.sum()))
        pluses += selection.sign == 1
    for counts in (inside, outside):
        assert chisquare([counts[cell] for cell in range(20)]).pvalue > ERROR_RATE
    assert binomtest(pluses, trials).pvalue > ERROR_RATE
    values = np.arange(plan.dim_out + 1)
    mean = plan.law.pmf() @ values
    deviation = math.sqrt(plan.law.pmf() @ (values - mean) ** 2 / trials)
    assert abs(np.mean(inliers) - mean) < 4.9 * deviation
    assert mean / plan.dim_out == pytest.approx(plan.expected_ratio, rel=1e-12)


# --- the top-k set ---------------------------------------------------------------------------

finite = st.floats(-4, 4, width=32) | st.sampled_from(
    [0.0, -0.0, 1.0, -1.0, 1e-45, -1e-45, 3e38, -3e38, 1.0000001]
)


@given(st.lists(finite, min_size=1, max_size=700), st.data())
def test_the_set_is_that_of_a_stable_sort(values: list[float], data: st.DataObject) -> None:
    size = data.draw(st.integers(1, len(values)))
    sign = data.draw(st.sampled_from([1, -1]))
    dtype = data.draw(st.sampled_from([np.float32, np.float64]))
    vector = np.array(values, dtype)
    order = np.argsort(-(sign * vector), kind="stable")
    few = data.draw(st.sampled_from([0, top_k._FEW]))  # either search, whatever is left to search
    with mock.patch.object(top_k, "_FEW", few):
        top = TopSet(flat_vector(vector), size, sign)
    members = top.members(np.arange(size))
    others = top.others(np.arange(len(values) - size))
    assert sorted(members) == sorted(order[:size])
    assert sorted(others) == sorted(order[size:])
    exact = sum(abs(Fraction(float(vector[i]))) for i in order[:size]) / size
    assert top.mean_magnitude == pytest.approx(float(exact), rel=1e-12)
    some = np.flatnonzero(np.arange(size) % 3 == 1)
    assert np.array_equal(top.members(some), members[some])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("special", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, 300, 999])
@pytest.mark.parametrize("length", [1000, top_k._FEW + 1])
def test_a_value_that_is_not_finite_is_refused(
    dtype: type, special: float, at: int, length: int
) -> None:
    vector = np.linspace(-1, 1, length, dtype=dtype)
    vector[at] = special
    with pytest.raises(InvalidValue, match="NaN or infinity"):
        SignDS(k=0.1).select(vector, Seeded(0))


def test_the_largest_finite_values_are_no_exception() -> None:
    for dtype, length in product((np.float32, np.float64), (1000, top_k._FEW + 1)):
        vector = np.full(length, np.finfo(dtype).max)
        selection = SignDS(k=0.25, dim_out=20).select(vector, Seeded(0))
        assert selection.magnitude == (np.inf if dtype == np.float64 else np.finfo(dtype).max)


@pytest.mark.parametrize("update", [[], [[1.0]], 1.0, ["a"], [1j], [True, False]])
def test_what_is_no_vector_is_refused(update: object) -> None:
    with pytest.raises(InvalidValue, match="update has"):
        SignDS().select(update, Seeded(0))  # type: ignore[arg-type]


def test_how_a_vector_is_stored_changes_nothing() -> None:
    base = Seeded(5).generator().integers(-50, 50, top_k._FEW + 1).astype(np.float32)
    mechanism = SignDS(k=0.1, eps=20)
    unaligned = np.frombuffer(b"x" + base.tobytes(), np.uint8)[1:].view(np.float32)
    assert not unaligned.flags.aligned
    frozen = base.copy()
    frozen.flags.writeable = False
    forms = [
        base, base.astype(np.float64), base.astype(np.int16), base.astype(np.float16),
        base.astype(">f4"), base.repeat(2)[::2], base.tolist(), unaligned, frozen,
    ]  # fmt: skip
    selections = [mechanism.select(form, Seeded(6)) for form in forms]
    for selection in selections:
        assert np.array_equal(selection.indices, selections[0].indices)
        assert (selection.sign, selection.magnitude) == (
            selections[0].sign,
            selections[0].magnitude,
        )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_numpy_path_gives_the_same_bytes(dtype: type, monkeypatch: pytest.MonkeyPatch) -> None:
    if not hasattr(top_k._count_rows, "numpy_path"):
        pytest.skip("numba is not installed: there is one path")
    generator = Seeded(7).generator()
    dense = generator.standard_normal(5000).astype(dtype) * 1e-3
    sparse = np.where(generator.random(5000) < 0.9, dtype(-0.0), dense)
    same_digit = (1 + generator.random(5000) * 1e-4).astype(dtype)
    mechanism = SignDS(k=0.2, eps=30)

    def drawn_again() -> list[tuple[bytes, int, float]]:
        entropy = Seeded(8)
        drawn = [mechanism.select(v, entropy) for v in (dense, sparse, same_digit) for _ in "1234"]
        return [(s.indices.tobytes(), s.sign, s.magnitude) for s in drawn]

    compiled = drawn_again()
    monkeypatch.setattr(top_k, "HAVE_NUMBA", False)
    for name in ("_count_rows", "_locate"):
        monkeypatch.setattr(top_k, name, getattr(top_k, name).numpy_path)
    assert drawn_again() == compiled


# --- the loss --------------------------------------------------------------------------------


def test_the_private_magnitude_is_no_field_of_a_selection() -> None:
    selection = SignDS(dim_out=1).select([3.0, 4.0], Seeded(0))
    assert [field.name for field in fields(selection)] == ["indices", "sign"]
    assert "magnitude" not in repr(selection)
    assert selection.magnitude in (3.0, 4.0)


def test_the_public_audit_does_not_refute_the_claim_for_updates_of_other_sizes() -> None:
    left, right = np.arange(12.0), 1e6 * np.arange(12.0)[::-1]
    mechanism = SignDS(k=0.25, eps=3.0, dim_out=2)
    bound = audit.lower_bound(mechanism, left, right, trials=1000, entropy=Seeded(10))
    assert 0.6 < bound <= 3.0


def selections(mechanism: SignDS, trials: int) -> list[list[Selection]]:
    """Return selections for each of two updates with disjoint top-k sets."""
    left, right = np.zeros(40, np.float32), np.zeros(40, np.float32)
    left[:10], left[10:20] = 1, -1
    right[20:30], right[30:] = 1, -1
    return [
        [mechanism.select(update, entropy) for _ in range(trials)]
        for update, entropy in ((left, Seeded(9, "left")), (right, Seeded(9, "right")))
    ]


def game(made: list[list[Selection]], guess: Callable[[Selection], bool]) -> float:
    """Tell the two updates apart by one test of the output."""
    left, right = (sum(map(guess, of_one)) for of_one in made)
    return loss_at_least(left, right, len(made[0]))


def favours_left(selection: Selection) -> bool:
    """The event whose likelihoods differ most: enough dimensions of left's top-k set."""
    first = 0 if selection.sign == 1 else 10
    inside = (selection.indices >= first) & (selection.indices < first + 10)
    return inside.sum() >= 2


def in_the_order_of_choice(selection: Selection, first: int) -> Selection:
    """The planted bug: the top-k dimensions, which begin at `first` or 10 later, come first."""
    least = first if selection.sign == 1 else first + 10
    outside = (selection.indices < least) | (selection.indices >= least + 10)
    order = np.argsort(outside, kind="stable")
    return Selection(selection.indices[order], selection.sign, selection.magnitude)


def first_is_lefts(selection: Selection) -> bool:
    return selection.indices[0] // 10 == (0 if selection.sign == 1 else 1)


def test_the_loss_stays_below_the_claim_and_planted_bugs_do_not() -> None:
    eps = 1.0
    mechanism = SignDS(k=0.25, eps=eps, dim_out=3)
    assert mechanism.plan(40).threshold == 2
    assert (mechanism.loss.epsilon, mechanism.loss.delta, mechanism.loss.per) == (1, 0, "update")
    made = selections(mechanism, 4000)
    assert 0.5 * eps < game(made, favours_left) <= eps
    assert game(made, first_is_lefts) <= eps

    told = [
        [in_the_order_of_choice(one, first) for one in of_one]
        for first, of_one in zip((0, 20), made, strict=True)
    ]
    assert game(told, first_is_lefts) > eps

    mechanism._plans[40] = SignDS(k=0.25, eps=3 * eps, dim_out=3).plan(40)
    assert game(selections(mechanism, 1000), favours_left) > eps


@pytest.mark.parametrize("eps", [0.0, 2.0, 5.5])
def test_the_chance_of_a_favoured_selection_follows_the_epsilon_that_is_asked_for(
    eps: float,
) -> None:
    """An audit asks which epsilon explains the favoured selections that it has counted."""
    made = SignDS(k=0.25, eps=2.0, dim_out=3)
    plan = made.plan(20)
    counts = [math.comb(plan.topk, v) * math.comb(20 - plan.topk, 3 - v) for v in range(4)]
    likely = [c * math.exp(eps * (v >= plan.threshold)) for v, c in enumerate(counts)]
    expected = sum(likely[plan.threshold :]) / sum(likely)
    assert made.chance_of_favoured(20)(eps) == pytest.approx(expected, rel=1e-12)


def test_a_warning_states_epsilon_with_all_its_digits() -> None:
    with pytest.warns(FedveilWarning, match="^eps = 1.00000049 with k"):
        SignDS(k=0.1, eps=1.00000049, thr_ratio=0.9).plan(70)
