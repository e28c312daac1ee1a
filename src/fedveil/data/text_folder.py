"""A user's texts: FOLDER/train.jsonl and FOLDER/test.jsonl, one JSON object on each line.

    {"text": "...", "client": "a"}                       task: next_token
    {"text": "...", "label": "spam", "client": "a"}      task: sequence_classification
    {"prompt": "...", "answer": "...", "client": "a"}    task: instruction

`client` names the owner of a line, on all lines of train.jsonl or on none. A long text under
`next_token` is cut into several examples. No example has tokens of two lines. The test part
determines the classes.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from fedveil.base.array_types import Array
from fedveil.base.example_arrays import IGNORED
from fedveil.base.files import from_home
from fedveil.base.quantity import quantity
from fedveil.base.untrusted import MALFORMED, MOST_DATA_BYTES, escaped, read_bytes
from fedveil.data.data_folders import reading
from fedveil.data.examples import Dataset, make_dataset
from fedveil.errors import DataInvalid, FedveilWarning
from fedveil.pretrained.model_folder import ModelFolder
from fedveil.pretrained.token_rows import TokenRows
from fedveil.settings.allowed import shown

NAME = "text_folder"
TRAIN, TEST = "train.jsonl", "test.jsonl"
#: The keys of a line under each task.
KEYS: Mapping[str, tuple[str, ...]] = {
    "next_token": ("text",),
    "sequence_classification": ("text", "label"),
    "instruction": ("prompt", "answer"),
}

#: A row of tokens and its target.
Example = tuple[Array, Array]
Line = Mapping[str, str]
#: Converts a line into examples. Raises ValueError if it cannot.
Maker = Callable[[Line], list[Example]]


@dataclass(frozen=True)
class TextForm:
    """Settings for converting texts into examples.

    `model` has the tokeniser, and `length` is the number of tokens of an example. `task` is the
    job's task, which determines the fields of a line. `by_client` is True if every line must name
    its client.
    """

    model: ModelFolder
    task: str
    length: int
    by_client: bool = False


def read(folder: str, form: TextForm, *, apart: bool = False) -> Dataset:
    """Return the texts in `folder` as a data set, converted to tokens as `form` says.

    If `apart` is True, invalid training lines have no effect. Raises `DataUnavailable` if files are
    missing or cannot be read, and `DataInvalid` if they are invalid.
    """
    if form.task not in KEYS:
        raise DataInvalid(f"data.name = {NAME} needs one of the tasks {', '.join(KEYS)}")
    root, rows = from_home(folder), TokenRows(form.model, form.length)
    test_lines = list(_lines(root / TEST, form.task))
    labels = sorted({line.get("label", "") for _, line in test_lines})
    make = _maker(form.task, rows, labels)
    test = [example for place, line in test_lines for example in _examples(make, line, place)]
    _note_cut_answers(root / TEST, test)
    nothing = (np.zeros_like(test[0][0]), np.zeros_like(test[0][1]))
    train, owners, usable = list[Example](), list[str](), list[bool]()
    for place, line in _lines(root / TRAIN, form.task, apart=apart):
        owner = line.get("client", "")
        without_client = apart and form.by_client and not owner
        made = _examples(make, {} if without_client else line, place, apart=apart)
        usable += [bool(made)] * (len(made) or 1)
        owners += [owner] * (len(made) or 1)
        train += made or [nothing]
    if not apart:  # a warning would tell about the training lines
        _note_cut_answers(root / TRAIN, train)
    found = make_dataset(
        NAME,
        _stacked(train),
        _stacked(test),
        classes=len(labels) if form.task == "sequence_classification" else rows.size,
        owners=_owners(root / TRAIN, owners, form, apart=apart),
        targets="class" if form.task == "sequence_classification" else "tokens",
    )
    if not apart:
        return found
    return replace(found, train=replace(found.train, usable=np.array(usable)))


def _owners(path: Path, owners: Sequence[str], form: TextForm, *, apart: bool) -> list[str] | None:
    """Return the client that owns each example, or None if the examples have no owners.

    `owners` has the client that each example's line names, or "" if the line names none. If no line
    names a client, the examples have no owners. If only some lines do, raises `DataInvalid`, which
    names the file `path`.

    If `apart` is True, a line must not affect other lines, so no such error is raised. If
    `form.by_client` is False, the examples then have no owners. If it is True, an example whose
    line names no client is not used. It is assigned to the client of the example before it or, at
    the start, to the first client that a line names.
    """
    if not any(owners) or (apart and not form.by_client):
        return None
    if not apart and not all(owners):
        raise DataInvalid(f"{path}: some lines name a client and others do not")
    first = next(filter(None, owners))
    return list(accumulate(owners, lambda before, own: own or before, initial=first))[1:]


def _note_cut_answers(path: Path, examples: Sequence[Example]) -> None:
    """Warn if some of a file's `examples` have no target, because the prompt fills the whole row.

    Raises `DataInvalid` if all of them have none. `path` names the file.
    """
    cut = sum(bool((y == IGNORED).all()) for _, y in examples)
    if not cut:
        return
    said = (
        f"{path}: for {cut:,} of {quantity(len(examples), 'line')}, the prompt leaves no token "
        "for the answer. Use a larger language.length or shorter prompts"
    )
    if cut == len(examples):
        raise DataInvalid(said)
    warnings.warn(said, FedveilWarning, stacklevel=3)


def _examples(make: Maker, line: Line, place: str, *, apart: bool = False) -> list[Example]:
    """Convert a line to examples with `make`. Raises `DataInvalid` for an invalid line.

    The error begins with `place`. If `apart` is True, returns [] for an invalid line instead.
    """
    found, why = list[Example](), "its text has no tokens"
    try:
        found = make(line)
    except (KeyError, ValueError) as error:
        why = str(error)
    if not found and not apart:
        raise DataInvalid(f"{place}: {why}")
    return found


def _maker(task: str, rows: TokenRows, labels: Sequence[str]) -> Maker:
    if task == "next_token":
        return lambda line: list(rows.pieces(line["text"]))
    if task == "instruction":
        return lambda line: [rows.answer(line["prompt"], line["answer"])]

    def classified(line: Line) -> list[Example]:
        if line["label"] not in labels:
            raise ValueError(f"its label {line['label']!r} is in no line of {TEST}")
        return [(rows.whole(line["text"]), np.array(labels.index(line["label"])))]

    return classified


def _lines(path: Path, task: str, *, apart: bool = False) -> Iterator[tuple[str, Line]]:
    """Yield the place (for error messages) and the JSON object of each line that is not blank.

    A line must have the fields that `task` needs. Raises `DataInvalid` for an invalid line. If
    `apart` is True, an invalid line is yielded as {"client": ...}, or as {} if it names no client.
    """
    with reading(path):
        content = read_bytes(path, MOST_DATA_BYTES)
    if not content.strip():
        raise DataInvalid(f"{path} holds no line")
    for number, text in enumerate(content.splitlines(), 1):
        if not text.strip():
            continue
        place, found = f"{path}, line {number}", None
        try:
            found = json.loads(_decoded(text))
            line = _checked(found, KEYS[task])
        except MALFORMED as error:
            if not apart:
                raise DataInvalid(f"{place}: {escaped(str(error))}") from None
            owner = found.get("client") if isinstance(found, dict) else None
            line = {"client": owner} if isinstance(owner, str) else {}
        yield place, line


def _decoded(text: bytes) -> str:
    """Decode a line. Raises ValueError if it is not UTF-8.

    Some editors begin a file with a byte order mark, which is removed.
    """
    try:
        return text.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"its byte {error.start + 1} is {text[error.start]:#04x}, which is not UTF-8: save "
            "the file as UTF-8"
        ) from None


def _checked(line: Any, keys: Sequence[str]) -> Line:
    if not isinstance(line, dict):
        raise ValueError("it is not a JSON object")
    for key in (*keys, "client"):
        value = line.get(key, "")
        known = isinstance(value, str) or (key == "label" and isinstance(value, int))
        if not known or (key in keys and value == ""):
            found = f"its {key} is {shown(value)}" if key in line else f"it has no {key}"
            raise ValueError(f"{found}, but a text is needed")
        line[key] = str(value)
        line[key].encode()  # raises ValueError for a lone surrogate
    return line


def _stacked(examples: Sequence[Example]) -> tuple[Array, Array]:
    return np.stack([x for x, _ in examples]), np.stack([y for _, y in examples])
