"""`tables`: a wide-and-deep model for parties that each have a table.

The other parties learn about a table only through the tensors that its owner sends. The held-out
examples are chosen by the digests of their ids, or come from separate files of each party.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from fedveil.base.array_types import Array, Float64s
from fedveil.errors import DataInvalid, JobError
from fedveil.link.names import check_name
from fedveil.settings.allowed import shown
from fedveil.tasks.scoring import ByLabel
from fedveil.tasks.tables import new_rows, table_file
from fedveil.tasks.tables.cell_forms import Kind
from fedveil.tasks.tables.column_encoding import Classes, Encoding, Scale, learn
from fedveil.tasks.tables.drift import Summary
from fedveil.tasks.tables.id_rules import hint
from fedveil.tasks.tables.refusals import Refusals
from fedveil.tasks.tables.table_file import Table, Wanted
from fedveil.tasks.wide_and_deep import Features, wide_and_deep
from fedveil.vertical.remote.alignment import digests
from fedveil.vertical.rows import Ids
from fedveil.vertical.split import SplitModel
from fedveil.vertical.task import SUBSETS, Columns, NewRows, Subset, Unit, check_party
from fedveil.vertical.task_settings import TableSettings, TablesSettings

_PLACE = "task.tables"
_HELD_OUT = b"fedveil: held out"
#: The columns in which pandas writes an index without a name.
_PANDAS_INDEX = re.compile(r"__index_level_\d+__")


class Tables(ByLabel):
    """The task of training a wide-and-deep model on the parties' tables.

    `settings` are those under `task.tables`, and `folder` is the folder of a resumed run. Labels
    that are numbers are scaled to mean 0 and variance 1 over the training rows.
    """

    unit: Unit = "examples"
    units_per_example = 1

    def __init__(
        self, settings: TablesSettings | None = None, seed: int = 0, folder: Path | None = None
    ) -> None:
        self._settings = TablesSettings() if settings is None else settings
        problems = list(_problems(self._settings))
        if problems:
            raise JobError(problems)
        self._seed = seed
        self._folder = folder
        self.leader = self._settings.leader
        self.followers = tuple(name for name in self._settings.owners if name != self.leader)
        self.classes = self._settings.classes
        self._held: dict[str, _Held] = {}

    @property
    def by_shape(self) -> list[str]:
        """Return the parties whose model parts can be built from the job and a table's header."""
        held, owners = self._settings.files, self._settings.owners
        known = [owner for owner in owners if owner in held and held[owner].path is not None]
        return known if self.leader in owners else [*known, self.leader]

    def split_model(self, here: Collection[str] | None = None) -> SplitModel:
        """Return the split model: a wide and a deep part for each party with features, and the top.

        Builds torch modules (with initial weights) only for the parts of the parties in `here`, or
        of all parties if `here` is None. The module of every other part is None.
        """
        owners = {
            owner: self._features(owner) if here is None or owner in here else None
            for owner in self._settings.owners
        }
        return wide_and_deep(
            self._settings,
            owners,
            leader=self.leader,
            classes=self.classes,
            seed=self._seed,
            words=self._settings.vector,
            here=here,
        )

    def owned(self, party: str, subset: Subset) -> Columns:
        """Return a party's columns (`numbers`, `intervals`, `words`) and labels in a subset."""
        return self._of(party).owned[subset]

    def notes(self, party: str) -> Sequence[str]:
        return self._of(party).said

    def id_hint(self, ids: Mapping[str, Ids]) -> str:
        return hint({party: own.tolist() for party, own in ids.items()}, self._settings.ids)

    def files(self, party: str) -> dict[str, bytes]:
        encoding, summary = self._of(party).encoding.written(), self._of(party).summary.written()
        return {new_rows.encoding_file(party): encoding, new_rows.summary_file(party): summary}

    def new_rows(self, party: str, path: str, folder: Path) -> NewRows:
        return new_rows.read_rows(path, self._settings, folder, party)

    def schema(self, party: str) -> dict[str, str]:
        """Return the columns of a party's file of new rows, each with the kind of its content."""
        table = self._settings.files.get(party, TableSettings())
        return new_rows.schema_of(self._encoding(party), table)

    @cached_property
    def class_names(self) -> Sequence[str] | None:
        label = self._encoding(self.leader).label
        return label.classes if isinstance(label, Classes) else None

    @cached_property
    def class_weights(self) -> Sequence[float] | None:
        """Return each class's weight (1 if not stated), or None if the job states no weight."""
        weights = self._settings.files[self.leader].class_weights
        if not weights:
            return None
        assert self.class_names is not None, "_problems has checked it"
        for name in weights:
            if name not in self.class_names:
                raise DataInvalid(
                    f"{_PLACE}.files.{self.leader}.class_weights.{name} is not a class; "
                    f"the classes are {', '.join(map(shown, self.class_names))}"
                )
        return [weights.get(name, 1.0) for name in self.class_names]

    def in_own_unit(self, scaled: Array) -> Float64s:
        label = self._encoding(self.leader).label
        assert isinstance(label, Scale), "labels are numbers"
        return label.undone(scaled)

    def _features(self, owner: str) -> Features:
        known = self._encoding(owner) if self._kept(owner) else None
        return (known or _Chosen(self._settings, owner, self.leader)).features

    def _encoding(self, party: str) -> Encoding:
        kept = self._kept(party)
        if kept is None:
            return self._of(party).encoding
        return new_rows.read_encoding(kept, self._settings, party)

    def _kept(self, party: str) -> Path | None:
        kept = None if self._folder is None else self._folder / new_rows.encoding_file(party)
        return kept if kept is not None and kept.exists() else None

    def _of(self, party: str) -> _Held:
        if party not in self._held:
            check_party(self, party)
            self._held[party] = _Held(self._settings, party, self.leader, self._kept(party))
        return self._held[party]


