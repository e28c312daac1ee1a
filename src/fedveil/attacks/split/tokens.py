"""`fedveil attack tokens`: whoever holds the layers of a split language model reads the text."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import nn

from fedveil._arrays import Float64s, Int64s
from fedveil.attacks.effort import Effort, Watch, by_effort
from fedveil.attacks.split.split_target import SplitTarget
from fedveil.attacks.split.token_reading import (
    Habits,
    bit_likelihood,
    ceiling,
    from_gradients,
    learnt,
    likeliest,
    nearest,
    number_likelihood,
    odds,
)
from fedveil.entropy import Seeded
from fedveil.errors import AttackImpossible
from fedveil.language.transformer import TiedHead, WordAndPosition
from fedveil.privacy.finding import Finding, Measured
from fedveil.privacy.intervals import share
from fedveil.vertical.split import module_of

#: Reports of fixed weights that are added up.
REPORTS = 10
#: An older table is held to be off by this much of its spread.
_BLUR = 0.5


def attack(target: SplitTarget, effort: Effort, watch: Watch) -> Finding:
    """What the follower reads of the leader's tokens, from vectors and from what comes back.

    It has the leader's tokenizer and, as each figure says, the leader's tables ("known table"),
    those that the shared seed gives ("own copy", of a run that has ended), or the text of windows
    as many as it reads ("known text"); for "with habits" also held-out text of the same kind.
    """
    began = time.perf_counter()
    split = _Cut.of(target)
    windows = min(by_effort(effort, 16, 64, 256), target.examples // 2)
    drawn = Seeded(0, "tokens").generator().permutation(target.examples)
    read = _Heard.of(split, drawn[:windows], REPORTS, watch)
    words = split.shape[0]
    frequent = read.truth == np.bincount(split.aside, minlength=words).argmax()
    guess = float(frequent.mean())
    habits = Habits.of(split.aside, words)

    def told(name: str, guesses: Int64s, truth: Int64s = read.truth) -> Measured:
        return share(name, int((guesses == truth).sum()), truth.size, guess=guess)

    one, many = read.first, read.together
    known = split.word, split.position
    alone = split.likelihood(one, 1, *known)
    added = split.likelihood(many, REPORTS, *known)
    figures = [
        told("nearest, known table", split.nearest(one, *known)),
        told("likeliest, known table", likeliest(alone)),
        told("likeliest with habits", likeliest(alone, habits)),
        told(f"likeliest of {REPORTS} reports", likeliest(added)),
        told(f"likeliest of {REPORTS} reports with habits", likeliest(added, habits)),
    ]
    if target.trained:
        copy = split.likelihood(one, 1, *split.fresh, _BLUR * float(split.fresh[0].std()))
        figures.append(told("likeliest, own copy", likeliest(copy)))
    pairs = _Heard.of(split, drawn[windows : 2 * windows], 1, watch)
    figures.append(told("likeliest, known text", split.by_text(pairs, one)))
    if read.returned is not None:
        gradients, hidden = read.returned
        next_ones = from_gradients(gradients, hidden, split.word, read.truth.size)
        figures.append(told("next tokens, from gradients", next_ones, read.following.reshape(-1)))
    most = ceiling(split.shape[1], words, split.eps) if split.bits else 1.0
    figures.append(Measured("ceiling of even codes", most))
    promised = target.promised(split.part)
    privacy = target.job.privacy.model_dump(mode="json")
    return Finding(
        attack="tokens",
        effort=effort,
        protection="embedding_dp" if split.bits else "none",
        figures=figures,
        settings={**privacy, "windows": windows},
        epsilon=promised.epsilon,
        delta=promised.delta,
        saw=f"{split.part} and the gradient of {split.back}, at {split.party}",
        seconds=time.perf_counter() - began,
    )


@dataclass(frozen=True)
class _Cut:
    """The two crossings of a language model, the leader's tables, and text set aside."""

    target: SplitTarget
    part: str
    back: str
    party: str
    column: str
    embedding: WordAndPosition
    aside: Int64s

    @classmethod
    def of(cls, target: SplitTarget) -> _Cut:
        split = target.split
        for crossing in split.crossings:
            part = split.by_name[crossing.part]
            module = part.module
            if isinstance(module, WordAndPosition) and isinstance(split.last.module, TiedHead):
                held = target.rows["test"][split.leader].columns[part.columns[0]]
                returns = [c.part for c in split.crossings if c.sender == crossing.receiver]
                aside = held.reshape(-1).numpy().astype(np.int64)
                return cls(
                    target,
                    part.name,
                    returns[0] if returns else "nothing",
                    crossing.receiver,
                    part.columns[0],
                    module,
                    aside,
                )
        raise AttackImpossible(
            f"tokens are read where a language model's embedding crosses to another party, and "
            f"task.name = {target.job.task.name} has none that does"
        )

    @property
    def bits(self) -> bool:
        """Whether what crosses is EmbeddingDP's bits."""
        return self.target.crossing(self.part).privacy is not None

    @property
    def eps(self) -> float | None:
        privacy = self.target.crossing(self.part).privacy
        return None if privacy is None else privacy.eps

    @cached_property
    def word(self) -> Float64s:
        return _array(self.embedding.word)

    @cached_property
    def position(self) -> Float64s:
        return _array(self.embedding.position)

    @cached_property
    def shape(self) -> tuple[int, int]:
        """How many words there are, and the values of each."""
        words, values = self.word.shape
        return words, values

    @cached_property
    def fresh(self) -> tuple[Float64s, Float64s]:
        """The tables before the first step, as any party makes them from the job's seed."""
        made = module_of(self.target.task.split_model().by_name[self.part])
        assert isinstance(made, WordAndPosition)
        return _array(made.word), _array(made.position)

    def nearest(self, sent: Float64s, word: Float64s, position: Float64s) -> Int64s:
        """The word whose vector, or whose bits, are nearest at each place."""
        found = np.empty(sent.shape[:2], np.int64)
        for place in range(sent.shape[1]):
            known = word + position[place]
            found[:, place] = nearest(sent[:, place], (known > 0) * 1.0 if self.bits else known)
        return found

    def likelihood(
        self, sent: Float64s, reports: int, word: Float64s, position: Float64s, blur: float = 0.0
    ) -> Float64s:
        """ln Pr[reports | word] at each place; `sent` are sums of so many reports."""
        spread = (blur or 1e-3 * float(word.std())) / math.sqrt(reports)
        found = np.empty((*sent.shape[:2], len(word)))
        for place in range(sent.shape[1]):
            known = word + position[place]
            if self.bits:
                told = odds(known, self.eps, blur)
                found[:, place] = bit_likelihood(sent[:, place], reports, told)
            else:
                found[:, place] = number_likelihood(sent[:, place] / reports, known, spread)
        return found

    def by_text(self, pairs: _Heard, sent: Float64s) -> Int64s:
        """The words by a table that was learnt from what crossed for known text."""
        flat = pairs.first.reshape(-1, pairs.first.shape[-1])
        table, _ = learnt(flat, pairs.truth.reshape(-1), self.shape[0])
        given = sent.reshape(-1, sent.shape[-1])
        if not self.bits:
            return nearest(given, table).reshape(sent.shape[:2])
        return likeliest(bit_likelihood(given, 1, table).reshape(*sent.shape[:2], -1))


