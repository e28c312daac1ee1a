"""Sweeps: one key of a job is varied at a time, and every value is trained with several seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from experiments.arms import Arm, trained
from experiments.evidence import LEAST_SEEDS, decided, idle, with_interval
from experiments.experiment import Tell, Verdict
from fedveil.federated.job import Job
from fedveil.pages.plot import Axis, Curve, Plot
from fedveil.pages.read_run import ReadRun

SEEDS = LEAST_SEEDS
#: The runs of a sweep: for each value of its key, one run for each seed.
Swept = Mapping[float, Sequence[ReadRun]]


@dataclass(frozen=True)
class Sweep:
    """The values of one job key, and the settings `also` (as `key=value`) that its runs share."""

    key: str
    values: Sequence[float]
    also: Sequence[str] = ()
    #: Number of seeds with which every value is trained.
    seeds: int = SEEDS

    def job(self, base: Job, value: float, seed: int) -> Job:
        """Return `base` with one value of the key."""
        changes = [*self.also, f"{self.key}={value:g}", f"seed={seed}"]
        return Job.read(base.model_dump(), changes)


def arms(base: Job, sweeps: Mapping[str, Sweep]) -> Mapping[tuple[str, float, int], Arm]:
    """Return the run for each (name of a sweep, value, seed). Equal jobs share a run."""
    by_job: dict[str, Arm] = {}
    found = {}
    for name, sweep in sweeps.items():
        for value in sweep.values:
            for seed in range(sweep.seeds):
                job = sweep.job(base, value, seed)
                arm = Arm(f"{name}={value:g},seed={seed}", job)
                found[name, value, seed] = by_job.setdefault(job.model_dump_json(), arm)
    return found


def swept(folder: Path, base: Job, sweeps: Mapping[str, Sweep], tell: Tell) -> Mapping[str, Swept]:
    """Train all runs of the sweeps in `folder`, and return them by the sweeps' names."""
    wanted = arms(base, sweeps)
    runs = trained(folder, [*{arm.name: arm for arm in wanted.values()}.values()], tell)
    return {
        name: {
            value: [runs[wanted[name, value, seed].name] for seed in range(sweep.seeds)]
            for value in sweep.values
        }
        for name, sweep in sweeps.items()
    }


def reached(runs: Sequence[ReadRun]) -> list[float]:
    """Return the last accuracy of every seed's run."""
    return [run.last["accuracy"] for run in runs]


def listed(sweep: Swept) -> str:
    """Format the accuracy at every value, with its interval over the seeds."""
    return "; ".join(f"{value:g}: {with_interval(reached(runs))}" for value, runs in sweep.items())


def compared(
    what: str, sweep: Swept, worse: float, better: float, *, labels: int, source: str, same: str,
    other: str,
) -> Verdict:  # fmt: skip
    """Judge whether accuracy is lower at the value `worse` of the key than at `better`.

    Runs with the same seed are compared. If a run at `better` learnt nothing, the verdict says
    nothing.
    """
    low, high = reached(sweep[worse]), reached(sweep[better])
    apart = [b - a for a, b in zip(low, high, strict=True)]
    agrees, nothing = decided(apart)
    return Verdict.of(
        agrees, what, source, listed(sweep),
        held_to=f"accuracy at {better:g} minus accuracy at {worse:g}, seed by seed, here "
        f"{with_interval(apart)}: the interval lies above 0",
        same=same, other=other,
        nothing=idle({f"{better:g}": min(high)}, labels) or nothing,
    )  # fmt: skip


def plot(name: str, title: str, key: str, series: Mapping[str, Swept]) -> Plot:
    """Plot the mean accuracy of the seeds by the key's value, a curve for each series."""
    curves = [
        Curve(legend, [*sweep], [*map(mean, map(reached, sweep.values()))], marks=True,
              protection=next(iter(sweep.values()))[0].job["protection"]["name"])
        for legend, sweep in series.items()
    ]  # fmt: skip
    return Plot(name, title, Axis(key, log=True), Axis("test accuracy", unit="percent"), curves)
