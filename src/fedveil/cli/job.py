"""`fedveil job`: checks, explains and converts job files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedveil.base.plain_text import document
from fedveil.cli.job_arguments import JobPath, KeyPart, Overrides, load, remarks
from fedveil.cli.json_answer import AsJson, answer, answering, only_json
from fedveil.cli.layers import remark_layers, show_layers
from fedveil.cli.path_argument import path_argument
from fedveil.starter import DEFAULT_JOB

if TYPE_CHECKING:
    from fedveil.federated.job import Job

app = typer.Typer(help="Check, explain and convert job files.", no_args_is_help=True)


@app.command()
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


@app.command()
@answering
def keys(key: KeyPart = None) -> object:
    """Explain the keys of a job file: allowed values, default, meaning."""
    from fedveil.federated.job_reference import reference
    from fedveil.settings.reference import key_rows, keys

    document(keys(reference(), key))
    return key_rows(reference(), key)


@app.command()
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
