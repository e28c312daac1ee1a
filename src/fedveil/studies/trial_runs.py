"""Short trial runs at one epsilon, of every protection that gives a guarantee for a job."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from fedveil.engine.assembly import check_buffers, load_data
from fedveil.engine.budget import prepared
from fedveil.engine.candidates import GAUSSIAN, OTHERS, RULED_OUT, Candidate, candidate, of_examples
from fedveil.entry.simulation import simulate
from fedveil.errors import (
    InvalidValue,
    JobError,
    ModelInvalid,
    RunFailed,
    RunFolderError,
    RunStopped,
)
from fedveil.federated.job import Job
from fedveil.privacy.guarantee_strength import Figure
from fedveil.privacy.loss import exactly
from fedveil.record.metric_names import Better, deciding
from fedveil.record.run_folder import temporary_folder

#: A trial has at most this many rounds, with the noise of the whole run.
ROUNDS = 10
#: The share of its examples that a client holds out for validation.
HELD_OUT = 0.2
#: Names the examples on which the models of trials are judged.
VALIDATION = "the clients' held-out training examples"
TEST = "the test examples, since the clients of this job can hold none out"

#: Names of the trials without protection, and of the initial model.
BARE, UNTRAINED = "not_encrypt", "untrained model"
#: The least gain of a trial that has learnt, as a share of the gain without protection.
LEAST_GAIN = 0.25

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Trial:
    """A short run of one protection.

    `candidate` is the whole run that this trial stands for. It is None for the untrained model, for
    the run without protection, and for a protection that the job's other keys rule out. `figure` is
    the epsilon of the whole run, and `noise` its relative noise (`Candidate.noise`). `value` is the
    last value of the main metric, `metric`. `better` is "higher" or "lower". `examples` says on
    which examples the metric was measured. A failed trial has a `failure` reason and the value NaN.
    """

    name: str
    candidate: Candidate | None
    figure: Figure
    noise: float | None
    metric: str = ""
    better: Better = "higher"
    value: float = math.nan
    examples: str = ""
    rounds: int = 0
    failure: str = ""

    @property
    def rank(self) -> tuple[bool, float]:
        """A key that sorts trials from best to worst.

        Trials that need no trusted server come before all others. In both groups, a better value of
        the main metric comes first.
        """
        sign = -1.0 if self.better == "higher" else 1.0
        trusts = self.candidate is not None and self.candidate.trusts_server
        return trusts, sign * self.value


def trials(job: Job, target: float, tell: Tell) -> Iterator[Trial]:
    """Yield a short run of the job for each protection.

    A trial has the noise with which the whole run would cost epsilon `target`. Also yields the
    untrained model and a run without protection. If the job protects clients, also yields a run
    that protects single examples. No files remain. `tell` is called with a text before each trial.
    Raises `JobError` if the job has a privacy account.
    """
    if job.privacy.account is not None:  # and a charge is never refunded
        raise JobError(
            [
                f"privacy.account = {job.privacy.account}: the trial without protection would "
                f"charge it an infinite epsilon. Add --set privacy.account=null. The account then "
                "does not count the trials"
            ]
        )
    layout, protection = prepared(job)
    examples = len(load_data(job).train)
    bare = job.under("not_encrypt")
    tell("trial without protection")
    nothing = Figure(math.inf, job.privacy.delta)
    yield _tried(bare, UNTRAINED, None, nothing, None)
    yield _tried(bare, BARE, None, nothing, None)
    tried: list[tuple[str, str, Sequence[str]]] = [
        (name, name, ()) for name in (*GAUSSIAN, *OTHERS)
    ]
    if job.privacy.unit == "client":
        tried.append(("distributed_dp, one example", "distributed_dp", of_examples(job)))
    for title, name, changes in tried:
        tell(f"trial of {title} at epsilon {exactly(target)}")
        try:
            found = candidate(job, protection.dimension, target, name, changes)
        except RULED_OUT as error:
            yield Trial(title, None, nothing, None, failure=str(error))
            continue
        check_buffers(found.job, layout)
        yield _tried(found.job, title, found, found.figure, found.noise(examples))


def best(found: Sequence[Trial], unit: str) -> Trial | None:
    """Return the best trial that has learnt, with a guarantee for this unit of privacy, or None.

    `found` are all trials, and `unit` is "client" or "example". A trial has learnt if its gain over
    the untrained model is at least a quarter of the gain without protection.
    """
    named = {one.name: one for one in found}
    start, bare = named[UNTRAINED].value, named[BARE].value
    able = [
        one
        for one in found
        if one.candidate is not None
        and one.candidate.job.privacy.unit == unit
        and (one.value - start) * (bare - start) >= LEAST_GAIN * (bare - start) ** 2 > 0
    ]
    return min(able, key=lambda one: one.rank, default=None)


def _tried(
    job: Job, name: str, candidate: Candidate | None, figure: Figure, noise: float | None
) -> Trial:
    rounds = min(job.rounds, ROUNDS)
    for share in (HELD_OUT, 0.0):
        try:
            short = _shortened(job, rounds, share)
            if name == UNTRAINED:
                short = Job.read(short.model_dump(), ["rounds=1", "server.lr=1e-12"])
            with temporary_folder() as folder:
                last = simulate(short, folder / "trial").metrics[-1]
        except (InvalidValue, JobError):
            if not share:
                raise
            continue  # for example, no example can be held out if each client has only one
        except (RunFailed, RunStopped, ModelInvalid) as error:
            if isinstance(error.__cause__, RunFolderError):  # not the protection's failure
                raise RunFolderError(
                    f"{error}. Set TMPDIR to a folder with enough space"
                ) from error
            return Trial(name, candidate, figure, noise, failure=str(error))
        metric, better = deciding(last)
        value = last["clients_mean"] if share else last.get(metric, math.nan)
        where = VALIDATION if share else TEST
        return Trial(name, candidate, figure, noise, metric, better, value, where, rounds)
    raise AssertionError("the loop returns or raises")


def _shortened(job: Job, rounds: int, share: float) -> Job:
    """Copy a job with `rounds` rounds, in which clients hold out `share` of their examples.

    The copy has no early stopping, canaries, privacy limit, page or callbacks.
    """
    data = job.model_dump()
    data["rounds"] = rounds
    data["evaluation"] |= {"clients": share, "every": rounds}
    data["record"] |= {"page": False, "tensorboard": False, "callbacks": []}
    data["simulation"]["masks"] = False
    data["audit"]["canaries"] = 0
    data["privacy"]["max_epsilon"] = None
    del data["stopping"]
    return Job.read(data, [])
