"""The project file of the Flower apps that fedveil writes."""

from __future__ import annotations

from fedveil import __version__


def app_pyproject(name: str, what: str, extras: str, folder: str) -> str:
    """Return the project file of a Flower app called `name`, which runs a fedveil `what`.

    `extras` are those of fedveil that it needs. `folder` describes its key of that name.
    """
    return _PYPROJECT.format(
        name=name, what=what, extras=extras, folder=folder, version=__version__
    )


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
