"""Each figure of an answer's page and table is the one that its label names.

No two figures of these answers are equal.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import count

import pytest

from fedveil.pages.guarantee_text import right
from fedveil.pages.page import Code, Fact, Fold, Points, Table
from fedveil.pages.plot import Plot
from fedveil.privacy.guarantee_strength import Figure
from fedveil.privacy.ledger import Line
from fedveil.statistics.answer_page import number, page_of, pictures, table
from fedveil.statistics.answers import Answer, Answers, Estimate, answers_of
from fedveil.statistics.question import QuestionFile


def made() -> Answers:
    figures = count(11)

    def estimate(**label: str) -> Estimate:
        value, low, high, noise, sampling = (next(figures) * 1.013 for _ in range(5))
        return Estimate(label, value, low, high, noise, sampling)

    answers = [
        Answer("ages", "histogram", [estimate(age="[0, 40)"), estimate(age="[40, 90]")], ["one"]),
        Answer(
            "parts", "quantiles",
            [estimate(sex=sex, quantile=at) for sex in ("f", "m") for at in ("0.7", "0.2")], [],
        ),
        Answer("all", "count", [estimate()], ["two", "three"]),
    ]  # fmt: skip
    question = {"protection": "not_encrypt", "confidence": 0.85, "questions": {"n": {}}}
    return Answers(
        QuestionFile.read(question, []),
        {answer.name: answer for answer in answers},
        [Line(0.71, 1e-7, "these answers"), Line(1.93, 1e-8, "the account")],
        ["the time"], clients=1203, reports=407, rejected={"late": 5},
        influence={"ages": 2.5, "parts": 3.5},
    )  # fmt: skip


def test_a_page_shows_each_estimate_where_it_belongs() -> None:
    answers = made()
    page = page_of(answers)
    for section, answer in zip(page.sections, answers.answers.values(), strict=False):
        assert section.title == f"{answer.name}: {answer.ask}"
        (shown,) = (part for part in section.parts if isinstance(part, Table))
        assert [list(row) for row in shown.rows] == [
            [
                *e.label.values(), number(e.value), number(e.low), number(e.high),
                f"±\u00a0{number(e.noise)}", f"±\u00a0{number(e.sampling)}",
            ]
            for e in answer.estimates
        ]  # fmt: skip
        assert all(f"{note.capitalize()}." in section.parts for note in answer.notes)
        drawn = [
            (y, low, high)
            for plot in section.parts
            if isinstance(plot, Plot)
            for curve in plot.curves
            for y, low, high in zip(curve.y, curve.low, curve.high, strict=True)
        ]
        several = len(answer.estimates) > 1
        assert drawn == [(e.value, e.low, e.high) for e in answer.estimates if several]
        plots = [part for part in section.parts if isinstance(part, Plot)]
        assert all("85% intervals" in plot.note for plot in plots)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.012345678, "0.01235"), (-12.3456, "-12.35"), (999.94, "999.9"), (999.96, "1,000"),
     (-41234.56, "-41,235"), (float("inf"), "unlimited")],
)  # fmt: skip
def test_a_number_has_four_significant_digits_or_is_whole(value: float, shown: str) -> None:
    assert number(value) == shown


def test_a_long_answer_is_cut_and_says_so() -> None:
    many = [Estimate({"x": str(i)}, i, i - 1, i + 1, 0.5, 0.25) for i in range(1207)]
    answer = Answer("a", "histogram", many)
    short = table(answer, 100)
    assert (len(short.rows), short.rows[99][0]) == (100, "99")
    assert short.caption == "1,107 more estimates are in answers.json."
    page = page_of(replace(made(), answers={"a": answer})).html()
    assert "207 more estimates" in page
    assert "<rect" not in page


def test_bars_are_named_if_they_are_few_and_curves_go_by_their_quantiles() -> None:
    answers = made()
    drawn = [plot for name in ("ages", "parts") for plot in pictures(answers[name], 0.85)]
    assert [plot.y.title for plot in drawn] == ["rows", "value", "value"]
    assert [[*plot.curves[0].x] for plot in drawn] == [[0, 1], [0.7, 0.2], [0.7, 0.2]]
    assert drawn[0].x.names == ["[0, 40)", "[40, 90]"]
    assert [plot.name for plot in drawn] == ["ages", "parts-f", "parts-m"]  # a file for each
    assert [plot.title for plot in drawn] == ["ages: histogram", "parts f", "parts m"]
    two = [Estimate({"sex": sex, "age": "[0, 9]"}, 3, 2, 4, 0.5, 0.25) for sex in ("f", "m")]
    for ask in ("count", "histogram", "contingency", "heavy_hitters", "mean", "correlation"):
        (plot,) = pictures(Answer("a", ask, two), 0.85)
        assert plot.y.title == ("value" if ask in ("mean", "correlation") else "rows")
        assert (plot.x.title, plot.x.names) == ("sex, age", ["f, [0, 9]", "m, [0, 9]"])
    for bars, named in ((60, True), (61, False)):
        many = [Estimate({"x": str(i)}, i, i - 1, i + 1, 0.5, 0.25) for i in range(bars)]
        (plot,) = pictures(Answer("a", "mean", many), 0.85)
        assert (bool(plot.x.names), plot.y.title) == (named, "value")


def test_a_weak_guarantee_is_no_good_one() -> None:
    for epsilon, tone in ((0.71, "good"), (3.5, "poor")):
        _, _, cost, _ = page_of(replace(made(), lines=[Line(epsilon, 1e-7, "these")])).lead
        assert isinstance(cost, Fact)
        assert cost.tone == tone


def test_a_page_says_if_the_noise_can_be_computed_from_the_question_file() -> None:
    for randomness, epsilon, removable in (
        ("secure", 0.71, False), ("seeded", 0.71, True), ("seeded", math.inf, False),
    ):  # fmt: skip
        answers = made()
        file = answers.file.model_copy(update={"randomness": randomness})
        shown = replace(answers, file=file, lines=[Line(epsilon, 1e-7, "these")])
        _, _, cost, _ = page_of(shown).lead
        assert isinstance(cost, Fact)
        assert ("anyone with the question file can remove it" in cost.text) == removable


def test_a_page_states_who_was_asked_and_what_it_cost() -> None:
    page = page_of(made())
    who, _, cost, sure = (fact for fact in page.lead if isinstance(fact, Fact))
    assert (who.value, "407 reports" in who.text) == ("1,203 clients", True)
    assert cost.value == str(Figure(0.71, 1e-7))
    assert sure.value == "85%"
    parts = page.sections[-1].parts
    (influence,) = (part for part in parts if isinstance(part, Table))
    assert [list(row) for row in influence.rows] == [["ages", "2.5"], ["parts", "3.5"]]
    assert parts[:2] == [f"{line}." for line in made().lines]
    assert isinstance(parts[2], str)
    assert right(Figure(0.71, 1e-7)) in parts[2]
    (points,) = (part for part in parts if isinstance(part, Points))
    assert points.lines[0] == "No epsilon covers: the time."
    (fold,) = (part for part in parts if isinstance(part, Fold))
    assert list(fold.parts) == [Code(made().file.to_yaml(), "question.yaml")]


@pytest.mark.parametrize(
    ("confidence", "said"), [(0.57, "57%"), (0.975, "97.5%"), (0.999999, "99.9999%")]
)
def test_a_confidence_level_is_not_rounded(confidence: float, said: str) -> None:
    page = page_of(replace(made(), file=made().file.with_(confidence=confidence)))
    assert [part.value for part in page.lead if isinstance(part, Fact)][-1] == said
    notes = [plot.note for plot in pictures(made()["ages"], confidence)]
    notes += [plot.note for plot in pictures(made()["parts"], confidence)]
    shaded = f"Shaded: {said} intervals."
    assert notes == [f"Error bars: {said} intervals.", shaded, shaded]


def test_answers_survive_json() -> None:
    answers = made()
    data = answers.data()
    assert answers_of(data) == list(answers.answers.values())
    assert (data["clients"], data["reports"], data["rejected"]) == (1203, 407, {"late": 5})
    assert data["privacy"][1]["epsilon"] == 1.93
    assert answers.epsilon == 0.71  # and not the account's
    first = answers.records()[1]
    assert (first["label"], first["value"]) == ("age: [40, 90]", 16 * 1.013)
    assert answers["parts"]["m, 0.2"] == answers["parts"].estimates[3]
