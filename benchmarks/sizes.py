"""The time and memory that large models take of a client and of the server, under each protection.

    python benchmarks/sizes.py halves [--parameters N ...] [--clients N] [--positions NAME ...]
    python benchmarks/sizes.py rounds [--model resnet18|transformer|medium|adapters] [--rounds N]
                                      [--clients N] [--positions ...] [--precision bfloat16]
                                      [--device cuda] [--peers peers/bin/python]
    python benchmarks/sizes.py reports [--parameters N ...] [--positions NAME ...]
    python benchmarks/sizes.py deployed [--model ...] [--clients N] [--positions ...]

`halves`: a round of `--clients` clients. Prints each half's CPU seconds and its peak memory besides
its inputs, in float32 copies of the model. The inputs of a client are the weights and its update,
those of the server the weights and one report after another. The limits are 6 copies in all for a
client and 4 for the server. Working memory of up to 2 MB, which does not grow with the model, is
not counted. Takes about three minutes for 11 million parameters and twenty for 125 million.

`rounds`: whole rounds of the simulator: ten clients with 50 images of CIFAR's shape and ResNet-18
with group norm (11 million parameters), or with a few windows of text and a transformer of 125
million (`transformer`) or 354 million parameters (`medium`), or adapters of rank 8 of a GPT-2 of
104 million parameters (`adapters`). Weights and data are random. Prints the seconds of the last
round without its evaluation. There is one process, and torch has one thread, also for the peers in
requirements-peers.txt, which do the same work unprotected. `--clients` of the ten take part. With
`--precision bfloat16` clients train in mixed precision. With `--device` they train on another
device than the CPU, beside pfl alone; the memory is then the host's.

`reports`: the processor time of one client's report without masks, and of the server's adding it,
for each parameter of a model of `--parameters`.

`deployed`: one such round between Flower processes on this machine, started as in examples/flower,
and the peak memory of each kind of process.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import yaml

import fedveil
from fedveil.base import reused_memory
from fedveil.base.message import decode, encode
from fedveil.engine.job_protection import make_protection
from fedveil.entropy import Seeded
from fedveil.federated.job import Job
from fedveil.protections.base import ClientContext, RoundContext
from fedveil.protections.catalog import POSITIONS
from large_models import ADAPTED, RANK, make_adapted
from new_process import last_line, memory_mb

HERE = Path(__file__).parent
PEERS = ("pfl_rounds.py", "flower_rounds.py")
RESNET_18, TRANSFORMER = 11_173_962, 124_439_808
CLIENT_COPIES, SERVER_COPIES = 6, 4
#: Working memory in MB that does not grow with the model and is not counted.
ASIDE = 2


class Held:
    """The growth of this process's peak memory inside the block, and its CPU time."""

    def __init__(self) -> None:
        self.most = 0
        self.seconds = 0.0

    def __enter__(self) -> Held:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # resets the peak
        self._base, self._began = _status("VmRSS"), time.thread_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds += time.thread_time() - self._began
        self.most = max(self.most, _status("VmHWM") - self._base)

    def copies(self, size: int) -> float:
        """Return the growth in copies of a model of `size` bytes."""
        return max(0, self.most - ASIDE * 1_000_000) / size


