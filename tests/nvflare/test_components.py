"""The filters of a privacy scope, and the server's aggregator, with NVFlare's own objects."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

pytest.importorskip("nvflare.apis", reason="needs nvflare")
from nvflare.apis.client import Client
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.filter import ContentBlockedException
from nvflare.apis.fl_constant import FLContextKey, ReservedKey, ReturnCode, ServerCommandKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.workspace import Workspace
from nvflare.app_common.abstract.model import make_model_learnable
from nvflare.app_common.app_constant import AppConstants

from fedveil.base.message import encode
from fedveil.errors import FedveilError, MessageInvalid, SiteError
from fedveil.nvflare.components import (
    DIMENSION,
    MESSAGE,
    REPORT,
    ProtectedAggregator,
    SiteResultFilter,
    SiteTaskFilter,
    report_of,
)
from fedveil.privacy.loss import PrivacyLoss
from fedveil.site.account import Release
from fedveil.site.site_folder import Site
from nvflare_parts import NOISE, resources, site_in

#: So little noise that a report shows its update.
CLEAR = {**NOISE, "dp_eps": 1e7}
RICH = {"epsilon": {"run": 1e9, "month": 1e9, "ever": 1e9}}
HERE: dict[str, Workspace] = {}
SHAPES = {"layer.weight": (3, 5), "layer.bias": (5,), "steps": ()}


def model(value: float = 1.0) -> dict[str, Any]:
    return {name: np.full(shape, value, np.float32) for name, shape in SHAPES.items()}


def task_data(round: int = 4, **data: Any) -> Shareable:
    shareable = DXO(DataKind.WEIGHTS, data or model()).to_shareable()
    shareable.set_header(AppConstants.CURRENT_ROUND, round)
    return shareable


@pytest.fixture(autouse=True)
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The workspace of the NVFlare client, in which every context of a test is."""
    folder = tmp_path / "workspace"
    for name in ("startup", "local"):
        (folder / name).mkdir(parents=True)
    (folder / "local" / "resources.json").write_text(json.dumps(resources()))
    monkeypatch.setitem(HERE, "workspace", Workspace(str(folder), site_name="north"))
    return folder


def context(task: str = "train", job: str = "job-7", identity: str = "north") -> FLContext:
    fl_ctx = FLContext()
    of = HERE["workspace"]
    fl_ctx.set_prop(FLContextKey.WORKSPACE_OBJECT, of, private=True, sticky=False)
    for key, value in (
        (FLContextKey.RUNNER, MagicMock()),
        (FLContextKey.TASK_NAME, task),
        (ReservedKey.RUN_NUM, job),
        (ReservedKey.IDENTITY_NAME, identity),
    ):
        fl_ctx.set_prop(key, value, private=True, sticky=False)
    return fl_ctx


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return site_in(tmp_path / "north", **RICH)


def admits(site: Site, protection: dict[str, Any] = CLEAR, **arguments: Any) -> SiteTaskFilter:
    return SiteTaskFilter(str(site.folder), "heart", protection, **arguments)


def let_out(site: Site, result: Shareable, protection: dict[str, Any] = CLEAR, **more: Any) -> Any:
    fl_ctx = context()
    admits(site, protection, **more).process(task_data(), fl_ctx)
    return from_shareable(SiteResultFilter().process(result, fl_ctx))


def said(site: Site) -> str:
    return (site.folder / "logs" / "nvflare" / "site.log").read_text()


def result_of(change: float, kind: str = DataKind.WEIGHTS, **meta: Any) -> Shareable:
    start = 1.0 if kind == DataKind.WEIGHTS else 0.0
    return DXO(kind, model(start + change), meta=meta).to_shareable()


@pytest.mark.parametrize("kind", [DataKind.WEIGHTS, DataKind.WEIGHT_DIFF])
def test_a_result_leaves_as_the_noised_update_and_nothing_beside_it(site: Site, kind: str) -> None:
    result = result_of(0.125, kind, NUM_STEPS_CURRENT_ROUND=977, initial_metrics={"auc": 0.7})
    result.set_header("secret", "a patient's name")
    result["stowaway"] = b"rows"
    fl_ctx = context()
    task = task_data()
    assert admits(site).process(task, fl_ctx) is task
    sent = SiteResultFilter().process(result, fl_ctx)
    dxo = from_shareable(sent)
    assert dxo.data_kind == DataKind.WEIGHT_DIFF
    assert {name: array.shape for name, array in dxo.data.items()} == SHAPES
    for array in dxo.data.values():
        np.testing.assert_allclose(array, 0.125, atol=0.02)
        assert array.dtype == np.float32
    assert (dxo.meta or {}) == {}
    assert "secret" not in str(sent)
    assert b"rows" not in sent.values()
    charges = site.account("heart").charges
    assert [(c.job, c.through, c.mechanism) for c in charges] == [
        ("job-7", "NVFlare", "dp_encrypt")
    ]


