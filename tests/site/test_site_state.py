"""A site's account, files and clock under attack, and values that no report may show."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Context, Message, RecordDict

from fedveil.base.message import decode
from fedveil.engine.job_protection import job_digest, make_protection
from fedveil.errors import DeploymentError, OverSpent, SiteError
from fedveil.flower import fixed_time
from fedveil.flower.job import job_client
from fedveil.flower.records import to_records
from fedveil.flower.sealed_state import SealedState
from fedveil.privacy.loss import Gaussian, PrivacyLoss
from fedveil.site import supernode
from fedveil.site.account import Limits, Release, SiteAccount
from fedveil.site.door import Door, cost
from fedveil.site.one_report import LATE
from fedveil.site.policy import Policy
from fedveil.site.site_folder import IDENTITY, KEY, Site, create, server_of
from fedveil.site.supernode import _started, serve
from site_house import WEIGHTS, House, app_of_job, job, noised, of_job, training
from site_parts import write_policy


def asked(house: House, good: Any, times: int) -> int:
    """Ask for a report again and again. Return how many left."""
    app, message = app_of_job(good), training(good).message()
    return sum(house.ask(app, message) is not None for _ in range(times))


def limited(good: Any, **changes: Any) -> dict[str, Any]:
    """Return a policy with the strict epsilon of a month, 2."""
    return of_job(good, epsilon={}, **changes)


def charge_all(account: SiteAccount, releases: Sequence[Release], limit: Limits) -> None:
    for released in releases:
        account.charge(released, limit=limit)


def spent(house: House) -> float:
    return house.account.spent(delta=1e-5, unit="client").figure.epsilon


def test_replayed_rounds_end_at_the_months_limit(
    tmp_path: Path, stack: ExitStack, reads: list[int]
) -> None:
    good = noised(0.6)
    house = House(tmp_path / "site", stack, limited(good))
    left = asked(house, good, 12)
    assert 3 <= left <= 11
    assert len(reads) == left == house.charges
    assert 1.4 < spent(house) <= 2
    assert "above the site's limit of 2" in house.why()


def test_a_new_process_another_job_and_another_server_share_the_account(
    tmp_path: Path, stack: ExitStack
) -> None:
    one, other = noised(0.6), noised(0.6, name="lung")
    keys = limited(one)
    keys["jobs"]["digests"] += limited(other)["jobs"]["digests"]
    keys["servers"]["second"] = keys["servers"]["study"]
    house = House(tmp_path / "site", stack, keys)
    assert asked(house, one, 2) == 2
    # Two more processes, of another server and of another framework, hold the account open.
    second = Site.open(house.folder)
    door = Door(second, "second", stack.enter_context(second.log("second")))
    elsewhere = second.account("heart")
    message = training(other).message()
    assert door.answer(lambda: app_of_job(other), message, house.context).has_content()
    loss = PrivacyLoss.of_release(Gaussian(5.0))
    released = Release("nv", "a result", "dp_encrypt", [(loss, 1)], through="NVFlare")
    elsewhere.charge(released, limit=second.policy.limits)
    assert house.charges == 4
    left = asked(house, one, 20)
    assert left < 18
    with pytest.raises(OverSpent):
        charge_all(elsewhere, [released] * 20, second.policy.limits)
    assert asked(house, other, 3) == 0
    assert spent(house) <= 2


def test_a_client_of_a_later_month_is_charged_to_the_limit_for_ever(
    tmp_path: Path, stack: ExitStack
) -> None:
    good = noised(0.6)
    house = House(tmp_path / "site", stack, of_job(good, epsilon={"run": 99.0, "ever": 3.0}))
    now = [datetime(2031, 1, 20, tzinfo=UTC)]
    account = house.door._account("heart")
    account._clock = lambda: now[0]
    months = []
    for step in (0, 31, -31, 31, 31, 31):
        now[0] += timedelta(days=step)
        months.append(asked(house, good, 15))
    assert months[0] >= 3
    assert months[1] >= 1
    assert months[2] == 0, "a clock that was set back opens no month again"
    assert months[-1] == 0
    assert 2 < spent(house) <= 3


@pytest.mark.parametrize("deed", ["deleted", "cut", "edited", "set back", "no key", "other key"])
def test_a_damaged_account_stops_every_report(
    tmp_path: Path, stack: ExitStack, deed: str, reads: list[int]
) -> None:
    good = noised()
    house = House(tmp_path / "site", stack, of_job(good))
    file = house.folder / "accounts" / "heart.account"
    assert asked(house, good, 1) == 1
    older = file.read_bytes()
    assert asked(house, good, 2) == 2
    key = house.folder / "account.key"
    match deed:
        case "deleted":
            file.unlink()
        case "cut":
            file.write_bytes(file.read_bytes()[:-40])
        case "edited":
            file.write_bytes(file.read_bytes().replace(b"dp_encrypt", b"pw_encrypt"))
        case "set back":
            file.write_bytes(older)
        case "no key":
            key.unlink()
        case _:
            key.write_bytes(bytes(32))
    house.door = Door(Site.open(house.folder), "study", house.log)
    assert (asked(house, good, 2), len(reads)) == (0, 3)


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_key_of_another_length_opens_no_account(
    tmp_path: Path, stack: ExitStack, size: int
) -> None:
    house = House(tmp_path / "site", stack, of_job(noised()))
    (house.folder / "account.key").write_bytes(bytes(size))
    with pytest.raises(SiteError, match=r"account\.key does not hold a key of 32 bytes"):
        house.site.account("another")


def test_a_folder_that_was_set_back_as_a_whole_is_noticed_by_a_counter_elsewhere(
    tmp_path: Path, stack: ExitStack
) -> None:
    good = noised()
    (tmp_path / "disk").mkdir()
    keys = of_job(good, counter=str(tmp_path / "disk" / "counter"))
    house = House(tmp_path / "site", stack, keys)
    assert asked(house, good, 2) == 2
    shutil.copytree(house.folder / "accounts", tmp_path / "copy")
    assert asked(house, good, 1) == 1
    shutil.rmtree(house.folder / "accounts")
    shutil.copytree(tmp_path / "copy", house.folder / "accounts")
    house.door = Door(Site.open(house.folder), "study", house.log)
    assert asked(house, good, 2) == 0
    assert "is an older copy, or was deleted" in house.why()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38])
def test_weights_that_break_the_training_get_a_report_of_the_same_form(
    tmp_path: Path, stack: ExitStack, value: float
) -> None:
    good = noised()
    house = House(tmp_path / "site", stack, of_job(good))
    app, said = app_of_job(good), training(good)
    sound = house.ask(app, said.message())
    weights = np.full(WEIGHTS, value, np.float32)
    broken = house.ask(app, said._replace(common={**said.common, "weights": weights}).message())
    assert sound is not None
    assert broken is not None
    assert len(broken) == len(sound)
    assert house.charges == 2


def test_data_that_raises_gets_a_report_of_the_same_form_and_no_word_leaves(
    tmp_path: Path, stack: ExitStack
) -> None:
    good = noised()
    data = {"heart": {"named": "digits", "reader": "site_parts:unreadable"}}
    house = House(tmp_path / "site", stack, of_job(good, data=data))
    other = House(tmp_path / "other", stack, of_job(good))
    answers = [h.ask(app_of_job(good), training(good).message()) for h in (house, other)]
    assert None not in answers
    assert len(answers[0] or b"") == len(answers[1] or b"")
    assert b"4711" not in (answers[0] or b"")


def test_reports_leave_at_the_owners_time(
    tmp_path: Path, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    times: list[float | None] = []
    real = job_client.FixedTime
    monkeypatch.setattr(job_client, "FixedTime", lambda s, late: (times.append(s), real(0.001))[1])
    for owners, theirs in ((0.25, None), (0.25, 0.125), (0.25, 0.5), (None, None)):
        good = noised(deployment={"answer_after_s": theirs})
        keys = of_job(good, clear={"answer_after_s": owners})
        house = House(tmp_path / f"{owners}-{theirs}", stack, keys)
        house.ask(app_of_job(good), training(good).message())
        (charged,) = (house.account.refresh(), house.account.charges)[1]
        assert bool(charged.in_clear) == (owners is None)
    assert times == [0.25, 0.25, 0.5, None]


@pytest.mark.parametrize("spent_s", [8.0, 10.0])
def test_a_report_that_leaves_late_is_in_the_account_once(
    spent_s: float, tmp_path: Path, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its time tells the server how long the training took."""
    slept: list[float] = []
    clock = SimpleNamespace(sleep=slept.append, monotonic=lambda: sum(slept))
    monkeypatch.setattr(fixed_time, "time", clock)
    trained = job_client._trained
    monkeypatch.setattr(
        job_client, "_trained", lambda *args: (slept.append(spent_s), trained(*args))[1]
    )
    good = noised(deployment={"answer_s": 20.0})
    house = House(tmp_path / "site", stack, of_job(good, clear={"answer_after_s": 9.0}))
    for _ in range(2):
        assert house.ask(app_of_job(good), training(good).message()) is not None, house.why()
    house.account.refresh()
    late = [line for line in house.account.charges if line.in_clear == (LATE,)]
    assert [line.what for line in late] == ["the time of a report of heart"] * (spent_s > 9)
    assert len(house.account.charges) == 2 + len(late)


