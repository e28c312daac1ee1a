"""What a run comes to, in three answers: how good, what was promised, and what to do next.

The first screen of a run's page and the last lines of its command are these.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from shlex import quote
from typing import NamedTuple

from fedveil.pages.page import Fact, Tone
from fedveil.pages.promised import RUN, figure_of, meaning
from fedveil.pages.read_run import ReadRun
from fedveil.privacy.ledger import Line
from fedveil.privacy.promise import Promise
from fedveil.protections.positions import POSITIONS
from fedveil.protections.pw_encrypt import PWEncrypt
from fedveil.record.measures import best, deciding, figures, word
from fedveil.record.recorder import Record
from fedveil.record.run_folder import JOB

TONES: dict[Promise, Tone] = {
    "strong": "good", "meaningful": "good", "weak": "fair", "next to none": "poor", "none": "poor"
}  # fmt: skip
#: Below this a model has hardly learnt, however many classes there are.
_LITTLE_AUC = 0.7
_QUALITY, _PROMISED, _NEXT = "How good the model is", "What was promised, and to whom", "What next"


class Ending(NamedTuple):
    """The three answers."""

    quality: Fact
    promise: Fact
    next: Fact


def ending(run: ReadRun) -> Ending:
    """Of a federated run, whether it has ended or not."""
    last = run.last
    return Ending(_quality(run, last), _promise(last), Fact(_NEXT, *_next(run, last)))


def vertical_ending(run: ReadRun, leader: ReadRun, accounts: Sequence[Line]) -> Ending:
    """Of a vertical run; `accounts` are those of all its parties."""
    shown = [
        f"{key.removeprefix('test_')} {value:.4f}"
        for key, value in leader.last.items()
        if key.startswith("test_")
    ]
    quality = Fact(
        _QUALITY,
        " · ".join(shown) or "not known here",
        "on the held-out examples" if shown else "the leader has the figures, once it has looked",
    )
    worst = worst_of(accounts)
    promise = Fact(
        _PROMISED,
        "nothing" if worst is None else str(worst.figure),
        "what crosses between the parties crosses as it is, and may tell everything about an "
        "example"
        if worst is None
        else f"for {worst.what}: the most that the account of any party says",
        "poor" if worst is None else TONES[worst.figure.promise],
    )
    return Ending(quality, promise, Fact(_NEXT, *_next_of_vertical(run, leader, worst)))


def worst_of(accounts: Sequence[Line]) -> Line | None:
    """The largest figure of all accounts; None where nobody has one."""
    return max(accounts, key=lambda line: line.epsilon, default=None)


class Best(NamedTuple):
    """The round after which the model was best, the first of those, by the figure that decides."""

    round: int
    name: str
    figure: float

    def __str__(self) -> str:
        return f"{self.round}, {word(self.name)} {self.figure:.4f}"


def best_round(run: ReadRun) -> Best | None:
    """Of a run that has looked at its model."""
    name, better = deciding(run.last)
    rounds, figures = run.figures(name)
    if not rounds:
        return None
    value = best(figures, better)
    return Best(rounds[figures.index(value)], name, value)


def _quality(run: ReadRun, last: Record) -> Fact:
    (name, _), others = deciding(last), figures(last)[1:]
    if name not in last:
        at_end = run.said("the model at its end: ")
        return Fact(
            _QUALITY, at_end or "not measured yet", "on the test examples" if at_end else ""
        )
    rounds, _ = run.figures(name)
    found = best_round(run)
    assert found is not None, "there is a figure"
    shown = [f"{word(key)} {last[key]:.4f}" for key in others if key in last]
    where = f"on the test examples after round {rounds[-1]} of {run.job['rounds']}"
    text = f"{', '.join(shown)} {where}".strip()
    if found.figure != last[name] and not math.isnan(last[name]):
        text += f"; round {found.round} had {found.figure:.4f}"
    if "clients_mean" in last:
        text += (
            f"; at clients {last['clients_mean']:.4f} on average, "
            f"{last['clients_worst_tenth']:.4f} at the worst tenth, "
            f"spread {last['clients_spread']:.4f}"
        )
    return Fact(_QUALITY, f"{word(name)} {last[name]:.4f}", text)


def _promise(last: Record) -> Fact:
    if not last:
        return Fact(_PROMISED, "nothing has left a client yet")
    figure = figure_of(last, RUN)
    whose = "one example of a client" if last["unit"] == "example" else "a client"
    return Fact(
        _PROMISED,
        str(figure),
        f"to {whose} drawn in every round: {meaning(last)}",
        TONES[figure.promise],
    )


def _next(run: ReadRun, last: Record) -> tuple[str, str]:
    folder, job = quote(str(run.folder)), quote(str(run.folder / JOB))
    if run.ended is None or not run.finished:
        again = "flwr run` of the same app" if run.deployed else f"fedveil run --resume {folder}`"
        return "let it end", f"`{again} goes on with a run that was cut off"
    if any(finding.refutes for finding in run.findings):
        return (
            "do not rely on the promise",
            f"an attack found more than it allows: `fedveil audit {folder}` says which",
        )
    figure = figure_of(last, RUN)
    if figure.promise == "none" and run.job["protection"]["name"] == PWEncrypt.name:
        return (
            "put noise into the sum",
            f"`{_switched(run, job, 'distributed_dp')}` trains the same with noise that every "
            f"client adds a part of: the sum alone promises nothing",
        )
    if figure.promise == "none":
        return (
            "put a protection in the switch",
            f"`{_switched(run, job, 'dp_encrypt')}` trains the same with noise in every report; "
            f"{_attack(run, folder)}",
        )
    if figure.promise not in ("strong", "meaningful"):
        return "ask for a stronger promise", _stronger(run, job)
    if last.get("auc", 1.0) < _LITTLE_AUC:
        return (
            "help it learn",
            f"more clients in a round stand more noise; `fedveil run --resume {folder} --set "
            f"rounds=N` gives it more rounds, which cost more epsilon",
        )
    trials = "; ".join(_trials(run, folder, job))
    return "try to refute it" if run.deployed else "try to refute it, then deploy it", trials


def _switched(run: ReadRun, job: str, position: str) -> str:
    """The run's job again under a position that takes clients to count equally."""
    by_size = run.job["server"]["weighting"] == "by_size"
    equal = " --set server.weighting=equal" if by_size else ""
    return f"fedveil run {job} --set protection={position}{equal}"


