"""Checks that all machines of a cluster have equal versions, and compute equal updates."""

from __future__ import annotations

import hashlib
import platform
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

import fedveil
from fedveil.base.message import encode
from fedveil.engine.assembly import ModelShape, make_model, make_protection, make_trainer
from fedveil.engine.executors.client_side import (
    ClientsData,
    ClientSide,
    LocalTraining,
    Made,
    Trained,
)
from fedveil.entropy import Seeded
from fedveil.errors import MachineDiffers
from fedveil.federated.job import Job
from fedveil.learning.own_layers import whole
from fedveil.learning.trained_part import TrainedPart
from fedveil.learning.weight_layout import Layout
from fedveil.protections.base import RoundContext

_PACKAGES = ("numpy", "torch", "numba", "llvmlite", "scipy")
_CLIENT = 0


@dataclass(frozen=True)
class Facts:
    """Everything on which the bytes of a client's report depend, besides its job and data.

    `versions` maps packages to versions, and `sources` is a digest of fedveil's Python files.
    `trained` is a digest of the update and the report from training on a test batch.
    """

    versions: dict[str, str]
    sources: str
    trained: str

    def check(self, other: Facts, name: str) -> None:
        """Raise `MachineDiffers` unless these facts equal `other`, the facts of machine `name`."""
        for package, version in self.versions.items():
            theirs = other.versions.get(package, "none")
            if theirs != version:
                raise MachineDiffers(
                    f"machine {name} has {package} {theirs}, but this one has {version}. Install "
                    f"the same versions on all machines of the cluster"
                )
        if other.sources != self.sources:
            raise MachineDiffers(
                f"machine {name} has other source files of fedveil {fedveil.__version__} than this "
                f"one. Install the same files on all machines of the cluster"
            )
        if other.trained != self.trained:
            raise MachineDiffers(
                f"machine {name} trains a batch to other bytes than this one, probably because "
                f"its processor is of another kind. Use machines of one kind"
            )


def facts(job: Job, shape: ModelShape, batch: ClientsData, dimension: int) -> Facts:
    """Return this machine's `Facts`, which include the result of training on `batch`."""
    return Facts(_versions(), _sources(), _trained(job, shape, batch, dimension))


@cache
def _versions() -> dict[str, str]:
    versions = {"fedveil": fedveil.__version__, "Python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "none"
    return versions


@cache
def _sources() -> str:
    """Return a digest of all Python files of fedveil."""
    folder, digest = Path(fedveil.__file__).parent, hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(f"{path.relative_to(folder)}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _trained(job: Job, shape: ModelShape, batch: ClientsData, dimension: int) -> str:
    entropy, model = Seeded(job.seed, "machine check"), whole(make_model(job, shape))
    trainer = make_trainer(job, model, shape.example_shape)
    if trainer.native:
        trainer.compile(batch.x.shape[1:])
    start = Layout(TrainedPart.of(model).module).vector()
    training, digest = LocalTraining(trainer, batch, entropy), hashlib.sha256()
    training.open(1, start)
    (answer,) = training.updates([_CLIENT])
    digest.update(answer.update.tobytes() if isinstance(answer, Trained) else b"failed")
    protection = make_protection(job, dimension)
    if len(start) == dimension and len(protection.flow) == 1:
        context = RoundContext([_CLIENT], 1, start, protection.initial_state())
        opening = protection.server_round(context).opening()
        side = ClientSide(protection, training, start, entropy)
        side.open(1)
        (answer,) = side.answers({_CLIENT: opening})
        digest.update(encode(answer.message) if isinstance(answer, Made) else b"withheld")
    return digest.hexdigest()
