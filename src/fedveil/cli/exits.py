"""The exit codes of the commands, and the sentence on standard error after a failure."""

from __future__ import annotations

import enum
import shlex
import signal
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

from fedveil.base.plain_text import remark
from fedveil.cli.standard_output import explained_output
from fedveil.errors import (
    EndedBySignal,
    FedveilError,
    FedveilWarning,
    InvalidValue,
    JobError,
    MissingExtra,
    ReaderGone,
    did_you_mean,
    with_notes,
)
from fedveil.record.run_folder import ENDING
from fedveil.settings.allowed import block_of, dotted, keys, plain
from fedveil.settings.yaml_file import refuse_unquoted

if TYPE_CHECKING:
    from pydantic import BaseModel

#: The module with click's errors: click itself, or a part of typer since version 0.26.
_usage_errors: Any = sys.modules[typer.BadParameter.__module__]

#: Optional packages -> the extra that installs them.
EXTRA_OF = {
    **dict.fromkeys(("torch", "safetensors", "sklearn", "skimage", "PIL"), "torch"),
    **dict.fromkeys(("grpc", "h11", "tokenizers"), "vertical"),
    "flwr": "flower",
    "nvflare": "nvflare",
    "plotly": "notebook",
    "matplotlib": "dev",
    "tensorboard": "trackers",
}
#: Other programs' names of commands -> fedveil's names.
_USUAL = {
    "train": "run", "simulate": "run", "list": "runs", "new": "init", "inversion": "gradient",
    "check": "show", "validate": "show",
}  # fmt: skip


class Exit(enum.IntEnum):
    DONE = 0
    FAILED = 1
    WRONG = 2  #: the command line or the job is wrong, and nothing was started
    HUNG_UP = 129  #: by SIGHUP
    INTERRUPTED = 130  #: by Ctrl-C
    TERMINATED = 143  #: by SIGTERM


class Commands(TyperGroup):
    """A group of commands that Ctrl-C ends with exit code 130, without a traceback.

    The error for an unknown command suggests a known one with a similar name.
    """

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as end:
            raise SystemExit(_interrupted(end)) from None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        first = args[0]
        if self.get_command(ctx, first) is None and not first.startswith("-"):
            usual = [_USUAL[first]] if _USUAL.get(first) in self.commands else []
            near = usual or get_close_matches(first.lower(), self.commands)
            ctx.fail(_swapped(ctx, self, first) or f"there is no command {first}"
                     f"{did_you_mean(near)}")  # fmt: skip
        return super().resolve_command(ctx, args)


def run_app(app: typer.Typer) -> int:
    """Run the command line and return its exit code. Errors are printed as one sentence."""
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning(warnings.showwarning)
        with _ending_signals():
            return _ended(app)


@contextmanager
def _ending_signals() -> Iterator[None]:
    """A context in which SIGTERM and SIGHUP end a command like Ctrl-C, with a sentence.

    A supervisor such as systemd or Docker sends SIGTERM, and a terminal that closes sends SIGHUP. A
    signal that the process ignores, as SIGHUP under `nohup`, stays ignored.
    """

    def end(number: int, frame: object) -> None:
        raise EndedBySignal(signal.Signals(number))

    numbers = [
        number
        for number in ENDING
        if threading.current_thread() is threading.main_thread()
        and signal.getsignal(number) is signal.SIG_DFL  # Python handles Ctrl-C already
    ]
    for number in numbers:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


def _show_warning(show: Any) -> Any:
    """Return a function that prints each warning of fedveil once, and passes others to `show`."""
    shown = set[str]()

    def showwarning(message: Any, category: Any, *where: Any, **more: Any) -> None:
        if not issubclass(category, FedveilWarning):
            show(message, category, *where, **more)
        elif (text := str(message)) not in shown:
            shown.add(text)
            remark(text, "warning")

    return showwarning


def _ended(app: typer.Typer) -> int:
    try:
        with explained_output():
            return int(app(prog_name="fedveil", standalone_mode=False) or Exit.DONE)
    except ReaderGone as end:
        if hasattr(end, "__notes__"):  # it ended a run; a command that only shows ends silently
            remark(with_notes(str(end), end), "error")
        return Exit.FAILED
    except _usage_errors.ClickException as error:
        return _usage(error)
    except typer.Abort:
        return Exit.INTERRUPTED
    except KeyboardInterrupt as end:  # Ctrl-C before the command was known
        return _interrupted(end)
    except JobError as error:
        for problem in error.problems:
            remark(problem, "error")
        return Exit.WRONG
    except FedveilError as error:
        remark(with_notes(str(error), error), "error")
        return Exit.WRONG if isinstance(error, InvalidValue) else Exit.FAILED
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRA_OF:
            raise
        remark(str(MissingExtra(package, EXTRA_OF[package], "this command")), "error")
        return Exit.FAILED


