"""A fedveil job on Flower: Flower carries the messages, starts the clients and authenticates them.

    deploy.py           writes the Flower app of a job
    app_project.py      the app's project file
    app_folder.py       the other files in the app's folder, besides its code
    signing_key_file.py a client's long-lived signing key
    flower_engine.py    the server: runs the job's rounds in a run folder, with grid_executor.py
                        and node_mapping.py
    job_client.py       the ClientApp: answers one message of a round at a time
    member.py           the clients of a node, from its configuration
    client_training.py  the part of an answer that needs torch

The app's code calls `client_app` and `server_app`. Each imports its module only when it is called,
so a client imports torch only for training.
"""

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
