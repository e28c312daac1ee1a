"""The dossier of a run: its answers, its refusals, and a script that recomputes its epsilons."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from html import escape
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import fedveil
from doc_blocks import blocks, commands
from fedveil.cli.exits import Exit
from fedveil.errors import RunFolderError
from fedveil.mechanisms.embedding_dp import EmbeddingDP
from fedveil.mechanisms.signds.index_code import encode_indices
from fedveil.pages.dossier.account import Account, _charges_of_example, _of_party
from fedveil.pages.dossier.dossier_folder import PAGE, RECORD, SCRIPT, Dossier, recompute_parts
from fedveil.pages.dossier.registry import registry_record
from fedveil.pages.dossier.releases import releases_of
from fedveil.pages.dossier.statements import (
    _bounds,
    _channels,
    _composition,
    _integrity,
    _open,
    _settings,
    _vertical,
    statements,
    worst,
)
from fedveil.pages.page import Fact
from fedveil.pages.read_run import read_run
from fedveil.pages.table import Table
from fedveil.privacy.compose import cost
from fedveil.privacy.finding import Finding, Measured
from fedveil.privacy.guarantee_strength import Figure
from fedveil.privacy.ledger import Line
from fedveil.privacy.loss import Gaussian, PrivacyLoss
from fedveil.record.account_lines import FAILURE, LABEL, OWN_REPORTS, read_accounts
from fedveil.record.event_log import append_event
from fedveil.record.finding_lines import add_finding
from fedveil.record.run_folder import RunFolder
from fedveil.vertical import VerticalJob, train
from folders import DOCS
from page_parts import edit_all, edit_last, small_job
from vertical_parts import __name__ as vertical_module

Command = Callable[..., tuple[int, str, str]]
Script = Callable[..., tuple[object, str, str]]
#: A protection with settings that no default has, further keys, and the laws of its releases.
PROTECTIONS: dict[str, tuple[dict[str, Any], dict[str, Any], set[str]]] = {
    "not_encrypt": ({}, {}, {"none"}),
    "pw_encrypt": ({}, {}, {"none"}),
    "dp_encrypt": ({"dp_encrypt": {"dp_eps": 1.7, "dp_delta": 1e-4}}, {}, {"gaussian"}),
    "signds": ({"signds": {"sign_eps": 1.3}}, {}, {"stated"}),
    "rr": ({"unary": {"eps": 0.7, "cells": 3}}, {}, {"table"}),
    "oue": ({"unary": {"eps": 0.9, "cells": 5}}, {}, {"table"}),
    "distributed_dp": (
        {"distributed_dp": {"clip": 0.7}},
        {"clients": {"number": 23, "fraction": 0.6, "sampling": "poisson"}},
        {"sampled gaussian"},
    ),
    "central_gaussian": ({"central_gaussian": {"noise_multiplier": 1.4}}, {}, {"gaussian"}),
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run of every protection, and one of two parties."""
    base = tmp_path_factory.mktemp("made")
    found = {}
    for name, (settings, more, _) in PROTECTIONS.items():
        clients = {"number": 13, "fraction": 1.0}
        blocks = {"model": "parts:few", "record": {"page": False}, "clients": clients, **more}
        job = small_job(protection={"name": name, **settings}, **blocks)
        run = fedveil.simulate(job, base / name)
        found[name] = run.folder
    block = {"name": "small", "epochs": 3, "batch_size": 9, "task": f"{vertical_module}:bottoms",
             "privacy": {"embedding_dp": {"eps": 1.1}}}  # fmt: skip
    found["vertical"] = train(VerticalJob.model_validate(block), base / "vertical").folder
    return found


@pytest.fixture(scope="module")
def records(runs: dict[str, Path]) -> dict[str, Path]:
    """The record of every run's dossier."""
    for folder in runs.values():
        list(Dossier.of(folder).write(folder / "dossier"))
    return {name: folder / "dossier" / RECORD for name, folder in runs.items()}


