"""The exchange of messages with nodes: when the server asks for replies, and how many at once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, RecordDict

from fedveil.base.message import decode, encode
from fedveil.errors import MessageInvalid
from fedveil.flower import exchange as exchanging
from fedveil.flower.exchange import exchange, reported
from fedveil.flower.job import flower_engine
from fedveil.flower.records import (
    ADDRESS,
    MESSAGE,
    bundled_records,
    common_record,
    encoded_message,
    from_bundled_records,
)
from fedveil.rounds.outcomes import Refused, Report
from flower_parts import job


class Script:
    """A grid that does not take the third message, and replies to some names in each poll."""

    def __init__(self, *polls: Sequence[int]) -> None:
        self._polls, self.pulled = list(polls), list[list[int]]()
        self._due: Sequence[int] = ()

    def push_messages(self, messages: Sequence[Any]) -> list[int]:
        return [m.metadata.message_id for m in messages if m.metadata.message_id != 2]

    def pull_messages(self, names: Sequence[int]) -> list[Any]:
        if not self.pulled or names[0] <= self.pulled[-1][0]:
            self._due = self._polls.pop(0) if self._polls else ()
        self.pulled.append(list(names))
        replies = [name for name in self._due if name in names]
        return [SimpleNamespace(metadata=SimpleNamespace(reply_to_message_id=r)) for r in replies]


def test_the_pause_between_polls_grows_until_a_reply_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    now, pauses = [100.0], list[float]()

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(exchanging.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(exchanging.time, "sleep", sleep)
    grid: Any = Script([], [], [], [], [], [], [0, 9], [])
    messages: Any = [SimpleNamespace(metadata=SimpleNamespace(message_id=n)) for n in range(11)]
    found = [(at, reply is None) for at, reply in exchange(grid, messages, 3.97)]
    assert found == [(2, True), (0, False), (9, False)]
    growing = [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert pauses == pytest.approx([*growing, 0.05, 0.1, 0.2, 0.12])
    assert {len(names) for names in grid.pulled} == {1}
    assert now[0] == pytest.approx(103.97)


@pytest.mark.parametrize("timeout_s", [0.0, 0.12])
def test_replies_are_requested_once_more_when_the_time_is_over(
    timeout_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reply that arrives in the last pause is received, and one that arrives later is not."""
    now = [50.0]
    clock = SimpleNamespace(
        monotonic=lambda: now[0], sleep=lambda seconds: now.append(now.pop() + seconds)
    )
    monkeypatch.setattr(exchanging, "time", clock)
    late: Any = Script(*[[]] * (2 if timeout_s else 0), [1], [0])
    messages: Any = [SimpleNamespace(metadata=SimpleNamespace(message_id=n)) for n in range(2)]
    assert [at for at, _ in exchange(late, messages, timeout_s)] == [1]
    assert now[0] == pytest.approx(50 + timeout_s)


def test_a_reply_that_is_no_report_counts_its_bytes() -> None:
    held = ConfigRecord({"text": "a" * 300})
    reply: Any = SimpleNamespace(content=RecordDict({"other": held, "more": held}))
    refused = reported(5, reply)
    assert isinstance(refused, Refused)
    assert (refused.client, refused.size) == (5, 2 * held.count_bytes())
    reply.content = RecordDict({MESSAGE: ConfigRecord({"encoded": b"report"})})
    assert reported(6, reply) == Report(6, b"report")


def test_clients_of_a_node_share_equal_messages() -> None:
    one, other = encode({"text": "one"}), encode({"text": "other"})
    own = {client: {"summed": client} for client in (4, 7, 9)}
    records = bundled_records({4: one, 7: other, 9: one}, common_record({"round": 3}), own)
    assert sorted(decode(encoded_message(RecordDict({MESSAGE: records[MESSAGE]})))) == ["0", "1"]
    assert list(from_bundled_records(records)) == [
        (client, {"text": text}, {"round": 3, "summed": client})
        for client, text in ((4, "one"), (7, "other"), (9, "one"))
    ]
    for name in ("3x", "03", "-1", ""):
        records[ADDRESS] = ConfigRecord({"encoded": encode({name: encode({"message": 0})})})
        with pytest.raises(MessageInvalid, match="an address is no client's number"):
            list(from_bundled_records(records))


@pytest.mark.parametrize(("algorithm", "numbers"), [("fedavg", "11"), ("fedcm", "22")])
def test_a_model_is_judged_with_the_direction_that_is_sent_beside_it(
    algorithm: str, numbers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged = list[tuple[str, int]]()
    monkeypatch.setattr(flower_engine, "check_carried", lambda *what: judged.append(what))
    engine: Any = flower_engine.FlowerEngine.__new__(flower_engine.FlowerEngine)
    engine._app = tmp_path
    settings = job(training={"algorithm": algorithm, "batch_size": 5})
    assert engine.protection(settings, 11).dimension == 11
    (what, size), *_ = judged
    assert what == f"a model of {numbers} numbers"
    assert 4 * int(numbers) < size < 4 * int(numbers) + 50
