"""What the fixed filters say of an image, and that it depends on that image alone."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fedveil.entropy import Seeded
from fedveil.errors import ModelInvalid
from fedveil.learning.models import filters_linear
from fedveil.learning.oriented_filters import FilterBank, OrientedFilters
from fedveil.learning.weight_layout import Layout

SIDE = 56


def stripes(angle: float, wavelength: float, phase: float = 0.0) -> torch.Tensor:
    """A plane wave that fills an image."""
    y, x = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    across = x * math.cos(angle) + y * math.sin(angle)
    return torch.cos(2 * math.pi * across / wavelength + phase)[None, None].float()


def strengths(image: torch.Tensor) -> torch.Tensor:
    """The channels' strengths in the squares in the middle, where no border is seen."""
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
    by_channel = strengths(image).mean((1, 2))
    assert int(by_channel.argmax()) == scale * bank.orientations + turn


def test_where_a_stroke_lies_within_a_square_does_not_matter() -> None:
    """The modulus of an even and an odd filter; either alone would swing from all to nothing."""
    values = torch.stack([strengths(stripes(0, 8, phase))[8] for phase in (0.0, 0.8, 1.6, 2.4)])
    assert float(values.min()) > 0.8 * float(values.max())


def test_an_even_brightness_says_nothing() -> None:
    dark, bright = (
        OrientedFilters((1, 28, 28))(torch.full((1, 1, 28, 28), v)) for v in (-1.0, 1.0)
    )
    assert float(dark.abs().max()) < 1e-4
    assert float(bright.abs().max()) < 1e-4


def test_the_filters_are_numbers_that_every_machine_makes_alike() -> None:
    """Multiples of 2^-20, within float32's digits: a cosine's last bit is rounded away."""
    for filters in FilterBank().filters():
        scaled = filters.astype(np.float64) * 2**20
        np.testing.assert_array_equal(scaled, np.round(scaled))


def test_the_model_is_a_head_that_begins_at_zero_and_travels_alone() -> None:
    model = filters_linear((1, 28, 28), 10)
    layout = Layout(model)
    assert layout.dimension == 784 * 10 + 10 <= 8192
    assert not layout.vector().any()
    assert {entry.name for entry in layout.entries} == {"1.weight", "1.bias"}
    assert set(model.state_dict()) == {"1.weight", "1.bias"}


def test_other_images_are_taken_and_other_shapes_refused() -> None:
    x = torch.from_numpy(Seeded(0).generator().random((3, 2, 21, 30), dtype=np.float32))
    assert filters_linear((2, 21, 30), 4)(x).shape == (3, 4)
    with pytest.raises(ModelInvalid) as told:
        filters_linear((600,), 10)
    assert str(told.value) == (
        "model = filters_linear needs images [channels, height, width] of at least 4 x 4, not "
        "(600,)"
    )
