"""Averaged reports of one update: as good as the formulas say, and no better than none."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from fedveil.attacks import repetition
from fedveil.attacks.distinguishing import Pair
from fedveil.attacks.effort import Watch
from fedveil.attacks.repetition import (
    After,
    Averaged,
    attack,
    averaged,
    embedding_epsilon,
    embedding_repeated,
    likeness,
)
from fedveil.attacks.target import Target
from fedveil.entropy import Seeded
from fedveil.federated.job import Job
from fedveil.mechanisms.gaussian import GaussianMechanism
from fedveil.privacy.guarantee_strength import Figure
from fedveil.protections.base import JobContext, Protection
from fedveil.protections.catalog import POSITIONS
from fedveil.protections.reading import Reading

pytestmark = pytest.mark.filterwarnings("ignore::fedveil.errors.FedveilWarning")

DIMENSION = 60
MODEL = np.zeros(DIMENSION, np.float32)
RAMP = np.linspace(-0.4, 0.4, DIMENSION).astype(np.float32)
#: As long as the ramp, and at a right angle to it.
OTHER = np.roll(RAMP, 15) * np.where(np.arange(DIMENSION) % 2, 1, -1).astype(np.float32)
ENTROPY = Seeded(5, "repetition")


def made(name: str, **settings: Any) -> Protection:
    position = POSITIONS[name]
    context = JobContext("equal", DIMENSION, clients_per_round=2, rounds=4)
    return position(position.settings_type(**settings), context)


def after(name: str, counts: tuple[int, ...], trials: int = 6, **settings: Any) -> list[After]:
    pair = Pair("two", RAMP, OTHER)
    return averaged(
        made(name, **settings), MODEL, pair, counts=counts, trials=trials, entropy=ENTROPY
    )


def test_noise_averages_out_as_the_root_of_the_reports() -> None:
    found = after("dp_encrypt", (1, 4, 64), dp_eps=4.0, dp_delta=1e-3, dp_norm_clip=2.0)
    sigma = GaussianMechanism(4.0, 1e-3, clip=2.0).sigma
    for one in found:
        ideal = sigma * math.sqrt(DIMENSION / one.count) / float(np.linalg.norm(RAMP))
        assert np.mean(one.errors) == pytest.approx(ideal, rel=0.15)
        lengths = math.sqrt(1 + ideal**2)
        assert np.mean(one.cosines) == pytest.approx(1 / lengths, abs=0.12)
    assert found[2].hits == 12


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("rr", {"eps": 4.0, "cells": 4}),
        ("oue", {"eps": 4.0, "cells": 4, "report": "bits"}),
        ("signds", {"sign_k": 0.25, "sign_eps": 4.0}),
    ],
)
def test_every_position_gives_way_to_many_reports(name: str, settings: dict[str, Any]) -> None:
    one, many = after(name, (1, 200), trials=3, **settings)
    assert np.mean(many.cosines) > 0.8
    assert np.mean(many.cosines) > 1.25 * np.mean(one.cosines)
    assert many.hits == 6
    assert many.scaled == (name != "signds")


def test_plain_updates_are_read_at_once() -> None:
    (one,) = after("not_encrypt", (1,))
    assert one.cosines == pytest.approx([1.0] * 12)
    assert one.errors == [0.0] * 12
    assert one.hits == 12


def test_of_masked_vectors_a_hundred_say_nothing() -> None:
    settings = {"reconstruct_secrets_threshold": 2}
    one, many = after("pw_encrypt", (1, 5), trials=3, **settings)
    for found in (one, many):
        assert found.cosines == [0.0] * 6
        assert found.errors == [1.0] * 6
        assert found.hits == 3


def test_an_average_weighs_entries_by_what_they_are_worth() -> None:
    average = Averaged(3)
    average.add(Reading(np.array([1.0, 5.0, 9.0]), np.array([1.0, 3.0, 0.0])))
    average.add(Reading(np.array([3.0, 1.0, 9.0]), np.array([1.0, 1.0, 0.0])))
    assert average.estimate.tolist() == [2.0, 4.0, 0.0]
    average.add(Reading(np.array([1.0, 0.0, 0.0]), np.array([1.0, 0.0, 0.0]), scaled=False))
    before = average.estimate
    assert before.tolist() == [5.0, 16.0, 0.0]  # a direction: what is named more, more
    average.add(Reading(np.ones(3), np.ones(3), scaled=False))
    assert before.tolist() == [5.0, 16.0, 0.0]


def test_likeness_has_no_direction_where_there_is_none() -> None:
    update = np.array([1.0, 2.0, 3.0], np.float32)
    assert likeness(update + 4.0, update)[1] == pytest.approx(1.0)
    assert likeness(np.zeros(3), update) == (0.0, 0.0, 1.0)


@pytest.mark.parametrize("eps", [1.0, 2.0])
def test_embedding_bits_by_majority_follow_the_binomial(eps: float) -> None:
    vectors = Seeded(2).generator().normal(size=(40, 50)) + 1  # most true bits are 1
    found = embedding_repeated(vectors, eps, counts=(1, 2, 5, 30), entropy=ENTROPY)
    assert [*found] == [1, 2, 5, 30]
    p = 1 / (1 + math.exp(-eps / 2))
    for count, share in found.items():
        law = stats.binom(count, p)
        right = law.sf(count // 2) if count % 2 else law.sf(count // 2) + law.pmf(count // 2) / 2
        assert share.value == pytest.approx(right, abs=5 * math.sqrt(right * (1 - right) / 2000))


def test_a_report_given_again_says_what_it_said() -> None:
    vectors = Seeded(2).generator().normal(size=(20, 50))
    found = embedding_repeated(vectors, 1.0, counts=(1, 5, 30), reuse=True, entropy=ENTROPY)
    assert len({share.value for share in found.values()}) == 1
    once, often = (embedding_epsilon(50, 1.0, k, 1e-5, reuse=True) for k in (1, 30))
    assert once == often
    assert embedding_epsilon(50, 1.0, 30, 1e-5, reuse=False) > 5 * once


def test_against_a_job() -> None:
    job = Job(
        model="logistic",
        rounds=2,
        clients={"number": 3, "fraction": 1.0},
        training={"epochs": 1},
        protection={"name": "dp_encrypt", "dp_encrypt": {"dp_eps": 8.0, "dp_delta": 1e-3}},
    )
    steps: list[tuple[int, int]] = []
    target = Target.of(job)
    finding = attack(
        target, "quick", Watch(step=lambda done, total, what: steps.append((done, total)))
    )
    assert steps[-1] == (20, 20)
    assert finding.epsilon == finding.figure("ledger's epsilon after 100 reports").value
    once = finding.figure("ledger's epsilon after 1 report")
    assert once.value == target.promised(1).epsilon < finding.epsilon
    cosines = [finding.figure(f"cosine after {k} reports").value for k in (2, 10, 100)]
    assert cosines == sorted(cosines)
    assert finding.figure("right guesses after 100 reports").low > 0.5
    assert finding.figure("right guesses after 1 report").guess == 0.5


def test_both_updates_are_reported_as_often_as_the_largest_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[tuple[float, int]] = []
    play = repetition.repeated

    def repeated(protection: Any, model: Any, update: Any, times: int, entropy: Any) -> Any:
        sent.append((float(update[0]), times))
        return play(protection, model, update, times, entropy)

    monkeypatch.setattr(repetition, "repeated", repeated)
    found = after("not_encrypt", (4, 1, 2), trials=2)
    assert sent == 2 * [(float(RAMP[0]), 4), (float(OTHER[0]), 4)]
    assert [(one.count, len(one.cosines)) for one in found] == [(1, 4), (2, 4), (4, 4)]


def test_each_measure_is_shown_under_its_own_name() -> None:
    one = After(3, True, [0.1, 0.9, 0.4], [0.2, 0.3, 0.8], [1.5, 1.1, 1.9], hits=2)
    cosine, correlation, error, right, claim = one.figures(Figure(0.7, 1e-5))
    assert (cosine.name, cosine.value, cosine.guess) == ("cosine after 3 reports", 0.4, 0.0)
    assert (correlation.name, correlation.value) == ("correlation after 3 reports", 0.3)
    assert (error.name, error.value, error.guess) == ("relative error after 3 reports", 1.5, 1.0)
    assert (right.value, right.cases, right.guess) == (2 / 3, 3, 0.5)
    assert (claim.name, claim.value) == ("ledger's epsilon after 3 reports", 0.7)


def test_one_report_of_a_direction_leaves_no_size() -> None:
    average, after = Averaged(2), After(2)
    for scaled in (False, True):
        average.add(Reading(np.array([2.0, 6.0]), np.array([1.0, 0.5]), scaled=scaled))
    after.note(average, np.array([4, 1], np.float32), right=True)
    after.note(Averaged(2), np.array([4, 1], np.float32), right=False)
    assert average.estimate.tolist() == [4, 6]
    assert not after.scaled
    *_, right = after.figures()
    assert after.cosines == pytest.approx([22 / math.sqrt(52 * 17), 0])
    assert after.correlations == pytest.approx([-1, 0])
    assert right.value == 0.5


def test_each_client_has_noise_of_its_own() -> None:
    (found,) = after("dp_encrypt", (1,), dp_eps=4.0, dp_delta=1e-3)
    assert len({*found.errors}) == 12


def test_what_repeated_bits_cost() -> None:
    """Under basic composition, delta 0: half of eps for each bit of each report."""
    assert embedding_epsilon(50, 1.2, 3, 0, reuse=False) == pytest.approx(3 * 50 * 0.6)
    assert embedding_epsilon(50, 1.2, 3, 0, reuse=True) == pytest.approx(50 * 0.6)
