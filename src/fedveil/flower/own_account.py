"""A client's own account of its reports. No server can reset it.

An account is a file on the client's machine. A report is charged on disk before its training
begins. A charge is never taken back, even if the process is killed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedveil.base.files import locked
from fedveil.base.message import Message, Value, decode, encode, prefixed, within
from fedveil.base.quantity import quantity
from fedveil.errors import (
    ClientWithheld,
    DeploymentError,
    FedveilError,
    InvalidValue,
    MessageInvalid,
)
from fedveil.flower.own_file import OwnFile, number_in
from fedveil.privacy.ledger import Ledger
from fedveil.privacy.loss import exactly
from fedveil.protections.base import Protection, Spending, State
from fedveil.protections.own_errors import own_errors

#: The keys of a node configuration that limit a client's epsilon.
LIMIT_KEYS = _MOST, _DELTA = ("max-epsilon", "delta")
#: The delta of the limit, if the node configuration states none.
OWN_DELTA = 1e-5
_PARTS = ("alike", "any")
_ME = 0


def own_limit(config: Mapping[str, object]) -> tuple[float, float] | None:
    """Return the limit of a client's epsilon in its node configuration, and the delta of the limit.

    The result is None if the operator sets no limit. Raises `DeploymentError` for an invalid value.
    """
    limit, delta = _number(config, _MOST), _number(config, _DELTA, below=1.0)
    if delta is not None and limit is None:
        raise DeploymentError(
            f"the node configuration says {_DELTA} = {delta!r} without {_MOST}, for which it is: "
            f"set {_MOST} too"
        )
    return None if limit is None else (limit, OWN_DELTA if delta is None else delta)


def _number(config: Mapping[str, object], key: str, below: float = math.inf) -> float | None:
    """Return the number at `key` of a node configuration, or None if it has no such key.

    Raises `DeploymentError` unless the value is a number above 0 and below `below`.
    """
    found = config.get(key)
    if found is None:
        return None
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 < found < below:
        needed = "above 0" if below == math.inf else f"above 0 and below {below:g}"
        raise DeploymentError(
            f"the node configuration says {key} = {found!r}, a number {needed} is needed"
        )
    return float(found)


def count_report(path: Path, spending: Sequence[Spending], limit: int) -> None:
    """Count one more requested report of a job, in the file `path`.

    `spending` is the report's cost. A report with an infinite cost has no guarantee and is not
    counted. Raises `ClientWithheld` if `limit` reports have been counted already.
    """
    if any(math.isinf(spent.loss.epsilon) for spent in spending):
        return
    with locked(path):
        given = number_in(path) or 0
        if given >= limit:
            raise ClientWithheld(
                f"this client has given {given} reports of this job, rounds + "
                f"deployment.repeats = {limit} are all that it gives"
            )
        OwnFile(path).write(str(given + 1).encode())


def total_of(kind: type[Protection], settings: Any) -> list[tuple[float, float]]:
    """Return the limits (epsilon, delta) that a protection's settings put on a whole run.

    `kind` is the protection's class. The result is empty if the settings state no limit.
    """
    key = kind.cost_key(settings)
    total = getattr(settings, key.total) if key is not None and key.total else None
    return [] if total is None else [(total, 0.0)]


def asked_spending(protection: Protection, asked: Message) -> Sequence[Spending]:
    """Return the cost of the report that the untrusted message `asked` requests.

    Under some protections, the cost depends on how many clients complete the round. The result is
    then the cost for the fewest that a round may have. Raises `MessageInvalid` if the message
    states an invalid cost.
    """
    state: State = {**protection.initial_state(), **asked}
    try:
        with own_errors(protection):
            return protection.spending(state)
    except InvalidValue as error:
        raise MessageInvalid(f"the opening's {error}") from None


class OwnLedger:
    """The cost of a client's reports in one run of a Flower app.

    The ledger numbers the reports itself, because a server can repeat or skip round numbers. While
    all reports cost the same, their losses are composed. If costs differ, epsilons and deltas are
    added, because a server can choose costs after it has seen earlier reports.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def begin(self, reports: int) -> None:
        """Create the account of a client that has given `reports` reports of the run so far.

        Does nothing if the account exists. Raises `DeploymentError` if it does not exist, but the
        client has given reports: their cost is unknown.
        """
        with locked(self._path):
            if OwnFile(self._path).read() is not None:
                return
            if reports:
                raise DeploymentError(
                    f"this client has given {quantity(reports, 'report')} of this job without a "
                    f"limit, and their cost is in no account: set {_MOST} before the job starts"
                )
            self._write(*self._read())

    def charge(
        self,
        spending: Sequence[Spending],
        limits: Sequence[tuple[float, float]],
        in_clear: Sequence[str] = (),
    ) -> None:
        """Charge one more requested report, which costs `spending`.

        `in_clear` names the values that are sent in clear. Raises `MessageInvalid`, and charges
        nothing, if the report would exceed one of `limits`: pairs of epsilon and delta.
        """
        with locked(self._path):
            reports, (alike, any_) = self._read()
            for ledger in (alike, any_):
                ledger.record_many(spending, round=reports, clients=[_ME])
                ledger.note_in_clear(in_clear)
            _check(alike, any_, limits)
            self._write(reports + 1, (alike, any_))

    def note(self, in_clear: Sequence[str]) -> None:
        with locked(self._path):
            reports, ledgers = self._read()
            for ledger in ledgers:
                ledger.note_in_clear(in_clear)
            self._write(reports, ledgers)

    def _write(self, reports: int, ledgers: Sequence[Ledger]) -> None:
        state: dict[str, Value] = {"reports": reports}
        for part, ledger in zip(_PARTS, ledgers, strict=True):
            state |= prefixed(part, ledger.to_state())
        OwnFile(self._path).write(encode(state))

    def _read(self) -> tuple[int, list[Ledger]]:
        data = OwnFile(self._path).read()
        if data is None:
            return 0, [Ledger(), Ledger(adaptive=True)]
        try:
            state: dict[str, Any] = decode(data)
            return state["reports"], [Ledger.from_state(within(p, state)) for p in _PARTS]
        except (KeyError, ValueError, FedveilError) as error:
            raise DeploymentError(f"{self._path} is damaged: {error}") from None


def _check(alike: Ledger, any_: Ledger, limits: Sequence[tuple[float, float]]) -> None:
    ledger = any_ if alike.kinds > 1 else alike
    for most, delta in limits:
        figure = ledger.figures(delta)["run_most_drawn"]
        if figure.epsilon > most:
            raise MessageInvalid(
                f"one more report would bring this client to {figure}, above its "
                f"max_epsilon = {exactly(most)}"
            )
