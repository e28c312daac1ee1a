"""The language model under EmbeddingDP, and the source's logs beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments import protected_language, two_processes
from experiments.protected_language import (
    APART,
    FULL,
    PLAIN,
    PLAIN_APART,
    PROTECTED,
    RUNS,
    SMALL,
    SOURCE,
    ProtectedLanguage,
    Run,
    Settings,
    _plot,
    _table,
    apart_by,
    gap,
    verdicts,
)
from fedveil.base.untrusted import read_bytes
from fedveil.errors import RunFailed
from fedveil.record.run_folder import MODEL
from fedveil.vertical.job import VerticalJob
from fedveil.vertical.job_split import make_task

TINY = Settings(
    {"preset": "tiny", "layers": 2, "width": 32, "heads": 2, "context": 16, "tokenizer": "bytes"},
    steps=20,
)


def test_the_full_scale_is_the_sources_own(tmp_path: Path) -> None:
    """Mode 350M of the source's example, EmbeddingDP at 5."""
    job = FULL.job({"eps": 5.0}, tmp_path / "text.txt")
    shape = make_task(job).shape  # type: ignore[attr-defined]
    assert vars(shape) == {
        "layers": 16, "width": 1280, "heads": 32, "context": 1024, "vocabulary": 40_000,
    }  # fmt: skip
    assert (job.batch_size, job.optimizer.lr, job.optimizer.warmup_steps) == (2, 1e-4, 2000)
    assert FULL.steps == SMALL.steps == 100
    assert [len(log) for log in SOURCE.values()] == [10, 10, 10]


def test_what_is_compared_of_two_curves() -> None:
    assert gap([5.0, 4.0], [4.0, 3.5], [4.0, 2.0]) == pytest.approx(0.375)
    assert apart_by([5.0, 4.0], [4.0, 4.5]) == 0.75
    assert gap(SOURCE[PROTECTED], SOURCE[PLAIN], SOURCE[PLAIN]) == pytest.approx(0.0687, abs=1e-3)


def runs(**changed: list[Run]) -> dict[str, list[Run]]:
    """Three seeds that hardly differ, as the source's logs, each figure ten times."""

    def like(name: str, model: str) -> list[Run]:
        return [shifted(name, by, f"{model}{by}") for by in (-0.01, 0.0, 0.02)]

    made = {PLAIN: like(PLAIN, "a"), PROTECTED: like(PROTECTED, "b"), APART: like(APART, "c")}
    return {**made, PLAIN_APART: like(PLAIN, "a"), **changed}


def one_more(name: str, run: Run) -> list[Run]:
    """The three seeds of `runs`, the last of them replaced."""
    return [*runs()[name][:2], run]


def judged(of: dict[str, list[Run]]) -> list[str]:
    return [verdict.answer for verdict in verdicts(of, frequencies=7.0)]


def shifted(name: str, by: float, model: str = "a") -> Run:
    return Run([x + by for x in SOURCE[name] for _ in range(10)], {"leader": model}, 1.0, 1.0)


def test_the_verdicts_are_computed() -> None:
    assert judged(runs()) == ["agrees"] * 6
    rising = Run([1.0] * 90 + [2.0] * 10, {"leader": "b"}, 1.0, 1.0)
    assert judged(runs(**{PROTECTED: [rising] * 3}))[1] == "says nothing"
    dear = [shifted(PROTECTED, by) for by in (1.0, 1.01, 1.02)]
    assert judged(runs(**{PROTECTED: dear}))[3] == "differs"
    far = [shifted(APART, by) for by in (0.2, 0.21, 0.22)]
    assert judged(runs(**{APART: far}))[4] == "differs"
    # other weights from the same losses, and other losses before the same weights
    assert judged(runs(**{PLAIN_APART: one_more(PLAIN, shifted(PLAIN, 0.02, "z"))}))[5] == "differs"
    other = one_more(PLAIN, shifted(PLAIN, 0.02 + 1e-6, "a0.02"))
    assert judged(runs(**{PLAIN_APART: other}))[5] == "differs"


