"""The exact privacy curve of Gaussian noise."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from fedveil.base.lazy import special

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)
_NODES, _WEIGHTS = (_NODES + 1) / 2, _WEIGHTS / 2  # on [0, 1]
#: Results are rounded up by this factor, which exceeds all numerical errors here.
_MARGIN = 1 + 1e-8


@functools.lru_cache(maxsize=64)
def analytic_sigma(eps: float, delta: float, sensitivity: float) -> float:
    """Return the least standard deviation at which Gaussian noise is (eps, delta)-private.

    `sensitivity` is the largest L2 distance between the values without noise for two neighbouring
    inputs. The relative error is below 1e-11.
    """
    # With mu = sensitivity / sigma, x = eps / mu - mu / 2 and y = eps / mu + mu / 2, theorem 8 of
    # Balle and Wang (2018) is
    #
    #     delta(x) = Phi(-x) - e^eps Phi(-y) = exp(-x² / 2) · (E(x) - E(y)) / 2,
    #
    # where Phi is the normal distribution function and E(t) = erfcx(t / √2) = 2 exp(t² / 2)
    # Phi(-t). The search is over x, because delta falls strictly in x: y = √(x² + 2 eps) and mu = y
    # - x follow from x without cancellation, and |x| < 40 covers every delta that a float can
    # represent.
    root = math.sqrt(2 * eps)
    low, high = -40.0, 40.0
    while low < (middle := 0.5 * (low + high)) < high:
        if _is_private(middle, math.hypot(middle, root), eps, delta):
            high = middle
        else:
            low = middle
    mu = _difference(high, math.hypot(high, root), eps)
    return sensitivity / mu if mu > 0 else math.inf


def keeps(ratio: float, epsilon: float, delta: float) -> bool:
    """Return True if Gaussian noise of this ratio is (epsilon, delta)-private.

    `ratio` is the noise's standard deviation over the sensitivity. Rounding errors can change the
    result if the ratio is as near to the limit as the error of `analytic_sigma`.
    """
    x = epsilon * ratio - 0.5 / ratio
    return abs(x) < 40 and _is_private(x, x + 1 / ratio, epsilon, delta)


def ratio_for(epsilon: float, delta: float, releases: int) -> float:
    """Return the least noise ratio at which `releases` releases together cost (epsilon, delta).

    The ratio is the noise's standard deviation over the sensitivity of one release, rounded up.
    """
    # Releases of ratio z cost together what one release of ratio z / √releases costs. A ledger
    # rounds its epsilon up.
    return analytic_sigma(epsilon, delta, 1.0) * math.sqrt(releases) * _MARGIN


@functools.lru_cache(maxsize=64)
def epsilon_for(ratio: float, delta: float) -> float:
    """Return the epsilon at `delta` of one Gaussian release, rounded up.

    `ratio` is the noise's standard deviation over the sensitivity.
    """
    # The search is over the x of `analytic_sigma`, with mu = 1 / ratio: epsilon = mu · (x + mu /
    # 2).
    mu = 1 / ratio
    low, high = max(-40.0, -mu / 2), 40.0
    while low < (middle := 0.5 * (low + high)) < high:
        if _is_private(middle, middle + mu, mu * (middle + mu / 2), delta):
            high = middle
        else:
            low = middle
    return mu * max(0.0, high + mu / 2) * _MARGIN


def _difference(x: float, y: float, eps: float) -> float:
    return 2 * eps / (x + y) if x > 0 else y - x


def _is_private(x: float, y: float, eps: float, delta: float) -> bool:
    """Return True if Gaussian noise with these `x` and `y` is (eps, delta)-private.

    With mu, the sensitivity over the standard deviation, x is eps / mu - mu / 2, and y is eps / mu
    + mu / 2.
    """
    if x < -1:  # delta(x) > 0.68: compare the complements
        return float(special().ndtr(x) + 0.5 * math.exp(-0.5 * x * x) * _scaled(y)) >= 1 - delta
    mu = _difference(x, y, eps)
    if mu > 0.5:
        fall = _scaled(x) - _scaled(y)
    else:  # too near to subtract: integrate -E'(t) = √(2/π) - t E(t)
        nodes = x + mu * _NODES
        fall = mu * float(_WEIGHTS @ (math.sqrt(2 / math.pi) - nodes * _scaled(nodes)))
    return -0.5 * x * x + math.log(0.5 * fall) <= math.log(delta)


def _scaled(t: Any) -> Any:
    return special().erfcx(t * math.sqrt(0.5))
