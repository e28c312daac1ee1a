"""Protection of labels: returned gradients are perturbed, and the log says what they reveal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fedveil.attacks.effort import Watch
from fedveil.attacks.split.labels import attack
from fedveil.attacks.split.split_target import SplitTarget
from fedveil.entropy import Seeded
from fedveil.entry.vertical import resume
from fedveil.errors import JobError, RunFolderError
from fedveil.mechanisms.label_gradients import normal
from fedveil.record.run_folder import RunFolder
from fedveil.record.sealed_message import sealed
from fedveil.vertical import VerticalJob, returned_gradients, train
from fedveil.vertical.blocks import LabelProtectionSettings
from fedveil.vertical.job_split import make_split, make_task
from fedveil.vertical.party_run import PartyRun
from fedveil.vertical.returned_gradients import NOISE_KEY, ReturnedGradients, projection, saved_key
from fedveil.vertical.split import Part, SplitModel
from fedveil.vertical.step import Occasion
from vertical_parts import Bottoms

WIDE = {"name": "tabular", "tabular": {"wide": "linear"}}
MARVELL = {"label_protection": {"name": "marvell"}}
MAX_NORM = {"label_protection": {"name": "max_norm"}}


def target(privacy: dict[str, Any], task: Any = "tabular") -> SplitTarget:
    return SplitTarget.of(VerticalJob(task=task, privacy=privacy))


def test_only_what_goes_back_is_perturbed() -> None:
    """The forward pass is that of an unprotected step, and gradients are right on average."""
    positions = np.arange(32)
    plain = target({}).crossed(positions)
    for privacy in (MARVELL, MAX_NORM):
        held = target(privacy).crossed(positions)
        for part, gradient in plain.gradients.items():
            assert (held.outputs[part] == plain.outputs[part]).all()
            assert held.gradients[part].shape == gradient.shape
            assert held.gradients[part].dtype == gradient.dtype
            assert not (held.gradients[part] == gradient).all()


@pytest.mark.parametrize("privacy", [MARVELL, MAX_NORM])
def test_an_example_keeps_its_noise_in_every_step(privacy: dict[str, Any]) -> None:
    """Equal weights and batches give equal gradients: repeating a step reveals nothing new."""
    held = target(privacy)
    first, second = (held.crossed(np.arange(32), step) for step in (1, 2))
    for part, gradient in first.gradients.items():
        assert (gradient == second.gradients[part]).all()


def test_noise_belongs_to_the_example_and_the_part_whatever_its_place_in_a_batch() -> None:
    gradients = returned(Seeded(3).token(32))
    places = np.array([40, 7, 19])
    turned = gradients("left", places[::-1].copy())
    assert (gradients("left", places) == turned[::-1]).all()
    assert not (gradients("left", places) == gradients("right", places)).any()
    assert not (gradients("left", places)[:2] == gradients("left", places)[1:]).any()
    key = Seeded(3).token(32)
    for place in (0, 17, 31):  # no bit of the key is without effect
        changed = key[:place] + bytes([key[place] ^ 1]) + key[place + 1 :]
        assert not (gradients("left", places) == returned(changed)("left", places)).any()


def test_labels_in_a_column_are_protected_as_those_in_a_row() -> None:
    protect = ReturnedGradients(LabelProtectionSettings(name="marvell"), bytes(32))
    crossing = Bottoms().split_model().crossings[0]
    labels, occasion = torch.tensor([0, 1, 0, 1]), Occasion("train", 0, 1, 0, np.arange(4))
    rows = torch.arange(32.0).reshape(4, 8)
    one, other = (protect(crossing, rows, each, occasion) for each in (labels, labels[:, None]))
    assert torch.equal(one, other)
    assert not torch.equal(one, rows)


@pytest.mark.parametrize("name", ["marvell", "max_norm"])
def test_a_gradient_of_one_value_for_each_example_is_protected_too(name: Any) -> None:
    protect = ReturnedGradients(LabelProtectionSettings(name=name), bytes(32))
    crossing = Bottoms().split_model().crossings[0]
    labels, occasion = torch.tensor([0, 1, 0, 1]), Occasion("train", 0, 1, 0, np.arange(4))
    values = torch.tensor([1.0, -2.0, 3.0, 0.5])
    one, other = (protect(crossing, each, labels, occasion) for each in (values, values[:, None]))
    assert torch.equal(one, other[:, 0])
    assert not torch.equal(one, values)


def returned(key: bytes) -> Callable[[str, np.ndarray], np.ndarray]:
    """Return the noise that a run with this key adds to gradients of three examples."""
    settings = LabelProtectionSettings(name="marvell", power=2.5)
    protect = ReturnedGradients(settings, key)
    by_part = {crossing.part: crossing for crossing in Bottoms().split_model().crossings}
    same = np.array([[1.0, 2.0, 3.0, 4.0]] * 3)

    def noise(part: str, places: np.ndarray) -> np.ndarray:
        occasion = Occasion("train", 0, 1, 0, places)
        labels = torch.tensor([0, 0, 0])
        gradient = torch.from_numpy(same).float()
        return protect(by_part[part], gradient, labels, occasion).numpy() - same

    return noise


@pytest.mark.parametrize("randomness", ["seeded", "secure"])
def test_a_resumed_run_keeps_its_noise(tmp_path: Path, randomness: str) -> None:
    privacy = MARVELL | {"randomness": randomness}
    job = VerticalJob(task="tabular", epochs=1, checkpoint={"every_steps": 4}, privacy=privacy)
    train(job, tmp_path / "run")
    key = tmp_path / "run" / "leader" / NOISE_KEY
    before = key.read_bytes()
    resume(tmp_path / "run")
    assert key.read_bytes() == before
    key.unlink()
    with pytest.raises(RunFolderError, match=r"label-noise-key is missing"):
        resume(tmp_path / "run")
    key.write_bytes(before[:-1])
    with pytest.raises(RunFolderError):
        resume(tmp_path / "run")
    key.write_bytes(sealed({"key": bytes(31)}))
    with pytest.raises(RunFolderError, match="its key has 31 bytes, 32 are needed"):
        saved_key(RunFolder(key.parent, None), Seeded(1))  # type: ignore[arg-type]


def test_two_secure_runs_have_other_noise_and_a_run_without_protection_has_none(
    tmp_path: Path,
) -> None:
    keys = set()
    for name in ("one", "other"):
        privacy = MARVELL | {"randomness": "secure"}
        job = VerticalJob(task="tabular", epochs=1, batch_size=400, privacy=privacy)
        train(job, tmp_path / name)
        keys.add((tmp_path / name / "leader" / NOISE_KEY).read_bytes())
        assert not (tmp_path / name / "bank" / NOISE_KEY).exists()
    assert len(keys) == 2
    train(VerticalJob(task="tabular", epochs=1, batch_size=400), tmp_path / "plain")
    assert not list((tmp_path / "plain").rglob(NOISE_KEY))


@pytest.mark.slow
def test_adding_up_epochs_averages_fresh_noise_out_and_not_remembered_noise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The attack on sums gains much from fresh noise, and little from a run's own noise."""
    remembered = attack(target(MARVELL, WIDE), "standard", Watch()).figure("sum AUC")
    turn = iter(range(1 << 30))

    def fresh(self: Any, crossing: Any, places: Any, values: int) -> np.ndarray:
        return normal(len(places) * values, Seeded(5, next(turn))).reshape(len(places), values)

    monkeypatch.setattr(ReturnedGradients, "_own", fresh)
    drawn_anew = attack(target(MARVELL, WIDE), "standard", Watch()).figure("sum AUC")
    assert drawn_anew.low > remembered.value
    assert remembered.value < 0.72
    monkeypatch.undo()
    assert attack(target({}, WIDE), "quick", Watch()).figure("sum AUC").value > 0.99


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
        ({"name": "tabular", "tabular": {"table": "diabetes"}}, "labels that are not classes"),
    ],
)
def test_marvell_is_for_two_classes(task: Any, has: str) -> None:
    with pytest.raises(
        JobError, match=rf"marvell needs labels of two classes.*has {has}; use max_norm"
    ):
        train(VerticalJob(task=task, privacy=MARVELL))


