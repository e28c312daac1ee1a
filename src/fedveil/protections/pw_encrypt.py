"""pw_encrypt: secure aggregation with pairwise masks that survives dropouts.

A server that follows the protocol learns the weighted mean of the survivors' updates, and nothing
else about any of them (`fedveil.secagg`); with `active_security` so does one that lies, under the
conditions in docs/secure-aggregation.md. Nothing is promised about what the mean itself says,
unless the server adds noise to it: then everybody else is promised what `CentralNoise` states.
"""

from __future__ import annotations

import hashlib
import math
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedveil.entropy import Entropy, Secure, Seeded
from fedveil.errors import ClientWithheld, FedveilWarning, InvalidValue, RoundVoid
from fedveil.mechanisms.central_noise import CentralNoise
from fedveil.message import Message
from fedveil.privacy.audit import Case
from fedveil.privacy.loss import PrivacyLoss
from fedveil.protections.base import (
    Aggregate,
    ClientContext,
    Dialect,
    JobContext,
    Protection,
    RoundContext,
    Spending,
    State,
    Update,
)
from fedveil.protections.pw_settings import (
    PWEncryptSettings,
    central_fits,
    central_trusts,
    graph_fits,
    shareable,
    threshold_reachable,
    threshold_safe,
)
from fedveil.protections.reading import Reading
from fedveil.rounds.answers import ClientId
from fedveil.secagg.client import Client
from fedveil.secagg.fixed_point import FixedPoint
from fedveil.secagg.keys import Identity
from fedveil.secagg.masking import Ring
from fedveil.secagg.phases import PHASES, TRAINS
from fedveil.secagg.server import Server
from fedveil.secagg.terms import Terms


class PWEncrypt(Protection):
    """The aggregate is the exact weighted mean of the survivors' quantised updates.

    A client's vector: its weight (its number of examples, or 1) times the quantised update, and
    the weight itself; the ring has the fewest bits in which a whole cohort of the largest weights
    cannot wrap.

    Privacy: that of the sum alone, which is not differential privacy (epsilon is infinite). Two
    sums of one round that differ by a client say its update: a client's update leaves it once a
    round, whoever begins the round again. With `central_eps` clients clip their updates to a norm
    and count equally, and the server adds noise to the sum before anybody reads it:
    (central_eps, central_delta) for a client's whole update in one round, replace-one, against
    whoever sees what comes of the mean. It holds while the server does what it says and every
    client clips; no sampling of clients is counted in its favour.
    """

    name = block = "pw_encrypt"
    settings_type = PWEncryptSettings
    settings: PWEncryptSettings
    perturbs = False
    cost_parameter = "central_eps"
    phases = PHASES
    trains = TRAINS
    rules = (shareable, threshold_reachable, graph_fits, central_fits)
    advice = (threshold_safe, central_trusts)
    dialect = Dialect(
        aliases={"share_client_ratio": "share_secrets_ratio"},
        one_server="one server holds the sum of masks",
        demanded=("reconstruct_secrets_threshold",),
        uploads_as_they_are=True,
        refused={
            "STABLE_PW_ENCRYPT": "keeps one set of pairwise keys for all rounds and is not "
            "supported"
        },
    )

    def __init__(self, settings: PWEncryptSettings, context: JobContext) -> None:
        super().__init__(settings, context)
        self.fixed = FixedPoint(settings.clip, settings.entry_bits)
        self.largest_weight = settings.max_examples if context.weighting == "by_size" else 1
        largest = self.fixed.largest * self.largest_weight
        central = self.central = settings.central_noise(self.fixed.step, context.dimension)
        if self.central is not None and context.weighting != "equal":
            raise InvalidValue("central_eps needs clients that count equally: weighting = equal")
        beyond, self.norm_clip = (0, math.inf) if central is None else (central.reach, central.clip)
        self.ring = Ring.for_sum(context.clients_per_round, largest, beyond)
        self._identities: dict[ClientId, Identity] = {}
        #: The last model that was digested, in which round, and its digest.
        self._digested: tuple[int, Update, bytes] | None = None

    @property
    def flow(self) -> tuple[str, ...]:
        """The consistency phase is there under active security alone."""
        signing = self.settings.active_security
        return tuple(phase for phase in PHASES if signing or phase != "consistency")

    @property
    def deadline_s(self) -> float:
        """The parameter of that name, in milliseconds there."""
        return self.settings.cipher_time_window / 1000

    @property
    def least_clients(self) -> int:
        """With fewer no secret is reconstructed."""
        return self.settings.reconstruct_secrets_threshold

    @classmethod
    def rests_on_server(cls, settings: PWEncryptSettings) -> bool:
        """Central noise is the server's."""
        return settings.central_eps is not None

    @classmethod
    def needs_roster(cls, settings: PWEncryptSettings) -> bool:
        """Active security rests on signatures."""
        return settings.active_security

    @classmethod
    def unfit_for_apps(cls, settings: PWEncryptSettings) -> str | None:
        """What a deployed job has and an app has not, and a sum that is nobody's secret."""
        if settings.active_security:
            return (
                "active_security = True needs a roster of the clients' keys, which an app that is "
                "protected in two lines has not; a deployed job can have one, here it is False"
            )
        if settings.reconstruct_secrets_threshold < 2:
            return (
                "reconstruct_secrets_threshold = 1 is outside [2, inf): the sum of one client is "
                "no secret"
            )
        return None

    @classmethod
    def weaker(
        cls,
        asked: PWEncryptSettings,
        demanded: PWEncryptSettings,
        clients: int,
        expected: int | None = None,
    ) -> str | None:
        """At least as many clients reconstruct a secret, of as few, with as many neighbours.

        The share of a neighbourhood that reconstructs is at least the one demanded, and more than
        half where no number of clients was expected.
        """
        threshold, least = (s.reconstruct_secrets_threshold for s in (asked, demanded))
        if threshold < least:
            return f"{threshold} clients reconstruct a secret, at least {least} are demanded"
        there = asked.neighbourhood(clients)
        if expected is None:
            if 2 * threshold <= there:
                return (
                    f"{threshold} of {there} clients reconstruct a secret, more than half are "
                    f"demanded where `clients` does not say of how many {least} are"
                )
        elif threshold * demanded.neighbourhood(expected) < least * there:
            return (
                f"{threshold} of {there} clients reconstruct a secret, {least} of "
                f"{demanded.neighbourhood(expected)} are demanded"
            )
        degrees = [s.graph_degree(s.sharing_clients(clients)) for s in (asked, demanded)]
        among, wanted = (clients - 1 if degree is None else degree for degree in degrees)
        if among < min(wanted, clients - 1):
            return f"a client has {among} neighbours, at least {wanted} are demanded"
        return None

    def spending(self, state: State) -> Sequence[Spending]:
        """Nobody is promised anything about the sum as it is; about one with noise, all others."""
        bare = PrivacyLoss(math.inf, per="update")
        return [Spending(bare if self.central is None else self.central.loss)]

    @staticmethod
    def audit_cases(eps: float) -> Iterator[Case]:
        """Central noise on a sum in which one update of the clipping norm is tried."""
        central = CentralNoise(eps, 1e-3, clip=1.0, step=2.0**-16, dimension=2)
        update = np.array([1.0, 0.0])
        yield Case("central noise, an update", central.noised, update, -update, central.loss)

    def server_round(self, context: RoundContext) -> PWEncryptServerRound:
        return PWEncryptServerRound(self, context)

    def client_round(self, context: ClientContext) -> PWEncryptClientRound:
        return PWEncryptClientRound(self, context)

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
            length=self.context.dimension + 1,
            bits=self.ring.bits,
            threshold=settings.reconstruct_secrets_threshold,
            sharing=sharing,
            neighbours=settings.graph_degree(sharing),
            active_security=settings.active_security,
            roster=self._public_identity,
        )

    def origin(self, context: RoundContext | ClientContext) -> bytes:
        """The digest of what updates are made from: once a round for all that have one model."""
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

    def noise_entropy(self, round: int) -> Entropy:
        """What the server draws central noise from."""
        known = self.context.seeded
        return Seeded(self.context.seed, "central noise", round) if known else Secure()

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