class _Chosen:
    """The columns that a party's job selects from its table. Only the table's header is read."""

    def __init__(self, settings: TablesSettings, party: str, leader: str) -> None:
        self.place = f"{_PLACE}.files.{party}"
        self.table = settings.files.get(party, TableSettings())
        if self.table.path is None:
            raise JobError([f"{self.place}.path is missing: set it to the file of {party}'s table"])
        self.path, self._bins = self.table.path, settings.bins
        self.label = self.table.label if party == leader else None
        columns = self._checked()
        self.names = self._found(columns) if party in settings.owners else []

    @property
    def words(self) -> list[str]:
        return [name for name in self.names if name in self.table.categories]

    @property
    def numbers(self) -> list[str]:
        return [name for name in self.names if name not in self.table.categories]

    @property
    def features(self) -> Features:
        """Return the sizes of the encoding, which follow from the job and the table's header."""
        return Features(
            intervals=(self._bins,) * len(self.numbers),
            places=tuple(self.table.categories[name] for name in self.words),
        )

    def _checked(self) -> list[str]:
        table, columns = self.table, table_file.header(self.path, self.table, self.place)
        named = {
            "id": [table.id],
            "label": [] if self.label is None else [self.label],
            "features": table.features or [],
            "without": table.without,
            "categories": table.categories,
            "kinds": table.kinds,
        }
        keys = {f"{self.place}.{key}": names for key, names in named.items()}
        table_file.check_known(self.path, keys, columns)
        return columns

    def _found(self, columns: Sequence[str]) -> list[str]:
        """Return the names of the features that the job states, or else of all `columns`.

        Leaves out the id, the label and the names in `without`. If the job states no features, also
        leaves out row numbers that pandas wrote as a column.
        """
        table = self.table
        taken = {table.id, self.label, *table.without}
        named = table.features or [name for name in columns if not _PANDAS_INDEX.fullmatch(name)]
        chosen = [name for name in named if name not in taken]
        strange = [name for name in table.categories if name not in chosen]
        if strange:
            said = "{}.categories.{} is not one of the features"
            raise JobError([said.format(self.place, name) for name in strange])
        if not chosen:
            raise DataInvalid(f"{self.path} has no features: its columns are {', '.join(columns)}")
        return chosen


