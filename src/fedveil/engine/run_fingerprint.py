"""The fingerprint that a resumed run must match."""

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
    """Return a digest of job, model and data. It excludes the number of rounds, which may grow.

    `more` are the engine's own arrays. `model` is the model's fingerprint.
    """
    settings = json.dumps(job.model_dump(exclude={"rounds"}), sort_keys=True)
    digest = hashlib.sha256(f"{settings} {model}".encode())
    arrays: list[npt.NDArray[Any]] = [dataset.test.x, dataset.test.y, *more]
    for array in arrays:
        digest.update(repr((array.shape, array.dtype)).encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
