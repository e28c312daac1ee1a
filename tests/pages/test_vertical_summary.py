"""How good, what was promised, what next: of a vertical run and of one party's folder."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from fedveil.pages.read_run import ReadRun
from fedveil.pages.vertical_page import answers
from fedveil.pages.vertical_summary import vertical_ending, worst_of
from fedveil.privacy.ledger import Line
from fedveil.record.account_lines import ACCOUNTS, LABEL, influence
from fedveil.vertical import label_watch
from fedveil.vertical.job import VerticalJob


def test_a_vertical_run_is_told_by_its_worst_account(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    events = ["0 began: fedveil", "0 finished after step 2"]
    job = VerticalJob().model_dump()
    run = ReadRun(tmp_path, job, [{"look": 2, "test_loss": 0.5}], [], events)
    lines = [
        Line(1.0, 0.0, "a bit of left"),
        Line(50.0, 1e-5, "an example's own reports in the run"),
    ]
    told, bare = vertical_ending(run, run, lines), vertical_ending(run, run, [])
    assert told.quality.value == "loss 0.500"
    assert told.promise.value == "epsilon 50 at delta 1e-05 (next to none)"
    assert told.promise.text.startswith("For an example's own reports in the run:")
    assert "embedding_dp.reuse=true" in told.next.text
    assert (bare.promise.value, bare.promise.tone) == ("none", "poor")
    assert "--set privacy.embedding_dp.eps=1" in bare.next.text
    sent = Line(math.inf, 0.0, "an example's values of left, sent unprotected")
    assert vertical_ending(run, run, [*lines, sent]) == bare
    assert "No epsilon covers" not in told.promise.text
    taught = [Line(math.inf, 0.0, influence(part)) for part in ("left", "middle")]
    partly = vertical_ending(run, run, [taught[0], *lines, taught[1], taught[0]])
    assert partly.promise.value == told.promise.value
    assert (
        "in any party's account. No epsilon covers an example's influence on the later reports of "
        "others, through the training of left and middle. The gradients"
    ) in partly.promise.text
    mixed = [Line(math.inf, 0.0, influence("left", "batch")), *lines, taught[1]]
    both = vertical_ending(run, run, mixed).promise
    assert both.value == told.promise.value
    assert (
        "No epsilon covers an example's influence on the later reports of others, through the "
        "training of middle. No epsilon covers an example's influence on the reports of others in "
        "its batch, through batch statistics of left. The gradients"
    ) in both.text
    assert told.promise.tone == "poor"
    good = vertical_ending(run, run, lines[:1])
    assert (good.promise.tone, good.next.value) == ("good", "try to break it")
    for apart, part in ((False, "fewer epochs"), (True, "`privacy.embedding_dp.reuse: true` in")):
        thin = vertical_ending(run, run, lines, apart=apart).next
        assert (thin.value, part in thin.text) == ("ask for a stronger guarantee", True)
    apart = vertical_ending(run, run, lines[:1], apart=True)
    assert apart.next.value == "ask the other parties"
    assert "needs a run with all parties" in apart.next.text
    assert vertical_ending(run, run, [], apart=True).next.value == "protect the activations"
    (tmp_path / "model.safetensors").unlink()  # it was interrupted
    for apart in (False, True):
        assert vertical_ending(run, run, lines, apart=apart).next.value == "let it finish"


def test_one_partys_epsilon_is_not_that_of_the_run(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    events = ["0 began: fedveil", "0 finished after step 2"]
    job = VerticalJob.model_validate({"privacy": {"label_dp": {"eps": 1.0}}}).model_dump()
    run = ReadRun(tmp_path, job, [], [], events)
    line = Line(1.0, 0.0, LABEL)
    alone, together = (vertical_ending(run, run, [line], apart=apart) for apart in (True, False))
    assert alone.promise.value == "epsilon 1 at delta 0 (strong), this party only"
    assert alone.promise.tone == "fair"
    assert alone.promise.text.startswith(
        "For an example's label, in all epochs: the largest finite figure in this party's own "
        "account. Each other party's account states the epsilon of what that party sends."
    )
    assert together.promise.value == "epsilon 1 at delta 0 (strong)"
    assert vertical_ending(run, run, [Line(50.0, 0.0, LABEL)], apart=True).promise.tone == "poor"


def test_only_a_run_in_one_process_draws_its_noise_from_a_seed(tmp_path: Path) -> None:
    said = []
    for randomness in ("seeded", "secure"):
        job = VerticalJob.model_validate({"privacy": {"randomness": randomness}}).model_dump()
        run = ReadRun(tmp_path, job, [], [], [])
        for apart in (False, True):
            text = vertical_ending(run, run, [Line(1.0, 0.0, LABEL)], apart=apart).promise.text
            said.append("This run used its seed instead." in text)
    assert said == [True, False, False, False]


@pytest.mark.parametrize(
    ("what", "reuse", "advice"),
    [
        (LABEL, True, "a smaller `privacy.label_dp.eps` changes more labels"),
        ("an example's own reports in the run", True, "fewer bits, or a smaller `privacy.embed"),
        ("an example's own reports in the run", False, "fewer epochs, and "),
    ],
)
@pytest.mark.parametrize("apart", [True, False])
def test_the_next_step_is_one_that_helps(
    what: str, reuse: bool, advice: str, apart: bool, tmp_path: Path
) -> None:
    (tmp_path / "model.safetensors").touch()
    events = ["0 began: fedveil", "0 finished after step 2"]
    privacy = {"embedding_dp": {"eps": 1.0, "reuse": reuse}, "label_dp": {"eps": 50.0}}
    job = VerticalJob.model_validate({"privacy": privacy}).model_dump()
    run = ReadRun(tmp_path, job, [], [], events)
    found = vertical_ending(run, run, [Line(50.0, 0.0, what)], apart=apart).next.text
    assert advice in found
    assert ("embedding_dp.reuse" in found) == ("fewer epochs" in advice)


@pytest.mark.parametrize("read", [True, False])
def test_labels_that_were_read_are_protected_too(read: bool, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    told = [f"0 {label_watch._AGAINST}"] * read
    events = ["0 began: fedveil", *told, "0 finished after step 2"]
    run = ReadRun(tmp_path, VerticalJob().model_dump(), [], [], events)
    found = vertical_ending(run, run, []).next
    assert ("and the labels" in found.value) == read
    assert ("--set privacy.label_dp.eps=1" in found.text) == read


@pytest.mark.parametrize("ended", [True, False])
@pytest.mark.parametrize("epsilon", [None, 50.0, 1.0])
def test_a_party_by_itself_is_named_no_command_that_takes_all(
    epsilon: float | None, ended: bool, tmp_path: Path
) -> None:
    """One party's folder is refused by `fedveil attack` and by `fedveil vertical run --resume`."""
    party = tmp_path / "bank"
    party.mkdir()
    for name in ("model.safetensors", "metrics.jsonl", "events.log"):
        (party / name).touch()
    accounts = (
        [] if epsilon is None else [Line(epsilon, 1e-5, "an example's own reports in the run")]
    )
    if ended:
        events = ["began: fedveil", *map(str, accounts), "finished after step 2: the last"]
        (party / "events.log").write_text("".join(f"0 {event}\n" for event in events))
    (party / ACCOUNTS).write_text("".join(json.dumps(line._asdict()) + "\n" for line in accounts))
    text = answers(ReadRun(tmp_path, VerticalJob().model_dump(), [], [], [])).next.text
    assert str(tmp_path / "job.yaml") not in text
    assert f"attack features {tmp_path}" not in text
    assert ("--resume" in text) == (not ended)


