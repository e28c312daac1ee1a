"""The simulator's clock: how long clients would take to answer, and who misses a deadline.

Nothing waits. Every client takes a time for every phase that the seed decides, and a client whose
time is beyond the phase's window has dropped out, as it would have on a real network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fedveil.engine.round_loop import PHASES, Phase, silent_clients
from fedveil.entropy import Entropy
from fedveil.federated.job import Job
from fedveil.protections.base import ClientId


def late_clients(
    cohort: Sequence[ClientId],
    phases: Sequence[Phase],
    window_ms: float,
    median_ms: float,
    spread: float,
    entropy: Entropy,
) -> dict[ClientId, Phase]:
    """Who misses the window of a phase, and the first one missed.

    A client's time for a phase is median_ms * e^(spread * z), z standard normal: half of the
    clients are faster than the median, and a spread of 1 makes one in fifty eight times slower.
    """
    z = entropy.generator().standard_normal((len(cohort), len(phases)))
    with np.errstate(over="ignore"):  # infinitely late is late
        late = median_ms * np.exp(spread * z) > window_ms
    return {
        client: phases[int(missed.argmax())]
        for client, missed in zip(cohort, late, strict=True)
        if missed.any()
    }


def silent_in(
    job: Job, cohort: Sequence[ClientId], faults: Entropy, times: Entropy
) -> dict[ClientId, str]:
    """Who falls silent in a round, and from which phase on: by the fault plan, or by being late.

    Only `pw_encrypt` has deadlines: its `cipher_time_window`, for each phase.
    """
    silent = silent_clients(cohort, job.simulation.dropouts, faults)
    settings = job.protection.pw_encrypt
    if job.protection.name != "pw_encrypt" or not job.simulation.answer_ms:
        return {**silent}
    phases = [p for p in PHASES if p != "consistency" or settings.active_security]
    window, median = settings.cipher_time_window, job.simulation.answer_ms
    late = late_clients(cohort, phases, window, median, job.simulation.answer_spread, times)
    return _earliest(silent, late)


def _earliest(
    one: Mapping[ClientId, Phase], other: Mapping[ClientId, Phase]
) -> dict[ClientId, str]:
    joined: dict[ClientId, str] = {**one}
    for client, phase in other.items():
        joined[client] = min(phase, one.get(client, phase), key=PHASES.index)
    return joined
