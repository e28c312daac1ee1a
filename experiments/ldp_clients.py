"""Figure 4 of 002: the more clients, the less accuracy is lost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from experiments import ldp_jobs
from experiments.ldp_jobs import EPSILONS, MECHANISMS, LDPExperiment
from fedveil.pages.plot import Axis, Curve, Plot
from fedveil.studies.experiment import Outcome, Scale, Tell, Verdict
from fedveil.studies.several_runs import Arm, falls, listed, loss_rate, trained

#: Numbers of clients, half of whom are drawn for a round.
CLIENTS: dict[Scale, tuple[int, ...]] = {"small": (25, 50, 100, 200), "full": (100, 200, 500, 1000)}
EPS = EPSILONS[6]
_SLACK = 0.05


class LDPClients(LDPExperiment):
    """Accuracy-loss rate by the number of clients that share one set of examples."""

    name = "ldp-clients"
    what = "What the number of clients does to the accuracy that RR and OUE cost."
    source = "002, figure 4"

    def arms(self, scale: Scale) -> list[Arm]:
        """Return, for each number of clients, runs without protection and under both mechanisms."""
        return [
            Arm(name, ldp_jobs.job(scale, "lenet-mnist", name, clients=number, protection=kind,
                                   eps=EPS))
            for number in CLIENTS[scale]
            for kind in ("not_encrypt", *MECHANISMS)
            for name in [f"{kind}-{number}"]
        ]  # fmt: skip

    def run(self, folder: Path, scale: Scale, tell: Tell) -> Outcome:
        """Compute the loss rate of both, against equally many clients without protection."""
        arms, numbers = self.arms(scale), CLIENTS[scale]
        runs = trained(folder, arms, tell)
        rates = {
            kind: [loss_rate(runs[f"not_encrypt-{n}"], runs[f"{kind}-{n}"]) for n in numbers]
            for kind in MECHANISMS
        }
        ran = ldp_jobs.told(
            scale, ["lenet-mnist"],
            f"{', '.join(map(str, numbers))} clients, half of them in a round, at epsilon {EPS:g}; "
            f"the same examples are dealt to all of them, and the loss is that against as many "
            f"clients without protection. The source names neither its numbers nor its epsilon.",
        )  # fmt: skip
        verdicts = [verdict(kind, numbers, rates[kind]) for kind in MECHANISMS]
        x = [*map(float, numbers)]
        curves = [Curve(kind, x, rates[kind], marks=True) for kind in MECHANISMS]
        plot = Plot("clients", f"Accuracy lost by the number of clients, epsilon {EPS:g}",
                    Axis("clients"), Axis("accuracy-loss rate"), curves)  # fmt: skip
        return Outcome(ran, verdicts, (), [plot])


def verdict(kind: str, numbers: Sequence[int], rates: Sequence[float]) -> Verdict:
    """Judge whether the loss falls with the number of clients."""
    return Verdict.of(
        falls(rates, _SLACK),
        f"{kind}: accuracy-loss rate of {', '.join(map(str, numbers))} clients",
        "falls", listed(rates),
        same="with more reports the variance of their sum rises, as the source says, and that of "
        "their mean falls",
        other="it rises somewhere by more than one seed explains",
    )  # fmt: skip
