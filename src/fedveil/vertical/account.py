"""Privacy accounting for a party: how often each example was sent, and the resulting epsilon.

EmbeddingDP sends a part's output as bits, each flipped with a known probability. An example is
charged each time its bits are sent. Under `reuse`, its first bits are saved and sent again in later
epochs, so it is charged only once. A step that is repeated with fresh randomness after a crash is
charged again. With randomness from the job's seed, a repetition sends the same bits and costs
nothing.

A charge covers only the bits that are computed from the example itself. If the part of the model
that computes the bits is trained, the example also changes the part's weights. The bits that this
part later sends for other examples then depend on the example too. No charge covers this influence,
so the account states an infinite epsilon for each trained part. It states one more for each part
that reads columns which were computed from several examples, such as numbers that were divided by
the standard deviation of all examples.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedveil.base.files import open_in_place, sync_to_disk
from fedveil.base.message import only_fields, take, take_array
from fedveil.base.untrusted import MOST_KEY_BYTES, MOST_STATE_BYTES, read_bytes
from fedveil.base.validate import integer
from fedveil.errors import MessageInvalid, RunFolderError
from fedveil.mechanisms.embedding_dp import EmbeddingDP
from fedveil.privacy.compose import Charge
from fedveil.privacy.ledger import Ledger, Line
from fedveil.privacy.loss import PrivacyLoss, exactly
from fedveil.record.account_lines import LABEL, OWN_REPORTS, UNPROTECTED, influence
from fedveil.record.run_folder import RunFolder, explained
from fedveil.record.sealed_message import intact, sealed, unsealed
from fedveil.vertical.own_data import (
    fitted_to_examples,
    mixing_batches,
    private_parts,
    sends_unprotected,
    trained_by_examples,
    unprotected_gradients,
)
from fedveil.vertical.rows import Ids, Order
from fedveil.vertical.split import EmbeddingPrivacy, Part, SplitModel
from fedveil.vertical.task import SUBSETS, Subset

_COUNTS = "releases"
_BEGUN = "begun"
#: The largest count that a file may contain.
_MOST = 1 << 20
#: A field of a CSV file with one of these letters is quoted.
_SPECIAL = ',"\r\n'


class Releases:
    """Counts how often a party has sent each of its examples to other parties.

    `train` has one count for each training example, by position. `looks` is the number of
    evaluations, each of which sends every held-out example. `order` has the examples of each step,
    in `epochs` epochs. If `fresh` is True, randomness does not come from a seed, and every count is
    saved in `folder` before its examples are sent.
    """

    def __init__(self, folder: RunFolder | None, order: Order, *, fresh: bool, epochs: int) -> None:
        self.train = np.zeros(order.count, np.int64)
        self.looks = 0
        self._step = self._finished = 0
        self._order = order
        self._last = epochs * order.steps
        self._folder = folder if fresh else None
        self._begun: int | None = None

    def restore(self, step: int, looks: int, calibrations: int = 0) -> None:
        """Restore the counts, so that the run can continue after training step `step`.

        `looks` and `calibrations` are the numbers of evaluations and calibrations up to this step.
        If the randomness comes from a seed, the counts are computed from these three numbers.
        Otherwise they are read from files, which also count what was sent after `step`, before the
        run was interrupted. If the files count fewer steps or evaluations, the missing ones are
        added.
        """
        self._finished = step
        if self._folder is None:
            self.train = self._sent(0, step)
            self.train[self._order.set_aside] += calibrations
            self.looks = looks
            return
        base, begun_step, begun_looks = self._read()
        self._step = max(step, begun_step)
        self._finished = max(step, begun_step - 1)
        self.train += self._sent(base, max(begun_step, step))
        self.looks = max(begun_looks, looks)

    @property
    def examples(self) -> int:
        """A lower bound of the number of training examples that were sent before `restore`.

        The examples of all steps up to the restored one count. If the counts are read from files,
        so do the examples of later steps that had ended. The last step that had begun does not
        count if it is later than the restored one, because it may have been interrupted.
        """
        return int(np.count_nonzero(self._sent(0, self._finished)))

    def table(self, ids: Mapping[Subset, Ids]) -> bytes:
        """Return a CSV file that says how often each example was sent.

        `ids` has the ids of the "train" and the "test" examples. Examples without ids are numbered.
        """
        held_out = np.full(len(ids["test"]), self.looks)
        text = ["subset,id,times"]
        for subset, times in zip(SUBSETS, (self.train, held_out), strict=True):
            names = ids[subset] if len(ids[subset]) else np.arange(len(times))
            fields = _fields(names.tolist())
            # One join writes the lines of all neighbours with the same count.
            ends = (np.flatnonzero(np.diff(times)) + 1).tolist()
            for start, end in pairwise([0, *ends, len(times)]):
                if fields[start:end]:
                    between = f",{times[start]}\r\n{subset},"
                    text.append(f"{subset}," + between.join(fields[start:end]) + f",{times[start]}")
        return "\r\n".join([*text, ""]).encode()

    def begin(self) -> None:
        """Create the files with the counts, unless they exist.

        Call it before the first checkpoint is saved. Then every folder with a checkpoint also has
        these files. If they are missing, they were deleted, and `restore` raises an error. Does
        nothing if the randomness comes from a seed.
        """
        if self._folder is not None and not (self._folder.path / _BEGUN).exists():
            self.settle(0)

    def settle(self, step: int) -> None:
        """Save all counts, as of `step`. Does nothing if the randomness comes from a seed."""
        if self._folder is None:
            return
        self._folder.write_atomically(_COUNTS, sealed({"step": step, "train": self.train}))
        self._step = step
        self._note()

    def begin_step(self, step: int, positions: npt.NDArray[np.int64]) -> None:
        """Count the examples at `positions` as sent in `step`. Call it before they are sent."""
        self.train[positions] += 1
        self._step = step
        self._note()

    def begin_calibration(self) -> None:
        """Count the calibration examples as sent. Call it before they are sent."""
        self.train[self._order.set_aside] += 1
        self.settle(self._step)

    def begin_look(self) -> None:
        """Count the held-out examples as sent. Call it before they are sent."""
        self.looks += 1
        self._note()

    def close(self) -> None:
        if self._begun is not None:
            os.close(self._begun)
            self._begun = None

    def _sent(self, after: int, step: int) -> npt.NDArray[np.int64]:
        counts = np.zeros(self._order.count, np.int64)
        while after < step:
            if after % self._order.steps == 0 and step - after >= self._order.steps:
                counts[self._order.trained] += 1
                after += self._order.steps
            else:
                after += 1
                counts[self._order.of_step(after)] += 1
        return counts

    def _note(self) -> None:
        """Save the last begun step and the number of begun evaluations, and wait for the disk.

        After a crash of the process or the machine, `restore` adds these steps and evaluations to
        the saved counts. Does nothing if the randomness comes from a seed.
        """
        if self._folder is None:
            return
        path = self._folder.path / _BEGUN
        with explained(path):
            if self._begun is None:
                self._begun = open_in_place(path, os.O_WRONLY | os.O_CREAT)
                sync_to_disk(path.parent)
            os.pwrite(self._begun, _noted(self._step, self.looks), 0)
            os.fsync(self._begun)

    def _read(self) -> tuple[int, int, int]:
        """Load into `self.train` the saved number of times that each training example was sent.

        Returns three numbers: the last training step that these saved numbers include, the last
        step that was begun, and how many evaluations were begun. Raises `RunFolderError` if a file
        is missing.
        """
        assert self._folder is not None
        counts, begun = self._folder.path / _COUNTS, self._folder.path / _BEGUN
        missing = [path for path in (counts, begun) if not path.exists()]
        if missing:
            raise RunFolderError(f"{missing[0]} is missing: it records what was sent")
        with intact(counts):
            fields = unsealed(read_bytes(counts, MOST_STATE_BYTES))
            only_fields(fields, "step", "train")
            base = integer("step", take(fields, "step", int), 0, self._last)
            self.train = take_array(fields, "train", np.int64, self.train.shape).copy()
            integer("train", int(self.train.min(initial=0)), 0)
            integer("train", int(self.train.max(initial=0)), 0, _MOST)
        with intact(begun):
            step, looks = _begun(begun)
            return base, integer("step", step, 0, self._last), looks


def _fields(names: Iterable[str | int]) -> list[str]:
    """Return the names as fields of a CSV file, in quotes where necessary."""
    fields = list(map(str, names))
    whole = "".join(fields)
    if not any(letter in whole for letter in _SPECIAL):
        return fields
    return [
        '"' + field.replace('"', '""') + '"' if any(map(field.count, _SPECIAL)) else field
        for field in fields
    ]


def looks_begun(run: Path) -> int:
    """Return the number of evaluations that the run in the folder `run` has begun, from a file.

    Returns 0 if the file does not exist, as in a run whose randomness comes from a seed. If an
    evaluation of such a run is interrupted and repeated, the same bits are sent again. So only its
    completed evaluations cost privacy, and this function does not count those.
    """
    path = run / _BEGUN
    if not path.exists():
        return 0
    with intact(path):
        return _begun(path)[1]


def has_begun(run: Path) -> bool:
    """Return True if a file in the folder `run` says that a step or an evaluation has begun."""
    path = run / _BEGUN
    if not path.exists():
        return False
    with intact(path):
        return max(_begun(path)) > 0


def _begun(path: Path) -> tuple[int, int]:
    """Read from the file `path` the last begun step, and the number of begun evaluations.

    Raises MessageInvalid if the file's digest does not match.
    """
    noted = read_bytes(path, MOST_KEY_BYTES)
    step, looks = np.frombuffer(noted[:16], "<i8").tolist()
    if noted != _noted(step, looks):
        raise MessageInvalid("its digest does not match")
    return step, integer("looks", looks, 0, _MOST)


def _noted(step: int, looks: int) -> bytes:
    data = np.array([step, looks], "<i8").tobytes()
    return data + hashlib.sha256(data).digest()[:8]


def ledger_of(
    split: SplitModel, party: str, releases: Releases, label: PrivacyLoss | None
) -> Ledger:
    """Return a ledger of the privacy costs of `party`'s examples.

    The ledger has an entry for each training example, by position, and one more entry that holds
    for every held-out example. A round of the ledger is not a round of training: round 0 charges
    each example for the first time that it was sent, round 1 for the second time, and so on. Under
    LabelDP, one last round charges each training example `label`, the privacy loss of a label.
    Without LabelDP, `label` is None.
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
    """Return the charges for sending one of `party`'s examples once.

    `first` is True if the example is sent for the first time, False if it was sent before. In the
    second case, a part with `reuse` costs nothing, because it sends the same bits again.
    """
    return _charges(
        (part, privacy)
        for part, privacy in private_parts(split, party)
        if first or not privacy.reuse
    )


