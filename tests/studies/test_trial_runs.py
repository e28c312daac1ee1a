"""The best of several short trials."""

from __future__ import annotations

import math

import pytest

from comparing_parts import small_job
from fedveil.engine.candidates import candidates
from fedveil.privacy.guarantee_strength import Figure
from fedveil.record.metric_names import Better
from fedveil.studies.trial_runs import BARE, UNTRAINED, Trial, best


def found(better: Better, start: float, bare: float, **values: float) -> list[Trial]:
    """Return trials whose models are untrained, unprotected, or under each protection."""
    nothing = Figure(math.inf, 1e-5)
    trials = [
        Trial(UNTRAINED, None, nothing, None, "score", better, start),
        Trial(BARE, None, nothing, None, "score", better, bare),
    ]
    for one in candidates(small_job(), 83, 3.0):
        value = values.get(one.name, math.nan)
        trials.append(Trial(one.name, one, one.figure, None, "score", better, value))
    return trials


@pytest.mark.parametrize(("better", "sign"), [("higher", 1.0), ("lower", -1.0)])
def test_the_best_has_learnt_more_than_the_untrained_model(better: Better, sign: float) -> None:
    levels = {"distributed_dp": 0.88 * sign, "dp_encrypt": 0.86 * sign}
    trials = found(better, 0.87 * sign, 0.95 * sign, **levels)
    assert best(trials, "client") is None  # a gain of 0.01 of 0.08, and a loss
    worse = levels | {"dp_encrypt": 0.4 * sign}
    assert best(found(better, 0.87 * sign, 0.95 * sign, **worse), "client") is None
    chosen = best(found(better, 0.5 * sign, 0.95 * sign, **levels), "client")
    assert chosen is not None
    assert chosen.name == "distributed_dp"
    assert best(found(better, 0.5 * sign, 0.95 * sign, **levels), "example") is None


def test_a_promise_that_trusts_the_server_comes_last() -> None:
    chosen = best(found("higher", 0.1, 0.9, dp_encrypt=0.5, central_gaussian=0.8), "client")
    assert chosen is not None
    assert chosen.name == "dp_encrypt"
    alone = best(found("higher", 0.1, 0.9, central_gaussian=0.8), "client")
    assert alone is not None
    assert alone.name == "central_gaussian"
