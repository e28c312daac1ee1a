"""The counts and reasons in a round's record, from outcomes in which no two numbers are equal."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from fedveil.engine.run_records import (
    all_failed,
    check,
    counted,
    several_inputs,
    without_report,
    without_result,
)
from fedveil.errors import MessageInvalid, RoundVoid
from fedveil.record.recorder import NEEDED
from fedveil.rounds.loop import Outcome


def test_each_count_is_of_its_own_clients() -> None:
    outcome = Outcome(
        RoundVoid("report", 2, 5), 999, 4242, Counter(a=1), Counter(b=2), Counter(c=3),
        Counter(d=4), dropped=set(range(8)), charged=set(range(7)), arrived=set(range(6)),
        reported=set(range(5)),
    )  # fmt: skip
    assert counted(outcome) == {
        "rejected": {"a": 1}, "withheld": {"b": 2}, "failed": {"c": 3}, "unusable": {"d": 4},
        "dropped": 8, "void": str(outcome.void), "bytes_up": 999,
        "bytes_up_per_client": 999 / 6, "bytes_down": 4242,
    }  # fmt: skip
    nobody = counted(Outcome(bytes_up=30, reported={1}))
    assert (nobody["bytes_up_per_client"], nobody["void"]) == (0, None)


def record(**changes: Any) -> dict[str, Any]:
    kinds: dict[str, Any] = {kind: {} for kind in ("rejected", "withheld", "failed", "unusable")}
    return {"clients": 4, "reports": 0, "dropped": 0, "void": None, **kinds, **changes}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"clients": 0, "void": "the round is void"}, "no client was drawn (1x)"),
        ({"dropped": 3, "void": "why"}, "the client dropped out (3x), why (1x)"),
        ({"void": "the resulting model is not finite"}, "the resulting model is not finite (1x)"),
        (
            {"rejected": {"r": 5}, "withheld": {"w": 7}, "failed": {"f": 6}, "unusable": {"u": 1}},
            "w (7x), f (6x), r (5x)",
        ),
        ({"rejected": {"a": 2}, "failed": {"a": 3}, "dropped": 9}, "a (5x)"),
        # Canaries report too, and hold nothing that clients have learnt.
        ({"reports": 5, "canaries": 3, "unusable": {"u": 2}}, "u (2x)"),
        ({"reports": 5, "canaries": 3, "unusable": {"u": 1}}, None),
        ({"reports": 3, "canaries": 3, "dropped": 4}, "the client dropped out (4x)"),
    ],
)
def test_the_most_frequent_reasons_are_told(changes: dict[str, Any], reason: str | None) -> None:
    assert without_report(record(**changes)) == reason


def test_a_run_adds_the_reasons_of_its_rounds_up() -> None:
    rounds = [record(failed={"f": 2}), record(clients=0, void="v"), record(withheld={"w": 3})]
    said = "no report was usable in any of 3 rounds: w (3x), f (2x)"
    assert without_result(rounds, None) == said
    assert without_result(rounds, "a limit") == f"{said}; a limit"
    drawn = without_result([record(clients=0), record(clients=0), record(dropped=4)], None)
    assert drawn == (
        "no report was usable in any of 3 rounds: the client dropped out (4x), "
        "no client was drawn (2x)"
    )
    assert all_failed(3, "why").startswith("every client of round 3 failed: why; ")


def test_a_run_that_ends_before_its_first_round_says_why() -> None:
    assert without_result([], "a limit") == "the run ended before its first round: a limit"
    endless = without_result([record(unusable={"the update is not finite": 4})], None)
    assert endless == (
        "no report was usable in the only round: the update is not finite (4x); a lower "
        "training.lr may help"
    )


def test_the_inputs_of_an_example_are_listed_in_their_order() -> None:
    assert [*several_inputs({"words": (7,), "age": ()})] == [
        "an example has several inputs: words, age"
    ]
    assert [*several_inputs((7,))] == []


def whole(number: int, **changes: Any) -> dict[str, Any]:
    """A round's record in which all keys are right, except for `changes`."""
    held: dict[str, Any] = {
        name: "strong" if name.startswith("promise_") else 0.5 for name in NEEDED
    }
    held |= record(reports=3) | {
        "round": number, "unit": "client", "randomness": "seeded", "in_clear": ["a size"],
        "rests_on_server": False,
    }  # fmt: skip
    return held | changes


TESTED = {"loss": 0.5, "r2": 0.25, "each": [1, 2.5], "measures": {"r2": "higher"}}


@pytest.mark.parametrize(
    "changes",
    [
        TESTED,
        {**TESTED, "rmse": 3, "measures": {"rmse": "lower", "r2": "higher"}},
        {"trainer": "loop", "machines": {"a": [3, 0.5, 0.25], "b": [0, 0.0, 1.0]}, "retrained": 2},
        {"in_clear": [], "void": "why", "failed": {"late": 2}},
    ],
)
def test_records_that_a_run_writes_are_right(changes: dict[str, Any]) -> None:
    check([whole(1), whole(2, **changes), whole(3)], 3)


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"round": 2.0}, "an invalid round"),
        ({"trainer": 3}, "an invalid trainer"),
        ({"machines": {"a": [3, 0.5]}}, "an invalid machines"),
        ({"machines": {"a": [3, 0.5, "b"]}}, "an invalid machines"),
        ({**TESTED, "measures": {"r2": "better"}}, "an invalid measures"),
        ({**TESTED, "measures": {"rmse": "lower"}}, "lacks a key"),
        ({"loss": 0.5}, "lacks a key"),
        ({**TESTED, "r2": [0.5]}, "an invalid r2"),
        ({"unit": "row"}, "an invalid unit"),
        ({"randomness": None}, "an invalid randomness"),
        ({"rests_on_server": 1}, "an invalid rests_on_server"),
        ({"rejected": {"late": True}}, "an invalid rejected"),
        ({"seconds_round": [1.5]}, "an invalid seconds_round"),
    ],
)
def test_a_record_that_no_run_writes_is_refused(changes: dict[str, Any], wrong: str) -> None:
    with pytest.raises(MessageInvalid, match=f"^the record of round 2 (has )?{wrong}$"):
        check([whole(1), whole(2, **changes), whole(3)], 3)
