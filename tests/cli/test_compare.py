"""`fedveil compare`: what it says, what it leaves behind, and how it ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from shlex import split
from typing import Any

import pytest

from fedveil.cli.exits import Exit
from fedveil.engine.budget import project_job
from fedveil.engine.federation import Federation
from fedveil.errors import RunFailed
from fedveil.federated.job import Job
from fedveil.pages.read_run import read_run
from fedveil.record.recorder import strict
from fedveil.studies import trial_runs
from fedveil.studies.comparison import Comparison
from fedveil.studies.comparison_folder import ComparisonFolder, Result

Command = Callable[..., tuple[int, str, str]]
JOB = """\
rounds: 2
clients: {number: 8, fraction: 0.5}
data: {name: "parts:data"}
model: parts:plain
training: {epochs: 1, batch_size: 5, lr: 0.2}
simulation: {workers: 0}
"""

NUMBERS = "must contain only numbers from 0.001 to 1,000,000, or be own"
ALONE = ("--protections", "not_encrypt")


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    return path


def test_a_comparison_is_run_shown_and_kept(command: Command, job: Path, tmp_path: Path) -> None:
    asked = ("--protections", "not_encrypt, dp_encrypt", "--epsilons", "2,8", "--seeds", "2")
    code, out, err = command("compare", job, *asked, "--target", "accuracy=0.4", "--out", "c")
    assert code == Exit.DONE, err
    assert "looking for the parameters of dp_encrypt, epsilon 2\n" in out
    assert "run 6 of 6: dp_encrypt, epsilon 8, seed 1\n" in out
    assert "rounds to" in out
    assert "which to take: dp_encrypt at epsilon 8\n" in out
    assert "At epsilon 2 and delta 1e-05 (meaningful), take none of these: " in out
    assert "unequal" not in out
    names = {path.name for path in (tmp_path / "c").iterdir()}
    assert names == {
        ".lock", "comparison.md", "comparison.yaml", "imports.txt", "report.html",
        "report-accuracy.svg", "report-accuracy-epsilon.svg", "runs",
    }  # fmt: skip
    page = (tmp_path / "c" / "comparison.md").read_text()
    assert "| dp_encrypt, epsilon 2 |" in page
    assert "(meaningful) |" in page
    # Repeating the comparison, by its folder or by its command, trains nothing.
    for again in (("--resume", "c"), (job, *asked, "--target", "accuracy=0.4", "--out", "c")):
        stamps = [path.stat().st_mtime_ns for path in (tmp_path / "c").rglob("metrics.jsonl")]
        code, out, err = command("compare", *again)
        assert code == Exit.DONE, err
        assert "looking for" not in out
        assert (tmp_path / "c" / "comparison.md").read_text() == page
        assert stamps == [p.stat().st_mtime_ns for p in (tmp_path / "c").rglob("metrics.jsonl")]


def test_a_folder_of_something_else_is_not_said_to_be_a_comparison(
    command: Command, job: Path, tmp_path: Path
) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "job.yaml").touch()
    code, _, err = command("compare", job, *ALONE, "--out", "c")
    assert (code, err) == (Exit.FAILED, "error: c is not empty: name another folder\n")
    (tmp_path / "c" / "job.yaml").rename(tmp_path / "c" / "mine.txt")
    code, _, err = command("run", job, "--out", "c")
    assert (code, err) == (Exit.FAILED, "error: c is not empty: name another folder\n")


def test_an_interrupted_comparison_says_how_to_go_on(
    command: Command, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = Federation._round

    def cut(self: Federation, number: int) -> Any:
        if number == 2:
            raise KeyboardInterrupt
        return play(self, number)

    monkeypatch.setattr(Federation, "_round", cut)
    code, _, err = command("compare", job, *ALONE, "--out", "my c")
    assert code == Exit.INTERRUPTED
    assert err == "interrupted; `fedveil compare --resume 'my c'` resumes from here\n"


def test_it_fails_where_every_cell_fails(
    command: Command, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(self: Federation, number: int) -> Any:
        raise RunFailed("no report was usable")

    with monkeypatch.context() as patch:
        patch.setattr(Federation, "_round", failing)
        code, out, err = command("compare", job, *ALONE, "--seeds", "1", "--out", "c")
    assert code == Exit.FAILED
    assert err.splitlines()[-1].startswith("error: no run of the comparison has a result; ")
    assert "not_encrypt  no report was usable" in out
    assert command("compare", "--resume", "c")[0] == Exit.DONE
    for more in (
        ("--seeds", "5"), ("--effort", "full"), ("--target", "loss=1"), ("--set", "rounds=9")
    ):  # fmt: skip
        code, _, err = command("compare", "--resume", "c", *more)
        assert (code, err.startswith("error: --resume uses the comparison")) == (Exit.WRONG, True)


def test_some_runs_may_fail_and_each_is_told(
    command: Command, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """dp_encrypt fails, the others cannot be attacked, and each has an epsilon of its own."""
    play = Federation._round

    def some(self: Federation, number: int) -> Any:
        if self.job.protection.name == "dp_encrypt":
            raise RunFailed("no report was usable")
        return play(self, number)

    def attacked(self: ComparisonFolder, result: Result, step: Any) -> Result:
        return replace(result, unattacked="" if result.run is None else "it has one client")

    monkeypatch.setattr(Federation, "_round", some)
    monkeypatch.setattr(ComparisonFolder, "attacked", attacked)
    monkeypatch.setattr(Comparison, "notes", ["cohorts differ"])
    asked = ("--protections", "dp_encrypt,signds,rr", "--epsilons", "own", "--seeds", "1")
    code, out, err = command("compare", job, *asked, "--out", "c", "--json")
    assert code == Exit.DONE, err
    assert "warning: cohorts differ\n" in err
    assert err.count("  it has one client\n") == 2
    assert "The promises are unequal" in err
    failed, *others = json.loads(out)
    assert failed == {"setting": "dp_encrypt", "runs": [], "failures": ["no report was usable"]}
    for told, name in zip(others, ("signds", "rr"), strict=True):
        ((run,), failures) = told["runs"], told["failures"]
        assert (told["setting"], failures) == (name, ["it has one client"])
        last = read_run(run["folder"]).last
        assert run["last"] == json.loads(json.dumps(strict(last)))


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (("--protections", "rr,,oue"), "--protections rr,,oue has nothing between two commas"),
        (("--protections", ""), "--protections '' is empty"),
        (("--protections", "my x,"), "--protections 'my x,' has nothing between two commas"),
        (("--sweep", ""), "--sweep '' is not of the form KEY=VALUE,VALUE"),
        (("--attack", ""), "--attack '' is not available here: only membership is"),
        (("--epsilons", ""), f"--epsilons '' {NUMBERS}"),
        (("--epsilons", "1,two"), f"--epsilons 1,two {NUMBERS}"),
        (("--epsilons", "0"), f"--epsilons 0 {NUMBERS}"),
        (("--epsilons", "2,inf"), f"--epsilons 2,inf {NUMBERS}"),
        (("--epsilons", "1e300"), f"--epsilons 1e300 {NUMBERS}"),
        (("--epsilons", "2,1000001"), f"--epsilons 2,1000001 {NUMBERS}"),
        (("--epsilons", "0.0009"), f"--epsilons 0.0009 {NUMBERS}"),
        (
            ("--target", "accuracy=90"),
            "--target accuracy=90: accuracy is at most 1. For 90%, write accuracy=0.9",
        ),
        (("--sweep", "training.lr"), "--sweep training.lr is not of the form KEY=VALUE,VALUE"),
        (("--sweep", "training.lr="), "--sweep training.lr= is not of the form KEY=VALUE,VALUE"),
        (
            ("--sweep", "training.lr=0.1,0.2", "--sweep", "training.lr=0.3"),
            "--sweep training.lr is given twice: write --sweep training.lr=0.1,0.2,0.3",
        ),
        (("--attack", "steal"), "--attack steal is not available here: only membership is"),
        (
            ("--resume", "c"),
            "--resume uses the comparison's own options: remove JOB and all other options",
        ),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_written(
    command: Command, job: Path, tmp_path: Path, asked: tuple[str, ...], sentence: str
) -> None:
    code, out, err = command("compare", job, *asked)
    assert (code, out, err) == (Exit.WRONG, "", f"error: {sentence}\n")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "more",
    [
        ("job.yaml",), ("--protections", "rr"), ("--seeds", 5), ("--epsilons", "2"),
        ("--sweep", "rounds=2,3"), ("--target", "loss=1"), ("--attack", "membership"),
        ("--effort", "full"), ("--set", "rounds=9"), ("--out", "d"),
    ],
    ids=lambda more: more[0],
)  # fmt: skip
def test_a_comparison_is_resumed_with_its_own_options_alone(
    more: tuple[object, ...], command: Command
) -> None:
    code, _, err = command("compare", "--resume", "c", *more)
    sentence = "--resume uses the comparison's own options: remove JOB and all other options"
    assert (code, err) == (Exit.WRONG, f"error: {sentence}\n")


def test_spaces_in_a_sweep_are_not_part_of_its_key_or_values() -> None:
    from fedveil.cli.compare import _sweeps

    swept = _sweeps([" rounds = 2, 3", "training.lr=0.5"])
    assert swept == {"rounds": ["2", "3"], "training.lr": ["0.5"]}


def test_without_options_all_protections_meet_at_two_epsilons(
    job: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from fedveil.cli.compare import _levels, _named

    asked = Job.load(job)
    names = _named(asked, None)
    assert names == [
        "not_encrypt", "distributed_dp", "dp_encrypt", "central_gaussian", "signds", "rr", "oue",
    ]  # fmt: skip
    assert _levels(None, ["training.lr"]) == [2.0, 8.0]
    monkeypatch.setattr(
        "fedveil.studies.comparison_choice.side_by_side", lambda job: ["pw_encrypt"]
    )
    few = Job.load(job, ["clients.fraction=0.2", "protection=rr"])
    assert _named(few, None) == ["rr"]  # whose own refusal then says what is wrong
    # Two clients a round cannot share secrets: the others are still compared.
    monkeypatch.undo()
    capsys.readouterr()
    able = [name for name in names if name != "distributed_dp"]
    assert _named(Job.load(job, ["clients.fraction=0.2"]), None) == able
    (note,) = [line for line in capsys.readouterr().err.splitlines() if "without" in line]
    assert note.startswith("note: without distributed_dp: ")
    assert "share secrets" in note


@pytest.mark.parametrize(
    "key", ["protection.unary.eps", "protection.distributed_dp.target_epsilon",
            "protection.dp_encrypt.dp_eps"]
)  # fmt: skip
def test_a_protections_own_cost_makes_promises_unequal(key: str) -> None:
    from fedveil.cli.compare import _levels

    assert _levels(None, ["rounds", key]) == []
    assert _levels("3", [key]) == [3.0]
    assert _levels("own", []) == []


def test_every_protection_is_tried_for_a_short_time(
    command: Command, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial_runs, "GAUSSIAN", ("distributed_dp", "central_gaussian"))
    monkeypatch.setattr(trial_runs, "OTHERS", ())
    monkeypatch.setattr(trial_runs, "LEAST_GAIN", 1e-6)
    crowd = ["--set", "clients.number=60", "--set", "clients.fraction=1.0"]
    code, out, err = command("budget", job, "--try", *crowd)
    assert code == Exit.DONE, err
    assert "short trials, 2 rounds with the noise of a whole run, on the clients' held-out" in out
    for name in ("untrained model", "not_encrypt", "distributed_dp", "central_gaussian"):
        assert f"\n{name} " in out
    best = next(line for line in out.splitlines() if line.startswith("  fedveil run"))
    _, _, path, *more = split(best)
    assert path == str(job)
    assert more[:4] == crowd
    costs = [line.epsilon for line in project_job(Job.load(path, more[1::2]))]
    assert max(costs) <= 2.0
