"""Figures 2 to 4 of 002 for the non-IID split: clients with few labels lose more."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from experiments import ldp_jobs
from experiments.ldp_jobs import EPSILONS, LDPExperiment, Split
from fedveil.pages.plot import Axis, Curve, Plot
from fedveil.studies.experiment import Outcome, Scale, Tell, Verdict
from fedveil.studies.several_runs import Arm, Runs, accuracy, listed, loss_rate, trained

SPLITS: tuple[Split, ...] = ("iid", "shards")
SHOWN = EPSILONS[4:]


class LDPNonIID(LDPExperiment):
    """Accuracy-loss rate of RR by epsilon, for both splits of examples."""

    name = "ldp-noniid"
    what = "What RR costs where clients hold two labels each, against examples dealt at random."
    source = "002, figures 2 to 4"

    def arms(self, scale: Scale) -> list[Arm]:
        """Return, for each split, a run without protection, and RR at each epsilon."""
        plain = [Arm(s, ldp_jobs.job(scale, "lenet-mnist", s, split=s)) for s in SPLITS]
        return plain + [
            Arm(name, ldp_jobs.job(scale, "lenet-mnist", name, split=s, protection="rr", eps=eps))
            for s in SPLITS
            for eps in SHOWN
            for name in [f"{s}-{eps:g}"]
        ]

    def run(self, folder: Path, scale: Scale, tell: Tell) -> Outcome:
        """Compare both splits with their own runs without protection."""
        arms = self.arms(scale)
        runs = trained(folder, arms, tell)
        rates = {s: [loss_rate(runs[s], runs[f"{s}-{eps:g}"]) for eps in SHOWN] for s in SPLITS}
        ran = ldp_jobs.told(
            scale, ["lenet-mnist"],
            "Non-IID is McMahan's split, which the source cites: two shards of sorted labels a "
            "client, and twice the rounds.",
        )  # fmt: skip
        verdicts = [*_baselines(runs), verdict(rates["iid"], rates["shards"])]
        names = {"iid": "dealt at random", "shards": "two labels a client"}
        curves = [Curve(names[s], SHOWN, rates[s], marks=True) for s in SPLITS]
        plot = Plot("noniid", "RR: accuracy lost, by how examples are dealt",
                    Axis("epsilon", log=True), Axis("accuracy-loss rate"), curves)  # fmt: skip
        return Outcome(ran, verdicts, (), [plot])


def _baselines(runs: Runs) -> list[Verdict]:
    theirs = [ldp_jobs.BASELINES["lenet-mnist", s] for s in SPLITS]
    ours = [accuracy(runs[s]) for s in SPLITS]
    return [
        Verdict.of(
            ours[1] < ours[0], "without protection: accuracy IID, non-IID",
            listed(theirs, 4), listed(ours, 4),
            same="non-IID ends below, after twice the rounds",
            other="twice the rounds make up for what few labels cost",
        )
    ]  # fmt: skip


def verdict(iid: Sequence[float], shards: Sequence[float]) -> Verdict:
    """Judge whether non-IID loses more at every epsilon at which either still learns."""
    pairs = [f"{a:.3f} / {b:.3f}" for a, b in zip(iid, shards, strict=True)]
    return Verdict.of(
        all(b > a for a, b in zip(iid, shards, strict=True)),
        f"accuracy-loss rate IID / non-IID at epsilon {listed(SHOWN, 1)}",
        "non-IID loses more", ", ".join(pairs),
        same="clients of few labels pull further apart, and the noise comes on top",
        other="not at every epsilon: twice the rounds make up for some of it, and where nothing "
        "is learnt both lose alike",
    )  # fmt: skip
