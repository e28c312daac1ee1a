"""Sources of scores for the leader: all parties in one process, or followers on other machines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from fedveil.errors import (
    BundleInvalid,
    ExchangeError,
    FedveilError,
    FewCommon,
    InvalidValue,
    LinkLost,
    PeerRestarted,
    RunFolderError,
    Unfit,
)
from fedveil.link.channel import Exchange, drive, drive_together
from fedveil.link.dialer import Dialer
from fedveil.link.link import Link
from fedveil.link.listener import Listener
from fedveil.link.rights import check_right
from fedveil.link.roles import right_of
from fedveil.vertical.bundle import BUNDLE, CONTENTS
from fedveil.vertical.remote.handshake_time import InHandshake, handshake_s, in_handshakes
from fedveil.vertical.remote.sessions import Attentive, Meeting, StartOver, closing
from fedveil.vertical.rows import Positions, align, with_hint
from fedveil.vertical.scoring import row_alignment
from fedveil.vertical.scoring.row_alignment import PURPOSE
from fedveil.vertical.scoring.scorer import Scorer, Scores
from fedveil.vertical.task import id_hint_of

T = TypeVar("T")


class Source(Protocol):
    leader: Scorer

    @property
    def common(self) -> Positions:
        """The positions in the leader's file, ascending, of the rows that all parties have."""

    @property
    def is_connected(self) -> bool:
        """True if every party can answer a request now."""

    def scores(self, rows: Positions) -> Scores:
        """Return the outputs for distinct common rows, and a mask of the rows that were scored.

        `rows` are positions in the leader's file.
        """


class Together:
    """Computes scores with all parties of a saved model, whose bundles are all on this machine."""

    is_connected = True

    def __init__(self, scorers: Sequence[Scorer], *, encoded: bool = False) -> None:
        names = {scorer.bundle.name for scorer in scorers}
        if len(names) > 1:
            raise BundleInvalid("the bundles are of different models: name those of one run")
        self._all = {scorer.name: scorer for scorer in scorers}
        if missing := [party for party in scorers[0].split.parties if party not in self._all]:
            raise BundleInvalid(
                f"the bundle of {' and '.join(missing)} is missing: name the run's folder, or give "
                f"the leader --listen HOST:PORT and each follower --connect HOST:PORT"
            )
        self.leader = self._all[scorers[0].split.leader]
        self._encoded = encoded
        ids = {name: scorer.ids for name, scorer in self._all.items()}
        try:
            aligned = align(ids, self.leader.name)
        except FewCommon as error:
            raise FewCommon(with_hint(str(error), id_hint_of(self.leader.task, ids))) from None
        for name, positions in aligned.items():
            self._all[name].use(positions)
            if name == self.leader.name:
                self.common = positions
        self._place = _places(self.common, len(self.leader.ids))

    def scores(self, rows: Positions) -> Scores:
        leader = self.leader
        followers = {n: s for n, s in self._all.items() if n != leader.name}
        positions = self._place[rows]
        exchanges: dict[str, Exchange[Any]] = {leader.name: _once(leader, positions)}
        for name, scorer in followers.items():
            exchanges[name] = scorer.answer()
        found: Scores = drive_together(exchanges, encoded=self._encoded)[leader.name]
        return found


class Apart:
    """Computes scores with followers on other machines, even after a follower restarts."""

    def __init__(self, leader: Scorer, meeting: Meeting, stack: ExitStack) -> None:
        self.leader, self._meeting = leader, meeting
        for follower in leader.followers:
            check_right(meeting.credentials, follower, right_of(PURPOSE))
        patience_s = meeting.link_patience_s
        self._links = {name: Link(name, patience_s=patience_s) for name in leader.followers}
        listener = Listener(
            meeting.address, self._links, leader.name, meeting.credentials, meeting.report
        )
        stack.enter_context(closing(self._links.values()))
        meeting.listening(stack.enter_context(listener).address)
        self._attempt, self._agreed = 0, False
        stack.callback(self._finish)
        self.common = np.zeros(0, np.int64)
        self._retrying(self._align)

    @property
    def is_connected(self) -> bool:
        return all(link.is_connected for link in self._links.values())

    def scores(self, rows: Positions) -> Scores:
        return self._retrying(lambda: self._scores(rows))

    def _scores(self, rows: Positions) -> Scores:
        if not self._agreed:
            self._align()
        positions = self._place[rows]
        if len(positions) and positions.min() < 0:
            raise ExchangeError("a follower has restarted without some rows that it had before")
        return drive(self.leader.ask(positions), self._links)

    def _align(self) -> None:
        self._attempt += 1
        for link in self._links.values():
            link.begin()
        timed = in_handshakes(self._links, _handshake_s(self.leader, self._meeting))
        self.common = drive(row_alignment.lead(self.leader, self._attempt), timed)
        self.leader.use(self.common)
        self._place = _places(self.common, len(self.leader.ids))
        self._agreed = True

    def _retrying(self, work: Callable[[], T]) -> T:
        while True:
            try:
                return work()
            except Unfit as unfit:
                self._agreed = False
                self._meeting.report(f"refused: {unfit}")
                self._links[unfit.follower].refuse(str(unfit))
                self._links[unfit.follower].await_another()
            except PeerRestarted as restart:
                self._agreed = False
                self._meeting.report(f"{restart}: the parties find their common rows again")

    def _finish(self) -> None:
        if self._agreed:
            with suppress(FedveilError):
                drive(self.leader.finish(), self._links)


