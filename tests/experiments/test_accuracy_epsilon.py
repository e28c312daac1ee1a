"""Accuracy against epsilon: how rates are chosen, and that the picture shows the points."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments import accuracy_claims, accuracy_epsilon
from experiments.accuracy_epsilon import AccuracyEpsilon, Study, attacked
from experiments.accuracy_picture import Mark, draw
from experiments.experiment import Verdict
from experiments.saved_results import last_checkpoint
from fedveil.attacks.membership.shadow_runs import Pool, Round, play_round
from fedveil.attacks.target import Target
from fedveil.data.datasets import load
from fedveil.engine.federation import Federation
from fedveil.entropy import Seeded
from fedveil.entry.simulation import simulate
from fedveil.federated.job import Job
from fedveil.starter import DEFAULT_JOB
from folders import ROOT

JOBS = accuracy_epsilon.JOBS
FULL = JOBS["full"]
TINY = (
    "rounds=2", "clients.number=12", "data.name=parts:data", "model=parts:plain",
    "simulation.workers=0", "protection.distributed_dp.reconstruct_secrets_threshold=7",
    "protection.distributed_dp.neighbours=complete",
    "protection.pw_encrypt.reconstruct_secrets_threshold=7",
)  # fmt: skip


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(accuracy_epsilon.JOBS, "small", TINY)
    positions = dict.fromkeys(("distributed_dp", "central_gaussian", "signds"), (2.0,))
    locals_ = dict.fromkeys(("dp_encrypt", "rr", "oue"), (1000.0,))
    monkeypatch.setitem(accuracy_epsilon.EPSILONS, "small", {**positions, **locals_})
    drawn = ("clients.fraction=0.75", "training.batch_size=7", "server.lr=0.4")
    monkeypatch.setattr(accuracy_epsilon, "DRAWN", drawn)
    monkeypatch.setattr(accuracy_epsilon, "_MOST_STEPS", 2)
    monkeypatch.setattr(accuracy_epsilon, "_ASKED", 12)
    return


@pytest.mark.slow
def test_the_experiment_goes_on_where_it_was_and_draws_every_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play, rounds = Federation._round, list[int]()

    def counted(self: Federation, number: int) -> Any:
        rounds.append(number)
        return play(self, number)

    monkeypatch.setattr(Federation, "_round", counted)
    outcome = AccuracyEpsilon().run(tmp_path, "small", lambda text: None)
    assert rounds
    (table,) = outcome.tables
    assert len(table.rows) == 2 + 3 + 3
    assert {len(row[3].split()) for row in table.rows} == {1}
    drawn = {path.name for path in (tmp_path / "runs").glob("*,drawn,*")}
    assert drawn == {f"{name},drawn,seed={n}" for name in accuracy_claims.BARE for n in range(3)}
    assert "9 clients are drawn in each round, a client trains in batches of 7" in outcome.ran
    assert all(0 < float(each) <= 1 for row in table.rows for each in row[3].split())
    (picture,) = outcome.pictures
    text = picture.read_text()
    for name in ("not_encrypt", "distributed_dp", "signds", "oue", "next to none", "guessing"):
        assert f">{name}" in text or f"{name}<" in text
    rounds.clear()
    again = AccuracyEpsilon().run(tmp_path, "small", lambda text: None)
    assert not rounds
    assert again.tables == outcome.tables


def test_rates_are_chosen_on_training_examples_that_nobody_trained_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    begin = accuracy_epsilon.start

    def watched(*arguments: Any, dataset: Any = None, **named: Any) -> Federation:
        seen.append(dataset)
        return begin(*arguments, dataset=dataset, **named)

    monkeypatch.setattr(accuracy_epsilon, "start", watched)
    monkeypatch.setitem(accuracy_epsilon.EPSILONS, "small", {})
    study = Study(tmp_path, "small", lambda text: None)
    (cell,) = study._cells("not_encrypt")
    study._choose(cell, 0.4)
    whole = load("parts:data")
    known = {row.tobytes() for row in whole.train.x}
    assert len(seen) == 2
    for part in seen:
        ours, held = ({row.tobytes() for row in side.x} for side in (part.train, part.test))
        assert not ours & held
        assert ours | held == known
        assert len(part.test) == len(whole.train) // 10


@pytest.mark.parametrize(
    ("scores", "chosen", "tried"),
    [
        ({0.4: 0.9, 0.1: 0.8}, 0.4, 2),
        ({0.4: 0.9, 0.1: 0.9, 0.025: 0.8}, 0.1, 3),
        ({0.4: 0.2, 0.1: 0.5, 0.025: 0.7, 0.00625: 0.6}, 0.025, 4),
    ],
)
def test_a_rate_is_looked_for_until_a_smaller_one_is_worse(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    scores: dict[float, float],
    chosen: float,
    tried: int,
) -> None:
    monkeypatch.setattr(accuracy_epsilon, "_MOST_STEPS", 6)
    monkeypatch.setitem(accuracy_epsilon.EPSILONS, "small", {})
    study = Study(tmp_path, "small", lambda text: None)
    monkeypatch.setattr(study, "_rehearsed", lambda cell, rate: scores[round(rate, 5)])
    (cell,) = study._cells("not_encrypt")
    assert study._choose(cell, 0.4) == pytest.approx(chosen)
    assert len(study._tried[cell.setting.name]) == tried


def test_reports_in_clear_give_their_clients_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = (*TINY, "clients.number=120")  # two examples each
    monkeypatch.setitem(accuracy_epsilon.JOBS, "small", few)
    study = Study(tmp_path, "small", lambda text: None)
    (bare,) = study._cells("not_encrypt")
    (noisy,) = study._cells("distributed_dp")
    reached = {}
    for cell, asked in ((bare, 60), (noisy, 1000)):  # clients, and all examples in the sum
        monkeypatch.setattr(accuracy_epsilon, "_ASKED", asked)
        _, reached[cell.setting.position] = attacked(
            study._point(cell, 0.4).runs[0].folder, tmp_path / "again"
        )
    in_clear, summed = reached["not_encrypt"], reached["distributed_dp"]
    assert in_clear.low > 0.7
    assert summed.low <= 0.5 <= summed.high
    assert summed.high < in_clear.low


@pytest.mark.parametrize("asked", [7, 500])
def test_a_sum_of_few_reports_gives_their_clients_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: int
) -> None:
    """Every client of the round is in the sum, and the attacked examples are from all of them."""
    few = ("clients.number=16", "clients.fraction=0.25", "training.epochs=60", "training.lr=0.5",
           "protection.pw_encrypt.reconstruct_secrets_threshold=3")  # fmt: skip
    monkeypatch.setattr(accuracy_epsilon, "_ASKED", asked)
    job = Job.load(DEFAULT_JOB, [*TINY, *few, "protection=pw_encrypt"])
    target = Target.of(job)
    pool = Pool.everything(target.dataset)
    summed = play_round(
        target,
        np.arange(len(target.dataset.train)),
        np.arange(len(target.dataset.train), len(pool)),
        4,
        Seeded(0, "attacked"),
    )
    assert len(summed.held[0]) > 20
    found = accuracy_epsilon._by_report(target, pool)
    strangers = len(summed.strangers[0])
    assert found.cases == min(asked, len(summed.held[0])) + min(asked, strangers)
    if asked == 500:
        assert found.low > 0.5


def test_the_attacked_sum_is_that_of_a_whole_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the reports of nine of the twelve clients, though fewer would do."""
    monkeypatch.setattr(accuracy_epsilon, "_ASKED", 2)
    played, sizes = accuracy_epsilon.play_round, list[int]()

    def counted(*arguments: Any, **more: Any) -> Round:
        result = played(*arguments, **more)
        sizes.append(len(result.held[0]))
        return result

    monkeypatch.setattr(accuracy_epsilon, "play_round", counted)
    few = ("protection=pw_encrypt", "protection.pw_encrypt.reconstruct_secrets_threshold=3")
    target = Target.of(Job.load(DEFAULT_JOB, [*TINY, "clients.fraction=0.75", *few]))
    accuracy_epsilon._by_report(target, Pool.everything(target.dataset))
    assert sizes[0] < sizes[-1] == 9 * len(target.dataset.train) // 12


