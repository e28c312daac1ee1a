"""What each party's process holds of a language model that is cut between two: its own parts alone.

    python benchmarks/vertical_parts.py [--preset 350M]      two minutes; --preset tiny: seconds

In a process of its own a party makes its parts as its machine does, takes a step of AdamW from
gradients of ones, and writes a checkpoint. `told` is what `fedveil vertical parts` says; memory is
what the process held more than before it made anything. A batch and its activations come on top.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import sys
import tempfile
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

from figures import Figure, show

SPAWN = multiprocessing.get_context("spawn")
PARTIES = ("leader", "cloud")
#: How much more than what is told the parts may take, for what torch keeps aside.
MOST = 1.1


def memory_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def trained(preset: str, name: str, told: Connection) -> None:
    import torch

    from fedveil.record.run_folder import RunFolder
    from fedveil.vertical import VerticalJob
    from fedveil.vertical.job_split import make_split, make_task
    from fedveil.vertical.part_memory import memory_of, sized
    from fedveil.vertical.party import Party
    from fedveil.vertical.step_checkpoint import Checkpoint

    torch.set_num_threads(1)
    job = VerticalJob.load(None, ["task=pangu", f"task.pangu.preset={preset}"])
    task = make_task(job)
    needed = sum(part.total for part in memory_of(sized(job, task, {name})))
    torch.optim.AdamW([torch.nn.Parameter(torch.ones(1))]).step()  # what it imports
    before = memory_mb()
    split = make_split(job, task, {name})
    party = Party(name, split, loss=task.loss if name == split.leader else None)
    for parameter in party.modules.parameters():
        parameter.grad = torch.ones_like(parameter)
    party._optimizers.step(1)
    stepped = memory_mb()
    with tempfile.TemporaryDirectory() as folder:
        kept = RunFolder.create(Path(folder) / "run")
        Checkpoint(1, "", 0, "", {}, party.state()).write(kept)
        kept.close()
    told.send((needed / 2**20, stepped - before, memory_mb() - before))


def figures(preset: str) -> Iterator[Figure]:
    for name in PARTIES:
        here, there = SPAWN.Pipe()
        process = SPAWN.Process(target=trained, args=(preset, name, there))
        process.start()
        told, stepped, written = here.recv()
        process.join()
        yield Figure(f"{preset}, {name}: told", told, "MiB")
        yield Figure(f"{preset}, {name}: after a step", stepped, "MiB", at_most=MOST * told + 64)
        yield Figure(f"{preset}, {name}: with a checkpoint written", written, "MiB")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="350M")
    return show(figures(parser.parse_args().preset))


if __name__ == "__main__":
    sys.exit(main())
