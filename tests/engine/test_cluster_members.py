"""When a machine of a cluster joins a run, is waited for and is given up, by a clock in hand."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedveil.engine.cluster import membership
from fedveil.engine.cluster.cluster import MachineLost, Place
from fedveil.engine.cluster.machine import Played
from fedveil.engine.cluster.many_machines import ManyMachines, _Used
from fedveil.engine.cluster.membership import Membership
from fedveil.engine.cluster.placement import Expected
from fedveil.errors import ClusterUnavailable

NEVER = 1e9


@dataclass(eq=False)
class Due:
    due: float

    def result(self) -> str:
        return "facts"


class Nodes:
    """A cluster whose calls end at times that are known in advance. Only waiting takes time."""

    name = "the cluster"

    def __init__(self, due: dict[str, float]) -> None:
        self.now, self.due, self.pulse_s = 100.0, due, NEVER
        self.started: list[tuple[float, str]] = []
        self.ended: list[str] = []

    def monotonic(self) -> float:
        assert self.now < 5_000, "it waits for ever"
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def share(self, setup: Any) -> Any:
        return setup

    def places(self) -> list[Place]:
        return [Place(key, key, cores) for key, cores in zip(self.due, (2, 3, 5), strict=False)]

    def start(self, place: Place, setup: Any, name: str) -> Any:
        self.started.append((self.now, name))
        return SimpleNamespace(
            call=lambda method: Due(self.due[place.key]),
            pulse=lambda: Due(self.now + self.pulse_s),
            end=lambda: self.ended.append(name),
        )

    def wait(self, calls: list[Any], seconds: float) -> list[Any]:
        if all(call.due > self.now for call in calls):
            self.now += seconds
        return [call for call in calls if call.due <= self.now]


def members(monkeypatch: pytest.MonkeyPatch, **due: float) -> tuple[Any, Nodes, list[str]]:
    nodes, events = Nodes(due), list[str]()
    monkeypatch.setattr(membership, "time", nodes)
    made = Membership(
        nodes, "a setup", SimpleNamespace(check=lambda found, name: None),  # type: ignore[arg-type]
        event=events.append, starting=lambda what: None,
    )  # fmt: skip
    return made, nodes, events


def test_a_run_begins_once_all_have_joined_and_names_them_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, nodes, events = members(monkeypatch, a=130, b=140)
    made.gather()
    assert 140 <= nodes.now <= 141
    assert events == ["the cluster: machine a with 2 cores, machine b with 3 cores"]
    nodes.due["c"] = nodes.now
    assert not made.changed()  # a look is due only every five seconds
    nodes.now += 6
    assert made.changed()
    assert events[1:] == ["machine c with 5 cores has joined"]
    assert [name for _, name in nodes.started] == ["a", "b", "c"]


def test_others_are_waited_for_a_minute_after_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    made, nodes, _ = members(monkeypatch, a=190, b=NEVER)
    made.gather()
    assert 249 < nodes.now <= 252
    assert [member.name for member in made.ready] == ["a"]


def test_nobody_is_waited_for_ten_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    made, nodes, _ = members(monkeypatch, a=NEVER)
    with pytest.raises(ClusterUnavailable, match=r"within 600 s: 0 of 1 machines are ready"):
        made.gather()
    assert 700 < nodes.now <= 702


def test_a_place_rests_longer_after_each_loss_until_a_result_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, nodes, _ = members(monkeypatch, a=0)
    for rest in (2, 4, 8):
        made.gather()
        lost, (member,) = nodes.now, made.ready
        made.lose(member)
        made.lose(member)  # it is lost once
        nodes.ended.remove("a")
        made.gather()
        assert lost + rest <= nodes.started[-1][0] <= lost + rest + 1
    made.worked(made.ready[0])
    made.lose(made.ready[0])
    assert made._again["a"] == nodes.now + 2


@pytest.mark.parametrize(("pulse_s", "given_up_at"), [(NEVER, 180.0), (25.0, None)])
def test_a_machine_is_given_up_after_a_minute_of_silence(
    pulse_s: float, given_up_at: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, nodes, events = members(monkeypatch, a=0)
    made.gather()
    nodes.pulse_s, nodes.now = pulse_s, 100.0
    work, (member,) = Due(400.0), made.ready

    def end() -> None:
        work.due = nodes.now

    member.remote.end = end
    assert made.wait({work: member}) == [work]
    assert nodes.now == (given_up_at or 400.0)
    lines = ["machine a gives no sign of life: it is given up"]
    assert events[1:] == (lines if given_up_at else [])


def test_a_machine_that_was_given_up_is_ended_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ending a machine takes time, in which its calls have not failed yet."""
    made, nodes, events = members(monkeypatch, a=0)
    made.gather()
    (member,) = made.ready
    for passed in (0, 61, 61, 500):
        nodes.now += passed
        made._feel(member)
    assert nodes.ended == ["a"]
    assert events[1:] == ["machine a gives no sign of life: it is given up"]


