"""The arguments that several commands of `fedveil vertical` take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

JobPath = Annotated[
    Path | None, typer.Argument(help="A vertical job file; without it, the default job.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", help="KEY=VALUE: any key by its dotted path; may be repeated."),
]
KeyPart = Annotated[
    str | None, typer.Argument(metavar="[KEY]", help="A key, or a block of them; without it, all.")
]
Out = Annotated[
    Path | None, typer.Option(help="The run's folder; without it, a new one under runs/.")
]
RunPath = Annotated[
    Path,
    typer.Argument(
        help="A run's folder: one that holds all parties, or with --listen the leader's own."
    ),
]
Listen = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT", help="Where the leader listens for followers; port 0: any free one."
    ),
]
Tls = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="This party's folder of `fedveil vertical certificates`."),
]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Plaintext, on a loopback address alone.")
]
Patience = Annotated[float, typer.Option(min=1, help="Seconds to wait for a party that is away.")]
PATIENCE_S = 600.0
