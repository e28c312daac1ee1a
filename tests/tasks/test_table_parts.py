"""Parts of reading a table: the sample that shows the separator, and columns on disk."""

from __future__ import annotations

import errno
import gc
import os
import resource
import warnings
from pathlib import Path

import numpy as np
import pytest

from fedveil.errors import DataInvalid, DataUnavailable
from fedveil.tasks.tables import csv_format
from fedveil.tasks.tables.disk_columns import Spool, mapped
from fedveil.tasks.tables.refusals import Refusals
from fedveil.tasks.tables.table_file import Wanted, header, read


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


def test_columns_that_the_disk_cannot_hold_are_one_sentence() -> None:
    """A mapped file without space would end the process with a bus error, without a sentence."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    spool = Spool()
    spool.append(["a"], np.arange(100))
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(DataUnavailable, match="cannot be written below TMPDIR: File too large"):
            spool.append(["a"], np.arange(1000))
        with pytest.raises(DataUnavailable, match="cannot be written below TMPDIR: File too large"):
            mapped(1000, 2, np.float32)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert spool.read("a").tolist() == list(range(100))


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="no function allocates space")
def test_space_is_allocated_before_columns_are_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int, start: int, size: int) -> None:
        assert (start, size) == (0, 7 * 3 * 4)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(DataUnavailable, match="cannot be written below TMPDIR: No space left"):
        mapped(7, 3, np.float32)


def test_a_problem_names_its_first_rows_over_all_pieces() -> None:
    refusals = Refusals("t.csv")
    for first in (5, 20, 60):
        refusals.rows("x", "empty", ": x is empty", [first, first + 1], 4)
    with pytest.raises(DataInvalid) as caught:
        refusals.check()
    assert str(caught.value) == "t.csv, line 5: x is empty (12 such cells, such as lines 6, 20)"


def test_a_selection_has_its_own_rows_of_the_column_that_was_read_last(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("id,x,w\na,1,u\nb,2,v\nc,3,w\nd,4,u\n")
    whole = read(str(tmp_path / "t.csv"), Wanted("id", ("x",), ("w",)))
    for column in ("x", "w"):
        before = whole._column(column).tolist()
        odd, even = (whole.rows(np.arange(4) % 2 == rest) for rest in (1, 0))
        assert odd._column(column).tolist() == before[1::2]
        assert even._column(column).tolist() == before[::2]
        assert whole._column(column).tolist() == before
    assert odd.ids.tolist() == ["b", "d"]
    assert odd.place(1).endswith("t.csv, line 5")
