"""The example's features, which were learned on public digits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fedveil.data import datasets
from fedveil.federated.job import Job
from fedveil.learning.trained_part import TrainedPart

FOLDER = Path(__file__).parents[2] / "examples" / "private_mnist"


def test_the_features_tell_digits_apart_and_stay_fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nearest class means of a third of the digits name the others; noise meets equal norms."""
    monkeypatch.syspath_prepend(FOLDER)
    import public_digits

    torch.set_num_threads(1)
    assert Job.load(FOLDER / "writers.yaml").model == "public_digits:head"
    model = public_digits.head((1, 28, 28), 10)
    part = TrainedPart.of(model)
    assert [len(p) for p in part.module.parameters()] == [10, 10]
    assert not any(p.requires_grad for p in part.features.parameters())
    digits = datasets.load("digits")
    x, y = digits.train.x[:450], digits.train.y[:450]
    rows = part.features(torch.from_numpy(x)).detach().numpy()
    assert np.linalg.norm(rows, axis=1) == pytest.approx(np.full(450, 10.0), rel=1e-5)
    learned = rows[:, -public_digits.WIDTH :]
    means = np.stack([learned[:150][y[:150] == digit].mean(0) for digit in range(10)])
    nearest = ((learned[150:, None] - means) ** 2).sum(2).argmin(1)
    assert (nearest == y[150:]).mean() > 0.93


def test_the_network_learns_by_hand_and_folds_its_normalisation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(FOLDER)
    import public_digits

    torch.manual_seed(3)
    learned, images = public_digits.layers(normalised=True), torch.rand(7, 1, 28, 28)
    learned(images)  # moves the running means
    expected = learned.eval()(images)
    fixed = torch.nn.Sequential(*public_digits.folded(learned))
    assert list(fixed.state_dict()) == list(public_digits.layers(False).state_dict())
    assert torch.allclose(fixed(images), expected, atol=1e-5)
    again = public_digits.redrawn(images[:, :, :8, :8], torch.Generator().manual_seed(5))
    assert again.shape == (7, 1, 28, 28)
    assert (again.amin(), again.amax()) == (-1, 1)
