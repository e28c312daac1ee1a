"""Each figure that a page, a summary or an answer shows is the one that its label names.

In the records here no two numbers are equal, not even in the same row of different rounds, so a
figure that is taken from another row, round, party or run is another figure.
"""

from __future__ import annotations

import json
import math
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedveil.federated.job import Job
from fedveil.pages.notebook_view import plotly
from fedveil.pages.page import Fact, Page, Table
from fedveil.pages.read_run import read_run
from fedveil.pages.run_folder_page import page_of, page_of_several
from fedveil.pages.run_page import duration
from fedveil.privacy.guarantee_strength import Figure, epsilon_text
from fedveil.privacy.loss import format_delta, format_epsilon
from fedveil.record.byte_count import shown_bytes
from fedveil.run_display import describe, of_run
from fedveil.vertical.job import VerticalJob
from page_parts import small_job

Records = list[dict[str, Any]]
EVENTS = "2026-03-01T10:00:00 began: fedveil\n2026-03-01T10:01:17 warning: slow\n"
UNITS = ("per_bit", "per_parameter", "per_round", "run_every_round", "run_most_drawn")
PARTS = ("training", "protection", "aggregation", "evaluation")
QUALITY = ("accuracy", "loss", "auc", "clients_mean", "clients_worst_tenth", "clients_spread")


def federated_records(rounds: int, first: int) -> Records:
    """Return records in which every number is another one. `first` differs between runs."""
    number = count(first)
    records = []
    for round in range(1, rounds + 1):
        record: dict[str, Any] = {
            "round": round, "void": None, "unit": "client", "randomness": "system randomness",
            "in_clear": [], "rests_on_server": False, "withheld": {}, "failed": {},
            "rejected": {"wrong length": next(number)}, "unusable": {"NaN": next(number)},
            "clients": next(number), "reports": next(number), "dropped": next(number),
        }  # fmt: skip
        for place, name in enumerate(QUALITY):  # apart by more than a tenth of a percent
            record[name] = round * 0.1 + place * 0.0113 + 0.0007 * next(number)
        for name in ("bytes_up", "bytes_up_per_client", "bytes_down"):
            record[name] = 1100.0 * next(number)
        for name in (*PARTS, "round"):
            record[f"seconds_{name}"] = 0.3 * next(number)
        for unit in UNITS:
            record[f"epsilon_{unit}"] = 0.021 * next(number)
            record[f"delta_{unit}"] = 1e-9 * next(number)
            record[f"promise_{unit}"] = "strong"
        records.append(record)
    return records


def written(folder: Path, job: Job | VerticalJob, parties: dict[str, Records]) -> Path:
    """Write a run's folder, with a folder for each named party."""
    folder.mkdir()
    (folder / "job.yaml").write_text(yaml.safe_dump(job.model_dump(mode="json")), "utf-8")
    for name, records in parties.items():
        place = folder / name
        place.mkdir(exist_ok=True)
        lines = "".join(json.dumps(record) + "\n" for record in records)
        (place / "metrics.jsonl").write_text(lines, "utf-8")
        (place / "events.log").write_text(EVENTS, "utf-8")
    return folder


def table(page: Page, title: str) -> list[list[str]]:
    """Return the rows of a section's only table."""
    (section,) = (part for part in page.sections if part.title == title)
    (found,) = (part for part in section.parts if isinstance(part, Table))
    return [list(row) for row in found.rows]


def curves(page: Page) -> dict[tuple[str, str], tuple[list[float], list[float]]]:
    """Return the points of each curve, by the names of its plot and its own."""
    return {
        (plot.name, curve.name): (list(curve.x), list(curve.y))
        for plot in page.plots
        for curve in plot.curves
    }


def axes(page: Page) -> dict[str, tuple[str, bool]]:
    """Return the unit of each plot's y axis, and True if the axis begins at 0."""
    return {plot.name: (plot.y.unit, plot.y.zero) for plot in page.plots}


