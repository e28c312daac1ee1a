"""A simulation on a Ray cluster against the same simulation in threads, and against its peers.

    python benchmarks/cluster.py [--peers peers/bin/python] [--nodes 1 2] [--only threads]
    python benchmarks/cluster.py --only projection

Starts a cluster of nodes with one core each on this machine, and times rounds of LeNet with as many
cores in threads. The two runs take turns, round by round, so that a slow spell of the machine meets
both. The median ratio of each pair of rounds is compared, or the median difference. The processor
time of a side is that of all its processes, Ray's own included. Counts the bytes that cross the
loopback interface in a round, including Ray's own messages between its processes.

`--peers` is the Python of an environment made from requirements-peers.txt: pfl with two processes,
and Flower on Ray with two workers, do the same work. The contenders take turns.

The projection is a model of a larger cluster than this machine can be, from two measured costs: a
client's time on one core of a machine, and a client's time at the head.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil

from new_process import last_line

#: The most time of a round on the cluster over the time in threads at 1,000 clients, and the most
#: seconds that it may take longer at 10 clients.
OVERHEAD, SMALL_S = 1.05, 0.060
FLOORS = {"pfl": 5.0, "flwr": 16.0}
LARGE, SMALL = 1000, 10
#: Rounds before those that count: a cluster learns how long its clients take.
WARMUP = 3
#: Clients of a tiny model, whose round is mostly the machines' and the head's own work.
TINY = 50_000
#: The cluster of the projection: clients in a round, machines, and cores of a machine.
PROJECTED = (1_000_000, 16, 32)
HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "tests/support"))
from ray_nodes import node  # noqa: E402 - its settings of Ray must precede Ray's import


def loopback_bytes() -> int:
    """Return the bytes that this machine has sent to itself."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == "lo":
            return int(numbers.split()[8])
    return 0


