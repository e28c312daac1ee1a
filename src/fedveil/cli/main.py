"""All commands of `fedveil`: they parse arguments, call the package and print results."""

from __future__ import annotations

import os
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import fedveil
from fedveil import __version__
from fedveil.base.plain_text import console, document, say
from fedveil.cli import ask as ask_cli
from fedveil.cli import attack as attack_cli
from fedveil.cli import budget as budget_cli
from fedveil.cli import compare as compare_cli
from fedveil.cli import data as data_cli
from fedveil.cli import dossier as dossier_cli
from fedveil.cli import report as pages_cli
from fedveil.cli import reproduce as reproduce_cli
from fedveil.cli import site as site_cli
from fedveil.cli.exits import Commands, run_app
from fedveil.cli.job_arguments import (
    JobOrQuestions,
    JobPath,
    KeyPart,
    Overrides,
    is_question,
    job_of_run,
    load,
    remarks,
    set_option,
)
from fedveil.cli.json_answer import AsJson, answer, answering, only_json
from fedveil.cli.layers import remark_layers, show_layers
from fedveil.cli.path_argument import path_argument, path_option
from fedveil.cli.vertical import commands as vertical_cli
from fedveil.errors import ClaimRefuted, JobError, MissingExtra, RunFolderError
from fedveil.record.run_folder import refuse_taken
from fedveil.starter import DEFAULT_JOB

if TYPE_CHECKING:
    from fedveil.federated.job import Job

