"""The record of an account: its tables, its files, and the command that writes them."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from account_parts import DELTA, FREE, NOISY, NOON, Place, release
from fedveil.cli.main import app as cli
from fedveil.errors import InvalidValue
from fedveil.pages.dossier import recompute
from fedveil.pages.guarantee_text import right
from fedveil.pages.page import Fact
from fedveil.privacy.audit import rounded_down
from fedveil.privacy.guarantee_strength import epsilon_text
from fedveil.privacy.loss import Gaussian, PrivacyLoss
from fedveil.site.account import Limits, Release
from fedveil.site.account_record import AccountRecord
from fedveil.site.site_folder import Site, create

EXACT = PrivacyLoss(math.inf, 1.0)


@pytest.fixture
def record(tmp_path: Path) -> AccountRecord:
    account = Place(tmp_path).open()
    limits = Limits(month=2.5, ever=9.0, delta=DELTA, unit="example", without_epsilon=9)
    for n in range(5):
        loss = PrivacyLoss.of_release(Gaussian(30.0 + n), "example")
        account.charge(release(loss, job=f"study-{n % 2}", unit="example"), limit=limits)
    for _ in range(3):
        account.charge(
            release(EXACT, job="sums", in_clear=("the time",), summed=True), limit=limits
        )
    return AccountRecord("north", account, limits)


def test_a_loss_that_one_report_has_several_times_is_recomputed_as_often(
    record: AccountRecord,
) -> None:
    loss = PrivacyLoss.of_release(Gaussian(40.0), "example")
    for _ in range(2):
        several = Release("lung", "a report", "dp_encrypt", [(loss, 3)], "example")
        record.account.charge(several, limit=record.limits)
    (lung,) = [account for account in record.accounts() if "lung" in account.of]
    assert [released["count"] for released in lung.releases] == [6]


def test_what_is_left_is_rounded_down(record: AccountRecord) -> None:
    left = record.left()
    for name, most, spent in (("month", 2.5, record.month), ("ever", 9.0, record.ever)):
        exact = most - spent.figure.epsilon
        assert exact - 0.01 < float(left[name]) < exact
    record.account.charge(release(PrivacyLoss(20.0)), limit=FREE)
    assert record.left() == {"month": "0", "ever": "0"}


def test_sums_without_an_epsilon_are_never_shown_as_epsilon_0(record: AccountRecord) -> None:
    rows = {row["job"]: row for row in record.jobs().records()}
    assert rows["sums"]["spent"] == "no epsilon"
    assert (rows["sums"]["releases"], rows["sums"]["without epsilon"]) == ("3", "3")
    (sums,) = [a for a in record.accounts() if "sums" in a.of]
    assert (sums.epsilon, bool(sums.missing)) == (math.inf, True)
    assert sums.of == "one example, job sums"
    assert any("8 releases, 3 without an epsilon" in s for s in record.record()["statements"])
    assert record.accounts()[0].missing == ""
    mixed = replace(record, limits=replace(record.limits, unit="client")).accounts()[0]
    assert (mixed.epsilon, mixed.missing) == (
        math.inf, "losses for one example leave no epsilon for a client",
    )  # fmt: skip


def test_each_figure_is_that_of_its_month_its_run_and_its_limit(tmp_path: Path) -> None:
    place, free = Place(tmp_path), Limits(month=None, without_epsilon=9)
    account = place.open()
    for loss in (NOISY, NOISY, EXACT):
        account.charge(release(loss, summed=True, in_clear=("a size",)), limit=free)
    place.now = NOON + timedelta(days=9)
    account.charge(release(PrivacyLoss(0.25)), limit=free)
    record = AccountRecord("north", account, Limits(run=7.5, month=2.5, ever=9.0, delta=3e-4))
    ever = record.ever.figure
    assert ever.delta == 3e-4
    assert ever.epsilon > record.month.figure.epsilon == 0.25
    assert record.left() == {"month": "2.25", "ever": rounded_down(9.0 - ever.epsilon, 3)}
    _, whole, month = record.page().lead
    assert isinstance(whole, Fact)
    assert isinstance(month, Fact)
    assert (whole.value, month.label, month.value) == (
        str(ever), "Month 2031-04", str(record.month.figure),
    )  # fmt: skip
    assert f"at least {record.left()['ever']}. Not covered: 1 sums" in whole.text
    assert month.text == "Left: at least 2.25."
    march, april = record.months().records()
    assert [(m["releases"], m["without epsilon"], m["limit"]) for m in (march, april)] == [
        ("3", "1", "2.5"), ("1", "0", "2.5"),
    ]  # fmt: skip
    (run,) = record.jobs().records()
    assert (run["last"], run["releases"], run["without epsilon"]) == ("2031-04-08", "4", "1")
    (charges, *_) = [a.releases for a in record.accounts() if a.of.endswith("all time")]
    assert sorted(charge["count"] for charge in charges) == [1, 2]
    said = record.record()
    assert (said["without_epsilon"], said["in_clear"]) == (1, ["a size"])
    statements = " ".join(said["statements"])
    assert "4 releases, 1 without an epsilon" in statements
    assert "Sent in the clear, with no finite epsilon: a size." in statements
    assert f"which of two such inputs the site holds, {right(ever)} (" in statements


def test_a_run_s_row_and_the_record_are_of_their_own_charges(tmp_path: Path) -> None:
    place, limits = Place(tmp_path), Limits(7.5, 2.5, 9.0, 3e-4, "client", 4)
    account, heart = place.open(), "heartheart"
    through = {"through": "Flower, study", "in_clear": ("the time", "sizes")}
    account.charge(release(PrivacyLoss(0.25), job=heart, **through), limit=limits)
    place.now += timedelta(days=1)
    account.charge(release(PrivacyLoss(0.5), job=heart, what="a mean"), limit=limits)
    place.now += timedelta(days=2)
    account.charge(release(PrivacyLoss(0.125), job="bone", through="NVFlare", in_clear=("a name",)),
                   limit=limits)  # fmt: skip
    record = AccountRecord("north", account, limits)
    assert record.record()["in_clear"] == ["a name", "sizes", "the time"]
    row, _ = record.jobs().records()
    assert row == {
        "job": "hearthea", "release": "a report, a mean", "protection": "dp_encrypt",
        "through": "Flower, study, fedveil", "last": "2031-03-31", "releases": "2",
        "without epsilon": "0", "spent": epsilon_text(0.75),
    }  # fmt: skip
    said = record.record()
    assert {key: said[key] for key in ("site", "data_set", "lines", "without_epsilon")} == {
        "site": "north", "data_set": "adult", "lines": 3, "without_epsilon": 0,
    }  # fmt: skip
    assert said["limits"] == {
        "run": 7.5, "month": 2.5, "ever": 9.0, "delta": 3e-4, "unit": "client",
        "without_epsilon": 4,
    }  # fmt: skip
    for way in ("Flower", "NVFlare"):
        assert any(f"through {way}" in statement for statement in said["statements"])
    assert [account["of"] for account in said["accounts"]] == [
        f"the site's whole data, {of}"
        for of in ("all time", "month 2031-03", "month 2031-04", "job heartheart", "job bone")
    ]
    (unused,) = AccountRecord("north", place.open("lung"), limits).accounts()
    assert (unused.epsilon, unused.missing) == (0, "")


def test_the_record_says_who_executed_what_left(record: AccountRecord) -> None:
    def said() -> str:
        return " ".join(record.record()["statements"])

    assert "through Flower" not in said()
    assert "through NVFlare" not in said()
    record.account.charge(release(through="Flower, study"), limit=FREE)
    assert "The site's own code executed the jobs" in said()
    assert "through NVFlare" not in said()
    record.account.charge(release(through="NVFlare"), limit=FREE)
    assert "is not in this account" in said()


def test_the_script_recomputes_the_record(record: AccountRecord, tmp_path: Path) -> None:
    list(record.write(tmp_path / "out"))
    read = json.loads((tmp_path / "out" / "record.json").read_text())
    agreed = 0
    for account in read["accounts"]:
        if account["missing"]:
            continue
        epsilon, doubt = recompute.recomputed(account)
        assert recompute.verdict(float(account["epsilon"]), epsilon, doubt) == "agrees"
        agreed += account["epsilon"] > 0
    assert agreed == 4  # all time, the month, and two runs with noise
    assert read["last_code"] == record.account.code
    assert read["in_clear"] == ["the time"]
    page = (tmp_path / "out" / "dossier.html").read_text()
    assert "is right at most" in page
    assert page.count("Not covered: 3 sums without an epsilon.") == 2
    assert "Sent in the clear, with no finite epsilon: the time." in page


def test_the_command_shows_and_writes_an_account(tmp_path: Path) -> None:
    site = tmp_path / "north"
    create(site)
    new = CliRunner().invoke(cli, ["site", "account", str(site)])
    assert new.stdout == "nothing is spent: the policy names no data set yet\n"
    policy: dict[str, Any] = {
        "name": "north", "counter": "../counter",
        "data": {"heart": {"named": "digits"}, "lung": {"named": "mnist"}},
    }  # fmt: skip
    (site / "policy.yaml").write_text(yaml.safe_dump(policy))
    opened = Site.open(site)
    job = "0123456789abcdef"
    opened.account("heart").charge(release(PrivacyLoss(0.75), job=job), limit=opened.policy.limits)
    assert (tmp_path / "counter").exists()  # where the policy puts it
    run = CliRunner(env={"COLUMNS": "120"})  # so that no cell is wrapped
    shown = run.invoke(cli, ["site", "account", str(site), "heart"]).stdout
    assert "heart: 1 release\n  this month  epsilon 0.75 at delta 0" in shown
    for part in ("at least 1.25 left", "01234567", "a report", "month (UTC)"):
        assert part in shown
    brief = run.invoke(cli, ["site", "account", str(site)]).stdout
    assert "heart: 1 release\n" in brief
    assert "lung: 0 releases\n" in brief
    assert "month (UTC)" not in brief
    both = run.invoke(cli, ["site", "account", str(site), "--json"])
    told = json.loads(both.stdout)
    assert {name: one["lines"] for name, one in told.items()} == {"heart": 1, "lung": 0}
    assert told["heart"]["left"]["ever"] == "9.25"
    out = tmp_path / "out"
    wrote = run.invoke(cli, ["site", "account", str(site), "heart", "--out", str(out)])
    assert (wrote.exit_code, (out / "dossier.html").exists()) == (0, True)
    files = sorted(str(path) for path in out.iterdir())
    assert sorted(re.findall(r"^wrote (.*)$", wrote.stdout, re.MULTILINE)) == files
    only = run.invoke(cli, ["site", "account", str(site), "heart", "--json", "--out", str(out)])
    assert {name: sorted(one["wrote"]) for name, one in json.loads(only.stdout).items()} == {
        "heart": files
    }
    assert [one["wrote"] for one in told.values()] == [[], []]
    for words, said in ((["hart"], "did you mean heart"), (["--out", "x"], "name the data set")):
        failed = run.invoke(cli, ["site", "account", str(site), *words])
        assert said in str(failed.exception)
    (site / "policy.yaml").write_text(yaml.safe_dump({**policy, "data": {"lung": {}}}))
    alone = run.invoke(cli, ["site", "account", str(site), "--out", str(tmp_path / "lung")])
    assert (alone.exit_code, (tmp_path / "lung" / "record.json").exists()) == (0, True)
    (site / "policy.yaml").write_text(yaml.safe_dump(policy))
    (site / "accounts" / "heart.account").unlink()
    refused = run.invoke(cli, ["site", "account", str(site)])
    assert "is missing, but" in str(refused.exception)


def test_a_value_in_the_clear_alone_is_in_the_account_and_costs_nothing(tmp_path: Path) -> None:
    place, limits = Place(tmp_path), Limits(month=2.5, ever=9.0)
    account = place.open()
    for _ in range(2):
        account.charge(release(PrivacyLoss(0.25)), limit=limits)
    before = account.spent().figure
    size = Release("new", "the introduction", "dp_encrypt", (), in_clear=("a size",))
    for _ in range(2):
        account.disclose(size)
    assert len(account.charges) == 3
    again = place.open()
    assert again.spent().figure == before
    assert (again.spent().releases, again.spent().in_clear) == (2, ("a size",))
    record = AccountRecord("north", again, limits)
    assert record.record()["in_clear"] == ["a size"]
    _, new = record.jobs().records()
    assert (new["job"], new["releases"], new["spent"]) == ("new", "0", "no epsilon")
    with pytest.raises(InvalidValue, match="spending is not empty"):
        account.disclose(release(PrivacyLoss(0.25)))


def test_each_run_has_its_own_line_for_each_value_in_the_clear(tmp_path: Path) -> None:
    place = Place(tmp_path)
    account, other_process = place.open(), place.open()
    said = [
        ("one", "the introduction", ("a size",)),
        ("two", "the introduction", ("a mean",)),
        ("two", "the hour", ("a time",)),
    ]
    for own in (account, other_process):
        for job, what, clear in said:
            own.disclose(Release(job, what, "dp_encrypt", (), in_clear=clear))
    again = place.open()
    assert [(line.job, line.what, line.in_clear) for line in again.charges] == said
    assert {job: window.in_clear for job, window in again.windows("run").items()} == {
        "one": {"a size"}, "two": {"a mean", "a time"},
    }  # fmt: skip
