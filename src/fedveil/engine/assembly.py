"""The parts of a run, put together from its job: the same in every process that takes part."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fedveil.data.datasets import Dataset
from fedveil.data.partition import Partition, partition
from fedveil.engine.executors.client_side import ClientsData, ClientSide, LocalTraining
from fedveil.engine.job_protection import make_protection as make_protection
from fedveil.engine.job_protection import report_entropy as report_entropy
from fedveil.engine.job_protection import training_entropy as training_entropy
from fedveil.entropy import Seeded
from fedveil.errors import ModelInvalid
from fedveil.federated.job import Job
from fedveil.learning import models
from fedveil.learning.clipped_examples import ClippedExamplesTrainer
from fedveil.learning.compiled.compiled_trainer import CompiledTrainer
from fedveil.learning.device import check_device
from fedveil.learning.trained_part import TrainedPart, only_head
from fedveil.learning.trainer import LoopTrainer, Trainer, TrainingPlan
from fedveil.learning.vmap_trainer import VmapTrainer
from fedveil.learning.weight_layout import Layout


@dataclass(frozen=True)
class ModelShape:
    """What the data says about the model: and the fingerprint of the model it gave the caller."""

    example_shape: tuple[int, ...]
    classes: int
    fingerprint: str = ""


def make_model(job: Job, shape: ModelShape) -> nn.Module:
    """The model with its initial weights, which the seed decides."""
    model = models.build(
        job.model, shape.example_shape, shape.classes, Seeded(job.seed, "initial weights")
    )
    if job.training.train == "head":
        model = only_head(model)
    Layout(model)  # refuses what cannot be trained, by name
    found = model_fingerprint(model)
    if shape.fingerprint and found != shape.fingerprint:
        raise ModelInvalid(
            f"model = {job.model!r} gave another model when it was called again: its function "
            f"must depend on its arguments and the seed alone"
        )
    return model


def model_fingerprint(model: nn.Module) -> str:
    """A digest of names, shapes and values of all tensors."""
    digest = hashlib.sha256()
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def training_plan(job: Job) -> TrainingPlan:
    """What every client of the job does with its data."""
    settings = job.training
    return TrainingPlan(
        epochs=settings.epochs,
        batch_size=settings.batch_size,
        optimizer=settings.optimizer,
        lr=settings.lr,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
    )


def make_trainer(job: Job, model: nn.Module) -> Trainer:
    """The trainer that `training.engine` names; auto takes the fastest that the model allows.

    It trains on what the trained part of the model sees of examples.
    Under `privacy.unit: example` it is the one that clips each example to the protection's norm.
    """
    settings, plan = job.training, training_plan(job)
    model = TrainedPart.of(model).module
    check_device("training.device", settings.device)
    if job.privacy.unit == "example":
        clip = make_protection(job, Layout(model).dimension).norm_clip
        rate = settings.sampling_rate or 1.0
        return ClippedExamplesTrainer(model, plan, rate=rate, clip=clip, device=settings.device)
    vectorise, auto = settings.engine == "vmap", settings.engine == "auto"
    if auto and settings.device != "cpu":
        vectorise = all(entry.fate == "parameter" for entry in Layout(model).entries)
    if vectorise:
        return VmapTrainer(model, plan, settings.device)
    if auto and settings.device == "cpu":
        compiled = CompiledTrainer.of(model, plan)
        if compiled is not None:
            return compiled
    return LoopTrainer(model, plan, settings.device)


def check_buffers(job: Job, layout: Layout) -> None:
    """Refuse to perturb BatchNorm statistics: a noisy variance may be negative."""
    buffers = [entry.name for entry in layout.entries if entry.fate == "buffer"]
    if buffers and job.audit.canaries:
        raise ModelInvalid(
            f"audit.canaries = {job.audit.canaries}: canaries move every averaged tensor, which "
            f"the buffers {', '.join(buffers)} do not survive: use a model without them"
        )
    if buffers and job.protection.noised:
        raise ModelInvalid(
            f"protection.name = {job.protection.name} perturbs every averaged tensor, which the "
            f"buffers {', '.join(buffers)} do not survive: use a model without them, for example "
            f"with GroupNorm in place of BatchNorm"
        )


def make_partition(job: Job, dataset: Dataset) -> Partition:
    """Who holds which examples: the job's seed and split decide."""
    return partition(
        job.data.split,
        dataset.train.y,
        dataset.owners,
        job.clients.number,
        shards_per_client=job.data.shards_per_client,
        alpha=job.data.alpha,
        entropy=Seeded(job.seed, "partition"),
    )


def make_client_side(
    job: Job,
    shape: ModelShape,
    data: ClientsData,
    model: npt.NDArray[np.float32],
    trainer: Trainer | None = None,
) -> ClientSide:
    """The clients' side of the run."""
    trainer = trainer or make_trainer(job, make_model(job, shape))
    training = LocalTraining(trainer, data, training_entropy(job))
    return ClientSide(make_protection(job, len(model)), training, model, report_entropy(job))


def make_client_sides(
    job: Job, shape: ModelShape, data: ClientsData, model: npt.NDArray[np.float32]
) -> list[ClientSide]:
    """One for each thread, where the trainer holds no lock; empty where it does."""
    first = make_trainer(job, make_model(job, shape))
    count = worker_count(job, threads=True)
    if not isinstance(first, CompiledTrainer) or not first.serves(data.x.shape[1:]) or not count:
        return []
    trainers = [first, *(first.beside() for _ in range(count - 1))]
    return [make_client_side(job, shape, data, model, trainer) for trainer in trainers]


def worker_count(job: Job, *, threads: bool = False) -> int:
    """How many workers serve the clients; auto: one for each core, none on a GPU."""
    wanted = job.simulation.workers
    if job.training.engine == "vmap":
        return 0  # it fills the cores by itself, and which clients share a pass must not vary
    if wanted == "auto":
        # A function of the calling script or notebook exists in no other process.
        own = job.model.startswith("__main__:") and not threads
        here = job.training.device != "cpu" or own
        wanted = 0 if here else len(os.sched_getaffinity(0))
    return min(int(wanted), job.clients_per_round)
