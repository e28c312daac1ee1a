"""Executors that raise, in NVFlare's own runner of tasks with a site's privacy scope."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

pytest.importorskip("nvflare.apis", reason="needs nvflare")
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.executor import Executor
from nvflare.apis.filter import ContentBlockedException
from nvflare.apis.fl_constant import FilterKey, FLContextKey, ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.fl_exception import UnsafeJobError
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.apis.workspace import Workspace
from nvflare.app_common.app_constant import AppConstants
from nvflare.private.fed.client.client_runner import (
    ClientRunner,
    ClientRunnerConfig,
    TaskAssignment,
    TaskRouter,
)
from nvflare.private.privacy_manager import Scope

from fedveil.nvflare.components import SiteResultFilter, SiteTaskFilter
from fedveil.nvflare.hidden_failures import hide_failures
from fedveil.site.site_folder import Site
from nvflare_parts import NOISE, resources, site_in

CLEAR = {**NOISE, "dp_eps": 1e7}
RICH = {"epsilon": {"run": 1e9, "month": 1e9, "ever": 1e9}}
ANSWER_S = 0.6


class Failing(Executor):  # type: ignore[misc]
    """Moves every weight by 0.5, unless `fails` does something else."""

    def __init__(self, fails: Callable[[], Any] | None = None) -> None:
        super().__init__()
        self.fails = fails

    def execute(
        self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal
    ) -> Any:
        if self.fails is not None:
            return self.fails()
        weights = from_shareable(shareable).data["w"]
        return DXO(DataKind.WEIGHTS, {"w": weights + np.float32(0.5)}).to_shareable()


class Panic(BaseException):
    """Derives from BaseException alone, as pyo3_runtime.PanicException does."""


def raises(error: BaseException) -> Callable[[], Any]:
    def fail() -> Any:
        raise error

    return fail


FAILURES = {
    "a wrong row": raises(KeyError("a patient's name")),
    "an error that NVFlare takes to end the job": raises(RuntimeError("loss is nan")),
    "an unsafe job": raises(UnsafeJobError("row 7")),
    "an end of the process": raises(SystemExit(3)),
    "a panic of a library in Rust": raises(Panic("row 7 has no label")),
    "no result": lambda: None,
    "a result of another kind": lambda: {"w": [1.0]},
}


class Client:
    """NVFlare's runner at a site, whose scope has the site's two filters."""

    def __init__(self, folder: Path, executor: Executor, **policy: Any) -> None:
        self.site = site_in(folder / "north", **RICH, **policy)
        self.folder = folder
        router = TaskRouter()
        router.add_executor(["tr*"], executor)
        engine = MagicMock()
        self.runner = ClientRunner({}, ClientRunnerConfig(router, {}, {}), "job-7", engine)
        self.scope = Scope()
        admits = SiteTaskFilter(str(self.site.folder), "heart", CLEAR)
        self.scope.add_task_data_filter(admits, FilterKey.IN)
        self.scope.add_task_result_filter(SiteResultFilter(), FilterKey.OUT)

    def answer(self, task: str = "train") -> Shareable:
        data = DXO(DataKind.WEIGHTS, {"w": np.full((2, 3), 7.0, np.float32)}).to_shareable()
        data.set_header(AppConstants.CURRENT_ROUND, 4)
        assigned = TaskAssignment(name=task, task_id="t1", data=data)
        return self.runner._process_task(assigned, self.context())

    def context(self) -> FLContext:
        place, fl_ctx, server = self.folder / "workspace", FLContext(), FLContext()
        for inner in ("startup", "local"):
            (place / inner).mkdir(parents=True, exist_ok=True)
        (place / "local" / "resources.json").write_text(json.dumps(resources()))
        server.set_prop(ReservedKey.RUN_NUM, "job-7", private=False, sticky=False)
        fl_ctx.set_peer_context(server)
        for key, value in (
            (FLContextKey.WORKSPACE_OBJECT, Workspace(str(place), site_name="north")),
            (FLContextKey.RUNNER, self.runner),
            (FLContextKey.SCOPE_OBJECT, self.scope),
            (ReservedKey.RUN_NUM, "job-7"),
            (ReservedKey.IDENTITY_NAME, "north"),
        ):
            fl_ctx.set_prop(key, value, private=True, sticky=False)
        return fl_ctx


def sent(reply: Shareable) -> Any:
    assert reply.get_return_code() == ReturnCode.OK
    return from_shareable(reply).data["w"]


def test_a_trained_task_leaves_as_its_update(tmp_path: Path) -> None:
    client = Client(tmp_path, Failing())
    np.testing.assert_allclose(sent(client.answer()), 0.5, atol=0.02)


@pytest.mark.parametrize("what", FAILURES)
def test_an_executor_that_fails_leaves_as_an_update_of_zero(tmp_path: Path, what: str) -> None:
    client = Client(tmp_path, Failing(FAILURES[what]))
    for _ in range(2):
        np.testing.assert_allclose(sent(client.answer()), 0.0, atol=0.02)
    assert client.site.account("heart").spent().releases == 2
    log = (client.site.folder / "logs" / "nvflare" / "site.log").read_text()
    assert log.count("reported an update of zero") == 2


def test_an_interrupt_of_the_process_is_no_failure_of_its_executor(tmp_path: Path) -> None:
    class Runner:
        executor = Failing(raises(KeyboardInterrupt()))

        def find_executor(self, task: str) -> Executor:
            return self.executor

    fl_ctx = FLContext()
    fl_ctx.set_prop(FLContextKey.RUNNER, Runner(), private=True, sticky=False)
    hide_failures(fl_ctx, "train", lambda fl_ctx: None)
    with pytest.raises(KeyboardInterrupt):
        Runner.executor.execute("train", Shareable(), fl_ctx, Signal())


def test_the_answer_of_a_failure_leaves_at_the_fixed_time(tmp_path: Path) -> None:
    client = Client(tmp_path, Failing(FAILURES["a wrong row"]), clear={"answer_after_s": ANSWER_S})
    began = time.monotonic()
    client.answer()
    assert time.monotonic() - began >= ANSWER_S


@pytest.mark.parametrize("fails", [None, FAILURES["a wrong row"]])
def test_a_server_that_ends_the_job_does_not_see_when_the_training_ended(
    tmp_path: Path, fails: Callable[[], Any] | None
) -> None:
    """NVFlare answers an aborted task when its executor returns, past the filters."""
    client = Client(tmp_path, Failing(), clear={"answer_after_s": ANSWER_S})

    def aborted() -> Any:
        client.runner.run_abort_signal.trigger(value=True)
        return None if fails is None else fails()

    client.runner.task_router.route("train").fails = aborted
    began = time.monotonic()
    assert client.answer().get_return_code() == ReturnCode.TASK_ABORTED
    assert time.monotonic() - began >= ANSWER_S
    assert client.site.account("heart").spent().releases == 1


def test_without_the_runner_a_task_is_refused_and_costs_nothing(tmp_path: Path) -> None:
    client = Client(tmp_path, Failing())
    fl_ctx = client.context()
    fl_ctx.set_prop(FLContextKey.TASK_NAME, "train", private=True, sticky=False)
    fl_ctx.set_prop(FLContextKey.RUNNER, None, private=True, sticky=False)
    data = DXO(DataKind.WEIGHTS, {"w": np.ones(3, np.float32)}).to_shareable()
    admits: SiteTaskFilter = client.scope.task_data_filters[FilterKey.IN][0]
    with pytest.raises(ContentBlockedException, match=r"^withheld$"):
        admits.process(data, fl_ctx)
    assert Site.open(client.site.folder).account("heart").spent().releases == 0
    log = (client.site.folder / "logs" / "nvflare" / "site.log").read_text()
    assert "the executor of the task train cannot be found" in log
