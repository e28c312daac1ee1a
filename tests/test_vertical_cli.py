"""`fedveil vertical` as its user meets it, with every party in one process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedveil import cli
from fedveil.vertical import VerticalJob

Command = Callable[..., tuple[int, str, str]]
JOB = """
name: small
epochs: 2
batch_size: 10
task: vertical_parts:bottoms
record: {every_steps: 2}
checkpoint: {every_steps: 4}
"""


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """Call `fedveil vertical` in an empty folder: its exit status, and what it said where."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    (tmp_path / "job.yaml").write_text(JOB)

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["fedveil", "vertical", *map(str, arguments)])
        monkeypatch.setattr(sys, "path", list(sys.path))
        try:
            cli.main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


def test_run_evaluate_predict_and_resume(command: Command, tmp_path: Path) -> None:
    code, out, err = command("run", "job.yaml", "--out", "made", "--set", "privacy.embedding_dp={}")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("epoch 0 step 2/5 loss: ")
    assert sum("held-out examples: " in line for line in lines) == 2
    assert "bank: epsilon inf at delta 0 for a bit of left" in lines
    assert lines[-1] == "run folder: made"

    code, out, _ = command("evaluate", "made")
    assert code == 0
    assert [line.partition(" ")[0] for line in out.splitlines()[:2]] == ["accuracy", "loss"]

    code, out, _ = command("predict", "made", "--out", "told.npz")
    assert (code, out) == (0, "wrote told.npz: 20 outputs of shape (3,)\n")
    told = np.load(tmp_path / "told.npz")
    assert told["ids"].shape == (20,)
    assert told["outputs"].shape == (20, 3)
    assert command("predict", "made", "--out", "told.npz")[::2] == (
        1,
        "error: told.npz is there already: nothing is overwritten\n",
    )

    code, out, _ = command("run", "--resume", "made")
    assert code == 0
    assert out.splitlines()[-1] == "run folder: made"


def test_show_prints_every_key(command: Command, tmp_path: Path) -> None:
    code, out, _ = command("show", "job.yaml", "--set", "epochs=4")
    assert code == 0
    (tmp_path / "shown.yaml").write_text(out)
    assert VerticalJob.load(tmp_path / "shown.yaml") == VerticalJob.load(
        tmp_path / "job.yaml", ["epochs=4"]
    )


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (("run", "nowhere.yaml"), 2, "nowhere.yaml cannot be read"),
        (("run", "--set", "epochs=0"), 2, "epochs = 0 is outside [1, inf)"),
        (("run", "--resume", "nowhere"), 1, "nowhere is not a run's folder: it has no job.yaml"),
        (("run", "--resume", "x", "--set", "epochs=1"), 2, "--resume takes the run's own job"),
        (("run", "--set", "task=nowhere:f"), 1, "task.name = 'nowhere:f' cannot be imported"),
        (("evaluate", "nowhere"), 1, "nowhere is not a run's folder"),
    ],
)
def test_what_is_wrong_is_a_sentence(
    command: Command, arguments: tuple[str, ...], code: int, sentence: str
) -> None:
    found, out, err = command(*arguments)
    assert found == code
    assert out == ""
    assert err.startswith(f"error: {sentence}")
    assert len(err.splitlines()) == 1


def test_help_fits_a_screen(command: Command) -> None:
    for arguments in ((), ("run",), ("evaluate",), ("predict",), ("show",)):
        code, out, _ = command(*arguments, "--help")
        assert code == 0
        assert len(out.splitlines()) <= 40
