"""The server's record of a round's shares: dealers, holders, and the secrets they reconstruct."""

from __future__ import annotations

import hmac
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from typing import NoReturn

import numpy as np

from fedveil.base.quantity import quantity
from fedveil.errors import MessageInvalid, RoundVoid
from fedveil.secagg import shamir
from fedveil.secagg.masking_graph import MaskingGraph
from fedveil.secagg.secret import Secret
from fedveil.secagg.share_tags import KEY, SEED, TAG_BYTES, Kind, Tagger
from fedveil.secagg.terms import Terms


class Disclosure:
    """The server's record of a round's shares.

    A client that deals shares of its two secrets (its mask seed and its mask key) is a dealer. Each
    member of its neighbourhood, itself included, is a holder and gets one share of each secret. The
    index of the share is the holder's position in the neighbourhood. Once the survivors are known,
    each holder discloses one share of each dealer.
    """

    def __init__(self, graph: MaskingGraph, terms: Terms) -> None:
        self._graph = graph
        self._tagger = Tagger(terms.context)
        self._threshold = terms.threshold
        #: Dealer -> the tags of its shares, two for each member of its neighbourhood.
        self._tags: dict[int, bytes] = {}
        #: Clients that have dealt shares and are not in the sum.
        self.dropped: frozenset[int] = frozenset()
        #: Holder -> the dealers whose shares for it are invalid, in order; and dealer -> the
        #: holders that have no valid share of it.
        self._refused: dict[int, list[int]] = {}
        self._without: dict[int, set[int]] = {}
        self._shares: dict[int, shamir.Field] = {}
        #: Number of a neighbourhood -> its members' places, and its members that dealt shares.
        self._places = [{m: place for place, m in enumerate(hood)} for hood in graph.members]
        self._dealers: dict[int, list[int]] = {}

    def deal(self, dealer: int, tags: bytes) -> None:
        self._tags[dealer] = tags

    def places_of(self, holder: int) -> dict[int, int]:
        """Map each dealer to the index of the shares that the client `holder` received from it."""
        numbers, places = self._graph.numbers, self._places
        return {dealer: places[numbers[dealer]][holder] for dealer in self.dealers_to(holder)}

    def tags_of(self, places: Mapping[int, int]) -> list[bytes]:
        """Return, for each dealer, the tags (hashes) of the two shares that it dealt to one holder.

        `places` maps a dealer to the index of these shares, as `places_of` returns it.
        """
        size = 2 * TAG_BYTES
        return [self._tags[dealer][at * size : (at + 1) * size] for dealer, at in places.items()]

    def dealers_to(self, holder: int) -> list[int]:
        """Return the clients that dealt shares to `holder`, itself included, in ascending order.

        Call it after all dealers have dealt.
        """
        number = self._graph.numbers[holder]
        if number not in self._dealers:
            members = self._graph.members[number]
            self._dealers[number] = [m for m in members if m in self._tags]
        return self._dealers[number]

    def deals_to(self, holder: int, dealers: Sequence[int]) -> bool:
        """Return True if all of `dealers` dealt shares to this holder."""
        places = self._places[self._graph.numbers[holder]]
        return all(dealer in places and dealer in self._tags for dealer in dealers)

    def refuse(self, holder: int, dealers: list[int]) -> None:
        """Record that this holder got invalid shares from `dealers`, in ascending order."""
        if dealers:
            self._refused[holder] = dealers
        for dealer in dealers:
            self._without.setdefault(dealer, set()).add(holder)

    def decide(self, survivors: Collection[int]) -> None:
        """Record which clients are in the sum.

        Holders will disclose shares of survivors' mask seeds, and of other clients' mask keys.
        """
        self.dropped = frozenset(self._tags).difference(survivors)

    def fewest(self, answered: Sequence[int]) -> int:
        """Count each dealer's valid shares at the clients `answered`. Returns the least count."""
        there = frozenset(answered)
        counted: dict[int, int] = {}
        fewest = len(there)
        for dealer in self._tags:
            number = self._graph.numbers[dealer]
            if number not in counted:
                counted[number] = len(there.intersection(self._graph.members[number]))
            without = there.intersection(self._without.get(dealer, ()))
            fewest = min(fewest, counted[number] - len(without))
        return fewest

    def lacking(self, answered: Sequence[int]) -> str | None:
        """Return a sentence about a dealer with too few usable shares, or None if there is none.

        A dealer has too few if at least `threshold` of its holders are in `answered`, but fewer
        than `threshold` of these have a usable share. A share is unusable if its holder refused it,
        or if it is outside the field. A holder may lie and refuse a valid share: the server cannot
        tell.
        """
        there = frozenset(answered)
        for dealer in sorted(self._without):
            holders = there.intersection(self._graph.around(dealer))
            left = len(holders - self._without[dealer])
            if left < self._threshold <= len(holders):
                return (
                    f"client {dealer} has dealt {quantity(len(holders) - left, 'unusable share')}, "
                    f"so {left} are left, but {self._threshold} are needed"
                )
        return None

    def asked_of(self, holder: int) -> list[int]:
        refused = frozenset(self._refused.get(holder, ()))
        dealers = self.dealers_to(holder)
        return [d for d in dealers if d not in refused] if refused else dealers

    def take(self, holder: int, shares: bytes) -> None:
        """Save the shares that `holder` discloses. `shares` has their bytes, one after another.

        Raises `MessageInvalid`, and saves none, if a share does not match its tag. The holder is
        at fault: it got the tag with the share, and has not refused the dealer. If a share matches
        its tag, but is outside the field, it counts as missing.
        """
        places = self.places_of(holder)
        asked, dropped, tags = self.asked_of(holder), self.dropped, self._tags
        kinds: list[Kind] = [KEY if dealer in dropped else SEED for dealer in asked]
        found = self._tagger.tags([(dealer, holder) for dealer in asked], kinds, shares)
        starts = [(2 * places[d] + kind) * TAG_BYTES for d, kind in zip(asked, kinds, strict=True)]
        expected = [tags[d][at : at + TAG_BYTES] for d, at in zip(asked, starts, strict=True)]
        if not hmac.compare_digest(b"".join(expected), b"".join(found)):
            wrong = [d for d, *ends in zip(asked, expected, found, strict=True) if len({*ends}) > 1]
            more = f" and {quantity(len(wrong) - 1, 'other')}" if len(wrong) > 1 else ""
            raise MessageInvalid(
                f"a share is not the one that was dealt: that of client {wrong[0]}{more}"
            )
        self._shares[holder] = shamir.decode_shares(shares)
        for row in np.flatnonzero(~shamir.in_field(self._shares[holder])):
            self._without.setdefault(asked[row], set()).add(holder)

    def join(self) -> dict[int, Secret]:
        """Reconstruct one secret of each dealer: a survivor's mask seed, or a dropout's mask key.

        Raises `RoundVoid` if the shares of a dealer do not match its secret.
        """
        dealers = sorted(self._tags)
        shape = (len(dealers), self._threshold)
        points, rows = np.empty(shape, np.int64), np.empty(shape, np.int64)
        starts, start = {}, 0
        for holder, shares in self._shares.items():
            starts[holder] = start
            start += len(shares)
        index: dict[int, dict[int, int]] = {}
        chosen: dict[int, list[int]] = {}
        for i, dealer in enumerate(dealers):
            holders = self._holders(dealer, chosen)
            places = self._places[self._graph.numbers[dealer]]
            points[i] = [places[holder] + 1 for holder in holders]
            rows[i] = [starts[h] + self._row(h, dealer, index) for h in holders]
        shares = np.concatenate(list(self._shares.values()))[rows]
        secrets = {}
        for dealer, secret in zip(dealers, shamir.join(points, shares), strict=True):
            if secret is None:
                self.spoilt(dealer)
            else:
                secrets[dealer] = secret
        return secrets

    def spoilt(self, dealer: int) -> NoReturn:
        """Raise `RoundVoid`, because the shares of this dealer do not match its secret."""
        raise RoundVoid(
            "unmask",
            0,
            self._threshold,
            f"client {dealer} has dealt shares that are not of its secret",
        )

    def _holders(self, dealer: int, chosen: dict[int, list[int]]) -> list[int]:
        number = self._graph.numbers[dealer]
        if number not in chosen:
            chosen[number] = [m for m in self._graph.members[number] if m in self._shares]
        without = self._without.get(dealer)
        if without is None:
            return chosen[number][: self._threshold]
        return list(islice((h for h in chosen[number] if h not in without), self._threshold))

    def _row(self, holder: int, dealer: int, index: dict[int, dict[int, int]]) -> int:
        """Return the row of `dealer`'s share among the shares that `holder` disclosed.

        The rows are ordered by dealer, and dealers that `holder` refused have no row. `index` is a
        cache, which this method fills. For the number of a neighbourhood, it maps each dealer to
        its row, as it would be if the holder refused no dealer.
        """
        number = self._graph.numbers[holder]
        if number not in index:
            index[number] = {d: row for row, d in enumerate(self.dealers_to(holder))}
        row = index[number][dealer]
        # The holder disclosed no shares of the dealers that it refused.
        return row - bisect_left(self._refused[holder], dealer) if holder in self._refused else row
