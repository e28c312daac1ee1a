"""Members of an overfitted model are found, and nothing where there is nothing to find."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from fedveil.attacks.effort import Watch
from fedveil.attacks.membership import report_scores
from fedveil.attacks.membership.answer_scores import calibrated_loss, lira, loss, online_lira, rmia
from fedveil.attacks.membership.membership import attack
from fedveil.attacks.membership.model_answers import Answers, answers
from fedveil.attacks.membership.references import Method, References, halves, threshold
from fedveil.attacks.membership.report_scores import ReportScores, Round
from fedveil.attacks.membership.shadow_attack import _Scale, shadow_attack
from fedveil.attacks.membership.shadow_runs import Pool, rehearse
from fedveil.attacks.roc import area, balanced_accuracy, best_threshold, figures
from fedveil.attacks.target import Target, clients_before
from fedveil.base.array_types import Bools, Float32s, Float64s, Int64s
from fedveil.data.examples import Dataset, make_dataset
from fedveil.engine.cohorts import Cohorts
from fedveil.entropy import Seeded
from fedveil.entry.simulation import simulate
from fedveil.errors import AttackImpossible, InvalidValue
from fedveil.federated.job import Job
from fedveil.learning.weight_layout import Layout
from fedveil.protections.reading import Reading

METHODS = [loss, calibrated_loss, shadow_attack, lira, online_lira, rmia]
EXAMPLES, FEATURES, CLASSES = 240, 30, 4


def clouds() -> Dataset:
    """Points around the centres of four classes, too few to learn more than by heart."""
    generator = np.random.default_rng(5)
    y = np.arange(EXAMPLES + 40) % CLASSES
    centres = generator.normal(0, 0.25, (CLASSES, FEATURES))
    x = (centres[y] + generator.normal(0, 1, (len(y), FEATURES))).astype(np.float32)
    return make_dataset("clouds", (x[:EXAMPLES], y[:EXAMPLES]), (x[EXAMPLES:], y[EXAMPLES:]))


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 32), nn.Tanh(), nn.Linear(32, CLASSES))


def trained(x: Float32s, y: Int64s, seed: int) -> nn.Module:
    """A net that knows its examples by heart."""
    torch.manual_seed(seed)
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(torch.from_numpy(x)), torch.from_numpy(y)).backward()
        optimizer.step()
    return model


@pytest.fixture(scope="module")
def data() -> Dataset:
    return clouds()


@pytest.fixture(scope="module")
def references(data: Dataset) -> References:
    x, y = data.train.x, data.train.y
    held = halves(EXAMPLES, 6, Seeded(1, "halves"))
    models = [trained(x[row], y[row], seed) for seed, row in enumerate(held)]
    return References([answers(model, x, y) for model in models], held, y)


@pytest.fixture(scope="module")
def members() -> Bools:
    return halves(EXAMPLES, 2, Seeded(2, "members"))[0]


@pytest.mark.parametrize("method", METHODS)
def test_members_are_found(
    method: Method, data: Dataset, references: References, members: Bools
) -> None:
    x, y = data.train.x, data.train.y
    scores = method(answers(trained(x[members], y[members], 99), x, y), references)
    found = area("", scores[members], scores[~members])
    assert found.low > 0.65
    limit = threshold(method, references)
    assert balanced_accuracy("", scores[members], scores[~members], limit).low > 0.6


@pytest.mark.parametrize("method", METHODS)
def test_a_model_that_saw_nobody_betrays_nobody(
    method: Method, data: Dataset, references: References, members: Bools
) -> None:
    torch.manual_seed(7)
    scores = method(answers(net(), data.train.x, data.train.y), references)
    found = area("", scores[members], scores[~members])
    assert found.low < 0.5 < found.high


def test_calibration_takes_the_difficulty_away() -> None:
    """An easy stranger has a smaller loss than a hard member, and no smaller one than expected."""
    held = np.array([[False, False], [False, False]])
    reference = given(truth=[-2.0, -0.1])
    known = References([reference, given(truth=[-4.0, -0.3])], held, np.zeros(2, np.int64))
    attacked = given(truth=[-1.0, -0.2])
    assert loss(attacked, known).tolist() == [-1.0, -0.2]
    assert calibrated_loss(attacked, known) == pytest.approx([2.0, 0.0])


def test_lira_is_a_z_score_of_the_references_outside() -> None:
    """References that contain the example do not count. All examples share one deviation."""
    held = np.array([[False, True], [False, False], [True, False]])
    margins = [[1.0, 50.0], [3.0, 4.0], [70.0, 6.0]]
    known = References([given(margin=row) for row in margins], held, np.zeros(2, np.int64))
    # Means 2 and 5; squares 1 + 1 + 1 + 1 with two of the four values' freedom left.
    expected = [(4 - 2) / np.sqrt(2), (4 - 5) / np.sqrt(2)]
    assert lira(given(margin=[4.0, 4.0]), known) == pytest.approx(expected)


MARGINS = [[1.0, 5.0], [4.0, 2.0], [3.0, 9.0], [6.0, 1.0]]
HELD = np.array([[False, True], [True, False], [False, True], [True, False]])


def test_online_lira_is_the_ratio_of_two_normal_densities() -> None:
    """Few references: one deviation for members, and one for others."""
    known = References([given(margin=row) for row in MARGINS], HELD, np.zeros(2, np.int64))
    # Members: (4, 6) and (5, 9); others: (1, 3) and (2, 1). Two of four values' freedom is left.
    inside, outside = np.sqrt((2 + 8) / 2), np.sqrt((2 + 0.5) / 2)
    expected = [
        stats.norm.logpdf(4.5, 5, inside) - stats.norm.logpdf(4.5, 2, outside),
        stats.norm.logpdf(0.5, 7, inside) - stats.norm.logpdf(0.5, 1.5, outside),
    ]
    assert online_lira(given(margin=[4.5, 0.5]), known) == pytest.approx(expected)


def test_online_lira_has_a_deviation_for_each_example_from_16_references_on() -> None:
    rng = np.random.default_rng(6)
    held = halves(5, 16, Seeded(5, "held"))
    margins = rng.normal(0, 1, (16, 5)) * np.array([1, 1, 9, 1, 3]) + 4 * held
    margins[:, 1] = 2.5 * held[:, 1]  # does not vary
    known = References([given(margin=list(row)) for row in margins], held, np.zeros(5, np.int64))
    asked = np.array([1.5, 1.0, 4.0, 6.0, -2.0])
    expected = np.zeros(5)
    for sign, mask in ((1, held), (-1, ~held)):
        rows = [margins[mask[:, i], i] for i in range(5)]
        shared = np.mean([row.var(ddof=1) for row in rows])
        own = [np.sqrt((16 * shared + 7 * row.var(ddof=1)) / 23) for row in rows]
        means = [row.mean() for row in rows]
        expected += sign * stats.norm.logpdf(asked, means, own)
    assert online_lira(given(margin=list(asked)), known) == pytest.approx(expected)


def test_rmia_counts_the_examples_that_are_half_as_likely() -> None:
    """Worked out from the source's formula, pair by pair."""
    rng = np.random.default_rng(9)
    held = halves(6, 4, Seeded(8, "held"))
    truths = -rng.exponential(1, (4, 6))
    known = References([given(truth=list(row)) for row in truths], held, np.zeros(6, np.int64))
    asked = -rng.exponential(1, 6)
    usual = [
        (np.exp(truths[held[:, i], i]).mean() + np.exp(truths[~held[:, i], i]).mean()) / 2
        for i in range(6)
    ]
    ratio = np.exp(asked) / usual
    expected = [sum(ratio[i] / ratio[j] >= 2 for j in range(6) if j != i) / 5 for i in range(6)]
    assert rmia(given(truth=list(asked)), known) == pytest.approx(expected)
    assert 0 < max(expected) < 1
    even = References([given(truth=[0.0, 0.0])] * 2, halves(2, 2, Seeded(1)), known.y[:2])
    assert rmia(given(truth=[0.0, -math.log(2)]), even).tolist() == [1, 0]  # twice as likely
    never = References([given(truth=[-900.0, -1.0])] * 2, halves(2, 2, Seeded(1)), known.y[:2])
    assert rmia(given(truth=[-900.0, -1.0]), never).tolist() == [0, 1]  # e^-900 is no number


