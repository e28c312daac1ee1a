"""The evidence from canaries' reports and sums equals its definition, also after a checkpoint.

Five rounds, in which canaries turn their updates round, with noise of another size in each.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedveil.base.array_types import Bools, Float32s, Int8s
from fedveil.engine.canary_directions import Directions
from fedveil.engine.canary_evidence import ReportEvidence
from fedveil.engine.canary_sums import SumEvidence
from fedveil.privacy.choice_audit import Choice, told_true
from fedveil.protections.reading import Domain, Reading

INCLUDED = np.array([True, False, False, True, False])
SIGNS = np.where(INCLUDED, 1.0, -1.0)
MOVED, D, LENGTH = 1.75, 20, 24
TURNS = {2: -1, 3: 1, 4: -1, 5: 1, 6: -1}  # the first round was void
DIRECTIONS = Directions(4, 5, D)
V = np.array([DIRECTIONS.vector(number) for number in range(5)])


def length2(vector: Any) -> float:
    return float(vector @ vector)


def rotation(round: int, *, moves: bool) -> Any:
    draw = np.random.default_rng(round if moves else 0)
    return np.linalg.qr(draw.normal(size=(LENGTH, LENGTH)))[0]


def domain(round: int, *, moves: bool) -> Domain:
    q = rotation(round, moves=moves)
    return Domain(LENGTH, lambda u: q[:, :D] @ u, lambda x: q.T @ x, moves)


@pytest.mark.parametrize("moves", [True, False])
def test_sums_show_what_is_left_of_them_without_the_canaries(moves: bool) -> None:
    def domain_of(round: int) -> Domain:
        return domain(round, moves=moves)

    protection: Any = SimpleNamespace(dimension=D, domain=domain_of, released=lambda sums: sums)
    q = {r: rotation(r, moves=moves) for r in TURNS}
    draw = np.random.default_rng(9)
    sent = MOVED * SIGNS @ V
    released = {
        r: turn * q[r][:, :D] @ sent + draw.normal(0, 0.1 * (r + 2), LENGTH)
        for r, turn in TURNS.items()
    }
    seen = SumEvidence(DIRECTIONS, INCLUDED, MOVED, protection)
    for r, turn in TURNS.items():
        sums: Any = released[r]
        seen.see(sums, r, turn)
        again = SumEvidence(DIRECTIONS, INCLUDED, MOVED, protection)
        again.restore(seen.state())
        seen = again

    decoded = {r: q[r].T @ released[r] for r in TURNS}
    rest = {r: released[r] - turn * q[r][:, :D] @ sent for r, turn in TURNS.items()}
    along = {r: V @ decoded[r][:D] for r in TURNS}
    np.testing.assert_allclose(seen.scores, sum(TURNS[r] * along[r] for r in TURNS))
    beside = sum(length2(decoded[r][:D]) - length2(along[r]) for r in TURNS)
    expected = {
        "noise": (5, beside),
        "spare": (5, sum(length2(decoded[r][D:]) for r in TURNS)),
        "echo": (4, sum(length2(rest[r] - rest[2]) for r in (3, 4, 5, 6)) / (8 * MOVED**2)),
    }
    turned, lag, calm = np.zeros(5), 0.0, 0.0
    for then, now in ((2, 3), (4, 5)):
        step = TURNS[now] * q[now][:, :D] @ V[0] - TURNS[then] * q[then][:, :D] @ V[0]
        lag += length2(rest[now] - rest[then]) / (4 * MOVED**2 * length2(step))
        both = (q[now].T @ rest[now] - q[then].T @ rest[then])[:D] / (2 * MOVED * 2)
        calm += length2(both)
        difference = released[now] - released[then]
        turned += TURNS[now] * (V @ (q[now].T @ difference)[:D])
        turned -= TURNS[then] * (V @ (q[then].T @ difference)[:D])
    expected |= {"lag": (2, lag), "calm": (2 * moves, calm * moves)}
    for name, (releases, squares) in expected.items():
        found = getattr(seen, name)
        assert found.releases == releases, name
        assert found.squares == pytest.approx(squares), name
    entries = {"noise": D - 5, "spare": LENGTH - D, "echo": LENGTH, "lag": LENGTH, "calm": D}
    assert {name: getattr(seen, name).entries for name in entries} == entries
    np.testing.assert_allclose(seen.turned, turned * moves)


def test_reports_show_their_noise_and_whose_coin_is_whose() -> None:
    draw = np.random.default_rng(8)
    noise = {r: draw.normal(0, 0.1 * (r + 2), (5, D)) for r in TURNS}
    weight = draw.uniform(0.5, 2.0, (5, D))
    seen = ReportEvidence(DIRECTIONS, INCLUDED, MOVED, D, ())
    scores = np.zeros(5)
    for r, turn in TURNS.items():
        reports = SIGNS[:, None] * MOVED * turn * V + noise[r]
        for number, report in enumerate(reports):
            unit = turn * V[number]
            reading = Reading(report, weight[number])
            seen.read(number, reading, unit, unit.astype(np.float32))
        seen.close(turn)
        products = turn * (weight * reports) @ V.T  # of report i with canary j's direction
        own = np.diag(products)
        scores += own - (products.sum(axis=0) - own) / 4
        again = ReportEvidence(DIRECTIONS, INCLUDED, MOVED, D, ())
        again.restore(seen.state())
        seen = again

    rest = {r: noise[r] - (noise[r] * V).sum(axis=1, keepdims=True) * V for r in TURNS}
    pairs = [(1, 0), (3, 2)]
    expected = {
        "noise": (25, sum((rest[r] ** 2).sum() for r in TURNS)),
        "lag": (10, sum(((rest[r] - rest[r - 1]) ** 2).sum() for r in (3, 5)) / (4 * MOVED) ** 2),
        "echo": (20, sum(((rest[r] - rest[2]) ** 2).sum() for r in (3, 4, 5, 6)) / (8 * MOVED**2)),
        "pairs": (10, sum(length2(rest[r][i] - rest[r][j]) for r in TURNS for i, j in pairs)
                  / (2 * MOVED) ** 2),
    }  # fmt: skip
    for name, (releases, squares) in expected.items():
        found = getattr(seen, name)
        assert found.releases == releases, name
        assert found.squares == pytest.approx(squares), name
    entries = {"noise": D - 1, "lag": D - 1, "echo": D - 1, "pairs": D - 2}
    assert {name: getattr(seen, name).entries for name in entries} == entries
    np.testing.assert_allclose(seen.scores, scores)
    assert seen.told


@pytest.mark.parametrize("likely", [True, False])
def test_reports_of_another_kind_score_in_every_round(likely: bool) -> None:
    """A report with a likelihood is judged by it alone. Of a direction, the weights count."""
    draw = np.random.default_rng(5)
    seen = ReportEvidence(DIRECTIONS, INCLUDED, MOVED, D, ())
    scores = np.zeros(5)
    for turn in TURNS.values():
        for number in range(5):
            report, weight = draw.normal(size=D), draw.uniform(0.5, 2.0, D)
            unit = turn * V[number]
            update = (3 * unit).astype(np.float32)
            said = (lambda sent, told=report: float(-length2(sent - told) / 2)) if likely else None
            seen.read(number, Reading(report, weight, False, said), unit, update)
            scores[number] += 2 * report @ (3 * unit) if likely else (weight * report) @ unit
        seen.close(turn)
    np.testing.assert_allclose(seen.scores, scores, rtol=1e-5)
    assert seen.noise.releases == 0


def test_an_impossible_report_has_a_large_score_but_a_finite_one() -> None:
    seen = ReportEvidence(DIRECTIONS, INCLUDED, MOVED, D, ())
    for number in range(3):
        update = V[number].astype(np.float32)
        sent = update if number else -update
        reading = replace(Reading.exact(sent), scaled=False)
        seen.read(number, reading, V[number], update)
    assert seen.scores.tolist() == pytest.approx([-1e6, 1e6, 1e6, 0, 0])


def test_a_state_keeps_its_values_in_the_next_round() -> None:
    """A thread saves it while canaries report again."""
    seen = ReportEvidence(DIRECTIONS, INCLUDED, MOVED, D, ())
    seen.read(0, Reading(V[0], np.ones(D)), V[0], V[0].astype(np.float32))
    seen.close(1)
    state = seen.state()
    now = {name: np.copy(value) for name, value in state.items()}
    for scaled in (True, False):
        seen.read(0, Reading(V[0], np.ones(D), scaled), V[0], V[0].astype(np.float32))
        seen.close(-1)
    for name, value in state.items():
        np.testing.assert_array_equal(value, now[name], name)


def test_a_choice_is_truthful_to_what_the_canary_sent() -> None:
    """And that is the reverse of its update if its coin shows 0."""
    seen = ReportEvidence(DIRECTIONS, INCLUDED, MOVED, D, [Choice("signs", 1.0, told_true, D)])
    for turn in (1, -1):
        for number, sign in enumerate(SIGNS):
            update = (turn * V[number]).astype(np.float32)
            truth = sign * update > 0

            def truths(sent: Float32s, truth: Bools = truth) -> list[Int8s]:
                return [((sent > 0) == truth).astype(np.int8)]

            reading = Reading(update.astype(np.float64), np.ones(D), truths=truths)
            seen.read(number, reading, turn * V[number], update)
        seen.close(turn)
    counted = seen.tally.counts[0][0]
    assert (counted.hits, counted.tries) == (2 * 5 * D, 2 * 5 * D)
