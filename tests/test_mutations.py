"""The mutations fit the tree: each has its place, is Python, and names tests that are there.

Whether the suite notices them takes longer: `python tests/mutations/apply.py`.
"""

from __future__ import annotations

import ast
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from folders import ROOT
from mutations.mutation import Mutation, read, spread

MUTATIONS = read()
ROOMS = sorted({mutation.room for mutation in MUTATIONS})


@cache
def text_of(path: Path) -> str:
    return path.read_text("utf-8")


@cache
def statements(text: str) -> list[tuple[int, int, str]]:
    """Return the top statements of a file: first and last line, and content without comments."""
    found = []
    for node in ast.parse(text).body:
        decorators = getattr(node, "decorator_list", ())
        first = min([node.lineno, *(each.lineno for each in decorators)])
        found.append((first, node.end_lineno or first, ast.dump(node)))
    return found


def changes_code(mutation: Mutation, sound: str) -> bool:
    """Return True if the bug changes more than comments. Raises SyntaxError if it is no Python.

    If the bug is inside one top statement, only this statement is read again.
    """
    bug, place = mutation.of(sound), sound.index(mutation.was)
    begin = sound[:place].count("\n") + 1
    end = begin + mutation.was.count("\n")
    for first, last, content in statements(sound):
        if first <= begin and end <= last:
            more = bug.count("\n") - sound.count("\n")
            lines = bug.splitlines()[first - 1 : last + more]
            return [ast.dump(node) for node in ast.parse("\n".join(lines)).body] != [content]
    return [ast.dump(node) for node in ast.parse(bug).body] != [c for *_, c in statements(sound)]


@pytest.mark.parametrize("room", ROOMS)
def test_a_rooms_mutations_have_their_places(room: str) -> None:
    for mutation in (each for each in MUTATIONS if each.room == room):
        assert changes_code(mutation, text_of(mutation.path())), mutation.name
        assert mutation.why, mutation.name
        for test in mutation.tests:
            file, _, name = test.partition("::")
            name = name.partition("[")[0]  # without one, that the file is there
            assert f"def {name}" in text_of(ROOT / file), mutation.name


def test_every_room_has_ten() -> None:
    folders = (ROOT / "src" / "fedveil").iterdir()
    rooms = {path.name for path in folders if len([*path.glob("*.py")]) > 2} - {"starter"}  # data
    counted = Counter(mutation.file.partition("/")[0] for mutation in MUTATIONS)
    assert [room for room in sorted(rooms) if counted[room] < 10] == []


def test_a_part_is_spread_over_the_rooms_and_turns() -> None:
    parts = [spread(MUTATIONS, 20, turn) for turn in range(len(MUTATIONS) // 20 + 1)]
    assert all(len({m.name for m in part}) == 20 for part in parts)
    assert len({m.room for m in parts[0]}) >= 12
    assert {m.name for part in parts for m in part} == {m.name for m in MUTATIONS}
