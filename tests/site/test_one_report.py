"""A site's reports where a client sends one result a round: admitted, charged, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")
from fedveil.base.message import encode
from fedveil.errors import (
    AccountInvalid,
    ClientWithheld,
    FedveilError,
    MessageInvalid,
    ModelInvalid,
    OverSpent,
    ReportRejected,
    RoundVoid,
    SiteError,
    SiteRefused,
)
from fedveil.site import one_report
from fedveil.site.account import SiteAccount
from fedveil.site.one_report import Admitted, SiteReports
from fedveil.site.task_terms import ReportSum, Terms
from nvflare_parts import NOISE, site_in

#: So little noise that a report shows its update.
CLEAR = {**NOISE, "dp_eps": 1e7}
RICH = {"epsilon": {"run": 1e9, "month": 1e9, "ever": 1e9}}
SHAPES = {"weight": (3, 5), "bias": (5,), "steps": ()}
TYPES = {"weight": "float32", "bias": "float64", "steps": "float32"}


def model(value: float = 1.0) -> dict[str, Any]:
    return {name: np.full(shape, value, TYPES[name]) for name, shape in SHAPES.items()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return site_in(tmp_path / "north", **RICH).folder


def reports(folder: Path, keys: dict[str, Any] = CLEAR) -> SiteReports:
    return SiteReports(folder, "heart", keys, "NVFlare")


def admitted(of: SiteReports, **more: Any) -> Admitted:
    task: dict[str, Any] = {"job": "job-7", "task": "train", "site": "north", "round": 4}
    return of.admit(model(), **{**task, **more})


def charges(of: SiteReports) -> int:
    return len(of._site.account("heart").charges)


def test_the_digest_of_a_job_is_of_all_its_files_but_the_frameworks_signatures(
    tmp_path: Path,
) -> None:
    def digest(**files: str) -> str:
        config = tmp_path / f"{len(list(tmp_path.iterdir()))}" / "config"
        for name, text in {"client.json": "{}", "parts/more.json": "[]", **files}.items():
            (config / name).parent.mkdir(parents=True, exist_ok=True)
            (config / name).write_text(text)
        return one_report.config_digest(config)

    plain = digest()
    for name in (".__nvfl_sig.json", ".__nvfl_submitter.crt"):
        assert digest(**{name: "a", f"parts/{name}": "b"}) == plain
    others = [{"client.json": "[]"}, {"parts/more.json": "{}"}, {"parts/deep/x.json": "{}"}]
    assert len({plain, *(digest(**files) for files in others)}) == 4


@pytest.mark.parametrize("differences", [False, True])
def test_a_report_is_the_update(folder: Path, differences: bool) -> None:
    after = model(0.125 if differences else 1.125)
    sent = admitted(reports(folder)).report(lambda: (after, differences)).arrays()
    assert {name: array.shape for name, array in sent.items()} == SHAPES
    assert {name: array.dtype for name, array in sent.items()} == TYPES
    for array in sent.values():
        np.testing.assert_allclose(array, 0.125, atol=0.01)
    (charged,) = SiteReports(folder, "heart", CLEAR, "NVFlare")._site.account("heart").charges
    assert charged[1:7] == (
        "job-7", "a report of task train", "dp_encrypt", "NVFlare", "client",
        ("the time that a client takes to answer (answer_after_s is not set)",),
    )  # fmt: skip


def test_noise_is_fresh_and_long_updates_are_clipped(folder: Path) -> None:
    of = reports(folder)
    sent = [admitted(of).report(lambda: (model(1e6), False)).arrays() for _ in range(2)]
    assert (sent[0]["weight"] != sent[1]["weight"]).any()
    np.testing.assert_allclose(sent[0]["weight"], 2.0 / np.sqrt(21), atol=0.01)


def test_a_model_that_was_changed_in_place_hides_nothing(folder: Path) -> None:
    arrays = model()
    task = reports(folder).admit(arrays, job="j", task="train", site="north", round=0)
    for array in arrays.values():
        array += np.float32(0.25)
    sent = task.report(lambda: (arrays, False)).arrays()
    np.testing.assert_allclose(sent["bias"], 0.25, atol=0.01)


def raising() -> Any:
    raise SystemExit("a patient's name")


@pytest.mark.parametrize(
    "after",
    [
        raising,
        lambda: (model(np.nan), False),
        lambda: ({**model(), "rows": np.ones(99)}, False),
        lambda: ({"steps": np.ones(())}, True),
        lambda: ({**model(), "bias": np.ones(6)}, False),
        lambda: ({**model(), "steps": np.array("a name")}, True),
    ],
)
def test_an_unusable_result_is_reported_as_zero(
    folder: Path, after: Callable[[], tuple[dict[str, Any], bool]]
) -> None:
    sent = admitted(reports(folder)).report(after).arrays()
    assert {name: array.shape for name, array in sent.items()} == SHAPES
    for array in sent.values():
        np.testing.assert_allclose(array, 0.0, atol=0.01)
    log = (folder / "logs" / "nvflare" / "site.log").read_text()
    assert "reported an update of zero" in log


@pytest.mark.parametrize("fails", [False, True])
def test_a_report_that_leaves_late_is_in_the_account_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    folder = site_in(tmp_path / "south", **RICH, clear={"answer_after_s": 9.0}).folder
    now, slept = 100.0, list[float]()
    monkeypatch.setattr(one_report.time, "monotonic", lambda: now)
    monkeypatch.setattr(one_report.time, "sleep", slept.append)
    of = reports(folder)

    def trained(seconds: float) -> None:
        def after() -> tuple[dict[str, Any], bool]:
            nonlocal now
            now += seconds
            return model(), False

        task = admitted(of)
        if fails:
            monkeypatch.setattr(Admitted, "_made", lambda self, after: (after(), 1 / 0))
        with pytest.raises(ZeroDivisionError) if fails else nullcontext():
            task.report(after)

    trained(8.0)
    assert [charged.in_clear for charged in of._site.account("heart").charges] == [()]
    trained(10.0)
    trained(11.0)
    assert slept == [1.0, 0.0, 0.0]
    lines = of._site.account("heart").charges
    late = ("the time that training takes where it is longer than clear.answer_after_s",)
    assert [charged.in_clear for charged in lines] == [(), (), late, ()]
    assert lines[2].what == "the time of a report of task train"
    spent = of._site.account("heart").spent()
    assert (spent.releases, spent.in_clear) == (3, late)


def test_a_refusal_is_a_line_of_the_log(folder: Path) -> None:
    reports(folder).refused("task train", SystemExit("no data"))
    log = (folder / "logs" / "nvflare" / "site.log").read_text()
    assert log.splitlines()[-1].endswith("Z refused task train: SystemExit: no data")
    plain = {key: Terms.read({"protection": key}).plain for key in ("dp_encrypt", "signds")}
    assert plain == {"dp_encrypt": True, "signds": False}


@pytest.mark.parametrize("round", [-1, True, 1.0, None, "4"])
def test_a_task_without_a_round_costs_nothing(folder: Path, round: object) -> None:
    of = reports(folder)
    with pytest.raises(SiteRefused, match="number of its round"):
        admitted(of, round=round)
    with pytest.raises(ModelInvalid):
        of.admit({"w": np.array(["a"])}, job="j", task="train", site="north", round=1)
    assert charges(of) == 0


def test_a_report_above_the_limit_is_refused_before_the_task_runs(tmp_path: Path) -> None:
    site = site_in(tmp_path / "north", epsilon={"run": 1.0, "month": 0.5, "ever": 2.0})
    of = reports(site.folder, NOISE)
    admitted(of)
    admitted(of, job="job-8")
    with pytest.raises(OverSpent, match=r"above the site's limit of 0\.5"):
        admitted(of, job="job-9")
    assert charges(of) == 2
    (site.folder / "accounts" / "heart.account").unlink()
    with pytest.raises(AccountInvalid):
        admitted(of)


def test_noise_without_an_epsilon_is_refused(folder: Path) -> None:
    of = reports(folder, {**NOISE, "noise": "continuous"})
    with pytest.raises(OverSpent, match="promises no epsilon, and is no sum"):
        admitted(of)


@pytest.mark.parametrize(
    ("after_s", "slept", "clear"), [(None, [], 1), (60.0, [59.25], 0), (0.25, [0.0], 0)]
)
@pytest.mark.parametrize("round", [4, 5])
def test_a_report_leaves_at_its_time(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    after_s: Any,
    slept: list[float],
    clear: int,
    round: int,
) -> None:
    """So does the refusal of a message that names another round than the task."""
    waited: list[float] = []
    now = [100.0]
    monkeypatch.setattr(one_report.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(one_report.time, "sleep", waited.append)
    of = reports(site_in(tmp_path / "north", clear={"answer_after_s": after_s}, **RICH).folder)
    charge = SiteAccount.charge

    def slow(self: SiteAccount, *released: Any, **limit: Any) -> None:
        now[0] += 0.25  # a charge takes its time, too
        charge(self, *released, **limit)

    monkeypatch.setattr(SiteAccount, "charge", slow)
    task = admitted(of, round=4, words=encode({"round": round}))
    now[0] += 0.5
    with nullcontext() if round == 4 else pytest.raises(ClientWithheld, match="not the opening"):
        task.report(lambda: (model(), False))
    assert waited == slept
    assert len(of._site.account("heart").charges[0].in_clear) == clear


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"protection": "pw_encrypt"}, "needs clients, the number of sites in a sum"),
        (
            {"protection": "pw_encrypt", "clients": 3, "weighting": "by_size"},
            "by_size needs the number of examples, which stays here",
        ),
        ({"protection": "central_gaussian"}, "central_gaussian is not possible here"),
        ({"protection": "oue", "adaptive": True}, "adaptive"),
        ({"protection": "dp_encrypt", "dp_eps": 0}, "dp_eps"),
        ({}, "protection is not given"),
    ],
)
def test_terms_that_cannot_be_kept_are_refused(keys: dict[str, Any], why: str) -> None:
    with pytest.raises(FedveilError, match=why):
        Terms.read(keys)


def test_terms_against_the_policy_are_refused(tmp_path: Path) -> None:
    folder = site_in(tmp_path / "north", protections=["rr"]).folder
    with pytest.raises(SiteError, match="dp_encrypt is not one of protections in the policy"):
        reports(folder)
    with pytest.raises(SiteError, match=r"hart is not one of data.*did you mean heart"):
        SiteReports(folder, "hart", {"protection": "rr"}, "NVFlare")


SITES = ("north", "south", "east")
RR = {"protection": "rr", "eps": 60.0, "target": "update", "clip": 0.25, "cells": 10}


@pytest.mark.parametrize("keys", [CLEAR, RR], ids=["dp_encrypt", "rr"])
def test_the_server_adds_up_one_report_of_each_site(folder: Path, keys: dict[str, Any]) -> None:
    of, total = reports(folder, keys), ReportSum(Terms.read(keys), model(), 4, SITES)
    for site, change in zip(SITES, (0.05, -0.025, 0.125), strict=True):
        task = admitted(of, site=site)
        sent = task.report(lambda change=change: (model(1 + change), False)).encoded()
        total.add(site, sent)
        with pytest.raises(ReportRejected):
            total.add(site, sent)
    late = admitted(of, round=5).report(lambda: (model(), False)).encoded()
    other = ReportSum(Terms.read(keys), model(), 4, SITES)
    for site, report in (("stranger", sent), ("north", late), ("north", b""), ("north", b"\xfe")):
        with pytest.raises((ReportRejected, MessageInvalid)):
            other.add(site, report)
    with pytest.raises(RoundVoid):
        other.mean()
    assert all((array == 0).all() for array in other.zero().values())
    for array in total.mean().values():
        np.testing.assert_allclose(array, 0.05, atol=0.01)


def test_a_protection_without_a_sum_answers_no_message(folder: Path) -> None:
    of = reports(folder)
    with pytest.raises(SiteRefused, match="the task is not a message of a secure sum"):
        of.answer(encode({"round": 4}), 21, job="job-7", site="north", round=4)
    assert charges(of) == 0
