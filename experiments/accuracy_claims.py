"""The sources' claims about accuracy and epsilon, each judged by the accuracies of all seeds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import mean

from experiments.arms import listed
from experiments.evidence import (
    SLACK,
    all_hold,
    decided,
    idle,
    learnt,
    near,
    whole_interval,
    with_interval,
    within,
)
from experiments.experiment import Verdict

#: The protections without noise, and those that noise every report.
BARE = ("not_encrypt", "pw_encrypt")
REPORT = ("dp_encrypt", "signds", "rr", "oue")
#: Labels of the digits. Accuracies less than `_APART` apart are nearly the same.
_LABELS, _APART = 10, 0.1
#: The accuracy that a lossless sum may cost or gain: 20 of the 10,000 test images of MNIST.
_LOSSLESS = 0.002
_FEW = "fewer than two points end above chance level"

#: The points of each protection, from the smallest epsilon to the largest: the epsilon, and each
#: seed's accuracy.
Reached = Mapping[str, Sequence[tuple[float, Sequence[float]]]]


def judged(reached: Reached, drawn: Mapping[str, Sequence[float]]) -> Iterator[Verdict]:
    """Judge the sources' claims by the accuracies of the runs.

    `drawn` has each seed's accuracy of the protections in `BARE`, with a drawn cohort.
    """
    yield _lossless(drawn)
    plain = {name: min(each) for name in BARE for _, each in reached[name]}
    bare = idle(plain, _LABELS)
    for name in REPORT:
        yield _grows(name, reached[name], bare)
    yield _alike(reached, bare)


def _lossless(drawn: Mapping[str, Sequence[float]]) -> Verdict:
    """Judge whether the masks of PW_ENCRYPT, and their rounding, leave the accuracy as it is.

    If all seeds end equally, there is one run and not several, and the verdict says nothing.
    """
    plain, masked = (drawn[name] for name in BARE)
    apart = [b - a for a, b in zip(plain, masked, strict=True)]
    agrees, nothing = within(apart, _LOSSLESS)
    nothing = nothing or ("all seeds end equally" if len({*plain}) == 1 else "")
    bare = idle({name: min(drawn[name]) for name in BARE}, _LABELS)
    return Verdict.of(
        agrees, "PW_ENCRYPT is lossless as accuracy: pw_encrypt minus not_encrypt", "lossless",
        f"{with_interval(apart, 4)} ({listed(masked, 4)} minus {listed(plain, 4)})",
        held_to=f"seed by seed: the interval lies between -{_LOSSLESS:g} and {_LOSSLESS:g}. If it "
        "contains one of these, it says nothing",
        same="the masks cancel exactly, and the rounding to fixed-point numbers is too fine to "
        "change an accuracy",
        other="the rounding to fixed-point numbers changes the accuracy",
        nothing=bare or nothing,
    )  # fmt: skip


def _grows(name: str, points: Sequence[tuple[float, Sequence[float]]], bare: str) -> Verdict:
    good = [point for point in points if learnt(mean(point[1]), _LABELS)]
    least, most = good[0] if good else points[0], points[-1]
    agrees, nothing = decided([b - a for a, b in zip(least[1], most[1], strict=True)])
    return Verdict.of(
        agrees, f"{name}: accuracy grows with epsilon", "it grows",
        f"{with_interval(least[1])} at {least[0]:.3g}, {with_interval(most[1])} at {most[0]:.3g}",
        held_to="the accuracy at the largest epsilon minus that at the smallest above chance "
        f"level: with one seed more than {SLACK:g}, where a difference up to {SLACK:g} says "
        "nothing; with several, an interval above 0",
        same="there is less noise in every report",
        other="the choice of the rate hides it",
        nothing=bare or (nothing if len(good) > 1 else _FEW),
    )  # fmt: skip


def _alike(reached: Reached, bare: str) -> Verdict:
    pairs = [
        (a, b)
        for (_, a), (_, b) in zip(reached["rr"], reached["oue"], strict=True)
        if learnt(mean(a), _LABELS) and learnt(mean(b), _LABELS)
    ]
    apart = [[y - x for x, y in zip(*pair, strict=True)] for pair in pairs]
    agrees, nothing = all_hold(near(each, _APART) for each in apart)
    largest = max(apart, key=lambda each: abs(mean(each)), default=[0.0])
    return Verdict.of(
        agrees, "rr and oue at the same epsilon", "nearly the same",
        f"oue minus rr: {with_interval(largest)} where they are furthest apart",
        held_to=f"less than {_APART:g} apart wherever both end above chance level"
        + whole_interval(len(largest)),
        same="at equal epsilons of the whole run, not at equal parameters",
        other="at equal epsilons of the whole run, their parameters differ",
        nothing=bare or (nothing if pairs else _FEW),
    )  # fmt: skip