@pytest.mark.parametrize("ended", [True, False])
def test_a_leader_by_itself_does_not_deny_the_protection_of_the_others(
    ended: bool, tmp_path: Path
) -> None:
    (tmp_path / "model.safetensors").touch()
    events = ["0 began: fedveil", *["0 finished after step 2"] * ended]
    job = VerticalJob.model_validate({"privacy": {"embedding_dp": {"eps": 0.5}}}).model_dump()
    run = ReadRun(tmp_path, job, [], [], events)
    told = vertical_ending(run, run, [], apart=True)
    assert told.promise.value == "not known here"
    assert told.promise.text.endswith("sent without protection, in no account.")
    assert ("--resume" in told.next.text) == (not ended)
    assert "embedding_dp" not in told.next.text
    events.insert(1, "0 labels: privacy.label_protection ...")
    read = vertical_ending(run, run, [], apart=True).next
    assert ("privacy.label_dp.eps: 1" in read.text) == ended
    bare = ReadRun(tmp_path, VerticalJob().model_dump(), [], [], events)
    both = vertical_ending(bare, bare, [], apart=True).next.text
    assert ("embedding_dp.eps: 1` and `privacy.label_dp.eps: 1" in both) == ended
    (tmp_path / "model.safetensors").unlink()
    assert "--resume" in vertical_ending(run, run, [], apart=True).next.text


@pytest.mark.parametrize(
    ("task", "attack"), [("tables", "features"), ("mnist_halves", "features"), ("pangu", "tokens")]
)
@pytest.mark.parametrize("lines", [[], [Line(1.0, 1e-5, "an example's own reports in the run")]])
def test_a_vertical_run_is_attacked_by_what_its_task_sends(
    task: str, attack: str, lines: list[Line], tmp_path: Path
) -> None:
    (tmp_path / "model.safetensors").touch()
    events = ["0 began: fedveil", "0 finished after step 2"]
    job = VerticalJob().model_dump()
    job["task"]["name"] = task
    run = ReadRun(tmp_path, job, [{"look": 2, "test_loss": 0.5}], [], events)
    text = vertical_ending(run, run, lines).next.text
    assert f"`fedveil attack {attack} {tmp_path}`" in text


def test_the_worst_account_has_the_largest_epsilon() -> None:
    lines = [Line(1.0, 1e-3, "a"), Line(50.0, 1e-6, "b"), Line(7.0, 1e-5, "c")]
    assert worst_of(lines) == lines[1]
    assert worst_of([]) is None
