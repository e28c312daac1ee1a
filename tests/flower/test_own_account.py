"""A client's own account: what it allows, to how many processes, and when the disk has it."""

from __future__ import annotations

import contextlib
import math
import multiprocessing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from fedveil.base.files import write_whole
from fedveil.base.message import decode, within
from fedveil.errors import ClientWithheld, DeploymentError, MessageInvalid
from fedveil.flower import own_account, own_file
from fedveil.flower.answered_rounds import AnsweredFile
from fedveil.flower.app.options import parse
from fedveil.flower.own_account import OwnLedger, asked_spending, count_report, total_of
from fedveil.flower.own_file import OwnFile, sealed_names
from fedveil.privacy.compose import compose
from fedveil.privacy.ledger import Ledger
from fedveil.privacy.loss import Gaussian, PrivacyLoss
from fedveil.protections.base import JobContext, Spending
from fedveil.protections.distributed_dp import DistributedDP
from fedveil.protections.distributed_dp_settings import DistributedDPSettings
from lock_race import overtaken

ONE = [Spending(PrivacyLoss(0.5))]
PROCESSES, ATTEMPTS, LIMIT = 3, 50, 75


def granted(kind: str, path: Path, begin: Any, answers: Any) -> None:
    """Charge an account many times in a process, which begins when all have begun."""
    count = 0
    begin.wait()
    for _ in range(ATTEMPTS):
        try:
            if kind == "count":
                count_report(path, ONE, LIMIT)
            else:
                OwnLedger(path).charge(ONE, [(LIMIT * 0.5, 0.0)])
            count += 1
        except (ClientWithheld, MessageInvalid):
            pass
    answers.put(count)


@pytest.mark.parametrize("kind", ["count", "ledger"])
def test_processes_together_are_granted_what_the_limit_says(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "account"
    fork = multiprocessing.get_context("fork")
    begin, answers = fork.Barrier(PROCESSES), fork.SimpleQueue()
    processes = [
        fork.Process(target=granted, args=(kind, path, begin, answers)) for _ in range(PROCESSES)
    ]
    for process in processes:
        process.start()
    counts = [answers.get() for _ in processes]
    for process in processes:
        process.join()
    assert sum(counts) == LIMIT
    given = path.read_text() if kind == "count" else decode(path.read_bytes())["reports"]
    assert int(given) == LIMIT  # type: ignore[arg-type]


def test_a_note_keeps_what_another_process_charged_while_it_waited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = OwnLedger(tmp_path / "account")
    overtaken(monkeypatch, own_account, lambda: OwnLedger(tmp_path / "account").charge(ONE, []))
    account.note(["the loss"])
    reports, ledgers = account._read()
    assert reports == 1
    assert [ledger.epsilon("run") for ledger in ledgers] == [0.5, 0.5]
    assert [ledger.in_clear for ledger in ledgers] == [("the loss",)] * 2


def test_a_seal_keeps_those_of_other_files_written_while_it_waited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "other"):
        OwnFile(tmp_path / name).write(b"0")
    overtaken(monkeypatch, own_file, lambda: OwnFile(tmp_path / "other").write(b"2"))
    own_file._Seals(tmp_path).put("third", (own_file._digest(b"1"), own_file._digest(b"3")))
    assert OwnFile(tmp_path / "other").read() == b"2"
    assert sorted(own_file._Seals(tmp_path).read()) == ["one", "other", "third"]


def test_what_was_not_granted_is_not_charged(tmp_path: Path) -> None:
    account = OwnLedger(tmp_path / "account")
    account.charge(ONE, [(0.5, 0.0)])
    before = (tmp_path / "account").read_bytes()
    with pytest.raises(MessageInvalid, match=r"to epsilon 1 at delta 0 \(strong\), above its"):
        account.charge(ONE, [(0.5, 0.0)])
    assert (tmp_path / "account").read_bytes() == before


