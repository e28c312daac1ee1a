"""Measures how well followers could infer the labels, in a run's first and last steps.

The leader attacks the protected gradients that it sends, and compares the attack's guesses with its
labels. Labels that are classes count as inferred if at least one of these tests succeeds:

- The confidence interval of a metric is above the chance level. The metrics are the attack's
  accuracy, its AUCs, and its recall of the rarest class.
- The attack ranks the examples of a class so high that random scores almost never would.

All tests of one message together hold with 95% confidence. They count examples: in each group of
steps, an example is measured only in the first step that uses it. Otherwise an attacker could know
an example in one step and recognise it in another, and a small data set would look like a large
one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from fedveil.base.array_types import Array, Bools, Float64s, Int64s
from fedveil.privacy.finding import CONFIDENCE, Measured
from fedveil.privacy.intervals import area, chance_of_ranks, share
from fedveil.record.recorder import INFERRED
from fedveil.vertical.label_reading import (
    Window,
    by_known,
    by_norm,
    by_sign,
    directions,
    label_halves,
    named,
    partition,
)
from fedveil.vertical.returned_gradients import rows_of
from fedveil.vertical.split import Crossing, SplitModel
from fedveil.vertical.step import Occasion, Returned

#: The number of measured steps at each end of the run, and the largest numbers of examples and of
#: values that are measured in these steps.
STEPS, _EXAMPLES, _VALUES = 20, 640, 1 << 22
#: The number of attacked tokens, if the examples are sequences.
_TOKENS = 4096
_READ, _OPEN = "reveal them", "leave open whether they can be read"
_LOSS = (
    ", but it receives the loss of every step, which reveals labels: "
    "`record.followers_see_loss: false` hides it"
)
_AGAINST = f"{INFERRED} hinders that, and privacy.label_dp bounds it"
_DRAWN = (
    "labels: these are the labels drawn under privacy.label_dp, whose epsilon bounds what they say "
    "about the true ones"
)


class WatchedGradients:
    def __init__(self, returned: Returned) -> None:
        self.returned = returned
        self.watch: LabelWatch | None = None

    def __call__(
        self, crossing: Crossing, gradient: torch.Tensor, labels: torch.Tensor, occasion: Occasion
    ) -> torch.Tensor:
        return (self.watch or self.returned)(crossing, gradient, labels, occasion)


class LabelWatch:
    """Measures how much the gradients that the leader returns to followers reveal about labels.

    Call this object with a gradient. It returns what the function `passed` returns, the protected
    gradient, and saves it for the attack. `classes` is the task's number of classes, or None if
    labels are not classes. `steps` is the number of steps left in the run. The first few and the
    last few of them are measured. After each of these two groups of steps, `tell` receives
    sentences with the results: one for each part whose gradient is returned, and one for all parts
    of a follower together. A step that is repeated after a restart is not measured again, even if
    its gradients differ. If `tells_loss` is True, followers receive the loss of every step, and a
    sentence about a follower without a returned gradient mentions this. If `drawn` is True, the
    labels are those drawn under LabelDP, and a sentence says so.
    """

    def __init__(
        self,
        split: SplitModel,
        classes: int | None,
        passed: Returned,
        tell: Callable[[str], None],
        steps: int = STEPS,
        *,
        tells_loss: bool = False,
        drawn: bool = False,
    ) -> None:
        self._against = _DRAWN if drawn else _AGAINST
        self._classes, self._passed, self._tell = classes, passed, tell
        self._cuts: dict[str, list[str]] = defaultdict(list)
        for crossing in split.crossings:
            if crossing.receiver == split.leader and crossing.gradient:
                self._cuts[crossing.sender].append(crossing.part)
        for follower in split.followers:
            if follower not in self._cuts:
                loss = _LOSS if tells_loss else ""
                tell(f"labels: no gradient is returned to {follower}{loss}")
        self._seen: dict[str, list[Array]] = defaultdict(list)
        self._labels: dict[str, list[Array]] = defaultdict(list)
        #: The positions of each part's measured examples.
        self._places: dict[str, set[int]] = defaultdict(set)
        self._values = self._steps = 0
        self._first: int | None = None
        windows = [(0, min(STEPS, steps)), (max(STEPS, steps - STEPS), steps)]
        self._windows = [w for w in windows if w[0] < w[1]] if self._cuts else []
        self._sums = None if classes is None else GradientSums(_EXAMPLES, _VALUES)
        self._began = self._latest = 0
        #: Each part's last measured step and micro-batch.
        self._measured: dict[str, tuple[int, int]] = {}

    @property
    def _watches(self) -> bool:
        return bool(self._windows) and self._windows[0][0] <= self._steps < self._windows[0][1]

    def __call__(
        self, crossing: Crossing, gradient: torch.Tensor, labels: torch.Tensor, occasion: Occasion
    ) -> torch.Tensor:
        passed = self._passed(crossing, gradient, labels, occasion)
        place = occasion.step, occasion.micro
        if place <= self._measured.get(crossing.part, (0, -1)):
            return passed
        self._measured[crossing.part] = place
        self._latest = max(self._latest, occasion.step)
        self._began = self._began or occasion.step
        if self._sums is not None and crossing.sender in self._cuts:
            self._sums.add(crossing.part, passed, labels, occasion)
        room = _EXAMPLES - sum(map(len, self._seen[crossing.part]))
        if self._watches and room > 0 and (self._values < _VALUES or not self._seen[crossing.part]):
            self._first = occasion.step if self._first is None else self._first
            places, known = occasion.positions.tolist(), self._places[crossing.part]
            new = [at for at, place in enumerate(places) if place not in known][:room]
            known.update(places[at] for at in new)
            if new:
                rows = rows_of(passed[new]).copy()
                self._seen[crossing.part].append(rows)
                self._labels[crossing.part].append(labels[new].cpu().numpy())
                self._values += rows.size
        return passed

    def step_ended(self, *, last: bool = False) -> None:
        """Count a step that all parties have applied. `last` marks the run's last step."""
        watched = self._watches
        if self._began and self._steps == self._latest - self._began + 1:
            return  # repeated after a restart
        self._steps += 1
        if watched and (last or self._steps == self._windows[0][1]):
            self._report(last=last)

    def run_ended(self) -> None:
        """Report what was measured since the last report. Call it if a run ends early."""
        if self._windows:
            self._report(last=True)

    def _report(self, *, last: bool) -> None:
        begin, _ = self._windows.pop(0)
        sentences = list(self._sentences(self._steps - begin)) if self._steps > begin else []
        if last and self._sums is not None and self._sums.repeated:
            sentences += self._of_sums(self._sums)
        if any(_READ in sentence for sentence in sentences):
            sentences.append(self._against)
        for sentence in sentences:
            self._tell(sentence)
        self._seen.clear()
        self._labels.clear()
        self._places.clear()
        self._values, self._first = 0, None

    def _sentences(self, steps: int) -> Iterator[str]:
        assert self._first is not None, "a step was taken"
        when = f"steps {self._first} to {self._first + steps - 1}"
        for where, group in self._groups():
            count = min(sum(map(len, self._seen[part])) for part in group)
            looks = [np.concatenate(self._seen[part])[:count].astype(float) for part in group]
            labels = np.concatenate(self._labels[group[0]])[:count]
            yield f"labels: {self._read(where, looks, labels)}, measured in {when}"

    def _of_sums(self, sums: GradientSums) -> Iterator[str]:
        for where, group in self._groups():
            looks = sums.of(group)
            told = self._read(where, looks, sums.labels[: len(looks[0])])
            yield f"labels: {told}, added up over steps {self._began} to {self._end}"

    @property
    def _end(self) -> int:
        return self._began + self._steps - 1

    def _groups(self) -> Iterator[tuple[str, list[str]]]:
        for follower, parts in self._cuts.items():
            for group in [[part] for part in parts] + ([parts] if len(parts) > 1 else []):
                yield f"the gradients of {', '.join(group)} returned to {follower}", group

    def _read(self, where: str, looks: Sequence[Float64s], labels: Array) -> str:
        if self._classes is not None and labels.size == len(labels):
            return _classes_read(where, looks, labels.reshape(-1).astype(np.int64), self._classes)
        if labels.size == len(labels):
            scores = by_sign(np.concatenate(looks, axis=1))
            followed = abs(_correlation(scores, labels.reshape(-1).astype(float)))
            return f"{where} have a correlation of {followed:.2f} with them"
        if labels.dtype.kind in "iu" and all(look.size % labels.size == 0 for look in looks):
            return _tokens_read(where, looks, labels.reshape(-1))
        return f"{where}: the labels are not classes, and no attack here reads them"


