"""A model made to steal: what it takes from one report and from the sum, and from neither."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from fedveil.attacks.effort import Watch
from fedveil.attacks.stealing import imprint_recovery, stealing
from fedveil.attacks.stealing.imprint_layer import Cells, Form, Imprint
from fedveil.attacks.stealing.imprint_recovery import _deltas, _places, cells_needed, examples_in
from fedveil.attacks.stealing.public_prior import PublicDistribution
from fedveil.attacks.stealing.stealing import StealingResult, attack, matched, steal, with_examples
from fedveil.attacks.target import Target
from fedveil.data.partition import Partition
from fedveil.entropy import Seeded
from fedveil.errors import AttackImpossible, InvalidValue
from fedveil.federated.job import Job
from fedveil.protections.reading import Reading

CLIENTS, FEATURES = 4, 12
RNG = np.random.default_rng(7)
PUBLIC, PRIVATE = RNG.random((2, 400, FEATURES))


def job(protection: str = "not_encrypt", **training: object) -> Job:
    return Job(
        clients={"number": CLIENTS, "fraction": 1.0},
        training={"epochs": 1, "batch_size": 1000, **training},
        protection={"name": protection, "pw_encrypt": {"reconstruct_secrets_threshold": 2}},
    )


@pytest.fixture(scope="module")
def target() -> Target:
    return with_examples(Target.of(job()), 60)


def under(target: Target, protection: str, **training: object) -> Target:
    return replace(target, job=job(protection, **training))


def gradient(imprint: Imprint, examples: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The whole model's gradient, by torch."""
    model = imprint.model(classes=4, gain=10.0)
    loss = torch.nn.functional.cross_entropy(
        model(torch.tensor(examples, dtype=torch.float32)), torch.tensor(labels)
    )
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    return torch.cat([g.flatten() for g in gradients]).numpy()


def test_an_example_beyond_all_edges_is_in_the_cell_next_to_it() -> None:
    imprint = Imprint(np.eye(2), np.array([np.arange(4.0)] * 2))
    examples = np.array([[0.5, 2.5], [-7.0, 9.0], [9.0, -7.0]])
    assert imprint.places(examples).tolist() == [[0, 5], [0, 5], [2, 3]]


def test_the_noise_is_that_of_the_reported_entries_of_empty_cells() -> None:
    """Two statistics of three cells, of which the last stays empty. A third is not reported."""
    draw = np.random.default_rng(2)
    imprint = Imprint.of(PUBLIC, 2, statistics=2)
    other = Imprint.of(PUBLIC, 2, statistics=2, rng=np.random.default_rng(3))
    assert not np.allclose(imprint.directions[1], other.directions[1])
    weights, biases = draw.normal(size=(6, FEATURES)), draw.normal(size=6)
    known = draw.random((6, FEATURES)) < 2 / 3
    told = np.array([True, False, True, True, True, False])
    estimate = np.concatenate([np.where(known, weights, 50.0).ravel(), biases, np.ones(10)])
    worth = np.concatenate([known.ravel(), told, np.ones(10)]).astype(float)
    cells = imprint.read(Reading(estimate, worth))
    empty = weights[[2, 5]][known[[2, 5]]]
    assert cells.noise == pytest.approx(np.sqrt(np.mean(empty**2)))
    assert np.array_equal(cells.known, known)
    assert cells.biases == pytest.approx(np.where(told, biases, 0.0))


@pytest.mark.parametrize("form", ["relu", "window"])
def test_an_example_alone_in_its_cell_is_the_quotient(form: Form) -> None:
    imprint = Imprint.of(PUBLIC, 50, form=form)
    examples = PRIVATE[:5]
    places = imprint.places(examples)[:, 0]
    assert len(set(places)) == 5
    cells = imprint.read(Reading.exact(gradient(imprint, examples, np.array([0, 1, 2, 3, 0]))))
    np.testing.assert_allclose(
        cells.weights[places] / cells.biases[places, None], examples, atol=1e-4
    )
    empty = np.setdiff1d(np.arange(len(cells)), places)
    assert np.abs(cells.weights[empty]).max() < 1e-5 * np.abs(cells.weights[places]).max()
    assert cells.noise < 1e-7


