"""The schedule of a step: each party's operations in order, computed beforehand by every party.

A batch is cut into micro-batches, so one party can compute while another's tensors travel. List
scheduling with simulated times gives the order. The programs of one step guarantee:

- every operation occurs exactly once in its owner's program;
- operations of one part are in micro-batch order, so gradients are always added in the same order;
- weights change only in `apply`, the last instruction of a training program: no gradient is stale;
- a party receives messages in the order in which the other party sends them: a link is a queue;
- before `apply`, a party knows that every party has received and checked all tensors of the step:

      `ready`    follower -> leader: the follower has checked all that it receives in the step
      `commit`   leader -> follower: every party has checked all that it receives

  A party omits such a message if it sends a tensor to the same receiver after it has received and
  checked all tensors of the step that are sent to it, because that tensor means the same. With
  several followers, the leader always sends `commit`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from fedveil.vertical.split import Crossing, Part, SplitModel

Kind: TypeAlias = Literal["forward", "loss", "backward"]
#: An operation that is done on each micro-batch: its kind and the part.
_Stage: TypeAlias = tuple[Kind, str]

#: The simulated durations of operations and transfers, relative to a forward pass.
_DURATION: dict[Kind, int] = {"forward": 1, "loss": 3, "backward": 2}
_LATENCY = 1


@dataclass(frozen=True, slots=True)
class Compute:
    """An instruction to run one part on one micro-batch.

    `kind` says which pass. The last part has only one operation in training, of the kind `loss`:
    its forward pass, the loss, and its backward pass.
    """

    kind: Kind
    part: str
    micro: int


@dataclass(frozen=True, slots=True)
class Transfer:
    """One sent tensor: a part's output or, if `gradient` is True, the gradient of that output."""

    crossing: Crossing
    micro: int
    gradient: bool

    @property
    def sender(self) -> str:
        return self.crossing.receiver if self.gradient else self.crossing.sender

    @property
    def receiver(self) -> str:
        return self.crossing.sender if self.gradient else self.crossing.receiver


@dataclass(frozen=True, slots=True)
class SendTensor:
    transfer: Transfer


@dataclass(frozen=True, slots=True)
class ReceiveTensor:
    """An instruction to wait for the next tensor of another party, and to check it."""

    transfer: Transfer


@dataclass(frozen=True, slots=True)
class SendWord:
    word: Literal["ready", "commit"]
    peer: str


@dataclass(frozen=True, slots=True)
class ReceiveWord:
    word: Literal["ready", "commit"]
    peer: str


@dataclass(frozen=True, slots=True)
class Apply:
    """An instruction to update the weights with the gradients of the whole batch."""


Instruction: TypeAlias = Compute | SendTensor | ReceiveTensor | SendWord | ReceiveWord | Apply
Program: TypeAlias = tuple[Instruction, ...]


def programs(split: SplitModel, micros: int, *, training: bool = True) -> dict[str, Program]:
    """Return each party's instructions for a step of `micros` micro-batches.

    If `training` is False, the parts run only forward.
    """
    orders = _orders(split, micros, training)
    sent = {party: _with_sends(split, party, orders[party]) for party in split.parties}
    made = {party: _with_receipts(split, party, sent) for party in split.parties}
    if not training:
        return {party: tuple(made[party]) for party in split.parties}
    return _with_words(split, made)


def micro_sizes(rows: int, in_flight: int) -> tuple[int, ...]:
    """Return the sizes of the `in_flight` micro-batches into which a batch of `rows` rows is cut.

    There are only `rows` micro-batches if that is fewer. Sizes differ by at most 1, the larger
    ones come first.
    """
    micros = min(rows, in_flight)
    size, larger = divmod(rows, micros)
    return (size + 1,) * larger + (size,) * (micros - larger)


def _orders(split: SplitModel, micros: int, training: bool) -> dict[str, list[Compute]]:
    needs = _needs(split, training)
    owner = {part.name: part.owner for part in split.parts}
    forward, backward = _awaited(split)
    place = {stage: number for number, stage in enumerate(needs)}
    ends: dict[Compute, int] = {}
    free = dict.fromkeys(split.parties, 0)
    orders: dict[str, list[Compute]] = {party: [] for party in split.parties}
    following = dict.fromkeys(needs, 0)  # the next micro-batch of each stage

    def start(stage: _Stage) -> int | None:
        """Return the simulated time at which the next micro-batch of `stage` can start.

        The micro-batch may have to wait for other passes. Returns None if one of these passes is
        not scheduled yet.
        """
        party, at = owner[stage[1]], free[owner[stage[1]]]
        for before in needs[stage]:
            end = ends.get(Compute(*before, following[stage]))
            if end is None:
                return None
            at = max(at, end + (_LATENCY if owner[before[1]] != party else 0))
        return at

    def urgency(stage: _Stage) -> tuple[int, int, int]:
        kind, part = stage
        idle = kind == "backward" and part not in backward
        group = 0 if kind == "forward" and part in forward else 2 if idle else 1
        return group, following[stage], -place[stage]

    while following:
        starts = {stage: at for stage in following if (at := start(stage)) is not None}
        stage = min(starts, key=lambda s: (starts[s], urgency(s)))
        operation, party = Compute(*stage, following[stage]), owner[stage[1]]
        ends[operation] = free[party] = starts[stage] + _DURATION[stage[0]]
        orders[party].append(operation)
        following[stage] += 1
        if following[stage] == micros:
            del following[stage]
    return orders


