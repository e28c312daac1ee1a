"""Labels are counted from a gradient, and clients with mostly one class are recognised."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from test_membership import CLASSES, job
from torch import nn

from fedveil.attacks import class_shares
from fedveil.attacks.class_shares import (
    Classes,
    Observer,
    _along,
    attack,
    count_figures,
    of_any,
    of_class,
    property_figures,
)
from fedveil.attacks.effort import Watch
from fedveil.attacks.gradient.label_counts import _whole, label_counts
from fedveil.attacks.gradient.label_recovery import LastLayer
from fedveil.attacks.target import Target
from fedveil.entropy import Entropy, Seeded
from fedveil.errors import AttackImpossible
from fedveil.learning.weight_layout import Layout
from fedveil.privacy.finding import Finding, Measured
from fedveil.privacy.guarantee_strength import attacker_wrong
from fedveil.protections.reading import Reading

COUNTS = np.array([9, 0, 3, 17, 2])


def step(seed: int, lr: float, *, bias: bool = True) -> tuple[Reading, LastLayer, Any]:
    """Return the reading of one step over 31 examples of five classes."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(7, 12), nn.Sigmoid(), nn.Linear(12, 5, bias=bias))
    labels = torch.from_numpy(np.repeat(np.arange(5), COUNTS))
    x = torch.randn(5, 7)[labels] + 0.3 * torch.randn(31, 7)
    weights = Layout(model).vector()
    nn.functional.cross_entropy(model(x), labels).backward()
    torch.optim.SGD(model.parameters(), lr).step()
    layer = LastLayer.of(model, torch.randn(50, 7))
    assert layer is not None
    return Reading.exact(Layout(model).vector() - weights), layer, weights


@pytest.mark.parametrize("seed", range(4))
def test_the_labels_of_one_step_are_counted(seed: int) -> None:
    reading, layer, weights = step(seed, 0.35)
    found = label_counts(reading, layer, weights, 31, 0.35)
    assert found.sum() == 31
    assert np.abs(found - COUNTS).sum() <= 2
    nothing = label_counts(Reading.nothing(len(weights)), layer, weights, 31, 0.35)
    assert nothing.sum() == 31


def test_counts_are_rounded_to_the_right_total() -> None:
    assert _whole(np.array([1.4, 0.9, 2.7]), 5).tolist() == [1, 1, 3]
    assert _whole(np.array([0.0, 0.0]), 7).tolist() in ([4, 3], [3, 4])
    assert _whole(np.array([20.0, 10.0]), 3).tolist() == [2, 1]


def test_a_client_has_the_property_or_not() -> None:
    labels = np.arange(240) % CLASSES
    mine = of_class(labels, 2, 30, Seeded(1))
    assert (len(mine), len(set(mine)), (labels[mine] == 2).sum()) == (30, 30, 23)
    shares = [np.mean(labels[of_any(labels, 2, 30, Seeded(i))] == 2) for i in range(20)]
    assert 0.15 < np.mean(shares) < 0.35
    one = of_any(np.repeat([1, 0], [90, 10]), 1, 20, Seeded(3))
    assert len(one) == 20
    assert (one < 90).sum() == 10  # nine in ten examples are of the class, and no more than half


def attacked(name: str = "not_encrypt", **settings: Any) -> Finding:
    made = job(
        protection={"name": name, name: settings},
        clients={"number": 30, "fraction": 1.0},
        training={"epochs": 1, "batch_size": 8, "lr": 0.3},
        simulation={"workers": 0, "masks": False},  # which add nothing to a sum
    )
    return attack(Target.of(made), "quick", Watch())


def test_plain_reports_say_what_a_client_holds() -> None:
    found = attacked()
    assert found.figure("property AUC").low > 0.8
    assert found.figure("property balanced accuracy").cases == 60
    counted = found.figure("labels counted, median client")
    assert counted.low > counted.guess


def test_a_sum_says_it_too_and_noise_leaves_chance() -> None:
    assert attacked("pw_encrypt", reconstruct_secrets_threshold=2).figure("property AUC").low > 0.6
    found = attacked("dp_encrypt", dp_eps=0.5)
    assert found.figure("property AUC").low < 0.5 < found.figure("property AUC").high
    right = found.figure("property balanced accuracy")
    assert right.low < 1 - attacker_wrong(found.epsilon, found.delta)


