"""The saved state of a deployed job's clients: own layers, SCAFFOLD's variates, FedDyn's vector."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

import fedveil
from fedveil.base.message import decode, encode, take_array
from fedveil.engine.executors.client_states import ClientStates
from fedveil.engine.own_layer_evaluation import client_model
from fedveil.engine.round_checkpoint import Checkpoint
from fedveil.errors import DeploymentError, FedveilError
from fedveil.federated.job import Job
from fedveil.flower.job.app_folder import JOB
from fedveil.flower.job.deploy import deployable
from fedveil.flower.job.saved_states import RUN
from fedveil.flower.records import ADDRESS, COMMON, encoded_records
from fedveil.learning.weight_layout import Layout
from fedveil.record.recorder import LOST
from fedveil.record.run_folder import RunFolder
from fedveil.record.sealed_message import unsealed
from flower_parts import CLIENTS, LocalGrid, app_of, job, serve

WAYS: dict[str, dict[str, Any]] = {
    "scaffold": {"training": {"algorithm": "scaffold", "batch_size": 10}},
    "feddyn": {"training": {"algorithm": "feddyn", "dynamic": 0.3, "batch_size": 10}},
    "own layers": {"clients": {"number": CLIENTS, "fraction": 0.5, "own_layers": ["*bias"]}},
}
HALF = {"number": CLIENTS, "fraction": 0.5}


def job_of(way: str, **changes: Any) -> Job:
    """Return a job with half of the clients in each of three rounds, so that some skip a round."""
    settings = {"rounds": 3, "clients": HALF, "model": "parts:linear", **WAYS[way], **changes}
    return job(**settings)


def vector(run: Any) -> np.ndarray:
    return Layout(run.model).vector()


def deploy(tmp_path: Path, settings: Job) -> LocalGrid:
    app, _ = app_of(tmp_path / "app", settings, seeded=True)
    return LocalGrid(app, tmp_path / "state")


def end(grid: LocalGrid, tmp_path: Path, name: str = "run") -> Any:
    return serve(tmp_path / "app", grid, tmp_path / name)


def kept(tmp_path: Path) -> dict[str, bytes]:
    found = (tmp_path / "state").glob("*.kept/clients/*")
    return {path.name: path.read_bytes() for path in found if path.suffix != ".seal"}


@pytest.mark.parametrize("protection", ["not_encrypt", "pw_encrypt"])
def test_a_direction_is_sent_to_clients_that_keep_nothing(tmp_path: Path, protection: str) -> None:
    training = {"algorithm": "fedcm", "own_direction": 0.3, "batch_size": 10}
    everybody = {"number": CLIENTS, "fraction": 1.0}
    settings = job(
        rounds=3,
        clients=everybody,
        model="parts:linear",
        training=training,
        protection={"name": protection},
    )
    deployed = end(deploy(tmp_path, settings), tmp_path)
    simulated = fedveil.simulate(settings, tmp_path / "simulated")
    assert vector(deployed).tobytes() == vector(simulated).tobytes()
    assert kept(tmp_path) == {}


@pytest.mark.parametrize("way", WAYS)
def test_they_go_on_to_the_simulators_bytes(tmp_path: Path, way: str) -> None:
    settings = job_of(way, checkpoint={"every": 3})
    deployed = end(deploy(tmp_path, settings), tmp_path)
    simulated = fedveil.simulate(settings, tmp_path / "simulated")
    assert vector(deployed).tobytes() == vector(simulated).tobytes()
    theirs = {p.name: p.read_bytes() for p in (tmp_path / "simulated/clients").iterdir()}
    mine = kept(tmp_path)
    newest = {
        max((n for n in mine if n[0] == c), key=lambda n: n[1:]) for c in {n[0] for n in mine}
    }
    assert {name: mine[name] for name in newest} == theirs
    assert not (tmp_path / "run/clients").exists()


def test_what_a_client_keeps_is_with_its_accounts_and_not_with_its_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keys' folder is in memory, and is empty after the machine's next start."""
    memory, disk = tmp_path / "memory", tmp_path / "disk"
    memory.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(memory))
    monkeypatch.setenv("XDG_STATE_HOME", str(disk))
    grid = deploy(tmp_path, job_of("scaffold", rounds=1))
    for context in grid.contexts.values():
        del context.node_config["state-folder"]
    end(grid, tmp_path)
    assert len(list((disk / "fedveil").glob("*.kept/clients/*-1"))) == CLIENTS // 2
    assert list(memory.rglob("*.kept")) == []


