"""rr and oue as protections: whole rounds, hostile messages, adaptive and total epsilon."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from scipy import stats

from fedveil.base.message import decode, encode
from fedveil.entropy import Seeded
from fedveil.errors import ClientWithheld, InvalidValue, ReportRejected, RoundVoid, RunStopped
from fedveil.mechanisms.exact.binomial import Binomial, _exact_law, _law
from fedveil.mechanisms.unary import cohort_sum
from fedveil.mechanisms.unary.cohort_sum import CohortSum
from fedveil.protections.base import JobContext, Spending, State
from fedveil.protections.catalog import build
from fedveil.protections.rr_oue import Unary
from fedveil.protections.unary_settings import UnarySettings
from round_parts import client_half, report_of, server_half
from statistical_checks import ERROR_RATE, assert_alike, assert_follows

COHORT = (3, 5, 8, 13)


def protection(
    kind: str = "rr", *, dimension: int = 6, simulated: bool = True, **settings: Any
) -> Any:
    context = JobContext("equal", dimension, len(COHORT), rounds=9, simulated=simulated)
    return build(kind, UnarySettings(**settings), context)


def server(half: Unary, model: Any, cohort: Sequence[int] = COHORT, state: Any = None) -> Any:
    return server_half(half, cohort, model, state=state)


def client(half: Unary, model: Any, number: int = 3, seed: int = 0) -> Any:
    return client_half(half, number, model, entropy=Seeded(seed, "client", number))


def report(half: Unary, server_round: Any, model: Any, update: Any, number: int, seed: int) -> Any:
    return report_of(client(half, model, number, seed), server_round.opening(), update)


def play(
    half: Unary, model: Any, updates: Mapping[int, Any], seed: int = 0, state: State | None = None
) -> Any:
    """Play one round with `updates` by client."""
    room = server(half, model, tuple(updates), state)
    for number, update in updates.items():
        room.receive(number, report(half, room, model, update, number, seed))
    assert room.advance() is None
    return room.aggregate()


# Whole rounds


@pytest.mark.parametrize("kind", ["rr", "oue"])
@pytest.mark.parametrize("sent", ["sum", "bits"])
@pytest.mark.parametrize("target", ["weights", "update"])
def test_aggregate_is_unbiased_for_the_mean_update(kind: str, sent: str, target: str) -> None:
    """The variance is the mechanism's own, in units of the update, for both targets."""
    dimension, clip, cells = 4000, 2.0, 8
    half = protection(
        kind, dimension=dimension, eps=2.0, cells=cells, clip=clip, report=sent, target=target
    )
    model = np.full(dimension, 0.25)
    # on the grid of 1/4, both as weights and as updates
    steps = {3: 0.25, 5: -0.5, 8: 0.5, 13: 1.0}
    aggregate = play(half, model, {c: np.full(dimension, x) for c, x in steps.items()})
    assert aggregate.reports == 4
    truth = sum(steps.values()) / 4
    shift = 0.25 if target == "weights" else 0.0
    encoding = half.encoding(2.0)
    variance = sum(encoding.variance(4, x + shift) for x in steps.values()) / 4
    z = (aggregate.update.mean() - truth) / math.sqrt(variance / dimension)
    assert 2 * stats.norm.sf(abs(z)) > ERROR_RATE
    spread = aggregate.update.var(ddof=1) / variance * (dimension - 1)
    assert ERROR_RATE < stats.chi2.cdf(spread, dimension - 1) < 1 - ERROR_RATE


def test_without_noise_the_aggregate_is_the_mean_of_clipped_codes() -> None:
    """At eps = 80 no bit flips, so clipping, rounding, target and units are visible."""
    model = [0.5, -0.5, 0.0, 0.9, -0.9, 0.1]
    updates = {3: [0.25, 0, 0, 0.4, -0.4, 0], 5: [0.25, 0.5, 0.1, 0, 0, -0.1]}
    weights = protection(eps=80.0, cells=10)
    np.testing.assert_allclose(
        play(weights, model, updates).update,
        # 0.75 * 10 = 7.5 rounds half to even: 8; 1.3 and -1.3 are clipped
        [0.3, 0.25, 0.05, 0.05, -0.05, -0.05],
        atol=1e-7,
    )
    update = protection(eps=80.0, cells=10, target="update", clip=0.2)
    np.testing.assert_allclose(
        play(update, model, updates).update, [0.2, 0.1, 0.05, 0.1, -0.1, -0.05], atol=1e-7
    )


