"""Secure aggregation as a protection: both halves of a round, for any kind of sum.

A server that follows the protocol learns the sum of the survivors' vectors, and nothing else about
any of them (`fedveil.secagg`). With `active_security` this also holds for a server that lies, under
the conditions in docs/secure-aggregation.md. Subclasses define a client's vector and the mean.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedveil.base import reused_memory
from fedveil.base.message import Message, encode, encoded_bytes, only_fields, take_array, text_in
from fedveil.base.packing import add_packed, packed_size, spare_bits_zero
from fedveil.entropy import Entropy, Secure, Seeded
from fedveil.errors import InvalidValue, MessageInvalid, RoundVoid
from fedveil.protections.base import (
    Aggregate,
    ClientContext,
    ClientRound,
    JobContext,
    Protection,
    RoundContext,
    ServerRound,
    State,
    Update,
)
from fedveil.protections.one_report import OneReportClient, OneReportRound
from fedveil.protections.reading import Reading
from fedveil.protections.secure_sum_settings import SecureSumSettings, shared_weaker
from fedveil.rounds.outcomes import ClientId
from fedveil.secagg.client import Client
from fedveil.secagg.keys import Identity
from fedveil.secagg.masked_vector import Vector, masked
from fedveil.secagg.masking import Ring
from fedveil.secagg.phases import PHASES, TRAINS, longest_answer
from fedveil.secagg.server import Server
from fedveil.secagg.terms import Terms


class ImpossibleSum(ValueError):
    """Raised for a sum to which honest clients' vectors cannot add up."""


