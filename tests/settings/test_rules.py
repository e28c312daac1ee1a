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