def _status(name: str) -> int:
    """Return the entry `name` of this process's status file, such as VmRSS, in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name))


def job_of(
    position: str, clients: int, rounds: int = 1, among: int | None = None, **blocks: Any
) -> Job:
    """Return a job with `clients` clients in every round, of `among` clients (default: all)."""
    among = among or clients
    protection: dict[str, Any] = {"name": position}
    if position in ("pw_encrypt", "distributed_dp"):
        protection[position] = {"reconstruct_secrets_threshold": 6 * clients // 10}
        if position == "distributed_dp":
            protection[position]["dropout_tolerance"] = 0.0
    return Job(
        name=position, rounds=rounds, clients={"number": among, "fraction": clients / among},
        protection=protection, **blocks,
    )  # fmt: skip


def halves(position: str, parameters: int, clients: int) -> dict[str, Any]:
    """Run one round, message by message.

    Returns the time and memory of a client and of the server.
    """
    protection = make_protection(job_of(position, clients), parameters)
    model = Seeded(0, "model").generator().normal(0, 0.05, parameters).astype(np.float32)
    client_side, server_side = Held(), Held()
    with server_side:
        server = protection.server_round(
            RoundContext(range(clients), 1, model, protection.initial_state())
        )
    rounds = {
        c: protection.client_round(ClientContext(c, 1, model, 50, Seeded(1, c)))
        for c in range(clients)
    }
    messages: Any = dict.fromkeys(range(clients), server.opening())
    longest = 0
    while messages is not None:
        for client, message in messages.items():
            half, update = rounds[client], None
            if half.wants_update(message):
                drawn = Seeded(2, client).generator()
                update = drawn.normal(0, 1e-3, parameters).astype(np.float32)
            with client_side if client == 0 else Held():
                sent = encode(half.respond(message, update))
            del update
            longest = max(longest, len(sent))
            with server_side:
                server.receive(client, decode(sent))
            del sent
        with server_side:
            messages = server.advance()
    with server_side:
        server.aggregate()
    copy = 4 * parameters
    return {
        "report_mb": longest / 1e6,
        "client_s": client_side.seconds,
        "server_s": server_side.seconds,
        "client_copies": 2 + client_side.copies(copy),
        "server_copies": 1 + server_side.copies(copy),
    }


def reports(position: str, parameters: int) -> tuple[float, float]:
    """Return the CPU seconds to make a report and to add it to the sum, without masks.

    Both are the least of two clients. As in a simulation, the second report reuses the memory of
    the first.
    """
    reused_memory.start_reusing()
    protection = make_protection(job_of(position, 10, simulation={"masks": False}), parameters)
    draw = Seeded(0, "model").generator()
    model, update = (draw.normal(0, s, parameters).astype(np.float32) for s in (0.05, 1e-3))
    server = protection.server_round(RoundContext(range(10), 1, model, protection.initial_state()))
    opening, made, added = server.opening(), [], []
    for client in range(2):
        half = protection.client_round(ClientContext(client, 1, model, 50, Seeded(1, client)))
        began = time.thread_time()
        report = half.respond(opening, update)
        made.append(time.thread_time() - began)
        began = time.thread_time()
        server.receive(client, report)
        added.append(time.thread_time() - began)
        del report
    reused_memory.stop_reusing()
    return min(made), min(added)


def show_reports(asked: argparse.Namespace) -> bool:
    """Print the results of `reports`, a row for each protection. Returns True."""
    head("parameters", "protection", "client, ns", "adding, ns")
    for parameters in asked.parameters:
        for position in asked.positions:
            reports(position, 5_000)  # loads and compiles the code
            took = (f"{1e9 * s / parameters:.1f}" for s in reports(position, parameters))
            row(f"{parameters:,}", position, *took)
    return True


def work(model: str, **training: Any) -> dict[str, Any]:
    """Return a job's blocks that train a large model on its data, with the settings `training`."""
    images = model == "resnet18"
    batch = 10 if images else 2
    own: dict[str, Any] = {"model": f"large_models:{model}"}
    if model == "adapters":
        lora = {"kind": "lora", "rank": RANK, "alpha": 2 * RANK, "targets": ["c_attn"]}
        own = {"model": f"hf:{ADAPTED}", "adapter": lora}
    return {
        "data": {"name": f"large_models:{model}_data"},
        **own,
        "task": "classification" if images else "next_token",
        "training": {"epochs": 1, "batch_size": batch, "lr": 0.01, **training},
    }


def rounds(position: str, model: str, count: int, clients: int, **training: Any) -> dict[str, Any]:
    """Run whole rounds in this process.

    Returns the seconds of the last round by part, its CPU seconds on all cores, and the process's
    peak memory.
    """
    sys.path.insert(0, str(HERE))
    every = {"evaluation": {"every": count}, "simulation": {"workers": 0}}
    job = job_of(position, clients, count, 10, **work(model, **training), **every)
    ends = [0.0]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        run = fedveil.simulate(job, out, progress=lambda _: ends.append(time.process_time()))
    return {**seconds(run.metrics[-1]), "cpu_s": ends[-1] - ends[-2], "memory_mb": memory_mb()}


