"""Tests which vectors a protection can carry, and the messages at the end of a round."""

from __future__ import annotations

import json
import math
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedveil.errors import InvalidValue, MissingExtra, RoundVoid, RunFolderError
from fedveil.protections.base import TIMING
from fedveil.record.recorder import revived
from fedveil.record.run_folder import RunFolder
from fedveil.rounds.loop import Outcome
from fedveil.statistics import answer_folder, asking, carriage
from fedveil.statistics.carriage import Carriage, Participants, make_protection
from fedveil.statistics.clients import load
from fedveil.statistics.question import QuestionFile
from statistics_parts import asked


def file_of(protection: str, epsilon: float | None = 2.0) -> QuestionFile:
    keys = {"protection": protection, "epsilon": epsilon, "randomness": "seeded", "masks": False}
    return QuestionFile.read({**keys, "questions": {"n": {"ask": "count"}}}, [])


def test_four_times_the_clients_need_one_bit_more() -> None:
    few, many = (carriage._bits(60, clients, 0.001) for clients in (100, 400))
    assert many == few + 1


@pytest.mark.parametrize(("rounding", "fits"), [(0.48, True), (0.52, False)])
def test_rounding_may_take_at_most_half_of_a_vector(
    rounding: float, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    protection = make_protection(file_of("central_gaussian"), 49, 1, Participants(9))
    monkeypatch.setattr(carriage, "_grid_of", lambda protection: rounding / math.sqrt(49))
    if fits:
        assert Carriage(protection).total(np.ones(1), 1)[0] == pytest.approx(1 / 0.52, rel=1e-4)
        return
    with pytest.raises(InvalidValue, match="a vector of 49 entries is too fine for the steps of"):
        Carriage(protection)


def test_a_round_without_a_result_names_every_kind_of_reason() -> None:
    outcome = Outcome(
        void=RoundVoid("report", 1, 5, "too few clients"), rejected=Counter({"late": 3}),
        withheld=Counter({"its own limit": 2}), failed=Counter({"no table": 4}),
    )  # fmt: skip
    assert asking._why(outcome) == f"{outcome.void}; 4 x no table; 3 x late; 2 x its own limit"


class Leaving(asking.Simulator):
    """Reports leave the machine, as in a deployment."""

    reports_leave = True


@pytest.mark.parametrize(
    ("protection", "engine", "told"),
    [("oue", Leaving, [TIMING]), ("oue", asking.Simulator, []), ("not_encrypt", Leaving, [])],
)
def test_the_time_of_an_answer_is_told_where_reports_leave_whatever_the_rows(
    protection: str, engine: Any, told: list[str]
) -> None:
    file = file_of(protection, None if protection == "not_encrypt" else 2.0)
    answers = asking.Asking(file, engine(file, load(file, {"x": [1.0] * 9}))).run()
    assert list(answers.in_clear) == told


def test_an_answer_without_a_page_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = asked({"n": {"ask": "count"}})
    folder = RunFolder(tmp_path, None)  # type: ignore[arg-type]
    assert answer_folder.keep(answers, folder) is None
    (tmp_path / answer_folder.PAGE).unlink()

    def missing(answers: object) -> None:
        raise MissingExtra("a-library", "pages", "a page")

    monkeypatch.setattr(answer_folder, "page_of", missing)
    assert "a-library" in (answer_folder.keep(answers, folder) or "")
    assert not (tmp_path / answer_folder.PAGE).exists()
    assert answer_folder.saved(tmp_path) == answers.data()
    assert answers.epsilon == math.inf
    text = (tmp_path / answer_folder.ANSWERS).read_text("utf-8")
    json.loads(text, parse_constant=pytest.fail)  # no other program reads Infinity


def test_answers_that_cannot_be_saved_are_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The account is charged for them, so a full disk must not lose them."""
    answers = asked({"n": {"ask": "count"}})
    write = RunFolder.write_atomically

    def full(self: RunFolder, name: str, data: bytes) -> None:
        if name == answer_folder.ANSWERS:
            raise RunFolderError(f"{self.path / name} cannot be written: No space left on device")
        write(self, name, data)

    monkeypatch.setattr(RunFolder, "write_atomically", full)
    with pytest.raises(RunFolderError, match="No space left"):
        answer_folder.keep(answers, RunFolder(tmp_path, None))  # type: ignore[arg-type]
    assert revived(json.loads(capsys.readouterr().err)) == answers.data()


def test_answers_are_saved_before_an_interrupt_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = asked({"n": {"ask": "count"}})
    write = RunFolder.write_atomically

    def interrupted(self: RunFolder, name: str, data: bytes) -> None:
        signal.raise_signal(signal.SIGINT)
        write(self, name, data)

    monkeypatch.setattr(RunFolder, "write_atomically", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # may have been ignored
    try:
        with pytest.raises(KeyboardInterrupt):
            answer_folder.keep(answers, RunFolder(tmp_path, None))  # type: ignore[arg-type]
    finally:
        signal.signal(signal.SIGINT, before)
    assert answer_folder.saved(tmp_path) == answers.data()


def test_a_forged_report_is_bounded_by_what_the_server_can_check() -> None:
    """A client of `unit: row` adds up any number of rows, which dp_encrypt does not limit."""
    count = {"questions": {"n": {"ask": "count"}}, "client": "who", "epsilon": 2.0}
    bounded = {
        (name, unit): Carriage(
            make_protection(
                QuestionFile.read({"protection": name, "unit": unit, **count}, []), 3, 1,
                Participants(9),
            )
        ).influence() < math.inf
        for name in ("central_gaussian", "dp_encrypt", "distributed_dp")
        for unit in ("client", "row")
    }  # fmt: skip
    assert bounded == {
        ("central_gaussian", "client"): True, ("central_gaussian", "row"): True,
        ("dp_encrypt", "client"): True, ("dp_encrypt", "row"): False,
        ("distributed_dp", "client"): False, ("distributed_dp", "row"): False,
    }  # fmt: skip


def test_a_sum_without_an_epsilon_has_the_rounding_of_its_numbers() -> None:
    protection = make_protection(file_of("pw_encrypt", None), 3, 1, Participants(9))
    step = protection.fixed.step  # type: ignore[attr-defined]
    variance = Carriage(protection).variance(np.zeros(3), 7)
    assert variance == pytest.approx(7 * step**2 / 4, rel=1e-3)
    assert protection.settings.clip == math.sqrt(2)  # type: ignore[attr-defined]
