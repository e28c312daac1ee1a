"""A run in a notebook: what its cells define, what it shows, and the example notebooks."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import fedveil
from fedveil import vertical
from fedveil.attacks import distinguishing
from fedveil.base import own_code
from fedveil.base.untrusted import escaped
from fedveil.engine.callbacks import Callback
from fedveil.entry import simulation
from fedveil.entry.simulation import _watched
from fedveil.errors import InvalidValue, JobError, MissingExtra
from fedveil.pages.notebook_view import LiveView, in_notebook, of_run
from fedveil.pages.read_run import read_run
from fedveil.privacy import format_epsilon
from folders import ROOT

NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
CELLS = """
from torch import nn
import parts
WIDTH = 4
def net():
    return nn.Sequential(nn.Linear(6, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 3))
def data():
    return parts.data()
lock = __import__("threading").Lock()
def locked():
    with lock:
        return net()
"""


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A script's module with nothing in it."""
    module = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    return module


def run_cell(module: ModuleType, source: str) -> None:
    exec(compile(source, "<cell>", "exec"), vars(module))


def job(**change: Any) -> fedveil.Job:
    settings: dict[str, Any] = {
        "name": "cells", "rounds": 2, "clients": {"number": 8, "fraction": 0.5},
        "data": {"name": "parts:data"}, "model": "parts:plain",
        "training": {"epochs": 1, "batch_size": 20}, "simulation": {"workers": 0},
    }  # fmt: skip
    return fedveil.Job(**{**settings, **change})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> fedveil.Run:
    return fedveil.simulate(job(), tmp_path_factory.mktemp("made") / "run")


def test_what_cells_define_works_in_worker_processes(notebook: ModuleType, tmp_path: Path) -> None:
    run_cell(notebook, CELLS)
    own = {"model": "__main__:net", "data": {"name": "__main__:data"}}
    alone = fedveil.simulate(job(**own), tmp_path / "alone")
    spread = fedveil.simulate(job(**own, simulation={"workers": 1}), tmp_path / "spread")
    assert spread.metrics[-1]["loss"] == alone.metrics[-1]["loss"]
    assert "calling process" not in (tmp_path / "spread" / "events.log").read_text()


def test_what_cannot_be_sent_on_trains_in_the_calling_process(
    notebook: ModuleType, tmp_path: Path
) -> None:
    run_cell(notebook, CELLS)
    workers = {"training": {"engine": "loop"}, "simulation": {"workers": 1}}
    fedveil.simulate(job(model="__main__:locked", **workers), tmp_path / "run")
    told = (tmp_path / "run" / "events.log").read_text()
    assert "clients train in the calling process: workers cannot get its script: TypeError" in told


def test_a_script_is_taken_up_where_it_is_looked_for(notebook: ModuleType) -> None:
    run_cell(notebook, CELLS)
    data = own_code.packed(["__main__:net", "digits", "parts:plain"])
    notebook.__dict__.clear()
    own_code.unpack(data)
    made = own_code.load("__main__:net", key="model", error=JobError)
    assert made()[0].out_features == 4
    assert not hasattr(sys.modules["__main__"], "data")
    assert own_code.packed(["parts:plain"]) == b""


def test_a_run_shows_itself(run: fedveil.Run) -> None:
    html = run._repr_html_()
    assert "Model quality" in html
    assert f"accuracy {run.metrics[-1]['accuracy']:.1%}" in html
    assert html.count("data:image/svg+xml") == 2


def test_a_run_is_one_short_line_in_a_terminal(run: fedveil.Run) -> None:
    accuracy = run.metrics[-1]["accuracy"]
    assert repr(run) == (
        f"Run(folder={str(run.folder)!r}, protection={run.job.protection.name!r}, "
        f"rounds={len(run.metrics)}, accuracy={accuracy:.4g}, epsilon="
        f"{format_epsilon(run.metrics[-1]['epsilon_run_every_round'])})"
    )
    assert "accuracy" not in repr(replace(run, metrics=[]))


def test_a_run_is_plotted_by_name(run: fedveil.Run) -> None:
    drawn = run.plot()
    assert drawn.layout.title.text == "Accuracy"
    assert list(drawn.data[0].y) == [record["accuracy"] for record in run.metrics]
    assert list(run.plot("loss").data[0].y) == [record["loss"] for record in run.metrics]
    with pytest.raises(InvalidValue, match="there is no plot 'speed' of this run: accuracy, loss"):
        run.plot("speed")