def seconds(record: dict[str, Any]) -> dict[str, float]:
    """Return the seconds of a round without its evaluation, in all and by part."""
    parts = ("round", "training", "protection", "aggregation")
    found = {f"{part}_s": record[f"seconds_{part}"] for part in parts}
    found["round_s"] -= record["seconds_evaluation"]
    return found


def peer_rounds(asked: argparse.Namespace, script: str, model: str) -> dict[str, Any]:
    """Run the rounds of an unprotected peer.

    Returns its name, the median seconds of a round, and the peak memory of all its processes.
    """
    examples, batch = (50, 10) if model == "resnet18" else (2, 2)
    device = () if asked.device == "cpu" else ("--device", asked.device)
    of = last_line(
        asked.peers, HERE / "peers" / script, "--model", model, "--clients", 10,
        "--per-round", asked.clients, "--examples", examples, "--batch", batch, "--lr", 0.01,
        "--workers", 1, "--warmup", 1, "--rounds", asked.rounds, "--limit", 3600, *device,
    )  # fmt: skip
    return {"peer": of["peer"], "round_s": of["median"], "memory_mb": of["peak_rss_mb"]}


def deployed(position: str, model: str, clients: int) -> dict[str, Any]:
    """Run one round between real processes. Returns its seconds, and the peak memory by kind."""
    job = job_of(position, clients, **work(model)).model_dump(mode="json")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "job.yaml")
        path.write_text(yaml.safe_dump(job), encoding="utf-8")
        script = HERE.parent / "examples" / "flower" / "loopback.py"
        options = ("--plain", "--in-memory", "--clients", clients, "--limit", 3600)
        process = subprocess.Popen(
            [sys.executable, str(script), str(path), "--folder", folder, *map(str, options)],
            env={**os.environ, "PYTHONPATH": str(HERE)},
            stdout=subprocess.DEVNULL,
        )
        most: dict[str, float] = {}
        while process.poll() is None:
            for kind, held in descendants_mb(process.pid):
                most[kind] = max(most.get(kind, 0.0), held)
            time.sleep(0.2)
        if process.returncode:
            logs = [path.read_text()[-2000:] for path in sorted(Path(folder).glob("*.log"))]
            raise SystemExit("\n".join([f"{position}: the run did not finish", *logs]))
        lines = Path(folder, "run", "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    record = json.loads(lines[-1])
    return {**seconds(record), "reports": record["reports"], "most_mb": most}


def descendants_mb(ancestor: int) -> Iterator[tuple[str, float]]:
    """Yield the kind and the peak memory of each process that `ancestor` started."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            status = (path / "status").read_text(encoding="utf-8")
            fields = dict(line.split(":", 1) for line in status.splitlines())
            words = (path / "cmdline").read_text(encoding="utf-8").split("\0")
            names = [Path(word).name for word in words[:2]]
            kind = next((name for name in names if name.startswith("fl")), "")
            held = int(fields.get("VmHWM", "0").split()[0]) / 1024
            found[int(path.name)] = (int(fields["PPid"]), kind, held)
    family = [ancestor]
    for one in family:
        family += [pid for pid, (parent, _, _) in found.items() if parent == one]
    yield from ((kind, held) for _, kind, held in (found[pid] for pid in family[1:]) if kind)


def alone(*arguments: object) -> dict[str, Any]:
    """Run one measurement in a new process, whose memory contains nothing else."""
    return last_line(sys.executable, __file__, "one", *arguments)


def one(kind: str, position: str, *more: str) -> dict[str, Any]:
    """Run the measurement that this process was started for."""
    if kind == "halves":
        parameters, clients = map(int, more)
        halves(position, 5_000, clients)  # loads and compiles the code
        return halves(position, parameters, clients)
    if kind == "base":
        make_adapted()
        return {}
    model, count, clients, precision, device = more
    return rounds(position, model, int(count), int(clients), precision=precision, device=device)


def show_halves(asked: argparse.Namespace) -> bool:
    """Print the results of `halves`, a row each. Returns True if no half exceeded its limit."""
    kept = True
    head("parameters", "protection", "report, MB", "client, s", "copies", "server, s", "copies")
    for parameters in asked.parameters:
        for position in asked.positions:
            of = alone("halves", position, parameters, asked.clients)
            kept &= of["client_copies"] <= CLIENT_COPIES and of["server_copies"] <= SERVER_COPIES
            row(
                f"{parameters:,}", position, f"{of['report_mb']:.1f}",
                f"{of['client_s']:.2f}", f"{of['client_copies']:.2f}",
                f"{of['server_s']:.2f}", f"{of['server_copies']:.2f}",
            )  # fmt: skip
    return kept


def show_rounds(asked: argparse.Namespace) -> bool:
    """Print the seconds of `rounds`, a row for each protection and each peer. Returns True."""
    parts_of = ("round, s", "training", "protection", "aggregation", "CPU, s", "memory, MB")
    head("model", "protection", *parts_of)
    for model in asked.model:
        if model == "adapters":
            alone("base", "")
        for position in asked.positions:
            how = (asked.rounds, asked.clients, asked.precision, asked.device)
            of = alone("rounds", position, model, *how)
            row(model, position, *parts(of), f"{of['memory_mb']:,.0f}")
        for script in asked.scripts if asked.peers else ():
            of = peer_rounds(asked, script, model)
            held = f"{of['memory_mb']:,.0f}"
            row(model, of["peer"], f"{of['round_s']:.1f}", "", "", "", "", held)
    return True


def show_deployed(asked: argparse.Namespace) -> bool:
    """Print the results of `deployed`, a row for each protection. Returns True."""
    head("model", "protection", "clients", "reports", "round, s", "aggregation", "memory, MB")
    for model in asked.model:
        for position in asked.positions:
            of = deployed(position, model, asked.clients)
            held = ", ".join(f"{kind} {mb:,.0f}" for kind, mb in sorted(of["most_mb"].items()))
            took = (f"{of['round_s']:.1f}", f"{of['aggregation_s']:.1f}")
            row(model, position, str(asked.clients), str(of["reports"]), *took, held)
    return True


def parts(of: dict[str, Any]) -> list[str]:
    """Return the cells for a round's seconds, in all and by part."""
    return [f"{value:.1f}" for name, value in of.items() if name.endswith("_s")]


def head(*columns: str) -> None:
    """Print the first two lines of a table."""
    row(*columns)
    print("|" + "---|" * len(columns), flush=True)


def row(*cells: str) -> None:
    """Print a line of a table."""
    print(f"| {' | '.join(cells)} |", flush=True)


SHOWN = {
    "halves": show_halves,
    "reports": show_reports,
    "rounds": show_rounds,
    "deployed": show_deployed,
}


def main() -> None:
    """Measure and print a table. Exits with status 1 if a half exceeded its limit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=(*SHOWN, "one"))
    parser.add_argument("rest", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument("--parameters", type=int, nargs="+", default=[RESNET_18, TRANSFORMER])
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--positions", nargs="+", default=list(POSITIONS))
    parser.add_argument("--model", nargs="+", default=["resnet18", "transformer"])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--precision", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--device", default="cpu", help="torch's name of the device")
    parser.add_argument("--peers", help="the Python of an environment with the peers")
    parser.add_argument("--scripts", nargs="+", default=list(PEERS), help="the peers to run")
    asked = parser.parse_args()
    if asked.device != "cpu":
        asked.scripts = ["pfl_rounds.py"]  # the only peer that takes another device
    if asked.what == "one":
        print(json.dumps(one(*asked.rest)))
        return
    raise SystemExit(not SHOWN[asked.what](asked))


if __name__ == "__main__":
    main()
