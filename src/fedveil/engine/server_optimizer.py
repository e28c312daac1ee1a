"""Applies an aggregate to the global weights."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from fedveil.base.array_types import parts
from fedveil.base.message import Message, take_array
from fedveil.base.two_threads import by_halves
from fedveil.errors import MessageInvalid, RoundVoid
from fedveil.federated.job import Job
from fedveil.federated.training_blocks import ServerSettings

Vector = npt.NDArray[np.float64]


class ServerOptimizer:
    """Updates the weights w with the aggregate d, as `server.optimizer` says (Reddi et al., 2021).

    lr, momentum, b1, b2 and tau are settings. m and v are the first and second moment of d.

        none:      w += lr * d
        momentum:  m = momentum * m + d
                   w += lr * m

    The adaptive optimisers differ only in v:

        adagrad:   v += d^2
        adam:      v = b2 * v + (1 - b2) * d^2
        yogi:      v -= (1 - b2) * d^2 * sign(v - d^2)
        all three: m = b1 * m + (1 - b1) * d
                   w += lr * m / (sqrt(v) + tau)

    As in the paper, there is no bias correction, and v starts at tau^2. Buffers always take the
    mean of the clients' values: w += d.
    """

    def __init__(self, settings: ServerSettings, trainable: npt.NDArray[np.bool_]) -> None:
        self._settings = settings
        self._trainable = trainable
        self._only_parameters = bool(trainable.all())
        size = len(trainable)
        self._moments: dict[str, Vector] = {}
        if settings.optimizer != "none":
            self._moments["m"] = np.zeros(size)
        if settings.optimizer in ("adagrad", "adam", "yogi"):
            self._moments["v"] = np.full(size, settings.tau**2)

    def step(
        self,
        weights: npt.NDArray[np.float32],
        aggregate: Vector,
        share: float = 1.0,
        *,
        in_place: bool = False,
    ) -> npt.NDArray[np.float32]:
        """Return the new global weights. If `in_place` is True, may write them into `weights`.

        `share` is the number of reports in `aggregate` divided by the number of all clients. Raises
        `RoundVoid` and changes nothing if a weight or moment would not be finite.
        """
        new = weights if in_place else np.empty_like(weights)
        moments = self._moments
        if not in_place:
            moments = {name: np.empty_like(moment) for name, moment in moments.items()}

        def move(writes: bool, some: slice) -> None:
            for part in parts(some.stop, some.start):
                moved, after = self._moved(weights, aggregate, share, part)
                if writes:
                    new[part] = moved
                    for name, values in after.items():
                        moments[name][part] = values

        # In place, nothing is written before all is known to be finite.
        checks = in_place and not self._stays_finite(weights, aggregate)
        for writes in (False, True) if checks else (True,):
            by_halves(len(new), partial(move, writes))
        self._moments = moments
        return new

    def _stays_finite(self, weights: npt.NDArray[np.float32], aggregate: Vector) -> bool:
        """Return True if the new weights are certainly finite, or False if they may not be.

        Compares the sum of the largest weight and the largest change with the largest float32. That
        is much faster than computing all new weights. Returns False for optimisers with moments.
        """
        if self._moments:
            return False

        def largest(some: slice) -> float:
            sizes = [
                max(1.0, self._settings.lr) * _size(aggregate[part]) + _size(weights[part])
                for part in parts(some.stop, some.start)
            ]
            return float(np.max(sizes, initial=0))  # NaN if any entry is

        limit = float(np.finfo(np.float32).max)
        return all(size < limit for size in by_halves(len(weights), largest))

    def _moved(
        self, weights: npt.NDArray[np.float32], aggregate: Vector, share: float, part: slice
    ) -> tuple[npt.NDArray[np.float32], dict[str, Vector]]:
        """Return slice `part` of the new weights and moments.

        `share` is the number of reports in `aggregate` divided by the number of all clients. Raises
        `RoundVoid` if a weight or a moment is not finite.
        """
        before = {name: moment[part] for name, moment in self._moments.items()}
        with np.errstate(over="ignore", invalid="ignore"):
            moved, after = self._direction(aggregate[part], share, before)
            if not self._only_parameters:
                moved = np.where(self._trainable[part], moved, aggregate[part])
            new = np.add(weights[part], moved, dtype=np.float64).astype(np.float32)
        found: list[npt.NDArray[Any]] = [new, *after.values()]
        if not all(np.isfinite(values).all() for values in found):
            raise RoundVoid("report", 0, 0, "the resulting model is not finite")
        return new, after

    def _direction(
        self, d: Vector, share: float, moments: dict[str, Vector]
    ) -> tuple[Vector, dict[str, Vector]]:
        """Return the weights' change and the new moments for one slice, whose aggregate is `d`.

        `share` is the number of reports in the aggregate divided by the number of all clients.
        `moments` are the old moments of the slice, by name.
        """
        s = self._settings
        if s.optimizer == "none":
            return d if s.lr == 1 else s.lr * d, {}
        m = moments["m"]
        if s.optimizer == "momentum":
            m = s.momentum * m + d
            return s.lr * m, {"m": m}
        m = s.beta1 * m + (1 - s.beta1) * d
        v = moments["v"]
        square = d * d
        if s.optimizer == "adagrad":
            v = v + square
        elif s.optimizer == "adam":
            v = s.beta2 * v + (1 - s.beta2) * square
        else:
            v = v - (1 - s.beta2) * square * np.sign(v - square)
        return s.lr * m / (np.sqrt(v) + s.tau), {"m": m, "v": v}

    def state(self) -> dict[str, Vector]:
        """Return the optimiser's moments, by name, for a checkpoint."""
        return dict(self._moments)

    def restore(self, state: Message) -> None:
        """Load the optimiser's moments from `state`. Raises `MessageInvalid` if they do not fit."""
        if set(state) != set(self._moments):
            raise MessageInvalid("it was made with another server.optimizer")
        shape = self._trainable.shape
        moments = {name: take_array(state, name, np.float64, shape).copy() for name in state}
        if not all(np.isfinite(values).all() for values in moments.values()):
            raise MessageInvalid("a moment of server.optimizer is not finite")
        if (moments.get("v", np.zeros(1)) < 0).any():
            raise MessageInvalid("field v is negative")
        self._moments = moments