def test_noise_is_fresh_and_long_updates_are_clipped(site: Site) -> None:
    first, second = (let_out(site, result_of(1e6)).data["layer.weight"] for _ in range(2))
    assert (first != second).any()
    np.testing.assert_allclose(first, 2.0 / np.sqrt(21), atol=0.02)


def test_a_trainer_that_changes_the_model_in_place_hides_nothing(site: Site) -> None:
    fl_ctx, task = context(), task_data()
    admits(site).process(task, fl_ctx)
    data = from_shareable(task).data
    for array in data.values():
        array += np.float32(0.25)
    sent = SiteResultFilter().process(DXO(DataKind.WEIGHTS, data).to_shareable(), fl_ctx)
    np.testing.assert_allclose(from_shareable(sent).data["layer.bias"], 0.25, atol=0.02)


def ended(result: Shareable) -> Shareable:
    result.set_return_code(ReturnCode.TASK_ABORTED)
    return result


UNUSABLE = {
    "an error": lambda: make_reply(ReturnCode.EXECUTION_EXCEPTION),
    "an end": lambda: ended(result_of(3.0)),
    "no object of theirs": Shareable,
    "NaN": lambda: result_of(np.nan),
    "another shape": lambda: DXO(
        DataKind.WEIGHTS, {**model(), "layer.bias": np.zeros(6, np.float32)}
    ).to_shareable(),
    "one array more": lambda: DXO(
        DataKind.WEIGHTS, {**model(), "rows": np.zeros(99, np.float32)}
    ).to_shareable(),
    "one array less": lambda: DXO(
        DataKind.WEIGHT_DIFF, {"steps": np.zeros((), np.float32)}
    ).to_shareable(),
    "text": lambda: DXO(DataKind.WEIGHTS, {**model(), "steps": "a name"}).to_shareable(),
    "metrics": lambda: DXO(DataKind.METRICS, {"auc": 0.7}).to_shareable(),
    "a collection": lambda: DXO(
        DataKind.COLLECTION, {"a": DXO(DataKind.WEIGHTS, model(3.0))}
    ).to_shareable(),
}


@pytest.mark.parametrize("what", UNUSABLE)
def test_an_unusable_result_leaves_as_an_update_of_zero(site: Site, what: str) -> None:
    sent = let_out(site, UNUSABLE[what]())
    assert set(sent.data) == set(SHAPES)
    for array in sent.data.values():
        np.testing.assert_allclose(array, 0.0, atol=0.02)
    assert "reported an update of zero" in said(site)


def blocked(site: Site, data: Shareable, fl_ctx: FLContext, **arguments: Any) -> None:
    before = site.account("heart").code
    with pytest.raises(ContentBlockedException, match=r"^withheld$"):
        admits(site, **arguments).process(data, fl_ctx)
    assert site.account("heart").code == before
    with pytest.raises(ContentBlockedException, match=r"^withheld$"):
        SiteResultFilter().process(result_of(0.5), fl_ctx)


@pytest.mark.parametrize("task", ["validate", "submit_model", "Train", ""])
def test_only_training_is_admitted(site: Site, task: str) -> None:
    blocked(site, task_data(), context(task))
    assert "reports leave only for the tasks train" in said(site)


@pytest.mark.parametrize(
    "data",
    [
        task_data(w=np.array(["a"])), task_data(w=np.zeros(3, object)), task_data(w=[1.0]),
        task_data(round=-1), task_data(round=True), task_data(**{"bn.running_mean": np.zeros(2)}),
        DXO(DataKind.WEIGHT_DIFF, model()).to_shareable(), Shareable(), make_reply("OK"),
    ],
)  # fmt: skip
def test_a_task_that_is_no_model_is_refused_and_costs_nothing(site: Site, data: Any) -> None:
    blocked(site, data, context())


