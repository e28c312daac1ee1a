"""The state that rr and oue carry from round to round, and the states that their reports hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedveil.protections.base import JobContext
from fedveil.protections.catalog import build, find
from round_parts import client_half


@pytest.mark.parametrize("name", ["rr", "oue"])
@pytest.mark.parametrize(
    ("adaptive", "state", "sentence"),
    [
        (False, {"eps": 4.9, "spent": "0"}, "eps holds 4.9, which no round of this job uses"),
        (False, {"eps": 4.7, "spent": "0"}, "eps holds 4.7, which no round of this job uses"),
        (True, {"eps": 4.7, "spent": "0"}, "eps holds 4.7, which no round of this job uses"),
        (True, {"eps": 1e9, "spent": "0"}, "outside"),
        (True, {"eps": 4.9, "spent": "-1"}, "field spent is not an amount"),
        (True, {"eps": 4.9, "spent": "0", "stop": 1}, "stop"),
        (True, {"eps": 4.9, "spent": "0", "end": ""}, "missing or unknown"),
        (True, {"eps": 4.9, "spent": "7.5E+2", "stop": "why"}, None),
        (False, {"eps": 4.8, "spent": "0.25"}, None),
    ],
)
def test_a_state_is_one_that_a_round_of_the_job_leaves(
    name: str, adaptive: bool, state: dict[str, Any], sentence: str | None
) -> None:
    settings = find(name).settings_type(eps=4.8, adaptive=adaptive, cells=3)
    context = JobContext("equal", dimension=6, clients_per_round=5, rounds=9)
    made = build(name, settings, context)
    if sentence is None:
        made.check_state(state)
        return
    with pytest.raises(ValueError, match=sentence):
        made.check_state(state)


def test_every_part_of_a_long_vector_begins_at_its_own_weights() -> None:
    """Weights that are states are encoded without random rounding."""
    dimension = (1 << 16) + 5
    settings = find("rr").settings_type(eps=4.8, cells=1, fidelity="aggregate")
    made: Any = build("rr", settings, JobContext("equal", dimension, 5, rounds=9))
    states = np.arange(dimension) % 3 - 1
    half = client_half(made, 2, states * settings.clip, number=7)
    sent = half.respond({"round": 7, "eps": 4.8}, np.zeros(dimension, np.float32))
    assert (made.encoding(4.8).unpack(sent["states"], dimension) == states).all()
