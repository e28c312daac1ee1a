"""A finding: every bound beside its own claim, and any excess refutes."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest

from fedveil.privacy import finding as module
from fedveil.privacy.finding import Finding, Measured, timed


def finding(*figures: Measured) -> Finding:
    return Finding("canaries", "standard", "rr", figures, epsilon=100.0, delta=1e-5)


def test_any_excess_of_any_bound_refutes() -> None:
    below, other = Measured("epsilon at least", 40.0), Measured("coins", 500.0)
    own = Measured("epsilon at least, a bit", 9.61, epsilon=9.6, delta=0.0)
    assert not finding(below, other).refutes
    assert finding(below, own, other).refutes
    assert finding(below, own, other).excesses == [own]
    assert finding(below, own).refutation == "epsilon at least, a bit 9.61 where 9.6 is claimed"
    close = Measured("epsilon at least", 1.2345678, epsilon=1.23456)
    assert finding(close).refutation == "epsilon at least 1.23456 where 1.23456 is claimed"
    by_a_hair = Measured("epsilon at least", 100.0 + 1e-9)
    assert finding(by_a_hair).refutes
    assert not finding(Measured("epsilon at least", 100.0)).refutes


def test_the_distance_is_to_the_bound_that_is_closest_to_its_claim() -> None:
    far, close = Measured("epsilon at least", 40.0), Measured("epsilon at least, a", 4.5, epsilon=5)
    assert finding(far, close).distance == "; closest: a 4.5, 0.5 below its own claim 5"
    assert finding(far, Measured("epsilon at least, a", 6.0, epsilon=5)).distance == (
        "; largest excess: a 6, 1 above its own claim 5"
    )
    nothing = Measured("epsilon at least, a sign", 0.0, epsilon=0.0)
    assert finding(far, nothing).distance == (
        "; closest: epsilon at least 40, 60 below the claim 100"
    )
    assert finding(nothing).distance == ""
    everything = Measured("epsilon at least", math.inf)
    assert finding(everything).distance == (
        "; largest excess: epsilon at least inf, inf above the claim 100"
    )
    assert Finding("canaries", "standard", "rr", [far]).distance == ""


def test_a_bound_is_shown_rounded_down() -> None:
    assert str(Measured("epsilon at least", 9.99999999)) == "epsilon at least 9.99"
    assert str(Measured("epsilon at least", math.inf)) == "epsilon at least inf"
    assert str(Measured("the most that these could show", 0.27667)).endswith(" 0.277")
    assert str(Measured("most that 9 trials can show: sums", 0.2761)).endswith(" 0.277")
    own = Measured("epsilon at least, a bit", 9.61, epsilon=9.6)
    assert str(own) == "epsilon at least, a bit 9.61 of 9.6 claimed"


def test_its_limits_are_those_of_the_sharpest_bound() -> None:
    blind = Measured("epsilon at least", 1.0, unseen=math.inf)
    sharp = Measured("epsilon at least, a", 1.0, epsilon=40.0, unseen=44.0)
    dull = Measured("epsilon at least, b", 1.0, epsilon=4.0, unseen=30.0)
    unknown = Measured("epsilon at least, c", 1.0)
    assert finding(blind, dull, sharp, unknown).limits == (
        "1 of 3 bounds could not have refuted their claims, and the most sensitive bound is "
        "epsilon at least, a (misses epsilons up to 44 where 40 is claimed)"
    )
    assert finding(blind).limits == "none of 1 bounds could have refuted its claim"
    assert finding(unknown).limits == ""
    above = Measured("epsilon at least, d", 6.3, epsilon=6.0)
    assert finding(blind, above).refutes
    assert finding(blind, above).limits == "", "d has refuted its claim"
    assert "the most sensitive bound is epsilon at least, a " in finding(blind, sharp, above).limits
    assert finding(blind, unknown).unseen == [
        "epsilon at least (misses every epsilon where 100 is claimed)"
    ]
    assert Finding("canaries", "standard", "rr", [blind]).unseen == []


def test_a_coin_that_must_tell_nothing_has_the_claim_0() -> None:
    coin = Measured("epsilon at least, a coin", 0.2, epsilon=0.0, unseen=0.7)
    assert finding(coin).refutes
    assert "(misses epsilons up to 0.7 where 0 is claimed)" in finding(coin).limits
    with pytest.raises(ValueError, match="no figure other"):
        finding(coin).figure("other")


@pytest.mark.parametrize(
    ("name", "low", "high", "beats"),
    [
        ("auc", 0.51, 0.9, True), ("auc", 0.5, 0.9, False), ("auc", 0.1, 0.4, False),
        ("mse", 0.1, 0.49, True), ("mse", 0.1, 0.5, False), ("mse", 0.6, 0.9, False),
        ("left: known bottom: mse", 0.1, 0.49, True), ("relative error of a", 0.1, 0.49, True),
        ("mse of the best", 0.6, 0.9, True), ("auc", 0.6, math.nan, False),
    ],
)  # fmt: skip
def test_guessing_is_beaten_by_a_whole_interval(
    name: str, low: float, high: float, beats: bool
) -> None:
    assert Measured(name, 0.7, low, high, guess=0.5).beats_guessing == beats
    assert not Measured(name, 0.7, low, high).beats_guessing


def test_a_finding_has_an_effort_that_there_is() -> None:
    with pytest.raises(ValueError, match="effort = 'slow' is not one of quick, standard, full"):
        Finding("canaries", "slow", "rr", [])


def test_a_finding_says_how_long_its_attack_took(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([40.25, 42.75])
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    sought = finding(Measured("auc", 0.75))
    assert timed(lambda: sought) == replace(sought, seconds=2.5)


def test_a_finding_tells_each_of_its_figures() -> None:
    told = str(finding(Measured("auc", 0.7126, 0.61, 0.79, 0.5), Measured("loss", math.nan)))
    assert told == (
        "canaries at effort standard against rr reached auc 0.713 [0.61, 0.79], guessing 0.5; "
        "loss not measured"
    )
    assert finding(Measured("epsilon at least", 101.0)).verdict == "NOT WHAT WAS PROMISED"
    assert finding(Measured("epsilon at least", 99.0)).verdict == "not refuted"


def test_what_was_not_promised_is_not_called_unrefuted() -> None:
    bound = Measured("epsilon at least", 3.0)
    promised = replace(bound, epsilon=8.0)
    nothing = "nothing to refute"
    assert replace(finding(bound), epsilon=math.inf).verdict == nothing
    assert finding(Measured("auc", 0.75)).verdict == nothing  # an attack without a bound
    assert replace(finding(bound, promised), epsilon=math.inf).verdict == "not refuted"


def test_a_claim_is_never_rounded_down() -> None:
    claimed = Measured("ledger's epsilon after 2 reports", 1.8801)
    assert str(claimed) == "ledger's epsilon after 2 reports 1.89"
    bound = Measured("epsilon at least", 9.5, epsilon=1.2345601, delta=0.0)
    assert finding(bound).refutation == "epsilon at least 9.5 where 1.23457 is claimed"
