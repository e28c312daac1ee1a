"""The commands as their user meets them: what they say, and how they end."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fedveil import __version__
from fedveil.cli import job_arguments
from fedveil.cli.audit_cases import cases
from fedveil.cli.vertical import job_file
from fedveil.entropy import Seeded
from fedveil.federated.job import Job
from fedveil.starter import DEFAULT_JOB
from sabotage import same_noise_each_round

Command = Callable[..., tuple[int, str, str]]


def test_version(command: Command) -> None:
    assert command("--version") == (0, f"fedveil {__version__}\n", "")


def test_help_fits_a_screen(command: Command) -> None:
    for arguments in ((), ("run",), ("data",), ("job",), ("init",), ("audit",), ("budget",)):
        code, out, _ = command(*arguments, "--help")
        assert code == 0
        assert len(out.splitlines()) <= 40


def test_every_problem_of_a_job_is_told_at_once(command: Command, tmp_path: Path) -> None:
    code, out, err = command("run", "--set", "modl=x", "--set", "rounds=-1", "--set", "seed=a")
    assert code == 2
    assert out == ""
    lines = err.splitlines()
    assert len(lines) == 3
    assert all(line.startswith("error: ") for line in lines)
    assert "did you mean model?" in err
    assert "rounds = -1 is outside [1, inf)" in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (("run", "missing.yaml"), 2, "missing.yaml"),
        (("run", "--resume", "nowhere"), 1, "nowhere is not a run's folder: there is no such fold"),
        (("run", "--resume", "x", "--set", "seed=2"), 2, "--resume uses the run's own job"),
        (("run", "--set", "data.name=mnist", "--set", "protection=not_encrypt"), 1, "mnist"),
        (("data", "fetch", "digits"), 1, "digits has no download"),
        (("job", "convert", "missing.yaml"), 2, "missing.yaml"),
    ],
)
def test_mistakes_are_one_sentence(
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    arguments: tuple[str, ...],
    code: int,
    sentence: str,
) -> None:
    monkeypatch.delenv("FEDVEIL_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    found, _, err = command(*arguments)
    assert found == code
    assert sentence in err.replace("\n", " ")
    assert len(err.splitlines()) == 1
    assert "Traceback" not in err


def test_a_starter_runs_as_it_is(command: Command, tmp_path: Path) -> None:
    code, out, _ = command("init", "mine")
    assert code == 0
    assert {p.name for p in (tmp_path / "mine").iterdir()} == {"job.yaml", "model.py"}
    settings = ("--set", "rounds=6", "--set", "simulation.workers=0", "--out", "run")
    code, out, err = command("run", "mine/job.yaml", *settings)
    assert code == 0, err
    assert "round 6/6 accuracy 9" in out
    assert "\nrun folder   run\n" in out
    assert "\npage         run/report.html\n" in out
    assert (tmp_path / "run" / "model.safetensors").exists()
    code, out, err = command("run", "--resume", "run")
    assert code == 0, err
    code, _, err = command("run", "mine/job.yaml", "--out", "run")
    assert code == 1
    assert "run is not empty" in err
    code, _, err = command("init", "mine")
    assert code == 1
    assert "already holds job.yaml and model.py" in err
    (tmp_path / "mine" / "job.yaml").unlink()
    code, _, err = command("init", "mine")
    assert (code, "already holds model.py" in err) == (1, True)
    assert not (tmp_path / "mine" / "job.yaml").exists()


def test_a_new_run_gets_a_folder_under_runs(command: Command, tmp_path: Path) -> None:
    command("init", ".")
    code, out, err = command("run", "job.yaml", "--set", "rounds=1", "--set", "protection=signds")
    assert code == 0, err
    assert out.startswith(
        "warning: a client that takes part in the only round is promised epsilon 200 "
    )
    assert "epsilon 200 (next to none)" in out
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("mine-2")
    assert f"runs/{folder.name}" in out


def test_show_prints_a_job_that_loads_back(command: Command, tmp_path: Path) -> None:
    code, out, _ = command("job", "show", "--set", "protection=signds")
    assert code == 0
    (tmp_path / "again.yaml").write_text(out)
    assert Job.load(tmp_path / "again.yaml") == Job.load(DEFAULT_JOB, ["protection=signds"])


def test_a_mindspore_file_is_converted_with_its_notes(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Job, "warnings", ["mind this"])
    (tmp_path / "theirs.yaml").write_text(
        "fl_name: Lenet\nfl_iteration_num: 7\nserver_mode: FEDERATED_LEARNING\n"
        "distributed_cache: {address: 127.0.0.1:2345}\n"
        "round: {start_fl_job_threshold: 4, update_model_ratio: 1.0}\n"
        "client: {client_epoch_num: 2, client_batch_size: 8, client_learning_rate: 0.05}\n"
        "encrypt: {encrypt_train_type: SignDS, signds: {sign_k: 0.2}}\n"
    )
    code, out, err = command("job", "convert", "theirs.yaml")
    assert code == 0
    assert "distributed_cache" in err
    assert err.endswith("warning: mind this\n")
    (tmp_path / "ours.yaml").write_text(out)
    job = Job.load(tmp_path / "ours.yaml")
    assert (job.rounds, job.protection.name, job.protection.signds.sign_k) == (7, "signds", 0.2)


def test_budget_tells_the_four_figures(command: Command) -> None:
    code, out, _ = command("budget", "--set", "protection=signds", "--set", "rounds=3")
    assert code == 0
    assert "100" in out
    assert "one of 7,850 parameters" in out
    assert "a client that takes part in all 3 rounds" in out
    assert out.splitlines()[0].split() == ["epsilon", "delta", "promise", "for"]
    assert out.count(" next to none ") == 3
    assert out.endswith("These figures hold against everyone, including the server.\n")
    code, out, _ = command("budget", "--set", "protection=not_encrypt")
    assert out.count("inf") == out.count(" none ") == 2
    assert "hold against" not in out
    assert "the clients' numbers of examples, each or in total (weighting = by_size)" in out


def test_budget_solves_for_the_parameter_that_keeps_a_run_to_an_epsilon(command: Command) -> None:
    signds = ("--set", "protection=signds", "--set", "rounds=3")
    code, out, _ = command("budget", *signds, "--target-epsilon", "2")
    setting, *table = out.splitlines()
    assert code == 0
    assert setting.startswith("--set protection.signds.sign_eps=0.")
    code, out, _ = command("budget", *signds, *setting.split())
    assert code == 0
    assert out.splitlines() == table
    assert 1.98 < float(table[-2].split()[0]) <= 2
    code, _, err = command("budget", "--set", "protection=not_encrypt", "--target-epsilon", "2")
    assert code == 2
    assert err.startswith("error: protection.name = not_encrypt promises no epsilon")


def test_list_names_every_set(command: Command) -> None:
    code, out, _ = command("data", "list")
    assert code == 0
    for name in ("digits", "mnist", "femnist", "location30", "purchase100-synthetic"):
        assert name in out


def test_audit_refutes_nothing(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """By draws that repeat: of fresh ones a true claim is refuted once in some ten thousand."""
    monkeypatch.setattr("fedveil.privacy.audit.Secure", lambda: Seeded(1, "audit"))
    code, out, _ = command("audit", "--trials", "1000")
    assert code == 0
    assert out.count("not refuted") == len(list(cases()))


def test_audit_exits_1_where_a_claim_is_refuted(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mechanism that sends the bit as it is, and claims epsilon 1."""
    import dataclasses

    from fedveil.cli import audit_cases

    case = dataclasses.replace(next(cases()), release=lambda bits, entropy: bits)
    monkeypatch.setattr(audit_cases, "cases", lambda: iter([case]))
    code, out, err = command("audit", "--trials", "1000")
    assert code == 1
    assert ": refuted" in out
    assert err == f"error: refuted: {case.name}\n"
    monkeypatch.setattr(audit_cases, "cases", lambda: iter([case]))
    code, out, err = command("audit", "--trials", "1000", "--json")
    assert code == 1
    assert [one["refuted"] for one in json.loads(out)] == [True]
    assert err.endswith(f"error: refuted: {case.name}\n")


