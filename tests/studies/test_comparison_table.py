"""The figures of a comparison, from what its runs have written down."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from comparing_parts import compared, small_job
from fedveil.pages.read_run import ReadRun
from fedveil.pages.svg import svg
from fedveil.privacy.finding import Finding, Measured
from fedveil.privacy.loss import format_epsilon
from fedveil.studies.comparison import Cell, Goal, Setting
from fedveil.studies.comparison_folder import Result
from fedveil.studies.comparison_table import Line, lines, plots, tables


def record(number: int, accuracy: float, **more: Any) -> dict[str, Any]:
    spent = {"per_bit": 0.0625, "per_parameter": 0.125, "per_round": 0.75,
             "run_every_round": 1.0000001}  # fmt: skip
    ledger = {f"epsilon_{name}": epsilon for name, epsilon in spent.items()}
    ledger |= {f"delta_{name}": 1e-5 for name in spent}
    figures = {
        "accuracy": accuracy, "loss": 1 - accuracy, "auc": 0.99,
        "bytes_up_per_client": 1000 + 500 * (number % 3),
        "seconds_training": 6.0, "seconds_protection": 3.0, "seconds_aggregation": 1.0,
        "seconds_round": 99.0,
    }  # fmt: skip
    return {"round": number, **figures, **ledger, **more}


def run(*records: dict[str, Any], findings: tuple[Finding, ...] = ()) -> ReadRun:
    return ReadRun(Path("run"), {}, records, findings, [])


def line(*runs: ReadRun, failures: tuple[str, ...] = (), **setting: Any) -> Line:
    return Line(Setting("dp_encrypt", **setting), runs, failures)


def row(table: Any, number: int = 0) -> dict[str, str]:
    return dict(zip(table.columns, table.rows[number], strict=True))


def test_a_line_has_the_mean_and_the_spread_over_the_seeds() -> None:
    found = line(run(record(1, 0.5), record(2, 0.8)), run(record(1, 0.7), record(2, 0.9)))
    quality, privacy = tables([found], Goal("accuracy", 0.7))
    assert row(quality) == {
        "setting": "dp_encrypt",
        "accuracy": "85.0% [80.0%, 90.0%]",
        "loss": "0.150",
        "AUC": "0.990",
        "upload": "1.8 KB",
        "share": "30.0%",
        "rounds to accuracy 70%": "2 [1, 2]",
    }
    assert row(privacy) == {
        "setting": "dp_encrypt",
        "epsilon of a bit": format_epsilon(0.0625),
        "epsilon of a parameter": format_epsilon(0.125),
        "epsilon of a round": "0.75",
        "epsilon of the whole run": "1.01 (strong)",
    }


def test_the_share_of_time_is_that_of_all_rounds_of_all_seeds() -> None:
    names = [f"seconds_{part}" for part in ("training", "protection", "aggregation")]
    seconds = (8.0, 1.0, 1.0), (4.0, 3.0, 3.0), (4.0, 0.5, 0.5)
    one, two, three = (
        record(1 + place % 2, 0.5, **dict(zip(names, each, strict=True)))
        for place, each in enumerate(seconds)
    )
    quality, _ = tables([line(run(one, two), run(three))])
    assert row(quality)["share"] == "18.0%"


def test_the_largest_epsilon_of_the_seeds_is_the_lines() -> None:
    small, large = record(1, 0.5), record(1, 0.5, epsilon_run_every_round=3.0)
    for runs in ((small, large), (large, small)):
        _, privacy = tables([line(*map(run, runs))])
        assert row(privacy)["epsilon of the whole run"] == "3 (weak)"


def test_the_caption_states_delta_and_noise_that_came_from_a_seed() -> None:
    """An epsilon at delta 0 also holds at a larger delta."""
    last = record(2, 0.5, randomness="simulation randomness") | {"delta_per_bit": 0.0}
    _, privacy = tables([line(run(last))])
    assert privacy.caption.startswith("What the ledger states at delta 1e-05, never rounded down")
    assert privacy.caption.endswith(
        ". The bound assumes randomness from the operating system, as in a deployment. This run "
        "used its seed instead"
    )
    secret = last | {"randomness": "operating system", "delta_run_every_round": 1e-3}
    _, swept = tables([line(run(secret))])
    assert "at each setting's own privacy.delta, never" in swept.caption
    assert "seed" not in swept.caption
    open_, nothing = last | {"epsilon_run_every_round": math.inf}, line(failures=("no report",))
    assert "seed" not in [*tables([line(run(open_))])][1].caption
    assert "states, never" in [*tables([nothing])][1].caption


def test_a_target_that_some_runs_or_none_reach() -> None:
    some = line(run(record(4, 0.9)), run(record(4, 0.1)))
    none = line(run(record(4, 0.1)))
    quality, _ = tables([some, none], Goal("accuracy", 0.7))
    assert [r[-1] for r in quality.rows] == ["4, 1 of 2 runs", "never"]
    quality, _ = tables([none], Goal.of("loss=0.95"))
    assert quality.rows[0][-1] == "4"
    quality, _, _ = tables([line(failures=("no report",))], Goal("accuracy", 0.7))
    assert quality.rows[0][-1] == "no result"


def test_seeds_that_end_alike_have_no_bounds() -> None:
    quality, privacy = tables([line(run(record(1, 0.5)), run(record(1, 0.5)))])
    assert row(quality)["accuracy"] == "50.0%"
    without = {k: v for k, v in record(1, 0.5).items() if "per_bit" not in k}
    _, privacy = tables([line(run(without))])
    assert row(privacy)["epsilon of a bit"] == "-"


def test_the_latest_attack_is_shown_and_a_setting_of_a_limit_has_its_own_reason() -> None:
    found = [
        Finding("membership", "quick", "rr", [Measured("loss AUC", value, low, high, 0.5, 9)])
        for value, low, high in ((0.75, 0.625, 0.875), (0.5, 0.375, 0.625))
    ]
    _, privacy = tables([line(run(record(1, 0.5), findings=tuple(found)))])
    assert privacy.rows[0][-1] == "0.500 [0.375, 0.625]"


def test_a_curve_has_the_mean_the_least_and_the_most_of_its_rounds() -> None:
    seeds = [(0.5, 0.8), (0.7, 0.9), (0.6, 0.85)]
    found = line(*(run(record(1, a), record(2, b), record(5, b + 0.05)) for a, b in seeds[:2]),
                 run(record(1, 0.6), record(2, 0.85)), epsilon=2.0)  # fmt: skip
    by_round, *_ = plots([found])
    (curve,) = by_round.curves
    assert [*curve.x] == [1, 2]
    assert [*curve.y] == pytest.approx([0.6, 0.85])
    assert ([*curve.low], [*curve.high]) == ([0.5, 0.8], [0.7, 0.9])
    other = line(run(record(1, 0.25, epsilon_run_every_round=8.0)), epsilon=8.0)
    (over,) = [plot for plot in plots([other, found]) if plot.x.log]
    (curve,) = over.curves
    assert [*curve.x] == [1.0000001, 8.0]
    assert [*curve.y] == pytest.approx([(0.85 + 0.95 + 0.85) / 3, 0.25])
    assert [*curve.low, *curve.high] == pytest.approx([0.85, 0.25, 0.95, 0.25])


def test_an_attack_stands_with_its_interval_and_is_the_best_on_the_model() -> None:
    figures = [
        Measured("loss AUC", 0.55, 0.5, 0.6, 0.5, 9),
        Measured("LiRA AUC", 0.65, 0.6, 0.7, 0.5, 9),
        Measured("LiRA balanced accuracy", 0.95, 0.9, 0.99, 0.5, 9),
        Measured("report's gradient AUC", 0.9, 0.8, 1.0, 0.5, 9),
        Measured("sum's loss AUC", 0.91, 0.8, 1.0, 0.5, 9),
        Measured("client AUC", 0.92, 0.8, 1.0, 0.5, 9),
    ]
    finding = Finding("membership", "quick", "dp_encrypt", figures)
    attacked, other = line(run(record(1, 0.5), findings=(finding,))), line(run(record(1, 0.5)))
    _, privacy = tables([attacked, other])
    assert [r[-1] for r in privacy.rows] == ["0.650 [0.600, 0.700]", "-"]


def test_a_failed_cell_is_a_line_with_its_reason() -> None:
    setting = Setting("rr")
    results = [Result(Cell(setting, 0, None), None, "no report was usable")]
    quality, privacy, failed = tables(lines(results))
    assert row(quality)["accuracy"] == row(privacy)["epsilon of a round"] == "no result"
    assert failed.rows == [["rr", "no report was usable"]]
    assert not [*plots(lines(results))]


def test_each_setting_has_the_runs_and_the_remarks_of_its_own_seeds() -> None:
    event = "2026-11-26T10:00:00 ended after 2 rounds: no round"
    ended = ReadRun(Path("run"), {}, [record(1, 0.5), record(2, 0.25)], (), [event])
    rr, oue = Setting("rr", {"rounds": "9"}), Setting("oue")
    results = [
        Result(Cell(rr, 3, None), run(record(1, 0.5))),
        Result(Cell(oue, 3, None), run(record(1, 0.75)), unattacked="too few clients"),
        Result(Cell(rr, 4, None), ended, unattacked="too few examples"),
        Result(Cell(oue, 4, None), None, "a client is lost"),
        Result(Cell(oue, 5, None), None, "a client is lost"),
    ]
    found = lines(results)
    assert [(str(one.setting), one.last("accuracy")) for one in found] == [
        ("rr, rounds 9", [0.5, 0.25]), ("oue", [0.75]),
    ]  # fmt: skip
    *_, remarks = tables(found)
    assert remarks.rows == [
        ["rr, rounds 9", "too few examples"],
        ["rr, rounds 9", "ended after round 2: no round"],
        ["oue", "too few clients"],
        ["oue", "a client is lost"],
    ]


def test_no_table_has_a_nan() -> None:
    """A run has diverged, another has no figure of its upload or its time."""
    lost = line(run(record(1, 0.5)), run(record(1, math.nan)), run(record(1, 0.7)))
    bare = line(run({k: v for k, v in record(1, 0.5).items() if "seconds" not in k}))
    quality, privacy, _ = tables([lost, bare, line(failures=("no report",))])
    assert row(quality)["accuracy"] == "undefined in 1 of 3 runs"
    assert row(quality, 1)["share"] == row(quality, 2)["upload"] == "no result"
    assert not any("nan" in cell for table in (quality, privacy) for r in table.rows for cell in r)


def test_accuracy_is_drawn_by_round_and_over_the_whole_runs_epsilon() -> None:
    found = [
        line(run(record(1, 0.5), record(2, 0.8, epsilon_run_every_round=e)), epsilon=e)
        for e in (8.0, 2.0)
    ]
    bare = line(*(run(record(1, a, epsilon_run_every_round=math.inf)) for a in (0.96, 0.98)))
    by_round, over = plots([*found, bare])
    assert [len(curve.x) for curve in by_round.curves] == [2, 2, 1]
    curve, level = over.curves
    assert ([*level.x], level.dashed) == ([2.0, 8.0], True)
    assert [*level.y] == pytest.approx([0.97, 0.97])
    assert (curve.name, [*curve.x], over.x.log) == ("dp_encrypt", [2.0, 8.0], True)
    assert svg(over).startswith(b"<?xml")


def test_each_set_of_swept_keys_has_its_own_curve_over_epsilon() -> None:
    found = [
        line(run(record(1, 0.5, epsilon_run_every_round=e + lr)), epsilon=e,
             changes={"training.lr": str(lr)})
        for lr in (0.1, 0.3) for e in (8.0, 2.0)
    ]  # fmt: skip
    alone = line(run(record(1, 0.5, epsilon_run_every_round=5.0)), epsilon=5.0,
                 changes={"training.lr": "9"})  # fmt: skip
    _, over = plots([*found, alone])
    assert {curve.name: [*curve.x] for curve in over.curves} == {
        "dp_encrypt, training.lr 0.1": [2.1, 8.1],
        "dp_encrypt, training.lr 0.3": [2.3, 8.3],
        "dp_encrypt, training.lr 9": [5.0],
    }


def test_figures_are_those_of_the_records(tmp_path: Path) -> None:
    results = compared(tmp_path / "c", "not_encrypt", "dp_encrypt", seeds=2)
    quality, privacy = tables(lines(results))
    runs = [path for path in (tmp_path / "c" / "runs").iterdir() if "dp_encrypt" in path.name]
    lasts = [json.loads((path / "metrics.jsonl").read_text().splitlines()[-1]) for path in runs]
    mean = sum(last["accuracy"] for last in lasts) / 2
    assert row(quality, 1)["accuracy"].startswith(f"{mean:.1%}")
    assert row(privacy, 0)["epsilon of the whole run"] == "inf (none)"
    assert float(row(privacy, 1)["epsilon of a round"]) >= lasts[0]["epsilon_per_round"]


@pytest.mark.parametrize("position", ["rr", "my.own:Thing", "a/b"])
def test_a_settings_name_is_a_folders(position: str) -> None:
    names = {Setting(position, {"x.y": v}, e).name for v in ("1", "../2") for e in (None, 2.0)}
    assert len(names) == 4
    assert not any("/" in name or name.startswith(".") for name in names)


def test_a_run_that_a_limit_ended_is_said(tmp_path: Path) -> None:
    job = small_job(privacy={"max_epsilon": 4.0})
    asked: dict[str, Any] = {"sweep": {"protection.dp_encrypt.dp_eps": ["2"]}}
    *_, remarks = tables(lines(compared(tmp_path / "c", "dp_encrypt", job=job, **asked)))
    ((setting, text),) = remarks.rows
    assert setting == "dp_encrypt, protection.dp_encrypt.dp_eps 2"
    assert text.startswith("ended after round 1: round 2 would bring the most-drawn client to")


@pytest.mark.parametrize(("settings", "shaded"), [(6, 6), (7, 0)])
def test_the_areas_of_many_settings_are_left_out(settings: int, shaded: int) -> None:
    found = [
        line(run(record(1, 0.5)), run(record(1, 0.7)), changes={"rounds": n})
        for n in range(settings)
    ]
    first, *_ = plots(found)
    assert sum(len(curve.low) > 0 for curve in first.curves) == shaded
    assert ("the least and the most" in first.note) == bool(shaded)


def test_a_loss_without_bounds_has_few_digits() -> None:
    quality, _ = tables([line(run(record(1, 0.5, loss=62841.95963, auc=0.51239)))])
    assert (row(quality)["loss"], row(quality)["AUC"]) == ("62,842.0", "0.512")


def test_epsilons_that_differ_a_little_have_folders_of_their_own() -> None:
    names = {Setting("rr", epsilon=epsilon).name for epsilon in (2.0, 2.25, 2.3, 2.0000001)}
    assert {"rr,epsilon=2", "rr,epsilon=2.25", "rr,epsilon=2.3"} < names
    assert len(names) == 4  # otherwise the settings for the larger epsilon are taken for both


def test_only_a_membership_attack_is_shown_and_its_best_has_the_largest_area() -> None:
    """A later attack of another kind is shown on the run's own page."""
    areas = [
        Measured("loss AUC", 0.55, 0.53, 0.57, 0.5, 9),
        Measured("LiRA AUC", 0.65, 0.51, 0.79, 0.5, 9),
    ]
    later = Measured("loss AUC", 0.99, 0.98, 1.0, 0.5, 9)
    found = (
        Finding("membership", "quick", "rr", areas),
        Finding("distinguish", "quick", "rr", [later]),
    )
    _, privacy = tables([line(run(record(1, 0.5), findings=found))])
    assert privacy.rows[0][-1] == "0.650 [0.510, 0.790]"


