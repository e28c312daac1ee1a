"""Drift of new rows: the figures against their definitions, and what is said of each column."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import kolmogorov
from scipy.stats import ks_2samp

from fedveil.errors import DataInvalid
from fedveil.tasks.tables import drift as module
from fedveil.tasks.tables.column_encoding import Encoding, Numbers, Words
from fedveil.tasks.tables.drift import ColumnDrift, Summary, drift
from fedveil.tasks.tables.new_rows import read_encoding, read_rows, schema_of
from fedveil.tasks.tables.table_file import Table, Wanted, read
from fedveil.vertical.task import NewRows
from fedveil.vertical.task_settings import TableSettings, TablesSettings
from scoring_parts import write_table


def table(path: Path, **columns: Any) -> Table:
    count = len(next(iter(columns.values())))
    write_table(path, {"id": range(count), **columns})
    words = tuple(name for name in columns if name.startswith("w"))
    numbers = tuple(name for name in columns if name not in words)
    return read(str(path), Wanted("id", numbers, words, columns))


def compared(tmp_path: Path, before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    old = table(tmp_path / "old.csv", **before)
    summary = Summary.of(old, list(before), [name for name in before if name.startswith("w")])
    assert Summary.read(summary.written(), "file") == summary
    return {one.column: one for one in drift(summary, table(tmp_path / "new.csv", **now))}


def index(p: list[float], q: list[float]) -> float:
    """Return the population stability index of two lists of counts."""
    p, q = (np.array(c) + 0.5 for c in (p, q))  # type: ignore[assignment]
    p, q = p / sum(p), q / sum(q)  # type: ignore[operator]
    return float(((q - p) * np.log(q / p)).sum())  # type: ignore[operator]


def test_numbers_are_compared_as_scipy_does(tmp_path: Path) -> None:
    draw = np.random.default_rng(1)
    before = {"a": draw.normal(size=901).round(3), "b": draw.binomial(5, 0.2, 901)}
    now = {"a": draw.normal(0.4, 1.3, size=207).round(3), "b": draw.binomial(5, 0.35, 207)}
    found = compared(tmp_path, before, now)
    for name in before:
        exact = ks_2samp(before[name], now[name])
        assert exact.statistic - 1 / 128 <= found[name].ks <= exact.statistic + 1e-12
        assert found[name].has_shifted == (exact.pvalue < 0.001)
    assert found["b"].ks == pytest.approx(ks_2samp(before["b"], now["b"]).statistic, abs=1e-12)


def test_the_index_is_that_of_its_definition(tmp_path: Path) -> None:
    before = {"n": np.repeat([1.0, 2.0], [60, 140]), "w": np.repeat(["x", "y"], [150, 50])}
    now = {"n": np.repeat([1.0, 2.0], [90, 30]), "w": np.repeat(["x", "y", "z"], [30, 60, 30])}
    found = compared(tmp_path, before, now)

    assert found["n"].psi == pytest.approx(index([60, 140, 0, 0], [90, 30, 0, 0]))
    assert found["w"].psi == pytest.approx(index([150, 50, 0, 0], [30, 60, 30, 0]))
    assert found["w"].unseen == {"z": 30}
    assert found["w"].has_shifted


def test_missing_cells_are_a_group_of_their_own_and_no_numbers(tmp_path: Path) -> None:
    before = {"n": [1] * 60 + [2] * 140 + [""] * 40, "w": ["x"] * 150 + ["y"] * 60 + [""] * 30}
    now = {"n": [1] * 40 + [2] * 60 + [""] * 5, "w": ["x"] * 50 + ["y"] * 40 + [""] * 15}
    found = compared(tmp_path, before, now)
    assert found["n"].psi == pytest.approx(index([60, 140, 0, 40], [40, 60, 0, 5]))
    assert found["w"].psi == pytest.approx(index([150, 60, 0, 30], [50, 40, 0, 15]))
    assert [(found[c].rows, found[c].missing, found[c].unseen) for c in "nw"] == [
        (105, 5, {}), (105, 15, {})]  # fmt: skip
    assert found["n"].ks == pytest.approx(0.1)
    assert found["n"].ks_p == pytest.approx(kolmogorov(0.1 * (200 * 100 / 300) ** 0.5))


def test_a_word_of_held_out_rows_alone_is_unseen(tmp_path: Path) -> None:
    rows = table(tmp_path / "t.csv", w=["x", "y"] * 60 + ["z"] * 9)
    summary = Summary.of(rows.rows(np.arange(129) < 120), ["w"], ["w"])
    assert summary.columns["w"].words == {"x": 60, "y": 60}  # type: ignore[union-attr]
    (found,) = drift(summary, rows)
    assert found.unseen == {"z": 9}


@pytest.mark.parametrize(("rows", "lacks"), [(100, 0), (100, 1), (99, 0)])
def test_a_hundred_rows_are_compared_and_fewer_are_not(
    rows: int, lacks: int, tmp_path: Path
) -> None:
    before = {"n": range(200), "w": ["x", "y"] * 100}
    found = compared(
        tmp_path, before, {"n": [7] * (rows - lacks) + [""] * lacks, "w": ["x"] * rows}
    )
    assert [found[c].psi is not None for c in "nw"] == [rows == 100] * 2
    assert (found["n"].ks is not None) == (rows - lacks == 100)


def test_a_summary_has_129_points_10_groups_and_the_most_frequent_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_WORDS", 2)
    words = ["c"] * 3 + ["b"] * 90 + ["a"] * 5 + ["d"] * 200 + [""] * 2
    rows = table(tmp_path / "t.csv", n=range(300), w=words)
    summary = Summary.of(rows, ["n", "w"], ["w"])
    numbers, texts = summary.columns["n"], summary.columns["w"]
    assert summary.rows == 300
    assert (len(numbers.points), len(numbers.groups), len(numbers.counts)) == (129, 9, 11)
    assert numbers.counts[:2] == (30, 30)
    assert (texts.words, texts.others, texts.missing) == ({"d": 200, "b": 90}, 8, 2)


@pytest.mark.parametrize(
    ("unseen", "psi", "ks", "ks_p", "shifted", "said"),
    [
        ({}, 0.099, None, None, False, "population stability index 0.099 (stable)"),
        ({}, 0.24, 0.3, 0.002, False, "population stability index 0.240 (moving); "
         "Kolmogorov-Smirnov 0.300 (p 0.002)"),
        ({}, 0.26, None, None, True, "population stability index 0.260 (shifted)"),
        ({}, 0.0, 0.02, 0.0009, True, "population stability index 0.000 (stable); "
         "Kolmogorov-Smirnov 0.020 (p 0.0009)"),
        ({"p": 2, "q": 3, "r": 4}, None, None, None, False,
         "9 rows have words that no training row has: 'p', 'q', 'r'"),
        ({"p": 2, "q": 3, "r": 4, "s": 1}, None, None, None, False,
         "10 rows have words that no training row has: 'p', 'q', 'r', ..."),
    ],
)  # fmt: skip
def test_what_is_said_of_a_column(
    unseen: Any, psi: Any, ks: Any, ks_p: Any, shifted: bool, said: str
) -> None:
    found = ColumnDrift("c", 50, 0, unseen, psi, ks, ks_p)
    assert (found.has_shifted, str(found)) == (shifted, f"c: {said}")


def test_like_rows_do_not_drift_and_few_rows_say_nothing(tmp_path: Path) -> None:
    draw = np.random.default_rng(7)
    before = {"n": draw.normal(size=1500), "w": draw.choice(["x", "y"], 1500)}
    now = {"n": draw.normal(size=400), "w": draw.choice(["x", "y"], 400)}
    found = compared(tmp_path, before, now)
    assert not any(one.has_shifted for one in found.values())
    few = compared(tmp_path, before, {"n": ["", "9"], "w": ["x", "q"]})
    assert str(few["n"]) == "n: 1 of 2 cells are missing"
    assert str(few["w"]) == "w: 1 row has words that no training row has: 'q'"


def test_a_word_beyond_the_summary_is_not_called_unseen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_WORDS", 2)
    found = compared(tmp_path, {"w": ["a", "a", "b", "b", "c"]}, {"w": ["c", "d"]})
    assert found["w"].unseen == {}


def test_a_damaged_summary_is_refused() -> None:
    with pytest.raises(DataInvalid, match="not a summary"):
        Summary.read(b'{"rows": 0, "columns": {}}', "file")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The files that a run saves of a party's table, with dates, numbers and words."""
    folder = tmp_path / "run"
    folder.mkdir()
    dates = [f"2024-01-{n % 28 + 1:02d}" for n in range(120)]
    rows = read_bank(tmp_path / "t.csv", range(120), dates)
    encoding = Encoding(columns={
        "d": Numbers.of(rows, "d", 4), "x": Numbers.of(rows, "x", 4), "w": Words.of(rows, "w", 3)
    })  # fmt: skip
    (folder / "table-bank.json").write_bytes(encoding.written())
    (folder / "summary-bank.json").write_bytes(Summary.of(rows, ["d", "x", "w"], ["w"]).written())
    return folder


