"""Combinations of single reports other than their sum."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from fedveil.engine.job_protection import make_protection
from fedveil.errors import ReportRejected
from fedveil.federated.job import Job
from fedveil.protections import robust_combining
from fedveil.protections.base import JobContext, RoundContext
from fedveil.protections.catalog import POSITIONS, build
from fedveil.protections.exact_sum import ExactSum
from fedveil.protections.robust_combining import CombiningRule, MiddleSum
from job_checks import problems
from round_parts import client_half, report_of, server_half

MODEL = np.zeros(3, np.float32)
UPDATES = {1: [0, 1, -1], 2: [1, 2, 0], 3: [2, 3, 1], 4: [3, 4, 2], 5: [900, -900, 900]}


def aggregate(combining: CombiningRule, name: str = "not_encrypt", order: Any = UPDATES) -> Any:
    context = JobContext("equal", 3, len(UPDATES), 1, combining=combining)
    protection = build(name, POSITIONS[name].settings_type(), context)
    halves = [server_half(protection, list(UPDATES), MODEL) for _ in range(2)]
    for place, client in enumerate(order):
        half = client_half(protection, client, MODEL)
        report = report_of(half, {"round": 7}, UPDATES[client])
        halves[place % 2].receive(client, report)
    halves[0].merge(pickle.loads(pickle.dumps(halves[1])))
    return halves[0].aggregate()


def test_the_middle_is_the_others() -> None:
    median = aggregate(CombiningRule("median"))
    np.testing.assert_allclose(median.update, [2, 2, 1])
    assert median.reports == 5
    np.testing.assert_allclose(aggregate(CombiningRule("trimmed_mean", trim=0.2)).update, [2, 2, 1])
    few = aggregate(CombiningRule("trimmed_mean", trim=0.1)).update  # a share below one report
    np.testing.assert_allclose(few, [2, 2, 1])


def test_the_share_that_is_left_out_is_the_one_that_is_written() -> None:
    left = MiddleSum(0.07)
    for value in range(100):
        left.add(np.array([0.0 if value < 8 else 1.0], np.float32))
    assert left.value() == pytest.approx(100 * 85 / 86)  # 7 of the 8 zeros and 7 ones are left out


def test_the_share_is_the_jobs_and_entries_are_sorted_a_few_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two of five values are left out on either side. One entry is sorted at a time."""
    monkeypatch.setattr(robust_combining, "_ENTRIES", 6)
    total = CombiningRule("trimmed_mean", trim=0.3).empty_sum(ExactSum(3))
    for first, *others in ([0, 9, 1], [1, 8, 2], [5, 7, 9], [7, 0, 3], [2.0**40, 1, 4]):
        total.add(np.array([first, *others], np.float32))
    assert (total.value() / 5).tolist() == [5, 7, 3]


def test_a_shortened_report_keeps_its_weight() -> None:
    total = CombiningRule("norm_bound", norm_bound=0.5).empty_sum(ExactSum(2))
    total.add(np.array([0, 0.25], np.float32), 3)
    total.add(np.array([-4, 0], np.float32), 2)
    assert total.value().tolist() == [-1, 0.75]


def test_a_report_whose_squares_overflow_is_shortened_to_the_bound() -> None:
    total = CombiningRule("norm_bound", norm_bound=0.5).empty_sum(ExactSum(2))
    total.add(np.array([3e30, -4e30], np.float32))
    np.testing.assert_allclose(total.value(), [0.3, -0.4], rtol=1e-6)


@pytest.mark.parametrize("bound", [1.0, 1e-3, 3e-4])
@pytest.mark.parametrize("entry", [3.4e38, -2e38, 1e37])
def test_however_long_a_report_is_it_moves_the_sum_by_no_more_than_the_bound(
    bound: float, entry: float
) -> None:
    """A factor of about 1e-45 as a float32 would have no correct digit."""
    total = CombiningRule("norm_bound", norm_bound=bound).empty_sum(ExactSum(1_000_000))
    total.add(np.full(1_000_000, entry, np.float32))
    assert np.linalg.norm(total.value()) == pytest.approx(bound, rel=1e-6)


@pytest.mark.parametrize("entry", [np.inf, -np.inf, np.nan])
def test_a_report_that_is_not_finite_is_refused_and_leaves_the_bounded_sum_alone(
    entry: float,
) -> None:
    total = CombiningRule("norm_bound", norm_bound=0.5).empty_sum(ExactSum(2))
    total.add(np.array([0, 0.25], np.float32))
    with np.errstate(all="raise"), pytest.raises(ValueError, match="not finite or too large"):
        total.add(np.array([3, entry], np.float32))
    assert total.value().tolist() == [0, 0.25]


