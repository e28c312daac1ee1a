"""A run's display in a terminal."""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedveil.base import plain_text
from fedveil.pages.read_run import ReadRun
from fedveil.pages.run_summary import ending
from fedveil.privacy.finding import Finding, Measured
from fedveil.privacy.ledger import Line
from fedveil.record.recorder import ADVICE
from fedveil.run_display import RunDisplay, describe, fitted

ROUNDS = 20
RECORD: dict[str, Any] = {
    "accuracy": 0.7131, "loss": 0.902, "auc": 0.95, "bytes_up_per_client": 1_234_567,
    "reports": 5, "rejected": {"wrong length": 3}, "withheld": {}, "failed": {}, "unusable": {},
    "void": None, "unit": "client", "in_clear": [], "rests_on_server": False,
    **{
        f"{kind}_{name}": value
        for kind, value in (("epsilon", 123456.7), ("delta", 1e-5))
        for name in ("per_bit", "per_parameter", "per_round", "run_every_round", "run_most_drawn")
    },
}  # fmt: skip


def shown(width: int, rounds: int = ROUNDS) -> list[str]:
    """The live line after each of the first rounds, on a terminal of that width."""
    out = io.StringIO()
    console = plain_text.console(file=out, width=width, force_terminal=True, color_system=None)
    lines = []
    with RunDisplay(console, rounds) as display:
        for number in range(1, 8):
            display.show({**RECORD, "round": number})
            display._bar.refresh()
            lines.append(out.getvalue().splitlines()[-1].split("\r")[-1])
    return [line.removeprefix("\x1b[2K") for line in lines]


@pytest.mark.parametrize("width", [60, 80, 100, 110, 120, 160])
@pytest.mark.parametrize("rounds", [20, 1000])
def test_every_width_shows_round_total_time_left_and_accuracy(width: int, rounds: int) -> None:
    for number, line in enumerate(shown(width, rounds), 1):
        assert len(line.rstrip()) <= width
        assert "…" not in line
        assert line.split()[0] == "round"
        assert f"{number}/{rounds} " in line
        assert "accuracy 71.3%" in line
        time_left = line[: line.index("accuracy")].split()[-1]
        assert len(time_left) == len("0:00:00"), time_left
        assert time_left.count(":") == 2
    assert ("━" in line) == (width >= 110 and rounds == ROUNDS)  # 7 of 1000 have no length yet


def run_of(
    folder: Path,
    records: list[dict[str, Any]],
    *,
    name: str = "dp_encrypt",
    findings: Sequence[Finding] = (),
    events: Sequence[str] = (),
    accounts: Sequence[Line] = (),
) -> ReadRun:
    """A run's folder, as far as the display reads it."""
    job = {"protection": {"name": name}, "rounds": 20}
    return ReadRun(folder, job, records, findings, [f"0 {e}" for e in events], accounts)


def summary(run: ReadRun, width: int = 160) -> str:
    out = io.StringIO()
    RunDisplay(plain_text.console(file=out, width=width), 1).summary(run)
    return out.getvalue()


def test_a_narrow_line_goes_without_what_can_be_read_up_later() -> None:
    line = "accuracy 0.71 · loss 0.90 · up 1.2 MB/client · epsilon 9 · 3 clients left out · void"
    assert fitted(line, 100) == line
    assert fitted(line, 70) == "accuracy 0.71 · loss 0.90 · epsilon 9 · 3 clients left out · void"
    assert fitted(line, 60) == "accuracy 0.71 · epsilon 9 · 3 clients left out · void"
    assert fitted(line, 50) == "accuracy 0.71 · 3 clients left out · void"
    assert fitted(line, 10) == "accuracy 0"


def test_names_are_shown_as_they_are(tmp_path: Path) -> None:
    run = run_of(
        tmp_path / "[red]:train:",
        [{**RECORD, "round": 1, "randomness": "[red]emo:train :smile:"}],
        name="my:train:Own [bold]",
        events=["finished after round 1: :train: came"],
        accounts=[Line(1.5, 1e-5, "whoever only gets the models")],
    )
    said = summary(run)
    for text in (
        "my:train:Own [bold]",
        "[red]emo:train :smile:",
        "ended early  :train: came",
        "1.5 (meaningful) for whoever only gets the models",
        "/[red]:train:",
    ):
        assert text in said


@pytest.mark.parametrize(
    ("bound", "verdict"), [(1.5, "not refuted"), (2.5, "NOT WHAT WAS PROMISED")]
)
def test_the_summary_holds_what_canaries_found_beside_what_was_promised(
    bound: float, verdict: str, tmp_path: Path
) -> None:
    figures = [
        Measured("epsilon at least", bound, cases=40),
        Measured("epsilon at least, if canaries reveal nothing about each other", 1.75, cases=40),
        Measured("the most that these canaries could show", 3.25, cases=40),
    ]
    audit = Finding("canaries", "standard", "dp_encrypt", figures, epsilon=2.0, delta=1e-5)
    said = summary(run_of(tmp_path, [{**RECORD, "round": 1}], findings=[audit]))
    assert (
        f"epsilon at least {bound} at confidence 0.95 (40 canaries can show at most 3.25);" in said
    )
    assert "1.75 if canaries reveal nothing about each other;" in said
    assert (
        f"promised: epsilon 2 (meaningful) for a client in every round. Verdict: {verdict}" in said
    )