def test_commands_in_a_cell_are_code_without_backticks(run: fedveil.Run) -> None:
    html = run._repr_html_()
    assert html is not None
    assert "<code>fedveil run" in html.replace("<wbr>", "").replace('<span class="nb">', "")
    assert "`" not in html


@pytest.mark.parametrize("name", ["progress", "warn", "starting"])
def test_a_function_that_is_none_is_refused_before_anything_is_trained(
    name: str, tmp_path: Path
) -> None:
    """A beginner writes progress=True."""
    wrong: dict[str, Any] = {name: True}
    with pytest.raises(InvalidValue, match=f"^{name} = True is not a function, such as"):
        fedveil.simulate(job(), tmp_path / "run", **wrong)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("given", [3, Callback(), print])
def test_callbacks_outside_a_list_are_one_sentence(given: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match=r"is not a list: use callbacks=\[\.\.\.\]$"):
        fedveil.simulate(job(), tmp_path / "run", callbacks=given)
    assert not (tmp_path / "run").exists()


def test_folders_that_are_no_paths_are_one_sentence() -> None:
    wrong: Any = 5
    with pytest.raises(InvalidValue, match=r"^out = 5 is not a path: use text or a pathlib\.Path$"):
        fedveil.simulate(job(), wrong)
    for again in (fedveil.resume, vertical.resume, vertical.evaluate, vertical.predict):
        with pytest.raises(InvalidValue, match=r"^folder = 5 is not a path"):
            again(wrong)


def test_a_run_that_was_not_simulated_here_has_no_plots(run: fedveil.Run) -> None:
    deployed = replace(run, presentation=None)
    assert deployed._repr_html_() is None
    with pytest.raises(InvalidValue, match=r"has no plots: start it with fedveil\.simulate"):
        deployed.plot("loss")


def test_records_are_a_table_where_pandas_is(
    run: fedveil.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "pandas", None)
        with pytest.raises(MissingExtra) as missing:
            run.frame()
    needs = "Run.frame needs the package pandas: pip install 'fedveil[notebook]' installs it"
    assert str(missing.value) == needs
    pd = pytest.importorskip("pandas")
    frame = run.frame()
    assert isinstance(frame, pd.DataFrame)
    assert frame["accuracy"].tolist() == [record["accuracy"] for record in run.metrics]


def test_a_running_run_shows_its_rounds_and_curves(run: fedveil.Run) -> None:
    shown: list[str] = []
    view = LiveView(run.job.model_dump(), shown.append)
    view.warn("a <warning>")
    for record in run.metrics:
        view(record)
    assert len(shown) == 2
    assert 'value="1" max="2"' in shown[0]
    assert 'value="2" max="2"' in shown[1]
    assert f"accuracy {run.metrics[-1]['accuracy']:.1%} · loss" in shown[1]
    assert "a &lt;warning&gt;" in shown[1]
    assert "data:image/svg+xml" in shown[1]


def test_a_cell_shows_one_output_that_changes(
    run: fedveil.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[tuple[str, bool]] = []
    updated: list[str] = []

    def display(html: str, display_id: bool) -> SimpleNamespace:
        shown.append((html, display_id))
        return SimpleNamespace(update=updated.append)

    module = SimpleNamespace(HTML=str, display=display)
    for name, part in (("IPython", SimpleNamespace(display=module)), ("IPython.display", module)):
        monkeypatch.setitem(sys.modules, name, part)
    view = LiveView(run.job.model_dump())
    for record in run.metrics:
        view(record)
    assert (len(shown), shown[0][1], len(updated)) == (1, True, 1)
    assert 'value="1"' in shown[0][0]
    assert 'value="2"' in updated[0]


def test_many_rounds_are_not_drawn_each(run: fedveil.Run) -> None:
    shown: list[str] = []
    view = LiveView({**run.job.model_dump(), "rounds": 40}, shown.append)
    for number in range(1, 41):
        view({**run.metrics[0], "round": number})
    assert len(shown) < 40
    assert 'value="40" max="40"' in shown[-1]
    resumed = LiveView({**run.job.model_dump(), "rounds": 40}, shown.append)
    for number in (38, 39, 40):
        resumed({**run.metrics[0], "round": number})
    assert 'value="40" max="40"' in shown[-1]
    task = {**run.metrics[0], "measures": {"rmse": "lower"}, "rmse": 31.5, "round": 40}
    resumed(task)
    assert "RMSE 31.5 · loss" in shown[-1]


def test_names_are_text_in_a_notebook(run: fedveil.Run, tmp_path: Path) -> None:
    name = '"><i>best & "last"\u202e'
    copy = shutil.copytree(run.folder, tmp_path / name)
    view = LiveView(run.job.model_dump(), lambda html: None)
    for record in run.metrics:
        view({**record, "measures": {name: "lower"}, name: 31.5})
    for html in (view.html(), of_run(read_run(copy))):
        tags: list[str] = []
        images: list[dict[str, str | None]] = []
        reader = HTMLParser()

        def seen(tag: str, given: Any, tags: Any = tags, images: Any = images) -> None:
            tags.append(tag)
            images += [dict(given)] if tag == "img" else []

        reader.handle_starttag = seen  # type: ignore[method-assign]
        reader.feed(html)
        assert "i" not in tags
        assert [set(image) for image in images] == [{"alt", "width", "src"}] * 2
        assert escape(escaped(name)) in html
        assert "\u202e" not in html


def test_outside_a_notebook_nothing_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not in_notebook()
    for shell, there in (
        (None, False),
        (SimpleNamespace(), False),
        (SimpleNamespace(kernel=1), True),
    ):
        python = SimpleNamespace(get_ipython=lambda shell=shell: shell)
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, "IPython", python)
            assert in_notebook() == there
    assert _watched(job(), None, None) == (None, None)