def said(tmp_path: Path, **settings: Any) -> list[str]:
    heard: list[str] = []
    job = VerticalJob(**{"task": "tabular", "epochs": 2, **settings})
    train(job, tmp_path / "run", say=heard.append)
    return [sentence for sentence in heard if sentence.startswith("labels:")]


def test_labels_that_are_read_under_label_dp_are_said_to_be_drawn(tmp_path: Path) -> None:
    """The gradients reveal all drawn labels, and so no more of the true ones than their epsilon."""
    told = said(tmp_path, task=WIDE, privacy={"label_dp": {"eps": 1.0}})
    assert any("reveal them: 100.0% of 228 right" in sentence for sentence in told)
    assert (
        "labels: these are the labels drawn under privacy.label_dp, whose epsilon bounds what they "
        "say about the true ones"
    ) in told
    assert not any("label_protection" in sentence for sentence in told), "label_dp is set already"


def test_a_run_says_which_cuts_let_labels_be_read(tmp_path: Path) -> None:
    wide, deep, both, against, *end = said(tmp_path, task=WIDE)
    for parts, sentence in (
        ("bank_wide", wide), ("bank_deep", deep), ("bank_wide, bank_deep", both)
    ):  # fmt: skip
        assert sentence.startswith(
            f"labels: the gradients of {parts} returned to bank reveal them: 100.0% of 228 right "
            f"(the most common class alone 62.7%), 85 of 85 of the rarest class found, AUC 1.00 "
            f"by direction ("
        )
        assert sentence.endswith("measured in steps 1 to 20")
    assert against == (
        "labels: privacy.label_protection hinders that, and privacy.label_dp bounds it"
    )
    assert len(end) == 6
    assert all("measured in steps 21 to 30" in sentence for sentence in end[:3])
    assert all("added up over steps 1 to 30" in sentence for sentence in end[3:])
    private = (tmp_path / "run" / "leader" / "private.log").read_text("utf-8")
    assert wide in private
    events = (tmp_path / "run" / "leader" / "events.log").read_text("utf-8")
    assert "labels:" not in events, "other parties may be given the log"


