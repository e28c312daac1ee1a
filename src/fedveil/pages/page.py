"""A page is made of plots, tables and text: one HTML file that opens offline and loads nothing.

Every text is shown as it is: what a run's folder says may come from anybody. The page's own policy
(Content-Security-Policy) lets no script run but the two that it was written with, and nothing be
fetched from anywhere.
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
    """What the first screen says: a question, its answer in a few words, and what that means.

    `tone` colours the answer.
    """

    label: str
    value: str
    text: str = ""
    tone: Tone = ""


@dataclass(frozen=True)
class Code:
    """Text to be copied: a command, a file; `name` says what it is."""

    text: str
    name: str = ""


@dataclass(frozen=True)
class Picture:
    """A PNG file's bytes, and what is seen on it."""

    png: bytes
    caption: str


@dataclass(frozen=True)
class Points:
    """Short sentences, a line each."""

    lines: Sequence[str]


@dataclass(frozen=True)
class Fold:
    """What is long, closed until somebody opens it."""

    title: str
    parts: Sequence[Part]


#: What stands in a section; a text is a paragraph.
Part: TypeAlias = str | Plot | Table | Code | Picture | Points | Fold


@dataclass(frozen=True)
class Section:
    """A heading and what stands under it."""

    title: str
    parts: Sequence[Part]


@dataclass(frozen=True)
class Page:
    """A page: `lead` are the facts of the first screen, or sentences."""

    title: str
    lead: Sequence[str | Fact]
    sections: Sequence[Section]

    @property
    def plots(self) -> list[Plot]:
        """Every plot, in order."""
        return [plot for section in self.sections for plot in _plots(section.parts)]

    def html(self) -> str:
        """The whole page; raises `MissingExtra` where it has plots and plotly is not installed."""
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
    """The script of the installed plotly, which is not imported."""
    found = find_spec("plotly")
    for folder in (found and found.submodule_search_locations) or ():
        path = Path(folder, "package_data", "plotly.min.js")
        if path.is_file():
            return _closed(path.read_text("utf-8"))
    raise MissingExtra("plotly", "report", "a run's page")


@cache
def _own(name: str) -> str:
    return _closed(files(__package__).joinpath(name).read_text("utf-8"))


def _closed(text: str) -> str:
    """A script or a style sheet, of which no part ends or changes the element that it stands in."""
    return text.replace("</", "<\\/").replace("<!--", "<\\!--")


@cache
def _digest(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _inert(data: Any) -> str:
    """JSON in ASCII, without a character that means anything to HTML."""
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
    """The parts in their order; plots that follow each other stand side by side."""
    text, row = "", ""
    for part in parts:
        if isinstance(part, Plot):
            row += _plot(part, next(numbers))
            continue
        text += _beside(row) + _part(part, numbers)
        row = ""
    return text + _beside(row)


def _prose(text: str) -> str:
    """A text in which what stands between backticks is to be typed."""
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
    """Its columns sort by a click, where they have names and there is anything to sort."""
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
