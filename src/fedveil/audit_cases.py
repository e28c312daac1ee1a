"""The shipped mechanisms on trial: for each, two worst-case inputs and the claim to be refuted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedveil.entropy import Entropy
from fedveil.mechanisms import (
    BinaryRandomizedResponse,
    EmbeddingDP,
    GaussianMechanism,
    LabelDP,
    SignDS,
    UnaryEncoding,
)
from fedveil.privacy import PrivacyLoss
from fedveil.privacy.audit import Audit, run

#: Small enough that every case can be refuted if it is wrong, with some ten thousand trials.
EPS = 1.0


@dataclass(frozen=True)
class Case:
    """A mechanism, and two inputs that differ as much as its claim allows."""

    name: str
    release: Callable[[Any, Entropy], Any]
    a: Any
    b: Any
    claim: PrivacyLoss

    def audit(self, trials: int) -> Audit:
        """Play the game."""
        return run(self.release, self.a, self.b, claim=self.claim, trials=trials)


def cases() -> Iterator[Case]:
    """Every mechanism that a switch position or a crossing rests on."""
    response = BinaryRandomizedResponse(EPS)
    yield Case(
        "randomised response, a bit",
        response.perturb,
        np.array([False]),
        np.array([True]),
        response.loss,
    )
    for kind in ("rr", "oue"):
        for report in ("sum", "bits"):
            unary = UnaryEncoding(kind, EPS / 2, cells=4, report=report)
            yield Case(
                f"{kind}, {report} of a parameter",
                unary.perturb,
                np.array([-1.0]),
                np.array([1.0]),
                unary.loss_per_parameter,
            )
    gaussian = GaussianMechanism(EPS, 1e-3, clip=1.0)
    yield Case(
        "gaussian, an update",
        gaussian.privatize,
        np.array([1.0, 0.0]),
        np.array([-1.0, 0.0]),
        gaussian.loss,
    )
    selection = SignDS(k=0.25, eps=EPS, thr_ratio=0.5, dim_out=2)
    ramp = np.linspace(-1, 1, 8, dtype=np.float32)
    yield Case("signds, an update", selection.select, ramp, -ramp, selection.loss)
    embedding, rows = EmbeddingDP(EPS), np.eye(6)
    yield Case("embedding_dp, a bit", embedding, rows[0, :1], -rows[0, :1], embedding.loss.per_bit)
    yield Case("embedding_dp, a one-hot row", embedding, rows[0], rows[3], embedding.loss.per_row)
    vector = np.ones(4)
    yield Case("embedding_dp, a vector", embedding, vector, -vector, embedding.loss.per_vector(4))
    label = LabelDP(EPS)
    yield Case("label_dp, one of six classes", label, rows[:1], rows[3:4], label.loss)
