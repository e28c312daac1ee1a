"""Runs of an experiment: finished ones are read, unfinished ones resumed."""

from __future__ import annotations

import errno
import json
import math
import re
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments import saved_results
from experiments.arms import COPIED, Arm, accuracy, curve, listed, mean_accuracy, settings, trained
from experiments.counted_rounds import Cost
from experiments.experiment import NewPart
from experiments.ldp_aggregation import Measurements
from experiments.leakage import leakage
from experiments.protected_language import Run
from fedveil.entry.simulation import simulate
from fedveil.errors import RunFolderError
from fedveil.federated.job import Job
from fedveil.pages.read_run import ReadRun
from fedveil.privacy.finding import Measured
from fedveil.studies.several_runs import first_round


def job(name: str, **more: object) -> Job:
    block = {
        "name": name,
        "rounds": 3,
        "model": "logistic",
        "clients": {"number": 4, "fraction": 1},
        "training": {"epochs": 1},
        "protection": {"name": "not_encrypt"},
        "simulation": {"workers": 0},
    }
    return Job.read({**block, **more}, [])


def run(*accuracies: float) -> ReadRun:
    """A run that was tested at every second round, with these accuracies."""
    records = []
    for number, value in enumerate(accuracies, 1):
        records += [{"round": 2 * number - 1}, {"round": 2 * number, "accuracy": value}]
    job = {"protection": {"name": "dp_encrypt"}}
    return ReadRun(Path("nowhere"), job, records, (), ())


def test_runs_are_trained_once_and_gone_on_with(tmp_path: Path) -> None:
    """One was finished, one was cut off after a round, one was not begun."""
    names = ("whole", "cut", "new")
    arms = [Arm(name, job(name)) for name in names]
    whole = simulate(arms[0].job, tmp_path / "whole")
    before = (tmp_path / "whole" / "events.log").read_bytes()

    def cut_off(record: dict[str, object]) -> None:
        if record["round"] == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(arms[1].job, tmp_path / "cut", progress=cut_off)
    said: list[str] = []
    runs = trained(tmp_path, arms, said.append)
    assert said == ["run 2 of 3: cut", "run 3 of 3: new"]
    assert all(isinstance(line, NewPart) for line in said)
    assert (tmp_path / "whole" / "events.log").read_bytes() == before
    assert any("went on after round 1" in line for line in runs["cut"].events)
    assert all(runs[name].finished for name in names)
    expected = [record["accuracy"] for record in whole.metrics]
    for name in names:
        assert runs[name].figures("accuracy") == ([1, 2, 3], expected)
    assert not trained(tmp_path, arms, said.append).keys() ^ set(names)
    assert len(said) == 2


def test_a_run_that_another_experiment_finished_is_copied(tmp_path: Path) -> None:
    """Only a finished run of the same job counts, and the copy is of use without the first."""
    first, second = tmp_path / "first", tmp_path / "second"
    trained(first, [Arm("a", job("same")), Arm("b", job("other"))], lambda text: None)
    (first / "b" / "model.safetensors").unlink()
    shutil.copytree(first / "a", tmp_path / "cut off" / ".a")  # by a copy that was killed
    (tmp_path / "cut off" / ".a" / "metrics.jsonl").unlink()
    (tmp_path / "strange" / "c").mkdir(parents=True)
    (tmp_path / "strange" / "c" / "model.safetensors").touch()
    (tmp_path / "strange" / "c" / "job.yaml").write_text("rounds: many")
    said: list[str] = []
    wanted = [Arm("x", job("same")), Arm("y", job("other")), Arm("z", job("same", rounds=4))]
    runs = trained(second, wanted, said.append)
    assert said == [f"run 1 of 3: x, copied from {first / 'a'}", "run 2 of 3: y", "run 3 of 3: z"]
    assert [isinstance(line, NewPart) for line in said] == [False, True, True]
    assert [path.parent.name for path in second.glob(f"*/{COPIED}")] == ["x"]
    assert (second / "x" / "metrics.jsonl").read_bytes() == (
        first / "a" / "metrics.jsonl"
    ).read_bytes()
    assert runs["y"].figures("accuracy") == runs["x"].figures("accuracy")  # the seed is the same
    shutil.rmtree(first)
    assert trained(second, wanted, said.append)["x"].figures("accuracy")[0] == [1, 2, 3]
    assert len(said) == 3


