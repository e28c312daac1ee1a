"""A site's account: what it adds up to, and what it refuses."""

from __future__ import annotations

import math
import os
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from account_parts import DELTA, FREE, NOISY, NOON, Place, in_a_process, release
from fedveil.errors import InvalidValue, OverSpent
from fedveil.privacy.compose import compose
from fedveil.privacy.loss import Gaussian, PrivacyLoss
from fedveil.privacy.loss_distribution import LossDistribution
from fedveil.privacy.sampled_gaussian import SampledGaussian
from fedveil.site.account import Charged, Limits, Release, SiteAccount, Window
from renyi_sum import filtered_epsilon

SAMPLED = PrivacyLoss.of_release(SampledGaussian(0.9, 0.04), "example")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_charges_of_several_jobs_and_openings_compose_exactly(place: Place) -> None:
    for n in range(11):
        place.open().charge(release(job=f"study {n % 3}"), limit=FREE)
    account = place.open()
    spent = account.spent(delta=DELTA)
    assert spent.figure.epsilon == compose([(NOISY, 11)], DELTA)
    assert spent.releases == 11
    one = account.spent(job="study 2", delta=DELTA).figure.epsilon
    assert one == compose([(NOISY, 3)], DELTA)


def test_charges_of_several_kinds_are_not_composed_as_if_fixed_in_advance(place: Place) -> None:
    losses = [(PrivacyLoss(0.03), 40), (NOISY, 1), (SAMPLED, 7)]
    account = place.open()
    for loss, count in losses:
        account.charge(Release("j", "r", "rr", [(loss, count)]), limit=FREE)
    spent = account.spent(delta=DELTA).figure.epsilon
    assert spent == pytest.approx(filtered_epsilon(losses, DELTA), rel=1e-8)
    assert spent > compose(losses, DELTA)
    again = place.open().spent(delta=DELTA).figure.epsilon
    assert again == spent


def test_a_stated_epsilon_is_added_where_that_is_less(place: Place) -> None:
    account = place.open()
    account.charge(release(PrivacyLoss(0.1)), limit=FREE)
    account.charge(release(PrivacyLoss(0.2)), limit=FREE)
    assert account.spent(delta=DELTA).figure == (0.3, 0.0)


@pytest.mark.parametrize("period", ["run", "month", "ever"])
def test_a_charge_beyond_a_limit_is_refused_and_changes_nothing(place: Place, period: str) -> None:
    account, limit = place.open(), Limits(**{"month": None, period: 1.0})
    for _ in range(2):
        account.charge(release(PrivacyLoss(0.4), in_clear=("a size",)), limit=limit)
    before = place.file().read_bytes(), place.counter.read_bytes()
    with pytest.raises(
        OverSpent, match=r"a report of heart would bring the account adult to .*1\."
    ):
        account.charge(release(PrivacyLoss(0.3), in_clear=("the time",)), limit=limit)
    assert (place.file().read_bytes(), place.counter.read_bytes()) == before
    assert account.windows("ever")[""].in_clear == {"a size"}
    account.charge(release(PrivacyLoss(0.2)), limit=limit)
    assert place.open().spent().figure.epsilon <= 1.0


def test_values_in_the_clear_are_told_once_for_each_run_in_alphabetical_order(place: Place) -> None:
    account = place.open()
    values = ("time", "size", "norm", "mean", "days", "area")
    for job, said in (("first", values[:4]), ("second", values[3:]), ("first", ("more",))):
        account.disclose(Release(job, "the introduction", "rr", (), in_clear=said))
    assert [(one.job, one.in_clear) for one in account.charges] == [
        ("first", values[:4]), ("second", values[3:]),
    ]  # fmt: skip
    assert account.spent().in_clear == ("area", "days", "mean", "norm", "size", "time")


@pytest.mark.parametrize(("unit", "mixed"), [("client", True), ("example", False)])
def test_only_a_limit_for_a_client_is_broken_by_the_mixture_of_units(
    place: Place, unit: Any, mixed: bool
) -> None:
    own = Release("study", "a report", "rr", [(PrivacyLoss(0.7, per="example"), 1)], unit="example")
    limit = Limits(month=0.5, unit=unit)
    with pytest.raises(OverSpent, match=r"above the site's limit of 0\.5") as error:
        place.open().charge(own, limit=limit)
    assert ("leave no epsilon for a client" in str(error.value)) == mixed


