"""When a run ends by what it measures, and the best model so far.

Everything but the model is read off the run's records, so that a run that goes on decides as it
would have decided.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from fedveil._arrays import Float32s
from fedveil._validate import finite_vector, integer
from fedveil.errors import RunStopped
from fedveil.federated.stopping_settings import StoppingSettings
from fedveil.message import Message, only_fields, take, take_array
from fedveil.record.measures import LOSS, Better, deciding, measures
from fedveil.record.recorder import Record


class Stopping:
    """Looks at every round's record after it was made."""

    def __init__(self, settings: StoppingSettings) -> None:
        self._settings = settings
        self._best: tuple[int, Float32s] | None = None

    def why(self, records: Sequence[Record]) -> str | None:
        """Why the run ends after these records; None where it goes on."""
        settings, tested = self._settings, list(self._tested(records))
        if not tested:
            return None
        metric, better = self._metric(records[tested[-1][0] - 1])
        sign = 1.0 if better == "higher" else -1.0
        last, figure = tested[-1]
        if settings.target is not None and figure >= sign * settings.target:
            reached = f"{metric} {sign * figure:.4f} in round {last}"
            return f"{reached} reaches stopping.target = {settings.target:g}"
        best = max(range(len(tested)), key=lambda place: tested[place][1])
        if settings.patience is not None and len(tested) - 1 - best >= settings.patience:
            return (
                f"{metric} was best in round {tested[best][0]}, and stopping.patience = "
                f"{settings.patience} tests have brought no better one"
            )
        return None

    def saw(self, records: Sequence[Record], weights: Float32s) -> None:
        """Take in the last record, of a round that ended with these weights."""
        if self._settings.keep == "last":
            return
        tested = list(self._tested(records))
        if tested and tested[-1][0] == records[-1]["round"]:
            best, _ = max(tested, key=lambda round_and_figure: round_and_figure[1])
            if best == tested[-1][0]:
                self._best = (best, weights.copy())

    def kept(self, weights: Float32s) -> tuple[Float32s, str | None]:
        """The weights that the run leaves, and a sentence where they are not the last round's."""
        if self._best is None:
            return weights, None
        round, best = self._best
        return best, f"the model is that of round {round}, the best one tested"

    def state(self) -> Message:
        """What a checkpoint must hold."""
        if self._best is None:
            return {}
        return {"round": self._best[0], "weights": self._best[1]}

    def restore(self, state: Message, done: int, dimension: int) -> None:
        """Go on from a checkpoint after so many rounds."""
        if not state:
            return
        only_fields(state, "round", "weights")
        best = take_array(state, "weights", np.float32, (dimension,)).copy()
        finite_vector("weights", best)
        self._best = integer("round", take(state, "round", int), 1, done), best

    def _metric(self, record: Record) -> tuple[str, Better]:
        """The figure that decides, and how it is better; of a record that was tested."""
        name, known = self._settings.metric, {LOSS: "lower", **measures(record)}
        if name is None:
            return deciding(record)
        if name not in known:
            raise RunStopped(
                f"stopping.metric = {name!r} is no figure of the rounds' records: they have "
                f"{', '.join(known)}"
            )
        return name, "lower" if known[name] == "lower" else "higher"

    def _tested(self, records: Sequence[Record]) -> Iterator[tuple[int, float]]:
        """The rounds that were tested, each with its figure, of which the higher is the better."""
        for record in records:
            if LOSS in record:
                name, better = self._metric(record)
                figure = float(record[name]) * (1 if better == "higher" else -1)
                yield record["round"], -math.inf if math.isnan(figure) else figure
