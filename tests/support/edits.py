"""Edited files of a run: each field with every kind of wrong value."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from fedveil.base.message import Value, decode, encode
from fedveil.errors import FedveilError
from fedveil.record.sealed_message import sealed, unsealed

#: Pairs of an edit's name and the error that it leads to.
Edits: TypeAlias = Iterator[tuple[str, str | None]]
_GONE: Any = object()


def edited(message: Mapping[str, Value], nested: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield a name and a copy of `message` for every edit of one field.

    Fields in `nested` are messages themselves, and are edited as well.
    """
    yield "more.added", {**message, "more": 1}
    for name, value in message.items():
        for how, other in _values(value):
            rest = {key: kept for key, kept in message.items() if key != name}
            yield f"{name}.{how}", rest if other is _GONE else {**rest, name: other}
        if name in nested:
            for how, inner in edited(decode(value)):  # type: ignore[arg-type]
                yield f"{name}/{how}", {**message, name: encode(inner)}


def sealed_edits(path: Path, nested: tuple[str, ...] = ()) -> Iterator[tuple[str, bytes]]:
    """Yield a sealed file's bytes with one field edited and the digest recomputed."""
    for how, message in edited(unsealed(path.read_bytes()), nested):
        yield how, sealed(message)


def damaged(raw: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield damaged versions of a file's bytes: changed, cut short, extended, or replaced."""
    for at in {0, len(raw) // 3, len(raw) // 2, len(raw) - 1}:
        yield f"byte {at}", raw[:at] + bytes([raw[at] ^ 0x15]) + raw[at + 1 :]
    yield "shorter", raw[:-1]
    yield "half", raw[: len(raw) // 2]
    yield "empty", b""
    yield "longer", raw + b"\0"
    yield "not text", b"\xff\xfe" * 40
    yield "nested", b"[" * 100_000


def sentence_of(
    folder: Path, go_on: Callable[[Path], object], before: dict[str, str] | None = None
) -> str | None:
    """Return the error that refuses to resume a run, or None if it resumes.

    Checks that a refused run is unchanged. `before` is its content, if that is known.
    """
    before = _content(folder) if before is None else before
    try:
        go_on(folder)
    except FedveilError as error:
        sentence = str(error)
    else:
        return None
    assert _content(folder) == before
    assert "\n" not in sentence
    assert len(sentence) < 1000
    return sentence


def on_copies(
    folder: Path, name: str, edits: Iterator[tuple[str, bytes]], go_on: Callable[[Path], object]
) -> Edits:
    """Yield the result of each edit of a file, applied to a copy of the folder.

    A refused copy is unchanged, so the next edit is applied to it.
    """
    copy, content = folder.parent / "copy", dict[str, str]()
    for how, data in edits:
        if not content:
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("report.html"))
            content = _content(copy)
        (copy / name).write_bytes(data)
        content[name] = hashlib.sha256(data).hexdigest()
        sentence = sentence_of(copy, go_on, content)
        content = {} if sentence is None else content
        yield how, sentence


def _content(folder: Path) -> dict[str, str]:
    """Return the digest of every file in a folder, except locks and logs."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in (".lock", "events.log", "events.chain")
    }


def _values(value: Any) -> Iterator[tuple[str, Any]]:
    yield "gone", _GONE
    yield "text", 5 if isinstance(value, str) else "text"
    if isinstance(value, np.ndarray):
        yield from _arrays(value)
    elif isinstance(value, bool):
        yield "turned", not value
        yield "number", int(value)
    elif isinstance(value, int | float):
        yield "other kind", float(value) if isinstance(value, int) else 3
        yield "negative", type(value)(-3)
        yield "huge", type(value)(1 << 62)
        if isinstance(value, float):
            yield "nan", float("nan")
            yield "infinite", float("inf")
    else:
        yield "empty", value[:0]
        yield "shorter", value[:-1]
        yield "longer", value + value[:1]
        yield "array", np.zeros(3)


def _arrays(array: Any) -> Iterator[tuple[str, Any]]:
    yield (
        "other type",
        np.nan_to_num(array).astype(np.int16 if array.dtype.kind == "f" else np.float32),
    )
    yield "another dimension", array[None]
    yield "empty", array[:0]
    yield "shorter", array[:-1]
    yield "longer", np.concatenate([array, array[-1:]])
    if not array.size:
        return
    for how, number in (("negative", -3), ("huge", 1 << 60), ("nan", float("nan"))):
        if (array.dtype.kind == "f" or number == number) and (array.dtype.kind, number) != (
            "u",
            -3,
        ):
            changed = array.copy()
            top = np.iinfo(array.dtype).max if array.dtype.kind in "iu" else number
            changed.reshape(-1)[-1] = min(number, top) if number == number else number
            yield how, changed
