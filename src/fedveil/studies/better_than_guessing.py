"""Finds the settings of a comparison whose models have learnt and do not just guess."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from fedveil.record.metric_names import digits, measures, word
from fedveil.studies.comparison_table import Line
from fedveil.studies.trial_runs import LEAST_GAIN

#: The metrics that have the same value for guessing, whatever the data, and this value. Guessing
#: takes no notice of an example's features. The best value of these metrics is 1.
GUESSES: Mapping[str, float] = {"auc": 0.5, "r2": 0.0}
#: A smaller gain over guessing may be chance.
_CHANCE = 0.05


def known_guess(line: Line) -> str | None:
    """Return a line's first metric for which the value of pure guessing is known, or None."""
    names = measures(line.runs[0].last)
    return next((name for name in GUESSES if name in names and line.last(name)), None)


def has_learnt(line: Line, bare: Line | None) -> bool:
    """Return True if a line's models gain enough over guessing.

    They need a quarter of the gain of `bare`, the line without protection. If there is no such
    line, they need a quarter of the gain of a perfect model. Also returns True if no metric of the
    line has a known value for guessing.
    """
    name = known_guess(line)
    if name is None:
        return True
    top = statistics.fmean((bare.last(name) if bare is not None else []) or [1.0])
    gain = statistics.fmean(line.last(name)) - GUESSES[name]
    return not gain < max(_CHANCE, LEAST_GAIN * (top - GUESSES[name]))


def guessing(line: Line) -> str:
    """Describe guessing beside a line's models, such as "AUC 0.516, where guessing has 0.5"."""
    name = known_guess(line)
    assert name is not None, "a line without such a metric is never said to guess"
    reached = statistics.fmean(line.last(name))
    return f"{word(name)} {digits(name, reached)}, where guessing has {GUESSES[name]:g}"
