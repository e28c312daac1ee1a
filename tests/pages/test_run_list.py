"""The list of runs: what each run's records say, in any order, past every damaged folder."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path

import pytest
from test_every_figure import federated_records, written

import fedveil
from browser import needs_browser, show
from fedveil.cli.exits import Exit
from fedveil.errors import RunFolderError
from fedveil.pages.read_run import read_run
from fedveil.pages.run_list import DamagedRun, ListedRun, RunList, ordered, run_list
from fedveil.pages.run_list_page import as_data, run_list_page, runs_table
from fedveil.pages.runs_page import runs_page
from fedveil.privacy.finding import Finding, Measured
from fedveil.privacy.guarantee_strength import Figure
from fedveil.privacy.loss import PrivacyLoss
from fedveil.record.account_lines import influenced_part
from fedveil.record.finding_lines import add_finding
from fedveil.record.recorder import PRIVACY
from fedveil.record.run_folder import RunFolder
from fedveil.record.started_rounds import Attempts
from fedveil.run_display import of_run
from fedveil.vertical import VerticalJob, train
from page_parts import EVIL, edit_all, edit_last, new_log, small_job, vouch_again

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs that differ in every figure, one of them among a comparison's, and seven damaged."""
    folder = tmp_path_factory.mktemp("list") / "runs"
    first = fedveil.simulate(small_job(rounds=2), folder / "c-first").folder
    began = (
        "2026-03-0{0}T10:20:30 began: fedveil\n"
        "2026-03-0{0}T11:00:00 finished after round 2: the last\n"
    )
    figures = {
        "c-first": (2, 0.8125, 7.25, 3723.0),
        "a-second": (4, 0.9375, 3.5, 41.5),
        "compared/runs/b-third": (3, 0.6875, 1.25, 620.0),
    }
    for name, (day, accuracy, epsilon, seconds) in figures.items():
        run = folder / name
        if run != first:
            shutil.copytree(first, run)
        edit_all(
            run, accuracy=accuracy, epsilon_run_every_round=epsilon, delta_run_every_round=1e-6,
        )  # fmt: skip
        records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        halves = (record | {"seconds_round": seconds / 2} for record in records)
        (run / "metrics.jsonl").write_text("".join(json.dumps(half) + "\n" for half in halves))
        vouch_again(run)
        new_log(run / "events.log", began.format(day))
    (folder / "b-attack").mkdir()
    shutil.copy(first / "job.yaml", folder / "b-attack")
    opened = RunFolder.reopen(folder / "b-attack")
    add_finding(opened, Finding("x", "quick", "not_encrypt", [Measured("mse", 0.5)]))
    opened.close()
    for name in ("no job", "cut", "no text", "no number", "no epsilon", "edited", "shortened"):
        shutil.copytree(first, folder / name)
    edit_all(folder / "no number", accuracy="high")
    edit_all(folder / "no epsilon", epsilon_run_every_round="small")
    edit_last(folder / "edited", epsilon_run_every_round=0.25)
    shortened = folder / "shortened" / "metrics.jsonl"
    shortened.write_text(shortened.read_text().splitlines(keepends=True)[0])
    (folder / "no job" / "job.yaml").unlink()
    with (folder / "cut" / "metrics.jsonl").open("a") as records:
        records.write('{"round": 3}\n')
    (folder / "no text" / "events.log").write_bytes(b"\xff\xfe began\n")
    (folder / "empty").mkdir()
    (folder / "linked").symlink_to(first)
    return folder


def lines(found: RunList) -> list[list[str]]:
    return [list(row) for row in runs_table(found).rows]