def read_bank(path: Path, x: Any, d: Any, w: Any = None, **more: Any) -> Table:
    x = list(x)
    columns = {"client": [f"K{n}" for n in range(len(x))], "x": x, "d": d}
    write_table(path, {**columns, "w": w or ["p", "q", "q"] * 40, **more})
    return read(str(path), Wanted("client", ("x", "d"), ("w",), {"x", "d", "w"}))


def task_of(**settings: Any) -> TablesSettings:
    table = {"bank": {"id": "client", "categories": {"w": 3}, **settings}}
    job = {"leader": "lead", "owners": ["bank"], "bins": 4, "ids": {"case": "fold"}}
    return TablesSettings.model_validate({**job, "files": table})


def scored(run: Path, path: Path, **settings: Any) -> NewRows:
    return read_rows(str(path), task_of(**settings), run, "bank")


def test_rows_to_score_are_read_as_the_training_rows_were(run: Path, tmp_path: Path) -> None:
    new = tmp_path / "new.csv"
    dates = [f"{n % 28 + 1}.1.2024" for n in range(120)]
    read_bank(new, range(3, 123), dates)
    found = scored(run, new)
    assert found.columns.ids.tolist() == [f"k{n}" for n in range(120)]
    assert found.notes == (f"{new}: UTF-8, separated by comma; dates (day first) in d",)
    facts = {fact["column"]: fact for fact in found.drift}
    assert facts["x"]["ks"] == pytest.approx(3 / 120)
    assert not any(fact["has_shifted"] for fact in facts.values())
    read_bank(new, [*range(119), ""], [20240101] * 120)
    with pytest.raises(DataInvalid, match="d = '20240101' is not a date"):
        scored(run, new, missing="mean")


