"""Writes and runs the Flower app of a question file: a folder that `flwr run` accepts."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedveil.errors import DeploymentError, FedveilError, MissingExtra
from fedveil.flower.job.app_folder import ROSTER, server_roster
from fedveil.flower.job.app_project import EMPTY_ROSTER, app_pyproject, write_files
from fedveil.record.run_folder import refuse_taken
from fedveil.statistics.answer_folder import ANSWERS, PAGE, QUESTION, saved
from fedveil.statistics.clients import load
from fedveil.statistics.question import QuestionFile

if TYPE_CHECKING:
    from flwr.app import Context
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp

_MAX_NAME = 32


def deployable(file: QuestionFile) -> QuestionFile:
    """Return a copy of `file` that states the number of clients, ready to be run by real clients.

    If `file` does not state the number, the clients in its data are counted. Raises
    `DeploymentError` if `fidelity` or `randomness` has a value that is only for simulations.
    """
    if file.fidelity == "aggregate":
        raise DeploymentError("fidelity = 'aggregate' is a simulation: use fidelity = 'per_client'")
    if file.randomness == "seeded":
        raise DeploymentError(
            "randomness = 'seeded' is for simulations, and clients refuse it: use 'secure'"
        )
    clients = len(load(file)) if file.clients is None else file.clients
    return file.with_(clients=clients)


def write_app(folder: Path, file: QuestionFile) -> list[Path]:
    """Write the Flower app of a question file to `folder`. Returns the paths of its files.

    The question file must be a result of `deployable`. Raises an error if a file exists with other
    content. Keeps an existing roster, the file with all clients' public keys.
    """
    name = re.sub(r"[^A-Za-z0-9]+", "-", file.name).strip("-") or "question"
    name = (name if name[0].isalpha() else f"question-{name}")[:_MAX_NAME].strip("-")
    texts = {
        "pyproject.toml": app_pyproject(
            name, "question", "flower", "The answer's folder; empty: a new one under runs/"
        ),
        "server_app.py": _APP.format(side="server", what="asks, and keeps the answers"),
        "client_app.py": _APP.format(side="client", what="answers from a client's own rows"),
        QUESTION: file.to_yaml(),
    }
    if _needs_roster(file) and not (folder / ROSTER).exists():
        texts[ROSTER] = EMPTY_ROSTER
    return write_files(folder, texts)


def _needs_roster(file: QuestionFile) -> bool:
    return file.position.needs_roster(file.protection.settings)


def run_app(file: QuestionFile, folder: Path, out: Path | None) -> dict[str, Any]:
    """Write the app of a question file to `folder`, run it with `flwr run`, and return the answers.

    The answers are plain values (`Answers.data`), and the paths of their folder and page. They are
    saved in `out`, or by default in `folder`/answer. Raises `DeploymentError` if there is no
    answer.
    """
    program = shutil.which("flwr")
    if program is None:
        raise MissingExtra("flwr", "flower", "fedveil ask --on")
    answers = (folder / "answer" if out is None else out).absolute()
    refuse_taken(answers, None)  # else the answers of an earlier run would count as this run's
    write_app(folder, deployable(file))
    server_roster(folder, file.protection)
    config = f"folder={json.dumps(str(answers))}"
    ended = subprocess.run(
        [program, "run", str(folder), "--stream", "--run-config", config], check=False
    )
    if ended.returncode or not (answers / ANSWERS).is_file():
        raise DeploymentError(f"flwr run {folder} ended without an answer; its output says why")
    return {**saved(answers), "folder": str(answers), "page": str(answers / PAGE)}


def server_app(folder: str | Path) -> ServerApp:
    """Return the ServerApp of the app in `folder`."""
    from flwr.serverapp import ServerApp

    from fedveil.statistics.flower_server import serve

    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        try:
            serve(Path(folder), grid, context)
        except FedveilError as error:
            # Flower logs an error with its traceback, in which the sentence would be hard to find.
            raise error.with_traceback(None) from None

    return app


def client_app(folder: str | Path) -> ClientApp:
    """Return the ClientApp of the app in `folder`."""
    from fedveil.statistics.flower_client import make_app

    return make_app(Path(folder))


_APP = '''\
"""The {side}'s side of the question: {what}."""

from pathlib import Path

from fedveil.statistics.flower_app import {side}_app

app = {side}_app(Path(__file__).parent)
'''
