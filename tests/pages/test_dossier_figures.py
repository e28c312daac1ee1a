"""Each text of a registry's record and each figure of the script is that of its key."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedveil import __version__
from fedveil.pages.dossier import recompute
from fedveil.pages.dossier.account import Account
from fedveil.pages.dossier.registry import registry_record
from fedveil.pages.dossier.releases import _law_of
from fedveil.pages.dossier.statements import Statement, _attacks, _channels, _open, _randomness
from fedveil.privacy.compose import compose
from fedveil.privacy.finding import Finding, Measured
from fedveil.privacy.gaussian_curve import epsilon_for
from fedveil.privacy.loss import PrivacyLoss
from fedveil.privacy.loss_distribution import LossDistribution
from fedveil.privacy.sampled_gaussian import SampledGaussian

KEYS = ("unit", "not_covered", "epsilon", "trust", "composition", "mechanism", "randomness",
        "side_channels")  # fmt: skip
ACCOUNTS = [Account("a row", 1.5, 0.0, False, []), Account("a label", 2.5, 1e-6, True, [])]


def record(accounts: list[Account], **last: Any) -> dict[str, Any]:
    """Return the record of a run whose statements are their own keys."""
    job = {"name": "own", "model": "lenet", "task": {"name": "tables"}}
    evidence: Any = SimpleNamespace(
        run=SimpleNamespace(job=job, last=last), vertical=not last, accounts=accounts,
        files={"job.yaml": "12ab"},
    )  # fmt: skip
    made = [Statement(key, key.upper(), [f"{key}."], "why") for key in KEYS]
    return registry_record(evidence, [*made, Statement("purpose", "Use", [], "no idea")])


def test_each_text_of_a_record_is_the_statement_of_its_key() -> None:
    found = record(ACCOUNTS, unit="example", rests_on_server=True)
    assert (found["made_by"], found["files"]) == (f"fedveil {__version__}", {"job.yaml": "12ab"})
    deployment = found["deployment"]
    assert deployment["dp_flavor"] == {
        "name": "Approximate DP", "input_metric": "replace-one", "data_domain": "unit.",
        "unprotected_quantities": "not_covered.",
    }  # fmt: skip
    assert deployment["privacy_loss"] == {
        "privacy_unit": "Example-level", "privacy_unit_description": "unit.",
        "privacy_parameters": {"epsilon": 2.5, "delta": 1e-6},
        "privacy_parameters_description": "epsilon.",
    }  # fmt: skip
    model = deployment["model"]
    assert (model["model_name"], model["actors"]) == ("Central", "trust.")
    assert model["release_type_description"] == "composition."
    assert deployment["accounting"]["composition"] == "composition."
    assert deployment["implementation"]["mechanisms"] == "mechanism. randomness. side_channels."
    product = deployment["product"]
    assert (product["name"], product["description"]) == (
        "own", "A model trained by federated learning: lenet.",
    )  # fmt: skip
    assert found["statements"]["unit"] == {"title": "UNIT", "lines": ["unit."], "missing": ""}
    assert found["statements"]["purpose"] == {"title": "Use", "lines": [], "missing": "no idea"}
    assert [account["of"] for account in found["accounts"]] == ["a row", "a label"]


@pytest.mark.parametrize(
    ("last", "unit", "model"),
    [({"unit": "client", "rests_on_server": False}, "User-level", "Local"),
     ({"unit": "client", "rests_on_server": True}, "User-level", "Central"),
     ({}, "Example-level", "Local")],
)  # fmt: skip
def test_a_record_has_the_unit_and_trust_of_its_run(
    last: dict[str, Any], unit: str, model: str
) -> None:
    deployment = record([], **last)["deployment"]
    assert deployment["privacy_loss"]["privacy_unit"] == unit
    assert deployment["privacy_loss"]["privacy_parameters"] == {}
    assert deployment["model"]["model_name"] == model
    split = "A split model: tables."
    assert (deployment["product"]["description"] == split) == (not last)
    assert deployment["dp_flavor"]["name"] == "None"


def test_what_is_open_and_unprotected_is_stated() -> None:
    evidence: Any = SimpleNamespace(run=SimpleNamespace(accounts=[], last={
        "in_clear": ["sizes", "the time"], "epsilon_run_every_round": 1.0,
        "delta_run_every_round": 0.0, "epsilon_per_round": math.inf, "delta_per_round": 0.0,
    }))  # fmt: skip
    told = list(_open(evidence))
    assert [line.rpartition(": ")[2] for line in told[:2]] == ["sizes.", "the time."]
    assert not any("nothing is promised" in line for line in told)
    evidence.run.last["epsilon_run_every_round"] = math.inf
    assert any("nothing is promised" in line for line in _open(evidence))
    for clear, timed in ((["sizes"], False), (["sizes", "the time of a report"], True)):
        said = " ".join(_channels(clear))
        assert ("The time at which a report is sent depends on the data" in said) == timed
        assert ("Nobody measured the running time" in said) == (not timed)
    assert _randomness("system randomness").lines == ["System randomness."]
    assert len(_randomness("simulation randomness").lines) == 2


def test_each_attack_is_told_with_its_effort() -> None:
    found = [
        Finding(name, effort, "rr", [Measured("mse", 0.5, 0.4, 0.6, 0.3)])
        for name, effort in (("gradient", "quick"), ("exact", "full"))
    ]
    lines = _attacks(found).lines
    assert [line.partition(": ")[0] for line in lines] == [
        "gradient at effort quick", "exact at effort full",
    ]  # fmt: skip
    assert "nobody attacked this run" in _attacks([]).text


def release(law: str, count: int = 1, epsilon: float = 0.5, **more: float) -> dict[str, Any]:
    return {"law": law, "count": count, "epsilon": epsilon, "delta": 0.0, **more}


def test_losses_lie_on_a_grid_of_their_own_only_if_all_are_of_one_kind() -> None:
    one, same, other = release("stated", 3), release("stated", 2), release("stated", 1, 0.75)
    table, noise = release("table", 7, step=0.01), release("gaussian", 5, ratio=2.0)
    assert recompute.grid([one, same], 4.0) == 0.5
    assert recompute.grid([table], 4.0) == 0.01
    # 6, 5, 7 and 12 releases besides Gaussian ones, of which 2, 2, 2 and 3 is the root.
    for mixed, root in (([one, same, other], 2), ([one, same, noise], 2), ([table, noise], 2),
                        ([one, same, table, noise], 3)):  # fmt: skip
        assert recompute.grid(mixed, 4.0) == pytest.approx(4e-4 / root)
    assert recompute.grid([noise], math.inf) == 1e-4
    assert recompute.grid([noise], 0.01) == pytest.approx(1e-5)


def account(*releases: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"of": "a row", "epsilon": 1.0, "delta": 0.0, "adaptive": False, "missing": "",
            "releases": list(releases)} | more  # fmt: skip


def test_epsilons_are_added_or_composed() -> None:
    added = account(release("stated", 3), release("gaussian", 2, 0.75, ratio=2.0))
    assert recompute.recomputed(added) == (3.0, 0.0)  # delta 0
    assert recompute.recomputed({**added, "delta": 1e-5, "adaptive": True}) == (3.0, 0.0)
    spent = account(release("stated", 3) | {"delta": 1e-5}, delta=2e-5, adaptive=True)
    assert recompute.recomputed(spent) == (math.inf, 0.0)
    bare = account(release("none", epsilon=math.inf), delta=1e-5)
    assert recompute.recomputed(bare) == (math.inf, 0.0)
    partly = account(release("none", epsilon=math.inf), release("gaussian", ratio=4.0), delta=1e-5)
    assert recompute.recomputed(partly) == (math.inf, 0.0)
    noise = [release("gaussian", count, math.inf, ratio=ratio) for count, ratio in
             ((3, 4.0), (5, 6.0))]  # fmt: skip
    together = 1 / math.sqrt(3 / 4.0**2 + 5 / 6.0**2)
    epsilon, error = recompute.recomputed(account(*noise, delta=1e-5, epsilon=2.0))
    assert (epsilon, error) == (pytest.approx(epsilon_for(together, 1e-5), rel=1e-3), 0.0)
    # Rounded up to the grid they are more than their sum.
    few = account(release("stated", 1, 0.33333), release("stated", 1, 0.41117), delta=1e-15)
    assert recompute.recomputed(few)[0] == pytest.approx(0.7445, rel=1e-9)
    assert recompute.composed(few["releases"], 1e-15, 1.0)[0] > 0.74451


def test_releases_of_a_sampled_batch_are_composed_for_a_replaced_member() -> None:
    """They share the grid of other releases."""
    rounds, rate, multiplier, delta = 9, 0.25, 1.75, 1e-5
    loss = PrivacyLoss.of_release(SampledGaussian(multiplier / 2, rate))
    alone = release("sampled gaussian", rounds, multiplier=multiplier, rate=rate)
    epsilon, error = recompute.composed([alone], delta, 2.25)
    assert (epsilon, error) == (pytest.approx(compose([(loss, rounds)], delta), rel=2e-3), 0.0)
    noise = release("gaussian", 5, ratio=40.0)
    together, _ = recompute.composed([alone, noise], delta, 2.25)
    assert epsilon < together < epsilon + epsilon_for(40.0 / math.sqrt(5), delta)


def test_losses_between_two_points_count_as_the_larger() -> None:
    stated = release("stated", 3, 0.7) | {"delta": 1e-3}
    part, exact = recompute.table(stated, 0.4)
    assert not exact
    assert part.get_epsilon_for_delta(1.01e-3) == pytest.approx(0.8, rel=0.01)
    assert part.get_epsilon_for_delta(0.9e-3) == math.inf
    twice = recompute.composed([release("stated", 2, 0.5)], 1e-9, 1.0)
    assert twice == (pytest.approx(1.0, rel=1e-6), 0.0)
    mixed = [stated | {"epsilon": 0.7001}, release("gaussian", 5, ratio=2.0)]
    assert recompute.composed(mixed, 1e-2, 2.0)[1] == 3 * recompute.grid(mixed, 2.0)


def test_a_table_of_losses_is_written_whole() -> None:
    table = LossDistribution(0.5, -1, np.array([0.2, 0.5, 0.29]), 0.01)
    assert _law_of(table, [0.5, 1.0]) == {
        "law": "table", "step": 0.5, "low": -1, "infinite": 0.01, "masses": [0.2, 0.5, 0.29],
    }  # fmt: skip


def test_a_verdict_allows_for_rounding_alone() -> None:
    assert recompute.verdict(1.0, 1.0019, 0.0) == "agrees"
    assert recompute.verdict(1.0, 1.0021, 0.0) == "STATES LESS"
    assert recompute.verdict(1.0, 1.05, 0.05) == "agrees"
    assert recompute.verdict(1.0, 0.99, 0.0) == "states more"
    assert recompute.verdict(math.inf, math.inf, 0.0) == "agrees"


def test_the_script_judges_each_account_of_each_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A refuted account is not made good by the ones behind it."""
    large = account(
        release("table", 10**9, step=0.1, low=0.0, infinite=0.0) | {"masses": [1.0] * 9999},
        of="much", delta=1e-5,
    )  # fmt: skip
    wide = account(
        release("table", 1, step=2e6, low=0.0, infinite=0.0) | {"masses": [0.5, 0.5]},
        release("stated", 1), of="wide", delta=1e-5,
    )  # fmt: skip
    accounts = [
        account(release("stated", 3), of="less"), account(release("stated", 2), of="sound"),
        account(of="gone", missing="it was lost"), large, wide,
    ]  # fmt: skip
    files = []
    for name, of in (("bad", accounts), ("good", accounts[1:])):
        (tmp_path / name).write_text(json.dumps({"accounts": of}))
        files.append(str(tmp_path / name))
    assert recompute.main(files) == 1
    said = [line.partition(": ")[2] for line in capsys.readouterr().out.splitlines()]
    assert said[0] == "less: stated 1, recomputed 1.5 at delta 0: STATES LESS"
    assert said[1:5] == said[5:]
    assert said[1] == "sound: stated 1, recomputed 1 at delta 0: agrees"
    assert said[2] == "gone: not recomputed: it was lost"
    assert said[3].startswith("much: not recomputed: too large: 1,000,000,000 releases of a table")
    assert said[4] == (
        "wide: not recomputed: too large: 1 releases of a table of 2 losses, which are "
        "20,000,000,000 steps of the grid apart"
    )
    assert recompute.main(files[1:]) == 0


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"epsilon": None}, "it has no 'epsilon'"), ({"of": None}, "it has no 'of'"),
        ({"missing": None}, "it has no 'missing'"), ({"releases": None}, "it has no 'releases'"),
        ({"adaptive": None}, "it has no 'adaptive'"), ({"epsilon": "much"}, "'much' is no number"),
        ({"epsilon": "nan"}, "'nan' is no number"), ({"delta": "0"}, "not supported between"),
        ({"releases": [{}]}, "it has no 'epsilon'"), ({"releases": 3}, "not iterable"),
        ({"releases": [release("laplace", 1, 1.0)]}, "'laplace' is no law of a release"),
    ],
)  # fmt: skip
def test_a_record_that_lacks_something_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changed: dict[str, Any], why: str
) -> None:
    whole = {**account(release("stated", 1, 1.0), delta=1e-5)}
    changed_account = {k: v for k, v in {**whole, **changed}.items() if v is not None}
    record = tmp_path / "record.json"
    record.write_text(json.dumps({"accounts": [changed_account]}))
    assert recompute.main([str(record)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"{record} cannot be read: ")
    assert why in said.err
    assert ("it has no" in said.err) == why.startswith("it has no")


def test_the_script_rounds_no_epsilon_down() -> None:
    shown = [recompute.shown(value) for value in (1.0000001, 2.0, 1e-5, 0.1 + 0.2, math.inf)]
    assert shown == ["1.00001", "2", "1e-05", "0.300001", "inf"]
