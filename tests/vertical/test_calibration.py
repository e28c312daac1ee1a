"""Calibration corrects overconfident and class-weighted models, and predicts out of sample."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import softmax
from sklearn import metrics as known

from fedveil.entropy import Seeded
from fedveil.vertical.calibration import calibrated, log_loss

DRAW = Seeded(9).generator()
TRUE = DRAW.normal(0, 1.5, (4000, 3))
LABELS = (softmax(TRUE, axis=1).cumsum(axis=1) < DRAW.random((4000, 1))).sum(axis=1)


@pytest.mark.parametrize("moved", [np.zeros(3), np.log([1.0, 20.0, 0.1])])
@pytest.mark.parametrize("factor", [0.3, 1.0, 6.0])
def test_scores_that_are_too_sure_or_weighted_are_put_right(factor: float, moved) -> None:
    found = calibrated(factor * (TRUE + moved), LABELS)
    best = log_loss(softmax(TRUE, axis=1), LABELS)
    assert log_loss(found, LABELS) < best * 1.01
    np.testing.assert_allclose(found.sum(axis=1), 1)
    for at in range(3):
        high = found[:, at] > np.quantile(found[:, at], 0.8)
        assert found[high, at].mean() == pytest.approx((LABELS[high] == at).mean(), abs=0.05)


def test_no_example_is_told_by_its_own_label() -> None:
    one, other = LABELS.copy(), LABELS.copy()
    other[0::2] = (other[0::2] + 1) % 3
    first, second = (calibrated(TRUE, labels) for labels in (one, other))
    np.testing.assert_array_equal(first[0::2], second[0::2])
    assert not np.array_equal(first[1::2], second[1::2])


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_examples_change_little(count: int) -> None:
    found = calibrated(TRUE[:count], LABELS[:count])
    assert np.abs(found - softmax(TRUE[:count], axis=1)).max() < 0.4
    assert np.isfinite(found).all()


def test_the_log_loss_is_scikit_learn_s() -> None:
    shares = softmax(TRUE, axis=1)
    assert log_loss(shares, LABELS) == pytest.approx(known.log_loss(LABELS, shares))
