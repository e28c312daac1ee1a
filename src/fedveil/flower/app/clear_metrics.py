"""Values that are sent in clear: metrics that the setting `reveal` names, and late answers."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import MetricRecord

log = logging.getLogger("flwr.fedveil")

Metric = int | float | list[int] | list[float]

#: The record of revealed metrics, beside a report.
METRICS = "metrics"
#: The account's entry for an answer that left after its fixed time.
LATE = "the time that a client takes to answer where it is longer than answer_after_s"
#: The largest weight that a client may reveal, equal to that of secure aggregation.
MOST_WEIGHT = 1 << 20


def revealed(content: Mapping[str, Any], names: AbstractSet[str]) -> tuple[MetricRecord, list[str]]:
    """Return the metrics in `content` that `names` lists, and the names of everything else.

    Everything else is the other metrics, and the records that are no `MetricRecord`.
    """
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


def sent_metrics(content: Mapping[str, Any], names: AbstractSet[str]) -> MetricRecord:
    """Return the metrics in `content` that are sent, since `names` lists them. Logs the others."""
    metrics, held = revealed(content, names)
    if held:
        log.debug("fedveil: not sent, since `reveal` does not name them: %s", ", ".join(held))
    return metrics


def completed(metrics: MetricRecord, names: AbstractSet[str]) -> MetricRecord:
    """Return all metrics in `names`, with NaN for a missing one.

    So all clients' replies have the same metrics.
    """
    return MetricRecord({name: metrics.get(name, math.nan) for name in sorted(names)})


def in_clear(names: AbstractSet[str]) -> list[str]:
    """Return the ledger's entries for the metrics in `names`, which are sent unprotected."""
    return [f"the metric {name} (reveal)" for name in sorted(names)]


def usable(metrics: MetricRecord, weight_key: str) -> MetricRecord:
    """Return the finite metrics of a reply, or no metrics if the client's weight is invalid.

    The weight is the metric `weight_key`, or 1 if the reply does not have it. A valid weight is
    above 0 and at most `MOST_WEIGHT`.
    """
    weight = metrics.get(weight_key, 1)
    if not isinstance(weight, int | float) or not 0 < weight <= MOST_WEIGHT:
        log.warning(
            "fedveil: a client's metrics are left out of the means: its %s is outside (0, %d]",
            weight_key, MOST_WEIGHT,
        )  # fmt: skip
        return MetricRecord()
    return MetricRecord({n: v for n, v in metrics.items() if np.isfinite(v).all()})


def length_of(metric: Metric) -> int | None:
    """Return the length of a metric that is a list, or None for a number."""
    return len(metric) if isinstance(metric, list) else None


class Means:
    """Running means of the revealed metrics, over the clients whose reports are in a round's sum.

    A client's weight is its metric `weight_key`, or 1 if it does not reveal this metric. If clients
    send lists of different lengths for a metric, only those of the most frequent length count.
    """

    def __init__(self, weight_key: str) -> None:
        self._weight_key = weight_key
        #: The sums of each metric, by its length (None if it is not a list).
        self._sums: dict[str, dict[int | None, _Sum]] = {}

    def add(self, metrics: MetricRecord) -> None:
        """Add one client's metrics. A metric that is a list is averaged entry by entry."""
        metrics = usable(metrics, self._weight_key)
        weight = metrics.get(self._weight_key, 1)
        assert isinstance(weight, int | float)
        for name, value in metrics.items():
            if name != self._weight_key:
                values: Sequence[float] = value if isinstance(value, list) else [value]
                sums = self._sums.setdefault(name, {})
                sums.setdefault(length_of(value), _Sum([v * 0 for v in values])).add(values, weight)

    def record(self) -> dict[str, Metric]:
        found: dict[str, Metric] = {}
        for name, sums in self._sums.items():
            length = max(sums, key=lambda each: sums[each].clients)
            means = [total * (1 / sums[length].weights) for total in sums[length].totals]
            found[name] = means[0] if length is None else means
        return found


@dataclass
class _Sum:
    """The sums of one metric's entries times the clients' weights, and the sum of these weights."""

    totals: Sequence[float]
    weights: float = 0.0
    clients: int = 0

    def add(self, values: Sequence[float], weight: float) -> None:
        self.totals = [t + v * weight for t, v in zip(self.totals, values, strict=True)]
        self.weights += weight
        self.clients += 1
