"""Two parties' tables on the layout of Criteo's click data, and a job that trains on them.

    python criteo_tables.py --real train.txt     the rows of Criteo's file, which you must have
    python criteo_tables.py --rows 100000        synthetic rows of its shape, and of nothing else

A row is a click or none, 13 counts and 26 words. The site has the clicks, the counts and 7 columns
of words, its partner the other 19. `--parquet` writes Parquet in place of CSV.
"""

import argparse
import csv
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np

COUNTS = [f"I{number}" for number in range(1, 14)]
WORDS = [f"C{number}" for number in range(1, 27)]
COLUMNS = ["id", "click", *COUNTS, *WORDS]
OWN = {"site": ["id", "click", *COUNTS, *WORDS[:7]], "partner": ["id", *WORDS[7:]]}
#: How many words each column of the real file has; the synthetic one has at most MOST.
KNOWN = [1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27,
         14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572]  # fmt: skip
MOST = 100_000
PLACES = 10_000
_AT_ONCE = 20_000


def synthetic_criteo(rows: int, seed: int = 0) -> Iterator[list[str]]:
    """Rows of the file's shape: long-tailed counts and words, some missing, a quarter clicks."""
    draw = np.random.default_rng(seed)
    effects = [draw.normal(0, 0.4, min(known, MOST)) for known in KNOWN]
    for start in range(0, rows, _AT_ONCE):
        size = min(_AT_ONCE, rows - start)
        counts = draw.lognormal(1, 1.5, (size, len(COUNTS))).astype(np.int64)
        words = [(len(own) * draw.random(size) ** 4).astype(np.int64) for own in effects]
        score = sum(own[word] for own, word in zip(effects, words, strict=True)) - 1.5
        score += 0.3 * (np.log1p(counts[:, :4]).sum(axis=1) - 6)
        clicks = draw.random(size) < 1 / (1 + np.exp(-score))
        missing = draw.random((size, len(COUNTS))) < 0.1
        told = np.where(missing, "", counts.astype(np.str_))
        named = np.array([[f"{c:02x}{w:06x}" for w in word] for c, word in enumerate(words)]).T
        for row in range(size):
            yield [f"R{start + row}", str(int(clicks[row])), *told[row], *named[row]]


def real_criteo(path: Path, rows: int) -> Iterator[list[str]]:
    """The first rows of Criteo's file, numbered: tabs between cells, no header."""
    with path.open(encoding="utf-8", newline="") as file:
        for number, cells in enumerate(islice(csv.reader(file, delimiter="\t"), rows)):
            yield [f"R{number}", *cells]


def write_tables(rows: Iterable[list[str]], folder: Path, prefix: str, parquet: bool) -> None:
    """Each party's columns of the rows, a piece of them at a time."""
    places = {party: [COLUMNS.index(name) for name in own] for party, own in OWN.items()}
    begun = {}
    rows = iter(rows)
    while chunk := list(islice(rows, _AT_ONCE)):
        for party, own in OWN.items():
            path = folder / f"{prefix}-{party}.{'parquet' if parquet else 'csv'}"
            cells = [[row[at] for at in places[party]] for row in chunk]
            write = _parquet if parquet else _csv
            begun[party] = write(path, own, cells, begun.get(party))
    for file in begun.values():
        file.close()


def _csv(path: Path, names: list[str], cells: list[list[str]], file):
    if file is None:
        file = path.open("w", encoding="utf-8", newline="")
        csv.writer(file).writerow(names)
    csv.writer(file).writerows(cells)
    return file


def _parquet(path: Path, names: list[str], cells: list[list[str]], file):
    import pyarrow as pa
    from pyarrow import parquet

    columns = {
        name: pa.array([int(c) if c else None for c in column] if name in COUNTS else column)
        for name, column in zip(names, zip(*cells, strict=True), strict=True)
    }
    table = pa.table(columns)
    file = file or parquet.ParquetWriter(path, table.schema)
    file.write_table(table)
    return file


def job(prefix: str, suffix: str, places: int = PLACES) -> dict:
    """Two parties, every column of words as places in a table of vectors."""
    files = {}
    for party, own in OWN.items():
        categories = {
            name: min(known + 1, places)
            for name, known in zip(WORDS, KNOWN, strict=True)
            if name in own
        }
        file = {"path": f"{prefix}-{party}.{suffix}", "categories": categories, "missing": "mean"}
        files[party] = file | ({"label": "click"} if party == "site" else {})
    tables = {"leader": "site", "owners": ["site", "partner"], "classes": 2, "files": files}
    return {
        "name": prefix,
        "epochs": 1,
        "batch_size": 1024,
        "task": {"name": "tables", "tables": tables},
        "checkpoint": {"every_steps": 1000},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--real", type=Path, help="Criteo's train.txt")
    parser.add_argument("--rows", type=int, help="how many; without it 100,000, or all real ones")
    parser.add_argument("--parquet", action="store_true")
    given = parser.parse_args()
    prefix = "synthetic-criteo" if given.real is None else "criteo"
    if given.real is None:
        rows = synthetic_criteo(given.rows or 100_000)
    else:
        rows = real_criteo(given.real, given.rows)
    write_tables(rows, Path(), prefix, given.parquet)
    import yaml

    made = job(prefix, "parquet" if given.parquet else "csv")
    Path(f"{prefix}.yaml").write_text(yaml.safe_dump(made, sort_keys=False))
    print(f"fedveil vertical run {prefix}.yaml")


if __name__ == "__main__":
    main()
