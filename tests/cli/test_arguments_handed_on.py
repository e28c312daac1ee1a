"""Each option of a command reaches the function that does the work, with the value that was given.

The functions are watched and not run. No value is a default.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedveil.cli import attack as attack_cli
from fedveil.cli.attack_catalog import FEDERATED, VERTICAL, Attack

Command = Callable[..., tuple[int, str, str]]
Watched = Callable[[str], list[tuple[tuple[Any, ...], dict[str, Any]]]]


class Reached(Exception):
    """The watched function was called."""


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    """Replace a function by its dotted path. Returns the arguments of its calls."""

    def watch(path: str) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        calls = []

        def record(*arguments: Any, **named: Any) -> None:
            calls.append((arguments, named))
            raise Reached

        monkeypatch.setattr(path, record)
        return calls

    return watch


def test_a_comparison_is_the_one_that_was_asked_for(command: Command, watched: Watched) -> None:
    calls = watched("fedveil.studies.comparison_folder.ComparisonFolder.open")
    with pytest.raises(Reached):
        command(
            "compare", "--protections", "not_encrypt, rr", "--seeds", 2, "--epsilons", "3,7",
            "--sweep", "training.lr=0.3, 0.7", "--sweep", "clients.number=6",
            "--target", "accuracy=0.4", "--attack", "membership", "--effort", "standard",
            "--set", "rounds=5", "--out", "there",
        )  # fmt: skip
    ((out, comparison, _), _) = calls.pop()
    asked = comparison.asked
    assert (out, comparison.job.rounds) == (Path("there"), 5)
    assert (asked.protections, asked.seeds) == (["not_encrypt", "rr"], 2)
    assert asked.epsilons == [3.0, 7.0]
    assert asked.sweep == {"training.lr": ["0.3", "0.7"], "clients.number": ["6"]}
    assert (asked.target, asked.attack, asked.effort) == ("accuracy=0.4", "membership", "standard")
    for option, text in (("--sweep", "protection.unary.eps=3,5"),
                         ("--set", " protection.unary.eps = 3")):  # fmt: skip
        with pytest.raises(Reached):
            command("compare", "--protections", "rr", option, text)
        assert calls.pop()[0][1].asked.epsilons == []
    # An epsilon of the protection's own takes the place of the default epsilons.
    for key, epsilons in (("protection.unary.eps=3", []), ("rounds=5", [2.0, 8.0])):
        with pytest.raises(Reached):
            command("compare", "--protections", "rr", "--set", key)
        asked = calls.pop()[0][1].asked
        assert (asked.epsilons, asked.seeds, asked.effort) == (epsilons, 3, "quick")
        assert (asked.sweep, asked.target, asked.attack) == ({}, None, None)


def test_a_question_is_asked_of_the_federation_that_was_named(
    command: Command, watched: Watched, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "q.yaml").write_text("{protection: rr, epsilon: 2, questions: {n: {ask: count}}}")
    calls = watched("fedveil.statistics.flower_app.run_app")
    with pytest.raises(Reached):
        command("ask", "q.yaml", "--on", "app", "--out", "there", "--set", "clients=7")
    ((file, folder, out), _) = calls[0]
    assert (file.clients, folder, out) == (7, Path("app"), Path("there"))
    assert "nothing is protected" not in capsys.readouterr().err
    with pytest.raises(Reached):
        command("ask", "q.yaml", "--on", "app", "--set", "protection=not_encrypt",
                "--set", "epsilon=null", "--set", "clients=7")  # fmt: skip
    assert "note: nothing is protected: the server sees every" in capsys.readouterr().err


def test_a_text_is_continued_as_asked(
    command: Command, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedveil.record.run_folder.job_of", lambda run: None)
    asked = ("vertical", "generate", "run", "--prompt", "Hällo", "--tokens", 7)
    calls = watched("fedveil.language.generation.generate")
    for more, seed in ((("--temperature", 0.3, "--seed", 5), 5), (("--temperature", 0), None)):
        with pytest.raises(Reached):
            command(*asked, *more)
        ((run, request, *_), _) = calls.pop()
        assert (run, request.prompt, request.tokens) == (Path("run"), "Hällo".encode(), 7)
        assert request.temperature == more[1]
        assert (request.entropy.description == "operating-system randomness") == (seed is None)


@pytest.mark.parametrize("purpose", ["evaluate", "predict", "generate"])
def test_a_leader_looks_with_its_own_settings(
    purpose: str, command: Command, watched: Watched
) -> None:
    module = "generate" if purpose == "generate" else "one_process"
    calls = watched(f"fedveil.cli.vertical.{module}.look")
    listening = ("vertical", purpose, "run", "--listen", "localhost:7")
    for more, insecure in ((("--tls", "keys", "--patience", 9), False), (("--insecure",), True)):
        with pytest.raises(Reached):
            command(*listening, *more)
        ((named, run, listen, tls, plain, patience, *own), _) = calls.pop()
        assert (named, run, listen) == (purpose, Path("run"), "localhost:7")
        assert (tls, plain) == (None if insecure else Path("keys"), insecure)
        assert patience == (600 if insecure else 9)
        assert len(own) == (purpose != "evaluate")


def test_a_run_is_watched_for_as_long_as_asked(command: Command, watched: Watched) -> None:
    calls = watched("fedveil.cli.watch.watch")
    with pytest.raises(Reached):
        command("watch", "run", "--patience", 7)
    ((run, _, patience), _) = calls[0]
    assert (run, patience) == (Path("run"), 7)


@pytest.mark.parametrize("attack", [*FEDERATED, *VERTICAL], ids=lambda attack: attack.name)
def test_an_attack_is_mounted_as_asked(attack: Attack, command: Command, watched: Watched) -> None:
    calls = watched("fedveil.cli.attack._attack_each")
    with pytest.raises(Reached):
        command("attack", attack.name, "--effort", "standard", "--set", "name=mine", "--json")
    ((found, targets, effort, _), named) = calls[0]
    assert (found, effort, named) == (attack, "standard", {"json": True})
    assert [target.job.name for target in targets] == ["mine"]


@pytest.mark.parametrize("attack", VERTICAL, ids=lambda attack: attack.name)
def test_a_vertical_run_is_attacked_as_it_was_made(
    attack: Attack, command: Command, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("run").mkdir()
    calls = watched("fedveil.cli.attack._attack_each")
    of_run = "fedveil.attacks.split.split_target.SplitTarget.of_run"
    monkeypatch.setattr(of_run, lambda run: f"the target in {run}")
    monkeypatch.setattr(attack_cli, "_folder_of", lambda run, stack: f"the folder {run}")
    monkeypatch.setattr(attack_cli, "_refuse_other", lambda *asked: None)
    with pytest.raises(Reached):
        command("attack", attack.name, "run", "--effort", "standard", "--json")
    assert calls == [
        ((attack, ["the target in run"], "standard", "the folder run"), {"json": True})
    ]
    code, _, err = command("attack", attack.name, "run", "--set", "epochs=3")
    assert (code, "a run is attacked as it was made" in err) == (2, True)


@pytest.mark.parametrize("name", ["gradient", "membership"])
def test_an_attack_under_a_protection_that_is_none_makes_no_folder(
    name: str, command: Command
) -> None:
    code, _, err = command("attack", name, "--protection", "magic", "--out", "there")
    assert (code, "magic" in err, Path("there").exists()) == (2, True, False)


@pytest.fixture
def saved_run(tmp_path: Path) -> Path:
    """A run folder that holds a job and nothing else."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "job.yaml").write_text("{name: mine, rounds: 3, model: logistic}")
    return folder


