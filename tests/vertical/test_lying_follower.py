"""A follower that lies during alignment makes the leader use no row that the follower lacks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedveil.base.message import Message
from fedveil.entropy import Secure
from fedveil.errors import Unfit
from fedveil.link.channel import Exchange, drive_together
from fedveil.vertical.remote import handshake, intersection
from fedveil.vertical.remote.blinding import Blinding
from fedveil.vertical.remote.handshake_state import Agreement, Standing
from lying_side import Change, lying_side

#: The leader has seven customers. The follower has guessed one of them, and its place.
MINE, GUESS, PLACE = np.array([31, 8, 52, 40, 11, 47, 3]), np.array([52]), 2


def standing(party: str, train: Any) -> Standing:
    ids = {"train": np.asarray(train), "test": np.arange(7, 10)}
    run = bytes(range(16)) if party == "lead" else b""
    return Standing(party=party, job={}, parts={}, ids=ids, run=run, least_common=3)


def played(bank: Exchange[Agreement]) -> Agreement:
    lead = handshake.lead(
        standing("lead", MINE), ("bank",), attempt=1, purpose="train", order_seed=0
    )
    return drive_together({"lead": lead, "bank": bank}, encoded=True)["lead"]


class Forger:
    """Follows, but sends many powers of one guessed id in place of its own ids.

    The leader's point at the guessed place is that id to the power of k. The follower raises both
    to the same powers. So each pair fits, although the follower does not know k.
    """

    def __init__(self, place: int, count: int) -> None:
        self.powers = [Blinding(Secure()) for _ in range(count)]
        self.place, self.guessed = place, np.zeros((0, 32), np.uint8)

    def follow(self) -> Exchange[Agreement]:
        honest = handshake.follow(standing("bank", range(100, 100 + len(self.powers))), "lead")
        told: Message | None = None
        changed = lying_side(honest, {"raised": self.forged})
        while True:
            request = changed.send(told)
            told = yield request
            if told is not None and told["kind"] == "blinded" and not len(self.guessed):
                points = np.asarray(told["points"])
                self.guessed = points[self.place : self.place + 1]

    def forged(self, message: dict[str, Any]) -> dict[str, Any]:
        if len(message["raised"]) != len(self.powers):
            return message  # not the batch to forge
        raised = [power.raised(self.guessed) for power in self.powers]
        blinded = [power.blinded(GUESS, "train") for power in self.powers]
        return {**message, "raised": np.concatenate(raised), "blinded": np.concatenate(blinded)}


def test_one_guessed_id_does_not_match_all_rows() -> None:
    with pytest.raises(Unfit, match=r"bank broke the alignment: its proof .* is wrong"):
        played(Forger(PLACE, len(MINE)).follow())


def test_an_honest_follower_is_believed_about_every_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The follower has fewer ids than the leader, and then more. The last batches have no proof."""
    monkeypatch.setattr(intersection, "BATCH", 2)
    for theirs in ([8, 3, 31], [90, 8, 91, 92, 3, 93, 94, 31, 95, 96]):
        agreed = played(handshake.follow(standing("bank", theirs), "lead"))
        assert MINE[agreed.examples.positions["train"]].tolist() == [31, 8, 3]


def changed_in_batch(number: int, change: Change) -> Exchange[Agreement]:
    """Follow with three ids of the leader, but change one answer on training examples."""
    sent = 0

    def changed(message: dict[str, Any]) -> dict[str, Any] | None:
        nonlocal sent
        sent += 1
        return change(message) if sent == number else message

    return lying_side(handshake.follow(standing("bank", [8, 3, 31]), "lead"), {"raised": changed})


def another_exponent(message: dict[str, Any]) -> dict[str, Any]:
    """Raise one point of the leader once more, and prove that all were raised alike."""
    raised = np.array(message["raised"])
    raised[1] = Blinding(Secure()).raised(raised[1:2])[0]
    return {**message, "raised": raised}


def no_point(message: dict[str, Any]) -> dict[str, Any]:
    raised = np.array(message["raised"])
    raised[0] = 255
    return {**message, "raised": raised}


def without(field: str) -> Change:
    return lambda message: {name: value for name, value in message.items() if name != field}


@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize(
    ("change", "why"),
    [
        (another_exponent, "proof of the common examples is wrong"),
        (no_point, "not a point of the group"),
        (without("proof"), "field proof is missing"),
        (without("commitment"), "field commitment is missing"),
        (lambda m: {**m, "proof": bytes(9)}, "proof has 9 bytes"),
        (lambda m: {**m, "commitment": Blinding(Secure()).commitment}, "proof .* is wrong"),
    ],
)
def test_every_batch_needs_its_proof(
    number: int, change: Change, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intersection, "BATCH", 2)
    with pytest.raises(Unfit, match=f"bank broke the alignment: .*{why}"):
        played(changed_in_batch(number, change))
