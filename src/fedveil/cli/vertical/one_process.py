"""`fedveil vertical run | evaluate | predict | show`: all parties in this process.

With --listen, evaluate and predict run only the leader. The followers are on other machines.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

from fedveil import vertical
from fedveil.base.plain_text import document, remark, say
from fedveil.cli.path_argument import RunOut, path_option
from fedveil.cli.vertical import arguments
from fedveil.cli.vertical.job_file import load, of_accounts, print_results, say_accounts
from fedveil.cli.vertical.machines import look
from fedveil.cli.vertical.new_rows import predict_new
from fedveil.errors import InvalidValue, JobError
from fedveil.record.run_folder import refuse_taken
from fedveil.vertical.memory_reuse import keep_freed_memory


def run(
    job: arguments.JobPath = None,
    overrides: arguments.Overrides = None,
    out: RunOut = None,
    resume: arguments.Resume = None,
) -> object:
    """Train with all parties in this process (a simulation) and print the metrics."""
    keep_freed_memory()
    # The job is checked before torch is imported.
    if resume is None:
        refuse_taken(out, "fedveil vertical run")
        settings = load(job, overrides)
        work = partial(vertical.train, settings, out)
    elif job is None and not overrides and out is None:
        work = partial(vertical.resume, resume)
    else:
        raise JobError(["--resume uses the run's own job: remove JOB, --set and --out"])
    from fedveil.vertical.log_lines import line

    result = work(progress=lambda record: say(line(record)), say=remark)
    return print_results(result.folder)


def evaluate(
    run: arguments.RunPath,
    listen: arguments.Listen = None,
    tls: arguments.Tls = None,
    insecure: arguments.Insecure = False,
    patience: arguments.Patience = arguments.PATIENCE_S,
) -> object:
    """Evaluate the model on the held-out examples, under the same protection as in training.

    If the parties are on several machines, give --listen at the leader (the party with the labels),
    and run `fedveil vertical follower --serve` at the followers (all others).
    """
    if listen is None:
        from fedveil.vertical import one_process

        quality, figures = one_process.evaluate(run, remark)
    else:
        session = look("evaluate", run, listen, tls, insecure, patience)
        quality, figures = session.result, {session.run.name: session.figures}
    for name, value in quality.items():
        if isinstance(value, float):
            say(f"{name} {value:.6f}")
    for name, figures_of_class in quality.get("per_class", {}).items():
        told = (f"{key} {figure:.6g}" for key, figure in figures_of_class.items())
        say(f"class {name}: {', '.join(told)}")
    say_accounts(figures)
    return {"figures": quality, "accounts": of_accounts(figures)}


def predict(
    run: arguments.ScoredRun,
    out: Annotated[
        Path,
        path_option(
            help="The file to write: .csv (a line per example) or .npz (arrays of ids and outputs)."
        ),
    ] = Path("predictions.csv"),
    data: arguments.Data = None,
    listen: arguments.Listen = None,
    connect: arguments.ConnectTo = None,
    most_ids: arguments.MostIds = None,
    tls: arguments.Tls = None,
    insecure: arguments.Insecure = False,
    patience: arguments.Patience = arguments.PATIENCE_S,
) -> object:
    """Write the model's predictions for new rows (--data) or for the held-out examples.

    If the parties are on several machines, give --listen at the leader (the party with the labels).
    At the followers (all others), run the same command with --data and --connect, or for held-out
    examples `fedveil vertical follower --serve`.
    """
    if data is not None:
        return predict_new(run, data, out, listen, connect, tls, insecure, patience, most_ids)
    if connect is not None:
        raise InvalidValue("--connect needs --data FILE: a follower scores its own new rows")
    if most_ids is not None:
        raise InvalidValue("--most-ids needs --data FILE: it limits guesses at ids in that file")
    from fedveil.vertical.predictions import PredictionFile

    file = PredictionFile(out)
    if listen is None:
        from fedveil.vertical import one_process

        found = one_process.look(run, file.predict, remark)
    else:
        session = look("predict", run, listen, tls, insecure, patience, file.predict)
        found = session.result
    assert found is not None, "the leader has the outputs"
    what = file.write(found)
    say(f"wrote {out}: {what}")
    return {"file": out, "holds": what}


def keys(key: arguments.KeyPart = None) -> object:
    """Explain the keys of a job for split learning: allowed values, default, meaning."""
    from fedveil.settings.reference import key_rows, keys
    from fedveil.vertical.job_reference import reference

    document(keys(reference(), key))
    return key_rows(reference(), key)


def parts(job: arguments.JobPath = None, overrides: arguments.Overrides = None) -> object:
    """List the model's parts: party, number of parameters, and memory needed for training."""
    settings = load(job, overrides)
    from fedveil.vertical.batch_memory import batch_bytes
    from fedveil.vertical.job_split import make_task
    from fedveil.vertical.part_memory import memory_of, memory_text, sizable, sized

    task = make_task(settings)
    known = sizable(settings, task)
    if not known:
        raise JobError(
            ["the sizes of the parts depend on data that is not here, or on functions of the "
             "job's own: start the run to see them"]
        )  # fmt: skip
    split = sized(settings, task, known)
    found = memory_of(split)
    for part in found:
        say(f"{part.part} of {part.owner}: {memory_text([part])}")
    for party in known:
        batch = batch_bytes(split, task, [party], settings.batch_size)
        say(
            f"{party} in all: {memory_text([part for part in found if part.owner == party], batch)}"
        )
    for party in (task.leader, *task.followers):
        if party not in known:
            say(f"{party}: the sizes of its parts depend on data that this job does not name")
    return [asdict(part) for part in found]


def show(job: arguments.JobPath = None, overrides: arguments.Overrides = None) -> object:
    """Check a job for split learning and print it with all keys, including defaults."""
    settings = load(job, overrides, "Show it with: fedveil job show")
    document(settings.to_yaml(), exact=True)
    return settings.model_dump(mode="json")
