"""A site's reports to a framework whose server sends tasks, such as NVFlare.

`SiteReports` charges a training task to the data set's account before the data are read. The task
then makes exactly one report. An unusable update is reported as zero, under the same protection.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedveil.base.message import Message, decode, encode, text_in
from fedveil.entropy import Secure
from fedveil.errors import SiteError, SiteRefused, nearest
from fedveil.flower.answered_rounds import AnsweredFile
from fedveil.flower.app.arrays import ArrayLayout, Arrays
from fedveil.privacy.loss import PrivacyLoss
from fedveil.protections.always_answers import answer_trained, reason
from fedveil.protections.base import (
    TIMING,
    ClientContext,
    ClientRound,
    Protection,
    RoundContext,
    Spending,
    Update,
)
from fedveil.protections.last_answered import Answered
from fedveil.protections.secure_sum_settings import SecureSumSettings
from fedveil.site.account import Release, SiteAccount
from fedveil.site.admission import weak_sum
from fedveil.site.code_folder import files_of
from fedveil.site.site_folder import Seat, Site, server_of
from fedveil.site.task_terms import Terms, number_of, shaped

#: The account's sentence about an answer that leaves after its fixed time.
LATE = "the time that training takes where it is longer than clear.answer_after_s"


class SiteReports:
    """Makes the reports of a site for another framework, from the data set `data`.

    `folder` is the site's folder. `through` is the framework's name in account and log. `keys` are
    the protection and its parameters (`Terms.read`), which no job can change. Secure aggregation
    needs `server`, a name in the policy's `servers`. Raises `SiteError` if the policy does not
    allow the protection or does not list the data set.
    """

    def __init__(
        self,
        folder: Path,
        data: str,
        keys: Mapping[str, Any],
        through: str,
        server: str | None = None,
    ) -> None:
        self._site, self._data, self._through = Site.open(folder), data, through
        self.terms = Terms.read(keys)
        self._account: SiteAccount | None = None
        #: The client's state between two messages of a sum. It is used once and never saved.
        self._kept: tuple[bytes, int, Message] | None = None
        policy, options = self._site.policy, self.terms.options
        if options.protection not in policy.protections:
            name = options.protection
            raise SiteError(f"{name} is not one of protections in the policy of {folder}")
        if data not in policy.data:
            raise SiteError(f"{data} is not one of data in the policy{nearest(data, policy.data)}")
        self._seat: Seat | None = None
        if isinstance(options.parameters, SecureSumSettings):
            of = server_of(policy, server)
            asked, clients = options.parameters, options.clients or 1
            if reasons := list(weak_sum(policy, options.position, asked, clients)):
                raise SiteError(f"the policy refuses this protection: {'; '.join(reasons)}")
            self._seat = self._site.seat(of, signs=asked.active_security)

    def check_job(self, config: Path) -> None:
        """Raise `SiteRefused` unless the policy lists the digest of the job's folder `config`."""
        policy, digest = self._site.policy, config_digest(config)
        if policy.starters:
            raise SiteRefused(
                f"starters is set, but no one in people can sign a job of {self._through}"
            )
        if digest not in policy.jobs.digests:
            raise SiteRefused(
                f"the job's configuration has the digest {digest}, which is not in jobs.digests"
            )

    def answer(
        self, words: bytes, dimension: object, *, job: str, site: str, round: object
    ) -> bytes:
        """Return the encoded answer to a message of secure aggregation that requests no training.

        `words` is the encoded message, and `dimension` the length of an update. `job` identifies
        the run, `site` is this site's name in it, and `round` the round's number. Raises
        `SiteRefused` if the protection does not use secure aggregation, or if `dimension` or
        `round` is invalid.
        """
        if not self.terms.summed or type(dimension) is not int or dimension < 1:
            raise SiteRefused("the task is not a message of a secure sum")
        asked = decode(words)
        mine = self._round(job, dimension, site, round, asked)
        half = mine.half(np.broadcast_to(np.float32(0), dimension))
        answer = half.respond(asked, None)
        self._keep(mine, half)
        return encode(answer)

    def _round(
        self, job: str, dimension: int, site: str, round: object, asked: Message | None
    ) -> Round:
        """Return the data from which this site makes its answer to `asked`, the server's message.

        `job` identifies the run, `site` is this site's name in it, and `dimension` the length of an
        update. `asked` is None if the server sent no message of the protection. In secure
        aggregation, the data include the site's state after its previous answer in this round.
        Raises `SiteRefused` if `round` is not a round's number.
        """
        if type(round) is not int or round < 0:
            raise SiteRefused("the task does not say the number of its round")
        digest = self.terms.job(job, dimension)
        seat, kept, self._kept = self._seat, self._kept, None
        if seat is None:
            protection = self.terms.protection(dimension, digest)
            return Round(digest, round, number_of(site), protection, Answered(), asked, None)
        protection = self.terms.protection(dimension, digest, seat.roster, seat.identity)
        answered = AnsweredFile(seat.state.file(digest, seat.client, "answered"))
        first = asked is not None and text_in(asked, "phase") == protection.phases[0]
        mine = kept[2] if kept is not None and kept[:2] == (digest, round) and not first else None
        return Round(digest, round, seat.client, protection, answered, asked, mine)

    def _keep(self, of: Round, half: ClientRound) -> None:
        if left := half.keep():
            self._kept = (of.job, of.round, left)

    def admit(
        self,
        before: Arrays,
        *,
        job: str,
        task: str,
        site: str,
        round: object,
        words: bytes | None = None,
    ) -> Admitted:
        """Charge the report of a training task to the account, and return the charged task.

        `before` are the server's arrays. `job` identifies the run, `task` is the task's name,
        `site` this site's name in the run, and `round` the round's number. `words` is the encoded
        message of the protection that came with the task, or None without one. Raises `OverSpent`,
        `ModelInvalid` or `SiteRefused` before any data are read.
        """
        started = time.monotonic()
        if words is None and self.terms.needs_controller:
            raise SiteRefused("the task has no message of the protection: use ProtectedController")
        layout = self.terms.layout(before)
        asked = None if words is None else decode(words)
        mine = self._round(job, layout.dimension, site, round, asked)
        protection = mine.protection
        if self.terms.summed and mine.kept is None:
            raise SiteRefused("the server asks for a sum before the clients have exchanged keys")
        after_s = self._site.policy.clear.answer_after_s
        if self._account is None:
            self._account = self._site.account(self._data)
        released = Release(
            job=job,
            what=f"a report of task {task}",
            mechanism=str(self.terms.options.protection),
            spending=cost(protection, asked or {}),
            through=self._through,
            in_clear=() if after_s is not None else (TIMING,),
            summed=self.terms.summed,
        )
        self._account.charge(released, limit=self._site.policy.limits)
        own = {name: np.array(array) for name, array in before.items()}
        leaves_at = None if after_s is None else started + after_s
        return Admitted(self, layout, own, mine, leaves_at, released)

    def left_late(self, released: Release) -> None:
        """Record in the account that a report leaves after its fixed time.

        The time of such a report reveals how long the training took. `released` is the charged
        report. Call this method before it leaves. The account gets only one such line for each task
        of a run.
        """
        assert self._account is not None, "admit has charged the report"
        what = f"the time of {released.what}"
        self._account.disclose(replace(released, what=what, spending=(), in_clear=(LATE,)))

    def log(self, text: str) -> None:
        """Write `text` as one line to the site's log for the framework that requests reports."""
        with self._site.log(self._through.lower()) as log:
            log.line(text)

    def refused(self, what: str, error: BaseException) -> None:
        """Log that `what`, such as a report, does not leave the site. `error` is the reason."""
        self.log(f"refused {what}: {reason(error)}")


