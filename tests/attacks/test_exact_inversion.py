"""A batch from one gradient, exactly or not at all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from test_membership import job as table_job
from torch import nn

from fedveil.attacks import exact_inversion
from fedveil.attacks.effort import Watch
from fedveil.attacks.exact_inversion import (
    DenseGradient,
    attack,
    first_layer,
    invert,
    of_report,
    one_step,
    recovered,
    recovered_of_batches,
)
from fedveil.attacks.target import Target
from fedveil.data.partition import Partition
from fedveil.errors import AttackImpossible
from fedveil.federated.job import Job
from fedveil.privacy.finding import Measured
from fedveil.protections.reading import Reading
from fedveil.starter import ATTACKED_JOBS


def batch_and_gradient(
    size: int, noise: float = 0.0, neurons: int = 60
) -> tuple[np.ndarray, DenseGradient]:
    """A random batch through a random net of 20-60-4, in double precision."""
    torch.manual_seed(size)
    net = nn.Sequential(nn.Linear(20, neurons), nn.ReLU(), nn.Linear(neurons, 4)).double()
    x = torch.randn(size, 20, dtype=torch.float64)
    torch.autograd.backward(nn.functional.cross_entropy(net(x), torch.randint(0, 4, (size,))))
    first = net[0]
    parts = (first.weight.data, first.bias.data, first.weight.grad, first.bias.grad)
    weights, biases, of_weights, of_biases = (part.numpy() for part in parts)
    scale = noise * np.abs(of_weights).max()
    of_weights = of_weights + scale * np.random.default_rng(0).standard_normal(of_weights.shape)
    return x.numpy(), DenseGradient(weights, biases, of_weights, of_biases)


@pytest.mark.parametrize("size", [1, 2, 4, 8, 11])
@pytest.mark.parametrize("told", [True, False])
def test_a_batch_is_found_exactly(size: int, told: bool) -> None:
    batch, gradient = batch_and_gradient(size)
    rng = np.random.default_rng(1)
    found = invert(gradient, 1 << 12, rng, size if told else None)
    assert found is not None
    assert found.shape == batch.shape
    errors = np.mean((batch[:, None] - found[None]) ** 2, axis=2).min(axis=1)
    assert errors.max() < 1e-12


def columns_found(size: int, starts: int, known: slice) -> tuple[np.ndarray, np.ndarray]:
    """Return the true columns as directions, and the cosine of each with what each start found."""
    batch, gradient = batch_and_gradient(size, neurons=100)
    factors = exact_inversion._factors(gradient, size)
    assert factors is not None
    derivatives = np.linalg.lstsq(batch.T, gradient.of_weights.T, rcond=None)[0].T
    columns = factors.left.T @ derivatives
    columns /= np.linalg.norm(columns, axis=0)
    rng = np.random.default_rng(0)
    found = exact_inversion._sparse(factors, starts, rng, columns[:, known])
    return columns, np.abs(columns.T @ found)


def test_a_few_starts_find_many_columns() -> None:
    """Neurons drawn at random are seven that one example leaves silent once in sixteen draws."""
    _, near = columns_found(8, 64, slice(0))
    assert np.sum(near.max(axis=1) > 1 - 1e-9) >= 6


def test_what_is_known_is_not_sought_again() -> None:
    """Starts that are orthogonal to nine of the columns end in the others more often."""
    _, anew = columns_found(12, 128, slice(0))
    _, rest = columns_found(12, 128, slice(9))
    assert np.sum(rest[9:] > 1 - 1e-9) > 1.3 * np.sum(anew[9:] > 1 - 1e-9)


def test_one_wrong_example_is_not_settled_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its activations are explained worse than the others', which the mean hides."""
    batch, gradient = batch_and_gradient(3)
    wrong = exact_inversion._Explanation(np.zeros_like(batch), np.array([1.0, 1.0, 0.95]))
    given, chosen = [wrong], exact_inversion._chosen
    monkeypatch.setattr(exact_inversion, "_chosen", lambda *a: given.pop() if given else chosen(*a))
    assert recovered(batch, invert(gradient, 1 << 12, np.random.default_rng(1), 3)) == 3


def test_the_best_batch_so_far_is_kept_and_one_start_is_a_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batch, gradient = batch_and_gradient(3)
    shares = [np.array([1.0, 1.0, 0.97]), np.array([0.25, 0.5, 0.75])]
    given = [exact_inversion._Explanation(batch + n, shares[n]) for n in range(2)]
    monkeypatch.setattr(exact_inversion, "_chosen", lambda *a: given.pop(0))
    found = invert(gradient, 128, np.random.default_rng(1), 3)
    assert found is not None
    assert np.array_equal(found, batch)
    given = [exact_inversion._Explanation(batch, np.ones(3))]
    assert invert(gradient, 1, np.random.default_rng(1), 3) is not None


