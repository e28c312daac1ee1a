"""Labels, from what training does to the last layer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedveil.attacks.gradient.label_counts import _whole
from fedveil.attacks.gradient.label_recovery import LastLayer, recover
from fedveil.attacks.gradient.unrolled_training import UnrolledTraining
from fedveil.entropy import Seeded
from fedveil.learning.models import lenet_smooth
from fedveil.learning.trainer import TrainingPlan
from fedveil.learning.weight_layout import Layout
from fedveil.protections.reading import Reading

CLASSES = 5
LR = 0.1


def read(model: nn.Module, x: torch.Tensor, labels: list[int], epochs: int = 1) -> Reading:
    plan = TrainingPlan(epochs, len(labels), "sgd", LR, 0.0, 0.0)
    training = UnrolledTraining(model, plan, Layout(model).vector())
    targets = nn.functional.one_hot(torch.tensor(labels), CLASSES).float()
    return Reading.exact(training.update(x, targets).detach().numpy())


def layer_of(model: nn.Module, probes: torch.Tensor) -> LastLayer:
    layer = LastLayer.of(model, probes)
    assert layer is not None
    return layer


def net(bias: bool = True, activation: type[nn.Module] = nn.Sigmoid) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(36, 12), activation(), nn.Linear(12, CLASSES, bias=bias)
    )


def images(count: int) -> torch.Tensor:
    draw = Seeded(0, "images").generator()
    return torch.from_numpy(draw.random((count, 1, 6, 6), dtype=np.float32))


@pytest.mark.parametrize("epochs", [1, 6])
@pytest.mark.parametrize(
    "model",
    [net(), net(bias=False), net(bias=False, activation=nn.Tanh), lenet_smooth((1, 6, 6), CLASSES)],
    ids=["bias", "rows", "rows of tanh", "lenet_smooth"],
)
def test_the_label_of_a_single_example_is_recovered_for_certain(
    model: nn.Module, epochs: int
) -> None:
    layer = layer_of(model, torch.zeros(1, 1, 6, 6))
    for label in range(CLASSES):
        for image in images(4):
            reading = read(model, image[None], [label], epochs)
            assert recover(reading, layer, 1).tolist() == [label]


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("labels", [[0, 0, 1, 1, 4], [2] * 5, [0, 1, 1, 1, 3, 3]])
def test_counts_are_exact_where_the_softmax_is_known(labels: list[int], scaled: bool) -> None:
    """At weights of zero it gives every class alike, whatever the input."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, CLASSES))
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    layer = layer_of(model, images(3))
    reading = read(model, images(len(labels)), labels)
    if scaled:
        assert recover(reading, layer, len(labels), LR).tolist() == labels
    else:
        direction = replace(reading, estimate=1000 * reading.estimate, scaled=False)
        assert recover(direction, layer, len(labels)).tolist() == labels


