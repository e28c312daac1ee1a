"""`fedveil site`: controls what may leave a site (an organisation on whose data others train)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedveil.base.plain_text import document, say
from fedveil.cli import site_account
from fedveil.cli.exits import Commands
from fedveil.cli.job_arguments import remarks
from fedveil.cli.json_answer import ServesAsJson, answering
from fedveil.cli.path_argument import path_argument, path_option
from fedveil.errors import SiteRefused

if TYPE_CHECKING:
    from fedveil.site.reader_check import Records
    from fedveil.site.site_folder import Site

app = typer.Typer(
    help="Control what may leave a site (an organisation on whose data others train).",
    no_args_is_help=True,
    cls=Commands,
)

SiteFolder = Annotated[
    Path, path_argument(metavar="SITE", help="A folder from `fedveil site init`.")
]


@app.command()
@answering
def init(
    site: Annotated[Path, path_argument(metavar="SITE", help="The folder to create.")],
) -> object:
    """Create a site's folder: a strict policy to edit, and a key pair that identifies the site."""
    from fedveil.site.site_folder import create

    public = create(site)
    say(f"wrote {site / 'policy.yaml'}")
    say(f"this site's public key, for the studies' rosters: {public}")
    return {"site": site, "public": public}


@app.command()
@answering
def check(
    site: SiteFolder,
    job: Annotated[
        Path | None,
        path_argument(
            help="A job file, the folder that `fedveil deploy` wrote, or the app folder of a job "
            "for the framework NVFlare. The command also prints the job's digest (a hash), by "
            "which the policy can permit the job."
        ),
    ] = None,
) -> object:
    """Check a site's policy, and read the data with its readers. Nothing leaves this machine.

    With JOB: also say whether the policy permits the job, and read only the job's data set. The
    exit code is 1 if the policy does not permit the job, or if a reader fails.
    """
    from fedveil.site.site_folder import Site

    opened = Site.open(site)
    remarks("note", opened.notes)
    if job is None:
        from fedveil.site.reader_check import read_all

        say("the policy is valid")
        return {"warnings": opened.notes, "records": _told_records(read_all(opened))}
    if (job / "config").is_dir():
        return _check_nvflare(opened, job)
    from fedveil.site.code_folder import read, top
    from fedveil.site.order import order_in

    order = order_in(job)
    digest, reasons = order.digest.hex(), list(opened.admission.reasons(order))
    say(f"digest {digest}")
    code = {name: read(site, name).digest for name in sorted(set(map(top, order.code)))}
    for name, of in code.items():
        say(f"code {name}: {of}")
    if reasons:
        raise SiteRefused(f"{opened.policy.name} refuses {job}: {'; '.join(reasons)}")
    say(f"{opened.policy.name} accepts {job}")
    servers = ((name, opened.no_client(name, order.job)) for name in opened.policy.servers)
    remarks("note", [f"not from {name}: {reason}" for name, reason in servers if reason])
    from fedveil.site.reader_check import read_for

    return {"digest": digest, "code": code, "records": _told_records(read_for(opened, order.job))}


def _told_records(found: Iterable[Records]) -> dict[str, int]:
    """Print how many records each reader returned. Returns these numbers by data set."""
    counts = {}
    for records in found:
        say(str(records))
        remarks("note", [records.note] if records.note else [])
        counts[records.data_set] = records.count
    return counts


def _check_nvflare(site: Site, job: Path) -> object:
    from fedveil.site.one_report import config_digest

    digest = config_digest(job / "config")
    say(f"digest {digest}")
    if digest not in site.policy.jobs.digests:
        raise SiteRefused(f"{site.policy.name} refuses {job}: it is not in jobs.digests")
    if site.policy.starters:
        raise SiteRefused(
            f"{site.policy.name} refuses {job}: starters is set, but no one in people can sign a "
            "job of NVFlare"
        )
    if (job / "custom").is_dir() and any((job / "custom").iterdir()):
        raise SiteRefused(f"{site.policy.name} refuses {job}: it brings its own code in custom")
    say(f"{site.policy.name} accepts {job}")
    return {"digest": digest}


@app.command()
@answering
def show(
    site: Annotated[
        Path | None,
        path_argument(
            metavar="SITE", help="A folder from `fedveil site init`. Default: same as --keys."
        ),
    ] = None,
    keys: Annotated[
        bool, typer.Option("--keys", help="Explain every setting of a policy.")
    ] = False,
) -> object:
    """Print a site's policy with all its settings. With --keys: explain the settings."""
    if keys or site is None:
        from fedveil.settings.reference import key_rows
        from fedveil.settings.reference import keys as explained
        from fedveil.site.policy_reference import reference

        document(explained(reference(), None))
        return key_rows(reference(), None)
    from fedveil.site.site_folder import Site

    policy = Site.open(site).policy
    remarks("note", policy.warnings)
    document(policy.to_yaml(), exact=True)
    return policy.model_dump(mode="json")


@app.command()
@answering
def sign(
    app: Annotated[
        Path, path_argument(metavar="APP", help="The folder that `fedveil deploy` wrote.")
    ],
    key: Annotated[Path, path_option(help="Your private key, from `fedveil identity`.")],
) -> object:
    """Sign a job's Flower app, so that a site can check who signed it."""
    from fedveil.site.order import sign as sign_app

    path = sign_app(app, key)
    say(f"wrote {path}")
    return {"wrote": path}


app.command()(answering(site_account.account))


def serve(
    site: SiteFolder,
    server: Annotated[
        str | None,
        typer.Argument(
            help="A name under `servers` in the policy. May be omitted if there is only one."
        ),
    ] = None,
) -> object:
    """Connect to a Flower server, and take part in the jobs that the site's policy permits.

    Runs until Ctrl-C.
    """
    from fedveil.site.site_folder import Site, server_of

    opened = Site.open(site)
    remarks("note", opened.notes)
    from fedveil.site.supernode import serve as serve_jobs

    served = server_of(opened.policy, server)
    serve_jobs(opened, served, say)
    return {"served": served}


app.command()(answering(serve, ServesAsJson))
