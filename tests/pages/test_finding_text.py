"""A finding in words: an attacker's success, compared with chance."""

from __future__ import annotations

import math
from typing import Any

import pytest

from fedveil.pages.finding_text import conclusion, figures
from fedveil.privacy import intervals
from fedveil.privacy.finding import Finding, Measured

BLIND = "(a guess without what was sent:"


def finding(*measured: Measured, **more: Any) -> Finding:
    usual = {"attack": "x", "effort": "full", "protection": "rr", "figures": measured}
    return Finding(**usual | more)


@pytest.mark.parametrize(
    ("figure", "said"),
    [
        (Measured("recovered", 0.53, 0.25, 0.75, 0.13),
         "recover 53% of the examples (chance: 13%)"),
        (Measured("mse", 0.5, 0.4, 0.6, 0.7),
         f"reconstruct examples with a mean squared error of 0.5 {BLIND} 0.7)"),
        (Measured("left: both: psnr", 40.4, 36.0, 44.2, 14.1),
         f"reconstruct examples with a signal-to-noise ratio of 40.4 dB {BLIND} 14.1)"),
        (Measured("label accuracy", 0.97, 0.9, 1.0, 0.11),
         "infer the label of 97% of the examples (chance: 11%)"),
        (Measured("10 labels known", 0.387, 0.36, 0.41, 0.102),
         "infer the label of 38.7% of the examples (chance: 10.2%)"),
        (Measured("LiRA AUC", 0.647, 0.6, 0.7, 0.5),
         "rank a member above another example 64.7% of the time (chance: 50%)"),
        (Measured("client AUC", 0.834, 0.8, 0.9, 0.5),
         "rank a client that took part above another client 83.4% of the time (chance: 50%)"),
        (Measured("client balanced accuracy", 0.77, 0.7, 0.8, 0.5),
         "tell clients that took part from others 77% of the time (chance: 50%)"),
        (Measured("client TPR at 1.0% FPR", 0.31, 0.2, 0.4, 0.01),
         "recognise 31% of the clients that took part and name 1.0% of others (chance: 1%)"),
        (Measured("property AUC", 0.97, 0.9, 1.0, 0.5),
         "rank a client with mostly one class above another 97% of the time (chance: 50%)"),
        (Measured("property balanced accuracy", 0.9, 0.8, 1.0, 0.5),
         "tell clients with mostly one class from others 90% of the time (chance: 50%)"),
        (Measured("property TPR at 1.0% FPR", 0.42, 0.3, 0.6, 0.01),
         "name 42% of the clients with mostly one class and 1.0% of others (chance: 1%)"),
        (Measured("labels counted, median client", 0.93, 0.9, 1.0, 0.6),
         "count 93% of the median client's labels right (chance: 60%)"),
        (Measured("cosine after 1 report", 0.875, 0.8, 0.9, 0.0),
         "estimate an update with a cosine similarity of 0.875 with the true one (chance: 0)"),
        *((Measured(f"{name} AUC", 0.73, 0.6, 0.8, 0.5),
           "rank an example with the rare label first 73% of the time (chance: 50%)")
          for name in ("direction", "norm", "sum", "change", "losses")),
        (Measured("loss TPR at 1.0% FPR", 0.043, 0.03, 0.06, 0.01),
         "recognise 4.3% of the members and accuse 1.0% of others (chance: 1%)"),
        (Measured("loss balanced accuracy", 0.61, 0.55, 0.66, 0.5),
         "tell members from others 61% of the time (chance: 50%)"),
        (Measured("right guesses: far apart, 10 rounds", 0.99, 0.98, 1.0, 0.5),
         "tell two updates apart 99% of the time (chance: 50%)"),
        (Measured("relative error after 3 reports", 0.2, 0.1, 0.3, 1.0),
         "estimate an update with a relative error of 0.2 (chance: 1)"),
        (Measured("own", 3.25, 3.0, 3.5, 2.75), "reach own 3.25 (chance: 2.75)"),
    ],
)  # fmt: skip
def test_a_success_is_what_an_attacker_could_do(figure: Measured, said: str) -> None:
    assert conclusion(finding(figure)) == f"Under rr, an attacker could {said}."