def machines(**cores: int) -> tuple[Any, dict[str, Any]]:
    made: Any = ManyMachines.__new__(ManyMachines)
    of = {name: membership.Member(Place(name, name, n), name, None)  # type: ignore[arg-type]
          for name, n in cores.items()}  # fmt: skip
    made._members, made._least, made._fixed = SimpleNamespace(ready=[*of.values()]), 1, False
    made._expected = Expected(lambda client: 10)
    made._homes, made._at, made._requests, made._leaving = {}, {}, [], {}
    return made, of


def test_within_a_round_clients_stay_where_their_halves_are() -> None:
    made, of = machines(a=1, b=4)
    assert {m.name: len(clients) for m, clients in made._shares(range(10)).items()} == {
        "a": 2, "b": 8,
    }  # fmt: skip
    made._homes = dict.fromkeys(range(5), of["a"])
    made._at, made._requests = {3: of["b"]}, [("keys", {})]
    assert made._shares(range(5)) == {of["a"]: [0, 1, 2, 4], of["b"]: [3]}


def test_only_a_machine_that_lives_is_told_to_forget_a_client_that_moved() -> None:
    made, of = machines(a=1, b=4, c=2)
    of["b"].alive = False
    made._homes, made._leaving = {0: of["a"], 1: of["b"], 5: of["c"]}, {of["c"]: {0, 4}}
    assert list(made._move({of["c"]: [0, 1, 5, 6]})) == [(of["c"], [0, 1, 6])]
    assert made._leaving == {of["a"]: {0}, of["c"]: {4}}
    assert made._homes == dict.fromkeys((0, 1, 5, 6), of["c"])


def test_a_round_remembers_what_was_asked_of_its_clients() -> None:
    """A machine that takes over a client plays its earlier phases again."""
    made, _ = machines(a=1, b=4)
    made._answers = lambda phase, messages, server: iter([(phase, client) for client in messages])
    keys, vectors = {3: {"n": 1}, 8: {"n": 2}}, {8: {"n": 3}}
    assert list(made.ask("keys", keys)) == [("keys", 3), ("keys", 8)]
    assert made._requests == [("keys", keys)]
    list(made.ask("masked", vectors))
    assert made._requests == [("keys", keys), ("masked", vectors)]


@pytest.mark.parametrize(("least", "lengths"), [(1, [15.0, 5.0, 10.0]), (4, [10.0, 10.0, 10.0])])
def test_expected_times_are_learnt_from_clients_that_train_alone(
    least: int, lengths: list[float]
) -> None:
    """In a group, the first client has the time of all. An answer without a training tells none."""
    made, of = machines(a=1)
    made._least, made._used, made._members.worked = least, {}, lambda machine: None
    columns = np.array([[8, 5.0, 1.0, 9.0], [8, 1.5, 0.5, 9.0], [8, 0.0, 3.0, 9.0]])
    played = Played([3, 5, 7], columns, took_s=2.5)
    assert [answer.client for answer in made._heard(of["a"], [3, 5, 7], played)] == [3, 5, 7]
    assert [made._expected.length(client) for client in (3, 5, 7)] == pytest.approx(lengths)


def test_a_client_is_counted_once_in_a_round_of_several_phases() -> None:
    made, of = machines(a=1)
    made._used, made._members.worked = {}, lambda machine: None
    for phase, took_s in (("keys", 2.5), ("masked", 1.5)):
        assert list(made._heard(of["a"], [3, 5, 7], Played(took_s=took_s))) == []
        made._requests.append((phase, {}))
    assert made._used == {"a": _Used(3, 4.0)}


@pytest.mark.parametrize(
    ("fold", "repeatable", "again"),
    [(True, True, [3, 8]), (True, False, [3, 8]), (False, True, [3, 8]), (False, False, [])],
)
def test_clients_of_a_lost_machine_train_again_unless_their_reports_may_be_known(
    fold: bool, repeatable: bool, again: list[int]
) -> None:
    made, of = machines(a=1, b=2)
    events, lost = list[str](), list[Any]()
    made._repeatable, made._event, made._members.lose = repeatable, events.append, lost.append
    made._context, made._retrained, made._homeless = SimpleNamespace(round=6), 1, False
    assert list(made._lost(of["b"], MachineLost("it died"), [3, 8], fold=fold)) == again
    what = "train again on other machines" if again else "drop out of the round"
    assert events == [f"round 6: machine b was lost (it died): its 2 clients {what}"]
    assert (lost, made._homeless, made._retrained) == ([of["b"]], True, 1 + len(again))
