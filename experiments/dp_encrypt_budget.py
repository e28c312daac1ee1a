"""Privacy and accuracy under DP_ENCRYPT by dp_eps and by dp_delta."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

from experiments.dp_encrypt_keys import DPEncryptKeys
from experiments.evidence import with_interval
from experiments.experiment import Experiment, Outcome, Scale, Tell, Verdict
from experiments.sweeps import SEEDS, Sweep, Swept, compared, reached, swept
from fedveil.federated.job import Job
from fedveil.pages.table import Table
from fedveil.privacy.loss import format_epsilon

_DIGITS = 10
_EPS, _DELTA = "dp_eps", "dp_delta"
#: The values of each key, while the other one has the value that the source advises.
VALUES: Mapping[str, tuple[float, ...]] = {
    _EPS: (12.5, 25, 50, 100),
    _DELTA: (1e-12, 1e-6, 1e-3, 0.1),
}
#: The share of the clients in a round: 100 clients at either scale.
_SHARE: Mapping[Scale, float] = {"small": 1.0, "full": 0.1}
_ROUNDS: Mapping[Scale, int] = {"small": 10, "full": 30}
_SECONDS: Mapping[Scale, float] = {"small": 90, "full": 150}


class DPEncryptBudget(Experiment):
    """The guarantee and the accuracy under DP_ENCRYPT for smaller values of dp_eps and dp_delta."""

    name = "dp-encrypt-budget"
    what = "What a smaller dp_eps or a smaller dp_delta guarantees, and what accuracy it costs."
    source = "001, the descriptions of dp_eps and dp_delta"
    smaller: ClassVar[Mapping[Scale, str]] = {
        "small": "The noise in the mean of a round is the same at scale `full`, which also has 100 "
        "clients in a round, and three times the rounds. So the source's trends show here, too."
    }

    def base(self, scale: Scale) -> Job:
        """Return the job with the values that the source advises for dp_eps and the clip."""
        rounds = _ROUNDS[scale]
        changes = [
            f"name={self.name}", f"clients.fraction={_SHARE[scale]}", f"rounds={rounds}",
            f"evaluation.every={rounds}", f"checkpoint.every={rounds}",
            "protection.dp_encrypt.dp_delta=0.001",
        ]  # fmt: skip
        return Job.read(DPEncryptKeys().base(scale).model_dump(), changes)

    def estimate_s(self, scale: Scale) -> float:
        """Estimate the seconds of all runs."""
        return _SECONDS[scale]

    def run(self, folder: Path, scale: Scale, tell: Tell) -> Outcome:
        """Train with each value of both keys, and judge the source's statement."""
        base = self.base(scale)
        runs = swept(folder, base, sweeps(), tell)
        ran = (
            f"LeNet on {'a tenth of ' if scale == 'small' else ''}MNIST, {base.clients.number:,} "
            f"clients, 100 of whom take part in each of {base.rounds} rounds of one local epoch. "
            f"Unless it is varied, dp_eps is 50, the smallest that the source advises, "
            f"and dp_delta is 0.001, which is 1 divided by the "
            f"source's 1,000 clients. The clip is 1. The privacy of two settings can be compared "
            f"only at one delta. So the page states the epsilon of the whole run at delta "
            f"{base.privacy.delta:g}, for a client that takes part in every round."
        )
        return Outcome(ran, [*judged(runs)], [_table(runs)], seeds=SEEDS)


def sweeps() -> Mapping[str, Sweep]:
    """Return a sweep for each key."""
    return {key: Sweep(f"protection.dp_encrypt.{key}", VALUES[key]) for key in VALUES}


def epsilons(sweep: Swept) -> list[float]:
    """Return the epsilon of the whole run for each value of the key."""
    return [runs[0].last["epsilon_run_every_round"] for runs in sweep.values()]


def judged(runs: Mapping[str, Swept]) -> Iterator[Verdict]:
    """Judge for each key whether a smaller value guarantees more, and whether it costs accuracy."""
    for key, sweep in runs.items():
        found, least, most = epsilons(sweep), min(sweep), max(sweep)
        yield Verdict.of(
            all(a < b for a, b in pairwise(found)),
            f"epsilon of the run by {key} {', '.join(f'{value:g}' for value in sweep)}",
            f"a smaller {key} is more private",
            ", ".join(map(format_epsilon, found)),
            held_to=f"rises from each {key} to the next",
            same=f"a smaller {key} adds more noise",
            other=f"a smaller {key} does not add more noise",
        )
        yield compared(
            f"accuracy by {key}: {least:g} against {most:g}", sweep, least, most, labels=_DIGITS,
            source=f"a smaller {key} converges worse", same=f"a smaller {key} adds more noise",
            other="the mean of 100 reports has little noise even at the smaller value",
        )  # fmt: skip


def _table(runs: Mapping[str, Swept]) -> Table:
    rows = [
        (key, f"{value:g}", format_epsilon(epsilon), with_interval(reached(each)))
        for key, sweep in runs.items()
        for (value, each), epsilon in zip(sweep.items(), epsilons(sweep), strict=True)
    ]
    columns = ("key", "value", "epsilon of the whole run", "accuracy at the end")
    return Table(columns, rows, "Both sweeps.")
