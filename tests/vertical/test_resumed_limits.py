"""A run that goes on after its model has scored rows of its training."""

from __future__ import annotations

import csv
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from fedveil.errors import FolderInUse, RunFolderError
from fedveil.record.run_folder import RunFolder
from fedveil.vertical import evaluate, resume, train
from fedveil.vertical.bundle import BUNDLE, MANIFEST, retire
from fedveil.vertical.scoring.scorer import Scorer
from fedveil.vertical.scoring.sources import Together
from scoring_parts import job_of, trained, write_table

#: An example costs 2 each time, so the limit allows six times.
LIMIT, MOST = 13.0, 6


class Killed(Exception):
    """Ends a process after the first epoch."""


def ended_early(folder: Path) -> Path:
    """Return a run that its evaluations have ended, with room for more of its training rows."""
    privacy = {"embedding_dp": {"eps": 0.5}, "max_epsilon": LIMIT, "delta": 0.0}
    job = job_of(
        folder, privacy={**privacy, "randomness": "secure"}, epochs=30,
        checkpoint={"every_steps": 1}, record={"every_steps": 1}, evaluation={"every_epochs": 1},
        scoring={"calibration": None},
    )  # fmt: skip

    def killed(record: dict[str, Any]) -> None:
        if "look" in record:
            raise Killed

    with pytest.raises(Killed):
        train(job, folder / "early", progress=killed)
    for _ in range(4):
        evaluate(folder / "early")
    resume(folder / "early")
    return folder / "early"


def times(run: Path) -> dict[str, int]:
    """Return how often the bank has sent each training row, except for scores."""
    with (run / "bank" / "sent.csv").open() as table:
        return {
            row["id"]: int(row["times"])
            for row in csv.DictReader(table)
            if row["subset"] == "train"
        }


def scorers(folder: Path, run: Path, ids: list[str], stack: ExitStack) -> Together:
    count = len(ids)
    write_table(folder / "l.csv", {"id": ids, "x0": [0.5] * count, "x1": [1.0] * count})
    write_table(
        folder / "b.csv",
        {"key": ids, "z0": [1] * count, "z1": [2] * count, "kind": ["red"] * count},
    )
    files = {"lead": str(folder / "l.csv"), "bank": str(folder / "b.csv")}
    return Together([Scorer(run / p / BUNDLE, file, stack) for p, file in files.items()])


def scored_to_the_limit(folder: Path, run: Path, ids: list[str]) -> dict[str, int]:
    """Return how often rows with these ids could be scored, until the bank refuses them all."""
    with ExitStack() as stack:
        source = scorers(folder, run, ids, stack)
        named = source.leader.ids[source.common].tolist()
        scored = dict.fromkeys(named, 0)
        while (allowed := source.scores(source.common).allowed).any():
            for name, once in zip(named, allowed.tolist(), strict=True):
                scored[name] += once
    return scored


def test_steps_and_scores_share_one_limit(tmp_path: Path) -> None:
    folder = trained(tmp_path)
    run = ended_early(folder)
    before = times(run)
    scored = scored_to_the_limit(folder, run, list(before)[:4])
    assert min(scored.values()) >= 2
    assert {before[name] + scored[name] for name in scored} == {MOST}
    resume(run)
    assert {times(run)[name] + scored[name] for name in scored} == {MOST}


def test_the_bundle_of_a_run_that_goes_on_scores_nothing(tmp_path: Path) -> None:
    run = ended_early(trained(tmp_path))
    manifests = [run / party / BUNDLE / MANIFEST for party in ("lead", "bank")]
    assert all(manifest.exists() for manifest in manifests)

    def killed(record: dict[str, Any]) -> None:
        if record["epoch"] == 2:
            raise Killed

    with pytest.raises(Killed):
        resume(run, progress=killed)
    assert not any(manifest.exists() for manifest in manifests)


def test_a_bundle_that_is_in_use_is_not_retired(tmp_path: Path) -> None:
    folder = trained(tmp_path)
    run = RunFolder(folder / "run" / "bank", None)  # type: ignore[arg-type]
    bundle, new = folder / "run" / "bank" / BUNDLE, str(folder / "new-bank.csv")
    with ExitStack() as stack:
        Scorer(bundle, new, stack)
        with pytest.raises(FolderInUse, match="is in use"):
            retire(run)
    assert (bundle / MANIFEST).exists()
    for _ in range(2):
        retire(run)
        with ExitStack() as stack, pytest.raises(RunFolderError, match="a complete model bundle"):
            Scorer(bundle, new, stack)
