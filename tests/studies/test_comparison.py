"""The jobs that a comparison runs, and requests that it refuses before anything runs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

import fedveil
from comparing_parts import small_job
from fedveil.engine.budget import prepared
from fedveil.engine.target_epsilon import whole_run
from fedveil.errors import InvalidValue, JobError, ModelInvalid
from fedveil.federated.job import Job
from fedveil.studies import comparison
from fedveil.studies.comparison import Asked, Cell, Comparison, Goal, Setting


class Points(fedveil.Task):
    """A task of a user's own, whose accuracy has up to 100 points."""

    measures: ClassVar = {"accuracy": "higher"}

    def loss(self, outputs: Any, targets: Any) -> Any:
        return -(outputs * targets).mean()


def cells(job: Job, *protections: str, **asked: Any) -> list[Cell]:
    comparison = Comparison(job, Asked(protections=[*protections], **asked))
    return list(comparison.cells())


def jobs(found: list[Cell]) -> list[Job]:
    assert all(cell.job is not None for cell in found)
    return [cell.job for cell in found if cell.job is not None]


def test_a_cell_differs_from_the_job_in_what_was_asked_and_nothing_else() -> None:
    job = small_job(server={"weighting": "equal"})
    found = cells(job, "not_encrypt", "rr", seeds=2, sweep={"training.lr": ["0.1", "0.2"]})
    changes = [one.changes(job) for one in jobs(found)]
    assert len(changes) == 8
    assert changes[0] == ["training.lr = 0.1 where the run has 0.2"]
    assert changes[5] == [
        "seed = 8 where the run has 7",
        "training.lr = 0.1 where the run has 0.2",
        "protection.name = 'rr' where the run has 'not_encrypt'",
    ]
    assert len({cell.name for cell in found}) == 8
    assert [cell.seed for cell in found] == [7, 8] * 4


def test_clients_count_alike_in_every_cell() -> None:
    names = ("not_encrypt", "dp_encrypt")
    alone = jobs(cells(small_job(), "not_encrypt"))
    assert [job.server.weighting for job in alone] == ["equal"]
    assert [job.server.weighting for job in jobs(cells(small_job(), *names))] == ["equal"] * 2
    said = small_job(server={"weighting": "by_size"})
    assert [job.server.weighting for job in jobs(cells(said, "not_encrypt"))] == ["by_size"]
    with pytest.raises(JobError) as refused:
        cells(said, *names)
    assert refused.value.problems == (
        "dp_encrypt cannot be compared here: server.weighting = by_size reveals to the server how "
        "much data each client has and breaks the sensitivity of local privacy; under "
        "protection.name = dp_encrypt only equal is allowed",
    )


def test_a_comparison_charges_no_account_an_infinite_epsilon(tmp_path: Path) -> None:
    account = str(tmp_path / "account")
    job = small_job(privacy={"account": account})
    for names in (["not_encrypt"], ["rr", "not_encrypt"]):
        with pytest.raises(JobError) as refused:
            cells(job, *names)
        (problem,) = refused.value.problems
        assert f"a run under not_encrypt would charge privacy.account = {account} an inf" in problem
    assert [run.privacy.account for run in jobs(cells(job, "rr"))] == [account]
    assert len(cells(job.with_({"privacy.account": None}), "not_encrypt")) == 1


def test_a_position_is_swept_over_the_keys_that_it_reads() -> None:
    sweep = {"protection.unary.eps": ["0.6", "1.2"], "protection.dp_encrypt.dp_eps": ["5"]}
    found = cells(small_job(), "not_encrypt", "dp_encrypt", "rr", "oue", sweep=sweep)
    assert [str(cell.setting) for cell in found] == [
        "not_encrypt",
        "dp_encrypt, protection.dp_encrypt.dp_eps 5",
        "rr, protection.unary.eps 0.6",
        "rr, protection.unary.eps 1.2",
        "oue, protection.unary.eps 0.6",
        "oue, protection.unary.eps 1.2",
    ]