def test_a_threshold_is_found_without_the_model_whose_members_are_asked_about() -> None:
    held = np.eye(3, dtype=np.bool_)
    every = [given(truth=[-one, -2.0 * one, -3.0 * one]) for one in (1.0, 2.0, 4.0)]
    asked: list[tuple[float, list[float]]] = []

    def method(answers: Answers, references: References) -> Float64s:
        others = [float(one.truth[0]) for one in references.answers]
        asked.append((float(answers.truth[0]), others))
        return answers.truth

    found = threshold(method, References(every, held, np.zeros(3, np.int64)))
    assert asked == [(-1.0, [-2.0, -4.0]), (-2.0, [-1.0, -4.0]), (-4.0, [-1.0, -2.0])]
    assert found == -1.5  # members score -1, -4 and -12, others -2, -3, -2, -6, -4 and -8


@pytest.mark.parametrize("method", [online_lira, rmia])
def test_references_without_any_training_example_are_refused(method: Method) -> None:
    known = References([given(), given()], np.zeros((2, 2), np.bool_), np.zeros(2, np.int64))
    with pytest.raises(InvalidValue, match="no reference model was trained on any example: at"):
        method(given(), known)


def test_training_is_expected_to_move_an_example_as_far_as_it_moves_the_others() -> None:
    """No reference was trained on example 2. Its mean without training is 5."""
    held = np.array([[True, False, False], [False, True, False], [False, False, False]])
    margins = [[4.0, 2.0, 4.0], [1.0, 9.0, 5.0], [3.0, 4.0, 6.0]]
    known = References([given(margin=row) for row in margins], held, np.zeros(3, np.int64))
    means, deviations = known.normals(lambda answers: answers.margin, member=True)
    assert means.tolist() == [4.0, 9.0, 5 + ((4 - 2) + (9 - 3)) / 2]
    assert deviations.tolist() == [1.0] * 3  # one value an example has no spread
    outside, _ = known.normals(lambda answers: answers.margin, member=False)
    assert outside.tolist() == [2.0, 3.0, 5.0]