def test_a_run_is_the_one_that_was_asked_for(command: Command, watched: Watched) -> None:
    calls = watched("fedveil.simulate")
    for on, out in (("ray://host:7", "there"), (None, None)):
        more = [*(("--on", on) if on else ()), *(("--out", out) if out else ())]
        with pytest.raises(Reached):
            command("run", "--set", "rounds=5", *more)
        ((job, folder), named) = calls.pop()
        assert (job.rounds, job.simulation.on) == (5, on or "here")
        assert folder == (None if out is None else Path(out))
        of = {key: function.__name__ for key, function in named.items()}
        assert of == {"progress": "show", "warn": "warn", "starting": "starting"}


def test_a_run_is_resumed_with_the_rounds_that_were_asked_for(
    command: Command, watched: Watched, saved_run: Path
) -> None:
    calls = watched("fedveil.resume")
    more = ("--set", "rounds=7", "--on", "ray://host:7")
    for words, rounds, on in ((more, 7, "ray://host:7"), ((), None, None)):
        with pytest.raises(Reached):
            command("run", "--resume", saved_run, *words)
        ((run,), named) = calls.pop()
        assert (run, named["rounds"], named["on"]) == (saved_run, rounds, on)


def test_protections_are_tried_at_the_epsilon_that_was_asked_for(
    command: Command, watched: Watched, saved_run: Path
) -> None:
    calls = watched("fedveil.cli.trials.show_trials")
    for more, target, as_json in (
        (("--target-epsilon", 3.5, "--json"), 3.5, True),
        ((), 2.0, False),
    ):
        with pytest.raises(Reached):
            command("budget", "run/job.yaml", "--set", "rounds=5", "--try", *more)
        ((job, epsilon, start), named) = calls.pop()
        assert (job.rounds, epsilon, named) == (5, target, {"as_json": as_json})
        assert start == "fedveil run run/job.yaml --set rounds=5"
    with pytest.raises(Reached):
        command("budget", "--try", "--set", "name=two words")
    ((_, _, start), _) = calls.pop()
    assert start == "fedveil run --set 'name=two words'"


