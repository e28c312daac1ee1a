"""The interface between a protection and the engine that drives it.

A protection sends nothing itself. It consists of two state machines, and an engine (the simulator,
or a Flower app) carries messages between them.

    call by the engine                         result
    message = server.opening()                 the first message, equal for all clients
    report = client.respond(message, update)   the client's protected update
    server.receive(client, report)             adds the report to the sums, or raises an error
    messages = server.advance()                the next phase's messages, one for each client, or
                                               None if all phases are complete
    server.aggregate()                         the round's result
"""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, ClassVar, Literal, Protocol, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from fedveil.base.message import Message, take
from fedveil.entropy import Entropy, Secure, Seeded
from fedveil.errors import InvalidValue
from fedveil.privacy.compose import plain_sum
from fedveil.privacy.loss import PrivacyLoss
from fedveil.protections.description import Description, Whose
from fedveil.protections.last_answered import Answered
from fedveil.protections.origin import Origin, model_alone, origin_of
from fedveil.protections.reading import Reading
from fedveil.protections.robust_combining import CombiningRule
from fedveil.rounds.loop import ServerHalf
from fedveil.rounds.outcomes import ClientId
from fedveil.secagg.secret import Secret
from fedveil.settings.settings import Settings as Settings  # for classes of your own

#: A client's new weights minus the old, flat, in the order of the model's layout.
Update: TypeAlias = npt.NDArray[np.float32]
#: The state that a protection carries from one round to the next; a checkpoint stores it as a
#: message.
State: TypeAlias = Message
Weighting: TypeAlias = Literal["by_size", "equal"]
#: The ledger's sentence about weights: no epsilon covers them.
BY_SIZE = "the clients' numbers of examples, each or in total (weighting = by_size)"
#: The ledger's sentence about answer times, if a client answers as soon as it is ready.
TIMING = "the time that a client takes to answer (answer_after_s is not set)"


@dataclass(frozen=True)
class Spending:
    """A privacy loss, and the number of releases with this loss in one report."""

    loss: PrivacyLoss
    count: int = 1


@dataclass(frozen=True)
class JobContext:
    """The part of a job that a protection needs.

    - `weighting` says how the server weights clients. `dimension` is the length of an update.
    - `job` is a digest of the whole job, equal for all participants.
    - `simulated` is True in a simulation. Keys that are used in more than one round are then
      derived from `seed`. In a deployment, `roster` has every client's public key, and `identity`
      is this client's own private key.
    - `seeded` is True if reports and the server's noise are derived from `seed`.
    - `delta` is the delta at which the run's epsilon is stated.
    - `masks` is True if secure aggregation masks the vectors. Only a simulation may omit the masks.
    - `unit` is the protected unit. With "example", one example changes an update by at most the
      protection's `norm_clip`, and is in a round with probability `sampling_rate`.
    - `apart` is an upper bound on the L2 distance between any two updates that a client can make,
      rounding included. It is below twice the norm clip, so less noise is needed. The code that
      makes the updates must guarantee it. None means that there is no such bound.
    - `combining` says how the server combines reports, for example by their mean.
    - `poisson` is True if cohorts are secret. `clients_per_round` is then their expected size.
    - `turn_rate` is the probability that a client's report contains its update. If it is below 1,
      every client decides this in secret, and sends a report in every round, with zeros in place of
      an update that it leaves out. `clients_per_round` then counts all clients.
    """

    weighting: Weighting
    dimension: int
    clients_per_round: int
    rounds: int
    simulated: bool = True
    job: bytes = b""
    seed: int = 0
    seeded: bool = False
    delta: float = 1e-5
    poisson: bool = False
    roster: Mapping[ClientId, bytes] = field(default_factory=dict)
    identity: Secret | None = None
    masks: bool = True
    unit: Whose = "client"
    sampling_rate: float = 1.0
    turn_rate: float = 1.0
    apart: float | None = None
    combining: CombiningRule = field(default_factory=CombiningRule)


