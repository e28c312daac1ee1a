"""Compiles questions to parts: bounded vectors, of which any protection that sums carries the sum.

    question        parts
    count           one cell
    histogram       one-hot cells
    contingency     one-hot cells of two columns
    mean, variance, correlation     powers of scaled numbers; under rr and oue one-hot cells of
                    numbers that are drawn as -1 or 1
    quantiles       one-hot cells for each level of a tree, whose levels share the budget equally;
                    under rr and oue: whether a value is below an edge, another one in every round
    heavy_hitters   one-hot prefixes, new ones in every round

Under a protection that sums, the parts of all questions form one vector. Part i is divided by its
`half` and multiplied by w_i with Σ w_i² = 1, so that two vectors lie at most 2 apart. A question of
a larger weight gets less noise. Parts that do not change are asked in every round, and their
answers averaged: R releases of ratio z are worth one of ratio z / √R.

Under rr and oue every part is asked of clients of its own, with the whole epsilon: the noise grows
with the square root of the number of parts, while a divided epsilon would multiply it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from fedveil.base.array_types import Float64s, Int64s
from fedveil.entropy import Entropy
from fedveil.statistics.clients import Clients
from fedveil.statistics.encodings import (
    Axis,
    Below,
    Bins,
    Categories,
    Cells,
    Encoding,
    Ends,
    Grouped,
    Moments,
    Rows,
    Scaled,
)
from fedveil.statistics.filters import Filter
from fedveil.statistics.prefixes import Prefixes
from fedveil.statistics.question import QuestionFile
from fedveil.statistics.question_settings import QuestionSettings

#: Children of a node in a quantile's tree. The error of a quantile, with a budget shared by L
#: levels of which each adds up to three nodes, is smallest near four.
FAN_OUT = 4


@dataclass(frozen=True)
class Part:
    """A part of a client's vector: the encoding of one question, or of one level of its tree."""

    question: str
    encoding: Encoding
    where: Sequence[Filter]
    share: float = 1.0

    def rows(self, clients: Clients, entropy: Entropy) -> Rows:
        """Encode all rows of the clients. Rows that do not meet the conditions do not count."""
        encoded = self.encoding.rows(clients.table, entropy)
        for condition in self.where:
            encoded = encoded.without(condition.mask(clients.table))
        return encoded


def edges_of(question: QuestionSettings, level: int) -> Float64s:
    """Return the edges of the cells of a quantile tree's `level`, counted from 1."""
    cells = min(FAN_OUT**level, question.cells)
    low, high = question.range
    return np.linspace(low, high, cells + 1, dtype=np.float64)


def levels(question: QuestionSettings) -> int:
    """Return the number of levels of a quantile's tree."""
    return math.ceil(math.log(question.cells, FAN_OUT) - 1e-9)


def axis(question: QuestionSettings, prefix: str = "") -> Axis:
    """Return the cells of the column, or with the prefix "other_" those of the second column."""
    column = question.other if prefix else question.column
    assert column is not None, "the rules have checked it"
    edges = getattr(question, f"{prefix}edges")
    if edges:
        return Bins(column, edges)
    return Categories(column, getattr(question, f"{prefix}categories"))


def parts_of(file: QuestionFile, name: str) -> list[Part]:
    """Return the parts of the question `name` that are known before the first round."""
    question = file.questions[name]
    where = file.conditions(question)
    encodings = list(_encodings(question, local=file.local))
    return [Part(name, encoding, where, 1 / len(encodings)) for encoding in encodings]


def _groups(question: QuestionSettings) -> list[Categories]:
    return [] if question.by is None else [Categories(question.by, question.groups)]


def _encodings(question: QuestionSettings, *, local: bool) -> Iterator[Encoding]:
    groups = _groups(question)
    match question.ask:
        case "count":
            yield Cells(*groups)
        case "histogram":
            yield Cells(*groups, axis(question))
        case "contingency":
            yield Cells(*groups, axis(question), axis(question, "other_"))
        case "quantiles":
            assert question.column is not None, "the rules have checked it"
            for level in range(1, levels(question) + 1):
                edges = edges_of(question, level)
                yield Cells(*groups, Bins(question.column, edges.tolist(), clamp=True))
        case "mean" | "variance" | "correlation":
            columns, squares = columns_of(question), question.ask != "mean"
            inner = Ends(columns, 1 + squares) if local else Moments(columns, squares=squares)
            yield Grouped(inner, groups[0]) if groups else inner


