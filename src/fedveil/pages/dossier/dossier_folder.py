"""Writes the dossier of a run's privacy guarantees: a page, a record and a script.

`record.json` has the run's accounts and statements. The script recomputes the accounts' epsilons.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedveil.base.files import write_whole
from fedveil.errors import RunFolderError
from fedveil.pages.dossier.account import Account, Evidence, read_evidence
from fedveil.pages.dossier.registry import registry_record
from fedveil.pages.dossier.statements import Statement, shown, statements
from fedveil.pages.guarantee_text import attackers, from_seed
from fedveil.pages.page import Code, Fact, Page, Part, Points, Section
from fedveil.pages.run_summary import PROMISED, TONES
from fedveil.pages.table import Table
from fedveil.pages.vertical_page import accounts_of, is_apart, leader_of
from fedveil.pages.vertical_summary import vertical_ending
from fedveil.privacy.guarantee_strength import Figure
from fedveil.record.run_folder import explained, make_folder

PAGE, RECORD, SCRIPT = "dossier.html", "record.json", "recompute.py"


@dataclass(frozen=True)
class Dossier:
    """The evidence of a run, and the statements derived from it."""

    evidence: Evidence
    statements: list[Statement]

    @classmethod
    def of(cls, run: Path) -> Dossier:
        """Read the records of the run in the folder `run`, and derive statements on its privacy.

        Returns both as a dossier, and writes no files. Raises `RunFolderError` if the folder is
        damaged or was edited.
        """
        evidence = read_evidence(run)
        return cls(evidence, statements(evidence))

    def write(self, folder: Path) -> Iterator[Path]:
        """Write the dossier's files to `folder`, and yield their paths."""
        yield from write_dossier(
            folder, self.page(), registry_record(self.evidence, self.statements)
        )

    def page(self) -> Page:
        stated = [s for s in self.statements if s.lines]
        empty = [f"{s.title}: {s.missing}." for s in self.statements if not s.lines]
        sections = [Section(s.title, [Points(s.lines)]) for s in stated]
        sections += [Section("Not stated", [Points(empty)])] if empty else []
        digests = [[name, digest] for name, digest in self.evidence.files.items()]
        parts = [
            *recompute_parts(self.evidence.accounts),
            Table(["file of the run", "SHA-256"], digests),
        ]
        sections += [Section("Recompute the epsilons", parts)]
        lead = (
            "The answers to what NIST SP 800-226 asks of a claim of differential privacy, from the "
            "records of this run. This page is evidence for a review, and no verdict."
        )
        return Page(f"Dossier of {self.evidence.run.name}", [lead, self._fact()], sections)

    def _fact(self) -> Fact:
        run, parties = self.evidence.run, self.evidence.parties
        if self.evidence.vertical:
            lines, apart = accounts_of(parties), is_apart(parties)
            return vertical_ending(run, leader_of(run, parties), lines, apart=apart).promise
        (found,) = self.evidence.accounts
        figure = Figure(found.epsilon, found.delta)
        against = assumes = ""
        if found.epsilon < math.inf:
            against, assumes = attackers(run.job), from_seed([run.last])
        covers = f"{found.of}, against {against}" if against else found.of
        text = f"For {covers}. {assumes}".rstrip()
        return Fact(PROMISED, str(figure), text, TONES[figure.promise])


def write_dossier(folder: Path, page: Page, record: Mapping[str, Any]) -> Iterator[Path]:
    """Write `page`, `record` and the recomputing script to `folder`. Yield the files' paths."""
    if folder.exists() and not folder.is_dir():
        raise RunFolderError(f"{folder} is a file. Name a folder, such as dossier")
    make_folder(folder)
    contents = {
        PAGE: page.html(),
        RECORD: json.dumps(record, indent=1, allow_nan=False) + "\n",
        SCRIPT: (files(__package__) / SCRIPT).read_text("utf-8"),
    }
    for name, text in contents.items():
        with explained(folder):
            write_whole(folder / name, text.encode(errors="backslashreplace"))
        yield folder / name


def recompute_parts(accounts: Sequence[Account]) -> list[Part]:
    """Return page parts that explain how to recompute the epsilons of `accounts`."""
    rows = [
        [a.of, *shown(a), ", ".join(dict.fromkeys(r["law"] for r in a.releases)) or "none"]
        for a in accounts
    ]
    return [
        "The script composes the releases in the record with dp-accounting. It does not use "
        "fedveil. It checks the composition. It cannot check that the noise was drawn.",
        Code("pip install dp-accounting\npython recompute.py record.json"),
        Table(["for", "epsilon", "delta", "mechanisms"], rows),
    ]