app = typer.Typer(
    name="fedveil",
    cls=Commands,
    help="Federated learning: clients train one model together, and keep their own data.\n\n"
    "A job is a YAML file that describes a training run. One of its keys, `protection`, chooses "
    "how the clients' messages are protected.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
job_app = typer.Typer(help="Check, explain and convert job files.", no_args_is_help=True)
app.add_typer(data_cli.app, name="data", cls=Commands)
app.add_typer(job_app, name="job", cls=Commands)
app.add_typer(vertical_cli.app, name="vertical", cls=Commands)
app.add_typer(attack_cli.app, name="attack", cls=Commands)
app.add_typer(site_cli.app, name="site", cls=Commands)
app.command()(compare_cli.compare)
app.command("reproduce")(answering(reproduce_cli.reproduce))


def main() -> None:
    """Run a command. A user's error is printed to stderr as one sentence."""
    # A user's `package.module:function` is found in the current folder.
    sys.path.append(os.getcwd())  # noqa: PTH109
    raise SystemExit(run_app(app))


def _show_version(wanted: bool) -> None:
    if wanted:
        say(f"fedveil {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Declare the options that `fedveil` takes before a command. Their callbacks do the work."""


@app.command()
def run(
    job: JobPath = None,
    overrides: Overrides = None,
    out: Annotated[
        Path | None, path_option(help="The run folder. Default: a new folder under runs/.")
    ] = None,
    resume: Annotated[
        Path | None,
        path_option(
            help="Resume the run in this folder. To train longer, add --set rounds=N, where N "
            "is the new total."
        ),
    ] = None,
    on: Annotated[
        str | None,
        typer.Option(
            help="Where the simulated clients train: here (this machine, the default), ray"
            " (a Ray cluster that is already running here), or a cluster's address, "
            "such as ray://HOST:10001."
        ),
    ] = None,
    json: AsJson = False,
) -> None:
    """Train a model and write the results to a run folder."""
    # The job is checked before torch is imported.
    if resume is not None:
        others = [key for key in overrides or [] if key.partition("=")[0].strip() != "rounds"]
        if job is not None or others or out is not None:
            raise JobError(
                ["--resume uses the run's own job: remove JOB, --out and every --set except "
                 "--set rounds=N"]
            )  # fmt: skip
        settings = job_of_run(resume, overrides)
    else:
        refuse_taken(out)
        if on is not None:
            overrides = [*(overrides or []), f"simulation.on={on}"]
        settings = load(job, overrides, default=DEFAULT_JOB, runs=True)
    from fedveil.engine.precompile import precompiling
    from fedveil.pages.read_run import read_run
    from fedveil.run_display import RunDisplay, of_run

    with only_json(json):
        with RunDisplay(console(), settings.rounds) as display, precompiling(settings):
            if resume is None:  # the first use of a name that imports torch
                train = partial(fedveil.simulate, settings, out)
            else:
                rounds = settings.rounds if overrides else None
                train = partial(fedveil.resume, resume, rounds=rounds, on=on)
            result = train(progress=display.show, warn=display.warn, starting=display.starting)
        found = read_run(result.folder)
        display.summary(found)
    if json:
        answer(of_run(found))
    if result.audit is not None and result.audit.refutes:
        raise ClaimRefuted(f"the audit refutes the run's guarantee: {result.audit.refutation}")


app.command()(answering(pages_cli.report))
app.command()(answering(pages_cli.runs))
app.command()(answering(pages_cli.watch))
app.command()(answering(dossier_cli.dossier))


def _need_flower(purpose: str) -> None:
    from importlib.util import find_spec

    if find_spec("flwr") is None:
        raise MissingExtra("flwr", "flower", purpose)


app.command()(budget_cli.budget)
app.command()(ask_cli.ask)


@app.command()
def audit(
    run: Annotated[
        Path | None,
        path_argument(
            metavar="RUN",
            help="The folder of a run that was audited (its job sets `audit.canaries`) or "
            "attacked. Default: test all protections now.",
        ),
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option(
            min=1000,
            help="Without RUN: number of times to run each protection on each of two inputs. More "
            "trials detect smaller violations. Default: 20000.",
        ),
    ] = None,
    json: AsJson = False,
) -> None:
    """Test the privacy claims of all protections, or show a RUN's audit and attack results.

    Without RUN: run each protection many times on two inputs. The outputs must be no easier to tell
    apart than the protection's epsilon (privacy cost) allows. With RUN: show the results that are
    saved in the run folder. An audited run had artificial clients (canaries), which fedveil tried
    to detect. Exits with code 1 if a claim is refuted.
    """
    if run is not None:
        if trials is not None:
            raise JobError(["--trials cannot be used with RUN, whose results are only shown"])
        with only_json(json):
            _print_findings(run, json=json)
        return
    from fedveil.cli.audit_cases import cases

    found = []
    with only_json(json):
        for case in cases():
            result = case.audit(trials or 20_000)
            found.append({"mechanism": case.name, "refuted": result.refuted, "said": str(result)})
            say(f"{case.name}: {result}")
    if json:
        answer(found)
    names = [str(of["mechanism"]) for of in found if of["refuted"]]
    if names:
        raise ClaimRefuted(f"refuted: {', '.join(names)}")


def _print_findings(folder: Path, *, json: bool) -> None:
    from fedveil.privacy.guarantee_strength import Figure
    from fedveil.record.finding_lines import as_data, raise_if_refuted, read_findings
    from fedveil.record.run_folder import job_of

    findings = read_findings(folder)
    if not findings:
        job_of(folder)  # raises an error if `folder` is not a run folder
        raise RunFolderError(
            f"{folder} holds no findings: run with audit.canaries, or run `fedveil attack`"
        )
    for finding in findings:
        promised = Figure(finding.epsilon, finding.delta)
        verdict = "refuted" if finding.refutes else "not refuted"
        say(f"{finding}; saw {finding.saw}; promised: {promised}{finding.distance}: {verdict}")
        for missed in finding.unseen:
            say(f"  {missed}")
    if json:
        answer([as_data(finding) for finding in findings])
    raise_if_refuted(findings)


@app.command()
@answering
def init(
    directory: Annotated[
        Path, path_argument(help="The folder to write to. Existing files are never overwritten.")
    ],
    template: Annotated[
        str,
        typer.Option(
            help="The kind of job: image or table (predict a class for each image or row), "
            "text (predict the next letter), regression (predict a number for each row), "
            "own-step (your own training step), vertical (split learning) or flower (your own "
            "Flower app with fedveil's protections)."
        ),
    ] = "table",
) -> object:
    """Create a commented job file, with Python code for the model and for the clients' data."""
    from fedveil.starter import TEMPLATES, write_starter

    wrote = write_starter(directory, template)
    for path in wrote:
        say(f"wrote {path}")
    following = f"cd {shlex.quote(str(directory))} && {TEMPLATES[template].run}"
    say(f"next: {following}")
    return {"wrote": wrote, "next": following}


@app.command()
@answering
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


@app.command()
@answering
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


@job_app.command()
def show(
    job: JobPath = None,
    overrides: Overrides = None,
    layers: Annotated[
        bool,
        typer.Option(
            "--layers",
            help="Print only a table of the model's layers: whether fedveil's compiled code or "
            "torch trains each layer, and if torch, why. Needs torch.",
        ),
    ] = False,
    json: AsJson = False,
) -> None:
    """Check a job file and print it with all keys, including those left at their defaults.

    If the model is your own Python code, the command also prints the table of --layers to standard
    error.
    """
    settings = load(job, overrides, "Show it with: fedveil vertical show", DEFAULT_JOB)
    if not layers:
        _print_job(settings, json=json)
        if ":" in settings.model:  # a built-in model is shown without importing torch
            remark_layers(settings)
        return
    from fedveil.engine.trainer_choice import layer_training

    with only_json(json):
        found = layer_training(settings)
    if json:
        answer(found)
    else:
        show_layers(found)


def _print_job(job: Job, *, json: bool) -> None:
    if json:
        answer(job.model_dump(mode="json"))
    else:
        document(job.to_yaml(), exact=True)


@job_app.command()
@answering
def keys(key: KeyPart = None) -> object:
    """Explain the keys of a job file: allowed values, default, meaning."""
    from fedveil.federated.job_reference import reference
    from fedveil.settings.reference import key_rows, keys

    document(keys(reference(), key))
    return key_rows(reference(), key)


@job_app.command()
def convert(
    config: Annotated[
        Path,
        path_argument(
            metavar="CONFIG", help="The YAML configuration file of a MindSpore Federated server."
        ),
    ],
    json: AsJson = False,
) -> None:
    """Convert a MindSpore Federated configuration file to a fedveil job file and print it."""
    from fedveil.federated.job import Job

    settings, notes = Job.convert(config)
    remarks("note", notes)
    remarks("warning", settings.warnings)
    _print_job(settings, json=json)