def columns_of(question: QuestionSettings) -> list[Scaled]:
    """Return the scaled columns of a mean, a variance or a correlation."""
    assert question.column is not None, "the rules have checked it"
    columns = [Scaled(question.column, question.range)]
    if question.ask == "correlation":
        assert question.other is not None, "the rules have checked it"
        columns.append(Scaled(question.other, question.other_range))
    return columns


def below_part(file: QuestionFile, name: str, group: object, q: float, edge: float) -> Part:
    """Return the part of a round that counts the rows of question `name` below and above `edge`.

    It is a step in the search for the quantile `q` of `group`, which is None without groups.
    """
    question = file.questions[name]
    assert question.column is not None, "the rules have checked it"
    groups = [] if question.by is None else [Categories(question.by, [group])]
    encoding = Below(Scaled(question.column, question.range), edge, q, *groups)
    return Part(name, encoding, file.conditions(question))


def prefix_part(file: QuestionFile, name: str, candidates: Sequence[Sequence[str]]) -> Part:
    """Return the part of a round of heavy_hitters, in which clients count each group's words."""
    question = file.questions[name]
    encoding = Prefixes(question, candidates, *_groups(question))
    return Part(name, encoding, file.conditions(question))


@dataclass(frozen=True)
class Ball:
    """The affine map from a part's vector of one client to the joint vector, and back.

    A client's vector is the sum of at most `rows` rows. `centred` is False if the number of summed
    vectors is not known: the map then keeps zero. `plain` is True if nothing is clipped: the
    map is then the identity, so that sums of whole numbers stay exact.
    """

    part: Part
    weight: float
    rows: int
    centred: bool
    plain: bool = False

    @property
    def centre(self) -> Float64s:
        """Return the point of a client's vector that becomes zero."""
        encoding = self.part.encoding
        if self.plain:
            return np.zeros(encoding.width)
        return self.rows * (encoding.centre if self.centred else np.zeros(encoding.width))

    @property
    def scale(self) -> float:
        """The factor that turns an entry of the joint vector into the part's own value."""
        return 1.0 if self.plain else self.rows * self.part.encoding.half / self.weight

    def back(self, total: Float64s, reports: int) -> Float64s:
        """Return the sum of `reports` clients' vectors from the sum of their joint vectors."""
        summed: Float64s = total * self.scale + reports * self.centre
        return summed


class Layout:
    """The joint vector of several parts."""

    def __init__(self, file: QuestionFile, parts: Sequence[Part]) -> None:
        self.parts = parts
        shares = np.array([part.share * file.questions[part.question].weight for part in parts])
        weights = np.sqrt(shares / shares.sum())
        centred, plain = file.unit == "client", file.protection.name == "not_encrypt"
        rows = (file.rows_of_a_client or 1) if centred else 1
        self.balls = [
            Ball(part, float(weight), rows, centred, plain)
            for part, weight in zip(parts, weights, strict=True)
        ]
        ends = np.cumsum([0, *(part.encoding.width for part in parts)])
        self.slices = [slice(int(a), int(b)) for a, b in pairwise(ends)]
        self.dimension = int(ends[-1])
        widths = [part.encoding.width for part in parts]
        self._scale = np.repeat([ball.scale for ball in self.balls], widths)
        self._centre = np.concatenate([ball.centre for ball in self.balls])
        #: The largest entry that a single row adds to a vector that is not centred.
        self.largest = 1 / min(ball.scale for ball in self.balls)

    def vector(self, rows: Sequence[Rows], chosen: Int64s) -> Float64s:
        """Return the joint vector of a client that contributes the rows `chosen`."""
        totals = np.concatenate([encoded.total(chosen) for encoded in rows])
        joint: Float64s = (totals - self._centre) / self._scale
        return joint
