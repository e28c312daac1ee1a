"""Unusable updates, for every engine that drives the halves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import parts
from fedveil.base.message import Message
from fedveil.errors import ClientWithheld
from fedveil.protections.always_answers import answer_trained, reason
from fedveil.protections.base import ClientContext, JobContext, Protection, State, Update
from fedveil.protections.catalog import POSITIONS
from round_parts import client_half, server_half

DIMENSION = 12
MODEL = np.zeros(DIMENSION, np.float32)


def context() -> JobContext:
    return JobContext("equal", DIMENSION, clients_per_round=3, rounds=1)


def protection(name: str, **settings: Any) -> Any:
    position = POSITIONS[name]
    return position(position.settings_type(**settings), context())


def giving(update: Any, examples: int = 9) -> Any:
    return lambda: (np.asarray(update, np.float32), examples)


def answered(made: Any, update: Any, **words: Any) -> Any:
    opening = {**server_half(made, [0], MODEL).opening(), **words}

    def half(examples: int = 1) -> Any:
        return client_half(made, 0, MODEL)

    return answer_trained(made, half, half, opening, giving(update))


def test_who_always_reports() -> None:
    """Protections that perturb or state an epsilon always report, a user's own included."""
    made = {name: protection(name) for name in POSITIONS if name != "pw_encrypt"}
    assert {name for name, one in made.items() if one.always_reports} == {
        "dp_encrypt", "distributed_dp", "central_gaussian", "signds", "rr", "oue",
    }  # fmt: skip
    assert not protection("pw_encrypt", reconstruct_secrets_threshold=2).always_reports
    assert protection("dp_encrypt", noise="continuous").always_reports
    own = parts.TwoPhases(parts.TwoPhasesSettings(), context())
    assert not own.perturbs
    assert own.always_reports


BAD = [np.full(DIMENSION, np.nan), np.r_[MODEL[1:], np.inf], MODEL[1:], MODEL.reshape(3, 4)]


@pytest.mark.parametrize("update", BAD, ids=["nan", "inf", "shorter", "shaped"])
@pytest.mark.parametrize("name", ["dp_encrypt", "central_gaussian", "signds", "rr", "oue"])
def test_what_cannot_be_used_is_an_update_of_zero(name: str, update: Any) -> None:
    made = protection(name)
    replaced, still = answered(made, update), answered(made, MODEL)
    assert still.unusable is None
    assert reason(replaced.unusable).startswith("the update is not ")
    for field, value in still.message.items():
        assert np.array_equal(replaced.message[field], value)


class Panic(BaseException):
    """A panic of a library written in Rust is no `Exception` either."""


def test_an_interruption_is_never_reported() -> None:
    def interrupted() -> Any:
        raise KeyboardInterrupt

    made = protection("rr")
    opening = server_half(made, [0], MODEL).opening()
    with pytest.raises(KeyboardInterrupt):
        answer_trained(
            made, lambda _: client_half(made, 0, MODEL), lambda: client_half(made, 0, MODEL),
            opening, interrupted, always=True,
        )  # fmt: skip


@pytest.mark.parametrize("error", [ValueError("4711"), SystemExit(3), MemoryError(), Panic("4711")])
@pytest.mark.parametrize("name", ["dp_encrypt", "not_encrypt"])
def test_a_training_that_fails_or_ends_its_process_is_reported_under_a_promise(
    name: str, error: BaseException
) -> None:
    made = protection(name)

    def fails() -> Any:
        raise error

    def half(examples: int = 1) -> Any:
        return client_half(made, 0, MODEL)

    opening = server_half(made, [0], MODEL).opening()
    if made.always_reports:
        reply = answer_trained(made, half, half, opening, fails)
        assert reply.unusable is error
        zero = answered(made, np.zeros(DIMENSION, np.float32)).message
        assert {n: type(v) for n, v in reply.message.items()} == {
            n: type(v) for n, v in zero.items()
        }
    else:
        with pytest.raises(type(error)):
            answer_trained(made, half, half, opening, fails)


@pytest.mark.parametrize("name", ["dp_encrypt", "signds", "rr", "oue"])
def test_a_huge_update_is_one_like_any_other(name: str) -> None:
    made = protection(name)
    huge = np.full(DIMENSION, np.finfo(np.float32).max)
    huge[::2] *= -1
    assert answered(made, huge).unusable is None


@pytest.mark.parametrize("update", BAD, ids=["nan", "inf", "shorter", "shaped"])
def test_where_nothing_is_promised_there_is_no_report(update: Any) -> None:
    with pytest.raises(ClientWithheld, match="the update is not"):
        answered(protection("not_encrypt"), update)


def test_what_the_message_alone_decides_is_refused() -> None:
    for update in (MODEL, BAD[0]):
        with pytest.raises(ClientWithheld, match=r"eps = 9\.0 is not allowed by the job"):
            answered(protection("rr"), update, eps=9.0)


class Delicate(parts.TwoPhasesClient):
    """Raises for some updates, but only halfway through its work."""

    def _answer(self, phase: str, message: Message, update: Update | None) -> Message:
        if update is not None and update.any():
            self.secret = 0
            raise ZeroDivisionError("patient 4711")
        return super()._answer(phase, message, update)


class DelicatePhases(parts.TwoPhases):
    def client_round(self, context: ClientContext) -> Delicate:
        return Delicate(context, self)


def test_a_half_that_raises_for_an_update_is_asked_no_more() -> None:
    """A half at the same stage answers in its place, for an update of zero."""
    made: Protection = DelicatePhases(parts.TwoPhasesSettings(), context())
    room = server_half(made, [0], MODEL)
    first = client_half(made, 0, MODEL)
    room.receive(0, first.respond(room.opening(), None))
    question = room.advance()[0]
    kept: State = first.keep()

    def half(examples: int = 1) -> Any:
        other = client_half(made, 0, MODEL)
        other.take_up(kept)
        return other

    given = answer_trained(made, half, half, question, giving(MODEL + 1))
    assert given.unusable is not None
    assert "it raised ZeroDivisionError: patient 4711 (" in reason(given.unusable)
    room.receive(0, given.message)
    room.advance()
    assert not room.aggregate().update.any()


def test_a_half_answers_each_phase_once() -> None:
    """A half that continues from it cannot go back either."""
    made: Protection = parts.TwoPhases(parts.TwoPhasesSettings(), context())
    room, mine, other = (
        server_half(made, [0], MODEL), client_half(made, 0, MODEL), client_half(made, 0, MODEL)
    )  # fmt: skip
    opening = room.opening()
    room.receive(0, mine.respond(opening, None))
    question = room.advance()[0]
    other.take_up(mine.keep())
    mine.respond(question, MODEL)
    for half, message in ((mine, question), (mine, opening), (other, opening)):
        with pytest.raises(ClientWithheld, match="phase out of order"):
            half.respond(message, MODEL)
