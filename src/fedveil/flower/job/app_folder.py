"""The files in a deployed app's folder, besides its code: the job, and the clients' public keys."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from fedveil.errors import DeploymentError, JobError
from fedveil.federated.job import Job
from fedveil.federated.protection_switch import ProtectionSettings
from fedveil.rounds.outcomes import ClientId
from fedveil.settings import yaml_file

JOB = "job.yaml"
ROSTER = "roster.yaml"

#: Limits under which reading a roster takes at most some ten seconds. A line has about 85 bytes.
_MOST_CLIENTS = 100_000
_MOST_ROSTER_BYTES = 100 * _MOST_CLIENTS
_CLIENT = re.compile(r"client-(0|[1-9][0-9]{0,8})")
_PUBLIC_KEY = re.compile(r"[0-9a-f]{64}")


def check_deployable(job: Job) -> None:
    """Raise an error if the job has settings that only a simulation supports."""
    if job.simulation.dropouts:
        raise DeploymentError(
            f"simulation.dropouts = {job.simulation.dropouts} is a fault plan of the simulator; "
            f"on other machines clients fall silent by themselves: leave it out"
        )
    if job.audit.canaries:
        raise DeploymentError(
            f"audit.canaries = {job.audit.canaries}: the canaries of an audit are clients of the "
            f"simulator; on other machines they would be let into a model that is used: leave it "
            f"out"
        )
    if job.evaluation.clients:
        raise DeploymentError(
            f"evaluation.clients = {job.evaluation.clients:g}: on other machines each client's "
            f"figure would leave it without a line in the ledger: leave it out, and look at these "
            f"figures in a simulation"
        )
    if job.clients.own_layers and (job.stopping.may_end or job.stopping.keep == "best"):
        raise DeploymentError(
            "clients.own_layers and stopping: on other machines a client's own layers stay with "
            "it, so that the server's figures are of no client's model: leave stopping out"
        )


def read_job(folder: Path) -> Job:
    """Read the job in the app's folder.

    Raises `DeploymentError` if it states no number of clients, or has settings that only a
    simulation supports.
    """
    job = Job.load(folder / JOB)
    if job.clients.number is None:
        raise DeploymentError(
            f"{folder / JOB}: clients.number = null; a deployed job states how many clients there "
            f"are"
        )
    check_deployable(job)
    return job


def read_roster(path: Path) -> dict[ClientId, bytes]:
    """Read each client's public signing key from the file `path`.

    The file has lines `client-N: KEY`, with KEY in 64 hexadecimal digits. Returns an empty mapping
    if there is no file. Raises `DeploymentError` if the file is invalid, or gives two clients the
    same key: whoever holds it would count as two clients in a sum.
    """
    if not path.exists():
        return {}
    try:
        data = yaml_file.read(path, _MOST_ROSTER_BYTES, 2 * _MOST_CLIENTS + 1)
    except JobError as error:
        raise DeploymentError(str(error)) from None
    roster: dict[ClientId, bytes] = {}
    owners: dict[str, str] = {}
    for client, key in data.items():
        found = _CLIENT.fullmatch(client)
        if not found or not isinstance(key, str) or not _PUBLIC_KEY.fullmatch(key):
            raise DeploymentError(
                f"{path}: the line {client}: {key} is not of the form client-N: KEY, KEY being "
                f"the 64 digits that `fedveil identity` shows"
            )
        if (owner := owners.setdefault(key, client)) != client:
            raise DeploymentError(f"{path}: {owner} and {client} have the same key")
        roster[int(found[1])] = bytes.fromhex(key)
    return roster


def server_roster(app: Path, protection: ProtectionSettings) -> dict[ClientId, bytes]:
    """Return the public keys of all clients that the server has, from the app's folder.

    Raises `DeploymentError` if the protection needs keys and the app's roster names none.
    """
    roster = read_roster(app / ROSTER)
    if not roster and protection.position.needs_roster(protection.settings):
        raise DeploymentError(
            f"{app / ROSTER} names no keys, which active_security needs: write a line for each "
            "client, client-N: KEY, then start again"
        )
    return roster


def own_roster(
    protection: ProtectionSettings,
    roster: Path | None,
    identity: Path | None,
    read: Callable[[Path], dict[ClientId, bytes]] = read_roster,
) -> Mapping[ClientId, bytes]:
    """Return the public keys of all clients, from the file `roster` of this client's operator.

    Returns an empty mapping if the protection needs no keys. `read` reads the file. `identity` is
    the file with this client's private key. Raises `DeploymentError` in three cases:

    - The protection needs keys, and there is no `roster`. The keys in the app's folder are not
      used, because the server could have replaced them by its own, and then read every update.
    - The protection needs keys, and there is no `identity`.
    - The protection needs no keys, and the operator gave `roster` or `identity`. The server may
      have removed the setting `active_security`, which needs keys.
    """
    needed = protection.position.needs_roster(protection.settings)
    if not needed and (roster or identity):
        raise DeploymentError(
            f"this node's configuration names keys for signed rounds (roster, identity), and the "
            f"app has protection.name = {protection.name} without active_security, which a server "
            f"that lies can open: set active_security in the app, or remove the keys from the "
            f"node's configuration"
        )
    if not needed:
        return {}
    if roster is None:
        raise DeploymentError(
            f"protection.name = {protection.name} with active_security rests on every client's "
            f"public key, and this node's configuration names no file with them: add "
            f"roster='/path/to/roster.yaml' to flower-supernode --node-config, a file that did not "
            f"come from the server"
        )
    if identity is None:
        raise DeploymentError(
            f"protection.name = {protection.name} with active_security needs this client's private "
            f"key: add identity='/path/to/key.pem' to flower-supernode --node-config, a file that "
            f"`fedveil identity` makes"
        )
    if not roster.exists():
        raise DeploymentError(f"there is no roster {roster}, which this node's configuration names")
    return read(roster)
