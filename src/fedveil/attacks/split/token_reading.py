"""Recovery of tokens from a split language model's messages, by the owner of the middle layers.

The leader's embedding layer sends a vector for each token, as numbers or as EmbeddingDP's bits. The
gradient that the middle layers' owner receives depends on the next token. The attacker has a table
of the words' vectors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedveil.base.array_types import Float64s, Int64s
from fedveil.base.lazy import special
from fedveil.base.validate import integer, positive

#: Least probability of either value of a bit.
_SUREST = 1e-6
#: Weight of the overall word frequencies in those after a given word, as a number of words.
_BEFORE = 20.0


def lie(eps: float | None) -> float:
    """Return the probability that EmbeddingDP flips a bit: 1 / (1 + e^(eps/2)).

    If `eps` is None, no bit is flipped, and the result is 0.
    """
    return 0.0 if eps is None else float(special().expit(-eps / 2))


def nearest(sent: Float64s, known: Float64s) -> Int64s:
    """Return, for each vector in `sent`, the index of the nearest row of the table `known`.

    `sent` is [tokens, values], and `known` is [words, values]. Ties go to the first row.
    """
    distances = (known**2).sum(axis=1) - 2 * (sent @ known.T)
    found: Int64s = distances.argmin(axis=1).astype(np.int64)
    return found


def chance_of_one(values: Float64s, eps: float | None, blur: float = 0.0) -> Float64s:
    """Return, for each estimate in `values`, Pr[EmbeddingDP with parameter `eps` sends a 1].

    `values` are estimates of the true values, with errors of standard deviation `blur`. If `eps` is
    None, no bit is flipped.
    """
    if blur:
        true = special().ndtr(values / positive("blur", blur))
    else:
        true = (values > 0).astype(np.float64)
    q = lie(eps)
    told: Float64s = q + (1 - 2 * q) * true
    return told


def bit_likelihood(ones: Float64s, reports: int, chances: Float64s) -> Float64s:
    """Return ln Pr[the reports of a token | the token is this word], [tokens, words].

    A report has one bit for each of the vector's values. `ones`, [tokens, values], counts the 1s in
    a token's `reports` reports. `chances`, [words, values], has the probability of a 1 in a report
    of the word.
    """
    told = np.clip(chances, _SUREST, 1 - _SUREST)
    no = np.log1p(-told)
    found: Float64s = ones @ (np.log(told) - no).T + reports * no.sum(axis=1)
    return found


def number_likelihood(sent: Float64s, known: Float64s, blur: float) -> Float64s:
    """Return ln Pr[sent vector | word] plus a constant, [tokens, words].

    `sent` is [tokens, values], and `known`, [words, values], are the words' vectors. Errors are
    normal with standard deviation `blur`.
    """
    squares = (known**2).sum(axis=1) - 2 * (sent @ known.T) + (sent**2).sum(axis=1, keepdims=True)
    found: Float64s = squares / (-2 * positive("blur", blur) ** 2)
    return found


def learnt(sent: Float64s, tokens: Int64s, words: int) -> tuple[Float64s, Int64s]:
    """Estimate a table of word vectors from messages whose text is known.

    `sent`, [tokens, values], has a message for each token of the text: numbers, or EmbeddingDP's
    bits. `tokens` has each token's index in the vocabulary, and `words` is the vocabulary's size.
    Returns an estimated vector for each word, and the number of times that the word occurs. A word
    that never occurs gets the mean of all messages.
    """
    counts: Int64s = np.bincount(tokens, minlength=words).astype(np.int64)
    sums = np.zeros((words, sent.shape[1]))
    np.add.at(sums, tokens, sent)
    middle = sent.mean(axis=0)
    return (sums + middle) / (counts[:, np.newaxis] + 1), counts


@dataclass(frozen=True)
class Habits:
    """Statistics of a text: the frequencies of words, and of the words that follow each word."""

    words: Float64s
    after: Float64s

    @classmethod
    def of(cls, tokens: Int64s, words: int) -> Habits:
        """Count the words in a text, and for each word the words that directly follow it.

        `words` is the size of the vocabulary.
        """
        single = np.bincount(tokens, minlength=words) + 1.0
        single /= single.sum()
        pairs = np.zeros((words, words))
        np.add.at(pairs, (tokens[:-1], tokens[1:]), 1)
        counts = pairs.sum(axis=1, keepdims=True)
        after: Float64s = ((pairs + _BEFORE * single) / (counts + _BEFORE)).astype(np.float64)
        return cls(single.astype(np.float64), after)

    def posterior(self, likelihood: Float64s) -> Float64s:
        """Return the probability of each word at each position, given all reports of the text.

        `likelihood` is ln Pr[reports at a position | word]. This array and the result are [texts,
        length, words].
        """
        seen = np.exp(likelihood - likelihood.max(axis=2, keepdims=True))
        forward, backward = np.empty_like(seen), np.empty_like(seen)
        length = seen.shape[1]
        before = np.broadcast_to(self.words, seen[:, 0].shape)
        behind = np.ones_like(seen[:, 0])
        for place in range(length):
            forward[:, place] = _shares(before * seen[:, place])
            before = forward[:, place] @ self.after
            back = length - 1 - place
            backward[:, back] = behind
            behind = _shares((behind * seen[:, back]) @ self.after.T)
        return _shares(forward * backward)


def likeliest(likelihood: Float64s, habits: Habits | None = None) -> Int64s:
    """Return the likeliest word at each position, [texts, length].

    `likelihood`, [texts, length, words], is ln Pr[reports at a position | word]. With `habits`, the
    frequencies of words and of pairs of words count too.
    """
    odds_of = likelihood if habits is None else habits.posterior(likelihood)
    found: Int64s = odds_of.argmax(axis=2).astype(np.int64)
    return found


def from_gradients(gradients: Float64s, hidden: Float64s, word: Float64s, tokens: int) -> Int64s:
    """Return the next token at each position, from the gradient at the last layer's input.

    `gradients` is [positions, values]. `hidden`, of the same shape, is the input of the last layer.
    This layer's scores are the inner products of its input with the words' vectors, the rows of
    `word`. The loss is the mean cross-entropy over `tokens` tokens.
    """
    scores = hidden @ word.T
    scores -= scores.max(axis=1, keepdims=True)
    expected = _shares(np.exp(scores)) @ word
    return nearest(expected - tokens * gradients, word)


def ceiling(values: int, words: int, eps: float | None) -> float:
    """Return the probability that guessing the likeliest word is right, if words have random codes.

    A word's code is its `values` bits before EmbeddingDP flips some. Here every bit of every code
    is a fair coin. The attacker sees one report, all words are equally likely, and ties are broken
    at random. With the flip probability q, the true code agrees with the report in A ~ Bin(values,
    1 - q) bits, and every other code in Bin(values, 1/2) bits, independently:

        sum over a of  Pr[A = a] · (F(a)^words - F(a - 1)^words) / (words · f(a)),

    where f and F are the probability mass and the distribution function of Bin(values, 1/2).
    """
    integer("words", words, 1)
    true = _binomial(values, lie(eps))[::-1]
    log_f = _log_binomial(values)
    upto = np.minimum(np.cumsum(np.exp(log_f)), 1.0)
    below = np.concatenate([[0.0], upto[:-1]])
    f = np.exp(log_f)
    best = np.where(
        words * f > 1e-6,
        (upto**words - below**words) / np.maximum(words * f, 1e-6),
        upto ** (words - 1),
    )
    return float(np.clip(true @ best, 0, 1))


def _binomial(n: int, p: float) -> Float64s:
    k = np.arange(n + 1)
    log_choose = _log_binomial(n) + n * math.log(2)
    law: Float64s = np.exp(log_choose + special().xlogy(k, p) + special().xlog1py(n - k, -p))
    return law


def _log_binomial(n: int) -> Float64s:
    k, gammaln = np.arange(n + 1), special().gammaln
    law: Float64s = gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1) - n * math.log(2)
    return law


def _shares(values: Float64s) -> Float64s:
    shares: Float64s = values / values.sum(axis=-1, keepdims=True)
    return shares
