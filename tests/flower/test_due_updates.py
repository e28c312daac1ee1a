"""A server that asks for updates out of turn, or again and again, and messages that are malformed.

A client that trains and then refuses has read its examples for nothing, and its answer, or the
missing answer, says something about them.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Message

from fedveil.base.message import decode, encode
from fedveil.errors import FedveilError
from fedveil.flower.job import client_training
from fedveil.flower.records import ADDRESS, COMMON, MESSAGE
from flower_parts import CLIENTS, PW, SHARES, LocalGrid, app_of, job, serve

Changed = Callable[[dict[str, Any]], dict[str, Any]]


def changed(message: Message, record: str, change: Changed) -> Message:
    """Return a copy of the message in which `change` has changed the fields of a record."""
    out = copy.deepcopy(message)
    words = dict(decode(out.content[record]["encoded"]))  # type: ignore[arg-type]
    out.content[record] = ConfigRecord({"encoded": encode(change(words))})
    return out


class Lying:
    """A job whose server changes what client 0 gets, and what was read and said meanwhile."""

    def __init__(
        self,
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
        change: Callable[[Message], Message] = lambda message: message,
        **settings: Any,
    ) -> None:
        app, _ = app_of(folder / "app", job(**settings))
        self.state, self.reads, self.asked = folder / "state", list[int](), dict[str, Message]()
        self.grid = LocalGrid(app, self.state)
        read = client_training.client_data

        def watched(job: Any, client: int, *more: Any) -> Any:
            self.reads.append(client)
            return read(job, client, *more)

        def tamper(message: Message) -> Message:
            data = message.metadata
            if data.reply_to_message_id or data.dst_node_id != 100:
                return message
            self.asked.setdefault(data.message_type.partition(".")[2], copy.deepcopy(message))
            return change(message)

        monkeypatch.setattr(client_training, "client_data", watched)
        self.grid.tamper = tamper
        with suppress(FedveilError):  # the round can be void without client 0
            serve(app, self.grid, folder / "run")

    def said(self, kind: str) -> list[str]:
        """Return client 0's answers to messages of a kind: the fixed word, or "" for content."""
        return [
            reply.error.reason if reply.has_error() else ""
            for reply in self.grid.replies
            if reply.metadata.src_node_id == 100 and reply.metadata.message_type == f"train.{kind}"
        ]

    def saved(self, kind: str) -> list[str]:
        return [path.read_text() for path in self.state.glob(f"*-0.{kind}")]


def with_weights(message: Message) -> Message:
    """Return a message of an early phase as if it asked for training."""
    return changed(
        message,
        COMMON,
        lambda words: {
            **words,
            "weights": np.zeros(words["dimension"], np.float32),
            "example_shape": np.array([6]),
            "classes": 3,
            "fingerprint": "",
        },
    )


@pytest.mark.parametrize("kind", ["advertise", "share", "masked"])
@pytest.mark.parametrize("protection", [PW, SHARES], ids=["pw_encrypt", "distributed_dp"])
def test_for_an_update_that_is_not_due_no_example_is_read_and_nothing_is_charged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protection: Any, kind: str
) -> None:
    def change(message: Message) -> Message:
        if message.metadata.message_type != f"train.{kind}":
            return message
        if kind == "masked":  # as if keys had never been exchanged
            return changed(message, COMMON, lambda words: {**words, "opening": True})
        return with_weights(message)

    lying = Lying(tmp_path, monkeypatch, change, rounds=1, protection=protection)
    assert lying.said(kind) == ["withheld"]
    assert sorted(lying.reads) == list(range(1, CLIENTS))
    assert lying.saved("reports") == lying.saved("answered") == []


def test_an_update_that_has_left_is_not_trained_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time the word in place of an answer would say if the training has failed."""
    lying = Lying(tmp_path, monkeypatch, rounds=1, protection=PW)
    before, context = list(lying.reads), lying.grid.contexts[100]
    for factor in (1.0, 1e30):

        def scaled(words: dict[str, Any], factor: float = factor) -> dict[str, Any]:
            return {**words, "weights": words["weights"] * np.float32(factor)}

        again = changed(lying.asked["masked"], COMMON, scaled)
        assert lying.grid.app(again, context).error.reason == "answered before"
    assert lying.reads == before


def test_a_round_in_which_the_training_fails_is_not_repeated_with_other_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server could otherwise ask, as often as it likes, if a client has a label of at least c."""

    def change(message: Message) -> Message:
        if message.metadata.message_type != "train.masked":
            return message
        return changed(message, COMMON, lambda words: {**words, "classes": 2})

    lying = Lying(tmp_path, monkeypatch, change, rounds=1, protection=PW)
    assert lying.said("masked") == ["failed"]
    assert (lying.saved("answered"), lying.reads.count(0)) == (["1"], 1)
    again = copy.deepcopy(lying.asked["advertise"])
    assert lying.grid.app(again, lying.grid.contexts[100]).error.reason == "answered before"


