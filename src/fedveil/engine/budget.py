"""Computes the privacy cost of a job before it runs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedveil.base.quantity import all_of
from fedveil.engine.job_protection import check_buffers, in_clear, make_protection, whose
from fedveil.engine.other_accounts import other_accounts
from fedveil.engine.target_epsilon import Solved, key_of_cost, solve, whole_run
from fedveil.errors import InvalidValue, LimitReached, RunStopped
from fedveil.federated.job import Job
from fedveil.privacy.ledger import Ledger, Line, project
from fedveil.privacy.loss import exactly
from fedveil.protections.base import Protection, Spending
from fedveil.record.data_account import DataAccount
from fedveil.rounds.outcomes import ClientId

if TYPE_CHECKING:
    from fedveil.learning.weight_layout import Layout


def project_job(job: Job, parameters: int | None = None) -> Iterator[Line]:
    """Yield the predicted privacy cost of one bit, one parameter, one round and the whole run.

    Then yields the run's cost under other assumptions (`other_accounts`), and an infinite cost for
    each unprotected value. Under `privacy.unit: example`, the costs of bits and parameters are
    omitted. `parameters` is the number of the model's parameters. If it is None, the model is built
    to count them. Then `ModelInvalid` is raised if the protection's noise, or the canaries of an
    audit, would change one of its buffers, such as the running mean of BatchNorm.
    """
    layout, protection = _made(job, parameters)
    if layout is not None:
        check_buffers(job, layout)
    return _lines(job, protection)


def solve_job(
    job: Job, target: float, parameters: int | None = None
) -> tuple[Solved, Iterator[Line]]:
    """Find the setting, such as the noise, with which a run costs at most epsilon `target`.

    Returns the setting, and the costs of the run as in `project_job`. `parameters` is the number of
    the model's parameters. If it is None, the model is built to count them. Then `ModelInvalid` is
    raised if the protection's noise, or the canaries of an audit, would change one of its buffers,
    such as the running mean of BatchNorm.
    """
    layout, protection = _made(job, parameters)
    solved = solve(job, protection, target)
    if layout is not None:
        check_buffers(job.with_(solved.keys), layout)
    return solved, _lines(job, solved.protection)


def thin_promise(job: Job, protection: Protection) -> str | None:
    """Return a warning if the protection adds noise but guarantees almost nothing, else None."""
    if not protection.noised(protection.settings):
        return None
    figure = whole_run(protection, job.rounds, job.privacy.delta)
    if not figure.thin:
        return None
    key = key_of_cost(protection)
    change = "fewer rounds or more noise give a stronger guarantee"
    if job.privacy.delta == 0:
        change = "noise of a normal distribution needs a delta, such as `privacy: {delta: 1e-5}`"
    elif key is not None:
        command = "`fedveil budget JOB --target-epsilon E`, with the run's --set options,"
        change = f"{command} finds the {key} for a target epsilon"
    drawn = whose(job, f"a client that takes part in {all_of(job.rounds, 'round')}")
    return f"{drawn} is promised {figure}: {change}"


def check_limit(
    job: Job, ledger: Ledger, spending: Sequence[Spending], cohort: Sequence[ClientId], number: int
) -> None:
    """Raise `LimitReached` if round `number` would bring a client above `privacy.max_epsilon`.

    `spending` is the cost of one report, and `cohort` are the clients that the round would charge.
    """
    limit, delta = job.privacy.max_epsilon, job.privacy.delta
    if limit is None:
        return
    ahead = ledger.preview(spending, round=number, clients=cohort, delta=delta)["run_most_drawn"]
    if ahead.epsilon > limit:
        raised = "; write `privacy: {max_epsilon: null}` to run without a limit"
        raise LimitReached(
            f"round {number} would bring {whose(job, 'the most-drawn client')} to {ahead}, above "
            f"privacy.max_epsilon = {exactly(limit)}{raised if number == 1 else ''}"
        )


def admit(
    job: Job,
    ledger: Ledger,
    spending: Sequence[Spending],
    cohort: Sequence[ClientId],
    number: int,
    *,
    begun: bool,
) -> None:
    """Charge round `number` to the data set's account, or raise an error that must stop the run.

    The account is the file `privacy.account`, which records the privacy costs of several runs on
    the same data. Without this key, only the job's limit is checked. `spending` is the cost of one
    report, and `cohort` are the round's clients. `begun` is True if the run has charged a round
    before, even if it was this one. Raises `LimitReached` if the run or the account would exceed
    `privacy.max_epsilon`, and `RunStopped` if `begun` is True but the account is missing. A round
    that is repeated after an interruption is charged again.
    """
    check_limit(job, ledger, spending, cohort, number)
    privacy = job.privacy
    if privacy.account is None:
        return
    unit = "row" if privacy.unit == "example" else "client"
    what = f"round {number} of {job.name}"
    if begun and not Path(privacy.account).exists():  # a new one would omit earlier charges
        raise RunStopped(
            f"privacy.account = {privacy.account} is missing, but earlier rounds are charged to "
            f"it: restore it from a copy, or resume the run in the folder in which it was started"
        )
    account = DataAccount(Path(privacy.account), unit)
    account.charge(spending, privacy.max_epsilon, privacy.delta, what)


def prepared(job: Job) -> tuple[Layout, Protection]:
    """Load the job's data and build its model. Returns the model's layout and the protection."""
    from fedveil.engine.assembly import ModelShape, load_data, make_model, make_partition
    from fedveil.learning.weight_layout import Layout

    dataset = load_data(job)
    if job.clients.number is None:
        job = job.with_clients(make_partition(job, dataset).clients)
    layout = Layout(make_model(job, ModelShape(dataset.example_shape, dataset.classes)))
    return layout, make_protection(job, layout.dimension * job.training.reported_vectors)


def _made(job: Job, parameters: int | None) -> tuple[Layout | None, Protection]:
    """Return the layout of the job's model, and the job's protection.

    If the model's number of `parameters` is given, the layout is None. No model is then built, so
    torch is not needed.
    """
    if parameters is None:
        return prepared(job)
    if job.clients.number is None:
        raise InvalidValue("--parameters needs clients.number: the data are not read to count them")
    return None, make_protection(job, parameters * job.training.reported_vectors)


def _lines(job: Job, protection: Protection) -> Iterator[Line]:
    spending = protection.spending(protection.initial_state())
    figures = project(spending, job.rounds, job.privacy.delta, adaptive=protection.adaptive)
    growing = ", if no round costs more than the first" if protection.adaptive else ""
    told = {
        "per_bit": "one bit of a report",
        "per_parameter": f"one of {protection.dimension:,} parameters in a round",
        "per_round": "a client's whole data in a round",
    }
    if job.privacy.unit == "example":
        told = {"per_round": f"{whose(job, 'a client')} in a round"}
    drawn = whose(job, f"a client that takes part in {all_of(job.rounds, 'round')}")
    told["run_every_round"] = f"{drawn}{growing}"
    for name, what in told.items():
        figure = figures[name]
        if figure is not None:
            yield Line(*figure, what)
    yield from other_accounts(job, protection, job.rounds)
    for what in in_clear(job, protection, leaves=False):
        yield Line(math.inf, 0.0, what)
