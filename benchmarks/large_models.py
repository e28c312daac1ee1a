"""Models of a size used in practice, and synthetic data of their shapes, for `sizes.py`."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

CLIENTS, IMAGES, WINDOWS = 10, 50, 2
VOCABULARY, CONTEXT, WIDTH, LAYERS, HEADS = 25_000, 64, 768, 12, 12
#: The folder of the model under the adapters, with random weights. It is made where it is missing.
ADAPTED = Path(tempfile.gettempdir(), "gpt2-of-104-million-random-weights")
RANK = 8


def resnet18_data() -> Any:
    """Return noise in the shape of CIFAR's images, ten classes, with owners."""
    made = torch.Generator().manual_seed(0)
    x = torch.randn(CLIENTS * IMAGES, 3, 32, 32, generator=made)
    y = torch.randint(10, (len(x),), generator=made)
    return TensorDataset(x, y), TensorDataset(x[:20], y[:20])


def transformer_data() -> Any:
    """Return windows of random tokens."""
    made = torch.Generator().manual_seed(0)
    x = torch.randint(VOCABULARY, (CLIENTS * WINDOWS, CONTEXT + 1), generator=made).numpy()
    return {"x_train": x, "x_test": x[:2]}


def resnet18(shape: Sequence[int], classes: int) -> nn.Module:
    """Return ResNet-18 for CIFAR with group norm: 11,173,962 parameters for ten classes."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, padding=1, bias=False), _norm(64), nn.ReLU()]
    width = 64
    for wide, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [_Block(width, wide, stride), _Block(wide, wide, 1)]
        width = wide
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))


def transformer(shape: Sequence[int], outputs: int) -> nn.Module:
    """Return a decoder of GPT-2's small size with 25,000 untied tokens: 124,439,808 parameters."""
    return _Decoder()


def medium(shape: Sequence[int], outputs: int) -> nn.Module:
    """Return a decoder of GPT-2's medium size with 25,000 untied tokens: 353,576,960 parameters."""
    return _Decoder(1024, 24, 16)


medium_data = adapters_data = transformer_data


def make_adapted() -> None:
    """Save a GPT-2 of small size with random weights and 25,000 tokens: 104,303,616 parameters."""
    from transformers import GPT2Config, GPT2LMHeadModel

    if (ADAPTED / "model.safetensors").is_file():
        return
    shape = {"n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "n_positions": 2 * CONTEXT}
    kept = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    torch.manual_seed(1)
    config = GPT2Config(vocab_size=VOCABULARY, bos_token_id=0, eos_token_id=0, **shape, **kept)
    with tempfile.TemporaryDirectory(dir=ADAPTED.parent) as folder:
        GPT2LMHeadModel(config).save_pretrained(f"{folder}/model")
        Path(folder, "model").rename(ADAPTED)


def adapters() -> nn.Module:
    """Return the saved model with adapters of its attention layers: 294,912 trained numbers."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(ADAPTED)
    lora = LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules=["c_attn"], fan_in_fan_out=True)
    return _Scores(get_peft_model(base, lora))


def _norm(channels: int) -> nn.Module:
    return nn.GroupNorm(32, channels)


class _Scores(nn.Module):
    """Wraps a language model, and returns only its scores."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.model(input_ids=x).logits
        return scores


class _Block(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.one = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.two = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norm_one, self.norm_two = _norm(after), _norm(after)
        self.past: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.past = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), _norm(after))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = torch.relu(self.norm_one(self.one(x)))
        return torch.relu(self.norm_two(self.two(inner)) + self.past(x))


class _Decoder(nn.Module):
    def __init__(self, width: int = WIDTH, layers: int = LAYERS, heads: int = HEADS) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.places = nn.Embedding(CONTEXT, width)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ahead = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        held = self.tokens(x) + self.places.weight[: x.shape[1]]
        scores: torch.Tensor = self.out(self.norm(self.layers(held, ahead, is_causal=True)))
        return scores
