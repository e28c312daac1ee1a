"""The parts that attacks share: measures of images, pictures, effort and randomness."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from PIL import Image

from fedveil.attacks import pictures
from fedveil.attacks.attack_randomness import generator
from fedveil.attacks.effort import by_effort
from fedveil.attacks.smoothness import total_variation


def test_measures_of_two_images_follow_their_formulas() -> None:
    dark, bright = np.full((1, 6, 8), 0.25), np.full((1, 6, 8), 0.75)
    assert pictures.mse(dark, bright) == 0.25
    assert pictures.psnr(dark, bright) == pytest.approx(10 * np.log10(4))
    # Constant images differ in their means alone.
    means = (2 * 0.25 * 0.75 + 0.01**2) / (0.25**2 + 0.75**2 + 0.01**2)
    assert pictures.ssim(dark, bright) == pytest.approx(means, abs=1e-9)


def test_a_grid_shows_each_image_at_its_place() -> None:
    """Two rows of images that are wider than high, in colours, the first row the shorter one."""
    images = [np.stack([np.full((3, 5), shade + part) for part in (0.0, 0.05, 0.1)])
              for shade in (0.1, 0.3, 0.5)]  # fmt: skip
    images[0][:, 2, 4] = 1.7  # a value above the range is white
    shown = np.asarray(Image.open(io.BytesIO(pictures.grid([images[:1], images[1:]]))))
    assert shown.shape == (3 * (2 * 5 + 2), 3 * (2 * 7 + 2), 3)
    small = shown[::3, ::3]
    for image, (top, left) in zip(images, ((2, 2), (7, 2), (7, 9)), strict=True):
        pixels = np.rint(255 * np.clip(image, 0, 1)).transpose(1, 2, 0)
        assert np.array_equal(small[top : top + 3, left : left + 5], pixels)
    assert (small[2:5, 9:14] == 255).all(), "no image"


def test_total_variation_counts_both_directions() -> None:
    ramp = torch.arange(3.0).repeat(2, 1)[None, None]  # it rises to the right
    assert total_variation(ramp).tolist() == [4]
    assert total_variation(ramp.transpose(2, 3)).tolist() == [4]
    assert total_variation(torch.stack([ramp[0], 0 * ramp[0]])).tolist() == [4, 0]


def test_an_effort_chooses_its_value() -> None:
    efforts = ("quick", "standard", "full")
    assert [by_effort(effort, 1, 2, 3) for effort in efforts] == [1, 2, 3]


def test_the_attackers_draws_depend_on_seed_and_purpose() -> None:
    sources = [(1, "a", 0), (1, "a", 1), (1, "b", 0), (2, "a", 0), (1, "a", 0)]
    drawn = [torch.rand((), generator=generator(*source)).item() for source in sources]
    assert len({*drawn}) == 4
    assert drawn[0] == drawn[-1]
