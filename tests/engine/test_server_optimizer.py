"""The server's step against the formulas of the paper, written out a number at a time."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedveil.engine.server_optimizer import ServerOptimizer
from fedveil.errors import MessageInvalid
from fedveil.federated.blocks import ServerSettings

STEPS = [0.5, -0.25, 0.125, 0.0]


def by_hand(name: str, s: ServerSettings) -> float:
    w, m, v = 1.0, 0.0, s.tau**2
    for d in STEPS:
        if name == "none":
            w += s.lr * d
        elif name == "momentum":
            m = s.momentum * m + d
            w += s.lr * m
        else:
            m = s.beta1 * m + (1 - s.beta1) * d
            if name == "adam":
                v = s.beta2 * v + (1 - s.beta2) * d**2
            else:
                v -= (1 - s.beta2) * d**2 * math.copysign(1, v - d**2) if v != d**2 else 0
            w += s.lr * m / (math.sqrt(v) + s.tau)
    return w


@pytest.mark.parametrize("name", ["none", "momentum", "adam", "yogi"])
def test_against_the_formulas(name: str) -> None:
    settings = ServerSettings(optimizer=name, lr=0.5)  # type: ignore[arg-type]
    optimizer = ServerOptimizer(settings, np.array([True, False]))
    weights = np.ones(2, np.float32)
    for d in STEPS:
        weights = optimizer.step(weights, np.array([d, d]))
    assert weights[0] == pytest.approx(by_hand(name, settings), rel=1e-6)
    assert weights[1] == 1 + sum(STEPS)  # a buffer takes the mean as it is


@pytest.mark.parametrize("name", ["none", "momentum", "adam", "yogi"])
def test_a_restored_optimizer_goes_on_with_the_same_bytes(name: str) -> None:
    settings = ServerSettings(optimizer=name)  # type: ignore[arg-type]
    whole = ServerOptimizer(settings, np.ones(1, np.bool_))
    weights = np.ones(1, np.float32)
    for d in STEPS[:2]:
        weights = whole.step(weights, np.array([d]))
    again = ServerOptimizer(settings, np.ones(1, np.bool_))
    again.restore({k: v.copy() for k, v in whole.state().items()})
    for d in STEPS[2:]:
        one = whole.step(weights, np.array([d]))
        other = again.step(weights, np.array([d]))
        assert one.tobytes() == other.tobytes()
        weights = one


def test_another_optimizers_state_is_refused() -> None:
    optimizer = ServerOptimizer(ServerSettings(optimizer="adam"), np.ones(1, np.bool_))
    with pytest.raises(MessageInvalid, match=r"another server\.optimizer"):
        optimizer.restore({"m": np.zeros(1)})
