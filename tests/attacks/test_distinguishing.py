"""Two updates told apart by reports, as well as the claim allows and no better."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
from scipy import stats

from fedveil.attacks import distinguishing
from fedveil.attacks.distinguishing import (
    Distinguished,
    Pair,
    attack,
    curves,
    distinguish,
    distinguished,
    far_apart,
    report_evidence,
)
from fedveil.attacks.effort import Watch
from fedveil.attacks.server_view import seen
from fedveil.attacks.target import Target
from fedveil.engine.target_epsilon import whole_run
from fedveil.entropy import Seeded
from fedveil.errors import AttackImpossible
from fedveil.federated.job import Job
from fedveil.mechanisms.gaussian import GaussianMechanism
from fedveil.privacy.guarantee_strength import Figure
from fedveil.protections.base import JobContext, Protection
from fedveil.protections.catalog import POSITIONS
from fedveil.protections.dp_encrypt import DPEncrypt, DPEncryptClientRound
from fedveil.protections.reading import Reading

pytestmark = pytest.mark.filterwarnings("ignore::fedveil.errors.FedveilWarning")

DIMENSION, DELTA = 12, 0.05
MODEL = np.linspace(-0.5, 0.5, DIMENSION).astype(np.float32)
ENTROPY = Seeded(3, "distinguishing")
#: Small enough that a few hundred trials could show more.
SETTINGS: dict[str, dict[str, Any]] = {
    "dp_encrypt": {"dp_eps": 1.6, "dp_delta": DELTA},
    "signds": {"sign_k": 0.25, "sign_eps": 1.0, "sign_dim_out": 2},
    "rr": {"eps": 0.05, "cells": 3},
    "oue": {"eps": 0.1, "cells": 3, "report": "bits"},
}


class HalfNoise(DPEncrypt):
    """Claims what it should; its clients add half the noise."""

    def client_round(self, context: Any) -> DPEncryptClientRound:
        noisy = super().client_round(context)
        kept = self._mechanism

        class Half(type(noisy)):  # type: ignore[misc]
            def _report(self, opening: Any, update: Any) -> Any:
                report = super()._report(opening, update)
                form = self._form
                values = form.read(report).astype(np.float64) * form.step
                halved = kept.clipped(update) + (values - kept.clipped(update)) / 2
                nearest = np.rint(halved / form.step).astype(np.int64)
                return {**report, "multiples": form_pack(form, nearest)}

        return Half(context, self._form)


def form_pack(form: Any, multiples: Any) -> Any:
    from fedveil.base.packing import pack

    return pack(multiples, -form.limit, form.width)


def made(name: str, kind: type[Protection] | None = None) -> Protection:
    position = kind or POSITIONS[name]
    context = JobContext("equal", DIMENSION, clients_per_round=2, rounds=4)
    return position(position.settings_type(**SETTINGS[name]), context)


def played(protection: Protection, trials: int, rounds: int = 1) -> list[Distinguished]:
    return distinguished(
        protection,
        MODEL,
        [far_apart(protection, MODEL, ENTROPY)],
        promised=lambda count: whole_run(protection, count, DELTA),
        trials=trials,
        rounds=rounds,
        entropy=ENTROPY,
    )


#: Trials and rounds of each position. A report of SignDS takes longest, and tells most.
PLAYED = {"dp_encrypt": (500, 4), "signds": (200, 3), "rr": (400, 3), "oue": (400, 3)}


@cache
def shipped(name: str) -> list[Distinguished]:
    return played(made(name), *PLAYED[name])


@pytest.mark.parametrize("name", SETTINGS)
def test_no_position_is_refuted(name: str) -> None:
    """Though the bound finds a good part of what is claimed for a report."""
    trials, rounds = PLAYED[name]
    report, run = shipped(name)
    assert (report.rounds, run.rounds) == (1, rounds)
    assert (report.audit.trials, run.audit.trials) == (rounds * trials, trials)
    for one in (report, run):
        assert not one.audit.refuted
        assert one.audit.bound <= one.curve <= one.audit.claim.epsilon
        assert one.audit.claim.delta == DELTA
    assert report.right.low > 0.5


def test_half_the_noise_is_refuted() -> None:
    (found,) = played(made("dp_encrypt", HalfNoise), 2000)
    assert found.audit.refuted
    claim = found.audit.claim.epsilon
    assert found.curve > 1.5 * claim
    sound, _ = shipped("dp_encrypt")
    assert sound.audit.bound < 0.7 * claim < sound.curve < claim


def test_guesses_are_as_good_as_the_best_test() -> None:
    """Two Gaussians at distance mu, seen k times: right with probability Phi(mu sqrt(k) / 2)."""
    report, run = shipped("dp_encrypt")
    mu = 2 / GaussianMechanism(1.6, DELTA, clip=1.0).sigma
    assert report.right.low < stats.norm.cdf(mu / 2) < report.right.high
    assert run.right.low < stats.norm.cdf(mu) < run.right.high
    assert run.right.value > report.right.value + 0.1


def test_ties_are_right_half_of_the_time() -> None:
    claim = Figure(1.0, DELTA)
    nothing = distinguish(np.zeros(140), np.zeros(140), "nothing", 3, claim)
    assert (nothing.right.value, nothing.right.cases) == (0.5, 280)
    half = distinguish(np.repeat([0.0, 2.0], 70), np.full(140, -1.0), "half", 3, claim)
    assert half.right.value == 0.75


def test_of_nothing_nothing_is_said() -> None:
    assert report_evidence(Reading.nothing(DIMENSION), MODEL, -MODEL) == 0


def of_two(name: str, **parameters: Any) -> Protection:
    """Return a protection of sums of two clients, without masks, whose noise has a seed."""
    kind = POSITIONS[name]
    if name != "central_gaussian":
        parameters["reconstruct_secrets_threshold"] = 2
    context = JobContext(
        "equal", DIMENSION, clients_per_round=2, rounds=1, delta=DELTA, masks=False, simulated=True,
        seeded=True,
    )  # fmt: skip
    return kind(kind.settings_type(**parameters), context)


@cache
def summed(name: str, trials: int, **parameters: Any) -> Distinguished:
    """By the sums of two clients."""
    (found,) = played(of_two(name, **parameters), trials)
    return found


def test_sums_are_told_apart_where_reports_say_nothing() -> None:
    assert summed("pw_encrypt", 100).right.value == 1
    found = summed("distributed_dp", 2000, noise_multiplier=0.7, bits=16)
    assert 0.3 * found.audit.claim.epsilon < found.audit.bound <= found.audit.claim.epsilon
    assert found.right.low < stats.norm.cdf(1 / 0.7 / 2) < found.right.high
    assert 0.8 * found.audit.claim.epsilon < found.curve <= found.audit.claim.epsilon


@pytest.mark.parametrize(
    ("name", "settings", "sigma"),
    [
        ("pw_encrypt", {"central_eps": 1.6, "central_delta": DELTA}, None),
        ("central_gaussian", {"noise_multiplier": 0.7, "clip": 0.5}, 1.4),
    ],
)
def test_central_noise_is_drawn_anew_for_every_trial(
    name: str, settings: dict[str, Any], sigma: float | None
) -> None:
    """Fixed noise would refute a true claim. Evidence is counted from clipped updates."""
    protection = of_two(name, **settings)
    sigma = GaussianMechanism(1.6, DELTA, clip=1.0).sigma if sigma is None else sigma
    opposite = far_apart(protection, MODEL, ENTROPY, sums=True)
    assert np.array_equal(opposite.a, -opposite.b)
    unequal = opposite._replace(name="unequal", b=opposite.b * np.float32(1e-12))
    found = distinguished(
        protection, MODEL, [opposite, unequal],
        promised=lambda count: whole_run(protection, count, DELTA),
        trials=300, rounds=1, entropy=ENTROPY, sums=True,
    )  # fmt: skip
    for one, distance in zip(found, (2 / sigma, 1 / sigma), strict=True):
        assert one.right.value == pytest.approx(stats.norm.cdf(distance / 2), abs=0.07)
        assert one.curve <= one.audit.claim.epsilon
        assert not one.audit.refuted
    assert found[0].curve > 0.5 * found[0].audit.claim.epsilon


def test_a_protection_without_a_parameter_of_cost_has_no_curves() -> None:
    found = summed("pw_encrypt", 100)
    assert math.isnan(found.curve)
    assert not any("curve" in figure.name for figure in found.figures())


def test_plain_updates_are_told_apart_for_certain() -> None:
    context = JobContext("equal", DIMENSION, clients_per_round=2, rounds=1)
    protection = POSITIONS["not_encrypt"](POSITIONS["not_encrypt"].settings_type(), context)
    updates = [MODEL, np.nextafter(MODEL, np.float32(1))]
    for i, reading in enumerate(seen(protection, MODEL, updates, ENTROPY).readings):
        assert report_evidence(reading, updates[i], updates[1 - i]) > 1e6


def without_likelihood(scaled: bool) -> Iterator[tuple[float, float]]:
    """Return the evidence of 40 noisy estimates of a, and of 40 of b."""
    draw = Seeded(1).generator()
    a, b = np.array([1, 2, 5], np.float32), np.array([1, 1, 9], np.float32)
    weight = np.array([1.0, 1.0, 0.0])  # the last entry is not to be looked at
    for _ in range(40):
        noise = 0.2 * draw.normal(size=(2, 3)) + [0, 0, 50]
        said = [
            report_evidence(Reading(one + more, weight, scaled), a, b)
            for one, more in zip((a, b), noise, strict=True)
        ]
        yield said[0], said[1]


def test_without_a_likelihood_the_nearer_update_is_guessed() -> None:
    said = np.array(list(without_likelihood(scaled=True)))
    assert (said[:, 0] > 0).mean() > 0.9
    assert (said[:, 1] < 0).mean() > 0.9
    directions = np.array(list(without_likelihood(scaled=False)))
    assert directions[:, 0].mean() > directions[:, 1].mean()


def test_the_pair_is_the_one_that_tells_most() -> None:
    """The magnitude's bit differs only where the sizes do."""
    pair = far_apart(made("signds"), MODEL, ENTROPY)
    assert np.abs(pair.a).mean() > 1e6 * np.abs(pair.b).mean()
    opposite = far_apart(made("dp_encrypt"), MODEL, ENTROPY)
    assert np.array_equal(opposite.a, -opposite.b)


