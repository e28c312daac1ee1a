"""Says, for each layer of a job's model, what trains it, and why native code does not train it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from fedveil.base.kernels import HAVE_NUMBA
from fedveil.compiled.compiled_trainer import CompiledTrainer
from fedveil.compiled.operation import FORMS
from fedveil.compiled.own_loss import OwnLossTrainer
from fedveil.data.datasets import available
from fedveil.engine.assembly import (
    ModelShape,
    is_uneven,
    load_data,
    make_model,
    make_task,
    make_trainer,
    native_class,
    native_refusals,
    training_plan,
)
from fedveil.federated.job import Job
from fedveil.learning.clipped_examples import ClippedExamplesTrainer
from fedveil.learning.known_layers import Part, parts_of
from fedveil.learning.own_layers import whole
from fedveil.learning.trained_part import TrainedPart, taken
from fedveil.learning.trainer import Trainer
from fedveil.learning.vmap_trainer import VmapTrainer

#: The values of `LayerTraining.trained_by`.
NATIVE, LOOP, VMAP, NOTHING = "native code", "PyTorch's loop", "PyTorch's vmap", "nothing"
#: The most layers that a reason names.
_MOST_NAMED = 3


@dataclass(frozen=True)
class LayerTraining:
    """Says what trains one layer of a model, and why native code does not.

    `trained_by` is one of `NATIVE`, `LOOP`, `VMAP`, `NOTHING`, or "PyTorch" for a loss.
    `could_be_native` is True if native code supports the layer, and None if that is not known.
    `reason` says why native code does not train the layer, and is "" if it does.

    `layer_training` returns a list with such an entry for each layer. If layers are inside a module
    that has its own forward pass, the list also has an entry for this module. If native code trains
    a model with a task's own loss, the list has an entry for the loss too.
    """

    #: The path of the module in the model, such as `body.2`, or `model` for the model itself.
    layer: str
    #: The name of the layer's class.
    type: str
    #: The number of its weights, without those of layers that have their own entry.
    parameters: int
    trained_by: str
    could_be_native: bool | None
    reason: str


def layer_training(job: Job) -> list[LayerTraining]:
    """Return what trains each layer of the job's model. Builds the model, and trains nothing.

    The model is called once, with an artificial example. Raises an error if the job cannot run.
    """
    shape = _shape(job)
    model, plan = whole(make_model(job, shape)), training_plan(job)
    trained, shapes, known = TrainedPart.of(model), _input_shapes(model, shape), _known(model)
    names = {module: name for name, module in model.named_modules()}
    parts = list(parts_of(trained.module, known, names[trained.module]))
    refused: list[Sequence[str] | None] = [None] * len(parts)
    if HAVE_NUMBA:
        from fedveil.compiled.chain import refusals

        refused = refusals(parts, shapes, native_class(plan).scores_of.get(plan.loss, FORMS))
    why = [
        *native_refusals(job, make_task(job), plan, shape.example_shape),
        *_named(parts, refused),
    ]
    trainer = make_trainer(job, model, shape.example_shape)
    found, by = list(_fixed(trained.features, known, names)), _trained_by(trainer)
    for part, reasons in zip(parts, refused, strict=True):
        found.append(_judged(part, reasons, by, " and because ".join(why)))
    if isinstance(trainer, OwnLossTrainer):
        reason = "only Python can call a task's own loss"
        found.append(LayerTraining("loss", job.task, 0, "PyTorch", False, reason))
    return found


def _fixed(
    features: nn.Module | None, known: set[type[nn.Module]], names: Mapping[nn.Module, str]
) -> Iterator[LayerTraining]:
    """Yield an entry for each layer of `features`, the fixed layers before the head (or None).

    `known` has the classes of the layers that native code knows, and `names` each module's path.
    """
    reason = "it is fixed, because only the head is trained"
    for part in [] if features is None else parts_of(features, known, names.get(features, "")):
        yield _line(part, NOTHING, None, reason)


def _judged(part: Part, reasons: Sequence[str] | None, by: str, why: str) -> LayerTraining:
    """Return the entry of the layer `part`. It belongs to the trained layers of the model.

    `by` names the trainer of these layers, and `why` is the reason if native code does not train
    them. `reasons` say why native code cannot train this one layer. The list is empty if native
    code can train it, and None if that is not known.
    """
    able = None if reasons is None else not reasons
    if part.parameters and not any(p.requires_grad for p in part.parameters):
        return _line(part, NOTHING, able, "its weights are frozen")
    if by == NATIVE:
        return _line(part, by, True, "")
    own = "; ".join(reasons or ())
    other = f"{'could be native; ' if able else ''}{by} trains it because {why}"
    return _line(part, by, able, own or other)


def _line(part: Part, by: str, able: bool | None, reason: str) -> LayerTraining:
    count = sum(p.numel() for p in dict.fromkeys(part.parameters))
    return LayerTraining(part.name or "model", part.kind, count, by, able, reason)


def _trained_by(trainer: Trainer) -> str:
    if isinstance(trainer, ClippedExamplesTrainer):
        return NATIVE if trainer.in_native_code else VMAP
    if isinstance(trainer, CompiledTrainer):
        return NATIVE
    return VMAP if isinstance(trainer, VmapTrainer) else LOOP


def _named(parts: Sequence[Part], refused: Sequence[Sequence[str] | None]) -> Iterator[str]:
    """Yield one reason, which names the layers that native code cannot train.

    Yields nothing if there are no such layers. For each of the `parts`, `refused` has the reasons
    why native code cannot train it. They are empty if it can, and None if this is not known.
    """
    names = [
        f"layer {part.name} ({part.kind})" if part.name else f"the model ({part.kind})"
        for part, reasons in zip(parts, refused, strict=True)
        if reasons
    ]
    more = len(names) - _MOST_NAMED
    if more > 0:
        names[_MOST_NAMED:] = [f"{more} more"]
    if names:
        *others, last = names
        yield f"of {', '.join(others)} and {last}" if others else f"of {last}"


def _known(model: nn.Module) -> set[type[nn.Module]]:
    """Return the classes of layers that native code supports.

    Without numba, there is no native code. The result is then the classes of the modules in `model`
    that have no submodules.
    """
    if not HAVE_NUMBA:
        return {type(module) for module in model.modules() if not any(module.children())}
    from fedveil.compiled.chain import KNOWN

    return KNOWN


def _input_shapes(model: nn.Module, shape: ModelShape) -> dict[nn.Module, tuple[int, ...]]:
    """Return the shape of each module's input for one example.

    Calls the model once. Leaves out modules that are not called or are called with several shapes,
    and TorchScript modules, which allow no hooks. If the call raises an error, the result has only
    modules that were called before it. It is empty if examples have several arrays or lengths.
    """
    seen: dict[nn.Module, set[tuple[int, ...]]] = {}

    def note(module: nn.Module, inputs: tuple[object, ...]) -> None:
        if inputs and isinstance(inputs[0], torch.Tensor):
            seen.setdefault(module, set()).add(tuple(inputs[0].shape[1:]))

    if is_uneven(shape.example_shape):
        return {}
    assert not isinstance(shape.example_shape, dict)
    kind = np.int64 if shape.whole_examples else np.float32
    hooks = [
        module.register_forward_pre_hook(note)
        for module in model.modules()
        if not isinstance(module, torch.jit.ScriptModule)
    ]
    try:
        x = taken(model, np.zeros((1, *shape.example_shape), kind))
        with torch.no_grad():
            model.eval()(torch.from_numpy(x))
    except Exception:  # noqa: S110  # the user's model may raise anything
        pass
    finally:
        for hook in hooks:
            hook.remove()
    return {module: next(iter(shapes)) for module, shapes in seen.items() if len(shapes) == 1}


def _shape(job: Job) -> ModelShape:
    for entry in available():
        if entry.name == job.data.name:
            tokens = entry.targets == "tokens"
            return ModelShape(entry.shape, entry.classes, whole_examples=tokens)
    return ModelShape.of(load_data(job))
