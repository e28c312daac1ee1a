"""Turns the noisy sums of the clients' vectors into the answer to a question."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from fedveil.statistics.answers import Answer, Estimate
from fedveil.statistics.encodings import Axis
from fedveil.statistics.estimates import (
    Statistic,
    Sums,
    correlation,
    count,
    counts,
    from_ends,
    mean,
    quantile_of_normal,
    ratio,
    variance,
)
from fedveil.statistics.plan import axis, columns_of, edges_of, levels
from fedveil.statistics.quantile_tree import quantiles
from fedveil.statistics.question import QuestionFile
from fedveil.statistics.question_settings import QuestionSettings
from fedveil.statistics.schedule import Schedule

_NORMAL = "the interval takes the columns as jointly normal for the sampling part"
_CHOSEN = (
    "the words were chosen by these counts, so that the counts of rare ones are too high, and "
    "some words may be there by chance"
)
_EXACT = "the sums have no noise: the interval is that of sampling alone"


def answer_of(
    file: QuestionFile, name: str, rounds: Sequence[Sequence[Sums]], schedule: Schedule
) -> Answer:
    """Return the answer to the question `name` in `file`.

    `rounds` has a list for each round that asked this question: the sums of the question's parts. A
    part is the question, or one level of its tree. `schedule` has the results of quantile searches,
    and of the prefix tree in which a heavy_hitters question finds frequent words.
    """
    question, z = file.questions[name], quantile_of_normal(file.confidence)
    notes = [] if file.epsilon is not None else [_EXACT]
    if question.ask == "heavy_hitters":
        estimates = _words(question, rounds, schedule, name, z)
        return Answer(name, question.ask, estimates, [*notes, _CHOSEN])
    if name in schedule.searches:
        found = [
            search.estimate(z, {} if question.by is None else {question.by: str(group)})
            for group, search in schedule.searches[name]
        ]
        return Answer(name, question.ask, found, notes)
    parts = [part for sums in rounds for part in sums] if file.local else averaged(rounds)
    if question.ask == "correlation" and not file.local:
        notes.append(_NORMAL)
    return Answer(name, question.ask, list(_estimates(file, question, parts, z)), notes)


def _groups(question: QuestionSettings) -> list[dict[str, str]]:
    """Return {column: group} for each group of the question, or [{}] if it has no groups."""
    return [{str(question.by): str(group)} for group in question.groups] or [{}]


def averaged(rounds: Sequence[Sequence[Sums]]) -> list[Sums]:
    """Return the mean over all rounds of the sums of each part of a question.

    `rounds` has a list for each round: the sums of the question's parts. A part is the question, or
    one level of its tree.
    """
    many = len(rounds)
    return [
        Sums(
            sum(sums.values for sums in same) / many,
            sum(sums.noise for sums in same) / many**2,
            min(sums.asked for sums in same),
            same[0].clients,
            same[0].rows,
        )
        for same in zip(*rounds, strict=True)
    ]


def _estimates(
    file: QuestionFile, question: QuestionSettings, parts: Sequence[Sums], z: float
) -> list[Estimate]:
    groups = _groups(question)
    if question.ask in ("count", "histogram", "contingency"):
        return counts(parts[0], _labels(question, groups), z)
    found: list[Estimate] = []
    for number, group in enumerate(groups):
        own = [part.at(_slice(part, number, len(groups))) for part in parts]
        if question.ask == "quantiles":
            edges = edges_of(question, levels(question))
            found += quantiles(own, edges, question.at, z, group)
        else:
            shape, present = _shape(question, file.local)
            found.append(ratio(own[0], shape, present, group, z))
    return found


def _slice(sums: Sums, number: int, many: int) -> slice:
    width = len(sums.values) // many
    return slice(number * width, (number + 1) * width)


def _shape(question: QuestionSettings, local: bool) -> Statistic:
    columns = columns_of(question)
    if local:
        return from_ends(columns, squares=question.ask != "mean")
    if question.ask == "correlation":
        return correlation()
    return variance(columns[0]) if question.ask == "variance" else mean(columns[0])


def _labels(question: QuestionSettings, groups: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    axes: list[Axis] = []
    if question.ask != "count":
        axes.append(axis(question))
    if question.ask == "contingency":
        axes.append(axis(question, "other_"))
    cells = [
        dict(cell) for cell in product(*([(a.column, label) for label in a.labels] for a in axes))
    ]
    return [{**group, **cell} for group in groups for cell in cells]


def _words(
    question: QuestionSettings,
    rounds: Sequence[Sequence[Sums]],
    schedule: Schedule,
    name: str,
    z: float,
) -> list[Estimate]:
    column, estimates = str(question.column), []
    ranked = sorted(schedule.trees[name].found, key=lambda found: -found.count)
    for number, group in enumerate(_groups(question)):
        for found in [found for found in ranked if found.group == number][: question.most]:
            label = {**group, column: found.word}
            sums = rounds[found.round][0]
            estimates.append(count(found.count, found.variance, sums, label, z))
    return estimates
