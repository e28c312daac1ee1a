"""pw_encrypt: secure aggregation with pairwise masks that survives dropouts.

The server learns the weighted mean of the survivors' updates, and nothing else about any of them
(`fedveil.secagg`; what "nothing else" rests on is in docs/secure-aggregation.md). It promises
nothing about what the mean itself says.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from fedveil.entropy import Entropy, Secure, Seeded
from fedveil.errors import ClientWithheld, FedveilWarning, InvalidValue, RoundVoid
from fedveil.message import Message
from fedveil.privacy.loss import PrivacyLoss
from fedveil.protections.base import (
    Aggregate,
    ClientContext,
    ClientId,
    JobContext,
    RoundContext,
    Spending,
    State,
    Update,
)
from fedveil.secagg import masking_graph
from fedveil.secagg.client import Client
from fedveil.secagg.fixed_point import FixedPoint
from fedveil.secagg.keys import Identity
from fedveil.secagg.masking import Ring
from fedveil.secagg.server import Server
from fedveil.secagg.terms import Terms
from fedveil.settings.base import Settings


class PWEncryptSettings(Settings):
    """Parameters of `pw_encrypt`."""

    share_secrets_ratio: float = Field(
        1.0,
        gt=0,
        le=1,
        description="share of the clients of a round that share secrets and take part in it",
    )
    reconstruct_secrets_threshold: int = Field(
        34, ge=1, description="clients needed to reconstruct; below those that share secrets"
    )
    cipher_time_window: int = Field(
        300_000,
        gt=0,
        description="deadline of each phase in milliseconds; on other machines, that of every "
        "answer, whatever the protection",
    )
    neighbours: Literal["auto", "complete"] | int = Field(
        "auto", description="masking graph: complete, k neighbours each, or sparse for many clients"
    )
    active_security: bool = Field(
        False, description="add the signed consistency round against a lying server"
    )
    clip: float = Field(
        8.0, gt=0, description="largest magnitude of an update's entry; larger ones are set to it"
    )
    entry_bits: int = Field(
        20, ge=2, le=24, description="bits of an entry as a fixed-point number, its sign included"
    )
    max_examples: int = Field(
        65_535,
        ge=1,
        le=1 << 20,
        description="largest weight of a client under `server.weighting: by_size`; "
        "a client with more examples reports nothing",
    )

    def sharing_clients(self, clients: int) -> int:
        """How many of so many clients share secrets at most: ceil(ratio * clients).

        The ratio is taken as it is written, so that 0.07 of 100 clients are 7.
        """
        return math.ceil(Fraction(repr(self.share_secrets_ratio)) * clients)

    def graph_degree(self, clients: int) -> int | None:
        """How many neighbours each of so many clients has; None is the complete graph."""
        if isinstance(self.neighbours, int):
            return self.neighbours
        if self.neighbours == "complete" or self.active_security:
            return None
        return masking_graph.automatic(clients, self.reconstruct_secrets_threshold)


class PWEncrypt:
    """The aggregate is the exact weighted mean of the survivors' quantised updates.

    A client's vector: its weight (its number of examples, or 1) times the quantised update, and
    the weight itself; the ring has the fewest bits in which a whole cohort of the largest weights
    cannot wrap.

    Privacy: that of the sum alone, which is not differential privacy (epsilon is infinite).
    """

    adaptive = False

    def __init__(self, settings: PWEncryptSettings, context: JobContext) -> None:
        self.settings = settings
        self.context = context
        self.fixed = FixedPoint(settings.clip, settings.entry_bits)
        self.largest_weight = settings.max_examples if context.weighting == "by_size" else 1
        largest = self.fixed.largest * self.largest_weight
        self.ring = Ring.for_sum(context.clients_per_round, largest)
        self._identities: dict[ClientId, Identity] = {}

    def initial_state(self) -> State:
        """Nothing is carried from round to round."""
        return {}

    def spending(self, state: State) -> Sequence[Spending]:
        """The server sees the sum as it is; nobody is promised anything about the sum."""
        return [Spending(PrivacyLoss(math.inf, per="update"))]

    def server_round(self, context: RoundContext) -> PWEncryptServerRound:
        """The server's half of a round."""
        return PWEncryptServerRound(self, context)

    def client_round(self, context: ClientContext) -> PWEncryptClientRound:
        """The client's half of a round."""
        return PWEncryptClientRound(self, context)

    def terms(self, round: int) -> Terms:
        """What the clients and the server agree on before the round."""
        settings = self.settings
        sharing = settings.sharing_clients(self.context.clients_per_round)
        return Terms(
            job=self.context.job,
            round=round,
            length=self.context.dimension + 1,
            bits=self.ring.bits,
            threshold=settings.reconstruct_secrets_threshold,
            sharing=sharing,
            neighbours=settings.graph_degree(sharing),
            active_security=settings.active_security,
            roster=self._public_identity,
        )

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
        identity = self.identity(client)
        return None if identity is None else identity.public


