"""Secure aggregation as a protection: the halves of a round, whatever its sum is made of.

A server that follows the protocol learns the sum of the survivors' vectors, and nothing else about
any of them (`fedveil.secagg`). With `active_security` this holds for one that lies, too, under the
conditions in docs/secure-aggregation.md. A position says what a vector is and what the sum becomes.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedveil.base.arrays import Signed
from fedveil.base.message import Message, encode, encoded_bytes, only_fields, take_array
from fedveil.base.packing import add_packed, pack, packed_size, spare_bits_zero
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
from fedveil.secagg.masking import Ring
from fedveil.secagg.phases import PHASES, TRAINS, longest_answer
from fedveil.secagg.server import Server
from fedveil.secagg.terms import Terms


class ImpossibleSum(ValueError):
    """No honest clients can have this sum."""


class SecureSum(Protection):
    """A position whose clients' vectors of whole numbers are seen in sum alone.

    Two sums of a round that differ by a client tell its vector: only one leaves a round.
    """

    settings: SecureSumSettings
    perturbs = False
    phases = PHASES
    trains = TRAINS
    #: Entries of a vector, and the ring that its sum is in.
    length: int
    ring: Ring

    def __init__(self, settings: SecureSumSettings, context: JobContext) -> None:
        super().__init__(settings, context)
        if not context.masks and not context.simulated:
            raise InvalidValue("only a simulation can do without masks")
        if not context.masks and settings.share_secrets_ratio < 1:
            ratio = f"share_secrets_ratio = {settings.share_secrets_ratio:g}"
            raise InvalidValue(
                f"simulation.masks = false adds up what all clients of a round send, and under "
                f"{ratio} only some of them take part: masks are needed"
            )
        self._identities: dict[ClientId, Identity] = {}
        #: The last model that was digested, in which round, and its digest.
        self._digested: tuple[int, Update, bytes] | None = None

    @abstractmethod
    def vector(self, update: Update, context: ClientContext, told: Message) -> Signed:
        """What a client adds to the sum; raises `ClientWithheld` where it adds nothing.

        `told` are the server's `words`, untrusted.
        """

    @abstractmethod
    def mean(
        self, total: npt.NDArray[np.int64], survivors: int, round: int
    ) -> npt.NDArray[np.float64]:
        """The aggregate update of so many clients' sum, which it may use up.

        Raises `ImpossibleSum` where no honest clients can have it: nobody sees whose part is wrong.
        """

    def words(self, state: State) -> Message:
        """What the server says of the state where it asks for vectors: the same fields always."""
        return {}

    def outcome_of(self, mean: npt.NDArray[np.float64], survivors: int, state: State) -> Aggregate:
        """What comes of such a mean, in a round that opened with `state`."""
        return Aggregate(mean, survivors)

    @property
    def least_survivors(self) -> int:
        """How many clients' vectors must be in a sum that anybody is shown."""
        return 1

    @property
    def flow(self) -> tuple[str, ...]:
        """The consistency phase is there under active security alone; without masks, one phase."""
        if not self.context.masks:
            return (TRAINS,)
        return tuple(p for p in PHASES if p != "consistency" or self.settings.active_security)

    @property
    def deadline_s(self) -> float:
        """The parameter of that name, in milliseconds there."""
        return self.settings.cipher_time_window / 1000

    @property
    def least_clients(self) -> int:
        """With fewer no secret is reconstructed, or the sum is not to be shown."""
        return max(self.settings.threshold(self.context.clients_per_round), self.least_survivors)

    @classmethod
    def needs_roster(cls, settings: SecureSumSettings) -> bool:
        """Active security rests on signatures."""
        return settings.active_security

    @classmethod
    def unfit_for_apps(cls, settings: SecureSumSettings) -> str | None:
        """What a deployed job has and an app has not, and a sum that is nobody's secret."""
        if settings.active_security:
            return (
                "active_security = True needs a roster of the clients' keys, which an app that is "
                "protected in two lines has not; a deployed job can have one, here it is False"
            )
        if settings.reconstruct_secrets_threshold == 1:
            return (
                "reconstruct_secrets_threshold = 1 is outside [2, inf): the sum of one client is "
                "no secret"
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
        """What comes of a sum; raises `RoundVoid` where nothing does."""
        try:
            released = total.copy() if self.audited else None
            mean = self.mean(total, survivors, context.round)
            return replace(self.outcome_of(mean, survivors, context.state), released=released)
        except ImpossibleSum as impossible:
            needed = self.least_clients
            raise RoundVoid("unmask", survivors, needed, str(impossible)) from None

    def reading(self, context: RoundContext, report: Message) -> Reading:
        """A masked vector is uniform, whatever it masks."""
        return Reading.nothing(self.dimension)

    def terms(self, round: int) -> Terms:
        """What the clients and the server agree on before the round."""
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
        """The digest of what vectors are made from, the server's words among it."""
        origin = self._model_digest(context)
        return hashlib.sha256(origin + encode(words)).digest() if words else origin

    def _model_digest(self, context: RoundContext | ClientContext) -> bytes:
        """Of what updates are made from: once a round for all that have one model."""
        if context.origin:
            return context.origin
        kept = self._digested
        if kept is None or kept[0] != context.round or kept[1] is not context.model:
            digest = hashlib.sha256(np.ascontiguousarray(context.model).data).digest()
            self._digested = kept = (context.round, context.model, digest)
        return kept[2]

    def graph_entropy(self, round: int) -> Entropy:
        """What the server draws the sparse graph from."""
        return Seeded(self.context.seed, "graph", round) if self.context.simulated else Secure()

    def identity(self, client: ClientId) -> Identity | None:
        """A client's signing key: made from the job's seed in simulation, its own elsewhere."""
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
    """Carries the messages of `fedveil.secagg.Server` and has a mean made of its sum."""

    mergeable = False

    def __init__(self, protection: SecureSum, context: RoundContext) -> None:
        expected = protection.context.clients_per_round
        if len(context.cohort) > expected:
            raise InvalidValue(f"a cohort of {len(context.cohort)}, the terms are for {expected}")
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
        """Close the phase; raises `RoundVoid` where too few have answered it."""
        try:
            messages = self._server.advance()
        except RoundVoid as void:
            self._void = void
            raise
        if messages is None or self._server.phase != TRAINS or not self._words:
            return messages
        return {client: {**message, **self._words} for client, message in messages.items()}

    def merge(self, other: Any) -> None:
        """Masks cancel within one server's sum only."""
        raise InvalidValue(
            f"{self._protection.name} has one server (server_num = 1): the masks of clients cancel "
            f"in a sum of all of them, so that servers with some of them each cannot unmask theirs"
        )

    def aggregate(self) -> Aggregate:
        """The mean of the survivors' vectors; raises `RoundVoid` if no honest sum is like that."""
        if self._void is not None:
            raise self._void
        if self._told is None:
            total, survivors = self._server.total(), len(self._server.survivors)
            self._told = self._protection.outcome(total, survivors, self._context)
        return self._told


class MaskedClientRound:
    """Makes the vector when the masked phase asks for it; `fedveil.secagg.Client` does the rest."""

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
        """The update goes into the masked phase's answer."""
        return message.get("phase") == TRAINS

    def respond(self, message: Message, update: Update | None) -> Message:
        round, answered = self._context.round, self._context.answered
        if update is None:
            if message.get("phase") == PHASES[0]:
                answered.check(round)
            return self._client.respond(message)
        told, rest = self._parted(message)
        vector = self._vector(update, told)
        origin = self._protection.origin(self._context, told)
        answer = self._client.respond(rest, vector, origin)
        answered.note(round)
        return answer

    def keep(self) -> State:
        """The keys and shares of the round."""
        return self._client.keep()

    def take_up(self, kept: State) -> None:
        self._client.take_up(kept)

    def _vector(self, update: Update, told: Message) -> Signed:
        return self._protection.vector(update, self._context, told)

    def _parted(self, message: Message) -> tuple[Message, Message]:
        """The position's own words in a message, and secure aggregation's."""
        names = self._protection.words(self._protection.initial_state())
        told = {name: value for name, value in message.items() if name in names}
        return told, {name: value for name, value in message.items() if name not in names}


class BareServerRound(OneReportRound):
    """Adds vectors that have no masks: the same sum for a fraction of the work, in simulation."""

    sums = ("_total",)

    def __init__(self, protection: SecureSum, context: RoundContext) -> None:
        super().__init__(context, protection.flow)
        self._protection = protection
        self._size = packed_size(protection.length, protection.ring.bits)
        self._total = np.zeros(protection.length, protection.ring.lane)

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
            raise MessageInvalid("field vector has bits behind its last entry")
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
    """Sends the vector without masks."""

    def __init__(self, protection: SecureSum, context: ClientContext) -> None:
        super().__init__(context)
        self._protection = protection

    def _report(self, opening: Message, update: Update) -> Message:
        ring = self._protection.ring
        vector = self._protection.vector(update, self._context, opening)
        lanes = ring.elements(vector, used_up=True)
        ring.reduce(lanes)
        return {"phase": TRAINS, "round": self._context.round, "vector": pack(lanes, 0, ring.bits)}
