"""The server's step against the formulas of the paper, written out a number at a time."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedveil.base import two_threads
from fedveil.engine.server_optimizer import ServerOptimizer, make_optimizer
from fedveil.errors import MessageInvalid, RoundVoid
from fedveil.federated.job import Job
from fedveil.federated.training_blocks import ServerSettings

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
            if name == "adagrad":
                v += d**2
            elif name == "adam":
                v = s.beta2 * v + (1 - s.beta2) * d**2
            else:
                v -= (1 - s.beta2) * d**2 * math.copysign(1, v - d**2) if v != d**2 else 0
            w += s.lr * m / (math.sqrt(v) + s.tau)
    return w


@pytest.mark.parametrize("name", ["none", "momentum", "adagrad", "adam", "yogi"])
def test_against_the_formulas(name: str) -> None:
    settings = ServerSettings(optimizer=name, lr=0.5)  # type: ignore[arg-type]
    optimizer = ServerOptimizer(settings, np.array([True, False]))
    weights = np.ones(2, np.float32)
    for d in STEPS:
        weights = optimizer.step(weights, np.array([d, d]))
    assert weights[0] == pytest.approx(by_hand(name, settings), rel=1e-6)
    assert weights[1] == 1 + sum(STEPS)  # a buffer takes the mean as it is


@pytest.mark.parametrize("name", ["none", "momentum", "adagrad", "adam", "yogi"])
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


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", ["none", "momentum", "adagrad", "adam", "yogi"])
def test_a_step_in_place_gives_the_same_bytes_or_changes_nothing(
    name: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(two_threads, "_LONG", 1 if threads == 2 else 1 << 30)
    settings = ServerSettings(optimizer=name, lr=0.3)  # type: ignore[arg-type]
    count = 140_001  # three parts, the last of which is odd
    trainable = np.arange(count) % 7 != 3
    apart, within = (ServerOptimizer(settings, trainable) for _ in range(2))
    weights = np.linspace(-1, 1, count, dtype=np.float32)
    place = weights.copy()
    for turn in range(2):
        mean = np.cos(np.arange(count) + turn)
        weights = apart.step(weights, mean, 0.4)
        assert within.step(place, mean, 0.4, in_place=True) is place
        assert place.tobytes() == weights.tobytes()
    before = {key: moment.copy() for key, moment in within.state().items()}
    buffer = 70_003, 5e38  # too large for a weight, which the learning rate does not change
    assert not trainable[buffer[0]]
    for at, bad in ((-1, np.inf), (-1, np.nan), (0, -1e300), (0, np.nan), (70_001, 1e300), buffer):
        changed = mean.copy()
        changed[at] = bad
        with pytest.raises(RoundVoid, match="not finite"):
            within.step(place, changed, 0.4, in_place=True)
        assert place.tobytes() == weights.tobytes()
        assert all((within.state()[key] == moment).all() for key, moment in before.items())


def test_a_step_that_comes_close_to_the_largest_number_is_taken() -> None:
    """Its sizes add up to too much, but no weight does."""
    optimizer = ServerOptimizer(ServerSettings(), np.ones(2, np.bool_))
    weights = np.array([3e38, -1], np.float32)
    moved = optimizer.step(weights, np.array([-2e38, 1e38]), in_place=True)
    np.testing.assert_allclose(moved, [1e38, 1e38], rtol=1e-6)


def test_another_optimizers_state_is_refused() -> None:
    optimizer = ServerOptimizer(ServerSettings(optimizer="adam"), np.ones(1, np.bool_))
    with pytest.raises(MessageInvalid, match=r"another server\.optimizer"):
        optimizer.restore({"m": np.zeros(1)})


def test_a_variate_moves_by_the_share_that_is_summed() -> None:
    settings = Job(clients={"number": 8, "fraction": 0.25}, training={"algorithm": "scaffold"})
    optimizer = make_optimizer(settings, np.ones(2, np.bool_))
    weights, sums = np.array([1, 2, 3, 4], np.float32), np.array([0.5, 0.0, 0.4, -0.8])
    moved = optimizer.step(weights, sums, 0.25)
    np.testing.assert_allclose(moved, [1.5, 2, 4, 2], rtol=1e-6)  # 0.25 / 0.1 of the variates
    moved = optimizer.step(weights, sums, 0.125)  # half of the clients that were asked
    np.testing.assert_allclose(moved, [1.5, 2, 3.5, 3], rtol=1e-6)


def test_what_feddyn_holds_is_kept() -> None:
    settings = Job(clients={"number": 8, "fraction": 0.25}, training={"algorithm": "feddyn"})
    one, other = (make_optimizer(settings, np.ones(2, np.bool_)) for _ in range(2))
    weights, d = np.zeros(2, np.float32), np.array([1.0, -2.0])
    weights = one.step(weights, d, 0.25)
    np.testing.assert_allclose(weights, 1.25 * d)
    other.restore(dict(one.state()))
    np.testing.assert_array_equal(one.step(weights, d), other.step(weights, d))


def test_feddyns_state_grows_and_leaves_buffers_alone() -> None:
    settings = Job(clients={"number": 8}, training={"algorithm": "feddyn", "dynamic": 0.4})
    optimizer = make_optimizer(settings, np.array([True, False]))
    weights, h = np.zeros(2, np.float32), 0.0
    for d, share in ((1.0, 0.25), (-2.0, 0.5), (0.5, 0.125)):
        before, h = weights, h - 0.4 * share * d
        weights = optimizer.step(weights, np.array([d, d]), share)
        np.testing.assert_allclose(weights - before, [d - h / 0.4, d], rtol=1e-6)
    with pytest.raises(RoundVoid):
        optimizer.step(weights, np.array([1e300, 0.0]), 1.0)
    assert optimizer.state()["h"][0] == pytest.approx(h)


def test_fedcm_sends_the_aggregate_after_the_weights_and_no_direction_of_buffers() -> None:
    settings = Job(training={"algorithm": "fedcm"}, server={"lr": 0.5})
    optimizer = make_optimizer(settings, np.array([True, False, True]))
    sent = np.array([1, 2, 3, 7, 7, 7], np.float32)
    moved = optimizer.step(sent, np.array([0.5, 0.25, -1.0]))
    np.testing.assert_array_equal(moved, [1.25, 2.25, 2.5, 0.5, 0, -1.0])


def test_a_variate_that_is_not_finite_changes_nothing() -> None:
    settings = Job(
        clients={"number": 8}, training={"algorithm": "scaffold", "lr": 0.5},
        server={"optimizer": "momentum", "momentum": 0.5, "lr": 0.25},
    )  # fmt: skip
    optimizer = make_optimizer(settings, np.ones(1, np.bool_))
    weights = optimizer.step(np.zeros(2, np.float32), np.array([1.0, 3.0]), 0.25)
    np.testing.assert_allclose(weights, [0.25, 1.5])
    with pytest.raises(RoundVoid, match="control variate is not finite"):
        optimizer.step(weights, np.array([1.0, 1e300]), 1.0)
    np.testing.assert_allclose(optimizer.step(weights, np.zeros(2)), [0.375, 1.5])


@pytest.mark.parametrize("name", ["adam", "adagrad", "yogi"])
def test_moments_that_no_step_leaves_are_refused(name: str) -> None:
    optimizer = ServerOptimizer(ServerSettings(optimizer=name, tau=0.5), np.ones(2, np.bool_))  # type: ignore[arg-type]
    assert optimizer.state()["v"].tolist() == [0.25, 0.25]
    for bad in ({"m": np.zeros(3)}, {"m": np.array([0, np.inf])}, {"v": np.array([0.0, -1e-9])}):
        with pytest.raises(MessageInvalid):
            optimizer.restore({**optimizer.state(), **bad})


def test_a_step_that_fails_in_its_last_part_changes_no_moment() -> None:
    count = 140_001  # three parts
    optimizer = ServerOptimizer(ServerSettings(optimizer="adam"), np.ones(count, np.bool_))
    weights = optimizer.step(np.ones(count, np.float32), np.linspace(-1, 1, count))
    before = {name: moment.copy() for name, moment in optimizer.state().items()}
    bad = np.full(count, 0.5)
    bad[-1] = np.inf
    with pytest.raises(RoundVoid, match="not finite"):
        optimizer.step(weights, bad)
    for name, moment in before.items():
        np.testing.assert_array_equal(optimizer.state()[name], moment, name)


def test_a_weight_that_only_the_sum_makes_too_large_changes_nothing() -> None:
    count = 140_001  # three parts
    optimizer = ServerOptimizer(ServerSettings(), np.ones(count, np.bool_))
    weights, mean = np.linspace(-1, 1, count, dtype=np.float32), np.full(count, 0.5)
    weights[-1], mean[-1] = 3e38, 1e38  # float32 holds each of them
    before = weights.copy()
    with pytest.raises(RoundVoid, match="not finite"):
        optimizer.step(weights, mean, in_place=True)
    np.testing.assert_array_equal(weights, before)
