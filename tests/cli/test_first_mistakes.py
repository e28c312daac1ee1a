"""A newcomer's mistakes: one sentence each, with what to write instead."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from fedveil.cli.exits import Exit, run_app
from fedveil.engine.budget import thin_promise
from fedveil.engine.job_protection import make_protection
from fedveil.errors import DataInvalid, FedveilWarning
from fedveil.federated.job import Job
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


def test_an_option_after_an_unfinished_one_is_no_value_of_it(command: Command) -> None:
    code, _, err = command("run", "--set", "rounds", "--bogus")
    assert code == Exit.WRONG
    assert err.startswith("error: there is no option --bogus")


def test_a_command_after_its_argument_is_named_first(command: Command) -> None:
    code, _, err = command("attack", "job.yaml", "gradient")
    assert code == Exit.WRONG
    assert err.startswith("error: the command comes before job.yaml. Write: ")
    assert "fedveil attack gradient job.yaml" in err
    _, _, err = command("mine.yaml", "run", "--out", "compare")
    assert "fedveil run mine.yaml" in err


def test_a_group_suggests_only_commands_that_it_has(command: Command) -> None:
    code, _, err = command("site", "train")
    assert (code, err) == (
        Exit.WRONG, "error: there is no command train; `fedveil site --help` lists what there is\n",
    )  # fmt: skip


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


def test_a_record_of_a_run_that_has_ended_is_damaged_and_was_not_cut_off(
    command: Command, tmp_path: Path
) -> None:
    settings = ("rounds=2", "model=logistic", "clients.number=4", "simulation.workers=0",
                "protection=not_encrypt", "evaluation.every=2")  # fmt: skip
    sets = [part for text in settings for part in ("--set", text)]
    assert command("run", *sets, "--out", "r")[0] == 0
    metrics = tmp_path / "r" / "metrics.jsonl"
    first, second = metrics.read_text().splitlines()
    record = json.loads(second)
    del record["epsilon_run_every_round"]
    end = "The file was edited or damaged: restore it\n"
    for broken, why in (
        (f"{second[:100]}\n", "invalid record (it is no JSON)"),
        (f"{json.dumps(record)}\n", "invalid record (no epsilon_run_every_round)"),
        (second[:100], "it has no end"),
        (second, "it has no end"),
    ):
        metrics.write_text(f"{first}\n{broken}")
        told = f"error: r/metrics.jsonl, line 2: {why}. {end}"
        assert command("report", "r") == (Exit.FAILED, "", told)
    # A run that was killed may have cut off its last record.
    events = tmp_path / "r" / "events.log"
    lines = events.read_text().splitlines(keepends=True)
    events.write_text("".join(line for line in lines if " finished after " not in line))
    for broken, why in ((second[:100], "it breaks off"), (json.dumps(record), "no epsilon_run")):
        metrics.write_text(f"{first}\n{broken}\n")
        code, _, err = command("report", "r")
        assert (code, f"line 2: incomplete record ({why}" in err) == (Exit.FAILED, True)
        assert err.endswith("probably cut off; resume it with: fedveil run --resume r\n")


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


def test_a_misspelled_file_is_suggested(command: Command, tmp_path: Path) -> None:
    (tmp_path / "survey.yaml").touch()
    code, _, err = command("run", "survay.yaml")
    assert code == Exit.WRONG
    assert err == (
        "error: survay.yaml cannot be read: No such file or directory (did you mean survey.yaml?)\n"
    )


@pytest.mark.parametrize("words", [("run",), ("budget", "--try"), ("compare",)])
def test_a_file_of_questions_names_its_command(
    command: Command, tmp_path: Path, words: tuple[str, ...]
) -> None:
    (tmp_path / "q.yaml").write_text(
        "{data: people.csv, epsilon: 1, questions: {old: {ask: count, where: age > 64}}}"
    )
    code, _, err = command(words[0], "q.yaml", *words[1:])
    assert (code, err) == (
        Exit.WRONG,
        "error: q.yaml asks questions. Run it with: fedveil ask q.yaml\n",
    )


def test_a_command_that_is_named_takes_a_folder_with_a_space(
    command: Command, tmp_path: Path
) -> None:
    (tmp_path / "my jobs" / "checkpoint").mkdir(parents=True)  # as if a run was there
    for name, text in (("job", "rounds: 2"), ("split", "epochs: 2"), ("q", "questions: {}")):
        (tmp_path / "my jobs" / f"{name}.yaml").write_text(text)
    for words, said in (
        (("run", "my jobs/split.yaml"), "fedveil vertical run 'my jobs/split.yaml'"),
        (("vertical", "run", "my jobs/job.yaml"), "fedveil run 'my jobs/job.yaml'"),
        (("ask", "my jobs/job.yaml"), "fedveil run 'my jobs/job.yaml'"),
        (("run", "my jobs/q.yaml"), "fedveil ask 'my jobs/q.yaml'"),
        (("run", "--out", "my jobs"), "`fedveil run --resume 'my jobs'`"),
        (("attack", "labels", "my jobs"), "fedveil attack gradient 'my jobs'"),
    ):
        assert said in command(*words)[2], words


def test_a_missing_ray_leaves_no_folder(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    code, _, err = command("run", "--on", "ray", "--set", "protection=not_encrypt")
    assert (code, err.splitlines()[-1]) == (
        Exit.FAILED,
        "error: simulation.on needs the package ray: pip install 'fedveil[ray]' installs it",
    )
    assert not [*tmp_path.iterdir()]


def test_a_full_folder_is_refused_for_a_comparison_and_stays_as_it_is(
    command: Command, tmp_path: Path
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").touch()
    code, _, err = command("compare", "--out", "full", "--protections", "rr")
    assert (code, err.splitlines()[-1]) == (
        Exit.FAILED,
        "error: full is not empty: name another folder",
    )
    assert [file.name for file in (tmp_path / "full").iterdir()] == ["notes.txt"]


def test_normal_noise_without_a_delta_is_told_to_have_one() -> None:
    job = Job.load(None, ["protection=dp_encrypt", "privacy.delta=0", "rounds=3"])
    warning = thin_promise(job, make_protection(job, 650))
    assert warning is not None
    assert warning.endswith("needs a delta, such as `privacy: {delta: 1e-5}`")


def test_a_warning_is_one_sentence_and_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    app = typer.Typer()

    @app.command()
    def twice() -> None:
        for text in ("the sums may wrap", "the noise is small", "the sums may wrap"):
            warnings.warn(text, FedveilWarning, stacklevel=1)

    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("always")
        patch.setattr(sys, "argv", ["fedveil"])
        assert run_app(app) == Exit.DONE
    said = "warning: the sums may wrap\nwarning: the noise is small\n"
    assert capsys.readouterr().err == said


def test_a_warning_of_another_package_is_passed_on(capsys: pytest.CaptureFixture[str]) -> None:
    app, passed = typer.Typer(), list[tuple[str, type]]()

    @app.command()
    def twice() -> None:
        for _ in range(2):
            warnings.warn("too old", DeprecationWarning, stacklevel=1)

    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("always")
        patch.setattr(sys, "argv", ["fedveil"])
        show = lambda message, kind, *where, **more: passed.append((str(message), kind))  # noqa: E731
        patch.setattr(warnings, "showwarning", show)
        assert run_app(app) == Exit.DONE
    assert passed == [("too old", DeprecationWarning)] * 2
    assert capsys.readouterr().err == ""


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


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("run", "--set", "protection=DP-SGD"), "dp_encrypt"),
        (("run", "--set", "training.device=gpu"), "cuda"),
        (("run", "--set", "data.split=noniid"), "dirichlet"),
        (("run", "--set", "privacy.unit=record"), "example"),
        (("run", "--set", "server.aggregation=fedavg"), "mean"),
        (("job", "validate", "job.yaml"), "show"),
        (("run", "--set", "protection.dp_encrypt.epsilon=2"), "protection.dp_encrypt.dp_eps"),
        (("run", "--set", "protection.signds.epsilon=2"), "protection.signds.sign_eps"),
        (
            ("run", "--set", "epsilon=2"),
            "protection.distributed_dp.target_epsilon or "
            "protection.central_gaussian.target_epsilon",
        ),
        (("train", "job.yaml"), "run"),
        (("COMPARE", "job.yaml"), "compare"),
        (("attack", "inversion"), "gradient"),
        (("job", "keys", "trainning"), "training"),
        (("compare", "--epsilon", "3"), "--epsilons"),
        (("job", "show", "jobb"), "job.yaml"),
    ],
)
def test_other_programs_words_are_understood(
    command: Command, tmp_path: Path, words: tuple[str, ...], meant: str
) -> None:
    (tmp_path / "job.yaml").touch()
    code, _, err = command(*words)
    assert code == Exit.WRONG
    assert f"(did you mean {meant}?)" in err


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("run", "--set", "data.name=rows.csv"), "`fedveil init` writes such a function: let it"),
        (("run", "quote.yaml"), "quote.yaml, line 1, column 7: this quote is not closed\n"),
        (("run", "two.yaml"), "line 2, column 1: a second document begins here: write all keys"),
        (
            ("budget", "--try", "--target-epsilon", "-3"),
            "target epsilon = -3.0 is outside (0, inf)",
        ),
        (
            ("compare", "--epsilons", "2,-1"),
            "--epsilons 2,-1 must contain only numbers from 0.001 to 1,000,000, or be own",
        ),
        (("attack", "gradient", "missing.yaml"), "No such file or directory\n"),
    ],
)
def test_the_sentence_says_what_to_change(
    command: Command, tmp_path: Path, words: tuple[str, ...], problem: str
) -> None:
    (tmp_path / "quote.yaml").write_text("name: 'mine\nrounds: 2\n")
    (tmp_path / "two.yaml").write_text("rounds: 2\n---\nrounds: 3\n")
    code, _, err = command(*words)
    assert code == Exit.WRONG
    assert problem in err


def test_a_folder_with_a_job_alone_is_no_damaged_run(command: Command, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("rounds: 2\n")
    code, _, err = command("report", ".")
    assert code == Exit.FAILED
    assert err == "error: . is not a run's folder: it has a job, and no run's records\n"
