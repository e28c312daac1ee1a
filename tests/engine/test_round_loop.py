"""Whom a round charges, and what it counts, by what comes of asking each client."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pytest

from fedveil.base.message import Message, encode
from fedveil.errors import ReportRejected, RoundVoid
from fedveil.protections.base import Aggregate, RoundContext
from fedveil.protections.phased import PhasedRound
from fedveil.rounds.loop import Carrier, Outcome, drive, shared
from fedveil.rounds.outcomes import (
    Answer,
    ClientId,
    Effort,
    Failed,
    Folded,
    Refused,
    Report,
    Unreached,
    Withheld,
    short,
)

ROUND = 3
GOOD = encode({"round": ROUND})
COHORT = range(8)


class Half(PhasedRound):
    def _fold(self, client: ClientId, message: Message) -> None:
        """Anything will do."""

    def _ask(self, answered: Sequence[ClientId]) -> Mapping[ClientId, Message]:
        return dict.fromkeys(answered, self._words())

    def _aggregate(self) -> Aggregate:
        return Aggregate(np.zeros(1), self.reports)


class Script(Carrier):
    """Brings the answers that are written down for each phase."""

    def __init__(self, **phases: Sequence[Answer]) -> None:
        self.phases = phases

    def ask(self, phase: str, messages: Mapping[ClientId, Message]) -> Iterator[Answer]:
        return (answer for answer in self.phases[phase] if answer.client in messages)


def played(script: Script, trains: str) -> Outcome:
    half = Half(RoundContext(COHORT, ROUND, np.zeros(1, np.float32)), list(script.phases))
    return drive(half, script, dict.fromkeys(COHORT, half.opening()), trains)


def test_whoever_a_report_may_have_left_is_charged() -> None:
    outcome = played(
        Script(
            report=[
                Report(0, GOOD),
                Report(1, b"no report"),
                Report(2, encode({"round": ROUND + 1})),
                Refused(3, 10, "as the carrier says"),
                Withheld(4, "a reason"),
                Failed(5, "a reason"),
                Unreached(6),  # and nothing is heard of the last
            ]
        ),
        "report",
    )
    assert outcome.charged == {0, 1, 2, 3, 7}
    assert outcome.arrived == {0, 1, 2, 3}
    assert outcome.reported == {0}
    assert outcome.dropped == {6, 7}
    assert sum(outcome.rejected.values()) == 3
    assert outcome.hopeless is None


def test_a_report_that_is_folded_where_it_is_made_counts_as_any_other() -> None:
    outcome = played(Script(report=[Folded(0, 10), Report(1, GOOD)]), "report")
    assert outcome.reported == {0, 1}
    assert outcome.bytes_up == 10 + len(GOOD)


def test_other_phases_charge_nobody_and_take_nothing_back() -> None:
    keys = [Report(c, GOOD) for c in COHORT[1:]]
    reports = [Report(c, GOOD) for c in COHORT[2:]]
    ends: list[Answer] = [Failed(2, "late"), Withheld(3, "late"), Report(4, b""), Unreached(5)]
    outcome = played(Script(keys=keys, report=reports, end=ends), "report")
    assert outcome.charged == set(COHORT[1:])
    assert outcome.reported == set(COHORT[2:])
    assert outcome.dropped == {0, 1, 5, 6, 7}


def test_a_client_that_was_silent_answers_no_later_phase() -> None:
    half = Half(RoundContext(COHORT, ROUND, np.zeros(1, np.float32)), ["keys", "report"])
    for client in (0, 2):
        half.receive(client, {"round": ROUND})
    assert set(half.advance() or ()) == {0, 2}
    half.receive(2, {"round": ROUND})
    for client, why in ((1, "wrong phase"), (2, "repeated sender"), (9, "unknown sender")):
        with pytest.raises(ReportRejected, match=why):
            half.receive(client, {"round": ROUND})
    assert half.reports == 1


@pytest.mark.parametrize(("longest", "reported"), [(len(GOOD), {3, 5}), (len(GOOD) - 1, set())])
def test_an_answer_that_is_longer_than_an_honest_one_is_refused(
    longest: int, reported: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Half, "longest", longest)
    outcome = played(Script(report=[Report(3, GOOD), Report(5, GOOD)]), "report")
    assert outcome.reported == reported
    assert sum(outcome.rejected.values()) == 2 - len(reported)
    assert outcome.charged == set(COHORT)


def test_a_carrier_without_sums_of_its_own_carries_each_phase_as_it_is() -> None:
    half = Half(RoundContext(COHORT, ROUND, np.zeros(1, np.float32)), ["keys", "report"])
    script = Script(keys=[Report(2, GOOD)], report=[Failed(2, "late"), Report(4, GOOD)])
    for phase, clients in (("keys", [2]), ("report", [2, 4])):
        found = script.fold(phase, {2: {}, 4: {}}, half)  # type: ignore[arg-type]
        assert [answer.client for answer in found] == clients


def test_successive_clients_share_a_message_that_is_the_same_object() -> None:
    one, equal, other = {"round": 1}, {"round": 1}, {"round": 2}
    messages = {4: one, 2: one, 7: equal, 1: other, 9: other, 3: one}
    found = [(id(message), clients) for message, clients in shared(messages)]
    assert found == [(id(one), [4, 2]), (id(equal), [7]), (id(other), [1, 9]), (id(one), [3])]
    assert list(shared({})) == []


def test_the_time_of_an_aggregation_that_fails_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(5.0, 2.0)
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))

    def fails() -> None:
        raise RoundVoid("report", 1, 2)

    outcome = Outcome()
    assert outcome.result(fails) is None
    assert outcome.seconds["aggregation"] == 2


class Alone(Half):
    def _ask(self, answered: Sequence[ClientId]) -> Mapping[ClientId, Message]:
        raise RoundVoid("keys", len(answered), len(COHORT))


def test_a_void_round_has_no_aggregate_whatever_its_half_would_give() -> None:
    half = Alone(RoundContext(COHORT, ROUND, np.zeros(1, np.float32)), ["keys", "report"])
    script = Script(keys=[Report(0, GOOD)])
    outcome = drive(half, script, dict.fromkeys(COHORT, half.opening()), "report")
    assert half.aggregate().reports == 1
    assert outcome.result(half.aggregate) is None
    assert outcome.void is not None
    assert outcome.charged == set()


@pytest.mark.parametrize("one", [Failed(1, "another"), Withheld(1, "a"), Report(1, GOOD)])
def test_a_round_is_hopeless_where_all_that_were_reached_fail(one: Answer) -> None:
    others = [Failed(c, "why") for c in COHORT[2:]]
    outcome = played(Script(report=[Unreached(0), one, *others]), "report")
    assert outcome.hopeless == ("why" if isinstance(one, Failed) else None)


@pytest.mark.parametrize("reason", ["two\nlines", "\x1b[2J", "\n" * 150, "x" * 201, "\n" * 10**6])
def test_a_reason_is_one_short_line(reason: str) -> None:
    said = short(reason)
    assert said.isprintable()
    assert len(said) <= 200


def test_a_reason_that_is_just_short_enough_is_whole() -> None:
    assert short("x" * 200) == "x" * 200
    assert short("x" * 201) == "x" * 197 + "..."


def test_what_went_down_is_counted_for_each_client_that_was_asked() -> None:
    outcome = played(Script(keys=[Report(c, GOOD) for c in COHORT[3:]], report=[]), "report")
    words = {phase: encode({"round": ROUND, "phase": phase}) for phase in ("keys", "report")}
    assert outcome.bytes_down == 8 * len(words["keys"]) + 5 * len(words["report"])


@pytest.mark.parametrize("calm", [0, 1])
def test_what_answers_cost_is_added_up_and_a_round_of_errors_is_hopeless(calm: int) -> None:
    """Under a guarantee a client whose training raises an error reports an update of zero."""
    answers = [
        Report(c, GOOD, effort=Effort(1.0, 2.0, 100.0, [f"w{c}"], "why", raised=c >= calm))
        for c in COHORT
    ]
    outcome = played(Script(report=[*answers[:7], Failed(7, "else")]), "report")
    assert (outcome.seconds["training"], outcome.seconds["protection"]) == (7.0, 14.0)
    assert 700 <= outcome.seconds["aggregation"] < 800
    assert outcome.warnings == {f"w{c}" for c in range(7)}
    assert (outcome.unusable, outcome.failed) == ({"why": 7}, {"else": 1})
    assert outcome.hopeless == (None if calm else "why")


def test_what_clients_say_is_counted_by_one_short_line_each_and_every_byte_counts() -> None:
    long, late = f"{'x' * 300}", encode({"round": ROUND + 1})
    script = Script(
        report=[
            Failed(0, long), Withheld(1, long), Refused(2, 7, long),
            Report(3, late), Report(4, GOOD), Report(5, late),
        ]
    )  # fmt: skip
    outcome = played(script, "report")
    cut = {f"{'x' * 197}...": 1}
    assert (outcome.failed, outcome.withheld) == (cut, cut)
    ((_, one), (why, two)) = outcome.rejected.items()
    assert (one, two) == (1, 2)
    assert {**outcome.rejected, why: 1} == {**cut, why: 1}
    assert outcome.bytes_up == 7 + 2 * len(late) + len(GOOD)


def test_those_are_charged_beforehand_who_are_asked_for_a_report() -> None:
    half = Half(RoundContext(COHORT, ROUND, np.zeros(1, np.float32)), ["keys", "report", "end"])
    charged: list[set[ClientId]] = []

    class Noted(Script):
        def ask(self, phase: str, messages: Mapping[ClientId, Message]) -> Iterator[Answer]:
            assert len(charged) == (phase != "keys")
            return super().ask(phase, messages)

    told = [Report(c, GOOD) for c in (2, 5, 6)]
    script = Noted(keys=told, report=told[:2], end=told[:1])
    opening = dict.fromkeys(COHORT, half.opening())
    drive(half, script, opening, "report", lambda asked: charged.append(set(asked)))
    assert charged == [{2, 5, 6}]


def test_a_call_that_voids_a_round_is_its_reason() -> None:
    outcome, void = Outcome(), RoundVoid("report", 1, 2)

    def fails() -> None:
        raise void

    outcome.result(fails)
    assert outcome.void is void


@pytest.mark.parametrize(
    ("mergeable", "beside", "folds"),
    [(False, False, False), (True, False, True), (False, True, True)],
)
def test_reports_are_folded_by_a_carrier_where_sums_merge_or_reach_the_server(
    mergeable: bool, beside: bool, folds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Folds(Script):
        beside_server = beside

        def fold(self, phase: str, *_: object) -> Iterator[Answer]:
            return iter([Folded(3, 50)])

    monkeypatch.setattr(Half, "mergeable", mergeable)
    outcome = played(Folds(report=[Report(6, GOOD)]), "report")
    assert (outcome.reported, outcome.bytes_up) == (({3}, 50) if folds else ({6}, len(GOOD)))
