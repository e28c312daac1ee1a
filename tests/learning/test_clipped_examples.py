"""One step of clipped examples: against autograd one example at a time, and who is in a batch."""

from __future__ import annotations

import copy
import math
import re

import numpy as np
import pytest
import torch
from torch import nn

from fedveil.entropy import Seeded
from fedveil.errors import ModelInvalid
from fedveil.learning import clipped_examples, linear_head
from fedveil.learning.clipped_examples import ClippedExamplesTrainer
from fedveil.learning.linear_head import LinearHead
from fedveil.learning.losses import mean_loss
from fedveil.learning.models import lenet_smooth
from fedveil.learning.token_layers import beyond_is_nan
from fedveil.learning.trainer import ClientData
from fedveil.learning.weight_layout import Layout
from fedveil.privacy.grid_sensitivity import clip_within, grid_step
from training_parts import clients, plan, tied, train


def linear(bias: bool = True) -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 4, bias=bias))


def dense() -> nn.Module:
    torch.manual_seed(4)
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 6), nn.Tanh(), nn.Linear(6, 4))


class Normalised(nn.Module):
    """A model with a frozen parameter, and a persistent buffer that training leaves alone."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.head = nn.Linear(12, 4)
        self.scale = nn.Parameter(torch.full((12,), 0.5), requires_grad=False)
        self.register_buffer("centre", torch.linspace(0, 1, 12))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head((x.flatten(1) - self.centre) * self.scale)


def smooth() -> nn.Module:
    torch.manual_seed(6)
    return lenet_smooth((1, 3, 4), 4)


MODELS = [linear, lambda: linear(bias=False), dense, Normalised, smooth]
ROOM = (1, 3, 4)


def batch_of(client: ClientData, rate: float) -> np.ndarray:
    return np.flatnonzero(client.entropy.stream("batch").bernoulli(rate, len(client)))


def by_hand(model: nn.Module, client: ClientData, rate: float, clip: float) -> np.ndarray:
    """Autograd, one example at a time, in the plan's own learning rate and divisor."""
    model = copy.deepcopy(model).train()
    layout, total = Layout(model), np.zeros(Layout(model).dimension)
    for i in batch_of(client, rate):
        model.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(model(client.x[i : i + 1]), client.y[i : i + 1]).backward()
        step = np.zeros_like(total)
        for entry in layout.entries:
            if entry.fate == "parameter":
                step[entry.start : entry.stop] = entry.tensor.grad.flatten().double().numpy()
        step *= -plan().lr / plan().batch_size
        total += step * min(1.0, clip / np.linalg.norm(step))
    return total


@pytest.mark.parametrize("model", [make() for make in MODELS], ids=range(len(MODELS)))
@pytest.mark.parametrize("clip", [math.inf, 10.0, 0.02, 1e-4])
def test_it_is_the_sum_of_clipped_gradients(model: nn.Module, clip: float) -> None:
    cohort = clients(ROOM, 4, (200, 90, 1))
    found = train(
        ClippedExamplesTrainer(copy.deepcopy(model), plan(epochs=1), rate=0.4, clip=clip),
        model,
        cohort,
    )
    for client, update in zip(cohort, found, strict=True):
        if clip == math.inf:
            expected, step = by_hand(model, client, 0.4, clip), 0.0
        else:  # less than a hundredth of the clip is kept for rounding
            expected = by_hand(model, client, 0.4, clip_within(clip, len(update)))
            step = grid_step(clip, len(update))
        np.testing.assert_allclose(update, expected, atol=2e-6 + step / 2)
    assert np.linalg.norm(found[0]) > 0


def test_features_alone_decide_for_a_linear_head() -> None:
    """The closed form and `torch.func` agree."""
    model = linear()
    cohort = clients(ROOM, 4, (150,))
    closed = ClippedExamplesTrainer(copy.deepcopy(model), plan(), rate=0.5, clip=0.05)
    general = ClippedExamplesTrainer(copy.deepcopy(model), plan(), rate=0.5, clip=0.05)
    assert isinstance(closed._sums, LinearHead)
    general._sums = clipped_examples._AnyModel(
        copy.deepcopy(model), mean_loss("cross_entropy"), "cpu"
    )
    updates = train(closed, model, cohort), train(general, model, cohort)
    np.testing.assert_allclose(*updates, atol=1e-6)


