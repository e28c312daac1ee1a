"""Plots of one or several runs' records over the rounds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from fedveil.pages.guarantee_text import listed
from fedveil.pages.plot import Axis, Curve, Plot
from fedveil.pages.read_run import ReadRun
from fedveil.record.metric_names import (
    LOSS,
    USUAL,
    deciding,
    figures,
    is_share,
    measures,
    title,
    word,
)

_NOTES = {
    "accuracy": "On the test examples.",
    "loss": "Mean cross-entropy on the test examples.",
    "auc": "Macro-averaged, one class against the rest, on the test examples.",
}
#: The parts of a round's time. A run may lack some of them.
PARTS = ("training", "protection", "aggregation", "evaluation")
_ROUND = Axis("round")


def quality(runs: Mapping[str, ReadRun]) -> Iterator[Plot]:
    """Yield a plot over the rounds for each metric, such as the loss, with a curve per run."""
    names = dict.fromkeys(name for run in runs.values() for name in figures(run.last))
    for key in names:
        usual = all(measures(run.last) == USUAL for run in runs.values())
        note = _NOTES[key] if usual else "On the test examples."
        yield from _together(key, title(key), runs, key, axis_of(key), note)


def axis_of(metric: str, title: str | None = None) -> Axis:
    return Axis(title or word(metric), unit="percent" if is_share(metric) else "")


def at_clients(runs: Mapping[str, ReadRun]) -> Iterator[Plot]:
    """Yield plots of the main metric on the clients' own held-out examples.

    The plots show its mean over clients, the mean of the worst tenth, and the standard deviation. A
    plot is omitted if no run has this metric.
    """
    name = next((deciding(run.last)[0] for run in runs.values()), LOSS)
    words = {"mean": "the mean over clients", "worst_tenth": "the mean of the worst tenth",
             "spread": "the standard deviation"}  # fmt: skip
    for part, what in words.items():
        note = f"On each client's held-out examples, which a deployed server would not see: {what}."
        heading = f"{title(name)} at clients: {part.replace('_', ' ')}"
        key = f"clients_{part}"
        yield from _together(key, heading, runs, key, axis_of(name), note)


def epsilon(runs: Mapping[str, ReadRun]) -> Iterator[Plot]:
    """Yield a plot of the epsilon spent so far, if it is finite for any run."""
    whose = "a client drawn in every round"
    lone = [name for name, run in runs.items() if run.last.get("unit") == "example"]
    if len(lone) == len(runs):
        whose = f"one example of {whose}"
    elif lone:
        whose += f", in {listed(lone)} for one example of it"
    note = f"Of the whole run so far, for {whose}."
    key, axis = "epsilon_run_every_round", Axis("epsilon", log=len(runs) > 1, unit="epsilon")
    endless = [
        name
        for name, run in runs.items()
        if run.records and min(run.figures(key)[1], default=math.inf) == math.inf
    ]
    if endless:
        note += f" Not drawn, because it is infinite: {listed(endless)}."
    if any(run.last.get(key, math.inf) < math.inf for run in runs.values()):
        yield from _together("epsilon", "Epsilon", runs, key, axis, note)


def upload(runs: Mapping[str, ReadRun]) -> Iterator[Plot]:
    key, axis = "bytes_up_per_client", Axis("bytes", zero=True, unit="bytes")
    yield from _together("upload", "Upload", runs, key, axis, "Of a client in a round.")


def traffic(run: ReadRun) -> Iterator[Plot]:
    curves = [_curve(run, "up: reports", "bytes_up"), _curve(run, "down: models", "bytes_down")]
    note = "Encoded messages of all clients of a round."
    yield from _plot("bytes", "Bytes", Axis("bytes", zero=True, unit="bytes"), curves, note)


def seconds(run: ReadRun) -> Iterator[Plot]:
    curves = [_curve(run, part, f"seconds_{part}") for part in PARTS]
    note = (
        "Training and protection are summed over clients, also if workers run in parallel. The "
        "others are wall-clock times."
    )
    told = [curve for curve in curves if any(curve.y)]
    yield from _plot("seconds", "Time", Axis("seconds", zero=True, unit="seconds"), told, note)


def _together(
    name: str, title: str, runs: Mapping[str, ReadRun], key: str, axis: Axis, note: str
) -> Iterator[Plot]:
    curves = [
        replace(_curve(run, own, key), protection=run.job["protection"]["name"])
        for own, run in runs.items()
    ]
    yield from _plot(name, title, axis, curves, note)


def _curve(run: ReadRun, name: str, key: str) -> Curve:
    return Curve(name, *run.figures(key))


def _plot(name: str, title: str, axis: Axis, curves: Sequence[Curve], note: str) -> Iterator[Plot]:
    drawn = [curve for curve in curves if curve.x]
    if drawn:
        yield Plot(name, title, _ROUND, axis, drawn, note)
