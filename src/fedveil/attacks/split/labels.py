"""`fedveil attack labels`: a follower of a split job infers the labels from what it receives."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from fedveil.attacks.effort import Effort, Watch, by_effort
from fedveil.attacks.roc import area
from fedveil.attacks.split.losses import losses_of_examples
from fedveil.attacks.split.split_target import Crossed, SplitTarget
from fedveil.base.array_types import Bools, Float64s, Int64s
from fedveil.entropy import Seeded
from fedveil.errors import AttackImpossible
from fedveil.privacy.finding import CONFIDENCE, Finding, Measured
from fedveil.privacy.intervals import share, share_of_groups
from fedveil.vertical.blocks import PrivacySettings
from fedveil.vertical.label_reading import (
    Window,
    by_known,
    by_norm,
    by_sign,
    ceiling,
    decided,
    directions,
    label_halves,
    named,
    partition,
    true_of,
)

#: Number of examples whose labels the attacker knows, spread evenly over the classes if possible.
KNOWN = 10
#: Number of steps analysed together. Over more steps, the leader's part changes too much.
_WINDOW = 20


def attack(target: SplitTarget, effort: Effort, watch: Watch) -> Finding:
    """Infer the labels as the first follower, from the first training step and from many steps.

    `effort` sets how long the attack runs, and `watch` reports its progress. The first step is
    simulated with several batches. In each, the attacker knows one label of every class or, if
    there are more than 10 classes, 10 labels. Over many steps there are two attackers. One knows
    the labels of 10 early examples. The other knows no label and clusters the examples. To score
    this guess, clusters are matched to classes by the labels of half of the examples, such that
    most of these are right. The other half is scored. Then the halves change places. Under
    LabelDP, the last figure is the success rate of the best guess from the randomised label.

    If the target is a run, its first steps are played again from its initial weights. If these are
    not known, steps are played after the end of the run, and `saw` of the finding says so.
    """
    is_run, target = target.trained, target.at_start()
    follower = _Follower.of(target)
    steps = by_effort(effort, 60, 300, 2000)
    if is_run and not target.trained:
        steps = min(steps, target.steps)
    figures = [_first_step(follower, by_effort(effort, 15, 40, 100), watch)]
    run = follower.begun(steps, watch)
    early = np.unique(run.windows[0].places)
    known = early[_spread(run.true[early], KNOWN, Seeded(0, "known").generator())]
    everywhere = np.arange(len(run.true))
    others = np.setdiff1d(everywhere, known)
    guesses = follower.guesses(run, known)
    figures.append(follower.share(f"{KNOWN} labels known", guesses, run.true, others))
    crossed = follower.crossed(run)
    figures.append(follower.share("no label known", crossed, run.true, everywhere))
    if follower.classes == 2:
        rarer = int(follower.shares.argmin())
        rare = run.true == rarer
        scores = by_known(run.windows, len(rare), known, run.true[known], 2)
        sides = scores[:, rarer] - scores[:, 1 - rarer]
        figures.append(_either_way("direction AUC", sides[others], rare[others]))
        figures.append(_either_way("norm AUC", run.norms, rare))
        for name, looks in run.added.items():
            figures.append(_either_way(f"{name} AUC", by_sign(looks), rare))
        if run.losses is not None:
            figures.append(_either_way("losses AUC", run.losses, rare))
    if follower.eps is not None:
        best = ceiling(follower.eps, follower.shares)
        figures.append(Measured("best guess from the randomised label", best))
    return Finding(
        attack="labels",
        effort=effort,
        protection=_protection(target.job.privacy),
        figures=figures,
        settings={**target.job.privacy.model_dump(mode="json"), "steps": steps},
        epsilon=math.inf if follower.eps is None else follower.eps,
        saw=follower.saw(run, is_run=is_run),
    )


def _protection(privacy: PrivacySettings) -> str:
    defence = privacy.label_protection
    held = [] if privacy.label_dp is None else ["label_dp"]
    return ", ".join(held + ([] if defence is None else [defence.name])) or "none"


@dataclass(frozen=True)
class _FirstSteps:
    """A follower's view of a run's first steps: what it received for each example.

    `windows` has the directions of the gradients. Each window covers a few consecutive steps.
    `norms[i]` is the score of example i in the norm attack (`by_norm`), summed over the steps.
    `true[i]` is the true label of example i. `added` has two arrays that summarise each example's
    gradients over all steps, "sum" and "change" (see `_added`), or none for a single step.
    `losses[i]` estimates how far the loss of example i lies above the mean loss. `losses` is None
    if the follower received no losses, or for a single step.
    """

    windows: list[Window]
    norms: Float64s
    true: Int64s
    added: Mapping[str, Float64s] = field(default_factory=dict)
    losses: Float64s | None = None


@dataclass(frozen=True)
class _Follower:
    """The follower that attacks: it tries to infer the labels from the gradients and the losses.

    `parts` are its parts that receive gradients. `true` are the labels before LabelDP. `eps` is
    LabelDP's epsilon, which the attacker knows, or None without LabelDP.
    """

    target: SplitTarget
    party: str
    parts: tuple[str, ...]
    true: Int64s
    classes: int
    eps: float | None

    @classmethod
    def of(cls, target: SplitTarget) -> _Follower:
        """Return the first follower that receives a gradient, or the first follower if none does.

        Raises `AttackImpossible` if labels are not classes, or if there is no follower.
        """
        classes, followers = target.task.classes, target.split.followers
        if classes is None:
            raise AttackImpossible(
                f"labels are read from gradients where they are classes, and task.name = "
                f"{target.job.task.name} has others; next tokens are an attack on tokens"
            )
        if not followers:
            raise AttackImpossible("nothing crosses: every part belongs to the leader")
        back = [c for c in target.split.crossings if c.gradient and c.sender in followers]
        party = back[0].sender if back else followers[0]
        parts = tuple(crossing.part for crossing in back if crossing.sender == party)
        labels = target.rows["train"][target.split.leader].labels
        assert labels is not None, "the leader has labels"
        told = target.job.privacy.label_dp
        true = labels.numpy().astype(np.int64)
        return cls(target, party, parts, true, classes, None if told is None else told.eps)

    @cached_property
    def shares(self) -> Float64s:
        return np.bincount(self.true, minlength=self.classes) / len(self.true)

    def looks(self, crossed: Crossed, examples: int) -> list[Float64s]:
        """Return the gradients that the follower received in a step: [examples, values] per part.

        `crossed` has the messages of the step, which trained on `examples` examples. If the
        follower received no gradients, the result is a single array of zeros.
        """
        found = [crossed.gradients[part].flatten(1).double().numpy() for part in self.parts]
        return found or [np.zeros((examples, 1))]

    def begun(self, steps: int, watch: Watch) -> _FirstSteps:
        """Collect what the follower sees of the run's first `steps` steps.

        `watch` reports the progress.
        """
        came, looks, losses = [], [], []
        for positions, crossed in self.target.begun(steps):
            came.append(positions)
            looks.append(self.looks(crossed, len(positions)))
            losses.append(crossed.loss)
            watch.step(len(looks), steps, "steps")
        examples = np.unique(np.concatenate(came))
        found = [np.searchsorted(examples, positions) for positions in came]
        windows, norms = [], np.zeros(len(examples))
        for first in range(0, steps, _WINDOW):
            within = slice(first, first + _WINDOW)
            places = np.concatenate(found[within])
            joined = [np.concatenate(look) for look in zip(*looks[within], strict=True)]
            windows.append(Window(places, directions(joined)))
            np.add.at(norms, places, by_norm(joined))
        added = _added(found, looks, len(examples))
        told = [loss for loss in losses if loss is not None]
        of_each = losses_of_examples(found, told, len(examples)) if told else None
        return _FirstSteps(windows, norms, self.true[examples], added, of_each)

    def saw(self, run: _FirstSteps, *, is_run: bool = False) -> str:
        """Say what the follower received in `run`. `is_run` is True if a run is attacked."""
        losses = "" if run.losses is None else "the steps' losses and "
        seen = f"{losses}gradients of {', '.join(self.parts) or 'nothing'} at {self.party}"
        if self.target.trained:
            return f"{seen}, in new steps after the run's end: its first steps may reveal more"
        return f"{seen}, in the run's first steps" if is_run else seen

    def guesses(self, run: _FirstSteps, known: Int64s) -> Int64s:
        """Guess each example's class from the directions of its gradients in `run`.

        The attacker knows the labels at the indices `known`. Without LabelDP, an example gets the
        class whose gradients are nearest to its own. The known examples give the first estimate of
        each class's gradients. Under LabelDP, the examples are clustered, and the known labels only
        name the clusters.
        """
        if self.eps is not None:
            return self.blind(run, known)
        labels = run.true[known]
        scores = by_known(run.windows, len(run.true), known, labels, self.classes)
        return decided(scores, int(self.shares.argmax()))

    def blind(self, run: _FirstSteps, known: Int64s) -> Int64s:
        """Guess each example's class by clustering the gradients in `run`.

        The labels at indices `known` only name the clusters.
        """
        return self._named(run, self._groups(run), known)

    def crossed(self, run: _FirstSteps) -> Int64s:
        """Guess each example's class by clusters that the labels of other examples name.

        The labels of one half of the examples name the clusters for the other half, and the other
        way round. Otherwise, clusters that say nothing would seem to, because they are named such
        that most of their examples are right.
        """
        groups, halves = self._groups(run), label_halves(run.true)
        guesses = np.empty_like(run.true)
        for naming, judged in (halves, halves[::-1]):
            guesses[judged] = self._named(run, groups, naming)[judged]
        return guesses

    def _groups(self, run: _FirstSteps) -> Int64s:
        return partition(run.windows, len(run.true), self.classes)

    def _named(self, run: _FirstSteps, groups: Int64s, known: Int64s) -> Int64s:
        told = named(groups, known, run.true[known], self.classes)
        found = true_of(told, self.eps, self.shares)
        found[run.norms == 0] = self.shares.argmax()
        return found

    def share(
        self, name: str, guesses: Int64s, true: Int64s, of: Int64s, group: Int64s | None = None
    ) -> Measured:
        """Return the metric `name`: the share of right `guesses` among some examples.

        `of` are the indices of these examples, and `true` the true classes. `group` has a number
        for each of these examples: those with the same number were guessed together, so that one
        mistake may be all of theirs. Nothing is measured if `of` is empty.
        """
        if not len(of):
            return Measured(name, math.nan, cases=0, unmeasured="there are no such examples")
        common = float((true[of] == self.shares.argmax()).mean())
        right = guesses[of] == true[of]
        if group is None:
            return share(name, int(right.sum()), len(of), guess=common)
        hits, cases = np.bincount(group, right).astype(np.int64), np.bincount(group)
        return share_of_groups(name, hits, cases, guess=common)


def _first_step(follower: _Follower, batches: int, watch: Watch) -> Measured:
    size = follower.target.job.batch_size
    drawn = Seeded(0, "first step").generator()
    guesses, truth, judged, before = [], [], [], 0
    for number in range(batches):
        positions = drawn.permutation(len(follower.true))[:size]
        looks = follower.looks(follower.target.crossed(positions), len(positions))
        run = _FirstSteps(
            [Window.of(directions(looks))], by_norm(looks), true := follower.true[positions]
        )
        known = _spread(true, min(KNOWN, follower.classes), drawn)
        guesses.append(follower.guesses(run, known))
        truth.append(true)
        judged.append(before + np.setdiff1d(np.arange(len(true)), known))
        before += len(true)
        watch.step(number + 1, batches, "first steps")
    everything = np.concatenate(guesses), np.concatenate(truth), np.concatenate(judged)
    batch = np.repeat(np.arange(batches), [*map(len, judged)])
    return follower.share("step 1", *everything, batch)


def _added(
    came: Sequence[Int64s], looks: Sequence[Sequence[Float64s]], count: int
) -> dict[str, Float64s]:
    """Return two summaries, [examples, values], of each example's gradients over the steps.

    `came[s]` has the indices, below `count`, of the examples of step s, and `looks[s]` the
    gradients received in that step. The summary "sum" adds up all steps, so noise that is drawn
    anew averages out. The summary "change" is the mean over the later half of the steps minus the
    mean over the earlier half. Constant noise cancels in it.
    """
    width = sum(look.shape[1] for look in looks[0])
    halves, counts = np.zeros((2, count, width)), np.zeros((2, count, 1))
    for number, (places, step) in enumerate(zip(came, looks, strict=True)):
        half = int(2 * number >= len(came))
        lengths = [np.sqrt((look**2).sum(axis=1).mean()) or 1.0 for look in step]
        rows = np.concatenate([k / length for k, length in zip(step, lengths, strict=True)], axis=1)
        halves[half][places] += rows
        counts[half][places] += 1
    means = halves / np.maximum(counts, 1)
    both = (counts > 0).all(axis=0)
    return {"sum": halves.sum(axis=0), "change": np.where(both, means[1] - means[0], 0.0)}


def _either_way(name: str, scores: Float64s, rare: Bools) -> Measured:
    """Return the metric `name`: how well `scores` distinguish the `rare` examples, as an AUC.

    Noise may give the rare examples the smaller scores. So the better of the scores and their
    negatives counts, and the AUC is at least 1/2. With this choice, scores that say nothing would
    seem to beat chance twice as often. So the intervals of both have half of the usual error.
    """
    both = [
        area(name, side[rare], side[~rare], confidence=(1 + CONFIDENCE) / 2)
        for side in (scores, -scores)
    ]
    return max(both, key=lambda found: found.value)


def _spread(labels: Int64s, count: int, drawn: np.random.Generator) -> Int64s:
    order = drawn.permutation(len(labels))
    turns = np.empty(len(labels), np.int64)
    for value in np.unique(labels):
        of_class = order[labels[order] == value]
        turns[of_class] = np.arange(len(of_class))
    chosen: Int64s = order[np.argsort(turns[order], kind="stable")][:count]
    return chosen
