"""What a vertical run is: typed settings, all of them checked before anything starts.

`VerticalJob()` is the default job; `VerticalJob.load` reads one from YAML. The same file serves
every party; what a party must not know of another (its data, its modules) is not in it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, model_validator

from fedveil.federated.job import Block, Device, RunName
from fedveil.own_code import is_function
from fedveil.protections.base import Settings
from fedveil.settings import allowed, yaml_file
from fedveil.settings.allowed import TextRule
from fedveil.settings.checked_job import CheckedJob
from fedveil.tasks.task_settings import (
    HalvesSettings,
    PanguSettings,
    TablesSettings,
    TabularSettings,
)
from fedveil.vertical import vertical_rules

#: Built-in task -> the block that holds its settings.
TASKS = ("mnist_halves", "tabular", "tables", "pangu")

TaskName = Annotated[str, AfterValidator(TextRule(TASKS, "package.module:function", is_function))]
ModuleName = Annotated[str, AfterValidator(TextRule((), "package.module:function", is_function))]


class TaskSettings(Block):
    """What is trained, and who holds what; the unused blocks wait."""

    name: TaskName = Field(
        "mnist_halves", description="a built-in task, or a function of yours that returns one"
    )
    mnist_halves: HalvesSettings = Field(
        default_factory=HalvesSettings, description="settings of mnist_halves"
    )
    tabular: TabularSettings = Field(
        default_factory=TabularSettings, description="settings of tabular"
    )
    tables: TablesSettings = Field(default_factory=TablesSettings, description="settings of tables")
    pangu: PanguSettings = Field(default_factory=PanguSettings, description="settings of pangu")

    @model_validator(mode="before")
    @classmethod
    def _opened(cls, data: Any) -> Any:
        if isinstance(data, str):
            return cls.shorthand({}, data)
        if isinstance(data, Mapping):
            return {
                key: {} if key in TASKS and value is None else value for key, value in data.items()
            }
        return data

    @classmethod
    def shorthand(cls, held: Mapping[str, Any], word: str) -> dict[str, Any]:
        """`task: tabular`: that task with its defaults, the other blocks as held."""
        return {**{key: value for key, value in held.items() if key != word}, "name": word}

    @property
    def settings(self) -> Settings | None:
        """The active block; None for a task of the user's."""
        return getattr(self, self.name) if self.name in TASKS else None


class OptimizerSettings(Block):
    """How a part's parameters follow their gradients; null: as the task has it."""

    name: Literal["sgd", "adam", "adamw"] | None = Field(
        None, description="torch's rule of that name"
    )
    lr: float | None = Field(None, gt=0, description="the learning rate")
    momentum: float | None = Field(None, ge=0, lt=1, description="momentum of `name: sgd`")
    weight_decay: float | None = Field(
        None, ge=0, description="L2 penalty; under adamw decoupled from the gradient"
    )
    warmup_steps: int | None = Field(
        None, ge=0, description="steps over which the learning rate rises linearly to `lr`"
    )


class EmbeddingDPSettings(Block):
    """One bit of every value that crosses, told truthfully or not: 1/32 of the bytes."""

    eps: float | None = Field(
        None, ge=0, description="eps/2 a bit, as in the source; 0: pure noise; null: no noise"
    )
    gradient: Literal["straight_through", "none"] = Field(
        "straight_through",
        description="what comes back to the part: the gradient as if nothing was done, or none",
    )
    reuse: bool = Field(
        False, description="send what was drawn for an example again, where its values stay"
    )


class LabelDPSettings(Block):
    """Labels told truthfully or not, drawn once for every example and remembered."""

    eps: float = Field(1.0, ge=0, description="a label is kept with e^eps / (e^eps + classes - 1)")


class PrivacySettings(Block):
    """What becomes of what leaves a party."""

    embedding_dp: EmbeddingDPSettings | None = Field(
        None, description="applied to what leaves a part that reads data"
    )
    label_dp: LabelDPSettings | None = Field(
        None, description="applied to the leader's labels before the loss"
    )
    randomness: Literal["seeded", "secure"] = Field(
        "seeded",
        description="what is drawn from in one process: a keystream from the job's seed, "
        "repeatable and for simulation only; or the operating system's, always taken between "
        "machines",
    )
    delta: float = Field(1e-5, ge=0, lt=1, description="the delta at which epsilon is stated")


