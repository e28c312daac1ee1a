"""The parameters of secure aggregation, with the rules and advice about them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import ClassVar, Literal

from pydantic import Field

from fedveil.base.quantity import quantity
from fedveil.base.validate import integer
from fedveil.protections.advice import Cohort
from fedveil.protections.directions import Direction
from fedveil.secagg import masking_graph
from fedveil.secagg.terms import MAX_CLIENTS
from fedveil.settings.settings import Settings


class SecureSumSettings(Settings):
    """Parameters of secret sharing and masks, in all protections with secure aggregation."""

    WEAKENS: ClassVar[Mapping[str, Direction]] = {
        "share_secrets_ratio": "own",
        "reconstruct_secrets_threshold": "own",
        "cipher_time_window": "none",
        "neighbours": "own",
        "active_security": "smaller",
    }

    share_secrets_ratio: float = Field(
        1.0,
        gt=0,
        le=1,
        description="share of a round's clients that share their secrets with others and so take "
        "part",
    )
    reconstruct_secrets_threshold: int | None = Field(
        None,
        ge=1,
        description="number of clients that can together reconstruct a secret. Less than the "
        "number of clients that share it. null: more than two thirds of these, or 80 to "
        "98 if auto limits the neighbours of many clients",
    )
    cipher_time_window: int = Field(
        300_000, gt=0, description="deadline of each phase in milliseconds"
    )
    neighbours: Literal["auto", "complete"] | int = Field(
        "auto",
        description="pairs of clients that mask their values together. complete: all pairs. A "
        "number: how many neighbours each client has. auto: few neighbours if there are many "
        "clients",
    )
    active_security: bool = Field(
        False,
        description="if true, clients sign their public keys and the list of clients in the sum. "
        "The guarantee then also holds against a dishonest server",
    )

    @property
    def server(self) -> str:
        """A phrase for the server that the guarantee assumes: honest, or lying within limits."""
        if self.active_security:
            return "a server that lies, within the limits in docs/secure-aggregation.md"
        return "a server that follows the protocol"

    def sharing_clients(self, clients: int) -> int:
        """Return the most clients that may share secrets in a round of `clients` clients."""
        return math.ceil(Fraction(repr(self.share_secrets_ratio)) * clients)

    def threshold(self, clients: int) -> int:
        """Return how many of `clients` clients are needed to reconstruct a secret.

        The default is floor(2 s / 3) + 1, but at least 2 and at most s - 1. Here s is the number of
        clients that receive shares of a secret. At this threshold, a server that lies and colludes
        with a third of these clients cannot unmask the other clients (docs/secure-aggregation.md).
        In a sparse graph with an automatic number of neighbours, the default is that of
        `masking_graph.default_threshold`.
        """
        if self.reconstruct_secrets_threshold is not None:
            return self.reconstruct_secrets_threshold
        sharing = self.sharing_clients(clients)
        if isinstance(self.neighbours, int):
            among = min(sharing, self.neighbours + 1)
        elif self._complete(sharing):
            among = sharing
        else:
            return masking_graph.default_threshold(min(sharing, MAX_CLIENTS))
        return max(2, min(2 * among // 3 + 1, among - 1))

    def _complete(self, sharing: int) -> bool:
        asked = self.neighbours == "complete" or self.active_security
        return asked or sharing <= masking_graph.COMPLETE_UP_TO

    def graph_degree(self, clients: int) -> int | None:
        """Return a client's number of neighbours for masking, or None if all are neighbours.

        `clients` clients share secrets. Raises `InvalidValue` if there are too many of them.
        """
        integer("sharing", clients, 1, MAX_CLIENTS)
        if isinstance(self.neighbours, int):
            return self.neighbours
        if self._complete(clients):
            return None
        threshold = self.reconstruct_secrets_threshold
        return masking_graph.automatic(
            clients, threshold or masking_graph.default_threshold(clients)
        )

    def neighbourhood(self, clients: int) -> int:
        """Return how many clients hold shares of one client's secrets, this client included.

        `clients` is the number of clients in the round.
        """
        sharing = self.sharing_clients(clients)
        degree = self.graph_degree(sharing)
        return sharing if degree is None else min(sharing, degree + 1)

    def most_colluding(self, clients: int) -> int | None:
        """Return the largest number of colluding clients that cannot unmask another client.

        They collude with the server, in a round of `clients` clients. In a sparse graph, the limit
        holds except with probability 2^-40 (`masking_graph.tolerated`). Returns None if more
        clients share secrets than secure aggregation supports.
        """
        sharing = self.sharing_clients(clients)
        if sharing > MAX_CLIENTS:
            return None
        threshold = self.threshold(clients)
        if (degree := self.graph_degree(sharing)) is not None:
            return masking_graph.tolerated(sharing, degree, threshold)
        return 2 * threshold - sharing - 1 if self.active_security else threshold - 1


def threshold_reachable(settings: SecureSumSettings, cohort: Cohort) -> str | None:
    """Under secure aggregation, `reconstruct_secrets_threshold` must be below the number of clients
    that share secrets, ceil(share_secrets_ratio * clients per round).

    Returns an error message, or None if the settings follow this rule.
    """
    if cohort.per_round is None:
        return None
    sharing = settings.sharing_clients(cohort.per_round)
    stated = settings.reconstruct_secrets_threshold
    if stated is None:
        if sharing >= 3:
            return None  # the default is below any such number
        return (
            f"share_secrets_ratio = {settings.share_secrets_ratio:g} lets {sharing} of "
            f"{quantity(cohort.per_round, 'client')} a round share secrets, and secure aggregation "
            f"needs at least 3: raise clients.number or clients.fraction"
        )
    if stated < sharing:
        return None
    return (
        f"reconstruct_secrets_threshold = {stated} is outside [1, {sharing}): it is below the "
        f"number of clients that share secrets, ceil({settings.share_secrets_ratio:g} * "
        f"{cohort.per_round} clients a round)"
    )


def shareable(settings: SecureSumSettings, cohort: Cohort) -> str | None:
    """Under secure aggregation, at most 2^20 clients may share secrets in a round.

    Returns an error message, or None if the settings follow this rule.
    """
    if cohort.per_round is None:
        return None
    sharing = settings.sharing_clients(cohort.per_round)
    if sharing <= MAX_CLIENTS:
        return None
    return (
        f"share_secrets_ratio = {settings.share_secrets_ratio:g} lets {sharing} of "
        f"{cohort.per_round} clients in a round share secrets; at most {MAX_CLIENTS} can"
    )


def graph_fits(settings: SecureSumSettings, cohort: Cohort) -> str | None:
    """Under secure aggregation, `neighbours: k` must be at least 2 and below the number of clients
    per round. With one neighbour, the graph consists of pairs of clients, and the sum of each pair
    could be unmasked. `reconstruct_secrets_threshold` must be at most k, because only a client and
    its neighbours hold shares of its secrets. `active_security` needs the complete graph.

    Returns an error message, or None if the settings follow this rule.
    """
    if not isinstance(settings.neighbours, int):
        return None
    place = f"neighbours = {settings.neighbours}"
    if settings.active_security:
        return f"{place} leaves a sparse graph; active_security needs complete or auto"
    if cohort.per_round is not None and not 2 <= settings.neighbours < cohort.per_round:
        return (
            f"{place} is outside [2, {cohort.per_round}): below the clients a round, and at least "
            "2, because the sums of pairs could be unmasked"
        )
    threshold = settings.reconstruct_secrets_threshold or 1
    if threshold > settings.neighbours:
        return (
            f"{place} is below reconstruct_secrets_threshold = {threshold}, which counts within "
            f"a client's neighbours"
        )
    return None


def most_must_sign(settings: SecureSumSettings, cohort: Cohort) -> str | None:
    """Under secure aggregation with `active_security`, `reconstruct_secrets_threshold` must be
    above half of the clients that share secrets. With at most half, a server that lies could have
    two groups of clients sign two lists of survivors, and so unmask a client on its own.

    Returns an error message, or None if the settings follow this rule.
    """
    if cohort.per_round is None or not settings.active_security:
        return None
    sharing = settings.sharing_clients(cohort.per_round)
    threshold = settings.threshold(cohort.per_round)
    if isinstance(settings.neighbours, int) or 2 * threshold > sharing:
        return None
    return (
        f"reconstruct_secrets_threshold = {threshold} is at most half of the {sharing} clients "
        f"that share secrets, so active_security would protect from no server that lies: use a "
        f"number above {sharing // 2}, or remove the line"
    )


def threshold_safe(settings: SecureSumSettings, cohort: Cohort) -> str | None:
    if cohort.per_round is None or settings.reconstruct_secrets_threshold is None:
        return None  # the default is chosen for the guarantee that every run states
    threshold, n = settings.threshold(cohort.per_round), settings.neighbourhood(cohort.per_round)
    sharing = settings.sharing_clients(cohort.per_round)
    who = "clients" if n == sharing else "clients of a neighbourhood"
    place = f"reconstruct_secrets_threshold = {threshold}"
    if 2 * threshold <= n:
        return (
            f"{place} is at most half of the {n} {who} that share secrets: a lying server can "
            f"unmask a client on its own. Above {n // 2}, with active_security, it cannot"
        )
    if 3 * threshold <= 2 * n:
        return (
            f"{place} is at most two thirds of the {n} {who} that share secrets: a lying server "
            f"that colludes with clients can unmask others. Above {2 * n // 3}, with "
            "active_security, it needs more than a third of them"
        )
    return None


def shared_weaker(
    asked: SecureSumSettings, demanded: SecureSumSettings, clients: int, expected: int | None
) -> str | None:
    """Return why the settings `asked` share secrets less safely than `demanded`, or None.

    `asked` is for rounds of `clients` clients, and `demanded` for rounds of `expected` clients
    (None: an unknown number). A neighbourhood is the clients that hold shares of one client's
    secrets. `asked` must meet three conditions:

    - Its threshold is at least that of `demanded`.
    - Its ratio of the threshold to the size of a neighbourhood is at least that of `demanded`. If
      `expected` is None, the ratio must instead be above one half.
    - In a round of `clients` clients, a client has at least as many neighbours as under `demanded`.
      In a complete graph, all other clients count as neighbours, even if some share no secrets.
    """
    threshold = asked.threshold(clients)
    least = demanded.threshold(clients if expected is None else expected)
    if threshold < least:
        return f"{threshold} clients reconstruct a secret, but at least {least} are required"
    there = asked.neighbourhood(clients)
    if expected is None:
        if 2 * threshold <= there:
            return (
                f"{threshold} of {there} clients reconstruct a secret, but more than half are "
                f"required, because `clients` does not say how many clients {least} belongs to"
            )
    elif threshold * demanded.neighbourhood(expected) < least * there:
        return (
            f"{threshold} of {there} clients reconstruct a secret, but {least} of "
            f"{demanded.neighbourhood(expected)} are required"
        )
    degrees = [s.graph_degree(s.sharing_clients(clients)) for s in (asked, demanded)]
    among, wanted = (clients - 1 if degree is None else degree for degree in degrees)
    if among < min(wanted, clients - 1):
        return f"a client has {among} neighbours, but at least {wanted} are required"
    return None
