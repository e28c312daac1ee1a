"""Reads a table from Parquet.

The column of ids and the columns of words have texts or integers. A column of numbers has a numeric
type, dates (read as days since 1970-01-01), truth values or texts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fedveil.base.array_types import Float64s, Int32s
from fedveil.base.untrusted import MOST_STREAMED_BYTES, Version, opened
from fedveil.data.data_folders import reading
from fedveil.errors import DataInvalid, MissingExtra
from fedveil.settings.allowed import plain, shown
from fedveil.tasks.tables.cell_forms import KINDS
from fedveil.tasks.tables.refusals import Refusals
from fedveil.tasks.tables.table_piece import Piece, PlainNumbers

SUFFIX = ".parquet"
_AT_ONCE = 1 << 15
#: Units of time in a day, by their names in Arrow.
_IN_A_DAY = {"day": 1, "s": 86400, "ms": 86400 * 10**3, "us": 86400 * 10**6, "ns": 86400 * 10**9}


class _Batch(Piece):
    unit = "row"

    def __init__(self, path: str, batch: Any, first: int) -> None:
        self.path, self._batch = path, batch
        self.places = range(first, first + batch.num_rows)

    def cells(self, column: str) -> list[str]:
        codes, words = self.coded(column)
        return [words[code] for code in codes.tolist()]

    def coded(self, column: str) -> tuple[Int32s, list[str]]:
        from pyarrow import types

        found, kind = self._batch.column(column), self._kind(column)
        with _whole(self.path):
            if not (_is_text(kind) or types.is_integer(kind)):  # a number column, read as texts
                found = _strings(found)
            if not types.is_dictionary(found.type):
                found = found.dictionary_encode()
            # The dictionary has each text once, however often the column repeats it.
            # Eight bits hold the codes of 128 texts, but not one more code for missing cells.
            words, codes = _texts(found.dictionary), found.indices.cast("int32")
            if codes.null_count:
                words, codes = [*words, ""], codes.fill_null(len(words))
            return np.asarray(codes.to_numpy(zero_copy_only=False), np.int32), words

    def numbers(self, column: str, forms: Sequence[str]) -> PlainNumbers | None:
        from pyarrow import types

        kind = self._kind(column)
        if _is_text(kind):
            return None
        own: Sequence[str] = KINDS["number"]
        if types.is_temporal(kind) and "iso" in forms:
            own = ("iso",)
        elif types.is_boolean(kind) and "boolean" in forms:
            own = ("boolean",)
        return PlainNumbers(self._values(column), [form for form in forms if form in own])

    def has_numbers(self, column: str) -> bool:
        from pyarrow import types

        kind = self._kind(column)
        return any(is_kind(kind) for is_kind in (
            types.is_integer, types.is_floating, types.is_decimal))  # fmt: skip

    def dates(self, column: str) -> Float64s | None:
        from pyarrow import types

        return self._values(column) if types.is_temporal(self._kind(column)) else None

    def _values(self, column: str) -> Float64s:
        from pyarrow import types

        found, kind, unit = self._batch.column(column), self._kind(column), 1
        found = found.dictionary_decode() if types.is_dictionary(found.type) else found
        if types.is_temporal(kind):  # keeps its unit: no other unit holds all digits and years
            name = "day" if types.is_date32(kind) else getattr(kind, "unit", "ms")
            found, unit = found.cast("int32" if name == "day" else "int64"), _IN_A_DAY[name]
        found = found.cast("int8") if types.is_boolean(kind) else found
        numbers = found.cast("float64", safe=False).to_numpy(zero_copy_only=False)
        return np.asarray(numbers, np.float64) / unit

    def _kind(self, column: str) -> Any:
        return _kind(self._batch.column(column).type)


def _strings(values: Any) -> Any:
    import pyarrow as pa
    from pyarrow import types

    values = values.dictionary_decode() if types.is_dictionary(values.type) else values
    if types.is_timestamp(values.type) and values.type.unit == "ns":  # Python has no ns
        values = values.cast(pa.timestamp("us", values.type.tz), safe=False)
    shown = [None if cell is None else str(cell) for cell in values.to_pylist()]
    return pa.array(shown, pa.string())


def _kind(kind: Any) -> Any:
    from pyarrow import types

    return kind.value_type if types.is_dictionary(kind) else kind


def check_types(
    path: str, numbers: Collection[str], texts: Collection[str], version: Version
) -> None:
    """Raise DataInvalid if columns have wrong types. The error names all of these columns.

    `numbers` and `texts` are the names of the columns that will be read as numbers and as texts.
    """
    from pyarrow import types

    refusals, schema = Refusals(path), _schema(path, version)
    for name in (*numbers, *texts):
        kind = _kind(schema.field(name).type)
        fits = _is_text(kind) or types.is_integer(kind)
        needed = "a text or a whole number"
        if name in numbers and not fits:
            fits = any(is_kind(kind) for is_kind in (
                types.is_floating, types.is_decimal, types.is_boolean, types.is_date,
                types.is_timestamp))  # fmt: skip
        if not fits:
            needed = "a number" if name in numbers else needed
            refusals.add(f"{plain(name)} is of type {kind}, but {needed} is needed")
    refusals.check()


def _texts(values: Any) -> list[str]:
    """Return the values as texts, without spaces around them. A missing value becomes ""."""
    import pyarrow.compute as pc

    trimmed = pc.utf8_trim_whitespace(values.cast("string"))
    texts: list[str] = trimmed.fill_null("").to_pylist()
    return texts


def _schema(path: str, version: Version | None) -> Any:
    with _opened(path, version) as file:
        return file.schema_arrow


def header(path: str, version: Version | None = None) -> list[str]:
    columns: list[str] = _schema(path, version).names
    known = set[str]()
    for name in columns:
        if name in known:
            raise DataInvalid(f"{path}: the column {shown(name)} occurs twice")
        known.add(name)
    return columns


def pieces(path: str, names: Collection[str], version: Version) -> Iterator[Piece]:
    """Yield the rows of a file's `version` in pieces, with the columns `names`."""
    first, chosen = 1, list(dict.fromkeys(names))
    schema = _schema(path, version)
    texts = [name for name in chosen if _is_text(schema.field(name).type)]
    with _opened(path, version, texts) as file:
        for batch in file.iter_batches(_AT_ONCE, columns=chosen):
            batch.validate(full=True)  # a damaged file can refer to texts that do not exist
            if batch.num_rows:
                yield _Batch(path, batch, first)
            first += batch.num_rows


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    is_view = getattr(types, "is_string_view", lambda _: False)  # pyarrow 15 has no such type
    return bool(types.is_string(kind) or types.is_large_string(kind) or is_view(kind))


@contextmanager
def _opened(path: str, version: Version | None, texts: Sequence[str] = ()) -> Iterator[Any]:
    """Open a Parquet file for reading. Each distinct text of the columns `texts` is stored once.

    If `version` is given, the file is refused if it has changed since it had this version.
    """
    try:
        from pyarrow import parquet
    except ImportError:
        raise MissingExtra("pyarrow", "parquet", path) from None
    with (
        reading(Path(path)),
        opened(path, MOST_STREAMED_BYTES, version) as raw,
        _whole(path),
        parquet.ParquetFile(raw, read_dictionary=list(texts)) as file,
    ):
        yield file


@contextmanager
def _whole(path: str) -> Iterator[None]:
    """Convert pyarrow's errors about the file `path` to DataInvalid with one sentence."""
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, UnicodeDecodeError, OverflowError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the system's error. pyarrow raises an OSError for damaged content, too
        said = str(error).splitlines()[0]
        raise DataInvalid(f"{path} cannot be read as Parquet: {said}") from None
