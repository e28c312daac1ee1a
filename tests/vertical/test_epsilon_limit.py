"""The limit on a party's own account: `privacy.max_epsilon` of a vertical job."""

from __future__ import annotations

import csv
import math
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedveil.errors import LimitReached, PeerAtLimit
from fedveil.mechanisms.label_dp import LabelDP
from fedveil.record.account_lines import read_accounts
from fedveil.vertical import VerticalJob, evaluate, resume, train
from fedveil.vertical.account import Releases, figures, ledger_of
from fedveil.vertical.epsilon_limit import Limit
from fedveil.vertical.job_split import make_split, make_task
from fedveil.vertical.rows import Order
from fedveil.vertical.split import SplitModel

EPSILON, DELTA = 0.3, 1e-4


def job(*, reuse: bool = False, **privacy: Any) -> VerticalJob:
    """Describe a run of 4 epochs of 6 steps (50 examples), with an evaluation every 3 epochs."""
    return VerticalJob(
        name="limited",
        epochs=4,
        batch_size=9,
        task="vertical_parts:bottoms",
        record={"every_steps": 4},
        checkpoint={"every_steps": 5},
        evaluation={"every_epochs": 3},
        privacy={"embedding_dp": {"eps": EPSILON, "reuse": reuse}, "delta": DELTA, **privacy},
    )


def split_of(settings: VerticalJob) -> SplitModel:
    return make_split(settings, make_task(settings, None))


def cost(settings: VerticalJob, times: int, label: Any = None) -> float:
    """Return the epsilon in a run's ledger for an example that was sent `times` times."""
    releases = Releases(None, Order(0, 50, 9), fresh=False, epochs=4)
    releases.train[:] = times
    ledger = ledger_of(split_of(settings), "bank", releases, label)
    return ledger.figures(DELTA)["run_most_drawn"].epsilon


@pytest.mark.parametrize("reuse", [False, True])
@pytest.mark.parametrize("times", [1, 2, 3])
def test_it_counts_as_the_ledger_does(times: int, reuse: bool) -> None:
    settings = job(reuse=reuse)
    limit = Limit(split_of(settings), "bank", 1.0, DELTA, None)
    assert limit.figure(times, labelled=True).epsilon == cost(settings, times)


def test_a_label_is_counted_once_and_for_trained_examples_alone() -> None:
    settings, label = job(), LabelDP(0.7).loss
    limit = Limit(split_of(settings), "bank", 1.0, DELTA, label)
    assert limit.figure(2, labelled=True).epsilon == cost(settings, 2, label)
    assert limit.figure(2, labelled=False).epsilon == cost(settings, 2)


@pytest.mark.parametrize(("allowed", "steps"), [(1, 6), (2, 12), (3, 18)])
def test_the_run_ends_before_the_step_that_would_pass_it(
    tmp_path: Path, allowed: int, steps: int
) -> None:
    most = (cost(job(), allowed) + cost(job(), allowed + 1)) / 2
    said: list[str] = []
    run = train(job(max_epsilon=most), tmp_path / "run", say=said.append)
    for party in ("bank", "shop"):
        often = "once" if allowed == 1 else f"{allowed} times"
        assert run.figures[party][-1].what == f"an example's own reports in the run, sent {often}"
        assert run.figures[party][-1].epsilon <= most
        events = (tmp_path / "run" / party / "events.log").read_text()
        assert f"finished after step {steps}: its own privacy.max_epsilon is reached" in events
        assert "above privacy.max_epsilon =" not in events, "the limit is the party's own"
        private = (tmp_path / "run" / party / "private.log").read_text()
        assert f" step {steps + 1} would bring an example of {party} to epsilon " in private
        assert (tmp_path / "run" / party / "model.safetensors").exists()
    events = (tmp_path / "run" / "lead" / "events.log").read_text()
    assert f"finished after step {steps}: bank ended the step: its own" in events
    assert any("the run will end earlier" in sentence for sentence in said)
    resumed = resume(tmp_path / "run")
    assert resumed.figures["bank"] == run.figures["bank"]


def test_an_example_that_was_sent_again_after_a_break_counts_each_time(tmp_path: Path) -> None:
    """The run is cut off after step 8 and resumes after step 5: examples of one batch differ."""
    most = (cost(job(), 3) + cost(job(), 4)) / 2
    settings = job(max_epsilon=most, randomness="secure")

    def cut(record: dict[str, Any]) -> None:
        assert record["party"] == "lead", "a user in one process sees the leader's records"
        if record["epoch"] == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(settings, tmp_path / "run", progress=cut)
    run = resume(tmp_path / "run")
    for party in ("bank", "shop"):
        assert run.figures[party][-1].what == "an example's own reports in the run, sent 3 times"
        assert run.figures[party][-1].epsilon <= most


def test_a_limit_that_the_whole_run_keeps_changes_nothing(tmp_path: Path) -> None:
    said: list[str] = []
    free = train(job(), tmp_path / "free")
    bound = train(job(max_epsilon=cost(job(), 4)), tmp_path / "bound", say=said.append)
    for party in ("lead", "bank", "shop"):
        paths = [tmp_path / run / party / "model.safetensors" for run in ("free", "bound")]
        assert paths[0].read_bytes() == paths[1].read_bytes()
    assert bound.figures == free.figures
    assert not any("max_epsilon" in sentence for sentence in said)


