"""Attacks on an account's file: it is shortened, set back, edited or exchanged."""

from __future__ import annotations

import errno
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from account_parts import DELTA, FREE, KEY, Place, in_a_process, killed_at, release
from fedveil.errors import AccountInvalid, InvalidValue, OverSpent
from fedveil.privacy.loss import PrivacyLoss
from fedveil.site import account_counter
from fedveil.site.account import Limits


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def charged(place: Place, times: int, name: str = "adult") -> None:
    account = place.open(name)
    for n in range(times):
        account.charge(release(PrivacyLoss(0.1 + n)), limit=FREE)


@pytest.mark.parametrize("append", [0, 1])
@pytest.mark.parametrize("share", [0.0, 0.4, 0.99, 1.0])
def test_a_process_killed_in_any_write_loses_no_charge(
    place: Place, append: int, share: float
) -> None:
    """Append 0 is that of the line, and append 1 that of the counter."""
    charged(place, 2)
    running = place.open()

    def die() -> None:
        account = place.open()
        killed_at(append, share)
        account.charge(release(PrivacyLoss(0.7)), limit=FREE)

    assert os.waitpid(in_a_process(die), 0)[1] == signal.SIGKILL
    counted = append == 1 or share == 1.0
    for account in (place.open(), running):
        assert account.spent().releases == 2 + counted
        account.charge(release(PrivacyLoss(0.9)), limit=FREE)
        counted += 1
    assert [c.kind[0][0].epsilon for c in place.open().charges][-1] == 0.9


