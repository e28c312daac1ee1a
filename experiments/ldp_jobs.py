"""The jobs of source 002: with its settings, and smaller jobs that show its trends in minutes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal

from experiments import small_stand_ins
from experiments.arms import Arm, Runs, trained
from experiments.evidence import SEEDS, seeded
from experiments.experiment import Experiment, Outcome, Scale, Tell
from fedveil.data import location30, purchase100
from fedveil.data.data_folders import find
from fedveil.federated.job import Job

Task = Literal["lenet-mnist", "dnn-purchase100", "dnn-purchase100-synthetic", "dnn-location30"]
Split = Literal["iid", "shards"]
#: Arguments of `LDPFigure.arm`, by the name of the run.
ArmArguments = Mapping[str, Mapping[str, Any]]
SPLITS: tuple[Split, ...] = ("iid", "shards")
#: The source's tasks.
TASKS: tuple[Task, ...] = ("lenet-mnist", "dnn-purchase100")
#: A public data set of the same benchmarks, whose rows are real and fit in a small file.
LOCATION: Task = "dnn-location30"
MECHANISMS = ("rr", "oue")
#: Epsilon of a bit: 0.075 * 2^x.
EPSILONS: tuple[float, ...] = tuple(0.075 * 2**x for x in range(8))
#: Epsilons at which something is learnt, as figures 1 and 2 to 4 show them.
LARGE = EPSILONS[4:]
#: Epsilons at which LeNet learns. Its runs have several seeds beyond scale small.
REPEATED = EPSILONS[6:]
#: The number of cells, where it is not varied: the source's own example.
USUAL_CELLS = 50
#: Numbers of cells.
CELLS = (1, 3, 10, 30, USUAL_CELLS, 100)
#: Accuracy of the source's models without protection.
BASELINES: Mapping[tuple[Task, Split], float] = MappingProxyType(
    {
        ("lenet-mnist", "iid"): 0.9885,
        ("lenet-mnist", "shards"): 0.9866,
        ("dnn-purchase100", "iid"): 0.9098,
    }
)
#: The source's settings, as keys of a job. `training.lr` is that under perturbation.
SOURCE: Mapping[Task, Mapping[str, object]] = MappingProxyType(
    {
        "lenet-mnist": {
            "clients.number": 1000,
            "clients.fraction": 0.5,
            "rounds": 500,
            "data.name": "mnist",
            "model": "lenet",
            "training.optimizer": "sgd",
            "training.lr": 0.1,
        },
        "dnn-purchase100": {
            "clients.number": 1000,
            "clients.fraction": 0.5,
            "rounds": 500,
            "data.name": "purchase100",
            "model": "purchase_dnn",
            "training.optimizer": "adam",
            "training.lr": 0.01,
        },
    }
)
#: The learning rate of Purchase-100's net without perturbation.
PLAIN_LR = 0.001
#: 500 rounds if examples are dealt at random, otherwise 1,000.
NON_IID_ROUNDS = 2
#: Bound on the norm of a batch's gradient if clients are not i.i.d. Without it, LeNet collapsed at
#: seed 0: in round 622 one of 500 clients diverged, and its update had an entry of 3,789.
NON_IID_NORM = 10.0

_PARTS = "experiments.small_stand_ins"
_SMALL_DENSE = {"lr": 0.01, "optimizer": "adam", "batch_size": 6, "epochs": 5, "engine": "vmap"}
#: Replacements for a task that is not of the source's own size.
_SMALL: Mapping[Task, Mapping[str, Any]] = {
    "lenet-mnist": {
        "data": {"name": f"{_PARTS}:pooled_mnist"},
        "training": {"lr": 0.1, "batch_size": 5, "epochs": 5},
    },
    "dnn-purchase100-synthetic": {
        "data": {"name": f"{_PARTS}:purchase_part_synthetic"}, "training": _SMALL_DENSE
    },
    LOCATION: {"data": {"name": "location30"}, "training": _SMALL_DENSE},
}  # fmt: skip
SMALL_CLIENTS, SMALL_ROUNDS = 200, 30
#: Seconds of a round on two cores, measured on one machine: of the replacements, of the source's.
_SMALL_ROUND_S = 0.6
ROUND_S: Mapping[Task, float] = {"lenet-mnist": 0.7, "dnn-purchase100": 25.0, LOCATION: 5.5}
_SYNTHETIC = "The file of Purchase-100 is not here, so a synthetic set of its shape replaces it."
_ELSEWHERE = (
    "Clients send a one-hot code for each weight, with randomly flipped bits: by randomised "
    "response (RR) or by optimised unary encoding (OUE). A code has a bit for each of the "
    "2 · cells + 1 rounded values. Epsilon is that of one bit. The accuracy-loss rate is the lost "
    "share of the accuracy that is reached without protection. The index of these pages states "
    "all settings, replacements, and what the source leaves open."
)
#: Said on pages with runs whose gradients are bounded.
BOUNDED = (
    "In the runs of clients that hold two labels, a batch's gradient has a norm of at most "
    f"{NON_IID_NORM:g}, which the source does not mention. Without this bound, LeNet without "
    "protection collapsed from 98.3% to 10% in a trial: in round 622 one client diverged, and its "
    "update wrecked the mean."
)
_SHAPES = "The rows of `dnn-location30` are real; the source has no figure for them."
#: Text that all pages of 002 share, for their index.
SHARED = """
- **From the source.** Without protection, the net of Purchase-100 uses Adam at 0.001. Runs whose
  clients are not i.i.d. have twice the rounds. Epsilon is that of one bit of a code: for each of
  the model's parameters, a report costs twice as much under RR, and as much under OUE.
