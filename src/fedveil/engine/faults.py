"""Simulated failures: clients that drop out, and clients that answer too late.

Nothing really waits. The job's fault plan decides which clients drop out, and answer times are
drawn from the seed. A late report is not in the sum, but it has left its client.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from fedveil.base.message import Message
from fedveil.engine.executors.executor import Executor
from fedveil.entropy import Entropy, Seeded
from fedveil.federated.job import Job
from fedveil.protections.base import Protection, RoundContext
from fedveil.protections.catalog import fault_phases
from fedveil.rounds.loop import MergeableHalf
from fedveil.rounds.outcomes import Answer, ClientId, Unreached


class Faulty(Executor):
    """Wraps `executor`, and lets some clients drop out or answer too late.

    A client fails from one phase of a round on. `executor` then gets none of its messages. If the
    client has dropped out, `Unreached` is yielded for it. If it is late, nothing is yielded.
    """

    def __init__(self, executor: Executor, job: Job, protection: Protection) -> None:
        self._executor = executor
        self.beside_server = executor.beside_server
        self._job = job
        self._protection = protection
        self._silent: Mapping[ClientId, str] = {}
        self._late: Mapping[ClientId, str] = {}

    def open(self, context: RoundContext) -> None:
        faults, times = (
            Seeded(self._job.seed, name, context.round) for name in ("dropouts", "answer times")
        )
        self._silent = silent_clients(
            context.cohort,
            self._job.simulation.dropouts,
            fault_phases(type(self._protection)),
            faults,
        )
        self._late = self._late_in(context.cohort, times)
        self._executor.open(context)

    def ask(self, phase: str, messages: Mapping[ClientId, Message]) -> Iterator[Answer]:
        yield from self._unreached(phase, messages)
        yield from self._executor.ask(phase, self._heard(phase, messages))

    def fold(
        self, phase: str, messages: Mapping[ClientId, Message], server: MergeableHalf
    ) -> Iterator[Answer]:
        yield from self._unreached(phase, messages)
        yield from self._executor.fold(phase, self._heard(phase, messages), server)

    def shown(self) -> dict[str, Any]:
        return self._executor.shown()

    def close(self) -> None:
        self._executor.close()

    def _late_in(self, cohort: Sequence[ClientId], times: Entropy) -> dict[ClientId, str]:
        window_s, settings = self._protection.deadline_s, self._job.simulation
        if window_s is None or not settings.answer_ms:
            return {}
        return late_clients(
            cohort,
            self._protection.flow,
            1000 * window_s,
            settings.answer_ms,
            settings.answer_spread,
            times,
        )

    def _unreached(self, phase: str, messages: Mapping[ClientId, Message]) -> Iterator[Answer]:
        for client in messages:
            if self._missing(client, phase, self._silent):
                yield Unreached(client)

    def _heard(
        self, phase: str, messages: Mapping[ClientId, Message]
    ) -> Mapping[ClientId, Message]:
        return {
            client: message
            for client, message in messages.items()
            if not self._missing(client, phase, self._silent)
            and not self._missing(client, phase, self._late)
        }

    def _missing(self, client: ClientId, phase: str, missing: Mapping[ClientId, str]) -> bool:
        phases = self._protection.phases
        return client in missing and phases.index(missing[client]) <= phases.index(phase)


def silent_clients(
    cohort: Sequence[ClientId],
    shares: Mapping[str, float],
    phases: Mapping[str, str | None],
    entropy: Entropy,
) -> dict[ClientId, str]:
    """Draw the clients that drop out. Returns each with the first phase that it does not answer.

    `shares` is the job's fault plan (`simulation.dropouts`): it maps phase names to fractions of
    the cohort. A name in it may be a phase of a different protection. So `phases`, the result of
    `fault_phases`, maps each name to a phase of the run's protection, in which the drawn clients
    drop out. If a name is mapped to None, its clients do not drop out.
    """
    order = iter(entropy.permutation(len(cohort)))
    plan: dict[ClientId, str] = {}
    for name, phase in phases.items():
        for place in islice(order, round(shares.get(name, 0.0) * len(cohort))):
            if phase is not None:
                plan[cohort[place]] = phase
    return plan


def late_clients(
    cohort: Sequence[ClientId],
    phases: Sequence[str],
    window_ms: float,
    median_ms: float,
    spread: float,
    entropy: Entropy,
) -> dict[ClientId, str]:
    """Return the clients that answer too late, each with the first phase in which it does.

    An answer is too late if it takes longer than `window_ms`. Its time, in milliseconds, is
    median_ms * e^(spread * z), with z standard normal, drawn with `entropy`.
    """
    z = entropy.generator().standard_normal((len(cohort), len(phases)))
    with np.errstate(over="ignore"):  # an infinite time is late as well
        late = median_ms * np.exp(spread * z) > window_ms
    return {
        client: phases[int(missed.argmax())]
        for client, missed in zip(cohort, late, strict=True)
        if missed.any()
    }
