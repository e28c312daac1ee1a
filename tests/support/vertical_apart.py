"""Tasks for the tests of parties on machines of their own, here threads or processes."""

from __future__ import annotations

from torch import nn

from fedveil.vertical.split import Optimizer, Part, SplitModel
from fedveil.vertical.task import initial
from vertical_parts import CLASSES, FEATURES, Bottoms, Joint, UShape

#: How wide each follower's bottom is; a test makes it another where it wants another model.
WIDTH = 8


class Wide(Bottoms):
    """As `Bottoms`, with bottoms of a width that a job does not tell."""

    def split_model(self) -> SplitModel:
        def bottom(part: str) -> nn.Module:
            return initial(self.seed, part, lambda: nn.Sequential(nn.Linear(3, WIDTH), nn.ReLU()))

        step = Optimizer("sgd", lr=0.2, momentum=0.5)
        top = initial(self.seed, "top", lambda: Joint(2 * WIDTH, CLASSES))
        return SplitModel(
            [
                Part("left", "bank", ("data.x",), (WIDTH,), bottom("left"), optimizer=step),
                Part("right", "shop", ("data.x",), (WIDTH,), bottom("right"), optimizer=step),
                Part("top", "lead", ("left", "right"), (CLASSES,), top, optimizer=step),
            ],
            leader="lead",
        )


class Plain(UShape):
    """A U-shape without dropout: parties that are threads would share torch's one generator."""

    def split_model(self) -> SplitModel:
        step = Optimizer("adam", lr=0.01)
        backbone = initial(
            self.seed,
            "backbone",
            lambda: nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU()),
        )
        embedding = initial(self.seed, "embedding", lambda: nn.Linear(FEATURES, 8))
        head = initial(self.seed, "head", lambda: nn.Linear(8, CLASSES))
        return SplitModel(
            [
                Part("embedding", "lead", ("data.x",), (8,), embedding, optimizer=step),
                Part("backbone", "bank", ("embedding",), (8,), backbone, optimizer=step),
                Part("head", "lead", ("backbone",), (CLASSES,), head, optimizer=step),
            ],
            leader="lead",
        )


def bottoms(seed: int) -> Wide:
    return Wide(seed)


def u_shape(seed: int) -> Plain:
    return Plain(seed)