def given(truth: list[float] | None = None, margin: list[float] | None = None) -> Answers:
    count = len(truth or margin or [0.0, 0.0])
    values = [np.array(part if part is not None else [0.0] * count) for part in (truth, margin)]
    return Answers(values[0], values[1], np.zeros((count, 1)))


def test_an_example_that_every_reference_holds_is_refused() -> None:
    held = np.array([[False, True], [True, True]])
    with pytest.raises(InvalidValue, match="every reference model was trained on example 1: at "):
        References([given(), given()], held, np.zeros(2, np.int64))


def test_each_example_is_in_half_of_the_references() -> None:
    held = halves(11, 6, Seeded(0, "any"))
    assert (held.sum(axis=0) == 3).all()
    assert held.sum(axis=1).tolist() == [5, 6] * 3
    assert not np.array_equal(held[0], held[2])
    with pytest.raises(InvalidValue, match="models = 5 is odd, an even number is needed"):
        halves(11, 5, Seeded(0, "any"))


def test_a_margin_is_the_log_odds_of_the_true_class() -> None:
    model = nn.Linear(2, 3)
    x, y = np.array([[0.3, -1.0], [2.0, 0.5]], np.float32), np.array([2, 0])
    p = torch.softmax(model(torch.from_numpy(x)), 1)[[0, 1], [2, 0]].detach().numpy()
    found = answers(model, x, y)
    assert found.truth == pytest.approx(np.log(p), abs=1e-6)
    assert found.margin == pytest.approx(np.log(p / (1 - p)), abs=1e-5)


def test_a_margin_stays_finite_where_a_probability_is_one() -> None:
    model = nn.Linear(1, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[200.0], [0.0]]))
    assert answers(model, np.ones((1, 1), np.float32), np.zeros(1, np.int64)).margin == [200.0]


