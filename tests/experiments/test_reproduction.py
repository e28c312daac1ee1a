"""Repeating an experiment: its folder, its page, what it is called, how long it takes."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import ClassVar

import pytest

from experiments import EXPERIMENTS, catalog
from experiments.experiment import Experiment, NewPart, Outcome, Scale, Tell, Verdict
from experiments.outcome_page import Repeated, page, tally, verdicts
from experiments.reproduction import BEGUN, reproduce
from fedveil.cli.exits import Exit
from fedveil.errors import ExperimentsMissing, FolderInUse, InvalidValue, RunFolderError
from fedveil.pages.plot import Axis, Curve, Plot
from fedveil.pages.table import Table
from fedveil.record.run_folder import RunFolder
from fedveil.studies import checkout
from folders import ROOT

Command = Callable[..., tuple[int, str, str]]


class Toy(Experiment):
    """Counts its attempts in its folder; the first may be cut off."""

    name = "toy"
    what = "A toy."
    source = "nowhere"
    cut_off: ClassVar[bool] = False
    trains: ClassVar[bool] = True

    def estimate_s(self, scale: Scale) -> float:
        return {"small": 90.0, "full": 9000.0}[scale]

    def run(self, folder: Path, scale: Scale, tell: Tell) -> Outcome:
        attempts = folder / "attempts"
        count = int(attempts.read_text()) + 1 if attempts.exists() else 1
        attempts.write_text(str(count))
        tell(NewPart("run 1 of 1") if self.trains else "run of the membership attacks")
        if self.cut_off:
            end = KeyboardInterrupt()
            end.add_note("`fedveil run --resume attempts` goes on")
            raise end
        verdicts = [
            Verdict.of(count == 1, "attempts", "1", str(count), held_to="equal", same="one",
                       other="more"),
            Verdict.of(scale == "small", "scale", "small", scale, held_to="equal", same="small",
                       other="large"),
        ]  # fmt: skip
        curves = [Curve("a", [1, 2], [3, 4]), Curve("b", [1, 2], [4, 3])]
        plots = [Plot("lines", "Two lines", Axis("x"), Axis("y"), curves, "They cross.")]
        picture = folder / "more" / "cat.png"
        picture.parent.mkdir(exist_ok=True)
        picture.write_bytes(b"cat")
        long = Table(("p", "q"), [(str(row), "a, b") for row in range(5)], "A long one.")
        tables = [Table(("p", "q"), [("1", "2")], "A table."), long]
        return Outcome(f"It ran {count} times.", verdicts, tables, plots, [picture])


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch) -> type[Toy]:
    """The toy is an experiment of ours."""
    module = ModuleType("toy")
    module.Toy = Toy  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "experiments.toy", module)
    monkeypatch.setitem(EXPERIMENTS, "toy", "toy:Toy")
    return Toy


def test_the_page_holds_all_that_came_of_it(command: Command, tmp_path: Path) -> None:
    code, out, err = command("reproduce", "toy", "--scale", "small")
    assert code == Exit.DONE, err
    folder = Path("runs", "reproduce-toy-small")
    assert (
        err == f"toy at scale small takes about 90 s on two cores; it is in {folder}\nrun 1 of 1\n"
    )
    assert out.endswith(f"2 of 2 results agree with the source.\nwritten to {folder / 'toy.md'}\n")
    page = (tmp_path / folder / "toy.md").read_text()
    for part in (
        "# toy\n",
        "A toy. Source: nowhere.",
        "**2 of 2 results agree with the source.** Scale: small.",
        "It ran 1 times. This page is not at scale `full`, because that takes about 2 hours on two "
        "cores. Each figure comes from 1 seed, so it has no confidence interval.",
        "| measure | the source | here | criterion | verdict | why |",
        "| attempts | 1 | 1 | equal | agrees | one |",
        "![Two lines](toy-lines.svg)\n\nThey cross.",
        "![cat](more/cat.png)",
        "A table.\n\n| p | q |",
        "\nA long one: [the table](toy-2.csv).\n",
        "    fedveil reproduce toy --scale small\n",
        " s on ",
    ):
        assert part in page
    assert "| 3 |" not in page
    rows = (tmp_path / folder / "toy-2.csv").read_text().splitlines()
    assert (rows[0], rows[5], len(rows)) == ("p,q", '4,"a, b"', 6)
    assert (tmp_path / folder / "toy-lines.svg").read_bytes().startswith(b"<?xml")


def test_an_experiment_that_was_cut_off_is_gone_on_with(
    toy: type[Toy], command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toy, "cut_off", True)
    arguments = ("reproduce", "toy", "--out", "in here")
    code, _, err = command(*arguments)
    assert code == Exit.INTERRUPTED
    assert err.endswith(
        "\ninterrupted; `fedveil reproduce toy --scale full --out 'in here'` resumes from here\n"
    ), err
    assert not (tmp_path / "in here" / "toy.md").exists()
    begun = json.loads((tmp_path / "in here" / BEGUN).read_text())
    assert begun["seconds"] >= 0
    begun["seconds"] = 5000.0
    (tmp_path / "in here" / BEGUN).write_text(json.dumps(begun))
    monkeypatch.setattr(toy, "cut_off", False)
    code, out, _ = command(*arguments)
    assert code == Exit.DONE
    assert "0 of 2 results agree with the source." in out
    page = (tmp_path / "in here" / "toy.md").read_text()
    assert "| attempts | 1 | 2 | equal | differs | more |" in page
    assert re.search(r"\nIt took 5,00\d s on ", page)  # what was spent before counts
    begun["seconds"] = 7000.0
    (tmp_path / "in here" / BEGUN).write_text(json.dumps(begun))
    monkeypatch.setattr(toy, "trains", False)
    assert command(*arguments)[0] == Exit.DONE
    assert json.loads((tmp_path / "in here" / BEGUN).read_text()) == begun  # it was finished before


def test_a_killed_experiment_has_saved_the_duration_of_its_earlier_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[float] = []
    monkeypatch.setattr(time, "perf_counter", iter([100.0, 175.0, 200.0, 200.0]).__next__)

    def tell(line: str) -> None:
        if line.startswith("run"):
            seen.append(json.loads((tmp_path / "out" / BEGUN).read_text())["seconds"])

    reproduce("toy", "small", tmp_path / "out", tell)
    assert seen == [75]


@pytest.mark.parametrize("trains", [True, False])
def test_only_new_runs_of_a_finished_experiment_take_time(
    trains: bool, toy: type[Toy], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = count(100.0, 8.0)
    monkeypatch.setattr(time, "perf_counter", lambda: next(seconds))

    def spent() -> float:
        reproduce("toy", "small", tmp_path / "out", lambda line: None)
        return float(json.loads((tmp_path / "out" / BEGUN).read_text())["seconds"])

    first = spent()
    monkeypatch.setattr(toy, "trains", trains)
    assert first > 0
    assert spent() == (2 * first if trains else first)


def test_the_table_has_every_experiment(command: Command) -> None:
    for arguments in (("reproduce",), ("reproduce", "--list"), ("reproduce", "toy", "--list")):
        code, out, _ = command(*arguments)
        assert code == Exit.DONE
        names = [line.split()[0] for line in out.splitlines() if line[0] != " "]
        assert names == ["name", *EXPERIMENTS]
    rows = {row[0]: row for row in catalog.table().rows}
    assert rows["toy"] == ("toy", "A toy.", "90 s", "-", "2 hours")
    assert rows["ldp-adaptive"][-3:] == ("6 minutes", "68 minutes", "36 hours")


def test_only_some_experiments_have_a_medium_scale(command: Command, tmp_path: Path) -> None:
    code, _, err = command("reproduce", "toy", "--scale", "medium")
    assert code == Exit.WRONG
    assert err == "error: toy has no scale medium; it is repeated at small or full\n"
    assert not (tmp_path / "runs").exists()
    medium = {name for name in EXPERIMENTS if "medium" in catalog.find(name).scales}
    assert medium == {
        "accuracy-epsilon", "signds-lenet-seeds", "signds-keys", "ldp-epsilon", "ldp-adaptive",
        "ldp-rounds", "embedding-dp",
    }  # fmt: skip


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_says_what_it_is(name: str) -> None:
    experiment = catalog.find(name)
    assert experiment.name == name
    assert experiment.what.endswith(".")
    assert experiment.source.startswith(("000", "001", "002", "003", "none: ", "nowhere"))
    takes = [experiment.estimate_s(scale) for scale in experiment.scales]
    assert takes[0] > 0
    assert takes == sorted(takes)


def test_a_name_that_is_none(command: Command) -> None:
    code, _, err = command("reproduce", "signds-tabel")
    assert code == Exit.WRONG
    assert err == (
        "error: there is no experiment signds-tabel (did you mean signds-table?); "
        "`fedveil reproduce --list` says what there is\n"
    )
    with pytest.raises(InvalidValue, match=r"^there is no experiment xyz; `fedveil"):
        catalog.find("xyz")
    with pytest.raises(InvalidValue, match=r"^there is no experiment ''; `fedveil"):
        catalog.find("")


@pytest.mark.parametrize("arguments", [("--list",), ("toy",)])
def test_an_installed_fedveil_says_where_the_experiments_are(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    installed = tmp_path / "lib" / "site-packages" / "fedveil" / "studies" / "checkout.py"
    monkeypatch.setattr(checkout, "__file__", str(installed))
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "__init__.py").touch()  # a user's own
    code, _, err = command("reproduce", *arguments)
    assert code == Exit.FAILED
    assert err == (
        "error: the experiments are not part of an installed fedveil: run this command in a "
        "checkout of fedveil's repository, which holds them in the folder experiments/\n"
    )


def test_an_installed_fedveil_finds_the_experiments_of_the_checkout_that_it_is_run_in(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(checkout, "__file__", str(tmp_path / "a" / "b" / "c" / "checkout.py"))
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in ("", str(ROOT))])
    monkeypatch.chdir(ROOT)
    assert checkout.module("catalog").find("toy").name == "toy"
    assert sys.path[0] == str(ROOT)


def test_a_checkout_has_its_own_experiments_in_any_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "src" / "fedveil").mkdir(parents=True)
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "__init__.py").touch()
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    assert checkout.module("catalog").find("toy").name == "toy"


def test_another_package_of_that_name_is_not_taken_for_the_experiments(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert checkout.module().__name__ == "experiments"
    other = ModuleType("experiments")
    other.__file__ = str(tmp_path / "experiments.py")
    Path(other.__file__).touch()
    monkeypatch.setitem(sys.modules, "experiments", other)
    with pytest.raises(ExperimentsMissing, match=r"experiments\.py hides fedveil's experiments in"):
        checkout.module("catalog")
    other.__file__, other.__path__ = None, [str(tmp_path / "mine")]  # a folder without __init__.py
    with pytest.raises(ExperimentsMissing, match=f"^{tmp_path}/mine hides fedveil's experiments"):
        checkout.module("catalog")


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(RunFolderError, match="is not empty and holds no experiment: name another"):
        reproduce("toy", "small", tmp_path, lambda text: None)
    assert (tmp_path / "thesis.tex").read_text() == "x"
    mine = tmp_path / "mine"
    reproduce("toy", "small", mine, lambda text: None)
    with pytest.raises(
        RunFolderError,
        match="mine holds toy at scale small: name another folder for toy at scale full",
    ):
        reproduce("toy", "full", mine, lambda text: None)
    (mine / BEGUN).write_text("{")
    with pytest.raises(RunFolderError, match=rf"{BEGUN} cannot be read"):
        reproduce("toy", "small", mine, lambda text: None)


def test_one_process_at_a_time(tmp_path: Path) -> None:
    folder = RunFolder.of_many(tmp_path)
    with pytest.raises(FolderInUse):
        reproduce("toy", "small", tmp_path, lambda text: None)
    folder.close()
    reproduce("toy", "small", tmp_path, lambda text: None)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "1 s"), (119, "119 s"), (121, "2 minutes"), (7199, "120 minutes"), (86400, "24 hours"),
     (172800, "2 days")],
)  # fmt: skip
def test_a_guess_of_time(seconds: float, words: str) -> None:
    assert catalog.about(seconds) == words


def test_a_reason_is_said_once() -> None:
    same = [Verdict("x", "1", "2", "3", answer, why) for answer, why in (
        ("agrees", "so"), ("differs", "other"), ("says nothing", "so"))]  # fmt: skip
    outcome = Outcome("", same)
    assert [row[-2:] for row in verdicts(outcome).rows] == [
        ("agrees", "so"), ("differs", "other"), ("says nothing", "as above"),
    ]  # fmt: skip
    assert tally(outcome) == "1 of 3 results agree with the source; 1 says nothing."


@pytest.mark.parametrize(("agrees", "why"), [(True, "yes"), (False, "no")])
def test_a_verdict_has_its_own_reason(agrees: bool, why: str) -> None:
    verdict = Verdict.of(agrees, "x", "1", "2", held_to="3", same="yes", other="no")
    assert (verdict.agrees, verdict.held_to, verdict.why) == (agrees, "3", why)
    silent = Verdict.of(agrees, "x", "1", "2", held_to="3", same="yes", other="no", nothing="idle")
    assert (silent.agrees, silent.answer, silent.why) == (False, "says nothing", "idle")


@pytest.mark.parametrize(
    ("seeds", "said"),
    [
        (0, ""),
        (1, " Each figure comes from 1 seed, so it has no confidence interval."),
        (2, " Each figure comes from 2 seeds, so it has no confidence interval."),
        (5, " A figure is the mean of 5 seeds, with its 95% confidence interval."),
    ],
)
def test_a_page_says_how_many_seeds_a_figure_has(seeds: int, said: str) -> None:
    experiment = catalog.find("toy")
    outcome = Outcome("It ran.", (), seeds=seeds)
    text = page(Repeated(experiment, "full", outcome, {}, 1.0, "toy", Path()))
    assert f"It ran.{said}\n" in text


@pytest.mark.parametrize(
    ("scale", "own", "said"),
    [
        ("full", {"small": "It is small."}, ""),
        ("small", {}, " This page is not at scale `full`, because that takes about 2 hours on two "
         "cores."),
        ("small", {"small": "It is small."}, " It is small."),
        ("small", {"medium": "It is medium.", "small": ""}, ""),
    ],
)  # fmt: skip
def test_a_page_below_the_sources_size_has_its_own_reason_or_the_time(
    scale: Scale, own: dict[Scale, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Toy, "smaller", own)
    outcome = Outcome("It ran.", (), seeds=0)
    text = page(Repeated(catalog.find("toy"), scale, outcome, {}, 1.0, "toy", Path()))
    assert f"It ran.{said}\n" in text
