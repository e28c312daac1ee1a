"""Published curves: runs that have them are not trained, and their pages follow from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from experiments import arms, ldp_figures, published_runs, reproduction
from experiments.arms import Arm
from experiments.catalog import find
from experiments.experiment import NewPart, Scale
from experiments.ldp_jobs import job
from experiments.outcome_page import verdicts
from experiments.published_runs import ALL, SUFFIX, PublishedRuns
from experiments.reproduction import reproduce
from experiments.statement_list import Judged
from fedveil.data import mnist
from fedveil.errors import InvalidValue, RunFolderError
from fedveil.federated.job import Job
from fedveil.pages.read_run import ReadRun
from folders import DOCS

PAGES = DOCS / "reproductions"
METRICS = ("accuracy",)
#: The pages that need no more than curves. The others are attacked again.
PUBLISHED = [
    name
    for name in (file.name.removesuffix(SUFFIX) for file in sorted(PAGES.glob(f"*{SUFFIX}")))
    if hasattr(find(name), "arms")
]


def run(of: Job, *accuracies: float) -> ReadRun:
    """A run that was tested at every fifth round, with these accuracies."""
    records: list[dict[str, Any]] = [{"round": 1, "loss": 2.0}]
    records += [{"round": 5 * n, "accuracy": value} for n, value in enumerate(accuracies, 1)]
    return ReadRun(Path("gone"), of.model_dump(), records, (), ())


def never(path: Path, of: Job) -> ReadRun:
    raise AssertionError(f"{path} was trained")


@pytest.fixture
def untrained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arms, "_ended", never)


@pytest.fixture
def writers_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that knows MNIST's writers, as that of the published pages did."""
    monkeypatch.setattr(mnist, "writers_are_here", lambda: True)


@pytest.fixture
def pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of pages, in place of the documentation's."""
    folder = tmp_path / "pages"
    folder.mkdir()
    monkeypatch.setattr(reproduction, "PAGES", folder)
    return folder


def rr(**more: Any) -> Job:
    return job("small", "lenet-mnist", protection="rr", eps=4.8, **more)


def test_a_published_run_is_found_by_its_job(tmp_path: Path) -> None:
    found = {"a": run(rr(), 0.125, 0.9375), "b": run(rr(seed=2), 0.5)}
    (tmp_path / ALL).write_bytes(published_runs.lines(found, METRICS))
    runs = PublishedRuns.of(tmp_path)
    first, second = runs.find("x", rr()), runs.find("y", rr(seed=2))
    assert first
    assert second
    assert first.figures("accuracy") == ([5, 10], [0.125, 0.9375])
    assert (first.folder, first.job) == (tmp_path / "x", rr().model_dump())
    assert second.figures("accuracy") == ([5], [0.5])
    assert runs.find("z", rr(seed=1)) is None
    assert runs.find("z", rr(rounds=7)) is None


def test_only_tests_with_every_saved_metric_are_published(tmp_path: Path) -> None:
    of, keys = rr(), ("accuracy", "loss")
    looks: list[dict[str, Any]] = [{"loss": 3.0, "auc": 1.0}, {"loss": 2.0, "accuracy": 0.5}, {}]
    records = [{"round": n, **each} for n, each in enumerate(looks, 1)]
    both = ReadRun(Path("gone"), of.model_dump(), records, (), ())
    (tmp_path / ALL).write_bytes(published_runs.lines({"a": both}, keys))
    found = PublishedRuns.of(tmp_path).find("x", of)
    assert found
    assert found.records == [{"round": 2, "accuracy": 0.5, "loss": 2.0}]


def test_without_the_file_nothing_is_published(tmp_path: Path) -> None:
    assert PublishedRuns.of(tmp_path).find("x", rr()) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda entry: entry.pop("rounds"),
        lambda entry: entry["rounds"].append(15),
        lambda entry: entry["accuracy"].__setitem__(0, "high"),
        lambda entry: entry.update(auc=[]),
        lambda entry: entry["job"].update(rounds="many"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, change: Any) -> None:
    entry = json.loads(published_runs.lines({"a": run(rr(), 0.5)}, METRICS))
    change(entry)
    (tmp_path / ALL).write_text(json.dumps(entry))
    with pytest.raises(RunFolderError, match=ALL):
        PublishedRuns.of(tmp_path)


