"""Pooling after a curve or with unequal borders, and several dropout layers, against torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedveil.base.kernels import HAVE_NUMBA
from known_chains import CURVES, signed
from native_training import by_loop, compiled, trained_as_torch_trains
from training_parts import clients, plan, train

pytestmark = pytest.mark.skipif(not HAVE_NUMBA, reason="nothing is compiled without numba")

CURVE_NAMES = ["relu", "tanh", "sigmoid", "gelu", "gelu_tanh"]


@pytest.mark.parametrize("border", [(2, 1), (0, 1), (2, 0)])
@pytest.mark.parametrize("after_convolution", [True, False])
def test_a_max_pool_has_its_own_border_on_each_side(
    border: tuple[int, int], after_convolution: bool
) -> None:
    """A window that is cut at the left or the top keeps its right and lower end.

    In the first step, several values of a window are exactly the largest.
    """
    torch.manual_seed(3)
    conv, shape = nn.Conv2d(2, 3, (2, 3)), (2, 9, 12)
    for parameter in conv.parameters():
        parameter.data = torch.randint(-2, 3, parameter.shape) / 8
    first = [conv] if after_convolution else [nn.Tanh()]
    features = nn.Sequential(*first, nn.MaxPool2d((5, 3), (2, 1), border), nn.Flatten())
    width = features(torch.zeros(1, *shape)).shape[1]
    model = nn.Sequential(*features, nn.Linear(width, 4))
    (client,) = signed(clients(shape, 4, (7,)))
    client = replace(client, x=client.x.round())
    trained_as_torch_trains(model, shape, plan(lr=0.1, batch_size=3), [client])


@pytest.mark.parametrize("pool", [nn.MaxPool2d, nn.AvgPool2d])
@pytest.mark.parametrize("curve", CURVES, ids=CURVE_NAMES)
def test_a_curve_between_a_convolution_and_a_pool_comes_before_the_pool(
    curve: Callable[[], nn.Module], pool: type[nn.Module]
) -> None:
    """The largest value of a negative window is not the largest after GELU, which falls there."""
    torch.manual_seed(4)
    conv, shape = nn.Conv2d(2, 3, (2, 3)), (2, 6, 9)
    conv.bias.data -= 1.5
    features = nn.Sequential(conv, curve(), pool((2, 3), (1, 2)), nn.Flatten())
    width = features(torch.zeros(1, *shape)).shape[1]
    model = nn.Sequential(*features, nn.Linear(width, 4))
    cohort = signed(clients(shape, 4, (7,)))
    pooled = nn.MaxPool2d((2, 3), (1, 2))(conv(cohort[0].x))
    assert (pooled < 0).float().mean() > 0.5
    trained_as_torch_trains(model, shape, plan(lr=0.1, batch_size=3), cohort)


class Dropped(nn.Module):
    """Dropout whose random numbers are given: a row for each example of each batch, in order."""

    def __init__(self, draws: np.ndarray, p: float) -> None:
        super().__init__()
        self.masks, self.p, self.used = torch.from_numpy(draws >= p), p, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = self.masks[self.used : self.used + len(x)]
        self.used += len(x)
        return x * mask / (1 - self.p)


def test_each_value_of_each_dropout_layer_has_its_own_draw_in_every_step() -> None:
    """The image between the convolutions has a border, which needs no draws."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(2, 3, (2, 3)), nn.Dropout(0.4), nn.Conv2d(3, 4, 3, padding=(1, 2))]
    layers += [nn.Flatten(), nn.Linear(4 * 4 * 7, 20), nn.Dropout(0.25), nn.Linear(20, 3)]
    model, chosen = nn.Sequential(*layers), plan(epochs=2, batch_size=3)
    (client,) = signed(clients((2, 5, 7), 3, (8,)))
    found = train(compiled(model, chosen), model, [client])[0]
    image = 4 * 5 * 3
    draws = client.entropy.stream("dropout").generator().random((2 * 8, image + 20), np.float32)
    of_image = draws[:, :image].reshape(-1, 4, 5, 3).transpose(0, 3, 1, 2)
    model[1], model[5] = Dropped(of_image, 0.4), Dropped(draws[:, image:], 0.25)
    np.testing.assert_allclose(found, by_loop(model, chosen, [client])[0], atol=2e-6)


@pytest.mark.parametrize("curve", CURVES, ids=CURVE_NAMES)
def test_a_curve_is_differentiated_at_its_own_output_if_a_later_layer_overwrites_it(
    curve: Callable[[], nn.Module],
) -> None:
    """Dropout and a second activation work in place. The first may need its output again."""
    torch.manual_seed(5)
    (client,) = signed(clients((6,), 3, (8,)))
    chosen = plan(epochs=2, batch_size=3, lr=0.5)
    model = nn.Sequential(nn.Linear(6, 20), curve(), nn.Dropout(0.4), nn.Linear(20, 3))
    found = train(compiled(model, chosen), model, [client])[0]
    draws = client.entropy.stream("dropout").generator().random((2 * 8, 20), np.float32)
    model[2] = Dropped(draws, 0.4)
    np.testing.assert_allclose(found, by_loop(model, chosen, [client])[0], atol=2e-6)
    for second in CURVES:
        model[2] = second()
        trained_as_torch_trains(model, (6,), chosen, [client])
