"""Local training, and the server's use of the reports."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fedveil.protections.base import Weighting
from fedveil.protections.catalog import POSITIONS
from fedveil.protections.robust_sum import Combination
from fedveil.settings.settings import Block, Device, Under, or_function

_NOISED = [name for name, p in POSITIONS.items() if p.noised(p.settings_type())]
Schedule = Annotated[str, or_function("constant", "step", "cosine")]


class TrainingSettings(Block):
    """A client's training in a round."""

    train: Literal["all", "head"] = Field(
        "all",
        description="what is trained, and travels: all of the model; or its head, the last linear "
        "layer, alone: what comes before it is fixed, and is computed once for every example",
    )
    epochs: int = Field(
        10, ge=1, description="local epochs a round; left out under `privacy.unit: example`: 1"
    )
    batch_size: int = Field(
        20,
        ge=1,
        description="examples in a local step; the last may be short. Under `privacy.unit: "
        "example`: what the sum over the sampled batch is divided by, however many it holds",
    )
    sampling_rate: float | None = Field(
        None,
        gt=0,
        le=1,
        description="probability with which a client takes each of its examples into a round's "
        "batch, secretly; under `privacy.unit: example`",
    )
    algorithm: Literal["fedavg", "scaffold", "fednova", "feddyn"] = Field(
        "fedavg", description="how clients that differ are kept together: docs/algorithms.md"
    )
    normal_steps: Annotated[float | None, Under("algorithm", "fednova")] = Field(
        None,
        gt=0,
        description="under `algorithm: fednova`: the number of local steps that every client's "
        "update is scaled to, whatever it took; it is public, and the clients' own are not told",
    )
    dynamic: Annotated[float, Under("algorithm", "feddyn")] = Field(
        0.1, gt=0, description="alpha of `algorithm: feddyn`, the weight of its regularisation"
    )
    optimizer: Literal["sgd", "adam", "adamw", "adagrad"] = Field(
        "sgd", description="the client's optimiser"
    )
    lr: float = Field(0.1, gt=0, description="the client's learning rate")
    lr_schedule: Schedule = Field(
        "constant",
        description="how the rate changes from round to round; step: times `lr_factor` after "
        "every `lr_rounds` rounds; cosine: down to `lr_factor` times `lr` over `lr_rounds` rounds; "
        "or a function of yours that gives a round's rate, of `round`, from 1, and `lr`",
    )
    lr_rounds: Annotated[int, Under("lr_schedule", "step", "cosine")] = Field(
        10, ge=1, description="rounds of `lr_schedule: step` and `cosine`"
    )
    lr_factor: Annotated[float, Under("lr_schedule", "step", "cosine")] = Field(
        0.1, gt=0, le=1, description="factor of `lr_schedule: step` and `cosine`"
    )
    momentum: float = Field(0.0, ge=0, lt=1, description="momentum of `optimizer: sgd`")
    weight_decay: float = Field(0.0, ge=0, description="L2 penalty of the local weights")
    gradient_norm: float | None = Field(
        None, gt=0, description="L2 norm that the gradient of each step is shortened to; null: none"
    )
    class_weights: list[Annotated[float, Field(gt=0)]] | None = Field(
        None,
        min_length=2,
        description="what the loss of each class counts times, in their order, under "
        "`task: classification`; null: once",
    )
    proximal: float = Field(
        0.0,
        ge=0,
        description="FedProx's mu: what pulls a client's weights back to those of the round",
    )
    device: Device = Field("cpu", description="where clients train")
    precision: Literal["float32", "bfloat16"] = Field(
        "float32",
        description="what clients compute in; bfloat16: mixed precision, products and convolutions "
        "in 16 bits, while weights, gradients, optimiser and report stay float32",
    )
    engine: Literal["auto", "loop", "vmap"] = Field(
        "auto",
        description="loop: clients one after another, by torch's autograd; vmap: many at once; "
        "auto: the fastest, which is vmap on a GPU where the model can, and on a CPU native code "
        "on threads where the model is a plain chain of known layers; otherwise loop",
    )


class ServerSettings(Block):
    """The server's use of the aggregate. The defaults follow Reddi et al. (2021)."""

    weighting: Weighting = Field(
        "by_size",
        description="how clients count in the aggregate; left out: by_size, or equal under "
        f"{', '.join(_NOISED)}, with pw_encrypt's central_eps and under `aggregation: median` and "
        "trimmed_mean, where by_size is an error",
    )
    aggregation: Combination = Field(
        "mean",
        description="what the server makes of reports: their mean; or, where it sees each of them, "
        "entry by entry their median, or their mean without the extremes (`trim`), for which it "
        "holds all of a round's reports; or their mean, each shortened to `norm_bound`",
    )
    trim: Annotated[float, Under("aggregation", "trimmed_mean")] = Field(
        0.1, gt=0, lt=0.5, description="share left out at each end under `trimmed_mean`, rounded up"
    )
    norm_bound: Annotated[float, Under("aggregation", "norm_bound")] = Field(
        1.0, gt=0, description="L2 norm of a report under `aggregation: norm_bound`"
    )
    optimizer: Literal["none", "momentum", "adam", "yogi"] = Field(
        "none", description="the server's optimiser; none is federated averaging"
    )
    lr: float = Field(1.0, gt=0, description="the server's learning rate")
    momentum: Annotated[float, Under("optimizer", "momentum")] = Field(
        0.9, ge=0, lt=1, description="momentum of `optimizer: momentum`"
    )
    beta1: Annotated[float, Under("optimizer", "adam", "yogi")] = Field(
        0.9, ge=0, lt=1, description="first-moment decay of adam and yogi"
    )
    beta2: Annotated[float, Under("optimizer", "adam", "yogi")] = Field(
        0.99, ge=0, lt=1, description="second-moment decay of adam and yogi"
    )
    tau: Annotated[float, Under("optimizer", "adam", "yogi")] = Field(
        0.001, gt=0, description="degree of adaptivity of adam and yogi"
    )

    @property
    def holds_reports(self) -> bool:
        """True if the server stores all of a round's reports. They then count equally."""
        return self.aggregation in ("median", "trimmed_mean")