def test_each_example_is_explained_by_the_neurons_that_it_activates() -> None:
    """Its own direction is zero on the others, on whichever side of zero."""
    batch, gradient = batch_and_gradient(4)
    factors = exact_inversion._factors(gradient, 4)
    assert factors is not None
    derivatives = gradient.of_weights @ np.linalg.pinv(batch)
    directions = factors.left.T @ derivatives
    right = exact_inversion._explained(gradient, factors, directions)
    assert right.shares.tolist() == [1.0] * 4
    assert right.examples == pytest.approx(batch, abs=1e-9)
    activated = gradient.weights @ batch.T + gradient.biases[:, None] > 0
    zeros = exact_inversion._zeros(factors, directions)
    assert zeros.scores.tolist() == (~activated).sum(axis=0).tolist()
    wrong = directions @ np.array([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 1], [0, 0, 0, 1.0]])
    mixed = exact_inversion._explained(gradient, factors, wrong)
    assert mixed.shares.shape == (4,)
    assert mixed.shares[:2].tolist() == [1.0, 1.0]
    assert mixed.shares[2:].max() < 1


def test_a_model_that_cannot_be_inverted_is_refused_before_clients_train(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def trained(*arguments: object) -> None:
        raise AssertionError("clients trained")

    monkeypatch.setattr(exact_inversion, "one_step", trained)
    with pytest.raises(AttackImpossible, match="does not begin with a dense layer"):
        attack(Target.of(job(model="lenet")), "quick", Watch())


def test_what_explains_too_little_is_not_given() -> None:
    """Enough directions for a batch, and not yet the right ones."""
    _, gradient = batch_and_gradient(11)
    assert invert(gradient, 128, np.random.default_rng(1), 11) is None


def test_a_direction_that_rests_on_one_neuron_counts_half() -> None:
    """Zero on four neurons that leave two free, and on one of the others, of which any would do."""
    left = np.linalg.qr(np.random.default_rng(0).standard_normal((9, 3)))[0]
    left[:4] = np.outer([1.0, 2.0, -1.0, 3.0], [0.0, 0.0, 1.0])
    left[4:6, 0] = 0.0  # the first direction is zero on two more
    factors = exact_inversion._Factors(left, np.eye(3), 1e-9)
    resting = np.array([left[7, 1], -left[7, 0], 0.0])
    directions = np.array([[1.0, 0.0, 0.0], resting]).T
    refined = exact_inversion._refined(factors, directions)
    assert list(refined.scores) == [6, 2.5]


def test_alike_directions_are_one_and_the_best_come_first() -> None:
    some = np.array([[0.0, 2.0], [-6.0, -8.02], [1.0, 0.0], [3.0, 4.0]]).T
    first = exact_inversion._Found(some[:, :1], np.array([5.0]))
    found = exact_inversion._distinct(
        first, exact_inversion._Found(some[:, 1:], np.array([8.0, 2.0, 9.0]))
    )
    assert found.scores.tolist() == [9.0, 5.0, 2.0]
    expected = np.array([[0.6, 0.8], [0.0, 1.0], [1.0, 0.0]])
    assert np.abs(found.directions.T) == pytest.approx(expected)


def test_a_common_factor_changes_nothing() -> None:
    """An update is the gradient times the learning rate; a direction has any length."""
    batch, gradient = batch_and_gradient(3)
    scaled = DenseGradient(
        gradient.weights, gradient.biases, 17 * gradient.of_weights, 17 * gradient.of_biases
    )
    assert recovered(batch, invert(scaled, 1 << 12, np.random.default_rng(1))) == 3


@pytest.mark.parametrize("noise", [0.01, 1.0])
def test_a_noised_gradient_gives_nothing(noise: float) -> None:
    batch, gradient = batch_and_gradient(4, noise)
    assert invert(gradient, 1 << 12, np.random.default_rng(1), 4) is None
    assert recovered(batch, None) == 0


@pytest.mark.parametrize("size", [20, 30])
def test_a_batch_of_full_rank_gives_nothing(size: int) -> None:
    _, gradient = batch_and_gradient(size)
    assert invert(gradient, 1 << 12, np.random.default_rng(1), size) is None


def test_no_gradient_gives_nothing() -> None:
    _, gradient = batch_and_gradient(2)
    empty = DenseGradient(gradient.weights, gradient.biases, np.zeros((60, 20)), np.zeros(60))
    assert invert(empty, 1 << 10, np.random.default_rng(1), 2) is None


def job(protection: str = "not_encrypt", model: str = "mlp", **training: Any) -> Job:
    return Job(
        model=model,
        training=training,
        clients={"number": 3, "fraction": 1.0},
        protection={"name": protection, "pw_encrypt": {"reconstruct_secrets_threshold": 2}},
    )


def test_a_report_of_one_step_is_inverted() -> None:
    target = one_step(Target.of(job()), 4)
    reading = target.server_view(target.updates(range(3))).readings[0]
    found = invert(of_report(target, reading), 1 << 14, np.random.default_rng(1), 4)
    assert recovered(target.dataset.train.x[target.rows(0)], found) == 4


@pytest.mark.parametrize("client", [0, 2])
def test_products_of_16_bits_hide_no_small_batch(client: int) -> None:
    """Rounding is noise of some thousandths: the zeros stand out all the same."""
    target = one_step(Target.of(job(precision="bfloat16")), 5)
    reading = target.server_view(target.updates(range(3))).readings[client]
    gradient = of_report(target, reading)
    found = invert(gradient, 1 << 10, np.random.default_rng(1), 5)
    assert recovered(target.dataset.train.x[target.rows(client)], found) == 5


@pytest.mark.parametrize("protection", ["pw_encrypt", "dp_encrypt", "signds"])
def test_a_protected_report_is_not(protection: str) -> None:
    target = one_step(Target.of(job(protection)), 2)
    reading = target.server_view(target.updates(range(3))).readings[0]
    assert invert(of_report(target, reading), 1 << 10, np.random.default_rng(1), 2) is None


def test_a_reading_of_nothing_gives_nothing() -> None:
    target = one_step(Target.of(job()), 2)
    reading = Reading.nothing(len(target.weights))
    assert invert(of_report(target, reading), 1 << 10, np.random.default_rng(1)) is None


def test_a_model_without_a_dense_first_layer_is_refused() -> None:
    with pytest.raises(AttackImpossible, match="does not begin with a dense layer"):
        first_layer(Target.of(job(model="lenet")).model)
    for layers in (
        [nn.Linear(6, 4, bias=False), nn.ReLU()],  # nothing scales the examples
        [nn.Linear(6, 4), nn.Tanh()],
        [nn.Flatten(), nn.Flatten(), nn.Linear(6, 4), nn.ReLU()],
    ):
        with pytest.raises(AttackImpossible, match="a dense layer, its bias and a ReLU"):
            first_layer(nn.Sequential(*layers, nn.Linear(4, 3)))
    first = nn.Linear(6, 4)
    assert first_layer(nn.Sequential(nn.Flatten(), first, nn.ReLU(), nn.Linear(4, 3))) is first


def test_the_attack_is_a_finding_and_stops_where_nothing_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exact_inversion, "by_effort", lambda effort, *starts: 128)
    finding = attack(Target.of(job("pw_encrypt")), "quick", Watch())
    assert [figure.value for figure in finding.figures] == [0, 0]
    assert finding.figure("recovered of batches of 5").cases == 15
    assert "16 bits" not in finding.saw


