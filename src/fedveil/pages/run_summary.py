"""The conclusions of a run: the model's quality, the privacy guarantee, the user's next step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from shlex import quote
from typing import Any, NamedTuple

from fedveil.pages.guarantee_text import RUN, attackers, figure_of, meaning, whose
from fedveil.pages.page import Fact, Tone
from fedveil.pages.read_run import BUFFERS, ReadRun
from fedveil.privacy.guarantee_strength import Promise
from fedveil.protections.base import Protection
from fedveil.protections.catalog import POSITIONS
from fedveil.protections.switching import switched
from fedveil.record.metric_names import best, deciding, digits, figures, word
from fedveil.record.recorder import ADVICE, SEVERAL, Record
from fedveil.record.run_folder import JOB

TONES: dict[Promise, Tone] = {
    "strong": "good", "meaningful": "good", "weak": "fair", "next to none": "poor", "none": "poor"
}  # fmt: skip
#: A model with a smaller AUC has learnt hardly anything, whatever the number of classes.
_LITTLE_AUC = 0.7
#: A model that reached this AUC had learnt, so it has collapsed if it ends below `_LITTLE_AUC`.
_LEARNT_AUC = 0.9
QUALITY, PROMISED, NEXT = "Model quality", "Privacy guarantee", "Next step"


class Ending(NamedTuple):
    """The three conclusions of a run: quality, privacy guarantee, and the user's next step."""

    quality: Fact
    promise: Fact
    next: Fact


def ending(run: ReadRun) -> Ending:
    """Return the quality, guarantee and next step of a federated run, which may be unfinished."""
    last = run.last
    return Ending(_quality(run, last), _promise(run.job, last), Fact(NEXT, *_next(run, last)))


class Best(NamedTuple):
    """The earliest round with the best result, and the name and value of the main metric."""

    round: int
    name: str
    figure: float

    def __str__(self) -> str:
        return f"{self.round}, {word(self.name)} {digits(self.name, self.figure)}"


def best_round(run: ReadRun) -> Best | None:
    """Return the best round of a run, or None if the model was never evaluated."""
    name, better = deciding(run.last)
    rounds, figures = run.figures(name)
    if not rounds:
        return None
    value = best(figures, better)
    return Best(rounds[figures.index(value)], name, value)


def _quality(run: ReadRun, last: Record) -> Fact:
    (name, _), others = deciding(last), figures(last)[1:]
    if run.failed:
        figure = f"{word(name)} {digits(name, last[name])}" if name in last else ""
        before = f"the model before training has {figure} on the test examples" if figure else ""
        return Fact(QUALITY, "no trained model", before, "poor")
    if name not in last:
        at_end = run.said("the model at its end: ")
        return Fact(QUALITY, at_end or "not measured yet", "on the test examples" if at_end else "")
    rounds, _ = run.figures(name)
    found = best_round(run)
    assert found is not None, "there is a figure"
    beside = [f"{word(key)} {digits(key, last[key])}" for key in others if key in last]
    where = f"on the test examples after round {rounds[-1]} of {run.job['rounds']}"
    text = f"{', '.join(beside)} {where}".strip()
    if found.figure != last[name] and not math.isnan(last[name]):
        text += f"; best in round {found.round}: {digits(name, found.figure)}"
    if "clients_mean" in last:
        text += (
            f"; on the clients' own data: mean {digits(name, last['clients_mean'])}, "
            f"worst tenth {digits(name, last['clients_worst_tenth'])}, "
            f"spread {digits(name, last['clients_spread'])}"
        )
    return Fact(QUALITY, f"{word(name)} {digits(name, last[name])}", text)


def _promise(job: Mapping[str, Any], last: Record) -> Fact:
    if not last:
        return Fact(PROMISED, "no client has sent anything yet")
    figure = figure_of(last, RUN)
    seen = attackers(job)
    if figure.promise == "none":
        said = f"For {whose(last)} that takes part in every round. {meaning(last)}"
        hidden = _protection(job["protection"]["name"]).hides.format(seen)
        return Fact(PROMISED, str(figure), f"{said} {hidden}".strip(), TONES["none"])
    against = f", against {seen}" if seen else ""
    holds = f"For {whose(last)} that takes part in every round{against}."
    return Fact(PROMISED, str(figure), f"{holds} {meaning(last)}", TONES[figure.promise])


