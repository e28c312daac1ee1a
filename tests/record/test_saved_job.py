"""A run resumes only with the job with which it began."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest

import parts
from fedveil.errors import InvalidValue, JobError, RunFolderError
from fedveil.federated.job import Job
from fedveil.record.run_folder import RunFolder
from fedveil.record.saved_job import (
    import_roots,
    keep_imports,
    keep_job,
    look_beside,
    look_where_a_run_looked,
    reopen,
)
from folders import SUPPORT


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The folder of a run that was begun."""
    folder = RunFolder.create(tmp_path / "run")
    keep_job(folder, Job(), ["parts:data", "digits", "parts:plain", "never_imported:f"])
    folder.close()
    return tmp_path / "run"


def job_of(path: Path) -> Job:
    with ExitStack() as stack:
        return reopen(path, Job.load, stack)[1]


def test_a_reopened_run_has_its_job_and_finds_its_modules(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place != str(SUPPORT)])
    assert parts.data  # it is imported
    assert (path / "imports.txt").read_text() == f"{SUPPORT}\n"
    with ExitStack() as stack:
        _, job = reopen(path, Job.load, stack)
        assert job == Job()
        assert sys.path[-1] == str(SUPPORT)
        assert look_where_a_run_looked(path)
        assert sys.path.count(str(SUPPORT)) == 1
        with pytest.raises(RunFolderError, match="in use"):
            RunFolder.reopen(path)
    RunFolder.reopen(path).close()