def test_in_a_notebook_the_cell_shows_what_no_listener_was_given_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(simulation, "in_notebook", lambda: True)
    monkeypatch.setattr(simulation, "LiveView", lambda settings: LiveView(settings, shown.append))
    shown: list[str] = []
    heard: list[str] = []
    view, warn = _watched(job(rounds=7), None, None)
    assert view is not None
    assert warn is not None
    warn("a warning")
    view({"round": 3, "accuracy": 0.25})
    assert 'value="3" max="7"' in shown[-1]
    assert "a warning" in shown[-1]
    _, warn = _watched(job(), None, heard.append)
    assert warn == heard.append
    assert _watched(job(), print, None) == (print, None)


# --- other settings -----------------------------------------------------------------------------


def test_with_gives_another_job() -> None:
    first = job()
    other = first.with_(rounds=5, training={"lr": 0.3})
    assert (other.rounds, other.training.lr, other.training.batch_size) == (5, 0.3, 20)
    assert first.rounds == 2
    assert first.with_({"training.lr": 0.3, "rounds": 5}) == other


def test_what_follows_from_other_keys_follows_anew() -> None:
    noisy = job().with_(protection="dp_encrypt")
    assert noisy.server.weighting == "equal"
    assert noisy.with_(protection="not_encrypt").server.weighting == "by_size"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"training": {"lr": -1}}, r"^training.lr = -1 is outside \(0, inf\)"),
        ({"training": {"rate": 1}}, r"^training.rate = 1 is not a known key"),
        ({"data": {"rounds": 1}}, r"^data.rounds = 1 is not .* \(did you mean rounds\?\)"),
        ({"round": 1}, r"^round = 1 is not a known key \(did you mean rounds\?\)"),
        ({"protection": "dp"}, r"^protection.name = 'dp' is not one of"),
    ],
)
def test_a_mistake_is_our_sentence(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(JobError, match=sentence):
        job().with_(change)


# --- the example notebooks ----------------------------------------------------------------------


def sources(path: Path) -> list[str]:
    cells = json.loads(path.read_text("utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def test_there_are_three() -> None:
    assert len(NOTEBOOKS) == 3


@pytest.mark.usefixtures("warm_workers")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_cells_of_an_example_run(
    path: Path, notebook: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the fewest trials of an audit in an attack."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        distinguishing, "by_effort", lambda effort, quick, *_: 100 if quick == 200 else quick
    )
    for source in sources(path):
        run_cell(notebook, source)
    if path.stem == "own_data_and_loss":
        usual, robust = notebook.usual.metrics[-1], notebook.robust.metrics[-1]
        assert robust["mae"] < usual["mae"]


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_an_example_runs_in_a_kernel(path: Path, tmp_path: Path) -> None:
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    book = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(book, timeout=300, resources=resources).execute()
    shown = [o for cell in book.cells if cell.cell_type == "code" for o in cell.outputs]
    html = "".join(o.get("data", {}).get("text/html", "") for o in shown)
    assert "<progress" in html
    assert "data:image/svg+xml" in html
