"""Encodes the privacy losses of a charge as JSON that people can read."""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Any

import numpy as np

from fedveil.privacy.client_tally import Kind
from fedveil.privacy.loss import Gaussian, PrivacyLoss, Release
from fedveil.privacy.loss_distribution import LossDistribution


def to_plain(kind: Kind) -> list[dict[str, Any]]:
    """Convert the charges `kind` of a message to plain data for JSON.

    A charge is a pair (loss, count) of a privacy loss and how often it counts.
    """
    return [{"count": count, **_of_loss(loss)} for loss, count in kind]


def from_plain(losses: list[dict[str, Any]]) -> Kind:
    """Return the charges that `to_plain` converted to `losses`."""
    return tuple((_loss(one), one["count"]) for one in losses)


def _of_loss(loss: PrivacyLoss) -> dict[str, Any]:
    # JSON has no infinity, so epsilon is written as text.
    plain = {"epsilon": str(loss.epsilon), "delta": loss.delta, "per": loss.per}
    release = loss.release
    if isinstance(release, Gaussian):
        plain["ratio"] = release.ratio
    elif isinstance(release, LossDistribution):
        masses = b64encode(release.masses.astype("<f8").tobytes()).decode()
        table = {"step": release.step, "low": release.low, "infinite": release.infinite}
        plain["table"] = {**table, "masses": masses}
    return plain if loss.part is None else {**plain, "part": _of_loss(loss.part)}


def _loss(plain: dict[str, Any]) -> PrivacyLoss:
    release: Release | None = None
    if "ratio" in plain:
        release = Gaussian(plain["ratio"])
    elif "table" in plain:
        masses = np.frombuffer(b64decode(plain["table"]["masses"]), "<f8")
        release = LossDistribution(**{**plain["table"], "masses": masses})
    part = _loss(plain["part"]) if "part" in plain else None
    epsilon = float(plain["epsilon"])
    return PrivacyLoss(epsilon, plain["delta"], plain["per"], release=release, part=part)