@pytest.fixture
def found(tmp_path: Path) -> Path:
    """A run's folder with a finding whose bound is below what was promised."""
    from fedveil.privacy.finding import Finding, Measured
    from fedveil.record.finding_lines import add_finding
    from fedveil.record.run_folder import RunFolder

    folder = RunFolder.create(tmp_path / "run")
    figures = [Measured("epsilon at least", 1.5, cases=50)]
    add_finding(
        folder,
        Finding("canaries", "standard", "dp_encrypt", figures, epsilon=2.0, delta=1e-5, saw="all"),
    )
    folder.close()
    return tmp_path / "run"


def test_audit_of_a_run_prints_what_was_found_in_it(command: Command, found: Path) -> None:
    code, out, _ = command("audit", str(found))
    assert code == 0
    assert out == (
        "canaries at effort standard against dp_encrypt reached epsilon at least 1.5; saw all; "
        "promised: epsilon 2 at delta 1e-05 (meaningful); closest: epsilon at least 1.5, "
        "0.5 below the claim 2: not refuted\n"
    )


def test_trials_cannot_be_asked_of_a_run_that_was_audited_before(
    command: Command, found: Path
) -> None:
    code, out, err = command("audit", "run", "--trials", "2000")
    sentence = "--trials cannot be used with RUN, whose results are only shown"
    assert (code, out, err) == (2, "", f"error: {sentence}\n")


