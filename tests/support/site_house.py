"""One site with one door, everything that can be seen of it, and messages of its server."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Message
from flwr.supercore.task_identity import TaskIdentity

from fedveil.engine.job_protection import make_protection
from fedveil.federated.job import Job
from fedveil.flower.job.job_client import ROUND_FIELDS
from fedveil.flower.records import MESSAGE, encoded_message
from fedveil.protections.base import RoundContext
from fedveil.site.code_folder import read
from fedveil.site.door import Door
from fedveil.site.order import read_app
from fedveil.site.site_folder import create
from flower_parts import context
from hostile_orders import Said, text_of, with_code
from parts import CLASSES, FEATURES
from site_parts import study, write_policy

WEIGHTS = (FEATURES + 1) * CLASSES


class House:
    """A site with a door, and everything that can be seen of it."""

    def __init__(self, folder: Path, stack: ExitStack, policy: dict[str, Any]) -> None:
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
        self.folder = folder
        key = create(folder)
        (folder / "roster.yaml").write_text(f'client-0: "{key}"\n')
        self.site = write_policy(folder, policy)
        self.log = stack.enter_context(self.site.log("study"))
        self.door = Door(self.site, "study", self.log)
        self.context = context(100, {}, {})
        self.account = self.site.account("heart")

    def ask(self, app: bytes, message: Message) -> bytes | None:
        """Return what leaves for a message. A refusal is one word, and a line in the log."""
        before = self.lines()
        reply = self.door.answer(lambda: app, message, self.context)
        if reply.has_error():
            assert (reply.error.code, reply.error.reason) == (200, "withheld")
            assert not reply.has_content()
            (line,) = (line for line in self.lines()[len(before) :] if " noted " not in line)
            assert " refused run 1 " in line
            return None
        assert list(reply.content) == [MESSAGE]
        return encoded_message(reply.content)

    def permit(self, files: dict[str, str], **changes: Any) -> dict[str, str]:
        """Write modules into the site's folder `code`, permit them, and return their digests."""
        for name, text in files.items():
            path = self.folder / "code" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        names = {name.partition("/")[0].removesuffix(".py") for name in files}
        modules = {name: read(self.folder, name).digest for name in names}
        keys = self.site.policy.model_dump(exclude_unset=True)
        permitted = {"clear": {"answer_after_s": 60.0}, "code": {"modules": modules}}
        self.site = write_policy(self.folder, {**keys, **permitted, **changes})
        self.door = Door(self.site, "study", self.log)
        return modules

    def why(self) -> str:
        return self.lines()[-1]

    def lines(self) -> list[str]:
        return (self.folder / "logs" / "study" / "site.log").read_text().splitlines()

    @property
    def charges(self) -> int:
        self.account.refresh()
        return len(self.account.charges)


def policy(**changes: Any) -> dict[str, Any]:
    keys: dict[str, Any] = {
        "name": "north",
        "strength": {"unit": "client", "honest": 0.9},
        "clear": {"answer_after_s": 0.003},
        "data": {"heart": {"named": "digits", "reader": "parts:data"}},
        "servers": {"study": {"roster": "roster.yaml"}},
    }
    return {**keys, **changes}


def job(**changes: Any) -> Job:
    block = {"noise_multiplier": 5.0, "clip": 0.5, "active_security": True, "assume_honest": 0.9,
             "cipher_time_window": 9000}  # fmt: skip
    made = {
        "protection": {"name": "distributed_dp", "distributed_dp": block},
        "privacy": {"randomness": "secure"},
    }
    return study(**{**made, **changes})


def training(job: Job, phase: str | None = None, **more: Any) -> Said:
    """Return the message that asks client 0 of a job for its report, by words of a server."""
    protection = make_protection(job, WEIGHTS)
    weights = np.linspace(-0.1, 0.1, WEIGHTS, dtype=np.float32)
    round_ = RoundContext(range(6), 1, weights, protection.initial_state())
    opening = protection.server_round(round_)
    common = {
        "opening": True, "round": 1, "dimension": WEIGHTS, "weights": weights,
        "example_shape": np.array([FEATURES], np.int64), "classes": CLASSES, "fingerprint": "",
    }  # fmt: skip
    asked, phase = dict(opening.opening()), phase or protection.trains
    if phase != protection.trains:
        common = {key: common[key] for key in ROUND_FIELDS}
    return Said(f"train.{phase}", 0, {**asked, **more}, common)


def noised(eps: float = 0.05, **changes: Any) -> Job:
    block = {"dp_eps": eps, "dp_delta": 1e-6, "dp_norm_clip": 0.5}
    return job(protection={"name": "dp_encrypt", "dp_encrypt": block}, rounds=900, **changes)


def of_job(good: Job, **changes: Any) -> dict[str, Any]:
    """Return the policy of a site that accepts one job, however often it asks."""
    epsilon = {"run": 1000.0, "month": 1000.0, "ever": 1000.0, "exact_sums": 3}
    keys = {
        "jobs": {"digests": [digest_of(good)]},
        "clear": {"answer_after_s": None},
        "epsilon": epsilon,
    }
    return policy(protections=[good.protection.name], **{**keys, **changes})


def digest_of(good: Job) -> str:
    return read_app(app_of_job(good)).digest.hex()


def app_of_job(good: Job) -> bytes:
    return with_code(text_of(good))
