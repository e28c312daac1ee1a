"""Small models, data and a protection for the tests of the simulator."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import nn

from fedveil.base.message import Message, take, take_array
from fedveil.entropy import Seeded
from fedveil.errors import MessageInvalid
from fedveil.privacy.loss import PrivacyLoss
from fedveil.protections.base import (
    Aggregate,
    ClientContext,
    Protection,
    RoundContext,
    Settings,
    Spending,
    State,
    Update,
)
from fedveil.protections.phased import PhasedClient, PhasedRound
from fedveil.rounds.outcomes import ClientId

CLASSES = 3
FEATURES = 6


def data(examples: int = 240) -> dict[str, Any]:
    """Return three noisy clusters, with an owner for every training example."""
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
    """Return data of the same shapes with other values."""
    parts = data()
    parts["x_train"] = parts["x_train"] + 1
    return parts


def bytes_data() -> dict[str, Any]:
    """Return the data as whole numbers of 8 bits."""
    made = data()
    return made | {name: np.rint(9 * made[name]).astype(np.int8) for name in ("x_train", "x_test")}


def floats_data() -> dict[str, Any]:
    """Return the 8-bit data as floats."""
    made = bytes_data()
    return made | {name: made[name].astype(np.float32) for name in ("x_train", "x_test")}


def wide() -> nn.Module:
    """Return one layer of 112 parameters, without buffers."""
    return nn.Linear(FEATURES, 16)


def wider() -> nn.Module:
    """Return one layer of 1,400 parameters."""
    return nn.Linear(FEATURES, 200)


class Scaled(nn.Module):
    """Scores that are the first entries of the input, each times a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.factors = nn.Parameter(torch.linspace(0.5, 1.5, CLASSES))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, :CLASSES] * self.factors


def few() -> nn.Module:
    """Return a model of 3 parameters, of which one report can reveal a lot."""
    return Scaled()


def net() -> nn.Module:
    """Return a net with a tensor of every treatment."""
    return nn.Sequential(
        nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, CLASSES)
    )


def plain() -> nn.Module:
    """Return a net in which examples do not influence each other."""
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, CLASSES))


class Slow(nn.Module):
    """A plain net that takes its time, so that a test can end a process in the middle of a round.

    It sleeps in each training step.
    """

    def __init__(self) -> None:
        super().__init__()
        self.net = plain()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            time.sleep(0.03)
        out: torch.Tensor = self.net(x)
        return out


def slow_plain() -> nn.Module:
    return Slow()


