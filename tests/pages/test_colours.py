"""A protection has one colour, in every plot and next to any other curve."""

from __future__ import annotations

import math
import re
from itertools import combinations, permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedveil.pages import curves
from fedveil.pages.colours import PROTECTIONS, looks
from fedveil.pages.plot import Axis, Curve, Plot
from fedveil.pages.plotly_figure import figure
from fedveil.pages.read_run import ReadRun
from fedveil.pages.svg import svg
from fedveil.protections.catalog import POSITIONS


def plot_of(*protections: str) -> Plot:
    drawn = [Curve(f"run {n}", [1, 2], [0.5, 0.75], protection=name)
             for n, name in enumerate(protections)]  # fmt: skip
    return Plot("a", "A", Axis("round"), Axis("accuracy", unit="percent"), drawn)


def test_every_protection_has_a_colour_of_its_own() -> None:
    assert PROTECTIONS.keys() == POSITIONS.keys()
    assert len(set(PROTECTIONS.values())) == len(PROTECTIONS)


#: What a person without one kind of cone sees, in linear RGB (Machado et al. 2009), and all others.
VISIONS = {
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
                   [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
                     [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602],
                   [0.004733, 0.691367, 0.303900]],
    "usual": np.eye(3),
}  # fmt: skip


def linear(colour: str) -> Any:
    parts = np.array([*bytes.fromhex(colour[1:])]) / 255
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def lab(rgb: Any) -> Any:
    """Return a linear RGB colour in CIELAB, in which equal distances look about equal."""
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    shares = xyz @ np.clip(rgb, 0, 1) / [0.9505, 1, 1.089]
    f = np.where(shares > 0.008856, np.cbrt(shares), 7.787 * shares + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("vision", VISIONS)
def test_no_two_protections_look_alike_to_the_colour_blind(vision: str) -> None:
    """Lines without markers differ in nothing else. A distance of 2 is just noticeable."""
    seen = {name: lab(np.array(VISIONS[vision]) @ linear(c)) for name, c in PROTECTIONS.items()}
    for first, second in combinations(PROTECTIONS, 2):
        assert np.linalg.norm(seen[first] - seen[second]) > 9, (first, second)


@pytest.mark.parametrize("colour", PROTECTIONS.values(), ids=PROTECTIONS)
def test_a_line_stands_out_from_a_light_and_a_dark_page(colour: str) -> None:
    """WCAG 2.2 wants a contrast of 3. On a dark page, a line is mixed with 30% of white."""
    mixed = "#" + bytes(round(0.7 * part + 0.3 * 255) for part in bytes.fromhex(colour[1:])).hex()
    for line, ground in ((colour, "#ffffff"), (mixed, "#1c2024")):
        darker, lighter = sorted(linear(c) @ [0.2126, 0.7152, 0.0722] for c in (line, ground))
        assert (lighter + 0.05) / (darker + 0.05) >= 3


@pytest.mark.parametrize("order", [*permutations(["oue", "signds", "not_encrypt"])])
def test_the_place_in_a_plot_changes_no_colour(order: tuple[str, ...]) -> None:
    plot = plot_of(*order)
    lines = [trace["line"]["color"] for trace in figure(plot)["data"]]
    assert lines == [PROTECTIONS[name] for name in order]
    drawn = re.findall(r'stroke="(#[0-9A-F]{6})"', svg(plot).decode())
    assert {PROTECTIONS[name] for name in order} <= set(drawn)


def test_two_runs_of_one_protection_share_its_colour_and_differ_in_style() -> None:
    first, other, second = looks(plot_of("rr", "dp_encrypt", "rr").curves)
    assert first.colour == second.colour == PROTECTIONS["rr"] != other.colour
    assert first.style != second.style
    assert second.marks


@pytest.mark.parametrize("make", [curves.quality, curves.epsilon, curves.upload])
def test_a_runs_page_and_the_page_of_several_use_the_same_table(make: Any) -> None:
    record = {"round": 1, "accuracy": 0.5, "loss": 1.0, "auc": 0.5, "bytes_up_per_client": 7,
              "epsilon_run_every_round": 2.0}  # fmt: skip
    runs = {
        f"folder-{name}": ReadRun(Path(name), {"protection": {"name": name}}, [record], (), ())
        for name in ("signds", "distributed_dp")
    }
    plots = [*make(runs), *make({"folder-signds": runs["folder-signds"]})]
    assert plots
    if make is curves.upload:
        assert [plot.y.zero for plot in plots] == [True, True]
    for plot in plots:
        for curve, look in zip(plot.curves, looks(plot.curves), strict=True):
            assert look.colour == PROTECTIONS[curve.name.removeprefix("folder-")]


def test_a_plot_of_two_tasks_has_the_note_of_neither() -> None:
    """A cross-entropy beside another loss, and epsilons of two runs on one axis."""
    usual = {"round": 1, "accuracy": 0.5, "loss": 1.0, "auc": 0.5, "epsilon_run_every_round": 2.0,
             "epsilon_run_most_drawn": 1.0}  # fmt: skip
    own = {**usual, "measures": {"rmse": "lower"}, "rmse": 3.0, "epsilon_run_every_round": 7.0}
    runs = {name: ReadRun(Path(name), {"protection": {"name": "rr"}}, [record], (), ())
            for name, record in (("usual", usual), ("own", own))}  # fmt: skip
    notes = {plot.name: plot.note for plot in curves.quality(runs)}
    assert notes["loss"] == "On the test examples."
    alone = {plot.name: plot.note for plot in curves.quality({"usual": runs["usual"]})}
    assert alone["loss"] == "Mean cross-entropy on the test examples."
    (both,) = curves.epsilon(runs)
    (one,) = curves.epsilon({"own": runs["own"]})
    assert (both.y.log, one.y.log) == (True, False)
    assert [[*curve.y] for curve in both.curves] == [[2.0], [7.0]]


def test_a_plot_says_which_runs_have_an_infinite_epsilon_and_so_no_line() -> None:
    """The second run's epsilon is finite at first, and a run without records has none yet."""
    key = "epsilon_run_every_round"
    epsilons = {"bare": [math.inf] * 2, "late": [3.0, math.inf], "bound": [1.0, 2.0], "begun": [],
                "open": [math.inf]}  # fmt: skip
    runs = {
        name: ReadRun(Path(name), {"protection": {"name": "rr"}},
                      [{"round": n, key: epsilon} for n, epsilon in enumerate(own)], (), ())
        for name, own in epsilons.items()
    }  # fmt: skip
    (plot,) = curves.epsilon(runs)
    assert plot.note.endswith("Not drawn, because it is infinite: bare and open.")
    assert [curve.name for curve in plot.curves] == ["bare", "late", "bound", "open"]
    (plot,) = curves.epsilon({"bound": runs["bound"], "begun": runs["begun"]})
    assert "infinite" not in plot.note
    assert list(curves.epsilon({"bare": runs["bare"]})) == []


def test_an_accuracy_axis_is_in_percent_and_a_loss_axis_is_not() -> None:
    run = ReadRun(Path("r"), {"protection": {"name": "rr"}},
                  [{"round": 1, "accuracy": 0.5, "loss": 1.0, "auc": 0.5}], (), ())  # fmt: skip
    percent = {plot.name: figure(plot)["layout"]["yaxis"].get("tickformat")
               for plot in curves.quality({"r": run})}  # fmt: skip
    assert percent["accuracy"].endswith("%")
    assert "%" not in (percent["loss"] or "") + (percent["auc"] or "")


def test_curves_of_no_protection_differ_in_colour_and_mark_and_marks_stay() -> None:
    """A protection's first curve has marks if the curve asks for them."""
    own = [Curve(f"run {n}", [1, 2], [3, 4], marks=n == 1) for n in range(3)]
    known = [Curve("rr", [1, 2], [3, 4], marks=marks, protection="rr") for marks in (True, False)]
    first, second, third, alone, again = looks([*own, *known])
    assert len({(look.colour, look.marker) for look in (first, second, third)}) == 3
    assert len({look.marker for look in (first, second, third)}) == 3
    assert [look.marks for look in (first, second, third, alone, again)] == [
        False, True, False, True, True,
    ]  # fmt: skip


def test_a_part_of_the_time_that_no_round_took_is_not_drawn() -> None:
    records = [{"round": n, "seconds_training": 1.5 * n, "seconds_protection": 0.0} for n in (1, 2)]
    run = ReadRun(Path("r"), {"protection": {"name": "rr"}}, records, (), ())
    (plot,) = curves.seconds(run)
    assert [curve.name for curve in plot.curves] == ["training"]
    assert curves.axis_of("accuracy", "test accuracy").title == "test accuracy"
    assert curves.axis_of("auc").title == "AUC"


def test_a_curve_on_top_of_an_equal_one_has_another_line_style() -> None:
    x = [1, 2, 4]
    own = Curve("a", x, [5, 6, 8])
    curves = [own, Curve("b", x, [5, 6, 8]), Curve("c", x, [5, 6, 9]),
              Curve("d", x, [5, 6, 8], protection="rr")]  # fmt: skip
    assert [look.style for look in looks(curves)] == [0, 1, 0, 2]