def test_seeds_that_disagree_decide_nothing() -> None:
    assert judged(runs(**{PROTECTED: one_more(PROTECTED, shifted(PROTECTED, 0.5))}))[3:5] == [
        "says nothing", "says nothing",
    ]  # fmt: skip
    fell, steep = shifted(APART, 0.0), Run([90.0] * 90 + [1.0] * 10, {}, 1.0, 1.0)
    assert judged(runs(**{APART: [fell, shifted(APART, 0.1), steep]}))[2] == "says nothing"


def test_the_figures_are_means_of_the_seeds() -> None:
    found = list(verdicts(runs(), frequencies=7.0))
    assert found[0].ours == "10.619 [10.581, 10.657] to 8.799 [8.761, 8.837]"
    table = _table(runs())
    assert table.rows[0][:3] == ("20", "10.425", "10.428")
    assert [curve.y[0] for curve in _plot(runs(), 7.0).curves[:2]] == pytest.approx(
        [10.616087 + 0.01 / 3, 10.653997 + 0.01 / 3]
    )


def test_a_reason_says_whether_more_than_word_frequencies_was_learnt() -> None:
    below = list(verdicts(runs(), frequencies=9.0))[3].why
    above = list(verdicts(runs(), frequencies=8.0))[3].why
    assert below.endswith("; the final loss, 8.80, is below the 9.00 of word frequencies alone")
    assert "; the final loss, 8.80, is not below the 8.00" in above


def test_every_run_has_its_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began: list[tuple[str, int]] = []

    def run(job: VerticalJob, name: str, *_: object) -> dict[str, Any]:
        began.append((name, job.seed))
        return {"losses": [9.0, 8.0] * 10, "models": {}, "bytes_a_step": 1.0, "seconds": 1.0}

    monkeypatch.setattr(protected_language, "_run", run)
    ProtectedLanguage(TINY).run(tmp_path, "small", lambda _: None)
    assert began == [(name, seed) for seed in range(3) for name in RUNS]
    assert (tmp_path / f"{APART}-seed-2.json").exists()


@pytest.mark.slow
def test_a_miniature_in_one_process_and_in_two(tmp_path: Path) -> None:
    """Real processes over mutual TLS: the same losses and weights where nothing is protected."""
    said: list[str] = []
    outcome = ProtectedLanguage(TINY).run(tmp_path, "small", said.append)
    assert len(said) == 13
    same = outcome.verdicts[-1]
    assert (same.agrees, same.ours) == (True, "the same losses, the same weights")
    assert [len(curve.x) for curve in outcome.plots[0].curves[:3]] == [2, 2, 2]
    kinds = [(tmp_path / name / "leader").is_dir() for name in (PLAIN, f"{PLAIN_APART}-seed-2")]
    assert kinds == [True, True]
    models = {read_bytes(tmp_path / f"{PLAIN}{seed}" / "leader" / MODEL, 10**8)
              for seed in ("", "-seed-1", "-seed-2")}  # fmt: skip
    assert len(models) == 3
    assert not list(tmp_path.rglob("key.pem"))
    again = ProtectedLanguage(TINY).run(tmp_path, "small", said.append)
    assert again == outcome
    assert len(said) == 13


def test_a_process_that_fails_says_why(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text("task: nothing\n")
    with pytest.raises(RunFailed, match=r"^the process of leader ended with \d: .*task"):
        two_processes.apart(job, "leader", ["cloud"], tmp_path)
    assert not list(tmp_path.rglob("key.pem"))


def test_processes_go_on_with_the_runs_that_are_there(tmp_path: Path) -> None:
    job, own = tmp_path / "job.yaml", tmp_path / "leader"
    own.mkdir()
    (own / "half").write_text("written")
    assert two_processes._run(job, own) == [str(job), "--out", str(own)]
    assert not own.exists()
    own.mkdir()
    (own / "job.yaml").write_text("task: pangu\n")
    assert two_processes._run(job, own) == ["--resume", str(own)]


def test_what_falls_short_of_the_steps_is_read_again(tmp_path: Path) -> None:
    """An epoch has as many steps as its windows give; 100 steps of 2 need 200."""
    assert FULL.job(None, tmp_path / "t.txt", windows=200).epochs == 1
    assert FULL.job(None, tmp_path / "t.txt", windows=70).epochs == 3
