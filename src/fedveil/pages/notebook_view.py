"""Displays a run in a notebook, while it runs and afterwards."""

from __future__ import annotations

import base64
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedveil.errors import InvalidValue, MissingExtra
from fedveil.pages import curves
from fedveil.pages.page import prose, shown_text
from fedveil.pages.plot import Plot
from fedveil.pages.plotly_figure import figure
from fedveil.pages.read_run import ReadRun
from fedveil.pages.run_summary import ending
from fedveil.pages.svg import svg
from fedveil.pages.vertical_page import answers, is_vertical, leader_of, learning, parties_of
from fedveil.record.metric_names import LOSS, deciding, digits, word
from fedveil.record.recorder import Record

#: The least time between two drawings of a running run, because images take time.
_EVERY_S = 1.0


def in_notebook() -> bool:
    """Return True if the code runs in a notebook, whose cells can display output."""
    python = sys.modules.get("IPython")
    shell = None if python is None else python.get_ipython()
    return getattr(shell, "kernel", None) is not None


class LiveView:
    """Displays a run's progress. Call it with each round's record, and call `warn` with a warning.

    The argument `show` is a function that displays HTML in place of the previous HTML. By default,
    the notebook displays it.
    """

    def __init__(self, job: Mapping[str, Any], show: Callable[[str], None] | None = None) -> None:
        self._job = job
        self._show = show or _Output()
        self._records: list[Record] = []
        self._warnings: list[str] = []
        self._shown_s = -_EVERY_S

    def warn(self, text: str) -> None:
        self._warnings.append(text)

    def __call__(self, record: Record) -> None:
        self._records.append(record)
        last = record["round"] == self._job["rounds"]
        if last or time.monotonic() - self._shown_s >= _EVERY_S:
            self._show(self.html())
            self._shown_s = time.monotonic()

    def html(self) -> str:
        run = ReadRun(Path(), self._job, self._records, (), ())
        done, rounds, last = self._records[-1]["round"], self._job["rounds"], run.last
        names = dict.fromkeys((deciding(last)[0], LOSS))
        said = [f"{word(name)} {digits(name, last[name])}" for name in names if name in last]
        warned = "".join(f"<p>{shown_text(text)}</p>" for text in self._warnings)
        return (
            f'<div><progress value="{done}" max="{rounds}"></progress> round {done} of {rounds} '
            f"{shown_text(' · '.join(said))}{warned}{_pictures(_quality(run))}</div>"
        )


class _Output:
    def __init__(self) -> None:
        self._handle: Any = None

    def __call__(self, html: str) -> None:
        from IPython.display import HTML, display

        if self._handle is None:
            self._handle = display(HTML(html), display_id=True)
        else:
            self._handle.update(HTML(html))


def of_run(run: ReadRun) -> str:
    """Return a finished run as HTML: quality, privacy guarantee, next step, and curves."""
    rows = "".join(
        f"<tr><th>{shown_text(fact.label)}</th><td><b>{prose(fact.value)}</b> "
        f"{prose(fact.text)}</td></tr>"
        for fact in (answers(run) if is_vertical(run) else ending(run))
    )
    return (
        f"<div><h4>{shown_text(run.name)}</h4><table>{rows}</table>"
        f"{_pictures(_quality(run))}<p>{shown_text(str(run.folder))}</p></div>"
    )


def plotly(run: ReadRun, name: str | None) -> Any:
    try:
        from plotly.graph_objects import Figure
    except ImportError:
        raise MissingExtra("plotly", "notebook", "Run.plot") from None
    known = {plot.name: plot for plot in _all(run)}
    sought = name or deciding(run.last)[0]
    if sought not in known:
        raise InvalidValue(f"there is no plot {sought!r} of this run: {', '.join(known)}")
    plot = known[sought]
    drawn = Figure(figure(plot))
    return drawn.update_layout(title=plot.title, margin_t=48)


def _all(run: ReadRun) -> Iterator[Plot]:
    alone = {run.name: run}
    for several in (curves.quality, curves.at_clients, curves.epsilon, curves.upload):
        yield from several(alone)
    yield from curves.traffic(run)
    yield from curves.seconds(run)


def _quality(run: ReadRun) -> list[Plot]:
    if is_vertical(run):
        plots = learning({run.name: leader_of(run, parties_of(run))})
        return [plot for plot in plots if plot.has_line][:2]
    return list(curves.quality({str(run.job["name"]): run}))[:2]


def _pictures(plots: Sequence[Plot]) -> str:
    drawn = [(plot, base64.b64encode(svg(plot)).decode()) for plot in plots]
    return "".join(
        f'<img alt="{shown_text(plot.title)}" width="380" src="data:image/svg+xml;base64,{data}">'
        for plot, data in drawn
    )
