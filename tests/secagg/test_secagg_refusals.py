"""Lies, slips and replays: each is refused with its reason, and the others' sum is still right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedveil.base.message import encode
from fedveil.entropy import Seeded
from fedveil.errors import ClientWithheld, InvalidValue, ReportRejected, RoundVoid
from fedveil.secagg import Client, Server, keys, shamir
from fedveil.secagg.phases import as_ids
from secagg_parts import Played, edited

LOW_ORDER = [
    bytes(32),
    (1).to_bytes(32, "little"),
    (2**255 - 20).to_bytes(32, "little"),
    (2**255 - 19).to_bytes(32, "little"),
    (2**255 - 18).to_bytes(32, "little"),
    bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
    bytes.fromhex("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"),
    bytes(31) + b"\x80",
]


def only(phase: str, client: int, /, **fields: Any) -> Any:
    """Replace fields of one client's message in one phase; a callable gets the old value."""

    def tamper(at: str, who: int, message: dict[str, Any]) -> dict[str, Any]:
        if (at, who) == (phase, client):
            for name, value in fields.items():
                message[name] = value(message[name]) if callable(value) else value
        return message

    return tamper


def flip(array: np.ndarray) -> np.ndarray:
    copy = array.copy()
    copy.flat[7] ^= 1
    return copy


@pytest.mark.parametrize(
    ("phase", "fields", "reason"),
    [
        ("advertise", {"cipher_key": bytes(31)}, "field cipher_key has the wrong length"),
        ("advertise", {"mask_key": "text"}, "field mask_key is missing or malformed"),
        *[("advertise", {"mask_key": key}, "a key of low order") for key in LOW_ORDER],
        *[("advertise", {"cipher_key": key}, "a key of low order") for key in LOW_ORDER[:2]],
        ("advertise", {"round": 3}, "wrong round"),
        ("advertise", {"phase": "share"}, "wrong phase"),
        ("advertise", {"phase": 1}, "field phase is missing or malformed"),
        ("advertise", {"more": 1}, "fields are missing or unknown"),
        ("share", {"sealed": lambda a: a[:-1]}, "field sealed has the wrong length"),
        ("share", {"sealed": lambda a: a[:, :-1]}, "field sealed has the wrong length"),
        ("share", {"tags": lambda a: a[:-1]}, "field tags has the wrong length"),
        ("share", {"tags": lambda a: a.astype(np.int8)}, "field tags has the wrong type"),
        ("masked", {"vector": lambda a: a[:-1]}, "field vector has the wrong length"),
        ("masked", {"vector": lambda a: a.astype(np.int8)}, "field vector has the wrong type"),
        ("masked", {"refused": as_ids([6])}, "names a client that has dealt it nothing"),
        ("masked", {"refused": as_ids([7])}, "names a client that has dealt it nothing"),
        ("masked", {"refused": as_ids([3, 0])}, "out of order or repeats"),
        ("masked", {"refused": as_ids([3, 3])}, "out of order or repeats"),
        ("masked", {"refused": np.array([3.0])}, "field refused is missing or malformed"),
        ("masked", {"refused": np.array([[3], [9]])}, "field refused is missing or malformed"),
        ("unmask", {"shares": lambda a: a[:-1]}, "field shares has the wrong length"),
        ("unmask", {"shares": flip}, "a share is not the one that was dealt"),
        ("unmask", {"shares": lambda a: a[::-1].copy()}, "a share is not the one that was dealt"),
        ("unmask", {"shares": lambda a: a * 0 + 255}, "a share is not the one that was dealt"),
    ],
)
def test_the_server_refuses(phase: str, fields: dict[str, Any], reason: str) -> None:
    """Client 6 sends something wrong in one phase; the other four of five have their sum.

    If it sends the right message after that, all five have it.
    """
    played = Played().play(up=only(phase, 6, **fields))
    assert reason in played.rejected.pop(6)
    assert played.rejected == played.withheld == {}
    assert played.server.survivors == {0, 3, 9, 12} | ({6} if phase == "unmask" else set())
    assert played.exact
    corrected = Played()

    def wrong_then_right(at: str, who: int, message: dict[str, Any]) -> dict[str, Any]:
        if (at, who) == (phase, 6):
            with pytest.raises(ReportRejected):
                corrected.server.receive(6, only(phase, 6, **fields)(at, who, dict(message)))
        return message

    corrected.play(up=wrong_then_right)
    assert corrected.rejected == corrected.withheld == {}
    assert corrected.server.survivors == set(corrected.ids)
    assert corrected.exact


