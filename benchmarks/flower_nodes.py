"""Many clients on few SuperNodes: a round of a deployed job, by protection.

    FEDVEIL_DATA=FOLDER python benchmarks/flower_nodes.py [--clients 1000] [--nodes 10]

Starts a SuperLink and the SuperNodes on this machine, each with an equal part of the clients, and
runs a job of LeNet on MNIST under each protection. All clients take part in every round.
Reports the seconds of the rounds after the first, the bytes that clients sent, and the most memory
that a process of each kind held. The machine's cores are shared by all processes, so the time
includes every node's training and the start of a process per message.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

from fedveil.federated.job import Job
from fedveil.flower.job.deploy import deployable, write_app

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "examples" / "flower"))
from loopback import Loopback  # noqa: E402

KINDS = {
    "flower-superlink": "SuperLink",
    "flwr-serverapp": "server's app",
    "flower-supernode": "SuperNode",
    "flwr-clientapp": "client's app",
}
_LOOK_S = 0.5


class Memory(threading.Thread):
    """Records the most memory that a process of each kind held, in MB."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most: dict[str, float] = {}

    def run(self) -> None:
        while True:
            for status in Path("/proc").glob("[0-9]*/status"):
                with suppress(OSError):
                    words = status.with_name("cmdline").read_bytes().decode(errors="replace")
                    kind = next((name for word, name in KINDS.items() if word in words), None)
                    held = _resident(status.read_text())
                    if kind is not None:
                        self.most[kind] = max(self.most.get(kind, 0.0), held)
            time.sleep(_LOOK_S)


def _resident(status: str) -> float:
    """Return the peak resident memory, in MB, that a process's status file states."""
    lines = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    return float(lines.get("VmHWM", "0 kB").split()[0]) / 1000


def job(options: argparse.Namespace, position: str, per_node: int) -> Job:
    window = {"cipher_time_window": 1000 * options.limit}
    shared = {position: window} if position in ("pw_encrypt", "distributed_dp") else {}
    return Job(
        name=f"nodes-{position.replace('_', '-')}",
        rounds=options.rounds,
        clients={"number": options.clients, "fraction": 1.0},
        data={"name": options.data, "split": "iid"},
        model="lenet",
        training={"epochs": 1, "batch_size": 20},
        protection={"name": position, **shared},
        server={"weighting": "equal"},
        deployment={"clients_per_node": per_node, "answer_s": float(options.limit)},
        record={"page": False},
    )


def measured(options: argparse.Namespace, position: str) -> None:
    """Run the job under one protection on processes of its own, and print its line."""
    per_node = -(-options.clients // options.nodes)
    memory = Memory()
    with tempfile.TemporaryDirectory(prefix="fedveil-nodes-") as made:
        folder = Path(made).resolve()
        write_app(folder / "app", deployable(job(options, position, per_node)))
        with Loopback(folder, options.nodes, secured=False, in_memory=True) as loopback:
            loopback.start_superlink()
            for node in range(options.nodes):
                last = min((node + 1) * per_node, options.clients) - 1
                loopback.start_node(node, clients=f"{node * per_node}-{last}")
            memory.start()
            run = loopback.run(folder / "app", folder / "run")
            run.wait(options.limit * options.rounds * 5)
        lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
        records = [json.loads(line) for line in lines]
    seconds = [record["seconds_round"] for record in records]
    last = records[-1]
    print(
        f"| {position} | {options.clients:,} | {options.nodes} | {last['reports']:,} | "
        f"{statistics.median(seconds[1:] or seconds):.1f} | {seconds[0]:.1f} | "
        f"{last['bytes_up'] / max(last['reports'], 1):,.0f} | {last['bytes_up'] / 1e6:,.1f} | "
        + ", ".join(f"{kind} {size:,.0f}" for kind, size in sorted(memory.most.items()))
        + " |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--nodes", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--limit", type=int, default=1800, help="seconds for a phase")
    parser.add_argument("--positions", nargs="+", default=["not_encrypt", "pw_encrypt"])
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the processes are ended, too
    print("| protection | clients | nodes | reports | round, s | first round, s "
          "| bytes per report | MB a round | memory, MB |\n"
          "|---|---|---|---|---|---|---|---|---|")  # fmt: skip
    for position in options.positions:
        measured(options, position)


if __name__ == "__main__":
    main()
