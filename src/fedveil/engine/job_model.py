"""The model of a job, with its initial weights. Every process of a run builds an equal one."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import nn

from fedveil.base.example_arrays import Shape
from fedveil.base.own_code import is_function
from fedveil.data.datasets import Dataset
from fedveil.data.text_folder import TextForm
from fedveil.entropy import Seeded
from fedveil.errors import ModelInvalid
from fedveil.federated.job import Job
from fedveil.learning import models
from fedveil.learning.device import free_bytes
from fedveil.learning.own_layers import keep_own, own_names
from fedveil.learning.trained_part import TrainedPart, only_head
from fedveil.learning.weight_layout import Layout
from fedveil.pretrained import language_model
from fedveil.pretrained.base_weights import fingerprint
from fedveil.pretrained.model_folder import ModelFolder
from fedveil.record.byte_count import shown_bytes

#: Names under which configurations of language models state the width of a last layer's input.
_WIDTHS = (
    "hidden_size", "n_embd", "d_model", "dim", "word_embed_proj_dim", "embedding_size",
)  # fmt: skip


@dataclass(frozen=True)
class ModelShape:
    """The properties of the data that determine the model's form, and the model's fingerprint.

    `classes` is the number of the model's outputs. `target_shape` is the shape of one target of a
    user's own task. `whole_targets` is True if targets consist of integers, and `whole_examples` is
    True if examples do. `fingerprint` is a digest of the model's tensors, or "" if it is not yet
    known.
    """

    example_shape: Shape
    classes: int
    fingerprint: str = ""
    target_shape: tuple[int, ...] = ()
    whole_targets: bool = False
    whole_examples: bool = False

    @classmethod
    def of(cls, dataset: Dataset) -> ModelShape:
        """Return the properties of a dataset. The model's fingerprint is left empty."""
        x, y = dataset.test.x, dataset.test.y
        return cls(
            dataset.example_shape,
            dataset.classes,
            target_shape=dataset.target_shape,
            whole_targets=y.dtype.kind != "f",
            whole_examples=x.dtype.kind != "f",
        )

    @property
    def numbers(self) -> int:
        """The number of values in one example plus the number of the model's outputs.

        A dimension of variable length counts as 1. `check_weights` compares the result with the
        number of weights that the server sent.
        """
        shape = self.example_shape
        arrays = shape.values() if isinstance(shape, dict) else [shape]
        return sum(math.prod(map(abs, sizes)) for sizes in arrays) + self.classes

    def with_fingerprint(self, model: nn.Module) -> ModelShape:
        """Return this shape with the fingerprint of `model`."""
        return replace(self, fingerprint=fingerprint(model))


def make_model(job: Job, shape: ModelShape) -> nn.Module:
    """Return the job's model with its initial weights, drawn from the job's seed.

    Raises `ModelInvalid` if `shape` has a fingerprint and the model has a different one.
    """
    weights = job.training.class_weights
    if weights is not None and len(weights) != shape.classes:
        raise ModelInvalid(
            f"training.class_weights has {len(weights)} numbers, but the data has {shape.classes} "
            f"classes. Use one number per class"
        )
    entropy = Seeded(job.seed, "initial weights")
    if job.has_language_model:
        model = _language_model(job, shape, entropy)
    else:
        model = models.build(job.model, shape.example_shape, shape.classes, entropy)
        model = only_head(model) if job.training.train == "head" else model
    if job.clients.own_layers:
        model = keep_own(model, job.clients.own_layers)
    Layout(model)  # raises an error that names a tensor which cannot be trained
    found = fingerprint(model)
    if shape.fingerprint and found != shape.fingerprint:
        raise ModelInvalid(
            f"model = {job.model!r} returned another model when it was called again. Its function "
            f"must depend only on its arguments and the seed"
        )
    return model


def check_weights(job: Job, shape: ModelShape, sent: int) -> None:
    """Raise `ModelInvalid` if the job's model for examples of this `shape` is too large.

    A client calls this before `make_model`, because `shape` comes from a server that it does not
    trust. The check allocates no memory for weights. There are two limits:

    - The weights that clients train and send must be at most `sent`, the number of weights that the
      server sent.
    - The other weights are fixed or stay with the client. The free memory must have room for two
      copies of them (`Layout` makes the second).

    Not everything is checked. Of a language model, only the classification layer is. A user's model
    is not checked if its examples and outputs are small (`shape.numbers` is at most 2 * `sent`), or
    if the user's function cannot build the model without values (`models.outline`).
    """
    kept = 0
    if job.has_language_model:
        # The last layer has a row of weights for each class.
        config = _folder(job).config
        widths = [config[name] for name in _WIDTHS if isinstance(config.get(name), int)]
        classes = shape.classes if job.task == "sequence_classification" else 0
        due = classes * min(widths, default=1)
    else:
        if is_function(job.model) and shape.numbers <= 2 * sent:
            return  # it is small, and a function that caches a layer would cache it without values
        model = models.outline(job.model, shape.example_shape, shape.classes)
        if model is None:
            return
        model = only_head(model) if job.training.train == "head" else model
        model = keep_own(model, job.clients.own_layers) if job.clients.own_layers else model
        part = TrainedPart.of(model).module
        own = own_names(part)
        trained = [p for name, p in part.named_parameters() if p.requires_grad and name not in own]
        due = sum(t.numel() for t in trained if _known(t))
        tensors = filter(_known, (*model.parameters(), *model.buffers()))
        kept = sum(t.numel() * t.element_size() for t in tensors) - 4 * due
    if due > sent:
        raise ModelInvalid(
            f"a model for examples of the server's shape and {shape.classes:,} outputs has at "
            f"least {due:,} weights, but the server sends {sent:,}"
        )
    free = free_bytes("cpu")
    if free is not None and 2 * kept > free:
        raise ModelInvalid(
            f"a model for examples of the server's shape and {shape.classes:,} outputs needs "
            f"{shown_bytes(2 * kept)} for weights that are fixed or stay with this client, but "
            f"{shown_bytes(free)} of memory is free"
        )


def _known(tensor: torch.Tensor) -> bool:
    """Return True unless `tensor` belongs to a lazy layer, which has no shape and no type yet."""
    return not isinstance(tensor, nn.UninitializedParameter | nn.UninitializedBuffer)


def text_form(job: Job) -> TextForm | None:
    """Return the rule that turns texts into examples, or None if the model has no tokeniser."""
    if not job.has_language_model:
        return None
    return TextForm(_folder(job), job.task, job.language.length, job.data.by_owner)


def _folder(job: Job) -> ModelFolder:
    return ModelFolder.of(job.model, job.language.config)


def _language_model(job: Job, shape: ModelShape, entropy: Seeded) -> nn.Module:
    if isinstance(shape.example_shape, dict) or len(shape.example_shape) != 1:
        raise ModelInvalid(
            f"model = {job.model} needs rows of tokens, not examples of {shape.example_shape}"
        )
    adapter, classifies = job.adapter, job.task == "sequence_classification"
    part = language_model.Trained(
        language_model.Adapter(adapter.rank, adapter.alpha, tuple(adapter.targets))
        if adapter.kind == "lora"
        else None,
        head=job.training.train == "head",
        classes=shape.classes if classifies else None,
        recompute=job.language.recompute,
    )
    tokens = 0 if classifies else shape.classes
    (length,) = shape.example_shape
    return language_model.build(_folder(job), part, length, tokens, entropy.integer(1 << 63))
