"""Recovery of examples from one update of an imprint: a client's report, or a cohort's sum.

An imprint sorts examples into cells by several statistics, and reveals an example that is alone in
a cell. Such an example is then subtracted from its cells of the other statistics. After that, other
examples may be alone in these cells. Secure aggregation only hides which client an example came
from, because the layer treats a cohort as one batch.

Every client receives the same model. The attack of Zhao et al. ("LOKI", 2023) instead sends a
different model to each client. That attack fails under fedveil's masks
(docs/secure-aggregation.md).
"""

from __future__ import annotations

import math

import numpy as np

from fedveil.attacks.stealing.imprint_layer import Cells, Imprint
from fedveil.attacks.stealing.public_prior import PublicDistribution
from fedveil.base.array_types import Bools, Float64s, Int64s
from fedveil.protections.reading import Reading

#: Largest relative difference between examples' deltas, if clients start from the same model.
_LIKE = 0.25
#: Deviations above this number of standard deviations are not attributed to noise.
_CLEAR = 5.0
#: Rounding error of float32 in a statistic of values of about 1.
_ROUNDING = 1e-6
#: Above this noise, relative to an example's delta, apparent examples may be false.
_PEELABLE = 0.05


def cells_needed(examples: int, statistics: int) -> int:
    """Return a number of cells per statistic that reveals more than half of `examples` examples.

    An `Imprint` sorts the examples by each of its `statistics` statistics. A statistic is a number
    computed from an example, such as its mean, and a cell is an interval of such numbers.
    """
    return math.ceil(4 * examples if statistics == 1 else 1.6 * examples / statistics) + 8


def examples_in(imprint: Imprint, reading: Reading, prior: PublicDistribution) -> Float64s:
    """Return candidates for the clients' examples, from `reading`, the estimate of an update.

    The update is that of a model that begins with the layer `imprint`. The result is [candidates,
    features], possibly empty. `prior` is the distribution of public examples.
    """
    if reading.empty:
        return np.empty((0, len(prior.mean)))
    cells = imprint.read(reading)
    strength, error = _deltas(imprint, cells)
    there = (np.abs(strength) > _CLEAR * error) & (strength != 0) & ~imprint.unreached
    found, left = _peeled(imprint, cells, there, prior)
    divided = cells.weights[left] / strength[left, None]
    noise = cells.noise / np.abs(strength[left])
    return np.concatenate([found, prior.restore(divided, noise, cells.known[left])])


def _deltas(imprint: Imprint, cells: Cells) -> tuple[Float64s, Float64s]:
    """Estimate the sum of delta over each cell's examples. Returns it with standard errors.

    An example's delta is the loss's derivative at a neuron that the example activates (see
    `Cells`). `cells` has the reported sums, which may be noisy, for each cell of `imprint`.
    """
    bare = np.full(len(cells), 1e-7 * np.abs(cells.biases).max(initial=0.0))
    if not cells.noise:
        return cells.biases, bare
    low, width = imprint.edges[:, :-1].ravel(), np.diff(imprint.edges).ravel()
    direction = np.repeat(imprint.directions, imprint.cells, axis=0)
    middle = low + width / 2
    usual = float(np.median(np.abs(cells.biases)))
    squares = np.sum(direction**2 * cells.known, axis=1)
    through = np.sum(np.where(cells.known, cells.weights, 0.0) * direction, axis=1)
    worth_bias = np.full(len(cells), cells.noise**-2)
    variance = cells.noise**2 * squares + (usual * width) ** 2 / 12
    worth_weights = np.divide(1.0, variance, out=np.zeros_like(variance), where=squares > 0)
    total = worth_bias + middle**2 * worth_weights
    delta = (cells.biases * worth_bias + through * middle * worth_weights) / total
    return delta, np.maximum(total**-0.5, bare)


