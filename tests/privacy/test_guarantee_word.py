"""The word beside an epsilon, against the attacker that it is about."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedveil.privacy import Figure, attacker_wrong, promise
from fedveil.privacy.ledger import Line


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 2.0, 7.0])
@pytest.mark.parametrize("delta", [0.0, 1e-5, 0.2])
def test_the_best_attacker_is_wrong_as_often_as_said(epsilon, delta):
    """The worst mechanism: fails completely with delta, else answers by randomised response.

    The best guess is the likelier input, so that it is wrong with half the smaller likelihoods.
    """
    right = math.exp(epsilon) / (1 + math.exp(epsilon))
    first = np.array([delta, 0, (1 - delta) * right, (1 - delta) * (1 - right)])
    second = np.array([0, delta, (1 - delta) * (1 - right), (1 - delta) * right])
    assert np.minimum(first, second).sum() / 2 == pytest.approx(attacker_wrong(epsilon, delta))


@pytest.mark.parametrize(
    ("epsilon", "delta", "word"),
    [
        (0.0, 0.0, "strong"), (1.0986, 0.0, "strong"), (1.0987, 0.0, "meaningful"),
        (2.9444, 0.0, "meaningful"), (2.9445, 0.0, "weak"), (6.9067, 0.0, "weak"),
        (6.9068, 0.0, "next to none"), (1e9, 0.0, "next to none"), (math.inf, 0.0, "none"),
        (1.0, 1e-5, "strong"), (1.0, 1e-3, "strong"), (1.0, 0.0011, "next to none"),
        (0.0, 1.0, "none"), (1.0986, 1e-4, "meaningful"),
    ],
)  # fmt: skip
def test_where_the_words_begin(epsilon, delta, word):
    assert promise(epsilon, delta) == word


def test_more_epsilon_never_has_a_better_word():
    order = ["strong", "meaningful", "weak", "next to none", "none"]
    for delta in (0.0, 1e-5, 1e-2):
        words = [promise(e, delta) for e in (*np.geomspace(1e-9, 1e6, 400), math.inf)]
        assert words == sorted(words, key=order.index)


def test_a_figure_is_told_with_its_word():
    assert str(Figure(2.5, 1e-5)) == "epsilon 2.5 at delta 1e-05 (meaningful)"
    assert str(Line(math.inf, 0.0, "a bit")) == "epsilon inf at delta 0 (none) for a bit"
