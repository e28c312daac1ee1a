"""Draws the clients that take part in each round."""

from __future__ import annotations

from fedveil.entropy import Secure, Seeded
from fedveil.federated.job import Job
from fedveil.rounds.outcomes import ClientId


class Cohorts:
    """Chooses each round's clients, for a job with a known number of clients.

    `clients.sampling: fixed` draws the same number of clients in every round from the job's seed.
    Anyone who has the job can repeat that draw. `poisson` draws each client independently with
    probability `clients.fraction`, in secret. This draw uses the system's randomness, so a
    restarted round has another cohort. If reports are seeded, the draw uses the job's seed instead.
    If each client decides in secret whether it takes part, all clients are asked in every round.
    """

    def __init__(self, job: Job) -> None:
        self._job = job

    def draw(self, round: int) -> list[ClientId]:
        job, number = self._job, self._number
        if job.secret_turns:
            return list(range(number))
        if job.clients.sampling == "poisson":
            known = job.privacy.randomness == "seeded"
            entropy = Seeded(job.seed, "poisson cohort", round) if known else Secure()
            taken = entropy.bernoulli(job.clients.fraction, number)
            return [client for client in range(number) if taken[client]]
        drawn = Seeded(job.seed, "cohort", round).permutation(number)
        return sorted(map(int, drawn[: job.clients_per_round]))

    def begun(self, round: int) -> list[ClientId]:
        """Return the clients that the interrupted round `round` may have asked for a report.

        Under `clients.sampling: poisson` these are all clients: the secret draw cannot be repeated.
        """
        if self._job.clients.sampling == "poisson":
            return list(range(self._number))
        return self.draw(round)

    def until(self, round: int) -> list[ClientId] | None:
        """Return the clients of the first `round` rounds, or None if their draw was secret."""
        known = self._job.privacy.randomness == "seeded" or self._job.secret_turns
        if self._job.clients.sampling == "poisson" and not known:
            return None
        return sorted({client for one in range(1, round + 1) for client in self.draw(one)})

    @property
    def _number(self) -> int:
        assert self._job.clients.number is not None  # the engine has set it
        return self._job.clients.number
