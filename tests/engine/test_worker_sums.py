"""Sums of reports that workers make, and the memory in which they are handed over."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedveil.base.message import encode
from fedveil.engine.executors.client_side import Made
from fedveil.engine.executors.reports import Folding, encoded, merge_sums
from fedveil.engine.executors.shared_block import SharedBlock
from fedveil.protections.base import JobContext, RoundContext
from fedveil.protections.catalog import POSITIONS, build
from fedveil.rounds.outcomes import Effort, Folded, Refused, Report, Withheld
from round_parts import ROUND, client_half, server_half

LENGTH = 30
MODEL = np.zeros(LENGTH, np.float32)
COHORT = [1, 2, 3, 4]


def protection() -> Any:
    return build(
        "not_encrypt", POSITIONS["not_encrypt"].settings_type(),
        JobContext("by_size", LENGTH, len(COHORT), rounds=1),
    )  # fmt: skip


def report(client: int) -> dict[str, Any]:
    """Return the report of an update with ordinary entries, or with large ones for client 3."""
    update = np.linspace(-1, client, LENGTH).astype(np.float32) * (2.0**20 if client == 3 else 1)
    half = client_half(protection(), client, MODEL, examples=client + 2)
    return dict(half.respond({"round": ROUND}, update))


@pytest.mark.parametrize(("room", "apart"), [(10_000, 0), (8 * LENGTH * 2 + 7, 1), (0, 3)])
def test_a_workers_sum_is_merged_however_much_of_it_fits_the_shared_memory(
    room: int, apart: int
) -> None:
    made, memory = protection(), np.full(10_000, 255, np.uint8)
    folding = Folding(made, MODEL)
    folding.open(RoundContext(COHORT[:3], ROUND, np.ones(LENGTH, np.float32)))
    for client in (1, 2, 3):
        message = report(client)
        answer = folding.fold(Made(client, message))
        assert answer == Folded(client, len(encode(message)), effort=answer.effort)
        assert answer.effort.aggregation_s > 0
    pickled, places = folding.sums(memory[:room])
    assert sum(isinstance(place, bytes) for place in places) == apart
    target, whole = (server_half(made, COHORT, MODEL) for _ in range(2))
    target.receive(4, report(4))
    for client in COHORT:
        whole.receive(client, report(client))
    merge_sums(target, pickled, places, memory)
    assert target.reports == 4
    assert target.aggregate().update.tobytes() == whole.aggregate().update.tobytes()
    assert folding.take().reports == 0


def test_a_worker_tells_a_refused_report_from_one_that_was_not_made() -> None:
    folding = Folding(protection(), MODEL)
    folding.open(RoundContext(COHORT[:3], ROUND, MODEL))
    refused = folding.fold(Made(9, report(2)))
    assert refused == Refused(9, len(encode(report(2))), "unknown sender", effort=refused.effort)
    withheld = Withheld(1, "why")
    assert folding.fold(withheld) is encoded(withheld) is withheld
    sent = encoded(Made(2, report(2)))
    assert isinstance(sent, Report)
    assert (sent.client, bytes(sent.data)) == (2, encode(report(2)))


def test_arrays_of_a_shared_block_lie_apart() -> None:
    arrays = {
        "a": np.arange(3, dtype=np.uint8), "b": np.arange(10.0).reshape(2, 5),
        "nothing": np.empty((0, 4), np.int16), "c": np.arange(33, dtype=np.float32),
    }  # fmt: skip
    block = SharedBlock.of(arrays)
    for name, array in arrays.items():
        found = block.array(name)
        assert (found.dtype, found.shape) == (array.dtype, array.shape)
        assert found.tolist() == array.tolist()
        assert block.spans[name].offset % 64 == 0
    block.array("b")[:] = -1.0
    again = SharedBlock(block.descriptor, block.spans)
    assert again.array("b").tolist() == [[-1.0] * 5] * 2
    assert [again.array(name).tolist() for name in ("a", "c")] == [
        arrays["a"].tolist(), arrays["c"].tolist(),
    ]  # fmt: skip
    block.close()


@pytest.mark.parametrize(("client", "kind"), [(2, Folded), (9, Refused)])
def test_an_answer_keeps_the_effort_of_its_client_when_it_is_added_up(
    client: int, kind: type[Folded | Refused]
) -> None:
    folding = Folding(protection(), MODEL)
    folding.open(RoundContext(COHORT[:3], ROUND, MODEL))
    effort = Effort(2.0, 0.5, warnings=["RuntimeWarning: few"])
    answer = folding.fold(Made(client, report(2), effort=effort))
    assert isinstance(answer, kind)
    assert (answer.effort.training_s, answer.effort.protection_s) == (2.0, 0.5)
    assert answer.effort.warnings == ["RuntimeWarning: few"]
    assert answer.effort.aggregation_s > 0


def test_the_time_to_encode_a_report_is_the_protections() -> None:
    sent = encoded(Made(2, report(2), effort=Effort(2.0, 0.5)))
    assert sent.effort.training_s == 2.0
    assert sent.effort.protection_s > 0.5
    assert sent.effort.aggregation_s == 0
