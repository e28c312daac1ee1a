"""Frequent words: how many letters a round adds, which prefixes survive, which words are told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedveil.entropy import Seeded
from fedveil.errors import JobError, MessageInvalid
from fedveil.statistics.prefixes import END, PrefixTree, extended, letters_of, too_many
from fedveil.statistics.question import QuestionFile
from fedveil.statistics.question_settings import QuestionSettings
from fedveil.statistics.schedule import Schedule, Step
from fedveil.statistics.tables import ArrayTable
from statistics_parts import asked, only

DIGITS = "0123456789"


def words(**keys: Any) -> QuestionSettings:
    return QuestionSettings(**{"ask": "heavy_hitters", "column": "w", **keys})


def test_rounds_are_as_few_as_a_report_can_carry_under_rr_and_oue() -> None:
    asked = words(alphabet=DIGITS, length=6, most=20)
    assert letters_of(asked, local=False) == [1] * 6
    assert letters_of(asked, local=True) == [6]
    assert letters_of(words(length=12, most=20), local=True) == [4, 2, 2, 2, 2]
    assert letters_of(words(alphabet="ab", length=3), local=True) == [3]
    for question in (asked, words(length=11, most=7), words(alphabet="ab", length=31, most=900)):
        letters = letters_of(question, local=True)
        assert sum(letters) == question.length
        for number, added in enumerate(letters):
            prefixes = ["x"] * (8 * question.most if number else 1)
            assert len(prefixes) * len(question.alphabet) ** added <= 1 << 21


def test_candidates_are_longer_prefixes_and_ended_words() -> None:
    question = words(alphabet="ab", length=4)
    assert extended([""], question, 2) == [
        "a" + END, "aa", "ab", "b" + END, "ba", "bb",
    ]  # fmt: skip
    assert extended(["ba"], question, 1) == ["ba" + END, "baa", "bab"]


def test_words_are_told_from_noise_with_few_false_ones() -> None:
    rng = np.random.default_rng(9)
    question = words(alphabet=DIGITS, length=3, most=500)
    false = true = 0
    for _ in range(40):
        tree = PrefixTree(question, local=True)
        counts = rng.normal(0, 1, len(extended([""], question, 3)))
        held = rng.choice(len(counts), 50, replace=False)
        counts[held] += 4
        tree.answered(counts, np.ones(len(counts)))
        names = extended([""], question, 3)
        assert {found.group for found in tree.found} == {0}
        real = {names[i].removesuffix(END) for i in held}
        found = {found.word for found in tree.found}
        false, true = false + len(found - real), true + len(found & real)
    assert 0.05 < false / (false + true) < 0.13  # a tenth
    assert true > 0.9 * 40 * 50
    assert tree.over


def test_a_prefix_survives_under_rr_and_oue_that_sums_would_drop() -> None:
    question, counts = words(alphabet="abc", length=25, most=2), np.array([0.5, 1.9, 9.0])
    survivors = {}
    for local in (True, False):
        tree = PrefixTree(question, local=local)
        tree.letters[0] = 1
        many = extended([""], question, 1)
        tree.answered(np.array([counts["abc".index(w[0])] if len(w) == 1 else 0 for w in many]),
                      np.full(len(many), 1.8))  # fmt: skip
        survivors[local] = tree.prefixes
    assert survivors == {True: [["c", "b"]], False: [["c"]]}


def test_the_most_frequent_prefixes_are_kept_eight_for_each_word() -> None:
    tree = PrefixTree(words(alphabet=DIGITS, length=25, most=2), local=True)
    tree.letters[0] = 2
    many = extended([""], tree.question, 2)
    long = [word for word in many if len(word) == 2 and not word.endswith(END)]
    counts = {word: 50.0 + place for place, word in enumerate(long[:30])}
    tree.answered(np.array([counts.get(word, 0.0) for word in many]), np.ones(len(many)))
    assert tree.prefixes == [[*reversed(long[14:30])]]


def test_a_word_is_told_from_the_noise_of_an_absent_one() -> None:
    """The noise of a frequent word's own count is larger."""
    tree = PrefixTree(words(alphabet="ab", length=1, most=2), local=True)
    many = extended([""], tree.question, 1)
    counts, variance = np.zeros(len(many)), np.ones(len(many))
    counts[:2], variance[0] = (90.0, 6.0), 400.0
    tree.answered(counts, variance)
    assert [found.word for found in tree.found] == [word.removesuffix(END) for word in many[:2]]


def test_too_many_words_for_a_report_are_refused() -> None:
    letters = "".join(chr(0x4E00 + i) for i in range(2000))
    with pytest.raises(JobError, match=r"most = 20 with 2,000 letters is too many words"):
        QuestionFile.read(
            {
                "protection": "not_encrypt",
                "questions": {"w": {"ask": "heavy_hitters", "column": "w", "alphabet": letters}},
            },
            [],
        )