@pytest.fixture
def copy(runs: dict[str, Path], tmp_path: Path) -> Path:
    """A copy of a run, for a test to damage."""
    return Path(shutil.copytree(runs["dp_encrypt"], tmp_path / "copy"))


def recompute(*records: Path) -> subprocess.CompletedProcess[str]:
    """Run the script of the first record in a process that cannot import fedveil."""
    script = records[0].with_name(SCRIPT)
    code = (
        "import runpy, sys; sys.modules['fedveil'] = None; sys.argv = sys.argv[1:]; "
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    bare = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, "-c", code, script, *records], capture_output=True, text=True, env=bare
    )


def text_of(dossier: Dossier, key: str) -> str:
    (found,) = (s.text for s in dossier.statements if s.key == key)
    return found


def test_the_script_recomputes_every_ledger(records: dict[str, Path]) -> None:
    done = recompute(*records.values())
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    accounts = [a for r in records.values() for a in json.loads(r.read_text())["accounts"]]
    assert len(lines) == len(accounts) >= len(records)
    assert [line for line in lines if not line.endswith(": agrees")] == []
    for name, (_, _, laws) in PROTECTIONS.items():
        (account,) = json.loads(records[name].read_text())["accounts"]
        assert {release["law"] for release in account["releases"]} == laws, name
        last = json.loads((records[name].parents[1] / "metrics.jsonl").read_text().split("\n")[-2])
        assert account["epsilon"] == last["epsilon_run_every_round"]


@pytest.fixture
def script(capsys: pytest.CaptureFixture[str]) -> Script:
    """Run a script with its arguments in this process, where it cannot import fedveil then.

    Returns its exit code, and what it printed where.
    """

    def run(*arguments: str | Path) -> tuple[object, str, str]:
        with pytest.MonkeyPatch.context() as patch:
            for name in [name for name in sys.modules if name.partition(".")[0] == "fedveil"]:
                patch.delitem(sys.modules, name)
            patch.setitem(sys.modules, "fedveil", None)
            patch.setattr(sys, "argv", list(map(str, arguments)))
            with pytest.raises(SystemExit) as end:
                runpy.run_path(sys.argv[0], run_name="__main__")
        return end.value.code, *capsys.readouterr()

    return run


@pytest.mark.parametrize("name", ["signds", "oue", "distributed_dp", "vertical"])
def test_the_script_refutes_a_record_that_states_less(
    name: str, records: dict[str, Path], tmp_path: Path, script: Script
) -> None:
    record = json.loads(records[name].read_text())
    for account in record["accounts"]:
        account["epsilon"] *= 0.98
    edited = tmp_path / RECORD
    edited.write_text(json.dumps(record))
    shutil.copy(records[name].with_name(SCRIPT), tmp_path)
    code, out, _ = script(tmp_path / SCRIPT, edited)
    assert code == 1
    assert out.count("STATES LESS") == len(record["accounts"]) >= 1


def test_the_script_names_a_record_that_it_cannot_read(
    records: dict[str, Path], tmp_path: Path, script: Script
) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text('{"accounts": ')
    code, _, err = script(records["rr"].with_name(SCRIPT), records["rr"], broken)
    assert code == 2
    assert err.startswith(f"{broken} cannot be read: ")


def test_every_statement_is_made_or_says_why_not(runs: dict[str, Path]) -> None:
    for name, folder in runs.items():
        dossier = Dossier.of(folder)
        assert all(
            bool(s.lines) != bool(s.text.startswith("Not stated: ")) for s in dossier.statements
        )
        assert all(s.missing for s in dossier.statements if not s.lines), name
        (fact,) = (part for part in dossier.page().lead if isinstance(part, Fact))
        worst = max(dossier.evidence.accounts, key=lambda account: account.epsilon)
        assert fact.value == str(Figure(worst.epsilon, worst.delta))
        html = dossier.page().html()
        assert all(escape(s.title) in html for s in dossier.statements)
        assert all(digest in html for digest in dossier.evidence.files.values())
        assert "certified" not in html.lower()
        assert "certif" not in json.dumps([s.lines for s in dossier.statements]).lower()


