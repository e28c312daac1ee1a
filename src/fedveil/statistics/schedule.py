"""The rounds of a question file: which parts are asked of whom, and in which round.

Under a protection that sums, every client takes part in every round. Under rr and oue the clients
are divided at random, with a public seed, and each takes part in one round.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fedveil.base.message import Message, take
from fedveil.entropy import Seeded
from fedveil.errors import MessageInvalid
from fedveil.statistics.plan import Layout, Part, parts_of, prefix_part
from fedveil.statistics.prefixes import END, PrefixTree
from fedveil.statistics.question import QuestionFile

Candidates = Mapping[str, Sequence[str]]
#: The most candidates of a round. More would make a report of tens of megabytes.
_MOST_CANDIDATES = 1 << 20


@dataclass(frozen=True)
class Step:
    """A round: its number from 1, and the candidates of each heavy_hitters question in it."""

    round: int
    candidates: Candidates = field(default_factory=dict)

    def message(self) -> Message:
        """Return the step as fields of a message to the clients."""
        return {"step": self.round, "candidates": json.dumps(self.candidates)}

    @classmethod
    def of(cls, message: Message, file: QuestionFile) -> Step:
        """Read the step in an untrusted message. Raises `MessageInvalid`."""
        number, text = take(message, "step", int), take(message, "candidates", str)
        try:
            found = json.loads(text)
            step = cls(number, {str(k): [str(w) for w in words] for k, words in found.items()})
        except (ValueError, AttributeError, TypeError):
            raise MessageInvalid("field candidates is no mapping of questions to words") from None
        schedule = Schedule(file)
        for name, words in step.candidates.items():
            if name not in schedule.trees or not 0 < len(words) <= _MOST_CANDIDATES:
                raise MessageInvalid(f"field candidates names {name!r}, which is not asked")
            sizes = {len(word) for word in words}
            if len(sizes) != 1 or not 0 < max(sizes) <= file.questions[name].length + len(END):
                raise MessageInvalid("field candidates holds words of several lengths")
            if len(set(words)) < len(words):
                raise MessageInvalid("field candidates holds a word twice")
        if not 1 <= number <= schedule.rounds:
            raise MessageInvalid(f"field step is outside [1, {schedule.rounds}]")
        return step


class Schedule:
    """The steps of a question file, and the parts of each."""

    def __init__(self, file: QuestionFile) -> None:
        self.file = file
        self.static = [
            part
            for name, question in file.questions.items()
            if question.ask != "heavy_hitters"
            for part in parts_of(file, name)
        ]
        self.trees = {
            name: PrefixTree(question.alphabet, question.length, question.most)
            for name, question in file.questions.items()
            if question.ask == "heavy_hitters"
        }

    @property
    def rounds(self) -> int:
        """The largest number of rounds. The budget is divided among them."""
        lengths = [tree.rounds for tree in self.trees.values()]
        if self.file.local:
            return len(self.static) + sum(lengths)
        return max(lengths, default=1)

    def next(self, done: int) -> Step | None:
        """Return the step after `done` rounds, or None if nothing is left to ask."""
        if done == self.rounds:
            return None
        growing = {name: tree for name, tree in self.trees.items() if not tree.over}
        if self.file.local:
            return self._next_local(done, growing)
        if done and not growing:
            return None
        return Step(done + 1, {name: tree.candidates() for name, tree in growing.items()})

    def _next_local(self, done: int, growing: Mapping[str, PrefixTree]) -> Step | None:
        if done < len(self.static):
            return Step(done + 1)
        for name, tree in growing.items():
            return Step(done + 1, {name: tree.candidates()})
        return None

    def parts(self, step: Step) -> list[Part]:
        """Return the parts that clients are asked for in a step."""
        trees = [prefix_part(self.file, name, words) for name, words in step.candidates.items()]
        if not self.file.local:
            return [*self.static, *trees]
        return trees or [self.static[step.round - 1]]

    def layout(self, step: Step) -> Layout:
        """Return the joint vector of a step."""
        return Layout(self.file, self.parts(step))

    def cohort(self, step: Step, clients: int) -> list[int]:
        """Return the clients that are asked in a step."""
        if not self.file.local:
            return list(range(clients))
        order = Seeded(self.file.seed, "cohorts").permutation(clients)
        return sorted(int(client) for client in order[step.round - 1 :: self.rounds])