def test_the_summary_says_where_everything_is_and_how_it_is_taken_up(tmp_path: Path) -> None:
    """On lines that no narrow terminal breaks."""
    folder = tmp_path / ("long" * 20)
    folder.mkdir()
    rounds = [
        {**RECORD, "round": number, "accuracy": accuracy, "seconds_round": 40.0}
        for number, accuracy in enumerate((0.5, 0.75, 0.625), 1)
    ]
    events = ["finished after round 3: the last", "no report.html: the disk is full"]
    run = run_of(folder, rounds, events=events)
    said = summary(run, 80)
    assert "rounds       3 of 20, 2 min 0 s" in said
    assert "best round   2, accuracy 75.0%" in said
    assert "page         none: the disk is full\n" in said
    for name in ("model.safetensors", "report.html"):
        (folder / name).touch()
    said = summary(run, 80)
    assert f"\nrun folder   {folder}\n" in said
    assert f"\nmodel        safetensors.torch.load_file('{folder}/model.safetensors')\n" in said
    assert f"\npage         {folder}/report.html\n" in said


def test_the_summary_ends_with_the_three_answers_of_the_page(tmp_path: Path) -> None:
    run = run_of(tmp_path, [{**RECORD, "round": 1}], events=["finished after round 1: the last"])
    (tmp_path / "model.safetensors").touch()
    last = summary(run, 400).split("\n\n")[-1].splitlines()
    assert [line.split()[0] for line in last[::2]] == ["quality", "privacy", "next"]
    for value, text, fact in zip(last[::2], last[1::2], ending(run), strict=True):
        assert value.split(maxsplit=1)[1].rstrip() == fact.value
        assert text.strip() == fact.text


@pytest.mark.parametrize("width", [40, 80, 100])
def test_no_terminal_breaks_a_command_or_prints_a_wide_line_without_one(
    tmp_path: Path, width: int
) -> None:
    """A user who copies the first line of a broken command starts an unprotected run."""
    advice = "protect it: 12 words " * 3 + "before `fedveil run job.yaml --set a=1 --set b=2` and 3"
    events = [f"{ADVICE}{advice}", "finished after round 1: the last"]
    run = run_of(tmp_path, [{**RECORD, "round": 1}], events=events)
    own = {"training": {"algorithm": "fedavg"}, "clients": {"own_layers": []}, "task": "regression"}
    run = replace(run, job={**run.job, **own})
    (tmp_path / "model.safetensors").touch()
    lines = summary(run, width).split("\n\n")[-1].splitlines()
    commands = re.findall("`[^`]+`", ending(run).next.text)
    assert any(" --set a=1 --set b=2`" in command for command in commands)
    assert len(commands) == 3
    for command in commands:
        assert any(command in line for line in lines), command
    for line in lines:
        assert len(line) <= width or line.split()[0].startswith("`"), line
        assert line.rstrip() == line
    assert max(len(line) for line in lines if "`" not in line) > width - 13


def test_what_a_run_does_before_its_first_round_is_shown() -> None:
    out = io.StringIO()
    console = plain_text.console(file=out, width=120, force_terminal=True, color_system=None)
    with RunDisplay(console, ROUNDS) as display:
        display.starting("worker processes: 1 of 2 are ready")
        display._bar.refresh()
    assert "worker processes: 1 of 2 are ready" in out.getvalue()


def test_a_terminal_that_cannot_move_its_cursor_gets_a_line_for_each_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A bar is drawn there only when it ends: a run of a day would show nothing for a day."""
    monkeypatch.setenv("TERM", "dumb")
    out = io.StringIO()
    console = plain_text.console(file=out, width=120, force_terminal=True)
    with RunDisplay(console, ROUNDS) as display:
        for number in (1, 2):
            display.show({**RECORD, "round": number})
            assert out.getvalue().splitlines()[-1].startswith(f"round {number}/20 accuracy")
    assert len(out.getvalue().splitlines()) == 2


def test_no_minute_goes_without_a_line_where_there_is_no_terminal() -> None:
    said = threading.Event()

    class Told(io.StringIO):
        def write(self, text: str) -> int:
            if "so far" in text:
                said.set()
            return super().write(text)

    out = Told()
    console = plain_text.console(file=out, width=120, force_terminal=False)
    with RunDisplay(console, ROUNDS, quiet_s=0.01) as display:
        display.show({**RECORD, "round": 7})
        said.clear()
        assert said.wait(60)
    assert "round 8/20: " in out.getvalue()
    with RunDisplay(console, ROUNDS) as display:
        pass  # which ends at once, and not when the next line would be due


def test_a_diverged_model_s_loss_is_undefined() -> None:
    line = describe({**RECORD, "round": 1, "loss": float("nan")})
    assert "loss undefined" in line
    assert "nan" not in line


def test_a_round_s_epsilon_is_that_of_the_run_s_conclusions() -> None:
    """A client that was drawn less often has spent less, but this is not the run's guarantee."""
    spent = {"epsilon_run_every_round": 2.771, "epsilon_run_most_drawn": 2.0473}
    line = describe({**RECORD, "round": 9, **spent})
    assert "epsilon 2.78 (meaningful), most drawn 2.05" in line
    line = describe({**RECORD, "round": 9, **spent, "epsilon_run_most_drawn": 2.771})
    assert "epsilon 2.78 (meaningful)" in line
    assert "most drawn" not in line
