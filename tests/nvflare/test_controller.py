"""Our workflow with NVFlare's own tasks, contexts and filters, in one process."""

from __future__ import annotations

import copy
import json
from itertools import count
from pathlib import Path
from threading import Lock, Timer
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("nvflare.apis", reason="needs nvflare")
from nvflare.apis.client import Client
from nvflare.apis.controller_spec import ClientTask, Task, TaskCompletionStatus
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.filter import ContentBlockedException
from nvflare.apis.fl_constant import FLContextKey, ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.apis.workspace import Workspace
from nvflare.app_common.abstract.fl_model import FLModel

from fedveil.errors import InvalidValue
from fedveil.nvflare import controller
from fedveil.nvflare.components import SiteResultFilter, SiteTaskFilter
from fedveil.nvflare.controller import ProtectedController
from fedveil.nvflare.phase_executor import PhaseExecutor
from nvflare_parts import resources, site_in

NAMES = ("north", "south", "east")
KEYS = {"protection": "pw_encrypt", "clients": 3}


class Federation(ProtectedController):  # type: ignore[misc]
    """The workflow, whose tasks reach the filters of three sites without a network."""

    def __init__(self, folder: Path, **arguments: Any) -> None:
        super().__init__(KEYS, 2, list(NAMES), **arguments)
        self.engine = SimpleNamespace(get_clients=lambda: [Client(n, "token") for n in NAMES])
        self.abort_signal, self.saved, self.silent = Signal(), [], set[str]()
        self.fl_ctx = context(folder, "server")
        self.folder, self.sites = folder, {}
        for number, name in enumerate(NAMES):
            server = {"study": {"client": number}}
            strength = {"active_security": False, "survivors": 2}
            self.sites[name] = site_in(folder / name, protections=["pw_encrypt"], epsilon={},
                                       strength=strength, servers=server, counter=None)  # fmt: skip
        self.filters = {n: SiteTaskFilter(str(folder / n), "heart", KEYS) for n in NAMES}

    def load_model(self) -> FLModel:
        return FLModel(params={"weight": np.ones((2, 4), np.float32)})

    def save_model(self, model: FLModel) -> None:
        self.saved.append(model.params["weight"].copy())

    def broadcast(self, task: Task, fl_ctx: FLContext, targets: Any, min_responses: int) -> None:
        assert min_responses == len(targets)
        for name in set(targets) - self.silent:
            done = ClientTask(Client(name, "token"), task)
            done.result = self.answered(name, task.name, copy.deepcopy(task.data))
            task.result_received_cb(done, fl_ctx)
        task.completion_status = TaskCompletionStatus.OK

    def answered(self, name: str, kind: str, data: Shareable) -> Shareable:
        fl_ctx = context(self.folder, name, kind)
        try:
            data = self.filters[name].process(data, fl_ctx)
            result = PhaseExecutor().execute(kind, data, fl_ctx, Signal())
            if kind == "train":
                weight = from_shareable(data).data["weight"]
                more = 0.25 * (1 + NAMES.index(name))
                result = DXO(DataKind.WEIGHTS, {"weight": weight + more}).to_shareable()
            return SiteResultFilter().process(result, fl_ctx)
        except ContentBlockedException:
            return make_reply(ReturnCode.TASK_DATA_FILTER_ERROR)


def context(folder: Path, name: str, task: str = "train") -> FLContext:
    place = folder / "workspace"
    for inner in ("startup", "local"):
        (place / inner).mkdir(parents=True, exist_ok=True)
    (place / "local" / "resources.json").write_text(json.dumps(resources()))
    fl_ctx = FLContext()
    for key, value in (
        (FLContextKey.RUNNER, SimpleNamespace(find_executor=lambda task: PhaseExecutor())),
        (FLContextKey.WORKSPACE_OBJECT, Workspace(str(place), site_name=name)),
        (FLContextKey.TASK_NAME, task),
        (ReservedKey.RUN_NUM, "job-7"),
        (ReservedKey.IDENTITY_NAME, name),
    ):
        fl_ctx.set_prop(key, value, private=True, sticky=False)
    return fl_ctx


