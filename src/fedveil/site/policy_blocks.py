"""The blocks of a site's policy, with their strict defaults."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fedveil.federated.blocks import DATASETS
from fedveil.protections.description import Whose
from fedveil.settings.settings import Block, function_text, or_function, text

#: The protections whose guarantee does not rest on the server's word.
Allowed = Literal["distributed_dp", "pw_encrypt", "dp_encrypt", "signds", "rr", "oue"]
PublicKey = Annotated[str, text("64 hexadecimal digits", r"[0-9a-f]{64}")]
Digest = Annotated[str, text("64 hexadecimal digits", r"[0-9a-f]{64}")]
FileName = Annotated[str, text("the path of a file", r"[^\0]+")]
Reader = Annotated[str, function_text("package.module:function")]
Address = Annotated[str, text("HOST:PORT", r"\S+:[0-9]{1,5}")]


class StrengthSettings(Block):
    """The least strength of a protection, besides its epsilon."""

    unit: Whose = Field(
        "example",
        description="whose data an epsilon must protect. example: each record. client: all data "
        "of this site. A job that protects the whole site meets both",
    )
    active_security: bool = Field(
        True, description="if true, sums need signed keys and survivors, from the site's own roster"
    )
    survivors: int = Field(
        3, ge=2, description="smallest number of sites whose updates may be in a sum"
    )
    honest: float = Field(
        1.0,
        gt=0,
        le=1,
        description="largest `assume_honest` of a job: the share of sites that are trusted to add "
        "their noise under distributed_dp",
    )


class EpsilonSettings(Block):
    """The epsilon that may be spent on each data set, and the sums that have none."""

    run: float = Field(2.0, gt=0, description="most epsilon of one job")
    month: float = Field(2.0, gt=0, description="most epsilon of all jobs in a calendar month")
    ever: float = Field(10.0, gt=0, description="most epsilon of all jobs together, for ever")
    delta: float = Field(1e-5, gt=0, lt=1, description="the delta that belongs to each epsilon")
    exact_sums: int = Field(
        20,
        ge=0,
        description="most sums without noise (pw_encrypt) that this site's updates may be in, in a "
        "calendar month. Such a sum has no epsilon; it hides a site only among the others",
    )


class ClearSettings(Block):
    """Values that may leave without protection. No metric ever leaves."""

    counts: bool = Field(
        False, description="if true, a job may reveal the number of examples, or weigh by it"
    )
    answer_after_s: float | None = Field(
        60.0,
        gt=0,
        description="seconds after a request at which every report leaves, so that its time "
        "reveals nothing. null: when it is ready",
    )


class JobsSettings(Block):
    """The jobs that may run. A job needs one of these three permissions."""

    digests: list[Digest] = Field(
        default_factory=list, description="digests of jobs, which `fedveil site check` prints"
    )
    template: FileName | None = Field(
        None, description="a job file of the site's own. A job that equals it may run"
    )
    may_differ: list[str] = Field(
        default_factory=list,
        description="keys and blocks in which a job may differ from the template",
    )
    signed_by: list[str] = Field(
        default_factory=list, description="people whose signature permits a job"
    )


class CodeSettings(Block):
    """A study's own code: models, tasks and learning-rate schedules. It trains in isolation."""

    modules: dict[str, Digest] = Field(
        default_factory=dict,
        description="modules and packages in the site's folder `code` that jobs may name, each "
        "with its digest, which `fedveil site check` prints. None: bundled models and tasks alone",
    )
    isolation: Literal["strong", "weak"] = Field(
        "strong",
        description="strong: the code has no network, and no file but itself and the installed "
        "packages (bubblewrap or namespaces of Linux). weak: it has limits and forbidden system "
        "calls alone, and can read every file that the site's user can read",
    )
    memory_gb: float = Field(4.0, ge=1, description="most memory of the process, in GB")


class DataSetSettings(Block):
    """A data set of the site. It has an account of its own."""

    named: Annotated[str, or_function(*DATASETS)] = Field(
        "digits", description="the `data.name` of the jobs that may train on it"
    )
    reader: Reader | None = Field(
        None,
        description="the site's own function that returns its examples, in a module in the site's "
        "folder or an installed one. null: the site's part of the bundled data set",
    )


class ServerSettings(Block):
    """A server that this site takes jobs from: a SuperLink of Flower."""

    superlink: Address = Field("127.0.0.1:9092", description="address of its SuperLink")
    client: int = Field(0, ge=0, description="the number that this site has in its jobs")
    roster: FileName | None = Field(
        None, description="file with the public keys of all sites. It never comes from the server"
    )
    root_certificates: FileName | None = Field(
        None, description="certificate of the SuperLink's authority. null: the system's"
    )
    supernode_key: FileName | None = Field(
        None, description="private key with which the SuperLink knows this site's SuperNode"
    )
    insecure: bool = Field(False, description="if true, connect without TLS. For tests only")
