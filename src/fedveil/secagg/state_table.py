"""Where a client and the server of a round stand, and what takes them on: the two tables.

A round goes in lockstep: the server asks, the clients answer, and no phase begins before the one
before it is closed. Each half is in one state, a row of its table, and an event takes it to the
state that the row names. What a row does not name is illegal there and refused. Nothing but
`RoundState` moves a half; what a half does with a message, and which clients have answered,
stands beside the tables.

A client's state is the phase whose message it waits for. Answering takes it on, so that the same
message a second time is out of order: who is asked twice could be asked for both kinds of share
of one peer. A message out of order, and any other that is refused, takes it to `withheld` for
good: a server that has lied once gets nothing more. After its last answer it is `done`.

The server's state is the phase whose answers it takes; one of another phase is illegal, and
changes nothing. Closing a phase opens the next if enough have answered and ends in `void` if not,
since fewer than the threshold can unmask nothing. After the last phase it is `unmasking`, and
then `complete`, or `void` if what a dealer has dealt are not shares of its secret.

Active security puts in a phase before any share is disclosed: the survivors sign the list of
survivors that they were shown, so that the server cannot show one list to some and another to
others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Literal, TypeAlias

from fedveil.errors import ClientWithheld, FedveilError, InvalidValue
from fedveil.secagg.phases import PHASES, Phase

State: TypeAlias = Literal[Phase, "done", "withheld", "unmasking", "complete", "void"]


class Event(Enum):
    """What moves a half beside a message. A message is the event of its phase."""

    REFUSAL = "the client refuses to answer"
    ENOUGH = "the phase is closed, and enough have answered it"
    TOO_FEW = "the phase is closed, and too few have answered it"
    MASKS_OFF = "the masks are off the sum"
    SPOILT = "the shares of a dealer are not of its secret"


#: State -> event -> the next state.
Table: TypeAlias = Mapping[State, Mapping[Phase | Event, State]]

CLIENT: Table = {
    "advertise": {"advertise": "share", Event.REFUSAL: "withheld"},
    "share": {"share": "masked", Event.REFUSAL: "withheld"},
    "masked": {"masked": "unmask", Event.REFUSAL: "withheld"},
    "unmask": {"unmask": "done", Event.REFUSAL: "withheld"},
    "done": {Event.REFUSAL: "withheld"},
    "withheld": {},
}
SERVER: Table = {
    "advertise": {"advertise": "advertise", Event.ENOUGH: "share", Event.TOO_FEW: "void"},
    "share": {"share": "share", Event.ENOUGH: "masked", Event.TOO_FEW: "void"},
    "masked": {"masked": "masked", Event.ENOUGH: "unmask", Event.TOO_FEW: "void"},
    "unmask": {"unmask": "unmask", Event.ENOUGH: "unmasking", Event.TOO_FEW: "void"},
    "unmasking": {Event.MASKS_OFF: "complete", Event.SPOILT: "void"},
    "complete": {},
    "void": {},
}
#: With active security.
SIGNING_CLIENT: Table = {
    **CLIENT,
    "masked": {"masked": "consistency", Event.REFUSAL: "withheld"},
    "consistency": {"consistency": "unmask", Event.REFUSAL: "withheld"},
}
SIGNING_SERVER: Table = {
    **SERVER,
    "masked": {"masked": "masked", Event.ENOUGH: "consistency", Event.TOO_FEW: "void"},
    "consistency": {"consistency": "consistency", Event.ENOUGH: "unmask", Event.TOO_FEW: "void"},
}

_OPEN: Mapping[State, Phase] = {phase: phase for phase in PHASES}


def _client_refusal(state: State, event: Phase | Event) -> ClientWithheld:
    if state == "withheld":
        return ClientWithheld("this client has ended the round before")
    if state == "done":
        return ClientWithheld("a second unmask request")
    return ClientWithheld(f"phase out of order: {state} is next")


def _server_refusal(state: State, event: Phase | Event) -> InvalidValue:
    if not isinstance(event, Event):
        return InvalidValue("wrong phase")
    if state not in _OPEN:
        return InvalidValue("the round has ended")
    return InvalidValue(f"phase {state} is not closed")


class RoundState:
    """The state of one half, and the only way to change it."""

    def __init__(
        self, table: Table, refusal: Callable[[State, Phase | Event], FedveilError]
    ) -> None:
        self._table = table
        self._refusal = refusal
        self.name: State = "advertise"

    @property
    def phase(self) -> Phase | None:
        """The phase whose messages are taken; None where none are."""
        return _OPEN.get(self.name)

    def after(self, event: Phase | Event) -> State:
        """The state that an event leads to; raises where it is illegal."""
        row = self._table[self.name]
        if event not in row:
            raise self._refusal(self.name, event)
        return row[event]

    def step(self, event: Phase | Event) -> None:
        """Go on to that state."""
        self.name = self.after(event)

    def resume(self, name: State) -> None:
        """Go on where another stood; only who has just begun can."""
        if name not in self._table or self.name != "advertise":
            raise InvalidValue(f"state {self.name} of this round cannot become {name}")
        self.name = name


def client_state(active_security: bool) -> RoundState:
    """Where a client begins."""
    return RoundState(SIGNING_CLIENT if active_security else CLIENT, _client_refusal)


def server_state(active_security: bool) -> RoundState:
    """Where the server begins."""
    return RoundState(SIGNING_SERVER if active_security else SERVER, _server_refusal)
