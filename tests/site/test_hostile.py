"""More than a thousand hostile apps, jobs and messages, at the real door of a site."""

from __future__ import annotations

import builtins
import math
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import Message
from flwr.supercore.task_identity import TaskIdentity

from fedveil.base.message import encode
from fedveil.engine.job_protection import make_protection
from fedveil.flower.job import client_training
from fedveil.flower.job.signing_key_file import make_identity
from fedveil.flower.records import MESSAGE, encoded_message
from fedveil.protections.base import RoundContext
from fedveil.site.door import Door
from fedveil.site.order import order_in, read_app, sign
from fedveil.site.site_folder import Site, create
from flower_parts import app_of, context
from hostile_orders import Hostile, Said, archives, jobs, messages, signatures, text_of, with_code
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
        self.door = Door(self.site, "study", stack.enter_context(self.site.log("study")))
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

    def why(self) -> str:
        return self.lines()[-1]

    def lines(self) -> list[str]:
        return (self.folder / "logs" / "study" / "site.log").read_text().splitlines()

    @property
    def charges(self) -> int:
        self.account.refresh()
        return len(self.account.charges)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture(autouse=True)
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count how often a client's examples are read."""
    found: list[int] = []
    own_data = client_training.own_data
    monkeypatch.setattr(
        client_training, "own_data", lambda *a: (found.append(a[1]), own_data(*a))[1]
    )
    return found


@pytest.fixture(autouse=True)
def own_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Let a hostile app's code be importable. It must not be imported all the same."""
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "evil.py").write_text("import builtins\nbuiltins.hostile_code_ran = True\n")
    monkeypatch.syspath_prepend(tmp_path / "path")
    yield
    assert not hasattr(builtins, "hostile_code_ran")


def policy(**changes: Any) -> dict[str, Any]:
    keys: dict[str, Any] = {
        "name": "north",
        "strength": {"unit": "client", "honest": 0.9},
        "clear": {"answer_after_s": 0.003},
        "data": {"heart": {"named": "digits", "reader": "parts:data"}},
        "servers": {"study": {"roster": "roster.yaml"}},
    }
    return {**keys, **changes}


def job(**changes: Any) -> Any:
    block = {"noise_multiplier": 5.0, "clip": 0.5, "active_security": True, "assume_honest": 0.9,
             "cipher_time_window": 9000}  # fmt: skip
    made = {"protection": {"name": "distributed_dp", "distributed_dp": block}, **changes}
    return study(privacy={"randomness": "secure"}, **made)


def training(job: Any, phase: str | None = None, **more: Any) -> Said:
    """Return the message that asks client 0 of a job for its report, by words of a server."""
    protection = make_protection(job, WEIGHTS)
    weights = np.linspace(-0.1, 0.1, WEIGHTS, dtype=np.float32)
    opening = protection.server_round(RoundContext(range(6), 1, weights, protection.initial_state()))
    common = {
        "opening": True, "round": 1, "dimension": WEIGHTS, "weights": weights,
        "example_shape": np.array([FEATURES], np.int64), "classes": CLASSES, "fingerprint": "",
    }  # fmt: skip
    asked = dict(opening.opening())
    return Said(f"train.{phase or protection.trains}", 0, {**asked, **more}, common)


@pytest.fixture
def strict(tmp_path: Path, stack: ExitStack) -> House:
    """A strict site. Any job may run that is strong enough: only its strength can stop it."""
    template = job()
    (tmp_path / "template.yaml").write_text(template.to_yaml())
    free = sorted(type(template).model_fields)
    jobs = {"template": str(tmp_path / "template.yaml"), "may_differ": free}
    return House(tmp_path / "site", stack, policy(jobs=jobs))


