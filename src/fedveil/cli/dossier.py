"""`fedveil dossier`: the evidence for a run's privacy claim, in one folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from fedveil.base.plain_text import say
from fedveil.cli.path_argument import path_argument, path_option


def dossier(
    run: Annotated[Path, path_argument(metavar="RUN", help="The folder of a run.")],
    out: Annotated[
        Path | None,
        path_option(help="The folder to write to. Default: dossier, in the run's folder."),
    ] = None,
) -> object:
    """Write files that let a reviewer check a run's privacy claim.

    The files are a page, a JSON record, and a script that recomputes epsilon, the privacy cost.
    """
    from fedveil.pages.dossier.dossier_folder import Dossier
    from fedveil.privacy.guarantee_strength import Figure

    found = Dossier.of(run)
    wrote = list(found.write(out or run / "dossier"))
    for path in wrote:
        say(f"wrote {path}")
    for account in found.evidence.accounts:
        say(f"{Figure(account.epsilon, account.delta)} for {account.of}")
    empty = {s.key: s.missing for s in found.statements if not s.lines}
    if empty:
        say(f"not stated: {', '.join(empty)}")
    return {"wrote": wrote, "missing": empty}
