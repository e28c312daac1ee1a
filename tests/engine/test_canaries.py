"""Canaries beside a run's clients: what they send, what is found, and what they leave alone."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

import fedveil
from fedveil.engine.canaries import Canaries, CanaryTraining
from fedveil.engine.canary_bounds import BY_MOVE, BY_NOISE, Canvass
from fedveil.engine.canary_directions import Directions
from fedveil.engine.canary_evidence import ReportEvidence
from fedveil.engine.canary_sums import SumEvidence
from fedveil.engine.executors.client_side import Trained
from fedveil.engine.executors.executor import Executor
from fedveil.engine.job_protection import make_protection
from fedveil.engine.round_checkpoint import LATEST
from fedveil.errors import DeploymentError, InvalidValue, JobError, ModelInvalid
from fedveil.federated.job import Job
from fedveil.flower.job.deploy import deployable
from fedveil.privacy.choice_audit import Choice, in_pairs, told_true
from fedveil.privacy.finding import Finding
from fedveil.privacy.guarantee_strength import Figure
from fedveil.protections.base import Aggregate, RoundContext
from fedveil.protections.reading import Reading
from fedveil.record.finding_lines import FINDINGS, read_findings
from fedveil.record.run_folder import MODEL
from fedveil.record.sealed_message import unsealed

#: Of the audit of 40 canaries in two rounds: a run of epsilon 4.
PER_ROUND = {"dp_eps": 3.032, "dp_delta": 1e-6}

#: A sum of a few clients, in simulation.
TWO = {"distributed_dp": {"reconstruct_secrets_threshold": 2}}


def job(position: str = "dp_encrypt", canaries: int = 40, **changes: Any) -> Job:
    protection: dict[str, Any] = {"name": position, "dp_encrypt": PER_ROUND}
    protection |= changes.pop("protection", {})
    settings = {
        "name": "audited",
        "rounds": 2,
        "clients": {"number": 40, "fraction": 1.0},
        "data": {"name": "parts:data"},
        "model": "parts:wide",
        "training": {"epochs": 1, "batch_size": 6, "lr": 0.1},
        "evaluation": {"every": 4},
        "simulation": {"workers": 0},
        "record": {"page": False},
        "audit": {"canaries": canaries},
        "protection": protection,
    }
    return Job(**{**settings, **changes})


def audited(job: Job, folder: Path) -> Finding:
    finding = fedveil.simulate(job, folder).audit
    assert finding is not None
    return finding


def faulty(fault: str, seed: int) -> Job:
    own = {"dp_eps": 5.894, "dp_delta": 1e-6, "fault": fault}
    many = {"number": 100, "fraction": 1.0}
    return job("faulty_noise:Faulty", 100, clients=many, protection={"own": own}, seed=seed)


def test_directions_have_length_1_and_are_at_right_angles() -> None:
    directions = Directions(3, 9, 21)
    rows = np.array([directions.vector(i) for i in range(9)])
    assert np.allclose(rows @ rows.T, np.eye(9))
    vector = np.arange(21.0) ** 2
    assert np.allclose(directions.along(vector), rows @ vector)
    assert not np.allclose(rows, [Directions(4, 9, 21).vector(i) for i in range(9)])


@pytest.mark.parametrize("dimension", [5, 6])
def test_every_direction_of_a_small_model_may_be_a_canary_s(dimension: int) -> None:
    directions = Directions(1, dimension, dimension)
    rows = np.array([directions.vector(number) for number in range(dimension)])
    assert np.allclose(rows @ rows.T, np.eye(dimension))


def test_every_canary_needs_a_direction() -> None:
    with pytest.raises(InvalidValue, match="canaries = 22 is more than the model's 21 parameters"):
        Directions(3, 22, 21)


def test_a_canary_sends_one_of_two_opposite_updates_and_turns_round() -> None:
    directions, included = Directions(0, 3, 30), np.array([True, False, True])
    training = CanaryTraining(directions, included, (2.5, 7.0), first=7)
    sent = []
    for round in (1, 2):
        training.open(round, np.zeros(30, np.float32))
        answers = list(training.updates([7, 8, 9]))
        sent.append([a.update for a in answers if isinstance(a, Trained)])
    first, second = np.array(sent)
    signed = zip((2.5, -7.0, 2.5), range(3), strict=True)
    assert np.allclose(first, -second)
    assert np.allclose(first, [length * directions.vector(number) for length, number in signed])
    assert np.array_equal(-second[0], training.if_included(7) * -1)
    assert np.allclose(training.unit(8), -directions.vector(1))


def test_canaries_reach_far_beyond_the_clip() -> None:
    """A clip that lets through more than it says is seen by how much more."""
    half = {"dp_encrypt": {**PER_ROUND, "dp_norm_clip": 0.5}}
    clipped = job(protection=half)
    sent = [np.linalg.norm(update) for update in updates(clipped, 6)]
    assert sent == pytest.approx([0.75, 4.0, 32.0] * 2)
    assert canaries_of(clipped)._sums._moved == 0.5  # as long as a clip that holds lets through
    own = job(audit={"canaries": 40, "norm": 0.125}, protection=half)
    assert [np.linalg.norm(update) for update in updates(own, 2)] == pytest.approx([0.125] * 2)
    plain = [np.linalg.norm(update) for update in updates(job("not_encrypt"), 3)]
    assert plain == pytest.approx([1.0] * 3)
    unbounded = [np.linalg.norm(update) for update in updates(job("signds"), 3)]
    assert unbounded == pytest.approx([1.0, 1 / 64, 64.0])


def updates(job: Job, count: int) -> list[Any]:
    canaries = canaries_of(job)
    first = canaries.clients.start
    return [canaries._training.if_included(first + number) for number in range(count)]


def canaries_of(job: Job, dimension: int = 112) -> Canaries:
    return Canaries(job, make_protection(job, dimension))


def test_directions_add_up() -> None:
    directions, weights = Directions(3, 4, 21), np.array([1.0, -2.0, 0.5, 3.0])
    rows = np.array([directions.vector(i) for i in range(4)])
    assert np.allclose(directions.combined(weights), weights @ rows)


def test_what_canaries_sent_is_not_noise() -> None:
    """Nor is what a clip let through that it should have shortened."""
    directions, signs = Directions(0, 3, 30), np.array([1.0, 1.0, -1.0])
    rows = np.array([directions.vector(i) for i in range(3)])
    noise = np.random.default_rng(5).normal(0, 0.1, 30)
    beside = noise - rows.T @ (rows @ noise)
    protection = make_protection(job(), 30)
    for longer in (1, 2):
        seen = SumEvidence(directions, signs > 0, 2.5, protection)
        seen.see(Aggregate((longer * 2.5 * (signs @ rows) + noise) / 3, 3), 1, 1)
        assert seen.noise.squares == pytest.approx(beside @ beside)
        reports = ReportEvidence(directions, signs > 0, 2.5, 30, ())
        estimate = longer * 2.5 * rows[0] + noise
        reports.read(0, Reading(estimate, np.ones(30)), rows[0], rows[0].astype(np.float32))
        alone = noise @ noise - (rows[0] @ noise) ** 2
        assert reports.noise.squares == pytest.approx(alone)


def test_noise_that_reports_share_is_taken_off_every_score() -> None:
    directions, included = Directions(0, 3, 30), np.array([True, True, False])
    shared = np.random.default_rng(5).normal(0, 1.0, 30)
    seen = ReportEvidence(directions, included, 2.5, 30, ())
    for number, sign in enumerate((1, 1, -1)):
        unit = -directions.vector(number)
        reading = Reading(sign * 2.5 * unit + shared, np.ones(30))
        seen.read(number, reading, unit, unit.astype(np.float32))
    seen.close(-1)
    assert np.allclose(seen.scores, [2.5, 2.5, -2.5])


def test_no_round_is_in_two_pairs_and_the_error_is_split_over_all_bounds() -> None:
    """Seven canaries make three pairs. Six rounds make three of neighbours and two of others."""
    choice, directions = Choice("a bit", 1.0, told_true, 3), Directions(0, 7, 30)
    included = np.array([True, False] * 3 + [True])
    seen = ReportEvidence(directions, included, 1.0, 30, [choice])
    truth, empty = np.array([1, 0, -1], np.int8), np.zeros(30)
    reading = Reading(empty, np.ones(30), log_likelihood=lambda update: 0.0,
                      truths=lambda update: [truth])  # fmt: skip
    for _ in range(6):
        for number in range(7):
            seen.read(number, reading, empty, empty.astype(np.float32))
        seen.close(1)
    (counts,) = seen.tally.counts
    assert [(n.hits, n.tries) for n in counts] == [(42, 84), (21, 42), (14, 28), (18, 36)]
    sums = SumEvidence(directions, included, 1.0, make_protection(job(), 30))
    canvass = Canvass(included, seen, sums, 2.0, gaussian=False, measured=False)
    figures = {figure.name: figure for figure in canvass.figures(Figure(3.0, 0.0))}
    assert len([figure for figure in figures.values() if figure.is_bound]) == 6
    found = figures["epsilon at least, a bit told true in two rounds"]
    assert (found.epsilon, found.cases) == (1.0, 42)
    assert found.value == counts[1].lower_bound(in_pairs(told_true), error=0.05 / 6)


def test_without_canaries_a_run_holds_nothing_of_an_audit(tmp_path: Path) -> None:
    run = fedveil.simulate(job(canaries=0), tmp_path / "run")
    assert run.audit is None
    assert not (tmp_path / "run" / FINDINGS).exists()
    assert "canaries" not in run.metrics[-1]
    assert "canaries" not in unsealed((tmp_path / "run" / LATEST).read_bytes())
    assert run.metrics[-1]["clients"] == 40


def test_where_nothing_is_hidden_every_coin_is_told(tmp_path: Path) -> None:
    finding = audited(job("not_encrypt"), tmp_path / "run")
    assert finding.figure("coins guessed right").value == 1
    assert finding.epsilon == math.inf
    assert not finding.refutes
    assert finding.figure("epsilon at least").value > 2
    assert list(map(str, read_findings(tmp_path / "run"))) == [str(finding)]


def test_canaries_are_counted_and_never_charged(tmp_path: Path) -> None:
    few = {"number": 50, "fraction": 0.1}
    plain = fedveil.simulate(job(canaries=0, clients=few), tmp_path / "plain")
    run = fedveil.simulate(job(canaries=5, clients=few), tmp_path / "run")
    last = plain.metrics[-1]
    assert last["epsilon_run_most_drawn"] < last["epsilon_run_every_round"]  # as a canary is
    for before, record in zip(plain.metrics, run.metrics, strict=True):
        assert (record["clients"], record["reports"], record["canaries"]) == (10, 10, 5)
        assert record["bytes_down"] == 2 * before["bytes_down"]
        epsilons = [key for key in record if key.startswith(("epsilon_", "delta_"))]
        assert [record[key] for key in epsilons] == [before[key] for key in epsilons]
    assert run.audit is not None
    assert run.audit.epsilon == run.metrics[-1]["epsilon_run_every_round"]


def test_a_resumed_run_finds_the_same_to_the_byte(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    fedveil.simulate(job(rounds=4), whole)

    def interrupt(record: dict[str, Any]) -> None:
        if record["round"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fedveil.simulate(job(rounds=4), cut, progress=interrupt)
    fedveil.resume(cut)
    fedveil.resume(cut)  # a finding that is there is not written again
    for name in (FINDINGS, MODEL):
        assert (cut / name).read_bytes() == (whole / name).read_bytes()
    assert len(read_findings(cut)) == 1


@pytest.mark.usefixtures("warm_workers")
def test_workers_change_nothing(tmp_path: Path) -> None:
    alone, shared = tmp_path / "alone", tmp_path / "shared"
    fedveil.simulate(job(), alone)
    fedveil.simulate(job(simulation={"workers": 2}), shared)
    for name in (FINDINGS, MODEL):
        assert (alone / name).read_bytes() == (shared / name).read_bytes()


def test_what_canaries_do_in_one_round_they_take_back_in_the_next(tmp_path: Path) -> None:
    """Without learning, a model under not_encrypt is where it was after an even round."""
    quiet = {"epochs": 1, "batch_size": 6, "lr": 1e-30}
    weights = [
        fedveil.simulate(job("not_encrypt", training=quiet, rounds=rounds), tmp_path / str(rounds))
        .model.weight.detach().numpy().copy()
        for rounds in (1, 2, 3)
    ]  # fmt: skip
    start = fedveil.simulate(job("not_encrypt", canaries=0, training=quiet), tmp_path / "start")
    initial = start.model.weight.detach().numpy()
    assert np.abs(weights[0] - initial).max() > 1e-4
    assert np.allclose(weights[1], initial, atol=1e-7)
    assert np.allclose(weights[2], weights[0], atol=1e-7)


def test_a_true_claim_is_exceeded_in_few_runs(tmp_path: Path) -> None:
    runs = 12
    found = [audited(job(seed=seed), tmp_path / str(seed)) for seed in range(runs)]
    assert sum(finding.refutes for finding in found) <= 1
    alone = [finding.figures[1].value for finding in found]
    assert max(alone) > 1  # it is no bound of nothing
    assert all(3.9 < finding.epsilon < 4.1 for finding in found)


@pytest.mark.parametrize("fault", ["half", "clip", "rounds", "clients", "one"])
def test_a_planted_fault_is_caught_every_time(fault: str, tmp_path: Path) -> None:
    for seed in range(2):
        finding = audited(faulty(fault, seed), tmp_path / str(seed))
        assert 7.5 < finding.epsilon < 8.5
        assert finding.refutes, str(finding)


def shares(missing: int, seed: int) -> Job:
    """Return a job of 8 clients, canaries included, of which `missing` add no share of noise."""
    own = {"noise_multiplier": 1.9, "missing": missing, "bits": 16, "active_security": False,
           "reconstruct_secrets_threshold": 2}  # fmt: skip
    return job(
        "faulty_noise:Shares", 4, seed=seed, rounds=8, model="parts:wider",
        clients={"number": 4, "fraction": 1.0}, protection={"own": own},
        simulation={"workers": 0, "masks": False},
        training={"epochs": 1, "batch_size": 6, "lr": 0.001},
    )  # fmt: skip


@pytest.mark.parametrize("missing", [0, 1])
def test_one_client_s_missing_share_of_the_noise_is_caught(missing: int, tmp_path: Path) -> None:
    for seed in range(1 + missing):
        finding = audited(shares(missing, seed), tmp_path / str(seed))
        assert finding.saw == "the aggregates of 8 rounds"
        assert finding.refutes == bool(missing), str(finding)
        assert finding.figure(BY_NOISE).value > 0.95 * finding.epsilon


def test_noise_is_measured_of_gaussian_positions_with_a_clip_that_stays(tmp_path: Path) -> None:
    finding = audited(job(), tmp_path / "run")
    assert 0.9 * finding.epsilon < finding.figure(BY_NOISE).value <= finding.epsilon
    assert finding.figure(BY_NOISE).cases == 80
    moving = {"noise_multiplier": 2.0, "clip_quantile": 0.5}
    clip_moves = job("central_gaussian", 4, protection={"central_gaussian": moving})
    for other, saw in ((job("not_encrypt", 4), "each canary's own"), (clip_moves, "the aggr")):
        found = audited(other, tmp_path / other.protection.name)
        assert found.saw.startswith(saw), "nobody reads a report of a server that adds the noise"
        assert BY_NOISE not in [figure.name for figure in found.figures]


@pytest.mark.parametrize("audit", [{"canaries": 40}, {"canaries": 40, "norm": 12.0}])
def test_a_true_claim_is_not_refuted_by_canaries_beyond_a_clip_that_is_not_stated(
    audit: dict[str, Any], tmp_path: Path
) -> None:
    """A user's own protection clips to a norm below that of every canary, and does not say so."""
    own = {"dp_eps": 5.894, "dp_delta": 1e-6, "dp_norm_clip": 0.004, "fault": ""}
    finding = audited(
        job("faulty_noise:Unstated", protection={"own": own}, audit=audit), tmp_path / "run"
    )
    assert not finding.refutes, str(finding)
    assert [figure.name for figure in finding.bounds if "noise is Gaussian" in figure.name] == [
        BY_MOVE
    ]


