"""`fedveil budget --try`: a short run of every protection, compared at one epsilon."""

from __future__ import annotations

import math

from fedveil.base.plain_text import console, say
from fedveil.base.quantity import quantity
from fedveil.cli.json_answer import answer
from fedveil.federated.job import Job
from fedveil.pages.table import Table
from fedveil.privacy.guarantee_strength import epsilon_text
from fedveil.privacy.loss import format_epsilon
from fedveil.record.metric_names import digits, word
from fedveil.studies.trial_runs import Trial, best, trials


def show_trials(job: Job, target: float, start: str, *, as_json: bool) -> None:
    """Run a short trial of each protection at epsilon `target`, and print the results.

    Also prints the command that runs the whole job under the best protection. The command begins
    with `start`, such as `fedveil run job.yaml`. If `as_json` is True, everything is printed as
    JSON.
    """
    found = list(trials(job, target, (lambda text: None) if as_json else say))
    units = dict.fromkeys((job.privacy.unit, "example"))
    chosen = {unit: trial for unit in units if (trial := best(found, unit)) is not None}
    if as_json:
        commands = {unit: _command(trial, start) for unit, trial in chosen.items()}
        answer({"trials": [_data(one) for one in found], "best": commands})
        return
    table = _table(found)
    say(f"\n{table.caption}:")
    console().print(table)
    if not chosen:
        say(
            f"at epsilon {format_epsilon(target)}, no protection learns from these clients. These "
            f"help: more clients in a round, and a model with fewer trained weights"
        )
    for unit, trial in chosen.items():
        assert trial.candidate is not None  # the best trial has a guarantee, so it has a candidate
        whole = "one example" if unit == "example" else "a whole client"
        say(
            f"best for {whole}: {trial.candidate.name}, {word(trial.metric)} "
            f"{digits(trial.metric, trial.value)} in the trial. The whole run costs "
            f"{trial.figure}, against {trial.candidate.against}:"
        )
        say(f"  {_command(trial, start)}")


def _command(trial: Trial, start: str) -> str:
    assert trial.candidate is not None
    return trial.candidate.command(start)


def _table(found: list[Trial]) -> Table:
    done = next((one for one in found if one.metric), None)
    metric = "result" if done is None else word(done.metric)
    rows = [[one.name, _epsilon(one), _result(one), _noise(one)] for one in found]
    caption = "no trial has a result"
    if done is not None:
        rounds = quantity(done.rounds, "round")
        caption = f"short trials, {rounds} with the noise of a whole run, on {done.examples}"
    return Table(["protection", "epsilon of a run", metric, "noise / update"], rows, caption)


def _epsilon(trial: Trial) -> str:
    """Return the epsilon of a whole run as text, or "-" if the job rules out the protection."""
    ruled_out = trial.candidate is None and trial.failure
    return "-" if ruled_out else epsilon_text(*trial.figure)


def _result(trial: Trial) -> str:
    return digits(trial.metric, trial.value) if trial.metric else f"no result: {trial.failure}"


def _noise(trial: Trial) -> str:
    """Return, as text, the noise's norm divided by that of the mean update, or "-" if unknown."""
    if trial.noise is None:
        return "-"
    return f"{trial.noise:.2f}" if trial.noise < 10 else f"{trial.noise:,.0f}"


def _data(trial: Trial) -> dict[str, object]:
    return {
        "protection": trial.name,
        "epsilon": trial.figure.epsilon,
        "delta": trial.figure.delta,
        "metric": trial.metric,
        "value": None if math.isnan(trial.value) else trial.value,
        "examples": trial.examples,
        "rounds": trial.rounds,
        "noise_over_update": trial.noise,
        "settings": [] if trial.candidate is None else list(trial.candidate.settings),
        "failure": trial.failure,
    }
