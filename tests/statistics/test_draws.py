"""Every client of every round has draws of its own: its rows, its rounding and its noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedveil.base.message import encode
from fedveil.entropy import Seeded
from fedveil.statistics.asking import Asking, Simulator
from fedveil.statistics.carriage import Carriage, Participants, make_protection
from fedveil.statistics.clients import load
from fedveil.statistics.question import QuestionFile
from fedveil.statistics.schedule import Schedule, Step
from fedveil.statistics.simulation import Contributions, Simulated

CLIENTS = 5
CELLS = [float(edge) for edge in range(51)]


class Noting(Simulated):
    """Keeps the reports of all clients."""

    def _answer(self, client: int, message: Any) -> Any:
        answer = super()._answer(client, message)
        self.reports.append(encode(answer))  # type: ignore[attr-defined]
        return answer


class Listening(Simulator):
    def carrier(self, step: Any, layout: Any, carriage: Any) -> Any:
        made: Any = super().carrier(step, layout, carriage)
        noting: Any = Noting(made._protection, made._made, made._step, made._entropy)
        self.reports: list[bytes] = []
        noting.reports = self.reports
        return noting


def file_of(protection: str, question: dict[str, Any] | None = None, **more: Any) -> QuestionFile:
    cells = {"ask": "histogram", "column": "x", "edges": CELLS}
    settings = {"randomness": "seeded", "client": "who", "epsilon": 4.0, "masks": False, **more}
    return QuestionFile.read(
        {"protection": protection, "questions": {"q": question or cells}, **settings}, []
    )


def contributions(file: QuestionFile, rows: int) -> Contributions:
    """Return a round's contributions: each client has `rows` rows, one in each cell in turn."""
    data = {"x": np.tile(np.arange(rows) + 0.5, CLIENTS), "who": np.arange(CLIENTS).repeat(rows)}
    layout = Schedule(file).layout(Step(1, edge=2))
    protection = make_protection(file, layout.dimension, 1, Participants(CLIENTS))
    return Contributions(layout, load(file, data), Carriage(protection), Seeded(3))


def of_all(made: Contributions) -> set[bytes]:
    return {made.of(client).tobytes() for client in range(CLIENTS)}


def test_each_client_draws_its_own_rows() -> None:
    file = file_of("oue", unit="row", rows=5)
    assert len(of_all(contributions(file, 50))) == CLIENTS
    counts = contributions(file, 50).counts(range(CLIENTS))
    assert counts.sum() == 5 * CLIENTS
    assert np.count_nonzero(counts) > 15


def test_each_client_rounds_and_fills_up_by_itself() -> None:
    assert len(of_all(contributions(file_of("central_gaussian"), 1))) == CLIENTS
    median = {"ask": "quantiles", "column": "x", "range": [0.0, 9.0], "at": [0.5], "cells": 8}
    filled = contributions(file_of("oue", median, unit="row", rows=400), 1)
    assert len(of_all(filled)) > 1


@pytest.mark.parametrize("protection", ["rr", "oue"])
def test_each_client_has_noise_of_its_own(protection: str) -> None:
    file = file_of(protection, client="who")
    data = {"x": np.full(CLIENTS, 3.0), "who": np.arange(CLIENTS)}
    listening = Listening(file, load(file, data))
    Asking(file, listening).run()
    assert len(set(listening.reports)) == len(listening.reports) == CLIENTS


@pytest.mark.parametrize("fidelity", ["per_client", "aggregate"])
def test_each_round_has_draws_of_its_own(fidelity: str) -> None:
    file = file_of("oue", fidelity=fidelity)
    data = {"x": np.full(90, 3.0), "who": np.arange(90)}
    simulator, layout = Simulator(file, load(file, data)), Schedule(file).layout(Step(1))
    carriage = Carriage(make_protection(file, layout.dimension, 1, Participants(90)))
    drawn = []
    for number in (1, 2, 1):
        made: Any = simulator.drawn(Step(number), layout, carriage, range(90))
        if made is None:
            made = simulator.carrier(Step(number), layout, carriage)._entropy.words(4)  # type: ignore[attr-defined]
        drawn.append(made.tolist())
    assert drawn[0] == drawn[2] != drawn[1]


@pytest.mark.parametrize(
    ("question", "width"),
    [
        ({"ask": "mean"}, 2),
        ({"ask": "variance"}, 3),
        ({"ask": "correlation", "other": "who", "other_range": [0.0, 5.0]}, 9),
    ],
)
def test_a_mean_needs_one_draw_of_each_number_and_a_square_two(
    question: dict[str, Any], width: int
) -> None:
    asked = {"column": "x", "range": [0.0, 50.0], **question}
    file = file_of("rr", asked, client=None)
    assert Schedule(file).layout(Step(1)).dimension == width