class PWEncryptServerRound:
    """Carries the messages of `fedveil.secagg.Server` and turns its sum into a mean."""

    def __init__(self, protection: PWEncrypt, context: RoundContext) -> None:
        expected = protection.context.clients_per_round
        if len(context.cohort) > expected:
            raise InvalidValue(f"a cohort of {len(context.cohort)}, the terms are for {expected}")
        self._protection = protection
        self._server = Server(
            protection.terms(context.round),
            context.cohort,
            protection.graph_entropy(context.round),
            processes=len(os.sched_getaffinity(0)),
        )
        self._void: RoundVoid | None = None

    @property
    def deadline_s(self) -> float:
        """Seconds that an engine waits in each phase before it calls `advance`."""
        return self._protection.settings.cipher_time_window / 1000

    def opening(self) -> Message:
        """The first message, the same for every client."""
        return self._server.opening()

    def receive(self, client: ClientId, message: Message) -> None:
        """Check an answer and take it in, or raise `ReportRejected`."""
        self._server.receive(client, message)

    def advance(self) -> Mapping[ClientId, Message] | None:
        """Close the phase; raises `RoundVoid` where too few have answered it."""
        try:
            return self._server.advance()
        except RoundVoid as void:
            self._void = void
            raise

    def merge(self, other: Any) -> None:
        """Masks cancel within one server's sum only."""
        raise InvalidValue(
            "pw_encrypt has one server (server_num = 1): the masks of clients cancel in a sum of "
            "all of them, so that servers with some of them each cannot unmask theirs"
        )

    def aggregate(self) -> Aggregate:
        """The weighted mean of the survivors' quantised updates."""
        if self._void is not None:
            raise self._void
        total, survivors = self._server.total(), len(self._server.survivors)
        weight, protection = int(total[-1]), self._protection
        if not survivors <= weight <= survivors * protection.largest_weight:
            raise RoundVoid(
                "unmask",
                survivors,
                protection.settings.reconstruct_secrets_threshold,
                f"the weights of {survivors} clients cannot have the sum {weight}",
            )
        return Aggregate(protection.fixed.restore(total[:-1]) / weight, survivors)


class PWEncryptClientRound:
    """Quantises the update when the masked phase asks for it; `fedveil.secagg.Client` does the
    rest."""

    def __init__(self, protection: PWEncrypt, context: ClientContext) -> None:
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
        return message.get("phase") == "masked"

    def respond(self, message: Message, update: Update | None) -> Message:
        """The answer; raises `ClientWithheld` for a message that could get more than it should."""
        return self._client.respond(message, None if update is None else self._vector(update))

    def keep(self) -> State:
        """The keys and shares of the round."""
        return self._client.keep()

    def take_up(self, kept: State) -> None:
        """Go on with them."""
        self._client.take_up(kept)

    def _vector(self, update: Update) -> npt.NDArray[np.int64]:
        """The client's weight times its quantised update, and the weight."""
        protection, weight = self._protection, 1
        if protection.context.weighting == "by_size":
            weight = self._context.examples
        if weight > protection.largest_weight:
            raise ClientWithheld(
                f"the client has more than protection.pw_encrypt.max_examples = "
                f"{protection.largest_weight} examples"
            )
        if protection.fixed.clips(update):
            warnings.warn(
                f"entries lie beyond protection.pw_encrypt.clip = "
                f"{protection.fixed.clip:g} and are clipped to it",
                FedveilWarning,
                stacklevel=2,
            )
        entropy = self._context.entropy.stream("rounding")
        numbers = protection.fixed.quantise(update, entropy)
        return np.append(numbers * weight, weight)


def build(settings: PWEncryptSettings, context: JobContext) -> PWEncrypt:
    """The protection that a job asks for."""
    return PWEncrypt(settings, context)
