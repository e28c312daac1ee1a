"""Accuracy under DP_ENCRYPT by the clients in a round, the clip, and the size of the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean

import numpy as np
from torch import nn

from experiments.evidence import SLACK, decided, idle, interval, with_interval
from experiments.experiment import Experiment, Outcome, Scale, Tell, Verdict
from experiments.sweeps import SEEDS, Sweep, Swept, compared, plot, reached, swept
from fedveil.base.array_types import Array
from fedveil.data.datasets import load
from fedveil.federated.job import Job
from fedveil.pages.table import Table
from fedveil.privacy.finding import CONFIDENCE

_DIGITS = 10
#: The shares of the clients that take part in a round, and that of the sweep of clips.
SHARES = (0.01, 0.1, 1.0)
_MIDDLE = 0.3
_CLIPS = (0.1, 0.5, 1.0, 2.0, 8.0)
#: Models by their size: the number of hidden units of a dense net.
_WIDTHS = (64, 256, 1024)
#: Seeds of the models' runs, whose differences are small.
_MODEL_SEEDS = 8
_DATA: Mapping[Scale, str] = {
    "small": "experiments.dp_encrypt_keys:tenth_of_mnist",
    "full": "mnist",
}
_CLIENTS: Mapping[Scale, int] = {"small": 100, "full": 1000}
_ROUNDS: Mapping[Scale, int] = {"small": 4, "full": 10}
#: Runs that differ in their clients alone are longer by this factor.
_LONGER = 3
_SECONDS: Mapping[Scale, float] = {"small": 240, "full": 2700}

_NOISY, _PLAIN = "protection.name=dp_encrypt", "protection.name=not_encrypt"


def tenth_of_mnist() -> tuple[Array, Array, Array, Array]:
    """Return a tenth of MNIST.

    With a tenth of the images, each of 100 clients has as many images as each of 1,000 clients has
    with all of them.
    """
    data = load("mnist")
    train, test = (part.of(np.arange(0, len(part), 10)) for part in (data.train, data.test))
    return train.x, train.y, test.x, test.y


def dense_64(shape: Sequence[int], classes: int) -> nn.Module:
    return _dense(shape, classes, 64)


def dense_256(shape: Sequence[int], classes: int) -> nn.Module:
    return _dense(shape, classes, 256)


def dense_1024(shape: Sequence[int], classes: int) -> nn.Module:
    return _dense(shape, classes, 1024)


def _dense(shape: Sequence[int], classes: int, width: int) -> nn.Module:
    inputs = int(np.prod(shape))
    hidden = nn.Linear(inputs, width)
    return nn.Sequential(nn.Flatten(), hidden, nn.ReLU(), nn.Linear(width, classes))


def _sweeps(scale: Scale) -> Mapping[str, Sweep]:
    """Return the sweeps of noisy and of plain runs."""
    shares, clips = "clients.fraction", "protection.dp_encrypt.dp_norm_clip"
    longer = f"rounds={_LONGER * _ROUNDS[scale]}"
    models = {
        f"{kind}, {width} units": Sweep(
            shares,
            SHARES[1:],
            (protection, f"model=experiments.dp_encrypt_keys:dense_{width}"),
            _MODEL_SEEDS,
        )
        for width in _WIDTHS
        for kind, protection in (("noisy", _NOISY), ("plain", _PLAIN))
    }
    return {
        "noisy": Sweep(shares, SHARES, (_NOISY, longer)),
        "plain": Sweep(shares, SHARES, (_PLAIN, longer)),
        "clip": Sweep(clips, _CLIPS, (_NOISY, f"clients.fraction={_MIDDLE}")),
        **models,
    }


class DPEncryptKeys(Experiment):
    """Accuracy under DP_ENCRYPT and without protection, for more clients, clips and models."""

    name = "dp-encrypt-keys"
    what = "What decides about accuracy under DP_ENCRYPT: clients in a round, clip, model size."
    source = "001, the advice on dp_eps, dp_delta, dp_norm_clip and clients; 000, its introduction"
    scales = ("small", "full")

    def base(self, scale: Scale) -> Job:
        """Return the job with the values that the source advises, such as an epsilon of 50."""
        clients = _CLIENTS[scale]
        return Job.read(
            {
                "name": self.name,
                "rounds": _ROUNDS[scale],
                "clients": {"number": clients, "fraction": 1},
                "data": {"name": _DATA[scale], "split": "iid"},
                "model": "lenet",
                "training": {"epochs": 1, "lr": 0.1, "batch_size": 10},
                "server": {"weighting": "equal"},
                "protection": {
                    "name": "dp_encrypt",
                    "dp_encrypt": {"dp_eps": 50, "dp_delta": 1 / clients, "dp_norm_clip": 1.0},
                },
                "evaluation": {"every": _ROUNDS[scale]},
                "checkpoint": {"every": _ROUNDS[scale]},
                "record": {"page": False},
                "simulation": {"workers": "auto"},
            },
            [],
        )

    def estimate_s(self, scale: Scale) -> float:
        """Estimate the seconds of all runs."""
        return _SECONDS[scale]

    def run(self, folder: Path, scale: Scale, tell: Tell) -> Outcome:
        """Train the runs of all sweeps, and judge the source's statements."""
        base = self.base(scale)
        runs = swept(folder, base, _sweeps(scale), tell)
        number = _CLIENTS[scale]
        both = {"dp_encrypt": runs["noisy"], "not_encrypt": runs["plain"]}
        share = f"share of {number:,} clients in a round"
        plots = [plot("clients", f"Accuracy by the {share}", share, both)]
        ran = (
            f"A LeNet and dense nets on MNIST, {number:,} clients, {base.rounds} rounds of one "
            f"local epoch ({_LONGER * base.rounds} in LeNet's runs that vary the share of clients "
            f"in a round). dp_eps is 50, the smallest that the source advises, and dp_delta is "
            f"1 / clients, as the source advises. Every report costs this epsilon, so the whole "
            f"run guarantees next to nothing. The clip is 1 unless it is varied. "
            f"A figure is the mean of {SEEDS} seeds for LeNet, and of {_MODEL_SEEDS} for the dense "
            f"nets, with its {CONFIDENCE:.0%} confidence interval."
        )
        verdicts = [*judged(runs, number)]
        return Outcome(ran, verdicts, [_table(runs)], plots, seeds=0)


