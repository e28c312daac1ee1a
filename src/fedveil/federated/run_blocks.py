"""The job's blocks `deployment`, `record` and `checkpoint`, with their keys."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fedveil.settings.settings import Block, function_text

ClassName = Annotated[str, function_text("package.module:Class")]


class DeploymentSettings(Block):
    """Settings for clients on other machines (`fedveil deploy`)."""

    reveal: list[Literal["examples"]] = Field(
        default_factory=list,
        description="values that a client may reveal to the server beside its reports. "
        "examples: its number of examples",
    )
    repeats: int = Field(
        3,
        ge=0,
        description="number of reports beyond `rounds` that a client may send, because `rounds` "
        "may be interrupted and restarted. Each client counts its own reports",
    )
    start_clients: int | None = Field(
        None,
        ge=1,
        description="number of clients that must be connected before the first round; null: all",
    )
    clients_per_node: int = Field(
        1,
        ge=1,
        description="largest number of clients on one node (`clients` in its configuration). The "
        "node's operator sees the updates of all of them",
    )
    answer_s: float = Field(
        300.0,
        gt=0,
        description="seconds that the server waits for the answers of a phase, if the "
        "protection has no deadline of its own",
    )
    answer_after_s: float | None = Field(
        None,
        gt=0,
        description="seconds after which a client sends its report, independent of the training "
        "time. If training takes longer than 7/8 of this time, the update is zero. null: the "
        "report is sent when it is ready",
    )
    wait_s: float = Field(
        600.0,
        gt=0,
        description="seconds that the server waits for clients, at the start and in a round with "
        "too few connected clients. Then it stops the run",
    )


class RecordSettings(Block):
    """Records that are written in addition to the run folder's own files."""

    tensorboard: bool = Field(False, description="also write TensorBoard event files")
    callbacks: list[ClassName] = Field(
        default_factory=list,
        description="callback classes, called when the run starts, after each round and at the "
        "end. They may stop the run. Use `fedveil.engine.trackers:MLflow`, "
        "`fedveil.engine.trackers:WandB`, or your own subclass of "
        "`fedveil.engine.callbacks.Callback`",
    )
    page: bool = Field(
        True,
        description="if true, a run writes a report page (about 40 KB) into its folder when it "
        "ends. `fedveil report` writes it at any time",
    )


class CheckpointSettings(Block):
    """The interval between checkpoints, which limits the cost of an interruption."""

    every: int = Field(
        1,
        ge=1,
        description="number of rounds between two checkpoints. The last round is always saved",
    )
