"""Readings of reports: the likelihood is the law by which the client's half draws them."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from scipy import stats

from fedveil.base.message import Message, decode, encode, only_fields, take_array
from fedveil.entropy import Seeded
from fedveil.errors import InvalidValue
from fedveil.mechanisms.gaussian import GaussianMechanism
from fedveil.mechanisms.signds.index_code import encode_indices
from fedveil.mechanisms.unary.encoding import UnaryEncoding
from fedveil.privacy.compose import plain_sum
from fedveil.privacy.loss import PrivacyLoss
from fedveil.protections.base import Aggregate, JobContext, Protection, RoundContext, Spending
from fedveil.protections.catalog import build
from fedveil.protections.one_report import OneReportClient, OneReportRound
from fedveil.protections.reading import Reading
from parts import TwoPhases
from round_parts import ROUND, client_half, report_of, server_half
from statistical_checks import ERROR_RATE, assert_follows

pytestmark = pytest.mark.filterwarnings("ignore::fedveil.errors.FedveilWarning")


def made(name: str, dimension: int, **settings: Any) -> Protection:
    from fedveil.protections.catalog import POSITIONS

    context = JobContext("equal", dimension, clients_per_round=2, rounds=3)
    return build(name, POSITIONS[name].settings_type(**settings), context)


def opened(protection: Protection, model: Any = None, **state: Any) -> RoundContext:
    model = np.zeros(protection.dimension) if model is None else model
    states = protection.initial_state() | state
    return RoundContext([0], ROUND, np.asarray(model, np.float32), states)


def drawn(protection: Protection, context: RoundContext, update: Any, seed: int) -> Message:
    opening = server_half(protection, [0], context.model, state=context.state).opening()
    half = client_half(protection, 0, context.model, entropy=Seeded(seed, "reading"))
    return report_of(half, opening, update)


def log_likelihood(
    protection: Protection, context: RoundContext, report: Message, update: Any
) -> float:
    reading = protection.reading(context, report)
    assert reading.log_likelihood is not None
    return reading.log_likelihood(np.asarray(update, np.float32))


def check_law(
    protection: Protection,
    context: RoundContext,
    reports: Sequence[Message],
    updates: Sequence[Any],
    draws: int,
) -> float:
    """Check that the likelihoods add to 1 and that drawn reports follow them.

    Every update has `draws` reports of its own, and all are judged together.

    Returns the largest log ratio of likelihoods.
    """
    table = np.array(
        [[log_likelihood(protection, context, r, u) for u in updates] for r in reports]
    )
    assert np.exp(table).sum(axis=0) == pytest.approx(np.ones(len(updates)), abs=1e-11)
    places = {encode(report): i for i, report in enumerate(reports)}
    opening = server_half(protection, [0], context.model, state=context.state).opening()
    given = decode(encode(opening))

    def draw(update: Any, seed: int) -> int:
        half = client_half(protection, 0, context.model, entropy=Seeded(seed, "reading"))
        return places[encode(half.respond(given, update))]

    counts, law = [], []
    for column, update in enumerate(np.asarray(updates, np.float32)):
        seen = Counter(draw(update, column * draws + place) for place in range(draws))
        order = np.argsort(table[:, column])[::-1]
        counts += [seen[i] for i in order]
        law += (np.exp(table[order, column]) / len(updates)).tolist()
    assert_follows(counts, law)
    finite = table[np.isfinite(table).all(axis=1)]
    return float((finite.max(axis=1) - finite.min(axis=1)).max())


def cost(protection: Protection) -> float:
    spent = protection.spending(protection.initial_state())
    return plain_sum((one.loss.epsilon, one.count) for one in spent)


# dp_encrypt


def test_the_law_of_a_noised_update_adds_to_one() -> None:
    """Summed over every 64th grid point, every update gives the total of a Gaussian.

    Such a sum is exact as long as its points are much nearer to each other than sigma.
    """
    gaussian = GaussianMechanism(4.0, 1e-3, clip=1.0)
    grid = gaussian.grid(1)
    reach = math.ceil((1 + 10 * gaussian.sigma) / grid.step)
    assert gaussian.sigma > 20 * 64 * grid.step
    for first, update in enumerate((0.0, 0.37, -55.0)):
        points = np.arange(first - reach, reach + 1, 64)[:, None] * grid.step
        given = np.array([update], np.float32)
        total = 64 * sum(math.exp(gaussian.log_likelihood(point, given)) for point in points)
        assert total == pytest.approx(math.sqrt(2 * math.pi * grid.noise.variance), rel=1e-12)


def test_a_noised_update_is_read_around_the_clipped_one() -> None:
    protection = made("dp_encrypt", 3, dp_eps=4.0, dp_delta=1e-3, dp_norm_clip=1.0)
    context, update = opened(protection), np.array([0.25, -0.5, 0.125])
    report = drawn(protection, context, update, 0)
    reading = protection.reading(context, report)
    sigma, output = GaussianMechanism(4.0, 1e-3, clip=1.0).sigma, reading.estimate
    law = stats.norm(scale=sigma)
    candidates = {(0.25, -0.5, 0.125): [0.25, -0.5, 0.125], (30.0, 0.0, -40.0): [0.6, 0.0, -0.8]}
    found = [log_likelihood(protection, context, report, c) for c in candidates]
    hand = [law.logpdf(output - clipped).sum() for clipped in candidates.values()]
    assert found[0] - found[1] == pytest.approx(hand[0] - hand[1], rel=1e-3)
    assert reading.weight.tolist() == [1.0] * 3
    assert reading.scaled


@pytest.mark.parametrize("noise", ["discrete", "continuous"])
def test_ratios_of_noised_updates_follow_the_gaussians(noise: str) -> None:
    """The log ratio for two updates at distance mu sigma is normal (mu²/2, mu²)."""
    protection = made("dp_encrypt", 40, dp_eps=4.0, dp_delta=1e-3, noise=noise)
    context, update = opened(protection), np.full(40, 40**-0.5)
    mu = 2 / GaussianMechanism(4.0, 1e-3, clip=1.0).sigma
    ratios = []
    for seed in range(1500):
        report = drawn(protection, context, update, seed)
        ratios.append(
            log_likelihood(protection, context, report, update)
            - log_likelihood(protection, context, report, -update)
        )
    fit = stats.kstest((np.array(ratios) - mu**2 / 2) / mu, "norm")
    assert fit.pvalue > ERROR_RATE


# signds


def selections(protection: Protection, *, bits: bool) -> list[Message]:
    size = protection.mechanism.plan(protection.dimension).dim_out  # type: ignore[attr-defined]
    told: list[dict[str, Any]] = [{"bit": False}, {"bit": True}] if bits else [{}]
    return [
        {
            "round": ROUND,
            "sign": sign,
            "indices": encode_indices(np.array(chosen), protection.dimension),
            **bit,
        }
        for chosen in itertools.combinations(range(protection.dimension), size)
        for sign in (1, -1)
        for bit in told
    ]


@pytest.mark.parametrize("phase", ["growth", "shrink"])
def test_the_law_of_a_selection(phase: str) -> None:
    """The law includes the bit that compares the magnitude with the round's own bound."""
    settings = {"sign_k": 0.25, "sign_eps": 1.5, "sign_mag_eps": 0.8, "sign_dim_out": 2}
    protection = made("signds", 6, **settings)
    context = opened(protection, estimate=0.5, phase=phase)
    ramp = np.linspace(-1, 0.5, 6)
    reports = selections(protection, bits=True)
    updates = [ramp, -ramp, 0.1 * ramp, 0 * ramp]
    worst = check_law(protection, context, reports, updates, draws=750)
    assert worst <= cost(protection) + 1e-12
    assert worst == pytest.approx(2.3)


