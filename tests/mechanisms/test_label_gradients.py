"""Perturbed gradients: the stated laws, an optimum that nothing beats, a sign that tells little."""

from __future__ import annotations

import numpy as np
import pytest

from fedveil.base.array_types import Bools, Float64s
from fedveil.entropy import Seeded
from fedveil.errors import InvalidValue
from fedveil.mechanisms.label_gradients import Marvell, MaxNorm, NoiseLaw, Own, most_auc, normal

ROWS, VALUES = 4000, 3


def twice(law: NoiseLaw, values: int, spreads: tuple[float, float]) -> float:
    """Twice the sum of both divergences, from the densities' own formula."""
    (a, b), (c, e) = (
        (spreads[0] + pair[0], spreads[1] + pair[1]) for pair in (law.along, law.across)
    )
    crossed = (values - 1) * (c / e + e / c) if values > 1 else 0.0
    return crossed + (a + 1) / b + (b + 1) / a - 2 * values


@pytest.mark.parametrize("values", [1, 2, 40])
@pytest.mark.parametrize("share", [0.05, 0.5, 0.8])
@pytest.mark.parametrize("spreads", [(0.1, 0.1), (0.02, 0.5), (2.0, 0.3)])
@pytest.mark.parametrize("power", [0.3, 4.0])
def test_no_other_noise_of_that_power_is_harder_to_tell(
    values: int, share: float, spreads: tuple[float, float], power: float
) -> None:
    law = NoiseLaw.optimal(power, values, share, *spreads)
    spent = [p + (values - 1) * q for p, q in zip(law.along, law.across, strict=True)]
    assert (1 - share) * spent[0] + share * spent[1] <= power * (1 + 1e-9)
    best = twice(law, values, spreads)
    assert 2 * law.divergence == pytest.approx(best, rel=1e-9)
    source = Seeded(1, "others").generator()
    for parts in source.dirichlet([0.5] * 4, 4000) * power:
        along = parts[0] / (1 - share), parts[1] / share
        across = (0.0, 0.0)
        if values > 1:
            across = parts[2] / (1 - share) / (values - 1), parts[3] / share / (values - 1)
        assert twice(NoiseLaw(along, across, 0), values, spreads) >= best * (1 - 1e-4)


def drawn(seed: int, rows: np.ndarray) -> Own:
    """Return independent normal numbers for each row."""
    return lambda values: normal(len(rows) * values, Seeded(seed)).reshape(len(rows), values)


def batch(share: float = 0.4) -> tuple[Float64s, Bools]:
    """One row of each class, again and again: what is left of a mean is the noise."""
    rare = np.arange(ROWS) < share * ROWS
    return np.where(rare[:, np.newaxis], [3.0, 0.0, 0.0], [-1.0, 0.0, 0.0]), rare


def test_marvells_noise_has_mean_0_and_its_power() -> None:
    rows, rare = batch()
    noise = Marvell(2.0)(rows, rare, drawn(2, rows)) - rows
    assert np.allclose(noise.mean(axis=0), 0, atol=5 * 6 / np.sqrt(ROWS))
    assert (noise**2).sum(axis=1).mean() == pytest.approx(2.0 * 16, rel=0.1)
    assert (noise[:, 1:] ** 2).max() < 1e-6, "classes that are points differ along one line alone"


def test_each_class_has_its_own_noise() -> None:
    """The narrow class is widened along the difference of the means, and alone across it."""
    rare = np.arange(ROWS) < 0.3 * ROWS
    spread = np.where(rare, 4.0, 0.3)[:, np.newaxis]
    rows = batch(0.3)[0] + spread * Seeded(9).generator().normal(size=(ROWS, VALUES))
    apart = rows[rare].mean(axis=0) - rows[~rare].mean(axis=0)
    squared = float(apart @ apart)
    spreads = [float(((rows[of] - rows[of].mean(axis=0)) ** 2).mean()) for of in (~rare, rare)]
    share = (rare.sum() + 1) / (ROWS + 2)
    law = NoiseLaw.optimal(2.0, VALUES, share, spreads[0] / squared, spreads[1] / squared)
    noise = Marvell(2.0)(rows, rare, drawn(10, rows)) - rows
    along = noise @ apart / np.sqrt(squared)
    across = noise - np.outer(along, apart) / np.sqrt(squared)
    for of, one, other in zip((~rare, rare), law.along, law.across, strict=True):
        assert (along[of] ** 2).mean() == pytest.approx(one * squared, rel=0.15)
        found = (across[of] ** 2).sum(axis=1).mean() / (VALUES - 1)
        assert found == pytest.approx(other * squared, rel=0.15, abs=1e-9)
    assert law.along[0] > 1.5 * law.along[1]
    assert law.across[0] > 0 == law.across[1]


