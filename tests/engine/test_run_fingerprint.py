"""A run's fingerprint: whatever a resumed run must share with the first, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedveil.data.datasets import Dataset, load
from fedveil.engine.run_parts import run_fingerprint
from fedveil.federated.job import Job

Given = dict[str, Any]


def given() -> Given:
    dataset = load("parts:data")
    more = [np.arange(6, dtype=np.float32), np.arange(4)]
    return {"job": Job(rounds=7), "dataset": dataset, "more": more, "model": "a digest"}


def edited(dataset: Dataset, what: str) -> Dataset:
    """Return the data set with one number of its test examples changed."""
    array = getattr(dataset.test, what).copy()
    array.flat[-1] = (array.flat[-1] + 1) % 3
    return replace(dataset, test=replace(dataset.test, **{what: array}))


@pytest.mark.parametrize(
    "change",
    [
        lambda all: {"job": all["job"].with_(seed=5)},
        lambda all: {"model": "another digest"},
        lambda all: {"dataset": edited(all["dataset"], "x")},
        lambda all: {"dataset": edited(all["dataset"], "y")},
        lambda all: {"more": [all["more"][0], all["more"][1][::-1]]},
        lambda all: {"more": [all["more"][0].reshape(2, 3), all["more"][1]]},
        lambda all: {"more": [all["more"][0].view(np.int32), all["more"][1]]},
    ],
)
def test_another_job_model_or_data_has_another(change: Callable[[Given], Given]) -> None:
    before = given()
    assert run_fingerprint(**before | change(before)) != run_fingerprint(**before)


def test_the_number_of_rounds_may_grow() -> None:
    before = given()
    longer = before | {"job": before["job"].with_(rounds=9)}
    assert run_fingerprint(**longer) == run_fingerprint(**given())


def test_the_place_of_the_clients_may_change() -> None:
    before = given()
    moved = before | {"job": before["job"].with_({"simulation.on": "ray"})}
    assert run_fingerprint(**moved) == run_fingerprint(**given())