#: Files that NVFlare adds to each folder of a submitted job.
_SIGNATURES = (".__nvfl_sig.json", ".__nvfl_submitter.crt")


@dataclass(frozen=True)
class Round:
    """The data from which a site makes one answer in a round.

    `job` is the run's digest, `round` the round's number, and `client` the site's client number.
    `answered` remembers for which round the site last sent an update. `asked` is the server's
    message, or None if it sent none. `kept` is the state after the site's previous answer in this
    round, or None before the first answer.
    """

    job: bytes
    round: int
    client: int
    protection: Protection
    answered: Answered
    asked: Message | None
    kept: Message | None

    def half(self, model: Update, examples: int = 1) -> ClientRound:
        """Return the object that makes this client's answers in the round.

        It continues from the state `kept`, unless that is None. `model` is the vector of the
        server's weights, and `examples` the number of the client's training examples.
        """
        made = self.protection.client_round(
            ClientContext(self.client, self.round, model, examples, Secure(), self.answered)
        )
        if self.kept is not None:
            made.take_up(self.kept)
        return made


@dataclass(frozen=True)
class Admitted:
    """A training task whose report is charged. It makes exactly one report.

    `before` has the server's arrays, and `layout` their positions in an update. `of` has the data
    of the round, and `released` is the charge in the account. `leaves_at` is the monotonic time at
    which the report leaves, or None if it leaves when it is ready.
    """

    reports: SiteReports
    layout: ArrayLayout
    before: Arrays
    of: Round
    leaves_at: float | None
    released: Release

    def report(self, after: Callable[[], tuple[Arrays, bool]]) -> Report:
        """Make the report from the arrays that `after` returns. Waits until the time `leaves_at`.

        `after` returns the trained arrays, and True if they are differences from the server's
        arrays. If `after` fails or returns unusable arrays, the reported update is zero. An error
        in the server's message is raised, but only at `leaves_at`. So the time of an answer reveals
        nothing about the data. A report that is ready later leaves at once, and the account records
        that it was late.
        """
        try:
            return self._made(after)
        finally:
            self.wait()

    def wait(self) -> None:
        """Wait until the time `leaves_at`. The account records if it is over already."""
        if self.leaves_at is None:
            return
        left = self.leaves_at - time.monotonic()
        if left < 0:
            self.reports.left_late(self.released)
        time.sleep(max(0.0, left))

    def _made(self, after: Callable[[], tuple[Arrays, bool]]) -> Report:
        mine, model = self.of, self.layout.vector(self.before)
        state = mine.protection.initial_state()
        context = RoundContext([mine.client], mine.round, model, state)
        asked = mine.asked or mine.protection.server_round(context).opening()
        answered = answer_trained(
            mine.protection,
            lambda examples: mine.half(model, examples),
            lambda: mine.half(model),
            asked,
            lambda: (self._update(*after()), 1),
            always=True,
        )
        self.reports._keep(mine, answered.half)
        if answered.unusable is not None:
            self.reports.log(f"reported an update of zero: {reason(answered.unusable)}")
        return Report(answered.message, mine.protection, context, self.layout)

    def _update(self, after: Arrays, differences: bool) -> Update:
        before = self.before
        if differences:
            before = {name: np.zeros_like(array) for name, array in after.items()}
        return self.layout.update(before, after)


