"""The tables of states, cell by cell: what is written is what real clients and servers do.

What a cell must say is worked out here from the order of the phases, not read from the tables,
and every cell is then put to a client or a server that a real round has brought into the state.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from fedveil.base.message import encode
from fedveil.errors import ClientWithheld, InvalidValue, ReportRejected, RoundVoid
from fedveil.secagg import Client, Server, shamir
from fedveil.secagg.phases import PHASES, as_ids
from fedveil.secagg.state_table import (
    CLIENT,
    SERVER,
    SERVER_ACTIONS,
    SIGNING_CLIENT,
    SIGNING_SERVER,
    Event,
    client_state,
    server_state,
)
from secagg_parts import Played

#: With active security or without: the phases in their order.
FLOW = {
    False: ("advertise", "share", "masked", "unmask"),
    True: ("advertise", "share", "masked", "consistency", "unmask"),
}
CLIENT_TABLES = {False: CLIENT, True: SIGNING_CLIENT}
SERVER_TABLES = {False: SERVER, True: SIGNING_SERVER}
CLIENT_STATES = {active: (*flow, "done", "withheld") for active, flow in FLOW.items()}
SERVER_STATES = {a: (*flow, "unmasking", "complete", "void") for a, flow in FLOW.items()}
CLIENT_EVENTS = (*PHASES, Event.REFUSAL)
CLOSED = (Event.ENOUGH, Event.TOO_FEW)
UNMASKED = (Event.MASKS_OFF, Event.SPOILT)
SERVER_EVENTS = (*PHASES, *CLOSED, *UNMASKED)
WHO = 6


def cells(states: Any, events: Any) -> Any:
    return pytest.mark.parametrize(
        ("active", "state", "event"),
        [(active, s, e) for active in (False, True) for s in states[active] for e in events],
    )


def following(active: bool, phase: str, last: str) -> str:
    return dict(zip(FLOW[active], [*FLOW[active][1:], last], strict=True))[phase]


@cache
def honest(active: bool) -> Played:
    """A round in which nothing goes wrong, whose messages bring others where it was."""
    return Played(active_security=active).play()


# The client.


def asked(active: bool, phase: str) -> dict[str, Any]:
    """The server's message of a phase; without active security one that nobody sends."""
    strange = {"phase": phase, "round": 4, "survivors": as_ids(honest(active).ids)}
    return honest(active).requests.get((phase, WHO), strange)


def respond(active: bool, client: Client, message: dict[str, Any]) -> dict[str, Any]:
    return dict(client.respond(message, honest(active).vectors[WHO]))


def client_in(active: bool, state: str) -> Client:
    client = honest(active).new_client(WHO)
    if state == "withheld":
        with pytest.raises(ClientWithheld):
            client.respond({})
        return client
    for phase in FLOW[active]:
        if phase == state:
            break
        respond(active, client, asked(active, phase))
    return client


def assert_client_in(active: bool, client: Client, state: str) -> None:
    """It takes the message of its state and no other."""
    if state in PHASES:
        assert client.keep()["next"] == state
        answer = respond(active, client, asked(active, state))
        assert encode(answer) == encode(honest(active).answers[state, WHO])
        return
    assert client.keep() == {}
    last = (
        "a second unmask request" if state == "done" else "this client has ended the round before"
    )
    with pytest.raises(ClientWithheld, match=f"^{last}$"):
        respond(active, client, asked(active, "unmask"))


def client_cell(active: bool, state: str, event: Any) -> tuple[str | None, str]:
    """The next state or None, and what is said of an illegal event."""
    if state == "withheld":
        return None, "this client has ended the round before"
    if event is Event.REFUSAL:
        return "withheld", ""
    if state == "done":
        return None, "a second unmask request"
    if event == state:
        return following(active, state, "done"), ""
    return None, f"phase out of order: {state} is next"


