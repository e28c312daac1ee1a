"""The fixed filters' features of an image, which depend on that image only."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fedveil.entropy import Seeded
from fedveil.errors import ModelInvalid
from fedveil.learning.models import filters_linear, scattering_linear
from fedveil.learning.oriented_filters import FilterBank, OrientedFilters, _moduli
from fedveil.learning.weight_layout import Layout

SIDE = 56


def stripes(angle: float, wavelength: float, phase: float = 0.0) -> torch.Tensor:
    """A plane wave that fills an image."""
    y, x = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    across = x * math.cos(angle) + y * math.sin(angle)
    return torch.cos(2 * math.pi * across / wavelength + phase)[None, None].float()


def in_the_middle(image: torch.Tensor) -> torch.Tensor:
    """The channels' features of the squares in the middle, where no border is seen."""
    filters = OrientedFilters(tuple(image.shape[1:]))
    squares = SIDE // filters.bank.pool
    features = filters(image).reshape(-1, squares, squares)
    return features[:, squares // 2 - 2 : squares // 2 + 2, squares // 2 - 2 : squares // 2 + 2]


@pytest.mark.parametrize("turn", range(8))
@pytest.mark.parametrize("scale", [0, 1])
def test_stripes_are_strongest_in_the_channel_of_their_direction_and_width(
    turn: int, scale: int
) -> None:
    bank = FilterBank()
    image = stripes(math.pi * turn / bank.orientations, bank.wavelengths[scale])
    by_channel = in_the_middle(image).mean((1, 2)).reshape(2, -1)
    assert int(by_channel[scale].argmax()) == turn
    assert float(by_channel[scale, turn]) > 0


def test_where_a_stroke_lies_within_a_square_does_not_matter() -> None:
    """The modulus of an even and an odd filter; either alone would swing from all to nothing."""
    phases = [in_the_middle(stripes(0, 8, phase))[0] for phase in (0.0, 0.8, 1.6, 2.4)]
    values = torch.stack(phases)
    assert float(values.min()) > 0.8 * float(values.max()) > 0


def test_each_scale_answers_to_strokes_of_its_width() -> None:
    """The moduli before they are brought to one norm."""
    filters, bank = OrientedFilters((1, SIDE, SIDE)), FilterBank()
    for scale, wavelength in enumerate(bank.wavelengths):
        image = stripes(0, wavelength)
        strong = [float(_moduli(image, f, 2)[0, 0].mean()) for f in filters.buffers()]
        assert strong[scale] == max(strong)


def test_every_image_has_features_of_one_norm_and_both_scales_count_alike() -> None:
    x = torch.from_numpy(Seeded(0).generator().random((5, 1, 28, 28), dtype=np.float32))
    features = OrientedFilters((1, 28, 28))(torch.cat([x, 0.5 * x[:1] - 0.7]))
    norms = features.reshape(6, 2, -1).norm(dim=2)
    torch.testing.assert_close(norms, torch.full((6, 2), 10 / 2**0.5), rtol=2e-3, atol=0)
    torch.testing.assert_close(features[5], features[0], rtol=0, atol=2e-2)  # paler and darker


@pytest.mark.parametrize("twice", [False, True])
def test_each_colour_of_an_image_counts_alike_and_by_itself(twice: bool) -> None:
    draw, bank = Seeded(4).generator(), FilterBank(twice=twice)
    x = torch.from_numpy(draw.random((5, 3, 12, 21), dtype=np.float32))
    found = OrientedFilters((3, 12, 21), bank)(x)
    alone = OrientedFilters((1, 12, 21), bank)
    expected = torch.cat([alone(x[:, i : i + 1]) for i in range(3)], 1) / 3**0.5
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-2)
    torch.testing.assert_close(found.norm(dim=1), torch.full((5,), 10.0))


def test_no_direction_is_liked() -> None:
    x = torch.from_numpy(Seeded(1).generator().random((2, 1, 28, 28), dtype=np.float32))
    features = OrientedFilters((1, 28, 28))(x).reshape(2, 2, 8, 49)
    assert float(features.sum(2).abs().max()) < 1e-4