@pytest.mark.parametrize("make", [linear, dense])
def test_one_example_moves_the_update_by_at_most_the_clip(make: object) -> None:
    """Each of a batch left out in turn; the steps are so long that every one is clipped."""
    model, clip = make(), 0.3  # type: ignore[operator]
    (client,) = clients(ROOM, 4, (24,))
    steep = plan(lr=1e4)
    trainer = ClippedExamplesTrainer(copy.deepcopy(model), steep, rate=1.0, clip=clip)
    (whole,) = train(trainer, model, [client])
    lengths = []
    for left_out in range(24):
        kept = [i for i in range(24) if i != left_out]
        rest = ClientData(client.x[kept], client.y[kept], client.entropy)
        (without,) = train(trainer, model, [rest])
        lengths.append(np.linalg.norm(whole.astype(np.float64) - without))
    assert 0.97 * clip < max(lengths) <= clip


class Remembers(nn.Module):
    """A model that subtracts the mean of the examples that it has seen before."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.head, self.count = nn.Linear(12, 4), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.flatten(1)
        out = self.head(x - self.mean()) / (1 + self.count)
        self.see(x.detach().mean(0))
        self.count += 1
        return out

    def mean(self) -> torch.Tensor:
        raise NotImplementedError

    def see(self, mean: torch.Tensor) -> None:
        raise NotImplementedError


class InAnAttribute(Remembers):
    def __init__(self) -> None:
        super().__init__()
        self.seen = torch.zeros(12)

    def mean(self) -> torch.Tensor:
        return self.seen

    def see(self, mean: torch.Tensor) -> None:
        self.seen = 0.9 * self.seen + mean


class InAList(Remembers):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[torch.Tensor] = []

    def mean(self) -> torch.Tensor:
        return sum(self.seen, torch.zeros(12))

    def see(self, mean: torch.Tensor) -> None:
        self.seen.append(mean)


class InADict(InAList):
    def __init__(self) -> None:
        super().__init__()
        self.known: dict[str, torch.Tensor] = {"mean": torch.zeros(12)}

    def mean(self) -> torch.Tensor:
        return self.known["mean"]

    def see(self, mean: torch.Tensor) -> None:
        self.known["mean"] = self.known["mean"] + mean


def spectral() -> nn.Module:
    """Each call changes buffers in place."""
    torch.manual_seed(8)
    norm = nn.utils.parametrizations.spectral_norm
    return nn.Sequential(nn.Flatten(), norm(nn.Linear(12, 6)), nn.Tanh(), nn.Linear(6, 4))


@pytest.mark.parametrize("make", [InAnAttribute, InAList, InADict])
def test_an_example_that_the_model_remembers_moves_no_other(
    make: type[nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clipped_examples, "_AT_ONCE", 3)
    model, clip = make(), 0.004
    (client,) = clients(ROOM, 4, (50,))
    other = client.x.clone()
    other[0] = 1e4
    trainer = ClippedExamplesTrainer(copy.deepcopy(model), plan(lr=100.0), rate=1.0, clip=clip)
    pair = [client, ClientData(other, client.y, client.entropy)]
    one, two = (train(trainer, model, [each])[0].astype(np.float64) for each in pair)
    assert 0 < np.linalg.norm(one - two) <= 2 * clip


@pytest.mark.parametrize("make", [InAnAttribute, InAList, InADict, spectral])
def test_a_group_of_examples_does_not_depend_on_how_many_came_before(
    make: type[nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clipped_examples, "_AT_ONCE", 8)
    model = make()
    (client,) = clients(ROOM, 4, (24,))
    trainer = ClippedExamplesTrainer(copy.deepcopy(model), plan(), rate=1.0)
    start = Layout(model).vector()
    before = start.copy()
    found = []
    for part in (slice(0, 24), slice(0, 8), slice(8, 24)):
        some = ClientData(client.x[part], client.y[part], client.entropy)
        trainer.start(start)
        ((rows, (failure,)),) = trainer.train([some])
        assert failure is None
        found.append(rows[0].copy())
    np.testing.assert_allclose(found[0], found[1] + found[2], atol=1e-6)
    np.testing.assert_array_equal(start, before)


def test_who_is_in_a_batch_is_drawn_with_the_rate() -> None:
    """Examples whose features tell them apart in the update of a model without bias."""
    torch.manual_seed(0)
    model, size = nn.Linear(40, 3, bias=False), 40
    x, y = torch.eye(size), torch.zeros(size, dtype=torch.int64)
    trainer = ClippedExamplesTrainer(model, plan(), rate=0.3, clip=math.inf)
    trainer.start(Layout(model).vector())
    counts = np.zeros(size)
    for turn in range(500):
        ((row, _),) = trainer.train([ClientData(x, y, Seeded(turn))])
        counts += row[0].reshape(3, size).any(axis=0)
    assert abs(counts.sum() - 500 * size * 0.3) < 5 * math.sqrt(500 * size * 0.21)
    assert abs(counts - 150).max() < 5 * math.sqrt(500 * 0.21)


def test_the_same_stream_gives_the_same_bytes_and_another_gives_others() -> None:
    model = dense()
    trainer = ClippedExamplesTrainer(copy.deepcopy(model), plan(), rate=0.5, clip=0.1)
    (client,) = clients(ROOM, 4, (50,))
    other = ClientData(client.x, client.y, Seeded(99))
    first, again, else_ = (train(trainer, model, [c]) for c in (client, client, other))
    assert first.tobytes() == again.tobytes() != else_.tobytes()


@pytest.mark.parametrize("size", [4, 5])
def test_a_batch_is_no_larger_than_its_error_allows(
    monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(clipped_examples, "MOST", 4)
    trainer = ClippedExamplesTrainer(linear(), plan(), rate=1.0, clip=0.1)
    trainer.start(Layout(linear()).vector())
    ((_, (failure,)),) = trainer.train(clients(ROOM, 4, (size,)))
    assert (failure is None) == (size == 4)
    assert size == 4 or "a batch of 5 examples is larger than 4" in str(failure)


@pytest.mark.parametrize("make", [linear, dense])
@pytest.mark.parametrize("clip", [0.1, math.inf])
def test_an_empty_batch_is_an_update_of_zeros(make: object, clip: float) -> None:
    model = make()  # type: ignore[operator]
    trainer = ClippedExamplesTrainer(copy.deepcopy(model), plan(), rate=1e-12, clip=clip)
    assert not train(trainer, model, clients(ROOM, 4, (30,))).any()


@pytest.mark.parametrize("make", [linear, dense])
@pytest.mark.parametrize("broken", ["nan", "inf", "huge", "label", "negative"])
def test_an_example_without_a_finite_gradient_counts_for_nothing(make: object, broken: str) -> None:
    """Whatever is wrong with one example changes nothing of what the others add."""
    model = make()  # type: ignore[operator]
    (client,) = clients(ROOM, 4, (70,))
    trainer = ClippedExamplesTrainer(copy.deepcopy(model), plan(), rate=1.0, clip=0.05)
    kept = [i for i in range(70) if i != 11]
    (rest,) = train(trainer, model, [ClientData(client.x[kept], client.y[kept], client.entropy)])
    values = {"nan": math.nan, "inf": math.inf, "huge": 3e38}
    if broken in values:
        client.x[11] = values[broken]
    else:
        client.y[11] = 4 if broken == "label" else -100
    (found,) = train(trainer, model, [client])
    contributes = broken == "huge"  # finite in float64, and clipped like any other
    assert np.linalg.norm(found - rest) <= (0.05 if contributes else 1e-6)
    assert np.linalg.norm(rest) > 0.1


class LooksUp(nn.Module):
    """Draws at random, and has a table of four rows; `plainly`: torch itself looks up in it."""

    def __init__(self, plainly: bool) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.table, self.head = nn.Embedding(4, 6), nn.Linear(6, 3)
        self.plainly = plainly

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        look = nn.functional.embedding if self.plainly else lambda x, _: self.table(x)
        found = nn.functional.dropout(look(x, self.table.weight).mean(1), 0.5)
        return self.head(found)


@pytest.mark.parametrize("plainly", [True, False])
@pytest.mark.parametrize("where", [0, 11, 63, 64, 149])
def test_the_others_of_a_batch_are_the_same_bytes_beside_an_example_that_cannot_be_taken(
    plainly: bool, where: int
) -> None:
    """An unusable example changes neither the others' random numbers nor their place."""
    model = LooksUp(plainly)
    draw = Seeded(8).generator()
    x = torch.from_numpy(draw.integers(0, 4, (150, 3)))
    y = torch.from_numpy(draw.integers(0, 3, 150))
    trainer = ClippedExamplesTrainer(copy.deepcopy(model), plan(), rate=1.0, clip=0.05)
    usable = np.arange(150) != where
    (rest,) = train(trainer, model, [ClientData(x, y, Seeded(9), usable=usable)])
    assert np.linalg.norm(rest) > 0.3
    for token in (4, -1, 2**62):
        beyond = x.clone()
        beyond[where, 1] = token
        (found,) = train(trainer, model, [ClientData(beyond, y, Seeded(9))])
        assert found.tobytes() == rest.tobytes()
    fewer = np.arange(150) != where ^ 1  # another one, of the same block, was not usable before
    both = ClientData(x, y, Seeded(9), usable=usable & fewer)
    marked = ClientData(beyond, y, Seeded(9), usable=fewer)
    first, second = (train(trainer, model, [client])[0] for client in (both, marked))
    assert first.tobytes() == second.tobytes()
    (whole,) = train(trainer, model, [ClientData(x, y, Seeded(9))])
    assert 0 < np.linalg.norm(whole - rest) <= 0.05


