"""A leader that lies during alignment learns none of the examples that it does not know."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedveil.base.message import Message
from fedveil.entropy import Secure
from fedveil.errors import ExchangeError, MessageInvalid, RunFolderError
from fedveil.link.channel import Exchange, Receive, Send, drive_together
from fedveil.vertical.job import VerticalJob
from fedveil.vertical.remote import exponent_proof, handshake, intersection
from fedveil.vertical.remote.blinding import Blinding, check_raised
from fedveil.vertical.remote.brought_ids import BROUGHT
from fedveil.vertical.remote.found_examples import FoundExamples
from fedveil.vertical.remote.handshake_state import Agreement, Standing
from fedveil.vertical.remote.intersection import Exchanged
from fedveil.vertical.remote.machine import Machine
from fedveil.vertical.ristretto import point_batches
from lying_side import Change, lying_side

RUN = bytes(range(16))
#: The leader knows five customers; the bank has nine, three of them among these five.
MINE, THEIRS = np.array([3, 8, 11, 40, 41]), np.array([90, 8, 91, 3, 92, 93, 41, 94, 95])


def standing(party: str, train: Any, **changes: Any) -> Standing:
    ids = {"train": np.asarray(train), "test": np.arange(7, 10)}
    leads = {"run": RUN} if party == "lead" else {}
    base = Standing(party=party, job={}, parts={}, ids=ids, most_ids=40, **leads)
    return replace(base, **changes)


def lying(lead: Standing, change: Mapping[str, Change]) -> Exchange[Agreement]:
    """Lead, but change messages by their kind. A change to None drops a message."""
    honest = handshake.lead(lead, ("bank",), attempt=1, purpose="train", order_seed=0)
    return lying_side(honest, change)


def played(change: Mapping[str, Change], bank: Standing, lead: Standing) -> Agreement:
    exchanges = {"lead": lying(lead, change), "bank": handshake.follow(bank, "lead")}
    return drive_together(exchanges, encoded=True)["bank"]


def refused(change: Mapping[str, Change], why: str, **own: Any) -> None:
    bank = standing("bank", THEIRS, **own)
    with pytest.raises(ExchangeError, match=why):
        played(change, bank, standing("lead", MINE))


def test_an_honest_leader_is_believed() -> None:
    agreed = played({}, standing("bank", THEIRS), standing("lead", MINE))
    assert THEIRS[agreed.examples.positions["train"]].tolist() == [3, 8, 41]


def test_a_followers_log_says_what_the_leader_has_guessed() -> None:
    agreed = played({}, standing("bank", THEIRS, brought={"lead": 11}), standing("lead", MINE))
    assert agreed.notes[-1] == (
        "lead has brought 19 ids in all, and knows of each whether bank has it: "
        "alignment.most_ids = 40"
    )


def test_guesses_are_in_the_log_although_all_remember_their_examples() -> None:
    """The leader needs no exchange. It sends ids, and then names the examples that all have."""
    known = FoundExamples(bytes(16), {"train": np.arange(3), "test": np.arange(3)})
    bank = standing("bank", THEIRS, examples=known)
    agreed = played({"agreed": lambda m: {**m, "examples": known.name}}, bank,
                    standing("lead", MINE))  # fmt: skip
    assert agreed.examples is known
    assert len(agreed.notes) == 1
    assert agreed.notes[0].startswith("lead has brought 8 ids in all, and knows of each")


def test_a_resumed_run_keeps_its_name() -> None:
    """Under another name the honest leader could not resume it."""
    renamed = {"begin": lambda message: {**message, "run": bytes(16)}}
    refused(renamed, "it resumes another run than bank has", run=RUN)
    played({}, standing("bank", THEIRS, run=RUN), standing("lead", MINE))


def test_a_seed_from_which_no_order_follows_is_refused() -> None:
    seeded = {"begin": lambda message: {**message, "order_seed": -1}}
    refused(seeded, "its seed of the order is -1")


def test_all_rows_cannot_be_claimed_without_the_exchange() -> None:
    """The leader skips its ids and claims every customer of the bank."""
    bank, sent = standing("bank", THEIRS), []
    follower = handshake.follow(bank, "lead")
    next(follower)
    begin = {
        "kind": "begin", "attempt": 1, "run": RUN, "purpose": "train", "order_seed": 0,
        "align_by": "intersection", "examples": b"", "ids_train": 5, "ids_test": 3,
    }  # fmt: skip
    sent.append(follower.send(begin))
    next(follower)
    agreed = {
        "kind": "agreed", "step": 0, "examples": bytes(16),
        "rows_train": np.arange(len(THEIRS)), "rows_test": np.arange(3),
    }  # fmt: skip
    with pytest.raises(ExchangeError, match="claims 9 train examples before the exchange of ids"):
        follower.send(agreed)


@pytest.mark.parametrize(
    "kind", ["apply", "blinded", "raised", "tensor", "ready", "commit", "done", "farewell", "abort"]
)
def test_after_the_exchange_only_its_end_is_due(kind: str) -> None:
    refused(
        {"agreed": lambda message: {**message, "kind": kind}},
        f"it sent '{kind}' where 'agreed' or 'begin' was due",
    )


def all_rows(message: dict[str, Any]) -> dict[str, Any]:
    return {**message, "rows_train": np.arange(len(THEIRS))}


def test_more_examples_than_ids_that_were_brought_are_refused() -> None:
    refused({"agreed": all_rows}, "claims 9 train examples, but has brought 5 ids")


def other_rows(message: dict[str, Any]) -> dict[str, Any]:
    """Claim three other rows, with the values and the proof of those that were found."""
    found = set(message["rows_train"].tolist())
    others = [row for row in range(len(THEIRS)) if row not in found]
    return {**message, "rows_train": np.array(others[:3])}


def swapped_rows(message: dict[str, Any]) -> dict[str, Any]:
    return {**message, "rows_train": message["rows_train"][::-1].copy()}


def shown_twice(message: dict[str, Any]) -> dict[str, Any]:
    shown = np.repeat(message["shown_train"][:1], 3, axis=0)
    return {**message, "shown_train": shown}


def never_raised(message: dict[str, Any]) -> dict[str, Any]:
    points = Blinding(Secure()).blinded(np.arange(3), "train")
    return {**message, "shown_train": points}


def without(*fields: str) -> Change:
    return lambda message: {k: v for k, v in message.items() if k not in fields}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (other_rows, "proof of the common examples is wrong"),
        (swapped_rows, "proof of the common examples is wrong"),
        (shown_twice, "train examples whose ids it has not brought"),
        (never_raised, "train examples whose ids it has not brought"),
        (without("proof_train"), "field proof_train is missing"),
        (without("shown_train"), "field shown_train is missing"),
        (without("commitment"), "field commitment is missing"),
        (lambda m: {**m, "commitment": bytes(31)}, "commitment has 31 bytes"),
        (lambda m: {**m, "commitment": bytes(32)}, "not a point of the group"),
        (lambda m: {**m, "proof_test": bytes(64)}, "proof"),
        (lambda m: {**m, "proof_test": bytes(9)}, "proof has 9 bytes"),
        (
            lambda m: {**m, "commitment": Blinding(Secure()).commitment},
            "proof of the common examples is wrong",
        ),
    ],
)
def test_a_claim_without_its_proof_is_refused(change: Change, why: str) -> None:
    refused({"agreed": change}, why)


def test_an_exchange_that_is_broken_off_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader asks for the first of two batches of the bank's ids, and never for the second."""
    monkeypatch.setattr(intersection, "BATCH", 4)
    bank, lead = standing("bank", THEIRS), standing("lead", MINE)
    follower = handshake.follow(bank, "lead")
    honest = handshake.lead(lead, ("bank",), attempt=1, purpose="train", order_seed=0)

    def short() -> Exchange[None]:
        answer, blinded = None, 0
        while True:
            request = honest.send(answer)
            blinded += isinstance(request, Send) and request.message["kind"] == "blinded"
            if blinded == 2:
                break
            answer = yield request
        rows = {"rows_train": np.arange(4), "rows_test": np.arange(3)}
        yield Send("bank", {"kind": "agreed", "step": 0, "examples": bytes(16), **rows})

    with pytest.raises(ExchangeError, match="4 train examples before the exchange of ids"):
        drive_together({"lead": short(), "bank": follower}, encoded=True)


