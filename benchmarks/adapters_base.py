"""Pretrains the small language model on which `adapters.py` trains adapters.

    FEDVEIL_DATA=FOLDER python benchmarks/adapters_base.py OUT

OUT becomes a folder as transformers writes it: config.json, model.safetensors, tokenizer.json. The
text is the validation part of WikiText-2. Its last 5% are not used for training, and measure the
perplexity. A stopped run resumes from OUT/state.pt.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from pathlib import Path

import torch

from fedveil.data.data_folders import find

VOCABULARY, LENGTH, BATCH, STEPS, RATE, WARMUP = 2048, 64, 32, 1200, 1.5e-3, 50
SHAPE = {"n_embd": 192, "n_layer": 4, "n_head": 4, "n_positions": 128}


def text_of(name: str) -> str:
    """Return the text `text/NAME` in the folder FEDVEIL_DATA. Ends the program if it is missing."""
    path = find("text", name)
    if path is None:
        sys.exit(f"text/{name} is missing: set FEDVEIL_DATA to a folder that has it")
    return path.read_text("utf-8")


def corpus() -> str:
    return text_of("wikitext2-valid.txt")


def tokenizer(out: Path, text: str):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        text.splitlines(keepends=True),
        trainers.BpeTrainer(
            vocab_size=VOCABULARY, special_tokens=["<|end|>"], initial_alphabet=alphabet
        ),
    )
    from transformers import PreTrainedTokenizerFast

    whole = PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token="<|end|>", pad_token="<|end|>", bos_token="<|end|>"
    )
    whole.save_pretrained(out)
    return whole


def perplexity(model, rows: torch.Tensor) -> float:
    model.eval()
    with torch.no_grad():
        losses = [model(part, labels=part).loss.item() * len(part) for part in rows.split(64)]
    return math.exp(sum(losses) / len(rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop and save after these")
    given = parser.parse_args()
    began, state = time.perf_counter(), given.out / "state.pt"
    given.out.mkdir(exist_ok=True, parents=True)
    from transformers import GPT2Config, GPT2LMHeadModel

    text = corpus()
    words = tokenizer(given.out, text)
    ids = torch.tensor(words.encode(text))
    rows = ids[: len(ids) // LENGTH * LENGTH].view(-1, LENGTH)
    rows, held = rows[: int(0.95 * len(rows))], rows[int(0.95 * len(rows)) :]
    torch.manual_seed(7)
    ends = {"bos_token_id": words.eos_token_id, "eos_token_id": words.eos_token_id}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(words), **SHAPE, **ends))
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.1)
    done = 0
    if state.is_file():
        kept = torch.load(state, weights_only=True)
        model.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        done = kept["done"]
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(ids):,} tokens")
    while done < STEPS and time.perf_counter() - began < given.seconds:
        torch.manual_seed(1000 + done)
        part = rows[torch.randint(len(rows), (BATCH,))]
        rate = min((done + 1) / WARMUP, 0.5 * (1 + math.cos(math.pi * done / STEPS)))
        for group in optimizer.param_groups:
            group["lr"] = RATE * rate
        model.train()
        optimizer.zero_grad(set_to_none=True)
        loss = model(part, labels=part).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        done += 1
        if done % 50 == 0:
            print(f"step {done}: loss {loss.item():.3f}", flush=True)
    torch.save(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "done": done}, state
    )
    took = time.perf_counter() - began
    print(
        f"step {done} of {STEPS}, {took:.0f} s, held-out perplexity {perplexity(model, held):.2f}"
    )
    if done == STEPS:
        model.save_pretrained(given.out)
        state.unlink()


if __name__ == "__main__":
    main()
