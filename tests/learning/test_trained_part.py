"""A model of which only the head is trained: which part that is, and what it sees."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

from fedveil.entropy import Seeded
from fedveil.errors import ModelInvalid
from fedveil.learning.models import filters_linear, scattering_linear
from fedveil.learning.trained_part import TrainedPart, as_floats, only_head
from fedveil.learning.weight_layout import Layout


class Named(nn.Module):
    """A model that names its parts, with a tensor of every fate in what is fixed."""

    def __init__(self, factor: float = 1.0, *, flattens: bool = False) -> None:
        super().__init__()
        self.flattens = flattens
        self.features = nn.Sequential(
            nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5)
        )
        self.head = nn.Linear(8, 3)
        self.factor = factor

        if flattens:
            self.features.append(nn.Unflatten(1, (2, 4)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = self.features(x)
        return self.factor * self.head(features.flatten(1) if self.flattens else features)


def convolutions() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(3 * 36, 20), nn.Tanh(),
        nn.Linear(20, 4),
    )  # fmt: skip


def test_a_weight_that_was_fixed_in_the_head_stays_fixed() -> None:
    model = Named()
    model.head.bias.requires_grad_(False)
    head = only_head(model).get_submodule("head")
    assert {name: p.requires_grad for name, p in head.named_parameters()} == {
        "weight": True,
        "bias": False,
    }


def test_a_head_that_shares_only_its_bias_is_refused() -> None:
    model = nn.Sequential(nn.Linear(6, 3), nn.Tanh(), nn.Linear(3, 3))
    model[2].bias = model[0].bias
    with pytest.raises(ModelInvalid, match="the head shares a weight with the layers before it"):
        only_head(model)


def test_a_head_reads_one_row_of_features_of_an_example() -> None:
    """Here it reads four rows, each as long as there are rows."""
    model = only_head(nn.Sequential(nn.Linear(6, 16), nn.Unflatten(1, (4, 4)), nn.Linear(4, 3)))
    with pytest.raises(ModelInvalid, match=r"scores differ from head\(features\(x\)\)"):
        TrainedPart.of(model).inputs(images(2, 6))


@pytest.mark.parametrize("kind", [np.uint8, np.int16, np.bool_])
def test_small_whole_numbers_are_held_as_they_are(kind: type[np.generic]) -> None:
    x = np.arange(12).reshape(2, 6).astype(kind)
    part = TrainedPart.of(nn.Linear(6, 3))
    assert part.stored_inputs(x) is x
    np.testing.assert_array_equal(as_floats(x), part.inputs(x))
    assert as_floats(x).dtype == np.float32
    for wide in (np.int32, np.int64, np.float64):  # which are not smaller than float32
        assert part.stored_inputs(x.astype(wide)).dtype == np.float32
    assert TrainedPart.of(only_head(Named())).stored_inputs(x).dtype == np.float32


def test_what_is_looked_up_is_never_small() -> None:
    """A table takes whole numbers of 64 bits, which nobody makes floats of."""
    x = np.arange(6, dtype=np.uint8).reshape(2, 3)
    for table in (nn.Embedding(6, 2), nn.EmbeddingBag(6, 2)):
        held = TrainedPart.of(nn.Sequential(table, nn.Flatten())).stored_inputs(x)
        assert held.dtype == as_floats(held).dtype == np.int64


def images(count: int, *shape: int) -> np.ndarray:
    return Seeded(0).generator().standard_normal((count, *shape), dtype=np.float32)


def test_the_head_travels_and_nothing_before_it() -> None:
    model = only_head(Named())
    part = TrainedPart.of(model)
    for layout in (Layout(model), Layout(part.module)):
        assert [entry.tensor.shape for entry in layout.entries] == [(3, 8), (3,)]
        assert layout.dimension == 27
    assert {"features.1.running_mean", "features.0.weight"} <= set(Layout(model).kept)
    assert part.module is model.head
    assert TrainedPart.of(copy.deepcopy(model)).features is not None
    assert TrainedPart.of(Named()).features is None


def test_a_chain_ends_in_its_head() -> None:
    model = convolutions()
    part = TrainedPart.of(only_head(model))
    assert part.module is model[-1]
    assert Layout(model).dimension == 20 * 4 + 4


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (Named(), (6,)),
        (convolutions(), (1, 8, 8)),
        (filters_linear((1, 28, 28), 10), (1, 28, 28)),
        (scattering_linear((1, 28, 28), 10), (1, 28, 28)),
    ],
    ids=["named", "convolutions", "filters", "scattering"],
)
def test_features_are_the_same_bytes_in_any_company(
    model: nn.Module, shape: tuple[int, ...]
) -> None:
    part = TrainedPart.of(only_head(model).train())
    x = images(37, *shape)
    together = part.inputs(x)
    assert model.training  # what the run's own model is doing is left alone
    for rows in ([0], [36], [5, 30, 7], range(16, 36)):
        assert part.inputs(x[list(rows)]).tobytes() == together[list(rows)].tobytes()
    whole = model.eval()(torch.from_numpy(x))
    of_features = part.module(torch.from_numpy(together))
    torch.testing.assert_close(of_features, whole, rtol=1e-4, atol=1e-5)


def test_nothing_is_computed_where_all_is_trained() -> None:
    x = images(3, 6)
    assert TrainedPart.of(Named()).inputs(x) is x


@pytest.mark.parametrize("number", [2**24 + 1, -(2**24) - 1])
def test_whole_numbers_that_float32_does_not_have_are_refused(number: int) -> None:
    part, x = TrainedPart.of(nn.Linear(6, 3)), np.zeros((2, 6), np.int64)
    x[1, 4] = number - np.sign(number)
    assert part.inputs(x).tolist() == x.tolist()
    x[1, 4] = number
    with pytest.raises(ModelInvalid, match=r"integers beyond 2\^24"):
        part.inputs(x)
    assert part.inputs(x[:0]).shape == (0, 6)


def test_features_are_computed_alone_if_any_layer_asks_for_that() -> None:
    """The filters take several images at once, and other layers do not."""
    filters = filters_linear((1, 28, 28), 10)[0]
    head = nn.Linear(filters.outputs, 10)
    for layers, at_once in (([filters], 16), ([filters, nn.Tanh()], 1)):
        part = TrainedPart.of(only_head(nn.Sequential(*layers, head)))
        assert part._fixed(images(1, 1, 28, 28), "cpu").at_once == at_once


class Scaling(nn.Module):
    """A fixed layer that scales by the largest number that it has seen, from 100 on."""

    def __init__(self) -> None:
        super().__init__()
        self.largest, self.all = torch.ones(()), list[torch.Tensor]()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = x / self.largest - sum(self.all, torch.zeros(6))
        if x.abs().max() > 100:
            self.largest = torch.maximum(self.largest, x.abs().max())
            self.all.append(x.mean(0))
        return out


def test_a_fixed_layer_that_remembers_an_example_changes_no_other() -> None:
    torch.manual_seed(2)
    part = TrainedPart.of(only_head(nn.Sequential(Scaling(), nn.Linear(6, 5), nn.Linear(5, 3))))
    x = np.random.default_rng(4).normal(size=(7, 6)).astype(np.float32)
    other = x.copy()
    other[2] = 1e6
    usable = np.ones(7, np.bool_)
    one, two = (part.usable_inputs(each, usable)[0] for each in (x, other))
    rest = np.arange(7) != 2
    np.testing.assert_array_equal(one[rest], two[rest])
    assert (one[2] != two[2]).any()


def test_an_example_with_one_feature_that_is_not_finite_is_not_usable() -> None:
    doubled = nn.Linear(2, 2, bias=False)
    doubled.weight.data = 2 * torch.eye(2)
    part = TrainedPart.of(only_head(nn.Sequential(doubled, nn.Linear(2, 3))))
    x = np.array([[1, 4], [3e38, 4], [3e38, 3e38], [0, -1]], np.float32)
    before = np.array([True, True, True, False])
    seen, usable = part.usable_inputs(x, before)
    assert usable.tolist() == [True, False, False, False]
    assert before.tolist() == [True, True, True, False]
    assert seen.tolist() == [[2, 8], [0, 0], [0, 0], [0, 0]]


UNTOLD = (
    "training.train = head needs a model whose head can be recognised: an nn.Sequential that "
    "ends in an nn.Linear, or a module with the attributes `features`, a module, and `head`, an "
    "nn.Linear, that returns head(features(x))"
)


@pytest.mark.parametrize(
    "model",
    [nn.Linear(6, 3), nn.Sequential(), nn.Sequential(nn.Linear(6, 3), nn.Softmax(1))],
    ids=["a layer", "nothing", "ends in another layer"],
)
def test_a_model_without_a_head_that_can_be_told_is_refused(model: nn.Module) -> None:
    with pytest.raises(ModelInvalid) as told:
        only_head(model)
    assert str(told.value) == UNTOLD


def test_a_head_that_is_tied_to_what_is_fixed_is_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    model[2].weight = model[0].weight
    with pytest.raises(ModelInvalid) as told:
        only_head(model)
    assert str(told.value) == (
        "training.train = head: the head shares a weight with the layers before it, which must "
        "stay fixed. Give the head a weight of its own"
    )


class Beside(Named):
    """A model whose input is also added to its scores."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + x[:, 3:]