def test_the_law_of_a_selection_without_a_bit() -> None:
    settings = {"sign_k": 0.25, "sign_eps": 1.5, "magnitude": "fixed", "sign_dim_out": 3}
    protection = made("signds", 8, **settings)
    ramp = np.linspace(-1, 0.5, 8)
    reports = selections(protection, bits=False)
    worst = check_law(protection, opened(protection), reports, [ramp, -ramp], draws=1500)
    assert worst == pytest.approx(1.5)
    assert worst <= cost(protection) + 1e-12


def test_a_selection_is_a_direction_of_what_it_names() -> None:
    protection = made("signds", 100, sign_k=0.25, sign_dim_out=5)
    report = drawn(protection, opened(protection), np.linspace(-1, 1, 100), 1)
    reading = protection.reading(opened(protection), report)
    named = np.flatnonzero(reading.weight)
    assert len(named) == 5
    assert (np.sign(reading.estimate[named]) == report["sign"]).all()
    assert not reading.estimate[reading.weight == 0].any()
    assert not reading.scaled


# rr and oue


def codes(encoding: UnaryEncoding, dimension: int) -> list[Message]:
    """Return every possible report."""
    if encoding.report == "sum":
        every = range(-encoding.largest_sum, encoding.largest_sum + 1)
        packed = [
            encoding.pack(np.array(sums, np.int16))
            for sums in itertools.product(every, repeat=dimension)
        ]
    else:
        packed = [
            np.packbits([*bits, 1], bitorder="little")
            for bits in itertools.product((0, 1), repeat=dimension * encoding.states)
        ]
    return [{"round": ROUND, "report": one} for one in packed]


