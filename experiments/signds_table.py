"""The worked example of SignDS: three clients, eight dimensions, three of them selected."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from experiments.experiment import Experiment, Outcome, Scale, Tell, Verdict
from fedveil.base.array_types import Float64s, Int64s
from fedveil.entropy import Seeded
from fedveil.mechanisms.signds.dimension_selection import SignDS
from fedveil.mechanisms.signds.index_code import encode_indices
from fedveil.mechanisms.signds.step_estimate import MagnitudeEstimator
from fedveil.pages.plot import Axis, Curve, Plot
from fedveil.pages.table import Table
from fedveil.protections.base import JobContext, RoundContext
from fedveil.protections.signds import SignDSProtection, SignDSSettings

UPDATES = np.array(
    [
        [0.4, 0.1, -0.2, 0.3, 0.5, 0.1, -0.2, -0.3],
        [0.5, 0.2, 0, 0.1, 0.3, 0.2, -0.1, -0.2],
        [0.3, 0.1, -0.1, 0.5, 0.2, 0.3, 0, 0.1],
    ],
    np.float32,
)
#: As printed: the mean update, each client's report (dimensions counted from 1), and the result.
MEAN = (0.4, 0.13, -0.1, 0.3, 0.33, 0.2, -0.1, -0.13)
SENT = (((1, 5, 8), 1), ((2, 3, 4), -1), ((3, 6, 7), 1))
RESULT = (1 / 3, -1 / 3, 0, -1 / 3, 1 / 3, 1 / 3, 1 / 3, 1 / 3)
CLIENTS, DIMENSIONS = UPDATES.shape
#: The largest top-k set that the source allows, and its epsilon.
K, EPS = 0.25, 100.0
#: A printed report with at most this probability is no plausible draw of the mechanism.
_RARE = 1e-9
_SIGNS = {1: "largest", -1: "smallest"}


class SignDSTable(Experiment):
    """Every step of the example, through the code that a job uses."""

    name = "signds-table"
    what = "The worked example of three clients and eight dimensions, step by step."
    source = "000, the tables of SignDS and MagRR"

    def estimate_s(self, scale: Scale) -> float:
        """Estimate the seconds of the rounds, in which nothing is trained."""
        return {"small": 8, "full": 20}[scale]

    def run(self, folder: Path, scale: Scale, tell: Tell) -> Outcome:
        """Repeat the printed example, and many rounds of the mechanism on its updates."""
        rounds = {"small": 2_000, "full": 20_000}[scale]
        mechanism = SignDS(K, EPS, dim_out=len(SENT[0][0]))
        drawn = _drawn(mechanism, rounds)
        shares = _told(mechanism)
        ran = (
            f"The source prints the updates, the reports and the step of one round, which are "
            f"repeated here. Then the mechanism itself draws the reports of {rounds:,} rounds. The "
            f"source does not say which k the example uses. Here it is the largest one allowed, "
            f"{K}, which makes a top-k set of {mechanism.plan(DIMENSIONS).topk}, and epsilon is "
            f"the default, {EPS:g}. The scales differ only in the number of rounds."
        )
        tables = [shares, _dimensions(drawn)]
        return Outcome(ran, _verdicts(mechanism), tables, [_plot(drawn, rounds)], seeds=0)


def aggregate() -> Float64s:
    """Aggregate the printed reports at the printed step, 2 * r_est * clients = 1."""
    return _aggregate([(np.array(sent) - 1, sign) for sent, sign in SENT], 1.0)


def _aggregate(reports: Sequence[tuple[Int64s, int]], step: float) -> Float64s:
    settings = SignDSSettings(
        sign_k=K, sign_dim_out=len(SENT[0][0]), sign_global_lr=step, magnitude="fixed"
    )
    protection = SignDSProtection(settings, JobContext("equal", DIMENSIONS, CLIENTS, 1))
    cohort = range(CLIENTS)
    server = protection.server_round(RoundContext(cohort, 1, np.zeros(DIMENSIONS, np.float32)))
    for client, (indices, sign) in enumerate(reports):
        code = encode_indices(indices, DIMENSIONS)
        server.receive(client, {"round": 1, "sign": sign, "indices": code})
    server.advance()
    return server.aggregate().update


def _drawn(mechanism: SignDS, rounds: int) -> Float64s:
    """Return the mean aggregate of `rounds` rounds, at the printed step."""
    mean = np.zeros(DIMENSIONS)
    for number in range(rounds):
        entropy = Seeded(0, "signds-table", number)
        for client, update in enumerate(UPDATES):
            selection = mechanism.select(update, entropy.stream(client))
            mean[selection.indices] += selection.sign
    mean /= rounds * CLIENTS
    return mean


def likelihoods(mechanism: SignDS) -> list[float]:
    """Return ln of the probability of each printed report."""
    return [
        mechanism.log_probability(np.array(sent) - 1, sign, update).log_probability
        for (sent, sign), update in zip(SENT, UPDATES, strict=True)
    ]


def _told(mechanism: SignDS) -> Table:
    rows = []
    topk = mechanism.plan(DIMENSIONS).topk
    for client, ((sent, sign), update) in enumerate(zip(SENT, UPDATES, strict=True)):
        top = np.argsort(-sign * update, kind="stable")[:topk] + 1
        inside = len({*sent} & {*map(int, top)})
        log_p = likelihoods(mechanism)[client]
        rows.append(
            (str(client + 1), f"{sign:+d}", ", ".join(map(str, sent)),
             f"{', '.join(map(str, sorted(map(int, top))))} ({_SIGNS[sign]})", str(inside),
             f"{math.exp(log_p):.2g}")
        )  # fmt: skip
    columns = ("client", "sign", "sent", "its top-k set", "sent of it", "probability")
    return Table(columns, rows, "The probability of each printed report under the mechanism.")


def _dimensions(drawn: Float64s) -> Table:
    columns = ("", *(f"d_{i + 1}" for i in range(DIMENSIONS)))
    rows = [
        ("mean update", *(f"{x:.3f}" for x in UPDATES.mean(axis=0))),
        ("aggregate of the printed reports", *(f"{x:.3f}" for x in aggregate())),
        ("mean aggregate of drawn reports", *(f"{x:.3f}" for x in drawn)),
    ]
    return Table(columns, rows, "The results by dimension.")


def _verdicts(mechanism: SignDS) -> list[Verdict]:
    mean, ours = UPDATES.mean(axis=0, dtype=np.float64), aggregate()
    off = float(np.abs(mean - MEAN).max())
    far = float(np.abs(ours - RESULT).max())
    estimate = 1 / (2 * CLIENTS)
    step = MagnitudeEstimator(estimate).global_step(1.0, CLIENTS, CLIENTS)
    rarest = math.exp(min(likelihoods(mechanism)))
    plan = mechanism.plan(DIMENSIONS)
    return [
        Verdict.of(
            off <= 0.005, "mean of the three updates", _row(MEAN), _row(mean),
            held_to="at most 0.005 apart",
            same="equal in the two decimal places that are printed",
            other=f"they are up to {off:.2g} apart",
        ),
        Verdict.of(
            abs(step - 1) < 1e-12, "step 2 · r_est · clients at r_est = 1/6", "1", f"{step:g}",
            held_to="at most 1e-12 apart",
            same="the step estimate gives this step", other="the step differs",
        ),
        Verdict.of(
            far < 1e-12, "aggregate of the printed reports", _row(RESULT), _row(ours),
            held_to="at most 1e-12 apart",
            same="the server's half of a round gives this result",
            other=f"they are up to {far:.2g} apart",
        ),
        Verdict.of(
            rarest > _RARE, "the printed reports are likely draws of the mechanism", "yes",
            f"the least likely one has probability {rarest:.2g}",
            held_to=f"each has a probability above {_RARE:g}",
            same="a client may well send each of them",
            other=f"a report with fewer than {plan.threshold} dimensions of the top-k set is e^"
            f"{EPS:g} times less likely: the example shows the form of reports, not likely ones",
        ),
    ]  # fmt: skip


def _row(values: object) -> str:
    return ", ".join(f"{x:.2f}" for x in np.asarray(values, np.float64) + 0.0)


def _plot(drawn: Float64s, rounds: int) -> Plot:
    x = [float(i + 1) for i in range(DIMENSIONS)]
    curves = [
        Curve("mean update", x, [*map(float, UPDATES.mean(axis=0))], marks=True),
        Curve("aggregate of the printed reports", x, [*RESULT], marks=True, dashed=True),
        Curve(f"mean aggregate, {rounds:,} rounds", x, [*map(float, drawn)], marks=True),
    ]
    return Plot(
        "dimensions", "Three clients, eight dimensions", Axis("dimension"),
        Axis("update, or aggregate at step 1"), curves,
        "One round's aggregate is coarse. Over many rounds, its largest entries are those of the "
        "mean update.",
    )  # fmt: skip
