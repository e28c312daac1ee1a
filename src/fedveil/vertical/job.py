"""The job of a vertical run: typed settings, all checked before anything starts.

The file contains no secrets of a party, such as its data, so all parties may read it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path as FilePath
from shlex import quote
from typing import TYPE_CHECKING, Any, ClassVar

from fedveil.errors import JobError
from fedveil.settings.allowed import Path
from fedveil.settings.checked_job import keys_in
from fedveil.settings.yaml_file import refuse_other_kind
from fedveil.vertical.blocks import VerticalFields
from fedveil.vertical.rules import RULES


class VerticalJob(VerticalFields):
    """A complete description of a vertical run.

    Raises a JobError that lists every invalid value and every invalid combination of values.

        >>> from fedveil.vertical import VerticalJob
        >>> VerticalJob.load(None, ["epochs=3", "task=tabular"]).task.name
        'tabular'
    """

    #: Keys that may differ between the parties' copies of a job.
    OWN_KEYS: ClassVar[tuple[str, ...]] = ("name", "device", "threads")

    if TYPE_CHECKING:  # a type checker would demand every key, and no mappings as blocks

        def __init__(self, /, **keys: Any) -> None: ...

    @classmethod
    def load(cls, path: str | FilePath | None = None, overrides: Sequence[str] = ()) -> VerticalJob:
        """Load a job from a YAML file, or the default job, and apply `key=value` overrides."""
        keys = {} if path is None else keys_in(path)
        try:
            return cls.read(keys, overrides)
        except JobError:
            from fedveil.federated.job import Job

            run = f"is a federated job. Run it with: fedveil run {quote(str(path))}"
            refuse_other_kind(path, cls, Job.model_fields, run)
            raise

    def _broken(self, wrong: Collection[Path]) -> list[str]:
        return RULES.broken(self, wrong)

    def agreed(self) -> dict[str, Any]:
        """Return the settings that must be equal in every party's copy of the job."""
        agreed = {k: v for k, v in self.model_dump().items() if k not in self.OWN_KEYS}
        for own in ("most_ids", "least_common"):
            del agreed["alignment"][own]
        del agreed["privacy"]["max_epsilon"]
        settings = self.task.settings
        for key in getattr(settings, "OWN_KEYS", ()):
            del agreed["task"][self.task.name][key]
        return agreed


def job_of_run(path: FilePath) -> VerticalJob:
    """Load the job in a run's folder. Raises JobError if the run is federated."""
    try:
        return VerticalJob.load(path)
    except JobError:
        from fedveil.federated.job import Job

        folder = FilePath(path).parent
        resume = (
            f"is a federated job. Resume its run with: fedveil run --resume {quote(str(folder))}"
        )
        refuse_other_kind(path, VerticalJob, Job.model_fields, resume)
        raise
