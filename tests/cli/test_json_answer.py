"""`--json`: standard output holds what a command found, and nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from test_exits import commands

from fedveil.base import plain_text
from fedveil.cli import json_answer
from fedveil.federated.job import Job
from fedveil.record.recorder import revived

Command = Callable[..., tuple[int, str, str]]
TINY = (
    "--set", "model=logistic", "--set", "clients.number=4", "--set", "clients.fraction=0.5",
    "--set", "training.epochs=1", "--set", "rounds=2", "--set", "protection=not_encrypt",
    "--set", "simulation.workers=0",
)  # fmt: skip


def test_every_command_takes_it() -> None:
    for name, command in commands():
        assert any("--json" in parameter.opts for parameter in command.params), name


def test_a_command_within_another_prints_no_more_than_that_one_may() -> None:
    with json_answer.only_json(True):
        with json_answer.only_json(False):
            assert plain_text.to_stderr
        assert plain_text.to_stderr
    assert not plain_text.to_stderr


def test_only_a_service_promises_no_json() -> None:
    helps = {n: p.help for n, c in commands() for p in c.params if "--json" in p.opts}
    services = {name for name, text in helps.items() if "no result" in text}
    assert services == {("site", "serve"), ("vertical", "serve-predictions")}


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        (("budget", "--set", "rounds=3"), "costs"),
        (("job", "show", "--set", "rounds=3"), "stopping"),
        (("job", "keys", "rounds"), "rounds"),
        (("vertical", "keys", "epochs"), "epochs"),
        (("vertical", "show"), "epochs"),
        (("vertical", "certificates", "keys", "--party", "bank"), "authority"),
        (("init", "start"), "next"),
        (("identity", "me.pem"), "public"),
        (("deploy", "app", *TINY), "clients"),
    ],
)
def test_an_answer_is_all_there_is(command: Command, arguments: tuple[str, ...], key: str) -> None:
    code, out, _ = command(*arguments, "--json")
    assert code == 0
    told = json.loads(out)
    assert key in told
    assert told.get("next") in (None, "cd start && fedveil run job.yaml", "flwr run app")


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


def test_what_a_key_may_be(command: Command) -> None:
    _, out, _ = command("job", "keys", "rounds", "--json")
    assert json.loads(out)["rounds"]["default"] == str(Job().rounds)
    assert [*json.loads(out)] == ["rounds"]
    assert [*json.loads(command("vertical", "keys", "epochs", "--json")[1])] == ["epochs"]
    _, plain, _ = command("job", "keys", "rounds")
    assert all(text in plain for text in json.loads(out)["rounds"].values())


def test_experiments_are_listed(command: Command) -> None:
    code, out, _ = command("reproduce", "--list", "--json")
    assert code == 0
    assert {"name", "what", "full"} <= json.loads(out)[0].keys()


def test_pages_and_what_is_watched(command: Command) -> None:
    command("run", *TINY, "--out", "run")
    for arguments, key in ((("watch", "run"), "folder"), (("report", "run"), "wrote")):
        code, out, err = command(*arguments, "--json")
        assert code == 0, err
        assert key in json.loads(out)


def test_a_vertical_run_and_what_is_done_with_it(command: Command) -> None:
    """Every command's document is the whole of standard output."""
    settings = ("task=vertical_parts:bottoms", "epochs=2", "batch_size=25")
    overrides = [word for setting in settings for word in ("--set", setting)]
    code, out, err = command("vertical", "run", *overrides, "--out", "run", "--json")
    assert code == 0, err
    told = json.loads(out)
    assert set(told["models"]) == {"lead", "bank", "shop"}
    assert all(Path(model).is_file() for model in told["models"].values())
    for arguments, key in (
        (("vertical", "evaluate", "run"), "figures"),
        (("vertical", "predict", "run"), "file"),
        (("watch", "run"), "models"),
    ):
        code, out, err = command(*arguments, "--json")
        assert code == 0, err
        assert key in json.loads(out)


def test_a_vertical_run_says_how_it_ended(command: Command) -> None:
    code, out, err = command(
        "vertical", "run", "--set", "task=vertical_parts:bottoms", "--set", "epochs=2",
        "--set", "batch_size=25", "--out", "run",
    )  # fmt: skip
    assert code == 0, err
    for party in ("lead", "bank", "shop"):
        assert f"safetensors.torch.load_file('run/{party}/model.safetensors')" in out
    assert re.search(r"epochs +2, \d", out)
    assert re.search(r"best epoch +\d, loss \d", out)
    assert "page  " in out
    assert "next  " in out
