"""The file with a party's secret seed."""

from __future__ import annotations

from pathlib import Path

from fedveil.base.untrusted import MOST_KEY_BYTES, read_bytes
from fedveil.errors import InvalidValue
from fedveil.record.sealed_message import intact

SEED_BYTES = 16


def kept_seed(path: Path) -> int | None:
    """Read a seed from `path`. Returns None if there is no such file."""
    if not path.exists():
        return None
    with intact(path):
        raw = read_bytes(path, MOST_KEY_BYTES)
        if len(raw) != SEED_BYTES:
            raise InvalidValue(f"it has {len(raw)} bytes")
    return int.from_bytes(raw, "little")
