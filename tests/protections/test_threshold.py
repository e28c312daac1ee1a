"""The threshold of secure aggregation that follows from the number of clients."""

from __future__ import annotations

import re
from typing import Any

import pytest

from fedveil.errors import JobError
from fedveil.federated.job import Job
from fedveil.protections.advice import Cohort
from fedveil.protections.base import JobContext
from fedveil.protections.catalog import build
from fedveil.protections.distributed_dp_settings import (
    DistributedDPSettings,
    no_node_exceeds,
    none_unmasked,
    some_noise,
)
from fedveil.protections.pw_encrypt import PWEncryptSettings
from fedveil.protections.secure_sum_settings import (
    graph_fits,
    most_must_sign,
    shareable,
    shared_weaker,
    threshold_reachable,
    threshold_safe,
)
from fedveil.secagg import masking_graph


@pytest.mark.parametrize(
    ("clients", "options", "threshold"),
    [
        (3, {}, 2), (4, {}, 3), (10, {}, 7), (50, {}, 34), (100, {}, 67), (1000, {}, 667),
        (50, {"share_secrets_ratio": 0.5}, 17), (50, {"neighbours": 11}, 9),
        (7, {"neighbours": 6, "share_secrets_ratio": 0.7}, 4),
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


@pytest.mark.parametrize(
    ("clients", "threshold"),
    [(1001, 80), (1438, 80), (5000, 80), (20_000, 85), (100_003, 91), (1 << 20, 98)],
)
def test_the_default_threshold_has_a_sparse_graph_for_any_number_of_clients(
    clients: int, threshold: int
) -> None:
    degree = PWEncryptSettings().graph_degree(clients)
    assert PWEncryptSettings().threshold(clients) == threshold
    assert degree == masking_graph.automatic(clients, threshold)
    assert degree is not None
    assert threshold < degree < clients
    assert degree + 1 < 2 * threshold
    assert threshold == 80 or masking_graph.automatic(clients, threshold - 1) is None


@pytest.mark.parametrize("clients", [1, 2])
def test_two_clients_have_no_sum_that_hides_one(clients: int) -> None:
    said = threshold_reachable(PWEncryptSettings(), Cohort(clients, clients))
    assert said is not None
    assert "secure aggregation needs at least 3" in said


def test_a_pin_is_for_the_clients_that_it_was_made_for() -> None:
    """A server that states ten clients cannot lower the threshold of a client that expects 100."""
    asked, pinned = PWEncryptSettings(), PWEncryptSettings()
    assert shared_weaker(asked, pinned, 100, 100) is None
    said = shared_weaker(asked, pinned, 10, 100)
    assert said == "7 clients reconstruct a secret, but at least 67 are required"


def settings(**options: Any) -> PWEncryptSettings:
    if "threshold" in options:
        options["reconstruct_secrets_threshold"] = options.pop("threshold")
    if "ratio" in options:
        options["share_secrets_ratio"] = options.pop("ratio")
    return PWEncryptSettings(**options)


@pytest.mark.parametrize(
    ("asked", "pinned", "clients", "expected", "said"),
    [
        ({"threshold": 6}, {"threshold": 6}, 12, None, "6 of 12 clients reconstruct a secret, but"),
        ({"threshold": 7}, {"threshold": 6}, 12, None, None),
        ({"threshold": 8}, {"threshold": 7}, 12, 10, "8 of 12 .*, but 7 of 10 are required"),
        (
            {"threshold": 7, "neighbours": 8}, {"threshold": 7, "neighbours": 10}, 30, 30,
            "a client has 8 neighbours, but at least 10 are required",
        ),
        ({"threshold": 7, "neighbours": 10}, {"threshold": 7, "neighbours": 10}, 30, 30, None),
        # The pinned graph is complete where a round has fewer clients than its neighbours.
        ({"threshold": 21}, {"threshold": 7, "neighbours": 40}, 30, 30, None),
        (
            {"threshold": 21, "neighbours": 28}, {"threshold": 21}, 30, 30,
            "a client has 28 neighbours, but at least 29 are required",
        ),
        # The pinned graph is of the 6,000 clients that share secrets, not of all 8,000.
        (
            {"threshold": 81, "neighbours": 141, "ratio": 0.75}, {"ratio": 0.75}, 8000, 8000,
            "a client has 141 neighbours, but at least 142 are required",
        ),
        (
            {"threshold": 81, "neighbours": 142, "ratio": 0.75}, {"ratio": 0.75}, 8000, 8000, None,
        ),
    ],
)  # fmt: skip
def test_a_pin_holds_at_its_border(
    asked: Any, pinned: Any, clients: int, expected: int | None, said: str | None
) -> None:
    why = shared_weaker(settings(**asked), settings(**pinned), clients, expected)
    assert why is None if said is None else re.match(said, why or ""), why


@pytest.mark.parametrize(
    ("clients", "options", "colluding"),
    [
        (10, {}, 6), (10, {"active_security": True}, 3), (20, {"ratio": 0.5}, 6),
        (20, {"ratio": 0.5, "active_security": True}, 3), (5000, {"ratio": 0.5}, 500),
        (1 << 20, {"threshold": 99}, 209_715), (1 << 20, {"threshold": 90}, 89),
        ((1 << 20) + 1, {"threshold": 90}, None),
        (1438, {"neighbours": 4}, 1), (1438, {"neighbours": 10}, 3),
        (1438, {"neighbours": 140, "threshold": 80}, 287), (15, {"neighbours": 14}, 10),
    ],
)  # fmt: skip
def test_how_many_may_collude_follows_from_those_that_share(
    clients: int, options: Any, colluding: int | None
) -> None:
    assert settings(**options).most_colluding(clients) == colluding


@pytest.mark.parametrize(
    ("rule", "options", "clients", "said"),
    [
        (threshold_safe, {"threshold": 5}, 10, r"half of the 10 clients that .* Above 5, with act"),
        (threshold_safe, {"threshold": 6}, 9, r"thirds of the 9 clients that .* Above 6, with act"),
        (threshold_safe, {"threshold": 7}, 9, None),
        (threshold_safe, {"threshold": 4, "neighbours": 8}, 20, r"half of the 9 clients of a"),
        (threshold_safe, {"threshold": 4, "ratio": 0.5}, 18, "half of the 9 clients .*Above 4"),
        (threshold_reachable, {"threshold": 9}, 10, None),
        (threshold_reachable, {"threshold": 10}, 10, r"is outside \[1, 10\)"),
        (threshold_reachable, {"threshold": 5, "ratio": 0.5}, 10, r"is outside \[1, 5\)"),
        (graph_fits, {"neighbours": 9}, 10, None),
        (graph_fits, {"neighbours": 10}, 10, r"is outside \[2, 10\): below the clients a round"),
        (graph_fits, {"neighbours": 1}, 10, "at least 2, because the sums of pairs could be unm"),
        (graph_fits, {"neighbours": 2}, 10, None),
        (graph_fits, {"neighbours": 8, "threshold": 8}, 20, None),
        (graph_fits, {"neighbours": 8, "threshold": 9}, 20, "below reconstruct_secrets_thr"),
        (graph_fits, {"neighbours": 8, "active_security": True}, 20, "needs complete or auto"),
        (most_must_sign, {"threshold": 6, "active_security": True}, 11, None),
        (most_must_sign, {"threshold": 5, "active_security": True}, 11, "half of the 11 .*ve 5"),
        (most_must_sign, {"threshold": 6, "active_security": True}, 12, "half of the 12 .*ve 6"),
        (most_must_sign, {"threshold": 6, "ratio": 0.5, "active_security": True}, 22, None),
        (most_must_sign, {"threshold": 2}, 12, None),
        (most_must_sign, {"active_security": True}, 3, None),
        (shareable, {}, 1 << 20, None),
        (shareable, {}, (1 << 20) + 1, "lets 1048577 of 1048577 clients"),
        (shareable, {"ratio": 0.5}, 1 << 21, None),
    ],
)  # fmt: skip
def test_a_rule_holds_at_its_border(
    rule: Any, options: Any, clients: int, said: str | None
) -> None:
    why = rule(settings(**options), Cohort(10 * clients, clients))
    assert why is None if said is None else re.search(said, why or ""), why


@pytest.mark.parametrize("protection", ["pw_encrypt", "distributed_dp"])
def test_a_server_cannot_lower_the_threshold_of_signed_rounds(protection: str) -> None:
    """The job comes from the server. At half of the clients, it could open an update by lying."""
    block = {"active_security": True, "reconstruct_secrets_threshold": 7}
    clients = {"number": 26, "fraction": 0.5}
    Job(clients=clients, protection={"name": protection, protection: block})
    block["reconstruct_secrets_threshold"] = 6
    with pytest.raises(JobError, match=r"threshold = 6 is at most half of the 13 clients that"):
        Job(clients=clients, protection={"name": protection, protection: block})


def test_a_written_threshold_decides_the_sparse_graph() -> None:
    degree = settings(threshold=100).graph_degree(5000)
    assert degree == masking_graph.automatic(5000, 100) != masking_graph.automatic(5000, 80)
    assert settings(threshold=80).graph_degree(20_000) is None


@pytest.mark.parametrize(
    ("options", "clients", "least", "dishonest"),
    [
        ({"dropout_tolerance": 0.29}, 100, 71, 0),  # 0.29 * 100 is below 29 in floating point
        ({"dropout_tolerance": 0.25}, 10, 8, 0),
        ({"assume_honest": 0.9}, 10, 9, 1),  # (1 - 0.9) * 10 is below 1 in floating point
        ({"assume_honest": 0.7, "share_secrets_ratio": 0.5}, 20, 9, 6),
        ({"dropout_tolerance": 0.5, "assume_honest": 0.5}, 10, 5, 5),
    ],
)
def test_all_dishonest_clients_of_a_round_may_share_secrets(
    options: Any, clients: int, least: int, dishonest: int
) -> None:
    made = DistributedDPSettings(**options)
    assert (made.least_survivors(clients), made.dishonest(clients)) == (least, dishonest)
    assert (some_noise(made, Cohort(99, clients)) is None) == (least > dishonest)


@pytest.mark.parametrize(
    ("options", "clients", "dishonest", "said"),
    [
        ({"assume_honest": 0.4}, 10, 6, None),
        ({"assume_honest": 0.3}, 10, 7, "expects that 7 of 10 .*threshold = 7 at most 6 may"),
        ({"assume_honest": 0.1}, 10, 9, None),  # each client's own noise is enough
        ({"assume_honest": 0.1, "reconstruct_secrets_threshold": 3}, 11, 9, "= 3 at most 2 may"),
        ({"assume_honest": 0.7, "active_security": True}, 10, 3, None),
        ({"assume_honest": 0.6, "active_security": True}, 10, 4, "= 7 at most 3 may"),
        ({"assume_honest": 0.8}, 2718, 543, None),
        ({"assume_honest": 0.79}, 2718, 570, "expects that 570 of 2718 .* = 80 at most 543 may"),
        ({"assume_honest": 0.9, "neighbours": 6}, 70, 7, "= 5 at most 1 may"),
        (
            {"assume_honest": 0.7, "active_security": True, "reconstruct_secrets_threshold": 3},
            10, 3, "= 3 at most 0 may",
        ),
        ({"active_security": True, "reconstruct_secrets_threshold": 3}, 10, 0, None),
    ],
)  # fmt: skip
def test_the_clients_that_are_not_trusted_cannot_unmask_others(
    options: Any, clients: int, dishonest: int, said: str | None
) -> None:
    """With t shares, colluding clients and the server would read single vectors."""
    made = DistributedDPSettings(dropout_tolerance=0.03, **options)
    assert made.dishonest(clients) == dishonest
    why = none_unmasked(made, Cohort(99 + clients, clients))
    assert why is None if said is None else re.search(said, why or ""), why


@pytest.mark.parametrize(
    ("honest", "clients", "most", "said"),
    [
        (1.0, 10, 3, None),  # every operator is trusted
        (0.95, 10, 3, None),  # which distrusts half a client
        (0.9, 10, 1, None),
        (0.9, 10, 2, r"that 1 of 10 .*clients_per_node = 2\. Use 0\.8 or less"),
        (0.71, 10, 3, r"that 2 of 10 .*clients_per_node = 3\. Use 0\.7 or less"),
        (0.7, 10, 3, None),
        (0.7, 13, 4, r"that 3 of 13 .*clients_per_node = 4\. Use 0\.692 or less"),
        (0.692, 13, 4, None),
        (0.5, 10, 40, r"that 5 of 10 .*clients_per_node = 40\. Use 1\.0 to trust"),
    ],
)
def test_one_operator_has_no_more_clients_than_are_distrusted(
    honest: float, clients: int, most: int, said: str | None
) -> None:
    """A dishonest operator takes the noise of all clients on its node out of the sum."""
    made = DistributedDPSettings(assume_honest=honest)
    assert no_node_exceeds(made, Cohort(None, None, most)) is None
    why = no_node_exceeds(made, Cohort(99 + clients, clients, most))
    assert why is None if said is None else re.search(said, why or ""), why


def test_a_job_compares_its_nodes_with_the_clients_that_it_distrusts() -> None:
    data: dict[str, Any] = {"clients": {"number": 30, "fraction": 0.5}}
    data["protection"] = {"name": "distributed_dp", "distributed_dp": {"assume_honest": 0.8}}
    assert Job(**data, deployment={"clients_per_node": 3}).cohort == Cohort(30, 15, 3)
    with pytest.raises(JobError, match=r"assume_honest = 0\.8 expects that 3 of 15 clients"):
        Job(**data, deployment={"clients_per_node": 4})


def test_the_graph_is_of_the_clients_that_share_secrets() -> None:
    for clients, ratio, sharing, hood in ((1800, 0.5, 900, 900), (8000, 0.75, 6000, 143)):
        settings = PWEncryptSettings(share_secrets_ratio=ratio)
        made: Any = build("pw_encrypt", settings, JobContext("equal", 6, clients, rounds=2))
        terms = made.terms(3)
        assert (terms.round, terms.length, terms.sharing) == (3, made.length, sharing)
        assert terms.neighbours == settings.graph_degree(sharing) != settings.graph_degree(clients)
        assert terms.threshold == settings.threshold(clients)
        assert settings.neighbourhood(clients) == hood