def test_the_best_figure_of_the_first_kind_is_named_with_how_many_beat_chance() -> None:
    """An attacker who fails without help, and succeeds with it."""
    found = finding(
        Measured("left: unsplit: mse", 0.9, 0.8, 1.0, 0.3),
        Measured("left: known bottom: mse", 0.2, 0.1, 0.25, 0.3),
        Measured("left: both: mse", 0.04, 0.03, 0.05, 0.3),
        Measured("left: both: ssim", 0.99, 0.98, 1.0, 0.4),
        protection="none",
    )
    assert conclusion(found) == (
        "Without protection, an attacker could reconstruct examples with a structural similarity "
        f"of 0.99, where 1 is identical {BLIND} 0.4). That is `left: both: ssim`; 3 of 4 compared "
        "figures beat chance. By luck, about one in 40 would."
    )


@pytest.mark.parametrize(
    ("figure", "claim", "said"),
    [
        (Measured("left: unsplit: mse", 0.9, 0.8, 1.0, 0.7), math.inf, "did no better than chance"),
        (
            Measured("recovered", math.nan),
            math.inf,
            "no figure could be compared with chance at effort full",
        ),
        (
            Measured("recovered", math.nan, guess=0.1),
            math.inf,
            "no figure could be compared with chance",
        ),
        (
            Measured("correlation", -0.5, guess=0.0),
            math.inf,
            "no figure could be compared with chance",
        ),
        (Measured("recovered", 0.3, 0.1, 0.5, 0.2), math.inf, "does not prove that nothing leaks"),
        (Measured("epsilon at least", 0.5), 1.0, "No bound is above the claim of rr"),
        (Measured("epsilon at least", 2.0), 1.0, "of rr is refuted: epsilon at least 2"),
    ],
)
def test_a_failure_proves_nothing_and_a_bound_is_compared_with_its_claim(
    figure: Measured, claim: float, said: str
) -> None:
    assert said in conclusion(finding(figure, epsilon=claim))


def test_a_success_in_too_few_cases_for_an_interval_is_no_failure() -> None:
    """The attack on a party with three columns recovers them all, one of the attackers nearly."""
    found = finding(
        intervals.median("deep: unsplit: correlation", [-0.2, 0.1, -0.3], guess=0.0),
        intervals.median("deep: both: correlation", [0.98, 1.0, 0.99], guess=0.0),
        intervals.median("deep: known bottom: correlation", [0.9, 0.7, 0.8], guess=0.0),
        Measured("deep: known bottom: words", 0.2, 0.1, 0.3, 0.25),
    )
    assert conclusion(found) == (
        "Under rr, an attacker could estimate values with a correlation of 0.99 with the true ones "
        "(chance: 0). That is `deep: both: correlation`, from too few cases to say if it is luck."
    )
    beaten = finding(*found.figures, Measured("deep: both: words", 0.5, 0.4, 0.6, 0.25))
    assert "could read 50% of the words" in conclusion(beaten)
    assert "1 of 2 compared figures beat chance" in conclusion(beaten)
    worse = finding(intervals.median("left: both: mse", [0.5, 0.25], guess=0.125))
    assert "no figure could be compared with chance" in conclusion(worse)


def test_tokens_are_read_whatever_the_way() -> None:
    found = finding(Measured("next token", 0.31, 0.3, 0.33, 0.04), attack="tokens")
    assert "could read 31% of the tokens (chance: 4%)" in conclusion(found)


