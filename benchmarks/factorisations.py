"""Factorisations of a run's noise that minimise its effect on the models, at the same epsilon.

A run of T rounds releases C S + Z. Row t of S is the sum of round t's updates, and Z is independent
noise. The server turns this into S + C^-1 Z. Row t of a workload has the weights of the sums in the
model after round t.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from scipy.linalg import toeplitz
from scipy.optimize import minimize
from torch import Tensor

Matrix = npt.NDArray[np.float64]
#: The distance between two rounds of a client, if not every client is in every round.
SEPARATION = 10


def workload(rounds: int, momentum: float) -> Matrix:
    """Return the workload of SGD with `momentum` and learning rate 1.

    Entry (t, s) is the weight of the sum of round s in the model after round t.
    """
    steps = np.arange(1, rounds + 1)
    weights = (1 - momentum**steps) / (1 - momentum)
    return np.tril(toeplitz(weights))


def participations(rounds: int) -> int:
    """Return the number of rounds of one client, if its rounds are SEPARATION apart."""
    return math.ceil(rounds / SEPARATION)


def sized(rounds: int, momentum: float, *, final: bool = False) -> Matrix:
    """Return the best diagonal C: independent noise whose size varies, every client in every round.

    The sensitivity of C = diag(c) is the norm of c. The error is the sum of m_t / c_t², where m_t
    is the workload's factor for round t's noise. It is least if c_t² is proportional to the root of
    m_t.
    """
    rows = workload(rounds, momentum)
    made = (rows[-1:] ** 2 if final else rows**2).sum(axis=0)
    return np.diag(made**0.25 / math.sqrt(np.sqrt(made).sum()))


def _minimised(error: Callable[[Tensor], Tensor], start: Matrix) -> Matrix:
    def value_and_slope(point: Matrix) -> tuple[float, Matrix]:
        leaf = torch.tensor(point, requires_grad=True)
        value = error(leaf)
        value.backward()
        return value.item(), leaf.grad.numpy()

    found = minimize(value_and_slope, start, jac=True, method="L-BFGS-B", options={"maxiter": 300})
    return np.asarray(found.x)


def _root_coefficients(count: int) -> Matrix:
    """Return `count` Toeplitz coefficients of the square root of the prefix-sum matrix.

    This is the best C if each client takes part only once.
    """
    steps = np.arange(1, count)
    return np.cumprod(np.r_[1.0, (2 * steps - 1) / (2 * steps)])


def banded(rounds: int, rows: Matrix) -> Matrix:
    """Return the best C of SEPARATION bands with sensitivity 1 (Choquette-Choo et al., 2023).

    The columns of two rounds of the same client have no nonzero row in common, so the directions of
    the client's changes do not matter. The squared sensitivity is the sum of the squared norms of
    the columns of its rounds. All columns have the same norm.
    """
    down, across = np.tril_indices(rounds)
    kept = down - across < SEPARATION
    down, across = down[kept], across[kept]
    target = torch.tensor(rows)

    def matrix(entries: Tensor) -> Tensor:
        whole = torch.zeros(rounds, rounds, dtype=torch.float64)
        whole = whole.index_put((torch.tensor(down), torch.tensor(across)), entries)
        return whole / whole.norm(dim=0) / math.sqrt(participations(rounds))

    def error(entries: Tensor) -> Tensor:
        decoder = torch.linalg.solve_triangular(matrix(entries), target, upper=False, left=False)
        return decoder.square().sum().log()

    start = _root_coefficients(SEPARATION)[down - across]
    return matrix(torch.tensor(_minimised(error, start))).numpy()


def _lower(coefficients: Tensor) -> Tensor:
    """Return the lower triangular Toeplitz matrix whose first column is `coefficients`."""
    rounds = len(coefficients)
    places = torch.arange(rounds)[:, None] - torch.arange(rounds)[None, :]
    return torch.where(places >= 0, coefficients[places.clamp(min=0)], 0.0)


def _toeplitz_sensitivity(coefficients: Tensor) -> Tensor:
    """Return an upper bound on the sensitivity of a Toeplitz C, for rounds SEPARATION apart.

    The bound is exact for coefficients that decrease and are not negative (McMahan et al., 2024,
    theorem 2: the worst client takes part in round 1 and as often as possible).
    """
    falling = coefficients.abs().flip(0).cummax(0).values.flip(0)
    total = torch.zeros_like(falling)
    for first in range(0, len(falling), SEPARATION):
        total = total + torch.nn.functional.pad(falling, (first, 0))[: len(falling)]
    return total.norm()


def blt(rounds: int, rows: Matrix, buffers: int) -> Matrix:
    """Return the best buffered linear Toeplitz C.

    Coefficient i is the sum of w_j d_j^(i - 1) over `buffers` terms.
    """
    target = torch.tensor(rows)
    steps = torch.arange(rounds - 1, dtype=torch.float64)

    def matrix(point: Tensor) -> Tensor:
        decays, share, split = (
            torch.sigmoid(point[:buffers]),
            torch.sigmoid(point[buffers]),
            torch.softmax(point[buffers + 1 :], 0),
        )
        tail = (share * split) @ decays[:, None] ** steps
        coefficients = torch.cat([torch.ones(1, dtype=torch.float64), tail])
        return _lower(coefficients / _toeplitz_sensitivity(coefficients))

    def error(point: Tensor) -> Tensor:
        decoder = torch.linalg.solve_triangular(matrix(point), target, upper=False, left=False)
        return decoder.square().sum().log()

    start = np.r_[np.linspace(-1.0, 3.0, buffers), 1.0, np.zeros(buffers)]
    return matrix(torch.tensor(_minimised(error, start))).numpy()


def banded_inverse(rounds: int, rows: Matrix, bands: int) -> Matrix:
    """Return the best C whose inverse is banded: a round's noise needs only the last few draws."""
    target = torch.tensor(rows)
    unit = torch.zeros(rounds, 1, dtype=torch.float64)
    unit[0] = 1

    def inverse(point: Tensor) -> tuple[Tensor, Tensor]:
        head = torch.cat([torch.ones(1, dtype=torch.float64), point])
        whole = _lower(torch.nn.functional.pad(head, (0, rounds - len(head))))
        column = torch.linalg.solve_triangular(whole, unit, upper=False)[:, 0]
        return whole, _toeplitz_sensitivity(column)

    def error(point: Tensor) -> Tensor:
        whole, sensitivity = inverse(point)
        return (target @ whole).square().sum().log() + 2 * sensitivity.log()

    roots = np.convolve([1.0, -1.0], _root_coefficients(bands))[1:bands]  # (1 - x)^(1/2)
    whole, sensitivity = inverse(torch.tensor(_minimised(error, roots)))
    return np.linalg.inv((whole * sensitivity).numpy())