@pytest.mark.parametrize("neighbours", [None, 4])
def test_nobody_refuses_shares_of_a_neighbour_that_has_dealt_none(neighbours: int | None) -> None:
    """The server would count such a share as missing before another dealer's."""
    played = Played(9, 2, neighbours=neighbours)
    liars: list[int] = []

    def of_the_gone(phase: str, client: int, message: dict[str, Any]) -> dict[str, Any]:
        if phase == "masked" and not liars and client in played.server._graph.around(6):
            liars.append(client)
            message["refused"] = as_ids([6])
        return message

    played.play({"share": [6]}, up=of_the_gone)
    assert played.rejected == {liars[0]: "field refused names a client that has dealt it nothing"}
    assert played.server.survivors == set(played.ids) - {6, *liars}
    assert played.exact


def test_spare_bits_of_the_vector_are_refused() -> None:
    played = Played(length=7, bits=13)  # 91 bits in 12 bytes
    played.vectors = {c: v[:7] for c, v in played.vectors.items()}
    played.play(up=only("masked", 6, vector=lambda a: edited(a, -1, a[-1] | 128)))
    assert "bits behind its last entry" in played.rejected[6]
    assert played.exact


def test_a_key_of_another_client_is_refused() -> None:
    for name in ("cipher_key", "mask_key"):
        taken: list[bytes] = []

        def copy_first(
            phase: str, client: int, message: dict[str, Any], name: str = name, taken: Any = taken
        ) -> dict[str, Any]:
            if phase == "advertise" and client == 0:
                taken.append(message[name])
            if phase == "advertise" and client == 9:
                message["cipher_key"] = taken[0]
            return message

        played = Played().play(up=copy_first)
        assert "a key that is another client's" in played.rejected[9]
        assert played.server.survivors == {0, 3, 6, 12}
        assert played.exact


def test_one_key_for_both_purposes_is_refused() -> None:
    def same(phase: str, client: int, message: dict[str, Any]) -> dict[str, Any]:
        if phase == "advertise" and client == 0:
            message["mask_key"] = message["cipher_key"]
        return message

    assert "both keys the same" in Played().play(up=same).rejected[0]


def test_strangers_and_repetitions_are_refused_and_change_nothing() -> None:
    played = Played()

    def twice(phase: str, client: int, message: dict[str, Any]) -> dict[str, Any]:
        with pytest.raises(ReportRejected, match="unknown sender"):
            played.server.receive(1, message)
        if client == 6:
            played.server.receive(client, message)
        return message

    played.play(up=twice)
    assert played.rejected == {6: "repeated sender"}
    assert played.server.survivors == set(played.ids)
    assert played.exact


def test_two_different_masked_vectors_of_one_client() -> None:
    played = Played()

    def both(phase: str, client: int, message: dict[str, Any]) -> dict[str, Any]:
        if phase == "masked" and client == 6:
            played.server.receive(client, message)
            return {**message, "vector": flip(message["vector"])}
        return message

    played.play(up=both)
    assert played.rejected == {6: "repeated sender"}
    assert 6 in played.server.survivors
    assert played.exact


def test_who_has_dropped_out_does_not_come_back() -> None:
    played = Played()

    def late(phase: str, client: int, message: dict[str, Any]) -> dict[str, Any] | None:
        if phase == "share" and client == 6:
            return None
        if phase == "masked" and client == 0:
            with pytest.raises(ReportRejected, match="wrong phase"):
                played.server.receive(6, message)
        return message

    played.play(up=late)
    assert played.server.survivors == {0, 3, 9, 12}
    assert played.exact
    with pytest.raises(ReportRejected, match="wrong phase"):
        played.server.receive(0, {})
    with pytest.raises(InvalidValue, match="the round has ended"):
        played.server.advance()


