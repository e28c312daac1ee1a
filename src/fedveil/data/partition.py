"""Splits the training examples among clients.

Every partition gives each example to exactly one client and every client at least one example. A
partition depends only on the arguments of its function. A client's examples are in ascending order
of index, so their order carries no meaning.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedveil.base.array_types import Array, Float64s, Int64s
from fedveil.base.quantity import quantity
from fedveil.base.validate import choice, integer, positive
from fedveil.data.examples import owner_codes
from fedveil.entropy import Entropy
from fedveil.errors import InvalidValue

SPLITS = ("iid", "shards", "dirichlet", "by_client", "writers")


@dataclass(frozen=True, eq=False)
class Partition:
    """A read-only split of examples: client k owns `indices[offsets[k]:offsets[k + 1]]`."""

    indices: Int64s
    offsets: Int64s

    def of(self, client: int) -> Int64s:
        """Return the indices of one client's examples, in ascending order."""
        integer("client", client, 0, self.clients - 1)
        return self.indices[self.offsets[client] : self.offsets[client + 1]]

    @property
    def sizes(self) -> Int64s:
        return np.diff(self.offsets)

    @property
    def clients(self) -> int:
        return len(self.offsets) - 1

    def only(self, chosen: Array) -> Partition:
        """Restrict the partition to the examples in the mask `chosen`. Clients may become empty."""
        kept = chosen[self.indices]
        return Partition(self.indices[kept], np.append(0, np.cumsum(kept))[self.offsets])

    def labels_held(self, labels: Array) -> Int64s:
        """Return, for each client, the number of different labels among its examples."""
        owner = np.repeat(np.arange(self.clients), self.sizes)
        held = np.unique(np.stack([owner, labels[self.indices]]), axis=1)[0]
        return np.bincount(held, minlength=self.clients)

    def summary(self, labels: Array | None = None) -> str:
        """Return a line that says how many examples clients have, and how many distinct `labels`.

        Without `labels`, the line only has the numbers of examples.
        """
        hold = "holds" if self.clients == 1 else "hold"
        line = f"{quantity(self.clients, 'client')} {hold} {_low_to_high(self.sizes, 'example')}"
        if labels is None:
            return line
        return f"{line} and {_low_to_high(self.labels_held(labels), 'label')}"


def _low_to_high(counts: Int64s, what: str) -> str:
    low, middle, high = counts.min(), float(np.median(counts)), counts.max()
    if low == high:
        return f"{quantity(int(low), what)} each"
    half = "" if middle.is_integer() else ".5"  # between two whole numbers
    return f"{low:,} to {high:,} (median {int(middle):,}{half}) {what}s"


def partition(
    split: str,
    labels: Array,
    owners: Array | None,
    clients: int | None,
    *,
    shards_per_client: int = 2,
    alpha: float = 0.5,
    entropy: Entropy,
) -> Partition:
    """Split examples with these labels and owners by the method `split`, such as "iid".

    `clients` is the number of clients. It may be None if each owner is a client.
    `shards_per_client` is for the method "shards", and `alpha` for "dirichlet".
    """
    choice("split", split, SPLITS)
    if split in ("by_client", "writers"):
        if owners is None:
            raise InvalidValue(f"split = {split!r} needs data with owners, but this data has none")
        return by_client(owners, clients)
    if clients is None:
        raise InvalidValue(f"clients = None, but split = {split!r} needs their number")
    if split == "iid":
        return iid(len(labels), clients, entropy)
    if split == "shards":
        return shards(labels, clients, shards_per_client, entropy)
    return dirichlet(labels, clients, alpha, entropy)


def iid(n: int, clients: int, entropy: Entropy) -> Partition:
    """Split n examples uniformly at random. Clients' numbers of examples differ by at most 1."""
    _check_clients(clients, n)
    holder = np.empty(n, np.int64)
    holder[entropy.permutation(n)] = np.repeat(np.arange(clients), _even_sizes(n, clients))
    return _grouped(holder, clients)


def shards(labels: Array, clients: int, shards_per_client: int, entropy: Entropy) -> Partition:
    """Return McMahan's pathological partition, in which each client has few labels.

    The examples, sorted by label, are cut into clients * shards_per_client shards. Each client gets
    shards_per_client of them, dealt uniformly at random. The numbers of examples of any two shards,
    or of any two clients, differ by at most one. Source: McMahan et al. 2017, section 3.
    """
    n = len(labels)
    _check_clients(clients, n)
    count = clients * integer("shards_per_client", shards_per_client, 1)
    if count > n:
        raise InvalidValue(
            f"clients * shards_per_client = {count} shards cannot be cut from {n} examples"
        )
    dealt = entropy.permutation(count).reshape(shards_per_client, clients)
    # Which shards get an additional example is decided after the shards are dealt. So clients have
    # almost equal sizes, and a shard's length does not depend on its label.
    lengths = np.empty(count, np.int64)
    lengths[dealt.reshape(-1)] = _even_sizes(n, count)
    client_of_shard = np.empty(count, np.int64)
    client_of_shard[dealt] = np.arange(clients)
    holder = np.empty(n, np.int64)
    holder[np.argsort(labels, kind="stable")] = np.repeat(client_of_shard, lengths)
    return _grouped(holder, clients)


