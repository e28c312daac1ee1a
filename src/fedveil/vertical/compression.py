"""Compression of values to 1 to 8 bits each. It saves bytes and protects nothing.

Every example's values are rounded to 2^bits evenly spaced levels between the example's minimum and
maximum. With error feedback, an example's rounding errors are added to its values in its next step,
so that errors do not accumulate (J. Wang et al., Fine-tuning Language Models over Slow Networks
using Activation Compression with Guarantees, 2022).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from fedveil.base.array_types import Float32s, Uint8s
from fedveil.base.packing import pack, packed_size, unpack
from fedveil.base.validate import integer
from fedveil.errors import InvalidValue

Positions = npt.NDArray[np.int64]
#: A part's name, and True for its gradient or False for its output.
Place = tuple[str, bool]


@dataclass(frozen=True)
class Compression:
    bits: int = 8
    forward: bool = True
    backward: bool = True
    error_feedback: bool = False

    def __post_init__(self) -> None:
        integer("compression.bits", self.bits, 1, 8)
        if not self.forward and not self.backward:
            raise InvalidValue(
                "compression.forward and compression.backward are both false: set one to true"
            )


def compressed(values: Float32s, bits: int) -> tuple[Uint8s, Float32s]:
    """Round each example's values to 2^`bits` evenly spaced levels. `values` is [examples, ...].

    Returns the levels' packed numbers, and each example's lowest and highest level [examples, 2].
    Both levels of an example with a NaN or an infinite value are NaN.
    """
    rows = values.reshape(len(values), -1).astype(np.float64)
    rows[~np.isfinite(rows).all(axis=1)] = np.nan
    ranges = np.stack([rows.min(axis=1), rows.max(axis=1)], axis=1).astype(np.float32)
    low, high = (ranges[:, [side]].astype(np.float64) for side in (0, 1))
    widths = high - low
    shares = np.divide(rows - low, widths, out=np.zeros_like(rows), where=widths > 0)
    codes = np.rint(shares * ((1 << bits) - 1)).astype(np.int64).reshape(-1)
    return pack(codes, 0, bits), ranges


def restored(
    data: Uint8s, ranges: Float32s, shape: tuple[int, ...], bits: int, *, finite: bool = True
) -> Float32s:
    """Decode `data`, the packed numbers of levels from `compressed`, to values of shape `shape`.

    `ranges` has each example's lowest and highest level, [examples, 2]. Raises InvalidValue if
    `data` does not fit `shape` and `bits`, or if a lowest level is above the highest. If `finite`
    is True, also raises it for a level that is NaN or infinite.
    """
    codes = np.empty(math.prod(shape), np.int64)
    if (finite and not np.isfinite(ranges).all()) or (ranges[:, 0] > ranges[:, 1]).any():
        raise InvalidValue("its ranges are not minima and maxima")
    if data.shape != (packed_size(len(codes), bits),) or not unpack(
        data, 0, (1 << bits) - 1, bits, codes
    ):
        raise InvalidValue(f"its codes are not {len(codes)} numbers of {bits} bits")
    low, high = (ranges[:, [side]].astype(np.float64) for side in (0, 1))
    levels = codes.reshape(shape[0], -1) / ((1 << bits) - 1)
    values: Float32s = (low + levels * (high - low)).astype(np.float32).reshape(shape)
    return values


class Errors:
    """Stores the rounding errors of each example's latest compression, for error feedback.

    The errors of each part's outputs and of their gradients are stored separately.
    """

    def __init__(self) -> None:
        self._held: dict[Place, Float32s] = {}

    def of(self, place: Place, positions: Positions, like: Float32s) -> Float32s:
        """Return the last rounding errors of the examples at `positions`, or 0 if there are none.

        `place` is a pair: a part's name, and True for its gradient or False for its output. `like`
        has the shape of the result.
        """
        found, held = np.zeros_like(like), self._held.get(place)
        if held is not None:
            there = positions < len(held)
            found[there] = held[positions[there]]
        return found

    def keep(self, staged: Mapping[Place, list[tuple[Positions, Float32s]]]) -> None:
        """Save the rounding errors of a step that has been applied.

        `staged` has a list for the outputs of each part, and a list for their gradients. For each
        micro-batch, the list has a pair: the examples' positions and their rounding errors.
        """
        for place, found in staged.items():
            for positions, errors in found:
                held, needed = self._held.get(place), int(positions.max()) + 1
                if held is None or len(held) < needed:
                    longer = np.zeros((needed, *errors.shape[1:]), np.float32)
                    if held is not None:
                        longer[: len(held)] = held
                    held = self._held[place] = longer
                held[positions] = errors

    def state(self) -> dict[str, torch.Tensor]:
        """Return the rounding errors by name: `<part>///forward` or `<part>///backward`."""
        return {
            f"{part}///{'backward' if gradient else 'forward'}": torch.from_numpy(held)
            for (part, gradient), held in self._held.items()
        }

    def restore(self, state: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
        """Restore the rounding errors from `state`.

        `state` has tensors by part, and then by direction: "forward" or "backward".
        """
        self._held = {
            (part, direction == "backward"): held.numpy().copy()
            for part, directions in state.items()
            for direction, held in directions.items()
        }


def staging() -> defaultdict[Place, list[tuple[Positions, Float32s]]]:
    """Return an empty store for the rounding errors of one step. `Errors.keep` saves them later."""
    return defaultdict(list)
