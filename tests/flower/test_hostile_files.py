"""Invalid files of a deployment: each is refused in one sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fedveil.errors import DeploymentError, FedveilError, RunFolderError
from fedveil.flower.app.saved_charges import KeptRounds
from fedveil.flower.job import app_folder
from fedveil.flower.job.app_folder import read_roster
from fedveil.flower.job.saved_states import run_name
from fedveil.flower.job.signing_key_file import read_identity
from fedveil.flower.own_account import OwnLedger
from fedveil.flower.own_file import number_in
from hostile_files import HOSTILE, bounded

READERS: dict[str, tuple[str, type[FedveilError], Callable[[Path], object]]] = {
    "ledger": ("file", DeploymentError, lambda p: KeptRounds(p, "terms").read()),
    "account": ("file", DeploymentError, lambda p: OwnLedger(p).note([])),
    "number": ("file", DeploymentError, number_in),
    "identity": ("file", DeploymentError, read_identity),
    "roster": ("file", DeploymentError, read_roster),
    "name": ("run", RunFolderError, lambda p: run_name(p.parent)),
}


@pytest.mark.parametrize("hostile", HOSTILE)
@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_file_of_its_kind_is_refused(reader: str, hostile: str, tmp_path: Path) -> None:
    name, error, read = READERS[reader]
    make, reason = HOSTILE[hostile]
    make(tmp_path / name)
    with bounded(), pytest.raises(error) as caught:
        read(tmp_path / name)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_roster_of_too_many_lines_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert app_folder._MOST_CLIENTS == 100_000
    monkeypatch.setattr(app_folder, "_MOST_CLIENTS", 700)
    roster = tmp_path / "roster.yaml"
    roster.write_text("".join(f"client-{n}: {n}\n" for n in range(701)))
    with pytest.raises(DeploymentError, match="there are more than 1,401 keys and values"):
        read_roster(roster)