def test_rows_to_score_have_the_kinds_of_the_job_and_notes_on_what_has_shifted(
    run: Path, tmp_path: Path
) -> None:
    new = tmp_path / "new.csv"
    columns = {"client": [f"K{n}" for n in range(120)], "x": range(300, 420)}
    write_table(new, {**columns, "d": ["1/2/2024"] * 120, "w": ["p", "q", "q"] * 40})
    ambiguous = r"d = '1/2/2024' .* write task\.tables\.files\.bank\.kinds\.d: day-first or month-f"
    with pytest.raises(DataInvalid, match=ambiguous):
        scored(run, new)
    found = scored(run, new, kinds={"d": "month-first"})
    scale = read_encoding(run / "table-bank.json", task_of(), "bank").columns["d"].scale
    second = (19724 - scale.mean) / scale.deviation  # the second of January
    assert found.columns.columns["numbers"][:, 0].tolist() == pytest.approx([second] * 120)
    assert [note.partition(":")[0] for note in found.notes[1:]] == ["d", "x"]
    assert all("(shifted)" in note for note in found.notes[1:])


def test_rows_to_score_may_lack_cells_only_as_the_training_rows_might(
    run: Path, tmp_path: Path
) -> None:
    new = tmp_path / "new.csv"
    read_bank(new, [1, ""], ["2024-01-02"] * 2, ["p", "z"])
    with pytest.raises(DataInvalid, match="line 3: x is empty"):
        scored(run, new)
    assert scored(run, new, missing="mean").notes[1:] == (
        "x: 1 of 2 cells are missing", "w: 1 row has words that no training row has: 'z'",
    )  # fmt: skip
    write_table(new, {"x": [1], "d": ["2024-01-02"], "w": ["p"]})
    with pytest.raises(DataInvalid, match="lacks the column client, with which the model was"):
        scored(run, new)
    kinds = schema_of(
        read_encoding(run / "table-bank.json", task_of(), "bank"), TableSettings(id="client")
    )
    assert kinds == {"client": "ids", "d": "numbers", "x": "numbers", "w": "words"}