@cells(CLIENT_STATES, CLIENT_EVENTS)
def test_every_cell_of_the_client(active: bool, state: str, event: Any) -> None:
    following, refusal = client_cell(active, state, event)
    assert CLIENT_TABLES[active][state].get(event) == following  # type: ignore[index]
    client = client_in(active, state)
    if event is Event.REFUSAL:
        refusal = refusal or "the message is of another round"
        message = {"phase": state, "round": 5}
    else:
        message = asked(active, event)
    if refusal:
        with pytest.raises(ClientWithheld, match=f"^{refusal}$"):
            respond(active, client, message)
        assert_client_in(active, client, "withheld")
        return
    assert following is not None
    assert encode(respond(active, client, message)) == encode(honest(active).answers[event, WHO])
    assert_client_in(active, client, following)


@pytest.mark.parametrize("active", [False, True])
@pytest.mark.parametrize("word", ["", "done", "withheld", "refusal", "REFUSAL", "Event.REFUSAL"])
def test_a_word_that_is_no_phase_is_out_of_order_everywhere(active: bool, word: str) -> None:
    for state in FLOW[active]:
        client = client_in(active, state)
        with pytest.raises(ClientWithheld, match=f"^phase out of order: {state} is next$"):
            client.respond({"phase": word, "round": 4})
        assert_client_in(active, client, "withheld")


@pytest.mark.parametrize("active", [False, True])
def test_whatever_goes_wrong_is_a_refusal(active: bool) -> None:
    """A failure that is nobody's lie ends the round for the client too."""
    client = client_in(active, "masked")
    with pytest.raises(AttributeError):
        client.respond(asked(active, "masked"), "no vector")  # type: ignore[arg-type]
    assert_client_in(active, client, "withheld")


@pytest.mark.parametrize("active", [False, True])
def test_a_client_goes_on_in_every_state_that_is_kept(active: bool) -> None:
    for state in FLOW[active][1:]:
        kept = client_in(active, state).keep()
        again = honest(active).new_client(WHO)
        again.take_up(kept)
        assert_client_in(active, again, state)
    with pytest.raises(InvalidValue, match="state advertise of this round cannot become void"):
        honest(active).new_client(WHO).take_up({**kept, "next": "void"})
    for state in CLIENT_STATES[active][1:]:
        stands = client_in(active, state)
        with pytest.raises(InvalidValue, match=f"state {state} of this round cannot become unmask"):
            stands.take_up(kept)
        assert stands._state.name == state


def test_a_client_does_not_go_on_in_a_phase_that_its_round_does_not_have() -> None:
    kept = client_in(False, "unmask").keep()
    with pytest.raises(InvalidValue, match="advertise of this round cannot become consistency"):
        honest(False).new_client(WHO).take_up({**kept, "next": "consistency"})


# The server.


def answered(active: bool, phase: str, client: int = WHO) -> dict[str, Any]:
    """A client's answer in a phase; without active security one that nobody sends."""
    strange = {"phase": phase, "round": 4, "signature": bytes(64)}
    return honest(active).answers.get((phase, client), strange)


def answer_all(active: bool, server: Server, phase: str, but: int = 0) -> None:
    for client in honest(active).ids[but:]:
        server.receive(client, answered(active, phase, client))


def server_in(active: bool, state: str) -> Server:
    server = honest(active).new_server()
    if state == "void":
        with pytest.raises(RoundVoid):
            server.advance()
        return server
    for phase in FLOW[active]:
        if phase == state:
            return server
        answer_all(active, server, phase)
        if (phase, state) == ("unmask", "unmasking"):
            stop_in_unmasking(server)
            return server
        assert_asked(active, server.advance(), following(active, phase, ""))
    return server


def stop_in_unmasking(server: Server) -> None:
    """Close the last phase on a machine that has no memory for the masks."""

    def fail(*_: Any) -> None:
        raise MemoryError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Server, "_remove_masks", fail)
        with pytest.raises(MemoryError):
            server.advance()


