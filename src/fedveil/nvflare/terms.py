"""The terms of a protection on NVFlare, which the sites and the server's aggregator share."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.shareable import Shareable

from fedveil.errors import InvalidValue, ModelInvalid
from fedveil.flower.app.arrays import ArrayLayout, Arrays
from fedveil.flower.app.offer import Offer, check
from fedveil.flower.app.options import Options, parse
from fedveil.protections.base import Protection, RoundContext, Update

#: The protections whose reports need nothing of the server but the model.
ONE_MESSAGE = ("dp_encrypt", "rr", "oue")
#: The field of a result that holds a report as a message.
REPORT = "fedveil.report"


@dataclass(frozen=True)
class Terms:
    """A protection whose clients send one report a round, with its parameters."""

    options: Options

    @classmethod
    def read(cls, keys: Mapping[str, Any]) -> Terms:
        """Return the terms. Raises `JobError` or `InvalidValue`.

        `keys` has the keys of a protected Flower app: `protection`, `keep`, and the protection's
        own.
        """
        options = parse(keys)
        check(options)
        if options.protection not in ONE_MESSAGE or cls(options).protection(1).adaptive:
            raise InvalidValue(
                f"protection = {options.protection} needs messages of the server's half, which a "
                f"filter of NVFlare does not see: use {', '.join(ONE_MESSAGE)}, without adaptive"
            )
        return cls(options)

    def layout(self, arrays: Arrays) -> ArrayLayout:
        """Return the places of the arrays in an update."""
        return ArrayLayout(arrays, self.options.kept, perturbed=self.options.noised)

    def protection(self, dimension: int) -> Protection:
        """Return the protection for updates with this number of entries."""
        return Offer(self.options, "", dimension, 1).protection(0)


def number_of(site: str) -> int:
    """Return the number of a site, from its name."""
    return int.from_bytes(hashlib.sha256(site.encode()).digest()[:7])


def arrays_of(shareable: Shareable, *kinds: DataKind) -> tuple[DataKind, Arrays]:
    """Return the kind of a task's data or result, and a copy of its arrays.

    Raises `ModelInvalid` unless it has one of `kinds`, and NumPy arrays alone.
    """
    try:
        dxo: DXO = from_shareable(shareable)
    except Exception as error:  # NVFlare raises errors of several kinds for a foreign object
        raise ModelInvalid(f"it holds no DXO: {type(error).__name__}") from None
    if dxo.data_kind not in kinds:
        needed = " or ".join(kind.value for kind in kinds)
        raise ModelInvalid(f"it holds {dxo.data_kind}, and {needed} is needed")
    wrong = [name for name, array in dxo.data.items() if not isinstance(array, np.ndarray)]
    if wrong:
        raise ModelInvalid(f"it holds {wrong[0]}, which is no NumPy array")
    return DataKind(dxo.data_kind), {str(name): np.array(a) for name, a in dxo.data.items()}


def shaped(layout: ArrayLayout, update: np.ndarray[Any, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """Return an update as arrays, by their names. Arrays that stay with the clients are absent."""
    return {
        place.name: update[place.span].reshape(place.shape).astype(place.dtype)
        for place in layout.places
    }


def round_of(protection: Protection, site: int, number: int, model: Update) -> RoundContext:
    """Return a round in which one site takes part."""
    return RoundContext([site], number, model, protection.initial_state())
