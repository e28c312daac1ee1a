"""The number of workers that a job gets."""

from __future__ import annotations

from typing import Any

import pytest

from fedveil.engine.assembly import worker_count
from fedveil.federated.job import Job


@pytest.mark.parametrize(
    ("settings", "cores", "workers"),
    [
        ({}, 6, 6), ({}, 90, 50), ({"simulation": {"workers": 3}}, 90, 3),
        ({"simulation": {"workers": 70}}, 6, 50), ({"simulation": {"workers": 0}}, 6, 0),
        ({"training": {"device": "cuda"}}, 6, 0), ({"training": {"engine": "vmap"}}, 6, 0),
        ({"training": {"device": "cuda"}, "simulation": {"workers": 2}}, 6, 2),
    ],
)  # fmt: skip
def test_no_more_workers_than_cores_or_than_clients_in_a_round(
    settings: dict[str, Any], cores: int, workers: int
) -> None:
    assert worker_count(Job(**settings), cores) == workers
