"""A newcomer's mistakes: one sentence each, with what to write instead."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from fedveil.cli.exits import Exit
from fedveil.errors import DataInvalid
from fedveil.tasks.tables import table_file

Command = Callable[..., tuple[int, str, str]]
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("word", "meant"), [("dp", "dp_encrypt"), ("none", "not_encrypt"), ("plain", "not_encrypt")]
)
def test_a_usual_word_for_a_protection_is_understood(
    command: Command, word: str, meant: str
) -> None:
    code, _, err = command("run", "--set", f"protection={word}")
    assert code == Exit.WRONG
    assert err.endswith(f"(did you mean {meant}?)\n")


@pytest.mark.parametrize("job", [(), ("job.yaml",)])
@pytest.mark.parametrize("words", [("0.05}",), ("0.05,", "epochs:", "2}")])
def test_a_value_that_the_shell_split_is_to_be_quoted(
    command: Command, tmp_path: Path, job: tuple[str, ...], words: tuple[str, ...]
) -> None:
    (tmp_path / "job.yaml").touch()
    whole = " ".join(("training={lr:", *words))
    assert command("run", *job, "--set", "training={lr:", *words) == (
        Exit.WRONG,
        "",
        f'error: the shell splits a value at spaces. Quote it: --set "{whole}"\n',
    )


def test_a_command_after_its_argument_is_named_first(command: Command) -> None:
    code, _, err = command("attack", "job.yaml", "gradient")
    assert code == Exit.WRONG
    assert err.startswith("error: the command comes before job.yaml. Write: ")
    assert "fedveil attack gradient job.yaml" in err


@pytest.mark.parametrize("words", [("run",), ("vertical", "run"), ("attack", "gradient")])
def test_a_taken_out_is_refused_before_the_job_is_read(
    command: Command, tmp_path: Path, words: tuple[str, ...]
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").touch()
    for place, why in (
        ("file", "cannot be written: file is a file, not a folder"),
        ("full", "is not empty: name another folder"),
    ):
        code, _, err = command(*words, "missing.yaml", "--out", place)
        assert (code, err) == (Exit.FAILED, f"error: {place} {why}\n")


def test_a_record_that_was_cut_off_says_how_to_resume(command: Command, tmp_path: Path) -> None:
    settings = ("rounds=2", "model=logistic", "clients.number=4", "simulation.workers=0",
                "protection=not_encrypt", "evaluation.every=2")  # fmt: skip
    sets = [part for text in settings for part in ("--set", text)]
    assert command("run", *sets, "--out", "r")[0] == 0
    metrics = tmp_path / "r" / "metrics.jsonl"
    first, second = metrics.read_text().splitlines()
    record = json.loads(second)
    del record["epsilon_run_every_round"]
    for broken, why in (
        (second[:100], "it breaks off"),
        (json.dumps(record), "no epsilon_run_every_round"),
    ):
        metrics.write_text(f"{first}\n{broken}\n")
        assert command("report", "r") == (
            Exit.FAILED,
            "",
            f"error: r/metrics.jsonl, line 2: incomplete record ({why}). The run was probably cut "
            f"off; resume it with: fedveil run --resume r\n",
        )


def test_semicolons_separate_too_and_all_missing_columns_are_named(tmp_path: Path) -> None:
    file = tmp_path / "clinic.csv"
    file.write_text("patient;age\n1;40\n")
    columns = table_file.header(str(file))
    assert columns == ["patient", "age"]
    with pytest.raises(DataInvalid) as caught:
        table_file.check_known(str(file), {"f.id": ["client"], "f.without": ["age", "x"]}, columns)
    assert str(caught.value) == (
        f"{file} has no column 'client', which f.id names, and no column 'x', which f.without "
        f"names; its columns are patient, age"
    )


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_names_the_pythons_that_fit(tmp_path: Path) -> None:
    wanted = ("make", "run", "PYTHON=/bin/false", f"VENV={tmp_path / 'venv'}")
    made = subprocess.run(wanted, cwd=ROOT, capture_output=True, text=True, check=False)
    error, *_ = made.stderr.splitlines()
    assert error == (
        "error: fedveil needs Python 3.11, 3.12 or 3.13, and /bin/false is not one of them. Name "
        "yours, for example: make PYTHON=python3.12 run"
    )
    assert not (tmp_path / "venv").exists()
