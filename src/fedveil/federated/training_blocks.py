"""The keys of local training, and of the server's use of the reports."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field

from fedveil.protections.base import Weighting
from fedveil.protections.catalog import POSITIONS
from fedveil.protections.robust_combining import Combination
from fedveil.settings.settings import Block, Device, Under, or_function

_NOISED = [name for name, p in POSITIONS.items() if p.noised(p.settings_type())]
Schedule = Annotated[str, or_function("constant", "step", "cosine")]


class TrainingSettings(Block):
    """A client's training in a round."""

    train: Literal["all", "head"] = Field(
        "all",
        description="the part of the model that is trained and sent. all: the whole model. head: "
        "only the last linear layer. The layers before it do not change, and are computed once for "
        "each example",
    )
    epochs: int = Field(
        10,
        ge=1,
        description="local epochs in a round. The default is 1 under `privacy.unit: example`",
    )
    batch_size: int = Field(
        20,
        ge=1,
        description="examples in a local step. The last step may have fewer. Under `privacy.unit: "
        "example`, the sum over a sampled batch of any size is divided by this number",
    )
    sampling_rate: float | None = Field(
        None,
        gt=0,
        le=1,
        description="probability with which a client secretly draws each of its examples "
        "into a round's batch, under `privacy.unit: example`",
    )
    algorithm: Literal["fedavg", "scaffold", "fednova", "feddyn", "fedcm"] = Field(
        "fedavg",
        description="training algorithm. All but fedavg are for clients whose data differ "
        "(docs/algorithms.md)",
    )
    normal_steps: Annotated[float | None, Under("algorithm", "fednova")] = Field(
        None,
        gt=0,
        description="under `algorithm: fednova`: the public number of local steps. Each update is "
        "scaled to it, and the clients' true numbers stay secret",
    )
    dynamic: Annotated[float, Under("algorithm", "feddyn")] = Field(
        0.1, gt=0, description="alpha of `algorithm: feddyn`, the weight of its regularisation"
    )
    own_direction: Annotated[float, Under("algorithm", "fedcm")] = Field(
        0.1,
        gt=0,
        le=1,
        description="alpha of `algorithm: fedcm`: the weight of a client's own gradient in each "
        "step. The rest of the step follows the last round's aggregate",
    )
    optimizer: Literal["sgd", "adam", "adamw", "adagrad"] = Field(
        "sgd", description="the client's optimiser"
    )
    lr: float = Field(0.1, gt=0, description="the client's learning rate")
    lr_schedule: Schedule = Field(
        "constant",
        description="schedule of the learning rate over the rounds. step: multiplied by "
        "`lr_factor` after every `lr_rounds` rounds. cosine: falls to `lr_factor` * `lr` during "
        "`lr_rounds` rounds. Your own function gets the `round` (from 1) and `lr`, and returns the "
        "rate",
    )
    lr_rounds: Annotated[int, Under("lr_schedule", "step", "cosine")] = Field(
        10, ge=1, description="number of rounds in `lr_schedule: step` and `cosine`"
    )
    lr_factor: Annotated[float, Under("lr_schedule", "step", "cosine")] = Field(
        0.1, gt=0, le=1, description="factor of `lr_schedule: step` and `cosine`"
    )
    momentum: float = Field(0.0, ge=0, lt=1, description="momentum of `optimizer: sgd`")
    nesterov: bool = Field(False, description="if true, `momentum` is Nesterov's")
    weight_decay: float = Field(0.0, ge=0, description="L2 penalty on the local weights")
    gradient_norm: float | None = Field(
        None,
        gt=0,
        description="the gradient of each step is clipped to this L2 norm. null: no clipping",
    )
    class_weights: list[Annotated[float, Field(gt=0)]] | None = Field(
        None,
        min_length=2,
        description="weights of the classes in the loss, in their order, under `task: "
        "classification`; null: all 1. A step's loss is the weighted mean of its batch, as in "
        "torch. Under `privacy.unit: example` it is the weighted sum over `batch_size`, so that no "
        "example changes the weight of another",
    )
    proximal: float = Field(
        0.0,
        ge=0,
        description="FedProx's mu: how strongly a client's weights are pulled to the round's "
        "initial weights",
    )
    device: Device = Field("cpu", description="device on which clients train")
    precision: Literal["float32", "bfloat16"] = Field(
        "float32",
        description="number format of the clients' computation. float32: 32 bits everywhere, so "
        "convolutions on a GPU do not use TF32. bfloat16: mixed precision, "
        "with products and convolutions in 16 bits, while weights, gradients, "
        "optimiser and report stay float32",
    )
    engine: Literal["auto", "loop", "vmap"] = Field(
        "auto",
        description="loop: one client after another, with torch's autograd; vmap: many at "
        "once; auto: the fastest of vmap (on a GPU, if the model allows it), "
        "native threads (on a CPU, if the model is a plain chain of known "
        "layers) and loop",
    )

    def planned_rate(self, round: int) -> float | None:
        """Return the learning rate in round `round` (the first is 1).

        Returns None if a function of the user computes the rate.
        """
        past = (round - 1) / self.lr_rounds
        if self.lr_schedule == "step":
            return self.lr * self.lr_factor ** math.floor(past)
        if self.lr_schedule == "cosine":
            left = (1 + math.cos(math.pi * min(past, 1.0))) / 2
            return self.lr * (self.lr_factor + (1 - self.lr_factor) * left)
        return self.lr if self.lr_schedule == "constant" else None

    @property
    def keeps_mean(self) -> bool:
        """True if the server keeps the mean of all clients' states, as SCAFFOLD and FedDyn do."""
        return self.algorithm in ("scaffold", "feddyn")

    @property
    def corrects_steps(self) -> bool:
        """True if the algorithm adds a correction vector to the gradient in each local step."""
        return self.algorithm in ("scaffold", "feddyn", "fedcm")

    @property
    def sent_vectors(self) -> int:
        """The number of vectors that the server sends, each with one entry per model weight.

        It is 2 if a control variate or direction is sent with the weights, otherwise 1.
        """
        return 2 if self.algorithm in ("scaffold", "fedcm") else 1

    @property
    def reported_vectors(self) -> int:
        """The number of vectors in an update, each with one entry per model weight.

        It is 2 if a client also reports the change of its control variate, otherwise 1.
        """
        return 2 if self.algorithm == "scaffold" else 1

    def report_length(self, sent: int) -> int:
        """Return the length of a client's update if the server sends a vector of length `sent`."""
        return sent // self.sent_vectors * self.reported_vectors

    def sent_length(self, reported: int) -> int:
        """Return the length of the vector that clients get if an update has length `reported`."""
        return reported // self.reported_vectors * self.sent_vectors


