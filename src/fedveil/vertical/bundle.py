"""A model bundle: the files with which one party scores new rows, without its training data.

    BUNDLE/contents.json     this party's files with their digests, its columns, the versions
    BUNDLE/manifest.json     the digest of every party's contents.json, equal at all parties
    BUNDLE/signatures.json   each party's certificate and its signature of the manifest
    BUNDLE/state/            written by scoring: counts of scored examples and received ids, a log

A bundle is as confidential as the training data: it has weights, and digests of training ids.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field, ValidationError
from torch import nn

from fedveil import __version__
from fedveil.base.array_types import row_values
from fedveil.base.text_digests import text_digests
from fedveil.base.untrusted import (
    MOST_JOB_BYTES,
    MOST_STATE_BYTES,
    MOST_STREAMED_BYTES,
    opened,
    read_bytes,
)
from fedveil.entropy import Secure
from fedveil.errors import BundleInvalid, MessageInvalid, RunFolderError
from fedveil.record.model_file import write_model
from fedveil.record.run_folder import EVENTS, IMPORTS, JOB, LOCK, MODEL, RunFolder, held_in
from fedveil.record.saved_job import keep_imports
from fedveil.record.sealed_message import intact, sealed
from fedveil.settings.settings import Settings
from fedveil.vertical.calibrator import CALIBRATOR
from fedveil.vertical.job import VerticalJob
from fedveil.vertical.job_split import own_functions
from fedveil.vertical.rows import Ids
from fedveil.vertical.signatures import Signatures

BUNDLE = "bundle"
CONTENTS, MANIFEST, SIGNATURES = "contents.json", "manifest.json", "signatures.json"
SENT = "sent"
#: A digest of an example's id for each time that the example was scored.
SCORED = "scored"
#: What to do about a folder that lacks a file of counts.
REMEDY = "Restore it from a copy. If an earlier version made this folder, train the model again"
#: The folder of a bundle whose files scoring changes.
STATE = "state"
DIGEST_BYTES, _SALT_BYTES = 16, 32
_AT_ONCE = 1 << 20
MOST_SIGNATURES_BYTES = 1 << 20

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Contents(Settings):
    """The data of contents.json: a bundle's files with their SHA-256, and the columns to score.

    `step` is the last training step. Rows to score must have the `columns`, each of a given kind.
    The other parties get the SHA-256 of contents.json. The random `salt` keeps them from testing
    guesses at this party's private settings and data with it. It is empty in older bundles.
    """

    format: Literal[1] = 1
    party: str
    step: int = Field(ge=0)
    salt: str = Field("", pattern=r"^([0-9a-f]{64})?$")
    columns: dict[str, str]
    versions: dict[str, str]
    files: dict[str, Sha256]


class Manifest(Settings):
    """The text that all parties sign. It has the SHA-256 of each party's contents.json.

    `job` is the SHA-256 of the settings that must be equal at all parties (`VerticalJob.agreed`).
    """

    format: Literal[1] = 1
    run: str
    leader: str
    step: int = Field(ge=0)
    job: Sha256
    contents: dict[str, Sha256]

    def written(self) -> bytes:
        """Return this manifest as JSON. Equal manifests give equal bytes."""
        return json.dumps(self.model_dump(), sort_keys=True).encode()


@dataclass(frozen=True)
class Bundle:
    """A party's model bundle (its files for scoring new rows), after a check of all digests.

    `name` is the manifest's SHA-256, which is equal in all parties' bundles of a model.
    """

    path: Path
    contents: Contents
    manifest: Manifest
    name: bytes
    signatures: Signatures

    @classmethod
    def read(cls, path: Path) -> Bundle:
        """Read and check the model bundle in the folder `path`.

        Raises BundleInvalid if a file is missing, was edited or was added.
        """
        raw = read_small(held_in(path, CONTENTS, "a model bundle"))
        contents = _parsed(Contents, raw, path / CONTENTS)
        data = read_small(held_in(path, MANIFEST, "a complete model bundle"))
        manifest = _parsed(Manifest, data, path / MANIFEST)
        _check(path / CONTENTS, manifest.contents.get(contents.party), digest(raw))
        for name, expected in contents.files.items():
            if Path(name).name != name:
                raise BundleInvalid(f"{path / CONTENTS} names {name!r}, which is no file's name")
            _check(path / name, expected, _digest_of(path / name))
        _check_no_other(path, {*contents.files, CONTENTS, MANIFEST, SIGNATURES, LOCK})
        signatures = Signatures.parsed(read_small(path / SIGNATURES), path / SIGNATURES)
        return cls(path, contents, manifest, hashlib.sha256(data).digest(), signatures)


def write_contents(
    folder: RunFolder,
    job: VerticalJob,
    *,
    party: str,
    step: int,
    modules: nn.Module,
    columns: Mapping[str, str],
    files: Mapping[str, bytes],
    sent: bytes,
) -> bytes:
    """Write a party's files to its model bundle. Returns the SHA-256 of contents.json.

    The other parties get this digest. It differs each time (`Contents.salt`).
    """
    folder.write_atomically(JOB, job.to_yaml().encode())
    keep_imports(folder, own_functions(job))
    write_model(folder, modules)
    files = {**files, SENT: sent}
    for name in (CALIBRATOR, MANIFEST, SIGNATURES):  # files of an earlier end of this run
        folder.remove(name)
    for name, data in files.items():
        folder.write_atomically(name, data)
    contents = Contents(
        party=party,
        step=step,
        salt=Secure().token(_SALT_BYTES).hex(),
        columns=dict(columns),
        versions={
            "fedveil": __version__,
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            "numpy": np.__version__,
        },
        files={
            name: _digest_of(folder.path / name) for name in (JOB, IMPORTS, MODEL, *sorted(files))
        },
    )
    data = json.dumps(contents.model_dump(), indent=1).encode()
    folder.write_atomically(CONTENTS, data)
    return hashlib.sha256(data).digest()


def manifest_of(
    job: VerticalJob, leader: str, run: str, step: int, contents: Mapping[str, bytes]
) -> Manifest:
    """Return the manifest of the model that the run named `run` has after training step `step`.

    `leader` is the leader's name. `contents` has the SHA-256 of each party's contents.json.
    """
    agreed = json.dumps(job.agreed(), sort_keys=True).encode()
    return Manifest(
        run=run,
        leader=leader,
        step=step,
        job=digest(agreed),
        contents={party: value.hex() for party, value in sorted(contents.items())},
    )


def parsed_manifest(data: bytes) -> Manifest:
    """Decode another party's manifest. Raises MessageInvalid if `data` is not a manifest."""
    try:
        return Manifest.model_validate_json(data)
    except ValidationError:
        raise MessageInvalid("its manifest is none") from None