def test_rows_are_chosen_from_the_first_client_to_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accuracy_epsilon, "_ASKED", 4)
    assert list(accuracy_epsilon.spread(np.array([9, 7, 5, 3, 1, 0, 2]))) == [9, 5, 1, 2]
    assert list(accuracy_epsilon.spread(np.array([9, 7, 5]))) == [9, 7, 5]


def test_a_point_without_an_epsilon_is_a_line_at_every_one() -> None:
    marks = [
        Mark("not_encrypt", math.inf, (0.9,), 1.0),
        *(Mark("rr", e, (a, a + 0.02), 0.5) for e, a in ((0.5, 0.1), (1e4, 0.8))),
    ]
    picture = draw(marks).decode()
    assert picture == draw(marks).decode()
    assert ">not_encrypt<" in picture
    assert ">10,000<" in picture
    assert np.isclose(marks[1].accuracy, 0.11)


def test_a_name_is_moved_off_another_curve() -> None:
    """distributed_dp ends at 16, and dp_encrypt passes through the space for the name."""

    def height(*others: Mark) -> float:
        mine = [Mark("distributed_dp", e, (0.9,), 0.5) for e in (0.25, 16)]
        picture = draw([*mine, *others, Mark("rr", 1e6, (0.1,), 0.5)]).decode()
        found = re.search(r'<text[^>]* y="([0-9.]+)"[^>]*>distributed_dp<', picture)
        assert found is not None
        return float(found[1])

    alone = height()
    crossed = height(*(Mark("dp_encrypt", e, (a,), 0.5) for e, a in ((4, 0.8), (1e3, 0.95))))
    assert crossed > alone + 10  # further down
    assert height(Mark("dp_encrypt", 4, (0.2,), 0.5), Mark("dp_encrypt", 1e3, (0.3,), 0.5)) == alone