def test_every_hostile_job_and_archive_is_refused(strict: House, reads: list[int]) -> None:
    good = job()
    message = training(good).message()
    cases: list[Hostile] = [*jobs(good), *archives(good, "signature: 'aa'")]
    for case in cases:
        assert strict.ask(case.app, message) is None, case.name
        assert case.why in strict.why(), (case.name, strict.why())
    assert len(cases) >= 450
    assert (reads, strict.charges) == ([], 0)


def test_the_job_itself_is_not_refused(strict: House) -> None:
    """Otherwise the cases would be refused for another reason."""
    good = job()
    assert strict.ask(with_code(text_of(good)), training(good, "advertise").message()) is not None


def test_a_job_needs_the_very_signature_of_a_starter(tmp_path: Path, stack: ExitStack) -> None:
    app, good = app_of(tmp_path / "app", job())
    public = make_identity(tmp_path / "ada.pem")
    sign(app, tmp_path / "ada.pem")
    signature = order_in(app).signature
    assert signature is not None
    stranger = Ed25519PrivateKey.generate().public_key().public_bytes_raw().hex()
    people = {"bob": stranger, "ada": public}
    jobs = {"signed_by": ["ada"]}
    house = House(tmp_path / "site", stack, policy(people=people, starters=["ada"], jobs=jobs))
    message = training(good, "advertise").message()
    signed = {"signature.yaml": f"signature: '{signature.hex()}'"}
    assert house.ask(with_code(text_of(good), **signed), message) is not None
    cases = list(signatures(good, signature))
    for case in cases:
        assert house.ask(case.app, message) is None, case.name
        assert case.why in house.why()
    assert len(cases) >= 60
    keys = policy(people=people, starters=["bob"], jobs=jobs)
    other = House(tmp_path / "other", stack, keys)
    assert other.ask(with_code(text_of(good), **signed), message) is None
    assert "not signed by one of starters: bob" in other.why()


def noised(**changes: Any) -> Any:
    block = {"dp_eps": 0.05, "dp_delta": 1e-6, "dp_norm_clip": 0.5}
    return job(protection={"name": "dp_encrypt", "dp_encrypt": block}, rounds=900, **changes)


def of_job(good: Any, **changes: Any) -> dict[str, Any]:
    """Return the policy of a site that accepts one job, however often it asks."""
    digest = read_app(app_of_job(good)).digest.hex()
    epsilon = {"run": 1000.0, "month": 1000.0, "ever": 1000.0, "exact_sums": 3}
    keys = {"jobs": {"digests": [digest]}, "clear": {"answer_after_s": None}, "epsilon": epsilon}
    return policy(protections=[good.protection.name], **{**keys, **changes})


def app_of_job(good: Any) -> bytes:
    return with_code(text_of(good))


def test_a_message_gets_a_charged_report_or_one_word(
    tmp_path: Path, stack: ExitStack, reads: list[int]
) -> None:
    """The data is read once for each charge, after it, and never without."""
    good = noised()
    house = House(tmp_path / "site", stack, of_job(good))
    app, said = app_of_job(good), training(good)
    answered = house.ask(app, said.message())
    assert answered is not None
    cases, left = list(messages(said)), 1
    for name, message in cases:
        answer = house.ask(app, message)
        if answer is not None:
            assert len(answer) == len(answered), name
            left += 1
        assert len(reads) <= house.charges, name
    assert len(cases) >= 300
    assert house.charges >= left == len(reads)


def test_no_message_of_another_phase_reads_data(
    tmp_path: Path, stack: ExitStack, reads: list[int]
) -> None:
    good = job()
    house = House(tmp_path / "site", stack, of_job(good))
    app, said = app_of_job(good), training(good, "advertise")
    for name in ("weights", "example_shape", "classes", "fingerprint"):
        del said.common[name]
    cases = list(messages(said))
    answers = [house.ask(app, message) for _, message in cases]
    assert len(cases) >= 200
    assert 0 < sum(answer is not None for answer in answers) < len(cases) / 2
    assert (reads, house.charges) == ([], 0)


