"""Builds the parts of a run from its job. Two processes with the same job build equal parts."""

from __future__ import annotations

import multiprocessing
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
from torch import nn

from fedveil.base.example_arrays import Shape
from fedveil.compiled.compiled_trainer import CompiledTrainer
from fedveil.compiled.own_loss import OwnLossTrainer
from fedveil.data.datasets import Dataset, load
from fedveil.data.partition import Partition, held_out, partition
from fedveil.engine.client_learning_rate import ScheduledTrainer, own_rate
from fedveil.engine.executors.client_side import ClientSide, Examples, LocalTraining, Training
from fedveil.engine.executors.client_states import ClientStates
from fedveil.engine.executors.directed_training import DirectedTraining
from fedveil.engine.executors.stateful_training import (
    Dynamic,
    KeptTraining,
    OwnLayers,
    Scaffold,
    StateRule,
    local_steps,
)
from fedveil.engine.job_model import ModelShape as ModelShape
from fedveil.engine.job_model import check_weights as check_weights
from fedveil.engine.job_model import make_model as make_model
from fedveil.engine.job_model import text_form
from fedveil.engine.job_protection import check_buffers as check_buffers
from fedveil.engine.job_protection import make_protection as make_protection
from fedveil.engine.job_protection import report_entropy as report_entropy
from fedveil.engine.job_protection import training_entropy as training_entropy
from fedveil.entropy import Seeded
from fedveil.errors import DataInvalid, ModelInvalid
from fedveil.federated.job import Job
from fedveil.learning import learning_task
from fedveil.learning.clipped_examples import ClippedExamplesTrainer
from fedveil.learning.device import check_device
from fedveil.learning.learning_task import Task, own_steps, plan_loss
from fedveil.learning.losses import OWN, WEIGHTED
from fedveil.learning.own_layers import own_names, whole
from fedveil.learning.task_trainer import TaskTrainer
from fedveil.learning.trained_part import TrainedPart
from fedveil.learning.trainer import LoopTrainer, Trainer, TrainingPlan
from fedveil.learning.vmap_trainer import VmapTrainer
from fedveil.learning.weight_layout import Layout

#: With fewer parameters, a client spends most of its time in Python, where threads only wait for
#: each other. `auto` then uses one thread, or forks for at least this many clients a round.
_LEAST_FOR_THREADS, _LEAST_FOR_FORKS = 20_000, 100


def make_task(job: Job) -> Task:
    return learning_task.find(job.task, job.evaluation.metrics)


def load_data(job: Job, name: str | None = None) -> Dataset:
    """Load the dataset `name` (default: the job's own) with the targets that the job's task learns.

    Under `privacy.unit: example`, an invalid record has no effect on any other record.
    """
    apart, writers = job.privacy.unit == "example", job.data.split == "writers"
    targets = make_task(job).targets
    if name is not None:
        return load(name, targets, apart=apart)
    folder, texts = job.data.folder, text_form(job)
    return load(job.data.name, targets, apart=apart, writers=writers, folder=folder, texts=texts)


def training_plan(job: Job, round: int = 1) -> TrainingPlan:
    settings, weights = job.training, job.training.class_weights
    return TrainingPlan(
        epochs=settings.epochs,
        batch_size=settings.batch_size,
        optimizer=settings.optimizer,
        lr=own_rate(job, round),
        momentum=settings.momentum,
        nesterov=settings.nesterov,
        weight_decay=settings.weight_decay,
        loss=plan_loss(make_task(job)) if weights is None else WEIGHTED,
        class_weights=None if weights is None else tuple(weights),
        gradient_norm=settings.gradient_norm,
        proximal=settings.dynamic if settings.algorithm == "feddyn" else settings.proximal,
        corrected=settings.corrects_steps,
        precision=settings.precision,
    )