def test_the_attacker_learns_from_its_own_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shadow clients are made of the test data, the attacked clients of the training data."""
    classes = Classes.of(Target.of(job(clients={"number": 30})), 1)
    asked: list[tuple[object, bool]] = []

    def updates(self: Classes, examples: object, wanted: int, has: bool, number: int) -> list[Any]:
        asked.append((examples, has))
        return [np.zeros(len(self.target.weights), np.float32)] * number

    monkeypatch.setattr(class_shares.Classes, "updates", updates)
    taught, found = classes.scores(classes.wanted[0], 3, 2)
    data = classes.target.dataset
    assert [examples is data.test for examples, _ in asked] == [True, True, False, False]
    assert [has for _, has in asked] == [True, False] * 2
    assert [len(side) for side in (*taught, *found)] == [3, 3, 2, 2]


def test_reports_of_every_group_of_clients_have_noise_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The attacker knows neither the attacked clients' noise nor that of its own clients again."""
    target, made = Target.of(job(clients={"number": 30})), list[bytes]()
    classes = Classes(target, 8, [0, 2], Seeded(6, "classes"))

    def noting(target: Target, entropy: Entropy) -> Observer:
        made.append(entropy.token(16))
        return Observer(target, entropy)

    monkeypatch.setattr(class_shares, "Observer", noting)
    same = [np.zeros(len(target.weights), np.float32)]
    monkeypatch.setattr(Classes, "updates", lambda *_: same)
    for wanted in classes.wanted:
        classes.scores(wanted, 1, 1)
    assert len(set(made)) == len(made) == 2 * 2 * 2


def test_simulated_clients_train_on_the_examples_that_they_are_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    classes = Classes.of(Target.of(job(clients={"number": 30})), 1)
    asked: list[tuple[Target, list[int]]] = []
    monkeypatch.setattr(
        Target, "updates", lambda self, clients: asked.append((self, [*clients])) or []
    )
    (wanted,), data = classes.wanted, classes.target.dataset
    for part, has in ((data.test, True), (data.train, True), (data.train, False)):
        classes.updates(part, wanted, has, 3)
        made, clients = asked.pop()
        assert (made.dataset.train is part, clients) == (True, [0, 1, 2])
        assert made.partition.sizes.tolist() == [classes.count] * 3
        shares = [np.mean(part.y[made.partition.of(client)] == wanted) for client in clients]
        assert [share >= 0.75 for share in shares] == [has] * 3
    drawn: list[bytes] = []
    for draw in ("of_class", "of_any"):
        monkeypatch.setattr(
            class_shares, draw,
            lambda labels, wanted, count, entropy: drawn.append(bytes(entropy.words(2)))
            or np.arange(count),
        )  # fmt: skip
    for part, of, has in product((data.test, data.train), (0, 1), (True, False)):
        classes.updates(part, of, has, 3)
    assert len({*drawn}) == 2 * 2 * 2 * 3


def test_classes_without_enough_examples_are_refused() -> None:
    sentence = r"^no class has enough .* of 60 examples,.* 45 .* and 30 of other .* at most 13 are"
    with pytest.raises(AttackImpossible, match=sentence):
        attack(Target.of(job()), "quick", Watch())


def test_a_claim_about_examples_is_not_compared_with_what_one_client_holds() -> None:
    of_examples = job(
        privacy={"unit": "example"},
        training={"sampling_rate": 0.5, "batch_size": 10, "lr": 0.1},
        protection={"name": "dp_encrypt"},
    )
    with pytest.raises(AttackImpossible, match="it asks what one client holds, and under privacy"):
        attack(Target.of(of_examples), "quick", Watch())