@pytest.mark.parametrize("model", [Named(factor=2.0), Named(flattens=True), Beside()])
def test_a_model_that_does_more_than_its_head_is_refused(model: nn.Module) -> None:
    with pytest.raises(ModelInvalid) as told:
        TrainedPart.of(only_head(model)).inputs(images(2, 6))
    assert str(told.value) == (
        "training.train = head: the model's scores differ from head(features(x)). Its forward pass "
        "must do nothing else"
    )


class Casts(nn.Module):
    """Looks up the whole part of each number, and adds its fraction."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.table(x.long()).sum(2) + x - x.floor()


def test_a_model_with_a_table_that_takes_fractions_gets_them() -> None:
    x, usable = np.array([[0.5, 3], [2, 7.25]]), np.array([True, True])
    seen, whole = TrainedPart.of(Casts()).usable_inputs(x, usable)
    assert (seen.tolist(), seen.dtype, whole.tolist()) == (x.tolist(), np.float32, [True] * 2)
    plain = TrainedPart.of(nn.Sequential(nn.Embedding(9, 2), nn.Flatten()))
    seen, whole = plain.usable_inputs(x, usable)
    assert (seen.dtype, whole.tolist()) == (np.int64, [False, False])


def test_a_token_that_the_fixed_table_does_not_have_gives_no_number() -> None:
    """An error would end the training of every client on a GPU."""
    table = nn.Sequential(nn.Embedding(4, 3), nn.Flatten())
    part = TrainedPart.of(only_head(nn.Sequential(*table, nn.Linear(6, 2))))
    seen = part.inputs(np.array([[1, 3], [4, 0], [2, -1]]))
    assert np.isnan(seen).any(1).tolist() == [False, True, True]
