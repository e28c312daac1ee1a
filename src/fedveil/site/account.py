"""A site's account of one data set: everything that left it, and what it costs in privacy.

Every job, server, framework and process charges the same account. A charge is written to disk
before the data are read, and is never undone. There are limits for a run, for a calendar month
(UTC) and for all time. No month exceeds its limit, even if the system clock was changed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias, get_args

from fedveil.base.validate import choice, integer, positive, within
from fedveil.errors import InvalidValue, OverSpent
from fedveil.privacy.adaptive_sum import AdaptiveSum
from fedveil.privacy.client_tally import Kind
from fedveil.privacy.guarantee_strength import Figure
from fedveil.privacy.ledger import Ledger, Spendings
from fedveil.privacy.loss import exactly
from fedveil.site.account_file import AccountFile
from fedveil.site.account_losses import from_plain, to_plain

Unit: TypeAlias = Literal["client", "example"]
Period: TypeAlias = Literal["run", "month", "ever"]

#: The longest text in a charge.
_MOST_TEXT = 1000
_DELTA = 1e-5
_ID_LETTERS = 32
_TIMES = {"run": "in the run ", "month": "in ", "ever": "for ever"}


@dataclass(frozen=True)
class Release:
    """A message that leaves the site.

    `job` identifies the run, `through` the framework or the server, `mechanism` the protection, and
    `what` the message. `spending` has the privacy losses of the message, for all data of the site
    (`unit` "client") or for one example ("example"). `in_clear` names values that are sent
    unprotected. `summed` is True for a report that the server sees only inside a sum.
    """

    job: str
    what: str
    mechanism: str
    spending: Spendings
    unit: Unit = "client"
    through: str = "fedveil"
    in_clear: tuple[str, ...] = ()
    summed: bool = False

    def __post_init__(self) -> None:
        choice("unit", self.unit, get_args(Unit))
        for name in ("job", "what", "mechanism", "through"):
            text = getattr(self, name)
            if not isinstance(text, str) or not 0 < len(text) <= _MOST_TEXT:
                raise InvalidValue(f"{name} has no text, or more than {_MOST_TEXT:,} characters")


@dataclass(frozen=True)
class Limits:
    """The largest epsilon of a run, a calendar month, and all time. Each holds at `delta`.

    None means no limit. `unit` says what the epsilons protect: all data of the site ("client") or
    one example ("example"). `without_epsilon` is the largest number of releases without a finite
    epsilon in a month. Such a release is only possible for a report that the server sees inside a
    sum (`Release.summed`).
    """

    run: float | None = None
    month: float | None = 2.0
    ever: float | None = None
    delta: float = _DELTA
    unit: Unit = "client"
    without_epsilon: int = 0

    def __post_init__(self) -> None:
        for name in ("run", "month", "ever"):
            if getattr(self, name) is not None:
                positive(name, getattr(self, name))
        integer("without_epsilon", self.without_epsilon, 0)
        within("delta", self.delta, 0, 1, open_low=True, open_high=True)
        choice("unit", self.unit, get_args(Unit))


@dataclass(frozen=True)
class Privacy:
    """The total privacy cost of several releases.

    `without_epsilon` is the number of `releases` without an epsilon. `figure` is the epsilon and
    delta of all others. `in_clear` names all values that were sent unprotected.
    """

    figure: Figure
    releases: int
    without_epsilon: int
    in_clear: tuple[str, ...]


class Charged(NamedTuple):
    """A line of an account: a message that was charged, and the time of the charge (`at`).

    `kind` has the message's charges: pairs (loss, count) of a privacy loss and how often it counts.
    It is empty for values that were sent in the clear. The other fields are as in `Release`.
    """

    at: datetime
    job: str
    what: str
    mechanism: str
    through: str
    unit: Unit
    in_clear: tuple[str, ...]
    kind: Kind


@dataclass
class Window:
    """The total privacy cost of all charges of one run, of one month or of all time.

    `releases` is the number of charged messages, and `without_epsilon` how many of them have no
    finite epsilon. `total` has the charges of all others. `of_examples` is True if one of these
    charges is for one example instead of all data of the site. `in_clear` names the values that
    were sent unprotected.
    """

    total: AdaptiveSum = field(default_factory=AdaptiveSum)
    releases: int = 0
    without_epsilon: int = 0
    of_examples: bool = False
    in_clear: set[str] = field(default_factory=set)

    def add(self, charged: Charged) -> None:
        self.in_clear.update(charged.in_clear)
        if not charged.kind:  # only values sent in the clear (`disclose`)
            return
        self.releases += 1
        if promises_nothing(charged.kind):
            self.without_epsilon += 1
        else:
            self.total.add(charged.kind)
            self.of_examples |= charged.unit == "example"

    def copy(self) -> Window:
        return Window(
            self.total.copy(), self.releases, self.without_epsilon, self.of_examples,
            set(self.in_clear),
        )  # fmt: skip

    def privacy(self, delta: float, unit: Unit) -> Privacy:
        """Return the total privacy cost for `unit`: "client" or "example".

        The epsilon holds at `delta`. A charge for all data of a client also bounds the cost of each
        example. After a charge for an example, the epsilon for a client is infinite.
        """
        figure = self.total.figure(delta)
        if unit == "client" and self.of_examples:
            figure = Figure(math.inf, delta)
        return Privacy(figure, self.releases, self.without_epsilon, tuple(sorted(self.in_clear)))


def promises_nothing(kind: Kind) -> bool:
    """Return True if a message with the charges `kind` has no finite epsilon at any delta.

    A charge is a pair (loss, count) of a privacy loss and how often it counts. A loss has no finite
    epsilon if its own one is infinite and its mechanism is unknown (`PrivacyLoss.release` is None).
    From a known mechanism, finite epsilons follow at other deltas.
    """
    return any(math.isinf(loss.epsilon) and loss.release is None for loss, _ in kind)


class SiteAccount:
    """Records what left one data set, and its privacy cost, on disk. Open it with `open`."""

    def __init__(self, file: AccountFile, name: str, clock: Callable[[], datetime]) -> None:
        self.name, self._file, self._clock = name, file, clock
        self._clear()

    def _clear(self) -> None:
        self._kinds: dict[str, Kind] = {}
        self.charges: list[Charged] = []
        self._windows: dict[tuple[Period, str], Window] = {}

    @classmethod
    def open(
        cls,
        folder: Path,
        name: str,
        *,
        key: bytes,
        counter: Path | None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> SiteAccount:
        """Open the account of the data set `name`, or create it.

        `counter` is a file that reveals if the account was deleted or replaced by an older copy.
        Nobody who can write to `folder` should be able to write to `counter`. If `counter` is None,
        the file is in `folder`, and nothing reveals that both files were replaced. `clock` returns
        the current time in UTC. Raises `AccountInvalid` for an older copy, a missing line, or a
        line that was not written with `key`.
        """
        account = cls(AccountFile(folder, name, key, counter), name, clock)
        account.refresh()
        for window in account._windows.values():
            window.total.settle()
        return account

    @property
    def code(self) -> str:
        """The authentication code of the last line. It identifies all charges and their order."""
        return self._file.code

    def refresh(self) -> None:
        """Read the charges that other processes have written to the account."""
        with self._file.locked():
            self._catch_up()

    def spent(
        self,
        *,
        since: datetime | None = None,
        job: str | None = None,
        delta: float = _DELTA,
        unit: Unit = "client",
    ) -> Privacy:
        """Return the total cost of the charges of the run `job` from the time `since` on.

        If `job` is None, all runs count. If `since` is None, all times count. The epsilon is for
        one `unit` at `delta`.
        """
        self.refresh()
        window = Window()
        for charged in self.charges:
            if (since is None or charged.at >= since.astimezone(UTC)) and job in (
                None,
                charged.job,
            ):
                window.add(charged)
        return window.privacy(delta, unit)

    def windows(self, period: Period) -> dict[str, Window]:
        """Return the sum of the charges of each run, of each month, or of all time (`period`).

        The keys are the run's identity, the month such as "2026-04", or "" for all time.
        """
        return {name: window for (of, name), window in self._windows.items() if of == period}

    def charge(self, released: Release, *, limit: Limits) -> None:
        """Write a release's charge to disk.

        Raises `OverSpent`, and writes nothing, if the charge would exceed `limit`. Also raises it
        for a release without a finite epsilon, unless the server sees this release only inside a
        sum (`Release.summed`).
        """
        kind = Ledger().charges(released.spending)
        if not kind:
            raise InvalidValue(
                "spending is empty: name a PrivacyLoss, infinite if none is promised"
            )
        with self._file.locked():
            self._catch_up()
            body = self._body(self._charged(released, kind))
            found = self._read(body)  # never write a line that cannot be read back
            if promises_nothing(kind) and not released.summed:
                raise OverSpent(
                    f"{released.what} of {released.job} promises no epsilon, and is no sum: it "
                    f"cannot be charged to {self.name}"
                )
            self._check(found[1], limit)
            self._write(body, *found)

    def disclose(self, released: Release) -> None:
        """Write a line about `released`: values that a run sends in the clear, outside of a report.

        Such values have no epsilon, and `spending` must be empty. A second line with the same run
        and the same `what` is not written.
        """
        if released.spending:
            raise InvalidValue("spending is not empty: use charge")
        with self._file.locked():
            self._catch_up()
            said = (released.job, released.what)
            if any((charged.job, charged.what) == said for charged in self.charges):
                return
            body = self._body(self._charged(released, ()))
            found = self._read(body)  # never write a line that cannot be read back
            self._write(body, *found)

    def _charged(self, released: Release, kind: Kind) -> Charged:
        return Charged(
            self._now(), released.job, released.what, released.mechanism, released.through,
            released.unit, tuple(released.in_clear), kind,
        )  # fmt: skip

    def month(self) -> datetime:
        """Return the beginning of the current month, in UTC.

        If the clock is earlier than the last charge, returns the beginning of that charge's month.
        """
        return self._now().replace(day=1, hour=0, minute=0, second=0, microsecond=0)

    def _now(self) -> datetime:
        now = self._clock().astimezone(UTC)
        return max(now, self.charges[-1].at) if self.charges else now

    def _check(self, charged: Charged, limit: Limits) -> None:
        said, kind = f"{charged.what} of {charged.job}", charged.kind
        most = {"run": limit.run, "month": limit.month, "ever": limit.ever}
        for period, which in _periods(charged):
            allowed = most[period]
            window = self._windows.get((period, which), Window()).copy()
            window.add(charged)
            most_sums = limit.without_epsilon
            if period == "month" and promises_nothing(kind) and window.without_epsilon > most_sums:
                raise OverSpent(
                    f"{said} promises no epsilon, and the site allows {most_sums} such releases of "
                    f"{self.name} in a month"
                )
            figure = window.privacy(limit.delta, limit.unit).figure
            if allowed is not None and not figure.epsilon <= allowed:
                mixed = "" if limit.unit == "example" or not window.of_examples else (
                    "; losses for one example leave no epsilon for a client"
                )  # fmt: skip
                raise OverSpent(
                    f"{said} would bring the account {self.name} to {figure} {_TIMES[period]}"
                    f"{which}, above the site's limit of {exactly(allowed)}{mixed}"
                )

    def _catch_up(self) -> None:
        with self._read_again_if_interrupted():
            for void, body in self._file.bodies():
                if void:
                    self._clear()
                self._add(*self._read(body))

    def _write(self, body: bytes, kind: str, charged: Charged) -> None:
        with self._read_again_if_interrupted():
            self._file.append(body)
            self._add(kind, charged)

    @contextmanager
    def _read_again_if_interrupted(self) -> Iterator[None]:
        """A context that forgets all charges after an error, so that the next call reads them.

        Otherwise, after Ctrl-C in a notebook, a charge in the file could be missing in the sums.
        """
        try:
            yield
        except BaseException:
            self._file.forget()
            self._clear()
            raise

    def _body(self, charged: Charged) -> bytes:
        """Encode a charge as a JSON line. Repeated losses are written only as their hash."""
        losses = to_plain(charged.kind)
        kind = sha256(json.dumps(losses).encode()).hexdigest()[:_ID_LETTERS]
        line = {**charged._asdict(), "at": charged.at.isoformat(), "kind": kind}
        if kind not in self._kinds:
            line["losses"] = losses
        return json.dumps(line).encode()

    def _read(self, body: bytes) -> tuple[str, Charged]:
        line = json.loads(body)
        name, losses = line["kind"], line.pop("losses", None)
        kind = self._kinds[name] if losses is None else from_plain(losses)
        at, clear = datetime.fromisoformat(line["at"]), tuple(line["in_clear"])
        return name, Charged(**{**line, "at": at, "in_clear": clear, "kind": kind})

    def _add(self, kind: str, charged: Charged) -> None:
        self._kinds[kind] = charged.kind
        self.charges.append(charged)
        for period in _periods(charged):
            if period not in self._windows:
                self._windows[period] = Window()
            self._windows[period].add(charged)


def _periods(charged: Charged) -> list[tuple[Period, str]]:
    """Return the periods that a charge counts for, such as ("month", "2026-04")."""
    return [
        ("run", charged.job),
        ("month", f"{charged.at.year}-{charged.at.month:02}"),
        ("ever", ""),
    ]
