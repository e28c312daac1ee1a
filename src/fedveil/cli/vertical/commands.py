"""`fedveil vertical`: the commands of split learning."""

from __future__ import annotations

import typer

from fedveil.cli.json_answer import AsJson, ServesAsJson, answering
from fedveil.cli.vertical.check import check
from fedveil.cli.vertical.generate import generate
from fedveil.cli.vertical.machines import certificates, follower, leader
from fedveil.cli.vertical.one_process import evaluate, keys, parts, predict, run, show
from fedveil.cli.vertical.serve_predictions import serve_predictions

app = typer.Typer(
    help="Split learning: parties (organisations) with different columns of the same rows train "
    "one model.\n\nThe party with the labels is the leader. All other parties are followers.",
    no_args_is_help=True,
)
for command in (
    run,
    evaluate,
    predict,
    serve_predictions,
    generate,
    show,
    parts,
    keys,
    leader,
    follower,
    certificates,
    check,
):
    option = ServesAsJson if command is serve_predictions else AsJson
    app.command()(answering(command, option))
