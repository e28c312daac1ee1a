"""Intersection by blinded ids: it finds the common examples, and reveals nothing else."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedveil.base.message import Message
from fedveil.entropy import Secure, Seeded
from fedveil.errors import MessageInvalid, MissingExtra, Unfit
from fedveil.link.channel import Exchange, Send, drive_together
from fedveil.vertical.remote import blinding, handshake, intersection
from fedveil.vertical.remote.alignment import digests
from fedveil.vertical.remote.blinding import Blinding, check_raised
from fedveil.vertical.remote.found_examples import FoundExamples
from fedveil.vertical.remote.handshake_state import Agreement, Standing
from fedveil.vertical.ristretto import point_batches
from fedveil.vertical.task import AlignBy, Subset

RUN = bytes(range(16))
Said = dict[str, list[Message]]


def standing(party: str, train: Any, **changes: Any) -> Standing:
    ids = {"train": np.array(train), "test": np.arange(2)}
    leads = {"run": RUN} if party == "lead" else {}
    return replace(Standing(party=party, job={}, parts={}, ids=ids, **leads), **changes)


def noted(exchange: Exchange[Agreement], said: list[Message]) -> Exchange[Agreement]:
    """Run the exchange, and append every message that it sends to `said`."""
    answer = None
    while True:
        try:
            request = exchange.send(answer)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        if isinstance(request, Send):
            said.append(request.message)
        answer = yield request


def agree(*standings: Standing) -> tuple[dict[str, Agreement], Said]:
    lead, *others = standings
    exchanges = {
        "lead": handshake.lead(
            lead, tuple(o.party for o in others), attempt=1, purpose="train", order_seed=0
        ),
        **{other.party: handshake.follow(other, "lead") for other in others},
    }
    said: Said = {party: [] for party in exchanges}
    table = {party: noted(exchange, said[party]) for party, exchange in exchanges.items()}
    return drive_together(table, encoded=True), said


@contextmanager
def batches_of(size: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patched:
        patched.setattr(intersection, "BATCH", size)
        yield


@pytest.mark.parametrize(("mine", "theirs"), [(9, 2), (2, 9), (4, 4), (5, 8), (1, 1)])
def test_batches_change_nothing(mine: int, theirs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    names = np.array([f"person {n}" for n in range(12)])
    with batches_of(4, monkeypatch):
        agreed, said = agree(
            standing("lead", names[:mine]), standing("bank", names[:theirs][::-1]),
            standing("shop", names[::-1]),
        )  # fmt: skip
    common = names[: min(mine, theirs)].tolist()
    for party, held in (("lead", names[:mine]), ("bank", names[:theirs][::-1])):
        assert held[agreed[party].examples.positions["train"]].tolist() == common
    points = [m["points"] for m in said["lead"] if m["kind"] == "blinded"]
    assert max(len(batch) for batch in points) <= 4  # type: ignore[arg-type]


def test_each_alignment_has_exponents_and_a_name_of_its_own() -> None:
    """With a known exponent, anyone could compute the point of every id that can be guessed."""
    points, names = list[bytes](), set[bytes]()
    for _ in range(2):
        agreed, said = agree(standing("lead", range(5)), standing("bank", range(2, 9)))
        for party, kind, field in (("lead", "blinded", "points"), ("bank", "raised", "blinded")):
            sent: list[Any] = [m[field] for m in said[party] if m["kind"] == kind]
            points += [row.tobytes() for row in np.concatenate(sent)]
        (name,) = {agreement.examples.name for agreement in agreed.values()}
        names.add(name)
    assert len(points) == len(set(points)) == 2 * (5 + 7 + 2 + 2)
    assert len(names) == 2


@pytest.mark.parametrize("alike", [False, True])
def test_points_are_found_by_all_of_their_bytes(alike: bool) -> None:
    among = Seeded(5).generator().integers(0, 256, (37, 32), np.uint8)
    if alike:
        among[:, :8] = among[0, :8]
    order = Seeded(6).permutation(37)[:19]
    points = among[order].copy()
    points[4, 31] ^= 1
    expected = np.where(np.arange(19) == 4, -1, order)
    places, repeated = intersection._found(points, among)
    assert (places.tolist(), repeated) == (expected.tolist(), False)
    assert intersection._found(points, np.concatenate([among, among[:1]]))[1]


def test_exponents_commute_and_subsets_have_nothing_in_common() -> None:
    one, other, ids = Blinding(Secure()), Blinding(Secure()), np.arange(3)
    blinded = one.blinded(ids, "train")
    assert np.array_equal(other.raised(blinded), one.raised(other.blinded(ids, "train")))
    assert not np.isin(one.blinded(ids, "test"), blinded).all(axis=1).any()
    assert not np.isin(one.blinded(np.array(["0", "1"]), "train"), blinded).all(axis=1).any()
    assert not np.array_equal(blinded, Blinding(Secure()).blinded(ids, "train"))
    # Two proofs with one random number would reveal the exponent.
    assert len({one.proved(blinded, blinded, "train")[32:] for _ in range(2)}) == 2


def test_threads_share_the_ids_and_leave_them_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    own, ids = Blinding(Secure()), np.arange(9)
    whole = own.blinded(ids, "train")
    monkeypatch.setattr(blinding, "_PIECE", 4)
    assert np.array_equal(own.blinded(ids, "train"), whole)
    raised = own.raised(whole)
    check_raised(own.commitment, whole, raised, own.proved(whole, raised, "train"), "train")


def test_the_library_of_points_leaves_no_temporary_file_and_is_named_if_it_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unpacked = tmp_path / "sodium.so"
    unpacked.touch()
    library = SimpleNamespace(_sodium=SimpleNamespace(_name=str(unpacked)))
    monkeypatch.setitem(sys.modules, "rbcl", library)
    group: Any = point_batches.group
    assert group.__wrapped__() is library
    assert not unpacked.exists()
    monkeypatch.setitem(sys.modules, "rbcl", None)
    with pytest.raises(MissingExtra, match=r"package rbcl: pip install 'fedveil\[vertical\]'"):
        group.__wrapped__()


def test_an_id_is_sent_to_the_point_that_the_standard_says() -> None:
    """Compare with RFC 9496, A.3: a label's SHA-512 and its point, raised to the power of 1."""
    label = b"Ristretto is traditionally a short shot of espresso coffee"
    blinding = Blinding(Secure())
    blinding._exponent = bytes([1]) + bytes(31)
    import rbcl

    point = rbcl.crypto_core_ristretto255_from_hash(hashlib.sha512(label).digest())
    assert point.hex() == "3066f82a1a747d45120d1740f14358531a8f04bbffe6a819f86dfe50f44a0a46"
    row = np.frombuffer(point, np.uint8)[None]
    assert blinding.raised(row).tobytes() == point


