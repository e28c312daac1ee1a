"""The ledger: its figures against a plain one, its records, its state, and the documented page."""

from __future__ import annotations

import doctest
import math
import re
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedveil.base.message import decode, encode
from fedveil.errors import InvalidValue
from fedveil.privacy import (
    Figure,
    Gaussian,
    Ledger,
    LossDistribution,
    PrivacyLoss,
    compose,
    project,
)
from folders import DOCS

DELTA = 1e-5
BIT = PrivacyLoss(0.5, per="bit")
PARAMETER = PrivacyLoss(1.0, per="parameter", part=BIT)
SELECTION = PrivacyLoss(4.0, per="update")
NOISE = PrivacyLoss(3.0, 1e-6, per="update", release=Gaussian(1.7))
COIN = PrivacyLoss.from_laws([[0.7, 0.3], [0.3, 0.7]], per="parameter", part=BIT)
NOTHING = PrivacyLoss(math.inf, per="update")


@dataclass(frozen=True)
class Spending:
    """A loss as protections state it."""

    loss: PrivacyLoss
    count: int = 1


# Figures


def test_what_leaves_in_clear_is_named_and_changes_no_figure():
    ledger = Ledger()
    ledger.record_many([(PrivacyLoss(0.5), 1)], round=1, clients=[0])
    ledger.note_in_clear(["the metric loss", "sizes"])
    ledger.note_in_clear(["sizes"])
    for same in (ledger.copy(), Ledger.from_state(decode(encode(ledger.to_state())))):
        assert same.in_clear == ("sizes", "the metric loss")
        assert same.epsilon("run") == 0.5
    assert Ledger().in_clear == ()


def test_a_round_that_was_cut_off_is_charged_ahead_and_once_more_when_it_comes():
    ledger = Ledger()
    ledger.record_many([(PrivacyLoss(0.5), 1)], round=3, clients=[0, 1], ahead=True)
    ledger.record_many([(PrivacyLoss(0.25), 1)], round=1, clients=[0])
    ledger.record_many([(PrivacyLoss(1.0), 1)], round=3, clients=[0])
    assert ledger.epsilon("run") == 1.75
    assert ledger.epsilon("round") == 1.5


def test_two_reports_of_a_round_add_up_before_a_round_that_was_cut_off():
    ledger = Ledger()
    ledger.record_many([(PrivacyLoss(0.5), 1)], round=3, clients=[0, 1], ahead=True)
    for loss in (PrivacyLoss(1.0), PrivacyLoss(0.25)):
        ledger.record_many([(loss, 1)], round=1, clients=[0])
    assert ledger.epsilon("round") == 1.25
    assert ledger.epsilon_every_round() == ledger.epsilon("run") == 1.75


def test_a_bit_and_a_parameter_show_in_every_report_of_a_repeated_round():
    ledger = Ledger()
    ledger.record_many([(PARAMETER, 12)], round=1, clients=[0, 1], ahead=True)
    assert ledger.epsilon("parameter") == 1.0
    ledger.record_many([(PARAMETER, 12)], round=1, clients=[0])
    for same in (ledger, ledger.copy(), Ledger.from_state(decode(encode(ledger.to_state())))):
        found = [same.epsilon(per) for per in ("bit", "parameter", "round", "run")]
        assert found == [1.0, 2.0, 24.0, 24.0]
    ledger.record(PARAMETER, round=1, client=0, count=3)  # a part of a report
    assert ledger.epsilon("parameter") == 2.0
    assert ledger.epsilon("run") == 27.0