def _interrupted(end: KeyboardInterrupt) -> int:
    """Print that Ctrl-C or a signal ended the command, and the notes of `end`.

    Returns the exit code. The notes say how to resume.

    This function also calls `exec`, for this reason: if Ctrl-C interrupts code that runs in `exec`,
    as in the creation of a dataclass, CPython sets a flag. At exit, the flag ends the process by
    the signal, although the exception was caught. The next call of `exec` resets the flag. A second
    signal does not interrupt the sentence.
    """
    before = {number: signal.signal(number, signal.SIG_IGN) for number in ENDING}
    try:
        remark(with_notes(str(end) or "interrupted", end))
        exec("")  # noqa: S102
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return Exit(128 + end.number) if isinstance(end, EndedBySignal) else Exit.INTERRUPTED


def missing_argument(name: str, context: typer.Context) -> Exception:
    """Return the error for a command without its argument `name`."""
    error: Exception = _usage_errors.MissingParameter(
        ctx=context, param_hint=f"'{name}'", param_type="argument"
    )
    return error


def _usage(error: Any) -> int:
    if isinstance(error, _usage_errors.NoArgsIsHelpError):
        error.show()
        return Exit.WRONG
    context = getattr(error, "ctx", None)
    try:
        refuse_unquoted(sys.argv[1:])
        _refuse_parted(sys.argv[1:])
    except JobError as unquoted:
        remark(str(unquoted), "error")
        return Exit.WRONG
    text = error.format_message().rstrip(".")
    if isinstance(error, _usage_errors.NoSuchOption):
        possible = list(error.possibilities or [])
        begun = any(option.startswith(error.option_name) for option in possible)
        settings = [] if context is None or begun else [*_settings(context, error.option_name)]
        text = f"there is no option {error.option_name}"
        if settings:
            text += f"; {' or '.join(settings)} sets a key of the job"
        else:
            text += did_you_mean(_alike(error.option_name, possible))
    if context is not None:
        text += f"; `{context.command_path} --help` lists what there is"
    remark(text, "error")
    return Exit.WRONG


def _refuse_parted(words: Sequence[str]) -> None:
    """Raise JobError if `words` contain `--set KEY VALUE`, which must be written `--set KEY=VALUE`.

    `words` are the arguments of the command line.
    """
    for option, key, value in zip(words, words[1:], words[2:], strict=False):
        if option == "--set" and "=" not in key and not value.startswith("-"):
            parted = f"{plain(key)} {plain(value)}"
            raise JobError([f"--set {parted} must be written --set {parted.replace(' ', '=', 1)}"])


def _alike(option: str, near: Iterable[str]) -> list[str]:
    names = {name.lstrip("-"): name for name in near}
    return [names[name] for name in get_close_matches(option.lstrip("-"), names)]


def _swapped(context: Any, group: TyperGroup, first: str) -> str:
    """Return a hint to write `run JOB` in place of `JOB run`, where JOB is the word `first`.

    Returns "" if no command, such as `run`, comes after `first`.
    """
    rest = sys.argv[sys.argv.index(first) + 1 :] if first in sys.argv else []
    name = next(filter(group.commands.get, rest), None)
    if name is None:
        return ""
    line = f"{context.command_path} {name} {shlex.quote(first)}"
    return f"the command comes before {first}. Write: {line}"


def _settings(context: Any, option: str) -> Iterator[str]:
    """Yield `--set` options that the user may have meant by the unknown option `option`.

    For example, `--rounds` may be meant as `--set rounds=VALUE`. There is one suggestion for each
    key of a job that matches the name. Yields none if the command has no option `--set`.
    """
    if not any("--set" in parameter.opts for parameter in context.command.params):
        return
    kind = _job_of(context.command_path)
    name = option.lstrip("-").replace("-", "_")
    field = kind.model_fields.get(name)
    block = None if field is None else block_of(field)
    if block is not None:  # `protection` stands for its name, `clients` for its first key
        first = next(iter(block.model_fields))
        yield f"--set {name}=VALUE" if first == "name" else f"--set {name}.{first}=VALUE"
        return
    for path in keys(kind):
        if path[-1] in (name, f"target_{name}"):
            yield f"--set {dotted(path)}=VALUE"


def _job_of(command: str) -> type[BaseModel]:
    from fedveil.federated.job import Job
    from fedveil.vertical.job import VerticalJob

    return VerticalJob if "vertical" in command.split() else Job
