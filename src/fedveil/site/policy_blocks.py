"""The blocks of a site's policy, with their strict defaults."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fedveil.federated.blocks import DATASETS
from fedveil.protections.description import Whose
from fedveil.settings.settings import Block, function_text, or_function, text

#: The protections whose guarantee holds without trust in the server.
Allowed = Literal["distributed_dp", "pw_encrypt", "dp_encrypt", "signds", "rr", "oue"]
PublicKey = Annotated[str, text("64 hexadecimal digits", r"[0-9a-f]{64}")]
Digest = Annotated[str, text("64 hexadecimal digits", r"[0-9a-f]{64}")]
FileName = Annotated[str, text("the path of a file", r"[^\0]+")]
Reader = Annotated[str, function_text("package.module:function")]
Address = Annotated[str, text("HOST:PORT", r"\S+:[0-9]{1,5}")]


class StrengthSettings(Block):
    """The weakest protection that a job may use, apart from its epsilon.

    `unit` is the least data that an epsilon must cover. The other keys are about protections whose
    server sees only a sum of updates.
    """

    unit: Whose = Field(
        "example",
        description="the least data that an epsilon must cover. example: one record. A job that "
        "covers all data of the site is allowed, too. client: all data of this site",
    )
    active_security: bool = Field(
        True,
        description="if true, a secure sum needs signatures of the clients' keys and of the list "
        "of survivors. The site's own roster has the public keys to check them",
    )
    survivors: int = Field(
        3, ge=2, description="smallest number of sites whose updates may be in a sum"
    )
    honest: float = Field(
        1.0,
        gt=0,
        le=1,
        description="largest `assume_honest` of a job: the share of clients that distributed_dp "
        "trusts to add their noise",
    )


class EpsilonSettings(Block):
    """Limits on the cost of all jobs to one data set: in epsilon, and in sums without noise."""

    run: float = Field(2.0, gt=0, description="largest epsilon of one job")
    month: float = Field(
        2.0, gt=0, description="largest epsilon of all jobs in a calendar month (UTC)"
    )
    ever: float = Field(10.0, gt=0, description="largest epsilon of all jobs for all time")
    delta: float = Field(1e-5, gt=0, lt=1, description="the delta of each epsilon")
    exact_sums: int = Field(
        20,
        ge=0,
        description="largest number of sums without noise (pw_encrypt) in a calendar month that "
        "may include this site's updates. Such a sum has no epsilon: it hides a site only among "
        "the other sites",
    )


class ClearSettings(Block):
    """Values that may leave the site without protection. Metrics never leave the site.

    The values are the number of examples, and how long a report takes.
    """

    counts: bool = Field(
        False,
        description="if true, a job may reveal the site's number of examples, or weight its update "
        "by this number",
    )
    answer_after_s: float | None = Field(
        60.0,
        gt=0,
        description="seconds from a request until its report leaves, always equal, so that the "
        "duration reveals nothing. null: the report leaves when it is ready",
    )


class JobsSettings(Block):
    """The jobs that may run. A job needs a listed digest, a matching template or a signature."""

    digests: list[Digest] = Field(
        default_factory=list,
        description="digests of permitted jobs. `fedveil site check` prints a job's digest",
    )
    template: FileName | None = Field(
        None, description="a job file in the site's folder. A job with equal settings may run"
    )
    may_differ: list[str] = Field(
        default_factory=list,
        description="keys and blocks whose values may differ from the template",
    )
    signed_by: list[str] = Field(
        default_factory=list, description="people whose signature permits a job"
    )


class CodeSettings(Block):
    """A study's own code (models, tasks, learning-rate schedules), which trains in isolation."""

    modules: dict[str, Digest] = Field(
        default_factory=dict,
        description="permitted modules and packages in the site's folder `code`, each with its "
        "digest, which `fedveil site check` prints. Empty: jobs may name only bundled models and "
        "tasks",
    )
    isolation: Literal["strong", "weak"] = Field(
        "strong",
        description="strong: the code has no network, and sees no files except itself and the "
        "installed packages (bubblewrap or Linux namespaces). weak: the code has resource limits "
        "and forbidden system calls, but can read every file that the site's user can read",
    )
    memory_gb: float = Field(4.0, ge=1, description="memory limit of the code's process, in GB")


class DataSetSettings(Block):
    """Settings of one of the site's data sets. Each data set has its own privacy account."""

    named: Annotated[str, or_function(*DATASETS)] = Field(
        "digits", description="jobs with this `data.name` may train on the data set"
    )
    reader: Reader | None = Field(
        None,
        description="the owner's function that returns the examples, from a module in the site's "
        "folder or an installed module. null: the site's part of the bundled data set. Any other "
        "data set needs a reader, except on NVFlare",
    )


class ServerSettings(Block):
    """A Flower SuperLink from which this site takes jobs."""

    superlink: Address = Field("127.0.0.1:9092", description="address of its SuperLink")
    client: int = Field(0, ge=0, description="this site's client number in the server's jobs")
    roster: FileName | None = Field(
        None,
        description="the roster: a file with the public keys of all sites. Never take it from the "
        "server",
    )
    root_certificates: FileName | None = Field(
        None,
        description="file with the certificate of the authority that signed the SuperLink's. null: "
        "the system's authorities",
    )
    supernode_key: FileName | None = Field(
        None, description="private key that identifies this site's SuperNode to the SuperLink"
    )
    insecure: bool = Field(False, description="if true, connect without TLS. For tests only")