def total(records: Records, key: str) -> float:
    return math.fsum(record[key] for record in records)


@pytest.fixture
def records() -> Records:
    """Evaluation is not done in the second round."""
    made = federated_records(3, 11)
    made[1]["seconds_evaluation"] = 0.0
    return made


@pytest.fixture
def folder(records: Records, tmp_path: Path) -> Path:
    job = small_job(rounds=5, protection={"name": "dp_encrypt"})
    return written(tmp_path / "one", job, {".": records})


def test_a_page_draws_each_metric_of_each_round(folder: Path, records: Records) -> None:
    drawn = {
        **{(name, "one"): name for name in ("accuracy", "loss", "auc")},
        **{(f"clients_{part}", "one"): f"clients_{part}"
           for part in ("mean", "worst_tenth", "spread")},
        ("epsilon", "one"): "epsilon_run_every_round",
        ("bytes", "up: reports"): "bytes_up",
        ("bytes", "down: models"): "bytes_down",
        **{("seconds", part): f"seconds_{part}" for part in PARTS},
    }  # fmt: skip
    page = page_of(folder)
    assert axes(page) == {
        "accuracy": ("percent", False), "loss": ("", False), "auc": ("", False),
        **{f"clients_{part}": ("percent", False) for part in ("mean", "worst_tenth", "spread")},
        "epsilon": ("epsilon", False), "bytes": ("bytes", True), "seconds": ("seconds", True),
    }  # fmt: skip
    found = curves(page)
    for place, key in drawn.items():
        assert found.pop(place) == ([1, 2, 3], [record[key] for record in records]), place
    assert not found


def test_a_page_shows_each_figure_of_the_ledger(folder: Path, records: Records) -> None:
    rows = table(page_of(folder), "What was promised")
    for unit, (_, epsilon, delta, right, _) in zip(UNITS, rows, strict=True):
        figure = Figure(records[-1][f"epsilon_{unit}"], records[-1][f"delta_{unit}"])
        assert (epsilon, delta) == (epsilon_text(*figure), format_delta(figure.delta))
        least = (math.exp(figure.epsilon) + figure.delta) / (1 + math.exp(figure.epsilon))
        shown = float(right.split("at most ")[1].split("%")[0]) / 100
        assert least <= shown < least + 0.001001


def test_a_page_adds_up_bytes_and_time_of_all_rounds(folder: Path, records: Records) -> None:
    assert table(page_of(folder), "Bytes and time") == [
        ["upload of a client in a round", shown_bytes(records[-1]["bytes_up_per_client"])],
        ["all uploads", shown_bytes(total(records, "bytes_up"))],
        ["all downloads", shown_bytes(total(records, "bytes_down"))],
        ["wall-clock time of all rounds", duration(total(records, "seconds_round"))],
        *(
            [words, duration(total(records, f"seconds_{part}"))]
            for part, words in {
                "training": "training, summed over clients",
                "protection": "protection, summed over clients",
                "aggregation": "aggregation",
                "evaluation": "evaluation",
            }.items()
        ),
    ]


def test_a_page_counts_what_was_lost_in_all_rounds(folder: Path, records: Records) -> None:
    assert table(page_of(folder), "Reports that do not count") == [
        ["rejected", "wrong length", str(sum(r["rejected"]["wrong length"] for r in records))],
        ["unusable", "NaN", str(sum(r["unusable"]["NaN"] for r in records))],
        ["dropped", "no answer", str(sum(record["dropped"] for record in records))],
    ]


def test_no_two_figures_of_the_records_look_alike_on_a_page(records: Records) -> None:
    shown = [f"{record[name]:.1%}" for record in records for name in QUALITY]
    assert len(set(shown)) == len(shown) == 18


