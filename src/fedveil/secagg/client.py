"""The client's part in a round of secure aggregation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedveil.base.array_types import Uint8s
from fedveil.base.message import Message, Value, only_fields, take
from fedveil.entropy import Entropy
from fedveil.errors import ClientWithheld, InvalidValue, MessageInvalid
from fedveil.secagg import keys, phases, shamir
from fedveil.secagg.keys import Identity, KeyPair, public_key
from fedveil.secagg.masked_vector import Vector, masked
from fedveil.secagg.masking import Ring
from fedveil.secagg.phases import Phase, as_ids, as_rows, as_table, take_ids, take_rows, take_table
from fedveil.secagg.secret import SECRET_BYTES, Secret
from fedveil.secagg.share_tags import KEY, SEED, TAG_BYTES, Tagger
from fedveil.secagg.state_table import Event, client_state
from fedveil.secagg.terms import Terms
from fedveil.secagg.view import keys_view, vectors_view

_DEALT_BYTES = 2 * shamir.SHARE_BYTES


class Client:
    """The client's part in a round of secure aggregation.

    It checks each message of the server, and answers it once, in order. It sends only public keys,
    encrypted shares of its own secrets, its masked vector, and, for each client in its
    neighbourhood (itself and its neighbours in the masking graph), one share: either of that
    client's seed or of its mask key, never both. To unmask this client's vector, an attacker needs
    `threshold` shares of its seed, and also its pairwise masks with all neighbours. To an attacker
    who lacks any of these, the masked vector is uniformly random. If a message is invalid, out of
    order, or asks for more than the protocol allows, the client raises `ClientWithheld` and answers
    nothing more in this round.

    Under active security, the client discloses shares only if `threshold` survivors have signed the
    same text as this client. The text has the list of survivors and everything that the server has
    shown before: the terms, all clients' keys, the clients that share secrets, and `origin`. The
    caller must make sure that a client sends only one vector in a round.

        >>> from fedveil.entropy import Secure
        >>> from fedveil.secagg import Client, Server, Terms
        >>> terms = Terms(b"a job", 0, length=4, bits=16, threshold=2, sharing=3)
        >>> server = Server(terms, [1, 4, 6], Secure())
        >>> answer = Client(4, terms, Secure()).respond(server.opening())
        >>> sorted(answer)  # two fresh public keys
        ['cipher_key', 'mask_key', 'phase', 'round']
    """

    def __init__(
        self, client: int, terms: Terms, entropy: Entropy, identity: Identity | None = None
    ) -> None:
        if terms.active_security and identity is None:
            raise InvalidValue("identity = None: active_security needs the client's own identity")
        self.client = client
        self.terms = terms
        self._entropy = entropy
        self._identity = identity
        self._state = client_state(terms.active_security)
        self._tagger = Tagger(terms.context)
        #: Digest of what this client was shown: first of the keys, then of everything on which the
        #: masks depend.
        self._view = b""
        self._cipher = KeyPair.draw(entropy)
        self._mask = KeyPair.draw(entropy)
        self._seed = Secret(entropy.token(SECRET_BYTES))
        self._mask_keys: dict[int, bytes] = {}
        self._channels: dict[int, bytes] = {}
        #: Dealer -> the two shares that this client received from it.
        self._held: dict[int, bytes] = {}
        self._sharers: list[int] = []
        self._signed: list[int] | None = None

    @property
    def phase(self) -> Phase | None:
        """The phase whose message this client answers next, or None if it answers no more."""
        return self._state.phase

    def respond(
        self, message: Message, vector: Vector | None = None, origin: bytes = b""
    ) -> Message:
        """Return the answer to a message of the server.

        If the message asks for the masked vector, the answer has `vector` with masks, and may use
        the memory of `vector`. `origin` is a digest of the public values from which the vector was
        computed, such as the model. This digest must be equal for all clients.
        """
        self._state.after(Event.REFUSAL)  # raises if this client has refused before
        event: Phase | Event = Event.REFUSAL
        try:
            phase = self._expected(message)
            answer = self._answer(phase, message, vector, origin)
            event = phase
        except (MessageInvalid, InvalidValue) as error:
            raise ClientWithheld(f"the server's message is refused: {error}") from None
        finally:
            self._state.step(event)
        return {"phase": phase, "round": self.terms.round, **answer}

    def keep(self) -> Message:
        """Return the secret state with which another process can answer the next message.

        The state is empty if this client answers nothing more. A caller that stores the state must
        use it only once. Otherwise a server could ask one copy of the client for a share of a
        peer's seed, and another copy for a share of the peer's key.
        """
        if self._state.phase is None:
            return {}
        kept: dict[str, Value] = {
            "next": self._state.name,
            "context": self.terms.context,
            "view": self._view,
            "cipher": self._cipher.secret.reveal(),
            "mask": self._mask.secret.reveal(),
            "seed": self._seed.reveal(),
            "sharers": as_ids(self._sharers),
            **as_table("mask_keys_of", "mask_keys", self._mask_keys, keys.KEY_BYTES),
            **as_table("channels_of", "channels", self._channels, keys.KEY_BYTES),
            **as_table("held_of", "held", self._held, _DEALT_BYTES),
        }
        if self._signed is not None:
            kept["signed"] = as_ids(self._signed)
        return kept

    def take_up(self, kept: Message) -> None:
        """Resume from the state that `keep` returned. The round's terms must be unchanged."""
        if take(kept, "context", bytes) != self.terms.context:
            raise ClientWithheld("the round's terms are others than at its beginning")
        self._view = take(kept, "view", bytes)
        self._cipher = KeyPair(Secret(take(kept, "cipher", bytes)))
        self._mask = KeyPair(Secret(take(kept, "mask", bytes)))
        self._seed = Secret(take(kept, "seed", bytes))
        self._sharers = take_ids(kept, "sharers")
        self._mask_keys = take_table(kept, "mask_keys_of", "mask_keys", keys.KEY_BYTES)
        self._channels = take_table(kept, "channels_of", "channels", keys.KEY_BYTES)
        self._held = take_table(kept, "held_of", "held", _DEALT_BYTES)
        self._signed = take_ids(kept, "signed") if "signed" in kept else None
        self._state.resume(take(kept, "next", str))

    def _expected(self, message: Message) -> Phase:
        phase: Phase = take(message, "phase", str)
        if take(message, "round", int) != self.terms.round:
            raise ClientWithheld("the message is of another round")
        self._state.after(phase)
        fields = phases.SIGNED_FIELDS if self.terms.active_security else phases.FIELDS
        only_fields(message, "phase", "round", *fields[phase][0])
        return phase

    def _answer(
        self, phase: Phase, message: Message, vector: Vector | None, origin: bytes
    ) -> dict[str, Value]:
        match phase:
            case "advertise":
                return self._advertise()
            case "share":
                return self._share(message)
            case "masked":
                return self._masked(message, vector, origin)
            case "consistency":
                return self._consistency(message)
            case "unmask":
                return self._unmask(message)

    def _advertise(self) -> dict[str, Value]:
        public = (self._cipher.public, self._mask.public)
        answer: dict[str, Value] = {"cipher_key": public[0], "mask_key": public[1]}
        if self._identity is not None and self.terms.active_security:
            text = keys.keys_text(self.terms.context, self.client, public)
            answer["signature"] = self._identity.sign(text)
        return answer

    def _share(self, message: Message) -> dict[str, Value]:
        """Return encrypted shares of this client's seed and mask key, and a hash of each share."""
        cipher_keys = self._read_neighbourhood(message)
        members = list(cipher_keys)
        secrets = [self._seed, self._mask.secret]
        shares = shamir.split(secrets, self.terms.threshold, len(members), self._entropy)
        ends = [(self.client, peer) for peer in members for _ in (SEED, KEY)]
        all_dealt = shamir.encode_shares(shares)
        tags = self._tagger.tags(ends, [SEED, KEY] * len(members), all_dealt)
        sealed = []
        for place, (peer, cipher_key) in enumerate(cipher_keys.items()):
            dealt = all_dealt[place * _DEALT_BYTES : (place + 1) * _DEALT_BYTES]
            if peer == self.client:
                self._held[peer] = dealt
                sealed.append(bytes(phases.SEALED_BYTES))
                continue
            self._channels[peer] = self._cipher.agree(public_key(cipher_key))
            sealed.append(self._seal(peer, dealt))
        return {"sealed": as_rows(sealed, phases.SEALED_BYTES), "tags": as_rows(tags, TAG_BYTES)}

    def _seal(self, peer: int, dealt: bytes) -> bytes:
        ends = (self._view, self.client, peer)
        return keys.seal(keys.seal_key(self._channels[peer], *ends), *ends, dealt)

    def _unseal(self, dealer: int, box: bytes) -> bytes | None:
        """Decrypt the two shares that the client `dealer` has encrypted in `box`.

        Returns None if they are not valid shares of this dealer.
        """
        ends = (self._view, dealer, self.client)
        dealt = keys.unseal(keys.seal_key(self._channels[dealer], *ends), *ends, box)
        if dealt is None or not shamir.in_field(shamir.decode_shares(dealt)).all():
            return None
        return dealt

    def _read_neighbourhood(self, message: Message) -> dict[int, bytes]:
        """Check the keys in `message`. Returns each neighbourhood member's cipher key.

        Saves the mask keys and the digest `keys_view`. Raises `ClientWithheld` if a check fails.
        """
        members = take_ids(message, "clients")
        cipher_keys = take_rows(message, "cipher_keys", len(members), keys.KEY_BYTES)
        mask_keys = take_rows(message, "mask_keys", len(members), keys.KEY_BYTES)
        by_client = dict(zip(members, zip(cipher_keys, mask_keys, strict=True), strict=True))
        if by_client.get(self.client) != (self._cipher.public, self._mask.public):
            raise ClientWithheld("the list of keys has another key than this client's own")
        if len({*cipher_keys, *mask_keys}) != 2 * len(members):
            raise ClientWithheld("two clients have the same key")
        self._check_size(len(members))
        if self.terms.active_security:
            self._check_signatures(message, by_client)
        self._view = keys_view(self.terms, by_client)
        self._mask_keys = dict(zip(members, mask_keys, strict=True))
        return dict(zip(members, cipher_keys, strict=True))

    def _check_size(self, members: int) -> None:
        terms, most = self.terms, self.terms.sharing
        self._check_enough(members)
        if terms.neighbours is not None:
            # The client itself, plus one if both the neighbours and the clients are odd in number.
            most = min(most, terms.neighbours + 1 + terms.neighbours % 2)
        if members > most:
            raise ClientWithheld(f"{members} clients share secrets, {most} are allowed")

    def _check_enough(self, sharers: int) -> None:
        if sharers < (needed := self.terms.threshold):
            raise ClientWithheld(f"{sharers} clients share secrets, {needed} are needed")

    def _check_signatures(
        self, message: Message, by_client: dict[int, tuple[bytes, bytes]]
    ) -> None:
        context, roster = self.terms.context, self.terms.roster
        signatures = take_rows(message, "signatures", len(by_client), keys.SIGNATURE_BYTES)
        for (peer, public), signature in zip(by_client.items(), signatures, strict=True):
            if not keys.is_signed(roster(peer), signature, keys.keys_text(context, peer, public)):
                raise ClientWithheld("a key is not signed by the client that it is said to be of")

    def _masked(self, message: Message, vector: Vector | None, origin: bytes) -> dict[str, Value]:
        sealed = take_table(message, "senders", "sealed", phases.SEALED_BYTES)
        if not self._channels.keys() >= sealed.keys():
            raise ClientWithheld("shares of a client that is not in the neighbourhood")
        self._check_enough(len(sealed) + 1)
        tags = take_rows(message, "tags", len(sealed), 2 * TAG_BYTES)
        refused = self._open(sealed, tags)
        self._sharers = sorted([*sealed, self.client])
        self._view = vectors_view(self.terms, self._view, self._sharers, origin)
        return {"vector": self._mask_vector(list(sealed), vector), "refused": as_ids(refused)}

    def _open(self, sealed: Mapping[int, bytes], tags: Sequence[bytes]) -> list[int]:
        """Decrypt and save the shares in `sealed`, by dealer. Returns dealers of invalid shares.

        `tags` has, for each dealer, the tags of its two shares as the server received them. A share
        that does not match its tag is invalid: the server would reject this client for disclosing
        it.
        """
        refused = []
        for (dealer, box), tag in zip(sealed.items(), tags, strict=True):
            dealt = self._unseal(dealer, box)
            ends = [(dealer, self.client)] * 2
            if dealt is None or b"".join(self._tagger.tags(ends, (SEED, KEY), dealt)) != tag:
                refused.append(dealer)
            else:
                self._held[dealer] = dealt
        return refused

    def _mask_vector(self, senders: list[int], vector: Vector | None) -> Uint8s:
        if vector is None or vector.shape != (self.terms.length,):
            raise InvalidValue(f"the vector does not have {self.terms.length} entries")
        seeds = [(self._seed.reveal(), True)]
        seeds += [(self._pair_seed(peer), self.client < peer) for peer in senders]
        return masked(vector, Ring(self.terms.bits), seeds)

    def _pair_seed(self, peer: int) -> bytes:
        shared = self._mask.agree(public_key(self._mask_keys[peer]))
        return keys.pair_seed(shared, self._view, self.client, peer)

    def _consistency(self, message: Message) -> dict[str, Value]:
        """Return this client's signature of the survivors in `message`, as the answer's fields.

        The signature also covers everything that the server has shown this client before. Raises
        `ClientWithheld` if the list of survivors is not acceptable.
        """
        survivors = take_ids(message, "survivors")
        self._check_survivors(survivors)
        assert self._identity is not None
        self._signed = survivors
        text = keys.survivors_text(self._view, survivors)
        return {"signature": self._identity.sign(text)}

    def _check_survivors(self, survivors: list[int]) -> None:
        if len(survivors) < self.terms.threshold:
            raise ClientWithheld(
                f"{len(survivors)} survivors are fewer than the threshold, {self.terms.threshold}"
            )
        if self.terms.neighbours is None and len(survivors) < self.terms.least:
            raise ClientWithheld(
                f"{len(survivors)} survivors are fewer than a sum must have, {self.terms.least}"
            )
        if self.client not in survivors:
            raise ClientWithheld("the survivors do not include this client, which has answered")
        if not set(survivors) <= set(self._sharers):
            raise ClientWithheld("the survivors include a client that has shared no secrets")

    def _unmask(self, message: Message) -> dict[str, Value]:
        """Return the shares with which the server unmasks the sum, as the answer's fields.

        This client has received shares from some other clients. It returns one share for each of
        them: a share of the seed of a survivor, or of the mask key of a client that dropped out.
        Raises `ClientWithheld` if the message is invalid.
        """
        survivors, dropped = take_ids(message, "survivors"), take_ids(message, "dropped")
        if set(survivors) & set(dropped):
            raise ClientWithheld("asked for both kinds of share of one client")
        self._check_survivors(survivors)
        if set(survivors) | set(dropped) != set(self._sharers):
            raise ClientWithheld("survivors and dropped are not the clients that share secrets")
        if self.terms.active_security:
            self._check_consistency(message, survivors)
        gone = set(dropped)
        shares = [
            _part(self._held[peer], KEY if peer in gone else SEED)
            for peer in self._sharers
            if peer in self._held
        ]
        return {"shares": as_rows(shares, shamir.SHARE_BYTES)}

    def _check_consistency(self, message: Message, survivors: list[int]) -> None:
        """Raise `ClientWithheld` unless `threshold` survivors signed the text this client signed.

        `message` has the signatures. The signed text includes the keys that this client made for
        this attempt at the round. So signatures from another attempt at the same round are not
        valid.
        """
        if survivors != self._signed:
            raise ClientWithheld("the survivors are not those that this client has signed")
        signed = take_table(message, "signers", "signatures", keys.SIGNATURE_BYTES)
        text = keys.survivors_text(self._view, survivors)
        roster, needed = self.terms.roster, self.terms.threshold
        if len(signed) < needed or not signed.keys() <= set(survivors):
            raise ClientWithheld(f"{len(signed)} signatures of survivors, {needed} are needed")
        for signer, signature in signed.items():
            if not keys.is_signed(roster(signer), signature, text):
                raise ClientWithheld("a survivor has not signed the list of survivors")


def _part(dealt: bytes, kind: int) -> bytes:
    return dealt[kind * shamir.SHARE_BYTES : (kind + 1) * shamir.SHARE_BYTES]
