"""The mutations fit the tree: each has its place, is Python, and names tests that are there.

Whether the suite notices them takes longer: `python tests/mutations/apply.py`.
"""

from __future__ import annotations

import ast
import importlib
import shutil
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
def blocks(text: str) -> list[tuple[range, str]]:
    """The lines of each top statement and of each statement of a class, and what they stand in.

    The innermost come first.
    """
    body = ast.parse(text).body
    members = [node for each in body if isinstance(each, ast.ClassDef) for node in each.body]
    return [
        (range(_first(node) - 1, node.end_lineno or 0), head)
        for nodes, head in ((members, "class _:\n"), (body, ""))
        for node in nodes
    ]


def _first(node: ast.stmt) -> int:
    return min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])


def changes_code(mutation: Mutation, sound: str) -> bool:
    """Return True if the code changes, in the smallest block that holds the place."""
    spoilt = mutation.of(sound)
    first = sound[: sound.index(mutation.was)].count("\n")
    last = first + mutation.was.count("\n")
    lines, now = sound.splitlines(keepends=True), spoilt.splitlines(keepends=True)
    longer = len(now) - len(lines)
    for block, head in blocks(sound):
        if first in block and last in block:
            was, here = lines[block.start : block.stop], now[block.start : block.stop + longer]
            assert not head or all(line[0] in " \n" for line in here), "it leaves its class"
            return dumped(head + "".join(was)) != dumped(head + "".join(here))
    return dumped(sound) != dumped(spoilt)


@cache
def dumped(text: str) -> str:
    """Return the statements of a text, without comments and positions."""
    return ast.dump(ast.parse(text))


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


def test_a_bug_that_lives_is_told_from_one_whose_tests_were_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "tests" / "mutations")
    tested = importlib.import_module("apply").tested
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "test_passed.py").write_text("def test(): pass")
    (tmp_path / "test_skipped.py").write_text("import pytest\ndef test(): pytest.skip()")
    alone = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "pytest_timeout"}  # quicker
    for outcome in ("passed", "skipped"):
        assert tested(tmp_path, [f"test_{outcome}.py"], 60, **alone) == outcome
