"""Tokens read from vectors, from bits, and from what comes back: exact cases and formulas."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import stats

from fedveil.attacks.split.token_reading import (
    Habits,
    bit_likelihood,
    ceiling,
    chance_of_one,
    from_gradients,
    learnt,
    lie,
    likeliest,
    nearest,
    number_likelihood,
)
from fedveil.base.array_types import Float64s, Int64s
from fedveil.entropy import Seeded
from fedveil.errors import InvalidValue
from fedveil.mechanisms.embedding_dp import EmbeddingDP
from fedveil.privacy.intervals import share

WORDS, VALUES, LENGTH = 60, 24, 600


@pytest.fixture(scope="module")
def source() -> np.random.Generator:
    return Seeded(2, "tokens").generator()


@pytest.fixture(scope="module")
def table(source: np.random.Generator) -> Float64s:
    return source.standard_normal((WORDS, VALUES))


@pytest.fixture(scope="module")
def text(source: np.random.Generator) -> Int64s:
    return source.integers(0, WORDS, LENGTH)


def sent(table: Float64s, text: Int64s, eps: float | None, number: int = 0) -> Float64s:
    return EmbeddingDP(eps)(table[text], Seeded(6, "report", number))


def read(ones: Float64s, reports: int, table: Float64s, eps: float | None) -> Int64s:
    return likeliest(bit_likelihood(ones, reports, chance_of_one(table, eps))[np.newaxis])[0]


def test_numbers_are_the_words(table: Float64s, text: Int64s) -> None:
    assert np.array_equal(nearest(table[text], table), text)


def test_bits_without_noise_are_the_words(table: Float64s, text: Int64s) -> None:
    """Tokens are found unless two words have the same bits."""
    bits = sent(table, text, None)
    assert len(np.unique(table > 0, axis=0)) == WORDS
    assert np.array_equal(nearest(bits, (table > 0).astype(float)), text)
    assert np.array_equal(read(bits, 1, table, None), text)


def test_at_eps_0_words_are_guessed(table: Float64s, text: Int64s) -> None:
    bits = sent(table, text, 0.0)
    for guesses in (nearest(bits, (table > 0).astype(float)), read(bits, 1, table, 0.0)):
        hits = int((guesses == text).sum())
        assert share("right", hits, LENGTH, confidence=0.999).low <= 1 / WORDS
        assert hits <= 3 * LENGTH / WORDS


@pytest.mark.parametrize("eps", [0.5, 2.0, 5.0])
def test_of_one_report_the_likeliest_is_the_nearest(
    table: Float64s, text: Int64s, eps: float
) -> None:
    bits = sent(table, text, eps)
    close = ((bits[:, np.newaxis] != (table > 0)).sum(axis=2)).astype(float)
    guesses = read(bits, 1, table, eps)
    assert np.array_equal(close[np.arange(LENGTH), guesses], close.min(axis=1))


def test_reports_add_up(table: Float64s, text: Int64s) -> None:
    right = []
    for reports in (1, 4, 16):
        ones = sum(sent(table, text, 1.0, number) for number in range(reports))
        right.append(float((read(ones, reports, table, 1.0) == text).mean()))
    assert right[0] < right[1] - 0.2 < right[2] - 0.4
    assert right[2] > 0.95


@pytest.mark.parametrize(("values", "words", "eps"), [(12, 30, 1.0), (24, 60, 2.0), (8, 200, 3.0)])
def test_the_ceiling_of_even_codes_is_reached(values: int, words: int, eps: float) -> None:
    """Fresh codes for every token, ties guessed: 4,000 of them against the formula."""
    source = Seeded(9, "codes", values).generator()
    hits, cases = 0, 4000
    for _ in range(cases):
        codes = source.integers(0, 2, (words, values))
        report = codes[0] ^ (source.random(values) < lie(eps))
        agree = (codes == report).sum(axis=1)
        best = np.flatnonzero(agree == agree.max())
        hits += int(source.choice(best) == 0)
    reached = share("right", hits, cases, confidence=0.999)
    assert reached.low <= ceiling(values, words, eps) <= reached.high


def test_ceilings_of_small_cases() -> None:
    assert ceiling(10, 7, 0.0) == pytest.approx(1 / 7, abs=1e-12)
    # One bit, two words: theirs agree half the time, and then it is a guess.
    p = 1 - lie(2.0)
    assert ceiling(1, 2, 2.0) == pytest.approx(p * 0.75 + (1 - p) * 0.25, abs=1e-12)
    # Without noise it is missed where another word has the same code.
    assert ceiling(3, 2, None) == pytest.approx(1 - 1 / 16, abs=1e-12)
    assert ceiling(128, 40_000, None) == pytest.approx(1, abs=1e-7)


def test_gradients_are_read_however_large_the_scores_are() -> None:
    """The scores of the second position are 3,000 below those of the first."""
    word = np.array([[3.0, 0.0], [0.0, 3.0], [2.0, 2.0]])
    hidden = np.array([[500.0, -500.0], [-500.0, -500.0]])
    chosen = np.array([0, 2])
    true = np.array([1, 2])
    expected = np.array([word[0], (word[0] + word[1]) / 2])
    gradients = (expected - word[true]) / 7
    assert chosen.tolist() != true.tolist()
    assert from_gradients(gradients, hidden, word, 7).tolist() == true.tolist()


def test_a_vocabulary_has_a_word_and_a_value_of_zero_is_no_one() -> None:
    assert ceiling(5, 1, 2.5) == pytest.approx(1, abs=1e-12)
    with pytest.raises(InvalidValue, match="words"):
        ceiling(5, 0, 2.5)
    told = chance_of_one(np.array([-0.5, 0.0, 0.25]), 3.0)
    assert told.tolist() == pytest.approx([lie(3.0), lie(3.0), 1 - lie(3.0)])


def test_how_often_a_bit_lies() -> None:
    assert lie(None) == 0
    assert lie(2 * math.log(3)) == pytest.approx(1 / 4, abs=1e-15)


def test_an_older_table_does_better_where_it_is_known_to_be_older(
    table: Float64s, text: Int64s, source: np.random.Generator
) -> None:
    now = table + 0.7 * source.standard_normal(table.shape)
    ones = sum(sent(now, text, 2.0, number) for number in range(3))
    right = [
        float((likeliest(bit_likelihood(ones, 3, told)[np.newaxis])[0] == text).mean())
        for told in (chance_of_one(table, 2.0), chance_of_one(table, 2.0, blur=0.7))
    ]
    assert right[1] > right[0]
    by_number = number_likelihood(now[text], table, 0.7)
    assert np.array_equal(by_number.argmax(axis=1), nearest(now[text], table))


def test_likelihoods_are_those_of_normal_numbers_and_of_binomial_bits(
    source: np.random.Generator,
) -> None:
    """Three tokens, five words, four values."""
    given, known = source.standard_normal((3, 4)), source.standard_normal((5, 4))
    found = number_likelihood(given, known, 0.6)
    exact = stats.norm(known, 0.6).logpdf(given[:, np.newaxis]).sum(axis=2)
    assert found - found[:, :1] == pytest.approx(exact - exact[:, :1])
    ones, told = source.integers(0, 8, (3, 4)).astype(float), source.random((5, 4))
    found = bit_likelihood(ones, 7, told)
    exact = stats.binom(7, told).logpmf(ones[:, np.newaxis]).sum(axis=2)
    assert found - found[:, :1] == pytest.approx(exact - exact[:, :1])


def test_a_learnt_vector_is_drawn_to_the_mean_of_all() -> None:
    given = np.array([[6.0, 0.0], [0.0, 3.0], [3.0, 9.0]])
    vectors, counts = learnt(given, np.array([2, 0, 2]), 4)
    assert counts.tolist() == [1, 0, 2, 0]
    assert vectors.tolist() == [[1.5, 3.5], [3.0, 4.0], [4.0, 13 / 3], [3.0, 4.0]]


def test_habits_count_what_follows_a_word() -> None:
    """After the first of three words comes the second twice, and the third once."""
    habits = Habits.of(np.array([0, 1, 0, 1, 2, 0, 2]), 3)
    single = np.array([4, 3, 3]) / 10
    assert habits.words == pytest.approx(single)
    assert habits.after[0] == pytest.approx((np.array([0, 2, 1]) + 20 * single) / 23)
    assert habits.after[2] == pytest.approx((np.array([1, 0, 0]) + 20 * single) / 21)


def test_a_table_is_learnt_from_known_text(table: Float64s, text: Int64s) -> None:
    known, rest = text[:400], text[400:]
    bits = sent(table, text, 4.0)
    told, counts = learnt(bits[:400], known, WORDS)
    assert np.array_equal(counts, np.bincount(known, minlength=WORDS))
    guesses = likeliest(bit_likelihood(bits[400:], 1, told)[np.newaxis])[0]
    assert float((guesses == rest).mean()) > 0.8
    numbers, _ = learnt(table[known], known, WORDS)
    assert float((nearest(table[rest], numbers) == rest).mean()) > 0.9


def test_habits_are_bayes_rule() -> None:
    """Two words, three places, against the sum over all eight texts."""
    habits = Habits.of(np.array([0, 0, 1, 0, 1, 1, 0]), 2)
    assert habits.words.sum() == pytest.approx(1)
    assert habits.after.sum(axis=1) == pytest.approx([1, 1])
    likelihood = np.log(np.array([[[0.3, 0.7], [0.6, 0.4], [0.2, 0.8]]]))
    each = np.zeros((3, 2))
    for code in range(8):
        words = [code >> place & 1 for place in range(3)]
        weight = habits.words[words[0]] * math.prod(habits.after[a, b] for a, b in pairwise(words))
        weight *= math.exp(sum(likelihood[0, place, word] for place, word in enumerate(words)))
        for place, word in enumerate(words):
            each[place, word] += weight
    each /= each.sum(axis=1, keepdims=True)
    assert habits.posterior(likelihood)[0] == pytest.approx(each, abs=1e-12)
    assert np.array_equal(likeliest(likelihood, habits)[0], each.argmax(axis=1))


def test_next_tokens_are_in_the_gradient(source: np.random.Generator) -> None:
    word = torch.from_numpy(source.standard_normal((WORDS, VALUES))).requires_grad_()
    hidden = torch.from_numpy(source.standard_normal((2, 50, VALUES))).requires_grad_()
    labels = torch.from_numpy(source.integers(0, WORDS, (2, 50)))
    scores = torch.nn.functional.linear(hidden, word)
    torch.nn.functional.cross_entropy(scores.flatten(0, 1), labels.flatten()).backward()
    assert hidden.grad is not None
    back, given = (t.detach().reshape(100, VALUES).numpy() for t in (hidden.grad, hidden))
    guesses = from_gradients(back, given, word.detach().numpy(), 100)
    assert np.array_equal(guesses, labels.flatten().numpy())
    nothing = from_gradients(np.zeros_like(back), given, word.detach().numpy(), 100)
    assert float((nothing == labels.flatten().numpy()).mean()) < 0.2
