"""A node computes the features of a client's examples once for each job, model and data.

It reads the examples in every round, and computes the features again if an example has changed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from fedveil.base.example_arrays import joined, ragged
from fedveil.engine.executors.client_side import ClientsData
from fedveil.errors import DeploymentError
from fedveil.flower.job import client_training
from fedveil.flower.job.client_training import Training

#: The inputs of which features were computed, and the changes of the data that is loaded.
computed: list[Any] = []
changes: list[Callable[[ClientsData], ClientsData]] = []
FIRST = ("job", "model", 3, "own:data")
OTHERS = [
    ("another", "model", 3, "own:data"),
    ("job", "another", 3, "own:data"),
    ("job", "model", 4, "own:data"),
    ("job", "model", 3, "own:other"),
    ("job", "model", 3, None),
]


def features(x: Any, device: str) -> Any:
    computed.append(x)
    return x


def seen(job: str, model: str, client: int, function: str | None, *, head: bool = True) -> Any:
    """Return the examples that a client trains on, with inputs of two numbers."""
    training: Any = Training.__new__(Training)
    settings = SimpleNamespace(device="cpu")
    unit = SimpleNamespace(unit="client")
    training._job = SimpleNamespace(name=job, training=settings, privacy=unit)
    training._shape = SimpleNamespace(fingerprint=model, example_shape=(2,), classes=90)
    training._part = SimpleNamespace(features=head or None, inputs=features)
    training._targets, training._shared = "class", None
    return training._seen(client, function)


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, str | None]]:
    """Record the job, client and function of all data that is loaded."""
    found = []
    computed.clear()
    changes.clear()

    def load(job: Any, client: int, function: str | None, shared: Any) -> ClientsData:
        found.append((job.name, client, function))
        data = ClientsData.of_one(client, np.ones((client, 2), np.float32), np.arange(client))
        for change in changes:
            data = change(data)
        return data

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
    assert len(computed) == 2
    job, _, *client = other
    first = ("job", 3, "own:data")
    assert loaded == [first, first, (job, *client), first]


def without_the_last(data: ClientsData) -> ClientsData:
    return ClientsData.of_one(3, data.x[:-1], data.y[:-1])


def with_another_number(data: ClientsData) -> ClientsData:
    return replace(data, x=np.array([[1, 1], [1, 1], [1, 1.5]], np.float32))


def with_another_label(data: ClientsData) -> ClientsData:
    return replace(data, y=np.array([0, 2, 2]))


def with_an_unusable_record(data: ClientsData) -> ClientsData:
    return replace(data, usable=np.array([True, False, True]))


@pytest.mark.parametrize(
    "change", [without_the_last, with_another_number, with_another_label, with_an_unusable_record]
)
def test_no_feature_of_a_changed_example_is_used_again(change: Any, loaded: list[Any]) -> None:
    """A patient has withdrawn a consent, or a value was wrong. The process is still running."""
    before = seen(*FIRST)
    changes.append(change)
    after = seen(*FIRST)
    expected = change(before)
    for name, array in expected.arrays().items():
        np.testing.assert_array_equal(after.arrays()[name], array)
    assert seen(*FIRST) is after
    assert [entry[1] for entry in client_training._seen_before.values()] == [after]
    changes.clear()
    seen(*FIRST)
    assert len(computed) == 3


def test_examples_of_any_form_have_a_digest() -> None:
    """Only Python objects have none, since they may change in place."""
    forms = [
        np.zeros((2, 0), np.float32),
        np.zeros((2, 3), np.float32)[:, ::2],
        np.zeros((2, 3), np.int64),
        ragged([np.ones((2, 4)), np.ones((5, 4))]),
        ragged([np.ones((3, 4)), np.ones((5, 4))]),
        joined({"photo": np.zeros((2, 3), np.float32), "age": np.zeros(2, np.float32)}),
    ]
    digests = [client_training._digest(ClientsData.of_one(1, x, np.arange(2))) for x in forms]
    assert None not in digests
    assert len(set(digests)) == len(forms)
    texts = np.array(["a", "b"], object)
    assert client_training._digest(ClientsData.of_one(1, texts, np.arange(2))) is None


def test_examples_without_fixed_layers_are_read_in_every_round(loaded: list[Any]) -> None:
    for _ in range(2):
        seen(*FIRST, head=False)
    assert len(loaded) == 2
    assert client_training._seen_before == {}


def test_a_process_caches_a_limited_number_of_clients(loaded: list[Any]) -> None:
    for client in (*range(2, 20), 2, 19):
        seen("job", "model", client, None)
    assert len(client_training._seen_before) == 16
    assert [len(x) for x in computed] == [*range(2, 20), 19]


@pytest.mark.parametrize("targets", ["numbers", "bits"])
def test_an_example_has_as_many_targets_as_the_model_has_outputs(targets: Any) -> None:
    data = ClientsData.of_one(1, np.ones((3, 2), np.float32), np.ones((3, 4), np.float32))
    client_training._check_targets(data, SimpleNamespace(classes=4), targets)  # type: ignore[arg-type]
    with pytest.raises(DeploymentError, match="has 4 targets for an example, the job has 5"):
        client_training._check_targets(data, SimpleNamespace(classes=5), targets)  # type: ignore[arg-type]
