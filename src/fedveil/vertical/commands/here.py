"""`fedveil vertical`: the commands of split learning."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from rich.console import Console

from fedveil.errors import JobError
from fedveil.vertical.freed_memory import keep_freed_memory

if TYPE_CHECKING:
    from fedveil.vertical.account import Figure
    from fedveil.vertical.vertical_job import VerticalJob

app = typer.Typer(
    help="Split learning between parties that hold different features of the same examples.",
    no_args_is_help=True,
)
T = TypeVar("T")

_out = Console(soft_wrap=True)

JobPath = Annotated[
    Path | None, typer.Argument(help="A vertical job file; without it, the default job.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", help="KEY=VALUE: any key by its dotted path; may be repeated."),
]
Out = Annotated[
    Path | None, typer.Option(help="The run's folder; without it, a new one under runs/.")
]
RunPath = Annotated[
    Path,
    typer.Argument(
        help="A run's folder: one that holds all parties, or with --listen the leader's own."
    ),
]
Listen = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT", help="Where the leader listens for followers; port 0: any free one."
    ),
]
Tls = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="This party's folder of `fedveil vertical certificates`."),
]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Plaintext, on a loopback address alone.")
]
Patience = Annotated[float, typer.Option(min=1, help="Seconds to wait for a party that is away.")]
PATIENCE_S = 600.0


@app.command()
def run(
    job: JobPath = None,
    overrides: Overrides = None,
    out: Out = None,
    resume: Annotated[
        Path | None, typer.Option(help="Go on with the run in this folder; takes nothing else.")
    ] = None,
) -> None:
    """Train with every party in this process: the leader's figures as they come."""
    from fedveil.vertical import together
    from fedveil.vertical.step_lines import line

    keep_freed_memory()
    if resume is None:
        settings = load(job, overrides)
        work = partial(together.train, settings, out)
    elif job is None and not overrides and out is None:
        work = partial(together.resume, resume)
    else:
        raise JobError(["--resume takes the run's own job: no JOB, --set or --out beside it"])
    result = interruptible(partial(work, progress=lambda record: say(line(record))))
    account(result.figures)
    say(f"run folder: {result.folder}")


@app.command()
def evaluate(
    run: RunPath,
    listen: Listen = None,
    tls: Tls = None,
    insecure: Insecure = False,
    patience: Patience = PATIENCE_S,
) -> None:
    """Look at the held-out examples through the same crossings and the same protection."""
    if listen is None:
        from fedveil.vertical import together

        quality, figures = together.evaluate(run)
    else:
        from fedveil.vertical.commands import apart

        session = apart.look("evaluate", run, listen, tls, insecure, patience)
        quality, figures = session.result, {session.run.name: session.figures}
    for name, value in quality.items():
        say(f"{name} {value:.6f}")
    account(figures)


@app.command()
def predict(
    run: RunPath,
    out: Annotated[
        Path,
        typer.Option(
            help="Where to: a .csv with a line for each, or an .npz with ids and outputs as arrays."
        ),
    ] = Path("predictions.csv"),
    listen: Listen = None,
    tls: Tls = None,
    insecure: Insecure = False,
    patience: Patience = PATIENCE_S,
) -> None:
    """Write what the model says of every held-out example."""
    from fedveil.vertical.predictions import PredictionFile

    file = PredictionFile(out)
    if listen is None:
        from fedveil.vertical import together

        found = together.look(run, file.predict)
    else:
        from fedveil.vertical.commands import apart

        session = apart.look("predict", run, listen, tls, insecure, patience, file.predict)
        found = session.result
    assert found is not None, "the leader has the outputs"
    say(f"wrote {out}: {file.write(found)}")


@app.command()
def generate(
    run: RunPath,
    prompt: Annotated[str, typer.Option(help="What is continued.")] = "",
    tokens: Annotated[int, typer.Option(min=1, help="How many tokens at most.")] = 100,
    temperature: Annotated[
        float, typer.Option(min=0, help="1: as the model has it; 0: the likeliest token always.")
    ] = 0.8,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="The same choices every time; without it, others."),
    ] = None,
    listen: Listen = None,
    tls: Tls = None,
    insecure: Insecure = False,
    patience: Patience = PATIENCE_S,
) -> None:
    """Continue a text with a pangu run's model, through all parties and the same protection."""
    import codecs

    from fedveil.language import generation

    # A character may be spread over several tokens.
    characters = codecs.getincrementaldecoder("utf-8")("replace")

    def tell(piece: bytes, last: bool = False) -> None:
        typer.echo(characters.decode(piece, last), nl=last)

    request = generation.Request.seeded(prompt.encode(), tokens, temperature, seed)
    if listen is None:
        typer.echo(prompt, nl=False)
        found, split = generation.generate(run, request, tell)
    else:
        from fedveil.vertical.commands import apart

        own = generation.leading(request)
        session = apart.look("generate", run, listen, tls, insecure, patience, own)
        found, split = session.result, session.run.setting.split
        typer.echo(prompt, nl=False)
        tell(found.text)
    tell(b"", last=True)
    for figure in generation.figures(split, found):
        say(str(figure))


@app.command()
def show(job: JobPath = None, overrides: Overrides = None) -> None:
    """Check a vertical job and print it with every key."""
    typer.echo(load(job, overrides).to_yaml(), nl=False)


def load(path: Path | None, overrides: Sequence[str] | None) -> VerticalJob:
    """The job in a file with settings on top; functions of the user's are found beside it."""
    from fedveil.vertical.vertical_job import VerticalJob

    if path is not None:
        sys.path.append(str(path.parent.resolve()))
    return VerticalJob.load(path, overrides or [])


def say(text: str) -> None:
    """A line as it is."""
    _out.print(text, markup=False, highlight=False)


def remark(text: str) -> None:
    """A line on stderr."""
    Console(stderr=True, soft_wrap=True).print(text, markup=False, highlight=False)


def account(figures: Mapping[str, Iterable[Figure]]) -> None:
    """What each party has spent."""
    for party, lines in figures.items():
        for figure in lines:
            say(f"{party}: {figure}")


def interruptible(work: Callable[[], T]) -> T:
    """The result of `work`; Ctrl-C says how to go on and exits with 130."""
    try:
        return work()
    except KeyboardInterrupt as end:
        notes = "; ".join(["interrupted", *getattr(end, "__notes__", [])])
        Console(stderr=True, soft_wrap=True).print(notes, markup=False, highlight=False)
        raise SystemExit(130) from None
