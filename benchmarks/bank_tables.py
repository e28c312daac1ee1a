"""A bank's table of 40 columns: reading and encoding next to Polars, training next to plain torch.

    python benchmarks/bank_tables.py [--rows 1000000] [--only encoding|training]

`encoding` is all that a party does with its file before it trains: it reads the CSV, checks ids and
cells, holds out a fifth of the rows, and encodes numbers, dates, truth values and words. Polars
(`pip install polars`) reads the same file into a data frame. Each runs in a process of its own,
in turn, after its imports; the fastest run of each counts.

`training` is an epoch of Wide & Deep by two parties in one process, each with half of the columns.
Plain torch trains the same parts on the joined rows, in memory, in one loop. Both evaluate the
held-out rows afterwards, and use one thread. On a busy machine, only processor time is comparable.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from figures import Figure, show
from new_process import alone, memory_mb

ENCODING_TIMES_PEER, TRAINING_TIMES_PEER = 3.0, 1.3
MOST_MB = 1500.0
REPEATS = 3
BATCH = 1024
_AT_ONCE = 50_000
NUMBERS, WORDS, DATES, TRUTHS = 30, 4, 2, 2


def columns(names: range, draw: np.random.Generator, rows: int) -> dict[str, Any]:
    """Return columns of a bank's table as texts: an amount for each of `names`, and some others."""
    made: dict[str, Any] = {}
    for number in names:
        cents, whole = np.round(draw.lognormal(5, 1.5, rows), 2), draw.integers(0, 5000, rows)
        made[f"amount_{number}"] = (cents if number % 2 else whole).astype(str)
    for number in names[: WORDS * len(names) // NUMBERS]:
        made[f"branch_{number}"] = np.char.add("branch ", draw.integers(0, 200, rows).astype(str))
    for number in names[: DATES * len(names) // NUMBERS]:
        days = np.datetime64("2001-01-01") + draw.integers(0, 8000, rows)
        made[f"opened_{number}"] = days.astype(str)
        made[f"active_{number}"] = np.array(["ja", "nein"])[draw.integers(0, 2, rows)]
    return made


def write(path: str, names: range, rows: int, label: bool) -> None:
    """Write a table of synthetic rows. Every file has the same ids."""
    draw = np.random.default_rng(36 + names.start)
    with Path(path).open("w", encoding="utf-8") as file:
        for start in range(0, rows, _AT_ONCE):
            some = min(_AT_ONCE, rows - start)
            made = columns(names, draw, some)
            if label:
                made["default"] = draw.integers(0, 2, some).astype(str)
            if not start:
                file.write(",".join(["customer", *made]) + "\n")
            ids = (f"K{number:07d}" for number in range(start, start + some))
            file.writelines(",".join(row) + "\n" for row in zip(ids, *made.values(), strict=True))


def settings(files: dict[str, range]) -> dict[str, Any]:
    """Return the settings of the task `tables`. The first file has the label.

    `files` maps a file's name to the numbers of its columns.
    """
    held: dict[str, Any] = {}
    for path, names in files.items():
        words = names[: WORDS * len(names) // NUMBERS]
        categories = {f"branch_{number}": 100 for number in words}
        held[path] = {"path": f"{path}.csv", "id": "customer", "categories": categories}
    leader = next(iter(files))
    held[leader]["label"] = "default"
    owners = list(files) if len(files) > 1 else [leader, "another"]
    return {"leader": leader, "owners": owners, "files": held}


def encode(told: Any) -> None:
    import numba  # noqa: F401 - fedveil imports it at its first use

    from fedveil.tasks.tables.own_tables import Tables
    from fedveil.vertical.memory_reuse import keep_freed_memory
    from fedveil.vertical.task_settings import TablesSettings

    keep_freed_memory()  # as the commands do
    began, used = time.perf_counter(), time.process_time()
    task = Tables(TablesSettings.model_validate(settings({"whole": range(NUMBERS)})))
    task.owned("whole", "train")
    told.send(spent(began, used))


def read(told: Any) -> None:
    import polars

    began, used = time.perf_counter(), time.process_time()
    polars.read_csv("whole.csv")
    told.send(spent(began, used))


def spent(began: float, used: float) -> tuple[float, float, float]:
    """Return the seconds since `began`, the processor seconds since `used`, and the peak memory.

    The memory of this process is in MB.
    """
    return time.perf_counter() - began, time.process_time() - used, memory_mb()


def encoding(rows: int) -> Iterator[Figure]:
    write("whole.csv", range(NUMBERS), rows, True)
    with Path("whole.csv").open() as file:
        yield Figure(f"{rows:,} rows, columns", len(file.readline().split(",")), "")
    peer = find_spec("polars") is not None
    runs = [(alone(read) if peer else None, alone(encode)) for _ in range(REPEATS)]
    ours_s, ours_used, ours_mb = map(min, zip(*(ours for _, ours in runs), strict=True))
    theirs = [found for found, _ in runs if found is not None]
    if theirs:
        peer_s, peer_used, peer_mb = map(min, zip(*theirs, strict=True))
        yield Figure("Polars: read_csv", peer_s, "s")
        yield Figure("  processor", peer_used, "s")
        yield Figure("  memory", peer_mb, "MB")
        most = ENCODING_TIMES_PEER
        yield Figure("encoding, times Polars' reading", ours_s / peer_s, "", at_most=most)
        yield Figure("  processor, times Polars'", ours_used / peer_used, "", at_most=most)
    yield Figure("encoding", ours_s, "s")
    yield Figure("  processor", ours_used, "s")
    yield Figure("  memory", ours_mb, "MB", at_most=MOST_MB)


def training(rows: int) -> Iterator[Figure]:
    import torch

    from fedveil.record.run_folder import RunFolder
    from fedveil.vertical.job import VerticalJob
    from fedveil.vertical.job_split import make_split, make_task, threads
    from fedveil.vertical.memory_reuse import keep_freed_memory
    from fedveil.vertical.one_process import Parties

    halves = {"lead": range(NUMBERS // 2), "bank": range(NUMBERS // 2, NUMBERS)}
    for name, names in halves.items():
        write(f"{name}.csv", names, rows, name == "lead")
    task = {"name": "tables", "tables": settings(halves)}
    job = VerticalJob.model_validate({"epochs": 1, "batch_size": BATCH, "task": task})
    keep_freed_memory()
    with ExitStack() as stack:
        stack.enter_context(threads(job.threads))
        made = make_task(job)
        split = make_split(job, made)
        joined = {name: {s: made.owned(name, s) for s in ("train", "test")} for name in halves}
        plain_s, plain_used = plain(torch, split, joined)
        parties = Parties(job, None, False)
        parties.enter(RunFolder.create(Path("run"), "run", ""), stack, None, None)
        began, used = time.perf_counter(), time.process_time()
        parties.train(0)
        ours_s, ours_used, _ = spent(began, used)
    yield Figure(f"plain torch, an epoch of {rows:,} joined rows", plain_s, "s")
    yield Figure("  processor", plain_used, "s")
    yield Figure("two parties in one process", ours_s, "s")
    yield Figure("  processor", ours_used, "s")
    most = TRAINING_TIMES_PEER
    yield Figure("training, times plain torch", ours_s / plain_s, "", at_most=most)
    yield Figure("  processor, times plain torch's", ours_used / plain_used, "", at_most=most)


def plain(torch: Any, split: Any, joined: Any) -> tuple[float, float]:
    """Train the parts of `split` in a loop of torch alone. Returns seconds and processor time."""
    parts = {part.name: part.module for part in split.parts}
    optimizer = torch.optim.Adam([p for m in parts.values() for p in m.parameters()], lr=0.001)
    train, test = ({name: held[s] for name, held in joined.items()} for s in ("train", "test"))
    leader = next(iter(train))
    # Both files have the same ids in the same order, so that rows are joined already.
    tensors = {
        subset: {n: {k: c.clone() for k, c in held.columns.items()} for n, held in rows.items()}
        for subset, rows in (("train", train), ("test", test))
    }

    def outputs(rows: Any, index: Any) -> Any:
        given = []
        for name, held in rows.items():
            own = {key: column[index] for key, column in held.items()}
            given.append(parts[f"{name}_wide"](own["intervals"], own["words"]))
            given.append(parts[f"{name}_deep"](own["numbers"], own["words"]))
        return parts["top"](*given)

    began, used = time.perf_counter(), time.process_time()
    order = torch.randperm(len(train[leader]))
    for index in order.split(BATCH):
        loss = torch.nn.functional.cross_entropy(
            outputs(tensors["train"], index), train[leader].labels[index]
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        for index in torch.arange(len(test[leader])).split(BATCH):
            outputs(tensors["test"], index)
    return time.perf_counter() - began, time.process_time() - used


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--only", choices=["encoding", "training"])
    given = parser.parse_args()
    parts = {"encoding": encoding, "training": training}
    chosen = [given.only] if given.only else list(parts)
    with tempfile.TemporaryDirectory() as folder:
        import os

        os.chdir(folder)
        return show(figure for name in chosen for figure in parts[name](given.rows))


if __name__ == "__main__":
    sys.exit(main())
