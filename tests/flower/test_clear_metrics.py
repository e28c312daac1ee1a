"""The metrics that clients of a Flower app reveal: each mean is of the clients that gave it."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.app import ArrayRecord, MetricRecord

from fedveil.flower.app.clear_metrics import Means, in_clear, revealed


def test_a_mean_is_weighed_and_of_those_that_gave_the_metric() -> None:
    means = Means("n")
    for metrics in (
        {"n": 3, "loss": 1.0, "each": [1.0, 5.0]},
        {"n": 1, "loss": 5.0, "each": [1.0, 2.0, 3.0]},
        {"n": 4, "each": [2, 4], "late": 7},
        {"n": 8, "loss": float("nan")},
    ):
        means.add(MetricRecord(metrics))  # type: ignore[arg-type]
    found = means.record()
    assert list(found) == ["loss", "each", "late"]
    assert found["loss"] == pytest.approx(2.0)
    assert found["each"] == pytest.approx([11 / 7, 31 / 7])
    assert found["late"] == pytest.approx(7.0)


@pytest.mark.parametrize("place", [0, 1, 4])
@pytest.mark.parametrize("lie", [[9.0], [9.0, 9.0, 9.0], 9.0])
def test_one_client_with_another_length_moves_no_mean(place: int, lie: float | list[float]) -> None:
    told: list[dict[str, Any]] = [{"n": 1 + i, "each": [i / 2, -1.0]} for i in range(4)]
    told.insert(place, {"n": 1 << 20, "each": lie})
    means = Means("n")
    for metrics in told:
        means.add(MetricRecord(metrics))
    assert means.record()["each"] == pytest.approx([1.0, -1.0])


def test_only_named_metrics_are_shown() -> None:
    content = {"a": MetricRecord({"loss": 1.5, "sick": 4}), "b": MetricRecord({"n": 3}),
               "arrays": ArrayRecord()}  # fmt: skip
    shown, held = revealed(content, {"loss", "n"})
    assert dict(shown) == {"loss": 1.5, "n": 3}
    assert held == ["sick", "arrays"]
    assert in_clear({"n", "loss"}) == ["the metric loss (reveal)", "the metric n (reveal)"]
