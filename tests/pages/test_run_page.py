"""The page of a run: what it says, in whose words, and that a run is never lost over it."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import fedveil
import vertical_parts
from browser import needs_browser, show
from fedveil.errors import RunFailed, RunFolderError
from fedveil.pages.page import Fact, Page, Picture, Points, Section, Table
from fedveil.pages.plot import Plot
from fedveil.pages.read_run import read_run
from fedveil.pages.run_folder_page import keep_page, page_of, page_of_several, where
from fedveil.privacy.finding import Finding, Measured
from fedveil.record.account_lines import influenced_part
from fedveil.record.finding_lines import add_finding
from fedveil.record.run_folder import RunFolder
from fedveil.vertical import VerticalJob, VerticalRun, train
from page_parts import EVIL, edit_all, new_log, small_job, vouch_again

PNG = b"\x89PNG\r\n\x1a\n" + b"picture"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of dp_encrypt in which a quarter of the clients fall silent."""
    folder = tmp_path_factory.mktemp("made") / "run"
    job = small_job(
        rounds=6,
        protection={"name": "dp_encrypt", "dp_encrypt": {"dp_eps": 1.0}},
        simulation={"workers": 0, "dropouts": {"report": 0.25}},
    )
    return fedveil.simulate(job, folder).folder


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "copy"
    shutil.copytree(finished, copy)
    return copy


def section(page: Page, title: str) -> Section:
    (found,) = (part for part in page.sections if part.title == title)
    return found


def points(page: Page, title: str) -> str:
    parts = section(page, title).parts
    return "\n".join(line for part in parts if isinstance(part, Points) for line in part.lines)


def test_a_finished_run_has_its_page(finished: Path) -> None:
    assert (finished / "report.html").read_text("utf-8") == page_of(finished).html()


def test_it_draws_quality_bytes_and_time_of_every_round(folder: Path) -> None:
    page, run = page_of(folder), read_run(folder)
    drawn = {plot.name: plot for plot in page.plots}
    assert list(drawn) == ["accuracy", "loss", "auc", "epsilon", "bytes", "seconds"]
    for name in ("accuracy", "loss", "auc"):
        (curve,) = drawn[name].curves
        assert list(curve.x) == [1, 2, 3, 4, 5, 6]
        assert list(curve.y) == [record[name] for record in run.records]
    parts = {curve.name: curve.y for curve in drawn["seconds"].curves}
    assert set(parts) == {"training", "protection", "aggregation", "evaluation"}
    assert list(parts["protection"]) == [record["seconds_protection"] for record in run.records]


def test_cards_are_first_then_plots_then_tables_and_at_last_the_settings(
    folder: Path, tmp_path: Path
) -> None:
    for of in (folder, vertical(tmp_path / "apart").folder):
        page = page_of(of)
        first, *others, last = page.sections
        assert all(isinstance(part, Plot) for part in first.parts)
        assert not any(isinstance(part, Plot) for other in others for part in other.parts)
        assert last.title == "Settings"
        crossing = [] if of == folder else [str] * 6  # one for each direction, loss and labels
        assert [type(part) for part in page.lead] == [str, *crossing, Fact, Fact, Fact]


def test_each_figure_of_a_record_is_the_one_that_the_page_shows(folder: Path) -> None:
    """Every number of the last record differs from every other, and from those before it."""
    promises = {
        f"{kind}_{key}": value
        for key, of in (
            ("per_bit", 0.237), ("per_parameter", 0.458), ("per_round", 1.13),
            ("run_every_round", 2.78), ("run_most_drawn", 2.46),
        )
        for kind, value in (("epsilon", of), ("delta", of * 1e-6))
    }  # fmt: skip
    edit_all(
        folder, accuracy=0.86914, loss=0.41239, auc=0.97253, bytes_up=31_700_000,
        bytes_down=76_300_000, bytes_up_per_client=40_040_000, seconds_round=3723.0,
        seconds_training=61.25, seconds_protection=17.55, **promises,
    )  # fmt: skip
    page, run = page_of(folder), read_run(folder)
    quality, promise, _ = (fact for fact in page.lead if isinstance(fact, Fact))
    assert quality.value == "accuracy 86.9%"
    assert "loss 0.412, AUC 0.973" in quality.text
    assert promise.value == "epsilon 2.78 at delta 2.78e-06 (meaningful)"
    assert promise.text.startswith(
        "For a client that takes part in every round, against everyone, including the server."
    )
    promised = [
        table for table in section(page, "What was promised").parts if isinstance(table, Table)
    ]
    assert [row[1:3] for row in promised[0].rows][:5] == [
        ["0.237 (strong)", "2.37e-07"], ["0.458 (strong)", "4.58e-07"],
        ["1.13 (meaningful)", "1.13e-06"], ["2.78 (meaningful)", "2.78e-06"],
        ["2.46 (meaningful)", "2.46e-06"],
    ]  # fmt: skip
    (costs,) = section(page, "Bytes and time").parts
    assert isinstance(costs, Table)
    told = dict(costs.rows)
    before = run.records[:-1]
    assert told["upload of a client in a round"] == "40 MB"
    for what, key, last in (
        ("all uploads", "bytes_up", 31.7), ("all downloads", "bytes_down", 76.3),
    ):  # fmt: skip
        assert told[what] == f"{last + sum(r[key] for r in before) / 1e6:.1f} MB"
    assert told["wall-clock time of all rounds"].startswith("1 h 2 min")
    drawn = {plot.name: plot.curves[0].y[-1] for plot in page.plots}
    assert (drawn["accuracy"], drawn["loss"], drawn["auc"]) == (0.86914, 0.41239, 0.97253)
    assert (drawn["epsilon"], drawn["bytes"], drawn["seconds"]) == (2.78, 31_700_000, 61.25)


