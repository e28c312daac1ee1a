"""Executes one party's instructions for a training step, or for the evaluation of a batch."""

from __future__ import annotations

import functools
import itertools
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedveil.base.array_types import Float32s
from fedveil.base.message import Message, Value, encoded_bytes, quoted
from fedveil.base.own_code import place_of
from fedveil.errors import ExchangeError, FedveilError, ModelInvalid, PartFailed
from fedveil.learning.device import seed_generators
from fedveil.link.channel import Exchange, Receive, Send
from fedveil.vertical import schedule
from fedveil.vertical.compression import Errors, Place, compressed, restored, staging
from fedveil.vertical.crossing import (
    SCORE,
    check_not_abort,
    check_word,
    fields_of,
    from_wire,
    is_finite,
    tensor_message,
    to_wire,
)
from fedveil.vertical.schedule import Program, Transfer
from fedveil.vertical.split import DATA, DTYPES, Crossing, Part, SplitModel, module_of

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
#: A function that turns a crossing's values into packed bits of EmbeddingDP.
Report = Callable[[Crossing, npt.NDArray[np.float32], "Occasion"], npt.NDArray[np.uint8]]

#: A function that processes a gradient and the labels of its examples before the gradient is
#: returned.
Returned = Callable[[Crossing, torch.Tensor, torch.Tensor, "Occasion"], torch.Tensor]


@dataclass(frozen=True, eq=False)
class Batch:
    """One party's rows of a batch or micro-batch, at `positions` in the order all parties use."""

    positions: npt.NDArray[np.int64]
    columns: Mapping[str, torch.Tensor] = field(default_factory=dict)
    labels: torch.Tensor | None = None

    @property
    def rows(self) -> int:
        return len(self.positions)


@dataclass(frozen=True)
class Occasion:
    """Identifies the micro-batch for which a tensor is sent.

    `step` is the training step or the evaluation's batch. `number` identifies the evaluation (0 in
    training). Each part has an independent stream of random numbers for each occasion.
    """

    subset: str
    number: int
    step: int
    micro: int
    positions: npt.NDArray[np.int64] = field(compare=False)

    @property
    def path(self) -> tuple[str | int, ...]:
        return self.subset, self.number, self.step, self.micro


@dataclass(frozen=True, eq=False)
class Context:
    name: str
    split: SplitModel
    device: torch.device
    report: Report
    #: Only the leader has it.
    loss: Loss | None = None
    #: If True, followers receive the loss of every step.
    tell_loss: bool = True
    #: Processes gradients before they are returned. Only the leader has it.
    returned: Returned | None = None
    #: The compression errors, for error feedback.
    errors: Errors = field(default_factory=Errors)

    @cached_property
    def places(self) -> Mapping[str, int]:
        """Map each part's name to an offset for its random seeds, a different one for each part."""
        return {part.name: number << 20 for number, part in enumerate(self.split.parts)}