- **Chosen here**, because the source does not state it: one local epoch in batches of 10 (at scale
  small: five epochs in batches of 5 or 6), and 50 cells unless the cells are varied. The sum of a
  cohort's reports is drawn at once, from its exact distribution.
- **Bounded gradients**, which the source does not mention. Where clients are not i.i.d. and the
  model has the source's size, a batch's gradient has a norm of at most 10. Without this bound and
  without protection, LeNet reached 98.3% and then fell to 10%: in round 622 one of 500 clients
  diverged, in native code and in PyTorch alike, and its update wrecked the mean.
- **Replacements at scale small.** A net with one hidden layer of 24 units replaces LeNet, on 4,000
  images of MNIST reduced to 7x7 pixels. It also replaces the net of Purchase-100, on 20 classes and
  300 features of a synthetic data set of the same shape (`dnn-purchase100-synthetic`), with Adam at
  0.01. `dnn-location30`, which has real rows, is added if its file is on the machine.
- **Small dense nets at scale medium, too.** A round of the source's dense net takes 25 s on two
  cores, so one of its runs takes three and a half hours, and a page has up to 17 of them.
  Location-30 has a fortieth of the examples, but the model is nearly as large, and 500 clients
  train all of it in a round. A round took 10.7 s of one core under RR and 4.5 s without
  protection. If OUE takes as long as RR, the 17 runs of `ldp-epsilon` take 24 hours of one core,
  and the ten of `ldp-adaptive` take 14 hours.
- **Seeds.** At scale small, a run has one seed. At larger scales, runs have three seeds where the
  model learns something, and one where it does not. A page says so, and which runs are exceptions.

These are the settings of the jobs at scale small:
"""


def job(
    scale: Scale,
    task: Task,
    *,
    split: Split = "iid",
    protection: str = "not_encrypt",
    clients: int | None = None,
    rounds: int | None = None,
    seed: int = 0,
    **unary: Any,
) -> Job:
    """Return a job for the task under a protection. `unary` are settings of rr and oue.

    The job's name follows from its settings, so that equal runs of two experiments are equal jobs.
    """
    small = not _own_size(scale, task)
    clients = clients or (SMALL_CLIENTS if small else 1000)
    rounds = rounds or (SMALL_ROUNDS if small else 500)
    blocks = _small(task) if small else _full(task, perturbed=protection != "not_encrypt")
    blocks["data"]["split"] = split
    if split == "shards" and not small:
        blocks["training"]["gradient_norm"] = NON_IID_NORM
    if protection == "not_encrypt":
        unary = {}  # without effect
    if unary.get("cells") == USUAL_CELLS:
        del unary["cells"]  # a job's default
    settings = [f"{key}-{value}" for key, value in sorted(unary.items())]
    return Job.read(
        {
            **blocks,
            "name": seeded("-".join([task, split, str(clients), protection, *settings]), seed),
            "seed": seed,
            "rounds": rounds * (NON_IID_ROUNDS if split == "shards" else 1),
            "clients": {"number": clients, "fraction": 0.5},
            "protection": {"name": protection, "unary": {"fidelity": "aggregate", **unary}},
            "evaluation": {"every": (1 if scale == "small" else 2) if small else 5},
            "simulation": {"workers": 0 if small else "auto"},
        },
        [],
    )


def _own_size(scale: Scale, task: Task) -> bool:
    """Return True if the task has the source's model, data and clients, as LeNet has at medium."""
    return scale == "full" or (scale == "medium" and task == "lenet-mnist")


def _small(task: Task) -> dict[str, Any]:
    return {"model": f"{_PARTS}:narrow", **deepcopy(_SMALL[task])}


def _full(task: Task, *, perturbed: bool) -> dict[str, Any]:
    training: dict[str, Any] = {"epochs": 1, "batch_size": 10}
    if task == "lenet-mnist":
        plain = {"data": {"name": "mnist"}, "model": "lenet"}
        return {**plain, "training": {**training, "lr": 0.1}}
    training |= {"optimizer": "adam", "lr": 0.01 if perturbed else PLAIN_LR}
    name = {"dnn-purchase100": "purchase100", LOCATION: "location30"}.get(
        task, purchase100.SYNTHETIC
    )
    return {"data": {"name": name}, "model": "purchase_dnn", "training": training}