class _Held:
    """A party's encoded rows. The encoding is read from an earlier run's folder, or computed."""

    def __init__(
        self, settings: TablesSettings, party: str, leader: str, kept: Path | None
    ) -> None:
        gc.freeze()  # scanning permanent objects for garbage takes longer than 10,000 rows
        self._settings, self._party = settings, party
        self._chosen = chosen = _Chosen(settings, party, leader)
        self._table, self._path, self._label = chosen.table, chosen.path, chosen.label
        refusals = Refusals(chosen.path)
        known = None if kept is None else self._read(kept, chosen.names)
        tables = self._subsets(self._wanted({} if known is None else known.kinds), refusals)
        self.said = list(dict.fromkeys(said for table in tables.values() for said in table.said))
        if known is None:
            known = self._learnt(tables["train"], refusals)
        refusals.check()
        self.encoding = known
        self.owned = self._encoded(tables)
        self._train = tables["train"]

    @cached_property
    def summary(self) -> Summary:
        """Return the summary of the training rows. The drift of new rows is measured against it."""
        return Summary.of(self._train, self._chosen.names, self._chosen.words)

    def _read(self, kept: Path, features: Sequence[str]) -> Encoding:
        encoding = new_rows.read_encoding(kept, self._settings, self._party)
        if list(encoding.columns) != features:
            raise DataInvalid(
                f"{self._path} does not have the features with which this run began: "
                f"{shown(list(encoding.columns))}, as in {kept}"
            )
        return encoding

    def _encoded(self, tables: Mapping[Subset, Table]) -> dict[Subset, Columns]:
        labels: dict[Subset, torch.Tensor | None] = dict.fromkeys(SUBSETS)
        if self.encoding.label is not None and self._label is not None:
            for subset, table in tables.items():
                labels[subset] = torch.from_numpy(self.encoding.label.applied(table, self._label))
        made, each = self.encoding, [tables[subset] for subset in SUBSETS]
        of_one_file = self._table.test is None
        columns = made.applied(*each) if of_one_file else [made.applied(one)[0] for one in each]
        return {
            subset: Columns(tables[subset].ids, encoded, labels[subset])
            for subset, encoded in zip(SUBSETS, columns, strict=True)
        }

    def _wanted(self, known: Mapping[str, Kind]) -> Wanted:
        """Return the columns to read, and how to read them.

        `known` says for columns of numbers which kind of content they have, such as "date". It
        comes from the encoding that an earlier run saved, and is empty for a new run.
        """
        numbers, words = self._chosen.numbers, self._chosen.words
        if self._label is not None:
            (numbers if self._settings.classes is None else words).append(self._label)
        may_lack = frozenset(self._chosen.names if self._table.missing == "mean" else ())
        # Labels such as yes and no are read as two classes, unless the job states their kind.
        kinds = {self._label: "number"} if self._label is not None else {}
        reading = self._table.model_copy(update={"kinds": kinds | dict(known) | self._table.kinds})
        return Wanted(
            self._table.id, tuple(numbers), tuple(words), may_lack,
            reading=reading, rules=self._settings.ids, place=self._chosen.place,
        )  # fmt: skip

    def _subsets(self, wanted: Wanted, refusals: Refusals) -> dict[Subset, Table]:
        """Read the training and the held-out rows, with the columns `wanted`.

        Problems of the training file are added to `refusals`.
        """
        whole = table_file.read(self._path, wanted, refusals)
        if self._table.test is not None:
            # Columns have the same kinds of content in the held-out file as in the training file.
            kinds = {"kinds": dict(whole.kinds) | wanted.reading.kinds}
            reading = wanted.reading.model_copy(update=kinds)
            test = table_file.read(self._table.test, replace(wanted, reading=reading))
            both = np.isin(test.ids, whole.ids)
            if both.any():
                row = int(both.argmax())
                raise DataInvalid(
                    f"{test.place(row)}: the id {shown(str(test.ids[row]))} is also in "
                    f"{whole.path}, but held-out examples must not be trained on"
                )
            return {"train": whole, "test": test}
        fraction = self._settings.test_fraction
        assert fraction is not None, "_problems has checked it"
        out = held_out(whole.ids, fraction)
        if out.all() or not out.any():
            refusals.check()
            raise DataInvalid(
                f"{_PLACE}.test_fraction = {fraction} holds out {out.sum()} of the "
                f"{len(whole)} examples of {self._path}; at least one must be trained on "
                f"and one held out"
            )
        return {"train": whole.rows(~out), "test": whole.rows(out)}

    def _learnt(self, train: Table, refusals: Refusals) -> Encoding:
        """Compute the encoding from the training rows. Raises DataInvalid with all problems."""
        names, places = self._chosen.names if len(train) else (), self._table.categories
        columns = learn(train, names, places, self._settings.bins, refusals)
        label: Classes | Scale | None = None
        with refusals.collecting(self._label or ""):
            if self._label is not None and self._settings.classes is not None:
                label = Classes.of(train, self._label, self._settings.classes)
            elif self._label is not None:
                label = Scale.of(train, self._label)
        refusals.check()
        return Encoding(columns=columns, label=label)