def test_the_answers_are_those_of_the_run(runs: dict[str, Path]) -> None:
    trusted, local = Dossier.of(runs["central_gaussian"]), Dossier.of(runs["rr"])
    assert "The server is trusted." in text_of(trusted, "trust")
    assert "The server is not trusted" in text_of(local, "trust")
    assert "noise_multiplier 1.4" in text_of(trusted, "mechanism")
    assert "adaptive false" in text_of(local, "mechanism")
    assert "replaced by any other" in text_of(local, "unit")
    assert "Anyone with the job can remove the noise" in text_of(local, "randomness")
    assert text_of(local, "audit").startswith("Not stated: the run was not audited")
    split = Dossier.of(runs["vertical"])
    assert "canaries" not in text_of(split, "audit")
    assert "signds" not in text_of(split, "side_channels")
    assert "noise of returned gradients is continuous" in text_of(split, "side_channels")
    assert "follows from the perturbed report" in text_of(local, "side_channels")
    none = Dossier.of(runs["not_encrypt"])
    assert text_of(none, "trust").startswith("Not stated: ")
    assert "states no finite epsilon here" in text_of(none, "trust")
    assert text_of(none, "epsilon").startswith("epsilon inf ")
    assert "is not protected, so no epsilon is finite." in text_of(none, "composition")
    assert "the privacy curves are composed." in text_of(local, "composition")
    assert "nothing is promised" in text_of(none, "not_covered")
    split = Dossier.of(runs["vertical"])
    assert "bank: an example's own reports in the run" in text_of(split, "epsilon")
    assert "No finite epsilon covers an example's influence" in text_of(split, "not_covered")
    assert "Anyone with the job can remove the noise" in text_of(split, "randomness")


def test_the_card_of_a_finite_epsilon_states_its_conditions(runs: dict[str, Path]) -> None:
    cards = {
        name: fact.text
        for name in ("central_gaussian", "rr", "not_encrypt", "vertical")
        for fact in Dossier.of(runs[name]).page().lead
        if isinstance(fact, Fact)
    }
    seeded = "The bound assumes randomness from the operating system, as in a deployment. This run "
    assert ", against everyone except the server. The bound" in cards["central_gaussian"]
    assert ", against everyone, including the server. The bound" in cards["rr"]
    assert cards["not_encrypt"] == "For a client in every round."
    for name in ("central_gaussian", "rr", "vertical"):
        assert seeded in cards[name]
    vertical = Dossier.of(runs["vertical"]).evidence
    name, party = next(iter(vertical.parties.items()))
    (_, fact) = Dossier(replace(vertical, parties={name: party}), []).page().lead
    assert isinstance(fact, Fact)
    assert not fact.value.startswith("inf")
    assert seeded not in fact.text  # one party's record: the others were on other machines
    deployed = Dossier.of(runs["rr"])
    for record in deployed.evidence.run.records:
        record["randomness"] = "system randomness"
    deployed.evidence.run.__dict__.pop("last", None)
    (_, fact) = deployed.page().lead
    assert isinstance(fact, Fact)
    assert fact.text.endswith("against everyone, including the server.")


def test_an_audit_is_told_with_its_assumption_and_limit(copy: Path) -> None:
    bound = Measured("epsilon at least", 0.31, cases=77, unseen=1.25)
    folder = RunFolder.reopen(copy)
    add_finding(folder, Finding("audit", "quick", "dp_encrypt", [bound], epsilon=1.7, delta=1e-4,
                                saw="the sums of all rounds"))  # fmt: skip
    folder.close()
    said = text_of(Dossier.of(copy), "audit")
    assert "epsilon at least: 0.31 of 1.7 claimed, from 77 cases" in said
    assert "the attacker saw the sums of all rounds" in said
    assert "true epsilons up to 1.25 would probably be missed" in said