def test_a_model_of_no_finite_answers_is_not_attacked() -> None:
    model = nn.Linear(1, 2)
    with torch.no_grad():
        model.weight.fill_(torch.nan)
    with pytest.raises(AttackImpossible, match="the model gives no finite answers"):
        answers(model, np.ones((1, 1), np.float32), np.zeros(1, np.int64))


def test_a_class_that_is_impossible_leaves_no_finite_margin() -> None:
    """The true class has the probability 1, and only the margin is infinite."""
    model = nn.Linear(1, 2)
    with torch.no_grad():
        model.weight.zero_()
        model.bias.copy_(torch.tensor([-torch.inf, 0.0]))
    with pytest.raises(AttackImpossible, match="the model gives no finite answers"):
        answers(model, np.ones((1, 1), np.float32), np.ones(1, np.int64))


# Reports.


def test_the_gradient_score_is_the_inner_product(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_scores, "_BATCH", 2)
    model, generator = net(), np.random.default_rng(8)
    layout = Layout(model)
    weights = layout.vector()
    x = generator.normal(size=(3, FEATURES)).astype(np.float32)
    y = np.array([0, 3, 1])
    reading = Reading(generator.normal(size=len(weights)), generator.random(len(weights)))
    direction = reading.estimate * reading.weight
    direction /= np.linalg.norm(direction)
    expected = []
    for image, label in zip(torch.from_numpy(x), torch.from_numpy(y), strict=True):
        value = nn.functional.cross_entropy(model(image[None]), label[None])
        gradients = torch.autograd.grad(value, list(model.parameters()))
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients]).numpy()
        expected.append(-flat @ direction)
    assert ReportScores(model, weights).along(reading, x, y) == pytest.approx(expected, abs=1e-5)


def test_the_loss_score_is_what_the_update_gains(data: Dataset) -> None:
    model = net()
    weights = Layout(model).vector()
    x, y = data.train.x[:5], data.train.y[:5]
    other = trained(x, y, 3)
    reading = Reading.exact(Layout(other).vector() - weights)
    gain = answers(other, x, y).truth - answers(model, x, y).truth
    assert ReportScores(model, weights).moved(reading, x, y) == pytest.approx(gain, abs=1e-5)


def test_an_estimate_that_breaks_the_model_gives_scores_that_guess(data: Dataset) -> None:
    """The noise of a report may be so large that the losses of a deep model are infinite or NaN."""
    hidden = [part for _ in range(14) for part in (nn.Linear(FEATURES, FEATURES), nn.ReLU())]
    model = nn.Sequential(*hidden, nn.Linear(FEATURES, CLASSES))
    x, y, weights = data.train.x[:7], data.train.y[:7], Layout(model).vector()
    noise = Seeded(5).generator().normal(0, 3e3, (3, len(weights)))
    readings = [Reading(estimate, np.ones_like(estimate)) for estimate in noise]
    held, others = np.arange(0, 3), np.arange(3, 7)
    attacked = Round(readings, [held] * 3, [others] * 3)
    sides = attacked.scores(ReportScores(model, weights).moved, x, y)
    assert all(np.isfinite(side).all() for side in sides)
    balanced, auc, *_ = figures("loss", *sides, best_threshold(*sides))
    assert (balanced.value, auc.value) == (0.5, 0.5)


def test_an_update_is_judged_by_a_model_at_rest(data: Dataset) -> None:
    model = nn.Sequential(nn.Linear(FEATURES, 32), nn.Dropout(0.5), nn.Linear(32, CLASSES))
    weights, (x, y) = Layout(model).vector(), (data.train.x[:9], data.train.y[:9])
    reading = Reading.exact(np.linspace(-0.1, 0.1, len(weights), dtype=np.float32))
    scores = ReportScores(model.train(), weights)
    assert scores.moved(reading, x, y).tolist() == scores.moved(reading, x, y).tolist()


