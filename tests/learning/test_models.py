"""The built-in models have the sizes of the networks that they are named after."""

from __future__ import annotations

import pytest

from fedveil.learning.models import MODELS

DIGITS = (1, 28, 28)
WIDTH, WORDS, LENGTH = 128, 2340, 20
#: Queries, keys, values and outputs; two dense layers, four times as wide between; two norms.
LAYER = 4 * (WIDTH + 1) * WIDTH + (WIDTH + 1) * 4 * WIDTH + (4 * WIDTH + 1) * WIDTH + 4 * WIDTH
SIZES: dict[str, tuple[tuple[int, ...], int, int]] = {
    "lenet": (DIGITS, 10, 61_706),  # LeCun et al. 1998, with all maps connected
    "lenet_femnist": (DIGITS, 10, 61_706 + 52 * 85),
    "lenet_smooth": (DIGITS, 10, 13_426),
    "mlp": (DIGITS, 10, 199_210),  # McMahan et al. 2017
    "purchase_dnn": ((600,), 100, 601 * 1024 + 1025 * 512 + 513 * 256 + 257 * 100),
    "logistic": ((1, 7, 9), 5, 64 * 5),
    "tanh_cnn": (DIGITS, 10, 26_010),  # Papernot et al. 2020
    "filters_linear": (DIGITS, 10, 7_850),
    "scattering_linear": (DIGITS, 10, 39_210),
    "transformer": (
        (LENGTH,), WORDS,
        WORDS * WIDTH + LENGTH * WIDTH + 2 * LAYER + 2 * WIDTH + (WIDTH + 1) * WORDS,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_a_model_has_the_parameters_of_its_source(name: str) -> None:
    shape, classes, size = SIZES[name]
    model = MODELS[name](shape, classes)
    assert sum(parameter.numel() for parameter in model.parameters()) == size
