"""The keys of language models: model folder, adapters and text."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from fedveil.base.own_code import FUNCTION
from fedveil.federated.protection_switch import OwnValue
from fedveil.pretrained import PREFIX
from fedveil.settings.settings import Block, Under, text

LANGUAGE_TASKS = ("next_token", "sequence_classification", "instruction")
#: A user's folder of texts, in place of a data set's name.
TEXT_FOLDER = "text_folder"


def is_language_model(model: str) -> bool:
    """Return True if `model` names a model folder, as in `hf:FOLDER`."""
    return model.startswith(PREFIX)


def model_text(*words: str) -> AfterValidator:
    """Return a validator for names: one of `words`, a user's function, or a model hf:FOLDER."""
    return text("package.module:function or hf:FOLDER", rf"{PREFIX}[^\0]+|{FUNCTION}", *words)


class AdapterSettings(Block):
    """Adapters of a language model (docs/adapters.md)."""

    kind: Literal["none", "lora"] = Field(
        "none",
        description="trained part of a model `hf:FOLDER`. lora: low-rank adapters (and a "
        "classifier's last layer). Nothing else is trained, sent or saved. none: `training.train` "
        "decides",
    )
    rank: Annotated[int, Under("kind", "lora")] = Field(
        8, ge=1, description="rank of `kind: lora`. A layer of m inputs and n outputs gets "
        "rank * (m + n) numbers"
    )  # fmt: skip
    alpha: Annotated[float, Under("kind", "lora")] = Field(
        16.0,
        gt=0,
        description="scale of `kind: lora`. The adapter's product is multiplied by alpha / rank",
    )
    targets: Annotated[list[str], Under("kind", "lora")] = Field(
        default_factory=list,
        description="names of the layers that get an adapter, such as `c_attn` or `q_proj`; "
        "empty: those that peft chooses for the model",
    )


class LanguageSettings(Block):
    """The text on which a language model `hf:FOLDER` is trained and tested."""

    length: int = Field(
        64,
        ge=2,
        description="number of tokens of an example under `data.name: text_folder`. Longer texts "
        "are cut, shorter ones are padded",
    )
    config: dict[str, OwnValue] = Field(
        default_factory=dict,
        description="configuration of a new model with random weights, with its `model_type`, in "
        "place of the folder's own. The folder then gives only the tokeniser",
    )
    recompute: bool = Field(
        False,
        description="if true, the backward pass computes each layer's activations again: less "
        "memory, more time",
    )
    prompts: list[str] = Field(
        default_factory=list,
        description="texts that the model continues when the run ends, once with its initial and "
        "once with its final weights. The page shows both",
    )
    new_tokens: int = Field(
        24, ge=1, le=1024, description="number of tokens with which each prompt is continued"
    )