@pytest.mark.parametrize("last", range(6))
def test_a_run_that_is_killed_while_its_job_is_saved_can_be_resumed_or_begun_again(
    last: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the import paths, a resumption from another folder finds no modules of the user."""
    left, whole = last, RunFolder.write_atomically

    def killed(folder: RunFolder, name: str, data: bytes) -> None:
        nonlocal left
        part = folder.path / f"{name}.part"
        writes: list[Callable[[], object]] = [
            partial(part.write_bytes, b"cut"),
            partial(whole, folder, name, data),
        ]
        for write in writes:
            if not left:
                raise KeyboardInterrupt
            left -= 1
            write()

    folder = RunFolder.create(tmp_path / "run")
    (folder.path / "checkpoint").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "write_atomically", killed)
        with pytest.raises(KeyboardInterrupt):
            keep_job(folder, Job(), ["parts:data"])
    folder.close()
    assert not (folder.path / "job.yaml").exists()
    again = RunFolder.create(folder.path)
    keep_job(again, Job(), ["parts:data"])
    again.close()
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place != str(SUPPORT)])
    assert job_of(folder.path) == Job()
    assert sys.path[-1] == str(SUPPORT)


def test_a_job_that_was_edited_is_refused_by_the_keys_that_changed(path: Path) -> None:
    before = (path / "job.yaml").read_text()
    job = Job(protection="signds", training={"lr": 0.5}, seed=3)
    (path / "job.yaml").write_text(job.to_yaml())
    with pytest.raises(RunFolderError) as refusal:
        job_of(path)
    sentence = str(refusal.value)
    assert f"{path / 'job.yaml'} was changed after the run began: " in sentence
    assert "seed = 3 where the run has 0" in sentence
    assert "training.lr = 0.5 where the run has " in sentence
    assert "protection.name = 'signds' where the run has 'not_encrypt'" in sentence
    assert sentence.count(" where the run has ") == len(job.changes(Job())) == 4
    (path / "job.yaml").write_text(f"# a remark\n{before}")
    assert job_of(path) == Job()


def test_the_copy_that_tells_is_there_and_whole(path: Path) -> None:
    copy = path / "checkpoint" / "job.yaml"
    copy.write_text("rounds: many\n")
    with pytest.raises(RunFolderError, match=f"{copy} is damaged: rounds = 'many'"):
        job_of(path)
    copy.unlink()
    with pytest.raises(RunFolderError, match=f"{copy} is missing, the job that the run began"):
        job_of(path)


def test_a_run_that_was_killed_before_its_job_was_written_gives_its_folder_back(path: Path) -> None:
    (path / "job.yaml").unlink()
    (path / "imports.txt").unlink()
    with pytest.raises(RunFolderError, match=f"{path} is not a run's folder: it has no job.yaml"):
        job_of(path)
    folder = RunFolder.create(path)
    keep_job(folder, Job(seed=3), [])
    folder.close()
    assert job_of(path) == Job(seed=3)


def test_a_run_killed_before_its_job_was_written_has_no_states_of_clients(path: Path) -> None:
    (path / "job.yaml").unlink()
    (path / "imports.txt").unlink()
    (path / "clients").mkdir()
    (path / "clients" / "3-1").touch()
    with pytest.raises(RunFolderError, match="is not empty: name another folder"):
        RunFolder.create(path)
    (path / "clients" / "3-1").unlink()
    RunFolder.create(path).close()


def test_a_run_that_was_killed_before_its_imports_were_written_has_no_other_job(path: Path) -> None:
    (path / "imports.txt").unlink()
    assert job_of(path) == Job()
    (path / "job.yaml").write_text(Job(seed=3).to_yaml())
    with pytest.raises(RunFolderError, match="changed after the run began: seed = 3 where the run"):
        job_of(path)
    copy = path / "checkpoint" / "job.yaml"
    copy.write_text("rounds: many\n")
    with pytest.raises(RunFolderError, match=f"{copy} is damaged: rounds = 'many'"):
        job_of(path)


def test_a_run_whose_rounds_were_raised_is_resumed_with_all_of_them(path: Path) -> None:
    folder, longer = RunFolder.reopen(path), Job().with_rounds(Job().rounds + 3)
    keep_job(folder, longer, ["parts:data"])
    folder.close()
    assert job_of(path) == longer
    (path / "job.yaml").write_text(Job().to_yaml())
    with pytest.raises(RunFolderError, match="was changed after the run began: rounds = "):
        job_of(path)


def test_functions_beside_a_job_file_are_found_from_every_folder(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place != str(SUPPORT)])
    monkeypatch.chdir(path.parent)
    look_beside(Path("run") / "job.yaml")
    monkeypatch.chdir("/")
    assert sys.path[-2:] == [str(path.resolve()), str(SUPPORT)]


def test_rounds_may_be_raised_and_not_lowered() -> None:
    assert Job(rounds=5).with_rounds(7) == Job(rounds=7)
    assert Job(rounds=5).with_rounds(5) == Job(rounds=5)
    with pytest.raises(InvalidValue, match="rounds = '7' is not a whole number"):
        Job(rounds=5).with_rounds("7")  # type: ignore[arg-type]
    with pytest.raises(JobError, match="rounds = 4 is fewer than the 5 of the run"):
        Job(rounds=5).with_rounds(4)


@pytest.mark.parametrize("module", ["own_package", "own_package.inner", "own_package.inner.leaf"])
def test_a_function_of_a_package_is_found_from_elsewhere(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder that is saved holds the package; it is not the package's own folder."""
    code = tmp_path / "code"
    (code / "own_package" / "inner").mkdir(parents=True)
    for file in ("__init__.py", "inner/__init__.py", "inner/leaf.py"):
        (code / "own_package" / file).write_text("def f(): ...\n")
    monkeypatch.syspath_prepend(str(code))
    for name in [name for name in sys.modules if name.startswith("own_package")]:
        monkeypatch.delitem(sys.modules, name)
    importlib.import_module(module)
    folder = RunFolder.create(tmp_path / "run")
    keep_job(folder, Job(), [f"{module}:f", "parts:data", f"{module}:g"])
    folder.close()
    assert (tmp_path / "run" / "imports.txt").read_text() == f"{code}\n{SUPPORT}\n"


@pytest.mark.parametrize("name", ["bytes \udcff", "line\u2028separator", "tabs\x0b\x85"])
def test_a_module_is_found_again_whatever_its_folder_is_called(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("own_module")
    module.__file__ = str(tmp_path / name / "own_module.py")
    monkeypatch.setitem(sys.modules, "own_module", module)
    monkeypatch.setattr(sys, "path", [*sys.path])
    folder = RunFolder.create(tmp_path / "run")
    keep_imports(folder, ["own_module:f"])
    folder.close()
    before = [*sys.path]
    assert look_where_a_run_looked(tmp_path / "run")
    assert sys.path == [*before, str(tmp_path / name)]


def test_only_a_function_has_a_folder_of_its_own() -> None:
    """A bundled data set may be called as a module is."""
    assert [*import_roots("parts")] == []
    assert [*import_roots("parts:data")] == [SUPPORT]
