"""Every tensor of a model is averaged, kept or refused, by name."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fedveil.errors import ModelInvalid
from fedveil.learning.weight_layout import Layout, tied_names


class Odd(nn.Module):
    """One tensor of every fate."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4)
        self.frozen = nn.Linear(4, 4)
        self.frozen.requires_grad_(False)
        self.last = nn.Linear(4, 4, bias=False)
        self.tied = nn.Linear(4, 4, bias=False)
        self.tied.weight = self.last.weight
        self.register_buffer("cache", torch.ones(2), persistent=False)
        self.register_buffer("mask", torch.tensor([True, False]))
        self.register_buffer("alike", self.mask)


def test_every_tensor_has_a_fate() -> None:
    model = Odd()
    layout = Layout(model)
    fates = {entry.name: entry.fate for entry in layout.entries}
    assert fates == {
        "first.weight": "parameter",
        "first.bias": "parameter",
        "norm.weight": "parameter",
        "norm.bias": "parameter",
        "last.weight": "parameter",
        "norm.running_mean": "buffer",
        "norm.running_var": "buffer",
    }
    assert set(layout.kept) == {
        "frozen.weight",
        "frozen.bias",
        "norm.num_batches_tracked",
        "cache",
        "mask",
    }
    assert tied_names(model) == {"tied.weight": "last.weight", "alike": "mask"}
    named = {name for name, _ in (*model.named_parameters(), *model.named_buffers())}
    assert set(fates) | set(layout.kept) == named
    assert layout.dimension == 12 + 4 + 4 + 4 + 16 + 4 + 4
    assert layout.trainable.sum() == 12 + 4 + 4 + 4 + 16
    told = " ".join(layout.explain())
    assert "norm.running_mean" in told
    assert "frozen.weight" in told
    assert "norm.num_batches_tracked" in told


def test_write_then_read_gives_the_same_vector_and_restores_what_is_kept() -> None:
    model = Odd()
    layout = Layout(model)
    vector = torch.arange(layout.dimension, dtype=torch.float32)
    with torch.no_grad():
        model.norm.num_batches_tracked.fill_(7)
        model.frozen.weight.zero_()
        model.cache.zero_()
    layout.write(vector)
    np.testing.assert_array_equal(layout.vector(), vector.numpy())
    assert model.norm.num_batches_tracked == 0
    assert model.frozen.weight.any()
    assert model.cache.all()
    assert model.tied.weight is model.last.weight


