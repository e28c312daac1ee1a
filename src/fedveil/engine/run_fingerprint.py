"""What a run that goes on must find again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from fedveil.data.datasets import Dataset
from fedveil.federated.job import Job


def run_fingerprint(
    job: Job, dataset: Dataset, more: Iterable[npt.NDArray[Any]], model: str
) -> str:
    """A digest of what a resumed run must find again; it may have more rounds."""
    settings = json.dumps(job.model_dump(exclude={"rounds"}), sort_keys=True)
    digest = hashlib.sha256(f"{settings} {model}".encode())
    arrays: list[npt.NDArray[Any]] = [dataset.test.x, dataset.test.y, *more]
    for array in arrays:
        digest.update(repr((array.shape, array.dtype)).encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
