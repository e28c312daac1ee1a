"""The rounds of a question file: which clients are asked, and about which parts, in which round.

A part is a question, or a level of a question's tree, encoded as a section of a client's vector.
Under a protection that sums vectors, every client takes part in every round. Under rr and oue, each
client takes part in one round. The clients are divided at random, with a public seed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedveil.base.array_types import Int64s
from fedveil.base.message import Message, encode, take
from fedveil.entropy import Seeded
from fedveil.errors import MessageInvalid
from fedveil.statistics.plan import (
    Layout,
    Part,
    below_part,
    edges_of,
    levels,
    parts_of,
    prefix_part,
)
from fedveil.statistics.prefixes import KEPT, PrefixTree, extended
from fedveil.statistics.quantile_search import Search
from fedveil.statistics.question import QuestionFile

#: The message fields that describe a step.
STEP_FIELDS = ("step", "prefixes", "edge")


@dataclass(frozen=True)
class Step:
    """One round: its number, counted from 1, and its choices that depend on earlier answers.

    `prefixes` has a key for each heavy_hitters question of the round. Its value lists the prefixes
    to extend: one list for each of the question's groups, or a single list without groups. `edge`
    is the index of the edge that a quantile search asks about, or 0 if there is no search.
    """

    round: int
    prefixes: Mapping[str, Sequence[Sequence[str]]] = field(default_factory=dict)
    edge: int = 0

    def message(self) -> Message:
        """Return the step as fields of a message to clients."""
        return {"step": self.round, "prefixes": json.dumps(self.prefixes), "edge": self.edge}

    def origin(self) -> bytes:
        """Return a digest of the step, from which clients compute their vectors.

        Secure aggregation unmasks a sum only if its clients have the same digest. Otherwise a lying
        server could ask one client for real words, and all others for words that nobody has.
        """
        return hashlib.sha256(b"fedveil statistics step" + encode(self.message())).digest()

    @classmethod
    def of(cls, message: Message, file: QuestionFile) -> Step:
        """Return the step that `message` describes, for a round of the question file `file`.

        Raises `MessageInvalid` if a field is missing or invalid, or if `file` has no round with
        this number, edge and prefixes.
        """
        number, text = take(message, "step", int), take(message, "prefixes", str)
        try:
            found = json.loads(text)
            prefixes = {
                str(name): [[str(word) for word in words] for words in groups]
                for name, groups in found.items()
            }
        except (ValueError, AttributeError, TypeError, RecursionError):
            raise MessageInvalid("field prefixes is no mapping of questions to words") from None
        step, schedule = cls(number, prefixes, take(message, "edge", int)), Schedule(file)
        if not 1 <= number <= schedule.rounds:
            raise MessageInvalid(f"field step is outside [1, {schedule.rounds}]")
        schedule.check(step)
        return step


@dataclass(frozen=True)
class Turn:
    """A round under rr and oue, which asks some of the clients about one question.

    The number of clients is proportional to `share`. The round asks about a fixed `part` of the
    question, about the next letters of a prefix `tree`, or about the next edge of a quantile
    `search` in the rows of `group`.
    """

    question: str
    share: float
    part: Part | None = None
    tree: PrefixTree | None = None
    search: Search | None = None
    group: object = None


class Schedule:
    """The rounds of a question file in order, and the parts that each round asks about.

    A part is a question, or one level of a question's tree. `trees` and `searches` collect the
    answers on which later rounds depend.
    """

    def __init__(self, file: QuestionFile) -> None:
        self.file, local = file, file.local
        self.trees = {
            name: PrefixTree(question, local=local)
            for name, question in file.questions.items()
            if question.ask == "heavy_hitters"
        }
        #: The quantile searches of each question under rr and oue, each with its group.
        self.searches = {
            name: [
                (group, Search(edges_of(question, levels(question)), q))
                for group in (question.groups if question.by is not None else [None])
                for q in question.at
            ]
            for name, question in file.questions.items()
            if local and question.ask == "quantiles"
        }
        self.static = [
            part
            for name in file.questions
            if name not in self.trees and name not in self.searches
            for part in parts_of(file, name)
        ]
        self.turns = list(self._turns()) if local else []

    def _turns(self) -> Iterator[Turn]:
        """Yield the rounds under rr and oue. A question's weight sets its number of clients."""
        weights = {name: question.weight for name, question in self.file.questions.items()}
        for part in self.static:
            yield Turn(part.question, weights[part.question] * part.share, part)
        for name, searches in self.searches.items():
            rounds = sum(search.rounds for _, search in searches)
            for group, search in searches:
                share = weights[name] / rounds
                yield from [Turn(name, share, search=search, group=group)] * search.rounds
        for name, tree in self.trees.items():
            for share in tree.shares:
                yield Turn(name, weights[name] * share, tree=tree)

    @property
    def rounds(self) -> int:
        """The largest possible number of rounds of the question file."""
        if self.file.local:
            return len(self.turns)
        return max((tree.rounds for tree in self.trees.values()), default=1)

    def next(self, done: int) -> Step | None:
        """Return the step after round `done`, or None if all questions are answered."""
        if self.file.local:
            return self._next_local(done)
        growing = {name: tree.prefixes for name, tree in self.trees.items() if not tree.over}
        if done == self.rounds or (done and not growing):
            return None
        return Step(done + 1, growing)

    def _next_local(self, done: int) -> Step | None:
        for number, turn in enumerate(self.turns[done:], done + 1):
            if turn.search is not None:
                return Step(number, edge=turn.search.next())
            if turn.tree is None:
                return Step(number)
            if not turn.tree.over:
                return Step(number, {turn.question: turn.tree.prefixes})
        return None

    def check(self, step: Step) -> None:
        """Raise `MessageInvalid` if `step` has an edge or prefixes that its round cannot have."""
        turn = self.turns[step.round - 1] if self.file.local else None
        search = None if turn is None else turn.search
        if not (1 <= step.edge < len(search.edges) - 1 if search else step.edge == 0):
            raise MessageInvalid(f"field edge is {step.edge}, which round {step.round} has not")
        if turn is None:
            asked = {name for name, tree in self.trees.items() if step.round <= tree.rounds}
        else:
            asked = {turn.question} if turn.tree is not None else set()
        if not step.prefixes.keys() <= asked or (turn is not None and asked - step.prefixes.keys()):
            raise MessageInvalid(f"field prefixes names what round {step.round} does not ask")
        for name, groups in step.prefixes.items():
            tree, question = self.trees[name], self.file.questions[name]
            size, letters = tree.size(self._level(name, step)), set(question.alphabet)
            if len(groups) != len(tree.prefixes) or not any(groups):
                raise MessageInvalid("field prefixes has no words, or other groups")
            for words in groups:
                if len(words) > KEPT * question.most or len(set(words)) < len(words):
                    raise MessageInvalid("field prefixes holds too many words, or one twice")
                if any(len(word) != size or not set(word) <= letters for word in words):
                    raise MessageInvalid(f"field prefixes holds a word not of {size} letters")

    def _level(self, name: str, step: Step) -> int:
        first = next((i for i, turn in enumerate(self.turns) if turn.question == name), 0)
        return step.round - 1 - first

    def parts(self, step: Step) -> list[Part]:
        trees = []
        for name, groups in step.prefixes.items():
            letters = self.trees[name].letters[self._level(name, step)]
            question = self.file.questions[name]
            candidates = [extended(words, question, letters) for words in groups]
            trees.append(prefix_part(self.file, name, candidates))
        if not self.file.local:
            return [*self.static, *trees]
        turn = self.turns[step.round - 1]
        if turn.search is not None:
            edge = float(turn.search.edges[step.edge])
            return [below_part(self.file, turn.question, turn.group, turn.search.q, edge)]
        return trees if turn.part is None else [turn.part]

    def layout(self, step: Step) -> Layout:
        """Return the layout of the vector that each client computes in the round `step`."""
        return Layout(self.file, self.parts(step))

    def cohort(self, step: Step, clients: int) -> list[int]:
        if not self.file.local:
            return list(range(clients))
        order = Seeded(self.file.seed, "cohorts").permutation(clients)
        first, last = self._ends(clients)[step.round - 1 : step.round + 1]
        return sorted(int(client) for client in order[first:last])

    def too_few(self, clients: int) -> bool:
        """Return True if `clients` is so small that a round under rr or oue would ask nobody."""
        return self.file.local and not np.diff(self._ends(clients)).all()

    def _ends(self, clients: int) -> Int64s:
        """Return how many clients are asked in the first n rounds together, for n = 0, 1, ...

        This is used only under rr and oue, where each round asks different clients. `clients` is
        the number of all clients.
        """
        ends = np.cumsum([0.0, *(turn.share for turn in self.turns)])
        rounded: Int64s = np.round(ends / ends[-1] * clients).astype(np.int64)
        return rounded
