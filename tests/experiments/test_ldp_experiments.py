"""The experiments of 002: their settings are the source's, their verdicts follow the figures."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from experiments import evidence, ldp_adaptive, ldp_claims, ldp_epsilon, ldp_figures, ldp_jobs
from experiments.arms import Arm
from experiments.catalog import find
from experiments.evidence import Lost, seeded
from experiments.experiment import Verdict
from experiments.leakage import over_seeds
from experiments.reproduction import reproduce
from fedveil.data import purchase100
from fedveil.federated.job import Job
from fedveil.pages.read_run import ReadRun
from fedveil.privacy.finding import Measured
from fedveil.privacy.intervals import share
from folders import DOCS

LDP = ("convergence", "cells", "epsilon", "clients", "noniid", "adaptive")


def at(job: Job, key: str) -> Any:
    value: Any = job.model_dump()
    for part in key.split("."):
        value = value[part]
    return value


def arms(name: str) -> list[Arm]:
    found: list[Arm] = find(f"ldp-{name}").arms("full")  # type: ignore[attr-defined]
    return found


def run(*accuracies: float) -> ReadRun:
    records = [{"round": i, "accuracy": value} for i, value in enumerate(accuracies, 1)]
    return ReadRun(Path("nowhere"), {}, records, (), ())


@pytest.mark.parametrize("name", LDP)
def test_every_full_job_has_the_sources_settings(name: str) -> None:
    """N = 1,000, half a round, 500 rounds IID and 1,000 otherwise; SGD 0.1, Adam 0.01."""
    for arm in arms(name):
        job = arm.job
        purchase = "purchase" in job.data.name
        expected: dict[str, object] = {
            "clients.fraction": 0.5,
            "rounds": 1000 if job.data.split == "shards" else 500,
            "model": "purchase_dnn" if purchase else "lenet",
            "training.optimizer": "adam" if purchase else "sgd",
        }
        if name != "clients":
            expected["clients.number"] = 1000
        plain = job.protection.name == "not_encrypt"
        expected["training.lr"] = (0.001 if plain else 0.01) if purchase else 0.1
        assert {key: at(job, key) for key in expected} == expected, arm.name
        assert job.data.name == (purchase100.SYNTHETIC if purchase else "mnist")
        assert job.data.shards_per_client == 2


def test_the_settings_that_the_source_states_are_those_of_its_table() -> None:
    lenet, dnn = (ldp_jobs.SOURCE[task] for task in ldp_jobs.TASKS)
    assert (lenet["training.lr"], dnn["training.lr"]) == (0.1, 0.01)
    assert ldp_jobs.EPSILONS == (0.075, 0.15, 0.3, 0.6, 1.2, 2.4, 4.8, 9.6)
    assert [*ldp_jobs.BASELINES.values()] == [0.9885, 0.9866, 0.9098]
    full = ldp_jobs.job("full", "lenet-mnist", protection="rr", eps=4.8)
    for key, value in lenet.items():
        assert at(full, key) == value
    assert at(full, "protection.unary.eps") == 4.8
    assert at(full, "protection.unary.target") == "weights"
    assert at(full, "protection.unary.cells") == 50


@pytest.mark.parametrize("name", LDP)
def test_a_page_says_where_gradients_are_bounded(name: str) -> None:
    text = (DOCS / "reproductions" / f"ldp-{name}.md").read_text("utf-8")
    scale = "full" if "Scale: full." in text else "medium"
    experiment = find(f"ldp-{name}")
    described = experiment.described(scale, "What was run.")  # type: ignore[attr-defined]
    bounded = name in ("noniid", "cells")
    assert f" {ldp_jobs.BOUNDED} Clients send" in text if bounded else "norm of" not in text
    assert (f"What was run. {ldp_jobs.BOUNDED} Clients send" in described) == bounded
    assert "norm of at most 10" in ldp_jobs.BOUNDED
    assert "norm of" not in experiment.described("small", "")  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["epsilon", "adaptive"])
def test_a_medium_job_of_lenet_is_the_sources(name: str) -> None:
    """And one of Purchase-100 is that of scale small, for more rounds."""
    experiment = find(f"ldp-{name}")
    medium, full = (
        {arm.name: arm.job for arm in experiment.arms(scale)}  # type: ignore[attr-defined]
        for scale in ("medium", "full")
    )
    assert medium.keys() == full.keys()
    dense = {arm for arm in medium if not arm.startswith("lenet")}
    assert {arm: medium[arm] for arm in {*medium} - dense} == {
        arm: full[arm] for arm in {*full} - dense
    }
    rounds = experiment.medium_rounds  # type: ignore[attr-defined]
    for arm in dense:
        job = medium[arm]
        assert (job.rounds, job.evaluation.every, job.simulation.workers) == (rounds, 2, 0)
        assert (job.clients.number, job.model) == (
            ldp_jobs.SMALL_CLIENTS, "experiments.small_stand_ins:narrow"
        )  # fmt: skip


def test_runs_that_two_figures_share_are_equal_jobs() -> None:
    """And no two runs of one figure are."""
    by_figure = {name: {arm.name: arm.job for arm in arms(name)} for name in LDP}
    convergence, clients = by_figure["convergence"], by_figure["clients"]
    epsilon, cells = by_figure["epsilon"], by_figure["cells"]
    for name, job in convergence.items():
        there = "lenet-mnist" if name == "plain" else f"lenet-mnist-{name}"
        assert job.seed or epsilon[there] == job
    assert clients["not_encrypt-1000"] == convergence["plain"] == cells["iid"]
    noniid = by_figure["noniid"]
    for name in ("iid-4.8", "iid-9.6", "shards-9.6"):
        for seed in range(3):
            assert cells[seeded(f"{name}-50", seed)] == noniid[seeded(name, seed)]
    assert clients["oue-1000"] == convergence["oue-4.8"]
    assert clients["rr-1000-seed-2"] == convergence["rr-4.8-seed-2"]
    for jobs in by_figure.values():
        named = [job.name for job in jobs.values()]
        assert len({*named}) == len(named)


def test_the_file_of_purchase_100_is_used_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDVEIL_DATA", str(tmp_path))
    (tmp_path / "purchase").mkdir()
    (tmp_path / "purchase" / "dataset_purchase").write_text("1,0\n")
    assert ldp_jobs.tasks_of("full") == ("lenet-mnist", "dnn-purchase100")
    assert ldp_jobs.job("full", "dnn-purchase100").data.name == "purchase100"
    assert ldp_jobs.tasks_of("small")[1] == "dnn-purchase100-synthetic"


def test_rows_that_are_synthetic_say_so_and_real_ones_stand_beside_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDVEIL_DATA", str(tmp_path))
    (tmp_path / "location").mkdir()
    (tmp_path / "location" / "location30.npz").touch()
    arms = find("ldp-epsilon").arms("full")  # type: ignore[attr-defined]
    for arm in arms:
        assert ("synthetic" in arm.name) is ("synthetic" in arm.job.data.name)
        assert ("location30" in arm.name) is (arm.job.data.name == "location30")
    sets = {arm.job.data.name for arm in arms}
    assert sets == {"mnist", purchase100.SYNTHETIC, "location30"}
    located = [arm.job for arm in arms if arm.job.data.name == "location30"]
    assert {job.model for job in located} == {"purchase_dnn"}
    counts = {task: ldp_jobs.labels("small", task) for task in ldp_jobs.tasks_of("small")}
    assert [*counts.values()] == [10, 20, 30]


def test_what_each_figure_varies() -> None:
    def shown(name: str, key: str) -> set[Any]:
        return {at(arm.job, key) for arm in arms(name) if arm.job.protection.name != "not_encrypt"}

    assert shown("convergence", "protection.name") == {"rr", "oue"}
    assert shown("epsilon", "protection.unary.eps") == {*ldp_jobs.EPSILONS}
    assert len(arms("epsilon")) == 2 * (3 + 2 * 8) + 2 * 2 * (2 + 3)
    assert shown("cells", "protection.unary.cells") == {1, 3, 10, 30, 50, 100}
    assert shown("cells", "data.split") == {"iid", "shards"}
    assert max(shown("clients", "clients.number")) == 1000
    assert shown("noniid", "data.split") == {"iid", "shards"}
    assert shown("adaptive", "protection.unary.adaptive") == {True, False}
    assert shown("adaptive", "protection.unary.eps") == {4.8}  # LeNet learns nothing at 2.4
    for name in LDP:
        assert any(arm.job.protection.name == "not_encrypt" for arm in arms(name))


def test_convergence_is_judged_by_the_figures() -> None:
    def judged(*last: float, plain: float = 0.9) -> str:
        runs = {f"rr-{e:g}": run(x, x) for e, x in zip(ldp_jobs.LARGE, last, strict=True)}
        return ldp_claims.converges({**runs, "plain": run(plain)}, "rr").answer

    assert judged(0.1, 0.4, 0.8, 0.9) == "agrees"
    assert judged(0.9, 0.4, 0.8, 0.95) == "differs"
    assert judged(0.19, 0.1, 0.8, 0.9) == "agrees"  # both at chance level
    assert judged(0.5, 0.5, 0.5, 0.5) == "says nothing"  # one seed cannot decide
    assert judged(0.5, 0.49, 0.48, 0.47) == "differs"
    assert judged(0.1, 0.1, 0.1, 0.9) == "agrees"  # above the last run at chance level
    assert judged(0.1, 0.1, 0.9, 0.1) == "says nothing"
    assert judged(0.1, 0.4, 0.8, 0.9, plain=0.1) == "says nothing"


def test_convergence_with_several_seeds_is_judged_by_their_interval() -> None:
    def judged(*last: Sequence[float]) -> Verdict:
        runs = {
            seeded(f"rr-{e:g}", seed): run(accuracy, accuracy)
            for e, seeds in zip(ldp_jobs.LARGE, last, strict=True)
            for seed, accuracy in enumerate(seeds)
        }
        return ldp_claims.converges({**runs, "plain": run(0.9)}, "rr")

    steady = judged([0.1], [0.1], [0.70, 0.71, 0.72], [0.711, 0.721, 0.731])
    assert steady.answer == "agrees"  # a small rise that every seed has
    assert steady.ours.startswith("0.100, 0.100, 0.710 [0.685, 0.735], ")
    assert "seed by seed: the interval lies above 0" in steady.held_to
    assert judged([0.1], [0.1], [0.5, 0.7, 0.6], [0.7, 0.6, 0.7]).answer == "says nothing"
    assert judged([0.1], [0.1], [0.7, 0.72, 0.74], [0.65, 0.67, 0.69]).answer == "differs"
    # The runs of one seed count from the first that learnt.
    assert judged([0.1], [0.6], [0.7, 0.1, 0.9], [0.61, 0.1, 0.9]).answer == "differs"


def test_only_epsilons_that_learn_have_several_seeds_of_convergence() -> None:
    full = {arm.name for arm in arms("convergence")}
    assert len(full) == 17
    assert {"oue-9.6-seed-2", "rr-4.8-seed-1", "rr-2.4"} <= full
    small = find("ldp-convergence").arms("small")  # type: ignore[attr-defined]
    assert {arm.job.seed for arm in small} == {0}


def test_cells_are_judged_by_the_figures() -> None:
    falling = ldp_claims.cells_help(("iid", 9.6), lost(0.8, 0.6, 0.4, 0.2, 0.1, 0.05))
    turning = ldp_claims.cells_help(("iid", 4.8), lost(0.8, 0.6, 0.1, 0.2, 0.3, 0.4))
    assert falling.agrees
    assert not turning.agrees
    assert "Beyond 10 cells" in turning.why
    level = ldp_claims.cells_help(("iid", 9.6), lost(0.9, 0.06, 0.05, 0.047, 0.045, 0.045))
    assert level.answer == "says nothing"


def lost(*rates: float | Sequence[float], plain: float = 0.98) -> Lost:
    """Runs of digits, each with one rate or with that of each seed.

    They lose these shares of the accuracy without protection.
    """
    seeds = [[rate] if isinstance(rate, float) else rate for rate in rates]
    noisy = [[plain * (1 - rate) for rate in each] for each in seeds]
    return Lost([[plain] * len(each) for each in seeds], noisy, 10)


def epsilons_agree(rr: Sequence[float], oue: Sequence[float]) -> list[bool]:
    """Both tasks with these loss rates."""
    rates = {(task, kind): lost(*values) for task in ldp_jobs.TASKS
             for kind, values in (("rr", rr), ("oue", oue))}  # fmt: skip
    return [verdict.agrees for verdict in ldp_epsilon.epsilon_decides(rates)]


def test_epsilons_are_judged_by_the_figures() -> None:
    good = (0.9, 0.9, 0.9, 0.8, 0.5, 0.2, 0.05, 0.0)
    later = (0.9, 0.9, 0.9, 0.9, 0.8, 0.5, 0.2, 0.03)
    assert epsilons_agree(good, good) == [True] * 8
    assert epsilons_agree(good, later) == [True] * 6 + [False] * 2
    bad = (0.2, 0.9, 0.9, 0.8, 0.5, 0.2, 0.4, 0.1)
    assert epsilons_agree(bad, bad) == [False] * 6 + [True] * 2


def epsilon_verdicts(rr: Sequence[Sequence[float]], oue: Sequence[Sequence[float]]) -> list[str]:
    """The answers about one task: the largest epsilon, the smallest, and RR beside OUE."""
    losses = {(ldp_jobs.TASKS[0], kind): lost(*each) for kind, each in (("rr", rr), ("oue", oue))}
    verdicts = [*ldp_epsilon.epsilon_decides(losses)]
    return [verdict.answer for verdict in verdicts[2:]]


@pytest.mark.parametrize(
    ("last", "answers"),
    [
        ([0.01, 0.02, 0.03], ["agrees", "agrees", "agrees"]),
        ([0.065, 0.07, 0.075], ["differs", "agrees", "agrees"]),
        ([0.02, 0.04, 0.06], ["says nothing", "agrees", "agrees"]),  # its interval ends at 0.09
        ([0.13, 0.14, 0.15], ["differs", "agrees", "differs"]),
        ([0.05, 0.1, 0.15], ["says nothing", "agrees", "says nothing"]),
    ],
)
def test_several_seeds_of_an_epsilon_are_judged_by_their_interval(
    last: list[float], answers: list[str]
) -> None:
    rr = [[0.9], [0.5, 0.5, 0.5], [0.01, 0.02, 0.03]]
    assert epsilon_verdicts(rr, [[0.9], [0.5, 0.51, 0.52], last]) == answers


def test_only_epsilons_that_learn_have_several_seeds() -> None:
    names = {arm.name for arm in ldp_epsilon.Epsilons().arms("medium")}
    assert {"lenet-mnist-seed-2", "lenet-mnist-rr-4.8-seed-1", "lenet-mnist-oue-0.6"} <= names
    assert "dnn-purchase100-synthetic-rr-2.4-seed-2" in names
    few = {"lenet-mnist-oue-2.4-seed-1", "dnn-purchase100-synthetic-rr-1.2-seed-1"}
    assert not few & names
    assert {arm.job.seed for arm in ldp_epsilon.Epsilons().arms("small")} == {0}


@pytest.mark.parametrize(
    ("reached", "answer"),
    [
        ([0.9875, 0.988, 0.987], "agrees"),
        ([0.9, 0.91, 0.92], "differs"),
        ([0.988, 0.97, 0.985], "says nothing"),  # the mean is near enough
        ([0.988, 0.988, 0.1], "says nothing"),  # one seed learnt nothing
    ],
)
def test_the_baseline_is_judged_by_all_its_seeds(reached: list[float], answer: str) -> None:
    task = ldp_jobs.TASKS[0]
    runs = {seeded(task, seed): run(each) for seed, each in enumerate(reached)}
    (verdict,) = ldp_epsilon.baselines_reached("medium", runs, [task])
    assert verdict.answer == answer


def test_the_leakage_of_several_seeds_is_their_mean_with_its_interval() -> None:
    found = [share("leakage", hits, 1_000) for hits in (620, 640, 660)]
    both = over_seeds(found)
    assert both.value == pytest.approx(0.64)
    assert (both.low, both.high) == pytest.approx((0.5903, 0.6897), abs=1e-4)
    assert over_seeds(found[:1]) == found[0]


def test_the_models_of_all_seeds_are_attacked(monkeypatch: pytest.MonkeyPatch) -> None:
    def attack(folder: Path) -> Measured:
        return share("leakage", {"a": 620, "a-seed-1": 640, "a-seed-2": 660}[folder.name], 1_000)

    monkeypatch.setattr(ldp_epsilon, "leakage", attack)
    names = ("a", "a-seed-1", "a-seed-2", "b-seed-1")
    runs = {name: ReadRun(Path(name), {}, [], (), ()) for name in names}
    assert ldp_epsilon._leakage(runs, "a").value == pytest.approx(0.64)


def test_several_seeds_of_clients_are_judged_by_their_interval() -> None:
    def answer(*falls: float) -> str:
        seeds = lost([0.9] * len(falls), [0.4] * len(falls), [0.4 - fall for fall in falls])
        return ldp_claims.clients_help("rr", (1, 2, 3), seeds).answer

    assert answer(0.1) == "agrees"
    assert answer(0.1, 0.12, 0.08) == "agrees"
    assert answer(0.25, 0.01, 0.04) == "says nothing"  # the mean alone would agree
    assert answer(0.0, 0.005, -0.005) == "differs"
    assert answer(-0.1, -0.12, 0.0) == "differs"  # the mean rises by more than 0.05
    last = [0.3 + k / 50 for k in range(3)]
    shown = ldp_claims.clients_help("rr", (1, 2, 3), lost(0.9, [0.4] * 3, last))
    assert "0.320 [0.270, 0.370]" in str(shown)


def test_each_run_of_the_clients_is_compared_with_that_of_its_seed(tmp_path: Path) -> None:
    numbers = ldp_figures.Clients.numbers["full"]
    plain = {0: 0.9, 1: 0.8, 2: 0.5}  # differ more than what protection costs
    runs = {}
    for at, number in enumerate(numbers):
        for kind, cost in {"not_encrypt": 0.0, "rr": 0.6 - 0.1 * at, "oue": 0.4 + 0.1 * at}.items():
            for seed, reached in plain.items():
                records = [{"round": 1, "accuracy": reached * (1 - cost), "loss": 1.0}]
                run = ReadRun(tmp_path, {}, records, (), ())
                runs[evidence.seeded(f"{kind}-{number}", seed)] = run
    assert {*runs} == {*ldp_figures.Clients().table("full")}
    found = ldp_figures.Clients().judged("full", runs, tmp_path, print)
    assert [verdict.answer for verdict in found.verdicts] == ["agrees", "differs"]
    assert "0.600 [0.600, 0.600], 0.500 [0.500, 0.500]" in str(found.verdicts[0])
    assert found.seeds == 3
    assert len(found.plots[0].curves[0].y) == len(numbers)


def test_clients_and_splits_are_judged_by_the_figures() -> None:
    assert ldp_claims.clients_help("rr", (1, 2, 3), lost(0.9, 0.5, 0.1)).agrees
    # an idle run after one that learnt is no start of the curve
    assert ldp_claims.clients_help("rr", (1, 2, 3), lost(0.5, 0.9, 0.1)).answer == "differs"
    iid, both = lost(0.9, 0.5, 0.1, 0.0), ldp_claims.few_labels_cost
    assert both(iid, lost(0.95, 0.6, 0.2, 0.1)).agrees
    assert both(iid, lost(0.85, 0.6, 0.2, 0.1)).agrees  # neither learnt at the first
    assert both(iid, lost(0.95, 0.4, 0.2, 0.1)).answer == "differs"
    # the smallest difference may be chance
    for near in (0.01, -0.01):
        assert both(iid, lost(0.95, 0.6, 0.1 + near, 0.1)).answer == "says nothing"
    assert both(iid, lost(0.9, 0.9, 0.9, 0.9)).answer == "says nothing"


def test_few_labels_are_judged_by_each_epsilon_s_interval() -> None:
    iid = lost(0.9, 0.9, [0.1, 0.11, 0.09], [0.01, 0.02, 0.03])

    def verdict(third: Sequence[float], fourth: Sequence[float]) -> Verdict:
        return ldp_claims.few_labels_cost(iid, lost(0.9, 0.9, third, fourth))

    more = verdict([0.14, 0.15, 0.16], [0.02, 0.03, 0.04])
    assert more.agrees  # by little, at every seed
    assert more.ours.startswith("0.900 / 0.900, 0.900 / 0.900, 0.100 [0.075, 0.125] / 0.150 [")
    assert "non-IID minus IID, seed by seed: the interval lies above 0" in more.held_to
    assert verdict([0.14, 0.15, 0.16], [0.0, 0.02, 0.02]).answer == "differs"
    assert verdict([0.2, 0.15, 0.05], [0.02, 0.03, 0.04]).answer == "says nothing"
    assert verdict([0.2, 0.15, 0.05], [0.0, 0.02, 0.02]).answer == "differs"


def test_full_runs_have_several_seeds_where_lenet_learns() -> None:
    names = {*ldp_figures.NonIID().table("full")}
    assert {"shards-1.2", "shards-4.8", "shards-4.8-seed-2", "iid-9.6-seed-1"} <= names
    assert not names & {"shards-2.4-seed-1", "iid-1.2-seed-2"}
    assert len(names) == 2 * (5 + 2 + 2 * 3)
    assert len(ldp_figures.NonIID().table("small")) == 2 * (5 + 4)


def test_a_split_without_protection_is_judged_by_all_its_five_seeds() -> None:
    ends = (0.9868, 0.9871, 0.9895, 0.9866, 0.9869)
    runs = {seeded("shards", seed): run(end) for seed, end in enumerate(ends)}
    runs |= {seeded("iid", seed): run(0.9889 + seed / 10_000) for seed in range(5)}
    table = ldp_figures.NonIID().table("full")
    assert {name for name in table if table[name].get("protection") is None} == {*runs}
    _, difference = ldp_claims.few_labels_cost_without(runs)
    assert difference.answer == "agrees"  # three of them cannot decide
    three = {name: runs[name] for name in runs if name[-1] not in "34"}
    _, unsure = ldp_claims.few_labels_cost_without(three)
    assert unsure.answer == "says nothing"


def test_location_s_small_net_has_eight_seeds_of_every_noisy_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ldp_jobs, "find", lambda *names: Path(*names))
    seeds = Counter(
        arm.name.partition("-seed-")[0] for arm in ldp_adaptive.Adaptive().arms("medium")
    )
    noisy = {name: n for name, n in seeds.items() if not name.endswith("plain")}
    assert {n for name, n in noisy.items() if "location" in name} == {8}
    assert {n for name, n in noisy.items() if "location" not in name} == {3}
    assert {n for name, n in seeds.items() if name.endswith("plain")} == {1}


@pytest.mark.parametrize(
    ("iid", "shards", "answer"),
    [
        (0.9885, 0.9846, ["agrees", "agrees"]),
        (0.9885, 0.9866, ["agrees", "says nothing"]),  # one seed cannot tell these apart
        (0.9883, 0.9892, ["agrees", "says nothing"]),
        (0.9845, 0.9886, ["agrees", "differs"]),
        (0.83, 0.81, ["differs", "agrees"]),  # the order of the source's, far below it
        (0.9885, 0.9756, ["differs", "agrees"]),
        (0.1, 0.1, ["says nothing", "says nothing"]),
    ],
)
def test_baselines_of_both_splits_are_judged_by_the_figures(
    iid: float, shards: float, answer: list[str]
) -> None:
    runs = {"iid": run(iid), "shards": run(shards)}
    assert [v.answer for v in ldp_claims.few_labels_cost_without(runs)] == answer


@pytest.mark.parametrize(
    ("shards", "answer"),
    [
        ((0.9868, 0.9871, 0.9882), "agrees"),  # 0.0015 below on average, at every seed
        ((0.9868, 0.9871, 0.9895), "says nothing"),
        ((0.9884, 0.9890, 0.9897), "differs"),
    ],
)
def test_seeds_tell_baselines_apart_that_one_cannot(shards: Sequence[float], answer: str) -> None:
    runs = {"iid": run(0.9883), "iid-seed-1": run(0.9887), "iid-seed-2": run(0.9896)}
    runs |= {name: run(end) for name, end in
             zip(("shards", "shards-seed-1", "shards-seed-2"), shards, strict=True)}  # fmt: skip
    ends, difference = ldp_claims.few_labels_cost_without(runs)
    assert difference.answer == answer
    assert ends.ours.startswith("0.9889 [0.9872, 0.9905], ")


@pytest.mark.parametrize(
    ("iid", "answer"),
    [
        ((0.9883, 0.9887, 0.9896), "agrees"),
        ((0.9883, 0.9887, 0.975), "says nothing"),  # the mean is near enough
        ((0.953, 0.954, 0.955), "differs"),
    ],
)
def test_baselines_are_held_to_the_interval_of_their_seeds(
    iid: Sequence[float], answer: str
) -> None:
    runs = {seeded("iid", seed): run(end) for seed, end in enumerate(iid)}
    runs |= {seeded("shards", seed): run(0.9866 + seed / 10_000) for seed in range(3)}
    ends, _ = ldp_claims.few_labels_cost_without(runs)
    assert ends.answer == answer
    assert ends.held_to == "each at most 0.01 from the source's, with the whole interval"


def test_the_arms_of_one_name_differ_in_their_seeds_alone() -> None:
    for name, of in (("noniid", "shards"), ("adaptive", "lenet-mnist-adaptive")):
        jobs = {arm.name: arm.job for arm in arms(name)}
        mine = [jobs[each] for each in (of, f"{of}-seed-1", f"{of}-seed-2")]
        assert [job.seed for job in mine] == [0, 1, 2]
        assert len({job.name for job in mine}) == 3
        alike = [job.model_copy(update={"seed": 0, "name": ""}) for job in mine]
        assert alike[1:] == alike[:-1]


def test_the_adaptive_epsilon_is_judged_by_the_figures() -> None:
    def judged(fixed: float, adaptive: float, same: float, grown: float) -> list[str]:
        runs, spent = {}, {}
        for factor, task in enumerate(ldp_jobs.TASKS, 1):
            for kind, end in (("fixed", fixed), ("adaptive", adaptive), ("same-total", same)):
                runs[f"{task}-{kind}"] = run(end / factor)
                spent[f"{task}-{kind}"] = 1.0
            spent[f"{task}-adaptive"] = grown
        found = ldp_claims.adapting_helps("full", runs, spent, ldp_jobs.TASKS)
        short = {"agrees": "a", "differs": "d", "says nothing": "-"}
        return [short[verdict.answer] for verdict in found]

    # faster for both tasks, by more for the first; then the total and its comparison, twice
    assert judged(0.4, 0.8, 0.6, 1.0) == [*"aaaaaaa"]
    assert judged(0.4, 0.8, 0.8, 1.5) == [*"aaad-d-"]
    assert judged(0.8, 0.4, 0.3, 1.0) == [*"dddaaaa"]
    assert judged(0.6, 0.61, 0.8, 1.0) == [*"---adad"]  # 0.01 and 0.005 may be chance
    assert judged(0.6, 0.59, 0.6, 1.0) == [*"---a-a-"]
    assert judged(0.5, 0.57, 0.4, 1.0) == [*"aa-aaaa"]  # gains of 0.07 and 0.035


def test_the_adaptive_epsilon_is_judged_by_the_interval_of_the_seeds() -> None:
    """A gain of 0.004 counts if every seed has it, and each seed is compared with itself."""
    task, other = ldp_jobs.TASKS
    runs, spent = {}, {}
    for seed, base in enumerate((0.60, 0.70, 0.65)):
        for of, gain in ((task, 0.004 + seed / 10_000), (other, 0.1 - seed / 20)):
            ends = {"fixed": base, "adaptive": base + gain, "same-total": base + 0.03}
            for kind, end in ends.items():
                name = ldp_jobs.seeded(f"{of}-{kind}", seed)
                runs[name], spent[name] = run(end), 1.0
            spent[ldp_jobs.seeded(f"{of}-adaptive", seed)] = 1 + seed / 10
    found = {v.what: v for v in ldp_claims.adapting_helps("full", runs, spent, ldp_jobs.TASKS)}
    speeds = "mean accuracy over all rounds"
    assert found[f"{task}: {speeds}, fixed and adaptive"].answer == "agrees"
    assert found[f"{other}: {speeds}, fixed and adaptive"].answer == "says nothing"
    total = found[f"{task}: the total budget"]  # 1.0, 1.1 and 1.2: they cannot decide
    assert (total.answer, total.ours) == ("says nothing", "1.100 [0.852, 1.348] times as much")
    same = next(v for what, v in found.items() if what.startswith(f"{task}: {speeds}, adaptive"))
    assert same.answer == "differs"
    assert same.ours == "-0.026 [-0.026, -0.026]"


@pytest.mark.parametrize(
    ("totals", "answer"),
    [
        ((1.0, 1.0, 1.0), "agrees"),
        ((1.00001, 1.00003, 1.00002), "agrees"),  # less than what counts
        ((1.02, 1.03, 1.025), "differs"),
        ((0.97, 0.98, 0.96), "agrees"),
        ((1.0, 1.0, 1.3), "says nothing"),  # the mean alone would differ
    ],
)
def test_the_total_budget_is_judged_by_the_interval_of_the_seeds(
    totals: Sequence[float], answer: str
) -> None:
    task, runs, spent = ldp_jobs.TASKS[0], {}, {}
    for seed, total in enumerate(totals):
        for kind, each in {"fixed": 2.0 + seed, "adaptive": (2.0 + seed) * total}.items():
            name = seeded(f"{task}-{kind}", seed)
            runs[name], spent[name] = run(0.9), each
    verdict = ldp_claims._Adapted("full", runs).keeps_the_budget(task, spent)
    assert verdict.answer == answer


@pytest.fixture
def miniature(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both tasks on the embedded digits, six clients, three rounds."""
    small = {task: {"data": {"name": "digits"}, "training": {"epochs": 1}}
             for task in ldp_jobs.tasks_of("small")}  # fmt: skip
    monkeypatch.setattr(ldp_jobs, "_SMALL", small)
    monkeypatch.setattr(ldp_jobs, "SMALL_CLIENTS", 6)
    monkeypatch.setattr(ldp_jobs, "SMALL_ROUNDS", 3)


