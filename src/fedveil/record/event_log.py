"""A run's event log, and a hash chain that shows whether lines were removed or edited.

    events.log     a time and a sentence on each line
    events.chain   for each of these lines, SHA-256 of the chain's previous line and this line

A user who may write the folder can compute a new chain for an edited log. So at the end of a
session, each party sends its chain's last digest to the others, who write it into their own logs
(`anchor`). If a party then edits its log, the log contradicts what the other parties have written.

Someone who receives a digest could guess the log's lines, and check the guess against the digest.
To prevent this, a random line (`seal`) is appended to a log before its digest is sent.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import accumulate
from pathlib import Path
from typing import IO

from fedveil.base.files import open_to_append, restored_on_failure, write_all
from fedveil.base.quantity import quantity
from fedveil.base.untrusted import MOST_LINES_BYTES, ends_whole, escaped, read_bytes
from fedveil.entropy import Secure
from fedveil.record.sealed_message import intact

CHAIN = "events.chain"
DIGEST_LETTERS = 64
SEAL_BYTES = 16
_START = "0" * DIGEST_LETTERS
_ANCHOR = re.compile(
    r"[0-9T:-]+ the log of (\S+) (?:has [0-9,]+ lines? and )?ends in ([0-9a-f]{64})"
)


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
        self._head = digests[-1].decode("ascii", "replace") if digests else _START
        # A log without a chain is of an earlier version. A killed process may lack the last digest.
        if not digests or len(lines) == len(digests) + 1:
            for line in lines[len(digests) :]:
                self._link(line)

    @property
    def head(self) -> str:
        """The chain's last digest, which depends on all lines."""
        return self._head

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
        self._head = head


def stamped(text: str) -> str:
    """Return a log line: the time and the event `text`. Control characters are replaced."""
    return f"{datetime.now().isoformat(timespec='seconds')} {on_one_line(text)}"


def on_one_line(text: str) -> str:
    """Return the event `text` as a log has it, without the time."""
    return escaped("; ".join(text.splitlines()))


def append_event(path: Path, text: str) -> None:
    """Append the event `text` to the event log `path`, which no process has open."""
    log = EventLog(path)
    try:
        log.append(stamped(text))
    finally:
        log.close()


def seal() -> str:
    """Return a random line for a log. Append it before the digest of the log is sent.

    Without it, someone who guesses all lines could confirm the guess by the digest.
    """
    return f"sealed with {Secure().token(SEAL_BYTES).hex()}"


def anchor(party: str, head: str) -> str:
    """Return a line for another party's log, with `head`, the last digest of `party`'s chain."""
    return f"the log of {party} ends in {head}"


def anchors(path: Path) -> Iterator[tuple[str, str]]:
    """Yield each (party, last digest of its chain) that the event log `path` records (`anchor`)."""
    for line in _lines(path):
        # The whole line, because other lines may quote what a party has sent.
        if found := _ANCHOR.fullmatch(line.decode("utf-8", "replace").rstrip()):
            yield found[1], found[2]


def faults(path: Path, said: Sequence[str] = ()) -> list[str]:
    """Return sentences about lines of the event log `path` that were changed, removed or added.

    `said` has digests that other parties have recorded (`anchors`). Each was the last digest of
    this log's chain when it was sent.
    """
    digests, lines = _digests(path), _lines(path)
    heads = _heads(lines)
    found = []
    if edited := _edited(path, heads, digests):
        found.append(edited)
    elif gone := max(0, len(digests) - len(lines)):
        are = "is" if gone == 1 else "are"
        found.append(f"{path}: {quantity(gone, 'line')} {are} missing at its end")
    elif len(lines) > len(digests):
        found.append(f"{path}, line {len(digests) + 1}: it is not in {_of(path).name}")
    found += [
        f"{path}: another party saw other lines: they ended in {digest}"
        for digest in said
        if digest not in heads
    ]
    return found


def edited(path: Path) -> str:
    """Return a sentence about the first edited line of the event log `path`, or "".

    The log may be growing: a line without a digest, or a digest without a line, is no fault.
    """
    digests = _digests(path)  # first: a line is written before its digest
    return _edited(path, _heads(_lines(path)), digests)


def _edited(path: Path, heads: Sequence[str], digests: Sequence[str]) -> str:
    for at, (head, digest) in enumerate(zip(heads[1:], digests, strict=False), 1):
        if head != digest:
            return f"{path}, line {at}: it was edited, or a line before it was removed"
    return ""


def _heads(lines: Sequence[bytes]) -> list[str]:
    """Return the chain of `lines`: its start, and then the digest of each line."""
    return list(accumulate(lines, _linked, initial=_START))


def _digests(path: Path) -> list[str]:
    saved = _whole_digests(_of(path)).splitlines()
    return [one.decode("ascii", "replace") for one in saved]


def _of(path: Path) -> Path:
    return path.with_name(CHAIN)


def _linked(head: str, line: bytes) -> str:
    return hashlib.sha256(head.encode() + line).hexdigest()


def _lines(path: Path) -> list[bytes]:
    with intact(path):
        return read_bytes(path, MOST_LINES_BYTES).splitlines() if path.exists() else []


def _whole_digests(chain: Path) -> bytes:
    """Return the complete lines of a chain. A full disk may have cut off the last digest."""
    with intact(chain):
        data = read_bytes(chain, MOST_LINES_BYTES) if chain.exists() else b""
    return data[: data.rfind(b"\n") + 1]
