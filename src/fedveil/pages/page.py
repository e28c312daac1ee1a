"""A page of plots, tables and text: one HTML file that opens offline and loads nothing.

Every text is escaped, because anyone may have written the content of a run's folder. Marks
of writing direction are escaped too, because they could show 12.5 as 5.21. The page's own policy
(Content-Security-Policy) allows only the script inside the page, and no requests.
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
from itertools import groupby
from typing import Any, Literal, TypeAlias

from fedveil.base.untrusted import escaped
from fedveil.pages.chart import HEIGHT, WIDTH, Drawing, draw, sample
from fedveil.pages.colours import looks
from fedveil.pages.plot import Plot
from fedveil.pages.single_points import single_points
from fedveil.pages.table import Link, Table

Tone: TypeAlias = Literal["", "good", "fair", "poor"]

#: Every page begins with this.
OPENING = "<!DOCTYPE html><html"


@dataclass(frozen=True)
class Fact:
    """A card at the top of a page: a question, a short answer in colour `tone`, an explanation."""

    label: str
    value: str
    text: str = ""
    tone: Tone = ""


@dataclass(frozen=True)
class Code:
    """A text for the reader to copy, such as a command or a file, with the title `name`."""

    text: str
    name: str = ""


@dataclass(frozen=True)
class Picture:
    """A PNG file's bytes, with a caption."""

    png: bytes
    caption: str


@dataclass(frozen=True)
class Points:
    """A list of short sentences, one per line."""

    lines: Sequence[str]


@dataclass(frozen=True)
class Fold:
    """Long content that stays hidden until the reader opens it."""

    title: str
    parts: Sequence[Part]


#: A part of a section. A text is a paragraph.
Part: TypeAlias = str | Plot | Table | Code | Picture | Points | Fold


@dataclass(frozen=True)
class Section:
    title: str
    parts: Sequence[Part]


@dataclass(frozen=True)
class Page:
    """A page. `lead` is its beginning: cards (facts), or sentences."""

    title: str
    lead: Sequence[str | Fact]
    sections: Sequence[Section]

    @property
    def plots(self) -> list[Plot]:
        """All plots that the page draws, in order. Plots without a line become tables instead."""
        plots = (plot for section in self.sections for plot in _plots(section.parts))
        return [plot for plot in plots if plot.has_line]

    def html(self) -> str:
        script = _own("page.js")
        policy = (
            "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
            f"script-src {_digest(script)}; base-uri 'none'; form-action 'none'"
        )
        title, drawn = shown_text(self.title), list[Drawing]()
        sections = "".join(
            f'<section id="s{n}"><h2>{shown_text(section.title)}</h2>'
            f"{_html(section.parts, drawn)}</section>"
            for n, section in enumerate(self.sections)
        )
        data = [drawing.data for drawing in drawn]
        return (
            f'{OPENING} lang="en"><head><meta charset="utf-8">'
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            '<meta name="color-scheme" content="light dark">'
            f"<title>{title}</title><style>{_own('page.css')}</style></head><body>"
            f"<header><h1>{title}</h1>{_lead(self.lead)}{self._contents()}</header>"
            f"<main>{sections}</main>"
            f'<script type="application/json" id="plots">{_inert(data)}</script>'
            f"<script>{script}</script></body></html>\n"
        )

    def _contents(self) -> str:
        links = (f'<a href="#s{n}">{shown_text(s.title)}</a>' for n, s in enumerate(self.sections))
        return f"<nav>{' '.join(links)}</nav>" if len(self.sections) > 1 else ""


def shown_text(text: str) -> str:
    """Format a text as HTML. Characters that would reorder the text become codes like `\\u202e`."""
    return escape(escaped(text))


@cache
def _own(name: str) -> str:
    return _closed(files(__package__).joinpath(name).read_text("utf-8"))


def _closed(text: str) -> str:
    """Escape a script or style sheet, so that it cannot close its own HTML element."""
    return text.replace("</", "<\\/").replace("<!--", "<\\!--")