def lost(runs: Mapping[str, Swept], models: str, share: float) -> list[float]:
    """Return the accuracy that noise costs, for each seed, with a `share` of clients in a round.

    The sweeps with and without noise are called "noisy" and "plain", followed by `models`, which is
    empty for LeNet.
    """
    noisy, plain = (reached(runs[f"{kind}{models}"][share]) for kind in ("noisy", "plain"))
    return [b - a for a, b in zip(noisy, plain, strict=True)]


def judged(runs: Mapping[str, Swept], number: int) -> Iterator[Verdict]:
    """Judge the sources' statements about the noise. `number` is the number of clients."""
    costs = {share: lost(runs, "", share) for share in SHARES}
    told = "; ".join(f"{share * number:,.0f}: {with_interval(costs[share])}" for share in SHARES)
    _, unsure = decided(costs[1.0])
    yield Verdict.of(
        interval(costs[1.0])[1] <= SLACK,
        "accuracy lost to noise, by the number of clients in a round",
        "from 1,000 clients on the noise cancels, without a visible effect", told,
        held_to=f"with all {number:,} clients, the interval ends at {SLACK:g} at most",
        same="little noise is left in the mean",
        other=f"even the mean of {number:,} reports has enough noise to be seen",
        nothing=idle({"plain, 1": min(reached(runs["plain"][1.0]))}, _DIGITS) or unsure,
    )  # fmt: skip
    yield from _clips(runs["clip"])
    yield from _sizes(runs, number)


def _clips(clips: Swept) -> Iterator[Verdict]:
    advised = max((0.5, 1.0, 2.0), key=lambda clip: mean(reached(clips[clip])))
    for outside, why in ((0.1, "a small clip slows learning"), (8.0, "noise grows with the clip")):
        yield compared(
            f"accuracy by dp_norm_clip: the best of 0.5, 1 and 2 ({advised:g}) against {outside:g}",
            clips, outside, advised, labels=_DIGITS, source="a clip between 0.5 and 2 is advised",
            same=why, other="a clip outside the advised range is not worse here",
        )  # fmt: skip


def _sizes(runs: Mapping[str, Swept], number: int) -> Iterator[Verdict]:
    few, all_of_them = SHARES[1:]
    by_width = {width: lost(runs, f", {width} units", few) for width in _WIDTHS}
    grown = [b - a for a, b in zip(by_width[_WIDTHS[0]], by_width[_WIDTHS[-1]], strict=True)]
    plain = {
        f"plain, {width} units": min(reached(runs[f"plain, {width} units"][few]))
        for width in _WIDTHS
    }
    agrees, nothing = decided(grown)
    yield Verdict.of(
        agrees,
        f"accuracy lost with {few * number:,.0f} clients in a round, by hidden units",
        "noise on every weight costs more in a larger model",
        "; ".join(f"{width}: {with_interval(each)}" for width, each in by_width.items()),
        held_to="the largest model loses more than the smallest, seed by seed: the interval lies "
        "above 0",
        same="the length of the noise grows with the square root of the number of weights",
        other="the larger model has accuracy to spare",
        nothing=idle(plain, _DIGITS) or nothing,
    )  # fmt: skip
    largest = f", {_WIDTHS[-1]} units"
    saved = [
        a - b
        for a, b in zip(lost(runs, largest, few), lost(runs, largest, all_of_them), strict=True)
    ]
    agrees, nothing = decided(saved)
    yield Verdict.of(
        agrees,
        f"accuracy lost by the largest model with {few * number:,.0f} clients, minus that with all",
        "many clients make up for it", with_interval(saved), held_to="the interval lies above 0",
        same="the noise of a mean falls with the square root of the number of reports",
        other="more clients do not help here",
        nothing=idle({"plain": plain[f"plain{largest}"]}, _DIGITS) or nothing,
    )  # fmt: skip


def _table(runs: Mapping[str, Swept]) -> Table:
    rows = [
        (name, f"{value:g}", with_interval(reached(each)))
        for name, sweep in runs.items()
        for value, each in sweep.items()
    ]
    caption = "All sweeps. The value is the clip, or the share of the clients in a round."
    return Table(("runs", "value", "accuracy at the end"), rows, caption)
