"""A party: its parts, their optimisers, and its side of every step.

A party yields requests to send and receive (`channel`), and does not know where other parties are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

import numpy as np
import torch
from torch import nn

from fedveil.base.array_types import Uint64s
from fedveil.base.validate import integer
from fedveil.entropy import Entropy, Secure, Seeded
from fedveil.errors import (
    ExchangeError,
    InvalidValue,
    LinkLost,
    PartFailed,
    PeerAborted,
    PeerAtLimit,
    PeerRefused,
)
from fedveil.link.channel import Exchange, Send
from fedveil.vertical.compression import Errors
from fedveil.vertical.crossing import abort_message, is_finite
from fedveil.vertical.crossing_reports import Reports
from fedveil.vertical.part_optimizers import PartOptimizers
from fedveil.vertical.schedule import Program, micro_sizes, programs
from fedveil.vertical.split import SplitModel, module_of
from fedveil.vertical.step import Batch, Context, Loss, Report, Returned, Step, last_words

T = TypeVar("T")
#: The seeds of this number of steps are drawn together.
_SEEDS = 64


class Party:
    """One party of a split model.

    A step trains on one batch with all parties. Either all parties apply it, or none does:

    - The receiver checks every tensor: name, step, micro-batch, type, shape, finiteness.
    - A party changes weights and optimisers only after it knows that every party has received and
      checked all tensors of the step.
    - An unexpected tensor ends the step with ExchangeError at every party. All parties then restore
      the weights, optimiser states and running statistics from before the step.

    There is one exception. If a process dies or a link breaks after the check, one party may have
    applied the step and another not. All parties then go back to their last common checkpoint.

    A step divides its batch into `in_flight` micro-batches, and adds up their gradients, each
    weighted by its share of the batch. With a single micro-batch, the results are bit-identical to
    those of the joined model. No gradient is stale.

    `loss` returns a batch's mean loss, and only the leader has it. If `tell_loss` is True, the
    leader sends this loss to the followers. `entropy` is the randomness of EmbeddingDP, and `seed`
    that of dropout. `report`, if given, replaces the function that turns outputs into EmbeddingDP's
    bits. `returned`, if given, is a function that is applied to the gradients that the leader
    returns. `failed`, if given, is called with the error of a part that fails, before another party
    learns of it.
    """

    def __init__(
        self,
        name: str,
        split: SplitModel,
        *,
        loss: Loss | None = None,
        in_flight: int = 1,
        entropy: Entropy | None = None,
        seed: int = 0,
        device: str = "cpu",
        tell_loss: bool = True,
        report: Report | None = None,
        returned: Returned | None = None,
        failed: Callable[[PartFailed], None] = lambda failure: None,
    ) -> None:
        if name not in split.parties:
            raise InvalidValue(f"name = {name!r} is not one of {', '.join(split.parties)}")
        if (loss is not None) != (name == split.leader):
            raise InvalidValue(
                f"loss must be given to the leader, {split.leader}, and to no other party; "
                f"name = {name}"
            )
        self.name = name
        self.split = split
        self.in_flight = integer("in_flight", in_flight, 1)
        self.device = torch.device(device)
        self.modules = nn.ModuleDict(
            {part.name: module_of(part).to(self.device) for part in split.owned_by(name)}
        )
        self.waited_s = 0.0
        self.sent_bytes = self.received_bytes = 0
        self._failed = failed
        self._seed = seed
        self._seeds: tuple[int, Uint64s] = -1, np.zeros(0, np.uint64)
        first = Context(
            name=name,
            split=split,
            device=self.device,
            report=report or Reports(Secure() if entropy is None else entropy),
            loss=loss,
            tell_loss=tell_loss,
            returned=returned,
            errors=Errors(),
        )
        self._errors = first.errors
        self._contexts = {False: first, True: replace(first, split=split.settled)}
        self._context = first
        self._peers = split.followers if name == split.leader else (split.leader,)
        self._optimizers = PartOptimizers(split, name)
        self._statistics = _Statistics(self.modules)
        self._parameters = list(self.modules.parameters())
        self._programs: dict[tuple[SplitModel, int, bool], tuple[Program, frozenset[int]]] = {}
        self._bytes: dict[tuple[SplitModel, int, bool, int], tuple[int, int]] = {}

    def step(self, number: int, batch: Batch, *, settled: bool = False) -> Exchange[float | None]:
        """Train on a batch. Returns its mean loss, or None if this party does not get the loss.

        All parties must give a step the same `number`. `settled` is True if every example was in an
        earlier step. Parts with `reuse` then send their saved reports, and are not trained.
        """
        self._context = self._contexts[settled]
        self._switch(training=True)
        self._statistics.keep()
        try:
            step = yield from self._run(number, batch, training=True, occasion=0, subset="train")
        except BaseException:
            self._clear()
            self._statistics.put_back()
            raise
        self._optimizers.step(number)
        self._errors.keep(step.left_out)
        self._clear()
        return step.loss

    def look(
        self, number: int, batch: Batch, *, occasion: int = 0, subset: str = "test"
    ) -> Exchange[torch.Tensor | None]:
        """Compute the model's outputs for a batch, with its data protected as in training.

        Returns the last part's outputs at the leader, and None at a follower. No weights change.
        `number` is the number of the batch in the evaluation `occasion`. EmbeddingDP's noise is
        independent in different batches and evaluations. The batch's positions refer to the
        examples of `subset`.
        """
        self._context = self._contexts[False]
        self._switch(training=False)
        step = yield from self._run(number, batch, training=False, occasion=occasion, subset=subset)
        return torch.cat(step.outputs) if step.outputs else None

    def announcing_failure(self, exchange: Exchange[T]) -> Exchange[T]:
        try:
            return (yield from exchange)
        except ExchangeError as error:
            if isinstance(error, PartFailed):
                self._failed(error)
            knows = error.peer if isinstance(error, PeerAborted) else None
            yield from self.end(error.told, at_limit=isinstance(error, PeerAtLimit), but=knows)
            raise

    def end(self, reason: str, *, at_limit: bool, but: str | None = None) -> Exchange[None]:
        """Tell every peer except `but` that the step is aborted, and the `reason`.

        `at_limit` is True if this party's privacy limit ends the run normally.
        """
        for peer in self._peers:
            if peer != but:
                with suppress(LinkLost, PeerRefused):  # the original error matters more
                    yield Send(peer, abort_message(reason, at_limit=at_limit))

    def state(self) -> dict[str, torch.Tensor]:
        """Return weights, running statistics, optimiser states and saved compression errors.

        Names are `<part>/<name>` for weights and statistics, `<part>//<parameter>/<name>` for
        optimiser states, and `<part>///forward` or `<part>///backward` for compression errors.
        """
        tensors = {
            f"{part}/{name}": tensor.detach()
            for part, module in self.modules.items()
            for name, tensor in module.state_dict().items()
        }
        return tensors | self._optimizers.state() | self._errors.state()

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        """Restore a `state`, whose tensors the caller must not use afterwards.

        Raises `InvalidValue` if the state does not fit this party.
        """
        weights: dict[str, dict[str, torch.Tensor]] = defaultdict(dict)
        held: dict[str, dict[int, dict[str, torch.Tensor]]] = defaultdict(dict)
        left_out: dict[str, dict[str, torch.Tensor]] = defaultdict(dict)
        for place, tensor in state.items():
            if tensor.is_floating_point() and not is_finite(tensor):
                raise InvalidValue(f"{place} is not finite")
            if place.endswith("running_var") and (tensor < 0).any():
                raise InvalidValue(f"{place} is a variance below 0")
            part, _, name = place.partition("/")
            if name.startswith("//"):
                left_out[part][name[2:]] = tensor
            elif name.startswith("/"):
                number, _, key = name[1:].partition("/")
                held[part].setdefault(int(number), {})[key] = tensor
            else:
                weights[part][name] = tensor
        self._check(weights, held)
        self._check_left_out(left_out)
        for part, module in self.modules.items():
            module.load_state_dict(weights[part])
        self._optimizers.restore(held)
        self._errors.restore(left_out)
        self._clear()
        self._statistics = _Statistics(self.modules)

    def _check(
        self,
        weights: Mapping[str, Mapping[str, torch.Tensor]],
        held: Mapping[str, Mapping[int, Mapping[str, torch.Tensor]]],
    ) -> None:
        if set(weights) - set(self.modules) or any(part not in self._optimizers for part in held):
            raise InvalidValue(f"it contains parts that are not {self.name}'s")
        for part, module in self.modules.items():
            if _described(weights.get(part, {})) != _described(module.state_dict()):
                raise InvalidValue(f"it does not contain exactly the tensors of {part}")
        self._optimizers.check(held)

    def _check_left_out(self, left_out: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
        feeds = {
            (each.part, direction): each.output
            for each in self.split.crossings
            for direction, sender in (("forward", each.sender), ("backward", each.receiver))
            if sender == self.name and each.compression and each.compression.error_feedback
        }
        for part, directions in left_out.items():
            for direction, tensor in directions.items():
                shape = feeds.get((part, direction))
                if tensor.dtype != torch.float32 or tensor.shape[1:] != shape:
                    raise InvalidValue(
                        f"{part}///{direction} is not a compression error of this party"
                    )

    def _run(
        self, number: int, batch: Batch, *, training: bool, occasion: int, subset: str
    ) -> Exchange[Step]:
        if not batch.rows:
            raise InvalidValue("a step needs at least one example; the batch has none")
        sizes = micro_sizes(batch.rows, self.in_flight)
        program, tells = self._program(len(sizes), training)
        # Messages have equal sizes in all steps with this key: step numbers of equal bit length are
        # encoded in equally many bytes.
        alike = self._context.split, batch.rows, training, number.bit_length()
        step = Step(
            self._context,
            program,
            tells,
            batch,
            sizes,
            number=number,
            training=training,
            occasion=occasion,
            subset=subset,
            seed=self._torch_seed(number) if training else 0,
            measure=alike not in self._bytes,
        )
        try:
            yield from self.announcing_failure(step.run())
        finally:
            self.waited_s += step.waited_s
        sent, received = self._bytes.setdefault(alike, (step.sent_bytes, step.received_bytes))
        self.sent_bytes += sent
        self.received_bytes += received
        return step

    def _torch_seed(self, number: int) -> int:
        """Return the seed of torch's random numbers in step `number`, equal in a resumed run."""
        block, place = divmod(number, _SEEDS)
        if block != self._seeds[0]:
            self._seeds = block, Seeded(self._seed, "torch", self.name, block).words(_SEEDS)
        return int(self._seeds[1][place]) >> 2

    def _program(self, micros: int, training: bool) -> tuple[Program, frozenset[int]]:
        split = self._context.split
        key = split, micros, training
        if key not in self._programs:
            program = programs(split, micros, training=training)[self.name]
            self._programs[key] = program, last_words(program, split.leader)
        return self._programs[key]

    def _switch(self, *, training: bool) -> None:
        for part in self._context.split.owned_by(self.name):
            module, wanted = self.modules[part.name], training and not part.frozen
            if module.training != wanted:
                module.train(wanted)

    def _clear(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None


def _described(tensors: Mapping[str, torch.Tensor]) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}


class _Statistics:
    def __init__(self, modules: nn.Module) -> None:
        self._buffers = list(modules.buffers())
        self._moving: set[int] | None = None
        self._kept: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._versions: list[int] = []

    def keep(self) -> None:
        if self._versions:
            held = enumerate(zip(self._buffers, self._versions, strict=True))
            seen = {place for place, (buffer, version) in held if buffer._version != version}
            self._moving = seen | (self._moving or set())
        self._versions = [buffer._version for buffer in self._buffers]
        self._kept = [
            (buffer, buffer.clone())
            for place, buffer in enumerate(self._buffers)
            if self._moving is None or place in self._moving
        ]

    def put_back(self) -> None:
        with torch.no_grad():
            for buffer, kept in self._kept:
                buffer.copy_(kept)
