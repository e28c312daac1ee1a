"""A page shows what it was made of, loads nothing, and runs nobody's script but its own."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from pathlib import Path

import plotly.graph_objects
import pytest
from rich.console import Console

from browser import needs_browser, show
from fedveil.base.untrusted import escaped
from fedveil.errors import RunFolderError
from fedveil.pages import page as page_file
from fedveil.pages.page import Code, Fact, Fold, Page, Part, Picture, Points, Section
from fedveil.pages.page_files import write_page
from fedveil.pages.plot import Axis, Curve, Plot
from fedveil.pages.plotly_figure import figure
from fedveil.pages.svg import svg
from fedveil.pages.table import Link, Table

EVIL = "</script><script>window.evil=1</script><img src=x onerror=window.evil=1>'\"&\u2028]]>"
SMALL = Plot("a", "Accuracy", Axis("round"), Axis("accuracy"), [Curve("own", [1, 2], [0.5, 0.75])])
RICH = Plot(
    "b", "Against epsilon", Axis("epsilon", log=True), Axis("bytes", log=True),
    [
        Curve("spread", [1, 2, 4], [1, math.nan, 3], [0.5, 0.25, 2], [2, math.inf, 4], True),
        Curve("read off", [1, 4], [10, 1000], dashed=True),
        Curve("one", [2], [20]),
    ],
    "A note.",
)  # fmt: skip


def page_of(*parts: Part, lead: tuple[str | Fact, ...] = ()) -> Page:
    return Page("Runs", lead, [Section("All", parts)])


@pytest.mark.parametrize(("zero", "end"), [(False, 0.891), (True, 0)])
def test_a_single_figure_stands_on_an_axis_of_its_own_size(zero: bool, end: float) -> None:
    """Left to itself plotly draws an accuracy of 0.99 between 0 and 2."""
    curve = Curve("a", [15], [0.99])
    layout = figure(Plot("a", "A", Axis("step"), Axis("accuracy", zero=zero), [curve]))["layout"]
    assert layout["yaxis"]["range"] == pytest.approx([end, 1.089])
    assert "range" not in layout["xaxis"]
    modes = [layout[axis]["rangemode"] for axis in ("xaxis", "yaxis")]
    assert modes == ["normal", "tozero" if zero else "normal"]
    assert "range" not in figure(SMALL)["layout"]["yaxis"]


@pytest.mark.parametrize("plot", [SMALL, RICH, Plot("n", "None", Axis("x"), Axis("y"), [])])
def test_plotly_takes_every_figure(plot: Plot) -> None:
    made = figure(plot)
    plotly.graph_objects.Figure(made)
    json.dumps(made, allow_nan=False)


def test_a_figure_has_gaps_spreads_and_marks_where_the_curves_have() -> None:
    spread, first, second, third = figure(RICH)["data"]
    assert first["y"] == [1.0, None, 3.0]
    assert (spread["x"], spread["y"]) == ([1, 4, 4, 1], [0.5, 2, 4, 2])
    assert spread["fill"] == "toself"
    assert not spread["showlegend"]
    modes = [trace["mode"] for trace in (first, second, third)]
    assert modes == ["lines+markers", "lines", "lines+markers"]
    assert [trace["line"]["dash"] for trace in (first, second)] == ["solid", "dash"]
    assert len({trace["line"]["color"] for trace in (first, second, third)}) == 3
    layout = figure(RICH)["layout"]
    assert (layout["xaxis"]["type"], layout["yaxis"]["type"]) == ("log", "log")
    assert (layout["showlegend"], figure(SMALL)["layout"]["showlegend"]) == (True, False)


def test_an_axis_is_linear_unless_it_is_logarithmic_and_a_gap_decides_no_tick() -> None:
    layout = figure(SMALL)["layout"]
    assert (layout["xaxis"]["type"], layout["yaxis"]["type"]) == ("linear", "linear")
    assert not layout["xaxis"]["zeroline"]
    gap = Plot("g", "Gaps", Axis("round"), Axis("steps"), [Curve("own", [3, 7], [2, math.inf])])
    assert figure(gap)["layout"]["yaxis"]["dtick"] == 1
    assert figure(RICH)["layout"]["height"] == 320 + 22  # 24 letters, and 6 beside each name
    assert figure(SMALL)["layout"]["height"] == 320  # one curve needs no legend
    long = [Curve("n" * 33, [1], [1]), Curve("m" * 36, [1], [2])]
    wide = figure(Plot("w", "Wide", Axis("round"), Axis("steps"), long))["layout"]
    assert wide["height"] == 320 + 22 * 3


def test_a_script_of_a_page_closes_no_element() -> None:
    assert page_file._closed("a</script><!--b") == "a<\\/script><\\!--b"


def test_names_are_no_markup_of_plotly_s() -> None:
    curve = Curve("<a href='https://example.org'>here</a>", [1], [1])
    drawn = figure(Plot("a", "A", Axis("<b>x</b>"), Axis("y"), [curve]))
    assert "<" not in json.dumps(drawn)


def test_no_text_is_markup_wherever_it_stands() -> None:
    curves = [Curve(EVIL, [1, 2], [1, 3]), Curve(EVIL, [1], [2])]
    plot = Plot("a", EVIL, Axis(EVIL), Axis(f"{EVIL}y"), curves, EVIL)
    table = Table([EVIL, "b"], [[EVIL, "1"], [Link(EVIL, EVIL), "2"]], EVIL)
    fold = Fold(EVIL, [EVIL, Points([EVIL]), Code(EVIL, EVIL), Picture(b"png", EVIL)])
    lead = (EVIL, Fact(EVIL, EVIL, EVIL))
    made = Page(EVIL, lead, [Section(EVIL, [table, plot, fold]), Section("b", [])]).html()
    own = page_of(SMALL).html()
    for mark in ("<script", "<img src=x", "onerror=window.evil=1>"):
        assert made.count(mark) == own.count(mark), mark
    data = re.search(r'id="plots">(.*?)</script>', made, re.DOTALL)
    assert data is not None
    assert json.loads(data[1])[0]["x"]["title"] == escaped(EVIL)
    assert data[1].isascii()


def test_no_name_turns_the_figures_beside_it_around_wherever_it_stands() -> None:
    """Play a party whose name would show the epsilon 12.5 in its line as 5.21."""
    turned = "lab\u202e 12.5\u2066\u200f"
    curves = [Curve(turned, [1, 2], [1, 3]), Curve("b", [1], [2])]
    plot = Plot("a", turned, Axis(turned), Axis(f"{turned}y"), curves, turned)
    table = Table([turned, "b"], [[turned, "1"], [Link(turned, "b"), "2"]], turned)
    fold = Fold(turned, [turned, Points([turned]), Code(turned, turned), Picture(b"png", turned)])
    lead = (turned, Fact(turned, turned, turned))
    made = Page(turned, lead, [Section(turned, [table, plot, fold]), Section("b", [])]).html()
    assert not re.findall("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]", made)
    assert made.count("lab\\u202e 12.5\\u2066\\u200f") >= 20
    data = re.search(r'id="plots">(.*?)</script>', made, re.DOTALL)
    assert data is not None
    (sent,) = json.loads(data[1])
    assert (sent["x"]["title"], sent["curves"][0]["name"]) == (escaped(turned), escaped(turned))


def test_data_in_a_page_ends_no_element_and_comes_back() -> None:
    text = page_file._inert([EVIL])
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == [EVIL]


def test_a_page_needs_no_package_and_is_small() -> None:
    work = """