def write_manifest(folder: RunFolder, manifest: Manifest, signatures: Signatures) -> None:
    folder.write_atomically(SIGNATURES, signatures.written())
    folder.write_atomically(MANIFEST, manifest.written())


def retire(run: RunFolder) -> None:
    """Make the bundle in the folder of `run` unusable, if there is one.

    Call it before further training steps. They send examples again, so the bundle's counts of how
    often each example was sent become too small. A new bundle is written at the end of the run.
    Raises `FolderInUse` if a command is scoring with the bundle.
    """
    path = run.path / BUNDLE
    if (path / MANIFEST).exists():
        held = RunFolder.reopen(path)
        held.remove(MANIFEST)
        held.close()


def sent_file(ids: Sequence[Ids], times: Sequence[np.ndarray], labelled: Sequence[bool]) -> bytes:
    """Return the bytes of a file that says how often each example was sent, by digest of its id.

    Each argument has one entry per subset ("train" or "test"). `times[i]` has the number of times
    for each of the ids `ids[i]`. `labelled[i]` is True if the subset's examples also cost the
    epsilon of their labels, as training examples do. Subsets without ids are omitted.
    """
    kept = [(i, t, label) for i, t, label in zip(ids, times, labelled, strict=True) if len(i)]
    digests = [id_digests(each) for each, _, _ in kept]
    empty = np.zeros((0, DIGEST_BYTES), np.uint8)
    return sealed(
        {
            "ids": np.concatenate([empty, *digests]),
            "times": np.concatenate([np.zeros(0, np.int64), *(t for _, t, _ in kept)]),
            "labelled": np.concatenate(
                [np.zeros(0, np.uint8), *(np.full(len(t), label, np.uint8) for _, t, label in kept)]
            ),
        }
    )


