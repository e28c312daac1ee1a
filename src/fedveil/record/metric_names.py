"""The names of a model's metrics in a run's records. One of them decides which model is best."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

Better = Literal["higher", "lower"]
#: The key of a record that lists its metrics. Without this key, a record has the metrics `USUAL`.
MEASURES = "measures"
USUAL: Mapping[str, Better] = {"accuracy": "higher", "auc": "higher"}
LOSS = "loss"
#: The mean over clients, the mean of the worst tenth, the standard deviation.
CLIENTS = ("clients_mean", "clients_worst_tenth", "clients_spread")

_WORDS = {"auc": "AUC", "f1": "F1", "ks": "KS", "mae": "MAE", "r2": "R²", "rmse": "RMSE"}


def measures(record: Mapping[str, Any]) -> Mapping[str, Better]:
    """Map each metric in `record` except the loss to "higher" or "lower", whichever is better."""
    found: Mapping[str, Better] = record.get(MEASURES, USUAL)
    return found


def deciding(record: Mapping[str, Any]) -> tuple[str, Better]:
    """Return the metric that decides which model is best, and if higher or lower is better.

    It is the record's first metric, or the loss if the record has no other metric.
    """
    return next(iter(measures(record).items()), (LOSS, "lower"))


def figures(record: Mapping[str, Any]) -> list[str]:
    """Return the names of a record's metrics: the deciding metric, the loss, then all others."""
    first, others = deciding(record)[0], measures(record)
    return list(dict.fromkeys([first, LOSS, *others]))


def best(figures: list[float], better: Better) -> float:
    """Return the highest or the lowest of `figures`, as `better` says.

    Ignores NaN, unless all `figures` are NaN.
    """
    known = [figure for figure in figures if not math.isnan(figure)] or figures
    return max(known) if better == "higher" else min(known)


def word(name: str) -> str:
    return _WORDS.get(name, name.replace("_", " "))


def title(name: str) -> str:
    return _WORDS.get(name, word(name).capitalize())


def is_share(name: str) -> bool:
    """Return True if the metric `name` is a fraction of the examples, such as an accuracy."""
    return name.replace("_", " ").split(" ")[-1] == "accuracy"


def digits(name: str, value: float) -> str:
    """Format a metric for people: a share (`is_share`) as a percentage, NaN as "undefined"."""
    if math.isnan(value):
        return "undefined"
    # A metric of the user's own may have this name and another range.
    if is_share(name) and 0 <= value <= 1:
        return f"{value:.1%}"
    if abs(value) < 99.5:
        return f"{value:#.3g}" if value else "0"
    return f"{value:,.1f}" if abs(value) < 1e9 else f"{value:.4g}"


def in_words(quality: Mapping[str, Any]) -> str:
    """Return a model's metrics as text, such as "accuracy 86.9%, auc 0.930"."""
    found = (f"{k} {digits(k, v)}" for k, v in quality.items() if isinstance(v, float))
    return ", ".join(found)


def as_asked(name: str, value: float) -> str:
    """Format a user's value for the metric `name`, such as a goal. The value is not rounded."""
    return f"{100 * value:.12g}%" if is_share(name) else f"{value:.12g}"