def seeds_at(scale: Scale, eps: float, task: Task = "lenet-mnist") -> Sequence[int]:
    """Return the seeds of a task's runs at the epsilon `eps`: several, if the model learns."""
    least = REPEATED[0] if task == "lenet-mnist" else EPSILONS[5]
    return SEEDS if scale != "small" and eps >= least else SEEDS[:1]


def title(scale: Scale, task: Task) -> str:
    """Return the task's title in a plot."""
    return task if _own_size(scale, task) else f"small net for {task}"


def source_task(task: Task) -> Task:
    """Return the source's task that `task` repeats, or `task` itself."""
    return TASKS[1] if task == "dnn-purchase100-synthetic" else task


def labels(scale: Scale, task: Task) -> int:
    """Return the number of labels in the data of `task`."""
    if task == "lenet-mnist":
        return 10
    if task == LOCATION:
        return location30.CLASSES
    return purchase100.CLASSES if _own_size(scale, task) else small_stand_ins.CLASSES


def tasks_of(scale: Scale) -> tuple[Task, ...]:
    """Return the tasks of a scale: Location-30 is one of them if its file is on this machine."""
    real = scale == "full" and _purchase_is_here()
    purchase: Task = "dnn-purchase100" if real else "dnn-purchase100-synthetic"
    here = find(location30.FOLDER, location30.FILE) is not None
    return ("lenet-mnist", purchase, *((LOCATION,) if here else ()))


class LDPFigure(Experiment):
    """A figure of source 002: a table of runs, and the claims of the source about them."""

    #: True if the figure has the dense nets beside LeNet.
    dense: ClassVar[bool] = False
    #: The rounds of the dense nets at scale medium.
    medium_rounds: ClassVar[int] = 0
    smaller: ClassVar[Mapping[Scale, str]] = {"medium": ""}  # `SHARED`, on the index, says why

    def tasks(self, scale: Scale) -> tuple[Task, ...]:
        """Return the tasks of the figure."""
        return tasks_of(scale) if self.dense else TASKS[:1]

    @abstractmethod
    def table(self, scale: Scale) -> ArmArguments:
        """Return the settings of every run."""

    @abstractmethod
    def judged(self, scale: Scale, runs: Runs, folder: Path, tell: Tell) -> Outcome:
        """Judge the source's claims by the runs in `folder`."""

    def arm(self, scale: Scale, name: str, task: Task = "lenet-mnist", **more: Any) -> Arm:
        """Return the run called `name`. `more` are arguments of the function `job`."""
        part = scale == "medium" and not _own_size(scale, task)
        return Arm(name, job(scale, task, rounds=self.medium_rounds if part else None, **more))

    def arms(self, scale: Scale) -> list[Arm]:
        """Return the runs that do not depend on the results of others."""
        return [self.arm(scale, name, **more) for name, more in self.table(scale).items()]

    def estimate_s(self, scale: Scale) -> float:
        """Estimate the seconds from the rounds of all runs."""
        return estimate_s(scale, [arm.job for arm in self.arms(scale)])

    def run(self, folder: Path, scale: Scale, tell: Tell) -> Outcome:
        """Finish all runs, and judge the source's claims by them."""
        runs = trained(folder, self.arms(scale), tell)
        found = self.judged(scale, runs, folder, tell)
        curves = runs if self.saved_metrics else {}
        return replace(found, ran=self.described(scale, found.ran), curves=curves)

    def described(self, scale: Scale, ran: str) -> str:
        """Describe the runs, for the page. `ran` says what only this figure's runs have."""
        parts, tasks = [ran], self.tasks(scale)
        if any(arm.job.training.gradient_norm == NON_IID_NORM for arm in self.arms(scale)):
            parts.append(BOUNDED)
        if scale == "medium":
            parts.append(
                f"LeNet's runs have the source's own size. The dense nets are those of scale "
                f"small, for {self.medium_rounds} rounds."
            )
        elif scale == "full" and "dnn-purchase100-synthetic" in tasks:
            parts.append(_SYNTHETIC)
        if LOCATION in tasks:
            parts.append(_SHAPES)
        return " ".join([*parts, _ELSEWHERE])


def estimate_s(scale: Scale, jobs: Iterable[Job]) -> float:
    """Estimate the seconds of these jobs on two cores."""
    return sum(
        job.rounds * (ROUND_S[task] if _own_size(scale, task) else _SMALL_ROUND_S)
        for job in jobs
        for task in [_task(job)]
    )


def _task(job: Job) -> Task:
    if "location" in job.data.name:
        return LOCATION
    return "dnn-purchase100" if "purchase" in job.data.name else "lenet-mnist"


def _purchase_is_here() -> bool:
    return find(purchase100.FOLDER, purchase100.ARCHIVE, purchase100.TEXT_FILE) is not None
