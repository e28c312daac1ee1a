"""Finds the protections with which a job's whole run can meet a target epsilon."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from pydantic import ValidationError

from fedveil.engine.job_protection import make_protection
from fedveil.engine.target_epsilon import solve, whole_run
from fedveil.errors import InvalidValue, JobError
from fedveil.federated.job import Job
from fedveil.federated.rules import ONE_STEP
from fedveil.privacy.guarantee_strength import Figure
from fedveil.privacy.loss import exactly
from fedveil.protections.base import Protection
from fedveil.protections.switching import switched
from fedveil.settings.allowed import shown

#: Errors that say that a job's keys rule out a protection or its target epsilon.
RULED_OUT = (JobError, InvalidValue, ValidationError)
#: Protections with Gaussian noise. The search for their noise takes milliseconds. At equal noise,
#: the first is the best.
GAUSSIAN = ("distributed_dp", "dp_encrypt", "pw_encrypt", "central_gaussian")
#: Protections without Gaussian noise. The search for `rr` and `oue` takes seconds.
OTHERS = ("signds", "rr", "oue")
_OF_EXAMPLES = ("privacy.unit=example", "training.sampling_rate=0.5", "training.epochs=1")
#: Further keys of training that `unit: example` fixes, which most jobs need not change.
_FIXED = {"nesterov": False} | {key: to for key, to in ONE_STEP.items() if key != "epochs"}


@dataclass(frozen=True)
class Candidate:
    """A job under one protection, whose noise is chosen so that the run meets a target epsilon.

    `settings` are texts such as "rounds=7", which turn the original job into this one.
    """

    settings: tuple[str, ...]
    job: Job
    protection: Protection

    @property
    def name(self) -> str:
        return self.job.protection.name

    @property
    def figure(self) -> Figure:
        return whole_run(self.protection, self.job.rounds, self.job.privacy.delta)

    @property
    def trusts_server(self) -> bool:
        """True if the guarantee holds only while the server is trusted."""
        return self.protection.rests_on_server(self.protection.settings)

    @property
    def against(self) -> str:
        """The attackers against whom the guarantee holds, in words."""
        return self.protection.against(self.protection.settings)

    def command(self, start: str) -> str:
        """Return `start`, such as "fedveil run job.yaml", followed by a `--set` per setting."""
        return " ".join([start, *(f"--set {setting}" for setting in self.settings)])

    def noise(self, examples: int) -> float | None:
        """Return the length of the noise in a round's sum, relative to the sum's largest length.

        The noise has length 2 * clip * r * sqrt(k * d). The sum has at most length n * clip.

        - r is the noise ratio: standard deviation over sensitivity 2 * clip.
        - k is the number of reports if each has its own noise. Otherwise it is 1.
        - d is the number of entries of an update.
        - n is the expected number of summed updates, or of summed gradients of examples under
          `privacy.unit: example`.

        `examples` is the number of examples of all clients together. Returns None if the noise is
        not Gaussian, or if n is 0.
        """
        protection, job = self.protection, self.job
        release = protection.spending(protection.initial_state())[0].loss.release
        ratio = getattr(release, "ratio", None)
        if protection.gaussian_noise is None or ratio is None:
            return None
        summed: float = job.clients_per_round
        if job.secret_turns:
            summed *= job.clients.fraction
        if job.privacy.unit == "example":
            summed = (job.training.sampling_rate or 1.0) * examples * job.clients.fraction
        if not summed:
            return None
        noises = job.clients_per_round if protection.gaussian_noise == "report" else 1
        return float(2 * ratio * math.sqrt(noises * protection.dimension) / summed)


def candidates(
    job: Job,
    dimension: int,
    target: float,
    names: Sequence[str] = GAUSSIAN,
    changes: Sequence[str] = (),
) -> Iterator[Candidate]:
    """Yield a `Candidate` for each protection of `names` that can meet epsilon `target`.

    `dimension` is the number of entries of an update. `changes` are settings such as "rounds=7"
    that are also applied to the job. Protections that the job's other keys rule out are left out.
    """
    for name in names:
        with suppress(*RULED_OUT):
            yield candidate(job, dimension, target, name, changes)


def candidate(
    job: Job, dimension: int, target: float, name: str, changes: Sequence[str] = ()
) -> Candidate:
    """Return the `Candidate` for the protection `name`, whose whole run meets epsilon `target`.

    `dimension` is the number of entries of an update. `changes` are settings such as "rounds=7"
    that are also applied to the job. Raises one of `RULED_OUT` if the job's other keys rule out the
    protection.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about a job that nobody has chosen yet
        return _solved(job, name, dimension, target, changes)


def of_examples(job: Job) -> list[str]:
    """Return the settings that make `job` protect single examples instead of whole clients."""
    changed = {key: to for key, to in _FIXED.items() if getattr(job.training, key) != to}
    undone = (
        f"training.{key}={to if isinstance(to, str) else shown(to)}" for key, to in changed.items()
    )
    return [*_OF_EXAMPLES, *undone]


def _solved(
    job: Job, name: str, dimension: int, target: float, changes: Sequence[str]
) -> Candidate:
    data = job.model_dump()
    settings = [*switched(data, name), *changes]
    changed = Job.read(data, settings)
    position = changed.protection.position
    block = f"protection.{position.block}"
    key = position.cost_key(changed.protection.settings)
    if key is not None and "target_epsilon" in key.instead:  # the protection computes its noise
        own = changed.protection.settings.model_dump()
        noise = [f"{block}.{key.parameter}=null"] if own[key.parameter] is not None else []
        found = [*noise, f"{block}.target_epsilon={exactly(target)}"]
    else:
        solved = solve(changed, make_protection(changed, dimension), target)
        found = [f"{k}={'null' if v is None else v}" for k, v in solved.keys.items()]
    final = Job.read(data, [*settings, *found])
    return Candidate((*settings, *found), final, make_protection(final, dimension))
