"""The cases that `fedveil audit` tests: a mechanism, two of its inputs, and its privacy claim.

They cover all protections, and the mechanisms that split learning uses.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fedveil.mechanisms import EmbeddingDP, LabelDP
from fedveil.privacy.audit import Case
from fedveil.protections.catalog import POSITIONS

#: The claimed epsilon. It is so small that some ten thousand trials refute every wrong claim.
EPS = 1.0


def cases() -> Iterator[Case]:
    """Yield audit cases (mechanism, two inputs, claim) of all protections and of split learning."""
    for position in POSITIONS.values():
        yield from position.audit_cases(EPS)
    yield from _crossings()


def _crossings() -> Iterator[Case]:
    embedding, rows = EmbeddingDP(EPS), np.eye(6)
    yield Case("embedding_dp, a bit", embedding, rows[0, :1], -rows[0, :1], embedding.loss.per_bit)
    yield Case("embedding_dp, a one-hot row", embedding, rows[0], rows[3], embedding.loss.per_row)
    vector = np.ones(4)
    yield Case("embedding_dp, a vector", embedding, vector, -vector, embedding.loss.per_vector(4))
    label = LabelDP(EPS)
    yield Case("label_dp, one of six classes", label, rows[:1], rows[3:4], label.loss)