def test_an_observer_reads_a_sum_with_others_and_each_report_by_itself() -> None:
    """Without a readable report it is the sum with as many others as the protection needs."""
    few = {"name": "pw_encrypt", "pw_encrypt": {"reconstruct_secrets_threshold": 2}}
    target = Target.of(job(protection=few, training={"epochs": 1, "batch_size": 8, "lr": 0.3}))
    update = np.linspace(-0.2, 0.3, len(target.weights), dtype=np.float32)
    (read,) = Observer(target, Seeded(1)).readings([update])
    size = target.protection.least_clients
    others = np.array(target.updates(range(4)))
    sums = [others[list(some)].sum(axis=0) for some in combinations(range(4), size - 1)]
    assert min(np.abs(read.estimate - update - rest).max() for rest in sums) < 1e-4
    for client in range(4):  # whose own update must not be among the others too
        (read,) = Observer(target, Seeded(1)).readings([others[client]], [client])
        rest = np.delete(others, client, axis=0)
        sums = [rest[list(some)].sum(axis=0) for some in combinations(range(3), size - 1)]
        assert min(np.abs(read.estimate - others[client] - sum_).max() for sum_ in sums) < 1e-4
    alone: Any = SimpleNamespace(
        protection=target.protection, weights=target.weights, partition=target.partition,
        updates=target.updates, job=SimpleNamespace(clients_per_round=size - 1),
    )  # fmt: skip
    with pytest.raises(AttackImpossible, match="too few clients for a round of this protection"):
        list(Observer(alone, Seeded(1)).readings([update]))
    noised = Observer(target.under("dp_encrypt"), Seeded(1)).readings([update, update])
    one, other = (reading.estimate for reading in noised)
    assert not np.array_equal(one, other)