def test_a_page_begins_with_the_last_rounds_figures(folder: Path, records: Records) -> None:
    _, quality, promise, _ = page_of(folder).lead
    last = records[-1]
    assert quality.value == f"accuracy {last['accuracy']:.1%}"
    for said in (
        f"loss {last['loss']:#.3g}, AUC {last['auc']:#.3g} on the test examples after round 3 of 5",
        f"mean {last['clients_mean']:.1%}, worst tenth {last['clients_worst_tenth']:.1%}, "
        f"spread {last['clients_spread']:.1%}",
    ):
        assert said in quality.text
    html = page_of(folder).html()
    assert all(event in html for event in EVENTS.splitlines())
    whole = Figure(last["epsilon_run_every_round"], last["delta_run_every_round"])
    assert promise.value == str(whole)


def test_runs_with_the_best_figure_are_all_named(tmp_path: Path) -> None:
    job, records = small_job(rounds=2, protection={"name": "rr"}), federated_records(2, 301)
    worse = [*records[:-1], {**records[-1], "accuracy": records[-1]["accuracy"] - 0.3}]
    found = {"one": records, "two": records, "three": worse}
    page = page_of_several([written(tmp_path / name, job, {".": of}) for name, of in found.items()])
    cards = {fact.label: fact.value for fact in page.lead if isinstance(fact, Fact)}
    assert cards == {
        "Best model": "one and two", "Smallest epsilon": "all runs", "Smallest upload": "all runs",
    }  # fmt: skip


def test_runs_stand_beside_each_other_with_their_own_figures(folder: Path, tmp_path: Path) -> None:
    more = federated_records(2, 301)
    job = small_job(rounds=2, protection={"name": "rr"})
    page = page_of_several([folder, written(tmp_path / "two", job, {".": more})])
    last = more[-1]
    assert table(page, "At the end")[1] == [
        "two", "rr", "2 of 2", f"{last['accuracy']:.1%}", f"{last['accuracy']:.1%} (round 2)",
        f"{last['loss']:#.3g}", f"{last['auc']:#.3g}",
        epsilon_text(last["epsilon_run_every_round"], last["delta_run_every_round"]),
        shown_bytes(last["bytes_up_per_client"]), duration(total(more, "seconds_round")),
    ]  # fmt: skip
    found = curves(page)
    assert found["epsilon", "two"][1] == [record["epsilon_run_every_round"] for record in more]
    assert found["upload", "two"][1] == [record["bytes_up_per_client"] for record in more]
    differs = {row[0]: row[1:] for row in table(page, "What differs")}
    assert differs["rounds"] == ["5", "2"]
    assert differs["protection.name"] == ["'dp_encrypt'", "'rr'"]


@pytest.mark.parametrize("best", ["one", "two"])
def test_the_best_runs_are_chosen_by_their_last_rounds(best: str, tmp_path: Path) -> None:
    """In the first round, the other run is the better one."""
    found = {"one": federated_records(2, 11), "two": federated_records(2, 311)}
    keys = ("epsilon_run_every_round", "bytes_up_per_client")
    for name, records in found.items():
        for record, figure in zip(records, (2.0, 1.0) if name == best else (1.5, 3.0), strict=True):
            record |= dict.fromkeys(keys, figure) | {"accuracy": 0.75 - figure / 8}
    job = small_job(rounds=2, protection={"name": "rr"})
    page = page_of_several([written(tmp_path / name, job, {".": of}) for name, of in found.items()])
    cards = {fact.label: fact for fact in page.lead if isinstance(fact, Fact)}
    assert [card.value for card in cards.values()] == [best] * 3
    assert "62.5%" in cards["Best model"].text
    delta = found[best][-1]["delta_run_every_round"]
    assert cards["Smallest epsilon"].text.startswith(str(Figure(1.0, delta)))
    assert shown_bytes(1.0) in cards["Smallest upload"].text


