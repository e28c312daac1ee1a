"""A study's server and six sites, each behind its own door."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from flower_parts import CLIENTS, app_of, serve
from site_parts import MASKED, Sites, study


@pytest.mark.parametrize("protection", [None, MASKED], ids=["distributed_dp", "pw_encrypt"])
def test_an_accepted_job_trains_and_each_report_is_charged(tmp_path: Path, protection: object):
    changes = {} if protection is None else {"protection": protection}
    app, _ = app_of(tmp_path / "app", study(**changes))
    sites = Sites(tmp_path, app)
    with ExitStack() as stack:
        records = serve(app, sites.grid(stack), tmp_path / "run").metrics
    assert [record["reports"] for record in records] == [CLIENTS, CLIENTS]
    print(sites.log())
