"""Time to answer for one id over HTTP, and to score a whole file.

    python benchmarks/serve_predictions.py [--rows 2000]      two minutes

Two parties have six numbers and a column of words, and train for two epochs under EmbeddingDP. The
service runs in a process of its own, with all parties, on loopback. One client asks for one id
after another on one connection, each for the first time. Then a file of 100,000 rows is scored.
"""

from __future__ import annotations

import argparse
import csv
import http.client
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from figures import Figure, show

FEDVEIL = (sys.executable, "-m", "fedveil", "vertical")
TRAINED, MANY = 3000, 100_000
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


def times_ms(folder: Path, rows: int) -> np.ndarray:
    command = [
        *FEDVEIL,
        "serve-predictions",
        "run",
        *files("one-"),
        "--http=127.0.0.1:0",
        "--insecure",
    ]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as service:
        assert service.stdout is not None
        found = re.search(r":([0-9]+)/predict", service.stdout.readline())
        assert found is not None
        client = http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=60)
        taken = []
        for at in range(rows):
            began = time.perf_counter()
            client.request("POST", "/predict", json.dumps({"id": str(TRAINED + at)}))
            answer = client.getresponse()
            assert answer.status == 200, answer.read()
            answer.read()
            taken.append(1000 * (time.perf_counter() - began))
        service.terminate()
    return np.array(taken)


def figures(rows: int) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "job.yaml").write_text(JOB)
        write(folder, "", TRAINED, 0, labels=True)
        write(folder, "one-", rows, TRAINED, labels=False)
        write(folder, "many-", MANY, 10 * TRAINED, labels=False)
        subprocess.run(
            [*FEDVEIL, "run", "job.yaml", "--out=run"], cwd=folder, check=True, stdout=-3
        )
        taken = times_ms(folder, rows)
        for share in (50, 95, 99):
            most = 50.0 if share == 95 else None
            value = float(np.percentile(taken, share))
            yield Figure(f"one id over HTTP, {share}th percentile of {rows}", value, "ms", most)
        began = time.perf_counter()
        command = [*FEDVEIL, "predict", "run", *files("many-"), "--out=scores.csv"]
        subprocess.run(command, cwd=folder, check=True, stdout=-3)
        yield Figure(f"a file of {MANY:,} rows, start to end", time.perf_counter() - began, "s")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2000)
    return show(figures(parser.parse_args().rows))


if __name__ == "__main__":
    sys.exit(main())
