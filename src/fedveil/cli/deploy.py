"""`fedveil deploy` and `identity`: clients on other machines, and the keys they sign with."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from fedveil.base.plain_text import document, say
from fedveil.cli import ask as ask_cli
from fedveil.cli.job_arguments import JobOrQuestions, is_question, load, remarks, set_option
from fedveil.cli.path_argument import path_argument
from fedveil.errors import JobError, MissingExtra
from fedveil.starter import DEFAULT_JOB


def deploy(
    directory: Annotated[Path, path_argument(help="The folder to write the Flower app to.")],
    job: JobOrQuestions = None,
    overrides: Annotated[list[str] | None, set_option("the file JOB")] = None,
    seeded: Annotated[
        bool,
        typer.Option(
            help="Draw noise from the job's seed. Only for tests: anyone who reads the job can "
            "then remove the noise."
        ),
    ] = False,
) -> object:
    """Turn a job, or questions for `ask`, into a Flower app with clients on other machines.

    Flower is a framework that connects a server to clients. `flwr run DIRECTORY` starts the app.
    """
    _need_flower("fedveil deploy")
    if job is not None and is_question(job):
        if seeded:
            raise JobError(
                [f"--seeded is only for jobs, and {job} asks questions: clients answer them with "
                 "noise from the operating system"]
            )  # fmt: skip
        return ask_cli.deploy(directory, job, overrides)
    loaded = load(job, overrides, "Parties run: fedveil vertical leader or follower", DEFAULT_JOB)
    from fedveil.flower.job.deploy import deployable, write_app

    settings = deployable(loaded, seeded=seeded)
    wrote = write_app(directory, settings)
    for path in wrote:
        say(f"wrote {path}")
    if seeded:
        seen = (
            "reports draw from the job's seed: anyone who can read the job can remove the "
            "protection"
        )
        allowed = "a client sends them only if its own node configuration has seeded=true"
        remarks("warning", [f"{seen}; {allowed}"])
    if settings.protection.name == "not_encrypt" and settings.server.weighting == "by_size":
        remarks(
            "note",
            ["under not_encrypt with server.weighting = by_size a report reveals its "
             "client's number of examples"],
        )  # fmt: skip
    following = f"flwr run {shlex.quote(str(directory))}"
    say(f"next: {following}, which needs a SuperLink and SuperNodes: docs/deployment.md")
    return {"wrote": wrote, "clients": settings.clients.number, "next": following}


def _need_flower(purpose: str) -> None:
    from importlib.util import find_spec

    if find_spec("flwr") is None:
        raise MissingExtra("flwr", "flower", purpose)


def identity(
    file: Annotated[
        Path, path_argument(help="The file to write the private key to. It must not exist yet.")
    ],
) -> object:
    """Create a key pair to sign a client's messages or a job, and print the public key."""
    from fedveil.flower.job.signing_key_file import make_identity

    public = make_identity(file)
    document(f"{public}\n")
    return {"file": file, "public": public}