def _attack(run: ReadRun, folder: str) -> str:
    """An attack that takes the run's job; where none does, the trial of all mechanisms."""
    own = run.job["training"]["algorithm"] != "fedavg" or run.job["clients"]["own_layers"]
    if not own and run.job["task"] == "classification":
        return f"`fedveil attack membership {folder}` asks the model whom it was trained on"
    if not own and run.last["unit"] == "client":
        return f"`fedveil attack distinguish {folder}` tells two clients by their reports"
    return "`fedveil audit` tries to refute what every mechanism claims"


def _stronger(run: ReadRun, job: str) -> str:
    position = POSITIONS.get(str(run.job["protection"]["name"]))
    if position is None or position.cost_parameter is None:
        return "fewer rounds or more noise promise more"
    return f"`fedveil budget {job} --target-epsilon 2` finds the parameter for a meaningful one"


def _trials(run: ReadRun, folder: str, job: str) -> Iterator[str]:
    if run.deployed or not run.findings:
        yield _attack(run, folder)
    if not run.deployed:
        yield f"`fedveil deploy DIR {job}` takes the job to other machines"


def _next_of_vertical(run: ReadRun, leader: ReadRun, worst: Line | None) -> tuple[str, str]:
    folder = quote(str(run.folder))
    if leader.ended is None or not leader.finished:
        return "let it end", f"`fedveil vertical run --resume {folder}` goes on"
    job = quote(str(run.folder / JOB))
    attack = "tokens" if run.job["task"]["name"] == "pangu" else "features"
    if worst is not None and worst.figure.thin:
        return (
            "ask for a stronger promise",
            f"an example pays for all that crosses of it: fewer bits, fewer epochs, and "
            f"`fedveil vertical run {job} --set privacy.embedding_dp.reuse=true`",
        )
    if worst is None:
        return (
            "protect what crosses",
            f"`fedveil vertical run {job} --set privacy.embedding_dp.eps=1`; `fedveil attack "
            f"{attack} {folder}` shows what it tells without",
        )
    return "try to refute it", f"`fedveil attack {attack} {folder}`"