def assert_asked(active: bool, messages: Any, phase: str) -> None:
    """These are the messages of that phase; none where it is the end."""
    sent = {c: m for (p, c), m in honest(active).requests.items() if p == phase}
    assert {c: encode(m) for c, m in (messages or {}).items()} == {
        c: encode(m) for c, m in sent.items()
    }
    assert (messages is None) == (not sent)


def assert_server_in(active: bool, server: Server, state: str, there: tuple[int, ...] = ()) -> None:
    """It takes the answers of its state, but of who is there, and goes on from them."""
    assert server._state.name == state
    assert server.complete == (state == "complete")
    if state in PHASES:
        assert server.phase == state
        for client in honest(active).ids:
            if client in there:
                with pytest.raises(ReportRejected, match="repeated sender"):
                    server.receive(client, {})
            else:
                server.receive(client, answered(active, state, client))
        assert_asked(active, server.advance(), following(active, state, ""))
        return
    assert server.phase is None
    with pytest.raises(InvalidValue, match="the round has ended"):
        server.advance()
    with pytest.raises(ReportRejected, match="wrong phase"):
        server.receive(WHO, {})
    if state == "complete":
        assert (server.total() == sum(honest(active).vectors.values(), np.zeros(8))).all()
        return
    with pytest.raises(InvalidValue, match="the masks are not off it"):
        server.total()


def server_cell(active: bool, state: str, event: Any) -> tuple[str | None, str]:
    """The next state or None, and what is said of an illegal event."""
    if event in PHASES:
        return (state, "") if event == state else (None, "wrong phase")
    if state in PHASES:
        after = {Event.ENOUGH: following(active, state, "unmasking"), Event.TOO_FEW: "void"}
        return after.get(event), f"phase {state} is not closed"
    if state == "unmasking" and event in UNMASKED:
        return ("complete" if event is Event.MASKS_OFF else "void"), ""
    return None, "the round has ended"


@cells(SERVER_STATES, SERVER_EVENTS)
def test_every_cell_of_the_servers_table(active: bool, state: str, event: Any) -> None:
    following, refusal = server_cell(active, state, event)
    assert SERVER_TABLES[active][state].get(event) == following  # type: ignore[index]
    held = server_state(active)
    held.resume(state)  # type: ignore[arg-type]
    if following is None:
        with pytest.raises(InvalidValue, match=f"^{refusal}$"):
            held.step(event)
    else:
        held.step(event)
    assert held.name == (following or state)


@cells(SERVER_STATES, PHASES)
def test_every_answer_in_every_state(active: bool, state: str, event: str) -> None:
    server = server_in(active, state)
    if server_cell(active, state, event)[0] is not None:
        server.receive(WHO, answered(active, event))
        assert_server_in(active, server, state, there=(WHO,))
        return
    with pytest.raises(ReportRejected) as rejected:
        server.receive(WHO, answered(active, event))
    assert rejected.value.reason == "wrong phase"
    assert_server_in(active, server, state)


@cells(SERVER_STATES, CLOSED)
def test_closing_every_state(active: bool, state: str, event: Event) -> None:
    server = server_in(active, state)
    if state not in PHASES:
        with pytest.raises(InvalidValue, match=r"^the round has ended$"):
            server.advance()
        assert_server_in(active, server, state)
    elif event is Event.TOO_FEW:
        answer_all(active, server, state, but=3)
        with pytest.raises(RoundVoid) as void:
            server.advance()
        assert (void.value.phase, void.value.got, void.value.needed) == (state, 2, 3)
        assert_server_in(active, server, "void")
    else:
        answer_all(active, server, state)
        after = following(active, state, "unmasking")
        if after == "unmasking":
            stop_in_unmasking(server)
        else:
            assert_asked(active, server.advance(), after)
        assert_server_in(active, server, after)