@pytest.mark.parametrize("phase", ["advertise", "share", "masked", "unmask"])
def test_messages_of_an_earlier_round_are_refused(phase: str) -> None:
    old = Played(seed=5, round=3).play().answers
    played = Played().play(up=lambda p, c, m: old[p, c] if (p, c) == (phase, 6) else m)
    assert played.rejected[6] == "wrong round"
    assert played.exact


def test_shares_of_an_earlier_round_are_refused_under_this_ones_number() -> None:
    old = {**Played(seed=6, round=3).play().answers["unmask", 6], "round": 4}
    played = Played(seed=5).play(up=lambda p, c, m: old if (p, c) == ("unmask", 6) else m)
    assert "a share is not the one that was dealt" in played.rejected[6]
    assert played.rejected[6].endswith("that of client 0 and 4 others")
    assert played.exact


def test_boxes_of_an_earlier_round_do_not_open() -> None:
    """Same keys, same parties, another round."""
    one, other = (Played(seed=5, round=r).play({"unmask": [0]}) for r in (3, 4))
    assert one.answers["advertise", 6]["mask_key"] == other.answers["advertise", 6]["mask_key"]
    old = one.requests["masked", 6]["sealed"]
    played = Played(seed=5).play(down=only("masked", 6, sealed=old))
    assert played.answers["masked", 6]["refused"].tolist() == [0, 3, 9, 12]


@pytest.mark.parametrize("spoil", [flip, lambda a: a[[1, 0, *range(2, len(a))]]])
def test_a_box_that_does_not_open_is_refused_and_its_shares_are_done_without(spoil: Any) -> None:
    """A flipped bit spoils one box, a swap two; both are said, and the sum is right."""
    for drop in ({}, {"masked": [0]}, {"masked": [3], "unmask": [9]}):
        played = Played(6, 2).play(drop, down=only("masked", 6, sealed=spoil))
        refused = played.answers["masked", 6]["refused"].tolist()
        assert refused == ([0] if spoil is flip else [0, 3])
        assert len(played.answers["unmask", 6]["shares"]) == 6 - len(refused)
        assert played.exact


def test_a_share_that_a_dropout_has_refused_is_not_missed_twice() -> None:
    """Client 6 cannot open a box and drops out. The three that are left hold enough shares."""
    spoilt = only("masked", 6, sealed=flip)
    played = Played(5, 3).play({"unmask": [6, 12]}, down=spoilt)
    assert len(played.answers["masked", 6]["refused"]) == 1
    assert played.exact


def test_a_dealer_whose_boxes_nobody_opens_ends_the_round() -> None:
    played = Played(5, 4)
    with pytest.raises(RoundVoid) as void:
        played.play(up=only("share", 6, sealed=lambda a: a * 0))
    assert (void.value.phase, void.value.got, void.value.needed) == ("masked", 1, 4)


@pytest.fixture
def beyond(monkeypatch: pytest.MonkeyPatch) -> Callable[[slice], Any]:
    """Make client 6 deal numbers outside the field, with their tags, to some of the holders."""

    def dealing(holders: slice) -> Any:
        at_work, encoded = [-1], shamir.encode_shares

        def encode_shares(shares: np.ndarray) -> bytes:
            shares = shares.copy()
            if at_work == [6]:
                shares[holders] += np.uint64(shamir.PRIME)
            return encoded(shares)

        def down(phase: str, client: int, message: dict[str, Any]) -> dict[str, Any]:
            at_work[:] = [client]
            return message

        monkeypatch.setattr(shamir, "encode_shares", encode_shares)
        return down

    return dealing


def credulous(self: Client, dealer: int, box: bytes) -> bytes | None:
    ends = (self._view, dealer, self.client)
    return keys.unseal(keys.seal_key(self._channels[dealer], *ends), *ends, box)


def test_a_share_outside_the_field_is_refused_by_its_holder(beyond: Any) -> None:
    played = Played().play(down=beyond(slice(1, 2)))
    assert played.answers["masked", 3]["refused"].tolist() == [6]
    assert played.rejected == played.withheld == {}
    assert played.server.survivors == set(played.ids)
    assert played.exact


