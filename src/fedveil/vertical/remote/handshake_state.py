"""A party's position in the handshake: what it brings, and what it holds to afterwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from fedveil.vertical.remote.found_examples import FoundExamples
from fedveil.vertical.rows import Ids
from fedveil.vertical.task import SUBSETS, Subset


@dataclass(frozen=True, eq=False)
class Standing:
    """What a party brings: its copy of what must agree, its examples' ids, the steps it holds.

    `run` is the identity of the run that its folder holds; empty where that is still to come.
    `examples` are those that it remembers, of these ids. Of another party it takes at most
    `most_ids` ids, which are as many guesses at its own, in all attempts together to find the
    intersection: `brought` counts them, and `keep_brought` saves the count before any is answered.
    Fewer than `least_common` examples in an intersection are refused; with 0 a leader
    without ids may use all of them.
    """

    party: str
    job: Mapping[str, Any]
    parts: Mapping[str, Any]
    ids: Mapping[Subset, Ids]
    steps: tuple[int, ...] = (0,)
    run: bytes = b""
    align_by: Literal["intersection", "digests"] = "intersection"
    most_ids: int = 10_000_000
    examples: FoundExamples | None = None
    brought: dict[str, int] = field(default_factory=dict)
    keep_brought: Callable[[], None] = lambda: None
    least_common: int = 1

    @property
    def counts(self) -> dict[str, int]:
        """How many ids of every subset, as messages say it."""
        return {f"ids_{subset}": len(self.ids[subset]) for subset in SUBSETS}

    def known_by(self, name: bytes) -> FoundExamples | None:
        """The examples that it remembers by that name."""
        return self.examples if self.examples is not None and self.examples.name == name else None


@dataclass(frozen=True, eq=False)
class Agreement:
    """What all parties hold to: the run, what for, the step, and this party's rows in order."""

    run: bytes
    purpose: str
    step: int
    order_seed: int
    examples: FoundExamples
    notes: tuple[str, ...]

    def same_examples(self, other: Agreement) -> bool:
        mine, others = self.examples.positions, other.examples.positions
        return all(np.array_equal(mine[subset], others[subset]) for subset in SUBSETS)
