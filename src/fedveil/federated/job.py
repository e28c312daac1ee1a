"""A job: typed settings, which are all checked before anything starts.

`Job()` is the default job. `Job.load` reads a YAML file in fedveil's own format or in MindSpore
Federated's. It reports all problems of a job at once, one sentence each.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from fedveil.base.validate import integer
from fedveil.errors import JobError
from fedveil.federated import mindspore
from fedveil.federated.blocks import JobFields
from fedveil.federated.rules import RULES
from fedveil.settings import allowed, yaml_file
from fedveil.settings.checked_job import job_path, keys_in

#: The keys of a vertical job. Its class is on a higher floor.
VERTICAL_KEYS = frozenset(
    (
        "name", "seed", "epochs", "batch_size", "in_flight", "device", "threads", "task", "parts",
        "optimizer", "privacy", "compression", "alignment", "evaluation", "scoring", "record",
        "checkpoint",
    )
)  # fmt: skip


class Job(JobFields):
    """The complete description of a run.

    >>> from fedveil import Job
    >>> job = Job.load(None, ["rounds=7", "protection=signds"])
    >>> job.rounds, job.under("rr").protection.name
    (7, 'rr')
    """

    if TYPE_CHECKING:  # a type checker would demand every key, and no mappings as blocks

        def __init__(self, /, **keys: Any) -> None: ...

    def _broken(self, wrong: Collection[allowed.Path]) -> list[str]:
        return RULES.broken(self, wrong)

    @property
    def warnings(self) -> list[str]:
        """Sentences about settings that are allowed but probably not intended."""
        return RULES.advice(self)

    @classmethod
    def load(cls, path: str | Path | None = None, overrides: Sequence[str] = ()) -> Job:
        """Load a job from the file `path`, and override keys by `overrides`, texts like "rounds=7".

        Without `path`, loads the default job. A MindSpore Federated file is recognised by its keys.
        """
        return cls.load_with_notes(path, overrides)[0]

    @classmethod
    def load_with_notes(
        cls, path: str | Path | None = None, overrides: Sequence[str] = ()
    ) -> tuple[Job, list[str]]:
        """Load a job as `load` does. Also returns notes on the translation of a MindSpore file."""
        data = {} if path is None else keys_in(path)
        if mindspore.is_dialect(data, cls.model_fields):
            return cls.translated(data, overrides)
        try:
            return cls.read(data, overrides), []
        except JobError:
            run = f"is a vertical job. Run it with: fedveil vertical run {quote(str(path))}"
            yaml_file.refuse_other_kind(path, cls, VERTICAL_KEYS, run)
            raise

    @classmethod
    def convert(cls, path: str | Path) -> tuple[Job, list[str]]:
        """Load a job from a MindSpore Federated file. Also returns notes about the translation."""
        data = yaml_file.read(job_path(path))
        if not mindspore.is_dialect(data, cls.model_fields):
            yaml_file.refuse_their_vertical(path)
            raise JobError([f"{path} does not hold the settings of a MindSpore Federated server"])
        return cls.translated(data)

    @classmethod
    def translated(
        cls, data: Mapping[str, Any], overrides: Sequence[str] = ()
    ) -> tuple[Job, list[str]]:
        """Translate the MindSpore Federated settings `data` to a job, and apply `overrides` to it.

        Also returns notes on the translation. A `JobError` names keys as MindSpore Federated does.
        """
        translation = mindspore.Translation(data, cls.model_fields)
        try:
            job = cls.read(translation.native, overrides)
        except JobError as error:
            overridden = [override.partition("=")[0].strip() for override in overrides]
            translation.problems += translation.in_their_names(error.problems, overridden)
        if translation.problems:
            raise JobError(translation.problems)
        return job, translation.notes

    def with_clients(self, number: int) -> Job:
        """Return this job with `number` clients, checked again."""
        data = self.model_dump()
        data["clients"]["number"] = number
        return Job(**data)

    def trained_on(self, cluster: str) -> Job:
        data = self.model_dump()
        data["simulation"]["on"] = cluster
        return Job(**data)

    def with_rounds(self, number: int) -> Job:
        """Return this job with `number` rounds.

        Raises `JobError` if the job already has more rounds, or if its noise was computed for the
        number of rounds that it has.
        """
        if integer("rounds", number, 1) < self.rounds:
            raise JobError(
                [
                    f"rounds = {number} is fewer than the {self.rounds} of the run: a resumed "
                    "run may only be extended"]
            )  # fmt: skip
        protection = self.protection
        fixed = protection.position.for_rounds(protection.settings)
        if fixed is not None and number > self.rounds:
            raise JobError(
                [
                    f"rounds = {number} would exceed {fixed} of protection {protection.name}, "
                    f"whose noise was made for {self.rounds} rounds: start a new run"]
            )  # fmt: skip
        return Job(**{**self.model_dump(), "rounds": number})

    def under(self, protection: str) -> Job:
        """Return this job under another protection.

        The parameters are those that this job has for the new protection. The clients' weighting is
        set to the new protection's default.
        """
        data = self.model_dump()
        del data["server"]["weighting"]
        data["protection"]["name"] = protection
        return Job(**data)