def test_a_dealer_of_shares_outside_the_field_is_named(beyond: Any) -> None:
    played = Played()
    with pytest.raises(RoundVoid, match="client 6 has dealt 4 unusable shares, so 1 are left") as v:
        played.play(down=beyond(slice(None)))
    assert v.value.phase == "masked"
    assert played.rejected == played.withheld == {}


def wrong_tags(*holders: int) -> Any:
    """Flip a bit of both tags of client 6's shares for the holders at these places of ten."""

    def flipped(tags: np.ndarray) -> np.ndarray:
        tags = tags.copy()
        for place in holders:
            tags[[2 * place, 2 * place + 1], 5] ^= 1
        return tags

    return only("share", 6, tags=flipped)


@pytest.mark.parametrize("drop", [{}, {"masked": [6]}])
def test_a_dealer_of_wrong_tags_is_named_and_no_holder_is_rejected(drop: Any) -> None:
    played = Played(10, 7)
    with pytest.raises(RoundVoid, match=r"client 6 has dealt 4 unusable shares, so [56] are") as v:
        played.play(drop, up=wrong_tags(0, 3, 8, 9))
    assert v.value.phase == "masked"
    assert played.rejected == played.withheld == {}
    refusing = [c for (p, c), m in played.answers.items() if p == "masked" and len(m["refused"])]
    assert refusing == [played.ids[place] for place in (0, 3, 8, 9)]


@pytest.mark.parametrize("drop", [{}, {"masked": [6]}])
def test_a_few_shares_with_wrong_tags_are_done_without(drop: Any) -> None:
    played = Played(10, 6).play(drop, up=wrong_tags(0, 3, 9))
    assert played.rejected == played.withheld == {}
    assert played.exact


@pytest.mark.parametrize("kind", [0, 1])
def test_a_share_of_either_kind_is_refused_for_its_wrong_tag(kind: int) -> None:
    """Client 9 is the fourth member, and the fourth sender to client 12 and behind it."""
    one = only("share", 9, tags=lambda a: edited(a, (2 * 4 + kind, 15), a[2 * 4 + kind, 15] ^ 1))
    played = Played().play(up=one)
    refused = {c: m["refused"].tolist() for (p, c), m in played.answers.items() if p == "masked"}
    assert refused == {0: [], 3: [], 6: [], 9: [], 12: [9]}
    assert played.exact


def test_a_client_that_deals_itself_a_share_with_a_wrong_tag_is_rejected() -> None:
    """It is both the dealer and the holder."""
    played = Played(10, 6).play(up=wrong_tags(2))
    reason = "a share is not the one that was dealt: that of client 6"
    assert (played.rejected, played.withheld) == ({6: reason}, {})
    assert played.exact


@pytest.mark.parametrize("drop", [{}, {"masked": [6]}])
def test_a_holder_is_not_blamed_for_a_share_that_was_dealt_outside_the_field(
    beyond: Any, monkeypatch: pytest.MonkeyPatch, drop: Any
) -> None:
    """The holders disclose it as it was dealt. Its tag shows that it is the dealer's own."""
    monkeypatch.setattr(Client, "_unseal", credulous)
    played = Played().play(drop, down=beyond(slice(0, 1)))
    assert played.rejected == played.withheld == {}
    assert played.exact
    played = Played()
    with pytest.raises(RoundVoid, match="client 6 has dealt") as void:
        played.play(drop, down=beyond(slice(None)))
    assert void.value.phase == "unmask"
    assert played.rejected == played.withheld == {}