@pytest.mark.parametrize("before", [0, 1])
def test_a_charge_that_a_full_disk_left_uncounted_is_in_the_account(
    place: Place, monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    """A site serves many rounds with one account, which must agree with its file."""
    charged(place, before)
    account, limit = place.open(), Limits(month=1.0)

    def full(path: Path, line: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(account_counter, "append", full)
        with pytest.raises(AccountInvalid, match="No space left"):
            account.charge(release(PrivacyLoss(0.5)), limit=FREE)
    assert account.spent() == place.open().spent()
    assert account.spent().releases == before + 1
    with pytest.raises(OverSpent):
        account.charge(release(PrivacyLoss(0.6)), limit=limit)
    account.charge(release(PrivacyLoss(0.3)), limit=limit)
    assert account.spent() == place.open().spent()


@pytest.mark.parametrize("reader", ["new", "running"])
def test_a_line_that_a_killed_process_left_uncounted_cannot_be_removed_once_it_was_read(
    place: Place, reader: str
) -> None:
    """The next process counts the line, even if it charges nothing."""
    charged(place, 2)
    running = place.open()

    def die() -> None:
        account = place.open()
        killed_at(1, 0.4)
        account.charge(release(PrivacyLoss(0.7)), limit=FREE)

    assert os.waitpid(in_a_process(die), 0)[1] == signal.SIGKILL
    whole = lines_of(place)
    if reader == "new":
        place.open()
    else:
        running.refresh()
    assert len(whole) == 3
    place.file().write_bytes(b"".join(whole[:2]))
    with pytest.raises(AccountInvalid, match=r"has 2 lines, but .* has counted 3"):
        place.open()


def test_a_process_killed_in_its_first_write_leaves_an_account(place: Place) -> None:
    for append, share, lines in ((0, 0.5, 0), (1, 0.5, 1)):

        def die(append: int = append, share: float = share) -> None:
            account = place.open()
            killed_at(append, share)
            account.charge(release(), limit=FREE)

        assert os.waitpid(in_a_process(die), 0)[1] == signal.SIGKILL
        assert place.open().spent().releases == lines
    charged(place, 1)
    assert place.open().spent().releases == 2


def set_back(place: Place) -> None:
    old = place.file().with_name("old")
    shutil.copy(place.file(), old)
    charged(place, 2)
    old.replace(place.file())


def set_back_in_place(place: Place) -> None:
    old = place.file().read_bytes()
    charged(place, 2)
    place.file().write_bytes(old)


def set_back_folder(place: Place) -> None:
    old = place.folder.with_name("old")
    shutil.copytree(place.folder, old)
    charged(place, 2)
    shutil.rmtree(place.folder)
    old.rename(place.folder)


def set_back_counter(place: Place) -> None:
    old = place.counter.read_bytes()
    charged(place, 2)
    place.counter.write_bytes(old)


def repeat_old_count(place: Place) -> None:
    """The counter's own older line is its last again, and the account is as old."""
    old, line = place.file().read_bytes(), place.counter.read_bytes().splitlines(True)[-1]
    charged(place, 2)
    place.file().write_bytes(old)
    place.counter.write_bytes(place.counter.read_bytes() + line)


def forge_count(place: Place) -> None:
    """The counter says that the account has only the lines that it has now."""
    lines = lines_of(place)[:2]
    place.file().write_bytes(b"".join(lines))
    place.counter.write_text(f"adult 2 {lines[1][:64].decode()} {64 * '0'}\n")


def another_branch(place: Place) -> None:
    """The account has one line more than was counted, but other ones."""
    files = place.file(), place.counter
    held = [file.read_bytes() for file in files]
    charged(place, 1)
    counted = place.counter.read_bytes()
    for file, old in zip(files, held, strict=True):
        file.write_bytes(old)
    for _ in range(2):
        place.open().charge(release(PrivacyLoss(0.01)), limit=FREE)
    place.counter.write_bytes(counted)


def lines_of(place: Place) -> list[bytes]:
    return place.file().read_bytes().splitlines(keepends=True)


def rewrite(change: Callable[[list[bytes]], list[bytes]]) -> Callable[[Place], None]:
    def attack(place: Place) -> None:
        place.file().write_bytes(b"".join(change(lines_of(place))))

    return attack


def exchange(place: Place) -> None:
    charged(place, 3, "lung")
    names = place.file("adult"), place.file("lung"), place.folder / "x"
    for old, new in ((0, 2), (1, 0), (2, 1)):
        names[old].rename(names[new])


def as_another(place: Place) -> None:
    """The whole of another, cheaper account under this one's name, counted under this name."""
    charged(place, 2, "lung")
    shutil.copy(place.file("lung"), place.file())
    counts = place.counter.read_text().splitlines()
    place.counter.write_text("".join(f"{c.replace('lung', 'adult')}\n" for c in counts))


ATTACKS: dict[str, Callable[[Place], None]] = {
    "set back": set_back,
    "set back in place": set_back_in_place,
    "folder set back": set_back_folder,
    "counter set back": set_back_counter,
    "old count repeated": repeat_old_count,
    "count forged": forge_count,
    "another branch": another_branch,
    "deleted": lambda place: place.file().unlink(),
    "emptied": lambda place: place.file().write_bytes(b""),
    "folder deleted": lambda place: shutil.rmtree(place.folder),
    "counter deleted": lambda place: place.counter.unlink(),
    "counter emptied": lambda place: place.counter.write_bytes(b""),
    "last line removed": rewrite(lambda lines: lines[:-1]),
    "first line removed": rewrite(lambda lines: lines[1:]),
    "middle line removed": rewrite(lambda lines: lines[:1] + lines[2:]),
    "lines exchanged": rewrite(lambda lines: [lines[1], lines[0], *lines[2:]]),
    "line repeated": rewrite(lambda lines: [*lines, lines[-1]]),
    "cost lowered": rewrite(lambda lines: [lines[0].replace(b'"0.1"', b'"0.01"'), *lines[1:]]),
    "month changed": rewrite(lambda lines: [*lines[:2], lines[2].replace(b"-03-", b"-02-")]),
    "end torn off": rewrite(lambda lines: [*lines[:2], lines[2][:-9]]),
    "spaces added": rewrite(lambda lines: [*lines[:2], lines[2].replace(b'": ', b'":  ')]),
    "accounts exchanged": exchange,
    "another account's lines": as_another,
}
#: Attacks on lines that a running process has read, and whose lengths stay equal.
UNSEEN = {"lines exchanged", "month changed"}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_changed_account_is_refused_by_a_new_and_by_a_running_process(
    place: Place, attack: str
) -> None:
    charged(place, 3)
    running = place.open()
    ATTACKS[attack](place)
    before = place.file().read_bytes() if place.file().exists() else None
    for _ in range(2):
        with pytest.raises(AccountInvalid):
            place.open()
    assert before == (place.file().read_bytes() if place.file().exists() else None)
    if attack in UNSEEN:  # the running process still has the true sums
        running.charge(release(PrivacyLoss(0.5)), limit=FREE)
        assert running.spent().figure.epsilon == pytest.approx(3.8)
        return
    for _ in range(2):
        with pytest.raises(AccountInvalid):
            running.charge(release(), limit=FREE)


def test_another_key_or_a_short_one_is_refused(place: Place) -> None:
    charged(place, 1)
    with pytest.raises(
        AccountInvalid, match="line 1: it was edited, moved or written with another"
    ):
        place.open(key=KEY[::-1])
    with pytest.raises(InvalidValue, match="key has 31 bytes"):
        place.open(key=KEY[1:])
    assert place.open().spent().releases == 1


def test_without_a_counter_elsewhere_one_of_the_two_files_cannot_be_set_back(
    tmp_path: Path,
) -> None:
    place = Place(tmp_path, counter=False)
    charged(place, 2)
    assert not place.counter.exists()
    for file in (place.file(), place.folder / "counter"):
        held = file.read_bytes()
        file.write_bytes(b"")
        with pytest.raises(AccountInvalid):
            place.open()
        file.write_bytes(held)
    assert place.open().spent().releases == 2


def test_a_restored_account_goes_on(place: Place) -> None:
    charged(place, 3)
    running, held = place.open(), place.file().read_bytes()
    place.file().unlink()
    with pytest.raises(AccountInvalid, match=r"is missing, but .* has counted 3"):
        running.charge(release(), limit=FREE)
    place.file().write_bytes(held)
    running.charge(release(), limit=FREE)
    assert running.spent(delta=DELTA) == place.open().spent(delta=DELTA)
    assert running.spent().releases == running.windows("ever")[""].releases == 4


def test_a_copy_in_the_place_of_an_account_is_counted_once(place: Place) -> None:
    """No call sees the account without its file, so none has failed."""
    charged(place, 3)
    running = place.open()
    copy = place.file().with_suffix(".copy")
    copy.write_bytes(place.file().read_bytes())
    copy.replace(place.file())
    running.charge(release(), limit=FREE)
    assert running.spent(delta=DELTA) == place.open().spent(delta=DELTA)
    assert running.spent().releases == running.windows("ever")[""].releases == 4


def test_a_count_after_an_unfinished_one_is_counted(place: Place) -> None:
    charged(place, 2)
    with place.counter.open("ab") as counter:
        counter.write(b"adult 3 0123")
    charged(place, 1)
    place.file().write_bytes(b"".join(lines_of(place)[:2]))
    with pytest.raises(AccountInvalid, match="has counted 3"):
        place.open()


@pytest.mark.parametrize("name", ["", "../adult", "a/b", ".hidden", "a\n", "a b", "ä", "x" * 65])
def test_a_name_that_is_no_file_s_is_refused(place: Place, name: str) -> None:
    with pytest.raises(InvalidValue, match="is no name of an account"):
        place.open(name)


def test_a_full_disk_or_a_pipe_is_one_sentence(place: Place) -> None:
    charged(place, 1)
    place.counter.unlink()
    os.mkfifo(place.counter)
    with pytest.raises(AccountInvalid, match="counter cannot be used: it is a named pipe"):
        place.open()


def test_an_account_and_its_counter_are_for_their_owner_alone(place: Place) -> None:
    charged(place, 1)
    for file in (place.file(), place.counter):
        assert file.stat().st_mode & 0o077 == 0


def test_the_account_of_another_data_set_is_refused(place: Place) -> None:
    """The counter of this name was never written, as for a new data set."""
    charged(place, 1, "lung")
    shutil.copy(place.file("lung"), place.file("adult"))
    with pytest.raises(AccountInvalid, match=r"adult\.account, line 1: it was edited, moved"):
        place.open("adult")


def test_a_charge_is_on_disk_before_it_returns(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    charged(place, 1)
    synced: list[tuple[str, int]] = []
    sync = os.fsync

    def noted(descriptor: int) -> None:
        sync(descriptor)
        synced.append(
            (str(Path(f"/proc/self/fd/{descriptor}").readlink()), os.fstat(descriptor).st_size)
        )

    monkeypatch.setattr(os, "fsync", noted)
    charged(place, 1)
    files = place.file(), place.counter
    assert synced == [(str(file), file.stat().st_size) for file in files]
