"""Attacks on reports: tells two updates apart, averages many reports of one update, reads a sign.

    python benchmarks/attack_reports.py --effort quick

A job of ten rounds on the digits (multinomial regression with 7,850 weights, ten clients), under
each protection with three settings. Takes about ten minutes of one core at `quick`. Every bound on
epsilon must be below the ledger's figure. Otherwise the program exits with status 1.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, get_args

import numpy as np
import torch

from fedveil.attacks import distinguishing, repetition
from fedveil.attacks.effort import Effort, Watch
from fedveil.attacks.target import Target
from fedveil.entropy import Seeded
from fedveil.federated.job import Job
from fedveil.mechanisms.signds.dimension_selection import SignDS
from fedveil.mechanisms.signds.sign_disclosure import sign_told
from fedveil.privacy.loss import format_epsilon

ROUNDS = 10
STRENGTHS: dict[str, Sequence[dict[str, Any]]] = {
    "not_encrypt": [{}],
    "pw_encrypt": [{"reconstruct_secrets_threshold": 2}],
    "dp_encrypt": [{"dp_eps": eps, "dp_delta": 1e-5} for eps in (1.0, 8.0, 50.0)],
    "signds": [{"sign_eps": eps, "sign_k": 0.1} for eps in (1.0, 10.0, 100.0)],
    "rr": [{"eps": eps} for eps in (0.01, 0.5, 4.8)],
    "oue": [{"eps": eps} for eps in (0.01, 0.5, 4.8)],
}
MODELS = {"LeNet, k 0.01, eps 1": (0.01, 1.0), "eps 10": (0.01, 10.0), "eps 100": (0.01, 100.0)}
LENET = 61_706


def targets(only: Sequence[str]) -> Iterator[tuple[str, Target]]:
    """Yield a label and a target for each protection and setting."""
    for name, strengths in STRENGTHS.items():
        for settings in strengths if not only or name in only else ():
            job = Job(
                model="logistic",
                rounds=ROUNDS,
                clients={"number": 10, "fraction": 1.0},
                training={"epochs": 1},
                protection={"name": name, **({name: settings} if name not in ("rr", "oue")
                                             else {"unary": settings})},
            )  # fmt: skip
            shown = [key for key in settings if key.endswith("eps") or key == "sign_k"]
            told = [f"{key} {settings[key]:g}" for key in shown]
            yield " ".join([name, *told]), Target.of(job)


def told_apart(name: str, target: Target, effort: Effort) -> bool:
    """Attack `target` by telling two updates apart. Prints a line per pair and number of rounds.

    Returns True if all lower bounds on epsilon are below the ledger's epsilon.
    """
    began, sound = time.perf_counter(), True
    finding = distinguishing.attack(target, effort, Watch())
    for pair in ("far apart", "two clients"):
        for rounds in (1, ROUNDS):
            of = f"{pair}, {rounds} round{'s' if rounds > 1 else ''}"
            bound = finding.figure(f"epsilon at least: {of}").value
            left = finding.figure(f"distance to the ledger: {of}").value
            most = next(f for f in finding.figures if f.name.endswith(f"can show: {of}")).value
            right = finding.figure(f"right guesses: {of}")
            print(
                f"{name:<30} {of:<23} {bound:>7.3f} "
                f"{format_epsilon(target.promised(rounds).epsilon):>10} "
                f"{left:>10.4g} {most:>6.2f}  {right.value:.3f} [{right.low:.3f}, {right.high:.3f}]"
            )
            sound &= left >= 0
    print(f"{'':<30} {time.perf_counter() - began:.0f} s", flush=True)
    return sound


def averaged(name: str, target: Target, effort: Effort) -> None:
    """Attack `target` by averaging reports of one update. Prints a line per number of reports."""
    finding = repetition.attack(target, effort, Watch())
    scaled = any(figure.name.startswith("relative error") for figure in finding.figures)
    for count in repetition.COUNTS:
        of = f"after {count} report{'s' if count > 1 else ''}"
        error = f"{finding.figure(f'relative error {of}').value:.3g}" if scaled else "-"
        cosine, right = (finding.figure(f"{word} {of}") for word in ("cosine", "right guesses"))
        epsilon = finding.figure(f"ledger's epsilon {of}").value
        print(
            f"{name:<30} {count:>4} {cosine.value:>7.3f} "
            f"{finding.figure(f'correlation {of}').value:>7.3f} {error:>9} "
            f"{right.value:.2f} [{right.low:.2f}, {right.high:.2f}] {format_epsilon(epsilon):>10}"
        )
    sys.stdout.flush()


def embedding() -> None:
    """Attack EmbeddingDP: 200 vectors of 64 values, with fresh reports and with a repeated one."""
    vectors = Seeded(0).generator().normal(size=(200, 64))
    for eps in (0.5, 1.0, 5.0):
        for reuse in (False, True):
            source = Seeded(1, "embedding", int(reuse))
            found = repetition.embedding_repeated(vectors, eps, reuse=reuse, entropy=source)
            for count, share in found.items():
                epsilon = repetition.embedding_epsilon(64, eps, count, 1e-5, reuse=reuse)
                word = "given again" if reuse else "fresh"
                print(
                    f"eps {eps:<4g} {word:<12} {count:>4} {share.value:.3f} "
                    f"{format_epsilon(epsilon):>9}"
                )


def signs() -> None:
    """Print how likely an attacker on SignDS guesses the sign of one weight right.

    Without the report, both signs are equally likely.
    """
    for name, (k, eps) in MODELS.items():
        plan = SignDS(k, eps).plan(LENET)
        told = sign_told(plan, LENET, eps)
        print(
            f"{name:<22} h {plan.dim_out:>4} in the set {plan.expected_ratio:.3f} "
            f"sign right, selected {told.selected:.4f}, not {told.passed:.6f}; "
            f"ln ratio {told.log_ratio:.3f}, knowing the others {told.worst:g}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--effort", choices=get_args(Effort), default="quick")
    parser.add_argument(
        "--only", nargs="*", choices=STRENGTHS, default=[], help="these protections"
    )
    given = parser.parse_args()
    torch.set_num_threads(1)
    np.seterr(over="ignore")
    warnings.simplefilter("ignore")
    print("pair and rounds: bound on epsilon, ledger, distance, most that can be shown, right")
    made = list(targets(given.only))
    sound = [told_apart(name, target, given.effort) for name, target in made]
    print("reports: cosine, correlation, relative error, right guesses, ledger")
    for name, target in made:
        averaged(name, target, given.effort)
    if not given.only:
        print("EmbeddingDP: share of 64 bits that are right, ledger")
        embedding()
        print("SignDS on LeNet's 61,706 weights")
        signs()
    return 0 if all(sound) else 1


if __name__ == "__main__":
    sys.exit(main())
