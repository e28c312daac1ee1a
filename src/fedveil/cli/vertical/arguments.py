"""Command-line arguments that several commands of `fedveil vertical` share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

JobPath = Annotated[
    Path | None, typer.Argument(help="A vertical job file. Default: the built-in vertical job.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="KEY=VALUE: set a key of the job by its dotted path; may be repeated."
    ),
]
KeyPart = Annotated[
    str | None, typer.Argument(metavar="[KEY]", help="A key or a block of keys. Default: all keys.")
]
Out = Annotated[
    Path | None, typer.Option(help="The run folder. Default: a new folder under runs/.")
]
RunPath = Annotated[
    Path,
    typer.Argument(
        help="The run folder. With --listen: the leader's own folder. Without: the folder that "
        "`fedveil vertical run` wrote."
    ),
]
ScoredRun = Annotated[
    Path,
    typer.Argument(
        help="The run folder. For new rows on several machines: this party's model bundle."
    ),
]
Listen = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="The address on which the leader listens for followers. Port 0: any free port.",
    ),
]
Data = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[PARTY=]FILE",
        help="A file of new rows to score, without labels. If all parties are in this process, "
        "repeat the option as PARTY=FILE for each party.",
    ),
]
MostIds = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Maximum number of ids that another party may bring for this file, in all sessions. "
        "Default: alignment.most_ids of the job.",
    ),
]
ConnectTo = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="On a follower: the leader's address.")
]
Tls = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="The folder with this party's certificate and key, from `fedveil vertical "
        "certificates` or your own PKI.",
    ),
]
Insecure = Annotated[
    bool,
    typer.Option("--insecure", help="Connect without TLS. Only allowed on a loopback address."),
]
Patience = Annotated[
    float, typer.Option(min=1, help="Seconds to wait for a party that is not connected.")
]
PATIENCE_S = 600.0
