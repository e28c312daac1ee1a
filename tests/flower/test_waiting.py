"""Whom the server waits for and asks together, and what it makes of a node's answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.supercore.task_identity import TaskIdentity

import compiled_in_time
from fedveil.base.kernels import HAVE_NUMBA
from fedveil.base.message import decode
from fedveil.errors import MessageInvalid, RunStopped
from fedveil.flower import fixed_time
from fedveil.flower.job import client_training, grid_executor, job_client
from fedveil.flower.job.grid_executor import GridExecutor
from fedveil.flower.records import named_clients
from fedveil.rounds import outcomes
from flower_parts import CLIENTS, SHARES, LocalGrid, app_of, job, serve


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


def test_a_round_needs_its_own_clients_and_ends_the_others_last_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server waits for everybody once. Clients of the round forget by themselves."""
    made, waited = executor(6, wait_s=7.5)
    made._members.node_of, made._started = {client: 50 + client for client in range(6)}, False
    made._protection: Any = SimpleNamespace(least_clients=3)
    pushed: list[Any] = []
    made._grid: Any = SimpleNamespace(push_messages=pushed.append)
    monkeypatch.setattr(
        grid_executor, "FlowerMessage",
        lambda records, node, question, ttl: (node, question, named_clients(records)),
    )  # fmt: skip
    rounds = ((1, [0, 2, 4, 5], set[int]()), (2, [1, 3], {1, 4, 5}), (3, [4], {4}))
    for round, cohort, unfinished in rounds:
        made._unfinished = unfinished
        context: Any = SimpleNamespace(round=round, cohort=cohort)
        made.open(context)
        assert (made._context, made._opening, made._unfinished) == (context, True, set())
    everybody = (list(range(CLIENTS)), CLIENTS, 7.5)
    assert waited == [
        everybody, ([0, 2, 4, 5], 3, 7.5), ([1, 3], 2, 7.5), ([4], 1, 7.5)
    ]  # fmt: skip
    assert pushed == [[(54, "query.forget", [4]), (55, "query.forget", [5])]]


def test_only_a_client_s_own_error_is_its_word() -> None:
    """Flower's own errors may have any text. One of the SuperLink is no answer of the client."""
    made, _ = executor(6)
    away: Any = SimpleNamespace(code=5, reason=job_client.FAILED)
    assert not [*made._answers(9, [2], SimpleNamespace(error=away, has_error=lambda: True))]  # type: ignore[arg-type]
    for code, kind in ((job_client.ERROR_CODE, outcomes.Failed), (2, outcomes.Unreached)):
        error = SimpleNamespace(code=code, reason=job_client.FAILED)
        reply: Any = SimpleNamespace(error=error, has_error=lambda: True)
        (answer,) = made._answers(9, [2], reply)
        assert (type(answer), answer.client) == (kind, 2)


@pytest.mark.parametrize(("deadline_s", "window_s"), [(7.5, 7.5), (None, 41.0)])
def test_the_deadline_of_a_protection_comes_before_the_job_s(
    deadline_s: float | None, window_s: float
) -> None:
    nothing: Any = SimpleNamespace(deadline_s=deadline_s)
    made = GridExecutor(nothing, job(deployment={"answer_s": 41.0}), nothing, nothing, print)
    assert made._window_s == window_s


@pytest.mark.parametrize(
    ("longest", "parts"),
    [(100, [(7, [0, 1, 3]), (5, [2])]), (15_000_000, [(7, [0, 1]), (7, [3]), (5, [2])]),
     (20_000_000, [(7, [0]), (7, [1]), (7, [3]), (5, [2])]),
     (90_000_000, [(7, [0]), (7, [1]), (7, [3]), (5, [2])])],
)  # fmt: skip
def test_one_reply_holds_as_many_reports_as_fit(
    longest: int, parts: list[tuple[int, list[int]]]
) -> None:
    made, _ = executor(6)
    made._members.node_of = {0: 7, 1: 7, 2: 5, 3: 7}
    made._protection: Any = SimpleNamespace(longest_report=lambda: longest)
    assert list(made._parts(range(4))) == parts


