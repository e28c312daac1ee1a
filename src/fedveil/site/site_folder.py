"""The files of a site: its policy, its keys, its accounts and its logs.

    policy.yaml    the owner's demands
    identity.pem   the site's key for signed rounds
    account.key    the key that authenticates the accounts
    accounts/      an account for each data set
    state/         for each job, a key for its state and the number of its last answered round
    logs/SERVER/   a log for each server: every answer and every refusal

The folder may also contain modules with the owner's functions that read data.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from shlex import quote

from fedveil.base.files import locked, write_new
from fedveil.base.quantity import quantity
from fedveil.base.untrusted import MOST_KEY_BYTES, escaped, read_bytes
from fedveil.entropy import Secure
from fedveil.errors import DeploymentError, SiteError, nearest
from fedveil.federated.job import Job
from fedveil.federated.protection_switch import ProtectionSettings
from fedveil.flower.job.app_folder import read_roster
from fedveil.flower.job.member import Member, Owner
from fedveil.flower.job.signing_key_file import make_identity, read_identity
from fedveil.flower.sealed_state import StateFolder
from fedveil.protections.secure_sum_settings import SecureSumSettings
from fedveil.record.event_log import EventLog
from fedveil.secagg.keys import Identity
from fedveil.secagg.secret import Secret
from fedveil.site.account import SiteAccount
from fedveil.site.admission import Admission
from fedveil.site.policy import Policy
from fedveil.site.policy_blocks import DataSetSettings
from fedveil.site.policy_start import START

POLICY, IDENTITY, KEY, LOG = "policy.yaml", "identity.pem", "account.key", "site.log"
_ACCOUNTS, _STATE, _LOGS = "accounts", "state", "logs"
_KEY_BYTES = 32
_LONGEST = 500


@dataclass(frozen=True)
class Site:
    """A site's folder, with a valid policy. Open it with `open`."""

    folder: Path
    policy: Policy
    admission: Admission

    @classmethod
    def open(cls, folder: Path) -> Site:
        """Open a site's folder. Raises `JobError` for an invalid policy.

        Raises `SiteError` if `folder` is not a site's folder, or if other users may open it.
        """
        if not (folder / POLICY).is_file():
            raise SiteError(
                f"{folder} is no site's folder. Make one with: fedveil site init "
                f"{quote(str(folder))}"
            )
        mode = stat.S_IMODE(folder.stat().st_mode)
        if mode & 0o077:
            raise SiteError(f"{folder} is open to other users: its mode is {mode:o}, use 700")
        policy = Policy.load(folder / POLICY)
        return cls(folder, policy, Admission.of(policy, folder))

    def account(self, data_set: str) -> SiteAccount:
        counter = self.policy.counter
        return SiteAccount.open(
            self.folder / _ACCOUNTS,
            data_set,
            key=self._key(),
            counter=None if counter is None else self.folder / counter,
        )

    def member(self, server: str, job: Job, data_set: DataSetSettings, owner: Owner) -> Member:
        """Return this site as a client of a server's job.

        `data_set` is the policy's block for the job's data. Each report is charged through `owner`.
        """
        of = self.policy.servers[server]
        state = StateFolder(self.folder / _STATE)
        signs = job.protection.position.needs_roster(job.protection.settings)
        return Member(
            client=of.client,
            data=data_set.reader,
            seeded=False,
            keys=state,
            accounts=state,
            identity=self.folder / IDENTITY if signs else None,
            roster=self.folder / of.roster if signs and of.roster else None,
            job=None,
            owner=owner,
        )

    def seat(self, server: str, *, signs: bool) -> Seat:
        """Return this site's number, state and keys for the jobs of a server.

        `signs` is True for signed rounds. Raises `SiteError` if their roster of keys is missing.
        """
        of = self.policy.servers[server]
        if signs and of.roster is None:
            raise SiteError(f"servers.{server}.roster is null: name a file with all sites' keys")
        return Seat(
            of.client,
            StateFolder(self.folder / _STATE),
            read_roster(self.folder / str(of.roster)) if signs else {},
            read_identity(self.folder / IDENTITY) if signs else None,
        )

    @property
    def notes(self) -> list[str]:
        """The policy's warnings, and the reasons why this site cannot take part in signed rounds.

        A policy that allows no signed rounds needs no roster.
        """
        signs = self.policy.strength.active_security
        allowed = (ProtectionSettings(name=name).settings for name in self.policy.protections)
        summed = any(isinstance(settings, SecureSumSettings) for settings in allowed)
        servers = self.policy.servers if signs and summed else {}
        found = [reason for server in servers for reason in self._no_signed_rounds(server)]
        return [*self.policy.warnings, *found]

    def _no_signed_rounds(self, server: str) -> Iterator[str]:
        of = self.policy.servers[server]
        try:
            seat = self.seat(server, signs=True)
            assert seat.identity is not None, "a seat that signs has one"
            own = Identity(seat.identity).public
        except (SiteError, DeploymentError) as error:
            yield f"no signed rounds with {server}: {error}"
            return
        if (named := seat.roster.get(of.client)) != own:
            held = "no key" if named is None else "another key than this site's own"
            yield (
                f"no signed rounds with {server}: {self.folder / str(of.roster)} has {held} for "
                f"client-{of.client}. This site's public key is {own.hex()}"
            )

    def no_client(self, server: str, job: Job) -> str:
        """Return a sentence if the server's job has no client with this site's number, else ""."""
        client, number = self.policy.servers[server].client, job.clients.number or 0
        if client < number:
            return ""
        return f"this site is client {client}, but the job has only {quantity(number, 'client')}"

    @contextmanager
    def log(self, server: str, *, wait: bool = True) -> Iterator[SiteLog]:
        """Open the site's log for a server, in a `with` block.

        If another process has the log open, waits, or raises `SiteError` if `wait` is False.
        """
        path = self.folder / _LOGS / server
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        with ExitStack() as held:
            try:
                held.enter_context(locked(path / LOG, wait=wait))
            except BlockingIOError:
                raise SiteError(
                    f"another process serves {server} from {self.folder}: end it first"
                ) from None
            log = EventLog(path / LOG)
            try:
                yield SiteLog(log)
            finally:
                log.close()

    def _key(self) -> bytes:
        try:
            key = read_bytes(self.folder / KEY, MOST_KEY_BYTES)
        except OSError as error:
            raise SiteError(f"{self.folder / KEY} cannot be read: {error.strerror}") from None
        if len(key) != _KEY_BYTES:
            raise SiteError(f"{self.folder / KEY} does not hold a key of {_KEY_BYTES} bytes")
        return key


