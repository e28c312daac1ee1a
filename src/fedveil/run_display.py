"""Shows a run in a terminal: progress, then a summary."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from fedveil.base.quantity import quantity
from fedveil.base.quiet import QUIET_S, Quiet
from fedveil.base.untrusted import escaped
from fedveil.engine.canary_bounds import BY_NOISE
from fedveil.engine.run_records import CANARIES, RETRAINED, without_report
from fedveil.pages.guarantee_text import RUN, figure_lines, figure_of
from fedveil.pages.machines import machine_totals
from fedveil.pages.read_run import ReadRun
from fedveil.pages.run_folder_page import where
from fedveil.pages.run_page import duration, seconds
from fedveil.pages.run_summary import Ending, best_round, ending
from fedveil.pages.vertical_page import HELD_OUT, answers, is_vertical, leader_of, parties_of
from fedveil.privacy.audit import rounded_down
from fedveil.privacy.finding import BOUND, CONFIDENCE, Finding
from fedveil.privacy.guarantee_strength import epsilon_text
from fedveil.privacy.ledger import Line
from fedveil.privacy.loss import format_epsilon
from fedveil.record.byte_count import shown_bytes
from fedveil.record.finding_lines import as_data
from fedveil.record.metric_names import LOSS, deciding, digits, word
from fedveil.record.recorder import LOST, Record
from fedveil.record.run_folder import MODEL

#: The least terminal width for a progress bar, and the width of the bar.
_WIDE, _BAR = 110, 24
_BETWEEN = " · "
#: The space between the summary's two columns.
_GAP = "  "
#: Metrics that a narrow terminal omits, in this order.
_SPARED = ("up ", "loss ", "epsilon ")
#: Width of the summary's name column.
_NAMES = len("ended early")
#: A word, or a command in backticks with the characters that adjoin it.
_UNBROKEN = re.compile(r"[^\s`]*(?:`[^`]*`[^\s`]*)+|\S+")
#: The evaluation metric that every vertical task has.
_LOOKED = f"{HELD_OUT}loss"


class RunDisplay:
    """Shows a progress bar with live metrics. Without a terminal, prints one line per round.

    A terminal that cannot move its cursor (TERM=dumb) gets the lines too: it shows no bar.
    """

    def __init__(self, console: Console, rounds: int, quiet_s: float = QUIET_S) -> None:
        self._console = console
        self._rounds = rounds
        columns: list[ProgressColumn] = [TextColumn("round"), MofNCompleteColumn()]
        if console.width >= _WIDE:
            columns.append(BarColumn(bar_width=_BAR))
        columns += [
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.description}", markup=False),
        ]
        self._bar = Progress(*columns, console=console)
        #: Width of the columns before the metrics: `round `, `n/n `, a bar, `h:mm:ss ` twice.
        self._before = 6 + 2 * len(str(rounds)) + 2 + (_BAR + 1) * (len(columns) - 5) + 16
        self._quiet = Quiet(quiet_s, lambda seconds: self._say(self._still(seconds)))
        self._doing = "reading the data"
        self._task = self._bar.add_task("reading the data", total=rounds)

    def __enter__(self) -> RunDisplay:
        if self._console.is_interactive:
            self._bar.start()
        else:
            self._quiet.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._console.is_interactive:
            self._bar.stop()
        self._quiet.stop()

    def starting(self, what: str) -> None:
        """Show `what`, a step that runs before the first round, in place of the round's metrics."""
        self._doing = what
        self._bar.update(self._task, description=escaped(what))

    def warn(self, text: str) -> None:
        self._say(f"warning: {text}")

    def show(self, record: Record) -> None:
        line = escaped(describe(record))
        room = self._console.width - self._before
        self._bar.update(self._task, completed=record["round"], description=fitted(line, room))
        reason = without_report(record)
        self._doing = f"round {record['round'] + 1}/{self._rounds}"
        self._quiet.heard()
        if not self._console.is_interactive:
            self._say(f"round {record['round']}/{self._rounds} {line}")
        if reason is not None:
            self._say(f"round {record['round']} has no report: {reason}")

    def summary(self, run: ReadRun) -> None:
        summary(self._console, run)

    def _still(self, seconds: float) -> str:
        return f"{self._doing}: {duration(seconds)} so far"

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