def test_a_report_without_an_epsilon_is_not_counted(tmp_path: Path) -> None:
    bare = [*ONE, Spending(PrivacyLoss(math.inf)), *ONE]
    for _ in range(3):
        count_report(tmp_path / "account", bare, 1)
    assert not (tmp_path / "account").exists()


def test_a_report_of_a_sum_is_charged_for_the_fewest_survivors() -> None:
    """The client learns of no dropouts that it could rely on."""
    settings = DistributedDPSettings(
        noise_multiplier=2.0, reconstruct_secrets_threshold=6, dropout_tolerance=0.3
    )
    context = JobContext(weighting="equal", dimension=5, clients_per_round=9, rounds=1)
    protection = DistributedDP(settings, context)
    asked = asked_spending(protection, {})
    assert asked == protection.spent({}, 7)  # of 9 clients, 30% may drop out
    assert asked[0].loss.epsilon > protection.spent({}, 9)[0].loss.epsilon


def test_both_ledgers_know_what_is_sent_in_clear(tmp_path: Path) -> None:
    """The one that fits the reports is chosen later."""
    account = OwnLedger(tmp_path / "account")
    account.charge(ONE, [], ["the time"])
    account.note(["the loss"])
    state = decode((tmp_path / "account").read_bytes())
    for part in ("alike", "any"):
        assert Ledger.from_state(within(part, state)).in_clear == ("the loss", "the time")


def test_a_note_between_two_reports_takes_nothing_back(tmp_path: Path) -> None:
    """A client evaluates after it trained, and trains again."""
    account = OwnLedger(tmp_path / "account")
    for epsilon, limit in ((0.5, 0.5), (0.25, 0.75), (0.5, 1.25)):
        account.charge([Spending(PrivacyLoss(epsilon))], [(limit, 0.0)])
        account.note(["the loss"])
    reports, ledgers = account._read()
    assert reports == 3
    assert [ledger.epsilon("run") for ledger in ledgers] == [1.25, 1.25]
    same = OwnLedger(tmp_path / "same")
    for _ in range(3):
        same.charge(ONE, [])
        same.note(["the loss"])
    with pytest.raises(MessageInvalid, match=r"to epsilon 2 at delta 0 .*max_epsilon = 1\.9"):
        same.charge(ONE, [(1.9, 0.0)])


@pytest.mark.parametrize(
    ("total", "costs", "more"),
    [
        (0.3, [0.1, 0.1, 0.1], 1e-6),
        (0.3, [0.1, 0.2], 1e-16),
        (0.3, [0.1, 0.1], 0.1000000001),
        (1661.02, [0.37, 1660.02, 0.63], 1e-7),
    ],
)
def test_a_total_is_reached_exactly(
    total: float, costs: list[float], more: float, tmp_path: Path
) -> None:
    """In floats, three times 0.1 is more than 0.3. The server adds up decimals."""
    options = parse({"protection": "rr", "total_eps": total})
    limits = total_of(options.position, options.parameters)
    account = OwnLedger(tmp_path / "account")
    for cost in costs:
        account.charge([Spending(PrivacyLoss(cost))], limits)
    with pytest.raises(MessageInvalid, match="one more report would bring"):
        account.charge([Spending(PrivacyLoss(more))], limits)


def test_a_removed_file_can_be_written_again(tmp_path: Path) -> None:
    file, other = OwnFile(tmp_path / "kept"), OwnFile(tmp_path / "other")
    other.write(b"other")
    for data in (b"one", b"two"):
        file.write(data)
        assert file.read() == data
        file.remove()
        assert file.read() is None
        assert sealed_names(tmp_path, tmp_path) == ["other"]
        for name in ("other", own_file.KEY, own_file.SEALS):
            assert (tmp_path / name).stat().st_mode & 0o077 == 0
    assert other.read() == b"other"


