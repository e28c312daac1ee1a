"""The interface of engines. An engine connects a run to its clients, simulated or deployed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy.typing as npt

from fedveil.data.datasets import Dataset
from fedveil.engine.assembly import ModelShape
from fedveil.engine.client_evaluation import HeldOut
from fedveil.engine.executors.executor import Executor
from fedveil.federated.job import Job
from fedveil.protections.base import Protection
from fedveil.record.run_folder import RunFolder


class Engine(ABC):
    """Connects a run to its clients. Base class of the simulator and of the deployed federation.

    A subclass sets two attributes. `how_to_resume` is a sentence that says how to resume an
    interrupted run. `reports_leave` is True if reports leave a machine.
    """

    #: `{folder}` stands for the run's folder.
    how_to_resume: str
    #: If it is True, the reports of an interrupted round have cost privacy too.
    reports_leave: bool

    def settle(self, job: Job, dataset: Dataset) -> Job:
        """Return the job with its number of clients, which may depend on `dataset`.

        Raises an error if the engine cannot use `dataset`.
        """
        return job

    def check_trainer(self, job: Job, shape: ModelShape) -> str | None:
        """Raise an error if no trainer can train the job's model on examples of this `shape`.

        Returns the name of the trainer that the clients use, or None if only they know it.
        """
        return None  # other machines may train it

    def try_out(  # noqa: B027 - as above
        self, job: Job, shape: ModelShape, folder: RunFolder
    ) -> None:
        """Train the model on one batch, to find errors before the first round.

        Raises `ModelInvalid` for an error, and saves its traceback in `folder`. The default does
        nothing.
        """

    @abstractmethod
    def protection(self, job: Job, dimension: int) -> Protection:
        """Return the job's protection for updates of `dimension` entries."""

    def held_out(self) -> HeldOut | None:
        """Return the examples that each client holds out, or None if there are none."""
        return None

    def identify(self) -> Iterable[npt.NDArray[Any]]:
        """Return arrays that identify the run's data, such as the partition of the examples.

        A resumed run must have equal arrays.
        """
        return ()

    @abstractmethod
    def describe(self) -> Iterable[str]:
        """Return lines about the clients for the run's event log."""

    @abstractmethod
    def start(
        self,
        job: Job,
        shape: ModelShape,
        protection: Protection,
        folder: Path,
        event: Callable[[str], None],
    ) -> Executor:
        """Start and return the executor, which delivers messages to the clients.

        Clients can keep states in `folder`, the run's folder. `event` logs a line.
        """
