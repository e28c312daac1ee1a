"""The memory of each party's process for a language model that is split between two parties.

    python benchmarks/party_memory.py [--preset 350M]      two minutes; --preset tiny: seconds

Each party runs in a new process. It makes its parts as on its own machine, takes a step of AdamW
with gradients of ones, and writes a checkpoint and its model. Another process resumes from the
checkpoint. The forecast is that of `fedveil vertical parts`. Memory is the growth of a process
since before it made its parts. It does not include a batch and its activations.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from fedveil.vertical.task_settings import PanguSettings
from figures import Figure, show
from new_process import alone, memory_mb

if TYPE_CHECKING:
    from fedveil.vertical.party import Party

PARTIES = ("leader", "cloud")
PRESETS = get_args(PanguSettings.model_fields["preset"].annotation)
#: The most memory of the parts relative to the forecast. torch needs some of its own.
MOST = 1.1


def made(preset: str, name: str) -> tuple[float, float, Party]:
    """Make a party. Returns its memory forecast, this process's memory before, and the party."""
    import torch

    from fedveil.vertical import VerticalJob
    from fedveil.vertical.job_split import make_split, make_task
    from fedveil.vertical.part_memory import memory_of, needed, sized
    from fedveil.vertical.party import Party

    torch.set_num_threads(1)
    job = VerticalJob.load(None, ["task=pangu", f"task.pangu.preset={preset}"])
    task = make_task(job)
    told = needed(memory_of(sized(job, task, {name}))) / 2**20
    torch.optim.AdamW([torch.nn.Parameter(torch.ones(1))]).step()  # imports torch's optimiser
    before = memory_mb()
    split = make_split(job, task, {name})
    return told, before, Party(name, split, loss=task.loss if name == split.leader else None)


def trained(preset: str, name: str, folder: str, answer: Connection) -> None:
    import torch

    from fedveil.record.model_file import write_model
    from fedveil.record.run_folder import RunFolder
    from fedveil.vertical.step_checkpoint import Checkpoint

    told, before, party = made(preset, name)
    for parameter in party.modules.parameters():
        parameter.grad = torch.ones_like(parameter)
    party._optimizers.step(1)
    stepped = memory_mb()
    kept = RunFolder.create(folder)
    window = {"loss": 0.0, "losses": 0, "steps": 0, "sent": 0, "received": 0}
    Checkpoint(1, "", 0, "", window, party.state()).write(kept)
    write_model(kept, party.modules)
    answer.send((told, stepped - before, memory_mb() - before))


def goes_on(preset: str, name: str, folder: str, answer: Connection) -> None:
    from fedveil.record.run_folder import RunFolder
    from fedveil.vertical.step_checkpoint import Checkpoint

    _, before, party = made(preset, name)
    kept = RunFolder(Path(folder), (Path(folder) / "lock").open("w"))
    Checkpoint.read(kept, 1).give(kept, party)
    answer.send(memory_mb() - before)


def figures(preset: str) -> Iterator[Figure]:
    for name in PARTIES:
        with tempfile.TemporaryDirectory() as folder:
            told, stepped, written = alone(trained, preset, name, f"{folder}/run")
            most = MOST * told + 64
            yield Figure(f"{preset}, {name}: forecast", told, "MiB")
            yield Figure(f"{preset}, {name}: after a step", stepped, "MiB", at_most=most)
            what = f"{preset}, {name}: with checkpoint and model written"
            yield Figure(what, written, "MiB", at_most=most)
            again = alone(goes_on, preset, name, f"{folder}/run")
            yield Figure(f"{preset}, {name}: after resuming", again, "MiB", at_most=most)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", choices=PRESETS, default="350M")
    return show(figures(parser.parse_args().preset))


if __name__ == "__main__":
    sys.exit(main())
