"""A small trained run of own tables, its bundles, and files of new rows."""

from __future__ import annotations

import csv
import functools
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from fedveil.link.channel import Exchange, drive_together
from fedveil.link.tls import Credentials
from fedveil.record.run_folder import RunFolder
from fedveil.vertical import VerticalJob, train
from fedveil.vertical.bundle import Bundle, write_manifest
from fedveil.vertical.scoring import row_alignment
from fedveil.vertical.scoring.scorer import Scorer
from fedveil.vertical.scoring.sources import Together
from fedveil.vertical.signatures import Signatures, sign
from lying_side import Change, lying_side

PARTIES = ("lead", "bank")
ROWS, NEW = 190, 113
#: Ids of new rows that only the bank has, and only the leader has.
BANKS, LEADERS = 5, 7


def write_table(path: Path, columns: Mapping[str, Any]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(columns)
        lines.writerows(zip(*columns.values(), strict=True))


def columns_of(count: int, first: int, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the leader's and the bank's columns of `count` customers."""
    draw = np.random.default_rng(seed)
    ids = [f"c{first + n}" for n in range(count)]
    x, z = draw.normal(size=(count, 2)).round(4), draw.normal(size=(count, 2)).round(4)
    kind = draw.choice(["red", "blue", "green"], count)
    label = (x[:, 0] + z[:, 0] + (kind == "red") + draw.logistic(size=count) > 0.8).astype(int)
    lead = {"id": ids, "x0": x[:, 0], "x1": x[:, 1], "bad": np.where(label, "yes", "no")}
    order = draw.permutation(count)
    bank = {"key": np.array(ids)[order], "z0": z[order, 0], "z1": z[order, 1], "kind": kind[order]}
    return lead, bank


def job_of(folder: Path, **settings: Any) -> VerticalJob:
    files = {
        "lead": {"path": str(folder / "lead.csv"), "label": "bad"},
        "bank": {
            "path": str(folder / "bank.csv"),
            "id": "key",
            "categories": {"kind": 5},
            "missing": "mean",
        },
    }
    tables = {"leader": "lead", "owners": ["lead", "bank"], "files": files, "width": 5, "scores": 3}
    scoring = {"calibration": 0.25}
    base = {"epochs": 2, "batch_size": 40, "scoring": scoring}
    base["task"] = {"name": "tables", "tables": tables}
    return VerticalJob.model_validate(base | settings)


#: The folders of `_trained`. Each is deleted when the process ends.
_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []


@functools.cache
def _trained(eps: float | None, limit: float | None) -> Path:
    _FOLDERS.append(tempfile.TemporaryDirectory(prefix="fedveil-scoring-"))
    folder = Path(_FOLDERS[-1].name)
    lead, bank = columns_of(ROWS, 0, 3)
    write_table(folder / "lead.csv", lead)
    write_table(folder / "bank.csv", bank)
    lead, bank = columns_of(NEW, 1000, 8)
    write_table(folder / "new-lead.csv", {n: c[:-BANKS] for n, c in lead.items() if n != "bad"})
    mine = [at for at, one in enumerate(bank["key"]) if int(one[1:]) >= 1000 + LEADERS]
    write_table(folder / "new-bank.csv", {n: c[mine] for n, c in bank.items()})
    privacy = {
        "embedding_dp": None if eps is None else {"eps": eps},
        "max_epsilon": limit,
        "delta": 0.0,
    }
    train(job_of(folder, privacy=privacy), folder / "run")
    return folder


def trained(tmp_path: Path, eps: float | None = None, limit: float | None = None) -> Path:
    """Return a new copy of a trained run's folder, with the tables beside it."""
    folder = tmp_path / "trained"
    shutil.copytree(_trained(eps, limit), folder)
    return folder


def scorers(folder: Path, stack: ExitStack, **files: str) -> dict[str, Scorer]:
    """Return both parties, with the new rows of `folder` unless `files` has other files."""
    return {
        party: Scorer(
            folder / "run" / party / "bundle",
            files.get(party, str(folder / f"new-{party}.csv")),
            stack,
        )
        for party in ("lead", "bank")
    }


def together(folder: Path, stack: ExitStack, **files: str) -> Together:
    return Together(list(scorers(folder, stack, **files).values()), encoded=True)


def lead_once(scorer: Scorer, rows: list[list[int]]) -> Exchange[list[Any]]:
    """Align as the leader, ask for the common rows at each of the positions, and finish."""
    scorer.use((yield from row_alignment.lead(scorer, 1)))
    found = []
    for positions in rows:
        found.append((yield from scorer.ask(np.array(positions, np.int64))))
    yield from scorer.finish()
    return found


def follow_once(scorer: Scorer) -> Exchange[None]:
    scorer.use((yield from row_alignment.follow(scorer)))
    yield from scorer.answer()


def played(
    both: Mapping[str, Scorer],
    rows: list[list[int]],
    lead: Mapping[str, Change] | None = None,
    bank: Mapping[str, Change] | None = None,
) -> list[Any]:
    """Play a session, in which a party changes its messages. Returns the leader's scores."""
    exchanges = {
        "lead": lying_side(lead_once(both["lead"], rows), lead or {}),
        "bank": lying_side(follow_once(both["bank"]), bank or {}),
    }
    return drive_together(exchanges, encoded=True)["lead"]


def signed(folder: Path, keys: dict[str, Credentials], **by: str) -> dict[str, Path]:
    """Sign the bundles of a run, each party's with its own key unless `by` names another."""
    paths = {party: folder / "run" / party / "bundle" for party in PARTIES}
    manifest = Bundle.read(paths["lead"]).manifest
    data = manifest.written()
    made = {party: sign(keys[by.get(party, party)], data) for party in PARTIES}
    for path in paths.values():
        opened = RunFolder.reopen(path)
        write_manifest(opened, manifest, Signatures(made))
        opened.close()
    return paths
