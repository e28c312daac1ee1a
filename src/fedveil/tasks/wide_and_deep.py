"""The wide-and-deep model, split between the parties that have features (OWNER below).

    OWNER_wide, OWNER_deep of every owner  →  top: a linear layer of the leader's own wide part
                                              plus a nonlinear one of all other parts

The wide part is a linear layer on one-hot features, and the deep part is a dense network over
scaled numbers and word vectors.

If the outputs are linear in a part, the sign of its gradient reveals the label to whoever receives
the gradient. So a follower's wide part goes through the leader's hidden layer, as the deep parts
do. Under `wide: linear` it does not, as in the paper, and the follower can then read every label of
two classes.

Source: H.-T. Cheng et al., Wide & Deep Learning for Recommender Systems, 2016. The split is new.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import TypeAlias

import torch
from torch import nn

from fedveil.tasks.mnist_halves import Joint
from fedveil.vertical.optimizer import Optimizer
from fedveil.vertical.split import Part, SplitModel
from fedveil.vertical.task import initial
from fedveil.vertical.task_settings import TablesSettings, TabularSettings

#: A function that makes a module; None if another party has the module.
_Make: TypeAlias = Callable[[], nn.Module] | None

_HIDDEN = 64
#: The standard deviation of initial word vectors: small, so that rare words have little influence.
_WORD_STD = 0.05
_OPTIMIZER = Optimizer("adam", lr=0.001)


@dataclass(frozen=True)
class Features:
    """The sizes of a party's encoded features.

    `intervals` has the number of intervals for each column of numbers. `places` has the number of
    different word indices for each column of words.
    """

    intervals: tuple[int, ...]
    places: tuple[int, ...] = ()


def wide_and_deep(
    settings: TabularSettings | TablesSettings,
    owners: Mapping[str, Features | None],
    *,
    leader: str,
    classes: int | None,
    seed: int,
    words: int | None = None,
    here: Collection[str] | None = None,
) -> SplitModel:
    """Build the split model: a wide and a deep part for each party with features, and the top.

    `owners` maps each of these parties to the sizes of its features, or to None. The top's output
    is one number or, with `classes`, one logit per class. `words` is the length of a word's vector,
    or None if no party has words.

    Torch modules are built only for some parts, with initial weights drawn from `seed`: the wide
    and the deep part of each party whose features are not None, and the top if `here` is None or
    has the leader. The module of every other part is None. Columns are fitted to the training rows:
    numbers are scaled by their mean and standard deviation, intervals lie between quantiles, and
    words are numbered.
    """
    scores, width, outputs = settings.scores, settings.width, classes or 1
    columns = ("data.words",) if words else ()

    def part(name: str, owner: str, inputs: Sequence[str], output: int, make: _Make) -> Part:
        module = None if make is None else initial(seed, name, make)
        given = tuple(inputs)
        return Part(name, owner, given, (output,), module, optimizer=_OPTIMIZER, fitted=True)

    parts = []
    for owner, features in owners.items():
        make_wide = make_deep = None
        if features is not None:
            make_wide = partial(Wide, features, scores)
            make_deep = partial(Deep, features, words or 0, width)
        parts += [
            part(f"{owner}_wide", owner, ("data.intervals", *columns), scores, make_wide),
            part(f"{owner}_deep", owner, ("data.numbers", *columns), width, make_deep),
        ]
    linear = [settings.wide == "linear" or owner == leader for owner in owners]
    make_top = None
    if here is None or leader in here:
        make_top = partial(_Top, linear, scores, width, outputs)
    parts.append(part("top", leader, [bottom.name for bottom in parts], outputs, make_top))
    return SplitModel(parts, leader=leader)


class _Top(nn.Module):
    """A linear layer on the wide outputs of some parties, plus a network on all other outputs.

    `linear` has True for each party whose wide output the linear layer reads. `scores` is the
    length of a wide output, `width` that of a deep output, and `outputs` that of the result.
    """

    def __init__(self, linear: Sequence[bool], scores: int, width: int, outputs: int) -> None:
        super().__init__()
        self._linear = tuple(linear)
        lines, owners = sum(linear), len(linear)
        self.wide = nn.Linear(lines * scores, outputs) if lines else None
        self.deep = Joint(owners * width + (owners - lines) * scores, _HIDDEN, outputs)

    def forward(self, *given: torch.Tensor) -> torch.Tensor:
        """Return the output [rows, outputs]. `given` has each party's wide and deep outputs.

        A party's wide output comes directly before its deep output.
        """
        scores = list(zip(given[0::2], self._linear, strict=True))
        hidden = (wide for wide, linear in scores if not linear)
        outputs: torch.Tensor = self.deep(*given[1::2], *hidden)
        if self.wide is None:
            return outputs
        lines = torch.cat([wide for wide, linear in scores if linear], dim=1)
        summed: torch.Tensor = self.wide(lines) + outputs
        return summed


class Wide(nn.Module):
    """A linear layer without bias on one-hot features, computed as a sum of weight rows.

    `first` has, for each column of features, the index of its first row in the weight matrix.
    """

    first: torch.Tensor

    def __init__(self, features: Features, scores: int) -> None:
        super().__init__()
        counts = (*features.intervals, *features.places)
        self.rows = nn.EmbeddingBag(sum(counts), scores, mode="sum")
        bound = 1 / math.sqrt(sum(counts))
        nn.init.uniform_(self.rows.weight, -bound, bound)
        self.register_buffer("first", _first_rows(counts), persistent=False)

    def forward(self, *places: torch.Tensor) -> torch.Tensor:
        """Return the summed weights of each row's features, [rows, scores].

        `places` are interval indices and, if there are word columns, word indices: [rows, columns].
        """
        found: torch.Tensor = self.rows(torch.cat(places, dim=1).int() + self.first)
        return found


class Deep(nn.Module):
    """A dense network over scaled numbers and word vectors.

    `first` has, for each column of words, the index of its first vector in the table of all words.
    """

    first: torch.Tensor

    def __init__(self, features: Features, vector: int, width: int) -> None:
        super().__init__()
        numbers, words = len(features.intervals), len(features.places)
        self.words = nn.Embedding(sum(features.places), vector) if words else None
        if self.words is not None:
            nn.init.normal_(self.words.weight, std=_WORD_STD)
        self.register_buffer("first", _first_rows(features.places), persistent=False)
        self.layers = nn.Sequential(
            nn.Linear(numbers + words * vector, _HIDDEN),
            nn.ReLU(),
            nn.Linear(_HIDDEN, width),
            nn.LayerNorm(width, elementwise_affine=False),
        )

    def forward(self, numbers: torch.Tensor, words: torch.Tensor | None = None) -> torch.Tensor:
        """Return the part's output, [rows, width], from scaled `numbers` and indices of `words`."""
        crossing: torch.Tensor = self.layers(self.joined(numbers, words))
        return crossing

    def joined(self, numbers: torch.Tensor, words: torch.Tensor | None = None) -> torch.Tensor:
        """Return the dense network's input: the numbers, then each word's vector.

        `words` has the index of each word, [rows, columns], or is None if there are no words.
        """
        if self.words is None or words is None:
            return numbers
        vectors = self.words(words.int() + self.first)
        return torch.cat([numbers, vectors.flatten(1)], dim=1)

    def nearest(self, vectors: torch.Tensor) -> torch.Tensor:
        """Replace word vectors by the nearest words. Returns their indices, [rows, words].

        Each row of `vectors` has the vectors of several words side by side.
        """
        assert self.words is not None, "there are words"
        tables = self.words.weight.detach().tensor_split(self.first[1:].long())
        each = vectors.chunk(len(tables), dim=1)
        found = [torch.cdist(a, table).argmin(dim=1) for a, table in zip(each, tables, strict=True)]
        return torch.stack(found, dim=1)


def _first_rows(counts: Sequence[int]) -> torch.Tensor:
    """Return the index of each table's first row in a stack of tables with counts[i] rows each."""
    return torch.tensor([0, *accumulate(counts)][: len(counts)], dtype=torch.int32)
