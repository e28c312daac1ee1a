"""Why clients train in torch's loop, in words, and nothing where they train in native code."""

from __future__ import annotations

from typing import Any

import pytest
from test_learning_tasks import RUNS
from test_simulation import job

from fedveil.engine.trainer_choice import loop_reason


@pytest.mark.parametrize(
    ("model", "training", "reason"),
    [
        ("parts:plain", {}, None),
        ("parts:net", {}, "native code does not know BatchNorm1d"),
        ("parts:net", {"engine": "loop"}, None),  # as the job says
        ("parts:plain", {"engine": "vmap"}, None),
    ],
)
def test_a_model_that_native_code_does_not_train_is_named(
    model: str, training: dict[str, Any], reason: str | None
) -> None:
    found = loop_reason(job(model=model, training=training))
    assert (found is None) == (reason is None)
    assert reason is None or reason in str(found)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("regression", None),
        ("own", None),
        ("transformer", None),
        ("inputs", "examples have several inputs or different lengths"),
        ("uneven", "examples have several inputs or different lengths"),
        ("step", "task = task_parts:OwnStep has its own optimizer"),
    ],
)
def test_a_task_that_native_code_does_not_train_is_named(name: str, reason: str | None) -> None:
    assert loop_reason(RUNS[name][0]) == reason
