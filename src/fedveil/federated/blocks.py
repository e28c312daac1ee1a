"""The blocks (sections) of a job, with all keys. `rules.py` has the rules about several keys."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from fedveil.base.own_code import is_function
from fedveil.errors import InvalidValue, JobError
from fedveil.federated.language_blocks import (
    LANGUAGE_TASKS,
    TEXT_FOLDER,
    AdapterSettings,
    LanguageSettings,
    is_language_model,
    model_text,
)
from fedveil.federated.protection_switch import ProtectionSettings
from fedveil.federated.run_blocks import CheckpointSettings, DeploymentSettings, RecordSettings
from fedveil.federated.stopping_settings import StoppingSettings
from fedveil.federated.training_blocks import ServerSettings, TrainingSettings
from fedveil.protections.advice import Cohort
from fedveil.protections.catalog import POSITIONS, fault_phases
from fedveil.protections.description import Whose
from fedveil.settings.checked_job import CheckedJob
from fedveil.settings.settings import Block, RunName, Under, function_text, or_function, text

DATASETS = (
    "digits",
    "mnist",
    "fashion_mnist",
    "cifar10",
    "femnist",
    "shakespeare",
    "purchase100",
    "location30",
    "purchase100-synthetic",
)
#: A user's folder of images, in place of a data set's name.
IMAGE_FOLDER = "image_folder"
#: The phase names that a fault plan may use with every built-in protection.
PHASES = tuple(fault_phases(POSITIONS["not_encrypt"]))
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
    "transformer",
)
TASKS = ("classification", "regression", "multilabel", *LANGUAGE_TASKS)
DatasetName = Annotated[str, or_function(*DATASETS, IMAGE_FOLDER, TEXT_FOLDER)]
ModelName = Annotated[str, model_text(*MODELS)]
TRACKERS = ("fedveil.engine.trackers:MLflow", "fedveil.engine.trackers:WandB")
FilePath = Annotated[str, text("the path of a file", r"[^\0]+")]
FolderPath = Annotated[str, text("the path of a folder", r"[^\0]+")]
TaskName = Annotated[str, function_text("package.module:Task", *TASKS)]
Share = Annotated[float, Field(ge=0, lt=1)]
#: The value of simulation.on for a simulation on one machine.
HERE = "here"
_ADDRESS = r"here|ray|auto|(ray://)?[A-Za-z0-9._-]+:[0-9]{1,5}"
ClusterName = Annotated[str, text("here, ray, HOST:PORT or ray://HOST:PORT", _ADDRESS)]


class ClientsSettings(Block):
    """The clients, and how many of them take part in a round."""

    number: int | None = Field(
        100,
        ge=1,
        description="number of clients. null (or, under `data.split: by_client` or `writers`, no "
        "value): the number of the data's owners",
    )
    fraction: float = Field(
        0.5, gt=0, le=1, description="share of the clients that take part in a round"
    )
    sampling: Literal["fixed", "poisson"] = Field(
        "fixed",
        description="fixed: every round has the same number of clients. poisson: each client takes "
        "part independently and secretly with probability `clients.fraction`, so the numbers of "
        "clients differ. Under distributed_dp every client is asked, and draws whether it adds "
        "its update",
    )
    own_layers: list[str] = Field(
        default_factory=list,
        description="tensors that stay with each client from round to round, as patterns of their "
        "names such as `head.*` or `*norm*`. No report contains them. Each metric of a round is "
        "then the mean over the clients that trained, each with its own tensors",
    )


class DataSettings(Block):
    """The training data, and its split among the clients."""

    #: The data sets of fedveil whose examples have owners.
    OWNED: ClassVar[tuple[str, ...]] = ("femnist", "shakespeare", TEXT_FOLDER)

    name: DatasetName = Field(
        "digits",
        description="a built-in data set, a folder with your images or texts, or your own function "
        "that returns a data set",
    )
    folder: Annotated[FolderPath | None, Under("name", IMAGE_FOLDER, TEXT_FOLDER)] = Field(
        None,
        description="under `name: image_folder`: the folder that holds train/CLASS/ and "
        "test/CLASS/, with JPEG or PNG files of one size; under `name: text_folder`: the folder "
        "that holds train.jsonl and test.jsonl. A relative path starts at the current folder",
    )
    split: Literal["iid", "shards", "dirichlet", "by_client", "writers"] = Field(
        "iid",
        description="how examples are split among clients. iid: at random. shards: sorted by label "
        "and cut into shards. dirichlet: each client gets random shares of the labels. by_client: "
        "by their owners. writers: the images of mnist by the person who wrote them (539 clients)",
    )
    shards_per_client: Annotated[int, Under("split", "shards")] = Field(
        2, ge=1, description="number of shards for each client under `split: shards`"
    )
    alpha: Annotated[float, Under("split", "dirichlet")] = Field(
        0.5,
        gt=0,
        description="concentration under `split: dirichlet`, the mean over the labels. A smaller "
        "value makes clients more different",
    )

    @property
    def by_owner(self) -> bool:
        """True if each owner is one client, whose examples are exactly those of the owner."""
        return self.split in ("by_client", "writers")

    @property
    def may_have_owners(self) -> bool:
        """True if the data set may say which person owns each example."""
        return self.name in self.OWNED or is_function(self.name)


class EvaluationSettings(Block):
    """The tests of the global model: when, on which examples and with which metrics."""

    every: int = Field(
        1,
        ge=1,
        description="number of rounds between two tests of the model. The last round is always "
        "tested",
    )
    clients: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="share of each client's examples that is held out to test the model on each "
        "client. The record has the mean over clients, the mean of the worst tenth, and the "
        "standard deviation. Only in simulation. 0: none",
    )
    metrics: list[str] | None = Field(
        None,
        min_length=1,
        description="metrics of a built-in task. The first one decides which model is best. null: "
        "accuracy, auc under classification and sequence_classification (also available: ks, "
        "balanced_accuracy, f1, f1_per_class, confusion); rmse, mae, r2 under regression; f1, "
        "accuracy, auc under multilabel (also available: exact_match); perplexity, accuracy under "
        "next_token and instruction",
    )


class PrivacySettings(Block):
    """The source of randomness, and the limit on spent privacy."""

    randomness: Literal["seeded", "secure"] = Field(
        "seeded",
        description="source of the randomness that protects reports. seeded: computed from the "
        "job's seed, repeatable, only for simulation. secure: the operating system",
    )
    max_epsilon: float | None = Field(
        None, gt=0, description="the run stops before a round that would exceed this epsilon"
    )
    account: FilePath | None = Field(
        None,
        description="file of the data set's privacy account. Other trainings and questions charge "
        "the same file. max_epsilon limits it too",
    )
    delta: float = Field(
        1e-5, ge=0, lt=1, description="the delta at which a run's epsilon is stated and limited"
    )
    unit: Whose = Field(
        "client",
        description="the data that an epsilon covers. client: all data of a client. "
        f"example: one example ({', '.join(_BY_EXAMPLE)})",
    )


class AuditSettings(Block):
    """An audit that a simulated run makes of itself, with canaries (docs/audits.md)."""

    canaries: int = Field(
        0,
        ge=0,
        description="number of canaries: artificial clients added to every round. The audit tries "
        "to detect them, which gives a lower bound on the run's epsilon. At most the number of "
        "clients in a round. 0: no audit",
    )
    norm: float | None = Field(
        None,
        gt=0,
        description="L2 norm of a canary's update. null: 1.5, 8 and 64 times the clipping norm, "
        "each for a third of the canaries. Without a clipping norm: 1, 1/64 and 64 if the "
        "protection perturbs updates, otherwise 1",
    )


class SimulationSettings(Block):
    """Simulation of clients and server, on one machine or on a cluster."""

    on: ClusterName = Field(
        HERE,
        description="where clients are trained. here: on this machine. ray: on the Ray cluster "
        "that runs here or at RAY_ADDRESS. HOST:PORT or ray://HOST:PORT: on the Ray cluster at "
        "this address. The result is the same",
    )
    workers: Literal["auto"] | Annotated[int, Field(ge=0)] = Field(
        "auto",
        description="number of workers (threads or processes) that train clients. auto: one per "
        "core; a native model with fewer than 20,000 weights and fewer than 100 clients a round "
        "has one. 0: train in the calling process",
    )
    dropouts: dict[str, Share] = Field(
        default_factory=dict,
        description="simulated faults: the share of a round's clients that drop out in each phase "
        f"({', '.join(PHASES)}). If clients send a single report, those that "
        "drop out up to `masked` send none",
    )
    masks: bool = Field(
        True,
        description="if true, clients of secure aggregation exchange keys and mask their "
        "vectors. If false, the server adds the same numbers without masks, "
        "which gives the same sum faster. Only a simulation can do this",
    )
    answer_ms: float = Field(
        0.0,
        ge=0,
        description="median simulated time in milliseconds in which a client answers. A client "
        "that exceeds the protection's deadline for a phase drops out. Its report, if requested, "
        "still counts as sent. 0: no client is late",
    )
    answer_spread: float = Field(
        1.0,
        ge=0,
        description="spread of the answer times: the standard deviation of their logarithm",
    )


class JobFields(CheckedJob):
    """A job's keys, and properties computed from them. The subclass `Job` adds the rules."""

    name: RunName = Field("digits-lenet", description="name of the run")
    seed: int = Field(0, ge=0, description="seed of everything random in a seeded run")
    rounds: int = Field(20, ge=1, description="number of rounds")
    clients: ClientsSettings = Field(default_factory=ClientsSettings)
    data: DataSettings = Field(default_factory=DataSettings)
    model: ModelName = Field(
        "lenet",
        description="a built-in model, your own function that returns an nn.Module, or "
        "`hf:FOLDER`: the language model in a local folder, as transformers saves it",
    )
    adapter: AdapterSettings = Field(default_factory=AdapterSettings)
    language: LanguageSettings = Field(default_factory=LanguageSettings)
    task: TaskName = Field(
        "classification",
        description="a built-in task, or your own fedveil.Task. It defines the loss, the metrics "
        "and how a batch is made",
    )
    training: TrainingSettings = Field(default_factory=TrainingSettings)
    server: ServerSettings = Field(default_factory=ServerSettings)
    evaluation: EvaluationSettings = Field(default_factory=EvaluationSettings)
    stopping: StoppingSettings = Field(default_factory=StoppingSettings)
    protection: ProtectionSettings = Field(default_factory=ProtectionSettings)
    privacy: PrivacySettings = Field(default_factory=PrivacySettings)
    audit: AuditSettings = Field(default_factory=AuditSettings)
    simulation: SimulationSettings = Field(default_factory=SimulationSettings)
    deployment: DeploymentSettings = Field(default_factory=DeploymentSettings)
    record: RecordSettings = Field(default_factory=RecordSettings)
    checkpoint: CheckpointSettings = Field(default_factory=CheckpointSettings)

    def _fill_in(self) -> None:
        """Set the keys whose default depends on other keys, before the job becomes immutable."""
        try:
            _ = self.protection.settings
        except InvalidValue as error:
            raise JobError([str(error)]) from None
        averaged = self.training.keeps_mean  # with equal weights, by the algorithm's server
        equal = self.protection.noised or self.server.holds_reports or averaged
        if "weighting" not in self.server.model_fields_set and equal:
            self.__dict__["server"] = self.server.model_copy(update={"weighting": "equal"})
        if "epochs" not in self.training.model_fields_set and self.privacy.unit == "example":
            self.__dict__["training"] = self.training.model_copy(update={"epochs": 1})
        if "number" not in self.clients.model_fields_set and self.data.by_owner:
            self.__dict__["clients"] = self.clients.model_copy(update={"number": None})

    @property
    def has_language_model(self) -> bool:
        """True if the model is a language model in a folder (`model: hf:FOLDER`)."""
        return is_language_model(self.model)

    @property
    def secret_turns(self) -> bool:
        """True if each client decides in secret in which rounds it takes part."""
        return self.clients.sampling == "poisson" and self.protection.position.secret_turns

    @property
    def keeps_state(self) -> bool:
        """True if clients keep state from one round to the next."""
        return bool(self.clients.own_layers) or self.training.keeps_mean

    @property
    def own_names(self) -> list[str]:
        """The values of all keys that can name a user's own code. Some may be built-in names."""
        named = [] if self.has_language_model else [self.model]
        named += [self.data.name, self.task, self.protection.name]
        named += [self.training.lr_schedule, *self.record.callbacks]
        return [name for name in named if name not in TRACKERS]

    @property
    def clients_per_round(self) -> int:
        """The number of clients that a round draws: round(fraction * number), at least 1.

        Under `clients.sampling: poisson` it is the expected number. If clients decide in secret
        whether to take part, it is the number of all clients. Raises `InvalidValue` if the number
        of all clients is not known yet.
        """
        if self.clients.number is None:
            raise InvalidValue(
                "clients.number = null is unknown before the data is read: use Job.with_clients"
            )
        if self.secret_turns:
            return self.clients.number
        return max(1, round(self.clients.fraction * self.clients.number))

    @property
    def cohort(self) -> Cohort:
        """The numbers of all clients and of a round's clients, and the most clients on one node.

        The first two numbers include the audit's canaries. They are None if the number of clients
        is unknown.
        """
        number, more = self.clients.number, self.audit.canaries
        if number is None:
            return Cohort(None, None)
        on_a_node = self.deployment.clients_per_node
        return Cohort(number + more, self.clients_per_round + more, on_a_node)