def test_a_probability_of_nearly_nothing_counts_as_a_small_one() -> None:
    scale = _Scale(np.array([[-1000.0, 2.0], [0.0, 2.0]]))
    assert scale(np.array([[-50.0, 2.0], [0.0, 3.0]])).tolist() == [[-1, 0], [1, 0]]


def test_an_answer_that_says_nothing_is_at_the_threshold_whatever_most_references_held() -> None:
    """Three of four references were trained on each example."""
    held = np.tile(np.array([[True], [True], [True], [False]]), (1, 90))
    noise = Seeded(4, "shadow").generator().standard_normal((4, 90))
    given = [Answers(row, row, row[:, None]) for row in noise]
    asked = Answers(np.zeros(90), np.zeros(90), np.zeros((90, 1)))
    scores = shadow_attack(asked, References(given, held, np.zeros(90, np.int64)))
    assert np.abs(scores).max() < 0.3  # the odds are 3 to 1, with the logarithm 1.1


def test_a_class_has_a_classifier_of_its_own_if_it_has_enough_of_both() -> None:
    """Members of class 0 are sure and members of class 1 unsure; class 2 has too few others."""
    y = np.tile([0, 1, 2], 11)
    held = np.tile(np.array([[True], [False], [True], [False]]), (1, 33))
    held[:3, y == 2] = True
    held[3, y == 2] = False
    sure = np.where(y == 1, -1.0, 1.0) * np.where(held, 1.0, -1.0)
    noise = 0.1 * Seeded(4, "shadow").generator().standard_normal((4, 33))
    given = [Answers(row, row, np.stack([row, row], axis=1)) for row in sure + noise]
    asked = Answers(np.full(33, 2.0), np.full(33, 2.0), np.full((33, 2), 2.0))
    scores = shadow_attack(asked, References(given, held, y))
    assert (scores[y == 0] > 0).all()
    assert (scores[y == 1] < 0).all()
    # The classifier of all classes, which has seen as many sure members as unsure ones.
    assert abs(scores[y == 2]).max() < 0.5 * abs(scores[y == 0]).min()


def played(data: Dataset, readings: Callable[[Float32s], Reading]) -> tuple[ReportScores, Round]:
    """Three clients of thirty examples, who train on them from common weights."""
    torch.manual_seed(0)
    start = net()
    weights = Layout(start).vector()
    held = [np.arange(30 * i, 30 * i + 30) for i in range(3)]
    strangers = [rows + 120 for rows in held]
    made = []
    for rows in held:
        torch.manual_seed(0)
        local = net()
        optimizer = torch.optim.SGD(local.parameters(), lr=0.3)
        x, y = torch.from_numpy(data.train.x[rows]), torch.from_numpy(data.train.y[rows])
        for _ in range(20):
            optimizer.zero_grad()
            nn.functional.cross_entropy(local(x), y).backward()
            optimizer.step()
        made.append(readings(Layout(local).vector() - weights))
    return ReportScores(start, weights), Round(made, held, strangers)


@pytest.mark.parametrize("scorer", ["along", "moved"])
def test_a_plain_report_betrays_its_clients_examples(data: Dataset, scorer: str) -> None:
    scores, round = played(data, Reading.exact)
    found = area("", *round.scores(getattr(scores, scorer), data.train.x, data.train.y))
    assert found.low > 0.65
    assert found.cases == 180


@pytest.mark.parametrize("scorer", ["along", "moved"])
def test_a_report_that_says_nothing_betrays_nobody(data: Dataset, scorer: str) -> None:
    scores, round = played(data, lambda update: Reading.nothing(len(update)))
    found = round.scores(getattr(scores, scorer), data.train.x, data.train.y)
    assert area("", *found).value == 0.5
    assert balanced_accuracy("", *found, best_threshold(*found)).value == 0.5


def test_only_the_direction_of_a_reading_counts_along_it(data: Dataset) -> None:
    scores, round = played(data, Reading.exact)
    reading, x, y = round.readings[0], data.train.x[:9], data.train.y[:9]
    shorter = Reading(reading.estimate / 100, reading.weight * 7, scaled=False)
    assert scores.along(shorter, x, y) == pytest.approx(scores.along(reading, x, y), rel=1e-4)


