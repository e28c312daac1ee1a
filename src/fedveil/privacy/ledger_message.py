"""Encodes a ledger's charges and rounds as named arrays, for a checkpoint."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from fedveil.base.message import Value, take, take_array
from fedveil.base.validate import integer
from fedveil.errors import MessageInvalid
from fedveil.privacy.client_tally import Clients, Kind, in_order
from fedveil.privacy.loss import Gaussian, PrivacyLoss, Release
from fedveil.privacy.loss_distribution import LossDistribution

Flat = dict[str, Value]

#: The most releases of one loss in a report, and the last possible round.
MAX_RELEASES = 1 << 53
MAX_ROUND = (1 << 62) - 1


def kinds_to_state(kinds: Sequence[Kind]) -> Flat:
    """Encode `kinds` as named arrays, which `kinds_from_state` decodes.

    A kind is the combination of charges that a client gets in one round. A charge is a privacy loss
    and its number of releases.
    """
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
    """Decode the kinds that `kinds_to_state` encoded.

    A kind is the combination of charges that a client gets in one round. A charge is a privacy loss
    and its number of releases.
    """
    losses: list[PrivacyLoss] = []
    columns = zip(
        take_array(state, "loss.epsilon", np.float64, (None,)).tolist(),
        take_array(state, "loss.delta", np.float64, (None,)).tolist(),
        take(state, "loss.per", str).split(),
        take_array(state, "loss.part", np.int64, (None,)).tolist(),
        strict=True,
    )
    for i, (epsilon, delta, per, part) in enumerate(columns):
        release = _release_from_state(f"release.{i}", state)
        whole = losses[integer("part", part, 0, i - 1)] if part != -1 else None
        losses.append(PrivacyLoss(epsilon, delta, per, release=release, part=whole))
    rows = [
        (losses[integer("loss", i, 0, len(losses) - 1)], integer("count", count, 1, MAX_RELEASES))
        for i, count in take_array(state, "kind.rows", np.int64, (None, 2)).tolist()
    ]
    return [tuple(rows[a:b]) for a, b in _groups(state, "kind.sizes", len(rows))]


def rounds_to_state(
    closed: Mapping[tuple[int, ...], int], opened: Mapping[int, Mapping[int, Clients]]
) -> Flat:
    """Encode which kinds of report a ledger has charged in each round, as named arrays.

    Two reports are of one kind if they cost the same charges. Here a kind is a number, its index in
    the ledger's list of kinds. A closed round gets no more charges. `closed` maps a tuple of kinds
    to the number of closed rounds in which exactly these kinds were charged. `opened` maps each
    open round to {kind: charged clients}.
    """
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
    state: Mapping[str, Any], kinds: int, first_open: int
) -> tuple[Counter[tuple[int, ...]], dict[int, dict[int, Clients]]]:
    """Decode the closed and the open rounds of a ledger from `state`, which `rounds_to_state` made.

    A kind is the index of a kind of report in the ledger's list, which has `kinds` entries. The
    first result maps a tuple of kinds to the number of closed rounds in which exactly these kinds
    were charged. The second result maps each open round to {kind: charged clients}. Raises an error
    if a kind is not an index of the list, or if an open round is earlier than `first_open`.
    """

    def checked(kind: int) -> int:
        return integer("kind", kind, 0, kinds - 1)

    spent = [
        tuple(checked(int(kind)) for kind in text.split(","))
        for text in take(state, "closed.kinds", str).split()
    ]
    times = take_array(state, "closed.times", np.int64, (None,)).tolist()
    closed = Counter(
        {many: integer("times", n, 1, MAX_ROUND) for many, n in zip(spent, times, strict=True)}
    )
    opened: dict[int, dict[int, Clients]] = {}
    members = take_array(state, "open.clients", np.uint64, (None,))
    rows = take_array(state, "open.rows", np.int64, (None, 2)).tolist()
    groups = _groups(state, "open.sizes", len(members))
    for (number, kind), (a, b) in zip(rows, groups, strict=True):
        number = integer("round", number, first_open, MAX_ROUND)
        opened.setdefault(number, {})[checked(kind)] = in_order(members[a:b].copy())
    return closed, opened


def _groups(state: Mapping[str, Any], name: str, whole: int) -> list[tuple[int, int]]:
    """Return the start and end of each group of rows, from the groups' sizes in the field `name`.

    Raises `MessageInvalid` unless the sizes sum to `whole`, the number of rows.
    """
    ends = [0]
    for size in take_array(state, name, np.int64, (None,)).tolist():
        ends.append(integer("end", ends[-1] + integer("size", size, 1), 1, whole))
    if ends[-1] != whole:
        raise MessageInvalid(f"field {name} leaves something out")
    return list(pairwise(ends))


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
        return Gaussian(take(state, f"{name}.ratio", float))
    if f"{name}.masses" in state:
        step, infinite = (take(state, f"{name}.{field}", float) for field in ("step", "infinite"))
        masses = take_array(state, f"{name}.masses", np.float64, (None,))
        return LossDistribution(step, take(state, f"{name}.low", int), masses, infinite)
    return None