def test_a_record_has_the_registrys_shape(records: dict[str, Path]) -> None:
    record = json.loads(records["central_gaussian"].read_text())
    assert [*record["deployment"]] == [
        "product", "dp_flavor", "privacy_loss", "model", "accounting", "implementation", "resources"
    ]  # fmt: skip
    assert record["deployment"]["model"]["model_name"] == "Central"
    parameters = record["deployment"]["privacy_loss"]["privacy_parameters"]
    assert parameters == {key: record["accounts"][0][key] for key in ("epsilon", "delta")}
    (release,) = record["accounts"][0]["releases"]
    assert release["ratio"] == pytest.approx(1.4, rel=1e-9)
    sampled = json.loads(records["distributed_dp"].read_text())["accounts"][0]["releases"]
    assert {(release["rate"], release["count"]) for release in sampled} == {(0.6, 3)}
    unprotected = json.loads(records["not_encrypt"].read_text())["deployment"]
    assert unprotected["dp_flavor"]["name"] == "None"


def test_an_edited_epsilon_is_refused(copy: Path) -> None:
    edit_last(copy, epsilon_run_every_round=0.5)
    with pytest.raises(RunFolderError, match=r"its checkpoint (says|vouches for)"):
        Dossier.of(copy)


def test_an_edited_record_with_a_new_digest_is_refused(copy: Path) -> None:
    for part, value, said in (
        ("delta", 1e-9, r"is \d\S* at delta 1e-09"), ("epsilon", 0.5, r"is 0\.5 at delta"),
    ):  # fmt: skip
        edit_all(copy, **{f"{part}_run_every_round": value})
        with pytest.raises(RunFolderError, match=f"epsilon_run_every_round {said}"):
            Dossier.of(copy)


def test_an_edited_job_is_refused(copy: Path) -> None:
    job = copy / "job.yaml"
    job.write_text(job.read_text().replace("dp_eps: 1.7", "dp_eps: 0.2"))
    with pytest.raises(RunFolderError, match="was changed after the run began"):
        Dossier.of(copy)


@pytest.mark.parametrize(("edit", "said"), [
    (lambda log: log.write_text(log.read_text().replace("finished", "went on")), "it was edited"),
    (lambda log: log.write_text(log.read_text().partition("\n")[0] + "\n"), "missing at its end"),
    (lambda log: log.with_name("events.chain").unlink(), "it is not in events.chain"),
])  # fmt: skip
def test_an_edited_event_log_is_refused(
    copy: Path, edit: Callable[[Path], object], said: str
) -> None:
    """A dossier says how the run ended, which it reads from this log."""
    assert "finished" in (copy / "events.log").read_text()
    edit(copy / "events.log")
    with pytest.raises(RunFolderError, match=said):
        Dossier.of(copy)


def test_a_damaged_checkpoint_is_refused(copy: Path) -> None:
    path = copy / "checkpoint" / "latest"
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 4
    path.write_bytes(raw)
    with pytest.raises(RunFolderError, match="damaged"):
        Dossier.of(copy)


def test_a_party_whose_account_does_not_follow_from_its_job_is_refused(
    runs: dict[str, Path], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(runs["vertical"], tmp_path / "split"))
    path = next(folder.glob("*/accounts.jsonl"))
    *lines, last = path.read_text().splitlines()
    edited = {**json.loads(last), "epsilon": 0.4}
    path.write_text("\n".join([*lines, json.dumps(edited)]) + "\n")
    for line in read_accounts(path.parent):  # the log says the same
        append_event(path.with_name("events.log"), str(line))
    with pytest.raises(RunFolderError, match=r"not follow from the job: epsilon 0\.4"):
        Dossier.of(folder)