def test_what_others_reports_do_to_an_example_is_taken_off() -> None:
    """A lone client has nobody to be compared with."""
    x, y = np.array([[1], [2], [3], [4]], np.float32), np.zeros(4, np.int64)
    readings = [Reading(np.array([value]), np.ones(1)) for value in (1.0, 3.0)]
    held, strangers = [np.array([0]), np.array([1])], [np.array([2]), np.array([3])]

    def score(reading: Reading, x: Float32s, y: Int64s) -> Float64s:
        return np.asarray(reading.estimate[0] * x[:, 0], np.float64)

    members, others = Round(readings, held, strangers).scores(score, x, y)
    assert (members.tolist(), others.tolist()) == ([1 - 3, 6 - 2], [3 - 9, 12 - 4])
    members, others = Round(readings[:1], held[:1], strangers[:1]).scores(score, x, y)
    assert (members.tolist(), others.tolist()) == ([1], [3])


# A job and a run.


def job(**changes: object) -> Job:
    return Job(
        **{
            "data": {"name": "test_membership:tables"},
            "model": "test_membership:net",
            "clients": {"number": 4, "fraction": 1.0},
            "rounds": 4,
            "training": {"epochs": 25, "batch_size": 10, "lr": 0.3},
            "simulation": {"workers": 0},
            **changes,
        }
    )


def tables() -> tuple[object, ...]:
    data = clouds()
    return data.train.x, data.train.y, data.test.x, data.test.y


def test_a_job_is_run_on_half_of_its_examples_and_its_members_are_found() -> None:
    steps: list[tuple[int, int]] = []
    watch = Watch(step=lambda done, total, what: steps.append((done, total)))
    finding = attack(Target.of(job()), "quick", watch)
    assert (finding.attack, finding.effort, finding.protection) == (
        "membership", "quick", "not_encrypt",
    )  # fmt: skip
    names = ("loss", "calibrated loss", "shadow models", "LiRA", "online LiRA", "RMIA")
    for name in (*names, "report's loss"):
        assert finding.figure(f"{name} AUC").low > 0.55, name
    assert finding.figure("LiRA balanced accuracy").cases == EXAMPLES
    assert finding.figure("accuracy on members").low > finding.figure("accuracy on others").high
    assert finding.figure("report's gradient AUC").cases == EXAMPLES
    assert finding.epsilon == np.inf
    assert steps == [(i, 6) for i in (0, 1, 2, 3, 4, 6)]


def test_masked_reports_betray_nobody_and_their_sum_does() -> None:
    masked = {"name": "pw_encrypt", "pw_encrypt": {"reconstruct_secrets_threshold": 2}}
    finding = attack(Target.of(job(protection=masked)), "quick", Watch())
    names = {figure.name for figure in finding.figures}
    assert not any(name.startswith("report's") for name in names)
    assert finding.figure("sum's loss AUC").low > 0.55
    assert finding.figure("sum's gradient AUC").cases == EXAMPLES
    assert finding.figure("client AUC").low > 0.9
    assert finding.figure("LiRA AUC").low > 0.55


def test_a_runs_model_is_attacked_as_it_is(tmp_path: object) -> None:
    """Its training examples are the members, its test examples are not."""
    run = simulate(job(), f"{tmp_path}/run")
    finding = attack(Target.of_run(run.folder), "quick", Watch())
    assert finding.figure("loss AUC").cases == EXAMPLES + 40
    longer = Target.of_run(run.folder, ["rounds=23"])
    assert (longer.job.rounds, longer.trained) == (23, True)
    data = clouds()
    inside, outside = (answers(run.model, p.x, p.y).truth for p in (data.train, data.test))
    assert finding.figure("loss AUC").value == area("", inside, outside).value > 0.6


