"""Presents a data set's account to the data's owner: as tables, as a page and as plain data."""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedveil import __version__
from fedveil.base.quantity import quantity
from fedveil.pages.dossier.account import Account
from fedveil.pages.dossier.dossier_folder import recompute_parts, write_dossier
from fedveil.pages.dossier.releases import releases_of
from fedveil.pages.guarantee_text import right
from fedveil.pages.page import Fact, Page, Points, Section
from fedveil.pages.run_summary import TONES
from fedveil.pages.table import Table
from fedveil.privacy.audit import rounded_down
from fedveil.privacy.guarantee_strength import Figure, epsilon_text
from fedveil.privacy.loss import exactly
from fedveil.record.recorder import strict
from fedveil.site.account import Charged, Limits, Privacy, SiteAccount, Window

_JOB_LETTERS = 8
_SHOWN = ("what", "mechanism", "through")
#: A statement about who executed the jobs, by framework.
_EXECUTED = {
    "Flower": "The site's own code executed the jobs that came through Flower, and no code of "
    "theirs.",
    "NVFlare": "Classes on the site's list executed the tasks that came through NVFlare, in the "
    "process of the filters. What such a class sends by a way of its own is not in this account.",
}
_WHOSE = {"client": "the site's whole data", "example": "one example"}


