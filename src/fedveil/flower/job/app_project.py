"""Writes a Flower app's folder, and the project file that all Flower apps of fedveil have."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fedveil import __version__
from fedveil.base.files import write_whole
from fedveil.base.untrusted import MOST_DATA_BYTES, read_bytes
from fedveil.errors import DeploymentError
from fedveil.record.run_folder import make_folder

#: The roster of an app whose protection needs one, to be filled in.
EMPTY_ROSTER = """\
# Every client's public signing key, a line for each, from `fedveil identity FILE`:
#   client-0: "64 hexadecimal digits"
# This file is for the server. A client only trusts the roster in its own node configuration.
"""


def app_pyproject(name: str, what: str, extras: str, folder: str) -> str:
    """Return the text of the project file (pyproject.toml) of a Flower app called `name`.

    `what` is what the app runs, such as "job". `extras` lists the optional dependencies of fedveil
    that the app needs, separated by commas. `folder` is the beginning of a comment: it explains the
    setting `folder`, which names the folder for the server's results.
    """
    return _PYPROJECT.format(
        name=name, what=what, extras=extras, folder=folder, version=__version__
    )


def write_files(folder: Path, files: Mapping[str, str]) -> list[Path]:
    """Write an app's files: `files` maps a path in `folder` to the text. Returns the full paths.

    Raises `DeploymentError`, and writes nothing, if a file exists already with different content.
    """
    taken = [
        path
        for path, text in files.items()
        if (folder / path).exists() and not _holds(folder / path, text)
    ]
    if taken:
        raise DeploymentError(
            f"{folder} already holds {', '.join(sorted(taken))} with other content: name another "
            f"folder"
        )
    for path, text in files.items():
        target = folder / path
        make_folder(target.parent)
        try:
            write_whole(target, text.encode())
        except OSError as error:
            raise DeploymentError(f"{target} cannot be written: {error.strerror}") from None
    return [folder / path for path in files]


def _holds(path: Path, text: str) -> bool:
    try:
        return read_bytes(path, MOST_DATA_BYTES) == text.encode()
    except OSError:
        return False


_PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "1.0.0"
description = "A fedveil {what} on Flower."
license = {{ text = "as its owner decides" }}
dependencies = ["flwr>=1.41,<1.43", "fedveil[{extras}]=={version}"]

[tool.flwr.app]
publisher = "fedveil"

[tool.flwr.app.components]
serverapp = "server_app:app"
clientapp = "client_app:app"

[tool.flwr.app.config]
# {folder} where the SuperLink was started.
folder = ""
"""
