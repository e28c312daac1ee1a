"""Reads MindSpore Federated's server configuration files."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

from fedveil.errors import nearest
from fedveil.federated import mindspore_keys as keys
from fedveil.protections.base import Protection
from fedveil.protections.catalog import POSITIONS
from fedveil.settings.allowed import shown


def is_dialect(data: Mapping[str, Any], ours: Collection[str]) -> bool:
    """Return True if `data` has more keys of MindSpore Federated than of fedveil (`ours`)."""
    theirs = {key.partition(".")[0] for key in keys.KEYS}
    theirs |= {keys.IGNORED_BLOCK, *keys.WITHOUT_BLOCK}
    return len(theirs & set(data)) > len(set(ours) & set(data))


class Translation:
    """A translation of MindSpore Federated settings: fedveil's keys (`native`) and notes."""

    def __init__(self, data: Mapping[str, Any], ours: Collection[str]) -> None:
        """Translate a MindSpore Federated file. `ours` are fedveil's own top-level keys."""
        self.native: dict[str, Any] = {}
        self.ignored: list[str] = []
        self.notes: list[str] = []
        self.problems: list[str] = []
        self._ours = ours
        self._active: type[Protection] | None = None
        self._left_out: dict[str, Any] = {}  # a key that the file leaves out -> its default
        self._theirs: dict[str, Any] = {}
        self._written: dict[str, str] = {}  # a key with its block -> its spelling in the file
        self._names: dict[str, str] = {}  # fedveil's key -> MindSpore's key, as the file spells it
        self._judged: set[str] = set()  # fedveil's keys that `problems` already covers
        for written, value in _leaves(data, ""):
            self._take(written, value)
        self._fill_in_defaults()
        self._position()
        self._mode()
        self._algorithm()
        self._refusals()
        self._cohort()
        self._late()
        for key, ours in keys.CONVERTED.items():
            if key in self._theirs:
                self._put(ours, self._theirs[key], key)
        self._note_parameters()
        if self._left_out:
            listed = ", ".join(f"{key} = {value}" for key, value in self._left_out.items())
            self.notes.insert(0, f"left out, so their defaults apply: {listed}")
        if self.ignored:
            self.notes.insert(
                0, f"ignored, because they change no result: {', '.join(self.ignored)}"
            )
        self.notes.append(
            "the file names no model, data or client optimiser: those of the default job are "
            "used unless you set them"
        )

    def in_their_names(self, problems: Sequence[str], overridden: Sequence[str]) -> list[str]:
        """Return `problems` with MindSpore Federated's key names in place of fedveil's.

        Keys in `overridden` keep fedveil's names, because the file did not set them. Problems that
        the translation has already reported are omitted.
        """
        names = {ours: name for ours, name in self._names.items() if ours not in overridden}
        parted = [problem.partition(" ") for problem in problems]
        return [
            names.get(key, key) + s + rest for key, s, rest in parted if key not in self._judged
        ]

    def _given(self, key: str) -> str:
        return f"{self._written[key]} = {shown(self._theirs[key])}"

    def _refuse(self, key: str, why: str) -> None:
        self.problems.append(f"{self._given(key)} {why}")

    def _take(self, written: str, value: Any) -> None:
        key = keys.WITHOUT_BLOCK.get(written, written)
        if key in keys.BLOCKS:
            if value not in (None, {}):
                self.problems.append(f"{written} = {shown(value)} is not a block of keys")
        elif key in self._theirs:
            self.problems.append(f"{written} repeats {self._written[key]}")
        elif key in keys.IGNORED or key.partition(".")[0] == keys.IGNORED_BLOCK:
            self.ignored.append(written)
        elif key not in keys.KEYS:
            self.problems.append(self._unknown(written, value))
        elif value is None and not key.startswith("encrypt."):
            self.problems.append(f"{written} has no value")
        else:
            self._theirs[key], self._written[key] = value, written

    def _unknown(self, key: str, value: Any) -> str:
        place = f"{key} = {shown(value)} is not a key of MindSpore Federated's server"
        if key.partition(".")[0] in self._ours:
            return f"{place}; set a fedveil key with --set, or in a fedveil job file"
        return place + nearest(key, keys.KEYS)

    def _fill_in_defaults(self) -> None:
        missing = {key: value for key, value in keys.DEFAULTS.items() if key not in self._theirs}
        self._theirs |= missing
        self._written |= {key: key for key in missing}
        self._left_out |= missing

    def _note_parameters(self) -> None:
        """Note the active protection's parameters that the file leaves out."""
        for key, default in keys.parameters(self._active).items() if self._active else ():
            if keys.CONVERTED[key] in self._names:
                continue
            if key in keys.OTHER_DEFAULTS:
                self.notes.append(
                    f"left out, so fedveil's default applies, not theirs "
                    f"({keys.OTHER_DEFAULTS[key]}): {key}"
                )
            else:
                self._left_out[key] = default

    def _put(self, ours: str, value: Any, theirs: str) -> None:
        block = self.native
        *place, name = ours.split(".")
        for part in place:
            block = block.setdefault(part, {})
        block[name] = value
        self._names[ours] = self._written.get(theirs, theirs)

    def _either(self, key: str, alias: str) -> tuple[str, Any]:
        given = [name for name in (key, alias) if name in self._theirs]
        values = [_folded(self._theirs[name]) for name in given]
        if values[1:] != values[:-1]:
            one, other = map(self._given, given)
            self.problems.append(f"{one} and {other} are two names of one setting and differ")
        name = given[0] if given else key
        return name, self._theirs.get(name)

    def _position(self) -> None:
        key, chosen = self._either(keys.TYPE, keys.TRAIN_TYPE)
        position = str(_folded(chosen)).lower() if key in self._theirs else "not_encrypt"
        if position not in POSITIONS:
            why = keys.REFUSED_POSITIONS.get(position.upper(), "is not a protection")
            allowed = ", ".join(name.upper() for name in POSITIONS)
            self._refuse(key, f"{why}; it is one of {allowed}")
            return
        self._put("protection.name", position, key)
        for alias, meant in keys.ALIASES.items():
            name, value = self._either(meant, alias)
            if name in self._theirs:
                self._put(keys.CONVERTED[meant], value, name)
        active = self._active = POSITIONS[position]
        if not active.dialect.one_server and keys.SERVERS in self._theirs:
            self.ignored.append(self._written[keys.SERVERS])
        elif self._theirs.get(keys.SERVERS, 1) != 1:
            why = f"{active.dialect.one_server}, so only 1 is allowed"
            self._refuse(keys.SERVERS, f"is not supported under {active.name.upper()}: {why}")

    def _mode(self) -> None:
        mode = _folded(self._theirs.get(keys.MODE, "FEDERATED_LEARNING"))
        if mode in ("FEDERATED_LEARNING", "CLOUD_TRAINING"):
            return
        why = "does not average clients' models"
        if mode == "HYBRID_TRAINING":
            why = "is not supported: in it the server also trains, on data of its own"
        self._refuse(keys.MODE, f"{why}; FEDERATED_LEARNING and CLOUD_TRAINING are allowed")

    def _algorithm(self) -> None:
        kind = _folded(self._theirs.get(keys.AGGREGATION, "FedAvg"))
        if kind == "FEDPROX":
            if keys.IID_RATE not in self._theirs:
                self._refuse(keys.AGGREGATION, f"needs {keys.IID_RATE}, the weight of its term")
                return
            self._put("training.proximal", self._theirs[keys.IID_RATE], keys.IID_RATE)
            self.notes.append(
                f"{self._given(keys.IID_RATE)}: their FedProx uses the mean of the squares of "
                "each tensor, which almost vanishes for a large tensor. training.proximal uses "
                "their sum, like the paper"
            )
            return
        if keys.IID_RATE in self._theirs:
            self.ignored.append(self._written[keys.IID_RATE])
        if kind == "SCAFFOLD":
            self._put("training.algorithm", "scaffold", keys.AGGREGATION)
        elif kind == "FEDCM":
            self._put("training.algorithm", "fedcm", keys.AGGREGATION)
            self._put("training.own_direction", keys.FEDCM_ALPHA, keys.AGGREGATION)
            self.notes.append(
                f"{self._given(keys.AGGREGATION)}: their FedCM fixes alpha at {keys.FEDCM_ALPHA}, "
                "so training.own_direction has this value. Their training script computes the "
                "clients' common direction. fedveil uses the last round's aggregate, like the paper"
            )
        elif kind == "FEDNOVA":
            self._refuse(
                keys.AGGREGATION,
                "is not supported: it sends the clients' numbers of steps unprotected. A "
                "fedveil job has training.algorithm = fednova with training.normal_steps",
            )
        elif kind != "FEDAVG":
            why = "is not supported: only FedAvg, FedProx, Scaffold and FedCM are allowed"
            self._refuse(keys.AGGREGATION, why)

    def _refusals(self) -> None:
        for key, (neutral, why) in keys.REFUSED.items():
            if _folded(self._theirs.get(key, neutral)) == _folded(neutral):
                continue
            if key == keys.UPLOAD and self._active and self._active.dialect.uploads_as_they_are:
                self.ignored.append(self._written[key])
            else:
                self._refuse(key, f"is not supported: {why}; only {neutral} is allowed")

    def _cohort(self) -> None:
        threshold, total = self._theirs[keys.THRESHOLD], self._theirs.get(keys.TOTAL)
        self._put("clients.number", threshold, keys.THRESHOLD)
        self._put("clients.fraction", 1.0, keys.THRESHOLD)
        if not _is_count(threshold):
            self._judged.add("clients.number")
            self._refuse(keys.THRESHOLD, "is not a whole number in [1, inf)")
        if total is None:
            self.notes.append(
                f"the file does not state the number of clients: it is {shown(threshold)}, all "
                "in every round, unless you set clients.number and clients.fraction"
            )
        elif not _is_count(total):
            self._refuse(keys.TOTAL, "is not a whole number in [1, inf)")
        elif _is_count(threshold) and threshold > total:
            why = "a round's cohort is at most all clients"
            self._refuse(keys.TOTAL, f"is below {self._given(keys.THRESHOLD)}: {why}")
        elif _is_count(threshold):
            self._put("clients.number", total, keys.TOTAL)
            self._put("clients.fraction", threshold / total, keys.THRESHOLD)

    def _late(self) -> None:
        threshold, ratio = self._theirs[keys.THRESHOLD], self._theirs.get(keys.RATIO, 1.0)
        if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0 < ratio <= 1:
            self._refuse(keys.RATIO, "is not a number in (0, 1]")
        elif _is_count(threshold):
            # The ratio as a decimal number: 0.07 of 100 is 7, although the float product is above
            # 7.
            needed = math.ceil(Fraction(repr(ratio)) * threshold)
            if needed < threshold:
                late = (threshold - needed) / threshold
                self._put("simulation.dropouts", {"masked": late}, keys.RATIO)
                self.notes.append(
                    f"{self._written[keys.RATIO]} = {ratio}: {needed} of {threshold} updates "
                    "close a round; the other clients, drawn at random, drop out"
                )


def _leaves(data: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in data.items():
        key = f"{prefix}{name}"
        # No MindSpore key is nested deeper, and YAML can nest a block in itself.
        if isinstance(value, Mapping) and value and key.count(".") < 2:
            yield from _leaves(value, f"{key}.")
        else:
            yield key, value


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _folded(value: Any) -> Any:
    """Return a text in upper case, since MindSpore ignores case. Return other values unchanged."""
    return value.upper() if isinstance(value, str) else value
