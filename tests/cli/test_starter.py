"""Every template of `fedveil init` is short, and does what it is written for."""

from __future__ import annotations

import copy
import csv
import errno
import re
import runpy
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_digits
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import fedveil
from fedveil import starter
from fedveil.engine.assembly import load_data
from fedveil.federated.job import Job
from fedveil.pages.read_run import read_run
from fedveil.protections.catalog import POSITIONS
from fedveil.starter import DEFAULT_JOB, TEMPLATES, own_step_start, text_start, vertical_tables
from folders import ROOT

Command = Callable[..., tuple[int, str, str]]
FEDERATED = [name for name, template in TEMPLATES.items() if "model.py" in template.files]


def written(command: Command, name: str) -> None:
    code, out, err = command("init", "mine", "--template", name)
    assert code == 0, err
    assert out.endswith(f"next: cd mine && {TEMPLATES[name].run}\n")
    wrote = {line.removeprefix("wrote ") for line in out.splitlines()[:-1]}
    assert wrote == {str(file) for file in Path("mine").iterdir()}


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_is_short(command: Command, tmp_path: Path, name: str) -> None:
    written(command, name)
    files = list((tmp_path / "mine").iterdir())
    assert {file.name for file in files} == set(TEMPLATES[name].files)
    assert sum(len(file.read_text().splitlines()) for file in files) < 60


@pytest.mark.parametrize("name", FEDERATED)
def test_a_job_says_in_its_first_line_what_protects_it(
    command: Command, tmp_path: Path, name: str
) -> None:
    written(command, name)
    text = (tmp_path / "mine" / "job.yaml").read_text()
    assert text.startswith("# Nothing is protected yet. `fedveil budget job.yaml --try` compares ")
    assert Job.load(tmp_path / "mine" / "job.yaml", []).protection.name == "not_encrypt"
    (tmp_path / "job.yaml").write_text(text.replace(": not_encrypt", ": distributed_dp"))
    assert Job.load(tmp_path / "job.yaml", []).protection.name == "distributed_dp"


def test_the_letters_to_predict_are_those_that_follow() -> None:
    arrays = text_start.data()
    for part in ("train", "test"):
        x, y = arrays[f"x_{part}"], arrays[f"y_{part}"]
        np.testing.assert_array_equal(y[:, :-1], x[:, 1:])
        assert (y[:, -1] != x[:, -1]).any()


def test_the_own_step_takes_its_gradient_at_the_worst_nearby_weights() -> None:
    torch.manual_seed(3)
    model = own_step_start.net((5,), 3).double()
    x, y = torch.randn(11, 5, dtype=torch.double), torch.arange(11) % 3
    batches = [(x[:7], y[:7]), (x[7:], y[7:])]
    expected = copy.deepcopy(model)
    weights = list(expected.parameters())
    for inputs, classes in batches:
        begin = parameters_to_vector(weights).detach()
        here = torch.autograd.grad(smoothed(expected(inputs), classes), weights)
        up = parameters_to_vector(here)
        vector_to_parameters(begin + 0.05 * up / up.norm(), weights)
        there = torch.autograd.grad(smoothed(expected(inputs), classes), weights)
        vector_to_parameters(begin - 0.3 * parameters_to_vector(there), weights)
    own_step_start.Careful().train(model, batches, SimpleNamespace(lr=0.3))
    torch.testing.assert_close(list(model.parameters()), weights)