@pytest.mark.parametrize("kind", ["rr", "oue"])
@pytest.mark.parametrize("sent", ["sum", "bits"])
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_the_law_of_a_code(kind: str, sent: str, rounding: str) -> None:
    """Each value of the target meets every pair of the other settings' values."""
    odd = (kind == "oue") ^ (sent == "bits") ^ (rounding == "stochastic")
    target = "update" if odd else "weights"
    dimension, cells = (2, 2) if sent == "sum" else (2, 1)
    settings = {"eps": 1.2, "cells": cells, "report": sent, "rounding": rounding, "clip": 0.5}
    protection = made(kind, dimension, target=target, **settings)
    context = opened(protection, [0.1, -0.2])
    reports = codes(protection.encoding(1.2), dimension)  # type: ignore[attr-defined]
    updates = [[0.23, -0.07], [-9.0, 0.6], [0.0, 9.0], [9.0, -9.0]]
    worst = check_law(protection, context, reports, updates, draws=1000)
    assert worst <= cost(protection) + 1e-12
    if sent == "bits":
        assert worst == pytest.approx(cost(protection))


def test_a_code_is_read_as_the_server_reads_it() -> None:
    """The estimate is unbiased, and in units of the update although weights are coded."""
    protection = made("rr", 3000, eps=2.0, cells=4)
    context = opened(protection, np.full(3000, 0.25))
    report = drawn(protection, context, np.full(3000, 0.25), 0)
    reading = protection.reading(context, report)
    server = server_half(protection, [0], context.model)
    server.receive(0, report)
    assert np.array_equal(reading.estimate, server.aggregate().update)
    assert reading.weight.tolist() == [1.0] * 3000


def test_above_the_tables_a_sum_states_no_likelihood_and_bits_do() -> None:
    for sent, stated in (("sum", False), ("bits", True)):
        protection = made("oue", 2, cells=200, report=sent)
        context = opened(protection)
        reading = protection.reading(context, drawn(protection, context, [0.1, 0.2], 0))
        assert (reading.log_likelihood is not None) == stated


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_a_report_for_a_drawn_cohort_is_the_states_themselves(rounding: str) -> None:
    settings = {"fidelity": "aggregate", "cells": 4, "target": "update", "rounding": rounding}
    protection = made("rr", 2, **settings)
    context = opened(protection)
    report = drawn(protection, context, [0.25, -1.0], 0)
    assert protection.reading(context, report).estimate.tolist() == [0.25, -1.0]
    found = [log_likelihood(protection, context, report, [x, -1.0]) for x in (0.25, 0.3, -0.3)]
    nearly = 0.0 if rounding == "nearest" else pytest.approx(math.log(0.8))
    assert found == [0.0, nearly, -math.inf]


# A user's own protection


class Halved(Protection):
    """Sends half the update, and does not define a reading."""

    def spending(self, state: Any) -> list[Spending]:
        return [Spending(PrivacyLoss(math.inf))]

    def server_round(self, context: RoundContext) -> Any:
        return HalvedServer(context)

    def client_round(self, context: Any) -> Any:
        return HalvedClient(context)


class HalvedServer(OneReportRound):
    sums = ("_sum",)

    def __init__(self, context: RoundContext) -> None:
        super().__init__(context)
        self._sum = np.zeros(len(context.model))

    def _fold(self, client: Any, message: Message) -> None:
        only_fields(message, "round", "half")
        self._sum += take_array(message, "half", "float32", self._sum.shape)

    def _merge_sums(self, other: Any) -> None:
        self._sum += other._sum

    def _aggregate(self) -> Aggregate:
        return Aggregate(2 * self._sum / self.reports, self.reports)


class HalvedClient(OneReportClient):
    def _report(self, opening: Message, update: Any) -> Message:
        return {"round": self._context.round, "half": update / np.float32(2)}


def test_ones_own_is_read_as_its_server_reads_it() -> None:
    protection = Halved(None, JobContext("equal", 3, clients_per_round=5, rounds=1))
    context = RoundContext([0, 4, 7], ROUND, np.zeros(3, np.float32))
    reading = protection.reading(context, drawn(protection, context, [1.0, -2.0, 3.0], 0))
    assert reading.estimate.tolist() == [1.0, -2.0, 3.0]
    assert reading.weight.tolist() == [1.0] * 3
    assert reading.scaled
    assert reading.log_likelihood is None


def test_ones_own_with_several_phases_must_say_it_itself() -> None:
    protection = TwoPhases(TwoPhases.settings_type(), JobContext("equal", 3, 5, 1))
    with pytest.raises(InvalidValue, match="must define `reading` for one of its reports"):
        protection.reading(opened(protection), {})


def test_exactly_and_nothing() -> None:
    update = np.array([1.0, 2.0], np.float32)
    assert Reading.nothing(2).empty
    assert not Reading.exact(update).empty