@pytest.mark.parametrize("bad", [bytes(32), b"\xff" * 32, b"\x01" + bytes(31)])
def test_what_is_no_point_or_the_unit_is_refused(bad: bytes) -> None:
    points = np.frombuffer(Blinding(Secure()).blinded(np.arange(2), "t").tobytes() + bad, np.uint8)
    with pytest.raises(MessageInvalid, match="not a point of the group"):
        Blinding(Secure()).raised(points.reshape(-1, 32))


def test_a_point_has_one_encoding() -> None:
    """RFC 9496 refuses a point whose highest bit is set, which libsodium may ignore."""
    k, other = Blinding(Secure()), Blinding(Secure())
    points = other.blinded(np.arange(3), "t")
    raised = k.raised(points)
    proof, marked = k.proved(points, raised, "t"), raised.copy()
    marked[2, -1] |= 128
    with pytest.raises(MessageInvalid, match="not a point of the group"):
        other.raised(marked)
    with pytest.raises(MessageInvalid, match="not a point of the group"):
        check_raised(k.commitment, points, marked, proof, "t")
    commitment = k.commitment[:-1] + bytes([k.commitment[-1] | 128])
    with pytest.raises(MessageInvalid, match="commitment is not a point"):
        check_raised(commitment, points, raised, proof, "t")


