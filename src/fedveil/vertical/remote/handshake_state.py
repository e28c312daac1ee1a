"""A party's state before the handshake, and what the parties have agreed on after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedveil.base.quantity import quantity
from fedveil.errors import ExchangeError, FewCommon
from fedveil.vertical.remote.found_examples import FoundExamples
from fedveil.vertical.rows import Ids
from fedveil.vertical.task import SUBSETS, AlignBy, Subset


@dataclass(frozen=True, eq=False)
class Standing:
    """A party's state before the handshake: its settings, the ids of its examples, its saved steps.

    `run` identifies the run. It is empty at a follower that is not in a run yet. `examples` are the
    common examples of an earlier session, or None. `least_common` is the smallest number of common
    examples that the party accepts. If it is 0 at a follower, a leader that sends no ids may choose
    any of the follower's examples. `id_hint` is advice for this party's user if few ids are common.
    If a leader has an `order_secret`, it draws the order of the common examples from it. Otherwise
    they are in the order of its data, which may be sorted by the labels.

    `align_by` says how the parties find their common examples. An id from another party may be a
    guess, so a party accepts at most `most_ids` ids from each other party. With `align_by` =
    "digests", this limit holds for each handshake. With "intersection", it holds for all handshakes
    together: `brought` has the number of ids that each other party has sent so far, and
    `keep_brought` saves these numbers before this party answers.
    """

    party: str
    job: Mapping[str, Any]
    parts: Mapping[str, Any]
    ids: Mapping[Subset, Ids]
    steps: tuple[int, ...] = (0,)
    run: bytes = b""
    align_by: AlignBy = "intersection"
    most_ids: int = 10_000_000
    examples: FoundExamples | None = None
    brought: dict[str, int] = field(default_factory=dict)
    keep_brought: Callable[[], None] = lambda: None
    least_common: int = 1
    id_hint: str = ""
    order_secret: int | None = None
    #: Raises an error if the leader may not begin a session with the given purpose.
    check: Callable[[str], None] = lambda purpose: None

    @property
    def counts(self) -> dict[str, int]:
        return {f"ids_{subset}": len(self.ids[subset]) for subset in SUBSETS}

    def check_common(self, subset: Subset, many: int) -> None:
        """Raise FewCommon if `many`, a number of common examples, is below `least_common`."""
        if many < self.least_common:
            raise FewCommon(
                f"all parties have only {quantity(many, f'{subset} example')} in common, fewer "
                f"than {self.party}'s alignment.least_common = {self.least_common}"
            )

    def known_by(self, name: bytes) -> FoundExamples | None:
        """Return the saved common examples if `name` is their `FoundExamples.name`, else None."""
        return self.examples if self.examples is not None and self.examples.name == name else None


@dataclass(frozen=True, eq=False)
class Agreement:
    """The result of the handshake. `purpose` says what the session is for, such as "train".

    All parties resume `run` from its saved `step`. `order_seed` determines the order of training.
    `examples` are the common examples, and `notes` are sentences for the log.
    """

    run: bytes
    purpose: str
    step: int
    order_seed: int
    examples: FoundExamples
    notes: tuple[str, ...]

    def same_examples(self, other: Agreement) -> bool:
        mine, others = self.examples.positions, other.examples.positions
        return all(np.array_equal(mine[subset], others[subset]) for subset in SUBSETS)


def last_common_step(saved: Mapping[str, set[int]]) -> int:
    """Return the last step that all parties have saved. `saved` has each party's steps.

    Raises ExchangeError if there is none, as after an older copy of one party's folder was
    restored. The error says which party is behind.
    """
    if common := set.intersection(*saved.values()):
        return max(common)
    last = ", ".join(f"{party} {max(steps, default=0):,}" for party, steps in saved.items())
    raise ExchangeError(
        f"the parties have no saved step in common; the last ones are {last}. Restore the newest "
        f"folder of the party that is behind from a copy, or start every party anew"
    )
