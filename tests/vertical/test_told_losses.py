"""A follower that receives the loss of every step reads the labels from it, without a gradient."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedveil.vertical import VerticalJob, train
from fedveil.vertical.rows import Order
from fedveil.vertical.step_window import StepWindow
from vertical_parts import Rare

EXAMPLES, BATCH, EPOCHS = Rare.train, 7, 30
NO_GRADIENT = {"embedding_dp": {"eps": 2.5, "gradient": "none"}}
MARVELL = {"label_protection": {"name": "marvell", "power": 30.0}}


def heard(
    folder: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any
) -> dict[str, list[float | None]]:
    """Train, and return the losses that each party knows after each step."""
    losses: dict[str, list[float | None]] = {"lead": [], "bank": [], "shop": []}
    add = StepWindow.add

    def noted(window: StepWindow, loss: float | None, rows: int) -> None:
        losses[window._party.name].append(loss)
        add(window, loss, rows)

    monkeypatch.setattr(StepWindow, "add", noted)
    job = VerticalJob(
        task="vertical_parts:rare", batch_size=BATCH, epochs=EPOCHS, seed=9,
        optimizer={"lr": 0.02, "momentum": 0.0}, evaluation={"every_epochs": None}, **settings,
    )  # fmt: skip
    run = train(job, folder)
    assert len(losses["lead"]) == EPOCHS * -(-EXAMPLES // BATCH)
    for party in ("bank", "shop"):
        assert any("loss" in record for record in run.records[party]) == (
            losses[party][0] is not None
        )
    return losses


def ranked(losses: list[float | None]) -> float:
    """Return the AUC of an attacker who computes each example's loss from the steps' means."""
    order = Order(9, EXAMPLES, BATCH)
    of_step = [order.of_step(number) for number in range(1, len(losses) + 1)]
    present = np.zeros((len(losses), EXAMPLES))
    for row, positions in zip(present, of_step, strict=True):
        row[positions] = 1 / len(positions)
    found = np.linalg.lstsq(present, np.array(losses, float), rcond=None)[0]
    labels = Rare().whole("train")[1].numpy()
    return float((found[labels == 1][:, None] > found[labels == 0]).mean())


@pytest.mark.parametrize("privacy", [NO_GRADIENT, MARVELL])
def test_losses_reveal_the_labels(
    privacy: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = heard(tmp_path, monkeypatch, privacy=privacy, record={"followers_see_loss": True})
    assert told["bank"] == told["shop"] == told["lead"]
    assert ranked(told["bank"]) > 0.98


def test_no_loss_is_sent_under_label_protection_unless_the_job_asks_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = heard(tmp_path / "protected", monkeypatch, privacy=MARVELL)
    assert None not in told["lead"]
    assert set(told["bank"]) == set(told["shop"]) == {None}
    told = heard(tmp_path / "plain", monkeypatch, privacy=NO_GRADIENT)
    assert None not in told["bank"]
    hidden = {"followers_see_loss": False}
    told = heard(tmp_path / "hidden", monkeypatch, privacy=NO_GRADIENT, record=hidden)
    assert set(told["bank"]) == {None}