def smoothed(outputs: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
    """Return the cross-entropy to targets that spread a tenth evenly over all three classes."""
    targets = 0.9 * torch.nn.functional.one_hot(classes, 3) + 0.1 / 3
    return cross_entropy(outputs, targets)


@pytest.mark.parametrize("name", [name for name in FEDERATED if name != "table"])
def test_a_federated_template_runs(command: Command, tmp_path: Path, name: str) -> None:
    written(command, name)
    settings = ("--set", "rounds=2", "--set", "simulation.workers=0", "--out", "run")
    code, _, err = command("run", "mine/job.yaml", *settings)
    assert code == 0, err
    unprotected, *_ = err.splitlines()
    assert "nothing is protected" in unprotected
    assert "write `protection: distributed_dp` in mine/job.yaml" in unprotected
    assert "`fedveil budget mine/job.yaml --try` compares all protections" in unprotected
    first, last = read_run(tmp_path / "run").records
    assert last["loss"] < first["loss"]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("seed: 0", "write `protection: distributed_dp` in job.yaml"),
        ("{clients: {number: 2, fraction: 1.0}}", "write `protection: dp_encrypt` in job.yaml"),
        ("{server: {aggregation: norm_bound, norm_bound: 1.0}}", "docs/which-switch.md"),
    ],
)
def test_a_run_says_first_that_nothing_is_protected(
    command: Command, tmp_path: Path, text: str, line: str
) -> None:
    (tmp_path / "job.yaml").write_text(text)
    _, _, err = command("run", "job.yaml", "--set", "data.name=missing:data")
    first, *_ = err.splitlines()
    assert first.startswith("note: nothing is protected: ")
    assert line in first


@pytest.mark.parametrize(
    ("asked", "noted"),
    [((), False), (("--set", "protection=not_encrypt"), False), (("--set", "protection="), True)],
)
def test_the_default_job_is_protected_unless_it_is_asked_not_to_be(
    command: Command, asked: tuple[str, ...], *, noted: bool
) -> None:
    _, _, err = command("run", "--set", "data.name=missing:data", *asked)
    assert ("nothing is protected" in err) == noted
    assert ("add `--set protection=distributed_dp`\n" in err) == noted  # not the package's own file


