"""The speed of vertical training between processes on one machine, and its bytes on the wire.

    python benchmarks/vertical.py [--text FILE] [PART ...]

The parts (default: all): exchange, wire, mnist_halves, pangu. Every link is gRPC on loopback with
mutual TLS. Wall-clock figures need a machine that does nothing else, and two cores. Two parties
have one core each, and three parties share both cores. They are compared with all parties in one
process with one thread, on one core. `mnist_halves` uses batches of 256, because a batch of 32 is
too small to be divided into four parts. `pangu` trains on the beginning of FILE, or of the texts of
Python's own help.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fedveil.link.channel import drive
from fedveil.link.dialer import Dialer
from fedveil.link.link import Link
from fedveil.link.listener import Listener
from fedveil.link.own_authority import write_certificates
from fedveil.link.streams import Address
from fedveil.link.tls import Credentials
from fedveil.mechanisms import EmbeddingDP
from fedveil.vertical.memory_reuse import keep_freed_memory
from fedveil.vertical.party import Party
from fedveil.vertical.split import Part, SplitModel
from fedveil.vertical.step import Batch
from figures import Figure, show

sys.path.append(str(Path(__file__).parent.parent / "tests" / "support"))
from cutter import Cutter

LOOPBACK = Address("127.0.0.1", 0)
ROWS = 256
MEGABYTE = 1_000_000
STEPS = 200
LEADER_CORE, FOLLOWERS_CORE = 0, 1
#: The first windows of a run, which warm it up.
WARM = 2
CHARACTERS = 200_000


class Scale(nn.Module):
    """A part with almost no computation that still has a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(()))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values * self.factor


class Sum(nn.Module):
    """A last part with almost no computation: the sum of an example's values."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values.sum(dim=1, keepdim=True)


def no_work(width: int) -> SplitModel:
    """Return a split with almost no computation: an output and a gradient cross in each step."""
    return SplitModel(
        [
            Part("bottom", "bank", ("data.x",), (width,), Scale()),
            Part("top", "leader", ("bottom",), (1,), Sum(), frozen=True),
        ],
        leader="leader",
    )


def play(party: str, link: Link, width: int, steps: int) -> Iterator[float]:
    """Run `steps` steps of one party, and yield the seconds of each."""
    loss = (lambda outputs, labels: outputs.mean()) if party == "leader" else None
    mine = Party(party, no_work(width), loss=loss)
    columns = {} if party == "leader" else {"x": torch.randn(ROWS, width)}
    labels = torch.zeros(ROWS) if party == "leader" else None
    batch = Batch(np.arange(ROWS), columns, labels)
    for number in range(1, steps + 1):
        began = time.perf_counter()
        drive(mine.step(number, batch), {link.peer: link})
        yield time.perf_counter() - began


def follower(port: int, folder: str, width: int, steps: int) -> None:
    """Run the follower's steps of `exchange` in another process, then echo every message."""
    pin({FOLLOWERS_CORE})
    torch.set_num_threads(1)
    keep_freed_memory()
    link = Link("leader")
    own = Credentials.read(Path(folder), "bank")
    with Dialer(Address("127.0.0.1", port), link, "bank", own):
        for _ in play("bank", link, width, steps):
            pass
        while (message := link.receive())["kind"] != "end":
            link.send(message)
        link.close()


def exchange() -> Iterator[Figure]:
    """Measure a step without work, and the round trip of a message."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        write_certificates(folder, ["leader", "bank"])
        link = Link("bank")
        own = Credentials.read(folder, "leader")
        listener = stack.enter_context(Listener(LOOPBACK, {"bank": link}, "leader", own, print))
        width = MEGABYTE // (4 * ROWS)
        arguments = (listener.address.port, str(folder), width, STEPS)
        other = multiprocessing.get_context("spawn").Process(target=follower, args=arguments)
        other.start()
        pin({LEADER_CORE})
        keep_freed_memory()
        seconds = list(play("leader", link, width, STEPS))[STEPS // 10 :]
        crossing = ROWS * width * 4 / MEGABYTE
        yield Figure(
            f"a step of two crossings of {crossing:.2f} MB, median",
            1000 * statistics.median(seconds), "ms", at_most=6,
        )  # fmt: skip
        yield Figure(
            "the same, 90th percentile", 1000 * sorted(seconds)[int(0.9 * len(seconds))], "ms"
        )
        for size in (100, 64 << 10, MEGABYTE):
            data = np.zeros(size, np.uint8)
            yield Figure(
                f"{size:,} bytes, median round trip", 1000 * there_and_back(link, data), "ms"
            )
        link.send({"kind": "end"})
        link.close()
        other.join()
    os.sched_setaffinity(0, range(os.cpu_count() or 1))


def there_and_back(link: Link, data: np.ndarray) -> float:
    """Return the median seconds in which a message with `data` goes to the peer and back."""
    seconds = []
    for _ in range(100):
        began = time.perf_counter()
        link.send({"kind": "echo", "data": data})
        link.receive()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[10:])


def wire() -> Iterator[Figure]:
    """Compare all bytes on the wire with the raw values, in both directions."""
    rng = np.random.default_rng(0)
    for size in (64 << 10, 1 << 20):
        values = rng.standard_normal(size // 4).astype(np.float32)
        carried = on_the_wire(values)
        what = f"bytes on the wire of {size >> 10} KiB of float32"
        yield Figure(what, carried / values.nbytes, "x raw", at_most=1.01)
    values = rng.standard_normal(1 << 22).astype(np.float32)
    carried = on_the_wire(EmbeddingDP(eps=5).bits(values))
    yield Figure(
        "the same under EmbeddingDP, of 16 MiB of float32", carried / values.nbytes, "x raw",
        at_most=1.01 / 32,
    )  # fmt: skip


def on_the_wire(data: np.ndarray, times: int = 8) -> float:
    """Return the mean bytes on the wire for a message with `data`, in both directions."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        write_certificates(folder, ["leader", "bank"])
        lead, link = Link("bank"), Link("leader")
        own = Credentials.read(folder, "leader")
        listener = stack.enter_context(Listener(LOOPBACK, {"bank": lead}, "leader", own, print))
        cutter = stack.enter_context(Cutter(listener.address.port))
        through = Address("127.0.0.1", cutter.port)
        stack.enter_context(Dialer(through, link, "bank", Credentials.read(folder, "bank")))
        message = {"kind": "tensor", "name": "bottom", "step": 1, "micro": 0, "data": data}
        link.send(message)
        lead.receive()
        before = cutter.carried
        for _ in range(times):
            link.send(message)
            lead.receive()
        return (cutter.carried - before) / times


