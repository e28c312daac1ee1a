"""Both halves of a round with several phases, in a user's own protection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import parts
from fedveil.base.message import Message
from fedveil.errors import AnsweredBefore, ClientWithheld, ReportRejected
from fedveil.protections.base import JobContext
from fedveil.protections.last_answered import Answered
from round_parts import ROUND, client_half, server_half

MODEL, UPDATE = np.zeros(5, np.float32), np.arange(5, dtype=np.float32)
COHORT = [3, 8, 9]


def protection() -> Any:
    context = JobContext("equal", len(MODEL), clients_per_round=3, rounds=2)
    return parts.TwoPhases(parts.TwoPhasesSettings(), context)


def requests(halves: Mapping[int, Any], server: Any) -> Mapping[int, Message]:
    """Let every half say hello, and return what the server asks for next."""
    for client, half in halves.items():
        server.receive(client, half.respond(server.opening(), None))
    messages: Mapping[int, Message] = server.advance()
    return messages


def test_a_client_answers_each_phase_once_and_in_order() -> None:
    half, server = client_half(protection(), 3, MODEL), server_half(protection(), COHORT, MODEL)
    opening = server.opening()
    told = requests({3: half}, server)[3]
    with pytest.raises(ClientWithheld, match="out of order"):
        half.respond(opening, None)
    half.respond(told, UPDATE)
    for again in (opening, told):
        with pytest.raises(ClientWithheld, match="out of order"):
            half.respond(again, UPDATE)


def test_a_client_that_was_asked_for_its_update_at_once_sends_it_once() -> None:
    """A server that leaves out the first phase gets no second update."""
    made = protection()
    told = requests({3: client_half(made, 3, MODEL)}, server_half(made, COHORT, MODEL))[3]
    half = client_half(made, 3, MODEL)
    half.respond(told, UPDATE)
    with pytest.raises(ClientWithheld, match="out of order"):
        half.respond(told, UPDATE)
    assert half.keep() == {}


def test_a_client_goes_on_from_its_state_until_its_last_answer() -> None:
    """A state after the last phase would let a client send a second update."""
    made = protection()
    half, server = client_half(made, 3, MODEL), server_half(made, COHORT, MODEL)
    opening = server.opening()
    told = requests({3: half}, server)[3]
    later = client_half(made, 3, MODEL)
    later.take_up(half.keep())
    with pytest.raises(ClientWithheld, match="out of order"):
        later.respond(opening, None)
    server.receive(3, later.respond(told, UPDATE))
    assert later.keep() == {}


def test_clients_are_asked_in_the_order_of_their_numbers() -> None:
    """A set holds 9 before 2, and the order of the messages is that of a simulated round."""
    made = protection()
    halves = {client: client_half(made, client, MODEL) for client in (9, 2, 3)}
    assert list(requests(halves, server_half(made, [2, 3, 9], MODEL))) == [2, 3, 9]


def test_a_message_of_another_round_or_phase_gets_no_answer_and_changes_nothing() -> None:
    made = protection()
    half, server = client_half(made, 3, MODEL), server_half(made, COHORT, MODEL)
    told = requests({3: half}, server)[3]
    for field, value in (("round", ROUND - 1), ("round", ROUND + 1), ("phase", "unmask")):
        with pytest.raises(ClientWithheld, match="does not belong to this round"):
            half.respond({**told, field: value}, UPDATE)
    for update in (None, UPDATE[:4], np.zeros((1, 5), np.float32)):
        with pytest.raises(ClientWithheld, match="no update of the model's length"):
            half.respond(told, update)
    assert half.respond(told, UPDATE)["update"].tolist() == UPDATE.tolist()


def test_an_answer_of_another_round_is_rejected_and_the_right_one_still_counts() -> None:
    made = protection()
    half, server = client_half(made, 8, MODEL), server_half(made, COHORT, MODEL)
    told = requests({8: half}, server)[8]
    answer = half.respond(told, UPDATE)
    for wrong in ({**answer, "round": ROUND - 1}, {**answer, "update": UPDATE[:4]}):
        with pytest.raises(ReportRejected):
            server.receive(8, wrong)
        assert server.reports == 0
    server.receive(8, answer)
    assert server.advance() is None
    assert server.aggregate().update.tolist() == UPDATE.tolist()
    with pytest.raises(ReportRejected):
        server.receive(8, answer)


def test_only_clients_that_a_phase_asks_may_answer_it() -> None:
    """The server leaves out client 9, whose answer would otherwise be in the sum."""

    class Choosy(parts.TwoPhasesServer):
        def _ask(self, answered: Sequence[int]) -> Mapping[int, Message]:
            return super()._ask([client for client in answered if client != 9])

    made = protection()
    made.server_round = lambda context: Choosy(context, made.flow)
    server = server_half(made, COHORT, MODEL)
    halves = {client: client_half(made, client, MODEL) for client in (8, 9)}
    told = requests(halves, server)
    assert set(told) == {8}
    with pytest.raises(ReportRejected):
        server.receive(9, {"round": ROUND, "secret": halves[9].secret, "update": UPDATE})
    server.receive(8, halves[8].respond(told[8], UPDATE))
    server.advance()
    assert server.aggregate().update.tolist() == UPDATE.tolist()


def test_an_update_is_sent_for_later_rounds_only() -> None:
    answered = Answered()
    for round in (0, 5):
        answered.check(round)
        answered.note(round)
    for earlier in (5, 4):
        for refused in (answered.check, answered.note):
            with pytest.raises(AnsweredBefore, match="already sent its update for round 5"):
                refused(earlier)
    assert answered.last == 5