def test_the_command_writes_three_files(command: Command, copy: Path) -> None:
    code, out, err = command("dossier", copy, "--out", "told")
    assert (code, err) == (Exit.DONE, "")
    assert out.splitlines()[:3] == [f"wrote told/{name}" for name in (PAGE, RECORD, SCRIPT)]
    code, out, err = command("dossier", copy.parent / "nowhere")
    assert (code, out) == (Exit.FAILED, "")
    assert "is not a run's folder: there is no such folder" in err


def test_the_example_of_the_page_is_true(command: Command, script: Script, tmp_path: Path) -> None:
    text = (DOCS / "dossier.md").read_text("utf-8")
    page = list(blocks(text, "dossier"))
    (typed,) = (b.text for b in page if b.language == "sh")
    (shown,) = (b.text for b in page if b.language == "text")
    (recomputing,) = re.findall(r"`python (\S+ \S+)` prints", text)
    for words in commands(typed):
        quick = ["--set", "simulation.workers=0", "--set", "record.page=false"]
        quick += ["--set", "clients.number=60"]
        code, out, err = command(*words[1:], *quick * (words[1] == "run"))
        assert code == 0, err
    assert f"`{out.splitlines()[-1]}`" in " ".join(text.split())
    code, out, _ = script(*recomputing.split())
    assert (code, out) == (0, shown)


def test_an_example_costs_every_bit_of_every_part_each_time(runs: dict[str, Path]) -> None:
    """Parts of 8 and 4 bits, sent three times at half of eps a bit."""
    lines = {
        what: Line(1.0, 0.0, what)
        for what in (
            "an example's 8 bits of left, sent once",
            "an example's 4 bits of right, sent once",
        )
    }
    run = read_run(runs["vertical"])

    def spent(lines: dict[str, Line], **block: object) -> float:
        job = {**run.job, "privacy": {"embedding_dp": {"eps": 1.5, **block}}}
        charges = _charges_of_example(lines, 3, replace(run, job=job))
        return sum(loss.epsilon * count for loss, count in charges)

    assert spent(lines) == pytest.approx(12 * 3 * 0.75)
    assert spent(lines, reuse=True) == pytest.approx(12 * 0.75)
    bare = "an example's values of left, sent unprotected"
    assert spent({**lines, bare: Line(math.inf, 0.0, bare)}) == math.inf


def test_a_part_with_its_own_protection_costs_its_own_epsilon(runs: dict[str, Path]) -> None:
    run = read_run(runs["vertical"])
    dp = {"eps": 1.0, "reuse": True}
    parts = {"left": {"privacy": {"embedding_dp": dp}}, "right": {"privacy": None}}
    job = run.job | {"privacy": {"embedding_dp": dp | {"eps": 4.0, "reuse": False}}, "parts": parts}
    lines = {f"an example's 5 bits of {part}, sent once": Line(1.0, 0.0, "") for part in parts}
    charges = _charges_of_example(lines, 3, replace(run, job=job))
    spent = sum(loss.epsilon * count for loss, count in charges)
    assert spent == pytest.approx(5 * 0.5 + 3 * 5 * 2.0)


def test_releases_and_their_composition_are_counted() -> None:
    gaussian = PrivacyLoss.of_release(Gaussian(3.0078), "update")
    sampled = {"law": "sampled gaussian", "multiplier": 1.2399, "rate": 0.1}
    (composed,) = releases_of([(gaussian, 1438)], [], adaptive=False)
    (added,) = releases_of([(replace(gaussian, epsilon=0.5), 2)], [], adaptive=True)
    (bare,) = releases_of([(PrivacyLoss(math.inf, per="bit"), 1)], [], adaptive=True)
    assert [one["law"] for one in (composed, added, bare)] == ["gaussian", "stated", "none"]
    accounts = [
        Account("lead", 1.0, 1e-5, False, [composed, {**composed, **sampled}]),
        Account("bank", 2.0, 1e-5, True, [added]),
        Account("shop", math.inf, 0.0, True, [added, bare]),
    ]
    assert _composition(accounts) == [
        "For lead: 1,438 × Gaussian noise of 3 times the sensitivity, for each update, 1,438 × a "
        "secret sample with Gaussian noise of 1.23 times the clipping norm, for each update; the "
        "privacy curves are composed.",
        "For bank: 2 × a mechanism with a stated epsilon, for each update; epsilons add up, since "
        "losses may depend on earlier rounds.",
        "For shop: 2 × a mechanism with a stated epsilon, for each update, 1 × what is sent "
        "unprotected, for each bit; one of them is not protected, so no epsilon is finite.",
    ]
    assert worst(accounts) is accounts[2]
    assert worst(accounts[:2]) is accounts[1]


