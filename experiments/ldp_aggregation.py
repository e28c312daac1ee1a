"""The server's time to aggregate: one estimate of all reports against one for each report."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from experiments.experiment import Experiment, Outcome, Scale, Tell, Verdict
from experiments.saved_results import kept
from fedveil.entropy import Seeded
from fedveil.mechanisms.unary.encoding import UnaryEncoding
from fedveil.pages.table import Table

#: Numbers of parameters. The smallest is that of scale small's net, and 44,426 is LeNet's.
SIZES: Mapping[Scale, Sequence[int]] = {"small": (1_450, 11_610), "full": (1_450, 44_426, 446_308)}
_REPORTS: Mapping[Scale, int] = {"small": 20, "full": 50}
_CELLS, _EPS = 50, 4.8
_REPEATS = 3


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
        found: list[dict[str, float]] = []
        for size in SIZES[scale]:
            tell(f"{count} reports of {size:,} parameters")
            found.append(kept(folder, f"size-{size}", partial(measured, size, count)))
        ran = (
            f"{count} clients report {', '.join(f'{size:,}' for size in SIZES[scale])} parameters "
            f"under OUE with {_CELLS} cells at epsilon {_EPS:g}: a code of {2 * _CELLS + 1} bits "
            f"each. At once: the reports' codes are added, and the frequencies are estimated and "
            f"turned into values once. One by one: this is done for each report, and the values "
            f"are averaged. The results are equal up to rounding. A time is the median of "
            f"{_REPEATS} alternating measurements on one thread. The source says that the product "
            f"of matrices reduces the time from O(N n) to O(1); adding the reports remains O(N n)."
        )
        rows = [
            (f"{size:,}", f"{each['at_once']:.4f}", f"{each['one_by_one']:.4f}",
             f"{each['one_by_one'] / each['at_once']:.1f}", f"{each['apart']:.1e}")
            for size, each in zip(SIZES[scale], found, strict=True)
        ]  # fmt: skip
        columns = ("parameters", "seconds at once", "seconds one by one", "ratio",
                   "largest difference")  # fmt: skip
        table = Table(columns, rows, "The server's time.")
        return Outcome(ran, judged(found), [table], seeds=0)


def measured(size: int, count: int) -> dict[str, float]:
    """Return the median seconds of both ways, and the largest difference of their results.

    There are `count` reports of `size` parameters each.
    """
    unary = UnaryEncoding("oue", _EPS, _CELLS, report="bits")
    entropy = Seeded(0, "aggregation")
    values = np.linspace(-0.5, 0.5, size)
    reports = [unary.perturb(values, entropy) for _ in range(count)]
    times: dict[str, list[float]] = {"at_once": [], "one_by_one": []}
    results: dict[str, Any] = {}
    ways: Mapping[str, Callable[[], Any]] = {
        "at_once": lambda: unary.frequencies(reports) @ _states(unary),
        "one_by_one": lambda: _one_by_one(unary, reports),
    }
    for _ in range(_REPEATS):
        for name, way in ways.items():
            began = time.perf_counter()
            results[name] = way()
            times[name].append(time.perf_counter() - began)
    apart = float(np.abs(results["at_once"] - results["one_by_one"]).max())
    return {name: median(each) for name, each in times.items()} | {"apart": apart}


def _states(unary: UnaryEncoding) -> Any:
    return np.arange(-unary.cells, unary.cells + 1) / unary.cells


def _one_by_one(unary: UnaryEncoding, reports: Sequence[Any]) -> Any:
    values = [unary.frequencies([report]) @ _states(unary) for report in reports]
    return np.mean(values, axis=0)


def judged(found: Sequence[Mapping[str, float]]) -> list[Verdict]:
    """Judge whether one estimate of all reports is faster, and saves more time in larger models."""
    ratios = [each["one_by_one"] / each["at_once"] for each in found]
    saved = [each["one_by_one"] - each["at_once"] for each in found]
    return [
        Verdict.of(
            min(ratios) > 1, "seconds one by one, over seconds at once, by parameters",
            "one product of matrices is faster", ", ".join(f"{ratio:.1f}" for ratio in ratios),
            held_to="above 1 for every size",
            same="the frequencies are estimated and turned into values once instead of N times",
            other="adding the reports takes most of the time either way",
        ),
        Verdict.of(
            saved == sorted(saved), "seconds saved, by parameters",
            "the larger the model, the more time is saved",
            ", ".join(f"{each:.4f}" for each in saved), held_to="they grow with the parameters",
            same="both ways take time in proportion to the parameters",
            other="the larger model does not save more",
        ),
    ]  # fmt: skip
