"""What a party's crossings have told of every example, and what it adds up to.

Under EmbeddingDP an example pays each time it is sent: once an epoch, once for each look at the
held-out examples, and once more for a step that a killed process had begun and its successor
repeats with fresh randomness. What is drawn from the job's seed is the same when it is repeated,
and costs nothing again. Under `reuse` an example pays once.
"""

from __future__ import annotations

import csv
import hashlib
import io
import math
import os
from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

from fedveil.base.files import open_in_place
from fedveil.base.message import only_fields, take, take_array
from fedveil.base.untrusted import MOST_KEY_BYTES, MOST_STATE_BYTES, read_bytes
from fedveil.base.validate import integer
from fedveil.errors import MessageInvalid, RunFolderError
from fedveil.mechanisms.embedding_dp import EmbeddingDP
from fedveil.privacy.compose import Charge
from fedveil.privacy.ledger import Ledger, Line
from fedveil.privacy.loss import PrivacyLoss
from fedveil.record.run_folder import RunFolder
from fedveil.record.sealed_message import intact, sealed, unsealed
from fedveil.vertical.own_data import of_own_data
from fedveil.vertical.rows import Ids, Order
from fedveil.vertical.split import EmbeddingPrivacy, Part, SplitModel
from fedveil.vertical.task import SUBSETS, Subset

#: The file that says how often each example was sent in training.
SENT = "sent.csv"
_COUNTS = "releases"
_BEGUN = "begun"
#: Nothing is sent more often.
_MOST = 1 << 20


class Releases:
    """How often each example was sent: `train` by position, and how often the held-out ones.

    With `fresh` randomness the counts are on disk before a report leaves, so that a process that
    takes over knows what its killed predecessor may have sent.
    """

    def __init__(self, folder: RunFolder | None, order: Order, *, fresh: bool, epochs: int) -> None:
        self.train = np.zeros(order.count, np.int64)
        self.looks = 0
        self._step = 0
        self._order = order
        self._last = epochs * order.steps
        self._folder = folder if fresh else None
        self._begun: int | None = None

    def restore(self, step: int, looks: int) -> None:
        """Count what was sent when the run goes on after `step` and so many looks."""
        if self._folder is None:
            self.train = self._sent(0, step)
            self.looks = looks
            return
        base, begun_step, begun_looks = self._read(step)
        self.train += self._sent(base, begun_step)
        self.looks = begun_looks

    def examples(self, step: int) -> int:
        """How many examples there are in the steps up to `step`."""
        return int(np.count_nonzero(self._sent(0, step)))

    def table(self, ids: Mapping[Subset, Ids]) -> bytes:
        """How often each example was sent, as CSV; by its place where the party has no ids."""
        held_out = np.full(len(ids["test"]), self.looks)
        text = io.StringIO()
        lines = csv.writer(text)
        lines.writerow(["subset", "id", "times"])
        for subset, times in zip(SUBSETS, (self.train, held_out), strict=True):
            names = ids[subset] if len(ids[subset]) else np.arange(len(times))
            rows = zip(names.tolist(), times.tolist(), strict=True)
            lines.writerows((subset, *row) for row in rows)
        return text.getvalue().encode()

    def settle(self, step: int) -> None:
        """Write down what was restored."""
        if self._folder is None:
            return
        self._folder.write_atomically(_COUNTS, sealed({"step": step, "train": self.train}))
        self._step = step
        self._note()

    def begin_step(self, step: int, positions: npt.NDArray[np.int64]) -> None:
        """Count the examples of a step as sent, before they are."""
        self.train[positions] += 1
        self._step = step
        self._note()

    def begin_look(self) -> None:
        """Count the held-out examples as sent, before they are."""
        self.looks += 1
        self._note()

    def close(self) -> None:
        if self._begun is not None:
            os.close(self._begun)
            self._begun = None

    def _sent(self, after: int, step: int) -> npt.NDArray[np.int64]:
        """How often each example was in the steps up to `step` that come after `after`."""
        counts = np.zeros(self._order.count, np.int64)
        while after < step:
            if after % self._order.steps == 0 and step - after >= self._order.steps:
                counts += 1
                after += self._order.steps
            else:
                after += 1
                counts[self._order.of_step(after)] += 1
        return counts

    def _note(self) -> None:
        """Write down what has begun: a few bytes that outlive the process, not the machine."""
        if self._folder is None:
            return
        if self._begun is None:
            path = self._folder.path / _BEGUN
            self._begun = open_in_place(path, os.O_WRONLY | os.O_CREAT)
        os.pwrite(self._begun, _noted(self._step, self.looks), 0)

    def _read(self, done: int) -> tuple[int, int, int]:
        """The step up to which the file counts, and the last step and look that were begun.

        A run that has `done` steps has both files.
        """
        assert self._folder is not None
        counts, begun = self._folder.path / _COUNTS, self._folder.path / _BEGUN
        missing = [path for path in (counts, begun) if not path.exists()]
        if missing and done:
            raise RunFolderError(f"{missing[0]} is missing: it says what was sent")
        if missing:
            return 0, 0, 0
        with intact(counts):
            fields = unsealed(read_bytes(counts, MOST_STATE_BYTES))
            only_fields(fields, "step", "train")
            base = integer("step", take(fields, "step", int), 0, self._last)
            self.train = take_array(fields, "train", np.int64, self.train.shape).copy()
            integer("train", int(self.train.min(initial=0)), 0)
            integer("train", int(self.train.max(initial=0)), 0, _MOST)
        with intact(begun):
            noted = read_bytes(begun, MOST_KEY_BYTES)
            step, looks = np.frombuffer(noted[:16], "<i8").tolist()
            if noted != _noted(step, looks):
                raise MessageInvalid("its digest does not match")
            return base, integer("step", step, 0, self._last), integer("looks", looks, 0, _MOST)