@pytest.mark.parametrize(("form", "kind"), [("relu", "ReLU"), ("window", "Hardtanh")])
def test_the_sent_model_has_the_activation_of_its_form_and_no_bias_of_its_own(
    form: Form, kind: str
) -> None:
    imprint = Imprint.of(PUBLIC, 3, form=form)
    assert imprint.directions.tolist() == [[1 / FEATURES] * FEATURES]
    *_, bound, readout = imprint.model(classes=5, gain=7.0)
    assert type(bound).__name__ == kind
    assert readout.bias.tolist() == [0.0] * 5
    assert readout.weight[:, 0].tolist() == [7.0, -7.0, 7.0, -7.0, 7.0]


def test_a_cell_of_the_relu_form_is_known_if_both_of_its_rows_are() -> None:
    imprint = Imprint.of(PUBLIC, 2, form="relu")
    known = np.ones((imprint.rows, FEATURES), np.bool_)
    known[0, 1] = known[2, 4] = known[3, 7] = False
    told = np.array([True, False, True, True])
    worth = np.concatenate([known.ravel(), told]).astype(float)
    cells = imprint.read(Reading(np.arange(float(len(worth))), worth))
    assert cells.known.tolist() == (known[:-1] & known[1:]).tolist()
    assert (cells.biases != 0).tolist() == [False, False, True]


def test_a_cell_begins_at_its_bound_and_one_cell_is_enough() -> None:
    imprint = Imprint(np.eye(1), np.arange(4.0)[None])
    assert imprint.places(np.array([[1.0], [1.999], [2.0]])).ravel().tolist() == [1, 1, 2]
    assert Imprint.of(PUBLIC, 1).cells == 2
    with pytest.raises(InvalidValue, match="cells"):
        Imprint.of(PUBLIC, 0)


def test_public_examples_that_are_all_alike_have_cells_too() -> None:
    imprint = Imprint.of(np.full((9, FEATURES), 0.375), 3)
    assert (np.diff(imprint.edges) > 0).all()
    assert not imprint.unreached[imprint.places(np.full((1, FEATURES), 0.375))].any()


def test_an_example_is_found_again_only_if_one_is_near_in_every_feature() -> None:
    found = np.array([[0.0, 0.25], [1.0, 0.5]])
    for example, again in (([0.95, 0.55], True), ([4.0, 4.0], False), ([-4.0, -4.0], False),
                           ([1.0, 0.25], False), ([0.05, 0.2], True)):  # fmt: skip
        assert imprint_recovery._among(np.array(example), found, 0.125) == again
    assert not imprint_recovery._among(np.zeros(2), np.empty((0, 2)), 0.125)


def test_noise_widens_a_cell_by_that_of_its_own_example() -> None:
    imprint = Imprint(np.array([[1.0, 0.0]]), np.array([[0.0, 1.0, 2.0]]))
    reach = imprint_recovery._CLEAR * 0.1
    examples = np.array([[1 + 0.9 * reach, 9.0], [1 + 1.1 * reach, 9.0], [1 - 0.5 * reach, 9.0]])
    places = np.array([0, 0, 1])
    inside = imprint_recovery._inside(imprint, examples, places, 0.1)
    assert inside.tolist() == [True, False, True]
    assert not imprint_recovery._inside(imprint, examples[:1] - reach, places[:1], -0.1).any()


def test_cells_are_equally_likely_by_the_public_examples() -> None:
    imprint = Imprint.of(PUBLIC, 8, statistics=2)
    for kind in range(2):
        counts = np.bincount(imprint.places(PUBLIC)[:, kind] - kind * imprint.cells)
        assert len(counts) == 8
        assert counts.min() >= 48
        assert counts.max() <= 52
        values, edges = PUBLIC @ imprint.directions[kind], imprint.edges[kind]
        spread = np.ptp(values)
        outer = [values.min() - spread, values.max() + spread, values.max() + 2 * spread]
        assert edges[[0, -2, -1]] == pytest.approx(outer, abs=1e-6 * spread)


def test_a_cells_delta_is_read_from_its_bias_and_from_its_weights() -> None:
    """Each example is in the middle of its cell, where the weights say what the bias says."""
    direction, true = np.array([0.2, 0.3, 0.5]), np.array([4.0, -3.0, 5.0])
    imprint = Imprint(direction[None], np.array([[0.0, 2.0, 3.0, 7.0]]))
    middle = np.array([1.0, 2.5, 5.0])
    weights = true[:, None] * middle[:, None] * np.ones(3)  # the direction's entries sum to 1
    known = np.ones((3, 3), np.bool_)
    deltas, errors = _deltas(imprint, Cells(weights, true, known, 0.5))
    assert deltas == pytest.approx(true)
    told = np.sum(direction**2) * 0.5**2 + (4.0 * np.array([2.0, 1.0, 4.0])) ** 2 / 12
    assert errors == pytest.approx((0.5**-2 + middle**2 / told) ** -0.5)
    known[1, 2] = False  # an entry of noise is missing from what the row says
    told[1] -= direction[2] ** 2 * 0.5**2
    _, errors = _deltas(imprint, Cells(weights, true, known, 0.5))
    assert errors == pytest.approx((0.5**-2 + middle**2 / told) ** -0.5)