@pytest.mark.parametrize("twice", [False, True])
def test_an_attacker_can_differentiate_where_there_is_no_stroke(twice: bool) -> None:
    """Else gradient inversion would fail on NaN, and look as if something had protected."""
    x = torch.zeros(1, 1, 28, 28, requires_grad=True)
    features = OrientedFilters((1, 28, 28), FilterBank(twice=twice))(x)
    (gradient,) = torch.autograd.grad(features.sum(), x)
    assert bool(torch.isfinite(gradient).all())


@pytest.mark.parametrize("brightness", [-1.0, 0.0, 1.0])
def test_an_even_brightness_says_next_to_nothing(brightness: float) -> None:
    features = OrientedFilters((1, 28, 28))(torch.full((1, 1, 28, 28), brightness))
    assert float(features.norm()) < 0.1


def test_the_filters_are_numbers_that_every_machine_makes_alike() -> None:
    """Multiples of 2^-24, within float32's digits: a cosine's last bit is rounded away."""
    for filters in FilterBank().filters():
        scaled = filters.astype(np.float64) * 2**24
        np.testing.assert_array_equal(scaled, np.round(scaled))


def test_the_model_is_a_head_that_begins_at_zero_and_travels_alone() -> None:
    model = filters_linear((1, 28, 28), 10)
    layout = Layout(model)
    assert layout.dimension == 784 * 10 + 10 <= 8192
    assert not layout.vector().any()
    assert {entry.name for entry in layout.entries} == {"1.weight", "1.bias"}
    assert set(model.state_dict()) == {"1.weight", "1.bias"}


def test_the_second_order_stands_beside_the_first() -> None:
    """The features of the first order are the same as alone, with two thirds of the norm."""
    x = torch.from_numpy(Seeded(2).generator().random((3, 1, 28, 28), dtype=np.float32))
    once, twice = OrientedFilters((1, 28, 28)), OrientedFilters((1, 28, 28), FilterBank(twice=True))
    assert (once.outputs, twice.outputs) == (784, 784 + 64 * 49)
    small, large = once(x), twice(x)
    assert large.shape == (3, twice.outputs)
    first = torch.cat([large[:, :392], large[:, -392:]], 1)
    torch.testing.assert_close(first, small * (2 / 3) ** 0.5, rtol=2e-3, atol=1e-4)
    second = large[:, 392:-392].reshape(3, 8, 8, 49)
    norms = second.flatten(1).norm(dim=1)
    torch.testing.assert_close(norms, torch.full((3,), 10 / 3**0.5), rtol=2e-3, atol=0)
    assert float(second.sum(2).abs().max()) < 1e-4
    assert Layout(scattering_linear((1, 28, 28), 10)).dimension == 39_210


def test_crossings_are_told_from_strokes_by_the_second_order_alone() -> None:
    """If the strength of upright stripes changes from top to bottom, a second filter responds."""
    bank = FilterBank(twice=True)
    carrier, beat = stripes(0, 5.0), stripes(math.pi / 2, 20.0)
    features = OrientedFilters((1, SIDE, SIDE), bank)((1 + beat) * carrier)[0]
    squares = (SIDE // bank.pool) ** 2
    second = features[8 * squares : 72 * squares].reshape(8, 8, squares).mean(2)
    assert int(second[0].argmax()) == 4  # strokes upright, and their strength changes across


def test_other_images_are_taken_and_other_shapes_refused() -> None:
    for made in (filters_linear, scattering_linear):
        for shape in ((2, 21, 30), (1, 23, 31), (3, 4, 7)):
            assert made(shape, 5)(torch.rand(2, *shape)).shape == (2, 5)
    for narrow in ((1, 28, 3), (1, 3, 28)):
        with pytest.raises(ModelInvalid, match="of at least 4 x 4"):
            filters_linear(narrow, 10)
    with pytest.raises(ModelInvalid) as told:
        filters_linear((600,), 10)
    assert str(told.value) == (
        "model = filters_linear needs images [channels, height, width] of at least 4 x 4, not "
        "(600,)"
    )
