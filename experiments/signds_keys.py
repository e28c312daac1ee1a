"""The keys of SignDS: what each changes in a report, and in the accuracy of a run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from typing import Any, ClassVar

from experiments import writers
from experiments.arms import LAST, mean_accuracy
from experiments.evidence import decided, idle, with_interval
from experiments.experiment import Experiment, Outcome, Scale, Tell, Verdict
from experiments.saved_results import kept, last_checkpoint
from experiments.sweeps import SEEDS, Sweep, Swept, compared, plot, reached, swept
from fedveil.entry.simulation import resume, simulate
from fedveil.federated.job import Job
from fedveil.mechanisms import SignDS
from fedveil.pages.plot import Axis, Curve, Plot
from fedveil.pages.read_run import ReadRun
from fedveil.pages.table import Table
from fedveil.privacy.finding import CONFIDENCE

_DIGITS = 10
#: Parameters of the LeNet with 62 classes.
DIM = 66_126
_TEST_PART = 5
#: The start of the data's names.
_FEW = "few_tests_"
#: The number of rounds between two readings of the estimate of the step.
_STRIDE = 2
_ROUNDS: Mapping[Scale, int] = {"small": 6, "medium": 16}
_RUN_S: Mapping[Scale, float] = {"small": 1, "medium": 6}
#: A client's local training, and where it trains more.
_EPOCHS, _LR = 2, 0.05
_MORE_EPOCHS, _MORE_LR = 8, 0.2

_WHY_SMALLER = (
    "There is no scale `full`. One run of the source's LeNet experiment (`signds-lenet`, 600 "
    "rounds of 20 local epochs) took about 40 minutes on two cores, so all runs of this length "
    "would take more than a day."
)
_SIGNDS = "protection.signds"
_FIXED = f"{_SIGNDS}.magnitude=fixed"
#: The epsilons that are too small and large enough for many dimensions, where they are varied.
_SMALL_EPS, _LARGE_EPS = 20, 100
_RATES = (0.25, 1.0, 4.0, 16.0)
#: The number of seeds for each of these rates, with all clients. The fluctuation of a test loss
#: differs much between seeds.
_RATE_SEEDS = 8
#: The ends of the names of sweeps in which clients train more, with the changes.
_TRAINED_MORE: Mapping[str, Sequence[str]] = {
    "more epochs": (f"training.epochs={_MORE_EPOCHS}",),
    "larger lr": (f"training.lr={_MORE_LR}",),
    "both": (f"training.epochs={_MORE_EPOCHS}", f"training.lr={_MORE_LR}"),
}
#: The sweeps. The other settings are the source's: k 0.2, eps 100, ratio 0.6, out 0.
SWEEPS: Mapping[str, Sweep] = {
    "sign_k": Sweep(f"{_SIGNDS}.sign_k", (0.01, 0.05, 0.2)),
    "sign_eps": Sweep(f"{_SIGNDS}.sign_eps", (3, 10, 30, 100)),
    "sign_thr_ratio": Sweep(f"{_SIGNDS}.sign_thr_ratio", (0.6, 0.8, 0.99)),
    **{
        name: Sweep(
            f"{_SIGNDS}.sign_dim_out",
            (10, 25, 50),
            (f"{_SIGNDS}.sign_eps={eps}", _FIXED, f"{_SIGNDS}.sign_global_lr=4"),
        )
        for name, eps in (("sign_dim_out", _SMALL_EPS), ("sign_dim_out, large eps", _LARGE_EPS))
    },
    "sign_global_lr": Sweep(f"{_SIGNDS}.sign_global_lr", _RATES, (_FIXED,), _RATE_SEEDS),
    "sign_global_lr, quarter": Sweep(
        f"{_SIGNDS}.sign_global_lr", _RATES, (_FIXED, "clients.fraction=0.25")
    ),
    **{
        f"sign_global_lr, {name}": Sweep(f"{_SIGNDS}.sign_global_lr", _RATES, (_FIXED, *changes))
        for name, changes in _TRAINED_MORE.items()
    },
}


def __getattr__(name: str) -> Any:
    """Return a data function: `few_tests_NAME` is the function NAME of `writers` with fewer tests.

    It has every fifth test image. NAME is a part of the job, so jobs on real writers differ from
    jobs on simulated ones.
    """
    if name.startswith(_FEW):
        return partial(_few_tests, name.removeprefix(_FEW))
    raise AttributeError(name)


def _few_tests(name: str) -> dict[str, Any]:
    data: dict[str, Any] = getattr(writers, name)()
    return data | {part: data[part][::_TEST_PART] for part in ("x_test", "y_test")}


class SignDSKeys(Experiment):
    """One key of SignDS varied at a time: the dimensions of a report, and the run's accuracy."""

    name = "signds-keys"
    what = "What each key of SignDS changes in a report and in accuracy; the step by round."
    source = "000, the table of keys and the section on MagRR"
    scales = ("small", "medium")
    smaller: ClassVar[Mapping[Scale, str]] = dict.fromkeys(scales, _WHY_SMALLER)

    def base(self, scale: Scale) -> Job:
        """Return the job with the source's keys."""
        small = scale == "small"
        return Job.read(
            {
                "name": self.name,
                "rounds": _ROUNDS[scale],
                "clients": {
                    "number": writers.SMALL_WRITERS if small else writers.WRITERS,
                    "fraction": 1,
                },
                "data": {
                    "name": f"experiments.signds_keys:{_FEW}{writers.mnist_name(scale)}",
                    "split": "by_client",
                },
                "model": "lenet_femnist",
                "training": {"epochs": _EPOCHS, "lr": _LR, "batch_size": 20},
                "server": {"weighting": "equal"},
                "protection": {
                    "name": "signds",
                    "signds": {"sign_k": 0.2, "sign_eps": 100, "sign_thr_ratio": 0.6},
                },
                "checkpoint": {"every": _ROUNDS[scale]},
                "record": {"page": False},
                "simulation": {"workers": "auto"},
            },
            [],
        )

    def estimate_s(self, scale: Scale) -> float:
        """Estimate the seconds of a run for each value and seed."""
        return sum(len(s.values) * s.seeds for s in SWEEPS.values()) * _RUN_S[scale]

    def run(self, folder: Path, scale: Scale, tell: Tell) -> Outcome:
        """Train the runs of all sweeps, and for each seed one run that shows the server's step.

        The step of such a run is read after every few rounds.
        """
        base = self.base(scale)
        runs = swept(folder, base, SWEEPS, tell)
        steps = [estimates(folder, base, seed, tell) for seed in range(SEEDS)]
        rates = {
            "all clients": runs["sign_global_lr"],
            "25% of the clients": _rates(runs, "quarter"),
            **{name: _rates(runs, name) for name in _TRAINED_MORE},
        }
        plots = [
            plot("rate", "Accuracy by the step of the server", "sign_global_lr", rates),
            Plot("step", "The server's estimate r_est", Axis("round"), Axis("r_est", log=True),
                 [Curve(f"seed {seed}", [_STRIDE * (i + 1) for i in range(len(found))], found,
                        protection="signds") for seed, found in enumerate(steps)]),
        ]  # fmt: skip
        verdicts = [*outputs(), *judged(runs), step_shrinks(steps, runs["sign_k"][0.2])]
        return Outcome(_told(base, scale), verdicts, [_table(runs)], plots, seeds=0)


