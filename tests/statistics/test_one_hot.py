"""rr and oue for frequencies: the exact loss, the exact estimate, one report and a whole sum."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import product
from typing import Any, Literal

import numpy as np
import pytest
from scipy.stats import binom

from fedveil.entropy import Seeded
from fedveil.errors import ClientWithheld, ReportRejected
from fedveil.protections.base import JobContext
from fedveil.statistics.one_hot import Frequencies, OneHot
from round_parts import client_half, report_of, server_half
from statistical_checks import assert_alike, assert_follows

Kind = Literal["rr", "oue"]
KINDS: tuple[Kind, ...] = ("rr", "oue")


def probability(law: OneHot, code: tuple[int, ...], bits: tuple[int, ...]) -> float:
    """Return Pr[bits]. A 1 is lost with probability `lost`, and a 0 becomes 1 with `q`."""
    chances = [(law.lost, 1 - law.lost) if own else (1 - law.q, law.q) for own in code]
    return math.prod(chance[bit] for chance, bit in zip(chances, bits, strict=True))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("eps", [0.3, 1.7, 60.0, 200.0])
def test_the_loss_is_exactly_eps_for_codes_and_no_more_with_the_zero_code(
    kind: Kind, eps: float
) -> None:
    law = OneHot(kind, eps, 3)
    codes = [(1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 0, 0)]
    worst = max(
        math.log(probability(law, a, bits) / probability(law, b, bits))
        for a, b in product(codes, codes)
        for bits in product((0, 1), repeat=3)
    )
    assert eps * (1 - 1e-9) < worst <= eps * (1 + 1e-12)  # of the logarithms here
    assert law.loss.epsilon == eps
    assert law.loss.pure


def test_the_two_bits_of_a_code_never_cost_more_than_the_stated_epsilon() -> None:
    """Half of this float stands for more than half of its decimal."""
    law = OneHot("rr", 35.46920610007823, 3)
    q = Fraction(law.q)
    with localcontext() as context:
        context.prec = 60
        loss = 2 * (Decimal(q.denominator - q.numerator) / Decimal(q.numerator)).ln()
    assert loss <= Decimal(repr(law.loss.epsilon))


@pytest.mark.parametrize("kind", KINDS)
def test_a_code_of_one_bit_has_the_whole_epsilon(kind: Kind) -> None:
    law = OneHot(kind, 0.8, 1)
    yes, no = (probability(law, (own,), (1,)) for own in (1, 0))
    assert math.log(yes / no) == pytest.approx(0.8)
    assert math.log((1 - no) / (1 - yes)) == pytest.approx(0.8)
    # Warner's variance, whatever the share.
    expected = math.exp(0.8) / (math.exp(0.8) - 1) ** 2 / 90
    assert law.variance(np.array([0.0, 0.4, 1.0]), 90) == pytest.approx([expected] * 3)


class Asked(Seeded):
    """Keeps each probability with which bits are drawn."""

    def bernoulli(self, p: Any, *shape: Any) -> Any:
        self.asked = [*getattr(self, "asked", []), p]
        return super().bernoulli(p, *shape)


@pytest.mark.parametrize(("kind", "lost"), [("rr", math.exp(-45)), ("oue", 0.5)])
def test_a_one_is_lost_with_its_exact_probability(kind: Kind, lost: float) -> None:
    """1 - q is 1 in 64-bit numbers. A one that is never lost would have no finite epsilon."""
    law, entropy = OneHot(kind, 90.0, 3), Asked(2)
    bits = law.perturb(np.array([0, 1, 0], np.uint8), entropy)
    assert entropy.asked == pytest.approx([law.q, lost], rel=1e-12)
    assert kind == "oue" or bits.tolist() == [0, 1, 0]
    counts = np.array([70, 0, 10])
    ones = law.ones(counts, 80, Seeded(2))
    assert kind == "oue" or ones.tolist() == counts.tolist()
    assert ones[1] == 0


@pytest.mark.parametrize("kind", KINDS)
def test_reports_have_the_stated_probabilities(kind: Kind) -> None:
    law, entropy = OneHot(kind, 0.9, 3), Seeded(2)
    code = np.array([0, 1, 0], np.uint8)
    drawn = np.array([law.perturb(code, entropy) @ [1, 2, 4] for _ in range(6000)])
    every = list(product((0, 1), repeat=3))
    expected = np.zeros(8)
    for bits in every:
        expected[np.dot(bits, [1, 2, 4])] = probability(law, (0, 1, 0), bits)
    assert_follows(np.bincount(drawn, minlength=8).tolist(), expected.tolist())


@pytest.mark.parametrize("kind", KINDS)
def test_the_sum_drawn_at_once_has_the_law_of_the_sum_of_reports(kind: Kind) -> None:
    law, counts = OneHot(kind, 1.1, 2), np.array([5, 2])
    codes = [np.eye(2, dtype=np.uint8)[cell] for cell in (0, 0, 0, 0, 0, 1, 1)]
    codes += [np.zeros(2, np.uint8)] * 4  # who has no cell
    entropy = Seeded(4)
    one_by_one = [sum(law.perturb(code, entropy) for code in codes) @ [1, 12] for _ in range(2500)]
    at_once = [law.ones(counts, 11, entropy) @ [1, 12] for _ in range(2500)]
    assert_alike(one_by_one, at_once)


@pytest.mark.parametrize("kind", KINDS)
def test_the_estimate_is_unbiased_with_the_stated_variance(kind: Kind) -> None:
    law, counts, n = OneHot(kind, 1.3, 3), np.array([40, 7, 0]), 53
    entropy = Seeded(6)
    found = np.array([law.shares(law.ones(counts, n, entropy), n) for _ in range(2500)])
    stated = law.variance(counts / n, n)
    assert (abs(found.mean(0) - counts / n) < 5 * np.sqrt(stated / 2500)).all()
    assert (abs(found.var(0) / stated - 1) < 0.15).all()


def test_a_round_counts_reports_and_refuses_foreign_bits() -> None:
    context = JobContext(weighting="equal", dimension=5, clients_per_round=3, rounds=1)
    protection = Frequencies("rr", 690.0, context)  # next to no bit is flipped
    model = np.zeros(5)
    server = server_half(protection, [4, 6, 9], model)
    opening = server.opening()
    for client, cell in ((4, 1), (6, 1)):
        half = client_half(protection, client, model)
        server.receive(client, report_of(half, opening, np.eye(5)[cell]))
    bits = np.array([0b11100000], np.uint8)
    with pytest.raises(ReportRejected, match="no sum of 1 codes of 5 bits"):
        server.receive(9, {"round": opening["round"], "bits": bits})
    server.advance()
    aggregate = server.aggregate()
    assert aggregate.reports == 2
    assert aggregate.update == pytest.approx([0, 1, 0, 0, 0], abs=1e-9)


def test_a_report_of_four_codes_has_at_most_four_ones_in_a_cell() -> None:
    """Three bits hold numbers up to seven."""
    context = JobContext(weighting="equal", dimension=2, clients_per_round=3, rounds=1)
    protection = Frequencies("rr", 690.0, context, 4)
    server, model = server_half(protection, [1, 2, 3], np.zeros(2)), np.zeros(2)
    opening = server.opening()
    for client, counts in ((1, [4, 0]), (2, [1, 2])):
        report = report_of(client_half(protection, client, model), opening, np.array(counts))
        server.receive(client, report)
    for forged in (5, 7):
        with pytest.raises(ReportRejected, match="no sum of 4 codes of 2 bits"):
            server.receive(3, {"round": opening["round"], "bits": np.array([forged], np.uint8)})
    server.advance()
    assert server.aggregate().update == pytest.approx([5 / 8, 2 / 8], abs=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_a_share_outside_0_and_1_has_the_variance_of_the_nearest_possible_one(kind: Kind) -> None:
    """An estimated share may be below 0, where the formula has no variance at all."""
    law = OneHot(kind, 8.0, 3)
    low, zero, one, high = law.variance(np.array([-0.3, 0.0, 1.0, 1.3]), 90)
    assert low == zero > 0
    assert high == one > 0


def test_halves_of_a_round_are_merged() -> None:
    context = JobContext(weighting="equal", dimension=3, clients_per_round=3, rounds=1)
    protection = Frequencies("rr", 690.0, context)
    first, second = (server_half(protection, [1, 2, 3], np.zeros(3)) for _ in range(2))
    opening = first.opening()
    for server, client, cell in ((first, 1, 0), (first, 2, 2), (second, 3, 0)):
        half = client_half(protection, client, np.zeros(3))
        server.receive(client, report_of(half, opening, np.eye(3)[cell]))
    first.merge(second)
    first.advance()
    aggregate = first.aggregate()
    assert aggregate.reports == 3
    assert aggregate.update == pytest.approx([2 / 3, 0, 1 / 3], abs=1e-9)


def test_a_client_cannot_be_made_to_send_two_ones() -> None:
    context = JobContext(weighting="equal", dimension=4, clients_per_round=1, rounds=1)
    protection = Frequencies("rr", 690.0, context)
    server = server_half(protection, [1], np.zeros(4))
    half, opening = client_half(protection, 1, np.zeros(4)), server.opening()
    with pytest.raises(ClientWithheld, match="no sum of 1 codes"):  # it then sends a zero code
        report_of(half, opening, np.ones(4))
    with pytest.raises(ClientWithheld, match="no sum of 1 codes"):
        report_of(half, opening, np.array([-1, 1, 1, 0]))


@pytest.mark.parametrize("kind", KINDS)
def test_a_sum_of_codes_costs_eps_for_one_of_them_and_hides_their_number(kind: Kind) -> None:
    law, codes = OneHot(kind, 1.3, 2), 3

    def chances(counts: tuple[int, ...]) -> Any:
        ones = [
            np.convolve(
                binom.pmf(range(codes + 1), n, law.p), binom.pmf(range(codes + 1), codes - n, law.q)
            )
            for n in counts
        ]
        return np.outer(*[cell[: codes + 1] for cell in ones])

    worst = max(
        abs(np.log(chances(before) / chances(after))).max()
        # A row that changes its cell, and a row more: even their number is covered.
        for before, after in (
            ((1, 2), (2, 1)),
            ((1, 1), (0, 2)),
            ((1, 1), (1, 2)),
            ((0, 0), (1, 0)),
        )
    )
    assert 1.3 * (1 - 1e-9) < worst <= 1.3 * (1 + 1e-9)
    context = JobContext(weighting="equal", dimension=2, clients_per_round=2, rounds=1)
    protection, entropy = Frequencies(kind, 1.3, context, codes), Seeded(5)
    model, reports = np.zeros(2), np.zeros((codes + 1, codes + 1))
    opening = server_half(protection, [1], model).opening()
    for _ in range(3000):
        half = client_half(protection, 1, model, entropy=entropy)
        (packed,) = report_of(half, opening, np.array([2, 0]))["bits"]
        reports[packed & 3, packed >> 2] += 1
    assert_follows(reports.ravel().tolist(), chances((2, 0)).ravel().tolist())
    server = server_half(protection, [1, 2], model)
    with pytest.raises(ReportRejected, match="no sum of 3 codes of 2 bits"):
        server.receive(2, {"round": opening["round"], "bits": np.array([1 << 4], np.uint8)})


@pytest.mark.parametrize("kind", KINDS)
def test_the_influence_is_what_the_worst_forged_report_does(kind: Kind) -> None:
    law = OneHot(kind, 0.8, 6)
    ones, n = np.array([9, 4, 4, 0, 2, 7]), 30
    before = law.shares(ones, n) * n
    forged = law.shares(ones + 1, n) * n
    assert (forged - before).max() == pytest.approx(law.influence)
