"""`fedveil vertical leader | follower | certificates`: one party per machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from fedveil.base.plain_text import remark, say
from fedveil.cli.path_argument import RunOut, path_argument, path_option
from fedveil.cli.vertical import arguments
from fedveil.cli.vertical.job_file import load, print_results
from fedveil.errors import InvalidValue, JobError, RunFolderError
from fedveil.vertical.memory_reuse import keep_freed_memory

if TYPE_CHECKING:
    from fedveil.link.channel import Exchange
    from fedveil.vertical.job import VerticalJob
    from fedveil.vertical.party_run import PartyRun
    from fedveil.vertical.remote.machine import Machine, Session
    from fedveil.vertical.remote.sessions import Meeting
    from fedveil.vertical.split import SplitModel
    from fedveil.vertical.task import Task

_leader_of = attrgetter("leader")
MustListen: TypeAlias = Annotated[
    str,
    typer.Option(
        "--listen",
        metavar="HOST:PORT",
        help="The address on which to wait for the followers. Port 0: any free port.",
    ),
]
Connect: TypeAlias = Annotated[str, typer.Option(metavar="HOST:PORT", help="The leader's address.")]


def leader(
    listen: MustListen,
    job: arguments.JobPath = None,
    overrides: arguments.Overrides = None,
    out: RunOut = None,
    resume: arguments.Resume = None,
    tls: arguments.Tls = None,
    insecure: arguments.Insecure = False,
    patience: arguments.Patience = arguments.PATIENCE_S,
) -> object:
    """Take part as the leader, the party with the labels: wait for the others, and train."""
    settings = _own_job(job, overrides, out, resume)
    from fedveil.vertical.remote import sessions

    keep_freed_memory()
    with ExitStack() as stack:
        machine = _machine(_leader_of, settings, out, resume, sessions.LEADER, stack)
        meeting = _meeting("--listen", listen, machine, tls, insecure, patience)
        return _ended(machine, sessions.lead(machine, meeting))


def follower(
    connect: Connect,
    job: arguments.JobPath = None,
    overrides: arguments.Overrides = None,
    out: RunOut = None,
    resume: arguments.Resume = None,
    serve: Annotated[
        Path | None,
        path_option(
            help="Instead of training, serve the model in this run folder to a leader that runs "
            "`evaluate`, `generate` or, for the held-out examples, `predict`. Waits for the leader "
            "until Ctrl-C. For new rows, run `fedveil vertical predict --connect` instead."
        ),
    ] = None,
    party: Annotated[
        str | None,
        typer.Option(
            help="The name of this party in the job. Default: the only follower of the job, or "
            "else the name in the certificate."
        ),
    ] = None,
    tls: arguments.Tls = None,
    insecure: arguments.Insecure = False,
    patience: arguments.Patience = arguments.PATIENCE_S,
) -> object:
    """Take part as a follower, a party without labels: train, or serve a trained model."""
    if serve is not None and resume is not None:
        raise JobError(
            [
                "--serve and --resume exclude each other: --serve uses a trained model, --resume "
                "trains"
            ]
        )
    settings = _own_job(job, overrides, out, resume or serve)
    from fedveil.vertical.remote import sessions
    from fedveil.vertical.remote.machine import follower_of

    def here(task: Task) -> str:
        return follower_of(task, party, tls)

    keep_freed_memory()
    with ExitStack() as stack:
        machine = _machine(
            here, settings, out, resume or serve, sessions.FOLLOWER, stack,
            finished=serve is not None,
        )  # fmt: skip
        meeting = _meeting("--connect", connect, machine, tls, insecure, patience)
        if serve is not None:
            say(f"{machine.party} serves {serve}; Ctrl-C ends it")
        say(f"{machine.party} waits for {machine.split.leader}, the leader, at {meeting.address}")
        if serve is not None:
            sessions.serve(machine, meeting)
        return _ended(machine, sessions.follow(machine, meeting))


def _ended(machine: Machine, session: Session) -> object:
    """Write the HTML page of this party's run and print its results. Returns them for `--json`."""
    from fedveil.pages.run_folder_page import keep_page

    keep_page(machine.root, session.run.log.event)
    return print_results(session.folder)


