"""Runs each command in a child of a process that has imported only what every command needs.

    python cold_commands.py < CASES > ENDS

A case is a working folder, a command's words, and a package that is missing there, if any. Its end
is the exit code, the two outputs, and the modules imported by then.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple


class Case(NamedTuple):
    folder: str
    words: Sequence[str]
    missing: str | None = None


class End(NamedTuple):
    code: int
    out: str
    err: str
    imported: list[str]


def ends(cases: Sequence[Case]) -> list[End]:
    """Run the cases and return their ends."""
    ended = subprocess.run(
        [sys.executable, __file__], input=json.dumps(cases), capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return [End(*end) for end in json.loads(ended.stdout)]


class _Missing:
    def __init__(self, package: str) -> None:
        self.package = package

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name == self.package:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def _end_of(folder: str, words: list[str], missing: str | None) -> End:
    with tempfile.TemporaryDirectory() as place:
        names = [Path(place, name) for name in ("out", "err", "modules")]
        child = os.fork()
        if child == 0:
            for number, name in enumerate(names[:2], start=1):
                os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT), number)
            os.chdir(folder)
            _play(words, missing, names[2])
        _, status = os.waitpid(child, 0)
        out, err, modules = (name.read_text() for name in names)
        return End(os.waitstatus_to_exitcode(status), out, err, modules.split())


def _play(words: list[str], missing: str | None, modules: Path) -> None:
    from fedveil.cli.main import main

    if missing is not None:
        sys.meta_path.insert(0, _Missing(missing))  # type: ignore[arg-type]
    sys.argv = ["fedveil", *words]
    code = 70
    try:
        main()
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    finally:
        modules.write_text("\n".join(sys.modules))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    import fedveil.cli.main
    import fedveil.federated.job
    import fedveil.vertical.job  # noqa: F401

    assert not {"torch", "grpc", "flwr"} & set(sys.modules), "no command needs them all"
    print(json.dumps([_end_of(*case) for case in json.load(sys.stdin)]))
