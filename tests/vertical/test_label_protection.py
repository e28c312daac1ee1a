"""Labels between parties: what goes back is perturbed, and what it tells is said at the start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedveil.attacks.effort import Watch
from fedveil.attacks.split.labels import attack
from fedveil.attacks.split.split_target import SplitTarget
from fedveil.errors import JobError
from fedveil.vertical import VerticalJob, train
from fedveil.vertical.together import resume

WIDE = {"name": "tabular", "tabular": {"wide": "linear"}}
MARVELL = {"label_protection": {"name": "marvell"}}
MAX_NORM = {"label_protection": {"name": "max_norm"}}


def target(privacy: dict[str, Any], task: Any = "tabular") -> SplitTarget:
    return SplitTarget.of(VerticalJob(task=task, privacy=privacy))


def test_only_what_goes_back_is_perturbed() -> None:
    """And what goes forward is the unprotected step's, with gradients that are right on average."""
    positions = np.arange(32)
    plain = target({}).crossed(positions)
    for privacy in (MARVELL, MAX_NORM):
        held = target(privacy).crossed(positions)
        for part, gradient in plain.gradients.items():
            assert (held.outputs[part] == plain.outputs[part]).all()
            assert held.gradients[part].shape == gradient.shape
            assert held.gradients[part].dtype == gradient.dtype
            assert not (held.gradients[part] == gradient).all()


def test_noise_is_drawn_anew_for_every_step_part_and_follower() -> None:
    held = target(MARVELL)
    first, second = (held.crossed(np.arange(32), step) for step in (1, 2))
    assert not (first.gradients["bank_deep"] == second.gradients["bank_deep"]).all()


def test_the_sign_of_two_classes_no_longer_tells_them() -> None:
    plain = attack(target({}, WIDE), "quick", Watch())
    held = attack(target(MARVELL, WIDE), "quick", Watch())
    for name in ("step 1", "no label known", "10 labels known"):
        assert plain.figure(name).value == 1
        assert held.figure(name).low < held.figure(name).guess
    assert held.figure("direction AUC").value < 0.65
    assert (plain.protection, held.protection) == ("none", "marvell")
    assert held.figure("norm AUC").value < 0.65


def test_max_norm_hides_the_norm(tmp_path: Path) -> None:
    plain = attack(target({}), "quick", Watch()).figure("norm AUC").value
    held = attack(target(MAX_NORM), "quick", Watch()).figure("norm AUC").value
    assert abs(held - 0.5) < abs(plain - 0.5)


@pytest.mark.parametrize(
    ("task", "has"),
    [
        ("mnist_halves", "10 classes"),
        ({"name": "tabular", "tabular": {"table": "diabetes"}}, "others"),
    ],
)
def test_marvell_is_for_two_classes(task: Any, has: str) -> None:
    with pytest.raises(JobError, match=rf"marvell needs labels of two classes.*has {has}; max_"):
        train(VerticalJob(task=task, privacy=MARVELL))


def said(tmp_path: Path, **settings: Any) -> list[str]:
    heard: list[str] = []
    job = VerticalJob(**{"task": "tabular", "epochs": 2, **settings})
    train(job, tmp_path / "run", say=heard.append)
    return [sentence for sentence in heard if sentence.startswith("labels:")]


def test_a_run_says_which_cuts_let_labels_be_read(tmp_path: Path) -> None:
    wide, deep, both, against, *end = said(tmp_path, task=WIDE)
    for parts, sentence in (
        ("bank_wide", wide), ("bank_deep", deep), ("bank_wide, bank_deep", both)
    ):  # fmt: skip
        assert sentence.startswith(
            f"labels: what comes back to bank for {parts} lets them be read: 100.0% of 308 right "
            f"(the most common class alone 58.4%), 128 of 128 of the rarest class found, AUC 1.00 "
            f"by direction ("
        )
        assert sentence.endswith("measured in steps 1 to 20")
    assert against == (
        "labels: privacy.label_protection hinders that, and privacy.label_dp bounds it"
    )
    assert len(end) == 3
    assert all("measured in steps 21 to 30" in sentence for sentence in end)
    events = (tmp_path / "run" / "leader" / "events.log").read_text("utf-8")
    assert wide in events


def test_a_run_under_protection_says_that_they_are_not(tmp_path: Path) -> None:
    sentences = said(tmp_path, privacy=MARVELL)
    assert len(sentences) == 6  # three cuts, at the start and at the end
    for sentence in sentences:
        assert "nothing was read" in sentence
        assert "is not excluded" in sentence
        assert "guessing" not in sentence


def test_a_run_without_gradients_back_says_so(tmp_path: Path) -> None:
    privacy = {"embedding_dp": {"gradient": "none"}}
    assert said(tmp_path, privacy=privacy) == [
        "labels: no gradient comes back to bank, which reads none"
    ]


def test_numbers_are_followed_rather_than_read(tmp_path: Path) -> None:
    task = {"name": "tabular", "tabular": {"table": "diabetes", "wide": "linear"}}
    first, *_ = said(tmp_path, task=task)
    assert "what comes back to bank for bank_wide follows them with a correlation of 0." in first


def test_what_is_said_changes_nothing_and_is_said_again_where_a_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = VerticalJob(task="tabular", epochs=1, checkpoint={"every_steps": 4})
    heard: list[str] = []
    train(job, tmp_path / "whole", say=heard.append)
    assert "measured in steps 1 to 15" in heard[-2]
    train(job, tmp_path / "run", progress=None)
    for party in ("leader", "bank"):
        for step in (12, 15):
            own = tmp_path / "run" / party / "checkpoint" / f"{step:09d}"
            if step == 15:
                own.unlink()
    heard.clear()
    resume(tmp_path / "run", say=heard.append)
    assert "measured in steps 13 to 15" in heard[-2]
    for party in ("leader", "bank"):
        one, other = (
            (tmp_path / name / party / "model.safetensors").read_bytes()
            for name in ("whole", "run")
        )
        assert one == other