def test_a_report_under_a_protection_is_the_same_too(tmp_path: Path) -> None:
    settings = job_of("scaffold", protection="dp_encrypt", rounds=2)
    deployed = end(deploy(tmp_path, settings), tmp_path)
    assert vector(deployed).tobytes() == vector(fedveil.simulate(settings)).tobytes()


@pytest.mark.parametrize("way", WAYS)
def test_a_run_that_was_cut_off_goes_on_to_the_same_bytes(tmp_path: Path, way: str) -> None:
    """It is cut off in its last round after training, two rounds after the last checkpoint."""
    settings = job_of(way, checkpoint={"every": 2}, rounds=4).with_(clients={"fraction": 1.0})
    grid, seen = deploy(tmp_path, settings), []

    def die(message: Any) -> Any:
        if message.has_content() and COMMON in message.content:
            seen.append(decode(message.content[COMMON]["encoded"])["round"])
            if seen.count(4) == 3:
                raise KeyboardInterrupt
        return message

    grid.tamper = die
    with pytest.raises(KeyboardInterrupt):
        end(grid, tmp_path)
    name = (tmp_path / "run" / RUN).read_text()
    grid.tamper = lambda message: message
    resumed = end(grid, tmp_path)
    assert (tmp_path / "run" / RUN).read_text() == name
    whole = fedveil.simulate(settings, tmp_path / "simulated")
    assert vector(resumed).tobytes() == vector(whole).tobytes()


def test_another_run_of_the_same_job_begins_at_nothing(tmp_path: Path) -> None:
    """It does so even if a client misses the first round."""
    everybody = {"number": CLIENTS, "fraction": 1.0}
    settings = job_of("feddyn", clients=everybody, rounds=2, deployment={"answer_s": 0.2})
    end(deploy(tmp_path, settings), tmp_path)
    ends = []
    for state, name in (("state", "second"), ("other", "third")):
        grid = LocalGrid(tmp_path / "app", tmp_path / state)
        grid.tamper = lambda message: None if asked_first(message) else message
        ends.append(end(grid, tmp_path, name))
        assert [record["reports"] for record in ends[-1].metrics] == [CLIENTS - 1, CLIENTS]
    assert vector(ends[0]).tobytes() == vector(ends[1]).tobytes()


def asked_first(message: Any) -> bool:
    """Return True if the message asks client 0 to train in the first round."""
    if message.metadata.dst_node_id != 100 or COMMON not in message.content:
        return False
    return decode(message.content[COMMON]["encoded"])["round"] == 1


def test_what_no_round_reads_any_more_is_gone(tmp_path: Path) -> None:
    settings = job_of("scaffold", clients={"number": CLIENTS, "fraction": 1.0}, rounds=4)
    end(deploy(tmp_path, settings), tmp_path)
    assert sorted(kept(tmp_path)) == [f"{c}-{r}" for c in range(CLIENTS) for r in (3, 4)]
    for path in (tmp_path / "state").glob("*.kept/**/*"):
        assert not path.stat().st_mode & 0o077 or path.is_dir()


def test_a_run_without_its_name_is_not_gone_on_with(tmp_path: Path) -> None:
    grid = deploy(tmp_path, job_of("feddyn", rounds=1))
    end(grid, tmp_path)
    for damaged in (b"\xff" * 32, b"", b"A" * 32):
        (tmp_path / "run" / RUN).write_bytes(damaged)
        with pytest.raises(FedveilError, match="run is damaged: it does not hold a run's name"):
            end(grid, tmp_path)
    (tmp_path / "run" / RUN).unlink()
    with pytest.raises(FedveilError, match="run is missing: clients go on from what they keep"):
        end(grid, tmp_path)