def test_no_charge_is_lost_where_clients_of_a_round_change_places():
    """After the third charge, client 1 has paid as much as client 2 had before it."""
    loss, ledger = PrivacyLoss(1.0), Ledger()
    for clients in ([1], [2], [2], [1, 2]):
        ledger.record_many([(loss, 1)], round=0, clients=clients)
    ledger.record_many([(loss, 5)], round=1, clients=[1])
    assert ledger.epsilon("run") == 7.0


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 1), st.integers(1, 3),
            st.sets(st.integers(0, 3), min_size=1), st.booleans(),
        ),
        max_size=8,
    )
)  # fmt: skip
def test_every_client_pays_all_that_it_is_charged(records):
    ledger, paid = Ledger(), Counter()
    for number, count, clients, ahead in sorted(records, key=lambda record: record[0]):
        charge = [(SELECTION if count == 1 else BIT, count)]
        ledger.record_many(charge, round=number, clients=clients, ahead=ahead)
        for client in clients:
            paid[client] += charge[0][0].epsilon * count
    assert ledger.epsilon("run") == max(paid.values(), default=0.0)


def test_unary_reports_cost_what_the_table_says():
    """100 parameters of two bits each, eps = 0.5 per bit: 51.97 by bits, 79.84 by parameters."""
    by_parameter, by_bit = Ledger(), Ledger()
    by_parameter.record(PARAMETER, round=0, client=0, count=100)
    by_bit.record(BIT, round=0, client=0, count=200)
    assert by_parameter.epsilon("bit") == 0.5
    assert by_parameter.epsilon("parameter") == 1.0
    assert by_parameter.epsilon("round") == by_parameter.epsilon("run") == 100.0
    assert by_parameter.epsilon("run", DELTA) == pytest.approx(79.8413, rel=2e-6)
    assert by_bit.epsilon("run", DELTA) == pytest.approx(51.966, rel=2e-6)


def test_the_most_drawn_client_sets_the_run():
    ledger = Ledger()
    for client, rounds in ((1, 3), (2, 5), (3, 1)):
        for number in range(rounds):  # client by client: rounds come in any order
            ledger.record(PARAMETER, round=number, client=client, count=10)
    assert ledger.epsilon("round") == 10.0
    assert ledger.epsilon("run") == 50.0
    assert ledger.epsilon("run", DELTA) == compose([(PARAMETER, 50)], DELTA)
    assert ledger.epsilon_every_round() == 50.0
    ledger.record(PARAMETER, round=5, client=1, count=10)
    assert ledger.epsilon("run") == 50.0
    assert ledger.epsilon_every_round() == 60.0


def test_a_parameter_shows_in_everything_that_a_report_says_about_the_update():
    """Selection and magnitude bit: one parameter moves both, one bit only one of them."""
    ledger = Ledger()
    ledger.record_many([(SELECTION, 1), (BIT, 1)], round=1, clients=[7])
    assert ledger.epsilon("bit") == 4.0
    assert ledger.epsilon("parameter") == ledger.epsilon("round") == 4.5
    assert ledger.epsilon("round", DELTA) < 4.5


@pytest.mark.parametrize(
    ("spendings", "bit", "parameter", "whole"),
    [
        ([(BIT, 12)], 0.5, 6.0, 6.0),
        ([(PrivacyLoss(1.0, per="parameter"), 12)], 1.0, 1.0, 12.0),
        ([(PARAMETER, 12)], 0.5, 1.0, 12.0),
        ([(PARAMETER, 12), (PrivacyLoss(0.25, per="parameter"), 3)], 0.5, 1.25, 12.75),
        ([(PrivacyLoss(2.0, per="vector", part=BIT), 8)], 0.5, 2.0, 16.0),
        ([(SELECTION, 2)], 8.0, 8.0, 8.0),
        ([(PrivacyLoss(9.0, per="update", part=PARAMETER), 2)], 1.0, 2.0, 18.0),
        ([(NOTHING, 1)], math.inf, math.inf, math.inf),
        ([], 0.0, 0.0, 0.0),
    ],
)
def test_what_a_bit_and_a_parameter_are_charged(spendings, bit, parameter, whole):
    ledger = Ledger()
    ledger.record_many(spendings, round=0, clients=[3])
    found = [ledger.epsilon(per) for per in ("bit", "parameter", "round", "run")]
    assert found == [bit, parameter, whole, whole]


