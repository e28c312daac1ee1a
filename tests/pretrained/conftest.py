"""One tiny model and its texts for all tests of the room. Skipped where transformers is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

import tiny_language


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("transformers")
    pytest.importorskip("peft")
    return tiny_language.model_folder(tmp_path_factory.mktemp("language") / "model")


@pytest.fixture(scope="session")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("tokenizers")
    return tiny_language.words_folder(tmp_path_factory.mktemp("language") / "words")


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_language.next_tokens(tmp_path_factory.mktemp("texts") / "texts")