def test_rows_of_all_statistics_are_as_loud() -> None:
    """Statistics of ranges 3 and 50: at its upper end a row gives 0.25, at its bound nothing."""
    edges = np.array([[0.0, 1.0, 3.0], [10.0, 20.0, 60.0]])
    for form, at, expected in (
        ("relu", [3.0, 60.0], [0.25, 0.25 * 2 / 3, 0.0, 0.25, 0.25 * 4 / 5, 0.0]),
        ("window", [3.0, 60.0], [0.75, 0.25, 1.25, 0.25]),  # before it is cut off at 0.25
        ("window", [1.0, 20.0], [0.25, 0.0, 0.25, 0.0]),
    ):
        weights, biases = Imprint(np.eye(2), edges, form).layer(0.25)
        assert weights @ np.array(at) + biases == pytest.approx(np.array(expected))


def test_an_example_is_taken_off_where_it_surely_is() -> None:
    """By the first statistic it is in the middle of cell 0, by the second at an edge of cell 1."""
    edges = np.array([np.arange(4.0)] * 2)
    imprint = Imprint(np.eye(2), edges)
    for noise, places in ((1e-4, [4, 0]), (0.04, [0])):
        assert _places(imprint, np.array([0.5, 1.05]), 0, noise).tolist() == places


def test_nothing_is_read_from_cells_that_stay_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    imprint = Imprint.of(PUBLIC, 3)
    weights, biases = np.zeros((4, FEATURES)), np.array([0.0, 2.0, 0.0, 3.0])
    weights[1], weights[3] = 2 * PRIVATE[0], 3 * PRIVATE[1]
    cells = Cells(weights, biases, np.ones_like(weights, np.bool_), 0.0)
    monkeypatch.setattr(Imprint, "read", lambda self, reading: cells)
    found = examples_in(imprint, Reading.exact(np.ones(9)), PublicDistribution.of(PUBLIC))
    assert found == pytest.approx(PRIVATE[:1])


