"""Images that stay on the edge: a residual network cut after its first block, as MistNet cuts it.

    block:  edge    <- data.image    a convolution and a stage of residual blocks, trained before
    rest:   leader  <- block         the other stages, which are trained here

The block was trained on public images, and is not trained further. The edge has it, and so do most
attackers. One half of CIFAR-10's training images belongs to the parties. Of the other half, the
first five classes are public. The cut lies before the block's last ReLU, with which `rest` begins.
This changes neither the network nor the bits, which are 1 where a value is above 0.

Groups of channels are normalised within an image. There is no batch normalisation, because its
output for one image would depend on other images.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import nn

from fedveil.attacks.attack_randomness import generator
from fedveil.base.files import write_whole
from fedveil.base.untrusted import MOST_STREAMED_BYTES, read_bytes
from fedveil.data import cifar10, image_folder
from fedveil.data.data_folders import find
from fedveil.data.datasets import load
from fedveil.data.examples import Dataset, Examples
from fedveil.entropy import Seeded
from fedveil.errors import DataUnavailable
from fedveil.record.sealed_message import intact
from fedveil.tasks.scoring import ByLabel
from fedveil.vertical.optimizer import Optimizer
from fedveil.vertical.split import Part, SplitModel
from fedveil.vertical.task import Columns, Subset, Unit, check_party, initial

BLOCK, REST, EDGE = "block", "rest", "edge"
SHAPE, CLASSES = (1, 28, 28), 10
#: CIFAR-10 from JPEG files in $FEDVEIL_DATA/cifar10, in place of the official ones.
JPEG = "cifar10_jpeg"
_OPTIMIZER = Optimizer("adam", lr=0.001)
_BATCH = 32
#: The blocks that this process has trained or loaded.
_BLOCKS: dict[Images, dict[str, torch.Tensor]] = {}


@dataclass(frozen=True)
class Network:
    """The channels of each stage (the first is before the cut), and residual blocks per stage."""

    widths: tuple[int, ...]
    blocks: int


#: ResNet-18's layout, and one that a core trains in a minute.
RESNET_18 = Network((64, 128, 256, 512), 2)
SLIM = Network((16, 32, 64), 1)
TINY = Network((4, 8), 1)


@dataclass(frozen=True)
class Images:
    """The data set, the network, the most images, and the epochs in which the block is trained."""

    data: str
    network: Network
    most_train: int = 60_000
    most_test: int = 10_000
    epochs_before: int = 3
    shape: tuple[int, int, int] = SHAPE


class Residual(nn.Module):
    """Two convolutions beside a shortcut. The ReLU after their sum belongs to the next layer."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.GroupNorm(4, outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.GroupNorm(4, outputs),
        )
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        total: torch.Tensor = self.inner(values) + self.shortcut(values)
        return total


def block_of(network: Network, channels: int = SHAPE[0]) -> nn.Sequential:
    """Return the part before the cut, untrained, for images with `channels` channels."""
    width = network.widths[0]
    stem = [nn.Conv2d(channels, width, 3, 1, 1, bias=False), nn.GroupNorm(4, width)]
    residuals = (Residual(width, width, 1) for _ in range(network.blocks))
    return nn.Sequential(*stem, *(layer for each in residuals for layer in (nn.ReLU(), each)))


def rest_of(network: Network) -> nn.Sequential:
    """Return the part after the cut, untrained."""
    layers: list[nn.Module] = []
    before = network.widths[0]
    for width in network.widths[1:]:
        for number in range(network.blocks):
            layers += [nn.ReLU(), Residual(before, width, 1 if number else 2)]
            before = width
    last = (nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, CLASSES))
    return nn.Sequential(*layers, *last)


class ImageCut(ByLabel):
    """The task: the edge has images and the block, the leader labels and the rest."""

    leader = "leader"
    followers: tuple[str, ...] = (EDGE,)
    classes: int | None = CLASSES
    unit: Unit = "examples"
    units_per_example = 1

    def __init__(self, images: Images, seed: int) -> None:
        self.images, self._seed = images, seed

    def split_model(self) -> SplitModel:
        network, (channels, *size) = self.images.network, self.images.shape
        block, rest = (
            block_of(network, channels),
            initial(self._seed, REST, lambda: rest_of(network)),
        )
        block.load_state_dict(trained_block(self.images))
        inner = (network.widths[0], *size)
        parts = [
            Part(BLOCK, EDGE, ("data.image",), inner, block, frozen=True),
            Part(REST, self.leader, (BLOCK,), (CLASSES,), rest, optimizer=_OPTIMIZER),
        ]
        return SplitModel(parts, leader=self.leader)

    def owned(self, party: str, subset: Subset) -> Columns:
        """Return the edge's images, or the leader's labels."""
        _, own = _public_and_own(self.images.data)
        examples, first = (own.train, 0) if subset == "train" else (own.test, len(own.train))
        most = self.images.most_train if subset == "train" else self.images.most_test
        count = min(len(examples), most)
        ids = np.arange(first, first + count)
        if party == self.leader:
            return Columns(ids, labels=torch.from_numpy(examples.y[:count].copy()))
        check_party(self, party)
        return Columns(ids, {"image": torch.from_numpy(examples.x[:count].copy())})


