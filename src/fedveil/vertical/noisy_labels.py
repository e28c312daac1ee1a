"""Training labels under LabelDP: drawn once for a run, and saved in a file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from fedveil.base.message import only_fields, take_array
from fedveil.base.untrusted import MOST_STATE_BYTES, read_bytes
from fedveil.entropy import Entropy
from fedveil.errors import InvalidValue
from fedveil.mechanisms.label_dp import LabelDP
from fedveil.record.sealed_message import intact, sealed, unsealed
from fedveil.vertical.rows import Rows

#: The file in the leader's folder with the randomised labels.
LABELS = "labels"


def drawn(rows: Rows, mechanism: LabelDP, classes: int, entropy: Entropy) -> Rows:
    """Return `rows` with labels that `mechanism` has randomised.

    `classes` is the number of classes, and `entropy` the source of randomness.
    """
    assert rows.labels is not None, "the leader has the labels"
    truth = rows.labels.reshape(-1).long().numpy()
    return _with(rows, mechanism.perturb_classes(truth, classes, entropy.stream("labels")))


def kept(path: Path, rows: Rows, classes: int) -> Rows:
    """Return `rows` with the labels in the file `path`. `classes` is the number of classes.

    Raises RunFolderError if the file is damaged.
    """
    with intact(path):
        fields = unsealed(read_bytes(path, MOST_STATE_BYTES))
        only_fields(fields, "labels")
        told = take_array(fields, "labels", np.int64, (rows.count,))
        if (told < 0).any() or (told >= classes).any():
            raise InvalidValue(f"field labels has a class outside 0 to {classes - 1}")
    return _with(rows, told)


def file_of(rows: Rows) -> bytes:
    """Encode the labels of `rows` as a file that `kept` reads."""
    assert rows.labels is not None, "the leader has the labels"
    return sealed({"labels": rows.labels.reshape(-1).long().numpy()})


def _with(rows: Rows, told: npt.NDArray[np.int64]) -> Rows:
    assert rows.labels is not None, "the leader has the labels"
    labels = torch.from_numpy(told.copy()).to(rows.labels.dtype).reshape(rows.labels.shape)
    return replace(rows, labels=labels)