def _rates(runs: Mapping[str, Swept], name: str) -> Swept:
    return runs[f"sign_global_lr, {name}"]


def estimates(folder: Path, base: Job, seed: int, tell: Tell) -> list[float]:
    """Return r_est, the server's estimate of the step, after every few rounds of the base run."""
    tell(f"the estimate of the step by round, seed {seed}")

    def read(rounds: int) -> float:
        path = folder / f"step,seed={seed}"
        if path.exists():
            resume(path, rounds=rounds)
        else:
            changes = [f"rounds={rounds}", f"seed={seed}", f"checkpoint.every={_STRIDE}"]
            simulate(Job.read(base.model_dump(), changes), path)
        return float(last_checkpoint(path).protection["estimate"])

    return [
        kept(folder, f"step-{seed}-{rounds}", float, partial(read, rounds))
        for rounds in range(_STRIDE, base.rounds + 1, _STRIDE)
    ]


def plans(name: str) -> list[tuple[float, int, float]]:
    """Return (value, dimensions of a report, expected share of top-k dimensions in it).

    The list has such a triple for each value of the sweep `name`.
    """
    rows, base = [], SignDSKeys().base("small")
    for value in SWEEPS[name].values:
        keys = SWEEPS[name].job(base, value, seed=0).model_dump()["protection"]["signds"]
        named = ("sign_k", "sign_eps", "sign_thr_ratio", "sign_dim_out")
        plan = SignDS(*(keys[key] for key in named)).plan(DIM)
        rows.append((value, plan.dim_out, plan.expected_ratio))
    return rows


