"""Plain averaging, and the checks that all one-report protections share."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedveil.base.message import encode
from fedveil.errors import ClientWithheld, InvalidValue, ReportRejected, RoundVoid
from fedveil.privacy.loss import PrivacyLoss
from fedveil.protections.base import JobContext, Spending, Weighting
from fedveil.protections.catalog import POSITIONS, find
from fedveil.protections.not_encrypt import NotEncrypt, NotEncryptServerRound, NotEncryptSettings
from round_parts import client_half, report_of, server_half

MODEL = np.zeros(3, np.float32)


def protection(weighting: Weighting = "by_size", most: int = 65_535) -> NotEncrypt:
    return NotEncrypt(
        NotEncryptSettings(max_examples=most),
        JobContext(weighting, dimension=3, clients_per_round=4, rounds=1),
    )


def server(weighting: Weighting = "by_size", cohort: tuple[int, ...] = (1, 2, 3, 4)) -> Any:
    return server_half(protection(weighting), cohort, MODEL)


def report(client: int, update: Any, examples: int, weighting: Weighting = "by_size") -> Any:
    half = client_half(protection(weighting), client, MODEL, examples=examples)
    return report_of(half, {"round": 7}, update)


def test_weighted_and_equal_mean() -> None:
    updates = {1: ([1, 0, 2], 1), 2: ([0, 4, 2], 3)}
    for weighting, expected in (("by_size", [0.25, 3, 2]), ("equal", [0.5, 2, 2])):
        half = server(weighting)
        for client, (update, examples) in updates.items():
            half.receive(client, report(client, update, examples, weighting))
        assert half.advance() is None
        aggregate = half.aggregate()
        np.testing.assert_array_equal(aggregate.update, expected)
        assert aggregate.reports == 2


@given(
    st.lists(
        st.tuples(st.lists(st.floats(-9, 9, width=32), min_size=3, max_size=3), st.integers(1, 99)),
        min_size=1,
        max_size=8,
    ),
    st.randoms(),
    st.integers(0, 8),
)
def test_order_and_trees_change_nothing(
    updates: list[tuple[list[float], int]], shuffle: Any, cut: int
) -> None:
    reports = [(c, report(c, u, n)) for c, (u, n) in enumerate(updates)]
    flat = server(cohort=tuple(range(8)))
    for client, message in reports:
        flat.receive(client, message)
    shuffle.shuffle(reports)
    left, right = server(cohort=tuple(range(8))), server(cohort=tuple(range(8)))
    for i, (client, message) in enumerate(reports):
        (left if i < cut else right).receive(client, message)
    left.merge(right)
    assert left.aggregate().update.tobytes() == flat.aggregate().update.tobytes()
    assert left.reports == len(updates)


def test_merge_refuses_clients_counted_twice_and_other_rounds() -> None:
    one, other = server(), server()
    one.receive(1, report(1, [1, 2, 3], 1))
    other.receive(1, report(1, [1, 2, 3], 1))
    with pytest.raises(ValueError, match="share clients"):
        one.merge(other)
    with pytest.raises(ValueError, match="not belong to one round"):
        one.merge(server_half(protection(), (9,), MODEL, number=8))


GOOD = {"round": 7, "update": np.ones(3, np.float32), "examples": 5}


@pytest.mark.parametrize(
    ("client", "change", "reason"),
    [
        (9, {}, "unknown sender"),
        (1, {"round": 6}, "wrong round"),
        (1, {"round": 7.0}, "field round is missing or malformed"),
        (1, {"round": None}, "field round is missing or malformed"),
        (1, {"update": np.ones(4, np.float32)}, "field update has the wrong length"),
        (1, {"update": np.ones((3, 1), np.float32)}, "field update has the wrong length"),
        (1, {"update": np.ones(3)}, "field update has the wrong type"),
        (1, {"update": b"abc"}, "field update is missing or malformed"),
        (1, {"update": np.array([1, np.nan, 1], np.float32)}, "not finite"),
        (1, {"update": np.array([1, np.inf, 1], np.float32)}, "not finite"),
        (1, {"update": np.array([1, 3e38, 1], np.float32)}, "too large"),
        (1, {"examples": 0}, r"field examples is outside \[1, 65535\]"),
        (1, {"examples": -5}, r"field examples is outside \[1, 65535\]"),
        (1, {"examples": 65_536}, r"field examples is outside \[1, 65535\]"),
        (1, {"examples": 1 << 40}, r"field examples is outside \[1, 65535\]"),
        (1, {"examples": True}, "field examples is missing or malformed"),
        (1, {"more": 1}, "fields are missing or unknown"),
        (1, {"examples": None}, "fields are missing or unknown"),
    ],
)
def test_a_wrong_report_is_refused_and_changes_nothing(
    client: int, change: dict[str, Any], reason: str
) -> None:
    half, spared = server(), server()
    half.receive(2, report(2, [1, 2, 3], 1))
    spared.receive(2, report(2, [1, 2, 3], 1))
    message = {k: v for k, v in {**GOOD, **change}.items() if v is not None}
    with pytest.raises(ReportRejected, match=reason):
        half.receive(client, message)
    half.receive(1, GOOD)  # after a refused report, the client may still send another
    spared.receive(1, GOOD)
    assert half.aggregate().update.tobytes() == spared.aggregate().update.tobytes()


def test_what_comes_after_the_aggregate_is_refused() -> None:
    half = server()
    half.receive(1, GOOD)
    told = half.aggregate()
    with pytest.raises(ReportRejected, match="wrong phase"):
        half.receive(2, GOOD)
    for one, other in ((half, server()), (server(), half)):
        with pytest.raises(ValueError, match="has returned its aggregate"):
            one.merge(other)
    assert half.aggregate() is told


def test_repeated_sender_and_wrong_phase_are_refused() -> None:
    half = server()
    half.receive(1, GOOD)
    with pytest.raises(ReportRejected, match="repeated sender"):
        half.receive(1, GOOD)
    half.advance()
    with pytest.raises(ReportRejected, match="wrong phase"):
        half.receive(2, GOOD)
    assert half.reports == 1


def test_a_round_without_reports_is_void() -> None:
    with pytest.raises(RoundVoid, match="0 clients answered in phase report, but 1 are needed"):
        server().aggregate()


def test_a_client_answers_only_the_opening_of_its_round() -> None:
    half = client_half(protection(), 1, MODEL)
    with pytest.raises(ClientWithheld, match="not the opening"):
        half.respond({"round": 8}, MODEL)
    with pytest.raises(ClientWithheld, match="not the opening"):
        half.respond({"round": 7}, None)


def test_it_promises_nothing() -> None:
    (spending,) = protection().spending({})
    assert spending.loss.epsilon == math.inf
    assert spending.loss.per == "update"


def test_a_report_costs_the_sum_of_its_losses() -> None:
    class Costly(NotEncrypt):
        def spending(self, state: Any) -> Any:
            losses = (PrivacyLoss(0.5, 1e-6), 3), (PrivacyLoss(0.25, 4e-6), 1)
            return [Spending(*loss) for loss in losses]

    made = Costly(NotEncryptSettings(), protection().context)
    assert made.most_of_a_report() == (1.75, 7e-6)


def test_a_state_whose_cost_cannot_be_stated_is_refused() -> None:
    """A checkpoint is read before the run goes on, and not when a client is charged."""

    class Kept(NotEncrypt):
        def initial_state(self) -> Any:
            return {"eps": 1.5}

        def spending(self, state: Any) -> Any:
            return [Spending(PrivacyLoss(state["eps"]))]

    made = Kept(NotEncryptSettings(), protection().context)
    made.check_state({"eps": 0.5})
    for wrong in ({"eps": -0.5}, {"eps": "0.5"}, {}):
        with pytest.raises(ValueError, match="eps"):
            made.check_state(wrong)


def test_upload_is_the_vector_and_a_few_bytes() -> None:
    big = np.zeros(61_706, np.float32)
    half = client_half(protection(), 1, big)
    assert 4 * big.size < len(encode(half.respond({"round": 7}, big))) <= 4 * big.size + 48


def test_every_switch_position_is_found_by_name() -> None:
    for name, position in POSITIONS.items():
        assert find(name) is position
        assert position.name == name


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("later", "is neither one of not_encrypt, .* nor package.module:function"),
        ("no_such_module:Name", "there is no module no_such_module"),
        ("json:Name", "the module json has no Name"),
        ("json:dumps", "is not a class derived from fedveil.protections.base.Protection"),
    ],
)
def test_a_position_that_cannot_be_found(name: str, sentence: str) -> None:
    with pytest.raises(InvalidValue, match=f"protection = '{name}'.*{sentence}"):
        find(name)


def test_the_server_half_is_of_the_declared_type() -> None:
    assert isinstance(server(), NotEncryptServerRound)


def test_the_largest_weight_is_the_jobs() -> None:
    made = protection(most=7)
    half = client_half(made, 1, MODEL, examples=7)
    full = report_of(half, {"round": 7}, [1, 1, 1])
    server_half(made, (1,), MODEL).receive(1, full)
    with pytest.raises(ReportRejected, match=r"field examples is outside \[1, 7\]"):
        server_half(made, (1,), MODEL).receive(1, {**full, "examples": 8})
    with pytest.raises(ClientWithheld, match=r"more than .*not_encrypt\.max_examples = 7 examples"):
        client_half(made, 1, MODEL, examples=8).respond({"round": 7}, MODEL)
    equal = client_half(protection("equal", most=7), 1, MODEL, examples=8)
    assert set(equal.respond({"round": 7}, MODEL)) == {"round", "update"}
