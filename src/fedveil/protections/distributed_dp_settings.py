"""The parameters of `distributed_dp`, with the rules about its noise."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import ClassVar

from pydantic import Field

from fedveil.protections.advice import Cohort
from fedveil.protections.clip_norm import AdaptiveClipSettings
from fedveil.protections.directions import Direction
from fedveil.protections.secure_sum_settings import SecureSumSettings

#: The default for a whole run's epsilon.
_TARGET = 8.0


class DistributedDPSettings(SecureSumSettings, AdaptiveClipSettings):
    """Parameters of `distributed_dp`: the clip, the noise, and the dropouts that it tolerates."""

    WEAKENS: ClassVar[Mapping[str, Direction]] = {
        "clip": "none",
        "noise_multiplier": "loss",
        "target_epsilon": "loss",
        "bits": "none",
        "rotation": "none",
        "dropout_tolerance": "smaller",
        "assume_honest": "larger",
        # The server chooses who shares secrets. If fewer do, more of them may be dishonest.
        "share_secrets_ratio": "smaller",
    }

    clip: float = Field(1.0, gt=0, description="each client clips its update to this L2 norm")
    noise_multiplier: float | None = Field(
        None,
        gt=0,
        description="standard deviation of the noise in a round's sum, divided by the sensitivity "
        "2 * clip. null: the smallest value that reaches target_epsilon",
    )
    target_epsilon: float | None = Field(
        None,
        gt=0,
        description="epsilon of the whole run at privacy.delta, for a client in every round. "
        f"null: {_TARGET:g}, unless noise_multiplier is given",
    )
    bits: int = Field(
        8,
        ge=4,
        le=24,
        description="bits per entry of a client's update, as a fixed-point number. A report uses "
        "more bits, for the noise and the sum",
    )
    rotation: bool = Field(
        True,
        description="if true, a random rotation spreads an update over all entries before "
        "rounding. Under `privacy.unit: example` there is no rotation",
    )
    dropout_tolerance: float = Field(
        0.1,
        ge=0,
        lt=1,
        description="share of a round's clients that may drop out: the others' noise is enough for "
        "the epsilon. With more dropouts the round is void",
    )
    assume_honest: float = Field(
        1.0,
        gt=0,
        le=1,
        description="share of a round's clients that you trust to add their noise and keep it "
        "secret. Their noise alone is enough for the epsilon",
    )

    @property
    def target(self) -> float:
        """The target epsilon of the whole run. It applies if no noise multiplier is set."""
        return _TARGET if self.target_epsilon is None else self.target_epsilon

    def least_survivors(self, clients: int) -> int:
        """Return the smallest permitted number of survivors in a round of `clients` clients."""
        sharing = self.sharing_clients(clients)
        return max(1, sharing - math.floor(_as_written(self.dropout_tolerance) * sharing))

    def dishonest(self, clients: int) -> int:
        """Return how many of a round's `clients` clients are assumed to add no noise.

        This is the fraction 1 - `assume_honest` of `clients`, rounded down. It is not smaller if
        only some of the clients share secrets, because the server chooses these clients and may
        choose all dishonest ones.
        """
        return math.floor((1 - _as_written(self.assume_honest)) * clients)


def _as_written(share: float) -> Fraction:
    return Fraction(repr(share))


def some_noise(settings: DistributedDPSettings, cohort: Cohort) -> str | None:
    """Under distributed_dp, at least one client must remain after subtracting the clients that may
    drop out and the clients that may be dishonest.

    Returns an error message, or None if the settings follow this rule.
    """
    if cohort.per_round is None:
        return None
    n = cohort.per_round
    if settings.least_survivors(n) > settings.dishonest(n):
        return None
    return (
        f"dropout_tolerance = {settings.dropout_tolerance!r} and assume_honest = "
        f"{settings.assume_honest!r} leave none of {settings.sharing_clients(n)} clients with "
        "noise to rely on: lower dropout_tolerance or raise assume_honest"
    )


def none_unmasked(settings: DistributedDPSettings, cohort: Cohort) -> str | None:
    """Under distributed_dp, the clients that `assume_honest` does not count as honest must be too
    few to unmask others together with the server. Let n clients of a round share secrets, with
    threshold t. In the complete masking graph, fewer than t clients may be dishonest, or fewer than
    2t - n with `active_security`. In a sparse graph, at most n/5 clients may be dishonest, and
    fewer if `neighbours` is small. There is no limit if exactly one of the n clients is honest: its
    own noise then gives the stated guarantee, even if its vector is unmasked.

    Returns an error message, or None if the settings follow this rule.
    """
    n = cohort.per_round
    if n is None or not (dishonest := settings.dishonest(n)):
        return None
    limit = settings.most_colluding(n)
    # A trusted client has the noise of one share, even if its vector is unmasked.
    if limit is None or dishonest <= limit or settings.sharing_clients(n) - dishonest == 1:
        return None
    return (
        f"assume_honest = {settings.assume_honest!r} expects that {dishonest} of {n} clients "
        f"collude with the server, but with reconstruct_secrets_threshold = "
        f"{settings.threshold(n)} at most {max(limit, 0)} may: more could unmask the others. Raise "
        "assume_honest or the threshold"
    )


def no_node_exceeds(settings: DistributedDPSettings, cohort: Cohort) -> str | None:
    """Under distributed_dp, `assume_honest` must trust all clients of a round, or assume that at
    least `deployment.clients_per_node` of them (or all, if a round has fewer) are dishonest. The
    reason is that a dishonest operator of one node knows the noise of all clients on this node.

    Returns an error message, or None if the settings follow this rule.
    """
    n, most = cohort.per_round, cohort.per_operator
    if n is None or not 0 < settings.dishonest(n) < min(most, n):
        return None
    largest = 1000 * (n - most) // n / 1000
    less = f"{largest:g} or less, or " if largest > 0 else ""
    return (
        f"assume_honest = {settings.assume_honest!r} expects that {settings.dishonest(n)} of {n} "
        f"clients are dishonest, but one node may have deployment.clients_per_node = {most}. Use "
        f"{less}1.0 to trust every operator, or lower clients_per_node"
    )
