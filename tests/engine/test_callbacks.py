"""A user's own code beside a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fedveil
from fedveil.engine.callbacks import Beginning, Callback, Callbacks
from fedveil.engine.federation import Run
from fedveil.errors import InvalidValue, OutputLost, RunStopped
from fedveil.federated.job import Job
from fedveil.record.recorder import Record

TOLD: list[Any] = []


class Told(Callback):
    """Writes down what it is told."""

    def begin(self, run: Beginning) -> None:
        TOLD.append(("begin", run.done, run.folder.name))

    def round(self, record: Record) -> str | None:
        TOLD.append(record["round"])
        return None

    def end(self, run: Run | None) -> None:
        TOLD.append(("end", None if run is None else run.stopped))


class Enough(Callback):
    """Ends a run after its second round."""

    def round(self, record: Record) -> str | None:
        return "two are enough" if record["round"] == 2 else None


class Broken(Callback):
    """Raises in the second round."""

    def round(self, record: Record) -> str | None:
        return {1: None}[record["round"]]


class Unmade(Callback):
    """Cannot be created."""

    def __init__(self) -> None:
        raise LookupError("no server")


class Stranger:
    """No callback."""


@pytest.fixture(autouse=True)
def nothing_told() -> None:
    TOLD.clear()


def job(*callbacks: str, protection: str = "not_encrypt") -> Job:
    return Job(
        protection=protection,
        rounds=3,
        clients={"number": 4, "fraction": 0.5},
        data={"name": "parts:data"},
        model="parts:linear",
        training={"epochs": 1},
        simulation={"workers": 0},
        record={"callbacks": [f"test_callbacks:{name}" for name in callbacks]},
    )


def test_they_are_told_of_beginning_rounds_and_end(tmp_path: Path) -> None:
    fedveil.simulate(job("Told"), tmp_path / "run")
    assert TOLD == [("begin", 0, "run"), 1, 2, 3, ("end", None)]


def test_one_may_end_the_run_and_all_are_told(tmp_path: Path) -> None:
    told_first = [Told(), Enough(), Callback()]
    run = fedveil.simulate(job(), tmp_path / "run", callbacks=told_first)
    assert run.stopped == "two are enough"
    assert TOLD == [("begin", 0, "run"), 1, 2, ("end", "two are enough")]
    assert "finished after round 2: two are enough" in (run.folder / "events.log").read_text()


class Tired(Callback):
    """Ends a run after each round."""

    def round(self, record: Record) -> str | None:
        return f"tired of round {record['round']}"


def test_the_first_reason_to_stop_is_told_and_those_of_objects_come_first() -> None:
    for given, why in (
        ([Tired()], "tired of round 2"),
        ([Told()], "two are enough"),
        ([Told(), Tired(), Enough()], "tired of round 2"),
    ):
        named = ["test_callbacks:Enough", "test_callbacks:Tired"]
        assert Callbacks(named, given).round({"round": 2}) == why


def test_all_planned_rounds_are_stated_of_a_run_that_one_ended(tmp_path: Path) -> None:
    """It may have read the rounds' results, on which the number of rounds then depends."""
    run = fedveil.simulate(job("Enough", protection="dp_encrypt"), tmp_path / "run")
    said = [line.what for line in run.others]
    assert "all 3 rounds: holds whenever a callback ends the run" in said


def test_what_raises_ends_the_run_which_goes_on(tmp_path: Path) -> None:
    with pytest.raises(RunStopped) as told:
        fedveil.simulate(job(), tmp_path / "run", callbacks=[Broken(), Told()])
    assert str(told.value).startswith("callbacks: Broken: round raised KeyError: 2 (")
    assert TOLD[-1] == ("end", None)
    TOLD.clear()
    told_of: list[int] = []

    def progress(record: Record) -> None:
        told_of.append(record["round"])

    again = fedveil.resume(tmp_path / "run", callbacks=[Told()], progress=progress)
    assert [r["round"] for r in again.metrics] == told_of == [1, 2, 3]
    assert TOLD == [("begin", 2, "run"), 3, ("end", None)]


