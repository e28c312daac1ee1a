"""A site's reports to a framework whose clients send one result a round, such as NVFlare.

`SiteReports` admits a training task: it charges the account of the data set before the data are
read. The admitted task then makes one report of whatever the training returned. An update that
cannot be used is reported as zero, so that a failure reveals nothing. `ReportSum` is the server's
half.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedveil.base.message import Message, decode, encode
from fedveil.entropy import Secure
from fedveil.errors import InvalidValue, SiteError, SiteRefused, nearest
from fedveil.flower.app.arrays import ArrayLayout, Arrays
from fedveil.flower.app.offer import Offer, check
from fedveil.flower.app.options import Options, parse
from fedveil.protections.always_answers import answer_trained, reason
from fedveil.protections.base import (
    TIMING,
    ClientContext,
    ClientRound,
    Protection,
    RoundContext,
    ServerRound,
    Update,
)
from fedveil.site.account import Release, SiteAccount
from fedveil.site.site_folder import Site

#: The protections whose reports need nothing of the server but the model.
ONE_MESSAGE = ("dp_encrypt", "rr", "oue")


@dataclass(frozen=True)
class Terms:
    """A protection whose clients send one report a round, with its parameters."""

    options: Options

    @classmethod
    def read(cls, keys: Mapping[str, Any]) -> Terms:
        """Return the terms. Raises `JobError` or `InvalidValue`.

        `keys` has the keys of a protected Flower app: `protection`, `keep`, and the protection's
        own.
        """
        options = parse(keys)
        check(options)
        if options.protection not in ONE_MESSAGE or cls(options).protection(1).adaptive:
            raise InvalidValue(
                f"protection = {options.protection} needs messages of the server's half, which "
                f"do not come here: use {', '.join(ONE_MESSAGE)}, without adaptive"
            )
        return cls(options)

    def layout(self, arrays: Arrays) -> ArrayLayout:
        """Return the places of the arrays in an update."""
        return ArrayLayout(arrays, self.options.kept, perturbed=self.options.noised)

    def protection(self, dimension: int) -> Protection:
        """Return the protection for updates with this number of entries."""
        return Offer(self.options, "", dimension, 1).protection(0)


class SiteReports:
    """The reports of one data set of a site. `through` names the framework in account and log.

    `keys` are the terms (`Terms.read`), which the site chooses and no job can change. Raises
    `SiteError` if the site's policy does not allow the protection or lacks the data set.
    """

    def __init__(self, folder: Path, data: str, keys: Mapping[str, Any], through: str) -> None:
        self._site, self._data, self._through = Site.open(folder), data, through
        self._terms = Terms.read(keys)
        self._account: SiteAccount | None = None
        policy, name = self._site.policy, self._terms.options.protection
        if name not in policy.protections:
            raise SiteError(f"{name} is not one of protections in the policy of {folder}")
        if data not in policy.data:
            raise SiteError(f"{data} is not one of data in the policy{nearest(data, policy.data)}")

    def admit(self, before: Arrays, *, job: str, task: str, site: str, round: object) -> Admitted:
        """Charge a report of a training task, and return the admitted task.

        `before` are the server's arrays. Raises `OverSpent` before anything is read, `ModelInvalid`
        and `SiteRefused`.
        """
        started = time.monotonic()
        if type(round) is not int or round < 0:
            raise SiteRefused("the task does not say the number of its round")
        layout = self._terms.layout(before)
        protection = self._terms.protection(layout.dimension)
        after_s = self._site.policy.clear.answer_after_s
        if self._account is None:
            self._account = self._site.account(self._data)
        released = Release(
            job=job,
            what=f"a report of task {task}",
            mechanism=str(self._terms.options.protection),
            spending=protection.spending(protection.initial_state()),
            through=self._through,
            in_clear=() if after_s is not None else (TIMING,),
        )
        self._account.charge(released, limit=self._site.policy.limits)
        own = {name: np.array(array) for name, array in before.items()}
        leaves_at = None if after_s is None else started + after_s
        return Admitted(self, layout, own, protection, number_of(site), round, leaves_at)

    def log(self, text: str) -> None:
        """Write a line to the site's log of this framework."""
        with self._site.log(self._through.lower()) as log:
            log.line(text)

    def refused(self, what: str, error: BaseException) -> None:
        """Log why something does not leave."""
        self.log(f"refused {what}: {reason(error)}")