def test_vertical_runs_stand_beside_each_other_with_their_own_figures(tmp_path: Path) -> None:
    job, folders = VerticalJob(task="vertical_parts:bottoms"), []
    for name, accuracy, sent in (("one", 0.8125, 3100.0), ("two", 0.5625, 4700.0)):
        looks: Records = [
            {
                "party": "lead", "epoch": at, "look": 6 * at,
                "test_accuracy": accuracy - 0.125 / at, "test_loss": accuracy / at,
            }
            for at in (1, 2)
        ]  # fmt: skip
        step = {"epoch": 0, "step": 6, "steps": 6, "bytes_sent_per_step": sent, "party": "lead"}
        records = {"lead": [step, *looks], "bank": []}
        folder = written(tmp_path / name, job, records)
        account = {"epsilon": sent / 1000, "delta": 1e-9, "what": f"a row of {name}"}
        (folder / "bank" / "accounts.jsonl").write_text(json.dumps(account) + "\n", "utf-8")
        folders.append(folder)
    rows = table(page_of_several(folders), "At the end")
    assert [[row[0], *row[3:]] for row in rows] == [
        [
            "one",
            "75.0%",
            "0.406",
            f"{epsilon_text(3.1, 1e-9)} for a row of one",
            shown_bytes(3100.0),
        ],
        [
            "two",
            "50.0%",
            "0.281",
            f"{epsilon_text(4.7, 1e-9)} for a row of two",
            shown_bytes(4700.0),
        ],
    ]


@pytest.mark.parametrize("unprotected", [[], [0], [1], [0, 1]])
def test_epsilon_is_drawn_if_it_is_finite_for_some_run(
    unprotected: list[int], tmp_path: Path
) -> None:
    folders = []
    for at, name in enumerate(("one", "two")):
        records = federated_records(2, 100 + 200 * at)
        if at in unprotected:
            records = [record | {"epsilon_run_every_round": math.inf} for record in records]
        folders.append(written(tmp_path / name, small_job(rounds=2), {".": records}))
    drawn = {curve for plot, curve in curves(page_of_several(folders)) if plot == "epsilon"}
    assert {name for at, name in enumerate(("one", "two")) if at not in unprotected} <= drawn
    assert bool(drawn) == (len(unprotected) < 2)


def test_of_three_runs_one_that_differs_is_the_only_one_shown_as_different(
    folder: Path, records: Records, tmp_path: Path
) -> None:
    job = small_job(rounds=5, protection={"name": "dp_encrypt"})
    folders = [
        folder,
        written(tmp_path / "two", job, {".": records}),
        written(tmp_path / "three", job.with_(rounds=7), {".": records}),
    ]
    assert table(page_of_several(folders), "What differs") == [["rounds", "5", "5", "7"]]


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        (None, ["accuracy"]), ("loss", ["loss"]), ("clients_spread", ["clients_spread"]),
        ("epsilon", ["epsilon_run_every_round"]), ("upload", ["bytes_up_per_client"]),
        ("bytes", ["bytes_up", "bytes_down"]), ("seconds", [f"seconds_{part}" for part in PARTS]),
    ],
)  # fmt: skip
def test_a_notebook_plots_the_metrics_that_are_named(
    name: str | None, keys: list[str], folder: Path, records: Records
) -> None:
    drawn = plotly(read_run(folder), name)
    assert [list(trace.y) for trace in drawn.data] == [[r[key] for r in records] for key in keys]
    assert {tuple(trace.x) for trace in drawn.data} == {(1, 2, 3)}


def test_a_notebook_plots_the_first_metric_of_the_task_by_default(tmp_path: Path) -> None:
    own = {"measures": {"rmse": "lower"}}
    records = [record | own | {"rmse": 0.5 * record["round"]} for record in federated_records(2, 3)]
    drawn = plotly(read_run(written(tmp_path / "run", small_job(), {".": records})), None)
    assert [list(trace.y) for trace in drawn.data] == [[0.5, 1.0]]