@dataclass(frozen=True)
class _Heard:
    """What crossed for some windows: their first report, the sum of all, and what came back.

    `returned` are the gradients and what they are of, [tokens, values]; None where none comes.
    """

    first: Float64s
    together: Float64s
    returned: tuple[Float64s, Float64s] | None
    truth: Int64s
    following: Int64s

    @classmethod
    def of(cls, cut: _Cut, positions: Int64s, reports: int, watch: Watch) -> _Heard:
        target, held = cut.target, cut.target.rows["train"][cut.target.split.leader]
        heard, returned = [], None
        for number in range(1, reports + 1):
            crossed = target.crossed(positions, number)
            heard.append(crossed.outputs[cut.part].double().numpy())
            if returned is None and cut.back in crossed.gradients:
                both = crossed.gradients[cut.back], crossed.outputs[cut.back]
                gradients, hidden = (tensor.flatten(0, 1).double().numpy() for tensor in both)
                returned = gradients, hidden
            watch.step(number, reports, "reports")
        index = torch.from_numpy(positions)
        assert held.labels is not None, "the leader has labels"
        truth = held.columns[cut.column][index].numpy().astype(np.int64)
        following = held.labels[index].numpy().astype(np.int64)
        return cls(heard[0], np.sum(heard, axis=0), returned, truth, following)


def _array(table: nn.Embedding) -> Float64s:
    values: Float64s = table.weight.detach().double().cpu().numpy()
    return values
