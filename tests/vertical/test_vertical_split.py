"""Split models: invalid ones, and the crossings of valid ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import vertical_parts
from fedveil.errors import InvalidValue, SplitInvalid
from fedveil.vertical import EmbeddingPrivacy, Optimizer, Part, SplitModel


def part(name: str, owner: str, *inputs: str, **more: object) -> Part:
    return Part(name, owner, inputs, (4,), **more)  # type: ignore[arg-type]


LEFT = part("left", "bank", "data.x")
RIGHT = part("right", "shop", "data.x")
TOP = part("top", "lead", "left", "right")


def test_followers_bottoms_and_leaders_top() -> None:
    split = SplitModel([LEFT, RIGHT, TOP], leader="lead")
    assert split.parties == ("lead", "bank", "shop")
    assert split.columns("bank") == ("x",)
    assert [(c.part, c.sender, c.receiver, c.gradient) for c in split.crossings] == [
        ("left", "bank", "lead", True),
        ("right", "shop", "lead", True),
    ]


def test_an_output_crosses_once_for_all_parts_of_a_party_and_never_to_its_own() -> None:
    split = SplitModel(
        [
            part("embedding", "lead", "data.x"),
            part("first", "bank", "embedding"),
            part("second", "bank", "embedding", "first"),
            part("head", "lead", "second", "embedding"),
        ],
        leader="lead",
    )
    assert [(c.part, c.consumers) for c in split.crossings] == [
        ("embedding", ("first", "second")),
        ("second", ("head",)),
    ]


@pytest.mark.parametrize(
    ("privacy", "frozen", "gradient", "backward"),
    [
        (None, False, True, True),
        (None, True, False, False),
        (EmbeddingPrivacy(5.0), False, True, True),
        (EmbeddingPrivacy(5.0, "none"), False, False, False),
        (EmbeddingPrivacy(5.0, reuse=True), True, False, False),
        (EmbeddingPrivacy(5.0, "none", reuse=True), False, False, False),
    ],
)
def test_a_gradient_comes_back_where_it_changes_a_weight(
    privacy: EmbeddingPrivacy | None, frozen: bool, gradient: bool, backward: bool
) -> None:
    left = part("left", "bank", "data.x", privacy=privacy, frozen=frozen)
    split = SplitModel([left, part("top", "lead", "left")], leader="lead")
    assert split.crossings[0].gradient is gradient
    assert split.runs_backward("left") is backward
    assert split.runs_backward("top")


def test_under_reuse_a_part_learns_until_all_was_sent() -> None:
    """Parts before it also learn until then; the leader's own parts continue."""
    parts = [
        part("first", "bank", "data.x"),
        part("left", "bank", "first", privacy=EmbeddingPrivacy(5.0, reuse=True)),
        part("right", "shop", "data.x"),
        part("top", "lead", "left", "right"),
    ]
    split = SplitModel(parts, leader="lead")
    assert [crossing.gradient for crossing in split.crossings] == [True, True]
    assert [crossing.gradient for crossing in split.settled.crossings] == [False, True]
    assert [part.frozen for part in split.settled.parts] == [True, True, False, False]
    assert split.settled.is_constant("left")
    assert split.settled.settled is split.settled
    plain = split.replace("left", privacy=EmbeddingPrivacy(5.0))
    assert plain.settled is plain


def test_a_frozen_part_gives_the_gradient_on_to_one_that_trains() -> None:
    parts = [
        part("embedding", "lead", "data.x"),
        part("backbone", "bank", "embedding", frozen=True),
        part("head", "lead", "backbone"),
    ]
    split = SplitModel(parts, leader="lead")
    assert all(crossing.gradient for crossing in split.crossings)
    assert not split.is_constant("backbone")
    still = SplitModel(
        [part("embedding", "lead", "data.x", frozen=True), *parts[1:]], leader="lead"
    )
    assert still.is_constant("backbone")
    assert not any(crossing.gradient for crossing in still.crossings)
    blind = split.replace("embedding", privacy=EmbeddingPrivacy(5.0, "none"))
    assert not any(crossing.gradient for crossing in blind.crossings)


def test_a_gradient_comes_back_from_the_parties_that_compute_one_alone() -> None:
    parts = [
        part("embedding", "lead", "data.x"),
        part("open", "bank", "embedding"),
        part("blind", "shop", "embedding", privacy=EmbeddingPrivacy(5.0, "none")),
        part("top", "lead", "open", "blind"),
    ]
    split = SplitModel(parts, leader="lead")
    assert [(c.part, c.receiver, c.gradient) for c in split.crossings] == [
        ("embedding", "bank", True), ("embedding", "shop", False), ("open", "lead", True),
        ("blind", "lead", False),
    ]  # fmt: skip