@dataclass(frozen=True)
class Seat:
    """A site as one of a server's clients: its number, its state and its keys.

    `roster` has the public keys of all clients, and `identity` this site's private key. Without
    signed rounds, `roster` is empty and `identity` is None.
    """

    client: int
    state: StateFolder
    roster: Mapping[int, bytes]
    identity: Secret | None


class SiteLog:
    """A log with a line for each event. A hash chain reveals changed and missing lines."""

    def __init__(self, log: EventLog) -> None:
        self._log = log

    def line(self, text: str) -> None:
        """Write a line with the time and `text`, whose control characters are escaped."""
        plain = escaped(" ".join(text.split()))
        short = plain if len(plain) <= _LONGEST else f"{plain[:_LONGEST]}..."
        self._log.append(f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} {short}")


def server_of(policy: Policy, named: str | None) -> str:
    """Return the name of the server to serve: `named`, or the policy's only server.

    Raises `SiteError` if the policy has no server `named`. If `named` is None, raises it unless the
    policy has exactly one server.
    """
    if named is None and len(policy.servers) == 1:
        return next(iter(policy.servers))
    if named in policy.servers:
        return str(named)
    known = ", ".join(policy.servers) or "none"
    if named is None:
        raise SiteError(f"name the server to serve. The servers in {POLICY}: {known}")
    raise SiteError(
        f"{named} is not one of servers in {POLICY}: {known}{nearest(named, policy.servers)}"
    )


def create(folder: Path) -> str:
    """Create a new site's folder, and return its public key. Never overwrites a file."""
    try:
        folder.mkdir(mode=0o700, parents=True)
        write_new(folder / POLICY, START.encode())
        write_new(folder / KEY, Secure().token(_KEY_BYTES))
    except FileExistsError:
        raise SiteError(f"{folder} exists already: name a new folder") from None
    except OSError as error:
        raise SiteError(f"{folder} cannot be made: {error.strerror}") from None
    return make_identity(folder / IDENTITY)
