"""A client's own account: what it allows, to how many processes, and when the disk has it."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from fedveil.base.files import write_whole
from fedveil.base.message import decode
from fedveil.errors import ClientWithheld, DeploymentError, MessageInvalid
from fedveil.flower import own_file
from fedveil.flower.own_account import OwnLedger, count_report
from fedveil.flower.own_file import OwnFile
from fedveil.privacy.loss import PrivacyLoss
from fedveil.protections.base import Spending

ONE = [Spending(PrivacyLoss(0.5))]
PROCESSES, ATTEMPTS, LIMIT = 3, 100, 150

_WORKER = """
import sys, time
from pathlib import Path
from fedveil.errors import ClientWithheld, MessageInvalid
from fedveil.flower.own_account import OwnLedger, count_report
from fedveil.privacy.loss import PrivacyLoss
from fedveil.protections.base import Spending

kind, path, attempts, limit = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
one = [Spending(PrivacyLoss(0.5))]
print("ready", flush=True)
sys.stdin.readline()
granted = 0
for _ in range(attempts):
    try:
        if kind == "count":
            count_report(path, one, limit)
        else:
            OwnLedger(path).charge(one, [(limit * 0.5, 0.0)])
        granted += 1
    except (ClientWithheld, MessageInvalid):
        pass
print(granted)
"""


@pytest.mark.parametrize("kind", ["count", "ledger"])
def test_processes_together_are_granted_what_the_limit_says(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "account"
    arguments = [kind, str(path), str(ATTEMPTS), str(LIMIT)]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _WORKER, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(PROCESSES)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    granted = [int(process.communicate(timeout=60)[0]) for process in processes]
    assert sum(granted) == LIMIT
    given = path.read_text() if kind == "count" else decode(path.read_bytes())["reports"]
    assert int(given) == LIMIT  # type: ignore[arg-type]


def test_what_was_not_granted_is_not_charged(tmp_path: Path) -> None:
    account = OwnLedger(tmp_path / "account")
    account.charge(ONE, [(0.5, 0.0)])
    before = (tmp_path / "account").read_bytes()
    with pytest.raises(MessageInvalid, match=r"to epsilon 1 at delta 0 \(strong\), above its"):
        account.charge(ONE, [(0.5, 0.0)])
    assert (tmp_path / "account").read_bytes() == before


def test_a_damaged_account_grants_nothing(tmp_path: Path) -> None:
    path = tmp_path / "account"
    for damaged in (b"-1", b"", b"\xff", b"9" * 5000, "²".encode(), b"1\n"):
        OwnFile(path).write(damaged)
        with pytest.raises(DeploymentError, match="is damaged: it does not hold a number"):
            count_report(path, ONE, 9)
    with pytest.raises(DeploymentError, match="is damaged"):
        OwnLedger(path).charge(ONE, [])


@pytest.mark.parametrize("kind", ["count", "ledger"])
def test_an_account_that_is_set_back_or_deleted_grants_nothing(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "account"

    def charge() -> None:
        if kind == "count":
            count_report(path, ONE, 9)
        else:
            OwnLedger(path).charge(ONE, [])

    charge()
    old = path.read_bytes()
    charge()
    new, seal = path.read_bytes(), (tmp_path / "account.seal").read_bytes()
    key = (tmp_path / "seal-key").read_bytes()
    for happens, sentence in (
        (lambda: path.write_bytes(old), "was edited or replaced by an older copy"),
        (path.unlink, "account is missing: its seal names another content"),
        ((tmp_path / "account.seal").unlink, "account.seal is missing: it vouches for account"),
        ((tmp_path / "seal-key").unlink, "account.seal was edited, or made with another seal-key"),
        (
            lambda: (tmp_path / "account.seal").write_bytes(seal[:-1] + bytes([seal[-1] ^ 1])),
            "was edited, or made",
        ),
        (lambda: (tmp_path / "account.seal").write_bytes(b""), "was edited, or made with another"),
    ):
        happens()
        with pytest.raises(DeploymentError, match=sentence):
            charge()
        path.write_bytes(new)
        (tmp_path / "account.seal").write_bytes(seal)
        (tmp_path / "seal-key").write_bytes(key)
    charge()


def test_a_seal_vouches_for_one_file_alone(tmp_path: Path) -> None:
    OwnFile(tmp_path / "one").write(b"1")
    OwnFile(tmp_path / "other").write(b"2")
    (tmp_path / "other").write_bytes(b"1")
    (tmp_path / "other.seal").write_bytes((tmp_path / "one.seal").read_bytes())
    with pytest.raises(DeploymentError, match=r"other.seal was edited"):
        OwnFile(tmp_path / "other").read()


@pytest.mark.parametrize("writes", [1, 2, 3])
def test_a_process_killed_between_any_two_writes_leaves_a_file_that_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    file = OwnFile(tmp_path / "account")
    file.write(b"old")
    left = iter(range(writes))

    def dying(path: Path, data: bytes, mode: int) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt
        write_whole(path, data, mode)

    monkeypatch.setattr(own_file, "write_whole", dying)
    with contextlib.suppress(KeyboardInterrupt):
        file.write(b"new")
    monkeypatch.undo()
    assert file.read() == (b"old" if writes == 1 else b"new")
    file.write(b"newer")
    assert file.read() == b"newer"


def test_a_process_that_died_in_mid_write_leaves_the_account_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "account"
    count_report(path, ONE, 2)
    (tmp_path / "account.part").write_text("")
    count_report(path, ONE, 2)
    with pytest.raises(ClientWithheld, match="has given 2 reports of this job"):
        count_report(path, ONE, 2)