def outputs() -> Iterator[Verdict]:
    """Judge what each key does to the dimensions of a report. Nothing is trained."""
    claims = {
        "sign_k": ("fewer dimensions with a smaller k", True, None),
        "sign_eps": ("fewer dimensions with a smaller eps; the share stays", True, 0),
        "sign_thr_ratio": ("fewer dimensions with a larger ratio; the share grows", False, 1),
        "sign_dim_out": ("more dimensions with a larger out; the share falls", True, -1),
    }
    for name, (claim, grows, share) in claims.items():
        found = plans(name)
        counts, shares = [row[1] for row in found], [row[2] for row in found]
        monotone = counts == sorted(counts, reverse=not grows) and counts[0] != counts[-1]
        moves = shares[-1] - shares[0]
        turn = int(moves > 0.05) - int(moves < -0.05)
        yield Verdict.of(
            monotone and share in (None, turn), f"dimensions of a report by {name}", claim,
            "; ".join(f"{value:g}: {count}, share {part:.2f}" for value, count, part in found),
            held_to="the numbers are in this order; a share that stays moves by less than 0.05, "
            "one that grows or falls by more",
            same="the exact probabilities of a selection say so",
            other="the exact probabilities of a selection say otherwise"
            + (": a report of one dimension has another share" if min(counts) == 1 else ""),
        )  # fmt: skip


def judged(runs: Mapping[str, Swept]) -> Iterator[Verdict]:
    """Judge what each key does to accuracy."""
    yield compared(
        "accuracy by sign_eps", runs["sign_eps"], 3, 100, labels=_DIGITS,
        source="a smaller eps costs accuracy", same="a report has fewer dimensions",
        other="fewer dimensions are enough at this size",
    )  # fmt: skip
    yield compared(
        "accuracy by sign_thr_ratio", runs["sign_thr_ratio"], 0.99, 0.6, labels=_DIGITS,
        source="a much larger ratio costs accuracy if there are too few clients",
        same="a report has fewer dimensions, and a hundred clients are few",
        other="a hundred clients are enough for the fewer dimensions",
    )  # fmt: skip
    yield compared(
        f"accuracy by sign_dim_out, at eps {_SMALL_EPS}", runs["sign_dim_out"], 50, 10,
        labels=_DIGITS,
        source="if eps is not large enough, a larger out costs accuracy",
        same="the additional dimensions are mostly noise",
        other="the additional dimensions help more than their noise harms",
    )  # fmt: skip
    yield compared(
        f"accuracy by sign_dim_out, at eps {_LARGE_EPS}", runs["sign_dim_out, large eps"], 10, 50,
        labels=_DIGITS,
        source="if eps is large enough, a larger out raises accuracy",
        same="the additional dimensions are of the top-k set, too",
        other="the additional dimensions are of the top-k set, too, but do not help",
    )  # fmt: skip
    whole = runs["sign_global_lr"]
    yield from _rate(whole, _rates(runs, "quarter"))
    claim = "more local epochs and a larger local learning rate need a larger one"
    for name, pair, part in (
        ("more epochs", f"{_EPOCHS} local epochs, and with {_MORE_EPOCHS}", "; here, epochs alone"),
        ("larger lr", f"local rate {_LR:g}, and with {_MORE_LR:g}", "; here, the rate alone"),
        ("both", f"{_EPOCHS} epochs at rate {_LR:g}, and with {_MORE_EPOCHS} at {_MORE_LR:g}", ""),
    ):
        yield larger_needed(
            f"best sign_global_lr with {pair}", whole, _rates(runs, name), source=claim + part,
            same="the clients' updates are larger, and a sign does not say so",
        )  # fmt: skip


def _rate(whole: Swept, quarter: Swept) -> Iterator[Verdict]:
    """Judge whether a larger step converges faster, fluctuates, and is needed for more clients."""
    faster = [
        mean_accuracy(b) - mean_accuracy(a) for a, b in zip(whole[0.25], whole[1], strict=True)
    ]
    agrees, nothing = decided(faster)
    yield Verdict.of(
        agrees, "mean accuracy over all rounds, at sign_global_lr 1 minus at 0.25",
        "a moderately larger one is faster", with_interval(faster),
        held_to="the interval lies above 0",
        same="each sign moves a weight further", other="it is not faster",
        nothing=idle({"1": min(reached(whole[1]))}, _DIGITS) or nothing,
    )  # fmt: skip
    yield _sways(whole)
    yield larger_needed(
        "best sign_global_lr with 25% of the clients, and with all", quarter, whole,
        source="more clients need a larger one",
        same="the server divides the step by the number of reports",
    )  # fmt: skip


def _sways(whole: Swept) -> Verdict:
    """Judge whether the test loss fluctuates more than twice as much at the largest step.

    Fluctuations differ by factors, so the interval is that of the ratio's logarithm.
    """
    sways = {rate: [*map(_sway, runs)] for rate, runs in whole.items()}
    ratios = [math.log2(wild / calm) for calm, wild in zip(sways[1], sways[16], strict=True)]
    agrees, nothing = decided([ratio - 1 for ratio in ratios], slack=0.0)
    return Verdict.of(
        agrees, "fluctuation of the last five test losses, by sign_global_lr",
        "a larger one may oscillate",
        "; ".join(f"{rate:g}: {with_interval(each)}" for rate, each in sways.items()),
        held_to="that at 16 divided by that at 1, seed by seed, as a logarithm to base 2, here "
        f"{with_interval(ratios)}: the interval lies above 1, the logarithm of 2",
        same="steps of a fixed size overshoot", other="it fluctuates at most twice as much",
        nothing=idle({"1": min(reached(whole[1]))}, _DIGITS) or nothing,
    )  # fmt: skip


