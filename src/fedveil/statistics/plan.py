"""Compiles questions to parts: bounded vectors that a protection can add up over all clients.

Under the protections rr and oue, each client sends randomly perturbed one-hot codes. All other
protections sum vectors.

    question        parts
    count           one cell (a cell is an entry that counts rows)
    histogram       one-hot cells
    contingency     one-hot cells of two columns
    mean, variance, correlation     powers and products of numbers scaled to [-1, 1]; under rr and
                    oue: each number is randomly rounded to -1 or 1, once or twice, and a row's
                    one-hot cell says how many of the results are 1
    quantiles       one-hot cells for each level of a tree, whose levels share the budget equally;
                    under rr and oue: one cell for values below an edge, which changes every round
    heavy_hitters   one-hot prefixes, new ones in every round

Under a protection that sums vectors, a client's vector has a section for each part. The sections of
two clients (under `unit: row`, of two rows) for part i are scaled to be at most 2 w_i apart. Here
w_i² is the share of part i in the total weight of all parts, so Σ w_i² = 1, and the whole vectors
are at most 2 apart. A question with a larger weight gets less noise. A part that does not depend on
earlier rounds is asked in every round, and its answers are averaged.

Under rr and oue, each part is asked of different clients, with the whole epsilon.
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

#: The children of a node in a quantile tree. L levels share the budget, and a quantile adds up at
#: most three nodes of each. The error is smallest at about four children.
FAN_OUT = 4


@dataclass(frozen=True)
class Part:
    """Encodes a question, or one level of a question's tree, as a section of a client's vector.

    Rows that do not meet the conditions `where` are excluded. The weight of the question is divided
    among its parts, and `share` is the fraction that this part gets.
    """

    question: str
    encoding: Encoding
    where: Sequence[Filter]
    share: float = 1.0

    def rows(self, clients: Clients, entropy: Entropy) -> Rows:
        """Encode all rows of the clients. Excludes rows that do not meet the part's conditions.

        `entropy` makes the random choices of the encoding, if it has any.
        """
        encoded = self.encoding.rows(clients.table, entropy)
        for condition in self.where:
            encoded = encoded.without(condition.mask(clients.table))
        return encoded


def edges_of(question: QuestionSettings, level: int) -> Float64s:
    """Return the edges of the intervals at a level of a quantiles question's tree.

    Levels count from 1. A level has FAN_OUT^level intervals of equal width, or as many as the
    question has cells if that is less.
    """
    cells = min(FAN_OUT**level, question.cells)
    low, high = question.range
    return np.linspace(low, high, cells + 1, dtype=np.float64)


def levels(question: QuestionSettings) -> int:
    """Return the number of levels of the tree of a quantiles question."""
    return math.ceil(math.log(question.cells, FAN_OUT) - 1e-9)


def axis(question: QuestionSettings, prefix: str = "") -> Axis:
    """Return the cells of a question's first column, or of its second if `prefix` is "other_"."""
    column = question.other if prefix else question.column
    assert column is not None, "the rules have checked it"
    edges = getattr(question, f"{prefix}edges")
    if edges:
        return Bins(column, edges)
    return Categories(column, getattr(question, f"{prefix}categories"))


def parts_of(file: QuestionFile, name: str) -> list[Part]:
    """Return the parts of the question `name` that do not depend on earlier answers.

    A part is the question itself or one level of its tree, encoded as bounded vectors.
    """
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
    """Return the columns of a question for a mean, a variance or a correlation.

    There are two columns for a correlation, otherwise one. Each is clipped to its range in the
    question, and scaled to [-1, 1].
    """
    assert question.column is not None, "the rules have checked it"
    columns = [Scaled(question.column, question.range)]
    if question.ask == "correlation":
        assert question.other is not None, "the rules have checked it"
        columns.append(Scaled(question.other, question.other_range))
    return columns


def below_part(file: QuestionFile, name: str, group: object, q: float, edge: float) -> Part:
    """Return the part that counts the rows of question `name` whose number is below `edge`.

    It is used in a search for the quantile `q`, such as 0.5 for the median. A row that is excluded
    (its number is missing, it is not in `group`, or it does not meet a condition) is counted with
    probability `q`. If the question has no groups, `group` is ignored.
    """
    question = file.questions[name]
    assert question.column is not None, "the rules have checked it"
    groups = [] if question.by is None else [Categories(question.by, [group])]
    encoding = Below(Scaled(question.column, question.range), edge, q, *groups)
    return Part(name, encoding, file.conditions(question))


def prefix_part(file: QuestionFile, name: str, candidates: Sequence[Sequence[str]]) -> Part:
    """Return the part of question `name` that counts the rows per candidate prefix.

    A prefix counts the rows whose word begins with it. Rows in group g of the question are compared
    with the prefixes `candidates[g]`.
    """
    question = file.questions[name]
    encoding = Prefixes(question, candidates, *_groups(question))
    return Part(name, encoding, file.conditions(question))


@dataclass(frozen=True)
class Ball:
    """Scales a client's vector for one part of the questions to a section of its joint vector.

    A part is a question, or one level of a question's tree. The joint vector is what the protection
    adds up: the sections of all parts, one after another. The section of a part is (vector -
    `centre`) / `scale`. If a client (under `unit: row`, a row) is replaced, the section moves by at
    most 2 `weight`, except under not_encrypt. The squares of all parts' weights sum to 1.

    - Under `unit: client`, `centred` is True. The vector is the sum of a client's encoded rows, at
      most `rows`, and `centre` is `rows` times the centre of the encoding.
    - Under `unit: row`, `centred` is False. The vector is the sum of any number of encoded rows,
      `rows` is 1, and `centre` is 0.
    - Under not_encrypt, `plain` is True, and the section is the unchanged vector.
    """

    part: Part
    weight: float
    rows: int
    centred: bool
    plain: bool = False

    @property
    def centre(self) -> Float64s:
        """Return the constant vector that is subtracted before a client's vector is scaled."""
        encoding = self.part.encoding
        if self.plain:
            return np.zeros(encoding.width)
        return self.rows * (encoding.centre if self.centred else np.zeros(encoding.width))

    @property
    def scale(self) -> float:
        """The number by which a client's vector, minus `centre`, is divided."""
        return 1.0 if self.plain else self.rows * self.part.encoding.half / self.weight

    def back(self, total: Float64s, reports: int) -> Float64s:
        """Undo the scaling: return the sum of the clients' vectors for this part.

        `total` is the sum of the sections, the scaled vectors, of `reports` clients.
        """
        summed: Float64s = total * self.scale + reports * self.centre
        return summed


class Layout:
    """Divides a client's joint vector into sections, one for each of `parts`, one after another.

    A part is a question, or one level of a question's tree. The section of part i has the entries
    `slices[i]` of the joint vector. `balls[i]` computes it from the vector in which the client
    encodes its rows for part i.
    """

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
        #: The largest entry that a single row adds to an uncentred vector.
        self.largest = 1 / min(ball.scale for ball in self.balls)

    def vector(self, rows: Sequence[Rows], chosen: Int64s) -> Float64s:
        """Return a client's joint vector: its scaled vectors for all parts, one after another.

        `rows[i]` has the encoded rows of all clients for part i. `chosen` has the positions of this
        client's rows in each `rows[i]`.
        """
        totals = np.concatenate([encoded.total(chosen) for encoded in rows])
        joint: Float64s = (totals - self._centre) / self._scale
        return joint
