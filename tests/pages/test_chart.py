"""A chart draws each value at its place on labelled axes."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from fedveil.errors import InvalidValue
from fedveil.pages.axis_scale import Scale, scale_of
from fedveil.pages.chart import MOST_POINTS, draw, fitted, sample
from fedveil.pages.colours import looks
from fedveil.pages.plot import Axis, Curve, Plot
from fedveil.pages.svg import svg
from fedveil.record.byte_count import shown_bytes

PERCENT, BYTES = Axis("accuracy", unit="percent"), Axis("bytes", zero=True, unit="bytes")


def labels(scale: Scale) -> list[str]:
    return [label for _, label in scale.ticks]


@pytest.mark.parametrize("values", [[0.93, 1.0], [0.4, 0.9999], [0.99], [1.0], [0.2, 0.21]])
def test_an_axis_of_accuracies_ends_at_100_percent_at_most(values: list[float]) -> None:
    scale = scale_of(PERCENT, values)
    assert scale.low <= min(values) <= max(values) <= scale.high <= 1
    assert scale.low < scale.high
    assert len(set(labels(scale))) == len(labels(scale)) >= 2
    assert all(label.endswith("%") and float(label[:-1]) <= 100 for label in labels(scale))


@pytest.mark.parametrize(
    ("axis", "values", "tight", "said"),
    [
        (BYTES, [40e6, 31.4e6], False, ["0", "10 MB", "20 MB", "30 MB", "40 MB"]),
        (BYTES, [1e6], False, ["0", "0.2 MB", "0.4 MB", "0.6 MB", "0.8 MB", "1.0 MB"]),
        (BYTES, [1.2e3, 2.4e3], False, ["0", "0.5 KB", "1.0 KB", "1.5 KB", "2.0 KB", "2.5 KB"]),
        (Axis("round"), [1, 2, 3], True, ["1", "2", "3"]),
        (Axis("step"), [45, 2350], True, ["500", "1,000", "1,500", "2,000"]),
        (Axis("epsilon", log=True), [0.3, 400], False, ["0.1", "1", "10", "100", "1,000"]),
        (Axis("epsilon", log=True), [1, 7], False, ["1", "2", "5", "10"]),
        (PERCENT, [0.8125, 0.8321], False, ["81.0%", "81.5%", "82.0%", "82.5%", "83.0%", "83.5%"]),
    ],
)  # fmt: skip
def test_labels_are_round_numbers_in_their_unit(
    axis: Axis, values: list[float], tight: bool, said: list[str]
) -> None:
    assert labels(scale_of(axis, values, tight=tight)) == said


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize(
    "values",
    [
        [], [math.nan], [math.inf, 3.0], [-1.7e308, 1.7e308], [5e-324], [5e-324, 1.7e308], [0.0],
        [-3.0], [1e15, 1e15 + 1], [1e-9, 1.1e-9], [7.0, 7.0], [0.1 + 0.2, 0.3],
    ],
)  # fmt: skip
def test_any_values_have_an_axis(values: list[float], log: bool) -> None:
    """A record from somebody else may hold any number."""
    for unit in ("", "percent", "bytes"):
        scale = scale_of(Axis("x", log=log, unit=unit), values)
        assert scale.low < scale.high
        assert len(scale.ticks) < 20
        assert all(a < b for (a, _), (b, _) in pairwise(scale.ticks))
        places = [scale.at(value) for value in values]
        assert all(place is None or -1e-9 <= place <= 1 + 1e-9 for place in places)
        assert [place is None for place in places] == [
            not abs(value) < 1e101 or (log and value < 1e-101) for value in values
        ]


def drawn(plot: Plot, kind: str) -> list[list[list[tuple[float, float]]]]:
    """The coordinates of each piece of each curve's `kind`, in a plot's drawing."""
    root = ElementTree.fromstring(f"<svg>{draw(plot).elements}</svg>")
    groups = [group for group in root.iter("g") if "curve" in group.get("class", "")]
    return [
        [
            [tuple(map(float, point.split())) for point in piece.strip("Z").split("L")]
            for path in group.iter("path")
            if path.get("class") == kind
            for piece in path.get("d", "").split("M")[1:]
        ]
        for group in groups
    ]  # fmt: skip


def test_a_line_goes_through_its_values_and_has_their_gaps() -> None:
    """Read the values back off the drawing, by the places of two labels on each axis."""
    xs, ys = [2, 3, 5, 8, 13, 21], [0.31, 0.47, math.nan, 0.53, 0.89, 0.61]
    plot = Plot("a", "A", Axis("round"), PERCENT, [Curve("own", xs, ys)])
    ((first, second),) = drawn(plot, "line")
    drawing = draw(plot)
    left, top, right, bottom = drawing.data["box"]
    low, high = scale_of(PERCENT, ys).low, scale_of(PERCENT, ys).high
    read = [
        (2 + (x - left) / (right - left) * 19, low + (bottom - y) / (bottom - top) * (high - low))
        for x, y in [*first, *second]
    ]
    known = [(x, y) for x, y in zip(xs, ys, strict=True) if not math.isnan(y)]
    assert len(first) == 2
    for (x, y), (true_x, true_y) in zip(read, known, strict=True):
        assert (x, y) == pytest.approx((true_x, true_y), abs=0.06)
    assert drawing.data["curves"][0]["y"] == [None if math.isnan(y) else y for y in ys]


def test_each_label_stands_at_its_own_value() -> None:
    xs, ys = [2, 4, 9], [10.0, 30.0, 70.0]
    drawing = draw(Plot("a", "A", Axis("round"), Axis("loss"), [Curve("own", xs, ys)]))
    left, top, right, bottom = drawing.data["box"]
    place = r'<text x="([\d.]+)" y="([\d.]+)" text-anchor="{}">([\d.]+)</text>'
    beside = re.findall(place.format("end"), drawing.elements)
    below = re.findall(place.format("middle"), drawing.elements)
    scale = scale_of(Axis("loss"), ys)
    assert (len(beside), len(below)) == (len(scale.ticks), 4)
    for _, y, label in beside:  # the middle of a letter is 4 units above its foot
        value = scale.low + (bottom + 4 - float(y)) / (bottom - top) * (scale.high - scale.low)
        assert value == pytest.approx(float(label), abs=0.1)
    for x, _, label in below:
        assert 2 + (float(x) - left) / (right - left) * 7 == pytest.approx(float(label), abs=0.01)


def test_a_legend_shows_the_line_and_the_marks_of_its_curve() -> None:
    curves = [
        Curve(f"run {n}", [1, 2], [n, n + 1], marks=True, protection=name)
        for n, name in enumerate(("rr", "oue", "rr", "signds"))
    ]

    def traits(text: str) -> list[tuple[str, list[str], list[str]]]:
        return [
            (colour, re.findall('dasharray="([^"]*)"', inner),
             re.findall(r'class="mark" d="M[\d.]+ [\d.]+(m[^M"]*)', inner))
            for colour, inner in re.findall(r'style="--c:(#\w+)"[^>]*>(.*?)</g>', text)
        ]  # fmt: skip

    drawn = traits(draw(Plot("a", "A", Axis("x"), Axis("y"), curves)).elements)
    legend = traits("".join(map(sample, curves, looks(curves))))
    assert legend == drawn
    assert [bool(dashes) for _, dashes, _ in drawn] == [False, False, True, False]
    assert drawn[0] != drawn[2]  # two runs of one protection


def test_a_legend_shows_a_curve_of_one_point_as_its_marker() -> None:
    curves = [Curve("short", [3], [5]), Curve("gaps", [1, 2], [4, math.nan]),
              Curve("long", [1, 3], [4, 6]), Curve("bar", [3], [5], bars=True)]  # fmt: skip
    legend = [sample(curve, look) for curve, look in zip(curves, looks(curves), strict=True)]
    assert ['class="line"' in shown for shown in legend] == [False, False, True, True]
    assert ['class="mark"' in shown for shown in legend] == [True, True, False, False]


@pytest.mark.parametrize("log", [False, True])
def test_the_data_of_a_drawing_are_those_of_its_own_axes(log: bool) -> None:
    curves = [Curve("own", [1, 100], [2e3, 4e6]), Curve("next", [10], [3e3], protection="rr")]
    axes = Axis("time", log=log, unit="seconds"), Axis("size", log=not log, unit="bytes")
    data = draw(Plot("a", "A", *axes, curves), 500, 300).data
    assert data["x"] == {"low": 1, "high": 100, "log": log, "unit": "seconds", "title": "time"}
    assert (data["unit"], data["width"]) == ("bytes", 500)
    assert data["curves"] == [
        {"name": curve.name, "colour": look.colour, "x": curve.x, "y": curve.y}
        for curve, look in zip(curves, looks(curves), strict=True)
    ]


def test_a_curve_has_as_many_values_as_points() -> None:
    for values in ({"y": [1]}, {"low": [1]}, {"high": [1, 2, 3]}):
        with pytest.raises(InvalidValue, match="the curve own has 2 x and"):
            Curve(**{"name": "own", "x": [1, 2], "y": [3, 4], **values})


def test_a_point_between_gaps_is_marked() -> None:
    curve = Curve("own", [1, 2, 3, 4, 5], [4.0, 5.0, math.inf, 7.0, math.nan])
    plot = Plot("a", "A", Axis("round"), Axis("loss"), [curve])
    assert len(drawn(plot, "line")[0]) == 1
    assert draw(plot).elements.count('class="mark"') == 1


def test_a_spread_surrounds_what_is_finite() -> None:
    curve = Curve("own", [1, 2, 4], [1, 2, 3], [0.5, math.nan, 2], [2, math.inf, 4])
    plot = Plot("a", "A", Axis("x"), Axis("y"), [curve])
    ((around,),) = drawn(plot, "spread")
    assert len(around) == 4
    assert {x for x, _ in around} == {around[0][0], around[1][0]}


def test_a_long_curve_keeps_its_ends_and_extremes() -> None:
    """A peak of one round in 20,000 stays on the page, and the page stays small.

    Every piece has its extremes between its ends.
    """
    ys = [math.sin(n / 700) + n * 37 % 11 for n in range(20_003)]
    ys[12_345], ys[17] = 99.5, -77.25
    plot = Plot("a", "A", Axis("round"), Axis("loss"), [Curve("own", range(20_003), ys)])
    drawing = draw(plot)
    sent = drawing.data["curves"][0]
    assert len(sent["x"]) <= MOST_POINTS
    assert (
        dict(zip(sent["x"], sent["y"], strict=True)).items() >= {12_345: 99.5, 17: -77.25}.items()
    )
    assert (sent["x"][0], sent["x"][-1]) == (0, 20_002)
    assert sent["x"] == sorted(set(sent["x"]))
    assert len(drawing.elements) < 30_000


def test_a_file_has_the_same_drawing_with_title_and_legend() -> None:
    curves = [Curve("one", [1, 2], [3, 4]), Curve("two", [1, 2], [5, 7], dashed=True)]
    plot = Plot("a", "Both", Axis("x"), Axis("y"), curves)
    assert svg(plot) == svg(plot)
    texts = re.findall("<text[^>]*>([^<]*)</text>", svg(plot).decode())
    assert {"Both", "x", "y", "one", "two"} <= set(texts)
    assert svg(plot).count(b"curve dashed") == 2  # the line, and its sample in the legend
    assert ElementTree.fromstring(svg(plot)).get("height") == str(400 + 2 * 12 + 28 + 2 * 20)


@pytest.mark.parametrize(
    ("count", "said"),
    [(0, "0 B"), (999, "999 B"), (999.7, "1 KB"), (40e6, "40 MB"), (40.46e9, "40.5 GB"),
     (999_960, "1 MB"), (1.25e15, "1250000 GB")],
)  # fmt: skip
def test_bytes_are_a_number_with_its_unit(count: float, said: str) -> None:
    assert shown_bytes(count) == said


def test_bars_stand_on_zero_beside_each_other() -> None:
    """Three bars, the second with an empty interval. A bar takes four fifths of its place."""
    bars = Curve("own", [0, 1, 2], [2.0, 4.0, 3.0], [1.5, 4.0, 2.0], [2.5, 4.0, 3.5], bars=True)
    plot = Plot("a", "A", Axis("x", names=("a", "b", "c")), Axis("y"), [bars])
    drawing = draw(plot)
    left, top, right, bottom = drawing.data["box"]
    path = re.search('class="bar" d="([^"]*)"', drawing.elements)
    assert path is not None
    found = re.findall(r"M([\d.]+) ([\d.]+)V([\d.]+)h([\d.]+)V", path[1])
    assert [float(wide) for *_, wide in found] == pytest.approx(
        [0.8 * (right - left) / 3.2] * 3, abs=0.1
    )
    for at, (start, base, end, wide) in enumerate(found):
        middle = float(start) + float(wide) / 2
        assert middle == pytest.approx(left + (at + 0.6) / 3.2 * (right - left), abs=0.2)
        assert float(base) == pytest.approx(bottom, abs=0.1)  # the axis begins at 0
        value = (bottom - float(end)) / (bottom - top) * 4.0
        assert value == pytest.approx([2.0, 4.0, 3.0][at], abs=0.05)
    (errors,) = re.findall('class="error" d="([^"]*)"', drawing.elements)
    found = re.findall(r"M([\d.]+) ([\d.]+)V([\d.]+)", errors)
    ends = [[(bottom - float(y)) / (bottom - top) * 4.0 for y in pair] for _, *pair in found]
    assert ends == [pytest.approx([1.5, 2.5], abs=0.05), pytest.approx([2.0, 3.5], abs=0.05)]


def test_a_spread_goes_along_the_highs_and_back_along_the_lows() -> None:
    curve = Curve("own", [1, 2, 4], [1, 2, 3], [0.5, 1, 2], [2, 3, 4])
    plot = Plot("a", "A", Axis("x"), Axis("y"), [curve])
    ((around,),) = drawn(plot, "spread")
    box = draw(plot).data["box"]
    assert all(box[1] <= y <= box[3] for _, y in around)
    across = [x for x, _ in around]
    assert across == sorted(across[:3]) + sorted(across[3:], reverse=True)
    assert all(
        high < low
        for high, low in zip([y for _, y in around[:3]], [y for _, y in around[:2:-1]], strict=True)
    )


def test_labels_have_room_beside_and_below() -> None:
    """The longest label of the y axis sets the left edge; names on the x axis are left out."""
    names = [f"a long name {n}" for n in range(13)]
    wide = Plot(
        "a", "A", Axis("x", names=names), Axis("y"), [Curve("own", range(13), [1234567.0] * 13)]
    )
    drawing = draw(wide)
    texts = re.findall(">([^<]*)</text>", drawing.elements)
    longest = max(len(text) for text in texts if "," in text)
    assert drawing.data["box"][0] == pytest.approx(7 + 7.2 * longest, abs=0.1)
    below = re.findall('<text x="([0-9.]+)" [^>]*>(a long name[^<]*)<', drawing.elements)
    assert (below[0][1], len(below)) == ("a long name 0", 3)
    assert all(float(b) - float(a) > 7.2 * 14 for (a, _), (b, _) in pairwise(below))
    assert fitted("abcdefghij", 10) == "abcdefghij"
    assert fitted("abcdefghijk", 10) == "abcdefg..."


def test_an_axis_from_zero_takes_negative_values_and_a_logarithm_its_place() -> None:
    below = scale_of(Axis("x", zero=True), [-5.0, -2.0])
    assert (below.low < -4.9, below.high) == (True, 0)
    tight = scale_of(Axis("step"), [3, 17], tight=True)
    assert (tight.low, tight.high) == (3, 17)
    assert [value for value, _ in tight.ticks] == [5, 10, 15]
    log = scale_of(Axis("x", log=True), [10, 10_000])
    assert log.at(100) == pytest.approx(1 / 3)
    assert labels(scale_of(Axis("x"), [0, 400_000]))[-1] == "400,000"


def test_a_plot_sends_no_epsilon_that_is_rounded_down() -> None:
    costs = [1.00000001, 2.5, 12345.6789, math.inf]
    curve = Curve("run", costs, costs)
    axis = Axis("epsilon", unit="epsilon")
    drawing = draw(Plot("epsilon", "Epsilon", axis, axis, [curve]))
    (sent,) = drawing.data["curves"]
    assert sent["x"] == sent["y"] == [1.0001, 2.5, 12346, None]
