"""EmbeddingDP on the features of images, and MistNet's figures beside it."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from experiments import (
    attacked_features,
    image_cut,
    outcome_page,
    protected_features,
    published_runs,
)
from experiments.attacked_features import attacked, trained
from experiments.experiment import NewPart
from experiments.feature_claims import (
    ARCHITECTURE,
    BIT,
    KNOWN,
    NONE,
    PAPER_SSIM,
    PUBLIC,
    WHO,
    Figure,
    kept_bit,
    our_name,
    verdicts,
)
from experiments.protected_features import Attacked, ProtectedFeatures, Settings, settings_of
from experiments.published_runs import PublishedRuns
from fedveil.attacks.split import features
from fedveil.data.examples import Dataset, Examples
from fedveil.entropy import Seeded
from fedveil.errors import RunFolderError
from fedveil.federated.job import Job
from fedveil.mechanisms import EmbeddingDP
from fedveil.pages.read_run import ReadRun
from fedveil.vertical.job import VerticalJob
from fedveil.vertical.job_split import make_split, make_task
from fedveil.vertical.task import initial
from folders import DOCS

PAGES = DOCS / "reproductions"
TINY = Settings("digits_tiny", 1, "quick", seeds=2)


def test_the_full_scale_is_the_papers_own() -> None:
    """Two hundred epochs of ResNet-18: 17 convolutions of 3 x 3 and a dense layer."""
    full = settings_of("full", "mnist")
    assert full.epochs == 200
    assert full.protections == {
        "none": None, "bit": {"eps": None}, "eps-5": {"eps": 5}, "eps-4": {"eps": 4},
        "eps-2": {"eps": 2}, "eps-1": {"eps": 1}, "eps-0.5": {"eps": 0.5},
    }  # fmt: skip
    network = image_cut.task_of(full.task).images.network
    before, after = image_cut.block_of(network), image_cut.rest_of(network)
    large = [
        layer.kernel_size == (3, 3)
        for layer in nn.Sequential(before, after).modules()
        if isinstance(layer, nn.Conv2d)
    ]
    assert sum(large) == 17
    assert sum(isinstance(layer, nn.Conv2d) for layer in before.modules()) == 5
    assert list(network.widths) == [64, 128, 256, 512]


def test_the_medium_scale_has_the_papers_network() -> None:
    medium, full = (settings_of(scale, "mnist") for scale in ("medium", "full"))
    assert image_cut.TASKS[medium.task].network == image_cut.TASKS[full.task].network
    assert {*medium.protections} < {*full.protections}
    figures = [our_name(of) for of in PAPER_SSIM]
    assert [*medium.protections] == figures
    steps = medium.epochs * math.ceil(2_500 / medium.batch_size)
    assert medium.job(None).optimizer.decay_steps == medium.decay_steps == steps
    assert full.job(None).optimizer.decay_steps is None
    said = protected_features._ran(medium)
    assert "Here ResNet-18 on MNIST replaces it" in said
    assert "images (the paper: 200 epochs). The learning rate falls linearly to 0. The rest" in said
    assert "falls linearly" not in protected_features._ran(full)
    assert "Runs without noise have 6 seeds, runs with noise have 3. The first three" in said
    assert "The first three" not in protected_features._ran(full)
    assert "a slim one of the same layout" in protected_features._ran(settings_of("small", "mnist"))


def test_the_papers_epsilon_is_that_of_a_bit() -> None:
    """p = 0.62, 0.73 and 0.88 in its figure 3, against what the mechanism draws."""
    for eps, printed in ((1.0, 0.62), (2.0, 0.73), (4.0, 0.88)):
        assert round(kept_bit(eps), 2) == printed
        assert kept_bit(eps) == pytest.approx(math.exp(eps / 2) / (1 + math.exp(eps / 2)))
        drawn = EmbeddingDP(eps)(np.ones(200_000, np.float32), Seeded(1)).mean()
        assert drawn == pytest.approx(kept_bit(eps), abs=0.01)


def test_the_block_is_the_same_whatever_the_seed_and_stays_as_it_is(tmp_path: Path) -> None:
    job = TINY.job({"eps": 5.0})
    _, held_out = trained(job, tmp_path / "run")
    assert held_out == 64
    blocks = [
        make_split(each, make_task(each)).by_name["block"]
        for each in (job, job.model_copy(update={"seed": 5}))
    ]
    assert blocks[0].frozen
    first, second = (block.module for block in blocks)
    assert first is not None
    assert second is not None
    x = torch.randn(2, *image_cut.SHAPE)
    assert torch.equal(first(x), second(x))
    torch.manual_seed(0)
    assert not torch.equal(first(x), image_cut.block_of(image_cut.TINY)(x))
    assert trained(job, tmp_path / "run") == trained(job, tmp_path / "run")


@pytest.mark.parametrize("form", ["official", "jpeg"])
def test_cifar10_is_taken_where_it_is(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The block has seen half of the classes, in images that no party has."""
    monkeypatch.setenv("FEDVEIL_DATA", str(tmp_path))
    colours = Seeded(3).generator().integers(0, 255, (200, 3, 32, 32))
    part = Examples(colours.astype(np.float32) / 255, np.arange(200) // 20)  # ordered by class
    whole = Dataset("cifar10", part, part, 10)
    monkeypatch.setattr(image_cut, "load", lambda name, folder=None: whole)
    if form == "official":
        monkeypatch.setattr(image_cut.cifar10, "here", lambda: True)
    else:
        for name in ("train", "test"):
            (tmp_path / "cifar10" / name).mkdir(parents=True)
    data = protected_features._data()
    image_cut.loaded.cache_clear()
    public, own = image_cut._public_and_own(data)
    image_cut.loaded.cache_clear()
    assert set(public.y) == {0, 1, 2, 3, 4}
    assert len(own.train) == 100
    assert len(set(own.test.y[:40])) > 4
    assert sorted(own.test.y) == sorted(part.y)
    known = {row.tobytes() for row in public.x}
    assert not known & {row.tobytes() for row in own.train.x}
    for scale in ("small", "medium", "full"):
        settings = settings_of(scale, data)  # type: ignore[arg-type]
        said = protected_features._ran(settings)
        assert ("lossy JPEG files" in said) is (form == "jpeg")
        images = image_cut.TASKS[settings.task]
        assert images.shape == (3, 32, 32)
        block = image_cut.block_of(image_cut.TINY, 3)
        assert block(torch.zeros(1, *images.shape)).shape == (1, 4, 32, 32)
        assert callable(getattr(image_cut, settings.task))


def test_the_public_images_are_not_those_that_are_split() -> None:
    public, own = image_cut._public_and_own("digits")
    whole = image_cut.load("digits").train
    assert len(public) + len(own.train) == len(whole)
    assert np.array_equal(np.concatenate([public.x, own.train.x]), whole.x)


def test_a_reconstruction_is_of_what_crosses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sixth of the steps already finds more than the mean image."""
    monkeypatch.setattr(
        features, "by_effort", lambda effort, quick, *_: 100 if quick == 600 else quick
    )
    ssim, guess, images = attacked(TINY.job({"eps": 40.0}), "quick", (PUBLIC,), ARCHITECTURE)
    assert list(ssim) == [PUBLIC]
    assert list(images) == ["truth", PUBLIC]
    assert ssim[PUBLIC] > guess


def figures(ssim: list[float], accuracy: list[float]) -> dict[str, Figure]:
    """Return figures of three seeds without noise, and of one with noise."""
    images = np.zeros((2, 1, 8, 8)).tolist()
    return {
        name: Figure(
            [a - 0.0004, a + 0.0008, a - 0.0004] if name in (NONE, BIT) else [a - 0.0004],
            10_000,
            {PUBLIC: s, KNOWN: s / 2},
            0.2,
            {"truth": images, PUBLIC: images},
        )
        for name, s, a in zip(TINY.protections, ssim, accuracy, strict=True)
    }


def test_results_on_lossy_images_say_so_each() -> None:
    """The probability of an unchanged bit, is measured on no image."""
    made = figures([0.9, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2], [0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3])
    for lossy in ("lossy JPEG", ""):
        marked = [
            verdict.ours.endswith("(lossy JPEG)") == bool(lossy)
            for verdict in verdicts(made, lossy)
            if not verdict.what.startswith("probability of an unchanged bit")
        ]
        assert marked == [True] * 5
        told = [protected_features._table(made, lossy).caption]
        told += [plot.note for plot in protected_features._plots(made, lossy)]
        assert ["lossy JPEG files" in text for text in told] == [bool(lossy)] * 3
    assert protected_features._LOSSY == {image_cut.JPEG: "lossy JPEG"}


def judged(ssim: list[float], accuracy: list[float]) -> list[bool]:
    return [verdict.agrees for verdict in verdicts(figures(ssim, accuracy))]


def test_the_verdicts_are_computed() -> None:
    falling = [0.9, 0.8, 0.78, 0.7, 0.6, 0.4, 0.3]
    accuracy = [0.99, 0.98, 0.97, 0.96, 0.9, 0.8, 0.6]
    assert judged(falling, accuracy) == [True, True, False, True, True, True]
    # eps 5 and 0.5 are not in the paper's table, and what happens there is no matter
    assert judged([0.9, 0.8, 0.1, 0.7, 0.6, 0.4, 0.9], accuracy)[0] is True
    assert judged([0.9, 0.8, 0.78, 0.6, 0.7, 0.4, 0.3], accuracy)[0] is False
    assert judged([0.9, 0.8, 0.78, 0.7, 0.6, 0.1, 0.3], accuracy)[-1] is False
    assert judged(falling, [0.99, 0.9, 0.97, 0.96, 0.9, 0.8, 0.6])[3:5] == [False, False]
    # a difference that 10,000 images cannot tell
    assert judged(falling, [0.99, 0.980, 0.981, 0.96, 0.9, 0.8, 0.6])[3:5] == [True, True]


def test_differences_that_may_be_chance_say_nothing() -> None:
    """The KNOWN attacker's SSIM is half of the PUBLIC attacker's, and so are its steps."""

    def answers(ssim: list[float], accuracy: list[float]) -> str:
        short = {"agrees": "a", "differs": "d", "says nothing": "-"}
        found = [short[verdict.answer] for verdict in verdicts(figures(ssim, accuracy))]
        return "".join([*found[:2], found[3], found[-1]])

    accuracy = [0.99, 0.98, 0.97, 0.96, 0.9, 0.8, 0.6]
    assert answers([0.9, 0.8, 0.7, 0.77, 0.6, 0.4, 0.3], accuracy) == "a-aa"  # steps of 0.03, 0.015
    assert answers([0.9, 0.8, 0.7, 0.79, 0.6, 0.4, 0.3], accuracy) == "--aa"
    assert answers([0.9, 0.8, 0.7, 0.83, 0.6, 0.4, 0.3], accuracy) == "d-aa"  # rises: 0.03, 0.015
    assert answers([0.9, 0.8, 0.78, 0.7, 0.6, 0.31, 0.3], accuracy) == "aaa-"  # 0.3: recognised
    assert answers([0.9, 0.8, 0.78, 0.7, 0.6, 0.27, 0.3], accuracy) == "aaad"
    level = [0.99, 0.951, 0.95, 0.952, 0.951, 0.951, 0.95]
    assert answers([0.9, 0.8, 0.78, 0.7, 0.6, 0.4, 0.3], level) == "aa-a"


@pytest.mark.parametrize(
    ("lost", "answer"),
    [
        ([0.012, 0.008, 0.013, 0.011], "agrees"),
        ([-0.012, -0.008, -0.013, -0.011], "agrees"),
        ([0.024, 0.027, 0.026, 0.025], "differs"),
        ([-0.024, -0.027, -0.026, -0.025], "differs"),
        ([0.002, 0.024, 0.008, 0.021], "says nothing"),  # 1.4 points, [-0.3, 3.1]
        ([0.012, 0.008], "says nothing"),
    ],
)
def test_one_bit_costs_little_by_the_interval_of_seeds(lost: list[float], answer: str) -> None:
    """Seeds are compared in pairs: accuracies that differ by seed alone widen no interval."""
    plain = [0.6 + 0.05 * seed for seed in range(len(lost))]
    bit = [a - b for a, b in zip(plain, lost, strict=True)]
    made = figures([0.9, 0.8, 0.78, 0.7, 0.6, 0.4, 0.3], [0.99, 0.98, 0.97, 0.96, 0.9, 0.8, 0.6])
    made[NONE] = replace(made[NONE], accuracies=plain)
    made[BIT] = replace(made[BIT], accuracies=bit)
    assert [*verdicts(made)][4].answer == answer


def test_one_seed_is_compared_with_the_same_seed() -> None:
    """Noise has no other here. The mean over the seeds of one bit would be the lowest."""
    made = figures([0.9, 0.8, 0.78, 0.7, 0.6, 0.4, 0.3], [0.99, 0.98, 0.97, 0.96, 0.9, 0.8, 0.6])
    made[BIT] = replace(made[BIT], accuracies=[0.98, 0.4, 0.5])
    falls = [*verdicts(made)][3]
    assert (falls.answer, falls.ours.split(", ")[0]) == ("agrees", "0.980")


@pytest.mark.parametrize(
    ("changed", "answer"),
    [
        ({}, "agrees"),
        ({"eps-5": [0.71, 0.75, 0.68]}, "agrees"),  # a rise that the seeds cannot tell
        ({"eps-5": [0.74, 0.75, 0.73]}, "differs"),  # a rise in every seed
        ({"eps-0.5": [0.75, 0.55, 0.74]}, "says nothing"),  # the last against the first
        ({"eps-0.5": [0.69, 0.71, 0.7]}, "differs"),  # nothing was lost
        ({"eps-0.5": [0.1, 0.12, 0.09]}, "agrees"),  # at chance level, which is left out
    ],
)
def test_accuracy_falls_by_the_intervals_of_seeds(
    changed: dict[str, list[float]], answer: str
) -> None:
    level = {"eps-5": 0.69, "eps-4": 0.67, "eps-2": 0.62, "eps-1": 0.55, "eps-0.5": 0.4}
    made = figures([0.9, 0.8, 0.78, 0.7, 0.6, 0.4, 0.3], [0.8, 0.7, *level.values()])
    for name in (NONE, BIT):  # the fourth seed has no other with noise
        made[name] = replace(made[name], accuracies=[0.7, 0.71, 0.69, 0.1])
    three = {name: [a, a + 0.01, a - 0.01] for name, a in level.items()} | changed
    made |= {name: replace(made[name], accuracies=each) for name, each in three.items()}
    falls = [*verdicts(made)][3]
    assert falls.answer == answer
    assert falls.ours.startswith("0.700 [0.675, 0.725], ")
    assert falls.ours.endswith(", with the first 3 seeds")


def test_every_seed_trains_its_own_job_in_its_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = []

    def fake(job: VerticalJob, folder: Path) -> tuple[float, int]:
        ran.append((folder.name, job.seed, job.privacy.embedding_dp))
        return 0.5 + job.seed / 8, 77

    monkeypatch.setattr(protected_features, "_prepare_block", lambda *_: None)
    monkeypatch.setattr(attacked_features, "trained", fake)
    found = {name: runs(TINY, name, tmp_path) for name in (BIT, "eps-5")}
    assert [each[:2] for each in ran] == [("run-bit", 0), ("run-bit-1", 1), ("run-eps-5", 0)]
    assert len({repr(each[2]) for each in ran}) == 2
    assert [run.records for run in found[BIT]] == [
        [{"round": 1, "accuracy": 0.5, "held_out": 77}],
        [{"round": 1, "accuracy": 0.625, "held_out": 77}],
    ]
    figure = protected_features._figure(found[BIT], Attacked({"x": 0.5}, 0.2, {}))
    assert figure == Figure([0.5, 0.625], 77, {"x": 0.5}, 0.2, {})
    (tmp_path / "run-bit-1").mkdir()
    (tmp_path / "run-bit-1" / "job.yaml").write_text(replace(TINY, epochs=2).job(None, 1).to_yaml())
    with pytest.raises(RunFolderError, match="was begun with another job: epochs"):
        runs(TINY, BIT, tmp_path)


def test_a_published_training_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless its job differs, or the folder has begun it."""
    ran = []

    def fake(job: VerticalJob, folder: Path) -> tuple[float, int]:
        ran.append((folder.name, job.seed))
        return 0.875, 77

    monkeypatch.setattr(protected_features, "_prepare_block", lambda *_: None)
    monkeypatch.setattr(attacked_features, "trained", fake)
    settings = replace(TINY, noisy_seeds=3)
    known = {
        seed: ReadRun(
            Path("gone"), settings.job({"eps": 5.0}, seed).model_dump(),
            [{"round": 1, "accuracy": 0.5 + seed / 8, "held_out": 64}], (), (),
        )
        for seed in (1, 2)
    }  # fmt: skip
    federated = ReadRun(Path("gone"), Job().model_dump(), [{"round": 5, "accuracy": 0.25}], (), ())
    lines = published_runs.lines({"": federated}, ("accuracy",))
    lines += published_runs.lines(known, ProtectedFeatures.saved_metrics)
    (tmp_path / published_runs.ALL).write_bytes(lines)
    (tmp_path / "run-eps-5-2").mkdir()
    found = runs(settings, "eps-5", tmp_path)
    assert ran == [("run-eps-5", 0), ("run-eps-5-2", 2)]
    assert [run.records[-1]["accuracy"] for run in found] == [0.875, 0.625, 0.875]
    assert [run.records[-1]["held_out"] for run in found] == [77, 64, 77]
    assert runs(settings, "eps-4", tmp_path)
    assert ran[2:] == [("run-eps-4", 0), ("run-eps-4-1", 1), ("run-eps-4-2", 2)]


def runs(settings: Settings, name: str, folder: Path) -> Sequence[ReadRun]:
    published = PublishedRuns.of(folder)
    return protected_features._runs(settings, name, published, lambda part: None)


def test_steps_end_where_the_mean_image_is() -> None:
    """The mean image has 0.2. Within 0.02 of it, there is nothing left that could fall."""

    def answer(ssim: list[float]) -> str:
        return next(verdicts(figures(ssim, [0.99, 0.98, 0.97, 0.96, 0.9, 0.8, 0.6]))).answer

    assert answer([0.9, 0.8, 0.5, 0.235, 0.215, 0.21, 0.1]) == "agrees"
    assert answer([0.9, 0.8, 0.5, 0.26, 0.235, 0.225, 0.1]) == "says nothing"
    assert answer([0.9, 0.8, 0.5, 0.26, 0.215, 0.24, 0.1]) == "differs"
    assert answer([0.215, 0.21, 0.2, 0.19, 0.18, 0.1, 0.1]) == "says nothing"


def test_the_table_has_the_papers_figures_at_the_same_probability(tmp_path: Path) -> None:
    """Read from figures that are there: nothing is trained or attacked again."""
    made = figures([0.9, 0.8, 0.78, 0.7, 0.6, 0.4, 0.3], [0.9] * 7)
    for name, figure in made.items():
        whole = asdict(figure)
        accuracies, held_out = whole.pop("accuracies"), whole.pop("held_out")
        for suffix, accuracy in zip(("", "-1"), accuracies, strict=False):
            learnt = {"accuracy": accuracy, "held_out": held_out}
            (tmp_path / f"trained-{name}{suffix}.json").write_text(json.dumps(learnt))
        (tmp_path / f"attacked-{name}.json").write_text(json.dumps(whole))
    outcome = ProtectedFeatures(TINY).run(tmp_path, "small", lambda text: pytest.fail(text))
    column = {row[0]: row[-1] for row in outcome.tables[0].rows}
    assert column == {
        "no protection": "0.918", "one bit, no noise": "0.775", "eps 5": "-", "eps 4": "0.728",
        "eps 2": "0.576", "eps 1": "0.354", "eps 0.5": "-",
    }  # fmt: skip
    assert list(PAPER_SSIM.values()) == [0.918, 0.775, 0.728, 0.576, 0.354]
    paper = [row[3] for row in outcome.tables[0].rows]
    assert paper == ["0.949", "0.935", "-", "0.929", "0.907", "0.841", "-"]
    accuracies = {row[0]: row[2] for row in outcome.tables[0].rows}
    assert accuracies["one bit, no noise"] == "0.9002"  # two seeds: no interval
    assert accuracies["eps 5"] == "0.8996"  # the first seed alone
    assert outcome.verdicts[4].answer == "says nothing"
    assert "Runs without noise have 2 seeds, runs with noise have one." in outcome.ran
    assert [*outcome.curves][:3] == ["run-none", "run-none-1", "run-bit"]
    assert len(outcome.curves) == 2 * 2 + 5
    assert outcome.pictures[0].read_bytes().startswith(b"\x89PNG")


def test_a_trained_block_is_saved_and_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = image_cut.TASKS[TINY.task]
    monkeypatch.setattr(image_cut, "_BLOCKS", {})
    image_cut.keep_block(images, tmp_path / "block")
    trained = dict(image_cut.trained_block(images))
    fresh = initial(0, image_cut.BLOCK, lambda: image_cut.block_of(images.network))
    assert any(not torch.equal(trained[k], w) for k, w in fresh.state_dict().items())
    monkeypatch.setattr(image_cut, "_BLOCKS", {})
    monkeypatch.setattr(image_cut, "_train_block", lambda images: pytest.fail("trained again"))
    image_cut.keep_block(images, tmp_path / "block")
    again = image_cut.trained_block(images)
    assert trained.keys() == again.keys()
    assert all(torch.equal(trained[k], again[k]) for k in trained)


def test_a_published_block_is_not_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless published runs are not wanted."""
    images = image_cut.TASKS[TINY.task]
    monkeypatch.setattr(image_cut, "_BLOCKS", {})
    monkeypatch.setattr(protected_features, "PAGES", tmp_path)
    published = tmp_path / f"embedding-dp-{TINY.task}.safetensors"
    image_cut.keep_block(images, published)
    monkeypatch.setattr(image_cut, "_BLOCKS", {})
    monkeypatch.setattr(image_cut, "_train_block", lambda images: pytest.fail("trained"))
    for name in ("with", "without"):
        (tmp_path / name).mkdir()
    (tmp_path / "with" / published_runs.ALL).touch()
    protected_features._prepare_block(TINY, tmp_path / "with", not_new)
    assert (tmp_path / "with" / "block.safetensors").read_bytes() == published.read_bytes()
    assert images in image_cut._BLOCKS
    with pytest.raises(AssertionError, match="the first block: training"):
        protected_features._prepare_block(TINY, tmp_path / "without", not_new)


def test_without_mnist_it_is_the_digits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDVEIL_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert settings_of("small", protected_features._data()).task == "digits_small"


def test_a_run_of_the_former_module_is_refused_in_one_sentence(tmp_path: Path) -> None:
    """The jobs of earlier releases name `fedveil.reproductions.image_cut`."""
    job = TINY.job(None)
    former = job.to_yaml().replace("experiments.image_cut:", "fedveil.reproductions.image_cut:")
    assert former != job.to_yaml()
    (tmp_path / "job.yaml").write_text(former)
    with pytest.raises(
        RunFolderError, match=r"was begun with another job: task.name = 'experiments\."
    ):
        trained(job, tmp_path)


def test_the_page_follows_from_its_published_trainings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its verdicts, with the SSIM of the table beside it. Nothing is trained or attacked again."""
    name = ProtectedFeatures.name
    text = (PAGES / f"{name}.md").read_text("utf-8")
    lines = (PAGES / f"{name}{published_runs.SUFFIX}").read_bytes()
    settings = settings_of("medium", image_cut.JPEG)
    guess = float(re.search(r"the mean image reaches ([\d.]+)", text)[1])  # type: ignore[index]
    with (PAGES / f"{name}-1.csv").open(encoding="utf-8", newline="") as file:
        rows = [*csv.DictReader(file)]
    images = np.zeros((2, 3, 32, 32)).tolist()
    for protection, row in zip(settings.protections, rows, strict=True):
        ssim = {who: float(row[column]) for who, column in WHO.items() if row[column] != "-"}
        found = Attacked(ssim, guess, {"truth": images, PUBLIC: images})
        (tmp_path / f"attacked-{protection}.json").write_text(json.dumps(asdict(found)))
    (tmp_path / published_runs.ALL).write_bytes(lines)
    outcome = ProtectedFeatures(settings).run(tmp_path, "medium", not_new)
    assert published_runs.lines(outcome.curves, ProtectedFeatures.saved_metrics) == lines
    assert outcome_page.verdicts(outcome).markdown() in text
    assert [row["accuracy"] for row in rows] == [row[2] for row in outcome.tables[0].rows]


def not_new(line: str) -> None:
    assert not isinstance(line, NewPart), line
