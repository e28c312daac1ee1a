"""Each part of an outcome is printed and answered: of a deployment, a dossier, an experiment."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from experiments.experiment import Verdict
from fedveil.pages.dossier.dossier_folder import Dossier
from fedveil.pages.table import Table
from fedveil.privacy.guarantee_strength import Figure

Command = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize("weighting", ["by_size", "equal"])
def test_a_deployment_is_told_with_what_it_reveals(
    weighting: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("flwr")
    monkeypatch.setattr("fedveil.flower.job.deploy.write_app", lambda app, job: [app / "x.py"])
    settings = ("protection=not_encrypt", f"server.weighting={weighting}", "clients.number=30",
                "clients.fraction=0.2")  # fmt: skip
    sets = [part for text in settings for part in ("--set", text)]
    code, out, err = command("deploy", "my app", *sets, "--json")
    assert (code, json.loads(out)) == (
        0, {"wrote": ["my app/x.py"], "clients": 30, "next": "flwr run 'my app'"},
    )  # fmt: skip
    assert ("reveals its client's number of examples" in err) == (weighting == "by_size")
    assert "wrote my app/x.py\n" in err
    assert "the job's seed" not in err
    assert "anyone who can read the job" in command("deploy", "app", *sets, "--seeded")[2]


def test_a_dossier_is_told_with_each_guarantee(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    accounts = [
        SimpleNamespace(of="a label", epsilon=1.25, delta=3e-7),
        SimpleNamespace(of="a row", epsilon=0.5, delta=0.0),
    ]
    stated = [
        SimpleNamespace(key=key, lines=lines, missing=f"no {key}")
        for key, lines in (("unit", ["x"]), ("audit", []), ("trust", []))
    ]
    asked: list[Path] = []

    def of(run: Path) -> Any:
        return SimpleNamespace(
            evidence=SimpleNamespace(accounts=accounts), statements=stated,
            write=lambda out: asked.append(out) or [out / "page.html"],
        )  # fmt: skip

    monkeypatch.setattr(Dossier, "of", of)
    _, out, _ = command("dossier", "run", "--out", "there")
    assert out.splitlines() == [
        "wrote there/page.html", *(f"{Figure(a.epsilon, a.delta)} for {a.of}" for a in accounts),
        "not stated: audit, trust",
    ]  # fmt: skip
    told = json.loads(command("dossier", "run", "--json")[1])
    missing = {"audit": "no audit", "trust": "no trust"}
    assert told == {"wrote": ["run/dossier/page.html"], "missing": missing}
    assert asked == [Path("there"), Path("run/dossier")]


def test_an_experiment_is_told_with_each_verdict(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdicts = [
        Verdict(f"trend {n}", f"{n}%", f"{n + 1}%", "the trend", answer, "because")
        for n, answer in enumerate(("agrees", "differs", "says nothing"))
    ]
    module = SimpleNamespace(
        reproduce=lambda *asked: (Path("there"), SimpleNamespace(verdicts=verdicts)),
        verdicts=lambda outcome: Table(["claim"], [["shown"]]),
        tally=lambda outcome: "one of three agrees",
    )
    monkeypatch.setattr("fedveil.cli.reproduce.module", lambda name: module)
    _, out, _ = command("reproduce", "signds")
    lines = [line.strip() for line in out.splitlines()]
    assert lines == ["claim", "shown", "one of three agrees", "written to there"]
    told = json.loads(command("reproduce", "signds", "--json")[1])
    assert told["page"] == "there"
    assert [one["agrees"] for one in told["verdicts"]] == [one.agrees for one in verdicts]
    assert {one["agrees"] for one in told["verdicts"]} == {True, False}
    assert [(v["what"], v["source"], v["ours"]) for v in told["verdicts"]] == [
        ("trend 0", "0%", "1%"), ("trend 1", "1%", "2%"), ("trend 2", "2%", "3%"),
    ]  # fmt: skip
