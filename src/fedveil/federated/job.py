"""What a run is: typed settings, all of them checked before anything starts.

`Job()` is the default job; `Job.load` reads one from YAML, ours or MindSpore Federated's. Every
problem that a job has is found and reported at once, each in one sentence.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, model_validator

from fedveil.errors import InvalidValue
from fedveil.federated import job_rules
from fedveil.own_code import is_function
from fedveil.protections.base import Settings, Weighting
from fedveil.protections.dp_encrypt import DPEncryptSettings
from fedveil.protections.pw_encrypt import PWEncryptSettings
from fedveil.protections.rr_oue import UnarySettings
from fedveil.protections.signds import SignDSSettings
from fedveil.settings import allowed, yaml_file
from fedveil.settings.allowed import TextRule
from fedveil.settings.checked_job import CheckedJob

DATASETS = (
    "digits",
    "mnist",
    "fashion_mnist",
    "femnist",
    "purchase100",
    "location30",
    "purchase100-synthetic",
)
MODELS = ("lenet", "lenet_femnist", "mlp", "purchase_dnn", "logistic")
#: Switch position -> the block that holds its parameters.
BLOCKS = {
    "not_encrypt": None,
    "dp_encrypt": "dp_encrypt",
    "pw_encrypt": "pw_encrypt",
    "signds": "signds",
    "rr": "unary",
    "oue": "unary",
}
#: Positions whose guarantee needs clients that count equally.
EQUAL_POSITIONS = ("dp_encrypt", "signds", "rr", "oue")

DatasetName = Annotated[
    str, AfterValidator(TextRule(DATASETS, "package.module:function", is_function))
]
ModelName = Annotated[str, AfterValidator(TextRule(MODELS, "package.module:function", is_function))]
RunName = Annotated[
    str,
    AfterValidator(
        TextRule(
            (),
            "text of at most 100 characters on one line, without slashes",
            lambda name: re.fullmatch(r"[^\x00-\x1f\x7f/\\]{1,100}", name) is not None,
        )
    ),
]
Device = Annotated[
    str,
    AfterValidator(
        TextRule(
            ("cpu", "cuda"),
            "cuda:N",
            lambda name: re.fullmatch(r"cuda:\d+", name, re.ASCII) is not None,
        )
    ),
]
Phase = Literal["advertise", "share", "masked", "consistency", "unmask"]
Share = Annotated[float, Field(ge=0, lt=1)]


class Block(Settings):
    """A block of a job; one that is written with nothing in it holds its defaults."""

    @model_validator(mode="before")
    @classmethod
    def _empty(cls, data: Any) -> Any:
        return {} if data is None else data


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

    epochs: int = Field(10, ge=1, description="local epochs a round")
    batch_size: int = Field(20, ge=1, description="examples in a local step; the last may be short")
    optimizer: Literal["sgd", "adam"] = Field("sgd", description="the client's optimiser")
    lr: float = Field(0.1, gt=0, description="the client's learning rate")
    momentum: float = Field(0.0, ge=0, lt=1, description="momentum of `optimizer: sgd`")
    weight_decay: float = Field(0.0, ge=0, description="L2 penalty of the local weights")
    device: Device = Field("cpu", description="where clients train")
    engine: Literal["auto", "loop", "vmap"] = Field(
        "auto",
        description="loop: clients one after another, by torch's autograd; vmap: many at once; "
        "auto: the fastest, which is vmap on a GPU where the model can; on a CPU, under SGD "
        "without momentum or weight decay, several clients side by side where the model is dense "
        "layers and a loop whose steps are written out where it is another plain chain; otherwise "
        "loop",
    )


class ServerSettings(Block):
    """What the server does with the aggregate; defaults as in Reddi et al. (2021)."""

    weighting: Weighting = Field(
        "by_size",
        description="how clients count in the aggregate; left out: by_size, or equal under "
        "dp_encrypt, signds, rr and oue, where by_size is an error",
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


class ProtectionSettings(Block):
    """The switch, and the parameters of its positions; the unused blocks wait."""

    name: Literal["not_encrypt", "dp_encrypt", "pw_encrypt", "signds", "rr", "oue"] = Field(
        "not_encrypt", description="the position of the switch"
    )
    dp_encrypt: DPEncryptSettings = Field(
        default_factory=DPEncryptSettings, description="parameters of dp_encrypt"
    )
    signds: SignDSSettings = Field(
        default_factory=SignDSSettings, description="parameters of signds"
    )
    pw_encrypt: PWEncryptSettings = Field(
        default_factory=PWEncryptSettings, description="parameters of pw_encrypt"
    )
    unary: UnarySettings = Field(
        default_factory=UnarySettings, description="parameters of rr and oue"
    )

    @model_validator(mode="before")
    @classmethod
    def _opened(cls, data: Any) -> Any:
        if isinstance(data, str):
            return cls.shorthand({}, data)
        if isinstance(data, Mapping):
            empty = [block for block in set(BLOCKS.values()) if data.get(block or "", 0) is None]
            return {key: {} if key in empty else value for key, value in data.items()}
        return data

    @classmethod
    def shorthand(cls, held: Mapping[str, Any], word: str) -> dict[str, Any]:
        """`protection: signds`: that position with its defaults, the other blocks as held."""
        kept = {key: value for key, value in held.items() if key != BLOCKS.get(word)}
        return {**kept, "name": word}

    @property
    def settings(self) -> Settings | None:
        """The active block; None for not_encrypt, which has no parameters."""
        block = BLOCKS[self.name]
        return None if block is None else getattr(self, block)


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


class SimulationSettings(Block):
    """How one machine plays all parts."""

    workers: Literal["auto"] | Annotated[int, Field(ge=0)] = Field(
        "auto", description="worker processes; auto: one a core; 0: train in the calling process"
    )
    dropouts: dict[Phase, Share] = Field(
        default_factory=dict,
        description="fault plan: the share of the cohort that falls silent at each phase; where "
        "clients send a single report, those silent up to `masked` send none",
    )
    answer_ms: float = Field(
        0.0,
        ge=0,
        description="virtual time in which half of the clients answer a message; who takes longer "
        "than `pw_encrypt.cipher_time_window` for a phase has dropped out. 0: nobody is late",
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


class Job(CheckedJob):
    """A run, described completely.

    Raises JobError with every problem that its values have, one by one and between them.
    """

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
    simulation: SimulationSettings = Field(default_factory=SimulationSettings)
    deployment: DeploymentSettings = Field(default_factory=DeploymentSettings)
    record: RecordSettings = Field(default_factory=RecordSettings)
    checkpoint: CheckpointSettings = Field(default_factory=CheckpointSettings)

    def _broken(self, wrong: Collection[allowed.Path]) -> list[str]:
        return job_rules.broken(self, wrong)

    def _fill_in(self) -> None:
        """Settle the two keys whose default depends on another key; the job is frozen then."""
        if "weighting" not in self.server.model_fields_set and self.must_weigh_equally:
            self.__dict__["server"] = self.server.model_copy(update={"weighting": "equal"})
        if "number" not in self.clients.model_fields_set and self.data.split == "by_client":
            self.__dict__["clients"] = self.clients.model_copy(update={"number": None})

    @classmethod
    def load(cls, path: str | Path | None = None, overrides: Sequence[str] = ()) -> Job:
        """The job in a YAML file (the default job without one), `key=value` settings on top.

        A file in MindSpore Federated's layout is recognised by its keys; `mindspore.convert`
        also says which of its keys are ignored.
        """
        # The dialect is written in terms of the job, not the job in terms of the dialect.
        from fedveil.federated import mindspore

        data = {} if path is None else yaml_file.read(path)
        if mindspore.is_dialect(data):
            return mindspore.translate(data, overrides).job
        return cls.read(data, overrides)

    def with_clients(self, number: int) -> Job:
        """This job with as many clients as its data turned out to have, and checked again."""
        data = self.model_dump()
        data["clients"]["number"] = number
        return Job(**data)

    @property
    def clients_per_round(self) -> int:
        """The size of every round's cohort: round(fraction * number), at least 1."""
        if self.clients.number is None:
            raise InvalidValue(
                "clients.number = null is not known before the data is read; "
                "Job.with_clients fills it in"
            )
        return max(1, round(self.clients.fraction * self.clients.number))

    @property
    def sharing_clients(self) -> int:
        """How many of a cohort share secrets under pw_encrypt: ceil(ratio * cohort)."""
        return self.protection.pw_encrypt.sharing_clients(self.clients_per_round)

    @property
    def must_weigh_equally(self) -> bool:
        """Whether the protection rests on clients that count equally."""
        return self.protection.name in EQUAL_POSITIONS

    @property
    def weighting(self) -> Weighting:
        """How clients count in the aggregate."""
        return self.server.weighting

    @property
    def warnings(self) -> list[str]:
        """What is allowed and yet probably not meant, a sentence each."""
        return job_rules.advice(self)
