"""A bundled table of measured accuracies: for some jobs, the accuracy at each epsilon."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from fedveil.federated.job import Job
from fedveil.privacy.loss import format_epsilon
from fedveil.record.metric_names import digits

#: The blocks of a job that decide its accuracy. The others set the seed, and where and how it runs.
_DECIDE = ("rounds", "clients", "data", "model", "task", "training", "server")


class Measured(NamedTuple):
    """A measured run: its settings, epsilon and accuracy, and the command that repeats it."""

    settings: tuple[str, ...]
    epsilon: float
    accuracy: float
    command: str

    def __str__(self) -> str:
        return (
            f"measured with this job at epsilon {format_epsilon(self.epsilon)}: accuracy "
            f"{digits('accuracy', self.accuracy)} ({self.command})"
        )


def table() -> Iterator[Measured]:
    text = (files("fedveil.engine") / "measured.toml").read_text("utf-8")
    for one in tomllib.loads(text)["table"]:
        for row in one["rows"]:
            settings = (*one["settings"], *row["settings"])
            yield Measured(settings, row["epsilon"], row["accuracy"], one["command"])


def measured(job: Job) -> list[Measured]:
    """Return the measured runs with the settings of this job, sorted by epsilon.

    Only the amount of noise, and settings that do not affect accuracy, may differ.
    """
    sought = _deciding(job)
    return sorted((row for row, held in _rows() if held == sought), key=lambda row: row.epsilon)


@cache
def _rows() -> list[tuple[Measured, dict[str, Any]]]:
    return [(row, _deciding(Job.load(None, row.settings))) for row in table()]


def _deciding(job: Job) -> dict[str, Any]:
    whole, switch = job.model_dump(mode="json"), job.protection
    settings = switch.settings.model_dump(mode="json")
    key = switch.position.cost_key(switch.settings)
    if key is not None:
        settings = key.put(settings, key.start)
    return {**{name: whole[name] for name in _DECIDE}, switch.name: settings}
