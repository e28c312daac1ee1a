"""Accuracy against the epsilon of the whole run, for every protection.

The sources compare protections at their own parameters, so with different guarantees. Here, all
protections have the same epsilons.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np

from experiments.accuracy_claims import BARE, REPORT, judged
from experiments.accuracy_picture import Mark, draw
from experiments.evidence import LEAST_SEEDS
from experiments.experiment import Experiment, NewPart, Outcome, Scale, Tell, Verdict
from experiments.saved_results import kept
from fedveil.attacks.membership.model_answers import answers
from fedveil.attacks.membership.report_scores import ReportScores
from fedveil.attacks.membership.shadow_runs import Pool, play_round
from fedveil.attacks.roc import area
from fedveil.attacks.target import Target
from fedveil.base.array_types import Float64s, Int64s
from fedveil.base.files import write_whole
from fedveil.base.untrusted import MOST_LINES_BYTES, read_bytes
from fedveil.data.datasets import load
from fedveil.engine.simulation import Simulator
from fedveil.engine.start import start
from fedveil.entropy import Seeded
from fedveil.errors import RunFailed
from fedveil.federated.job import Job
from fedveil.pages.read_run import ReadRun
from fedveil.pages.table import Table
from fedveil.privacy.finding import Measured
from fedveil.privacy.loss import format_epsilon
from fedveil.protections.reading import Reading
from fedveil.record.run_folder import JOB, RunFolder
from fedveil.record.sealed_message import intact
from fedveil.starter import DEFAULT_JOB
from fedveil.studies.comparison import Asked, Cell, Comparison, Setting
from fedveil.studies.several_runs import ended_run

#: A thousand clients of MNIST (examples/private_mnist).
_THOUSAND = ("clients.number=1000", "data.name=mnist", "training.batch_size=1000")
#: Changes of the bundled job. small: a quarter of its rounds, so that all runs take minutes. medium
#: and full: a thousand clients of MNIST, for a third of their rounds and for all.
JOBS: Mapping[Scale, Sequence[str]] = {
    "small": ("rounds=5", "simulation.workers=0", "evaluation.every=5"),
    "medium": (*_THOUSAND, "rounds=20", "evaluation.every=20"),
    "full": (*_THOUSAND, "rounds=60", "evaluation.every=60"),
}
SEEDS: Mapping[Scale, int] = {"small": 1, "medium": 3, "full": 3}
#: Changes of the job with which seeds matter: a tenth of the clients is drawn in each round, and a
#: client trains in several batches. Otherwise all seeds without noise train the same model.
DRAWN = ("clients.fraction=0.1", "training.batch_size=10", "server.lr=0.4")
#: The protections that noise the sum.
SUM = ("distributed_dp", "central_gaussian")
_MEANT = (0.25, 0.5, 1, 2, 4, 8, 16)
#: The target epsilons.
EPSILONS: Mapping[Scale, Mapping[str, Sequence[float]]] = {
    "small": {
        **dict.fromkeys(SUM, (0.25, 1, 4)),
        **dict.fromkeys(("dp_encrypt", "signds"), (10, 1e2, 1e3)),
        **dict.fromkeys(("rr", "oue"), (1e3, 1e4, 1e5)),
    },
    "medium": {
        **dict.fromkeys(SUM, _MEANT),
        **dict.fromkeys(REPORT, (0.25, 1, 4, 16, 1e2, 1e3, 1e4, 1e5)),
    },
    "full": {
        **dict.fromkeys(SUM, _MEANT),
        **dict.fromkeys(REPORT, (0.25, 1, 4, 16, 1e2, 1e3, 1e4, 1e5, 1e6)),
    },
}
#: Parameters that the job does not set: the clip of the bundled protection.
CLIPS = {"small": 1.0, "medium": 0.15, "full": 0.15}
#: Protections that use another one's rates, since its noise is similar at an equal promise.
LIKE = {"pw_encrypt": "not_encrypt", "central_gaussian": "distributed_dp", "oue": "rr"}
#: Each server rate that is tried is smaller than the one before by this factor.
STEP = 4.0
_RATES = {"small": 1.6, "medium": 2.56, "full": 2.56}
_LEAST_STEPS, _MOST_STEPS = 1, 6
#: The share of the training examples used only to judge rates.
_HELD = 10
_ASKED = 120


@dataclass(frozen=True)
class Point:
    """A protection at an epsilon: the chosen rate, the runs, and the attacks' results."""

    cell: Cell
    rate: float
    runs: Sequence[ReadRun]
    model: Measured
    report: Measured

    @property
    def position(self) -> str:
        """The name of the protection."""
        return self.cell.setting.position

    @property
    def epsilon(self) -> float:
        """The ledger's epsilon of the whole run."""
        return max(float(run.last["epsilon_run_every_round"]) for run in self.runs)

    @property
    def accuracies(self) -> list[float]:
        """Each seed's accuracy on the test examples."""
        return [run.last["accuracy"] for run in self.runs]

    @property
    def accuracy(self) -> float:
        """The mean accuracy over the seeds."""
        return float(np.mean(self.accuracies))


