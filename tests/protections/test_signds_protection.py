"""The protection signds: both halves, the source's worked table, hostile reports and lengths."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedveil.base.message import Message, decode, encode
from fedveil.entropy import Seeded
from fedveil.errors import ClientWithheld, FedveilWarning, InvalidValue, ReportRejected, RoundVoid
from fedveil.mechanisms.signds.dimension_selection import SignDS
from fedveil.mechanisms.signds.index_code import encode_indices
from fedveil.protections.base import Aggregate, JobContext, RoundContext, State
from fedveil.protections.signds import SignDSProtection, SignDSSettings
from round_parts import client_half, report_of, server_half

pytestmark = pytest.mark.filterwarnings("ignore::fedveil.errors.FedveilWarning")

#: The source's table: client -> (selected dimensions counted from 1, sign).
TABLE = {1: ([1, 5, 8], 1), 2: ([2, 3, 4], -1), 3: ([3, 6, 7], 1)}
AVERAGE = [1 / 3, -1 / 3, 0, -1 / 3, 1 / 3, 1 / 3, 1 / 3, 1 / 3]


def protection(dimension: int = 8, clients: int = 3, **settings: object) -> SignDSProtection:
    context = JobContext("equal", dimension, clients_per_round=clients, rounds=10)
    return SignDSProtection(SignDSSettings(**settings), context)  # type: ignore[arg-type]


def small(**settings: object) -> SignDSProtection:
    return protection(sign_k=0.25, sign_dim_out=3, **settings)


def server_round(made: SignDSProtection, cohort: list[int], state: State | None = None) -> Any:
    return server_half(made, cohort, np.zeros(made.dimension), state=state, number=4)


def respond(
    made: SignDSProtection, opening: Message, update: np.ndarray, client: int = 1
) -> Message:
    return report_of(client_half(made, client, np.zeros(made.dimension), number=4), opening, update)


def report(indices: list[int], sign: int, *, dimension: int = 8, **fields: object) -> Message:
    """Return a report over the wire, with dimensions counted from 1 as in the table."""
    code = encode_indices(np.array(indices) - 1, dimension)
    return decode(encode({"round": 4, "sign": sign, "indices": code, **fields}))  # type: ignore[dict-item]


def table_result(made: SignDSProtection, state: State, bits: list[bool] | None) -> Aggregate:
    server = server_round(made, [1, 2, 3], state)
    for client, (indices, sign) in TABLE.items():
        fields = {} if bits is None else {"bit": bits[client - 1]}
        server.receive(client, report(indices, sign, **fields))
    assert server.advance() is None
    return server.aggregate()


# --- the aggregate ---------------------------------------------------------------------------


def test_the_sources_table_with_a_fixed_step() -> None:
    made = small(magnitude="fixed", sign_global_lr=1.0)
    assert made.initial_state() == {}
    result = table_result(made, {}, None)
    assert result.update.tolist() == AVERAGE
    assert (result.reports, result.state) == (3, {})


@pytest.mark.parametrize(
    ("phase", "bits", "phase_after"),
    [
        ("shrink", [False, True, False], "shrink"),  # B = 0 leaves the shrinking estimate unchanged
        # B = 1 leaves the growing estimate unchanged and ends growth
        ("growth", [True, True, False], "shrink"),
    ],
)
def test_the_sources_table_with_an_estimated_step(
    phase: str, bits: list[bool], phase_after: str
) -> None:
    # the source's 2 * r_est * clients = 1
    state = {"estimate": 1 / 6, "phase": phase, "zeros": 0}
    result = table_result(small(sign_global_lr=77.0), state, bits)
    assert result.update.tolist() == AVERAGE
    assert result.state["estimate"] == 1 / 6
    assert result.state["phase"] == phase_after


@pytest.mark.parametrize(("bit", "phase", "factor"), [(False, "growth", 2), (True, "shrink", 0.5)])
def test_the_step_is_that_of_the_estimate_as_this_rounds_bits_moved_it(
    bit: bool, phase: str, factor: float
) -> None:
    state = {"estimate": 1 / 6, "phase": phase, "zeros": 0}
    result = table_result(small(), state, [bit] * 3)
    assert result.update == pytest.approx(factor * np.array(AVERAGE), rel=1e-15)
    assert result.state == {"estimate": factor / 6, "phase": phase, "zeros": 0}


@pytest.mark.parametrize(("with_bit", "step"), [(1, 2 * 0.5 * 20), (0, 3.0)])
def test_with_too_few_bits_the_step_is_sign_global_lr(with_bit: int, step: float) -> None:
    made = small(sign_global_lr=3.0)
    state = {"estimate": 0.5, "phase": "shrink", "zeros": 2}
    server = server_round(made, list(range(20)), state)
    for client in range(20):
        fields = {"bit": False} if client < with_bit else {}
        server.receive(client, report([1, 2, 3], 1, **fields))
    result = server.aggregate()
    assert result.update[:3].tolist() == [step] * 3
    assert result.update[3:].tolist() == [0.0] * 5
    assert result.state == {"estimate": 0.5, "phase": "shrink", "zeros": 2 + with_bit}


def test_twenty_one_reports_and_one_bit_leave_the_estimate_alone() -> None:
    state = {"estimate": 0.5, "phase": "shrink", "zeros": 0}
    server = server_round(small(sign_global_lr=3.0), list(range(21)), state)
    for client in range(21):
        server.receive(client, report([1, 2, 3], 1, **({"bit": True} if client == 0 else {})))
    result = server.aggregate()
    assert result.update[0] == 3.0
    assert result.state == state


def test_the_estimate_regrows_only_where_it_is_asked_to() -> None:
    for regrow, phase in ((False, "shrink"), (True, "growth")):
        made = small(regrow=regrow)
        state: State = {"estimate": 1.0, "phase": "shrink", "zeros": 0}
        for _ in range(5):
            state = decode(encode(table_result(made, state, [False] * 3).state))
        assert state["phase"] == phase


def test_neither_the_order_of_arrival_nor_a_tree_of_servers_changes_a_byte() -> None:
    made = protection(1000, 40, sign_k=0.2, sign_eps=20.0)
    cohort = list(range(40))
    state: State = {"estimate": 10.0, "phase": "shrink", "zeros": 0}  # so large that all bits are 1
    opening = server_round(made, cohort, state).opening()
    updates = Seeded(1).generator().standard_normal((40, 1000)).astype(np.float32)
    reports = [respond(made, opening, updates[c], c) for c in cohort]

    def result(*parts: list[int]) -> tuple[bytes, State]:
        servers = [server_round(made, sorted(part), state) for part in parts]
        for server, part in zip(servers, parts, strict=True):
            for client in part:
                server.receive(client, reports[client])
        for other in servers[1:]:
            servers[0].merge(other)
        outcome = servers[0].aggregate()
        assert outcome.reports == 40
        assert outcome.state["estimate"] == 5.0
        return outcome.update.tobytes(), outcome.state

    assert result(cohort) == result(cohort[::-1]) == result(cohort[25:], cohort[:10], cohort[10:25])


def test_merged_servers_count_all_bits_and_all_ones() -> None:
    made, state = small(), {"estimate": 1.0, "phase": "shrink", "zeros": 0}
    left, right = (server_round(made, cohort, state) for cohort in ([1], [2, 3]))
    left.receive(1, report([1, 2, 3], 1, bit=True))
    for client in (2, 3):
        right.receive(client, report([1, 2, 3], 1, bit=False))
    left.merge(right)
    assert left.aggregate().state == {"estimate": 1.0, "phase": "shrink", "zeros": 1}


def test_a_round_without_reports_is_void() -> None:
    with pytest.raises(RoundVoid):
        server_round(small(), [1, 2, 3]).aggregate()


def test_the_aggregate_points_where_the_clients_moved() -> None:
    made = protection(2000, 200, sign_k=0.1, sign_eps=100.0)
    direction = Seeded(2).generator().standard_normal(2000).astype(np.float32)
    server = server_round(made, list(range(200)))
    for client in range(200):
        noise = Seeded(3, client).generator().standard_normal(2000).astype(np.float32)
        server.receive(client, respond(made, server.opening(), direction + 0.1 * noise, client))
    update = server.aggregate().update
    cosine = update @ direction / np.linalg.norm(update) / np.linalg.norm(direction)
    assert cosine > 0.6


# --- the client's half -----------------------------------------------------------------------


def test_a_report_holds_what_the_mechanism_selected_and_the_bit_of_its_magnitude() -> None:
    made = protection(5000, sign_k=0.2, sign_mag_eps=100.0)
    opening = server_round(made, [1]).opening()
    assert opening == {"round": 4, "estimate": math.exp(-5), "phase": "growth"}
    for scale, bit in ((1.0, False), (1e-6, True)):  # at eps = 100 no bit is ever flipped
        update = (Seeded(4).generator().standard_normal(5000) * scale).astype(np.float32)
        message = respond(made, opening, update)
        expected = SignDS(0.2).select(update, Seeded(0, "client", 1))
        assert message == {
            "round": 4,
            "sign": expected.sign,
            "indices": encode_indices(expected.indices, 5000),
            "bit": bit,
        }


def test_the_bit_that_leaves_is_perturbed() -> None:
    """At eps = 1 a lie has probability 1 / (1 + e): about 108 of 400 reports lie."""
    made = small(sign_mag_eps=1.0)
    opening = server_round(made, [1]).opening()
    for scale, truth in ((10.0, False), (1e-6, True)):
        update = np.arange(1, 9, dtype=np.float32) * np.float32(scale)
        told = [respond(made, opening, update, client)["bit"] for client in range(400)]
        assert 70 < told.count(not truth) < 150  # beyond four standard deviations on either side


def test_with_a_fixed_step_no_bit_is_sent_or_accepted() -> None:
    made = small(magnitude="fixed")
    server = server_round(made, [1, 2], {})
    assert server.opening() == {"round": 4}
    message = respond(made, server.opening(), np.arange(8, dtype=np.float32))
    assert set(message) == {"round", "sign", "indices"}
    server.receive(1, message)
    with pytest.raises(ReportRejected, match="fields"):
        server.receive(2, {**message, "bit": True})


@pytest.mark.parametrize("special", [math.nan, math.inf])
def test_an_update_that_is_not_finite_is_withheld(special: float) -> None:
    made = small()
    update = np.zeros(8, np.float32)
    update[3] = special
    with pytest.raises(ClientWithheld, match="NaN or infinity"):
        respond(made, server_round(made, [1]).opening(), update)


@pytest.mark.parametrize(
    "change",
    [
        {"round": 5},
        {"round": "4"},
        {"estimate": math.nan},
        {"estimate": -1.0},
        {"estimate": 1},
        {"phase": "fast"},
        {"phase": 0},
    ],
)
def test_a_client_withholds_from_a_wrong_opening(change: dict[str, object]) -> None:
    made = small()
    opening = {**server_round(made, [1]).opening(), **change}
    with pytest.raises(ClientWithheld):
        respond(made, opening, np.zeros(8, np.float32))  # type: ignore[arg-type]


def test_a_client_withholds_an_update_of_another_model() -> None:
    made = small()
    with pytest.raises(ClientWithheld, match="not of the model's length"):
        respond(made, server_round(made, [1]).opening(), np.zeros(9, np.float32))


@pytest.mark.parametrize(("dimension", "warns"), [(250, True), (251, False)])
def test_a_small_topk_set_warns_on_the_client(dimension: int, warns: bool) -> None:
    made = protection(dimension, sign_k=0.2)
    opening = server_round(made, [1]).opening()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        respond(made, opening, np.arange(dimension, dtype=np.float32))
    sentence = "protection.signds.sign_k = 0.2 of 250 dimensions gives a top-k set of 50"
    texts = [str(w.message) for w in caught if w.category is FedveilWarning]
    assert [text.startswith(sentence) for text in texts] == [True] * warns


def test_more_output_dimensions_than_the_model_has_are_refused() -> None:
    with pytest.raises(InvalidValue, match=r"dim_out = 50 is outside \[0, 8\]"):
        server_round(protection(8, sign_dim_out=50), [1])


def test_an_audit_knows_what_each_choice_of_a_report_told() -> None:
    """The update rises: its largest entries are the last, and those of the other sign the first."""
    made, update = small(sign_eps=8.0, sign_mag_eps=0.5), np.arange(-4, 4, dtype=np.float32)
    assert [(choice.claim, choice.count) for choice in made.choices()] == [(8, 1), (0, 1), (0.5, 1)]
    # The mean of the two largest is 2.5 for the sign 1, and 3.5 for the sign -1.
    state: State = {"estimate": 3.0, "phase": "shrink", "zeros": 0}
    context = RoundContext([1], 4, np.zeros(8, np.float32), state)
    for sign, indices, bit, told in (
        (1, [6, 7, 8], True, [1, 1, 1]),
        (-1, [6, 7, 8], True, [0, 0, 0]),
        (-1, [1, 2, 3], False, [1, 0, 1]),
    ):
        truths = made.reading(context, report(indices, sign, bit=bit)).truths
        assert truths is not None
        assert [int(one) for (one,) in truths(update)] == told


# --- what it costs ---------------------------------------------------------------------------


def test_the_ledger_is_told_of_the_selection_and_the_bit() -> None:
    def costs(**settings: object) -> list[tuple[float, float, str, int]]:
        made = small(**settings)
        spent = made.spending(made.initial_state())
        return [(s.loss.epsilon, s.loss.delta, s.loss.per, s.count) for s in spent]

    assert costs(sign_eps=8.0) == [(8.0, 0.0, "update", 1), (8.0, 0.0, "bit", 1)]
    assert costs(sign_eps=8.0, sign_mag_eps=0.5)[1] == (0.5, 0.0, "bit", 1)
    assert costs(sign_eps=8.0, magnitude="fixed") == [(8.0, 0.0, "update", 1)]


@given(st.integers(1, 30_000), st.integers(1, 50), st.integers(0, 2**31), st.data())
def test_a_whole_report_stays_within_its_bytes(
    dimension: int, dim_out: int, number: int, data: st.DataObject
) -> None:
    dim_out = min(dim_out, dimension)
    start = data.draw(st.integers(0, dimension - dim_out))
    stride = (dimension - start) // dim_out
    message = {
        "round": number,
        "sign": 1,
        "bit": True,
        "indices": encode_indices(start + stride * np.arange(dim_out), dimension),
    }
    limit = 1.1 * math.log2(math.comb(dimension, dim_out)) / 8 + 48
    assert len(encode(message)) <= limit


def test_lenets_report_is_a_thousandth_of_its_update() -> None:
    made = protection(66_521, sign_k=0.2)
    update = Seeded(5).generator().standard_normal(66_521).astype(np.float32)
    size = len(encode(respond(made, server_round(made, [1]).opening(), update)))
    assert size <= 1.1 * math.log2(math.comb(66_521, 238)) / 8 + 48
    assert size < 0.0013 * update.nbytes
    # 149 dimensions, the source's number, take 656 bytes there
    assert len(encode(report(list(range(1, 60_000, 405))[:149], 1, dimension=66_521))) < 235


# --- hostile reports -------------------------------------------------------------------------

GOOD = report([1, 5, 8], 1, bit=True)
BAD: list[tuple[str, Callable[[], tuple[int, Message]]]] = [
    ("unknown sender", lambda: (9, GOOD)),
    ("repeated sender", lambda: (1, GOOD)),
    ("wrong round", lambda: (2, {**GOOD, "round": 3})),
    ("field round", lambda: (2, {**GOOD, "round": True})),
    ("fields are missing", lambda: (2, {k: v for k, v in GOOD.items() if k != "sign"})),
    ("fields are missing or unknown", lambda: (2, {**GOOD, "more": 1})),
    ("field sign", lambda: (2, {**GOOD, "sign": 0})),
    ("field sign", lambda: (2, {**GOOD, "sign": 2})),
    ("field sign", lambda: (2, {**GOOD, "sign": True})),
    ("field bit", lambda: (2, {**GOOD, "bit": 1})),
    ("field indices", lambda: (2, {**GOOD, "indices": np.array([0, 4, 7])})),
    ("not the code of a set", lambda: (2, {**GOOD, "indices": GOOD["indices"] + b"\0"})),
    ("not the code of a set", lambda: (2, {**GOOD, "indices": b"\xff" * 3})),
    ("impossible length", lambda: (2, {**GOOD, "indices": bytes(10**6)})),
]


@pytest.mark.parametrize(("reason", "bad"), BAD)
def test_a_bad_report_is_rejected_and_changes_nothing(
    reason: str, bad: Callable[[], tuple[int, Message]]
) -> None:
    made = small()
    server, undisturbed = server_round(made, [1, 2, 3]), server_round(made, [1, 2, 3])
    server.receive(1, GOOD)
    undisturbed.receive(1, GOOD)
    client, message = bad()
    with pytest.raises(ReportRejected, match=reason):
        server.receive(client, message)
    assert server.reports == 1
    for half in (server, undisturbed):
        half.receive(3, GOOD)
    outcome, expected = server.aggregate(), undisturbed.aggregate()
    assert outcome.update.tobytes() == expected.update.tobytes()
    assert outcome.state == expected.state


REJECTED: list[dict[str, object]] = [{"indices": b"\xff" * 3}, {"sign": 0}, {"more": 1}]


@pytest.mark.parametrize("change", REJECTED)
def test_the_bit_of_a_rejected_report_is_no_vote(change: dict[str, Any]) -> None:
    """One of two accepted bits is 1, which is no majority. With the rejected bit it would be."""
    state: State = {"estimate": 0.5, "phase": "shrink", "zeros": 1}
    server = server_round(small(), [1, 2, 3], state)
    server.receive(1, report([1, 2, 3], 1, bit=True))
    with pytest.raises(ReportRejected):
        server.receive(2, {**GOOD, **change})
    server.receive(3, report([4, 5, 6], -1, bit=False))
    assert server.aggregate().state == {"estimate": 0.5, "phase": "shrink", "zeros": 2}


@pytest.mark.parametrize("change", REJECTED)
def test_a_rejected_report_does_not_make_the_bits_enough(change: dict[str, Any]) -> None:
    """One bit in 21 reports is below 5%, so the step is `sign_global_lr`."""
    state: State = {"estimate": 0.5, "phase": "shrink", "zeros": 1}
    server = server_round(small(sign_global_lr=3.0), list(range(22)), state)
    for client in range(21):
        server.receive(client, report([1, 2, 3], 1, **({"bit": False} if client == 0 else {})))
    with pytest.raises(ReportRejected):
        server.receive(21, {**report([4, 5, 6], 1, bit=False), **change})
    result = server.aggregate()
    assert result.update.tolist() == [3.0] * 3 + [0.0] * 5
    assert result.state == state


def test_a_late_report_is_rejected() -> None:
    server = server_round(small(), [1, 2])
    server.receive(1, GOOD)
    server.advance()
    with pytest.raises(ReportRejected, match="wrong phase"):
        server.receive(2, GOOD)


def test_a_client_without_a_bit_is_no_vote() -> None:
    """Ten of twenty clients send a bit, all of them 1: a clear majority of those who voted."""
    server = server_round(
        small(), list(range(20)), {"estimate": 0.5, "phase": "shrink", "zeros": 1}
    )
    for client in range(20):
        server.receive(client, report([1, 2, 3], 1, **({"bit": True} if client < 10 else {})))
    assert server.aggregate().state == {"estimate": 0.25, "phase": "shrink", "zeros": 0}


@pytest.mark.parametrize("phase", ["growth", "shrink"])
def test_clients_are_told_the_phase_that_their_bit_depends_on(phase: str) -> None:
    made = small()
    state: State = {"estimate": 0.25, "phase": phase, "zeros": 2}
    opening = server_round(made, [1], state).opening()
    assert (opening["estimate"], opening["phase"]) == (0.25, phase)
    made.check_state(state)
    with pytest.raises(ValueError, match="fields"):
        made.check_state({**state, "more": 1})


def test_a_fixed_magnitude_has_no_state_and_an_estimated_one_needs_it() -> None:
    small(magnitude="fixed").check_state({})
    with pytest.raises(ValueError, match="fields"):
        small(magnitude="fixed").check_state({"estimate": 0.25, "phase": "shrink", "zeros": 2})
    for wrong in ({}, {"estimate": -0.25, "phase": "shrink", "zeros": 2}):
        with pytest.raises(ValueError, match=r"fields|initial"):
            small(magnitude="estimated").check_state(wrong)
