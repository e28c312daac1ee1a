"""Files are whole, and secret where they must be, from their first instant on."""

from __future__ import annotations

import errno
import io
import os
from pathlib import Path
from typing import Any

import pytest

from fedveil.base.files import (
    PARTIAL,
    append_synced,
    append_whole,
    from_home,
    locked,
    open_in_place,
    open_to_append,
    put_new_in_place,
    refuse_link,
    write_all,
    write_new,
    write_whole,
)


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    file, partial = tmp_path / "file", tmp_path / f"file{PARTIAL}"
    partial.write_text("what a killed process has left")
    for data in (b"old", b"new"):
        write_whole(file, data, 0o640)
        assert file.read_bytes() == data
    assert list(tmp_path.iterdir()) == [file]
    assert file.stat().st_mode & 0o777 == 0o640


def test_a_file_is_on_disk_before_it_has_its_name_and_the_name_before_it_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, synced = tmp_path / "file", list[tuple[Path, bool]]()
    monkeypatch.setattr(
        "os.fsync",
        lambda opened: synced.append((Path(f"/proc/self/fd/{opened}").resolve(), file.exists())),
    )
    write_whole(file, b"new")
    assert synced == [(tmp_path / f"file{PARTIAL}", False), (tmp_path, True)]


def without_links(source: Path, target: Path) -> None:
    """Do what `os.link` does on a file system such as FAT."""
    raise PermissionError(errno.EPERM, "Operation not permitted", str(source), None, str(target))


@pytest.mark.parametrize("has_links", [True, False])
def test_a_file_is_put_in_place_only_if_the_place_is_free(
    has_links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_links:
        monkeypatch.setattr("os.link", without_links)
    file, partial = tmp_path / "file", tmp_path / f"file{PARTIAL}"
    gone = tmp_path / "gone"
    for taken in (lambda: file.write_text("another's"), lambda: file.symlink_to(gone)):
        partial.write_text("own")
        taken()
        with pytest.raises(FileExistsError):
            put_new_in_place(partial, file)
        assert partial.read_text() == "own"
        assert file.is_symlink() or file.read_text() == "another's"
        assert not gone.exists()
        file.unlink()
    partial.chmod(0o640)
    synced = list[tuple[Path, bool]]()
    monkeypatch.setattr(
        "os.fsync",
        lambda opened: synced.append((Path(f"/proc/self/fd/{opened}").resolve(), file.exists())),
    )
    put_new_in_place(partial, file)
    assert synced == [(partial, False), (tmp_path, True)]
    assert [*tmp_path.iterdir()] == [file]
    assert (file.read_text(), file.stat().st_mode & 0o777) == ("own", 0o640)


def test_a_new_file_is_its_owners_alone_and_never_replaces_one(tmp_path: Path) -> None:
    file = tmp_path / "key"
    write_new(file, b"secret")
    assert file.stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        write_new(file, b"another")
    assert file.read_bytes() == b"secret"


def test_a_file_grows_at_its_end_and_never_through_a_link(tmp_path: Path) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    for data in (b"old", b"new"):
        with open_to_append(file) as stream:
            stream.write(data)
    link.symlink_to(file)
    with pytest.raises(OSError, match="it is a link, and fedveil writes nothing through links"):
        open_to_append(link)
    with pytest.raises(OSError, match="it is a link, and fedveil writes nothing through links"):
        open_in_place(link, os.O_WRONLY | os.O_TRUNC)
    assert file.read_bytes() == b"oldnew"


def test_a_lock_is_not_made_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "file.lock").symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match="it is a link"), locked(tmp_path / "file"):
        pass
    assert not (tmp_path / "other").exists()


def test_a_link_is_refused_with_and_without_its_file(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "file")
    for _ in range(2):
        with pytest.raises(OSError, match="it is a link, and fedveil writes nothing through links"):
            refuse_link(tmp_path / "link")
        (tmp_path / "file").touch()
        refuse_link(tmp_path / "file")


def test_a_lock_is_held_by_one_at_a_time(tmp_path: Path) -> None:
    with (
        locked(tmp_path / "file"),
        pytest.raises(BlockingIOError),
        locked(tmp_path / "file", wait=False),
    ):
        pass
    with locked(tmp_path / "file", wait=False), locked(tmp_path / "other", wait=False):
        pass


def test_a_device_is_not_changed_in_place() -> None:
    with pytest.raises(OSError, match="it is a device, not a regular file"):
        open_in_place(Path("/dev/null"), os.O_WRONLY)


def test_a_users_home_is_found_and_an_unknown_users_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert from_home("~/texts") == tmp_path / "texts"
    assert from_home("~nobody-of-this-name/texts") == Path("~nobody-of-this-name/texts")
    assert from_home(Path("data/~x")) == Path("data/~x")


def test_a_line_is_whole_though_the_system_takes_it_piece_by_piece() -> None:
    class Slow(io.BytesIO):
        def write(self, data: Any) -> int:
            return super().write(bytes(data[:5]))

    file = Slow()
    write_all(file, b'{"round": 3, "loss": 0.25}\n')
    assert file.getvalue() == b'{"round": 3, "loss": 0.25}\n'


@pytest.mark.parametrize("append", [append_whole, append_synced])
def test_a_record_is_appended_as_a_whole_or_not_at_all(tmp_path: Path, append: Any) -> None:
    """The disk takes three bytes at a time, and fills up in the second record."""

    class Disk(io.FileIO):
        room = 11

        def write(self, data: Any) -> int:
            if not self.room:
                raise OSError(errno.ENOSPC, "No space left on device")
            written = super().write(data[: min(3, self.room)])
            self.room -= written
            return written

    with Disk(tmp_path / "file", "ab") as file:
        append(file, b"12345678")
        with pytest.raises(OSError, match="No space"):
            append(file, b"abcdefgh")
        file.room = 8
        append(file, b"ABCDEFGH")
    assert (tmp_path / "file").read_bytes() == b"12345678ABCDEFGH"


def test_a_record_is_on_disk_when_it_is_appended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, synced = tmp_path / "file", list[tuple[Path, bytes]]()
    monkeypatch.setattr(
        "os.fsync",
        lambda opened: synced.append(
            (Path(f"/proc/self/fd/{opened}").resolve(), path.read_bytes())
        ),
    )
    with open_to_append(path) as file:
        append_synced(file, b"one")
        append_synced(file, b"three")
    assert synced == [(path, b"one"), (path, b"onethree")]
