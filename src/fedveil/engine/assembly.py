"""The parts of a run, put together from its job: the same in every process that takes part."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fedveil.data.datasets import Dataset
from fedveil.data.partition import Partition, partition
from fedveil.engine.client_rate import ScheduledTrainer, client_rate
from fedveil.engine.executors.client_side import ClientsData, ClientSide, LocalTraining, Training
from fedveil.engine.executors.client_states import ClientStates
from fedveil.engine.executors.kept_training import (
    Dynamic,
    KeptTraining,
    OwnLayers,
    Scaffold,
    Way,
    local_steps,
)
from fedveil.engine.job_protection import make_protection as make_protection
from fedveil.engine.job_protection import report_entropy as report_entropy
from fedveil.engine.job_protection import training_entropy as training_entropy
from fedveil.entropy import Seeded
from fedveil.errors import ModelInvalid
from fedveil.federated.job import Job
from fedveil.learning import models
from fedveil.learning.clipped_examples import ClippedExamplesTrainer
from fedveil.learning.dense_trainer import DenseCohortTrainer
from fedveil.learning.device import check_device
from fedveil.learning.one_step_trainer import OneStepTrainer
from fedveil.learning.own_layers import keep_own, own_names, whole
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
    if job.clients.own_layers:
        model = keep_own(model, job.clients.own_layers)
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


def training_plan(job: Job, round: int = 1) -> TrainingPlan:
    """What every client of the job does with its data in a round."""
    settings = job.training
    return TrainingPlan(
        epochs=settings.epochs,
        batch_size=settings.batch_size,
        optimizer=settings.optimizer,
        lr=client_rate(job, round),
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
        gradient_norm=settings.gradient_norm,
        proximal=settings.dynamic if settings.algorithm == "feddyn" else settings.proximal,
        corrected=settings.algorithm in ("scaffold", "feddyn"),
    )


def make_trainer(job: Job, model: nn.Module, round: int = 1) -> Trainer:
    """The trainer that `training.engine` names; auto takes the fastest that the model allows.

    It trains on what the trained part of the model sees of examples.
    Under `privacy.unit: example` it is the one that clips each example to the protection's norm.
    """
    settings, plan = job.training, training_plan(job, round)
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
        for kind in (OneStepTrainer, DenseCohortTrainer):
            trainer = kind.of(model, plan)
            if trainer is not None:
                return trainer
    return LoopTrainer(model, plan, settings.device, chains=auto)


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


def start_vector(job: Job, layout: Layout) -> npt.NDArray[np.float32]:
    """What the server begins with: the model's weights, and under scaffold the mean variate."""
    weights = layout.vector()
    variates = job.training.algorithm == "scaffold"
    return np.concatenate([weights, np.zeros_like(weights)]) if variates else weights


def make_way(job: Job, model: nn.Module) -> Way:
    """What the clients of the job keep from round to round; `model` as `make_model` gives it."""
    own = own_names(model)
    layout = Layout(whole(model))
    if job.training.algorithm == "scaffold":
        return Scaffold(layout.trainable, job.training.lr)
    if job.training.algorithm == "feddyn":
        return Dynamic(layout.trainable, job.training.dynamic)
    mask = np.zeros(layout.dimension, np.bool_)
    for entry in layout.entries:
        mask[entry.start : entry.stop] = entry.name in own
    return OwnLayers(mask, layout.vector())


def local_training(job: Job, trainer: Trainer, data: ClientsData) -> LocalTraining:
    """Training in which clients keep nothing; under fednova their updates are scaled."""
    normal = job.training.normal_steps or 0.0

    def scale(examples: int) -> float:
        return normal / local_steps(job, examples)

    nova = job.training.algorithm == "fednova"
    return LocalTraining(trainer, data, training_entropy(job), scale if nova else None)


def make_client_side(
    job: Job,
    shape: ModelShape,
    data: ClientsData,
    model: npt.NDArray[np.float32],
    run: Path | None = None,
) -> ClientSide:
    """The clients' side of the run; `run` is its folder, where clients keep anything."""

    def trainer_of(round: int) -> Trainer:
        return make_trainer(job, whole(make_model(job, shape)), round)

    constant = job.training.lr_schedule == "constant"
    trainer = trainer_of(1) if constant else ScheduledTrainer(job, trainer_of)
    training: Training = local_training(job, trainer, data)
    if job.keeps_state:
        assert run is not None, "what clients keep lies in the run's folder"
        way, entropy = make_way(job, make_model(job, shape)), training_entropy(job)
        training = KeptTraining(job, way, trainer, data, entropy, ClientStates(run))
    return ClientSide(make_protection(job, len(model)), training, model, report_entropy(job))


def worker_count(job: Job) -> int:
    """How many worker processes serve the clients; auto: one for each core, none on a GPU."""
    wanted = job.simulation.workers
    if job.training.engine == "vmap":
        return 0  # it fills the cores by itself, and which clients share a pass must not vary
    if wanted == "auto":
        # A function of the calling script or notebook exists in no other process.
        here = job.training.device != "cpu" or job.model.startswith("__main__:")
        wanted = 0 if here else len(os.sched_getaffinity(0))
    return min(int(wanted), job.clients_per_round)
