"""`fedveil vertical serve-predictions`: predictions for new rows over HTTP."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import Annotated

import typer

from fedveil.base.plain_text import remark, say
from fedveil.cli.vertical import arguments
from fedveil.cli.vertical.new_rows import meeting_of, only, opened, source_of
from fedveil.errors import InvalidValue


def serve_predictions(
    run: arguments.ServedRun,
    data: Annotated[
        list[str],
        typer.Option(
            metavar="[PARTY=]FILE",
            help="A CSV or Parquet file with an id column and this party's columns of the "
            "rows that may be asked about. If all parties are in this process, repeat the option as"
            " PARTY=FILE for each party.",
        ),
    ],
    http: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="The address on which to wait for HTTP requests. Required, except at a follower.",
        ),
    ] = None,
    listen: arguments.Listen = None,
    connect: arguments.ConnectTo = None,
    most_ids: arguments.MostIds = None,
    queue: Annotated[
        int,
        typer.Option(
            min=1,
            max=10_000,
            help="Number of requests that may wait. Further ones get HTTP status 503.",
        ),
    ] = 64,
    guesses: Annotated[
        int,
        typer.Option(
            min=0,
            help="Largest number of unknown ids that one HTTP client may ask about, for this file "
            "of rows. An id is unknown if it is not in every party's file. The count survives a "
            "restart. All further "
            "requests of this client get status 429. "
            "With --insecure, all clients count as one.",
        ),
    ] = 100,
    tls: arguments.Tls = None,
    insecure: arguments.Insecure = False,
    patience: arguments.Patience = arguments.PATIENCE_S,
) -> object:
    """Answer HTTP requests for predictions until Ctrl-C.

    If the parties are on several machines, give --http and --listen at the leader (the party with
    the labels), and --connect at the followers (all others). With --tls, all connections use TLS:
    requests need HTTPS and a client certificate. With --insecure, all are unencrypted, and --http,
    --listen and --connect must be loopback addresses.
    """
    from fedveil.link.streams import Address
    from fedveil.link.tls import Credentials
    from fedveil.vertical.scoring.service import PredictionService
    from fedveil.vertical.scoring.sources import serve

    if (http is None) == (connect is None):
        raise InvalidValue("the leader needs --http HOST:PORT, a follower --connect HOST:PORT")
    if (tls is None) != insecure:
        raise InvalidValue("one of --tls DIR and --insecure is needed, the latter on loopback only")
    with ExitStack() as stack:
        scorers = opened(run, data, stack, tls, most_ids)
        for scorer in scorers.values():
            stack.callback(scorer.keep_account)
        if connect is not None:
            scorer = only(scorers, leads=False)
            serve(scorer, meeting_of("--connect", connect, scorer, tls, insecure, patience))
        assert http is not None, "the leader has clients"
        address = Address.parse("--http", http)
        source = source_of(scorers, listen, tls, insecure, patience, stack)
        own = None
        if tls is not None:
            own = Credentials.read(tls, source.leader.name, list(source.leader.split.parties))
        service = PredictionService(source, own, queue=queue, guesses=guesses, report=remark)
        if (note := service.note) is not None:
            remark(note)
        scheme = "http" if own is None else "https"
        asyncio.run(
            service.run(address, lambda here: say(f"predictions at {scheme}://{here}/predict"))
        )
    return {}
