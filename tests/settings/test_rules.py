"""Rules between keys: each is skipped if a key that it reads is wrong by itself."""

from __future__ import annotations

import pytest

from fedveil.settings.rules import Rules


@pytest.mark.parametrize(
    ("reads", "wrong", "applied"),
    [
        ("training", ("training", "lr"), False),  # the rule reads the whole block
        ("training.lr", ("training",), False),  # the whole block is wrong
        ("training.lr", ("training", "lr"), False),
        ("training.lr", ("training", "lr_factor"), True),  # a name that begins alike
        ("training.lr_factor", ("training", "lr"), True),
        ("training", ("server", "lr"), True),
    ],
)
def test_a_rule_needs_what_it_reads(reads: str, wrong: tuple[str, ...], applied: bool) -> None:
    rules = Rules[object]()
    rules.rule(reads)(lambda job: "broken")
    assert rules.broken(object(), [wrong]) == (["broken"] if applied else [])


def test_rules_advice_and_the_texts_of_rules_are_kept_apart() -> None:
    rules = Rules[int]()

    @rules.rule("rounds")
    def small(job: int) -> str | None:
        """Rounds are
        below 3.

        More costs more.
        """
        return "too many" if job >= 3 else None

    rules.rule("rounds")(lambda job: None)
    rules.advised(lambda job: f"use {job - 1}" if job in (2, 4) else None)
    rules.advised(lambda job: "rest" if job == 4 else None)
    assert [(rules.broken(n, []), rules.advice(n)) for n in (1, 2, 3, 4)] == [
        ([], []), ([], ["use 1"]), (["too many"], []), (["too many"], ["use 3", "rest"]),
    ]  # fmt: skip
    assert rules.texts() == ["Rounds are below 3.", ""]
