"""The example's features of photographs, from a network that was trained on ImageNet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from sklearn.datasets import load_sample_image

from fedveil.entropy import Seeded
from fedveil.learning.trained_part import TrainedPart

pytest.importorskip("efficientnet_lite_pytorch", reason="examples/private_cifar/requirements.txt")
FOLDER = Path(__file__).parents[2] / "examples" / "private_cifar"
SHAPE = (3, 32, 32)


@pytest.fixture
def photos(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(FOLDER)
    import pretrained_photos

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield pretrained_photos
    torch.set_num_threads(threads)


def images(count: int) -> np.ndarray:
    return Seeded(count).generator().uniform(-1, 1, (count, *SHAPE)).astype(np.float32)


def test_an_image_has_the_same_features_whatever_is_computed_beside_it(photos: ModuleType) -> None:
    x = images(5)
    part = TrainedPart.of(photos.head(SHAPE, 7).train())
    alone = part.inputs(x)
    assert alone.shape == (5, 1280)
    assert np.array_equal(part.inputs(x[[3]]), alone[[3]])
    assert np.allclose(photos.in_batches(x), alone, atol=1e-3)
    assert np.allclose(np.linalg.norm(alone, axis=1), 10, atol=1e-3)
    assert sum(p.numel() for p in part.module.parameters() if p.requires_grad) == 7 * 1281


def test_pieces_of_a_public_photograph_have_features_near_mean_0_and_deviation_1(
    photos: ModuleType,
) -> None:
    flower = load_sample_image("flower.jpg").transpose(2, 0, 1).astype(np.float32) / 127.5 - 1
    small = flower[:, :416:4, :640:4]
    shown = np.stack([small[:, y : y + 32, x : x + 32] for y in (0, 32, 64) for x in (0, 60, 120)])
    features = photos.PretrainedFeatures(SHAPE).eval()
    with torch.no_grad():
        found = (features.network(torch.from_numpy(shown)) - features.mean) * features.scales
    assert abs(found.mean()) < 0.3 < found.std() < 1.5


def test_images_of_another_shape_are_refused(photos: ModuleType) -> None:
    with pytest.raises(ValueError, match=r"\(3, 32, 32\), not \(3, 28, 28\)"):
        photos.head((3, 28, 28), 10)