@pytest.mark.parametrize("name", ["../../../../tmp/x", "A" * 32, ""])
def test_a_server_names_no_file(tmp_path: Path, name: str) -> None:
    grid = deploy(tmp_path, job_of("feddyn", rounds=1))

    def lie(message: Any) -> Any:
        if message.has_content() and COMMON in message.content:
            common = decode(message.content[COMMON]["encoded"])
            if "weights" in common:
                lied = encode({**common, "run": name})
                message.content[COMMON] = encoded_records(lied)["fedveil"]
        return message

    grid.tamper = lie
    with pytest.raises(FedveilError):
        end(grid, tmp_path)
    assert not kept(tmp_path)


def test_a_clients_own_model_is_put_together_from_its_folder(tmp_path: Path) -> None:
    settings = job_of("own layers")
    run = end(deploy(tmp_path, settings), tmp_path)
    said = (tmp_path / "run/events.log").read_text()
    assert "figures are those of the layers that all begin with" in said
    folder = next((tmp_path / "state").glob("*-0.kept"), None)
    assert folder is not None
    mine = client_model(settings, run.model, ClientStates(folder), 0)
    theirs = client_model(
        settings, fedveil.simulate(settings, tmp_path / "s").model, ClientStates(tmp_path / "s"), 0
    )
    assert Layout(mine).vector().tobytes() == Layout(theirs).vector().tobytes()


@pytest.mark.parametrize("stopping", [{"keep": "best"}, {"patience": 1}, {"target": 0.5}])
def test_no_run_ends_by_figures_that_are_of_no_clients_model(stopping: dict[str, Any]) -> None:
    with pytest.raises(DeploymentError, match=r"clients.own_layers and stopping: on other machin"):
        deployable(job_of("own layers", stopping=stopping))


def test_what_has_no_meaning_there_is_refused_in_an_app_that_was_edited(tmp_path: Path) -> None:
    app, _ = app_of(tmp_path / "app", job())
    settings = Job.load(app / JOB).with_(evaluation={"clients": 0.2})
    (app / JOB).write_text(settings.to_yaml())
    with pytest.raises(DeploymentError, match=r"evaluation.clients = 0.2: on other machines"):
        LocalGrid(app, tmp_path / "state")


def forging(folder: Path, edit: str) -> Callable[[Any], Any]:
    """A `tamper` that edits the first client that is asked in round 3, before it is asked."""
    edited: list[str] = []

    def change(message: Any) -> Any:
        asked = message.has_content() and COMMON in message.content and not edited
        if asked and decode(message.content[COMMON]["encoded"])["round"] == 3:
            edited.append(edit)
            forge(folder / "state", edit)
        return message

    return change


@pytest.mark.parametrize("edit", ["all of 7", "another client's", "of the round before", "none"])
def test_a_state_that_was_edited_is_refused_and_moves_nothing(tmp_path: Path, edit: str) -> None:
    """A foreign control variate could move the client's update without any bound."""
    settings = job_of("scaffold", clients={"number": CLIENTS, "fraction": 1.0})
    grid = deploy(tmp_path, settings)
    grid.tamper = forging(tmp_path, edit)
    run = end(grid, tmp_path)
    assert [record["reports"] for record in run.metrics] == [CLIENTS] * 2 + [CLIENTS - 1]
    assert sum(sum(run.metrics[-1][kind].values()) for kind in LOST) == 1


