"""The benchmark on tables of real people chooses its settings without the test people."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_a_rate_is_chosen_on_training_people_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    import private_tables

    monkeypatch.delenv(private_tables.CHOOSING, raising=False)
    x, y, test, answers = private_tables.patients()
    assert len(x) + len(test) == len(load_breast_cancer().data)
    monkeypatch.setenv(private_tables.CHOOSING, "1")
    ours, _, held, _ = private_tables.patients()
    training, rows = ({row.tobytes() for row in part} for part in (x, np.concatenate([ours, held])))
    assert len(ours) + len(held) == len(x) == len(y)
    assert rows == training
    assert not rows & {row.tobytes() for row in test}
    assert not {row.tobytes() for row in ours} & {row.tobytes() for row in held}
    assert np.allclose(np.linalg.norm(test, axis=1), 1)
    assert set(answers) == {0, 1}