def test_a_terminal_and_a_program_are_told_the_last_rounds_figures(
    folder: Path, records: Records
) -> None:
    last = records[-1]
    line = describe(last)
    for said in (
        f"accuracy {last['accuracy']:.1%}",
        f"loss {last['loss']:#.3g}",
        f"up {shown_bytes(last['bytes_up_per_client'])}/client",
        f"epsilon {epsilon_text(last['epsilon_run_every_round'], last['delta_run_every_round'])}",
        f"most drawn {format_epsilon(last['epsilon_run_most_drawn'])}",
        f"{last['rejected']['wrong length']} clients left out",
    ):
        assert said in line
    answer = of_run(read_run(folder))
    assert answer["last"] == last
    assert answer["seconds"] == total(records, "seconds_round")
    assert (answer["rounds"], answer["best_round"]) == (3, 3)


def test_a_vertical_page_shows_each_partys_own_figures(tmp_path: Path) -> None:
    number = count(17)
    parties: dict[str, Records] = {}
    for party in ("lead", "bank", "shop"):
        parties[party] = [
            {
                "party": party, "epoch": 1, "step": step, "steps": 6, "loss": 0.01 * next(number),
                "bytes_sent_per_step": 100.0 * next(number),
                "bytes_received_per_step": 100.0 * next(number),
                "seconds_waiting": 0.1 * next(number),
            }
            for step in (4, 6)
        ]  # fmt: skip
    look = {"party": "lead", "epoch": 1, "look": 12, "test_loss": 0.3125, "test_accuracy": 0.8125}
    worse = look | {"epoch": 0, "look": 6, "test_loss": 0.4375, "test_accuracy": 0.5625}
    parties["lead"] = [worse, *parties["lead"], look]
    job = VerticalJob(name="small", task="vertical_parts:bottoms")
    folder = written(tmp_path / "run", job, parties)
    accounts = {
        party: [
            {"epsilon": 0.07 * next(number), "delta": 1e-9 * next(number), "what": f"{party} {i}"}
            for i in (1, 2)
        ]
        for party in ("bank", "shop")
    }
    for party, lines in accounts.items():
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / party / "accounts.jsonl").write_text(text, "utf-8")
    page = page_of(folder)
    assert axes(page) == {
        "loss": ("", False), "held-out-loss": ("", False), "held-out-accuracy": ("percent", False),
        "bytes": ("bytes", True), "waiting": ("seconds", True),
    }  # fmt: skip
    found = curves(page)
    for party, of_party in parties.items():
        for name, key in (
            (("bytes", f"{party}: sent"), "bytes_sent_per_step"),
            (("bytes", f"{party}: received"), "bytes_received_per_step"),
            (("waiting", party), "seconds_waiting"),
        ):
            shown = [record[key] for record in of_party if "step" in record]
            assert found.pop(name) == ([10, 12], shown)
    losses = [record["loss"] for record in parties["lead"] if "step" in record]
    assert found.pop(("loss", "run")) == ([10, 12], losses)
    assert found.pop(("held-out-loss", "run")) == ([6, 12], [0.4375, 0.3125])
    assert found.pop(("held-out-accuracy", "run")) == ([6, 12], [0.5625, 0.8125])
    assert not found
    rows = iter(table(page, "What was promised"))
    for party, lines in accounts.items():
        for line, row in zip(lines, rows, strict=False):
            figure = Figure(line["epsilon"], line["delta"])
            least = (math.exp(figure.epsilon) + figure.delta) / (1 + math.exp(figure.epsilon))
            assert row[:4] == [
                party,
                line["what"],
                epsilon_text(*figure),
                format_delta(figure.delta),
            ]
            shown = float(row[4].split("at most ")[1].split("%")[0]) / 100
            assert least <= shown < least + 0.001001
    _, quality, promise, _ = page.lead
    assert quality.value == "accuracy 81.2%"
    assert "loss 0.312" in quality.text
    worst = accounts["shop"][1]
    assert promise.value == str(Figure(worst["epsilon"], worst["delta"]))
    answer = of_run(read_run(folder))
    assert (answer["seconds"], answer["best_evaluation"]) == (77, look)
    assert answer["accounts"] == {"lead": []} | {
        party: [{"for": line.pop("what"), **line} for line in lines]
        for party, lines in accounts.items()
    }