def test_a_leader_that_guesses_finds_digests_and_no_blinded_id() -> None:
    """The attacker knows the whole range of ids, and everything that it received."""
    phones = np.arange(500)
    mine, theirs = phones[:10], np.array([3, 77, 180, 431])
    agreed, said = agree(standing("lead", mine), standing("bank", theirs))
    assert agreed["lead"].examples.positions["train"].tolist() == [3]
    (raised, *_) = [m for m in said["bank"] if m["kind"] == "raised"]
    received = {bytes(row) for row in raised["blinded"]}  # type: ignore[union-attr]
    assert len(received) == len(theirs)
    guesses = Blinding(Secure())
    guesses._exponent = bytes([1]) + bytes(31)
    hashed = {bytes(row) for row in guesses.blinded(phones, "train")}
    again = {bytes(row) for row in Blinding(Secure()).blinded(phones, "train")}
    assert not received & (hashed | again)
    assert not any("digests" in name for message in said["bank"] for name in message)

    key = bytes(32)  # alignment by `digests` would have given it this key
    told = {bytes(row) for row in digests(theirs, key)}
    found = [n for n, row in enumerate(digests(phones, key)) if bytes(row) in told]
    assert found == theirs.tolist()


def test_a_follower_draws_the_order_in_which_its_ids_are_seen() -> None:
    orders = set()
    for _ in range(4):
        _, said = agree(standing("lead", range(30)), standing("bank", range(30)))
        (told,) = [m for m in said["lead"] if m["kind"] == "agreed"]
        orders.add(bytes(np.asarray(told["rows_train"])))
    assert len(orders) == 4


def test_a_follower_sees_no_place_of_an_id_in_the_leaders_file() -> None:
    """In a sorted file, the places of 10 and 14 would reveal that it has 11, 12 and 13."""
    leads, banks = np.arange(40), np.array([33, 10, 99, 14, 5])
    seen = set()
    for _ in range(4):
        agreed, said = agree(standing("lead", leads), standing("bank", banks))
        (told,) = [m for m in said["lead"] if m["kind"] == "agreed"]
        raised, _ = [np.asarray(m["raised"]) for m in said["bank"] if m["kind"] == "raised"]
        places, _ = intersection._found(np.asarray(told["shown_train"]), raised)
        seen.add(tuple(places.tolist()))
        assert banks[agreed["bank"].examples.positions["train"]].tolist() == [5, 10, 14, 33]
        assert agreed["lead"].examples.positions["train"].tolist() == [5, 10, 14, 33]
    assert len(seen) == 4
    assert all(sorted(set(places)) == sorted(places) for places in seen)


def labels_guessed(rows: np.ndarray, labels: np.ndarray) -> float:
    """Guess, from the order alone, that all labels of one class come first. Returns the accuracy.

    The attacker knows how many examples each class has.
    """
    guessed = np.arange(len(rows)) >= (labels == 0).sum()
    return float((guessed == labels[rows]).mean())


@pytest.mark.parametrize("by", ["intersection", "digests"])
def test_a_leader_that_protects_labels_draws_the_order_of_the_rows(by: AlignBy) -> None:
    """The leader's file is sorted by its labels: its order alone would reveal all of them."""
    labels, banks = np.repeat([0, 1], [60, 40]), np.arange(100)[::-1]

    def order(secret: int | None) -> np.ndarray:
        lead = standing("lead", range(100), align_by=by, order_secret=secret)
        agreed, _ = agree(lead, standing("bank", banks, align_by=by))
        rows = agreed["lead"].examples.positions["train"]
        assert np.array_equal(banks[agreed["bank"].examples.positions["train"]], rows)
        return rows

    assert labels_guessed(order(None), labels) == 1
    drawn = order(77)
    assert labels_guessed(drawn, labels) < 0.7
    assert np.array_equal(order(77), drawn), "a resumed run may have to align again"
    assert not np.array_equal(order(78), drawn)