def test_everything_that_an_audit_could_not_have_seen_is_printed(
    command: Command, found: Path
) -> None:
    from fedveil.record.finding_lines import FINDINGS, read_findings

    line = json.loads((found / FINDINGS).read_text())
    (figure,) = line["figures"]
    line["figures"] = [
        figure | {"unseen": 3.5}, figure | {"name": "epsilon at least, by b", "unseen": 7.25},
    ]  # fmt: skip
    (found / FINDINGS).write_text(json.dumps(line) + "\n")
    unseen = read_findings(found)[0].unseen
    assert len(unseen) == 2
    _, *missed = command("audit", str(found))[1].splitlines()
    assert missed == [f"  {text}" for text in unseen]


def test_audit_of_a_run_exits_1_where_its_promise_is_refuted(command: Command, found: Path) -> None:
    from fedveil.record.finding_lines import FINDINGS

    file = found / FINDINGS
    sound = file.read_text()
    file.write_text(sound.replace("1.5", "2.5") + sound)
    code, out, err = command("audit", str(found))
    assert code == 1
    verdicts = [line.rpartition(": ")[2] for line in out.splitlines()]
    assert verdicts == ["refuted", "not refuted"]
    assert "; largest excess: epsilon at least 2.5, 0.5 above the claim 2: refuted\n" in out
    assert err == (
        "error: 1 of 2 findings refute the protection's guarantee: epsilon at least 2.5 where 2 is "
        "claimed\n"
    )


def test_a_refuted_run_exits_1_when_it_ends_and_when_it_is_shown(
    command: Command, tmp_path: Path
) -> None:
    """With `--json`, too, whose output is whole."""
    settings = ("rounds=2", "simulation.workers=0", "clients.number=12", "clients.fraction=1",
                "data.name=parts:data", "model=parts:wide", "audit.canaries=9",
                "training.batch_size=6", "protection.name=rr",
                "protection.unary.report=bits")  # fmt: skip
    given = [part for key in settings for part in ("--set", key)]
    (tmp_path / "job.yaml").write_text("name: audited\n")
    code, _, err = command("run", "job.yaml", *given, "--out", "sound")
    assert code == 0, err
    with same_noise_each_round():
        code, out, err = command("run", "job.yaml", *given, "--out", "run", "--json")
    refuted = "epsilon at least, a bit of the code told true in two rounds"
    assert code == 1
    assert f"error: the audit refutes the run's guarantee: {refuted} " in err
    (finding,) = json.loads(out)["findings"]
    assert (finding["refutes"], finding["excesses"]) == (True, [refuted])
    assert any("misses every epsilon" in text for text in finding["not_seen"])
    for more in ((), ("--json",)):
        code, out, err = command("audit", "run", *more)
        assert code == 1
        assert f"findings refute the protection's guarantee: {refuted} " in err
    assert json.loads(out)[0]["refutes"] is True
    assert command("audit", "sound")[0] == 0


def test_audit_of_a_folder_without_findings_says_how_to_get_some(
    command: Command, tmp_path: Path
) -> None:
    (tmp_path / "job.yaml").touch()
    code, _, err = command("audit", str(tmp_path))
    assert code == 1
    assert "holds no findings: run with audit.canaries" in err


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"[" * 9999, b'{"figures": 3}'])
def test_findings_that_cannot_be_read_are_one_sentence(
    command: Command, tmp_path: Path, content: bytes | None
) -> None:
    file = tmp_path / "attacks.jsonl"
    os.mkfifo(file) if content is None else file.write_bytes(content)
    code, out, err = command("audit", str(tmp_path))
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith(f"error: {file} ")


@pytest.mark.parametrize("load", [job_arguments.load, job_file.load])
def test_the_job_of_a_run_finds_the_modules_that_the_run_found(
    load: Callable[..., object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "job.yaml").write_text("name: again\n")
    (tmp_path / "imports.txt").write_text("/where/modules/are\n")
    load(tmp_path / "job.yaml", [])
    assert sys.path[-2:] == [str(tmp_path), "/where/modules/are"]
