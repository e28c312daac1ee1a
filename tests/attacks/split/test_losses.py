"""The loss of each example is computed from steps' mean losses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedveil.attacks.effort import Watch
from fedveil.attacks.split import labels
from fedveil.attacks.split.losses import _Means, losses_of_examples
from fedveil.attacks.split.split_target import SplitTarget
from fedveil.entropy import Seeded
from fedveil.vertical import VerticalJob
from fedveil.vertical.rows import Order

COUNT, BATCH = 23, 5


def rare_job(**settings: Any) -> VerticalJob:
    """Return a job on labels that features do not tell, and of which one class is rare."""
    optimizer = {"lr": 0.02, "momentum": 0.0}
    return VerticalJob(task="vertical_parts:rare", batch_size=7, optimizer=optimizer, **settings)


def test_losses_that_stay_are_found_whatever_the_mean_loss_does() -> None:
    """Twelve epochs with a last batch of three, while the mean of all losses falls by three."""
    values = Seeded(3, "values").generator().standard_normal(COUNT)
    order, steps = Order(5, COUNT, BATCH), 12 * 5
    came = [order.of_step(step) for step in range(1, steps + 1)]
    assert {len(places) for places in came} == {3, 5}
    losses = np.array([values[places].mean() for places in came])
    found = losses_of_examples(came, losses, COUNT)
    assert np.corrcoef(found, values)[0, 1] > 0.9
    fall = 3 * np.exp(-np.arange(steps) / 20)
    assert losses_of_examples(came, losses + fall, COUNT) == pytest.approx(found, abs=0.1)
    exact = _Means(np.concatenate(came), np.array([len(each) for each in came]), COUNT)
    assert exact.solved(exact.of_steps(values)) == pytest.approx(values, abs=1e-4)


def test_the_transposed_map_is_the_transposed_map() -> None:
    means = _Means(np.array([4, 0, 2, 2, 1]), np.array([2, 3]), 6)
    there = np.array([means.of_steps(row) for row in np.eye(6)]).T
    assert there.tolist() == [[0.5, 0, 0, 0, 0.5, 0], pytest.approx([0, 1 / 3, 2 / 3, 0, 0, 0])]
    back = np.array([means.transposed(row) for row in np.eye(2)])
    assert back == pytest.approx(there)


@pytest.mark.parametrize(
    ("privacy", "in_flight"),
    [
        ({"embedding_dp": {"gradient": "none"}}, 1),
        ({"label_protection": {"name": "marvell", "power": 30.0}}, 2),
    ],
)
def test_losses_reveal_the_labels(privacy: dict[str, Any], in_flight: int) -> None:
    job = rare_job(privacy=privacy, in_flight=in_flight, record={"followers_see_loss": True})
    run = labels._Follower.of(SplitTarget.of(job)).begun(240, Watch())
    assert run.losses is not None
    rare = run.true == 1
    assert (run.losses[rare][:, None] > run.losses[~rare]).mean() > 0.97


@pytest.mark.parametrize(
    ("settings", "received"),
    [
        ({}, True),
        ({"record": {"followers_see_loss": False}}, False),
        ({"privacy": {"label_protection": {"name": "marvell", "power": 30.0}}}, False),
    ],
)
def test_only_losses_that_the_follower_receives_are_used(
    settings: dict[str, Any], received: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(labels, "by_effort", lambda effort, quick, *more: 9)
    found = labels.attack(SplitTarget.of(rare_job(**settings)), "quick", Watch())
    assert found.saw == "the steps' losses and " * received + "gradients of left at bank"
    assert ("losses AUC" in [each.name for each in found.figures]) == received
    if received:
        assert found.figure("losses AUC").cases == found.figure("norm AUC").cases
