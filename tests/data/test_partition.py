"""Every example in exactly one client, no client empty, and each split's own law."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedveil.data.partition import (
    SPLITS,
    Partition,
    _draw,
    by_client,
    dirichlet,
    held_out,
    iid,
    partition,
    shards,
)
from fedveil.entropy import Seeded
from fedveil.errors import InvalidValue
from statistical_checks import ERROR_RATE

#: The rate at which a statistical test may fail although the law is right.

seeds = st.integers(0, 2**32)


@st.composite
def labelled(draw, per_client=1):
    """Labels, a number of clients, and a number of shards per client that fits them."""
    clients = draw(st.integers(1, 12))
    shards_per_client = draw(st.integers(1, 4)) if per_client is None else per_client
    n = draw(st.integers(clients * shards_per_client, clients * shards_per_client + 60))
    labels = draw(st.lists(st.integers(0, 6), min_size=n, max_size=n))
    return np.array(labels, np.int64), clients, shards_per_client


def assert_partition(result, n, clients):
    assert result.clients == clients
    assert result.indices.dtype == result.offsets.dtype == np.int64
    assert sorted(result.indices) == list(range(n))
    assert result.sizes.sum() == n
    assert result.sizes.min() >= 1
    for client in range(clients):
        own = result.of(client)
        assert len(own) == result.sizes[client]
        assert list(own) == sorted(own)


def same(one, other):
    return np.array_equal(one.indices, other.indices) and np.array_equal(one.offsets, other.offsets)


@given(labelled(), seeds)
def test_iid_is_a_partition_into_nearly_equal_sizes(case, seed):
    labels, clients, _ = case
    result = iid(len(labels), clients, Seeded(seed))
    assert_partition(result, len(labels), clients)
    assert np.ptp(result.sizes) <= 1


@given(labelled(per_client=None), seeds)
def test_shards_is_a_partition_of_few_runs_of_the_sorted_labels(case, seed):
    labels, clients, per_client = case
    result = shards(labels, clients, per_client, Seeded(seed))
    assert_partition(result, len(labels), clients)
    assert np.ptp(result.sizes) <= 1
    rank = np.argsort(np.argsort(labels, kind="stable"))
    shortest = len(labels) // (clients * per_client)
    for client in range(clients):
        places = np.sort(rank[result.of(client)])
        runs = np.split(places, np.flatnonzero(np.diff(places) != 1) + 1)
        assert len(runs) <= per_client
        assert min(map(len, runs)) >= shortest


@given(labelled(), seeds, st.floats(min_value=0, exclude_min=True, allow_infinity=False))
def test_dirichlet_is_a_partition_into_nearly_equal_sizes_for_any_alpha(case, seed, alpha):
    labels, clients, _ = case
    result = dirichlet(labels, clients, alpha, Seeded(seed))
    assert_partition(result, len(labels), clients)
    assert np.ptp(result.sizes) <= 1


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=50))
def test_by_client_numbers_whole_owners_in_order(owners):
    result = by_client(np.array(owners))
    assert_partition(result, len(owners), len(set(owners)))
    for client, owner in enumerate(sorted(set(owners))):
        assert [owners[i] for i in result.of(client)] == [owner] * owners.count(owner)


@given(st.lists(st.text(max_size=3), min_size=1, max_size=30))
def test_by_client_numbers_names_in_order(owners):
    result = by_client(owners)
    for client, owner in enumerate(sorted(set(owners))):
        assert {owners[i] for i in result.of(client)} == {owner}
    assert same(result, by_client(np.array(owners, dtype=object)))


def test_by_client_sorts_strings_as_strings():
    assert [list(by_client(["10", "2", "10"]).of(k)) for k in (0, 1)] == [[0, 2], [1]]
    assert [list(by_client([10, 2, 10]).of(k)) for k in (0, 1)] == [[1], [0, 2]]
    assert same(by_client(np.array(["b", "a", "b"])), by_client(["b", "a", "b"]))


@given(labelled(per_client=2), seeds, st.sampled_from(["iid", "shards", "dirichlet"]))
def test_a_split_depends_on_its_arguments_alone(case, seed, split):
    labels, clients, _ = case
    entropies = Seeded(seed, "partition"), Seeded(seed, "partition")
    one, other = (partition(split, labels, None, clients, entropy=entropy) for entropy in entropies)
    assert same(one, other)


@pytest.mark.parametrize("split", ["iid", "shards", "dirichlet"])
def test_another_seed_is_another_split(split):
    labels = np.arange(200) % 10
    one, other = (partition(split, labels, None, 10, entropy=Seeded(seed)) for seed in (0, 1))
    assert not same(one, other)


KNOWN = {
    "iid": [[1, 3, 5, 9], [0, 2, 8], [4, 6, 7]],
    "shards": [[2, 5, 7, 8], [1, 4, 9], [0, 3, 6]],
    "dirichlet": [[4, 5, 8, 9], [0, 3, 6], [1, 2, 7]],
    "by_client": [[0, 3, 6, 9], [1, 4, 7], [2, 5, 8]],
    "writers": [[0, 3, 6, 9], [1, 4, 7], [2, 5, 8]],
}


@pytest.mark.parametrize("split", SPLITS)
def test_known_splits_stay_as_they_are(split):
    labels = np.array([0, 1, 2, 0, 1, 2, 0, 1, 2, 0])
    made = partition(split, labels, labels, 3, shards_per_client=1, entropy=Seeded(0, "p"))
    assert [made.of(client).tolist() for client in range(3)] == KNOWN[split]


def test_a_partition_cannot_be_changed():
    result = iid(10, 2, Seeded(0))
    with pytest.raises(ValueError, match="read-only"):
        result.indices[0] = 1
    with pytest.raises(ValueError, match="read-only"):
        result.of(0)[0] = 1


@pytest.mark.parametrize("client", [-1, 2, 1.0])
def test_only_clients_that_exist_are_asked_for(client):
    with pytest.raises(InvalidValue, match="client = "):
        iid(10, 2, Seeded(0)).of(client)


# --- the laws ---


def chi_square(counts, expected):
    """The p-value of counts under expected counts, cells that expect under 5 pooled."""
    counts, expected = np.asarray(counts, float), np.asarray(expected, float)
    order = np.argsort(expected)
    cells = np.searchsorted(np.cumsum(expected[order]), 5.0) + 1
    pooled = [
        np.append(values[order][cells:], values[order][:cells].sum())
        for values in (counts, expected)
    ]
    return stats.chisquare(*pooled).pvalue


def test_iid_gives_each_pair_of_examples_to_one_client_as_often_as_chance_does():
    runs = 3000
    holders = Counter()
    for seed in range(runs):
        result = iid(4, 2, Seeded(seed, "law"))
        holders[tuple(result.of(0))] += 1
    pairs = list(itertools.combinations(range(4), 2))
    assert set(holders) == set(pairs)
    assert chi_square([holders[pair] for pair in pairs], [runs / 6] * 6) > ERROR_RATE


def test_shards_are_dealt_uniformly():
    runs = 3000
    labels = np.array([0, 1, 2, 3])  # a shard is a label
    dealt = Counter()
    for seed in range(runs):
        dealt[tuple(shards(labels, 2, 2, Seeded(seed, "law")).of(0))] += 1
    pairs = list(itertools.combinations(range(4), 2))
    assert chi_square([dealt[pair] for pair in pairs], [runs / 6] * 6) > ERROR_RATE


def test_the_longer_shards_are_not_tied_to_a_label():
    runs, longer = 2000, np.zeros(4)
    labels = np.arange(6)  # four shards: two of one example, two of two
    for seed in range(runs):
        result = shards(labels, 4, 1, Seeded(seed, "law"))
        order = sorted(range(4), key=lambda client: result.of(client)[0])
        longer += result.sizes[order] == 2
    assert longer.sum() == 2 * runs
    for count in longer:
        assert stats.binomtest(int(count), runs, 0.5).pvalue > ERROR_RATE


def test_mcmahans_split_leaves_two_labels_a_client():
    labels = np.repeat(np.arange(10), 600)  # 200 shards of 30, none across labels
    result = shards(labels, 100, 2, Seeded(0))
    assert set(result.sizes) == {60}
    assert result.labels_held(labels).max() == 2


@pytest.mark.parametrize("alpha", [0.3, 2.0])
def test_the_first_client_draws_a_dirichlet_mixture(alpha):
    """Before any class is used up, two classes are beta-binomial with alpha * C * p each."""
    runs, size = 1000, 6
    labels = np.repeat([0, 1], [30, 10])
    clients = len(labels) // size + 1  # sizes 6 and 5
    counts = np.zeros(size + 1)
    total = 0
    for seed in range(runs):
        entropy = Seeded(seed, "law")
        first = entropy.stream("order").permutation(clients)[0]
        own = dirichlet(labels, clients, alpha, entropy).of(first)
        if len(own) == size:
            counts[labels[own].sum()] += 1
            total += 1
    law = stats.betabinom(size, alpha * 2 * 0.25, alpha * 2 * 0.75).pmf(np.arange(size + 1))
    assert total > runs / 2
    assert chi_square(counts, total * law) > ERROR_RATE


def test_what_the_last_client_finds_is_not_tied_to_its_number():
    """The leavings hold the most labels; any client is as likely as any other to get them."""
    runs, most = 600, np.zeros(5)
    labels = np.repeat(np.arange(4), 5)
    for seed in range(runs):
        held = dirichlet(labels, 5, 1e-3, Seeded(seed, "law")).labels_held(labels)
        if (held == held.max()).sum() == 1:
            most[held.argmax()] += 1
    assert most.sum() > runs / 4
    assert stats.chisquare(most).pvalue > ERROR_RATE


def test_a_used_up_class_is_left_out_of_further_draws():
    """`_draw` against the law of drawing one by one, by enumeration."""
    mixture, stock, size, runs = np.array([0.6, 0.3, 0.1]), np.array([1, 2, 3]), 4, 20_000

    def one_by_one(drawn, probability, law):
        if sum(drawn) == size:
            law[drawn] += probability
            return law
        open_classes = [c for c in range(3) if drawn[c] < stock[c]]
        for c in open_classes:
            more = tuple(d + (c == i) for i, d in enumerate(drawn))
            share = mixture[c] / mixture[open_classes].sum()
            one_by_one(more, probability * share, law)
        return law

    law = one_by_one((0, 0, 0), 1.0, Counter())
    generator = Seeded(0, "draw").generator()
    seen = Counter(tuple(_draw(np.log(mixture), stock, size, generator)) for _ in range(runs))
    assert set(seen) <= set(law)
    outcomes = list(law)
    assert chi_square([seen[o] for o in outcomes], [runs * law[o] for o in outcomes]) > ERROR_RATE


def test_alpha_moves_dirichlet_between_one_label_and_all():
    labels = np.arange(5000) % 10
    held = [
        np.median(dirichlet(labels, 50, alpha, Seeded(0)).labels_held(labels))
        for alpha in (1e-300, 0.05, 0.5, 1e300)
    ]
    assert held[0] == 1
    assert held[-1] == 10
    assert held == sorted(held)


@pytest.mark.parametrize(
    ("share", "counts"), [(0.34, [0, 1, 3, 3]), (0.01, [0, 1, 1, 1]), (0.99, [0, 1, 7, 9])]
)
def test_each_client_holds_out_its_share_at_least_one_and_never_all(share, counts):
    owners = np.repeat([5, 2, 9, 7], [8, 1, 10, 2])[Seeded(3).permutation(21)]
    whole = by_client(owners)  # clients of 1, 8, 2 and 10 examples
    order = [0, 2, 1, 3]
    trained, tested = held_out(whole, share, Seeded(4))
    assert [tested.sizes[client] for client in order] == counts
    for client in range(4):
        parts = trained.of(client).tolist(), tested.of(client).tolist()
        assert sorted(parts[0] + parts[1]) == whole.of(client).tolist()
        assert all(part == sorted(part) for part in parts)


def test_what_is_held_out_is_random_and_each_clients_own():
    whole = by_client(np.repeat([0, 1], 30))
    _, tested = held_out(whole, 0.3, Seeded(4))
    first, second = tested.of(0), tested.of(1) - 30
    assert first.tolist() != second.tolist()
    assert all(held.tolist() != list(range(9)) for held in (first, second))
    with pytest.raises(InvalidValue, match="a client with at least two examples"):
        held_out(by_client([1, 2, 3]), 0.5, Seeded(4))


def test_a_partition_is_restricted_to_chosen_examples():
    whole = by_client(np.array([1, 0, 2, 1, 2, 0, 1]))
    chosen = np.array([True, False, False, True, True, False, False])
    some = whole.only(chosen)
    assert [some.of(client).tolist() for client in range(3)] == [[], [0, 3], [4]]
    for seed in range(5):
        chosen = Seeded(seed).bernoulli(0.5, 7)
        some = whole.only(chosen)
        for client in range(3):
            assert some.of(client).tolist() == [i for i in whole.of(client) if chosen[i]]


def test_alpha_is_handed_on():
    labels = np.arange(90) % 9
    for alpha in (1e-6, 1e6):
        made = partition("dirichlet", labels, None, 10, alpha=alpha, entropy=Seeded(0, "p"))
        assert same(made, dirichlet(labels, 10, alpha, Seeded(0, "p")))


# --- what is said ---


def test_the_summary_reports_sizes_and_labels():
    labels = np.array([0, 0, 1, 1, 2, 2, 2])
    result = by_client([0, 0, 0, 1, 1, 2, 2])
    assert result.summary() == "3 clients hold 2 to 3 (median 2) examples"
    assert result.summary(labels) == (
        "3 clients hold 2 to 3 (median 2) examples and 1 to 2 (median 2) labels"
    )
    assert list(result.labels_held(labels)) == [2, 2, 1]
    assert iid(8, 4, Seeded(0)).summary() == "4 clients hold 2 examples each"
    for second, median in ((3_000_000, "2,000,000"), (3_000_001, "2,000,000.5")):
        large = Partition(np.arange(4), np.array([0, 1_000_000, 1_000_000 + second]))
        middle = f"1,000,000 to {second:,} (median {median})"
        assert large.summary() == f"2 clients hold {middle} examples"
    mixed = by_client([0, 1, 0, 1, 0, 1])
    assert list(mixed.labels_held(np.array([0, 1, 0, 2, 0, 3]))) == [1, 3]


LABELS = np.arange(10) % 3


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("iid", LABELS, None, 11), "clients = 11 is more than the 10 training examples"),
        (("iid", LABELS, None, 0), r"clients = 0 is outside \[1, inf\)"),
        (("iid", LABELS, None, 2.0), "clients = 2.0 is not a whole number"),
        (("iid", LABELS, None, None), "clients = None, but split = 'iid' needs their number"),
        (("shards", LABELS, None, 6), "= 12 shards cannot be cut from 10 examples"),
        (("dirichlet", LABELS, None, 11), "clients = 11 is more than the 10 training examples"),
        (("by_client", LABELS, None, 3), "needs data with owners, but this data has none"),
        (("writers", LABELS, None, 3), "'writers' needs data with owners"),
        (("by_client", LABELS, LABELS, 4), "clients = 4, but the data has 3 owners"),
        (("by_client", LABELS, LABELS, 2), "clients = 2, but the data has 3 owners"),
        (("by_client", LABELS, np.zeros(0, int), None), "owners is empty"),
        (("by_client", LABELS, [1, "a"], None), "owners must be only whole numbers"),
        (("by_client", LABELS, [0.5, 1.0], None), "owners must be only whole numbers"),
        (("by_client", LABELS, [True, False], None), "owners must be only whole numbers"),
        (("by_client", LABELS, np.zeros((2, 2), int), None), r"owners has shape \(2, 2\)"),
        (("by_client", LABELS, 7, None), "owners is of type int, but a list is needed"),
        (("random", LABELS, None, 2), "split = 'random' is not one of iid, shards, dirichlet"),
    ],
)
def test_what_cannot_be_split_is_refused_in_a_sentence(arguments, sentence):
    with pytest.raises(InvalidValue, match=sentence) as caught:
        partition(*arguments, entropy=Seeded(0))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("inf"), float("nan"), "1"])
def test_alpha_is_positive(alpha):
    with pytest.raises(InvalidValue, match="alpha = "):
        dirichlet(LABELS, 2, alpha, Seeded(0))


@pytest.mark.parametrize("count", [0, -1, 1.5])
def test_a_client_gets_at_least_one_shard(count):
    with pytest.raises(InvalidValue, match="shards_per_client = "):
        shards(LABELS, 2, count, Seeded(0))
