"""Everything that a reader of the docs may copy: blocks of code and commands."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import click
import typer

from fedveil.cli import main as cli
from folders import DOCS, ROOT

#: Programs that are options of one script, which starts all of them for real.
LOOPBACK = ("flwr", "flower-superlink", "flower-supernode")
#: Words that begin a shell line which is not a command of this project.
SHELL = {
    "curl",
    "ray",
    "sleep",
    "srun",
    "export",
    "cat",
    "for",
    "mkdir",
    "ls",
    "cd",
    "kill",
    "ssh-keygen",
    "umask",
    "touch",
    "openssl",
}


@dataclass(frozen=True)
class Block:
    """A block of a page, with its place. `language` is `indented` if it has no fence."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """Return every page that has commands or code for a reader."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]


def blocks(text: str, page: str) -> Iterator[Block]:
    """Yield the fenced blocks of a page, and those that are indented after an empty line."""
    fence, begun, held = "", 0, list[str]()
    indented, empty = 0, True
    for number, line in enumerate([*text.splitlines(), ""], 1):
        mark = re.match(r"```(\w*)$", line)
        if fence:
            if line == "```":
                yield Block(page, begun, fence, "\n".join(held) + "\n")
                fence, held = "", []
            else:
                held.append(line)
        elif mark:
            fence, begun = mark[1] or "plain", number
        elif (re.match(r" {4}\S", line) and (indented or empty)) or (
            indented and line[:4] == "    "
        ):
            indented = indented or number
            held.append(line[4:])
        elif indented:
            yield Block(page, indented, "indented", "\n".join(held) + "\n")
            indented, held = 0, []
        empty = not line.strip()


def all_blocks() -> list[Block]:
    """Return every block of every page."""
    return [
        block
        for path in pages()
        for block in blocks(path.read_text("utf-8"), str(path.relative_to(ROOT)))
    ]


def in_sentences(path: Path) -> Iterator[str]:
    """Yield the commands between backticks in a page's sentences and tables."""
    text = re.sub(r"^```.*?^```$", "", path.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    for found in re.findall(r"`(fedveil [^`]+)`", text.replace("\n", " ")):
        if "…" not in found:
            yield found


def commands(text: str) -> Iterator[list[str]]:
    """Yield the commands of a block as lists of words. After a `$`, output is not a command."""
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    if any(line.startswith("$ ") for line in lines):
        lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    for line in lines:
        lexer = shlex.shlex(line, posix=True, punctuation_chars="&;")
        lexer.whitespace_split, lexer.commenters = True, "#"
        held: list[str] = []
        for word in [*lexer, ";"]:
            if set(word) <= {"&", ";"}:
                if held:
                    yield held
                held = []
            elif held or not (re.match(r"[A-Z_]+=", word) or word == "do"):
                held.append(word)


def is_command(block: Block) -> bool:
    """Return True if a reader would type the block."""
    if block.language in ("sh", "bash"):
        return True
    programs = {"fedveil", "python", "make", "pip", ".ci/run", *LOOPBACK}
    first = block.text.removeprefix("$ ").split()[0]
    return block.language == "indented" and first in programs


def problem(words: list[str], *, mentioned: bool = False) -> str | None:
    """Return the reason why a command is not valid, or None if it is.

    One that is only `mentioned` may lack required arguments.
    """
    program, *rest = words[: words.index(">")] if ">" in words else words
    if program in SHELL or program in ("END", "done", "[superlink]", "[superlink.loopback]"):
        return None
    if re.match(r"\w+=\$\(", program):
        return None  # a variable that holds another program's answer
    if re.match(r"[\w-]+$", program) and rest[:1] == ["="]:
        return None  # a line of a configuration file that the block writes
    if program == "fedveil":
        return _of_ours([word for word in rest if word != "..."], mentioned)
    if program == "python":
        return _of_python(rest)
    if program == "make":
        targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        return None if set(rest) <= set(targets) else f"make has no {rest}"
    if program == "pip":
        known = re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
        named = [part for word in rest for part in re.findall(r"\[(.*)\]", word)]
        extras = {extra for part in named for extra in part.split(",")}
        return None if extras <= set(known) else f"there is no extra of {extras}"
    if program in LOOPBACK:
        started = (ROOT / "examples" / "flower" / "loopback.py").read_text()
        lacking = [w for w in rest if w.startswith("--") and f'"{w}"' not in started]
        return f"{program}: examples/flower/loopback.py gives no {lacking}" if lacking else None
    return None if (ROOT / program).is_file() else f"{program} is no program that is known here"


@cache
def _program() -> click.Command:
    return typer.main.get_command(cli.app)


def _of_ours(rest: list[str], mentioned: bool) -> str | None:
    command, name = _program(), "fedveil"
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        if rest[0] not in command.commands:
            return f"{name} has no command {rest[0]}"
        command, name, rest = command.commands[rest[0]], f"{name} {rest[0]}", rest[1:]
    if isinstance(command, click.Group):
        return None if rest in ([], ["--version"], ["--help"]) else f"{name}: {rest}"
    try:
        context = command.make_context(name, list(rest))
    except click.exceptions.Exit:  # an option such as --keys answers by itself
        return None
    except (click.MissingParameter, click.BadOptionUsage) as error:
        return None if mentioned else f"{name}: {error.format_message()}"
    except click.UsageError as error:
        return f"{name}: {error.format_message()}"
    return _of_settings(name, context.params.get("overrides") or [])


def _of_settings(name: str, overrides: list[str]) -> str | None:
    """Check a command's settings on a job of the kind that the command takes."""
    from fedveil.errors import FedveilError
    from fedveil.federated.job import Job
    from fedveil.starter import DEFAULT_JOB
    from fedveil.vertical.job import VerticalJob

    if not overrides:
        return None
    vertical = "vertical" in name or name.split()[-1] in ("features", "labels", "tokens")
    for job, given in ((VerticalJob, None),) if vertical else ((Job, DEFAULT_JOB), (Job, None)):
        try:
            job.load(given, overrides)
        except FedveilError as error:
            said = str(error)
        else:
            return None
    return f"{name}: {said}"


def _of_python(rest: list[str]) -> str | None:
    from importlib.util import find_spec

    if rest[:1] == ["-m"]:
        package = rest[1].partition(".")[0]
        extra = re.search(rf"^{package} = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
        if extra and find_spec(package) is None:
            return None  # a package that an extra of the same name installs
        return None if find_spec(rest[1]) else f"there is no module {rest[1]}"
    if rest[0].endswith("/dossier/recompute.py"):  # `fedveil dossier` writes it
        return None
    script = ROOT / rest[0].removeprefix("$CLONE/")
    if not script.is_file():
        return f"there is no {rest[0]}"
    text = script.read_text()
    lacking = [w for w in rest[1:] if w.startswith("--") and f'"{w}"' not in text]
    return f"{rest[0]} has no {lacking}" if lacking else None