def test_three_statistics_resolve_what_one_cannot() -> None:
    """60 examples in a cell and a half each; with one statistic about half are alone."""
    examples, labels = PRIVATE[:60], np.arange(60) % 4
    prior = PublicDistribution.of(PUBLIC)
    shares = []
    for statistics in (1, 3):
        imprint = Imprint.of(PUBLIC, 3 * cells_needed(60, 3) // statistics, statistics)
        offered = examples_in(imprint, Reading.exact(gradient(imprint, examples, labels)), prior)
        shares.append(len(matched(prior.unit(examples), prior.unit(offered), 40)) / 60)
    assert shares[0] < 0.8
    assert shares[1] > 0.95


def test_single_reports_are_read(target: Target) -> None:
    loot, _ = steal(target)
    recovered, quality, _ = loot.figures()
    assert recovered.value > 0.7
    assert quality.value > 60
    assert "each client's report of 15" in loot.saw


def test_the_sum_under_masks_gives_the_same_examples(target: Target) -> None:
    loot, trapped = steal(under(target, "pw_encrypt"))
    assert loot.figures()[0].value > 0.7
    assert loot.saw == "the sum of 4 clients with 60 examples"
    assert trapped.job.protection.name == "pw_encrypt"


def test_further_local_steps_take_nothing_from_the_window_form(target: Target) -> None:
    longer = under(target, "not_encrypt", epochs=3, batch_size=4)
    windows, _ = steal(longer)
    rows, _ = steal(longer, form="relu")
    assert windows.figures()[0].value > 0.7
    assert rows.figures()[0].value < windows.figures()[0].value / 2


@pytest.mark.parametrize("protection", ["dp_encrypt", "signds"])
def test_perturbed_reports_of_the_default_strengths_give_nothing(
    target: Target, protection: str
) -> None:
    loot, _ = steal(with_examples(under(target, protection), 16))
    figure = loot.figures()[0]
    assert figure.value <= figure.guess


def test_a_weak_perturbation_is_seen_through(target: Target) -> None:
    """RR's default epsilon of 4.8 a bit: one report tells each entry of the update well."""
    loot, trapped = steal(under(target, "rr"))
    figure = loot.figures()[0]
    assert figure.low > figure.guess
    assert trapped.promised().epsilon > 1e5


def test_nothing_is_made_of_nothing() -> None:
    imprint = Imprint.of(PUBLIC, 20)
    dimension = sum(p.numel() for p in imprint.model(4, 1.0).parameters())
    prior = PublicDistribution.of(PUBLIC)
    assert examples_in(imprint, Reading.nothing(dimension), prior).shape == (0, FEATURES)
    assert len(examples_in(imprint, Reading.exact(np.zeros(dimension, np.float32)), prior)) == 0


def test_noise_is_measured_where_no_example_reaches_and_smoothed() -> None:
    imprint = Imprint.of(PUBLIC, 50)
    examples = PRIVATE[:5]
    change = gradient(imprint, examples, np.array([0, 1, 2, 3, 0])).astype(np.float64)
    deltas = imprint.read(Reading.exact(change.astype(np.float32))).biases
    noise = 0.1 * np.abs(deltas).max()
    noised = change + noise * np.random.default_rng(3).standard_normal(len(change))
    reading = Reading(noised, np.ones(len(change)))
    assert imprint.read(reading).noise == pytest.approx(noise, rel=0.5)
    prior = PublicDistribution.of(PUBLIC)
    offered = examples_in(imprint, reading, prior)
    raw = imprint.read(reading)
    places = imprint.places(examples)[:, 0]
    plain = raw.weights[places] / raw.biases[places, None]
    nearest = [np.min(np.mean((offered - e) ** 2, axis=1)) for e in examples]
    assert np.mean(nearest) < np.mean((plain - examples) ** 2)


def test_a_pair_counts_once() -> None:
    originals = np.array([[0.0, 0.0], [1.0, 1.0], [1.0, 0.98]])
    offered = np.array([[1.0, 0.99], [0.5, 0.5]])
    assert len(matched(originals, offered)) == 1


def test_the_attack_is_a_finding(target: Target) -> None:
    pictures: dict[str, bytes] = {}
    watch = Watch(picture=lambda name, data: pictures.setdefault(name, data) and name)
    finding = attack(target, "quick", watch)
    assert finding.attack == "steal"
    assert finding.figure("recovered").value > 0.7
    assert finding.pictures == ["steal-not_encrypt.png"] == list(pictures)


def test_a_finding_is_about_the_model_that_was_sent_and_as_many_examples_as_its_effort(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under rr each parameter costs, and the sent model has more of them."""
    target = under(target, "rr")
    trapped = replace(target, model=torch.nn.Sequential(target.model, torch.nn.Linear(10, 7)))
    some = np.linspace(0, 1, 3 * 784).reshape(3, 784)
    asked: list[int] = []
    monkeypatch.setattr(
        stealing, "with_examples", lambda given, wanted: asked.append(wanted) or given
    )
    monkeypatch.setattr(
        stealing,
        "steal",
        lambda given, watch: (StealingResult(some, some, some, "a report"), trapped),
    )
    for effort in ("quick", "standard", "full"):
        finding = attack(target, effort, Watch())
        assert finding.epsilon == trapped.promised().epsilon > target.promised().epsilon
        assert (finding.effort, finding.saw) == (effort, "a report")
    assert asked == [200, 1000, 4000]


@pytest.mark.parametrize(("form", "loud"), [("window", 15), ("relu", 15**0.5)])
def test_a_model_is_made_of_public_examples_and_as_loud_as_a_clients_batch(
    target: Target, form: Form, loud: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def model(self: Imprint, classes: int, gain: float) -> None:
        made = Imprint.of(
            target.dataset.test.x,
            9,
            2,
            form,
            Seeded(target.job.seed, "attack", "imprint").generator(),
        )
        assert np.array_equal(self.edges, made.edges)
        assert gain == pytest.approx(loud / target.job.training.lr)
        raise KeyError

    monkeypatch.setattr(Imprint, "model", model)
    with pytest.raises(KeyError):
        stealing._simulate_round(target, 9, 2, form)


def test_adam_is_refused(target: Target) -> None:
    with pytest.raises(AttackImpossible, match=r"training\.optimizer = adam: a report holds"):
        steal(under(target, "not_encrypt", optimizer="adam"))


def test_each_client_gives_its_share_of_the_examples(target: Target) -> None:
    """A cohort has three of five clients, with five, two and nine examples."""
    cohort = Job(clients={"number": 5, "fraction": 0.6}, training={"epochs": 1})
    uneven = Partition(np.arange(20)[::-1], np.array([0, 5, 7, 16, 18, 20]))
    wide = replace(target, job=cohort, partition=uneven)
    for wanted, rows in ((11, [[19, 18, 17], [14, 13], [12, 11, 10]]), (2, [[19], [14], [12]])):
        split = with_examples(wide, wanted).partition
        assert [split.of(client).tolist() for client in range(split.clients)] == rows


def test_one_statistic_needs_more_cells_than_several() -> None:
    assert [cells_needed(11, statistics) for statistics in (1, 2, 3)] == [52, 17, 14]


def test_loot_is_counted_by_pairs() -> None:
    """One of three originals is among four candidates, and two among as many public examples."""
    originals = np.array([[0.0, 0.0], [0.5, 0.5], [1.0, 1.0]])
    offered = np.array([[1.0, 0.8], [0.3, 0.9], [0.5, 0.51], [0.9, 0.1]])
    public = np.array([[0.0, 0.1], [0.5, 0.4], [0.4, 0.0]])
    loot = StealingResult(originals, offered, public, "")
    recovered, quality, true = loot.figures()
    assert (recovered.value, recovered.guess, recovered.cases) == (1 / 3, 2 / 3, 3)
    assert quality.value == pytest.approx(-10 * np.log10(0.01**2 / 2))
    assert (true.value, true.cases) == (1 / 4, 4)
    assert len(matched(originals, offered, 10)) == 2


def test_loot_is_drawn_above_its_nearest_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stealing, "grid", lambda rows: rows)
    originals = np.array([[0.0, 1.0], [1.0, 0.0]])
    offered = np.array([[0.9, 0.2], [0.5, 0.9], [0.5, 0.5]])
    loot = StealingResult(originals, offered, offered, "")
    above, below = loot.picture((1, 1, 2))  # type: ignore[misc]
    assert np.array_equal(np.ravel(above), [0, 1, 1, 0])
    assert np.array_equal(np.ravel(below), [0.5, 0.9, 0.9, 0.2])
    assert loot.picture((2,)) is None


def test_a_model_has_cells_for_a_report_or_for_the_whole_sum(target: Target) -> None:
    """Clients have 2, 5, 1 and 1 examples. A report needs 50 cells, the sum 3 times 13."""
    uneven = Partition(target.partition.indices[:9], np.array([0, 2, 7, 8, 9]))
    for protection, rows in (("not_encrypt", 50 + 1), ("pw_encrypt", 3 * (13 + 1))):
        loot, trapped = steal(replace(under(target, protection), partition=uneven))
        assert trapped.model[1].out_features == rows
        assert (len(loot.originals), len(loot.public)) == (9, 9)
        low, high = (getattr(target.dataset.test.x, part)() for part in ("min", "max"))
        first = target.dataset.test.x[0].ravel().astype(np.float64)
        assert loot.public[0] == pytest.approx((first - low) / (high - low))


def test_a_prior_smooths_noise_along_its_axes() -> None:
    """Three independent features of variance 9, 1 and 4 around 5, 6 and 5."""
    mean, spread = np.array([5.0, 6.0, 5.0]), np.array([3.0, 1.0, 2.0])
    prior = PublicDistribution.of(mean + spread * np.array([*product((-1, 1), repeat=3)]))
    assert (prior.mean.tolist(), prior.low, prior.high) == ([5, 6, 5], 2, 8)
    floor = 1e-3 * 14 / 3
    noisy = np.array([[6.0, 6.5, 4.5], [6.0, 6.5, 4.5], [9.0, 6.5, 4.5]])
    noise = np.array([2.0, 0.5, 0.0])
    trust = (spread**2 + floor) / (spread**2 + floor + noise[:, None] ** 2)
    smooth = np.minimum(mean + trust * (noisy - mean), 8)
    assert prior.restore(noisy, noise) == pytest.approx(smooth)
    known = np.array([[False, True, True]] * 3)
    assert prior.restore(noisy, noise, known)[:, 0] == pytest.approx([5, 5, 5])
    assert prior.unit(np.array([[2.0, 5.0, 8.0]])).tolist() == [[0, 0.5, 1]]
