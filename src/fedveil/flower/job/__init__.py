"""A fedveil job on Flower, which carries messages, starts clients and authenticates them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp


def client_app(folder: str | Path) -> ClientApp:
    """Return the ClientApp of the app that `fedveil deploy` wrote to `folder`."""
    from fedveil.flower.job.job_client import make_app

    return make_app(Path(folder))


def server_app(folder: str | Path) -> ServerApp:
    """Return the ServerApp of the app that `fedveil deploy` wrote to `folder`."""
    from fedveil.entry.server_app import make_app

    return make_app(Path(folder))
