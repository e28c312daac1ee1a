"""Ends a run early by its metrics, and stores the best model so far.

Every decision depends only on the run's records. So a resumed run makes the same decisions as one
without an interruption.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter

import numpy as np

from fedveil.base.array_types import Float32s
from fedveil.base.message import Message, only_fields, take, take_array
from fedveil.base.validate import finite_vector, integer
from fedveil.errors import JobError
from fedveil.federated.stopping_settings import StoppingSettings
from fedveil.record.metric_names import LOSS, Better, deciding, digits, measures
from fedveil.record.recorder import Record


class Stopping:
    """Decides after each round if the run stops. Stores the best model if the job says so."""

    def __init__(self, settings: StoppingSettings, tested: Mapping[str, Better]) -> None:
        """Store `settings`. Raises `JobError` if they name a metric that is not recorded.

        `tested` maps each metric of the task, except the loss, to the direction in which it
        improves: higher or lower.
        """
        if settings.metric is not None and settings.metric not in (known := [LOSS, *tested]):
            raise JobError(
                [f"stopping.metric = {settings.metric!r} is not in the rounds' records. "
                 f"Use one of {', '.join(dict.fromkeys(known))}"]
            )  # fmt: skip
        self._settings = settings
        self._best: tuple[int, Float32s] | None = None

    def why(self, records: Sequence[Record]) -> str | None:
        """Return the reason to stop after these records, or None to continue."""
        settings, tested = self._settings, list(self._tested(records))
        if not tested:
            return None
        metric, better = self._metric(records[tested[-1][0] - 1])
        sign = 1.0 if better == "higher" else -1.0
        last, figure = tested[-1]
        if settings.target is not None and figure >= sign * settings.target:
            reached = f"{metric} {digits(metric, sign * figure)} in round {last}"
            return f"{reached} reaches stopping.target = {settings.target:g}"
        best = max(range(len(tested)), key=lambda place: tested[place][1])
        if settings.patience is not None and len(tested) - 1 - best >= settings.patience:
            return (
                f"{metric} was best in round {tested[best][0]} and has not improved in "
                f"stopping.patience = {settings.patience} tests"
            )
        return None

    def saw(self, records: Sequence[Record], weights: Float32s) -> None:
        best = self.best_round(records)
        if best is not None and best == records[-1]["round"]:
            self._best = (best, weights.copy())

    def kept(self, weights: Float32s) -> tuple[Float32s, str | None]:
        """Return the weights to save at the end of a run, and a sentence about them or None.

        `weights` are the last weights. If the job keeps the best model, its weights are returned
        instead, and the sentence names its round.
        """
        if self._best is None:
            return weights, None
        round, best = self._best
        return best, f"the model is that of round {round}, the best one tested"

    def state(self) -> Message:
        """Return the state to save in a checkpoint: the best model so far."""
        if self._best is None:
            return {}
        return {"round": self._best[0], "weights": self._best[1]}

    def restore(self, state: Message, records: Sequence[Record], dimension: int) -> None:
        """Load the best model from `state`, the part of a checkpoint that the method `state` made.

        `records` are the run's records up to the checkpoint, and name the round of the best model.
        `dimension` is the number of the model's weights. Raises `InvalidValue` or `MessageInvalid`
        if `state` has the model of another round, or is malformed.
        """
        best = self.best_round(records)
        if best is None:
            only_fields(state)
            return
        only_fields(state, "round", "weights")
        weights = take_array(state, "weights", np.float32, (dimension,)).copy()
        finite_vector("weights", weights)
        self._best = integer("round", take(state, "round", int), best, best), weights

    def best_round(self, records: Sequence[Record]) -> int | None:
        """Return the round of the best model so far, or None.

        None means that the job keeps the last model, or that no model has been tested yet.
        """
        tested = [] if self._settings.keep == "last" else list(self._tested(records))
        return max(tested, key=itemgetter(1))[0] if tested else None

    def _metric(self, record: Record) -> tuple[str, Better]:
        name, known = self._settings.metric, {LOSS: "lower", **measures(record)}
        if name is None:
            return deciding(record)
        return name, "lower" if known[name] == "lower" else "higher"

    def _tested(self, records: Sequence[Record]) -> Iterator[tuple[int, float]]:
        for record in records:
            if LOSS in record:
                name, better = self._metric(record)
                figure = float(record[name]) * (1 if better == "higher" else -1)
                yield record["round"], -math.inf if math.isnan(figure) else figure
