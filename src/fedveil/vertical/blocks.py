"""The blocks and keys of a vertical job. `rules` checks how they combine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from fedveil.settings.checked_job import CheckedJob
from fedveil.settings.settings import Block, Choice, Device, RunName, or_function
from fedveil.vertical import task_settings


class TaskSettings(Choice):
    """The model, and each party's data. Blocks of other tasks are ignored."""

    BLOCKS: ClassVar[Mapping[str, str | None]] = {task: task for task in task_settings.TASKS}

    name: Annotated[str, or_function(*task_settings.TASKS)] = Field(
        "mnist_halves", description="a built-in task, or a function of yours that returns one"
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
        None, ge=0, description="L2 penalty; under adamw decoupled from the gradient"
    )
    warmup_steps: int | None = Field(
        None, ge=0, description="steps over which the learning rate rises linearly to `lr`"
    )
    gradient_norm: float | None = Field(
        None, gt=0, description="each step's gradient of a part is clipped to this L2 norm"
    )


class EmbeddingDPSettings(Block):
    """Settings of EmbeddingDP, which sends one randomised bit in place of each 32-bit value."""

    eps: float | None = Field(
        None,
        ge=0,
        description="a bit costs eps/2, as in MindSpore Federated; 0: pure noise; null: no noise",
    )
    gradient: Literal["straight_through", "none"] = Field(
        "straight_through",
        description="the gradient that is returned to the part: `straight_through` treats the "
        "bits as the values, `none` returns none",
    )
    reuse: bool = Field(
        False,
        description="send an example's first report again in every epoch, so that it pays "
        "once; the part learns in the first epoch only",
    )


class LabelDPSettings(Block):
    """Randomised labels, drawn once for each example."""

    eps: float = Field(
        1.0,
        ge=0,
        description="a label stays unchanged with probability e^eps / (e^eps + classes - 1)",
    )


class LabelProtectionSettings(Block):
    """Noise in the gradients that the leader returns, scaled to hide labels. It has no epsilon."""

    name: Literal["marvell", "max_norm"] = Field(
        "marvell",
        description="`marvell`: noise of this `power` that reveals least about two classes; "
        "`max_norm`: noise that makes all gradients as long as the longest, on "
        "average",
    )
    power: float = Field(
        16.0,
        gt=0,
        description="`marvell`: the noise's mean squared length, as a multiple of the squared "
        "distance between the classes' mean gradients",
    )


class PrivacySettings(Block):
    """The protection of everything that a party sends."""

    embedding_dp: EmbeddingDPSettings | None = Field(
        None,
        description="applied to outputs that are sent to another party and computed from the "
        "sender's own data",
    )
    label_dp: LabelDPSettings | None = Field(
        None, description="applied to the leader's labels before the loss"
    )
    label_protection: LabelProtectionSettings | None = Field(
        None, description="applied to the gradients that the leader sends back"
    )
    randomness: Literal["seeded", "secure"] = Field(
        "seeded",
        description="the randomness of a run in one process: `seeded` is repeatable and for "
        "simulation only; `secure` is the operating system's. Runs between "
        "machines always use `secure`",
    )
    max_epsilon: float | None = Field(
        None,
        gt=0,
        description="the run, or serving its model, ends before a step or an evaluation that "
        "would bring an example of this party above this epsilon. It covers values "
        "that this party sends, and labels under `label_dp`. Every party has its "
        "own limit",
    )
    delta: float = Field(
        1e-5, ge=0, lt=1, description="the delta at which epsilon is stated and limited"
    )


class PartPrivacySettings(Block):
    """The protection of one part's output when it is sent to another party."""

    embedding_dp: EmbeddingDPSettings | None = Field(
        None,
        description="replaces the job's `privacy.embedding_dp` for this part; null: unprotected",
    )


class PartSettings(Block):
    """One part of the model. Missing keys keep the values of the task's part with this name."""

    owner: str | None = Field(None, description="the party that computes it")
    inputs: list[str] | None = Field(
        None, description="its inputs: `data.COLUMN` of its owner, or earlier parts"
    )
    output: list[Annotated[int, Field(ge=1)]] | None = Field(
        None, description="the shape of its output for one example"
    )
    module: Annotated[str, or_function()] | None = Field(
        None,
        description="a function of yours that is called with the seed and returns an nn.Module; "
        "only the owner needs to have it",
    )
    dtype: Literal["float32", "bfloat16"] | None = Field(None, description="the type of its output")
    frozen: bool | None = Field(None, description="if true, its parameters are not trained")
    optimizer: OptimizerSettings = Field(
        default_factory=OptimizerSettings, description="overrides the job's `optimizer`, key by key"
    )
    privacy: PartPrivacySettings | None = Field(
        None, description="replaces the job's `privacy` for this part's output"
    )