@pytest.mark.parametrize("active", [False, True])
def test_the_masks_come_off(active: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    server = server_in(active, "unmask")
    answer_all(active, server, "unmask")
    names, real = [], Server._remove_masks

    def seen(*arguments: Any) -> None:
        names.append(server._state.name)
        real(*arguments)

    monkeypatch.setattr(Server, "_remove_masks", seen)
    assert server.advance() is None
    assert names == ["unmasking"]
    assert_server_in(active, server, "complete")


@pytest.mark.parametrize("active", [False, True])
def test_spoilt_shares_void_the_round(active: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    server = server_in(active, "unmask")
    answer_all(active, server, "unmask")
    monkeypatch.setattr(shamir, "join", lambda points, shares: [None] * len(shares))
    with pytest.raises(RoundVoid, match="client 0 has dealt shares that are not of its secret"):
        server.advance()
    assert_server_in(active, server, "void")


@pytest.mark.parametrize("word", ["", "unmasking", "complete", "ENOUGH", "Event.MASKS_OFF"])
def test_an_answer_of_no_phase_is_refused(word: str) -> None:
    for state in FLOW[True]:
        server = server_in(True, state)
        with pytest.raises(ReportRejected) as rejected:
            server.receive(WHO, {"phase": word, "round": 4})
        assert rejected.value.reason == "wrong phase"
        assert_server_in(True, server, state)


# Messages of one phase under the name of another.


#: The phase that a half is in, and another phase whose fields it is sent.
DISGUISED = pytest.mark.parametrize(
    ("active", "state", "other"),
    [(active, at, of) for active in FLOW for at in FLOW[active] for of in FLOW[active] if at != of],
)


@DISGUISED
def test_a_server_refuses_another_phases_fields(active: bool, state: str, other: str) -> None:
    server = server_in(active, state)
    with pytest.raises(ReportRejected) as rejected:
        server.receive(WHO, {**answered(active, other), "phase": state})
    assert rejected.value.reason == "fields are missing or unknown"
    assert_server_in(active, server, state)


@DISGUISED
def test_a_client_refuses_another_phases_fields(active: bool, state: str, other: str) -> None:
    client = client_in(active, state)
    with pytest.raises(ClientWithheld, match="fields are missing or unknown"):
        respond(active, client, {**asked(active, other), "phase": state})
    assert_client_in(active, client, "withheld")


# All four tables.


@pytest.mark.parametrize(
    ("tables", "begin", "states", "events", "ends"),
    [
        (CLIENT_TABLES, client_state, CLIENT_STATES, CLIENT_EVENTS, {"withheld"}),
        (SERVER_TABLES, server_state, SERVER_STATES, SERVER_EVENTS, {"complete", "void"}),
    ],
)
@pytest.mark.parametrize("active", [False, True])
def test_a_table_is_whole(
    active: bool, tables: Any, begin: Any, states: Any, events: Any, ends: Any
) -> None:
    """Every pair is a step or is refused; every state can be reached; the ends have no way out."""
    table = tables[active]
    assert set(table) == set(states[active])
    assert {event for row in table.values() for event in row} <= set(events)
    assert {state for state, row in table.items() if not row} == ends
    reached, found = set(), {"advertise"}
    while found:
        reached |= found
        found = {after for state in found for after in table[state].values()} - reached
    assert reached == set(table)
    for state in table:
        for event in events:
            held = begin(active)
            held.resume(state)
            if event in table[state]:
                assert held.after(event) == table[state][event]
                held.step(event)
                assert held.name == table[state][event]
            else:
                with pytest.raises((ClientWithheld, InvalidValue)):
                    held.step(event)
                assert held.name == state


def test_every_phase_has_its_actions_and_each_is_one_of_the_servers() -> None:
    assert tuple(SERVER_ACTIONS) == PHASES
    for actions in SERVER_ACTIONS.values():
        for name in actions:
            assert callable(vars(Server)[name])
