"""Layers over tokens, and their training in native code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedveil.base.kernels import HAVE_NUMBA
from fedveil.compiled.compiled_trainer import CompiledTrainer
from fedveil.errors import ModelInvalid
from fedveil.learning.models import MODELS
from fedveil.learning.token_layers import CausalLayer, Positions
from fedveil.learning.trainer import TrainingPlan
from fedveil.learning.weight_layout import Layout
from known_chains import SIZES, TOKENS, of_words, transformer_layer, word_chains
from native_training import Double, by_loop, compiled, in_double, refused, trained_as_torch_trains
from training_parts import Doubled, clients, plan, train

WIDTH, LENGTH = 16, 5
plan_of_words = partial(plan, loss="next_token", lr=0.05)
natively = pytest.mark.skipif(not HAVE_NUMBA, reason="nothing is compiled without numba")


def of_layers(*layers: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(TOKENS, WIDTH), *layers, nn.Linear(WIDTH, TOKENS))


def test_a_token_knows_nothing_of_those_that_follow() -> None:
    torch.manual_seed(0)
    layer, x = (
        nn.Sequential(Positions(LENGTH, WIDTH), CausalLayer(WIDTH, 2, 24)),
        torch.randn(2, LENGTH, WIDTH),
    )
    other = x.clone()
    other[:, 3] += torch.linspace(-1, 1, WIDTH)  # a norm would take a constant away
    same = (layer(x) == layer(other)).all(-1)
    assert same[:, :3].all()
    assert not same[:, 3:].any()


@natively
@given(
    word_chains(),
    st.sampled_from([plan_of_words(), plan_of_words(momentum=0.9, weight_decay=0.01)]),
)
@settings(max_examples=25)
def test_any_chain_of_words_is_trained_as_torch_trains_it(
    made: tuple[nn.Module, tuple[int, ...]], plan: TrainingPlan
) -> None:
    model, shape = made
    trained_as_torch_trains(model, shape, plan, of_words(clients(shape, 5, SIZES)))


@natively
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("kind", range(24))
def test_in_double_precision_it_is_torch_to_the_ninth_place(optimizer: str, kind: int) -> None:
    model = of_layers(Positions(7, WIDTH), transformer_layer(WIDTH, kind), nn.LayerNorm(WIDTH))
    chosen = plan_of_words(optimizer=optimizer, lr=0.01, gradient_norm=1.0)
    (client,) = of_words(clients((LENGTH,), 5, (6,)))
    found = train(compiled(model, chosen, Double), model, [client])[0]
    np.testing.assert_allclose(found, in_double(model, chosen, client), atol=1e-9)


@natively
def test_the_built_in_model_and_its_two_ways_of_summing() -> None:
    """A vocabulary that fills vectors, whose weight lies the other way round, and one that not."""
    for tokens in (304, 301):
        model, chosen = MODELS["transformer"]((9,), tokens), plan_of_words(lr=0.1)
        x = torch.from_numpy(np.random.default_rng(0).integers(0, tokens, (10, 10)))
        (client,) = clients((9,), 5, (10,))
        client = replace(client, x=x[:, :-1], y=x[:, 1:])
        trained_as_torch_trains(model, (9,), chosen, [client])


@natively
@pytest.mark.parametrize("length", [LENGTH, 64])  # 64 rows of 16 are 4 kB, which get a gap
@pytest.mark.parametrize("kind", [0, 13, 15])
def test_a_transformer_in_front_of_a_single_row_of_scores(kind: int, length: int) -> None:
    torch.manual_seed(0)
    layers = (transformer_layer(WIDTH, kind), nn.Flatten())
    model = nn.Sequential(nn.Embedding(TOKENS, WIDTH), *layers, nn.Linear(length * WIDTH, 5))
    (client,) = of_words(clients((length,), 5, (9,)))
    client = replace(client, y=client.y[:, 0].clamp(0, 4))
    trained_as_torch_trains(model, (length,), plan(), [client])
    assert not compiled(model, plan_of_words()).serves((length,))


@natively
def test_a_norm_of_tokens_without_a_weight() -> None:
    norm = nn.LayerNorm(WIDTH, eps=0.05, elementwise_affine=False)
    model = of_layers(nn.Linear(WIDTH, WIDTH), norm)
    cohort = of_words(clients((LENGTH,), 5, (6,)))
    trained_as_torch_trains(model, (LENGTH,), plan_of_words(), cohort)


@natively
def test_rows_of_4_kb() -> None:
    wide, narrow = nn.Linear(WIDTH, 1024), nn.Linear(1024, WIDTH)
    model = of_layers(CausalLayer(WIDTH, 2, 1024), wide, nn.ReLU(), narrow)
    cohort = of_words(clients((LENGTH,), 5, (6,)))
    trained_as_torch_trains(model, (LENGTH,), plan_of_words(), cohort)


@natively
def test_a_norm_that_divides_by_zero_gives_what_torch_gives() -> None:
    model = of_layers(nn.LayerNorm(WIDTH, eps=0.0))
    nn.init.constant_(model[0].weight, 0.5)
    cohort, chosen = of_words(clients((LENGTH,), 5, (6,))), plan_of_words(epochs=1)
    found = train(compiled(model, chosen), model, cohort)
    np.testing.assert_array_equal(np.isfinite(found), np.isfinite(by_loop(model, chosen, cohort)))


@natively
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30])
def test_what_is_not_finite_goes_where_it_goes_in_torch(value: float) -> None:
    model = of_layers(CausalLayer(WIDTH, 2, 24))
    (client,) = of_words(clients((LENGTH,), 5, (6,)))
    with torch.no_grad():
        model[0].weight[int(client.x[3, 2]), 5] = value
    chosen = plan_of_words(epochs=1)
    wanted = by_loop(model, chosen, [client])
    found = train(compiled(model, chosen), model, [client])
    assert not np.isfinite(wanted).all()
    np.testing.assert_array_equal(np.isfinite(found), np.isfinite(wanted))


@natively
@pytest.mark.parametrize("token", [TOKENS, -1, -101])
def test_a_target_that_there_is_not_is_torchs_to_refuse(token: int) -> None:
    model = of_layers()
    (client,) = of_words(clients((LENGTH,), 5, (6,)))
    client.y[1, 1] = token
    trainer = compiled(model, plan_of_words())
    trainer.start(Layout(model).vector())
    ((_, (failure,)),) = trainer.train([client])
    assert isinstance(failure, IndexError)


def dropping() -> nn.Module:
    return nn.TransformerEncoderLayer(WIDTH, 2, 24, 0.1, batch_first=True)


def across() -> nn.Module:
    return nn.TransformerEncoderLayer(WIDTH, 2, 24, 0.0)


def curved() -> nn.Module:
    return nn.TransformerEncoderLayer(WIDTH, 2, 24, 0.0, torch.tanh, batch_first=True)


def hooked() -> nn.Module:
    layer = transformer_layer(WIDTH, 1)
    layer.linear1.register_forward_hook(lambda module, given, made: 2 * made)
    return layer


def replaced() -> nn.Module:
    layer = transformer_layer(WIDTH, 1)
    layer.norm2 = nn.RMSNorm(WIDTH)
    return layer


def narrower() -> nn.Module:
    """Shapes that torch itself refuses to add."""
    layer = transformer_layer(WIDTH, 1)
    layer.linear2 = nn.Linear(24, 8)
    return nn.Sequential(layer, nn.Linear(8, WIDTH))


def inherited() -> nn.Module:
    class Own(CausalLayer):
        pass

    return Own(WIDTH, 2, 24)


def attending(**options: Any) -> nn.Module:
    layer = transformer_layer(WIDTH, 1)
    layer.self_attn = nn.MultiheadAttention(WIDTH, 2, batch_first=True, **options)
    return layer


def with_zeros() -> nn.Module:
    return attending(add_zero_attn=True)


def with_biases() -> nn.Module:
    return attending(add_bias_kv=True)


def with_narrow_keys() -> nn.Module:
    return attending(kdim=8, vdim=8)


def own_projection() -> nn.Module:
    layer = attending()
    layer.self_attn.out_proj = Doubled(WIDTH, WIDTH)
    return layer


def own_dropout() -> nn.Module:
    class Own(nn.Dropout):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * x

    layer = transformer_layer(WIDTH, 1)
    layer.dropout2 = Own(0.0)
    return layer


OTHERS = [
    dropping, across, curved, hooked, replaced, inherited, with_zeros, with_biases, own_dropout,
    with_narrow_keys, own_projection,
]  # fmt: skip


@pytest.mark.parametrize("made", OTHERS)
def test_a_layer_that_is_not_torchs_plain_one_is_the_loops(made: Callable[[], nn.Module]) -> None:
    assert CompiledTrainer.of(of_layers(made()), plan_of_words()) is None


@natively
def test_texts_of_different_lengths_are_trained_as_if_alone() -> None:
    """Each length has its own layout of memory, and one length may be as long as 512."""
    model, chosen = of_layers(CausalLayer(WIDTH, 2, 24)), plan_of_words()
    cohort = [*of_words(clients((LENGTH,), 5, (6, 4))), *of_words(clients((3,), 5, (6,)))]
    cohort = [cohort[0], cohort[2], cohort[1]]
    trainer = compiled(model, chosen)
    assert [trainer.serves((length,)) for length in (512, 513)] == [True, False]
    together = train(trainer, model, cohort)
    alone = [train(compiled(model, chosen), model, [client])[0] for client in cohort]
    np.testing.assert_array_equal(together, alone)


@natively
@pytest.mark.parametrize(
    ("layers", "length"),
    [
        ((CausalLayer(WIDTH, 4, 24),), LENGTH),  # heads of four numbers
        ((narrower(),), LENGTH),
        ((CausalLayer(WIDTH, 2, 20),), LENGTH),  # rows that fill no vectors
        ((Positions(LENGTH, WIDTH),), LENGTH + 1),
        ((Positions(LENGTH, WIDTH + 8),), LENGTH),
        ((), 0),  # as texts of several lengths are given, which are no tensor
        ((CausalLayer(WIDTH, 2, 24),), 513),
        ((nn.Flatten(), Positions(LENGTH, WIDTH)), LENGTH),
    ],
)
def test_layers_that_do_not_fit_are_the_loops(layers: Sequence[nn.Module], length: int) -> None:
    model = of_layers(*layers)
    trainer = CompiledTrainer.of(model, plan_of_words())
    assert trainer is not None
    assert not trainer.serves((length,))
    assert any(refused(model, (length,), "tokens", called=False))


@natively
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_powers_of_e_to_the_last_digit_of_what_they_are_kept_in(kind: type) -> None:
    from fedveil.compiled.exponential import exponentials

    x = np.append(-np.geomspace(1e-7, 86, 4000), [0, -87.1, -1e4, -np.inf]).astype(kind)
    m = np.append(x, np.zeros(len(x), kind))
    assert exponentials(m, 0, len(x), len(x), 1.0) == pytest.approx(np.exp(x).sum(), rel=1e-6)
    exact = np.where(x < -87, 0, np.exp(x.astype(float)))
    np.testing.assert_allclose(
        m[len(x) :], exact, rtol=3e-7 if kind is np.float32 else 1e-15, atol=1e-37
    )
    m[3] = np.nan
    assert np.isnan(exponentials(m, 0, len(x), len(x), 1.0))
    assert np.isnan(m[len(x) :]).all()


def test_examples_that_are_no_tokens_are_refused_in_one_sentence() -> None:
    with pytest.raises(ModelInvalid, match=r"needs rows of tokens, not examples of \(1, 28, 28\)"):
        MODELS["transformer"]((1, 28, 28), 10)


@natively
def test_rows_of_tokens_are_compiled_ahead_too(monkeypatch: pytest.MonkeyPatch) -> None:
    model = of_layers(CausalLayer(WIDTH, 2, 24))
    trainer, cohort = compiled(model, plan_of_words()), of_words(clients((LENGTH,), 5, (6,)))
    assert trainer.compile((LENGTH,))
    assert trainer._room is not None  # torch had no part in it
    monkeypatch.setattr("fedveil.compiled.native.CFunc", None)
    np.testing.assert_allclose(
        train(trainer, model, cohort), by_loop(model, plan_of_words(), cohort), atol=1e-5
    )
