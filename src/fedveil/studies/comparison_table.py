"""Results of a comparison as tables and plots. A `Line` has the runs of one setting."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

from fedveil.pages.curves import axis_of
from fedveil.pages.guarantee_text import FOR_A_CLIENT, at_delta, cell, figure_of, from_seed
from fedveil.pages.plot import Axis, Curve, Plot
from fedveil.pages.read_run import ReadRun
from fedveil.pages.table import Table
from fedveil.privacy.finding import Finding, Measured
from fedveil.privacy.guarantee_strength import Figure
from fedveil.privacy.loss import format_epsilon
from fedveil.record.byte_count import shown_bytes
from fedveil.record.metric_names import LOSS, as_asked, digits, figures, title, word
from fedveil.studies.comparison import Goal, Setting
from fedveil.studies.comparison_folder import Result
from fedveil.studies.several_runs import first_round

#: The ledger's lines, and their names.
LEDGER = {
    "per_bit": "a bit",
    "per_parameter": "a parameter",
    "per_round": "a round",
    "run_every_round": "the whole run",
}
_PARTS = ("training", "protection", "aggregation")
_NOTHING = "-"
#: With more curves, the areas between smallest and largest value would hide each other.
_MOST_SPREADS = 6
#: A cell of a setting without a finished run. The last table says why.
_NO_RESULT = "no result"


@dataclass(frozen=True)
class Line:
    """The runs of one setting, one per seed. `failures` are remarks on failures and early ends."""

    setting: Setting
    runs: Sequence[ReadRun]
    failures: Sequence[str]

    @property
    def lost(self) -> bool:
        return any(math.isnan(value) for value in self.last(LOSS)) or not self.runs

    def last(self, key: str) -> list[float]:
        return [run.last[key] for run in self.runs if key in run.last]

    @cached_property
    def upload(self) -> float:
        """The number of bytes that a client sends per round."""
        return _mean([f for run in self.runs for f in run.figures("bytes_up_per_client")[1]])

    @cached_property
    def share(self) -> float:
        """The time for protection, divided by the time for training, protection and aggregation."""
        sums = {
            part: sum(sum(run.figures(f"seconds_{part}")[1]) for run in self.runs)
            for part in _PARTS
        }
        total = sum(sums.values())
        return sums["protection"] / total if total else math.nan

    def rounds_to(self, goal: Goal) -> list[int | None]:
        """Return, for each run, the first round whose model reaches the goal, or None."""
        return [first_round(run, goal.figure, goal.reached) for run in self.runs]

    def spent(self, what: str) -> Figure | None:
        """Return the largest epsilon in the last records of this line's runs, with its delta.

        `what` says what the epsilon covers. It is a key of `LEDGER`, such as "per_round". Returns
        None if no run has such an epsilon.
        """
        figures = [figure_of(run.last, what) for run in self.runs if f"epsilon_{what}" in run.last]
        return max(figures, default=None)

    @cached_property
    def finding(self) -> Finding | None:
        """The finding of the most recent membership attack on a run of this line, or None."""
        found = [f for run in self.runs for f in run.findings if f.attack == "membership"]
        return found[-1] if found else None

    @cached_property
    def success(self) -> Measured | None:
        """The largest AUC in `finding`, or None without an attack.

        The attack scores examples in several ways, each with its own AUC. The AUCs of scores that
        are computed from messages, not from the trained model, are ignored.
        """
        if self.finding is None:
            return None
        others = ("report's", "sum's", "client")  # attacks on messages, not on the model
        on_model = [
            f
            for f in self.finding.figures
            if f.name.endswith(" AUC") and not f.name.startswith(others)
        ]
        return max(on_model, key=lambda f: f.value, default=None)


def lines(results: Sequence[Result]) -> list[Line]:
    """Return one `Line` for each setting, with all its results.

    Settings are in the order of their first results.
    """
    settings = dict.fromkeys(result.cell.setting.name for result in results)
    found = []
    for name in settings:
        mine = [result for result in results if result.cell.setting.name == name]
        runs = [result.run for result in mine if result.run is not None]
        failures = dict.fromkeys(text for result in mine for text in _remarks(result))
        found.append(Line(mine[0].cell.setting, runs, list(failures)))
    return found


def _remarks(result: Result) -> Iterator[str]:
    yield from filter(None, (result.failure, result.unattacked))
    if result.run is not None and result.run.stopped:
        yield f"ended after round {len(result.run.records)}: {result.run.stopped}"


def tables(found: Sequence[Line], goal: Goal | None = None) -> Iterator[Table]:
    """Yield a table of quality and costs, a table of guarantees, and a table of any failures.

    `found` has one `Line` of results per setting. If there is a `goal`, the first table has a
    column with the rounds to reach it.
    """
    yield _quality(found, goal)
    yield _privacy(found)
    failed = [[str(line.setting), text] for line in found for text in line.failures]
    if failed:
        yield Table(["setting", "reason"], failed, "What did not end well")


def _quality(found: Sequence[Line], goal: Goal | None) -> Table:
    keys = _figures(found)
    columns = ["setting", *map(word, keys), "upload", "share"]
    if goal is not None:
        columns.append(f"rounds to {goal.figure} {as_asked(goal.figure, goal.value)}")
    rows = []
    for line in found:
        row = [
            str(line.setting),
            _spread(line.last(keys[0]), partial(digits, keys[0])),
            *(_spread(line.last(key), partial(digits, key), bounds=False) for key in keys[1:]),
            _NO_RESULT if math.isnan(line.upload) else shown_bytes(line.upload),
            _NO_RESULT if math.isnan(line.share) else f"{line.share:.1%}",
        ]
        if goal is not None:
            row.append(_rounds(line.rounds_to(goal)))
        rows.append(row)
    return Table(
        columns,
        rows,
        "At the end of the runs: the mean over the seeds, the least and the most. Upload is for a "
        "client and a round; share is the protection's of the time of training, protection and "
        "aggregation",
    )


def _privacy(found: Sequence[Line]) -> Table:
    columns = ["setting", *(f"epsilon of {what}" for what in LEDGER.values())]
    attacked = any(line.finding is not None for line in found)
    if attacked:
        columns.append("membership attack (AUC)")
    rows = []
    for line in found:
        row = [str(line.setting)]
        for what in LEDGER:
            spent = line.spent(what)
            if spent is None:
                row.append(_NOTHING if line.runs else _NO_RESULT)
            else:
                whole = what == "run_every_round"
                unit = line.runs[0].last.get("unit")
                row.append(cell(spent, unit) if whole else format_epsilon(spent.epsilon))
        if attacked:
            row.append(_success(line.success))
        rows.append(row)
    caption = (
        f"What the ledger states{_at(found)}, never rounded down; the whole run is {FOR_A_CLIENT}"
    )
    if attacked:
        caption += (
            ". The last column is the area under the curve of the best of the membership attacks "
            "on the model of the first seed, with the 95% interval of this one attack: guessing "
            "has 0.5, and the best of several attacks is above it more often by luck"
        )
    return Table(columns, rows, ". ".join(filter(None, (caption, assumed(found).rstrip(".")))))


def _at(found: Sequence[Line]) -> str:
    """Return the delta of all epsilons in these lines, for the table's caption."""
    spent = (line.spent(what) for line in found for what in LEDGER)
    return at_delta((figure for figure in spent if figure is not None), "setting")