def test_order_and_trees_change_nothing() -> None:
    for fidelity in ("per_client", "aggregate"):
        half = protection(eps=1.0, fidelity=fidelity)
        model, updates = np.zeros(6), {c: np.full(6, c / 20) for c in COHORT}
        straight = play(half, model, updates, seed=4)
        left, right = server(half, model, COHORT[2:]), server(half, model, COHORT[:2])
        for number in reversed(COHORT):
            room = right if number in COHORT[:2] else left
            room.receive(number, report(half, room, model, updates[number], number, 4))
        left.merge(right)
        with pytest.raises(ValueError, match="share clients"):
            left.merge(right)
        left.advance()
        assert left.aggregate().update.tobytes() == straight.update.tobytes()
        with pytest.raises(ValueError, match="has returned its aggregate"):
            left.merge(server(half, model, COHORT[:2]))


def test_reports_repeat_with_the_seed_and_not_otherwise() -> None:
    half = protection(eps=1.0)
    room = server(half, np.zeros(6))
    first, again, other = (
        encode(report(half, room, np.zeros(6), np.ones(6), 3, seed)) for seed in (1, 1, 2)
    )
    assert first == again != other


def test_bytes_of_a_report() -> None:
    """12 or 101 bits per parameter, and at most 40 further bytes."""
    for sent, payload in (("sum", 1500), ("bits", 12625 + 1)):
        half = protection(dimension=1000, eps=1.0, cells=50, report=sent)
        message = report(half, server(half, np.zeros(1000)), np.zeros(1000), np.zeros(1000), 3, 0)
        assert payload <= len(encode(message)) <= payload + 40


def test_spending() -> None:
    for kind, per_parameter in (("rr", 9.6), ("oue", 4.8)):
        half = protection(kind, dimension=61_706, eps=4.8)
        spending = half.spending(half.initial_state())
        assert spending == [Spending(half.encoding(4.8).loss_per_parameter, 61_706)]
        assert spending[0].loss.epsilon == per_parameter


# The refusals of a server


@pytest.mark.parametrize("sent", ["sum", "bits"])
def test_hostile_reports_change_nothing(sent: str) -> None:
    half = protection(eps=1.0, cells=50, report=sent)
    model = np.zeros(6)
    room = server(half, model)
    good = report(half, room, model, np.ones(6) / 2, 3, 0)
    payload = good["report"]
    other_end = payload.copy()  # a final 1 elsewhere, or a sum above 1275
    other_end[-1] = 0xFF
    hostile: list[dict[str, Any]] = [
        {"round": 7},
        {"report": payload},
        {**good, "round": 6},
        {**good, "round": 7.0},
        {**good, "extra": 1},
        {**good, "report": payload[:-1]},
        {**good, "report": np.append(payload, np.uint8(0))},
        {**good, "report": payload.tobytes()},
        {**good, "report": payload.astype(np.int16)},
        {**good, "report": payload.reshape(1, -1)},
        {**good, "report": other_end},
        {"round": 7, "states": payload, "token": bytes(32)},
    ]
    for message in hostile:
        with pytest.raises(ReportRejected):
            room.receive(5, message)
    with pytest.raises(ReportRejected, match="unknown sender"):
        room.receive(4, good)
    room.receive(3, good)
    with pytest.raises(ReportRejected, match="repeated sender"):
        room.receive(3, good)
    room.advance()
    with pytest.raises(ReportRejected, match="wrong phase"):
        room.receive(5, good)
    alone = play(half, model, {3: np.ones(6) / 2})
    assert room.aggregate().reports == 1
    np.testing.assert_array_equal(room.aggregate().update, alone.update)


def test_padding_of_sums_is_checked() -> None:
    half = protection(eps=1.0, dimension=1)
    room = server(half, np.zeros(1))
    good = report(half, room, np.zeros(1), np.zeros(1), 3, 0)
    bad = good["report"].copy()
    bad[-1] |= 0x80
    with pytest.raises(ReportRejected, match="wrong length, padding or range"):
        room.receive(3, {**good, "report": bad})
    room.receive(3, good)


def test_a_round_without_reports_is_void() -> None:
    room = server(protection(), np.zeros(6))
    room.advance()
    with pytest.raises(RoundVoid):
        room.aggregate()


# The refusals of a client


