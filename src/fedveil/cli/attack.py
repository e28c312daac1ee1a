"""`fedveil attack`: run an attack on a job or a run, and save the finding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from fedveil.attacks.effort import Effort, Watch
from fedveil.base.plain_text import console, say
from fedveil.base.untrusted import escaped
from fedveil.cli.attack_catalog import FEDERATED, VERTICAL, Attack
from fedveil.cli.job_arguments import Overrides, load
from fedveil.cli.json_answer import AsJson, answer, only_json
from fedveil.cli.path_argument import path_argument, path_option
from fedveil.errors import JobError
from fedveil.record.run_folder import refuse_taken

if TYPE_CHECKING:
    from pydantic import BaseModel

    from fedveil.privacy.finding import Finding
    from fedveil.record.run_folder import RunFolder

    Folder: TypeAlias = Callable[[], RunFolder]

app = typer.Typer(
    help="Attack what clients send. Success proves a leak; failure proves nothing.",
    no_args_is_help=True,
)


def _job_or_run(job: str) -> Any:
    """Return typer's definition of the argument JOB_OR_RUN. Its help text begins with `job`."""
    text = f"{job}, or the folder of a finished run. Default: a built-in job on images of digits."
    return path_argument(metavar="JOB_OR_RUN", help=text)


JobOrRun = Annotated[Path | None, _job_or_run("A job (a YAML file)")]
SplitJobOrRun = Annotated[Path | None, _job_or_run("A job for split learning (a YAML file)")]
Protections = Annotated[
    list[str] | None,
    typer.Option(
        "--protection",
        help="Attack this protection instead of the job's; may be repeated. `fedveil "
        "compare --help` explains the names.",
    ),
]
Try = Annotated[
    Effort,
    typer.Option(
        "--effort",
        help="Computation to spend. For the built-in jobs on two cores, quick takes at most a few "
        "minutes, standard about an hour, and full possibly much longer.",
    ),
]
Out = Annotated[
    Path | None,
    path_option(
        help="For a job: the folder for the results. Default: a new folder under runs/. The "
        "results for a run are always written to the run's folder."
    ),
]


#: What the options do with a finished run, for the help of an attack.
_REFUSED = "--protection and --set cannot be used with a finished run, which is attacked as it is."
_SET_REFUSED = "--set cannot be used with a finished run, which is attacked as it is."
_CHANGES = (
    "With a finished run, the command loads the run's job, and attacks simulated clients. {begin} "
    "Use --protection and --set to change the job."
)
#: The model with which the simulated clients begin, if it is not the run's final model.
_BEGIN = {
    "steal": "They receive the malicious model, not the run's final model.",
    "extraction": "They train a new model from scratch, not from the run's final model.",
}


def _add_federated(attack: Attack) -> None:
    def command(
        job_or_run: JobOrRun = None,
        protections: Protections = None,
        overrides: Overrides = None,
        effort: Try = "quick",
        out: Out = None,
        json: AsJson = False,
    ) -> None:
        from fedveil.attacks.target import Target
        from fedveil.federated.job import Job
        from fedveil.vertical.job import VerticalJob

        run = job_or_run if job_or_run is not None and job_or_run.is_dir() else None
        if run is not None and attack.trains and (protections or overrides):
            raise JobError(
                [f"`fedveil attack {attack.name}` attacks the final model of a run: "
                 "--protection and --set are only for a job file"]
            )  # fmt: skip
        with ExitStack() as stack:
            if run is not None:
                _refuse_out(out, run)
                _refuse_other(run, Job, VerticalJob, "is a vertical job", "features")
                target = Target.of_run(run, overrides or ())
                folder = _folder_of(run, stack)
            else:
                refuse_taken(out, None)
                job = load(
                    job_or_run,
                    overrides,
                    other="Attack it with: fedveil attack features",
                    default=attack.job,
                )
                for name in protections or ():
                    job.under(name)  # raises before anything is trained
                target = Target.of(job)
                folder = _new_folder(out, job, attack, stack)
            asked = [target.under(name) for name in protections] if protections else [target]
            _attack_each(attack, asked, effort, folder, json=json)

    begin = _BEGIN.get(attack.name, "They begin with the run's final model.")
    options = _REFUSED if attack.trains else _CHANGES.format(begin=begin)
    app.command(attack.name, help=attack.described(options))(command)


def _add_vertical(attack: Attack) -> None:
    def command(
        job_or_run: SplitJobOrRun = None,
        overrides: Overrides = None,
        effort: Try = "quick",
        out: Out = None,
        json: AsJson = False,
    ) -> None:
        from fedveil.attacks.split.split_target import SplitTarget
        from fedveil.federated.job import Job
        from fedveil.vertical.job import VerticalJob

        ended = job_or_run is not None and job_or_run.is_dir()
        with ExitStack() as stack:
            if job_or_run is not None and ended:
                _refuse_out(out, job_or_run)
                if overrides:
                    raise JobError(["--set is for a job file: a run is attacked as it was made"])
                _refuse_other(job_or_run, VerticalJob, Job, "is a federated job", "gradient")
                target = SplitTarget.of_run(job_or_run)
                folder = _folder_of(job_or_run, stack)
            else:
                from fedveil.cli.vertical import job_file

                refuse_taken(out, None)
                job = job_file.load(
                    job_or_run, overrides, "Attack it with: fedveil attack gradient"
                )
                target = SplitTarget.of(job)
                folder = _new_folder(out, job, attack, stack)
            _attack_each(attack, [target], effort, folder, json=json)

    app.command(attack.name, help=attack.described(_SET_REFUSED))(command)