def test_it_has_every_figure_of_the_ledger_with_its_word_and_what_it_means(folder: Path) -> None:
    page, last = page_of(folder), read_run(folder).last
    (table,) = (p for p in section(page, "What was promised").parts if isinstance(p, Table))
    keys = ("per_bit", "per_parameter", "per_round", "run_every_round", "run_most_drawn")
    assert len(table.rows) >= len(keys)
    for key, row in zip(keys, table.rows, strict=False):
        assert f"({last[f'promise_{key}']})" in row[1]
    meanings = points(page, "What was promised")
    for word in {last[f"promise_{key}"] for key in keys}:
        assert f"{word}: the best attacker is " in meanings


def test_it_says_what_is_not_protected(folder: Path) -> None:
    said = points(page_of(folder), "What is not protected")
    assert "This was a simulation" in said
    assert "The server is trusted" not in said
    edit_all(folder, in_clear=["the number of examples"], rests_on_server=True,
              randomness="operating-system randomness")  # fmt: skip
    said = points(page_of(folder), "What is not protected")
    assert "with no finite epsilon: the number of examples." in said
    assert "The server is trusted" in said
    assert "This was a simulation" not in said


def test_it_counts_reports_that_do_not_count(folder: Path) -> None:
    dropped = sum(record["dropped"] for record in read_run(folder).records)
    assert dropped
    reasons = {"rejected": {"wrong length": 3}, "void": "too few", "unusable": {"NaN": 2}}
    edit_all(folder, **reasons)
    parts = section(page_of(folder), "Reports that do not count").parts
    (table,) = (part for part in parts if isinstance(part, Table))
    assert [list(row) for row in table.rows] == [
        ["rejected", "wrong length", "3"],
        ["unusable", "NaN", "2"],
        ["dropped", "no answer", str(dropped)],
    ]
    (void,) = (part for part in parts if isinstance(part, Points))
    assert list(void.lines) == ["Round 6 is void: too few"]


def test_it_holds_the_job_that_repeats_it(folder: Path) -> None:
    html = page_of(folder).html()
    assert "dp_eps: 1.0" in html
    assert "fedveil run job.yaml" in html


def test_findings_stand_in_it_with_pictures_of_the_folder_alone(folder: Path) -> None:
    (folder / "attacks").mkdir()
    (folder / "attacks" / "seen.png").write_bytes(PNG)
    (folder / "attacks" / "text.png").write_bytes(b"no picture")
    (folder.parent / "secret.png").write_bytes(PNG)
    names = ["attacks/seen.png", "attacks/text.png", "attacks/gone.png", "../secret.png",
             str(folder.parent / "secret.png")]  # fmt: skip
    figures = [Measured("epsilon at least", 99.0, guess=0.5, cases=7)]
    found = Finding("gradient", "quick", "dp_encrypt", figures, epsilon=2.0, pictures=names)
    opened = RunFolder.reopen(folder)
    add_finding(opened, found)
    opened.close()
    parts = section(page_of(folder), "What attacks found").parts
    assert [part.png for part in parts if isinstance(part, Picture)] == [PNG]
    (table,) = (part for part in parts if isinstance(part, Table))
    assert table.caption.endswith(
        "promised: epsilon 2 (meaningful); largest excess: epsilon at least 99, 97 above the claim "
        "2: NOT WHAT WAS PROMISED"
    )
    assert list(table.rows[0]) == ["epsilon at least", "99", "", "0.5", "7"]
    assert parts[-1].startswith("The epsilon beside an attack covers what this attack saw")
    assert "assumes the fewest that a round may have" in parts[-1]


