"""Rows of people, and question files about them."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedveil.statistics.answers import Answers
from fedveil.statistics.asking import ask

#: No multiple of any number of cells or groups in the tests.
PEOPLE = 397


def people(number: int = PEOPLE, seed: int = 7) -> dict[str, Any]:
    """Return columns: ages, two sexes in unequal shares, incomes, and a town of eleven."""
    rng = np.random.default_rng(seed)
    age = rng.integers(18, 93, number).astype(float)
    return {
        "age": age,
        "sex": rng.choice(["f", "m"], number, p=[0.6, 0.4]),
        "income": np.exp(rng.normal(10, 0.5, number)) + 100 * age,
        "town": rng.integers(0, 11, number),
    }


def asked(
    questions: dict[str, Any], data: Any = None, protection: str = "not_encrypt", **more: Any
) -> Answers:
    """Ask questions about `data`, by default `people()`, with repeatable noise."""
    settings = {"randomness": "seeded", "masks": False, **more}
    file = {"protection": protection, "questions": questions, **settings}
    return ask(file, people() if data is None else data)


def only(question: dict[str, Any], *arguments: Any, **more: Any) -> Any:
    """Return the estimates of a single question."""
    return asked({"q": question}, *arguments, **more)["q"].estimates