class VariateOptimizer(ServerOptimizer):
    """SCAFFOLD: updates one vector that holds the model and the clients' mean control variate.

    A client reports the change of its variate, multiplied by `unit`, the job's learning rate. Let d
    be the mean of these reports, and `share` the number of summed reports divided by the number of
    all clients. The mean variate c changes by c += share / unit * d. If d weights all clients
    equally, c stays the mean of all clients' variates.
    """

    def __init__(
        self, settings: ServerSettings, trainable: npt.NDArray[np.bool_], unit: float
    ) -> None:
        super().__init__(settings, trainable)
        self._unit = unit

    def step(
        self,
        weights: npt.NDArray[np.float32],
        aggregate: Vector,
        share: float = 1.0,
        *,
        in_place: bool = False,
    ) -> npt.NDArray[np.float32]:
        size = len(self._trainable)
        with np.errstate(over="ignore", invalid="ignore"):
            variate = (weights[size:] + share / self._unit * aggregate[size:]).astype(np.float32)
        if not np.isfinite(variate).all():
            raise RoundVoid("report", 0, 0, "the resulting control variate is not finite")
        return np.concatenate([super().step(weights[:size], aggregate[:size], share), variate])


class DirectedOptimizer(ServerOptimizer):
    """FedCM: updates one vector that holds the weights and, after them, the last aggregate.

    Clients receive both. The entries of the aggregate for buffers are set to 0.
    """

    def step(
        self,
        weights: npt.NDArray[np.float32],
        aggregate: Vector,
        share: float = 1.0,
        *,
        in_place: bool = False,
    ) -> npt.NDArray[np.float32]:
        new = super().step(weights[: len(aggregate)], aggregate, share)
        direction = np.where(self._trainable, aggregate, 0).astype(np.float32)
        return np.concatenate([new, direction])


class DynamicOptimizer(ServerOptimizer):
    """FedDyn: updates the weights w, and the server's state h, with the aggregate d.

        h -= alpha * share * d
        w += d - h / alpha        (buffers: w += d)

    alpha is the setting `training.dynamic`, and `share` the number of summed reports divided by the
    number of all clients. If d weights all clients equally, h stays the mean of all clients'
    states.
    """

    def __init__(
        self, settings: ServerSettings, trainable: npt.NDArray[np.bool_], alpha: float
    ) -> None:
        super().__init__(settings, trainable)
        self._alpha = alpha
        self._moments = {"h": np.zeros(len(trainable))}

    def _direction(
        self, d: Vector, share: float, moments: dict[str, Vector]
    ) -> tuple[Vector, dict[str, Vector]]:
        h = moments["h"] - self._alpha * share * d
        return d - h / self._alpha, {"h": h}


def make_optimizer(job: Job, trainable: npt.NDArray[np.bool_]) -> ServerOptimizer:
    """Return the server's optimiser for the job's algorithm. `trainable` is False for buffers."""
    if job.training.algorithm == "scaffold":
        return VariateOptimizer(job.server, trainable, job.training.lr)
    if job.training.algorithm == "fedcm":
        return DirectedOptimizer(job.server, trainable)
    if job.training.algorithm == "feddyn":
        return DynamicOptimizer(job.server, trainable, job.training.dynamic)
    return ServerOptimizer(job.server, trainable)


def _size(values: npt.NDArray[Any]) -> Any:
    """Return the largest magnitude among `values`, or NaN if any value is NaN."""
    return np.maximum(values.max(initial=0), -values.min(initial=0))