def make_trainer(job: Job, model: nn.Module, shape: Shape = (), round: int = 1) -> Trainer:
    """Return the trainer that `training.engine` selects, with the learning rate of round `round`.

    `shape` is the shape of one example, or () if it is not known. Under `privacy.unit: example`,
    the trainer clips each example's gradient to the protection's clipping norm. Raises
    `ModelInvalid` if the job's task or data do not allow its training settings.
    """
    settings, task, plan = job.training, make_task(job), training_plan(job, round)
    seen, model = model, TrainedPart.of(model).module
    check_device("training.device", settings.device)
    if job.privacy.unit == "example":
        if (refusal := refusal_of_examples(job, shape)) is not None:
            raise ModelInvalid(refusal)
        clip = make_protection(job, Layout(model).dimension).norm_clip
        rate = settings.sampling_rate or 1.0
        own = task.loss if plan.loss == OWN else None
        return ClippedExamplesTrainer(
            model, plan, rate=rate, clip=clip, device=settings.device, loss=own
        )
    if plan.loss == OWN or is_uneven(shape):
        if settings.engine == "vmap":
            raise ModelInvalid(
                f"training.engine = vmap needs examples of one array and a bundled loss, which "
                f"task = {job.task} or its data does not have. Use engine loop"
            )
        if plan.loss == WEIGHTED:
            raise ModelInvalid(
                "training.class_weights needs examples of one array and one shape, which the data "
                "does not have. Remove the key"
            )
        steps = ["train", "optimizer"]
        needed = {"feddyn": ["train"], "fednova": ["train"], "scaffold": steps, "fedcm": steps}
        replaced = own_steps(task)
        wrong = [name for name in needed.get(settings.algorithm, []) if name in replaced]
        if wrong:
            raise ModelInvalid(
                f"training.algorithm = {settings.algorithm} must control each training step, but "
                f"task = {job.task} has its own {wrong[0]}. Use fedavg"
            )
        native = _native_trainer(job, task, seen, plan, shape)
        return native or TaskTrainer(model, plan, task, settings.device)
    if plan.corrected:
        return LoopTrainer(model, plan, settings.device)
    vectorise, auto = settings.engine == "vmap", settings.engine == "auto"
    if auto and settings.device != "cpu" and not job.has_language_model:
        vectorise = all(entry.fate == "parameter" for entry in Layout(model).entries)
    if vectorise:
        return VmapTrainer(model, plan, settings.device)
    native = _native_trainer(job, task, seen, plan, shape)
    return native or LoopTrainer(model, plan, settings.device)


def native_refusals(job: Job, task: Task, plan: TrainingPlan, shape: Shape) -> list[str]:
    """Return the reasons why the job cannot train in native code, whatever its model is.

    `shape` is the shape of one example. The result is empty if there are no such reasons.
    """
    settings, own = job.training, own_steps(task)
    refused = {
        f"privacy.unit is {job.privacy.unit}": job.privacy.unit == "example",
        f"training.engine is {settings.engine}": settings.engine != "auto",
        f"training.device is {settings.device}": settings.device != "cpu",
        "examples have several inputs or different lengths": is_uneven(shape),
        f"task = {job.task} has its own {' and '.join(own)}": bool(own),
    }
    reasons = [reason for reason, holds in refused.items() if holds]
    return [*reasons, *native_class(plan).plan_refusals(plan)]


def native_class(plan: TrainingPlan) -> type[CompiledTrainer]:
    """Return the native-code trainer class for the loss of `plan`.

    The loss alone determines the class. The class may still refuse other settings of `plan`.
    """
    return OwnLossTrainer if plan.loss == OWN else CompiledTrainer


def _native_trainer(
    job: Job, task: Task, model: nn.Module, plan: TrainingPlan, shape: Shape
) -> CompiledTrainer | None:
    if native_refusals(job, task, plan, shape):
        return None
    assert not isinstance(shape, dict)  # a dict of shapes counts as uneven
    part = TrainedPart.of(model).module
    more = [task] if plan.loss == OWN else []
    return native_class(plan).of(part, plan, shape if part is model else (), *more)


def is_uneven(shape: Shape) -> bool:
    """Return True if examples have several inputs or different lengths."""
    return isinstance(shape, dict) or -1 in shape


def trainer_name(trainer: Trainer) -> str:
    """Return the trainer's name for a run's record, such as "loop" for `LoopTrainer`."""
    words = re.findall("[A-Z][a-z]+", type(trainer).__name__.removesuffix("Trainer"))
    return " ".join(words).lower()


def refusal_of_examples(job: Job, shape: Shape) -> str | None:
    """Return the reason why the job's task or data rules out `privacy.unit: example`, or None.

    `shape` is the shape of one example.
    """
    if own := own_steps(make_task(job)):
        return (
            f"privacy.unit = example needs each example's own gradient, in one step of plain SGD, "
            f"but task = {job.task} has its own {own[0]}. Use unit client"
        )
    if is_uneven(shape):
        return (
            "privacy.unit = example needs each example's own gradient, and so examples of one "
            "array and one shape. Use unit client"
        )
    return None


def make_partition(job: Job, dataset: Dataset) -> Partition:
    return make_shares(job, dataset)[0]


def make_shares(job: Job, dataset: Dataset) -> tuple[Partition, Partition | None]:
    """Split the examples among the clients. Returns a training partition and a held-out partition.

    A partition has the indices of each client's examples. A client tests the model on its held-out
    examples, and never trains on them. The second partition is None if the job holds out none.
    """
    whole = _dealt(job, dataset)
    if not job.evaluation.clients:
        return whole, None
    return held_out(whole, job.evaluation.clients, Seeded(job.seed, "evaluation at clients"))


