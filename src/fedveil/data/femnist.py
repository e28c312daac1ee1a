"""FEMNIST in LEAF's format: handwritten digits and letters in 62 classes, owned by their writers.

    {"users": [writer, ...], "num_samples": [n, ...],
     "user_data": {writer: {"x": [[784 numbers], ...], "y": [class, ...]}, ...}}

The data is in any number of .json files under train/ and test/. Classes 0-9 are digits, 10-35
capital letters, 36-61 small letters. Pixels are in [0, 1]. As in LEAF, the background is 1.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from fedveil.base.array_types import Array
from fedveil.base.untrusted import MALFORMED, MOST_DATA_BYTES, read_text
from fedveil.data.data_folders import find, located, reading
from fedveil.data.examples import Dataset, centred, make_dataset
from fedveil.errors import DataInvalid, DataUnavailable

CLASSES = 62
SHAPE = (1, 28, 28)
FOLDER = "femnist"
HOW = f"make it with LEAF and place its folders train/ and test/ in $FEDVEIL_DATA/{FOLDER}"
_PIXELS = 28 * 28


def read() -> Dataset:
    """Return FEMNIST. The training examples are ordered by their owners, the writers."""
    train_folder = find(FOLDER, "train")
    if train_folder is None:
        raise DataUnavailable(f"data femnist: train/ is not on this machine: {located(HOW)}")
    train = _read_part(train_folder)
    test = _read_part(train_folder.parent / "test")
    owners = [writer for writer, (_, classes) in train.items() for _ in classes]
    return make_dataset("femnist", _joined(train), _joined(test), classes=CLASSES, owners=owners)


def _joined(part: dict[str, tuple[Array, Array]]) -> tuple[Array, Array]:
    pixels, classes = (np.concatenate(arrays) for arrays in zip(*part.values(), strict=True))
    return pixels.reshape(-1, *SHAPE), classes


def _read_part(folder: Path) -> dict[str, tuple[Array, Array]]:
    part: dict[str, tuple[Array, Array]] = {}
    for path in sorted(folder.glob("*.json")):
        for writer, examples in _read_file(path).items():
            if writer in part:
                raise DataInvalid(
                    f"{path} holds the writer {writer}, who is already in an earlier file"
                )
            part[writer] = examples
    if not part:
        raise DataInvalid(f"{folder} holds no writer's examples, but LEAF's .json files are needed")
    return dict(sorted(part.items()))


def _read_file(path: Path) -> dict[str, tuple[Array, Array]]:
    try:
        with reading(path):
            text = read_text(path, MOST_DATA_BYTES)
        document = json.loads(text)
        users, counts = document["users"], document["num_samples"]
        data = document["user_data"]
        if sorted(users) != sorted(data) or len(counts) != len(users):
            raise DataInvalid(f"{path} names different writers in users and in user_data")
        return {
            user: _read_writer(f"{path}, writer {user}", data[user], count)
            for user, count in zip(users, counts, strict=True)
            if count or data[user]["x"]
        }
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise DataInvalid(f"{path} is not JSON: {error}") from None
    except DataInvalid:
        raise
    except MALFORMED as error:
        raise DataInvalid(f"{path} is not in LEAF's layout: {error!r}") from None


def _read_writer(origin: str, data: dict[str, Any], count: int) -> tuple[Array, Array]:
    try:
        x, y = np.array(data["x"], np.float32), np.array(data["y"])
    except ValueError as error:
        raise DataInvalid(f"{origin}: x is not rows of {_PIXELS} numbers: {error}") from None
    if x.shape != (count, _PIXELS) or y.shape != (count,):
        raise DataInvalid(
            f"{origin}: x has shape {x.shape} and y {y.shape}, but ({count}, {_PIXELS}) and "
            f"({count},) are needed"
        )
    if not ((x >= 0) & (x <= 1)).all():
        raise DataInvalid(f"{origin}: x holds pixels outside [0, 1]")
    return centred(x), y