def _classes_read(where: str, looks: Sequence[Float64s], labels: Int64s, classes: int) -> str:
    rows, (judged, naming) = directions(looks), label_halves(labels)
    groups = partition([Window.of(rows)], len(labels), classes)
    told = named(groups, naming, labels[naming], classes)
    if not len(judged):
        return f"{where}: too few examples to test"
    counts = np.bincount(labels, minlength=classes)
    guess = float((labels[judged] == counts.argmax()).mean())
    ranked = _scores(rows, looks, labels, naming, classes)
    error = (1 - CONFIDENCE) / (2 * len(ranked) + 2)  # so that all statements hold together
    confidence = 1 - error
    right = int((told[judged] == labels[judged]).sum())
    found = share("", right, len(judged), guess=guess, confidence=confidence)
    rare = int(np.where(counts > 0, counts, counts.max() + 1).argmin())
    recall = _recall(told[judged] == rare, labels[judged] == rare, confidence)
    areas = [
        area(name, scores[judged][labels[judged] == c], scores[judged][labels[judged] != c],
             confidence=confidence)
        for name, c, scores in ranked
    ]  # fmt: skip
    # A class whose interval is above chance is the evidence, even if another AUC is larger.
    best = max(areas, key=lambda measured: (measured.low > measured.guess, measured.value))
    figures = (
        f"{found.value:.1%} of {len(judged)} right (the most common class alone {guess:.1%}), "
        f"{recall.name}, {'; '.join(map(_shown, areas if classes == 2 else [best]))}"
    )
    chance = min(
        chance_of_ranks(scores[judged][labels[judged] == c], scores[judged][labels[judged] != c])
        for _, c, scores in ranked
    )
    if any(one.low > one.guess for one in (found, recall, *areas)):
        return f"{where} {_READ}: {figures}"
    if chance < error:
        return (
            f"{where} {_READ}: {figures}; chance gives a class such ranks in {chance:.2g} of cases"
        )
    unseen = max(measured.high for measured in areas)
    return f"{where} {_OPEN}: {figures}; an AUC of up to {unseen:.2f} is not excluded"


