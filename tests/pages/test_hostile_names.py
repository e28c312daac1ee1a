"""Names in a run's folder that somebody chose: shown as they are, wherever they are shown."""

from __future__ import annotations

import io
import json
import re
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.progress import Progress, TextColumn
from rich.table import Table as RichTable
from rich.text import Text

import fedveil
from fedveil.base import plain_text
from fedveil.base.untrusted import escaped
from fedveil.cli.exits import Exit
from fedveil.errors import RunFolderError
from fedveil.pages.page_files import write_page
from fedveil.pages.plot import Axis, Curve, Plot
from fedveil.pages.read_run import read_run
from fedveil.pages.run_folder_page import page_of
from fedveil.pages.svg import svg
from fedveil.pages.table import Table
from fedveil.record.recorder import Recorder
from fedveil.record.run_folder import RunFolder
from page_parts import EVIL, edit_all, small_job, vouch_again

Command = Callable[..., tuple[int, str, str]]

#: Sets a terminal's title, clears it, and moves where the next text stands.
TAKES_OVER = "\x1b]0;mine\x07\x1b[2J\x1b[1;1H\r\b\x9b31m"
NAMES = {
    "formula": r"$\frac{$",
    "half a formula": "$",
    "escaped dollar": r"a\$b$",
    "above": "../../above",
    "absolute": "/tmp/fedveil-absolute",
    "command": f"auc{TAKES_OVER}",
    "turned": "auc\u202elave",
    "two lines": "auc\n2026-01-01T00:00:00 finished after round 9: the last",
    "hidden": "_auc",
    "long": "auc" * 200,
    "nothing": "",
    "zero": "\0",
    "html": EVIL,
    "no character": "auc\ufffe",
    "option": "--out=x",
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fedveil.simulate(small_job(), tmp_path_factory.mktemp("made") / "run").folder


@pytest.fixture
def run_with(finished: Path, tmp_path: Path) -> Callable[[str], Path]:
    """A run whose metric has a name of somebody's choice."""

    def made(name: str) -> Path:
        folder = tmp_path / "run"
        shutil.copytree(finished, folder)
        path = folder / "metrics.jsonl"
        records = [json.loads(line) for line in path.read_text().splitlines()]
        for record in records:
            record |= {"measures": {name: "higher"}, name: record.pop("accuracy")}
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
        vouch_again(folder)
        with (folder / "events.log").open("a") as events:
            events.write(f"2026-01-01T00:00:00 {name}\n")
        return folder

    return made


def commands_in(text: str) -> list[str]:
    """The characters of a text that act on a terminal."""
    return re.findall("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)


@pytest.mark.parametrize("kind", NAMES)
def test_a_metrics_name_is_shown_and_names_no_file(
    kind: str, run_with: Callable[[str], Path], command: Command, tmp_path: Path
) -> None:
    folder = run_with(NAMES[kind])
    before = {path.name for path in tmp_path.iterdir()} | {path.name for path in folder.iterdir()}
    for arguments in (["report", folder, "--out", "told/page.html"], ["watch", folder]):
        code, out, err = command(*arguments)
        assert code == Exit.DONE, err
        assert commands_in(out + err) == []
    assert not Path("/tmp/fedveil-absolute.svg").exists()
    wrote = sorted((tmp_path / "told").iterdir())
    assert {path.name for path in tmp_path.iterdir()} <= before | {"told"}
    assert {path.name for path in folder.iterdir()} <= before
    assert len(wrote) == 5
    for path in wrote:
        assert re.fullmatch("page(-[A-Za-z0-9._-]{1,100})?[.](svg|html)", path.name)
        if path.suffix == ".svg":
            ElementTree.fromstring(path.read_bytes())


@pytest.mark.parametrize("kind", NAMES)
def test_a_name_is_drawn_as_it_is(kind: str) -> None:
    name = NAMES[kind]
    curves = [Curve(name, [1, 2], [1, 3]), Curve("other", [1, 2], [2, 5])]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the font lacks a sign
        drawn = svg(Plot("x", name, Axis(name), Axis(name), curves))
    found = ElementTree.fromstring(drawn)
    texts = ["".join(text.itertext()) for text in found.iter("{http://www.w3.org/2000/svg}text")]
    line = escaped(name).replace("\n", "\\n")
    if len(line) > 100:
        line = f"{line[:97]}..."
    shown = [text.strip() for text in texts]
    # The title, the x axis and the legend. The y axis says nothing that the title does not.
    assert shown.count(line.strip()) == (3 if line.strip() else shown.count(""))
    assert "other" in shown


def test_two_names_are_two_files() -> None:
    names = ["a/b", "a-b", "a b", "a:b", "accuracy", "held-out-auc", "x" * 101, "x" * 102, "\udc80"]
    files = [Plot(name, "", Axis(""), Axis(""), []).file for name in names]
    assert len(set(files)) == len(names)
    assert [files[names.index(name)] for name in ("a-b", "accuracy", "held-out-auc")] == [
        "a-b", "accuracy", "held-out-auc",
    ]  # fmt: skip
    assert all(re.fullmatch("[A-Za-z0-9._-]{1,100}", file) for file in files)


@pytest.mark.parametrize("terminal", [False, True])
def test_no_text_is_a_terminals_command(terminal: bool) -> None:
    """Rich's own commands, for colours and a bar, are sent to a terminal unchanged."""
    out = io.StringIO()
    shown = plain_text.console(file=out, force_terminal=terminal, width=200)
    table = RichTable(TAKES_OVER, box=None)
    table.add_row(TAKES_OVER)
    table.add_row(Text(TAKES_OVER))
    shown.print(TAKES_OVER, table, Table([TAKES_OVER], [[TAKES_OVER]]))
    shown.print(TAKES_OVER, style="red", soft_wrap=True)
    with Progress(TextColumn("{task.description}", markup=False), console=shown) as bar:
        bar.add_task(TAKES_OVER)
    said = out.getvalue()
    assert said.count("mine") == 8 + terminal
    assert "mine\x07" not in said
    assert "\x1b]0" not in said
    assert "\x1b[2J" not in said
    assert "\x9b" not in said
    assert "\b" not in said
    assert said.count(escaped(TAKES_OVER)) >= 6
    assert ("\x1b[" in said) is terminal
    assert terminal or commands_in(said) == []


def test_a_commands_whole_answer_is_escaped_on_a_terminal_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plain_text.document(f"{TAKES_OVER}\n\u202e")
    assert capsys.readouterr().out == f"{TAKES_OVER}\n\u202e"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    plain_text.document(f"{TAKES_OVER}\n\u202e")
    assert capsys.readouterr().out == f"{escaped(TAKES_OVER)}\n\\u202e"


def test_other_texts_stay_as_they_are() -> None:
    text = "Größe\t µ²=3\n 日本語 👩‍🔬 éé [red]\\x1b"
    assert escaped(text) == text
    assert escaped("\x1b[1m\ud800\r") == r"\x1b[1m\ud800\r"


def test_an_event_is_one_line(tmp_path: Path) -> None:
    """Play another party, whose reason would be an event of its own."""
    folder = RunFolder.create(tmp_path / "run")
    recorder = Recorder(folder)
    recorder.event(f"bank ended: {NAMES['two lines']}\u2028\ud800{TAKES_OVER}")
    recorder.close()
    (line,) = (folder.path / "events.log").read_text("utf-8").splitlines()
    assert line.endswith(r"; \ud800\x1b]0;mine\x07\x1b[2J\x1b[1;1H; \x08\x9b31m")


@pytest.mark.parametrize("name", ["metrics.jsonl", "attacks.jsonl", "accounts.jsonl"])
def test_half_of_a_character_is_no_record(name: str, run_with: Callable[[str], Path]) -> None:
    folder = run_with("auc")
    (folder / name).write_text('{"what": "\\ud800", "epsilon": 1, "delta": 0, "round": 1}\n')
    with pytest.raises(
        RunFolderError, match=r"surrogates not allowed|is no (finding|privacy cost)"
    ):
        read_run(folder)


@pytest.mark.parametrize("field", ["round", "loss", "auc", "bytes_up", "seconds_training"])
@pytest.mark.parametrize("value", ["abc", "12", 10**400, None, [1.0], {"a": 1}])
def test_a_figure_that_is_none_is_told(
    field: str, value: Any, run_with: Callable[[str], Path], command: Command
) -> None:
    folder = run_with("accuracy")
    edit_all(folder, measures={"accuracy": "higher", "auc": "higher"}, **{field: value})
    code, _, err = command("report", folder, "--out", "told/page.html")
    assert code == Exit.FAILED
    assert err.startswith("error: ")
    assert err.count("\n") == 1


def test_a_run_may_have_any_folder(run_with: Callable[[str], Path], tmp_path: Path) -> None:
    folder = run_with("auc").rename(tmp_path / "r\udce4un\x1b[31m")
    *_, last = write_page(page_of(folder), folder / "page.html")
    assert last.exists()
    assert b"\x1b" not in json.dumps(str(folder)).encode()
