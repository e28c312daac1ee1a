"""The split of a network into parts, their owners, and the tensors that the parties exchange.

Each part belongs to one party, and reads columns of its owner's data or outputs of earlier parts. A
crossing is an output that another party's part reads. Every crossing starts or ends at the leader,
the only party with the labels and the loss.

    followers' bottoms, leader's top     left:  bank   <- data.x
                                         right: shop   <- data.x
                                         top:   leader <- left, right
    U-shape                              embedding: leader <- data.tokens
                                         backbone:  bank   <- embedding
                                         head:      leader <- backbone
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias

import torch
from torch import nn

from fedveil.base.validate import choice, integer, non_negative
from fedveil.errors import SplitInvalid
from fedveil.link.names import check_name
from fedveil.vertical.compression import Compression
from fedveil.vertical.optimizer import Optimizer

#: An input with this prefix is a column of the owner's data. Any other input is an earlier part.
DATA = "data."
#: A function that makes an optimiser of a part's parameters, optionally with a learning rate
#: schedule.
OwnOptimizer: TypeAlias = Callable[[list[nn.Parameter]], Any]
#: The types of values that can cross.
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class EmbeddingPrivacy:
    """The settings of EmbeddingDP for a part's output, applied before the output is sent.

    `eps` is EmbeddingDP's parameter: replacing one bit of the output costs epsilon eps/2. Replacing
    a one-hot row by another changes two bits and costs epsilon eps. If `eps` is None, the output is
    reduced to bits without noise, which guarantees nothing. If `gradient` is "none", no gradient is
    returned. If `reuse` is True, an example's first report is saved and sent again in every epoch.
    The part then learns only in the first epoch.
    """

    eps: float | None = None
    gradient: Literal["straight_through", "none"] = "straight_through"
    reuse: bool = False

    def __post_init__(self) -> None:
        if self.eps is not None:
            non_negative("embedding_dp.eps", self.eps)
        choice("embedding_dp.gradient", self.gradient, ("straight_through", "none"))


@dataclass(frozen=True)
class Part:
    """One party's piece of the network.

    `module` takes one tensor for each of `inputs`, with the examples along the first dimension. It
    returns one tensor of shape (examples, *output) and type `dtype`. `module` is None if another
    party has it. The parameters of a `frozen` part do not change. `optimizer` has settings, or is a
    function that takes the list of trained parameters and makes a torch optimiser. The function
    returns the optimiser alone, or a tuple of it and a learning rate schedule, which advances once
    a step. `privacy` is applied only when the output is sent to another party. `compression` is
    applied to the output and its gradient when sent. `fitted` is True if the values of the columns
    that the part reads depend on several examples: for instance, if all numbers were divided by
    their standard deviation, or words were numbered by frequency.
    """

    name: str
    owner: str
    inputs: tuple[str, ...]
    output: tuple[int, ...]
    module: nn.Module | None = field(default=None, compare=False)
    dtype: Literal["float32", "bfloat16"] = "float32"
    frozen: bool = False
    optimizer: Optimizer | OwnOptimizer = field(default_factory=Optimizer)
    privacy: EmbeddingPrivacy | None = None
    compression: Compression | None = None
    fitted: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the columns of the owner's data that the part reads."""
        return tuple(name[len(DATA) :] for name in self.inputs if name.startswith(DATA))

    @property
    def sources(self) -> tuple[str, ...]:
        """Return the names of the parts whose output this part reads."""
        return tuple(name for name in self.inputs if not name.startswith(DATA))


@dataclass(frozen=True)
class Crossing:
    """The output of `part`, sent once to the party `receiver`, for its parts `consumers`.

    An example's values have the shape `output`. `gradient` is True if their gradient is returned.
    """

    part: str
    sender: str
    receiver: str
    consumers: tuple[str, ...]
    output: tuple[int, ...]
    dtype: Literal["float32", "bfloat16"]
    gradient: bool
    privacy: EmbeddingPrivacy | None
    compression: Compression | None = None

    def compressed(self, *, gradient: bool) -> Compression | None:
        """Return how the output, or its gradient, is compressed, or None if it is not.

        EmbeddingDP's bits are never compressed.
        """
        held = self.compression
        if held is None or not (held.backward if gradient else held.forward):
            return None
        return None if self.privacy is not None and not gradient else held


