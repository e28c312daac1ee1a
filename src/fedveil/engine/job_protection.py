"""Makes a job's protection and its randomness. This module imports no torch."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fedveil.base.own_code import is_function, own_code_errors
from fedveil.entropy import Entropy, Secure, Seeded
from fedveil.errors import InvalidValue, ModelInvalid
from fedveil.federated.job import Job
from fedveil.protections.base import BY_SIZE, TIMING, JobContext, Protection
from fedveil.protections.catalog import build
from fedveil.protections.robust_combining import CombiningRule
from fedveil.rounds.outcomes import ClientId
from fedveil.secagg.secret import Secret

if TYPE_CHECKING:
    from fedveil.learning.weight_layout import Layout


@dataclass(frozen=True)
class Deployed:
    """The keys of a deployed job. A simulation derives keys from the seed instead.

    `roster` maps every client to its public signing key. `identity` is this client's private key.
    """

    roster: Mapping[ClientId, bytes] = field(default_factory=dict)
    identity: Secret | None = None


def job_digest(job: Job) -> bytes:
    """Return a digest of the whole job, which ties messages, keys and folders to this job."""
    return hashlib.sha256(job.model_dump_json().encode()).digest()


def make_protection(job: Job, dimension: int, deployed: Deployed | None = None) -> Protection:
    """Return the job's protection for updates of `dimension` entries.

    Without `deployed`, its keys are derived from the job's seed, for a simulation.
    """
    outside = Deployed() if deployed is None else deployed
    context = JobContext(
        weighting=job.server.weighting,
        dimension=dimension,
        clients_per_round=job.clients_per_round + job.audit.canaries,
        rounds=job.rounds,
        simulated=deployed is None,
        job=job_digest(job),
        seed=job.seed,
        seeded=job.privacy.randomness == "seeded",
        delta=job.privacy.delta,
        poisson=job.clients.sampling == "poisson",
        roster=outside.roster,
        identity=outside.identity,
        masks=job.simulation.masks or deployed is not None,
        unit=job.privacy.unit,
        sampling_rate=job.training.sampling_rate or 1.0,
        turn_rate=job.clients.fraction if job.secret_turns else 1.0,
        combining=CombiningRule(job.server.aggregation, job.server.trim, job.server.norm_bound),
    )
    name = job.protection.name
    if not is_function(name):
        return build(name, job.protection.settings, context)
    with own_code_errors(f"protection.name = {name}", InvalidValue, "the class"):
        return build(name, job.protection.settings, context)


def whose(job: Job, client: str) -> str:
    """Return the words for the data that the job's epsilon covers: a client, or one example.

    `client` is a phrase for the client, such as "a client". Returns it unchanged or, under
    `privacy.unit: example`, with "one example of" before it.
    """
    return f"one example of {client}" if job.privacy.unit == "example" else client


#: The value that a deployed client sends when it introduces itself, if the job asks for it.
REVEALED = "the number of a client's examples (deployment.reveal = examples)"


def in_clear(job: Job, protection: Protection, *, leaves: bool) -> list[str]:
    """Return descriptions of the values that a job's clients send without noise, for the ledger.

    `leaves` is True in a deployment, where reports leave the client's machine.
    """
    said = [BY_SIZE] if job.server.weighting == "by_size" else []
    if job.evaluation.clients:
        said.append("metrics on the clients' own examples (evaluation.clients)")
    if job.clients.own_layers and not leaves:
        said.append("metrics with the clients' own layers (clients.own_layers)")
    if leaves and job.deployment.reveal:
        said.append(REVEALED)
    if leaves and protection.always_reports and job.deployment.answer_after_s is None:
        said.append(TIMING)
    return said


def report_entropy(job: Job) -> Entropy:
    """Return the randomness of reports: seeded by the job, or the operating system's."""
    return Secure() if job.privacy.randomness == "secure" else Seeded(job.seed, "reports")


def training_entropy(job: Job) -> Entropy:
    """Return the randomness of training, which comes from the job's seed.

    Under `privacy.unit: example`, it comes from the randomness of reports instead, because the
    drawn batches must stay secret.
    """
    if job.privacy.unit == "example":
        return report_entropy(job).stream("training")
    return Seeded(job.seed, "training")


def check_buffers(job: Job, layout: Layout) -> None:
    """Raise `ModelInvalid` if noise or canaries would change a buffer, such as BatchNorm's."""
    buffers = [entry.name for entry in layout.entries if entry.fate == "buffer"]
    if buffers and job.audit.canaries:
        raise ModelInvalid(
            f"audit.canaries = {job.audit.canaries}: canaries change every averaged tensor, which "
            f"breaks the buffers {', '.join(buffers)}. Use a model without them"
        )
    if buffers and job.protection.noised:
        raise ModelInvalid(
            f"protection.name = {job.protection.name} adds noise to every averaged tensor, which "
            f"breaks the buffers {', '.join(buffers)}. Use a model without them, for example with "
            f"GroupNorm instead of BatchNorm. A buffer of your own keeps the server's value if you "
            f"register it with persistent=False"
        )
