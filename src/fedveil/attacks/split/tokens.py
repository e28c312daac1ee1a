"""`fedveil attack tokens`: the owner of a language model's middle layers recovers the text."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import nn

from fedveil.attacks.effort import Effort, Watch, by_effort
from fedveil.attacks.split.split_target import SplitTarget
from fedveil.attacks.split.token_reading import (
    Habits,
    bit_likelihood,
    ceiling,
    chance_of_one,
    from_gradients,
    learnt,
    likeliest,
    nearest,
    number_likelihood,
)
from fedveil.base.array_types import Float64s, Int64s
from fedveil.entropy import Seeded
from fedveil.errors import AttackImpossible
from fedveil.language.transformer import TiedHead, WordAndPosition
from fedveil.privacy.finding import Finding, Measured
from fedveil.privacy.intervals import share_of_groups
from fedveil.vertical.split import module_of

#: Number of reports, at fixed weights, that the attacker adds up.
REPORTS = 10
#: Assumed error of vectors from before training, as a share of their standard deviation.
_BLUR = 0.5


def attack(target: SplitTarget, effort: Effort, watch: Watch) -> Finding:
    """Recover the leader's tokens from the vectors and the gradients that a follower receives.

    `effort` sets how long the attack runs, and `watch` reports its progress. The finding has a
    metric for each variant of the attack. In all variants, the follower has the leader's tokenizer.
    The name of a variant says what else it has:

    - "own copy" (only after training): the vectors of words and positions before training, which
      the follower computes from the job's seed.
    - "known text": the text of equally many other examples, whose vectors it has received too.
    - Any other name: the leader's current vectors of words and positions.
    - "with habits": in addition, the counts of words and pairs of words in held-out text.
    """
    cut = _Cut.of(target)
    windows = min(by_effort(effort, 16, 64, 256), target.examples // 2)
    drawn = Seeded(0, "tokens").generator().permutation(target.examples)
    read = _Heard.of(cut, drawn[:windows], REPORTS, watch)
    pairs = _Heard.of(cut, drawn[windows : 2 * windows], 1, watch)
    words = cut.shape[0]
    common = np.bincount(cut.aside, minlength=words).argmax()
    truth = {True: read.following, False: read.truth}
    figures = []
    for name, guesses in {**_from_vectors(cut, read, pairs), **_from_gradients(cut, read)}.items():
        true = truth[name.startswith("next")].reshape(guesses.shape)
        guess = float((true == common).mean())
        right = (guesses == true).reshape(windows, -1)
        figures.append(share_of_groups(name, right.sum(1), [right.shape[1]] * windows, guess=guess))
    most = ceiling(cut.shape[1], words, cut.eps) if cut.bits else 1.0
    figures.append(Measured("best guess if codes were random", most))
    promised = target.promised(cut.part, REPORTS)
    privacy = target.job.privacy.model_dump(mode="json")
    return Finding(
        attack="tokens",
        effort=effort,
        protection="embedding_dp" if cut.bits else "none",
        figures=figures,
        settings={**privacy, "windows": windows},
        epsilon=promised.epsilon,
        delta=promised.delta,
        saw=f"{REPORTS} reports of {cut.part}, which epsilon is of; the gradient of {cut.back}",
    )


def _from_vectors(cut: _Cut, read: _Heard, pairs: _Heard) -> dict[str, Int64s]:
    known, habits = (cut.word, cut.position), Habits.of(cut.aside, cut.shape[0])
    alone = cut.likelihood(read.first, 1, *known)
    privacy = cut.target.crossing(cut.part).privacy
    again = privacy is not None and privacy.reuse
    added = alone if again else cut.likelihood(read.together, REPORTS, *known)
    found = {
        "nearest, known table": cut.nearest(read.first, *known),
        "likeliest, known table": likeliest(alone),
        "likeliest with habits": likeliest(alone, habits),
        f"likeliest of {REPORTS} reports": likeliest(added),
        f"likeliest of {REPORTS} reports with habits": likeliest(added, habits),
        "likeliest, known text": cut.by_text(pairs, read.first),
    }
    if cut.target.trained:
        blur = _BLUR * float(cut.fresh[0].std())
        found["likeliest, own copy"] = likeliest(cut.likelihood(read.first, 1, *cut.fresh, blur))
    return found


def _from_gradients(cut: _Cut, read: _Heard) -> dict[str, Int64s]:
    if read.returned is None:
        return {}
    found = {
        "next tokens, from gradients": from_gradients(*read.returned, cut.word, read.truth.size)
    }
    if cut.target.trained:
        copy = from_gradients(*read.returned, cut.fresh[0], read.truth.size)
        found["next tokens, own copy"] = copy
    return found


@dataclass(frozen=True)
class _Cut:
    """A language model whose first and last layers are the leader's, and the middle a follower's.

    `part` names the leader's embedding layer, and `party` the follower that receives its output.
    `back` names the part whose output the follower returns to the leader, or is "nothing" if there
    is none. `column` names the leader's column of tokens. `embedding` is the embedding layer with
    its word and position vectors. `aside` are the tokens of the test texts.
    """

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
        words, values = self.word.shape
        return words, values

    @cached_property
    def fresh(self) -> tuple[Float64s, Float64s]:
        """The word and position embeddings before training, built from the job's seed."""
        made = module_of(self.target.task.split_model().by_name[self.part])
        assert isinstance(made, WordAndPosition)
        return _array(made.word), _array(made.position)

    def nearest(self, sent: Float64s, word: Float64s, position: Float64s) -> Int64s:
        """Return, for each vector in `sent`, the word whose vector is nearest.

        At position p, the vector of word w is `word[w] + position[p]`, or its bits if the leader
        sends bits. `sent` is [texts, length, values], and the result [texts, length].
        """
        found = np.empty(sent.shape[:2], np.int64)
        for place in range(sent.shape[1]):
            known = word + position[place]
            found[:, place] = nearest(sent[:, place], (known > 0) * 1.0 if self.bits else known)
        return found

    def likelihood(
        self, sent: Float64s, reports: int, word: Float64s, position: Float64s, blur: float = 0.0
    ) -> Float64s:
        """Return ln Pr[reports | word] for each token, up to a constant: [texts, length, words].

        `sent`, [texts, length, values], is the sum of `reports` reports of each token. `word` and
        `position` are the tables of vectors that the attacker has. `blur` is the standard deviation
        of the errors in these tables.
        """
        spread = (blur or 1e-3 * float(word.std())) / math.sqrt(reports)
        found = np.empty((*sent.shape[:2], len(word)))
        for place in range(sent.shape[1]):
            known = word + position[place]
            if self.bits:
                told = chance_of_one(known, self.eps, blur)
                found[:, place] = bit_likelihood(sent[:, place], reports, told)
            else:
                found[:, place] = number_likelihood(sent[:, place] / reports, known, spread)
        return found

    def by_text(self, pairs: _Heard, sent: Float64s) -> Int64s:
        flat = pairs.first.reshape(-1, pairs.first.shape[-1])
        table, _ = learnt(flat, pairs.truth.reshape(-1), self.shape[0])
        given = sent.reshape(-1, sent.shape[-1])
        if not self.bits:
            return nearest(given, table).reshape(sent.shape[:2])
        return likeliest(bit_likelihood(given, 1, table).reshape(*sent.shape[:2], -1))


@dataclass(frozen=True)
class _Heard:
    """The messages that the follower received for some texts: reports and gradients.

    `first`, [texts, length, values], has one report of each token's vector. `together` has the sum
    of all reports of each vector. `returned` is a pair: the gradients that the follower received,
    and the follower's outputs to which these gradients belong. It is None if the follower received
    no gradients. `truth` are the tokens, and `following` the tokens that follow them.
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
