"""One step on a secretly sampled batch, in which every example's contribution is clipped.

A client takes each of its examples into the batch independently, with the same probability. The
client's update is the sum over the batch of

    -lr / batch_size * gradient,   scaled down to the L2 norm `clip` if it is longer,

where `batch_size` is the number in the job, whatever the size of the batch. The sum itself is not
clipped. An example contributes nothing if it is not usable, if its gradient is not finite, or if
its gradient cannot be computed. An empty batch gives an update of zeros. So an example affects only
its own contribution.

With a finite clip, adding or removing one contribution changes the update by at most the clip,
including rounding (`privacy.grid_sensitivity`). In a linear model, an example's contribution does
not depend on the other examples of its batch. For other models, torch computes the gradients of a
fixed number of examples at once. The other examples of the batch then determine at which position
of this group an example is computed, and which random numbers it draws, such as for dropout. If an
example's gradient cannot be computed, the group is computed again, with another of its examples in
that place. A model of the user's own may store something of an example in an attribute, such as a
running mean. It is forgotten before the next group (`forgotten`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from fedveil.base.array_types import Bools, Float32s, Float64s, Int64s
from fedveil.base.kernels import HAVE_NUMBA
from fedveil.entropy import Seeded
from fedveil.errors import InvalidValue, ModelInvalid
from fedveil.learning.device import seed_generators, whole_float32
from fedveil.learning.forgotten_state import forgotten
from fedveil.learning.linear_head import LinearHead
from fedveil.learning.losses import Loss, separate_loss
from fedveil.learning.token_layers import beyond_is_nan
from fedveil.learning.trainer import ClientData, OneThread, Trained, TrainingPlan
from fedveil.learning.weight_layout import Layout
from fedveil.pretrained.base_weights import base_names
from fedveil.privacy.grid_sensitivity import MOST, as_update, clip_within

#: The most gradient entries in memory at a time, and the most examples.
_ENTRIES, _AT_ONCE = 1 << 22, 64


class ClippedExamplesTrainer(OneThread):
    """Trains clients one after another. Each client makes one step on a secretly sampled batch.

    `rate` is the probability with which an example is drawn. `clip` bounds the L2 norm of an
    example's contribution to the update. Infinity means no bound. `loss` replaces the plan's loss.
    """

    def __init__(
        self,
        model: nn.Module,
        plan: TrainingPlan,
        *,
        rate: float,
        clip: float = math.inf,
        device: str = "cpu",
        loss: Loss | None = None,
    ) -> None:
        _refuse_mixing(model)
        self._layout = Layout(model)
        self._rate, self._clip = rate, clip
        self._share = plan.lr / plan.batch_size
        within = clip_within(clip, self._layout.dimension) if math.isfinite(clip) else clip
        known = plan.loss == "cross_entropy" and device == "cpu"
        loss = loss or separate_loss(plan.loss, plan.class_weights)
        self._of_any = partial(_AnyModel, model, loss, device)
        linear = LinearHead.of(model, self._layout) if known else None
        self._sums = linear or self._of_any()
        self._within = within
        self._weights = np.empty(0, np.float32)

    @property
    def in_native_code(self) -> bool:
        """True if compiled code computes the gradients, False if torch's vmap does."""
        return HAVE_NUMBA and isinstance(self._sums, LinearHead)

    def compile(self, shape: Sequence[int]) -> bool:
        """Compile the native code for examples of `shape`.

        Returns False if native code cannot train the model on such examples.
        """
        x, y = torch.zeros(1, *shape), torch.zeros(1, dtype=torch.int64)
        if not (HAVE_NUMBA and isinstance(self._sums, LinearHead) and self._sums.takes(x)):
            return False
        total, weights = np.zeros(self._layout.dimension), np.zeros(self._layout.dimension, "f4")
        one = ClientData(x, y, Seeded(0))
        self._sums.add(total, weights, one, np.zeros(1, np.int64), self._share, self._within)
        return True

    def start(self, weights: Float32s, round: int = 1) -> None:
        self._weights = weights

    def train(self, clients: Sequence[ClientData]) -> Iterator[Trained]:
        for client in clients:
            row, failure = np.zeros(self._layout.dimension, np.float32), None
            try:
                with whole_float32():
                    row = self._update(client)
            except Exception as error:  # the user's model may raise anything
                failure = error
            yield row[None], [failure]

    def _update(self, client: ClientData) -> Float32s:
        taken = client.entropy.stream("batch").bernoulli(self._rate, len(client))
        batch = np.flatnonzero(taken)
        if len(batch) > MOST:
            raise InvalidValue(f"a batch of {len(batch)} examples is larger than {MOST}")
        total = np.zeros(self._layout.dimension)
        if isinstance(self._sums, LinearHead) and not self._sums.takes(client.x):
            self._sums = self._of_any()
        if len(batch):
            self._sums.add(total, self._weights, client, batch, self._share, self._within)
        return as_update(total, self._clip) if math.isfinite(self._clip) else total.astype("f4")


