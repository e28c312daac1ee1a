"""The documentation page about a protection of your own: its example runs in every engine."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from flwr.app import Message, RecordDict
from flwr.serverapp.strategy import FedAvg

import fedveil
from fedveil.attacks.server_view import seen
from fedveil.entropy import Seeded
from fedveil.errors import InvalidValue, JobError
from fedveil.flower import ProtectedStrategy, ProtectMod
from fedveil.mechanisms import GaussianMechanism
from fedveil.protections.base import JobContext
from flower_app_parts import FakeGrid, Node, arrays_of, charged_at_last, client_app, record_of
from flower_parts import CLIENTS, LocalGrid, app_of, job, serve
from folders import DOCS

PAGE = (DOCS / "own-protection.md").read_text(encoding="utf-8")
CODE, _, READING = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
BLOCK: dict[str, Any] = yaml.safe_load(re.search(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[1])[  # type: ignore[index]
    "protection"
]


@pytest.fixture(autouse=True)
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the page's code into a module with the name that the page uses."""
    (tmp_path / "ready.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "ready", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))


def test_it_is_short_enough_to_be_an_example() -> None:
    statements = [line for line in CODE.splitlines() if line.strip()]
    assert len(statements) <= 48


@pytest.mark.usefixtures("warm_workers")
@pytest.mark.parametrize("workers", [0, 2])
def test_in_simulation(tmp_path: Path, workers: int) -> None:
    settings = job(protection=BLOCK, simulation={"workers": workers})
    run = fedveil.simulate(settings, tmp_path / "run")
    assert [record["reports"] for record in run.metrics] == [BLOCK["own"]["most"]] * 2
    loss = GaussianMechanism(BLOCK["own"]["eps"], 1e-5, 1.0).loss
    assert run.metrics[0]["epsilon_per_round"] >= loss.epsilon
    assert loss.epsilon < run.metrics[1]["epsilon_run_most_drawn"] <= 2 * loss.epsilon
    assert fedveil.resume(run.folder).metrics == run.metrics


@pytest.mark.parametrize("model", ["parts:plain", "parts:diverging", "parts:picky"])
def test_deployed_it_ends_with_the_simulators_bytes(tmp_path: Path, model: str) -> None:
    """This includes clients whose training overflows or raises."""
    settings = job(protection=BLOCK, model=model)
    app, deployed = app_of(tmp_path / "app", settings, seeded=True)
    assert (app / "ready.py").read_text() == CODE
    grid = LocalGrid(app, tmp_path / "state")
    result = serve(app, grid, tmp_path / "deployed")
    assert [record["reports"] for record in result.metrics] == [BLOCK["own"]["most"]] * 2
    assert list(dict.fromkeys(m.metadata.message_type for m in grid.sent))[1:3] == [
        "train.ready",
        "train.noised",
    ]
    simulated = fedveil.simulate(deployed, tmp_path / "simulated")
    files = [folder / "model.safetensors" for folder in (result.folder, simulated.folder)]
    assert files[0].read_bytes() == files[1].read_bytes()


def train(arrays: dict[str, np.ndarray], node: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    return {name: array + 0.25 for name, array in arrays.items()}, {"num-examples": 5}


def federation(run_config: Mapping[str, Any] | None = None, **pins: Any) -> FakeGrid:
    apps = {n: client_app(train, [ProtectMod(**pins)]) for n in range(1, CLIENTS + 1)}
    return FakeGrid(Node(n, app, run_config=run_config) for n, app in apps.items())


@pytest.mark.parametrize("configured", [False, True])
def test_in_somebodys_flower_app(configured: bool) -> None:
    """The run configuration may name it too, if the client does."""
    named = {"protection": BLOCK["name"], **BLOCK["own"]}
    grid = federation({f"fedveil.{k}": v for k, v in named.items() if configured}, **named)
    strategy = ProtectedStrategy(FedAvg(), **named)
    result = strategy.start(grid, record_of({"w": np.zeros(4, np.float32)}), num_rounds=1)
    assert strategy.rounds[0].reports == BLOCK["own"]["most"]
    assert strategy.rounds[0].rejected == {}
    assert len(charged_at_last(strategy)) == CLIENTS - 1 == BLOCK["own"]["most"]
    assert np.abs(arrays_of(result.arrays)["w"]).max() < 50  # noised, and of the right size
    assert arrays_of(result.arrays)["w"].any()


def test_no_code_is_imported_at_a_servers_word() -> None:
    named = {"protection": BLOCK["name"], **BLOCK["own"]}
    grid = federation()
    strategy = ProtectedStrategy(FedAvg(), **named)
    strategy.start(grid, record_of({"w": np.zeros(4, np.float32)}), num_rounds=1)
    (reason,) = strategy.rounds[0].withheld
    assert reason == (
        "the offer's protection = ready:Ready is code that this client does not name itself"
    )


@pytest.mark.parametrize("kind", ["train", "evaluate"])
@pytest.mark.parametrize("pins", [{}, {"protection": "signds"}, {"protection": "elsewhere:Ready"}])
def test_no_code_is_imported_at_the_word_of_a_run_configuration(
    pins: dict[str, str], kind: str, tmp_path: Path
) -> None:
    """The server names a module that happens to be on the client's machine."""
    (tmp_path / "lying_about.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()")
    (tmp_path / "elsewhere.py").write_text(CODE)
    grid = federation({"fedveil.protection": "lying_about:open"}, **pins)
    (reply,) = grid.send_and_receive([Message(RecordDict(), 2, kind)])
    assert reply.error.reason == (
        "withheld: the run configuration names the code fedveil.protection = lying_about:open, "
        "which this client does not name itself, in its node configuration or in ProtectMod"
    )
    assert "lying_about" not in sys.modules
    assert not (tmp_path / "ran").exists()


def test_its_parameters_are_checked_as_any_others() -> None:
    with pytest.raises(JobError) as caught:
        job(protection={"name": "ready:Ready", "own": {"eps": 0, "mst": 1}})
    assert list(caught.value.problems) == [
        "protection.own.eps = 0 is outside (0, inf)",
        "protection.own.mst = 1 is not a known key (did you mean most?); the keys are eps, most",
    ]


def test_an_attacker_reads_it_as_the_page_says() -> None:
    module = importlib.import_module("ready")
    context = JobContext("equal", 3, clients_per_round=2, rounds=1)
    made = module.Ready(module.ReadySettings(eps=4.0), context)
    updates = [np.array([0.5, 0.0, -0.5], np.float32), np.array([-0.5, 0.0, 0.5], np.float32)]
    with pytest.raises(InvalidValue, match="has several phases: its class must define `reading`"):
        seen(made, np.zeros(3, np.float32), updates, Seeded(0))
    exec(READING, vars(module))
    module.Ready.reading = module.reading
    read = seen(made, np.zeros(3, np.float32), updates, Seeded(0)).readings
    laws = [reading.log_likelihood for reading in read]
    right = [law(updates[i]) - law(updates[1 - i]) for i, law in enumerate(laws) if law]
    ideal = [2 * (r.estimate @ updates[i]) / made.mechanism.sigma**2 for i, r in enumerate(read)]
    assert right == pytest.approx(ideal, rel=1e-3)