def test_mechanisms_are_tried_as_often_as_asked(command: Command, watched: Watched) -> None:
    calls = watched("fedveil.privacy.audit.Case.audit")
    for more, trials in ((("--trials", 1234), 1234), ((), 20_000)):
        with pytest.raises(Reached):
            command("audit", *more)
        ((_, asked), _) = calls.pop()
        assert asked == trials


@pytest.mark.parametrize(
    ("words", "path", "arguments"),
    [
        (("runs", "there", "--sort", "epsilon"), "fedveil.pages.run_list.run_list",
         (Path("there"), "epsilon")),
        (("runs",), "fedveil.pages.run_list.run_list", (Path("runs"), "when")),
        (("init", "there", "--template", "flower"), "fedveil.starter.write_starter",
         (Path("there"), "flower")),
        (("init", "there"), "fedveil.starter.write_starter", (Path("there"), "table")),
        (("data", "fetch", "mnist"), "fedveil.data.datasets.fetch", ("mnist",)),
        (("dossier", "run"), "fedveil.pages.dossier.dossier_folder.Dossier.of", (Path("run"),)),
        (("job", "convert", "theirs.yaml"), "fedveil.federated.job.Job.convert",
         (Path("theirs.yaml"),)),
    ],
)  # fmt: skip
def test_what_a_command_names_is_what_is_read(
    words: tuple[str, ...], path: str, arguments: tuple[Any, ...], command: Command,
    watched: Watched,
) -> None:  # fmt: skip
    calls = watched(path)
    with pytest.raises(Reached):
        command(*words)
    assert calls[0][0] == arguments


def test_a_page_is_written_where_it_was_asked_for(
    command: Command, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedveil.pages.run_folder_page.page_of", lambda run: ("one", run))
    monkeypatch.setattr("fedveil.pages.run_folder_page.page_of_several", lambda runs: ("all", runs))
    calls = watched("fedveil.pages.page_files.write_page")
    one, two = Path("one"), Path("two")
    for words, page, file in (
        ((one,), ("one", one), one / "report.html"),
        ((one, "--out", "page.html"), ("one", one), Path("page.html")),
        ((one, two), ("all", [one, two]), Path("report.html")),
        ((two, one, "--out", "page.html"), ("all", [two, one]), Path("page.html")),
    ):
        with pytest.raises(Reached):
            command("report", *words)
        assert calls.pop()[0] == (page, file)


def test_an_experiment_is_repeated_as_asked(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    class Module:
        @staticmethod
        def reproduce(*arguments: Any, published: bool) -> None:
            asked.append((*arguments[:3], published))
            raise Reached

    monkeypatch.setattr("fedveil.cli.reproduce.module", lambda name: Module)
    for words, wanted in (
        (("signds",), ("signds", "full", None, False)),
        (
            ("signds", "--scale", "small", "--out", "there", "--published"),
            ("signds", "small", Path("there"), True),
        ),
    ):
        with pytest.raises(Reached):
            command("reproduce", *words)
        assert asked.pop() == wanted


@pytest.mark.parametrize("seeded", [True, False])
def test_a_job_is_deployed_with_the_randomness_that_was_asked_for(
    seeded: bool, command: Command, watched: Watched
) -> None:
    pytest.importorskip("flwr")
    calls = watched("fedveil.flower.job.deploy.deployable")
    with pytest.raises(Reached):
        command("deploy", "app", "--set", "rounds=5", *(["--seeded"] if seeded else []))
    ((job,), named) = calls[0]
    assert (job.rounds, named) == (5, {"seeded": seeded})
