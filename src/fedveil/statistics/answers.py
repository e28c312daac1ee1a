"""Answers as data: estimates with intervals, and the privacy cost of all answers together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from fedveil.errors import MissingExtra
from fedveil.privacy.ledger import Line
from fedveil.statistics.question import QuestionFile


@dataclass(frozen=True)
class Estimate:
    """A number with a confidence interval.

    `label` says what is estimated: for example {"age": "[40, 50)"} for one cell of a histogram.
    `noise` is the standard deviation that comes from the protection's noise, and `sampling` the one
    that comes from drawing the clients from a population. The interval from `low` to `high` covers
    both.
    """

    label: Mapping[str, str]
    value: float
    low: float
    high: float
    noise: float
    sampling: float


@dataclass(frozen=True)
class Answer:
    """The answer to one question: its estimates, and notes about them.

    `ask` is the kind of the question, such as "histogram".
    """

    name: str
    ask: str
    estimates: Sequence[Estimate]
    notes: Sequence[str] = ()

    @property
    def value(self) -> float:
        """The value of the answer's only estimate. Raises `ValueError` if there are several."""
        (only,) = self.estimates
        return only.value

    def __getitem__(self, label: str) -> Estimate:
        found = {", ".join(e.label.values()): e for e in self.estimates}
        return found[label]


def answers_of(data: Mapping[str, Any]) -> list[Answer]:
    """Rebuild the answers from the plain values that `Answers.data` returned."""
    return [
        Answer(name, kept["ask"], [Estimate(**e) for e in kept["estimates"]], kept["notes"])
        for name, kept in data["answers"].items()
    ]


@dataclass(frozen=True)
class Answers:
    """The answers to a question file.

    `lines` state the epsilon of all answers together and, if the data set has an account, the total
    epsilon in this account. `in_clear` lists values that clients send without protection. `clients`
    is the number of clients, and `reports` the largest number of reports in a round. `rejected`
    counts invalid reports by reason. `influence` is the largest change that one forged report can
    make to a question's sums.
    """

    file: QuestionFile
    answers: Mapping[str, Answer]
    lines: Sequence[Line]
    in_clear: Sequence[str]
    clients: int
    reports: int
    rejected: Mapping[str, int] = field(default_factory=dict)
    influence: Mapping[str, float] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Answer:
        return self.answers[name]

    @property
    def epsilon(self) -> float:
        """The epsilon that all answers together cost one client, or one row under `unit: row`."""
        return self.lines[0].epsilon

    def records(self) -> list[dict[str, Any]]:
        return [
            {
                "question": answer.name,
                "ask": answer.ask,
                "label": ", ".join(f"{key}: {value}" for key, value in estimate.label.items()),
                **{key: value for key, value in asdict(estimate).items() if key != "label"},
            }
            for answer in self.answers.values()
            for estimate in answer.estimates
        ]

    def frame(self) -> Any:
        """Return a pandas DataFrame with one row for each estimate."""
        try:
            from pandas import DataFrame
        except ImportError:
            raise MissingExtra("pandas", "notebook", "Answers.frame") from None
        return DataFrame(self.records())

    def data(self) -> dict[str, Any]:
        """Return the answers and their privacy cost as plain values, which JSON can hold."""
        return {
            "name": self.file.name,
            "protection": self.file.protection.name,
            "unit": self.file.unit,
            "confidence": self.file.confidence,
            "clients": self.clients,
            "reports": self.reports,
            "rejected": dict(self.rejected),
            "privacy": [line._asdict() for line in self.lines],
            "in_clear": list(self.in_clear),
            "influence": dict(self.influence),
            "answers": {
                name: {
                    "ask": answer.ask,
                    "estimates": [asdict(estimate) for estimate in answer.estimates],
                    "notes": list(answer.notes),
                }
                for name, answer in self.answers.items()
            },
        }