@dataclass(frozen=True)
class RoundContext:
    """The data about a round that the server's half of a protection needs.

    `model` has the entries that an update changes, read-only: the global weights and, under
    SCAFFOLD, the mean control variate. `whole` is the vector that the server sends for training.
    If it sends only `model`, `whole` is None. `told` has further fields that it sends to all
    clients for training, and `origin` returns the digest of both (`origin_of`). `summed[i]` is the
    last round in which client i's report was in the sum, or 0 if there is none. The array is empty
    if clients keep no state.
    """

    cohort: Sequence[ClientId]
    round: int
    model: Update
    state: State = field(default_factory=dict)
    origin: Origin = model_alone
    summed: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    whole: Update | None = None
    told: Message = field(default_factory=dict)

    @classmethod
    def of_sent(
        cls,
        sent: Update,
        dimension: int,
        cohort: Sequence[ClientId],
        round: int,
        state: State,
        summed: npt.NDArray[np.int64],
        told: Message,
    ) -> RoundContext:
        """Return the context of a round in which the server sends `sent` and `told` for training.

        An update changes the first `dimension` entries of `sent`, which become the context's
        `model`. Further entries, such as FedCM's last aggregate, are only for training. `cohort`
        has the round's clients, and `state` is the protection's state. `summed` and `told` are
        as in `RoundContext`.
        """
        origin = partial(origin_of, sent, dimension, told)
        whole = None if len(sent) == dimension else sent
        return cls(cohort, round, sent[:dimension], state, origin, summed, whole, told)

    @property
    def sent(self) -> Update:
        """The vector that the server sends to clients that train."""
        return self.model if self.whole is None else self.whole


@dataclass(frozen=True)
class ClientContext:
    """The data about a round that a client's half of a protection needs.

    `model` is the client's copy of `RoundContext.model`, and `examples` is its number of examples.
    `origin` returns the digest of what this client received for training (`origin_of`). `answered`
    remembers the last round that the client answered.
    """

    client: ClientId
    round: int
    model: Update
    examples: int
    entropy: Entropy
    answered: Answered = field(default_factory=Answered)
    origin: Origin = model_alone


@dataclass(frozen=True)
class Aggregate:
    """The result of a round.

    `update` is the combined update of `reports` clients, and `state` the protection's state for the
    next round. `released` is the sum before it was decoded to the update, or None if no audit needs
    it. `divisor` is the number by which the sum was divided. None means that it was divided by
    `reports`.
    """

    update: npt.NDArray[np.float64]
    reports: int
    state: State = field(default_factory=dict)
    released: npt.NDArray[np.int64] | None = None
    divisor: int | None = None


class ServerRound(ServerHalf, Protocol):
    """The server's half of a protection in one round: sends messages and adds up the answers."""

    def opening(self) -> Message:
        """Return the first message, which is equal for every invited client."""

    def merge(self, other: Any) -> None:
        """Add the sums of `other`, which received the reports of other clients in this round."""

    def aggregate(self) -> Aggregate:
        """Return the result of the round. Raises `RoundVoid` if it has none."""


class ClientRound(Protocol):
    """The client's half of a protection in one round: it answers the server's messages."""

    def wants_update(self, message: Message) -> bool:
        """Return True if the client must train before it can answer `message`."""

    def respond(self, message: Message, update: Update | None) -> Message:
        """Return the answer to `message`. Raises `ClientWithheld` if the client refuses to answer.

        `update` is the client's update, or None if `wants_update` is False. An engine that has an
        update must call `answer_trained` instead, which replaces an unusable update by zeros and
        then calls this method.
        """

    def keep(self) -> State:
        """Return the state from which a new `ClientRound` of this client can continue the round.

        The state is secret and must be restored only once. It is empty if the client will answer no
        further message in this round.
        """

    def take_up(self, kept: State) -> None:
        """Restore `kept`, the state that `keep` returned for this client and round."""


#: The phase of a protection in which clients send a single report.
REPORT = "report"


