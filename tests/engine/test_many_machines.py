"""A simulation on a cluster: the same bytes on any machines, and after any loss of some."""

from __future__ import annotations

import io
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from test_simulation import job, timeless

import fedveil
from fedveil.base import plain_text
from fedveil.base.message import encode
from fedveil.base.quantity import quantity
from fedveil.engine.cluster import membership, start
from fedveil.engine.cluster.machine import PROOF, Played
from fedveil.engine.run_records import MACHINES, RETRAINED
from fedveil.errors import ClusterUnavailable, MachineDiffers, MissingExtra, StatesUnreachable
from fedveil.pages.machines import machine_totals
from fedveil.pages.read_run import read_run
from fedveil.pages.run_folder_page import page_of
from fedveil.run_display import RunDisplay, describe
from thread_cluster import ThreadCluster

FEW = {"reconstruct_secrets_threshold": 3}
PROTECTIONS = {"pw_encrypt": FEW, "distributed_dp": FEW}
Lost = Callable[[str, str, int], bool]


@dataclass
class Left:
    """The results of a run: its bytes, its records without times and machines, its log."""

    model: bytes
    ledger: bytes
    records: list[str]
    events: str
    machines: list[dict[str, list[float]]]
    retrained: int


def run(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    cluster: ThreadCluster | None = None,
    **settings: Any,
) -> Left:
    """Run a job on `cluster`, or here without one."""
    place = {"on": "here" if cluster is None else "ray"}
    monkeypatch.setattr(start, "_ray_cluster", lambda job: cluster)
    monkeypatch.setattr("fedveil.entry.simulation.need_ray", lambda: None)
    settings["simulation"] = {"workers": 0} | settings.get("simulation", {}) | place
    made = fedveil.simulate(job(**settings), folder)
    records = [dict(record) for record in made.metrics]
    machines = [record.pop(MACHINES, {}) for record in records]
    retrained = sum(record.pop(RETRAINED, 0) for record in records)
    return Left(
        (folder / "model.safetensors").read_bytes(),
        encode(made.ledger.to_state()),
        timeless(records),
        (folder / "events.log").read_text("utf-8"),
        machines,
        retrained,
    )


def lost_at(*numbers: int) -> Lost:
    """Return a plan that loses the machine of these calls of `play`, counted over all machines."""
    played = iter(range(1, 10_000))
    return lambda name, method, number: method == "play" and next(played) in numbers


class PausesAlone:
    """A clock that stands still except in pauses, which take no time."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize("protection", ["not_encrypt", "pw_encrypt"])
def test_machines_that_are_lost_change_no_byte(
    protection: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under pw_encrypt, other machines repeat the phases of the lost machine's clients."""
    settings = {"model": "parts:plain", "protection": {"name": protection, **PROTECTIONS}}
    alone = run(tmp_path / "alone", monkeypatch, **settings)
    for number, cluster in enumerate([
        ThreadCluster(1, 3),
        ThreadCluster(1, 2, 2, lost=lost_at(2)),
        ThreadCluster(1, 1, 1, lost=lost_at(3, 5, 8)),
    ]):  # fmt: skip
        left = run(tmp_path / str(number), monkeypatch, cluster, **settings)
        assert left.model == alone.model
        assert left.records == alone.records
        assert left.ledger == alone.ledger
        assert sum(of[0] for of in left.machines[-1].values()) == 4
        lost = re.findall(r"round \d: machine m\d was lost .*: its (\d) clients train", left.events)
        assert sum(map(int, lost)) == left.retrained
        assert (left.retrained > 0) == (number > 0)


