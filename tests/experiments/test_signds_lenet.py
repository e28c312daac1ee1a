"""The LeNet experiment of SignDS: its settings, its writers, its verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments import signds_lenet, writers
from experiments.evidence import seeded
from experiments.experiment import Verdict
from experiments.reproduction import reproduce
from experiments.signds_lenet import SOURCE, SignDSLeNet, SignDSLeNetSeeds
from fedveil.data.examples import Dataset, make_dataset
from fedveil.pages.read_run import ReadRun


def at(job: Any, key: str) -> Any:
    value: Any = job.model_dump()
    for part in key.split("."):
        value = value[part]
    return value


def test_the_full_job_has_the_sources_settings() -> None:
    """100 clients, 600 rounds, 20 local epochs at 0.01; k 0.2, eps 100, ratio 0.6, lr 4, out 0."""
    arms = {arm.name: arm.job for arm in SignDSLeNet().arms("full")}
    assert [SOURCE[key] for key in SOURCE if key.startswith("protection.signds")] == [
        0.2, 100.0, 0.6, 4.0, 0,
    ]  # fmt: skip
    assert (SOURCE["clients.number"], SOURCE["rounds"]) == (100, 600)
    for key, value in SOURCE.items():
        assert at(arms["signds"], key) == value, key
        if key != "protection.name":
            assert at(arms["not_encrypt"], key) == value, key
    for job in arms.values():
        assert job.model == "lenet_femnist"
        assert job.clients.fraction == 1
        assert (job.training.epochs, job.training.lr) == (20, 0.01)
    assert at(arms["signds"], "protection.signds.magnitude") == "fixed"
    assert at(arms["signds-estimated"], "protection.signds.magnitude") == "estimated"
    assert at(arms["signds-k0.01"], "protection.signds.sign_k") == 0.01


def test_the_medium_job_is_the_sources_but_for_images_and_rounds() -> None:
    arms = {arm.name: arm.job for arm in SignDSLeNetSeeds().arms("medium")}
    for key, value in SOURCE.items():
        expected = signds_lenet.MEDIUM_ROUNDS if key == "rounds" else value
        assert at(arms["signds"], key) == expected, key
    assert arms["signds"].data.name == "experiments.writers:mnist_synthetic_medium"
    assert arms["signds"].model == "lenet_femnist"


def test_a_sign_is_worth_as_much_among_fewer() -> None:
    """The step is divided by the number of reports."""
    steps = {}
    for scale in ("small", "full"):
        job = SignDSLeNet().arms(scale)[1].job  # type: ignore[arg-type]
        number = job.clients.number
        assert number is not None
        steps[scale] = at(job, "protection.signds.sign_global_lr") / number
    assert steps["small"] == pytest.approx(steps["full"]) == pytest.approx(0.04)


def test_the_genuine_writers_are_taken_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {arm.job.data.name for arm in SignDSLeNet().arms("full")}
    assert names == {"experiments.writers:mnist_synthetic"}
    monkeypatch.setattr(writers, "femnist_is_here", lambda: True)
    names = {arm.job.data.name for arm in SignDSLeNet().arms("full")}
    assert names == {"experiments.writers:femnist_100"}


def test_real_writers_are_taken_in_place_of_simulated_hands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(writers.mnist, "writers_are_here", lambda: True)
    for scale, name in (("small", "mnist_written_small"), ("full", "mnist_written")):
        names = {arm.job.data.name for arm in SignDSLeNet().arms(scale)}  # type: ignore[arg-type]
        assert names == {f"experiments.writers:{name}"}
    # a real writer has as many images as were written, in an order of nobody's making
    owned = images(110, owners=np.arange(110) % 4)
    monkeypatch.setattr(writers, "load", lambda name, writers: owned if writers else None)
    held = writers._written_by(3, 20)
    assert np.bincount(held["client_ids"]).tolist() == [20] * 3
    mine = owned.train.x[owned.owners == 1][:20]
    np.testing.assert_array_equal(held["x_train"][held["client_ids"] == 1], mine)
    assert np.bincount(writers._written_by(3, None)["client_ids"]).tolist() == [28, 28, 27]


def images(count: int, owners: Any = None) -> Dataset:
    """Images that differ only in their place in the order, their label's brightness apart."""
    x = np.full((count, 1, 28, 28), -1, np.float32)
    x[:, :, 10:18, 12:16] = np.linspace(0.1, 1, count, dtype=np.float32)[:, None, None, None]
    y = np.arange(count) % 10
    return make_dataset("few", (x, y), (x[:40], y[:40]), classes=62, owners=owners)


def test_a_simulated_writer_has_a_hand_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    few = images(120)
    monkeypatch.setattr(writers, "load", lambda name: few)
    made = writers._simulated(4, 20)
    assert np.bincount(made["client_ids"]).tolist() == [20] * 4
    shapes = [made["x_train"][made["client_ids"] == w] > -0.99 for w in range(4)]
    # All of a writer's images have one outline, and no two writers share theirs.
    outlines = [part.any(axis=(0, 1)) for part in shapes]
    for part, outline in zip(shapes, outlines, strict=True):
        assert (part.all(axis=(0, 1)) == outline).mean() > 0.99
    for i in range(4):
        for j in range(i):
            assert (outlines[i] != outlines[j]).any()
    again = writers._simulated(4, 20)
    np.testing.assert_array_equal(made["x_train"], again["x_train"])
    assert made["x_test"].shape == few.test.x.shape
    assert not np.array_equal(made["x_test"], few.test.x)


