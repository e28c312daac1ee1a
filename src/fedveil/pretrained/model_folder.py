"""A folder with a language model in the format of `transformers`. Nothing is ever downloaded.

Weights are read from safetensors files only, which cannot run code. The folder's own code is never
run (`trust_remote_code`).
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

CONFIG, TOKENIZER = "config.json", "tokenizer.json"
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
        """Return the folder that `hf:PATH` names. Raises `ModelInvalid` if there is none.

        If `own_config` is given, it replaces the folder's configuration, and all weights are
        random.
        """
        path = Path(name.removeprefix(PREFIX)).expanduser()
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
        with self.explained():
            found = json.loads(read_text(self.path / CONFIG, MOST_KEY_BYTES))
            if not isinstance(found, dict):
                raise ValueError(f"{CONFIG} holds no mapping")
            return found

    @property
    def padding(self) -> int:
        """The token that pads short examples: the folder's padding token, its end token, or 0."""
        for name in ("pad_token_id", "eos_token_id"):
            found = self.config.get(name)
            found = found[0] if isinstance(found, list) and found else found
            if isinstance(found, int):
                return found
        return 0

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
        """Convert an error about the folder's files into `ModelInvalid`, in one sentence."""
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
    """Context manager: suppresses the warnings of transformers and peft.

    They are about settings that fedveil chooses and a user cannot change.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
