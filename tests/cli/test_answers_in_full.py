"""Each figure that a command prints is the one of its own line, from answers without two alike."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from comparing_parts import small_job
from fedveil.cli import site_account
from fedveil.cli import trials as trials_cli
from fedveil.data.datasets import available
from fedveil.engine.budget import project_job, solve_job
from fedveil.engine.candidates import candidates, of_examples
from fedveil.engine.known_accuracy import Measured
from fedveil.federated.job import Job
from fedveil.privacy.guarantee_strength import Figure
from fedveil.privacy.ledger import Line
from fedveil.privacy.loss import format_delta, format_epsilon
from fedveil.starter import DEFAULT_JOB
from fedveil.studies.trial_runs import BARE, UNTRAINED, Trial

Command = Callable[..., tuple[int, str, str]]
#: A report's epsilon for a bit, a parameter and an update, and a run's, are four numbers.
SETTINGS = ("rounds=3", "protection=rr", "protection.unary.eps=0.0625", "protection.unary.cells=3")
ASKED = [word for setting in SETTINGS for word in ("--set", setting)]


def test_a_budget_states_every_line_of_the_projection(command: Command) -> None:
    job = Job.load(DEFAULT_JOB, SETTINGS)
    lines = list(project_job(job, 21))
    assert len({line.epsilon for line in lines}) == len(lines) == 4
    code, out, _ = command("budget", *ASKED, "--parameters", 21, "--json")
    assert (code, json.loads(out)) == (0, {"solved": None, "costs": costs(lines), "measured": []})
    code, out, _ = command("budget", *ASKED, "--parameters", 21)
    for line in lines:
        figure = (format_epsilon(line.epsilon), format_delta(line.delta), line.figure.promise)
        (row,) = re.findall(" +".join(map(re.escape, figure)) + " +(.*)", out)
        assert line.what.startswith(row.strip()[:30]), row
    assert "These figures hold against everyone, including the server." in out


def test_a_budget_states_the_accuracies_that_were_measured_and_whom_it_holds_against(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of its lines has no finite epsilon."""
    known = [Measured(("rounds=9",), 1.25, 0.8125, "make it"), Measured((), 3.5, 0.9375, "make")]
    monkeypatch.setattr("fedveil.engine.known_accuracy.measured", lambda job: known)
    lines = [Line(1.5, 1e-6, "a client"), Line(math.inf, 0.0, "the sizes")]
    monkeypatch.setattr("fedveil.engine.budget.project_job", lambda job, parameters: lines)
    asked = ("budget", "--set", "protection=dp_encrypt")
    *_, against, first, second = command(*asked)[1].splitlines()
    assert against.startswith("These figures hold against ")
    assert [first, second] == [str(one) for one in known]
    told = json.loads(command(*asked, "--json")[1])
    assert told["measured"] == json.loads(json.dumps([one._asdict() for one in known]))
    assert [cost["for"] for cost in told["costs"]] == ["a client", "the sizes"]


def costs(lines: list[Line]) -> list[dict[str, Any]]:
    return [{"for": line.what, "epsilon": line.epsilon, "delta": line.delta} for line in lines]


def test_a_budget_at_a_target_states_what_was_solved_for(command: Command) -> None:
    noised = ("rounds=3", "protection=dp_encrypt")
    solved, lines = solve_job(Job.load(DEFAULT_JOB, noised), 3.5, 21)
    settings = [word for setting in noised for word in ("--set", setting)]
    asked = ("budget", *settings, "--parameters", 21, "--target-epsilon", 3.5)
    code, out, _ = command(*asked, "--json")
    told = {"solved": str(solved), "costs": costs(list(lines)), "measured": []}
    assert (code, json.loads(out)) == (0, told)
    _, out, _ = command(*asked)
    assert out.splitlines()[0] == str(solved)


def test_what_holds_against_nobody_is_not_said_to_hold(command: Command) -> None:
    _, out, _ = command("budget", "--set", "protection=not_encrypt", "--parameters", 21)
    assert "inf" in out
    assert "hold against" not in out


@pytest.mark.parametrize(
    ("ratio", "shown"), [(None, "-"), (9.994, "9.99"), (10.0, "10"), (12345.6, "12,346")]
)
def test_noise_is_shown_relative_to_the_update(ratio: float | None, shown: str) -> None:
    assert trials_cli._noise(Trial("rr", None, Figure(1.0, 0.0), ratio)) == shown


