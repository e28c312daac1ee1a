"""Starts or resumes a run: assembles its parts, opens its folder and restores its state."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from shlex import quote

from fedveil.base.freed_memory import return_freed_memory
from fedveil.base.quantity import quantity
from fedveil.data.datasets import Dataset
from fedveil.engine.assembly import report_entropy
from fedveil.engine.budget import thin_promise
from fedveil.engine.callbacks import Callback
from fedveil.engine.engine import Engine
from fedveil.engine.executors.client_states import open_states
from fedveil.engine.federation import Federation
from fedveil.engine.finished_run import Presentation
from fedveil.engine.job_protection import in_clear
from fedveil.engine.round_checkpoint import starting_over
from fedveil.engine.run_parts import Parts, assemble
from fedveil.engine.run_state import RunState
from fedveil.errors import OutputLost, RunStopped
from fedveil.federated.job import Job
from fedveil.record.lifecycle import beginning, how_to_resume, log_start
from fedveil.record.recorder import Recorder
from fedveil.record.run_folder import JOB, METRICS, RunFolder
from fedveil.record.saved_job import keep_job
from fedveil.record.started_rounds import Attempts


def start(
    job: Job,
    engine: Engine,
    open_folder: Callable[[], RunFolder],
    stack: ExitStack,
    *,
    warn: Callable[[str], None] | None = None,
    dataset: Dataset | None = None,
    callbacks: Iterable[Callback] = (),
    presentation: Presentation | None = None,
) -> Federation:
    """Start or resume the job's run under `engine`. Returns the run, ready for its next round.

    `open_folder` opens the run's folder, after the parts of the run have been checked. When `stack`
    closes, the run's resources are closed. `warn` is called with each warning about the run.
    `dataset` replaces the job's data. `callbacks` come before those that the job names.
    `presentation` shows the run to its user.
    """
    began = time.perf_counter()
    parts = assemble(job, engine, dataset, callbacks)
    job, state = parts.job, RunState(parts)
    folder = open_folder()
    stack.callback(folder.close)
    engine.try_out(job, parts.shape, folder)
    how = engine.how_to_resume.format(folder=quote(str(folder.path)))
    stack.enter_context(how_to_resume(lambda: how, RunStopped, OutputLost))
    metrics = state.restore(folder)
    over = starting_over(folder.path)
    if job.keeps_state and not engine.reports_leave:
        parts.test.clients = open_states(folder.path, state.done, state.summed.last)
    state.ledger.note_in_clear(in_clear(job, parts.protection, leaves=engine.reports_leave))
    # The recorder creates the file of metrics, after `keep`.
    is_kept = engine.reports_leave and (folder.path / METRICS).exists()
    attempts = Attempts(folder, state.done, is_kept=is_kept)
    added = _added_rounds(parts, folder.path / JOB, state.done)
    keep_job(folder, job, job.own_names)
    if engine.reports_leave:
        attempts.keep()
    recorder = Recorder(folder, metrics, tensorboard=job.record.tensorboard)
    stack.callback(recorder.close)
    clients = engine.start(job, parts.shape, parts.protection, folder.path, recorder.event)
    return_freed_memory()
    executor = parts.canaries.beside(clients)
    stack.callback(executor.close)
    federation = Federation(
        parts=parts,
        state=state,
        folder=folder,
        attempts=attempts,
        recorder=recorder,
        executor=executor,
        reports_leave=engine.reports_leave,
        presentation=presentation,
    )
    warnings = list(filter(None, [over, added, thin_promise(job, parts.protection)]))
    lines = [*_facts(parts, engine), *warnings, *federation.charge_begun()]
    log_start(recorder.event, beginning("round", state.done), began, lines)
    for sentence in warnings:
        (warn or (lambda text: None))(sentence)
    return federation


def _added_rounds(parts: Parts, before: Path, done: int) -> str | None:
    """Return a warning if rounds are added to a run with an epsilon after results, else None.

    `before` is the job's file before this resumption, and `done` the number of rounds done.
    """
    job, protection = parts.job, parts.protection
    if not done or not protection.noised(protection.settings):
        return None
    earlier = Job.load(before).rounds
    if job.rounds == earlier:
        return None
    known = f"the results of {quantity(done, 'round')} were known"
    return (
        f"rounds was raised from {earlier} to {job.rounds} when {known}: "
        "no epsilon covers a choice that depends on results"
    )


def _facts(parts: Parts, engine: Engine) -> Iterable[str]:
    job = parts.job
    yield f"rounds: {job.rounds} in all"
    yield f"randomness of reports: {report_entropy(job).description}"
    yield from engine.describe()
    yield from parts.test.part.explain()
    yield from parts.test.layout.explain()
    yield from job.warnings
