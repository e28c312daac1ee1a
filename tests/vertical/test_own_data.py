"""Whatever lets an example change the later bits of others is in the account."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedveil.record.account_lines import influence
from fedveil.vertical.account import figures
from fedveil.vertical.own_data import sends_unprotected, trained_by_examples, unprotected_gradients
from fedveil.vertical.split import EmbeddingPrivacy, Part, SplitModel

STRAIGHT = EmbeddingPrivacy(0.7)
SILENT = EmbeddingPrivacy(0.7, gradient="none")


def split_of(*bank: Part) -> SplitModel:
    """Return a model in which the leader reads the bank's last part, and the bank its `words`."""
    words = Part("words", "lead", ("data.z",), (3,), nn.Linear(2, 3), frozen=True)
    last = Part("top", "lead", (bank[-1].name,), (2,))
    return SplitModel([words, *bank, last], leader="lead")


@pytest.mark.parametrize("frozen", [False, True])
def test_a_part_learns_from_columns_that_enter_after_it(frozen: bool) -> None:
    """Its gradient passes through a part that reads the columns, even through a frozen one."""
    first = Part("first", "bank", ("words",), (4,))
    second = Part("second", "bank", ("first",), (5,))
    joined = Part("joined", "bank", ("second", "data.x"), (6,), frozen=frozen, privacy=STRAIGHT)
    split = split_of(first, second, joined)
    joined_too = [] if frozen else ["joined"]
    assert trained_by_examples(split, "bank") == ["first", "second", *joined_too]
    untrained = split_of(replace(first, frozen=True), second, joined)
    assert trained_by_examples(untrained, "bank") == ["second", *joined_too]


def test_a_part_without_the_partys_columns_before_or_after_it_learns_nothing_of_them() -> None:
    beside = Part("beside", "bank", ("words",), (4,))
    alone = Part("alone", "bank", ("data.x",), (5,), privacy=STRAIGHT)
    top = Part("top", "lead", ("beside", "alone"), (2,))
    words = Part("words", "lead", ("data.z",), (3,))
    split = SplitModel([words, beside, alone, top], leader="lead")
    assert trained_by_examples(split, "bank") == ["alone"]


@pytest.mark.parametrize(("frozen", "trained"), [(False, ["words"]), (True, [])])
def test_a_part_that_gets_no_gradient_is_trained_through_another_with_its_weights(
    frozen: bool, trained: list[str]
) -> None:
    """The head and the embedding of a language model share one table of words."""
    table = nn.Linear(4, 4)
    words = Part("words", "lead", ("data.z",), (4,), table, privacy=SILENT)
    middle = Part("middle", "bank", ("words",), (4,))
    head = Part("head", "lead", ("middle",), (4,), nn.Sequential(nn.ReLU(), table))
    split = SplitModel([words, middle, replace(head, frozen=frozen)], leader="lead")
    assert not split.runs_backward("words")
    table.requires_grad_(not frozen)  # as training does to a frozen part
    assert trained_by_examples(split, "lead") == trained
    apart = SplitModel([words, middle, replace(head, module=nn.Linear(4, 4))], leader="lead")
    assert trained_by_examples(apart, "lead") == []


def test_two_parts_with_the_same_weights_that_get_no_gradient_are_not_trained() -> None:
    table = nn.Linear(4, 4)
    some = [
        Part(name, "lead", (f"data.{name}",), (4,), table, privacy=SILENT)
        for name in ("words", "signs")
    ]
    middle = Part("middle", "bank", ("words", "signs"), (3,))
    head = Part("head", "lead", ("middle",), (2,), nn.Linear(3, 2))
    split = SplitModel([*some, middle, head], leader="lead")
    assert trained_by_examples(split, "lead") == []


def test_only_what_leaves_a_party_is_unprotected() -> None:
    first = Part("first", "bank", ("data.x", "words"), (4,))
    last = Part("last", "bank", ("first",), (5,), privacy=STRAIGHT)
    split = split_of(first, last)
    assert sends_unprotected(split, "bank") == []
    assert sends_unprotected(split.replace("last", privacy=None), "bank") == ["last"]
    assert unprotected_gradients(split, "bank") == []  # frozen words get no gradient
    assert unprotected_gradients(split.replace("words", frozen=False), "bank") == ["words"]


def test_what_passes_several_parts_of_a_party_is_its_own_data_still() -> None:
    names = ["first", "second", "third", "fourth"]
    parts = [Part(name, "bank", (source,), (4,))
             for source, name in zip(["words", *names], names, strict=False)]  # fmt: skip
    assert sends_unprotected(split_of(*parts), "bank") == []
    parts[0] = replace(parts[0], inputs=("words", "data.x"))
    assert sends_unprotected(split_of(*parts), "bank") == ["fourth"]


def test_a_part_that_gets_no_gradient_learns_through_statistics_of_its_batches() -> None:
    def bits(module: nn.Module, **more: Any) -> list[str]:
        part = Part("part", "bank", ("data.x",), (4,), module, privacy=SILENT, **more)
        top = Part("top", "lead", ("part",), (2,))
        return trained_by_examples(SplitModel([part, top], leader="lead"), "bank")

    normed = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    table = nn.Linear(3, 4)
    table.register_buffer("edges", table.weight.detach().clone())
    assert bits(normed) == ["part"]
    assert bits(normed, frozen=True) == []  # its statistics do not move
    assert bits(table) == []


@pytest.mark.parametrize("frozen", [False, True])
def test_a_layer_that_mixes_the_examples_of_a_batch_does_so_at_rest_too(frozen: bool) -> None:
    """One example then moves the bits of all others, which are charged for their own values."""

    def stated(*layers: nn.Module, privacy: EmbeddingPrivacy = SILENT) -> list[str]:
        inner = Part("inner", "bank", ("data.x",), (4,), nn.Sequential(*layers), frozen=frozen)
        outer = Part("outer", "bank", ("inner",), (4,), nn.Linear(4, 4), frozen=True)
        parts = [inner, replace(outer, privacy=privacy), Part("top", "lead", ("outer",), (2,))]
        releases: Any = SimpleNamespace(train=np.array([3, 1]), looks=2)
        lines = figures(SplitModel(parts, leader="lead"), "bank", releases, 1e-5, None)
        return [line.what for line in lines if line.epsilon == math.inf]

    torch.manual_seed(3)
    mixing = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, track_running_stats=False)).eval()
    rows = torch.randn(9, 3)
    other = rows.clone()
    other[8] = 1000.0
    assert ((mixing(rows) > 0) != (mixing(other) > 0))[:8].any()
    mixed = (
        "an example's influence on the reports of others in its batch, through batch statistics "
        "of inner"
    )
    taught = influence("inner")
    # With running statistics, only training mixes a batch, and a frozen part is not in training.
    assert stated(nn.Linear(3, 4), nn.BatchNorm1d(4)) == ([] if frozen else [taught, mixed])
    assert stated(mixing) == [mixed]
    assert stated(mixing, privacy=STRAIGHT) == ([mixed] if frozen else [taught, mixed])
    assert stated(nn.Linear(3, 4), nn.LayerNorm(4), nn.InstanceNorm1d(4)) == []