class AccuracyEpsilon(Experiment):
    """Every protection at the same epsilons, each with its best learning rate of the server."""

    name = "accuracy-epsilon"
    what = "Accuracy against the epsilon of the whole run, with a curve for every protection."
    source = "002, figure 3, here for every protection and at equal epsilons of the whole run"
    scales = get_args(Scale)

    def estimate_s(self, scale: Scale) -> float:
        """Estimate the seconds. A point has a run per seed, and about two to choose its rate."""
        return {"small": 1_800, "medium": 2_900, "full": 8_000}[scale]

    def run(self, folder: Path, scale: Scale, tell: Tell) -> Outcome:
        """Find the settings of each point, choose its rate, train and attack. Saves results."""
        study = Study(folder, scale, tell)
        points = study.points()
        write_whole(folder / "accuracy-epsilon.svg", draw([_mark(point) for point in points]))
        picture = folder / "accuracy-epsilon.svg"
        tables = [_table(points)]
        told = _told(scale, study.job)
        return Outcome(told, verdicts(points, study.drawn()), tables, (), [picture], seeds=0)


def _told(scale: Scale, job: Job) -> str:
    seeds = SEEDS[scale]
    drawn = Job.read(job.model_dump(), DRAWN)
    return (
        f"{job.clients.number:,} clients train {job.model} on {job.data.name} for {job.rounds} "
        f"rounds. Epsilon is that of the whole run at delta {job.privacy.delta:g}, "
        f"replace-one, for a client that takes part in every round. The server's learning rate "
        f"was chosen for each point on a tenth of the training examples that was held back, "
        f"from {_RATES[scale]:g} downwards by factors of {STEP:g}. The test examples played no "
        f"part in this choice, and no epsilon covers it. {', '.join(LIKE)} use the rates of "
        f"{', '.join(LIKE.values())}, in this order, because their noise is similar. Clips are "
        f"those of the bundled job. Two membership attacks tell training examples from others: "
        f"by the loss of the finished model, and by one client's report in the first round, in "
        f"which all points have the same model. If the server only receives the sum of the "
        f"round, the second attack has this sum. A point has {seeds} seed{'s' * (seeds > 1)}. "
        f"Without noise, all seeds train the same model, because each round has all clients, "
        f"and each client one batch. So {' and '.join(BARE)} are compared in other runs, with "
        f"{LEAST_SEEDS} seeds. In these, {drawn.clients_per_round} clients are drawn in each "
        f"round. A client trains in batches of {drawn.training.batch_size}, and the server's "
        f"learning rate is {drawn.server.lr:g}."
    )