def test_a_figure_without_a_value_is_never_nan() -> None:
    found = finding(
        Measured("loss TPR at 0.1% FPR", math.nan, 0.0, 1.0, 0.001, 1438),
        Measured("accuracy on members", 0.9423, 0.929, 0.954, cases=1439),
        Measured("loss AUC", 0.5066, 0.4731, 0.5412, 0.5, 1797),
    )
    table = figures(found)
    assert table.columns == ["figure", "value", "95% interval", "guessing", "cases"]
    assert [list(row) for row in table.rows] == [
        ["loss TPR at 0.1% FPR", "not measured", "", "0.1%", "1,438"],
        ["accuracy on members", "94.2%", "92.9% to 95.4%", "", "1,439"],
        ["loss AUC", "0.507", "0.473 to 0.541", "0.5", "1,797"],
    ]
    assert "nan" not in f"{conclusion(found)} {found}"
    own = figures(finding(Measured("epsilon at least", 0.25, epsilon=0.75), epsilon=2.0))
    assert list(own.rows[0]) == ["epsilon at least", "0.25", "0.75", "", "", "1"]


def test_a_row_without_data_says_why_and_is_compared_with_nothing() -> None:
    found = finding(
        Measured("property TPR at 0.1% FPR", math.nan, guess=0.001, cases=40, unmeasured="needs 9"),
        Measured("property AUC", 0.91, 0.8, 0.97, 0.5, 1600),
    )
    assert list(figures(found).rows[0])[1:] == ["not measured: needs 9", "", "0.1%", "40"]
    assert "compared figures" not in conclusion(found)  # only one was compared


def test_a_figure_stands_beside_its_own_claim_cases_and_guess() -> None:
    table = figures(
        finding(
            Measured("epsilon at least: a", 0.25, cases=7, epsilon=0.75001),
            Measured("right bits", 1.0, 0.9, 1.0, 0.0, 1200),
            epsilon=2.0,
        )
    )
    assert [list(row) for row in table.rows] == [
        ["epsilon at least: a", "0.25", "0.751", "", "", "7"],
        ["right bits", "100%", "", "90% to 100%", "0%", "1,200"],
    ]


def test_errors_are_best_where_they_are_least_and_one_success_is_counted() -> None:
    """One of two compared figures of three beats chance."""
    found = finding(
        Measured("a: mse", 0.2, 0.1, 0.25, 0.3),
        Measured("b: mse", 0.04, 0.03, 0.05, 0.3),
        Measured("c: mse", 0.9, 0.8, 1.0, 0.3),
        Measured("the most that 5 trials can show", 3.0),
    )
    assert "error of 0.04 " in conclusion(found)
    assert (
        "That is `b: mse`; 2 of 3 compared figures beat chance. By luck, about one in 40 would."
        in conclusion(found)
    )
    one = finding(Measured("a: mse", 0.2, 0.1, 0.25, 0.3), Measured("b: mse", 0.9, 0.8, 1.0, 0.3))
    assert "1 of 2 compared figures beat chance. By luck, about one in 40 would." in conclusion(one)
    psnr = Measured("a: psnr", 30.0, 29.0, 31.0, 12.0)
    several = finding(Measured("a: mse", 0.2, 0.1, 0.25, 0.3), psnr)
    assert "That is `a: mse`; 2 of 2" in conclusion(several)  # of two kinds, the first


def test_the_best_of_the_first_kind_is_no_larger_value_of_another_kind() -> None:
    found = finding(
        Measured("recovered", 0.5, 0.4, 0.6, 0.1),
        Measured("left: recovered", 0.625, 0.5, 0.7, 0.1),
        Measured("psnr", 30.0, 29.0, 31.0, 12.0),
    )
    assert "could recover 62.5% of the examples" in conclusion(found)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("epsilon at least", 1.9999, "1.99"),  # of a lower bound, no more than was shown
        ("epsilon at least", math.inf, "inf"),
        ("the most that 5 trials can show", 2.9912, "3"),  # of a limit, no less than it is
        ("most that 5 trials can show: a", 2.9712, "2.98"),
        ("ledger's epsilon", 1.0001, "1.01"),  # of a cost, no less than was stated
        ("recovered", 0.62519, "62.5%"),
        ("own", -0.5, "-0.5"),
        ("own", 1.5, "1.5"),
        ("psnr", 0.25, "0.25"),
    ],
)
def test_each_value_is_rounded_as_its_kind_demands(name: str, value: float, text: str) -> None:
    (row,) = figures(finding(Measured(name, value))).rows
    assert row[1] == text