def test_a_month_begins_at_midnight_whatever_the_clock_says(place: Place) -> None:
    place.now = datetime(2026, 3, 9, 14, 25, 36, 470_011, UTC)
    assert place.open().month() == datetime(2026, 3, 1, tzinfo=UTC)


def test_a_new_month_has_a_new_budget_and_a_run_and_all_time_do_not(place: Place) -> None:
    account, most = place.open(), Limits(month=1.0)
    account.charge(release(PrivacyLoss(0.9)), limit=most)
    with pytest.raises(OverSpent, match="in 2031-03"):
        account.charge(release(PrivacyLoss(0.9), job="other"), limit=most)
    place.now = datetime(2031, 4, 1, 0, 0, 1, tzinfo=UTC)
    account.charge(release(PrivacyLoss(0.9)), limit=most)
    assert account.spent(since=account.month()).figure.epsilon == 0.9
    local = account.month().astimezone().replace(tzinfo=None)  # a time without a zone is local
    assert account.spent(since=local).figure.epsilon == 0.9
    for limit in (Limits(run=2.5, month=None), Limits(month=None, ever=2.5)):
        with pytest.raises(OverSpent, match=r"above the site's limit of 2\.5"):
            account.charge(release(PrivacyLoss(0.8)), limit=limit)


def test_a_time_in_another_zone_is_the_same_moment(place: Place) -> None:
    account = place.open()
    account.charge(release(PrivacyLoss(0.9)), limit=FREE)
    for hours in (-9, 9):
        since = place.now.astimezone(timezone(timedelta(hours=hours)))
        assert account.spent(since=since).releases == 1
        assert account.spent(since=since + timedelta(minutes=1)).releases == 0


def test_a_limit_holds_at_its_own_delta(place: Place) -> None:
    account, loss = place.open(), [(NOISY, 1)]
    lenient, strict = compose(loss, 1e-3), compose(loss, 1e-5)
    most = (lenient + strict) / 2
    account.charge(release(), limit=Limits(month=None, run=most, delta=1e-3))
    with pytest.raises(OverSpent, match=f"above the site's limit of {most}$"):
        account.charge(release(job="lung"), limit=Limits(month=None, run=most, delta=1e-5))


def test_a_month_begins_at_utc_midnight(place: Place) -> None:
    place.now = datetime.fromisoformat("2031-04-01T01:30:00+02:00")
    assert place.open().month() == datetime(2031, 3, 1, tzinfo=UTC)


def test_a_clock_set_back_charges_the_later_month(place: Place) -> None:
    account, most = place.open(), Limits(month=1.0)
    account.charge(release(PrivacyLoss(0.9)), limit=most)
    for days in (40, 400, 20_000):
        place.now = NOON - timedelta(days=days)
        for opened in (account, place.open()):
            with pytest.raises(OverSpent, match="in 2031-03"):
                opened.charge(release(PrivacyLoss(0.2)), limit=most)


def test_a_clock_set_ahead_and_back_uses_up_the_later_month(place: Place) -> None:
    account, most = place.open(), Limits(month=1.0)
    account.charge(release(PrivacyLoss(0.0625)), limit=most)
    place.now = NOON + timedelta(days=65)
    account.charge(release(PrivacyLoss(0.9)), limit=most)
    for place.now in (NOON, NOON + timedelta(days=33), NOON + timedelta(days=63)):
        with pytest.raises(OverSpent, match="in 2031-06"):
            account.charge(release(PrivacyLoss(0.2)), limit=most)


