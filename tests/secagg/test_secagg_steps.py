"""The server's work for refused shares, counted: it is proportional to their number."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from fedveil.secagg import disclosure, server
from secagg_parts import Played, edited


def steps_in_disclosure(clients: int) -> int:
    """Lines run there in a round in which every client is dealt one box that does not open."""
    played = Played(clients, 1, neighbours=6, seed=clients)
    steps = 0

    def count(frame: Any, event: str, argument: Any) -> Any:
        nonlocal steps
        steps += event == "line"
        return count if frame.f_code.co_filename == disclosure.__file__ else None

    def spoil(phase: str, client: int, message: dict[str, Any]) -> dict[str, Any]:
        if phase == "masked":
            message["sealed"] = edited(message["sealed"], client % len(message["sealed"]), 0)
        return message

    sys.settrace(count)
    try:
        played.play({"masked": [3]}, down=spoil)
    finally:
        sys.settrace(None)
    refused = [len(m["refused"]) for (p, _), m in played.answers.items() if p == "masked"]
    assert refused == [1] * (clients - 1)
    assert played.exact
    return steps


def test_refused_shares_take_as_many_steps_as_there_are() -> None:
    """Twice the clients with as many refusals each take twice the steps, not four times."""
    fewer, more = steps_in_disclosure(60), steps_in_disclosure(120)
    assert more <= 2.1 * fewer


@pytest.mark.parametrize("at_once", [0, 3, 7])
def test_every_mask_comes_off_once_however_many_are_held(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three clients drop out, so that masks come off in several parts."""
    monkeypatch.setattr(server, "_SEEDS_AT_ONCE", at_once)
    assert Played(9, 4).play({"masked": [6, 12, 21]}).exact


def nothing_opens(phase: str, client: int, message: dict[str, Any]) -> dict[str, Any]:
    """Client 6 deals zeros."""
    if (phase, client) == ("share", 6):
        message["sealed"] = edited(message["sealed"], slice(None), 0)
    return message


def test_what_a_holder_has_refused_makes_no_table_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A dealer whose boxes nobody opens costs a list for each answer, and none at the end."""
    lists: list[int] = []
    asked_of = disclosure.Disclosure.asked_of

    def counted(self: Any, holder: int) -> list[int]:
        lists.append(holder)
        return asked_of(self, holder)

    monkeypatch.setattr(disclosure.Disclosure, "asked_of", counted)
    played = Played(40, 1).play(up=nothing_opens)
    refused = [m["refused"].tolist() for (p, _), m in played.answers.items() if p == "masked"]
    assert refused.count([6]) == 39
    assert len(lists) == 2 * 40
    assert played.exact