def test_each_block_and_each_example_of_a_batch_has_draws_of_its_own() -> None:
    """Every example is the same, and 64 are trained at once. Only their dropout differs."""
    model, size = LooksUp(plainly=False), 128
    x, y = torch.ones((size, 3), dtype=torch.int64), torch.ones(size, dtype=torch.int64)
    trainer = ClippedExamplesTrainer(copy.deepcopy(model), plan(), rate=1.0, clip=0.05)
    place = np.arange(size)
    for pair in ((place < 64, place >= 64), (place < 32, (place >= 32) & (place < 64))):
        first, second = (
            train(trainer, model, [ClientData(x, y, Seeded(9), usable=part)]) for part in pair
        )
        assert first.tobytes() != second.tobytes()
        assert first.any()


def test_a_table_gives_nothing_for_what_it_does_not_have() -> None:
    model = LooksUp(plainly=False)
    with beyond_is_nan(model):
        found = model.table(torch.tensor([[3, 4], [-1, 0]]))
        assert torch.isnan(found).all(-1).tolist() == [[False, True], [True, False]]
        assert torch.equal(found[0, 0], model.table.weight[3])
    with pytest.raises(IndexError):
        model.table(torch.tensor([4]))
    with pytest.raises(ZeroDivisionError), beyond_is_nan(model):
        raise ZeroDivisionError
    with pytest.raises(IndexError):
        model.table(torch.tensor([4]))


