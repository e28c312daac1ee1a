"""The reason why a job's clients train in torch's loop and not in native code."""

from __future__ import annotations

from fedveil.compiled.compiled_trainer import CompiledTrainer
from fedveil.compiled.operation import NotServedError
from fedveil.compiled.own_loss import OwnLossTrainer
from fedveil.data.datasets import available
from fedveil.engine.assembly import (
    ModelShape,
    load_data,
    make_model,
    make_task,
    make_trainer,
    training_plan,
)
from fedveil.federated.job import Job
from fedveil.learning.learning_task import own_steps
from fedveil.learning.own_layers import whole
from fedveil.learning.task_trainer import TaskTrainer
from fedveil.learning.trained_part import TrainedPart
from fedveil.learning.trainer import LoopTrainer


def loop_reason(job: Job) -> str | None:
    """Return the reason why `training.engine: auto` chooses torch's loop, or None if it does not.

    Raises an error if the job cannot run.
    """
    if job.training.engine != "auto" or job.training.device != "cpu":
        return None
    shape = _shape(job)
    model = whole(make_model(job, shape))
    chosen = make_trainer(job, model, shape.example_shape)
    if not isinstance(chosen, LoopTrainer | TaskTrainer):
        return None
    if isinstance(shape.example_shape, dict) or -1 in shape.example_shape:
        return "examples have several inputs or different lengths"
    task, part, plan = make_task(job), TrainedPart.of(model).module, training_plan(job)
    if isinstance(chosen, TaskTrainer) and (own := own_steps(task)):
        return f"task = {job.task} has its own {own[0]}"
    known = shape.example_shape if part is model else ()
    try:
        if isinstance(chosen, TaskTrainer):
            OwnLossTrainer.made(part, plan, known, task)
        else:
            CompiledTrainer.made(part, plan, known)
    except NotServedError as error:
        return str(error)
    return None


def _shape(job: Job) -> ModelShape:
    for entry in available():
        if entry.name == job.data.name:
            tokens = entry.targets == "tokens"
            return ModelShape(entry.shape, entry.classes, whole_examples=tokens)
    return ModelShape.of(load_data(job))
