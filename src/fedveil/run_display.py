"""How a run looks in a terminal."""

from __future__ import annotations

import math
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from fedveil.engine.federation import Run
from fedveil.engine.run_records import LOST, without_report
from fedveil.privacy.finding import CONFIDENCE, Finding
from fedveil.privacy.loss import format_delta
from fedveil.privacy.promise import Figure, attacker_wrong, told
from fedveil.record.byte_count import shown_bytes
from fedveil.record.recorder import Record

#: There is room for a bar beside the figures from this width on.
_WIDE, _BAR = 110, 24
_BETWEEN = " · "
#: What a narrow terminal does without, in this order.
_SPARED = ("up ", "loss ", "epsilon ")


class RunDisplay:
    """A bar of rounds with a live line of figures; a line a round where there is no terminal."""

    def __init__(self, console: Console, rounds: int) -> None:
        self._console = console
        self._rounds = rounds
        columns: list[ProgressColumn] = [TextColumn("round"), MofNCompleteColumn()]
        if console.width >= _WIDE:
            columns.append(BarColumn(bar_width=_BAR))
        columns += [TimeRemainingColumn(), TextColumn("{task.description}", markup=False)]
        self._bar = Progress(*columns, console=console)
        #: What the columns before the figures take: `round `, `n/n `, a bar, `h:mm:ss `.
        self._before = 6 + 2 * len(str(rounds)) + 2 + (_BAR + 1) * (len(columns) - 4) + 8
        self._task = self._bar.add_task("starting", total=rounds)

    def __enter__(self) -> RunDisplay:
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._console.is_terminal:
            self._bar.stop()

    def warn(self, text: str) -> None:
        """What is amiss with a run that starts."""
        self._say(f"warning: {text}")

    def show(self, record: Record) -> None:
        """A round has ended."""
        line = describe(record)
        room = self._console.width - self._before
        self._bar.update(self._task, completed=record["round"], description=fitted(line, room))
        reason = without_report(record)
        if not self._console.is_terminal:
            self._say(f"round {record['round']}/{self._rounds} {line}")
        if reason is not None:
            self._say(f"round {record['round']} has no report: {reason}")

    def summary(self, run: Run) -> None:
        """The run has ended."""
        last: Record = {}
        for record in run.metrics:
            last |= record
        table = Table(box=None, show_header=False, pad_edge=False)
        rows: dict[str, Any] = {
            "protection": run.job.protection.name,
            "rounds": f"{len(run.metrics)} of {run.job.rounds}",
        }
        if "accuracy" in last:
            rows["accuracy"] = f"{last['accuracy']:.4f}"
            rows["loss"] = f"{last['loss']:.4f}"
            rows["AUC"] = f"{last['auc']:.4f}"
        rows["upload"] = f"{shown_bytes(last.get('bytes_up_per_client', 0))} per client and round"
        others = [f"{told(*line.figure)} for {line.what}" for line in run.others]
        rows["epsilon"] = "\n".join([*_spent(last), *others])
        if last:
            rows["promise"] = _promised(run, _figure(last, "run_every_round"))
        if run.audit is not None:
            rows["audit"] = _audited(run.audit)
        rows["randomness"] = last.get("randomness", "")
        for name, value in rows.items():
            table.add_row(name, str(value))
        self._console.print(table)
        if run.stopped is not None:
            self._say(f"ended early: {run.stopped}")
        self._say(f"run folder: {run.folder}")

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


def fitted(line: str, room: int) -> str:
    """A round's figures in so many characters: those that can be read up later go first."""
    parts = line.split(_BETWEEN)
    for kind in _SPARED:
        if len(_BETWEEN.join(parts)) > room:
            parts = [part for part in parts if not part.startswith(kind)]
    return _BETWEEN.join(parts)[: max(room, 0)]


def describe(record: Record) -> str:
    """A round's figures in one line."""
    parts = []
    if "accuracy" in record:
        parts += [f"accuracy {record['accuracy']:.4f}", f"loss {record['loss']:.4f}"]
    parts += [f"up {shown_bytes(record['bytes_up_per_client'])}/client"]
    parts += [f"epsilon {told(*_figure(record, 'run_most_drawn'))}"]
    lost = sum(sum(record[kind].values()) for kind in LOST)
    if lost:
        parts.append(f"{lost} clients left out")
    if record["void"]:
        parts.append("void")
    return _BETWEEN.join(parts)


def _audited(audit: Finding) -> str:
    """What the canaries found, and whether it is more than the ledger states."""
    bound, alone, most = (figure.value for figure in audit.figures[:3])
    verdict = "NOT WHAT WAS PROMISED" if audit.refutes else "not refuted"
    return (
        f"epsilon at least {bound:g} at confidence {CONFIDENCE:g}, of {most:g} that "
        f"{audit.figures[0].cases} canaries can show;\n{alone:g} if they tell nothing of each "
        f"other; promised for the run, in every round: "
        f"{told(audit.epsilon, audit.delta)}: {verdict}"
    )


#: The ledger's figures, and what each is for.
_FIGURES = {
    "per_bit": "a bit",
    "per_parameter": "a parameter",
    "per_round": "a round",
    "run_every_round": "the run, for a client drawn in every round",
    "run_most_drawn": "the run, for the most-drawn client",
}
#: The same where they are for one example of a client, which loses as much in any part of a report.
_OF_AN_EXAMPLE = {
    "per_round": "one example of a client in a round",
    "run_every_round": "the run, for one example of a client drawn in every round",
    "run_most_drawn": "the run, for one example of the most-drawn client",
}


def _spent(record: Record) -> list[str]:
    """A line for each figure of the ledger."""
    if not record:
        return []
    names = _OF_AN_EXAMPLE if record["unit"] == "example" else _FIGURES
    figures = {what: _figure(record, key) for key, what in names.items()}
    lines = [
        f"{told(*spent)} for {what}, delta {format_delta(spent.delta)}"
        for what, spent in figures.items()
    ]
    return lines + [f"no finite epsilon: {what}" for what in record.get("in_clear", ())]


def _promised(run: Run, figure: Figure) -> str:
    """What the run's figure says of an attacker, and of which ones."""
    protection, whose = run.job.protection, run.job.privacy.unit
    if figure.promise == "none":
        return "none: what is sent may tell everything about a client"
    right = math.ceil(1000 * (1 - attacker_wrong(*figure)))
    trusted = protection.position.rests_on_server(protection.settings)
    who = "everybody else sees" if trusted else "the server sees"
    data = "two data sets" if whose == "client" else "two examples"
    return (
        f"{figure.promise}: whoever knows all that {who} and all but which of {data} a client has "
        f"guesses right at most {right} times in 1,000; a coin does 500 times"
        f"{', and the server, which is trusted, needs no guess' if trusted else ''}"
    )


def _figure(record: Record, key: str) -> Figure:
    return Figure(record[f"epsilon_{key}"], record[f"delta_{key}"])
