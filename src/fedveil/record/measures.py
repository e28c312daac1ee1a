"""Which figures a run's records hold of its model, and which one decides."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

Better = Literal["higher", "lower"]
#: The key of a record that says so; without it they are classification's usual ones.
MEASURES = "measures"
USUAL: Mapping[str, Better] = {"accuracy": "higher", "auc": "higher"}
LOSS = "loss"

_WORDS = {"auc": "AUC", "f1": "F1", "ks": "KS", "mae": "MAE", "r2": "R²", "rmse": "RMSE"}


def measures(record: Mapping[str, Any]) -> Mapping[str, Better]:
    """A record's figures but the loss, each with the way in which it is better."""
    found: Mapping[str, Better] = record.get(MEASURES, USUAL)
    return found


def deciding(record: Mapping[str, Any]) -> tuple[str, Better]:
    """The figure that says how good a model is: the first, or the loss where there is none."""
    return next(iter(measures(record).items()), (LOSS, "lower"))


def figures(record: Mapping[str, Any]) -> list[str]:
    """The deciding figure, the loss, and the others."""
    first, others = deciding(record)[0], measures(record)
    return list(dict.fromkeys([first, LOSS, *others]))


def best(figures: list[float], better: Better) -> float:
    """The best of some, those that are numbers before those that are not."""
    known = [figure for figure in figures if not math.isnan(figure)] or figures
    return max(known) if better == "higher" else min(known)


def word(name: str) -> str:
    """What a figure is called in a sentence or a column."""
    return _WORDS.get(name, name.replace("_", " "))


def title(name: str) -> str:
    """What it is called in a heading."""
    return _WORDS.get(name, word(name).capitalize())
