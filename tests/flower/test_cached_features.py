"""A node computes the features of a client's examples once for each job, model and data."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from fedveil.engine.executors.client_side import ClientsData
from fedveil.errors import DeploymentError
from fedveil.flower.job import client_training
from fedveil.flower.job.client_training import Training

FIRST = ("job", "model", 3, "own:data")
OTHERS = [
    ("another", "model", 3, "own:data"),
    ("job", "another", 3, "own:data"),
    ("job", "model", 4, "own:data"),
    ("job", "model", 3, "own:other"),
    ("job", "model", 3, None),
]


def seen(job: str, model: str, client: int, function: str | None, *, head: bool = True) -> Any:
    """Return the examples that a client trains on, with inputs of two numbers."""
    training: Any = Training.__new__(Training)
    settings = SimpleNamespace(device="cpu")
    unit = SimpleNamespace(unit="client")
    training._job = SimpleNamespace(name=job, training=settings, privacy=unit)
    training._shape = SimpleNamespace(fingerprint=model, example_shape=(2,), classes=90)
    training._part = SimpleNamespace(features=head or None, inputs=lambda x, device: x)
    training._targets, training._shared = "class", None
    return training._seen(client, function)


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, str | None]]:
    """Record the job, client and function of all data that is loaded."""
    found = []

    def load(job: Any, client: int, function: str | None, shared: Any) -> ClientsData:
        found.append((job.name, client, function))
        y = np.arange(client)
        return ClientsData.of_one(client, np.ones((client, 2), np.float32), y)

    monkeypatch.setattr(client_training, "client_data", load)
    monkeypatch.setattr(client_training, "job_digest", lambda job: job.name.encode())
    monkeypatch.setattr(client_training, "_seen_before", {})
    return found


@pytest.mark.parametrize("other", OTHERS)
def test_features_are_cached_for_one_job_model_client_and_data(
    other: Any, loaded: list[Any]
) -> None:
    assert seen(*FIRST) is seen(*FIRST)
    assert seen(*other) is not seen(*FIRST)
    job, _, *client = other
    assert loaded == [("job", 3, "own:data"), (job, *client)]


def test_examples_without_fixed_layers_are_read_in_every_round(loaded: list[Any]) -> None:
    for _ in range(2):
        seen(*FIRST, head=False)
    assert len(loaded) == 2


def test_a_process_caches_a_limited_number_of_clients(loaded: list[Any]) -> None:
    for client in (*range(2, 20), 2, 19):
        seen("job", "model", client, None)
    assert len(client_training._seen_before) == 16
    assert [client for _, client, _ in loaded] == [*range(2, 20), 19]


@pytest.mark.parametrize("targets", ["numbers", "bits"])
def test_an_example_has_as_many_targets_as_the_model_has_outputs(targets: Any) -> None:
    data = ClientsData.of_one(1, np.ones((3, 2), np.float32), np.ones((3, 4), np.float32))
    client_training._check_targets(data, SimpleNamespace(classes=4), targets)  # type: ignore[arg-type]
    with pytest.raises(DeploymentError, match="has 4 targets for an example, the job has 5"):
        client_training._check_targets(data, SimpleNamespace(classes=5), targets)  # type: ignore[arg-type]
