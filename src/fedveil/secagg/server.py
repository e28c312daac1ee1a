"""The server's part in a round of secure aggregation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from fedveil.base import packing, reused_memory
from fedveil.base.array_types import Int64s
from fedveil.base.message import Message, Value, only_fields, take, take_array
from fedveil.entropy import Entropy
from fedveil.errors import InvalidValue, MessageInvalid, ReportRejected, RoundVoid
from fedveil.rounds.outcomes import check_sender
from fedveil.secagg import keys, masking_graph, phases
from fedveil.secagg.disclosure import Disclosure
from fedveil.secagg.keys import KeyPair, pair_seed, public_key
from fedveil.secagg.masking import Ring, add_masks
from fedveil.secagg.masking_graph import MaskingGraph
from fedveil.secagg.phases import SEALED_BYTES, TRAINS, Phase, as_ids, as_rows, take_bytes, take_ids
from fedveil.secagg.secret import Secret
from fedveil.secagg.shamir import SHARE_BYTES
from fedveil.secagg.share_tags import TAG_BYTES
from fedveil.secagg.state_table import SERVER_ACTIONS, Event, server_state
from fedveil.secagg.terms import Terms
from fedveil.secagg.view import keys_view, vectors_view

_SEEDS_AT_ONCE = 4096
_CUT = (
    "the clients that dropped out cut the masking graph, so the sum of a part of the others would "
    "be unmasked (more neighbours, or a larger reconstruct_secrets_threshold)"
)


class Server:
    """The server's part in a round of secure aggregation.

    It adds up masked vectors as they arrive, then removes the masks. `receive` takes a client's
    message. For an invalid message, it raises `ReportRejected` and changes nothing. `advance`
    closes a phase. A client that has not answered by then has dropped out. If too few clients are
    left, or if the dropouts disconnect a sparse graph, `advance` raises `RoundVoid`, and the sum is
    never unmasked. In a sparse graph, enough clients must be left that colluding ones among them
    cannot unmask a part of the sum (`Terms.fewest_drawn` and `Terms.fewest_left`).

    - `cohort` has the clients that are asked to take part.
    - `entropy` draws the sparse graph. If more than `terms.sharing` clients answer the first
      message, it also draws those that continue.
    - `origin` is a digest of the public values from which the vectors are computed, such as the
      model. It must be equal for the server and all clients.

        >>> from fedveil.entropy import Secure
        >>> from fedveil.secagg import Client, Server, Terms
        >>> terms = Terms(b"a job", 0, length=4, bits=16, threshold=2, sharing=3)
        >>> server = Server(terms, [1, 4, 6], Secure())
        >>> for number in (1, 6):  # client 4 has dropped out
        ...     server.receive(number, Client(number, terms, Secure()).respond(server.opening()))
        >>> sorted(server.advance()), server.phase
        ([1, 6], 'share')
    """

    #: Masks cancel only in the sum of all of a round's clients.
    mergeable = False

    def __init__(
        self, terms: Terms, cohort: Sequence[int], entropy: Entropy, *, origin: bytes = b""
    ) -> None:
        self.terms = terms
        self.ring = Ring(terms.bits)
        self._entropy = entropy
        self._origin = origin
        self._cohort = frozenset(cohort)
        self._state = server_state(terms.active_security)
        self._asked: frozenset[int] = self._cohort
        self._answered: set[int] = set()
        #: Client -> its cipher key and its mask key.
        self._public: dict[int, tuple[bytes, bytes]] = {}
        self._seen_keys: set[bytes] = set()
        self._signatures: dict[int, bytes] = {}
        self._graph = MaskingGraph({}, [])
        self._disclosure = Disclosure(self._graph, terms)
        self._sealed: dict[int, bytes] = {}
        #: Digest of what all clients are shown, equal to the digest that each client computes.
        self._view = b""
        #: Holds the sum as whole numbers in the end. Until then its first part is the sum in lanes.
        self._room = reused_memory.zeros(terms.length, np.int64)
        self._total = self._room.view(self.ring.lane)[: terms.length]
        self.survivors: frozenset[int] = frozenset()

    @property
    def phase(self) -> Phase | None:
        """Return the phase whose answers are accepted, or None after the round."""
        return self._state.phase

    @property
    def longest(self) -> int:
        """Return the largest number of bytes of an honest client's answer in this phase."""
        members = max(map(len, self._graph.members), default=0)
        return phases.longest_answer(self.phase, self.terms, members) if self.phase else 0

    @property
    def complete(self) -> bool:
        """Return True if the server has removed the masks from the sum."""
        return self._state.name == "complete"

    def opening(self) -> Message:
        return self._message("advertise")

    def receive(self, client: int, message: Message) -> None:
        asked = self._asked if self.phase is not None else ()
        check_sender(client, self._cohort, asked, self._answered)
        try:
            phase: Phase = take(message, "phase", str)
            self._state.after(phase)
            if take(message, "round", int) != self.terms.round:
                raise ReportRejected(client, "wrong round")
            fields = phases.SIGNED_FIELDS if self.terms.active_security else phases.FIELDS
            only_fields(message, "phase", "round", *fields[phase][1])
            getattr(self, SERVER_ACTIONS[phase].takes)(client, message)
        except (MessageInvalid, InvalidValue) as error:
            raise ReportRejected(client, str(error)) from None
        self._state.step(phase)
        self._answered.add(client)

    def advance(self) -> dict[int, Message] | None:
        """Close the phase. Returns the next phase's messages, or None once the sum is unmasked."""
        self._close()
        if self.phase is not None:
            return self._ask(self.phase)
        self._unmask()
        return None

    def _close(self) -> None:
        """Close the phase, and choose who continues. Raises `RoundVoid` if too few answered."""
        closed, answered = self._state.name, sorted(self._answered)
        self._state.after(Event.ENOUGH)  # raises an error if the round has ended
        actions = SERVER_ACTIONS[closed]
        got, needed = getattr(self, actions.counts)(answered)
        enough = got >= needed
        cut = closed == TRAINS and enough and not self._graph.connects(answered)
        self._state.step(Event.ENOUGH if enough and not cut else Event.TOO_FEW)
        if cut:
            raise RoundVoid(closed, 0, needed, _CUT)
        if not enough:
            raise RoundVoid(closed, got, needed, self._disclosure.lacking(answered))
        self._asked, self._answered = frozenset(getattr(self, actions.closes)(answered)), set()

    def _ask(self, phase: Phase) -> dict[int, Message]:
        messages: dict[int, Message] = getattr(self, SERVER_ACTIONS[phase].asks)(
            sorted(self._asked)
        )
        return messages

    def total(self) -> Int64s:
        """Return the sum of the survivors' vectors, after `advance` has returned None.

        The caller may change the returned array.
        """
        if not self.complete:
            raise InvalidValue("the sum is asked for and the masks are not off it")
        return self._room

    def _message(self, phase: Phase, **fields: Value) -> Message:
        return {"phase": phase, "round": self.terms.round, **fields}

    def _take_keys(self, client: int, message: Message) -> None:
        cipher_key = take_bytes(message, "cipher_key", keys.KEY_BYTES)
        public = (cipher_key, take_bytes(message, "mask_key", keys.KEY_BYTES))
        if public[0] == public[1] or self._seen_keys & set(public):
            raise MessageInvalid("a key that is another client's, or both keys the same")
        if any(map(keys.has_low_order, public)):
            raise MessageInvalid("a key of low order")
        if self.terms.active_security:
            signature = take_bytes(message, "signature", keys.SIGNATURE_BYTES)
            text = keys.keys_text(self.terms.context, client, public)
            if not keys.is_signed(self.terms.roster(client), signature, text):
                raise MessageInvalid("the keys are not signed by this client")
            self._signatures[client] = signature
        self._seen_keys.update(public)
        self._public[client] = public

    def _take_sealed(self, client: int, message: Message) -> None:
        members = len(self._graph.around(client))
        sealed = take_array(message, "sealed", "uint8", (members, SEALED_BYTES))
        tags = take_array(message, "tags", "uint8", (2 * members, TAG_BYTES))
        self._sealed[client] = sealed.tobytes()
        self._disclosure.deal(client, tags.tobytes())

    def _take_vector(self, client: int, message: Message) -> None:
        length, bits = self.terms.length, self.terms.bits
        size = (packing.packed_size(length, bits),)
        vector = take_array(message, "vector", "uint8", size)
        if not packing.spare_bits_zero(vector, length, bits):
            raise MessageInvalid("field vector has bits behind its last entry")
        refused = take_ids(message, "refused", len(self._graph.around(client)) - 1)
        if client in refused or not self._disclosure.deals_to(client, refused):
            raise MessageInvalid("field refused names a client that has dealt it nothing")
        self._disclosure.refuse(client, refused)
        packing.add_packed(vector, bits, self._total)

    def _take_signature(self, client: int, message: Message) -> None:
        signature = take_bytes(message, "signature", keys.SIGNATURE_BYTES)
        text = keys.survivors_text(self._view, sorted(self.survivors))
        if not keys.is_signed(self.terms.roster(client), signature, text):
            raise MessageInvalid("the list of survivors is not signed by this client")
        self._signatures[client] = signature

    def _take_disclosed(self, client: int, message: Message) -> None:
        rows = len(self._disclosure.asked_of(client))
        shares = take_array(message, "shares", "uint8", (rows, SHARE_BYTES))
        self._disclosure.take(client, shares.tobytes())

    def _draw_sharers(self, answered: list[int]) -> list[int]:
        """Return the clients that share secrets: at most `terms.sharing`, drawn from `answered`."""
        if len(answered) <= self.terms.sharing:
            return answered
        drawn = self._entropy.permutation(len(answered))[: self.terms.sharing]
        return [answered[place] for place in sorted(drawn)]

    def _keep_all(self, answered: list[int]) -> list[int]:
        return answered

    def _decide_survivors(self, answered: list[int]) -> list[int]:
        self.survivors = frozenset(answered)
        self._disclosure.decide(self.survivors)
        return answered

    def _count_answers(self, answered: list[int]) -> tuple[int, int]:
        return len(answered), self.terms.threshold

    def _count_sharers(self, answered: list[int]) -> tuple[int, int]:
        return len(answered), self.terms.fewest_drawn

    def _count_holders(self, answered: list[int]) -> tuple[int, int]:
        """Count each dealer's valid shares at the clients in `answered`.

        Returns the least of these counts, and the threshold that it must reach.
        """
        return self._disclosure.fewest(answered), self.terms.threshold

    def _count_vectors(self, answered: list[int]) -> tuple[int, int]:
        least = max(self.terms.least, self.terms.fewest_left(len(self._graph.numbers)))
        if len(answered) < least:
            return len(answered), least
        return self._count_holders(answered)

    def _send_keys(self, asked: list[int]) -> dict[int, Message]:
        neighbours = self.terms.neighbours or len(asked) - 1
        self._graph = masking_graph.sparse(asked, neighbours, self._entropy)
        self._disclosure = Disclosure(self._graph, self.terms)
        self._view = keys_view(self.terms, {client: self._public[client] for client in asked})
        return self._to_each(self._graph.numbers, self._keys_of)

    def _to_each(
        self, clients: Iterable[int], make: Callable[[int], Message]
    ) -> dict[int, Message]:
        numbers, made = self._graph.numbers, dict[int, Message]()
        for client in clients:
            if numbers[client] not in made:
                made[numbers[client]] = make(client)
        return {client: made[numbers[client]] for client in clients}

    def _keys_of(self, client: int) -> Message:
        members = self._graph.around(client)
        fields: dict[str, Value] = {"clients": as_ids(members)}
        for i, name in enumerate(("cipher_keys", "mask_keys")):
            fields[name] = as_rows([self._public[c][i] for c in members], keys.KEY_BYTES)
        if self.terms.active_security:
            fields["signatures"] = self._signatures_of(members)
        return self._message("share", **fields)

    def _signatures_of(self, clients: list[int]) -> np.ndarray:
        return as_rows([self._signatures[c] for c in clients], keys.SIGNATURE_BYTES)

    def _send_shares(self, asked: list[int]) -> dict[int, Message]:
        self._view = vectors_view(self.terms, self._view, asked, self._origin)
        messages: dict[int, Message] = {}
        for client in asked:
            places = self._disclosure.places_of(client)
            del places[client]
            boxes = [
                self._sealed[dealer][place * SEALED_BYTES : (place + 1) * SEALED_BYTES]
                for dealer, place in places.items()
            ]
            fields: dict[str, Value] = {
                "senders": as_ids([*places]),
                "sealed": as_rows(boxes, SEALED_BYTES),
                "tags": as_rows(self._disclosure.tags_of(places), 2 * TAG_BYTES),
            }
            messages[client] = self._message("masked", **fields)
        self._sealed.clear()
        return messages

    def _send_survivors(self, asked: list[int]) -> dict[int, Message]:
        return dict.fromkeys(asked, self._message("consistency", survivors=as_ids(asked)))

    def _send_requests(self, asked: list[int]) -> dict[int, Message]:
        signed: dict[str, Value] = {}
        if self.terms.active_security:
            signed = {"signers": as_ids(asked), "signatures": self._signatures_of(asked)}

        def request(client: int) -> Message:
            dealers = self._disclosure.dealers_to(client)
            there = as_ids([d for d in dealers if d in self.survivors])
            gone = as_ids([d for d in dealers if d not in self.survivors])
            return self._message("unmask", survivors=there, dropped=gone, **signed)

        return self._to_each(asked, request)

    def _unmask(self) -> None:
        try:
            seeds, pairs = self._disclosed()
        except RoundVoid:
            self._state.step(Event.SPOILT)
            raise
        self._remove_masks(seeds, pairs)
        self.ring.reduce(self._total)
        self.ring.signed(self._total, out=self._room)
        self._state.step(Event.MASKS_OFF)

    def _disclosed(self) -> tuple[list[Secret], dict[int, KeyPair]]:
        secrets = self._disclosure.join()
        pairs = {client: KeyPair(secrets[client]) for client in sorted(self._disclosure.dropped)}
        for client, pair in pairs.items():
            if pair.public != self._public[client][1]:
                self._disclosure.spoilt(client)
        return [secrets[client] for client in sorted(self.survivors)], pairs

    def _remove_masks(self, seeds: Iterable[Secret], pairs: Mapping[int, KeyPair]) -> None:
        """Remove the survivors' own masks, and their pairwise masks with dropouts, from the sum.

        `seeds` are the seeds of the own masks. `pairs` has each dropout's pair of mask keys.
        """
        signed = [(seed.reveal(), False) for seed in seeds]
        public = {client: public_key(self._public[client][1]) for client in self.survivors}
        for client, pair in pairs.items():
            for peer in self.survivors.intersection(self._disclosure.dealers_to(client)):
                seed = pair_seed(pair.agree(public[peer]), self._view, client, peer)
                # The survivor added the mask if its number is the smaller one.
                signed.append((seed, client < peer))
            if len(signed) > _SEEDS_AT_ONCE:
                add_masks(self._total, signed)
                signed.clear()
        add_masks(self._total, signed)
