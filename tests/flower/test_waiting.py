"""How long the server waits for its clients, and what it makes of a node's error."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr")

from fedveil.errors import RunStopped
from fedveil.flower.job import job_client
from fedveil.flower.job.grid_executor import GridExecutor
from fedveil.rounds import outcomes
from flower_parts import CLIENTS, job


def executor(here: int, **deployment: Any) -> tuple[GridExecutor, list[Any]]:
    """Return an executor for a job, of whose clients some are here, and what it waited for."""
    made, waited = GridExecutor.__new__(GridExecutor), list[Any]()

    def wait_for(wanted: Any, enough: int, limit_s: float) -> int:
        waited.append((list(wanted), enough, limit_s))
        return here

    made._job = job(deployment=deployment)
    made._members: Any = SimpleNamespace(wait_for=wait_for, shared=set())
    return made, waited


@pytest.mark.parametrize("start", [None, 4])
def test_a_first_round_needs_its_clients_and_a_resumed_run_goes_on_without_some(
    start: int | None,
) -> None:
    enough = CLIENTS if start is None else start
    for wait_s, again_s in ((7.5, 7.5), (200.0, 90.0)):
        made, waited = executor(3, wait_s=wait_s, start_clients=start)
        with pytest.raises(RunStopped, match=f"3 of 6 clients .* {wait_s:g} s, {enough} are"):
            made._gather(1)
        made._gather(2)
        everybody = list(range(CLIENTS))
        assert waited == [(everybody, enough, wait_s), (everybody, enough, again_s)]


def test_only_a_client_s_own_error_is_its_word() -> None:
    """Flower's own errors may have any text."""
    made, _ = executor(6)
    for code, kind in ((job_client.ERROR_CODE, outcomes.Failed), (5, outcomes.Unreached)):
        error = SimpleNamespace(code=code, reason=job_client.FAILED)
        reply: Any = SimpleNamespace(error=error, has_error=lambda: True)
        (answer,) = made._answers(9, [2], reply)
        assert (type(answer), answer.client) == (kind, 2)
