"""Reference models, which the attacker trained on examples of its own choice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from fedveil.attacks.membership.model_answers import Answers
from fedveil.attacks.roc import best_threshold
from fedveil.base.array_types import Bools, Float64s, Int64s
from fedveil.base.validate import integer
from fedveil.entropy import Entropy
from fedveil.errors import InvalidValue

#: With at least this many reference models, each example has its own standard deviation. So 16
#: models suffice, because `threshold` leaves out one at a time.
_OWN_SPREAD = 15
#: The shared variance then has the weight of this number of models. Without it, an example whose
#: own deviation is small by chance would look certain.
_SHARED = 16


@dataclass(frozen=True)
class References:
    """Reference models, for which the attacker knows the training examples.

    `answers[r]` are the outputs of model r for all examples to test, and `y` the examples' labels.
    `held[r, i]` is True if model r was trained on example i. Raises `InvalidValue` if an
    example is in the training data of every model.
    """

    answers: Sequence[Answers]
    held: Bools
    y: Int64s

    def __post_init__(self) -> None:
        shape = (len(self.answers), len(self.y))
        if self.held.shape != shape:
            raise InvalidValue(f"held has shape {self.held.shape}, {shape} is needed")
        if self.held.all(axis=0).any():
            first = int(np.argmax(self.held.all(axis=0)))
            raise InvalidValue(
                f"every reference model was trained on example {first}: at least one must not be"
            )

    def without(self, which: int) -> References:
        """Return these references without the model at index `which`."""
        kept = [r for r in range(len(self.answers)) if r != which]
        return References([self.answers[r] for r in kept], self.held[kept], self.y)

    def outside(self, of: Callable[[Answers], Float64s]) -> tuple[Float64s, float]:
        """Return each example's mean score in models trained without it, and a standard deviation.

        `of` computes the scores of all examples from one model's outputs. The standard deviation is
        one number, pooled over all examples.
        """
        means, shared, _ = self._moments(of, ~self.held)
        return means, shared

    def normals(self, of: Callable[[Answers], Float64s], member: bool) -> tuple[Float64s, Float64s]:
        """Return the mean and standard deviation of each example's score over reference models.

        `of` computes the scores of all examples from one model's outputs. If `member` is True, only
        the models that were trained on the example count, otherwise only the models that were not.
        If no such model exists for an example, its mean over the other models is used, plus a
        correction. The correction is the average difference between the two kinds of models, over
        the examples that have both kinds.

        With fewer than 15 models, all examples have the same standard deviation. Otherwise an
        example's own variance is shrunk towards the common one (Smyth 2004).
        """
        given = self.held if member else ~self.held
        counts = given.sum(axis=0)
        if not counts.any():
            raise InvalidValue("no reference model was trained on any example: at least one must")
        means, shared, squares = self._moments(of, given)
        if not counts.all():
            usual = self._moments(of, ~given)[0]
            means = np.where(counts, means, usual + (means - usual)[counts > 0].mean())
        if len(self.answers) < _OWN_SPREAD:
            return means, np.full_like(means, shared)
        freedom = _SHARED + np.maximum(counts - 1, 0)
        return means, np.sqrt((_SHARED * shared**2 + squares) / freedom)

    def _moments(
        self, of: Callable[[Answers], Float64s], given: Bools
    ) -> tuple[Float64s, float, Float64s]:
        values = np.stack([of(answers) for answers in self.answers])
        counts = given.sum(axis=0)
        means: Float64s = np.where(given, values, 0).sum(axis=0) / np.maximum(counts, 1)
        squares: Float64s = np.where(given, (values - means) ** 2, 0).sum(axis=0)
        total, freedom = float(squares.sum()), int(np.maximum(counts - 1, 0).sum())
        return means, float(np.sqrt(total / freedom)) if total else 1.0, squares


#: Scores a model's answers with the help of references. A larger score: likelier a member.
Method: TypeAlias = Callable[[Answers, References], Float64s]


def halves(examples: int, models: int, entropy: Entropy) -> Bools:
    """Draw random halves of the examples, as training data for an even number of `models`.

    Returns a mask [models, examples] that marks each model's training examples. Every example is
    training data of exactly half of the models.
    """
    if integer("models", models, 2) % 2:
        raise InvalidValue(f"models = {models} is odd, an even number is needed")
    held = np.zeros((models, examples), np.bool_)
    for pair in range(0, models, 2):
        held[pair, entropy.permutation(examples)[: examples // 2]] = True
        held[pair + 1] = ~held[pair]
    return held


def threshold(method: Method, references: References) -> float:
    """Return the threshold of `method`'s scores that best separates members from non-members.

    The scores come from attacks on the reference models. Each of them is attacked once, with the
    others as references. No output of the model that the attack is aimed at is used, so the
    accuracy on that model is unbiased at this threshold.
    """
    members, others = [], []
    for which, answers in enumerate(references.answers):
        scores = method(answers, references.without(which))
        members.append(scores[references.held[which]])
        others.append(scores[~references.held[which]])
    return best_threshold(np.concatenate(members), np.concatenate(others))