def test_the_page_and_the_terminal_list_every_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = ThreadCluster(1, 2, lost=lost_at(5))
    left = run(tmp_path / "run", monkeypatch, cluster, model="parts:plain")
    out = io.StringIO()
    read = read_run(tmp_path / "run")
    RunDisplay(plain_text.console(file=out, width=160), 1).summary(read)
    page = page_of(tmp_path / "run").html()
    for name in ("m0", "m1"):
        clients = sum(int(of[name][0]) for of in left.machines if name in of)
        assert clients > 0
        told = rf"machine {name} +{quantity(clients, 'client')}, \d+\.\d s, idle \d+%"
        assert re.search(told, out.getvalue())
        assert re.search(rf"<td[^>]*>{name}</td>\s*<td[^>]*>{clients}</td>", page)
    again = quantity(left.retrained, "training")
    assert f"{again} on a lost machine had to be repeated." in page
    assert re.search(r"2 machines, idle \d+%", describe(read.records[1]))


def test_a_machine_without_work_is_idle() -> None:
    """Rounds of 4, 10 and 5 seconds: m1 works in one of the first two, m2 joins for the last."""
    records: list[dict[str, Any]] = [
        {MACHINES: {"m0": [3, 3.0, 0.25], "m1": [0, 0.0, 1.0]}},
        {MACHINES: {"m0": [1, 1.0, 0.9], "m1": [2, 10.0, 0.0]}},
        {MACHINES: {"m0": [5, 4.0, 0.2], "m2": [0, 0.0, 1.0]}},
    ]
    totals = machine_totals(records)
    assert [of.wall_s for of in totals.values()] == pytest.approx([19.0, 14.0, 5.0])
    assert [of.idle for of in totals.values()] == pytest.approx([11 / 19, 4 / 14, 1.0])
    assert [of.clients for of in totals.values()] == [9, 2, 0]


def test_the_record_lists_machines_without_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = {"number": 2, "fraction": 0.5}
    left = run(tmp_path / "run", monkeypatch, ThreadCluster(1, 1), rounds=1, clients=clients)
    assert sorted(of[::2] for of in left.machines[0].values())[0] == [0, 1.0]
    assert sum(of[0] for of in left.machines[0].values()) == 1


def test_a_machine_that_stops_is_given_up_and_a_slow_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "_PULSE_S", 0.02)
    monkeypatch.setattr(membership, "_SILENT_S", 0.1)
    settings = {"model": "parts:plain", "rounds": 3}
    alone = run(tmp_path / "alone", monkeypatch, **settings)
    second = lost_at(4)
    cluster = ThreadCluster(1, 1, 1, stopped=second)
    cluster.change("m0", "play", lambda played: (time.sleep(0.2), played)[1])
    left = run(tmp_path / "run", monkeypatch, cluster, **settings)
    assert (left.model, left.ledger, left.records) == (alone.model, alone.ledger, alone.records)
    silent = re.findall(r"machine (m\d) gives no sign of life: it is given up", left.events)
    assert len(silent) == 1
    assert re.findall(r"round 2: machine (m\d) was lost", left.events) == silent
    assert left.retrained > 0


def test_a_run_is_resumed_on_a_cluster_and_back_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint does not know where clients were trained."""
    settings = {"model": "parts:plain", "rounds": 4}
    alone = run(tmp_path / "alone", monkeypatch, **settings)
    run(tmp_path / "moved", monkeypatch, **{**settings, "rounds": 1})
    monkeypatch.setattr(start, "_ray_cluster", lambda job: ThreadCluster(1, 2))
    there = fedveil.resume(tmp_path / "moved", rounds=3, on="10.0.0.1:6379")
    assert there.job.simulation.on == "10.0.0.1:6379"
    assert MACHINES in there.metrics[-1]
    back = fedveil.resume(tmp_path / "moved", rounds=4, on="here")
    assert MACHINES not in back.metrics[-1]
    assert (tmp_path / "moved/model.safetensors").read_bytes() == alone.model


def test_clients_drop_out_if_nobody_can_repeat_their_randomness(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Playing a phase again with new keys would tell the server two stories of one client."""
    cluster = ThreadCluster(1, 1, 1, 1, lost=lost_at(7))  # in the second phase of the first round
    left = run(
        tmp_path / "run",
        monkeypatch,
        cluster,
        model="parts:plain",
        rounds=2,
        clients={"number": 8, "fraction": 1.0},
        protection={"name": "pw_encrypt", **PROTECTIONS},
        privacy={"randomness": "secure"},
    )
    assert re.search(r"round 1: machine m\d was lost .*: its 2 clients drop out", left.events)
    assert '"dropped": 2' in left.records[0]
    assert '"dropped": 0' in left.records[1]
    assert left.retrained == 0


