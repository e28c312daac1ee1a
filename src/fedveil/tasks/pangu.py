"""`pangu`: a language model. The leader has the text, and another party the transformer layers.

    embedding: leader <- data.tokens      word and position vectors
    backbone:  cloud  <- embedding        the transformer layers; sees no token and no label
    head:      leader <- backbone         inner products with the word table of `embedding`

An example is a window of `context` tokens. The label of each token is the token after it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from fedveil.base.untrusted import MOST_DATA_BYTES, read_bytes
from fedveil.data.data_folders import reading
from fedveil.errors import InvalidValue
from fedveil.language import text, transformer
from fedveil.language.generation import GENERATE, assist
from fedveil.vertical.optimizer import Optimizer
from fedveil.vertical.split import Part, SplitModel
from fedveil.vertical.task import Assist, Columns, Subset, Unit, initial
from fedveil.vertical.task_settings import PanguSettings

#: The leader's file in a run folder, so that a tokenizer is trained only once.
TOKENIZER = "tokenizer.json"


class Pangu:
    """The task of training a language model that is split between two parties.

    `settings` are those under `task.pangu`. `folder` is the folder of a resumed run, from which the
    run's tokenizer is loaded.
    """

    leader: str = "leader"
    followers: tuple[str, ...] = ("cloud",)
    classes: int | None = None
    numbered = True
    by_shape = (leader, *followers)
    unit: Unit = "tokens"
    assists: ClassVar[Mapping[str, Assist]] = {GENERATE: assist}

    def __init__(
        self, settings: PanguSettings | None = None, seed: int = 0, folder: Path | None = None
    ) -> None:
        self.settings = PanguSettings() if settings is None else settings
        self.shape = _shape(self.settings)
        self.units_per_example = self.shape.context
        self._seed = seed
        self._folder = folder

    @property
    def inputs(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        window = (self.shape.context,), torch.int64
        return {"tokens": window, "labels": window}

    def split_model(self, here: Collection[str] | None = None) -> SplitModel:
        """Return the split model, with its parts `embedding`, `backbone` and `head`.

        Builds torch modules (with initial weights) only for the parts of the parties in `here`, or
        of all parties if `here` is None. The module of every other part is None.
        """
        shape, mine, theirs = self.shape, self.leader, self.followers[0]
        embedding = head = backbone = None
        if here is None or mine in here:
            embedding = initial(self._seed, "embedding", lambda: transformer.WordAndPosition(shape))
            head = transformer.TiedHead(embedding.word)
        if here is None or theirs in here:
            backbone = initial(self._seed, "backbone", lambda: transformer.Backbone(shape))
        inner = (shape.context, shape.width)
        # Wider models take smaller steps (0.002 for the preset tiny), deeper ones warm up longer.
        optimizer = Optimizer(
            "adamw", lr=0.256 / shape.width, weight_decay=0.01, warmup_steps=5 * shape.layers
        )
        scores = (shape.context, shape.vocabulary)
        # The pairs of a trained tokenizer depend on the whole text.
        fitted = self.settings.tokenizer != "bytes"
        tokens = ("data.tokens",)
        parts = [
            Part("embedding", mine, tokens, inner, embedding, optimizer=optimizer, fitted=fitted),
            Part("backbone", theirs, ("embedding",), inner, backbone, optimizer=optimizer),
            Part("head", mine, ("backbone",), scores, head, optimizer=optimizer),
        ]
        return SplitModel(parts, leader=self.leader)

    def owned(self, party: str, subset: Subset) -> Columns:
        """Return a party's data of a subset, "train" or "test".

        The leader has examples (windows of tokens) and their labels. The other party has nothing. A
        window's id is its number among the subset's windows, from 0.
        """
        if party != self.leader:
            return Columns(np.empty(0, np.int64))
        train, test = self._documents
        tokens = self.tokenizer.encode(train if subset == "train" else test)
        inputs, labels = text.windows(tokens, self.shape.context)
        return Columns(
            ids=np.arange(len(inputs)),
            columns={"tokens": torch.from_numpy(inputs)},
            labels=torch.from_numpy(labels),
        )

    def loss(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return transformer.token_loss(outputs, labels)

    def metrics(self, outputs: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
        return {
            "loss_sum": float(transformer.token_loss(outputs, labels)) * labels.numel(),
            "correct": float((outputs.argmax(-1) == labels).sum()),
            "tokens": float(labels.numel()),
            "examples": float(len(labels)),
        }

    def files(self, party: str) -> dict[str, bytes]:
        """Return the files to save in a party's own folder: their content by file name."""
        tokenizer = self.tokenizer if party == self.leader else None
        if isinstance(tokenizer, text.PairTokenizer):
            return {TOKENIZER: tokenizer.to_bytes()}
        return {}

    @cached_property
    def tokenizer(self) -> text.Tokenizer:
        """The tokenizer. A byte-pair tokenizer is loaded from a resumed run, or else trained."""
        if self.settings.tokenizer == "bytes":
            return text.ByteTokenizer()
        kept = None if self._folder is None else self._folder / TOKENIZER
        if kept is not None and kept.exists():
            with reading(kept):
                data = read_bytes(kept, MOST_DATA_BYTES)
            return text.PairTokenizer.from_bytes(data, self.shape.vocabulary)
        return text.PairTokenizer.train(self._documents[0], self.shape.vocabulary)

    @cached_property
    def _documents(self) -> tuple[list[bytes], list[bytes]]:
        documents = text.read(self.settings.text)
        if self.settings.test_text is not None:
            return documents, text.read(self.settings.test_text)
        return text.hold_out(documents, self.settings.test_fraction)


def _shape(settings: PanguSettings) -> transformer.Shape:
    own = settings.model_dump(include={"layers", "width", "heads", "context", "vocabulary"})
    if settings.tokenizer == "bytes":
        if settings.vocabulary not in (None, text.BYTE_TOKENS):
            raise InvalidValue(
                f"task.pangu.vocabulary = {settings.vocabulary} is for tokenizer: pairs; "
                f"tokenizer: bytes has {text.BYTE_TOKENS} tokens"
            )
        own["vocabulary"] = text.BYTE_TOKENS
    chosen = {key: value for key, value in own.items() if value is not None}
    return replace(transformer.PRESETS[settings.preset], **chosen)