def _scores(
    rows: Float64s, looks: Sequence[Float64s], labels: Int64s, naming: Int64s, classes: int
) -> list[tuple[str, int, Float64s]]:
    if classes == 2:
        rare = int(np.bincount(labels, minlength=2).argmin())
        known = labels[naming] == rare
        found = {"direction": by_sign(rows), "norm": by_norm(looks)}
        return [(name, rare, _turned(scores, naming, known)) for name, scores in found.items()]
    near = by_known([Window.of(rows)], len(labels), naming, labels[naming], classes)
    return [(f"nearness to class {c}", c, near[:, c]) for c in np.unique(labels).tolist()]


def _turned(scores: Float64s, naming: Int64s, known: Bools) -> Float64s:
    """Return `scores`, or their negatives if the rare examples of the known half score lower.

    `naming` are the indices of this half, and `known` marks the rare examples in it.
    """
    sense = area("", scores[naming][known], scores[naming][~known]).value
    return scores if sense >= 0.5 else -scores


def _recall(named_rare: Bools, is_rare: Bools, confidence: float) -> Measured:
    """Return the recall of the rarest class, with an interval of the given `confidence`.

    `named_rare` marks the examples for which the attack guessed this class, and `is_rare` the
    examples that have it. An attack that learns nothing guesses this class as often for examples
    that have it as for others. So the chance level of the recall is the attack's false-positive
    rate: the share of the other examples for which it guessed this class. As this rate is only
    estimated, the result has the upper end of its confidence interval as the chance level.
    """
    many, hits = int(is_rare.sum()), int((named_rare & is_rare).sum())
    if not many:
        return Measured("no example of the rarest class to test", 0.0, 0.0, 1.0, 1.0, 0)
    others = share("", int((named_rare & ~is_rare).sum()), max(1, int((~is_rare).sum())),
                   confidence=confidence)  # fmt: skip
    measured = share("", hits, many, confidence=confidence)
    name = f"{hits} of {many} of the rarest class found"
    return Measured(name, measured.value, measured.low, measured.high, others.high, many)