class Assigns(nn.Module):
    """Its forward pass assigns new tensors to the names of four buffers and a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([2.0, 3.0, 5.0]))
        self.register_buffer("mean", torch.tensor([0.5, 0.25, 4.0]))
        self.register_buffer("steps", torch.tensor(7))
        self.register_buffer("last", torch.ones(3), persistent=False)
        self.inner = nn.Module()
        self.inner.register_buffer("seen", torch.tensor([[6.0], [8.0]]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean = 0.75 * self.mean + 0.25 * x.mean(0)
        self.steps = self.steps + 1
        self.last = x[:2]
        self.inner.seen = self.inner.seen.flip(0)
        self.scale = nn.Parameter(self.scale.detach() + 1)
        return self.scale * x


def test_tensors_that_a_model_assigns_are_averaged_and_do_not_reach_the_next_client() -> None:
    model = Assigns()
    layout = Layout(model)
    start, x = layout.vector(), torch.arange(12.0).reshape(4, 3)
    whole, moved = torch.from_numpy(start), []
    for _ in range(2):
        layout.write(whole)
        model(x)
        model(x)
        out = np.zeros_like(start)
        layout.change(start, out)
        moved.append(out)
    mean = 0.4375 * (x.mean(0) - torch.tensor([0.5, 0.25, 4.0]))
    np.testing.assert_array_equal(moved[0], [2, 2, 2, *mean, 0, 0])
    np.testing.assert_array_equal(moved[1], moved[0])
    layout.write(whole)
    model(x)
    np.testing.assert_array_equal(model.mean, 0.75 * whole[3:6] + 0.25 * x.mean(0))
    assert (model.steps, model.inner.seen.flatten().tolist()) == (8, [8, 6])
    layout.write(whole)
    assert (model.steps, model.last.tolist()) == (7, [1, 1, 1])


@pytest.mark.parametrize(
    ("new", "said"), [(torch.ones(2), r"a tensor of shape \(2,\)"), (None, "None")]
)
def test_an_averaged_tensor_keeps_its_shape(new: torch.Tensor | None, said: str) -> None:
    model = Assigns()
    layout = Layout(model)
    start = layout.vector()
    model.mean = new
    with pytest.raises(ModelInvalid, match=rf"replaces mean, of shape \(3,\), by {said}\. Keep"):
        layout.change(start, np.zeros_like(start))
    layout.write(torch.from_numpy(start))
    np.testing.assert_array_equal(layout.vector(), start)


def test_channels_last_weights_keep_their_place() -> None:
    model = nn.Conv2d(3, 4, 5)
    before = Layout(model).vector()
    after = Layout(model.to(memory_format=torch.channels_last)).vector()
    np.testing.assert_array_equal(before, after)


class Shares(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        base = torch.zeros(10)
        self.one = nn.Parameter(base[:6])
        self.other = nn.Parameter(base[4:])


class Expanded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Parameter(torch.zeros(1).expand(5))


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wave = nn.Parameter(torch.zeros(3, dtype=torch.complex64))


class Sparse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.sparse = nn.Parameter(torch.eye(3).to_sparse())


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (nn.Linear(2, 2).double(), r"weight has type torch\.float64: convert the model"),
        (nn.Linear(2, 2).to(torch.bfloat16), r"weight has type torch\.bfloat16"),
        (Complex(), r"wave has type torch\.complex64"),
        (nn.LazyLinear(3), "weight is not initialised"),
        (Shares(), "one and other share memory"),
        (Expanded(), "wide is an expanded view"),
        (Sparse(), "sparse is sparse, quantised or without memory"),
        (nn.Linear(2, 2, device="meta"), "weight is sparse, quantised or without memory"),
        (nn.ReLU(), "no trainable parameter"),
        (nn.Linear(2, 2).requires_grad_(False), "no trainable parameter"),
    ],
)
def test_what_cannot_be_trained_is_refused_by_name(model: nn.Module, reason: str) -> None:
    with pytest.raises(ModelInvalid, match=reason):
        Layout(model)


def dense(*widths: int) -> nn.Module:
    return nn.Sequential(nn.Linear(*widths), nn.Linear(*widths[::-1]))


@pytest.mark.parametrize(
    ("model", "moves"),
    [
        (dense(16, 32), True),
        (dense(3, 5), False),
        (nn.Conv2d(16, 32, 3), True),
        (nn.Conv2d(16, 32, 3).to(memory_format=torch.channels_last), False),
    ],
)
def test_tensors_move_into_a_vector_if_they_keep_their_alignment_and_strides(
    model: nn.Module, moves: bool
) -> None:
    layout = Layout(model)
    before, vector = layout.vector(), torch.zeros(layout.dimension)
    layout.move_into(vector)
    assert (layout.vector() == before).all()
    vector.zero_()
    assert (layout.vector() == 0).all() == moves
    layout.write(torch.from_numpy(before))
    assert (layout.vector() == before).all()


def test_a_layout_follows_tensors_that_another_layout_has_moved() -> None:
    """A trainer moves them, while an attack or a study has a layout of its own of the model."""
    model = nn.Linear(16, 4, bias=False)
    mine, vector = Layout(model), torch.zeros(64)
    start = mine.vector()
    Layout(model).move_into(vector)
    vector += 1
    assert (mine.vector() == start + 1).all()


@pytest.mark.parametrize("use", ["write", "change"])
def test_each_use_of_a_layout_follows_by_itself(use: str) -> None:
    model = nn.Linear(16, 4, bias=False)
    mine, vector, change = Layout(model), torch.zeros(64), np.empty(64, np.float32)
    start = mine.vector()
    Layout(model).move_into(vector)
    vector += 1
    if use == "write":
        mine.write(torch.full((64,), 7.0))
        assert (model.weight == 7).all()
    else:
        mine.change(start, change)
        np.testing.assert_allclose(change, 1, atol=1e-6)