class PartPrivacySettings(Block):
    """What becomes of one part's output where it leaves its owner."""

    embedding_dp: EmbeddingDPSettings | None = Field(
        None, description="in place of the job's `privacy.embedding_dp`; null: as it is"
    )


class PartSettings(Block):
    """A part; what is left out is as the task has it, under the same name."""

    owner: str | None = Field(None, description="the party that computes it")
    inputs: list[str] | None = Field(
        None, description="what it reads: `data.COLUMN` of its owner, or earlier parts"
    )
    output: list[Annotated[int, Field(ge=1)]] | None = Field(
        None, description="the shape of what it gives for one example"
    )
    module: ModuleName | None = Field(
        None,
        description="a function of yours that is called with the seed and returns an nn.Module; "
        "only the owner needs to have it",
    )
    dtype: Literal["float32", "bfloat16"] | None = Field(
        None, description="the type of what it gives"
    )
    frozen: bool | None = Field(None, description="whether its parameters stay as they are")
    optimizer: OptimizerSettings = Field(
        default_factory=OptimizerSettings, description="on top of the job's `optimizer`"
    )
    privacy: PartPrivacySettings | None = Field(
        None, description="in place of the job's `privacy`, where its output leaves its owner"
    )


class CheckpointSettings(Block):
    """How much an interruption may cost."""

    every_steps: int = Field(
        100, ge=1, description="all parties save after every so many steps, and after the last"
    )


class RecordSettings(Block):
    """What is written down, and who sees it."""

    every_steps: int = Field(10, ge=1, description="a line after every so many steps")
    followers_see_loss: bool = Field(
        True, description="whether the leader tells followers the loss of every step"
    )


class EvaluationSettings(Block):
    """When the held-out examples are looked at, through the same crossings and protection."""

    every_epochs: int | None = Field(
        1, ge=1, description="after every so many epochs, and after the last; null: never"
    )


class VerticalJob(CheckedJob):
    """A vertical run, described completely.

    Raises JobError with every problem that its values have, one by one and between them.
    """

    #: What may differ between the parties' copies of a job.
    OWN_KEYS: ClassVar[tuple[str, ...]] = ("name", "device", "threads")

    name: RunName = Field("vertical-digits", description="what the run is called")
    seed: int = Field(0, ge=0, description="decides everything random in a seeded run")
    epochs: int = Field(10, ge=1, description="how often every example is trained on")
    batch_size: int = Field(
        32, ge=1, description="examples in a step; an epoch's last may be short"
    )
    in_flight: int = Field(
        1,
        ge=1,
        description="micro-batches that a step is cut into, so that one party computes while "
        "another's tensors travel; 1 is bit-exact with the unsplit model",
    )
    device: Device = Field("cpu", description="where the parts of this machine are computed")
    threads: int | None = Field(
        1,
        ge=1,
        description="torch's threads on this machine; another number changes last bits; null: as "
        "torch has it",
    )
    task: TaskSettings = Field(default_factory=TaskSettings)
    parts: dict[str, PartSettings] = Field(
        default_factory=dict,
        description="the parts in order, by name; empty: as the task has them",
    )
    optimizer: OptimizerSettings = Field(default_factory=OptimizerSettings)
    privacy: PrivacySettings = Field(default_factory=PrivacySettings)
    evaluation: EvaluationSettings = Field(default_factory=EvaluationSettings)
    record: RecordSettings = Field(default_factory=RecordSettings)
    checkpoint: CheckpointSettings = Field(default_factory=CheckpointSettings)

    def _broken(self, wrong: Collection[allowed.Path]) -> list[str]:
        return vertical_rules.broken(self, wrong)

    @classmethod
    def load(cls, path: str | Path | None = None, overrides: Sequence[str] = ()) -> VerticalJob:
        """The job in a YAML file (the default job without one), `key=value` settings on top."""
        data = {} if path is None else yaml_file.read(path)
        return cls.read(data, overrides)

    def agreed(self) -> dict[str, Any]:
        """What must be the same in every party's copy of the job."""
        agreed = {k: v for k, v in self.model_dump().items() if k not in self.OWN_KEYS}
        settings = self.task.settings
        for key in getattr(settings, "OWN_KEYS", ()):
            del agreed["task"][self.task.name][key]
        return agreed