def test_each_data_set_has_an_account_and_a_job_reaches_the_one_that_it_names(
    tmp_path: Path, stack: ExitStack
) -> None:
    one, other = noised(0.6), noised(0.6, data={"name": "mnist"})
    keys = limited(one)
    keys["jobs"]["digests"] += limited(other)["jobs"]["digests"]
    keys["data"]["lung"] = {"named": "mnist", "reader": "parts:other_data"}
    house = House(tmp_path / "site", stack, keys)
    assert asked(house, one, 20) < 20
    assert asked(house, other, 1) == 1
    assert len(house.site.account("lung").charges) == 1


def test_noise_of_the_server_is_no_noise_and_the_fewest_survivors_are_charged() -> None:
    central = job(protection={"name": "pw_encrypt", "pw_encrypt": {"central_eps": 0.5}})
    (spending,) = cost(make_protection(central, WEIGHTS), {})
    assert spending.loss.epsilon == float("inf")
    block = {**job().protection.distributed_dp.model_dump(), "dropout_tolerance": 0.4}
    tolerant = job(protection={"name": "distributed_dp", "distributed_dp": block})
    shared = make_protection(tolerant, WEIGHTS)
    assert cost(shared, {}) == list(shared.spending(shared.initial_state()))
    assert cost(shared, {}) != list(shared.spent(shared.initial_state(), 6))


