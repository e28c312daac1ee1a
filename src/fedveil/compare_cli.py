"""`fedveil compare`: positions of the switch side by side, and what came of it as one report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedveil.attack_cli import progress
from fedveil.attacks.effort import Effort
from fedveil.errors import JobError, MissingExtra, RunFailed
from fedveil.job_arguments import JobPath, Overrides, load, remarks
from fedveil.json_answer import AsJson, alone, answer
from fedveil.plain_text import console, say
from fedveil.starter import DEFAULT_JOB

if TYPE_CHECKING:
    from fedveil.comparing.comparison import Goal
    from fedveil.comparing.comparison_folder import ComparisonFolder, Result
    from fedveil.comparing.comparison_table import Line

_Listed = Annotated[
    str | None, typer.Option(help="Positions of the switch, with commas; without it the job's own.")
]
_Epsilons = Annotated[
    str | None,
    typer.Option(help="Bring each position that promises one to these, for the whole run."),
]
_Sweep = Annotated[
    list[str] | None,
    typer.Option(help="KEY=VALUE,VALUE...: the job with each; may be repeated, for a grid."),
]
_Target = Annotated[
    str | None, typer.Option(help="FIGURE=NUMBER: count the rounds until the model is as good.")
]
_Attack = Annotated[
    str | None, typer.Option(help="Attack the run of the first seed of each: membership.")
]
_Seeds = Annotated[
    int | None, typer.Option(min=1, help="How many seeds, from the job's own on; 3 without it.")
]
_Try = Annotated[
    Effort | None, typer.Option(help="How much work the attack may do; quick without it.")
]
_Out = Annotated[
    Path | None, typer.Option(help="The comparison's folder; one that was begun is gone on with.")
]
_Resume = Annotated[
    Path | None, typer.Option(help="Go on with the comparison in this folder, as it was asked.")
]


def compare(
    job: JobPath = None,
    protections: _Listed = None,
    seeds: _Seeds = None,
    epsilons: _Epsilons = None,
    sweep: _Sweep = None,
    target: _Target = None,
    attack: _Attack = None,
    effort: _Try = None,
    overrides: Overrides = None,
    out: _Out = None,
    resume: _Resume = None,
    json: AsJson = False,
) -> None:
    """Compare positions of the switch: same data, same start, same cohorts, one report."""
    others = (job, protections, seeds, epsilons, sweep, target, attack, effort, overrides, out)
    if resume is not None and any(other is not None for other in others):
        raise JobError(
            ["--resume goes on with a comparison as it was asked: no JOB and no other option "
             "beside it"]
        )  # fmt: skip
    settings = None if resume is not None else load(job, overrides, default=DEFAULT_JOB)
    from fedveil.comparing.comparison import Asked, Comparison
    from fedveil.comparing.comparison_folder import ComparisonFolder

    with ExitStack() as stack:
        stack.enter_context(alone(json))
        if resume is not None:
            folder = ComparisonFolder.reopen(resume, stack)
        else:
            assert settings is not None
            if attack not in (None, "membership"):
                raise JobError([f"--attack {attack}: what is attacked here is membership"])
            asked = Asked(
                protections=_parts("--protections", protections or settings.protection.name),
                seeds=seeds or 3,
                sweep=dict(_swept(text) for text in sweep or ()),
                epsilons=_numbers("--epsilons", epsilons),
                attack="membership" if attack else None,
                effort=effort or "quick",
                target=target,
            )
            folder = ComparisonFolder.open(out, Comparison(settings, asked), stack)
        remarks("warning", folder.comparison.notes)
        with folder.going_on():
            results = _run(folder)
        _show(folder, results, folder.comparison.goal)
    if json:
        from fedveil.comparing.comparison_table import lines

        answer([_told(line) for line in lines(results)])
    if all(result.run is None for result in results):
        raise RunFailed("no run of the comparison has a result; the table says why of each")


def _told(line: Line) -> dict[str, object]:
    """A setting's runs."""
    runs = [{"folder": run.folder, "last": run.last} for run in line.runs]
    return {"setting": str(line.setting), "runs": runs, "failures": list(line.failures)}


def _run(folder: ComparisonFolder) -> list[Result]:
    """Every cell, with its own live line where there is a terminal."""
    from fedveil.run_display import RunDisplay

    cells, results, shown = folder.cells(say), [], console()
    for number, cell in enumerate(cells, 1):
        say(f"run {number} of {len(cells)}: {cell.setting}, seed {cell.seed}")
        if cell.job is None:
            result = folder.run(cell, lambda record: None)
        else:
            with RunDisplay(shown, cell.job.rounds) as display:
                tell = display.show if shown.is_terminal else lambda record: None
                result = folder.run(cell, tell)
        with progress() as step:
            results.append(folder.attacked(result, step))
        for failure in filter(None, (results[-1].failure, results[-1].unattacked)):
            say(f"  {failure}")
    return results


def _show(folder: ComparisonFolder, results: Sequence[Result], goal: Goal | None) -> None:
    """The tables here, and all that there is in the folder."""
    from fedveil.comparing.comparison_page import markdown, page
    from fedveil.comparing.comparison_table import lines, tables
    from fedveil.pages.kept_page import PAGE
    from fedveil.pages.written_page import write_page

    found = lines(results)
    for table in tables(found, goal):
        say(f"\n{table.caption}:")
        console().print(table.terminal())
    shown = page(folder.comparison, found, goal)
    say(f"written to {folder.write('comparison.md', markdown(shown).encode())}")
    try:
        for path in write_page(shown, folder.path / PAGE):
            say(f"written to {path}")
    except MissingExtra as missing:
        remarks("note", [str(missing)])


def _parts(option: str, text: str) -> list[str]:
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise JobError([f"{option} {text} has nothing between two commas"])
    return parts


def _numbers(option: str, text: str | None) -> list[float]:
    try:
        numbers = [float(part) for part in _parts(option, text)] if text is not None else []
    except ValueError:
        numbers = [0.0]
    if not all(0 < number < math.inf for number in numbers):
        raise JobError([f"{option} {text} holds something else than positive numbers"])
    return numbers


def _swept(text: str) -> tuple[str, list[str]]:
    key, equals, values = text.partition("=")
    if not (key.strip() and equals and values):
        raise JobError([f"--sweep {text} is not of the form KEY=VALUE,VALUE"])
    return key.strip(), _parts(f"--sweep {key}", values)