def test_sums_without_an_epsilon_are_counted_apart_and_limited(place: Place) -> None:
    account, exact = place.open(), PrivacyLoss(math.inf, 1.0)
    with pytest.raises(OverSpent, match="promises no epsilon, and the site allows 0"):
        account.charge(release(exact, summed=True), limit=Limits())
    most = Limits(without_epsilon=2)
    with pytest.raises(OverSpent, match="promises no epsilon, and is no sum"):
        account.charge(release(exact), limit=most)
    account.charge(release(PrivacyLoss(0.5)), limit=most)
    for _ in range(2):
        account.charge(
            release(exact, PrivacyLoss(0.1), in_clear=("time",), summed=True), limit=most
        )
    with pytest.raises(OverSpent, match="the site allows 2"):
        account.charge(release(exact, summed=True), limit=most)
    spent = place.open().spent()
    assert (spent.releases, spent.without_epsilon, spent.in_clear) == (3, 2, ("time",))
    assert spent.figure == (0.5, 0.0)
    place.now = NOON + timedelta(days=5)  # another month
    account.charge(release(exact, summed=True), limit=most)
    assert account.spent(since=place.now).without_epsilon == 1
    assert account.spent(since=place.now + timedelta(microseconds=1)).releases == 0


def test_an_example_s_loss_leaves_no_epsilon_for_a_client(place: Place) -> None:
    account = place.open()
    account.charge(release(PrivacyLoss(0.25)), limit=Limits())
    account.charge(release(PrivacyLoss(0.5, per="example"), unit="example"),
                   limit=Limits(unit="example"))  # fmt: skip
    assert account.spent(unit="example").figure.epsilon == 0.75
    assert account.spent(unit="client").figure.epsilon == math.inf
    with pytest.raises(OverSpent, match="losses for one example leave no epsilon for a client"):
        account.charge(release(PrivacyLoss(0.25)), limit=Limits())


def lying(name: str, value: object) -> PrivacyLoss:
    """Return a loss that was changed after its check."""
    loss = PrivacyLoss(0.5)
    object.__setattr__(loss, name, value)
    return loss


def no_noise(ratio: float) -> PrivacyLoss:
    noise = Gaussian(1.0)
    object.__setattr__(noise, "ratio", ratio)
    return PrivacyLoss.of_release(noise)


@pytest.mark.parametrize(
    "spending",
    [[], [(PrivacyLoss(0.5), 0)], [(PrivacyLoss(0.5), -3)], [(PrivacyLoss(0.5), 1.5)],
     [(PrivacyLoss(0.5), math.nan)], [(0.5, 1)], [(PrivacyLoss(0.5), 1 << 54)],
     [(lying("epsilon", math.nan), 1)], [(lying("epsilon", -4.0), 1)],
     [(lying("delta", math.nan), 1)], [(lying("delta", -1e-9), 1)],
     [(no_noise(math.nan), 1)], [(no_noise(-3.0), 1)], [(no_noise(math.inf), 1)]],
)  # fmt: skip
def test_a_charge_that_is_none_changes_nothing(place: Place, spending: list[object]) -> None:
    account = place.open()
    account.charge(release(), limit=FREE)
    before = place.file().read_bytes()
    with pytest.raises(InvalidValue):
        account.charge(Release("j", "r", "rr", spending), limit=FREE)  # type: ignore[arg-type]
    assert place.file().read_bytes() == before
    account.charge(release(), limit=FREE)
    assert place.open().spent(delta=DELTA).releases == 2


@pytest.mark.parametrize("wrong", [math.nan, math.inf, 0.0, -2.0, True])
def test_a_limit_that_is_none_is_refused(wrong: float) -> None:
    for name in ("run", "month", "ever", "delta"):
        with pytest.raises(InvalidValue, match=name):
            Limits(**{name: wrong})
    with pytest.raises(InvalidValue, match="without_epsilon = -1 is outside"):
        Limits(without_epsilon=-1)
    with pytest.raises(InvalidValue):
        Gaussian(wrong)


def test_texts_of_a_stranger_stay_in_their_line(place: Place) -> None:
    name = 'a"\n\u2028\x1b[2J\\ud800 \udc80 é'
    place.open().charge(release(job=name, through="x\r\ny"), limit=FREE)
    assert place.file().read_bytes().count(b"\n") == 1
    assert place.file().read_bytes().isascii()
    assert place.open().charges[0].job == name
    with pytest.raises(InvalidValue, match="job has no text, or more than 1,000"):
        release(job="x" * 1001)
    assert len(release(job="x" * 1000).job) == 1000
    for name in ("job", "what", "through"):
        with pytest.raises(InvalidValue, match=f"{name} has no text"):
            release(**{name: ""})


