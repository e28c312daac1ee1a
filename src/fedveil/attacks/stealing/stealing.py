"""`fedveil attack steal`: a server sends a model that makes reports contain examples.

The server sends every client the same model. Clients train and report exactly as the job says.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedveil.attacks.effort import Effort, Watch, by_effort
from fedveil.attacks.pictures import grid
from fedveil.attacks.server_view import Seen
from fedveil.attacks.stealing.imprint_layer import Form, Imprint
from fedveil.attacks.stealing.imprint_recovery import cells_needed, examples_in
from fedveil.attacks.stealing.public_prior import PublicDistribution
from fedveil.attacks.target import Target
from fedveil.base.array_types import Float64s, Int64s
from fedveil.base.quantity import quantity
from fedveil.data.partition import Partition
from fedveil.entropy import Seeded
from fedveil.errors import AttackImpossible
from fedveil.privacy.finding import Finding, Measured
from fedveil.privacy.intervals import median, share

#: An example counts as recovered at this peak signal-to-noise ratio in decibels: a mean squared
#: error of 0.01 for values in [0, 1].
RECOVERED_DB = 20.0
#: Cells per example if reports are read one by one. With one client's few examples, the model is
#: small even with more cells than needed.
_CELLS_A_REPORT = 10
_SHOWN = 10


@dataclass(frozen=True)
class StealingResult:
    """Result of an attack that steals examples. Examples are rows with values in [0, 1].

    `originals` are the clients' examples, and `offered` are the attacker's candidates for them.
    `public` are public examples, at most as many as `originals`. As a baseline, they are counted as
    candidates too, in place of `offered`. `saw` says what the attacker received, such as a report
    or a sum.
    """

    originals: Float64s
    offered: Float64s
    public: Float64s
    saw: str

    def figures(self) -> list[Measured]:
        """Return the share of originals recovered, their PSNR, and the share of right candidates.

        If nothing was recovered, only the share of originals is returned.
        """
        pairs = matched(self.originals, self.offered)
        cases = len(self.originals)
        guess = len(matched(self.originals, self.public)) / cases
        figures = [share("recovered", len(pairs), cases, guess=guess)]
        if len(pairs):
            errors = np.mean((self.originals[pairs[:, 0]] - self.offered[pairs[:, 1]]) ** 2, axis=1)
            figures += [
                median("PSNR of those in dB", -10 * np.log10(np.maximum(errors, 1e-15))),
                share("true of what is offered", len(pairs), len(self.offered)),
            ]
        return figures

    def picture(self, shape: Sequence[int]) -> bytes | None:
        """Return a PNG of originals above their nearest candidates.

        `shape` is the shape of an example. If examples are not images, the result is None.
        """
        if len(shape) != 3 or not len(self.offered):
            return None
        shown = self.originals[:_SHOWN]
        nearest = self.offered[np.argmin(_errors(shown, self.offered), axis=1)]
        return grid([[row.reshape(shape) for row in rows] for rows in (shown, nearest)])


def matched(originals: Float64s, offered: Float64s, decibels: float = RECOVERED_DB) -> Int64s:
    """Return a maximum matching of originals and candidates with PSNRs of at least `decibels`.

    The result, [pairs, 2], has an index into `originals` and one into `offered` for each pair.
    """
    from scipy.sparse import csr_matrix  # a tenth of a second to import
    from scipy.sparse.csgraph import maximum_bipartite_matching

    if not len(offered):
        return np.empty((0, 2), np.int64)
    near = _errors(originals, offered) <= 10 ** (-decibels / 10)
    partner = maximum_bipartite_matching(csr_matrix(near), perm_type="column")
    rows = np.flatnonzero(partner >= 0)
    return np.stack([rows, partner[rows]], axis=1).astype(np.int64)


def _errors(originals: Float64s, offered: Float64s) -> Float64s:
    squares = np.sum(originals**2, axis=1)[:, None] + np.sum(offered**2, axis=1)
    errors: Float64s = np.maximum(squares - 2 * originals @ offered.T, 0) / originals.shape[1]
    return errors


def attack(target: Target, effort: Effort, watch: Watch) -> Finding:
    """Send the cohort of one round a model that steals examples. Clients train as the job says.

    The cohort holds 200 examples in total at effort "quick", 1,000 at "standard", 4,000 at "full",
    or fewer if clients have fewer. `watch` reports the progress and saves pictures. The attacker
    knows the job and the test examples. It reads each report, or the sum if the reports reveal
    nothing.
    """
    target.needs_classes("steal")
    wanted = by_effort(effort, 200, 1_000, 4_000)
    target = with_examples(target, wanted)
    loot, trapped = steal(target, watch=watch)
    pictures = []
    if (picture := loot.picture(target.dataset.train.x.shape[1:])) is not None:
        pictures.append(watch.picture(f"steal-{target.job.protection.name}.png", picture))
    return trapped.finding("steal", effort, loot.figures(), saw=loot.saw, pictures=pictures)


def with_examples(target: Target, wanted: int) -> Target:
    """Copy the target with one cohort of clients, which hold about `wanted` examples in total."""
    cohort = target.job.clients_per_round
    each = max(1, wanted // cohort)
    held = [target.rows(client)[:each] for client in range(cohort)]
    offsets = np.cumsum([0, *map(len, held)])
    return replace(target, partition=Partition(np.concatenate(held), offsets))


def steal(
    target: Target, *, form: Form = "window", statistics: int = 3, watch: Watch | None = None
) -> tuple[StealingResult, Target]:
    """Attack one round. Returns the result, and a copy of the target with the attack's model.

    The clients get a model that begins with an `Imprint` of this `form`, which sorts examples into
    cells by statistics of their features. The first simulated round uses one statistic, the mean.
    If its reports reveal nothing, a second round uses `statistics` statistics, and enough cells for
    all examples of the cohort. The attacker then reads the sum of the reports. `watch`, if given,
    reports the progress.
    """
    watch = Watch() if watch is None else watch
    sizes = target.partition.sizes
    cells = _CELLS_A_REPORT * int(sizes.max())
    watch.step(0, 2, "a model for single reports")
    trapped, imprint, seen = _simulate_round(target, cells, 1, form)
    readings, rows = seen.readings, target.partition.indices
    saw = f"each client's report of {quantity(int(sizes.max()), 'example')}"
    if all(reading.empty for reading in readings):
        watch.step(1, 2, "a model for the sum")
        cells = cells_needed(int(sizes.sum()), statistics)
        trapped, imprint, seen = _simulate_round(target, cells, statistics, form)
        readings, rows = [seen.mean], target.rows_of(seen.asked)
        saw = f"the sum of {len(seen.asked):,} clients with {len(rows):,} examples"
    prior = PublicDistribution.of(target.dataset.test.x)
    offered = np.concatenate([examples_in(imprint, reading, prior) for reading in readings])
    watch.step(2, 2, saw)
    train = target.dataset.train.x[rows]
    public = target.dataset.test.x[: len(train)]
    return StealingResult(prior.unit(train), prior.unit(offered), prior.unit(public), saw), trapped


def _simulate_round(
    target: Target, cells: int, statistics: int, form: Form
) -> tuple[Target, Imprint, Seen]:
    """Simulate a round in which clients train a model that begins with an imprint.

    `cells`, `statistics` and `form` are the arguments of `Imprint.of`. Returns the target with this
    model, the imprint, and the server's view of the round. Raises `AttackImpossible` unless the
    optimiser is SGD.
    """
    if target.job.training.optimizer != "sgd":
        raise AttackImpossible(
            f"training.optimizer = {target.job.training.optimizer}: a report holds examples where "
            f"clients step by their gradient, which is sgd"
        )
    rng = Seeded(target.job.seed, "attack", "imprint").generator()
    imprint = Imprint.of(target.dataset.test.x, cells, statistics, form, rng)
    batch = min(target.job.training.batch_size, int(target.partition.sizes.max()))
    # a row of the form "relu" responds to many examples
    loud = batch if form == "window" else math.sqrt(batch)
    model = imprint.model(target.dataset.classes, loud / target.job.training.lr)
    trapped = replace(target, model=model)
    clients = range(target.partition.clients)
    return trapped, imprint, trapped.server_view(trapped.updates(clients))