def test_a_run_without_a_step_has_no_model(tmp_path: Path) -> None:
    with pytest.raises(LimitReached, match=r"^step 1 would bring an example of bank to epsilon"):
        train(job(max_epsilon=cost(job(), 1) / 2), tmp_path / "run")
    assert not list((tmp_path / "run").rglob("model.safetensors"))


def test_unprotected_values_are_never_sent_under_a_limit(tmp_path: Path) -> None:
    with pytest.raises(LimitReached, match=r"would send bank's values unprotected"):
        train(job(max_epsilon=100.0, embedding_dp=None), tmp_path / "run")


def test_an_evaluation_above_the_limit_is_refused_before_it_is_charged(tmp_path: Path) -> None:
    settings = job(max_epsilon=cost(job(), 4), randomness="secure")
    train(settings, tmp_path / "run")  # evaluated after epochs 3 and 4
    for times in (3, 4):
        _, figures = evaluate(tmp_path / "run")
        assert figures["bank"][-1].what == "an example's own reports in the run, sent 4 times", (
            times
        )
    for _ in range(2):
        with pytest.raises(
            LimitReached, match=r"evaluation 5 of the held-out examples would bring"
        ):
            evaluate(tmp_path / "run")


def test_the_limit_is_each_partys_own() -> None:
    assert job(max_epsilon=3.0).agreed() == job().agreed()
    assert math.isclose(job(max_epsilon=3.0).privacy.max_epsilon or 0, 3)


def test_a_peer_at_its_limit_is_not_a_failure() -> None:
    assert "its own" in str(PeerAtLimit("bank", "its own privacy.max_epsilon is reached"))


@pytest.mark.parametrize(("reuse", "releases"), [(False, 5), (True, 4)])
def test_a_row_that_is_scored_pays_anew_each_time(reuse: bool, releases: int) -> None:
    settings, label = job(reuse=reuse), LabelDP(0.7).loss
    most = cost(job(), releases)
    limit = Limit(split_of(settings), "bank", most, DELTA, label)
    assert limit.figure(2, labelled=False).epsilon < most
    assert limit.figure(2, labelled=False, scored=3).epsilon == most
    assert limit.allows(2, labelled=False, scored=3)
    assert not limit.allows(2, labelled=False, scored=4)
    assert not limit.allows(2, labelled=True, scored=3)
    if not reuse:
        limit.check("step 9", 5, labelled=False)
        with pytest.raises(LimitReached, match=r"^step 9 would bring"):
            limit.check("step 9", 5, labelled=True)


def test_the_cost_of_a_label_is_foreseen_too() -> None:
    label = LabelDP(0.7).loss
    for epsilon, warns in ((0.6, True), (0.8, False)):
        limit = Limit(split_of(job()), "lead", epsilon, DELTA, label)
        assert ("will end earlier" in (limit.forecast(3) or "")) == warns


def test_held_out_examples_have_a_count_of_their_own() -> None:
    releases = Releases(None, Order(0, 50, 9), fresh=False, epochs=4)
    releases.train[:] = 1
    releases.train[3], releases.looks = 2, 4
    names = ["x", "y,z", 'a "b"', "two\nlines", "", "x"]
    ids = {"train": np.arange(100, 150), "test": np.array(names)}
    text = StringIO(releases.table(ids).decode(), newline="")
    times = {103: 2}
    assert list(csv.reader(text)) == [
        ["subset", "id", "times"],
        *(["train", str(n), str(times.get(n, 1))] for n in range(100, 150)),
        *(["test", name, "4"] for name in names),
    ]
    assert list(csv.reader(StringIO(releases.table({"train": [], "test": []}).decode())))[4] == [
        "train", "3", "2"
    ]  # fmt: skip
    lines = figures(split_of(job()), "bank", releases, DELTA, None)
    assert lines[-1][::2] == (cost(job(), 4), "an example's own reports in the run, sent 4 times")
    bit, row, whole = (line.epsilon for line in lines[:3])
    assert 0 < bit < row <= whole


def test_restored_counts_are_those_of_the_steps_and_of_the_calibrations() -> None:
    order = Order(4, 50, 9, aside=7)
    for step in (0, 4, 5, 9, 13):
        releases = Releases(None, order, fresh=False, epochs=4)
        releases.restore(step, 2, calibrations=3)
        expected = np.zeros(50, np.int64)
        for number in range(1, step + 1):
            np.add.at(expected, order.of_step(number), 1)
        expected[order.set_aside] += 3
        assert releases.train.tolist() == expected.tolist()
        assert (releases.looks, releases.examples) == (2, int((expected > 0).sum()) - 7)
        releases.begin_calibration()
        expected[order.set_aside] += 1
        assert releases.train.tolist() == expected.tolist()


def test_an_evaluation_after_training_is_in_the_account_that_is_kept(tmp_path: Path) -> None:
    settings = job(randomness="secure").with_(epochs=1, evaluation={"every_epochs": None})
    train(settings, tmp_path / "run")
    for times in (1, 2, 3):
        _, figures = evaluate(tmp_path / "run")
        (*_, last) = read_accounts(tmp_path / "run" / "bank")
        assert (last.epsilon, last.what) == (figures["bank"][-1].epsilon, figures["bank"][-1].what)
        rows = csv.DictReader((tmp_path / "run" / "bank" / "sent.csv").open(newline=""))
        assert {row["times"] for row in rows if row["subset"] == "test"} == {str(times)}
