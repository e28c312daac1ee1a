"""What a deployed app's folder holds beside its code: the job, and who signs for which client."""

from __future__ import annotations

import re
from pathlib import Path

from fedveil.errors import DeploymentError, JobError
from fedveil.federated.job import Job
from fedveil.rounds.answers import ClientId
from fedveil.settings import yaml_file

JOB = "job.yaml"
ROSTER = "roster.yaml"

_PUBLIC_KEY = re.compile(r"[0-9a-f]{64}")


def read_job(folder: Path) -> Job:
    """The job of the app; every participant reads the same one."""
    job = Job.load(folder / JOB)
    if job.clients.number is None:
        raise DeploymentError(
            f"{folder / JOB}: clients.number = null; a deployed job states how many clients there "
            f"are"
        )
    return job


def read_roster(path: Path) -> dict[ClientId, bytes]:
    """Each client's public signing key, 64 hexadecimal digits by its number."""
    if not path.exists():
        return {}
    try:
        data = yaml_file.read(path)
    except JobError as error:
        raise DeploymentError(str(error)) from None
    roster = {}
    for client, key in data.items():
        number = str(client).removeprefix("client-")
        if not number.isdecimal() or not isinstance(key, str) or not _PUBLIC_KEY.fullmatch(key):
            raise DeploymentError(
                f"{path}: the line {client}: {key} is not of the form client-N: KEY, KEY being "
                f"the 64 digits that `fedveil identity` shows"
            )
        roster[int(number)] = bytes.fromhex(key)
    return roster
