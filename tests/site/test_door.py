"""A study's server and six sites, each behind its own door."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from flower_parts import CLIENTS, app_of, serve
from site_parts import MASKED, Sites, study, write_policy


@pytest.mark.parametrize("protection", [None, MASKED], ids=["distributed_dp", "pw_encrypt"])
def test_an_accepted_job_trains_and_each_report_is_charged(
    tmp_path: Path, stack: ExitStack, protection: object, reads: list[int]
) -> None:
    """One site's data cannot be read. Its report is one of zero: nobody learns which one it is."""
    changes = {} if protection is None else {"protection": protection}
    app, _ = app_of(tmp_path / "app", study(record={"page": False}, **changes))
    sites = Sites(tmp_path, app)
    said = sites.policies[2]
    said["data"] = {"heart": {"named": "digits", "reader": "site_parts:unreadable"}}
    write_policy(sites.folders[2], said)
    grid = sites.grid(stack)
    records = serve(app, grid, tmp_path / "run").metrics
    assert [record["reports"] for record in records] == [CLIENTS, CLIENTS]
    assert len(reads) == 2 * CLIENTS
    for number in range(CLIENTS):
        account = sites.site(number).account("heart")
        found = account.spent(unit="example")
        assert found.releases == 2
        assert found.without_epsilon == (0 if protection is None else 2)
        assert (0 < found.figure.epsilon < 2) == (protection is None)
        assert {charged.through for charged in account.charges} == {"Flower, study"}
    assert "patient 4711" not in str(grid.replies)
    assert sites.log(1).count(" sent run 1 train.masked: ") == 2
    assert " refused " not in sites.log(1)


def test_exact_sums_end_at_their_limit(tmp_path: Path, stack: ExitStack, reads: list[int]) -> None:
    app, _ = app_of(tmp_path / "app", study(protection=MASKED, record={"page": False}, rounds=3))
    sites = Sites(tmp_path, app, epsilon={"exact_sums": 1})
    records = serve(app, sites.grid(stack), tmp_path / "run").metrics
    assert [record["reports"] for record in records] == [CLIENTS, 0, 0]
    assert len(reads) == CLIENTS
    assert "promises no epsilon, and the site allows 1 such" in sites.log()