@pytest.mark.parametrize("target", ["weights", "update"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_an_update_that_is_not_finite_is_withheld(target: str, value: float) -> None:
    half = protection(target=target)
    opening = server(half, np.zeros(6)).opening()
    update = np.zeros(6, np.float32)
    update[2] = value
    with pytest.raises(ClientWithheld, match="not finite"):
        client(half, np.zeros(6)).respond(opening, update)


def test_weights_beyond_floats_are_clipped_as_others_are() -> None:
    """Both are finite. Reporting that their sum is not would reveal something about the update."""
    half = protection()
    huge = np.full(6, 3e38, np.float32)
    beyond, large = (
        client(half, huge).respond({"round": 7, "eps": 4.8}, update)
        for update in (huge, np.zeros(6, np.float32))
    )
    assert encode(beyond) == encode(large)


def test_a_model_that_has_no_code_is_withheld() -> None:
    half = protection()
    model = np.full(6, np.nan, np.float32)
    with pytest.raises(ClientWithheld, match="the update cannot be coded"):
        client(half, model).respond({"round": 7, "eps": 4.8}, np.zeros(6, np.float32))


@pytest.mark.parametrize(
    ("settings", "opening", "sentence"),
    [
        ({}, {"round": 7, "eps": 4.9}, "eps = 4.9 is not allowed by the job"),
        ({}, {"round": 7, "eps": 4.7}, "eps = 4.7 is not allowed by the job"),
        ({}, {"round": 6, "eps": 4.8}, "not the opening of this round"),
        ({}, {"round": 7}, "malformed"),
        ({}, {"round": 7, "eps": 5}, "malformed"),
        ({}, {"round": 7, "eps": 4.8, "clip": 9.0}, "malformed"),
        ({"adaptive": True}, {"round": 7, "eps": 4.7}, "eps = 4.7 is not allowed by the job"),
        ({"adaptive": True}, {"round": 7, "eps": math.nan}, "not allowed by the job"),
        ({"adaptive": True}, {"round": 7, "eps": math.inf}, "eps = inf is not finite"),
        ({"adaptive": True}, {"round": 7, "eps": 1e9}, "outside"),
        (
            {"adaptive": True, "total_eps": 72.0},
            {"round": 7, "eps": 6.5},
            "eps = 6.5 would cost 78.0, more than the job's total_eps",
        ),
    ],
)
def test_a_lying_server_is_refused(
    settings: dict[str, Any], opening: dict[str, Any], sentence: str
) -> None:
    half = protection(eps=4.8, **settings)
    with pytest.raises(ClientWithheld, match=sentence):
        client(half, np.zeros(6)).respond(opening, np.zeros(6, np.float32))


def test_an_adaptive_epsilon_that_the_job_allows_is_used() -> None:
    """Twice the job's eps gives the draws of a job with twice the eps."""
    half = protection(eps=4.8, adaptive=True, total_eps=1000.0)
    update = np.full(6, 0.3, np.float32)
    got = client(half, np.zeros(6)).respond({"round": 7, "eps": 9.6}, update)
    plain = client(protection(eps=9.6), np.zeros(6)).respond({"round": 7, "eps": 9.6}, update)
    assert encode(got) == encode(plain)


def test_a_report_may_cost_all_that_the_job_allows() -> None:
    half = protection(eps=4.8, adaptive=True, total_eps=78.0)
    assert "report" in client(half, np.zeros(6)).respond(
        {"round": 7, "eps": 6.5}, np.zeros(6, np.float32)
    )
    assert half.most_of_a_report() == (78.0, 0.0)


@pytest.mark.parametrize("settings", [{}, {"total_eps": 50.0}, {"adaptive": True}])
def test_only_an_adaptive_report_with_a_limit_may_cost_that_limit(settings: Any) -> None:
    """Six parameters, each with two perturbed bits of half the encoding's epsilon a cell."""
    fixed = protection(eps=1.5, cells=3, clip=2.0, **settings)
    (spending,) = fixed.spending(fixed.initial_state())
    assert fixed.most_of_a_report()[0] == pytest.approx(float(fixed.report_cost(1.5)))
    assert fixed.most_of_a_report()[0] != 50.0
    assert spending.loss.epsilon < fixed.most_of_a_report()[0]


@pytest.mark.parametrize(
    ("asked", "demanded", "weaker"),
    [("bits", "sum", True), ("sum", "bits", False), ("bits", "bits", False), ("sum", "sum", False)],
)
def test_whole_codes_are_weaker_than_the_sums_that_a_client_demands(
    asked: Any, demanded: Any, weaker: bool
) -> None:
    server, own = UnarySettings(report=asked), UnarySettings(report=demanded)
    said = "reports are bits instead of sums, which reveal less"
    assert Unary.weaker(server, own, 7, 5) == (said if weaker else None)


def test_no_update_no_report() -> None:
    with pytest.raises(ClientWithheld, match="not the opening of this round"):
        client(protection(), np.zeros(6)).respond({"round": 7, "eps": 4.8}, None)


# Adaptive and total epsilon


def test_adaptive_epsilon_follows_the_turn_of_the_model() -> None:
    """The aggregate turns (1, 0, ...) by 45 degrees: A_s = 3/4."""
    half = protection(eps=60.0, adaptive=True, dimension=2, cells=1)
    aggregate = play(half, [1.0, 0.0], {c: [0.0, 1.0] for c in COHORT})
    np.testing.assert_allclose(aggregate.update, [0, 1], atol=1e-12)
    assert aggregate.state["eps"] == pytest.approx(80.0, rel=1e-12)
    state = decode(encode(aggregate.state))
    assert server(half, [1.0, 1.0], state=state).opening()["eps"] == aggregate.state["eps"]
    assert half.spending(state)[0].loss.epsilon == 2 * aggregate.state["eps"]
    again = play(half, [1.0, 0.0], {c: [0.0, 1.0] for c in COHORT}, state=state)
    assert again.state["eps"] == pytest.approx(80.0, rel=1e-12), "quotients are compounded"


@pytest.mark.parametrize(
    ("model", "update", "reason"),
    [
        ([1.0, 0.0], [-2.0, 0.0], "A_s is 0"),
        ([0.0, 0.0], [1.0, 0.0], "previous_model is zero everywhere"),
        ([1.0, 0.0], [-1.0, 0.0], "new_model is zero everywhere"),
    ],
)
def test_adaptive_without_an_answer_ends_the_run_after_the_round(
    model: list[float], update: list[float], reason: str
) -> None:
    half = protection(eps=60.0, adaptive=True, dimension=2, cells=1)
    aggregate = play(half, model, dict.fromkeys(COHORT, tuple(update)))
    state = decode(encode(aggregate.state))
    assert half.spending(state)[0].loss.epsilon == 120.0
    with pytest.raises(RunStopped, match=reason):
        server(half, model, state=state)


def test_adaptive_beyond_the_domain_of_epsilon_ends_the_run() -> None:
    half = protection(eps=600.0, adaptive=True, dimension=2, cells=1)
    aggregate = play(half, [1.0, 0.0], dict.fromkeys(COHORT, (0.0, 1.0)))
    with pytest.raises(RunStopped, match=r"protection.unary.adaptive: eps = .* is outside"):
        server(half, [1.0, 0.0], state=aggregate.state)


def rounds_until_stopped(half: Unary) -> int:
    state, rounds, model = half.initial_state(), 0, np.full(6, 0.5)
    while True:
        try:
            room = server(half, model, state=state)
        except RunStopped:
            return rounds
        room.receive(3, report(half, room, model, np.zeros(6), 3, rounds))
        room.advance()
        state, rounds = decode(encode(room.aggregate().state)), rounds + 1


def test_total_epsilon_ends_the_run_before_it_would_be_passed() -> None:
    """A round of rr costs 6 * 2 * 0.1 = 1.2 in decimals, so five cost exactly 6, not 6.000...1."""
    assert rounds_until_stopped(protection(eps=0.1, total_eps=6.0)) == 5
    assert rounds_until_stopped(protection(eps=0.1, total_eps=5.999999999999999)) == 4
    assert rounds_until_stopped(protection("oue", eps=0.1, total_eps=6.0)) == 10
    with pytest.raises(RunStopped, match=r"total_eps = 1\.1: round 7 would raise .* to 1\.2$"):
        server(protection(eps=0.1, total_eps=1.1), np.zeros(6))


def test_a_round_that_was_cut_off_counts_in_the_total() -> None:
    half = protection(eps=0.1, total_eps=3.0)
    state = half.initial_state()
    cost = [(spent.loss, spent.count) for spent in half.spending(state)]
    for _ in range(2):
        state = half.cut_off(state, cost)
    assert state["spent"] == "2.4"
    with pytest.raises(RunStopped, match=r"to 3\.6$"):
        server(half, np.zeros(6), state=state)


def test_a_round_that_was_cut_off_keeps_the_epsilon_of_the_next() -> None:
    half = protection(eps=0.5, adaptive=True)
    cost = [(spent.loss, spent.count) for spent in half.spending({"eps": 2.0})]
    assert half.cut_off({"eps": 2.0, "spent": "3"}, cost) == {"eps": 2.0, "spent": "27.0"}


def test_spent_total_is_the_sum_of_the_rounds_losses() -> None:
    half = protection(eps=60.0, adaptive=True, dimension=2, cells=1)
    first = play(half, [1.0, 0.0], dict.fromkeys(COHORT, (0.0, 1.0)))
    second = play(half, [1.0, 1.0], dict.fromkeys(COHORT, (0.0, 0.0)), state=first.state)
    assert Decimal(second.state["spent"]) == 240 + 4 * Decimal(repr(first.state["eps"]))


# Settings that contradict where the job runs


def test_what_only_a_simulation_may_do() -> None:
    with pytest.raises(InvalidValue, match="fidelity = 'aggregate' is for simulation only"):
        protection(fidelity="aggregate", simulated=False)
    with pytest.raises(InvalidValue, match="needs report = 'sum'"):
        protection(fidelity="aggregate", report="bits")
    with pytest.raises(InvalidValue, match="outside simulation adaptive needs it"):
        protection(adaptive=True, simulated=False)
    protection(adaptive=True, total_eps=1e6, simulated=False)


# fidelity: aggregate


@pytest.mark.parametrize("kind", ["rr", "oue"])
def test_a_cohort_drawn_at_once_is_alike(kind: str) -> None:
    """The aggregate has one law, drawn at once or client by client, for clients in several
    states."""
    dimension = 30_000
    updates = {c: np.full(dimension, x) for c, x in zip(COHORT, (1, 1, -0.5, 0), strict=True)}
    results = [
        play(
            protection(kind, dimension=dimension, eps=1.0, cells=2, fidelity=fidelity),
            np.zeros(dimension), updates, seed=2,
        ).update
        for fidelity in ("aggregate", "per_client")
    ]  # fmt: skip
    encoding = protection(kind, eps=1.0, cells=2).encoding(1.0)
    scale = 4 * 2 * float(encoding.exact_p - encoding.exact_q)  # the aggregate is Σ S / scale
    first, second = (np.rint(r * scale).astype(int) for r in results)
    np.testing.assert_allclose(first / scale, results[0], atol=1e-9)
    assert_alike(first, second)


def test_a_cohort_larger_than_expected_is_counted_whole() -> None:
    half = protection(eps=60.0, cells=4, fidelity="aggregate", target="update")
    cohort = dict.fromkeys(range(len(COHORT) + 3), np.full(6, 0.25))
    aggregate = play(half, np.zeros(6), cohort)
    assert (aggregate.reports, aggregate.update.tolist()) == (7, pytest.approx([0.25] * 6))
    assert half.norm_clip == pytest.approx(6**0.5)


def test_a_cohort_s_law_is_the_convolution_of_its_clients() -> None:
    encoding = protection("oue", eps=0.7, cells=3).encoding(0.7)
    cohort = CohortSum(40_000, 3, capacity=8)  # three clients dropped out
    law = np.ones(1)
    for state in (3, 3, -1, 0, 3):
        cohort.add(np.full(40_000, state, np.int16))
        law = np.convolve(law, encoding.sum_law(state))
    sums = cohort.draw(encoding.exact_p, encoding.exact_q, Seeded(1))
    counts = np.bincount(sums + 5 * encoding.largest_sum, minlength=len(law))
    assert_follows(counts.tolist(), law)


def test_cohorts_merge_and_are_bounded() -> None:
    halves = [CohortSum(4, 2, capacity=3) for _ in range(2)]
    whole = CohortSum(4, 2, capacity=3)
    for half, state in ((halves[0], 1), (halves[1], -2), (halves[1], 0)):
        half.add(np.full(4, state, np.int16))
        whole.add(np.full(4, state, np.int16))
    halves[0].merge(halves[1])
    p, q = Fraction(3, 4), Fraction(1, 4)
    np.testing.assert_array_equal(halves[0].draw(p, q, Seeded(0)), whole.draw(p, q, Seeded(0)))
    with pytest.raises(ValueError, match="more than 3 clients"):
        whole.add(np.zeros(4, np.int16))
    with pytest.raises(ValueError, match="more than 3 clients"):
        halves[0].merge(halves[1])


@pytest.mark.parametrize("clients", [255, 256, 257])
def test_a_state_that_all_clients_share_is_counted_whole(clients: int) -> None:
    """A count of 256 does not fit in eight bits. With almost no noise the sum is exact."""
    p, q = 1 - Fraction(1, 1 << 30), Fraction(1, 1 << 30)
    whole, halves = CohortSum(3, 2, clients), [CohortSum(3, 2, clients) for _ in range(2)]
    for client in range(clients):
        for cohort in (whole, halves[client % 2]):
            cohort.add(np.array([2, -1, client % 2], np.int16))
    halves[0].merge(halves[1])
    for cohort in (whole, halves[0]):
        drawn = cohort.draw(p, q, Seeded(5))
        assert drawn.tolist() == [2 * clients, -clients, clients // 2]


def test_compiled_and_numpy_counts_are_the_same() -> None:
    kernel = cohort_sum._count
    clients = np.array([[-2, -1, 0, 1], [-2, 2, 2, -1], [-2, 2, 1, 0]], np.int16)
    counts = [np.zeros((4, 5), np.uint8) for _ in range(2)]
    kernel(counts[0], clients, 2)
    getattr(kernel, "numpy_path", kernel)(counts[1], clients, 2)
    expected = [[3, 0, 0, 0, 0], [0, 1, 0, 0, 2], [0, 0, 1, 1, 1], [0, 1, 1, 1, 0]]
    for each in counts:
        assert each.tolist() == expected


def test_hostile_states_change_nothing() -> None:
    half = protection(eps=1.0, fidelity="aggregate")
    model = np.zeros(6)
    room = server(half, model)
    good = report(half, room, model, np.ones(6), 3, 0)
    outside = half.encoding(1.0).pack(np.array([51, 0, 0, 0, 0, 0], np.int16))
    for bad in (
        {**good, "states": outside},
        {**good, "token": bytes(31)},
        {**good, "states": good["states"][:-1]},
        {"round": 7, "report": good["states"]},
    ):
        with pytest.raises(ReportRejected):
            room.receive(5, bad)
    room.receive(3, good)
    room.advance()
    alone = play(half, model, {3: np.ones(6)})
    np.testing.assert_array_equal(room.aggregate().update, alone.update)


# Binomial draws


@pytest.mark.parametrize(("trials", "probability"), [(1, 0.3), (7, 0.01), (300, 0.5), (5000, 0.2)])
def test_binomial_draws_follow_the_law(trials: int, probability: float) -> None:
    binomial = Binomial(Fraction(probability))
    law = stats.binom.pmf(np.arange(trials + 1), trials, probability)
    same = binomial.draw(trials, 30_000, Seeded(1, trials))
    assert_follows(np.bincount(same, minlength=trials + 1).tolist(), law)
    each = binomial.draw_each(np.full(30_000, trials), Seeded(2, trials))
    assert_follows(np.bincount(each, minlength=trials + 1).tolist(), law)


def test_binomial_draws_of_no_trials() -> None:
    binomial = Binomial(Fraction(1, 3))
    np.testing.assert_array_equal(binomial.draw(0, 3, Seeded(0)), [0, 0, 0])
    got = binomial.draw_each(np.array([0, 0, 9]), Seeded(0))
    assert got[0] == got[1] == 0
    assert len(binomial.draw_each(np.zeros(0, np.int64), Seeded(0))) == 0


@pytest.mark.parametrize("probability", [Fraction(1, 2), Fraction(0.3), 1 - Fraction(3.7e-44)])
def test_binomial_laws_are_exact(probability: Fraction) -> None:
    for trials in (1, 2, 33):
        exact = _exact_law(probability, trials)
        one, zero = probability, 1 - probability
        total = sum(exact)
        for k, (weight, mass) in enumerate(zip(exact, _law(probability, trials), strict=True)):
            truth = math.comb(trials, k) * one**k * zero ** (trials - k)
            assert Fraction(weight, total) == truth
            if truth > 1e-290:
                assert abs(Fraction(mass) / truth - 1) < 2.0**-52


@pytest.mark.parametrize("state", [4, -4])
def test_an_exact_state_outside_the_range_is_refused(state: int) -> None:
    """It would be counted for another state, at the other end."""
    half, model = protection(fidelity="aggregate", cells=3), np.zeros(6, np.float32)
    states = np.zeros(6, np.int16)
    for at, fits in ((state - int(np.sign(state)), True), (state, False)):
        states[2] = at
        packed = half.encoding(half.settings.eps).pack(states)
        message = {"round": 7, "states": packed, "token": bytes(32)}
        lone = server(half, model)
        if fits:
            lone.receive(COHORT[0], message)
            continue
        with pytest.raises(ReportRejected, match="a state outside its range"):
            lone.receive(COHORT[0], message)