class Backbone(nn.Module):
    """Fixed layers that count their examples, and a head. The same in every process."""

    saw = staticmethod(lambda examples: None)

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.Tanh())
        self.head = nn.Linear(8, CLASSES)
        self.factor = factor
        self.features.register_forward_hook(lambda module, x, y: type(self).saw(len(y)))
        values = Seeded(0, "backbone").generator()
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.from_numpy(values.normal(size=parameter.shape)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.factor * self.head(self.features(x))


def backbone() -> nn.Module:
    """Return a model whose head is identifiable."""
    return Backbone()


def sharpened_backbone() -> nn.Module:
    """Return a backbone that also scales its head's scores."""
    return Backbone(factor=2.0)


def linear() -> nn.Module:
    """Return one layer, in which a large weight meets its feature alone."""
    return nn.Linear(FEATURES, CLASSES)


def one_clients_data(*, marked: bool = False) -> dict[str, Any]:
    """Return a client's examples, all with 0 in the first feature. If `marked`, one has 4."""
    parts = data(40)
    del parts["client_ids"]
    parts["x_train"][:, 0] = 0
    if marked:
        parts["x_train"][17, 0] = 4
    return parts


def marked_data() -> dict[str, Any]:
    """Return the client's examples with the marked one."""
    return one_clients_data(marked=True)


def no_data_today() -> dict[str, Any]:
    """End the process, as a client's own function."""
    raise SystemExit("not today")


def eager_data() -> dict[str, Any]:
    """Return a client's examples that every picky model rejects."""
    parts = one_clients_data()
    parts["x_train"][:, 0] = 1
    return parts


def labels_beyond() -> dict[str, Any]:
    """Return a client's examples with a label that the others do not have."""
    parts = one_clients_data()
    parts["y_train"][0] = CLASSES
    return parts


class Picky(nn.Module):
    """Raises for clients whose first batch begins with an example of a certain cluster."""

    def __init__(self, limit: float) -> None:
        super().__init__()
        self.linear = nn.Linear(FEATURES, CLASSES)
        self.limit = limit

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and float(x[0, 0]) > self.limit:
            raise RuntimeError("these examples are not to my taste")
        return self.linear(x)


def picky() -> nn.Module:
    """Return a model that trains on some clients only."""
    return Picky(0.5)


def hopeless() -> nn.Module:
    """Return a model that trains on no client."""
    return Picky(-1e9)


class Diverging(nn.Module):
    """A model whose loss is NaN in training for some batches."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * (float("nan") if self.training and x[0, 0] > 0.5 else 1.0)


def diverging() -> nn.Module:
    """Return a model that gives some clients a non-finite update."""
    return Diverging()


class NowhereFinite(Diverging):
    """A model whose loss is NaN for every batch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * (float("nan") if self.training else 1.0)


def nowhere_finite() -> nn.Module:
    """Return a model that gives no client a finite update."""
    return NowhereFinite()


class Warning_(nn.Module):
    """A model that warns."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            warnings.warn("mind the step", stacklevel=1)
        return self.linear(x)


def warning() -> nn.Module:
    """Return a model that warns while it trains."""
    return Warning_()


class Suicidal(nn.Module):
    """Ends its own process, like a crash in native code, if the file that it names exists.

    It may also be told to take its time, so that a run is not over before a test acts on it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            time.sleep(float(os.environ.get("FEDVEIL_TEST_PAUSE_S", "0")))
            if os.path.exists(os.environ.get("FEDVEIL_TEST_CRASH", "")):  # noqa: PTH110
                os.abort()
        return self.linear(x)


def suicidal() -> nn.Module:
    """Return a model that kills its worker on demand."""
    return Suicidal()


def lazy() -> nn.Module:
    """Return a model with parameters without a shape."""
    return nn.LazyLinear(CLASSES)


def unstable() -> nn.Module:
    """Return another model in every process."""
    net = nn.Linear(FEATURES, CLASSES)
    with torch.no_grad():
        net.bias.fill_(float(os.getpid()))
    return net


class TwoPhasesSettings(Settings):
    """The one parameter of the protection."""

    factor: float = Field(1.0, gt=0, description="what updates are multiplied by")


class TwoPhases(Protection):
    """A user's own protection: clients say hello, and then send what the server asks for.

    The server's second message contains each client's own number. The client checks that it is the
    one from the first phase, which it can only if its half of the protocol is still alive.
    """

    settings_type = TwoPhasesSettings
    perturbs = False
    phases = ("hello", "tell")
    trains = "tell"

    def initial_state(self) -> State:
        return {"rounds": 0}

    def spending(self, state: State) -> Sequence[Spending]:
        return [Spending(PrivacyLoss(0.5, per="update"))]

    def server_round(self, context: RoundContext) -> TwoPhasesServer:
        return TwoPhasesServer(context, self.flow)

    def client_round(self, context: ClientContext) -> TwoPhasesClient:
        return TwoPhasesClient(context, self)


class TwoPhasesServer(PhasedRound):
    def __init__(self, context: RoundContext, flow: Sequence[str]) -> None:
        super().__init__(context, flow)
        self.secrets: dict[ClientId, int] = {}
        self.sum = np.zeros(len(context.model))

    def _fold(self, client: ClientId, message: Message) -> None:
        if self.phase == "hello":
            self.secrets[client] = take(message, "secret", int)
        elif message["secret"] != self.secrets[client]:
            raise MessageInvalid("another client's half")
        else:
            self.sum += take_array(message, "update", "float32", self.sum.shape)

    def _ask(self, answered: Sequence[ClientId]) -> Mapping[ClientId, Message]:
        return {client: self._words(yours=self.secrets[client]) for client in answered}

    def _aggregate(self) -> Aggregate:
        state = {"rounds": int(self._context.state["rounds"]) + 1}  # type: ignore[arg-type]
        return Aggregate(self.sum / self.reports, self.reports, state)


class TwoPhasesClient(PhasedClient):
    def __init__(self, context: ClientContext, protection: Protection) -> None:
        super().__init__(context, protection)
        self.secret = context.entropy.integer(1 << 60)

    def keep(self) -> State:
        kept = super().keep()
        return {**kept, "secret": self.secret} if kept else {}

    def take_up(self, kept: State) -> None:
        super().take_up(kept)
        self.secret = take(kept, "secret", int)

    def _answer(self, phase: str, message: Message, update: Update | None) -> Message:
        if update is None:
            return {"secret": self.secret}
        assert message["yours"] == self.secret
        factor = np.float32(self.protection.settings.factor)
        return {"secret": self.secret, "update": factor * update}
