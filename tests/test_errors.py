"""Every error survives being sent between processes."""

from __future__ import annotations

import pickle

import pytest

from fedveil import errors


@pytest.mark.parametrize(
    "error",
    [
        errors.InvalidValue("x"),
        errors.JobError(["one", "two"]),
        errors.MissingExtra("torch", "torch", "training"),
        errors.ReportRejected(3, "wrong round"),
        errors.RoundVoid("share", 3, 5),
        errors.WorkerDied("worker 0 exited"),
    ],
)
def test_pickled_and_back(error: errors.FedveilError) -> None:
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert vars(back) == vars(error)
