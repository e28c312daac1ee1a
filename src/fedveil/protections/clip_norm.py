"""The norm to which updates are clipped: fixed, or moving with a quantile of the updates' norms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from pydantic import Field

from fedveil.base.array_types import Float64s
from fedveil.base.message import Message, only_fields, take
from fedveil.errors import InvalidValue
from fedveil.mechanisms.quantile_clip import QuantileClip
from fedveil.protections.advice import Cohort
from fedveil.protections.base import Aggregate, JobContext, Protection, State, Update
from fedveil.protections.directions import Direction
from fedveil.settings.settings import Settings

_RATE = 0.2


class AdaptiveClipSettings(Settings):
    """Parameters of a clip that moves with the norms of the clients' updates."""

    WEAKENS: ClassVar[Mapping[str, Direction]] = {
        "clip_quantile": "none",
        "clip_rate": "none",
        "clip_bit_noise": "loss",
    }

    clip_quantile: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="adapts the clipping norm. It starts at `clip` and follows this quantile of "
        "the norms of the updates. The epsilon stays the same. Each report also says if the update "
        "was clipped. null: the norm is fixed",
    )
    clip_rate: float = Field(
        _RATE,
        gt=0,
        le=10,
        description="speed of adaptation with clip_quantile. After each round the clipping norm is "
        "multiplied by exp(-clip_rate * (share of unclipped updates - clip_quantile))",
    )
    clip_bit_noise: float | None = Field(
        None,
        gt=0,
        description="standard deviation of the noise in the number of unclipped updates. It must "
        "be above noise_multiplier. A smaller value means more noise in the updates. null: a "
        "twentieth of a round's clients, or 3.3 * noise_multiplier if that is more",
    )


def clip_follows(settings: AdaptiveClipSettings, cohort: Cohort) -> str | None:
    """Under distributed_dp and central_gaussian, `clip_rate` and `clip_bit_noise` need
    `clip_quantile`.

    Returns an error message, or None if the settings follow this rule.
    """
    if settings.clip_quantile is not None:
        return None
    for name, default in (("clip_rate", _RATE), ("clip_bit_noise", None)):
        if (value := getattr(settings, name)) != default:
            return f"{name} = {value!r} needs clip_quantile: without it the clip is fixed"
    return None


class Clipping:
    """The clip of a protection: fixed for the run, or moving with a quantile of the updates' norms.

    With a fixed clip, the mechanism's input is the update, and messages do not mention the clip.
    With a moving clip (`QuantileClip`), the input is the update followed by its clip bit, which
    says whether the update was shortened. The input has `length` entries and a norm of at most
    `norm`. Clients accept every clip in the range that `QuantileClip` allows.
    """

    def __init__(
        self, settings: AdaptiveClipSettings, clip: float, ratio: float, context: JobContext
    ) -> None:
        self.norm = self.longest = clip
        self.length = context.dimension
        self.moving: QuantileClip | None = None
        if settings.clip_quantile is None:
            return
        if context.unit == "example":
            raise InvalidValue(
                f"clip_quantile = {settings.clip_quantile!r} needs privacy.unit = client: "
                "contributions of single examples are clipped during training"
            )
        self.moving = made = QuantileClip(
            clip, ratio, dimension=context.dimension, clients=context.clients_per_round,
            quantile=settings.clip_quantile, rate=settings.clip_rate,
            bit_noise=settings.clip_bit_noise,
        )  # fmt: skip
        self.norm, self.length, self.longest = made.norm, made.length, made.most

    def initial_state(self) -> State:
        return {} if self.moving is None else {"clip": self.moving.first}

    def words(self, state: State) -> Message:
        """Return the message fields with which the server sends the clip in `state` to clients.

        The result is empty if the clip is fixed. Raises an error if the clip is outside the range
        that `QuantileClip` allows.
        """
        if self.moving is None:
            return {}
        only_fields(state, "clip")
        return {"clip": self.moving.check(take(state, "clip", float))}

    def shown(self, state: State) -> Mapping[str, float]:
        return {} if self.moving is None else {"clip": take(state, "clip", float)}

    def joint(self, update: Update, told: Message) -> Update:
        """Return the mechanism's input: the update and, if the clip moves, a clip bit.

        The clip bit says whether the update was shortened. With a moving clip, the update is also
        clipped and scaled (`QuantileClip.joint`). `told` is the server's request with the clip.
        """
        if self.moving is None:
            return update
        return self.moving.joint(update, take(told, "clip", float))

    def parted(self, mean: Float64s, state: State) -> Float64s:
        """Return the mean update, given `mean`, the noisy mean of the results of `joint`.

        `state` has the clip of the round.
        """
        return self._parted(mean, state)[0]

    def carried(self, clipped: Float64s, told: Message) -> Update:
        """Return the clipped update, without the scaling and the clip bit that `joint` adds.

        `clipped` is the result of `joint` after clipping. `told` is the server's request with the
        clip.
        """
        state = {} if self.moving is None else {"clip": take(told, "clip", float)}
        return self.parted(clipped, state).astype(np.float32)

    def aggregate(self, mean: Float64s, reports: int, state: State) -> Aggregate:
        """Return the round's aggregate: the mean update, and the next clip as the new state.

        `mean` is the noisy mean of the mechanism's inputs (see `joint`), over `reports` clients.
        `state` has the clip of the round.
        """
        update, next_state = self._parted(mean, state)
        return Aggregate(update, reports, next_state)

    def _parted(self, mean: Float64s, state: State) -> tuple[Float64s, State]:
        if self.moving is None:
            return mean, {}
        clip = take(state, "clip", float)
        update, share = self.moving.parted(mean, clip)
        return update, {"clip": self.moving.moved(clip, share)}


class Clipped(Protection):
    """A protection whose state is its clip if the clip adapts, and is empty otherwise."""

    clipping: Clipping

    def initial_state(self) -> State:
        return self.clipping.initial_state()

    def check_state(self, state: State) -> None:
        self.clipping.words(state)

    def shown(self, state: State) -> Mapping[str, float]:
        return self.clipping.shown(state)