def test_the_first_hundred_writers_of_femnist(monkeypatch: pytest.MonkeyPatch) -> None:
    owned = images(220, owners=np.arange(220) // 2)
    monkeypatch.setattr(writers, "load", lambda name: owned)
    held = writers.femnist_100()
    assert len(held["x_train"]) == 200
    assert set(held["client_ids"]) == set(range(100))
    assert held["classes"] == 62


FALLING = (3.0,) * 5 + (1.0,) * 5


def run(
    up: float, accuracy: float, losses: Sequence[float] = FALLING, aucs: Sequence[float] = ()
) -> ReadRun:
    """Return a run with these tests. Without `aucs`, the AUC rises as the loss falls."""
    records = [
        {"round": i, "accuracy": accuracy, "loss": loss, "auc": auc, "bytes_up_per_client": up}
        for i, (loss, auc) in enumerate(
            zip(losses, aucs or [1.1 - loss / 5 for loss in losses], strict=True), 1
        )
    ]
    return ReadRun(Path("nowhere"), {}, records, (), ())


@pytest.mark.parametrize(
    ("plain", "signds", "small_k", "estimated", "expected"),
    [
        (run(264_540, 0.7), run(321, 0.6), run(98, 0.68), run(330, 0.6), "yyy yy yy"),
        (run(264_540, 0.7), run(700, 0.6), run(98, 0.6), run(330, 0.6, (3, 3.5)), "ynn yy nn"),
        (
            run(300_000, 0.7),
            run(656, 0.6, (3, 3.5), (0.5, 0.9)),
            run(98, 0.7),
            run(330, 0.6, FALLING, [0.5] * 10),
            "nyy nn yn",
        ),
        (
            run(264_540, 0.7),
            run(321, 0.6, FALLING, [0.5] * 10),
            run(98, 0.68),
            run(330, 0.6),
            "yyy yn yy",
        ),
    ],
)
def test_the_verdicts_follow_the_figures(
    plain: ReadRun, signds: ReadRun, small_k: ReadRun, estimated: ReadRun, expected: str
) -> None:
    runs = {
        "not_encrypt": plain,
        "signds": signds,
        "signds-estimated": estimated,
        "signds-k0.01": small_k,
    }
    found = [*signds_lenet.judged(runs)]
    assert [v.agrees for v in found] == [letter == "y" for letter in expected.replace(" ", "")]
    assert ["the step estimated" in v.what for v in found] == [False] * 5 + [True] * 2


@pytest.mark.parametrize("key", ["loss", "auc"])
@pytest.mark.parametrize(
    ("values", "improves"),
    [
        ([3.0] * 5 + [1.9] * 5, True),
        ([3.0] * 5 + [2.1] * 5, False),  # by less than half of not_encrypt's change
        # The first test and the last say that it improved; the means of five do not.
        ([4.0, *[3.0] * 4, *[3.5] * 4, 0.5], False),
        ([3.0] * 5 + [0.5, 3.2, 0.5, 3.2, 0.5], False),  # no further than it sways
    ],
)
def test_a_figure_improves_by_more_than_it_sways_and_half_as_far_as_without(
    values: list[float], improves: bool, key: str
) -> None:
    aucs = [1.1 - value / 5 for value in values]
    plain = run(264_540, 0.7)
    noisy = run(321, 0.6, values) if key == "loss" else run(321, 0.6, [3.0] * 10, aucs)
    judged = signds_lenet._convergence("x", [plain], [noisy], "it overshoots")
    found = dict(zip(("loss", "auc"), judged, strict=True))
    assert found[key].agrees is improves
    ends = {"loss": "3.000 to 1.000", "auc": "0.500 to 0.900"}[key]
    assert found[key].ours.endswith(f"(not_encrypt: {ends})")
    assert found[key].source == {"loss": "falls", "auc": "rises"}[key]
    assert found[key].why.startswith("it overshoots. ") is not improves


def of_three(*noisy: ReadRun, plain: ReadRun | None = None) -> list[Verdict]:
    """Judge three seeds. All runs but those of "signds" with k 0.2 are `plain`."""
    each = plain or run(264_540, 0.7)
    kinds = ("not_encrypt", "signds", "signds-estimated", "signds-k0.01")
    runs = {seeded(kind, seed): each for kind in kinds for seed in range(3)}
    runs |= {seeded("signds", seed): other for seed, other in enumerate(noisy)}
    return [*signds_lenet.judged(runs)]


def ending(*lasts: float) -> list[ReadRun]:
    """Return a run for each of these last losses, from 3 on."""
    return [run(321, 0.6, [3.0] * 5 + [last] * 5) for last in lasts]


@pytest.mark.parametrize(
    ("lasts", "answer", "more"),
    [
        ((1.0, 1.1, 1.2), "agrees", "0.900 [0.652, 1.148]"),
        ((2.2, 2.25, 2.3), "differs", "-0.250 [-0.374, -0.126]"),
        ((1.0, 1.1, 2.6), "says nothing", "0.433 [-1.793, 2.660]"),  # two of three improve
    ],
)
def test_the_interval_of_three_seeds_decides_whether_a_figure_improves(
    lasts: tuple[float, ...], answer: str, more: str
) -> None:
    loss = next(v for v in of_three(*ending(*lasts)) if v.what.startswith("test loss"))
    assert loss.answer == answer
    assert f"here by {more} more: the interval lies above 0" in loss.held_to
    assert loss.ours.startswith("3.000 [3.000, 3.000] to ")


@pytest.mark.parametrize(
    ("reached", "answer"),
    [((0.68, 0.69, 0.685), "agrees"), ((0.6, 0.61, 0.6), "differs"),
     ((0.69, 0.68, 0.6), "says nothing"), ((0.69, 0.69, 0.15), "says nothing")],
)  # fmt: skip
def test_the_interval_of_three_seeds_decides_what_a_small_k_costs(
    reached: tuple[float, ...], answer: str
) -> None:
    runs = {seeded("signds-k0.01", seed): run(98, each) for seed, each in enumerate(reached)}
    found = signds_lenet._accuracy_lost([run(264_540, 0.7)] * 3, [*runs.values()])
    assert found.answer == answer
    assert found.held_to == "at most 0.02 more, with the whole interval"
    assert ("signds-k0.01 (0.150)" in found.why) is (0.15 in reached)


def test_the_runs_of_one_name_differ_in_their_seeds_alone() -> None:
    jobs = {arm.name: arm.job for arm in SignDSLeNetSeeds().arms("medium")}
    for name in ("not_encrypt", "signds", "signds-estimated"):
        mine = [jobs[seeded(name, seed)] for seed in range(12)]
        assert [job.seed for job in mine] == [*range(12)]
        alike = [job.model_copy(update={"seed": 0, "name": ""}) for job in mine]
        assert alike[1:] == alike[:-1]
    assert len(jobs) == 36


def test_accuracies_after_200_rounds_are_not_compared_after_fewer() -> None:
    """The seeds of these runs judge the curves, and no run has k 0.01."""
    runs = {arm.name: run(264_540, 0.7) for arm in SignDSLeNetSeeds().arms("medium")}
    found = [verdict.what for verdict in signds_lenet.judged(runs)]
    assert [what.split(",")[0] for what in found[2:]] == [
        "test loss under signds", "test AUC under signds",
        "test loss under signds with the step estimated",
        "test AUC under signds with the step estimated",
    ]  # fmt: skip
    assert len(signds_lenet._table(runs).rows) == 3


def test_the_run_at_chance_level_is_named() -> None:
    runs = {name: run(321, 0.7) for name in ("not_encrypt", "signds", "signds-k0.01")}
    found = [*signds_lenet.judged({**runs, "signds-estimated": run(321, 0.15)})]
    silent = [v.why for v in found if v.answer == "says nothing"]
    assert len(silent) == 2
    assert all(said.endswith("end: signds with the step estimated (0.150)") for said in silent)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ("mnist_written", "about half as many as in FEMNIST"),
        ("mnist_synthetic", "10 of the 62 classes"),
        ("femnist_100", ""),
    ],
)
def test_only_femnist_has_the_sources_images(data: str, words: str) -> None:
    job = SignDSLeNet().arms("full")[0].job
    named = job.with_(data={**job.data.model_dump(), "name": f"experiments.writers:{data}"})
    said = signds_lenet._told("full", named)
    assert "all keys are the source's" in said
    assert words in said
    assert ("10 of the 62" in said) is bool(words)


@pytest.mark.parametrize(("name", "kinds"), [("signds-lenet", 4), ("signds-lenet-seeds", 3)])
def test_a_miniature(
    name: str, kinds: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three writers of four digits: the bytes are those of the source's size of model."""
    monkeypatch.setattr(writers, "load", lambda name: images(60))
    monkeypatch.setattr(writers, "SMALL_WRITERS", 3)
    monkeypatch.setattr(writers, "_SMALL_IMAGES", 4)
    monkeypatch.setattr(signds_lenet, "_SMALL_ROUNDS", 2)
    monkeypatch.setattr(SignDSLeNetSeeds, "seeds", 1)
    page, outcome = reproduce(name, "small", tmp_path / "s", lambda text: None)
    assert [verdict.agrees for verdict in outcome.verdicts][:2] == [True, True]
    assert [plot.name for plot in outcome.plots] == ["loss", "auc"]
    assert all(len(plot.curves) == kinds for plot in outcome.plots)
    assert len(page.with_name(f"{name}-runs.jsonl").read_bytes().splitlines()) == kinds
    assert ("200 rounds" in page.read_text()) is (kinds == 4)
    assert "MNIST, divided among simulated writers" in page.read_text()