class Study:
    """Computes the points of the experiment, and saves results in `folder`."""

    def __init__(self, folder: Path, scale: Scale, tell: Tell) -> None:
        self._folder, self._scale, self._tell = folder, scale, tell
        self.job = Job.load(DEFAULT_JOB, JOBS[scale])
        self._file = folder / "chosen.json"
        with intact(self._file):
            found = read_bytes(self._file, MOST_LINES_BYTES) if self._file.exists() else b"{}"
            known: dict[str, Any] = json.loads(found)
        self._solutions: dict[str, Any] = known.get("solutions", {})
        self._tried: dict[str, dict[str, float]] = known.get("tried", {})
        self._dataset = load(self.job.data.name)

    def points(self) -> list[Point]:
        """Return each protection's points, from the largest epsilon down to the smallest."""
        found: list[Point] = []
        for position in (*BARE, *SUM, *REPORT):
            rate = _RATES[self._scale]
            for cell in reversed(self._cells(position)):
                if cell.job is None:
                    self._tell(f"{cell.setting}: {cell.reason}")
                    continue
                like = Setting(LIKE.get(position, ""), {}, cell.setting.epsilon)
                same = (point.rate for point in found if point.cell.setting == like)
                rate = next(same, 0.0) or self._choose(cell, rate)
                found.append(self._point(cell, rate))
        return found

    def drawn(self) -> dict[str, list[float]]:
        """Return each seed's accuracy without noise in runs with a drawn cohort, by protection."""
        return {name: [self._drawn(name, seed) for seed in range(LEAST_SEEDS)] for name in BARE}

    def _drawn(self, position: str, seed: int) -> float:
        changes = [*DRAWN, f"protection.name={position}", f"seed={seed}", "record.page=false"]
        job = Job.read(self.job.model_dump(), changes)
        self._tell(f"{position} with a drawn cohort: seed {seed}")
        path = self._folder / "runs" / f"{position},drawn,seed={seed}"
        return float(ended_run(job, path).last["accuracy"])

    def _cells(self, position: str) -> list[Cell]:
        clip = CLIPS[self._scale]
        changes = {
            "protection.distributed_dp.clip": f"{clip}",
            "protection.dp_encrypt.dp_norm_clip": f"{clip}",
            "protection.central_gaussian.clip": f"{clip}",
            "protection.dp_encrypt.dp_delta": "1e-7",
        }
        job = Job.read(self.job.model_dump(), [f"{k}={v}" for k, v in changes.items()])
        epsilons = [*EPSILONS[self._scale].get(position, ())]
        asked = Asked(protections=[position], epsilons=epsilons)
        comparison = Comparison(job, asked, self._solutions)
        cells = []
        for cell in comparison.cells(self._tell):
            cells.append(cell)
            self._keep()
        return cells

    def _choose(self, cell: Cell, start: float) -> float:
        """Return the best rate on the held-out examples, from `start` downwards.

        Of equally good rates, the smallest is chosen.
        """
        best, rate = start, start
        for step in range(_MOST_STEPS):
            if step > _LEAST_STEPS and rate < best / STEP:
                break
            if self._held_out(cell, rate) >= self._held_out(cell, best):
                best = rate
            rate /= STEP
        return best

    def _held_out(self, cell: Cell, rate: float) -> float:
        tried = self._tried.setdefault(cell.setting.name, {})
        if f"{rate:g}" not in tried:
            line = f"{cell.setting}: rate {rate:g} on the examples that were held back"
            self._tell(NewPart(line))
            tried[f"{rate:g}"] = self._rehearsed(cell, rate)
            self._keep()
        return tried[f"{rate:g}"]

    def _rehearsed(self, cell: Cell, rate: float) -> float:
        """Return the accuracy on a tenth of the training examples, after training on the others."""
        train = self._dataset.train
        order = Seeded(0, "held back").permutation(len(train))
        held, ours = np.split(order, [len(train) // _HELD])
        part = replace(self._dataset, train=train.of(ours), test=train.of(held))
        assert cell.job is not None
        clients = cell.job.clients.number
        assert clients is not None
        changes = [
            f"server.lr={rate}", f"clients.number={min(clients, len(ours))}",
            f"checkpoint.every={cell.job.rounds}", "record.page=false",
        ]  # fmt: skip
        job = Job.read(cell.job.model_dump(), changes)
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            opened = partial(RunFolder.create, Path(folder) / "run", job.name)
            try:
                run = start(job, Simulator(), opened, stack, dataset=part).run()
            except RunFailed:
                return 0.0
        return float(run.metrics[-1]["accuracy"])

    def _point(self, cell: Cell, rate: float) -> Point:
        runs = []
        for seed in range(SEEDS[self._scale]):
            assert cell.job is not None
            job = Job.read(cell.job.model_dump(), [f"server.lr={rate}", f"seed={seed}"])
            path = self._folder / "runs" / f"{cell.setting.name},rate={rate:g},seed={seed}"
            self._tell(f"{cell.setting}: rate {rate:g}, seed {seed}")
            runs.append(ended_run(job, path))
        model, report = attacked(runs[0].folder, self._folder / "attacks")
        return Point(cell, rate, runs, model, report)

    def _keep(self) -> None:
        kept = {"solutions": self._solutions, "tried": self._tried}
        write_whole(self._file, json.dumps(kept, indent=1).encode())


def attacked(run: Path, folder: Path) -> tuple[Measured, Measured]:
    """Measure membership inference by the final model's loss, and by a report of the first round.

    `folder` caches the results of the run in the folder `run`.
    """

    def measured() -> list[dict[str, Any]]:
        target = Target.of_run(run)
        pool = Pool.everything(target.dataset)
        known = answers(target.model, pool.x, pool.y).truth
        members = len(target.dataset.train)
        by_loss = area("the model's loss", known[:members], known[members:])
        return [vars(by_loss), vars(_by_report(Target.of(Job.load(run / JOB)), pool))]

    folder.mkdir(exist_ok=True)
    return kept(folder, run.name, tuple[Measured, Measured], measured)


def _by_report(target: Target, pool: Pool) -> Measured:
    """Measure membership inference from what the server receives in the first round.

    For each attacked report, one example of its client is compared with one that nobody has. If the
    server receives only the sum of the round, examples of all clients in this sum are compared.
    """
    members = np.arange(len(target.dataset.train))
    others = np.arange(len(members), len(pool))
    play = partial(play_round, target, members, others, entropy=Seeded(0, "attacked"))
    played = play(_ASKED)
    scores = ReportScores(target.model, target.weights)
    if played.summed:
        played = play(target.job.clients_per_round)
        held, strangers = (spread(rows[0]) for rows in (played.held, played.strangers))
        (own,) = _scored(scores, played.readings, pool, held, strangers)
        return area("one report", own[: len(held)], own[len(held) :])
    held, strangers = (
        np.array([rows[0] for rows in each[:_ASKED]]) for each in (played.held, played.strangers)
    )
    each = _scored(scores, played.readings[:_ASKED], pool, held, strangers)
    own = each - (each.sum(0) - each) / (len(each) - 1)  # less its mean under other reports
    count = len(held)
    return area("one report", own[:, :count].diagonal(), own[:, count:].diagonal())


def spread(rows: Int64s) -> Int64s:
    """Return `_ASKED` of the rows at equal distances, or all if there are fewer."""
    return rows[np.linspace(0, len(rows) - 1, min(_ASKED, len(rows))).astype(np.int64)]


def _scored(
    scores: ReportScores, readings: Sequence[Reading], pool: Pool, *rows: Int64s
) -> Float64s:
    """Return the membership scores of the pool's rows: an array [readings, rows]."""
    asked = np.concatenate(rows)
    return np.array([scores.along(reading, pool.x[asked], pool.y[asked]) for reading in readings])


def verdicts(points: Sequence[Point], drawn: Mapping[str, Sequence[float]]) -> list[Verdict]:
    """Judge the sources' claims. Protections are compared at equal epsilons of the whole run.

    `drawn` has the accuracies without noise in runs with a drawn cohort.
    """
    reached = {
        name: [
            (p.epsilon, p.accuracies)
            for p in sorted(points, key=lambda p: p.epsilon)
            if p.position == name
        ]
        for name in (*BARE, *REPORT)
    }
    return [*judged(reached, drawn)]


def _mark(point: Point) -> Mark:
    attacks = (point.model, point.report)
    best = max(attacks, key=lambda figure: figure.value)
    return Mark(point.position, point.epsilon, tuple(point.accuracies), best.value)


def _table(points: Sequence[Point]) -> Table:
    columns = (
        "protection", "epsilon of the whole run", "rate", "accuracy",
        "membership by the model's loss (AUC)", "membership by a report of the first round (AUC)",
    )  # fmt: skip
    rows = []
    for point in points:
        rows.append(
            (
                point.position,
                format_epsilon(point.epsilon, 3).replace(",", ""),
                f"{point.rate:g}",
                " ".join(f"{accuracy:.4f}" for accuracy in point.accuracies),
                *(
                    f"{f.value:.3f} [{f.low:.3f}, {f.high:.3f}]"
                    for f in (point.model, point.report)
                ),
            )
        )
    return Table(columns, rows, "All points (guessing has an AUC of 0.5)")
