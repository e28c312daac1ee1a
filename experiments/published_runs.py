"""The curves of published runs, from which a page is judged again without training.

A line of the file `NAME-runs.jsonl` beside the page NAME is one run: its job, with every key, the
rounds (or epochs) of its tests, and the metrics that the experiment needs. The file may have only
some of the page's runs. These need not be trained again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedveil.base.untrusted import MOST_LINES_BYTES, read_text
from fedveil.federated.job import Job
from fedveil.pages.read_run import ReadRun
from fedveil.record.recorder import Record
from fedveil.record.sealed_message import intact
from fedveil.settings.checked_job import CheckedJob
from fedveil.vertical.job import VerticalJob

#: The end of the name of a page's file of curves.
SUFFIX = "-runs.jsonl"
#: The file of an experiment's folder with all published curves. It exists if they are to be read.
ALL = "published.jsonl"


def lines(runs: Mapping[str, ReadRun], metrics: Sequence[str]) -> bytes:
    """Return a line of JSON for each run: its job, and its `metrics` by round."""
    return "".join(f"{json.dumps(_published(run, metrics))}\n" for run in runs.values()).encode()


def _published(run: ReadRun, metrics: Sequence[str]) -> dict[str, Any]:
    tests = [record for record in run.records if all(key in record for key in metrics)]
    return {
        "job": run.job,
        "rounds": [test["round"] for test in tests],
        **{key: [test[key] for test in tests] for key in metrics},
    }


def together(pages: Path) -> bytes:
    """Return the lines of all files of curves in the folder `pages`."""
    return b"".join(file.read_bytes() for file in sorted(pages.glob(f"*{SUFFIX}")))


@dataclass(frozen=True)
class PublishedRuns:
    """The published runs that an experiment's `folder` may use in place of training."""

    folder: Path
    _published: tuple[tuple[CheckedJob, list[Record]], ...]

    @classmethod
    def of(cls, folder: Path) -> PublishedRuns:
        """Read the file `ALL` in `folder`. Without this file, there are no published runs."""
        file = folder / ALL
        return cls(folder, tuple(_read(file)) if file.exists() else ())

    def find(self, name: str, job: CheckedJob) -> ReadRun | None:
        """Return the published run of an equal job as a run called `name`, or None.

        Returns None if `folder` has a run of this name, even if that run has not finished.
        """
        if (self.folder / name).exists():
            return None
        for other, records in self._published:
            if isinstance(other, type(job)) and not job.changes(other):
                return ReadRun(self.folder / name, job.model_dump(), records, (), ())
        return None


def _read(file: Path) -> Iterator[tuple[CheckedJob, list[Record]]]:
    with intact(file):
        for line in read_text(file, MOST_LINES_BYTES).splitlines():
            entry = json.loads(line)
            settings, rounds = entry.pop("job"), map(int, entry.pop("rounds"))
            job = (Job if "clients" in settings else VerticalJob).read(settings, [])
            columns = [[*map(float, values)] for values in entry.values()]
            tests = zip(rounds, *columns, strict=True)
            yield job, [dict(zip(("round", *entry), test, strict=True)) for test in tests]
