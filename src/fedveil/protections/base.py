"""The contract between a protection and the engine that drives it.

A protection sends nothing: an engine carries messages between two state machines.

    engine                                   server half              client half
    message = server.opening()               the same for all
    report = client.respond(message, update)                          trains, protects
    server.receive(client, report)           folds, or raises
    messages = server.advance()              None: complete; else the next phase's, one a client
    server.aggregate()                       the update
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from fedveil.base.message import Message, take
from fedveil.entropy import Entropy, Secure, Seeded
from fedveil.errors import InvalidValue
from fedveil.privacy.audit import Case
from fedveil.privacy.compose import plain_sum
from fedveil.privacy.loss import PrivacyLoss
from fedveil.protections.advice import Rule, Stronger
from fedveil.protections.audited import Audited
from fedveil.protections.cost_key import CostKey
from fedveil.protections.last_answered import Answered
from fedveil.protections.mindspore_names import Dialect
from fedveil.protections.reading import Reading
from fedveil.protections.robust_sum import Combination, Combining
from fedveil.rounds.loop import ServerHalf
from fedveil.rounds.outcomes import ClientId
from fedveil.secagg.secret import Secret
from fedveil.settings.settings import Settings

#: A client's new weights minus the old, flat, in the order of the model's layout.
Update: TypeAlias = npt.NDArray[np.float32]
#: What a protection carries from one round to the next; a checkpoint stores it as a message.
State: TypeAlias = Message
Weighting: TypeAlias = Literal["by_size", "equal"]
#: Whose data a loss is stated for: all that a client has, or one of its examples.
Whose: TypeAlias = Literal["client", "example"]
#: What a ledger says of weights: no epsilon covers them.
BY_SIZE = "how many examples clients have, each or in sum (weighting = by_size)"
#: And so does this, where a client answers as soon as it is ready.
TIMING = "how long a client takes to answer (answer_after_s is not set)"


@dataclass(frozen=True)
class Spending:
    """One loss, and how many times a single report spends it."""

    loss: PrivacyLoss
    count: int = 1


@dataclass(frozen=True)
class JobContext:
    """What a protection may know of the job that it is made for.

    `job`: a digest of the whole job, the same for all that take part. In simulation (`simulated`)
    keys that outlive a round come from `seed`; elsewhere `roster` has every client's public key,
    and `identity` is this client's own private one. `seeded`: whether the noise of a server comes
    from `seed` too, as the job's reports then do. `delta`: what the run's epsilon is stated at.
    `masks`: whether secure aggregation masks; without, a simulation adds the numbers bare.
    `unit`: whose data is protected. Of one example's: what it adds to an update is no longer than
    the protection's `norm_clip`, and it is in a round with the probability `sampling_rate`.
    `combining`: of reports. `poisson`: cohorts are secret, `clients_per_round` what is expected, or
    all where there is a `turn_rate`.
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
    combining: Combining = field(default_factory=Combining)


@dataclass(frozen=True)
class RoundContext:
    """What the server half knows when a round opens; `model` is the global weights, read-only.

    `origin`: a digest of what clients train from, where that is more than `model`.
    """

    cohort: Sequence[ClientId]
    round: int
    model: Update
    state: State = field(default_factory=dict)
    origin: bytes = b""


@dataclass(frozen=True)
class ClientContext:
    """What the client half knows; `model` is the global weights, `examples` the client's own.

    `origin` is as the server half has it, by what this client was given.
    """

    client: ClientId
    round: int
    model: Update
    examples: int
    entropy: Entropy
    answered: Answered = field(default_factory=Answered)
    origin: bytes = b""


@dataclass(frozen=True)
class Aggregate:
    """The averaged update, how many reports are in it, the next state; for an audit, the sum."""

    update: npt.NDArray[np.float64]
    reports: int
    state: State = field(default_factory=dict)
    released: npt.NDArray[np.int64] | None = None


class ServerRound(ServerHalf, Protocol):
    """The server's half of one round."""

    def opening(self) -> Message:
        """The first message, the same for every invited client."""

    def merge(self, other: Any) -> None:
        """Add the running sums of another server's half of the same round, of other clients."""

    def aggregate(self) -> Aggregate:
        """The result; raises `RoundVoid` where there is none."""


