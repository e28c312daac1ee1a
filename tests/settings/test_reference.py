"""The reference page of keys: each row once, and each rule once."""

from __future__ import annotations

import pytest
from pydantic import Field

from fedveil.errors import InvalidValue
from fedveil.settings.reference import key_rows, page
from fedveil.settings.settings import Block, Settings


class Plain(Block):
    a: int = Field(1, description="first")
    b: int = Field(2, description="second")
    c: int = Field(3, description="third")


class Other(Block):
    d: int = Field(4, description="fourth")


class Both(Block):
    """Three keys as in `plain`, one as in `other`, and one of its own."""

    a: int = Field(1, description="first")
    b: int = Field(2, description="second")
    c: int = Field(3, description="third")
    d: int = Field(4, description="fourth")
    e: int = Field(5, description="fifth")


class Study(Settings):
    plain: Plain = Field(default_factory=Plain)
    other: Other = Field(default_factory=Other)
    both: Both = Field(default_factory=Both)


def test_a_block_refers_to_one_earlier_block_and_keeps_all_other_rows() -> None:
    shown = page("Keys.", Study, ["A is below B.", "B is even.", "A is below B."])
    told = key_rows(shown, None)
    alike = {key: row["as_in"] for key, row in told.items() if "as_in" in row}
    assert alike == {f"both.{name}": "plain" for name in "abc"}
    assert [key for key in told if key not in alike] == [
        "plain.a", "plain.b", "plain.c", "other.d", "both.d", "both.e",
    ]  # fmt: skip
    assert shown.endswith("## Between keys\n\n- A is below B.\n- B is even.\n")


@pytest.mark.parametrize(
    ("part", "near"),
    [
        ("sed", " (did you mean seed?)"), ("blok", " (did you mean block?)"),
        ("block.on", " (did you mean block.one?)"), ("", ""), ("far", ""),
    ],
)  # fmt: skip
def test_a_part_that_no_page_has_is_looked_for_among_keys_and_blocks(part: str, near: str) -> None:
    page = "| `seed` | text | `1` | first |\n| `block.one` | text | `2` | second |\n"
    with pytest.raises(InvalidValue) as error:
        key_rows(page, part)
    assert str(error.value) == f"no key or block of a job is {part}{near}"
    assert list(key_rows(page, None)) == ["seed", "block.one"]
    with pytest.raises(InvalidValue, match=r"^no key or block of a job is None$"):
        key_rows("no table", None)