def local_file(**more: Any) -> QuestionFile:
    questions = {
        "n": {"ask": "count", "weight": 3.0},
        "w": {"ask": "heavy_hitters", "column": "w", "alphabet": DIGITS, "length": 7, "most": 2},
        "q": {"ask": "quantiles", "column": "x", "range": [0.0, 8.0], "at": [0.5], "cells": 4},
    }
    return QuestionFile.read(
        {"protection": "oue", "epsilon": 1.0, "questions": questions, **more}, []
    )


def test_clients_are_divided_by_weight_and_the_last_round_of_words_asks_most() -> None:
    schedule = Schedule(local_file())
    # A count of weight 3, four rounds of a search of weight 1, and two rounds of words.
    cohorts = [schedule.cohort(Step(number), 1001) for number in range(1, schedule.rounds + 1)]
    assert [len(cohort) for cohort in cohorts] == [601, 50, 50, 50, 50, 50, 150]
    assert sorted(client for cohort in cohorts for client in cohort) == list(range(1001))


def test_each_question_gets_the_share_of_its_weight_and_the_cohorts_go_by_the_seed() -> None:
    question = {"ask": "quantiles", "column": "x", "range": [0.0, 8.0], "cells": 4, "weight": 2.5,
                "at": [0.2, 0.5, 0.7], "by": "g", "groups": ["u", "v"]}  # fmt: skip
    made = [Schedule(local_file(questions={"n": {"ask": "count"}, "q": question}, seed=seed))
            for seed in (2, 3)]  # fmt: skip
    for name, weight in (("n", 1.0), ("q", 2.5)):
        shares = [turn.share for turn in made[0].turns if turn.question == name]
        assert sum(shares) == pytest.approx(weight)
    assert made[0].cohort(Step(1), 50) != made[1].cohort(Step(1), 50)


def test_words_of_two_lengths_are_asked_together_until_the_shorter_are_complete() -> None:
    long = {"ask": "heavy_hitters", "column": "w", "alphabet": "ab", "length": 4, "most": 2}
    questions = {"short": {**long, "length": 2}, "long": long}
    file = local_file(protection="central_gaussian", questions=questions)
    assert Schedule(file).rounds == 4
    late = Step(3, {"short": [["ab"]], "long": [["ab"]]})
    with pytest.raises(MessageInvalid, match="names what round 3 does not ask"):
        Step.of(late.message(), file)


def test_the_shorter_words_are_found_while_the_longer_ones_grow() -> None:
    long = {"ask": "heavy_hitters", "column": "w", "alphabet": "ab", "length": 4, "most": 2}
    data = {"w": ["abba"] * 5 + ["ba"] * 3}
    answers = asked({"short": {**long, "length": 2}, "long": long}, data)
    found = {name: {e.label["w"]: e.value for e in answers[name].estimates}
             for name in ("short", "long")}  # fmt: skip
    assert found == {"short": {"ab": 5, "ba": 3}, "long": {"abba": 5, "ba": 3}}


def test_words_are_sought_after_an_earlier_search_has_found_none() -> None:
    """Its clients are asked in its first round, and in no further one."""
    nothing = {"ask": "heavy_hitters", "column": "w", "alphabet": DIGITS, "length": 7, "most": 2}
    questions = {"none": nothing, "some": {**nothing, "column": "v", "length": 1}}
    file = local_file(questions=questions)
    schedule = Schedule(file)
    assert [turn.question for turn in schedule.turns] == ["none", "none", "some"]
    schedule.trees["none"].prefixes = [[]]
    assert schedule.next(1) == Step(3, {"some": [[""]]})
    schedule.trees["some"].prefixes = [[]]
    assert schedule.next(1) is None


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (Step(1, {"w": [[""]]}), "names what round 1 does not ask"),
        (Step(1, edge=1), "field edge is 1, which round 1 has not"),
        (Step(2), "field edge is 0, which round 2 has not"),
        (Step(2, edge=4), "field edge is 4"),
        (Step(6), "names what round 6 does not ask"),
        (Step(6, {"w": [["1"]]}), "not of 0 letters"),
        (Step(7, {"w": [["12"]]}), "not of 3 letters"),
        (Step(7, {"w": [["1a2"]]}), "not of 3 letters"),
        (Step(7, {"w": [["123", "123"]]}), "one twice"),
        (Step(7, {"w": [[f"{n:03d}" for n in range(17)]]}), "too many words"),
        (Step(7, {"w": [[]]}), "has no words"),
        (Step(7, {"w": [["123"], ["321"]]}), "other groups"),
        (Step(7, {"w": [[["1"]]]}), "not of 3 letters"),  # type: ignore[list-item]
        (Step(8), "outside"),
    ],
)
def test_a_server_cannot_ask_for_what_the_question_does_not(step: Step, said: str) -> None:
    with pytest.raises(MessageInvalid, match=said):
        Step.of(step.message(), local_file())