import sys
sys.modules |= dict.fromkeys(["plotly", "matplotlib", "torch"])  # none can be imported
from fedveil.pages.page import Page, Section
from fedveil.pages.plot import Axis, Curve, Plot
from fedveil.pages.svg import svg
plot = Plot("a", "A", Axis("x"), Axis("y"), [Curve("own", [1, 2], [3, 4])])
print(Page("Runs", [], [Section("All", [plot] * 3)]).html(), svg(plot))
"""
    made = subprocess.run([sys.executable, "-c", work], check=True, capture_output=True).stdout
    assert made.count(b'class="line"') == 4
    assert len(made) < 30_000


def test_a_plot_without_a_line_is_a_row_of_a_table() -> None:
    """Two plots of a vertical run that evaluated once, between others: one of two parties."""
    alone = [
        Plot("a", "Held-out accuracy", Axis("step"), Axis("accuracy", unit="percent"),
             [Curve("own", [60], [0.9876])]),
        Plot("b", "Bytes", Axis("step"), Axis("bytes", unit="bytes"),
             [Curve("bank", [70], [40e6]), Curve("shop", [70, 70], [1.25e3, math.nan])]),
    ]  # fmt: skip
    page = page_of(alone[0], SMALL, alone[1])
    made = page.html()
    assert page.plots == [SMALL]
    assert made.count("<svg class=") == 1
    rows = re.findall("<tr><td>(.*?)</td></tr>", made)
    assert [row.split("</td><td>") for row in rows] == [
        ["Held-out accuracy", "step 60", "98.8%"],
        ["Bytes: bank", "step 70", "40 MB"],
        ["Bytes: shop", "step 70", "1.2 KB"],
        ["Bytes: shop", "step 70", "undefined"],
    ]


def test_each_plot_of_a_section_is_drawn_once_and_in_its_place() -> None:
    table = Table(["a"], [["1"]])
    page = page_of(SMALL, table, Fold("more", ["a text", RICH]), SMALL)
    assert page.plots == [SMALL, RICH, SMALL]
    made = page.html()
    assert re.findall('data-plot="([0-9])"', made) == ["0", "1", "2"]
    data = re.search(r'id="plots">(.*?)</script>', made, re.DOTALL)
    assert data is not None
    assert [len(of["curves"]) for of in json.loads(data[1])] == [1, 3, 1]
    order = [made.index(text) for text in ("Accuracy</h3>", "<td>1", "a text", "Against eps")]
    assert order == sorted(order)
    assert "<h3>Against epsilon</h3><p>A note.</p>" in made


@pytest.mark.parametrize("content", [b"rounds: 3\n", b"<", b"<!DOCTYPE html>mine", b"\x00\xff"])
def test_a_page_replaces_a_page_and_no_other_file(tmp_path: Path, content: bytes) -> None:
    file, page = tmp_path / "job.yaml", Page("One", [], [Section("One", [SMALL])])
    file.write_bytes(content)
    said = f"^{file} is not a page, and is not overwritten. Name another file, such as .*html$"
    with pytest.raises(RunFolderError, match=said):
        list(write_page(page, file))
    assert (file.read_bytes(), list(tmp_path.iterdir())) == (content, [file])
    file.write_bytes(b"")
    for title in ("One", "Two"):
        list(write_page(replace(page, title=title), file))
        assert f"<title>{title}" in file.read_text()


def test_plots_of_one_name_have_files_of_their_own(tmp_path: Path) -> None:
    """A test loss of federated runs and a training loss of vertical runs, on one page."""
    other = Plot("a", "Training loss", Axis("step"), Axis("loss"), [Curve("own", [3, 9], [2, 1])])
    page = Page("Both", [], [Section("One", [SMALL]), Section("Two", [other])])
    wrote = list(write_page(page, tmp_path / "page.html"))
    assert [path.name for path in wrote] == ["page.html", "page-a.svg", "page-a-2.svg"]
    assert [path.read_bytes() for path in wrote[1:]] == [svg(SMALL), svg(other)]


@pytest.mark.parametrize("names", [("a", "a", "a-2"), ("a-2", "a", "a"), ("a", "a", "a-2", "a-2")])
def test_a_numbered_name_replaces_no_plot_of_that_name(
    names: tuple[str, ...], tmp_path: Path
) -> None:
    plots = [replace(SMALL, name=name, title=str(place)) for place, name in enumerate(names)]
    page = Page("All", [], [Section("One", plots)])
    wrote = list(write_page(page, tmp_path / "page.html"))
    assert wrote[1].name == f"page-{names[0]}.svg"
    assert [path.read_bytes() for path in wrote[1:]] == [svg(plot) for plot in plots]


@needs_browser
def test_a_browser_draws_every_plot_and_sorts_a_table(tmp_path: Path) -> None:
    rows = [["a", "20.5 KB", "0.9"], ["b", "1.2 MB", "inf (none)"], ["c", "900 B", "12.5 (weak)"]]
    table = Table(["run", "upload", "epsilon"], rows)
    made = page_of(SMALL, RICH, table, Fold("more", [SMALL])).html()
    script = """
        const cells = column => [...document.querySelectorAll("tbody tr")]
            .map(row => row.cells[column].textContent);
        const heads = [...document.querySelectorAll("th button")];
        const found = [];
        for (const column of [1, 1, 2, 0]) {
            heads[column].click();
            found.push(cells(0).join(""), heads[column].parentNode.getAttribute("aria-sort"));
        }
        const plots = [...document.querySelectorAll(".plot")];
        const lines = plots.map(plot => plot.querySelectorAll(".curve").length);
        return [found, performance.getEntriesByType("resource").length, lines,
                plots.map(plot => plot.getBoundingClientRect().height > 100)];
    """
    shown = show(made, tmp_path, script)
    assert shown.console == []
    sorts, fetched, lines, high = shown.found
    assert sorts == [
        "cab", "ascending", "bac", "descending", "acb", "ascending", "abc", "ascending"
    ]  # fmt: skip
    assert fetched == 0
    assert lines == [1, 3, 1]
    assert high == [True, True, True]


@needs_browser
def test_the_values_under_the_pointer_are_those_of_the_curves(tmp_path: Path) -> None:
    """Point at the middle of a logarithmic axis from 1 to 4, and beyond its right end."""
    made = page_of(RICH).html()
    script = """
        const drawing = document.querySelector(".chart");
        const {left, width, top} = drawing.getBoundingClientRect();
        const told = [];
        for (const share of [.55, 2]) {
            const at = {clientX: left + share * width, clientY: top + 9};
            drawing.dispatchEvent(new PointerEvent("pointermove", at));
            told.push([...document.querySelector(".tip").children].map(line => line.textContent));
        }
        drawing.dispatchEvent(new PointerEvent("pointerleave"));
        return [told, document.querySelectorAll(".tip, .at").length];
    """
    told, left_over = show(made, tmp_path, script).found
    assert told == [["epsilon 2", "one: 20"], ["epsilon 4", "spread: 3 (2 to 4)", "read off: 1000"]]
    assert left_over == 0


@needs_browser
def test_a_plots_values_can_be_read_without_a_pointer(tmp_path: Path) -> None:
    """Open each plot's fold: every point of every curve is in its table, in the order of x."""
    words = ["<b>b", "aa", "a"]
    ends = [8, 3, math.inf], [10, 5, math.inf]
    counts = Curve("estimate", [0, 1, 2], [9, 4, 2.5], *ends, bars=True)
    named = Plot("c", "Words", Axis("word", names=words), Axis("rows"), [counts])
    spent = Curve("own", [30, 4, 4], [2.000001, 0.5, 1], marks=True)
    epsilon = Plot("d", "Epsilon", Axis("round"), Axis("epsilon", unit="epsilon"), [spent])
    script = """
        return [...document.querySelectorAll("figure details")].map(fold => {
            const before = fold.querySelectorAll("td").length;
            for (const times of [1, 2]) fold.dispatchEvent(new Event("toggle"));
            const rows = [...fold.querySelectorAll("tr")];
            const scopes = new Set([...fold.querySelectorAll("th")].map(head => head.scope));
            return [before, fold.firstChild.localName, fold.lastChild.tabIndex, [...scopes],
                    rows.map(row => [...row.cells].map(cell => cell.textContent))];
        });
    """
    found = show(page_of(RICH, named, epsilon).html(), tmp_path, script).found
    assert [rest for *rest, _ in found] == [[0, "summary", 0, ["col", "row"]]] * 3
    assert [rows for *_, rows in found] == [
        [["epsilon", "spread", "read off", "one"],
         ["1", "1 (0.5 to 2)", "10", "-"], ["2", "-", "-", "20"], ["4", "3 (2 to 4)", "1000", "-"]],
        [["word", "Words"], ["<b>b", "9 (8 to 10)"], ["aa", "4 (3 to 5)"], ["a", "2.5"]],
        [["round", "Epsilon"], ["4", "0.5; 1"], ["30", "2.0001"]],
    ]  # fmt: skip


