"""The examples and clients that a membership attack tests, and its thresholds from references."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from test_membership import EXAMPLES, clouds, job, trained
from torch import nn

from fedveil.attacks.effort import Watch
from fedveil.attacks.membership import client_membership, membership, shadow_runs
from fedveil.attacks.membership.client_membership import Game, measured
from fedveil.attacks.membership.membership import METHODS, Case, attack
from fedveil.attacks.membership.model_answers import Answers, answers
from fedveil.attacks.membership.references import References, halves, threshold
from fedveil.attacks.membership.report_scores import ReportScores, Round
from fedveil.attacks.membership.shadow_runs import Pool, Rehearsal, paired, play_round, split
from fedveil.attacks.roc import balanced_accuracy, best_threshold
from fedveil.attacks.server_view import Seen
from fedveil.attacks.target import Target
from fedveil.data.examples import Examples
from fedveil.entropy import Seeded
from fedveil.federated.job import Job
from fedveil.learning import evaluate
from fedveil.learning.weight_layout import Layout
from fedveil.privacy.finding import Measured
from fedveil.privacy.guarantee_strength import Figure
from fedveil.protections.reading import Reading


@pytest.fixture(scope="module")
def case() -> Case:
    """A model that was trained on 100 of 240 examples, and four references."""
    data, target = clouds(), Target.of(job())
    pool, members = Pool.training(target.dataset), np.arange(EXAMPLES) < 100
    held = halves(EXAMPLES, 4, Seeded(1, "halves"))
    x, y = data.train.x, data.train.y
    given = [answers(trained(x[row], y[row], seed), x, y) for seed, row in enumerate(held)]
    model = trained(x[members], y[members], 99)
    other = replace(target, job=job(seed=5))
    references = References(given, held, y)
    return Case(pool, members, model, target, members, other, held[0], references, Seeded(4))


def test_a_models_metrics_are_at_the_references_thresholds(case: Case) -> None:
    found = {figure.name: figure for figure in case.on_model()}
    given, apart = answers(case.model, case.pool.x, case.pool.y), 0
    for name, method in METHODS.items():
        scores = method(given, case.references)
        sides = scores[case.members], scores[~case.members]
        limit = 0.0 if name == "shadow models" else threshold(method, case.references)
        at = balanced_accuracy("", *sides, limit)
        apart += at.value != balanced_accuracy("", *sides, best_threshold(*sides)).value
        figure = found[f"{name} balanced accuracy"]
        assert (figure.value, figure.cases) == (at.value, EXAMPLES)
    assert apart >= 4, "thresholds that the model's own scores would choose are others"
    right = given.truth == given.top[:, 0]
    for name, mask in (("members", case.members), ("others", ~case.members)):
        figure = found[f"accuracy on {name}"]
        assert (figure.value, figure.cases) == (right[mask].mean(), mask.sum())


@pytest.mark.parametrize("kind", ["report", "sum", "direction"])
def test_a_rounds_metrics_are_at_the_threshold_of_another_round(
    case: Case, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw, size = np.random.default_rng(3), len(case.target.weights)
    asked: list[tuple[Any, ...]] = []

    def played(
        target: Target, rows: Any, strangers: Any, most: int, entropy: Any, kinds: Any = None
    ) -> Round:
        asked.append((target, rows.tolist(), strangers.tolist(), most, kinds))
        readings = [Reading(draw.normal(size=size), np.ones(size), kind != "direction")]
        some = draw.permutation(EXAMPLES)
        return Round(readings, [some[:20]], [some[20:55]], summed=kind == "sum")

    monkeypatch.setattr(membership, "play_round", played)
    draw = np.random.default_rng(3)
    monkeypatch.setattr(Pool, "kinds", lambda self, job: "the kinds")
    rounds = [played(case.target, *split(case.members), 3, None) for _ in range(2)]
    draw = np.random.default_rng(3)
    asked.clear()
    figures, summed = case.on_round(3)
    assert summed == (kind == "sum")
    held = case.references.held[0]
    assert asked == [
        (target, np.flatnonzero(mask).tolist(), np.flatnonzero(~mask).tolist(), 3, "the kinds")
        for target, mask in ((case.target, case.members), (case.other, held))
    ]
    scores = ReportScores(case.target.model, case.target.weights)
    what = "sum" if kind == "sum" else "report"
    scorers = {f"{what}'s gradient": scores.along, f"{what}'s loss": scores.moved}
    if kind == "direction":
        del scorers["report's loss"]
    found = {figure.name: figure for figure in figures}
    assert len(found) == 4 * len(scorers)
    for name, scorer in scorers.items():
        attacked, rehearsed = (r.scores(scorer, case.pool.x, case.pool.y) for r in rounds)
        at = balanced_accuracy("", *attacked, best_threshold(*rehearsed))
        assert found[f"{name} balanced accuracy"].value == at.value
        assert at.value != balanced_accuracy("", *attacked, best_threshold(*attacked)).value


class _Rounded(torch.autograd.Function):
    """Rounds to eighths. Its straight-through gradient has no forward derivative."""

    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor) -> torch.Tensor:
        return torch.round(weight * 8) / 8

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


class _Quantised(nn.Module):
    """A dense layer, with rounded weights if `own`, after a normalisation. `idle` is not used."""

    def __init__(self, own: bool) -> None:
        super().__init__()
        self.own = own
        draw = torch.Generator().manual_seed(2)
        self.norm = nn.BatchNorm1d(4)
        self.idle = nn.Parameter(torch.rand(5, generator=draw))
        self.weight = nn.Parameter(torch.rand(3, 4, generator=draw))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x) @ (_Rounded.apply(self.weight) if self.own else self.weight).T


@pytest.mark.parametrize("own", [True, False])
def test_a_rate_needs_no_gradient_of_buffers_and_no_forward_derivative(own: bool) -> None:
    model, draw = _Quantised(own).eval(), np.random.default_rng(5)
    x, y = draw.normal(size=(11, 4)).astype(np.float32), draw.integers(0, 3, 11)
    weights = Layout(model).vector()
    reading = Reading(draw.normal(size=len(weights)), draw.random(len(weights)), True)
    found = ReportScores(model, weights).along(reading, x, y)
    toward = reading.estimate * reading.weight
    expected = []
    for row, label in zip(torch.from_numpy(x), torch.from_numpy(y), strict=True):
        model.zero_grad()
        nn.functional.cross_entropy(model(row[None]), label[None]).backward()
        flat = [
            np.zeros(e.stop - e.start) if e.tensor.grad is None else e.tensor.grad.numpy().ravel()
            for e in Layout(model).entries
        ]
        expected.append(-np.concatenate(flat) @ toward / np.linalg.norm(toward))
    assert found == pytest.approx(expected, abs=1e-6)
    assert np.ptp(expected) > 0.1


def test_a_finished_runs_members_are_its_training_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    rehearsed: list[Target] = []
    monkeypatch.setattr(
        membership, "rehearse",
        lambda target: rehearsed.append(target) or Rehearsal(target.model, np.arange(4), 1),
    )  # fmt: skip
    target = Target.of(job())
    found = Case.of(replace(target, trained=True), 2, Seeded(3), Watch())
    assert (len(found.pool), found.members.sum()) == (EXAMPLES + 40, EXAMPLES)
    assert np.array_equal(found.pool.x[found.members], target.dataset.train.x)
    assert len({found.other.job.seed, target.job.seed}) == 2
    assert (rehearsed[0], len(rehearsed)) == (found.other, 2)
    for one, held in zip(rehearsed, found.references.held, strict=True):
        assert np.array_equal(one.dataset.train.x, found.pool.x[held])


def test_examples_of_clients_that_took_no_part_are_not_members(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two of four clients took part in the attacked run, and one in each reference run."""
    played: list[Target] = []
    stated = Figure(7.5, 1e-3)

    def rehearse(target: Target) -> Rehearsal:
        played.append(target)
        if len(played) == 1:
            return Rehearsal(target.model, np.array([1, 3], np.uint64), 4, stated)
        return Rehearsal(target.model, np.array([2], np.uint64), 6, Figure(9.5, 1e-4))

    monkeypatch.setattr(membership, "rehearse", rehearse)
    found = Case.of(Target.of(job()), 2, Seeded(3), Watch())
    attacked, *others = played
    mine = np.concatenate([attacked.rows(1), attacked.rows(3)])
    given = np.flatnonzero(found.given)
    assert (len(given), found.members.sum()) == (EXAMPLES // 2, len(mine))
    assert np.array_equal(np.flatnonzero(found.members), np.sort(given[mine]))
    for other, held in zip(others, found.references.held, strict=True):
        assert np.array_equal(found.pool.x[held], other.dataset.train.x[np.sort(other.rows(2))])
    assert np.array_equal(found.pool.x[found.other_given], others[0].dataset.train.x)
    assert found.asked == "the members are the 60 examples of 2 of 4 clients that took part"
    assert (found.target.played, found.target.claim) == (4, stated)


@pytest.mark.parametrize("claim", [None, Figure(7.5, 1e-3)])
@pytest.mark.parametrize(("effort", "count", "clients"), [("quick", 4, 8), ("standard", 32, 32)])
def test_a_finding_is_of_all_rounds_of_the_run(
    effort: Any, count: int, clients: int, claim: Figure | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    stub = SimpleNamespace(
        on_model=lambda: [Measured("a", 0.1)],
        on_round=lambda most: (asked.append(most) or [Measured("b", 0.2)], False),
        asked="the members are 7 examples",
        target=SimpleNamespace(played=3, claim=claim),
    )
    monkeypatch.setattr(
        Case, "of", lambda target, references, entropy, watch: asked.append(references) or stub
    )
    target = Target.of(job(protection="dp_encrypt"))
    finding = attack(target, effort, Watch())
    assert asked == [count, clients]
    assert (finding.epsilon, finding.delta) == (claim or target.promised(3))
    assert finding.saw.startswith("the model after 3 rounds, ")
    assert [figure.name for figure in finding.figures] == ["a", "b"]
    assert finding.saw.endswith("; the members are 7 examples")


def test_clients_are_asked_about_at_the_same_effort_if_reports_say_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(
        client_membership, "measured",
        lambda target, effort: (asked.append(effort) or [Measured("c", 0.3)], 2),
    )  # fmt: skip
    for summed, names in ((False, ["a", "b"]), (True, ["a", "b", "c"])):
        stub = SimpleNamespace(
            on_model=lambda: [Measured("a", 0.1)],
            on_round=lambda most, summed=summed: ([Measured("b", 0.2)], summed),
            asked="",
            target=SimpleNamespace(played=4, claim=None),
        )
        monkeypatch.setattr(Case, "of", lambda *given, stub=stub: stub)
        finding = attack(Target.of(job(protection="dp_encrypt")), "standard", Watch())
        assert [figure.name for figure in finding.figures] == names
    assert asked == ["standard"]


def test_a_rehearsal_is_the_job_without_what_takes_time(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[tuple[Any, Any]] = []

    def start(job: Any, *engine: Any, dataset: Any) -> Any:
        begun.append((job, dataset))
        ledger = SimpleNamespace(clients=[3], adaptive=False)
        run = SimpleNamespace(
            model="trained", ledger=ledger, job=job, kept_round=None, metrics=[{}] * 4
        )
        return SimpleNamespace(run=lambda: run)

    monkeypatch.setattr(shadow_runs, "start", start)
    target = Target.of(job(rounds=5, seed=8, privacy={"account": "ours", "max_epsilon": 3.0}))
    assert shadow_runs.rehearse(target) == Rehearsal("trained", [3], 4)  # type: ignore[arg-type]
    ((played, dataset),) = begun
    assert (played.rounds, played.seed) == (5, 8)
    assert (played.privacy.account, played.privacy.max_epsilon) == (None, 3.0)
    assert (played.evaluation.every, played.checkpoint.every) == (5, 5)
    assert (played.record.page, dataset is target.dataset) == (False, True)


def test_test_examples_are_dealt_to_every_owner_and_clients_are_no_more_than_examples() -> None:
    def part(count: int) -> Examples:
        return Examples(np.ones((count, 2), np.float32), np.zeros(count, np.int64))

    data: Any = SimpleNamespace(train=part(4), test=part(5), owners=np.array([0, 2, 1, 2]))
    pool = Pool.everything(data)
    assert pool.owners is not None
    assert pool.owners.tolist() == [0, 2, 1, 2, 0, 1, 2, 0, 1]
    target = Target.of(job(clients={"number": 6}))
    few = Pool.training(target.dataset).target(target, np.arange(3), 5)
    assert (few.partition.clients, few.job.clients.number, few.job.seed) == (3, 3, 5)


@pytest.mark.parametrize("how", ["shards", "dirichlet"])
def test_members_of_clients_with_few_classes_are_compared_with_others_of_their_class(
    how: str,
) -> None:
    """Else noise that favours a class would favour a client's members over the others."""
    made = Job.load(
        None,
        ["model=logistic", "data.name=digits", f"data.split={how}",
         "clients={number: 7, fraction: 1.0}", "training.epochs=1"],
    )  # fmt: skip
    target = Target.of(made)
    pool = Pool.training(target.dataset)
    kinds = pool.kinds(made)
    assert kinds is not None
    given = np.arange(len(pool)) % 3 > 0
    halved = pool.target(target, np.flatnonzero(given), 5)
    rows, others = np.flatnonzero(given), np.flatnonzero(~given)
    played = play_round(halved, rows, others, 4, Seeded(6), kinds)
    tested = np.concatenate([*played.held, *played.strangers])
    assert len(np.unique(tested)) == len(tested) > 50
    for held, strangers in zip(played.held, played.strangers, strict=True):
        assert kinds[held].tolist() == kinds[strangers].tolist()
        assert given[held].all()
        assert not given[strangers].any()


def test_pairs_are_of_one_kind_and_as_many_as_there_can_be() -> None:
    kinds = np.array([0, 0, 0, 1, 1, 2, 0, 1, 1, 1, 3])
    held, strangers = [np.array([0, 3, 5]), np.array([1, 2, 4])], np.array([9, 6, 10, 8, 7])
    found, others = paired(held, strangers, kinds, Seeded(1))
    assert [kinds[some].tolist() for some in found] == [kinds[some].tolist() for some in others]
    both = np.concatenate(found), np.concatenate(others)
    assert sorted(kinds[both[0]]) == [0, 1, 1]  # one stranger is of kind 0, and three of kind 1
    assert set(both[1]) <= {6, 9, 8}  # the first of the strangers
    first = [
        int(np.concatenate(paired(held, strangers, kinds, Seeded(n))[0]).min()) for n in range(20)
    ]
    assert len(set(first)) > 1  # any example of kind 0 may be the one with a pair


def test_kinds_are_classes_or_owners_or_nothing() -> None:
    pool = Pool(np.zeros((3, 2)), np.array([4, 1, 4]), np.array([0, 2, 0]))
    for how, kinds in (("iid", None), ("shards", [4, 1, 4]), ("by_client", [0, 2, 0])):
        data: Any = SimpleNamespace(split=how, by_owner=how == "by_client")
        found = pool.kinds(SimpleNamespace(data=data))  # type: ignore[arg-type]
        assert (found if found is None else found.tolist()) == kinds


def test_a_round_without_two_examples_of_one_kind_has_no_metrics(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = np.empty(0, np.int64)
    empty = Round([Reading.nothing(len(case.target.weights))], [nothing], [nothing])
    monkeypatch.setattr(membership, "play_round", lambda *given: empty)
    assert case.on_round(3) == ([], False)


def test_a_round_of_some_clients_asks_each_about_its_own_examples() -> None:
    """Seven clients of 34 or 35 examples, of which three report."""
    target = Target.of(job(clients={"number": 7, "fraction": 1.0}, training={"lr": 0.3}))
    rows = np.arange(EXAMPLES)[::-1] + 1000
    played = play_round(target, rows, np.arange(46), 3, Seeded(6))
    each = [rows[target.rows(client)].tolist() for client in range(7)]
    cohort = [each.index(held.tolist()) for held in played.held]
    assert len({*cohort}) == 3
    for reading, update in zip(played.readings, target.updates(cohort), strict=True):
        assert np.array_equal(reading.estimate, update)
    assert sorted(np.concatenate(played.strangers)) == list(range(46))
    assert [len(some) for some in played.strangers] == [16, 15, 15]
    many = play_round(target, rows, np.arange(500), 3, Seeded(6))
    assert [len(some) for some in many.strangers] == [len(held) for held in many.held]
    assert len({*np.concatenate(many.strangers)}) == sum(map(len, many.held))


def test_from_15_references_on_an_example_has_its_own_deviation() -> None:
    """One of 16 is set aside for the threshold."""
    draw = np.random.default_rng(6)
    held = halves(5, 16, Seeded(5, "held"))
    margins = draw.normal(0, 1, (16, 5)) * np.array([1, 1, 9, 1, 3])
    given = [Answers(row, row, row[:, None]) for row in margins]
    known = References(given, held, np.zeros(5, np.int64))
    for references, own in ((known.without(3), True), (known.without(3).without(4), False)):
        _, deviations = references.normals(lambda answers: answers.margin, member=False)
        assert (len({*deviations.tolist()}) == 5) == own


def test_answers_are_those_of_a_model_at_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without dropout, in batches that do not divide the examples. The model's mode is restored."""
    monkeypatch.setattr(evaluate, "_BATCH", 3)
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(2, 5), nn.Dropout(0.5)).train()
    x, y = np.random.default_rng(1).normal(size=(8, 2)).astype(np.float32), np.arange(8) % 5
    found = answers(model, x, y)
    assert model.training
    with torch.no_grad():
        logs = torch.log_softmax(model[0](torch.from_numpy(x)).double(), 1).numpy()
    assert found.truth == pytest.approx(logs[np.arange(8), y], abs=1e-6)
    assert found.top == pytest.approx(np.sort(logs)[:, :1:-1], abs=1e-6)
    assert np.array_equal(found.columns[:, 2:], found.top)


def test_a_games_threshold_is_that_of_a_rehearsal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first game only chooses the threshold, 2.5. 40 cases of 16 a game take three more."""
    plays = [(np.arange(16.0) + shift, np.arange(16.0) - 8) for shift in (9.5, 4, 1, 0)]
    sources: list[int] = []

    def play(entropy: Any) -> Any:
        sources.append(int(entropy.words(1)[0]))
        return plays[len(sources) - 1]

    def of(target: Target, most: int, rounds: int, entropy: Any) -> Any:
        assert rounds == 4
        return SimpleNamespace(play=play)

    monkeypatch.setattr(Game, "of", of)
    steps: list[tuple[int, int]] = []
    found, rounds = measured(Target.of(job()), "quick", lambda *at: steps.append(at))
    assert (rounds, len({*sources})) == (4, 4)
    assert steps == [(1, 4), (2, 4), (3, 4), (4, 4)]
    limit = best_threshold(*plays[0])
    members, strangers = (np.concatenate(side) for side in zip(*plays[1:], strict=True))
    right = balanced_accuracy("", members, strangers, limit)
    assert (found[0].value, found[0].cases) == (right.value, 96)
    assert right.value != balanced_accuracy("", *plays[0], limit).value


def test_a_game_goes_from_round_to_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everybody trains from the round's weights, and the protection's state is passed on."""
    trained: list[tuple[int, int, bytes]] = []
    views: list[tuple[Any, Seen]] = []
    real, look = Target.updates, client_membership.seen

    def updates(self: Target, clients: Any, round: int = 1, weights: Any = None) -> Any:
        trained.append((self.job.seed, round, np.asarray(weights).tobytes()))
        return real(self, clients, round, weights)

    def seen(*parts: Any, state: Any, round: int, **more: Any) -> Seen:
        views.append((state, look(*parts, state=state, round=round, **more)))
        return views[-1][1]

    monkeypatch.setattr(Target, "updates", updates)
    monkeypatch.setattr(client_membership, "seen", seen)
    target = Target.of(job(protection="signds", training={"epochs": 1, "lr": 0.3}))
    game = Game.of(target, 3, 2, Seeded(4, "game"))
    game.play(Seeded(4, "play"))
    assert [round for _, round, _ in trained] == [1] * 3 + [2] * 3
    assert len({seed for seed, _, _ in trained[:3]}) == 3
    begun = Layout(game.present.model).vector()
    second = (begun + views[0][1].aggregate).astype(np.float32)
    assert [weights for *_, weights in trained] == [begun.tobytes()] * 3 + [second.tobytes()] * 3
    assert [state for state, _ in views] == [
        game.present.protection.initial_state(), views[0][1].state,
    ]  # fmt: skip
    assert views[0][1].state != views[1][1].state


@pytest.mark.parametrize("trained", [True, False])
def test_an_attacked_run_keeps_its_clients_rounds_and_claim(
    trained: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job is attacked by a run of its own. Every reference has a seed of its own."""
    own, other = Figure(3.5, 1e-3), Figure(9.0, 1e-2)
    rehearsed: list[Target] = []

    def rehearse(target: Target) -> Rehearsal:
        rehearsed.append(target)
        return Rehearsal(target.model, np.array([1, 2], np.uint64), 3, other)

    monkeypatch.setattr(membership, "rehearse", rehearse)
    there = np.array([0, 3, 1], np.uint64)
    target = replace(Target.of(job()), trained=trained, played=2, took_part=there, claim=own)
    found = Case.of(target, 2, Seeded(3), Watch()).target
    assert found.took_part is not None
    assert (found.took_part.tolist(), found.played, found.claim) == (
        ([0, 3, 1], 2, own) if trained else ([1, 2], 3, other)
    )
    one, another = (target.job.seed for target in rehearsed[-2:])
    assert one != another


def test_a_played_round_has_no_more_clients_than_the_jobs_and_enough_for_a_sum() -> None:
    some = Target.of(job(clients={"number": 7, "fraction": 0.45}, training={"lr": 0.3}))
    rows = np.arange(EXAMPLES)
    assert len(play_round(some, rows, np.arange(90), 9, Seeded(6)).held) == 3
    masked = {"name": "pw_encrypt", "pw_encrypt": {"reconstruct_secrets_threshold": 2}}
    few = Target.of(job(protection=masked, training={"lr": 0.3}))
    (held,) = play_round(few, rows, np.arange(90), 1, Seeded(6)).held
    assert len(held) == few.protection.least_clients * EXAMPLES / 4


def test_a_client_without_examples_to_test_has_no_scores() -> None:
    """Pairs of one kind may leave some clients without any: nothing can be computed from none."""

    def score(reading: Any, x: Any, y: Any) -> Any:
        assert len(x) == len(y) > 0
        return reading * x

    none = np.array([], np.int64)
    readings: Any = [1.0, 10.0, 100.0]
    round = Round(readings, [np.array([0, 2]), none, none], [np.array([1]), none, np.array([3])])
    members, others = round.scores(score, np.arange(1.0, 5.0), np.zeros(4))
    assert members.tolist() == [1 * 1 - 55 * 1, 1 * 3 - 55 * 3]
    assert others.tolist() == [1 * 2 - 55 * 2, 100 * 4 - 5.5 * 4]
