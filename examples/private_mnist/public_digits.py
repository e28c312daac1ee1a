"""Fixed features of handwriting: a network learned on scikit-learn's digits, and fixed filters.

    python public_digits.py        # learns them anew, into public_digits.npz: about a minute

scikit-learn's 1,797 digits (Alpaydin and Kaynak, 1998) are 8 x 8 pixels, by 13 other people. Each
one is enlarged to 28 x 28 pixels, and turned, slanted, stretched, bent and redrawn with another pen
at random. A small convolutional network learns their classes. Its last hidden layer and fedveil's
oriented filters are the features of `head`, a model whose last linear layer alone is trained. The
network learns from no image of MNIST. The filters' settings, six numbers, were chosen on a part of
MNIST's training images.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from fedveil.learning.oriented_filters import OrientedFilters
from fedveil.learning.trained_part import only_head

WEIGHTS = Path(__file__).with_suffix(".npz")
CHANNELS, WIDTH, NORM = (16, 32, 48), 64, 10.0
EPOCHS, BATCH, RATE = 80, 128, 6e-3


def layers(normalised: bool) -> nn.Sequential:
    """Return the network up to its last hidden layer, with batch normalisation while it learns."""
    found: list[nn.Module] = []
    for before, after in zip((1, *CHANNELS), CHANNELS, strict=False):
        norm = [nn.BatchNorm2d(after)] if normalised else []
        found += [nn.Conv2d(before, after, 3 if before > 1 else 5, padding="same"), *norm]
        found += [nn.ReLU(), nn.MaxPool2d(2)]
    norm = [nn.BatchNorm1d(WIDTH)] if normalised else []
    return nn.Sequential(*found, nn.Flatten(), nn.Linear(CHANNELS[-1] * 9, WIDTH), *norm, nn.ReLU())


class DigitFeatures(nn.Module):
    """Turns images [examples, 1, 28, 28] between -1 and 1 into rows of features of norm 10.

    A row holds the oriented filters and, with half of their norm, the network's last hidden layer
    less its mean over the public digits.
    """

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__()
        self.filters, self.network = OrientedFilters(shape), layers(normalised=False)
        self.outputs = self.filters.outputs + WIDTH
        self.register_buffer("mean", torch.zeros(WIDTH))
        saved = np.load(WEIGHTS, allow_pickle=False)
        state = {name: torch.from_numpy(saved[name].astype(np.float32)) for name in saved.files}
        self.load_state_dict(state)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        learned = self.network(x) - self.mean
        rows = torch.cat([self.filters(x), 0.5 * NORM * functional.normalize(learned)], 1)
        return NORM * functional.normalize(rows)


def head(shape: Sequence[int], classes: int) -> nn.Module:
    """Return a linear head with zero weights on the features. Only the head is trained."""
    features = DigitFeatures(shape)
    last = nn.Linear(features.outputs, classes)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    return only_head(nn.Sequential(features, last))


def redrawn(small: torch.Tensor, draw: torch.Generator) -> torch.Tensor:
    """Return 8 x 8 images as if written again: 28 x 28, by another hand, with another pen."""
    count = len(small)

    def uniform(low: float, high: float) -> torch.Tensor:
        return low + (high - low) * torch.rand(count, generator=draw)

    angle, slant = uniform(-0.3, 0.3), uniform(-0.4, 0.4)
    wide, high = 1.4 * uniform(0.75, 1.25), 1.4 * uniform(0.85, 1.2)  # 20 of 28 pixels at 1.4
    cos, sin = angle.cos(), angle.sin()
    moved = torch.stack(
        [wide * (cos + slant * sin), wide * (slant * cos - sin), uniform(-0.12, 0.12),
         high * sin, high * cos, uniform(-0.12, 0.12)], 1,
    ).view(count, 2, 3)  # fmt: skip
    grid = functional.affine_grid(moved, [count, 1, 28, 28], align_corners=False)
    bent = 0.06 * torch.randn(count, 2, 5, 5, generator=draw)
    bent = functional.interpolate(bent, size=(28, 28), mode="bicubic", align_corners=True)
    large = functional.interpolate(small, size=(32, 32), mode="bicubic", align_corners=False)
    ink = functional.grid_sample(large, grid + bent.permute(0, 2, 3, 1), align_corners=False)
    steep, level = uniform(4, 12)[:, None, None, None], uniform(0.3, 0.6)[:, None, None, None]
    ink = torch.sigmoid(steep * (ink - level))
    low, most = ink.amin((1, 2, 3), keepdim=True), ink.amax((1, 2, 3), keepdim=True)
    return 2 * (ink - low) / (most - low) - 1


def folded(learned: nn.Sequential) -> Iterator[nn.Module]:
    """Yield the network's layers, each batch normalisation folded into the layer before it."""
    for layer, norm in zip(learned, [*learned[1:], None], strict=True):
        if isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d):
            scale = norm.weight / (norm.running_var + norm.eps).sqrt()
            layer.bias.data = (layer.bias - norm.running_mean) * scale + norm.bias
            layer.weight.data *= scale.view(-1, *[1] * (layer.weight.ndim - 1))
        if not isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
            yield layer


def learn() -> None:
    """Learn the network on scikit-learn's digits and save its weights."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    x = torch.tensor(digits.images[:, None] / 16, dtype=torch.float32)
    y = torch.tensor(digits.target)
    torch.manual_seed(7)
    draw = torch.Generator().manual_seed(7)
    network = layers(normalised=True)
    whole = nn.Sequential(network, nn.Dropout(0.3), nn.Linear(WIDTH, 10))
    steps = len(x) // BATCH
    optimizer = torch.optim.AdamW(whole.parameters(), weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=EPOCHS * steps)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(x), generator=draw)[: steps * BATCH].split(BATCH):
            scores = whole(redrawn(x[rows], draw))
            loss = functional.cross_entropy(scores, y[rows], label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    with torch.no_grad():
        fixed = nn.Sequential(*folded(network.eval()))
        mean = torch.cat([fixed(redrawn(part, draw)) for part in x.split(BATCH)]).mean(0)
    state = {f"network.{name}": value for name, value in fixed.state_dict().items()}
    saved = {name: value.numpy().astype(np.float16) for name, value in state.items()}
    np.savez_compressed(WEIGHTS, mean=mean.numpy(), **saved)


if __name__ == "__main__":
    learn()
