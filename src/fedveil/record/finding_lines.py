"""Saves the findings of attacks in a run's folder, as lines of JSON."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from fedveil.base.untrusted import MALFORMED, MOST_LINES_BYTES, read_bytes, read_text
from fedveil.errors import ClaimRefuted, MessageInvalid
from fedveil.privacy.finding import Finding, Measured
from fedveil.record.recorder import read_line, revived, strict
from fedveil.record.run_folder import RunFolder, explained
from fedveil.record.sealed_message import intact

FINDINGS = "attacks.jsonl"


def add_finding(folder: RunFolder, finding: Finding) -> None:
    """Append a finding to the file `FINDINGS` in `folder`, unless the file already contains it.

    An incomplete last line of the file is removed.
    """
    path = folder.path / FINDINGS
    with explained(folder.path):
        old = read_bytes(path, MOST_LINES_BYTES) if path.exists() else b""
    whole = old[: old.rfind(b"\n") + 1]
    line = json.dumps(strict(dataclasses.asdict(finding)), allow_nan=False) + "\n"
    if line.encode() not in whole.splitlines(keepends=True):
        folder.write_atomically(FINDINGS, whole + line.encode())


def as_data(finding: Finding) -> dict[str, Any]:
    """Return a finding as plain data: its fields, and three results that are computed from them.

    `excesses` has the names of the lower bounds on epsilon that are above the claimed epsilon.
    `refutes` is True if there are any. `not_seen` has a phrase for each lower bound: the largest
    true epsilon at which the attack would probably not refute the claim (`Finding.unseen`). It
    leaves out bounds with an infinite claim, and bounds for which this epsilon is unknown.
    """
    excesses = [figure.name for figure in finding.excesses]
    own = {"refutes": finding.refutes, "excesses": excesses, "not_seen": list(finding.unseen)}
    return {**dataclasses.asdict(finding), **own}


def raise_if_refuted(findings: Sequence[Finding]) -> None:
    """Raise `ClaimRefuted` if any lower bound in `findings` is above its claim."""
    failed = [finding for finding in findings if finding.refutes]
    if failed:
        raise ClaimRefuted(
            f"{len(failed)} of {len(findings)} findings refute the protection's guarantee: "
            f"{'; '.join(finding.refutation for finding in failed)}"
        )


def read_findings(path: Path) -> list[Finding]:
    """Return the findings in the run's folder `path`, or an empty list if no attack was run.

    Raises `RunFolderError` if the file cannot be read, or if a line is not a finding.
    """
    file = path / FINDINGS
    if not file.exists():
        return []
    with intact(file):
        lines = read_text(file, MOST_LINES_BYTES).splitlines()
        return [_finding(number, line) for number, line in enumerate(lines, 1)]


def _finding(number: int, line: str) -> Finding:
    try:
        fields = read_line(line)
        figures = [Measured(**_numbers(figure)) for figure in fields.pop("figures")]
        finding = Finding(figures=figures, **_numbers(fields))
        _types().validate_json(json.dumps(dataclasses.asdict(finding)), strict=True)
        return finding
    except MALFORMED:  # whose texts are about Python
        raise MessageInvalid(f"line {number} is no finding: it was edited or cut off") from None


@functools.cache
def _types() -> TypeAdapter[Finding]:
    return TypeAdapter(Finding)


def _numbers(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: revived(value) for name, value in fields.items()}
