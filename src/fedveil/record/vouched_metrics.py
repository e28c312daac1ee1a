"""Compares a run's metrics with the checksum in its last checkpoint, without reading the rest.

A checkpoint also has the weights, so reading all of it takes long for a large model.
"""

from __future__ import annotations

import hashlib
import mmap
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fedveil.base.message import decode, take
from fedveil.base.untrusted import MOST_STREAMED_BYTES, opened
from fedveil.errors import MessageInvalid
from fedveil.record.run_folder import CHECKPOINT
from fedveil.record.sealed_message import intact

#: The last field that is read. The fields of a message are in alphabetical order.
_LAST = "metrics_digest"


@dataclass(frozen=True)
class Vouched:
    """The first `size` bytes of the metrics have the SHA-256 `digest`."""

    size: int
    digest: str

    @classmethod
    def by_checkpoint(cls, folder: Path) -> Vouched | None:
        """Read the last checkpoint of a run or party in `folder`. Returns None if it has none.

        Call this before reading the metrics, which may grow. Does not verify the checkpoint itself.
        """
        names = (p.name for p in (folder / CHECKPOINT).glob("*"))
        saved = sorted(name for name in names if re.fullmatch("latest|[0-9]{9}", name))
        if not saved:
            return None
        path = folder / CHECKPOINT / saved[-1]
        with intact(path), suppress(FileNotFoundError):  # a run that goes back removes later steps
            return cls._read(path)
        return None

    @classmethod
    def _read(cls, path: Path) -> Vouched:
        with opened(path, MOST_STREAMED_BYTES) as file:
            if not file.peek(1):
                raise MessageInvalid("it is empty")
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        fields = decode(memoryview(mapped), last=_LAST)
        return cls(take(fields, "metrics_bytes", int), take(fields, _LAST, str))

    def check(self, metrics: bytes, *, growing: bool = False) -> None:
        """Raise `MessageInvalid` if `metrics` are not those of the checkpoint.

        If `growing` is True, they may be older than the checkpoint. A checkpoint from before the
        first record vouches for nothing.
        """
        if self.size and not (growing and len(metrics) < self.size):
            vouched_hash(metrics, self.size, self.digest)


def vouched_hash(metrics: bytes, size: int, digest: str) -> hashlib._Hash:
    """Return the SHA-256 of the first `size` bytes.

    Raises `MessageInvalid` if there are fewer, or if it is not `digest`.
    """
    if len(metrics) < size:
        raise MessageInvalid("it is shorter than its checkpoint says")
    found = hashlib.sha256(metrics[:size])
    if found.hexdigest() != digest:
        raise MessageInvalid("it is not what its checkpoint vouches for")
    return found
