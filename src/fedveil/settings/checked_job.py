"""Base class of all jobs: reads and writes them, and reports all problems at once."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from pydantic import ValidationError

from fedveil.errors import JobError
from fedveil.settings import allowed, yaml_file
from fedveil.settings.differences import differences
from fedveil.settings.settings import Settings


class CheckedJob(Settings):
    """Typed settings of a job.

    Creating a job raises JobError with all wrong values and all wrong combinations of values.
    """

    def __init__(self, /, *unnamed: object, **data: Any) -> None:
        """Check the keys `data`. Raises `JobError` with all problems, one sentence each."""
        if unnamed:
            raise JobError([_how_to_make(type(self).__name__, unnamed[0])])
        wrong: dict[allowed.Path, str] = {}
        try:
            super().__init__(**data)
        except ValidationError as error:
            wrong = allowed.sentences(error, type(self))
            for path in wrong:
                data = yaml_file.without(data, path)
            try:
                super().__init__(**data)  # so that rules between valid keys are checked
            except ValidationError:
                raise JobError(list(wrong.values())) from None
        self._fill_in()
        broken = self._broken(wrong)
        if wrong or broken:
            raise JobError([*wrong.values(), *broken])

    def __repr__(self) -> str:
        """Return the keys that differ from their defaults, as code that makes an equal job."""
        keys = self.model_dump(exclude_defaults=True)
        given = ", ".join(f"{key}={value!r}" for key, value in keys.items())
        return f"{type(self).__name__}({given})"

    def __str__(self) -> str:
        return repr(self)

    def _fill_in(self) -> None: ...

    @abstractmethod
    def _broken(self, wrong: Collection[allowed.Path]) -> list[str]: ...

    @classmethod
    def load(cls, path: str | Path | None = None, overrides: Sequence[str] = ()) -> Self:
        """Load a job from a YAML file, or the default job, and apply `key=value` overrides."""
        return cls.read({} if path is None else keys_in(path), overrides)

    @classmethod
    def of(cls, job: Self | Mapping[str, Any] | str | Path) -> Self:
        """Return `job`, which may also be the path of a job's file or the keys of a job."""
        if isinstance(job, cls):
            return job
        if isinstance(job, Mapping):
            return cls.read(job, [])
        if isinstance(job, str | Path):
            return cls.load(job)
        kind, mine = type(job).__name__, cls.__name__
        given = f"the job has the type {kind}"
        raise JobError([f"{given}: use a {mine}, the path of a job's file or a mapping of keys"])

    @classmethod
    def read(cls, data: Mapping[str, Any], overrides: Sequence[str]) -> Self:
        """Build a job from the parsed keys of a file, and apply `key=value` overrides."""
        several = isinstance(overrides, Sequence) and not isinstance(overrides, str)
        if not several or not all(isinstance(text, str) for text in overrides):
            given = f"overrides = {allowed.shown(overrides)}"
            raise JobError([f'{given} is not a list of texts such as ["rounds=5", "seed=3"]'])
        return cls._checked(*yaml_file.apply(data, overrides, cls))

    @classmethod
    def _checked(cls, data: Mapping[str, Any], problems: list[str]) -> Self:
        try:
            job = cls(**data)
        except JobError as error:
            problems = [*problems, *error.problems]
        if problems:
            raise JobError(problems)
        return job

    def with_(self, keys: Mapping[str, Any] | None = None, /, **blocks: Any) -> Self:
        """Copy this job with other settings: `job.with_(rounds=5, training={"lr": 0.1})`.

        Keys of a block that are not given keep their values. `keys` have dotted paths:
        `{"training.lr": 0.1}`. Default values of keys that this job left out are computed anew,
        because these can depend on other keys.
        """
        if not isinstance(keys, Mapping | None):
            raise JobError([_no_mapping(keys)])
        named = {**blocks, **(keys or {})}
        settings = [(tuple(str(path).split(".")), value) for path, value in named.items()]
        data, problems = yaml_file.put(self.model_dump(exclude_unset=True), settings, type(self))
        return self._checked(data, problems)

    def changes(self, before: Self) -> list[str]:
        """Return the settings that differ from the job `before`, one text per key."""
        return [
            f"{key} = {now} where the run has {then}"
            for key, now, then in differences(self.model_dump(), before.model_dump())
        ]

    def to_yaml(self) -> str:
        """Format every key with its value as YAML. `load` returns an equal job."""
        return yaml_file.write(self.model_dump())


def _how_to_make(name: str, given: object) -> str:
    """Return a sentence about `name(given)`, which names no key."""
    named = f"{name}({allowed.shown(given)}) names no key"
    if isinstance(given, Mapping):
        return f"{named}: put two asterisks before the mapping, as in {name}(**keys)"
    return f'{named}: write {name}(seed=3), or {name}.load("job.yaml") for the job in a file'


def _no_mapping(keys: object) -> str:
    return f'keys = {allowed.shown(keys)} is not a mapping such as {{"training.lr": 0.1}}'


def job_path(path: str | Path) -> str | Path:
    """Return `path`, or raise JobError unless it is a path, or text that is not empty."""
    if isinstance(path, Path) or (isinstance(path, str) and path):
        return path
    given = f"path = {allowed.shown(path)}"
    if path == "":
        raise JobError([f"{given} is empty: name a job's file"])
    raise JobError([f"{given} is not a path: use text or a pathlib.Path"])


def keys_in(path: str | Path) -> dict[str, Any]:
    """Return the keys in a job file, or raise JobError. A file without keys is refused, too."""
    keys = yaml_file.read(job_path(path))
    if not keys:
        raise JobError([f"{path} is empty: it needs at least one key with a value"])
    return keys
