"""Purchase-100, a real and a synthetic set: shoppers as 600 binary features, in 100 classes."""

from __future__ import annotations

import io
import warnings
from pathlib import Path

import numpy as np

from fedveil.base.array_types import Array, Bools
from fedveil.base.untrusted import MALFORMED, MOST_DATA_BYTES, lines, opened
from fedveil.data.data_folders import find, located, reading
from fedveil.data.examples import Dataset, Labels, held_out
from fedveil.data.npz_archive import read_npz
from fedveil.entropy import Seeded
from fedveil.errors import DataInvalid, DataUnavailable

CLASSES = 100
FEATURES = 600
EXAMPLES = 197_324
FOLDER = "purchase"
TEXT_FILE = "dataset_purchase"
ARCHIVE = "purchase100.npz"
HOW = f"place {TEXT_FILE} or {ARCHIVE} in $FEDVEIL_DATA/{FOLDER}"

SYNTHETIC = "purchase100-synthetic"
#: The probabilities that a class redraws a feature of the common profile, and that an example's
#: feature differs from its class. Chosen by trial, so that the set invites overfitting as the real
#: one does: a dense net that has memorised 20,000 examples is right on three quarters of the
#: others.
_OWN_FEATURE = 0.1
_STRAY = 0.3
#: A label, 600 features and their commas take 1,204 characters, or some 5,000 if written as 1.0000.
_MOST_LINE_CHARACTERS = 1 << 14
_ROWS_AT_ONCE = 8192


def read() -> Dataset:
    """Return the published Purchase-100 data set, from its .npz archive or its text file."""
    path = find(FOLDER, ARCHIVE, TEXT_FILE)
    if path is None:
        raise DataUnavailable(
            f"data purchase100: neither {TEXT_FILE} nor {ARCHIVE} is on this machine: "
            f"{located(HOW)}; {SYNTHETIC} has the same shape and needs no file"
        )
    x, labels = _read_archive(path) if path.suffix == ".npz" else _read_text(path)
    if x.shape[1:] != (FEATURES,) or len(x) == 0:
        raise DataInvalid(
            f"{path} has features of shape {x.shape}, but [examples, {FEATURES}] is needed"
        )
    if not ((x == 0) | (x == 1)).all():
        raise DataInvalid(f"{path} holds features other than 0 and 1")
    return held_out("purchase100", x, labels, CLASSES)


def _read_text(path: Path) -> tuple[Array, Labels]:
    try:
        with reading(path), opened(path, MOST_DATA_BYTES) as file, warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # no lines: the caller raises
            # If NumPy 1 reads an integer through a float, 300 would become 44.
            warnings.simplefilter("error", DeprecationWarning)
            rows = lines(io.TextIOWrapper(file, "latin-1"), _MOST_LINE_CHARACTERS)
            table = np.loadtxt(rows, np.uint8, delimiter=",", comments=None, ndmin=2)
    except (DeprecationWarning, *MALFORMED) as error:
        reason = str(error).partition("\n")[0]
        raise DataInvalid(f"{path} is not lines of a label and 0/1 features: {reason}") from None
    labels = table[:, 0].astype(np.int64) - 1 if table.size else np.zeros(0, np.int64)
    _check_range(path, labels, 1)
    return table[:, 1:], labels


def _read_archive(path: Path) -> tuple[Array, Labels]:
    """Return the features of the .npz archive, and its labels as integers from 0.

    In the archive, labels are one-hot, or integers that start at 0 or at 1.
    """
    x, labels = read_npz(path, "features", "labels")
    if labels.ndim == 2 and labels.shape[1] == CLASSES:
        if not (((labels == 0) | (labels == 1)).all() and (labels.sum(axis=1) == 1).all()):
            raise DataInvalid(f"{path} has rows of labels that are not one-hot")
        labels = labels.argmax(axis=1)
    if x.ndim != 2 or labels.shape != x.shape[:1]:
        raise DataInvalid(
            f"{path} has labels of shape {labels.shape} and features of shape {x.shape}, but "
            f"[examples] or [examples, {CLASSES}] and [examples, {FEATURES}] are needed"
        )
    if labels.dtype.kind not in "iuf" or (labels != np.floor(labels)).any():
        raise DataInvalid(f"{path} has labels that are not whole numbers")
    labels = labels.astype(np.int64)
    first = 1 if labels.max(initial=0) == CLASSES else 0
    _check_range(path, labels - first, first)
    return x, labels - first


def _check_range(path: Path, labels: Labels, first: int) -> None:
    wrong = (labels < 0) | (labels >= CLASSES)
    if wrong.any():
        raise DataInvalid(
            f"{path} holds the label {labels[np.argmax(wrong)] + first}, which is outside "
            f"[{first}, {first + CLASSES - 1}]"
        )


def synthesize(examples: int = EXAMPLES) -> Dataset:
    """Return a synthetic set with the shape of Purchase-100, equal in every call.

    All classes share one profile of 600 fair bits. In each of the 100 classes, every bit is redrawn
    with probability 0.1. An example has a uniform class and that class's bits, each flipped with
    probability 0.3. All draws are independent.
    """
    entropy = Seeded(0, SYNTHETIC)
    common = entropy.bernoulli(0.5, FEATURES)
    own = entropy.bernoulli(_OWN_FEATURE, (CLASSES, FEATURES))
    profiles = np.where(own, entropy.bernoulli(0.5, (CLASSES, FEATURES)), common)
    labels = entropy.integers(CLASSES, examples)
    x: Bools = profiles[labels]
    for start in range(0, examples, _ROWS_AT_ONCE):
        rows = x[start : start + _ROWS_AT_ONCE]
        rows ^= entropy.bernoulli(_STRAY, rows.shape)
    return held_out(SYNTHETIC, x, labels, CLASSES)
