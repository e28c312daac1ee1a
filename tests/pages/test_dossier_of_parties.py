"""The dossier of a vertical run: each party's account is the latest one in the party's log."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedveil.errors import RunFolderError
from fedveil.pages.dossier.account import _check_logged, read_evidence
from fedveil.pages.dossier.dossier_folder import Dossier
from fedveil.pages.dossier.statements import statements
from fedveil.pages.read_run import ReadRun, read_party, read_run
from fedveil.pages.run_folder_page import page_of
from fedveil.privacy.ledger import Line
from fedveil.record.event_log import append_event
from fedveil.vertical import VerticalJob, train
from fedveil.vertical.account import _noted
from vertical_parts import __name__ as vertical_module

BANK = "bank/accounts.jsonl"


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of three parties, two of which send protected tensors."""
    dp = {"eps": 1.1, "gradient": "none"}
    block = {"name": "small", "epochs": 2, "batch_size": 9, "task": f"{vertical_module}:bottoms",
             "privacy": {"embedding_dp": dp}}  # fmt: skip
    return train(VerticalJob.model_validate(block), tmp_path_factory.mktemp("made") / "run").folder


@pytest.fixture
def copy(ended: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(ended, tmp_path / "copy"))


def lines_of(file: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def write(file: Path, lines: list[dict[str, object]]) -> None:
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def cheaper(file: Path) -> None:
    """Say that an example's bits were never sent, at an epsilon that follows from it."""
    lines = [line for line in lines_of(file) if "bits of" not in str(line["what"])]
    write(file, [*lines[:-1], {**lines[-1], "epsilon": 0.0}])


@pytest.mark.parametrize("edit", [
    Path.unlink,
    lambda file: write(file, lines_of(file)[:-1]),
    lambda file: write(file, lines_of(file)[1:]),
    cheaper,
    lambda file: write(file, [*lines_of(file), lines_of(file)[0]]),
    lambda file: write(file, [{**lines_of(file)[0], "epsilon": 0.01}, *lines_of(file)[1:]]),
    lambda file: write(file, [{**lines_of(file)[0], "delta": 0.01}, *lines_of(file)[1:]]),
])  # fmt: skip
def test_an_account_other_than_that_in_the_log_is_refused(
    copy: Path, edit: Callable[[Path], object]
) -> None:
    """Neither by a dossier nor by a page, which shows the largest epsilon of all parties."""
    Dossier.of(copy)
    page_of(copy)
    edit(copy / BANK)
    with pytest.raises(RunFolderError, match=r"bank/accounts\.jsonl is not the account in"):
        Dossier.of(copy)
    with pytest.raises(RunFolderError, match=r"bank/accounts\.jsonl is not the account in"):
        page_of(copy)


def test_a_party_whose_records_are_missing_is_not_passed_over(copy: Path) -> None:
    (copy / "bank" / "metrics.jsonl").unlink()
    with pytest.raises(RunFolderError, match=r"bank/metrics\.jsonl is missing"):
        Dossier.of(copy)


def test_an_account_that_is_older_than_a_killed_session_is_refused(copy: Path) -> None:
    """A resumed run sends more. Its account is written at its end, which a kill prevents."""
    append_event(copy / "bank" / "events.log", "went on after step 12")
    with pytest.raises(
        RunFolderError, match="older than the run's last session, which did not end"
    ):
        Dossier.of(copy)


def test_an_evaluation_that_no_account_counts_is_refused(copy: Path) -> None:
    """It was killed after it had sent the held-out examples once more."""
    account = json.loads((copy / BANK).read_text().splitlines()[-1])["what"]
    assert account.endswith("sent 2 times")

    (copy / "bank" / "begun").write_bytes(_noted(12, 2))
    Dossier.of(copy)
    (copy / "bank" / "begun").write_bytes(_noted(12, 3))
    with pytest.raises(RunFolderError, match="does not count an evaluation that was begun"):
        Dossier.of(copy)


def logged(party: ReadRun, *texts: str) -> ReadRun:
    return replace(party, events=[f"2026-01-05T10:00:00 {text}" for text in texts])


def test_the_last_account_in_the_log_is_found_among_others(ended: Path) -> None:
    """Two evaluations write an account each, and a text's cost stands before an account."""
    bit = Line(0.5, 0.0, "a bit of left")
    once = Line(4.0, 0.0, "an example's own reports in the run, sent once")
    often = Line(8.0, 0.0, "an example's own reports in the run, sent 2 times")
    text = (str(bit), "epsilon 3 at delta 0 (weak) for a token's 6 bits of left, sent once",
            "epsilon 9 at delta 0 (weak) for the whole text, 3 vectors of left")  # fmt: skip
    party = replace(read_party(read_run(ended), ended / "bank"), accounts=[bit, often])
    first, last = (str(bit), str(once)), (str(bit), str(often))
    ended_before = (*first, "finished after step 3", *last)
    text_after = (*last, "finished after step 3", *text, "x")
    for texts in (last, (*first, *last), ended_before, text_after, (*first, *text, *last)):
        _check_logged(logged(party, *texts))
    for texts in (first, (*last, *first), text, (), (*last[1:],)):
        with pytest.raises(RunFolderError, match="is not the account in"):
            _check_logged(logged(party, *texts))


def test_the_card_says_what_its_epsilon_does_not_cover(ended: Path) -> None:
    evidence = read_evidence(ended)
    leaks = [Line(np.inf, 0.0, "an example's influence on the later reports of others, through the "
                  "training of left")]  # fmt: skip
    bank = evidence.parties["bank"]
    parties = {**evidence.parties, "bank": replace(bank, accounts=[*leaks, *bank.accounts])}
    text = Dossier(replace(evidence, parties=parties), [])._fact().text
    assert "No epsilon covers an example's influence on the later reports of others" in text
    assert text.endswith("This run used its seed instead.")


def test_one_partys_dossier_claims_nothing_for_the_others(copy: Path) -> None:
    for party in ("lead", "shop"):
        shutil.rmtree(copy / party)
    evidence = read_evidence(copy)
    fact = Dossier(evidence, [])._fact()
    assert fact.value.endswith(", this party only")
    told = {statement.key: statement.text for statement in statements(evidence)}
    assert (
        "What the other parties sent: this record has one party's account only"
        in (told["not_covered"])
    )
    assert evidence.run.job["privacy"]["randomness"] == "seeded"
    assert told["randomness"] == "The operating system of the machine of this party."
    assert told["mechanism"] == "embedding_dp (eps 1.1, gradient none, reuse false), delta 1e-05."
