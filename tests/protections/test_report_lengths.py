"""The longest honest answers, and the refusal of longer ones before they are decoded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from fedveil.base import message as messages
from fedveil.base.message import Message, decode, encode
from fedveil.entropy import Seeded
from fedveil.errors import MessageInvalid
from fedveil.federated.job import Job
from fedveil.protections.base import Aggregate, JobContext, Protection, RoundContext
from fedveil.protections.catalog import build
from fedveil.protections.phased import PhasedRound
from fedveil.rounds.loop import Carrier, Outcome, drive
from fedveil.rounds.outcomes import Answer, Failed, Report, Withheld
from round_parts import ROUND, client_half, server_half

pytestmark = pytest.mark.filterwarnings("ignore:noise = continuous")

DIMENSION = 300
COHORT = list(range(10, 17))
FIXED = [
    ("protection=not_encrypt",),
    ("protection=not_encrypt", "server.weighting=equal"),
    ("protection=dp_encrypt",),
    ("protection=dp_encrypt", "protection.dp_encrypt.noise=continuous"),
    ("protection=central_gaussian",),
    ("protection=rr",),
    ("protection=rr", "protection.unary.report=bits"),
    ("protection=oue", "protection.unary.cells=7"),
    ("protection=rr", "protection.unary.fidelity=aggregate"),
]
SIGNDS = ("protection=signds", "protection.signds.sign_k=0.2")
PW = ("protection=pw_encrypt", "protection.pw_encrypt.reconstruct_secrets_threshold=5")
SHARES = ("protection=distributed_dp", "protection.distributed_dp.reconstruct_secrets_threshold=5")
SPARSE = (*PW, "protection.pw_encrypt.neighbours=5")
SIGNED = (*PW, "protection.pw_encrypt.active_security=true")


def make(overrides: tuple[str, ...]) -> Protection:
    job = Job.load(None, (*overrides, f"clients.number={len(COHORT)}", "clients.fraction=1"))
    context = JobContext(job.server.weighting, DIMENSION, len(COHORT), rounds=3)
    return build(job.protection.name, job.protection.settings, context)


class Wire(Carrier):
    """Carries real answers, and makes some of them longer by another field of a few bytes."""

    def __init__(self, protection: Protection, server: Any, lengthened: tuple[int, ...]) -> None:
        self.server, self.lengthened = server, lengthened
        self.halves = {
            c: client_half(protection, c, np.zeros(DIMENSION), examples=65_535) for c in COHORT
        }
        self.sizes: dict[str, list[int]] = {}
        self.longest: dict[str, int] = {}
        self.sent: list[int] = []

    def ask(self, phase: str, asked: Mapping[int, Message]) -> Iterator[Answer]:
        self.longest[phase] = self.server.longest
        for client, told in asked.items():
            draw = Seeded(1, client).generator().normal(0, 0.1, DIMENSION).astype(np.float32)
            half = self.halves[client]
            answer = dict(half.respond(told, draw if half.wants_update(told) else None))
            self.sizes.setdefault(phase, []).append(len(encode(answer)))
            if client in self.lengthened:
                answer["z"] = bytes(self.longest[phase])
            data = encode(answer)
            self.sent.append(len(data))
            yield Report(client, data)


def played(overrides: tuple[str, ...], lengthened: tuple[int, ...] = ()) -> tuple[Wire, Outcome]:
    protection = make(overrides)
    server = server_half(protection, COHORT, np.zeros(DIMENSION))
    wire = Wire(protection, server, lengthened)
    opening = dict.fromkeys(COHORT, server.opening())
    return wire, drive(server, wire, opening, protection.trains)


@pytest.mark.parametrize("overrides", FIXED, ids=" ".join)
def test_a_report_of_one_length_is_as_long_as_any_can_be(overrides: tuple[str, ...]) -> None:
    wire, outcome = played(overrides)
    assert outcome.reported == set(COHORT)
    assert set(wire.sizes["report"]) == {wire.longest["report"]}
    assert make(overrides).longest_report() == wire.longest["report"]


def test_a_signds_report_is_shorter_than_any_can_be() -> None:
    wire, outcome = played(SIGNDS)
    assert outcome.reported == set(COHORT)
    assert max(wire.sizes["report"]) <= wire.longest["report"] <= 400


@pytest.mark.parametrize("overrides", [PW, SPARSE, SIGNED, SHARES])
def test_each_phase_of_secure_aggregation_has_its_length(overrides: tuple[str, ...]) -> None:
    wire, outcome = played(overrides)
    assert outcome.void is None
    assert outcome.reported == set(COHORT)
    for phase, sizes in wire.sizes.items():
        # No box is refused here: eight bytes for each possible one.
        spare = 8 * len(COHORT) if phase == "masked" else 0
        assert max(sizes) <= wire.longest[phase] <= max(sizes) + spare
    if overrides != SPARSE:  # there a neighbourhood is smaller than the round
        assert make(overrides).longest_report() == wire.longest["masked"]


@pytest.mark.parametrize("overrides", [*FIXED, SIGNDS, PW, SIGNED, SHARES], ids=" ".join)
def test_a_longer_answer_is_refused_unread_and_counted(
    overrides: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    reader = messages._Reader

    def counted(data: memoryview) -> Any:
        read.append(len(data))
        return reader(data)

    monkeypatch.setattr(messages, "_Reader", counted)
    wire, outcome = played(overrides, lengthened=(11, 13))
    first = next(iter(wire.longest))
    too_long = [size for size in wire.sent[: len(COHORT)] if size > wire.longest[first]]
    assert len(too_long) == 2
    assert outcome.rejected == {
        f"the message has {too_long[0]} bytes, but at most {wire.longest[first]} are allowed "
        "here": 2
    }
    assert outcome.reported == set(COHORT) - {11, 13}
    assert not set(read) & set(too_long)
    assert outcome.bytes_up == sum(wire.sent)


class OwnRound(PhasedRound):
    """A half of a user's own that states no length, and one that does."""

    def _fold(self, client: int, message: Message) -> None:
        """Accept any message."""

    def _aggregate(self) -> Aggregate:
        return Aggregate(np.zeros(DIMENSION), self.reports)