def test_a_share_outside_the_field_counts_against_its_dealer_if_its_holder_refused_another(
    beyond: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Client 3 discloses no share of client 0, so its share of client 6 is in an earlier row."""
    monkeypatch.setattr(Client, "_unseal", credulous)
    wrong = only("share", 0, tags=lambda a: edited(a, (2 * 1, 5), a[2 * 1, 5] ^ 1))
    played = Played()
    with pytest.raises(RoundVoid, match="client 6 has dealt 3 unusable shares, so 2 are left"):
        played.play(up=wrong, down=beyond(slice(0, 3)))
    assert played.answers["masked", 3]["refused"].tolist() == [0]
    assert played.rejected == played.withheld == {}


def test_a_dropped_client_that_has_dealt_another_key_ends_the_round() -> None:
    """Its shares are of a key that the server was not told: its masks cannot be taken off."""
    played = Played()

    def deal_another(phase: str, client: int, message: dict[str, Any]) -> dict[str, Any]:
        if (phase, client) == ("share", 6):
            played.clients[6]._mask.secret = Played(seed=1).clients[6]._mask.secret
        return message

    with pytest.raises(RoundVoid, match="client 6 has dealt shares that are not of its") as void:
        played.play({"masked": [6]}, down=deal_another)
    assert void.value.needed == played.server.terms.threshold > 1
    with pytest.raises(InvalidValue, match="the masks are not off it"):
        played.server.total()


# A server that lies to client 6.


@pytest.mark.parametrize(
    ("phase", "change", "reason"),
    [
        ("advertise", {"round": 3}, "of another round"),
        ("advertise", {"round": 5}, "of another round"),
        ("advertise", {"phase": "unmask"}, "phase out of order: advertise is next"),
        ("share", {"phase": "masked"}, "phase out of order: share is next"),
        ("masked", {"phase": "share"}, "phase out of order: masked is next"),
        ("unmask", {"phase": "masked"}, "phase out of order: unmask is next"),
        ("masked", {"more": 1}, "fields are missing or unknown"),
        ("share", {"cipher_keys": lambda a: edited(a, 0, 0)}, "a key of low order"),
        ("share", {"mask_keys": lambda a: edited(a, 0, a[1])}, "two clients have the same key"),
        ("share", {"mask_keys": lambda a: edited(a, 2, 9)}, "another key than this client's own"),
        ("share", {"mask_keys": lambda a: a[:-1]}, "field mask_keys has the wrong length"),
        ("share", {"clients": as_ids([0, 3, 7, 9, 12])}, "another key than this client's own"),
        ("share", {"clients": as_ids([0, 6, 3, 9, 12])}, "out of order"),
        ("masked", {"senders": as_ids([0, 3, 9, 13])}, "not in the neighbourhood"),
        ("masked", {"senders": as_ids([0, 3, 6, 9])}, "not in the neighbourhood"),
        ("masked", {"sealed": lambda a: a[:, :-1]}, "field sealed has the wrong length"),
        ("masked", {"tags": lambda a: a[:-1]}, "field tags has the wrong length"),
        ("unmask", {"dropped": as_ids([3])}, "both kinds of share of one client"),
        ("unmask", {"survivors": as_ids([0, 6])}, "2 survivors are fewer than the threshold, 3"),
        ("unmask", {"survivors": as_ids([0, 3, 9, 12]), "dropped": as_ids([6])}, "do not include"),
        ("unmask", {"survivors": as_ids([0, 3, 6, 9, 12, 15])}, "has shared no secrets"),
        ("unmask", {"survivors": as_ids([0, 3, 6, 9])}, "are not the clients that share secrets"),
        ("unmask", {"dropped": as_ids([15])}, "are not the clients that share secrets"),
    ],
)
def test_the_client_refuses(phase: str, change: dict[str, Any], reason: str) -> None:
    played = Played().play(down=only(phase, 6, **change))
    assert reason in played.withheld.pop(6)
    assert played.withheld == played.rejected == {}
    assert played.exact
    assert played.server.survivors == {0, 3, 9, 12} | ({6} if phase == "unmask" else set())


@pytest.mark.parametrize(
    ("phase", "change", "reason"),
    [
        ("masked", lambda m: m | {name: m[name][:1] for name in ("senders", "sealed", "tags")},
         "2 clients share secrets, 3 are needed"),
        ("share", lambda m: {**m, "clients": m["clients"][1:3], "mask_keys": m["mask_keys"][1:3],
                             "cipher_keys": m["cipher_keys"][1:3]},
         "2 clients share secrets, 3 are needed"),
    ],
)  # fmt: skip
def test_the_client_refuses_too_few(phase: str, change: Callable[[Any], Any], reason: str) -> None:
    played = Played().play(down=lambda p, c, m: change(m) if (p, c) == (phase, 6) else m)
    assert reason in played.withheld[6]
    assert played.exact


def test_a_client_that_was_shown_another_key_deals_boxes_that_nobody_opens() -> None:
    """Boxes are bound to all keys of the neighbourhood."""
    played = Played()
    with pytest.raises(RoundVoid, match="client 6 has dealt 4 unusable shares, so 0 are left"):
        played.play(down=only("share", 6, mask_keys=lambda a: edited(a, 0, 0)))
    assert "a key of low order" in played.withheld[6]
    refused = {c: played.answers["masked", c]["refused"].tolist() for c in (0, 3, 9, 12)}
    assert all(dealers == [6] for dealers in refused.values())


@pytest.mark.parametrize("neighbours", [None, 4])
def test_the_client_refuses_more_sharers_than_the_threshold_is_safe_for(
    neighbours: int | None,
) -> None:
    """The server lets five share, the client's terms say four."""
    played = Played(sharing=5, neighbours=neighbours)
    honest = played.clients[6]
    fewer = Played(sharing=4, neighbours=neighbours)
    played.clients[6] = fewer.clients[6]
    played.play()
    assert honest is not fewer.clients[6]
    assert "5 clients share secrets, 4 are allowed" in played.withheld[6]
    assert played.exact


@pytest.mark.parametrize(("neighbours", "theirs", "allowed"), [(2, 3, 3), (3, 5, 5)])
def test_the_client_refuses_a_neighbourhood_that_is_one_too_large(
    neighbours: int, theirs: int, allowed: int
) -> None:
    played = Played(8, 2, neighbours=theirs)
    fewer = Played(8, 2, neighbours=neighbours)
    played.clients[6] = fewer.clients[6]
    played.play()
    assert f"{allowed + 1} clients share secrets, {allowed} are allowed" in played.withheld[6]


def test_no_more_clients_share_than_the_terms_allow() -> None:
    drawn = {}
    for seed in range(20):
        played = Played(sharing=4, seed=seed).play()
        assert len(played.server.survivors) == 4
        assert played.exact
        drawn[seed] = played.server.survivors
    assert len(set(drawn.values())) == 5


def test_a_second_unmask_request_is_refused_and_a_refusal_is_for_good() -> None:
    played = Played().play()
    with pytest.raises(ClientWithheld, match="a second unmask request"):
        played.clients[6].respond(played.requests["unmask", 6])
    with pytest.raises(ClientWithheld, match="has ended the round before"):
        played.clients[6].respond(played.requests["unmask", 6])


def test_a_refused_request_is_not_answered_when_it_is_put_right() -> None:
    played = Played().play(down=only("unmask", 6, dropped=as_ids([3])))
    with pytest.raises(ClientWithheld, match="has ended the round before"):
        played.clients[6].respond(played.requests["unmask", 0])


def test_the_vector_has_its_length() -> None:
    for shape in (9, (8, 1)):
        played = Played()
        played.vectors[6] = np.zeros(shape, np.int64)
        assert "the vector does not have 8 entries" in played.play().withheld[6]
        assert played.exact


# Active security.


def test_views_that_a_lying_server_splits_get_it_nothing() -> None:
    """It tells half of the clients that 3 is in the sum and half that it has dropped."""

    def split(phase: str, client: int, message: dict[str, Any]) -> dict[str, Any]:
        if phase in ("consistency", "unmask") and client > 6:
            message["survivors"] = as_ids([0, 6, 9, 12])
        if phase == "unmask" and client > 6:
            message["dropped"] = as_ids([3])
        return message

    played = Played(5, 4, active_security=True)
    with pytest.raises(RoundVoid) as void:
        played.play(down=split)
    assert void.value.phase == "consistency"
    assert {c for p, c in played.answers if p == "unmask"} == set()
    passive = Played(5, 4)
    with pytest.raises(RoundVoid):
        passive.play(down=split)
    told = {c for p, c in passive.requests if p == "unmask"}
    assert told == set(passive.ids), "without the signatures both views are answered"
    assert passive.withheld == {}


@pytest.mark.parametrize(
    ("phase", "change", "reason"),
    [
        ("share", {"signatures": flip}, "a key is not signed by the client"),
        ("share", {"mask_keys": lambda a: edited(a, 0, 9)}, "a key is not signed by the client"),
        ("unmask", {"signatures": flip}, "a survivor has not signed"),
        ("unmask", {"survivors": as_ids([0, 3, 6, 9]), "dropped": as_ids([12])},
         "not those that this client has signed"),
        ("consistency", {"survivors": as_ids([0, 3])}, "2 survivors are fewer"),
        ("consistency", {"survivors": as_ids([0, 3, 9])}, "do not include this client"),
        ("consistency", {"survivors": as_ids([0, 3, 6, 10])}, "has shared no secrets"),
    ],
)  # fmt: skip
def test_the_client_checks_signatures(phase: str, change: dict[str, Any], reason: str) -> None:
    played = Played(active_security=True).play(down=only(phase, 6, **change))
    assert reason in played.withheld[6]
    assert played.exact


def test_too_few_signatures_are_refused() -> None:
    def few(phase: str, client: int, message: dict[str, Any]) -> dict[str, Any]:
        if (phase, client) == ("unmask", 6):
            message["signers"] = message["signers"][:2]
            message["signatures"] = message["signatures"][:2]
        return message

    played = Played(active_security=True).play(down=few)
    assert "2 signatures of survivors, 3 are needed" in played.withheld[6]


def test_a_client_discloses_for_the_list_that_it_has_signed_and_no_other_of_its_length() -> None:
    """The server has three signatures of a list with 12 in place of 9, which 6 did not sign."""
    played = Played(active_security=True)

    def other(phase: str, client: int, message: dict[str, Any]) -> dict[str, Any]:
        if (phase, client) == ("unmask", 6):
            shown = [0, 3, 6, 12]
            text = keys.survivors_text(played.clients[6]._view, shown)
            signatures = [played.identities[c].sign(text) for c in (0, 3, 12)]
            message["signatures"] = np.stack([np.frombuffer(s, np.uint8) for s in signatures])
            message |= {"signers": as_ids([0, 3, 12]), "survivors": as_ids(shown)}
            message["dropped"] = as_ids([9])
        return message

    played.play({"masked": [12]}, down=other)
    assert "not those that this client has signed" in played.withheld[6]
    assert played.exact


def test_a_client_that_was_shown_fewer_sharers_signs_something_else() -> None:
    """The server hides client 9, which drops out, from client 6 alone."""

    def hide(phase: str, client: int, message: dict[str, Any]) -> dict[str, Any]:
        if (phase, client) == ("masked", 6):
            shown = message["senders"] != 9
            message |= {name: message[name][shown] for name in ("senders", "sealed", "tags")}
        return message

    played = Played(active_security=True).play({"masked": [9]}, down=hide)
    assert played.rejected == {6: "the list of survivors is not signed by this client"}
    assert len(played.answers["consistency", 6]["signature"]) == 64


def test_signatures_of_clients_outside_the_survivors_are_refused() -> None:
    """Client 12 has dropped out, and signs for the server what the survivors sign."""
    played = Played(active_security=True)

    def with_a_stranger(phase: str, client: int, message: dict[str, Any]) -> dict[str, Any]:
        if (phase, client) == ("unmask", 6):
            text = keys.survivors_text(played.clients[6]._view, [0, 3, 6, 9])
            own = np.frombuffer(played.identities[12].sign(text), np.uint8)
            message["signatures"] = np.stack([*message["signatures"][:2], own])
            message["signers"] = as_ids([0, 3, 12])
        return message

    played.play({"masked": [12]}, down=with_a_stranger)
    assert "signatures of survivors, 3 are needed" in played.withheld[6]
    assert played.exact


@pytest.mark.parametrize(
    ("phase", "reason"),
    [
        ("advertise", "the keys are not signed by this client"),
        ("consistency", "the list of survivors is not signed by this client"),
    ],
)
def test_the_server_checks_signatures(phase: str, reason: str) -> None:
    spoil = only(phase, 6, signature=lambda s: bytes([s[0] ^ 1]) + s[1:])
    played = Played(active_security=True).play(up=spoil)
    assert played.rejected == {6: reason}
    assert played.exact


@pytest.mark.parametrize("named", [6, 9])
@pytest.mark.parametrize("phase", ["advertise", "consistency"])
def test_a_message_that_another_client_has_signed_is_refused_and_changes_nothing(
    phase: str, named: int
) -> None:
    """Client 6's message comes first in 9's name, signed by 6 as its own or as that of 9."""
    played = Played(active_security=True)
    refused: list[str] = []

    def in_the_name_of_9(at: str, who: int, message: dict[str, Any]) -> dict[str, Any]:
        if (at, who) == (phase, 6):
            copy = dict(message)
            if phase == "advertise":
                public = message["cipher_key"], message["mask_key"]
                text = keys.keys_text(played.terms.context, named, public)
                copy["signature"] = played.identities[6].sign(text)
            with pytest.raises(ReportRejected) as rejected:
                played.server.receive(9, copy)
            refused.append(rejected.value.reason)
        return message

    played.play(up=in_the_name_of_9)
    (reason,) = refused
    assert reason.endswith("signed by this client")
    assert played.rejected == played.withheld == {}
    assert played.server.survivors == set(played.ids)
    assert played.exact


def test_a_stranger_to_the_roster_takes_no_part() -> None:
    played = Played(active_security=True, roster=lambda client: None)
    with pytest.raises(RoundVoid):
        played.play()
    assert set(played.rejected.values()) == {"the keys are not signed by this client"}


def test_active_security_needs_an_identity_and_the_complete_graph() -> None:
    terms = Played(active_security=True).terms
    with pytest.raises(InvalidValue, match="needs the client's own identity"):
        Client(0, terms, Seeded(0))
    with pytest.raises(InvalidValue, match="requires the complete one"):
        Played(active_security=True, neighbours=2)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"threshold": 6}, r"threshold = 6 is outside \[1, 5\]"),
        ({"least": 6}, r"least = 6 is outside \[1, 5\]"),
        ({"neighbours": 2, "threshold": 4}, r"threshold = 4 is outside \[1, 3\]"),
    ],
)
def test_terms_that_no_round_can_meet_are_refused(change: dict[str, int], reason: str) -> None:
    with pytest.raises(InvalidValue, match=reason):
        Played(5, **{"threshold": 3, **change})  # type: ignore[arg-type]
    most = {name: value - (name != "neighbours") for name, value in change.items()}
    assert Played(5, **{"threshold": 3, **most}).play().exact  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("round", -1), ("length", 0), ("bits", 0), ("bits", 65), ("sharing", 0),
        ("sharing", 2**20 + 1), ("threshold", 0), ("least", 0), ("neighbours", 0),
    ],
)  # fmt: skip
def test_terms_outside_their_ranges_are_refused(name: str, value: int) -> None:
    with pytest.raises(InvalidValue, match=f"{name} = {value} is outside"):
        replace(Played().terms, **{name: value})  # type: ignore[arg-type]


def test_a_client_that_can_open_nothing_sends_no_more_bytes_than_the_server_expects() -> None:
    """A server that allowed fewer would lose the vector of a client whose boxes were spoilt."""
    played = Played(7, 3)
    spoilt = only("masked", 6, sealed=lambda rows: rows ^ 1)
    expected: list[int] = []

    def weigh(phase: str, client: int, message: dict[str, Any]) -> dict[str, Any]:
        if (phase, client) == ("masked", 6):
            assert len(message["refused"]) == 6
            expected.append(played.server.longest - len(encode(message)))
        return message

    played.play(up=weigh, down=spoilt)
    assert expected == [0]


def test_the_sum_is_not_to_be_had_before_the_end() -> None:
    server = Server(Played().terms, [0, 3, 6], Seeded(0))
    with pytest.raises(InvalidValue, match="the masks are not off it"):
        server.total()


def test_a_list_of_more_clients_than_there_can_be_is_refused_before_it_is_made() -> None:
    for named in (100, 5):
        played = Played().play(up=only("masked", 6, refused=as_ids(range(named))))
        assert played.rejected[6] == f"field refused names {named} clients, 4 are the most"
        assert played.exact
