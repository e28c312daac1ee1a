"""Standard output that is full, closed or of another encoding: each ends in one sentence."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fedveil.cli import watch as watching
from fedveil.cli.exits import Exit
from fedveil.cli.standard_output import explained_output
from fedveil.errors import OutputLost

Command = Callable[..., tuple[int, str, str]]
#: One with rich's console, one document, one answer in JSON, and typer's own help.
WORDS = [("--version",), ("job", "show"), ("job", "show", "--json"), ("--help",)]
#: Runs that end in a few seconds.
SHORT = (
    "rounds=2", "clients.number=30", "clients.fraction=0.1", "model=logistic",
    "simulation.workers=0", "record.page=false",
)  # fmt: skip
SHORT_VERTICAL = ("epochs=1", "task.mnist_halves.width=16", "batch_size=256")


def printing(monkeypatch: pytest.MonkeyPatch, stream: object) -> None:
    monkeypatch.setattr(sys, "stdout", stream)


def in_ascii() -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), "ascii", write_through=True)


@pytest.mark.parametrize("words", WORDS, ids=" ".join)
def test_a_full_disk_is_one_sentence(
    command: Command, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    with open("/dev/full", "w") as full:  # noqa: PTH123
        printing(monkeypatch, full)
        code, _, err = command(*words)
    assert code == Exit.FAILED
    assert err == "error: standard output cannot be written: No space left on device\n"


@pytest.mark.parametrize("words", WORDS, ids=" ".join)
def test_a_reader_that_has_ended_is_no_error(
    command: Command, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    out, end = os.pipe()
    os.close(out)
    with os.fdopen(end, "w") as pipe:
        printing(monkeypatch, pipe)
        assert command(*words)[::2] == (Exit.FAILED, "")


@pytest.mark.parametrize(("first", "resumes"), [
    (("run",), "`fedveil run --resume r` resumes after the last complete round"),
    (
        ("vertical", "run"),
        "resume it with `fedveil vertical run --resume r`, from the last step that all parties "
        "have saved",
    ),
])  # fmt: skip
def test_a_run_that_loses_its_reader_says_how_to_resume(
    command: Command, monkeypatch: pytest.MonkeyPatch, first: tuple[str, ...], resumes: str
) -> None:
    """`fedveil run | head -1` loses its reader. A run that ends silently looks as if done."""
    settings = SHORT_VERTICAL if first[0] == "vertical" else SHORT
    words = [word for setting in settings for word in ("--set", setting)]
    out, end = os.pipe()
    os.close(out)
    with os.fdopen(end, "w") as pipe:
        printing(monkeypatch, pipe)
        code, _, err = command(*first, *words, "--out", "r")
    assert code == Exit.FAILED
    assert err.splitlines()[-1] == f"error: the program that reads the output has ended; {resumes}"


@pytest.mark.parametrize("words", WORDS[1:3], ids=" ".join)
def test_an_answer_needs_standard_output(
    command: Command, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    printing(monkeypatch, None)
    code, _, err = command(*words)
    assert code == Exit.FAILED
    assert err == "error: standard output is closed, and the answer is written there\n"


def test_characters_outside_the_encoding_are_escaped(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    printing(monkeypatch, out := in_ascii())
    assert command("init", "é")[0] == Exit.DONE
    raw = out.buffer
    assert isinstance(raw, io.BytesIO)
    assert b"wrote \\xe9/job.yaml\n" in raw.getvalue()
    assert (tmp_path / "é" / "job.yaml").is_file()


def test_a_job_is_printed_exactly_or_not_at_all(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    for words in (("job", "show"), ("vertical", "show")):
        printing(monkeypatch, out := in_ascii())
        code, _, err = command(*words, "--set", "name=é")
        assert code == Exit.FAILED
        assert err == (
            "error: standard output cannot show '\\xe9': its encoding is ascii. Set "
            "PYTHONIOENCODING=utf-8\n"
        )
        raw = out.buffer
        assert isinstance(raw, io.BytesIO)
        assert raw.getvalue() == b""


def test_a_policy_is_printed_exactly_or_not_at_all(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("flwr")
    assert command("site", "init", "north")[0] == Exit.DONE
    policy = tmp_path / "north" / "policy.yaml"
    policy.write_text("name: north\nservers: {study: {roster: cœur.yaml}}\n", "utf-8")
    assert command("site", "show", "north")[0] == Exit.DONE
    printing(monkeypatch, out := in_ascii())
    code, _, err = command("site", "show", "north")
    assert (code, "standard output cannot show '\\u0153'" in err) == (Exit.FAILED, True)
    raw = out.buffer
    assert isinstance(raw, io.BytesIO)
    assert raw.getvalue() == b""


def test_a_watched_run_is_not_blamed_for_the_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "read_run", lambda folder, **_: None)
    monkeypatch.setattr(watching, "is_vertical", lambda run: False)

    def shown(*_: object) -> None:
        sys.stdout.write("accuracy 91.1% · loss 1.96\n")
        sys.stdout.flush()

    monkeypatch.setattr(watching, "_watch_rounds", shown)
    printing(monkeypatch, in_ascii())
    with explained_output():
        watching.watch(tmp_path, None, 0.0)  # type: ignore[arg-type]
    with open("/dev/full", "w") as full:  # noqa: PTH123
        printing(monkeypatch, full)
        with pytest.raises(OutputLost), explained_output():
            watching.watch(tmp_path, None, 0.0)  # type: ignore[arg-type]
