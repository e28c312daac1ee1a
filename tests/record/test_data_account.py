"""The account of a data set: several charges add up, and none is taken back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedveil.errors import LimitReached, RunFolderError
from fedveil.privacy.compose import compose
from fedveil.privacy.gaussian_curve import epsilon_for, ratio_for
from fedveil.privacy.loss import Gaussian, PrivacyLoss
from fedveil.privacy.sampled_gaussian import SampledGaussian
from fedveil.record import data_account
from fedveil.record.data_account import DataAccount
from lock_race import is_locked, overtaken
from renyi_sum import filtered_epsilon

DELTA = 1e-6
RATIO = ratio_for(0.9, DELTA, 1)


def gaussian(ratio: float = RATIO) -> PrivacyLoss:
    return PrivacyLoss(epsilon_for(ratio, DELTA), DELTA, release=Gaussian(ratio))


def test_gaussian_charges_compose_whatever_their_ratios(tmp_path: Path) -> None:
    account = DataAccount(tmp_path / "new" / "account", "client")
    account.charge([(gaussian(), 1)], None, DELTA, "a")
    account.charge([(gaussian(2 * RATIO), 3)], None, DELTA, "b")
    both = (1 + 3 / 4) ** -0.5 * RATIO
    assert account.figure(DELTA).epsilon == pytest.approx(epsilon_for(both, DELTA), rel=1e-6)
    where = f"in all trainings and questions of the account {account.path}"
    assert account.line(DELTA).what == f"a client {where}"
    assert account._read()[0] == 2  # rounds: each charge is one of its own
    rows = DataAccount(tmp_path / "rows", "row")
    assert rows.line(DELTA).what.startswith("a row in all")


def test_different_pure_losses_add_up(tmp_path: Path) -> None:
    account = DataAccount(tmp_path / "account", "client")
    account.charge([(PrivacyLoss(0.5), 1)], None, DELTA, "a")
    account.charge([(PrivacyLoss(0.75), 2)], None, DELTA, "b")
    assert account.figure(DELTA).epsilon == pytest.approx(2.0)


def test_two_kinds_of_loss_cost_what_the_renyi_filter_says(tmp_path: Path) -> None:
    """The second may have been chosen after the first was seen, so they are not composed."""
    account = DataAccount(tmp_path / "account", "client")
    charges = [(PrivacyLoss(0.02), 130), (PrivacyLoss(0.03), 90)]
    account.charge(charges[:1], None, DELTA, "a")
    assert account.figure(DELTA).epsilon == pytest.approx(compose(charges[:1], DELTA))
    account.charge(charges[1:], None, DELTA, "b")
    assert account.figure(DELTA).epsilon == pytest.approx(filtered_epsilon(charges, DELTA))
    assert account.figure(DELTA).epsilon > 1.2 * compose(charges, DELTA)


@pytest.mark.parametrize(("share", "fits"), [(0.999, False), (1.001, True)])
def test_a_limit_holds_for_charges_that_were_chosen_later(
    tmp_path: Path, share: float, fits: bool
) -> None:
    """The figure of charges that were fixed in advance would pass either limit."""
    account = DataAccount(tmp_path / "account", "client")
    charges = [(PrivacyLoss(0.02), 130), (PrivacyLoss(0.03), 90)]
    account.charge(charges[:1], None, DELTA, "a")
    limit = share * filtered_epsilon(charges, DELTA)
    assert compose(charges, DELTA) < limit
    if fits:
        account.charge(charges[1:], limit, DELTA, "b")
        return
    before = account.path.read_bytes()
    with pytest.raises(LimitReached, match="b would bring the account"):
        account.charge(charges[1:], limit, DELTA, "b")
    assert account.path.read_bytes() == before


def test_a_charge_beyond_the_limit_is_refused_and_leaves_the_account_unchanged(
    tmp_path: Path,
) -> None:
    account = DataAccount(tmp_path / "account", "client")
    account.charge([(PrivacyLoss(0.5), 1)], 1.0, DELTA, "a")
    before = account.path.read_bytes()
    with pytest.raises(LimitReached, match=r"b would bring the account .* max_epsilon = 1"):
        account.charge([(PrivacyLoss(0.6), 1)], 1.0, DELTA, "b")
    assert account.path.read_bytes() == before
    assert DataAccount(account.path, "client").figure(DELTA).epsilon == pytest.approx(0.5)
    other = DataAccount(tmp_path / "other", "client")
    other.charge([(PrivacyLoss(0.5), 2)], None, DELTA, "a")
    both = other.figure(DELTA).epsilon
    account.charge([(PrivacyLoss(0.5), 1)], both, DELTA, "c")  # which reaches the limit exactly
    assert account.line(DELTA)[0] == both


def test_another_unit_or_an_edited_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "account"
    DataAccount(path, "client").charge([(PrivacyLoss(0.5), 1)], None, DELTA, "a")
    with pytest.raises(RunFolderError, match="is the account of each client"):
        DataAccount(path, "row").charge([(PrivacyLoss(0.5), 1)], None, DELTA, "a")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(RunFolderError, match="damaged"):
        DataAccount(path, "client").figure(DELTA)
    other = tmp_path / "people.csv"
    other.write_text("id,age\n1,30\n")
    with pytest.raises(RunFolderError, match=r"people\.csv is not an account: name a new"):
        DataAccount(other, "client").charge([(PrivacyLoss(0.5), 1)], None, DELTA, "a")
    assert other.read_text() == "id,age\n1,30\n"


@pytest.mark.parametrize(("older", "said"), [(0, "is missing"), (1, "is an older copy")])
def test_an_account_that_was_charged_is_not_begun_again(
    tmp_path: Path, older: int, said: str
) -> None:
    account = DataAccount(tmp_path / "account", "client")
    copies: list[bytes] = []
    for what in ("a", "b", "c"):
        account.charge([(PrivacyLoss(0.5), 1)], 2.0, DELTA, what)
        copies.append(account.path.read_bytes())
    if older:
        account.path.write_bytes(copies[older])
    else:
        account.path.unlink()
    with pytest.raises(RunFolderError, match=f"{account.path} {said}: .* 3 charges"):
        account.charge([(PrivacyLoss(0.5), 1)], 2.0, DELTA, "d")
    with pytest.raises(RunFolderError, match=said):
        account.line(DELTA)
    assert account.path.exists() == bool(older)
    account.path.write_bytes(copies[2])
    DataAccount(account.path, "client").charge([(PrivacyLoss(0.25), 1)], 2.0, DELTA, "others")
    with pytest.raises(LimitReached, match="d would bring"):
        account.charge([(PrivacyLoss(0.5), 1)], 2.0, DELTA, "d")
    account.path.write_bytes(copies[2])  # the others' charge is no longer there
    with pytest.raises(RunFolderError, match=r"is an older copy: .* 4 charges"):
        account.charge([(PrivacyLoss(0.25), 1)], 2.0, DELTA, "d")


def test_a_link_to_an_account_takes_no_charge_away_from_it(tmp_path: Path) -> None:
    """A charge through the link would go to a copy, and the account would not count it."""
    shared, folder = tmp_path / "shared", tmp_path / "linked"
    shared.mkdir()
    account = DataAccount(shared / "account", "client")
    account.charge([(PrivacyLoss(0.5), 1)], None, DELTA, "a")
    link = tmp_path / "link"
    link.symlink_to(account.path)
    with pytest.raises(RunFolderError, match=f"^{link} cannot be written: it is a link, and"):
        DataAccount(link, "client").charge([(PrivacyLoss(0.25), 1)], None, DELTA, "b")
    assert link.is_symlink()
    folder.symlink_to(shared)  # the file itself is no link
    DataAccount(folder / "account", "client").charge([(PrivacyLoss(0.25), 3)], None, DELTA, "c")
    assert account.figure(DELTA).epsilon == pytest.approx(1.25)


def test_losses_of_several_kinds_with_an_epsilon_each_are_added(tmp_path: Path) -> None:
    account = DataAccount(tmp_path / "account", "client")
    account.charge([(gaussian(), 1)], None, DELTA, "a")
    account.charge([(PrivacyLoss(0.5), 3)], None, DELTA, "b")
    assert account.figure(DELTA).epsilon == pytest.approx(0.9 + 1.5)


def test_a_training_with_sampling_and_questions_add_up_in_either_order(tmp_path: Path) -> None:
    sampled = PrivacyLoss.of_release(SampledGaussian(0.8, 0.05), "example")
    charges = [("training", sampled, 40), ("question", gaussian(), 2), ("rr", PrivacyLoss(0.2), 1)]
    figures = []
    for order in (charges, charges[::-1]):
        account = DataAccount(tmp_path / f"account-{order[0][0]}", "row")
        for what, loss, count in order:
            account.charge([(loss, count)], None, DELTA, what)
        figures.append(account.figure(DELTA))
    alone = compose([(loss, count) for _, loss, count in charges], delta=DELTA)
    assert figures[0].epsilon == pytest.approx(figures[1].epsilon, rel=1e-12)
    assert alone < figures[0].epsilon < 1.7 * alone
    assert figures[0].delta == DELTA
    before = account.path.read_bytes()
    with pytest.raises(LimitReached, match="more would bring"):
        account.charge([(sampled, 400)], 2 * alone, DELTA, "more")
    assert account.path.read_bytes() == before


@pytest.mark.parametrize("limit", [None, 1.2])
def test_a_charge_counts_what_another_process_charged_while_it_waited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: float | None
) -> None:
    account = DataAccount(tmp_path / "account", "client")

    def theirs() -> None:
        DataAccount(account.path, "client").charge([(PrivacyLoss(0.75), 1)], None, DELTA, "theirs")

    overtaken(monkeypatch, data_account, theirs)
    if limit is None:
        account.charge([(PrivacyLoss(0.5), 1)], limit, DELTA, "ours")
    else:
        with pytest.raises(LimitReached, match="ours would bring the account"):
            account.charge([(PrivacyLoss(0.5), 1)], limit, DELTA, "ours")
    ours = limit is None
    assert account._read()[0] == 1 + ours
    assert account.figure(DELTA).epsilon == pytest.approx(0.75 + 0.5 * ours)


def test_the_lock_is_held_until_the_account_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    account, locked = DataAccount(tmp_path / "account", "client"), list[bool]()
    write = data_account.write_whole

    def writes(path: Path, data: Any) -> None:
        locked.append(is_locked(path))
        write(path, data)

    monkeypatch.setattr(data_account, "write_whole", writes)
    account.charge([(PrivacyLoss(0.5), 1)], None, DELTA, "a")
    assert locked == [True]
    assert not is_locked(account.path)


def test_an_account_that_cannot_be_locked_is_one_sentence_and_no_charge(tmp_path: Path) -> None:
    (tmp_path / "account.lock").symlink_to(tmp_path / "elsewhere")
    account = DataAccount(tmp_path / "account", "client")
    with pytest.raises(RunFolderError, match=r"account\.lock cannot be written: it is a link"):
        account.charge([(PrivacyLoss(0.5), 1)], None, DELTA, "a")
    assert not account.path.exists()