@dataclass(frozen=True)
class AccountRecord:
    """The account of a data set at the site `site`, with the limits of the site's policy."""

    site: str
    account: SiteAccount
    limits: Limits

    def privacy(self, window: Window) -> Privacy:
        return window.privacy(self.limits.delta, self.limits.unit)

    @property
    def month(self) -> Privacy:
        """The total privacy cost of the charges of the current month."""
        return self.privacy(self.account.windows("month").get(self._now, Window()))

    @property
    def ever(self) -> Privacy:
        """The total privacy cost of all charges."""
        return self.privacy(self.account.windows("ever").get("", Window()))

    @property
    def _now(self) -> str:
        return f"{self.account.month():%Y-%m}"

    def left(self) -> dict[str, str]:
        """Return the epsilon that is left this month and for all time, rounded down, as texts.

        A run may be able to spend more than this, because a release may add less than its own
        epsilon to the total.
        """
        limits = {"month": (self.limits.month, self.month), "ever": (self.limits.ever, self.ever)}
        return {name: _left(most, spent) for name, (most, spent) in limits.items()}

    def months(self) -> Table:
        """Return a table of each month's releases and epsilon, next to the monthly limit."""
        limit = "none" if self.limits.month is None else exactly(self.limits.month)
        rows = [
            [name, *_spent(self.privacy(window)), limit]
            for name, window in sorted(self.account.windows("month").items())
        ]
        return Table(["month (UTC)", "releases", "without epsilon", "spent", "limit"], rows)

    def jobs(self) -> Table:
        """Return a table of each run's releases and epsilon, in the order of first charges."""
        rows, charges = [], defaultdict[str, list[Charged]](list)
        for charged in self.account.charges:
            charges[charged.job].append(charged)
        for job, window in self.account.windows("run").items():
            own = charges[job]
            named = [", ".join(dict.fromkeys(getattr(c, of) for c in own)) for of in _SHOWN]
            last = f"{own[-1].at:%Y-%m-%d}"
            rows.append([job[:_JOB_LETTERS], *named, last, *_spent(self.privacy(window))])
        columns = ["job", "release", "protection", "through", "last"]
        return Table([*columns, "releases", "without epsilon", "spent"], rows)

    def write(self, folder: Path) -> Iterator[Path]:
        """Write the account to `folder`: a page, a record, and a script. Yields their paths.

        The script recomputes the epsilons in the record.
        """
        yield from write_dossier(folder, self.page(), self.record())

    def accounts(self) -> list[Account]:
        """Return the epsilon and the releases of all time, of each month and of each run."""
        named = [("all time", self.account.windows("ever").get("", Window()))]
        named += [(f"month {n}", w) for n, w in self.account.windows("month").items()]
        named += [(f"job {n}", w) for n, w in self.account.windows("run").items()]
        whose = _WHOSE[self.limits.unit]
        return [self._account(f"{whose}, {name}", window) for name, window in named]

    def _account(self, of: str, window: Window) -> Account:
        figure = self.privacy(window).figure
        charges = [(loss, n * times) for kind, times in window.total.kinds.items()
                   for loss, n in kind]  # fmt: skip
        mixed = self.limits.unit == "client" and window.of_examples
        missing = "losses for one example leave no epsilon for a client" if mixed else ""
        if 0 < window.releases == window.without_epsilon:
            missing, figure = "its releases promise no epsilon", Figure(math.inf, 0.0)
        return Account(of, *figure, False, releases_of(charges, [], adaptive=False), missing)

    def record(self) -> dict[str, Any]:
        """Return the limits and all accounts as plain data for strict JSON (without infinity)."""
        found = {
            "format": "fedveil site account 1",
            "made_by": f"fedveil {__version__}",
            "site": self.site,
            "data_set": self.account.name,
            "limits": dataclasses.asdict(self.limits),
            "left": self.left(),
            "lines": len(self.account.charges),
            "last_code": self.account.code,
            "without_epsilon": self.ever.without_epsilon,
            "in_clear": list(self.ever.in_clear),
            "statements": self._statements(),
            "accounts": [dataclasses.asdict(account) for account in self.accounts()],
        }
        return dict(strict(found))

    def page(self) -> Page:
        lead = (
            f"Everything that left the data set {self.account.name} of {self.site}, and what it "
            "costs in privacy. This page is evidence for a review, and no verdict."
        )
        left = self.left()
        facts = [
            _fact("All time", self.ever, left["ever"]),
            _fact(f"Month {self._now}", self.month, left["month"]),
        ]
        sections = [
            Section("What this means", [Points(self._statements())]),
            Section("What left, by run", [self.jobs()]),
            Section("What left, by month", [self.months()]),
            Section("Recompute the epsilons", recompute_parts(self.accounts())),
        ]
        return Page(f"Account of {self.account.name}", [lead, *facts], sections)

    def _statements(self) -> list[str]:
        ever = self.ever
        said = [
            f"The protected unit is {_WHOSE[self.limits.unit]}: two inputs are neighbours if it is "
            "replaced by any other.",
            "An attacker who sees everything that left, and must tell which of two such inputs the "
            f"site holds, {right(ever.figure)} (chance: 50%).",
            "Charges that differ may have been chosen in view of earlier results. They cost the "
            "lower of the sum of their epsilons and a Rényi filter. The script composes them as if "
            "fixed in advance, and then says that the record states more.",
        ]
        if ever.without_epsilon:
            said.append(
                f"{quantity(ever.releases, 'release')}, {ever.without_epsilon:,} without an "
                f"epsilon. The "
                "figures do not cover these. They hide the site only among the others in a sum."
            )
        through = {charged.through.split(",")[0] for charged in self.account.charges}
        said += [_EXECUTED[name] for name in sorted(through & set(_EXECUTED))]
        said += [f"Sent in the clear, with no finite epsilon: {name}." for name in ever.in_clear]
        said.append(
            f"The account has {quantity(len(self.account.charges), 'line')} and ends in "
            f"{self.account.code}. "
            "Each line has a code with the site's key. Someone with that key and the counter can "
            "write another account."
        )
        return said


def _spent(privacy: Privacy) -> list[str]:
    said = epsilon_text(*privacy.figure)
    if privacy.without_epsilon == privacy.releases:
        said = "no epsilon"
    return [f"{privacy.releases:,}", f"{privacy.without_epsilon:,}", said]


def _fact(label: str, privacy: Privacy, left: str) -> Fact:
    bare = privacy.without_epsilon
    apart = f" Not covered: {bare:,} sums without an epsilon." if bare else ""
    figure = privacy.figure
    return Fact(label, str(figure), f"Left: at least {left}.{apart}", TONES[figure.promise])


def _left(most: float | None, spent: Privacy) -> str:
    if most is None:
        return "unlimited"
    return rounded_down(max(0.0, most - spent.figure.epsilon), 3)