def test_noise_that_is_too_small_shows_without_a_stated_clip(tmp_path: Path) -> None:
    own = {"dp_eps": 5.894, "dp_delta": 1e-6, "fault": "half"}
    many = {"number": 100, "fraction": 1.0}
    half = job("faulty_noise:Unstated", 100, clients=many, protection={"own": own})
    finding = audited(half, tmp_path / "run")
    assert finding.figure(BY_MOVE).value > finding.epsilon


def test_without_a_fault_the_same_position_is_not_refuted(tmp_path: Path) -> None:
    """The audit may be wrong in one run of twenty: seed 1 is such a run, by a hair."""
    refuted = [audited(faulty("", s), tmp_path / str(s)).refutes for s in range(8)]
    assert sum(refuted) <= 1


@pytest.mark.parametrize("central", [{}, {"central_eps": 50.0, "central_norm_clip": 1.0}])
def test_a_sum_is_judged_by_the_aggregates(central: dict[str, float], tmp_path: Path) -> None:
    block = {"reconstruct_secrets_threshold": 12, **central}
    few = job("pw_encrypt", 12, protection={"pw_encrypt": block},
              clients={"number": 12, "fraction": 1.0}, server={"weighting": "equal"},
              training={"epochs": 1, "batch_size": 20, "lr": 0.001})  # fmt: skip
    finding = audited(few, tmp_path / "run")
    assert finding.saw == "the aggregates of 2 rounds"
    assert finding.figure("coins guessed right").value == 1