def test_states_survive_a_lost_machine_in_the_shared_run_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {
        "model": "parts:plain",
        "training": {"algorithm": "scaffold", "engine": "loop"},
        "clients": {"number": 7, "fraction": 1.0},
    }
    alone = run(tmp_path / "alone", monkeypatch, **settings)
    left = run(tmp_path / "many", monkeypatch, ThreadCluster(1, 1, lost=lost_at(3)), **settings)
    assert (left.model, left.records) == (alone.model, alone.records)
    assert left.retrained > 0


def test_a_direction_reaches_every_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {
        "model": "parts:plain",
        "training": {"algorithm": "fedcm", "own_direction": 0.3, "engine": "loop"},
        "clients": {"number": 7, "fraction": 1.0},
    }
    alone = run(tmp_path / "alone", monkeypatch, **settings)
    many = run(tmp_path / "many", monkeypatch, ThreadCluster(1, 1), **settings)
    assert (many.model, many.records) == (alone.model, alone.records)


def test_a_machine_that_cannot_read_the_states_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other_folder(folder: Path) -> str:
        made = leave(folder)
        (folder / "clients/machines").write_text("of another folder")
        return made

    leave = start._leave_proof
    monkeypatch.setattr(start, "_leave_proof", other_folder)
    settings = {"model": "parts:plain", "training": {"algorithm": "feddyn", "dynamic": 0.1}}
    with pytest.raises(
        StatesUnreachable, match=r"^machine m0 cannot read .* machines share"
    ) as caught:
        run(tmp_path / "run", monkeypatch, ThreadCluster(1, 1), **settings)
    assert str(tmp_path / "run") in str(caught.value)
    first, second = (leave(tmp_path / "run") for _ in range(2))
    assert first != second, "an older copy of the folder has another proof"
    assert (tmp_path / "run" / PROOF).read_text() == second


def test_clients_that_train_together_do_so_on_one_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {
        "model": "parts:plain",
        "clients": {"number": 40, "fraction": 0.9},
        "training": {"engine": "vmap"},
        "rounds": 2,
    }
    alone = run(tmp_path / "alone", monkeypatch, **settings)
    left = run(tmp_path / "many", monkeypatch, ThreadCluster(1, 2, lost=lost_at(2)), **settings)
    assert (left.model, left.records) == (alone.model, alone.records)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"trained": "other"}, "trains a batch to other bytes"),
        ({"sources": "other"}, "has other source files of fedveil"),
        ({"versions": {"torch": "0.1"}}, "machine m1 has fedveil none, but this one has"),
    ],
)
def test_a_machine_of_another_kind_is_found_before_the_first_round(
    changed: dict[str, Any], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = ThreadCluster(1, 1)
    cluster.change("m1", "facts", lambda found: replace(found, **changed))
    with pytest.raises(MachineDiffers, match=words):
        run(tmp_path / "run", monkeypatch, cluster, model="parts:plain")
    assert (tmp_path / "run/metrics.jsonl").read_bytes() == b""


def taking(*seconds: float) -> Callable[[Played], Played]:
    """Return a change of answers: clients take `seconds` in the first rounds, the last in others.

    Clients are placed by their seconds, which a busy machine makes random.
    """
    left = list(seconds)

    def change(played: Played) -> Played:
        columns = played.columns.copy()
        columns[:, 1:] = left.pop(0) if left[1:] else left[0]
        return replace(played, columns=columns)

    return change


def test_a_machine_that_was_slow_once_keeps_its_clients_and_a_slow_one_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, (seconds, least) in enumerate([((0.01, 0.1, 0.01), 4), ((0.1,), 1)]):
        cluster = ThreadCluster(1, 1)
        cluster.change("m0", "play", taking(*seconds))
        cluster.change("m1", "play", taking(0.01))
        settings = {"model": "parts:plain", "rounds": 4, "clients": {"number": 8, "fraction": 1.0}}
        left = run(tmp_path / str(number), monkeypatch, cluster, **settings)
        assert min(of["m0"][0] for of in left.machines) == least


def test_a_late_machine_gets_its_share_of_clients_unless_it_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "_LOOK_S", -1.0)
    monkeypatch.setattr(membership, "_PAUSE_S", 0.0)
    cluster = ThreadCluster(1, 0, 0)
    cluster.change("m2", "facts", lambda found: replace(found, trained="other"))

    for name in ("m0", "m1"):
        cluster.change(name, "play", taking(0.01))
    settings = {"model": "parts:plain", "rounds": 8, "clients": {"number": 8, "fraction": 1.0}}
    alone = run(tmp_path / "alone", monkeypatch, **settings)
    held: dict[str, set[int]] = {}

    def watched(name: str, method: str, number: int) -> bool:
        if method == "play":
            cluster.cores[:] = [1, 1, 1]
            held.update({m.name: m.clients() for m in cluster.machines})
        return False

    cluster.lost = watched
    left = run(tmp_path / "many", monkeypatch, cluster, **settings)
    assert (left.model, left.records) == (alone.model, alone.records)
    assert "machine m1 with 1 cores has joined" in left.events
    assert left.events.count("not used: machine m2 trains a batch to other bytes") == 1
    assert set(left.machines[0]) == {"m0"}
    assert set(left.machines[-1]) == {"m0", "m1"}
    assert held["m0"] | held["m1"] == set(range(8))
    assert not held["m0"] & held["m1"]
    assert len(held["m1"]) >= 3