def test_the_full_job_is_the_example_with_a_thousand_clients() -> None:
    ours = Job.load(DEFAULT_JOB, FULL)
    example = Job.load(ROOT / "examples" / "private_mnist" / "clients-1000.yaml")
    assert ours.training == example.training
    assert (ours.rounds, ours.model, ours.data) == (example.rounds, example.model, example.data)
    assert ours.clients == example.clients
    assert ours.server.optimizer == example.server.optimizer
    assert accuracy_epsilon.CLIPS["full"] == example.protection.distributed_dp.clip
    assert accuracy_epsilon._RATES["full"] == example.server.lr


def test_the_medium_job_is_the_full_one_for_a_third_of_its_rounds() -> None:
    medium, full = (Job.load(DEFAULT_JOB, JOBS[scale]) for scale in ("medium", "full"))
    said = {"rounds", "evaluation"}
    assert medium.model_dump(exclude=said) == full.model_dump(exclude=said)
    assert (medium.rounds, full.rounds) == (20, 60)
    assert {0.25, 16} <= {*accuracy_epsilon.EPSILONS["medium"]["rr"]}


def points(**changed: Any) -> accuracy_claims.Reached:
    """Return the accuracies of all seeds by protection, of which those in `changed` differ."""
    noisy = [(2.0, (0.4, 0.42, 0.41)), (30.0, (0.9, 0.91, 0.92))]
    bare = {name: [(math.inf, (0.96,))] for name in accuracy_claims.BARE}
    return {**bare, **dict.fromkeys(accuracy_claims.REPORT, noisy), **changed}


#: Each seed's accuracy without protection, with a drawn cohort.
PLAIN = (0.95, 0.97, 0.96)


def answers(masked: tuple[float, ...] = PLAIN, **changed: Any) -> dict[str, str]:
    """Return the answers that are not `agrees`, by the beginnings of the measures."""
    drawn = {"not_encrypt": PLAIN, "pw_encrypt": masked}
    found = accuracy_claims.judged(points(**changed), drawn)
    return {v.what.partition(":")[0]: v.answer for v in found if not v.agrees}