@dataclass(frozen=True)
class Gains:
    """The noise in the models with independent equal noise, divided by that with a mechanism.

    Noise is measured as its standard deviation: `iterates` compares the root mean square over the
    models of all rounds, `largest` the largest model's, and `final` the final model's.
    """

    iterates: float
    largest: float
    final: float

    def __str__(self) -> str:
        return f"{self.iterates:.3f} | {self.largest:.3f} | {self.final:.3f}"


def gains(rows: Matrix, errors: Matrix, sensitivity: float) -> Gains:
    """Return the gains of a mechanism over independent noise.

    `errors` has the standard deviation of the noise in each round's model under the mechanism, for
    sensitivity 1. `sensitivity` is that of independent noise.
    """
    plain = sensitivity * np.linalg.norm(rows, axis=1)
    return Gains(
        math.sqrt((plain**2).sum() / (errors**2).sum()),
        plain.max() / errors.max(),
        plain[-1] / errors[-1],
    )


def errors_of(rows: Matrix, encoder: Matrix) -> Matrix:
    """Return the standard deviation of the noise in each round's model, for C = `encoder`.

    The independent noise Z has standard deviation 1.
    """
    return np.linalg.norm(rows @ np.linalg.inv(encoder), axis=1)


def everybody(encoder: Matrix, rows: Matrix) -> tuple[Gains, Gains, float]:
    """Compare C with a diagonal one that is never worse, if every client is in every round.

    The squared sensitivity is the largest trace(X U) over correlations U. Its dual is the smallest
    trace of a diagonal D above X = C'C. Returns the gains of C and of the diagonal one, and the
    amount that was added to the computed D so that it is above X.
    """
    gram = encoder.T @ encoder
    rounds = len(gram)
    directions = np.eye(rounds) + 1e-3 * np.random.default_rng(0).standard_normal((rounds, rounds))
    for _ in range(3000):  # gradient ascent over the rounds' changes of norm 1
        pulled = gram @ directions
        before, directions = directions, pulled / np.linalg.norm(pulled, axis=1, keepdims=True)
        if np.abs(directions - before).max() < 1e-10:
            break
    diagonal = np.linalg.norm(gram @ directions, axis=1)
    gap = max(0.0, -float(np.linalg.eigvalsh(np.diag(diagonal) - gram)[0]))
    diagonal += gap
    sensitivity = math.sqrt(diagonal.sum())
    plain = math.sqrt(rounds)
    return (
        gains(rows, errors_of(rows, encoder / sensitivity), plain),
        gains(rows, errors_of(rows, np.diag(np.sqrt(diagonal)) / sensitivity), plain),
        gap,
    )