def _refuse_mixing(model: nn.Module) -> None:
    mixing = [
        name or type(module).__name__
        for name, module in model.named_modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm)
    ]
    if mixing:
        raise ModelInvalid(
            f"privacy.unit = example needs every example's own gradient, but BatchNorm "
            f"({', '.join(mixing)}) mixes the examples of a batch. Use GroupNorm or none"
        )


class _AnyModel:
    """Computes clipped gradients of any model with vmap. Examples that fail are left out."""

    def __init__(self, model: nn.Module, loss: Loss, device: str) -> None:
        self._batch_loss = loss
        self._device = torch.device(device)
        self._model = model.to(self._device).train()
        self._layout = Layout(self._model)
        self._learnt = [e for e in self._layout.entries if e.fate == "parameter"]
        entries = sum(e.stop - e.start for e in self._learnt)
        self._at_once = max(1, min(_AT_ONCE, _ENTRIES // entries))
        self._gradients = vmap(grad(self._loss), in_dims=(None, 0, 0), randomness="different")
        self._given: dict[str, torch.Tensor] = {}
        self._buffers = {name for name, _ in self._model.named_buffers()} - {*base_names(model)}

    def _loss(
        self, parameters: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor
    ) -> torch.Tensor:
        logits = functional_call(self._model, (parameters, self._given), (x[None],))
        return self._batch_loss(logits, y[None])

    def add(
        self,
        total: Float64s,
        weights: Float32s,
        client: ClientData,
        batch: Int64s,
        share: float,
        clip: float,
    ) -> None:
        """Add the clipped contributions of a client's examples, at the indices `batch`, to `total`.

        `weights` are the model's weights as a vector. `share` is lr / batch_size, and `clip` bounds
        the norm of a contribution. If no usable example has a gradient that can be computed, tries
        an example of zeros, so that a broken model raises an error (see `_check_gradient`).
        """
        start = torch.from_numpy(weights).to(self._device)
        self._layout.write(start)
        views = self._layout.views(start)
        named = {e.name: view for e, view in zip(self._layout.entries, views, strict=True)}
        parameters = {e.name: named.pop(e.name) for e in self._learnt}
        self._given = {**self._layout.kept, **named}
        seed, taken = client.torch_seed(), False
        for first in range(0, len(batch), self._at_once):
            some = batch[first : first + self._at_once]
            counts = np.ones(len(some), np.bool_) if client.usable is None else client.usable[some]
            draws = (seed + first) % (1 << 63)
            with beyond_is_nan(self._model):
                rows, counts = self._of_each(parameters, client, some, counts, draws)
            if rows is not None:
                taken = True
                self._spread(total, _clipped_sum(rows, torch.from_numpy(counts), share, clip))
        if not taken and len(batch):
            self._check_gradient(parameters, *self._on_device(*_zero_example(client)))

    def _check_gradient(
        self, parameters: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor
    ) -> None:
        """Raise an error if the gradient of one example cannot be computed.

        `x` is a batch of one example, and `y` a batch of its target. Raises `ModelInvalid` if torch
        can differentiate the model, but vmap cannot. Otherwise raises the error of vmap.
        """
        try:
            self._gradients(parameters, x, y)
        except Exception as error:  # the user's model may raise anything
            leaves = {name: value.clone().requires_grad_() for name, value in parameters.items()}
            try:
                loss = self._loss(leaves, x[0], y[0])
                torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
            except Exception:
                raise error from None
            raise ModelInvalid(
                "privacy.unit = example needs the gradient of every example, which torch.func.vmap "
                "cannot compute for this model, though torch can for one example: in the forward "
                "pass, use no values of tensors (.item(), `if` or `for` on a tensor), and do not "
                "write into tensors that do not depend on the example"
            ) from error

    def _of_each(
        self,
        parameters: dict[str, torch.Tensor],
        client: ClientData,
        some: Int64s,
        counts: Bools,
        draws: int,
    ) -> tuple[torch.Tensor | None, Bools]:
        """Return the gradients of the examples `some`, one per row, and a mask of valid rows.

        `some` has indices of the client's examples, and `counts` says for each index if its example
        is usable. A row is valid if its example is usable and its gradient can be computed. If no
        row is valid, returns None for the rows. An invalid example does not change a byte of the
        other rows. `draws` seeds dropout.
        """
        alone: list[torch.Tensor | None] = []
        while counts.any():
            beside = np.where(counts, some, some[np.argmax(counts)])
            try:
                return self._flat(parameters, client, beside, self._at_once, draws), counts
            except Exception:  # find out which examples fail
                if alone:  # no example fails alone, only the batch does
                    nothing = torch.zeros_like(next(row for row in alone if row is not None))
                    return torch.cat([nothing if row is None else row for row in alone]), counts
            alone = [self._alone(parameters, client, i, draws) for i in some]
            counts = counts & [row is not None for row in alone]
        return None, counts

    def _alone(
        self, parameters: dict[str, torch.Tensor], client: ClientData, one: int, draws: int
    ) -> torch.Tensor | None:
        try:
            return self._flat(parameters, client, np.array([one]), 1, draws)
        except Exception:  # the user's model may raise anything
            return None

    def _flat(
        self,
        parameters: dict[str, torch.Tensor],
        client: ClientData,
        some: Int64s,
        rows: int,
        draws: int,
    ) -> torch.Tensor:
        """Return the gradients of the examples `some`, one per row, computed in one vmap call.

        The call always gets `rows` examples. If `some` has fewer, they are repeated to fill it, and
        the gradients of the repetitions are dropped. `draws` seeds dropout.
        """
        seed_generators(draws, self._device)
        index = torch.from_numpy(np.resize(some, rows))
        with forgotten(self._model, self._given, self._buffers):
            found = self._gradients(parameters, *self._on_device(client.x[index], client.y[index]))
        flat = torch.cat([found[e.name].reshape(rows, -1) for e in self._learnt], 1)
        return flat[: len(some)].detach()

    def _on_device(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.to(self._device), y.to(self._device)

    def _spread(self, total: Float64s, moved: Float64s) -> None:
        """Add `moved`, a change of the trainable parameters, to their entries in `total`.

        `total` is a vector of the whole layout, which also has buffers. `moved` has only the
        entries of parameters, in the same order.
        """
        begin = 0
        for entry in self._learnt:
            end = begin + entry.stop - entry.start
            total[entry.start : entry.stop] += moved[begin:end]
            begin = end


def _zero_example(client: ClientData) -> tuple[torch.Tensor, torch.Tensor]:
    """Return an example of zeros and its target, shaped like the client's data."""
    return torch.zeros_like(client.x[:1]), torch.zeros_like(client.y[:1])


def _clipped_sum(
    gradients: torch.Tensor, counts: torch.Tensor, share: float, clip: float
) -> Float64s:
    norms = torch.linalg.vector_norm(gradients, dim=1, dtype=torch.float64)
    counts = counts.to(gradients.device) & torch.isfinite(norms)
    factors = torch.where(norms * share <= clip, share, clip / norms)
    factors = torch.where(counts, factors, 0.0)
    rows = torch.where(counts[:, None], gradients, 0.0).double()
    return -(factors @ rows).cpu().numpy()
