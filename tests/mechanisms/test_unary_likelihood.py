"""The likelihood of a unary report is that of its law, enumerated from the definition."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from fedveil.entropy import Seeded
from fedveil.mechanisms.unary import likelihood
from fedveil.mechanisms.unary.encoding import UnaryEncoding
from unary_law import enumerated_sum_law

#: In a range of 2 with 2 cells, a state is its value. The first lies between two states.
VALUES = np.array([1.25, -1.0])
STATES = {"nearest": ([(1, 1.0)], [(-1, 1.0)]), "stochastic": ([(1, 0.75), (2, 0.25)], [(-1, 1.0)])}


@pytest.mark.parametrize("kind", ["rr", "oue"])
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_a_report_of_sums_has_the_chance_of_its_law(kind: Any, rounding: Any) -> None:
    encoding = UnaryEncoding(kind, 0.7, 2, rounding=rounding, value_range=2.0)
    p, q = encoding.exact_p, encoding.exact_q
    laws = {state: enumerated_sum_law(p, q, 2, state) for state in range(-2, 3)}
    for sums in ((0, 0), (3, -1), (-2, 2), (1, -3)):
        said = likelihood.stated_log_likelihood(encoding, np.array(sums, encoding.sum_dtype))
        assert said is not None
        due = [
            sum(float(laws[state].get(s, Fraction(0))) * share for state, share in of)
            for s, of in zip(sums, STATES[rounding], strict=True)
        ]
        assert said(VALUES) == pytest.approx(math.log(math.prod(due)), rel=1e-9)


@pytest.mark.parametrize("kind", ["rr", "oue"])
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_a_report_of_bits_has_the_chance_of_its_bits(kind: Any, rounding: Any) -> None:
    encoding = UnaryEncoding(kind, 0.7, 2, rounding=rounding, report="bits", value_range=2.0)
    p, q = encoding.p, encoding.q

    def chance(bits: tuple[int, ...], state: int) -> float:
        ones = [p if at == state + 2 else q for at in range(5)]
        return math.prod(one if bit else 1 - one for one, bit in zip(ones, bits, strict=True))

    for bits in itertools.islice(itertools.product((0, 1), repeat=10), 5, None, 111):
        report = np.packbits(np.array([*bits, 1], np.uint8), bitorder="little")
        said = likelihood.stated_log_likelihood(encoding, report)
        assert said is not None
        parts = zip((bits[:5], bits[5:]), STATES[rounding], strict=True)
        due = [sum(chance(part, state) * share for state, share in of) for part, of in parts]
        assert said(VALUES) == pytest.approx(math.log(math.prod(due)), rel=1e-9)


def test_sums_have_a_likelihood_up_to_the_largest_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(likelihood, "MAX_TABLE_CELLS", 3)
    for cells, stated in ((3, True), (4, False)):
        encoding = UnaryEncoding("oue", 0.7, cells)
        sums = np.zeros(2, encoding.sum_dtype)
        assert (likelihood.stated_log_likelihood(encoding, sums) is not None) == stated


@pytest.mark.parametrize("report", ["sum", "bits"])
@pytest.mark.parametrize("kind", ["rr", "oue"])
def test_values_at_the_ends_of_the_range_are_in_the_last_states(kind: Any, report: Any) -> None:
    """Rounded at random, a value beyond the range has no second state."""
    values = np.array([2.0, 7.5, -2.0, -1e9])
    found = []
    for rounding in ("nearest", "stochastic"):
        encoding = UnaryEncoding(kind, 0.7, 2, rounding, report, value_range=2.0)
        said = likelihood.stated_log_likelihood(
            encoding, encoding.perturb(np.array([2, -1, 0, -2]), Seeded(3))
        )
        assert said is not None
        found.append(said(values))
    assert found[0] == pytest.approx(found[1])
