"""Pooling with unequal borders, and several dropout layers, against torch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedveil.base.kernels import HAVE_NUMBA
from known_chains import signed
from native_training import by_loop, compiled, trained_as_torch_trains
from training_parts import clients, plan, train

pytestmark = pytest.mark.skipif(not HAVE_NUMBA, reason="nothing is compiled without numba")


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


def test_each_dropout_layer_has_its_own_draws() -> None:
    torch.manual_seed(0)
    layers = [nn.Linear(6, 50), nn.Dropout(0.4), nn.Linear(50, 20), nn.Dropout(0.25)]
    model = nn.Sequential(*layers, nn.Linear(20, 3))
    chosen = plan(epochs=1, batch_size=8)
    (client,) = clients((6,), 3, (8,))
    found = train(compiled(model, chosen), model, [client])[0]
    draws = client.entropy.stream("dropout").generator().random((8, 50 + 20), np.float32)

    class Dropped(nn.Module):
        def __init__(self, own: np.ndarray, p: float) -> None:
            super().__init__()
            self.mask, self.p = torch.from_numpy(own >= p), p

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.mask / (1 - self.p)

    model[1], model[3] = Dropped(draws[:, :50], 0.4), Dropped(draws[:, 50:], 0.25)
    np.testing.assert_allclose(found, by_loop(model, chosen, [client])[0], atol=1e-6)