class RoomyRound(OwnRound):
    room, room_an_entry = 100, 1000


def test_a_half_of_ones_own_has_room_and_can_say_how_much() -> None:
    context = RoundContext(COHORT, ROUND, np.zeros(DIMENSION, np.float32))
    assert OwnRound(context).longest == 65_536 + 16 * DIMENSION
    assert RoomyRound(context).longest == 100 + 1000 * DIMENSION

    class Lengths(Carrier):
        def ask(self, phase: str, asked: Mapping[int, Message]) -> Iterator[Answer]:
            for client, size in zip(asked, (65_536, 70_000, 71_000), strict=False):
                yield Report(client, encode({"round": ROUND, "more": bytes(size)}))

    for half, taken in ((OwnRound(context), 2), (RoomyRound(context), 3)):
        outcome = drive(half, Lengths(), dict.fromkeys(COHORT, half.opening()), "report")
        assert len(outcome.reported) == taken
        assert sum(outcome.rejected.values()) == 3 - taken


def test_decoding_looks_at_no_byte_of_a_message_that_is_too_long() -> None:
    with pytest.raises(
        MessageInvalid, match=r"^the message has 12 bytes, but at most 11 are allowed here$"
    ):
        decode(bytes(12), 11)
    assert decode(encode({"a": 1}), len(encode({"a": 1}))) == {"a": 1}


class Talkers(Carrier):
    """Clients that send very long messages."""

    def ask(self, phase: str, asked: Mapping[int, Message]) -> Iterator[Answer]:
        words = "line\n" * 100_000, "\x1b[2J" + "'" * 300, "x" * 201, "y" * 200
        for client, text in zip(asked, words, strict=False):
            yield Withheld(client, text)
        yield Failed(COHORT[4], words[0])
        yield Report(COHORT[5], encode({"\n" + "n" * 500: 1, "round": 1}))
        yield Report(COHORT[6], encode({"round": ROUND, "update": np.zeros(3, np.float32)})[:-1])


def test_what_clients_say_is_at_most_two_hundred_characters_on_one_line() -> None:
    protection = make(("protection=not_encrypt",))
    server = server_half(protection, COHORT, np.zeros(DIMENSION))
    outcome = drive(server, Talkers(), dict.fromkeys(COHORT, server.opening()), "report")
    said = [*outcome.withheld, *outcome.failed, *outcome.rejected]
    assert len(outcome.withheld) == 4
    assert len(outcome.rejected) == 2
    assert all(len(text) <= 200 and text.isprintable() for text in said)
    assert "y" * 200 in said
    assert "x" * 197 + "..." in said
    assert any(r"\x1b[2J" in text for text in said)
    assert any(text.startswith(r"'line\nline\n") for text in said)