@pytest.mark.parametrize(
    ("unseen", "said"),
    [(math.inf, "every true epsilon would"), (math.nan, "nobody worked out"),
     (1.25, "true epsilons up to 1.25 would")],
)  # fmt: skip
def test_a_bound_has_its_own_claim_cases_and_limit(unseen: float, said: str) -> None:
    other = Measured("right guesses", 0.7, 0.6, 0.8, 0.5, 1200)
    bound = Measured("epsilon at least", 0.31, cases=77, epsilon=0.9, unseen=unseen)
    (line,) = _bounds([Finding("audit", "quick", "rr", [other, bound], epsilon=1.7)]).lines
    assert "0.31 of 0.9 claimed, from 77 cases" in line
    assert said in line
    unknown = replace(bound, value=math.nan)
    (line,) = _bounds([Finding("audit", "quick", "rr", [unknown], epsilon=1.7)]).lines
    assert "unknown of 0.9 claimed" in line


def test_parties_that_ended_differently_are_named_in_order(runs: dict[str, Path]) -> None:
    evidence = Dossier.of(runs["vertical"]).evidence
    ends = ("finished after step 3", "ended after step 2: a limit", "finished after step 3", "no")
    parties = {str(n): replace(evidence.run, events=[f"0 {end}"]) for n, end in enumerate(ends)}
    told = _integrity(replace(evidence, parties=parties))[0]
    assert told == f"The run's end: {ends[0]}; {ends[1]}; not ended."


def test_the_registry_names_unit_and_flavour(runs: dict[str, Path]) -> None:
    for name, unit, flavour in (
        ("dp_encrypt", "User-level", "Approximate DP"), ("vertical", "Example-level", None),
    ):  # fmt: skip
        dossier = Dossier.of(runs[name])
        deployment = registry_record(dossier.evidence, dossier.statements)["deployment"]
        assert deployment["privacy_loss"]["privacy_unit"] == unit
        assert flavour in (None, deployment["dp_flavor"]["name"])
    pure = replace(dossier.evidence, accounts=[Account("a", 1.0, 0.0, False, [])])
    told = registry_record(pure, dossier.statements)["deployment"]
    assert told["dp_flavor"]["name"] == "Pure DP"
    assert told["model"]["model_name"] == "Local"


@pytest.mark.parametrize(("weakest", "word"), [(math.inf, "none"), (6.0, "weak")])
def test_the_meaning_is_that_of_the_weakest_guarantee(weakest: float, word: str) -> None:
    """It stands neither first nor last, and the others have other words."""
    accounts = [
        Account(name, epsilon, 1e-5, False, [])
        for name, epsilon in (("lead", 0.1), ("bank", weakest), ("shop", 2.5))
    ]
    evidence: Any = SimpleNamespace(run=SimpleNamespace(job={}), accounts=accounts, parties={})
    meaning = next(each for each in _vertical(evidence) if each.key == "meaning")
    assert meaning.text.endswith(f" the guarantee is {word}.")


def test_a_label_has_an_account_of_its_own(runs: dict[str, Path]) -> None:
    run = read_run(runs["vertical"])
    lines = [Line(2.5, 0.0, "an example's label, in all epochs"), Line(0.5, 0.0, "a bit of it")]
    privacy = {**run.job["privacy"], "label_dp": {"eps": 2.5}}
    run = replace(run, job={**run.job, "privacy": privacy})
    (account,) = _of_party("lead", replace(run, accounts=lines), run)
    assert account.of == "lead: an example's label, in all epochs"
    (release,) = account.releases
    assert (account.epsilon, release["epsilon"], release["per"]) == (2.5, 2.5, "example")