def _noted(step: int, looks: int) -> bytes:
    """Two numbers, and a few bytes of their digest."""
    data = np.array([step, looks], "<i8").tobytes()
    return data + hashlib.sha256(data).digest()[:8]


def ledger_of(
    split: SplitModel, party: str, releases: Releases, label: PrivacyLoss | None
) -> Ledger:
    """The account of every example: the trained ones by position, the held-out one behind them.

    Each of its rounds is one time that an example was sent; all held-out examples were sent
    equally often and stand as one.
    """
    ledger = Ledger()
    times = np.append(releases.train, releases.looks)
    most = int(times.max(initial=0))
    for number in range(most):
        spent = repeated_spending(split, party, first=number == 0)
        if spent:
            ledger.record_many(spent, round=number, clients=np.flatnonzero(times > number))
    if label is not None:
        ledger.record_many([(label, 1)], round=most, clients=range(len(releases.train)))
    return ledger


def repeated_spending(split: SplitModel, party: str, *, first: bool) -> list[Charge]:
    """Return what an example spends when it is sent: under `reuse` only the `first` time."""
    return _charges(
        (part, privacy)
        for part, privacy in _private_parts(split, party)
        if first or not privacy.reuse
    )


def figures(
    split: SplitModel, party: str, releases: Releases, delta: float, label: PrivacyLoss | None
) -> list[Line]:
    """A party's account: a bit, a one-hot row, an example sent once, an example in the run.

    The last is the example that was sent most often. Without privacy on any crossing nothing is
    promised, and nothing is listed. Beside a crossing with privacy, of any party, one without has
    an infinite epsilon: the whole example is promised nothing.
    """
    found = []
    parts = _private_parts(split, party)
    for part, privacy in parts:
        loss = EmbeddingDP(privacy.eps).loss
        values = math.prod(part.output)
        whole = loss.per_vector(values).epsilon
        found += [
            Line(loss.per_bit.epsilon, 0.0, f"a bit of {part.name}"),
            Line(loss.per_row.epsilon, 0.0, f"a one-hot row of {part.name}"),
            Line(whole, 0.0, f"an example's {values} bits of {part.name}, sent once"),
        ]
    if label is not None:
        found.append(Line(label.epsilon, 0.0, "an example's label, in all epochs"))
    bare = _bare_parts(split, party)
    found += [
        Line(math.inf, 0.0, f"an example's values of {name}, sent unprotected") for name in bare
    ]
    if parts or bare:
        most = max(int(releases.train.max(initial=0)), releases.looks)
        epsilon, at = math.inf, 0.0
        if not bare:
            ledger = ledger_of(split, party, releases, None)
            epsilon, at = ledger.figures(delta)["run_most_drawn"]
        often = "once" if most == 1 else f"{most} times"
        found.append(Line(epsilon, at, f"an example in the run, sent {often}"))
    return found


def opening(split: SplitModel, party: str) -> list[str]:
    """What a party says of EmbeddingDP before it sends anything, in the words of the source."""
    found: dict[str, list[str]] = {}
    for part, privacy in _private_parts(split, party):
        noise = "one bit a value and no noise" if privacy.eps is None else f"eps {privacy.eps:f}"
        found.setdefault(noise, []).append(part.name)
    bare = [
        f"The output of {name} leaves {party} without protection."
        for name in _bare_parts(split, party)
    ]
    if len(found) == 1 and not bare:
        return [f"The embedding is protected by EmbeddingDP with {next(iter(found))}."]
    return [
        f"The embedding of {', '.join(parts)} is protected by EmbeddingDP with {noise}."
        for noise, parts in found.items()
    ] + bare


def _bare_parts(split: SplitModel, party: str) -> list[str]:
    """Return the parts of `sends_unprotected`, or none in a run that claims no protection."""
    claims = any(part.privacy is not None for part in split.parts)
    return sends_unprotected(split, party) if claims else []


def sends_unprotected(split: SplitModel, party: str) -> list[str]:
    """Return a party's parts whose output leaves it, is of its own data, and is unprotected."""
    own = of_own_data(split.parts)
    leaves = {crossing.part for crossing in split.crossings if crossing.sender == party}
    return [
        part.name
        for part in split.owned_by(party)
        if part.name in leaves and part.name in own and part.privacy is None
    ]


def _private_parts(split: SplitModel, party: str) -> list[tuple[Part, EmbeddingPrivacy]]:
    """A party's parts whose output leaves it under EmbeddingDP."""
    return [(part, part.privacy) for part in split.owned_by(party) if part.privacy is not None]


def _charges(parts: Iterable[tuple[Part, EmbeddingPrivacy]]) -> list[Charge]:
    return [
        charge
        for part, privacy in parts
        for charge in EmbeddingDP(privacy.eps).loss.charges(math.prod(part.output))
    ]
