"""Each key of a language model, changed alone, changes the result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import fedveil
import tiny_language
from fedveil.errors import ModelInvalid
from fedveil.federated.job import Job
from fedveil.learning.weight_layout import Layout
from fedveil.record.before_after import read_before_after

NEW = {"model_type": "gpt2", "n_embd": 8, "n_layer": 1, "n_head": 2, "vocab_size": 300}
#: The block of a key, the key, and another value than that of the base.
CASES: list[tuple[str, str, Any]] = [
    ("adapter", "kind", "none"),
    ("adapter", "rank", 2),
    ("adapter", "alpha", 3.0),
    ("adapter", "targets", ["c_fc", "c_attn"]),
    ("language", "length", 9),
    ("language", "config", NEW),
    ("language", "prompts", ["a bird"]),
    ("language", "new_tokens", 3),
]
RECOMPUTED = {f"language.{key}": True for key in ["recompute"]}


def observed(folder: Path, model: Path, texts: Path, **more: Any) -> Any:
    settings = tiny_language.settings(model, texts, rounds=1, **more)
    run = fedveil.simulate(Job.load(None, settings), folder)
    return run.metrics[-1]["loss"], Layout(run.model).dimension, read_before_after(folder)


@pytest.fixture(scope="module")
def base(model: Path, texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return observed(tmp_path_factory.mktemp("base") / "run", model, texts)


@pytest.mark.parametrize(("block", "key", "value"), CASES)
def test_a_key_changes_something(
    block: str, key: str, value: Any, base: Any, model: Path, texts: Path, tmp_path: Path
) -> None:
    assert observed(tmp_path / "run", model, texts, **{f"{block}.{key}": value}) != base


def test_a_repeated_run_changes_nothing(
    base: Any, model: Path, texts: Path, tmp_path: Path
) -> None:
    assert observed(tmp_path / "run", model, texts) == base


def test_recomputed_activations_take_less_memory_and_change_nothing(
    base: Any, model: Path, texts: Path, tmp_path: Path
) -> None:
    made = [tiny_language.built(model, **more) for more in ({}, RECOMPUTED)]
    kept = [saved_bytes(each) for each in made]
    assert kept[1] < 0.7 * kept[0]
    loss, *rest = observed(tmp_path / "run", model, texts, **RECOMPUTED)
    assert rest == [*base[1:]]
    assert loss == pytest.approx(base[0], rel=1e-5)


def saved_bytes(model: Any) -> int:
    """Return the bytes that a forward pass keeps for the backward pass, without the weights."""
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
        return tensor

    weights = {p.data_ptr() for p in model.parameters()}
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model.train()(torch.zeros(5, 11, dtype=torch.int64))
    return sum(size for place, size in kept.items() if place not in weights)


def test_a_rank_decides_the_size(base: Any) -> None:
    _, dimension, _ = base
    assert dimension == 2 * 3 * (16 + 48)  # c_attn of two layers, rank 3


def test_unknown_targets_are_told_with_the_layers(model: Path, texts: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelInvalid, match=r"adapter.targets = .*c_attn, c_fc, c_proj, lm_head"):
        observed(tmp_path / "run", model, texts, **{"adapter.targets": ["q_proj"]})