class ServerSettings(Block):
    """The server's use of the aggregate. The defaults follow Reddi et al. (2021)."""

    weighting: Weighting = Field(
        "by_size",
        description="weights of the clients in the aggregate. by_size: their numbers of examples. "
        f"The default is equal under {', '.join(_NOISED)}, pw_encrypt with central_eps, "
        "`aggregation: median` and trimmed_mean (these refuse by_size), and `algorithm: scaffold` "
        "and feddyn. Otherwise it is by_size",
    )
    aggregation: Combination = Field(
        "mean",
        description="how the server combines reports. mean: their mean. median: the median of each "
        "entry. trimmed_mean: the mean of each entry without the extremes (`trim`). `norm_bound`: "
        "the mean of reports clipped to `norm_bound`. The last three need a server that sees "
        "single reports. median and trimmed_mean store all reports of a round",
    )
    trim: Annotated[float, Under("aggregation", "trimmed_mean")] = Field(
        0.1,
        gt=0,
        lt=0.5,
        description="share of the values that `trimmed_mean` removes at each end. Their number is "
        "rounded up",
    )
    norm_bound: Annotated[float, Under("aggregation", "norm_bound")] = Field(
        1.0, gt=0, description="reports are clipped to this L2 norm under `aggregation: norm_bound`"
    )
    optimizer: Literal["none", "momentum", "adagrad", "adam", "yogi"] = Field(
        "none", description="the server's optimiser; none is federated averaging"
    )
    lr: float = Field(1.0, gt=0, description="the server's learning rate")
    momentum: Annotated[float, Under("optimizer", "momentum")] = Field(
        0.9, ge=0, lt=1, description="momentum of `optimizer: momentum`"
    )
    beta1: Annotated[float, Under("optimizer", "adagrad", "adam", "yogi")] = Field(
        0.9, ge=0, lt=1, description="first-moment decay of adagrad, adam and yogi"
    )
    beta2: Annotated[float, Under("optimizer", "adam", "yogi")] = Field(
        0.99, ge=0, lt=1, description="second-moment decay of adam and yogi"
    )
    tau: Annotated[float, Under("optimizer", "adagrad", "adam", "yogi")] = Field(
        0.001,
        gt=0,
        description="constant in the denominator of adagrad, adam and yogi. A smaller value makes "
        "steps more adaptive",
    )

    @property
    def holds_reports(self) -> bool:
        """True if the server stores all reports of a round. All reports then have equal weights."""
        return self.aggregation in ("median", "trimmed_mean")
