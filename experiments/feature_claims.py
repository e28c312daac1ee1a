"""The claims of source 003 and of MistNet about features under EmbeddingDP, and their verdicts.

The MistNet paper states epsilon for one bit, reported truthfully with probability e^eps / (1 +
e^eps). Document 003, and everything built from it, keep a bit with e^(eps/2) / (1 + e^(eps/2)). The
paper's epsilon is therefore half of `eps` here, and results are compared at equal probability.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean
from typing import Any

from experiments.evidence import LEAST_SEEDS, SLACK, decided, idle, learnt, with_interval, within
from experiments.experiment import Verdict

#: Names of the protections: none, one bit without noise, and EmbeddingDP.
NONE, BIT = "none", "bit"
#: MistNet's table 1, ResNet-18 on CIFAR-10 cut after block 1, by its epsilon per bit.
PAPER_SSIM: Mapping[float | str, float] = {
    NONE: 0.918, BIT: 0.775, 2.0: 0.728, 1.0: 0.576, 0.5: 0.354,
}  # fmt: skip
#: ResNet-18's accuracy on CIFAR-10 under centralised training, with one bit, and by epsilon: the
#: curves in the PDF of MistNet's figure 3(a), each the mean of its last 50 of 200 epochs.
PAPER_ACCURACY: Mapping[float | str, float] = {
    NONE: 0.9488, BIT: 0.9354, 2.0: 0.9292, 1.0: 0.9066, 0.5: 0.8411,
}  # fmt: skip
#: Probability of a true bit at the paper's smallest epsilon, from its figure 3.
PAPER_KEPT = (0.5, 0.62)
#: An image with this SSIM can be recognised, according to the paper.
PAPER_RECOGNISED = 0.3
#: Our limit, in points, for the paper's "similar" accuracy without noise and centralised.
SIMILAR_POINTS = 2.0
#: The attackers: with the block's weights, with public images too, and with only its architecture.
KNOWN, PUBLIC, ARCHITECTURE = "known bottom", "both", "unsplit"
WHO = {
    PUBLIC: "the block and public images", KNOWN: "the block", ARCHITECTURE: "its architecture",
}  # fmt: skip
_LABELS = 10


@dataclass(frozen=True)
class Figure:
    """The results of a protection: accuracy on held-out images by seed, median SSIM by attacker.

    The attackers have the messages of the first seed.
    """

    accuracies: Sequence[float]
    held_out: int
    ssim: Mapping[str, float]
    guess: float
    images: Mapping[str, Sequence[Any]]

    @property
    def accuracy(self) -> float:
        """The mean accuracy over the seeds."""
        return mean(self.accuracies)


def kept_bit(eps: float) -> float:
    """Return the probability with which fedveil reports a bit truthfully at epsilon `eps`."""
    return 1 / (1 + math.exp(-eps / 2))


def said(name: str) -> str:
    """Return the words for a protection's name."""
    return {NONE: "no protection", BIT: "one bit, no noise"}.get(name, name.replace("-", " "))


def verdicts(figures: Mapping[str, Figure], images: str = "") -> Iterator[Verdict]:
    """Judge the paper's claims about accuracy, about SSIM, and about the meaning of its epsilon.

    `images`, if given, stands beside every result that was measured on images.
    """
    mark = f" ({images})" if images else ""
    paper = {our_name(of): value for of, value in PAPER_SSIM.items()}
    both = [name for name in figures if name in paper]
    blind = {who: _blind(figures[NONE], who) for who in (PUBLIC, KNOWN)}
    for who, silent in blind.items():
        ours = [figures[name].ssim[who] for name in both]
        falls, chance = _falls(ours, figures[NONE].guess)
        yield Verdict.of(
            falls, f"an attacker with {WHO[who]}: SSIM without protection, with one bit, and down "
            f"to eps {_smallest(both)}",
            _list([paper[name] for name in both]), _list(ours) + mark,
            held_to=f"lower by more than {SLACK:g} at every step, until it is within {SLACK:g} of "
            "the mean image; if a step above that is smaller, it says nothing",
            same="it falls: the more bits are flipped, the less can be reconstructed",
            other="the median of these few images does not fall at every step",
            nothing=silent or chance,
        )  # fmt: skip
    eps, printed = PAPER_KEPT
    here = kept_bit(eps)
    yield Verdict.of(
        abs(here - printed) < 0.005, f"probability of an unchanged bit at epsilon {eps:g}",
        f"{printed}", f"{here:.2f}", held_to="less than 0.005 apart",
        same="both state epsilon for a bit",
        other=f"source 003 halves epsilon before it flips bits: its eps {2 * eps:g} is the paper's "
        f"{eps:g} ({kept_bit(2 * eps):.2f})",
    )  # fmt: skip
    yield _falling_accuracy(figures, mark)
    yield _similar_accuracy(figures[NONE], figures[BIT], mark)
    most, least = figures[both[0]], figures[both[-1]]
    recognised, chance = decided([least.ssim[PUBLIC] - PAPER_RECOGNISED])
    yield Verdict.of(
        recognised, f"at eps {_smallest(both)}, images can still be recognised by their SSIM",
        f"{paper[both[-1]]}", f"{least.ssim[PUBLIC]:.3f}, the mean image {least.guess:.3f}{mark}",
        held_to=f"above the source's {PAPER_RECOGNISED:g} by more than {SLACK:g}; if it is within "
        f"{SLACK:g}, it says nothing",
        same=f"it has fallen from {most.ssim[PUBLIC]:.3f} without protection, but not that far",
        other=f"it has fallen from {most.ssim[PUBLIC]:.3f} without protection, and further than "
        "there; an attacker with more effort may find more",
        nothing=blind[PUBLIC] or chance,
    )  # fmt: skip


