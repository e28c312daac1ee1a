"""Every public name of the reference has an example, and those in docstrings are run."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from doc_blocks import blocks
from folders import DOCS

pytest.importorskip("flwr")
ENTRY = re.compile(r"^::: (\S+)\n((?: {4}.*\n)*)", re.MULTILINE)


def resolved(name: str) -> object:
    """Return the module, class or function with this dotted name."""
    module, _, own = name.rpartition(".")
    try:
        return getattr(importlib.import_module(module), own)
    except (ModuleNotFoundError, AttributeError):
        return importlib.import_module(name)


def listed() -> Iterator[tuple[Path, str]]:
    """Yield every class and function of the reference, with the page that lists it."""
    for page in sorted((DOCS / "reference").glob("*.md")):
        for name, options in ENTRY.findall(page.read_text("utf-8")):
            found = resolved(name)
            if not inspect.ismodule(found):
                yield page, name
                continue
            members = re.search(r"members:\s*\[([^]]*)\]", options)
            names = members[1].split(", ") if members else found.__all__
            yield from ((page, f"{name}.{member}") for member in names)


def docstring_examples(name: str) -> doctest.DocTest:
    """Return the examples in the docstring of the object with this name."""
    text = inspect.getdoc(resolved(name)) or ""  # of a class, without its methods
    return doctest.DocTestParser().get_doctest(text, {}, name, None, 0)


NAMES = dict.fromkeys(listed())
IN_DOCSTRING = [name for _, name in NAMES if docstring_examples(name).examples]


def uses(text: str, name: str) -> bool:
    """Return True if code uses the name: alone if it is unique, and with its module if not."""
    module, _, own = name.rpartition(".")
    used = f"{module.rpartition('.')[2]}.{own}" if own == "attack" else own
    loop = own == "attack" and re.search(rf"\(.*\b{module.rpartition('.')[2]}\b.*\):", text)
    return bool(loop) or re.search(rf"\b{used}\(|, {used}\)", text) is not None


@pytest.mark.parametrize("name", dict.fromkeys(IN_DOCSTRING))
def test_the_example_of_a_docstring_runs(name: str) -> None:
    said: list[str] = []
    result = doctest.DocTestRunner().run(docstring_examples(name), out=said.append)
    assert result.failed == 0, "".join(said)
    assert result.attempted > 1  # an import, and what it is for


@pytest.mark.parametrize(
    ("page", "name"), [entry for entry in NAMES if entry[1] not in IN_DOCSTRING]
)
def test_a_name_without_one_is_used_on_its_page(page: Path, name: str) -> None:
    """`tests/test_docs_blocks.py` runs the blocks of a page."""
    text = page.read_text("utf-8")
    code = [block.text for block in blocks(text, page.name) if block.language == "python"]
    assert any(uses(block, name) for block in code), f"{name} has no example"


def test_there_are_examples_of_both_kinds() -> None:
    assert len(NAMES) > 60
    assert len(IN_DOCSTRING) > 40
    assert not uses("from fedveil.vertical import predict", "fedveil.vertical.predict")
    assert not uses("distinguishing.attack(target)", "fedveil.attacks.repetition.attack")
