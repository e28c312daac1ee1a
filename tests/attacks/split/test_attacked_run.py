"""The attack on labels, aimed at a finished run: it sees what the follower really received."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fedveil.attacks.effort import Watch
from fedveil.attacks.split.labels import attack
from fedveil.attacks.split.split_target import SplitTarget
from fedveil.vertical import VerticalJob, train
from fedveil.vertical.party_run import OWN_SEED
from fedveil.vertical.returned_gradients import ReturnedGradients

JOB = VerticalJob(
    task="vertical_parts:bottoms", epochs=3, batch_size=16, scoring={"calibration": 0.2},
    privacy={"embedding_dp": {"eps": 3.0}},
)  # fmt: skip


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """The gradients that the bank receives, a tensor for each step."""
    found: list[torch.Tensor] = []
    honest = ReturnedGradients.__call__

    def recorded(self: Any, crossing: Any, *given: Any) -> torch.Tensor:
        returned = honest(self, crossing, *given)
        if crossing.part == "left":
            found.append(returned.detach().clone())
        return returned

    monkeypatch.setattr(ReturnedGradients, "__call__", recorded)
    return found


def test_the_steps_of_a_run_are_those_that_its_follower_saw(
    tmp_path: Path, received: list[torch.Tensor]
) -> None:
    folder = train(JOB, tmp_path / "run").folder
    seen = list(received)
    target = SplitTarget.of_run(folder)
    assert target.steps == len(seen) == 9
    played = [crossed.gradients["left"] for _, crossed in target.at_start().begun(len(seen))]
    assert all(torch.equal(a, b) for a, b in zip(seen, played, strict=True))
    (_, later), *_ = target.begun(1)
    assert not torch.equal(later.gradients["left"], seen[0]), "the final model's are others"
    assert target.trained, "the target itself is unchanged"
    received.clear()
    finding = attack(target, "quick", Watch())
    assert finding.saw == (
        "the steps' losses and gradients of left at bank, in the run's first steps"
    )
    assert finding.settings["steps"] == 9, "no follower has seen more"
    assert all(torch.equal(a, b) for a, b in zip(seen, received[-9:], strict=True))


def test_a_run_whose_initial_weights_are_not_known_says_that_its_steps_are_new(
    tmp_path: Path,
) -> None:
    folder = train(JOB, tmp_path / "run").folder
    (folder / OWN_SEED).write_bytes(bytes(16))
    target = SplitTarget.of_run(folder)
    assert target.at_start() is target
    finding = attack(target, "quick", Watch())
    assert finding.saw.endswith("in new steps after the run's end: its first steps may reveal more")
    assert finding.settings["steps"] == 60
