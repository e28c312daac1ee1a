"""The memory of a batch of a split language model: the forecast, and what a process takes.

    python benchmarks/vertical_batch.py [--preset small]      a minute

Each measurement is a new process with a party's parts and their gradients. It runs one forward and
one backward pass. The forecast is that of `fedveil vertical parts` for only the batch.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from multiprocessing.connection import Connection

from figures import Figure, show
from new_process import alone, memory_mb
from party_memory import PRESETS


def passed(preset: str, name: str, rows: int, answer: Connection) -> None:
    """Run a forward and a backward pass of the parts of `name`, in this process.

    Sends the forecast of the batch's memory, and the growth of this process, to `answer`, in MiB.
    """
    import torch

    from fedveil.vertical import VerticalJob
    from fedveil.vertical.batch_memory import batch_bytes
    from fedveil.vertical.job_split import make_split, make_task
    from fedveil.vertical.part_memory import sized

    torch.set_num_threads(1)
    job = VerticalJob.load(None, ["task=pangu", f"task.pangu.preset={preset}"])
    task = make_task(job)
    told = batch_bytes(sized(job, task, {name}), task, {name}, rows) / 2**20
    split, shape = make_split(job, task, {name}), task.shape  # type: ignore[attr-defined]
    for part in split.owned_by(name):
        assert part.module is not None
        for parameter in part.module.parameters():
            parameter.grad = torch.ones_like(parameter)
    before = memory_mb()
    given = torch.randn(rows, shape.context, shape.width, requires_grad=True)
    if name == "cloud":
        output = split.by_name["backbone"].module(given)  # type: ignore[misc]
        output.backward(torch.ones_like(output))
    else:
        tokens = torch.randint(0, shape.vocabulary, (rows, shape.context))
        vectors = split.by_name["embedding"].module(tokens)  # type: ignore[misc]
        scores = split.by_name["head"].module(given)  # type: ignore[misc]
        task.loss(scores, tokens).backward()
        vectors.backward(torch.ones_like(vectors))
    answer.send((told, memory_mb() - before))


def figures(preset: str) -> Iterator[Figure]:
    for name in ("leader", "cloud"):
        for rows in (2, 5):
            told, took = alone(passed, preset, name, rows)
            yield Figure(f"{preset}, {name}, {rows} examples: forecast", told, "MiB")
            what = f"{preset}, {name}, {rows} examples: measured"
            yield Figure(what, took, "MiB", at_most=1.1 * told + 16)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", choices=PRESETS, default="small")
    return show(figures(parser.parse_args().preset))


if __name__ == "__main__":
    sys.exit(main())
