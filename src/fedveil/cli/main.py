"""The command line of `fedveil`: all commands, in the order in which the help lists them."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from fedveil import __version__
from fedveil.base.plain_text import say
from fedveil.cli import (
    ask,
    attack,
    audit,
    budget,
    compare,
    data,
    deploy,
    dossier,
    init,
    job,
    report,
    reproduce,
    run,
    site,
)
from fedveil.cli.exits import Commands, run_app
from fedveil.cli.json_answer import answering
from fedveil.cli.vertical import commands as vertical

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
for command in (
    answering(init.init),
    run.run,
    answering(report.watch),
    answering(report.report),
    answering(report.runs),
    compare.compare,
    budget.budget,
    audit.audit,
    answering(dossier.dossier),
    ask.ask,
    answering(deploy.deploy),
    answering(deploy.identity),
    answering(reproduce.reproduce),
):
    app.command()(command)
for name, group in (
    ("job", job.app),
    ("attack", attack.app),
    ("vertical", vertical.app),
    ("site", site.app),
    ("data", data.app),
):
    app.add_typer(group, name=name, cls=Commands)


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