def test_a_pair_whose_evidence_spreads_tells_less(monkeypatch: pytest.MonkeyPatch) -> None:
    def evidence(protection: Any, model: Any, pair: Any, **given: Any) -> tuple[Any, Any]:
        wide, apart = (9.0, 10.0) if np.array_equal(pair.b, -pair.a) else (0.1, 1.0)
        around = np.array([-wide, wide])
        return around + apart, around

    monkeypatch.setattr(distinguishing, "evidence", evidence)
    pair = far_apart(made("signds"), MODEL, ENTROPY)
    assert np.abs(pair.a).mean() > 1e6 * np.abs(pair.b).mean()


def test_against_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """With half of the trials, the fewest of an audit."""
    monkeypatch.setattr(
        distinguishing, "by_effort", lambda effort, quick, *_: 100 if quick == 200 else quick
    )
    job = Job(
        model="logistic",
        rounds=2,
        clients={"number": 3, "fraction": 1.0},
        training={"epochs": 1},
        protection={"name": "dp_encrypt", "dp_encrypt": {"dp_eps": 2.0, "dp_delta": 1e-3}},
    )
    steps: list[tuple[int, int]] = []
    target = Target.of(job)
    finding = attack(
        target, "quick", Watch(step=lambda done, total, what: steps.append((done, total)))
    )
    assert (finding.attack, finding.effort, finding.protection) == (
        "distinguishing", "quick", "dp_encrypt",
    )  # fmt: skip
    assert (finding.epsilon, finding.delta) == target.promised(2)
    assert finding.settings["dp_eps"] == 2.0
    assert steps == [(i + 1, 400) for i in range(400)]
    for pair in ("far apart", "two clients"):
        for of, rounds in ((f"{pair}, 1 round", 1), (f"{pair}, 2 rounds", 2)):
            bound = finding.figure(f"epsilon at least: {of}").value
            distance = finding.figure(f"distance to the ledger: {of}").value
            claim = target.promised(rounds).epsilon
            nearer = finding.figure(f"epsilon at least, by the mechanism's curve: {of}")
            assert 0 <= bound <= claim
            assert bound <= nearer.value <= nearer.epsilon == claim
            assert distance == pytest.approx(claim - bound)
            assert math.isclose(finding.figure(f"right guesses: {of}").guess, 0.5)


