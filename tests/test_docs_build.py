"""The pages are built strictly: what mkdocs warns of fails the build."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from folders import DOCS, ROOT

pytest.importorskip("mkdocs")
#: The options of `make docs`.
OPTIONS = re.search(r"mkdocs build ([^#\n]*)", (ROOT / "Makefile").read_text())[1].split()  # type: ignore[index]


def build(folder: Path) -> int:
    shutil.copy(ROOT / "mkdocs.yml", folder)
    ended = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", *OPTIONS, "--site-dir", folder / "site"],
        cwd=folder, capture_output=True, check=False,
    )  # fmt: skip
    return ended.returncode


def test_the_pages_build(tmp_path: Path) -> None:
    shutil.copytree(DOCS, tmp_path / "docs")
    assert build(tmp_path) == 0


@pytest.mark.parametrize(
    "fault",
    [
        "[x](nowhere.md)",
        "[x](runs.md#nowhere)",
        "[x](#nowhere)",
        "[x](/abs.md)",
        "![x](no.svg)",
        "",
    ],
)
def test_what_mkdocs_warns_of_fails_the_build(tmp_path: Path, fault: str) -> None:
    """A link, an anchor or a picture that leads nowhere, and a page that is not in the list."""
    shutil.copytree(DOCS, tmp_path / "docs")
    if fault:
        with (tmp_path / "docs" / "data.md").open("a") as page:
            page.write(f"\n{fault}\n")
    else:
        (tmp_path / "docs" / "unlisted.md").write_text("# A page\n")
    assert build(tmp_path) != 0
