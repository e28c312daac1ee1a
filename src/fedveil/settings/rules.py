"""Rules between the keys of a job, and advice. All kinds of jobs use this mechanism.

A broken rule is an error, and advice is a warning. Rules and advice are functions that take a job
and return a sentence, or None if the job is fine.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable
from typing import Generic, TypeAlias, TypeVar

from fedveil.settings.allowed import Path

J = TypeVar("J")
Check: TypeAlias = Callable[[J], str | None]


class Rules(Generic[J]):
    """A registry of the checks of one kind of job: rules, which give errors, and advice (warnings).

    A check is a function that takes a job and returns a sentence, or None if the job is fine. It is
    registered with the decorator `rule` or `advised`. `broken` and `advice` run the checks.
    """

    def __init__(self) -> None:
        self._reads: dict[Check[J], tuple[str, ...]] = {}
        self._advised: list[Check[J]] = []

    def rule(self, *reads: str) -> Callable[[Check[J]], Check[J]]:
        """Return a decorator for a rule. The rule is skipped if a key in `reads` is wrong."""

        def register(check: Check[J]) -> Check[J]:
            self._reads[check] = reads
            return check

        return register

    def advised(self, check: Check[J]) -> Check[J]:
        """Register `check`, a function that returns advice, and return it. Used as a decorator."""
        self._advised.append(check)
        return check

    def broken(self, job: J, wrong: Collection[Path]) -> list[str]:
        """Return the sentences of the broken rules. Skips the rules that read a key in `wrong`."""
        places = [".".join(path) + "." for path in wrong]

        def readable(key: str) -> bool:
            return not any(f"{key}.".startswith(p) or p.startswith(f"{key}.") for p in places)

        return _said(job, [r for r, reads in self._reads.items() if all(map(readable, reads))])

    def advice(self, job: J) -> list[str]:
        """Return the sentences of all advice that applies."""
        return _said(job, self._advised)

    def texts(self) -> list[str]:
        """Return each rule's requirement, the first paragraph of its docstring, on one line."""
        paragraphs = (inspect.cleandoc(rule.__doc__ or "").split("\n\n") for rule in self._reads)
        return [" ".join(first.split()) for first, *_ in paragraphs]


def _said(job: J, checks: Iterable[Check[J]]) -> list[str]:
    return [sentence for check in checks if (sentence := check(job))]
