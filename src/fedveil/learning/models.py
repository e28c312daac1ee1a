"""The built-in models, and the loading of a user's own model."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import nn

from fedveil.base import own_code
from fedveil.base.example_arrays import Shape
from fedveil.entropy import Entropy
from fedveil.errors import ModelInvalid
from fedveil.learning.oriented_filters import FilterBank, OrientedFilters
from fedveil.learning.token_layers import CausalLayer, Positions
from fedveil.learning.trained_part import only_head


def lenet(shape: Sequence[int], classes: int) -> nn.Module:
    """Return LeNet for one-channel 28x28 images, with 61,706 parameters for ten classes."""
    if tuple(shape) != (1, 28, 28):
        raise ModelInvalid(f"model = lenet needs examples of shape (1, 28, 28), not {tuple(shape)}")
    model = nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120), nn.ReLU(),
        nn.Linear(120, 84), nn.ReLU(),
        nn.Linear(84, classes),
    )  # fmt: skip
    return _for_relu(model)


def _for_relu(model: nn.Module) -> nn.Module:
    """Draw the model's initial weights for ReLU (He et al., 2015). Returns the model."""
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return model


def lenet_femnist(shape: Sequence[int], classes: int) -> nn.Module:
    """Return LeNet with 62 outputs, the number of FEMNIST's classes, even if there are fewer.

    Raises `ModelInvalid` if `classes` is above 62.
    """
    if classes > 62:
        raise ModelInvalid(f"model = lenet_femnist has 62 classes, but the data has {classes}")
    return lenet(shape, 62)


def tanh_cnn(shape: Sequence[int], classes: int) -> nn.Module:
    """Return the network of Papernot et al. for noisy training, with tanh activations.

    It has 26,010 parameters for ten classes. Source: "Tempered sigmoid activations", 2020.
    """
    if tuple(shape) != (1, 28, 28):
        raise ModelInvalid(
            f"model = tanh_cnn needs examples of shape (1, 28, 28), not {tuple(shape)}"
        )
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, stride=2, padding=3), nn.Tanh(), nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, stride=2), nn.Tanh(), nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(512, 32), nn.Tanh(),
        nn.Linear(32, classes),
    )  # fmt: skip


def lenet_smooth(shape: Sequence[int], classes: int) -> nn.Module:
    """Return the LeNet of Zhu et al. (2019) for gradient attacks: sigmoids and large weights."""
    if len(shape) != 3:
        raise ModelInvalid(
            f"model = lenet_smooth needs images [channels, height, width], not {tuple(shape)}"
        )
    channels, height, width = shape
    model = nn.Sequential(
        nn.Conv2d(channels, 12, 5, stride=2, padding=2), nn.Sigmoid(),
        nn.Conv2d(12, 12, 5, stride=2, padding=2), nn.Sigmoid(),
        nn.Conv2d(12, 12, 5, padding=2), nn.Sigmoid(),
        nn.Flatten(),
        nn.Linear(12 * -(-height // 4) * -(-width // 4), classes),
    )  # fmt: skip
    for parameter in model.parameters():
        nn.init.uniform_(parameter, -0.5, 0.5)
    return model


def mlp(shape: Sequence[int], classes: int) -> nn.Module:
    """Return a network with two hidden layers of 200 units, as in the federated averaging paper."""
    return _dense(shape, (200, 200), classes, nn.ReLU)


def purchase_dnn(shape: Sequence[int], classes: int) -> nn.Module:
    """Return the usual tanh network of membership inference: 1024, 512 and 256 hidden units."""
    return _dense(shape, (1024, 512, 256), classes, nn.Tanh)


def logistic(shape: Sequence[int], classes: int) -> nn.Module:
    return _dense(shape, (), classes, nn.ReLU)


def filters_linear(shape: Sequence[int], classes: int) -> nn.Module:
    """Return a linear classifier on fixed Gabor filters, with 7,850 parameters for MNIST."""
    return _head_on(OrientedFilters(shape), classes)


def scattering_linear(shape: Sequence[int], classes: int) -> nn.Module:
    """Return a linear classifier on two layers of fixed Gabor filters.

    It has 39,210 parameters for ten classes. With little noise, it is more accurate than
    `filters_linear`.
    """
    return _head_on(OrientedFilters(shape, FilterBank(twice=True)), classes)


def transformer(shape: Sequence[int], classes: int) -> nn.Module:
    """Return a transformer for `task: next_token`, with two causal layers of width 128.

    `shape` is the number of tokens in an example, and `classes` the size of the vocabulary.
    """
    if len(shape) != 1:
        raise ModelInvalid(f"model = transformer needs rows of tokens, not examples of {shape}")
    width = 128
    return nn.Sequential(
        nn.Embedding(classes, width), Positions(shape[0], width),
        CausalLayer(width, 4, 4 * width), CausalLayer(width, 4, 4 * width),
        nn.LayerNorm(width), nn.Linear(width, classes),
    )  # fmt: skip


def _head_on(filters: OrientedFilters, classes: int) -> nn.Module:
    """Return a linear layer on fixed filters. Its loss is convex, so its weights start at 0."""
    head = nn.Linear(filters.outputs, classes)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return only_head(nn.Sequential(filters, head))


def _dense(
    shape: Sequence[int], hidden: Sequence[int], classes: int, activation: type[nn.Module]
) -> nn.Module:
    widths = [math.prod(shape), *hidden]
    layers: list[nn.Module] = [nn.Flatten()]
    for i, width in enumerate(hidden):
        layers += [nn.Linear(widths[i], width), activation()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], classes))


