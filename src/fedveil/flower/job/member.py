"""The clients that a node holds, from its configuration: one client, or several of one operator."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fedveil.base.message import Message as Words
from fedveil.errors import ClientWithheld, DeploymentError
from fedveil.federated.job import Job
from fedveil.flower.misspelt_keys import refuse_misspelt
from fedveil.flower.own_account import LIMIT_KEYS, own_limit
from fedveil.flower.sealed_state import STATE_FOLDER, StateFolder
from fedveil.protections.base import Protection, Update
from fedveil.rounds.outcomes import ClientId

#: Stands for the client's number in a node configuration.
_CLIENT = "{client}"
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
#: The keys of a node configuration that the client of any app reads, and those of a job's client.
NODE_KEYS = ("client", "partition-id", "data", STATE_FOLDER, "identity", "roster")
_JOB_KEYS = (*NODE_KEYS, *LIMIT_KEYS, "clients", "seeded", "job")


class Owner(Protocol):
    """The demands of the site's owner. They hold for every job, and no job can remove them.

    With an owner, an unusable update is reported as an update of zero under every protection. A
    missing report would reveal something that the owner has not permitted.
    """

    @property
    def answer_after_s(self) -> float | None:
        """Return the minimum seconds from a request to its answer, or None for no minimum."""

    def charge(self, protection: Protection, asked: Words) -> None:
        """Charge the report that `asked` requests. Raises an error if it must not be sent."""

    def disclose(self, value: str) -> None:
        """Record that the client sends a value in the clear, outside of any report."""

    def left_late(self) -> None:
        """Record that an answer leaves after its fixed time, so its time may depend on the data."""


class RoundTraining(Protocol):
    """A client's training in one round. It starts from the weights `model`."""

    model: Update

    def compile(self) -> None:
        """Compile the native code that this process will train with."""

    def update(
        self, client: ClientId, function: str | None, given_up: Callable[[], bool]
    ) -> tuple[Update, int]:
        """Return the client's update and number of examples. Raises any error of training.

        `function` names the user's function that returns the client's examples. None means that the
        client has its part of the job's data set. Once `given_up` returns True, the result is no
        longer needed, and training may end with an error.
        """

    @property
    def reported(self) -> Callable[[Protection, Words], None]:
        """A function that saves the client's state for the next round, after its report is made.

        Its arguments are the protection and the server's message.
        """


@dataclass(frozen=True)
class Member:
    """A client's identity on its SuperNode, from the node configuration.

    `client` is its number in the job. `data` names the user's function that returns its examples.
    If it is None, the client has its part of the job's data set. `seeded` is True if the client's
    reports use the job's seed. `keys` and `accounts` are the folders of the client's keys and of
    its accounts. `identity` is the file with its private key, and `roster` the file with every
    client's public key. `job` is the operator's copy of the job. `limit` is the operator's limit of
    the client's epsilon, or None, and the delta of this limit. `owner` holds the demands of the
    site's owner, if any. `training`, if given, trains in another process.
    """

    client: ClientId
    data: str | None
    seeded: bool
    keys: StateFolder
    accounts: StateFolder
    identity: Path | None
    roster: Path | None
    job: Path | None
    limit: tuple[float, float] | None = None
    owner: Owner | None = None
    training: Callable[[Job, Words], RoundTraining] | None = None

    @classmethod
    def of(cls, config: Mapping[str, object], client: ClientId) -> Member:
        """Return the identity, data and folders of client `client`, from the node configuration."""
        folder = _text(config, STATE_FOLDER)
        seeded = config.get("seeded", False)
        if not isinstance(seeded, bool):
            raise DeploymentError(
                f"the node configuration says seeded = {seeded!r}, true or false is needed"
            )
        limit = own_limit(config)
        if seeded and limit is not None:
            raise DeploymentError(
                "the node configuration says both seeded = True and max-epsilon, but reports that "
                "draw from a job's seed have no epsilon: remove one"
            )
        of_client = {key: _of_client(value, client) for key, value in config.items()}
        return cls(
            client=client,
            data=_text(of_client, "data"),
            seeded=seeded,
            keys=StateFolder.for_keys(folder),
            accounts=StateFolder.for_accounts(folder),
            identity=_path(of_client, "identity"),
            roster=_path(of_client, "roster"),
            job=_path(of_client, "job"),
            limit=limit,
        )

    def own_limits(self, job: Job) -> list[tuple[float, float]]:
        """Return the operator's limit of this client's epsilon in `job`, with its delta, if any.

        The server chooses the job's delta, and at a large delta almost any report has a small
        epsilon. So the limit holds at the smaller of the job's delta and the operator's. The server
        also chooses the job's unit, and an epsilon of one example says little about all examples of
        the client. Raises `ClientWithheld` if the epsilon is for one example, or relies on noise
        that the server adds, and the operator has no copy of the job that says so.
        """
        if self.limit is None:
            return []
        if self.job is None and job.privacy.unit == "example":
            raise ClientWithheld(
                "max-epsilon in the node configuration is a limit for all examples of this client "
                "together, but the job has privacy.unit = example, so its epsilon is for one of "
                "them: an operator who accepts this names an own copy of the job in the key job"
            )
        if self.job is None and job.protection.position.rests_on_server(job.protection.settings):
            raise ClientWithheld(
                "max-epsilon in the node configuration is a limit against the server, but the "
                "job's epsilon relies on noise that the server adds: an operator who trusts the "
                "server with this noise names an own copy of the job in the key job"
            )
        most, delta = self.limit
        return [(most, min(delta, job.privacy.delta))]