@dataclass(frozen=True)
class Admitted:
    """A training task that was charged. It makes one report."""

    reports: SiteReports
    layout: ArrayLayout
    before: Arrays
    protection: Protection
    site: int
    round: int
    leaves_at: float | None

    def report(self, after: Callable[[], tuple[Arrays, bool]]) -> Report:
        """Return the report of the arrays that `after` returns, at the time when it may leave.

        `after` also says if the arrays are differences from the server's. If it raises an error, or
        returns other arrays than the server's, the update is zero.
        """
        model = self.layout.vector(self.before)
        state = self.protection.initial_state()
        context = RoundContext([self.site], self.round, model, state)
        opening = self.protection.server_round(context).opening()

        def half(examples: int = 1) -> ClientRound:
            return self.protection.client_round(
                ClientContext(self.site, self.round, model, examples, Secure())
            )

        answered = answer_trained(
            self.protection, half, half, opening, lambda: (self._update(*after()), 1), always=True
        )
        if answered.unusable is not None:
            self.reports.log(f"reported an update of zero: {reason(answered.unusable)}")
        if self.leaves_at is not None:
            time.sleep(max(0.0, self.leaves_at - time.monotonic()))
        return Report(answered.message, self.protection, context, self.layout)

    def _update(self, after: Arrays, differences: bool) -> Update:
        before = self.before
        if differences:
            before = {name: np.zeros_like(array) for name, array in after.items()}
        return self.layout.update(before, after)


@dataclass(frozen=True)
class Report:
    """A report that leaves the site: a message of the protection."""

    message: Message
    protection: Protection
    context: RoundContext
    layout: ArrayLayout

    def encoded(self) -> bytes:
        """Return the message as bytes, for `ReportSum`."""
        return encode(self.message)

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the best estimate of the update from this report alone, as arrays."""
        return shaped(self.layout, self.protection.reading(self.context, self.message).estimate)


class ReportSum:
    """The server's half of a round, for the reports of `sites` from the model `arrays`."""

    def __init__(self, terms: Terms, arrays: Arrays, round: int, sites: Collection[str]) -> None:
        self._layout = terms.layout(arrays)
        protection = terms.protection(self._layout.dimension)
        model, state = self._layout.vector(arrays), protection.initial_state()
        cohort = sorted(map(number_of, sites))
        self._half: ServerRound = protection.server_round(RoundContext(cohort, round, model, state))

    def add(self, site: str, report: bytes) -> None:
        """Add a report. Raises `ReportRejected` or `MessageInvalid`, and adds nothing."""
        self._half.receive(number_of(site), decode(report, self._half.longest))

    def mean(self) -> dict[str, npt.NDArray[Any]]:
        """Return the mean update as arrays. Raises `RoundVoid` if there is no report."""
        self._half.advance()
        return shaped(self._layout, self._half.aggregate().update)

    def zero(self) -> dict[str, npt.NDArray[Any]]:
        """Return an update that leaves the model as it is."""
        return shaped(self._layout, np.zeros(self._layout.dimension))


def number_of(site: str) -> int:
    """Return the number of a site, from its name."""
    return int.from_bytes(hashlib.sha256(site.encode()).digest()[:7])


def shaped(layout: ArrayLayout, update: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
    """Return an update as arrays, by their names. Arrays that stay with the clients are absent."""
    return {
        place.name: update[place.span].reshape(place.shape).astype(place.dtype)
        for place in layout.places
    }
