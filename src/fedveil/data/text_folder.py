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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedveil.base.array_types import Array
from fedveil.base.untrusted import MALFORMED, MOST_DATA_BYTES, escaped, read_bytes
from fedveil.data.data_folders import reading
from fedveil.data.examples import Dataset, make_dataset
from fedveil.errors import DataInvalid
from fedveil.pretrained.model_folder import ModelFolder
from fedveil.pretrained.token_rows import TokenRows

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


@dataclass(frozen=True)
class TextForm:
    """Settings for converting texts into examples: task, number of tokens, and tokeniser."""

    model: ModelFolder
    task: str
    length: int


def read(folder: str, form: TextForm, *, apart: bool = False) -> Dataset:
    """Return the texts in `folder` as a data set, converted to tokens as `form` says.

    Raises `DataUnavailable` or `DataInvalid`. With `apart`, an unusable training line raises no
    error. It becomes a record without effect.
    """
    if form.task not in KEYS:
        raise DataInvalid(f"data.name = {NAME} needs one of the tasks {', '.join(KEYS)}")
    root, rows = Path(folder).expanduser(), TokenRows(form.model, form.length)
    test_lines = list(_lines(root / TEST, form.task, apart=False))
    labels = sorted({line.get("label", "") for line in test_lines})
    make = _maker(form.task, rows, labels)
    test = [example for line in test_lines for example in make(line)]
    train, owners, usable = list[Example](), list[str](), list[bool]()
    for number, line in enumerate(_lines(root / TRAIN, form.task, apart=apart), 1):
        try:
            made = make(line)
        except (KeyError, ValueError) as error:
            if not apart:
                raise DataInvalid(f"{root / TRAIN}, line {number}: {error}") from None
            made = []
        usable += [bool(made)] * (len(made) or 1)
        train += made or [(np.zeros_like(test[0][0]), np.zeros_like(test[0][1]))]
        owners += [line.get("client", "")] * (len(made) or 1)
    found = make_dataset(
        NAME,
        _stacked(train),
        _stacked(test),
        classes=len(labels) if form.task == "sequence_classification" else rows.size,
        owners=owners if any(owners) else None,
        targets="class" if form.task == "sequence_classification" else "tokens",
    )
    if not apart:
        return found
    return replace(found, train=replace(found.train, usable=np.array(usable)))


def _maker(
    task: str, rows: TokenRows, labels: Sequence[str]
) -> Callable[[Mapping[str, str]], list[Example]]:
    """Return the function with which this task converts a line of a file into examples.

    `rows` converts texts into tokens. `labels` are the classes, in the order of their numbers.
    """
    if task == "next_token":
        return lambda line: list(rows.pieces(line["text"]))
    if task == "instruction":
        return lambda line: [rows.answer(line["prompt"], line["answer"])]

    def classified(line: Mapping[str, str]) -> list[Example]:
        if line["label"] not in labels:
            raise ValueError(f"its label {line['label']!r} is in no line of {TEST}")
        return [(rows.whole(line["text"]), np.array(labels.index(line["label"])))]

    return classified


def _lines(path: Path, task: str, *, apart: bool) -> Iterator[dict[str, str]]:
    """Yield the lines of a file as dicts. Raises `DataInvalid` for an invalid line.

    With `apart`, an invalid line raises no error. It is yielded as a dict with only a client, that
    of the line before.
    """
    with reading(path):
        content = read_bytes(path, MOST_DATA_BYTES)
    count, named, owner = 0, set[bool](), ""
    for text in filter(bytes.strip, content.splitlines()):
        count += 1
        try:
            line = _checked(text, KEYS[task])
        except MALFORMED as error:
            if not apart:
                raise DataInvalid(f"{path}, line {count}: {escaped(str(error))}") from None
            line = {"client": owner}
        owner = line.get("client", "")
        named.add(bool(owner))
        yield line
    if not count:
        raise DataInvalid(f"{path} holds no line")
    if path.name == TRAIN and len(named) > 1:
        raise DataInvalid(f"{path}: some lines name a client and others do not")


def _checked(text: bytes, keys: Sequence[str]) -> dict[str, str]:
    line = json.loads(text)
    if not isinstance(line, dict):
        raise ValueError("it is not a JSON object")
    for key in (*keys, "client"):
        value = line.get(key, "")
        known = isinstance(value, str) or (key == "label" and isinstance(value, int))
        if not known or (key in keys and value == ""):
            raise ValueError(f"it needs {' and '.join(keys)} as texts")
        line[key] = str(value)
        line[key].encode()  # raises ValueError for half a character
    return line


def _stacked(examples: Sequence[Example]) -> tuple[Array, Array]:
    return np.stack([x for x, _ in examples]), np.stack([y for _, y in examples])
