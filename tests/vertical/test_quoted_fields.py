"""A peer's fields stand in no error at full length, and with no control characters."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedveil.base.message import check_kind, decode, encode, quoted
from fedveil.errors import BundleInvalid, ExchangeError, FedveilError, MessageInvalid, Unfit
from fedveil.language import generation
from fedveil.link.channel import Receive
from fedveil.vertical.crossing import check_word, from_wire
from fedveil.vertical.remote import bundle_agreement, handshake, intersection, machine
from fedveil.vertical.remote.handshake_state import Standing
from fedveil.vertical.schedule import Transfer
from fedveil.vertical.scoring import row_alignment
from fedveil.vertical.scoring.scorer import Scorer
from fedveil.vertical.signatures import Signatures
from fedveil.vertical.split import Crossing

NONE = intersection._empty(0)
HUGE = "gift\x1b[2J\n" * 10_000
CROSSING = Crossing("left", "bank", "lead", ("top",), (2,), "float32", True, None)
TENSOR = {
    "kind": "tensor", "name": "left", "step": 1, "micro": 0, "data": np.zeros((1, 2), np.float32),
}  # fmt: skip
IDS = {"train": np.arange(3), "test": np.arange(1)}
OWN = Standing(party="bank", job={"epochs": 2}, parts={}, ids=IDS)


def told(exchange: Generator[Any, Any, Any], *messages: dict[str, Any]) -> None:
    """Run a party's side that is sent these messages."""
    waiting = iter(messages)
    request = next(exchange)
    while True:
        request = exchange.send(next(waiting) if isinstance(request, Receive) else None)


def arriving(**fields: Any) -> None:
    transfer = Transfer(CROSSING, 0, gradient=False)
    from_wire({**TENSOR, **fields}, transfer, training=True, step=1, rows=1)


def applying(job: str) -> None:
    application = {
        "kind": "apply", "job": job, "parts": "{}", "run": b"", "steps": np.zeros(1, np.int64),
        "examples": b"", "ids_train": 1, "ids_test": 1,
    }  # fmt: skip
    handshake._check_application(OWN, "bank", application, "train")


def signing(name: str) -> None:
    """Check signatures in which the leader has added that of the party `name`."""
    one = {"chain": "", "signature": ""}
    signatures = json.dumps({"lead": one, "bank": one, name: one}).encode()
    Signatures.parsed(signatures, "the message of lead").check(b"", ["lead", "bank"], None)


def scorer() -> Any:
    return SimpleNamespace(split=SimpleNamespace(leader="lead"), ids=np.arange(3))


@pytest.mark.parametrize(
    "act",
    [
        lambda: check_kind({"kind": HUGE}, "rows"),
        lambda: decode(encode({HUGE: 1}) + encode({HUGE: 1})[2:]),
        lambda: arriving(kind=HUGE),
        lambda: arriving(name=HUGE),
        lambda: arriving(step=HUGE),
        lambda: arriving(micro=HUGE),
        lambda: arriving(**{HUGE: 1}),
        lambda: check_word({"kind": HUGE, "step": 1}, "bank", "ready", 1),
        lambda: told(handshake.follow(OWN, "lead"), {"kind": HUGE}),
        lambda: told(handshake.follow(OWN, "lead"), {"kind": "begin", "purpose": HUGE}),
        lambda: told(
            handshake.follow(OWN, "lead"), {"kind": "begin", "purpose": "train", "align_by": HUGE}
        ),
        lambda: applying(json.dumps({"epochs": 2, HUGE: 1})),
        lambda: machine._checked("bank", {"kind": HUGE, "head": ""}, {"kind": "done"}),
        lambda: told(bundle_agreement._due(SimpleNamespace(stopped=None), "bank", "contents"),
                     {"kind": HUGE}),
        lambda: told(
            intersection._Table(IDS["train"], {"bank": 1}, "train")._answered("bank", 1, 0, NONE),
            {"kind": HUGE},
        ),
        lambda: signing(HUGE),
        lambda: signing("gift \ud800"),
        lambda: applying(json.dumps({"epochs": 2, "gift \ud800": "\ud800"})),
        lambda: told(row_alignment.follow(scorer()), {"kind": "begin", "purpose": HUGE}),
        lambda: row_alignment._rows(scorer(), {"kind": HUGE}, None),
        lambda: Scorer._due(scorer(), {"kind": HUGE}, "rows", 1),
        lambda: generation._asked(
            {"kind": HUGE, "step": 1, "start": 0, "length": 1}, "lead", 1, 0, 10
        ),
    ],
)  # fmt: skip
def test_a_peers_field_is_quoted_in_short(act: Callable[[], Any]) -> None:
    with pytest.raises((MessageInvalid, ExchangeError, Unfit, BundleInvalid)) as raised:
        act()
    assert isinstance(raised.value, FedveilError)
    text = str(raised.value)
    assert text.encode(), "no half of a character, which no log and no link carries"
    assert text.isprintable()
    assert "gift" in text
    assert len(text) < 400


def test_what_is_short_is_quoted_whole() -> None:
    values = ["gift", b"gift", None, 3, -1.5, True, "é" * 60]
    assert [quoted(value) for value in values] == list(map(repr, values))
    assert quoted("a" * 61) == f"'{'a' * 60}'... (61 characters)"
    assert quoted(bytes(1000)).endswith("... (1,000 bytes)")
    assert quoted(np.zeros((2, 3))) == "an array of float64 with the shape (2, 3)"