def test_spending_twice_in_a_round_is_one_round():
    together, apart = Ledger(), Ledger()
    together.record_many([(SELECTION, 1), (BIT, 1)], round=0, clients=[1, 2, 3])
    for client in (1, 2, 3):
        apart.record(BIT, round=0, client=client)
        apart.record(SELECTION, round=0, client=client)
    apart.record(BIT, round=1, client=4)
    for per in ("bit", "parameter", "round", "run"):
        assert apart.epsilon(per, DELTA) == together.epsilon(per, DELTA)
    assert apart.epsilon_every_round() == 5.0


def test_figures_name_the_delta_they_hold_at():
    ledger = Ledger()
    for number in range(4):
        ledger.record_many([Spending(PARAMETER, 30)], round=number, clients=range(5))
    tight = compose([(PARAMETER, 30)], DELTA)
    run = compose([(PARAMETER, 120)], DELTA)
    assert ledger.figures(DELTA) == {
        "per_bit": Figure(0.5, 0.0),
        "per_parameter": Figure(1.0, 0.0),
        "per_round": Figure(tight, DELTA),
        "run_every_round": Figure(run, DELTA),
        "run_most_drawn": Figure(run, DELTA),
    }
    assert ledger.figures(0.0)["run_most_drawn"] == Figure(120.0, 0.0)


def test_figures_of_noise_and_of_nothing():
    ledger = Ledger()
    ledger.record(NOISE, round=0, client=0)
    assert ledger.figures(0.0)["per_round"] == Figure(math.inf, 0.0)
    found = ledger.figures(DELTA)["per_round"]
    assert found.delta == DELTA
    assert 2 < found.epsilon < 3
    ledger.record(NOTHING, round=0, client=1)
    assert ledger.figures(DELTA)["run_every_round"] == Figure(math.inf, DELTA)


def test_every_round_is_not_the_most_drawn_client():
    """Rounds of different cost: nobody took part in all of them."""
    ledger = Ledger()
    ledger.record_many([(PARAMETER, 10)], round=0, clients=[0, 1])
    ledger.record_many([(PARAMETER, 20)], round=1, clients=[1, 2])
    ledger.record_many([(PARAMETER, 5)], round=2, clients=[0, 2])
    assert ledger.epsilon("run") == 30.0
    assert ledger.epsilon_every_round() == 35.0
    assert ledger.epsilon("round") == 20.0
    assert ledger.epsilon_every_round(DELTA) == compose([(PARAMETER, 35)], DELTA)


def test_of_reports_that_cost_more_once_or_more_often_a_client_in_every_round_pays_the_latter():
    """A single Gaussian report costs more than the pure one, and a hundred cost far less."""
    noise, pure = PrivacyLoss.of_release(Gaussian(3.5)), PrivacyLoss(1.0)
    assert compose([(noise, 1)], DELTA) > 1
    assert compose([(noise, 100)], DELTA) < 16
    ledger = Ledger()
    for number in range(100):
        ledger.record_many([(noise, 1)], round=number, clients=[0])
        ledger.record_many([(pure, 1)], round=number, clients=[1])
    figures = ledger.figures(DELTA)
    assert figures["run_every_round"].epsilon == compose([(pure, 100)], DELTA)
    assert ledger.kinds_every_round(DELTA) == [(((pure, 1),), 100)]
    assert ledger.epsilon_every_round() == math.inf  # client 0 has no epsilon at delta = 0


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from([0, 1, 2]), st.integers(1, 3)), min_size=2, max_size=2),
        min_size=1, max_size=8,
    ),
)  # fmt: skip
def test_no_client_of_every_round_costs_more_than_the_figure_says(rounds):
    """Two clients, each with any report in each round: Gaussian, pure or with a delta."""
    losses = [PrivacyLoss.of_release(Gaussian(3.5)), PrivacyLoss(0.6), PrivacyLoss(1.0, 1e-6)]
    ledger, paid = Ledger(), ([], [])
    for number, reports in enumerate(rounds):
        for client, (which, count) in enumerate(reports):
            ledger.record_many([(losses[which], count)], round=number, clients=[client])
            paid[client].append((losses[which], count))
    stated = ledger.epsilon_every_round(DELTA)
    assert all(compose(charges, DELTA) <= stated for charges in paid)


