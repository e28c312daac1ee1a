"""`fedveil site account`: the epsilon spent on a data set, by which jobs, and what is left."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedveil.base.plain_text import console, say
from fedveil.base.quantity import quantity
from fedveil.cli.path_argument import path_argument, path_option
from fedveil.errors import SiteError, nearest


def account(
    site: Annotated[Path, path_argument(metavar="SITE", help="A folder from `fedveil site init`.")],
    data: Annotated[
        str | None,
        typer.Argument(help="The name of a data set in the policy. Default: all data sets."),
    ] = None,
    out: Annotated[
        Path | None,
        path_option(
            help="With DATA: a folder for an HTML page and a JSON record of the epsilon "
            "spent, and for a script that recomputes it."
        ),
    ] = None,
) -> object:
    """Show how much epsilon was spent on a data set, by which jobs, and how much is left.

    Epsilon is the privacy cost. The policy can limit it for each run, for each month and in total.
    """
    from fedveil.site.account_record import AccountRecord
    from fedveil.site.site_folder import Site

    opened = Site.open(site)
    policy = opened.policy
    if data is not None and data not in policy.data:
        raise SiteError(f"{data} is not one of data in the policy{nearest(data, policy.data)}")
    names = list(policy.data) if data is None else [data]
    if out is not None and len(names) != 1:
        raise SiteError(f"name the data set to write: {', '.join(names) or 'the policy has none'}")
    found: dict[str, Any] = {}
    for name in names:
        record = AccountRecord(policy.name, opened.account(name), policy.limits)
        _show(record, whole=data is not None)
        wrote = list(record.write(out)) if out is not None else []
        for path in wrote:
            say(f"wrote {path}")
        found[name] = {**record.record(), "wrote": wrote}
    if not names:
        say("nothing is spent: the policy names no data set yet")
    return found


def _show(record: Any, whole: bool) -> None:
    left, ever = record.left(), record.ever
    say(f"{record.account.name}: {quantity(ever.releases, 'release')}")
    say(f"  this month  {record.month.figure}, at least {left['month']} left")
    say(f"  for ever    {ever.figure}, at least {left['ever']} left")
    if ever.without_epsilon:
        say(f"  and {quantity(ever.without_epsilon, 'release')} without an epsilon")
    for name in ever.in_clear:
        say(f"  sent in the clear: {name}")
    if whole:
        console().print(record.jobs())
        console().print(record.months())