@pytest.mark.parametrize("limits", [[(9.0, 0.0), (0.7, 0.0)], [(0.7, 0.0), (9.0, 0.0)]])
def test_every_limit_is_held(tmp_path: Path, limits: list[tuple[float, float]]) -> None:
    account = OwnLedger(tmp_path / "account")
    account.charge(ONE, limits)
    with pytest.raises(MessageInvalid, match=r"above its max_epsilon = 0\.7"):
        account.charge(ONE, limits)


def test_equal_reports_are_composed_and_different_ones_added(tmp_path: Path) -> None:
    first, second = (PrivacyLoss.of_release(Gaussian(ratio)) for ratio in (5.0, 6.0))
    four = compose([(first, 4)], 1e-5)
    account = OwnLedger(tmp_path / "equal")
    for _ in range(4):
        account.charge([Spending(first)], [(four * 1.000001, 1e-5)])
    with pytest.raises(MessageInvalid, match="one more report would bring"):
        account.charge([Spending(first)], [(four * 1.000001, 1e-5)])
    both = [
        compose([(first, 1), (second, 1)], 1e-5),
        sum(compose([(n, 1)], 5e-6) for n in (first, second)),
    ]
    assert both[0] < 0.9 * both[1]
    account = OwnLedger(tmp_path / "different")
    account.charge([Spending(first)], [(9.0, 1e-5)])
    with pytest.raises(MessageInvalid, match="one more report would bring"):
        account.charge([Spending(second)], [(both[0] * 1.01, 1e-5)])


def test_a_damaged_account_grants_nothing(tmp_path: Path) -> None:
    path = tmp_path / "account"
    for damaged in (b"-1", b"", b"\xff", b"9" * 5000, "²".encode(), b"1\n"):
        OwnFile(path).write(damaged)
        with pytest.raises(DeploymentError, match="is damaged: it does not hold a number"):
            count_report(path, ONE, 9)
    with pytest.raises(DeploymentError, match="is damaged"):
        OwnLedger(path).charge(ONE, [])