@pytest.mark.parametrize(("settings", "epsilon"), [(None, 0.0), ({"eps": 2.0}, 1.0)])
def test_a_label_costs_what_the_job_says(
    runs: dict[str, Path], settings: object, epsilon: float
) -> None:
    run = read_run(runs["vertical"])
    privacy = {**run.job["privacy"], "label_dp": settings}
    run = replace(run, job={**run.job, "privacy": privacy})
    party = replace(run, accounts=[Line(epsilon, 0.0, LABEL)])
    with pytest.raises(RunFolderError, match=f"not follow from the job: epsilon {epsilon}"):
        list(_of_party("lead", party, run))


@pytest.mark.parametrize(("times", "trained", "label"), [
    (1, 1, True), (3, 3, True), (3, 1, False), (3, 2, True), (3, 0, False),
])  # fmt: skip
def test_the_costliest_example_may_have_a_label(
    times: int, trained: int, label: bool, tmp_path: Path
) -> None:
    """A leader may send bits, too. Held-out examples have no label, and may be sent more often."""
    one = EmbeddingDP(1.0).loss.charges
    own = PrivacyLoss(5.0, per="example")
    costs = [cost([*one(8 * trained), (own, 1)] if trained else [(own, 1)], 1e-5),
             cost(one(8 * times), 1e-5)]  # fmt: skip
    assert (costs[0] > costs[1]) == label
    (tmp_path / "sent.csv").write_text(
        f'subset,id,times\r\ntrain,0,0\r\ntrain,"a,\n1",{trained}\r\ntest,0,{times}\r\n'
    )
    often = "once" if times == 1 else f"{times} times"
    lines = [
        Line(8.0, 0.0, "an example's 8 bits of a, sent once"), Line(5.0, 0.0, LABEL),
        Line(max(costs), 1e-5, f"{OWN_REPORTS} in the run, sent {often}"),
    ]  # fmt: skip
    privacy = {"embedding_dp": {"eps": 1.0}, "label_dp": {"eps": 5.0}}
    run: Any = SimpleNamespace(job={"parts": {}, "privacy": privacy})
    party: Any = SimpleNamespace(accounts=lines, folder=tmp_path)
    *_, account = _of_party("lead", party, run)
    assert account.epsilon == max(costs)
    assert sum(release["per"] == "example" for release in account.releases) == label
    for less in {max(costs) * 0.999, min(costs)} - {max(costs)}:
        party.accounts = [*lines[:2], lines[2]._replace(epsilon=less)]
        with pytest.raises(RunFolderError, match="does not follow from the job"):
            list(_of_party("lead", party, run))
    (tmp_path / "sent.csv").unlink()
    with pytest.raises(RunFolderError, match="cannot be read"):
        list(_of_party("lead", party, run))


def test_every_file_of_every_party_has_its_digest(runs: dict[str, Path]) -> None:
    folder = runs["vertical"]
    found = Dossier.of(folder).evidence.files
    assert {"job.yaml", "lead/metrics.jsonl", "bank/accounts.jsonl", "shop/events.log",
            "bank/model.safetensors", "shop/sent.csv"} <= set(found)  # fmt: skip
    for name, digest in found.items():
        assert digest == hashlib.sha256((folder / name).read_bytes()).hexdigest(), name


def test_a_leader_by_itself_has_a_dossier_without_an_account(
    runs: dict[str, Path], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(runs["vertical"], tmp_path / "alone"))
    for party in ("bank", "shop"):
        shutil.rmtree(folder / party)
    dossier = Dossier.of(folder)
    elsewhere = "Not stated: this party has no account. Each other party has its own, on its own"
    for key in ("epsilon", "meaning"):
        assert text_of(dossier, key).startswith(elsewhere)
    fact = dossier._fact()
    assert fact.value == "not known here"
    assert fact.text.startswith("Each party that sends activations states the epsilon in its own")


