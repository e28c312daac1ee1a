"""Each part of an outcome is printed and answered: of a deployment, a dossier, an experiment."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from experiments.experiment import Verdict
from fedveil.base import plain_text
from fedveil.cli import attack as attack_cli
from fedveil.pages.dossier.dossier_folder import Dossier
from fedveil.pages.table import Table
from fedveil.privacy.finding import Finding, Measured
from fedveil.privacy.guarantee_strength import Figure
from fedveil.privacy.guarantee_strength import epsilon_text as promised
from fedveil.privacy.ledger import Line

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


def test_a_continued_text_is_told_with_its_prompt_and_its_cost(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second and the third byte are one character."""

    def generate(run: Path, request: Any, tell: Callable[[bytes], None], say: object) -> Any:
        assert say is plain_text.remark
        for piece in (b"b\xc3", b"\xa4", b"r"):
            tell(piece)
        found = SimpleNamespace(text="bär".encode(), sent="sent", stopped="the limit is reached")
        return found, "split"

    def figures(split: str, sent: str) -> list[Line]:
        assert (split, sent) == ("split", "sent")
        return lines

    lines = [Line(1.5, 0.0, "x"), Line(2.5, 1e-6, "y")]
    monkeypatch.setattr("fedveil.record.run_folder.job_of", lambda run: None)
    monkeypatch.setattr("fedveil.language.generation.generate", generate)
    monkeypatch.setattr("fedveil.language.text_account.figures", figures)
    _, out, err = command("vertical", "generate", "run", "--prompt", "Eis")
    assert out.splitlines() == ["Eisbär", *map(str, lines)]
    assert err == "the limit is reached\n"
    told = json.loads(command("vertical", "generate", "run", "--prompt", "Eis", "--json")[1])
    assert told == {"text": "Eisbär", "accounts": [*map(str, lines)]}


def test_an_attacks_result_is_printed_with_its_guarantee(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A delta of 0.2 makes an epsilon of 1 another guarantee."""
    figures = [Measured("mse", 0.5, 0.4, 0.6, 0.7, 12)]
    found = Finding("exact", "full", "rr", figures, epsilon=1.0, delta=0.2, saw="a report",
                    pictures=("a.png", "b.png"))  # fmt: skip
    attack_cli.show(found, Path("out"))
    first, *_, picture, last = capsys.readouterr().out.splitlines()
    assert first == (
        f"exact at effort full against rr (epsilon {promised(1.0, 0.2)}, a report) reached:"
    )
    assert (picture, last) == ("picture: out/a.png", "picture: out/b.png")


def test_an_attacks_steps_are_shown_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for terminal in (True, False):
        out = io.StringIO()
        shown = plain_text.console(file=out, force_terminal=terminal, width=100)
        monkeypatch.setattr(attack_cli, "console", partial(lambda of, stderr: of, shown))
        with attack_cli.progress() as step:
            step(3, 7, "batches\x1b[2J of 5")
        assert ("3/7" in out.getvalue(), "batches" in out.getvalue()) == (terminal, terminal)
        assert "\x1b[2J" not in out.getvalue()


def test_a_data_set_is_fetched_by_its_name(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(name: str, progress: Callable[[int, int | None], None]) -> Path:
        for total in (None, 40):
            progress(10, total)
        return Path("cache", name)

    monkeypatch.setattr("fedveil.data.datasets.fetch", fetch)
    assert command("data", "fetch", "fashion_mnist")[1].endswith(
        "fashion_mnist is in cache/fashion_mnist\n"
    )
    told = json.loads(command("data", "fetch", "mnist", "--json")[1])
    assert told == {"name": "mnist", "folder": "cache/mnist"}


def test_an_evaluation_is_told_with_each_class_and_account(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    classes = {"a": {"recall": 0.5, "cases": 3.0}, "b": {"recall": 0.75}}
    quality = {"loss": 0.25, "examples": 7, "per_class": classes}
    lines = {"bank": [Line(1.5, 1e-6, "a row")], "lead": [Line(2.5, 0.0, "a label")]}
    asked: list[Path] = []
    monkeypatch.setattr(
        "fedveil.vertical.one_process.evaluate",
        lambda run, say: asked.append(run) or (quality, lines),
    )  # fmt: skip
    _, out, _ = command("vertical", "evaluate", "run")
    assert (asked, out.splitlines()) == ([Path("run")], [
        "loss 0.250000", "class a: recall 0.5, cases 3", "class b: recall 0.75",
        f"bank: {lines['bank'][0]}", f"lead: {lines['lead'][0]}",
    ])  # fmt: skip
    told = json.loads(command("vertical", "evaluate", "run", "--json")[1])
    assert told["figures"] == quality
    (one,) = told["accounts"]["bank"]
    assert (one["epsilon"], one["delta"]) == (1.5, 1e-6)


def test_each_part_is_told_with_its_own_memory(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sizes of the shop's parts are unknown."""

    @dataclass
    class Memory:
        part: str
        owner: str
        size: int

    found = [Memory("top", "lead", 5), Memory("wide", "bank", 30), Memory("deep", "bank", 7)]
    task = SimpleNamespace(leader="lead", followers=["bank", "shop"])
    vertical = "fedveil.vertical"
    monkeypatch.setattr(f"{vertical}.job_split.make_task", lambda job: task)
    for name, function in (
        ("sizable", lambda job, of: ["lead", "bank"]), ("sized", lambda job, of, known: "split"),
        ("memory_of", lambda split: found),
        (
            "memory_text",
            lambda parts, batch=0: f"{sum(part.size for part in parts)}, {batch} a batch",
        ),
    ):  # fmt: skip
        monkeypatch.setattr(f"{vertical}.part_memory.{name}", function)
    sizes = {"lead": 100, "bank": 1000}
    monkeypatch.setattr(
        f"{vertical}.batch_memory.batch_bytes",
        lambda split, task, parties, size: size * sum(sizes[party] for party in parties),
    )
    _, out, _ = command("vertical", "parts", "--set", "batch_size=3")
    assert out.splitlines() == [
        "top of lead: 5, 0 a batch", "wide of bank: 30, 0 a batch", "deep of bank: 7, 0 a batch",
        "lead in all: 5, 300 a batch", "bank in all: 37, 3000 a batch",
        "shop: the sizes of its parts depend on data that this job does not name",
    ]  # fmt: skip
    told = json.loads(command("vertical", "parts", "--json")[1])
    assert told == [{"part": m.part, "owner": m.owner, "size": m.size} for m in found]


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
        reproduce=lambda *asked, published: (Path("there"), SimpleNamespace(verdicts=verdicts)),
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