def _falls(ssim: Sequence[float], floor: float) -> tuple[bool, str]:
    """Decide, like `decided`, whether SSIM falls steadily down to `floor`, the mean image's."""
    steps = [before - later for before, later in pairwise(ssim) if later > floor + SLACK]
    return decided([min(steps)]) if steps else (True, "")


def _blind(plain: Figure, who: str) -> str:
    """Return a sentence if the attacker reconstructs nothing even without protection."""
    if plain.ssim[who] > plain.guess + SLACK:
        return ""
    return (
        f"without protection the attacker reaches {plain.ssim[who]:.3f}, not more than {SLACK:g} "
        f"above the mean image's {plain.guess:.3f}"
    )


def _falling_accuracy(figures: Mapping[str, Figure], mark: str) -> Verdict:
    """Judge whether accuracy falls with epsilon, from one bit without noise on."""
    names = [name for name in figures if name != NONE]
    seeds = min(len(figures[name].accuracies) for name in names)
    # All have the first seeds. Idle runs at the small end are left out.
    reached = [figures[name].accuracies[:seeds] for name in names]
    good = [learnt(mean(each), _LABELS) for each in reached]
    told = reached[: 1 + max((i for i, each in enumerate(good) if each), default=-1)]
    # With few seeds: the largest chance difference of two accuracies on this many images.
    margins = [_margin(mean(each), figures[NONE].held_out) for each in told]
    plain = idle({said(NONE): figures[NONE].accuracy}, _LABELS)
    falls, nothing = False, "fewer than two runs end above chance level"
    if sum(good) > 1:
        steps = zip(pairwise(told), margins[1:], strict=True)
        rises = any(_exceeds(after, before, margin)[0] for (before, after), margin in steps)
        falls, nothing = (False, "") if rises else _exceeds(told[0], told[-1], margins[0])
    more = any(len(figures[name].accuracies) > seeds for name in names)
    first = f", with the first {seeds} seeds" if more and seeds > 1 else ""
    clear = "by an interval above 0" if seeds >= LEAST_SEEDS else "by two standard deviations"
    return Verdict.of(
        falls, "accuracy falls with epsilon",
        f"one bit, eps 4, 2, 1: {_list([*PAPER_ACCURACY.values()][1:])}; training takes longer",
        ", ".join(map(with_interval, reached)) + first + mark,
        held_to=f"down to chance level, no step rises {clear}, and the last is below the first "
        f"{clear}; if the two are nearer, it says nothing",
        same="a smaller epsilon was never clearly more accurate",
        other="a smaller epsilon was more accurate than a larger one, or the smallest cost nothing",
        nothing=plain or nothing,
    )  # fmt: skip


def _exceeds(more: Sequence[float], less: Sequence[float], margin: float) -> tuple[bool, str]:
    """Decide, like `decided`, whether one setting is more accurate than another, seed by seed."""
    return decided([a - b for a, b in zip(more, less, strict=True)], margin)


def _similar_accuracy(plain: Figure, bit: Figure, mark: str) -> Verdict:
    """Judge whether one bit per value costs at most `SIMILAR_POINTS`, by the interval of seeds."""
    lost = [100 * (a - b) for a, b in zip(plain.accuracies, bit.accuracies, strict=True)]
    similar, undecided = within(lost, SIMILAR_POINTS)
    reached = with_interval(lost, 1)
    return Verdict.of(
        similar, "accuracy with one bit per value, against no protection",
        f"similar: {100 * (PAPER_ACCURACY[NONE] - PAPER_ACCURACY[BIT]):.1f} points lower",
        f"{reached} points lower, with {len(lost)} seed{'s' if len(lost) > 1 else ''}{mark}",
        held_to=f"the seeds' interval lies within {SIMILAR_POINTS:g} points of 0",
        same="the signs of this many features are enough",
        other=f"more than {SIMILAR_POINTS:g} points apart after these few epochs",
        nothing=idle({said(NONE): plain.accuracy, said(BIT): bit.accuracy}, _LABELS) or undecided,
    )  # fmt: skip


def _margin(accuracy: float, images: int) -> float:
    """Return two standard deviations of the difference of two accuracies on `images` images."""
    return 2 * math.sqrt(2 * accuracy * (1 - accuracy) / images)


def our_name(of: float | str) -> str:
    """Return our name of the paper's result `of`, its epsilon or a protection's name."""
    return of if isinstance(of, str) else f"eps-{2 * of:g}"


def _smallest(names: Sequence[str]) -> str:
    return names[-1].removeprefix("eps-")


def _list(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.3f}" for value in values)
