"""EmbeddingDP as a torch layer: its output, its gradient, and the arguments that it rejects."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn

from fedveil.entropy import Seeded
from fedveil.errors import InvalidValue
from fedveil.mechanisms import EmbeddingDP
from fedveil.vertical.embedding_layer import EmbeddingDPLayer


def test_it_sends_what_the_mechanism_sends() -> None:
    values = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    layer = EmbeddingDPLayer(1.0, entropy=Seeded(1))
    assert torch.equal(layer(values), EmbeddingDP(1.0)(values, Seeded(1)))
    assert str(layer.loss) == str(EmbeddingDP(1.0).loss)


@pytest.mark.parametrize("eps", [None, 0.0, 1.0])
def test_straight_through_hands_the_gradient_on_unchanged(eps: float | None) -> None:
    values = torch.tensor([[0.5, -2.0, 0.0]], requires_grad=True)
    weights = torch.tensor([[1.0, -3.0, 7.0]])
    (EmbeddingDPLayer(eps)(values) * weights).sum().backward()
    assert torch.equal(values.grad, weights)


def test_gradient_none_hands_nothing_on() -> None:
    values = torch.ones(4, requires_grad=True)
    told = EmbeddingDPLayer(1.0, gradient="none")(values)
    assert not told.requires_grad
    top = nn.Linear(4, 1)
    top(told).sum().backward()
    assert values.grad is None
    assert top.weight.grad is not None


def test_evaluation_is_protected_too() -> None:
    layer = EmbeddingDPLayer(0.0, entropy=Seeded(2)).eval()
    with torch.no_grad():
        ones = layer(torch.ones(10_000)).sum().item()
    assert 4_500 < ones < 5_500


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_shape_and_dtype_are_kept_in_both_directions(dtype: torch.dtype) -> None:
    values = torch.randn(2, 3, 4, requires_grad=True)
    told = EmbeddingDPLayer(5)(values.to(dtype))
    assert (told.shape, told.dtype) == (values.shape, dtype)
    told.sum().backward()
    assert torch.equal(values.grad, torch.ones(2, 3, 4))


def test_the_layer_below_learns_through_it_and_not_without() -> None:
    """Two bits of a point tell on which side of a line it lies, if the layer below learns them."""
    points = torch.randn(512, 2, generator=torch.Generator().manual_seed(3))
    labels = (points @ torch.tensor([2.0, -1.0]) > 0).long()

    def accuracy(gradient: str) -> float:
        with torch.random.fork_rng():
            torch.manual_seed(5)
            model = nn.Sequential(
                nn.Linear(2, 2), EmbeddingDPLayer(gradient=gradient), nn.Linear(2, 2)
            )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
        for _ in range(100):
            outputs = model(points)
            optimizer.zero_grad()
            nn.functional.cross_entropy(outputs, labels).backward()
            optimizer.step()
        return (outputs.argmax(1) == labels).float().mean().item()

    assert accuracy("straight_through") > 0.9
    assert accuracy("none") < 0.8


def test_it_can_be_copied_and_stored_where_secure_randomness_is_drawn() -> None:
    layer = EmbeddingDPLayer(1.0, gradient="none")
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert other(torch.ones(5)).shape == (5,)
        assert other.extra_repr() == "eps=1.0, gradient=none"
    assert not layer.state_dict()


def test_bad_arguments_get_a_sentence() -> None:
    with pytest.raises(InvalidValue, match="eps = -1 is outside"):
        EmbeddingDPLayer(-1)
    with pytest.raises(InvalidValue, match="gradient = 'clipped' is not one of"):
        EmbeddingDPLayer(1.0, gradient="clipped")
    with pytest.raises(InvalidValue, match="value 1 of 2 is NaN"):
        EmbeddingDPLayer(1.0)(torch.tensor([0.0, torch.nan]))


@pytest.mark.parametrize("gradient", ["straight_through", "none"])
def test_bits_are_drawn_from_the_entropy_that_is_given(gradient: Any) -> None:
    values = torch.zeros(3, 41)
    first, again, other = (
        EmbeddingDPLayer(0.5, gradient, Seeded(seed))(values) for seed in (4, 4, 5)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
