"""Attacks on answers: each stays within what the account states, or is on the page."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedveil.entropy import Seeded
from fedveil.errors import LimitReached, ReportRejected, RunFolderError
from fedveil.privacy.gaussian_curve import ratio_for
from fedveil.protections.base import Protection, RoundContext
from fedveil.statistics.answer_page import page_of
from fedveil.statistics.asking import ask
from fedveil.statistics.carriage import Carriage, Participants, make_protection
from fedveil.statistics.clients import load
from fedveil.statistics.question import QuestionFile
from fedveil.statistics.schedule import Schedule, Step
from round_parts import client_half, report_of, server_half
from statistical_checks import loss_at_least
from statistics_parts import asked, only

EPSILON, TIMES = 1.2, 400
#: The victim is the only one who is 97.
AGES = [30.0, 41.0, 52.0, 63.0, 74.0, 97.0, 35.0]
WITHOUT = [*AGES[:5], 20.0, AGES[6]]


ALL, OTHERS = {"ask": "count"}, {"ask": "count", "where": "age != 97"}


def views(questions: dict[str, Any], ages: list[float], times: int, **more: Any) -> Any:
    """Return what `times` rounds release about the questions, each with fresh noise."""
    file = QuestionFile(
        protection={"name": "central_gaussian"}, epsilon=EPSILON, randomness="seeded",
        questions=questions, **more,
    )  # fmt: skip
    layout = Schedule(file).layout(Step(1))
    clients = load(file, {"age": ages, "site": ["x", "x", "x", "y", "z", "y", "y"]})
    n = len(clients)
    protection = make_protection(file, layout.dimension, 1, Participants(n))
    carriage = Carriage(protection)
    rows = [part.rows(clients, Seeded(1)) for part in layout.parts]
    vectors = [layout.vector(rows, clients.contributed(c, Seeded(1))) for c in range(n)]
    model = np.zeros(layout.dimension, np.float32)
    found = []
    for number in range(1, times + 1):
        server = server_half(protection, range(n), model, number=number)
        opening = server.opening()
        for client, vector in enumerate(vectors):
            half = client_half(protection, client, model, number=number)
            update = carriage.update(vector, Seeded(number, client))
            server.receive(client, half.respond(opening, update))
        server.advance()
        total = carriage.total(server.aggregate().update, n)
        parts = zip(layout.balls, layout.slices, strict=True)
        found.append(np.concatenate([ball.back(total[where], n) for ball, where in parts]))
    return np.array(found)


def lower_bound(questions: dict[str, Any], signs: list[float]) -> float:
    """Return a lower bound of the epsilon of a weighted sum of the answers.

    The event is that the sum exceeds a half: the victim adds one to it.
    """
    held, other = (views(questions, ages, TIMES) @ signs > 0.5 for ages in (AGES, WITHOUT))
    return loss_at_least(int(held.sum()), int(other.sum()), TIMES, 1e-6)


def test_a_filter_that_isolates_one_client_learns_no_more_than_epsilon() -> None:
    assert lower_bound({"n": {"ask": "count", "where": "age == 97"}}, [1.0]) <= EPSILON
    # The noise is that of any other filter: an isolated client is not treated as if it were many.
    alone, several = (
        only({"ask": "count", "where": where}, {"age": AGES}, "central_gaussian", epsilon=1.0)
        for where in ("age == 97", "age > 0")
    )
    assert alone[0].noise == several[0].noise > 1


@pytest.mark.parametrize("unit", ["client", "row"])
def test_two_cells_that_one_row_moves_between_have_the_noise_of_epsilon(unit: Any) -> None:
    """In this direction a replaced row moves a histogram furthest: by one in each of two cells."""
    question = {"ask": "histogram", "column": "age", "edges": [0.0, 25.0, 90.0, 99.0]}
    more = {"unit": unit, "client": None if unit == "client" else "site"}
    released = views({"h": question}, AGES, TIMES, **more) @ [-1.0, 0.0, 1.0]
    moved = 2.0  # from -1 to 1, as the victim of `WITHOUT` is 20
    # The deviation of 400 numbers is known to 3.5%.
    assert released.std() / moved == pytest.approx(ratio_for(EPSILON, 1e-6, 1), rel=0.15)


def test_differencing_two_questions_shares_one_epsilon_and_learns_no_more() -> None:
    assert lower_bound({"all": ALL, "others": OTHERS}, [1.0, -1.0]) <= EPSILON
    (one,) = only(ALL, {"age": AGES}, "central_gaussian", epsilon=EPSILON)
    both = asked({"all": ALL, "others": OTHERS}, {"age": AGES}, "central_gaussian", epsilon=EPSILON)
    noise = both["all"].estimates[0].noise
    assert noise == pytest.approx(one.noise * 2**0.5, rel=0.01)


def test_the_attack_would_succeed_without_noise() -> None:
    held, other = ([1.0 if age == 97 else 0.0 for age in ages] for ages in (AGES, WITHOUT))
    assert loss_at_least(TIMES * int(sum(held)), TIMES * int(sum(other)), TIMES) > EPSILON


def test_without_noise_the_difference_is_the_client() -> None:
    questions = {"all": ALL, "others": OTHERS}
    for protection in ("not_encrypt", "pw_encrypt"):
        answers = asked(questions, {"age": AGES}, protection)
        assert answers["all"].value - answers["others"].value == pytest.approx(1, abs=1e-3)
        assert math.isinf(answers.epsilon)


def test_averaging_repeated_questions_ends_at_the_account_s_limit(tmp_path: Path) -> None:
    account = str(tmp_path / "people.account")
    found: list[float] = []

    def ask_for_ever() -> None:
        for seed in range(100):
            answers = asked(
                {"n": ALL}, {"age": AGES}, "central_gaussian", epsilon=EPSILON, account=account,
                max_epsilon=3.0, seed=seed,
            )  # fmt: skip
            found.append(answers["n"].value)
            assert answers.lines[1].epsilon <= 3

    with pytest.raises(LimitReached, match="above max_epsilon = 3"):
        ask_for_ever()
    # Gaussian noise of ratio z / √k for k answers: as many as epsilon 3 pays for, and no more.
    assert 2 < len(found) < 10


def test_an_account_that_vanishes_between_two_rounds_ends_the_question(tmp_path: Path) -> None:
    """A new account would count from zero, and exceed its limit without a word."""
    account = tmp_path / "people.account"
    words = {"ask": "heavy_hitters", "column": "word", "alphabet": "ab", "length": 2, "most": 1}
    file = QuestionFile(
        protection={"name": "central_gaussian"}, epsilon=300.0, questions={"words": words},
        account=str(account), randomness="seeded",
    )  # fmt: skip

    def removed(said: str) -> None:
        if said.startswith("round 2"):
            account.unlink()

    with pytest.raises(RunFolderError, match=r"people\.account is missing"):
        ask(file, {"word": ["ab"] * 7}, progress=removed)
    assert not account.exists()


@pytest.mark.parametrize("protection", ["oue", "rr", "central_gaussian", "dp_encrypt"])
def test_an_empty_cell_is_noised_like_any_other(protection: str) -> None:
    question = {"ask": "histogram", "column": "age", "edges": [0.0, 50.0, 100.0, 150.0]}
    values = [
        [e.value for e in only(question, {"age": AGES}, protection=protection, epsilon=1.0, seed=s)]
        for s in range(12)
    ]
    empty = np.array(values)[:, 2]
    assert (empty != 0).all()
    assert (empty < 0).any(), "negative noise is not cut off"
    assert len(set(empty.tolist())) > 1


def test_an_empty_cell_without_noise_is_zero_and_its_interval_is_not() -> None:
    question = {"ask": "histogram", "column": "age", "edges": [0.0, 100.0, 150.0]}
    empty = only(question, {"age": AGES})[1]
    assert (empty.value, empty.low) == (0.0, 0.0)
    # The exact limit of Clopper and Pearson at 0 of 7 is 2.87.
    assert empty.high > 2.87


def carried(protection: str, clients: int = 5) -> tuple[QuestionFile, Protection, Any]:
    file = QuestionFile(
        protection={"name": protection}, epsilon=2.0, randomness="seeded",
        questions={
            "h": {"ask": "histogram", "column": "age", "edges": [0.0, 30.0, 60.0, 100.0]}
        },
    )  # fmt: skip
    layout = Schedule(file).layout(Step(1))
    who = Participants(clients)
    return file, make_protection(file, layout.dimension, 1, who), layout


def test_a_forged_report_beyond_the_clip_is_refused_by_central_gaussian() -> None:
    _, protection, layout = carried("central_gaussian")
    carriage = Carriage(protection)
    model = np.zeros(layout.dimension, np.float32)
    server = server_half(protection, [1, 2], model)
    opening = server.opening()
    report = report_of(client_half(protection, 1, model), opening, np.array([1.0, 0, 0]))
    forged = {**report, "multiples": report["multiples"] * 3}
    with pytest.raises(ReportRejected, match=r"longer than the clip|range"):
        server.receive(1, forged)
    # The longest report that is accepted moves the sum by no more than the stated influence.
    server.receive(1, report)
    assert 2**1.5 <= carriage.influence() < 2**1.5 * 1.01


def test_a_forged_report_of_oue_moves_each_count_by_the_stated_influence() -> None:
    _, protection, layout = carried("oue")
    carriage, model = Carriage(protection), np.zeros(layout.dimension, np.float32)

    def counts(bits: int) -> Any:
        server = server_half(protection, [3], model)
        server.receive(3, {"round": 7, "bits": np.array([bits], np.uint8)})
        server.advance()
        return carriage.total(server.aggregate().update, 1)

    moved = counts(0b111) - counts(0)
    assert np.linalg.norm(moved) == pytest.approx(carriage.influence())


def test_a_forged_report_of_dp_encrypt_has_a_largest_entry() -> None:
    _, protection, layout = carried("dp_encrypt")
    carriage, model = Carriage(protection), np.zeros(layout.dimension, np.float32)

    def moved(beyond: int) -> float:
        server: Any = server_half(protection, [3], model)
        entries = np.full(layout.dimension, server._form.limit + beyond, np.int32)
        server.receive(3, {"round": 7, **server._form.written(entries)})
        server.advance()
        return float(np.linalg.norm(carriage.total(server.aggregate().update, 1)))

    # The client's own vector, of norm 1 at most, is what the report replaces.
    assert 0.95 * carriage.influence() < moved(0) + 1 <= carriage.influence() * (1 + 1e-6)
    with pytest.raises(ReportRejected):
        moved(1)


@pytest.mark.parametrize("protection", ["rr", "oue"])
def test_liars_move_a_searched_median_no_further_than_their_bits_allow(protection: str) -> None:
    """Clients who say that they are below every edge, whatever it is: a tenth of all."""
    values = np.random.default_rng(2).uniform(0, 100, 8000)
    question = {"ask": "quantiles", "column": "x", "range": [0.0, 100.0], "at": [0.5]}
    lying = np.where(np.arange(8000) < 800, -1.0, values)
    more = {"protection": protection, "epsilon": 4.0, "fidelity": "aggregate"}
    (found,) = only(question, {"x": lying}, **more)
    # Honest reports of a false row: the median moves by a twentieth of the clients, five in 100.
    assert abs(found.value - 50 * 8 / 9) < 5


def test_a_server_that_divides_a_question_is_charged_for_each_part(tmp_path: Path) -> None:
    """Under rr a client answers one round of a file. Two files with other seeds are two charges."""
    account = str(tmp_path / "people.account")
    more = {"epsilon": 1.0, "account": account, "max_epsilon": 2.5}
    for seed in (1, 2):
        answers = asked({"n": ALL, "o": OTHERS}, {"age": AGES}, "rr", seed=seed, **more)
    assert answers.lines[1].epsilon == pytest.approx(2.0)
    with pytest.raises(LimitReached, match=r"max_epsilon = 2\.5"):
        asked({"n": ALL}, {"age": AGES}, "rr", seed=3, **more)


@pytest.mark.parametrize("protection", ["distributed_dp", "pw_encrypt"])
def test_the_page_says_that_secure_aggregation_hides_a_forged_report(protection: str) -> None:
    answers = asked({"n": {"ask": "count"}}, None, protection, epsilon=2.0)
    assert answers.influence == {"n": math.inf}
    assert "unlimited" in page_of(answers).html()


def test_a_report_of_a_client_that_cannot_encode_is_still_sent() -> None:
    # The vector is not finite: under a guarantee a missing report would say so.
    _, protection, layout = carried("dp_encrypt")
    from fedveil.protections.always_answers import answer_trained

    model = np.zeros(layout.dimension, np.float32)
    opening = protection.server_round(RoundContext([1], 7, model)).opening()
    half = client_half(protection, 1, model)
    bad = np.array([np.nan, 0, 0], np.float32)
    spare = client_half(protection, 1, model)
    reply = answer_trained(protection, lambda n: half, lambda: spare, opening, lambda: (bad, 1))
    assert reply.unusable is not None
    assert "multiples" in reply.message or len(reply.message) > 1


def test_a_forged_report_of_several_codes_moves_the_sum_by_its_influence() -> None:
    keys = {"protection": "oue", "epsilon": 2.0, "unit": "row", "client": "site", "rows": 5}
    file = QuestionFile.read({**keys, "questions": {"n": ALL}}, [])
    protection: Any = make_protection(file, 3, 1, Participants(7))
    carriage = Carriage(protection)
    lowest, highest = (
        carriage.total(protection.law.shares(np.full(3, bits), 7 * 5), 7) for bits in (0, 5)
    )
    assert carriage.influence() == pytest.approx(float(np.linalg.norm(highest - lowest)))


def test_a_deployment_has_masks_whatever_the_file_says() -> None:
    keys: dict[str, Any] = {"protection": "pw_encrypt", "masks": False, "questions": {"n": ALL}}
    file = QuestionFile.read(keys, [])
    for simulated in (True, False):
        who = Participants(7, simulated=simulated)
        assert make_protection(file, 3, 1, who).context.masks == (not simulated)
