"""Files are whole, and secret where they must be, from their first instant on."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedveil._files import PARTIAL, write_new, write_whole


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    file, partial = tmp_path / "file", tmp_path / f"file{PARTIAL}"
    partial.write_text("what a killed process has left")
    for data in (b"old", b"new"):
        write_whole(file, data, 0o640)
        assert file.read_bytes() == data
    assert list(tmp_path.iterdir()) == [file]
    assert file.stat().st_mode & 0o777 == 0o640


def test_a_new_file_is_its_owners_alone_and_never_replaces_one(tmp_path: Path) -> None:
    file = tmp_path / "key"
    write_new(file, b"secret")
    assert file.stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        write_new(file, b"another")
    assert file.read_bytes() == b"secret"
