"""Reads a site's data with the functions that its policy names, as a job's training would.

Nothing is sent, charged or logged: only the operator who started the check sees the result.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path

from fedveil.base.example_arrays import Targets
from fedveil.base.own_code import is_function
from fedveil.base.quantity import quantity
from fedveil.data.datasets import load
from fedveil.data.examples import Examples
from fedveil.errors import DataInvalid, SiteError
from fedveil.federated.job import Job
from fedveil.protections.description import Whose
from fedveil.site.code_folder import top
from fedveil.site.site_folder import Site

#: The kinds of targets to try if no job says which one it needs. "own" accepts all numbers. Only
#: "tokens" accepts examples without targets.
_ANY: tuple[Targets, ...] = ("own", "tokens")


@dataclass(frozen=True)
class Records:
    """The number of records that a reader returned, and the number of those that are unusable.

    `first` is the index of the first unusable record, or None.
    """

    data_set: str
    reader: str
    count: int
    unusable: int = 0
    first: int | None = None

    def __str__(self) -> str:
        return f"data.{self.data_set}: {self.reader} returns {quantity(self.count, 'record')}"

    @property
    def note(self) -> str | None:
        """A sentence about the unusable records, or None if there are none."""
        if self.first is None:
            return None
        return (
            f"data.{self.data_set}: {quantity(self.unusable, 'record')} of {self.count:,} cannot "
            f"be used, starting with record {self.first} (counted from 0). A job with "
            "privacy.unit = example trains on the others. With client, an all-zero update is "
            "reported"
        )


def read_all(site: Site) -> Iterator[Records]:
    """Read each data set of the policy that has a reader. Raises `SiteError` if a reader fails.

    Records are read for the unit that the policy demands, with any numbers as targets.
    """
    for name, block in site.policy.data.items():
        if block.reader is not None:
            yield _records(site, name, block.reader, site.policy.strength.unit, _ANY)


def read_for(site: Site, job: Job) -> Iterator[Records]:
    """Read the data set that the job trains on, with the targets and the unit of the job.

    Yields nothing if the policy names no reader for it. Raises `SiteError` if the reader fails. A
    job's own task is not imported, so its targets may be any numbers.
    """
    found = site.admission.data_set(job)
    if found is not None and (reader := found[1].reader) is not None:
        yield _records(site, found[0], reader, job.privacy.unit, _targets(job))


def _targets(job: Job) -> tuple[Targets, ...]:
    if is_function(job.task):
        return _ANY
    from fedveil.engine.assembly import make_task

    return (make_task(job).targets,)


def _records(
    site: Site, data_set: str, reader: str, unit: Whose, kinds: tuple[Targets, ...]
) -> Records:
    key = f"data.{data_set}.reader = {reader}"
    with _importable(site):
        if not _is_found(top(reader)):
            raise SiteError(
                f"{key}: there is no module {top(reader)} in {site.folder}, in the current folder "
                "or among the installed ones"
            )
        try:
            train = _read(reader, unit, kinds)
        except DataInvalid as error:
            raise SiteError(f"{key}: {str(error).removeprefix(f'data {reader}: ')}") from error
    wrong = [] if train.usable is None else (~train.usable).nonzero()[0].tolist()
    if len(wrong) == len(train):
        raise SiteError(f"{key}: none of {quantity(len(train), 'record')} can be used")
    return Records(data_set, reader, len(train), len(wrong), next(iter(wrong), None))


def _read(reader: str, unit: Whose, kinds: tuple[Targets, ...]) -> Examples:
    """Return the training records for the first of `kinds` that they fit.

    Raises `DataInvalid` with the reason why they do not fit the first kind, if they fit none.
    """
    refused: DataInvalid | None = None
    for kind in kinds:
        try:
            return load(reader, kind, apart=unit == "example").train
        except DataInvalid as error:
            refused = refused or error
    assert refused is not None, "there is at least one kind"
    raise refused


def _is_found(module: str) -> bool:
    if module in sys.modules or find_spec(module) is not None:
        return True
    return PathFinder.find_spec(module, [str(Path.cwd())]) is not None


@contextmanager
def _importable(site: Site) -> Iterator[None]:
    """Let modules in the site's folder be imported in a `with` block, as `site serve` does."""
    folder = str(site.folder.resolve())
    sys.path.append(folder)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(folder)
