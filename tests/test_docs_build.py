"""The pages are built strictly: what mkdocs warns of fails the build; they load nothing else."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import fedveil
from browser import needs_browser, show
from fedveil.federated import job_reference, mindspore_keys
from fedveil.statistics import question_reference
from fedveil.vertical import job_reference as vertical_reference
from folders import DOCS, ROOT

#: `.ci/run` runs these after `make docs`.
pytestmark = pytest.mark.slow
pytest.importorskip("material")
pytest.importorskip("mkdocstrings")
#: The options of `make docs`.
OPTIONS = re.search(r"mkdocs build ([^#\n]*)", (ROOT / "Makefile").read_text())[1].split()  # type: ignore[index]
#: Each would be a page's fault, with what mkdocs says of it.
FAULTS = {
    "[x](nowhere.md)": "'nowhere.md', but the target is not found",
    "[x](runs.md#nowhere)": "does not contain an anchor '#nowhere'",
    "[x](#nowhere)": "there is no such anchor on this page",
    "[x](/abs.md)": "absolute link '/abs.md'",
    "![x](no.svg)": "'no.svg', but the target is not found",
}


def build(folder: Path) -> subprocess.CompletedProcess[str]:
    for name in ("mkdocs.yml", "CHANGELOG.md"):
        shutil.copy(ROOT / name, folder)
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", *OPTIONS, "--site-dir", folder / "site"],
        cwd=folder, capture_output=True, text=True, check=False,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs")
    shutil.copytree(DOCS, folder / "docs")
    ended = build(folder)
    assert ended.returncode == 0, ended.stderr
    return folder / "site"


def test_every_page_is_built(site: Path) -> None:
    for page in DOCS.rglob("*.md"):
        name = page.relative_to(DOCS).with_suffix("")
        name = name.parent if name.name == "index" else name
        assert (site / name / "index.html").is_file(), page


@pytest.mark.parametrize(
    ("written", "name", "command"),
    [
        (job_reference, "job", "fedveil job keys training"),
        (vertical_reference, "vertical-job", "fedveil vertical keys parts"),
        (question_reference, "question-file", "fedveil ask --keys"),
    ],
)
def test_the_site_has_every_key_of_a_job(
    site: Path, written: ModuleType, name: str, command: str
) -> None:
    """And the page that a reader of the files finds in its place names the command."""
    assert f"    $ {command}\n" in (DOCS / f"{name}.md").read_text("utf-8")
    shown = (site / name / "index.html").read_text("utf-8")
    keys = re.findall(r"^\| `([\w.]+)` \|", written.reference(), re.MULTILINE)
    assert len(keys) > 40
    assert [key for key in keys if f"<code>{key}</code>" not in shown] == []


def test_the_site_has_the_tables_that_the_code_knows(site: Path) -> None:
    """Every key of MindSpore Federated; every experiment with its verdicts."""
    shown = (site / "mindspore" / "index.html").read_text("utf-8")
    keys = re.findall(r"`([\w.*]+)`(?=[^|]*\|[^|]*\|\n)", mindspore_keys.key_table())
    assert len(keys) > 80
    assert [key for key in keys if f"<code>{key}</code>" not in shown] == []
    assert "mindspore_keys" not in shown
    shown = (site / "reproductions" / "index.html").read_text("utf-8")
    for page in (DOCS / "reproductions").glob("[!i]*.md"):
        if page.stem == "statements":
            continue
        found = re.search(
            r"\*\*(\d+ of \d+) results agree[^;*]*(; [^.]*)?\.\*\*", page.read_text("utf-8")
        )
        assert found
        told = f"{found[1]} agree{found[2] or ''}"
        row = rf'<a href="{page.stem}/">{page.stem}</a></td>\s*<td>[^<]*</td>\s*<td>{told}<'
        assert re.search(row, shown.replace("../", "")), page


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    """Links may lead away; scripts, styles, fonts, frames and pictures come from the same place."""
    tags = r"<(?:script|img|iframe|source|embed|object)\b[^>]*?\b(?:src|data)|<link\b[^>]*?\bhref"
    loads = rf"""(?:{tags})=["']?([^"' >]+)"""
    found = 0
    for page in site.rglob("*.html"):
        text = page.read_text("utf-8")
        loaded = [place for place in re.findall(loads, text) if re.match(r"(https?:)?//", place)]
        found += len(re.findall(loads, text))
        assert loaded == [], page
    assert found > 100
    for style in [*site.rglob("*.css"), *site.rglob("*.svg")]:
        text = style.read_text("utf-8")
        assert not re.search(r"(url\(|@import)\s*[\"']?(https?:)?//", text), style


def test_private_names_are_in_no_reference(site: Path) -> None:
    for page in (site / "reference").rglob("index.html"):
        names = re.findall(r'id="(fedveil[\w.]*)"', page.read_text())
        parts = {part for name in names for part in name.split(".")}
        assert "fedveil" in parts
        assert [part for part in parts if part.startswith("_")] == []


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    import fedveil.mechanisms
    import fedveil.privacy

    text = "".join(page.read_text() for page in (site / "reference").rglob("index.html"))
    for module in (fedveil, fedveil.mechanisms, fedveil.privacy):
        for name in set(module.__all__) - {"__version__", "secagg", "vertical", "FedveilError"}:
            assert re.search(rf'id="{module.__name__}(?!\.vertical)[\w.]*\.{name}"', text), name


#: Returns the number of blocks of code, the ones that are cut, and how many would be unwrapped.
CUT = """
    const cut = () => [...document.querySelectorAll("pre, pre > code")]
        .filter(block => block.scrollWidth > block.clientWidth)
        .map(block => block.textContent.slice(0, 70));
    const now = cut();
    document.querySelectorAll("pre > code").forEach(code => code.style.whiteSpace = "pre");
    return [document.querySelectorAll("pre").length, now, cut().length];
"""
ARTICLE = re.compile(r"(<article[^>]*>)(.*)(</article>)", re.DOTALL)


def rendered(page: Path, script: str, text: str = "") -> Any:
    """Open a page of the site at 1,280 pixels, and return what `script` finds in it."""
    text = re.sub(r"</body>\s*</html>", "</body></html>", text or page.read_text("utf-8"))
    return show(text, page.parent, script).found


@needs_browser
def test_no_block_of_code_is_cut(site: Path) -> None:
    """All pages are shown as one, between the same two columns."""
    frame = site / "privacy" / "index.html"
    articles = [ARTICLE.search(p.read_text("utf-8")) for p in site.glob("**/index.html")]
    whole = "".join(article[2] for article in articles if article)
    blocks = whole.count("<pre>")
    assert blocks > 150
    text = ARTICLE.sub(lambda found: found[1] + whole + found[3], frame.read_text("utf-8"))
    shown, cut, unwrapped = rendered(frame, CUT, text)
    assert shown == blocks
    assert cut == []
    assert unwrapped > 5, "the check finds nothing"


@needs_browser
def test_the_front_page_fits_on_a_screen(site: Path) -> None:
    """A sentence, the commands, the figure and the links are above 800 pixels."""
    page = site / "index.html"
    bottoms = rendered(
        page,
        """
        const bottom = of => of.getBoundingClientRect().bottom;
        const all = of => [...document.querySelectorAll(".front " + of)].map(bottom);
        const plot = document.querySelector(".front .plot");
        return {plot: plot.naturalWidth ? all(".plot") : [], h1: all("h1"), pre: all("pre"),
                links: all('a:is([href*="design"], [href*="changelog"], [href*="tutorial"])')};
        """,
    )
    counts = {name: len(places) for name, places in bottoms.items()}
    assert counts == {"plot": 1, "h1": 1, "pre": 2, "links": 3}
    assert max(place for places in bottoms.values() for place in places) <= 800
    assert f"version {fedveil.__version__}" in page.read_text("utf-8")
    assert rendered(page, CUT)[1] == []


def test_the_site_has_a_logo_and_the_changelog(site: Path) -> None:
    for page in (site / "index.html", site / "runs" / "index.html"):
        text = page.read_text("utf-8")
        for name in re.findall(
            r'<link rel="icon" href="([^"]*)"|<img src="([^"]*logo-dark[^"]*)"', text
        ):
            assert (page.parent / "".join(name).partition("#")[0]).is_file()
        assert text.count('rel="icon"') == 1
        assert "logo-dark.svg" in text
    assert "images/logo.svg" in (site / "index.html").read_text("utf-8")
    shown = (site / "changelog" / "index.html").read_text("utf-8")
    releases = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert len(releases) >= 2
    assert all(f">{release}<a" in shown for release in releases)


def test_what_mkdocs_warns_of_fails_the_build(tmp_path: Path) -> None:
    """A link, an anchor or a picture that leads nowhere, and a page that is not in the list."""
    shutil.copytree(DOCS, tmp_path / "docs", ignore=shutil.ignore_patterns("reference"))
    with (tmp_path / "docs" / "data.md").open("a") as page:
        page.writelines(f"\n{fault}\n" for fault in FAULTS)
    (tmp_path / "docs" / "unlisted.md").write_text("# A page\n")
    ended = build(tmp_path)
    assert ended.returncode != 0
    warned = [line for line in ended.stderr.splitlines() if line.startswith("WARNING")]
    for said in (*FAULTS.values(), "unlisted.md"):
        assert any(said in line for line in warned) or said == "unlisted.md", said
    assert "  - unlisted.md" in ended.stderr
