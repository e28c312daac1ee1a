"""What large models take of a client and of the server, under every position.

    python benchmarks/sizes.py halves [--parameters N ...] [--clients N] [--positions NAME ...]
    python benchmarks/sizes.py rounds [--model resnet18|transformer] [--rounds N] [--positions ...]

`halves`: a round of so many clients, each half's CPU seconds and the most memory that it held
beside what it was given, in float32 copies of the model: a client is given the weights and its
update, the server the weights and one report after another. At most 6 copies in all are kept to at
a client and 4 at the server. About three minutes for 11 million and twenty for 125.

`rounds`: whole rounds of the simulator: ten clients of 50 images of CIFAR's shape through ResNet-18
with group norm (11 million parameters), or of a few windows of text through a transformer of 125
million. The data are synthetic. One process of one thread.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

import fedveil
from fedveil.engine.job_protection import make_protection
from fedveil.entropy import Seeded
from fedveil.federated.job import Job
from fedveil.message import decode, encode
from fedveil.protections.base import ClientContext, RoundContext
from fedveil.protections.positions import POSITIONS

RESNET_18, TRANSFORMER = 11_173_962, 124_439_808
CLIENT_COPIES, SERVER_COPIES = 6, 4
#: Parameters of positions where their defaults need more clients than there are, or a training.
NEEDED = {
    "pw_encrypt": {"reconstruct_secrets_threshold": 6},
    "distributed_dp": {"reconstruct_secrets_threshold": 6, "dropout_tolerance": 0.0},
}


class Held:
    """How far this process's memory grows inside, beyond what it held before, and its CPU time."""

    def __init__(self) -> None:
        self.most = 0
        self.seconds = 0.0
        self._ended = threading.Event()

    def __enter__(self) -> Held:
        self._ended.clear()
        self._base, self._began = _resident(), time.thread_time()
        self._watcher = threading.Thread(target=self._watch)
        self._watcher.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._note()
        self._ended.set()
        self._watcher.join()
        self.seconds += time.thread_time() - self._began

    def _watch(self) -> None:
        while not self._ended.wait(0.002):
            self._note()

    def _note(self) -> None:
        self.most = max(self.most, _resident() - self._base)


def _resident() -> int:
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * resource.getpagesize()


def job_of(position: str, clients: int, rounds: int = 1, **blocks: Any) -> Job:
    """A job whose clients all take part."""
    block = POSITIONS[position].block
    protection: dict[str, Any] = {"name": position}
    if block and position in NEEDED:
        protection[block] = NEEDED[position]
    return Job(
        name=position, rounds=rounds, clients={"number": clients, "fraction": 1.0},
        protection=protection, **blocks,
    )  # fmt: skip


def halves(position: str, parameters: int, clients: int) -> dict[str, Any]:
    """One round, message by message; what the first client and the server held."""
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
        "position": position,
        "parameters": parameters,
        "report_mb": longest / 1e6,
        "client_s": client_side.seconds,
        "server_s": server_side.seconds,
        "client_copies": 2 + client_side.most / copy,
        "server_copies": 1 + server_side.most / copy,
    }


def rounds(position: str, model: str, count: int) -> dict[str, Any]:
    """Whole rounds of the simulator in this process: seconds by part, and the process's memory."""
    sys.path.insert(0, str(Path(__file__).parent))
    job = job_of(
        position,
        10,
        count,
        data={"name": f"large_models:{model}_data"},
        model=f"large_models:{model}",
        task="classification" if model == "resnet18" else "next_token",
        training={"epochs": 1, "batch_size": 10 if model == "resnet18" else 2, "lr": 0.01},
        evaluation={"every": count},
        simulation={"workers": 0},
    )
    with tempfile.TemporaryDirectory() as folder:
        run = fedveil.simulate(job, Path(folder) / "run")
    last = run.metrics[-1]
    return {
        "position": position,
        "model": model,
        "round_s": last["seconds_round"],
        "training_s": last["seconds_training"],
        "protection_s": last["seconds_protection"],
        "aggregation_s": last["seconds_aggregation"],
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def alone(*arguments: object) -> dict[str, Any]:
    """One measurement in a process of its own, whose memory holds nothing of another's."""
    command = [sys.executable, __file__, "one", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> None:
    """Measure and print a table; exits 1 where a half held more than it may."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("halves", "rounds", "one"))
    parser.add_argument("rest", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument("--parameters", type=int, nargs="+", default=[RESNET_18, TRANSFORMER])
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--positions", nargs="+", default=list(POSITIONS))
    parser.add_argument("--model", nargs="+", default=["resnet18", "transformer"])
    parser.add_argument("--rounds", type=int, default=2)
    asked = parser.parse_args()
    if asked.what == "one":
        kind, position, *more = asked.rest
        if kind == "halves":
            parameters, clients = map(int, more)
            halves(position, 5_000, clients)  # loads and compiles what it needs
            print(json.dumps(halves(position, parameters, clients)))
        else:
            print(json.dumps(rounds(position, more[0], int(more[1]))))
        return
    kept = True
    if asked.what == "halves":
        print("| parameters | position | report, MB | client, s | copies | server, s | copies |")
        print("|---|---|---|---|---|---|---|", flush=True)
    else:
        print("| model | position | round, s | training | protection | aggregation | memory, MB |")
        print("|---|---|---|---|---|---|---|", flush=True)
    for what in asked.parameters if asked.what == "halves" else asked.model:
        for position in asked.positions:
            if asked.what == "halves":
                of = alone("halves", position, what, asked.clients)
                kept &= (
                    of["client_copies"] <= CLIENT_COPIES and of["server_copies"] <= SERVER_COPIES
                )
                print(
                    f"| {of['parameters']:,} | {position} | {of['report_mb']:.1f} "
                    f"| {of['client_s']:.2f} | {of['client_copies']:.2f} "
                    f"| {of['server_s']:.2f} | {of['server_copies']:.2f} |",
                    flush=True,
                )
            else:
                of = alone("rounds", position, what, asked.rounds)
                print(
                    f"| {what} | {position} | {of['round_s']:.1f} | {of['training_s']:.1f} "
                    f"| {of['protection_s']:.1f} | {of['aggregation_s']:.1f} "
                    f"| {of['peak_mb']:,.0f} |",
                    flush=True,
                )
    raise SystemExit(not kept)


if __name__ == "__main__":
    main()
