"""A model built to steal examples, and exact inversion of a batch, under every protection.

    FEDVEIL_DATA=data python benchmarks/attack_steal.py --effort standard

The first table counts the recovered examples (20 dB or better, matched one to one) of a cohort of
50 clients with 1,000 MNIST images at standard, 200 at quick. The clients train one full step or ten
epochs in batches of 5. The second table counts the examples recovered from single reports of one
step of a dense network, by `--exact` random starts of the attack for each batch, and its CPU
seconds. Takes about ten minutes of one core at standard.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fedveil.attacks import exact_inversion
from fedveil.attacks.effort import Effort, Watch, by_effort
from fedveil.attacks.stealing.imprint_layer import Form
from fedveil.attacks.stealing.stealing import steal, with_examples
from fedveil.attacks.target import Target
from fedveil.federated.job import Job
from fedveil.privacy.loss import format_epsilon
from fedveil.protections.catalog import POSITIONS

CLIENTS, COHORT = 3000, 50
ONE_STEP = {"epochs": 1, "batch_size": 1000}
MANY_STEPS = {"epochs": 10, "batch_size": 5}
#: Protection, its settings, the training, the form, and the number of statistics.
CASES: list[tuple[str, dict[str, Any], dict[str, Any], Form, int]] = [
    ("not_encrypt", {}, ONE_STEP, "relu", 1),
    ("not_encrypt", {}, ONE_STEP, "window", 1),
    ("not_encrypt", {}, MANY_STEPS, "relu", 1),
    ("not_encrypt", {}, MANY_STEPS, "window", 1),
    ("pw_encrypt", {}, ONE_STEP, "relu", 1),
    ("pw_encrypt", {}, ONE_STEP, "window", 1),
    ("pw_encrypt", {}, ONE_STEP, "window", 3),
    ("pw_encrypt", {}, MANY_STEPS, "window", 3),
    ("dp_encrypt", {"dp_encrypt": {"dp_eps": 50.0}}, ONE_STEP, "window", 1),
    ("dp_encrypt", {"dp_encrypt": {"dp_eps": 1000.0}}, ONE_STEP, "window", 1),
    ("dp_encrypt", {"dp_encrypt": {"dp_eps": 10000.0}}, ONE_STEP, "window", 1),
    *(
        (name, {name: {"target_epsilon": epsilon}}, ONE_STEP, "window", 1)
        for name in ("distributed_dp", "central_gaussian")
        for epsilon in (8.0, 10_000.0)
    ),
    ("signds", {"signds": {"sign_eps": 1.0}}, ONE_STEP, "window", 1),
    ("signds", {"signds": {"sign_eps": 100.0}}, ONE_STEP, "window", 1),
    ("rr", {"unary": {"eps": 0.5}}, ONE_STEP, "window", 1),
    ("rr", {"unary": {"eps": 2.0}}, ONE_STEP, "window", 1),
    ("rr", {"unary": {"eps": 4.8}}, ONE_STEP, "window", 1),
    ("oue", {"unary": {"eps": 0.5}}, ONE_STEP, "window", 1),
    ("oue", {"unary": {"eps": 2.0}}, ONE_STEP, "window", 1),
    ("oue", {"unary": {"eps": 4.8}}, ONE_STEP, "window", 1),
]


def job(data: str, protection: str, settings: dict[str, Any], training: dict[str, Any]) -> Job:
    """Return a job with fifty clients per round."""
    clients = CLIENTS if data == "mnist" else 2 * COHORT
    return Job(
        model="mlp",
        data={"name": data},
        clients={"number": clients, "fraction": COHORT / clients},
        training=training,
        protection={"name": protection, **settings},
    )


def stealing(data: str, examples: int, only: str | None, pictures: Path | None) -> None:
    """Print the first table: examples stolen by a model that is built for this."""
    for protection, settings, training, form, statistics in CASES:
        if only not in (None, protection):
            continue
        began = time.monotonic()
        target = with_examples(Target.of(job(data, protection, settings, training)), examples)
        loot, trapped = steal(target, form=form, statistics=statistics)
        strength = " ".join(f"{k} {v}" for s in settings.values() for k, v in s.items())
        steps = f"{training['epochs']} x {training['batch_size']}"
        print(
            f"{protection:12} {strength:14} {steps:9} {form:7} {statistics} "
            f"weights {len(trapped.weights):9,} "
            f"epsilon {format_epsilon(trapped.promised().epsilon):<10} "
            f"{'; '.join(map(str, loot.figures()))} ({time.monotonic() - began:.0f} s)",
            flush=True,
        )
        picture = loot.picture(target.dataset.example_shape)
        if pictures is not None and picture is not None:
            name = f"steal-{protection}-{strength.replace(' ', '-')}{steps.replace(' ', '')}"
            (pictures / f"{name}-{form}-{statistics}.png").write_bytes(picture)


def exact(data: str, starts: int, only: str | None) -> None:
    """Print the second table: examples of batches that are inverted exactly."""
    for protection in POSITIONS:
        if only not in (None, protection):
            continue
        target = Target.of(job(data, protection, {}, ONE_STEP))
        for size, cases in ((5, 20), (10, 20), (15, 20), (20, 20), (24, 10)):
            began = time.process_time()
            stepped = exact_inversion.one_step(replace(target), size)
            figure, _ = exact_inversion.recovered_of_batches(stepped, size, cases, starts, Watch())
            print(f"{protection:12} {figure} ({time.process_time() - began:.0f} s)", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--effort", choices=("quick", "standard", "full"), default="quick")
    parser.add_argument("--data", default="mnist", help="mnist or digits")
    parser.add_argument("--only", choices=POSITIONS, help="one protection")
    parser.add_argument("--part", choices=("steal", "exact", "both"), default="both")
    parser.add_argument("--exact", type=int, default=1 << 12, help="starts a batch")
    parser.add_argument("--pictures", type=Path, help="a folder for the pictures")
    options = parser.parse_args()
    torch.set_num_threads(1)
    effort: Effort = options.effort
    if options.part != "exact":
        examples = by_effort(effort, 200, 1000, 4000)
        stealing(options.data, examples, options.only, options.pictures)
    if options.part != "steal":
        exact(options.data, options.exact, options.only)


if __name__ == "__main__":
    main()