def test_a_direction_is_compared_with_updates_of_length_1() -> None:
    reading = Reading(np.array([1.0, 2.0]), np.array([1.0, 0.5]), scaled=False)
    a, b = np.array([3, 4], np.float32), np.array([0, 2], np.float32)
    assert report_evidence(reading, a, b) == pytest.approx(3 / 5 + 4 / 5 - 1)
    nothing = np.zeros(2, np.float32)
    assert report_evidence(reading, a, nothing) == pytest.approx(3 / 5 + 4 / 5)
    assert report_evidence(reading, nothing, b) == pytest.approx(-1)


def test_both_sides_of_each_pair_have_noise_of_their_own() -> None:
    protection = made("dp_encrypt")
    found = [
        distinguishing.evidence(
            protection, MODEL, Pair(name, MODEL, -MODEL), trials=6, rounds=1, entropy=ENTROPY
        )
        for name in ("one", "two")
    ]
    (ahead, back), (other, _) = found
    assert np.std(ahead - back) > 0.5 * np.std(ahead)  # 0 if both had the same noise
    assert not np.array_equal(ahead, other)


def test_a_costlier_member_of_the_family_has_a_larger_epsilon() -> None:
    for protection in (made("dp_encrypt"), of_two("distributed_dp", noise_multiplier=0.7)):
        family = curves(protection, 3)
        assert family is not None
        ((loss, count),) = family(1.0)
        ((costlier, _),) = family(2.0)
        (claimed,) = protection.spending(protection.initial_state())
        assert (loss.epsilon, count) == (claimed.loss.epsilon, 3 * claimed.count)
        assert costlier.epsilon > loss.epsilon
    context = JobContext("equal", DIMENSION, clients_per_round=2, rounds=4)
    settings = {**SETTINGS["rr"], "adaptive": True}
    adaptive = POSITIONS["rr"](POSITIONS["rr"].settings_type(**settings), context)
    assert curves(adaptive, 3) is None