def test_the_tasks_of_a_site_take_the_place_of_the_usual_one(site: Site) -> None:
    own = {"train_tasks": ["tune", "adapt"]}
    for task in ("tune", "adapt"):
        admits(site, **own).process(task_data(), context(task))
    blocked(site, task_data(), context("train"), **own)


def test_a_task_has_one_report(site: Site) -> None:
    fl_ctx = context()
    with pytest.raises(ContentBlockedException):
        SiteResultFilter().process(result_of(0.5), fl_ctx)
    admits(site).process(task_data(), fl_ctx)
    SiteResultFilter().process(result_of(0.5), fl_ctx)
    with pytest.raises(ContentBlockedException):
        SiteResultFilter().process(result_of(0.5), fl_ctx)


@pytest.mark.parametrize(
    "words", [None, b"", b"\x80\x04pickle", "text", 7, encode({"phase": "masked", "round": 4})]
)
@pytest.mark.parametrize("dimension", [None, 20, 0, -1, True, 1 << 60, "20"])
def test_a_message_of_no_sum_is_refused(site: Site, words: Any, dimension: Any) -> None:
    data = Shareable()
    if words is not None:
        data[MESSAGE] = words
    data.set_header(DIMENSION, dimension)
    blocked(site, data, context("fedveil_phase"))


def test_a_filter_that_a_job_adds_changes_nothing(site: Site) -> None:
    """A job may name the filters, if the site's list of classes permits them."""
    fl_ctx, weaker = context(), {**CLEAR, "dp_eps": 1e8}
    admits(site).process(task_data(), fl_ctx)
    with pytest.raises(ContentBlockedException):
        admits(site, weaker).process(task_data(), fl_ctx)
    with pytest.raises(ContentBlockedException):
        SiteResultFilter().process(result_of(0.5), fl_ctx)
    assert site.account("heart").spent().releases == 1


def test_a_job_with_another_configuration_is_refused(site: Site) -> None:
    config = Path(HERE["workspace"].get_app_config_dir("job-7"))
    config.mkdir(parents=True)
    (config / "config_fed_client.json").write_text("{}")
    blocked(site, task_data(), context())
    assert "which is not in jobs.digests" in said(site)


@pytest.mark.parametrize("name", ["trainer.py", "mine/__init__.py", "trainer.abi3.so", "code.zip"])
def test_a_job_with_code_of_its_own_is_refused(site: Site, name: str) -> None:
    custom = Path(HERE["workspace"].get_app_custom_dir("job-7"))
    custom.mkdir(parents=True)
    admits(site).process(task_data(), context())
    (custom / name).parent.mkdir(exist_ok=True)
    (custom / name).touch()
    blocked(site, task_data(), context())
    assert "the job brings its own code" in said(site)


def test_a_client_that_lets_out_more_than_task_results_is_refused(
    site: Site, workspace: Path
) -> None:
    (workspace / "local" / "resources.json").unlink()
    blocked(site, task_data(), context())
    opened = {**resources(), "allow_log_streaming": True}
    (workspace / "local" / "resources.json.default").write_text(json.dumps(opened))
    blocked(site, task_data(), context())
    assert "set allow_log_streaming to false" in said(site)


def test_a_report_above_the_limit_is_refused_before_the_task_runs(tmp_path: Path) -> None:
    """A charge of another framework counts, and so does one of another job."""
    epsilon = {"run": 1.0, "month": 0.8, "ever": 2.0}
    site = site_in(tmp_path / "north", epsilon=epsilon)
    other = Release("study", "a report", "rr", [(PrivacyLoss(0.4), 1)], through="Flower, study")
    site.account("heart").charge(other, limit=site.policy.limits)
    admits(site, NOISE).process(task_data(), context())
    assert site.account("heart").spent().releases == 2
    for job in ("job-7", "job-8"):
        blocked(site, task_data(), context(job=job), protection=NOISE)
    assert "above the site's limit of 0.8" in said(site)