def test_deploy_takes_the_default_job_of_run(command: Command, tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    code, _, err = command("deploy", "app")
    assert code == 0, err
    deployed = Job.load(tmp_path / "app" / "job.yaml")
    assert deployed.protection == Job.load(DEFAULT_JOB).protection


@pytest.mark.parametrize("clients", [7, 1003])
def test_the_built_in_job_takes_other_numbers_of_clients(clients: int) -> None:
    job = Job.load(DEFAULT_JOB, overrides=[f"clients.number={clients}"])
    assert job.clients.number == clients


@pytest.mark.parametrize("protection", POSITIONS)
@pytest.mark.parametrize("name", FEDERATED)
def test_a_federated_template_takes_every_protection(
    command: Command, name: str, protection: str
) -> None:
    written(command, name)
    code, _, err = command("job", "show", "mine/job.yaml", "--set", f"protection={protection}")
    assert code == 0, err


@pytest.mark.parametrize("protection", ["pw_encrypt", "distributed_dp"])
def test_a_template_runs_under_secure_aggregation(
    command: Command, tmp_path: Path, protection: str
) -> None:
    written(command, "own-step")
    settings = ("rounds=1", "simulation.workers=0", f"protection={protection}")
    sets = [part for text in settings for part in ("--set", text)]
    code, _, err = command("run", "mine/job.yaml", *sets, "--out", "run")
    assert code == 0, err
    (record,) = read_run(tmp_path / "run").records
    assert record["reports"] > 2


def test_the_vertical_template_runs(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(command, "vertical")
    monkeypatch.chdir(tmp_path / "mine")
    runpy.run_path("make_tables.py", run_name="__main__")
    code, out, err = command("vertical", "run", "job.yaml", "--set", "epochs=1", "--out", "run")
    assert code == 0, err
    assert "accuracy" in out


def test_both_tables_of_the_vertical_template_have_each_patients_own_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    vertical_tables.main()
    (_, *clinic), (_, *laboratory) = (
        csv.reader(Path(name).read_text("utf-8").splitlines())
        for name in ("clinic.csv", "laboratory.csv")
    )
    bunch = load_breast_cancer()
    names = bunch.target_names[bunch.target]
    for patient, diagnosis, *values in clinic:
        number = int(patient.removeprefix("P-"))
        assert diagnosis == names[number]
        assert np.array(values, float) == pytest.approx(bunch.data[number, :10], abs=1e-4)
    for patient, *values in laboratory:
        number = int(patient.removeprefix("P-"))
        assert np.array(values, float) == pytest.approx(bunch.data[number, 20:], abs=1e-4)
    assert len({row[0] for row in clinic} & {row[0] for row in laboratory}) == len(names) - 40


def test_the_flower_template_runs(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("flwr")
    from flwr.app import Context, RecordDict

    from flower_app_parts import RUN, FakeGrid, Node

    written(command, "flower")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    app = runpy.run_path("mine/app.py")
    config = {"rounds": 2, "fedveil.protection": "dp_encrypt", "fedveil.dp_eps": 50.0}
    grid = FakeGrid(Node((1 << 63) + i, app["client"], config) for i in range(4))
    app["server"](grid, Context(RUN, 1, {}, RecordDict(), config))
    assert np.abs(np.load("model.npy")).max() > 0


def test_a_client_of_the_flower_template_descends_on_a_tenth_of_the_digits() -> None:
    pytest.importorskip("flwr")
    from flwr.app import Context, Message, RecordDict

    from fedveil.starter import flower_app
    from flower_app_parts import RUN, FakeGrid, arrays_of, record_of

    begin = np.linspace(-1, 1, 640, dtype=np.float32).reshape(64, 10)
    FakeGrid([])  # sets the identity of the process, which a message needs
    asked = Message(RecordDict({"arrays": record_of({"w": begin})}), 5, "train")
    reply = flower_app.train(asked, Context(RUN, 5, {"partition-id": 13}, RecordDict(), {}))
    x, y = (torch.from_numpy(part[3::10]) for part in load_digits(return_X_y=True))
    w = torch.from_numpy(begin).double().requires_grad_()
    for _ in range(10):
        (slope,) = torch.autograd.grad(cross_entropy(x / 16 @ w, y), w)
        w = (w - 0.5 * slope).detach().requires_grad_()
    assert arrays_of(reply.content["arrays"])["w"] == pytest.approx(w.detach().numpy(), abs=1e-6)
    assert reply.content["metrics"]["num-examples"] == len(y)


def test_a_template_that_is_not_there_is_named(command: Command) -> None:
    code, _, err = command("init", "mine", "--template", "images")
    assert (code, err) == (
        2,
        "error: --template images is not one of image, text, table, regression, own-step, "
        "vertical, flower (did you mean image?)\n",
    )


@pytest.mark.parametrize("kind", [OSError(errno.ENOSPC, "full"), FileExistsError(17, "there")])
def test_a_template_is_written_whole_or_not_at_all(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: OSError
) -> None:
    """The disk becomes full in the second file, or another program writes this file first."""

    def failing(path: Path, data: bytes, mode: int) -> None:
        path.write_bytes(b"half")
        if path.name == "model.py":
            raise kind

    monkeypatch.setattr(starter, "write_new", failing)
    code, _, err = command("init", "mine")
    assert (code, err) == (1, f"error: mine cannot be written: {kind.strerror}\n")
    left = [file.name for file in (tmp_path / "mine").iterdir()]
    assert left == (["model.py"] if isinstance(kind, FileExistsError) else [])


def test_the_pages_state_the_results_of_the_built_in_job(tmp_path: Path) -> None:
    """They change with everything that draws from the job's seed."""
    run = fedveil.simulate(Job.load(DEFAULT_JOB), tmp_path / "run")
    tests = len(load_data(run.job).test)
    quoted = {
        ROOT / "README.md": r"distributed_dp: ([\d.]+)% accuracy at epsilon ([\d.]+)",
        ROOT / "docs" / "tutorial.md": r"accuracy ([\d.]+)%[^`]*?epsilon ([\d.]+) at delta",
    }
    for page, pattern in quoted.items():
        accuracy, epsilon = map(float, re.findall(pattern, page.read_text("utf-8"))[0])
        # Another processor may round differently, and so decide two test examples differently.
        assert abs(run.metrics[-1]["accuracy"] - accuracy / 100) < 2.5 / tests, page
        assert 0 <= epsilon - run.metrics[-1]["epsilon_run_every_round"] < 0.05, page
