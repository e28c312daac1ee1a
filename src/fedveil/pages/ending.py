"""What a run comes to, in three answers: how good, what was promised, and what to do next.

The first screen of a run's page and the last lines of its command are these.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from shlex import quote
from typing import Any, NamedTuple

from fedveil.errors import JobError
from fedveil.federated.job import Job
from fedveil.pages.page import Fact, Tone
from fedveil.pages.promised import RUN, figure_of, meaning
from fedveil.pages.read_run import BUFFERS, SEVERAL, ReadRun
from fedveil.privacy.ledger import Line
from fedveil.privacy.promise import Promise
from fedveil.protections.positions import POSITIONS
from fedveil.protections.pw_encrypt import PWEncrypt
from fedveil.protections.secure_sum_settings import SecureSumSettings
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


def vertical_ending(
    run: ReadRun, leader: ReadRun, accounts: Sequence[Line], *, apart: bool = False
) -> Ending:
    """Of a vertical run; `accounts` are those of all its parties.

    `apart`: only one of them is here, and the others are on machines of their own.
    """
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
    following = _next_apart if apart else _next_of_vertical
    return Ending(quality, promise, Fact(_NEXT, *following(run, leader, worst)))


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
        again = _switched(run, job, "distributed_dp")
        return (
            "put noise into the sum",
            f"{again} with noise that every client adds a part of: the sum alone promises nothing",
        )
    if figure.promise == "none":
        again = _switched(run, job, "dp_encrypt")
        return (
            "put a protection in the switch",
            f"{again} with noise in every report; {_attack(run, folder)}",
        )
    if figure.promise not in ("strong", "meaningful"):
        return "ask for a stronger promise", _stronger(run, job)
    if last.get("auc", 1.0) < _LITTLE_AUC:
        longer = "more rounds help too, and cost more epsilon"
        if not run.deployed and run.stopped is None:
            longer = (
                f"`fedveil run --resume {folder} --set rounds=N` gives it more rounds, which cost "
                f"more epsilon"
            )
        return "help it learn", f"more clients in a round stand more noise; {longer}"
    deploying = _deploying(run, job)
    tried = deploying and run.findings
    trials = "; ".join(filter(None, ["" if tried else _attack(run, folder), deploying]))
    return "try to refute it, then deploy it" if deploying else "try to refute it", trials


def _switched(run: ReadRun, job: str, position: str) -> str:
    """The run's job again under a position with noise, and what must be set for that besides.

    Such a position takes clients to count equally, and shortens reports before they are combined.
    """
    changes = {"protection": position}
    if run.job["server"]["weighting"] == "by_size":
        changes["server.weighting"] = "equal"
    if run.job["server"]["aggregation"] not in POSITIONS[position].combinations:
        changes["server.aggregation"] = "mean"
    settings = [f"{key}={value}" for key, value in changes.items()]
    if run.job["protection"]["name"] == PWEncrypt.name and not _taken(run, settings):
        settings += _shared_alike(run.job["protection"][PWEncrypt.block], position)
    command = " ".join([f"fedveil run {job}", *(f"--set {setting}" for setting in settings)])
    if buffers := run.said(BUFFERS):
        return f"with a model without the buffers {buffers}, `{command}` trains it"
    return f"`{command}` trains the same"


def _taken(run: ReadRun, settings: Sequence[str]) -> bool:
    """Whether the run's job is a job with these settings on top."""
    try:
        Job.read(run.job, settings)
    except JobError:
        return False
    return True


def _shared_alike(held: Mapping[str, Any], position: str) -> list[str]:
    """The settings with which secrets are shared as a block says that has the same keys."""
    return [
        f"protection.{position}.{key}={str(held[key]).lower()}"
        for key, field in SecureSumSettings.model_fields.items()
        if held[key] != field.default
    ]


def _attack(run: ReadRun, folder: str) -> str:
    """An attack that takes the run's job; where none does, the trial of all mechanisms."""
    own = run.job["training"]["algorithm"] != "fedavg" or run.job["clients"]["own_layers"]
    if not own and run.job["task"] == "classification" and not run.said(SEVERAL):
        return f"`fedveil attack membership {folder}` asks the model whom it was trained on"
    if not own and run.last["unit"] == "client":
        return f"`fedveil attack distinguish {folder}` tells two clients by their reports"
    return "`fedveil audit` tries to refute what every mechanism claims"


def _stronger(run: ReadRun, job: str) -> str:
    position = POSITIONS.get(str(run.job["protection"]["name"]))
    if position is None or position.cost_parameter is None:
        return "fewer rounds or more noise promise more"
    return f"`fedveil budget {job} --target-epsilon 2` finds the parameter for a meaningful one"


def _deploying(run: ReadRun, job: str) -> str:
    """How the run's job is deployed, without what a simulator alone does; empty where it is not."""
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
    return f"`fedveil deploy DIR {job}{''.join(settings)}` takes the job to other machines"


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


def _next_apart(run: ReadRun, leader: ReadRun, worst: Line | None) -> tuple[str, str]:
    """Of one party: what all must do, and what takes all of them in one process."""
    if leader.ended is None or not leader.finished:
        folder = quote(str(run.folder))
        return "let it end", f"with `--resume {folder}`, this party's command goes on"
    if worst is None:
        return "protect what crosses", "`privacy.embedding_dp.eps: 1` in every party's job does"
    if worst.figure.thin:
        return (
            "ask for a stronger promise",
            "an example pays for all that crosses of it: fewer bits, fewer epochs, and "
            "`privacy.embedding_dp.reuse: true` in every party's job",
        )
    return (
        "try to refute it",
        "`fedveil attack` takes a run of all parties in one process, which `fedveil vertical run` "
        "makes where their data may be",
    )