def test_a_set_back_account_lets_nothing_out(site: Site) -> None:
    filters = admits(site)
    filters.process(task_data(), context())
    (site.folder / "accounts" / "heart.account").unlink()
    with pytest.raises(ContentBlockedException, match=r"^withheld$"):
        filters.process(task_data(), context())
    assert "is missing, but" in said(site)


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"protection": "pw_encrypt"}, "needs clients, the number of sites in a sum"),
        ({"protection": "central_gaussian"}, "central_gaussian is not possible here"),
        ({"protection": "oue", "adaptive": True}, "adaptive"),
        ({"protection": "not_encrypt"}, "is not"),
        ({"protection": "dp_encrypt", "dp_eps": 0}, "dp_eps"),
        ({}, "protection is not given"),
    ],
)
def test_a_scope_with_a_wrong_protection_is_refused(
    site: Site, keys: dict[str, Any], why: str
) -> None:
    with pytest.raises(FedveilError, match=why):
        admits(site, keys)


def test_a_scope_against_the_policy_is_refused(tmp_path: Path) -> None:
    site = site_in(tmp_path / "north", protections=["rr"])
    with pytest.raises(SiteError, match="dp_encrypt is not one of protections in the policy"):
        admits(site)
    with pytest.raises(SiteError, match=r"hart is not one of data.*did you mean heart"):
        SiteTaskFilter(str(site.folder), "hart", {"protection": "rr"})


def test_noise_without_an_epsilon_is_refused(site: Site) -> None:
    blocked(site, task_data(), context(), protection={**NOISE, "noise": "continuous"})


SITES = ("north", "south", "east")


class Server:
    """The server's context, with the clients that it knows."""

    def get_clients(self) -> list[Client]:
        return [Client(name, "token") for name in SITES]

    def fire_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Nobody listens."""


def server_context(round: int = 4) -> FLContext:
    fl_ctx = FLContext()
    fl_ctx.set_prop(ReservedKey.ENGINE, Server(), private=True, sticky=False)
    fl_ctx.set_prop(AppConstants.CURRENT_ROUND, round, private=True, sticky=False)
    learnable = make_model_learnable(model(), {})
    fl_ctx.set_prop(AppConstants.GLOBAL_MODEL, learnable, private=True, sticky=False)
    return fl_ctx


def sent_by(name: str, shareable: Shareable, says: str | None = None) -> Shareable:
    """Return a site's result as NVFlare's server gets it: the site `name` says that it is `says`.

    NVFlare takes the name from the site's token, and the property from the site's own message.
    """
    shareable.set_header(ServerCommandKey.FL_CLIENT, Client(name, f"token of {name}"))
    shareable.set_peer_props({ReservedKey.IDENTITY_NAME: says or name})
    return shareable


PROTECTIONS = {
    "dp_encrypt": CLEAR,
    "rr": {"protection": "rr", "eps": 60.0, "target": "update", "clip": 0.25, "cells": 10},
    "oue": {"protection": "oue", "eps": 60.0, "target": "update", "clip": 0.25, "cells": 10},
}


@pytest.mark.parametrize("name", PROTECTIONS)
def test_the_aggregator_adds_up_reports_that_are_no_arrays(site: Site, name: str) -> None:
    keys = {**PROTECTIONS[name]}
    aggregator, fl_ctx = ProtectedAggregator(keys), server_context()
    changes = dict(zip(SITES, (0.05, -0.025, 0.125), strict=True))
    for of, change in changes.items():
        mine = context(identity=of)
        admits(site, keys, plain=False).process(task_data(), mine)
        sent = SiteResultFilter().process(result_of(change), mine)
        assert set(from_shareable(sent).data) == {REPORT}
        assert aggregator.accept(sent_by(of, sent), fl_ctx)
        assert not aggregator.accept(sent_by(of, sent), fl_ctx), "a second one of the round"
    report = from_shareable(sent).data[REPORT]
    assert report_of(sent) == report
    forged = DXO(DataKind.APP_DEFINED, {REPORT: b"\xfe\x01"}).to_shareable()
    more, text = (
        DXO(DataKind.APP_DEFINED, data).to_shareable()
        for data in ({REPORT: report, "loss": 0.5}, {REPORT: report.hex()})
    )
    failed = make_reply(ReturnCode.EXECUTION_EXCEPTION)
    for bad in (forged, more, text, result_of(0.5), Shareable(), failed):
        assert not aggregator.accept(sent_by("north", bad), fl_ctx)
    for bad in (more, text):
        with pytest.raises(MessageInvalid, match="is not a report of fedveil's filter"):
            report_of(bad)
    assert not aggregator.accept(sent_by("stranger", sent), fl_ctx)
    mean = from_shareable(aggregator.aggregate(fl_ctx)).data
    assert {key: array.shape for key, array in mean.items()} == SHAPES
    whole = np.concatenate([array.reshape(-1) for array in mean.values()])
    assert abs(whole.mean() - 0.05) < 0.06  # oue reports half of all true bits
    if name != "oue":
        np.testing.assert_allclose(whole, 0.05, atol=0.01)


def test_a_round_of_the_aggregator_has_its_own_reports_alone(site: Site) -> None:
    aggregator = ProtectedAggregator(CLEAR)
    for round, change in ((4, 0.375), (5, -0.25), (6, 0.125)):
        fl_ctx = server_context(round)
        for of in SITES[: 7 - round]:  # three, two, one
            mine = context(identity=of)
            admits(site, CLEAR, plain=False).process(task_data(round), mine)
            sent = SiteResultFilter().process(result_of(change), mine)
            assert aggregator.accept(sent_by(of, sent), fl_ctx)
        mean = from_shareable(aggregator.aggregate(fl_ctx)).data
        for array in mean.values():
            np.testing.assert_allclose(array, change, atol=0.02)


def test_a_site_counts_once_under_whatever_name_it_reports(site: Site) -> None:
    """Otherwise one site makes the reports of all, and no other site's report is accepted."""
    aggregator, fl_ctx = ProtectedAggregator(CLEAR), server_context()

    def report(of: str, change: float) -> Shareable:
        mine = context(identity=of)
        admits(site, CLEAR, plain=False).process(task_data(), mine)
        return SiteResultFilter().process(result_of(change), mine)

    liar, honest, third = SITES
    assert aggregator.accept(sent_by(liar, report(liar, 0.125), says=honest), fl_ctx)
    assert not aggregator.accept(sent_by(liar, report(liar, 0.125), says=third), fl_ctx)
    unnamed = report(liar, 0.125)
    unnamed.set_peer_props({ReservedKey.IDENTITY_NAME: third})
    for client in (None, third, {"name": third}):  # NVFlare's server always sets a Client
        unnamed.set_header(ServerCommandKey.FL_CLIENT, client)
        assert not aggregator.accept(unnamed, fl_ctx)
    assert aggregator.accept(sent_by(honest, report(honest, 0.0)), fl_ctx)
    mean = from_shareable(aggregator.aggregate(fl_ctx)).data
    for array in mean.values():
        np.testing.assert_allclose(array, 0.0625, atol=0.02)


