"""Clients that fall silent, and clients that answer too late: nothing waits for either."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

import fedveil
import parts
from fedveil.engine.canaries import Canaries
from fedveil.engine.faults import Faulty, late_clients, silent_clients
from fedveil.engine.job_protection import make_protection
from fedveil.entropy import Seeded
from fedveil.errors import RunFailed
from fedveil.federated.job import Job
from fedveil.protections.catalog import POSITIONS, fault_phases, find
from fedveil.rounds.outcomes import Unreached
from fedveil.secagg.phases import PHASES
from folders import records_of

COHORT = range(20_000)
PARAMETERS = "{reconstruct_secrets_threshold: 6, cipher_time_window: 1000}"
PW = f"protection={{name: pw_encrypt, pw_encrypt: {PARAMETERS}}}"
NAMES = fault_phases(POSITIONS["pw_encrypt"])


class Hurried(parts.TwoPhases):
    """`TwoPhases` with a deadline."""

    deadline_s = 1.0


def test_the_share_that_is_late_is_the_tail_of_the_law() -> None:
    late = late_clients(COHORT, PHASES[:3], 1000, 250, 0.8, Seeded(1))
    tail = norm.sf(np.log(4) / 0.8)
    expected = tail
    for phase in PHASES[:3]:
        share = sum(missed == phase for missed in late.values()) / len(COHORT)
        assert abs(share - expected) < 5 * np.sqrt(expected / len(COHORT))
        expected *= 1 - tail  # of those that were in time before


def test_without_spread_all_are_in_time_or_none() -> None:
    assert late_clients(COHORT, PHASES, 1000, 1000, 0, Seeded(1)) == {}
    assert set(late_clients(COHORT, PHASES, 1000, 1001, 0, Seeded(1)).values()) == {"advertise"}
    assert late_clients(COHORT, PHASES, 1000, 0, 5, Seeded(1)) == {}
    assert len(late_clients(range(50), PHASES, 1000, 1e300, 1e300, Seeded(1))) > 40


@pytest.mark.parametrize("beside", [True, False])
def test_faults_leave_an_executor_where_it_is(beside: bool) -> None:
    executor: Any = SimpleNamespace(beside_server=beside)
    assert Faulty(executor, Job(), executor).beside_server == beside


def test_an_executor_beside_faults_or_canaries_shows_its_machines_and_is_closed() -> None:
    closed: list[str] = []
    executor: Any = SimpleNamespace(
        beside_server=True, shown=lambda: {"machines": {"a": [3, 0.5, 0.25]}},
        close=lambda: closed.append("closed"),
    )  # fmt: skip
    audited = Job(clients={"number": 12}, audit={"canaries": 2}, protection="dp_encrypt")
    canaries = Canaries(audited, make_protection(audited, 30))
    for outer in (Faulty(executor, Job(), executor), canaries.beside(executor)):
        assert outer is not executor
        assert outer.shown() == {"machines": {"a": [3, 0.5, 0.25]}}
        outer.close()
    assert closed == ["closed"] * 2


@pytest.mark.parametrize("way", ["ask", "fold"])
def test_a_silent_client_is_not_reached_and_a_late_one_is_not_heard(way: str) -> None:
    """Each from its phase on. The other clients get their messages."""
    executor: Any = SimpleNamespace(
        beside_server=True,
        ask=lambda phase, messages: iter([(phase, *messages)]),
        fold=lambda phase, messages, server: iter([(phase, *messages, server)]),
    )
    protection: Any = SimpleNamespace(phases=("keys", "tell", "unmask"))
    made, server = Faulty(executor, Job(), protection), () if way == "ask" else ("a half",)
    made._silent, made._late = {4: "tell", 9: "unmask"}, {7: "tell"}
    messages = {client: {"yours": client} for client in (7, 4, 9, 2)}
    found = {
        phase: list(getattr(made, way)(phase, messages, *server))
        for phase in made._protection.phases
    }
    assert found == {
        "keys": [("keys", 7, 4, 9, 2, *server)],
        "tell": [Unreached(4), ("tell", 9, 2, *server)],
        "unmask": [Unreached(4), Unreached(9), ("unmask", 2, *server)],
    }


@pytest.mark.parametrize(
    ("answer_ms", "window_s", "late"),
    [(1501, 1.5, 3), (1499, 1.5, 0), (1501, None, 0), (0, 1.5, 0), (1e9, 0.0, 3)],
)
def test_equal_answer_times_are_compared_with_the_deadline(
    answer_ms: float, window_s: float | None, late: int
) -> None:
    executor: Any = SimpleNamespace(beside_server=True)
    hurried: Any = SimpleNamespace(deadline_s=window_s, flow=("hello", "tell"))
    same = job(f"simulation.answer_ms={answer_ms}", "simulation.answer_spread=0")
    found = Faulty(executor, same, hurried)._late_in([4, 7, 9], Seeded(1))
    assert found == dict.fromkeys([4, 7, 9][:late], "hello")


def test_silent_clients_are_the_shares_of_the_plan() -> None:
    shares = {"masked": 0.1, "advertise": 0.05, "unmask": 0.5}
    plan = silent_clients(range(40), shares, NAMES, Seeded(0))
    counts = {phase: list(plan.values()).count(phase) for phase in set(plan.values())}
    assert counts == {"advertise": 2, "masked": 4, "unmask": 20}
    few = {"masked": 0.1, "advertise": 0.25, "unmask": 0.2}  # 0.7, 1.75 and 1.4 of 7
    plan = silent_clients(range(7), few, NAMES, Seeded(0))
    assert sorted(plan.values()) == ["advertise", "advertise", "masked", "unmask"]
    most = {"share": 0.99, "masked": 0.99}
    assert silent_clients(range(4), most, NAMES, Seeded(0)).keys() == set(range(4))


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        ("signds", {"report": "report", "share": "report", "masked": "report", "unmask": None}),
        ("pw_encrypt", {"report": "masked", "share": "share", "unmask": "unmask"}),
        ("parts:TwoPhases", {"report": "tell", "hello": "hello", "masked": "tell", "unmask": None}),
    ],
)
def test_one_plan_serves_every_position(position: str, expected: Mapping[str, str | None]) -> None:
    names = fault_phases(find(position))
    assert expected.items() <= names.items()
    draws = [silent_clients(range(50), {"masked": 0.2}, n, Seeded(3)) for n in (NAMES, names)]
    assert draws[0].keys() == draws[1].keys()


def job(*overrides: str, **blocks: Any) -> Job:
    base = ["model=logistic", "training.epochs=1", "clients={number: 12, fraction: 1.0}"]
    return Job.load(None, [*base, "simulation.workers=0", "record.page=false", *overrides])


def test_a_protection_without_a_deadline_waits_for_everybody(tmp_path: Path) -> None:
    run = fedveil.simulate(
        job("protection=signds", "simulation.answer_ms=1e9", "rounds=1"), tmp_path / "run"
    )
    assert run.metrics[0]["dropped"] == 0


@pytest.mark.parametrize(("answer_ms", "void"), [(300, False), (900, True)])
def test_a_run_goes_on_without_those_who_are_late(
    tmp_path: Path, answer_ms: int, void: bool
) -> None:
    settings = job(PW, "rounds=2", f"simulation.answer_ms={answer_ms}")
    for name in ("one", "two"):
        with pytest.raises(RunFailed) if void else nullcontext():
            fedveil.simulate(settings, tmp_path / name)
    one, two = records_of(tmp_path / "one"), records_of(tmp_path / "two")
    for record in one:
        assert record["dropped"] > 0
        assert (record["void"] is not None) == void
        assert record["reports"] == 0 if void else 6 <= record["reports"] < 12
    assert [r["reports"] for r in one] == [r["reports"] for r in two]
    models = [tmp_path / name / "model.safetensors" for name in ("one", "two")]
    assert [path.exists() for path in models] == [not void] * 2
    assert void or models[0].read_bytes() == models[1].read_bytes()


def test_a_report_that_comes_after_its_phase_has_closed_has_left_all_the_same(
    tmp_path: Path, charges: dict[int, set[int]]
) -> None:
    """A client that falls silent gives nothing; one that is late has given, though too late."""
    own = "protection=test_faults:Hurried"
    silent = job(own, "rounds=2", "simulation.dropouts={tell: 0.5}")
    record = fedveil.simulate(silent, tmp_path / "silent").metrics[0]
    first, second = charges.pop(1), charges.pop(2)
    assert (record["reports"], len(first), len(second)) == (6, 6, 6)
    assert first != second  # each round draws anew who falls silent
    late = job(own, "rounds=1", "simulation.answer_ms=900", "simulation.answer_spread=0.5")
    record = fedveil.simulate(late, tmp_path / "late").metrics[0]
    too_late_to_tell = len(charges[1]) - record["reports"]
    assert too_late_to_tell > 0
    assert record["dropped"] > too_late_to_tell  # others had missed the first phase: they gave none
    assert record["dropped"] + record["reports"] == 12
