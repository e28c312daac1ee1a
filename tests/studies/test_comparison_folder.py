"""A comparison's folder: all cells start alike, and an unfinished one is resumed."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedveil
import parts
from comparing_parts import compared, small_job
from fedveil.attacks.membership import membership
from fedveil.engine import federation, simulation
from fedveil.engine.executors.in_process import InProcess
from fedveil.engine.federation import Federation
from fedveil.engine.round_checkpoint import Checkpoint
from fedveil.entry import simulation as entry
from fedveil.errors import (
    AttackImpossible,
    FolderInUse,
    ModelInvalid,
    OutputLost,
    RunFailed,
    RunFolderError,
    RunStopped,
)
from fedveil.pages.read_run import ReadRun, read_run
from fedveil.privacy.finding import Finding, Measured
from fedveil.protections.base import RoundContext
from fedveil.record.finding_lines import FINDINGS, add_finding
from fedveil.record.recorder import ADVICE
from fedveil.record.run_folder import IMPORTS, JOB, METRICS, MODEL, RunFolder
from fedveil.run_display import of_run
from fedveil.studies import comparison, comparison_folder, several_runs
from fedveil.studies.comparison import Asked, Cell, Comparison, Setting
from fedveil.studies.comparison_folder import COMPARISON, ComparisonFolder, Result
from fedveil.studies.comparison_table import _remarks
from fedveil.studies.several_runs import ended_run, other_than, resumed_by


def test_all_positions_of_a_seed_begin_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[RoundContext] = []
    dealt: list[bytes] = []
    open_round, deal = InProcess.open, simulation.make_shares

    def seen(self: InProcess, context: RoundContext) -> None:
        opened.append(RoundContext(list(context.cohort), context.round, context.model.copy()))
        open_round(self, context)

    def dealing(*arguments: Any) -> Any:
        partition, held = deal(*arguments)
        dealt.append(partition.indices.tobytes() + partition.offsets.tobytes())
        return partition, held

    monkeypatch.setattr(InProcess, "open", seen)
    monkeypatch.setattr(simulation, "make_shares", dealing)
    names = ("not_encrypt", "dp_encrypt", "signds", "rr", "oue", "central_gaussian")
    results = compared(tmp_path / "c", *names, seeds=2)
    assert len(results) == len(dealt) == 12
    by_run = [opened[i : i + 2] for i in range(0, len(opened), 2)]
    starts = [(run[0].model.tobytes(), [r.cohort for r in run]) for run in by_run]
    for seed in (0, 1):
        mine = starts[seed::2]
        assert len(mine) == len(names)
        assert all(start == mine[0] for start in mine)
        assert len(set(dealt[seed::2])) == 1
        assert len({run[1].model.tobytes() for run in by_run[seed::2]}) == len(names)
    assert starts[0] != starts[1]
    assert dealt[0] != dealt[1]
    assert not np.array_equal(by_run[0][0].model, by_run[1][0].model)


def test_finished_cells_are_read_and_a_begun_one_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("not_encrypt", "dp_encrypt", "rr")
    whole = compared(tmp_path / "whole", *names)
    rounds: list[int] = []
    play = Federation._round

    def cut(self: Federation, number: int) -> Any:
        if len(rounds) == 3:  # in the second cell, after its first round
            rounds.append(0)
            raise KeyboardInterrupt
        rounds.append(number)
        return play(self, number)

    monkeypatch.setattr(Federation, "_round", cut)
    with pytest.raises(KeyboardInterrupt) as end:
        compared(tmp_path / "cut", *names)
    path = tmp_path / "cut"
    assert end.value.__notes__ == [f"`fedveil compare --resume {path}` resumes from here"]
    rounds[:] = [0] * 4
    again = compared(path, *names)
    assert rounds[4:] == [2, 1, 2]  # what is left of the second, and the third
    for one, other in zip(whole, again, strict=True):
        assert one.run is not None
        assert other.run is not None
        assert (one.run.folder / MODEL).read_bytes() == (other.run.folder / MODEL).read_bytes()


def test_more_can_be_asked_of_a_comparison_and_less(tmp_path: Path) -> None:
    compared(tmp_path / "c", "not_encrypt")
    before = [*(tmp_path / "c").rglob(METRICS)]
    stamps = [path.stat().st_mtime_ns for path in before]
    more = compared(tmp_path / "c", "not_encrypt", "rr", seeds=2)
    assert len(more) == 4
    assert [path.stat().st_mtime_ns for path in before] == stamps
    assert len(compared(tmp_path / "c", "rr")) == 1


def test_what_was_solved_for_is_taken_over_from_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = compared(tmp_path / "c", "dp_encrypt", epsilons=[2.0])

    def solve(*arguments: Any) -> None:
        raise AssertionError("solved again")

    monkeypatch.setattr(comparison, "solve", solve)
    again = compared(tmp_path / "c", "dp_encrypt", epsilons=[2.0], seeds=2)
    assert again[0].cell == first[0].cell
    assert [result.failure for result in again] == ["", ""]


def test_another_job_is_refused_by_what_changed(tmp_path: Path) -> None:
    path = tmp_path / "c"
    compared(path, "not_encrypt")
    with pytest.raises(RunFolderError) as refused:
        compared(path, "not_encrypt", job=small_job(training={"lr": 0.3}))
    assert str(refused.value).startswith(f"{path} compares another job: training.epochs = 10 where")
    assert "training.lr = 0.3 where the run has 0.2" in str(refused.value)
    (run,) = (path / "runs").iterdir()
    text = (run / "job.yaml").read_text()
    (run / "job.yaml").write_text(text.replace("lr: 0.2", "lr: 0.4"))
    with pytest.raises(RunFolderError) as refused:
        compared(path, "not_encrypt")
    assert str(refused.value) == (
        f"{run} was begun with another job: training.lr = 0.2 where the run has 0.4: put that "
        f"back, or name another folder"
    )


def test_another_weighting_is_refused_before_the_folder_changes(tmp_path: Path) -> None:
    def opened(weighting: str) -> None:
        comparison = Comparison(small_job(server={"weighting": weighting}), asked)
        with ExitStack() as stack:
            ComparisonFolder.open(tmp_path / "c", comparison, stack).cells(lambda text: None)

    asked = Asked(protections=["not_encrypt"])
    with ExitStack() as stack:  # the runs of a job without a weighting have the equal one
        folder = ComparisonFolder.open(tmp_path / "c", Comparison(small_job(), asked), stack)
        folder.cells(lambda text: None)
    kept = (tmp_path / "c" / COMPARISON).read_bytes()
    with pytest.raises(RunFolderError) as refused:
        opened("by_size")
    assert "server.weighting = 'by_size' where the run has 'equal'" in str(refused.value)
    assert (tmp_path / "c" / COMPARISON).read_bytes() == kept
    opened("equal")


def test_a_comparison_is_what_its_folder_has_kept(tmp_path: Path) -> None:
    job = small_job(model="logistic")
    asked = Asked(protections=["not_encrypt", "dp_encrypt"], epsilons=[4.0], target="loss=1")
    with ExitStack() as stack:
        folder = ComparisonFolder.open(tmp_path / "c", Comparison(job, asked), stack)
        first = folder.cells(lambda text: None)
    told: list[str] = []
    with ExitStack() as stack:
        kept = ComparisonFolder.reopen(tmp_path / "c", stack)
        assert kept.comparison.asked == asked
        assert kept.cells(told.append) == first
        with pytest.raises(FolderInUse):
            ComparisonFolder.reopen(tmp_path / "c", stack)
    assert not told  # nothing was looked for again
    assert (tmp_path / "c" / IMPORTS).read_text() == f"{Path(parts.__file__).parent}\n"


def test_a_comparison_finds_its_own_modules_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = "import fedveil\nclass Own(fedveil.Task):\n    targets, loss = 'class', len\n"
    own = {"mine/own_task.py": task, "swept/own_net.py": "from parts import plain as net\n"}
    for name, text in own.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
        monkeypatch.syspath_prepend((tmp_path / name).parent)
    asked = Asked(protections=["not_encrypt"], sweep={"model": ["parts:plain", "own_net:net"]})
    with ExitStack() as stack:
        comparison = Comparison(small_job(task="own_task:Own"), asked)
        ComparisonFolder.open(tmp_path / "c", comparison, stack).cells(lambda text: None)
    for name in ("own_task", "own_net"):
        del sys.modules[name]
    places = (tmp_path / "c" / IMPORTS).read_text().splitlines()
    assert {str((tmp_path / name).parent) for name in own} <= {*places}
    root = str(Path(parts.__file__).parent)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place != root])
    with ExitStack() as stack:
        ComparisonFolder.reopen(tmp_path / "c", stack)
    assert root in sys.path


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    with ExitStack() as stack, pytest.raises(RunFolderError, match=r"it has no comparison\.yaml"):
        ComparisonFolder.reopen(tmp_path, stack)
    (tmp_path / COMPARISON).write_text("job: {rounds: none}\n")
    with ExitStack() as stack, pytest.raises(RunFolderError, match=r"comparison\.yaml is damaged"):
        ComparisonFolder.reopen(tmp_path, stack)
    options = "{protections: [rr], seeds: -3, epsilons: [-1]}"
    (tmp_path / COMPARISON).write_text(f"job: {{}}\nasked: {options}\nsolutions: {{}}\n")
    told = r"is damaged: seeds = -3 is [^;]*; epsilons = -1 is [^;]*$"
    with ExitStack() as stack, pytest.raises(RunFolderError, match=told):
        ComparisonFolder.reopen(tmp_path, stack)


def test_nothing_is_written_for_what_cannot_be_compared(tmp_path: Path) -> None:
    path = tmp_path / "c"
    with pytest.raises(ValueError, match="cannot be compared here"):
        compared(path, "not_encrypt", "pw_encrypt", job=small_job(clients={"number": 2}))
    assert not path.exists()


def test_a_cell_that_fails_is_one_of_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = Federation._round

    def failing(self: Federation, number: int) -> Any:
        if self.job.protection.name == "dp_encrypt":
            raise RunStopped("the worker went away")
        return play(self, number)

    monkeypatch.setattr(Federation, "_round", failing)
    results = compared(tmp_path / "c", "not_encrypt", "dp_encrypt", "rr")
    assert [result.failure for result in results] == ["", "the worker went away", ""]
    assert [result.run is None for result in results] == [False, True, False]


def test_a_full_disk_ends_the_comparison_and_not_only_a_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its table would recommend a protection without having tried the others."""
    write = Checkpoint.write

    def full(checkpoint: Checkpoint, folder: RunFolder) -> None:
        if "signds" in folder.path.name:
            raise RunFolderError("the disk is full")
        write(checkpoint, folder)

    names = ("not_encrypt", "signds", "rr")
    with monkeypatch.context() as patched:
        patched.setattr(Checkpoint, "write", full)
        with pytest.raises(RunStopped, match="the disk is full") as end:
            compared(tmp_path / "c", *names)
    assert end.value.__notes__ == [f"`fedveil compare --resume {tmp_path / 'c'}` resumes from here"]
    assert not list((tmp_path / "c" / "runs").glob("rr*"))
    results = compared(tmp_path / "c", *names)
    assert [(result.failure, result.run is not None) for result in results] == [("", True)] * 3


