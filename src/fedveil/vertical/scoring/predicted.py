"""Predictions for new rows: the last part's outputs, turned into probabilities and decisions."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import softmax

from fedveil.base.array_types import Array
from fedveil.base.quantity import quantity
from fedveil.base.untrusted import MOST_JOB_BYTES, read_bytes
from fedveil.errors import InvalidValue
from fedveil.record.sealed_message import intact
from fedveil.vertical.calibration import usable
from fedveil.vertical.calibrator import CALIBRATOR, Calibrator
from fedveil.vertical.predictions import TABLE, new_file, told_numbers, told_scores, unfinished
from fedveil.vertical.rows import Positions
from fedveil.vertical.scoring.scorer import MOST_ROWS, Scorer
from fedveil.vertical.scoring.sources import Source

Columns = Mapping[str, Sequence[str]]


class Decision:
    """Turns a model's outputs into the columns of a table with predictions.

    For classes, the columns are the predicted class and the probabilities of all classes. The
    probabilities are calibrated if the bundle has a calibrator.
    """

    def __init__(self, leader: Scorer) -> None:
        self._task: Any = leader.task
        path = leader.folder.path / CALIBRATOR
        self.calibrator: Calibrator | None = None
        if CALIBRATOR in leader.bundle.contents.files:
            with intact(path):
                self.calibrator = Calibrator.read(read_bytes(path, MOST_JOB_BYTES), str(path))
            classes = len(self.calibrator.shifts)
            if classes != leader.task.classes:
                raise InvalidValue(f"{path} is of {classes} classes, not {leader.task.classes}")

    @property
    def note(self) -> str | None:
        """A sentence on whether and how probabilities are calibrated, or None for a regression."""
        if self._task.classes is None:
            return None
        if self.calibrator is None:
            return (
                "the probabilities are not calibrated: train with scoring.calibration, such as 0.1"
            )
        fitted = f"calibrated on {self.calibrator.examples:,} training rows set aside"
        if self.calibrator.threshold is None:
            return f"the probabilities are {fitted}"
        return (
            f"the probabilities are {fitted}, and the second class is predicted from "
            f"{self.calibrator.threshold:.4f} on ({self.calibrator.criterion})"
        )

    def columns(self, outputs: Array) -> Columns:
        if self._task.classes is None:
            return told_numbers(self._task.in_own_unit(outputs)[:, 0])
        if self.calibrator is None:
            shares = softmax(outputs.astype(np.float64), axis=1)
            return told_scores(shares, shares.argmax(axis=1), self._task.class_names)
        shares = self.calibrator.probabilities(outputs)
        return told_scores(shares, self.calibrator.decided(shares), self._task.class_names)


class Answers:
    """Outputs for rows of the leader's file, cached so that parties send a row only once."""

    def __init__(self, source: Source) -> None:
        self.source = source
        leader = source.leader
        self._outputs = np.zeros((len(leader.ids), *leader.split.last.output), np.float32)
        self._known = np.zeros(len(leader.ids), bool)

    def of_rows(self, rows: Positions) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
        """Return the outputs for `rows`, and a mask of the rows that a party refuses to send.

        `rows` are positions in the leader's file, of rows that all parties have. A party refuses a
        row if sending it would bring its epsilon above the party's `privacy.max_epsilon`. The
        output of a refused row is 0.
        """
        wanted = np.unique(rows[~self._known[rows]])
        for start in range(0, len(wanted), MOST_ROWS):
            some = wanted[start : start + MOST_ROWS]
            found = self.source.scores(some)
            scored = some[found.allowed]
            self._outputs[scored] = found.outputs
            self._known[scored] = True
        return self._outputs[rows], ~self._known[rows]


def pieces(answers: Answers) -> Iterator[tuple[Positions, npt.NDArray[Any]]]:
    """Yield batches of common rows and their outputs. Leaves out rows that a party refuses."""
    common = answers.source.common
    for start in range(0, len(common), MOST_ROWS):
        rows = common[start : start + MOST_ROWS]
        outputs, refused = answers.of_rows(rows)
        yield rows[~refused], outputs[~refused]


class ScoreFile:
    """A new CSV file with the predictions for all common rows of the leader's file."""

    def __init__(self, path: Path) -> None:
        self._path = new_file(path, TABLE)

    def write(self, source: Source, tell: Callable[[str], None]) -> dict[str, int]:
        """Score all common rows with `source`, and write them. Returns counts of rows by outcome.

        The outcomes are `scored`, `refused` (above a party's `privacy.max_epsilon`), `alone`
        (another party lacks the row) and `unusable` (the model's output is not finite). `tell`
        receives sentences on the calibration and on unusable rows.
        """
        leader = source.leader
        decision, answers = Decision(leader), Answers(source)
        if decision.note is not None:
            tell(decision.note)
        sent, bad = 0, list[Any]()
        with unfinished(self._path) as part, part.open("x", encoding="utf-8", newline="") as table:
            lines = csv.writer(table, lineterminator="\n")
            for piece, (rows, outputs) in enumerate(pieces(answers)):
                sent, good = sent + len(rows), usable(outputs)
                bad += leader.ids[rows[~good]].tolist()
                columns = decision.columns(outputs[good])
                if not piece:
                    lines.writerow(("id", *columns))
                ids = leader.ids[rows[good]].tolist()
                lines.writerows(zip(ids, *columns.values(), strict=True))
                table.flush()  # a killed process loses only predictions of this piece
        if bad:
            tell(
                f"no prediction for {quantity(len(bad), 'row')}, such as {bad[0]!r}: the model's "
                f"output is NaN or infinite. Look for very large numbers in the files"
            )
        common = len(source.common)
        found = {"scored": sent - len(bad), "refused": common - sent, "unusable": len(bad)}
        return {**found, "alone": len(leader.ids) - common}
