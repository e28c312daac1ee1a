"""SignDS: a client sends a sign, and some dimensions in which its update is likely to be large."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from fedveil.base.array_types import Int64s
from fedveil.base.validate import integer, within
from fedveil.entropy import Entropy, source
from fedveil.errors import FedveilWarning, InvalidValue
from fedveil.mechanisms.exact.real_probabilities import MAX_EXPONENT
from fedveil.mechanisms.signds.inlier_law import InlierLaw, ThresholdSearch
from fedveil.mechanisms.signds.top_k import TopSet, flat_vector
from fedveil.privacy.loss import PrivacyLoss, as_written, exactly


@dataclass(frozen=True)
class SelectionPlan:
    """The public parameters of a selection of dimensions: its size and distribution.

    `dim_out` dimensions are selected. A selection with at least `threshold` of the `topk` largest
    dimensions is e^eps times as likely as one with fewer. `law` is the distribution of the number
    of these largest dimensions among the selected ones, and `expected_ratio` their expected share.
    """

    #: Size of the top-k set: floor(k * dim), at least 1.
    topk: int
    #: h, the number of selected dimensions.
    dim_out: int
    #: Selections with at least this many top-k dimensions are e^eps times as likely as others.
    threshold: int
    #: E[v] / h, the expected share of top-k dimensions among the selected.
    expected_ratio: float
    #: Distribution of the number of selected dimensions in the top-k set.
    law: InlierLaw = field(repr=False)


@dataclass(init=False, eq=False)
class Selection:
    """The dimensions that a client selected (`indices`), and one `sign` for all of them.

    `indices` and `sign` are protected and can be sent. The third attribute, `magnitude`, is the
    mean absolute value of the update's top-k set. It is not protected: a client sends only one bit
    about it, perturbed by randomised response, which has a privacy loss of its own.
    """

    indices: Int64s
    sign: Literal[1, -1]

    def __init__(self, indices: Int64s, sign: Literal[1, -1], magnitude: float) -> None:
        self.indices = indices
        self.sign = sign
        self.magnitude = magnitude


class Told(NamedTuple):
    """The ln of Pr[a selection | an update], and the magnitude of that update.

    The magnitude is the mean absolute value of the update's top-k set: the entries with the largest
    sign · value, where sign is the selection's sign.
    """

    log_probability: float
    magnitude: float


class SignDS:
    """Selects h dimensions of an update, mostly among its largest or among its smallest entries.

    Output: `sign` is +1 or -1 with probability 1/2 each. The top-k set S consists of the topk =
    floor(k * d) of d dimensions (at least 1) with the largest sign * update. The decimal k is
    exact: k = 0.29 of 100 dimensions are 29. Ties are broken in favour of low indices. `indices`,
    in ascending order, is a set J of h dimensions with

        Pr[J | sign] proportional to exp(eps * 1[|J & S| >= threshold]).

    So a set J with at least `threshold` members of S (see `plan`) is e^eps times as likely as one
    with fewer. The attribute `magnitude`, the mean absolute value of S, is not protected.

    Privacy of (indices, sign): eps per update at delta = 0, if the update is replaced.

    Without `dim_out`, h is the largest number for which the best threshold gives an expected share
    E[|J & S|] / h of at least `thr_ratio`. If there is no such number, h is 1 and a
    `FedveilWarning` states the share to expect. No finite eps reaches `thr_ratio` = 1 if k < 1.

    Source: MindSpore Federated's document on SignDS, "dimension selection based on the exponential
    mechanism".

        >>> import numpy as np
        >>> from fedveil.entropy import Seeded
        >>> from fedveil.mechanisms import SignDS
        >>> update = np.zeros(1000)
        >>> update[:20] = 5.0
        >>> selection = SignDS(k=0.02, eps=60.0, dim_out=4).select(update, Seeded(2))
        >>> len(selection.indices), selection.sign in (-1, 1)
        (4, True)
    """

    # Why it is private: the sign does not depend on the update. Given the sign, the update decides
    # only S. All S have the same size, so the normalising constant is the same for all of them, and
    # the probabilities of J under two sets differ by at most the factor e^eps.
    #
    # J is drawn in two steps: v = |J & S| from its exact distribution (`InlierLaw`), then v
    # dimensions of S and h - v others, uniformly.

    def __init__(
        self, k: float = 0.01, eps: float = 100.0, thr_ratio: float = 0.6, dim_out: int = 0
    ) -> None:
        self.k = within("k", k, 0, 1, open_low=True)
        self.eps = within("eps", eps, 0, MAX_EXPONENT, open_low=True)
        self.thr_ratio = within("thr_ratio", thr_ratio, 0, 1, open_low=True)
        self.dim_out = integer("dim_out", dim_out, 0)
        self.loss = PrivacyLoss(self.eps, per="update")
        self._plans: dict[int, SelectionPlan] = {}

    def plan(self, dim: int) -> SelectionPlan:
        """Return the public parameters of a selection from an update of `dim` dimensions."""
        dim = integer("dim", dim, 1)
        if dim not in self._plans:
            self._plans[dim] = self._make_plan(dim)
        return self._plans[dim]

    def select(self, update: npt.ArrayLike, entropy: Entropy) -> Selection:
        """Return a random selection of dimensions of `update`, distributed as `SignDS` states.

        `update` is a float32 or float64 vector without NaN or infinity.
        """
        vector, entropy = flat_vector(update), source(entropy)
        dim = len(vector)
        plan = self.plan(dim)
        sign: Literal[1, -1] = 1 if entropy.token(1)[0] & 1 else -1
        top = TopSet(vector, plan.topk, sign)
        inliers = plan.law.draw(entropy)
        inside = top.members(_subset(plan.topk, inliers, entropy))
        outside = top.others(_subset(dim - plan.topk, plan.dim_out - inliers, entropy))
        # Sorted, because the order of selection would reveal which indices are in the top-k set.
        indices = np.sort(np.concatenate([inside, outside]))
        return Selection(indices, sign, top.mean_magnitude)

    def log_probability(self, indices: Int64s, sign: int, update: npt.ArrayLike) -> Told:
        """Return ln Pr[indices, sign | update], and the mean absolute value of the top-k set.

        The top-k set has the entries of `update` with the largest `sign` · value.
        """
        vector = flat_vector(update)
        plan = self.plan(len(vector))
        top = TopSet(vector, plan.topk, sign)
        inliers = int(np.isin(indices, top.members(np.arange(plan.topk))).sum())
        return Told(math.log(0.5) + plan.law.log_probability(inliers), top.mean_magnitude)

    def most_probable(self, dim: int) -> float:
        """Return the largest possible ln Pr[indices, sign] of a selection from `dim` dimensions."""
        plan = self.plan(dim)
        return math.log(0.5) + plan.law.log_probability(plan.threshold)

    def chance_of_favoured(self, dim: int) -> Callable[[float], float]:
        """Return a function that maps an epsilon to the probability of a favoured selection.

        A selection from an update of `dim` dimensions is favoured if at least `plan(dim).threshold`
        of the selected dimensions are in the top-k set. For the selection's sign, 1 or -1, this set
        has the dimensions with the largest sign · update.
        """
        return self.plan(dim).law.chance_of_favoured

    def _make_plan(self, dim: int) -> SelectionPlan:
        if self.dim_out > dim:
            raise InvalidValue(
                f"dim_out = {self.dim_out} is outside [0, {dim}]: the update has {dim} dimensions"
            )
        topk = max(1, math.floor(Fraction(as_written(self.k)) * dim))
        search = ThresholdSearch(dim, topk, self.eps)
        largest = self.dim_out or search.largest(self.thr_ratio)
        dim_out = largest or 1
        threshold = search.best(dim_out)
        law = InlierLaw(dim, topk, dim_out, threshold, self.eps)
        ratio = law.expected_ratio()
        if not largest:
            share = f"{ratio:.4g}" if ratio < 0.9999 else "just below 1"
            warnings.warn(
                f"eps = {exactly(self.eps)} with k = {self.k:g} reaches thr_ratio = "
                f"{self.thr_ratio:g} with no number of output dimensions: 1 is selected, and the "
                f"expected share of top-k dimensions is {share}",
                FedveilWarning,
                stacklevel=3,
            )
        return SelectionPlan(topk, dim_out, threshold, ratio, law)


def _subset(size: int, count: int, entropy: Entropy) -> Int64s:
    """Return a uniform random subset of 0..size-1 with `count` members, in ascending order."""
    if 2 * count > size:
        kept = np.ones(size, np.bool_)
        kept[_subset(size, size - count, entropy)] = False
        return np.flatnonzero(kept)
    chosen = np.empty(0, np.int64)
    while len(chosen) < count:
        more = entropy.integers(size, count - len(chosen))
        chosen = np.sort(np.concatenate([chosen, more]))
        new = np.ones(len(chosen), np.bool_)
        np.not_equal(chosen[1:], chosen[:-1], out=new[1:])
        chosen = chosen[new]
    return chosen
