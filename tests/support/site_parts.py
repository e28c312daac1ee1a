"""A site with a policy in a folder, an app's archive, and a grid whose clients are sites."""

from __future__ import annotations

import io
import zipfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import yaml
from flwr.app import Context, Message

from fedveil.federated.job import Job
from fedveil.flower.job.app_folder import ROSTER
from fedveil.site.door import Door
from fedveil.site.order import order_in
from fedveil.site.site_folder import POLICY, Site, create
from flower_parts import CLIENTS, LocalGrid, job

#: A private sum of the clients of `flower_parts.job`, which the strict policy accepts.
DISTRIBUTED: dict[str, Any] = {
    "name": "distributed_dp",
    "distributed_dp": {
        "noise_multiplier": 5.0, "clip": 0.5, "active_security": True, "cipher_time_window": 9000,
    },
}  # fmt: skip
MASKED: dict[str, Any] = {
    "name": "pw_encrypt",
    "pw_encrypt": {"active_security": True, "cipher_time_window": 9000},
}


def study(**changes: Any) -> Job:
    """Return a job that a strict site accepts."""
    settings: dict[str, Any] = {
        "name": "heart", "rounds": 2, "model": "logistic", "data": {"name": "digits"},
        "protection": DISTRIBUTED, "server": {"weighting": "equal"},
    }  # fmt: skip
    return job(**{**settings, **changes})


def archive(files: dict[str, bytes | str]) -> bytes:
    """Return an app's archive with these files."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as zipped:
        for name, data in files.items():
            zipped.writestr(name, data)
    return out.getvalue()


def archive_of(app: Path) -> bytes:
    """Return the archive of an app's folder."""
    return archive({path.name: path.read_bytes() for path in app.iterdir() if path.is_file()})


def policy_of(*apps: Path, **changes: Any) -> dict[str, Any]:
    """Return the keys of a policy that accepts these apps. Reports leave when they are ready."""
    keys: dict[str, Any] = {
        "name": "north",
        "clear": {"answer_after_s": None},
        "jobs": {"digests": [order_in(app).digest.hex() for app in apps]},
        "data": {"heart": {"named": "digits"}},
        "servers": {"study": {"roster": "roster.yaml", "client": 0}},
    }
    return {**keys, **changes}


def write_policy(folder: Path, keys: dict[str, Any]) -> Site:
    (folder / POLICY).write_text(yaml.safe_dump(keys))
    return Site.open(folder)


class Sites:
    """A site for each client of the job, with one roster, and the app that all of them serve."""

    def __init__(self, folder: Path, app: Path, **changes: Any) -> None:
        self.app = app
        self.folders = [folder / f"site-{n}" for n in range(CLIENTS)]
        keys = [create(site) for site in self.folders]
        roster = "".join(f'client-{n}: "{key}"\n' for n, key in enumerate(keys))
        (app / ROSTER).write_text(roster)
        self.policies = []
        for n, site in enumerate(self.folders):
            (site / "roster.yaml").write_text(roster)
            said = policy_of(app, **changes)
            said["servers"]["study"]["client"] = n
            write_policy(site, said)
            self.policies.append(said)

    def grid(self, stack: ExitStack, app: bytes | None = None) -> LocalGrid:
        """Return a grid whose nodes answer through the doors of the sites."""
        grid = LocalGrid(self.app, self.folders[0])
        doors = [self.door(stack, n) for n in range(CLIENTS)]
        held = archive_of(self.app) if app is None else app

        def answer(message: Message, context: Context) -> Message:
            return doors[message.metadata.dst_node_id - 100].answer(lambda: held, message, context)

        grid.app = answer  # type: ignore[assignment]
        return grid

    def site(self, client: int) -> Site:
        return Site.open(self.folders[client])

    def door(self, stack: ExitStack, client: int = 0) -> Door:
        site = self.site(client)
        return Door(site, "study", stack.enter_context(site.log("study")))

    def log(self, client: int = 0) -> str:
        return (self.folders[client] / "logs" / "study" / "site.log").read_text()


def unreadable() -> dict[str, Any]:
    """Raise an error that names a patient, in place of returning data."""
    raise KeyError("patient 4711")