def test_a_message_of_a_stranger_to_the_job_is_refused(tmp_path: Path, stack: ExitStack) -> None:
    good = noised()
    keys = of_job(good)
    keys["servers"]["study"]["client"] = 6
    house = House(tmp_path / "site", stack, keys)
    assert house.ask(app_of_job(good), training(good)._replace(client=6).message()) is None
    assert "this site is client 6, but the job has only 6 clients" in house.why()


def test_a_folder_that_others_can_read_is_refused(tmp_path: Path, stack: ExitStack) -> None:
    house = House(tmp_path / "site", stack, of_job(noised()))
    for mode in (0o750, 0o705, 0o710):
        house.folder.chmod(mode)
        with pytest.raises(SiteError, match=f"open to other users: its mode is {mode:o}, use 700"):
            Site.open(house.folder)
    with pytest.raises(SiteError, match="fedveil site init"):
        Site.open(tmp_path)


def test_a_site_s_keys_and_accounts_are_in_its_folder(tmp_path: Path, stack: ExitStack) -> None:
    site = House(tmp_path / "site", stack, of_job(noised())).site
    (site.folder / IDENTITY).unlink()  # jobs without signed rounds need none
    data_set, owner = next(iter(site.policy.data.values())), object()
    member = site.member("study", noised(), data_set, owner)  # type: ignore[arg-type]
    seat = site.seat("study", signs=False)
    assert member.client == seat.client == site.policy.servers["study"].client
    for of in (member.keys, member.accounts, seat.state):
        assert of.path == site.folder / "state"
    assert (member.data, member.seeded, member.owner) == (data_set.reader, False, owner)
    assert (member.identity, member.roster, seat.roster, seat.identity) == (None, None, {}, None)
    with pytest.raises(DeploymentError, match=r"identity\.pem cannot be read"):
        site.seat("study", signs=True)


def test_a_damaged_key_of_a_site_opens_no_account(tmp_path: Path, stack: ExitStack) -> None:
    site = House(tmp_path / "site", stack, of_job(noised())).site
    (site.folder / KEY).write_bytes(b"short")
    with pytest.raises(SiteError, match="does not hold a key of 32 bytes"):
        site.account("digits")


def test_a_server_is_named_unless_there_is_one(tmp_path: Path, stack: ExitStack) -> None:
    policy = House(tmp_path / "site", stack, of_job(noised())).site.policy
    assert server_of(policy, None) == server_of(policy, "study") == "study"
    with pytest.raises(SiteError, match=r"studdy is not one of servers .*did you mean study"):
        server_of(policy, "studdy")
    two = Policy(servers={"study": {}, "second": {"client": 3}})
    with pytest.raises(SiteError, match="name the server to serve"):
        server_of(two, None)