def test_the_worst_of_histories_that_cannot_be_ordered():
    """Delta decides which client has the largest epsilon: few large losses, or many small ones."""
    ledger = Ledger()
    small, large = PrivacyLoss(0.1, per="update"), PrivacyLoss(5.0, per="update")
    for number in range(60):
        ledger.record(small, round=number, client=1)
    ledger.record(large, round=60, client=2)
    assert ledger.epsilon("run") == pytest.approx(6.0)
    expected = max(compose([(small, 60)], 1e-3), compose([(large, 1)], 1e-3))
    assert ledger.epsilon("run", 1e-3) == pytest.approx(expected, abs=1e-2)
    assert compose([(small, 60)], 1e-3) < expected


@pytest.mark.parametrize("dearest", range(20))
def test_many_different_histories_are_bounded_together(dearest):
    """Each client missed one round; the worst is the one that missed the cheapest."""
    ledger = Ledger()
    kinds = [PrivacyLoss(0.1 + ((k + dearest) % 20) / 100, per="update") for k in range(20)]
    for number, loss in enumerate(kinds):
        everyone_else = [c for c in range(20) if c != number]
        ledger.record_many([(loss, 1)], round=number, clients=everyone_else)
    exact = max(compose([(k, 1) for i, k in enumerate(kinds) if i != c], DELTA) for c in range(20))
    assert exact <= ledger.epsilon("run", DELTA) <= ledger.epsilon_every_round(DELTA)


# Against a plain ledger

LOSSES = [BIT, PARAMETER, SELECTION, PrivacyLoss(0.1, per="update"), PrivacyLoss(0.7, 1e-7)]
RECORDS = st.lists(
    st.tuples(
        st.sampled_from(LOSSES), st.integers(0, 4), st.sampled_from([0, 1, 2, 2**64 - 1]),
        st.integers(1, 5),
    ),
    max_size=25,
)  # fmt: skip


def plain_figures(records, delta):
    """One list of charges for each client and round."""
    spent = {}
    for loss, number, client, count in records:
        spent.setdefault((number, client), Counter())[loss] += count
    rounds, runs = [Counter()], {}
    for (_, client), charges in spent.items():
        rounds.append(charges)
        runs.setdefault(client, Counter()).update(charges)

    def cost(charges):
        if len(charges) == 1 and charges.total() == 1 and next(iter(charges)).pure:
            return next(iter(charges)).epsilon
        return compose(charges.items(), delta)

    return max(map(cost, rounds)), max(map(cost, runs.values()), default=0.0)


