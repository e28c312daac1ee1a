"""Saved results of an experiment, so that nothing is computed twice."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from fedveil.base.files import write_whole
from fedveil.base.untrusted import MOST_LINES_BYTES, read_bytes
from fedveil.engine.round_checkpoint import Checkpoint
from fedveil.errors import RunFolderError
from fedveil.record.run_folder import RunFolder, explained
from fedveil.record.sealed_message import intact

_Result = TypeVar("_Result")


def kept(folder: Path, name: str, kind: type[_Result], make: Callable[[], Any]) -> _Result:
    """Return the saved result `name`. If there is none, call `make` and save its result.

    `make` returns the fields of the result as data for JSON. Raises RunFolderError if the file is
    not a result of type `kind`.
    """
    file = folder / f"{name}.json"
    if not file.exists():
        made = json.dumps(make(), indent=1).encode()
        with explained(file):
            write_whole(file, made)
    with intact(file):
        try:
            return TypeAdapter(kind).validate_json(read_bytes(file, MOST_LINES_BYTES), strict=True)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"])) or "the file"
            raise RunFolderError(
                f"{file} is damaged: {place}: {first['msg']}. Remove the file to compute it again"
            ) from None


def last_checkpoint(folder: Path) -> Checkpoint:
    """Return the state of the finished run in `folder`."""
    opened = RunFolder.reopen(folder)
    try:
        saved = Checkpoint.read(opened)
    finally:
        opened.close()
    if saved is None:
        raise RunFolderError(f"{folder} has no checkpoint of its last round")
    return saved
