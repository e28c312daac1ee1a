"""Repetition: a client reports the same update again and again.

With every further report, the average of the attacker's estimates gets better, and the epsilon in
the ledger grows. The attacker also guesses which of two known updates the client reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedveil.attacks.distinguishing import Pair, real_pair, report_evidence
from fedveil.attacks.effort import Effort, Watch, by_effort
from fedveil.attacks.server_view import repeated
from fedveil.attacks.target import Target
from fedveil.base.array_types import Float32s, Float64s
from fedveil.base.packing import packed_size
from fedveil.engine.assembly import report_entropy
from fedveil.entropy import Entropy
from fedveil.mechanisms.embedding_dp import EmbeddingDP
from fedveil.mechanisms.report_memory import ReportMemory
from fedveil.privacy import intervals
from fedveil.privacy.finding import CLAIM, Finding, Measured
from fedveil.privacy.guarantee_strength import Figure
from fedveil.privacy.ledger import projected
from fedveil.protections.base import Protection
from fedveil.protections.reading import Reading

#: Numbers of reports after which the attack is measured.
COUNTS = (1, 2, 5, 10, 30, 100)


class Averaged:
    """Running average of an attacker's estimates of one update, weighted by their reliability.

    Estimates that give only the direction of the update, not its size, are summed instead.
    """

    def __init__(self, dimension: int) -> None:
        self._sum, self._weight = np.zeros(dimension), np.zeros(dimension)
        self.scaled = True

    def add(self, reading: Reading) -> None:
        self._sum += reading.weight * reading.estimate
        self._weight += reading.weight
        self.scaled &= reading.scaled

    @property
    def estimate(self) -> Float64s:
        """Return the average of the estimates so far, or their sum if one has only a direction.

        An entry about which no report said anything is 0.
        """
        if not self.scaled:
            return self._sum.copy()
        return np.divide(
            self._sum, self._weight, out=np.zeros_like(self._sum), where=self._weight > 0
        )


def likeness(estimate: Float64s, update: Float32s) -> tuple[float, float, float]:
    """Return the cosine, correlation and relative error of an estimate and the true update.

    The relative error is |estimate - update| / |update|.
    """
    truth = update.astype(np.float64)
    size = float(np.linalg.norm(truth)) or 1.0
    error = float(np.linalg.norm(estimate - truth)) / size
    centred = estimate - estimate.mean(), truth - truth.mean()
    return _cosine(estimate, truth), _cosine(*centred), error


def _cosine(a: Float64s, b: Float64s) -> float:
    lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / lengths if lengths else 0.0


@dataclass
class After:
    """Results of the attack after each client has sent `count` reports.

    `cosines`, `correlations` and `errors` have an entry per client. They compare the attacker's
    estimate with the client's true update, and `errors` are relative to the length of the update.
    `hits` is the number of clients whose update was guessed right. `scaled` is False if the
    estimates have only a direction and no size.
    """

    count: int
    scaled: bool = True
    cosines: list[float] = field(default_factory=list)
    correlations: list[float] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)
    hits: int = 0

    def note(self, average: Averaged, update: Float32s, right: bool) -> None:
        """Record how close `average` is to the true `update`, and if the guess was `right`."""
        cosine, correlation, error = likeness(average.estimate, update)
        self.cosines.append(cosine)
        self.correlations.append(correlation)
        self.errors.append(error)
        self.scaled &= average.scaled
        self.hits += right

    def figures(self, claim: Figure | None = None) -> Iterator[Measured]:
        """Yield the metrics of the attack after `count` reports.

        The first are the medians, over all clients, of the cosine, the correlation and the relative
        error of the attacker's estimate and the true update. The error is left out if the estimates
        have no size. Then follows the share of right guesses. The last is the epsilon of `claim`,
        the guarantee that is stated for `count` reports. It is left out if `claim` is None.
        """
        of = f"after {self.count} report{'s' if self.count > 1 else ''}"
        yield intervals.median(f"cosine {of}", self.cosines, guess=0.0)
        yield intervals.median(f"correlation {of}", self.correlations, guess=0.0)
        if self.scaled:
            yield intervals.median(f"relative error {of}", self.errors, guess=1.0)
        yield intervals.share(f"right guesses {of}", self.hits, len(self.cosines), guess=0.5)
        if claim is not None:
            yield Measured(f"{CLAIM} {of}", claim.epsilon)


def averaged(
    protection: Protection,
    model: Float32s,
    pair: Pair,
    *,
    counts: Sequence[int] = COUNTS,
    trials: int,
    entropy: Entropy,
    watch: Watch | None = None,
) -> list[After]:
    """Attack `trials` clients that have the pair's first update, and `trials` that have the second.

    Each client reports its update again and again. Returns one result for each number of reports in
    `counts`, in ascending order of this number. `watch`, if given, reports the progress.
    """
    found = [After(count) for count in sorted(counts)]
    watch = watch or Watch()
    for trial in range(2 * trials):
        update, other = (pair.a, pair.b) if trial % 2 == 0 else (pair.b, pair.a)
        source = entropy.stream(pair.name, trial)
        rounds = repeated(protection, model, update, found[-1].count, source)
        readings = (round.readings[0] for round in rounds)
        _follow(readings, update, other, first=trial % 2 == 0, found=found)
        watch.step(trial + 1, 2 * trials, "clients")
    return found


def _follow(
    readings: Iterable[Reading],
    update: Float32s,
    other: Float32s,
    *,
    first: bool,
    found: Sequence[After],
) -> None:
    average, said = Averaged(len(update)), 0.0
    due = iter(found)
    after = next(due)
    for seen, reading in enumerate(readings, start=1):
        average.add(reading)
        said += report_evidence(reading, update, other)
        if seen == after.count:
            after.note(average, update, said > 0 or (said == 0 and not first))
            after = next(due, after)


def embedding_repeated(
    vectors: Float64s,
    eps: float,
    *,
    counts: Sequence[int] = COUNTS,
    reuse: bool = False,
    entropy: Entropy,
) -> dict[int, Measured]:
    """Return, for each k in `counts`, the share of bits that a majority of k reports gets right.

    `vectors` is [examples, values]. A value's true bit is 1 if the value is above 0. A report has a
    bit for each value, flipped by EmbeddingDP with the parameter `eps`. If `reuse` is True, every
    report of an example repeats its first one. Ties are decided by a fair coin.
    """
    mechanism, size = EmbeddingDP(eps), vectors.shape[1]
    memory = ReportMemory(packed_size(size, 1))
    ones, truth = np.zeros(vectors.shape), vectors > 0
    found = {}
    for seen in range(1, max(counts) + 1):
        if reuse:
            packed = mechanism.bits_of(range(len(vectors)), vectors, entropy, memory)
        else:
            packed = mechanism.bits(vectors, entropy)
        ones += EmbeddingDP.unpack(packed, vectors.shape)
        if seen in counts:
            coin = entropy.bernoulli(0.5, truth.size).reshape(truth.shape)
            guess = np.where(2 * ones == seen, coin, 2 * ones > seen)
            hits = int(np.count_nonzero(guess == truth))
            found[seen] = intervals.share("right bits", hits, truth.size, guess=0.5)
    return found


def embedding_epsilon(values: int, eps: float, count: int, delta: float, *, reuse: bool) -> float:
    """Return the ledger's epsilon at `delta` for `count` EmbeddingDP reports of one vector.

    Each of the vector's `values` entries costs eps / 2 in a report. If `reuse` is True, only the
    first report costs anything.
    """
    paid = 1 if reuse else count
    return projected(EmbeddingDP(eps).loss.charges(values), paid).figure_every_round(delta).epsilon


def attack(target: Target, effort: Effort, watch: Watch) -> Finding:
    """Estimate the updates of the job's first two clients from up to 100 reports of each update.

    The attacker averages its estimates, and also guesses which of the two updates was reported.
    `effort` sets how long the attack runs, and `watch` reports its progress.

    >>> from fedveil import Job
    >>> from fedveil.attacks.effort import Watch
    >>> from fedveil.attacks.repetition import attack
    >>> from fedveil.attacks.target import Target
    >>> target = Target.of(Job.load(None, ["model=logistic", "clients.number=30"]))
    >>> finding = attack(target, "quick", Watch())
    >>> cosine = finding.figure("cosine after 1 report").value
    >>> round(cosine, 6)  # an unprotected report is the update
    1.0
    """
    trials = by_effort(effort, 10, 50, 250)
    entropy = report_entropy(target.job).stream("repetition")
    after = averaged(
        target.protection,
        target.weights,
        real_pair(target),
        trials=trials,
        entropy=entropy,
        watch=watch,
    )
    return target.finding(
        "repetition",
        effort,
        [f for one in after for f in one.figures(target.promised(one.count))],
        rounds=COUNTS[-1],
        saw=f"up to {COUNTS[-1]} reports of one client with the same update",
    )
