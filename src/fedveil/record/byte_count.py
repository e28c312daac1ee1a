"""Formats byte counts for people."""

from __future__ import annotations

#: The units and their sizes, from the smallest to the largest.
UNITS = (("B", 1.0), ("KB", 1e3), ("MB", 1e6), ("GB", 1e9))


def shown_bytes(count: float) -> str:
    """Format a number of bytes, such as "40.5 GB" or "40 MB"."""
    for unit, size in UNITS:
        text = f"{count / size:.0f}" if unit == "B" else f"{count / size:.1f}".removesuffix(".0")
        if float(text) < 1000:
            break
    return f"{text} {unit}"
