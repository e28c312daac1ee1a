"""The files that `fedveil init` writes, and the default job."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from shlex import quote
from typing import NamedTuple

from fedveil.base.files import write_new
from fedveil.errors import InvalidValue, RunFolderError, nearest
from fedveil.record.run_folder import make_folder

#: The job of `fedveil run` without a file.
DEFAULT_JOB = Path(__file__).parent / "private_digits.yaml"
#: The job that each of these attacks uses without a job file. On it, the attack succeeds.
ATTACKED_JOBS = {
    "gradient": Path(__file__).parent / "attacked.yaml",
    "exact": Path(__file__).parent / "attacked_batch.yaml",
}


class Template(NamedTuple):
    """A template of `fedveil init`. The command `run` runs it.

    `files` maps the name of each file to the name of its source in this package.
    """

    files: dict[str, str]
    run: str = "fedveil run job.yaml"


def _federated(name: str) -> Template:
    return Template({"job.yaml": f"{name}.yaml", "model.py": f"{name}_start.py"})


TEMPLATES = {
    "image": _federated("image"),
    "text": _federated("text"),
    "table": _federated("table"),
    "regression": _federated("regression"),
    "own-step": _federated("own_step"),
    "vertical": Template(
        {"job.yaml": "vertical.yaml", "make_tables.py": "vertical_tables.py"},
        "python make_tables.py && fedveil vertical run job.yaml",
    ),
    "flower": Template({"pyproject.toml": "flower.toml", "app.py": "flower_app.py"}, "flwr run ."),
}


def write_starter(directory: Path, name: str = "table") -> list[Path]:
    """Copy the files of the template `name` to `directory`: all of them or, after an error, none.

    Never overwrites an existing file.
    """
    if name not in TEMPLATES:
        near = nearest(name, TEMPLATES)
        raise InvalidValue(f"--template {quote(name)} is not one of {', '.join(TEMPLATES)}{near}")
    sources = TEMPLATES[name].files
    taken = [name for name in sources if (directory / name).exists()]
    if taken:
        raise RunFolderError(
            f"{directory} already holds {' and '.join(taken)}; nothing was written"
        )
    make_folder(directory)
    begun = list[Path]()
    try:
        for target, source in sources.items():
            content = files(__package__).joinpath(source).read_bytes()
            begun.append(directory / target)
            write_new(begun[-1], content, 0o666)
    except OSError as error:
        # A file that exists now, but did not at the check above, belongs to another program.
        for path in begun[:-1] if isinstance(error, FileExistsError) else begun:
            path.unlink(missing_ok=True)
        raise RunFolderError(f"{directory} cannot be written: {error.strerror}") from error
    return begun
