"""`fedveil report` and `fedveil watch` from the command line."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import fedveil
from fedveil.cli.exits import Exit
from page_parts import small_job

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fedveil.simulate(small_job(), tmp_path_factory.mktemp("made") / "run").folder


def test_report_writes_the_page_and_every_plot_beside_it(
    command: Command, finished: Path, tmp_path: Path
) -> None:
    code, out, err = command("report", finished, "--out", "told/page.html")
    assert code == Exit.DONE, err
    names = ["page-accuracy.svg", "page-auc.svg", "page-bytes.svg", "page-loss.svg",
             "page-seconds.svg", "page.html"]  # fmt: skip
    assert sorted(path.name for path in (tmp_path / "told").iterdir()) == names
    assert sorted(out.splitlines()) == [f"wrote told/{name}" for name in names]
    assert (tmp_path / "told" / "page-loss.svg").read_bytes().startswith(b"<?xml")


def test_a_page_is_not_written_in_the_place_of_a_folder(
    command: Command, finished: Path, tmp_path: Path
) -> None:
    (tmp_path / "told").mkdir()
    code, out, err = command("report", finished, "--out", "told")
    assert (code, out) == (Exit.FAILED, "")
    assert err == "error: told is a folder. Name a file, such as told/report.html\n"
    assert [path.name for path in tmp_path.iterdir()] == ["told"]


def test_report_of_several_runs_is_written_here(
    command: Command, finished: Path, tmp_path: Path
) -> None:
    other = Path(shutil.copytree(finished, tmp_path / "other"))
    code, out, err = command("report", finished, other, "other/../other")
    assert code == Exit.DONE, err
    assert "wrote report.html\n" in out
    assert "<title>2 runs</title>" in (tmp_path / "report.html").read_text("utf-8")
    (other / "report.html").unlink(missing_ok=True)
    code, out, err = command("report", other, "other")
    assert code == Exit.DONE, err
    assert f"wrote {Path('other', 'report.html')}\n" in out


def test_a_folder_that_holds_no_run_is_one_sentence(command: Command, tmp_path: Path) -> None:
    for name in ("report", "watch"):
        code, out, err = command(name, tmp_path)
        assert (code, out) == (Exit.FAILED, "")
        assert err == f"error: {tmp_path} is not a run's folder: it has no job.yaml\n"


def test_watch_shows_a_finished_run_and_ends(command: Command, finished: Path) -> None:
    code, out, err = command("watch", finished)
    assert code == Exit.DONE, err
    assert "round 3/3 accuracy" in out
    assert "next" in out


def test_ctrl_c_ends_watching_as_everything(
    command: Command, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedveil.cli import watch as watching

    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(watching, "_new_states", interrupted)
    code, _, err = command("watch", finished)
    assert (code, err) == (Exit.INTERRUPTED, "interrupted\n")