@pytest.mark.parametrize(
    ("masked", "answer"),
    [
        (PLAIN, "agrees"),
        ((0.9505, 0.9695, 0.9605), "agrees"),  # less than what counts
        ((0.94, 0.961, 0.95), "differs"),
        ((0.96, 0.979, 0.97), "differs"),  # another accuracy, though a better one
        ((0.96, 0.96, 0.96), "says nothing"),  # the seeds cannot decide
        ((0.1, 0.97, 0.96), "says nothing"),  # one of them learnt nothing
    ],
)
def test_a_lossless_sum_has_the_accuracy_of_a_plain_one(
    masked: tuple[float, ...], answer: str
) -> None:
    name = "PW_ENCRYPT is lossless as accuracy"
    found = answers(masked)
    assert found.get(name, "agrees") == answer
    assert not found.keys() - {name}


def lossless(plain: tuple[float, ...], masked: tuple[float, ...]) -> Verdict:
    return accuracy_claims._lossless({"not_encrypt": plain, "pw_encrypt": masked})


def test_runs_that_learnt_nothing_do_not_show_a_lossless_sum() -> None:
    idle = (0.11, 0.09, 0.1)
    assert lossless(idle, idle).answer == "says nothing"


def test_one_run_under_the_names_of_three_seeds_shows_nothing() -> None:
    """Its interval is a point, whatever the masks do."""
    assert lossless(PLAIN, PLAIN).answer == "agrees"
    found = lossless((0.96,) * 3, (0.96,) * 3)
    assert (found.answer, found.why) == ("says nothing", "all seeds end equally")
    assert found.ours == (
        "0.0000 [0.0000, 0.0000] (0.9600, 0.9600, 0.9600 minus 0.9600, 0.9600, 0.9600)"
    )


def test_seeds_matter_only_in_the_runs_that_show_a_lossless_sum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all clients in every round and no noise, all seeds train the same model."""
    monkeypatch.undo()
    weights = {}
    for kind, changes in {"all": (), "drawn": accuracy_epsilon.DRAWN}.items():
        for seed in range(2):
            some = ["rounds=1", "simulation.workers=0", "protection.name=pw_encrypt"]
            job = Job.load(DEFAULT_JOB, [*some, *changes, f"seed={seed}", "record.page=false"])
            run = simulate(job, tmp_path / f"{kind}-{seed}")
            weights[kind, seed] = last_checkpoint(run.folder).weights
    moved = np.abs(weights["all", 0]).max()
    assert moved > 0.01
    assert np.allclose(weights["all", 0], weights["all", 1], atol=1e-3 * moved)
    assert not np.allclose(weights["drawn", 0], weights["drawn", 1], atol=0.1 * moved)


def test_accuracy_grows_by_more_than_chance() -> None:
    assert not answers()
    level = [(2.0, (0.9, 0.91, 0.92)), (30.0, (0.9, 0.912, 0.92))]
    assert answers(signds=level) == {"signds": "differs"}
    assert answers(signds=[(2.0, (0.9,)), (30.0, (0.91,))]) == {"signds": "says nothing"}
    assert answers(signds=[(2.0, (0.9,)), (30.0, (0.87,))]) == {"signds": "differs"}
    assert answers(signds=[(2.0, (0.87,)), (30.0, (0.9,))]) == {}
    one = [(2.0, (0.1,)), (30.0, (0.9,))]  # the other is at chance level
    assert answers(signds=one) == {"signds": "says nothing"}
    far = [(2.0, (0.4, 0.42, 0.41)), (30.0, (0.7, 0.71, 0.72))]
    assert answers(oue=far) == {"rr and oue at the same epsilon": "differs"}
    scattered = [(2.0, (0.4, 0.42, 0.41)), (30.0, (0.8, 0.97, 0.75))]
    assert answers(oue=scattered) == {"rr and oue at the same epsilon": "says nothing"}


def test_rr_and_oue_are_compared_where_they_are_furthest_apart() -> None:
    """The sign of the difference must not matter."""
    lower = [(2.0, (0.34, 0.36, 0.35)), (30.0, (0.92, 0.93, 0.94))]
    drawn = {"not_encrypt": PLAIN, "pw_encrypt": PLAIN}
    found = [*accuracy_claims.judged(points(oue=lower), drawn)][-1]
    assert found.agrees
    assert found.ours == "oue minus rr: -0.060 [-0.060, -0.060] where they are furthest apart"
    assert found.held_to.endswith("with the whole interval")
