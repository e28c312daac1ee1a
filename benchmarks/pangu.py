"""The language model's loss with and without EmbeddingDP: the curves of RESULTS.md.

    python benchmarks/pangu.py TEXT [--epochs 4] [--eps 5 --eps 2 ...] [--set KEY=VALUE ...]

TEXT is a .txt file or a folder of them. Every run is `task: pangu` (tiny) in one process, with the
same seed, order and initial weights. Each takes about three minutes on two cores.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from fedveil.entropy import Seeded
from fedveil.entry.vertical import train
from fedveil.language.transformer import WordAndPosition
from fedveil.mechanisms import EmbeddingDP
from fedveil.privacy import epsilon_text
from fedveil.vertical.job import VerticalJob
from fedveil.vertical.job_split import make_task
from fedveil.vertical.log_lines import line
from fedveil.vertical.one_process import VerticalRun

#: The number of steps whose mean loss is a point of a curve.
WINDOW = 20
PLAIN, BITS = "no protection", "one bit, no noise"


def curves(
    text: Path, epochs: int, epsilons: Sequence[float], more: Sequence[str], stack: ExitStack
) -> None:
    """Run and print every curve, the unprotected one first."""
    runs: dict[str, VerticalRun] = {}
    protections = {PLAIN: "null", BITS: "{eps: null}"}
    protections |= {f"eps {eps:g}": f"{{eps: {eps}}}" for eps in epsilons}
    for name, protection in protections.items():
        print(f"--- {name}", file=sys.stderr, flush=True)
        job = VerticalJob.load(
            None,
            [
                "task=pangu",
                f"task.pangu.text={text}",
                f"epochs={epochs}",
                f"record.every_steps={WINDOW}",
                f"privacy.embedding_dp={protection}",
                *more,
            ],
        )
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        runs[name] = train(job, folder / "run", progress=_show)
    _print_losses(runs)
    _print_costs(runs)


def _show(record: Mapping[str, Any]) -> None:
    if record["party"] == "leader":
        print(line(dict(record)), file=sys.stderr, flush=True)


def _print_losses(runs: Mapping[str, VerticalRun]) -> None:
    print(f"| step | {' | '.join(runs)} |")
    print("|" + "---|" * (1 + len(runs)))
    columns = [_steps(run) for run in runs.values()]
    for records in zip(*columns, strict=True):
        step = records[0]["epoch"] * records[0]["steps"] + records[0]["step"]
        print(f"| {step} | " + " | ".join(f"{record['loss']:.3f}" for record in records) + " |")
    for name in ("test_loss", "test_accuracy"):
        last = (_last(run, name) for run in runs.values())
        what = name.replace("test_", "held-out ")
        print(f"| {what} | " + " | ".join(f"{value:.3f}" for value in last) + " |")


def _print_costs(runs: Mapping[str, VerticalRun]) -> None:
    print(
        "\n| run | tokens/s | bytes out a step | in a step | tokens read back | epsilon of a run |"
    )
    print("|---|---|---|---|---|---|")
    for name, run in runs.items():
        steps = _steps(run)
        seconds = sorted(record["seconds_per_unit"] for record in steps)[len(steps) // 2]
        out, back = steps[0]["bytes_sent_per_step"], steps[0]["bytes_received_per_step"]
        figures = run.figures[run.leader]
        spent = epsilon_text(*figures[-1].figure) if figures else epsilon_text(math.inf)
        print(
            f"| {name} | {1 / seconds:,.0f} | {out:,.0f} | {back:,.0f} | {_read_back(run):.1%} | "
            f"{spent} |"
        )


def _read_back(run: VerticalRun) -> float:
    """Return the share of held-out tokens that an attacker recovers from one report of each.

    The attacker has the leader's tables of word and position vectors, and chooses the token whose
    vector (or its bits) is nearest to the report.
    """
    part = run.split.by_name["embedding"]
    embedding = part.module
    assert isinstance(embedding, WordAndPosition)
    task = make_task(run.job, run.folder)
    tokens = task.owned(run.leader, "test").columns["tokens"][:32]
    with torch.no_grad():
        sent = embedding(tokens)
        if part.privacy is None:
            report, signs = sent, (lambda values: values)
        else:
            report = EmbeddingDP(part.privacy.eps)(sent, Seeded(0)) * 2 - 1
            signs = torch.sign
        right = 0
        for place in range(tokens.shape[1]):
            known = signs(embedding.word.weight + embedding.position.weight[place])
            distances = torch.cdist(report[:, place], known)
            right += int((distances.argmin(1) == tokens[:, place]).sum())
    return right / tokens.numel()


def _steps(run: VerticalRun) -> list[dict[str, Any]]:
    """Return the leader's records about training."""
    return [record for record in run.metrics if "look" not in record]


def _last(run: VerticalRun, name: str) -> float:
    value: float = [record[name] for record in run.metrics if name in record][-1]
    return value


def main() -> None:
    """Read the arguments and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", type=Path)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--eps", type=float, action="append")
    parser.add_argument("--set", action="append", default=[], dest="more", metavar="KEY=VALUE")
    given = parser.parse_args()
    with ExitStack() as stack:
        curves(given.text.resolve(), given.epochs, given.eps or [5.0], given.more, stack)


if __name__ == "__main__":
    main()
