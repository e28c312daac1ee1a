"""The blocks and keys of a vertical job. `rules` checks how they combine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from fedveil.mechanisms.embedding_dp import MAX_EPS
from fedveil.mechanisms.exact.real_probabilities import MAX_EXPONENT
from fedveil.settings.checked_job import CheckedJob
from fedveil.settings.settings import Block, Choice, Device, RunName, or_function
from fedveil.vertical import task_settings


class TaskSettings(Choice):
    """The task: the model, and each party's data. Settings of other tasks have no effect."""

    BLOCKS: ClassVar[Mapping[str, str | None]] = {task: task for task in task_settings.TASKS}

    name: Annotated[str, or_function(*task_settings.TASKS)] = Field(
        "mnist_halves", description="a built-in task, or your own function that returns a task"
    )
    mnist_halves: task_settings.HalvesSettings = Field(
        default_factory=task_settings.HalvesSettings, description="settings of mnist_halves"
    )
    tabular: task_settings.TabularSettings = Field(
        default_factory=task_settings.TabularSettings, description="settings of tabular"
    )
    tables: task_settings.TablesSettings = Field(
        default_factory=task_settings.TablesSettings, description="settings of tables"
    )
    pangu: task_settings.PanguSettings = Field(
        default_factory=task_settings.PanguSettings, description="settings of pangu"
    )


class OptimizerSettings(Block):
    """The optimiser of a part's parameters. null means the task's value."""

    name: Literal["sgd", "adam", "adamw"] | None = Field(
        None, description="the torch optimiser of that name"
    )
    lr: float | None = Field(None, gt=0, description="the learning rate")
    momentum: float | None = Field(None, ge=0, lt=1, description="momentum of `name: sgd`")
    weight_decay: float | None = Field(
        None,
        ge=0,
        description="L2 penalty on the weights. Under adamw it is decoupled from the gradient",
    )
    warmup_steps: int | None = Field(
        None, ge=0, description="steps over which the learning rate rises linearly to `lr`"
    )
    decay_steps: int | None = Field(
        None,
        ge=1,
        description="steps after the warm-up over which the learning rate falls linearly to 0. It "
        "then stays 0",
    )
    gradient_norm: float | None = Field(
        None, gt=0, description="the gradient of the part in each step is clipped to this L2 norm"
    )


class EmbeddingDPSettings(Block):
    """Settings of EmbeddingDP, which sends one randomised bit in place of each 32-bit value."""

    eps: float | None = Field(
        None,
        ge=0,
        le=MAX_EPS,
        description="each bit costs the epsilon eps/2, as in MindSpore Federated. 0: only noise. "
        "null: no noise",
    )
    gradient: Literal["straight_through", "none"] = Field(
        "straight_through",
        description="the gradient that is returned to the part. `straight_through`: that of the "
        "bits, as if they were the values. `none`: no gradient",
    )
    reuse: bool = Field(
        False,
        description="if true, an example's first report is sent again in every epoch, so the "
        "example is charged only once. The part then learns only in the first epoch",
    )


class LabelDPSettings(Block):
    """Randomised labels, drawn once for each example."""

    eps: float = Field(
        1.0,
        ge=0,
        le=MAX_EXPONENT,
        description="a label stays unchanged with probability e^eps / (e^eps + classes - 1)",
    )


class LabelProtectionSettings(Block):
    """Noise in the gradients that the leader returns, scaled to hide labels. It has no epsilon."""

    name: Literal["marvell", "max_norm"] = Field(
        "marvell",
        description="`marvell`: the noise with the given `power` that hides two classes best. "
        "`max_norm`: noise that makes all gradients equally long on average",
    )
    power: float = Field(
        16.0,
        gt=0,
        description="under `marvell`: mean squared length of the noise, as a multiple of the "
        "squared distance between the classes' mean gradients",
    )


class PrivacySettings(Block):
    """The protection of everything that a party sends."""

    embedding_dp: EmbeddingDPSettings | None = Field(
        None,
        description="sends randomised bits in place of outputs that a party computes from its own "
        "data and sends to another party",
    )
    label_dp: LabelDPSettings | None = Field(
        None, description="randomises the leader's labels before training"
    )
    label_protection: LabelProtectionSettings | None = Field(
        None, description="noise for the gradients that the leader returns"
    )
    randomness: Literal["seeded", "secure"] = Field(
        "seeded",
        description="source of randomness in a run in one process. `seeded`: repeatable, only for "
        "simulation. `secure`: the operating system. Runs between machines always use `secure`",
    )
    max_epsilon: float | None = Field(
        None,
        gt=0,
        description="the run, or serving its model, ends before a step or an evaluation that would "
        "bring an example of this party above this epsilon. The epsilon covers the example's own "
        "values that this party sends, and labels under `label_dp`. It does not cover what the "
        "example changes in the later values of others by training a part. Every party has its "
        "own limit",
    )
    delta: float = Field(
        1e-5, ge=0, lt=1, description="the delta at which epsilon is stated and limited"
    )

    @property
    def protects_labels(self) -> bool:
        return self.label_dp is not None or self.label_protection is not None


class PartPrivacySettings(Block):
    """The protection of one part's output when it is sent to another party."""

    embedding_dp: EmbeddingDPSettings | None = Field(
        None,
        description="replaces the job's `privacy.embedding_dp` for this part. null: no protection",
    )


