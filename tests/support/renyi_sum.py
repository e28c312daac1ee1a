"""The Rényi filter's epsilon of charges, as a reference for sums and accounts."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from fedveil.privacy.compose import Charge
from fedveil.privacy.renyi_filter import ORDERS, epsilon_of, renyi_cost


def filtered_epsilon(charges: Iterable[Charge], delta: float) -> float:
    """Return the epsilon at `delta` of all charges. Each is a loss and its number of releases."""
    total, lost = np.zeros(ORDERS), 0.0
    for loss, count in charges:
        cost, infinite = renyi_cost(loss)
        total, lost = total + count * cost, lost + count * infinite
    return epsilon_of(total, lost, delta)
