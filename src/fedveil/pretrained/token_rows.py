"""Converts text to rows of equally many tokens, with the tokeniser of a model's folder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedveil.base.array_types import Int64s
from fedveil.base.example_arrays import IGNORED
from fedveil.base.own_code import as_exceptions
from fedveil.errors import DataInvalid, MissingExtra
from fedveil.pretrained.model_folder import ModelFolder

#: A row of tokens, and the target of each.
Row = tuple[Int64s, Int64s]


class TokenRows:
    """Converts texts into rows of `length` tokens. Short rows are padded at their end."""

    def __init__(self, folder: ModelFolder, length: int) -> None:
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise MissingExtra("tokenizers", "language", "a model's tokeniser") from None
        text = folder.read_tokenizer()
        with folder.explained():
            self._tokenizer: Any = Tokenizer.from_str(text)
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self.length, self.pad = length, folder.padding
        #: The tokens that end a text. The first one is learnt.
        self.ends = folder.ends
        #: One more than the largest token. Some vocabularies have gaps.
        self.size: int = 1 + max(self._tokenizer.get_vocab().values())

    def encode(self, text: str, *, marked: bool = False) -> list[int]:
        """Return a text's tokens. With `marked`, the tokeniser adds its begin and end tokens.

        Raises `DataInvalid` for a text that the tokeniser cannot convert.
        """
        try:
            with as_exceptions():
                found: list[int] = self._tokenizer.encode(text, add_special_tokens=marked).ids
        except Exception as error:  # the library raises Exception itself
            raise DataInvalid(f"the tokeniser cannot convert it: {error}") from None
        return found

    def decode(self, tokens: Sequence[int]) -> str:
        """Convert tokens to text, without special tokens."""
        text: str = self._tokenizer.decode([int(token) for token in tokens])
        return text

    def pieces(self, text: str) -> list[Row]:
        """Cut a text and its end token into rows. Each token's target is the token after it."""
        ids = [*self.encode(text), self.ends[0]]
        starts = range(0, len(ids) - 1, self.length)
        return [self._next(ids[start : start + self.length + 1], 0) for start in starts]

    def answer(self, prompt: str, answer: str) -> Row:
        """Return a row of a prompt and its answer. Only the answer's tokens are targets."""
        asked = self.encode(prompt)
        ids = [*asked, *self.encode(answer), self.ends[0]]
        return self._next(ids[: self.length + 1], len(asked))

    def whole(self, text: str) -> Int64s:
        """Return one row with the tokens of a text, cut to the row's length or padded."""
        return self._filled(self.encode(text, marked=True)[: self.length], self.pad)

    def _next(self, ids: Sequence[int], known: int) -> Row:
        """Return a row for the tokens `ids`: the target of each token is the token after it.

        The first `known` tokens of `ids`, such as those of a prompt, are ignored as targets.
        """
        targets = [IGNORED if i + 1 < known else token for i, token in enumerate(ids[1:])]
        return self._filled(ids[:-1], self.pad), self._filled(targets, IGNORED)

    def _filled(self, ids: Sequence[int], filling: int) -> Int64s:
        row = np.full(self.length, filling, np.int64)
        row[: len(ids)] = ids
        return row
