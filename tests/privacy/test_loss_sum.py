"""A sum of independent losses keeps account of all mass that its parts leave out."""

from __future__ import annotations

import numpy as np
import pytest

from fedveil.privacy.loss_sum import Part, Tilted, add


@pytest.mark.parametrize("step", [0.25, 0.3])
def test_mass_that_parts_leave_out_is_missing_from_the_sum(step: float) -> None:
    """With it a sum's whole mass is the product of its parts'. Steps that differ are gridded."""
    parts: list[Part] = [
        (Tilted(0.0, 0.25, np.array([0.3, 0.65]), 0.05), 3),
        (Tilted(-0.5, step, np.array([0.2, 0.5, 0.28]), 0.02), 2),
    ]
    found = add(parts, 0.0)
    assert found.weights.sum() == pytest.approx(0.95**3 * 0.98**2)
    assert found.slack == pytest.approx(1 - 0.95**3 * 0.98**2, rel=1e-6)
    assert found.slack >= 1 - 0.95**3 * 0.98**2


def test_a_sum_is_the_convolution_of_its_parts() -> None:
    one, other = np.array([0.3, 0.5, 0.2]), np.array([0.9, 0.1])
    parts: list[Part] = [(Tilted(0.5, 0.25, one), 2), (Tilted(-1.0, 0.25, other), 1)]
    found = add(parts, 0.0)
    exact = np.convolve(np.convolve(one, one), other)
    places = np.round((found.losses - 0.0) / 0.25).astype(int)
    kept = (places >= 0) & (places < len(exact))
    np.testing.assert_allclose(found.weights[kept], exact[places[kept]], atol=1e-12)
    assert found.weights[kept].sum() == pytest.approx(1)


@pytest.mark.parametrize("size", [7, 1025, 3001])
@pytest.mark.parametrize("order", [-3.0, 0.5, 4.0])
def test_a_moment_is_never_too_small(size: int, order: float) -> None:
    """A long distribution is read in blocks of 16 losses, each as if all its mass had the largest
    factor in it."""
    step = 0.01
    weights = np.random.default_rng(0).dirichlet(np.ones(size))
    found = Tilted(-4.0, step, weights).log_moment(order)
    exact = float(np.log(weights @ np.exp(order * (-4.0 + step * np.arange(size)))))
    assert exact - 1e-12 <= found <= exact + 15 * step * abs(order) + 1e-12
