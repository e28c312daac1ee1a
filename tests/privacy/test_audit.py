"""The audit: below the claim for mechanisms that keep it, above it for planted bugs.

The mechanisms are written here in the plainest way, one output at a time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from fedveil.entropy import Seeded
from fedveil.errors import InvalidValue
from fedveil.privacy import PrivacyLoss
from fedveil.privacy.audit import Audit, lower_bound, of_scores, run
from fedveil.privacy.audit_scores import _excess, as_rows, learned

SEED = 20240229
TRIALS = 8000


def entropy(*path):
    return Seeded(SEED, "audit", *path)


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


class Response:
    """Randomised response on a vector of bits, eps each."""

    def __init__(self, eps):
        self.keep = sigmoid(eps)

    def perturb(self, bits, entropy):
        return bits ^ ~entropy.bernoulli(self.keep, len(bits))


def one_hot(p, q):
    """A one-hot code whose 1 stays with probability p, and whose zeros become 1 with q."""

    def perturb(state, entropy):
        ones, zeros = entropy.bernoulli(p, 1), entropy.bernoulli(q, 5)
        zeros[state] = ones[0]
        return zeros

    return perturb


def swapped_for_one_state(state, entropy):
    """OUE at eps = 1.5 from a table in which one row has p and q the wrong way round."""
    p, q = 0.5, sigmoid(-1.5)
    return (one_hot(q, p) if state == 0 else one_hot(p, q))(state, entropy)


class Noise:
    """Gaussian noise on a vector whose L2 norm is at most 1: sensitivity 2."""

    def __init__(self, eps, delta, sensitivity):
        low, high = 1e-3, 1e3
        for _ in range(100):
            sigma = (low + high) / 2
            mu = sensitivity / sigma
            spent = stats.norm.cdf(mu / 2 - eps / mu)
            spent -= math.exp(eps) * stats.norm.cdf(-mu / 2 - eps / mu)
            low, high = (sigma, high) if spent > delta else (low, sigma)
        self.sigma = high

    def privatize(self, update, entropy):
        return update + self.sigma * entropy.generator().standard_normal(len(update))


@dataclass(frozen=True)
class Selection:
    """Two of eight indices."""

    indices: np.ndarray
    sign: int


class Select:
    """Two of eight dimensions, eps-privately: e^eps more weight where one is in the top four."""

    def __init__(self, eps, *, ordered):
        self.eps, self.ordered = eps, ordered

    def select(self, update, entropy):
        others, top = np.argsort(update).reshape(2, 4)
        weights = [6.0, 16 * math.exp(self.eps), 6 * math.exp(self.eps)]
        uniform = entropy.integer(1 << 53) / (1 << 53) * sum(weights)
        inliers = int(np.searchsorted(np.cumsum(weights), uniform, side="right"))
        chosen = np.concatenate([
            top[entropy.permutation(4)[:inliers]],
            others[entropy.permutation(4)[: 2 - inliers]],
        ])  # fmt: skip
        return Selection(np.sort(chosen) if self.ordered else chosen, 1)


TRUE, FALSE = np.array([True]), np.array([False])
UP, DOWN = np.arange(8.0), -np.arange(8.0)
FAR = np.array([1.0, 0.0]), np.array([-1.0, 0.0])


# Correct mechanisms stay below what they claim, and the bound comes near it


@pytest.mark.parametrize(
    ("mechanism", "a", "b", "claim", "near"),
    [
        (Response(1.0), TRUE, FALSE, 1.0, 0.85),
        (Response(0.5), np.array([True] * 3), np.array([False] * 3), 1.5, 1.15),
        (one_hot(0.5, sigmoid(-1.0)), 0, 3, 1.0, 0.6),
        (one_hot(sigmoid(1.0), sigmoid(-1.0)), 0, 3, 2.0, 1.5),
        (Select(1.5, ordered=True), UP, DOWN, 1.5, 1.1),
        (Noise(3.0, 1e-5, 2.0), *FAR, PrivacyLoss(3.0, 1e-5), 0.9),
        (lambda _, source: source.token(4), b"one", b"other", 0.0, 0.0),
    ],
)
def test_correct_mechanisms_are_not_refuted(mechanism, a, b, claim, near):
    found = run(mechanism, a, b, claim=claim, trials=TRIALS, entropy=entropy("right"))
    assert not found.refuted
    assert near <= found.bound <= found.claim.epsilon <= found.reachable + 1e-9
    assert "not refuted" in str(found)


# Planted bugs rise above it


@pytest.mark.parametrize(
    ("name", "mechanism", "a", "b", "claim"),
    [
        ("eps doubled", Response(2.0), TRUE, FALSE, 1.0),
        ("eps doubled in each of some bits", Response(1.0), TRUE.repeat(3), FALSE.repeat(3), 1.5),
        ("p of one mechanism with the claim of another",
         one_hot(sigmoid(2.0), sigmoid(-2.0)), 0, 3, 2.0),
        ("p and q swapped for one state", swapped_for_one_state, 0, 3, 1.5),
        ("sensitivity halved", Noise(1.0, 0.1, 1.0), *FAR, PrivacyLoss(1.0, 0.1)),
        ("order of the indices tells", Select(1.5, ordered=False), UP, DOWN, 1.5),
        ("no noise in one input in a hundred",
         lambda x, source: x if source.integer(100) == 0 else source.integer(1 << 20), -7, -8, 1.0),
    ],
)  # fmt: skip
def test_planted_bugs_are_refuted(name, mechanism, a, b, claim):
    trials = {"no noise in one input in a hundred": 20_000, "p and q swapped for one state": 8000}
    found = run(mechanism, a, b, claim=claim, trials=trials.get(name, 4000), entropy=entropy(name))
    assert found.refuted, str(found)
    assert str(found).endswith(": refuted")


def test_swapping_p_and_q_everywhere_is_useless_and_just_as_private():
    """Every bit is inverted: the audit judges privacy, and finds the same."""
    straight, swapped = one_hot(0.5, sigmoid(-1.0)), one_hot(sigmoid(-1.0), 0.5)
    bounds = [
        lower_bound(mechanism, 0, 3, trials=TRIALS, entropy=entropy("swap"))
        for mechanism in (straight, swapped)
    ]
    assert max(bounds) <= 1.0
    assert min(bounds) >= 0.6


# The bound itself


def test_the_bound_is_wrong_as_rarely_as_it_says():
    """300 audits at confidence 0.8 of a mechanism that spends exactly what it claims."""
    source, claim = entropy("coverage"), 0.4
    mechanism = Response(claim)
    wrong = sum(
        lower_bound(mechanism, TRUE, FALSE, trials=120, confidence=0.8, entropy=source) > claim
        for _ in range(300)
    )
    assert stats.binom.sf(wrong - 1, 300, 0.2) > 1e-6


def test_the_bound_is_clopper_and_pearson_s():
    """A mechanism whose outputs are known: the bound follows from the counts by hand."""
    tested, error = 500, 0.0005

    class Counted:
        """Output 1 for the first input in 80% of the second half, for the other in 20%."""

        def __init__(self):
            self.calls = {"a": 0, "b": 0}

        def __call__(self, given, _):
            number = self.calls[given]
            self.calls[given] += 1
            return number % 10 < (8 if given == "a" else 2)

    found = lower_bound(Counted(), "a", "b", trials=2 * tested)
    least = stats.beta.ppf(error, 400, 101)
    most = stats.beta.ppf(1 - error, 101, 400)
    assert found == pytest.approx(math.log(least / most), rel=1e-9)
    at_delta = lower_bound(Counted(), "a", "b", trials=2 * tested, delta=0.1)
    assert at_delta == pytest.approx(math.log((least - 0.1) / most), rel=1e-9)
    odd = lower_bound(Counted(), "a", "b", trials=2 * tested + 1)  # the odd one is counted
    least, most = stats.beta.ppf(error, 401, 101), stats.beta.ppf(1 - error, 102, 400)
    assert odd == pytest.approx(math.log(least / most), rel=1e-9)


def test_the_confidence_is_the_one_that_is_asked_for():
    args, draws = (Response(1.0), TRUE, FALSE), {"trials": 500, "confidence": 0.8}
    found = run(*args, claim=0.5, entropy=entropy("asked"), **draws)
    assert found.confidence == 0.8
    assert found.bound == lower_bound(*args, entropy=entropy("asked"), **draws)
    ahead = np.arange(300.0) % 50
    back = ahead - 20
    bold, sure = (of_scores(ahead, back, claim=found.claim, confidence=c) for c in (0.8, 0.99))
    assert bold.bound > sure.bound > 0
    assert bold.reachable > sure.reachable


def test_a_mapping_s_order_tells_nothing():
    one, other = as_rows([{"a": 1, "b": [2, 3]}, {"b": [2, 3], "a": 1}])
    assert one.tolist() == other.tolist() == [3, 1, 2, 3]


def test_a_zeros_sign_tells_nothing():
    assert lower_bound(lambda x, _: 0.0 * x, 1.0, -1.0, trials=200) == 0


def test_delta_excuses_what_it_covers():
    def leaks_sometimes(given, source):
        return given if source.integer(20) == 0 else 0

    for delta, refuted in ((0.0, True), (0.05, False)):
        claim = PrivacyLoss(0.1, delta)
        found = run(leaks_sometimes, 1, 2, claim=claim, trials=5000, entropy=entropy("leak"))
        assert found.refuted == refuted


def test_more_trials_can_show_more():
    exposed = run(lambda x, _: x, 0, 1, claim=3.0, trials=200)
    longer = run(lambda x, _: x, 0, 1, claim=3.0, trials=20_000)
    assert exposed.bound == pytest.approx(exposed.reachable)
    assert 2.0 < exposed.bound < 3.0 < longer.bound < math.log(20_000 / 15) + 0.1
    assert not exposed.refuted
    assert longer.refuted


def test_what_can_be_shown_at_a_delta_is_shown_by_a_mechanism_that_hides_nothing():
    claim = PrivacyLoss(3.0, 0.3)
    exposed = run(lambda x, _: x, 0, 1, claim=claim, trials=201)
    scored = of_scores(np.ones(201), np.zeros(201), claim=claim)
    assert exposed.reachable == pytest.approx(exposed.bound)
    assert scored.reachable == pytest.approx(scored.bound) == pytest.approx(exposed.bound)
    assert exposed.bound < run(lambda x, _: x, 0, 1, claim=3.0, trials=201).reachable


def test_repeats_with_a_seed_and_draws_secure_randomness_without():
    args = (Response(1.0), TRUE, FALSE)
    first, second = (lower_bound(*args, trials=500, entropy=entropy("same")) for _ in "ab")
    assert first == second
    assert len({lower_bound(*args, trials=500) for _ in range(8)}) > 1


# Types of outputs


@pytest.mark.parametrize(
    "wrap",
    [
        lambda bit: bool(bit),
        lambda bit: float(bit),
        lambda bit: np.int16(bit),
        lambda bit: b"yes" if bit else b"no",
        lambda bit: "ja" if bit else "nein",
        lambda bit: {"round": 3, "bit": bool(bit)},
        lambda bit: [1, (2, np.array([[bit, 0]]))],
        lambda bit: Selection(np.array([4, 5 + bit]), 1),
        lambda bit: np.arange(3 + bit),
        lambda bit: None if bit else 1.0,
        lambda bit: math.nan if bit else 1.0,
    ],
)
def test_outputs_of_many_kinds(wrap):
    def mechanism(given, source):
        return wrap(given ^ int(not source.bernoulli(sigmoid(2.0), 1)[0]))

    bound = lower_bound(mechanism, 1, 0, trials=4000, entropy=entropy("kinds"))
    assert 1.6 < bound < 2.0


def test_an_output_that_is_missing_is_no_small_number():
    """The other 20 numbers keep outputs from repeating, so whole outputs cannot be counted."""

    def tells(given, source):
        return [None if given else -9.0, *source.generator().standard_normal(20)]

    assert lower_bound(tells, 1, 0, trials=400, entropy=entropy("missing")) > 2.5


def test_a_tester_s_own_score():
    """A leak in the parity of many coordinates, which none of the scores looks at."""

    def parity(given, source):
        bits = source.bernoulli(0.5, 24)
        bits[-1] = bits[:-1].sum() % 2 ^ given ^ int(source.bernoulli(sigmoid(-2.0), 1)[0])
        return bits

    def odd(bits):
        return bits.sum() % 2

    blind = lower_bound(parity, 0, 1, trials=4000, entropy=entropy("parity"))
    told = lower_bound(parity, 0, 1, trials=4000, entropy=entropy("parity"), score=odd)
    assert blind < 0.5
    assert 1.6 < told < 2.0
    tested = run(parity, 0, 1, claim=1.5, trials=4000, entropy=entropy("parity"), score=odd)
    assert tested.refuted
    assert tested.bound == told


def test_a_weak_leak_in_many_coordinates_adds_up():
    """Each coordinate alone tells little; together they tell far more than is claimed."""

    def shifted(given, source):
        return 0.2 * given + source.generator().standard_normal(100)

    found = run(shifted, 1, -1, claim=2.0, trials=4000, entropy=entropy("weak"))
    assert found.refuted


def test_a_columns_excess_is_that_of_a_g_test():
    hits, others = np.array([30, 0, 11, 0, 19]), np.array([8, 5, 27, 0, 20])
    table = np.array([hits, others])[:, [0, 1, 2, 4]]
    known = stats.chi2_contingency(table, correction=False, lambda_="log-likelihood")
    excess = (known.statistic - known.dof) / math.sqrt(2 * known.dof)
    assert _excess(hits, others) == pytest.approx(excess)
    assert _excess(hits[2:4], others[2:4]) == -math.inf, "one value tells nothing"


def test_columns_that_tell_are_added_up_without_the_others():
    """They differ in their spread alone, which no linear score sees."""
    source, telling = entropy("columns").generator(), [3, 17, 40]
    spread = np.ones(60)
    spread[telling] = 2.0
    ahead, back = source.normal(size=(1000, 60)), spread * source.normal(size=(1000, 60))
    rows = source.normal(size=(50, 60))

    def depends(score, columns):
        other = rows.copy()
        other[:, columns] = 9.0
        return (score(other) != score(rows)).any()

    others = np.setdiff1d(np.arange(60), telling)
    alone = [score for score in learned(ahead, back) if not depends(score, others)]
    assert sorted(sum(depends(s, [at]) for at in telling) for s in alone) == [1, 3]


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: lower_bound(3, 0, 1, trials=200), "mechanism = 3 is neither a function"),
        (lambda: lower_bound(Response(1.0), TRUE, FALSE, trials=99), "trials = 99 is outside"),
        (lambda: lower_bound(abs, 0, 1, trials=200, confidence=1.0), r"confidence = 1\.0 is"),
        (lambda: lower_bound(abs, 0, 1, trials=200, delta=1.0), r"delta = 1\.0 is outside"),
        (
            lambda: lower_bound(lambda *_: SimpleNamespace(), 0, 1, trials=200),
            "an output is a SimpleNamespace: pass score=",
        ),
        (lambda: lower_bound(lambda *_: np.array(["x"]), 0, 1, trials=200), "dtype <U1: pass"),
        (
            lambda: lower_bound(lambda *_: 1, 0, 1, trials=200, score=lambda _: math.nan),
            "score gave NaN",
        ),
    ],
)
def test_bad_input_gets_a_sentence(call, sentence):
    with pytest.raises(InvalidValue, match=sentence):
        call()


def test_the_report_is_one_line():
    audit = Audit(PrivacyLoss(1.0, 1e-5), 1.23499, 6.5, 20_000, 0.999)
    assert str(audit) == (
        "claimed: epsilon 1 at delta 1e-05 (strong); found: epsilon at least 1.23 at confidence "
        "0.999 (20000 trials can show at most 6.5): refuted"
    )


def test_scores_of_outputs_are_audited_as_the_outputs_are() -> None:
    """A binary response at epsilon 1: the bound is just below 1, and refutes a smaller claim."""
    draw, keep = Seeded(8).generator(), math.e / (1 + math.e)
    ahead, back = (draw.random(20_000) < p for p in (keep, 1 - keep))
    scores = ahead.astype(np.float64), back.astype(np.float64)
    found = of_scores(*scores, claim=PrivacyLoss(1.0))
    assert 0.8 < found.bound <= 1.0
    assert not found.refuted
    assert of_scores(*scores, claim=PrivacyLoss(0.7)).refuted
    certain = of_scores(np.ones(400), np.zeros(400), claim=PrivacyLoss(math.inf))
    assert certain.bound == certain.reachable > 2.5


def test_scores_that_are_none_are_refused() -> None:
    with pytest.raises(InvalidValue, match="400 scores for a and 300 for b, not as many"):
        of_scores(np.ones(400), np.zeros(300), claim=PrivacyLoss(1.0))
    with pytest.raises(InvalidValue, match="a score is NaN"):
        of_scores(np.full(400, np.nan), np.zeros(400), claim=PrivacyLoss(1.0))
    with pytest.raises(InvalidValue, match="a score is NaN"):
        of_scores(np.zeros(400), np.append(np.zeros(399), np.nan), claim=PrivacyLoss(1.0))