class Protection(Description):
    """Base class of protections. An instance protects the updates of one job.

    It states the privacy losses of reports. For each round, it makes one `ServerRound`, and a
    `ClientRound` for each client. A user's own protection is a subclass, which a job names as
    `protection: package.module:Name` (docs/own-protection.md).
    """

    #: The phases of a round in order. Clients train in the phase `trains`, whose answers depend on
    #: their updates.
    phases: ClassVar[tuple[str, ...]] = (REPORT,)
    trains: ClassVar[str] = REPORT
    #: Longer updates are shortened to this L2 norm. Infinity if updates are not shortened. Under
    #: `privacy.unit: example`, the L2 norm by which one example can change the update in training.
    norm_clip: float = math.inf

    def __init__(self, settings: Any, context: JobContext) -> None:
        self.settings = settings
        self.context = context

    @property
    def dimension(self) -> int:
        """The number of entries of an update."""
        return self.context.dimension

    @property
    def adaptive(self) -> bool:
        """True if the cost of a round depends on the outcome of earlier rounds."""
        return self.adapts(self.settings)

    @cached_property
    def always_reports(self) -> bool:
        """True if a client sends a report whatever its update is.

        This is the case if reports are perturbed or have a finite epsilon.
        """
        return self.perturbs or self.most_of_a_report()[0] < math.inf

    @property
    def flow(self) -> tuple[str, ...]:
        """The phases of a round under these settings, in order."""
        return self.phases

    @property
    def deadline_s(self) -> float | None:
        """The seconds that a server waits in each phase, or None to use the engine's own limit."""
        window = self.window(self.settings)
        return None if window is None else window[1]

    @property
    def least_clients(self) -> int:
        """The smallest number of clients with which a round can have an aggregate."""
        return 1

    def most_of_a_report(self) -> tuple[float, float]:
        """Return upper bounds on the epsilon and on the delta of any single report of a run."""
        spent = self.spending(self.initial_state())
        epsilon = plain_sum((spending.loss.epsilon, spending.count) for spending in spent)
        return epsilon, plain_sum((spending.loss.delta, spending.count) for spending in spent)

    def initial_state(self) -> State:
        """Return the protection's state before the first round. Empty if it keeps no state."""
        return {}

    def check_state(self, state: State) -> None:
        """Raise `ValueError` unless the untrusted `state` can be the state after a round.

        By default, the state must have the fields of the initial state, with equal types.
        """
        for name, value in self.initial_state().items():
            take(state, name, type(value))
        self.spending(state)

    def shown(self, state: State) -> Mapping[str, float]:
        """Return the numbers in `state` to save in the round's record, by name, such as the clip.

        If the record already has a number of the same name, such as a metric, the run stops with an
        error.
        """
        return {}

    def cut_off(self, state: State, cost: Sequence[tuple[PrivacyLoss, int]]) -> State:
        """Return the next state after a round that was interrupted and has no aggregate.

        `state` is the state at the round's start. `cost` has the privacy losses of a client that
        reported, each with its number of releases.
        """
        return state

    @abstractmethod
    def spending(self, state: State) -> Sequence[Spending]:
        """Return the privacy losses of one report, if a round starts with `state`."""

    def spent(self, state: State, reports: int) -> Sequence[Spending]:
        """Return the privacy losses of one report in a finished round.

        `reports` is the number of reports in the round's sum. The losses are never larger than
        those of `spending(state)`.
        """
        return self.spending(state)

    def paid(self, state: State, reports: int | None, *, limited: bool) -> Sequence[Spending]:
        """Return the privacy losses to record for one report in a finished round.

        `reports` is the number of reports in the sum, or None if the round is void. `limited` is
        True if a limit on the privacy cost may end the run. The losses are `spent(state, reports)`,
        but `spending(state)` if the round is void or `limited` is True. Under a limit, each client
        computes by itself if it may report again, and it does not know `reports`.
        """
        return self.spending(state) if reports is None or limited else self.spent(state, reports)

    def longest_report(self) -> int:
        """Return the largest number of bytes of an answer that contains a client's update."""
        model = np.broadcast_to(np.float32(0), (self.dimension,))
        cohort = range(self.context.clients_per_round)
        context = RoundContext(cohort, 1, model, self.initial_state())
        return self.server_round(context).longest

    def carried(self, update: Update, told: Message) -> Update:
        """Return `update` as a report would contain it without noise, for example clipped.

        `told` is the server's request for the report. By default, `update` is not changed.
        """
        return update

    @abstractmethod
    def server_round(self, context: RoundContext) -> ServerRound:
        """Return the object that acts for the server in the round that `context` describes."""

    @abstractmethod
    def client_round(self, context: ClientContext) -> ClientRound:
        """Return the object that acts for a client in the round that `context` describes."""

    def noise_entropy(self, round: int) -> Entropy:
        """Return the source of a round's server noise: seeded if `context.seeded`, else secure."""
        known = self.context.seeded
        return Seeded(self.context.seed, "central noise", round) if known else Secure()

    def reseeded(self, seed: int) -> Self:
        """Return a copy with the job seed `seed`. It sets the server noise of a seeded job."""
        made = copy.copy(self)
        made.context = replace(self.context, seed=seed)
        return made

    def reading(self, context: RoundContext, report: Message) -> Reading:
        """Return the best estimate of a client's update that an attacker can make from `report`.

        The client is the first in the cohort of `context`. By default, the estimate is the
        aggregate of a round with only this report, and the result has no `log_likelihood`.
        """
        if len(self.flow) > 1:
            raise InvalidValue(
                f"protection.name = {self.name or type(self).__name__} has several phases: its "
                "class must define `reading` for one of its reports"
            )
        (client,) = context.cohort[:1]
        server = self.server_round(replace(context, cohort=[client]))
        server.receive(client, report)
        server.advance()
        estimate = server.aggregate().update
        return Reading(estimate, np.ones_like(estimate))
