"""The project is written as docs/style.md says, as far as a program can tell."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from folders import DOCS, ROOT
from syntax import statements

SOURCES = [
    file for folder in ("src", "experiments") for file in sorted((ROOT / folder).rglob("*.py"))
]

#: docs/style.md says what to write instead.
PHRASES = (
    r"\bso many\b",
    r"\bg(o|oes|one|oing) on with\b",
    r"\bthe way back\b",
    r"\b(is|are) told (so|of|how|that|what)\b",
    r"\bcomes? of (it|a|the|this)\b",
    r"\bas ever\b",
    r"\b(be it|were there)\b",
    r"\b(in \d[\d,]* times|times in 1,000)\b",
    r"\bin the switch\b",
    r"\bknows all that\b",
)

_OPENING = re.compile(r"(Of|What|Those|That which|The same|Whether|How many|Who|Whoever|Where)\b")
_NO_VERB = re.compile(r"(A|An|The|One|Each|Every|All|No|Its|Their|This|That|It|As|If|When|By)\b")


def pages() -> list[Path]:
    """Return every page of prose. docs/style.md quotes what it forbids."""
    pages = [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), ROOT / "benchmarks" / "RESULTS.md"]
    return [page for page in pages if page.name != "style.md"]


@cache
def text_of(path: Path) -> str:
    return " ".join(path.read_text("utf-8").split())


@cache
def functions() -> list[tuple[str, bool, str]]:
    """Return every documented object of the source: its place, if it returns None, its docstring.

    `__init__` is as if it returned something: its docstring names the object.
    """
    return [
        (f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}", _returns_none(node), docstring)
        for path in SOURCES
        for node in statements(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and (docstring := ast.get_docstring(node))
    ]


def _returns_none(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and isinstance(node.returns, ast.Constant)
        and node.returns.value is None
        and node.name != "__init__"
    )


@pytest.mark.parametrize("phrase", PHRASES)
def test_a_banned_phrase_does_not_come_back(phrase: str) -> None:
    paths = [*SOURCES, *pages()]
    found = Counter({p: len(re.findall(phrase, text_of(p), re.IGNORECASE)) for p in paths})
    places = ", ".join(f"{p.relative_to(ROOT)} ({n})" for p, n in found.most_common(5) if n)
    assert not found.total(), places


def test_docstrings_open_with_the_thing_or_the_verb() -> None:
    found = [place for place, _, docstring in functions() if _OPENING.match(docstring)]
    assert not found, found[:20]


def test_docstrings_of_functions_that_return_none_open_with_a_verb() -> None:
    found = [place for place, none, docstring in functions() if none and _NO_VERB.match(docstring)]
    assert not found, found[:20]


@pytest.mark.parametrize("text", ["What a round costs.", "Of the sum.", "Those that left."])
def test_the_check_of_openings_notices(text: str) -> None:
    assert _OPENING.match(text)


def test_the_check_of_phrases_notices() -> None:
    sample = "so many clients, as it goes on with the run and is told so"
    assert sum(bool(re.search(phrase, sample)) for phrase in PHRASES) == 3
