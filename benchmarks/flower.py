"""fedveil on Flower: the time of rounds of secure aggregation, and the cost of each protection.

    python benchmarks/flower.py [--peers-python PYTHON] [PART ...]

The parts (default: all):

simulation  rounds of secure aggregation with 100 clients in Flower's simulation engine, with
            fedveil and with Flower's own SecAgg+; needs PYTHON, from an environment made from
            ``requirements-peers.txt`` that also has fedveil
engine      an app with real training on a SuperLink and two SuperNodes of this machine, without
            protection and with each; and the exchange of a message without work, which is the
            engine's own time

Both need a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from figures import Figure, show
from new_process import last_line

HERE = Path(__file__).parent
PROTECTIONS = ("dp_encrypt", "signds", "rr", "oue")
NODES = 2
#: A step of the deployment that takes longer has failed.
PATIENCE_S = 180.0


def simulation_figures(options: argparse.Namespace) -> Iterator[Figure]:
    """Time rounds of 100 clients with 61,706 parameters and no dropouts."""
    results = {
        how: _peer(options, how, rounds)
        for how, rounds in (("fedveil", options.rounds), ("secaggplus", 1))
    }
    ours, theirs = results["fedveil"], results["secaggplus"]
    title = f"simulation engine, {options.clients} clients x 61,706"
    yield Figure(f"{title}: fedveil", ours["best"], "s")
    yield Figure("  SecAgg+", theirs["best"], "s")
    floor = 20.0 if options.clients == 100 else None
    yield Figure("  SecAgg+ over fedveil", theirs["best"] / ours["best"], "times", at_least=floor)
    yield Figure(
        "  fedveil: sent per parameter", ours["bytes_up_per_parameter"], "bytes", at_most=5
    )
    yield Figure("  SecAgg+: sent per parameter", theirs["bytes_up_per_parameter"], "bytes")
    yield Figure("  fedveil: largest error", 1e6 * ours["worst_error"], "1e-6")
    yield Figure("  SecAgg+: largest error", 1e6 * theirs["worst_error"], "1e-6")


def _peer(options: argparse.Namespace, how: str, rounds: int) -> dict[str, Any]:
    script = HERE / "peers" / "flower_secure_rounds.py"
    flags = ("--how", how, "--clients", options.clients, "--rounds", rounds)
    return last_line(options.peers_python, script, *flags)


class Deployment:
    """A SuperLink and its SuperNodes on free ports of this machine, which end with `stack`."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fl-")))
        self._stack = stack
        link, *nodes = _free_ports(1 + NODES)
        home = self.folder / "flwr"
        home.mkdir()
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n[superlink.here]\n'
            f'address = "127.0.0.1:{link}"\ninsecure = true\n'
        )
        self._environment = {
            **os.environ,
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "XDG_RUNTIME_DIR": str(self.folder),
            "OMP_NUM_THREADS": "1",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        self._start(
            "flower-superlink", "--insecure", "--disable-runtime-dependency-installation",
            "--port", str(link),
        )  # fmt: skip
        _wait_for_port(link)
        for port in nodes:
            self._start(
                "flower-supernode", "--insecure",
                "--superlink", f"127.0.0.1:{link}", "--port", str(port),
            )  # fmt: skip

    def _start(self, *command: str) -> None:
        log = self._stack.enter_context((self.folder / f"{command[0]}.log").open("ab"))
        process = subprocess.Popen(
            command, env=self._environment, stdout=log, stderr=log, start_new_session=True
        )
        self._stack.callback(_stop, process)

    def run(self, how: str, rounds: int) -> tuple[dict[str, Any], list[dict[str, float]]]:
        """Run the app once. Returns the measurements of its server and of its clients."""
        result, clocks = self.folder / f"{how}.json", self.folder / f"{how}.clocks"
        settings = f'how="{how}" rounds={rounds} result="{result}" clocks="{clocks}"'
        command = ["flwr", "run", str(HERE / "flower_app"), "--run-config", settings]
        done = subprocess.run(
            command, env=self._environment, capture_output=True, text=True,
            check=False, timeout=PATIENCE_S,
        )  # fmt: skip
        end = time.monotonic() + PATIENCE_S
        while not result.exists():
            if done.returncode or time.monotonic() > end:
                logs = "".join(p.read_text()[-3000:] for p in self.folder.glob("*.log"))
                raise SystemExit(f"the run {how} has no result:\n{done.stderr}\n{logs}")
            time.sleep(0.5)
        lines = clocks.read_text().splitlines()
        return json.loads(result.read_text()), [json.loads(line) for line in lines]


def engine_figures(options: argparse.Namespace) -> Iterator[Figure]:
    """Time LeNet on two SuperNodes: a round without protection, and the cost of each protection."""
    with contextlib.ExitStack() as stack:
        deployment = Deployment(stack)
        deployment.run("plain", 1)  # imports, and compiled code, into the caches
        plain, clocks = deployment.run("plain", options.rounds)
        round_s = statistics.median(plain["seconds"])
        training_s = statistics.median(line["training_s"] for line in clocks)
        yield Figure("deployment engine, 2 SuperNodes: a round", round_s, "s")
        yield Figure("  of that, training", training_s, "s")
        yield Figure("  engine overhead: start, exchange, polling", round_s - training_s, "s")
        for how in PROTECTIONS:
            result, clocks = deployment.run(how, options.rounds)
            rest_s = statistics.median(line["rest_s"] for line in clocks)
            yield Figure(f"{how}: a round", statistics.median(result["seconds"]), "s")
            yield Figure("  protection and encoding at a client", rest_s, "s")
            share = 100 * rest_s / round_s
            yield Figure("  of a round without protection", share, "%", at_most=10)
            yield Figure("  sent per client", result["bytes_up"][0], "bytes")


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _wait_for_port(port: int) -> None:
    end = time.monotonic() + PATIENCE_S
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        if time.monotonic() > end:
            raise SystemExit(f"no server listens on port {port}")
        time.sleep(0.2)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End a process and the processes that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(10)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


PARTS: dict[str, Callable[[argparse.Namespace], Iterator[Figure]]] = {
    "simulation": simulation_figures,
    "engine": engine_figures,
}


def main() -> int:
    """Print the figures. Returns the exit status: 1 if a limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--peers-python", help="the Python with the peers and fedveil")
    parser.add_argument("--clients", type=int, default=100, help="of the simulation")
    parser.add_argument("--rounds", type=int, default=3, help="timed rounds")
    options = parser.parse_args()
    chosen = options.parts or list(PARTS)
    if unknown := set(chosen) - set(PARTS):
        parser.error(f"unknown part {', '.join(sorted(unknown))}")
    if "simulation" in chosen and not options.peers_python:
        parser.error("the part simulation needs --peers-python")
    missed = 0
    for part in chosen:
        missed |= show(PARTS[part](options))
    return missed


if __name__ == "__main__":
    sys.exit(main())