def test_each_round_adds_the_mean_of_a_sum(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    federation.run()
    np.testing.assert_allclose(federation.saved[0], 1.5, atol=1e-3)
    np.testing.assert_allclose(federation.saved[1], 2.0, atol=1e-3)
    for site in federation.sites.values():
        assert len(site.account("heart").charges) == 2


def test_a_round_with_too_few_sites_changes_nothing(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    federation.silent = {"north", "east"}
    federation.run()
    assert federation.saved == []


def test_a_round_goes_on_without_a_site_that_is_away(tmp_path: Path) -> None:
    """The others keep their numbers, and with them their keys."""
    federation = Federation(tmp_path)
    here = [Client(name, "token") for name in ("east", "south")]
    federation.engine = SimpleNamespace(get_clients=lambda: here)
    federation.run()
    np.testing.assert_allclose(federation.saved[0], 1.625, atol=1e-3)
    charges = {name: len(site.account("heart").charges) for name, site in federation.sites.items()}
    assert charges == {"north": 0, "south": 2, "east": 2}


class Slow(Federation):
    """A `Federation` with one task at a time, which ends 0, 0.03 or 0.06 s after its start."""

    def __init__(self, folder: Path, **arguments: Any) -> None:
        super().__init__(folder, **arguments)
        self.timeouts, self._turn, self._started = set[int](), Lock(), count()

    def broadcast(self, task: Task, *more: Any) -> None:
        self.timeouts.add(task.timeout)

        def deliver() -> None:
            with self._turn:
                Federation.broadcast(self, task, *more)

        Timer(0.03 * (next(self._started) % 3), deliver).start()


def test_a_round_waits_for_all_of_its_tasks(tmp_path: Path) -> None:
    federation = Slow(tmp_path, timeout_s=37)
    federation.run()
    np.testing.assert_allclose(federation.saved, [np.full((2, 4), n) for n in (1.5, 2)], atol=1e-3)
    assert federation.timeouts == {37}


def test_a_workflow_that_is_ended_asks_no_site_and_waits_for_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = Federation(tmp_path)
    asked: list[Task] = []

    def sleep(seconds: float) -> None:
        raise AssertionError("it waits for an answer")

    monkeypatch.setattr(controller, "time", SimpleNamespace(sleep=sleep))

    def end(task: Task, *more: Any) -> None:
        asked.append(task)
        federation.abort_signal.trigger(value=True)

    federation.broadcast = end
    federation.run()
    assert (len(asked), federation.saved) == (1, [])
    federation.run()
    assert (len(asked), federation.saved) == (1, [])


@pytest.mark.parametrize("sites", [None, []])
def test_a_sum_needs_the_names_of_its_sites(sites: list[str] | None) -> None:
    with pytest.raises(InvalidValue, match="sites is missing"):
        ProtectedController(KEYS, 2, sites)


def test_a_sum_needs_a_key_of_each_site_and_each_site_once() -> None:
    signed = {**KEYS, "active_security": True}
    for keys in (None, ["ab" * 32] * 2, ["ab" * 32] * 2 + ["ab"], ["zz" * 32] * 3, [5] * 3):
        with pytest.raises(InvalidValue, match="64 hexadecimal digits for each of the 3 sites"):
            ProtectedController(signed, 2, list(NAMES), keys)
    ProtectedController(signed, 2, list(NAMES), ["ab" * 32] * 3)
    for sites in (["north", "south", "north"], [*NAMES, "west"]):
        with pytest.raises(InvalidValue, match="a name twice, or more than clients = 3"):
            ProtectedController(KEYS, 2, sites)


@pytest.mark.parametrize("wrong", [{"rounds": 0}, {"rounds": "2"}, {"rounds": 2, "timeout_s": 0}])
def test_a_workflow_without_rounds_or_without_an_end_is_refused(wrong: dict[str, Any]) -> None:
    """NVFlare would wait for ever for a site that is silent if it was given 0 seconds."""
    with pytest.raises(InvalidValue, match=r"^(rounds|timeout_s) = .* is "):
        ProtectedController(KEYS, sites=list(NAMES), **wrong)


def test_a_site_keeps_its_number_while_others_are_away(tmp_path: Path) -> None:
    federation = Federation(tmp_path, keys=["00ff", "a0", "b1"])
    federation.engine = SimpleNamespace(
        get_clients=lambda: [Client(name, "token") for name in ("east", "stranger", "south")]
    )
    assert federation._names() == {1: "south", 2: "east"}
    assert federation._roster == {0: b"\x00\xff", 1: b"\xa0", 2: b"\xb1"}