for _attack in FEDERATED:
    _add_federated(_attack)
for _attack in VERTICAL:
    _add_vertical(_attack)


def _refuse_out(out: Path | None, run: Path) -> None:
    """Raise JobError if `--out` is given for a run, because findings go to the run's own folder."""
    if out is not None:
        raise JobError([f"--out is for a job file: the findings of a run are written to {run}"])


def _refuse_other(
    run: Path, mine: type[BaseModel], other: type[BaseModel], kind: str, attack: str
) -> None:
    from fedveil.record.run_folder import JOB
    from fedveil.settings.yaml_file import refuse_other_kind

    if (run / JOB).is_file():
        sentence = f"{kind}. Attack its run with: fedveil attack {attack} {quote(str(run))}"
        refuse_other_kind(run / JOB, mine, other.model_fields, sentence)


def _folder_of(path: Path, stack: ExitStack) -> Folder:
    from fedveil.record.run_folder import RunFolder

    folder = RunFolder.reopen(path)
    stack.callback(folder.close)
    return lambda: folder


def _new_folder(out: Path | None, job: Any, attack: Attack, stack: ExitStack) -> Folder:
    """Return a function that returns the output folder for an attack on a job.

    The folder is `out`, created now, or a new folder if `out` is None, created by the function's
    first call. This call also writes the job file to it. `stack` closes the folder.
    """
    from fedveil.record.run_folder import JOB, RunFolder

    def opened() -> RunFolder:
        folder = RunFolder.create(out, f"attack-{attack.name}-{job.name}", None)
        stack.callback(folder.close)
        return folder

    named = None if out is None else opened()

    @cache
    def folder() -> RunFolder:
        made = opened() if named is None else named
        made.write_atomically(JOB, job.to_yaml().encode())
        return made

    return folder


def _attack_each(
    attack: Attack, targets: Sequence[Any], effort: Effort, folder: Folder, *, json: bool
) -> None:
    """Run the attack on each of the `targets`, and save each finding at once in `folder()`.

    Prints each finding or, if `json` is True, all findings as JSON at the end. Then raises
    `ClaimRefuted` if a finding refutes its protection's guarantee.
    """
    from fedveil.pages.finding_text import conclusion
    from fedveil.pages.run_folder_page import PAGE, keep_page
    from fedveil.privacy.finding import timed
    from fedveil.record.finding_lines import FINDINGS, add_finding, as_data, raise_if_refuted

    findings = []
    with only_json(json):
        for target in targets:
            with progress() as step:
                watch = Watch(step, lambda name, data: _keep(folder(), name, data))
                found = timed(partial(attack.mount, target, effort, watch))
            found = replace(found, attack=attack.name)
            add_finding(folder(), found)
            findings.append(found)
            show(found, folder().path)
        keep_page(folder(), say)
        if (folder().path / PAGE).is_file():
            say(f"page: {folder().path / PAGE}")
        say(f"written to {folder().path / FINDINGS}")
        for found in findings:
            say(conclusion(found))
    if json:
        answer([as_data(finding) for finding in findings])
    raise_if_refuted(findings)


def _keep(folder: RunFolder, name: str, data: bytes) -> str:
    """Save a picture under `name` or a similar unused name. Returns the picture's path."""
    path, number = Path("attacks", name), 1
    free = path
    while (folder.path / free).exists():
        number += 1
        free = path.with_stem(f"{path.stem}-{number}")
    folder.write_atomically(str(free), data)
    return str(free)


@contextmanager
def progress() -> Iterator[Callable[[int, int, str], None]]:
    """Show a progress bar on a terminal. Yield its update(steps done, number of steps, text)."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as Remaining

    shown = console(stderr=True)
    words = TextColumn("{task.description}", markup=False)
    bar = Progress(words, BarColumn(), MofNCompleteColumn(), Remaining(), console=shown)
    task = bar.add_task("starting", total=None)

    def step(done: int, total: int, what: str) -> None:
        bar.update(task, completed=done, total=total, description=escaped(what))

    if not shown.is_interactive:
        yield lambda done, total, what: None
        return
    with bar:
        yield step


def show(found: Finding, folder: Path) -> None:
    from fedveil.pages.finding_text import figures
    from fedveil.privacy.guarantee_strength import epsilon_text

    promised = epsilon_text(found.epsilon, found.delta)
    say(
        f"{found.attack} at effort {found.effort} against {found.protection} (epsilon {promised}"
        f"{', ' + found.saw if found.saw else ''}) reached:"
    )
    console().print(figures(found))
    for picture in found.pictures:
        say(f"picture: {folder / picture}")
