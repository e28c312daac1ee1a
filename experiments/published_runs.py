"""The accuracy curves of published runs, from which a page is judged again without training.

A line of the file `NAME-runs.jsonl` beside the page NAME is one run: its job, with every key, and
the rounds and accuracies of its tests. The file may have only some of the page's runs. These need
not be trained again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedveil.base.untrusted import MOST_LINES_BYTES, read_text
from fedveil.federated.job import Job
from fedveil.pages.read_run import ReadRun
from fedveil.record.recorder import Record
from fedveil.record.sealed_message import intact

#: The end of the name of a page's file of curves.
SUFFIX = "-runs.jsonl"
#: The file of an experiment's folder with all published curves. It exists if they are to be read.
ALL = "published.jsonl"


def lines(runs: Mapping[str, ReadRun]) -> bytes:
    """Return a line of JSON for each run: its job and its accuracy by round."""
    return "".join(f"{json.dumps(_published(run))}\n" for run in runs.values()).encode()


def _published(run: ReadRun) -> dict[str, Any]:
    rounds, accuracies = run.figures("accuracy")
    return {"job": run.job, "rounds": rounds, "accuracy": accuracies}


def together(pages: Path) -> bytes:
    """Return the lines of all files of curves in the folder `pages`."""
    return b"".join(file.read_bytes() for file in sorted(pages.glob(f"*{SUFFIX}")))


@dataclass(frozen=True)
class PublishedRuns:
    """The published runs that an experiment's `folder` may use in place of training."""

    folder: Path
    _published: tuple[tuple[Job, list[Record]], ...]

    @classmethod
    def of(cls, folder: Path) -> PublishedRuns:
        """Read the file `ALL` in `folder`. Without this file, there are no published runs."""
        file = folder / ALL
        return cls(folder, tuple(_read(file)) if file.exists() else ())

    def find(self, name: str, job: Job) -> ReadRun | None:
        """Return the published run of an equal job as a run called `name`, or None."""
        for other, records in self._published:
            if not job.changes(other):
                return ReadRun(self.folder / name, job.model_dump(), records, (), ())
        return None


def _read(file: Path) -> Iterator[tuple[Job, list[Record]]]:
    with intact(file):
        for line in read_text(file, MOST_LINES_BYTES).splitlines():
            entry = json.loads(line)
            pairs = zip(entry["rounds"], entry["accuracy"], strict=True)
            records = [{"round": int(n), "accuracy": float(value)} for n, value in pairs]
            yield Job.read(entry["job"], []), records