def test_a_cluster_without_a_usable_machine_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "WAIT_S", 0.0)
    with pytest.raises(ClusterUnavailable, match="no node has the processor cores"):
        run(tmp_path / "none", monkeypatch, ThreadCluster(0), model="parts:plain")
    monkeypatch.setattr(membership, "time", PausesAlone())
    monkeypatch.setattr(membership, "WAIT_S", 10.0)  # pauses of 2, 4 and 8 seconds, then 16
    always = ThreadCluster(1, lost=lambda name, method, number: method == "play")
    with pytest.raises(ClusterUnavailable, match="all its machines were lost"):
        run(tmp_path / "lost", monkeypatch, always, model="parts:plain")
    assert len(always.started) == 4


def test_a_place_with_results_between_its_losses_is_soon_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "time", PausesAlone())
    monkeypatch.setattr(membership, "_LOOK_S", -1.0)
    monkeypatch.setattr(membership, "WAIT_S", 30.0)  # five losses in a row: a pause of 32 s
    settings = {"model": "parts:plain", "rounds": 7}
    alone = run(tmp_path / "alone", monkeypatch, **settings)
    cluster = ThreadCluster(1, lost=lost_at(2, 4, 6, 8, 10))
    left = run(tmp_path / "run", monkeypatch, cluster, **settings)
    assert (left.model, left.records) == (alone.model, alone.records)
    assert left.retrained > 0
    assert cluster.started == ["m0"] * 6


def test_a_job_on_gpus_asks_for_machines_that_have_one(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[tuple[tuple[str, int | None], dict[str, bool]]]()
    monkeypatch.setattr(start, "RayCluster", lambda *at, **gpus: asked.append((at, gpus)))
    for device, workers in (("cpu", "auto"), ("cuda", 3), ("cpu", 0)):
        place = {"on": "10.0.0.1:6379", "workers": workers}
        start._ray_cluster(job(training={"device": device}, simulation=place))
    there = "10.0.0.1:6379"
    assert asked == [
        ((there, None), {"gpus": False}), ((there, 3), {"gpus": True}),
        ((there, 1), {"gpus": False}),
    ]  # fmt: skip


def test_ray_that_is_not_installed_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"^simulation\.on needs .* 'fedveil\[ray\]'"):
        fedveil.simulate(job(model="parts:plain", simulation={"on": "ray"}), tmp_path / "run")
