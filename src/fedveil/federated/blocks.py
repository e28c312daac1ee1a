"""The blocks of a job and all of its keys, below what holds between them."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from fedveil.errors import InvalidValue, JobError
from fedveil.federated.protection_switch import ProtectionSettings
from fedveil.own_code import is_function
from fedveil.protections.base import Cohort, Weighting, Whose
from fedveil.protections.positions import POSITIONS, fault_phases
from fedveil.settings.checked_job import CheckedJob
from fedveil.settings.settings import Block, Device, RunName, or_function

DATASETS = (
    "digits",
    "mnist",
    "fashion_mnist",
    "femnist",
    "purchase100",
    "location30",
    "purchase100-synthetic",
)
#: The names that a fault plan may use, whatever the built-in position.
PHASES = tuple(fault_phases(POSITIONS["not_encrypt"]))
_NOISED = [name for name, p in POSITIONS.items() if p.noised(p.settings_type())]
_BY_EXAMPLE = [n for n, p in POSITIONS.items() if "example" in p.units(p.settings_type())]
MODELS = (
    "lenet",
    "lenet_femnist",
    "lenet_smooth",
    "mlp",
    "purchase_dnn",
    "logistic",
    "tanh_cnn",
    "filters_linear",
    "scattering_linear",
)
DatasetName = Annotated[str, or_function(*DATASETS)]
ModelName = Annotated[str, or_function(*MODELS)]
Share = Annotated[float, Field(ge=0, lt=1)]


class ClientsSettings(Block):
    """Who takes part."""

    number: int | None = Field(
        100,
        ge=1,
        description="how many clients there are; left out under `data.split: by_client`, or null: "
        "as many as the data has owners",
    )
    fraction: float = Field(
        0.5, gt=0, le=1, description="share of the clients that is drawn for each round"
    )
    sampling: Literal["fixed", "poisson"] = Field(
        "fixed",
        description="fixed: as many clients in every round; poisson: each of them independently "
        "with probability `clients.fraction`, in secret, so that cohorts differ in size",
    )


class DataSettings(Block):
    """What is learnt from, and who holds which part of it."""

    #: The built-in data sets whose examples come with owners.
    OWNED: ClassVar[tuple[str, ...]] = ("femnist",)

    name: DatasetName = Field(
        "digits", description="a built-in data set, or a function of yours that returns one"
    )
    split: Literal["iid", "shards", "dirichlet", "by_client"] = Field(
        "iid",
        description="how examples are dealt to clients: at random; in shards of sorted labels; "
        "with Dirichlet label shares; or as their owners hold them",
    )
    shards_per_client: int = Field(
        2, ge=1, description="shards that each client gets under `split: shards`"
    )
    alpha: float = Field(
        0.5, gt=0, description="mean concentration of a label under `split: dirichlet`"
    )

    @property
    def may_have_owners(self) -> bool:
        """Whether the data set comes with owners, or is a function that may say who they are."""
        return self.name in self.OWNED or is_function(self.name)


class TrainingSettings(Block):
    """What a client does with its examples in a round."""

    train: Literal["all", "head"] = Field(
        "all",
        description="what is trained, and travels: all of the model; or its head, the last linear "
        "layer, alone: what comes before it is fixed, and is computed once for every example",
    )
    epochs: int = Field(
        10, ge=1, description="local epochs a round; left out under `privacy.unit: example`: 1"
    )
    batch_size: int = Field(
        20,
        ge=1,
        description="examples in a local step; the last may be short. Under `privacy.unit: "
        "example`: what the sum over the sampled batch is divided by, however many it holds",
    )
    sampling_rate: float | None = Field(
        None,
        gt=0,
        le=1,
        description="probability with which a client takes each of its examples into a round's "
        "batch, secretly; under `privacy.unit: example`",
    )
    optimizer: Literal["sgd", "adam"] = Field("sgd", description="the client's optimiser")
    lr: float = Field(0.1, gt=0, description="the client's learning rate")
    momentum: float = Field(0.0, ge=0, lt=1, description="momentum of `optimizer: sgd`")
    weight_decay: float = Field(0.0, ge=0, description="L2 penalty of the local weights")
    device: Device = Field("cpu", description="where clients train")
    engine: Literal["auto", "loop", "vmap"] = Field(
        "auto",
        description="loop: clients one after another, by torch's autograd; vmap: many at once; "
        "auto: the fastest, which is vmap on a GPU where the model can, and on a CPU native code "
        "on threads where the model is a plain chain of known layers; otherwise loop",
    )


class ServerSettings(Block):
    """What the server does with the aggregate; defaults as in Reddi et al. (2021)."""

    weighting: Weighting = Field(
        "by_size",
        description="how clients count in the aggregate; left out: by_size, or equal under "
        f"{', '.join(_NOISED)} and with pw_encrypt's central_eps, where by_size is an error",
    )
    optimizer: Literal["none", "momentum", "adam", "yogi"] = Field(
        "none", description="the server's optimiser; none is federated averaging"
    )
    lr: float = Field(1.0, gt=0, description="the server's learning rate")
    momentum: float = Field(0.9, ge=0, lt=1, description="momentum of `optimizer: momentum`")
    beta1: float = Field(0.9, ge=0, lt=1, description="first-moment decay of adam and yogi")
    beta2: float = Field(0.99, ge=0, lt=1, description="second-moment decay of adam and yogi")
    tau: float = Field(0.001, gt=0, description="degree of adaptivity of adam and yogi")


class EvaluationSettings(Block):
    """When the global model is tested."""

    every: int = Field(1, ge=1, description="test after every so many rounds, and after the last")


class PrivacySettings(Block):
    """Where randomness comes from, and how much privacy may be spent."""

    randomness: Literal["seeded", "secure"] = Field(
        "seeded",
        description="of reports: a keystream from the job's seed, repeatable and for simulation "
        "only; or the operating system's",
    )
    max_epsilon: float | None = Field(
        None, gt=0, description="the run ends before the round that would pass it"
    )
    delta: float = Field(
        1e-5, ge=0, lt=1, description="the delta at which a run's epsilon is stated and limited"
    )
    unit: Whose = Field(
        "client",
        description="whose data the epsilon is for; client: all that one client has; example: one "
        f"of its examples ({', '.join(_BY_EXAMPLE)})",
    )


class AuditSettings(Block):
    """An audit of the run by itself, in simulation (docs/attacks.md)."""

    canaries: int = Field(
        0,
        ge=0,
        description="canary clients beside the others in every round, which a bound on the run's "
        "epsilon is found with; at most as many as clients are drawn. 0: no audit",
    )
    norm: float | None = Field(
        None,
        gt=0,
        description="L2 norm of a canary's update; null: the most that the protection lets "
        "through, or 1 where it clips no norm",
    )


class SimulationSettings(Block):
    """How one machine plays all parts."""

    workers: Literal["auto"] | Annotated[int, Field(ge=0)] = Field(
        "auto", description="worker processes; auto: one a core; 0: train in the calling process"
    )
    dropouts: dict[str, Share] = Field(
        default_factory=dict,
        description="fault plan: the share of the cohort that falls silent at each phase, of "
        f"{', '.join(PHASES)}; where clients send a single report, those silent up to `masked` "
        "send none",
    )
    masks: bool = Field(
        True,
        description="whether clients of secure aggregation exchange keys and mask what they send; "
        "false: the server adds the same numbers without, which gives the same sum sooner. Only a "
        "simulation can do without",
    )
    answer_ms: float = Field(
        0.0,
        ge=0,
        description="virtual time in which half of the clients answer a message; who takes longer "
        "for a phase than the protection's deadline has dropped out, and its report, if it was "
        "asked for one, counts as given. 0: nobody is late",
    )
    answer_spread: float = Field(
        1.0,
        ge=0,
        description="how far their times lie apart: the standard deviation of their logarithm",
    )


class DeploymentSettings(Block):
    """What matters where clients are other machines (`fedveil deploy`)."""

    reveal: list[Literal["examples"]] = Field(
        default_factory=list,
        description="what a client may tell the server in clear beside its reports; examples: how "
        "many it has",
    )
    repeats: int = Field(
        3,
        ge=0,
        description="how many private reports beyond `rounds` a client gives, for rounds that were "
        "cut off and begun again; it keeps count itself",
    )
    start_clients: int | None = Field(
        None,
        ge=1,
        description="how many clients must be connected before the first round; null: all",
    )
    answer_s: float = Field(
        300.0,
        gt=0,
        description="seconds that the server waits for the answers of a phase, where the "
        "protection has no deadline of its own",
    )
    wait_s: float = Field(
        600.0,
        gt=0,
        description="seconds that the server waits for them, and later for clients of a cohort "
        "without which its round could only be void, before it ends the run",
    )


class RecordSettings(Block):
    """What is written besides the run folder's own files."""

    tensorboard: bool = Field(False, description="also write TensorBoard event files")


