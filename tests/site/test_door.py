"""A study's server and six sites, each behind its own door."""

from __future__ import annotations

import warnings
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.app import Message

from fedveil.base.message import decode
from fedveil.engine.job_protection import REVEALED, make_protection
from fedveil.flower.job import job_client
from fedveil.flower.job.member import Member
from fedveil.flower.records import to_records
from fedveil.site import door
from fedveil.site.admission import Admission
from fedveil.site.door import Charges
from fedveil.site.order import Order, read_app
from fedveil.site.policy import Policy
from flower_parts import CLIENTS, app_of, serve
from site_house import WEIGHTS, House, app_of_job, digest_of, job, noised, of_job, training
from site_parts import MASKED, Sites, study, write_policy

OF_EXAMPLES = job(
    privacy={"randomness": "secure", "unit": "example"},
    training={"sampling_rate": 0.3, "epochs": 1},
)


@pytest.mark.parametrize("leaves", [True, False])
def test_a_site_that_its_owner_ends_answers_nothing(
    leaves: bool, tmp_path: Path, stack: ExitStack
) -> None:
    house = House(tmp_path / "site", stack, of_job(noised()))
    error = KeyboardInterrupt() if leaves else SystemExit("no data")

    def read() -> bytes:
        raise error

    before = len(house.lines())
    message = training(noised()).message()
    if leaves:
        with pytest.raises(KeyboardInterrupt):
            house.door.answer(read, message, house.context)
    else:
        assert house.door.answer(read, message, house.context).has_error()
        assert house.why().endswith("SystemExit: no data")
    assert len(house.lines()) == before + (not leaves)


def test_a_report_is_charged_at_the_epsilon_that_the_server_asks_for() -> None:
    charged: list[Any] = []
    account: Any = SimpleNamespace(charge=lambda released, limit: charged.append(released))
    block = {"eps": 0.75, "cells": 3, "adaptive": True, "total_eps": 900.0}
    adaptive = job(protection={"name": "oue", "unary": block})
    protection = make_protection(adaptive, 21)
    charges = Charges(account, Policy(), Order(adaptive, None), "south")
    for eps in (0.75, 2.5):
        charges.charge(protection, {"round": 1, "eps": eps})
    spent = [[(one.loss.epsilon, one.count) for one in released.spending] for released in charged]
    assert spent == [
        [(protection.encoding(eps).loss_per_parameter.epsilon, 21)] for eps in (0.75, 2.5)
    ]


@pytest.mark.parametrize(
    ("made", "after_s"), [(noised(), None), (job(protection=MASKED), 7.5), (OF_EXAMPLES, 7.5)]
)
def test_a_charge_says_what_leaves_for_whom_and_in_which_unit(made: Any, after_s: Any) -> None:
    charged: list[Any] = []
    account: Any = SimpleNamespace(charge=lambda released, limit: charged.append((released, limit)))
    policy = Policy(clear={"answer_after_s": after_s}, epsilon={"run": 1.5, "ever": 3.5})
    order = Order(made, None)
    Charges(account, policy, order, "south").charge(make_protection(made, WEIGHTS), {})
    ((released, limit),) = charged
    assert limit == policy.limits
    assert (released.job, released.through) == (order.digest.hex(), "Flower, south")
    assert (released.mechanism, released.unit) == (made.protection.name, made.privacy.unit)
    assert released.summed == (made.protection.name != "dp_encrypt")
    assert any("time" in one for one in released.in_clear) == (after_s is None)


@pytest.mark.parametrize("signs", [True, False])
def test_a_site_is_the_client_that_its_policy_describes(
    tmp_path: Path, stack: ExitStack, signs: bool
) -> None:
    made = job() if signs else noised()
    servers = {"south": {"client": 4}, "study": {"client": 3, "roster": "roster.yaml"}}
    house = House(tmp_path / "site", stack, of_job(made, servers=servers))
    owner: Any = object()
    member = house.site.member("study", made, house.site.policy.data["heart"], owner)
    folder = tmp_path / "site"
    if not signs:
        (folder / "identity.pem").unlink()  # nobody needs it
    seat = house.site.seat("study", signs=signs)
    for kept in (member.keys, member.accounts, seat.state):
        assert kept.path == folder / "state"
    due = Member(
        client=3, data="parts:data", seeded=False, keys=member.keys, accounts=member.accounts,
        identity=folder / "identity.pem" if signs else None,
        roster=folder / "roster.yaml" if signs else None, job=None, owner=owner,
    )  # fmt: skip
    assert member == due
    assert (seat.client, list(seat.roster), seat.identity is not None) == (3, [0] * signs, signs)


