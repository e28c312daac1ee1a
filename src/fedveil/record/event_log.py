"""A run's event log, and a hash chain that shows whether lines were removed or edited.

    events.log     a time and a sentence on each line
    events.chain   for each of these lines, SHA-256 of the chain's previous line and this line

A user who may write the folder can compute a new chain for an edited log. So at the end of a
session, each party writes the state of the other parties' chains into its own log (`anchor`). If a
party then edits its log, the log contradicts what the other parties have written.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from fedveil.base.files import open_to_append, restored_on_failure, write_all
from fedveil.base.quantity import quantity
from fedveil.base.untrusted import MOST_LINES_BYTES, ends_whole, read_bytes

CHAIN = "events.chain"
DIGEST_LETTERS = 64
_START = "0" * DIGEST_LETTERS
_ANCHOR = re.compile(r" the log of (\S+) has ([0-9,]+) lines? and ends in ([0-9a-f]{64})$")


class EventLog:
    def __init__(self, path: Path) -> None:
        chain = path.with_name(CHAIN)
        lines, whole = _lines(path), _whole_digests(chain)
        digests = whole.splitlines()
        self._log: IO[bytes] = open_to_append(path)
        self._chain: IO[bytes] = open_to_append(chain)
        self._chain.truncate(len(whole))
        if not ends_whole(path, MOST_LINES_BYTES):
            write_all(self._log, b"\n")
        self._count = len(digests)
        self._head = digests[-1].decode("ascii", "replace") if digests else _START
        # A log without a chain is of an earlier version. A killed process may lack the last digest.
        if not digests or len(lines) == len(digests) + 1:
            for line in lines[len(digests) :]:
                self._link(line)

    @property
    def head(self) -> tuple[int, str]:
        return self._count, self._head

    def append(self, line: str) -> None:
        """Append `line` and its digest. If the disk is too full for both, append neither."""
        data = line.encode()
        with restored_on_failure(self._log), restored_on_failure(self._chain):
            write_all(self._log, data + b"\n")
            self._link(data)

    def close(self) -> None:
        self._log.close()
        self._chain.close()

    def _link(self, line: bytes) -> None:
        head = _linked(self._head, line)
        write_all(self._chain, head.encode() + b"\n")
        self._head, self._count = head, self._count + 1


def anchor(party: str, head: tuple[int, str]) -> str:
    """Return a line with the state of `party`'s chain, for the log of another party.

    `head` is this state: the number of lines in the log of `party`, and the chain's last digest.
    """
    return f"the log of {party} has {quantity(head[0], 'line')} and ends in {head[1]}"


def anchors(path: Path) -> Iterator[tuple[str, int, str]]:
    """Yield the states of other parties' chains that the event log `path` records (`anchor`).

    A state is (party, number of lines in its log, last digest of its chain).
    """
    for line in _lines(path):
        if found := _ANCHOR.search(line.decode("utf-8", "replace")):
            yield found[1], int(found[2].replace(",", "")), found[3]


def faults(path: Path, said: Sequence[tuple[int, str]] = ()) -> list[str]:
    """Return sentences about lines of the event log `path` that were changed, removed or added.

    `said` has earlier states of this log that other parties have recorded. A state is (number of
    lines, last digest of the chain).
    """
    lines, saved = _lines(path), _whole_digests(_of(path)).splitlines()
    digests = [one.decode("ascii", "replace") for one in saved]
    head, heads = _START, [_START]
    for line in lines:
        head = _linked(head, line)
        heads.append(head)
    found = []
    wrong = [at for at, (a, b) in enumerate(zip(heads[1:], digests, strict=False), 1) if a != b]
    if wrong:
        found.append(f"{path}, line {wrong[0]}: it was edited, or a line before it was removed")
    elif gone := max(0, len(digests) - len(lines)):
        are = "is" if gone == 1 else "are"
        found.append(f"{path}: {quantity(gone, 'line')} {are} missing at its end")
    elif len(lines) > len(digests):
        found.append(f"{path}, line {len(digests) + 1}: it is not in {_of(path).name}")
    for count, digest in said:
        if count >= len(heads) or heads[count] != digest:
            found.append(
                f"{path}: another party saw other lines: it had {count} then, ending in {digest}"
            )
    return found


def _of(path: Path) -> Path:
    return path.with_name(CHAIN)


def _linked(head: str, line: bytes) -> str:
    return hashlib.sha256(head.encode() + line).hexdigest()


def _lines(path: Path) -> list[bytes]:
    return read_bytes(path, MOST_LINES_BYTES).splitlines() if path.exists() else []


def _whole_digests(chain: Path) -> bytes:
    """Return the complete lines of a chain. A full disk may have cut off the last digest."""
    data = read_bytes(chain, MOST_LINES_BYTES) if chain.exists() else b""
    return data[: data.rfind(b"\n") + 1]