def test_a_long_report_is_shortened() -> None:
    bounded = aggregate(CombiningRule("norm_bound", norm_bound=3.0)).update
    rows = np.array(list(UPDATES.values()), float)
    norms = np.linalg.norm(rows, axis=1)
    rows *= np.minimum(1, 3 / norms)[:, None]
    np.testing.assert_allclose(bounded, rows.mean(0), atol=1e-6)


@pytest.mark.parametrize("kind", ["median", "trimmed_mean", "norm_bound"])
def test_order_and_trees_change_nothing(kind: Any) -> None:
    combining = CombiningRule(kind, trim=0.3)
    first, other = (aggregate(combining, order=o) for o in (list(UPDATES), [4, 5, 2, 1, 3]))
    assert first.update.tobytes() == other.update.tobytes()


def test_noised_reports_have_a_median_too() -> None:
    context = JobContext("equal", 3, len(UPDATES), 1)
    protection = build("dp_encrypt", POSITIONS["dp_encrypt"].settings_type(), context)
    round = RoundContext(list(UPDATES), 7, MODEL)
    seen = [
        protection.reading(round, report_of(client_half(protection, c, MODEL), {"round": 7}, u))
        for c, u in UPDATES.items()
    ]
    expected = np.median([reading.estimate for reading in seen], axis=0)
    np.testing.assert_allclose(aggregate(CombiningRule("median"), "dp_encrypt").update, expected)


def test_a_job_says_how() -> None:
    job = Job(server={"aggregation": "trimmed_mean", "trim": 0.3})
    assert make_protection(job, 3).context.combining == CombiningRule("trimmed_mean", 0.3)


@pytest.mark.parametrize("value", [np.nan, np.inf, 2.0**41])
def test_what_is_no_number_is_refused(value: float) -> None:
    context = JobContext("equal", 3, 1, 1, combining=CombiningRule("median"))
    protection = build("not_encrypt", POSITIONS["not_encrypt"].settings_type(), context)
    half = server_half(protection, [1], MODEL)
    with pytest.raises(ReportRejected, match="not finite or too large"):
        half.receive(1, {"round": 7, "update": np.array([0, value, 0], np.float32)})


@pytest.mark.parametrize("entry", [-np.inf, -(2.0**41), np.nan, 2.0**41])
def test_a_refused_report_leaves_the_others_median(entry: float) -> None:
    total = CombiningRule("median").empty_sum(ExactSum(3))
    for row in ([1, 4, -(2.0**40)], [3, 8, 6], [4, 5, 9]):
        total.add(np.array(row, np.float32))
    with pytest.raises(ValueError, match="not finite or too large"):
        total.add(np.array([0.5, entry, 0.25], np.float32))
    with pytest.raises(ValueError, match="count equally"):
        total.add(np.array([0.5, 0.25, 0.125], np.float32), 2)
    assert (total.value() / 3).tolist() == [3, 5, 6]


def test_more_reports_than_are_sorted_at_a_time_are_sorted_entry_by_entry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(robust_combining, "_ENTRIES", 2)
    total = CombiningRule("median").empty_sum(ExactSum(2))
    for row in ([7, 1], [2, 5], [4, 9]):
        total.add(np.array(row, np.float32))
    assert (total.value() / 3).tolist() == [4, 5]


def test_where_they_count_equally_and_where_they_are_refused() -> None:
    assert Job(server={"aggregation": "median"}).server.weighting == "equal"
    assert Job(server={"aggregation": "norm_bound"}).server.weighting == "by_size"
    assert problems("server: {aggregation: trimmed_mean, weighting: by_size}") == [
        "server.weighting = by_size is not defined under server.aggregation = trimmed_mean: only "
        "equal is allowed"
    ]
    assert problems("{server: {aggregation: median}, protection: pw_encrypt}") == [
        "server.aggregation = median is refused under protection.name = pw_encrypt, whose server "
        "sees only the sum of reports, or reports that are already clipped: use not_encrypt or "
        "dp_encrypt, or mean"
    ]
    for name, position in POSITIONS.items():
        able = name in ("not_encrypt", "dp_encrypt")
        assert ("median" in position.combinations) is able


def test_reports_are_held_and_not_their_buffers() -> None:
    total, buffer = CombiningRule("median").empty_sum(ExactSum(1)), np.zeros(1, np.float32)
    for value in (1, 2, 9):
        buffer[0] = value
        total.add(buffer)
    assert total.value() == 6