def test_only_clients_that_have_keys_and_a_node_are_told_to_forget_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, _ = executor(6)
    made._members.node_of = {0: 7, 1: 7, 2: 5, 3: 7, 4: 5}
    made._window_s, made._grid = 3.0, None
    made._protection: Any = SimpleNamespace(phases=("keys", "report"))
    answers = [
        outcomes.Report(0, b""), outcomes.Withheld(1, "why"), outcomes.Unreached(2),
        outcomes.Failed(3, "why"), outcomes.Report(4, b""),
    ]  # fmt: skip
    monkeypatch.setattr(grid_executor, "exchange", lambda *asked: [(0, None)])
    monkeypatch.setattr(made, "_parts", lambda reached: [(7, list(reached))])
    monkeypatch.setattr(made, "_outgoing", lambda *asked: [])
    monkeypatch.setattr(made, "_answers", lambda *replied: answers)
    made._unfinished = {0, 1, 2, 3, 4, 9}
    asked = list(made.ask("keys", {client: {} for client in (0, 1, 2, 3, 4, 9)}))
    assert asked == [outcomes.Unreached(9), *answers]
    assert made._unfinished == {0, 2, 4, 9}
    monkeypatch.setattr(
        grid_executor, "FlowerMessage",
        lambda records, node, question, ttl: (node, named_clients(records)),
    )  # fmt: skip
    told: Any = dict(made._farewells())
    assert told == {7: [0], 5: [2, 4]}  # client 9 has no node
    assert len(list(made.ask("report", {client: {} for client in range(5)}))) == 5
    assert made._unfinished == {9}


def test_whoever_is_asked_in_a_round_of_several_messages_has_to_end_it() -> None:
    """This includes the first message, for which clients make their keys."""
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
    for phases, unfinished in ((("keys", "report"), {1, 4}), (("report",), set())):
        made, _ = executor(6)
        made._opening, made._window_s, made._unfinished = True, 41.0, set()
        made._protection: Any = SimpleNamespace(phases=phases, trains="report")
        made._context: Any = SimpleNamespace(round=3, sent=np.zeros(5, np.float32))
        made._common = lambda trains: {"opening": True}  # type: ignore[assignment, misc]
        sent = list(made._outgoing(phases[0], {1: {}, 4: {}}, [(7, [1]), (5, [4])]))
        assert made._unfinished == unfinished
        assert [(m.metadata.dst_node_id, m.metadata.ttl, m.metadata.group_id) for m in sent] == [
            (7, 341.0, "3"), (5, 341.0, "3"),
        ]  # fmt: skip
        assert {m.metadata.message_type for m in sent} == {f"train.{phases[0]}"}


def test_a_node_counts_the_examples_of_each_of_its_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    files: Any = SimpleNamespace(job=job(deployment={"reveal": ["examples"]}), data="shared")
    counts = {(1, "own:a", "shared"): 31, (4, None, "shared"): 17}
    monkeypatch.setattr(
        client_training, "example_count", lambda asked, *of: counts[of] if asked is files.job else 0
    )
    members: list[Any] = [
        SimpleNamespace(client=client, data=data, job=None, owner=None)
        for client, data, _ in counts
    ]
    said = decode(job_client._introduce(files, members))
    assert [np.atleast_1d(said[name]).tolist() for name in ("client", "examples")] == [
        [1, 4], [31, 17],
    ]  # fmt: skip
    assert decode(job_client._introduce(files, members[1:])) == {"client": 4, "examples": 17}
    files.job = job()
    assert decode(job_client._introduce(files, members[:1])) == {"client": 1}