@pytest.mark.parametrize(("edit", "happened"), [("all of 7", "was edited"), ("none", "is missing")])
def test_under_a_guarantee_a_client_with_an_edited_state_reports_an_update_of_zero(
    tmp_path: Path, edit: str, happened: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings = job_of("scaffold", protection="dp_encrypt", clients={**HALF, "fraction": 1.0})
    grid = deploy(tmp_path, settings)
    grid.tamper = forging(tmp_path, edit)
    caplog.set_level("WARNING", "flwr")
    run = end(grid, tmp_path)
    assert [record["reports"] for record in run.metrics] == [CLIENTS] * 3
    (path,) = (tmp_path / "state").glob("*-0.kept/clients")
    assert f"an update of zero is reported: {path / '0-2'} {happened}" in caplog.text
    assert caplog.text.count("an update of zero") == 1
    assert not (path / "0-3").exists()


def forge(state: Path, edit: str) -> None:
    """Replace client 0's saved state of round 2 without knowing its key."""
    (folder,) = state.glob("*-0.kept/clients")
    if edit == "all of 7":
        sevens = np.full_like(vector_of(folder / "0-2"), 7)
        ClientStates(folder.parent).save(0, 2, sevens)
    elif edit == "none":
        (folder / "0-2").unlink()
    elif edit == "of the round before":
        (folder / "0-2").write_bytes((folder / "0-1").read_bytes())
    else:
        (other,) = state.glob("*-1.kept/clients")
        (folder / "0-2").write_bytes((other / "1-2").read_bytes())


def vector_of(path: Path) -> np.ndarray:
    return take_array(unsealed(path.read_bytes()), "kept", np.float32, (None,))


@pytest.mark.parametrize("way", ["scaffold", "feddyn"])
def test_a_state_whose_report_was_lost_is_dropped(tmp_path: Path, way: str) -> None:
    """The server's state stays the mean of the clients', also if the run is cut off and resumed."""
    settings = job_of(way, rounds=4, deployment={"answer_s": 0.3}, model="parts:linear")
    settings = settings.with_(clients={"fraction": 1.0})
    ends = {}
    for name, cut in (("whole", False), ("cut", True)):
        grid, asked, cuts = deploy(tmp_path / name, settings), [0], [cut]

        def lose(message: Any, asked: list[int] = asked, cuts: list[bool] = cuts) -> Any:
            """Drop client 1's second report on its way, and cut the run off in round 3."""
            if message.metadata.dst_node_id == 101 and COMMON in message.content:
                asked[0] = decode(message.content[COMMON]["encoded"])["round"]
            elif message.metadata.src_node_id == 101 and asked[0] == 2:
                return None
            if asked[0] == 3 and message.metadata.src_node_id == 101 and cuts[0]:
                cuts[0] = False
                raise KeyboardInterrupt
            return message

        grid.tamper = lose
        if cut:
            with pytest.raises(KeyboardInterrupt):
                end(grid, tmp_path / name)
        run = end(grid, tmp_path / name)
        assert [record["reports"] for record in run.metrics] == [CLIENTS, CLIENTS - 1] + [
            CLIENTS
        ] * 2
        ends[name] = (tmp_path / name / "run/model.safetensors").read_bytes()
        assert {"1-3", "1-4"} <= set(kept(tmp_path / name))
        assert "1-2" not in kept(tmp_path / name)
    assert ends["whole"] == ends["cut"]
    folder = RunFolder.reopen(tmp_path / "whole/run")
    saved = Checkpoint.read(folder)
    folder.close()
    assert saved is not None
    own = np.mean([vector_of(path) for path in (tmp_path / "whole/state").glob("*.kept/**/*-4")], 0)
    server = saved.weights[len(own) :] if way == "scaffold" else saved.optimizer["h"]
    np.testing.assert_allclose(server, own, atol=1e-6)
    assert np.linalg.norm(own) > 1e-3


@pytest.mark.parametrize("lie", [{"summed": 1}, {"summed": -1}, {}, {"summed": 0, "round": 1}])
def test_a_server_names_no_round_that_has_not_ended(tmp_path: Path, lie: dict[str, int]) -> None:
    grid = deploy(tmp_path, job_of("scaffold", rounds=1))

    def lied(message: Any) -> Any:
        if message.has_content() and COMMON in message.content:
            client = decode(message.content[ADDRESS]["encoded"])["client"]
            message.content[ADDRESS] = encoded_records(encode({"client": client, **lie}))["fedveil"]
        return message

    grid.tamper = lied
    with pytest.raises(FedveilError):
        end(grid, tmp_path)
    assert not kept(tmp_path)
