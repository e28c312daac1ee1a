"""`fedveil vertical check`: finds edits of a run's logs and of a model bundle's files."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Annotated

import typer

from fedveil.base.plain_text import remark, say
from fedveil.base.quantity import quantity
from fedveil.cli.path_argument import path_argument, path_option
from fedveil.errors import FedveilError, RunFolderError


def check(
    run: Annotated[
        Path,
        path_argument(
            help="A run folder, or the folder of a party's part of the model, PARTY/bundle in a "
            "run folder."
        ),
    ],
    against: Annotated[
        list[Path] | None,
        path_option(
            help="Another party's events.log. It contains checksums of the log in RUN; the "
            "command compares the log in RUN with them. May be repeated."
        ),
    ] = None,
) -> object:
    """Check that nobody has edited a party's log, or the files of its part of the model."""
    from fedveil.record.event_log import anchors, faults
    from fedveil.record.run_folder import EVENTS
    from fedveil.vertical.bundle import CONTENTS, Bundle

    logs = sorted(run.rglob(EVENTS))
    bundles = sorted(file.parent for file in run.rglob(CONTENTS))
    if not logs and not bundles:
        raise RunFolderError(f"{run} has no {EVENTS} and no model bundle to check")
    said: dict[str, list[str]] = defaultdict(list)
    for other in {*logs, *(against or [])}:
        for party, digest in anchors(other):
            said[party].append(digest)
    found = []
    owners = {log.resolve().parent.name for log in logs}
    for other in against or ():
        told_of = {party for party, _ in anchors(other)}
        if not told_of & owners:
            found.append(
                f"{other} has records of the logs of {', '.join(sorted(told_of)) or 'nobody'}, and "
                f"{run} has none of these logs: a log's folder must have its party's name"
            )
    for log in logs:
        about = said.get(log.resolve().parent.name, ())  # resolved, as `run` may be "."
        wrong = faults(log, about)
        found += wrong
        if not wrong:
            seen = len(about)
            told = f"; it agrees with {quantity(seen, 'record')} in other logs" if seen else ""
            say(f"{log}: no line was removed or edited{told}")
    for bundle in bundles:
        try:
            Bundle.read(bundle)
            say(f"{bundle}: every file is the one that the parties agreed on")
        except FedveilError as error:
            found.append(str(error))
    for sentence in found:
        remark(sentence, "error")
    if found:
        raise typer.Exit(1)
    return {"logs": logs, "bundles": bundles}
