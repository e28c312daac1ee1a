"""Recompute the epsilons of dossiers with dp-accounting, from their records alone.

Usage: python recompute.py [record.json...], by default the record beside this script.

This script needs dp-accounting and numpy, and does not use fedveil. It composes the releases that a
record lists and compares the result with the epsilon that the record states. It exits with code 1
if a record states less than the result, and with code 2 if a record cannot be read.
"""

import json
import math
import sys
from decimal import ROUND_CEILING, Context
from pathlib import Path
from typing import Any

import numpy as np
from dp_accounting import NeighboringRelation
from dp_accounting.pld import pld_pmf
from dp_accounting.pld import privacy_loss_distribution as pld

#: Largest relative difference of two accountants that agree.
TOLERANCE = 2e-3
#: A release is not composed if its losses, times the root of its count, are more than this.
MOST_POINTS = 1 << 25
#: What a record may know of the distribution of a release's loss. "none" is an infinite epsilon.
LAWS = ("none", "stated", "gaussian", "sampled gaussian", "table")


def recomputed(account: dict[str, Any]) -> tuple[float, float]:
    """Recompute an account's epsilon. Returns the epsilon and its possible rounding error.

    Raises ValueError if a release has too many different losses to compose, and TypeError if its
    `law` is unknown.
    """
    releases, delta = account["releases"], account["delta"]
    epsilons = [(number(r["epsilon"]), r["delta"], r["count"]) for r in releases]
    for law in (r["law"] for r in releases):
        if law not in LAWS:
            raise TypeError(f"{law!r} is no law of a release")
    lost = math.fsum(d * n for _, d, n in epsilons)
    added = math.fsum(e * n for e, _, n in epsilons) if lost <= delta else math.inf
    if account["adaptive"] or delta == 0 or any(r["law"] == "none" for r in releases):
        return added, 0.0
    epsilon, error = composed(releases, delta, account["epsilon"])
    return min(added, epsilon), error


def composed(releases: list[Any], delta: float, stated: Any) -> tuple[float, float]:
    """Return the epsilon of composed releases at `delta`, and its possible rounding error.

    `stated` is the epsilon in the record, which determines the grid to which losses are rounded.
    """
    interval = grid(releases, number(stated))
    square = math.fsum(r["count"] / r["ratio"] ** 2 for r in releases if r["law"] == "gaussian")
    parts: list[tuple[Any, int]] = []
    shifts = 0
    if square:
        parts.append((gaussian(1 / math.sqrt(square), interval), 1))
    for release in releases:
        if release["law"] == "sampled gaussian":
            parts.append((sampled(release, interval), release["count"]))
        elif release["law"] in ("stated", "table"):
            part, exact = table(release, interval)
            parts.append((part, release["count"]))
            shifts += 0 if exact else release["count"]
    whole = None
    for part, count in parts:
        repeated = part.self_compose(count) if count > 1 else part
        whole = repeated if whole is None else whole.compose(repeated)
    epsilon = whole.get_epsilon_for_delta(delta) if whole is not None else 0.0
    return epsilon, shifts * interval


def grid(releases: list[Any], stated: float) -> float:
    """Return the step of the grid to which the losses of `releases` are rounded.

    If all losses are on one grid already, returns its step, so that nothing is rounded. Otherwise
    the step is a small share of `stated`, the epsilon in the record. More releases make it smaller,
    because their rounding errors add up.
    """
    own = {r["step"] if r["law"] == "table" else number(r["epsilon"])
           for r in releases if r["law"] in ("stated", "table")}  # fmt: skip
    count = sum(r["count"] for r in releases if r["law"] != "gaussian")
    own.discard(0.0)
    if len(own) == 1 and all(r["law"] in ("stated", "table") for r in releases):
        return float(own.pop())
    finite = stated if math.isfinite(stated) else 1.0
    return max(finite, 0.1) * 1e-4 / max(1, math.isqrt(count))


def gaussian(ratio: float, interval: float) -> Any:
    """Return the privacy loss distribution of Gaussian noise, on a grid of step `interval`.

    `ratio` is the standard deviation of the noise divided by the sensitivity.
    """
    return pld.from_gaussian_mechanism(ratio, value_discretization_interval=interval)