def test_no_learning_rate_undoes_the_clip(monkeypatch: pytest.MonkeyPatch) -> None:
    """The squares of a very small gradient are no float64, and its norm is not their sum."""
    (client,) = clients(ROOM, 4, (2,))
    client.x[:], client.y[:] = 0.0, 0
    kernel = linear_head._add_linear
    for score in (280.0, 370.0, 400.0):
        model = linear()
        with torch.no_grad():
            model[1].weight.zero_()  # type: ignore[index, operator]
            model[1].bias.copy_(torch.tensor([score, 0, 0, 0]))  # type: ignore[index, union-attr]
        trainer = ClippedExamplesTrainer(model, plan(lr=1e250), rate=1.0, clip=0.3)
        (update,) = train(trainer, model, [client])
        assert np.linalg.norm(update) <= 0.6
        with monkeypatch.context() as patch:
            patch.setattr(linear_head, "_add_linear", kernel.numpy_path)  # type: ignore[attr-defined]
            assert train(trainer, model, [client])[0].tobytes() == update.tobytes()


@pytest.mark.parametrize("make", [linear, dense])
def test_an_example_that_is_not_usable_counts_for_nothing(make: object) -> None:
    model = make()  # type: ignore[operator]
    (client,) = clients(ROOM, 4, (70,))
    usable = np.arange(70) % 3 > 0
    trainer = ClippedExamplesTrainer(copy.deepcopy(model), plan(), rate=1.0, clip=0.05)
    marked = ClientData(client.x, client.y, client.entropy, usable=usable)
    rest = ClientData(client.x[usable], client.y[usable], client.entropy)
    found, expected = (train(trainer, model, [c])[0] for c in (marked, rest))
    np.testing.assert_allclose(found, expected, atol=1e-6)
    nobody = ClientData(client.x, client.y, client.entropy, usable=usable & False)
    assert not train(trainer, model, [nobody])[0].any()


