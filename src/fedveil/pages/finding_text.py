"""An attack's result for readers: a conclusion in words, and a table of its metrics."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from fedveil.base.quantity import few_digits
from fedveil.pages.table import Table
from fedveil.privacy.audit import rounded_down
from fedveil.privacy.finding import Finding, Measured
from fedveil.privacy.loss import format_epsilon

_CHANCE = "(chance: {guess})"
_BLIND = "(a guess without what was sent: {guess})"
#: Pairs: a pattern for a metric's name (or its last words), and what an attacker could do.
_COULD = (
    (r"exposure.*", "rank a planted phrase among random ones as if it knew {value} bits of it"),
    (r"extracted.*", "extract {value} of the planted phrases"),
    (r"client TPR at (?P<rate>\S+) FPR", "recognise {value} of the clients that took part and name "
     "{rate} of others"),
    (r"client balanced accuracy", "tell clients that took part from others {value} of the time"),
    (r"property TPR at (?P<rate>\S+) FPR", "name {value} of the clients with mostly one class and "
     "{rate} of others"),
    (r"property balanced accuracy", "tell clients with mostly one class from others {value} of the "
     "time"),
    (r"property AUC", "rank a client with mostly one class above another {value} of the time"),
    (r"labels counted.*", "count {value} of the median client's labels right"),
    (r"client AUC", "rank a client that took part above another client {value} of the time"),
    (r"TPR at (?P<rate>\S+) FPR", "recognise {value} of the members and accuse {rate} of others"),
    (r"balanced accuracy", "tell members from others {value} of the time"),
    (r"(direction|norm|sum|change|losses) AUC", "rank an example with the rare label first {value} "
     "of the time"),
    (r"AUC", "rank a member above another example {value} of the time"),
    (r"label accuracy|labels? known|step 1", "infer the label of {value} of the examples"),
    (r"words", "read {value} of the words"),
    (r"recovered.*", "recover {value} of the examples"),
    (r"coins guessed right", "guess {value} of the canaries' coins right"),
    (r"right bits", "guess {value} of the bits right"),
    (r"right guesses.*", "tell two updates apart {value} of the time"),
    (r"mse", "reconstruct examples with a mean squared error of {value}"),
    (r"psnr", "reconstruct examples with a signal-to-noise ratio of {value} dB"),
    (r"ssim", "reconstruct examples with a structural similarity of {value}, where 1 is identical"),
    (r"cosine.*", "estimate an update with a cosine similarity of {value} with the true one"),
    (r"correlation.*", "estimate values with a correlation of {value} with the true ones"),
    (r"relative error.*", "estimate an update with a relative error of {value}"),
)  # fmt: skip
#: The metrics whose values are not shares of cases.
_NO_SHARES = re.compile(
    r"(.*\b)?(AUC|mse|psnr|ssim|(correlation|cosine|relative error|ledger's epsilon|distance|"
    r"exposure|most that|the most|epsilon at least).*)"
)


def conclusion(finding: Finding) -> str:
    """Return what an attack or an audit found, in a sentence or two."""
    if finding.refutes:
        return f"The guarantee of {finding.protection} is refuted: {finding.refutation}."
    figures = [f for f in finding.figures if f.is_measured and not math.isnan(f.guess)]
    compared = [figure for figure in figures if not math.isnan(figure.low)]
    better = [figure for figure in compared if figure.beats_guessing]
    if better:
        best = _best(better)
        text = f"{_under(finding)}, an attacker could {could(finding, best)}."
        if len(compared) == 1:
            return text
        return (
            f"{text} That is `{best.name}`; {len(better)} of {len(compared)} compared figures beat "
            f"chance. By luck, about one in 40 would."
        )
    if finding.bounds:
        return (
            f"No bound is above the claim of {finding.protection}. That does not prove the claim."
        )
    # Without an interval, a figure is no evidence that the attacker failed.
    if above := [f for f in figures if math.isnan(f.low) and f.exceeds_guessing]:
        best = _best(above)
        return (
            f"{_under(finding)}, an attacker could {could(finding, best)}. That is `{best.name}`, "
            f"from too few cases to say if it is luck."
        )
    failed = "an attacker did no better than chance"
    if not compared:
        failed = "no figure could be compared with chance"
    return (
        f"{_under(finding)}, {failed} at effort {finding.effort}. That does not prove that nothing "
        f"leaks."
    )


def _under(finding: Finding) -> str:
    bare = finding.protection == "none"
    return "Without protection" if bare else f"Under {finding.protection}"


def _best(better: Sequence[Measured]) -> Measured:
    """Return the metric that the conclusion quotes, from metrics that are `better` than chance.

    An SSIM is preferred, because readers cannot judge errors of pixels.
    """
    first = next((figure for figure in better if _meaning(figure) == "ssim"), better[0])
    pattern = _meaning(first)
    alike = [figure for figure in better if _meaning(figure) == pattern]
    sign = -1 if first.is_error else 1
    return max(alike, key=lambda figure: sign * figure.value)


def _meaning(figure: Measured) -> str:
    patterns = (pattern for pattern, _ in _COULD if _match(pattern, figure))
    return next(patterns, figure.name)


def _match(pattern: str, figure: Measured) -> re.Match[str] | None:
    return re.fullmatch(rf"(?:.*\b)?(?:{pattern})", figure.name)


def could(finding: Finding, figure: Measured) -> str:
    """Return the end of a sentence that begins with "An attacker could".

    The sentence states the result of `finding` for the metric `figure`.
    """
    value, guess = shown(figure, figure.value), shown(figure, figure.guess)
    if figure.name.endswith("AUC"):  # the share of pairs that are ranked right
        value, guess = _percent(figure.value), _percent(figure.guess)
    if finding.attack == "tokens":
        return f"read {value} of the tokens {_CHANCE.format(guess=guess)}"
    for pattern, words in _COULD:
        found = _match(pattern, figure)
        if found:
            beside = _BLIND if pattern in ("mse", "psnr", "ssim") else _CHANCE
            return f"{words.format(value=value, **found.groupdict())} {beside.format(guess=guess)}"
    return f"reach {figure.name} {value} {_CHANCE.format(guess=guess)}"


def shown(figure: Measured, value: float) -> str:
    """Format `value`, which is the value or a bound of the metric `figure`.

    A fraction becomes a percentage, and NaN becomes "-".
    """
    if math.isnan(value):
        return "-"
    if figure.is_bound:
        return rounded_down(value)
    if figure.is_claim or figure.is_limit:
        return format_epsilon(value)
    if _NO_SHARES.fullmatch(figure.name) or not 0 <= value <= 1:
        return few_digits(value)
    return _percent(value)


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"


def figures(finding: Finding) -> Table:
    """Return a table that compares the metrics of the finding with their chance levels."""
    claimed = not all(math.isnan(figure.epsilon) for figure in finding.figures)
    columns = ["figure", "value", *(["own claim"] if claimed else []), "95% interval", "guessing"]
    rows = []
    for figure in finding.figures:
        low, high = shown(figure, figure.low), shown(figure, figure.high)
        interval = figure.is_measured and not math.isnan(figure.low)
        epsilon = "" if math.isnan(figure.epsilon) else format_epsilon(figure.epsilon)
        own = [epsilon] if claimed else []
        rows.append([
            figure.name,
            shown(figure, figure.value) if figure.is_measured else figure.missing,
            *own,
            f"{low} to {high}" if interval else "",
            "" if math.isnan(figure.guess) else shown(figure, figure.guess),
            f"{figure.cases:,}",
        ])  # fmt: skip
    return Table([*columns, "cases"], rows)
