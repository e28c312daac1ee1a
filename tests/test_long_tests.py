"""The tests that `make test` leaves out exist, and every one of them has its turn."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

from long_tests import listed, long_tests, seconds_of_tests

ROOT = Path(__file__).parents[1]
LOG = """
============= slowest durations =============
3.20s call     tests/a/test_b.py::test_alone
0.90s setup    tests/a/test_b.py::test_slow_fixture
1.40s call     tests/a/test_b.py::test_slow_fixture
2.50s call     tests/a/test_b.py::test_each[two words]
2.60s call     tests/a/test_b.py::test_each[y]
0.40s call     tests/a/test_b.py::test_each[z]
2.70s call     tests/a/test_b.py::test_both[x]
2.80s call     tests/a/test_b.py::test_both[y]
1.90s call     tests/a/test_b.py::test_short
"""


def test_every_listed_test_exists() -> None:
    for test in listed():
        path, _, function = test.partition("[")[0].partition("::")
        assert f"def {function}(" in (ROOT / path).read_text(), test


def test_the_turns_hold_every_test_once() -> None:
    turns = [listed(f"{day}/7") for day in range(301, 308)]
    assert sorted(chain(*turns)) == listed()
    assert listed("12/7") == listed()[5::7]


def test_what_takes_longer_is_listed_without_the_shortest_of_each_function() -> None:
    function = "tests/a/test_b.py::test_"
    assert long_tests(seconds_of_tests(LOG), 2.0) == [
        f"{function}alone",
        f"{function}both[y]",
        f"{function}each[two words]",
        f"{function}each[y]",
        f"{function}slow_fixture",
    ]