def test_an_epsilon_of_one_example_says_so_and_the_first_run_names_the_metrics() -> None:
    one = line(run(record(1, 0.5, unit="example")))
    own = {"measures": {"rmse": "lower"}, "rmse": 3.5}
    other = line(run(record(1, 0.25, unit="client", **own)))
    quality, privacy = tables([one, other])
    assert [row[-1] for row in privacy.rows] == ["1.01 (strong) for one example", "1.01 (strong)"]
    assert quality.columns[1:4] == ["accuracy", "loss", "AUC"]


def test_each_curve_has_the_look_of_its_protection_and_is_dashed_only_without_an_epsilon() -> None:
    """The second run of a line lacks a metric that the first one names."""
    noised = [
        Line(Setting("rr", epsilon=e), [run(record(1, a, epsilon_run_every_round=e))], ())
        for e, a in ((3.0, 0.25), (7.0, 0.75))
    ]
    bare = Line(Setting("not_encrypt"), [run(record(1, 0.5, epsilon_run_every_round=math.inf))], ())
    by_round, over = plots([*noised, bare])
    looks = [(curve.name, curve.protection, [*curve.low]) for curve in by_round.curves]
    assert looks == [("rr, epsilon 3", "rr", []), ("rr, epsilon 7", "rr", []),
                     ("not_encrypt", "not_encrypt", [])]  # fmt: skip
    curve, level = over.curves
    assert (curve.protection, curve.marks, curve.dashed) == ("rr", True, False)
    assert (level.protection, level.marks, level.dashed) == ("not_encrypt", False, True)
    assert (over.note, [*plots(noised)][1].note) == ("Dashed: without a finite epsilon.", "")
    lacking = {key: value for key, value in record(1, 0.5).items() if key != "auc"}
    quality, _ = tables([line(run(record(1, 0.5, auc=0.75)), run(lacking))])
    assert row(quality)["AUC"] == "0.750"
