"""A ledger's records as a flat mapping of names to arrays and scalars, for a checkpoint."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedveil.message import Value
from fedveil.privacy.client_tally import Clients, Kind
from fedveil.privacy.loss import Gaussian, PrivacyLoss, Release
from fedveil.privacy.loss_distribution import LossDistribution

Flat = dict[str, Value]


def kinds_to_state(kinds: Sequence[Kind]) -> Flat:
    """Every loss once, parts before wholes, and each kind as rows (loss, count)."""
    losses: dict[PrivacyLoss, int] = {}
    for kind in kinds:
        for loss, _ in kind:
            _number(loss, losses)
    rows = [[losses[loss], count] for kind in kinds for loss, count in kind]
    state: Flat = {
        "loss.epsilon": np.array([loss.epsilon for loss in losses], np.float64),
        "loss.delta": np.array([loss.delta for loss in losses], np.float64),
        "loss.per": " ".join(loss.per for loss in losses),
        "loss.part": np.array(
            [-1 if loss.part is None else losses[loss.part] for loss in losses], np.int64
        ),
        "kind.rows": np.array(rows, np.int64).reshape(-1, 2),
        "kind.sizes": np.array([len(kind) for kind in kinds], np.int64),
    }
    for loss, i in losses.items():
        state.update(_release_to_state(f"release.{i}", loss.release))
    return state


def kinds_from_state(state: Mapping[str, Any]) -> list[Kind]:
    """The kinds that `kinds_to_state` wrote."""
    losses: list[PrivacyLoss] = []
    columns = zip(
        state["loss.epsilon"].tolist(), state["loss.delta"].tolist(), state["loss.per"].split(),
        state["loss.part"].tolist(), strict=True,
    )  # fmt: skip
    for i, (epsilon, delta, per, part) in enumerate(columns):
        release = _release_from_state(f"release.{i}", state)
        whole = losses[part] if part >= 0 else None
        losses.append(PrivacyLoss(epsilon, delta, per, release=release, part=whole))
    rows = [(losses[i], count) for i, count in state["kind.rows"].tolist()]
    ends = np.cumsum(state["kind.sizes"]).tolist()
    return [tuple(rows[a:b]) for a, b in zip([0, *ends], ends, strict=False)]


def rounds_to_state(
    closed: Mapping[tuple[int, ...], int], opened: Mapping[int, Mapping[int, Clients]]
) -> Flat:
    """The closed rounds by what was spent in them, the open ones with their clients."""
    rows = [(number, kind) for number in sorted(opened) for kind in sorted(opened[number])]
    members = [opened[number][kind] for number, kind in rows]
    return {
        "closed.kinds": " ".join(",".join(map(str, kinds)) for kinds in sorted(closed)),
        "closed.times": np.array([closed[kinds] for kinds in sorted(closed)], np.int64),
        "open.rows": np.array(rows, np.int64).reshape(-1, 2),
        "open.sizes": np.array([len(m) for m in members], np.int64),
        "open.clients": np.concatenate([np.empty(0, np.uint64), *members]),
    }


def rounds_from_state(
    state: Mapping[str, Any],
) -> tuple[Counter[tuple[int, ...]], dict[int, dict[int, Clients]]]:
    """The rounds that `rounds_to_state` wrote."""
    kinds = [tuple(map(int, text.split(","))) for text in state["closed.kinds"].split()]
    closed = Counter(dict(zip(kinds, state["closed.times"].tolist(), strict=True)))
    opened: dict[int, dict[int, Clients]] = {}
    ends = np.cumsum(state["open.sizes"]).tolist()
    for (number, kind), a, b in zip(state["open.rows"].tolist(), [0, *ends], ends, strict=False):
        opened.setdefault(number, {})[kind] = state["open.clients"][a:b].copy()
    return closed, opened


def _number(loss: PrivacyLoss, losses: dict[PrivacyLoss, int]) -> None:
    if loss.part is not None:
        _number(loss.part, losses)
    losses.setdefault(loss, len(losses))


def _release_to_state(name: str, release: Release | None) -> Flat:
    match release:
        case Gaussian():
            return {f"{name}.ratio": release.ratio}
        case LossDistribution():
            return {
                f"{name}.step": release.step,
                f"{name}.low": release.low,
                f"{name}.infinite": release.infinite,
                f"{name}.masses": release.masses,
            }
    return {}


def _release_from_state(name: str, state: Mapping[str, Any]) -> Release | None:
    if f"{name}.ratio" in state:
        return Gaussian(state[f"{name}.ratio"])
    if f"{name}.masses" in state:
        step, low, masses = (state[f"{name}.{field}"] for field in ("step", "low", "masses"))
        return LossDistribution(step, low, masses, state[f"{name}.infinite"])
    return None
