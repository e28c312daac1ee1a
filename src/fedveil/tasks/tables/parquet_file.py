"""Reads a table from Parquet. Ids and words are texts or whole numbers; numbers have any type."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fedveil.base.array_types import Float64s
from fedveil.base.untrusted import MOST_STREAMED_BYTES, opened
from fedveil.data.data_folders import reading
from fedveil.errors import DataInvalid, MissingExtra
from fedveil.settings.allowed import plain, shown
from fedveil.tasks.tables.table_piece import Piece

SUFFIX = ".parquet"
_AT_ONCE = 1 << 15


class _Batch(Piece):
    """A piece of a Parquet file, held as a batch of pyarrow."""

    unit = "row"

    def __init__(self, path: str, batch: Any, first: int) -> None:
        self.path, self._batch = path, batch
        self.places = range(first, first + batch.num_rows)

    def cells(self, column: str) -> list[str]:
        from pyarrow import types

        found, kind = self._batch.column(column), self._kind(column)
        if not (_is_text(kind) or types.is_integer(kind)):
            self._refuse_type(column, "a text or a whole number")
        with _whole(self.path):
            if not types.is_dictionary(found.type):
                return _texts(found)
            # The dictionary has each text once, however often the column repeats it.
            words = _texts(found.dictionary)
            return ["" if place is None else words[place] for place in found.indices.to_pylist()]

    def text(self, column: str, row: int) -> str:
        from pyarrow import DictionaryScalar

        cell = self._batch.column(column)[row]
        return str(cell.value if isinstance(cell, DictionaryScalar) else cell)

    def raw_numbers(self, column: str) -> Float64s:
        from pyarrow import types

        found, kind = self._batch.column(column), self._kind(column)
        if _is_text(kind):
            return super().raw_numbers(column)
        kinds = (types.is_integer, types.is_floating, types.is_decimal)
        if not any(is_kind(kind) for is_kind in kinds):
            self._refuse_type(column, "a number")
        found = found.dictionary_decode() if types.is_dictionary(found.type) else found
        numbers = found.cast("float64", safe=False).to_numpy(zero_copy_only=False)
        return np.asarray(numbers, np.float64)

    def _kind(self, column: str) -> Any:
        """Return the type of a column's values, even if the column is dictionary-encoded."""
        from pyarrow import types

        kind = self._batch.column(column).type
        return kind.value_type if types.is_dictionary(kind) else kind

    def _refuse_type(self, column: str, needed: str) -> None:
        kind = self._kind(column)
        raise DataInvalid(f"{self.path}: {plain(column)} is of type {kind}, but {needed} is needed")


def _texts(values: Any) -> list[str]:
    """Return the values as texts without surrounding spaces."""
    import pyarrow.compute as pc

    trimmed = pc.utf8_trim_whitespace(values.cast("string"))
    texts: list[str] = trimmed.fill_null("").to_pylist()
    return texts


def header(path: str) -> list[str]:
    with _opened(path) as file:
        columns: list[str] = file.schema_arrow.names
    known = set[str]()
    for name in columns:
        if name in known:
            raise DataInvalid(f"{path}: the column {shown(name)} occurs twice")
        known.add(name)
    return columns


def pieces(path: str, names: Collection[str]) -> Iterator[Piece]:
    """Yield the file's rows in pieces, with only the columns `names`."""
    first, chosen = 1, list(dict.fromkeys(names))
    with _opened(path) as file:
        schema = file.schema_arrow
    with _opened(path, [name for name in chosen if _is_text(schema.field(name).type)]) as file:
        for batch in file.iter_batches(_AT_ONCE, columns=chosen):
            if batch.num_rows:
                yield _Batch(path, batch, first)
            first += batch.num_rows


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_string(kind) or types.is_large_string(kind))


@contextmanager
def _opened(path: str, texts: Sequence[str] = ()) -> Iterator[Any]:
    """Open a file. Each distinct value of the columns in `texts` is in memory only once."""
    try:
        from pyarrow import parquet
    except ImportError:
        raise MissingExtra("pyarrow", "parquet", path) from None
    with (
        _whole(path),
        reading(Path(path)),
        opened(path, MOST_STREAMED_BYTES) as raw,
        parquet.ParquetFile(raw, read_dictionary=list(texts)) as file,
    ):
        yield file


@contextmanager
def _whole(path: str) -> Iterator[None]:
    """Turn pyarrow's errors about the file `path` into a DataInvalid of one sentence."""
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, UnicodeDecodeError) as error:
        said = str(error).splitlines()[0]
        raise DataInvalid(f"{path} cannot be read as Parquet: {said}") from None