def test_a_copy_or_a_result_that_finds_no_room_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(tmp_path / "first", [Arm("a", job("same"))], lambda text: None)

    def full(*arguments: object, **more: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    wanted = [Arm("x", job("same"))]
    with monkeypatch.context() as patch:
        patch.setattr(shutil.copytree, "__defaults__", (False, None, full, False, False))
        no = f"{tmp_path}/first/a cannot be copied to {tmp_path}/second/x: .*No space left"
        with pytest.raises(RunFolderError, match=no):
            trained(tmp_path / "second", wanted, lambda text: None)
    said: list[str] = []
    trained(tmp_path / "second", wanted, said.append)
    assert said == [f"run 1 of 1: x, copied from {tmp_path / 'first' / 'a'}"]
    monkeypatch.setattr(saved_results, "write_whole", full)
    with pytest.raises(RunFolderError, match=r"cost\.json cannot be written: No space left"):
        saved_results.kept(tmp_path, "cost", dict, dict)


SECONDS = [1.0, 2.0, 3.0, 4.0, 5.0]
TIMED = {"at_once": SECONDS, "one_by_one": SECONDS, "apart": [0.0]}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (json.dumps({"at_once": SECONDS, "apart": [0.0]}), "one_by_one: Field required"),
        (json.dumps({**TIMED, "at_once": SECONDS[1:]}), "at_once: List should have at least 5"),
        (json.dumps({**TIMED, "apart": "none"}), "apart: Input should be a valid"),
        (json.dumps({**TIMED, "at_once": [0.0] * 5}), "at_once.0: Input should be greater than 0"),
        (json.dumps({**TIMED, "at_once": [math.nan] * 5}), "at_once.0: Input should be greater"),
        ("[]", "the file: Input should be an object"),
        ("", "the file: Invalid JSON"),
        ("\0", "the file: Invalid JSON"),
    ],
)
def test_an_edited_result_is_one_sentence(tmp_path: Path, text: str, why: str) -> None:
    def again() -> None:
        pytest.fail("a result is computed although its file is there")

    file = tmp_path / "size-10.json"
    file.write_text(json.dumps(TIMED))
    assert saved_results.kept(tmp_path, "size-10", Measurements, again).apart == [0.0]
    file.write_text(text)
    with pytest.raises(RunFolderError, match=re.escape(f"{file} is damaged: {why}")) as caught:
        saved_results.kept(tmp_path, "size-10", Measurements, again)
    assert str(caught.value).endswith("Remove the file to compute it again")


@pytest.mark.parametrize("kind", [Cost, Run, tuple[Measured, Measured]])
def test_a_result_is_read_back_as_it_was_made(tmp_path: Path, kind: Any) -> None:
    made = {
        Cost: Cost(1.0, 2.0, 3.0, 4.0, 5, 6, 7.0, {"a": 1.0}, {"b": 2.0}),
        Run: Run([1.0, 2.5], {"lead": "ab"}, 3.0, 4.0),
        tuple[Measured, Measured]: (Measured("AUC", 0.5, cases=3), Measured("m", 0.25, low=0.1)),
    }[kind]
    data = [asdict(each) for each in made] if isinstance(made, tuple) else asdict(made)
    for _ in range(2):
        assert repr(saved_results.kept(tmp_path, "made", kind, lambda: data)) == repr(made)