def dirichlet(labels: Array, clients: int, alpha: float, entropy: Entropy) -> Partition:
    """Return a partition into clients with equally many examples and random class mixtures.

    In a random order, each client draws a mixture q ~ Dirichlet(alpha * C * p). C is the number of
    classes, and p has each class's share of the data. Then the client draws its examples one by one
    without replacement. It draws one of the classes with examples left, with a probability
    proportional to q, and then one of that class's remaining examples uniformly. Two clients'
    numbers of examples differ by at most one, so no client is empty, whatever alpha is.

    `alpha` is the mean concentration of a class, as in the usual implementations. It is 1 / C times
    the alpha of the source, Hsu, Qi and Brown 2019, section 3.
    """
    n = len(labels)
    _check_clients(clients, n)
    # Beyond these limits the distribution changes by less than a float can show, but its
    # computation overflows.
    alpha = min(max(positive("alpha", alpha), 1e-200), 1e200)
    classes, class_of, stock = np.unique(labels, return_inverse=True, return_counts=True)
    concentration = alpha * len(classes) * stock / n
    generator = entropy.stream("mixtures").generator()
    sizes = _even_sizes(n, clients)
    left = stock.astype(np.int64)
    counts = np.zeros((clients, len(classes)), np.int64)
    for client in entropy.stream("order").permutation(clients):
        counts[client] = _draw(
            _log_mixture(concentration, generator), left, sizes[client], generator
        )
        left -= counts[client]
    holder = np.empty(n, np.int64)
    shuffled = entropy.stream("examples").permutation(n)
    by_class = shuffled[np.argsort(class_of[shuffled], kind="stable")]
    holder[by_class] = np.repeat(np.tile(np.arange(clients), len(classes)), counts.T.reshape(-1))
    return _grouped(holder, clients)


def _log_mixture(concentration: Float64s, generator: np.random.Generator) -> Float64s:
    """Return the logarithm of a draw from Dirichlet(`concentration`), up to an additive constant.

    The draw is made of Gamma draws, which underflow if an entry a of `concentration` is small.
    Their logarithms do not underflow: Gamma(a) = Gamma(a + 1) * U^(1/a), with U uniform on [0, 1].
    """
    gamma = generator.standard_gamma(concentration + 1)
    return np.log(gamma) - generator.standard_exponential(len(concentration)) / concentration


def _draw(
    log_mixture: Float64s, stock: Int64s, size: int, generator: np.random.Generator
) -> Int64s:
    """Draw `size` examples without replacement. Returns the number of each class among them.

    A class is drawn with a probability proportional to exp(`log_mixture`), and `stock` has the
    number of its remaining examples. If a class is used up, its draws are rejected and repeated.
    This has the same distribution as drawing one by one among the classes that remain.
    """
    drawn = np.zeros_like(stock)
    while (missing := size - int(drawn.sum())) > 0:
        open_classes = np.flatnonzero(stock > drawn)
        weights = np.exp(log_mixture[open_classes] - log_mixture[open_classes].max())
        more = generator.multinomial(missing, weights / weights.sum())
        drawn[open_classes] = np.minimum(drawn[open_classes] + more, stock[open_classes])
    return drawn


def by_client(owners: Any, clients: int | None = None) -> Partition:
    """Return the partition in which each owner is one client, in the owners' sorted order.

    Raises `InvalidValue` if `clients` is given and is not the number of owners.
    """
    try:
        holder = owner_codes(owners)
    except ValueError as error:
        raise InvalidValue(f"owners {error}") from None
    if len(holder) == 0:
        raise InvalidValue("owners is empty, but one for each example is needed")
    count = int(holder.max()) + 1
    if clients is not None and clients != count:
        raise InvalidValue(
            f"clients = {clients!r}, but the data has {count} owners: split 'by_client' needs "
            f"clients = {count}"
        )
    return _grouped(holder, count)


def held_out(whole: Partition, share: float, entropy: Entropy) -> tuple[Partition, Partition]:
    """Split each client's examples in `whole` into a training and a held-out part. Returns both.

    Of a client's n examples, share * n, rounded, are held out at random: at least one, and never
    all. A client with one example holds out none. Raises `InvalidValue` if no client has two.
    """
    parts: tuple[list[Int64s], list[Int64s]] = ([], [])
    for client in range(whole.clients):
        own = whole.of(client)
        count = min(max(round(share * len(own)), 1), len(own) - 1)
        drawn = entropy.stream("held out", client).permutation(len(own))
        for part, places in zip(parts, (drawn[count:], drawn[:count]), strict=True):
            part.append(own[np.sort(places)])
    if not any(map(len, parts[1])):
        raise InvalidValue("evaluation.clients needs a client with at least two examples")
    trained, tested = (_of_clients(part) for part in parts)
    return trained, tested


def _of_clients(parts: list[Int64s]) -> Partition:
    offsets = np.cumsum([0, *map(len, parts)]).astype(np.int64)
    indices = np.concatenate(parts)
    indices.flags.writeable = offsets.flags.writeable = False
    return Partition(indices, offsets)


def _check_clients(clients: int, examples: int) -> None:
    integer("clients", clients, 1)
    if clients > examples:
        raise InvalidValue(
            f"clients = {clients} is more than the {examples} training examples: some would have "
            f"none. Write `clients: {{number: {examples}}}` or fewer"
        )


def _even_sizes(n: int, parts: int) -> Int64s:
    return np.full(parts, n // parts, np.int64) + (np.arange(parts) < n % parts)


def _grouped(holder: Int64s, clients: int) -> Partition:
    indices = np.argsort(holder, kind="stable").astype(np.int64)
    offsets = np.zeros(clients + 1, np.int64)
    np.cumsum(np.bincount(holder, minlength=clients), out=offsets[1:])
    indices.flags.writeable = offsets.flags.writeable = False
    return Partition(indices, offsets)
