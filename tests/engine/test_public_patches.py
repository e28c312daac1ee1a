"""The example's features of photographs, which were learned on public photographs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from scipy.fft import dctn

import fedveil
from fedveil.entropy import Seeded
from fedveil.federated.job import Job
from fedveil.learning.trained_part import TrainedPart

FOLDER = Path(__file__).parents[2] / "examples" / "private_cifar"
SHAPE = (3, 32, 32)


@pytest.fixture
def patches(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(FOLDER)
    import public_patches

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield public_patches
    torch.set_num_threads(threads)


def images(count: int) -> np.ndarray:
    """Smooth noise in colour, between -1 and 1."""
    coarse = Seeded(count).generator().uniform(-1, 1, (count, 3, 8, 8)).astype(np.float32)
    return np.kron(coarse, np.ones((1, 1, 4, 4), np.float32))


def slowly(patches: ModuleType, image: np.ndarray) -> np.ndarray:
    """The features by their definition: patch by patch, cell by cell, in float64."""
    saved = np.load(patches.SAVED)
    filters = saved["filters"].astype(np.float64).reshape(patches.PATCHES, -1)
    edges = (0, 5, 9, 14)
    sums = np.zeros((2, patches.PATCHES, 3, 3))
    for seen in (image, image[:, :, ::-1]):
        for row in range(3):
            for column in range(3):
                found = []
                for y in range(edges[row], edges[row + 1]):
                    for x in range(edges[column], edges[column + 1]):
                        patch = seen[:, 2 * y : 2 * y + 6, 2 * x : 2 * x + 6].ravel()
                        patch = patch.astype(np.float64) - patch.mean()
                        patch /= np.sqrt((patch**2).mean() + 0.05**2)
                        alike = filters @ patch - saved["offsets"]
                        found.append(np.maximum(np.stack([alike, -alike]) - 1.5, 0))
                sums[:, :, row, column] += np.mean(found, axis=0) / 2
    moved = sums.reshape(-1, 9) - saved["mean"]
    waves = dctn(moved.reshape(-1, 3, 3), axes=(1, 2), norm="ortho").reshape(-1, 9)
    rows = (saved["components"].astype(np.float64).T @ waves * saved["scales"]).ravel()
    return 10 * rows / np.linalg.norm(rows)


def test_the_features_are_those_of_the_definition(patches: ModuleType) -> None:
    x = images(2)
    features = patches.PatchFeatures(SHAPE)
    found = features(torch.from_numpy(x)).numpy()
    assert found.shape == (2, features.outputs)
    for row, image in zip(found, x, strict=True):
        assert row == pytest.approx(slowly(patches, image), abs=2e-3)


def test_a_mirror_image_has_the_same_features_and_contrast_matters_little(
    patches: ModuleType,
) -> None:
    x = torch.from_numpy(images(3))
    features = patches.PatchFeatures(SHAPE)
    plain, mirrored, paler = (features(seen) for seen in (x, x.flip(3), 0.6 * x + 0.2))
    assert torch.allclose(plain, mirrored, atol=1e-4)
    assert torch.allclose(plain.norm(dim=1), torch.full((3,), 10.0), rtol=1e-5)
    assert bool(((plain * paler).sum(1) > 95).all())


def test_images_of_another_shape_are_refused(patches: ModuleType) -> None:
    with pytest.raises(ValueError, match=r"\(3, 32, 32\), not \(1, 28, 28\)"):
        patches.head((1, 28, 28), 10)


def test_a_run_on_the_images_equals_one_on_their_features(
    patches: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The benchmark computes the features once and relies on this, to the byte."""
    x, y = images(23), np.arange(23) % 10
    part = TrainedPart.of(patches.head(SHAPE, 10))
    seen = part.inputs(x)
    alone = np.concatenate([part.inputs(x[i : i + 1]) for i in range(5)])
    assert np.array_equal(seen[:5], alone)
    np.savez(tmp_path / "both.npz", images=x, features=seen, y=y)
    (tmp_path / "both.py").write_text(
        f"import numpy as np\nsaved = np.load({str(tmp_path / 'both.npz')!r})\n"
        "def images(): return of('images')\n"
        "def features(): return of('features')\n"
        "def of(name):\n    x, y = saved[name], saved['y']\n"
        "    return x[:20], y[:20], x[20:], y[20:]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    weights = []
    for data, model in (("images", "head"), ("features", "on_features")):
        changes = [f"data.name=both:{data}", f"model=public_patches:{model}", "rounds=2"]
        job = Job.load(FOLDER / "examples-5.yaml", [*changes, "simulation.workers=0"])
        run = fedveil.simulate(job, tmp_path / data)
        state = run.model.state_dict()
        weights.append(next(value for name, value in state.items() if name.endswith("weight")))
    assert torch.equal(*weights)
    assert bool(weights[0].any())


def test_the_patches_are_learned_from_public_photographs(
    patches: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("PATCHES", 7), ("KEPT", 5), ("SAMPLE", 600), ("PIECES", 31)):
        monkeypatch.setattr(patches, name, value)
    monkeypatch.setattr(patches, "SAVED", tmp_path / "few.npz")
    patches.learn()
    features = patches.PatchFeatures(SHAPE)
    assert features.outputs == 5 * 9
    assert torch.isfinite(features(torch.from_numpy(images(2)))).all()