def test_a_model_that_no_example_can_be_taken_alone_in_fails() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(12, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise RuntimeError(f"no {x.ndim} dimensions")

    model = Counts()
    trainer = ClippedExamplesTrainer(model, plan(), rate=1.0, clip=0.05)
    trainer.start(Layout(model).vector())
    ((_, (failure,)),) = trainer.train(clients(ROOM, 4, (5,)))
    assert type(failure) is RuntimeError
    assert str(failure) == "no 4 dimensions"


class Branching(nn.Module):
    """A model that torch can differentiate, and vmap cannot follow."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.head, self._how = nn.Linear(12, 4), how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.head(x.flatten(1))
        if self._how == "item":
            return out * x.abs().max().item()
        if self._how == "if":
            return out if x.sum() > 0 else -out
        room = torch.zeros(1, 4)
        room += out
        return room


@pytest.mark.parametrize("how", ["item", "if", "write"])
def test_a_model_that_vmap_cannot_follow_is_told_so_in_one_sentence(how: str) -> None:
    model = Branching(how)
    trainer = ClippedExamplesTrainer(model, plan(), rate=1.0, clip=0.05)
    trainer.start(Layout(model).vector())
    ((_, (failure,)),) = trainer.train(clients(ROOM, 4, (5,)))
    assert isinstance(failure, ModelInvalid)
    said = str(failure)
    assert said.startswith("privacy.unit = example needs the gradient of every example, which ")
    assert len(said.splitlines()) == said.count("vmap") == 1
    assert isinstance(failure.__cause__, RuntimeError)


def test_tied_weights_are_one() -> None:
    model = tied()
    (client,) = clients((8,), 8, (40,))
    trainer = ClippedExamplesTrainer(copy.deepcopy(model), plan(), rate=0.5, clip=0.02)
    (found,) = train(trainer, model, [client])
    expected = by_hand(model, client, 0.5, clip_within(0.02, len(found)))
    np.testing.assert_allclose(found, expected, atol=2e-6 + grid_step(0.02, len(found)) / 2)


def test_batch_normalisation_is_refused() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 4), nn.BatchNorm1d(4))
    with pytest.raises(ModelInvalid) as refusal:
        ClippedExamplesTrainer(model, plan(), rate=0.5, clip=1.0)
    assert str(refusal.value) == (
        "privacy.unit = example needs every example's own gradient, but BatchNorm (2) mixes the "
        "examples of a batch. Use GroupNorm or none"
    )


def test_the_numpy_path_gives_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = linear_head._add_linear
    if not hasattr(kernel, "numpy_path"):
        pytest.skip("numba is not here")
    (client,) = clients(ROOM, 4, (60,))
    client.x[3], client.x[4], client.y[5], client.y[6] = math.nan, 1e30, 9, -100
    for model in (linear(), linear(bias=False)):
        trainer = ClippedExamplesTrainer(model, plan(), rate=0.8, clip=0.01)
        compiled = train(trainer, model, [client])
        with monkeypatch.context() as patch:
            patch.setattr(linear_head, "_add_linear", kernel.numpy_path)
            assert train(trainer, model, [client]).tobytes() == compiled.tobytes()


def test_the_closed_form_is_for_one_dense_layer_and_nothing_random() -> None:
    """Dropout before the layer changes the inputs that an example's gradient is made of."""
    plain = nn.Sequential(nn.Flatten(), nn.Linear(6, 3))
    assert LinearHead.of(plain, Layout(plain)) is not None
    for more in (nn.Dropout(0.3), nn.ReLU(), nn.Linear(6, 6)):
        model = nn.Sequential(nn.Flatten(), more, nn.Linear(6, 3))
        assert LinearHead.of(model, Layout(model)) is None
    rows, of_rows = nn.Sequential(nn.Linear(4, 2), nn.Flatten()), (nn.Flatten(2), nn.Linear(4, 2))
    for model in (rows, nn.Sequential(*of_rows)):  # the layer takes each row by itself
        assert LinearHead.of(model, Layout(model)) is None
    (client,) = clients(ROOM, 4, (30,))
    (found,) = train(ClippedExamplesTrainer(copy.deepcopy(rows), plan(), rate=0.7), rows, [client])
    np.testing.assert_allclose(found, by_hand(rows, client, 0.7, math.inf), atol=2e-6)


@pytest.mark.parametrize(
    "model",
    [
        nn.Linear(4, 4),  # each row of an image by itself
        nn.Sequential(nn.Identity(), nn.Linear(4, 4)),
        nn.Sequential(nn.Flatten(), nn.Linear(11, 4)),  # an example has 12 numbers
        nn.Sequential(nn.Flatten(), nn.Linear(13, 4)),
    ],
)
def test_a_dense_layer_that_images_do_not_fit_is_refused(model: nn.Module) -> None:
    """The closed form would read only a part of each image, or beyond its end."""
    trainer = ClippedExamplesTrainer(model, plan(), rate=1.0, clip=0.05)
    assert isinstance(trainer._sums, LinearHead)
    trainer.start(Layout(model).vector())
    ((update, (failure,)),) = trainer.train(clients(ROOM, 4, (5,)))
    assert isinstance(failure, RuntimeError | ValueError)
    assert re.search(r"Index tensor|target|shape", str(failure))
    assert not update.any()


def test_a_dense_layer_without_flatten_takes_flat_examples() -> None:
    model = nn.Linear(12, 4)
    (client,) = clients((12,), 4, (30,))
    trainer = ClippedExamplesTrainer(copy.deepcopy(model), plan(), rate=0.7, clip=0.05)
    (found,) = train(trainer, model, [client])
    assert isinstance(trainer._sums, LinearHead)
    expected = by_hand(model, client, 0.7, clip_within(0.05, len(found)))
    np.testing.assert_allclose(found, expected, atol=2e-6 + grid_step(0.05, len(found)) / 2)


def test_batch_normalisation_is_found_inside_other_modules() -> None:
    inner = nn.Sequential(nn.Linear(12, 4), nn.BatchNorm1d(4))
    with pytest.raises(ModelInvalid, match=r"BatchNorm \(1\.1\) mixes"):
        ClippedExamplesTrainer(nn.Sequential(nn.Flatten(), inner), plan(), rate=0.5, clip=1.0)


@pytest.mark.parametrize("make", [linear, dense])
def test_an_examples_gradient_is_multiplied_by_the_weight_of_its_class(make: object) -> None:
    weights = (0.5, 1.0, 4.0, 2.0)
    weighted = plan(loss="weighted_cross_entropy", class_weights=weights)
    (client,) = clients(ROOM, 4, (30,))
    for label in (0, 2):
        client.y[:] = label
        model = make()  # type: ignore[operator]
        plain, found = (
            train(ClippedExamplesTrainer(make(), chosen, rate=0.7, clip=math.inf), model, [client])  # type: ignore[operator]
            for chosen in (plan(), weighted)
        )
        np.testing.assert_allclose(found, weights[label] * plain, rtol=1e-4, atol=1e-7)


def test_a_model_larger_than_the_memory_for_gradients_takes_examples_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, (client,) = dense(), clients(ROOM, 4, (9,))
    chosen = plan(epochs=1)
    wanted = train(ClippedExamplesTrainer(model, chosen, rate=0.7, clip=0.3), model, [client])
    monkeypatch.setattr(clipped_examples, "_ENTRIES", Layout(model).dimension - 1)
    trainer = ClippedExamplesTrainer(model, chosen, rate=0.7, clip=0.3)
    assert isinstance(trainer._sums, clipped_examples._AnyModel)
    np.testing.assert_allclose(train(trainer, model, [client]), wanted, atol=1e-6)
    assert trainer._sums._at_once == 1


def test_a_hook_of_the_models_own_sees_that_a_token_is_unknown() -> None:
    table, seen = nn.Embedding(4, 3), list[torch.Tensor]()
    table.register_forward_hook(lambda module, given, found: seen.append(found))
    with beyond_is_nan(table):
        table(torch.tensor([5, 2, -1]))
    assert torch.isnan(seen[0]).all(1).tolist() == [True, False, True]