def test_the_run_of_the_first_seed_is_attacked_once(tmp_path: Path) -> None:
    results = compared(tmp_path / "c", "not_encrypt", seeds=2, attack="membership")
    first, second = (result.run for result in results)
    assert first is not None
    assert second is not None
    assert [finding.attack for finding in first.findings] == ["membership"]
    assert not second.findings
    again = compared(tmp_path / "c", "not_encrypt", seeds=2, attack="membership")[0].run
    assert again is not None
    assert [f.seconds for f in again.findings] == [f.seconds for f in first.findings]
    path = again.folder / FINDINGS
    path.write_text(path.read_text("utf-8").replace('"quick"', '"full"'), "utf-8")
    both = compared(tmp_path / "c", "not_encrypt", seeds=2, attack="membership")[0].run
    assert both is not None
    assert [finding.effort for finding in both.findings] == ["full", "quick"]


def test_a_run_with_the_finding_of_another_attack_is_attacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[object] = []

    def refused(target: object, effort: str, watch: object) -> None:
        tried.append(effort)
        raise AttackImpossible("nothing to attack")

    monkeypatch.setattr(membership, "attack", refused)
    job = small_job(rounds=1)
    (found,) = compared(tmp_path / "c", "not_encrypt", job=job, attack="membership")
    assert found.run is not None
    other = Finding("clients", "quick", "not_encrypt", [Measured("accuracy", 0.5, cases=40)])
    with ExitStack() as stack:
        folder = RunFolder.reopen(found.run.folder)
        stack.callback(folder.close)
        add_finding(folder, other)
    compared(tmp_path / "c", "not_encrypt", job=job, attack="membership")
    assert tried == ["quick", "quick"]