def follow(scorer: Scorer, meeting: Meeting) -> None:
    """Run a follower's side of one scoring session with the leader at the address in `meeting`."""
    leader = scorer.split.leader
    check_right(meeting.credentials, leader, right_of(PURPOSE))
    link = Link(leader, patience_s=meeting.link_patience_s)
    limit_s = _handshake_s(scorer, meeting)
    with Dialer(meeting.address, link, scorer.name, meeting.credentials), closing([link]):
        begin, timed = None, InHandshake(link, limit_s)
        while True:
            link.begin()
            try:
                if begin is not None:
                    timed.start()
                aligning = Attentive(timed, has_begun=begin is not None)
                scorer.use(drive(row_alignment.follow(scorer, begin), {leader: aligning}))
                timed = InHandshake(link, limit_s)
                drive(scorer.answer(), {leader: Attentive(link)})
                return
            except PeerRestarted as restart:
                begin = restart.begin if isinstance(restart, StartOver) else None
                if begin is None:
                    timed = InHandshake(link, limit_s)
                meeting.report(f"{restart}: the parties find their common rows again")
            finally:
                scorer.keep_account()


def _handshake_s(scorer: Scorer, meeting: Meeting) -> float:
    followers, ids = len(scorer.split.followers), len(scorer.ids)
    return handshake_s(meeting.patience_s, followers, ids, scorer.most_ids)


def serve(scorer: Scorer, meeting: Meeting) -> NoReturn:
    """Take part, as a follower, in all of the leader's scoring sessions, one after another."""
    while True:
        try:
            follow(scorer, replace(meeting, serves=True))
        except (LinkLost, ExchangeError) as error:
            meeting.report(str(error))


def bundles_in(path: Path) -> list[Path]:
    if (path / CONTENTS).is_file():
        return [path]
    found = sorted(file.parent for file in path.glob(f"*/{BUNDLE}/{CONTENTS}"))
    if not found:
        raise RunFolderError(
            f"{path} has no model bundle: name the folder of a finished run whose task is tables"
        )
    return found


def files_of(data: Sequence[str], parties: Sequence[str]) -> Mapping[str, str]:
    """Return the file of each party in `parties`, from the texts `PARTY=FILE` in `data`.

    With one party, a text may be `FILE`. Raises InvalidValue if a party has no file or several.
    """
    files: dict[str, str] = {}
    for text in data:
        party, mark, file = text.partition("=")
        if not mark or party not in parties:
            if len(parties) > 1:
                raise InvalidValue(
                    f"--data {text!r} names no party: write --data PARTY=FILE, for each of "
                    f"{', '.join(parties)}"
                )
            party, file = parties[0], text
        if party in files:
            raise InvalidValue(f"--data names {party} twice")
        files[party] = file
    if missing := [party for party in parties if party not in files]:
        raise InvalidValue(f"--data {missing[0]}=FILE is missing: every party has rows to score")
    return files


def _once(leader: Scorer, positions: Positions) -> Exchange[Scores]:
    found = yield from leader.ask(positions)
    yield from leader.finish()
    return found


def _places(common: Positions, count: int) -> npt.NDArray[np.int64]:
    """Return the index in `common` of each row from 0 to `count` - 1, or -1 if it is not there."""
    place = np.full(count, -1, np.int64)
    place[common] = np.arange(len(common))
    return place