def test_positions_are_brought_to_equal_promises() -> None:
    names = ("not_encrypt", "pw_encrypt", "dp_encrypt", "central_gaussian", "signds")
    block = {"pw_encrypt": {"reconstruct_secrets_threshold": 3}}
    found = cells(small_job(protection=block), *names, epsilons=[2.0, 8.0])
    assert [cell.setting.epsilon for cell in found] == [None, None, *[2.0, 8.0] * 3]
    for cell, job in zip(found[2:], jobs(found[2:]), strict=True):
        spent = whole_run(prepared(job)[1], job.rounds, job.privacy.delta).epsilon
        assert cell.setting.epsilon is not None
        assert 0.98 * cell.setting.epsilon < spent <= cell.setting.epsilon


def test_a_swept_key_counts_when_an_epsilon_is_solved_for() -> None:
    found = cells(small_job(), "dp_encrypt", epsilons=[3.0], sweep={"rounds": ["2", "7"]})
    assert [job.rounds for job in jobs(found)] == [2, 7]
    for job in jobs(found):
        spent = whole_run(prepared(job)[1], job.rounds, job.privacy.delta).epsilon
        assert 0.98 * 3 < spent <= 3


def test_an_epsilon_that_a_position_cannot_have_is_a_line_and_no_refusal() -> None:
    first, second = cells(small_job(rounds=20), "dp_encrypt", epsilons=[0.01, 8.0])
    assert (first.job, second.reason) == (None, "")
    assert first.reason.startswith("no protection.dp_encrypt.dp_eps brings the run to epsilon 0.01")
    assert second.job is not None


def test_what_was_solved_for_is_not_solved_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    asked = Asked(protections=["dp_encrypt"], epsilons=[2.0], seeds=3)
    once = Comparison(small_job(), asked)
    first = jobs(list(once.cells(told.append)))
    assert told == ["looking for the parameters of dp_encrypt, epsilon 2"]
    again = jobs(list(Comparison(small_job(), asked, once.solutions).cells(told.append)))
    assert len(told) == 1
    assert again == first


def test_a_key_that_a_search_clears_is_written_as_null(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {"protection.central_gaussian.target_epsilon": 0.75,
            "protection.central_gaussian.noise_multiplier": None}  # fmt: skip
    monkeypatch.setattr(comparison, "solve", lambda *_: SimpleNamespace(keys=keys))
    (cell,) = cells(small_job(), "central_gaussian", epsilons=[2.0])
    assert cell.job is not None
    settings = cell.job.protection.settings.model_dump()
    assert (settings["target_epsilon"], settings["noise_multiplier"]) == (0.75, None)


def test_every_position_that_the_job_cannot_have_is_named() -> None:
    with pytest.raises(JobError) as refused:
        cells(
            small_job(clients={"number": 2, "fraction": 1.0}), "not_encrypt", "pw_encrypt", "magic"
        )
    assert refused.value.problems == (
        "pw_encrypt cannot be compared here: protection.pw_encrypt.share_secrets_ratio = 1 lets 2 "
        "of 2 clients a round share secrets, and secure aggregation needs at least 3: raise "
        "clients.number or clients.fraction",
        "magic cannot be compared here: protection = 'magic' is neither one of not_encrypt, "
        "dp_encrypt, pw_encrypt, distributed_dp, central_gaussian, signds, rr, oue nor "
        "package.module:function",
    )


def test_positions_with_one_problem_are_named_together(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: Comparison, position: str) -> list[Setting]:
        if position == "not_encrypt":
            return [Setting(position)]
        raise JobError(["a round is too small"])

    monkeypatch.setattr(Comparison, "_of_position", refused)
    with pytest.raises(JobError) as told:
        cells(small_job(), "rr", "not_encrypt", "signds")
    assert told.value.problems == ("rr, signds cannot be compared here: a round is too small",)
    with pytest.raises(JobError) as told:
        cells(small_job(), "rr", "signds")
    assert told.value.problems == ("a round is too small",)


def test_buffers_are_refused_before_anything_is_trained() -> None:
    with pytest.raises(JobError, match=r"^rr cannot be compared here: .* 1\.running_mean"):
        cells(small_job(model="parts:net"), "not_encrypt", "rr")


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"sweep": {"training.rate": ["1"]}}, "training.rate = 1 is not a known key"),
        ({"sweep": {"training.lr": ["-1"]}}, "training.lr = -1 is outside"),
        ({"sweep": {"training.lr": ["1", "1"]}}, "--sweep training.lr has 1 twice"),
        ({"epsilons": [2.5, 1.0, 2.5]}, "--epsilons has 2.5 twice"),
        ({"protections": ["rr", "dp_encrypt", "rr"]}, "--protections has rr twice"),
        ({"target": "speed=3"}, "--target speed=3 is not METRIC=NUMBER with one of accuracy"),
        ({"target": "accuracy=high"}, "--target accuracy=high is not METRIC=NUMBER"),
        ({"target": ""}, "--target '' is not METRIC=NUMBER with one of accuracy"),
        ({"target": "loss=nan"}, "--target loss=nan is not METRIC=NUMBER"),
        ({"target": "loss=inf"}, "--target loss=inf is not METRIC=NUMBER"),
        ({"target": "loss=-0.5"}, "--target loss=-0.5: loss is at least 0"),
        ({"target": "auc=2"}, "--target auc=2: AUC is at most 1. For 2%, write auc=0.02"),
        (
            {"epsilons": [1.0], "sweep": {"protection.dp_encrypt.dp_eps": ["3"]}},
            "--epsilons looks for protection.dp_encrypt.dp_eps, which --sweep sets",
        ),
    ],
)
def test_what_cannot_be_asked_has_a_sentence(asked: dict[str, Any], sentence: str) -> None:
    with pytest.raises(JobError) as refused:
        cells(small_job(), *asked.pop("protections", ["dp_encrypt"]), **asked)
    (problem,) = refused.value.problems
    assert problem.startswith(sentence)  # what no position can have is not one's own