def malicious(folder: Path) -> None:
    (folder / "checkpoint" / "job.yaml").unlink()
    job = (folder / "job.yaml").read_text("utf-8")
    (folder / "job.yaml").write_text(
        job.replace("name: small", f"name: {json.dumps(EVIL)}", 1), "utf-8"
    )
    edit_all(folder, rejected={EVIL: 1}, withheld={EVIL: 1}, void=EVIL, in_clear=[EVIL])
    with (folder / "events.log").open("a") as events:
        events.write(f"0 {EVIL}\n")


def test_no_text_of_a_folder_is_markup(folder: Path) -> None:
    before = page_of(folder).html()
    malicious(folder)
    after = page_of(folder).html()
    for mark in ("<script", "<img", "window.evil=1>"):
        assert after.count(mark) == before.count(mark), mark
    assert "window.evil=1&gt;" in after


@needs_browser
def test_a_browser_shows_it_whole_and_runs_nobody_else_s_script(
    folder: Path, tmp_path: Path
) -> None:
    malicious(folder)
    script = """return [document.body.innerText.includes("window.evil=1"), typeof window.evil,
        document.querySelectorAll(".plot").length,
        document.querySelectorAll(".plot .curve").length,
        performance.getEntriesByType("resource").length]"""
    shown = show(page_of(folder).html(), tmp_path, script)
    assert shown.console == []
    written, evil, plots, traces, fetched = shown.found
    assert (evil, plots, fetched) == ("undefined", 6, 0)
    assert traces == 4 + 2 + 4
    assert written