def test_a_runs_members_are_the_examples_of_clients_that_took_part(tmp_path: Path) -> None:
    """Two of 12 clients are drawn in each of two rounds."""
    few = job(clients={"number": 12, "fraction": 0.17}, rounds=2, training={"epochs": 1})
    run = simulate(few, tmp_path / "run")
    target = Target.of_run(run.folder)
    there = {client for round in (1, 2) for client in Cohorts(target.job).draw(round)}
    assert target.took_part is not None
    assert target.took_part.tolist() == run.ledger.clients.tolist() == sorted(there)
    assert 2 <= len(there) <= 4
    held = [target.rows(client) for client in sorted(there)]
    assert target.rows_of(target.took_part).tolist() == np.concatenate(held).tolist()
    assert len(target.rows_of(None)) == EXAMPLES
    fewer = Target.of_run(run.folder, ["clients.number=2"])
    assert len(fewer.rows_of(np.array([1, 11], np.uint64))) == EXAMPLES // 2
    (run.folder / "checkpoint/latest").unlink()
    assert Target.of_run(run.folder).took_part is None


def test_the_members_of_a_best_model_took_part_before_it_was_saved(tmp_path: Path) -> None:
    """The loss is best in round 1, because the learning rates of later rounds are too large."""
    few = job(
        clients={"number": 12, "fraction": 0.17},
        rounds=3,
        training={"epochs": 1, "lr": 0.5, "lr_schedule": "test_membership:rising"},
        stopping={"keep": "best", "metric": "loss"},
    )
    run = simulate(few, tmp_path / "run")
    assert run.kept_round == 1
    first = Cohorts(run.job).draw(1)
    assert len(run.ledger.clients) > len(first)
    took_part = Target.of_run(run.folder, ["seed=77"]).took_part
    assert took_part is not None
    assert took_part.tolist() == first
    played = rehearse(Target.of(few))
    assert played.clients.tolist() == first


def test_a_run_that_ended_early_has_fewer_rounds_than_its_job(tmp_path: Path) -> None:
    few = {"number": 12, "fraction": 0.17}
    early = job(clients=few, rounds=8, training={"epochs": 1}, stopping={"target": 0.0})
    run = simulate(early, tmp_path / "run")
    assert len(run.metrics) == Target.of_run(run.folder).rounds == 1
    target = Target.of(early)
    assert (target.rounds, rehearse(target).rounds) == (8, 1)


def test_an_adaptive_run_is_held_against_what_its_rounds_cost(tmp_path: Path) -> None:
    """Its later rounds cost more than the first, so a forecast would be too small."""
    settings = {"name": "rr", "unary": {"eps": 1.0, "adaptive": True}}
    adaptive = job(clients={"number": 6}, rounds=3, protection=settings)
    run = simulate(adaptive, tmp_path / "run")
    stated = run.ledger.figure_every_round(adaptive.privacy.delta)
    target = Target.of_run(run.folder)
    assert stated.epsilon > Target.of(adaptive).promised(3).epsilon
    assert target.promised(3) == rehearse(Target.of(adaptive)).claim == stated
    assert target.promised(2) == Target.of(adaptive).promised(2)
    fixed = Target.of_run(run.folder, ["protection.unary.adaptive=false"])
    assert fixed.promised(3).epsilon < stated.epsilon
    assert Target.of_run(run.folder, ["privacy.delta=1e-3"]).claim is None


def rising(round: int) -> float:
    return 1e-3 if round == 1 else 1e5


def test_clients_that_are_drawn_in_secret_may_all_have_a_part() -> None:
    clients = {"number": 12, "fraction": 0.17, "sampling": "poisson"}
    charged = np.array([1, 5], np.uint64)
    for randomness, known in (("secure", False), ("seeded", True)):
        secret = job(clients=clients, privacy={"randomness": randomness})
        assert (Cohorts(secret).until(2) is not None) == known
        assert clients_before(charged, secret, None) is charged
        assert (clients_before(charged, secret, 1) is charged) != known


def test_owners_stay_together(tmp_path: object) -> None:
    """A job whose clients are its data's owners is attacked with theirs."""
    owned = job(data={"name": "test_membership:owned", "split": "by_client"}, clients={})
    finding = attack(Target.of(owned), "quick", Watch())
    assert finding.figure("report's loss AUC").low > 0.5