def test_secret_cohorts_are_not_alike_and_it_is_said() -> None:
    clients = {"number": 8, "fraction": 0.5, "sampling": "poisson"}
    asked = Asked(protections=["not_encrypt"])
    assert not Comparison(small_job(clients=clients), asked).notes
    assert not Comparison(small_job(privacy={"randomness": "secure"}), asked).notes
    secret = Comparison(small_job(clients=clients, privacy={"randomness": "secure"}), asked)
    (note,) = secret.notes
    assert note.endswith("no two runs meet the same clients")


def test_a_loss_is_reached_from_above() -> None:
    assert Goal.of("accuracy=0.9").reached(0.9)
    assert not Goal.of("accuracy=0.9").reached(0.89)
    assert Goal.of("loss=0.5").reached(0.5)
    assert Goal.of("loss=0.5").reached(0.4)
    assert not Goal.of("loss=0.5").reached(0.6)


def test_a_goal_is_one_of_the_tasks_own_metrics_in_its_direction() -> None:
    asked = Asked(protections=["not_encrypt"], target="rmse=2.5")
    goal = Comparison(small_job(task="regression"), asked).goal
    assert goal == Goal("rmse", 2.5, "lower")
    assert goal.reached(2.4)
    assert not goal.reached(2.6)
    assert Goal.of("r2=0.5", {"r2": "higher"}).reached(0.6)
    with pytest.raises(JobError, match=r"R² is at most 1$"):
        Goal.of("r2=1.5", {"r2": "higher"})
    with pytest.raises(JobError, match="not METRIC=NUMBER with one of rmse, loss"):
        Goal.of("accuracy=0.9", {"rmse": "lower"})


def test_a_metric_of_a_users_own_task_may_have_any_range() -> None:
    own = small_job(task="test_comparison:Points")
    for target, value in (("accuracy=90", 90.0), ("loss=-3", -3.0)):
        asked = Asked(protections=["not_encrypt"], target=target)
        goal = Comparison(own, asked).goal
        assert goal is not None
        assert goal.value == value


def test_a_setting_is_told_with_all_that_it_changes() -> None:
    changes = {"training.lr": "0.25", "rounds": "30"}
    assert str(Setting("rr", changes, 2.125)) == "rr, training.lr 0.25, rounds 30, epsilon 2.13"
    assert str(Setting("rr")) == "rr"


@pytest.mark.parametrize("kind", [InvalidValue, ModelInvalid])
def test_whatever_makes_a_position_impossible_is_named_with_the_position(
    kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(job: Job) -> Any:
        if job.protection.name == "rr":
            raise kind("the model has no weights")
        return prepared(job)

    monkeypatch.setattr(comparison, "prepared", refused)
    with pytest.raises(JobError) as told:
        cells(small_job(), "not_encrypt", "rr")
    assert told.value.problems == ("rr cannot be compared here: the model has no weights",)