def id_digests(ids: Ids) -> np.ndarray:
    """Return a digest of each id, [ids, bytes]."""
    return text_digests(ids.astype(np.str_), DIGEST_BYTES)


def scored_times(path: Path) -> tuple[npt.NDArray[np.bytes_], npt.NDArray[np.int64]]:
    """Read how often the bundle at `path` has scored each id.

    Returns the digests of the scored ids in ascending order, and each id's number of times. Ignores
    an incomplete digest at the end of the file. Raises RunFolderError if there is no such file, but
    a log of the bundle's use: the limit on the examples' cost would otherwise begin anew.
    """
    file, raw = path / STATE / SCORED, b""
    if not file.exists() and (file.parent / EVENTS).exists():
        raise RunFolderError(f"{file} is missing: it records what was sent. {REMEDY}")
    if file.exists():
        with intact(file):
            raw = read_bytes(file, MOST_STATE_BYTES)
    whole = len(raw) - len(raw) % DIGEST_BYTES
    digests = np.frombuffer(raw[:whole], np.uint8).reshape(-1, DIGEST_BYTES)
    keys, counts = np.unique(row_values(digests), return_counts=True)
    return keys, counts


def most_scored(path: Path, ids: Ids) -> int:
    """Return the largest number of times that the bundle at `path` has scored one of the `ids`."""
    known, counts = scored_times(path)
    if not len(known):
        return 0
    return int(looked_up(row_values(id_digests(ids)), known, counts).max(initial=0))


def looked_up(
    keys: npt.NDArray[np.bytes_], known: npt.NDArray[np.bytes_], values: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Return the value of each key in `keys`, or 0 for a key that is not in `known`.

    `known` is in ascending order, and `values[i]` is the value of `known[i]`.
    """
    if not len(known):
        return np.zeros(len(keys), np.int64)
    place = np.minimum(np.searchsorted(known, keys), len(known) - 1)
    return np.where(known[place] == keys, values[place], 0)


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def read_small(path: Path) -> bytes:
    try:
        with opened(path, MOST_JOB_BYTES) as file:
            return file.read()
    except OSError as error:
        raise BundleInvalid(f"{path} cannot be read: {error.strerror or error}") from None


def _parsed(kind: type[Settings], data: bytes, path: Path) -> Any:
    try:
        return kind.model_validate_json(data)
    except ValidationError:
        raise BundleInvalid(
            f"{path} is damaged, or of another version of fedveil: bundle the model again"
        ) from None


def _digest_of(path: Path) -> str:
    found = hashlib.sha256()
    try:
        with opened(path, MOST_STREAMED_BYTES) as file:
            while piece := file.read(_AT_ONCE):
                found.update(piece)
    except OSError as error:
        raise BundleInvalid(f"{path} cannot be read: {error.strerror or error}") from None
    return found.hexdigest()


def _check_no_other(path: Path, names: Set[str]) -> None:
    """Raise BundleInvalid if the bundle at `path` has a file that is not in `names`.

    Files in the folder state/, which scoring writes, are allowed.
    """
    for other in sorted(path.rglob("*")):
        name = other.relative_to(path)
        if name.parts[0] != STATE and name.as_posix() not in names and not other.is_dir():
            raise BundleInvalid(
                f"{other} is not a file of the bundle that the parties agreed on: it was added. "
                f"Remove it"
            )


def _check(path: Path, expected: str | None, found: str) -> None:
    if expected != found:
        raise BundleInvalid(
            f"{path} is not the file that the parties agreed on: it was edited or replaced. "
            f"Restore it from the run's folder"
        )