def _public_and_own(data: str) -> tuple[Examples, Dataset]:
    """Return the block's public training images, and the data set of the parties."""
    if data in ("mnist", "fashion_mnist"):
        return load("digits").train, load(data)
    whole = loaded(data)
    order = Seeded(0, "halves").permutation(len(whole.train))
    if data == "digits":
        order = np.arange(len(whole.train))
    first, second = (whole.train.of(part) for part in np.array_split(order, 2))
    if data == "digits":
        return first, replace(whole, train=second)
    # A folder of images is ordered by class.
    test = whole.test.of(Seeded(0, "test").permutation(len(whole.test)))
    return first.of(first.y < CLASSES // 2), replace(whole, train=second, test=test)


@lru_cache(maxsize=1)
def loaded(data: str) -> Dataset:
    """Return the data set `data`, which may also be `JPEG`: CIFAR-10 from JPEG files."""
    if data != JPEG:
        return load(data)
    train = find(cifar10.FOLDER, image_folder.TRAIN)
    if train is None:
        raise DataUnavailable(f"data {data}: {cifar10.FOLDER}/train is not on this machine")
    return load(image_folder.NAME, folder=str(train.parent))


def trained_block(images: Images) -> dict[str, torch.Tensor]:
    """Return the block's weights after training on public images, independent of the job's seed."""
    if images not in _BLOCKS:
        _BLOCKS[images] = _train_block(images)
    return _BLOCKS[images]


def keep_block(images: Images, file: Path) -> None:
    """Load the trained block from `file` if it exists, otherwise train the block and save it."""
    if file.exists():
        with intact(file):
            _BLOCKS[images] = safetensors.torch.load(read_bytes(file, MOST_STREAMED_BYTES))
    else:
        write_whole(file, safetensors.torch.save(trained_block(images)))


def _train_block(images: Images) -> dict[str, torch.Tensor]:
    public, _ = _public_and_own(images.data)
    block = initial(0, BLOCK, lambda: block_of(images.network, images.shape[0]))
    model = nn.Sequential(block, initial(0, "before", lambda: rest_of(images.network)))
    optimizer = torch.optim.Adam(model.parameters(), _OPTIMIZER.lr)
    x, y = torch.from_numpy(public.x.copy()), torch.from_numpy(public.y.copy())
    chance = generator(0, "before")
    for _ in range(images.epochs_before):
        order = torch.randperm(len(y), generator=chance)
        for rows in (order[i : i + _BATCH] for i in range(0, len(y), _BATCH)):
            optimizer.zero_grad()
            torch.autograd.backward(nn.functional.cross_entropy(model(x[rows]), y[rows]))
            optimizer.step()
    return block.state_dict()


def task_of(name: str, seed: int = 0) -> ImageCut:
    """Return the task called `name` in `TASKS`."""
    return ImageCut(TASKS[name], seed)


#: The tasks, by the names that jobs use.
TASKS = {
    "mnist_full": Images("mnist", RESNET_18),
    "mnist_medium": Images("mnist", RESNET_18, 2_500),
    "mnist_small": Images("mnist", SLIM, 3_000, 2_000),
    "digits_full": Images("digits", RESNET_18),
    "digits_medium": Images("digits", RESNET_18),
    "digits_small": Images("digits", SLIM),
    "digits_tiny": Images("digits", TINY, 64, 64, 1),
    **{
        f"{data}_{scale}": Images(data, network, train, test, shape=cifar10.SHAPE)
        for data in ("cifar10", JPEG)
        for scale, network, train, test in (
            ("full", RESNET_18, 25_000, 10_000),
            ("medium", RESNET_18, 2_500, 2_000),
            ("small", SLIM, 3_000, 2_000),
        )
    },
}


def __getattr__(name: str) -> Any:
    """Return the function that makes the task called `name`, as jobs name it."""
    if name in TASKS:
        return partial(task_of, name)
    raise AttributeError(name)
