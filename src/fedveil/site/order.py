"""A job that a server sends in an app, and the signature of the person who started the job.

The app is a zip archive. Its code is never written to disk, run or imported.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fedveil.base.files import write_whole
from fedveil.base.own_code import is_function
from fedveil.base.untrusted import MALFORMED, read_text
from fedveil.engine.job_protection import job_digest
from fedveil.errors import DeploymentError, JobError, SiteRefused
from fedveil.federated.job import Job
from fedveil.flower.job.app_folder import JOB, check_deployable, read_job
from fedveil.flower.job.signing_key_file import read_identity
from fedveil.settings import yaml_file

SIGNATURE = "signature.yaml"
#: The largest number of bytes, and of values, in a file of an app. A job with every key has 3 KB
#: and 300 values.
_MOST_BYTES, _MOST_VALUES = 1 << 16, 1000
_FIELD = "signature"
_BOUND = b"fedveil site order\x00"
#: Keys of a job whose names this process never imports: the run's name, the data set (the policy
#: names the site's own reader), and the job's own code (it runs in a separate process).
_ONLY_NAMES = (("name",), ("data", "name"), ("model",), ("task",), ("training", "lr_schedule"))


@dataclass(frozen=True)
class Order:
    """A job that a server asks a site to run, and the signature of the person who started it.

    `signature` is None if nobody signed the job.
    """

    job: Job
    signature: bytes | None

    @property
    def digest(self) -> bytes:
        return job_digest(self.job)

    @property
    def code(self) -> list[str]:
        """The job's own model, task and schedule functions, as `package.module:function`."""
        job = self.job
        return [n for n in (job.model, job.task, job.training.lr_schedule) if is_function(n)]

    def signer(self, people: Mapping[str, str]) -> str | None:
        """Return the name of the person who signed the job, or None if none of `people` did.

        `people` maps names to public keys.
        """
        if self.signature is None:
            return None
        for name, key in people.items():
            try:
                public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(key))
                public.verify(self.signature, _BOUND + self.digest)
            except (InvalidSignature, ValueError):
                continue
            return name
        return None


def read_app(archive: bytes) -> Order:
    """Return the job and its signature from an app, a zip archive.

    Raises `SiteRefused` if the archive has no valid job.
    """
    job = _member(archive, JOB)
    if job is None:
        raise SiteRefused(f"the app has no {JOB}: a site runs only apps of `fedveil deploy`")
    signed = _member(archive, SIGNATURE)
    try:
        return Order(read_order(_text(job), JOB), None if signed is None else _signature(signed))
    except (JobError, DeploymentError) as error:
        raise SiteRefused(f"the app's job is not valid: {error}".replace("\n", "; ")) from None


def read_order(text: str, source: str) -> Job:
    """Return the job in `text`. Error messages call the text `source`.

    Raises `JobError` for an invalid job. Raises `SiteRefused` if the job names code other than
    models, tasks and schedules.
    """
    data = yaml_file.mapping(text, source, _MOST_VALUES)
    if named := next(_own_code(data), None):
        raise SiteRefused(
            f"the job has its own code {named}: a site accepts only models, tasks and schedules"
        )
    job = Job.read(data, ())
    check_deployable(job)
    if job.clients.number is None:
        raise SiteRefused("clients.number is null: a deployed job states its number of clients")
    return job


def order_in(path: Path) -> Order:
    """Return the job and its signature from an app's folder.

    `path` may also be a job file, which is unsigned.
    """
    if not path.is_dir():
        job = read_order(_file(path), str(path))
        return Order(job.with_({"privacy.randomness": "secure"}), None)
    held = path / SIGNATURE
    signature = _signature(_file(held).encode()) if held.exists() else None
    return Order(read_order(_file(path / JOB), str(path / JOB)), signature)


def sign(app: Path, key: Path) -> Path:
    """Sign the job in an app's folder with a private key. Returns the path of the signature."""
    private = Ed25519PrivateKey.from_private_bytes(read_identity(key).reveal())
    signature = private.sign(_BOUND + job_digest(read_job(app)))
    path = app / SIGNATURE
    write_whole(path, yaml_file.write({_FIELD: signature.hex()}).encode())
    return path


def _file(path: Path) -> str:
    try:
        return read_text(path, _MOST_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        raise SiteRefused(f"{path} cannot be read: {getattr(error, 'strerror', error)}") from None


def _member(archive: bytes, name: str) -> bytes | None:
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as files:
            if files.namelist().count(name) > 1:
                raise SiteRefused(f"the app has {name} twice")
            if name not in files.namelist():
                return None
            with files.open(name) as file:  # a header may state a false size
                data = file.read(_MOST_BYTES + 1)
    except (RuntimeError, *MALFORMED) as error:  # RuntimeError: the archive needs a password
        raise SiteRefused(f"the app is not a readable archive: {type(error).__name__}") from None
    if len(data) > _MOST_BYTES:
        raise SiteRefused(f"{name} in the app has more than {_MOST_BYTES:,} bytes")
    return data


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise SiteRefused("a file in the app is not UTF-8 text") from None


def _signature(data: bytes) -> bytes:
    held = yaml_file.mapping(_text(data), SIGNATURE, _MOST_VALUES)
    text = held.get(_FIELD)
    if not isinstance(text, str) or not re.fullmatch(r"[0-9a-f]{128}", text):
        raise SiteRefused(f"{SIGNATURE} in the app does not hold a signature")
    return bytes.fromhex(text)


def _own_code(value: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield `key = value` for each function of a user that this process would import for a job.

    `value` is the job as plain data, or a value in it. `path` has the keys that lead to this value.
    Skips the model, task and schedule, which another process runs. Also skips the data set, which
    the site reads itself.
    """
    if isinstance(value, str):
        if is_function(value) and path not in _ONLY_NAMES:
            yield f"{'.'.join(path)} = {value}"
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _own_code(inner, (*path, str(key)))
    elif isinstance(value, list | tuple | set):
        for inner in value:
            yield from _own_code(inner, path)
