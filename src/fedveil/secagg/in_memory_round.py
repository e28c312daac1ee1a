"""Runs a whole round in memory. Every message is encoded and decoded as on a network."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from fedveil.base.array_types import Array, Int64s
from fedveil.base.message import Message, decode, encode
from fedveil.base.validate import choice, finite_vector, integer
from fedveil.entropy import Entropy, Secure, source
from fedveil.errors import ClientWithheld, InvalidValue
from fedveil.rounds.loop import Carrier, drive
from fedveil.rounds.outcomes import Answer, Report, Withheld
from fedveil.secagg.client import Client
from fedveil.secagg.fixed_point import FixedPoint
from fedveil.secagg.keys import Identity
from fedveil.secagg.masking import Ring
from fedveil.secagg.phases import PHASES, TRAINS, Phase
from fedveil.secagg.server import Server
from fedveil.secagg.terms import Terms

Vectors = Mapping[int, Array]


@dataclass(frozen=True)
class SecureSum:
    """The result of a round: the sum of the survivors' vectors, and the bytes sent in each phase.

    `total` is int64 for integer vectors. For real vectors it is float64, the exact sum of the
    rounded vectors.

        >>> import numpy as np
        >>> from fedveil.secagg import run_round
        >>> result = run_round({client: np.array([0.5, -1.0]) for client in range(3)}, threshold=2)
        >>> sorted(result.survivors), sorted(result.bytes_up)
        ([0, 1, 2], ['advertise', 'masked', 'share', 'unmask'])
    """

    total: Array
    survivors: frozenset[int]
    bytes_up: dict[str, int]
    bytes_down: dict[str, int]


def run_round(
    vectors: Vectors,
    threshold: int,
    *,
    drop: Mapping[Phase, Collection[int]] | None = None,
    neighbours: int | None = None,
    active_security: bool = False,
    clip: float | None = None,
    bits: int = 16,
    entropy: Entropy | None = None,
) -> SecureSum:
    """Run one round in memory among the clients in `vectors`, and return the sum.

    A client in `drop[phase]` answers nothing from that phase on. `threshold` is the number of
    shares that reconstruct a secret, from 1 to the number of clients. With `neighbours` (each
    client's number of neighbours in a sparse graph), `threshold` is at most neighbours + 1. With
    `active_security`, clients sign their messages. Real vectors are clipped to `clip` (default: the
    largest magnitude among them) and rounded to `bits` bits per entry. Integer vectors are summed
    unchanged. `entropy` defaults to the operating system's randomness. Raises `RoundVoid` if too
    few clients are left, or if dropouts cut a sparse graph.

        >>> import numpy as np
        >>> from fedveil.secagg import run_round
        >>> vectors = {client: client * np.arange(3) for client in (1, 2, 5, 9)}
        >>> run_round(vectors, threshold=3, drop={"masked": [5]}).total.tolist()
        [0, 12, 24]
    """
    entropy = Secure() if entropy is None else source(entropy)
    if not isinstance(vectors, Mapping):
        raise InvalidValue(f"vectors is a {type(vectors).__name__}: use a mapping, client: vector")
    most = len(vectors)
    if neighbours is not None:
        most = 1 + integer("neighbours", neighbours, 1, len(vectors) - 1)
    integer("threshold", threshold, 1, most)
    numbers, largest, fixed = _whole_numbers(vectors, clip, bits, entropy)
    identities = {
        c: Identity.draw(entropy.stream("identity", c))
        for c in (vectors if active_security else ())
    }
    terms = Terms(
        job=b"fedveil.secagg.run_round",
        round=0,
        length=len(next(iter(numbers.values()))),
        bits=_ring(len(vectors), largest).bits,
        threshold=threshold,
        sharing=len(vectors),
        neighbours=neighbours,
        active_security=active_security,
        roster={c: identity.public for c, identity in identities.items()}.get,
    )
    clients = {
        c: Client(c, terms, entropy.stream("client", c), identities.get(c)) for c in sorted(vectors)
    }
    server = Server(terms, list(clients), entropy.stream("server"))
    carrier = _InMemory(clients, numbers, _silences({} if drop is None else drop, vectors))
    outcome = drive(server, carrier, dict.fromkeys(clients, server.opening()), TRAINS)
    if outcome.void is not None:
        raise outcome.void
    total = server.total()
    return SecureSum(
        total if fixed is None else fixed.restore(total), server.survivors, carrier.up, carrier.down
    )


@dataclass
class _InMemory(Carrier):
    clients: Mapping[int, Client]
    numbers: Vectors
    silent: Mapping[str, Collection[int]]
    gone: set[int] = field(default_factory=set)
    up: dict[str, int] = field(default_factory=dict)
    down: dict[str, int] = field(default_factory=dict)

    def ask(self, phase: str, messages: Mapping[int, Message]) -> Iterator[Answer]:
        # Earlier phases count too: the round may skip the phase from which a client is silent.
        order: tuple[str, ...] = PHASES
        for past in order[: order.index(phase) + 1]:
            self.gone.update(self.silent.get(past, ()))
        self.up[phase] = self.down[phase] = 0
        last: Message | None = None
        encoded = b""
        for client, message in messages.items():
            if message is not last:  # the clients of a complete graph share messages
                last, encoded = message, encode(message)
            self.down[phase] += len(encoded)
            if client in self.gone:
                continue
            try:
                told = decode(encoded)
                answer = encode(self.clients[client].respond(told, self.numbers[client].copy()))
            except ClientWithheld as reason:
                yield Withheld(client, str(reason))
                continue
            self.up[phase] += len(answer)
            yield Report(client, answer)


def _silences(
    drop: Mapping[Phase, Collection[int]], vectors: Vectors
) -> Mapping[str, Collection[int]]:
    if not isinstance(drop, Mapping):
        raise InvalidValue(f"drop = {drop!r} is not a mapping such as {{'masked': [5]}}")
    for phase, clients in drop.items():
        choice("drop's phase", phase, PHASES)
        if not isinstance(clients, Collection):
            raise InvalidValue(f"drop[{phase!r}] = {clients!r} is not a list of clients")
        for client in clients:
            if client not in vectors:
                raise InvalidValue(f"drop[{phase!r}] names client {client!r}, which has no vector")
    return dict[str, Collection[int]](drop.items())


def _whole_numbers(
    vectors: Vectors, clip: float | None, bits: int, entropy: Entropy
) -> tuple[dict[int, Int64s], int, FixedPoint | None]:
    """Return the vectors as whole numbers, the largest magnitude of an entry, and the encoder.

    Integer vectors stay unchanged, and their encoder is None. Real vectors are clipped to `clip`
    and rounded to `bits` bits by the encoder, with randomness from `entropy`. The largest magnitude
    is then the largest that the encoder can return.
    """
    arrays = {client: np.asarray(vector) for client, vector in vectors.items()}
    if len(arrays) < 2:
        raise InvalidValue(f"vectors of {len(arrays)} clients; the sum of one is no secret")
    if len({array.shape for array in arrays.values()}) > 1:
        raise InvalidValue("vectors have different lengths")
    for client, array in arrays.items():
        integer("client", client, 0, (1 << 63) - 1)
        if array.ndim != 1 or not len(array):
            raise InvalidValue(
                f"vectors[{client}] has shape {array.shape}, one dimension is needed"
            )
    if all(array.dtype.kind in "iu" for array in arrays.values()):
        if clip is not None:
            raise InvalidValue(f"clip = {clip!r} is for real vectors; these are integers")
        largest = max(max(int(a.max()), -int(a.min())) for a in arrays.values())
        _ring(len(arrays), largest)
        return {c: a.astype(np.int64) for c, a in arrays.items()}, largest, None
    real = {c: finite_vector(f"vectors[{c}]", a) for c, a in arrays.items()}
    if clip is None:
        clip = max(float(np.abs(a).max()) for a in real.values()) or 1.0
    fixed = FixedPoint(clip, bits)
    numbers = {c: fixed.quantise(a, entropy.stream("rounding", c)) for c, a in sorted(real.items())}
    return numbers, fixed.largest, fixed


def _ring(clients: int, largest: int) -> Ring:
    if 2 * clients * largest >= 1 << 64:
        raise InvalidValue(
            f"the sum of {clients} vectors with entries up to {largest} does not fit 64 bits"
        )
    return Ring.for_sum(clients, largest)