MODELS: dict[str, Callable[[Sequence[int], int], nn.Module]] = {
    "lenet": lenet,
    "lenet_femnist": lenet_femnist,
    "lenet_smooth": lenet_smooth,
    "mlp": mlp,
    "purchase_dnn": purchase_dnn,
    "logistic": logistic,
    "tanh_cnn": tanh_cnn,
    "filters_linear": filters_linear,
    "scattering_linear": scattering_linear,
    "transformer": transformer,
}


def build(name: str, shape: Shape, classes: int, entropy: Entropy) -> nn.Module:
    """Return the model called `name`, with initial weights drawn from `entropy`.

    `name` is in `MODELS`, or is a user's function, written `package.module:function`. This function
    gets the arguments that it declares: `shape` (of one example, or of each of its inputs), and
    `classes` or `outputs`.
    """
    with torch.random.fork_rng(devices=[]):
        make = _maker(name)
        torch.default_generator.manual_seed(entropy.integer(1 << 63))
        return make(shape, classes).cpu()


def outline(name: str, shape: Shape, classes: int) -> nn.Module | None:
    """Return the model that `build` returns, but with shapes only, which take no memory.

    Returns None if a user's function needs values, which tensors of torch's device "meta" lack.
    """
    with torch.random.fork_rng(devices=[]):
        make = _maker(name)
        try:
            with torch.device("meta"), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # `build` repeats those that matter
                return make(shape, classes)
        except ModelInvalid as error:
            if "meta" in str(error).lower():
                return None
            raise


def _maker(name: str) -> Callable[[Shape, int], nn.Module]:
    """Return a function that makes the model called `name`.

    A user's module is imported here, since importing it may draw random numbers or make tensors.
    The caller has not yet set the seed or the device of the model.
    """
    if name in MODELS:
        return partial(_built_in, name)
    function = own_code.load(name, key=f"model = {name!r}", error=ModelInvalid, built_in=MODELS)
    return partial(_user_model, name, function)


def _built_in(name: str, shape: Shape, classes: int) -> nn.Module:
    if isinstance(shape, dict) or -1 in shape:
        raise ModelInvalid(f"model = {name} needs examples of one array and one shape")
    return MODELS[name](shape, classes)


def _user_model(
    name: str, function: Callable[..., object], shape: Shape, classes: int
) -> nn.Module:
    key = f"model = {name!r}"
    with own_code.own_code_errors(key, ModelInvalid):
        model = own_code.called(function, shape=shape, classes=classes, outputs=classes)
    if not isinstance(model, nn.Module):
        raise ModelInvalid(f"{key} returned a {type(model).__name__}, not an nn.Module")
    return model