def test_each_line_is_what_the_run_s_records_say(made: Path) -> None:
    assert lines(run_list(made, "name")) == [
        ["a-second", "not_encrypt", "93.8%", "3.5 (weak)", "2026-03-04 10:20", "41.5 s",
         "finished"],
        ["b-attack", "not_encrypt", "-", "-", "-", "-", "attack"],
        ["c-first", "not_encrypt", "81.2%", "7.25 (next to none)", "2026-03-02 10:20",
         "1 h 2 min", "finished"],
        ["compared/runs/b-third", "not_encrypt", "68.8%", "1.25 (meaningful)",
         "2026-03-03 10:20", "10 min 20 s", "finished"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("order", "names"),
    [
        ("name", ["a-second", "b-attack", "c-first", "b-third"]),
        ("when", ["a-second", "b-third", "c-first", "b-attack"]),
        ("accuracy", ["a-second", "c-first", "b-third", "b-attack"]),
        ("epsilon", ["b-third", "a-second", "c-first", "b-attack"]),
    ],
)
def test_it_is_in_the_order_that_was_asked_for(
    order: str, names: list[str], made: Path, command: Command
) -> None:
    code, out, err = command("runs", made, "--sort", order, "--json")
    assert code == Exit.DONE, err
    assert [Path(run["name"]).name for run in json.loads(out)["runs"]] == names


def test_only_accuracies_are_in_the_order_of_accuracy() -> None:
    runs = [
        ListedRun(Path(name), name, "rr", "finished", metric, quality)
        for name, metric, quality in (
            ("a", "rmse", 31.5), ("b", "accuracy", 0.25), ("c", None, None),
            ("d", "accuracy", 0.75), ("e", "accuracy", math.nan),
        )
    ]  # fmt: skip
    assert [run.name for run in ordered(runs[::-1], "accuracy")] == ["d", "b", "a", "c", "e"]


def test_each_fact_of_a_run_is_under_its_own_key() -> None:
    began = datetime(2026, 3, 4, 10, 20, 30, tzinfo=UTC)
    run = ListedRun(
        Path("runs/a"), "a", "rr", "finished", "rmse", 31.5, Figure(2.5, 1e-6), began, 41.25,
        "client",
    )  # fmt: skip
    assert as_data(run) == {
        "folder": Path("runs/a"), "name": "a", "protection": "rr", "metric": "rmse",
        "quality": 31.5, "epsilon": 2.5, "delta": 1e-6, "promise": "meaningful",
        "began": "2026-03-04T10:20:30+00:00", "seconds": 41.25, "unit": "client",
        "state": "finished", "this_party_only": False,
    }  # fmt: skip
    unknown = as_data(ListedRun(Path("b"), "b", "rr", "attack"))
    assert {key for key, value in unknown.items() if value is None} == {
        "metric", "quality", "epsilon", "delta", "promise", "began", "seconds",
        "unit",
    }  # fmt: skip


def test_damaged_folders_are_on_the_page_without_runs_beside_them(tmp_path: Path) -> None:
    page = run_list_page(
        RunList(tmp_path, [], [DamagedRun(tmp_path, "cut", "line 3")]), tmp_path / "page.html"
    )
    assert [section.title for section in page.sections] == ["Runs", "Folders that cannot be read"]
    assert page.sections[0].parts == ["There are no runs here."]


def test_a_run_is_one_line_in_a_pipe(
    made: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    _, out, _ = command("runs", made)
    (line,) = [line for line in out.splitlines() if line.startswith("compared/runs/b-third ")]
    for cell in ("not_encrypt", "68.8%", "1.25 (", "2026-03-03 10:20"):
        assert cell in line
    monkeypatch.setenv("COLUMNS", "80")
    heading, *rest = command("runs", made)[1].splitlines()
    assert heading.split() == ["run", "protection", "accuracy", "epsilon", "when", "state"]
    assert any(line.startswith("compared/runs/b-third  not_encrypt") for line in rest)
    monkeypatch.setenv("COLUMNS", "60")
    assert "compared/runs/b-third " not in command("runs", made)[1]


def test_a_damaged_folder_is_a_line_and_ends_nothing(made: Path, command: Command) -> None:
    code, out, err = command("runs", made)
    assert code == Exit.DONE, err
    assert "93.8%" in out
    damaged = {
        line.partition(" cannot be read: ")[::2] for line in out.splitlines() if "cannot" in line
    }
    assert {name for name, _ in damaged} == {
        "no job", "cut", "no text", "no number", "no epsilon", "edited", "shortened",
    }  # fmt: skip
    reasons = dict(damaged)
    assert reasons["no job"] == f"{made / 'no job'} is not a run's folder: it has no job.yaml"
    assert "line 3: invalid record" in reasons["cut"]
    assert "no text" in reasons["no text"]
    assert "'high' is no number" in reasons["no number"]
    assert "small" in reasons["no epsilon"]
    is_damaged = "metrics.jsonl is damaged: it is"
    assert f"{is_damaged} not what its checkpoint vouches for" in reasons["edited"]
    assert f"{is_damaged} shorter than its checkpoint says" in reasons["shortened"]
    told = json.loads(command("runs", made, "--json")[1])
    assert {Path(one["folder"]).name: one["reason"] for one in told["damaged"]} == reasons
    first = next(run for run in told["runs"] if run["name"] == "c-first")
    assert (first["quality"], first["epsilon"], first["delta"], first["promise"]) == (
        0.8125, 7.25, 1e-6, "next to none",
    )  # fmt: skip


def test_only_records_are_read(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model may be huge, and from anybody."""
    before, opened = os.open, list[str]()
    monkeypatch.setattr(
        os, "open", lambda path, *rest: opened.append(str(path)) or before(path, *rest)
    )
    run_list(made)
    names = {Path(path).name for path in opened if Path(path).is_relative_to(made)}
    assert names <= {
        "job.yaml",
        "metrics.jsonl",
        "events.log",
        "events.chain",
        "attacks.jsonl",
        "accounts.jsonl",
        ".lock",
        "latest",
    }
    assert "metrics.jsonl" in names


def test_a_vertical_run_and_one_that_never_ended(tmp_path: Path) -> None:
    block = {
        "name": "small", "epochs": 1, "batch_size": 9, "task": "vertical_parts:bottoms",
        "privacy": {"embedding_dp": {"eps": 4.0}},
    }  # fmt: skip
    run = train(VerticalJob.model_validate(block), tmp_path / "parties")
    shutil.copytree(run.folder, tmp_path / "killed")
    for events in (tmp_path / "killed").glob("*/events.log"):
        new_log(events, "2026-03-04T10:20:30 began: fedveil\n")
    listed = run_list(tmp_path, "name")
    assert listed.damaged == []  # a party's folder is no run of its own
    whole, killed = (line for line in listed.runs[::-1])
    lines = (line for of in run.figures.values() for line in of)
    worst = max(
        (line for line in lines if not influenced_part(line.what)), key=attrgetter("epsilon")
    )
    assert (whole.name, whole.state, whole.protection) == ("parties", "finished", "embedding_dp")
    assert (whole.epsilon, whole.quality) == (worst.figure, run.metrics[-1]["test_accuracy"])
    assert (killed.name, killed.state, killed.seconds) == ("killed", "interrupted", 0.0)
    assert whole.seconds is not None


def test_what_holds_no_runs_is_one_sentence(command: Command, tmp_path: Path) -> None:
    code, out, err = command("runs")
    assert (code, out) == (Exit.FAILED, "")
    assert err == (
        "error: runs is not a folder of runs: there is no such folder. Name the folder that holds "
        "the runs: `fedveil runs FOLDER`\n"
    )
    (tmp_path / "runs").mkdir()
    code, out, _ = command("runs")
    assert (code, out) == (Exit.DONE, "runs holds no runs that can be read\n")
    code, out, err = command("runs", "--sort", "loss")
    assert (code, out) == (Exit.WRONG, "")


@needs_browser
def test_a_click_sorts_the_page_and_a_name_leads_to_the_run_s_page(
    made: Path, tmp_path: Path
) -> None:
    (made / EVIL.replace("/", "_")).mkdir()  # an empty folder is no run
    found = run_list(made)
    page = run_list_page(found, made.parent / "list.html")
    script = """
        const names = () => [...document.querySelector("table").tBodies[0].rows].map(
            row => row.cells[0].textContent.split("/").pop());
        const links = Object.fromEntries([...document.querySelectorAll("td a")].map(
            link => [link.textContent, link.getAttribute("href")]));
        const found = [names()];
        for (const column of [2, 3, 4, 5]) {
            document.querySelectorAll("table.sorts th button")[column].click();
            found.push(names());
        }
        return [links, found];
    """
    links, (first, *clicked) = show(page.html(), tmp_path, script).found
    assert links["c-first"] == "runs/c-first/report.html"
    assert set(links) == {"a-second", "c-first", "compared/runs/b-third"}
    assert first == ["a-second", "b-third", "c-first", "b-attack"]
    assert clicked == [
        ["b-third", "c-first", "a-second", "b-attack"],  # the lowest accuracy first
        ["b-third", "a-second", "c-first", "b-attack"],
        ["b-attack", "c-first", "b-third", "a-second"],
        ["a-second", "b-third", "c-first", "b-attack"],
    ]


def test_a_folder_s_name_is_no_markup_and_no_other_address(tmp_path: Path) -> None:
    name = "javascript:'\"><script>"
    (tmp_path / name).mkdir()
    (tmp_path / name / "report.html").touch()
    run = ListedRun(tmp_path / name, name, EVIL, "finished")
    html = run_list_page(RunList(tmp_path, [run], []), tmp_path / "list.html").html()
    assert html.count("<script") == 2
    assert 'href="javascript%3A%27%22%3E%3Cscript%3E/report.html"' in html
    odd = tmp_path / os.fsdecode(b"run\xff")
    odd.mkdir()
    (odd / "report.html").touch()
    run = ListedRun(odd, "run", "rr", "finished")
    html = run_list_page(RunList(tmp_path, [run], []), tmp_path / "list.html").html()
    assert 'href="run%FF/report.html"' in html


def test_a_job_that_was_never_run_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "job.yaml").write_text("protection: rr\n")
    found = run_list(tmp_path)
    assert (found.runs, found.damaged) == ([], [])


def test_a_vertical_line_is_of_the_leaders_records(tmp_path: Path) -> None:
    """It took two days and an hour, has no accuracy, and protects only what it returns."""
    job = VerticalJob(
        task="vertical_parts:bottoms", privacy={"label_protection": {"name": "marvell"}}
    )
    look = {"party": "lead", "look": 6, "test_auc": 0.75, "test_loss": 0.5}
    earlier = look | {"look": 3, "test_auc": 0.25}
    folder = written(tmp_path / "run", job, {"lead": [earlier, look], "bank": []})
    new_log(
        folder / "lead" / "events.log",
        "2026-03-01T10:00:00 began: fedveil\n2026-03-03T11:00:00 ended after step 6: a limit\n",
    )
    (found,) = run_list(tmp_path).runs
    assert (found.protection, found.state) == ("label_protection", "ended early")
    assert (found.metric, found.quality) == ("auc", 0.75)
    assert found.seconds == 49 * 3600
    assert found.epsilon == Figure(math.inf, 0.0)
    (row,) = lines(run_list(tmp_path))
    assert row[2] == "AUC 0.750"
    with (folder / "lead" / "events.log").open("a") as events:
        events.write("2026-03-03T12:00:00 went on after step 6: fedveil\n")
        events.write("2026-03-03T12:30:00 finished after step 9\n")
        events.write("2026-03-09T08:00:00 went on after step 9: fedveil\n")
        events.write("2026-03-09T08:01:00 finished after step 9\n")
    (resumed,) = run_list(tmp_path).runs
    assert (resumed.state, resumed.seconds) == ("finished", 50.5 * 3600)
    assert of_run(read_run(folder))["seconds"] == 50.5 * 3600
    metrics = folder / "lead" / "metrics.jsonl"
    metrics.write_text(json.dumps(look | {"test_accuracy": 0.625}) + "\n")
    assert run_list(tmp_path).runs[0].metric == "accuracy"


def test_a_run_without_a_round_is_running_or_was_attacked(tmp_path: Path) -> None:
    folder = written(tmp_path / "run", small_job(), {".": []})
    new_log(folder / "events.log", "2026-03-04T10:20:30 began: fedveil\n")
    (begun,) = run_list(tmp_path).runs
    assert (begun.state, begun.began) == ("interrupted", datetime(2026, 3, 4, 10, 20, 30))
    opened = RunFolder.reopen(folder)
    assert run_list(tmp_path).runs[0].state == "running"
    add_finding(opened, Finding("x", "quick", "rr", [Measured("mse", 0.5)]))
    opened.close()
    assert run_list(tmp_path).runs[0].state == "attack"
    (folder / "model.safetensors").touch()
    assert run_list(tmp_path).runs[0].state == "interrupted"
    split = written(tmp_path / "split", VerticalJob(task="vertical_parts:bottoms"), {})
    opened = RunFolder.reopen(split)
    add_finding(opened, Finding("features", "quick", "none", [Measured("mse", 0.5)]))
    opened.close()
    assert [run.state for run in run_list(tmp_path, "name").runs] == ["interrupted", "attack"]
    page = run_list_page(RunList(tmp_path, run_list(tmp_path).runs, []), tmp_path / "list.html")
    assert 'href="run/report.html"' not in page.html()
    (folder / "report.html").touch()
    page = run_list_page(run_list(tmp_path), tmp_path / "list.html")
    assert 'href="run/report.html"' in page.html()


def test_a_run_may_be_the_folder_itself_and_a_model_alone_is_no_empty_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = written(tmp_path / "run", small_job(), {".": []})
    monkeypatch.chdir(folder)
    assert [run.name for run in run_list(Path()).runs] == ["run"]
    for name in ("metrics.jsonl", "events.log"):
        (folder / name).unlink()
    (folder / "model.safetensors").touch()
    assert [one.name for one in run_list(tmp_path).damaged] == ["run"]


def test_a_running_vertical_run_is_known_by_the_lock_of_its_own_folder(tmp_path: Path) -> None:
    """Its two protections are named, and neither of its parties' folders has a lock."""
    privacy = {"label_dp": {"eps": 3.5}, "embedding_dp": {"eps": 2.5}}
    job = VerticalJob(task="vertical_parts:bottoms", privacy=privacy)
    folder = written(tmp_path / "run", job, {"lead": [], "bank": []})
    opened = RunFolder.reopen(folder)
    (found,) = run_list(tmp_path).runs
    opened.close()
    assert (found.state, found.protection) == ("running", "embedding_dp, label_dp")


def test_a_folder_with_a_job_file_and_runs_is_no_run_itself(tmp_path: Path) -> None:
    job = VerticalJob(task="vertical_parts:bottoms")
    (tmp_path / "job.yaml").write_text(job.to_yaml())
    for name in ("one", "other"):
        folder = written(tmp_path / name, job, {"bank": [], "lead": []})
        (folder / "events.log").touch()
    assert [run.name for run in run_list(tmp_path).runs] == ["one", "other"]
    with pytest.raises(RunFolderError, match="it has a job, and no run's records"):
        read_run(tmp_path)


def test_the_epsilon_of_one_party_is_marked_as_such(tmp_path: Path) -> None:
    job = VerticalJob(task="vertical_parts:bottoms", privacy={"label_dp": {"eps": 0.75}})
    line = {"epsilon": 0.75, "delta": 0.0, "what": "an example's label, in all epochs"}
    for name, parties in (("alone", ["lead"]), ("both", ["bank", "lead"])):
        folder = written(tmp_path / name, job, {party: [] for party in parties})
        (folder / "lead" / "accounts.jsonl").write_text(json.dumps(line) + "\n")
    runs = {run.name: run for run in run_list(tmp_path).runs}
    assert {name: run.alone for name, run in runs.items()} == {"alone": True, "both": False}
    shown = {row[0]: row[3] for row in lines(run_list(tmp_path))}
    assert shown == {"alone": "0.75 (strong), this party only", "both": "0.75 (strong)"}
    page = runs_page([read_run(tmp_path / name) for name in runs]).html()
    assert page.count("all epochs, this party only") == 1


@pytest.mark.parametrize("name", ["accounts.jsonl", "before-after.jsonl"])
def test_a_folder_with_any_record_of_a_run_is_read(name: str, tmp_path: Path) -> None:
    folder = written(tmp_path / "run", small_job(), {})
    with pytest.raises(RunFolderError, match="it has a job, and no run's records"):
        read_run(folder)
    (folder / name).touch()
    assert read_run(folder).records == []


def test_a_run_that_was_killed_in_its_first_round_is_listed_with_its_epsilon(
    tmp_path: Path,
) -> None:
    folder = written(tmp_path / "run", small_job(), {".": []})
    (record,) = federated_records(1, 11)
    started = {key: record[key] for key in ("round", *PRIVACY)}
    opened = RunFolder.reopen(folder)
    Attempts(opened, 0).begin(1, ((PrivacyLoss(0.5), 1),), started)
    opened.close()
    (found,) = run_list(tmp_path).runs
    assert found.epsilon == (record["epsilon_run_every_round"], record["delta_run_every_round"])
    assert (found.state, found.unit, found.quality) == ("interrupted", "client", None)