def pin(cores: set[int]) -> None:
    """Run this process, and those that it starts, on these cores."""
    os.sched_setaffinity(0, cores)


def mnist_halves() -> Iterator[Figure]:
    """Measure the default job: two followers, digits."""
    return throughput("mnist_halves", ["epochs=30", "batch_size=256"], window=3)


def pangu(text: Path | None) -> Iterator[Figure]:
    """Measure the tiny language model."""
    with tempfile.TemporaryDirectory() as folder:
        beginning = Path(folder) / "text.txt"
        if text is None:
            from pydoc_data.topics import topics

            whole = "\n\n".join(topics.values())
        else:
            whole = text.read_text()
        beginning.write_text(whole[:CHARACTERS])
        yield from throughput("pangu", ["epochs=1", f"task.pangu.text={beginning}"], window=5)


def throughput(task: str, more: Sequence[str], window: int) -> Iterator[Figure]:
    """Compare the parties in processes of their own on two cores with one process on one core."""
    settings = [
        f"task={task}", "evaluation.every_epochs=null", *more,
        f"record.every_steps={window}", "checkpoint.every_steps=100000",
    ]  # fmt: skip
    leader, *followers = parties_of(settings)
    cores = [{LEADER_CORE}, {FOLLOWERS_CORE}] if len(followers) == 1 else [{0, 1}] * 3
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_certificates(folder / "certificates", [leader, *followers])
        one, unit = together(folder / "together", leader, settings)
        yield Figure(f"{task}, one process on one core", one, f"{unit}/s")
        for in_flight, floor in ((4, 1.0), (1, 0.7)):
            sets = [*settings, f"in_flight={in_flight}"]
            rate = apart(folder, leader, followers, sets, cores)
            what = f"{task}, separate processes, in_flight {in_flight}"
            yield Figure(what, rate, f"{unit}/s")
            yield Figure("  relative to one process", rate / one, "x", at_least=floor)


def parties_of(settings: Sequence[str]) -> tuple[str, ...]:
    """Return the leader and the followers of a job."""
    from fedveil.vertical.job import VerticalJob
    from fedveil.vertical.job_split import make_task

    task = make_task(VerticalJob.load(None, settings))
    return (task.leader, *task.followers)


def together(folder: Path, leader: str, settings: Sequence[str]) -> tuple[float, str]:
    """Run all parties in one process on one core. Returns the speed and its unit (per second)."""
    run = command(["run", "--out", str(folder)], settings, {LEADER_CORE})
    assert run.wait() == 0
    return rate_of(folder / leader)


def apart(
    folder: Path,
    leader: str,
    followers: Sequence[str],
    settings: Sequence[str],
    cores: Sequence[set[int]],
) -> float:
    """Run each party in a process with its own cores. Returns the speed, in units per second."""
    address = f"127.0.0.1:{free_port()}"
    runs = Path(tempfile.mkdtemp(dir=folder))

    def party(name: str, kind: str, option: str, cores: set[int]) -> subprocess.Popen[bytes]:
        own = ["--out", str(runs / name), "--tls", str(folder / "certificates" / name)]
        named = ["--party", name] if kind == "follower" else []
        return command([kind, option, address, *own, *named], settings, cores)

    running = [party(leader, "leader", "--listen", cores[0])]
    for name, own in zip(followers, cores[1:], strict=True):
        running.append(party(name, "follower", "--connect", own))
    assert all(process.wait() == 0 for process in running)
    return rate_of(runs / leader / leader)[0]


def free_port() -> int:
    """Return a free port."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def command(
    arguments: Sequence[str], settings: Sequence[str], cores: set[int]
) -> subprocess.Popen[bytes]:
    """Start `fedveil vertical ...` on these cores."""
    sets = [word for setting in settings for word in ("--set", setting)]
    program = [sys.executable, "-m", "fedveil", "vertical", *arguments, *sets]
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL}
    return subprocess.Popen(program, preexec_fn=lambda: pin(cores), **quiet)


def rate_of(folder: Path) -> tuple[float, str]:
    """Return the speed of the run in `folder` after the first windows, and its unit."""
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    windows = [record for record in records if "step" in record][WARM:]
    return 1 / statistics.median(r["seconds_per_unit"] for r in windows), windows[0]["unit"]


def main() -> int:
    """Measure the named parts."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--text", type=Path)
    parser.add_argument("parts", nargs="*", metavar="PART")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    parts: dict[str, Callable[[], Iterator[Figure]]] = {
        "exchange": exchange,
        "wire": wire,
        "mnist_halves": mnist_halves,
        "pangu": lambda: pangu(arguments.text),
    }
    unknown = set(arguments.parts) - parts.keys()
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))}: the parts are {', '.join(parts)}")
    return show(f for name in arguments.parts or parts for f in parts[name]())


if __name__ == "__main__":
    raise SystemExit(main())
