"""The page of an answer: the estimates with their intervals, plots, and the privacy cost."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from fedveil.base.quantity import few_digits, quantity
from fedveil.pages.guarantee_text import right
from fedveil.pages.page import Code, Fact, Fold, Page, Part, Points, Section
from fedveil.pages.plot import Axis, Curve, Plot
from fedveil.pages.table import Table
from fedveil.statistics.answers import Answer, Answers, Estimate

#: The largest number of rows in a table, and of bars in a plot.
_MOST_ROWS = 1000
_COUNTED = ("count", "histogram", "contingency", "heavy_hitters")
#: Facts that no epsilon covers, under any protection.
_UNCOVERED = (
    "The questions themselves, their cells and conditions are known to everyone.",
    "The number of clients that answer is not protected.",
    "A client that lies about its rows changes the answer within its bounds; see the influence.",
    "Two epsilons add up if they are charged to different accounts.",
)

#: Follows an epsilon whose noise anyone with the question file can compute.
_SEEDED = (
    "The bound assumes randomness from the operating system. The noise of these answers was "
    "computed from the seed instead, so anyone with the question file can remove it."
)


def number(value: float) -> str:
    """Format a number for people: four significant digits, or a whole number from 1,000 on."""
    if not math.isfinite(value):
        return "unlimited"
    return few_digits(value, 4)


def _percent(confidence: float) -> str:
    """Format a confidence level with all its digits: 99.9% is not shown as 100%."""
    return f"{100 * confidence:.8g}%"


def table(answer: Answer, most: int) -> Table:
    """Return a table of the first `most` estimates of the answer, for the page."""
    estimates = answer.estimates[:most]
    names = list(estimates[0].label) if estimates else []
    columns = [*names, "estimate", "from", "to", "noise", "sampling"]
    rows = [
        [
            *e.label.values(),
            *map(number, (e.value, e.low, e.high)),
            *(f"±\u00a0{number(deviation)}" for deviation in (e.noise, e.sampling)),
        ]
        for e in estimates
    ]
    caption = "" if rows else "Nothing is frequent enough to be told from noise."
    if (more := len(answer.estimates) - len(rows)) > 0:
        caption = f"{more:,} more estimates are in answers.json."
    return Table(columns, rows, caption)


def page_of(answers: Answers) -> Page:
    sections = [
        Section(f"{name}: {answer.ask}", list(_parts(answer, answers.file.confidence)))
        for name, answer in answers.answers.items()
    ]
    return Page(
        answers.file.name,
        list(_facts(answers)),
        [*sections, Section("Privacy", list(_privacy(answers)))],
    )


def _facts(answers: Answers) -> Iterator[Fact]:
    file, line = answers.file, answers.lines[0]
    yield Fact(
        "Who was asked?",
        quantity(answers.clients, "client"),
        f"The largest sum of a round has {quantity(answers.reports, 'report')}.",
    )
    yield Fact("Which protection?", file.protection.name, f"Unit: {file.unit}.")
    tone = "good" if line.figure.promise in ("strong", "meaningful") else "poor"
    seeded = file.randomness == "seeded" and line.figure.epsilon < math.inf
    text = f"For {line.what}. {_SEEDED if seeded else ''}".strip()
    yield Fact("What did it cost?", str(line.figure), text, tone)  # type: ignore[arg-type]
    yield Fact(
        "How sure are the answers?",
        _percent(file.confidence),
        "Each interval holds the true value with this probability. It covers the protection's "
        "noise and the choice of the clients. Beside it stand the standard deviations of both.",
    )


def _parts(answer: Answer, confidence: float) -> Iterator[Part]:
    yield from (f"{note[0].upper()}{note[1:]}." for note in answer.notes)
    yield from pictures(answer, confidence)
    yield table(answer, _MOST_ROWS)


def pictures(answer: Answer, confidence: float) -> Iterator[Plot]:
    """Yield the plots of an answer: bars for counts of cells or words, curves for quantiles.

    Yields no plot if there is only one estimate, or if there are too many for a plot. `confidence`
    is the confidence level of the intervals.
    """
    estimates = answer.estimates
    if not 2 <= len(estimates) <= _MOST_ROWS:
        return
    note = f"Error bars: {_percent(confidence)} intervals."
    if answer.ask == "quantiles":
        for group, own in _by_group(estimates, "quantile"):
            at = [float(e.label["quantile"]) for e in own]
            curve = Curve(group or "quantile", at, *_columns(own), marks=True)
            title = f"{answer.name} {group}".strip()
            yield Plot(
                f"{answer.name}-{group}",
                title,
                Axis("share of rows"),
                Axis("value"),
                [curve],
                f"Shaded: {_percent(confidence)} intervals.",
            )
        return
    labels = [", ".join(e.label.values()) for e in estimates]
    bars = Curve("estimate", list(range(len(labels))), *_columns(estimates), bars=True)
    axis = Axis(", ".join(estimates[0].label), names=labels if len(labels) <= 60 else ())
    title = {"heavy_hitters": "most frequent words"}.get(answer.ask, answer.ask)
    value = "rows" if answer.ask in _COUNTED else "value"
    yield Plot(answer.name, f"{answer.name}: {title}", axis, Axis(value), [bars], note)


def _columns(estimates: Sequence[Estimate]) -> tuple[list[float], list[float], list[float]]:
    return [e.value for e in estimates], [e.low for e in estimates], [e.high for e in estimates]


def _by_group(estimates: Sequence[Estimate], without: str) -> Iterator[tuple[str, list[Estimate]]]:
    groups: dict[str, list[Estimate]] = {}
    for e in estimates:
        name = ", ".join(value for key, value in e.label.items() if key != without)
        groups.setdefault(name, []).append(e)
    yield from groups.items()


def _privacy(answers: Answers) -> Iterator[Part]:
    for line in answers.lines:
        yield f"{line}."
    figure = answers.lines[0].figure
    if math.isfinite(figure.epsilon):
        yield (
            "An attacker who sees everything that the guarantee covers, and must tell which of two "
            f"data sets was used, {right(figure)} (chance: 50%)."
        )
    yield Points([f"No epsilon covers: {what}." for what in answers.in_clear] + list(_UNCOVERED))
    rows = [[name, number(most)] for name, most in answers.influence.items()]
    yield Table(
        ["question", "most influence"],
        rows,
        "How far a single forged report can move the sum behind an answer. It is unlimited if "
        "nobody can check a report, as under secure aggregation, which hides it.",
    )
    yield Fold("The question file", [Code(answers.file.to_yaml(), "question.yaml")])