def of_run(run: ReadRun) -> dict[str, object]:
    """Return the answer of `--json` for a run: its files and latest metrics."""
    if is_vertical(run):
        return _of_parties(run)
    best = best_round(run)
    return {
        "folder": run.folder,
        "model": run.folder / MODEL if run.finished else None,
        "rounds": len(run.records),
        "started_round": run.started.get("round"),
        "ended_early": run.stopped,
        "seconds": seconds(run.records),
        "best_round": None if best is None else best[0],
        "last": run.last,
        "accounts": of_lines(run.accounts),
        "findings": [as_data(finding) for finding in run.findings],
    }


def _of_parties(run: ReadRun) -> dict[str, object]:
    parties = parties_of(run)
    leader = leader_of(run, parties)
    return {
        "folder": run.folder,
        "models": {name: p.folder / MODEL for name, p in parties.items() if p.finished},
        "ended_early": leader.stopped,
        "seconds": leader.seconds or 0.0,
        "best_evaluation": _best_evaluation(leader),
        "last": leader.last,
        "accounts": {name: of_lines(party.accounts) for name, party in parties.items()},
        "findings": [as_data(finding) for finding in run.findings],
    }


def of_lines(lines: Iterable[Line]) -> list[dict[str, object]]:
    return [{"for": line.what, "epsilon": line.epsilon, "delta": line.delta} for line in lines]


def fitted(line: str, room: int) -> str:
    """Shorten a round's line to `room` characters. Drops minor metrics first."""
    parts = line.split(_BETWEEN)
    for kind in _SPARED:
        if len(_BETWEEN.join(parts)) > room:
            parts = [part for part in parts if not part.startswith(kind)]
    return _BETWEEN.join(parts)[: max(room, 0)]


def _spent(record: Record) -> str:
    """Return the run's epsilon for a client in every round, as in the run's conclusions.

    The epsilon of the most-drawn client, which `privacy.max_epsilon` limits, follows if it differs.
    """
    every, drawn = figure_of(record, RUN), figure_of(record, "run_most_drawn")
    text = f"epsilon {epsilon_text(*every)}"
    most = format_epsilon(drawn.epsilon)
    return text if most == format_epsilon(every.epsilon) else f"{text}, most drawn {most}"


def describe(record: Record) -> str:
    """Return a round's metrics as one line."""
    parts = list[str]()
    names = dict.fromkeys((deciding(record)[0], LOSS))
    parts += [f"{word(name)} {digits(name, record[name])}" for name in names if name in record]
    parts += [f"up {shown_bytes(record['bytes_up_per_client'])}/client"]
    parts += [_spent(record)]
    machines = machine_totals([record])
    if machines:
        idle = sum(of.idle for of in machines.values()) / len(machines)
        parts.append(f"{quantity(len(machines), 'machine')}, idle {100 * idle:.0f}%")
    if record.get(RETRAINED):
        parts.append(f"{quantity(record[RETRAINED], 'client')} trained again")
    lost = sum(sum(record[kind].values()) for kind in LOST)
    if lost:
        parts.append(f"{quantity(lost, 'client')} left out")
    if record["void"]:
        parts.append("void")
    return _BETWEEN.join(parts)


def summary(console: Console, run: ReadRun) -> None:
    """Print the summary at the end of a run, federated or vertical."""
    vertical = is_vertical(run)
    _print(console, _took_of_parties(run) if vertical else _took(run))
    # no line breaks, so that users can copy the commands
    for name, value in (_where_of_parties if vertical else _where)(run):
        _print_line(console, name, value)
    console.print()
    _print(console, _answers(answers(run) if vertical else ending(run)))


def _print(console: Console, rows: Mapping[str, str]) -> None:
    for name, value in rows.items():
        width = console.width - _NAMES - len(_GAP)
        lines = [line for part in value.splitlines() for line in wrapped(part, width)] or [""]
        for begin, line in zip([name, *[""] * len(lines)], lines, strict=False):
            _print_line(console, begin, line)


def _print_line(console: Console, name: str, value: str) -> None:
    line = f"{name.ljust(_NAMES)}{_GAP}{value}"
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def wrapped(text: str, width: int) -> list[str]:
    """Break `text` into lines of at most `width` characters, but never inside a command.

    A command is in backticks. A command longer than `width` gets a longer line, because a user who
    copies only a part of a command would run a different command.
    """
    lines = list[str]()
    for piece in _UNBROKEN.findall(text):
        if lines and len(lines[-1]) + 1 + len(piece) <= width:
            lines[-1] += f" {piece}"
        else:
            lines.append(piece)
    return lines