def test_an_attack_has_the_effort_that_was_asked_for_or_says_why_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    efforts: list[str] = []

    def refused(target: object, effort: str, watch: object) -> None:
        efforts.append(effort)
        raise AttackImpossible("nothing to attack")

    monkeypatch.setattr(membership, "attack", refused)
    job = small_job(rounds=1)
    (found,) = compared(tmp_path / "c", "not_encrypt", job=job, attack="membership", effort="full")
    assert efforts == ["full"]
    assert found.unattacked == "nothing to attack"
    assert found.run is not None
    assert [*_remarks(found)] == ["nothing to attack"]


def test_a_number_of_clients_that_a_run_found_is_no_other_job(tmp_path: Path) -> None:
    job = small_job(data={"name": "parts:data", "split": "by_client"}, clients={"fraction": 0.5})
    assert job.clients.number is None
    (tmp_path / "job.yaml").write_text(job.with_clients(8).to_yaml())
    assert other_than(job, tmp_path) == []
    assert len(other_than(job.with_(rounds=5), tmp_path)) == 1
    assert other_than(job.with_clients(9), tmp_path) == ["clients.number = 9 where the run has 8"]


def test_a_run_that_cannot_be_has_its_reason(tmp_path: Path) -> None:
    cell = Cell(Setting("rr", {}, 2.0), 7, None, "no noise is enough")
    with ExitStack() as stack:
        comparison = Comparison(small_job(), Asked(protections=["rr"]))
        folder = ComparisonFolder.open(tmp_path / "c", comparison, stack)
        assert folder.run(cell, lambda record: None) == Result(cell, None, "no noise is enough")
        assert not folder._path(cell).exists()