class SplitModel:
    """A network, split into parts in order. Raises SplitInvalid if they do not fit together."""

    def __init__(self, parts: Sequence[Part], *, leader: str) -> None:
        self.parts = tuple(parts)
        self.leader = leader
        _check_parts(self.parts)
        _check_leader(self.parts, leader)
        self.by_name: Mapping[str, Part] = {part.name: part for part in self.parts}
        self.crossings = self._find_crossings()
        _check_star(self.crossings, leader)
        _check_privacy(self)

    @property
    def last(self) -> Part:
        return self.parts[-1]

    @cached_property
    def parties(self) -> tuple[str, ...]:
        """Return the leader, then the followers in the order of their first parts."""
        return (self.leader, *self.followers)

    @cached_property
    def followers(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(part.owner for part in self.parts if part.owner != self.leader))

    def owned_by(self, party: str) -> tuple[Part, ...]:
        return tuple(part for part in self.parts if part.owner == party)

    def consumers(self, name: str) -> tuple[Part, ...]:
        return tuple(part for part in self.parts if name in part.sources)

    def columns(self, party: str) -> tuple[str, ...]:
        """Return the columns that a party's parts read, without repetition."""
        return tuple(
            dict.fromkeys(column for part in self.owned_by(party) for column in part.columns)
        )

    def runs_backward(self, name: str) -> bool:
        """Return True if the part `name` must run backward, to train itself or an earlier part."""
        return name in self._backward

    def is_constant(self, name: str) -> bool:
        """Return True if no weight changes in the part `name` or in parts on which it depends."""
        part = self.by_name[name]
        moves = self.runs_backward(name) and not part.frozen
        return not moves and all(self.is_constant(source) for source in part.sources)

    def replace(self, name: str, **changes: Any) -> SplitModel:
        """Return the model with `changes` to the part `name`, checked again."""
        parts = [replace(part, **changes) if part.name == name else part for part in self.parts]
        return SplitModel(parts, leader=self.leader)

    @cached_property
    def settled(self) -> SplitModel:
        """Return the model for all epochs after the first: parts with `reuse` are not trained."""
        bare = self
        for part in self.parts:
            if part.privacy is not None and part.privacy.reuse and part.privacy.gradient != "none":
                bare = bare.replace(part.name, privacy=replace(part.privacy, gradient="none"))
        settled = bare
        for name in self.by_name:
            if self.runs_backward(name) and not bare.runs_backward(name):
                settled = settled.replace(name, frozen=True)
        return settled

    def joined(self) -> Joined:
        """Return all parts as one module for one machine. It does not apply EmbeddingDP."""
        return Joined(self)

    @cached_property
    def _useful(self) -> Mapping[str, bool]:
        """Map each part to True if the gradient of its output reaches a trained weight."""
        useful: dict[str, bool] = {}
        for part in self.parts:
            behind = (name for name in part.sources if not _blocks(self.by_name[name], part))
            useful[part.name] = not part.frozen or any(useful[name] for name in behind)
        return useful

    @cached_property
    def _backward(self) -> frozenset[str]:
        found = {self.last.name}
        for part in reversed(self.parts[:-1]):
            readers = self.consumers(part.name)
            gives = any(other.name in found and not _blocks(part, other) for other in readers)
            if gives and self._useful[part.name]:
                found.add(part.name)
        return frozenset(found)

    def _find_crossings(self) -> tuple[Crossing, ...]:
        found = []
        for part in self.parts:
            foreign = [other for other in self.consumers(part.name) if other.owner != part.owner]
            for receiver in dict.fromkeys(other.owner for other in foreign):
                readers = [other for other in foreign if other.owner == receiver]
                returns = any(self.runs_backward(o.name) and not _blocks(part, o) for o in readers)
                found.append(
                    Crossing(
                        part=part.name,
                        sender=part.owner,
                        receiver=receiver,
                        consumers=tuple(other.name for other in readers),
                        output=part.output,
                        dtype=part.dtype,
                        gradient=returns and self._useful[part.name],
                        privacy=part.privacy,
                        compression=part.compression,
                    )
                )
        return tuple(found)


