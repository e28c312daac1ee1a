"""Fixed features of small photographs: their likeness to patches of public photographs.

    python public_patches.py       # makes them anew, into public_patches.npz: about a minute

Patches of an image are compared with patches of public photographs, after all have lost their
brightness and contrast and were whitened (Coates, Lee and Ng, 2011). The features are whitened too,
by what they are for pieces of the same photographs, and all have norm 10. The photographs are those
that scikit-learn and scikit-image contain. No image of CIFAR-10 is used. `head` is a model whose
last linear layer alone is trained.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from fedveil.learning.trained_part import only_head

SAVED = Path(__file__).with_suffix(".npz")
IMAGE, PATCH, STRIDE, CELLS = 32, 6, 2, 3
#: The number of patches, each also used mirrored, and of channels after whitening.
PATCHES, KEPT = 512, 256
#: A likeness below this counts as none.
THRESHOLD = 1.5
#: Added to the contrast of a patch, to its whitening, and to that of the features.
FAINT, DULL, RARE = 0.05, 0.01, 1e-4
NORM = 10.0
SHRUNK, SAMPLE, PIECES = (2, 3, 4, 6), 200_000, 8000


class Strengths(nn.Module):
    """Turns images [examples, 3, 32, 32] between -1 and 1 into strengths [examples, channel, cell].

    A channel is a public patch and a sign. A strength is the mean of max(0, sign * likeness -
    THRESHOLD) over the patches of a cell, over the image and its mirror image.
    """

    def __init__(self, filters: torch.Tensor, offsets: torch.Tensor) -> None:
        super().__init__()
        both = torch.cat([filters, filters.flip(3)])
        self.register_buffer("filters", both.flatten(1), False)
        self.register_buffer("offsets", torch.cat([offsets, offsets])[:, None], False)
        places = (IMAGE - PATCH) // STRIDE + 1
        edges = [round(cell * places / CELLS) for cell in range(CELLS + 1)]
        share = torch.zeros(places, CELLS)
        for cell in range(CELLS):
            share[edges[cell] : edges[cell + 1], cell] = 1 / (edges[cell + 1] - edges[cell])
        self.register_buffer("cells", torch.kron(share, share), False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([self.of_one(image) for image in x])

    def of_one(self, image: torch.Tensor) -> torch.Tensor:
        patches = functional.unfold(image[None], PATCH, stride=STRIDE)[0]
        contrast = (patches.var(0, correction=0) + FAINT**2).sqrt()
        likeness = self.filters @ (patches / contrast) - self.offsets
        means = torch.cat([(sign * likeness - THRESHOLD).relu() @ self.cells for sign in (1, -1)])
        plain, mirrored = means.view(2, 2, -1, CELLS, CELLS).unbind(1)
        return (plain + mirrored.flip(-1)).reshape(-1, CELLS**2) / 2


class PatchFeatures(nn.Module):
    """Turns images [examples, 3, 32, 32] between -1 and 1 into rows of features of norm 10.

    The strengths, less their mean over public photographs, are transformed: over the cells by a
    cosine transform, over the channels to their principal components in public photographs. Each
    result is divided by its public standard deviation.
    """

    #: Every image is computed alone.
    examples_at_once = 64

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__()
        if tuple(shape) != (3, IMAGE, IMAGE):
            raise ValueError(f"these features are for images (3, 32, 32), not {tuple(shape)}")
        with np.load(SAVED, allow_pickle=False) as file:
            saved = {name: torch.from_numpy(file[name].astype(np.float32)) for name in file.files}
        self.strengths = Strengths(saved["filters"], saved["offsets"])
        for name in ("mean", "components", "scales"):
            self.register_buffer(name, saved[name], False)
        self.register_buffer("waves", waves(), False)
        self.outputs = self.scales.numel()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([self.of_one(image) for image in x])

    def of_one(self, image: torch.Tensor) -> torch.Tensor:
        moved = (self.strengths.of_one(image) - self.mean) @ self.waves
        rows = self.components.T @ moved * self.scales
        return NORM * functional.normalize(rows.flatten(), dim=0)


def waves() -> torch.Tensor:
    """Return the orthonormal cosine transform over the cells, a column for each wave."""
    steps = torch.arange(CELLS, dtype=torch.float64)
    wave = torch.cos(torch.pi * (steps[:, None] + 0.5) * steps / CELLS)
    wave = wave / wave.norm(dim=0)
    return torch.kron(wave, wave).float()


def head(shape: Sequence[int], classes: int) -> nn.Module:
    """Return a linear head with zero weights on the features. Only the head is trained."""
    features = PatchFeatures(shape)
    return only_head(nn.Sequential(features, *on_features((features.outputs,), classes)))


def on_features(shape: Sequence[int], classes: int) -> nn.Sequential:
    """Return the head alone, for rows of features that were computed before."""
    layer = nn.Linear(shape[0], classes)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return nn.Sequential(layer)


def photographs() -> Iterator[torch.Tensor]:
    """Yield public photographs [3, height, width] between -1 and 1, each in several sizes."""
    from skimage import data
    from sklearn.datasets import load_sample_images

    images = [*load_sample_images().images, data.astronaut(), data.chelsea(), data.coffee()]
    for image in [*images, data.rocket()]:
        whole = torch.from_numpy(image.transpose(2, 0, 1) / 127.5 - 1).float()
        yield from (functional.avg_pool2d(whole, times) for times in SHRUNK)


def pieces(side: int, count: int, draw: torch.Generator) -> torch.Tensor:
    """Return squares of public photographs, half of them mirrored, in random order."""
    found, sizes = [], [*photographs()]
    each = -(-count // len(sizes))
    for image in sizes:
        tops, lefts = (
            torch.randint(most - side + 1, (each,), generator=draw).tolist()
            for most in image.shape[1:]
        )
        for top, left in zip(tops, lefts, strict=True):
            piece = image[:, top : top + side, left : left + side]
            found.append(piece.flip(2) if len(found) % 2 else piece)
    return torch.stack(found)[torch.randperm(len(found), generator=draw)[:count]]


@torch.no_grad()
def learn() -> None:
    """Choose the patches and whiten by public photographs. Saves the result."""
    draw = torch.Generator().manual_seed(7)
    patches = pieces(PATCH, SAMPLE, draw).flatten(1).double()
    patches -= patches.mean(1, keepdim=True)
    patches /= (patches.var(1, correction=0, keepdim=True) + FAINT**2).sqrt()
    mean = patches.mean(0)
    values, vectors = torch.linalg.eigh(torch.cov((patches - mean).T))
    whiten = vectors / (values.clamp_min(0) + DULL).sqrt() @ vectors.T
    chosen = functional.normalize((patches[:PATCHES] - mean) @ whiten)
    filters = chosen @ whiten
    offsets = filters @ mean
    filters -= filters.mean(1, keepdim=True)  # so that an image's patches need not lose their mean
    filters = filters.half().float().view(-1, 3, PATCH, PATCH)
    found = Strengths(filters, offsets.float())(pieces(IMAGE, PIECES, draw))
    middle = found.mean(0)
    moved = (found - middle) @ waves()
    moved /= moved.flatten(1).norm(dim=1)[:, None, None]
    covariance = torch.einsum("nct,ndt->cd", moved, moved) / PIECES
    components = torch.linalg.eigh(covariance)[1][:, -KEPT:]
    spread = torch.einsum("nct,ck->nkt", moved, components).square().mean(0)
    saved = {"filters": filters, "components": components, "scales": (spread + RARE) ** -0.5}
    small = {name: value.numpy().astype(np.float16) for name, value in saved.items()}
    np.savez_compressed(SAVED, offsets=offsets.float().numpy(), mean=middle.numpy(), **small)


if __name__ == "__main__":
    learn()
