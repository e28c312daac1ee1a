"""The server's time to aggregate: one estimate of all reports against one for each report."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from experiments.evidence import all_hold, decided, with_interval
from experiments.experiment import Experiment, Outcome, Scale, Tell, Verdict
from experiments.saved_results import kept
from fedveil.entropy import Seeded
from fedveil.mechanisms.unary.encoding import UnaryEncoding
from fedveil.pages.table import Table
from fedveil.privacy.finding import CONFIDENCE

#: Numbers of parameters. The smallest is that of scale small's net, and 44,426 is LeNet's.
SIZES: Mapping[Scale, Sequence[int]] = {"small": (1_450, 11_610), "full": (1_450, 44_426, 446_308)}
_REPORTS: Mapping[Scale, int] = {"small": 20, "full": 50}
_CELLS, _EPS = 50, 4.8
_REPEATS = 5


class Aggregation(Experiment):
    """Times two ways to estimate the mean of unary reports: all at once, and report by report."""

    name = "ldp-aggregation"
    what = "The server's time for one estimate of all reports, and for an estimate of each."
    source = "002, section 3.3, the product of matrices"
    scales = ("small", "full")

    def estimate_s(self, scale: Scale) -> float:
        """Estimate the seconds of all measurements."""
        return {"small": 10.0, "full": 140.0}[scale]

    def run(self, folder: Path, scale: Scale, tell: Tell) -> Outcome:
        """Time both ways for models of every size, in turns."""
        count = _REPORTS[scale]
        found: list[Measurements] = []
        for size in SIZES[scale]:
            tell(f"{count} reports of {size:,} parameters")
            found.append(kept(folder, f"size-{size}", Measurements, partial(_fields, size, count)))
        ran = (
            f"{count} clients report {', '.join(f'{size:,}' for size in SIZES[scale])} parameters "
            f"under OUE with {_CELLS} cells at epsilon {_EPS:g}: a code of {2 * _CELLS + 1} bits "
            f"each. At once: the reports' codes are added, and the frequencies are estimated and "
            f"turned into values once. One by one: this is done for each report, and the values "
            f"are averaged. The results are equal up to rounding. A figure is the mean of "
            f"{_REPEATS} alternating measurements on one thread, with its {CONFIDENCE:.0%} "
            f"confidence interval. The source says that the product of matrices reduces the time "
            f"from O(N n) to O(1); adding the reports remains O(N n)."
        )
        rows = [
            (f"{size:,}", with_interval(each.at_once, 4), with_interval(each.one_by_one, 4),
             with_interval(_ratios(each), 1), f"{max(each.apart):.1e}")
            for size, each in zip(SIZES[scale], found, strict=True)
        ]  # fmt: skip
        columns = ("parameters", "seconds at once", "seconds one by one", "ratio",
                   "largest difference")  # fmt: skip
        table = Table(columns, rows, "The server's time.")
        return Outcome(ran, judged(found), [table], seeds=0)


#: Seconds, one for each repetition.
_Seconds = Annotated[
    list[Annotated[float, Field(gt=0)]], Field(min_length=_REPEATS, max_length=_REPEATS)
]


@dataclass(frozen=True)
class Measurements:
    """The seconds of both ways, and the largest difference of their results, by repetition."""

    at_once: _Seconds
    one_by_one: _Seconds
    apart: Annotated[list[float], Field(min_length=1)]


def measured(size: int, count: int) -> Measurements:
    """Measure both ways, in turns, for `count` reports of `size` parameters each."""
    unary = UnaryEncoding("oue", _EPS, _CELLS, report="bits")
    entropy = Seeded(0, "aggregation")
    values = np.linspace(-0.5, 0.5, size)
    reports = [unary.perturb(values, entropy) for _ in range(count)]
    found = Measurements([], [], [])
    ways: Sequence[tuple[list[float], Callable[[], Any]]] = (
        (found.at_once, lambda: unary.frequencies(reports) @ _states(unary)),
        (found.one_by_one, lambda: _one_by_one(unary, reports)),
    )
    for _ in range(_REPEATS):
        results = []
        for seconds, way in ways:
            began = time.perf_counter()
            results.append(way())
            seconds.append(time.perf_counter() - began)
        found.apart.append(float(np.abs(results[0] - results[1]).max()))
    return found


def _fields(size: int, count: int) -> dict[str, Any]:
    return asdict(measured(size, count))


def _states(unary: UnaryEncoding) -> Any:
    return np.arange(-unary.cells, unary.cells + 1) / unary.cells


def _one_by_one(unary: UnaryEncoding, reports: Sequence[Any]) -> Any:
    values = [unary.frequencies([report]) @ _states(unary) for report in reports]
    return np.mean(values, axis=0)


def judged(found: Sequence[Measurements]) -> list[Verdict]:
    """Judge whether one estimate of all reports is faster, and saves more time in larger models.

    `found` has the measurements of each size, the smallest first.
    """
    ratios = [_ratios(each) for each in found]
    faster, unsure = all_hold(decided([ratio - 1 for ratio in each], slack=0.0) for each in ratios)
    saved = [[one - all for all, one in _times(each)] for each in found]
    grows, unclear = all_hold(
        decided([more - less for less, more in zip(*pair, strict=True)], slack=0.0)
        for pair in pairwise(saved)
    )
    return [
        Verdict.of(
            faster, "seconds one by one, over seconds at once, by parameters",
            "one product of matrices is faster", _listed(ratios, 1),
            held_to="for every size, the interval lies above 1",
            same="the frequencies are estimated and turned into values once instead of N times",
            other="adding the reports takes most of the time either way",
            nothing=unsure,
        ),
        Verdict.of(
            grows, "seconds saved, by parameters",
            "the larger the model, the more time is saved", _listed(saved, 4),
            held_to="from each size to the next, repetition by repetition: the interval of the "
            "difference lies above 0",
            same="both ways take time in proportion to the parameters",
            other="the larger model does not save more",
            nothing=unclear,
        ),
    ]  # fmt: skip


def _times(each: Measurements) -> Iterator[tuple[float, float]]:
    return zip(each.at_once, each.one_by_one, strict=True)


def _ratios(each: Measurements) -> list[float]:
    return [one / all for all, one in _times(each)]


def _listed(values: Sequence[Sequence[float]], places: int) -> str:
    return ", ".join(with_interval(each, places) for each in values)
