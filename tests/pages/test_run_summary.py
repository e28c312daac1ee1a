"""How good, what was promised, what next: of a federated run in any state."""

from __future__ import annotations

import math
from contextlib import nullcontext
from pathlib import Path
from shlex import split
from typing import Any

import pytest

from fedveil.errors import RunFolderError
from fedveil.federated.job import Job
from fedveil.flower.job.app_folder import check_deployable
from fedveil.pages.read_run import BUFFERS, ReadRun, read_run
from fedveil.pages.run_summary import Ending, ending
from fedveil.privacy.finding import Finding, Measured
from fedveil.record.recorder import ADVICE, SEVERAL
from fedveil.starter import DEFAULT_JOB

SEEDED = (
    "The bound assumes randomness from the operating system, as in a deployment. This run used its "
    "seed instead."
)


def record(epsilon: float, **more: Any) -> dict[str, Any]:
    return {
        "round": 1, "accuracy": 0.75, "loss": 0.5, "auc": 0.875, "unit": "client", "in_clear": [],
        "rests_on_server": False, "randomness": "simulation randomness",
        "epsilon_run_every_round": epsilon, "delta_run_every_round": 1e-5, **more,
    }  # fmt: skip


def ending_of(
    folder: Path,
    *records: dict[str, Any],
    name: str = "dp_encrypt",
    findings: tuple[Finding, ...] = (),
    ended: bool = True,
    deployed: bool = False,
    settings: tuple[str, ...] = (),
    events: tuple[str, ...] = (),
    why: str = "the last",
) -> Ending:
    job = Job.load(DEFAULT_JOB, ["rounds=3", "protection=not_encrypt", *settings]).model_dump()
    job["protection"]["name"] = name
    if ended:
        (folder / "model.safetensors").touch()
    apart = ["0 clients are Flower SuperNodes; their reasons stay with them"] * deployed
    said = [
        "0 began: fedveil",
        *apart,
        *(f"0 {event}" for event in events),
        *([f"0 finished after round 1: {why}"] if ended else []),
    ]
    return ending(ReadRun(folder, job, records, findings, said))


@pytest.mark.parametrize("again", ["began: fedveil", "went on after round 3", "train from step 7"])
def test_a_run_that_goes_on_after_its_end_has_not_ended(again: str, tmp_path: Path) -> None:
    events = ["0 began: fedveil", "0 finished after round 3: the last", f"0 {again}", "0 a note"]
    assert ReadRun(tmp_path, {}, (), (), events).ended is None
    assert ReadRun(tmp_path, {}, (), (), events[:2]).ended == "finished after round 3: the last"


def test_a_run_is_told_by_its_last_event_of_a_kind_and_its_whole_reason(tmp_path: Path) -> None:
    events = ["0 began: a", "0 note: one", "0 note: two", "0 other: three",
              "0 ended after round 2: a limit: loss = 1: 2"]  # fmt: skip
    run = ReadRun(tmp_path, {}, (), (), events)
    assert (run.said("note: "), run.said("none: ")) == ("two", "")
    assert run.stopped == "a limit: loss = 1: 2"
    assert ReadRun(tmp_path, {}, (), (), events[:-1]).stopped is None


