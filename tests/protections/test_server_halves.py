"""Reports may be folded in several halves of one round, here or in other processes."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from fedveil.base.message import Message, decode, encode, encoded_bytes
from fedveil.entropy import Seeded
from fedveil.errors import ClientWithheld
from fedveil.federated.job import Job
from fedveil.protections.base import JobContext, Protection, RoundContext
from fedveil.protections.catalog import build
from fedveil.protections.one_report import OneReportRound
from round_parts import client_half

DIMENSION = 300
COHORT = list(range(10, 19))
POSITIONS = [
    ("protection=not_encrypt",),
    ("protection=dp_encrypt",),
    ("protection=central_gaussian",),
    ("protection=signds", "protection.signds.sign_k=0.2"),
    ("protection=rr",),
    ("protection=oue", "protection.unary.cells=7"),
    ("protection=rr", "protection.unary.fidelity=aggregate"),
]


def make(overrides: tuple[str, ...]) -> tuple[Protection, RoundContext]:
    job = Job.load(None, overrides)
    protection = build(
        job.protection.name,
        job.protection.settings,
        JobContext(job.server.weighting, DIMENSION, len(COHORT), rounds=3, seeded=True),
    )
    model = Seeded(0, "model").generator().normal(0, 0.1, DIMENSION).astype(np.float32)
    return protection, RoundContext(COHORT, 2, model, protection.initial_state())


def reports(protection: Protection, context: RoundContext, opening: Message) -> dict[int, Message]:
    made = {}
    for client in context.cohort:
        entropy = Seeded(1, client)
        half = client_half(
            protection, client, context.model, examples=5 + client, entropy=entropy, number=2
        )
        update = entropy.stream("update").generator().normal(0, 0.1, DIMENSION)
        made[client] = half.respond(opening, update.astype(np.float32))
    return made


@pytest.mark.parametrize("overrides", POSITIONS, ids=" ".join)
@pytest.mark.parametrize("away", [True, False])
def test_the_same_bytes_however_the_clients_are_dealt(
    overrides: tuple[str, ...], away: bool
) -> None:
    protection, context = make(overrides)
    whole = protection.server_round(context)
    sent = reports(protection, context, whole.opening())
    for client, report in sent.items():
        whole.receive(client, decode(encode(report)))
        assert encoded_bytes(report) == len(encode(report))
    whole.advance()
    expected = whole.aggregate()
    for deal in ([COHORT[::2], COHORT[1::2]], [COHORT[:1], COHORT[1:3], COHORT[3:], []]):
        merged = protection.server_round(context)
        for clients in deal:
            half = protection.server_round(context)
            for client in clients:
                half.receive(client, sent[client])
            merged.merge(pickle.loads(pickle.dumps(half, protocol=5)) if away else half)
        merged.advance()
        got = merged.aggregate()
        assert got.update.tobytes() == expected.update.tobytes()
        assert (got.reports, got.state) == (expected.reports, expected.state)


@pytest.mark.parametrize("overrides", POSITIONS, ids=" ".join)
def test_what_travels_between_halves_is_sums(overrides: tuple[str, ...]) -> None:
    protection, context = make(overrides)
    half = protection.server_round(context)
    assert isinstance(half, OneReportRound)
    kept = {"_context", "_invited", "_asked", "_answered", "phase", *half.sums}
    copy = pickle.loads(pickle.dumps(half))
    assert set(vars(copy)) == kept
    assert len(copy._context.model) == 0


@pytest.mark.parametrize("overrides", POSITIONS, ids=" ".join)
def test_a_client_answers_only_the_opening_of_its_round_and_with_a_whole_update(
    overrides: tuple[str, ...],
) -> None:
    protection, context = make(overrides)
    opening = protection.server_round(context).opening()
    update = np.zeros(DIMENSION, np.float32)
    half = client_half(protection, 10, context.model, examples=5, entropy=Seeded(1), number=2)
    for asked, given in (
        ({**opening, "round": 3}, update), (opening, update[1:]), (opening, None),
    ):  # fmt: skip
        with pytest.raises(ClientWithheld):
            half.respond(asked, given)
    assert half.respond(opening, update)["round"] == 2
