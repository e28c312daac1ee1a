"""Each estimate by its formula, with several rows a client, and clients that were not asked."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedveil.statistics.answering import _CHOSEN, _EXACT, _NORMAL, answer_of, averaged
from fedveil.statistics.encodings import Scaled
from fedveil.statistics.estimates import Sums, correlation, count, from_ends, mean, ratio, variance
from fedveil.statistics.prefixes import Found
from fedveil.statistics.question import QuestionFile
from fedveil.statistics.schedule import Schedule

#: 25 of 40 clients were asked, and each contributes up to three rows.
ASKED, CLIENTS, ROWS, Z = 25, 40, 3, 1.7


def sums(*values: float, noise: float = 4.0, asked: int = ASKED, rows: int | None = ROWS) -> Sums:
    return Sums(np.array(values), np.full(len(values), noise), asked, CLIENTS, rows)


def test_a_count_of_clients_with_several_rows() -> None:
    found = count(70.0, 4.0, sums(70.0), {}, Z)
    variance = (70 * (ROWS - 70 / CLIENTS) + (Z * ROWS) ** 2) * CLIENTS / ASKED
    assert (found.noise, found.sampling) == pytest.approx((2.0, math.sqrt(variance)))
    reach = Z * math.sqrt(4.0 + variance)
    assert (found.low, found.high) == pytest.approx((70 - reach, 70 + reach))
    assert count(110.0, 4.0, sums(110.0), {}, Z).high == CLIENTS * ROWS
    alone = count(70.0, 4.0, sums(70.0, rows=None), {}, Z)  # rows, and not clients, are drawn
    assert alone.sampling**2 == pytest.approx((70 + Z**2) * CLIENTS / ASKED)


def test_a_mean_of_clients_with_several_rows() -> None:
    column = Scaled("x", [-10.0, 30.0])
    found = ratio(sums(12.0, 61.0, noise=0.25), *mean(column), {}, Z)
    assert found.value == pytest.approx(10 + 20 * 12 / 61)
    spread = 20**2 * (1 - (12 / 65) ** 2)
    assert found.sampling**2 == pytest.approx(spread * ROWS * CLIENTS / ASKED / 61)


def test_a_mean_beyond_its_range_is_at_its_end() -> None:
    column = Scaled("x", [-10.0, 30.0])
    for total, end in ((70.0, 30.0), (-70.0, -10.0)):
        found = ratio(sums(total, 61.0, noise=0.25), *mean(column), {}, Z)
        assert found.value == end
        assert -10 <= found.low < found.high <= 30


@pytest.mark.parametrize("noise", [0.0, 4.0])
def test_a_ratio_without_rows_is_its_whole_range(noise: float) -> None:
    """The sums of a group that nobody is in are exactly 0 under a protection without noise."""
    x, y = Scaled("x", [-10.0, 30.0]), Scaled("y", [2.0, 3.0])
    cases = [
        (mean(x), 2, -10.0, 30.0),
        (variance(x), 3, 0.0, 400.0),
        (correlation(), 6, -1.0, 1.0),
        (from_ends([x], squares=False), 2, -10.0, 30.0),
        (from_ends([x], squares=True), 3, 0.0, 400.0),
        (from_ends([x, y], squares=True), 9, -1.0, 1.0),
    ]
    for statistic, entries, low, high in cases:
        found = ratio(sums(*[0.0] * entries, noise=noise), *statistic, {"g": "u"}, Z)
        assert (found.value, found.low, found.high) == ((low + high) / 2, low, high)
        assert found.noise == found.sampling == (high - low) / 2
        assert found.label == {"g": "u"}


@pytest.mark.parametrize(("rows", "steady"), [(15.9, False), (16.1, True), (-40.0, False)])
def test_a_ratio_is_estimated_if_the_noise_is_at_most_a_quarter_of_its_divisor(
    rows: float, steady: bool
) -> None:
    found = ratio(sums(3.0, rows, noise=16.0), *mean(Scaled("x", [-10.0, 30.0])), {}, Z)
    assert (found.value != 10.0) == steady
    assert steady or (found.low, found.high) == (-10.0, 30.0)


@pytest.mark.parametrize(
    ("value", "inside", "low", "high"), [(-90.0, 0.0, 0, 0), (170.0, 120.0, 120, 120)]
)
def test_a_count_beyond_all_rows_keeps_its_value_and_an_interval_among_them(
    value: float, inside: float, low: float, high: float
) -> None:
    found = count(value, 4.0, sums(value), {"c": "u"}, Z)
    assert (found.value, found.low, found.high) == (value, low, high)
    sampling = (inside * (ROWS - inside / CLIENTS) + (Z * ROWS) ** 2) * CLIENTS / ASKED
    assert found.sampling**2 == pytest.approx(sampling)
    alone = count(170.0, 4.0, sums(170.0, rows=None), {}, Z)
    assert alone.high == pytest.approx(170 + Z * math.sqrt(4 + (170 + Z**2) * CLIENTS / ASKED))


def test_columns_of_which_one_has_a_variance_below_zero_have_no_correlation() -> None:
    """Noise can leave all rows in the middle of x, where a sum of two draws has no variance."""
    columns = [Scaled("x", [0.0, 2.0]), Scaled("y", [0.0, 2.0])]
    shape, _ = from_ends(columns, squares=True)
    assert shape.value(np.array([0.0, 0, 0, 5, 0, 5, 0, 0, 0])) == 0
    assert shape.value(np.array([5.0, 0, 0, 0, 0, 0, 0, 0, 5])) == 1


def test_rounds_are_averaged_with_the_noise_of_their_mean() -> None:
    (found,) = averaged([[sums(3.0, 8.0)], [sums(7.0, 9.0, noise=5.0, asked=19)]])
    assert found.values.tolist() == [5.0, 8.5]
    assert found.noise.tolist() == [2.25, 2.25]
    assert (found.asked, found.clients, found.rows) == (19, CLIENTS, ROWS)


def test_each_groups_mean_and_interval_come_from_its_own_sums() -> None:
    average = {"ask": "mean", "column": "x", "range": [-10.0, 30.0], "by": "g",
               "groups": ["u", "v"]}  # fmt: skip
    keys = {"protection": "central_gaussian", "epsilon": 1.0, "client": "who", "rows": ROWS}
    file = QuestionFile.read({**keys, "questions": {"m": average}}, [])
    each = [([12.0, 61.0], [0.25, 0.5]), ([-40.0, 95.0], [3.0, 2.0])]
    values, noise = (np.concatenate([group[part] for group in each]) for part in (0, 1))
    rounds = [[Sums(values, noise, ASKED, CLIENTS, ROWS)]]
    found = answer_of(file, "m", rounds, Schedule(file)).estimates
    for one, group, (own, own_noise) in zip(found, "uv", each, strict=True):
        alone = Sums(np.array(own), np.array(own_noise), ASKED, CLIENTS, ROWS)
        expected = ratio(alone, *mean(Scaled("x", [-10.0, 30.0])), {"g": group}, 1.959964)
        assert one.label == expected.label
        for part in ("value", "low", "high", "noise", "sampling"):
            assert getattr(one, part) == pytest.approx(getattr(expected, part), rel=1e-6), part
        spread = 20**2 * (1 - (own[0] / (own[1] + 4)) ** 2)
        assert one.sampling**2 == pytest.approx(spread * ROWS * CLIENTS / ASKED / own[1])


def test_a_words_sampling_is_that_of_the_round_that_counted_it() -> None:
    words = {"ask": "heavy_hitters", "column": "w", "alphabet": "ab", "length": 2, "most": 1,
             "by": "g", "groups": ["u", "v"]}  # fmt: skip
    file = QuestionFile.read({"protection": "oue", "epsilon": 2.0, "questions": {"w": words}}, [])
    schedule = Schedule(file)
    schedule.trees["w"].found = [
        Found(1, "ab", 6.0, 2.0, 0), Found(0, "b", 9.0, 3.0, 1), Found(1, "a", 5.0, 1.0, 1),
    ]  # fmt: skip
    rounds = [[sums(0.0, asked=8, rows=1)], [sums(0.0, asked=30, rows=1)]]
    first, second = answer_of(file, "w", rounds, schedule).estimates
    assert [dict(e.label) for e in (first, second)] == [{"g": "u", "w": "b"}, {"g": "v", "w": "ab"}]
    z = 1.959964
    for estimate, value, noise, asked in ((first, 9, 3, 30), (second, 6, 2, 8)):
        sampling = (value * (1 - value / CLIENTS) + z**2) * CLIENTS / asked
        assert estimate.noise**2 == pytest.approx(noise)
        assert estimate.sampling**2 == pytest.approx(sampling, rel=1e-6)


def test_shares_of_cells_vary_more_if_a_part_of_the_clients_is_asked() -> None:
    shape, present = from_ends([Scaled("x", (0.0, 10.0))], squares=False)
    all_of_them, some = (
        ratio(sums(30.0, 50.0, noise=0.0, asked=asked, rows=1), shape, present, {}, Z)
        for asked in (CLIENTS, CLIENTS // 4)
    )
    assert some.sampling == pytest.approx(2 * all_of_them.sampling, rel=1e-3)
    below = ratio(sums(-3.0, 50.0, noise=0.0, rows=1), shape, present, {}, Z)
    assert below.sampling > 0


def test_the_notes_say_how_the_sums_were_made() -> None:
    pair = {"ask": "correlation", "column": "x", "other": "y", "range": [0.0, 9.0],
            "other_range": [0.0, 9.0]}  # fmt: skip
    words = {"ask": "heavy_hitters", "column": "w", "alphabet": "ab", "length": 1, "most": 1}
    for epsilon, protection, noted in (
        (None, "not_encrypt", {"r": [_EXACT, _NORMAL], "w": [_EXACT, _CHOSEN]}),
        (2.0, "central_gaussian", {"r": [_NORMAL], "w": [_CHOSEN]}),
        (2.0, "oue", {"r": [], "w": [_CHOSEN]}),
    ):
        keys = {"protection": protection, "epsilon": epsilon, "questions": {"r": pair, "w": words}}
        file = QuestionFile.read(keys, [])
        schedule = Schedule(file)
        many = 9 if protection == "oue" else 6
        rounds = [[sums(*[3.0] * many, rows=1)]]
        for name, notes in noted.items():
            assert answer_of(file, name, rounds, schedule).notes == notes