class CompressionSettings(Block):
    """Rounds each value to a few bits, between the minimum and the maximum of its example."""

    bits: int = Field(8, ge=1, le=8, description="bits for each value; float32 has 32")
    forward: bool = Field(
        True, description="compress outputs, except those of EmbeddingDP, which have one bit"
    )
    backward: bool = Field(True, description="compress the gradients that are returned")
    error_feedback: bool = Field(
        False,
        description="add the rounding error of an example's last values to its next ones; the "
        "sender stores a float for every value of every example",
    )


class AlignmentSettings(Block):
    """How parties on different machines find their common examples."""

    by: Literal["intersection", "digests"] | None = Field(
        None,
        description="`intersection`: ids are blinded, and no party learns another's ids that "
        "it does not have itself; `digests`: fast, for ids that are no secret, "
        "since a digest can be undone by guessing; null: `digests` if the task "
        "numbers the examples itself, else `intersection`",
    )
    most_ids: int | None = Field(
        None,
        ge=1,
        description="the most ids that this party accepts from another, over all attempts of a "
        "run; the other learns of each id whether this party has it. null: four "
        "times the number of this party's own ids. Every party has its own limit",
    )
    least_common: int = Field(
        100,
        ge=0,
        description="under `intersection`, the smallest number of training and of test "
        "examples that all parties must have for this party to take part; 0 also "
        "allows a leader without ids to use all of them. Every party has its own "
        "limit",
    )


class CheckpointSettings(Block):
    """How often a run is saved. An interruption loses the work since the last save."""

    every_steps: int = Field(
        100, ge=1, description="all parties save after every N steps, and after the last"
    )


class RecordSettings(Block):
    """Which metrics are recorded, and who sees them."""

    every_steps: int = Field(10, ge=1, description="write a record after every N steps")
    followers_see_loss: bool = Field(True, description="send followers the loss of every step")


class EvaluationSettings(Block):
    """When to evaluate. Evaluations use the messages and the protection of training."""

    every_epochs: int | None = Field(
        1, ge=1, description="evaluate after every N epochs, and after the last; null: never"
    )


class ScoringSettings(Block):
    """Prepares the model for scoring new examples. Uses only training examples."""

    calibration: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="the share of the training examples that no step trains on. After the last "
        "step the leader fits the calibrator of probabilities to them, and chooses the "
        "threshold. It needs labels that are classes; null: probabilities are not calibrated",
    )
    threshold: Literal["balanced_accuracy", "f1"] = Field(
        "balanced_accuracy",
        description="with two classes: the second is predicted above a threshold, at which this "
        "metric is highest on the examples of `calibration`",
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
        description="the number of micro-batches in a step, so that one party computes while "
        "another's tensors travel; 1 gives the results of the unsplit model, to "
        "the bit",
    )
    device: Device = Field("cpu", description="the device of the parts on this machine")
    threads: int | None = Field(
        1,
        ge=1,
        description="torch's threads on this machine; another number may change the last bits "
        "of results; null: torch's default",
    )
    task: TaskSettings = Field(default_factory=TaskSettings)
    parts: dict[str, PartSettings] = Field(
        default_factory=dict, description="the parts in order, by name; empty: the task's parts"
    )
    optimizer: OptimizerSettings = Field(default_factory=OptimizerSettings)
    privacy: PrivacySettings = Field(default_factory=PrivacySettings)
    compression: CompressionSettings | None = Field(
        None,
        description="compression of the tensors sent; it saves bytes and protects nothing; "
        "null: none",
    )
    alignment: AlignmentSettings = Field(default_factory=AlignmentSettings)
    evaluation: EvaluationSettings = Field(default_factory=EvaluationSettings)
    scoring: ScoringSettings = Field(default_factory=ScoringSettings)
    record: RecordSettings = Field(default_factory=RecordSettings)
    checkpoint: CheckpointSettings = Field(default_factory=CheckpointSettings)