class PWEncryptServerRound:
    """Carries the messages of `fedveil.secagg.Server` and turns its sum into a mean."""

    mergeable = False

    def __init__(self, protection: PWEncrypt, context: RoundContext) -> None:
        expected = protection.context.clients_per_round
        if len(context.cohort) > expected:
            raise InvalidValue(f"a cohort of {len(context.cohort)}, the terms are for {expected}")
        self._protection = protection
        self._server = Server(
            protection.terms(context.round),
            context.cohort,
            protection.graph_entropy(context.round),
            origin=protection.origin(context),
            processes=len(os.sched_getaffinity(0)),
        )
        self._round = context.round
        self._void: RoundVoid | None = None

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
        """The weighted mean of the survivors' quantised updates, noised where that is asked.

        Raises `RoundVoid` where no honest clients can have the sum: nobody sees whose part is
        wrong, but what becomes of it stays within the clip.
        """
        if self._void is not None:
            raise self._void
        total, survivors = self._server.total(), len(self._server.survivors)
        weight, protection = int(total[-1]), self._protection
        if not survivors <= weight <= survivors * protection.largest_weight:
            raise self._impossible(
                f"the weights of {survivors} clients cannot have the sum {weight}"
            )
        numbers, most = total[:-1], protection.fixed.largest * weight
        if protection.central is not None:
            numbers = np.clip(self._noised(numbers, protection.central), -most, most)
        elif max(int(numbers.max()), -int(numbers.min())) > most:
            raise self._impossible(
                f"an entry of the sum of {survivors} clients is beyond their clip"
            )
        return Aggregate(protection.fixed.restore(numbers) / weight, survivors)

    def _noised(self, total: npt.NDArray[np.int64], central: CentralNoise) -> npt.NDArray[np.int64]:
        """The sum as others may see it: nothing is said of it, a refusal included, before.

        The ring's edge, where a lying client may have put the sum, is as noisy as all else.
        """
        numbers, ring = total.copy(), self._protection.ring
        central.add_to(numbers, self._protection.noise_entropy(self._round))
        return ring.signed(ring.elements(numbers))

    def _impossible(self, reason: str) -> RoundVoid:
        """What ends a round whose sum no honest clients can have."""
        needed = self._protection.settings.reconstruct_secrets_threshold
        return RoundVoid("unmask", len(self._server.survivors), needed, reason)


class PWEncryptClientRound:
    """Quantises the update for the masked phase; `fedveil.secagg.Client` does the rest."""

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
        return message.get("phase") == TRAINS

    def respond(self, message: Message, update: Update | None) -> Message:
        round, answered = self._context.round, self._context.answered
        if update is None:
            if message.get("phase") == PHASES[0]:
                answered.check(round)
            return self._client.respond(message)
        origin = self._protection.origin(self._context)
        answer = self._client.respond(message, self._vector(update), origin)
        answered.note(round)
        return answer

    def keep(self) -> State:
        """The keys and shares of the round."""
        return self._client.keep()

    def take_up(self, kept: State) -> None:
        self._client.take_up(kept)

    def _vector(self, update: Update) -> npt.NDArray[np.int64]:
        """The client's weight times its quantised update, and the weight."""
        protection, weight = self._protection, 1
        if protection.central is not None:
            return np.append(protection.central.clipped(update), weight)
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
