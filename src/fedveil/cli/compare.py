"""`fedveil compare`: runs several protections on the same job and reports them side by side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from fedveil.attacks.effort import Effort
from fedveil.base.plain_text import console, say
from fedveil.cli.attack import progress
from fedveil.cli.job_arguments import JobPath, Overrides, load, remarks
from fedveil.cli.json_answer import AsJson, answer, only_json
from fedveil.cli.path_argument import path_option
from fedveil.errors import JobError, RunFailed
from fedveil.starter import DEFAULT_JOB

if TYPE_CHECKING:
    from fedveil.federated.job import Job
    from fedveil.studies.comparison import Goal
    from fedveil.studies.comparison_folder import ComparisonFolder, Result
    from fedveil.studies.comparison_table import Line

#: The epsilons that may be asked for. Larger ones promise nothing.
_LEAST_EPSILON, _MOST_EPSILON = 1e-3, 1e6

_Listed = Annotated[
    str | None,
    typer.Option(
        help="Comma-separated names out of: not_encrypt (no protection), signds (sends only the "
        "indices of a few randomly drawn entries of the update, one sign for all of them, and a "
        "noisy bit that says whether the largest entries are below a bound), rr (randomised "
        "response: encodes each number as bits, and flips each bit at random, ones and zeros "
        "equally often), oue (optimised unary encoding: like rr, but flips half of the ones and "
        "fewer zeros), dp_encrypt (noise on each update), pw_encrypt (the server sees only the "
        "sum of the updates), distributed_dp (the server sees only the sum, with noise), "
        "central_gaussian (a trusted server adds noise). Default: all except pw_encrypt, which is "
        "included only if the job uses it."
    ),
]
_Epsilons = Annotated[
    str | None,
    typer.Option(
        help="Comma-separated epsilons, or 'own'. For each epsilon, fedveil computes each "
        "protection's settings, so that the whole run costs at most this epsilon at the job's "
        "delta. With 'own', each protection keeps the job's settings. Default: 2,8, or 'own' if "
        "--set or --sweep sets a key that decides a protection's epsilon."
    ),
]
_Sweep = Annotated[
    list[str] | None,
    typer.Option(
        help="KEY=VALUE,VALUE...: run the job with each value of this key of the job. May be "
        "repeated: all combinations of the values are run."
    ),
]
_Target = Annotated[
    str | None,
    typer.Option(
        help="METRIC=NUMBER, such as accuracy=0.9: also show the number of rounds until the "
        "metric reaches this value."
    ),
]
_Attack = Annotated[
    str | None,
    typer.Option(
        help="Also attack the runs that use the first seed, and report the attack's success. "
        "The only value is 'membership': find out which examples a model was trained "
        "on."
    ),
]
_Seeds = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Number of runs for each combination of protection, epsilon and --sweep values. Each "
        "of these runs has its own seed; the first run has the job's. Default: 3.",
    ),
]
_Try = Annotated[
    Effort | None,
    typer.Option(
        help="Computation for the attack on each run: quick trains 4 reference models, "
        "standard 32, full 64. Default: quick."
    ),
]
_Out = Annotated[
    Path | None,
    path_option(
        help="The folder for the results. Default: a new folder under runs/. If the folder has a "
        "comparison of the same job, its finished runs are not repeated, and unfinished runs are "
        "resumed. The other options may differ, for example to add protections or seeds. A "
        "folder with a comparison of another job is refused."
    ),
]
_Resume = Annotated[
    Path | None,
    path_option(
        help="Resume the comparison in this folder with its original job and options. Give no JOB "
        "and no other option except --json."
    ),
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
    """Run a job under several protections on the same data and initial model, and compare.

    A client's update is the change of its model's weights in training. Epsilon is the privacy cost:
    a smaller epsilon protects better. Delta is a small probability that epsilon does not hold.
    """
    others = (job, protections, seeds, epsilons, sweep, target, attack, effort, overrides, out)
    if resume is not None and any(other is not None for other in others):
        raise JobError(
            ["--resume uses the comparison's own options: remove JOB and all other options"]
        )  # fmt: skip
    if epsilons is not None and epsilons != "own":
        _numbers("--epsilons", epsilons)  # checked before torch is imported
    settings = None if resume is not None else load(job, overrides, default=DEFAULT_JOB)
    from fedveil.studies.comparison import Asked, Comparison
    from fedveil.studies.comparison_folder import ComparisonFolder

    with ExitStack() as stack:
        stack.enter_context(only_json(json))
        if resume is not None:
            folder = ComparisonFolder.reopen(resume, stack)
        else:
            assert settings is not None
            if attack not in (None, "membership"):
                raise JobError(
                    [f"--attack {quote(attack)} is not available here: only membership is"]
                )
            swept = _sweeps(sweep or ())
            fixed = [*swept, *(text.partition("=")[0].strip() for text in overrides or ())]
            asked = Asked(
                protections=_named(settings, protections),
                seeds=seeds or 3,
                sweep=swept,
                epsilons=_levels(epsilons, fixed),
                attack="membership" if attack else None,
                effort=effort or "quick",
                target=target,
            )
            folder = ComparisonFolder.open(out, Comparison(settings, asked), stack)
        remarks("warning", folder.comparison.notes)
        with folder.resumed():
            results = _run(folder)
        _show(folder, results, folder.comparison.goal)
    if json:
        from fedveil.studies.comparison_table import lines

        answer([_told(line) for line in lines(results)])
    if all(result.run is None for result in results):
        raise RunFailed("no run of the comparison has a result; the table says why")


def _told(line: Line) -> dict[str, object]:
    runs = [{"folder": run.folder, "last": run.last} for run in line.runs]
    return {"setting": str(line.setting), "runs": runs, "failures": list(line.failures)}


def _run(folder: ComparisonFolder) -> list[Result]:
    from fedveil.run_display import RunDisplay

    cells, results, shown = folder.cells(say), [], console()
    for number, cell in enumerate(cells, 1):
        say(f"run {number} of {len(cells)}: {cell.setting}, seed {cell.seed}")
        if cell.job is None:
            result = folder.run(cell, lambda record: None)
        else:
            with RunDisplay(shown, cell.job.rounds) as display:
                tell = display.show if shown.is_interactive else lambda record: None
                result = folder.run(cell, tell)
        with progress() as step:
            results.append(folder.attacked(result, step))
        for failure in filter(None, (results[-1].failure, results[-1].unattacked)):
            say(f"  {failure}")
    return results


def _show(folder: ComparisonFolder, results: Sequence[Result], goal: Goal | None) -> None:
    from fedveil.pages.page_files import write_page
    from fedveil.pages.run_folder_page import PAGE
    from fedveil.studies.comparison_choice import choice, unequal
    from fedveil.studies.comparison_page import markdown, page
    from fedveil.studies.comparison_table import lines, tables

    found = lines(results)
    if (warned := unequal(found)) is not None:
        say(f"\n{warned}")
    for table in tables(found, goal):
        say(f"\n{table.caption}:")
        console().print(table)
    if (card := choice(found)) is not None:
        say(f"\n{card.label.lower()}: {card.value}\n{card.text}")
    shown = page(folder.comparison, found, goal)
    say(f"written to {folder.write('comparison.md', markdown(shown).encode())}")
    for path in write_page(shown, folder.path / PAGE):
        say(f"written to {path}")


def _parts(option: str, text: str) -> list[str]:
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        wrong = "has nothing between two commas" if "," in text else "is empty"
        raise JobError([f"{option} {quote(text)} {wrong}"])
    return parts


def _named(job: Job, text: str | None) -> list[str]:
    """Return the protections that `text` lists, or by default all that the job allows."""
    from fedveil.studies.comparison import Asked, Comparison
    from fedveil.studies.comparison_choice import side_by_side

    if text is not None:
        return _parts("--protections", text)
    able = []
    for name in side_by_side(job):
        try:
            _ = Comparison(job, Asked(protections=[name])).settings
            able.append(name)
        except JobError as error:
            remarks("note", [f"without {name}: {error}"])
    return able or [job.protection.name]


def _levels(text: str | None, fixed: Sequence[str]) -> list[float]:
    """Return the epsilons at which to compare protections, or [] to keep the job's own settings.

    `text` is the value of `--epsilons`: a list of epsilons, "own" to keep the settings, or None if
    the option is not given. Without the option, the result is `EPSILONS`, unless `--set` or
    `--sweep` changes a key that decides a protection's epsilon, such as a noise multiplier. Then it
    is []. `fixed` has the keys that these two options change.
    """
    from fedveil.studies.comparison_choice import EPSILONS, decides_cost

    if text == "own" or (text is None and any(map(decides_cost, fixed))):
        return []
    return list(EPSILONS) if text is None else _numbers("--epsilons", text)


def _numbers(option: str, text: str) -> list[float]:
    try:
        numbers = [float(part) for part in _parts(option, text)]
    except ValueError:
        numbers = [0.0]
    if not all(_LEAST_EPSILON <= number <= _MOST_EPSILON for number in numbers):
        allowed = f"numbers from {_LEAST_EPSILON:g} to {_MOST_EPSILON:,.0f}"
        raise JobError([f"{option} {quote(text)} must contain only {allowed}, or be own"])
    return numbers


def _sweeps(texts: Iterable[str]) -> dict[str, list[str]]:
    swept: dict[str, list[str]] = {}
    for key, values in map(_swept, texts):
        if key in swept:
            both = ",".join([*swept[key], *values])
            raise JobError([f"--sweep {key} is given twice: write --sweep {key}={both}"])
        swept[key] = values
    return swept


def _swept(text: str) -> tuple[str, list[str]]:
    key, equals, values = text.partition("=")
    if not (key.strip() and equals and values):
        raise JobError([f"--sweep {quote(text)} is not of the form KEY=VALUE,VALUE"])
    return key.strip(), _parts(f"--sweep {key}", values)
