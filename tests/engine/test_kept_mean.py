"""SCAFFOLD and FedDyn: the server's state is the mean of its clients' states, come what may."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedveil
from fedveil.engine.executors.client_states import ClientStates
from fedveil.engine.round_checkpoint import Checkpoint
from fedveil.engine.run_state import SummedReports
from fedveil.errors import MessageInvalid, RoundVoid
from fedveil.federated.job import Job
from fedveil.protections.base import Aggregate, RoundContext
from fedveil.protections.not_encrypt import NotEncrypt, NotEncryptServerRound
from fedveil.record.run_folder import RunFolder
from job_checks import problems

CLIENTS, ROUNDS, PARAMETERS = 7, 5, 21
WAYS: dict[str, dict[str, Any]] = {
    "scaffold": {"algorithm": "scaffold"},
    "feddyn": {"algorithm": "feddyn", "dynamic": 0.3},
}


class Picky(NotEncrypt):
    """not_encrypt that refuses two clients in some rounds, and ends round 3 without a result."""

    block = "own"

    def server_round(self, context: RoundContext) -> NotEncryptServerRound:
        return PickyRound(context, self.largest_weight, self.context.combining)


class PickyRound(NotEncryptServerRound):
    def _fold(self, client: int, message: Any) -> None:
        if client in (1, 4) and self._context.round % 2 == 0:
            raise MessageInvalid("it is refused")
        super()._fold(client, message)

    def _aggregate(self) -> Aggregate:
        if self._context.round == 3:
            raise RoundVoid("report", 0, 0, "it is void")
        return super()._aggregate()


def job(way: str, **changes: Any) -> Job:
    """Unequal clients, of which some take no part in a round."""
    base: dict[str, Any] = {
        "rounds": ROUNDS,
        "seed": 4,
        "clients": {"number": CLIENTS, "fraction": 0.8},
        "data": {"name": "parts:data", "split": "dirichlet", "alpha": 0.5},
        "model": "parts:linear",
        "training": {"epochs": 2, "batch_size": 9, "lr": 0.2, **WAYS[way]},
        "simulation": {"workers": 0},
        "record": {"page": False},
    }
    for key, value in changes.items():
        base[key] = {**base[key], **value} if isinstance(base.get(key), dict) else value
    return Job(**base)


def states_of(folder: Path, way: str) -> tuple[np.ndarray, np.ndarray]:
    """The server's state, and each client's: zeros where it has none."""
    opened = RunFolder.reopen(folder)
    saved = Checkpoint.read(opened)
    opened.close()
    assert saved is not None
    server = saved.weights[PARAMETERS:] if way == "scaffold" else saved.optimizer["h"]
    states = ClientStates(folder)
    kept = [states.load(client, ROUNDS + 1, PARAMETERS) for client in range(CLIENTS)]
    assert sum(own is not None for own in kept) > CLIENTS // 2
    return server, np.array([np.zeros(PARAMETERS) if own is None else own for own in kept])


TROUBLES: dict[str, dict[str, Any]] = {
    "none": {},
    "dropouts": {"simulation": {"dropouts": {"report": 0.4}}},
    "late reports": {
        "simulation": {"answer_ms": 70.0, "answer_spread": 0.5},
        "protection": {"name": "pw_encrypt", "pw_encrypt": {"cipher_time_window": 150}},
    },
    "refusals and a void round": {"protection": "test_kept_mean:Picky"},
    "a clip": {"protection": {"name": "pw_encrypt", "pw_encrypt": {"clip": 0.02}}},
    # The sum is divided by the expected number of reports, whoever reports.
    "secret cohorts": {
        "clients": {"sampling": "poisson"},
        "protection": {
            "name": "central_gaussian",
            "central_gaussian": {"noise_multiplier": 2e-3, "clip": 0.02},
        },
    },
}


@pytest.mark.parametrize("trouble", TROUBLES)
@pytest.mark.parametrize("way", WAYS)
def test_the_servers_state_is_the_mean_of_the_clients(
    way: str, trouble: str, tmp_path: Path
) -> None:
    run = fedveil.simulate(job(way, **TROUBLES[trouble]), tmp_path / "run")
    server, clients = states_of(run.folder, way)
    size = np.linalg.norm(server)
    assert size > 1e-3
    # pw_encrypt rounds entries to fixed-point numbers at random, and central_gaussian adds noise.
    least = {"late reports": 1e-3, "a clip": 1e-3, "secret cohorts": 2e-2}.get(trouble, 1e-5)
    assert np.linalg.norm(server - clients.mean(axis=0)) < least * size


def test_the_variates_of_refused_clients_and_of_a_void_round_are_gone(tmp_path: Path) -> None:
    settings = job("scaffold", protection="test_kept_mean:Picky", clients={"fraction": 1.0})
    run = fedveil.simulate(settings.with_(checkpoint={"every": ROUNDS}), tmp_path / "run")
    assert [record["reports"] for record in run.metrics] == [7, 5, 0, 5, 7]
    states = ClientStates(run.folder)
    assert states._rounds(1, 6) == states._rounds(4, 6) == [5]


@pytest.mark.parametrize("way", WAYS)
def test_clients_count_equally_unless_the_job_says_otherwise(way: str) -> None:
    assert job(way).server.weighting == "equal"
    assert job(way, server={"weighting": "by_size"}).server.weighting == "by_size"
    assert Job(training={"algorithm": "fedavg"}).server.weighting == "by_size"


@pytest.mark.parametrize("way", WAYS)
def test_what_breaks_the_mean_is_refused(way: str) -> None:
    algorithm = f"training: {{algorithm: {way}}}"
    assert problems(f"{{{algorithm}, server: {{aggregation: median}}}}") == [
        f"server.aggregation = 'median' is not 'mean': training.algorithm = {way} needs it"
    ]
    secret = "clients: {sampling: poisson}, protection: distributed_dp"
    (said,) = problems(f"{{{algorithm}, {secret}}}")
    assert said.startswith(
        f"training.algorithm = {way} is refused under clients.sampling = poisson"
    )


def test_the_rounds_in_a_checkpoint_are_checked() -> None:
    summed = SummedReports(job("scaffold"))
    summed.note(3, [2, 5])
    for wrong, said in ((4, "has not ended"), (-1, "has not ended")):
        last = summed.last.copy()
        last[6] = wrong
        with pytest.raises(MessageInvalid, match=said):
            SummedReports(job("scaffold")).restore({"last": last}, 3)
    again = SummedReports(job("scaffold"))
    again.restore(summed.state(), 3)
    assert again.last.tolist() == [0, 0, 3, 0, 0, 3, 0]
    assert SummedReports(Job()).state() == {}
