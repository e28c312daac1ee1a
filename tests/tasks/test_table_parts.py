"""Parts of reading a table: the sample that shows the separator, and columns on disk."""

from __future__ import annotations

import gc
import os
import warnings
from pathlib import Path

import numpy as np
import pytest

from fedveil.errors import DataInvalid
from fedveil.tasks.tables import csv_format
from fedveil.tasks.tables.disk_columns import Spool
from fedveil.tasks.tables.refusals import Refusals
from fedveil.tasks.tables.table_file import header


def test_the_file_of_a_spool_in_a_circle_is_closed_without_a_warning() -> None:
    """The warning would reach whatever runs when the garbage is collected."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        spool = Spool()
        spool.own = spool  # type: ignore[attr-defined]
        number = spool._file.fileno()
        del spool
        gc.collect()
    assert not caught
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(number)


@pytest.mark.parametrize("characters", [12, 1000])
def test_a_sample_that_ends_within_a_line_leaves_the_separator_clear(
    characters: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_format, "_SAMPLED_CHARACTERS", characters)
    path = tmp_path / "t.csv"
    path.write_text("id;x,y\na;1\nb;2\n")
    assert header(str(path)) == ["id", "x,y"]


def test_batches_of_columns_have_the_least_rows_except_the_last() -> None:
    spool = Spool()
    for piece in np.split(np.arange(23), [3, 6, 8, 9, 17, 22]):
        spool.append(["a"], piece)
        spool.append(["b"], -piece)
    found = list(spool.batches("a", 5))
    assert [first for first, _ in found] == [0, 6, 17, 22]
    read = {name: [spool.read(name, pieces) for _, pieces in found] for name in ("a", "b")}
    assert np.concatenate(read["a"]).tolist() == list(range(23))
    assert all((b == -a).all() for a, b in zip(read["a"], read["b"], strict=True))


def test_a_problem_names_its_first_rows_over_all_pieces() -> None:
    refusals = Refusals("t.csv")
    for first in (5, 20, 60):
        refusals.rows("x", "empty", ": x is empty", [first, first + 1], 4)
    with pytest.raises(DataInvalid) as caught:
        refusals.check()
    assert str(caught.value) == "t.csv, line 5: x is empty (12 such cells, such as lines 6, 20)"
