"""Small models, data and a protection that the tests of the simulator are run with."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from fedveil.entropy import Seeded
from fedveil.errors import ReportRejected
from fedveil.message import Message
from fedveil.privacy.loss import PrivacyLoss
from fedveil.protections.base import (
    Aggregate,
    ClientContext,
    ClientId,
    RoundContext,
    Spending,
    State,
    Update,
)

CLASSES = 3
FEATURES = 6


def data(examples: int = 240) -> dict[str, Any]:
    """Three noisy clusters, and an owner for every training example."""
    draw = Seeded(0, "test data").generator()
    centres = draw.normal(size=(CLASSES, FEATURES))
    y = draw.integers(0, CLASSES, examples + 90)
    x = (centres[y] + 0.7 * draw.normal(size=(len(y), FEATURES))).astype(np.float32)
    return {
        "x_train": x[:examples],
        "y_train": y[:examples],
        "x_test": x[examples:],
        "y_test": y[examples:],
        "client_ids": np.arange(examples) % 8,
    }


def other_data() -> dict[str, Any]:
    """The same shapes, other values."""
    parts = data()
    parts["x_train"] = parts["x_train"] + 1
    return parts


def net() -> nn.Module:
    """A net with a tensor of every fate."""
    return nn.Sequential(
        nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, CLASSES)
    )


def plain() -> nn.Module:
    """A net in which examples do not meet."""
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, CLASSES))


class Picky(nn.Module):
    """Raises for clients whose first batch begins with a certain label's cluster."""

    def __init__(self, limit: float) -> None:
        super().__init__()
        self.linear = nn.Linear(FEATURES, CLASSES)
        self.limit = limit

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and float(x[0, 0]) > self.limit:
            raise RuntimeError("these examples are not to my taste")
        return self.linear(x)


def picky() -> nn.Module:
    """Trains on some clients only."""
    return Picky(0.5)


def hopeless() -> nn.Module:
    """Trains on no client."""
    return Picky(-1e9)


class Diverging(nn.Module):
    """Its loss is NaN in training."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * (float("nan") if self.training and x[0, 0] > 0.5 else 1.0)


def diverging() -> nn.Module:
    """Gives some clients an update that is not finite."""
    return Diverging()


class Warning_(nn.Module):
    """Warns."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            warnings.warn("mind the step", stacklevel=1)
        return self.linear(x)


def warning() -> nn.Module:
    """Warns while it trains."""
    return Warning_()


class Suicidal(nn.Module):
    """Ends its own process, as a crash in native code would, when the file named by it exists."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and os.path.exists(os.environ.get("FEDVEIL_TEST_CRASH", "")):  # noqa: PTH110
            os.abort()
        return self.linear(x)


def suicidal() -> nn.Module:
    """Kills its worker on demand."""
    return Suicidal()


def lazy() -> nn.Module:
    """Has parameters without a shape."""
    return nn.LazyLinear(CLASSES)


def unstable() -> nn.Module:
    """Another model in every process."""
    net = nn.Linear(FEATURES, CLASSES)
    with torch.no_grad():
        net.bias.fill_(float(os.getpid()))
    return net


class TwoPhases:
    """A protection in two phases: clients say hello, and then send what the server asks for.

    The server's second message tells each client a factor of its own; the client checks that it
    is the one that it made up in the first phase, which it can only if it is the same object.
    """

    adaptive = False

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension

    def initial_state(self) -> State:
        return {"rounds": 0}

    def spending(self, state: State) -> Sequence[Spending]:
        return [Spending(PrivacyLoss(0.5, per="update"))]

    def server_round(self, context: RoundContext) -> TwoPhasesServer:
        return TwoPhasesServer(context)

    def client_round(self, context: ClientContext) -> TwoPhasesClient:
        return TwoPhasesClient(context)


class TwoPhasesServer:
    def __init__(self, context: RoundContext) -> None:
        self.context = context
        self.secrets: dict[ClientId, int] = {}
        self.sum = np.zeros(len(context.model))
        self.count = 0
        self.phase = "advertise"

    def opening(self) -> Message:
        return {"round": self.context.round, "phase": "advertise"}

    def receive(self, client: ClientId, message: Message) -> None:
        if self.phase == "advertise":
            self.secrets[client] = int(message["secret"])  # type: ignore[arg-type]
            return
        if message["secret"] != self.secrets.get(client):
            raise ReportRejected(client, "another client's half")
        self.sum += message["update"]  # type: ignore[arg-type]
        self.count += 1

    def advance(self) -> Mapping[ClientId, Message] | None:
        if self.phase == "masked":
            return None
        self.phase = "masked"
        return {
            client: {"phase": "masked", "yours": secret} for client, secret in self.secrets.items()
        }

    def merge(self, other: Any) -> None:
        raise NotImplementedError

    def aggregate(self) -> Aggregate:
        state = {"rounds": int(self.context.state["rounds"]) + 1}  # type: ignore[arg-type]
        return Aggregate(self.sum / self.count, self.count, state)


class TwoPhasesClient:
    def __init__(self, context: ClientContext) -> None:
        self.secret = context.entropy.integer(1 << 60)

    def wants_update(self, message: Message) -> bool:
        return message["phase"] == "masked"

    def respond(self, message: Message, update: Update | None) -> Message:
        if update is None:
            return {"secret": self.secret}
        assert message["yours"] == self.secret
        return {"secret": self.secret, "update": update}


def make_two_phases(job: object, dimension: int) -> TwoPhases:
    """Stands in for the assembly's own."""
    return TwoPhases(dimension)
