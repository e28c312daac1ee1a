"""Advice after a run without a meaningful guarantee: the best protection for its job."""

from __future__ import annotations

import math
from collections.abc import Callable

from fedveil.base.example_arrays import Shape
from fedveil.base.quantity import quantity
from fedveil.engine.assembly import refusal_of_examples
from fedveil.engine.candidates import Candidate, candidates, of_examples
from fedveil.engine.known_accuracy import measured
from fedveil.federated.job import Job
from fedveil.learning.weight_layout import Layout
from fedveil.privacy.guarantee_strength import Figure
from fedveil.record.recorder import ADVICE
from fedveil.record.run_folder import JOB

#: The epsilon of the whole run at which the advice aims.
TARGET = 2.0
#: The longest noise, as a multiple of the mean update, that leaves a useful model. On the digits
#: job with fewer clients than its 1,438, a multiple of 4.4 left an accuracy of 86.9%, and a
#: multiple of 12 left 67.7%.
MOST_NOISE = 10.0


def advise(
    event: Callable[[str], None],
    job: Job,
    layout: Layout,
    promised: Figure,
    examples: int,
    shape: Shape,
) -> None:
    advice = next_protection(job, layout, promised, examples, shape)
    if advice is not None:
        event(f"{ADVICE}{advice}")


def next_protection(
    job: Job, layout: Layout, promised: Figure, examples: int, shape: Shape = ()
) -> str | None:
    """Return advice on a better protection, or None if the guarantee `promised` is enough.

    The advice is a short phrase, a colon and a sentence. `examples` is the number of all clients'
    training examples, and `shape` is the shape of one example. Also returns None if no protection
    can be advised.
    """
    if promised.promise in ("strong", "meaningful"):
        return None
    if any(entry.fate == "buffer" for entry in layout.entries):
        return None
    dimension = layout.dimension * job.training.reported_vectors
    found = list(candidates(job, dimension, TARGET))
    if not found:
        return None
    best = min(found, key=lambda one: _rank(one, examples))
    if _noise(best, examples) <= MOST_NOISE:
        known = job.protection.name == best.name
        short = f"lower its epsilon to {TARGET:g}" if known else f"protect it with {best.name}"
        return f"{short}: {_costs(best, examples)}{_known(best)}"
    hidden = (
        f"with {quantity(best.job.clients_per_round, 'client')} in a round, the noise of epsilon "
        f"{TARGET:g} "
        f"is at least {_times(best, examples)} times as long as the mean update under {best.name}"
    )
    changes = of_examples(job)
    others: list[Candidate] = []
    if job.privacy.unit == "client" and refusal_of_examples(job, shape) is None:
        others += candidates(job, dimension, TARGET, ["distributed_dp"], changes)
    if others and _noise(others[0], examples) <= MOST_NOISE:
        return (
            f"protect each example instead of each client: {hidden}. Per example, "
            f"{_costs(others[0], examples)}{_new_rate(job)}"
        )
    helps = [f"at least {quantity(_needed(best, examples), 'client')} in a round"]
    if others and math.isfinite(_noise(others[0], examples)):
        still = f"which still has {_times(others[0], examples)} times"
        helps.append(f"`privacy.unit: example`, {still}")
    small = ", such as `model: filters_linear` for images" if job.task == "classification" else ""
    return (
        f"too few clients for a meaningful promise: {hidden}. These help: {', '.join(helps)}, "
        f"and a model with fewer trained weights{small}"
    )


def _new_rate(job: Job) -> str:
    used = job.training.optimizer
    if used == "sgd":
        return ""
    return f"; a round is one step of plain SGD then, which needs a larger training.lr than {used}"


def _rank(candidate: Candidate, examples: int) -> tuple[bool, bool, float]:
    noise = _noise(candidate, examples)
    return noise > MOST_NOISE, candidate.trusts_server, noise


def _noise(candidate: Candidate, examples: int) -> float:
    noise = candidate.noise(examples)
    return math.inf if noise is None else noise


def _times(candidate: Candidate, examples: int) -> str:
    noise = _noise(candidate, examples)
    return f"{noise:.1f}" if noise < 10 else f"{noise:,.0f}"


def _costs(candidate: Candidate, examples: int) -> str:
    command = candidate.command(f"fedveil run {JOB}")
    return (
        f"`{command}` costs {candidate.figure}, against {candidate.against}; its noise is "
        f"{_times(candidate, examples)} times as long as the longest possible mean update"
    )


def _known(candidate: Candidate) -> str:
    rows = [row for row in measured(candidate.job) if row.epsilon <= TARGET]
    return f"; {rows[-1]}" if rows else ""


def _needed(candidate: Candidate, examples: int) -> int:
    """Return how many clients a round needs for `candidate.noise` to be at most `MOST_NOISE`.

    `candidate.noise` is the size of the noise divided by the largest possible mean update.
    `examples` is the number of all clients' training examples.
    """
    more = _noise(candidate, examples) / MOST_NOISE
    power = 2 if candidate.protection.gaussian_noise == "report" else 1
    return math.ceil(candidate.job.clients_per_round * more**power)