@needs_browser
def test_the_pointer_shows_the_name_of_a_bar(tmp_path: Path) -> None:
    names = Axis("age", names=["[18, 40)", "\u202e[40, 65)"])
    bars = Plot("a", "Ages", names, Axis("rows"), [Curve("e", [0, 1], [3, 5], bars=True)])
    script = """
        const drawing = document.querySelector(".chart");
        const at = {clientX: drawing.getBoundingClientRect().right};
        drawing.dispatchEvent(new PointerEvent("pointermove", at));
        return [...document.querySelector(".tip").children].map(line => line.textContent);
    """
    assert show(page_of(bars).html(), tmp_path, script).found == ["age \\u202e[40, 65)", "5"]


@needs_browser
def test_a_printout_has_the_folded_sentences_but_no_folded_file(tmp_path: Path) -> None:
    folds = Fold("limits", [Points(["unseen"])]), Fold("job.yaml", [Code("name: a")])
    script = """
        const shown = () => [...document.querySelectorAll("details")].map(fold => fold.open);
        const before = shown();
        dispatchEvent(new Event("beforeprint"));
        const printed = shown();
        dispatchEvent(new Event("afterprint"));
        return [before, printed, shown()];
    """
    made = page_of(SMALL, *folds).html()
    closed, printed = [False] * 3, [False, True, False]  # the first fold has the plot's values
    assert show(made, tmp_path, script).found == [closed, printed, closed]
    opened = made.replace("<details>", "<details open>")
    assert show(opened, tmp_path, script).found == [[False, True, True]] * 3