@pytest.mark.parametrize("error", [OutputLost("standard output is closed"), KeyboardInterrupt()])
def test_a_round_that_cannot_be_shown_is_told_all_the_same(
    error: BaseException, tmp_path: Path
) -> None:
    """It is done and saved, and a resumed run begins after it."""

    def lost(record: Record) -> None:
        if record["round"] == 2:
            raise error

    with pytest.raises(type(error)):
        fedveil.simulate(job(), tmp_path / "run", callbacks=[Told()], progress=lost)
    assert TOLD == [("begin", 0, "run"), 1, 2, ("end", None)]
    TOLD.clear()
    fedveil.resume(tmp_path / "run", callbacks=[Told()])
    assert TOLD == [("begin", 2, "run"), 3, ("end", None)]


def test_a_run_without_a_folder_of_its_own_has_one_with_its_job_s_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = fedveil.simulate(job().with_({"name": "small", "rounds": 1}))
    (folder,) = (tmp_path / "runs").iterdir()
    assert (run.folder.resolve(), folder.name.split("-")[0]) == (folder, "small")


class Early(Callback):
    """Raises at the beginning."""

    def begin(self, run: Beginning) -> None:
        raise KeyError(run.done)


class Late(Callback):
    """Raises at the end."""

    def end(self, run: Run | None) -> None:
        raise KeyError("late")


@pytest.mark.parametrize(("callback", "when"), [(Early(), "begin"), (Late(), "end")])
def test_what_raises_before_or_after_the_rounds_is_named_with_what_it_was_called_for(
    callback: Callback, when: str, tmp_path: Path
) -> None:
    with pytest.raises(RunStopped, match=f"^callbacks: .*: {when} raised KeyError: "):
        fedveil.simulate(job(), tmp_path / "run", callbacks=[callback])
    assert [r["round"] for r in fedveil.resume(tmp_path / "run").metrics] == [1, 2, 3]


def test_what_is_no_callback_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue) as told:
        fedveil.simulate(job("Told", "Stranger"), tmp_path / "run")
    assert str(told.value) == (
        "record.callbacks = 'test_callbacks:Stranger' is a Stranger, not a subclass of "
        "fedveil.engine.callbacks.Callback"
    )
    assert not (tmp_path / "run").exists()


def test_a_callback_that_cannot_be_created_is_named_with_its_key() -> None:
    key = r"record\.callbacks = 'test_callbacks:Unmade': the function raised LookupError: no server"
    with pytest.raises(InvalidValue, match=key):
        Callbacks(["test_callbacks:Told", "test_callbacks:Unmade"], [Enough()])


def test_what_is_done_before_the_first_round_is_told(tmp_path: Path) -> None:
    said: list[str] = []
    fedveil.simulate(job(), tmp_path / "run", starting=said.append)
    assert said == [
        "distributing the examples among the clients",
        "trying a batch",
        "computing the output of the fixed layers",
        "compiling the training code, which is cached for later runs",
    ]


def test_a_thin_promise_is_a_warning_at_the_start_and_in_the_log(tmp_path: Path) -> None:
    weak = {"name": "dp_encrypt", "dp_encrypt": {"dp_eps": 50.0}}
    warned: list[str] = []
    thin = job().with_({"rounds": 1, "protection": weak})
    run = fedveil.simulate(thin, tmp_path / "run", warn=warned.append)
    (sentence,) = warned
    assert sentence.startswith("a client that takes part in the only round is promised epsilon ")
    assert sentence in (run.folder / "events.log").read_text("utf-8")


def test_a_resumed_run_tells_what_it_prepares_and_warns_of_all_its_rounds(tmp_path: Path) -> None:
    weak = {"name": "dp_encrypt", "dp_encrypt": {"dp_eps": 50.0}}
    fedveil.simulate(job().with_({"rounds": 1, "protection": weak}), tmp_path / "run")
    warned: list[str] = []
    said: list[str] = []
    fedveil.resume(tmp_path / "run", rounds=3, warn=warned.append, starting=said.append)
    added, sentence = warned
    assert added.startswith("rounds was raised from 1 to 3 when the results of 1 round were known")
    assert sentence.startswith("a client that takes part in all 3 rounds is promised epsilon ")
    assert sentence in (tmp_path / "run" / "events.log").read_text("utf-8")
    assert said[0] == "distributing the examples among the clients"
