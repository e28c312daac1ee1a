"""Tests which layers of a language model train: adapters in the loop, nothing of its base."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tiny_language
from fedveil.engine.assembly import load_data, make_model
from fedveil.engine.job_model import ModelShape
from fedveil.engine.trainer_choice import LOOP, NOTHING, LayerTraining, layer_training
from fedveil.federated.job import Job
from fedveil.learning.weight_layout import Layout

pytest.importorskip("transformers")

NEW = {"model_type": "gpt2", "n_embd": 24, "n_layer": 2, "n_head": 3, "vocab_size": 300}


def lines(job: Job) -> dict[str, LayerTraining]:
    """Return the lines of a job's table by layer, and check that they count the weights."""
    found = layer_training(job)
    trained = sum(line.parameters for line in found if line.trained_by == LOOP)
    tied = sum(line.parameters for line in found if "shares a weight" in line.reason)
    model = make_model(job, ModelShape.of(load_data(job)))
    assert trained - tied == Layout(model).dimension
    return {line.layer: line for line in found}


def job(folder: Path, texts: Path, **more: Any) -> Job:
    return Job.load(None, tiny_language.settings(folder, texts, **more))


def test_the_loop_trains_adapters_and_the_base_is_frozen(model: Path, texts: Path) -> None:
    found = lines(job(model, texts))
    base = {line.reason for line in found.values() if line.trained_by == NOTHING}
    assert base == {"its weights are frozen"}
    adapters = [name for name, line in found.items() if line.trained_by == LOOP and line.parameters]
    assert {name.split(".")[-2] for name in adapters} == {"lora_A", "lora_B"}
    assert len(adapters) == 4
    assert found["model"].reason == "native code cannot follow the forward pass of LanguageModel"


def test_a_transformer_from_the_configuration_is_the_loops(words: Path, texts: Path) -> None:
    found = lines(job(words, texts, **{"adapter.kind": "none", "language.config": NEW}))
    assert {line.trained_by for line in found.values()} == {LOOP}
    norm = found["net.transformer.h.1.ln_1"]
    assert norm.could_be_native
    assert norm.reason.startswith(
        "could be native; PyTorch's loop trains it because of the model (LanguageModel), "
        "layer net (GPT2LMHeadModel), layer net.transformer (GPT2Model) and "
    )
    assert found["net.transformer.h.0.mlp.c_fc"].reason == "native code does not know Conv1D"
    head = found["net.lm_head"].reason
    assert head.startswith("it shares a weight with layer net.transformer.wte")
