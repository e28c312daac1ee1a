"""Reconstructs features from split training's messages, by attackers with different knowledge.

    FEDVEIL_DATA=... python benchmarks/attack_features.py --effort quick --pictures docs/attacks

The attacked models are a network for MNIST that is cut after its first convolution of 8 channels
(needs MNIST's files), the left half of `mnist_halves` as shipped, and the bank's features of
`tabular`. Four attackers (see fedveil.attacks.split.features) attack without protection, with one
bit of every number, and under EmbeddingDP, from one report and from ten. Takes about four minutes
of one core at quick.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

from fedveil.attacks import pictures
from fedveil.attacks.effort import Effort, by_effort
from fedveil.attacks.split import features, unsplit, whitebox_inversion
from fedveil.attacks.split.evidence import Evidence
from fedveil.attacks.split.example_prior import Gaussian, Smooth
from fedveil.attacks.split.split_target import SplitTarget
from fedveil.data.datasets import load
from fedveil.entropy import Seeded
from fedveil.mechanisms.embedding_dp import EmbeddingDP
from fedveil.privacy.intervals import median
from fedveil.privacy.loss import format_epsilon
from fedveil.vertical import EmbeddingPrivacy, VerticalJob
from fedveil.vertical.blocks import PrivacySettings
from fedveil.vertical.task import initial

STRENGTHS: tuple[tuple[str, EmbeddingPrivacy | None], ...] = (
    ("no protection", None),
    ("one bit", EmbeddingPrivacy(None)),
    ("eps 5", EmbeddingPrivacy(5.0)),
    ("eps 2", EmbeddingPrivacy(2.0)),
    ("eps 1", EmbeddingPrivacy(1.0)),
    ("eps 0.5", EmbeddingPrivacy(0.5)),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--effort", choices=("quick", "standard", "full"), default="quick")
    parser.add_argument("--only", choices=("convolution", "halves", "tables"))
    parser.add_argument("--pictures", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    began = time.perf_counter()
    for name, part in (("tables", tables), ("convolution", convolution), ("halves", halves)):
        if options.only in (None, name):
            part(options.effort, options.pictures)
    print(f"{time.perf_counter() - began:.0f} s at effort {options.effort}")


def tables(effort: Effort, folder: Path | None) -> None:
    """Attack the bank's numeric features in three tables.

    Prints the median correlation of true and reconstructed features.
    """
    for table in ("breast_cancer", "wine", "diabetes"):
        job = VerticalJob(task={"name": "tabular", "tabular": {"table": table}})
        whole = SplitTarget.of(job)
        print(f"\ntabular, {table}, bank_deep: median correlation over the features")
        for strength, privacy in STRENGTHS if table == "breast_cancer" else STRENGTHS[:1]:
            aim = features.Aim(under(whole, privacy), whole.split.by_name["bank_deep"], effort)
            attacked(f"{strength}", aim, skip=())


def halves(effort: Effort, folder: Path | None) -> None:
    """Reconstruct the left halves of 16 digits from the reports of the follower `left`."""
    whole = SplitTarget.of(VerticalJob())
    rows = []
    print("\nmnist_halves (digits), left: medians of 16")
    for strength, privacy in STRENGTHS:
        aim = features.Aim(under(whole, privacy), whole.split.by_name["left"], effort)
        if not rows:
            rows.append(list(aim.plain(aim.truth)[:10]))
        found = attacked(
            strength, aim, skip=() if strength in ("no protection", "one bit") else ("unsplit",)
        )
        rows += [list(aim.plain(each)[:10]) for each in found]
    draw(folder, "features-halves.png", rows)


def under(whole: SplitTarget, privacy: EmbeddingPrivacy | None) -> SplitTarget:
    if privacy is None:
        return whole
    return whole.under(PrivacySettings(embedding_dp={"eps": privacy.eps}))


def attacked(strength: str, aim: features.Aim, skip: tuple[str, ...]) -> list[torch.Tensor]:
    """Run every attack except those in `skip`, and print a line for each.

    Returns the reconstructions by the attacker with both the weights and public examples.
    """
    part = aim.target.split.by_name[aim.part.name]
    aim = features.Aim(aim.target, part, aim.effort)
    kept = []
    for reports, evidence in aim.cases.items():
        promised = aim.target.promised(part.name, aim.reports if reports else 1).epsilon
        for method, invert in aim.methods.items():
            if method in skip or (method == "unsplit" and reports):
                continue
            began = time.perf_counter()
            found = invert(evidence, lambda done, total: None)
            figures = "; ".join(map(str, aim.figures("", found)))
            took = time.perf_counter() - began
            what = f"{strength}{reports} (epsilon {format_epsilon(promised)}): {method}"
            print(f"  {what}: {figures}  ({took:.0f} s)", flush=True)
            if method == "both":
                kept.append(found)
    return kept


def convolution(effort: Effort, folder: Path | None) -> None:
    """Attack networks for MNIST that are cut after their first convolution, or after its ReLU."""
    data = load("mnist")
    truth, public = (
        (torch.from_numpy(examples.x[:count].copy()) + 1) / 2
        for examples, count in ((data.train, 16), (data.test, 2000))
    )
    rows = [list(truth[:10].double().numpy())]
    for name, layers in (("convolution", []), ("convolution and ReLU", [nn.ReLU()])):

        def make(seed: int, layers: list[nn.Module] = layers) -> nn.Module:
            return initial(seed, "bottom", lambda: nn.Sequential(nn.Conv2d(1, 8, 5), *layers))

        bottom = whitebox_inversion.steady(make(0))
        for strength, privacy in STRENGTHS[:3] if not layers else STRENGTHS[:1]:
            outputs = bottom(truth)
            sent = outputs if privacy is None else EmbeddingDP(privacy.eps)(outputs, Seeded(1))
            evidence = Evidence.of(sent[None], privacy)
            print(f"\nMNIST after {name}, {strength}: medians of 16")
            found = convolved(partial(make), bottom, evidence, public, effort)
            for method, images in found.items():
                print(f"  {method}: {likeness(truth, images, public)}", flush=True)
            if strength == "no protection" and not layers:
                rows += [list(each[:10].clamp(0, 1).double().numpy()) for each in found.values()]
    draw(folder, "features-convolution.png", rows)


def convolved(
    make: partial[nn.Module],
    bottom: nn.Module,
    evidence: Evidence,
    public: torch.Tensor,
    effort: Effort,
) -> dict[str, torch.Tensor]:
    shape, steps = (1, 28, 28), by_effort(effort, 400, 1500, 5000)
    starts, rounds = by_effort(effort, (4, 90), (5, 150), (10, 500))
    return {
        "unsplit": unsplit.invert(
            lambda number: make(1000 + number), evidence, shape, starts=starts, rounds=rounds
        ).inputs,
        "known bottom": whitebox_inversion.invert(bottom, evidence, Smooth(shape), steps=steps),
        "both": whitebox_inversion.invert(bottom, evidence, Gaussian.of(public), steps=steps),
    }


def likeness(truth: torch.Tensor, found: torch.Tensor, public: torch.Tensor) -> str:
    mean = public.mean(dim=0, keepdim=True).expand_as(truth)
    real, made, guess = (each.clamp(0, 1).double().numpy() for each in (truth, found, mean))
    lines = []
    for name in ("mse", "psnr", "ssim"):
        measure = getattr(pictures, name)
        of_guess = np.median([measure(a, b) for a, b in zip(real, guess, strict=True)])
        values = [measure(a, b) for a, b in zip(real, made, strict=True)]
        lines.append(str(median(name, values, guess=float(of_guess))))
    return "; ".join(lines)


def draw(folder: Path | None, name: str, rows: list[list[np.ndarray]]) -> None:
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(pictures.grid(rows))


if __name__ == "__main__":
    main()