def _dealt(job: Job, dataset: Dataset) -> Partition:
    if dataset.labels is None and job.data.split in ("shards", "dirichlet"):
        raise DataInvalid(
            f"data.split = {job.data.split} needs classes, which task = {job.task} does not have. "
            f"Use iid or by_client"
        )
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
    """Return the vector that the server sends in the first round: the model's initial weights.

    Under SCAFFOLD and FedCM, one zero per weight follows: the initial control variate or direction.
    """
    weights = layout.vector()
    if job.training.sent_vectors == 1:
        return weights
    return np.concatenate([weights, np.zeros_like(weights)])


def make_state_rule(job: Job, model: nn.Module) -> StateRule:
    """Return the `StateRule` of the job's algorithm, which defines the state of the job's clients.

    The state is a vector that a client saves from one round to the next: a control variate
    (SCAFFOLD), the scaled sum of its updates (FedDyn), or the weights of its own layers. `model` is
    the job's model.
    """
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


def local_training(job: Job, trainer: Trainer, data: Examples) -> LocalTraining:
    """Return the object that trains clients that keep no state (FedAvg, FedNova, FedCM)."""
    if job.training.algorithm == "fedcm":
        return DirectedTraining(job, trainer, data, training_entropy(job))
    normal = job.training.normal_steps or 0.0

    def scale(examples: int) -> float:
        return normal / local_steps(job, examples)

    nova = job.training.algorithm == "fednova"
    return LocalTraining(trainer, data, training_entropy(job), scale if nova else None)


def make_training(
    job: Job,
    shape: ModelShape,
    trainer: Trainer,
    data: Examples,
    states: Callable[[], ClientStates],
) -> Training:
    """Return the object that trains the job's clients. `states` opens the clients' saved states."""
    if not job.keeps_state:
        return local_training(job, trainer, data)
    rule, entropy = make_state_rule(job, make_model(job, shape)), training_entropy(job)
    return KeptTraining(job, rule, trainer, data, entropy, states())


def make_client_side(
    job: Job,
    shape: ModelShape,
    data: Examples,
    model: npt.NDArray[np.float32],
    run: Path | None = None,
    trainer: Trainer | None = None,
) -> ClientSide:
    """Return the job's `ClientSide`, which trains the clients in `data` and makes their answers.

    The caller writes each round's global weights into the array `model`. `run` is the run's folder,
    needed only if clients keep a state between rounds. `trainer` replaces the job's trainer.
    """

    def trainer_of(round: int) -> Trainer:
        model = whole(make_model(job, shape))
        return make_trainer(job, model, shape.example_shape, round)

    constant = job.training.lr_schedule == "constant"
    trainer = trainer or (trainer_of(1) if constant else ScheduledTrainer(job, trainer_of))

    def states() -> ClientStates:
        assert run is not None, "client states are saved in the run's folder"
        return ClientStates(run)

    training = make_training(job, shape, trainer, data, states)
    protection = make_protection(job, job.training.report_length(len(model)))
    return ClientSide(protection, training, model, report_entropy(job))


def make_client_sides(
    job: Job,
    shape: ModelShape,
    data: Examples,
    model: npt.NDArray[np.float32],
    starting: Callable[[str], None],
    cores: int | None = None,
) -> list[ClientSide]:
    """Return a `ClientSide` for each thread, or an empty list if the job cannot use threads.

    The caller writes each round's global weights into the array `model`. `starting` is called with
    the name of each preparation step. `cores` is the number of cores to use (default: all).
    """
    first = make_trainer(job, whole(make_model(job, shape)), shape.example_shape)
    if not first.native:
        return []
    starting("compiling the training code, which is cached for later runs")
    served = first.compile(data.x.shape[1:])
    count, always = worker_count(job, cores), job.training.lr_schedule == "constant"
    if job.simulation.workers == "auto" and len(model) < _LEAST_FOR_THREADS:
        count = min(count, 1)
    if not (served and count and always) or job.keeps_state:
        return []
    trainers = [first, *(first.for_another_thread() for _ in range(count - 1))]
    return [make_client_side(job, shape, data, model, trainer=each) for each in trainers]


def fork_count(job: Job) -> int:
    """Return the number of worker processes to fork, in which native code trains a small model.

    Returns 0 if this process cannot fork safely, if a round has too few clients for forks to save
    time, or if `simulation.workers` is not auto.
    """
    many = job.clients_per_round >= _LEAST_FOR_FORKS and job.simulation.workers == "auto"
    may_fork = sys.platform == "linux" and not multiprocessing.current_process().daemon
    return worker_count(job) if many and may_fork else 0


def worker_count(job: Job, cores: int | None = None) -> int:
    """Return the number of workers that train clients, or 0 if this process trains them itself.

    `cores` is the number of cores to use (default: all).
    """
    wanted = job.simulation.workers
    if job.training.engine == "vmap":
        return 0  # vmap uses all cores, and the grouping of clients must not vary
    if wanted == "auto":
        wanted = 0 if job.training.device != "cpu" else cores or len(os.sched_getaffinity(0))
    return min(int(wanted), job.clients_per_round)