def test_a_finding_says_what_rounding_hides(monkeypatch: pytest.MonkeyPatch) -> None:
    figure = Measured("recovered of batches of 5", 0.0)
    monkeypatch.setattr(exact_inversion, "recovered_of_batches", lambda *a: (figure, None))
    finding = attack(Target.of(job(precision="bfloat16")), "standard", Watch())
    assert len(finding.figures) == 3
    assert finding.saw.startswith("a report of one local step over 5, 10, 20 examples")
    assert finding.saw.endswith(
        "made by products of 16 bits: larger batches hide in the rounding, from this attack alone"
    )


def test_the_built_in_job_gives_away_its_examples() -> None:
    target = Target.of(Job.load(ATTACKED_JOBS["exact"]))
    figure, picture = recovered_of_batches(one_step(target, 5), 5, 1, 1 << 12, Watch())
    assert (figure.value, figure.cases) == (1.0, 5)
    assert picture is not None


def test_each_original_is_recovered_once_at_most() -> None:
    originals = np.array([[[0.0, 1.0]], [[0.5, 0.5]], [[1.0, 0.0]]], np.float32)
    assert recovered(originals, np.array([[0.5, 0.505], [0.5, 0.495]])) == 1
    assert recovered(originals, np.array([[0.0, 1.02], [1.0, 0.0]])) == 1  # 2e-4 is not exact


