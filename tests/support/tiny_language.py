"""A tiny language model in a folder, and a folder of texts, made where a test runs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

SENTENCES = [
    "the cat sat on the mat and the dog ran", "a bird sings in the old tree at dawn",
    "rain falls on the quiet town tonight", "she reads a long book by the fire",
]  # fmt: skip
SHAPE = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32, "vocab_size": 0}


def words_folder(folder: Path) -> Path:
    """Save a tokeniser whose tokens are bytes and a few pairs, and weights of nothing."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    words = Tokenizer(models.BPE())
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    words.train_from_iterator(
        SENTENCES,
        trainers.BpeTrainer(vocab_size=270, special_tokens=["<end>"], initial_alphabet=alphabet),
    )
    folder.mkdir()
    words.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2", "eos_token_id": 0}))
    save_file({"nothing": np.zeros(3, np.float32)}, folder / "model.safetensors")
    return folder


def model_folder(folder: Path, **changes: Any) -> Path:
    """Save a GPT-2 of two layers with the tokeniser."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    words_folder(folder)
    torch.manual_seed(5)
    shape = SHAPE | {"vocab_size": 270, "bos_token_id": 0, "eos_token_id": 0}
    GPT2LMHeadModel(GPT2Config(**shape | changes)).save_pretrained(folder)
    return folder


def text_folder(folder: Path, train: Iterable[Mapping[str, Any]], test: Any) -> Path:
    """Write lines of training and of test texts."""
    folder.mkdir()
    for name, lines in (("train", train), ("test", test)):
        text = "\n".join(json.dumps(line) for line in lines)
        (folder / f"{name}.jsonl").write_text(text, "utf-8")
    return folder


def next_tokens(folder: Path, clients: int = 5) -> Path:
    """Write a folder for `task: next_token` whose clients have different numbers of lines."""
    train = [
        {"text": SENTENCES[(i + j) % 4], "client": f"c{i}"}
        for i in range(clients)
        for j in range(1 + i % 3)
    ]
    return text_folder(folder, train, [{"text": text} for text in SENTENCES[:3]])


def settings(model: Path, texts: Path, **more: Any) -> list[str]:
    """Return a job's settings, `key=value`, for adapters on these folders."""
    base = {
        "name": "tiny", "seed": 3, "rounds": 2, "model": f"hf:{model}", "task": "next_token",
        "data.name": "text_folder", "data.folder": str(texts), "data.split": "by_client",
        "clients.fraction": 0.8, "language.length": 11, "adapter.kind": "lora", "adapter.rank": 3,
        "adapter.alpha": 6.0, "training.epochs": 2, "training.batch_size": 2, "training.lr": 0.3,
        "simulation.workers": 0, "record.page": False, "language.prompts": ["the cat"],
        "language.new_tokens": 5,
    }  # fmt: skip
    return [f"{key}={json.dumps(value)}" for key, value in (base | more).items()]


def built(model: Path, **more: Any) -> Any:
    """Return the model with the adapters that `settings` describes, before its training."""
    from fedveil.engine.assembly import ModelShape, make_model
    from fedveil.federated.job import Job

    job = Job.load(None, settings(model, model, **more))
    return make_model(job, ModelShape((11,), 270))


def rows(model: Path, length: int) -> Any:
    """Return the model's tokeniser for rows of `length` tokens."""
    from fedveil.pretrained.model_folder import ModelFolder
    from fedveil.pretrained.token_rows import TokenRows

    return TokenRows(ModelFolder.of(f"hf:{model}"), length)