def test_what_a_party_sends_unprotected_is_not_covered(runs: dict[str, Path]) -> None:
    evidence = Dossier.of(runs["vertical"]).evidence
    bare = "an example's values of left, sent unprotected"
    lines = [Line(1.0, 0.0, "a bit of right"), Line(math.inf, 0.0, bare)]
    party = replace(evidence.run, accounts=lines)
    for randomness, seeded in (("seeded", True), ("secure", False)):
        job = {**evidence.run.job, "privacy": {**evidence.run.job["privacy"]}}
        job["privacy"]["randomness"] = randomness
        run = replace(evidence.run, job=job)
        parties = {"b": party, "c": evidence.run}
        told = {s.key: s.text for s in statements(replace(evidence, run=run, parties=parties))}
        assert told["not_covered"].startswith(f"No finite epsilon covers {bare}. The gradients")
        assert ("Anyone with the job can remove the noise" in told["randomness"]) == seeded


def test_a_failure_that_other_parties_were_told_is_not_covered() -> None:
    """A peer that can make a part fail for one example learns more than any account states."""
    party = SimpleNamespace(accounts=[Line(1.0, 0.0, "a bit"), Line(math.inf, 0.0, FAILURE)])
    run = SimpleNamespace(job={"privacy": {"randomness": "secure"}})
    evidence: Any = SimpleNamespace(run=run, accounts=[], parties={"bank": party})
    told = next(each for each in _vertical(evidence) if each.key == "not_covered")
    assert told.text.startswith(f"No finite epsilon covers {FAILURE}. The gradients")


def test_an_early_end_is_covered_only_by_the_cost_of_all_rounds() -> None:
    """The stated epsilon is that of the rounds until the end, which the results have chosen."""
    last = {"in_clear": [], "epsilon_run_every_round": 1.0, "delta_run_every_round": 1e-5}
    whole = Line(2.5, 1e-5, "all 7 rounds: holds whenever stopping ends the run")
    other = Line(0.5, 1e-5, "a client added or removed")
    for accounts in ([other, whole], [other]):
        evidence: Any = SimpleNamespace(run=SimpleNamespace(last=last, accounts=accounts))
        told = " ".join(_open(evidence))
        assert (f"It is covered by {whole}." in told) == (whole in accounts)
        assert str(other) not in told


def test_no_report_is_said_to_have_a_fixed_length_that_varies() -> None:
    low, high = (encode_indices([*range(n, n + 9)], 61_706) for n in (0, 61_697))
    assert len(low) != len(high)
    told = " ".join(_channels(()))
    assert "or, under signds, follows from the perturbed report" in told
    assert "before it is sent, except under dp_encrypt with noise: continuous." in told


def test_each_account_is_listed_with_its_own_laws_and_settings() -> None:
    releases = [{"law": law} for law in ("gaussian", "table", "gaussian")]
    accounts = [
        Account("lead", 1.5, 1e-5, False, releases[:1]),
        Account("bank", 2.5, 0.0, False, releases),
        Account("shop", 0.0, 0.0, False, []),
    ]
    (table,) = (part for part in recompute_parts(accounts) if isinstance(part, Table))
    assert [list(row) for row in table.rows] == [
        ["lead", "1.5", "1e-05", "gaussian"], ["bank", "2.5", "0", "gaussian, table"],
        ["shop", "0", "0", "none"],
    ]  # fmt: skip
    own = {"name": "m:Own", "own": {"width": 3}, "dp_encrypt": {"dp_eps": 1.5}, "unary": {"eps": 2}}
    assert _settings(own) == {"width": 3}
    assert _settings({**own, "name": "dp_encrypt"}) == {"dp_eps": 1.5}
    assert _settings({**own, "name": "oue"}) == {"eps": 2}