def answers(exchange: Exchange[Agreement], bank: Standing, change: Mapping[str, Any]) -> None:
    """Play lead against a bank whose first blinded answer is changed."""

    def lying() -> Exchange[Agreement]:
        honest, answer = handshake.follow(bank, "lead"), None
        while True:
            request = honest.send(answer)
            if isinstance(request, Send) and request.message["kind"] == "raised":
                changed = {name: make(request.message) for name, make in change.items()}
                request = Send(request.peer, {**request.message, **changed})
            answer = yield request

    drive_together({"lead": exchange, "bank": lying()})


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"kind": lambda m: "tensor"}, "it sent 'tensor' where 'raised' was due"),
        ({"attempt": lambda m: 0}, "it answers attempt 0, not 1"),
        ({"raised": lambda m: m["raised"][:-1]}, "field raised has the wrong length"),
        ({"blinded": lambda m: m["blinded"][:, :31]}, "field blinded has the wrong length"),
        ({"blinded": lambda m: b"bytes"}, "field blinded is missing or malformed"),
        ({"blinded": lambda m: np.zeros((4, 32), np.uint8)}, "not a point of the group"),
        ({"blinded": lambda m: m["blinded"][[0, 1, 2, 0]]}, "bank has a train id twice"),
    ],
)
def test_a_malformed_answer_is_refused_in_one_sentence(
    change: Mapping[str, Any], sentence: str
) -> None:
    lead = handshake.lead(
        standing("lead", range(3)), ("bank",), attempt=1, purpose="train", order_seed=0
    )
    with pytest.raises(Unfit, match=sentence) as error:
        answers(lead, standing("bank", range(4)), change)
    assert error.value.follower == "bank"