def _shown(measured: Measured) -> str:
    return (
        f"AUC {measured.value:.2f} by {measured.name} ({measured.low:.2f} to {measured.high:.2f})"
    )


def _tokens_read(where: str, looks: Sequence[Float64s], labels: Array) -> str:
    """Attack labels that are tokens. Returns a sentence with the attack's accuracy.

    The attacker knows every second token. It guesses each unknown token as the known token with the
    most similar gradient. `looks` has one array of gradients for each part. `where` begins the
    sentence.
    """
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
    return _READ if found.low > guess else _OPEN


def _correlation(left: Float64s, right: Float64s) -> float:
    spread = float(left.std() * right.std())
    return float(((left - left.mean()) * (right - right.mean())).mean()) / spread if spread else 0.0


class GradientSums:
    """Adds up each example's returned gradients over a run's steps, separately for each part.

    Each micro-batch's gradients are first divided by their root mean square norm. Includes the
    `examples` examples that occur first in the run. A part includes fewer if its sums would
    otherwise have more than `values` entries.
    """

    def __init__(self, examples: int, values: int) -> None:
        self._examples, self._values = examples, values
        #: Each example's row in the sums, by its position, or -1 if it is not followed.
        self._row_of = np.zeros(0, np.int64)
        self._sums: dict[str, Float64s] = {}
        self._labels: list[Array] = []
        self._times: dict[str, Int64s] = {}

    def add(self, part: str, rows: torch.Tensor, labels: torch.Tensor, occasion: Occasion) -> None:
        places = occasion.positions
        if (new := int(places.max()) + 1 - len(self._row_of)) > 0:
            self._row_of = np.append(self._row_of, np.full(new, -1))
        most = min(self._examples, max(1, self._values // rows[0].numel()))
        if len(self._labels) < most:
            for place, label in zip(places.tolist(), labels.cpu().numpy(), strict=True):
                if self._row_of[place] < 0 and len(self._labels) < most:
                    self._row_of[place] = len(self._labels)
                    self._labels.append(label)
        to = self._row_of[places]
        # Another part with fewer values may follow more examples than this one has room for.
        chosen = np.flatnonzero((to >= 0) & (to < most))
        if not len(chosen):  # most steps of an epoch contain no followed example
            return
        if part not in self._sums:
            self._sums[part] = np.zeros((most, rows[0].numel()))
            self._times[part] = np.zeros(most, np.int64)
        gradients = rows_of(rows).astype(np.float64)
        scale = float(np.sqrt((gradients**2).sum(axis=1).mean()))
        if not scale:
            return
        self._sums[part][to[chosen]] += gradients[chosen] / scale
        self._times[part][to[chosen]] += 1

    @property
    def repeated(self) -> bool:
        return any((times > 1).any() for times in self._times.values())

    @property
    def labels(self) -> Array:
        return np.array(self._labels)

    def of(self, parts: Sequence[str]) -> list[Float64s]:
        """Return the gradient sums of the examples that have a sum for every one of `parts`.

        The result has one array for each part, [examples, values], with the same examples in the
        same order. Parts can have sums for different numbers of examples, because a part whose
        gradients have more values has room for fewer.
        """
        count = min(len(self._labels), *(len(self._sums[part]) for part in parts))
        return [self._sums[part][:count] for part in parts]
