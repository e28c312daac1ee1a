"""A client that is another object in every phase, as where each message meets a new process."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedveil.base.message import decode, encode
from fedveil.entropy import Secure
from fedveil.errors import ClientWithheld
from fedveil.secagg import Client
from secagg_parts import Played


def replaced(played: Played, entropy: Any) -> Any:
    """Before every message, put clients in place that took up what the old ones have kept."""

    def down(phase: str, client: int, message: dict[str, Any]) -> dict[str, Any]:
        if phase != "advertise":
            kept = decode(encode(played.clients[client].keep()))
            identity = played.identities[client]
            played.clients[client] = Client(client, played.terms, entropy, identity)
            played.clients[client].take_up(kept)
        return message

    return down


@pytest.mark.parametrize("active", [False, True])
@pytest.mark.parametrize("drop", [{}, {"masked": [3]}, {"unmask": [0]}])
def test_the_sum_is_the_same(active: bool, drop: dict[str, list[int]]):
    plain = Played(active_security=active).play(drop)
    played = Played(active_security=active)
    played.play(drop, down=replaced(played, Secure()))
    assert played.withheld == played.rejected == {}
    assert (played.server.total() == plain.server.total()).all()
    assert played.server.survivors == plain.server.survivors


def test_the_same_bytes_where_the_randomness_is_the_same():
    plain, played = Played().play(), Played()

    def same_stream(phase: str, client: int, message: dict[str, Any]) -> dict[str, Any]:
        kept = played.clients[client].keep()
        if phase != "advertise":
            played.clients[client] = played.new_client(client)
            played.clients[client].take_up(kept)
        return message

    played.play(down=same_stream)
    for place, answer in plain.answers.items():
        assert encode(answer) == encode(played.answers[place])


def test_nothing_is_kept_when_nothing_is_next():
    played = Played().play()
    assert all(client.keep() == {} for client in played.clients.values())


def test_a_client_that_has_withheld_keeps_nothing():
    client = Client(0, Played().terms, Secure())
    assert client.keep()["next"] == "advertise"
    with pytest.raises(ClientWithheld):
        client.respond({"phase": "unmask", "round": 4})
    assert client.keep() == {}


def test_a_client_does_not_go_on_under_other_terms():
    played = Played()
    kept = played.clients[6].keep()
    lowered = Client(6, replace(played.terms, threshold=2), Secure())
    with pytest.raises(ClientWithheld, match="terms are others than at its beginning"):
        lowered.take_up(kept)
    played.new_client(6).take_up(kept)


def test_what_was_taken_up_goes_on_at_the_next_phase_alone():
    played = Played()
    kept: dict[int, Any] = {}

    def down(phase: str, client: int, message: dict[str, Any]) -> dict[str, Any]:
        if phase == "masked":
            kept[client] = (played.clients[client].keep(), dict(message))
        return message

    played.play(down=down)
    state, request = kept[0]
    again = Client(0, played.terms, Secure())
    again.take_up(state)
    with pytest.raises(ClientWithheld, match="phase out of order: masked is next"):
        again.respond(played.requests["share", 0])
    again = Client(0, played.terms, Secure())
    again.take_up(state)
    answer = again.respond(request, np.zeros(8, np.int64))
    assert answer["phase"] == "masked"