def larger_needed(what: str, less: Swept, more: Swept, *, source: str, same: str) -> Verdict:
    """Judge whether the runs `more` need a larger step than the runs `less`.

    They do if `more` is more accurate at a larger step than at the best one of `less`.
    """
    best = _best(less, [*less])
    larger = _best(more, [rate for rate in more if rate > best] or [best])
    apart = [b - a for a, b in zip(reached(more[best]), reached(more[larger]), strict=True)]
    agrees, nothing = decided(apart)
    if larger == best:
        nothing = f"no step above {best:g} was tried"
    ends = {"the former": mean(reached(less[best])),
            "the latter": max(mean(reached(more[rate])) for rate in (best, larger))}  # fmt: skip
    return Verdict.of(
        agrees, what, source,
        f"{best:g} and {_best(more, [*more]):g}. The latter at {larger:g} instead of {best:g}: "
        f"{with_interval(apart)}",
        held_to="the latter's accuracy at the best of all larger steps, minus that at the best of "
        "the former, seed by seed: the interval lies above 0",
        same=same, other="no larger one is better", nothing=idle(ends, _DIGITS) or nothing,
    )  # fmt: skip


def _best(runs: Swept, rates: Sequence[float]) -> float:
    return max(rates, key=lambda rate: mean(reached(runs[rate])))


def _sway(run: ReadRun) -> float:
    """Return the standard deviation of the last test losses.

    The result is at least 1e-9, so that its logarithm is finite.
    """
    return max(stdev(run.figures("loss")[1][-LAST:]), 1e-9)


def step_shrinks(steps: Sequence[Sequence[float]], base: Sequence[ReadRun]) -> Verdict:
    """Judge whether the estimate of the step is smaller at the end than at its largest.

    `steps` has the estimates during a run, for each seed. `base` has runs of the same job, which
    show if anything was learnt.
    """
    ends = "; ".join(f"{max(each):.2g} to {each[-1]:.2g}" for each in steps)
    return Verdict.of(
        all(each[-1] < max(each) for each in steps),
        "estimate of the step: its largest value, and that after the last round",
        "large at first, shrinks as the training converges", ends,
        held_to="smaller at the end, for every seed",
        same="the clients' updates become smaller, and their bits say so",
        other="the updates are not yet smaller in these rounds",
        nothing=idle({"with the source's keys": min(reached(base))}, _DIGITS),
    )  # fmt: skip


def _told(base: Job, scale: Scale) -> str:
    data = writers.mnist_name(scale)
    return (
        f"A LeNet with 62 classes for {base.rounds} rounds of {base.training.epochs} local epochs "
        f"with learning rate {base.training.lr:g}. The {base.clients.number} clients are the "
        f"writers of `{data}`{writers.hands(data)}, all of them in every round; every fifth test "
        f"image is used. Keys that are not varied have the source's values: k 0.2, eps 100, "
        f"ratio 0.6, out 0, and an estimated step. If out is varied, eps is {_SMALL_EPS} or "
        f"{_LARGE_EPS}, and the step is fixed at 4 / clients. If sign_global_lr is varied, the "
        f"step is fixed at this key / clients. Clients that train more have {_MORE_EPOCHS} local "
        f"epochs, learning rate {_MORE_LR:g}, or both. The source states trends without sizes. The "
        f"dimensions of a report follow from the keys and the size of the model, {DIM:,}, without "
        f"training. A figure is the mean of {SEEDS} seeds, and of {_RATE_SEEDS} if "
        f"sign_global_lr is varied with all clients, with its {CONFIDENCE:.0%} confidence interval."
    )


def _table(runs: Mapping[str, Swept]) -> Table:
    rows = [
        (name, f"{value:g}", with_interval(reached(each)),
         with_interval([mean_accuracy(run) for run in each]),
         f"{mean(run.last['bytes_up_per_client'] for run in each):.0f}")
        for name, sweep in runs.items() for value, each in sweep.items()
    ]  # fmt: skip
    columns = ("key", "value", "accuracy at the end", "mean accuracy over all rounds", "bytes up")
    caption = (
        f"All sweeps. `large eps`: eps {_LARGE_EPS} instead of {_SMALL_EPS}. `quarter`: 25% of the "
        f"clients take part in a round. `more epochs`, `larger lr`, `both`: clients train more."
    )
    return Table(columns, rows, caption)