def figures(
    split: SplitModel, party: str, releases: Releases, delta: float, label: PrivacyLoss | None
) -> list[Line]:
    """Return lines that state a party's epsilons.

    - Each part under EmbeddingDP has three lines: for a single bit, for a one-hot row of bits (two
      such rows differ in two bits), and for all bits of an example. They hold for sending once.
    - `label`, a label's privacy loss under LabelDP (None: without LabelDP), adds a line.
    - Each part that sends unprotected outputs of the party's own data has a line with an infinite
      epsilon.
    - If the party is a follower and returns gradients that depend on its own columns, each part
      that receives such gradients has a line with an infinite epsilon.
    - Each part that learns from the party's examples, and is used to compute EmbeddingDP's bits,
      has a line with an infinite epsilon. An example changes the part's weights, and so the bits
      that are later sent for other examples. A part that mixes the examples of a batch, or
      reads columns whose values depend on several examples, has such a line too.
    - The last line states, at `delta`, the largest epsilon of any example in the whole run. It
      covers the example's label, and all outputs that the party computed from this example and
      sent, as often as `releases` counted. This line is missing if the party sends nothing that is
      computed from its own data.
    """
    found = []
    parts = private_parts(split, party)
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
        found.append(Line(label.epsilon, 0.0, LABEL))
    bare = sends_unprotected(split, party)
    found += [Line(math.inf, 0.0, f"an example's values of {name}, {UNPROTECTED}") for name in bare]
    returned = unprotected_gradients(split, party)
    found += [
        Line(math.inf, 0.0, f"an example's gradients of {name}, {UNPROTECTED}") for name in returned
    ]
    found += [Line(math.inf, 0.0, influence(name)) for name in trained_by_examples(split, party)]
    mixing = mixing_batches(split, party)
    found += [Line(math.inf, 0.0, influence(name, "batch")) for name in mixing]
    fitted = fitted_to_examples(split, party)
    found += [Line(math.inf, 0.0, influence(name, "columns")) for name in fitted]
    if parts or bare or returned:
        most = max(int(releases.train.max(initial=0)), releases.looks)
        epsilon, at = math.inf, 0.0
        if not (bare or returned):
            ledger = ledger_of(split, party, releases, label)
            epsilon, at = ledger.figures(delta)["run_most_drawn"]
        often = "once" if most == 1 else f"{most} times"
        found.append(Line(epsilon, at, f"{OWN_REPORTS} in the run, sent {often}"))
    return found


def opening(split: SplitModel, party: str) -> list[str]:
    """Return the first lines of a party's log.

    They say how the outputs and gradients that the party computes from its own data are protected.
    """
    found: dict[str, list[str]] = {}
    for part, privacy in private_parts(split, party):
        bits = "one bit for each value and no noise"
        noise = bits if privacy.eps is None else f"eps {exactly(privacy.eps)}"
        found.setdefault(noise, []).append(part.name)
    bare = [
        f"The output of {name} leaves {party} without protection."
        for name in sends_unprotected(split, party)
    ]
    bare += [
        f"The gradients of {name}, computed from {party}'s own columns, leave {party} without "
        f"protection."
        for name in unprotected_gradients(split, party)
    ]
    if len(found) == 1 and not bare:
        return [f"The embedding is protected by EmbeddingDP with {next(iter(found))}."]
    return [
        f"The embedding of {', '.join(parts)} is protected by EmbeddingDP with {noise}."
        for noise, parts in found.items()
    ] + bare


def _charges(parts: Iterable[tuple[Part, EmbeddingPrivacy]]) -> list[Charge]:
    return [
        charge
        for part, privacy in parts
        for charge in EmbeddingDP(privacy.eps).loss.charges(math.prod(part.output))
    ]
