"""Sentences about folders that hold no run, another thing, or half of one."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from fedveil.base.files import PARTIAL
from fedveil.errors import MessageInvalid, RunFolderError
from fedveil.federated.job import Job
from fedveil.record.finding_lines import FINDINGS
from fedveil.record.run_folder import RunFolder, explained, held_in, make_folder, refuse_taken
from fedveil.record.saved_job import BEGAN, keep_job, reopen
from fedveil.record.sealed_message import intact


def test_what_a_folder_lacks_is_named(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    said = {tmp_path / "none": "there is no such folder", tmp_path: "it has no job.yaml"}
    for path, why in said.items():
        with pytest.raises(RunFolderError, match=f"^{path} is not a run's folder: {why}$"):
            held_in(path, "job.yaml", "a run's folder")
    file.touch()
    assert held_in(tmp_path, "job.yaml", "a run's folder") == file
    (tmp_path / "other").touch()
    for path, why in ((file, f"it is a file. Its folder is {tmp_path}"),
                      (tmp_path / "other", "it is a file")):  # fmt: skip
        with pytest.raises(RunFolderError, match=f"is not a run's folder: {why}$"):
            held_in(path, "job.yaml", "a run's folder")


def test_a_folder_that_is_taken_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    taken, free, file = tmp_path / "taken", tmp_path / "free", tmp_path / "file"
    for folder in (taken, free):
        folder.mkdir()
    file.touch()
    (free / "checkpoint").mkdir()
    for name in (".lock", "traceback.txt", f"job.yaml{PARTIAL}", BEGAN, f"{BEGAN}{PARTIAL}"):
        (free / name).touch()
    for path in (None, free, tmp_path / "new" / "deep"):
        refuse_taken(path)
    (taken / "mine").touch()
    with pytest.raises(RunFolderError, match=f"^{taken} is not empty: name another folder$"):
        refuse_taken(taken)
    (taken / "job.yaml").touch()  # as `fedveil init` writes it: there is no run to resume
    with pytest.raises(RunFolderError, match=f"^{taken} is not empty: name another folder$"):
        refuse_taken(taken)
    for name in ("mine", "job.yaml"):
        (taken / name).unlink()
    (taken / "checkpoint").mkdir()
    (taken / "checkpoint" / "latest").touch()
    with pytest.raises(RunFolderError, match=f"^{taken} is not empty: name another folder$"):
        refuse_taken(taken)
    (taken / "job.yaml").touch()
    with pytest.raises(RunFolderError, match=f"resume that run with `a b --resume {taken}`$"):
        refuse_taken(taken, "a b")
    with pytest.raises(RunFolderError, match=r"name another folder$"):
        refuse_taken(taken, None)
    deep = file / "x" / "y"
    for call in (refuse_taken, make_folder):
        with pytest.raises(RunFolderError, match=f"^{deep} .*: {file} is a file, not a folder$"):
            call(deep)


@pytest.mark.parametrize(
    ("beside", "why"),
    [
        (None, "holds a job file, and no run that could be resumed"),
        (FINDINGS, "holds what attacks found of a job, and no run"),
        (BEGAN, None),  # a run that was killed when it had just begun
    ],
)
def test_a_folder_without_a_run_is_not_resumed(
    beside: str | None, why: str | None, tmp_path: Path
) -> None:
    (tmp_path / "job.yaml").write_text(Job(rounds=3).to_yaml())
    if beside is not None:
        (tmp_path / beside).parent.mkdir(exist_ok=True)
        (tmp_path / beside).write_text(Job(rounds=3).to_yaml())
    with ExitStack() as stack:
        if why is None:
            assert reopen(tmp_path, Job.load, stack)[1].rounds == 3
        else:
            with pytest.raises(RunFolderError, match=f"^{tmp_path} {why}"):
                reopen(tmp_path, Job.load, stack)


def test_a_part_of_a_run_is_told_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunFolder.create(tmp_path / "run")
    keep_job(run, Job(rounds=3), [])
    bundle = run.within("bank").within("bundle")
    bundle.write_atomically("job.yaml", Job(rounds=3).to_yaml().encode())
    before = sorted(tmp_path.rglob("*"))
    parts = (run.path / "checkpoint", run.path / "bank", bundle.path)
    for part in parts:
        with ExitStack() as stack, pytest.raises(RunFolderError) as refusal:
            reopen(part, Job.load, stack)
        assert str(refusal.value) == (
            f"{part} is not a run's folder: it is a part of the run in {run.path}. Name that folder"
        )
    monkeypatch.chdir(run.path / "checkpoint")
    with ExitStack() as stack, pytest.raises(RunFolderError, match=f"run in {run.path}. Name"):
        reopen(".", Job.load, stack)
    assert sorted(tmp_path.rglob("*")) == before
    own = RunFolder.create(bundle.path.parent / "own")
    keep_job(own, Job(rounds=4), [])
    own.close()
    with ExitStack() as stack:
        assert reopen(own.path, Job.load, stack)[1].rounds == 4


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (KeyError("epsilon"), "is damaged: the key epsilon is missing"),
        (IndexError("no entry 7"), "is damaged: no entry 7"),
        (MessageInvalid("one\ntwo"), "is damaged: one; two"),
        (ValueError(), "is damaged: ValueError"),
        (PermissionError(13, "Permission denied"), "cannot be read: Permission denied"),
    ],
)
def test_what_is_wrong_in_a_file_is_one_sentence(error: Exception, sentence: str) -> None:
    with pytest.raises(RunFolderError, match=f"^a or b {sentence}$"), intact(Path("a"), Path("b")):
        raise error


def test_the_file_that_cannot_be_written_is_named() -> None:
    for error, named in ((OSError(28, "No space left", "x/y"), "x/y"), (OSError(28, "full"), "r")):
        with pytest.raises(RunFolderError, match=f"^{named} cannot be written: "):  # noqa: SIM117
            with explained(Path("r")):
                raise error
