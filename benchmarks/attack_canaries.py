"""The audit by canaries: its false alarms, the planted faults that it finds, and its tightness.

Each row is based on whole simulated runs of two rounds with a network of 2,080 parameters and as
many canaries as clients. The table of validity counts the runs whose bound is above a true claim.
The table of faults counts the runs of a broken protection in which the claim is refuted. The table
of tightness shows the share of a claim that the bounds reach. `dp_encrypt` is the protection
itself, with evidence from each report. `central` is `pw_encrypt` with `central_eps` as others than
the server see it: a sum of clipped updates with `CentralNoise`. It has no masks, which would take
most of a run's time. The last row has pw_encrypt itself.

    python benchmarks/attack_canaries.py --effort quick

Takes a quarter of an hour of one busy core at quick: 7 minutes for validity, 2.5 for tightness. At
full, tightness uses nine runs instead of three.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from copy import copy
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

import fedveil
from fedveil.base.message import Message, take_array
from fedveil.engine.canary_bounds import BY_NOISE
from fedveil.entropy import Seeded
from fedveil.federated.job import Job
from fedveil.mechanisms.central_noise import CentralNoise
from fedveil.mechanisms.distributed_gaussian import DistributedGaussian
from fedveil.mechanisms.gaussian import GaussianMechanism
from fedveil.privacy.gaussian_curve import analytic_sigma
from fedveil.protections.base import (
    Aggregate,
    ClientContext,
    JobContext,
    Protection,
    RoundContext,
    Spending,
    State,
    Update,
)
from fedveil.protections.distributed_dp import DistributedDP
from fedveil.protections.distributed_dp_settings import DistributedDPSettings
from fedveil.protections.dp_encrypt import DPEncrypt, DPEncryptSettings, _GridForm
from fedveil.protections.one_report import OneReportClient, OneReportRound
from fedveil.protections.reading import Reading
from fedveil.settings.settings import Settings

FEATURES, CLASSES, CLIENTS = 64, 32, 2000
STEP = 2.0**-20
DELTA = 1e-6
#: The heads of the columns of an audit's three bounds.
BOUNDS = (
    "if the privacy curve is Gaussian | if canaries reveal nothing about each other "
    "| if the noise is Gaussian with equal variance"
)
FAULTS = {
    "none": "none",
    "half": "half the noise",
    "C": "noise for C, not 2C",
    "rounds": "one stream for all rounds",
    "clients": "one stream for all clients",
    "one": "one report without noise",
    "share": "one of the shares of the noise is missing",
}
Fault = Literal["none", "half", "C", "rounds", "clients", "one", "share"]


def data() -> dict[str, Any]:
    """Return clustered data, two examples for each client of the largest run."""
    draw = Seeded(0, "canary benchmark").generator()
    y = draw.integers(0, CLASSES, 2 * CLIENTS + 64)
    x = (draw.normal(size=(CLASSES, FEATURES))[y] + draw.normal(size=(len(y), FEATURES))) / 4
    train = slice(2 * CLIENTS)
    x = x.astype(np.float32)
    held = slice(2 * CLIENTS, None)
    return {"x_train": x[train], "y_train": y[train], "x_test": x[held], "y_test": y[held]}


def net() -> nn.Module:
    """Return a network of 2,080 parameters."""
    return nn.Linear(FEATURES, CLASSES)


class LocalSettings(DPEncryptSettings):
    """The settings of dp_encrypt, and the fault."""

    fault: Fault = "none"


class Local(DPEncrypt):
    """dp_encrypt with a fault."""

    block, settings_type = "own", LocalSettings

    def __init__(self, settings: LocalSettings, context: JobContext) -> None:
        super().__init__(settings, context)
        mechanism = GaussianMechanism(settings.dp_eps, settings.dp_delta, settings.dp_norm_clip)
        if settings.fault == "half":
            mechanism.sigma /= 2
        if settings.fault == "C":
            mechanism.sigma = analytic_sigma(
                settings.dp_eps, settings.dp_delta, settings.dp_norm_clip
            )
        self._form = _GridForm(
            mechanism, self.dimension, mechanism.grid(self.dimension).step, mechanism.clip
        )

    def client_round(self, context: ClientContext) -> Any:
        names = {"rounds": context.client, "clients": context.round}
        name, seed = names.get(self.settings.fault), self.context.seed
        entropy = context.entropy if name is None else Seeded(seed, "twice", name)
        client = super().client_round(
            ClientContext(context.client, context.round, context.model, context.examples, entropy)
        )
        last = self.context.clients_per_round - 1  # a canary
        if self.settings.fault == "one" and (context.client, context.round) == (last, 1):
            client._form = copy(client._form)
            client._form._mechanism = Silent(self._mechanism, self._form.step)
        return client


class Silent:
    """Replaces a mechanism: clips updates as `clipping` does, and adds no noise."""

    def __init__(self, clipping: Any, step: float) -> None:
        self._clipping, self._step = clipping, step

    def drawing(self, update: Update, entropy: Any) -> Any:
        whole = np.rint(self._clipping.clipped(update) / self._step).astype(np.int64)
        return lambda part: whole[part]


class SharesSettings(DistributedDPSettings):
    """The settings of distributed_dp, and the number of clients that add no noise."""

    missing: int = 0


class Shares(DistributedDP):
    """distributed_dp in which the first `missing` clients send their updates without noise."""

    block, settings_type = "own", SharesSettings
    settings: SharesSettings
    noise: DistributedGaussian

    def vector(self, update: Update, context: ClientContext, told: Message) -> Any:
        if context.client >= self.settings.missing:
            return super().vector(update, context, told)
        return self.noise.rounded(update, self.signs(context.round), context.entropy)


class CentralSettings(Settings):
    """The settings of central noise, its number of shares, and the fault."""

    eps: float = 1.0
    delta: float = DELTA
    clip: float = 1.0
    shares: int = 1
    fault: Fault = "none"


class Central(Protection):
    """The mean of clipped updates with central noise. Only the server sees a report."""

    settings_type, cost_parameter = CentralSettings, "eps"
    settings: CentralSettings

    def __init__(self, settings: CentralSettings, context: JobContext) -> None:
        super().__init__(settings, context)
        self.noise = CentralNoise(
            settings.eps, settings.delta, settings.clip, STEP, context.dimension
        )
        self.norm_clip = settings.clip

    def spending(self, state: State) -> Sequence[Spending]:
        return [Spending(self.noise.loss)]

    def noises(self) -> list[CentralNoise]:
        """Return the noise of each share. Its sigma is proportional to the clip."""
        given = self.settings
        scale = (0.5 if given.fault in ("half", "C") else 1.0) / given.shares**0.5
        share = CentralNoise(given.eps, given.delta, scale * given.clip, STEP, self.dimension)
        return [share] * (given.shares - (given.fault == "share"))

    def server_round(self, context: RoundContext) -> Any:
        return _CentralServer(context, self)

    def client_round(self, context: ClientContext) -> Any:
        return _CentralClient(context, self)

    def reading(self, context: RoundContext, report: Message) -> Reading:
        return Reading.nothing(self.dimension)


class _CentralServer(OneReportRound):
    sums = ("_sum",)
    longest = 2**20

    def __init__(self, context: RoundContext, protection: Central) -> None:
        super().__init__(context)
        self._protection = protection
        self._sum = np.zeros(protection.dimension, np.int64)

    def _fold(self, client: int, message: Message) -> None:
        self._sum += take_array(message, "steps", "int64", self._sum.shape)

    def _merge_sums(self, other: _CentralServer) -> None:
        self._sum += other._sum

    def _aggregate(self) -> Aggregate:
        noised, protection = self._sum.copy(), self._protection
        repeated = protection.settings.fault == "rounds"
        for i, noise in enumerate(protection.noises()):
            name = 0 if repeated else self._context.round
            noise.add_to(noised, Seeded(protection.context.seed, "central", name, i))
        return Aggregate(noised * STEP / self.reports, self.reports)


class _CentralClient(OneReportClient):
    def __init__(self, context: ClientContext, protection: Central) -> None:
        super().__init__(context)
        self._noise = protection.noise

    def _report(self, opening: Message, update: Update) -> Message:
        return {"round": self._context.round, "steps": self._noise.clipped(update)}


def per_round(eps: float) -> float:
    """Return the epsilon of one round, at `DELTA`, for which two rounds cost `eps` at delta 1e-5.

    The result is rounded down.
    """
    ratio, low, high = 2**0.5 * analytic_sigma(eps, 1e-5, 1.0), 1e-6, 100.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if analytic_sigma(middle, DELTA, 1.0) > ratio else (low, middle)
    return low


def job(
    position: str,
    eps: float,
    canaries: int,
    seed: int,
    *,
    lr: float = 0.001,
    rounds: int = 2,
    **own: Any,
) -> Job:
    """Return a job under `position` whose run costs epsilon `eps`. `own` are more parameters."""
    each, threshold = per_round(eps), canaries + 2
    block, parameters = {
        "local": ("own", {"dp_eps": each, "dp_delta": DELTA, **own}),
        "central": ("own", {"eps": each, **own}),
        "shares": ("own", {
            "target_epsilon": eps, "bits": 16, "reconstruct_secrets_threshold": 2, **own,
        }),
        "distributed_dp": ("distributed_dp", {
            "target_epsilon": eps, "bits": 16, "reconstruct_secrets_threshold": 2,
        }),
        "dp_encrypt": ("dp_encrypt", {"dp_eps": each, "dp_delta": DELTA}),
        "pw_encrypt": ("pw_encrypt", {
            "central_eps": each, "central_delta": DELTA, "central_norm_clip": 1.0,
            "reconstruct_secrets_threshold": threshold,
        }),
    }[position]  # fmt: skip
    name = position if block != "own" else f"attack_canaries:{position.capitalize()}"
    return Job(
        name="audited", seed=seed, rounds=rounds, model="attack_canaries:net",
        clients={"number": canaries, "fraction": 1.0},
        data={"name": "attack_canaries:data"},
        training={"epochs": 1, "batch_size": 20, "lr": lr},
        evaluation={"every": rounds}, checkpoint={"every": rounds},
        simulation={"workers": 0, "masks": position == "pw_encrypt"},
        audit={"canaries": canaries}, protection={"name": name, block: parameters},
    )  # fmt: skip


def audited(job: Job) -> tuple[float, float, float, float]:
    """Run `job`. Returns the three lower bounds of its audit, and the claimed epsilon."""
    with tempfile.TemporaryDirectory() as folder:
        finding = fedveil.simulate(job, Path(folder) / "run").audit
    assert finding is not None
    bound, alone = (figure.value for figure in finding.figures[:2])
    return bound, alone, finding.figure(BY_NOISE).value, finding.epsilon


def validity(runs: int) -> None:
    """Print how many of `runs` audits of a sound protection have a bound above the claim."""
    print(f"\nValidity, {runs} runs of 100 canaries each: runs with a bound above the claim")
    print(f"| protection | claim | {BOUNDS} | any |")
    print("|---|---|---|---|---|---|")
    for position, eps in (("dp_encrypt", 1.0), ("dp_encrypt", 4.0), ("central", 4.0),
                          ("distributed_dp", 4.0)):  # fmt: skip
        found = np.array([audited(job(position, eps, 100, seed)) for seed in range(runs)])
        print(f"| {position} | {eps:g} | {_over(found)} |", flush=True)


def _over(found: np.ndarray) -> str:
    """Format the numbers of runs (rows of `found`) with each bound, or any, above the claim."""
    over = found[:, :-1] > found[:, -1:]
    return " | ".join(map(str, [*over.sum(axis=0), over.any(axis=1).sum()]))


def faults(runs: int) -> None:
    """Print the number of runs of a broken protection in which the claim is refuted."""
    print(f"\nFaults at a claim of epsilon 8, {runs} runs each: runs in which it is refuted")
    print("| protection | fault | canaries | refuted by the first bound | by the second bound "
          "| by the third bound | by any bound |")  # fmt: skip
    print("|---|---|---|---|---|---|---|")
    cases: list[tuple[str, int, dict[str, Any]]] = [
        *(("local", 100, {"fault": fault}) for fault in ("none", "half", "C", "rounds", "clients",
                                                            "one")),
        *(("central", 100, {"fault": fault}) for fault in ("none", "half", "C", "rounds")),
        ("central", 400, {"fault": "share", "shares": 2}),
        ("central", 400, {"fault": "share", "shares": 4}),
        ("shares", 4, {"rounds": 4, "missing": 0}),
        ("shares", 4, {"rounds": 4, "missing": 1}),
        ("shares", 10, {"rounds": 10, "missing": 0}),
        ("shares", 10, {"rounds": 10, "missing": 1}),
    ]  # fmt: skip
    for position, canaries, own in cases:
        found = np.array([audited(job(position, 8.0, canaries, 1000 + s, **own))
                          for s in range(runs)])  # fmt: skip
        fault = own.get("fault", "share" if own.get("missing") else "none")
        of = own.get("shares", 2 * canaries if own.get("missing") else None)
        what = FAULTS[fault] + (f", of {of}" if of else "")
        print(f"| {position} | {what} | {canaries} | {_over(found)} |", flush=True)


def tightness(runs: int) -> None:
    """Print the share of a claim that the bounds reach."""
    print(f"\nTightness, the median of {runs} runs (and the least)")
    print(f"| protection | claim | canaries | {BOUNDS} |")
    print("|---|---|---|---|---|---|")
    cases = [
        *(("dp_encrypt", eps, n, 0.001) for eps in (1.0, 2.0, 4.0, 8.0) for n in (200, 2000)),
        *(("central", eps, n, 0.001) for eps in (1.0, 2.0, 4.0, 8.0) for n in (200, 2000)),
        ("central", 8.0, 200, 0.1),
        *(("distributed_dp", eps, 200, 0.001) for eps in (1.0, 2.0, 4.0, 8.0)),
        ("pw_encrypt", 8.0, 60, 0.001),
    ]
    for position, eps, canaries, lr in cases:
        times = 1 if position == "pw_encrypt" else runs
        found = np.array([audited(job(position, eps, canaries, 2000 + s, lr=lr))
                          for s in range(times)])  # fmt: skip
        shown = [f"{np.median(column):.2f} ({column.min():.2f})" for column in found.T[:-1]]
        name = position if lr == 0.001 else f"{position}, clients learn at {lr:g}"
        print(f"| {name} | {eps:g} | {canaries} | {' | '.join(shown)} |", flush=True)


def accuracy(runs: int) -> None:
    """Print test accuracies with 0 to 100 canaries: digits, 100 clients, 30 rounds."""
    print(f"\nTest accuracy with canaries in, the mean of {runs} runs (and the least)")
    print("| protection | 0 canaries | 10 | 50 | 100 |")
    print("|---|---|---|---|---|")
    for name, block in (("not_encrypt", {}), ("dp_encrypt", {"dp_eps": 1000.0}),
                        ("signds", {"sign_eps": 100.0}),
                        ("distributed_dp", {"target_epsilon": 8.0})):  # fmt: skip
        shown = []
        for canaries in (0, 10, 50, 100):
            found = [_accuracy(name, block, canaries, seed) for seed in range(runs)]
            shown.append(f"{np.mean(found):.3f} ({min(found):.3f})")
        print(f"| {name} | {' | '.join(shown)} |", flush=True)


def _accuracy(name: str, block: dict[str, Any], canaries: int, seed: int) -> float:
    given = Job(
        seed=seed, rounds=30, model="logistic", data={"name": "digits"},
        clients={"number": 100, "fraction": 1.0},
        simulation={"workers": 0, "masks": False}, audit={"canaries": canaries},
        evaluation={"every": 30}, protection={"name": name, name: block},
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        metrics = fedveil.simulate(given, Path(folder) / "run").metrics
    return float(metrics[-1]["accuracy"])


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--effort", choices=("quick", "full"), default="quick")
    tables: dict[str, Callable[[int], None]] = {
        "validity": validity, "faults": faults, "tightness": tightness, "accuracy": accuracy,
    }  # fmt: skip
    parser.add_argument("tables", nargs="*", choices=tables)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    full = chosen.effort == "full"
    runs = {"accuracy": 3, "validity": 200, "faults": 20, "tightness": 9 if full else 3}
    for name in chosen.tables or tables:
        began = time.perf_counter()
        tables[name](runs[name])
        print(f"({time.perf_counter() - began:.0f} s)")


if __name__ == "__main__":
    main()