@pytest.mark.parametrize(
    ("columns", "label"),
    [
        ({}, None),
        (None, {"classes": []}),
        (None, {"classes": ["no", "yes"]}),
        (None, {"mean": 0.0, "deviation": 1.0}),
    ],
)
def test_an_encoding_that_does_not_fit_the_job_is_damaged(
    run: Path, columns: object, label: object
) -> None:
    """The bank is no leader, so it has columns and no label."""
    path = run / "table-bank.json"
    saved = json.loads(path.read_bytes())
    path.write_text(json.dumps({"columns": saved["columns"] if columns is None else columns,
                                "label": label}))  # fmt: skip
    with pytest.raises(DataInvalid, match=r"table-bank\.json is damaged: it is not an encoding of"):
        read_encoding(path, task_of(), "bank")


@pytest.mark.parametrize("classes", [[], ["yes"], ["yes", "yes"], ["a", "b", "c"], None])
def test_an_encoding_of_other_classes_than_the_jobs_is_damaged(
    tmp_path: Path, classes: object
) -> None:
    path = tmp_path / "table-lead.json"
    path.write_text(json.dumps({"columns": {}, "label": {"classes": ["no", "yes"]}}))
    assert read_encoding(path, task_of(), "lead").label is not None
    label = {"mean": 0.0, "deviation": 1.0} if classes is None else {"classes": classes}
    path.write_text(json.dumps({"columns": {}, "label": label}))
    with pytest.raises(DataInvalid, match=r"table-lead\.json is damaged: it is not an encoding of"):
        read_encoding(path, task_of(), "lead")


EDITS: dict[str, Callable[[dict[str, Any]], object]] = {
    "no columns": lambda summary: summary["columns"].clear(),
    "a column less": lambda summary: summary["columns"].pop("w"),
    "words as numbers": lambda summary: summary["columns"].update(w=summary["columns"]["x"]),
    "no points": lambda summary: summary["columns"]["x"].update(points=[], shares=[]),
    "a share less": lambda summary: summary["columns"]["x"]["shares"].pop(),
    "a count less": lambda summary: summary["columns"]["x"]["counts"].pop(0),
    "a huge count": lambda summary: summary["columns"]["x"]["counts"].__setitem__(0, 10**400),
    "a negative count": lambda summary: summary["columns"]["w"].update(others=-1, missing=1),
    "fewer rows": lambda summary: summary.update(rows=1),
}


@pytest.mark.parametrize("edit", EDITS)
def test_a_summary_that_does_not_fit_the_encoding_is_damaged(
    run: Path, tmp_path: Path, edit: str
) -> None:
    read_bank(tmp_path / "new.csv", range(120), ["2024-01-02"] * 120)
    path = run / "summary-bank.json"
    summary = json.loads(path.read_bytes())
    EDITS[edit](summary)
    path.write_text(json.dumps(summary))
    with pytest.raises(DataInvalid, match=r"summary-bank\.json is damaged: it is not a summary of"):
        scored(run, tmp_path / "new.csv")
