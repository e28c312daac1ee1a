"""Bugs that the suite must notice, as data: a place, a change, why it matters, who notices.

A file of `tests/mutations/` holds the mutations of one room:

    [[mutation]]
    file = "privacy/ledger.py"                 # below src/fedveil, or experiments/NAME.py
    was = '''text that stands there once'''
    now = '''the bug'''
    why = "what goes wrong for whom"
    tests = ["tests/privacy/test_ledger.py"]   # what notices it, a file or a test
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


@dataclass(frozen=True)
class Mutation:
    room: str
    number: int
    file: str
    was: str
    now: str
    why: str
    tests: list[str]

    @property
    def name(self) -> str:
        return f"{self.room}:{self.number}"

    def path(self, root: Path = ROOT) -> Path:
        if self.file.startswith("experiments/"):
            return root / self.file
        return root / "src" / "fedveil" / self.file

    def of(self, text: str) -> str:
        """The file's text with the bug in it; ValueError where the place is gone or is not one."""
        if text.count(self.was) != 1:
            raise ValueError(f"{self.name}: {self.file} has it {text.count(self.was)} times")
        return text.replace(self.was, self.now)


def read() -> list[Mutation]:
    """All mutations, room by room."""
    return [
        Mutation(file.stem, number, **fields)
        for file in sorted(HERE.glob("*.toml"))
        for number, fields in enumerate(tomllib.loads(file.read_text("utf-8"))["mutation"], start=1)
    ]


def spread(mutations: list[Mutation], count: int, turn: int) -> list[Mutation]:
    """Return `count` of them, from all rooms alike; another `turn` gives others."""
    total = len(mutations)
    return [mutations[(i * total // count + turn) % total] for i in range(count)]