def test_a_miniature_of_the_adaptive_epsilon(miniature: None, tmp_path: Path) -> None:
    """Every part once, and what is spent by plain addition."""
    said: list[str] = []
    page, outcome = reproduce("ldp-adaptive", "small", tmp_path / "a", said.append)
    text = page.read_text()
    assert said[-1] == "run 6 of 6: dnn-purchase100-synthetic-same-total-seed-2"
    assert [plot.name for plot in outcome.plots] == ["lenet-mnist", "dnn-purchase100-synthetic"]
    assert (page.parent / "ldp-adaptive-lenet-mnist.svg").exists()
    fixed, adaptive, same = (
        sum(
            ldp_adaptive.mean_eps(page.parent / evidence.seeded(f"lenet-mnist-{kind}", seed))
            for seed in evidence.SEEDS
        )
        / 3
        for kind in ("fixed", "adaptive", "same-total")
    )
    assert fixed == pytest.approx(2.4)
    assert adaptive > 2.4
    assert same == pytest.approx(adaptive)
    grown = next(v for v in outcome.verdicts if v.what == "lenet-mnist: the total budget")
    assert grown.answer != "agrees"
    times = re.match(r"(.*) \[(.*), (.*)\] times as much", grown.ours)
    assert times is not None
    middle, low, high = map(float, times.groups())
    assert middle == pytest.approx(adaptive / fixed, abs=1e-3)
    assert low <= middle <= high
    assert "The index of these pages states all settings" in text
    said.clear()
    assert reproduce("ldp-adaptive", "small", tmp_path / "a", said.append)[1].verdicts == (
        outcome.verdicts
    )
    assert len(said) == 1  # nothing is trained again


def test_a_miniature_of_the_epsilons(
    miniature: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = {"small": (0.6, 9.6), "medium": (9.6,), "full": (9.6,)}
    monkeypatch.setattr(ldp_epsilon.Epsilons, "shown", few)
    _, outcome = reproduce("ldp-epsilon", "small", tmp_path / "e", lambda text: None)
    assert [plot.name for plot in outcome.plots] == [
        "lenet-mnist",
        "dnn-purchase100-synthetic",
        "leakage",
    ]
    leaks = outcome.plots[-1].curves
    assert [len(c.x) for c in leaks] == [2] * 4
    assert all(0.3 < y < 0.7 for c in leaks for y in c.y)