def test_a_run_tells_its_progress_when_it_begins_and_when_it_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def progress(record: Any) -> None:
        """Stands for the display of a round."""

    job, told = small_job(), list[Any]()
    monkeypatch.setattr(entry, "simulate", lambda *given, progress: told.append((given, progress)))
    monkeypatch.setattr(entry, "resume", lambda *given, progress: told.append((given, progress)))
    monkeypatch.setattr(several_runs, "read_run", lambda folder: folder)
    monkeypatch.setattr(several_runs, "has_finished", lambda folder: (folder / MODEL).is_file())
    assert ended_run(job, tmp_path, progress) == tmp_path
    (tmp_path / JOB).touch()
    assert ended_run(job, tmp_path, progress) == tmp_path
    (tmp_path / MODEL).touch()
    assert ended_run(job, tmp_path, progress) == tmp_path
    assert told == [((job, tmp_path), progress), ((tmp_path,), progress)]


def test_an_error_that_names_a_command_names_that_of_the_study() -> None:
    noted, bare = RunStopped("away"), RunStopped("away")
    noted.add_note("`fedveil run --resume x` resumes from here")
    for error, notes in ((noted, ["`fedveil compare` resumes from here"]), (bare, [])):
        with pytest.raises(RunStopped) as raised, resumed_by("fedveil compare"):
            raise error
        assert getattr(raised.value, "__notes__", []) == notes
    for end in (KeyboardInterrupt(), OutputLost("standard output cannot be written")):
        with pytest.raises(type(end)) as ended, resumed_by("fedveil compare"):
            raise end  # between two runs, so that no run has added a note
        assert ended.value.__notes__ == ["`fedveil compare` resumes from here"]


