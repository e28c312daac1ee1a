"""`fedveil vertical check`: finds edits of a run's logs and of a model bundle's files."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Annotated

import typer

from fedveil.base.plain_text import remark, say
from fedveil.base.quantity import quantity
from fedveil.cli.path_argument import path_argument, path_option
from fedveil.cli.vertical.arguments import Tls
from fedveil.errors import BundleInvalid, FedveilError, RunFolderError


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
    tls: Tls = None,
) -> object:
    """Check that nobody has edited a party's log, or the files of its part of the model."""
    from fedveil.record.event_log import anchors, faults
    from fedveil.record.run_folder import EVENTS
    from fedveil.vertical.bundle import CONTENTS

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
    unchecked = {}
    for bundle in bundles:
        try:
            sentence, rest = _bundle_checked(bundle, tls)
            say(f"{bundle}: {sentence}")
            unchecked[str(bundle)] = rest
        except FedveilError as error:
            found.append(str(error))
    for sentence in found:
        remark(sentence, "error")
    if found:
        raise typer.Exit(1)
    return {"logs": logs, "bundles": bundles, "unchecked": unchecked}


def _bundle_checked(path: Path, tls: Path | None) -> tuple[str, str | None]:
    """Check the model bundle in the folder `path`, with its signatures.

    With the folder `tls`, the signers' certificates must come from an authority that the bundle's
    party trusts. Returns a sentence on what is true of the bundle, and the part of it that says
    what was not checked, or None. Raises BundleInvalid if the bundle was edited.
    """
    from fedveil.link.tls import Credentials
    from fedveil.vertical.bundle import Bundle

    bundle = Bundle.read(path)
    manifest, party = bundle.manifest, bundle.contents.party
    own = None if tls is None else Credentials.read(tls, party, manifest.contents)
    try:
        rest = bundle.signatures.check(manifest.written(), list(manifest.contents), own)
    except BundleInvalid as error:
        raise BundleInvalid(f"{path}: {error}") from None
    if rest is None:
        return "every file is the one that the parties agreed on and signed", None
    if bundle.signatures.by_party:
        return f"every file is as signed in the names of all parties, but {rest}", rest
    return (
        f"every file agrees with the digests that are beside it. But {rest}. So this check cannot "
        f"find an edit if the editor also computed new digests",
        rest,
    )