def ours(options: argparse.Namespace) -> dict[str, Any]:
    """Run rounds of LeNet on `options.on`, and return their times and bytes.

    With `options.turns`, the number of each finished round is printed. The next round then waits
    for a line on standard input.
    """
    import fedveil
    from fedveil.federated.job import Job

    sys.path.insert(0, str(HERE))
    os.environ |= {
        "BENCHMARK_MODEL": options.model,
        "BENCHMARK_CLIENTS": str(options.population),
        "BENCHMARK_EXAMPLES": "60" if options.model == "lenet" else "1",
        "BENCHMARK_SEED": "0",
        "BENCHMARK_BYTES": "False",
    }
    rounds = options.rounds + WARMUP + 2
    stamps: list[tuple[float, int]] = []

    def progress(record: dict[str, Any]) -> None:
        stamps.append((time.perf_counter(), loopback_bytes()))
        if options.turns:
            print(record["round"], flush=True)
            sys.stdin.readline()

    job = Job.load(
        None,
        [
            f"rounds={rounds}",
            "data={name: 'federation:data', split: by_client}",
            f"clients={{number: {options.population}, "
            f"fraction: {options.clients[0] / options.population}}}",
            f"model={options.model}",
            "training={epochs: 1, batch_size: 20, lr: 0.1}",
            f"evaluation.every={rounds}",
            "record.page=false",
            f"simulation.workers={options.workers}",
            f"simulation.on={options.on}",
        ],
    )
    with tempfile.TemporaryDirectory() as folder:
        run = fedveil.simulate(job, Path(folder) / "run", progress=progress)
    spent = [(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(stamps)][WARMUP:-1]
    seconds, traffic = zip(*spent, strict=True)
    return {
        "best": min(seconds),
        "median": statistics.median(seconds),
        "last": seconds[-1],
        "bytes": statistics.median(traffic),
        "machines": run.metrics[-2].get("machines", {}),
    }


def command(
    options: argparse.Namespace, on: str, workers: int, clients: int, model: str = "lenet"
) -> list[str]:
    """Return the command that runs `ours` in a process of its own."""
    made = [sys.executable, __file__, "--on", on, "--workers", str(workers), "--model", model]
    made += ["--clients", str(clients), "--population", str(max(clients, LARGE))]
    return [*made, "--rounds", str(options.rounds)]


def measured(
    options: argparse.Namespace, on: str, workers: int, clients: int, model: str = "lenet"
) -> dict[str, Any]:
    """Run `ours` in a process of its own, and print and return its result."""
    result = last_line(*command(options, on, workers, clients, model))
    print(
        f" cluster {workers:>2} cores, {clients:>5} clients: best {result['best']:.3f} s, median "
        f"{result['median']:.3f} s, {result['bytes'] / 1e6:.2f} MB over loopback",
        flush=True,
    )
    return result


@dataclass
class Side:
    """A run that waits for its turn before each round. `others` are more processes that serve it.

    `seconds`, `cpu` and `traffic` have an entry per round: its time, the processor time of all the
    side's processes, and the bytes over the loopback interface.
    """

    command: list[str]
    others: list[psutil.Process] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    traffic: list[int] = field(default_factory=list)

    def start(self) -> None:
        """Start the run, and wait for the end of its first round."""
        self._run = subprocess.Popen(
            [*self.command, "--turns"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._said()

    def round(self) -> None:
        """Let the run do a round, and measure it."""
        processes = [psutil.Process(self._run.pid)]
        for other in self.others:
            processes += [other, *other.children(recursive=True)]
        cpu, traffic = cpu_seconds(processes), loopback_bytes()
        began = time.perf_counter()
        print(file=self._run.stdin, flush=True)
        self._said()
        self.seconds.append(time.perf_counter() - began)
        self.cpu.append(cpu_seconds(processes) - cpu)
        self.traffic.append(loopback_bytes() - traffic)

    def end(self) -> None:
        """Let the run finish without further turns."""
        self._run.communicate()

    def _said(self) -> None:
        if not self._run.stdout.readline():
            raise SystemExit(f"{' '.join(self.command)} failed")


def cpu_seconds(processes: Iterable[psutil.Process]) -> float:
    """Return the processor time of `processes` so far."""
    total = 0.0
    for process in processes:
        with suppress(psutil.Error):
            total += sum(process.cpu_times()[:2])
    return total


def turns(options: argparse.Namespace, address: str, nodes: int, clients: int) -> list[Side]:
    """Run the threads and the cluster in turns, round by round, and print what each took."""
    threads = Side(command(options, "here", nodes, clients))
    cluster = Side(command(options, address, 1, clients), psutil.Process().children())
    sides = [threads, cluster]
    for side in sides:
        side.start()
    for number in range(WARMUP + options.rounds):
        for side in sides if number % 2 else sides[::-1]:
            side.round()
    for name, side in zip(("threads", "cluster"), sides, strict=True):
        side.end()
        print(
            f"{name} {nodes:>2} cores, {clients:>5} clients: median "
            f"{1e3 * statistics.median(side.seconds[WARMUP:]):.0f} ms, best "
            f"{1e3 * min(side.seconds[WARMUP:]):.0f} ms, processor time "
            f"{1e3 * statistics.mean(side.cpu[WARMUP:]):.0f} ms, "
            f"{statistics.median(side.traffic[WARMUP:]) / 1e6:.2f} MB over loopback",
            flush=True,
        )
    return sides


def against_threads(options: argparse.Namespace) -> bool:
    """Time a cluster of k nodes against k threads, in turns. Returns True if limits are met."""
    from ray.cluster_utils import Cluster

    met = True
    for nodes in options.nodes:
        cluster = Cluster(initialize_head=True, head_node_args=node(1, include_dashboard=False))
        try:
            for _ in range(nodes - 1):
                cluster.add_node(**node(1))
            for clients in options.clients:
                threads, there = turns(options, cluster.address, nodes, clients)
                pairs = list(zip(threads.seconds, there.seconds, strict=True))[WARMUP:]
                ratio = statistics.median(b / a for a, b in pairs)
                over = statistics.median(b - a for a, b in pairs)
                fine = over <= SMALL_S if clients == SMALL else ratio <= OVERHEAD
                share = f"{1e3 * over:.0f} ms ({100 * ratio - 100:.1f}%)"
                cpu = sum(there.cpu[WARMUP:]) / sum(threads.cpu[WARMUP:])
                print(
                    f"{nodes} nodes, {clients} clients: {share} over threads in the median of "
                    f"{len(pairs)} pairs, {100 * cpu - 100:.1f}% more processor time: "
                    f"{'met' if fine else 'MISSED'}",
                    flush=True,
                )
                met &= fine
        finally:
            cluster.shutdown()
    return met


def against_peers(options: argparse.Namespace) -> bool:
    """Time a cluster of two nodes, pfl with two processes and Flower with two workers, in turns.

    Returns True if fedveil is faster by the required factors.
    """
    from ray.cluster_utils import Cluster

    from simulator import measure

    if not options.peers:
        return True
    met, best = True, dict[str, float]()
    for _ in range(options.repeats):
        cluster = Cluster(initialize_head=True, head_node_args=node(1, include_dashboard=False))
        cluster.add_node(**node(1))
        try:
            result = measured(options, cluster.address, 1, 100)
            best["fedveil"] = min(best.get("fedveil", float("inf")), result["best"])
        finally:
            cluster.shutdown()
        for name, script in (("pfl", "pfl"), ("flwr", "flower")):
            flags = ("--model", "lenet", "--workers", 2, "--rounds", options.peer_rounds)
            result = measure(options.peers, f"peers/{script}_rounds.py", *flags)
            best[name] = min(best.get(name, float("inf")), result["best"])
    for name, floor in FLOORS.items():
        ratio = best[name] / best["fedveil"]
        met &= ratio >= floor
        word = "met" if ratio >= floor else "MISSED"
        print(f"{ratio:.1f}x the speed of {name} (floor {floor}x: {word})", flush=True)
    return met


def projection(options: argparse.Namespace) -> bool:
    """Print the estimated time of a round on a larger cluster. Returns True.

    The estimate is based on a client's measured time on a machine and at the head.
    """
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args=node(1, include_dashboard=False))
    cluster.add_node(**node(1))
    try:
        trained = measured(options, cluster.address, 1, LARGE)
        counted = measured(options, cluster.address, 1, TINY, "logistic")
    finally:
        cluster.shutdown()
    on_a_core = sum(busy for _, busy, _ in trained["machines"].values()) / LARGE
    slowest = max(busy for _, busy, _ in counted["machines"].values())
    at_the_head = (counted["last"] - slowest) / TINY
    clients, machines, cores = PROJECTED
    training, head = clients * on_a_core / (machines * cores), clients * at_the_head
    print(
        f"a client takes {1e3 * on_a_core:.2f} ms of a core and {1e6 * at_the_head:.1f} us of the "
        f"head. A model, not a measurement: {clients:,} LeNet clients on {machines} machines of "
        f"{cores} cores take {training:.1f} s of training and {head:.1f} s of the head's work, "
        f"{training + head:.1f} s a round",
        flush=True,
    )
    return True


def main() -> None:
    """Measure and print. Exits with status 1 if a limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers", help="the peers' Python")
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--peer-rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=2)
    parts = {"threads": against_threads, "peers": against_peers, "projection": projection}
    parser.add_argument("--only", choices=parts)
    parser.add_argument("--on", help=argparse.SUPPRESS)
    parser.add_argument("--workers", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--clients", type=int, nargs="+", default=[LARGE, SMALL])
    parser.add_argument("--turns", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--population", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.on:
        print(json.dumps(ours(options)))
        return
    met = [check(options) for name, check in parts.items() if options.only in (None, name)]
    raise SystemExit(not all(met))


if __name__ == "__main__":
    main()