def test_a_search_without_a_result_is_saved_like_any_other(tmp_path: Path) -> None:
    job = small_job(rounds=20)
    asked = Asked(protections=["dp_encrypt"], epsilons=[0.01])
    with ExitStack() as stack:
        (cell,) = ComparisonFolder.open(tmp_path / "c", Comparison(job, asked), stack).cells(print)
        assert cell.job is None
    with ExitStack() as stack:
        again = ComparisonFolder.reopen(tmp_path / "c", stack).comparison
        assert again.solutions == {"dp_encrypt,epsilon=0.01": cell.reason}


class Killed(BaseException):
    """Raised at the instant at which a process is killed."""


@pytest.mark.parametrize("at", ["write_model", "keep_accounts", "advise"])
def test_a_run_that_was_killed_while_it_wrote_its_results_is_ended_again(
    at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = small_job(
        protection={"name": "central_gaussian", "central_gaussian": {"noise_multiplier": 3.0}}
    )
    whole = ended_run(job, tmp_path / "whole")

    def killed(*arguments: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(federation, at, killed)
        with pytest.raises(Killed):
            ended_run(job, tmp_path / "run")
    assert not read_run(tmp_path / "run").finished
    again = ended_run(job, tmp_path / "run")
    assert again.finished
    assert len(again.accounts) > 0
    assert again.accounts == whole.accounts
    assert again.all_said(ADVICE) == whole.all_said(ADVICE)


def test_a_run_that_was_extended_and_killed_is_not_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended_run(small_job(), tmp_path / "run")
    play = Federation._round

    def cut(self: Federation, number: int) -> Any:
        if number == 4:
            raise Killed
        return play(self, number)

    with monkeypatch.context() as patched:
        patched.setattr(Federation, "_round", cut)
        with pytest.raises(Killed):
            fedveil.resume(tmp_path / "run", rounds=4)
    cut_off = read_run(tmp_path / "run")
    assert (len(cut_off.records), cut_off.finished) == (3, False)
    assert of_run(cut_off)["model"] is None  # it is the model of round 2
    assert ended_run(small_job(rounds=4), tmp_path / "run").finished


@pytest.mark.parametrize("kind", [RunFailed, RunStopped, ModelInvalid])
def test_every_end_of_a_run_is_that_of_its_cell_alone(
    kind: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*arguments: object) -> None:
        raise kind("it diverged")

    monkeypatch.setattr(comparison_folder, "ended_run", failing)
    cell = Cell(Setting("rr"), 7, small_job())
    with ExitStack() as stack:
        comparison = Comparison(small_job(), Asked(protections=["rr"]))
        folder = ComparisonFolder.open(tmp_path / "c", comparison, stack)
        assert folder.run(cell, lambda record: None) == Result(cell, None, "it diverged")


def test_a_weighting_that_the_job_sets_is_that_of_the_resumed_comparison(tmp_path: Path) -> None:
    job, asked = small_job(server={"weighting": "by_size"}), Asked(protections=["not_encrypt"])
    with ExitStack() as stack:
        folder = ComparisonFolder.open(tmp_path / "c", Comparison(job, asked), stack)
        (cell,) = folder.cells(lambda text: None)
    with ExitStack() as stack:
        again = ComparisonFolder.reopen(tmp_path / "c", stack)
        assert again.comparison.job == job
        assert again.cells(lambda text: None) == [cell]
        assert again.write("own.md", b"a text") == tmp_path / "c" / "own.md"
    assert (tmp_path / "c" / "own.md").read_bytes() == b"a text"


@pytest.mark.parametrize(
    ("attack", "seed", "has_run"),
    [(None, 7, True), ("membership", 8, True), ("membership", 7, False)],
)
def test_only_a_run_of_the_first_seed_is_attacked_and_only_if_asked(
    attack: Any, seed: int, has_run: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def attacked(*arguments: object) -> None:
        raise AssertionError("it was attacked")

    monkeypatch.setattr(comparison_folder.RunFolder, "reopen", attacked)
    run = ReadRun(tmp_path / "run", {}, [], (), []) if has_run else None
    result = Result(Cell(Setting("rr"), seed, small_job()), run)
    with ExitStack() as stack:
        asked = Asked(protections=["rr"], seeds=2, attack=attack)
        folder = ComparisonFolder.open(tmp_path / "c", Comparison(small_job(), asked), stack)
        assert folder.attacked(result, lambda *step: None) is result
