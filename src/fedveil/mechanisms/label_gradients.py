"""Noise on gradients that one party of split learning sends to another, to hide the labels.

`MaxNorm` and `Marvell` add noise of mean 0. Neither states an epsilon: the proofs are for one
gradient, and assume that the gradients of a class are Gaussian. If the noise is drawn anew in each
of n epochs, averaging an example's n gradients divides the variance of the noise by n. Only LabelDP
gives a bound that holds for every attacker.

Source: O. Li et al., Label Leakage and Protection in Two-party Split Learning, ICLR 2022.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np

from fedveil.base.array_types import Array, Bools, Float64s
from fedveil.base.validate import positive
from fedveil.entropy import Entropy
from fedveil.errors import InvalidValue
from fedveil.mechanisms.exact.discrete_gaussian import DiscreteGaussian

#: Noise is drawn in steps of 2^-_STEPS standard deviations.
_STEPS = 16
#: Number of candidate widths tried for the narrower class.
_TRIED = 2001


#: Gives k standard normal numbers for each example of a batch, [examples, k].
Own: TypeAlias = Callable[[int], Float64s]


class GradientDefence(Protocol):
    """A function that returns the gradients of one batch with noise, in their own shape.

    `gradients` has shape [examples, values]. `rare` is a mask of the examples of class 1. `own(k)`
    draws k independent standard normal numbers for each example, in the shape [examples, k].
    """

    def __call__(self, gradients: Array, rare: Bools, own: Own) -> Float64s: ...


class MaxNorm:
    """The `max_norm` defence of O. Li et al.: makes all gradients equally long on average.

    The gradient g_j of example j is returned as

        (1 + s_j x) g_j,   s_j = sqrt(max_k |g_k|² / |g_j|² - 1),   x ~ N(0, 1) for each j.

    The result's mean is g_j, and its mean squared length is max_k |g_k|². This hides the length of
    g_j, but not its direction: the result is a multiple of g_j. Its sign is flipped with
    probability Phi(-1 / s_j), which is below 1/2. Phi is the normal distribution function. The
    longest gradient and gradients of length 0 are returned unchanged. The defence works with any
    number of classes.
    """

    def __call__(self, gradients: Array, rare: Bools, own: Own) -> Float64s:
        rows = _rows(gradients)
        squares = (rows**2).sum(axis=1, keepdims=True)
        ratios = np.divide(squares.max(), squares, out=np.ones_like(squares), where=squares > 0)
        noised: Float64s = rows * (1 + np.sqrt(np.maximum(ratios - 1, 0)) * own(1))
        return noised.reshape(np.shape(gradients))


class Marvell:
    """The Marvell defence of O. Li et al., for two classes and a given power of the noise.

    Let m_0 and m_1 be the classes' mean gradients in a batch, Δ = m_1 - m_0 and n = Δ / |Δ|. The
    gradient g of an example of class c is returned as

        g + N(0, along_c n nᵀ + across_c (I - n nᵀ)).

    The mean squared length of the noise is `power` · |Δ|². Among all variances along_c and across_c
    with this mean squared length, the defence takes those that minimise

        KL(class 0 || class 1) + KL(class 1 || class 0)

    between the classes' noisy gradients. For this, the gradients of class c without noise are
    modelled as N(m_c, v_c I), where v_c is the variance of their entries in the batch. In this
    model, no attacker who sees one noisy gradient has an AUC above `most_auc(d)`, where d is the
    minimum. Real gradients of a class are not Gaussian, so this is no guarantee.

    The mean squared length is averaged over the classes, weighted by their shares in the batch, as
    if the batch had one more example of each class. If a batch lacks a class, the class's mean is
    taken to be minus the mean of the other class. If Δ = 0, the gradients are returned without
    noise.
    """

    def __init__(self, power: float) -> None:
        self.power = positive("power", power)

    def __call__(self, gradients: Array, rare: Bools, own: Own) -> Float64s:
        rows = _rows(gradients)
        if rare.shape != (len(rows),):
            raise InvalidValue(f"rare has shape {rare.shape}, {(len(rows),)} is needed")
        common_mean = (rows[~rare] if not rare.all() else -rows).mean(axis=0)
        rare_mean = (rows[rare] if rare.any() else -rows).mean(axis=0)
        apart = rare_mean - common_mean
        squared = float(apart @ apart)
        if squared == 0:
            return rows.reshape(np.shape(gradients))
        spread = [
            float(((rows[of] - mean) ** 2).mean()) / squared if of.any() else 0.0
            for of, mean in ((~rare, common_mean), (rare, rare_mean))
        ]
        share = (int(rare.sum()) + 1) / (len(rows) + 2)
        law = NoiseLaw.optimal(self.power, rows.shape[1], share, spread[0], spread[1])
        along = np.sqrt(squared * np.where(rare, law.along[1], law.along[0]))[:, np.newaxis]
        across = np.sqrt(squared * np.where(rare, law.across[1], law.across[0]))[:, np.newaxis]
        direction = apart / math.sqrt(squared)
        drawn = own(rows.shape[1])
        within = (drawn @ direction)[:, np.newaxis] * direction
        noised: Float64s = rows + across * (drawn - within) + along * within
        return noised.reshape(np.shape(gradients))


@dataclass(frozen=True)
class NoiseLaw:
    """Variances of Marvell's noise for the classes 0 and 1, in units of |Δ|².

    |Δ| is the distance of the classes' mean gradients. `along` are the variances in the direction
    of Δ, and `across` the variances in every other direction. `divergence` is the sum of the two KL
    divergences between the classes' noisy gradients.
    """

    along: tuple[float, float]
    across: tuple[float, float]
    divergence: float

    @classmethod
    def optimal(
        cls, power: float, values: int, share: float, spread0: float, spread1: float
    ) -> NoiseLaw:
        """Return the noise that leaves the smallest divergence between the classes.

        `power` is the mean squared length of the noise, and `values` the number of entries of a
        gradient. `share` is the fraction of examples in class 1. `spread0` and `spread1` are the
        variances of an entry in classes 0 and 1, before the noise. `power` and all variances are in
        units of |Δ|², the squared distance of the classes' mean gradients.
        """
        # Let v_0 and v_1 be the classes' own variances, and
        #
        #     a = v_0 + along_0,   b = v_1 + along_1,   c = v_0 + across_0,   e = v_1 + across_1.
        #
        # Twice the divergence is, up to a constant,
        #
        #     (values - 1) (c/e + e/c) + (a + 1)/b + (b + 1)/a.
        #
        # Noise across Δ is worth its power only for the class with the smaller variance. A search
        # over its share of the power finds the best one. The rest goes along Δ, where at fixed
        # power the sum is K/b + L/a. It is convex, with its minimum at a/b = sqrt(L share / (K (1 -
        # share))) or at an end.
        shares, spreads = np.array([1 - share, share]), np.array([spread0, spread1])
        narrow = int(spread1 < spread0)
        others = values - 1
        affordable = power / (others * shares[narrow]) if others else 0.0
        widened = np.linspace(0, min(affordable, abs(spread1 - spread0)), _TRIED)
        budget = power - others * shares[narrow] * widened + float(shares @ spreads)
        first, second = budget / shares[0] + 1, budget / shares[1] + 1
        ratio = np.sqrt(second * shares[1] / (first * shares[0]))
        b = budget / (shares[0] * ratio + shares[1])
        b = np.clip(b, spread1, (budget - shares[0] * spread0) / shares[1])
        a = (budget - shares[1] * b) / shares[0]
        with np.errstate(divide="ignore", invalid="ignore"):
            across = _ratios(spreads[narrow] + widened, spreads[1 - narrow]) if others else 2.0
            twice = others * across + (a + 1) / b + (b + 1) / a
        best = int(np.nanargmin(twice))
        wide = [0.0, 0.0]
        wide[narrow] = float(widened[best]) if others else 0.0
        return cls(
            (float(max(a[best] - spread0, 0)), float(max(b[best] - spread1, 0))),
            (wide[0], wide[1]),
            float(twice[best]) / 2 - values,
        )


def most_auc(divergence: float) -> float:
    """Return the largest possible AUC of an attack on one noisy gradient.

    `divergence` is the sum of the two KL divergences between the classes' gradients (`NoiseLaw`).
    """
    return 1.0 if divergence >= 4 else 0.5 + math.sqrt(divergence) / 2 - divergence / 8


def _ratios(left: Float64s, right: float) -> Float64s:
    found: Float64s = np.where((left == 0) & (right == 0), 2.0, left / right + right / left)
    return found


def _rows(gradients: Array) -> Float64s:
    rows = np.asarray(gradients, np.float64)
    if rows.ndim < 2 or not len(rows):
        raise InvalidValue(f"gradients has shape {rows.shape}, [examples, values] is needed")
    return rows.reshape(len(rows), -1)


def normal(count: int, entropy: Entropy) -> Float64s:
    """Return `count` standard normal numbers: discrete Gaussian draws in steps of 2^-16."""
    drawn: Float64s = DiscreteGaussian(1, _STEPS).draw(count, entropy) / float(1 << _STEPS)
    return drawn