def assumed(found: Sequence[Line]) -> str:
    """Return a sentence if runs with a finite epsilon drew their noise from a seed, else ""."""
    return from_seed([
        run.last
        for line in found
        for run in line.runs
        if math.isfinite(run.last.get("epsilon_run_every_round", math.inf))
    ])  # fmt: skip


def plots(found: Sequence[Line]) -> Iterator[Plot]:
    """Yield a plot of the main metric in every round, with one curve per setting.

    If settings differ only in epsilon, yields a second plot, of the metric at the end of a run over
    the epsilon of the whole run. `found` has one `Line` of results per setting.
    """
    name = _figures(found)[0]
    curves = [_by_round(line, name) for line in found if line.runs]
    if curves:
        note = "The mean over the seeds, and the least and the most."
        if len(curves) > _MOST_SPREADS:
            curves = [replace(curve, low=(), high=()) for curve in curves]
            note = "The mean over the seeds."
        what, x, y = f"{title(name)} in every round", Axis("round"), _test_axis(name)
        yield Plot(name, what, x, y, curves, note)
    over = [*_over_epsilon(found, name)]
    if any(len(curve.x) > 1 for curve in over):
        ends = [end(x for curve in over for x in curve.x) for end in (min, max)]
        levels = [*_levels(found, name, ends)]
        note = "Dashed: without a finite epsilon." if levels else ""
        x = Axis("epsilon of the whole run", log=True, unit="epsilon")
        what = f"{title(name)} against epsilon"
        yield Plot(f"{name}-epsilon", what, x, _test_axis(name), [*over, *levels], note)