def members_of(config: Mapping[str, object], job: Job) -> dict[ClientId, Member]:
    """Return the clients in a node configuration, by their numbers in the job.

    The key `client` (or `partition-id`) names one client, and `clients` several, such as "0-9,12".
    """
    refuse_misspelt(config, _JOB_KEYS)
    named, most = config.get("clients"), job.deployment.clients_per_node
    numbers = [_one(config, job)] if named is None else _several(named, job)
    if len(numbers) > most:
        raise DeploymentError(
            f"the node configuration says clients = {named!r}, which are {len(numbers)}, and the "
            f"job allows deployment.clients_per_node = {most}"
        )
    if named is not None and "client" in config:
        raise DeploymentError("the node configuration says both client and clients: remove one")
    for key in ("data", "identity"):
        value = config.get(key)
        if len(numbers) > 1 and value is not None and _CLIENT not in str(value):
            raise DeploymentError(
                f"the node configuration says {key} = {value!r} for {len(numbers)} clients, and "
                f"each needs its own: write {_CLIENT} where the client's number stands"
            )
    return {number: Member.of(config, number) for number in numbers}


def _one(config: Mapping[str, object], job: Job) -> ClientId:
    number, clients = config.get("client", config.get("partition-id")), job.clients.number or 0
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < clients:
        raise DeploymentError(
            f"the node configuration says client = {number!r}, a whole number in "
            f"[0, {clients}) is needed: flower-supernode --node-config 'client=0'"
        )
    return number


def _several(named: object, job: Job) -> list[ClientId]:
    clients, numbers = job.clients.number or 0, set[ClientId]()
    for part in str(named).split(","):
        found = _RANGE.fullmatch(part.strip())
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, clients)
        if not first <= last < clients:
            raise DeploymentError(
                f"the node configuration says clients = {named!r}, numbers and ranges in "
                f"[0, {clients}) are needed: flower-supernode --node-config 'clients=\"0-9,12\"'"
            )
        numbers.update(range(first, last + 1))
    return sorted(numbers)


def _of_client(value: object, client: ClientId) -> object:
    return value.replace(_CLIENT, str(client)) if isinstance(value, str) else value


def _text(config: Mapping[str, object], key: str) -> str | None:
    value = config.get(key)
    if value is not None and not isinstance(value, str):
        raise DeploymentError(f"the node configuration says {key} = {value!r}, text is needed")
    return value


def _path(config: Mapping[str, object], key: str) -> Path | None:
    value = _text(config, key)
    return None if value is None else Path(value)