class PartSettings(Block):
    """One part of the model. Missing keys keep the values of the task's part with this name."""

    owner: str | None = Field(None, description="the party that computes the part")
    inputs: list[str] | None = Field(
        None,
        description="the part's inputs: `data.COLUMN` for a column of its owner, or names of "
        "earlier parts",
    )
    output: list[Annotated[int, Field(ge=1)]] | None = Field(
        None, description="the shape of the part's output for one example"
    )
    module: Annotated[str, or_function()] | None = Field(
        None,
        description="your own function that gets the seed and returns an nn.Module. Only the owner "
        "needs to have it",
    )
    dtype: Literal["float32", "bfloat16"] | None = Field(
        None, description="the number type of the part's output"
    )
    frozen: bool | None = Field(None, description="if true, the part's parameters are not trained")
    optimizer: OptimizerSettings = Field(
        default_factory=OptimizerSettings, description="overrides the job's `optimizer`, key by key"
    )
    privacy: PartPrivacySettings | None = Field(
        None, description="replaces the job's `privacy` for this part's output"
    )


class CompressionSettings(Block):
    """Rounds each value to a few bits, between the minimum and the maximum of its example."""

    bits: int = Field(8, ge=1, le=8, description="number of bits for each value. float32 has 32")
    forward: bool = Field(
        True, description="compress outputs, except those of EmbeddingDP, which have one bit"
    )
    backward: bool = Field(True, description="compress the gradients that are returned")
    error_feedback: bool = Field(
        False,
        description="if true, the rounding errors of an example's values are added to its values "
        "in the next epoch. The sender stores a float for each value of each example",
    )


class AlignmentSettings(Block):
    """How parties on different machines find their common examples."""

    by: Literal["intersection", "digests"] | None = Field(
        None,
        description="how parties find their common ids. `intersection`: ids are blinded, and a "
        "party learns only ids that it has itself. `digests`: fast, only for ids that are not "
        "secret, because `digests` can be reversed by guessing. null: `digests` if the task "
        "numbers the examples itself, else `intersection`",
    )
    most_ids: int | None = Field(
        None,
        ge=1,
        description="largest number of ids that this party accepts from another over all attempts "
        "of a run. The other party learns for each id if this party has it. null: four times the "
        "number of this party's own ids. Under `digests`, it limits each attempt alone: more "
        "would not help, because a leader tests guesses without sending them. Every party has its "
        "own limit",
    )
    least_common: int = Field(
        100,
        ge=0,
        description="under `intersection`: this party takes part only if the parties have at least "
        "this number of common training examples, and of common test examples. 0 also allows a "
        "leader without ids to use all examples. Every party has its own limit",
    )


class CheckpointSettings(Block):
    """How often a run is saved. An interrupted run loses its work since the last save."""

    every_steps: int = Field(
        100, ge=1, description="all parties save after every N steps, and after the last step"
    )


class RecordSettings(Block):
    """Which metrics are recorded, and who sees them."""

    every_steps: int = Field(10, ge=1, description="write a record after every N steps")
    followers_see_loss: bool | None = Field(
        None,
        description="if true, the leader sends the loss of every step to the followers. The losses "
        "reveal labels: a follower knows the examples of each step. null: true, unless "
        "`privacy.label_protection` is set",
    )


class EvaluationSettings(Block):
    """When to evaluate. In an evaluation, outputs are sent and protected as in training."""

    every_epochs: int | None = Field(
        1, ge=1, description="evaluate after every N epochs, and after the last epoch. null: never"
    )


class ScoringSettings(Block):
    """Calibration of the predicted probabilities, on training examples that are set aside."""

    calibration: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="share of the training examples that is set aside and not trained on. After "
        "the last step, the leader uses it to calibrate the predicted probabilities and to choose "
        "the threshold. Only for labels that are classes. null: no calibration",
    )
    threshold: Literal["balanced_accuracy", "f1"] = Field(
        "balanced_accuracy",
        description="with two classes, the second class is predicted above a threshold. The "
        "threshold maximises this metric on the examples of `calibration`",
    )


class VerticalFields(CheckedJob):
    """All keys of a vertical job. `VerticalJob` adds the rules for their combinations."""

    name: RunName = Field("vertical-digits", description="the run's name")
    seed: int = Field(0, ge=0, description="determines all randomness of a seeded run")
    epochs: int = Field(10, ge=1, description="the number of passes over the training examples")
    batch_size: int = Field(
        32, ge=1, description="examples in a step; the last step of an epoch may have fewer"
    )
    in_flight: int = Field(
        1,
        ge=1,
        description="number of micro-batches in a step. With several, one party computes while "
        "another's tensors travel. With 1, the results are bit-identical to those of the unsplit "
        "model",
    )
    device: Device = Field("cpu", description="the device of the parts on this machine")
    threads: int | None = Field(
        1,
        ge=1,
        description="number of torch's threads on this machine. Another number may change the last "
        "bits of the results. null: torch's default",
    )
    task: TaskSettings = Field(default_factory=TaskSettings)
    parts: dict[str, PartSettings] = Field(
        default_factory=dict,
        description="the parts of the model in order, by name. Empty: the task's parts",
    )
    optimizer: OptimizerSettings = Field(default_factory=OptimizerSettings)
    privacy: PrivacySettings = Field(default_factory=PrivacySettings)
    compression: CompressionSettings | None = Field(
        None,
        description="compression of the sent tensors. It saves bytes and protects nothing. null: "
        "none",
    )
    alignment: AlignmentSettings = Field(default_factory=AlignmentSettings)
    evaluation: EvaluationSettings = Field(default_factory=EvaluationSettings)
    scoring: ScoringSettings = Field(default_factory=ScoringSettings)
    record: RecordSettings = Field(default_factory=RecordSettings)
    checkpoint: CheckpointSettings = Field(default_factory=CheckpointSettings)

    @property
    def tells_loss(self) -> bool:
        """True if the leader sends the loss of every step to the followers."""
        asked = self.record.followers_see_loss
        return self.privacy.label_protection is None if asked is None else asked
