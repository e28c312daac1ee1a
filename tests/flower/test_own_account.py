"""A client's own account: what it grants, to how many processes, and what is on the disk when."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from fedveil.errors import ClientWithheld, DeploymentError, MessageInvalid
from fedveil.flower.own_account import OwnLedger, count_report
from fedveil.message import decode
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
        path.write_bytes(damaged)
        with pytest.raises(DeploymentError, match="is damaged: it does not hold a number"):
            count_report(path, ONE, 9)
    with pytest.raises(DeploymentError, match="is damaged"):
        OwnLedger(path).charge(ONE, [])


def test_a_process_that_died_in_mid_write_leaves_the_account_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "account"
    count_report(path, ONE, 2)
    (tmp_path / "account.part").write_text("")
    count_report(path, ONE, 2)
    with pytest.raises(ClientWithheld, match="has given 2 reports of this job"):
        count_report(path, ONE, 2)
