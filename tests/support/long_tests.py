"""The longest tests, which `make test` leaves out: tests/long_tests.txt lists them.

    python -m pytest -n 4 --durations=0 --durations-min=0.2 > durations.log
    python tests/support/long_tests.py durations.log 2

lists the tests that took more than 2 seconds. Of each function with parameters at least one test
stays in `make test`: the shortest.
"""

from __future__ import annotations

import re
import sys
from collections import Counter, defaultdict
from pathlib import Path

LIST = Path(__file__).parents[1] / "long_tests.txt"


def listed(turn: str | None = None) -> list[str]:
    """The listed tests. Of a turn "10/8": every eighth of them, from the third on."""
    tests = LIST.read_text().splitlines()
    if turn is None:
        return tests
    number, parts = map(int, turn.split("/"))
    return tests[number % parts :: parts]


def seconds_of_tests(log: str) -> Counter[str]:
    """The seconds of each test with its fixtures, as pytest's list of durations has them."""
    seconds: Counter[str] = Counter()
    for took, test in re.findall(r"^\s*([\d.]+)s (?:call|setup|teardown) +(\S.*?)\s*$", log, re.M):
        seconds[test] += float(took)
    return seconds


def long_tests(seconds: Counter[str], limit: float) -> list[str]:
    """The tests over the limit, less the shortest of each function that has parameters."""
    by_function: defaultdict[str, list[str]] = defaultdict(list)
    for test in sorted(seconds, key=seconds.__getitem__):
        by_function[test.partition("[")[0]].append(test)
    candidates = [
        test
        for tests in by_function.values()
        for test in (tests if len(tests) == 1 else tests[1:])
        if seconds[test] > limit
    ]
    return sorted(candidates)


if __name__ == "__main__":
    longest = long_tests(seconds_of_tests(Path(sys.argv[1]).read_text()), float(sys.argv[2]))
    LIST.write_text("".join(f"{test}\n" for test in longest))
    print(f"{len(longest)} tests are in {LIST}")
