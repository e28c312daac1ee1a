"""The built-in models have the sizes of the networks that they are named after."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from fedveil.entropy import Seeded
from fedveil.errors import ModelInvalid
from fedveil.learning.models import MODELS, build, outline
from fedveil.learning.token_layers import CausalLayer

DIGITS = (1, 28, 28)
WIDTH, WORDS, LENGTH = 128, 2340, 20
#: Queries, keys, values and outputs; two dense layers, four times as wide between; two norms.
LAYER = 4 * (WIDTH + 1) * WIDTH + (WIDTH + 1) * 4 * WIDTH + (4 * WIDTH + 1) * WIDTH + 4 * WIDTH
SIZES: dict[str, tuple[tuple[int, ...], int, int]] = {
    "lenet": (DIGITS, 10, 61_706),  # LeCun et al. 1998, with all maps connected
    "lenet_femnist": (DIGITS, 10, 61_706 + 52 * 85),
    "lenet_smooth": (DIGITS, 10, 13_426),
    "mlp": (DIGITS, 10, 199_210),  # McMahan et al. 2017
    "purchase_dnn": ((600,), 100, 601 * 1024 + 1025 * 512 + 513 * 256 + 257 * 100),
    "logistic": ((1, 7, 9), 5, 64 * 5),
    "tanh_cnn": (DIGITS, 10, 26_010),  # Papernot et al. 2020
    "filters_linear": (DIGITS, 10, 7_850),
    "scattering_linear": (DIGITS, 10, 39_210),
    "transformer": (
        (LENGTH,), WORDS,
        WORDS * WIDTH + LENGTH * WIDTH + 2 * LAYER + 2 * WIDTH + (WIDTH + 1) * WORDS,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_a_model_has_the_parameters_of_its_source(name: str) -> None:
    shape, classes, size = SIZES[name]
    model = MODELS[name](shape, classes)
    assert sum(parameter.numel() for parameter in model.parameters()) == size


def test_femnist_has_62_classes_and_no_more() -> None:
    assert MODELS["lenet_femnist"](DIGITS, 62)(torch.zeros(3, *DIGITS)).shape == (3, 62)
    with pytest.raises(ModelInvalid, match="has 62 classes, but the data has 63"):
        MODELS["lenet_femnist"](DIGITS, 63)


def test_an_oblong_image_fits_the_model_for_gradient_attacks() -> None:
    assert MODELS["lenet_smooth"]((2, 9, 14), 5)(torch.zeros(3, 2, 9, 14)).shape == (3, 5)


@pytest.mark.parametrize(
    ("name", "curves"),
    [
        ("mlp", [nn.ReLU] * 2), ("purchase_dnn", [nn.Tanh] * 3), ("logistic", []),
        ("lenet", [nn.ReLU] * 4), ("lenet_smooth", [nn.Sigmoid] * 3), ("tanh_cnn", [nn.Tanh] * 3),
    ],
)  # fmt: skip
def test_networks_have_the_activations_of_their_sources(
    name: str, curves: list[type[nn.Module]]
) -> None:
    others = nn.Conv2d | nn.Flatten | nn.Linear | nn.MaxPool2d
    layers = MODELS[name](DIGITS, 4)
    assert [type(m) for m in layers if not isinstance(m, others)] == curves


def test_the_first_weights_are_those_of_their_sources() -> None:
    """Uniform within sqrt(6 / inputs) for ReLU (He et al.), and within 1/2 for gradient attacks."""
    for name in ("lenet", "lenet_smooth"):
        for key, drawn in build(name, DIGITS, 10, Seeded(3)).named_parameters():
            zero = name == "lenet" and key.endswith("bias")
            ends = (6 / drawn[0].numel()) ** 0.5 if name == "lenet" else 0.5
            ends = 0.0 if zero else ends
            assert drawn.abs().max() <= ends * (1 + 1e-6)
            assert zero or drawn.numel() < 100 or -drawn.min() > 0.9 * ends < drawn.max()
    positions = build("transformer", (20,), 11, Seeded(3))[1].weight
    assert float(positions.detach().std()) == pytest.approx(0.02, rel=0.1)


def test_a_shorter_text_has_the_positions_of_a_longer_ones_beginning() -> None:
    torch.manual_seed(0)
    model, x = MODELS["transformer"]((9,), 11), torch.arange(18).reshape(2, 9) % 11
    torch.testing.assert_close(model(x[:, :4]), model(x)[:, :4], rtol=1e-4, atol=1e-5)


def test_a_causal_layer_has_the_activation_that_it_is_given() -> None:
    layers = [CausalLayer(6, 2, 10, curve) for curve in (functional.relu, functional.gelu)]
    layers[1].load_state_dict(layers[0].state_dict())
    x = torch.linspace(-2, 2, 48).reshape(2, 4, 6) ** 2
    relu, gelu = (layer(x) for layer in layers)
    assert (relu - gelu).abs().max() > 1e-4


def test_an_outline_of_a_model_that_cannot_be_made_is_an_error() -> None:
    """It is None only for a function that needs values, which `build` can make."""
    with pytest.raises(ModelInvalid, match="no_such_file"):
        outline("no_such_file:model", (7,), 3)


def test_initial_weights_are_drawn_from_the_entropy_alone() -> None:
    state = torch.random.get_rng_state()
    first, again, other = (
        build("task_parts:linear", (7,), 3, Seeded(seed)).weight for seed in (1, 1, 2)
    )
    assert first.shape == (3, 7)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_importing_a_model_that_draws_random_numbers_does_not_change_its_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first process imports the module when it builds the model; later calls do not."""
    (tmp_path / "drawing_model.py").write_text(
        "from torch import nn\nexample = nn.Linear(3, 3)\ndef net(): return nn.Linear(3, 3)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    first, again = (build("drawing_model:net", (3,), 3, Seeded(1)).weight for _ in range(2))
    assert torch.equal(first, again)


def test_an_outline_leaves_the_tensors_of_a_users_module_with_their_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deployed client makes the outline first. The module's tensors must be usable afterwards."""
    (tmp_path / "scaling_model.py").write_text(
        "import torch\nMEAN = torch.tensor([1.0, 2.0, 3.0])\n"
        "class Net(torch.nn.Linear):\n"
        "    def forward(self, x): return super().forward(x - MEAN)\n"
        "def net(): return Net(3, 3)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert outline("scaling_model:net", (3,), 3) is not None
    model = build("scaling_model:net", (3,), 3, Seeded(1))
    assert torch.isfinite(model(torch.ones(1, 3))).all()


@pytest.mark.parametrize("shape", [(-1, 4), {"turn": (), "words": (4,)}])
def test_built_in_models_take_examples_of_one_shape(shape: object) -> None:
    with pytest.raises(ModelInvalid, match="model = mlp needs examples of one array and one shape"):
        build("mlp", shape, 3, Seeded(0))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["filters_linear", "scattering_linear"])
def test_the_head_of_fixed_filters_starts_at_zero(name: str) -> None:
    head = build(name, (1, 8, 12), 5, Seeded(3))[-1]
    assert [int(part.count_nonzero()) for part in (head.weight, head.bias)] == [0, 0]
