"""Counts how often each example was sent to be scored, and limits the example's privacy cost.

A digest of an example's id is saved in the bundle before each sending, so a restarted process
continues the count. An id that occurs in several files is one example.

A copy of the bundle has counts of its own, so a limit holds only if a party uses one copy.

The bundle says how often the run had sent each example when the bundle was written. If the bundle
is still in the run's folder, later evaluations of the run are counted too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from fedveil.base.array_types import row_values
from fedveil.base.files import append_synced, open_to_append
from fedveil.base.message import take_array
from fedveil.base.quantity import quantity
from fedveil.base.untrusted import MOST_STATE_BYTES, read_bytes
from fedveil.errors import LimitReached
from fedveil.privacy.ledger import Line
from fedveil.record.account_lines import UNPROTECTED
from fedveil.record.run_folder import RunFolder, explained
from fedveil.record.sealed_message import intact, unsealed
from fedveil.vertical.account import looks_begun
from fedveil.vertical.bundle import DIGEST_BYTES, SCORED, SENT, id_digests, looked_up, scored_times
from fedveil.vertical.epsilon_limit import Limit
from fedveil.vertical.own_data import sends_unprotected
from fedveil.vertical.rows import Ids, Positions
from fedveil.vertical.split import SplitModel

_Keys = npt.NDArray[np.bytes_]
_Sent = tuple[_Keys, npt.NDArray[np.int64]]


class ScoredExamples:
    """Counts how often each example of a party was sent, in training and to be scored."""

    def __init__(
        self, bundle: RunFolder, state: RunFolder, split: SplitModel, party: str, limit: Limit
    ) -> None:
        self._split, self._party, self._limit = split, party, limit
        self._sends = any(crossing.sender == party for crossing in split.crossings)
        self._run = bundle.path.parent
        self._trained, self._held_out = _sent_before(bundle)
        self._known, self._counts = scored_times(bundle.path)
        self._path = state.path / SCORED
        self._file = open_to_append(self._path)
        self._file.truncate(int(self._counts.sum()) * DIGEST_BYTES)  # cuts an incomplete digest off
        self._own = row_values(np.zeros((0, DIGEST_BYTES), np.uint8))
        self._scored = np.zeros(0, np.int64)

    def load(self, ids: Ids) -> None:
        """Set the ids of the rows to score. Positions in later calls are positions in `ids`."""
        if not self._sends:
            return
        self._merge()
        self._own = row_values(id_digests(ids))
        self._scored = looked_up(self._own, self._known, self._counts)

    def allowed(self, positions: Positions) -> npt.NDArray[np.bool_]:
        """Return a mask of the `positions`: True if the example may be sent once more.

        An example may be sent if its privacy cost then stays within the party's limit.
        """
        return self._within_limit(positions, 1)

    def charge(self, positions: Positions) -> None:
        """Count the examples at the distinct `positions` as sent. Call it before they are sent.

        Raises LimitReached if the cost of an example is then above the limit. This can happen if
        another process begins to evaluate the same example after `allowed` was called. Each process
        counts before it compares with the limit, so two processes cannot exceed the limit together.
        """
        if not self._sends:
            return
        with explained(self._path):
            append_synced(self._file, self._own[positions].tobytes())
        self._scored[positions] += 1
        if not self._within_limit(positions, 0).all():
            raise LimitReached(
                f"another evaluation of {self._party} began, and privacy.max_epsilon allows no "
                "scoring of the same rows beside it"
            )

    def _within_limit(self, positions: Positions, more: int) -> npt.NDArray[np.bool_]:
        """Return a mask of the `positions`: True if the limit allows `more` further scorings."""
        if not self._sends:
            return np.ones(len(positions), bool)
        times, has_label = self._sent(self._own[positions])
        states = np.stack([times, has_label, self._scored[positions] + more])
        found, which = np.unique(states, axis=1, return_inverse=True)
        allows = [
            self._limit.allows(int(times), labelled=bool(label), scored=int(scored))
            for times, label, scored in found.T
        ]
        return np.array(allows, bool)[which.reshape(-1)]

    def figures(self) -> list[Line]:
        """Return the highest epsilon of all examples scored so far, as a list of one `Line`.

        The epsilon includes what training and evaluations have cost the example. If the party has
        parts that send unprotected values, returns a line for each such part instead, with an
        infinite epsilon. Returns [] if nothing was scored, or if the party sends nothing.
        """
        self._merge()
        if not self._sends or not len(self._known):
            return []
        bare = sends_unprotected(self._split, self._party)
        lines = [Line(math.inf, 0.0, f"a scored example's {name}, {UNPROTECTED}") for name in bare]
        states = np.unique(np.stack([*self._sent(self._known), self._counts]), axis=1).T
        for times, has_label, scored in [] if bare else self._most(states.tolist()):
            figure = self._limit.figure(times, labelled=bool(has_label), scored=scored)
            often, before = quantity(scored, "time"), quantity(times, "time")
            what = f"an example, scored {often} and sent {before} in training and evaluations"
            lines.append(Line(figure.epsilon, figure.delta, what))
        return lines

    def close(self) -> None:
        self._file.close()

    def _sent(self, keys: _Keys) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return how often the run sent each example, and a mask of the training examples.

        `keys` are the digests of the examples' ids. The mask has 1 or 0. If an id is both a
        training and a held-out example, its two counts are added.
        """
        times, labelled = _counts(keys, *self._trained)
        looks, is_held_out = _counts(keys, *self._held_out)
        evaluated = is_held_out * np.maximum(looks, looks_begun(self._run))
        return times + evaluated, labelled

    def _most(self, states: Iterable[list[int]]) -> list[list[int]]:
        """Return the state with the highest epsilon, as a list of one.

        A state is [times sent, 1 for a training example or else 0, times scored].
        """

        def epsilon(state: list[int]) -> float:
            times, label, scored = state
            return self._limit.figure(times, labelled=bool(label), scored=scored).epsilon

        return [max(states, key=epsilon)]

    def _merge(self) -> None:
        others = ~np.isin(self._known, self._own)
        sent = self._scored > 0
        keys = np.concatenate([self._known[others], self._own[sent]])
        counts = np.concatenate([self._counts[others], self._scored[sent]])
        order = np.argsort(keys, kind="stable")
        self._known, self._counts = keys[order], counts[order]


def _sent_before(bundle: RunFolder) -> tuple[_Sent, _Sent]:
    """Read from a bundle the number of times that the run sent each example to other parties.

    Returns two pairs, one of the training examples and one of the held-out examples. A pair has the
    ids' digests in ascending order, and the numbers.
    """
    path = bundle.path / SENT
    with intact(path):
        held = unsealed(read_bytes(path, MOST_STATE_BYTES))
        digests = take_array(held, "ids", np.uint8, (None, DIGEST_BYTES))
        times = take_array(held, "times", np.int64, (len(digests),))
        labelled = take_array(held, "labelled", np.uint8, (len(digests),)) > 0
    keys = row_values(digests)
    order = np.argsort(keys, kind="stable")
    trained, held_out = order[labelled[order]], order[~labelled[order]]
    return (keys[trained], times[trained]), (keys[held_out], times[held_out])


def _counts(
    keys: _Keys, known: _Keys, times: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the count of each key, and a mask of the keys that are in `known`.

    `known` is in ascending order, and known[i] has the count times[i]. The count of a key that is
    not in `known` is 0. The mask is 1 for a key in `known`, otherwise 0.
    """
    return looked_up(keys, known, times), looked_up(keys, known, np.ones(len(known), np.int64))