def _peeled(
    imprint: Imprint, cells: Cells, there: Bools, prior: PublicDistribution
) -> tuple[Float64s, Int64s]:
    """Find examples that are alone in a cell, and subtract them from their other cells.

    The layer `imprint` sorts an example into one cell for each of several statistics. `cells` has
    the reported sums over the examples of each cell. `there` marks the non-empty cells. `prior` is
    the distribution of public examples. Returns the examples that were found, as rows, and the
    indices of the cells that still hold examples.
    """
    deltas, weights = cells.biases.copy(), cells.weights.copy()
    nothing = np.empty((0, weights.shape[1])), np.flatnonzero(there)
    if imprint.statistics == 1 or not there.any():
        return nothing
    usual = float(np.median(np.abs(deltas[there])))
    if cells.noise > _PEELABLE * usual or not cells.known.all():
        return nothing
    slack = (prior.high - prior.low) * 0.01 + 2 * _CLEAR * cells.noise / usual
    found = np.empty((0, weights.shape[1]))
    spent, waiting = np.zeros(len(deltas), np.bool_), np.flatnonzero(there)
    while len(waiting):
        waiting = waiting[np.abs(np.abs(deltas[waiting]) / usual - 1) < _LIKE]
        examples = weights[waiting] / deltas[waiting, None]
        fits = np.all((examples > prior.low - slack) & (examples < prior.high + slack), axis=1)
        fits &= _inside(imprint, examples, waiting, cells.noise / usual)
        touched = np.zeros(len(deltas), np.bool_)
        for cell, example in zip(waiting[fits], examples[fits], strict=True):
            if touched[cell]:
                continue  # its example was just subtracted
            delta, places = deltas[cell], np.array([cell])
            if not _among(example, found, slack):
                found = np.concatenate([found, example[None]])
                places = _places(imprint, example, cell, cells.noise / usual)
            weights[places] -= delta * example
            deltas[places] -= delta
            touched[places] = spent[cell] = True
        waiting = np.flatnonzero(touched & ~spent)
    left = there & ~spent & (np.abs(deltas) > _LIKE * usual)
    return np.clip(found, prior.low, prior.high), np.flatnonzero(left)


def _among(example: Float64s, found: Float64s, slack: float) -> bool:
    return bool(len(found)) and bool(np.abs(found - example).max(axis=1).min() < slack)


def _places(imprint: Imprint, example: Float64s, cell: int, noise: float) -> Int64s:
    """Return the indices of the cells of `imprint` that surely hold `example`.

    An imprint sorts an example into one cell for each statistic. The example was found in `cell`,
    which is always included. A cell of another statistic is included unless noise may have moved
    the example there from a neighbouring cell. `noise` is the standard deviation of the noise in
    each entry of the example.
    """
    places = imprint.places(example[None])[0]
    copies = np.repeat(example[None], len(places), axis=0)
    sure = _inside(imprint, copies, places, -noise)
    own = np.arange(len(places)) == cell // imprint.cells
    return np.append(places[sure & ~own], cell)


def _inside(imprint: Imprint, examples: Float64s, cells: Int64s, noise: float) -> Bools:
    """Return a mask: True for each i for which `examples[i]` can lie in cell `cells[i]`.

    `noise` is the standard deviation of the noise in each entry of the examples. Because noise can
    move an example out of its cell, an example slightly outside the cell counts too. If `noise` is
    negative, the mask is strict: True only for examples so far inside the cell that noise of this
    size cannot have moved them into it.
    """
    kind = cells // imprint.cells
    directions = imprint.directions[kind]
    values = np.sum(examples * directions, axis=1)
    place = cells % imprint.cells
    low, high = imprint.edges[kind, place], imprint.edges[kind, place + 1]
    slack = _CLEAR * noise * np.sqrt(np.sum(directions**2, axis=1))
    slack += math.copysign(_ROUNDING, noise) * np.sum(np.abs(directions), axis=1)
    inside: Bools = (values > low - slack) & (values < high + slack)
    return inside
