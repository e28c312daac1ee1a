"""Wraps a language model of `transformers` as a fedveil model: tokens in, scores out.

With an adapter (LoRA, Hu et al. 2021), training adds a product B A to some weight matrices and
changes nothing else. A client's update is the change of the factors A and B. The server averages
each factor on its own. The product of the two averages is not the average of the products B A.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

import torch
from torch import nn

from fedveil.errors import MissingExtra, ModelInvalid
from fedveil.pretrained.base_weights import digest_of, mark_base
from fedveil.pretrained.model_folder import ModelFolder, quiet, transformers

#: Scores that an evaluation computes at once.
_MOST_SCORES = 1 << 23


@dataclass(frozen=True)
class Adapter:
    """Settings of low-rank adapters: their `rank`, and their scale `alpha` / `rank`.

    `targets` names the layers to adapt. If it is empty, peft chooses the layers.
    """

    rank: int
    alpha: float
    targets: Sequence[str] = ()


@dataclass(frozen=True)
class Trained:
    """Settings that say which weights of a language model are trained, and for which task.

    If `adapter` is given, only adapters and a classifier's last layer are trained. Otherwise, only
    the last layer is trained if `head` is True, and the whole model if it is False. `classes` is
    the number of classes of a classifier, or None for a model that predicts tokens. If `recompute`
    is True, activations are recomputed in the backward pass to save memory.
    """

    adapter: Adapter | None = None
    head: bool = False
    classes: int | None = None
    recompute: bool = False


class LanguageModel(nn.Module):
    """Maps tokens, of shape [examples, length], to scores of the classes or of the next token.

    A deep copy shares the tensors that are not trained.
    """

    def __init__(self, net: nn.Module, pad: int | None, scored_at_once: int) -> None:
        super().__init__()
        self.net, self._pad = net, pad
        #: The number of examples that an evaluation takes at once.
        self.scored_at_once = scored_at_once

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # A model of next tokens needs no mask: padding comes later, and changes nothing before it.
        mask = {} if self._pad is None else {"attention_mask": (x != self._pad).long()}
        scores: torch.Tensor = self.net(input_ids=x, **mask).logits
        return scores

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        """Apply `fn` to the tensors of this model, for example to move them to a device.

        PyTorch would also change the base weights of all models that share them. Those models keep
        their tensors, because this model first gets parameters of its own. Returns the model.
        """
        own: dict[int, nn.Parameter] = {}
        for module in self.modules():
            for name, shared in module._parameters.items():
                if shared is not None and not shared.requires_grad:
                    alone = nn.Parameter(shared.detach(), requires_grad=False)
                    module._parameters[name] = own.setdefault(id(shared), alone)
        moved: Self = super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return moved

    def __deepcopy__(self, memo: dict[int, Any]) -> LanguageModel:
        memo |= {id(p): p for p in self.parameters() if not p.requires_grad}
        made = LanguageModel.__new__(LanguageModel)
        memo[id(self)] = made
        made.__dict__ = copy.deepcopy(self.__dict__, memo)
        return made


def build(folder: ModelFolder, part: Trained, length: int, tokens: int, seed: int) -> nn.Module:
    """Return the model in `folder`, ready to train the weights that `part` chooses.

    Each example is a row of `length` tokens, numbers from 0 to `tokens` - 1. New weights, such as
    those of an adapter, are drawn from `seed`. Raises `ModelInvalid` if the model or its adapter
    cannot be built, or if the model does not support such rows.
    """
    key = json.dumps(folder.own_config, sort_keys=True) if folder.own_config else ""
    base, digest = _base(folder.path, folder.stamp, key, part.classes, seed)
    config = base.config
    places = getattr(config, "max_position_embeddings", None)
    if places is not None and length > places:
        raise ModelInvalid(
            f"the examples have {length} tokens, but the model takes {places}: lower "
            f"language.length"
        )
    if tokens > config.vocab_size:
        raise ModelInvalid(
            f"the examples have the token {tokens - 1}, but the model knows {config.vocab_size} "
            f"tokens: use the tokeniser of its folder"
        )
    whole = part.adapter is None and not part.head
    net = copy.deepcopy(base, {} if whole else {id(p): p for p in base.parameters()})
    if whole:
        net.requires_grad_(True)
    elif part.adapter is None:
        _own_head(net)
    else:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            net = _adapted(net, part.adapter)
    if part.recompute:
        with quiet():
            net.gradient_checkpointing_enable({"use_reentrant": False})
    outputs = part.classes or length * config.vocab_size
    pad = None if part.classes is None else folder.padding
    model = LanguageModel(net, pad, max(1, _MOST_SCORES // outputs))
    if not whole:
        mark_base(model, digest)
    return model


@lru_cache(maxsize=1)
def _base(
    path: Path, stamp: object, own_config: str, classes: int | None, seed: int
) -> tuple[Any, str]:
    """Return the model in the folder `path`, without adapters, and a digest of its tensors.

    `classes` is the number of classes of a classifier, or None for a model that predicts the next
    token. Weights that the folder lacks are drawn from `seed`. If `own_config`, a configuration as
    JSON, is not empty, it replaces the folder's configuration, and all weights are drawn.

    The last result is cached: a call with the same arguments as the call before it returns the same
    model. `stamp` describes the folder's files, so that the model is loaded again after a file has
    changed.
    """
    folder = ModelFolder(path, json.loads(own_config) if own_config else None)
    kind = "CausalLM" if classes is None else "SequenceClassification"
    library = transformers()
    maker = getattr(library, f"AutoModelFor{kind}")
    changes: dict[str, Any] = {"use_cache": False}
    if classes is not None:
        changes |= {"num_labels": classes, "pad_token_id": folder.padding}
    with folder.explained(), quiet(), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        settings = _config(library, folder, changes)
        # sdpa needs less memory, but vmap cannot trace it together with a mask.
        attention = {"attn_implementation": "sdpa" if classes is None else "eager"}
        if folder.own_config is not None:
            made = maker.from_config(settings, **attention).float()
        else:
            made = _loaded(maker, folder, settings, whole=classes is None, **attention)
    made.requires_grad_(False)
    return made, digest_of((*made.named_parameters(), *made.named_buffers()))


def _loaded(
    maker: Any, folder: ModelFolder, settings: Any, *, whole: bool, **attention: str
) -> Any:
    """Load the model in `folder` as a `transformers` class `maker`, with the config `settings`.

    If `whole` is False, the files may lack the weights of the last layer. `attention` has further
    arguments that choose the implementation of attention.
    """
    made, info = maker.from_pretrained(
        folder.path,
        config=settings,
        dtype=torch.float32,
        local_files_only=True,
        use_safetensors=True,
        trust_remote_code=False,
        output_loading_info=True,
        **attention,
    )
    inner = "" if whole else made.base_model_prefix
    if missing := sorted(name for name in info["missing_keys"] if name.startswith(inner)):
        raise ValueError(f"its files lack the weights {missing[0]}")
    return made


def _config(library: Any, folder: ModelFolder, changes: Mapping[str, Any]) -> Any:
    values = {**folder.config, **changes}
    kind = values.pop("model_type", None)
    if kind not in library.CONFIG_MAPPING:
        raise ValueError(f"its model_type is {kind!r}, which transformers does not know")
    values.pop("auto_map", None)
    return library.CONFIG_MAPPING[kind].from_dict(values)


def _own_head(net: Any) -> None:
    """Make the model's last layer trainable, with its own copy of the weights."""
    name = next((n for n in ("score", "classifier") if hasattr(net, n)), None)
    head = net.get_output_embeddings() if name is None else getattr(net, name)
    for owner in head.modules():
        for part, value in list(owner._parameters.items()):
            if value is not None:
                owner._parameters[part] = nn.Parameter(value.detach().clone())


def _adapted(net: Any, adapter: Adapter) -> nn.Module:
    """Add adapters to the model `net`. Only they and a classifier's last layer are trained."""
    try:
        import peft
    except ImportError:
        raise MissingExtra("peft", "language", "adapter.kind = lora") from None
    classifies = hasattr(net, "score") or hasattr(net, "classifier")
    settings = peft.LoraConfig(
        r=adapter.rank,
        lora_alpha=adapter.alpha,
        target_modules=list(adapter.targets) or None,
        task_type="SEQ_CLS" if classifies else "CAUSAL_LM",
    )
    try:
        with quiet():
            return peft.get_peft_model(net, settings)  # type: ignore[no-any-return]
    except ValueError as error:
        layers = sorted({n.rpartition(".")[2] for n, m in net.named_modules() if n and _linear(m)})
        reason = str(error).partition(".")[0]
        raise ModelInvalid(
            f"adapter.targets = {list(adapter.targets)}: {reason}. The model's layers are "
            f"{', '.join(layers)}"
        ) from None


def _linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"