@settings(max_examples=60, deadline=None)
@given(RECORDS, st.sampled_from([0.0, 1e-5, 1e-6]))
def test_agrees_with_a_plain_ledger(records, delta):
    ledger = Ledger()
    for loss, number, client, count in records:
        ledger.record(loss, round=number, client=client, count=count)
    per_round, run = plain_figures(records, delta)
    assert ledger.epsilon("round", delta) == per_round
    assert ledger.epsilon("run", delta) == pytest.approx(run, rel=1e-9)
    assert ledger.epsilon("run", delta) >= run * (1 - 1e-12)
    sizes = [ledger.epsilon(per) for per in ("bit", "parameter", "round", "run")]
    assert sizes == sorted(sizes)
    assert ledger.epsilon_every_round() >= sizes[2]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.lists(st.tuples(st.sampled_from(LOSSES), st.integers(1, 3)), min_size=1, max_size=2),
            st.sets(st.integers(0, 6), min_size=1),
        ),
        min_size=1, max_size=8,
    ),
    st.booleans(),
)  # fmt: skip
def test_recording_many_is_recording_each(rounds, adaptive):
    many, each = Ledger(adaptive=adaptive), Ledger(adaptive=adaptive)
    for number, (spendings, clients) in enumerate(rounds):
        many.record_many([Spending(*s) for s in spendings], round=number, clients=clients)
        for client in clients:
            for loss, count in spendings:
                each.record(loss, round=number, client=client, count=count)
    for delta in (0.0, DELTA):
        for per in ("bit", "parameter", "round", "run"):
            found = many.epsilon(per, delta)
            assert found == pytest.approx(each.epsilon(per, delta), rel=1e-9)
        assert many.epsilon_every_round(delta) == pytest.approx(
            each.epsilon_every_round(delta), rel=1e-9
        )


# Adaptive runs


def test_adaptive_rounds_add_plainly():
    ledger = Ledger(adaptive=True)
    for number, epsilon in enumerate((0.5, 0.625, 0.8)):
        loss = PrivacyLoss(epsilon, per="parameter")
        ledger.record_many([(loss, 100)], round=number, clients=[1, 2])
    ledger.record_many([(PrivacyLoss(9.0), 1)], round=3, clients=[2])
    assert ledger.epsilon("run") == ledger.epsilon("run", DELTA) == 201.5
    assert ledger.epsilon_every_round(DELTA) == 201.5
    assert ledger.epsilon("round", DELTA) < 80.0  # within a round everything was fixed
    assert ledger.figures(DELTA)["run_most_drawn"] == Figure(201.5, 0.0)


def test_adaptive_sums_are_never_below_the_exact_ones():
    ledger = Ledger(adaptive=True)
    terms = [0.1, 0.3, 1e-17, 7.7, 1e9, 1 / 3] * 5
    for number, epsilon in enumerate(terms):
        ledger.record_many([(PrivacyLoss(epsilon), 1)], round=number, clients=[5])
    exact = sum(map(Fraction, terms))
    assert exact <= Fraction(ledger.epsilon("run")) <= exact * (1 + Fraction(1, 10**14))


def test_adaptive_deltas_add_and_the_release_is_left_out():
    ledger = Ledger(adaptive=True)
    for number in range(3):
        ledger.record_many([(NOISE, 1), (COIN, 2)], round=number, clients=[0])
    ledger.record_many([(COIN, 1)], round=3, clients=[7])  # its own deltas are few
    assert math.isinf(ledger.epsilon("run", 2e-6))
    assert ledger.epsilon("run", 4e-6) == pytest.approx(9 + 6 * COIN.epsilon)
    whole = PrivacyLoss(9.0, 1e-5, release=Gaussian(1.7), part=COIN)
    ((stored, _),) = ledger.charges([(whole, 1)])
    assert stored == PrivacyLoss(
        9.0, 1e-5, part=PrivacyLoss(COIN.epsilon, per="parameter", part=BIT)
    )
    infinite = Ledger(adaptive=True)
    for number in range(2):
        infinite.record_many([(NOTHING, 1)], round=number, clients=[0])
    assert math.isinf(infinite.epsilon("run", DELTA))


# Records


def test_a_closed_round_stays_closed():
    ledger = Ledger()
    ledger.record_many([(BIT, 1)], round=3, clients=[0])
    ledger.record_many([(BIT, 1)], round=3, clients=[1])
    ledger.record(BIT, round=4, client=0)
    ledger.record_many([(BIT, 1)], round=4, clients=[1])
    with pytest.raises(InvalidValue, match="round = 3 is closed: round 4 has begun"):
        ledger.record(BIT, round=3, client=2)
    assert ledger.epsilon("run") == 1.0


