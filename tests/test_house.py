"""The plan in docs/design.md is true: its listing is the folders, its floors are the imports."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from itertools import chain
from pathlib import Path

import pytest

from folders import DOCS, ROOT
from syntax import statements

SOURCE = ROOT / "src" / "fedveil"
LISTING = re.search(
    r"## 2\. The house.*?```\n(.*?)```", (DOCS / "design.md").read_text("utf-8"), re.DOTALL
)[1]  # type: ignore[index]
NAME = re.compile(r"\S+\.py|\S+/")


def listed() -> Iterator[tuple[int, str]]:
    """Every file of the listing with its floor, counted from the top."""
    floor, room, inner = -1, "", ""
    for line in LISTING.splitlines():
        names = NAME.findall(re.split(r" {5,}", line.strip())[0])
        if not line.startswith(" "):
            floor, room = floor + 1, ""
        inner = ""
        for name in names:
            if name.endswith(".py"):
                yield floor, room + inner + name
            elif line.startswith(" "):
                inner = name
            else:
                room = name


FLOORS = {name: floor for floor, name in listed()}
FILES = {
    path.relative_to(root).as_posix(): path
    for root, room in ((SOURCE, SOURCE), (ROOT, ROOT / "experiments"))
    for path in sorted(room.rglob("*.py"))
    if path.name not in ("__init__.py", "__main__.py")
}


def test_the_listing_is_the_folders() -> None:
    assert set(FLOORS) == set(FILES)
    assert len(FLOORS) == sum(1 for _ in listed()), "a file is listed twice"


def test_no_file_is_two_concepts() -> None:
    assert [n for n, p in FILES.items() if len(p.read_text("utf-8").splitlines()) > 400] == []


def imported(path: Path) -> Iterator[str]:
    """The files of ours that a file imports, wherever in it."""
    for node in statements(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            file = name.removeprefix("fedveil.").replace(".", "/") + ".py"
            if name.startswith(("fedveil.", "experiments.")) and file in FILES:
                yield file


@cache
def imports() -> dict[str, set[str]]:
    """The files of ours that each file imports."""
    return {name: set(imported(path)) - {name} for name, path in FILES.items()}


def test_no_import_goes_up() -> None:
    upward = [
        f"{name} imports {other}"
        for name, others in imports().items()
        for other in others
        if FLOORS[other] < FLOORS[name]
    ]
    assert upward == []


def test_no_circle() -> None:
    left = {name: set(others) for name, others in imports().items()}
    while leaves := [name for name, others in left.items() if not others]:
        for name in leaves:
            del left[name]
        for others in left.values():
            others.difference_update(leaves)
    assert left == {}


@pytest.mark.parametrize("room", ["rounds", "mechanisms", "privacy", "secagg"])
def test_the_mathematics_knows_neither_torch_nor_files_nor_network(room: str) -> None:
    foreign = {"torch", "flwr", "grpc", "socket", "pathlib", "requests", "urllib"}
    for name, path in FILES.items():
        if name.startswith(f"{room}/"):
            nodes = list(statements(ast.parse(path.read_text("utf-8"))))
            froms = (n.module for n in nodes if isinstance(n, ast.ImportFrom) and n.module)
            plain = (a.name for n in nodes if isinstance(n, ast.Import) for a in n.names)
            assert not {m.split(".")[0] for m in chain(froms, plain)} & foreign, name