def test_a_run_under_protection_says_that_they_are_not(tmp_path: Path) -> None:
    projected, *watched = said(tmp_path, privacy=MARVELL)
    assert projected.startswith(
        "labels: marvell with power 16 limits bank to an AUC of 0.67 from the gradients of one "
    )
    assert "in all 2 epochs" in projected
    cuts = [sentence for sentence in watched if "labels: the gradients of" in sentence]
    assert len(cuts) == 9  # three groups of cuts: at the start, at the end, added up
    hidden = [sentence for sentence in cuts if "leave open whether they can be read" in sentence]
    assert len(hidden) >= 8
    for sentence in hidden:
        assert "is not excluded" in sentence
        assert "guessing" not in sentence
    assert sum("added up over steps 1 to 30" in sentence for sentence in cuts) == 3


def test_a_follower_without_gradients_is_projected_nothing() -> None:
    """The bank's outputs are bits without a gradient: only the shop is sent any."""
    bits = {"embedding_dp": {"eps": 4.0, "gradient": "none"}}
    job = VerticalJob(
        task="vertical_parts:bottoms", parts={"left": {"privacy": bits}, "right": {}, "top": {}}
    )
    split = make_split(job, make_task(job, None))
    for name in ("marvell", "max_norm"):
        settings = LabelProtectionSettings(name=name)
        (sentence,) = projection(split, settings, 0.3, 2)
        assert "shop" in sentence
        assert "bank" not in sentence
        both = VerticalJob(task="vertical_parts:bottoms")
        told = list(projection(make_split(both, make_task(both, None)), settings, 0.3, 2))
        assert len(told) == 2
        assert sentence in told  # the cut of another follower takes nothing from this one


@pytest.mark.parametrize("label", [0, 1])
def test_a_run_whose_labels_are_all_of_one_class_is_projected_too(label: int) -> None:
    """A batch may lack a class, and so may all examples together."""
    setting = SimpleNamespace(job=VerticalJob(privacy=MARVELL), split=Bottoms().split_model())
    rows = {"train": SimpleNamespace(labels=torch.full((9, 1), label))}
    run: Any = SimpleNamespace(setting=setting, _parts=SimpleNamespace(rows=rows))
    for follower, sentence in zip(("bank", "shop"), PartyRun._projection(run), strict=True):
        assert f"marvell with power 16 limits {follower} to an AUC of 0." in sentence


def test_a_projection_is_of_all_values_that_a_follower_gets_back_and_rounded_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    laws: list[Any] = []
    sums: list[float] = []

    def optimal(*given: Any) -> Any:
        laws.append(given[:3])
        return SimpleNamespace(divergence=0.25 * given[1])

    def most_auc(divergence: float) -> float:
        sums.append(divergence)
        return 0.6012

    monkeypatch.setattr(returned_gradients, "NoiseLaw", SimpleNamespace(optimal=optimal))
    monkeypatch.setattr(returned_gradients, "most_auc", most_auc)
    parts = [
        Part("wide", "bank", ("data.x",), (3, 7)), Part("deep", "bank", ("data.x",), (5,)),
        Part("right", "shop", ("data.x",), (2,)),
        Part("top", "lead", ("wide", "right", "deep"), (2,)),
    ]  # fmt: skip
    settings = LabelProtectionSettings(name="marvell", power=9.5)
    told = list(projection(SplitModel(parts, leader="lead"), settings, 0.3, 2))
    assert laws == [(9.5, 21, 0.3), (9.5, 5, 0.3), (9.5, 2, 0.3)]
    assert sums == [0.25 * 26, 0.5]
    assert ["AUC of 0.61 from" in sentence for sentence in told] == [True, True]


def test_a_protected_gradient_has_the_type_of_the_plain_one() -> None:
    gradients = ReturnedGradients(LabelProtectionSettings(name="max_norm"), bytes(32))
    crossing, *_ = Bottoms().split_model().crossings
    occasion = Occasion("train", 0, 1, 0, np.arange(3))
    plain = torch.ones(3, 8, dtype=torch.bfloat16)
    assert gradients(crossing, plain, torch.tensor([0, 1, 1]), occasion).dtype == torch.bfloat16


def test_a_run_without_gradients_back_says_so(tmp_path: Path) -> None:
    privacy = {"embedding_dp": {"gradient": "none"}}
    (told,) = said(tmp_path / "told", privacy=privacy)
    assert told.startswith("labels: no gradient is returned to bank, but it receives the loss of ")
    hidden = said(tmp_path / "hidden", privacy=privacy, record={"followers_see_loss": False})
    assert hidden == ["labels: no gradient is returned to bank"]


def test_numbers_are_followed_rather_than_read(tmp_path: Path) -> None:
    task = {"name": "tabular", "tabular": {"table": "diabetes", "wide": "linear"}}
    first, *_ = said(tmp_path, task=task)
    assert "the gradients of bank_wide returned to bank have a correlation of 0." in first


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