def test_bounds_by_curves_are_asked_at_the_claims_delta_for_their_rounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[Any, ...]] = []

    def bound(hits: int, cases: int, family: Any, *, delta: float, confidence: float) -> float:
        asked.append((hits, cases, family(1.0)[0][1], delta, confidence))
        return 0.25

    monkeypatch.setattr(distinguishing, "curve_bound", bound)
    found = distinguished(
        made("dp_encrypt"), MODEL, [Pair("one", MODEL, -MODEL)],
        promised=lambda count: whole_run(made("dp_encrypt"), count, DELTA),
        trials=100, rounds=3, entropy=ENTROPY,
    )  # fmt: skip
    for one, (hits, cases, count, delta, confidence) in zip(found, asked, strict=True):
        assert (hits, cases) == (round(one.right.value * cases), one.right.cases)
        assert (count, delta, confidence) == (one.rounds, DELTA, one.audit.confidence)
        bare, curve, distance, most, right = one.figures()
        assert (bare.value, bare.cases) == (one.audit.bound, one.audit.trials)
        assert (curve.value, curve.cases, curve.delta) == (0.25, one.audit.trials, DELTA)
        assert distance.value == one.audit.claim.epsilon - one.audit.bound
        assert most.value == one.audit.reachable > one.audit.bound
        assert right is one.right


@pytest.mark.parametrize(("effort", "trials", "rounds"), [("quick", 200, 10), ("full", 5000, 13)])
def test_an_attack_plays_the_jobs_rounds_up_to_a_limit(
    effort: Any, trials: int, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []

    def noted(*parts: Any, trials: int, rounds: int, **more: Any) -> list[Distinguished]:
        asked.append((trials, rounds))
        return []

    monkeypatch.setattr(distinguishing, "distinguished", noted)
    monkeypatch.setattr(distinguishing, "far_apart", lambda *parts: None)
    target = small_target(rounds=13)
    finding = attack(target, effort, Watch())
    assert asked == [(trials, rounds)]
    assert (finding.epsilon, finding.delta) == target.promised(rounds)
    assert finding.saw.startswith(f"one client in {rounds} rounds")


def small_target(clients: int = 3, **changes: Any) -> Target:
    changes.setdefault("protection", {"name": "dp_encrypt"})
    return Target.of(
        Job(
            model="logistic",
            clients={"number": clients, "fraction": 1.0},
            training={"epochs": 1},
            **changes,
        )
    )


def test_the_real_pair_is_two_clients_updates() -> None:
    target = small_target()
    pair = distinguishing.real_pair(target)
    first, second = target.updates([0, 1])
    assert np.array_equal(pair.a, first)
    assert np.array_equal(pair.b, second)
    with pytest.raises(AttackImpossible, match="the job has one client"):
        distinguishing.real_pair(small_target(1))


def test_what_neither_update_explains_is_no_evidence() -> None:
    impossible = Reading(MODEL, np.ones(DIMENSION), log_likelihood=lambda update: -math.inf)
    assert report_evidence(impossible, MODEL, -MODEL) == 0


def test_without_a_finite_claim_no_curve_is_sought() -> None:
    def family(factor: float) -> Any:
        raise AssertionError("a bound by curves needs a claim")

    scores = np.linspace(-1, 2, 150)
    found = distinguish(scores, -scores, "one", 1, Figure(math.inf, 0.0), family)
    assert math.isnan(found.curve)


@pytest.mark.parametrize("sums", [True, False])
def test_a_pair_is_tried_on_what_the_attacker_sees(
    sums: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    def evidence(*given: Any, sums: bool = False, **more: Any) -> tuple[Any, Any]:
        asked.append(sums)
        return np.ones(2), np.zeros(2)

    monkeypatch.setattr(distinguishing, "evidence", evidence)
    far_apart(made("dp_encrypt"), MODEL, ENTROPY, sums=sums)
    assert asked == [sums] * 3
