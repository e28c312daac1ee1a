"""The tables of a run's page: each setting, sum and sentence under its own label.

No two settings of the jobs here are equal, and none has its default.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_every_figure import federated_records, table, written

from fedveil.engine.run_records import MACHINES, RETRAINED
from fedveil.errors import RunFolderError
from fedveil.pages.curves import quality
from fedveil.pages.guarantee_text import figure_lines, figures, returned
from fedveil.pages.machines import machine_totals
from fedveil.pages.page import Code, Fact, Fold, Page, Picture, Points, Table
from fedveil.pages.read_run import ReadRun, read_run
from fedveil.pages.run_folder_page import page_of, page_of_several
from fedveil.pages.run_list import run_list
from fedveil.pages.run_list_page import runs_table
from fedveil.pages.run_page import attack_page, duration, run_page
from fedveil.pages.vertical_page import vertical_page
from fedveil.privacy.finding import Finding, Measured
from fedveil.privacy.guarantee_strength import Figure, epsilon_text
from fedveil.privacy.ledger import Line
from fedveil.record.before_after import BeforeAfter
from fedveil.record.finding_lines import add_finding
from fedveil.record.run_folder import RunFolder
from fedveil.vertical.job import VerticalJob
from page_parts import new_log, small_job

PNG = b"\x89PNG\r\n\x1a\n"


def parts(page: Page, title: str, kind: type[Any]) -> list[Any]:
    return [
        part
        for section in page.sections
        if section.title == title
        for part in section.parts
        if isinstance(part, kind)
    ]


def run_of(folder: Path, *records: dict[str, Any], **more: Any) -> ReadRun:
    job = small_job(
        name="own", rounds=9,
        clients={"number": 1438, "fraction": 0.0625, "sampling": "fixed"},
        training={"epochs": 3, "batch_size": 7, "lr": 0.075, "optimizer": "sgd"},
        server={"optimizer": "momentum", "lr": 0.6, "weighting": "equal"},
        protection={"name": "dp_encrypt", "dp_encrypt": {"dp_eps": 1.75, "dp_norm_clip": 0.3}},
        seed=41,
    ).model_dump(mode="json")  # fmt: skip
    job["adapter"] = {"kind": "lora", "rank": 8, "alpha": 16.0, "targets": ["q", "v"]}
    (folder / "job.yaml").write_text("name: own\n")
    return ReadRun(folder, job, records, more.pop("findings", ()), (), **more)


def test_each_setting_stands_under_its_own_name(tmp_path: Path) -> None:
    records = federated_records(4, 11)
    shown = dict(table(run_page(run_of(tmp_path, *records)), "Settings"))
    assert {
        "job": "own", "model": "logistic, trained: all", "data": "parts:data, split iid",
        "adapter": "lora, rank 8, alpha 16, of q, v",
        "clients": "1,438; in a round 6.25% of them, sampling fixed",
        "training": "epochs 3, batches of 7, sgd, learning rate 0.075, on cpu",
        "server": "momentum, rate 0.6, clients weighted equal",
        "protection": "dp_encrypt", "rounds": "4 of 9", "seed": "41",
        "time": f"{duration(math.fsum(r['seconds_round'] for r in records))} in rounds",
        "best round": f"4, accuracy {records[-1]['accuracy']:.1%}",
    }.items() <= shown.items()  # fmt: skip
    assert {"dp_eps 1.75", "dp_norm_clip 0.3"} <= set(shown["its settings"].split(", "))
    protection = {"name": "rr", "unary": {"eps": 1.75, "cells": 3}}
    events = ("0 began: fedveil 1", "0 parts:data: by Ada", "0 went on after round 2: fedveil 2")
    records[-1]["trainer"] = "the loop"
    rr = replace(run_of(tmp_path, *records), events=events)
    rr = replace(rr, job={**rr.job, "protection": protection})
    shown = dict(table(run_page(rr), "Settings"))
    assert shown["its settings"] == "eps 1.75, cells 3"
    assert (shown["made by"], shown["whose"]) == ("fedveil 1", "by Ada")
    assert (shown["trained by"], shown["randomness"]) == ("the loop", "system randomness")
    own = {"name": "mine:Own", "own": {"width": 3}}
    shown = dict(table(run_page(replace(rr, job={**rr.job, "protection": own})), "Settings"))
    assert shown["its settings"] == "width 3"


def test_an_event_that_was_repeated_is_said_once(tmp_path: Path) -> None:
    events = ["0 sends: x", "0 began: fedveil", "1 sends: y", "2 sends: x"]
    assert ReadRun(tmp_path, {}, (), (), events).all_said("sends: ") == ["x", "y"]


@pytest.mark.parametrize(
    ("took", "said"),
    [(99.94, "99.9 s"), (100, "1 min 40 s"), (119.6, "2 min 0 s"), (7384.0, "2 h 3 min")],
)
def test_a_duration_is_in_the_units_of_its_size(took: float, said: str) -> None:
    assert duration(took) == said


def test_an_accounts_word_is_that_of_its_epsilon_and_delta(tmp_path: Path) -> None:
    """A delta of 0.2 makes an epsilon of 1 another promise."""
    line = Line(1.0, 0.2, "own account")
    assert epsilon_text(1.0, 0.2) != epsilon_text(1.0, 0.0)
    page = run_page(run_of(tmp_path, *federated_records(2, 11), accounts=[line]))
    *_, last = table(page, "What was promised")
    assert last[:3] == ["own account", epsilon_text(1.0, 0.2), "0.2"]
    names = ["a bit", "a parameter", "a round", "the whole run of a client in every round",
             "the whole run of the most-drawn client"]  # fmt: skip
    rows = table(page, "What was promised")
    assert [row[0] for row in rows[:-1]] == names
    assert rows[2][4] == "a client's whole data, from its costliest round"
    assert rows[3][4] == "a client's whole data, from all its reports together"


def test_only_a_whole_run_without_a_bound_promises_nothing(tmp_path: Path) -> None:
    for key, said in (("per_round", False), ("run_every_round", True)):
        *records, last = federated_records(2, 11)
        run = run_of(tmp_path, *records, {**last, f"epsilon_{key}": math.inf})
        (points,) = parts(run_page(run), "What is not protected", Points)
        assert any("nothing is promised" in line for line in points.lines) == said
        assert (cards(run_page(run))["Privacy guarantee"].tone == "poor") == said


def test_machines_and_repeated_trainings_are_added_up(tmp_path: Path) -> None:
    first, second = federated_records(2, 11)
    first |= {MACHINES: {"b": (7, 3.0, 0.625), "a": (3, 6.0, 0.25)}, RETRAINED: 2}
    second |= {MACHINES: {"a": (5, 4.0, 0.5), "c": (0, 0.0, 1.0)}, RETRAINED: 1}
    page = run_page(run_of(tmp_path, first, second))
    costs, machines = parts(page, "Bytes and time", Table)
    assert machines.rows == [
        ["a", "8", "10.0 s", "38%"], ["b", "7", "3.0 s", "62%"], ["c", "0", "0.0 s", "100%"],
    ]  # fmt: skip
    assert costs.rows[0][0] == "upload of a client in a round"
    assert "3 trainings on a lost machine had to be repeated." in parts(page, "Bytes and time", str)
    assert str(machine_totals([first, second])["a"]) == "8 clients, 10.0 s, idle 38%"
    lost = machine_totals([{MACHINES: {"d": (2, 0.0, 1.0)}}])["d"]
    assert str(lost) == "2 clients, 0.0 s, idle 0%"
    uneven = machine_totals([{MACHINES: {"a": (1, 0.0, 0.0), "b": (1, 6.0, 0.25)}}])
    assert (uneven["a"].idle, uneven["b"].idle) == (1.0, 0.25)


def test_every_reason_of_every_round_is_counted(tmp_path: Path) -> None:
    first, second = federated_records(2, 11)
    first |= {"failed": {"slow": 1, "lost": 4}, "dropped": 0, "rejected": {}, "unusable": {}}
    second |= {"failed": {"slow": 2}, "dropped": 0, "rejected": {}, "unusable": {"NaN": 6}}
    page = run_page(run_of(tmp_path, first, second))
    assert table(page, "Reports that do not count") == [
        ["failed", "lost", "4"], ["failed", "slow", "3"], ["unusable", "NaN", "6"],
    ]  # fmt: skip


def test_a_language_model_stands_before_and_after(tmp_path: Path) -> None:
    compared = [
        BeforeAfter("figure", "loss", "5.1", "3.2"),
        BeforeAfter("prompt", "Hi", "no", "so"),
    ]
    page = run_page(run_of(tmp_path, *federated_records(4, 11), compared=compared))
    metrics, prompts = parts(page, "Before and after", Table)
    assert metrics.caption.startswith("After 4 rounds under dp_encrypt: epsilon ")
    assert (metrics.rows, prompts.rows) == ([["loss", "5.1", "3.2"]], [["Hi", "no", "so"]])


def test_a_picture_says_what_is_above_what(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(PNG)
    found = [
        Finding(name, "quick", "rr", [Measured("mse", 0.5)], epsilon=1.0, delta=0.2,
                pictures=["a.png"])
        for name in ("gradient", "features")
    ]  # fmt: skip
    page = run_page(run_of(tmp_path, *federated_records(2, 11), findings=found))
    above, alone = (part.caption for part in parts(page, "What attacks found", Picture))
    assert above == "gradient against rr: originals above, reconstructions below"
    assert alone == "features against rr"
    missed = [Measured(f"epsilon at least, {n}", 0.5, unseen=n) for n in (1.5, 2.5)]
    audit = Finding("audit", "quick", "rr", missed, epsilon=1.0, saw="all sums")
    audited = run_page(run_of(tmp_path, *federated_records(2, 11), findings=[audit]))
    ((unseen,),) = (fold.parts for fold in parts(audited, "What attacks found", Fold))
    assert [*unseen.lines] == [*audit.unseen]
    assert len(audit.unseen) == 2
    assert ", which saw all sums; " in parts(audited, "What attacks found", Table)[0].caption
    caption = parts(page, "What attacks found", Table)[0].caption
    assert "which saw" not in caption
    assert f"promised: epsilon {epsilon_text(1.0, 0.2)}: " in caption


def test_equal_epsilons_share_a_line_and_name_all_that_they_are_for() -> None:
    (record,) = federated_records(1, 11)
    for part in ("epsilon", "delta"):
        record[f"{part}_per_parameter"] = record[f"{part}_per_bit"]
    lines = figure_lines({**record, "in_clear": ["the time"]})
    assert len(lines) == 5
    assert lines[0].endswith(" for a bit and a parameter")
    assert lines[-1] == "no finite epsilon: the time"
    assert [*figures({**record, "unit": "example"})] == [
        "per_round", "run_every_round", "run_most_drawn",
    ]  # fmt: skip


def test_returned_gradients_are_described_by_what_protects_them() -> None:
    bare, noised, bounded = (
        returned({"privacy": {"embedding_dp": {"eps": 1.0}, **block}})
        for block in ({}, {"label_protection": {"name": "marvell"}},
                      {"label_protection": {"name": "marvell"}, "label_dp": {"eps": 1.0}})
    )  # fmt: skip
    assert "without protection" in bare
    assert "noise that states no epsilon" in noised
    assert "no more of a label than its account" in bounded


def cards(page: Page) -> dict[str, Fact]:
    return {fact.label: fact for fact in page.lead if isinstance(fact, Fact)}


def test_the_best_run_is_the_one_whose_card_names_it(tmp_path: Path) -> None:
    """The second of three is the best, the third has diverged, and its upload is the smallest."""
    folders = []
    for name, position, change in (
        ("one", "rr", {"epsilon_run_every_round": 9.0}),
        ("two", "distributed_dp", {"accuracy": 0.9, "epsilon_run_every_round": 0.5}),
        ("three", "signds", {"accuracy": math.nan, "bytes_up_per_client": 10.0}),
    ):
        *records, last = federated_records(2, 100 + 100 * len(folders))
        job = small_job(rounds=2, protection={"name": position})
        folders.append(written(tmp_path / name, job, {".": [*records, {**last, **change}]}))
    shown = cards(page_of_several(folders))
    assert (shown["Best model"].value, shown["Best model"].text) == (
        "two", "accuracy 90.0% after the last round",
    )  # fmt: skip
    least = shown["Smallest epsilon"]
    assert (least.value, least.tone) == ("two", "good")
    assert least.text.endswith("every round, against a server that follows the protocol")
    assert shown["Smallest upload"].value == "three"
    assert not cards(page_of_several(folders[:1]))
    begun = written(tmp_path / "begun", job, {".": []})
    assert not cards(page_of_several([folders[0], begun]))
    rounds = read_run(folders[1]).records
    same = written(tmp_path / "same", job, {".": [*rounds]})
    named = cards(page_of_several([folders[1], same, folders[2]]))
    assert named["Best model"].value == "two and same"  # the third has none


def test_a_table_of_runs_states_the_delta_and_what_the_bounds_assume(tmp_path: Path) -> None:
    """The third run has no trained model, and the best figure: that of the model before."""
    folders, seeded = [], "simulation randomness"
    for name, epsilon, delta, randomness in (
        ("one", math.inf, 1e-6, seeded), ("two", 2.0, 1e-5, seeded), ("three", 3.0, 1e-5, "x"),
    ):  # fmt: skip
        (record,) = federated_records(1, 100 + 100 * len(folders))
        record |= {"epsilon_run_every_round": epsilon, "delta_run_every_round": delta,
                   "randomness": randomness, "accuracy": 0.2 + 0.1 * len(folders)}  # fmt: skip
        folders.append(written(tmp_path / name, small_job(rounds=1), {".": [record]}))
    new_log(folders[2] / "events.log", "0 began: a\n0 ended after round 1 without a result: b\n")
    assumes = "The bound assumes randomness from the operating system, as in a deployment."
    (own, same) = (
        parts(page_of_several(chosen), "At the end", Table)[0].caption
        for chosen in (folders, folders[1:])
    )
    assert "; epsilon at each run's own privacy.delta for a client" in own
    assert "; epsilon at delta 1e-05 for a client" in same
    assert "The bounds assume randomness" in own
    (lone,) = parts(page_of_several(folders[:2]), "At the end", Table)
    assert assumes in lone.caption
    (neither,) = parts(page_of_several([folders[0], folders[0]]), "At the end", Table)
    assert neither.caption.endswith("sorts by it.")
    shown = cards(page_of_several(folders))
    assert shown["Best model"].value == "two"
    assert assumes in shown["Smallest epsilon"].text


def test_whom_an_own_protection_holds_against_is_not_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedveil.pages.runs_page.attackers", lambda job: "")
    folders = []
    for name, epsilon in (("one", 2.5), ("two", 1.5)):
        (record,) = federated_records(1, 100 + 100 * len(folders))
        record["epsilon_run_every_round"] = epsilon
        folders.append(written(tmp_path / name, small_job(), {".": [record]}))
    least = cards(page_of_several(folders))["Smallest epsilon"]
    assert (least.value, least.text.rpartition(" takes ")[2]) == ("two", "part in every round")


def test_an_adapter_without_targets_leaves_them_to_peft(tmp_path: Path) -> None:
    run = run_of(tmp_path, *federated_records(4, 11))
    run.job["adapter"] = {"kind": "lora", "rank": 4, "alpha": 0.5, "targets": []}
    shown = dict(table(run_page(run), "Settings"))
    assert shown["adapter"] == "lora, rank 4, alpha 0.5, of peft's choice"


def test_a_loss_is_best_where_it_is_least_and_no_epsilon_is_no_card(tmp_path: Path) -> None:
    folders = []
    for name, value in (("one", 31.5), ("two", 7.25)):
        records = federated_records(1, 100 + 100 * len(folders))
        change = {"measures": {"rmse": "lower"}, "rmse": value, "epsilon_run_every_round": math.inf}
        if name == "two":
            change |= {"measures": {"rmse": "lower", "mae": "lower"}, "mae": 5.5}
        own = small_job(rounds=2)
        folders.append(written(tmp_path / name, own, {".": [records[0] | change]}))
    shown = cards(page_of_several(folders))
    assert (shown["Best model"].value, shown["Best model"].text) == (
        "two", "RMSE 7.25 after the last round",
    )  # fmt: skip
    assert "Smallest epsilon" not in shown
    usual = written(tmp_path / "three", small_job(), {".": federated_records(2, 900)})
    mixed = {folder.name: read_run(folder) for folder in (folders[0], usual)}
    assert {plot.note for plot in quality(mixed)} == {"On the test examples."}
    (noted,) = (plot.note for plot in quality({"three": mixed["three"]}) if plot.name == "loss")
    assert noted == "Mean cross-entropy on the test examples."
    (end,) = parts(page_of_several(folders), "At the end", Table)
    assert [row["MAE"] for row in end.records()] == ["-", "5.50"]


def test_each_run_has_its_own_job_and_findings_among_several(tmp_path: Path) -> None:
    folders = []
    for name, metric in (("one", "mse"), ("two", "psnr")):
        records = federated_records(1, 100 + 100 * len(folders))
        job = small_job(name=f"job of {name}", rounds=2)
        folders.append(written(tmp_path / name, job, {".": records}))
        opened = RunFolder.reopen(folders[-1])
        add_finding(opened, Finding("x", "quick", "rr", [Measured(metric, 0.5)]))
        opened.close()
    split = VerticalJob(name="job of three", task="vertical_parts:bottoms")
    folders.append(written(tmp_path / "three", split, {"lead": [], "bank": []}))
    opened = RunFolder.reopen(folders[-1])
    add_finding(opened, Finding("features", "quick", "none", [Measured("ssim", 0.5)]))
    opened.close()
    page = page_of_several(folders)
    for several, mixed in ((page, True), (page_of_several(folders[:2]), False)):
        assert ("have separate tables and plots" in str(several.lead[0])) == mixed
        assert several.sections[0].title == f"Every round{' of federated runs' * mixed}"
    for name, metric in (("one", "mse"), ("two", "psnr"), ("three", "ssim")):
        (found,) = parts(page, f"What attacks found in {name}", Table)
        assert found.rows[0][0] == metric
    for fold in parts(page, "The jobs", Fold):
        said, job = fold.parts
        assert f"name: job of {fold.title}\n" in job.text
        assert said.startswith("Job job of three" if fold.title == "three" else "logistic on")


def test_runs_of_one_name_are_named_by_their_folders(tmp_path: Path) -> None:
    folders = []
    for place in ("x", "y"):
        (tmp_path / place).mkdir()
        records = federated_records(1, 100 + 100 * len(folders))
        folders.append(written(tmp_path / place / "run", small_job(rounds=2), {".": records}))
    rows = table(page_of_several(folders), "At the end")
    assert [row[0] for row in rows] == list(map(str, folders))


def test_a_vertical_runs_settings_and_steps_are_its_own(tmp_path: Path) -> None:
    privacy = {"label_dp": {"eps": 3.5}, "embedding_dp": {"eps": 2.5, "reuse": False}}
    job = VerticalJob(
        name="own", task="vertical_parts:bottoms", epochs=4, batch_size=9, in_flight=3, seed=12,
        privacy=privacy,
    )  # fmt: skip
    records = [
        {"party": "lead", "epoch": epoch, "step": 2, "steps": 6, "loss": 0.5 - 0.1 * epoch,
         "bytes_sent_per_step": 300.0, "bytes_received_per_step": 4000.0}
        for epoch in (0, 2)
    ]  # fmt: skip
    looks = [{"party": "lead", "look": 14, "test_loss": 0.25},
             {"party": "lead", "look": 21, "test_loss": 0.5, "test_auc": 0.75}]  # fmt: skip
    folder = written(tmp_path / "run", job, {"lead": [*records, *looks], "bank": records[:1]})
    page = vertical_page(read_run(folder))
    shown = dict(table(page, "Settings"))
    assert {
        "job": "own", "task": "vertical_parts:bottoms", "parties": "bank, lead",
        "training": "4 epochs in batches of 9, on cpu", "micro-batches in a step": "3",
        "seed": "12",
    }.items() <= shown.items()  # fmt: skip
    assert "label_dp: (eps 3.5)" in shown["privacy"]
    assert "(eps 2.5, gradient straight_through, reuse False)" in shown["privacy"]
    following = page.lead[-1]
    assert isinstance(following, Fact)
    assert following.text == f"`fedveil vertical run --resume {folder}` resumes it"
    assert page.lead[0] == (
        "Job own: vertical_parts:bottoms, bank and lead: 4 epochs in batches of 9; still running, "
        "or killed."
    )
    (loss,) = (plot for plot in page.plots if plot.name == "loss")
    assert list(loss.curves[0].x) == [2, 14]
    (held_out,) = (plot for plot in page.plots if plot.name == "held-out-loss")
    assert (held_out.curves[0].x, held_out.curves[0].y) == ([14, 21], [0.25, 0.5])
    (row,) = table(page_of_several([folder]), "At the end")
    assert row[-1] == "4.3 KB"
    line = {"epsilon": 1.0, "delta": 0.2, "what": "a row"}
    (folder / "bank" / "accounts.jsonl").write_text(json.dumps(line) + "\n")
    ((*_, epsilon, _),) = table(page_of_several([folder]), "At the end")
    assert epsilon == f"{epsilon_text(1.0, 0.2)} for a row"
    weak = {"epsilon": 3.5, "delta": 0.0, "what": "a label"}
    (folder / "lead" / "accounts.jsonl").write_text(json.dumps(weak) + "\n")
    new_log(folder / "bank" / "events.log", "2026-03-01T10:00:00 began: bank's\n")
    both = page_of(folder)
    (words,) = parts(both, "What was promised", Points)
    assert [word.partition(":")[0] for word in words.lines] == [
        Figure(1.0, 0.2).promise, Figure(3.5, 0.0).promise,
    ]  # fmt: skip
    events = {fold.title: fold.parts[0].text for fold in parts(both, "Events of every party", Fold)}
    assert events["events.log of bank"] == "2026-03-01T10:00:00 began: bank's"
    assert events["events.log of lead"].count("\n") == 1
    opened = RunFolder.reopen(folder)
    add_finding(opened, Finding("features", "quick", "none", [Measured("mse", 0.5)]))
    opened.close()
    assert page_of(folder).title == "run"
    assert page_of(folder).lead[0] == page.lead[0]  # it is no page of an attack alone
    ended = "2026-03-01T10:00:00 began: lead's\n2026-03-01T11:00:00 ended after step 14: a limit\n"
    new_log(folder / "lead" / "events.log", ended)
    assert page_of(folder).lead[0] == str(page.lead[0]).replace(
        "still running, or killed", "ended after step 14: a limit"
    )
    (folder / "bank" / "metrics.jsonl").write_text('{"step": 2,\n')
    with pytest.raises(RunFolderError) as cut:
        page_of(folder)
    assert str(cut.value).endswith(f"resume it with: fedveil vertical run --resume {folder}")


def test_each_attack_has_its_effort_and_a_deployed_run_its_command(tmp_path: Path) -> None:
    job = small_job()
    (tmp_path / "job.yaml").write_text(job.to_yaml())
    found = [
        Finding(name, effort, "rr", [Measured("mse", 0.5)])
        for name, effort in (("one", "quick"), ("two", "full"))
    ]
    page = attack_page(ReadRun(tmp_path, job.model_dump(), [], found, []))
    facts = [fact for fact in page.lead if isinstance(fact, Fact)]
    assert [fact.text.split(".")[0] for fact in facts] == ["At effort quick", "At effort full"]
    assert parts(page, "What attacks found", str) == []  # the cards have the conclusions
    apart = ["0 clients are Flower SuperNodes; their reasons stay with them"]
    for events, command in (([], "fedveil run job.yaml"), (apart, "flwr run APP")):
        page = run_page(ReadRun(tmp_path, job.model_dump(), [], [], events))
        assert parts(page, "Repeat this run", Code)[0].text == command


def test_an_epsilon_of_one_example_is_never_shown_as_one_of_a_client(tmp_path: Path) -> None:
    """The second of two runs protects an example, and has the smaller epsilon."""
    folders = []
    for name, unit, epsilon in (("one", "client", 9.0), ("two", "example", 0.5)):
        *records, last = federated_records(2, 100)
        own = [{**r, "unit": unit, "epsilon_run_every_round": epsilon} for r in (*records, last)]
        job = small_job(rounds=2, protection={"name": "dp_encrypt"})
        folders.append(written(tmp_path / name, job, {".": own}))
    page = page_of_several(folders)
    least = cards(page)["Smallest epsilon"]
    assert "for one example of a client that takes part in every round" in least.text
    (shown,) = [[row[-3] for row in part.rows] for part in parts(page, "At the end", Table)]
    assert shown == ["9 (next to none)", "0.5 (strong) for one example"]
    listed = [row[3] for row in runs_table(run_list(tmp_path, "name")).rows]
    assert listed == shown
    (mixed,) = [plot.note for plot in page.plots if plot.name == "epsilon"]
    assert mixed.endswith("for a client drawn in every round, in two for one example of it.")
    (alone,) = [plot.note for plot in page_of(folders[1]).plots if plot.name == "epsilon"]
    assert alone.endswith("for one example of a client drawn in every round.")
