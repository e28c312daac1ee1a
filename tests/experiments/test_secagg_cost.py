"""The cost of secure aggregation, counted, beside the papers' tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments import counted_rounds, secagg_cost
from experiments.counted_rounds import LARGEST, Cost, Setup, held_bytes, message_bytes, played
from experiments.secagg_cost import Figures, SecaggCost, Sizes, growth, unmasked, verdicts
from fedveil.errors import RunFailed
from fedveil.secagg import run_round

TINY = Sizes((6, 12), {5: 3, 7: 1}, entries=16, neighbours=2, timed_entries=24)


def test_the_full_scale_is_the_papers_own() -> None:
    full = SecaggCost.SCALES["full"]
    assert full.timed == {500: 3, 1000: 1}
    assert full.timed_entries == 100_000
    assert list(full.percents) == [0, 10, 30]


@pytest.mark.parametrize("neighbours", [None, 2])
def test_what_a_client_sends_is_worked_out_exactly(neighbours: int | None) -> None:
    """Against `run_round`, whose clients and messages are its own."""
    setup = Setup(5, 33, neighbours=neighbours)
    vectors = {i: np.full(33, LARGEST) for i in range(5)}
    done = run_round(vectors, setup.terms.threshold, neighbours=neighbours)
    assert sum(done.bytes_up.values()) == 5 * message_bytes(setup)
    assert played(setup, counted=False).client_up == message_bytes(setup)


def test_what_is_done_is_counted() -> None:
    """Six clients, two of which drop out: by hand."""
    cost = played(Setup(6, 40, dropped=2), counted=True)
    # Its own mask and one with each of five; a key with each of them to seal, and one to mask.
    assert cost.client_does == {
        "masks": 6, "key agreements": 10, "secrets shared": 2, "secrets joined": 0,
    }  # fmt: skip
    # The masks of four survivors, and those that each of them has with two that dropped out.
    assert cost.server_does == {
        "masks": 12, "key agreements": 8, "secrets shared": 0, "secrets joined": 6,
    }  # fmt: skip
    assert unmasked(20, 10) == 18 * 3
    assert cost.server_held > 6 * 5 * counted_rounds.phases.SEALED_BYTES


def test_a_round_with_another_sum_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = counted_rounds._Counting.vector
    calls = iter(range(100))

    def changing(self: Any, client: int) -> Any:
        return wrong(self, client) + (next(calls) == 2)

    monkeypatch.setattr(counted_rounds._Counting, "vector", changing)
    with pytest.raises(RunFailed, match=r"^the sum of the round is not that of its vectors$"):
        played(Setup(4, 8), counted=False)


def test_what_is_held_is_counted_once() -> None:
    array = np.zeros(3)
    assert held_bytes([array, array, b"abc", {1: "de"}, None]) == 24 + 3 + 8 + 2


def costs(of: Callable[[int], float]) -> Figures:
    """Rounds of which everything grows like that."""
    cost = {
        n: Cost(of(n), of(n), of(n), 0.1, int(of(n)), int(of(n)), 1.0,
                {"masks": of(n)}, {"masks": of(n)})
        for n in (64, 128)
    }  # fmt: skip
    timed = {
        (500, p): [replace(cost[64], server_seconds=s * slow) for slow in (1, 1.1, 1.3)]
        for p, s in secagg_cost.SERVER_S.items()
    }
    return Figures(SecaggCost.SCALES["small"], cost, cost, timed)


def judged(figures: Figures) -> dict[str, bool]:
    return {verdict.what: verdict.agrees for verdict in verdicts(figures)}


def test_the_verdicts_are_computed() -> None:
    assert growth({1: 5, 4: 10, 8: 40}) == 2
    linear, cubic = judged(costs(lambda n: 1000.0 * n)), judged(costs(lambda n: float(n**3)))
    assert linear.pop("client: masks with 10 neighbours, by n clients") is False
    assert all(linear.values())
    grow = [what for what in cubic if what.endswith(", by n clients")]
    assert len(grow) == 8
    assert not any(cubic[what] for what in grow)


def timed(of: Callable[[int, Cost], Cost]) -> Figures:
    """Return figures whose timed rounds are changed by `of`, called with each repetition."""
    figures = costs(lambda n: 1000.0 * n)
    changed = {at: [of(i, c) for i, c in enumerate(each)] for at, each in figures.timed.items()}
    return replace(figures, timed=changed)


CLIENT, AT_10, AT_30 = (
    "a client's seconds: 500 clients, 100,000 entries",
    "the server's seconds if 10% drop out, and their ratio to those if none do",
    "the server's seconds if 30% drop out, and their ratio to those if none do",
)


def test_seconds_are_held_against_the_papers_ratios(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = timed(lambda _, cost: replace(cost, client_seconds=1.0))
    quick = [replace(cost, server_seconds=4.0) for cost in figures.timed[500, 30]]
    found = judged(replace(figures, timed={**figures.timed, (500, 30): quick}))
    assert (found[CLIENT], found[AT_10], found[AT_30]) == (False, True, False)
    monkeypatch.setattr(secagg_cost, "EXPANSION", {(1 << 10, 1 << 20): 1.5})
    assert next(iter(judged(figures).values())) is False


def test_seconds_are_judged_by_the_interval_of_their_repetitions() -> None:
    """The means meet the criteria, but the repetitions lie on both sides of the bounds."""
    seconds = iter((0.5, 0.6, 1.2) * 3)
    figures = timed(lambda _, cost: replace(cost, client_seconds=next(seconds)))
    uneven = [
        replace(cost, server_seconds=cost.server_seconds * slow)
        for cost, slow in zip(figures.timed[500, 10], (0.3, 1, 1.5), strict=True)
    ]
    figures = replace(figures, timed={**figures.timed, (500, 10): uneven})
    found = {verdict.what: verdict for verdict in verdicts(figures)}
    assert found[CLIENT].answer == found[AT_10].answer == "says nothing"
    assert found[AT_30].answer == "agrees"
    assert found[AT_30].ours == "162.1 [107.8, 216.3] s, 71.5 [71.5, 71.5] times"
    assert "with the whole interval" in found[AT_10].held_to


def test_a_miniature_is_played_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    outcome = SecaggCost(TINY).run(tmp_path, "small", said.append)
    assert len(said) == 2 + 2 + 3 * 3 + 3
    assert "Of 5 clients, a figure is the mean of 3 rounds" in outcome.ran
    assert not any("seconds" in verdict.what for verdict in outcome.verdicts)
    assert [plot.name for plot in outcome.plots] == ["masks", "server-seconds"]
    monkeypatch.setattr(secagg_cost, "played", None)
    assert SecaggCost(TINY).run(tmp_path, "small", said.append) == outcome