def test_the_aggregator_takes_signds_with_a_fixed_step(tmp_path: Path) -> None:
    keys = {"protection": "signds", "sign_k": 0.25, "sign_eps": 99.0, "sign_dim_out": 3,
            "sign_global_lr": 0.5}  # fmt: skip
    with pytest.raises(FedveilError, match="signds needs ProtectedController"):
        ProtectedAggregator(keys)
    fixed = {**keys, "magnitude": "fixed"}
    site = site_in(tmp_path / "north", protections=["signds"], **RICH)
    aggregator, fl_ctx = ProtectedAggregator(fixed), server_context()
    for of in SITES:
        mine = context(identity=of)
        admits(site, fixed).process(task_data(), mine)  # its reports are never arrays
        sent = SiteResultFilter().process(result_of(0.5), mine)
        assert aggregator.accept(sent_by(of, sent), fl_ctx)
    mean = from_shareable(aggregator.aggregate(fl_ctx)).data
    steps = np.concatenate([array.reshape(-1) for array in mean.values()]) * 3 / 0.5
    np.testing.assert_allclose(steps, np.rint(steps), atol=1e-5)
    assert 0 < np.abs(steps).sum() <= 9.001


def test_a_round_without_a_report_leaves_the_model(site: Site) -> None:
    aggregator, fl_ctx = ProtectedAggregator(NOISE), server_context()
    kept = from_shareable(aggregator.aggregate(fl_ctx)).data
    assert {name: array.shape for name, array in kept.items()} == SHAPES
    assert all((array == 0).all() for array in kept.values())
    late = context(identity="south")
    admits(site, NOISE, plain=False).process(task_data(round=3), late)
    sent = SiteResultFilter().process(result_of(0.5), late)
    assert not aggregator.accept(sent_by("south", sent), fl_ctx), "of another round"