def test_a_round_is_recorded_before_the_examples_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training that takes the whole process down with it tells the server something, too."""
    read, seen = client_training.client_data, []

    def watched(job: Any, client: int, *more: Any) -> Any:
        saved = (tmp_path / "state").glob(f"*-{client}.answered")
        seen.append([path.read_text() for path in saved])
        return read(job, client, *more)

    monkeypatch.setattr(client_training, "client_data", watched)
    app, _ = app_of(tmp_path / "app", job(rounds=2, protection=PW))
    serve(app, LocalGrid(app, tmp_path / "state"), tmp_path / "run")
    assert seen == [["1"]] * CLIENTS + [["2"]] * CLIENTS


@pytest.mark.parametrize("summed", [-1, 1, 1 << 70, 0.0, "0"])
def test_a_round_that_cannot_have_been_summed_is_refused_and_not_answered_with_zeros(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, summed: Any
) -> None:
    """Only this field may differ between clients, so no signature covers it. A server could make
    all updates but one zero with it."""

    def change(message: Message) -> Message:
        if message.metadata.message_type != "train.masked":
            return message
        return changed(message, ADDRESS, lambda words: {**words, "summed": summed})

    training = {"algorithm": "scaffold", "batch_size": 10}
    settings = {"rounds": 1, "model": "parts:linear", "training": training}
    lying = Lying(tmp_path, monkeypatch, change, protection=SHARES, **settings)
    assert lying.said("masked") == ["withheld"]
    assert 0 not in lying.reads
    assert lying.saved("reports") == []


@pytest.mark.parametrize("value", [np.arange(6), np.zeros(0), np.array(1)])
@pytest.mark.parametrize(
    ("protection", "kind", "field"),
    [(PW, "advertise", "phase"), (PW, "unmask", "phase"), ({"name": "signds"}, "report", "round")],
    ids=["opening", "unmask", "report"],
)
def test_an_array_in_place_of_a_word_or_a_number_is_one_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    protection: Any,
    kind: str,
    field: str,
    value: Any,
) -> None:
    def change(message: Message) -> Message:
        if message.metadata.message_type != f"train.{kind}":
            return message
        return changed(message, MESSAGE, lambda words: {**words, field: value})

    with caplog.at_level(logging.WARNING, "flwr"):
        lying = Lying(tmp_path, monkeypatch, change, rounds=1, protection=protection)
    assert lying.said(kind) == ["withheld"]
    assert not any(record.exc_info for record in caplog.records)


def test_a_length_that_no_message_carries_is_one_sentence_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lying = Lying(tmp_path, monkeypatch, rounds=1, protection=PW)
    for dimension in (0, -3, 1 << 29, 1 << 63, 1 << 100):

        def long(words: dict[str, Any], dimension: int = dimension) -> dict[str, Any]:
            return {**words, "dimension": dimension}

        asked = changed(lying.asked["advertise"], COMMON, long)
        caplog.clear()
        with caplog.at_level(logging.WARNING, "flwr"):
            assert lying.grid.app(asked, lying.grid.contexts[100]).error.reason == "withheld"
        (record,) = caplog.records
        assert f"dimension = {dimension} is outside [1, 536,854,528]" in record.getMessage()
        assert record.exc_info is None


@pytest.mark.parametrize("eps", [float("nan"), float("inf"), -1.0, "0.5"])
def test_a_cost_that_is_none_is_refused_before_the_report_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eps: Any
) -> None:
    def change(message: Message) -> Message:
        if message.metadata.message_type != "train.report":
            return message
        return changed(message, MESSAGE, lambda words: {**words, "eps": eps})

    unary = {"eps": 0.5, "adaptive": True, "total_eps": 1000.0}
    protection = {"name": "rr", "unary": unary}
    lying = Lying(tmp_path, monkeypatch, change, rounds=1, protection=protection)
    assert lying.said("report") == ["withheld"]
    assert 0 not in lying.reads
    assert lying.saved("reports") == []
