"""Messages of steps that arrive after a privacy limit has ended a run."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedveil.base.message import Message
from fedveil.errors import ExchangeError
from fedveil.link.channel import Receive
from fedveil.vertical import VerticalJob, schedule
from fedveil.vertical.job_split import make_split, make_task
from fedveil.vertical.party_run import PartyRun
from fedveil.vertical.remote.bundle_agreement import last_message
from fedveil.vertical.rows import Order, Rows
from fedveil.vertical.schedule import SendTensor, SendWord, micro_sizes
from fedveil.vertical.split import SplitModel

WORDS = ("tensor", "ready", "commit", "abort")


def split_of(task: str) -> SplitModel:
    job = VerticalJob(task=f"vertical_parts:{task}")
    return make_split(job, make_task(job, None))


def run_with(split: SplitModel, in_flight: int, order: Order, held_out: int) -> PartyRun:
    run: Any = PartyRun.__new__(PartyRun)
    run.stopped = "the limit"
    run.setting = SimpleNamespace(split=split, job=SimpleNamespace(in_flight=in_flight))
    rows = Rows(held_out, {}, None, np.arange(held_out))
    run._parts = SimpleNamespace(order=order, rows={"test": rows})
    found: PartyRun = run
    return found


def sent(
    split: SplitModel, sender: str, rows: Sequence[int], in_flight: int, training: bool
) -> int:
    """Count the messages that `sender` sends in batches of these numbers of rows."""
    count = 0
    for size in rows:
        micros = len(micro_sizes(size, in_flight))
        program = schedule.programs(split, micros, training=training)[sender]
        count += sum(isinstance(one, SendTensor | SendWord) for one in program)
    return count


def batches(count: int, size: int) -> list[int]:
    return [min(size, count - start) for start in range(0, count, size)]


@pytest.mark.parametrize("task", ["bottoms", "u_shape"])
@pytest.mark.parametrize("in_flight", [1, 3])
@pytest.mark.parametrize(("held_out", "aside"), [(23, 0), (23, 11), (7, 29)])
def test_an_honest_peer_may_be_ahead_by_an_evaluation_and_a_calibration(
    task: str, in_flight: int, held_out: int, aside: int
) -> None:
    """Counted from the programs of the batches. A peer may end with an abort of its own."""
    split = split_of(task)
    run = run_with(split, in_flight, Order(3, 50, 5, aside), held_out)
    for peer in split.parties:
        honest = sent(split, peer, batches(held_out, 5) + batches(aside, 5), in_flight, False)
        honest += sent(split, peer, [5], in_flight, True) + 1
        assert honest <= run.most_ahead
        side, tensor, last = last_message(peer, run), {"kind": "tensor"}, {"kind": "done"}
        for answer in (None, *[tensor] * honest):
            assert side.send(answer) == Receive(peer)
        with pytest.raises(StopIteration) as end:
            side.send(last)
        assert end.value.value is last


@pytest.mark.parametrize("kind", WORDS)
def test_a_peer_that_sends_no_end_of_messages_keeps_nobody_busy(kind: str) -> None:
    split = split_of("bottoms")
    run = run_with(split, 3, Order(3, 50, 5, 11), 23)
    side = last_message("bank", run)
    for answer in (None, *[{"kind": kind}] * run.most_ahead):
        side.send(answer)
    with pytest.raises(ExchangeError, match=r"^bank sent [\d,]+ messages of steps after a privacy"):
        side.send({"kind": kind})


def test_without_a_limit_the_next_message_is_the_last_one() -> None:
    run: Any = SimpleNamespace(stopped=None)
    side = last_message("bank", run)
    next(side)
    message: Message = {"kind": "tensor"}
    with pytest.raises(StopIteration) as end:
        side.send(message)
    assert end.value.value is message
