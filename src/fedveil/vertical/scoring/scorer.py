"""One party's side of scoring new rows with a model bundle: its part, its rows and its account.

    rows      leader -> followers   the number of the request, and positions among the common rows
    allowed   follower -> leader    the positions that the follower's `privacy.max_epsilon` allows
    go        leader -> followers   the positions that all parties allow
    tensors   as in an evaluation, under the same protection
    enough    leader -> followers   the end of the requests

A follower answers requests only in the order of their numbers, and sends a row only after the row
was allowed and charged. So a repeated or changed message reveals nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedveil.base.array_types import Array
from fedveil.base.message import Message, Value, check_kind, only_fields, take, take_array, text_in
from fedveil.entropy import Secure
from fedveil.errors import ExchangeError, InvalidValue, MessageInvalid
from fedveil.link.channel import Exchange, Send, received
from fedveil.link.tls import Credentials
from fedveil.mechanisms.label_dp import LabelDP
from fedveil.privacy.ledger import Line
from fedveil.record.account_lines import keep_accounts
from fedveil.record.model_file import read_model
from fedveil.record.recorder import Recorder
from fedveil.record.run_folder import JOB, MODEL, RunFolder
from fedveil.record.saved_job import look_where_a_run_looked
from fedveil.vertical.bundle import STATE, Bundle
from fedveil.vertical.crossing import SCORE, check_not_abort, check_sizes
from fedveil.vertical.crossing_reports import Reports
from fedveil.vertical.epsilon_limit import Limit
from fedveil.vertical.job import job_of_run
from fedveil.vertical.job_split import make_split, make_task, threads
from fedveil.vertical.party import Party
from fedveil.vertical.rows import Positions, Rows
from fedveil.vertical.scoring.guesses import begin_counts
from fedveil.vertical.scoring.scored_examples import ScoredExamples
from fedveil.vertical.task import NewRows
from fedveil.vertical.told_failures import keep_failure, told_failure

#: The largest number of rows in a request.
MOST_ROWS = 4096
#: The default of the limit on ids is this multiple of the number of own ids.
_MULTIPLE = 4


@dataclass(frozen=True, eq=False)
class Scores:
    """The result of a request: a mask of the scored rows, and the outputs for these rows."""

    allowed: npt.NDArray[np.bool_]
    outputs: npt.NDArray[Any]


class Scorer:
    """Scores the rows of the file `data` with a party's model bundle in the folder `path`.

    Only one process at a time can use a bundle. With credentials `own`, the signatures of the
    bundle are checked against a trusted authority. `say` receives sentences for the user. At most
    `most_ids` ids are accepted from another party (None: the job's `alignment.most_ids`).
    """

    def __init__(
        self,
        path: Path,
        data: str,
        stack: ExitStack,
        own: Credentials | None = None,
        say: Callable[[str], None] = lambda sentence: None,
        most_ids: int | None = None,
    ) -> None:
        folder = RunFolder.reopen(path)
        stack.callback(folder.close)
        self.bundle = Bundle.read(path)
        look_where_a_run_looked(path)
        self.job = job_of_run(path / JOB)
        stack.enter_context(threads(self.job.threads))
        self.name, manifest = self.bundle.contents.party, self.bundle.manifest
        self.folder, self.state = folder, folder.within(STATE)
        begin_counts(self.state)
        self.log = Recorder(self.state)
        stack.callback(self.log.close)
        self._say = say
        unchecked = self.bundle.signatures.check(manifest.written(), list(manifest.contents), own)
        if unchecked is not None:
            self.note(unchecked)
        self.task = make_task(self.job, folder.path, 0)
        self.split = make_split(self.job, self.task, {self.name}, 0)
        check_sizes(self.split, MOST_ROWS)
        is_leader = self.name == self.split.leader
        self.party = Party(
            self.name,
            self.split,
            loss=self.task.loss if is_leader else None,
            device=self.job.device,
            report=Reports(Secure(), note=self.note, remember=False),
            failed=partial(keep_failure, self.state),
        )
        read_model(folder.path / MODEL, self.party.modules)
        label = self.job.privacy.label_dp if is_leader else None
        privacy = self.job.privacy
        loss = None if label is None else LabelDP(label.eps).loss
        limit = Limit(self.split, self.name, privacy.max_epsilon, privacy.delta, loss)
        self.scored = ScoredExamples(folder, self.state, self.split, self.name, limit)
        stack.callback(self.scored.close)
        self.new: NewRows = self.task.new_rows(self.name, data, folder.path)  # type: ignore[attr-defined]
        self.ids = self.new.columns.ids
        self.scored.load(self.ids)
        own_limit = self.job.alignment.most_ids or _MULTIPLE * len(self.ids)
        #: The largest number of ids that this party accepts from another for this file.
        self.most_ids = own_limit if most_ids is None else most_ids
        for sentence in self.new.notes:
            self.note(sentence)
        self._used = np.zeros(0, np.int64)
        self._rows: Rows | None = None
        self._request = 0

    @property
    def followers(self) -> Sequence[str]:
        return self.split.followers

    def note(self, sentence: str) -> None:
        """Write a sentence to the bundle's log, and show it to the user of this party."""
        self.log.event(sentence)
        self._say(f"{self.name}: {sentence}")

    def use(self, positions: Positions) -> None:
        """Choose the rows to score: `positions` in this party's file, in the common order."""
        wanted = self.split.columns(self.name)
        self._used, self._request = positions, 0
        self._rows = Rows.aligned(self.new.columns, wanted, positions)
        self.note(
            f"{len(positions):,} of {len(self.ids):,} rows can be scored: all parties have them"
        )

    def keep_account(self) -> list[Line]:
        """Save this party's epsilons of scored examples to the bundle. Returns the saved lines."""
        lines = self.scored.figures()
        lines = [*lines, *told_failure(self.state)] if lines else []
        keep_accounts(self.state, lines, self.log.event)
        return lines

    def ask(self, positions: Positions) -> Exchange[Scores]:
        """Score rows as the leader, with all followers. Returns the outputs for the allowed rows.

        `positions` are distinct positions among the common rows.
        """
        self._check(positions)
        self._request += 1
        request = {"request": self._request}
        allowed = self.scored.allowed(self._used[positions])
        for follower in self.followers:
            yield Send(follower, {"kind": "rows", **request, "positions": positions})
        for follower in self.followers:
            message = yield from received(follower)
            allowed &= self._allowed(follower, message, len(positions))
        going = positions[allowed]
        for follower in self.followers:
            yield Send(follower, {"kind": "go", **request, "positions": going})
        outputs = yield from self._look(going)
        assert outputs is not None or not len(going), "the leader has the outputs"
        empty = np.zeros((0, *self.split.last.output), np.float32)
        return Scores(allowed, empty if outputs is None else outputs)

    def finish(self) -> Exchange[None]:
        for follower in self.followers:
            yield Send(follower, {"kind": "enough", "request": self._request + 1})

    def answer(self) -> Exchange[None]:
        """Run a follower's side: answer requests until the leader sends no more."""
        leader = self.split.leader
        try:
            while True:
                message = yield from received(leader)
                if text_in(message, "kind") == "enough":
                    self._due(message, "enough", self._request + 1, "request")
                    return
                asked = self._asked(message, "rows", self._request + 1)
                self._check(asked)
                self._request += 1
                allowed = self.scored.allowed(self._used[asked])
                said: dict[str, Value] = {"kind": "allowed", "request": self._request}
                yield Send(leader, {**said, "allowed": allowed.astype(np.uint8)})
                going = self._asked((yield from received(leader)), "go", self._request)
                if not np.isin(going, asked[allowed]).all():
                    raise MessageInvalid("it asks for rows that were not allowed")
                if len(going):
                    self._check(going)
                yield from self._look(going)
        except (MessageInvalid, InvalidValue) as error:
            raise ExchangeError(f"{leader} sent an invalid request: {error}") from None

    def _look(self, positions: Positions) -> Exchange[Array | None]:
        if not len(positions):
            return None
        assert self._rows is not None, "use comes first"
        self.scored.charge(self._used[positions])
        batch = self._rows.batch(positions)
        outputs = yield from self.party.look(self._request, batch, subset=SCORE)
        return None if outputs is None else outputs.float().cpu().numpy()

    def _check(self, positions: Positions) -> None:
        if not 1 <= len(positions) <= MOST_ROWS:
            raise InvalidValue(f"it asks for {len(positions):,} rows; 1 to {MOST_ROWS:,} may be")
        held = len(self._used)
        if positions.min() < 0 or positions.max() >= held:
            raise InvalidValue(f"it asks for rows that are not among the {held:,} common ones")
        if len(np.unique(positions)) < len(positions):
            raise InvalidValue("it asks for a row twice")

    def _asked(self, message: Message, kind: str, request: int) -> Positions:
        self._due(message, kind, request, "request", "positions")
        # An array from a message is read-only, which torch warns about.
        return take_array(message, "positions", np.int64, (None,)).copy()

    def _allowed(self, follower: str, message: Message, count: int) -> npt.NDArray[np.bool_]:
        try:
            self._due(message, "allowed", self._request, "request", "allowed")
            found = take_array(message, "allowed", np.uint8, (count,))
            if found.max(initial=0) > 1:
                raise MessageInvalid("it is not a mask of rows")
        except MessageInvalid as error:
            raise ExchangeError(f"{follower} sent an invalid answer: {error}") from None
        return found.astype(bool)

    def _due(self, message: Message, kind: str, request: int, *fields: str) -> None:
        check_not_abort(message, "the other party")
        check_kind(message, kind)
        only_fields(message, "kind", *fields)
        if (number := take(message, "request", int)) != request:
            raise MessageInvalid(f"it is request {number}, and request {request} was due")