def test_a_run_that_was_begun_here_is_resumed_not_copied(tmp_path: Path) -> None:
    trained(tmp_path / "first", [Arm("a", job("same"))], lambda text: None)

    def cut_off(record: dict[str, object]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(job("same"), tmp_path / "second" / "a", progress=cut_off)
    said: list[str] = []
    runs = trained(tmp_path / "second", [Arm("a", job("same"))], said.append)
    assert said == ["run 1 of 1: a"]
    assert any("went on after round 1" in line for line in runs["a"].events)


def test_a_run_of_another_job_is_not_taken_for_this_one(tmp_path: Path) -> None:
    trained(tmp_path, [Arm("a", job("a"))], lambda text: None)
    with pytest.raises(RunFolderError, match=r"was begun with another job: rounds = 4 where"):
        trained(tmp_path, [Arm("a", job("a", rounds=4))], lambda text: None)


def test_a_job_that_leaves_its_clients_to_the_data_is_known_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "owned_set.py").write_text(
        "import numpy as np\n"
        "def data():\n"
        "    x = np.eye(6, dtype=np.float32)\n"
        "    y = np.arange(6) % 2\n"
        "    return dict(x_train=x, y_train=y, x_test=x, y_test=y, client_ids=[0, 0, 1, 1, 2, 2])\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    owned = job("a", data={"name": "owned_set:data", "split": "by_client"}, clients={"fraction": 1})
    assert owned.clients.number is None
    for _ in range(2):
        assert trained(tmp_path, [Arm("a", owned)], lambda text: None)["a"].finished


def test_what_is_read_off_a_run() -> None:
    plain, noisy = run(0.2, 0.8, 0.8, 0.8, 0.8, 0.8), run(0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
    assert accuracy(plain) == pytest.approx(0.8)  # the first is not among the last five
    assert accuracy(noisy) == pytest.approx(0.4)
    assert mean_accuracy(noisy) == pytest.approx(0.35)
    assert first_round(noisy, "accuracy", lambda value: value >= 0.3) == 6
    assert first_round(noisy, "accuracy", lambda value: value > 0.6) is None
    drawn = curve("n", noisy, dashed=True)
    assert (drawn.x, drawn.y[0], drawn.dashed) == ([2, 4, 6, 8, 10, 12], 0.1, True)
    assert drawn.protection == "dp_encrypt"


def test_figures_in_a_row() -> None:
    assert listed([0.12345, math.inf]) == "0.123, never"


def test_settings_beside_the_sources() -> None:
    source = {"rounds": 500, "clients.number": 4, "clients.fraction": 1.0, "model": "lenet"}
    table = settings(source, job("a"))
    assert table.rows == [("`rounds`", "500", "3"), ("`model`", "lenet", "logistic")]
    assert table.caption == "As in the source: `clients.number` 4, `clients.fraction` 1.0."
    same = settings({"clients.number": 4}, job("a"))
    assert same.markdown() == "As in the source: `clients.number` 4.\n"


def test_the_leakage_of_a_model_that_knows_its_examples_by_heart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random labels: of the others half are right all the same, of the members all."""
    (tmp_path / "random_labels.py").write_text(
        "import numpy as np\n"
        "def data():\n"
        "    g = np.random.default_rng(0)\n"
        "    x = g.normal(size=(160, 200)).astype('float32')\n"
        "    y = g.integers(0, 2, 160)\n"
        "    return x[:80], y[:80], x[80:], y[80:]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    heart = {"data": {"name": "random_labels:data"}, "rounds": 5}
    simulate(job("a", **heart, training={"epochs": 5, "lr": 0.5}), tmp_path / "by-heart")
    simulate(job("a", **heart, training={"epochs": 1, "lr": 1e-9}), tmp_path / "untrained")
    known, unknown = leakage(tmp_path / "by-heart"), leakage(tmp_path / "untrained")
    assert known.low > 0.6
    assert known.cases == 80  # every second example of both kinds
    assert unknown.low < 0.5 < unknown.high
    assert np.isfinite([known.low, known.high]).all()