def test_clients_of_few_examples_get_others() -> None:
    whole = Target.of(job(momentum=0.9, weight_decay=0.01, epochs=3))
    uneven = replace(whole, partition=Partition(np.arange(10)[::-1], np.array([0, 4, 6, 10])))
    step = one_step(uneven, 2)
    assert [step.rows(i).tolist() for i in range(3)] == [[9, 8], [5, 4], [3, 2]]
    dealt = one_step(uneven, 3)
    assert [dealt.rows(i).tolist() for i in range(3)] == [[9, 8, 7], [6, 5, 4], [3, 2, 1]]
    training = dealt.job.training
    assert (training.epochs, training.batch_size) == (1, 3)
    assert (training.momentum, training.weight_decay) == (0, 0)
    assert one_step(Target.of(job(optimizer="adam")), 2).job.training.optimizer == "sgd"
    exactly = replace(whole, partition=Partition(np.arange(12), np.array([0, 2, 6, 12])))
    assert one_step(exactly, 4).rows(2).tolist() == [8, 9, 10, 11]
    with pytest.raises(AttackImpossible, match="3 clients of 4 examples need 12: there are 10"):
        one_step(uneven, 4)


@pytest.mark.parametrize("protection", ["not_encrypt", "pw_encrypt"])
def test_each_report_is_held_against_its_own_client(
    protection: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search finds every example of a batch but the first. A sum is a single batch."""
    target = one_step(Target.of(job(protection)), 4)
    asked: list[tuple[int, float]] = []
    size = 12 if protection == "pw_encrypt" else 4

    def found(gradient: DenseGradient, starts: int, rng: Any, batch: int) -> np.ndarray:
        asked.append((batch, float(rng.random())))
        rows = target.partition.indices[4 * len(asked) - 4 :][:size]
        return target.dataset.train.x[rows[1:]].reshape(size - 1, -1).astype(np.float64)

    monkeypatch.setattr(exact_inversion, "invert", found)
    figure, picture = recovered_of_batches(target, 4, 2, 16, Watch())
    batches = [size] if size == 12 else [4, 4]  # the third report is beyond the cases
    assert [batch for batch, _ in asked] == batches
    assert len({draw for _, draw in asked}) == len(batches)
    assert (figure.cases, figure.value) == (sum(batches), 1 - len(batches) / sum(batches))
    assert (picture is not None) == (len(target.dataset.example_shape) == 3)


def test_a_whole_batch_that_is_found_or_lost_is_one_case(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of two batches is found. Two cases prove little, even if the batches are large."""
    target = one_step(Target.of(job()), 4)
    rows = target.partition.indices[:4]
    answers = iter([target.dataset.train.x[rows].reshape(4, -1).astype(np.float64), None])
    monkeypatch.setattr(exact_inversion, "invert", lambda *arguments: next(answers))
    figure, _ = recovered_of_batches(target, 4, 2, 16, Watch())
    assert (figure.value, figure.cases) == (0.5, 8)
    assert figure.low < 0.0127, "one of two independent cases: at least 0.0126"
    assert figure.high > 0.9873


def test_a_picture_shows_the_nearest_example_below_each_original(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exact_inversion, "grid", lambda rows: rows)
    originals = np.array([-1.0, 3.0, 1.0]).reshape(3, 1, 1, 1)
    above, below = exact_inversion._picture(originals, np.array([[2.5], [-0.4]]))
    assert np.ravel(above).tolist() == [0, 1, 0.5]
    assert np.ravel(below).tolist() == pytest.approx([0.15, 0.875, 0.15])


def test_an_effort_decides_how_many_batches_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int, int]] = []

    def noted(target: Any, size: int, cases: int, starts: int, watch: Any) -> tuple[Any, bytes]:
        asked.append((size, cases, starts))
        return Measured(f"recovered of batches of {size}", 0.0), b"picture"

    monkeypatch.setattr(exact_inversion, "recovered_of_batches", noted)
    for effort, sizes in (("quick", (5, 10)), ("full", (5, 10, 20))):
        finding = attack(Target.of(job()), effort, Watch())  # type: ignore[arg-type]
        assert list(finding.pictures) == [f"exact-not_encrypt-{size}.png" for size in sizes]
    quick = [(5, 10, 1 << 12), (10, 10, 1 << 12)]
    assert asked == [*quick, *((size, 20, 1 << 17) for size in (5, 10, 20))]


def rows_net() -> nn.Module:
    return nn.Sequential(nn.Linear(30, 40), nn.ReLU(), nn.Linear(40, 4))


def test_rows_of_a_table_are_recovered_without_a_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        exact_inversion, "invert", lambda gradient, starts, rng, batch: np.zeros((batch, 30))
    )
    target = one_step(Target.of(table_job(model="test_exact_inversion:rows_net")), 3)
    figure, picture = recovered_of_batches(target, 3, 2, 16, Watch())
    assert (figure.cases, picture) == (6, None)
