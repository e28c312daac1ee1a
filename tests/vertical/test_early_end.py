"""A run that a privacy limit ends, or whose last outputs are no numbers, ends in good order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedveil.entry.vertical import train
from fedveil.errors import ExchangeError
from fedveil.vertical.calibrator import CALIBRATOR, Calibrator
from fedveil.vertical.job import VerticalJob
from fedveil.vertical.label_watch import STEPS, LabelWatch
from fedveil.vertical.party import Party
from fedveil.vertical.step import Occasion
from vertical_parts import Bottoms

BATCH, EXAMPLES = 16, 48


def watched(planned: int, played: int) -> list[str]:
    """Return what a watch says at the end of a run of which only the first steps were played.

    The gradients of one part have the label as their sign, and those of the other part nothing.
    """
    split = Bottoms().split_model()
    said: list[str] = []
    watch = LabelWatch(split, 2, lambda c, gradient, *more: gradient, said.append, planned)
    draw = np.random.default_rng(3)
    labels = (np.arange(EXAMPLES) % 3 == 0).astype(np.int64)
    for step in range(1, played + 1):
        places = np.arange(step * BATCH, (step + 1) * BATCH) % EXAMPLES
        for crossing in split.crossings:
            rows = draw.normal(size=(BATCH, *crossing.output))
            if crossing.part == "right":
                rows += 30.0 * (labels[places] - 0.5)[:, None]
            occasion = Occasion("train", 0, step, 0, places)
            watch(crossing, torch.from_numpy(rows), torch.from_numpy(labels[places]), occasion)
        watch.step_ended()
    before = len(said)
    watch.run_ended()
    later = said[before:]
    watch.run_ended()
    assert said[before:] == later
    return later


def test_a_run_that_ends_in_its_first_steps_says_what_they_reveal() -> None:
    left, right, advice = watched(planned=70, played=3)
    assert left.startswith("labels: the gradients of left")
    assert "leave open" in left
    assert "the gradients of right returned to shop reveal them" in right
    assert left.endswith("measured in steps 1 to 3")
    assert "privacy.label_dp" in advice
    assert watched(planned=70, played=0) == []


def test_a_run_that_ends_between_its_measured_steps_says_what_the_sums_reveal() -> None:
    left, right, _ = watched(planned=70, played=STEPS + 7)
    assert left.endswith(f"added up over steps 1 to {STEPS + 7}")
    assert "the gradients of right returned to shop reveal them" in right


def test_a_run_that_ends_in_its_last_steps_says_both() -> None:
    said = watched(planned=70, played=55)
    assert [text.split(", ")[-1] for text in said[:-1]] == [
        *["measured in steps 51 to 55"] * 2,
        *["added up over steps 1 to 55"] * 2,
    ]


def test_a_leader_says_what_its_gradients_reveal_if_a_followers_limit_ends_the_run(
    tmp_path: Path,
) -> None:
    """Each report costs the bank 4 epsilon, so the third epoch is above its limit."""
    job = VerticalJob(
        task="vertical_parts:bottoms", epochs=5, batch_size=8, evaluation={"every_epochs": None},
        privacy={"embedding_dp": {"eps": 1.0}, "max_epsilon": 9.0},
    )  # fmt: skip
    run = train(job, tmp_path / "run")
    log = (run.folder / "lead" / "events.log").read_text()
    assert "privacy.max_epsilon is reached" in log
    last = max(record["step"] for record in run.metrics if "step" in record)
    assert last <= STEPS
    private = (run.folder / "lead" / "private.log").read_text()
    told = [line for line in private.splitlines() if "labels: the gradients of" in line]
    assert any("measured in steps 1 to " in line for line in told)
    assert any("added up over steps 1 to " in line for line in told)


@pytest.mark.parametrize("bad", [2, None])
def test_outputs_that_are_no_numbers_are_left_out_of_the_calibration(
    bad: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = Party.look

    def hostile(self: Party, number: int, batch: Any, **more: Any) -> Any:
        outputs = yield from look(self, number, batch, **more)
        if outputs is not None and more.get("subset") == "calibration":
            outputs[:bad, 1] = torch.nan
        return outputs

    monkeypatch.setattr(Party, "look", hostile)
    scoring = {"calibration": 0.2}
    job = VerticalJob(task="vertical_parts:bottoms", epochs=1, batch_size=500, scoring=scoring)
    if bad is None:
        with pytest.raises(ExchangeError, match="no example that is set aside has a finite output"):
            train(job, tmp_path / "run")
        return
    said: list[str] = []
    folder = train(job, tmp_path / "run", say=said.append).folder
    (told,) = [text for text in said if "calibration uses" in text]
    used, among = map(int, (told.split()[2], told.split()[4]))
    assert used == among - bad
    kept = folder / "lead" / CALIBRATOR
    assert Calibrator.read(kept.read_bytes(), str(kept)).examples == used
