"""The conclusions of a vertical run: the model's quality, the privacy guarantee, the next step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from shlex import quote
from typing import Any

from fedveil.pages.guarantee_text import ALONE, SEEDED, listed, returned
from fedveil.pages.page import Fact
from fedveil.pages.read_run import ReadRun
from fedveil.pages.run_summary import NEXT, PROMISED, QUALITY, TONES, Ending
from fedveil.privacy.ledger import Line
from fedveil.record.account_lines import LABEL, UNPROTECTED, WAYS, influence, influenced_part
from fedveil.record.metric_names import digits, word
from fedveil.record.recorder import INFERRED
from fedveil.record.run_folder import JOB

_UNPROTECTED = (
    "The tensors sent between the parties are not protected. They may reveal everything about an "
    "example."
)
#: The setting that bounds what followers can infer about the labels.
_LABELS = "privacy.label_dp.eps: 1"
#: The next step of a party that knows only its own account.
_ASK = (
    "ask the other parties",
    "the page of each other party states the epsilon of what that party sends",
)


def vertical_ending(
    run: ReadRun, leader: ReadRun, accounts: Sequence[Line], *, apart: bool = False
) -> Ending:
    """Return the quality, privacy guarantee and next step of a vertical run.

    `leader` has the leader's records. `accounts` are the lines of all parties' epsilons. `apart` is
    True if the parties are on different machines.
    """
    quality = _quality_of_parties(leader)
    worst = worst_of(accounts)
    following = _next_apart if apart else _next_of_vertical
    if worst is None and apart and run.job["privacy"].get("embedding_dp"):
        return Ending(quality, *_of_others(run, leader))
    if worst is not None and worst.what.endswith(UNPROTECTED):
        worst = None  # other epsilons do not cover an example that was also sent unprotected
    if worst is None:
        promise = Fact(PROMISED, "none", _UNPROTECTED, "poor")
    else:
        promise = _promise_of_parties(run, worst, accounts, apart=apart)
    return Ending(quality, promise, Fact(NEXT, *following(run, leader, worst)))


def _promise_of_parties(
    run: ReadRun, worst: Line, accounts: Sequence[Line], *, apart: bool
) -> Fact:
    """Return the card with the largest epsilon in `accounts`, that of the line `worst`.

    If `apart` is True, the parties are on different machines, and `accounts` is one party's own.
    """
    covers = (
        "the largest finite figure in this party's own account. Each other party's account states "
        "the epsilon of what that party sends."
        if apart
        else "the largest finite figure in any party's account."
    )
    text = f"For {worst.what}: {covers}{_uncovered(accounts)} {returned(run.job)}"
    if not apart and run.job["privacy"]["randomness"] == "seeded":
        text += f" {SEEDED}"
    tone = TONES[worst.figure.promise]
    if apart:
        return Fact(PROMISED, f"{worst.figure}{ALONE}", text, "fair" if tone == "good" else tone)
    return Fact(PROMISED, str(worst.figure), text, tone)


def of_others(job: Mapping[str, Any]) -> str:
    """Return what a party without an account of its own knows about the privacy of a job."""
    return (
        f"Each party that sends activations states the epsilon in its own account. {returned(job)}"
    )


def _of_others(run: ReadRun, leader: ReadRun) -> tuple[Fact, Fact]:
    """Return two cards for a party that sends no protected tensor: guarantee, and next step.

    Such a party, usually the leader, has no privacy account of its own. The cards refer to the
    accounts of the other parties.
    """
    promise = Fact(PROMISED, "not known here", of_others(run.job))
    if leader.ended is None or not leader.finished:
        return promise, Fact(NEXT, *_next_apart(run, leader, None))
    if leader.said(INFERRED):
        return promise, Fact(NEXT, "protect the labels", f"set `{_LABELS}` in every party's job")
    return promise, Fact(NEXT, *_ASK)


def _quality_of_parties(leader: ReadRun) -> Fact:
    metrics = {
        key.removeprefix("test_"): value
        for key, value in leader.last.items()
        if key.startswith("test_")
    }
    if not metrics:
        return Fact(QUALITY, "not known here", "the leader reports it after an evaluation")
    first = "accuracy" if "accuracy" in metrics else next(iter(metrics))
    value, *others = (
        f"{word(name)} {digits(name, metrics[name])}" for name in dict.fromkeys([first, *metrics])
    )
    return Fact(QUALITY, value, f"{', '.join(others)} on the held-out examples".strip())


def worst_of(accounts: Sequence[Line]) -> Line | None:
    """Return the line with the largest epsilon in the parties' accounts, or None if there is none.

    Ignores lines about another kind of leak: one example's influence on the model, and so on the
    later reports of other examples.
    """
    own = (line for line in accounts if influenced_part(line.what) is None)
    return max(own, key=lambda line: line.epsilon, default=None)


def _uncovered(accounts: Iterable[Line]) -> str:
    """Return sentences about leaks that no epsilon in `accounts` covers, or "" if there are none.

    Training on an example changes a part of the model, and so the later reports of other examples.
    A part may also mix the examples of a batch, or read columns that were computed from several
    examples. For each such part, `accounts` has a line with an
    infinite epsilon. The sentences name the parts.
    """
    lines, said = list(accounts), ""
    for way in WAYS:
        found = (influenced_part(line.what, way) for line in lines)
        if parts := list(dict.fromkeys(part for part in found if part is not None)):
            said += f" No epsilon covers {influence(listed(parts), way)}."
    return said


def _next_of_vertical(run: ReadRun, leader: ReadRun, worst: Line | None) -> tuple[str, str]:
    folder = quote(str(run.folder))
    if leader.ended is None or not leader.finished:
        return "let it finish", f"`fedveil vertical run --resume {folder}` resumes it"
    again = f"fedveil vertical run {quote(str(run.folder / JOB))}"
    attack = "tokens" if run.job["task"]["name"] == "pangu" else "features"
    if worst is not None and worst.figure.thin:
        reuse = f"`{again} --set privacy.embedding_dp.reuse=true`"
        return "ask for a stronger guarantee", _stronger(run, worst, reuse)
    if worst is None:
        short, labels = "protect the activations", ""
        if leader.said(INFERRED):
            short = "protect the activations and the labels"
            labels = " --set privacy.label_dp.eps=1"
        return short, (
            f"`{again} --set privacy.embedding_dp.eps=1{labels}`; `fedveil attack {attack} "
            f"{folder}` shows what the activations reveal now"
        )
    return "try to break it", f"`fedveil attack {attack} {folder}`"


def _stronger(run: ReadRun, worst: Line, reuse: str) -> str:
    """Return advice on how to make the epsilon `worst` of a vertical run smaller.

    `reuse` says how to send an example's first report again in every epoch.
    """
    if worst.what == LABEL:
        return "a smaller `privacy.label_dp.eps` changes more labels"
    costs = "every bit sent about an example costs privacy"
    if (run.job["privacy"]["embedding_dp"] or {}).get("reuse"):
        return f"{costs}: use fewer bits, or a smaller `privacy.embedding_dp.eps`"
    return f"{costs}: use fewer bits, fewer epochs, and {reuse}"


def _next_apart(run: ReadRun, leader: ReadRun, worst: Line | None) -> tuple[str, str]:
    """Return the user's next step, in short and in detail, for parties on different machines.

    `worst` is the line of the parties' accounts with the largest epsilon, or None if there is none.
    """
    if leader.ended is None or not leader.finished:
        folder = quote(str(run.folder))
        return "let it finish", f"this party's command with `--resume {folder}` resumes it"
    if worst is None and leader.said(INFERRED):
        keys = f"`privacy.embedding_dp.eps: 1` and `{_LABELS}`"
        return "protect the activations and the labels", f"set {keys} in every party's job"
    if worst is None:
        return "protect the activations", "set `privacy.embedding_dp.eps: 1` in every party's job"
    if worst.figure.thin:
        reuse = "`privacy.embedding_dp.reuse: true` in every party's job"
        return "ask for a stronger guarantee", _stronger(run, worst, reuse)
    short, ask = _ASK
    return short, (
        f"{ask}\n`fedveil attack` needs a run with all parties in one process, made by `fedveil "
        "vertical run` where all their data may be used"
    )