@pytest.mark.parametrize("kind", ["count", "ledger"])
def test_an_account_that_is_set_back_or_deleted_grants_nothing(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "account"

    def charge() -> None:
        if kind == "count":
            count_report(path, ONE, 9)
        else:
            OwnLedger(path).charge(ONE, [])

    AnsweredFile(tmp_path / "answered").note(1)
    charge()
    old = copies(tmp_path)
    charge()
    AnsweredFile(tmp_path / "answered").note(2)
    new = copies(tmp_path)
    seals, key = new["folder.seal"], new["seal-key"]
    edited = seals[:-1] + bytes([seals[-1] ^ 1])
    for change, sentence in (
        ({"account": old["account"]}, "account was edited or replaced by an older copy"),
        ({"account": None}, "account is missing: its seal names another content"),
        ({"folder.seal": None}, "folder.seal is missing: it vouches for the files"),
        ({"folder.seal": None, "account": None}, "folder.seal is missing: it vouches for"),
        ({"folder.seal": None, "seal-key": None}, "folder.seal does not vouch for .*account"),
        ({"seal-key": None}, "folder.seal was edited, or made with another seal-key"),
        ({"seal-key": None, "account": None}, "folder.seal was edited, or made with another"),
        ({"folder.seal": edited}, "folder.seal was edited, or made with another seal-key"),
        ({"folder.seal": b""}, "folder.seal was edited, or made with another seal-key"),
        ({"folder.seal": bytes(32), "account": None}, "was edited, or made with another"),
    ):
        put(tmp_path, change)
        with pytest.raises(DeploymentError, match=sentence):
            charge()
        put(tmp_path, {**new, "seal-key": key})
    charge()


def copies(folder: Path) -> dict[str, bytes]:
    """Return the content of each file of a state folder, without locks."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix != ".lock"}


def put(folder: Path, files: Mapping[str, bytes | None]) -> None:
    """Replace files of a folder, or delete them."""
    for name, data in files.items():
        (folder / name).unlink(missing_ok=True)
        if data is not None:
            (folder / name).write_bytes(data)


def test_a_file_that_is_deleted_with_seal_and_key_betrays_itself_by_the_others(
    tmp_path: Path,
) -> None:
    """It counts as never written itself: docs/deployment.md says so."""
    account, answered = OwnFile(tmp_path / "account"), OwnFile(tmp_path / "answered")
    account.write(b"spent")
    answered.write(b"2")
    for name in ("account", "folder.seal", "seal-key"):
        (tmp_path / name).unlink()
    for _ in range(2):
        with pytest.raises(DeploymentError, match=r"does not vouch for .*answered"):
            answered.read()
        account.write(b"nothing")
    assert account.read() == b"nothing"


def test_no_file_is_set_back_with_its_seal_while_another_is_not(tmp_path: Path) -> None:
    """A restored backup of some files would let a client answer a round again."""
    answered = AnsweredFile(tmp_path / "answered")
    answered.note(1)
    old = copies(tmp_path)
    answered.note(2)
    count_report(tmp_path / "account", ONE, 9)
    put(tmp_path, {name: old[name] for name in ("answered", "folder.seal")})
    with pytest.raises(DeploymentError, match=r"folder.seal does not vouch for .*account"):
        count_report(tmp_path / "account", ONE, 9)


def test_a_seal_vouches_for_one_file_alone(tmp_path: Path) -> None:
    OwnFile(tmp_path / "one").write(b"1")
    OwnFile(tmp_path / "other").write(b"2")
    (tmp_path / "other").write_bytes(b"1")
    with pytest.raises(DeploymentError, match=r"other was edited or replaced by an older copy"):
        OwnFile(tmp_path / "other").read()
    (tmp_path / "third").write_bytes(b"1")
    with pytest.raises(DeploymentError, match=r"folder.seal does not vouch for .*third"):
        OwnFile(tmp_path / "third").read()


def test_the_names_of_a_folder_are_its_own(tmp_path: Path) -> None:
    for name in ("1", "12"):
        (tmp_path / name).mkdir()
        OwnFile(tmp_path / name / f"of {name}", tmp_path).write(b"x")
    assert sealed_names(tmp_path / "1", tmp_path) == ["of 1"]


def write_and_die(file: OwnFile, data: bytes, writes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write `data` in a process that is killed after this number of writes to the disk."""
    left = iter(range(writes))

    def dying(path: Path, data: bytes, mode: int) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt
        write_whole(path, data, mode)

    monkeypatch.setattr(own_file, "write_whole", dying)
    with contextlib.suppress(KeyboardInterrupt):
        file.write(data)
    monkeypatch.undo()


def test_a_first_write_that_is_cut_off_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the list nor the key alone locks a client out for ever."""
    for writes in range(5):
        file = OwnFile(tmp_path / str(writes) / "account")
        file.path.parent.mkdir()
        write_and_die(file, b"new", writes, monkeypatch)
        assert file.read() == (b"new" if writes > 3 else None)
        file.write(b"newer")
        assert file.read() == b"newer"


@pytest.mark.parametrize("writes", [1, 2, 3])
def test_a_process_killed_between_any_two_writes_leaves_a_file_that_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    file = OwnFile(tmp_path / "account")
    file.write(b"old")
    write_and_die(file, b"new", writes, monkeypatch)
    assert file.read() == (b"old" if writes == 1 else b"new")
    file.write(b"newer")
    assert file.read() == b"newer"


def test_a_process_that_died_in_mid_write_leaves_the_account_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "account"
    count_report(path, ONE, 2)
    (tmp_path / "account.part").write_text("")
    count_report(path, ONE, 2)
    with pytest.raises(ClientWithheld, match="has given 2 reports of this job"):
        count_report(path, ONE, 2)
