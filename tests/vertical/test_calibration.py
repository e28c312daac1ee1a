"""Calibration corrects overconfident and class-weighted models, and predicts out of sample."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import softmax
from sklearn import metrics as known

from fedveil.entropy import Seeded
from fedveil.errors import FedveilError, InvalidValue
from fedveil.record.run_folder import RunFolder
from fedveil.vertical.calibration import apply, calibrated, fit, log_loss
from fedveil.vertical.calibrator import CALIBRATOR, Calibrator, _threshold
from fedveil.vertical.party_run import PartyRun
from fedveil.vertical.predictions import PredictionFile, Predictions, told_classes, told_scores
from fedveil.vertical.rows import Rows

DRAW = Seeded(9).generator()
TRUE = DRAW.normal(0, 1.5, (4000, 3))
LABELS = (softmax(TRUE, axis=1).cumsum(axis=1) < DRAW.random((4000, 1))).sum(axis=1)


@pytest.mark.parametrize("moved", [np.zeros(3), np.log([1.0, 20.0, 0.1])])
@pytest.mark.parametrize("factor", [0.01, 0.3, 1.0, 6.0, 90.0])
def test_scores_that_are_too_sure_or_weighted_are_put_right(factor: float, moved) -> None:
    found = calibrated(factor * (TRUE + moved), LABELS)
    best = log_loss(softmax(TRUE, axis=1), LABELS)
    assert log_loss(found, LABELS) < best * 1.01
    np.testing.assert_allclose(found.sum(axis=1), 1)
    for at in range(3):
        high = found[:, at] > np.quantile(found[:, at], 0.8)
        assert found[high, at].mean() == pytest.approx((LABELS[high] == at).mean(), abs=0.05)


def test_no_example_is_told_by_its_own_label() -> None:
    one, other = LABELS.copy(), LABELS.copy()
    other[0::2] = (other[0::2] + 1) % 3
    first, second = (calibrated(TRUE, labels) for labels in (one, other))
    np.testing.assert_array_equal(first[0::2], second[0::2])
    assert not np.array_equal(first[1::2], second[1::2])


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_examples_change_little(count: int) -> None:
    found = calibrated(TRUE[:count], LABELS[:count])
    assert np.abs(found - softmax(TRUE[:count], axis=1)).max() < 0.4
    assert np.isfinite(found).all()


def test_a_fit_is_of_the_scores_of_classes_that_are_masked_too() -> None:
    """A class that a model masks, or that no example has, gets a probability all the same."""
    outputs, labels = TRUE[:40].copy(), np.where(LABELS[:40] == 2, 0, LABELS[:40])
    factor, shifts = fit(outputs, labels)
    assert apply(outputs, factor, shifts)[:, 2].mean() > 0.01
    outputs[7, 2] = -np.inf
    factor, shifts = fit(outputs, labels)
    found = apply(outputs, factor, shifts)
    assert np.isfinite([factor, *shifts]).all()
    assert np.isfinite(apply(outputs, 0.0, shifts)).all()
    assert found[7, 2] < 1e-99
    np.testing.assert_allclose(found.sum(axis=1), 1)


def test_a_masked_class_does_not_keep_the_scores_from_being_calibrated() -> None:
    outputs, labels = 6 * TRUE[:200], LABELS[:200].copy()
    outputs[7, 2], labels[7] = -np.inf, 0
    found = calibrated(outputs, labels[:, None])
    assert log_loss(found, labels) < 0.5 * log_loss(softmax(outputs, axis=1), labels)
    assert found[7, 2] < 1e-50


def test_a_label_that_a_model_excludes_has_a_finite_loss() -> None:
    found = log_loss(np.array([[1.0, 0.0], [0.5, 0.5], [0.25, 0.75]]), np.array([[1], [0], [1]]))
    assert found == pytest.approx((1022 + 1 + np.log2(4 / 3)) * np.log(2) / 3)


def test_the_log_loss_is_scikit_learn_s() -> None:
    shares = softmax(TRUE, axis=1)
    assert log_loss(shares, LABELS) == pytest.approx(known.log_loss(LABELS, shares))


def test_the_threshold_maximises_its_criterion_and_never_parts_equal_probabilities() -> None:
    far, ties = [0.9, 0.8, 0.7, 0.6, 0.5], [0.9, 0.8, 0.8, 0.3, 0.2]
    for likely, truth, criterion, expected in (
        (far, [1, 0, 0, 0, 1], "f1", 0.85),
        (far, [1, 0, 0, 0, 1], "balanced_accuracy", 0.85),
        (far, [0, 1, 1, 0, 1], "balanced_accuracy", 0.65),
        (far, [0, 0, 1, 0, 0], "balanced_accuracy", 0.65),
        (far, [0, 1, 1, 0, 1], "f1", 0.25),
        (ties, [1, 1, 0, 0, 0], "f1", 0.55),
        (far, [1] * 5, "f1", 0.5),
        (far, [0] * 5, "f1", 0.5),
        (far, [0] * 5, "balanced_accuracy", 0.5),
    ):
        for order in ([3, 0, 4, 2, 1], [3, 0, 4, 1, 2]):
            found = _threshold(np.array(likely)[order], np.array(truth)[order] == 1, criterion)
            assert found == pytest.approx(expected), (truth, criterion)
    made = Calibrator(factor=2.0, shifts=(0.0, 0.5), threshold=0.6, criterion="f1", examples=9)
    assert made.decided(np.array([[0.4, 0.6], [0.45, 0.55]])).tolist() == [1, 0]
    several = made.model_copy(update={"threshold": None})
    assert several.decided(np.array([[0.4, 0.6], [0.45, 0.35]])).tolist() == [1, 0]


@pytest.mark.parametrize(("classes", "output"), [(2, (1,)), (2, (3,)), (None, (2,)), (2, (2, 2))])
def test_a_table_is_for_one_number_or_one_for_each_class(
    classes: int | None, output: tuple[int, ...], tmp_path: Path
) -> None:
    """A single logit for two classes is refused before anything is sent."""
    split = SimpleNamespace(last=SimpleNamespace(output=output))
    setting = SimpleNamespace(task=SimpleNamespace(classes=classes), split=split)
    run: Any = SimpleNamespace(setting=setting)
    with pytest.raises(InvalidValue, match=r"do not fit the lines of .*; use --out NAME"):
        next(PredictionFile(tmp_path / "told.csv").predict(run))


def test_a_prediction_stands_beside_its_own_probability() -> None:
    shares = np.array([[0.25, 0.5, 0.25], [0.125, 0.125, 0.75]])
    assert told_scores(shares, np.array([1, 0]), ["a", "b", "c"]) == {
        "prediction": ["b", "a"], "probability": ["0.500000", "0.125000"],
        "probability of a": ["0.250000", "0.125000"],
        "probability of b": ["0.500000", "0.125000"],
        "probability of c": ["0.250000", "0.750000"],
    }  # fmt: skip


def test_a_tables_predictions_are_those_that_the_metrics_count() -> None:
    """Calibration undoes the weight of a class, and would predict other classes."""
    outputs, labels = 3 * (TRUE[:300] + np.array([0, 2, 0])), LABELS[:300]
    told = told_classes(outputs, labels, ["a", "b", "c"])
    assert told["prediction"] == ["abc"[at] for at in outputs.argmax(axis=1)]
    shares = calibrated(outputs, labels)
    assert (shares.argmax(axis=1) != outputs.argmax(axis=1)).any()
    assert told["probability of c"] == [f"{share:.6f}" for share in shares[:, 2]]


def test_a_file_of_predictions_is_new_and_has_all_that_was_predicted(tmp_path: Path) -> None:
    """A file that cannot be written is refused before anything is sent."""
    for name, why in (
        ("told.txt", r"told\.txt must end in \.csv or \.npz"),
        ("no/told.csv", "there is no folder .*no$"),
        ("/proc/self/told.csv", r"/proc/self/told\.csv cannot be written: "),
    ):
        with pytest.raises(FedveilError, match=why):
            PredictionFile(tmp_path / name)
    outputs = np.array([[1.5, 2], [3, 4], [-1, 0]], np.float32)
    found = Predictions(np.array(["a", "b,c", "d"]), outputs, {"prediction": ["x", "y", "x"]})
    assert PredictionFile(tmp_path / "told.csv").write(found) == "3 predictions"
    assert (tmp_path / "told.csv").read_text("utf-8") == 'id,prediction\na,x\n"b,c",y\nd,x\n'
    assert PredictionFile(tmp_path / "told.npz").write(found) == "3 outputs of shape (2,)"
    with np.load(tmp_path / "told.npz") as told:
        assert told["ids"].tolist() == ["a", "b,c", "d"]
        assert np.array_equal(told["outputs"], outputs)
    with pytest.raises(FedveilError, match=r"told\.npz already exists"):
        PredictionFile(tmp_path / "told.npz")


@pytest.mark.parametrize("name", ["told.csv", "told.npz"])
def test_a_file_that_appears_while_predictions_are_computed_is_not_overwritten(
    name: str, tmp_path: Path
) -> None:
    """A command waits for other parties, so another program has time to write the same name."""
    outputs = np.array([[1], [2]], np.float32)
    found = Predictions(np.array(["a", "b"]), outputs, {"prediction": ["1", "2"]})
    path, partial = tmp_path / name, tmp_path / f"{name}.part"
    file = PredictionFile(path)
    path.write_text("another person's")
    with pytest.raises(FedveilError, match=rf"{re.escape(name)} appeared meanwhile; it") as error:
        file.write(found)
    assert path.read_text() == "another person's"
    assert error.value.__notes__ == [f"the predictions so far are in {partial}"]
    path.unlink()
    saved = partial.read_bytes()
    partial.unlink()
    file.write(found)
    assert path.read_bytes() == saved, "nothing is lost"


def test_a_fingerprint_is_of_the_rows_that_are_used_and_their_labels() -> None:
    column, labels = torch.arange(10.0).reshape(5, 2), torch.tensor([0, 1, 1])
    held = {"age": column}
    rows = Rows(3, held, labels, np.arange(3), np.array([0, 2, 4]))
    others = (
        replace(rows, labels=torch.tensor([0, 1, 0])), replace(rows, at=np.array([0, 2, 3])),
        replace(rows, ids=np.arange(1, 4)), replace(rows, stored={"wage": column}),
    )  # fmt: skip
    assert len({one.fingerprint() for one in (rows, *others)}) == 5
    again = Rows(3, {"age": column[[0, 2, 4]]}, labels, np.arange(3))
    assert again.fingerprint() == rows.fingerprint()


@pytest.mark.parametrize(("done", "stays"), [(7, False), (8, True)])
def test_a_run_that_goes_back_forgets_the_calibrator_of_its_last_step(
    done: int, stays: bool, tmp_path: Path
) -> None:
    """A limit may end the repeated steps earlier. The calibrator fits another model then."""
    folder = RunFolder.create(tmp_path / "run", "run", "fedveil vertical run")
    folder.write_atomically(CALIBRATOR, b"of step 8")
    run: Any = PartyRun.__new__(PartyRun)
    run.setting = SimpleNamespace(folder=folder, job=SimpleNamespace(epochs=2))
    run.log, run._metrics, run.done = SimpleNamespace(open=lambda metrics: None), None, done
    releases = SimpleNamespace(settle=lambda step: None)
    run._parts = SimpleNamespace(order=SimpleNamespace(steps=4), releases=releases)
    run.settle()
    assert (folder.path / CALIBRATOR).exists() == stays
    folder.close()
