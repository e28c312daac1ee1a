"""The metrics of a prediction service, in Prometheus' text format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

#: The upper bounds of the histogram of answer times, in seconds.
_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_PATHS = ("/predict", "/health", "/metrics")


class ServiceMetrics:
    """Counts requests by path and status, and times answers to /predict."""

    def __init__(self, queue: int) -> None:
        self.predictions = self.unknown = self.refused = 0
        self._queue = queue
        self._requests: Counter[tuple[str, int]] = Counter()
        self._times: Counter[float] = Counter()
        self._count, self._sum = 0, 0.0

    def answered(self, path: str, status: int, seconds: float) -> None:
        # All other paths share a count, or a client could make the text grow.
        self._requests[path if path in _PATHS else "other", status] += 1
        if path == "/predict":
            self._count += 1
            self._sum += seconds
            for bound in _BOUNDS:
                self._times[bound] += seconds <= bound

    def text(self, waiting: int) -> str:
        return "".join(f"{line}\n" for line in self._lines(waiting))

    def _lines(self, waiting: int) -> Iterator[str]:
        yield from _head("requests_total", "counter", "requests by path and status")
        for (path, status), count in sorted(self._requests.items()):
            yield f'fedveil_requests_total{{path="{path}",status="{status}"}} {count}'
        counters = {
            "predictions_total": (self.predictions, "predictions answered"),
            "unknown_ids_total": (self.unknown, "ids asked for that are not there"),
            "refused_ids_total": (self.refused, "ids refused by a privacy limit"),
        }
        for name, (value, what) in counters.items():
            yield from _head(name, "counter", what)
            yield f"fedveil_{name} {value}"
        for name, value, what in (
            ("queue_waiting", waiting, "requests that wait or are being scored"),
            ("queue_limit", self._queue, "requests that may wait"),
        ):
            yield from _head(name, "gauge", what)
            yield f"fedveil_{name} {value}"
        yield from _head("answer_seconds", "histogram", "time to answer /predict")
        for bound in _BOUNDS:
            yield f'fedveil_answer_seconds_bucket{{le="{bound:g}"}} {self._times[bound]}'
        yield f'fedveil_answer_seconds_bucket{{le="+Inf"}} {self._count}'
        yield f"fedveil_answer_seconds_sum {self._sum:.6f}"
        yield f"fedveil_answer_seconds_count {self._count}"


def _head(name: str, kind: str, what: str) -> Iterator[str]:
    yield f"# HELP fedveil_{name} {what}"
    yield f"# TYPE fedveil_{name} {kind}"
