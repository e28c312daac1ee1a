"""A job's copies: what the job did not set is derived again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedveil.errors import JobError
from fedveil.federated.job import Job
from fedveil.vertical.job import VerticalJob


def test_a_copy_derives_again_what_the_job_did_not_set() -> None:
    """Without protection clients count by their size, and equally if reports are perturbed."""
    plain = Job.load(None, ["protection=not_encrypt"])
    assert plain.server.weighting == "by_size"
    assert plain.with_({"protection.name": "rr"}).server.weighting == "equal"
    chosen = Job.load(None, ["protection=not_encrypt", "server.weighting=equal"])
    assert chosen.with_({"rounds": 7}).server.weighting == "equal"


def test_a_copy_keeps_what_it_is_not_told_to_change() -> None:
    job = Job.load(None, ["training.lr=0.3", "training.epochs=4", "protection.dp_encrypt.dp_eps=2"])
    copy = job.with_({"training.lr": 0.5, "clients": {"number": 7}}, rounds=5, seed=9)
    assert (copy.training.lr, copy.training.epochs) == (0.5, 4)
    assert (copy.rounds, copy.seed, copy.clients.number, copy.clients.fraction) == (5, 9, 7, 0.5)
    assert copy.protection.dp_encrypt.dp_eps == 2.0
    assert (job.training.lr, job.rounds) == (0.3, 20)
    assert copy.changes(job) == [
        "seed = 9 where the run has 0", "rounds = 5 where the run has 20",
        "clients.number = 7 where the run has 100", "training.lr = 0.5 where the run has 0.3",
    ]  # fmt: skip
    with pytest.raises(JobError) as refused:
        job.with_({"training.lr": -1.0}, rounds=0)
    assert [problem.split(" ")[0] for problem in refused.value.problems] == [
        "rounds",
        "training.lr",
    ]


def test_a_wrong_setting_and_a_wrong_key_of_the_job_are_told_together() -> None:
    with pytest.raises(JobError) as refused:
        Job.read({"rounds": 0}, ["speed=3"])
    assert [problem.split(" ")[0] for problem in refused.value.problems] == ["speed", "rounds"]


def test_a_job_is_also_named_by_its_file_or_its_keys(tmp_path: Path) -> None:
    job = Job(rounds=7, seed=3)
    file = tmp_path / "job.yaml"
    file.write_text("rounds: 7\nseed: 3\n")
    assert Job.of(job) is job
    assert Job.of(file) == Job.of(str(file)) == Job.of({"rounds": 7, "seed": 3}) == job


@pytest.mark.parametrize(
    "overrides",
    ["rounds=5", {"rounds": 5}, [{"rounds": 5}], [3], 3, None, Path("rounds=5"), iter(["a=5"])],
)
def test_overrides_of_a_wrong_kind_are_one_sentence(overrides: Any, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("rounds: 7\n")
    with pytest.raises(JobError) as refused:
        Job.load(file, overrides)
    (said,) = refused.value.problems
    assert said.startswith("overrides = ")
    assert said.endswith(' is not a list of texts such as ["rounds=5", "seed=3"]')


@pytest.mark.parametrize("given", ["job.yaml", Path("job.yaml"), ["rounds=5"], 3, None])
def test_a_job_made_from_something_without_a_name_is_told_about_load(given: Any) -> None:
    with pytest.raises(JobError, match=r"names no key: write Job\(seed=3\), or Job\.load"):
        Job(given)


def test_a_job_made_from_a_mapping_is_told_about_the_asterisks() -> None:
    with pytest.raises(JobError) as refused:
        Job({"rounds": 5})
    (said,) = refused.value.problems
    named = "Job({'rounds': 5}) names no key"
    assert said == f"{named}: put two asterisks before the mapping, as in Job(**keys)"
    assert Job(rounds=5).rounds == 5


@pytest.mark.parametrize("keys", ["rounds=5", ["rounds=5"], 3])
def test_a_change_that_is_no_mapping_is_one_sentence(keys: Any) -> None:
    with pytest.raises(JobError, match=r'is not a mapping such as \{"training.lr": 0.1\}$'):
        Job().with_(keys)


@pytest.mark.parametrize("load", [Job.load, Job.convert, VerticalJob.load])
@pytest.mark.parametrize("path", [3, b"job.yaml", ["job.yaml"]])
def test_a_job_file_that_is_no_path_is_one_sentence(load: Any, path: Any) -> None:
    with pytest.raises(JobError) as refused:
        load(path)
    assert str(refused.value) == f"path = {path!r} is not a path: use text or a pathlib.Path"


@pytest.mark.parametrize("load", [Job.load, Job.convert, VerticalJob.load])
def test_an_empty_name_of_a_job_file_is_not_the_current_folder(load: Any) -> None:
    with pytest.raises(JobError, match=r"^path = '' is empty: name a job's file$"):
        load("")


def test_a_job_is_shown_as_the_code_that_makes_it() -> None:
    assert repr(Job()) == "Job()"
    job = Job.load(None, ["rounds=3", "training.lr=0.3", "protection=rr", "name=a'b"])
    shown = repr(job)
    assert str(job) == shown
    assert shown == (
        """Job(name="a'b", rounds=3, training={'lr': 0.3}, server={'weighting': 'equal'}, """
        """protection={'name': 'rr'})"""
    )
    assert eval(shown, {"Job": Job}) == job
    assert repr(Job(**job.model_dump())) == shown  # also if every key was written