def test_two_processes_never_charge_more_than_the_limit(place: Place) -> None:
    def spend() -> None:
        account = place.open()
        for _ in range(9):
            account.charge(release(PrivacyLoss(0.125)), limit=Limits(ever=1.0))

    children = [in_a_process(spend) for _ in range(3)]
    codes = [os.waitpid(child, 0)[1] for child in children]
    assert all(codes), "27 charges of 0.125 are above 1"
    account = place.open()
    assert 0.99 < account.spent().figure.epsilon <= 1.0
    assert len(account.charges) == 8


def test_an_open_account_sees_what_another_process_charged(place: Place) -> None:
    account = place.open()
    child = in_a_process(lambda: place.open().charge(release(SAMPLED), limit=FREE))
    assert os.waitpid(child, 0)[1] == 0
    assert account.spent().releases == 1
    account.charge(release(SAMPLED), limit=FREE)
    assert place.open().spent(delta=DELTA).figure.epsilon == compose([(SAMPLED, 2)], DELTA)


def test_every_loss_is_the_same_after_the_account_is_opened_again(place: Place) -> None:
    part = PrivacyLoss.of_release(Gaussian(3.25), "parameter")
    table = LossDistribution(0.5, -2, [0.25, 0.125, 0.25, 0.0, 0.375 - 2e-7], 2e-7)
    flips = PrivacyLoss(4 / 3, 2e-7, "parameter", release=table, part=PrivacyLoss(0.7, per="bit"))
    whole = PrivacyLoss(8.0, 1e-6, release=Gaussian(2.5), part=part)
    for loss in (whole, flips, SAMPLED, NOISY, PrivacyLoss(0.1, 1e-9, per="row")):
        place.open().charge(Release("j", "r", "rr", [(loss, 7)]), limit=FREE)
        assert place.open().charges[-1].kind == ((loss.resolved(), 7),)
    for count in (2, 3):  # charges whose first losses are equal
        place.open().charge(Release("j", "r", "rr", [(NOISY, 7), (SAMPLED, count)]), limit=FREE)
    kinds = [charged.kind for charged in place.open().charges[-2:]]
    assert [sum(count for _, count in kind) for kind in kinds] == [9, 10]


def test_added_deltas_above_the_limit_s_are_no_statement(place: Place) -> None:
    account, half = place.open(), 0.6 * DELTA
    account.charge(release(PrivacyLoss(0.3, half)), limit=FREE)
    assert 0.29 < account.spent(delta=DELTA).figure.epsilon <= 0.3
    account.charge(release(PrivacyLoss(0.2, half)), limit=FREE)
    assert account.spent(delta=DELTA).figure.epsilon == math.inf
    assert account.spent(delta=2 * DELTA).figure == (0.5, 2 * DELTA)


@pytest.mark.parametrize("at", range(4))
def test_an_interrupted_reading_leaves_no_charge_out(
    at: int, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C ends a call in a notebook, and the next call uses the same account."""
    account, other = place.open(), place.open()
    account.charge(release(PrivacyLoss(0.1)), limit=FREE)
    for epsilon in (0.2, 0.4):
        other.charge(release(PrivacyLoss(epsilon)), limit=FREE)
    add, left = Window.add, [at]

    def interrupted(self: Window, charged: Charged) -> None:
        left[0] -= 1
        if left[0] == -1:
            raise KeyboardInterrupt
        add(self, charged)

    monkeypatch.setattr(Window, "add", interrupted)
    with pytest.raises(KeyboardInterrupt):
        account.refresh()
    assert account.windows("ever") == {}
    with pytest.raises(OverSpent, match=r"to epsilon 1\.[0-9]"):
        account.charge(release(PrivacyLoss(0.8)), limit=Limits(month=1.45))
    assert account.windows("ever")[""].total.figure(DELTA).epsilon == pytest.approx(0.7)


def test_a_charge_that_is_interrupted_after_its_line_is_written_counts(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = place.open()
    account.charge(release(PrivacyLoss(0.1)), limit=FREE)

    def interrupted(self: SiteAccount, kind: str, charged: Charged) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(SiteAccount, "_add", interrupted)
        with pytest.raises(KeyboardInterrupt):
            account.charge(release(PrivacyLoss(0.6)), limit=FREE)
    account.refresh()
    assert account.windows("ever")[""].total.figure(DELTA).epsilon == pytest.approx(0.7)
