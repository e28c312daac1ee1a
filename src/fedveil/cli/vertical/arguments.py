"""Command-line arguments that several commands of `fedveil vertical` share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

JobPath = Annotated[
    Path | None,
    typer.Argument(
        help="A job file for split learning. Default: a built-in job on images of digits."
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
Out = Annotated[
    Path | None, typer.Option(help="The run folder. Default: a new folder under runs/.")
]
RunPath = Annotated[
    Path,
    typer.Argument(
        help="The folder that `fedveil vertical run` wrote. With --listen: the folder that "
        "`fedveil vertical leader` wrote."
    ),
]
ScoredRun = Annotated[
    Path,
    typer.Argument(
        help="The run folder. With --data and parties on several machines: the folder "
        "PARTY/bundle in this party's run folder, which has its part of the model."
    ),
]
Listen = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="If this party has the labels (the leader): the address on which it waits for the "
        "other parties. Port 0: any free port.",
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
        help="The largest number of ids that another party may send, in all predictions together. "
        "It sends ids to find the common rows, and learns which of them are in the --data file. "
        "Default: the job's alignment.most_ids, else four times the file's number of ids.",
    ),
]
ConnectTo = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT", help="If this party has no labels (a follower): the leader's address."
    ),
]
Tls = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="The folder with this party's certificate.pem, key.pem and authority.pem, from "
        "`fedveil vertical certificates` or from your own certificate authority.",
    ),
]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Use no TLS. Only for loopback addresses.")
]
Patience = Annotated[
    float,
    typer.Option(
        min=1, help="Seconds to wait for a party that is not connected, at the start and later."
    ),
]
PATIENCE_S = 600.0
