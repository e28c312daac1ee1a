"""The alignment of new rows: what a party counts and refuses before it sends anything."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedveil.errors import ExchangeError, Unfit
from fedveil.link.channel import Send
from fedveil.record.run_folder import RunFolder
from fedveil.vertical.scoring import row_alignment
from fedveil.vertical.scoring.guesses import Guesses, begin_counts

BUNDLE, KEY = bytes(range(32)), bytes(range(7, 39))
LEADERS, BANKS = np.array(["a1", "b2", "c3", "d4"]), np.array(["c3", "x9", "a1"])


@pytest.fixture
def sides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, Any]:
    """Return both parties. Their job aligns by digests."""
    monkeypatch.setattr(row_alignment, "_by", lambda scorer: "digests")
    found = {}
    for name, ids, most in (("lead", LEADERS, 5), ("bank", BANKS, 6)):
        folder: Any = RunFolder(tmp_path / name, None)  # type: ignore[arg-type]
        folder.path.mkdir()
        begin_counts(folder)
        found[name] = SimpleNamespace(
            name=name, ids=ids, most_ids=most, state=folder, bundle=SimpleNamespace(name=BUNDLE),
            split=SimpleNamespace(leader="lead"), followers=("bank",), note=print,
        )  # fmt: skip
    return found


def begun(**changes: Any) -> dict[str, Any]:
    return {
        "kind": "begin", "attempt": 3, "purpose": "score", "bundle": BUNDLE, "ids": 4,
        "align_by": "digests", "key": KEY, **changes,
    }  # fmt: skip


def counted(side: Any, party: str) -> int:
    """Return the number of ids that `party` has brought, as it is on disk."""
    return Guesses(side.state, row_alignment.GUESSES, side.ids).of(party)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"ids": 7}, "it brings 7 ids in all for the 3 rows of this file"),
        ({"ids": 0}, "it has no ids"),
        ({"bundle": BUNDLE[::-1]}, "its bundle is of another model than that of bank"),
        ({"align_by": "intersection"}, "it aligns by 'intersection', but this job by 'digests'"),
        ({"purpose": "train"}, "it asks for 'train', not to score new rows"),
        ({"key": KEY[:-1]}, "its key has 31 bytes"),
        ({"key": b""}, "its key has 0 bytes"),
        ({"more": 1}, "fields are missing or unknown"),
        ({"attempt": "3"}, "attempt"),
    ],
)
def test_a_follower_refuses_a_leader_before_it_sends_a_digest(
    sides: Mapping[str, Any], changes: dict[str, Any], why: str
) -> None:
    with pytest.raises(ExchangeError, match=f"^lead broke the alignment: .*{why}"):
        next(row_alignment.follow(sides["bank"], begun(**changes)))


def test_the_leaders_ids_are_counted_on_disk_before_a_digest_leaves(
    sides: Mapping[str, Any],
) -> None:
    """A leader that ends the alignment after the digests has guessed nevertheless."""
    bank = sides["bank"]
    for ids, sum_of_all in ((2, 2), (4, 6)):
        request = next(row_alignment.follow(bank, begun(ids=ids)))
        assert isinstance(request, Send)
        assert (request.peer, request.message["attempt"], request.message["ids"]) == ("lead", 3, 3)
        assert counted(bank, "lead") == sum_of_all
    with pytest.raises(ExchangeError, match="it brings 7 ids in all"):
        next(row_alignment.follow(bank, begun(ids=1)))


def test_a_leader_draws_a_key_for_every_alignment(sides: Mapping[str, Any]) -> None:
    """Digests under a known key could be computed for all ids that anyone can guess."""
    keys = [next(row_alignment.lead(sides["lead"], 1)).message["key"] for _ in range(3)]
    assert [len(key) for key in keys] == [32] * 3
    assert len({*keys, bytes(32)}) == 4


@pytest.mark.parametrize(
    ("ids", "why"),
    [
        (BANKS[:0], "it has no ids"),
        (np.array(["a1", "q1", "q2", "q3", "q4", "q5"]), "it brings 6 ids in all for the 4 rows"),
        (BANKS[[0, 1, 0]], "bank has an id twice"),
    ],
)
def test_a_leader_tells_a_follower_nothing_that_it_refuses(
    sides: Mapping[str, Any], ids: np.ndarray, why: str
) -> None:
    side = row_alignment.lead(sides["lead"], 2)
    key = next(side).message["key"]
    rows = row_alignment.alignment.digests(ids, key)
    apply = {"kind": "apply", "attempt": 2, "bundle": BUNDLE, "ids": len(ids), "digests": rows}
    side.send(None)  # asks for the follower's message
    with pytest.raises(Unfit, match=why) as refused:
        side.send(apply)
    assert refused.value.follower == "bank"
    if "twice" in why:
        assert counted(sides["lead"], "bank") == 3


@pytest.mark.parametrize("ids", [7, 1 << 54, 1 << 120])
def test_a_refused_number_of_ids_changes_no_count(sides: Mapping[str, Any], ids: int) -> None:
    """A number that no count can hold would make the bundle unusable."""
    bank = sides["bank"]
    next(row_alignment.follow(bank, begun(ids=2)))
    with pytest.raises(ExchangeError, match=f"it brings {ids + 2:,} ids in all"):
        next(row_alignment.follow(bank, begun(ids=ids)))
    assert counted(bank, "lead") == 2
    assert next(row_alignment.follow(bank, begun(ids=4))).message["ids"] == 3
    assert counted(bank, "lead") == 6