@needs_browser
def test_a_narrow_page_scrolls_nothing_but_tables_sideways(tmp_path: Path) -> None:
    table = Table([f"column {n}" for n in range(20)], [["1"] * 20] * 2)
    made = page_of(SMALL, RICH, table, Code("x" * 500), lead=(Fact("a", "b" * 90),)).html()
    # The narrowest window that Chromium has without a device.
    script = "return [document.documentElement.scrollWidth, innerWidth]"
    wide, window = show(made, tmp_path, script, width=500).found
    assert wide <= window


@contextmanager
def asked() -> Iterator[tuple[str, list[str]]]:
    """A server on this machine, and what it was asked for."""
    paths: list[str] = []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_error(404)

        def log_message(self, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", paths
        server.shutdown()


@needs_browser
def test_the_policy_lets_nothing_be_fetched_or_run(tmp_path: Path) -> None:
    """Markup that had found its way into a page would fetch and run nothing."""
    made = page_of(Table(["a"], [["1"]])).html()
    with asked() as (address, paths):
        smuggled = (
            f'<img src="{address}/image"><script src="{address}/script"></script>'
            f'<script>document.title = "evil"</script><main>'
        )
        strict = show(made.replace("<main>", smuggled), tmp_path)
        assert paths == []
        assert "<title>Runs</title>" in strict.dom
        free = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", made)
        loose = show(free.replace("<main>", smuggled), tmp_path)
        assert sorted(paths) == ["/image", "/script"]
        assert "<title>evil</title>" in loose.dom


def test_words_between_backticks_are_code_in_a_card_s_value_too() -> None:
    card = Fact("found", "`recovered` <1%", "by `x`", "poor")
    made = Page("a", ("What it is.", card), []).html()
    assert '<p>What it is.</p><div class="facts"><div class="fact poor">' in made
    assert "<strong><code>recovered</code> &lt;1%</strong><p>by <code>x</code></p>" in made


def test_a_long_command_may_end_a_line_behind_a_dot_a_slash_or_an_equals_sign() -> None:
    made = Page("a", (Fact("next", "go", "`run a/b.yaml --set k.eps=2`, 0.5"),), []).html()
    assert (
        '<code>run a/<wbr>b.<wbr>yaml <span class="nb">--set</span> k.<wbr>eps=<wbr>2</code>, 0.5'
        in made
    )


def test_only_columns_of_short_words_stay_whole_in_a_terminal() -> None:
    shown = Table(["run", "best run", "why"], [["a" * 16, "b", "c d"], ["e", "f", "g"]]).terminal(
        80
    )
    assert [column.no_wrap for column in shown.columns] == [True, False, False]
    assert not Table(["run"], [["a" * 17]]).terminal(80).columns[0].no_wrap


RUNS = Table(
    ["run", "epsilon", "when", "time"],
    [
        ["digits-20261130", "1.89 (meaningful)", "2026-11-30 13:36", "63.0 s"],
        ["b", "", "", "2 min"],
    ],
)


def lines(table: Table, width: int) -> list[str]:
    printed = StringIO()
    Console(width=width, file=printed, color_system=None).print(table)
    return [line.rstrip() for line in printed.getvalue().splitlines()]


def test_in_a_narrow_terminal_lines_end_between_words() -> None:
    assert sum(RUNS._least) == 15 + 12 + 10 + 4
    assert lines(RUNS, 15 + 12 + 10 + 4 + 3 * 2) == [
        "run              epsilon       when        time",
        "digits-20261130  1.89          2026-11-30  63.0",
        "                 (meaningful)  13:36       s",
        "b                                          2",
        "                                           min",
    ]
    assert lines(RUNS, 90)[1] == "digits-20261130  1.89 (meaningful)  2026-11-30 13:36  63.0 s"
    assert lines(RUNS, 46)[2] == "                 (meaningfu  0 13:36"  # one character too few


@pytest.mark.parametrize(
    ("width", "columns"),
    [
        (47, ["run", "epsilon", "when", "time"]),
        (46, ["run", "epsilon", "when"]),
        (41, ["run", "epsilon", "when"]),
        (40, ["run", "epsilon"]),
        (9, ["run", "epsilon"]),
    ],
)
def test_optional_columns_are_left_out_of_a_narrow_terminal(width: int, columns: list[str]) -> None:
    table = RUNS.within(width, ("time", "when"))
    assert table.columns == columns
    assert table.rows[0] == RUNS.rows[0][: len(columns)]


def test_a_table_is_markdown_rows_of_a_file_or_records() -> None:
    table = Table(["run", "a|b"], [["one", "1|2"], ["two, three", "3"]], "All runs.")
    assert table.markdown() == (
        "All runs.\n\n| run | a\\|b |\n| --- | --- |\n| one | 1\\|2 |\n| two, three | 3 |\n"
    )
    assert Table(["run"], [["one"]]).markdown() == "| run |\n| --- |\n| one |\n"
    assert Table(["run"], [], "None.").markdown() == "None.\n"
    assert table.csv() == 'run,a|b\none,1|2\n"two, three",3\n'
    assert table.records()[1] == {"run": "two, three", "a|b": "3"}


def test_no_line_ends_within_an_interval_of_a_table() -> None:
    table = Table(["x"], [["85.0% [80.0%, 90.0%]"]], "Of all.")
    made = Page("a", (), [Section("b", [table])]).html()
    assert "<table><caption>Of all.</caption><thead>" in made
    assert '<td>85.0% <span class="nb">[80.0%, 90.0%]</span></td>' in made


def test_marks_of_several_are_there_for_two_and_not_for_one() -> None:
    """Contents of sections, a legend of curves, and a table that can be sorted."""
    two = Plot(
        "b", "B", Axis("x"), Axis("y"), [Curve("one", [1, 2], [3, 4]), Curve("two", [1, 2], [5, 7])]
    )
    one_row, rows = Table(["a"], [["1"]]), Table(["a"], [["1"], ["2"]])
    alone = page_of(SMALL, one_row).html()
    both = Page("Runs", [], [Section("A", [SMALL, two, rows]), Section("B", [])]).html()
    for mark in ("<nav>", 'class="legend"', "<table class=sorts>"):
        assert (mark in alone, mark in both) == (False, True), mark
    assert re.findall('data-plot="([0-9])"', both) == ["0", "1"]
    assert figure(two)["layout"]["showlegend"]


def test_a_short_axis_of_whole_numbers_has_no_labels_between_them() -> None:
    late = Plot("a", "A", Axis("round"), Axis("y"), [Curve("own", [100, 105], [0.5, 0.75])])
    assert figure(late)["layout"]["xaxis"]["dtick"] == 1
    for high, few in ((100, "D2"), (10_000, 1)):
        plot = Plot("a", "A", Axis("e", log=True), Axis("y"), [Curve("own", [1, high], [1, 2])])
        assert figure(plot)["layout"]["xaxis"]["dtick"] == few
