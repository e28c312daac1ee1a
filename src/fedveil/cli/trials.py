"""`fedveil budget --try`: every protection in a short run, side by side at one epsilon."""

from __future__ import annotations

import math

from fedveil.base.plain_text import console, say
from fedveil.cli.json_answer import answer
from fedveil.federated.job import Job
from fedveil.pages.table import Table
from fedveil.privacy.guarantee_strength import told
from fedveil.record.metric_names import digits, word
from fedveil.studies.trial_runs import Trial, best, trials


def show_trials(job: Job, target: float, start: str, *, as_json: bool) -> None:
    """Run the trials of a job at epsilon `target`, and print them with the best one's command.

    `start` is the beginning of that command. With `as_json`, prints JSON instead.
    """
    found = list(trials(job, target, (lambda text: None) if as_json else say))
    chosen = best(found)
    command = (
        None if chosen is None or chosen.candidate is None else chosen.candidate.command(start)
    )
    if as_json:
        answer({"trials": [_data(one) for one in found], "best": command})
        return
    table = _table(found)
    say(f"\n{table.caption}:")
    console().print(table.terminal())
    if chosen is None or chosen.candidate is None:
        say("no protection that states a promise has a result for this job")
        return
    say(
        f"best: {chosen.name}, {word(chosen.metric)} {digits(chosen.metric, chosen.value)} in the "
        f"trial. The whole run costs {chosen.figure}, against {chosen.candidate.against}:"
    )
    say(f"  {command}")


def _table(found: list[Trial]) -> Table:
    done = next((one for one in found if one.metric), None)
    metric = "result" if done is None else word(done.metric)
    rows = [[one.name, told(*one.figure), _result(one), _noise(one)] for one in found]
    caption = "no trial has a result"
    if done is not None:
        caption = (
            f"short trials, {done.rounds} rounds with the noise of a whole run, on {done.examples}"
        )
    return Table(["protection", "epsilon of a run", metric, "noise / update"], rows, caption)


def _result(trial: Trial) -> str:
    return digits(trial.metric, trial.value) if trial.metric else f"no result: {trial.failure}"


def _noise(trial: Trial) -> str:
    """Return the least length of the noise over that of the mean update, if it is known."""
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
