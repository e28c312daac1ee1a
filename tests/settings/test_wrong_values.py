"""Sentences about wrong values of settings with blocks and mappings that a user names."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import Field, ValidationError

from fedveil.settings.allowed import sentences
from fedveil.settings.settings import Block, Settings


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
