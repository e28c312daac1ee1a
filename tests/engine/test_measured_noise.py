"""The noise that canaries measure in long reports, of which they keep some entries alone."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedveil.engine import canary_evidence
from fedveil.engine.canary_directions import Directions
from fedveil.engine.canary_evidence import LEAST_STEP, ReportEvidence
from fedveil.protections.reading import Reading

CANARIES, DIMENSION, MOVED, SIGMA = 4, 6000, 2.5, 0.3


def test_what_is_measured_at_some_entries_is_the_noise_of_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Measure single reports, two rounds, a round and the first, and two canaries."""
    monkeypatch.setattr(canary_evidence, "_KEPT", 8 * CANARIES * 700)
    directions = Directions(0, CANARIES, DIMENSION)
    included = np.array([True, False, False, True])
    seen = ReportEvidence(directions, included, MOVED, DIMENSION, ())
    noise = np.random.default_rng(5)
    for turn in (1, -1, 1):
        for number, sign in enumerate(np.where(included, 1, -1)):
            unit = turn * directions.vector(number)
            estimate = sign * MOVED * unit + noise.normal(0, SIGMA, DIMENSION)
            reading = Reading(estimate, np.ones(DIMENSION))
            seen.read(number, reading, unit, unit.astype(np.float32))
        seen.close(turn)
    two = math.sqrt(2) * SIGMA / (2 * MOVED)
    for measured, releases, sigma in (
        (seen.noise, 12, SIGMA),
        (seen.lag, 4, two / 2),  # the direction has turned round
        (seen.echo, 8, two / LEAST_STEP),
        (seen.pairs, 6, two),
    ):
        assert measured.releases == releases
        found = math.sqrt(measured.squares / releases / measured.entries)
        assert found == pytest.approx(sigma, rel=0.05)