class SecureSum(Protection):
    """A protection whose server sees only the sum of the clients' integer vectors.

    A round releases one sum only. Two sums that differ by one client would reveal its vector.
    """

    settings: SecureSumSettings
    perturbs = False
    phases = PHASES
    trains = TRAINS
    #: The number of entries of a vector, and the ring of its sum.
    length: int
    ring: Ring

    def __init__(self, settings: SecureSumSettings, context: JobContext) -> None:
        super().__init__(settings, context)
        if not context.masks and not context.simulated:
            raise InvalidValue("masks can be left out only in a simulation")
        if not context.masks and settings.share_secrets_ratio < 1:
            ratio = f"share_secrets_ratio = {settings.share_secrets_ratio:g}"
            raise InvalidValue(
                "simulation.masks = false adds up the vectors of all clients in a round, but "
                f"under {ratio} only some clients take part: set simulation.masks = true"
            )
        self._identities: dict[ClientId, Identity] = {}
        #: The round and model that were digested last, and the digest.
        self._digested: tuple[int, Update, bytes] | None = None

    @abstractmethod
    def vector(self, update: Update, context: ClientContext, told: Message) -> Vector:
        """Return the vector that the client adds to the sum. May raise `ClientWithheld`.

        `told` has untrusted fields of the server's request. An honest server sends `words(state)`.
        """

    @abstractmethod
    def mean(
        self, total: npt.NDArray[np.int64], survivors: int, round: int
    ) -> npt.NDArray[np.float64]:
        """Return the mean update of `survivors` clients. May overwrite `total`, their vectors' sum.

        Raises `ImpossibleSum` if honest clients' vectors cannot add up to `total`.
        """

    def words(self, state: State) -> Message:
        """Return the fields that the server adds to its request for vectors, such as the clip."""
        return {}

    def outcome_of(self, mean: npt.NDArray[np.float64], survivors: int, state: State) -> Aggregate:
        return Aggregate(mean, survivors)

    @property
    def least_survivors(self) -> int:
        """The smallest number of clients in a sum that may be released."""
        return 1

    @property
    def flow(self) -> tuple[str, ...]:
        """The names of a round's phases. Without masks, clients send vectors in a single phase."""
        if not self.context.masks:
            return (TRAINS,)
        return tuple(p for p in PHASES if p != "consistency" or self.settings.active_security)

    @classmethod
    def against(cls, settings: SecureSumSettings) -> str:
        return super().against(settings) if cls.rests_on_server(settings) else settings.server

    @classmethod
    def window(cls, settings: SecureSumSettings) -> tuple[str, float]:
        return "cipher_time_window", settings.cipher_time_window / 1000

    @property
    def least_clients(self) -> int:
        """The fewest clients with which a masking graph can be drawn and a sum released."""
        terms = self.terms(1)  # without masks, no graph is drawn
        return max(terms.fewest_drawn if self.context.masks else terms.threshold, terms.least)

    @classmethod
    def needs_roster(cls, settings: SecureSumSettings) -> bool:
        return settings.active_security

    @classmethod
    def most_per_operator(cls, settings: SecureSumSettings, clients: int) -> int | None:
        return settings.most_colluding(clients)

    @classmethod
    def unfit_for_apps(cls, settings: SecureSumSettings) -> str | None:
        """Return why a user's own Flower app cannot use these settings, or None if an app can."""
        if settings.active_security:
            return (
                "active_security = True needs a roster of the clients' keys, which a protected "
                "app does not have: set it to False, or deploy a job"
            )
        if settings.reconstruct_secrets_threshold == 1:
            return (
                "reconstruct_secrets_threshold = 1 is outside [2, inf): the sum of one client "
                "is no secret"
            )
        return None

    @classmethod
    def weaker(
        cls,
        asked: SecureSumSettings,
        demanded: SecureSumSettings,
        clients: int,
        expected: int | None = None,
    ) -> str | None:
        return shared_weaker(asked, demanded, clients, expected)

    def longest_report(self) -> int:
        return longest_answer(TRAINS, self.terms(1), self.context.clients_per_round)

    def server_round(self, context: RoundContext) -> ServerRound:
        half = MaskedServerRound if self.context.masks else BareServerRound
        return half(self, context)

    def client_round(self, context: ClientContext) -> ClientRound:
        half = MaskedClientRound if self.context.masks else BareClientRound
        return half(self, context)

    def outcome(
        self, total: npt.NDArray[np.int64], survivors: int, context: RoundContext
    ) -> Aggregate:
        """Return the aggregate of `total`, the sum of the vectors of `survivors` clients.

        Raises `RoundVoid` if honest clients' vectors cannot add up to `total`.
        """
        try:
            released = total.copy() if self.audited else None
            mean = self.mean(total, survivors, context.round)
            return replace(self.outcome_of(mean, survivors, context.state), released=released)
        except ImpossibleSum as impossible:
            needed = self.least_clients
            raise RoundVoid("unmask", survivors, needed, str(impossible)) from None

    def reading(self, context: RoundContext, report: Message) -> Reading:
        return Reading.nothing(self.dimension)

    def terms(self, round: int) -> Terms:
        """Return the public parameters of secure aggregation in this round."""
        settings = self.settings
        sharing = settings.sharing_clients(self.context.clients_per_round)
        return Terms(
            job=self.context.job,
            round=round,
            length=self.length,
            bits=self.ring.bits,
            least=self.least_survivors,
            threshold=settings.threshold(self.context.clients_per_round),
            sharing=sharing,
            neighbours=settings.graph_degree(sharing),
            active_security=settings.active_security,
            roster=self._public_identity,
        )

    def origin(self, context: RoundContext | ClientContext, words: Message) -> bytes:
        """Return a digest of all public values that determine how clients make their vectors.

        `words` are the fields that the server added to its request.
        """
        origin = self._model_digest(context)
        return hashlib.sha256(origin + encode(words)).digest() if words else origin

    def _model_digest(self, context: RoundContext | ClientContext) -> bytes:
        if origin := context.origin():
            return origin
        kept = self._digested
        if kept is None or kept[0] != context.round or kept[1] is not context.model:
            digest = hashlib.sha256(np.ascontiguousarray(context.model).data).digest()
            self._digested = kept = (context.round, context.model, digest)
        return kept[2]

    def graph_entropy(self, round: int) -> Entropy:
        """Return the source of randomness with which the server draws a sparse masking graph."""
        return Seeded(self.context.seed, "graph", round) if self.context.simulated else Secure()

    def identity(self, client: ClientId) -> Identity | None:
        """Return the client's signing key, or None on a server or without `active_security`."""
        if not self.settings.active_security:
            return None
        if not self.context.simulated:
            return None if self.context.identity is None else Identity(self.context.identity)
        if client not in self._identities:
            entropy = Seeded(self.context.seed, "identity", client)
            self._identities[client] = Identity.draw(entropy)
        return self._identities[client]

    def _public_identity(self, client: ClientId) -> bytes | None:
        if not self.context.simulated:
            return self.context.roster.get(client)
        return identity.public if (identity := self.identity(client)) is not None else None