class CheckpointSettings(Block):
    """How much an interruption may cost."""

    every: int = Field(1, ge=1, description="save after every so many rounds, and after the last")


class JobFields(CheckedJob):
    """A job's keys, and what follows from them; `Job` adds what must hold between them."""

    name: RunName = Field("digits-lenet", description="what the run is called")
    seed: int = Field(0, ge=0, description="decides everything random in a seeded run")
    rounds: int = Field(20, ge=1, description="how many rounds are run")
    clients: ClientsSettings = Field(default_factory=ClientsSettings)
    data: DataSettings = Field(default_factory=DataSettings)
    model: ModelName = Field(
        "lenet", description="a built-in model, or a function of yours that returns an nn.Module"
    )
    training: TrainingSettings = Field(default_factory=TrainingSettings)
    server: ServerSettings = Field(default_factory=ServerSettings)
    evaluation: EvaluationSettings = Field(default_factory=EvaluationSettings)
    protection: ProtectionSettings = Field(default_factory=ProtectionSettings)
    privacy: PrivacySettings = Field(default_factory=PrivacySettings)
    audit: AuditSettings = Field(default_factory=AuditSettings)
    simulation: SimulationSettings = Field(default_factory=SimulationSettings)
    deployment: DeploymentSettings = Field(default_factory=DeploymentSettings)
    record: RecordSettings = Field(default_factory=RecordSettings)
    checkpoint: CheckpointSettings = Field(default_factory=CheckpointSettings)

    def _fill_in(self) -> None:
        """Settle the keys whose default depends on another key; the job is frozen then."""
        try:
            _ = self.protection.settings
        except InvalidValue as error:
            raise JobError([str(error)]) from None
        if "weighting" not in self.server.model_fields_set and self.protection.noised:
            self.__dict__["server"] = self.server.model_copy(update={"weighting": "equal"})
        if "epochs" not in self.training.model_fields_set and self.privacy.unit == "example":
            self.__dict__["training"] = self.training.model_copy(update={"epochs": 1})
        if "number" not in self.clients.model_fields_set and self.data.split == "by_client":
            self.__dict__["clients"] = self.clients.model_copy(update={"number": None})

    @property
    def clients_per_round(self) -> int:
        """How many clients a round draws: round(fraction * number), at least 1.

        Under `clients.sampling: poisson`, the number that is expected.
        """
        if self.clients.number is None:
            raise InvalidValue(
                "clients.number = null is not known before the data is read; "
                "Job.with_clients fills it in"
            )
        return max(1, round(self.clients.fraction * self.clients.number))

    @property
    def cohort(self) -> Cohort:
        """How many clients there are, canaries and all, as far as it is known."""
        number, more = self.clients.number, self.audit.canaries
        if number is None:
            return Cohort(None, None)
        return Cohort(number + more, self.clients_per_round + more)