def test_noise_from_the_job_s_public_seed_never_leaves_a_site(
    tmp_path: Path, stack: ExitStack, monkeypatch: pytest.MonkeyPatch, reads: list[int]
) -> None:
    """The admission refuses such a job. The client refuses it again, if it is ever admitted."""
    seeded = noised(privacy={"randomness": "seeded"})
    house = House(tmp_path / "site", stack, of_job(seeded))
    message = training(seeded).message()
    assert house.ask(app_of_job(seeded), message) is None
    assert "the server could compute the noise" in house.why()
    monkeypatch.setattr(Admission, "reasons", lambda *order: [])
    assert house.ask(app_of_job(seeded), message) is None
    assert "draw from its seed, which protects nothing" in house.why()
    assert (reads, house.charges) == ([], 0)


def test_every_warning_is_in_the_log(
    tmp_path: Path, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    def warned(*_: object) -> bytes:
        warnings.warn("clipped", stacklevel=1)
        warnings.warn("few clients", stacklevel=1)
        return b"answer"

    good = noised()
    house = House(tmp_path / "site", stack, of_job(good))
    monkeypatch.setattr(job_client, "answer", warned)
    assert house.ask(app_of_job(good), training(good).message()) == b"answer"
    said = [line.partition(" ")[2] for line in house.lines()[-3:]]
    of = "run 1 train.report"
    assert said == [f"noted {of}: clipped", f"noted {of}: few clients", f"sent {of}: 6 bytes"]


def test_an_app_is_read_once_and_few_are_kept(
    tmp_path: Path, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[bytes] = []
    monkeypatch.setattr(door, "read_app", lambda app: (read.append(app), read_app(app))[1])
    monkeypatch.setattr(door, "_MOST_ORDERS", 2)
    apps = [app_of_job(noised(name=name)) for name in ("heart", "lung")]
    house = House(tmp_path / "site", stack, of_job(noised()))
    wrong = app_of_job(noised())[:-9]
    for app in (apps[0], wrong, wrong, apps[0], apps[1]):
        house.ask(app, training(noised()).message())
        assert len(house.door._orders) <= 2
    assert read == [apps[0], wrong, apps[1]]


@pytest.mark.parametrize("protection", [None, MASKED], ids=["distributed_dp", "pw_encrypt"])
def test_an_accepted_job_trains_and_each_report_is_charged(
    tmp_path: Path, stack: ExitStack, protection: object, reads: list[int]
) -> None:
    """One site's data cannot be read. Its report is one of zero: nobody learns which one it is."""
    changes = {} if protection is None else {"protection": protection}
    app, _ = app_of(tmp_path / "app", study(record={"page": False}, **changes))
    sites = Sites(tmp_path, app)
    said = sites.policies[2]
    said["data"] = {"heart": {"named": "digits", "reader": "site_parts:unreadable"}}
    write_policy(sites.folders[2], said)
    grid = sites.grid(stack)
    records = serve(app, grid, tmp_path / "run").metrics
    assert [record["reports"] for record in records] == [CLIENTS, CLIENTS]
    assert len(reads) == 2 * CLIENTS
    for number in range(CLIENTS):
        account = sites.site(number).account("heart")
        found = account.spent(unit="example")
        assert found.releases == 2
        assert found.without_epsilon == (0 if protection is None else 2)
        assert (0 < found.figure.epsilon < 2) == (protection is None)
        assert {charged.through for charged in account.charges} == {"Flower, study"}
    assert "patient 4711" not in str(grid.replies)
    assert sites.log(1).count(" sent run 1 train.masked: ") == 2
    assert " refused " not in sites.log(1)


def test_exact_sums_end_at_their_limit(tmp_path: Path, stack: ExitStack, reads: list[int]) -> None:
    app, _ = app_of(tmp_path / "app", study(protection=MASKED, record={"page": False}, rounds=3))
    sites = Sites(tmp_path, app, epsilon={"exact_sums": 1})
    records = serve(app, sites.grid(stack), tmp_path / "run").metrics
    assert [record["reports"] for record in records] == [CLIENTS, 0, 0]
    assert len(reads) == CLIENTS
    assert "promises no epsilon, and the site allows 1 such" in sites.log()


def test_a_number_of_examples_is_in_the_account_before_it_leaves(
    tmp_path: Path, stack: ExitStack
) -> None:
    asks = noised(deployment={"reveal": ["examples"]})
    clear = {"answer_after_s": None, "counts": True}
    house = House(tmp_path / "site", stack, of_job(asks, clear=clear))
    message = Message(to_records({}), 100, "query.introduce")
    for _ in range(2):
        answer = house.ask(app_of_job(asks), message)
        assert answer is not None
        assert decode(answer)["examples"] > 0
    house.account.refresh()
    (line,) = house.account.charges
    assert line.in_clear == (REVEALED,)
    assert (line.job, line.what) == (digest_of(asks), f"the introduction to {asks.name}")
    assert (line.mechanism, line.through) == ("dp_encrypt", "Flower, study")
    silent = noised()
    house = House(tmp_path / "other", stack, of_job(silent, clear=clear))
    assert house.ask(app_of_job(silent), message) is not None
    assert house.charges == 0
