"""One party of a vertical run on a machine of its own, linked to the others.

The leader listens and each follower connects to it. All parties agree on the job, the examples and
the step (`handshake`) at the start and whenever a party has restarted. So the resulting weights do
not change if a party is killed and restarted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NoReturn

from fedveil.base.message import Message, Value, text_in
from fedveil.base.quantity import quantity
from fedveil.errors import (
    EndedBySignal,
    ExchangeError,
    FedveilError,
    LimitReached,
    LinkLost,
    PeerRestarted,
    RightMissing,
    RunFolderError,
    Unfit,
)
from fedveil.link.channel import Channel, Exchange, drive
from fedveil.link.dialer import Dialer
from fedveil.link.link import Link
from fedveil.link.listener import Listener
from fedveil.link.rights import check_right
from fedveil.link.roles import right_of
from fedveil.link.streams import Address
from fedveil.link.tls import Credentials
from fedveil.record.lifecycle import how_to_resume
from fedveil.vertical.epsilon_limit import REACHED
from fedveil.vertical.party_log import Progress
from fedveil.vertical.party_run import PartyRun
from fedveil.vertical.remote import handshake
from fedveil.vertical.remote.handshake import TRAIN
from fedveil.vertical.remote.handshake_state import Agreement, Standing
from fedveil.vertical.remote.handshake_time import InHandshake, handshake_s, in_handshakes
from fedveil.vertical.remote.machine import Machine, Session
from fedveil.vertical.step_checkpoint import from_last_step, untrained

LEADER = "fedveil vertical leader"
FOLLOWER = "fedveil vertical follower"


@dataclass(frozen=True)
class Meeting:
    """The address at which a party meets the others, and the functions that report to its user.

    Without credentials the link is plaintext and allowed only on loopback addresses. The session
    ends if another party is away for more than `patience_s` seconds. A follower with `serves` waits
    for its leader without a limit, but a handshake that has begun still has one. `listening` is
    called with the address once the leader listens.
    """

    address: Address
    credentials: Credentials | None
    patience_s: float = 600.0
    report: Callable[[str], None] = print
    progress: Progress | None = None
    listening: Callable[[Address], None] = field(default=lambda address: None)
    serves: bool = False

    @property
    def link_patience_s(self) -> float:
        """The seconds that a link waits for a party: infinite if `serves`, else `patience_s`."""
        return math.inf if self.serves else self.patience_s


# --- the leader


def lead(
    machine: Machine,
    meeting: Meeting,
    purpose: str = TRAIN,
    own: Callable[[PartyRun], Exchange[Any]] | None = None,
) -> Session:
    """Run the leader's side of a whole session. `purpose` says what it is for, such as "train".

    `own` is the leader's side of the exchange of messages. None means the usual side for the
    purpose, such as `PartyRun.train`.
    """
    followers = machine.split.followers
    for follower in followers:
        check_right(meeting.credentials, follower, right_of(purpose))
    links = {name: Link(name, patience_s=meeting.link_patience_s) for name in followers}
    with (
        _how_to_resume(machine, purpose, LEADER),
        Listener(
            meeting.address, links, machine.party, meeting.credentials, meeting.report
        ) as listener,
        closing(links.values()),
    ):
        meeting.listening(listener.address)
        attempt, seed = 0, machine.job.seed
        while True:
            attempt += 1
            for link in links.values():
                link.begin()
            try:
                standing = machine.standing()
                timed = in_handshakes(links, _handshake_s(machine, meeting, standing))
                agreeing = handshake.lead(
                    standing,
                    followers,
                    attempt=attempt,
                    purpose=purpose,
                    order_seed=seed,
                    keep_run=machine.keep_run,
                )
                agreement = drive(agreeing, timed)
                if purpose != TRAIN and not agreement.step:
                    raise RunFolderError(untrained(machine.root.path))
                _tell(meeting, agreement)
                session = machine.play(
                    agreement, links, meeting.progress, own, meeting.report, meeting.credentials
                )
                return _noting(links, session)
            except Unfit as unfit:
                meeting.report(f"refused: {unfit}")
                links[unfit.follower].refuse(str(unfit))
                links[unfit.follower].await_another()
            except PeerRestarted as restart:
                meeting.report(f"{restart}: back to the last step that all parties have saved")


# --- a follower


class StartOver(PeerRestarted):
    """Raised when the leader begins a new handshake. `begin` is its first message."""

    def __init__(self, begin: Message) -> None:
        self.begin = begin
        super().__init__("the leader starts over")


class Attentive:
    """A follower's channel to the leader, which notices that the leader begins a new handshake.

    `receive` then raises StartOver. If `has_begun` is False, no handshake has begun yet: `receive`
    returns the first message, even if it begins a handshake.
    """

    def __init__(self, link: Channel, *, has_begun: bool = True) -> None:
        self.peer = link.peer
        self.send = link.send
        self._link = link
        self._has_begun = has_begun

    def receive(self) -> dict[str, Value]:
        message = self._link.receive()
        if text_in(message, "kind") == "begin" and self._has_begun:
            raise StartOver(message)
        self._has_begun = True
        return message


def serve(machine: Machine, meeting: Meeting) -> NoReturn:
    """Take part, as a follower, in all of the leader's sessions with the trained model.

    Never returns. Reports lost links and invalid messages, and then waits for the next session.
    """
    while True:
        try:
            follow(machine, replace(meeting, serves=True), looks=True)
        except (LinkLost, ExchangeError) as error:
            meeting.report(str(error))


def follow(machine: Machine, meeting: Meeting, *, looks: bool = False) -> Session:
    """Run a follower's side of a session.

    `looks` is True for a session that only evaluates or predicts, and False for a training. Raises
    ExchangeError if the leader wants a session of the other kind.
    """
    leader = machine.split.leader
    link = Link(leader, patience_s=meeting.link_patience_s)
    with (
        _how_to_resume(machine, "" if looks else TRAIN, FOLLOWER),
        Dialer(meeting.address, link, machine.party, meeting.credentials),
        closing([link]),
    ):
        begin: Message | None = None
        while True:
            link.begin()
            try:
                check = partial(_check_purpose, meeting, leader)
                standing = replace(machine.standing(), check=check)
                timed = InHandshake(link, _handshake_s(machine, meeting, standing))
                if begin is not None:
                    timed.start()
                agreeing = handshake.follow(standing, leader, begin)
                agreement = drive(agreeing, {leader: timed})
                if looks == (agreement.purpose == TRAIN):
                    here = "serve" if looks else TRAIN
                    raise ExchangeError(
                        f"{machine.party} was started to {here}, but {leader} to "
                        f"{agreement.purpose}"
                    )
                _tell(meeting, agreement)
                attentive = {leader: Attentive(link)}
                session = machine.play(
                    agreement,
                    attentive,
                    meeting.progress,
                    say=meeting.report,
                    credentials=meeting.credentials,
                )
                return _noting({leader: link}, session)
            except (ExchangeError, RightMissing) as error:
                machine.log_refusal(error.told)
                raise
            except PeerRestarted as restart:
                begin = restart.begin if isinstance(restart, StartOver) else None
                meeting.report(f"{restart}: back to the last step that all parties have saved")


def _noting(links: Mapping[str, Link], session: Session) -> Session:
    for peer, link in links.items():
        if link.reconnections:
            session.run.log.event(
                f"the link to {peer} was reopened {quantity(link.reconnections, 'time')}, after "
                f"{link.away_s:.1f} s in all"
            )
    return session


def _handshake_s(machine: Machine, meeting: Meeting, own: Standing) -> float:
    followers, ids = len(machine.split.followers), sum(map(len, own.ids.values()))
    return handshake_s(meeting.patience_s, followers, ids, own.most_ids)


def _check_purpose(meeting: Meeting, leader: str, purpose: str) -> None:
    check_right(meeting.credentials, leader, right_of(purpose))


def _tell(meeting: Meeting, agreement: Agreement) -> None:
    for note in agreement.notes:
        meeting.report(note)
    if agreement.step:
        meeting.report(f"{agreement.purpose} from step {agreement.step}")


def _how_to_resume(machine: Machine, purpose: str, command: str) -> AbstractContextManager[None]:
    def note() -> str:
        begun = machine.folder is not None and purpose == TRAIN
        return from_last_step(command, machine.root.path) if begun else ""

    return how_to_resume(note)


@contextmanager
def closing(links: Iterable[Link]) -> Iterator[None]:
    """Close the links at the end of a `with` block. If the block raises, peers get the reason.

    If a signal of a supervisor ends the block, peers are not told, and wait for this party.
    """
    reason: str | None = ""
    try:
        yield
    except BaseException as error:
        reason = _told_of(error)
        raise
    finally:
        for link in links:
            link.close(reason)


def _told_of(error: BaseException) -> str | None:
    match error:
        case EndedBySignal():
            return None
        case ExchangeError() | RightMissing():
            return error.told
        case KeyboardInterrupt():
            return "it was interrupted"
        case LinkLost():
            return "it has lost another party"
        case LimitReached():
            return REACHED
        case FedveilError():
            return "it met an error of its own"
    return "it failed"