def test_what_is_kept_grows_with_clients_and_not_with_rounds():
    ledger, clients = Ledger(), 100_000
    taken = np.zeros(clients, np.int64)
    for number in range(40):
        drawn = np.arange(number % 2, clients, 1 + number % 3)
        taken[drawn] += 1
        ledger.record_many([(PARAMETER, 50), (BIT, 1)], round=number, clients=drawn)
    size = len(encode(ledger.to_state()))
    assert size < clients * (8 + 4 + 8) + 2000  # clients, counts, and the open round's clients
    assert ledger.epsilon("run") == 50.5 * taken.max()
    assert ledger.epsilon("round") == 50.5


def test_refused_records_change_nothing():
    ledger = Ledger()
    ledger.record(BIT, round=0, client=0)
    before = encode(ledger.to_state())
    for bad, sentence in [
        ({"round": -1, "clients": [0]}, "round = -1 is outside"),
        ({"round": 1, "clients": [0, 5, 0]}, "clients holds 0 twice"),
        ({"round": 1, "clients": [-4]}, "client = -4 is outside"),
        ({"round": 1, "clients": [0.5]}, "client = 0.5 is not a whole number"),
        ({"round": 1, "clients": np.zeros((2, 2), np.int64)}, "clients has shape"),
    ]:
        with pytest.raises(InvalidValue, match=re.escape(sentence)):
            ledger.record_many([(BIT, 1)], **bad)
    with pytest.raises(InvalidValue, match="count = 0 is outside"):
        ledger.record(BIT, round=1, client=0, count=0)
    with pytest.raises(InvalidValue, match="count = 9007199254740993 is outside"):
        ledger.record(BIT, round=1, client=0, count=2**53 + 1)
    with pytest.raises(InvalidValue, match=r"delta = 1\.0 is outside"):
        ledger.epsilon_every_round(1.0)
    with pytest.raises(InvalidValue, match=r"loss = 0\.5 is not a PrivacyLoss"):
        ledger.record(0.5, round=1, client=0)
    with pytest.raises(InvalidValue, match="per = 'week' is not one of bit, parameter, round, run"):
        ledger.epsilon("week")
    with pytest.raises(InvalidValue, match=r"delta = 1\.5 is outside"):
        ledger.figures(1.5)
    assert encode(ledger.to_state()) == before


# State, preview, projection


def mixed_ledger(adaptive=False):
    ledger = Ledger(adaptive=adaptive)
    ledger.record_many([(SELECTION, 1), (BIT, 1)], round=0, clients=[0, 1, 2**64 - 1])
    ledger.record_many([(NOISE, 1), (COIN, 7)], round=1, clients=[1, 5])
    ledger.record_many([(PARAMETER, 20)], round=2, clients=[0, 5])
    ledger.record(COIN, round=2, client=5)
    ledger.record(BIT, round=9, client=0)
    return ledger


def crossed_ledger(adaptive=False):
    """The rounds that had both kinds of charges come last, and are one more than the first."""
    ledger = Ledger(adaptive=adaptive)
    for number, groups in enumerate([[0], [0, 0], [1], [0, 1], [0, 1], [0, 1], [1, 0]]):
        for client, kind in enumerate(groups):
            spent = [(SELECTION, 2), (BIT, 3)][kind]
            ledger.record_many([spent], round=number, clients=[client + 10 * kind])
    return ledger


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize(
    "make", [mixed_ledger, crossed_ledger, lambda adaptive: Ledger(adaptive=adaptive)]
)
def test_state_survives_a_checkpoint(make, adaptive):
    ledger = make(adaptive)
    data = encode(ledger.to_state())
    resumed = Ledger.from_state(decode(data))
    assert encode(resumed.to_state()) == data
    for delta in (0.0, DELTA):
        assert resumed.figures(delta) == ledger.figures(delta)
    for both in (ledger, resumed):
        both.record_many([(COIN, 3), (NOISE, 1)], round=9, clients=[0, 2])
        both.record_many([(PrivacyLoss(0.3), 1)], round=10, clients=[0, 9])
    assert encode(resumed.to_state()) == encode(ledger.to_state())
    assert resumed.figures(DELTA) == ledger.figures(DELTA)
    with pytest.raises(InvalidValue, match="is closed"):
        resumed.record(BIT, round=1, client=0)