def _needs(split: SplitModel, training: bool) -> dict[_Stage, list[_Stage]]:
    """Return, for each forward or backward pass of a part, the passes that must end before it.

    If `training` is False, there are only forward passes.
    """
    needs: dict[_Stage, list[_Stage]] = {
        ("forward", part.name): [("forward", source) for source in part.sources]
        for part in split.parts
    }
    if training:
        needs["loss", split.last.name] = needs.pop(("forward", split.last.name))
        for part in reversed(split.parts[:-1]):
            if split.runs_backward(part.name):
                needs["backward", part.name] = [
                    ("forward", part.name),
                    *_returning(split, part.name),
                ]
    return needs


def _returning(split: SplitModel, name: str) -> list[_Stage]:
    silent = {
        consumer
        for crossing in split.crossings
        if crossing.part == name and not crossing.gradient
        for consumer in crossing.consumers
    }
    return [
        ("loss" if consumer is split.last else "backward", consumer.name)
        for consumer in split.consumers(name)
        if consumer.name not in silent and split.runs_backward(consumer.name)
    ]


def _awaited(split: SplitModel) -> tuple[frozenset[str], frozenset[str]]:
    """Return the parts with an awaited forward pass, and those with an awaited backward pass.

    A pass is awaited if its result is sent to another party. A pass is also awaited if an awaited
    pass of another part of the same party needs its result.
    """
    forward = {crossing.part for crossing in split.crossings}
    backward = {name for c in split.crossings if c.gradient for name in c.consumers}

    def own(part: Part, others: Iterable[str]) -> bool:
        return any(split.by_name[other].owner == part.owner for other in others)

    for part in reversed(split.parts):
        if own(part, forward.intersection(other.name for other in split.consumers(part.name))):
            forward.add(part.name)
    for part in split.parts:
        if own(part, backward.intersection(part.sources)):
            backward.add(part.name)
    return frozenset(forward), frozenset(backward)


def _with_sends(
    split: SplitModel, party: str, order: Sequence[Compute]
) -> list[Compute | SendTensor]:
    """Return a party's operations in `order`, each followed by the sends that it makes possible."""
    program: list[Compute | SendTensor] = []
    backward: set[tuple[str, int]] = set()
    for done in order:
        program.append(done)
        if done.kind != "forward":
            backward.add((done.part, done.micro))
        for crossing in split.crossings:
            if crossing.sender == party and (done.kind, done.part) == ("forward", crossing.part):
                program.append(SendTensor(Transfer(crossing, done.micro, gradient=False)))
            elif crossing.receiver == party and crossing.gradient and done.kind != "forward":
                running = [name for name in crossing.consumers if split.runs_backward(name)]
                whole = all((name, done.micro) in backward for name in running)
                if done.part in running and whole:
                    program.append(SendTensor(Transfer(crossing, done.micro, gradient=True)))
    return program


def _with_receipts(
    split: SplitModel, party: str, sent: Mapping[str, Sequence[Compute | SendTensor]]
) -> list[Instruction]:
    """Return the instructions of `party`: its operations and sends, and a receipt for each tensor.

    A receipt (`ReceiveTensor`) comes before the first operation that needs its tensor. `sent` has
    every party's operations and sends in order.
    """
    due = {
        peer: deque(
            step.transfer
            for step in sent[peer]
            if isinstance(step, SendTensor) and step.transfer.receiver == party
        )
        for peer in split.parties
    }
    program: list[Instruction] = []
    for step in sent[party]:
        if isinstance(step, Compute):
            for needed in _arrivals(split, party, step):
                queue = due[needed.sender]
                while needed in queue:
                    program.append(ReceiveTensor(queue.popleft()))
        program.append(step)
    return program


def _arrivals(split: SplitModel, party: str, step: Compute) -> list[Transfer]:
    if step.kind != "backward":
        return [
            Transfer(crossing, step.micro, gradient=False)
            for crossing in split.crossings
            if crossing.receiver == party and step.part in crossing.consumers
        ]
    return [
        Transfer(crossing, step.micro, gradient=True)
        for crossing in split.crossings
        if crossing.part == step.part and crossing.gradient
    ]


def _with_words(
    split: SplitModel, tensors: Mapping[str, Sequence[Instruction]]
) -> dict[str, Program]:
    leader = split.leader
    ready = [name for name in split.followers if not _says_it(tensors[name], leader)]
    told_already = len(split.followers) == 1 and _says_it(tensors[leader], split.followers[0])
    commit = () if told_already else split.followers

    made: dict[str, Program] = {}
    for follower in split.followers:
        program = tensors[follower]
        checked = 1 + _last(isinstance(step, ReceiveTensor) for step in program)
        word = [SendWord("ready", leader)] if follower in ready else []
        heard = [ReceiveWord("commit", leader)] if follower in commit else []
        made[follower] = (*program[:checked], *word, *program[checked:], *heard, Apply())
    program = tensors[leader]
    # Only the leader's own computations follow: the followers need not wait for them.
    settled = 1 + _last(not isinstance(step, Compute) or step.kind == "loss" for step in program)
    made[leader] = (
        *program[:settled],
        *(ReceiveWord("ready", follower) for follower in ready),
        *(SendWord("commit", follower) for follower in commit),
        *program[settled:],
        Apply(),
    )
    return made


def _says_it(program: Sequence[Instruction], peer: str) -> bool:
    """Return True if `program` sends its last tensor to `peer` after it has received all tensors.

    This tensor then shows that all tensors have arrived, and replaces the message `ready` or
    `commit` to `peer`.
    """
    sends = [isinstance(step, SendTensor) and step.transfer.receiver == peer for step in program]
    return _last(sends) > _last(isinstance(step, ReceiveTensor) for step in program)


def _last(found: Iterable[bool]) -> int:
    return max((place for place, here in enumerate(found) if here), default=-1)