@pytest.mark.parametrize(("least", "size"), [(1, 2), (3, 3)])
def test_a_sum_has_as_many_reports_as_the_protection_needs(
    least: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    summed: list[int] = []

    def seen(protection: object, weights: object, updates: list[Any], source: Entropy) -> Any:
        summed.append(len(updates))
        return SimpleNamespace(masked=True, total="the sum")

    monkeypatch.setattr(class_shares, "seen", seen)
    target: Any = SimpleNamespace(
        protection=SimpleNamespace(least_clients=least), weights=np.zeros(2),
        partition=SimpleNamespace(clients=7),
        updates=lambda clients: [np.zeros(2) for _ in clients],
        job=SimpleNamespace(clients_per_round=5),
    )  # fmt: skip
    assert [*Observer(target, Seeded(4)).readings([np.ones(2, np.float32)])] == ["the sum"]
    assert summed[-1] == size


def test_the_labels_of_a_layer_without_a_bias_are_counted() -> None:
    reading, layer, weights = step(3, 0.35, bias=False)
    assert layer.bias is None
    found = label_counts(reading, layer, weights, 31, 0.35)
    assert (found.shape, found.sum()) == ((5,), 31)
    assert np.abs(found - COUNTS).sum() <= 2


def test_a_score_is_a_weighted_projection() -> None:
    """Weights count relative to their mean, which is 2."""
    reading = Reading(np.array([1.0, -2.0, 4.0]), np.array([1.0, 5.0, 0.0]))
    direction = np.array([3.0, 1.0, 7.0])
    length = np.sqrt(0.5 * 9 + 2.5 * 1)
    assert _along(reading, direction) == pytest.approx((0.5 * 3 - 2.5 * 2) / length)


def test_a_class_of_just_enough_test_examples_can_be_asked_about() -> None:
    """18 clients have 13 examples, of which 10 are to be of a class: the test data has 10."""
    target = Target.of(job(clients={"number": 18}))
    assert Classes.of(target, 9).wanted == [0, 1, 2, 3]
    assert len(Classes.of(target, 3).wanted) == 3


def test_a_class_without_enough_examples_of_others_cannot_be_asked_about() -> None:
    """A client of 8 examples without the property needs at least 4 of other classes."""
    target = Target.of(job(clients={"number": 30}))
    for others, wanted in ((3, []), (4, [0])):
        y = np.repeat([0, 1], [40 - others, others])
        data = replace(target.dataset, test=replace(target.dataset.test, y=y))
        some = replace(target, dataset=data)
        if wanted:
            assert Classes.of(some, 9).wanted == wanted
        else:
            with pytest.raises(AttackImpossible, match="and 4 of other classes"):
                Classes.of(some, 9)


def test_scores_are_scaled_and_judged_by_shadow_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked clients of one class have other scores than the shadows: that is not known."""
    scores = {
        1: ([[4.0, 6.0], [0.0, 2.0]], [[9.0, 2.5], [1.0, 8.0]]),
        3: ([[40.0, 60.0], [0.0, 20.0]], [[31.0, 90.0], [29.0, 29.5]]),
    }
    asked: list[tuple[int, int]] = []

    def given(self: Classes, wanted: int, shadows: int, cases: int) -> Any:
        asked.append((shadows, cases))
        return [[*map(np.array, side)] for side in scores[wanted]]

    monkeypatch.setattr(Classes, "scores", given)
    target = Target.of(job(clients={"number": 30}))
    monkeypatch.setattr(Classes, "of", lambda target, most: Classes(target, 8, [1, 3], Seeded(1)))
    right, area, *_ = property_figures(target, "quick", Watch())
    # Shadows separate at 3 and 30. Above are 3 of 4 that have the property, and 1 that lacks it.
    assert (right.value, right.cases) == (3 / 4, 8)
    # In spreads from the middle: 2.68, -0.22, 0.04, 2.68; -0.89, 2.24, -0.04, -0.02.
    assert area.value == 12 / 16
    property_figures(target, "full", Watch())
    assert asked == [(8, 10)] * 2 + [(32, 40)] * 2


def test_both_questions_are_asked_at_the_effort(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target.of(job(clients={"number": 30}))
    monkeypatch.setattr(
        class_shares, "count_figures", lambda given, effort: [Measured(f"counts, {effort}", 0.5)]
    )
    monkeypatch.setattr(
        class_shares, "property_figures", lambda given, effort, watch: [Measured(effort, 0.25)]
    )
    found = attack(target, "standard", Watch())
    assert [figure.name for figure in found.figures] == ["counts, standard", "standard"]
    assert (found.effort, found.epsilon) == ("standard", np.inf)
    assert found.saw.startswith("one report of each client, or the smallest sum")


def test_counts_are_asked_over_all_local_steps_and_beside_a_guess(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Five of seven clients of 34 or 35 examples, in two epochs of batches of 8: ten steps."""
    training = {"epochs": 2, "batch_size": 8, "lr": 0.3, "momentum": 0.5}
    target = Target.of(job(clients={"number": 7, "fraction": 1.0}, training=training))
    y = np.array(target.dataset.test.y)
    y[:30] = 0
    test = replace(target.dataset.test, y=y)
    target = replace(target, dataset=replace(target.dataset, test=test))
    monkeypatch.setattr(class_shares, "by_effort", lambda *_: 5)
    chosen = sorted(map(int, Seeded(target.job.seed, "attack", "counts").permutation(7)[:5]))
    assert chosen != [*range(5)]
    truths = [np.bincount(target.dataset.train.y[target.rows(i)], minlength=4) for i in chosen]
    asked: list[tuple[int, float]] = []
    given: list[Any] = []
    updates, readings = target.updates(chosen), Observer.readings
    monkeypatch.setattr(
        Observer, "readings",
        lambda self, *of: given.append(of[1:]) or readings(self, *of),
    )  # fmt: skip

    def counts(reading: Any, layer: Any, weights: Any, count: int, scale: float) -> Any:
        assert np.array_equal(reading.estimate, updates[len(asked)])
        asked.append((count, scale))
        truth = truths[len(asked) - 1]
        return truth + [[0, 0, 0, 0], [1, -1, 0, 0]][len(asked) > 2]

    monkeypatch.setattr(class_shares, "label_counts", counts)
    counted, right = count_figures(target, "quick")
    assert given == [(chosen,)]
    assert [count for count, _ in asked] == target.partition.sizes[chosen].tolist()
    # Equal gradients: step t is as long as 2 - 2 / 2^t steps without momentum.
    assert [scale for _, scale in asked] == pytest.approx([0.3 * (20 - 2 * (1 - 2**-10))] * 5)
    assert (right.value, right.cases) == (2 / 5, 5)
    shares = np.bincount(y, minlength=4) / len(y)
    guesses = [np.minimum(shares * t.sum(), t).sum() / t.sum() for t in truths]
    assert counted.guess == pytest.approx(np.median(guesses))
    assert np.median(guesses) != pytest.approx(np.mean(guesses), abs=1e-6)
    assert counted.value == pytest.approx(np.median([1, 1, *(1 - 1 / t.sum() for t in truths[2:])]))
    adam = Target.of(job(training={"optimizer": "adam"}))
    assert count_figures(adam, "quick") == []


def bent() -> nn.Module:
    """A model whose scores are bent after its last dense layer."""
    return nn.Sequential(nn.Linear(30, CLASSES), nn.Tanh())


def test_clients_of_one_example_and_models_without_a_dense_end_are_not_asked_about() -> None:
    with pytest.raises(AttackImpossible, match="the median client has only one example"):
        Classes.of(Target.of(job(clients={"number": 240})), 9)
    assert count_figures(Target.of(job(model="test_class_shares:bent")), "quick") == []
