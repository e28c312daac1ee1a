"""Lists the runs below a folder by reading their records. A damaged run does not stop the list."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal, TypeAlias

from fedveil.errors import FedveilError, RunFolderError
from fedveil.pages.guarantee_text import RUN, figure_of
from fedveil.pages.read_run import ReadRun, party_folders, read_run
from fedveil.pages.run_page import seconds
from fedveil.pages.vertical_page import (
    HELD_OUT,
    accounts_of,
    is_apart,
    is_vertical,
    leader_of,
    parties_of,
)
from fedveil.pages.vertical_summary import worst_of
from fedveil.privacy.guarantee_strength import Figure
from fedveil.record.finding_lines import FINDINGS
from fedveil.record.metric_names import deciding
from fedveil.record.run_folder import EVENTS, JOB, METRICS, MODEL, in_use
from fedveil.record.sealed_message import intact

#: The number of levels below the given folder that are searched for runs.
_DEPTH = 3
Order: TypeAlias = Literal["when", "name", "accuracy", "epsilon"]


@dataclass(frozen=True)
class ListedRun:
    """A run in a list of runs. Unknown values are None.

    `quality` is the value of the metric `metric`. `epsilon` is the guarantee for a client that
    takes part in every round, or for one example of it if `unit` is "example". In a vertical run,
    it is the largest epsilon of any party. If the other parties are on other machines, `alone` is
    True, and their epsilons are not known here.
    """

    folder: Path
    name: str
    protection: str
    state: str
    metric: str | None = None
    quality: float | None = None
    epsilon: Figure | None = None
    began: datetime | None = None
    seconds: float | None = None
    unit: str | None = None
    alone: bool = False


@dataclass(frozen=True)
class DamagedRun:
    """A folder that cannot be read as a run, and the reason."""

    folder: Path
    name: str
    reason: str


@dataclass(frozen=True)
class RunList:
    """The runs below `folder`, sorted, and the unreadable folders."""

    folder: Path
    runs: Sequence[ListedRun]
    damaged: Sequence[DamagedRun]


def run_list(folder: Path, order: Order = "when") -> RunList:
    """Read the runs below `folder`. Raises `RunFolderError` if it is not an existing folder.

    Runs without the value by which `order` sorts come last.
    """
    if not folder.is_dir():
        why = "it is a file" if folder.exists() else "there is no such folder"
        named = "Name the folder that holds the runs: `fedveil runs FOLDER`"
        raise RunFolderError(f"{folder} is not a folder of runs: {why}. {named}")
    runs, damaged = list[ListedRun](), list[DamagedRun]()
    for path in _run_folders(folder, _DEPTH):
        name = str(path.relative_to(folder)) if path != folder else path.resolve().name
        try:
            with intact(path):
                runs.append(_listed(path, name))
        except FedveilError as error:
            damaged.append(DamagedRun(path, name, "; ".join(str(error).splitlines())))
    return RunList(folder, ordered(runs, order), damaged)


def ordered(runs: Sequence[ListedRun], order: Order) -> list[ListedRun]:
    """Sort runs by `order`, and equal runs by name. Runs without the value come last."""

    def place(run: ListedRun) -> tuple[bool, float]:
        match order:
            case "when":
                value = None if run.began is None else -run.began.timestamp()
            case "accuracy":
                known = run.metric == "accuracy" and run.quality is not None
                value = -run.quality if known and run.quality is not None else None
            case "epsilon":
                value = None if run.epsilon is None else run.epsilon.epsilon
            case "name":
                value = 0.0
        missing = value is None or math.isnan(value)
        return missing, 0.0 if value is None or missing else value

    return sorted(sorted(runs, key=lambda run: run.name), key=place)


def _run_folders(folder: Path, depth: int) -> Iterator[Path]:
    """Yield the run folders in `folder` and up to `depth` levels below it, following no links."""
    try:
        found = _is_run(folder)
        inner = [] if found else sorted(path for path in folder.iterdir() if path.is_dir())
    except OSError:  # yield the folder, so that reading it as a run reports the error
        found, inner = True, []
    if found:
        yield folder
    for path in inner if depth else ():
        if not path.is_symlink():
            yield from _run_folders(path, depth - 1)


def _is_run(folder: Path) -> bool:
    if any((folder / name).exists() for name in (METRICS, EVENTS, MODEL, FINDINGS)):
        return True
    return (folder / JOB).exists() and bool(party_folders(folder, EVENTS))


def _listed(path: Path, name: str) -> ListedRun:
    run = read_run(path)
    if is_vertical(run):
        return _vertical(run, name)
    protection, last = str(run.job["protection"]["name"]), run.last
    if not (run.records or run.started):
        trained = (path / MODEL).is_file()
        state = "attack" if run.findings and not trained else _state(run, run)
        return ListedRun(path, name, protection, state, began=_began(run))
    metric = deciding(last)[0]
    return ListedRun(
        path, name, protection, _state(run, run), metric, _number(last.get(metric)),
        Figure(*map(float, figure_of(last, RUN))), _began(run), seconds(run.records),
        str(last["unit"]),
    )  # fmt: skip


def _vertical(run: ReadRun, name: str) -> ListedRun:
    parties = parties_of(run)
    leader = leader_of(run, parties)
    if not parties:
        return ListedRun(run.folder, name, "none", "attack" if run.findings else "no records")
    names = [key.removeprefix(HELD_OUT) for key in leader.last if key.startswith(HELD_OUT)]
    metric = "accuracy" if "accuracy" in names else next(iter(names), None)
    worst = worst_of(accounts_of(parties))
    protected = [key for key in ("embedding_dp", "label_dp", "label_protection")
                 if run.job["privacy"].get(key)]  # fmt: skip
    return ListedRun(
        run.folder, name, ", ".join(protected) or "none", _state(run, leader), metric,
        _number(leader.last.get(f"{HELD_OUT}{metric}")),
        Figure(math.inf, 0.0) if worst is None else worst.figure,
        _began(leader), leader.seconds, alone=is_apart(parties),
    )  # fmt: skip


def _number(value: object) -> float | None:
    """Return a record's metric as a float, or None if `value` is None.

    Raises ValueError if it is anything else than a number.
    """
    if value is None:
        return None
    if not isinstance(value, int | float):
        raise ValueError(f"{value!r} is no number")
    return float(value)


def _began(run: ReadRun) -> datetime | None:
    return next(iter(run.times), None)


def _state(run: ReadRun, leader: ReadRun) -> str:
    if leader.ended is None:
        return "running" if in_use(run.folder) else "interrupted"
    return "finished" if leader.stopped is None else "ended early"