def _took(run: ReadRun) -> dict[str, str]:
    last, best = run.last, best_round(run)
    rows = {
        "protection": str(run.job["protection"]["name"]),
        "rounds": f"{len(run.records)} of {run.job['rounds']}, {duration(seconds(run.records))}",
    }
    if run.started:
        rows["unfinished"] = run.unfinished
    kept = run.said("the model is that of ")
    if kept:
        rows["saved model"] = f"of {kept}"
    if run.stopped is not None:
        rows["ended early"] = run.stopped
    if best is not None:
        rows["best round"] = str(best)
    rows["upload"] = f"{shown_bytes(last.get('bytes_up_per_client', 0))} per client and round"
    rows |= {f"machine {name}": str(of) for name, of in machine_totals(run.records).items()}
    others = [f"{epsilon_text(*line.figure)} for {line.what}" for line in run.accounts]
    rows["epsilon"] = "\n".join([*figure_lines(last), *others])
    audits = [finding for finding in run.findings if finding.attack == CANARIES]
    if audits:
        rows["audit"] = _audited(audits[-1])
    return rows | {"randomness": str(last.get("randomness", ""))}


def _took_of_parties(run: ReadRun) -> dict[str, str]:
    parties = parties_of(run)
    leader = leader_of(run, parties)
    epochs = f"{run.job['epochs']}, {duration(leader.seconds or 0.0)}"
    rows = {"task": str(run.job["task"]["name"]), "epochs": epochs}
    best = _best_evaluation(leader)
    if best is not None:
        rows["best epoch"] = f"{best['epoch'] + 1}, loss {best[_LOOKED]:.4f}"
    if leader.stopped is not None:
        rows["ended early"] = leader.stopped
    accounts = [f"{name}: {line}" for name, of in parties.items() for line in of.accounts]
    return rows | ({"epsilon": "\n".join(accounts)} if accounts else {})


def _best_evaluation(leader: ReadRun) -> Record | None:
    found = [record for record in leader.records if _LOOKED in record]
    return min(found, key=lambda record: float(record[_LOOKED]), default=None)


def _where(run: ReadRun) -> Iterator[tuple[str, str]]:
    yield "run folder", str(run.folder)
    yield "model", _loading(run)
    yield "page", where(run.folder, run)


def _where_of_parties(run: ReadRun) -> Iterator[tuple[str, str]]:
    parties = parties_of(run)
    yield "run folder", str(run.folder)
    for party in parties.values():
        yield "model", _loading(party)
    yield "page", where(run.folder, leader_of(run, parties))


def _loading(run: ReadRun) -> str:
    model = run.folder / MODEL
    return f"safetensors.torch.load_file({str(model)!r})" if run.finished else "none yet"


def _answers(answers: Ending) -> dict[str, str]:
    return {
        name: f"{fact.value}\n{fact.text}" if fact.text else fact.value
        for name, fact in zip(("quality", "privacy", "next"), answers, strict=True)
    }


def _audited(audit: Finding) -> str:
    bound, alone = (rounded_down(figure.value) for figure in audit.figures[:2])
    most, assumed = format_epsilon(audit.figures[2].value), audit.figures[0].name
    noise = [rounded_down(f.value) for f in audit.figures if f.name == BY_NOISE]
    of_noise = (
        f", or {noise[0]} if the noise is Gaussian with equal variance in every coordinate"
        if noise
        else ""
    )
    lines = [
        f"epsilon at least {bound} at confidence {CONFIDENCE:g}{assumed.removeprefix(BOUND)} "
        f"({audit.figures[0].cases} canaries can show at most {most});",
        f"{alone} if canaries reveal nothing about each other{of_noise};",
        f"promised: epsilon {epsilon_text(audit.epsilon, audit.delta)} for a client in every "
        f"round. Verdict: {audit.verdict}",
    ]
    lines += [audit.refutation] if audit.refutes else []
    lines += [f"with these canaries: {audit.limits}"] if audit.limits else []
    return "\n".join(lines)
