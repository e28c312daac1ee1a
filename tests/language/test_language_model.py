"""The language model: its sizes, what each position may see, and its memory."""

from __future__ import annotations

import math
import re

import pytest
import torch
from torch import nn

from fedveil.errors import InvalidValue
from fedveil.language.transformer import (
    PRESETS,
    Backbone,
    Layer,
    Shape,
    TiedHead,
    WordAndPosition,
    token_loss,
)

SMALL = Shape(vocabulary=50, context=12, width=16, layers=3, heads=4)


def model(shape: Shape = SMALL, seed: int = 0) -> tuple[WordAndPosition, Backbone, TiedHead]:
    torch.manual_seed(seed)
    embedding = WordAndPosition(shape)
    return embedding, Backbone(shape), TiedHead(embedding.word)


def tokens(count: int, length: int, shape: Shape = SMALL) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(shape.vocabulary, (count, length), generator=generator)


def counted(*modules: nn.Module) -> int:
    """Weights by their identity: a shared one counts once."""
    found = {id(p): p.numel() for module in modules for p in module.parameters()}
    return sum(found.values())


def by_hand(shape: Shape) -> int:
    """The weights of a GPT-like model, tensor by tensor."""
    d, wide = shape.width, 4 * shape.width
    attention = [(d, d), (d,)] * 4  # query, key, value, output
    feedforward = [(wide, d), (wide,), (d, wide), (d,)]
    norms = [(d,)] * 4
    layer = sum(math.prod(size) for size in [*attention, *feedforward, *norms])
    tables = [(shape.vocabulary, d), (shape.context, d), (shape.context, d)]
    outer_norms = [(d,)] * 4
    return shape.layers * layer + sum(math.prod(size) for size in [*tables, *outer_norms])


@pytest.mark.parametrize("name", PRESETS)
def test_presets_have_the_weights_that_their_sizes_say(name: str) -> None:
    shape = PRESETS[name]
    with torch.device("meta"):
        built = model(shape)
    assert counted(*built) == by_hand(shape)


def test_the_350m_preset_has_its_name_s_size() -> None:
    assert by_hand(PRESETS["350M"]) == 345_370_624