def test_trials_are_told_in_full(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = small_job(clients={"number": 60, "fraction": 1.0})
    first, second = candidates(job, 83, 2.0, ["distributed_dp", "dp_encrypt"])
    (third,) = candidates(job, 83, 2.0, ["dp_encrypt"], of_examples(job))
    found = [
        Trial("signds", None, Figure(1.97, 1e-7), None, failure="too few clients"),
        Trial(UNTRAINED, None, Figure(math.inf, 1e-5), None, "accuracy", "higher", 0.125, "e", 1),
        Trial(BARE, None, Figure(math.inf, 1e-5), None, "accuracy", "higher", 0.875, "e", 10),
        Trial("distributed_dp", first, Figure(1.91, 1e-5), 3.25, "accuracy", "higher", 0.5, "e", 7),
        Trial("dp_encrypt", second, Figure(1.93, 1e-6), 40.5, "accuracy", "higher", 0.75, "e", 9),
        Trial("dp_encrypt", third, Figure(1.99, 1e-5), 5.5, "accuracy", "higher", 0.625, "e", 8),
        Trial("rr", None, Figure(1.95, 0.0), None, failure="no learning"),
        Trial("oue", first, Figure(1.96, 0.0), 2.5, failure="it diverged"),
    ]
    monkeypatch.setattr(trials_cli, "trials", lambda *asked: iter(found))
    monkeypatch.setenv("COLUMNS", "120")
    trials_cli.show_trials(job, 2.0, "fedveil run j.yaml", as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert told["trials"][4] == {
        "protection": "dp_encrypt", "epsilon": 1.93, "delta": 1e-6, "metric": "accuracy",
        "value": 0.75, "examples": "e", "rounds": 9, "noise_over_update": 40.5,
        "settings": list(second.settings), "failure": "",
    }  # fmt: skip
    assert told["trials"][6] == {
        "protection": "rr", "epsilon": 1.95, "delta": 0.0, "metric": "", "value": None,
        "examples": "", "rounds": 0, "noise_over_update": None, "settings": [],
        "failure": "no learning",
    }  # fmt: skip
    commands = [one.command("fedveil run j.yaml") for one in (second, third)]
    assert told["best"] == dict(zip(("client", "example"), commands, strict=True))
    trials_cli.show_trials(job, 2.0, "fedveil run j.yaml", as_json=False)
    shown = capsys.readouterr().out
    rows = [re.split(" {2,}", line.strip()) for line in shown.splitlines()]
    assert ["distributed_dp", "1.91 (meaningful)", "50.0%", "3.25"] in rows
    assert ["dp_encrypt", "1.93 (meaningful)", "75.0%", "40"] in rows
    assert ["rr", "-", "no result: no learning", "-"] in rows
    assert ["oue", "1.96 (meaningful)", "no result: it diverged", "2.50"] in rows
    assert [BARE, "inf (none)", "87.5%", "-"] in rows
    assert "no protection learns" not in shown
    assert "best for a whole client: dp_encrypt, accuracy 75.0% in the trial." in shown
    assert f"costs epsilon 1.93 at delta 1e-06 (meaningful), against {second.against}:" in shown
    assert "best for one example: dp_encrypt, accuracy 62.5% in the trial." in shown
    assert [line.strip() for line in shown.splitlines()[-3::2]] == commands
    assert ["protection", "epsilon of a run", "accuracy", "noise / update"] in rows
    assert "short trials, 1 round with the noise of a whole run, on e:" in shown


def test_trials_without_any_result_are_told_as_such(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nothing = Figure(math.inf, 1e-5)
    found = [
        Trial(name, None, figure, None, failure="the worker went away")
        for name, figure in ((UNTRAINED, nothing), (BARE, nothing), ("rr", Figure(1.95, 0.0)))
    ]
    monkeypatch.setattr(trials_cli, "trials", lambda *asked: iter(found))
    monkeypatch.setenv("COLUMNS", "120")
    trials_cli.show_trials(small_job(), 2.125, "fedveil run j.yaml", as_json=False)
    shown = capsys.readouterr().out
    rows = [re.split(" {2,}", line.strip()) for line in shown.splitlines()]
    assert "no trial has a result:" in shown
    assert ["protection", "epsilon of a run", "result", "noise / update"] in rows
    assert ["rr", "-", "no result: the worker went away", "-"] in rows
    assert "at epsilon 2.13, no protection learns from these clients." in shown


def test_each_data_set_is_listed_with_its_own_facts(command: Command) -> None:
    _, out, _ = command("data", "list", "--json")
    told = {one["name"]: one for one in json.loads(out)}
    assert list(told) == [entry.name for entry in available()]
    for entry in available():
        assert told[entry.name] == {
            "name": entry.name, "origin": entry.origin, "classes": entry.classes,
            "shape": list(entry.shape), "how": entry.how, "here": entry.here(),
        }  # fmt: skip


def test_an_account_of_a_data_set_is_told_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    record = SimpleNamespace(
        account=SimpleNamespace(name="wards"),
        month=SimpleNamespace(figure=Figure(1.25, 1e-6)),
        ever=SimpleNamespace(
            figure=Figure(3.5, 1e-5), releases=1234, without_epsilon=1, in_clear=["sizes", "times"]
        ),
        left=lambda: {"month": "0.75", "ever": "6.5"},
    )
    site_account._show(record, whole=False)
    assert capsys.readouterr().out.splitlines() == [
        "wards: 1,234 releases",
        "  this month  epsilon 1.25 at delta 1e-06 (meaningful), at least 0.75 left",
        "  for ever    epsilon 3.5 at delta 1e-05 (weak), at least 6.5 left",
        "  and 1 release without an epsilon",
        "  sent in the clear: sizes",
        "  sent in the clear: times",
    ]


def test_equal_figures_of_a_budget_share_a_row_and_an_own_protection_is_described_by_nobody(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [Line(1.5, 1e-6, "a bit"), Line(2.5, 1e-6, "a run"), Line(1.5, 1e-6, "a round")]
    monkeypatch.setattr("fedveil.engine.budget.project_job", lambda job, parameters: lines)
    monkeypatch.setattr("fedveil.pages.guarantee_text.attackers", lambda job: "")
    _, *rows = command("budget", "--set", "protection=dp_encrypt")[1].splitlines()
    assert [row.split()[3:] for row in rows] == [["a", "bit", "and", "a", "round"], ["a", "run"]]
