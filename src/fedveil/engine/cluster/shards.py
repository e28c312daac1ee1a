"""The examples of the clients that one machine trains. The clients can change between rounds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter

import numpy as np
import numpy.typing as npt

from fedveil.base.array_types import Array, Bools
from fedveil.engine.executors.client_side import ClientsData
from fedveil.entropy import Entropy
from fedveil.learning.trained_part import as_floats
from fedveil.learning.trainer import ClientData
from fedveil.rounds.outcomes import ClientId

#: The most bytes of examples in a piece, unless one client has more. A few pieces must fit into the
#: smallest store of a node (75 MB): otherwise Ray starts processes that move objects to the disk,
#: just when the first rounds begin.
PIECE_BYTES = 8 << 20


@dataclass(frozen=True)
class Piece:
    """Some clients' examples, ordered by client, in the form in which they are sent to a machine.

    Client clients[i] owns rows offsets[i]:offsets[i + 1] of x, y and the mask of `usable` examples.
    """

    clients: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]
    x: Array
    y: Array
    usable: Bools | None = None

    @classmethod
    def of(cls, data: ClientsData, clients: Sequence[ClientId]) -> Piece:
        """Return a copy of these clients' examples."""
        chosen = np.array(clients, np.int64)
        sizes = data.offsets[chosen + 1] - data.offsets[chosen]
        ranges = [data.indices[data.offsets[c] : data.offsets[c + 1]] for c in clients]
        rows = np.concatenate([np.empty(0, np.int64), *ranges])
        usable = None if data.usable is None else data.usable[rows]
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        return cls(chosen, offsets, data.x[rows], data.y[rows], usable)

    @property
    def nbytes(self) -> int:
        return int(self.x.nbytes + self.y.nbytes)


def pieces(
    data: ClientsData, clients: Iterable[ClientId], most: int = PIECE_BYTES
) -> Iterator[Piece]:
    """Yield the examples of these clients, in pieces of up to `most` bytes."""
    example = (data.x.nbytes + data.y.nbytes) / max(1, len(data.y))
    some, held = list[ClientId](), 0.0
    for client in clients:
        size = example * data.examples(client)
        if some and held + size > most:
            yield Piece.of(data, some)
            some, held = [], 0.0
        some.append(client)
        held += size
    if some:
        yield Piece.of(data, some)


class Shards:
    """The examples of some clients. Do not call `add` or `drop` during training."""

    def __init__(self) -> None:
        self._of: dict[ClientId, tuple[Piece, slice]] = {}

    def add(self, piece: Piece) -> None:
        bounds = piece.offsets.tolist()
        for client, start, stop in zip(
            piece.clients.tolist(), bounds[:-1], bounds[1:], strict=True
        ):
            self._of[client] = piece, slice(start, stop)

    def drop(self, clients: Iterable[ClientId]) -> None:
        """Remove these clients' examples. The memory of a `Piece` is freed with its last client."""
        for client in clients:
            self._of.pop(client, None)

    @property
    def x(self) -> Array:
        """The inputs of some of the examples. Use only their type and the shape of one example."""
        return next(iter(self._of.values()))[0].x

    def clients(self) -> list[ClientId]:
        return list(self._of)

    def examples(self, client: ClientId) -> int:
        mine = self._of[client][1]
        return int(mine.stop - mine.start)

    def of(self, client: ClientId, entropy: Entropy, *, unchanged: bool = False) -> ClientData:
        """Return a client's examples, with `entropy` for the random numbers of its training.

        `unchanged` promises that the caller does not change the arrays, which may then be views.
        """
        piece, mine = self._of[client]
        x, y = piece.x[mine], piece.y[mine]
        if not unchanged:
            x, y = x.copy(), y.copy()
        usable = None if piece.usable is None else piece.usable[mine]
        return ClientData.of(as_floats(x), y, entropy, usable)

    def as_arrays(self, clients: int) -> ClientsData:
        """Return all examples as one x and one y, for a run with clients 0 to `clients` - 1.

        Clients whose examples are not here have none in the result.
        """
        sizes = np.zeros(clients + 1, np.int64)
        for client in self._of:
            sizes[client + 1] = self.examples(client)
        parts = [(piece, mine) for _, (piece, mine) in sorted(self._of.items(), key=itemgetter(0))]
        some = [piece.usable[mine] for piece, mine in parts if piece.usable is not None]
        return ClientsData(
            np.concatenate([piece.x[mine] for piece, mine in parts]),
            np.concatenate([piece.y[mine] for piece, mine in parts]),
            np.arange(sizes.sum()),
            np.cumsum(sizes),
            np.concatenate(some) if some else None,
        )