def test_clients_of_one_example_each_are_fewer_in_a_half() -> None:
    target = Target.of(job(clients={"number": EXAMPLES}))
    pool = Pool.training(target.dataset)
    half = pool.target(target, np.arange(EXAMPLES // 2), seed=1)
    assert (half.job.clients.number, half.partition.clients) == (EXAMPLES // 2, EXAMPLES // 2)
    assert half.job.seed == 1
    assert pool.target(Target.of(job()), np.arange(20), seed=1).job.clients == job().clients


def test_an_invalid_record_is_no_member(tmp_path: object) -> None:
    """A run has 7 invalid records of 40. Only the other 33 are members, with their clients."""
    broken = job(
        data={"name": "test_membership:broken", "split": "by_client"}, rounds=1,
        clients={"fraction": 1.0},
        privacy={"unit": "example"}, training={"sampling_rate": 0.5, "batch_size": 10, "lr": 9.0},
    )  # fmt: skip
    run = simulate(broken, f"{tmp_path}/run")
    target = Target.of_run(run.folder)
    x, y, x_test, y_test, owners = broken_parts()
    usable = np.isfinite(x).all(axis=1)
    assert np.array_equal(target.dataset.train.x, x[usable])
    assert [len(target.rows(client)) for client in range(4)] == [10, 10, 10, 3]
    assert np.array_equal(owners[usable][target.rows(2)], np.full(10, 2))
    assert np.array_equal(target.dataset.owners, owners[usable])
    finding = attack(target, "quick", Watch())
    inside, outside = (
        answers(run.model, *p).truth for p in ((x[usable], y[usable]), (x_test, y_test))
    )
    assert finding.figure("accuracy on members").cases == 33
    assert finding.figure("loss AUC").value == area("", inside, outside).value


def test_a_job_without_a_valid_record_is_refused() -> None:
    invalid = job(
        data={"name": "test_membership:lost", "split": "by_client"}, clients={},
        privacy={"unit": "example"}, training={"sampling_rate": 0.5, "batch_size": 10},
    )  # fmt: skip
    with pytest.raises(AttackImpossible, match=r"no valid training example: .* why all 40 are"):
        Target.of(invalid)


def test_a_record_that_the_fixed_layers_cannot_take_is_no_member() -> None:
    """Without it, the other models of the attack would fail on it."""
    target = Target.of(job(
        data={"name": "test_membership:large"}, model="test_membership:cubes",
        privacy={"unit": "example"},
        training={"sampling_rate": 0.5, "batch_size": 10, "lr": 9.0, "train": "head"},
    ))  # fmt: skip
    x, y = large()[:2]
    assert np.array_equal(target.dataset.train.y, np.delete(y, 2))
    assert np.array_equal(target.dataset.train.x, np.delete(x, 2, 0))


class Cube(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x**3


def cubes() -> nn.Module:
    return nn.Sequential(Cube(), nn.Linear(FEATURES, CLASSES))


def large() -> tuple[Float32s, Int64s, Float32s, Int64s]:
    data = clouds()
    x = data.train.x[:11].copy()
    x[2] = 1e30
    return x, data.train.y[:11], data.test.x[:9], data.test.y[:9]


def broken_parts() -> tuple[Float32s, Int64s, Float32s, Int64s, Int64s]:
    data = clouds()
    x = data.train.x[:40].copy()
    x[:7, 3] = np.nan
    return x, data.train.y[:40], data.test.x[:15], data.test.y[:15], 3 - np.arange(40) // 10


def broken() -> dict[str, object]:
    names = ("x_train", "y_train", "x_test", "y_test", "client_ids")
    return dict(zip(names, broken_parts(), strict=True))


def lost() -> dict[str, object]:
    parts = broken()
    return parts | {"x_train": np.full_like(parts["x_train"], np.nan)}


def owned() -> dict[str, object]:
    x, y, x_test, y_test = tables()
    owners = np.arange(EXAMPLES) // (EXAMPLES // 4)
    return {
        "x_train": x, "y_train": y, "x_test": x_test, "y_test": y_test, "client_ids": owners,
    }  # fmt: skip
