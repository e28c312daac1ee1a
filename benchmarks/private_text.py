"""The next letter of Shakespeare's speakers under distributed noise: perplexity by epsilon.

    FEDVEIL_DATA=... python benchmarks/private_text.py curve      about two minutes of one core
    FEDVEIL_DATA=... python benchmarks/private_text.py job        two runs of half a minute

Each of 193 speakers of the plays is a client, and epsilon covers everything that a speaker says:
replace-one, whole run, delta 1e-5, against the server itself. The model is a table of 128 x 128
scores: one for each next letter after each last letter. The test part is the last fifth of each
speaker's text.

`curve` simulates the noise of the sum in floating point. The counts of a speaker's pairs of letters
are all that training needs, so a run takes a second. Clip and rate are those with the least
perplexity on a fifth of the training text, which the choice holds out. `job` runs the job itself
with the real protocol's discrete noise at the chosen settings.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn

import fedveil
from fedveil.base.array_types import Array
from fedveil.data import shakespeare
from fedveil.data.shakespeare import LETTERS
from fedveil.federated.job import Job
from fedveil.privacy import epsilon_text
from fedveil.privacy.gaussian_curve import analytic_sigma

ROUNDS, MOMENTUM, DROPOUTS, SPLIT_SEED = 20, 0.9, 0.1, 2026
EPSILONS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 100.0, math.inf)
CLIPS, RATES = (0.1, 0.4), (1.0, 4.0, 16.0, 64.0, 256.0)
#: Settings that `curve` chose, for `job`: clip and rate by epsilon.
CHOSEN = {8: (0.1, 16.0), 2: (0.1, 4.0)}


def pairs(x: Array, y: Array, owners: Array, people: int) -> torch.Tensor:
    """Return how often each owner writes each pair of letters, [people, last, next]."""
    found = np.zeros((people, LETTERS, LETTERS), np.float32)
    np.add.at(found, (np.repeat(owners, x.shape[1]), x.reshape(-1), y.reshape(-1)), 1)
    return torch.from_numpy(found)


def perplexity(table: torch.Tensor, counts: torch.Tensor) -> float:
    """Return the perplexity of a table of scores on all letters that are counted."""
    total = counts.sum(0)
    return float(torch.exp(-(torch.log_softmax(table, 1) * total).sum() / total.sum()))


def trained(counts: torch.Tensor, epsilon: float, clip: float, rate: float, seed: int) -> Array:
    """Return the table after `ROUNDS` noisy rounds in which every speaker takes part."""
    people, size = len(counts), counts.sum((1, 2), keepdim=True)
    wanted, last = counts / size, counts.sum(2, keepdim=True) / size
    ratio = 0.0
    if epsilon < math.inf:
        ratio = analytic_sigma(epsilon, 1e-5, 1.0) * math.sqrt(ROUNDS / (1 - DROPOUTS))
    draw = torch.Generator().manual_seed(seed)
    table, velocity = torch.zeros(LETTERS, LETTERS), torch.zeros(LETTERS, LETTERS)
    for _ in range(ROUNDS):
        step = wanted - last * torch.softmax(table, 1)
        step *= (clip / step.square().sum((1, 2), keepdim=True).sqrt()).clamp(max=1)
        noise = 2 * clip * ratio * torch.randn(table.shape, generator=draw)
        velocity = MOMENTUM * velocity + (step.sum(0) + noise) / people
        table = table + rate * velocity
    return table


def curve(seeds: int) -> None:
    """Print the test text's perplexity at each epsilon, with settings chosen on training text."""
    data = shakespeare.read()
    names, owners = np.unique(data.owners, return_inverse=True)
    x, y = data.train.x, data.train.y
    held = np.random.default_rng(SPLIT_SEED).random(len(x)) < 0.2
    parts = [pairs(x[rows], y[rows], owners[rows], len(names)) for rows in (~held, held)]
    whole = parts[0] + parts[1]
    rows = data.test.x, data.test.y, np.zeros(len(data.test.x), np.int64)
    test = pairs(*rows, people=1)
    print("| epsilon of the whole run | clip, rate | perplexity, mean | each seed |")
    print("|---|---|---|---|")
    for epsilon in EPSILONS:
        tried = {
            (clip, rate): perplexity(trained(parts[0], epsilon, clip, rate, 0), parts[1])
            for clip, rate in itertools.product(CLIPS, RATES)
        }
        clip, rate = min(tried, key=lambda setting: tried[setting])
        found = [
            perplexity(trained(whole, epsilon, clip, rate, seed), test) for seed in range(seeds)
        ]
        each = " ".join(f"{one:.2f}" for one in found)
        said = f"| {epsilon_text(epsilon, 1e-5)} | {clip:g}, {rate:g} |"
        print(f"{said} {statistics.mean(found):.2f} | {each} |", flush=True)
    frequent = (whole.sum((0, 1)) + 1).log().expand(LETTERS, LETTERS)
    print(f"letters by their frequency: {perplexity(frequent, test):.2f}")


def last_letter() -> nn.Module:
    """Return a job's model: a table with the scores of the next letter for each last letter."""
    table = nn.Embedding(LETTERS, LETTERS)
    nn.init.zeros_(table.weight)
    return nn.Sequential(table)


def job(settings: Sequence[str] = ()) -> None:
    """Print the test text's perplexity after runs of the job itself."""
    sys.modules["private_text"] = sys.modules["__main__"]
    for epsilon, (clip, rate) in CHOSEN.items():
        asked = Job.load(None, [
            "data={name: shakespeare, split: by_client}", "task=next_token", f"rounds={ROUNDS}",
            "model=private_text:last_letter", "clients.fraction=1.0", "server.optimizer=momentum",
            "training={epochs: 1, batch_size: 10000, lr: 1.0}", f"server.lr={rate}",
            "protection=distributed_dp", f"protection.distributed_dp.target_epsilon={epsilon}",
            f"protection.distributed_dp.clip={clip}", f"evaluation.every={ROUNDS}",
            f"protection.distributed_dp.dropout_tolerance={DROPOUTS}",
            "simulation={masks: false, workers: 0}", *settings,
        ])  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            last = fedveil.simulate(asked, Path(folder) / "run").metrics[-1]
        as_it_was = epsilon_text(last["epsilon_run_every_round"], 1e-5)
        print(f"epsilon {epsilon}, as it was {as_it_was}: perplexity {last['perplexity']:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("mode", choices=("curve", "job"))
    parser.add_argument("--seeds", type=int, default=3)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.mode == "curve":
        curve(asked.seeds)
    else:
        job()


if __name__ == "__main__":
    main()