def _next(run: ReadRun, last: Record) -> tuple[str, str]:
    folder, job = quote(str(run.folder)), quote(str(run.folder / JOB))
    if run.failed:
        return "remove the cause, then run it again", run.failed
    if run.ended is None or not run.finished:
        again = "flwr run` of the same app" if run.deployed else f"fedveil run --resume {folder}`"
        return "let it finish", f"`{again} resumes an interrupted run"
    if any(finding.refutes for finding in run.findings):
        return (
            "do not rely on the guarantee",
            f"an attack found more than it allows; `fedveil audit {folder}` shows which",
        )
    if fell := _fell(run, last):
        return "find out why the model collapsed", f"{fell}. {_steadier(run, job)}"
    figure = figure_of(last, RUN)
    if advice := run.said(ADVICE):
        short, _, sentence = advice.partition(": ")
        told = sentence.replace(f"`fedveil run {JOB}", f"`{_again(run, job)}")
        return short, "\n".join([told, *_then(run), _trial(job), _attack(run, folder)])
    if figure.promise == "none":
        stronger = _protection(run.job["protection"]["name"]).stronger
        again = _switched(run, job, stronger.protection)
        why = f"{again} {stronger.why}"
        return stronger.advice, "\n".join([why, *_then(run), _attack(run, folder)])
    if figure.promise not in ("strong", "meaningful"):
        return "ask for a stronger guarantee", _trial(job)
    if last.get("auc", 1.0) < _LITTLE_AUC:
        longer = "more rounds also help, but cost more epsilon"
        if not run.deployed and run.stopped is None:
            longer = (
                f"`fedveil run --resume {folder} --set rounds=N` trains for more rounds, but costs "
                f"more epsilon"
            )
        return "improve the model", f"more clients per round tolerate more noise; {longer}"
    deploying = _deploying(run, job)
    tried = deploying and run.findings
    trials = "\n".join(filter(None, ["" if tried else _attack(run, folder), deploying]))
    return "try to break it, then deploy it" if deploying else "try to break it", trials


def _fell(run: ReadRun, last: Record) -> str:
    """Return a clause such as "its AUC fell from 0.950 after round 8 to 0.520".

    It has no full stop. Returns "" unless training ruined the model: the highest AUC of any round
    is at least `_LEARNT_AUC`, and that in `last`, the run's latest metrics, is below `_LITTLE_AUC`.
    """
    rounds, aucs = run.figures("auc")
    highest = best(aucs, "higher") if aucs else math.nan
    if not (highest >= _LEARNT_AUC and last.get("auc", math.nan) < _LITTLE_AUC):
        return ""
    then, now = (digits("auc", value) for value in (highest, last["auc"]))
    return f"its AUC fell from {then} after round {rounds[aucs.index(highest)]} to {now}"


def _steadier(run: ReadRun, job: str) -> str:
    """Return advice on how to prevent one client's diverging training from ruining the model.

    `job` is the path of the run's job file.
    """
    slower = "A smaller training.lr makes training more stable"
    training = run.job["training"]
    bounded = training["gradient_norm"] is not None or run.job["privacy"]["unit"] == "example"
    if bounded or training["algorithm"] not in ("fedavg", "feddyn"):
        return slower
    command = f"{_again(run, job)} --set training.gradient_norm=10"
    return (
        f"One client's diverging update can do this. `{command}` bounds the gradient of every "
        f"batch. {slower}"
    )


def _switched(run: ReadRun, job: str, position: str) -> str:
    """Return a sentence with the command that repeats job file `job` under another protection.

    `position` is the name of this protection.
    """
    changes = switched(run.job, position)
    command = " ".join([_again(run, job), *(f"--set {change}" for change in changes)])
    if buffers := run.said(BUFFERS):
        return f"with a model without the buffers {buffers}, `{command}` trains"
    return f"`{command}` {'writes an app that repeats' if run.deployed else 'repeats'} the job"


def _again(run: ReadRun, job: str) -> str:
    """Return the command that repeats a run with the job file `job`.

    For a deployed run, the command writes the folder of its Flower app again, for `flwr run`.
    """
    return f"fedveil deploy DIR {job}" if run.deployed else f"fedveil run {job}"


def _then(run: ReadRun) -> list[str]:
    """Return a line that says how to start the Flower app of a deployed run.

    Returns an empty list for a simulated run.
    """
    return ["`flwr run DIR` starts it on the clients"] if run.deployed else []


def _protection(name: str) -> type[Protection]:
    """Return the class of the built-in protection `name`.

    For a user's own protection, returns the base class `Protection` and does not import their code.
    """
    return POSITIONS.get(name, Protection)


def _attack(run: ReadRun, folder: str) -> str:
    """Return a sentence with a command that attacks the run in `folder`.

    If no attack fits the run's job, the command runs `fedveil audit` instead.
    """
    own = run.job["training"]["algorithm"] != "fedavg" or run.job["clients"]["own_layers"]
    if not own and run.job["task"] == "classification" and not run.said(SEVERAL):
        return f"`fedveil attack membership {folder}` tests which examples it was trained on"
    if not own and run.last["unit"] == "client":
        return f"`fedveil attack distinguish {folder}` tells two clients apart by their reports"
    return "`fedveil audit` tests the claims of every mechanism"


def _trial(job: str) -> str:
    """Return a sentence with the command that compares all protections in short runs of `job`."""
    return f"`fedveil budget {job} --try` compares all protections in short trial runs"


def _deploying(run: ReadRun, job: str) -> str:
    """Return a sentence with the command that deploys a run's job, or "" if that is impossible.

    `job` is the path of the run's job file.
    """
    kept = run.job["stopping"]
    judged = kept["keep"] == "best" or kept["target"] is not None or kept["patience"] is not None
    if run.deployed or (run.job["clients"]["own_layers"] and judged):
        return ""
    alone = {
        "simulation.dropouts": ("{}", run.job["simulation"]["dropouts"]),
        "audit.canaries": ("0", run.job["audit"]["canaries"]),
        "evaluation.clients": ("0", run.job["evaluation"]["clients"]),
    }
    settings = [f" --set {key}={none}" for key, (none, value) in alone.items() if value]
    return f"`fedveil deploy DIR {job}{''.join(settings)}` runs the job on other machines"