REFUSED: dict[str, Callable[[], object]] = {
    "a split model needs at least one part; this one has none": list,
    "the part 'l.r' is not a name: a letter": lambda: [part("l.r", "bank", "data.x"), TOP],
    "the owner of the part left, 'a b' is not a name": lambda: [part("left", "a b", "data.x")],
    "the part left occurs twice": lambda: [LEFT, LEFT, TOP],
    "the part half has the name of an attribute of torch's modules": (
        lambda: [part("half", "bank", "data.x"), TOP]
    ),
    "the part top has no inputs; at least one is needed": lambda: [part("top", "lead")],
    "the part top reads 'left', which is neither data.COLUMN nor an earlier part (none)": (
        lambda: [TOP]
    ),
    "the part top reads 'data.', which is neither": lambda: [part("top", "lead", "data.")],
    "the part top reads 'left' twice": lambda: [LEFT, part("top", "lead", "left", "left")],
    "no later part reads the part right; this is allowed only for the last, top": (
        lambda: [LEFT, RIGHT, part("top", "lead", "left")]
    ),
    "the last part, left, belongs to bank: its owner must be the leader, lead": lambda: [LEFT],
    "the part left of bank is read by right of shop: one of the two parties must be the": (
        lambda: [LEFT, part("right", "shop", "left"), part("top", "lead", "right")]
    ),
    "the privacy of the part own protects nothing: its output stays with lead": (
        lambda: [
            part("own", "lead", "data.x", privacy=EmbeddingPrivacy()),
            part("top", "lead", "own"),
        ]
    ),
    "embedding_dp.reuse of the part left needs weights, its own and those of earlier parts": (
        lambda: [
            part("left", "bank", "data.x", privacy=EmbeddingPrivacy(1.0, reuse=True)),
            part("more", "bank", "left"),
            part("top", "lead", "left", "more"),
        ]
    ),
    "the part left has dtype 'float16'; only float32, bfloat16 can be sent": (
        lambda: [part("left", "bank", "data.x", dtype="float16"), part("top", "lead", "left")]
    ),
    "the part left has dtype bfloat16; under embedding_dp it must be float32": (
        lambda: [
            part("left", "bank", "data.x", dtype="bfloat16", privacy=EmbeddingPrivacy()),
            part("top", "lead", "left"),
        ]
    ),
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_what_is_refused_is_refused_in_one_sentence(sentence: str) -> None:
    with pytest.raises(SplitInvalid) as caught:
        SplitModel(REFUSED[sentence](), leader="lead")  # type: ignore[arg-type]
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Optimizer("rmsprop"), "optimizer.name = 'rmsprop' is not one of sgd, adam, adamw"),  # type: ignore[arg-type]
        (lambda: Optimizer(lr=0), "optimizer.lr = 0 is outside"),
        (lambda: Optimizer(momentum=1.0), "optimizer.momentum = 1.0 is outside"),
        (lambda: Optimizer(weight_decay=-0.1), "optimizer.weight_decay = -0.1 is outside"),
        (lambda: Optimizer(warmup_steps=-1), "optimizer.warmup_steps = -1 is outside"),
        (lambda: Optimizer(decay_steps=0), "optimizer.decay_steps = 0 is outside"),
        (lambda: Optimizer(gradient_norm=0.0), "optimizer.gradient_norm = 0.0 is outside"),
        (lambda: EmbeddingPrivacy(-1.0), "embedding_dp.eps = -1.0 is outside"),
        (lambda: EmbeddingPrivacy(1.0, "nothing"), "embedding_dp.gradient = 'nothing' is not one"),  # type: ignore[arg-type]
        (lambda: SplitModel([Part("t", "l", ("data.x",), (0,))], leader="l"), "output of the part"),
        (lambda: SplitModel([Part("t", "l", ("data.x",), (3, 0))], leader="l"), "part t = 0 is"),
    ],
)
def test_numbers_outside_their_range(make: Callable[[], object], sentence: str) -> None:
    with pytest.raises(InvalidValue, match=sentence):
        make()


def test_the_joined_model_reads_each_partys_own_column() -> None:
    split = vertical_parts.Bottoms().split_model()
    x, _ = vertical_parts.Bottoms().whole("test")
    joined = split.joined()
    found = joined({"bank.x": x[:, :3], "shop.x": x[:, 3:]})
    left, right, top = (part.module for part in split.parts)
    assert isinstance(left, nn.Module)
    assert isinstance(right, nn.Module)
    assert isinstance(top, nn.Module)
    assert torch.equal(found, top(left(x[:, :3]), right(x[:, 3:])))
    assert torch.equal(joined({"x": x[:, 3:], "bank.x": x[:, :3]}), found)


def test_a_part_is_constant_only_if_all_that_it_reads_is() -> None:
    split = SplitModel(
        [
            part("still", "bank", "data.x", frozen=True),
            part("moving", "bank", "data.y"),
            part("both", "bank", "still", "moving", frozen=True),
            part("top", "lead", "both"),
        ],
        leader="lead",
    )
    assert [split.is_constant(one.name) for one in split.parts] == [True, False, False, False]


def test_a_column_that_several_parts_read_is_named_once() -> None:
    parts = [
        part("left", "bank", "data.y", "data.x"),
        part("more", "bank", "data.x", "left", "data.z"),
        part("right", "shop", "data.x"),
        part("top", "lead", "left", "more", "right"),
    ]
    split = SplitModel(parts, leader="lead")
    assert (split.columns("bank"), split.columns("shop")) == (("y", "x", "z"), ("x",))


def test_a_part_without_a_module_is_named_when_it_is_needed() -> None:
    with pytest.raises(SplitInvalid, match="the part left of bank has no module here"):
        SplitModel([LEFT, RIGHT, TOP], leader="lead").joined()


def test_followers_are_in_the_order_of_their_first_parts() -> None:
    parts = [
        part("till", "shop", "data.x"),
        part("left", "bank", "data.x"),
        part("more", "shop", "data.y", "till"),
        part("top", "lead", "left", "more"),
    ]
    assert SplitModel(parts, leader="lead").parties == ("lead", "shop", "bank")
