"""The runs of a comparison: one per combination of protection, parameter, epsilon and seed.

Runs with the same seed have the same data and initial model. By default, all clients have equal
weight, because most protections require that.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from shlex import quote as quoted
from typing import Annotated, Any, Literal, NamedTuple
from urllib.parse import quote

from pydantic import Field

from fedveil.attacks.effort import Effort
from fedveil.engine.assembly import check_buffers, make_task
from fedveil.engine.budget import prepared
from fedveil.engine.target_epsilon import key_of_cost, solve, whole_run
from fedveil.errors import InvalidValue, JobError, ModelInvalid
from fedveil.federated.job import Job
from fedveil.federated.protection_switch import ProtectionSettings
from fedveil.learning.learning_task import BUNDLED
from fedveil.learning.task_metrics import RANGES
from fedveil.privacy.loss import format_epsilon
from fedveil.protections.base import Protection
from fedveil.protections.catalog import POSITIONS
from fedveil.record.metric_names import LOSS, USUAL, Better, word
from fedveil.settings.settings import Settings

Tell = Callable[[str], None]


class Goal(NamedTuple):
    """A value to reach of the metric `figure` on the test examples.

    `better` says whether "higher" or "lower" values of the metric are better.
    """

    figure: str
    value: float
    better: Better = "higher"

    @classmethod
    def of(
        cls,
        text: str,
        measures: Mapping[str, Better] = USUAL,
        ranges: Mapping[str, tuple[float, float]] = RANGES,
    ) -> Goal:
        """Parse a goal such as `accuracy=0.9`.

        Raises `JobError` unless its metric is the loss or one of `measures`, or if the metric never
        has this value. `ranges` has the least and the largest value of each metric. A metric that
        it omits may have any.
        """
        known = {**measures, LOSS: "lower"}
        name, _, number = text.partition("=")
        try:
            value = float(number)
        except ValueError:
            value = float("nan")
        if name not in known or not math.isfinite(value):
            names = ", ".join(known)
            raise JobError([f"--target {quoted(text)} is not METRIC=NUMBER with one of {names}"])
        least, most = ranges.get(name, (-math.inf, math.inf))
        if not least <= value <= most:
            side = f"at most {most:g}" if value > most else f"at least {least:g}"
            percent = (least, most) == (0, 1) and 1 < value <= 100
            hint = f". For {value:g}%, write {name}={value / 100:g}" if percent else ""
            raise JobError([f"--target {text}: {word(name)} is {side}{hint}"])
        return cls(name, value, "lower" if known[name] == "lower" else "higher")

    def reached(self, value: float) -> bool:
        """Return True if `value` is at least as good as the goal."""
        return value <= self.value if self.better == "lower" else value >= self.value


class Asked(Settings):
    """The options of a comparison of protections, besides the job."""

    protections: list[str] = Field(min_length=1)
    seeds: Annotated[int, Field(ge=1)] = 1
    sweep: dict[str, list[str]] = Field(default_factory=dict)
    epsilons: list[Annotated[float, Field(gt=0)]] = Field(default_factory=list)
    attack: Literal["membership"] | None = None
    effort: Effort = "quick"
    target: str | None = None


@dataclass(frozen=True)
class Setting:
    """A protection with its settings. The comparison's tables have one line for each setting.

    `changes` maps job keys to new values. `epsilon` is the target cost of a whole run, or None.
    """

    position: str
    changes: Mapping[str, str] = field(default_factory=dict)
    epsilon: float | None = None

    @property
    def name(self) -> str:
        parts = [self.position, *(f"{key}={value}" for key, value in self.changes.items())]
        if self.epsilon is not None:
            parts.append(f"epsilon={str(self.epsilon).removesuffix('.0')}")
        return quote(",".join(parts), safe=",=")

    def __str__(self) -> str:
        parts = [self.position, *(f"{key} {value}" for key, value in self.changes.items())]
        if self.epsilon is not None:
            parts.append(f"epsilon {format_epsilon(self.epsilon)}")
        return ", ".join(parts)


@dataclass(frozen=True)
class Cell:
    """One run of a comparison. If it is impossible, `job` is None and `reason` says why."""

    setting: Setting
    seed: int
    job: Job | None
    reason: str = ""

    @property
    def name(self) -> str:
        return f"{self.setting.name},seed={self.seed}"


#: By setting's name: the keys that reach its epsilon, or the reason why there are none.
Solutions = dict[str, dict[str, str] | str]


@dataclass(frozen=True)
class Comparison:
    """A job and a comparison's options. Raises `JobError` if the protections cannot be compared."""

    job: Job
    asked: Asked
    solutions: Solutions = field(default_factory=dict)

    def __post_init__(self) -> None:
        _ = self.goal
        listed: dict[str, list[Any]] = {
            "--protections": self.asked.protections,
            "--epsilons": self.asked.epsilons,
            **{f"--sweep {key}": values for key, values in self.asked.sweep.items()},
        }
        for option, values in listed.items():
            twice = [str(value) for value in dict.fromkeys(values) if values.count(value) > 1]
            if twice:
                raise JobError([f"{option} has {', '.join(twice)} twice"])

    @cached_property
    def goal(self) -> Goal | None:
        """The metric and value that the runs should reach, or None."""
        if self.asked.target is None:
            return None
        task = make_task(self.job)
        own = self.job.task not in BUNDLED  # its metrics may have other ranges
        return Goal.of(self.asked.target, task.measures, {} if own else RANGES)

    @cached_property
    def settings(self) -> Sequence[Setting]:
        """The settings to compare, one per table line. Raises `JobError` if one is impossible."""
        found, problems = [], dict[str, list[str]]()
        for position in self.asked.protections:
            try:
                found += list(self._of_position(position))
            except (JobError, InvalidValue, ModelInvalid) as error:
                for problem in getattr(error, "problems", [str(error)]):
                    problems.setdefault(problem, []).append(position)
        if problems:
            raise JobError([self._refused(text, names) for text, names in problems.items()])
        return found

    def cells(self, tell: Tell = lambda text: None) -> Iterator[Cell]:
        """Yield the runs of each setting in turn. `tell` is called with a text before each search.

        A search finds the parameter with which a protection meets its target epsilon.
        """
        for setting in self.settings:
            if setting.epsilon is not None and setting.name not in self.solutions:
                tell(f"looking for the parameters of {setting}")
                self.solutions[setting.name] = self._solved(setting, setting.epsilon)
            solution = self.solutions.get(setting.name, {})
            for seed in range(self.job.seed, self.job.seed + self.asked.seeds):
                if isinstance(solution, str):
                    yield Cell(setting, seed, None, solution)
                else:
                    job = self._job(setting.position, {**setting.changes, **solution}, seed)
                    yield Cell(setting, seed, job)

    @cached_property
    def notes(self) -> Sequence[str]:
        """Sentences about differences between the runs that have nothing to do with protections.

        They are about differences that a comparison with this job cannot avoid. Often there are no
        such differences.
        """
        secret = self.job.clients.sampling == "poisson" and self.job.privacy.randomness == "secure"
        if not secret:
            return []
        return [
            "clients.sampling = poisson under privacy.randomness = secure draws every cohort in "
            "secret: no two runs meet the same clients"
        ]

    def _of_position(self, position: str) -> Iterator[Setting]:
        block = self._switch(position).position.block
        others = {f"protection.{p.block}." for p in POSITIONS.values() if p.block != block}
        sweep = {k: v for k, v in self.asked.sweep.items() if not k.startswith(tuple(others))}
        for values in itertools.product(*sweep.values()):
            changes = dict(zip(sweep, values, strict=True))
            job = self._job(position, changes, self.job.seed)
            layout, protection = prepared(job)
            check_buffers(job, layout)
            _check_account(job, protection)
            for epsilon in self._epsilons(protection, changes):
                yield Setting(position, changes, epsilon)

    def _epsilons(
        self, protection: Protection, changes: Mapping[str, str]
    ) -> Sequence[float | None]:
        """Return the target epsilons of a protection, or [None] for a run without a target.

        There is no target if the user asked for none, if the protection adds no noise, or if no
        parameter decides its epsilon. `changes` are the job's keys that `--sweep` sets, with their
        values. Raises `JobError` if they include the parameter that decides the epsilon.
        """
        place = key_of_cost(protection)
        if not self.asked.epsilons or place is None or not protection.noised(protection.settings):
            return [None]
        if place in changes:
            raise JobError([f"--epsilons looks for {place}, which --sweep sets: leave one out"])
        return self.asked.epsilons

    def _solved(self, setting: Setting, epsilon: float) -> dict[str, str] | str:
        job = self._job(setting.position, setting.changes, self.job.seed)
        try:
            found = solve(job, prepared(job)[1], epsilon)
        except InvalidValue as error:
            return str(error)
        return {key: "null" if value is None else str(value) for key, value in found.keys.items()}

    def _job(self, position: str, changes: Mapping[str, str], seed: int) -> Job:
        data = {**self.job_of_runs.model_dump(), "seed": seed}
        data["protection"]["name"] = position
        return Job.read(data, [f"{key}={value}" for key, value in changes.items()])

    @cached_property
    def job_of_runs(self) -> Job:
        """The comparison's job, with `server.weighting` set to `equal` unless the job sets it."""
        return self.job if self.says_weighting else self.job.with_({"server.weighting": "equal"})

    @property
    def says_weighting(self) -> bool:
        return "weighting" in self.job.server.model_fields_set

    def _switch(self, position: str) -> ProtectionSettings:
        return self.job.protection.model_copy(update={"name": position})

    def _refused(self, problem: str, positions: Sequence[str]) -> str:
        if len(positions) == len(self.asked.protections):
            return problem
        return f"{', '.join(positions)} cannot be compared here: {problem}"


def _check_account(job: Job, protection: Protection) -> None:
    """Raise `JobError` if a run would charge the privacy account an infinite epsilon."""
    account = job.privacy.account
    if account is None:
        return
    if math.isinf(whole_run(protection, job.rounds, job.privacy.delta).epsilon):
        raise JobError(
            [
                f"a run under {job.protection.name} would charge privacy.account = {account} an "
                "infinite epsilon, which is never refunded. Leave it out, or add --set "
                "privacy.account=null, so that the account counts none of the runs"
            ]
        )
