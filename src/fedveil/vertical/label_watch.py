"""What followers read of the labels in a run's first steps, said while they go by.

The leader plays the attacker on the very gradients that it sends, after any protection, against
the labels that it trains on: examples are parted by the directions of their gradients
(`label_reading`), every second one says which group is which class, and the others judge. Nothing
of the run depends on it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from fedveil._arrays import Array, Float64s, Int64s
from fedveil.privacy.finding import Measured
from fedveil.privacy.intervals import share
from fedveil.vertical.label_reading import Window, by_norm, by_sign, directions, named, partition
from fedveil.vertical.split import Crossing, SplitModel
from fedveil.vertical.step import Occasion, Returned

#: So many steps are looked at, of so many examples and values in all.
STEPS, _EXAMPLES, _VALUES = 20, 640, 1 << 22
#: Of sequences, so many tokens.
_TOKENS = 4096
_READ = "lets them be read"
_AGAINST = "labels: privacy.label_protection hinders that, and privacy.label_dp bounds it"


class LabelWatch:
    """Gradients on their way back to followers: they pass as `passed` has them, and are looked at.

    `classes` is the task's; `tell` is called with a sentence for every cut, and for all cuts of a
    follower together where it has several, once the first steps have gone by.
    """

    def __init__(
        self, split: SplitModel, classes: int | None, passed: Returned, tell: Callable[[str], None]
    ) -> None:
        self._classes, self._passed, self._tell = classes, passed, tell
        self._cuts: dict[str, list[str]] = defaultdict(list)
        for crossing in split.crossings:
            if crossing.receiver == split.leader and crossing.gradient:
                self._cuts[crossing.sender].append(crossing.part)
        for follower in split.followers:
            if follower not in self._cuts:
                tell(f"labels: no gradient comes back to {follower}, which reads none")
        self._seen: dict[str, list[Array]] = defaultdict(list)
        self._labels: dict[str, list[Array]] = defaultdict(list)
        self._values = self._steps = 0
        self._first: int | None = None
        self._watches = bool(self._cuts)

    @property
    def has_told(self) -> bool:
        """Whether the first steps have gone by."""
        return not self._watches

    def __call__(
        self, crossing: Crossing, gradient: torch.Tensor, labels: torch.Tensor, occasion: Occasion
    ) -> torch.Tensor:
        passed = self._passed(crossing, gradient, labels, occasion)
        room = _EXAMPLES - sum(map(len, self._seen[crossing.part]))
        if self._watches and room > 0 and (self._values < _VALUES or not self._steps):
            self._first = occasion.step if self._first is None else self._first
            rows = passed.detach()[:room].float().cpu().flatten(1).numpy().copy()
            self._seen[crossing.part].append(rows)
            self._labels[crossing.part].append(labels[:room].cpu().numpy())
            self._values += rows.size
        return passed

    def step_ended(self, *, last: bool = False) -> None:
        """A step has been applied everywhere; after the `last` there are no more."""
        self._steps += 1
        if self._watches and (last or self._steps == STEPS):
            self._watches = False
            sentences = list(self._sentences())
            if any(_READ in sentence for sentence in sentences):
                sentences.append(_AGAINST)
            for sentence in sentences:
                self._tell(sentence)
            self._seen.clear()
            self._labels.clear()

    def _sentences(self) -> Iterator[str]:
        assert self._first is not None, "a step was taken"
        when = f"steps {self._first} to {self._first + self._steps - 1}"
        for follower, parts in self._cuts.items():
            groups = [[part] for part in parts] + ([parts] if len(parts) > 1 else [])
            for group in groups:
                where = f"what comes back to {follower} for {', '.join(group)}"
                count = min(sum(map(len, self._seen[part])) for part in group)
                looks = [np.concatenate(self._seen[part])[:count].astype(float) for part in group]
                labels = np.concatenate(self._labels[group[0]])[:count]
                yield f"labels: {self._read(where, looks, labels)}, measured in {when}"

    def _read(self, where: str, looks: Sequence[Float64s], labels: Array) -> str:
        if self._classes is not None:
            return _classes_read(where, looks, labels.reshape(-1).astype(np.int64), self._classes)
        if labels.ndim == 1:
            scores = by_sign(np.concatenate(looks, axis=1))
            followed = abs(_correlation(scores, labels.astype(float)))
            return f"{where} follows them with a correlation of {followed:.2f}"
        if labels.dtype.kind in "iu" and all(look.size % labels.size == 0 for look in looks):
            return _tokens_read(where, looks, labels.reshape(-1))
        return f"{where} is of labels that are no classes, and nothing here reads them"


def _classes_read(where: str, looks: Sequence[Float64s], labels: Int64s, classes: int) -> str:
    rows, everywhere = directions(looks), np.arange(len(labels))
    naming, judged = everywhere[::2], everywhere[1::2]
    groups = partition([Window.of(rows)], len(labels), classes)
    told = named(groups, naming, labels[naming], classes)
    if not len(judged):
        return f"{where} is too little to say"
    common = np.bincount(labels, minlength=classes).argmax()
    guess = float((labels[judged] == common).mean())
    found = share("", int((told[judged] == labels[judged]).sum()), len(judged), guess=guess)
    areas = _areas(rows, looks, labels, naming, judged) if classes == 2 else ""
    return (
        f"{where} {_reads(found, guess)}: {found.value:.1%} of {len(judged)} right{areas}, the "
        f"most common class alone {guess:.1%}"
    )


def _tokens_read(where: str, looks: Sequence[Float64s], labels: Array) -> str:
    """Of sequences: every second token's gradient is known, and the nearest names each other."""
    rows = directions([look.reshape(len(labels), -1)[:_TOKENS] for look in looks])
    truth = labels[:_TOKENS]
    nearest = (rows[1::2] @ rows[::2].T).argmax(axis=1)
    right = int((truth[::2][nearest] == truth[1::2]).sum())
    names, counts = np.unique(truth, return_counts=True)
    guess = float((truth[1::2] == names[counts.argmax()]).mean())
    found = share("", right, len(nearest), guess=guess)
    return (
        f"{where} {_reads(found, guess)}: {found.value:.1%} of {len(nearest)} right, the most "
        f"common token alone {guess:.1%}"
    )


def _reads(found: Measured, guess: float) -> str:
    return _READ if found.low > guess else "tells no more of them than guessing"


def _areas(
    rows: Float64s, looks: Sequence[Float64s], labels: Int64s, naming: Int64s, judged: Int64s
) -> str:
    """How well sign and length rank two classes; the sign's sense is named as groups are."""
    signs, norms, rare = by_sign(rows), by_norm(looks), labels == np.bincount(labels).argmin()
    signs = signs if _area(signs[naming], rare[naming]) >= 0.5 else -signs
    direction, norm = (_area(scores[judged], rare[judged]) for scores in (signs, norms))
    return f" (AUC {direction:.2f} by direction, {norm:.2f} by norm)"


def _area(scores: Float64s, positive: Array) -> float:
    """The share of pairs in which the positive one scores higher; 1/2 where there are none."""
    yes, no = scores[positive][:, np.newaxis], scores[~positive]
    return float(((yes > no) + (yes == no) / 2).mean()) if yes.size * no.size else 0.5


def _correlation(left: Float64s, right: Float64s) -> float:
    spread = float(left.std() * right.std())
    return float(((left - left.mean()) * (right - right.mean())).mean()) / spread if spread else 0.0