def test_steps_travel_unchanged() -> None:
    for step in (Step(1), Step(3, edge=2), Step(7, {"w": [["123", "900"]]})):
        assert Step.of(step.message(), local_file()) == step
    summed = local_file(protection="central_gaussian")
    assert Step.of(Step(2, {"w": [["7", "1"]]}).message(), summed) == Step(2, {"w": [["7", "1"]]})
    with pytest.raises(MessageInvalid, match="not of 1 letters"):
        Step.of(Step(2, {"w": [["71"]]}).message(), summed)


def test_a_group_without_frequent_prefixes_is_still_part_of_a_step() -> None:
    words = {"ask": "heavy_hitters", "column": "w", "alphabet": DIGITS, "length": 7, "most": 2,
             "by": "g", "groups": ["u", "v"]}  # fmt: skip
    file = local_file(questions={"w": words}, protection="central_gaussian")
    step = Step(3, {"w": [["12"], []]})
    assert Step.of(step.message(), file) == step
    data = {"w": ["12", "123", "12345678", "1x", "1234567"], "g": ["u"] * 5}
    rows = Schedule(file).parts(step)[0].encoding.rows(ArrayTable("t", data), Seeded(1))
    candidates = extended(["12"], QuestionSettings(**words), 1)
    found = [None if cell < 0 else candidates[cell] for cell in rows.cells]
    assert found == ["12" + END, "123", "123", None, "123"]
    assert np.flatnonzero(rows.moved).tolist() == [2]
    assert np.flatnonzero(rows.lost).tolist() == [3]


GROUPS = {"by": "g", "groups": ["v", "u", "none"]}


@pytest.mark.parametrize(
    ("protection", "epsilon"),
    [("not_encrypt", None), ("central_gaussian", 9.0), ("oue", 6.0), ("rr", 6.0)],
)
def test_each_group_has_its_own_frequent_words(protection: str, epsilon: float | None) -> None:
    rng = np.random.default_rng(2)
    g = rng.choice(["u", "v", "w"], 1201, p=[0.5, 0.35, 0.15])
    words_of = {"u": ["ab", "b"], "v": ["qab", "ab"], "w": ["c", "a"]}
    held = np.array([words_of[group][int(rng.random() < 0.4)] for group in g])
    question = {"ask": "heavy_hitters", "column": "w", "alphabet": "abcq", "length": 3, **GROUPS}
    more = {"fidelity": "aggregate"} if protection in ("rr", "oue") else {}
    answers = asked(
        {"f": {**question, "most": 2}}, {"w": held, "g": g}, protection, epsilon=epsilon, **more
    )
    found = {(e.label["g"], e.label["w"]): e for e in answers["f"].estimates}
    for group in "uv":
        for word in words_of[group]:
            estimate = found.pop((group, word))
            true = int(((held == word) & (g == group)).sum())
            assert abs(estimate.value - true) <= 5 * np.hypot(estimate.noise, 0.1)
            assert estimate.low < true < estimate.high
    assert {group for group, _ in found} <= {"none"}  # by chance, and never of a group not asked
    assert answers.epsilon == pytest.approx(epsilon or np.inf, rel=1e-6)


def test_groups_of_words_share_a_report_and_cost_no_more_noise() -> None:
    data = {"w": ["ab"] * 300 + ["b"] * 200, "g": ["u", "v"] * 250}
    asked_for = {"ask": "heavy_hitters", "column": "w", "alphabet": "ab", "length": 2, "most": 1}
    more: dict[str, Any] = {"epsilon": 8.0}
    alone = only(asked_for, data, "central_gaussian", **more)[0]
    (first, second) = only(
        {**asked_for, "by": "g", "groups": ["u", "v"]}, data, "central_gaussian", **more
    )
    # One ball for all cells: two trees in it would have 1.4 times the noise.
    assert first.noise == second.noise == pytest.approx(alone.noise, rel=0.08)
    many = words(alphabet=DIGITS, length=6, most=20, by="g", groups=[str(n) for n in range(40)])
    letters = letters_of(many, local=True)
    assert sum(letters) == 6
    assert 40 * 8 * 20 * 10 ** letters[-1] <= 1 << 21
    with pytest.raises(JobError, match=r"600 groups is too many"):
        QuestionFile.read(
            {
                "protection": "not_encrypt",
                "questions": {"w": {**asked_for, "by": "g", "most": 200,
                                    "groups": [str(n) for n in range(600)]}},
            },
            [],
        )  # fmt: skip


def test_groups_leave_fewer_letters_for_each_round_of_rr_and_oue() -> None:
    """All groups' candidates are in one report, which holds 2^21 bits."""
    for number, most, length, letters in (
        (5, 3, 12, [2, 2, 2, 2, 2, 2]), (1, 3, 12, [3, 3, 3, 3]), (10, 40, 5, [3, 1, 1]),
    ):  # fmt: skip
        groups = list(range(number))
        question = words(length=length, most=most, by="g", groups=groups)
        assert letters_of(question, local=True) == letters
    letters = "".join(chr(0x4E00 + i) for i in range(300))
    assert not too_many(words(alphabet=letters, most=20, by="g", groups=list(range(5))))
    assert too_many(words(alphabet=letters, most=20, by="g", groups=list(range(6))))
