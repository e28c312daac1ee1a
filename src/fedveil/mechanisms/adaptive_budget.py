"""The adaptive budget: the angle between the last two models sets the next round's epsilon."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from fedveil.base.array_types import Float64s
from fedveil.base.validate import finite_vector, positive
from fedveil.errors import InvalidValue

#: Double precision cannot tell a smaller angular similarity from 0.
_ZERO_SIMILARITY = 1e-12


class AdaptiveBudget:
    """Sets the next round's epsilon from the angle between the last two global models.

    The next epsilon is eps / A, where A = 1 - angle / π. The angle is between the flattened models
    before and after a round. `eps` is always the constructor's argument.

    Privacy: a round's epsilon depends on earlier outputs. So only the sum of the rounds' epsilons,
    all at delta = 0, bounds the total loss of a run. Tighter composition is not valid.

    Source: Zhang Hao, Towards federated learning local differential privacy design, 2022, algorithm
    2. Contrary to the source, no round costs less than eps, so a run costs at least as much as at a
    constant eps.

        >>> from fedveil.mechanisms import AdaptiveBudget
        >>> budget = AdaptiveBudget(eps=1.5)
        >>> budget.next([1.0, 0.0], [2.0, 0.0])  # the model has not turned
        1.5
        >>> budget.next([1.0, 0.0], [0.0, 1.0])  # it has turned by 90 degrees
        3.0
    """

    def __init__(self, eps: float) -> None:
        self.eps = positive("eps", eps)

    def next(self, previous_model: npt.ArrayLike, new_model: npt.ArrayLike) -> float:
        """Return the next round's epsilon, eps / (1 - angle / π).

        `eps` is the constructor's argument. The angle is between the models before and after a
        round, given as flat vectors. Raises `InvalidValue` if the two point in opposite directions,
        or if one of them is zero.
        """
        previous = finite_vector("previous_model", previous_model).astype(np.float64)
        new = finite_vector("new_model", new_model).astype(np.float64)
        if len(previous) != len(new):
            raise InvalidValue(
                f"new_model has {len(new)} parameters, previous_model has {len(previous)}"
            )
        similarity = (
            1 - _angle(_unit("previous_model", previous), _unit("new_model", new)) / math.pi
        )
        if similarity < _ZERO_SIMILARITY:
            raise InvalidValue(
                "the adaptive epsilon has no value: new_model points exactly away from "
                "previous_model, their angular similarity A_s is 0"
            )
        return self.eps / similarity


def _unit(name: str, vector: Float64s) -> Float64s:
    largest = np.abs(vector).max(initial=0.0)
    if largest == 0:
        raise InvalidValue(f"the adaptive epsilon has no value: {name} is zero everywhere")
    scaled = vector / largest  # its squares cannot overflow, nor all of them underflow
    return np.asarray(scaled / np.linalg.norm(scaled), np.float64)


def _angle(a: Float64s, b: Float64s) -> float:
    return 2 * math.atan2(float(np.linalg.norm(a - b)), float(np.linalg.norm(a + b)))