def test_a_run_that_ended_without_a_whole_record_is_damaged(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(Job.load(DEFAULT_JOB, []).to_yaml())
    (tmp_path / "metrics.jsonl").write_text('{"round": 1,')
    for end, lost in (("finished after round 1: the last", True), ("ended after round 0", False)):
        (tmp_path / "events.log").write_text(f"0 began: fedveil\n0 {end}\n")
        with pytest.raises(RunFolderError, match="it has no end") if lost else nullcontext():
            assert read_run(tmp_path).records == []


@pytest.mark.parametrize(
    ("epsilon", "trusted", "unit", "said"),
    [
        (
            math.inf, False, "client",
            "For a client that takes part in every round. "
            "Nothing is guaranteed: what is sent may reveal "
            "everything about a client.",
        ),
        (
            1.0, False, "client",
            "For a client that takes part in every round, "
            "against everyone, including the server. An attacker who "
            "sees everything the server sees, and must tell which of two datasets a client holds, "
            f"is right at most 73.2% of the time (chance: 50%). {SEEDED}",
        ),
        (
            1.0, True, "example",
            "For one example of a client that takes part in every round, "
            "against everyone except the server. An "
            "attacker who sees everything except what the server sees, and must tell which of two "
            "examples a client holds, is right at most 73.2% of the time (chance: 50%). The server "
            f"is trusted: it needs no guess. {SEEDED}",
        ),
        (
            12.0, False, "client",
            "For a client that takes part in every round, "
            "against everyone, including the server. An attacker who "
            "sees everything the server sees, and must tell which of two datasets a client holds, "
            f"may be right more than 99.9% of the time (chance: 50%). {SEEDED}",
        ),
    ],
)  # fmt: skip
def test_what_is_promised_is_said_of_an_attacker(
    epsilon: float, trusted: bool, unit: str, said: str, tmp_path: Path
) -> None:
    last = record(epsilon, rests_on_server=trusted, unit=unit)
    name = "central_gaussian" if trusted else "dp_encrypt"
    promise = ending_of(tmp_path, last, name=name).promise
    assert promise.text == said


@pytest.mark.parametrize(
    ("name", "settings", "trusted", "said"),
    [
        ("distributed_dp", (), False, "against a server that follows the protocol."),
        (
            "distributed_dp", ("protection.distributed_dp.active_security=true",), False,
            "against a server that lies, within the limits in docs/secure-aggregation.md.",
        ),
        ("signds", (), False, "against everyone, including the server."),
        ("central_gaussian", (), True, "against everyone except the server."),
    ],
)  # fmt: skip
def test_the_promise_says_against_whom_it_holds(
    name: str, settings: tuple[str, ...], trusted: bool, said: str, tmp_path: Path
) -> None:
    last = record(1.0, rests_on_server=trusted, randomness="system randomness")
    text = ending_of(tmp_path, last, name=name, settings=settings).promise.text
    assert text.startswith(f"For a client that takes part in every round, {said} An attacker")
    assert "Assumes" not in text


def test_masks_without_noise_promise_nothing_of_the_sum(tmp_path: Path) -> None:
    text = ending_of(tmp_path, record(math.inf), name="pw_encrypt").promise.text
    assert text.endswith(
        "Masks hide single updates from a server that follows the protocol; the sum has no noise."
    )


@pytest.mark.parametrize(
    ("epsilon", "value", "tone"),
    [
        (1.0, "epsilon 1 at delta 1e-05 (strong)", "good"),
        (2.0, "epsilon 2 at delta 1e-05 (meaningful)", "good"),
        (1.88002, "epsilon 1.89 at delta 1e-05 (meaningful)", "good"),
        (5.0, "epsilon 5 at delta 1e-05 (weak)", "fair"),
        (50.0, "epsilon 50 at delta 1e-05 (next to none)", "poor"),
        (math.inf, "epsilon inf at delta 1e-05 (none)", "poor"),
    ],
)
def test_the_promise_has_its_word_and_its_colour(
    epsilon: float, value: str, tone: str, tmp_path: Path
) -> None:
    promise = ending_of(tmp_path, record(epsilon)).promise
    assert (promise.value, promise.tone) == (value, tone)


def test_quality_names_the_round_it_is_from_and_a_better_one(tmp_path: Path) -> None:
    looks = [record(1.0, accuracy=0.875), record(1.0, round=2)]
    late = {k: v for k, v in record(1.0, round=3).items() if k not in ("accuracy", "loss", "auc")}
    quality = ending_of(tmp_path, *looks, late).quality
    assert quality.value == "accuracy 75.0%"
    assert quality.text == (
        "loss 0.500, AUC 0.875 on the test examples after round 2 of 3; best in round 1: 87.5%"
    )
    assert ending_of(tmp_path, late).quality.value == "not measured yet"


REFUTED = Finding("m", "quick", "dp_encrypt", [Measured("epsilon at least", 3.0)], epsilon=2.0)
FOUND = Finding("m", "quick", "dp_encrypt", [Measured("epsilon at least", 1.0)], epsilon=2.0)


@pytest.mark.parametrize(
    ("epsilon", "more", "value", "command"),
    [
        (2.0, {"ended": False}, "let it finish", "fedveil run --resume {}"),
        (2.0, {"ended": False, "deployed": True}, "let it finish", "`flwr run` of the same app"),
        (2.0, {"deployed": True}, "try to break it", "fedveil attack membership {}"),
        (2.0, {"findings": (REFUTED,)}, "do not rely on the guarantee", "fedveil audit {}"),
        (math.inf, {"name": "not_encrypt"}, "choose a protection",
         "fedveil run {}/job.yaml --set protection=dp_encrypt --set server.weighting=equal`"),
        (math.inf, {"name": "not_encrypt", "settings": ("server.weighting=equal",)},
         "choose a protection", "fedveil run {}/job.yaml --set protection=dp_encrypt`"),
        (math.inf, {"name": "not_encrypt", "deployed": True}, "choose a protection",
         "`fedveil deploy DIR {}/job.yaml --set protection=dp_encrypt --set "
         "server.weighting=equal` writes an app that repeats the job"),
        (math.inf, {"name": "pw_encrypt"}, "add noise to the sum",
         "fedveil run {}/job.yaml --set protection=distributed_dp --set server.weighting=equal`"),
        (50.0, {}, "ask for a stronger guarantee", "fedveil budget {}/job.yaml --try"),
        (50.0, {"name": "my:Own"}, "ask for a stronger guarantee",
         "fedveil budget {}/job.yaml --try"),
        (2.0, {}, "try to break it, then deploy it", "fedveil attack membership {}"),
        (2.0, {"findings": (FOUND,)}, "try to break it, then deploy it",
         "fedveil deploy DIR {}/job.yaml"),
    ],
)  # fmt: skip
def test_what_to_do_next_goes_by_what_is_the_matter(
    epsilon: float, more: dict[str, Any], value: str, command: str, tmp_path: Path
) -> None:
    answer = ending_of(tmp_path, record(epsilon), **more).next
    assert answer.value == value
    assert command.format(tmp_path) in answer.text


@pytest.mark.parametrize("epsilon", [2.0, math.inf])
@pytest.mark.parametrize(
    ("settings", "unit", "command"),
    [
        ((), "client", "fedveil attack membership {}"),
        (("task=regression",), "client", "fedveil attack distinguish {}"),
        (("task=regression",), "example", "fedveil audit"),
        (("training.algorithm=scaffold",), "client", "fedveil audit"),
        (("clients.own_layers=[fc*]",), "client", "fedveil audit"),
    ],
)
def test_the_attack_that_is_named_takes_the_run(
    epsilon: float, settings: tuple[str, ...], unit: str, command: str, tmp_path: Path
) -> None:
    last = record(epsilon, unit=unit)
    answer = ending_of(tmp_path, last, name="not_encrypt", settings=settings).next
    assert f"`{command.format(tmp_path)}`" in answer.text


@pytest.mark.parametrize(
    ("name", "other", "settings"),
    [
        ("not_encrypt", "dp_encrypt", ()),
        ("not_encrypt", "dp_encrypt", ("server.aggregation=norm_bound",)),
        ("not_encrypt", "dp_encrypt", ("server.aggregation=median",)),
        ("pw_encrypt", "distributed_dp", ()),
        ("pw_encrypt", "distributed_dp", (
            "clients.number=5", "clients.fraction=1",
            "protection.pw_encrypt.reconstruct_secrets_threshold=3",
            "protection.pw_encrypt.active_security=true",
        )),
    ],
)  # fmt: skip
def test_the_position_that_is_named_takes_the_job_of_the_folder(
    name: str, other: str, settings: tuple[str, ...], tmp_path: Path
) -> None:
    own = (f"protection={name}", "model=logistic", *settings)
    (tmp_path / "job.yaml").write_text(Job.load(None, own).to_yaml())
    text = ending_of(tmp_path, record(math.inf), name=name, settings=own).next.text
    _, _, path, *more = split(text.split("`")[1])
    again = Job.load(Path(path), more[1::2])
    assert again.protection.name == other
    asked = "median" if "server.aggregation=median" in settings else "mean"
    assert again.server.aggregation == asked
    if other == "distributed_dp":
        held = again.protection
        assert held.distributed_dp.active_security == held.pw_encrypt.active_security


@pytest.mark.parametrize(("deployed", "start"), [(True, "deploy DIR"), (False, "run")])
def test_the_advice_of_a_run_names_what_its_operator_can_do(
    deployed: bool, start: str, tmp_path: Path
) -> None:
    advice = f"{ADVICE}protect it: `fedveil run job.yaml --set protection=rr` costs epsilon 2"
    answer = ending_of(tmp_path, record(math.inf), deployed=deployed, events=(advice,)).next
    assert answer.text.startswith(
        f"`fedveil {start} {tmp_path}/job.yaml --set protection=rr` costs"
    )
    assert ("`flwr run DIR` starts it on the clients" in answer.text) == deployed
    assert ("`fedveil run " in answer.text) != deployed


def test_a_model_with_buffers_is_told_to_be_changed_first(tmp_path: Path) -> None:
    text = ending_of(tmp_path, record(math.inf), events=(f"{BUFFERS}1.running_mean",)).next.text
    assert text.startswith("with a model without the buffers 1.running_mean, `fedveil run ")


@pytest.mark.parametrize("epsilon", [2.0, math.inf])
def test_examples_of_several_inputs_are_attacked_by_their_reports(
    epsilon: float, tmp_path: Path
) -> None:
    text = ending_of(tmp_path, record(epsilon), events=(f"{SEVERAL}a, b",)).next.text
    assert f"`fedveil attack distinguish {tmp_path}`" in text
    assert "membership" not in text


def test_deploying_is_named_without_what_a_simulator_alone_does(tmp_path: Path) -> None:
    settings = ("simulation.dropouts.report=0.2", "evaluation.clients=0.2", "audit.canaries=9")
    own = Job.load(DEFAULT_JOB, ["protection=dp_encrypt", *settings])
    (tmp_path / "job.yaml").write_text(own.to_yaml())
    text = ending_of(tmp_path, record(2.0), settings=settings).next.text
    command = next(part for part in text.split("`") if part.startswith("fedveil deploy"))
    _, _, _, path, *more = split(command)
    check_deployable(Job.load(Path(path), more[1::2]))
    kept = ("clients.own_layers=[fc*]", "stopping.keep=best")
    assert "deploy" not in ending_of(tmp_path, record(2.0), settings=kept).next.text


@pytest.mark.parametrize("more", [{"deployed": True}, {"why": "a limit"}])
def test_more_rounds_are_named_where_a_run_takes_them(more: dict[str, Any], tmp_path: Path) -> None:
    last = record(2.0, auc=0.6)
    assert f"`fedveil run --resume {tmp_path}" in ending_of(tmp_path, last).next.text
    assert "`" not in ending_of(tmp_path, last, **more).next.text


def test_a_model_that_has_hardly_learnt_is_helped_first(tmp_path: Path) -> None:
    assert ending_of(tmp_path, record(2.0, auc=0.6)).next.value == "improve the model"


@pytest.mark.parametrize(
    ("highest", "last", "collapsed"),
    [(0.9, 0.69, True), (0.89, 0.69, False), (0.95, 0.7, False), (math.nan, 0.5, False)],
)
def test_a_model_that_was_good_and_is_useless_has_collapsed(
    highest: float, last: float, collapsed: bool, tmp_path: Path
) -> None:
    records = [record(2.0, round=r, auc=a) for r, a in ((2, 0.8), (4, highest), (6, last))]
    told = ending_of(tmp_path, *records, events=(f"{ADVICE}protect it: with noise",)).next
    assert (told.value == "find out why the model collapsed") == collapsed
    assert (f"AUC fell from {highest:.3f} after round 4 to {last:.3f}" in told.text) == collapsed


@pytest.mark.parametrize(
    ("settings", "bounds"),
    [((), True), (("training.algorithm=feddyn", "server.optimizer=none", "server.lr=1"), True),
     (("training.gradient_norm=2",), False), (("training.algorithm=fedcm",), False),
     (("privacy.unit=example", "training.sampling_rate=0.5", "server.weighting=equal",
       "training.epochs=1"), False)],
)  # fmt: skip
def test_a_collapsed_run_is_told_how_to_bound_its_gradients(
    settings: tuple[str, ...], bounds: bool, tmp_path: Path
) -> None:
    records = [record(2.0, round=r, auc=a) for r, a in ((1, 0.97), (2, 0.5))]
    text = ending_of(tmp_path, *records, settings=settings).next.text
    command = f"`fedveil run {tmp_path}/job.yaml --set training.gradient_norm=10`"
    assert (command in text) == bounds
    assert "A smaller training.lr" in text


def test_a_run_without_a_round_says_so(tmp_path: Path) -> None:
    answers = ending_of(tmp_path, ended=False)
    assert answers.promise.value == "no client has sent anything yet"
    assert answers.quality.value == "not measured yet"


def test_quality_is_of_the_latest_round_with_a_test_and_the_first_of_the_best(
    tmp_path: Path,
) -> None:
    looks = [record(1.0, round=r, accuracy=a) for r, a in ((2, 0.7), (4, 0.9), (6, 0.9), (8, 0.8))]
    text = ending_of(tmp_path, *looks, settings=("rounds=11",)).quality.text
    assert "after round 8 of 11; best in round 4: 90.0%" in text
    equal = ending_of(tmp_path, *looks[:3]).quality.text
    assert equal.endswith("after round 6 of 3")


@pytest.mark.parametrize(
    ("epsilon", "auc", "value"),
    [(5.0, 0.9, "ask for a stronger guarantee"), (2.0, 0.69, "improve the model"),
     (2.0, 0.71, "try to break it, then deploy it")],
)  # fmt: skip
def test_what_to_do_next_goes_by_the_borders(
    epsilon: float, auc: float, value: str, tmp_path: Path
) -> None:
    assert ending_of(tmp_path, record(epsilon, auc=auc)).next.value == value


def test_a_deployed_run_with_findings_can_still_be_attacked(tmp_path: Path) -> None:
    text = ending_of(tmp_path, record(2.0), deployed=True, findings=(FOUND,)).next.text
    assert f"`fedveil attack membership {tmp_path}`" in text


@pytest.mark.parametrize(
    ("stopping", "deploys"), [((), True), (("stopping.target=0.9",), False),
                              (("stopping.patience=3",), False)],
)  # fmt: skip
def test_own_layers_deploy_unless_the_model_is_judged(
    stopping: tuple[str, ...], deploys: bool, tmp_path: Path
) -> None:
    settings = ("clients.own_layers=[fc*]", *stopping)
    assert ("deploy" in ending_of(tmp_path, record(2.0), settings=settings).next.text) == deploys


def test_quality_of_the_end_stands_for_a_round_without_a_test_and_a_lost_model_has_no_best(
    tmp_path: Path,
) -> None:
    late = {k: v for k, v in record(1.0).items() if k not in ("accuracy", "loss", "auc")}
    quality = ending_of(tmp_path, late, events=("the model at its end: accuracy 31.2%",)).quality
    assert (quality.value, quality.text) == ("accuracy 31.2%", "on the test examples")
    lost = ending_of(tmp_path, record(1.0), record(1.0, round=2, accuracy=math.nan)).quality
    assert lost.value == "accuracy undefined"
    assert "best in round" not in lost.text


def test_a_run_whose_model_is_not_saved_is_finished_first_and_any_finding_may_refute(
    tmp_path: Path,
) -> None:
    for findings in ((REFUTED, FOUND), (FOUND, REFUTED)):
        answer = ending_of(tmp_path, record(2.0), findings=findings).next
        assert answer.value == "do not rely on the guarantee"
    bare = ending_of(tmp_path, record(math.inf), name="not_encrypt", deployed=True).next
    assert "`flwr run DIR` starts it on the clients" in bare.text
    (tmp_path / "model.safetensors").unlink()
    job = Job.load(DEFAULT_JOB, []).model_dump()
    said = ["0 began: fedveil", "0 finished after round 1: the last"]
    assert ending(ReadRun(tmp_path, job, [record(2.0)], (), said)).next.value == "let it finish"


def test_a_judged_model_without_own_layers_deploys_and_a_task_without_auc_has_not_failed(
    tmp_path: Path,
) -> None:
    bare = {key: value for key, value in record(2.0).items() if key != "auc"}
    answer = ending_of(tmp_path, bare, settings=("stopping.keep=best",)).next
    assert answer.value == "try to break it, then deploy it"
    assert f"`fedveil deploy DIR {tmp_path}/job.yaml` runs the job" in answer.text


def test_a_run_without_a_usable_report_has_no_model_and_is_not_to_be_finished(
    tmp_path: Path,
) -> None:
    why = "no report was usable in any of 3 rounds: NaN: 30x; a lower training.lr may help"
    end = f"ended after round 3 without a result: {why}"
    shown = ending_of(tmp_path, record(math.inf), ended=False, events=(end,))
    assert (shown.quality.value, shown.quality.tone) == ("no trained model", "poor")
    assert shown.quality.text == (
        "the model before training has accuracy 75.0% on the test examples"
    )
    assert (shown.next.value, shown.next.text) == ("remove the cause, then run it again", why)
    untested = {k: v for k, v in record(math.inf).items() if k != "accuracy"}
    assert ending_of(tmp_path, untested, ended=False, events=(end,)).quality.text == ""
    again = ending_of(tmp_path, record(1.0), ended=False, events=(end, "went on after round 3"))
    assert (again.quality.value, again.next.value) == ("accuracy 75.0%", "let it finish")