@cache
def _digest(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _inert(data: Any) -> str:
    """Encode `data` as ASCII JSON, without characters that have a meaning in HTML."""
    text = json.dumps(data, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _plots(parts: Sequence[Part]) -> Iterator[Plot]:
    for part in parts:
        if isinstance(part, Plot):
            yield part
        elif isinstance(part, Fold):
            yield from _plots(part.parts)


def _lead(lead: Sequence[str | Fact]) -> str:
    texts = "".join(f"<p>{prose(text)}</p>" for text in lead if isinstance(text, str))
    facts = "".join(
        f'<div class="fact {fact.tone}"><h2>{shown_text(fact.label)}</h2>'
        f"<strong>{prose(fact.value)}</strong><p>{prose(fact.text)}</p></div>"
        for fact in lead
        if isinstance(fact, Fact)
    )
    return f'{texts}<div class="facts">{facts}</div>' if facts else texts


def _html(parts: Sequence[Part], drawn: list[Drawing]) -> str:
    """Format the parts of a section as HTML, and append the drawing of each plot to `drawn`."""
    text = ""
    for are_plots, group in groupby(parts, lambda part: isinstance(part, Plot)):
        if not are_plots:
            text += "".join(_part(part, drawn) for part in group)
            continue
        plots = [part for part in group if isinstance(part, Plot)]
        figures = "".join(_plot(plot, drawn) for plot in plots if plot.has_line)
        text += f'<div class="plots">{figures}</div>' if figures else ""
        single = single_points([plot for plot in plots if not plot.has_line])
        text += _table(single) if single.rows else ""
    return text


def prose(text: str) -> str:
    """Format a text as HTML. Words in backticks become code, and numbers stay on one line."""
    return re.sub(r"`([^`]+)`", lambda code: f"<code>{_breakable(code[1])}</code>",
                  _unbroken(shown_text(text)))  # fmt: skip


def _breakable(code: str) -> str:
    """Allow line breaks after the dots, slashes and equals signs of a command."""
    return re.sub(r"(?<=\w)[./=](?=\w)(?![^<]*>)", r"\g<0><wbr>", code)


def _unbroken(text: str) -> str:
    """Prevent line breaks within exponents and options, such as `1e-05` and `--json`."""
    return re.sub(
        r"\b\d[\d.]*e-\d{1,3}\b|(?<!\S)--[\w-]{1,24}", r'<span class="nb">\g<0></span>', text
    )


def _plot(plot: Plot, drawn: list[Drawing]) -> str:
    note = f"<p>{shown_text(plot.note)}</p>" if plot.note else ""
    drawing, number = draw(plot), len(drawn)
    drawn.append(drawing)
    names = "".join(
        f'<li><svg viewBox="0 0 26 12">{sample(curve, look)}</svg>{shown_text(curve.name)}</li>'
        for curve, look in zip(plot.curves, looks(plot.curves), strict=True)
    )
    legend = f'<ul class="legend">{names}</ul>' if len(plot.curves) > 1 else ""
    return (
        f"<figure><figcaption><h3>{shown_text(plot.title)}</h3>{note}</figcaption>"
        f'<div class="plot" data-plot="{number}"><svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'role="img" aria-label="{shown_text(plot.title)}">{drawing.elements}</svg></div>'
        f"{legend}</figure>"
    )


def _part(part: Part, drawn: list[Drawing]) -> str:
    match part:
        case str():
            return f"<p>{prose(part)}</p>"
        case Table():
            return _table(part)
        case Code():
            name = f"<figcaption>{shown_text(part.name)}</figcaption>" if part.name else ""
            return f"<figure>{name}<pre>{shown_text(part.text)}</pre></figure>"
        case Picture():
            data = base64.b64encode(part.png).decode()
            caption = shown_text(part.caption)
            return (
                f'<figure><img alt="{caption}" src="data:image/png;base64,{data}">'
                f"<figcaption>{caption}</figcaption></figure>"
            )
        case Points():
            return f"<ul>{''.join(f'<li>{prose(line)}</li>' for line in part.lines)}</ul>"
        case Fold():
            inner = _html(part.parts, drawn)
            return f"<details><summary>{shown_text(part.title)}</summary>{inner}</details>"
        case _:
            raise TypeError(f"{type(part).__name__} is no part of a page")


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{shown_text(str(c))}</th>' for c in table.columns)
    if any(table.columns):
        head = f"<thead><tr>{head}</tr></thead>"
        sorts = " class=sorts" if len(table.rows) > 1 else ""
    else:
        head = sorts = ""
    rows = ("".join(f"<td>{_cell(cell)}</td>" for cell in row) for row in table.rows)
    caption = f"<caption>{shown_text(table.caption)}</caption>" if table.caption else ""
    return (
        f'<div class="wide"><table{sorts}>{caption}{head}'
        f"<tbody>{''.join(f'<tr>{row}</tr>' for row in rows)}</tbody></table></div>"
    )


def _cell(cell: str) -> str:
    text = re.sub(r"\[[\d.,%\s-]{1,24}\]", r'<span class="nb">\g<0></span>', shown_text(str(cell)))
    return f'<a href="{shown_text(cell.target)}">{text}</a>' if isinstance(cell, Link) else text