def test_an_exchange_of_an_earlier_attempt_proves_nothing() -> None:
    """The leader begins again and shows the proof of the first attempt."""
    bank, lead = standing("bank", THEIRS), standing("lead", MINE)
    honest = handshake.lead(lead, ("bank",), attempt=1, purpose="train", order_seed=0)

    def again() -> Exchange[None]:
        sent: dict[Any, Message] = {}
        answer: Message | None = None
        while "agreed" not in sent:
            request = honest.send(answer)
            if isinstance(request, Send):
                sent[request.message["kind"]] = request.message
            if "agreed" not in sent:
                answer = yield request
        yield Send("bank", {**sent["begin"], "attempt": 2})
        yield Receive("bank")
        yield Send("bank", sent["agreed"])

    with pytest.raises(ExchangeError, match="3 train examples before the exchange of ids was comp"):
        drive_together({"lead": again(), "bank": handshake.follow(bank, "lead")}, encoded=True)


def test_a_leader_without_ids_uses_none_unless_the_follower_says_so() -> None:
    none = {"train": np.empty(0, np.int64), "test": np.empty(0, np.int64)}
    lead = replace(standing("lead", MINE), ids=none)
    with pytest.raises(ExchangeError, match="claims 9 train examples without an id of its own"):
        played({}, standing("bank", THEIRS), lead)
    agreed = played({}, standing("bank", THEIRS, least_common=0), lead)
    assert len(agreed.examples.positions["train"]) == 9


