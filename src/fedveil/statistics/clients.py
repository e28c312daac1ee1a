"""The rows of each client, and the choice of the rows that it contributes."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedveil.base import own_code
from fedveil.base.array_types import Int64s
from fedveil.data import datasets
from fedveil.entropy import Entropy
from fedveil.errors import DataInvalid
from fedveil.federated.blocks import DATASETS
from fedveil.statistics.question import QuestionFile
from fedveil.statistics.tables import Table, as_table, log


@dataclass(frozen=True)
class Clients:
    """A table whose rows are grouped by client. Client c owns rows order[offsets[c]:offsets[c+1]].

    `rows` is the largest number of rows that a client contributes, or None for all its rows.
    """

    table: Table
    order: Int64s
    offsets: Int64s
    rows: int | None = 1
    _chosen: dict[int, Int64s] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def contributed(self, client: int, entropy: Entropy, carried: int | None = None) -> Int64s:
        """Return the rows that a client contributes to every round, as positions in the table.

        A client contributes at most `self.rows` rows, and at most `carried`, the number that fits
        into a report (None: no limit). If the client has more rows, `entropy` draws some of them.
        """
        mine = self.order[self.offsets[client] : self.offsets[client + 1]]
        most = min(n for n in (self.rows, carried, len(mine)) if n is not None)
        if most == len(mine):
            return mine
        if client not in self._chosen:
            self._chosen[client] = mine[entropy.permutation(len(mine))]
            log.info("%d of %d rows are contributed (rows)", most, len(mine))
        return self._chosen[client][:most]


def clients_of(table: Table, column: str | None, rows: int | None) -> Clients:
    """Group the rows of `table` by the client that is named in `column`.

    If `column` is None, every row is a client. Clients are numbered in alphabetical order of their
    names. `rows` is the largest number of rows that a client contributes (None: no limit).

    Raises `DataInvalid` if a row has no client. If no single row may cause an error (`table.apart`
    is True), rows without a client are left out, and the error is raised only if no row has one.
    """
    if column is None:
        return Clients(table, np.arange(len(table)), np.arange(len(table) + 1), rows)
    names = table.words(column)
    owned = np.flatnonzero(names != "")
    if lost := len(names) - len(owned):
        row = int((names == "").argmax()) + 1
        said = f"{table.name}, row {row}: {column} is empty, so the row has no client"
        if not table.apart or not len(owned):
            raise DataInvalid(said)
        log.info("%s; %d such rows are left out", said, lost)
    _, owners = np.unique(names[owned], return_inverse=True)
    order = owned[np.argsort(owners, kind="stable")]
    counts = np.bincount(owners)
    return Clients(table, order, np.concatenate([[0], np.cumsum(counts)]), rows)


def load(question: QuestionFile, data: Any = None) -> Clients:
    """Read the rows of a question file, or of `data` if given, and group them by client.

    In a column of numbers, a cell that is neither missing nor a finite number is an error. But if
    the epsilon covers one row (`unit: row`), the cell counts as missing, because an error would
    reveal something about the row.
    """
    if data is None:
        data = _named(question.data)
    apart = question.unit == "row" and question.epsilon is not None
    table = as_table(data, question.data or "data", apart=apart)
    _check(question, table)
    return clients_of(table, question.client, question.rows_of_a_client)


def _check(file: QuestionFile, table: Table) -> None:
    """Read all columns of `table` that the questions in `file` need.

    So invalid data raise an error before any round.
    """
    for question in file.questions.values():
        numbered = question.range or question.edges
        other_numbered = question.other_range or question.other_edges
        for column, is_number in (
            (question.column, bool(numbered)),
            (question.other, bool(other_numbered)),
            (question.by, False),
        ):
            if column is not None:
                (table.numbers if is_number else table.words)(column)
        for condition in file.conditions(question):
            condition.mask(table)


def _named(name: str) -> Any:
    if not name:
        raise DataInvalid("data is missing: name a CSV or Parquet file, or package.module:function")
    if name in DATASETS:
        return datasets.load(name)
    if not own_code.is_function(name):
        return name
    folder = os.getcwd()  # noqa: PTH109 - sys.path holds strings
    sys.path.insert(0, folder)
    try:
        key = f"data = {name!r}"
        function = own_code.load(name, key=key, error=DataInvalid)
        with own_code.own_code_errors(key, DataInvalid):
            return function()
    finally:
        sys.path.remove(folder)