def test_one_label_of_each_is_told_by_the_size_of_the_step() -> None:
    """The gradient is nothing: only who knows the step's size can tell that from a small one."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, CLASSES))
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    labels = list(range(CLASSES))
    reading = read(model, images(CLASSES), labels)
    assert recover(reading, layer_of(model, images(3)), CLASSES, LR).tolist() == labels


def test_a_batch_through_a_net() -> None:
    model, labels = net(), [0, 0, 0, 1, 3, 3, 4, 4]
    reading = read(model, images(8), labels)
    assert recover(reading, layer_of(model, images(8)), 8, LR).tolist() == labels


def test_entries_that_say_nothing_do_not_count() -> None:
    """The bias is unread and half of each row is noise that the reading disowns."""
    model = net()
    layer = layer_of(model, images(8))
    assert layer.bias is not None
    reading = read(model, images(1), [3])
    estimate, weight = reading.estimate.copy(), reading.weight.copy()
    noise = Seeded(0, "noise").generator()
    unread = np.arange(layer.weight.start, layer.weight.stop, 2)
    for places in (unread, layer.bias):
        weight[places] = 0
        estimate[places] += 100 * noise.standard_normal(len(estimate[places]))
    assert recover(Reading(estimate, weight), layer, 1, LR).tolist() == [3]


def test_noise_on_the_bias_is_averaged_over_the_rows() -> None:
    """A bias alone would be right about half of the time at this noise."""
    model = net()
    layer = layer_of(model, images(8))
    right = 0
    for attempt in range(20):
        reading = read(model, images(1), [attempt % CLASSES])
        noise = Seeded(attempt, "noise").generator().standard_normal(len(reading.estimate))
        noised = Reading(reading.estimate + LR * 0.5 * noise, reading.weight)
        right += recover(noised, layer, 1, LR).tolist() == [attempt % CLASSES]
    assert right >= 15


def test_a_last_layer_has_the_means_over_all_probes() -> None:
    model, probes = net(), 40 * images(9) - 20  # far apart, so that their answers differ
    layer = layer_of(model, probes)
    with torch.no_grad():
        hidden = model[:3](probes).double()
        answers = model(probes).double().softmax(1)
    assert layer.inputs == pytest.approx(hidden.mean(0).numpy())
    assert layer.guesses == pytest.approx(answers.mean(0).numpy())
    vector = Layout(model).vector()
    assert np.array_equal(vector[layer.weight], model[3].weight.detach().numpy().ravel())
    assert layer.bias is not None
    assert np.array_equal(vector[layer.bias], model[3].bias.detach().numpy())


def test_a_model_that_ends_otherwise_has_no_last_layer() -> None:
    scaled = nn.Sequential(nn.Flatten(), nn.Linear(36, CLASSES), nn.Tanh())
    convolution = nn.Sequential(nn.Conv2d(1, CLASSES, 6), nn.Flatten())
    for model in (scaled, convolution):
        assert LastLayer.of(model, images(1)) is None


@pytest.mark.parametrize("bias", [True, False])
def test_a_label_is_found_by_the_entries_that_were_reported(bias: bool) -> None:
    """The whole bias, or half of each row of a layer without one, was not reported."""
    model = net(bias)
    layer = layer_of(model, images(8))
    for label in range(CLASSES):
        reading = read(model, images(1), [label])
        estimate, weight = reading.estimate.copy(), reading.weight.copy()
        unread = np.arange(layer.weight.start, layer.weight.stop, 2)
        noise = 100 * Seeded(label, "noise").generator().standard_normal(len(unread))
        if layer.bias is not None:
            unread, noise = np.arange(layer.bias.start, layer.bias.stop), np.zeros(CLASSES)
        estimate[unread], weight[unread] = noise, 0
        assert recover(Reading(estimate, weight), layer, 1, LR).tolist() == [label]


def test_only_weights_that_are_trained_tell_labels() -> None:
    model = net()
    model[3].bias.requires_grad_(False)
    layer = layer_of(model, images(3))
    weight = Layout(model).vector()[layer.weight]
    assert layer.bias is None
    assert np.array_equal(weight, model[3].weight.detach().numpy().ravel())
    model[3].weight.requires_grad_(False)
    layer = layer_of(nn.Sequential(*model[:2]), images(3))
    assert (layer.weight.stop - layer.weight.start, layer.bias) == (36 * 12, slice(432, 444))
    assert LastLayer.of(model, images(3)) is None  # the dense layer before it gives no scores


def test_errors_count_as_they_are_if_all_probable_classes_are_there() -> None:
    """No class is left whose expected share could tell the size of the step."""
    error, guesses = np.array([-0.0625, -0.6875, 0.75]), np.array([0.75, 0.25, 0.0])
    layer = LastLayer(slice(0, 6), slice(6, 9), np.ones(2), guesses)
    reading = Reading(-np.append(np.repeat(error, 2), error), np.ones(9), scaled=False)
    assert recover(reading, layer, 3).tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    ("found", "count", "counts"),
    [
        ([0.0, 0.0, 0.0], 7, [3, 2, 2]), ([0.5, 0.2, 0.3], 4, [2, 1, 1]),
        ([6.0, 0.0, 2.0], 4, [3, 0, 1]), ([1.4, 0.0, 1.6], 3, [1, 0, 2]),
    ],
)  # fmt: skip
def test_counts_are_whole_and_have_the_sum_of_the_examples(
    found: list[float], count: int, counts: list[int]
) -> None:
    assert _whole(np.array(found), count).tolist() == counts