def test_a_state_is_a_snapshot():
    ledger = mixed_ledger()
    state = ledger.to_state()
    data = encode(state)
    ledger.record_many([(SELECTION, 1), (BIT, 1)], round=10, clients=[0, 1, 2**64 - 1])
    ledger.record_many([(SELECTION, 1), (BIT, 1)], round=11, clients=[0, 1, 2**64 - 1])
    assert encode(state) == data


@pytest.mark.parametrize("adaptive", [False, True])
def test_nothing_that_is_asked_changes_a_ledger(adaptive):
    """Rounds of the same kinds and clients, which a ledger counts up where it has them already."""
    pair = [(BIT, 3)], [(SELECTION, 1), (COIN, 2)]
    plan = [(pair[number % 2], [0, 2 + number % 3]) for number in range(7)]

    def recorded(rounds):
        ledger = Ledger(adaptive=adaptive)
        for number, (spendings, clients) in enumerate(rounds):
            ledger.record_many(spendings, round=number, clients=clients)
        return ledger

    ledger = Ledger(adaptive=adaptive)
    for number, (spendings, clients) in enumerate(plan):
        before = ledger.figures(DELTA)
        state, twin = ledger.to_state(), ledger.copy()
        written = encode(state)
        for ahead in (max(number - 1, 0), number):
            ledger.preview([(SELECTION, 1)], round=ahead, clients=[0, 3], delta=DELTA)
        ledger.record_many(spendings, round=number, clients=clients)
        assert ledger.figures(DELTA) == recorded(plan[: number + 1]).figures(DELTA)
        assert twin.figures(DELTA) == before
        assert encode(twin.to_state()) == encode(state) == written


def test_a_foreign_state_is_refused():
    with pytest.raises(InvalidValue, match="state is not one of a ledger"):
        Ledger.from_state({"adaptive": False})
    state = mixed_ledger().to_state()
    paid, rows = np.zeros_like(state["tally.counts"]), np.array(state["open.rows"])
    rows[:, 0] -= 1
    beyond = np.array(state["open.rows"])
    beyond[-1, 1] = len(state["kind.sizes"])
    assert state["first_open"] == rows[0, 0] + 1 == 2
    for changed, why in (
        ({"tally.counts": paid}, "clients have not paid what its rounds cost"),
        ({"first_open": 1}, "rounds that are over = 2 is outside"),
        ({"open.rows": rows}, "round = 1 is outside"),
        ({"open.rows": beyond}, "kind = 5 is outside"),
        ({"closed.kinds": "0 5"}, "kind = 5 is outside"),
        ({"closed.kinds": "1 0"}, "it is not written as a ledger writes it"),
        ({"release.9.ratio": 0.5}, "it is not written as a ledger writes it"),
    ):
        with pytest.raises(InvalidValue, match=why):
            Ledger.from_state({**state, **changed})
    for number in range(len(state["tally.clients"]) - 1):
        twice = state["tally.clients"].copy()
        twice[number] = twice[number + 1]
        with pytest.raises(InvalidValue, match="clients are not in their order, or twice"):
            Ledger.from_state({**state, "tally.clients": twice})
    adaptive = mixed_ledger(adaptive=True).to_state()
    sums = adaptive["tally.sums"]
    less = np.where(sums == sums.max(), -1.0, sums)
    for paid in (less, np.full_like(sums, np.nan), np.vstack([sums, sums])):
        with pytest.raises(InvalidValue, match="is not two sums each"):
            Ledger.from_state({**adaptive, "tally.sums": paid})


