"""Two parties' tables of a bank's size, end to end: time and memory of each party's process.

    python benchmarks/vertical_tables.py [--rows 1000000] [--parquet]      about ten minutes

Criteo's layout, 40 columns divided between two parties: from $FEDVEIL_DATA/criteo/train.txt if it
exists, otherwise from a generator of its shape, `examples/vertical/criteo_tables.py`, whose figures
say nothing about the real data. The parties run the commands of `fedveil vertical` on this machine.
Each reads its table, they intersect their rows (by digests; `benchmarks/alignment.py` measures the
private intersection), train the Wide & Deep model for an epoch and evaluate the held-out rows.
Memory is the peak of a process, including its imports and memory-mapped files.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import yaml

from fedveil.data.data_folders import find
from figures import Figure, show

EXAMPLE = Path(__file__).parents[1] / "examples" / "vertical"
COMMAND = [sys.executable, "-m", "fedveil", "vertical"]
MOST_MB = 1500.0


def start(folder: Path, log: IO[bytes], *words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*COMMAND, *words], cwd=folder, stdout=log, stderr=log)


def address_in(log: Path) -> str:
    """Return the leader's address, once the leader has read its table and logged it."""
    while (found := re.search(r"listens on (\S+)\n", log.read_text())) is None:
        time.sleep(0.5)
    return found[1]


def tables(folder: Path, rows: int, parquet: bool) -> Path:
    """Write the tables to `folder`, and return the path of the job that trains on them."""
    words = [sys.executable, str(EXAMPLE / "criteo_tables.py"), "--rows", str(rows)]
    real = find("criteo", "train.txt")
    words += ["--parquet"] if parquet else []
    words += [] if real is None else ["--real", str(real)]
    subprocess.run(words, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    (job,) = folder.glob("*.yaml")
    made = yaml.safe_load(job.read_text()) | {"alignment": {"by": "digests"}}
    job.write_text(yaml.safe_dump(made))
    return job


def figures(rows: int, parquet: bool, kept: Path | None) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) if kept is None else kept.resolve()
        found = sorted(folder.glob("*.yaml"))
        job = found[0] if found else tables(folder, rows, parquet)
        yield Figure(f"{job.stem}, rows", rows, "")
        logs = {party: folder / f"{party}.log" for party in ("site", "partner")}
        with logs["site"].open("wb") as first, logs["partner"].open("wb") as second:
            lead = (
                "leader",
                job.name,
                "--listen",
                "127.0.0.1:0",
                "--insecure",
                "--out",
                f"{made}/site",
            )
            leading = start(folder, first, *lead)
            follow = (
                "--connect",
                address_in(logs["site"]),
                "--insecure",
                "--out",
                f"{made}/partner",
            )
            following = start(folder, second, "follower", job.name, *follow)
            for party, process in (("partner", following), ("site", leading)):
                _, status, used = os.wait4(process.pid, 0)
                assert status == 0, logs[party].read_text()
                memory = used.ru_maxrss / 1024
                yield Figure(f"{party}: memory", memory, "MB", at_most=MOST_MB)
                yield Figure(f"{party}: processor", used.ru_utime + used.ru_stime, "s")
        for name, value in looked(Path(made, "site/site/metrics.jsonl")).items():
            yield Figure(f"held-out rows: {name}", value, "")


def looked(path: Path) -> dict[str, float]:
    records: list[dict[str, Any]] = [json.loads(line) for line in path.read_text().splitlines()]
    last = next(record for record in reversed(records) if "look" in record)
    return {key[5:]: value for key, value in last.items() if key.startswith("test_")}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--parquet", action="store_true", help="needs pyarrow")
    parser.add_argument("--folder", type=Path, help="a folder with the tables, or for new ones")
    given = parser.parse_args()
    return show(figures(given.rows, given.parquet, given.folder))


if __name__ == "__main__":
    sys.exit(main())