def _test_axis(name: str) -> Axis:
    return axis_of(name, f"test {word(name)}")


def _levels(found: Sequence[Line], name: str, ends: Sequence[float]) -> Iterator[Curve]:
    for line in found:
        spent, reached = line.spent("run_every_round"), line.last(name)
        if spent is not None and math.isinf(spent.epsilon) and reached:
            level, position = [_mean(reached)] * len(ends), line.setting.position
            yield Curve(str(line.setting), ends, level, dashed=True, protection=position)


def _figures(found: Sequence[Line]) -> list[str]:
    lasts = [run.last for line in found for run in line.runs]
    return figures(lasts[0] if lasts else {})


def _by_round(line: Line, name: str) -> Curve:
    each = [dict(zip(*run.figures(name), strict=True)) for run in line.runs]
    rounds = sorted(set.intersection(*(set(one) for one in each)))
    reached = [[one[r] for one in each] for r in rounds]
    spread = len(each) > 1
    low, high = ([side(f) for f in reached] if spread else [] for side in (min, max))
    mean, position = [_mean(f) for f in reached], line.setting.position
    return Curve(str(line.setting), rounds, mean, low, high, protection=position)


def _over_epsilon(found: Sequence[Line], key: str) -> Iterator[Curve]:
    """Yield curves of the metric `key` over the epsilon of the whole run.

    `found` has one `Line` of results per setting. Settings that differ only in epsilon form one
    curve. Settings with an infinite epsilon are left out.
    """
    groups: dict[str, list[tuple[float, list[float]]]] = {}
    positions = dict[str, str]()
    for line in found:
        spent, reached = line.spent("run_every_round"), line.last(key)
        if spent is not None and math.isfinite(spent.epsilon) and reached:
            name = str(Setting(line.setting.position, line.setting.changes))
            groups.setdefault(name, []).append((spent.epsilon, reached))
            positions[name] = line.setting.position
    for name, points in groups.items():
        points.sort()
        x, each = [epsilon for epsilon, _ in points], [figures for _, figures in points]
        low, high = [min(f) for f in each], [max(f) for f in each]
        mean, position = [_mean(f) for f in each], positions[name]
        yield Curve(name, x, mean, low, high, marks=True, protection=position)


def _mean(figures: Sequence[float]) -> float:
    return statistics.fmean(figures) if figures else math.nan


def _spread(figures: Sequence[float], shown: Callable[[float], str], *, bounds: bool = True) -> str:
    if not figures:
        return _NO_RESULT
    lost = sum(map(math.isnan, figures))
    if lost:
        return f"undefined in {lost} of {len(figures)} runs"
    text = shown(_mean(figures))
    if not bounds or min(figures) == max(figures):
        return text
    return f"{text} [{shown(min(figures))}, {shown(max(figures))}]"


def _rounds(found: Sequence[int | None]) -> str:
    reached = [rounds for rounds in found if rounds is not None]
    if not reached:
        return "never" if found else _NO_RESULT
    text = _spread(reached, "{:.0f}".format)
    return text if len(reached) == len(found) else f"{text}, {len(reached)} of {len(found)} runs"


def _success(found: Measured | None) -> str:
    if found is None:
        return _NOTHING
    return f"{found.value:.3f} [{found.low:.3f}, {found.high:.3f}]"