@pytest.mark.parametrize("after", [1, 3])
def test_another_attempt_may_begin_in_the_middle(
    after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Late answers of the first attempt are ignored."""
    lead, bank = standing("lead", range(9)), standing("bank", range(7))

    def starting_over() -> Exchange[Agreement]:
        first = handshake.lead(lead, ("bank",), attempt=1, purpose="train", order_seed=0)
        answer, sent = None, 0
        while sent < after:
            request = first.send(answer)
            sent += isinstance(request, Send) and request.message["kind"] == "blinded"
            answer = yield request
        second = handshake.lead(lead, ("bank",), attempt=2, purpose="train", order_seed=0)
        return (yield from second)

    with batches_of(2, monkeypatch):
        agreed = drive_together(
            {"lead": starting_over(), "bank": handshake.follow(bank, "lead")}, encoded=True
        )
    for agreement in agreed.values():
        assert agreement.examples.positions["train"].tolist() == list(range(7))


def test_what_all_remember_is_not_looked_for_again() -> None:
    names = np.array(["ana", "bo", "cy"])
    lead, bank = standing("lead", names), standing("bank", names[::-1])
    agreed, _ = agree(lead, bank)
    kept = {party: agreed[party].examples for party in agreed}
    back = {
        party.party: FoundExamples.from_bytes(kept[party.party].to_bytes(party.ids), party.ids)
        for party in (lead, bank)
    }
    again, said = agree(replace(lead, examples=back["lead"]), replace(bank, examples=back["bank"]))
    assert {m["kind"] for m in said["lead"]} == {"begin", "agreed"}
    for party, agreement in again.items():
        assert agreement.examples.name == kept[party].name
        assert agreement.same_examples(agreed[party])
    anew, said = agree(replace(lead, examples=back["lead"]), bank)
    assert "blinded" in {m["kind"] for m in said["lead"]}
    assert anew["bank"].same_examples(agreed["bank"])
    assert anew["lead"].examples.name != kept["lead"].name


@pytest.mark.parametrize("subset", ["train", "test"])
def test_agreements_on_other_examples_of_either_subset_differ(subset: Subset) -> None:
    def on(train: list[int], test: list[int]) -> Agreement:
        positions = {"train": np.array(train), "test": np.array(test)}
        return Agreement(b"run", "train", 3, 5, FoundExamples(b"name", positions), ())

    one = on([4, 1, 7], [2, 0])
    assert one.same_examples(on([4, 1, 7], [2, 0]))
    assert not one.same_examples(on([4, 7, 1], [2, 0]) if subset == "train" else on([4, 1, 7], [0]))


def test_remembered_examples_are_known_by_their_own_name_alone() -> None:
    known: Any = SimpleNamespace(examples=SimpleNamespace(name=b"these"))
    nothing: Any = SimpleNamespace(examples=None)
    assert Standing.known_by(known, b"these") is known.examples
    for own, name in ((known, b"others"), (known, b""), (nothing, b"these")):
        assert Standing.known_by(own, name) is None


def test_what_is_remembered_is_of_these_ids_and_whole() -> None:
    ids = {"train": np.arange(4), "test": np.arange(2)}
    found = FoundExamples(bytes(16), {"train": np.array([3, 1]), "test": np.array([0])})
    raw = found.to_bytes(ids)
    again = FoundExamples.from_bytes(raw, ids)
    assert again is not None
    assert again.positions["train"].tolist() == [3, 1]
    for other in (np.arange(5), np.arange(4)[::-1], np.arange(4, dtype=np.uint64)):
        assert FoundExamples.from_bytes(raw, {**ids, "train": other}) is None
    with pytest.raises(MessageInvalid, match="digest"):
        FoundExamples.from_bytes(raw[:-1] + bytes([raw[-1] ^ 1]), ids)
    wrong = FoundExamples(bytes(16), {"train": np.array([4]), "test": np.array([0])})
    with pytest.raises(MessageInvalid, match="not positions among the 4"):
        FoundExamples.from_bytes(wrong.to_bytes(ids), ids)


@pytest.mark.parametrize("subset", ["train", "test"])
def test_what_is_remembered_of_either_subset_is_of_its_ids_and_among_them(subset: Subset) -> None:
    ids = {"train": np.arange(4), "test": np.array([7, 5, 9])}
    held = {"train": np.array([3, 1]), "test": np.array([2])}

    def back(**rows: Any) -> FoundExamples | None:
        return FoundExamples.from_bytes(FoundExamples(bytes(16), held | rows).to_bytes(ids), ids)

    assert back() is not None
    raw, count = FoundExamples(bytes(16), held).to_bytes(ids), len(ids[subset])
    assert FoundExamples.from_bytes(raw, {**ids, subset: ids[subset] + 1}) is None
    for rows, why in (
        ([-1], f"not positions among the {count} here"),
        ([count], f"not positions among the {count} here"),
        ([1.0], "not an array of positions"),
        ([[1]], "not an array of positions"),
    ):
        with pytest.raises(MessageInvalid, match=f"its {subset} rows are {why}"):
            back(**{subset: np.array(rows)})
    ids[subset] = np.empty(0, np.int64)
    assert back() is not None, "a party without data has a row for every example"


def test_a_follower_that_has_lost_its_examples_is_aligned_again_with_all() -> None:
    names = np.array(["ana", "bo", "cy"])
    own = {name: standing(name, names[at]) for name, at in
           (("lead", [0, 1, 2]), ("bank", [2, 1]), ("shop", [1, 2, 0]))}  # fmt: skip
    agreed, _ = agree(*own.values())
    for name in ("lead", "bank"):
        own[name] = replace(own[name], examples=agreed[name].examples)
    again, _ = agree(*own.values())
    assert all(again[name].same_examples(agreed[name]) for name in own)
