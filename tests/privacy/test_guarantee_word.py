"""The word beside an epsilon, against the attacker that it is about."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from fedveil.privacy import Figure, attacker_wrong, promise
from fedveil.privacy.guarantee_strength import MEANS, epsilon_text
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


def test_the_reason_for_a_limit_states_the_limit():
    """The best attacker is right at most that often, and not that often just beyond the limit."""
    for word, limit in (("strong", 1.0986), ("meaningful", 2.9444), ("weak", 6.9067)):
        (right,) = re.findall(r"right at most ([0-9.]+)% of the time", MEANS[word])
        assert 100 * (1 - attacker_wrong(limit)) == pytest.approx(float(right), abs=0.01)
    assert "99.9%" in MEANS["next to none"]


def test_a_thin_figure_is_one_that_nobody_should_count_on():
    words = [(Figure(epsilon, 0.0).promise, Figure(epsilon, 0.0).thin)
             for epsilon in (0.5, 2.0, 5.0, 8.0, math.inf)]  # fmt: skip
    assert words == [("strong", False), ("meaningful", False), ("weak", False),
                     ("next to none", True), ("none", True)]  # fmt: skip
    assert (epsilon_text(2.511, 1e-5), epsilon_text(0.9, 0.01)) == (
        "2.52 (meaningful)",
        "0.9 (next to none)",
    )