class ClientRound(Protocol):
    """The client's half of one round."""

    def wants_update(self, message: Message) -> bool:
        """Whether the answer to `message` needs the update: the engine trains just before it."""

    def respond(self, message: Message, update: Update | None) -> Message:
        """The answer to `message`; raises `ClientWithheld` where there is none.

        An engine asks for the answer that depends on the update through `answer_trained`.
        """

    def keep(self) -> State:
        """All that another half of this client and round needs to answer the next message.

        For an engine in which every message meets a new process. Secret, and to be taken up
        once; empty where no further message is answered.
        """

    def take_up(self, kept: State) -> None:
        """Go on from what an earlier half has kept."""


#: The phase of a protection in which clients send a single report.
REPORT = "report"


class Protection(Audited):
    """A switch position, made once from the job: what it does, and all that it says of itself.

    `protection: package.module:Name` in a job puts a class of one's own in the switch, derived
    from this one (docs/own-protection.md).
    """

    #: The word for it in a job; a position of one's own is named by its place.
    name: ClassVar[str] = ""
    #: The block of a job that holds its parameters, None where it has none; and their type.
    block: ClassVar[str | None] = "own"
    settings_type: ClassVar[type[Settings]] = Settings
    #: Whether a report is perturbed: clients then count equally, since neither the guarantee nor
    #: BatchNorm's statistics survive weights and noise.
    perturbs: ClassVar[bool] = True
    #: The phases of a round in their order, and the one whose answer depends on the update.
    phases: ClassVar[tuple[str, ...]] = (REPORT,)
    trains: ClassVar[str] = REPORT
    #: The parameter that decides what a report costs (`cost_key`); None where none does.
    cost_parameter: ClassVar[str | CostKey | None] = None
    #: What must hold between its parameters and other keys, and what is only advised.
    rules: ClassVar[tuple[Rule, ...]] = ()
    advice: ClassVar[tuple[Rule, ...]] = ()
    dialect: ClassVar[Dialect] = Dialect(theirs=False)
    #: The longest update (L2 norm) that it tells of as it is; infinite where it shortens none.
    #: Under `privacy.unit: example`, the most that training lets one example move the update by.
    norm_clip: float = math.inf
    #: Whether secret cohorts (`JobContext.poisson`) amplify its loss: what comes of a round is then
    #: a noised sum over a constant, whoever is in it, and if nobody is.
    amplified: ClassVar[bool] = False
    #: Whether secret cohorts are the clients' own: all answer, most with their noise alone.
    secret_turns: ClassVar[bool] = False
    #: How its server may combine reports; whether they may hold control variates beside updates.
    combinations: ClassVar[tuple[Combination, ...]] = ("mean",)
    takes_variates: ClassVar[bool] = False
    #: Whether somebody's own Flower app may have it.
    for_apps: ClassVar[bool] = True
    #: The key that turns its noise on; None if it always or never has noise.
    noise_key: ClassVar[str | None] = None
    #: What to try next if a run with it guarantees nothing.
    stronger: ClassVar[Stronger] = Stronger(
        "dp_encrypt", "choose a protection", "with noise in every report"
    )

    def __init__(self, settings: Any, context: JobContext) -> None:
        self.settings = settings
        self.context = context

    @property
    def dimension(self) -> int:
        """How many entries an update has."""
        return self.context.dimension

    @property
    def adaptive(self) -> bool:
        """Whether what a round costs depends on the outcome of earlier ones.

        The ledger then adds pure losses, which stays valid, instead of composing distributions
        fixed in advance.
        """
        return self.adapts(self.settings)

    @cached_property
    def always_reports(self) -> bool:
        """Whether a client that is asked sends a report, whatever its update was.

        It does if reports are perturbed or cost a finite epsilon, which covers no missing report.
        """
        return self.perturbs or self.most_of_a_report()[0] < math.inf

    @property
    def flow(self) -> tuple[str, ...]:
        """Those of the phases that occur."""
        return self.phases

    @property
    def deadline_s(self) -> float | None:
        """Seconds that a server waits in each phase. None: as long as its engine does."""
        window = self.window(self.settings)
        return None if window is None else window[1]

    @property
    def least_clients(self) -> int:
        """How many clients a round needs that is not to be void."""
        return 1

    @classmethod
    def window(cls, settings: Any) -> tuple[str, float] | None:
        """Return the key and the seconds of its own deadline for each phase, or None."""
        return None

    @classmethod
    def adapts(cls, settings: Any) -> bool:
        """Whether a protection with these parameters is adaptive."""
        return False

    @classmethod
    def for_rounds(cls, settings: Any) -> str | None:
        """The parameter by which the noise of a round follows from how many rounds a run has."""
        return None

    @classmethod
    def cost_key(cls, settings: Any) -> CostKey | None:
        """What `fedveil budget --target-epsilon` solves for; of a name alone, the less the less."""
        named = cls.cost_parameter
        return CostKey(named) if isinstance(named, str) else named

    @classmethod
    def units(cls, settings: Any) -> Sequence[Whose]:
        """Whose data it can state its losses for with these parameters."""
        return ("client",)

    @classmethod
    def rests_on_server(cls, settings: Any) -> bool:
        """Whether its loss rests on noise that the server adds, and so on the server's word."""
        return False

    @classmethod
    def noised(cls, settings: Any) -> bool:
        """Whether there is noise in its aggregate, whoever adds it: clients then count equally."""
        return cls.perturbs or cls.rests_on_server(settings)

    @classmethod
    def needs_roster(cls, settings: Any) -> bool:
        """Whether clients sign what they say, so that all must know each other's keys."""
        return False

    @classmethod
    def unfit_for_apps(cls, settings: Any) -> str | None:
        """Why somebody's own Flower app cannot have it with these parameters, where it cannot."""
        return None

    @classmethod
    def weaker(
        cls, asked: Any, demanded: Any, clients: int, expected: int | None = None
    ) -> str | None:
        """Why `asked` protects less than `demanded`, beyond what the losses of a report say.

        A client compares what a server offers to so many `clients` with what it insists on, which
        it may have said for a number that it expected.
        """
        return None

    @staticmethod
    def audit_cases(eps: float) -> Iterable[Case]:
        """The mechanisms that it rests on, with losses of about `eps`, to be refuted."""
        return ()

    def most_of_a_report(self) -> tuple[float, float]:
        """Bounds on epsilon and delta of any one report of a run, plainly added."""
        spent = self.spending(self.initial_state())
        epsilon = plain_sum((spending.loss.epsilon, spending.count) for spending in spent)
        return epsilon, plain_sum((spending.loss.delta, spending.count) for spending in spent)

    def initial_state(self) -> State:
        """The state before the first round; nothing, where none is carried from round to round."""
        return {}

    def check_state(self, state: State) -> None:
        """Raise a `ValueError` where no round can leave such a state; a checkpoint may hold any.

        By default the initial state's fields must be there, of their types.
        """
        for name, value in self.initial_state().items():
            take(state, name, type(value))
        self.spending(state)

    def shown(self, state: State) -> Mapping[str, float]:
        """What the record of a round with this state says of it, by names of the position's."""
        return {}

    def cut_off(self, state: State, cost: Sequence[tuple[PrivacyLoss, int]]) -> State:
        """`state`, when a round with reports of these losses was begun and has no aggregate."""
        return state

    @abstractmethod
    def spending(self, state: State) -> Sequence[Spending]:
        """What each report of a round that opens with `state` costs its client."""

    def spent(self, state: State, reports: int) -> Sequence[Spending]:
        """What each report cost of a round that opened with `state` and summed so many of them.

        Never more than `spending`, which is known before.
        """
        return self.spending(state)

    def longest_report(self) -> int:
        """How many bytes the answer that depends on the update has at most."""
        model = np.broadcast_to(np.float32(0), (self.dimension,))
        cohort = range(self.context.clients_per_round)
        context = RoundContext(cohort, 1, model, self.initial_state())
        return self.server_round(context).longest

    @abstractmethod
    def server_round(self, context: RoundContext) -> ServerRound:
        """The server's half of a round."""

    @abstractmethod
    def client_round(self, context: ClientContext) -> ClientRound:
        """The client's half of a round."""

    def noise_entropy(self, round: int) -> Entropy:
        """What a server draws central noise from."""
        known = self.context.seeded
        return Seeded(self.context.seed, "central noise", round) if known else Secure()

    def reading(self, context: RoundContext, report: Message) -> Reading:
        """What the best of adversaries makes of one report, which it knows to be a client's own.

        By default what the server half would make of it were it the round's only one, every entry
        worth the same, and no likelihood: enough for a protection with a single phase.
        """
        if len(self.flow) > 1:
            raise InvalidValue(
                f"protection.name = {self.name or type(self).__name__} has several phases: its "
                f"class must say in `reading` what one of its reports tells"
            )
        (client,) = context.cohort[:1]
        server = self.server_round(replace(context, cohort=[client]))
        server.receive(client, report)
        server.advance()
        estimate = server.aggregate().update
        return Reading(estimate, np.ones_like(estimate))
