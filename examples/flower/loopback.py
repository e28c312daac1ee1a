"""A federation of real processes on this machine: one SuperLink, and a SuperNode for each client.

    python loopback.py                     TLS and node authentication; the job in job.yaml
    python loopback.py --plain             neither: for a machine that only tests
    python loopback.py --set protection=signds --set rounds=3
    python loopback.py --ask               then asks question.yaml of clients that sign

docs/deployment.md does the same command by command. Everything that this starts is ended with it.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import certificates

HERE = Path(__file__).parent
#: Beside this interpreter: fedveil's and Flower's commands.
BIN = Path(sys.executable).parent
_STOP_S = 10.0


class Failed(Exception):
    """A command did not do what it was called for."""


class Loopback:
    """The processes, on free ports, with all of their files in one folder."""

    def __init__(
        self, folder: Path, clients: int, *, secured: bool, in_memory: bool = False
    ) -> None:
        self.folder = folder
        # A file, so that a SuperLink that was started again knows its SuperNodes.
        self._database = ":flwr-in-memory:" if in_memory else str(folder / "superlink.db")
        self.clients = clients
        self._secured = secured
        self._registered = False
        self._port, *self._node_ports = _free_ports(1 + clients)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._environment = {
            **os.environ,
            "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}",
            "FLWR_HOME": str(folder / "flower"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
        }
        (folder / "flower").mkdir(parents=True, exist_ok=True)
        security = f'root-certificates = "{folder / "keys" / "ca.crt"}"'
        (folder / "flower" / "config.toml").write_text(
            '[superlink]\ndefault = "loopback"\n\n[superlink.loopback]\n'
            f'address = "127.0.0.1:{self._port}"\n'
            f"{security if secured else 'insecure = true'}\n"
        )
        if secured:
            certificates.make(folder / "keys", clients)

    def __enter__(self) -> Loopback:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for name in list(self._processes):
            self.kill(name)

    def start_superlink(self) -> None:
        """Start the SuperLink, and wait until it listens."""
        keys = self.folder / "keys"
        security = [
            "--ssl-ca-certfile", str(keys / "ca.crt"),
            "--ssl-certfile", str(keys / "server.pem"),
            "--ssl-keyfile", str(keys / "server.key"),
            "--enable-supernode-auth",
        ]  # fmt: skip
        self._start(
            "superlink",
            "flower-superlink",
            *(security if self._secured else ["--insecure"]),
            "--disable-runtime-dependency-installation",
            "--database", self._database,
            "--host", "127.0.0.1",
            "--port", str(self._port),
        )  # fmt: skip
        self._wait_for_port("superlink")
        if self._secured and not self._registered:
            self._registered = True
            for number in range(self.clients):
                self.call("flwr", "supernode", "register", str(keys / f"node-{number}.pub"))

    def start_node(self, number: int, more: str = "", clients: str | None = None) -> None:
        """Start the SuperNode of a client, or of several `clients`, such as "0-9".

        `more` is added to its node configuration.
        """
        keys = self.folder / "keys"
        security = [
            "--root-certificates", str(keys / "ca.crt"),
            "--auth-supernode-private-key", str(keys / f"node-{number}"),
        ]  # fmt: skip
        state = self.folder / f"state-{number}"
        held = f"client={number}" if clients is None else f'clients="{clients}"'
        self._start(
            f"node-{number}",
            "flower-supernode",
            *(security if self._secured else ["--insecure"]),
            "--superlink", f"127.0.0.1:{self._port}",
            "--port", str(self._node_ports[number]),
            "--node-config", f'{held} state-folder="{state}" {more}'.strip(),
        )  # fmt: skip

    def kill(self, name: str) -> None:
        """End a process and all that it has started, as a power cut does."""
        self.signal(name, signal.SIGKILL)
        self._processes.pop(name).wait(_STOP_S)

    def signal(self, name: str, number: int) -> None:
        """Send a signal to a process and all that it has started: SIGSTOP makes a machine slow."""
        with suppress(ProcessLookupError):
            os.killpg(self._processes[name].pid, number)

    def run(self, app: Path, run: Path) -> subprocess.Popen[bytes]:
        """`flwr run` with its log on this terminal; ends when the run has ended."""
        # The run folder is the server's: in its configuration, since the app travels as it is.
        command = ["flwr", "run", str(app), "--stream", "--run-config", f'folder="{run}"']
        return self._popen("run", command, None)

    def ask(self, question: Path, app: Path, out: Path, *more: str) -> subprocess.Popen[bytes]:
        """`fedveil ask --on`: ends when the answers are there."""
        words = ["--on", str(app), "--out", str(out), *more]
        return self._popen("ask", ["fedveil", "ask", str(question), *words], None)

    def call(self, *command: str) -> str:
        """A command that is over soon. Returns what it printed."""
        done = subprocess.run(
            command, env=self._environment, capture_output=True, text=True, timeout=60, check=False
        )
        if done.returncode:
            raise Failed(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def log(self, name: str) -> str:
        """What a process has said."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def _start(self, name: str, *command: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self._popen(name, list(command), log.fileno())

    def _popen(self, name: str, command: list[str], log: int | None) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            command,
            cwd=self.folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        self._processes[name] = process
        return process

    def _wait_for_port(self, name: str, limit_s: float = 60.0) -> None:
        end = time.monotonic() + limit_s
        while time.monotonic() < end and self._processes[name].poll() is None:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self._port), 1):
                return
            time.sleep(0.2)
        raise Failed(f"{name} does not listen:\n{self.log(name)[-2000:]}")


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def main() -> int:
    """Deploy the job, run it to its end, and say where its folder is."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("job", nargs="?", type=Path, default=HERE / "job.yaml")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--plain", action="store_true", help="no TLS, no node authentication")
    parser.add_argument(
        "--in-memory", action="store_true", help="no database file: for large models"
    )
    parser.add_argument("--ask", action="store_true", help="then ask question.yaml, over new nodes")
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--limit", type=float, default=600.0, help="seconds until it is ended")
    parser.add_argument("--folder", type=Path, help="for all files; else a temporary one")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="fedveil-flower-"))
    settings = [word for setting in options.set for word in ("--set", setting)]
    secured, in_memory = not options.plain, options.in_memory
    with Loopback(
        folder.resolve(), options.clients, secured=secured, in_memory=in_memory
    ) as loopback:
        loopback.call(
            "fedveil", "deploy", str(loopback.folder / "app"), str(options.job.resolve()),
            "--set", f"clients.number={options.clients}", *settings,
        )  # fmt: skip
        loopback.start_superlink()
        for number in range(options.clients):
            loopback.start_node(number)
        run = loopback.run(loopback.folder / "app", loopback.folder / "run")
        try:
            run.wait(options.limit)
        except subprocess.TimeoutExpired:
            print(f"the run has not ended within {options.limit:g} s", file=sys.stderr)
    model = loopback.folder / "run" / "model.safetensors"
    if not model.exists():
        print(f"there is no {model}: the logs are in {folder}", file=sys.stderr)
        return 1
    print(f"the server's run folder: {model.parent}")
    return _ask(folder.resolve() / "question", options) if options.ask else 0


def _ask(folder: Path, options: argparse.Namespace) -> int:
    """Ask question.yaml of clients that sign, and say where the answers are."""
    count, out, app = options.clients, folder / "answer", folder / "app"
    with Loopback(folder, count, secured=not options.plain) as loopback:
        keys = [folder / f"client-{number}.pem" for number in range(count)]
        lines = [f'client-{n}: "{loopback.call("fedveil", "identity", str(key)).strip()}"\n'
                 for n, key in enumerate(keys)]  # fmt: skip
        (roster := folder / "roster.yaml").write_text("".join(lines))
        settings = ["--set", f"clients={count}", "--set", f"data={HERE / 'people.csv'}"]
        loopback.call("fedveil", "deploy", str(app), str(HERE / "question.yaml"), *settings)
        # The server's copy of the roster; each client has its own.
        (app / "roster.yaml").write_text("".join(lines))
        loopback.start_superlink()
        for number, key in enumerate(keys):
            agreed = f'question="{app / "question.yaml"}"'
            loopback.start_node(number, f'identity="{key}" roster="{roster}" {agreed}')
        asking = loopback.ask(HERE / "question.yaml", app, out, *settings)
        try:
            asking.wait(options.limit)
        except subprocess.TimeoutExpired:
            print(f"nothing was answered within {options.limit:g} s", file=sys.stderr)
    if not (out / "answers.json").exists():
        print(f"there are no answers in {out}: the logs are in {folder}", file=sys.stderr)
        return 1
    print(f"the answers: {out}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
