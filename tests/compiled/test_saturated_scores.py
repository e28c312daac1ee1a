"""Adam's first step from saturated scores. It turns the smallest rest of a gradient into a step."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedveil.base.kernels import HAVE_NUMBA
from fedveil.learning.losses import WEIGHTED, mean_loss
from fedveil.learning.trainer import ClientData, TrainingPlan
from fedveil.learning.weight_layout import Layout
from known_chains import TOKENS, chains, of_tokens, signed, token_chains, word_chains
from native_training import by_loop, compiled
from training_parts import clients, plan, train

pytestmark = pytest.mark.skipif(not HAVE_NUMBA, reason="nothing is compiled without numba")

Made = tuple[nn.Module, tuple[int, ...]]
#: The number of examples, whose reciprocal no float holds.
SIZE = 7
LR = 0.01
#: Adam divides a gradient by its size and this number.
EPS = 1e-8
EPS_32 = float(np.finfo(np.float32).eps)
factors = st.sampled_from([30.0, 300.0, 3e3])
right = st.sampled_from([SIZE, SIZE, 4, 0])


def saturated(model: nn.Module, factor: float) -> None:
    """Multiply the weights of the last layer, and so the scores, by `factor`."""
    with torch.no_grad():
        for weights in list(model.modules())[-1].parameters():
            weights.mul_(factor)


def partly_right(model: nn.Module, client: ClientData, number: int) -> ClientData:
    """Return the client, for the first `number` of whose examples the model's answer is right."""
    y = client.y.clone()
    with torch.no_grad():
        y[:number] = model(client.x[:number]).argmax(-1)
    return replace(client, y=y)


def gradients(
    model: nn.Module, chosen: TrainingPlan, client: ClientData
) -> tuple[np.ndarray, np.ndarray]:
    """Return the batch's gradient in float64, and the error that rounding to float32 may cause.

    A float loses the distance of a probability from 1, up to its own precision. And it has the
    scores, and so the probabilities, with a relative error. Errors of sums that cancel are as large
    as in the tensor's largest entry.
    """
    model, loss = copy.deepcopy(model).double(), mean_loss(chosen.loss, chosen.class_weights)
    parameters = list(model.parameters())

    def scores(examples: slice) -> torch.Tensor:
        x = client.x[examples]
        found: torch.Tensor = model(x.double() if x.is_floating_point() else x)
        return found

    def of(value: torch.Tensor) -> list[np.ndarray]:
        return [g.numpy() for g in torch.autograd.grad(value, parameters)]

    every = scores(slice(None)).detach()
    likely = every.softmax(-1)
    lost = 4 * min(EPS_32, float(torch.minimum(likely, 1 - likely).max()))
    of_scores = 2e-3 + 20 * EPS_32 * float(every.abs().max())
    each = [slice(n, n + 1) for n in range(SIZE)]
    sizes = [of(loss(scores(n), client.y[n])) for n in each]
    units = [of(scores(n).gather(-1, client.y[n].unsqueeze(-1)).sum()) for n in each]

    def largest(parts: list[list[np.ndarray]], number: int, shared: float) -> np.ndarray:
        total = sum(np.abs(part[number]) for part in parts)
        return np.asarray(total + shared * np.max(total))

    errors = [
        of_scores * largest(sizes, n, 1e-3) + lost * largest(units, n, 1.0)
        for n in range(len(parameters))
    ]
    return _flat(of(loss(scores(slice(None)), client.y))), _flat(errors)


def _flat(arrays: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([array.ravel() for array in arrays])


def saturated_step_is_torchs(
    made: Made, factor: float, number: int, own: Callable[..., list[ClientData]], **changes: object
) -> None:
    """Check a step from saturated scores. `own` turns drawn examples into the model's clients."""
    model, shape = made
    saturated(model, factor)
    (client,) = own(clients(shape, 5, (SIZE,)))
    chosen = plan(optimizer="adam", lr=LR, batch_size=SIZE, epochs=1, **changes)
    one_step_is_torchs(model, chosen, partly_right(model, client, number))


def one_step_is_torchs(model: nn.Module, chosen: TrainingPlan, client: ClientData) -> None:
    """Check one step of Adam against the steps of all gradients within the rounding errors."""
    gradient, error = gradients(model, chosen, client)

    def step(g: np.ndarray) -> np.ndarray:
        return -LR * g / (np.abs(g) + EPS)

    rounded = 1e-5 * LR + 2 * EPS_32 * np.abs(Layout(model).vector())
    low, high = step(gradient + error) - rounded, step(gradient - error) + rounded
    found = train(compiled(model, chosen), model, [client])[0]
    wanted = by_loop(model, chosen, [client])[0]
    assert ((low <= wanted) & (wanted <= high)).all()
    assert ((low <= found) & (found <= high)).all()


@given(chains(), factors, right, st.sampled_from(["cross_entropy", WEIGHTED]))
@settings(max_examples=25)
def test_any_model(made: Made, factor: float, number: int, loss: str) -> None:
    weights = (0.3, 2.0, 1.1, 1.0, 0.7) if loss == WEIGHTED else None
    saturated_step_is_torchs(made, factor, number, signed, loss=loss, class_weights=weights)


@given(token_chains(), factors, right)
@settings(max_examples=25)
def test_any_model_of_tokens(made: Made, factor: float, number: int) -> None:
    saturated_step_is_torchs(made, factor, number, of_tokens)


@given(word_chains(), factors, right)
@settings(max_examples=25)
def test_any_model_of_next_tokens(made: Made, factor: float, number: int) -> None:
    saturated_step_is_torchs(made, factor, number, with_next_tokens, loss="next_token")


def with_next_tokens(drawn: list[ClientData]) -> list[ClientData]:
    return [replace(one, y=(one.x * 3 + 1) % TOKENS) for one in of_tokens(drawn)]
