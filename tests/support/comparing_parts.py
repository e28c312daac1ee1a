"""Small comparisons for tests."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from fedveil.federated.job import Job
from fedveil.studies.comparison import Asked, Comparison
from fedveil.studies.comparison_folder import ComparisonFolder, Result


def small_job(**more: Any) -> Job:
    """Return a job of eight clients, two rounds and a net of 83 parameters."""
    job = {
        "name": "small",
        "rounds": 2,
        "seed": 7,
        "clients": {"number": 8, "fraction": 0.5},
        "data": {"name": "parts:data"},
        "model": "parts:plain",
        "training": {"epochs": 1, "batch_size": 5, "lr": 0.2},
        "simulation": {"workers": 0},
    }
    return Job(**{**job, **more})


def compared(path: Path, *protections: str, job: Job | None = None, **asked: Any) -> list[Result]:
    """Run all cells of a comparison in a folder that may contain some of them already."""
    comparison = Comparison(job or small_job(), Asked(protections=[*protections], **asked))
    with ExitStack() as stack:
        folder = ComparisonFolder.open(path, comparison, stack)
        with folder.resumed():
            return [
                folder.attacked(folder.run(cell, lambda record: None), lambda *step: None)
                for cell in folder.cells(lambda text: None)
            ]