@dataclass(eq=False)
class Step:
    """Runs one party's `program`, the instructions for a training step or an evaluated batch.

    `tells` has the indices of the instructions that send or receive the loss (`last_words`).
    `sizes` are the sizes of the micro-batches. `number` is the number of the training step, or of
    the batch in the evaluation that `occasion` identifies. The batch's positions refer to the
    examples of `subset`. `seed` seeds torch's random numbers in the party's modules. If `measure`
    is True, the bytes sent and received are counted.
    """

    context: Context
    program: Program
    tells: frozenset[int]
    batch: Batch
    sizes: tuple[int, ...]
    number: int
    training: bool
    occasion: int
    subset: str
    seed: int
    measure: bool
    #: The batch's mean loss, once this party knows it.
    loss: float | None = None
    #: The last part's outputs by micro-batch, at the leader in an evaluation.
    outputs: list[torch.Tensor] = field(default_factory=list)
    sent_bytes: int = 0
    received_bytes: int = 0
    waited_s: float = 0.0
    #: The compression errors of this step.
    left_out: dict[Place, list[tuple[npt.NDArray[np.int64], Float32s]]] = field(
        default_factory=staging
    )

    def __post_init__(self) -> None:
        self._micros = _cut(self.batch, self.sizes, self.context.device)
        self._values: dict[tuple[str, int], torch.Tensor] = {}
        self._leaves: dict[tuple[str, int], torch.Tensor] = {}
        self._returned: dict[tuple[str, str, int], torch.Tensor] = {}
        self._reports: dict[tuple[str, int], npt.NDArray[np.uint8]] = {}
        #: The tensors that have arrived, by micro-batch, as a sentence names them.
        self._arrived: list[list[str]] = [[] for _ in self.sizes]
        self._tells = self.tells if self.training and self.context.tell_loss else frozenset()

    def run(self) -> Exchange[None]:
        for place, instruction in enumerate(self.program):
            match instruction:
                case schedule.Compute():
                    try:
                        self._compute(instruction)
                    except ExchangeError:
                        raise
                    except Exception as error:  # a user's module may raise anything
                        raise self._failure(instruction.part, error) from error
                case schedule.SendTensor(transfer):
                    try:
                        message = self._tensor(transfer, place)
                    except ExchangeError:
                        raise
                    except Exception as error:  # EmbeddingDP rejects the module's output
                        raise self._failure(transfer.crossing.part, error) from error
                    yield self._send(transfer.receiver, message)
                case schedule.ReceiveTensor(transfer):
                    arrived = yield from self._receive(transfer.sender)
                    self._arrive(transfer, self._hear(arrived, transfer.sender, place))
                case schedule.SendWord(word, peer):
                    told = {"kind": word, "step": self.number, **self._told(place)}
                    yield self._send(peer, told)
                case schedule.ReceiveWord(word, peer):
                    arrived = yield from self._receive(peer)
                    check_word(self._hear(arrived, peer, place), peer, word, self.number)
                case schedule.Apply():
                    return

    def _send(self, peer: str, message: Message) -> Send:
        if self.measure:
            self.sent_bytes += encoded_bytes(message)
        return Send(peer, message)

    def _receive(self, peer: str) -> Exchange[Message]:
        began = time.perf_counter()
        message = yield Receive(peer)
        self.waited_s += time.perf_counter() - began
        assert message is not None, "an engine answers a Receive with a message"
        if self.measure:
            self.received_bytes += encoded_bytes(message)
        return message

    def _told(self, place: int) -> dict[str, Value]:
        return {"loss": self.loss} if place in self._tells and self.loss is not None else {}

    def _hear(self, message: Message, peer: str, place: int) -> Message:
        """Save the loss if the instruction with the index `place` receives it from `peer`.

        Returns the message without the loss. Raises ExchangeError if the loss is not finite.
        """
        if place not in self._tells or peer != self.context.split.leader:
            return message
        check_not_abort(message, peer)
        loss = message.get("loss")
        if type(loss) is not float or not math.isfinite(loss):
            raise ExchangeError(
                f"{peer} sent the loss {quoted(loss)} where a finite number was due"
            )
        self.loss = loss
        return {name: value for name, value in message.items() if name != "loss"}

    # --- computation

    def _compute(self, operation: schedule.Compute) -> None:
        part, micro = self.context.split.by_name[operation.part], operation.micro
        match operation.kind:
            case "forward":
                output = self._forward(part, micro)
                if not self.training and part is self.context.split.last:
                    self.outputs.append(output)
                else:
                    self._values[part.name, micro] = output
            case "loss":
                self._learn(self._forward(part, micro), micro)
            case "backward":
                output = self._values.pop((part.name, micro))
                gradient = self._gradient(part.name, micro)
                if output.requires_grad and gradient is not None:
                    torch.autograd.backward(output, gradient)

    def _forward(self, part: Part, micro: int) -> torch.Tensor:
        module = module_of(part)
        backward = self.training and self.context.split.runs_backward(part.name)
        seed = self.seed + self.context.places[part.name] + micro
        seed_generators(seed & (1 << 63) - 1, self.context.device)
        with torch.set_grad_enabled(backward):
            output = module(*(self._input(name, micro) for name in part.inputs))
        shape = (self._micros[micro].rows, *part.output)
        if not isinstance(output, torch.Tensor) or output.shape != shape:
            is_tensor = isinstance(output, torch.Tensor)
            found = tuple(output.shape) if is_tensor else type(output).__name__
            raise ModelInvalid(f"it returned {found}, not a tensor of shape {shape}")
        if output.dtype != DTYPES[part.dtype]:
            raise ModelInvalid(f"it returned {output.dtype}; the part states {part.dtype}")
        return output

    def _input(self, source: str, micro: int) -> torch.Tensor:
        """Return the column or part's output that is called `source`, for micro-batch `micro`.

        If several parts of this party read an output, all of them get the same tensor, so that
        autograd adds up their gradients in it.
        """
        if source.startswith(DATA):
            return self._micros[micro].columns[source[len(DATA) :]]
        leaf = self._leaves.get((source, micro))
        if leaf is None:  # a part of this party; another party's output is stored when it arrives
            value = self._values[source, micro]
            leaf = self._leaves[source, micro] = value.detach()
            if self.training and self.context.split.runs_backward(source):
                leaf.requires_grad_()
        return leaf

    def _learn(self, output: torch.Tensor, micro: int) -> None:
        labels, rows = self._micros[micro].labels, self._micros[micro].rows
        assert self.context.loss is not None, "the leader has the loss"
        assert labels is not None, "the leader has the labels"
        loss = self.context.loss(output, labels)
        if rows != self.batch.rows:
            loss = loss * (rows / self.batch.rows)
        value = float(loss.detach())
        if not math.isfinite(value):
            raise ExchangeError(f"the loss of step {self.number} is {value}")
        self.loss = (self.loss or 0.0) + value
        if loss.requires_grad:
            torch.autograd.backward(loss)

    def _gradient(self, name: str, micro: int) -> torch.Tensor | None:
        leaf = self._leaves.pop((name, micro), None)
        found = [] if leaf is None or leaf.grad is None else [leaf.grad]
        for crossing in self.context.split.crossings:
            if crossing.part == name and crossing.gradient:
                found.append(self._returned.pop((name, crossing.receiver, micro)))
        if not found:
            return None
        return functools.reduce(torch.add, found)

    # --- messages

    def _tensor(self, transfer: Transfer, place: int) -> Message:
        crossing, micro = transfer.crossing, transfer.micro
        if transfer.gradient:
            leaf = self._leaves.pop((crossing.part, micro))
            gradient = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
            labels = self._micros[micro].labels
            if self.context.returned is not None and labels is not None:
                occasion = self._occasion(micro)
                gradient = self.context.returned(crossing, gradient, labels, occasion)
            self._check_finite(gradient, f"the gradient of {crossing.part} from", micro)
            fields = self._values_of(transfer, gradient)
        elif crossing.privacy is not None:
            fields = {"data": self._report(crossing, micro)}
        else:
            values = self._values[crossing.part, micro]
            if self.subset != SCORE:
                self._check_finite(values, f"the output of {crossing.part} of", micro)
            fields = self._values_of(transfer, values)
        sent = tensor_message(transfer, fields, training=self.training, step=self.number)
        return {**sent, **self._told(place)}

    def _values_of(self, transfer: Transfer, tensor: torch.Tensor) -> dict[str, npt.NDArray[Any]]:
        crosses = transfer.crossing.compressed(gradient=transfer.gradient)
        if crosses is None or not crosses.error_feedback or not self.training:
            return fields_of(transfer, tensor)
        place = transfer.crossing.part, transfer.gradient
        positions = self._micros[transfer.micro].positions
        values = tensor.detach().float().cpu().numpy()
        values = values + self.context.errors.of(place, positions, values)
        data, ranges = compressed(values, crosses.bits)
        told = restored(data, ranges, values.shape, crosses.bits)
        self.left_out[place].append((positions, values - told))
        return {"data": data, "ranges": ranges}

    def _check_finite(self, tensor: torch.Tensor, what: str, micro: int) -> None:
        """Raise ExchangeError if the tensor, described by `what`, contains NaN or infinity."""
        if is_finite(tensor):
            return
        sources = ", ".join(self._arrived[micro])
        raise ExchangeError(
            f"{what} {self.context.name} contains NaN or infinity"
            + (f", computed from {sources}" if sources else "")
        )

    def _report(self, crossing: Crossing, micro: int) -> npt.NDArray[np.uint8]:
        """Return the EmbeddingDP bits of the output that `crossing` sends, for micro-batch `micro`.

        All parties that receive this output get the same bits.
        """
        report = self._reports.get((crossing.part, micro))
        if report is None:
            values = to_wire(self._values[crossing.part, micro])
            report = self.context.report(crossing, values, self._occasion(micro))
            self._reports[crossing.part, micro] = report
        return report

    def _occasion(self, micro: int) -> Occasion:
        positions = self._micros[micro].positions
        return Occasion(self.subset, self.occasion, self.number, micro, positions)

    def _arrive(self, transfer: Transfer, message: Message) -> None:
        crossing, micro = transfer.crossing, transfer.micro
        rows, finite = self._micros[micro].rows, self.subset != SCORE
        tensor = from_wire(
            message, transfer, training=self.training, step=self.number, rows=rows, finite=finite
        )
        tensor = tensor.to(self.context.device)
        what = f"the gradient of {crossing.part}" if transfer.gradient else crossing.part
        self._arrived[micro].append(f"{what} of {transfer.sender}")
        if transfer.gradient:
            self._returned[crossing.part, crossing.receiver, micro] = tensor
        else:
            backward = self.training and crossing.gradient
            self._leaves[crossing.part, micro] = tensor.requires_grad_(backward)

    def _failure(self, part: str, error: Exception) -> PartFailed:
        """Return the error for a failure in `part`. Other parties learn only the part's name."""
        kind = "" if isinstance(error, FedveilError) else f"{type(error).__name__}: "
        place = place_of(error)
        where = "" if place is None else f" ({place})"
        told = f"the part {part} of {self.context.name} failed"
        return PartFailed(f"{told}: {kind}{error}{where}", told=told)


def _cut(batch: Batch, sizes: tuple[int, ...], device: torch.device) -> list[Batch]:
    return [
        Batch(
            batch.positions[end - size : end],
            {name: column[end - size : end].to(device) for name, column in batch.columns.items()},
            None if batch.labels is None else batch.labels[end - size : end].to(device),
        )
        for size, end in zip(sizes, itertools.accumulate(sizes), strict=True)
    ]


def last_words(program: Program, leader: str) -> frozenset[int]:
    """Return the indices in `program` of the instructions whose messages carry the loss.

    The leader sends the loss in its last message to each follower.
    """
    places: dict[tuple[str, str], int] = {}
    for place, step in enumerate(program):
        match step:
            case schedule.SendTensor(transfer) if transfer.sender == leader:
                places["to", transfer.receiver] = place
            case schedule.ReceiveTensor(transfer) if transfer.sender == leader:
                places["from", leader] = place
            case schedule.SendWord("commit", peer):
                places["to", peer] = place
            case schedule.ReceiveWord("commit", _):
                places["from", leader] = place
    return frozenset(places.values())