@pytest.mark.parametrize("round", [0, 4])
def test_a_round_that_the_job_does_not_have_is_not_answered(round: int) -> None:
    files: Any = SimpleNamespace(job=job(rounds=3))
    asked = (2, {}, {"round": round, "dimension": 9, "opening": True})
    nothing: Any = SimpleNamespace(client=2)
    with pytest.raises(MessageInvalid, match=rf"round = {round} is outside \[1, 3\]"):
        job_client._answer(files, nothing, asked, nothing)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("asked", "own", "after_s"), [(7.0, 3.0, 7.0), (3.0, 7.0, 7.0), (None, 3.0, 3.0),
                                  (7.0, None, 7.0), (None, None, None)],
)  # fmt: skip
def test_a_report_leaves_at_the_later_of_two_times(
    asked: float | None, own: float | None, after_s: float | None
) -> None:
    settings = job(deployment={"answer_after_s": asked, "answer_s": 9.0})
    member: Any = SimpleNamespace(owner=SimpleNamespace(answer_after_s=own))
    assert job_client._answer_after_s(settings, member) == after_s
    member.owner = None
    assert job_client._answer_after_s(settings, member) == asked


def test_the_training_code_is_imported_before_the_time_of_an_answer_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The import takes seconds, in which a short training would miss its deadline."""
    name, here = "fedveil.flower.job.client_training", list[bool]()
    measured = job_client.FixedTime

    def begun(*arguments: Any) -> Any:
        here.append(name in sys.modules)
        return measured(*arguments)

    monkeypatch.setattr(job_client, "FixedTime", begun)
    monkeypatch.setattr(sys.modules["fedveil.flower.job"], "client_training", None, raising=False)
    monkeypatch.delitem(sys.modules, name, raising=False)
    app, _ = app_of(tmp_path / "app", job(rounds=1))
    serve(app, LocalGrid(app, tmp_path / "state"), tmp_path / "run")
    assert here
    assert all(here)


WAITING = {"answer_s": 900.0, "answer_after_s": 100.0, "wait_s": 60.0}
LONG = {**SHARES["distributed_dp"], "cipher_time_window": 900_000}  # type: ignore[dict-item]
BY_EXAMPLE = {
    "protection": "dp_encrypt",
    "privacy": {"unit": "example"},
    "training": {"sampling_rate": 0.3, "batch_size": 10},
    "model": "parts:linear",
}


@pytest.mark.skipif(not HAVE_NUMBA, reason="without numba, nothing is compiled")
@pytest.mark.parametrize(
    "settings",
    [{"protection": "rr"}, {"protection": {**SHARES, "distributed_dp": LONG}}, BY_EXAMPLE],
    ids=["rr", "distributed_dp", "by example"],
)
def test_native_code_is_compiled_before_the_time_of_an_answer_is_measured(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    """In a new process, as a SuperNode starts one for each message."""
    script = Path(compiled_in_time.__file__)
    asked = json.dumps({**settings, "deployment": WAITING})
    paths = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    said = subprocess.run(
        [sys.executable, str(script), asked, str(tmp_path)],
        env={**os.environ, **paths}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert said.returncode == 0, said.stderr
    assert json.loads(said.stdout.splitlines()[-1]) == [[]] * 6


def test_a_client_compiles_only_if_its_answer_has_a_time_and_needs_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(protection: Any) -> None:
        compiled.append(protection.name)
        raise ValueError("nothing compiles here")

    compiled: list[str] = []
    monkeypatch.setattr("fedveil.engine.precompile.compile_reports", failing)
    monkeypatch.setattr(fixed_time, "time", SimpleNamespace(sleep=print, monotonic=lambda: 0.0))
    for after_s, times in ((None, 0), (60.0, 6)):
        app, _ = app_of(
            tmp_path / f"app-{times}",
            job(rounds=1, protection="rr", deployment={**WAITING, "answer_after_s": after_s}),
        )
        grid = LocalGrid(app, tmp_path / f"state-{times}")
        result = serve(app, grid, tmp_path / f"run-{times}")
        assert (compiled, result.metrics[0]["reports"]) == (["rr"] * times, 6)
