"""A party's limit on the privacy cost of each of its examples: `privacy.max_epsilon`."""

from __future__ import annotations

from fedveil.errors import LimitReached
from fedveil.privacy.guarantee_strength import Figure
from fedveil.privacy.ledger import Ledger
from fedveil.privacy.loss import PrivacyLoss, exactly
from fedveil.vertical.account import repeated_spending
from fedveil.vertical.own_data import sends_unprotected, unprotected_gradients
from fedveil.vertical.split import SplitModel

#: The reason that the other parties receive. It is fixed, so it shows no number of the account.
REACHED = "its own privacy.max_epsilon is reached"


class Limit:
    """Checks, before an example is sent, that its cost will not exceed `epsilon` at `delta`.

    Each time an example is sent, it is charged for the bits that are sent. In training and
    evaluations, a part with `reuse` costs only the first time, because it sends the same bits
    again. `label` is the privacy loss of a label under LabelDP. Each training example is charged
    for it once. Without LabelDP, `label` is None, and labels have no limit. Unprotected values have
    an infinite epsilon, so no limit permits them. If `epsilon` is None, everything is permitted.
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
        self._returned = unprotected_gradients(split, party)
        self._spent: dict[tuple[int, bool, int], Figure] = {}

    def check(self, what: str, times: int, *, labelled: bool, scored: int = 0) -> None:
        """Raise `LimitReached` if sending an example `times` times in total would exceed the limit.

        `labelled` is True for a training example, whose label is charged too. The example was also
        scored `scored` times. The error begins with `what`, the step or the evaluation that would
        send the example.
        """
        if self._epsilon is None:
            return
        if self._sends_unprotected:
            raise LimitReached(
                f"{what} would send {self._party}'s values unprotected, which no "
                f"privacy.max_epsilon allows: set privacy.embedding_dp, or max_epsilon to null"
            )
        if self._returned:
            raise LimitReached(
                f"{what} would return gradients of {', '.join(self._returned)} that are computed "
                f"from {self._party}'s own columns, which no privacy.max_epsilon allows: set "
                f"max_epsilon to null, or join both in a part of {self._split.leader}"
            )
        figure = self.figure(times, labelled=labelled, scored=scored)
        if figure.epsilon > self._epsilon:
            raise LimitReached(
                f"{what} would bring an example of {self._party} to {figure}, above "
                f"privacy.max_epsilon = {exactly(self._epsilon)}"
            )

    def forecast(self, epochs: int) -> str | None:
        """Return a warning if the limit would end a run before `epochs` epochs, otherwise None."""
        try:
            self.check(f"epoch {epochs}, the last,", epochs, labelled=True)
        except LimitReached as limit:
            return f"{limit}: the run will end earlier"
        return None

    def allows(self, times: int, *, labelled: bool, scored: int) -> bool:
        """Return True if the limit lets an example be sent `times` times and scored `scored` times.

        Both are totals. `labelled` is True for a training example, whose label is charged too.
        """
        if self._epsilon is None:
            return True
        if self._sends_unprotected:
            return False
        return self.figure(times, labelled=labelled, scored=scored).epsilon <= self._epsilon

    def figure(self, times: int, *, labelled: bool, scored: int = 0) -> Figure:
        """Return the privacy cost of an example sent `times` times and scored `scored` times.

        `labelled` is True for a training example, whose label is charged too. `times` counts
        training and evaluations, in which `reuse` makes repetitions free. Each scoring draws new
        bits, and is charged in full even under `reuse`.
        """
        key = times, labelled, scored
        if key not in self._spent:
            ledger = Ledger()
            for number in range(times):
                spent = repeated_spending(self._split, self._party, first=number == 0)
                if spent:
                    ledger.record_many(spent, round=number, clients=[0])
            anew = repeated_spending(self._split, self._party, first=True)
            for number in range(scored if anew else 0):
                ledger.record_many(anew, round=times + number, clients=[0])
            if labelled and self._label is not None:
                ledger.record_many([(self._label, 1)], round=times + scored, clients=[0])
            self._spent[key] = ledger.figures(self._delta)["run_most_drawn"]
        return self._spent[key]
