"""The threshold of secure aggregation that follows from the number of clients."""

from __future__ import annotations

from typing import Any

import pytest

from fedveil.protections.base import Cohort
from fedveil.protections.pw_settings import PWEncryptSettings
from fedveil.protections.secure_sum_settings import (
    SPARSE_THRESHOLD,
    shared_weaker,
    threshold_reachable,
    threshold_safe,
)


@pytest.mark.parametrize(
    ("clients", "options", "threshold"),
    [
        (3, {}, 2), (4, {}, 3), (10, {}, 7), (50, {}, 34), (100, {}, 67), (1000, {}, 667),
        (50, {"share_secrets_ratio": 0.5}, 17), (50, {"neighbours": 11}, 9),
        (5000, {"neighbours": "complete"}, 3334), (5000, {"active_security": True}, 3334),
        (1001, {}, 80), (50, {"reconstruct_secrets_threshold": 5}, 5),
    ],
)  # fmt: skip
def test_a_threshold_that_is_left_out_follows_from_the_clients(
    clients: int, options: dict[str, Any], threshold: int
) -> None:
    settings = PWEncryptSettings(**options)
    assert settings.threshold(clients) == threshold
    cohort = Cohort(2 * clients, clients)
    assert threshold_reachable(settings, cohort) is None
    if "reconstruct_secrets_threshold" not in options and clients != 1001:
        written = settings.model_copy(update={"reconstruct_secrets_threshold": threshold})
        assert threshold_safe(written, cohort) is None or clients < 5


@pytest.mark.parametrize("clients", [1001, 1438, 6000, 100_003, 1 << 20])
def test_the_default_threshold_has_a_sparse_graph_for_any_number_of_clients(clients: int) -> None:
    degree = PWEncryptSettings().graph_degree(clients)
    assert degree is not None
    assert SPARSE_THRESHOLD < degree < clients
    assert degree + 1 < 2 * SPARSE_THRESHOLD


@pytest.mark.parametrize("clients", [1, 2])
def test_two_clients_have_no_sum_that_hides_one(clients: int) -> None:
    said = threshold_reachable(PWEncryptSettings(), Cohort(clients, clients))
    assert said is not None
    assert said.startswith("share_secrets_ratio = ")


def test_a_pin_is_for_the_clients_that_it_was_made_for() -> None:
    """A server that names ten clients cannot lower the threshold of a client that expects 100."""
    asked, pinned = PWEncryptSettings(), PWEncryptSettings()
    assert shared_weaker(asked, pinned, 100, 100) is None
    said = shared_weaker(asked, pinned, 10, 100)
    assert said == "7 clients reconstruct a secret, at least 67 are demanded"