def test_a_site_serves_a_server_once(tmp_path: Path, stack: ExitStack) -> None:
    """The house holds the log open, as a served site does."""
    site = House(tmp_path / "site", stack, of_job(noised())).site
    with pytest.raises(SiteError, match=r"another process serves study from .*: end it first"):
        serve(site, "study", print)


def test_a_site_serves_the_server_that_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here the SuperNode ends at once."""
    create(tmp_path / "north")
    servers = {"first": {"superlink": "first.org:1"}, "second": {"superlink": "second.org:2"}}
    write_policy(tmp_path / "north", {"servers": servers})
    started, said = list[list[str]](), list[str]()

    @contextmanager
    def start(words: list[str]) -> Iterator[Any]:
        started.append(words)
        secret = Path(words[words.index("--superexec-auth-secret-file") + 1])
        assert len(secret.read_bytes()) == 32
        yield SimpleNamespace(poll=lambda: 3, returncode=3)

    monkeypatch.setattr(supernode, "_started", start)
    monkeypatch.setattr(supernode, "_wait_for", lambda node, port: None)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    quiet = ("FLWR_TELEMETRY_ENABLED", "FLWR_DISABLE_UPDATE_CHECK")
    for name in quiet:
        monkeypatch.setenv(name, "?")
    with pytest.raises(SiteError, match="the SuperNode of second ended with code 3"):
        serve(Site.open(Path("north")), "second", said.append)
    (words,) = started
    assert words[words.index("--superlink") + 1] == "second.org:2"
    assert said == ["serving second; what leaves and what is refused is in logs/second"]
    assert [os.environ[name] for name in quiet] == ["0", "1"]
    assert sys.path[-1] == str(tmp_path / "north")
    assert "began to serve second" in (tmp_path / "north/logs/second/site.log").read_text()


def test_a_supernode_that_does_not_stop_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supernode, "_STOP_S", 0.1)
    ready = tmp_path / "ready"
    deaf = (
        "import pathlib, signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "pathlib.Path(sys.argv[1]).touch(); time.sleep(20)"
    )
    with _started([sys.executable, "-I", "-S", "-c", deaf, str(ready)]) as process:
        while not ready.exists():
            time.sleep(0.01)
    assert process.wait(10) == -signal.SIGKILL


def test_a_site_forgets_a_round_that_ended_without_it(tmp_path: Path, stack: ExitStack) -> None:
    good = noised()
    site = House(tmp_path / "site", stack, of_job(good)).site
    data_set, owner = next(iter(site.policy.data.values())), object()
    member = site.member("study", good, data_set, owner)  # type: ignore[arg-type]
    context = Context(1, 100, {}, RecordDict(), {})
    state = SealedState(member.keys, job_digest(good), member.client, context.state)
    state.put(1, {"secret": 7})
    assert list(member.keys.path.glob("*.key"))
    message = Message(to_records({}), 100, "query.forget")
    assert decode(job_client.answer(good, member, message, context)) == {}
    assert (list(member.keys.path.glob("*.key*")), dict(context.state)) == ([], {})


def test_the_kernel_ends_a_supernode_with_its_site() -> None:
    asks = (
        "import ctypes, sys; found = ctypes.c_int(); "
        "ctypes.CDLL(None).prctl(2, ctypes.byref(found)); sys.exit(found.value)"
    )
    with _started([sys.executable, "-I", "-S", "-c", asks]) as process:
        assert process.wait(20) == signal.SIGKILL


def test_a_line_of_the_log_is_one_line(
    tmp_path: Path, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = House(tmp_path / "site", stack, of_job(noised()))
    before = len(house.lines())
    house.log.line("refused\n2031-01-01T00:00:00Z sent run 1: \x1b[2J" + "x" * 999)
    house.log.line(450 * "\x1b")  # escapes are longer
    line, escaped = house.lines()[before:]
    try:
        with monkeypatch.context() as place:
            place.setenv("TZ", "Pacific/Kiritimati")
            time.tzset()
            house.log.line("sent run 2")
    finally:
        time.tzset()
    said = [next(word for word in one.split() if word[-1] == "Z") for one in house.lines()]
    first, _, third = map(datetime.fromisoformat, said[before:])
    assert timedelta(0) <= third - first < timedelta(hours=1)
    assert "\x1b" not in line
    assert max(len(line), len(escaped)) < 600
