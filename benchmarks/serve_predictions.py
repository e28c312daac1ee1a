"""Time to answer for one id over HTTP, and to score a whole file.

    python benchmarks/serve_predictions.py [--rows 2000] [--many 100000]      two minutes
    python benchmarks/serve_predictions.py --apart [--rows 2000] [--many 100000]

Two parties have six numbers and a column of words, and train for two epochs under EmbeddingDP. The
service runs in a process of its own, with all parties, on loopback. One client asks for one id
after another on one connection, each for the first time. Then a file of `--many` rows is scored.

With `--apart`, each party has its own process in training and in scoring, and mutual TLS connects
them on loopback. The client has a certificate too. The parties find their rows by intersection.
"""

from __future__ import annotations

import argparse
import csv
import http.client
import json
import re
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import yaml

from fedveil.link.own_authority import write_certificates
from fedveil.link.tls import Credentials
from figures import Figure, show

FEDVEIL = (sys.executable, "-m", "fedveil", "vertical")
TRAINED = 3000
JOB = """
epochs: 2
task:
  name: tables
  tables:
    leader: lead
    owners: [lead, bank]
    files:
      lead: {path: lead.csv, label: y}
      bank: {path: bank.csv, categories: {kind: 6}}
privacy: {embedding_dp: {eps: 1}}
scoring: {calibration: 0.2}
"""


def write(folder: Path, name: str, count: int, first: int, *, labels: bool) -> None:
    draw = np.random.default_rng(count)
    x, z, kind = (
        draw.normal(size=(count, 3)),
        draw.normal(size=(count, 3)),
        draw.integers(0, 5, count),
    )
    y = (x[:, 0] + z[:, 0] + draw.logistic(size=count) > 0).astype(int)
    for party, numbers in (("lead", x), ("bank", z)):
        with (folder / f"{name}{party}.csv").open("w", newline="") as file:
            lines = csv.writer(file)
            more = (["y"] if labels else []) if party == "lead" else ["kind"]
            lines.writerow(["id", "a", "b", "c", *more])
            for at in range(count):
                own = ([y[at]] if labels else []) if party == "lead" else [f"k{kind[at]}"]
                lines.writerow([first + at, *numbers[at].round(4), *own])


def files(name: str) -> list[str]:
    return [f"--data={party}={name}{party}.csv" for party in ("lead", "bank")]


class Together:
    """Both parties in one process, without TLS."""

    scheme, tls = "http", None

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def train(self) -> None:
        run(self._folder, "run", "job.yaml", "--out=run")

    @contextmanager
    def service(self, name: str) -> Iterator[subprocess.Popen[str]]:
        command = ["serve-predictions", "run", *files(name), "--http=127.0.0.1:0", "--insecure"]
        with started(self._folder, command) as service:
            yield service

    def predict(self, name: str) -> None:
        run(self._folder, "predict", "run", *files(name), "--out=scores.csv")


class Apart:
    """Each party in a process of its own, connected by mutual TLS."""

    scheme = "https"

    def __init__(self, folder: Path) -> None:
        self._folder, self._certificates = folder, folder / "certificates"
        write_certificates(self._certificates, ["lead", "bank"])
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._address = f"127.0.0.1:{free.getsockname()[1]}"
        self.tls = Credentials.read(self._certificates, "bank").client_context()
        self.tls.check_hostname = False
        job = yaml.safe_load((folder / "job.yaml").read_text())
        held = job["task"]["tables"]["files"]
        for party in held:
            job["task"]["tables"]["files"] = {party: held[party]}
            (folder / f"{party}.yaml").write_text(yaml.safe_dump(job))

    def train(self) -> None:
        with started(
            self._folder, ["follower", "bank.yaml", "--out=run-bank", *self._ends("bank")]
        ):
            run(self._folder, "leader", "lead.yaml", "--out=run-lead", *self._ends("lead"))

    @contextmanager
    def service(self, name: str) -> Iterator[subprocess.Popen[str]]:
        lead, bank = (["serve-predictions", *self._of(party, name)] for party in ("lead", "bank"))
        with (
            started(self._folder, bank),
            started(self._folder, [*lead, "--http=127.0.0.1:0"]) as service,
        ):
            yield service

    def predict(self, name: str) -> None:
        with started(self._folder, ["predict", *self._of("bank", name)]):
            run(self._folder, "predict", *self._of("lead", name), "--out=scores.csv")

    def _of(self, party: str, name: str) -> list[str]:
        bundle = f"run-{party}/{party}/bundle"
        return [bundle, f"--data={name}{party}.csv", *self._ends(party)]

    def _ends(self, party: str) -> list[str]:
        option = "--listen" if party == "lead" else "--connect"
        return [f"{option}={self._address}", f"--tls={self._certificates / party}"]


def run(folder: Path, *command: str) -> None:
    subprocess.run([*FEDVEIL, *command], cwd=folder, check=True, stdout=subprocess.DEVNULL)


@contextmanager
def started(folder: Path, command: list[str]) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [*FEDVEIL, *command], cwd=folder, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
            process.wait(0 if "serve-predictions" in command else 60)
        except subprocess.TimeoutExpired:
            pass
        finally:
            process.terminate()


def times_ms(parties: Together | Apart, rows: int) -> np.ndarray:
    with parties.service("one-") as service:
        assert service.stdout is not None
        found = None
        while found is None:
            found = re.search(r":([0-9]+)/predict", service.stdout.readline())
        client = connection(parties, int(found[1]))
        taken = []
        for at in range(rows):
            began = time.perf_counter()
            client.request("POST", "/predict", json.dumps({"id": str(TRAINED + at)}))
            answer = client.getresponse()
            assert answer.status == 200, answer.read()
            answer.read()
            taken.append(1000 * (time.perf_counter() - began))
    return np.array(taken)


def connection(parties: Together | Apart, port: int) -> http.client.HTTPConnection:
    if parties.tls is None:
        return http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    return http.client.HTTPSConnection("127.0.0.1", port, timeout=60, context=parties.tls)


def figures(rows: int, many: int, apart: bool) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "job.yaml").write_text(JOB)
        write(folder, "", TRAINED, 0, labels=True)
        write(folder, "one-", rows, TRAINED, labels=False)
        write(folder, "many-", many, 10 * TRAINED, labels=False)
        parties = Apart(folder) if apart else Together(folder)
        parties.train()
        taken = times_ms(parties, rows)
        for share in (50, 95, 99):
            most = 50.0 if share == 95 else None
            value = float(np.percentile(taken, share))
            yield Figure(
                f"one id over {parties.scheme}, {share}th percentile of {rows}", value, "ms", most
            )
        began = time.perf_counter()
        parties.predict("many-")
        yield Figure(f"a file of {many:,} rows, start to end", time.perf_counter() - began, "s")
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        yield Figure("  the most memory of a process", used.ru_maxrss / 1024, "MB")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--many", type=int, default=100_000)
    parser.add_argument("--apart", action="store_true", help="a process for each party")
    given = parser.parse_args()
    return show(figures(given.rows, given.many, given.apart))


if __name__ == "__main__":
    sys.exit(main())
