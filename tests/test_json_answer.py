"""`--json`: standard output holds what a command found, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fedveil.federated.job import Job
from fedveil.record.recorder import revived
from test_exits import commands

Command = Callable[..., tuple[int, str, str]]
TINY = (
    "--set", "model=logistic", "--set", "clients.number=4", "--set", "clients.fraction=0.5",
    "--set", "training.epochs=1", "--set", "rounds=2", "--set", "protection=not_encrypt",
    "--set", "simulation.workers=0",
)  # fmt: skip
#: What answers by writing a file, by a single word, or by going on for as long as a run does.
WITHOUT = {
    "job keys", "vertical keys",
    "init", "deploy", "identity", "report", "watch", "data fetch", "reproduce",
    "vertical run", "vertical show", "vertical parts", "vertical evaluate", "vertical predict",
    "vertical leader", "vertical follower", "vertical generate", "vertical certificates",
}  # fmt: skip


def test_every_command_that_prints_what_it_found_has_it() -> None:
    without = {
        " ".join(name)
        for name, command in commands()
        if not any("--json" in parameter.opts for parameter in command.params)
    }
    assert without == WITHOUT & {" ".join(name) for name, _ in commands()}


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        (("budget", "--set", "rounds=3"), "costs"),
        (("job", "show", "--set", "rounds=3"), "stopping"),
    ],
)
def test_an_answer_is_all_there_is(command: Command, arguments: tuple[str, ...], key: str) -> None:
    code, out, _ = command(*arguments, "--json")
    assert code == 0
    assert key in json.loads(out)


def test_a_job_loads_back(command: Command) -> None:
    _, out, _ = command("job", "show", *TINY, "--json")
    assert Job.read(json.loads(out), ()).rounds == 2


def test_data_sets_are_listed(command: Command) -> None:
    _, out, _ = command("data", "list", "--json")
    assert {"name": "digits", "here": True}.items() <= json.loads(out)[0].items()


def test_a_run_and_an_attack_on_it(command: Command, tmp_path: Path) -> None:
    code, out, err = command("run", *TINY, "--out", "run", "--json")
    assert code == 0, err
    told = json.loads(out)
    assert (told["rounds"], told["folder"], told["ended_early"]) == (2, "run", None)
    assert Path(told["model"]).is_file()
    assert revived(told["last"]["epsilon_run_most_drawn"]) == float("inf")
    assert "round 2/2" in err
    code, out, err = command("attack", "distinguish", "run", "--json")
    assert code == 0, err
    (finding,) = json.loads(out)
    assert finding["attack"] == "distinguish"
    assert "reached:" in err
    code, out, err = command("audit", "run", "--json")
    assert [one["refutes"] for one in json.loads(out)] == [False]
    assert "saw" in err


def test_an_error_is_still_a_sentence(command: Command) -> None:
    code, out, err = command("budget", "--set", "rounds=0", "--json")
    assert (code, out, err) == (2, "", "error: rounds = 0 is outside [1, inf)\n")