@dataclass(frozen=True)
class Report:
    """A protected report of one round, which is already charged to the site's account."""

    message: Message
    protection: Protection
    context: RoundContext
    layout: ArrayLayout

    def encoded(self) -> bytes:
        """Return the report as the bytes that `ReportSum.add` takes."""
        return encode(self.message)

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the report as an estimate of the site's update: arrays by name.

        A server that only averages arrays can use it, if the protection permits (`Terms.plain`).
        """
        return shaped(self.layout, self.protection.reading(self.context, self.message).estimate)


def cost(protection: Protection, asked: Message) -> list[Spending]:
    """Return an upper bound on the cost of the report that the server requests with `asked`.

    The bound assumes the fewest survivors that a round allows, and no noise from the server. So the
    bound is infinite for a protection that relies on the server's noise.
    """
    spending = list(protection.spending({**protection.initial_state(), **asked}))
    if protection.rests_on_server(protection.settings):
        return [Spending(PrivacyLoss(float("inf"), per="update"), s.count) for s in spending]
    return spending


def config_digest(config: Path) -> str:
    """Return the digest of a job's configuration folder, without NVFlare's signature files.

    It covers all subfolders, because NVFlare searches them for configuration files.
    """
    found = (path for path in sorted(config.rglob("*")) if path.name not in _SIGNATURES)
    return files_of(config, list(found)).digest
