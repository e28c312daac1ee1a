"""Writes the Flower app of a job: a folder that `flwr run` accepts directly."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from fedveil.base import own_code
from fedveil.base.untrusted import MOST_DATA_BYTES, read_text
from fedveil.engine.assembly import load_data, make_partition
from fedveil.errors import DeploymentError
from fedveil.federated.job import Job
from fedveil.flower.job.app_folder import JOB, ROSTER, check_deployable
from fedveil.flower.job.app_project import EMPTY_ROSTER, app_pyproject, write_files

#: Flower's limit on an app's name.
_MAX_NAME = 32


def deployable(job: Job, *, seeded: bool = False) -> Job:
    """Return the job in the form that is deployed: with a number of clients and secure randomness.

    If `seeded` is True, reports use the job's seed instead, for tests against the simulator.
    Everyone who has the job can then remove the noise, so nothing is protected. Raises
    `DeploymentError` for settings that only a simulation supports.
    """
    check_deployable(job)
    if job.clients.number is None:
        job = job.with_clients(make_partition(job, load_data(job)).clients)
    data = job.model_dump()
    data["privacy"]["randomness"] = "seeded" if seeded else "secure"
    return Job(**data)


def write_app(folder: Path, job: Job) -> list[Path]:
    """Write the Flower app of `job` to `folder`. Returns the paths of its files.

    The job must be a result of `deployable`. Raises `DeploymentError`, and writes nothing, if a
    file exists already with different content.
    """
    name = _app_name(job.name)
    extras = "torch,flower,language" if job.has_language_model else "torch,flower"
    files = {
        "pyproject.toml": app_pyproject(
            name, "job", extras, "The server's run folder; empty: runs/NAME-DIGEST"
        ),
        "server_app.py": _SERVER,
        "client_app.py": _CLIENT,
        JOB: job.to_yaml(),
        "README.md": _README.format(
            name=name, clients=job.clients.number, configuration=_node_configuration(job)
        ),
    }
    if job.protection.position.needs_roster(job.protection.settings):
        files[ROSTER] = EMPTY_ROSTER
    own = _own_modules(job.own_names)
    if taken := sorted(files.keys() & own.keys()):
        raise DeploymentError(
            f"the job's own module {taken[0]} has the name of a file of every app: rename the "
            f"module"
        )
    return write_files(folder, files | own)


def _node_configuration(job: Job) -> str:
    most = job.deployment.clients_per_node
    return "client=0" if most == 1 else f'clients="0-{most - 1}"'


def _app_name(name: str) -> str:
    """Convert the job's name to Flower's format: letters, digits and hyphens, a letter first."""
    plain = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-") or "job"
    return (plain if plain[0].isalpha() else f"job-{plain}")[:_MAX_NAME].strip("-")


def _own_modules(names: list[str]) -> dict[str, str]:
    """Return the source text, by path, of the modules or packages with the functions in `names`."""
    files: dict[str, str] = {}
    for name in filter(own_code.is_function, names):
        own_code.load(name, key=name, error=DeploymentError)
        top = re.split("[.:]", name)[0]
        file = getattr(sys.modules[top], "__file__", None)
        if file is None:
            raise DeploymentError(f"{name}: the module {top} is no file that could be copied")
        path = Path(file)
        if path.name != "__init__.py":
            files[path.name] = read_text(path, MOST_DATA_BYTES)
            continue
        for source in sorted(path.parent.rglob("*.py")):
            inside = source.relative_to(path.parent.parent)
            files[inside.as_posix()] = read_text(source, MOST_DATA_BYTES)
    return files


_SERVER = '''\
"""The server's side of the job: rounds, records, ledger and checkpoints in its run folder."""

from pathlib import Path

from fedveil.flower.job import server_app

app = server_app(Path(__file__).parent)
'''

_CLIENT = '''\
"""A client's side of the job: trains on its own examples, and sends a protected report."""

from pathlib import Path

from fedveil.flower.job import client_app

app = client_app(Path(__file__).parent)
'''

_README = """\
# {name}: a fedveil job on Flower

`job.yaml` decides everything; `fedveil job show job.yaml` checks it. Start a SuperLink, and
SuperNodes for the {clients} clients, with their numbers in the node configuration:

    flower-superlink --disable-runtime-dependency-installation ...
    flower-supernode --node-config '{configuration}' ...

Then `flwr run .` with a connection to that SuperLink. Start it again after an interruption: it goes
on from the last complete round of its run folder.
"""
