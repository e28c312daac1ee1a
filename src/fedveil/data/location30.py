"""Location-30: 5,010 people's check-ins as 446 binary features, with 30 clusters as classes."""

from __future__ import annotations

import numpy as np

from fedveil.base.array_types import Array
from fedveil.data.data_folders import find, located
from fedveil.data.examples import Dataset, held_out
from fedveil.data.npz_archive import read_npz
from fedveil.errors import DataInvalid, DataUnavailable

CLASSES = 30
FEATURES = 446
FOLDER = "location"
FILE = "location30.npz"
HOW = f"place {FILE} in $FEDVEIL_DATA/{FOLDER}"


def read() -> Dataset:
    """Return the data set Location-30, from its .npz archive."""
    path = find(FOLDER, FILE)
    if path is None:
        raise DataUnavailable(f"data location30: {FILE} is not on this machine: {located(HOW)}")
    packed, labels, width = read_npz(path, "features", "labels", "n_features")
    if width.shape != () or width != FEATURES:
        raise DataInvalid(f"{path} has n_features = {width}, but {FEATURES} is needed")
    if packed.dtype != np.uint8 or packed.ndim != 2 or packed.shape[1] != -(-FEATURES // 8):
        raise DataInvalid(
            f"{path} has features of dtype {packed.dtype} and shape {packed.shape}, but uint8 "
            f"and [examples, {-(-FEATURES // 8)}] are needed"
        )
    if labels.shape != packed.shape[:1]:
        raise DataInvalid(
            f"{path} has labels of shape {labels.shape} and {len(packed)} examples, but the "
            "numbers must be equal"
        )
    x: Array = np.unpackbits(packed, axis=1)[:, :FEATURES]
    return held_out("location30", x, labels, CLASSES)