def held_out(ids: npt.NDArray[np.str_], fraction: float) -> npt.NDArray[np.bool_]:
    """Return a mask of the held-out ids. The digest of an id decides, so that all parties agree.

    The job's seed has no influence. A larger `fraction` only adds held-out ids.
    """
    drawn = digests(ids, _HELD_OUT)[:, :8].copy().view("<u8")[:, 0]
    held: npt.NDArray[np.bool_] = drawn < np.uint64(int(fraction * 2**64))
    return held


def _problems(settings: TablesSettings) -> Iterator[str]:
    owners, leader = settings.owners, settings.leader
    for key, names in ((f"{_PLACE}.leader", [leader]), (f"{_PLACE}.owners", owners)):
        for name in names:
            check_name(f"{key}:", name)
    if len(set(owners)) < len(owners) or set(owners) <= {leader}:
        yield (
            f"{_PLACE}.owners = {shown(owners)} is invalid: list distinct parties, at "
            f"least one of them not the leader"
        )
    for party, table in settings.files.items():
        place = f"{_PLACE}.files.{party}"
        if party not in (leader, *owners):
            known = ", ".join(dict.fromkeys((leader, *owners)))
            yield f"{place} belongs to no party; the parties are {known}"
            continue
        yield from _problems_of(table, place, settings, party)


def _problems_of(
    table: TableSettings, place: str, settings: TablesSettings, party: str
) -> Iterator[str]:
    if party == settings.leader and table.label is None:
        yield f"{place}.label is missing: set it to the column of labels"
    if party != settings.leader and table.label is not None:
        yield f"{place}.label = {shown(table.label)} is only for the leader, {settings.leader}"
    if settings.test_fraction is None and table.test is None:
        yield (
            f"{place}.test is missing: with {_PLACE}.test_fraction = null every party names a "
            f"file of held-out examples"
        )
    if settings.test_fraction is not None and table.test is not None:
        yield f"{place}.test = {shown(table.test)} needs {_PLACE}.test_fraction = null"
    if table.features == []:
        yield f"{place}.features = [] is empty: list the columns to train on, or write null for all"
    if table.features is not None and table.without:
        yield f"{place}.without = {shown(table.without)} is only for features = null"
    if table.features is not None and len(set(table.features)) < len(table.features):
        yield f"{place}.features = {shown(table.features)} names a column twice"
    for name in table.features or ():
        if name in (table.id, table.label):
            yield f"{place}.features names {shown(name)}, the column of ids or labels"
    if table.class_weights and (party != settings.leader or settings.classes is None):
        yield f"{place}.class_weights is only for the leader, {settings.leader}, and for classes"
    if table.id == table.label:
        yield f"{place}.label = {shown(table.label)} is also the column of ids"
