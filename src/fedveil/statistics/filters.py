"""Conditions on a row, such as `age >= 65 and sex == 'f'`."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import Any, Protocol

import numpy as np

from fedveil.base.array_types import Bools, Float64s
from fedveil.errors import JobError
from fedveil.settings.allowed import shown

_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
#: The comparison after its two sides are exchanged.
_MIRRORED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.Eq, ast.NotEq: ast.NotEq, ast.Lt: ast.Gt, ast.LtE: ast.GtE, ast.Gt: ast.Lt,
    ast.GtE: ast.LtE,
}  # fmt: skip
_LONGEST = 1000
#: 64-bit floats represent every whole number below this exactly, and round no larger number to one
#: of these.
_EXACT = 1 << 53
#: A column's name in backticks, or a text, in which backticks have no meaning.
_QUOTED = re.compile(r"""`([^`]+)`|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""")
#: A text that is written like a number, except one with leading zeros, such as a postcode.
_LIKE_A_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?")
_EXAMPLE = "write comparisons such as `age >= 65 and sex in ['f', 'm']`"


class Named(Protocol):
    """A table whose columns have names."""

    def __len__(self) -> int: ...

    def numbers(self, column: str) -> Float64s:
        """Return a column as numbers. NaN stands for a missing number."""

    def words(self, column: str) -> np.ndarray[Any, np.dtype[np.str_]]:
        """Return a column as texts. "" stands for a missing text."""


class Filter:
    """A condition on a row: comparisons of a column with a value, joined by `and`, `or` and `not`.

    `text` is the condition, and `place` is its key in error messages. A column that is compared
    with a number is read as numbers, otherwise as texts. A comparison with a missing value is
    false. `column in [value, ...]` and `18 <= age < 65` are allowed. A column's name that is not a
    single word is written in backticks, such as `home town`.
    """

    def __init__(self, text: str, place: str = "where") -> None:
        self.text = text
        quoted: dict[str, str] = {}
        try:
            if len(text) > _LONGEST:
                raise ValueError
            mark = "_quoted"
            while mark in text:  # a column of the user's may have this name
                mark += "_"
            plain = _QUOTED.sub(partial(_named, quoted, mark), text).strip()
            tree = ast.parse(plain, mode="eval").body
            _check_exact(tree, text, place)
            list(_columns(tree))
            _check_order(tree, text, place)
            for node in ast.walk(tree):
                if isinstance(node, ast.Name):
                    # `node.id` is normalised (NFKC), which turns the column nº into no.
                    written = ast.get_source_segment(plain, node) or node.id
                    node.id = quoted.get(written, written)
            self._tree = tree
        except JobError:
            raise
        except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
            raise JobError([f"{place} = {shown(text)} is not a condition: {_EXAMPLE}"]) from None

    @property
    def columns(self) -> list[str]:
        return sorted(set(_columns(self._tree)))

    def mask(self, table: Named) -> Bools:
        """Return a mask of the rows of `table` that meet the condition."""
        return _mask(self._tree, table)


def _named(quoted: dict[str, str], mark: str, found: re.Match[str]) -> str:
    """Return the replacement of a quoted text or name, so that Python can parse the condition.

    `found`, a match of `_QUOTED`, is the quoted text or name. A text in quotation marks is returned
    unchanged. For a column's name in backticks, a new word is returned, and the name is stored as
    `quoted[word]`. The word begins with `mark`, which the condition does not contain.
    """
    if found[1] is None:
        return found[0]
    word = f"{mark}{len(quoted)}"
    quoted[word] = found[1]
    return word


def _check_exact(tree: ast.expr, text: str, place: str) -> None:
    """Raise `JobError` if a condition has an integer too large to be an exact 64-bit float.

    Such an integer is 2^53 or more in magnitude. `tree` is the parsed condition. `text`, the
    condition as written, and `place`, its key, appear in the error message.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and type(node.value) is int and node.value >= _EXACT:
            raise JobError(
                [
                    f"{place} = {shown(text)}: {node.value} is too large to be compared as a "
                    f"number, which has 53 bits. Compare it as a text: '{node.value}'"
                ]
            )


def _check_order(tree: ast.expr, text: str, place: str) -> None:
    """Raise `JobError` if a condition orders texts by a text that is written like a number.

    As texts, '100' comes before '65', so `age > '65'` would not count anybody aged 100. `text`, the
    condition as written, and `place`, its key, appear in the error message.
    """
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Compare)]
    for _, op, value in chain(*map(_comparisons, nodes)):
        if not isinstance(op, ast.Lt | ast.LtE | ast.Gt | ast.GtE):
            continue
        (word,) = _values(op, value)
        if isinstance(word, str) and _LIKE_A_NUMBER.fullmatch(word) and abs(float(word)) < _EXACT:
            raise JobError(
                [
                    f"{place} = {shown(text)} orders texts, and as texts '100' comes before '65'. "
                    f"To compare numbers, write {word} without quotation marks"
                ]
            )


def _columns(node: ast.expr) -> Iterator[str]:
    """Yield the names of the columns in a condition. Raises `ValueError` if it is invalid."""
    match node:
        case ast.BoolOp(values=values):
            for value in values:
                yield from _columns(value)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield from _columns(operand)
        case ast.Compare():
            for name, op, value in _comparisons(node):
                _values(op, value)
                yield name
        case _:
            raise ValueError


def _comparisons(node: ast.Compare) -> Iterator[tuple[str, ast.cmpop, ast.expr]]:
    sides = [node.left, *node.comparators]
    for left, op, right in zip(sides, node.ops, sides[1:], strict=False):
        if isinstance(left, ast.Name):
            yield left.id, op, right
        elif isinstance(right, ast.Name) and type(op) in _MIRRORED:
            yield right.id, _MIRRORED[type(op)](), left
        else:
            raise ValueError


def _values(op: ast.cmpop, node: ast.expr) -> list[float] | list[str]:
    found = ast.literal_eval(node)
    if isinstance(op, ast.In | ast.NotIn):
        values = list(found) if isinstance(found, list | tuple) else []
    elif type(op) in _COMPARE:
        values = [found]
    else:
        raise ValueError
    if values and all(isinstance(value, str) for value in values):
        return [str(value) for value in values]
    if values and all(type(value) in (int, float) for value in values):
        return [float(value) for value in values]
    raise ValueError


def _mask(node: ast.expr, table: Named) -> Bools:
    match node:
        case ast.BoolOp(op=op, values=values):
            join = np.logical_and if isinstance(op, ast.And) else np.logical_or
            result: Bools = join.reduce([_mask(value, table) for value in values])
            return result
        case ast.UnaryOp(operand=operand):
            return ~_mask(operand, table)
        case ast.Compare():
            found = [_compared(table, n, op, _values(op, v)) for n, op, v in _comparisons(node)]
            return np.asarray(np.logical_and.reduce(found), np.bool_)
    raise AssertionError("the constructor has checked it")


def _compared(table: Named, name: str, op: ast.cmpop, values: list[float] | list[str]) -> Bools:
    column: Any
    if isinstance(values[0], str):
        column = table.words(name)
        present = column != ""
    else:
        column = table.numbers(name)
        present = ~np.isnan(column)
    if isinstance(op, ast.In | ast.NotIn):
        found = np.isin(column, values)
        matched = found if isinstance(op, ast.In) else ~found
    else:
        matched = _COMPARE[type(op)](column, values[0])
    return np.asarray(matched & present, np.bool_)
