"""The server's view of every client, under every protection."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedveil.attacks.target import Target
from fedveil.errors import AttackImpossible, RunFolderError
from fedveil.federated.job import Job
from fedveil.protections.catalog import POSITIONS

CLIENTS = 3

FEW = {"reconstruct_secrets_threshold": 2}


@pytest.fixture(scope="module")
def target() -> Target:
    return Target.of(
        Job(
            model="logistic",
            clients={"number": CLIENTS, "fraction": 1.0},
            training={"epochs": 1},
            protection={"pw_encrypt": FEW, "distributed_dp": FEW},
        )
    )


@pytest.mark.parametrize("position", POSITIONS)
def test_every_position_is_read(target: Target, position: str) -> None:
    under = target.under(position)
    updates = under.updates(range(CLIENTS))
    seen = under.seen(updates)
    for reading in seen.readings:
        assert reading.estimate.shape == reading.weight.shape == under.weights.shape
        assert np.isfinite(reading.estimate).all()
        assert (reading.weight >= 0).all()
    assert seen.aggregate.shape == under.weights.shape


def test_a_plain_report_is_the_update(target: Target) -> None:
    updates = target.updates(range(CLIENTS))
    for update, reading in zip(updates, target.seen(updates).readings, strict=True):
        assert np.array_equal(reading.estimate.astype(np.float32), update)
        assert reading.log_likelihood is not None
        assert reading.log_likelihood(update) == 0
        assert reading.log_likelihood(update + 1) == -np.inf


def test_an_update_is_the_simulators(target: Target) -> None:
    """Two clients differ; the model is left as it was; the next call gives the same."""
    first, second = target.updates([0, 1])
    assert not np.array_equal(first, second)
    assert np.array_equal(target.updates([1])[0], second)


@pytest.mark.parametrize("masks", [True, False])
def test_a_sum_that_is_added_without_masks_is_promised_what_it_is_with_them(
    target: Target, masks: bool
) -> None:
    """A simulation without masks has one phase, and still nobody reads a report."""
    noised = {"name": "pw_encrypt", "pw_encrypt": {**FEW, "central_eps": 2.0}}
    job = Job(clients=target.job.clients, protection=noised, simulation={"masks": masks})
    assert replace(target, job=job).promised().epsilon == 2.0


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="holds no finished run: it has no model"):
        Target.of_run(tmp_path)


def test_examples_of_several_inputs_are_refused_by_their_names() -> None:
    job = Job(
        data={"name": "task_parts:inputs"},
        model="task_parts:words",
        clients={"number": 2, "fraction": 1.0},
    )
    with pytest.raises(AttackImpossible, match=r"the inputs turn, words$"):
        Target.of(job).needs_classes("membership")


def test_other_reports_are_drawn_for_a_repetition(target: Target) -> None:
    under = target.under("dp_encrypt")
    updates = under.updates(range(CLIENTS))
    once, again = (under.seen(updates, repeat=i).readings[0].estimate for i in (0, 1))
    assert not np.array_equal(once, again)
    same = under.seen(updates).readings[0].estimate
    assert np.array_equal(once, same)
