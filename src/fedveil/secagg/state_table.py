"""The states of a client and of the server in a round, and the allowed transitions.

Only `RoundState` changes a state. A client's state is the phase whose message it waits for. A
message that is refused or out of order leads to the final state `withheld`: a client that answered
twice could be made to disclose shares of both secrets of one peer.

The server's state is the phase whose answers it accepts. An answer of another phase is refused and
changes nothing. Closing a phase leads to the next one if enough clients have answered, otherwise to
`void`. With active security, survivors sign the list of survivors before any share is disclosed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Literal, NamedTuple, TypeAlias

from fedveil.errors import ClientWithheld, FedveilError, InvalidValue
from fedveil.secagg.phases import PHASES, Phase

State: TypeAlias = Literal[Phase, "done", "withheld", "unmasking", "complete", "void"]


class Event(Enum):
    """An event that changes the state of a round and is not a message."""

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


class Actions(NamedTuple):
    """The names of the server's methods for one phase.

    `asks` returns the messages that open the phase, and `takes` processes an answer. When the phase
    is closed, `counts` returns how many useful answers there are and how many are needed. If there
    are enough, `closes` returns the clients that continue.
    """

    asks: str
    takes: str
    counts: str
    closes: str


SERVER_ACTIONS: Mapping[State, Actions] = {
    "advertise": Actions("opening", "_take_keys", "_count_sharers", "_draw_sharers"),
    "share": Actions("_send_keys", "_take_sealed", "_count_holders", "_keep_all"),
    "masked": Actions("_send_shares", "_take_vector", "_count_vectors", "_decide_survivors"),
    # Signatures count by themselves, without regard to the shares that their signers hold.
    "consistency": Actions("_send_survivors", "_take_signature", "_count_answers", "_keep_all"),
    "unmask": Actions("_send_requests", "_take_disclosed", "_count_holders", "_keep_all"),
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
    """The state of a client or of the server in a round. Only this class changes it."""

    def __init__(
        self, table: Table, refusal: Callable[[State, Phase | Event], FedveilError]
    ) -> None:
        self._table = table
        self._refusal = refusal
        self.name: State = "advertise"

    @property
    def phase(self) -> Phase | None:
        """Return the phase whose messages are accepted, or None if none are accepted."""
        return _OPEN.get(self.name)

    def after(self, event: Phase | Event) -> State:
        """Return the state to which `event` leads, without changing the state.

        If the event is not allowed now, raises `ClientWithheld` (the state of a client) or
        `InvalidValue` (the state of the server).
        """
        row = self._table[self.name]
        if event not in row:
            raise self._refusal(self.name, event)
        return row[event]

    def step(self, event: Phase | Event) -> None:
        self.name = self.after(event)

    def resume(self, name: State) -> None:
        """Set the state to `name`, which another process saved. Only a new object can resume."""
        if name not in self._table or self.name != "advertise":
            raise InvalidValue(f"state {self.name} of this round cannot become {name}")
        self.name = name


def client_state(active_security: bool) -> RoundState:
    return RoundState(SIGNING_CLIENT if active_security else CLIENT, _client_refusal)


def server_state(active_security: bool) -> RoundState:
    return RoundState(SIGNING_SERVER if active_security else SERVER, _server_refusal)
