"""Reads rows to score: a file without labels, encoded as the training rows were."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedveil.base.untrusted import MOST_DATA_BYTES, read_bytes
from fedveil.data.data_folders import reading
from fedveil.errors import DataInvalid
from fedveil.settings.allowed import plain
from fedveil.tasks.tables import table_file
from fedveil.tasks.tables.column_encoding import Classes, Encoding, Scale, Words
from fedveil.tasks.tables.drift import Summary, drift
from fedveil.tasks.tables.id_rules import normalised
from fedveil.tasks.tables.table_file import Wanted
from fedveil.vertical.task import Columns, NewRows
from fedveil.vertical.task_settings import TableSettings, TablesSettings


def encoding_file(party: str) -> str:
    return f"table-{party}.json"


def summary_file(party: str) -> str:
    return f"summary-{party}.json"


def read_encoding(path: Path, task: TablesSettings, party: str) -> Encoding:
    """Read the encoding of a party's columns. Raises DataInvalid if it does not fit the job."""
    with reading(path):
        encoding = Encoding.read(read_bytes(path, MOST_DATA_BYTES), str(path))
    if not _fits(encoding, task, party):
        table = task.files.get(party, TableSettings()).path or f"the table of {party}"
        raise DataInvalid(f"{path} is damaged: it is not an encoding of {table}")
    return encoding


def _fits(encoding: Encoding, task: TablesSettings, party: str) -> bool:
    label, is_owner = encoding.label, party in task.owners
    if party != task.leader:
        has_label = label is None
    elif task.classes is None:
        has_label = isinstance(label, Scale)
    else:
        known = label.classes if isinstance(label, Classes) else ()
        has_label = len(set(known)) == len(known) == task.classes
    places = task.files.get(party, TableSettings()).categories
    return has_label and bool(encoding.columns) == is_owner and encoding.fits(places, task.bins)


def read_rows(path: str, task: TablesSettings, folder: Path, party: str) -> NewRows:
    """Read and encode the rows of a party's file, and compare them with the training rows.

    `folder` is the run's folder. Raises DataInvalid if the file lacks a column of the model, or if
    a cell has the wrong kind of content.
    """
    settings = task.files.get(party, TableSettings())
    place = f"task.tables.files.{party}"
    encoding = read_encoding(folder / encoding_file(party), task, party)
    kinds = {"kinds": dict(encoding.kinds) | settings.kinds}
    reading_settings = settings.model_copy(update=kinds)
    summary_path = folder / summary_file(party)
    with reading(summary_path):
        summary = Summary.read(read_bytes(summary_path, MOST_DATA_BYTES), str(summary_path))
    words = [name for name, column in encoding.columns.items() if isinstance(column, Words)]
    if not summary.covers(encoding.columns, words):
        raise DataInvalid(f"{summary_path} is damaged: it is not a summary of the encoded columns")
    numbers = [name for name in encoding.columns if name not in words]
    has = table_file.header(path, reading_settings, place)
    _check_columns(path, has, [settings.id, *encoding.columns])
    lacks = encoding.columns if settings.missing == "mean" else ()
    wanted = Wanted(
        settings.id, tuple(numbers), tuple(words), lacks,
        reading=reading_settings, rules=task.ids, place=place,
    )  # fmt: skip
    table = table_file.read(path, wanted)
    found = drift(summary, table)
    facts = [{**vars(column), "has_shifted": column.has_shifted} for column in found]
    return NewRows(
        Columns(table.ids, encoding.applied(table)[0]),
        notes=(
            *table.said,
            *(str(one) for one in found if one.missing or one.unseen or one.has_shifted),
        ),
        drift=facts,
        normalised=lambda ids: normalised([text.strip() for text in ids], task.ids),
    )


def schema_of(encoding: Encoding, settings: TableSettings) -> dict[str, str]:
    """Return the columns of a file of new rows, with their kinds ("ids", "words" or "numbers")."""
    kinds = {
        name: "words" if isinstance(column, Words) else "numbers"
        for name, column in encoding.columns.items()
    }
    return {settings.id: "ids", **kinds}


def _check_columns(path: str, has: Sequence[str], needed: Sequence[str]) -> None:
    if missing := [name for name in needed if name not in has]:
        raise DataInvalid(
            f"{path} lacks the column{'s' * (len(missing) > 1)} {', '.join(map(plain, missing))}, "
            f"with which the model was trained"
        )
