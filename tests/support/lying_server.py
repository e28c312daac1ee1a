"""A server that lies to each client as it likes, and reveals all that the answers allow.

The clients are real. The server collects everything that it receives: keys, signatures, boxes,
vectors and shares, in any number of attempts at the round.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from fedveil.base.message import decode, encode
from fedveil.base.packing import add_packed
from fedveil.entropy import Seeded
from fedveil.errors import ClientWithheld, MessageInvalid
from fedveil.secagg import Client, Identity, Terms, keys, shamir
from fedveil.secagg.keys import KeyPair, pair_seed, public_key
from fedveil.secagg.masking import Ring, add_masks
from fedveil.secagg.phases import as_ids, as_rows
from fedveil.secagg.secret import Secret
from fedveil.secagg.share_tags import KEY, SEED
from fedveil.secagg.view import keys_view, vectors_view

LENGTH, LARGEST = 8, 1000
#: A client's entry as the server shows it: its two public keys, and its signature of them.
Shown = tuple[bytes, bytes, bytes]


class Liar:
    """One job, its clients' identities, and everything that the server has found out."""

    def __init__(self, clients: int, threshold: int, *, active: bool, colluders: int = 0) -> None:
        self.ids = list(range(clients))
        self.active = active
        self.root = Seeded(clients, "liar", threshold)
        self.identities = {c: Identity.draw(self.root.stream("identity", c)) for c in self.ids}
        #: Clients that reveal their secrets to the server: the last ones.
        self.colluders = frozenset(self.ids[clients - colluders :])
        self.terms = Terms(
            job=b"liar", round=4, length=LENGTH, bits=Ring.for_sum(clients, LARGEST).bits,
            threshold=threshold, sharing=clients, active_security=active,
            roster={c: i.public for c, i in self.identities.items()}.get,
        )  # fmt: skip
        self.updates = {
            c: self.root.stream("update", c).integers(2 * LARGEST + 1, LENGTH) - LARGEST
            for c in self.ids
        }
        self.attempts: list[Attempt] = []
        #: Public mask key -> the key pair, if the server knows it.
        self.pairs: dict[bytes, KeyPair] = {}
        #: A list of survivors -> every signature of it so far.
        self.signed: dict[tuple[int, ...], dict[int, bytes]] = {}

    def attempt(self) -> Attempt:
        """Begin another attempt at the round, with fresh secrets and the same updates."""
        self.attempts.append(Attempt(self, len(self.attempts)))
        return self.attempts[-1]

    def own_keys(self, *name: int) -> tuple[KeyPair, Shown]:
        """Draw keys of the server's own to show as a client's. Returns the cipher pair and all."""
        cipher, mask = (KeyPair.draw(self.root.stream("own", i, *name)) for i in range(2))
        self.pairs[mask.public] = mask
        return cipher, (cipher.public, mask.public, bytes(keys.SIGNATURE_BYTES))


