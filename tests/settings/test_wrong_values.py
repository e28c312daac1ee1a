"""Sentences about wrong values of settings with blocks and mappings that a user names."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import Field, ValidationError

from fedveil.errors import DataInvalid
from fedveil.settings.allowed import Allowed, allowed, sentences
from fedveil.settings.settings import Block, Settings
from fedveil.settings.stored import Stored


class Inner(Block):
    a: int = 1


class Outer(Settings):
    parties: dict[str, Inner] = Field(default_factory=dict)
    shares: dict[str, float] = Field(default_factory=dict)


@pytest.mark.parametrize(
    ("given", "path", "sentence"),
    [
        ({"parties": {3: {}}}, "parties.3", "parties.3 is a name that is not text"),
        ({"shares": {3: 1.0}}, "shares.3", "shares.3 is a name that is not text"),
        ({3: 1}, "3", "3 is a key that is not text"),
        ({"parties": {"x": {"a": "y"}}}, "parties.x.a", "parties.x.a = 'y' is not a whole number"),
        ({"parties": 3}, "parties", "parties = 3 is not a mapping of names to blocks of keys"),
        (
            {"parties": {"x": 3}},
            "parties.x",
            "parties.x = 3 is not a block of keys; the keys of parties.x are a",
        ),
    ],
)
def test_a_wrong_name_or_block_is_one_sentence(
    given: dict[Any, Any], path: str, sentence: str
) -> None:
    with pytest.raises(ValidationError) as error:
        Outer.model_validate(given)
    assert sentences(error.value, Outer) == {tuple(path.split(".")): sentence}


@pytest.mark.parametrize("word", ["DP", "dp", "Dp_Encrypted", "LDP"])
def test_a_word_is_suggested_whatever_its_case(word: str) -> None:
    words = Allowed(words=("rr", "dp_encrypt"))
    said = "is not one of rr, dp_encrypt (did you mean dp_encrypt?)"
    assert words.complaint(word) == said


class Listed(Settings):
    at: list[float] | None = None
    names: list[str] | None = None
    count: int | None = Field(None, ge=3)


def test_a_list_or_null_is_described_so() -> None:
    told = {name: str(allowed(field)) for name, field in Listed.model_fields.items()}
    assert told == {
        "at": "a list of numbers or null", "names": "a list of text or null",
        "count": "a whole number in [3, inf) or null",
    }  # fmt: skip


class Kept(Stored):
    what = "a note"
    share: float
    count: int = 0


def test_a_saved_result_is_read_as_it_was_written_or_refused() -> None:
    kept = Kept(share=0.1 + 0.2, count=2**60)
    assert Kept.read(kept.written(), "note.json") == kept
    texts = (b'{"share": "0.3"}', b'{"share": 1, "count": true}', b'{"count": 1}', b"[]", b"{")
    for damaged in texts:
        with pytest.raises(DataInvalid, match=r"^note.json is damaged: it is not a note$"):
            Kept.read(damaged, "note.json")