@pytest.mark.parametrize("position", ["signds", "rr", "oue"])
def test_the_other_positions_are_audited_by_their_reports(position: str, tmp_path: Path) -> None:
    finding = audited(job(position, 20), tmp_path / "run")
    assert finding.saw == "each canary's own reports of 2 rounds"
    assert finding.figure("coins guessed right").value > 0.8
    assert not finding.refutes


def test_a_model_with_buffers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelInvalid, match=r"audit\.canaries = 4: canaries change every averaged"):
        fedveil.simulate(job("not_encrypt", 4, model="parts:net"), tmp_path / "run")


def test_an_audit_belongs_to_a_simulation() -> None:
    with pytest.raises(
        DeploymentError, match=r"audit\.canaries = 40: the canaries of an audit are"
    ):
        deployable(job())


def test_codes_without_noise_of_their_own_are_not_audited() -> None:
    block = {"fidelity": "aggregate"}
    with pytest.raises(JobError, match=r"audit\.canaries = 40 needs protection\.unary\.fidelity"):
        job("rr", protection={"unary": block})


@pytest.mark.parametrize("position", ["signds", "dp_encrypt", "distributed_dp"])
def test_a_damaged_checkpoint_s_evidence_is_refused(position: str) -> None:
    canaries = canaries_of(job(position, 4, protection=TWO))
    state = canaries.state()
    counts, row = state["own.counts"], state["own.last.1"].shape[1]
    choices = [
        {"own.counts": counts + np.array([2, 1])},  # more hits than tries
        {"own.last.1": np.full((4, row), -2, np.int8)}, {"own.last.0": np.zeros((2, row), np.int8)},
    ]  # fmt: skip
    for changed in (*(choices if row else ()),
                    {"own.scores": np.zeros(2)}, {"rounds": -1}, {"own.told": 1},
                    {"sum.scores": np.full(4, math.nan)}, {"more": 1},
                    {"own.noise.squares": -1.0}, {"sum.last": np.zeros(3)},
                    {"own.rests": np.zeros((2, 112))}, {"own.counts": counts + 0.5},
                    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"^field|outside"):
            canaries.restore({**state, **changed})
    canaries.restore({**state, "rounds": 1})  # of the two that the job asks for
    assert canaries.state()["rounds"] == 1
    found = canaries.finding(Figure(math.inf, 0.0))
    assert found is not None
    assert (found.settings["rounds"], found.saw) == (1, "the aggregates of 1 round")
    assert BY_NOISE not in [figure.name for figure in found.figures]


def test_the_executor_is_told_of_the_clients_alone() -> None:
    canaries, opened = canaries_of(job(canaries=4)), list[Any]()
    canaries.carrier = cast(Executor, SimpleNamespace(open=opened.append))
    canaries.open(RoundContext([3, 7, 40, 42], 5, np.zeros(112, np.float32)))
    assert [(context.cohort, context.round) for context in opened] == [([3, 7], 5)]


@pytest.mark.parametrize("position", ["distributed_dp", "signds", "rr"])
def test_a_run_resumed_between_two_rounds_that_are_compared_finds_the_same(
    position: str, tmp_path: Path
) -> None:
    compared = job(position, 10, rounds=4, checkpoint={"every": 1}, protection=TWO,
                   clients={"number": 10, "fraction": 1.0},
                   simulation={"workers": 0, "masks": False})  # fmt: skip
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    fedveil.simulate(compared, whole)

    def interrupt(record: dict[str, Any]) -> None:
        if record["round"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fedveil.simulate(compared, cut, progress=interrupt)
    fedveil.resume(cut)
    assert (cut / FINDINGS).read_bytes() == (whole / FINDINGS).read_bytes()
