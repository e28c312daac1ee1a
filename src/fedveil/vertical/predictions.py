"""A file with a model's predictions for the held-out examples: a table, or the raw outputs."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedveil.base.array_types import Array
from fedveil.base.files import PARTIAL, put_new_in_place
from fedveil.base.own_code import called
from fedveil.base.quantity import quantity
from fedveil.errors import InvalidValue, RunFolderError
from fedveil.link.channel import Exchange
from fedveil.record.run_folder import explained
from fedveil.vertical.calibration import calibrated
from fedveil.vertical.party_run import PartyRun
from fedveil.vertical.task import Task, predictions_of

TABLE, ARRAYS = ".csv", ".npz"


@dataclass(frozen=True, eq=False)
class Predictions:
    """The ids of the held-out examples, the last part's outputs, and columns of predictions."""

    ids: npt.NDArray[Any]
    outputs: npt.NDArray[Any]
    columns: Mapping[str, Sequence[str]]


class PredictionFile:
    """A new file for a model's predictions: a table (`.csv`) or raw outputs (`.npz`).

    A table has a line for each example. An `.npz` file has two arrays, ids and outputs. The
    constructor raises RunFolderError if the file exists.
    """

    def __init__(self, path: Path) -> None:
        self._path = new_file(path, TABLE, ARRAYS)

    def predict(self, run: PartyRun) -> Exchange[Predictions | None]:
        """Compute predictions for the held-out examples, as one party's side of the exchange.

        Returns the predictions, or None at a follower. Writes nothing (see `write`). Raises
        InvalidValue if the file is a table that cannot hold the model's outputs.
        """
        task, output = run.setting.task, run.setting.split.last.output
        is_table = self._path.suffix == TABLE
        fits_a_line = predictions_of(task) is not None or output == (task.classes or 1,)
        if is_table and not fits_a_line:
            raise InvalidValue(
                f"outputs of shape {output} do not fit the lines of {self._path}; use "
                f"--out NAME{ARRAYS}"
            )
        outputs = yield from run.predict()
        if outputs is None:
            return None
        rows = run.setting.rows["test"]
        assert rows.labels is not None, "the leader has the labels"
        columns = _said(task, outputs, rows.labels.numpy()) if is_table else {}
        return Predictions(rows.ids, outputs, columns)

    def write(self, found: Predictions) -> str:
        if self._path.suffix == ARRAYS:
            with unfinished(self._path) as partial, partial.open("xb") as file:
                np.savez(file, ids=found.ids, outputs=found.outputs)
            return f"{len(found.outputs)} outputs of shape {found.outputs.shape[1:]}"
        with unfinished(self._path) as part, part.open("x", encoding="utf-8", newline="") as table:
            lines = csv.writer(table, lineterminator="\n")
            lines.writerow(("id", *found.columns))
            lines.writerows(zip(found.ids.tolist(), *found.columns.values(), strict=True))
        return quantity(len(found.ids), "prediction")


def new_file(path: Path, *endings: str) -> Path:
    """Return `path` if a new file can be created there.

    Raises InvalidValue if the path has an ending that is not in `endings`. Raises RunFolderError if
    the file exists or cannot be created. Call this before any example is sent and charged.
    """
    if path.suffix not in endings:
        raise InvalidValue(f"--out {path} must end in {' or '.join(endings)}")
    if path.exists():
        raise RunFolderError(f"{path} already exists; it is not overwritten")
    if (partial := _partial(path)).exists():
        raise RunFolderError(
            f"{partial} has the predictions of a command that was cut off: move or delete it, or "
            f"name another file"
        )
    if not path.parent.is_dir():
        raise RunFolderError(f"--out {path}: there is no folder {path.parent}")
    with explained(path):
        path.open("xb").close()
        path.unlink()
    return path


@contextmanager
def unfinished(path: Path) -> Iterator[Path]:
    """Yield a path for writing predictions. Renames the file to `path` when the block ends.

    After an error or Ctrl-C, the file keeps its name, which ends in `.part`. So predictions that
    cost privacy are not lost, and do not look complete. If a file `path` has appeared meanwhile,
    raises RunFolderError and leaves both files as they are.
    """
    partial = _partial(path)
    try:
        with explained(path):
            yield partial
            try:
                put_new_in_place(partial, path)
            except FileExistsError:
                raise RunFolderError(f"{path} appeared meanwhile; it is not overwritten") from None
    except BaseException as error:
        if partial.exists():
            error.add_note(f"the predictions so far are in {partial}")
        raise


def _partial(path: Path) -> Path:
    return path.with_name(path.name + PARTIAL)


def _said(task: Task, outputs: Array, labels: Array) -> Mapping[str, Sequence[str]]:
    if (own := predictions_of(task)) is not None:
        return called(own, outputs=outputs, labels=labels)
    return told_numbers(outputs[:, 0]) if task.classes is None else told_classes(outputs, labels)


def told_classes(
    outputs: Array, labels: Array, names: Sequence[str] | None = None
) -> dict[str, list[str]]:
    """Return table columns: each example's most likely class, and all classes' probabilities.

    `outputs` are logits [examples, classes]. The probabilities are calibrated on the held-out
    `labels`. Without `names`, classes are named by their numbers.
    """
    return told_scores(calibrated(outputs, labels), outputs.argmax(axis=1), names)


def told_scores(
    shares: Array, chosen: npt.NDArray[np.int64], names: Sequence[str] | None = None
) -> dict[str, list[str]]:
    """Return table columns: each example's chosen class, and the probabilities of all classes.

    `chosen` has the number of each example's chosen class, and `shares` the probabilities
    [examples, classes]. Without `names`, classes are named by their numbers.
    """
    known = [str(at) for at in range(shares.shape[1])] if names is None else names
    likely = np.take_along_axis(shares, chosen[:, np.newaxis], axis=1)[:, 0]
    columns = {"probability": likely}
    columns |= {f"probability of {name}": shares[:, at] for at, name in enumerate(known)}
    told = {name: [f"{share:.6f}" for share in column] for name, column in columns.items()}
    return {"prediction": [known[at] for at in chosen], **told}


def told_numbers(numbers: npt.NDArray[np.floating[Any]]) -> dict[str, list[str]]:
    """Return a table column with each example's predicted number, with seven significant digits."""
    return {"prediction": [f"{number:.7g}" for number in numbers]}