def test_a_described_release_is_stored_worked_out():
    class Described:
        def distribution(self):
            return COIN.release

    described = PrivacyLoss(COIN.epsilon, per="parameter", release=Described(), part=BIT)
    one, other = Ledger(), Ledger()
    one.record(described, round=0, client=0, count=30)
    other.record(COIN, round=0, client=0, count=30)
    for ledger, release in ((one, Described()), (other, COIN.release)):
        bit = PrivacyLoss(COIN.epsilon, per="bit", release=release)
        ledger.record(PrivacyLoss(9.0, per="parameter", part=bit), round=1, client=0, count=2)
    assert encode(one.to_state()) == encode(other.to_state())
    assert isinstance(one._kinds[0][0][0].release, LossDistribution)


def test_a_preview_is_what_recording_gives():
    ledger = mixed_ledger()
    before = encode(ledger.to_state())
    ahead = ledger.preview([Spending(PARAMETER, 9)], round=10, clients=[0, 3], delta=DELTA)
    assert encode(ledger.to_state()) == before
    ledger.record_many([(PARAMETER, 9)], round=10, clients=[0, 3])
    assert ledger.figures(DELTA) == ahead


def test_a_projection_is_a_run_in_which_a_client_is_always_drawn():
    spendings = [(PARAMETER, 40), (SELECTION, 1)]
    ledger = Ledger()
    for number in range(12):
        ledger.record_many(spendings, round=number, clients=[0, 1 + number])
    found = project(spendings, 12, DELTA)
    assert found.pop("run_most_drawn") is None
    expected = ledger.figures(DELTA)
    assert found == {name: expected[name] for name in found}
    adaptive = project([Spending(PARAMETER, 40)], 12, DELTA, adaptive=True)
    assert adaptive["run_every_round"] == Figure(480.0, 0.0)
    spendings = [(NOISE, 1), (COIN, 7)]
    ledger = Ledger(adaptive=True)
    for number in range(3):
        ledger.record_many(spendings, round=number, clients=[0])
    expected = {**ledger.figures(1e-4), "run_most_drawn": None}
    assert project(spendings, 3, 1e-4, adaptive=True) == expected
    with pytest.raises(InvalidValue, match="rounds = 0 is outside"):
        project(spendings, 0, DELTA)


def test_a_report_that_costs_nothing_has_epsilon_0():
    found = project([], 3, DELTA)
    assert {figure for figure in found.values() if figure is not None} == {Figure(0.0, 0.0)}


# The documented page


@pytest.mark.parametrize(
    ("name", "pieces", "lines"), [("privacy", 5, 14), ("audits/mechanism", 1, 6)]
)
def test_the_page_runs(name: str, pieces: int, lines: int) -> None:
    """Every example of the page, one after the other, with the output that it shows."""
    page = DOCS / f"{name}.md"
    snippets = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    assert len(snippets) >= pieces
    examples = doctest.DocTestParser().get_doctest("".join(snippets), {}, page.name, str(page), 0)
    assert len(examples.examples) >= lines
    report: list[str] = []
    doctest.DocTestRunner().run(examples, out=report.append)
    assert not report, "".join(report)


@pytest.mark.parametrize("adaptive", [False, True])
def test_a_ledger_knows_the_clients_that_it_charged(adaptive: bool) -> None:
    ledger = Ledger(adaptive=adaptive)
    assert ledger.clients.tolist() == []
    for round, clients in ((1, [9, 2]), (2, []), (3, [4, 2])):
        ledger.record_many([(PrivacyLoss(0.5), 1)], round=round, clients=clients)
    assert ledger.clients.tolist() == [2, 4, 9]
    assert Ledger.from_state(ledger.to_state()).clients.tolist() == [2, 4, 9]
