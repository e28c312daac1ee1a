"""The terms of a round: parameters that clients and server know before it starts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from fedveil.base.message import encode
from fedveil.base.validate import integer
from fedveil.errors import InvalidValue
from fedveil.secagg import masking_graph, shamir

MAX_CLIENTS = shamir.MAX_POINTS
MAX_BITS = 64


def _nobody(client: int) -> None: ...


@dataclass(frozen=True)
class Terms:
    """The public parameters of a round of secure aggregation.

    A client takes them from its own job, not from the server. It checks that it has not answered
    this round before (`Answered`), that `length` fits its model, and that the parameters have not
    changed during the round. In a Flower app, the server sends the parameters, and the client
    refuses them if they protect less than its own settings demand (`flower.app.pins`).

    - `job` identifies the run, and `round` is the round's number.
    - `length` is the number of entries of a vector. Numbers are modulo 2^bits.
    - `sharing` is the largest number of clients that share secrets in the round.
    - `threshold` is the number of clients of a neighbourhood that can reconstruct a secret.
    - `neighbours` is each client's number of neighbours in the graph (None: the complete graph).
    - `active_security` makes clients sign their keys and the list of survivors. `roster` returns a
      client's Ed25519 public key, or None if it has none.
    - `least` is the smallest number of vectors that a sum must have before a client helps to unmask
      it. A client can check this only in the complete graph, where it sees whose vectors are in the
      sum.

        >>> from fedveil.secagg import Terms
        >>> terms = Terms(b"a job", 3, length=700, bits=20, threshold=8, sharing=11)
        >>> len(terms.context)  # a digest, to which keys and shares are bound
        32
    """

    job: bytes
    round: int
    length: int
    bits: int
    threshold: int
    sharing: int
    neighbours: int | None = None
    active_security: bool = False
    least: int = 1
    roster: Callable[[int], bytes | None] = field(default=_nobody, repr=False)

    def __post_init__(self) -> None:
        integer("round", self.round, 0)
        integer("length", self.length, 1)
        integer("bits", self.bits, 1, MAX_BITS)
        integer("sharing", self.sharing, 1, MAX_CLIENTS)
        integer("threshold", self.threshold, 1, self.sharing)
        integer("least", self.least, 1, self.sharing)
        if self.neighbours is not None:
            integer("neighbours", self.neighbours, 1, MAX_CLIENTS)
            if self.active_security:
                raise InvalidValue(
                    f"neighbours = {self.neighbours} leaves a sparse graph; "
                    f"active_security requires the complete one"
                )
            if self.threshold > self.neighbours + 1:
                raise InvalidValue(
                    f"threshold = {self.threshold} is outside [1, {self.neighbours + 1}]: a "
                    f"neighbourhood is a client and its {self.neighbours} neighbours"
                )

    @property
    def fewest_drawn(self) -> int:
        """The smallest number of clients among which the server may start to share secrets."""
        if self.neighbours is None:
            return self.threshold
        return masking_graph.fewest_drawn(self.sharing, self.neighbours, self.threshold)

    def fewest_left(self, drawn: int) -> int:
        """Return the smallest number of vectors whose sum the server may unmask.

        `drawn` is the number of clients that share secrets.
        """
        if self.neighbours is None:
            return self.threshold
        return masking_graph.fewest_left(self.sharing, drawn, self.neighbours, self.threshold)

    @cached_property
    def context(self) -> bytes:
        """Return a digest of all terms but the roster. Keys, shares and signatures depend on it."""
        terms = {**vars(self), "neighbours": self.neighbours or 0}
        del terms["roster"]
        return hashlib.sha256(b"fedveil secure aggregation 3" + encode(terms)).digest()