def test_only_runs_without_published_curves_are_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that the folder has begun is finished, even if its curve is published."""
    known = {"a": run(rr(), 0.5), "begun": run(rr(seed=1), 0.6)}
    (tmp_path / ALL).write_bytes(published_runs.lines(known, METRICS))
    (tmp_path / "begun").mkdir()
    trained: list[str] = []

    def ended(path: Path, of: Job) -> ReadRun:
        trained.append(path.name)
        return run(of, 0.75)

    monkeypatch.setattr(arms, "_ended", ended)
    jobs = {"a": rr(), "begun": rr(seed=1), "new": rr(seed=2)}
    said: list[str] = []
    runs = arms.trained(tmp_path, [Arm(name, each) for name, each in jobs.items()], said.append)
    assert trained == ["begun", "new"]
    assert said[0] == "run 1 of 3: a, from the published curves"
    assert not isinstance(said[0], NewPart)  # it takes no time
    assert [arms.accuracy(runs[name]) for name in jobs] == [0.5, 0.75, 0.75]


@pytest.mark.usefixtures("untrained")
def test_a_page_saves_curves_from_which_it_is_made_again(tmp_path: Path, pages: Path) -> None:
    figure = ldp_figures.Convergence()
    last = {"plain": 0.9, "rr-1.2": 0.1, "rr-2.4": 0.3, "rr-4.8": 0.8, "rr-9.6": 0.88}
    last |= {"oue-1.2": 0.1, "oue-2.4": 0.1, "oue-4.8": 0.5, "oue-9.6": 0.89}
    runs = {arm.name: run(arm.job, 0.1, last[arm.name]) for arm in figure.arms("small")}
    (pages / f"any{SUFFIX}").write_bytes(published_runs.lines(runs, METRICS))

    def again(folder: str) -> Path:
        page, outcome = reproduce(
            figure.name, "small", tmp_path / folder, lambda line: None, published=True
        )
        assert [verdict.answer for verdict in outcome.verdicts] == ["agrees", "agrees"]
        assert ", without the 9 runs whose published curves it read." in page.read_text("utf-8")
        assert "--scale small --published --out" in page.read_text("utf-8")
        return page.with_name(f"{figure.name}{SUFFIX}")

    saved = again("first")
    assert len(saved.read_bytes().splitlines()) == 9
    (pages / f"any{SUFFIX}").write_bytes(saved.read_bytes())
    assert again("second").read_bytes() == saved.read_bytes()


@pytest.mark.usefixtures("untrained")
def test_curves_are_read_only_if_asked_for(tmp_path: Path, pages: Path) -> None:
    """Even in the folder of an earlier call that asked for them."""
    figure = ldp_figures.Convergence()
    curves = {arm.name: run(arm.job, 0.1) for arm in figure.arms("small")}
    (pages / f"any{SUFFIX}").write_bytes(published_runs.lines(curves, METRICS))
    folder = tmp_path / "out"
    reproduce(figure.name, "small", folder, print, published=True)
    with pytest.raises(AssertionError, match="plain was trained"):
        reproduce(figure.name, "small", folder, print)


def test_an_experiment_that_needs_models_has_no_published_curves(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="needs more of its runs than curves"):
        reproduce("ldp-epsilon", "small", tmp_path / "out", print, published=True)
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("writers_known")
@pytest.mark.parametrize("name", PUBLISHED)
def test_published_curves_are_of_the_pages_runs(name: str, tmp_path: Path) -> None:
    (tmp_path / ALL).write_bytes((PAGES / f"{name}{SUFFIX}").read_bytes())
    scale = Judged.of(PAGES / f"{name}.md").scale
    curves, runs = PublishedRuns.of(tmp_path), find(name).arms(scale)  # type: ignore[attr-defined]
    found = [each for each in runs if curves.find(each.name, each.job)]
    assert len(found) == len(runs) == len((tmp_path / ALL).read_bytes().splitlines())


@pytest.mark.usefixtures("untrained", "writers_known")
@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_page_follows_from_its_curves(name: str, tmp_path: Path) -> None:
    """The page's verdicts, tables and plots, with this version's criteria."""
    text = (PAGES / f"{name}.md").read_text("utf-8")
    scale: Scale = Judged.of(PAGES / f"{name}.md").scale  # type: ignore[assignment]
    page, outcome = reproduce(name, scale, tmp_path / "out", lambda line: None, published=True)
    assert verdicts(outcome).markdown() in text
    made = {path.name for path in page.parent.glob(f"{name}*")} - {page.name}
    assert len(made) >= 2
    for file in made:
        assert (PAGES / file).read_bytes() == (page.parent / file).read_bytes(), file