def sampled(release: dict[str, Any], interval: float) -> Any:
    """Return the privacy loss distribution of Gaussian noise on the sum of a sampled batch.

    `release` has the noise's `multiplier` and the sampling `rate`. The distribution is for data
    sets that differ in one replaced member, and `interval` is the step of its grid.
    """
    return pld.from_gaussian_mechanism(
        release["multiplier"],
        sampling_prob=release["rate"],
        value_discretization_interval=interval,
        neighboring_relation=NeighboringRelation.REPLACE_ONE,
    )


def table(release: dict[str, Any], interval: float) -> tuple[Any, bool]:
    """Return the privacy loss distribution of a release whose `law` is "table" or "stated".

    Losses are rounded up to multiples of `interval`. The second result is True if all losses were
    such multiples already. Raises ValueError if the release has too many different losses.
    """
    if release["law"] == "stated":
        epsilon, delta = release["epsilon"], release["delta"]
        right = 1 / (1 + math.exp(-epsilon))
        losses, masses = [-epsilon, epsilon], [(1 - delta) * (1 - right), (1 - delta) * right]
        infinite = delta
    else:
        masses, infinite = release["masses"], release["infinite"]
        losses = [release["step"] * (release["low"] + k) for k in range(len(masses))]
    points = max(len(losses), (losses[-1] - losses[0]) / interval) if losses else math.inf
    if points * math.isqrt(release["count"]) > MOST_POINTS:
        many = f"{release['count']:,} releases of a table of {len(masses):,} losses"
        raise ValueError(f"{many}, which are {points:,.0f} steps of the grid apart")
    places = [math.ceil(loss / interval - 1e-6) for loss in losses]
    exact = all(
        abs(p * interval - x) < 1e-6 * interval for p, x in zip(places, losses, strict=True)
    )
    probabilities = np.zeros(places[-1] - places[0] + 1)
    np.add.at(probabilities, [place - places[0] for place in places], masses)
    pmf = pld_pmf.DensePLDPmf(interval, places[0], probabilities, infinite, True)
    return pld.PrivacyLossDistribution(pmf), exact


def number(value: Any) -> float:
    """Convert a number from strict JSON, which writes infinity as a text.

    Raises TypeError if `value` is no number, or NaN.
    """
    try:
        found = float(value)
    except ValueError:
        found = math.nan
    if math.isnan(found):
        raise TypeError(f"{value!r} is no number")
    return found


def shown(value: float) -> str:
    """Format an epsilon or delta with at most six significant digits, rounded up, never down."""
    return f"{float(Context(prec=6, rounding=ROUND_CEILING).create_decimal(str(value))):.6g}"


def faulty(error: Exception) -> str:
    """Return in words what is wrong with a record."""
    return f"it has no {error}" if isinstance(error, KeyError) else str(error)


def verdict(stated: float, epsilon: float, error: float) -> str:
    """Compare the epsilon `stated` in a record with the recomputed `epsilon`.

    Returns "STATES LESS" if the record's epsilon is too small, "states more" if it is too large,
    and "agrees" if the difference is within the tolerance. `error` bounds `epsilon`'s rounding
    error.
    """
    if stated == epsilon or abs(stated - epsilon) <= TOLERANCE * stated + error:
        return "agrees"
    return "STATES LESS" if stated < epsilon else "states more"


def main(files: list[str]) -> int:
    """Compare the stated with the recomputed epsilon of each account in `files`.

    Returns the exit code.
    """
    wrong = False
    for file in files:
        try:
            for account in json.loads(Path(file).read_text("utf-8"))["accounts"]:
                wrong |= compared(account, file) == "STATES LESS"
        except (OSError, ValueError, LookupError, TypeError, ArithmeticError) as why:
            print(f"{file} cannot be read: {faulty(why)}", file=sys.stderr)
            return 2
    return int(wrong)


def compared(account: dict[str, Any], file: str) -> str:
    """Compare the stated with the recomputed epsilon of an account in `file`, and print both.

    Returns the `verdict`, or "" if the epsilon cannot be recomputed.
    """
    stated, what = number(account["epsilon"]), f"{file}: {account['of']}"
    if account["missing"]:
        print(f"{what}: not recomputed: {account['missing']}")
        return ""
    try:
        epsilon, doubt = recomputed(account)
    except ValueError as why:
        print(f"{what}: not recomputed: too large: {why}")
        return ""
    word = verdict(stated, epsilon, doubt)
    print(f"{what}: stated {shown(stated)}, recomputed {shown(epsilon)} at delta "
          f"{shown(account['delta'])}: {word}")  # fmt: skip
    return word


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or [str(Path(__file__).with_name("record.json"))]))
