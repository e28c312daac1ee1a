"""A party's own limit on what its examples may spend: `privacy.max_epsilon`."""

from __future__ import annotations

from fedveil.errors import LimitReached
from fedveil.privacy.guarantee_word import Figure
from fedveil.privacy.ledger import Ledger
from fedveil.privacy.loss import PrivacyLoss
from fedveil.vertical.account import repeated_spending, sends_unprotected
from fedveil.vertical.split import SplitModel


class Limit:
    """Refuses to send an example again where that would bring it above `epsilon` at `delta`.

    An example spends what its values spend each time they are sent and, if it is trained on, what
    its label spends once. Labels without LabelDP have no epsilon and no limit. Values that are
    sent unprotected have an infinite epsilon: they are never sent.
    """

    def __init__(
        self,
        split: SplitModel,
        party: str,
        epsilon: float | None,
        delta: float,
        label: PrivacyLoss | None,
    ) -> None:
        self._split, self._party = split, party
        self._epsilon, self._delta = epsilon, delta
        self._label = label
        self._sends_unprotected = bool(sends_unprotected(split, party))
        self._spent: dict[tuple[int, bool], Figure] = {}

    def check(self, what: str, times: int, *, labelled: bool) -> None:
        """Raise `LimitReached` if an example that was sent `times` times is above the limit.

        `labelled` examples are trained on. `what` names the step or the look in the message.
        """
        if self._epsilon is None:
            return
        if self._sends_unprotected:
            raise LimitReached(
                f"{what} would send {self._party}'s values unprotected, which no "
                f"privacy.max_epsilon allows: set privacy.embedding_dp, or max_epsilon to null"
            )
        figure = self.figure(times, labelled=labelled)
        if figure.epsilon > self._epsilon:
            raise LimitReached(
                f"{what} would bring an example of {self._party} to {figure}, above "
                f"privacy.max_epsilon = {self._epsilon:g}"
            )

    def forecast(self, epochs: int) -> str | None:
        """Return a sentence if a run of `epochs` epochs will end early."""
        try:
            self.check(f"epoch {epochs}, the last,", epochs, labelled=True)
        except LimitReached as limit:
            return f"{limit}: the run will end earlier"
        return None

    def figure(self, times: int, *, labelled: bool) -> Figure:
        """Return what an example has spent after `times` times."""
        key = times, labelled
        if key not in self._spent:
            ledger = Ledger()
            for number in range(times):
                spent = repeated_spending(self._split, self._party, first=number == 0)
                if spent:
                    ledger.record_many(spent, round=number, clients=[0])
            if labelled and self._label is not None:
                ledger.record_many([(self._label, 1)], round=times, clients=[0])
            self._spent[key] = ledger.figures(self._delta)["run_most_drawn"]
        return self._spent[key]