def test_fewer_common_examples_than_the_follower_s_own_least_are_refused() -> None:
    why = (
        "all parties have only 3 train examples in common, fewer than bank's "
        "alignment.least_common = 4"
    )
    refused({}, why, least_common=4)
    one = replace(standing("lead", MINE), ids={"train": MINE, "test": np.array([8])})
    why = (
        "all parties have only 1 test example in common, fewer than bank's "
        "alignment.least_common = 2"
    )
    with pytest.raises(ExchangeError, match=why):
        played({}, standing("bank", THEIRS, least_common=2), one)
    played({}, standing("bank", THEIRS, least_common=3), standing("lead", MINE))


def test_fewer_common_examples_than_the_leader_s_own_least_are_refused() -> None:
    """A follower that brings few ids, which it has guessed, gets no session with the leader."""
    few = replace(
        standing("bank", THEIRS, least_common=0), ids={"train": THEIRS, "test": THEIRS[:2]}
    )
    for least, found in ((3, "1 test example"), (4, "3 train examples")):
        lead = standing("lead", MINE, least_common=least)
        why = f"only {found} in common, .* lead's alignment.least_common = {least}"
        with pytest.raises(ExchangeError, match=why):
            played({}, few, lead)
    played({}, standing("bank", THEIRS, least_common=0), standing("lead", MINE, least_common=3))
    none = {"train": np.empty(0, np.int64), "test": np.empty(0, np.int64)}
    # a follower without ids can guess none
    played({}, replace(few, ids=none), standing("lead", MINE, least_common=50))


KINDS = ["begin", "blinded", "agreed", "apply", "raised", "done", "farewell", "tensor", ""]


