"""The metrics that travel in clear: those that `reveal` names, and no others."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from flwr.app import MetricRecord, RecordDict

Metric = int | float | list[int] | list[float]

#: The record that revealed metrics travel in, beside a report.
METRICS = "metrics"


def revealed(content: RecordDict, names: AbstractSet[str]) -> tuple[MetricRecord, list[str]]:
    """The metrics among `names`, and the names of everything else that the app has put there."""
    shown, held = MetricRecord(), []
    for key, record in content.items():
        if not isinstance(record, MetricRecord):
            held.append(key)
            continue
        for name, value in record.items():
            if name in names:
                shown[name] = value
            else:
                held.append(name)
    return shown, held


class Means:
    """Running means of revealed metrics, over the clients whose report was folded.

    A metric counts with the client's weight where the clients reveal that, and equally elsewhere.
    """

    def __init__(self, weight_key: str) -> None:
        self._weight_key = weight_key
        self._sums: dict[str, tuple[Metric, float]] = {}

    def add(self, metrics: MetricRecord) -> None:
        """Count one client's; a list counts entry by entry."""
        weight = metrics.get(self._weight_key, 1)
        weight = weight if isinstance(weight, int | float) and weight > 0 else 1
        for name, value in metrics.items():
            if name == self._weight_key:
                continue
            total, weights = self._sums.get(name, (_times(value, 0), 0.0))
            if _alike(total, value):
                self._sums[name] = (_plus(total, _times(value, weight)), weights + weight)

    def record(self) -> dict[str, Metric]:
        """The means."""
        return {name: _times(total, 1 / weights) for name, (total, weights) in self._sums.items()}


def _alike(one: Metric, other: Metric) -> bool:
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other)
    return not isinstance(one, list) and not isinstance(other, list)


def _times(value: Metric, factor: float) -> Metric:
    return [v * factor for v in value] if isinstance(value, list) else value * factor


def _plus(one: Metric, other: Metric) -> Metric:
    if isinstance(one, list):
        assert isinstance(other, Sequence)
        return [a + b for a, b in zip(one, other, strict=True)]
    assert isinstance(other, int | float)
    return one + other