class Joined(nn.Module):
    """All parts of a split model in one module. Maps columns to the last part's output.

    A column's key is "<party>.<column>" or, if there is no such key, its bare name.
    """

    def __init__(self, split: SplitModel) -> None:
        super().__init__()
        self._split = split
        self.parts = nn.ModuleDict({part.name: module_of(part) for part in split.parts})

    def forward(self, columns: Mapping[str, torch.Tensor]) -> torch.Tensor:
        values: dict[str, torch.Tensor] = {}
        for part in self._split.parts:
            for name in part.columns:
                own = f"{part.owner}.{name}"
                values[DATA + name] = columns[own if own in columns else name]
            values[part.name] = self.parts[part.name](*(values[name] for name in part.inputs))
        return values[self._split.last.name]


def module_of(part: Part) -> nn.Module:
    """Return the part's module. Raises SplitInvalid if this machine does not have it."""
    if part.module is None:
        raise SplitInvalid(f"the part {part.name} of {part.owner} has no module here")
    return part.module


def _blocks(source: Part, consumer: Part) -> bool:
    """Return True if `consumer` must not return a gradient to `source`.

    This holds if another party owns `consumer`, and `source.privacy.gradient` is "none".
    """
    crosses = source.owner != consumer.owner
    return crosses and source.privacy is not None and source.privacy.gradient == "none"


def _check_parts(parts: Sequence[Part]) -> None:
    if not parts:
        raise SplitInvalid("a split model needs at least one part; this one has none")
    earlier: set[str] = set()
    for part in parts:
        check_name("the part", part.name)
        check_name(f"the owner of the part {part.name},", part.owner)
        if hasattr(nn.ModuleDict(), part.name):
            raise SplitInvalid(
                f"the part {part.name} has the name of an attribute of torch's modules; use "
                f"another name, such as {part.name}_part"
            )
        if part.name in earlier:
            raise SplitInvalid(f"the part {part.name} occurs twice")
        _check_inputs(part, earlier)
        _check_output(part)
        earlier.add(part.name)
    read = {source for part in parts for source in part.sources}
    for part in parts[:-1]:
        if part.name not in read:
            raise SplitInvalid(
                f"no later part reads the part {part.name}; this is allowed only for the "
                f"last, {parts[-1].name}"
            )


def _check_inputs(part: Part, earlier: set[str]) -> None:
    if not part.inputs:
        raise SplitInvalid(f"the part {part.name} has no inputs; at least one is needed")
    for name in part.inputs:
        if not (name.startswith(DATA) and len(name) > len(DATA)) and name not in earlier:
            known = ", ".join(sorted(earlier)) or "none"
            raise SplitInvalid(
                f"the part {part.name} reads {name!r}, which is neither {DATA}COLUMN nor an "
                f"earlier part ({known})"
            )
    for name in part.inputs:
        if part.inputs.count(name) > 1:
            raise SplitInvalid(f"the part {part.name} reads {name!r} twice")


def _check_output(part: Part) -> None:
    for size in part.output:
        integer(f"output of the part {part.name}", size, 1)
    if part.dtype not in DTYPES:
        raise SplitInvalid(
            f"the part {part.name} has dtype {part.dtype!r}; only {', '.join(DTYPES)} can be sent"
        )


def _check_leader(parts: Sequence[Part], leader: str) -> None:
    check_name("the leader", leader)
    if parts[-1].owner != leader:
        raise SplitInvalid(
            f"the last part, {parts[-1].name}, belongs to {parts[-1].owner}: its owner must be "
            f"the leader, {leader}, who has the labels"
        )


def _check_star(crossings: Sequence[Crossing], leader: str) -> None:
    for crossing in crossings:
        if leader not in (crossing.sender, crossing.receiver):
            raise SplitInvalid(
                f"the part {crossing.part} of {crossing.sender} is read by "
                f"{crossing.consumers[0]} of {crossing.receiver}: one of the two parties "
                f"must be the leader, {leader}"
            )


def _check_privacy(split: SplitModel) -> None:
    crossing = {crossing.part for crossing in split.crossings}
    for part in split.parts:
        if part.privacy is None:
            continue
        if part.name not in crossing:
            raise SplitInvalid(
                f"the privacy of the part {part.name} protects nothing: its output stays "
                f"with {part.owner}"
            )
        if part.dtype != "float32":
            raise SplitInvalid(
                f"the part {part.name} has dtype {part.dtype}; under embedding_dp it must "
                f"be float32"
            )
        if part.privacy.reuse and not split.settled.is_constant(part.name):
            raise SplitInvalid(
                f"embedding_dp.reuse of the part {part.name} needs weights, its own and "
                f"those of earlier parts, that do not change after the first epoch, but "
                f"other parts train them: set frozen: true"
            )
