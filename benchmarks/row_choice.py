"""The option `--only` of the benchmarks: it chooses rows of a table by their names."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Iterable


def chosen(
    parser: ArgumentParser,
    names: Iterable[str],
    only: str,
    *,
    anywhere: bool = False,
    option: str = "--only",
) -> list[str]:
    """Return the names that start with `only`, or that contain it if `anywhere` is True.

    If there are none, ends the program with a sentence that has all names. `option` is the option
    whose value is `only`.
    """
    names = list(dict.fromkeys(names))
    found = [name for name in names if (only in name if anywhere else name.startswith(only))]
    if not found:
        how = "contains it" if anywhere else "starts with it"
        listed = ", ".join(map(repr, names))
        parser.error(f"{option} is {only!r}, but no row's name {how}. The rows are {listed}")
    return found
