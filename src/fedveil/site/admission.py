"""Checks a job against a site's policy, and gives every reason why the job may not run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fedveil.base.own_code import is_function
from fedveil.errors import SiteRefused
from fedveil.federated.job import Job
from fedveil.protections.base import Protection
from fedveil.protections.directions import weakened
from fedveil.protections.secure_sum_settings import SecureSumSettings
from fedveil.settings.differences import differences
from fedveil.site import isolation
from fedveil.site.code_folder import Module, read, top
from fedveil.site.order import Order
from fedveil.site.policy import Policy
from fedveil.site.policy_blocks import DataSetSettings


@dataclass(frozen=True)
class Admission:
    """Checks jobs against a site's policy. `template` is the job that `jobs.template` names."""

    policy: Policy
    folder: Path
    template: Job | None

    @classmethod
    def of(cls, policy: Policy, folder: Path) -> Admission:
        """Return the checks of `policy`. Loads the template job that the policy names, if any.

        `folder` is the site's folder. The template gets secure randomness, because `fedveil deploy`
        gives it to every job. Raises `JobError` if the template is invalid.
        """
        if (file := policy.jobs.template) is None:
            return cls(policy, folder, None)
        template = Job.load(folder / file)
        return cls(policy, folder, template.with_({"privacy.randomness": "secure"}))

    def data_set(self, job: Job) -> tuple[str, DataSetSettings] | None:
        """Return the policy's name and settings for the job's data set, or None if unlisted."""
        sets = self.policy.data.items()
        return next(((name, block) for name, block in sets if block.named == job.data.name), None)

    def reasons(self, order: Order) -> Iterator[str]:
        """Yield every reason why the policy refuses a job. Without a reason, the job may run."""
        yield from self._who(order)
        yield from self._strength(order.job)
        yield from self._clear(order.job)
        yield from self._code(order)
        yield from self._data(order.job)

    def _who(self, order: Order) -> Iterator[str]:
        policy, jobs, signer = self.policy, self.policy.jobs, order.signer(self.policy.people)
        if policy.starters and signer not in policy.starters:
            yield f"none of starters ({', '.join(policy.starters)}) has signed the job"
        if order.digest.hex() in jobs.digests or (signer is not None and signer in jobs.signed_by):
            return
        if self.template is None:
            yield "the job is neither in jobs.digests nor signed by one of jobs.signed_by"
            return
        free = [f"{key}." for key in jobs.may_differ]
        changed = differences(order.job.model_dump(), self.template.model_dump(), exact=True)
        for key, theirs, mine in changed:
            if not any(f"{key}.".startswith(prefix) for prefix in free):
                yield f"{key} is {theirs}, but {mine} in the template {jobs.template}"
            elif key == "model" and order.job.has_language_model:
                yield (
                    f"model is {theirs}, but {mine} in the template {jobs.template}, and a job "
                    f"cannot choose a folder of this machine. Add the job to jobs.digests"
                )

    def _strength(self, job: Job) -> Iterator[str]:
        least, name = self.policy.strength, job.protection.name
        if name not in self.policy.protections:
            allowed = ", ".join(self.policy.protections)
            yield f"protection.name is {name}, but the policy allows only {allowed}"
            return
        if job.privacy.randomness != "secure":
            yield "privacy.randomness is seeded: the server could compute the noise. Use secure"
        if least.unit == "client" and job.privacy.unit != "client":
            yield f"privacy.unit is {job.privacy.unit}, but the policy demands client"
        asked = job.protection.settings
        if isinstance(asked, SecureSumSettings):
            yield from weak_sum(self.policy, job.protection.position, asked, job.clients_per_round)

    def _clear(self, job: Job) -> Iterator[str]:
        clear = self.policy.clear
        if not clear.counts and job.deployment.reveal:
            yield "deployment.reveal asks for the number of examples, but clear.counts is false"
        if not clear.counts and job.server.weighting == "by_size":
            yield "server.weighting is by_size, which reveals numbers of examples. Use equal"
        window = job.protection.position.window(job.protection.settings)
        limit_s = job.deployment.answer_s if window is None else window[1]
        if clear.answer_after_s is not None and clear.answer_after_s >= limit_s:
            yield (
                f"the server waits {limit_s:g} s for an answer, but reports leave only after "
                f"clear.answer_after_s = {clear.answer_after_s:g} s"
            )

    def _data(self, job: Job) -> Iterator[str]:
        """Yield the reason why the site has no data for the job, if any.

        Without a reader, the site loads its part of a bundled data set. Any other data set would be
        loaded by the job's name for it, and this process imports nothing that a job names.
        """
        if (found := self.data_set(job)) is None:
            named = ", ".join(block.named for block in self.policy.data.values()) or "none"
            yield f"data.name is {job.data.name}, but the policy has: {named}"
        elif found[1].reader is None and is_function(job.data.name):
            yield (
                f"data.{found[0]}.reader is null, but {job.data.name} is no bundled data set: name "
                "your function that returns the examples"
            )

    def _code(self, order: Order) -> Iterator[str]:
        job, code, data_set = order.job, self.policy.code, self.data_set(order.job)
        if not order.code:
            return
        for name in order.code:
            if top(name) not in code.modules:
                yield f"the job has its own code {name}, which is not in code.modules"
                return
        try:
            self.modules(order)
        except SiteRefused as refused:
            yield str(refused)
        if job.privacy.unit != "client":
            yield "privacy.unit is example, but a job with its own code needs client"
        if job.protection.name == "pw_encrypt":
            yield "protection.name is pw_encrypt, but a job with its own code needs noise"
        if job.keeps_state or job.has_language_model:
            yield "the job has its own code, but also clients with states or a language model"
        if job.deployment.reveal:
            yield "deployment.reveal is set, but a job with its own code must reveal nothing"
        if data_set is not None and data_set[1].reader is None:
            yield f"data.{data_set[0]}.reader is null, but a job with its own code needs a reader"
        if code.isolation == "strong":
            yield from isolation.reasons(self.folder)

    def modules(self, order: Order) -> list[Module]:
        """Read the modules that the job in `order` names from the site's folder, and return them.

        Raises `SiteRefused` unless the policy lists the digest of each module.
        """
        found = []
        for name in sorted({top(name) for name in order.code}):
            module = read(self.folder, name)
            if module.digest != self.policy.code.modules.get(name):
                raise SiteRefused(
                    f"the module {name} has the digest {module.digest}, not the one in code.modules"
                )
            found.append(module)
        return found


def weak_sum(
    policy: Policy, position: type[Protection], asked: SecureSumSettings, clients: int
) -> Iterator[str]:
    """Yield every reason why a sum over `clients` clients is weaker than the policy demands.

    `position` is the class of the job's protection, and `asked` are its settings in the job.
    """
    least = policy.strength
    demands = {
        "share_secrets_ratio": 1.0,
        "reconstruct_secrets_threshold": None,
        "neighbours": "auto",
        "active_security": least.active_security,
        "assume_honest": least.honest,
    }
    known = {key: value for key, value in demands.items() if key in type(asked).model_fields}
    demanded = asked.model_copy(update=known)
    reason = weakened(asked, demanded)
    reason = reason or position.weaker(asked, demanded, clients, clients)
    if reason is not None:
        yield f"protection.{position.block}: {reason}"
    if (threshold := asked.threshold(clients)) < least.survivors:
        yield f"a sum may have {threshold} clients, but strength.survivors is {least.survivors}"
