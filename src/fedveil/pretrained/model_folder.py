"""A folder with a language model in the format of `transformers`. Nothing is ever downloaded.

No code of the folder is ever run (`trust_remote_code`). Weights must be safetensors files.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fedveil.base.files import from_home
from fedveil.base.untrusted import (
    MOST_JOB_BYTES,
    MOST_KEY_BYTES,
    MOST_STREAMED_BYTES,
    check_regular,
    escaped,
    read_text,
)
from fedveil.errors import FedveilError, MissingExtra, ModelInvalid
from fedveil.pretrained import PREFIX

CONFIG, GENERATION = "config.json", "generation_config.json"
TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
#: A vocabulary of 250,000 tokens takes 20 MB.
_MOST_TOKENIZER_BYTES = MOST_JOB_BYTES * 128


@dataclass(frozen=True)
class ModelFolder:
    """A folder with a language model, whose files have been checked.

    If `own_config` is given, it replaces the folder's configuration, and all weights are random.
    """

    path: Path
    own_config: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, name: str, own_config: Mapping[str, Any] | None = None) -> ModelFolder:
        """Return the model folder at PATH, for a `name` of the form hf:PATH.

        `own_config` replaces the folder's configuration, if given. Raises `ModelInvalid` if the
        folder cannot be used.
        """
        path = from_home(name.removeprefix(PREFIX))
        if not path.is_dir():
            raise ModelInvalid(
                f"model = {name!r}: {path} is not a folder on this machine. fedveil downloads no "
                f"model: save one there with transformers' save_pretrained"
            )
        found = cls(path, own_config or None)
        with found.explained():
            for file in sorted(path.iterdir()):
                if not file.is_dir():
                    check_regular(file, MOST_STREAMED_BYTES)
        if (path / "adapter_config.json").exists():
            raise ModelInvalid(
                f"model = {name!r}: {path} holds an adapter, not a whole model. Merge it into its "
                f"base with peft's merge_and_unload, and save the result"
            )
        if own_config or any(path.glob("*.safetensors")):
            return found
        raise ModelInvalid(
            f"model = {name!r}: {path} holds no *.safetensors file. Other weight files can run "
            f"code, so they are not read: save the model again with safe_serialization=True"
        )

    @cached_property
    def config(self) -> dict[str, Any]:
        if self.own_config is not None:
            return dict(self.own_config)
        return self._mapping(CONFIG)

    def _mapping(self, name: str, limit: int = MOST_KEY_BYTES) -> dict[str, Any]:
        with self.explained():
            found = json.loads(read_text(self.path / name, limit))
            if not isinstance(found, dict):
                raise ValueError(f"{name} holds no mapping")
            return found

    @cached_property
    def padding(self) -> int:
        """The token that pads short examples: the folder's padding token, its end token, or 0."""
        return (*self._tokens("pad"), *self._tokens("eos"), 0)[0]

    @cached_property
    def ends(self) -> tuple[int, ...]:
        """The tokens that end a text, the usual one first.

        If the folder names no such token, `padding` is the only one.
        """
        return tuple(self._tokens("eos")) or (self.padding,)

    def _tokens(self, kind: str) -> list[int]:
        """Return the tokens for padding ("pad") or for the end of a text ("eos")."""
        key, found = f"{kind}_token_id", list[int]()
        has_generation = (self.path / GENERATION).exists()
        for settings in (self.config, self._mapping(GENERATION) if has_generation else {}):
            value = settings.get(key)
            named = value if isinstance(value, list) else [value]
            found += [token for token in named if isinstance(token, int) and token >= 0]
        if not found and (self.path / TOKENIZER_CONFIG).exists():
            text = self._mapping(TOKENIZER_CONFIG, _MOST_TOKENIZER_BYTES).get(f"{kind}_token")
            text = text.get("content") if isinstance(text, dict) else text
            added = self._mapping(TOKENIZER, _MOST_TOKENIZER_BYTES).get("added_tokens") or []
            with self.explained():
                found = [int(token["id"]) for token in added if token["content"] == text]
        return list(dict.fromkeys(found))

    @property
    def stamp(self) -> tuple[tuple[str, int, int], ...]:
        """The name, size and modification time of each of the folder's files."""
        with self.explained():
            found = [(path.name, path.stat()) for path in sorted(self.path.iterdir())]
        return tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in found)

    def read_tokenizer(self) -> str:
        with self.explained():
            return read_text(self.path / TOKENIZER, _MOST_TOKENIZER_BYTES)

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Context manager: converts errors about the folder's files into `ModelInvalid`."""
        try:
            yield
        except FedveilError:
            raise
        except Exception as error:  # the library that reads the files may raise anything
            raise ModelInvalid(
                f"model = '{PREFIX}{self.path}' cannot be loaded: {_first_line(error)}"
            ) from None


def _first_line(error: Exception) -> str:
    reason = str(error).strip().partition("\n")[0] or type(error).__name__
    return escaped(reason)


def transformers() -> Any:
    """Import and return the package transformers, with network access and messages turned off."""
    os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"
    try:
        import transformers as library
    except ImportError:
        raise MissingExtra("transformers", "language", f"model = {PREFIX}FOLDER") from None
    library.utils.logging.set_verbosity_error()
    library.utils.logging.disable_progress_bar()
    return library


@contextmanager
def quiet() -> Iterator[None]:
    """Context manager: suppresses the warnings of transformers and peft."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
