"""Numbers for readers: few digits, and one of something is not printed as several."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from fedveil.base.quantity import all_of, few_digits, quantity
from fedveil.data.partition import iid
from fedveil.entropy import Seeded
from fedveil.pages.read_run import ReadRun
from fedveil.pages.run_page import how_far


@pytest.mark.parametrize(
    ("number", "several", "every"),
    [
        (0, "0 rounds", "all 0 rounds"),
        (1, "1 round", "the only round"),
        (1438, "1,438 rounds", "all 1,438 rounds"),
    ],
)
def test_a_number_has_its_noun(number: int, several: str, every: str) -> None:
    assert quantity(number, "round") == several
    assert all_of(number, "round") == every


@pytest.mark.parametrize(
    ("clients", "said"),
    [(1, "1 client holds 3 examples each"), (3, "3 clients hold 1 example each")],
)
def test_a_partition_of_one_client(clients: int, said: str) -> None:
    assert iid(3, clients, Seeded(0)).summary() == said


def test_the_page_of_a_run_of_one_round() -> None:
    job = {
        "model": "m", "data": {"name": "d"}, "clients": {"number": 1}, "rounds": 1,
        "protection": {"name": "rr"},
    }  # fmt: skip
    run = ReadRun(Path("r"), job, [{"round": 1}], (), ["0 finished after round 1: the last"])
    assert (
        how_far(run)
        == "m on d, 1 client, under rr: 1 of 1 round; finished after round 1: the last."
    )


@pytest.mark.parametrize(
    ("value", "three", "four"),
    [(0.12344, "0.123", "0.1234"), (-56.78, "-56.8", "-56.78"), (999.6, "1,000", "999.6"),
     (2437.4, "2,437", "2,437"), (-123_456.7, "-123,457", "-123,457"), (0, "0", "0"),
     (3e-7, "3e-07", "3e-07"), (1e15, "1e+15", "1e+15"), (math.inf, "inf", "inf"),
     (math.nan, "nan", "nan")],
)  # fmt: skip
def test_a_large_number_is_whole_and_others_have_few_digits(
    value: float, three: str, four: str
) -> None:
    assert (few_digits(value), few_digits(value, 4)) == (three, four)