@pytest.mark.parametrize("align_by", ["intersection", "digests"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_message_that_is_not_due_is_refused(kind: str, align_by: str) -> None:
    """Send every kind that `_DUE` does not list, in each state of a follower."""
    key = {"key": bytes(32)} if align_by == "digests" else {}
    begin = {
        "kind": "begin", "attempt": 1, "run": RUN, "purpose": "train", "order_seed": 0,
        "align_by": align_by, "examples": b"", "ids_train": 5, "ids_test": 3, **key,
    }  # fmt: skip
    applied = {"begin", "agreed"} | ({"blinded"} if align_by == "intersection" else set())
    states: list[tuple[set[str], list[dict[str, Any]]]] = [({"begin"}, []), (applied, [begin])]
    for due, before in states:
        if kind in due:
            continue
        follower = handshake.follow(standing("bank", THEIRS, align_by=align_by), "lead")
        next(follower)
        for message in before:
            assert isinstance(follower.send(message), Send)
            next(follower)
        with pytest.raises(ExchangeError, match=f"sent {kind!r} where .* was due"):
            follower.send({"kind": kind})


def test_the_guesses_of_both_subsets_are_saved_before_any_is_answered() -> None:
    saved: list[dict[str, int]] = []
    bank = standing("bank", THEIRS)
    bank = replace(bank, keep_brought=lambda: saved.append(dict(bank.brought)))
    answered: list[int] = []

    def noted(message: dict[str, Any]) -> dict[str, Any]:
        answered.append(len(saved))
        return message

    exchange = handshake.follow(bank, "lead")

    def follower() -> Exchange[Agreement]:
        answer: Message | None = None
        while True:
            try:
                request = exchange.send(answer)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            if isinstance(request, Send) and request.message["kind"] == "raised":
                noted({})
            answer = yield request

    drive_together({"lead": lying(standing("lead", MINE), {}), "bank": follower()}, encoded=True)
    assert saved == [{"lead": 5 + 3}]
    assert answered
    assert min(answered) == 1


def test_guesses_are_counted_over_restarts(tmp_path: Path) -> None:
    """A leader takes the follower's answers and leaves before the agreement, twice."""
    job = VerticalJob.load(
        None, ["task=vertical_apart:bottoms", "batch_size=10", "alignment.least_common=8"]
    )
    folder = tmp_path / "run"

    def broken_off(machine: Machine) -> dict[str, int]:
        mine = replace(machine.standing(), party="lead", run=RUN, brought={}, examples=None)
        leading = handshake.lead(mine, ("bank",), attempt=1, purpose="train", order_seed=0)

        def short() -> Exchange[None]:
            answer = None
            while True:
                request = leading.send(answer)
                if isinstance(request, Send) and request.message["kind"] == "agreed":
                    raise ExchangeError("it has gone away")
                answer = yield request

        with pytest.raises(ExchangeError, match="gone away"):
            drive_together({"lead": short(), "bank": handshake.follow(machine.standing(), "lead")})
        return dict(machine.standing().brought)

    with ExitStack() as stack:
        first = Machine.new(job, lambda task: "bank", folder, "fedveil", stack)
        (once,) = broken_off(first).values()
        assert once == sum(first.standing().counts.values())
    with ExitStack() as stack:
        again = Machine.reopened(folder, lambda task: "bank", stack)
        assert again.standing().brought == {"lead": once}
        assert broken_off(again) == {"lead": 2 * once}
    path = folder / BROUGHT
    moved = path.rename(tmp_path / "copy")
    with ExitStack() as stack, pytest.raises(RunFolderError, match="guesses is missing: it counts"):
        Machine.reopened(folder, lambda task: "bank", stack)
    moved.rename(path)
    path.write_bytes(path.read_bytes().replace(str(2 * once).encode(), b"-99"))
    with ExitStack() as stack, pytest.raises(RunFolderError, match="guesses"):
        Machine.reopened(folder, lambda task: "bank", stack)


def test_a_proof_is_of_one_exponent_for_all_points() -> None:
    k, ids = Blinding(Secure()), np.arange(6)
    points = Blinding(Secure()).blinded(ids, "train")
    raised = k.raised(points)
    proof = k.proved(points, raised, "train")
    assert len(proof) == exponent_proof.PROOF_BYTES
    check_raised(k.commitment, points, raised, proof, "train")
    for wrong in (raised[::-1], np.roll(raised, 1, axis=0), Blinding(Secure()).raised(points)):
        with pytest.raises(MessageInvalid, match="proof"):
            check_raised(k.commitment, points, wrong, proof, "train")
        forged = k.proved(points, wrong, "train")
        with pytest.raises(MessageInvalid, match="proof"):
            check_raised(k.commitment, points, wrong, forged, "train")
    with pytest.raises(MessageInvalid, match="proof"):
        check_raised(k.commitment, points, raised, proof, "test")
    flipped = bytes([proof[0] ^ 1]) + proof[1:]
    with pytest.raises(MessageInvalid, match="proof"):
        check_raised(k.commitment, points, raised, flipped, "train")


@pytest.mark.parametrize("place", range(5))
def test_the_challenge_of_a_proof_depends_on_every_point(place: int) -> None:
    """A leader could choose a point that it does not depend on after it knows the challenge."""
    points = [bytes([number]) * 32 for number in range(5)]
    first = exponent_proof._challenge(point_batches.group(), *points)
    points[place] = points[place][:31] + b"\x09"
    assert exponent_proof._challenge(point_batches.group(), *points) != first


@pytest.mark.parametrize("place", range(4))
def test_the_weights_of_a_proof_depend_on_all_that_it_is_about(place: int) -> None:
    """A leader could choose what they do not depend on after it knows the weights."""
    rows = [np.full((3, 32), number, np.uint8) for number in (1, 2)]
    about: list[Any] = [bytes(32), *rows, b"train"]
    first = exponent_proof.weights(*about)
    about[place] = [bytes(31) + b"\x09", rows[0] + 1, rows[1] + 1, b"test"][place]
    assert (exponent_proof.weights(*about) != first).any(axis=1).all()


@pytest.mark.parametrize(("rows", "brought"), [([1, 3], True), ([3, 0], False), ([0], False)])
def test_an_example_that_was_not_brought_is_refused_beside_one_that_was(
    rows: list[int], brought: bool
) -> None:
    """The leader can raise any point that it is sent to its exponent, and prove that it did."""
    own, others = Blinding(Secure()), Blinding(Secure())
    points = others.blinded(THEIRS, "train")
    raised = others.raised(own.blinded(MINE, "train"))
    shown = own.raised(points[rows])
    agreed: Message = {
        "commitment": own.commitment, "shown_train": shown,
        "proof_train": own.proved(points[rows], shown, "train"),
    }  # fmt: skip
    exchanged = Exchanged(np.arange(len(THEIRS)), points, raised)
    if brought:
        exchanged.check("train", np.array(rows), agreed)
    else:
        with pytest.raises(MessageInvalid, match="whose ids it has not brought"):
            exchanged.check("train", np.array(rows), agreed)


def test_a_followers_own_proof_proves_nothing_of_the_leader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The leader lets the follower raise its own points again, and repeats its proof."""
    monkeypatch.setattr(intersection, "BATCH", len(THEIRS))
    bank = intersection.follow(
        {"train": THEIRS}, {"train": 2 * len(THEIRS)}, "lead", 1, blinded(THEIRS + 500)
    )
    first = next(bank)
    next(bank)
    again = bank.send({"kind": "blinded", "points": np.asarray(first.message["blinded"])})
    next(bank)
    with pytest.raises(StopIteration) as end:
        bank.send({"kind": "agreed"})
    told = again.message
    agreed = {
        "commitment": told["commitment"], "shown_train": told["raised"],
        "proof_train": told["proof"],
    }  # fmt: skip
    with pytest.raises(MessageInvalid, match="proof of the common examples is wrong"):
        end.value.value[1]["train"].check("train", np.arange(len(THEIRS)), agreed)


def blinded(ids: Any) -> Message:
    return {"kind": "blinded", "points": Blinding(Secure()).blinded(ids, "train")}
