"""Attacks of a server that lies, each mounted on the real halves; what it opened is counted.

The table in docs/secure-aggregation.md has a row for each.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from lying_server import Attempt, Liar, Shown

TARGET = 0


def near(liar: Liar) -> list[int]:
    """The fewest clients that can be named to the target as having dealt to it; colluders first."""
    others = sorted(set(liar.ids) - {TARGET}, key=lambda c: c not in liar.colluders)
    return sorted(others[: liar.terms.threshold - 1])


def lists_for_holders(liar: Liar, senders: list[int]) -> dict[int, set[int]]:
    """For each holder a list of survivors of its own: all lists together drop each sender as
    often as its mask key has to be disclosed, and never the target."""
    dropped: Counter[int] = Counter()
    lists = {}
    for holder in liar.ids:
        if holder == TARGET or holder in liar.colluders:
            continue
        most = len(liar.ids) - liar.terms.threshold
        wanted = [c for c in senders if c != holder and c not in liar.colluders]
        gone = sorted(wanted, key=lambda c: dropped[c])[:most]
        dropped.update(gone)
        lists[holder] = set(liar.ids) - set(gone)
    return lists


def split_view(attempt: Attempt) -> None:
    """The target hears of few senders, everybody else of all; each holder of other survivors."""
    senders = near(attempt.liar)
    lists = lists_for_holders(attempt.liar, senders)
    attempt.share()
    attempt.masked(senders={TARGET: [*senders, TARGET]})
    if attempt.liar.active:
        attempt.sign(lists)
    attempt.unmask(lists)


SIZES = [(5, 3), (10, 6), (20, 12)]


@pytest.mark.parametrize(("clients", "threshold"), SIZES)
def test_split_views_open_a_client_without_signatures_and_nobody_with_them(
    clients: int, threshold: int
) -> None:
    """Why nothing is promised without active security: a threshold above one half is no help."""
    alone = Liar(clients, threshold, active=False).attempt()
    split_view(alone)
    assert alone.opened() == [TARGET]
    assert not alone.withheld
    signing = Liar(clients, threshold, active=True).attempt()
    split_view(signing)
    assert signing.opened() == []
    assert set(signing.withheld) >= set(signing.ids) - {TARGET}


def test_split_views_at_two_thirds_with_colluding_clients() -> None:
    for active in (False, True):
        attempt = Liar(20, 14, active=active, colluders=6).attempt()
        split_view(attempt)
        assert attempt.opened() == ([] if active else [TARGET])


def in_place_of_everybody(attempt: Attempt) -> None:
    """Each client is shown keys of the server's own as everybody else's."""
    pairs, shown = {}, {}
    for c in attempt.ids:
        hood: dict[int, Shown] = {c: attempt.public[c]}
        for peer in attempt.ids:
            if peer != c:
                pairs[c, peer], hood[peer] = attempt.liar.own_keys(c, peer)
        shown[c] = hood
    attempt.share(shown)
    attempt.masked()
    if attempt.liar.active:
        attempt.sign(dict.fromkeys(attempt.vectors, attempt.ids))
    attempt.open_boxes(pairs)


def test_keys_of_the_servers_own_open_everybody_without_signatures_and_nobody_with_them() -> None:
    for active in (False, True):
        attempt = Liar(7, 5, active=active).attempt()
        in_place_of_everybody(attempt)
        assert attempt.opened() == ([] if active else attempt.ids)
        refused = "a key is not signed by the client that it is said to be of"
        assert attempt.withheld == (dict.fromkeys(attempt.ids, refused) if active else {})


@pytest.mark.parametrize(("clients", "threshold"), [(5, 3), (10, 6), (13, 8)])
def test_signatures_of_earlier_attempts_open_nobody(clients: int, threshold: int) -> None:
    """Honest attempts at the round, one for each list that is to be signed; then split views."""
    liar = Liar(clients, threshold, active=True)
    wanted = {tuple(sorted(named)) for named in lists_for_holders(liar, near(liar)).values()}
    for named in sorted(wanted):
        attempt = liar.attempt()
        attempt.share()
        attempt.masked()
        attempt.sign(dict.fromkeys(named, named))
    assert all(len(liar.signed[named]) >= threshold for named in wanted)
    last = liar.attempt()
    split_view(last)
    assert [attempt.opened() for attempt in liar.attempts] == [[]] * (len(wanted) + 1)
    refused = {r for c, r in last.withheld.items() if c != TARGET}
    assert {reason.split(" ", 1)[1] for reason in refused} == {
        f"signatures of survivors, {threshold} are needed"
    }


@pytest.mark.parametrize("active", [False, True])
def test_two_lists_for_two_halves_open_clients_at_one_half_and_nobody_above(active: bool) -> None:
    for threshold, opened in ((5, [*range(10)]), (6, [])):
        attempt = Liar(10, threshold, active=active).attempt()
        attempt.share()
        attempt.masked()
        halves = attempt.ids[:5], attempt.ids[5:]
        lists = {c: half for half in halves for c in half}
        if active:
            attempt.sign(lists)
        attempt.unmask(lists)
        assert attempt.opened() == opened
        assert bool(attempt.withheld) == (not opened)


@pytest.mark.parametrize("active", [False, True])
def test_another_model_for_one_client_opens_nothing(active: bool) -> None:
    """Everybody else is given a model that learns nothing: the sum would be one update."""
    for models in ({}, {TARGET: b"another"}):
        liar = Liar(7, 5, active=active)
        for c in liar.ids[1:]:
            liar.updates[c] = np.zeros_like(liar.updates[c])
        attempt = liar.attempt()
        attempt.share()
        attempt.masked(models=models)
        attempt.close(attempt.ids)
        assert attempt.opened() == []
        total = attempt.opened_sum(attempt.ids)
        assert total is not None, "all shares that could be asked for are there"
        assert (total == liar.updates[TARGET]).all() == (not models)
        assert np.intersect1d(total, liar.updates[TARGET]).size == 0 or not models


@pytest.mark.parametrize("active", [False, True])
@pytest.mark.parametrize("threshold", [5, 6])
def test_keys_of_an_earlier_attempt_open_nobody(active: bool, threshold: int) -> None:
    """All masks of the target are with keys that were disclosed as those of dropped clients."""
    liar = Liar(10, threshold, active=active)
    old: dict[int, Shown] = {}
    peers = near(liar)
    for start in range(0, len(peers), 4):
        attempt = liar.attempt()
        dropped = peers[start : start + 4]
        attempt.share()
        attempt.masked()
        attempt.close([c for c in attempt.ids if c not in dropped])
        assert attempt.opened() == []
        old |= {c: attempt.public[c] for c in dropped}
    last = liar.attempt()
    last.share({TARGET: last.public | old})
    last.masked(senders={TARGET: [*peers, TARGET]})
    last.close(last.ids)
    assert {last.shown[TARGET][c][1] for c in peers} <= liar.pairs.keys()
    assert last.opened() == []