@pytest.mark.slow
def test_the_350m_preset_takes_a_step() -> None:
    shape = PRESETS["350M"]
    embedding, backbone, head = model(shape)
    weights = {p for m in (embedding, backbone, head) for p in m.parameters()}
    optimizer = torch.optim.SGD(weights, 1e-2)
    text = tokens(1, 129, shape)
    losses = []
    for _ in range(2):
        loss = token_loss(head(backbone(embedding(text[:, :-1]))), text[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(math.log(shape.vocabulary), abs=0.5)
    assert losses[1] < losses[0]


def test_shapes_from_tokens_to_scores() -> None:
    embedding, backbone, head = model()
    vectors = embedding(tokens(3, 7))
    assert vectors.shape == (3, 7, SMALL.width)
    hidden = backbone(vectors)
    assert hidden.shape == vectors.shape
    assert head(hidden).shape == (3, 7, SMALL.vocabulary)
    assert all(t.dtype == torch.float32 and t.is_contiguous() for t in (vectors, hidden))


def test_initial_weights_have_the_stated_scales() -> None:
    embedding, backbone, _ = model(Shape(vocabulary=90, context=70, width=64, layers=3, heads=2))
    found = {
        name: weight.std().item()
        for part in (embedding, backbone)
        for name, weight in part.named_parameters()
        if weight.dim() > 1
    }
    for name, std in found.items():
        wanted = 0.02
        if name in ("word.weight", "position.weight"):
            wanted = 0.64 / 8 if name == "word.weight" else 0.25 * 0.64 / 8
        if "attended" in name or "narrow" in name:
            wanted = 0.02 / 6**0.5
        assert std == pytest.approx(wanted, rel=0.06), name
    assert torch.equal(backbone.entry.weight, torch.full((64,), 0.64 / 8))
    assert not any(b.any() for n, b in backbone.named_parameters() if n.endswith("bias"))


def test_it_is_the_model_of_its_definition() -> None:
    """Every weight is drawn anew, so that none is like another."""
    embedding, backbone, head = model()
    torch.manual_seed(4)
    for weight in (*embedding.parameters(), *backbone.parameters()):
        nn.init.normal_(weight, mean=0.2, std=0.4)
    text = tokens(2, 7)

    def attended(layer: Layer, x: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
        asked, (keys, values) = layer.ask(query), layer.keys_and_values(x).chunk(2, dim=-1)
        mixed = []
        for q, k, v in zip(*(each.split(4, dim=-1) for each in (asked, keys, values)), strict=True):
            scores = q @ k.transpose(-1, -2) / 2
            scores = scores.masked_fill(torch.ones(7, 7).triu(1).bool(), -torch.inf)
            mixed.append(scores.softmax(-1) @ v)
        return layer.attended(torch.cat(mixed, dim=-1))

    x = embedding.word.weight[text] + embedding.position.weight[:7]
    x = backbone.entry(x)
    for layer in (*backbone.layers, backbone.query_layer):
        normed = layer.attention_norm(x)
        query = backbone.query.weight[:7].expand(2, 7, 16)
        x = x + attended(layer, normed, query if layer is backbone.query_layer else normed)
        x = x + layer.narrow(nn.functional.gelu(layer.widen(layer.feed_norm(x))))
    expected = backbone.final(x) @ embedding.word.weight.T
    torch.testing.assert_close(head(backbone(embedding(text))), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("changed", [1, 5, 11])
def test_a_later_token_never_changes_an_earlier_score(changed: int) -> None:
    embedding, backbone, head = model()
    text = tokens(2, 12)
    other = text.clone()
    other[:, changed] = (other[:, changed] + 1) % SMALL.vocabulary
    before, after = (head(backbone(embedding(t))) for t in (text, other))
    assert torch.equal(before[:, :changed], after[:, :changed])
    assert not torch.equal(before[:, changed], after[:, changed])


def test_gradients_do_not_reach_later_positions() -> None:
    _, backbone, _ = model()
    vectors = torch.randn(1, 12, SMALL.width, generator=torch.Generator().manual_seed(2))
    vectors.requires_grad_()
    backbone(vectors)[0, 4].square().sum().backward()
    assert vectors.grad is not None
    reached = vectors.grad[0].abs().sum(1) > 0
    assert reached.tolist() == [True] * 5 + [False] * 7


@pytest.mark.parametrize("pieces", [[12], [1] * 12, [5, 1, 6], [3, 9]])
def test_piece_by_piece_is_the_whole(pieces: list[int]) -> None:
    embedding, backbone, _ = model()
    text = tokens(2, 12)
    whole = backbone(embedding(text))
    memory, start, found = backbone.new_memory(), 0, []
    for length in pieces:
        vectors = embedding(text[:, start : start + length], start)
        found.append(backbone(vectors, memory))
        start += length
    torch.testing.assert_close(torch.cat(found, dim=1), whole, rtol=1e-5, atol=1e-6)


def test_attention_asks_by_position_on_top() -> None:
    """The query layer's question is a learned vector of the position, the same for every text."""
    _, backbone, _ = model()
    asked: list[torch.Tensor] = []
    backbone.query_layer.ask.register_forward_pre_hook(lambda module, args: asked.append(args[0]))
    backbone(torch.randn(2, 5, SMALL.width))
    assert torch.equal(asked[0], backbone.query.weight[None, :5])


def test_the_model_learns_by_heart() -> None:
    """Loss near 0 on a text seen over and over, from about log(vocabulary)."""
    embedding, backbone, head = model()
    text = tokens(2, 13)
    weights = {p for m in (embedding, backbone, head) for p in m.parameters()}
    optimizer = torch.optim.Adam(weights, 1e-2)
    losses = []
    for _ in range(120):
        loss = token_loss(head(backbone(embedding(text[:, :-1]))), text[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(math.log(50), abs=1.0)
    assert losses[-1] < 0.1


def test_the_loss_is_the_mean_over_tokens() -> None:
    scores = torch.tensor([[[0.0, math.log(3.0)], [0.0, 0.0]]])
    expected = (math.log(4 / 3) + math.log(2)) / 2
    found = token_loss(scores, torch.tensor([[1, 0]])).item()
    assert found == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"heads": 5}, "width = 16 is not a multiple of heads = 5"),
        ({"layers": 0}, "layers = 0 is outside [1, inf)"),
        ({"context": 0}, "context = 0 is outside [1, inf)"),
        ({"vocabulary": 0}, "vocabulary = 0 is outside [1, inf)"),
        ({"width": 0}, "width = 0 is outside [1, inf)"),
        ({"heads": -4}, "heads = -4 is outside [1, inf)"),
    ],
)
def test_impossible_sizes_are_refused(changes: dict[str, int], sentence: str) -> None:
    sizes = {"vocabulary": 50, "context": 12, "width": 16, "layers": 3, "heads": 4} | changes
    with pytest.raises(InvalidValue, match=re.escape(sentence)):
        Shape(**sizes)
