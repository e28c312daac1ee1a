"""A page of plots, tables and text: one HTML file that opens offline and loads nothing.

Every text is escaped, because anyone may have written the content of a run's folder. The page's own
policy (Content-Security-Policy) allows no scripts but the two inside the page, and no requests.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, TypeAlias

from fedveil.errors import MissingExtra
from fedveil.pages.plot import Plot
from fedveil.pages.plotly_figure import figure
from fedveil.pages.table import Table

Tone: TypeAlias = Literal["", "good", "fair", "poor"]


@dataclass(frozen=True)
class Fact:
    """An entry of a page's first screen: a question, a short answer, and an explanation.

    `tone` decides the answer's colour.
    """

    label: str
    value: str
    text: str = ""
    tone: Tone = ""


@dataclass(frozen=True)
class Code:
    """A text for the reader to copy, such as a command or a file. `name` is its title."""

    text: str
    name: str = ""


@dataclass(frozen=True)
class Picture:
    """The bytes of a PNG file, and the picture's caption."""

    png: bytes
    caption: str


@dataclass(frozen=True)
class Points:
    """Short sentences, each on a line of its own."""

    lines: Sequence[str]


@dataclass(frozen=True)
class Fold:
    """Long content that is hidden until the reader opens it."""

    title: str
    parts: Sequence[Part]


#: A part of a section. A text is a paragraph.
Part: TypeAlias = str | Plot | Table | Code | Picture | Points | Fold


@dataclass(frozen=True)
class Section:
    """A heading and the parts below it."""

    title: str
    parts: Sequence[Part]


@dataclass(frozen=True)
class Page:
    """A page. `lead` is its first screen: facts, or sentences."""

    title: str
    lead: Sequence[str | Fact]
    sections: Sequence[Section]

    @property
    def plots(self) -> list[Plot]:
        """Every plot of the page, in order."""
        return [plot for section in self.sections for plot in _plots(section.parts)]

    def html(self) -> str:
        """Return the whole page as HTML.

        Raises `MissingExtra` if the page has plots and plotly is not installed.
        """
        plots = self.plots
        scripts = [_own("page.js")]
        if plots:
            scripts.insert(0, plotly_script())
        policy = (
            "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
            f"script-src {' '.join(map(_digest, scripts))}; base-uri 'none'; form-action 'none'"
        )
        title, numbers = escape(self.title), iter(range(len(plots)))
        drawn = [figure(plot) for plot in plots]
        sections = "".join(
            f'<section id="s{n}"><h2>{escape(section.title)}</h2>'
            f"{_html(section.parts, numbers)}</section>"
            for n, section in enumerate(self.sections)
        )
        return (
            '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            '<meta name="color-scheme" content="light dark">'
            f"<title>{title}</title><style>{_own('page.css')}</style></head><body>"
            f"<header><h1>{title}</h1>{_lead(self.lead)}{self._contents()}</header>"
            f"<main>{sections}</main>"
            f'<script type="application/json" id="plots">{_inert(drawn)}</script>'
            f"{''.join(f'<script>{script}</script>' for script in scripts)}</body></html>\n"
        )

    def _contents(self) -> str:
        links = (f'<a href="#s{n}">{escape(s.title)}</a>' for n, s in enumerate(self.sections))
        return f"<nav>{' '.join(links)}</nav>" if len(self.sections) > 1 else ""


@cache
def plotly_script() -> str:
    """Return the JavaScript of the installed plotly package, without importing the package."""
    found = find_spec("plotly")
    for folder in (found and found.submodule_search_locations) or ():
        path = Path(folder, "package_data", "plotly.min.js")
        if path.is_file():
            return _closed(path.read_text("utf-8"))
    raise MissingExtra("plotly", "pages", "a run's page")


@cache
def _own(name: str) -> str:
    return _closed(files(__package__).joinpath(name).read_text("utf-8"))


def _closed(text: str) -> str:
    """Escape a script or a style sheet, so that its content cannot end its HTML element."""
    return text.replace("</", "<\\/").replace("<!--", "<\\!--")


@cache
def _digest(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _inert(data: Any) -> str:
    """Encode `data` as JSON in ASCII, without any character that has a meaning in HTML."""
    text = json.dumps(data, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _plots(parts: Sequence[Part]) -> Iterator[Plot]:
    for part in parts:
        if isinstance(part, Plot):
            yield part
        elif isinstance(part, Fold):
            yield from _plots(part.parts)


def _lead(lead: Sequence[str | Fact]) -> str:
    texts = "".join(f"<p>{_prose(text)}</p>" for text in lead if isinstance(text, str))
    facts = "".join(
        f'<div class="fact {fact.tone}"><h2>{escape(fact.label)}</h2>'
        f"<strong>{escape(fact.value)}</strong><p>{_prose(fact.text)}</p></div>"
        for fact in lead
        if isinstance(fact, Fact)
    )
    return f'{texts}<div class="facts">{facts}</div>' if facts else texts


def _html(parts: Sequence[Part], numbers: Iterator[int]) -> str:
    """Format the parts in order, and number the plots. Consecutive plots are side by side."""
    text, row = "", ""
    for part in parts:
        if isinstance(part, Plot):
            row += _plot(part, next(numbers))
            continue
        text += _beside(row) + _part(part, numbers)
        row = ""
    return text + _beside(row)


def _prose(text: str) -> str:
    """Format a text. Words between backticks become code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _beside(row: str) -> str:
    return f'<div class="plots">{row}</div>' if row else ""


def _plot(plot: Plot, number: int) -> str:
    note = f"<p>{escape(plot.note)}</p>" if plot.note else ""
    return (
        f'<figure><figcaption><h3>{escape(plot.title)}</h3>{note}</figcaption><div class="plot" '
        f'data-plot="{number}"><noscript>Drawn by this page\'s script.</noscript></div></figure>'
    )


def _part(part: Part, numbers: Iterator[int]) -> str:
    match part:
        case str():
            return f"<p>{_prose(part)}</p>"
        case Table():
            return _table(part)
        case Code():
            name = f"<figcaption>{escape(part.name)}</figcaption>" if part.name else ""
            return f"<figure>{name}<pre>{escape(part.text)}</pre></figure>"
        case Picture():
            data = base64.b64encode(part.png).decode()
            caption = escape(part.caption)
            return (
                f'<figure><img alt="{caption}" src="data:image/png;base64,{data}">'
                f"<figcaption>{caption}</figcaption></figure>"
            )
        case Points():
            return f"<ul>{''.join(f'<li>{_prose(line)}</li>' for line in part.lines)}</ul>"
        case Fold():
            inner = _html(part.parts, numbers)
            return f"<details><summary>{escape(part.title)}</summary>{inner}</details>"
        case _:
            raise TypeError(f"{type(part).__name__} is no part of a page")


def _table(table: Table) -> str:
    """Format a table. If it has column names and several rows, a click on a name sorts it."""
    head = "".join(f'<th scope="col">{escape(str(c))}</th>' for c in table.columns)
    if any(table.columns):
        head = f"<thead><tr>{head}</tr></thead>"
        sorts = " class=sorts" if len(table.rows) > 1 else ""
    else:
        head = sorts = ""
    rows = ("".join(f"<td>{escape(str(cell))}</td>" for cell in row) for row in table.rows)
    caption = f"<caption>{escape(table.caption)}</caption>" if table.caption else ""
    return (
        f'<div class="wide"><table{sorts}>{caption}{head}'
        f"<tbody>{''.join(f'<tr>{row}</tr>' for row in rows)}</tbody></table></div>"
    )