def test_marvells_sign_is_hard_to_read() -> None:
    """The bound holds, and without noise the sign tells everything."""
    rows, rare = batch()
    told = Marvell(8.0)(rows, rare, drawn(3, rows))[:, 0]
    above = np.mean(told[rare][:, np.newaxis] > told[~rare][np.newaxis, ::4])
    divergence = NoiseLaw.optimal(8.0, VALUES, 0.4, 0.0, 0.0).divergence
    assert divergence == pytest.approx(1 / 8, rel=0.05)
    assert 0.55 < above < most_auc(divergence)


def test_a_batch_that_lacks_a_class_is_perturbed_too() -> None:
    rows = np.tile([1.0, 2.0], (200, 1))
    for rare in (np.zeros(200, bool), np.ones(200, bool)):
        noise = Marvell(4.0)(rows, rare, drawn(4, rows)) - rows
        assert (noise**2).sum(axis=1).mean() == pytest.approx(4.0 * 4 * 5, rel=0.4)
        assert (((rows + noise) @ [1.0, 2.0]) < 0).mean() > 0.3


def test_where_nothing_tells_the_classes_apart_nothing_is_added() -> None:
    rows = np.zeros((4, 2))
    rare = np.array([True, False, True, False])
    assert (Marvell(4.0)(rows, rare, drawn(5, rows)) == 0).all()
    assert (MaxNorm()(rows, rare, drawn(5, rows)) == 0).all()


def test_max_norm_makes_all_as_long_as_the_longest_on_average() -> None:
    rows = np.tile([[3.0, 4.0], [0.3, 0.4], [0.0, 1.0]], (ROWS, 1))
    told = MaxNorm()(rows, np.zeros(len(rows), bool), drawn(6, rows))
    assert (told[::3] == rows[::3]).all(), "the longest goes back as it is"
    for first in (1, 2):
        squares = (told[first::3] ** 2).sum(axis=1)
        assert squares.mean() == pytest.approx(25, rel=0.1)
        assert told[first::3].mean(axis=0) == pytest.approx(rows[first], abs=0.4)
        crossed = told[first::3] @ rows[first] / np.linalg.norm(rows[first])
        assert np.abs(crossed) == pytest.approx(np.sqrt(squares)), "on the gradient's own line"
    turned = (told[1::3] @ [3.0, 4.0] < 0).mean()
    assert turned == pytest.approx(0.46, abs=0.04)  # Phi(-1 / sqrt(99))


def test_the_shape_of_what_crosses_is_kept() -> None:
    rows = np.ones((4, 2, 3), np.float32)
    rare = np.array([True, False, True, False])
    assert MaxNorm()(rows, rare, drawn(7, rows)).shape == (4, 2, 3)
    assert Marvell(1.0)(rows * rare[:, None, None], rare, drawn(7, rows)).shape == (4, 2, 3)


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(InvalidValue, match=r"gradients has shape \(4,\)"):
        MaxNorm()(np.ones(4), np.zeros(4, bool), drawn(8, np.ones((4, 2))))
    with pytest.raises(InvalidValue, match=r"rare has shape \(3,\), \(4,\) is needed"):
        Marvell(1.0)(np.ones((4, 2)), np.zeros(3, bool), drawn(8, np.ones((4, 2))))


def test_the_bound_on_an_attacker() -> None:
    assert most_auc(0) == 0.5
    assert most_auc(1) == pytest.approx(0.875)
    assert most_auc(4) == 1


@pytest.mark.parametrize("shape", [(0, 3), (4,)])
@pytest.mark.parametrize("defence", [MaxNorm(), Marvell(2.0)])
def test_gradients_without_examples_or_values_are_refused(
    defence: MaxNorm | Marvell, shape: tuple[int, ...]
) -> None:
    with pytest.raises(InvalidValue, match="gradients has shape"):
        defence(np.ones(shape), np.zeros(shape[0], bool), lambda k: np.zeros((shape[0], k)))