def certificates(
    directory: Annotated[
        Path,
        path_argument(
            help="The folder to write to. The certificate and private key of each party go to a "
            "subfolder with its name. Give each subfolder to its party only. The authority's "
            "files are in DIRECTORY itself."
        ),
    ],
    party: Annotated[list[str], typer.Option(help="A party's name; may be repeated.")],
    days: Annotated[int, typer.Option(min=1, help="Days until the certificates expire.")] = 825,
) -> object:
    """Create each party's TLS certificate, and a certificate authority if DIRECTORY has none.

    An existing authority is never replaced, even if its key is kept elsewhere.
    """
    from fedveil.link.own_authority import write_certificates

    wrote = list(write_certificates(directory, party, days=days))
    for path in wrote:
        say(f"wrote {path}: give this folder only to {path.name}")
    say(f"{directory / 'authority.key'} stays here: anyone who has it can impersonate any party")
    return {"wrote": wrote, "authority": directory / "authority.key"}


def look(
    purpose: str,
    run: Path,
    listen: str,
    tls: Path | None,
    insecure: bool,
    patience: float,
    own: Callable[[PartyRun], Exchange[Any]] | None = None,
) -> Session:
    """Run the leader's side of a command, such as evaluation, on the trained model in `run`.

    The leader listens at the address `listen`, and waits `patience` seconds for a follower that is
    not connected. `purpose`, such as "evaluate", tells the followers what to do. `own` is the
    function that does the leader's part and exchanges messages with the followers. By default, it
    is the usual one for `purpose`, such as `PartyRun.evaluate`. Returns the ended session, with its
    result.
    """
    from fedveil.vertical.remote import sessions
    from fedveil.vertical.remote.machine import Machine

    with ExitStack() as stack:
        machine = Machine.reopened(run, _leader_of, stack)
        meeting = _meeting("--listen", listen, machine, tls, insecure, patience)
        return sessions.lead(machine, meeting, purpose, own)


def _own_job(
    job: Path | None, overrides: Sequence[str] | None, out: Path | None, old: Path | None
) -> VerticalJob | None:
    """Load the job of the command's options, or return None to use the job of the run in `old`.

    `old` is the run folder that --resume or --serve names. If it is None, `job` and `overrides`
    determine the job. Otherwise raises `JobError` if `job`, `overrides` or `out` is given.
    """
    if old is None:
        return load(job, overrides)
    if job is not None or overrides or out is not None:
        raise JobError(["--resume and --serve use the run's own job: remove JOB, --set and --out"])
    return None


def _machine(
    here: Callable[[Task], str],
    job: VerticalJob | None,
    out: Path | None,
    old: Path | None,
    command: str,
    stack: ExitStack,
    *,
    finished: bool = False,
) -> Machine:
    from fedveil.vertical.remote.machine import Machine

    if job is not None:
        return Machine.new(job, here, out, command, stack)
    assert old is not None, "a job or a folder that holds one"
    machine = Machine.reopened(old, here, stack)
    if machine.has_finished and not finished:
        raise RunFolderError(
            f"the run in {old} has ended: use its model with `fedveil vertical evaluate` or "
            "`predict` at the leader, and --serve at the followers"
        )
    return machine


def _meeting(
    option: str, address: str, machine: Machine, tls: Path | None, insecure: bool, patience: float
) -> Meeting:
    from fedveil.vertical.task import notes_of

    for sentence in notes_of(machine.task, machine.party):
        say(sentence)
    return meeting(option, address, machine.party, machine.split, tls, insecure, patience)


def meeting(
    option: str,
    address: str,
    party: str,
    split: SplitModel,
    tls: Path | None,
    insecure: bool,
    patience: float,
) -> Meeting:
    """Return the settings with which `party` connects to the other parties of `split`.

    `option` is the option that gave the `address`, for error messages. `tls` is the folder of the
    party's certificates, and None if `insecure` is True. The connection is then plaintext.
    A missing party has `patience` seconds to connect.
    """
    from fedveil.link.streams import Address
    from fedveil.link.tls import Credentials
    from fedveil.vertical.log_lines import line
    from fedveil.vertical.remote.sessions import Meeting

    if (tls is None) != insecure:
        raise InvalidValue(
            "--tls and --insecure exclude each other"
            if insecure
            else "--tls DIR is missing: plaintext needs --insecure, and a loopback address"
        )
    parties = [split.leader, *split.followers]
    return Meeting(
        address=Address.parse(option, address),
        credentials=None if tls is None else Credentials.read(tls, party, parties),
        patience_s=patience,
        report=remark,
        progress=lambda record: say(line(record)),
        listening=lambda here: say(f"{party} listens on {here}"),
    )
