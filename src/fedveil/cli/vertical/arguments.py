"""Command-line arguments that several commands of `fedveil vertical` share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedveil.cli.path_argument import path_argument, path_option

JobPath = Annotated[
    Path | None,
    path_argument(
        help="A YAML file with a job for split learning (`fedveil init --template vertical` writes "
        "one). Default: a built-in job on images of digits."
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="KEY=VALUE: change one key of the job, such as epochs=5; may be repeated."
    ),
]
KeyPart = Annotated[
    str | None,
    typer.Argument(
        metavar="[KEY]", help="A key or a block of keys, such as privacy. Default: all keys."
    ),
]
Resume = Annotated[
    Path | None, path_option(help="Resume the run in this folder. Do not give JOB, --set or --out.")
]
RunPath = Annotated[
    Path,
    path_argument(
        help="The folder that `fedveil vertical run` wrote. With --listen: the folder that "
        "`fedveil vertical leader` wrote."
    ),
]
ServedRun = Annotated[
    Path,
    path_argument(
        help="A run folder. If the parties are on several machines: its subfolder PARTY/bundle, "
        "where PARTY is this party's name."
    ),
]
ScoredRun = Annotated[
    Path,
    path_argument(
        help="A run folder. For new rows with --listen or --connect: its subfolder PARTY/bundle, "
        "where PARTY is this party's name."
    ),
]
Listen = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="At the leader: the address on which to wait for the followers. "
        "Port 0: any free port.",
    ),
]
Data = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[PARTY=]FILE",
        help="A CSV or Parquet file with an id column and this party's columns of new rows, "
        "without labels. If all parties are in this process, repeat the option as PARTY=FILE "
        "for each party.",
    ),
]
MostIds = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Largest number of ids that each other party may send for this --data file, earlier "
        "commands included. The sender learns which of them the file has. Default: the job's "
        "alignment.most_ids, else 4 for each row.",
    ),
]
ConnectTo = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="At a follower: the leader's address.")
]
Tls = Annotated[
    Path | None,
    path_option(
        metavar="DIR",
        help="The folder with this party's certificate.pem, key.pem and authority.pem, from "
        "`fedveil vertical certificates` or from your own certificate authority.",
    ),
]
Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure",
        help="Use no TLS: only for loopback addresses (this machine). Every connection needs "
        "--tls or --insecure.",
    ),
]
Patience = Annotated[
    float, typer.Option(min=1, help="Seconds to wait for a party to connect or reconnect.")
]
PATIENCE_S = 600.0
