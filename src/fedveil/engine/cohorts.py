"""Which clients take part in which round."""

from __future__ import annotations

from fedveil.entropy import Secure, Seeded
from fedveil.federated.job import Job
from fedveil.rounds.outcomes import ClientId


class Cohorts:
    """The draws of a job whose number of clients is settled.

    `clients.sampling: fixed` draws as many in every round, from the job's seed, which all who have
    the job can repeat. `poisson` draws each client independently with probability
    `clients.fraction`, and in secret: from the seed where reports are seeded too, else from the
    system's randomness, so that a round that is begun again has other clients. Where clients draw
    their own turns, all are in every cohort.
    """

    def __init__(self, job: Job) -> None:
        self._job = job

    def draw(self, round: int) -> list[ClientId]:
        """The cohort of a round, in order."""
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
        """All who may have been asked in a round of which no more is known than its number."""
        if self._job.clients.sampling == "poisson":
            return list(range(self._number))
        return self.draw(round)

    @property
    def _number(self) -> int:
        assert self._job.clients.number is not None  # the engine has settled it
        return self._job.clients.number
