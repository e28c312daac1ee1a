"""The task and the split model of a job, equal on every machine that takes part."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedveil.base.own_code import called, load, own_code_errors
from fedveil.entropy import Entropy, Secure, Seeded
from fedveil.errors import InvalidValue, JobError
from fedveil.record.run_folder import RunFolder
from fedveil.record.saved_job import keep_job
from fedveil.vertical.blocks import OptimizerSettings, PartSettings
from fedveil.vertical.compression import Compression
from fedveil.vertical.job import VerticalJob
from fedveil.vertical.optimizer import Optimizer
from fedveil.vertical.own_data import of_own_data
from fedveil.vertical.split import EmbeddingPrivacy, OwnOptimizer, Part, SplitModel
from fedveil.vertical.task import Task, build, files_of, initial


def make_task(job: VerticalJob, folder: Path | None = None, own_seed: int | None = None) -> Task:
    """Return the job's task. Raises JobError if the task's labels do not fit the job's settings.

    `folder` is the folder of a resumed run, from which the task reads its own files, or None.
    `own_seed` is the party's own seed for initial weights. None means the job's seed.
    """
    seed = job.seed if own_seed is None else own_seed
    task = build(job.task.name, job.task.settings, seed, folder)
    if job.privacy.label_dp is not None and task.classes is None:
        raise JobError(
            [f"privacy.label_dp needs labels that are classes, but those of task.name = "
             f"{job.task.name} are not"]
        )  # fmt: skip
    if job.scoring.calibration is not None and task.classes is None:
        raise JobError(
            [f"scoring.calibration needs labels that are classes, but those of task.name = "
             f"{job.task.name} are not"]
        )  # fmt: skip
    defence = job.privacy.label_protection
    if defence is not None and defence.name == "marvell" and task.classes != 2:
        has = "labels that are not classes" if task.classes is None else f"{task.classes} classes"
        raise JobError(
            [f"privacy.label_protection.name = marvell needs labels of two classes, but "
             f"task.name = {job.task.name} has {has}; use max_norm"]
        )  # fmt: skip
    return task


def make_split(
    job: VerticalJob, task: Task, here: Collection[str] | None = None, own_seed: int | None = None
) -> SplitModel:
    """Return the split model: the task's parts with the job's changes.

    Modules that the job names, or that depend on a party's data, are built only for the parties in
    `here` (None: all parties). `own_seed` is the seed for initial weights. None means the job's
    seed. Raises JobError if the changes do not fit the task.
    """
    seed = job.seed if own_seed is None else own_seed
    base: SplitModel = called(task.split_model, here=here)
    names = list(job.parts) or list(base.by_name)
    parts = [_part(job, base, name, here, seed) for name in names]
    parts = [_with_privacy(job, part, parts) for part in parts]
    if job.compression is not None:
        crossing = Compression(**job.compression.model_dump())
        parts = [replace(part, compression=crossing) for part in parts]
    parties = (task.leader, *task.followers)
    for part in parts:
        if part.owner not in parties:
            raise JobError(
                [f"parts.{part.name}.owner = {part.owner} is not a party of the task "
                 f"{job.task.name}; its parties are {', '.join(parties)}"]
            )  # fmt: skip
    split = SplitModel(parts, leader=task.leader)
    if job.scoring.calibration is not None and split.last.output != (task.classes,):
        raise JobError(
            [f"scoring.calibration needs one output for each of {task.classes} classes, but part "
             f"{split.last.name} has outputs of shape {split.last.output}; set it to null"]
        )  # fmt: skip
    if job.privacy.embedding_dp is not None and not any(c.privacy for c in split.crossings):
        raise JobError(
            ["privacy.embedding_dp protects nothing: no part that reads data sends its "
             "output to another party"]
        )  # fmt: skip
    return split


def report_entropy(job: VerticalJob) -> Entropy:
    """Return the source of randomness that `privacy.randomness` names: the system or a seed.

    Only for a job whose parties are all in one process. Parties on different machines always use
    the operating system's randomness.
    """
    return Secure() if job.privacy.randomness == "secure" else Seeded(job.seed, "vertical")


@contextmanager
def threads(number: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(before if number is None else number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def own_functions(job: VerticalJob) -> list[str]:
    """Return the user's functions that a job names, as `package.module:function`."""
    names = (job.task.name, *(part.module for part in job.parts.values()))
    return [name for name in names if name is not None and ":" in name]


def keep_run(folder: RunFolder, job: VerticalJob, task: Task, parties: Iterable[str]) -> None:
    """Save the job, and the task's files that `parties` need to resume the run."""
    keep_job(folder, job, own_functions(job))
    for party in parties:
        for name, data in files_of(task, party).items():
            folder.write_atomically(name, data)


def _part(
    job: VerticalJob, base: SplitModel, name: str, here: Collection[str] | None, seed: int
) -> Part:
    settings = job.parts.get(name, PartSettings())
    given: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in settings.model_dump(exclude={"module", "optimizer", "privacy"}).items()
        if value is not None
    }
    if name in base.by_name:
        given = vars(base.by_name[name]) | given
    else:
        for key in ("owner", "inputs", "output", "module"):
            if getattr(settings, key) is None:
                raise JobError(
                    [f"parts.{name}.{key} is missing, and the task has no part of that "
                     f"name to take it from, only {', '.join(base.by_name)}"]
                )  # fmt: skip
    given["optimizer"] = _optimizer(
        given.get("optimizer", Optimizer()), job.optimizer, settings.optimizer, f"parts.{name}"
    )
    if settings.module is not None:
        mine = here is None or given["owner"] in here
        given["module"] = _own_module(settings.module, name, seed) if mine else None
    return Part(**given | {"name": name})


def _with_privacy(job: VerticalJob, part: Part, parts: list[Part]) -> Part:
    own = job.parts.get(part.name, PartSettings()).privacy
    settings = job.privacy.embedding_dp if own is None else own.embedding_dp
    crosses = any(part.name in other.sources and other.owner != part.owner for other in parts)
    leaves = crosses and part.name in of_own_data(parts)
    if own is None and not (settings is not None and leaves):
        return part
    privacy = None if settings is None else EmbeddingPrivacy(**settings.model_dump())
    return replace(part, privacy=privacy)


def _optimizer(
    base: Optimizer | OwnOptimizer, job: OptimizerSettings, part: OptimizerSettings, place: str
) -> Optimizer | OwnOptimizer:
    said = {
        key: value
        for settings in (job, part)
        for key, value in settings.model_dump().items()
        if value is not None
    }
    if not isinstance(base, Optimizer):
        if said:
            raise JobError(
                [
                    f"{place}.optimizer is a function of the task, so {', '.join(said)} "
                    f"cannot be set there"
                ]
            )
        return base
    merged = replace(base, **said)
    if merged.name != "sgd" and merged.momentum:
        if said.get("momentum"):
            raise JobError(
                [f"{place}.optimizer.momentum = {merged.momentum!r} belongs to sgd; under "
                 f"{merged.name} only 0 is allowed"]
            )  # fmt: skip
        merged = replace(merged, momentum=0.0)
    return merged


def _own_module(name: str, part: str, seed: int) -> nn.Module:
    place = f"parts.{part}.module = {name!r}"
    make = load(name, key=place, error=InvalidValue)
    with own_code_errors(place, InvalidValue):
        made = initial(seed, part, lambda: make(seed))
    if not isinstance(made, nn.Module):
        raise InvalidValue(f"{place} returned {type(made).__name__}; it must return an nn.Module")
    return made