class Attempt:
    """One attempt at the round. The arguments of each method are sent to the clients."""

    def __init__(self, liar: Liar, number: int) -> None:
        self.liar, self.terms, self.ids = liar, liar.terms, liar.ids
        self.clients = {
            c: Client(c, liar.terms, liar.root.stream("attempt", number, c), liar.identities[c])
            for c in self.ids
        }
        self.withheld: dict[int, str] = {}
        self.public: dict[int, Shown] = {}
        self.shown: dict[int, dict[int, Shown]] = {}
        self.boxes: dict[int, dict[int, bytes]] = {}
        self.tags: dict[int, dict[int, bytes]] = {}
        self.senders: dict[int, list[int]] = {}
        self.models: dict[int, bytes] = {}
        self.vectors: dict[int, np.ndarray] = {}
        #: (dealer, kind of secret) -> point -> the share.
        self.shares: dict[tuple[int, int], dict[int, bytes]] = {}
        self._advertise()

    def ask(self, client: int, phase: str, **fields: Any) -> Mapping[str, Any] | None:
        """Return a client's answer, or None if it refuses."""
        message = decode(encode({"phase": phase, "round": self.terms.round, **fields}))
        own = (self.liar.updates[client], self.models[client]) if phase == "masked" else ()
        try:
            return decode(encode(self.clients[client].respond(message, *own)))
        except (ClientWithheld, MessageInvalid) as reason:
            self.withheld[client] = str(reason)
            return None

    def _advertise(self) -> None:
        for c in self.ids:
            answer = self.ask(c, "advertise")
            assert answer is not None
            signature = answer.get("signature", bytes(keys.SIGNATURE_BYTES))
            self.public[c] = (answer["cipher_key"], answer["mask_key"], signature)
            if c in self.liar.colluders:
                self.liar.pairs[answer["mask_key"]] = self.clients[c]._mask

    def share(self, shown: Mapping[int, Mapping[int, Shown]] | None = None) -> None:
        """Show each client the keys of its neighbourhood, by default those of all clients."""
        for c in self.ids:
            hood = dict(sorted((shown or {}).get(c, self.public).items()))
            fields = {
                name: as_rows([row[i] for row in hood.values()], size)
                for i, (name, size) in enumerate(
                    [("cipher_keys", 32), ("mask_keys", 32), ("signatures", 64)]
                )
            }
            if not self.liar.active:
                del fields["signatures"]
            self.shown[c] = hood
            answer = self.ask(c, "share", clients=as_ids([*hood]), **fields)
            if answer is not None:
                rows = [row.tobytes() for row in answer["sealed"]]
                self.boxes[c] = dict(zip(hood, rows, strict=True))
                tags = answer["tags"].reshape(len(hood), -1)
                self.tags[c] = {peer: row.tobytes() for peer, row in zip(hood, tags, strict=True)}

    def masked(
        self,
        senders: Mapping[int, Iterable[int]] | None = None,
        models: Mapping[int, bytes] | None = None,
    ) -> None:
        """Send each client its dealers, by default all."""
        for c in self.boxes:
            told = sorted({*((senders or {}).get(c, self.boxes)), c})
            self.senders[c] = told
            self.models[c] = (models or {}).get(c, b"model")
            others = [peer for peer in told if peer != c]
            fields = {
                name: np.stack([np.frombuffer(made[peer][c], np.uint8) for peer in others])
                for name, made in (("sealed", self.boxes), ("tags", self.tags))
            }
            answer = self.ask(c, "masked", senders=as_ids(others), **fields)
            if answer is not None:
                lanes = np.zeros(LENGTH, Ring(self.terms.bits).lane)
                add_packed(answer["vector"], self.terms.bits, lanes)
                self.vectors[c] = lanes

    def sign(self, survivors: Mapping[int, Iterable[int]]) -> None:
        """Have each client sign a list of survivors."""
        for c, named in survivors.items():
            answer = self.ask(c, "consistency", survivors=as_ids(sorted(named)))
            if answer is not None:
                given = self.liar.signed.setdefault(tuple(sorted(named)), {})
                given[c] = answer["signature"]

    def close(self, survivors: Iterable[int]) -> None:
        """Send one list of survivors to all clients in it, as an honest server does."""
        there = tuple(survivors)
        lists = dict.fromkeys(there, there)
        if self.liar.active:
            self.sign(lists)
        self.unmask(lists)

    def unmask(self, survivors: Mapping[int, Iterable[int]]) -> None:
        """Send each client a list of survivors. All its other dealers are reported as dropped."""
        for c, named in survivors.items():
            there = sorted(named)
            gone = sorted(set(self.senders[c]) - set(there))
            fields = {"survivors": as_ids(there), "dropped": as_ids(gone)}
            if self.liar.active:
                given = self._valid(c, tuple(there))
                fields["signers"] = as_ids([*given])
                fields["signatures"] = as_rows([*given.values()], keys.SIGNATURE_BYTES)
            answer = self.ask(c, "unmask", **fields)
            if answer is None:
                continue
            held = [d for d in self.senders[c] if d in self.clients[c]._held]
            for dealer, row in zip(held, answer["shares"], strict=True):
                self.learn(dealer, KEY if dealer in gone else SEED, c, row.tobytes())

    def _valid(self, client: int, survivors: tuple[int, ...]) -> dict[int, bytes]:
        """Return the signatures of a list, from any attempt, that this client accepts."""
        text = keys.survivors_text(self.view(client), survivors)
        given = sorted(self.liar.signed.get(survivors, {}).items())
        roster = self.terms.roster
        return {who: one for who, one in given if keys.is_signed(roster(who), one, text)}

    def open_boxes(self, pairs: Mapping[tuple[int, int], KeyPair]) -> None:
        """Open boxes sealed for the server's own keys: (dealer, peer) -> the key pair."""
        for (dealer, peer), pair in pairs.items():
            if dealer in self.boxes:
                shared = pair.agree(public_key(self.public[dealer][0]))
                box = self.boxes[dealer][peer]
                key = keys.seal_key(shared, self.before(dealer), dealer, peer)
                dealt = keys.unseal(key, self.before(dealer), dealer, peer, box)
                assert dealt is not None
                self.learn(dealer, SEED, peer, dealt[: shamir.SHARE_BYTES])

    def learn(self, dealer: int, kind: int, holder: int, share: bytes) -> None:
        """Store a dealer's share, at the holder's place in the dealer's neighbourhood."""
        point = 1 + [*self.shown[dealer]].index(holder)
        self.shares.setdefault((dealer, kind), {})[point] = share

    def secret(self, dealer: int, kind: int) -> Secret | None:
        """Return a dealer's secret if enough of its shares are known."""
        found = sorted(self.shares.get((dealer, kind), {}).items())[: self.terms.threshold]
        if dealer in self.liar.colluders:
            client = self.clients[dealer]
            return client._seed if kind == SEED else client._mask.secret
        if len(found) < self.terms.threshold:
            return None
        points = np.array([[point for point, _ in found]])
        rows = shamir.decode_shares(b"".join(share for _, share in found))
        return shamir.join(points, rows[None])[0]

    def learn_keys(self) -> None:
        """Reconstruct the mask keys for which shares suffice, including those of colluders."""
        for holder in self.liar.colluders & self.vectors.keys():
            for dealer, dealt in self.clients[holder]._held.items():
                for kind in (SEED, KEY):
                    share = dealt[kind * shamir.SHARE_BYTES : (kind + 1) * shamir.SHARE_BYTES]
                    self.learn(dealer, kind, holder, share)
        for dealer in self.ids:
            secret = self.secret(dealer, KEY)
            if secret is not None:
                pair = KeyPair(secret)
                self.liar.pairs[pair.public] = pair

    def before(self, client: int) -> bytes:
        """Return this client's view before it dealt shares. Its boxes are bound to it."""
        return keys_view(self.terms, {p: shown[:2] for p, shown in self.shown[client].items()})

    def view(self, client: int) -> bytes:
        """Return this client's view before it masked its vector. Its masks are bound to it."""
        told = self.senders[client], self.models[client]
        return vectors_view(self.terms, self.before(client), *told)

    def opened_sum(self, whom: Iterable[int]) -> np.ndarray | None:
        """Return the sum of some clients' vectors, or None if one of their masks cannot be removed.

        Assumes that masks between two of them cancel.
        """
        together = set(whom)
        ring = Ring(self.terms.bits)
        lanes = np.zeros(LENGTH, ring.lane)
        seeds: list[tuple[bytes, bool]] = []
        for c in together:
            seed = self.secret(c, SEED)
            if c not in self.vectors or seed is None:
                return None
            lanes += self.vectors[c]
            seeds.append((seed.reveal(), False))
            for peer in set(self.senders[c]) - {c}:
                if peer in together and c in self.senders[peer]:
                    continue
                mine, theirs = self.public[c][1], self.shown[c][peer][1]
                known = self.liar.pairs.get(theirs), self.liar.pairs.get(mine)
                if known == (None, None):
                    return None
                pair, public = (known[0], mine) if known[0] is not None else (known[1], theirs)
                shared = pair.agree(public_key(public))
                seeds.append((pair_seed(shared, self.view(c), c, peer), not c < peer))
        add_masks(lanes, seeds)
        ring.reduce(lanes)
        return ring.signed(lanes)

    def opened(self) -> list[int]:
        """Return the honest clients whose single update the server now knows."""
        self.learn_keys()
        found = {c: self.opened_sum([c]) for c in self.ids if c not in self.liar.colluders}
        return [
            c for c, sum in found.items() if sum is not None and (sum == self.liar.updates[c]).all()
        ]
