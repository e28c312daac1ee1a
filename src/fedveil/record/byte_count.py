"""Byte counts as a terminal shows them."""

from __future__ import annotations


def shown_bytes(count: float) -> str:
    """Format a number of bytes, such as "40.5 GB"."""
    for unit in ("B", "KB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