def test_a_disk_without_room_for_the_page_does_not_lose_the_run(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        run = fedveil.simulate(small_job(rounds=1), tmp_path / "run")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (run.folder / "model.safetensors").exists()
    assert "cannot be written" in read_run(run.folder).said("no report.html: ")


def test_a_failed_run_leaves_a_page_that_says_why(tmp_path: Path) -> None:
    with pytest.raises(RunFailed):
        fedveil.simulate(small_job(rounds=2, model="parts:nowhere_finite"), tmp_path / "run")
    html = (tmp_path / "run" / "report.html").read_text()
    assert "<strong>no trained model</strong>" in html
    assert "<strong>remove the cause, then run it again</strong>" in html
    assert "<p>no report was usable in any of 2 rounds: the update is not finite (8x)" in html
    assert "<li>Round 2 is void: 0 clients answered" in html
    with pytest.raises(RunFailed):
        fedveil.simulate(
            small_job(rounds=1, model="parts:nowhere_finite", record={"page": False}),
            tmp_path / "bare",
        )
    assert not (tmp_path / "bare" / "report.html").exists()


def test_what_hinders_a_page_is_an_event_and_no_error(folder: Path) -> None:
    said: list[str] = []
    for job in (folder / "job.yaml", folder / "checkpoint" / "job.yaml"):
        job.write_text("name: 5\nrounds: [1]\n")
    opened = RunFolder.reopen(folder)
    keep_page(opened, said.append)
    opened.close()
    assert said == [f"no report.html: {folder} is damaged: the key protection is missing"]


def test_a_finished_run_without_a_whole_record_is_damaged(folder: Path) -> None:
    raw = (folder / "metrics.jsonl").read_bytes()
    for left, said in ((raw[:200], ", line 1: it has no end"), (b"", " is damaged: it has no rec")):
        (folder / "metrics.jsonl").write_bytes(left)
        vouch_again(folder)
        with pytest.raises(RunFolderError, match=rf"metrics\.jsonl{said}"):
            read_run(folder)


@pytest.mark.parametrize("running", [True, False])
def test_an_edited_epsilon_has_no_page(running: bool, folder: Path) -> None:
    metrics, whole = folder / "metrics.jsonl", (folder / "metrics.jsonl").read_bytes()
    if running:  # the seventh round has no checkpoint yet
        new_log(folder / "events.log", "0 began: fedveil\n")
        line = json.loads(whole.splitlines()[-1]) | {"round": 7, "epsilon_run_every_round": 99.5}
        with metrics.open("a") as records:
            records.write(json.dumps(line) + "\n")
        assert read_run(folder).last["epsilon_run_every_round"] == 99.5
    text = metrics.read_text()
    stated = json.loads(whole.splitlines()[-1])["epsilon_run_every_round"]
    key = '"epsilon_run_every_round": '
    metrics.write_text(text.replace(f"{key}{stated}", f"{key}0.9"))
    assert metrics.read_text() != text
    damaged = r"metrics\.jsonl is damaged: it is (not what|shorter)"
    for read in (page_of, lambda run: page_of_several([run])):
        with pytest.raises(RunFolderError, match=damaged):
            read(folder)


def test_a_party_s_edited_record_has_no_page(tmp_path: Path) -> None:
    folder = vertical(tmp_path / "apart").folder
    metrics = next(folder.glob("*/metrics.jsonl"))
    text = metrics.read_text()
    metrics.write_text(text.replace("0.", "0.1", 1))
    assert metrics.read_text() != text
    with pytest.raises(RunFolderError, match=f"{metrics} is damaged: .* vouches for$"):
        page_of(folder)


def test_a_resumed_run_has_the_page_of_all_its_rounds(folder: Path) -> None:
    (folder / "report.html").unlink()
    fedveil.resume(folder, rounds=8)
    assert "8 of 8 rounds" in (folder / "report.html").read_text("utf-8")


def test_a_run_that_goes_on_has_a_page_of_what_there_is(folder: Path) -> None:
    """Its last line may be half written, and its events may end within a character."""
    (folder / "checkpoint" / "latest").unlink()
    whole = (folder / "metrics.jsonl").read_bytes()
    (folder / "metrics.jsonl").write_bytes(whole[: whole.rfind(b"{") + 40])
    (folder / "events.chain").unlink()
    (folder / "events.log").write_bytes(b"0 began: fedveil\n0 warning: \xe2\x82")
    (folder / "model.safetensors").unlink()
    page = page_of(folder)
    assert [plot.curves[0].x[-1] for plot in page.plots if plot.name == "accuracy"] == [5]
    assert "5 of 6 rounds; still running, or killed." in page.html()
    (folder / "metrics.jsonl").write_bytes(b"")
    assert page_of(folder).plots == []


def test_several_runs_stand_in_one_table_and_on_the_same_plots(
    finished: Path, tmp_path: Path
) -> None:
    other = fedveil.simulate(small_job(rounds=4), tmp_path / "other").folder
    page = page_of_several([finished, other])
    (table,) = section(page, "At the end").parts
    assert isinstance(table, Table)
    assert [row[:3] for row in table.rows] == [
        ["run", "dp_encrypt", "6 of 6"], ["other", "not_encrypt", "4 of 4"]
    ]  # fmt: skip
    for plot in page.plots:
        assert [curve.name for curve in plot.curves] == ["run", "other"]
    (different,) = section(page, "What differs").parts
    assert isinstance(different, Table)
    assert ["rounds", "6", "4"] in [list(row) for row in different.rows]
    again = shutil.copytree(finished, tmp_path / "again")
    twice = page_of_several([finished, again])
    assert section(twice, "What differs").parts == ["Nothing: all have the same job."]
    assert len(page.html()) < 60_000


def vertical(folder: Path, **more: object) -> VerticalRun:
    block = {
        "name": "small", "epochs": 2, "batch_size": 9, "task": "vertical_parts:bottoms",
        "record": {"every_steps": 4},
    }  # fmt: skip
    return train(VerticalJob.model_validate({**block, **more}), folder)


def test_a_run_whose_job_wants_no_page_leaves_none(tmp_path: Path) -> None:
    run = fedveil.simulate(small_job(rounds=1, record={"page": False}), tmp_path / "run")
    assert not (run.folder / "report.html").exists()
    read = read_run(run.folder)
    assert read.finished
    assert where(run.folder, read) == f"none: `fedveil report {run.folder}` writes it"


def test_several_vertical_runs_stand_in_one_table_and_on_the_same_plots(
    finished: Path, tmp_path: Path
) -> None:
    runs = {
        "plain": vertical(tmp_path / "plain"),
        "noisy": vertical(tmp_path / "noisy", epochs=1, privacy={"embedding_dp": {"eps": 4.0}}),
    }
    page = page_of_several([run.folder for run in runs.values()])
    (table,) = section(page, "At the end").parts
    assert isinstance(table, Table)
    assert [row[0] for row in table.rows] == [*runs]
    told = dict(zip(table.columns, zip(*table.rows, strict=True), strict=True))
    last = [run.metrics[-1] for run in runs.values()]
    assert told["loss"] == tuple(f"{record['test_loss']:#.3g}" for record in last)
    worst = max(
        (
            line
            for lines in runs["noisy"].figures.values()
            for line in lines
            if not influenced_part(line.what)
        ),
        key=lambda line: line.epsilon,
    )
    assert told["epsilon"][0] == "inf (none) for an example's values of left, sent unprotected"
    assert told["epsilon"][1].endswith(f" for {worst.what}")
    assert "largest in the parties' accounts, for an example's own reports." in table.caption
    losses = {
        name: [record["loss"] for record in run.metrics if "step" in record]
        for name, run in runs.items()
    }
    (plot,) = (plot for plot in page.plots if plot.name == "loss")
    assert {curve.name: [*curve.y] for curve in plot.curves} == losses
    (different,) = section(page, "What differs").parts
    assert isinstance(different, Table)
    assert ["epochs", "2", "1"] in [list(row) for row in different.rows]
    mixed = page_of_several([finished, runs["plain"].folder])
    assert "cannot be compared with a step of two parties" in str(mixed.lead[0])
    titles = [part.title for part in mixed.sections]
    assert titles[:4] == [
        f"{what} of {kind} runs"
        for kind, each in (("federated", "round"), ("vertical", "step"))
        for what in (f"Every {each}", "At the end")
    ]
    assert not any("What differs" in title for title in titles)  # of one run of a kind
    for kind, name in (("federated", "run"), ("vertical", "plain")):
        (one,) = section(mixed, f"At the end of {kind} runs").parts
        assert isinstance(one, Table)
        assert [row[0] for row in one.rows] == [name]


def test_a_vertical_run_has_a_page_with_every_party_s_account(tmp_path: Path) -> None:
    run = vertical(tmp_path / "run", privacy={"embedding_dp": {"eps": 4.0}})
    assert vertical_parts.__name__ in run.job.task.name
    page = page_of(run.folder)
    assert (run.folder / "report.html").read_text("utf-8") == page.html()
    (table,) = (p for p in section(page, "What was promised").parts if isinstance(p, Table))
    told = {(party, line.what) for party, lines in run.figures.items() for line in lines}
    assert {(row[0], row[1]) for row in table.rows} == told
    losses = [record["loss"] for record in run.metrics if "step" in record]
    (plot,) = (plot for plot in page.plots if plot.name == "loss")
    assert list(plot.curves[0].y) == losses


def test_a_page_needs_no_torch() -> None:
    """The core is installed without PyTorch, and writes the pages of copied runs."""
    code = "import sys; sys.modules['torch'] = None; import fedveil.pages.run_page"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize(
    "edit",
    [
        lambda lines: ["2026-01-01T00:00:00 began", *lines[1:]],
        lambda lines: lines[1:],
        lambda lines: [*lines[:3], lines[3].replace("0", "1"), *lines[4:]],
    ],
)
def test_an_edited_event_log_is_refused(
    folder: Path, edit: Callable[[list[str]], list[str]]
) -> None:
    log = folder / "events.log"
    lines = log.read_text("utf-8").splitlines()
    changed = edit(lines)
    assert changed != lines
    log.write_text("\n".join(changed) + "\n", "utf-8")
    with pytest.raises(RunFolderError, match=r"events\.log, line \d: it was edited, or a line"):
        page_of(folder)


def test_a_log_that_is_being_written_is_read(folder: Path) -> None:
    """Its last line may still lack its digest."""
    log, chain = folder / "events.log", folder / "events.chain"
    digests = chain.read_text("utf-8").splitlines(keepends=True)
    chain.write_text("".join(digests[:-1]) + digests[-1][:20], "utf-8")
    assert len(read_run(folder).events) == len(digests)
    log.write_text("".join(log.read_text("utf-8").splitlines(keepends=True)[:-1]), "utf-8")
    chain.write_text("".join(digests), "utf-8")
    assert len(read_run(folder).events) == len(digests) - 1
    chain.unlink()
    assert len(read_run(folder).events) == len(digests) - 1


def test_the_edited_job_of_a_finished_run_is_refused(folder: Path) -> None:
    """The page would show another protection than that of the run."""
    job = folder / "job.yaml"
    job.write_text(job.read_text("utf-8").replace("dp_eps: 1.0", "dp_eps: 0.1"), "utf-8")
    with pytest.raises(RunFolderError, match=r"job\.yaml was changed after the run began"):
        page_of(folder)
    (folder / "checkpoint" / "job.yaml").unlink()  # an earlier version's folder
    assert read_run(folder).finished
