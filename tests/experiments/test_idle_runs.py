"""A verdict about runs that ended at chance level says nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from experiments import (
    EXPERIMENTS,
    accuracy_claims,
    dp_encrypt_budget,
    dp_encrypt_keys,
    feature_claims,
    ldp_claims,
    ldp_epsilon,
    ldp_jobs,
    ldp_rounds,
    protected_features,
    protected_language,
    signds_keys,
    signds_lenet,
)
from experiments.catalog import find
from experiments.evidence import Lost
from experiments.experiment import Verdict
from experiments.ldp_jobs import LARGE, TASKS
from experiments.sweeps import Sweep, Swept
from fedveil.pages.read_run import ReadRun
from fedveil.privacy.intervals import share

#: Verdicts about a formula, a count or a format: no training can change them.
UNTRAINED = {
    "signds-lenet": ("bytes that a client uploads",),
    "signds-lenet-seeds": ("bytes that a client uploads",),
    "signds-keys": ("dimensions of a report",),
    "dp-encrypt-budget": ("epsilon of the run",),
    "embedding-dp": ("probability of an unchanged bit",),
}
#: Experiments without any training.
NO_TRAINING = {"signds-table", "secagg-cost", "ldp-aggregation"}
CHANCE = 0.1


def flat(**more: float) -> ReadRun:
    records = [{"round": i, "accuracy": CHANCE, "loss": 2.3, **more} for i in range(1, 11)]
    return ReadRun(Path("nowhere"), {}, records, (), ())


def swept(sweeps: Mapping[str, Sweep], **more: float) -> Mapping[str, Swept]:
    """Return runs that learnt nothing, for every value and seed of the sweeps."""
    return {name: {v: [flat(**more)] * 3 for v in sweep.values} for name, sweep in sweeps.items()}


def collapsed(name: str) -> Iterator[Verdict]:
    """Yield every verdict of an experiment about runs that all ended at chance level."""
    idle = Lost([[CHANCE]] * 5, [[CHANCE]] * 5, 10)
    if name in ("signds-lenet", "signds-lenet-seeds"):
        up = {"bytes_up_per_client": 300.0, "auc": 0.5}
        yield from signds_lenet.judged(
            {arm.name: flat(**up) for arm in find(name).arms("small")}  # type: ignore[attr-defined]
        )
    elif name == "signds-keys":
        runs = swept(signds_keys.SWEEPS)
        yield from signds_keys.outputs()
        yield from signds_keys.judged(runs)
        yield signds_keys.step_shrinks([[0.2, 0.1]] * 3, runs["sign_k"][0.2])
    elif name == "dp-encrypt-keys":
        yield from dp_encrypt_keys.judged(swept(dp_encrypt_keys._sweeps("small")), 100)
    elif name == "dp-encrypt-budget":
        sweeps = dp_encrypt_budget.sweeps()
        yield from dp_encrypt_budget.judged(swept(sweeps, epsilon_run_every_round=1.0))
    elif name == "ldp-rounds":
        by_round = swept(ldp_rounds._sweeps((2, 8)))
        seeds = [share("leakage", hits, 10_000) for hits in (5003, 4990, 5010)]
        yield from ldp_rounds.judged({name: {2: seeds, 8: seeds} for name in by_round})
        lenet = {f"first rounds, {kind}": {10: [flat()] * 3} for kind in ldp_rounds._KINDS}
        yield from ldp_rounds.beginnings("small", lenet, by_round)
    elif name == "ldp-convergence":
        runs = {f"{k}-{e:g}": flat() for k in ldp_jobs.MECHANISMS for e in LARGE}
        for kind in ldp_jobs.MECHANISMS:
            yield ldp_claims.converges({**runs, "plain": flat()}, kind)
    elif name == "ldp-cells":
        yield ldp_claims.cells_help(("iid", 9.6), Lost([[0.1]] * 6, [[CHANCE]] * 6, 10))
    elif name == "ldp-epsilon":
        runs = {task: flat() for task in TASKS}
        yield from ldp_epsilon.baselines_reached("small", runs, TASKS)
        rates = {(task, kind): idle for task in TASKS for kind in ldp_jobs.MECHANISMS}
        yield from ldp_epsilon.epsilon_decides(rates)
        # Without protection, the model learnt, and the attack finds members.
        noisy = Lost([[0.9]] * 5, [[CHANCE]] * 5, 10)
        leaks = [share("leakage", hits, 10_000) for hits in (5600, *[5003] * 5)]
        yield from ldp_epsilon.leakage_within(
            dict.fromkeys(TASKS, leaks), dict.fromkeys(TASKS, noisy)
        )
    elif name == "ldp-clients":
        yield ldp_claims.clients_help("rr", (1, 2, 3, 4, 5), idle)
    elif name == "ldp-noniid":
        yield from ldp_claims.few_labels_cost_without({"iid": flat(), "shards": flat()})
        yield ldp_claims.few_labels_cost(idle, idle)
    elif name == "ldp-adaptive":
        kinds = ("plain", "fixed", "adaptive", "same-total")
        runs = {f"{task}-{kind}": flat() for task in TASKS for kind in kinds}
        yield from ldp_claims.adapting_helps("small", runs, dict.fromkeys(runs, 2.0), TASKS)
    elif name == "embedding-dp":
        settings = protected_features.Settings("digits_tiny", 1, "quick")
        ssim = dict.fromkeys((feature_claims.PUBLIC, feature_claims.KNOWN), 0.2)
        figure = feature_claims.Figure([CHANCE] * 3, 1_000, ssim, 0.2, {})
        yield from feature_claims.verdicts(dict.fromkeys(settings.protections, figure))
    elif name == "pangu-embedding-dp":
        seeds = [protected_language.Run([9.0] * 100, {"leader": "a"}, 1.0, 1.0)] * 3
        yield from protected_language.verdicts(dict.fromkeys(protected_language.RUNS, seeds), 7.0)
    elif name == "accuracy-epsilon":
        points = [(eps, (CHANCE, CHANCE)) for eps in (1.0, 4.0, 16.0)]
        bare = {plain: [(math.inf, (CHANCE,))] for plain in accuracy_claims.BARE}
        drawn = dict.fromkeys(bare, (CHANCE - 0.001, CHANCE, CHANCE + 0.001))
        reached = bare | dict.fromkeys(accuracy_claims.REPORT, points)
        yield from accuracy_claims.judged(reached, drawn)
    else:
        pytest.fail(f"{name} has no case here")


@pytest.mark.parametrize("name", sorted({*EXPERIMENTS} - NO_TRAINING))
def test_an_experiment_whose_runs_learnt_nothing_says_nothing(name: str) -> None:
    verdicts = [v for v in collapsed(name) if not v.what.startswith(UNTRAINED.get(name, ("-",)))]
    assert verdicts
    assert {verdict.what: verdict.answer for verdict in verdicts} == {
        verdict.what: "says nothing" for verdict in verdicts
    }
    assert all(verdict.why for verdict in verdicts)


@pytest.mark.parametrize("name", sorted({*EXPERIMENTS} - NO_TRAINING))
def test_every_verdict_names_its_bound(name: str) -> None:
    assert all(verdict.held_to for verdict in collapsed(name))


def test_one_idle_run_of_two_is_enough() -> None:
    """Adaptive is not faster because a fixed epsilon ended at chance level."""
    good = {
        kind: ReadRun(Path("nowhere"), {}, [{"round": 1, "accuracy": accuracy}], (), ())
        for kind, accuracy in (("fixed", 0.6), ("adaptive", 0.71), ("same-total", 0.65))
    }
    for bad in good:
        runs = {f"{task}-{kind}": run for task in TASKS for kind, run in good.items()}
        runs[f"{TASKS[0]}-{bad}"] = flat()
        found = ldp_claims.adapting_helps("full", runs, dict.fromkeys(runs, 2.0), TASKS)
        silent = {v.what for v in found if v.answer == "says nothing"}
        mine = "mean accuracy over all rounds, fixed and adaptive"
        assert (f"{TASKS[0]}: {mine}" in silent) is (bad != "same-total")
        assert not any(what.startswith(TASKS[1]) for what in silent)


def test_the_smallest_epsilon_may_end_at_chance_level() -> None:
    """The source says that it does not converge: that is the claim, and the only one."""
    lost = Lost([[0.9]] * 3, [[CHANCE], [0.5], [0.88]], 10)
    rates = {(task, kind): lost for task in TASKS for kind in ldp_jobs.MECHANISMS}
    answers = {v.what: v.answer for v in ldp_epsilon.epsilon_decides(rates)}
    assert answers["the smallest epsilon"] == "agrees"
    assert set(answers.values()) == {"agrees"}


def test_an_attack_that_guesses_without_protection_measures_nothing() -> None:
    def verdict(*right: int, noisy: Sequence[float] = (0.5, 0.8)) -> Verdict:
        leaks = [share("leakage", hits, 1_000) for hits in right]
        lost = Lost([[0.9]] * len(noisy), [[each] for each in noisy], 10)
        (found,) = ldp_epsilon.leakage_within({TASKS[0]: leaks}, {TASKS[0]: lost})
        return found

    assert verdict(501, 500, 499).answer == "says nothing"
    assert verdict(620, 500, 499).answer == "agrees"
    assert verdict(900, 500, 499).answer == "differs"
    # The leakage of a model at chance level does not count, and one other model is no curve.
    few = verdict(620, 300, 500, 499, noisy=(CHANCE, 0.5, 0.8))
    assert few.answer == "agrees"
    assert few.ours.startswith("0.620 [0.589, 0.650], (0.300), 0.500 [0.469, 0.531], 0.499 [")
    assert verdict(620, 300, 500, 499, noisy=(0.5, 0.5, 0.8)).answer == "differs"
    assert verdict(620, 500, 500, 499, noisy=(CHANCE, CHANCE, 0.8)).answer == "says nothing"
