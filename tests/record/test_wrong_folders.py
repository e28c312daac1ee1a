"""Sentences about folders that hold no run, another thing, or half of one."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from fedveil.base.files import PARTIAL
from fedveil.errors import MessageInvalid, RunFolderError
from fedveil.federated.job import Job
from fedveil.record.finding_lines import FINDINGS
from fedveil.record.run_folder import explained, held_in, make_folder, refuse_taken
from fedveil.record.saved_job import reopen
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
    for name in (".lock", "traceback.txt", f"job.yaml{PARTIAL}"):
        (free / name).touch()
    for path in (None, free, tmp_path / "new" / "deep"):
        refuse_taken(path)
    (taken / "mine").touch()
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


def in_another_order() -> str:
    """Return a job with every key, as a run writes it, but with its first two lines swapped."""
    first, second, *rest = Job(rounds=3).to_yaml().splitlines(keepends=True)
    return "".join([second, first, *rest])


@pytest.mark.parametrize(
    ("text", "attacked", "why"),
    [
        ("rounds: 3\n", False, "holds a job file, and no run that could be resumed"),
        (in_another_order(), False, "holds a job file, and no run that could be resumed"),
        (Job(rounds=3).to_yaml(), True, "holds what attacks found of a job, and no run"),
        (Job(rounds=3).to_yaml(), False, None),  # a run that was killed when it had just begun
    ],
)
def test_a_folder_without_a_run_is_not_resumed(
    text: str, attacked: bool, why: str | None, tmp_path: Path
) -> None:
    (tmp_path / "job.yaml").write_text(text)
    if attacked:
        (tmp_path / FINDINGS).touch()
    with ExitStack() as stack:
        if why is None:
            assert reopen(tmp_path, Job.load, stack)[1].rounds == 3
        else:
            with pytest.raises(RunFolderError, match=f"^{tmp_path} {why}"):
                reopen(tmp_path, Job.load, stack)


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