class MaskedServerRound:
    """The server half of a masked round: drives a `fedveil.secagg.Server` and averages its sum."""

    mergeable = False

    def __init__(self, protection: SecureSum, context: RoundContext) -> None:
        expected = protection.context.clients_per_round
        if len(context.cohort) > expected:
            size = len(context.cohort)
            raise InvalidValue(f"the cohort has {size} clients, but the terms are for {expected}")
        self._protection, words = protection, protection.words(context.state)
        self._server = Server(
            protection.terms(context.round),
            context.cohort,
            protection.graph_entropy(context.round),
            origin=protection.origin(context, words),
        )
        self._context, self._words = context, words
        self._void: RoundVoid | None = None
        self._told: Aggregate | None = None

    @property
    def phase(self) -> str | None:
        return self._server.phase

    @property
    def longest(self) -> int:
        return self._server.longest

    def opening(self) -> Message:
        return self._server.opening()

    def receive(self, client: ClientId, message: Message) -> None:
        self._server.receive(client, message)

    def advance(self) -> Mapping[ClientId, Message] | None:
        """Return the next messages, or None at the end. Raises `RoundVoid` if too few answered."""
        try:
            messages = self._server.advance()
        except RoundVoid as void:
            self._void = void
            raise
        if messages is None or self._server.phase != TRAINS or not self._words:
            return messages
        return {client: {**message, **self._words} for client, message in messages.items()}

    def merge(self, other: Any) -> None:
        raise InvalidValue(
            f"{self._protection.name} has one server (server_num = 1): masks cancel only in the "
            "sum of all clients, so several servers cannot unmask"
        )

    def aggregate(self) -> Aggregate:
        """Return the aggregate. Raises `RoundVoid` for too few survivors, or an impossible sum."""
        if self._void is not None:
            raise self._void
        if self._told is None:
            total, survivors = self._server.total(), len(self._server.survivors)
            self._told = self._protection.outcome(total, survivors, self._context)
        return self._told


class MaskedClientRound:
    """The client half of a masked round: gives the client's vector to a `fedveil.secagg.Client`."""

    def __init__(self, protection: SecureSum, context: ClientContext) -> None:
        self._protection = protection
        self._context = context
        self._client = Client(
            context.client,
            protection.terms(context.round),
            context.entropy,
            protection.identity(context.client),
        )

    def wants_update(self, message: Message) -> bool:
        return text_in(message, "phase") == TRAINS == self._client.phase

    def respond(self, message: Message, update: Update | None) -> Message:
        round, answered = self._context.round, self._context.answered
        if update is None:
            if text_in(message, "phase") == PHASES[0]:
                answered.check(round)
            return self._client.respond(message)
        told, rest = self._parted(message)
        vector = self._vector(update, told)
        origin = self._protection.origin(self._context, told)
        answer = self._client.respond(rest, vector, origin)
        answered.note(round)
        return answer

    def keep(self) -> State:
        return self._client.keep()

    def take_up(self, kept: State) -> None:
        self._client.take_up(kept)

    def _vector(self, update: Update, told: Message) -> Vector:
        return self._protection.vector(update, self._context, told)

    def _parted(self, message: Message) -> tuple[Message, Message]:
        names = self._protection.words(self._protection.initial_state())
        told = {name: value for name, value in message.items() if name in names}
        return told, {name: value for name, value in message.items() if name not in names}


class BareServerRound(OneReportRound):
    """The server half of a simulated round without masks. Its sum equals that of a masked round."""

    sums = ("_total",)

    def __init__(self, protection: SecureSum, context: RoundContext) -> None:
        super().__init__(context, protection.flow)
        self._protection = protection
        self._size = packed_size(protection.length, protection.ring.bits)
        self._total = reused_memory.zeros(protection.length, protection.ring.lane)

    def opening(self) -> Message:
        return self._words(**self._protection.words(self._context.state))

    @property
    def longest(self) -> int:
        return encoded_bytes({**self._words(), "vector": np.empty(self._size, np.uint8)})

    def _fold(self, client: ClientId, message: Message) -> None:
        only_fields(message, "phase", "round", "vector")
        vector = take_array(message, "vector", "uint8", (self._size,))
        bits = self._protection.ring.bits
        if not spare_bits_zero(vector, self._protection.length, bits):
            raise MessageInvalid("field vector has bits after its last entry")
        add_packed(vector, bits, self._total)

    def _merge_sums(self, other: BareServerRound) -> None:
        self._total += other._total

    def _aggregate(self) -> Aggregate:
        ring, protection = self._protection.ring, self._protection
        ring.reduce(self._total)
        if self.reports < protection.least_clients:
            raise RoundVoid(TRAINS, self.reports, protection.least_clients)
        return protection.outcome(ring.signed(self._total), self.reports, self._context)


class BareClientRound(OneReportClient):
    """The client half in a simulation without masks. It sends its vector openly."""

    def __init__(self, protection: SecureSum, context: ClientContext) -> None:
        super().__init__(context)
        self._protection = protection

    def _report(self, opening: Message, update: Update) -> Message:
        vector = self._protection.vector(update, self._context, opening)
        packed = masked(vector, self._protection.ring, ())
        return {"phase": TRAINS, "round": self._context.round, "vector": packed}
