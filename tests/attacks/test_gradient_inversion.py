"""Examples from a reading of their update, and the attack on a job's clients."""

from __future__ import annotations

import io
import itertools
import re
from collections import Counter
from dataclasses import replace
from itertools import islice
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from test_membership import job as table_job
from torch import nn

from fedveil.attacks.attack_randomness import generator
from fedveil.attacks.effort import Effort, Watch
from fedveil.attacks.gradient import inversion, reconstruction
from fedveil.attacks.gradient.inversion import Bounds, attack
from fedveil.attacks.gradient.matching import Distance, Found, by_lbfgs, by_signed_adam
from fedveil.attacks.gradient.reconstruction import Knowledge, Search, reconstruct
from fedveil.attacks.gradient.recovered_examples import Score, labels_in_common, paired
from fedveil.attacks.gradient.unrolled_training import UnrolledTraining
from fedveil.attacks.smoothness import total_variation
from fedveil.attacks.target import Target
from fedveil.base.array_types import Float32s
from fedveil.data.partition import Partition
from fedveil.entropy import Seeded
from fedveil.errors import AttackImpossible
from fedveil.federated.job import Job
from fedveil.learning.models import lenet_smooth, logistic
from fedveil.learning.trainer import TrainingPlan
from fedveil.learning.weight_layout import Layout
from fedveil.privacy.finding import EFFORTS
from fedveil.protections.catalog import POSITIONS
from fedveil.protections.reading import Reading

SHAPE, CLASSES = (1, 8, 8), 4
SQUARED = Search("squared", 40, restarts=2)
COSINE = Search("cosine", 120, variation=0.0005)


FEW = {"reconstruct_secrets_threshold": 2}


def images(count: int) -> torch.Tensor:
    """Bright squares on black, where they differ."""
    x = torch.zeros(count, *SHAPE)
    for i, image in enumerate(x):
        image[0, 1 + i % 4 : 4 + i % 4, 2 : 5 + i % 3] = 1 - 0.1 * i
    return x


def knowledge(model: nn.Module, count: int, epochs: int = 1, clients: int = 1) -> Knowledge:
    plan = TrainingPlan(epochs, 2, "sgd", 0.1, 0.0, 0.0)
    training = UnrolledTraining(model, plan, Layout(model).vector())
    prior = torch.full(SHAPE, 0.25)
    return Knowledge(training, count, prior, prior[None], clients=clients, common=2)


def built(name: str = "lenet_smooth") -> nn.Module:
    torch.manual_seed(3)
    return (logistic if name == "logistic" else lenet_smooth)(SHAPE, CLASSES)


def report(known: Knowledge, x: torch.Tensor, labels: list[int]) -> Reading:
    targets = nn.functional.one_hot(torch.tensor(labels), CLASSES).float()
    return Reading.exact(known.training.update(x, targets, known.clients).detach().numpy())


def error(x: torch.Tensor, found: np.ndarray) -> float:
    return float(((paired(x.double().numpy(), found) - x.double().numpy()) ** 2).mean())


@pytest.mark.parametrize("model", ["lenet_smooth", "logistic"])
@pytest.mark.parametrize("epochs", [1, 3])
def test_a_single_image_is_recovered(model: str, epochs: int) -> None:
    known, x = knowledge(built(model), 1, epochs), images(1)
    found = reconstruct(report(known, x, [1]), known, [SQUARED], generator(0))
    assert found.labels.tolist() == [1]
    assert found.by == "squared"
    assert error(x, found.examples) < 1e-3 < error(x, known.prior[None].numpy())


def test_a_batch_of_two_is_recovered_over_several_steps() -> None:
    known, x = knowledge(built(), 2, epochs=3), images(2)
    found = reconstruct(report(known, x, [0, 3]), known, [SQUARED], generator(0))
    assert found.labels.tolist() == [0, 3]
    assert error(x, found.examples) < 1e-2


def test_the_mean_of_two_clients_is_taken_apart() -> None:
    known, x = knowledge(built(), 1, epochs=2, clients=2), images(2)
    found = reconstruct(report(known, x, [0, 3]), known, [SQUARED], generator(0))
    assert found.labels.tolist() == [0, 3]
    assert error(x, found.examples) < 1e-2


def test_labels_are_sought_together_with_the_image() -> None:
    known, x = knowledge(built(), 1), images(1)
    reading = report(known, x, [3])
    found = reconstruct(reading, known, [SQUARED], generator(0), labels="joint")
    assert found.labels.tolist() == [3]
    assert error(x, found.examples) < 1e-2


def test_labels_are_sought_by_the_first_search_and_images_by_their_mean_roughness(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known, x = knowledge(built(), 2), images(2)
    reading, objectives = report(known, x, [0, 3]), list[Any]()

    def search(objective: Any, start: torch.Tensor, iterations: int, *box: Any) -> Found:
        objectives.append((objective, iterations))
        return Found(start, 1.0)

    monkeypatch.setattr(reconstruction, "by_lbfgs", search)
    monkeypatch.setattr(reconstruction, "by_signed_adam", search)
    searches = [Search("squared", 7), Search("cosine", 9, variation=0.5)]
    found = reconstruct(reading, known, searches, generator(0), labels="joint")
    assert [iterations for _, iterations in objectives] == [7, 7, 9]
    targets = nn.functional.one_hot(torch.tensor(found.labels), CLASSES).float()
    apart = Distance(reading).cosine(known.training.update(x, targets))
    # 2 * 8 * 7 differences of neighbours in an image, of which half are in each direction.
    rough = total_variation(x).mean() / (8 * 7)
    assert objectives[-1][0](x).item() == pytest.approx((apart + 0.5 * rough).item(), rel=1e-5)


@pytest.mark.parametrize("scaled", [True, False])
def test_labels_are_sought_by_the_angle_where_a_reading_has_no_size(
    scaled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, x = knowledge(built(), 2), images(2)
    reading = replace(report(known, x, [0, 3]), scaled=scaled)
    sought: list[Any] = []

    def search(objective: Any, start: torch.Tensor, iterations: int) -> Found:
        sought.append(objective)
        return Found(start, 1.0)

    monkeypatch.setattr(reconstruction, "by_lbfgs", search)
    draw = generator(0)
    reconstruction._joint_labels(reading, known, Distance(reading), Search("squared", 7), draw)
    logits = torch.arange(2.0 * CLASSES).reshape(2, CLASSES)
    update = known.training.update(x, logits.softmax(1))
    measure = Distance(reading).squared if scaled else Distance(reading).cosine
    point = torch.cat([x.reshape(-1), logits.reshape(-1)])
    assert sought[0](point).item() == pytest.approx(measure(update).item(), rel=1e-5)


def test_starts_and_searches_end_at_their_own_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Near enough to explain an update, and not to end the starts of a search."""
    known, starts = knowledge(built(), 2, clients=2), list[str]()
    spreads: list[float] = []

    def search(name: str) -> Any:
        def start_of(objective: Any, start: torch.Tensor, *more: Any) -> Found:
            starts.append(name)
            spreads.append(float((start - 0.25).std()))
            return Found(start, 5e-3)

        return start_of

    scales: list[float | None] = []
    monkeypatch.setattr(reconstruction, "by_lbfgs", search("squared"))
    monkeypatch.setattr(reconstruction, "by_signed_adam", search("cosine"))
    monkeypatch.setattr(
        reconstruction, "recover",
        lambda reading, layer, total, scale: scales.append(scale) or np.zeros(total, np.int64),
    )  # fmt: skip
    reading = report(known, images(4), [0, 3, 1, 1])
    found = reconstruct(reading, known, [replace(SQUARED, restarts=3), COSINE], generator(0))
    assert (starts, found.by, found.value) == (["squared"] * 3, "squared", 5e-3)
    assert scales == [0.1]  # each of the two clients took one step
    assert spreads == pytest.approx([0.05, 0.15, 0.45], rel=0.2), "each start is further away"


@pytest.mark.parametrize(
    ("count", "plan", "scaled", "scale"),
    [
        (2, {}, True, 0.1), (2, {}, False, None), (3, {}, True, None),
        (2, {"epochs": 3}, True, None), (2, {"optimizer": "adam"}, True, None),
    ],
    ids=["one step", "a direction", "two steps", "three epochs", "adam"],
)  # fmt: skip
def test_labels_are_told_by_the_size_of_an_update_only_if_it_is_one_known_step(
    count: int, plan: dict[str, Any], scaled: bool, scale: float | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    known, told = knowledge(built(), count), list[Any]()
    training = known.training
    training.plan = replace(training.plan, **plan)
    monkeypatch.setattr(reconstruction, "recover", lambda *given: told.append(given[2:]) or [])
    weights = np.ones(training.layout.dimension)
    reconstruction.recovered_labels(Reading(-weights, weights, scaled), known)
    assert told == [(count, scale)]


def test_the_labels_of_a_batch_are_told_by_a_direction_of_any_length() -> None:
    """At weights of zero, the softmax is known and does not depend on the examples."""
    model = logistic(SHAPE, CLASSES)
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    labels = [0, 0, 3, 3]
    known = knowledge(model, 4)
    known.training.plan = replace(known.training.plan, batch_size=4)
    exact = report(known, images(4), labels)
    for length in (1e-3, 1.0, 1e3):
        direction = Reading(length * exact.estimate, exact.weight, scaled=False)
        found = reconstruction.recovered_labels(direction, known)
        assert list(found) == labels


def test_a_direction_alone_is_matched_by_its_angle() -> None:
    known, x = knowledge(built(), 1), images(1)
    exact = report(known, x, [1])
    direction = Reading(17 * exact.estimate, exact.weight, scaled=False)
    found = reconstruct(direction, known, [SQUARED, COSINE], generator(0))
    assert found.by == "cosine"
    assert found.labels.tolist() == [1]
    assert error(x, found.examples) < 0.02 < error(x, known.prior[None].numpy())


def test_what_the_squares_explain_is_not_sought_again() -> None:
    known, x = knowledge(built(), 1), images(1)
    found = reconstruct(report(known, x, [1]), known, [SQUARED, COSINE], generator(0))
    assert found.by == "squared"
    unexplained = replace(SQUARED, iterations=2, restarts=1, explains=1e-6)
    found = reconstruct(report(known, x, [1]), known, [unexplained, COSINE], generator(0))
    assert found.by == "cosine"


def test_a_reading_of_nothing_leaves_the_guess() -> None:
    known = knowledge(built(), 3)
    dimension = known.training.layout.dimension
    found = reconstruct(Reading.nothing(dimension), known, [SQUARED, COSINE], generator(0))
    assert found.by == "guess"
    assert found.labels.tolist() == [2, 2, 2]
    assert np.allclose(found.examples, 0.25)


def test_noise_gives_nothing_better_than_the_guess() -> None:
    known, x = knowledge(built(), 1), images(1)
    noise = Seeded(0, "noise").generator().standard_normal(known.training.layout.dimension)
    reading = Reading(noise, np.ones_like(noise))
    found = reconstruct(reading, known, [SQUARED, COSINE], generator(0))
    assert error(x, found.examples) > error(x, known.prior[None].numpy())


def test_distances_count_entries_by_their_weight() -> None:
    reading = Reading(np.array([3.0, 4.0, 100.0]), np.array([2.0, 2.0, 0.0]))
    distance = Distance(reading)
    assert distance.squared(torch.tensor([3.0, 4.0, 0.0])).item() == 0
    assert distance.squared(torch.tensor([3.0, -1.0, 0.0])).item() == pytest.approx(1)
    assert distance.cosine(torch.tensor([6.0, 8.0, 5.0])).item() == pytest.approx(0, abs=1e-6)
    assert distance.cosine(torch.tensor([4.0, -3.0, 5.0])).item() == pytest.approx(1)


def test_total_variation() -> None:
    x = torch.zeros(1, 1, 2, 3)
    x[0, 0, 1] = torch.tensor([1.0, 1.0, 0.0])
    assert total_variation(x).item() == pytest.approx(3)
    assert total_variation(torch.ones(2, 5)).tolist() == [0, 0]


def test_a_reconstruction_is_held_against_its_own_original() -> None:
    originals = np.stack([np.full((1, 8, 8), v) for v in (0.0, 0.5, 1.0)])
    assert np.array_equal(paired(originals, originals[[2, 0, 1]] * 0.9), originals * 0.9)
    assert labels_in_common(np.array([0, 0, 1]), np.array([0, 1, 1])) == 2


def test_figures_stand_beside_the_guess() -> None:
    score = Score(np.full((1, 8, 8), 0.5), common=1)
    originals = np.stack([np.zeros((1, 8, 8)), np.ones((1, 8, 8))])
    score.add(originals, np.array([1, 0]), originals[::-1] * 0.9, np.array([0, 0]))
    figures = {figure.name: figure for figure in score.figures()}
    assert figures["mse"].value == pytest.approx(0.005)
    assert figures["mse"].guess == 0.25
    assert figures["label accuracy"].value == figures["label accuracy"].guess == 0.5
    assert set(figures) == {"mse", "psnr", "ssim", "label accuracy"}
    rows = Score(np.zeros(5), common=0)
    rows.add(np.ones((1, 5)), np.array([0]), np.ones((1, 5)), np.array([0]))
    assert [figure.name for figure in rows.figures()] == ["mse", "psnr", "label accuracy"]


@pytest.fixture(scope="module")
def target() -> Target:
    """Clients of one scan each, and cohorts of three."""
    return Target.of(
        Job(
            model="logistic",
            clients={"number": 1437, "fraction": 0.002},
            training={"epochs": 1},
            protection={"pw_encrypt": FEW, "distributed_dp": FEW},
        )
    )


def _small(squared: int = 20, cosine: int = 10) -> Bounds:
    return Bounds(3, 4, 10, (Search("squared", squared), Search("cosine", cosine, 1, 0.05)))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inversion, "bounds", lambda effort: _small())


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("position", POSITIONS)
def test_any_position_is_attacked(target: Target, position: str) -> None:
    pictures: dict[str, bytes] = {}
    steps: list[tuple[int, int]] = []
    watch = Watch(
        lambda done, total, what: steps.append((done, total)),
        lambda name, data: pictures.setdefault(name, data) and name,
    )
    finding = attack(target.under(position), "quick", watch)
    assert (finding.attack, finding.protection) == ("gradient", position)
    assert list(pictures) == finding.pictures == [f"gradient-{position}.png"]
    assert pictures[finding.pictures[0]].startswith(b"\x89PNG")
    assert steps[-1] == (3, 3)
    assert finding.figure("mse").cases >= 3
    assert np.isfinite([figure.value for figure in finding.figures]).all()
    secret = POSITIONS[position].phases != ("report",)
    whose = "the aggregate of 3 clients" if secret else "one client's report"
    assert finding.saw == f"{whose}; 1 example and 1 local step a client"


@pytest.mark.usefixtures("quick")
def test_a_plain_report_is_inverted(target: Target) -> None:
    finding = attack(target.under("not_encrypt"), "quick", Watch())
    assert finding.figure("mse").value < 1e-3 < finding.figure("mse").guess
    assert finding.figure("label accuracy").value == 1
    assert finding.settings["found by"] == {"squared": 3}
    assert finding.epsilon == np.inf


@pytest.mark.filterwarnings("ignore::fedveil.errors.FedveilWarning")  # of a small top-k set
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(
    "signs",
    [{"sign_eps": 1.0}, {"sign_eps": 100.0, "sign_k": 0.25, "sign_dim_out": 50}],
    ids=["default k", "as much as the settings allow"],
)
def test_indices_and_one_sign_make_a_reconstruction_harder(
    seed: int, signs: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search that finds a plain report's image is no nearer to a signed one's than a guess."""
    monkeypatch.setattr(inversion, "bounds", lambda effort: _small(cosine=30))

    def found(**protection: Any) -> Any:
        job = Job(
            seed=seed, model="logistic", clients={"number": 1437, "fraction": 0.002},
            training={"epochs": 1}, protection=protection,
        )  # fmt: skip
        return attack(Target.of(job), "quick", Watch())

    plain, signed = found(name="not_encrypt"), found(name="signds", signds=signs)
    assert plain.figure("mse").cases == signed.figure("mse").cases == 3
    assert plain.figure("mse").guess == signed.figure("mse").guess, "the victims are the same"
    assert plain.figure("mse").value < 1e-6
    assert plain.figure("ssim").value > 0.99
    assert signed.figure("mse").value > 0.5 * signed.figure("mse").guess
    assert signed.figure("ssim").value < 0.6


def test_more_effort_means_more_of_everything() -> None:
    def amounts(effort: Effort) -> np.ndarray:
        found = inversion.bounds(effort)
        squared, cosine = found.searches
        assert (squared.distance, cosine.distance, cosine.variation) == ("squared", "cosine", 0.1)
        work = squared.iterations, squared.restarts, cosine.iterations
        return np.array([found.cases, found.at_once, found.steps, *work])

    quick, standard, full = map(amounts, EFFORTS)
    assert (quick < standard).all()
    assert (standard < full).all()


def test_what_no_effort_reaches_is_said() -> None:
    job = Job(model="logistic", clients={"number": 10}, data={"name": "digits"})
    with pytest.raises(AttackImpossible) as told:
        attack(Target.of(job), "quick", Watch())
    assert str(told.value) == (
        "gradient inversion seeks at most 16 examples of a client behind 20 local steps at this "
        "effort, and every client has 143 or more and takes 80 or more: choose a greater effort, "
        "or a job of more clients or fewer epochs"
    )


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"proximal": 0.1}, "training.proximal = 0.1"),
        ({"gradient_norm": 1.0}, "training.gradient_norm = 1.0"),
        ({"optimizer": "adamw", "proximal": 0.5},
         "training.optimizer = 'adamw', training.proximal = 0.5"),
        ({"class_weights": [0.5, 1.0] * 5},
         "training.class_weights = [0.5, 1.0, 0.5, 1.0, 0.5, 1.0, 0.5, 1.0, 0.5, 1.0]"),
    ],
)  # fmt: skip
def test_steps_that_are_not_followed_are_named(changes: dict[str, Any], named: str) -> None:
    job = Job(model="logistic", clients={"number": 10}, training=changes)
    with pytest.raises(AttackImpossible, match=re.escape(f"does not follow {named}") + "$"):
        attack(Target.of(job), "quick", Watch())


def test_what_has_one_or_three_channels_is_an_image() -> None:
    for shape, is_image in (
        ((1, 8, 8), True),
        ((3, 8, 8), True),
        ((2, 8, 8), False),
        ((9,), False),
    ):
        assert Score(np.zeros(shape), common=0).are_images == is_image


def test_figures_are_medians_over_unequal_examples() -> None:
    """Three examples, of which two have the commonest label, and one label is recovered."""
    score = Score(np.full((1, 8, 8), 0.5), common=1)
    shades, made = (0.1, 0.2, 0.9), (0.1, 0.3, 0.5)
    originals, found = (np.stack([np.full((1, 8, 8), s) for s in each]) for each in (shades, made))
    score.add(originals[:1], np.array([1]), found[:1], np.array([0]))
    score.add(originals[1:], np.array([0, 1]), found[1:], np.array([1, 3]))
    figures = {figure.name: figure for figure in score.figures()}
    assert figures["mse"].value == pytest.approx(0.1**2)
    assert figures["mse"].guess == pytest.approx(0.4**2)
    assert figures["psnr"].value == pytest.approx(20)
    assert figures["psnr"].guess == pytest.approx(-20 * np.log10(0.4))
    assert (figures["label accuracy"].value, figures["label accuracy"].cases) == (1 / 3, 3)
    assert figures["label accuracy"].guess == 2 / 3
    picture = Image.open(io.BytesIO(score.grid(columns=2)))
    assert picture.size == (3 * (2 * 10 + 2), 3 * (2 * 10 + 2))
    rows = np.split(np.asarray(picture.convert("L"), np.float64), 2)
    bright = [np.median(row[15:18, 45:54]) / 255 for row in rows]  # of the second example
    assert bright == pytest.approx([0.2, 0.3], abs=0.01)


@pytest.fixture
def sight() -> inversion.Sight:
    """Clients of 1, 3, 2, 1 and 2 examples. The attacker seeks at most two, and in one step."""
    job = Job(
        model="logistic",
        clients={"number": 5, "fraction": 0.6},
        training={"epochs": 1, "batch_size": 2},
        protection="not_encrypt",
    )
    target = Target.of(job)
    uneven = Partition(np.arange(9) * 3 + 5, np.array([0, 1, 4, 6, 7, 9]))
    return inversion.Sight(replace(target, partition=uneven), Bounds(6, 2, 1, ()))


def test_what_is_found_beyond_the_range_of_the_data_counts_as_its_end(
    sight: inversion.Sight,
) -> None:
    x = sight.target.dataset.train.x
    low, high = float(x.min()), float(x.max())
    beyond = np.array([low - 3.0, low, (low + 3 * high) / 4, high, high + 0.5])
    assert sight.scaled(beyond) == pytest.approx([0, 0, 0.75, 1, 1])


def test_an_attack_ends_at_its_limit_and_compares_what_it_found_on_one_scale(
    sight: inversion.Sight, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search finds the data's largest value everywhere. Clients have one example each."""
    target = replace(sight.target, partition=Partition(np.arange(5) * 7, np.arange(6)))
    target = target.under("dp_encrypt")
    scores: list[Score] = []
    whole = Score.figures
    monkeypatch.setattr(Score, "figures", lambda self: scores.append(self) or whole(self))
    monkeypatch.setattr(inversion, "bounds", lambda effort: Bounds(7, 2, 1, ()))

    def found(reading: Reading, known: Knowledge, *more: Any) -> reconstruction.Reconstruction:
        examples = np.full((1, *known.prior.shape), known.box[1])
        return reconstruction.Reconstruction(examples, np.array([2]), 0.0, "squared")

    monkeypatch.setattr(inversion, "reconstruct", found)
    x = target.dataset.train.x * 3 - 1
    target = replace(target, dataset=replace(
        target.dataset, train=replace(target.dataset.train, x=x)
    ))  # fmt: skip
    finding = attack(target, "quick", Watch())
    (score,) = scores
    assert (np.min(score.found), np.max(score.found)) == (1.0, 1.0)
    assert (np.min(score.originals), np.max(score.originals)) == (0.0, 1.0)
    assert finding.figure("label accuracy").cases == 7
    assert finding.settings == {**target.settings, "found by": {"squared": 7}}
    assert finding.settings["dp_eps"] == target.job.protection.settings.dp_eps


def test_clients_of_no_example_or_too_many_steps_are_not_sought(sight: inversion.Sight) -> None:
    target = sight.target.job.model_dump()
    target["training"]["batch_size"] = 1
    uneven = Partition(np.arange(9) * 3 + 5, np.array([0, 1, 4, 6, 6, 9]))
    alone = replace(sight.target, job=Job(**target), partition=uneven)
    assert inversion.Sight(alone, Bounds(6, 2, 1, ()))._within.tolist() == [0]
    assert inversion.Sight(alone, Bounds(6, 2, 2, ()))._within.tolist() == [0, 2]


def test_clients_of_few_examples_are_attacked_by_their_own_reports(
    sight: inversion.Sight, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client of three examples is left out, also where it is in the cohort of three."""
    cohorts: list[list[int]] = []
    real = Target.updates
    target, x = sight.target, sight.target.dataset.train.x
    updates = target.updates(range(5))
    monkeypatch.setattr(
        Target, "updates", lambda self, clients: cohorts.append(clients) or real(self, clients)
    )
    repeats: list[int] = []
    look = Target.server_view
    monkeypatch.setattr(
        Target, "server_view", lambda self, sent, repeat: repeats.append(repeat) or look(self, sent)
    )
    seen = dict.fromkeys(range(5), 0)
    for view in islice(sight.views(), 12):
        (client,) = view.clients
        seen[client] += 1
        assert np.array_equal(view.reading.estimate, updates[client])
        known = view.known
        assert (known.count, known.clients, view.cohort) == (target.partition.sizes[client], 1, 1)
        assert known.box == (float(x.min()), float(x.max()))
        assert np.allclose(known.prior.numpy(), x.mean(axis=0), atol=1e-6)
        assert np.array_equal(known.probes.numpy(), target.dataset.test.x[:64])
        assert known.common == np.bincount(target.dataset.train.y).argmax()
    assert {len({*cohort}) for cohort in cohorts} == {3}
    assert any(1 in cohort for cohort in cohorts)
    assert seen[1] == 0
    assert repeats == [*range(len(cohorts))]  # each round has noise of its own
    assert sum(count > 0 for count in seen.values()) == 4


def test_only_clients_within_the_limits_are_sought_in_an_aggregate(
    sight: inversion.Sight, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first client of a cohort is within the limits, but is not always in the sum."""
    asked = itertools.cycle([(1, 2), (), (1,), (0, 1, 2)])
    cohorts: list[list[int]] = []
    real = Target.updates
    monkeypatch.setattr(
        Target, "updates", lambda self, clients: cohorts.append(clients) or real(self, clients)
    )
    nothing = Reading.nothing(len(sight.target.weights))

    def seen(target: Target, updates: list[Float32s], repeat: int) -> Any:
        return SimpleNamespace(
            readings=[nothing] * 3, aggregate=updates[0].astype(float), asked=next(asked)
        )

    monkeypatch.setattr(Target, "server_view", seen)
    views = list(islice(sight.views(), 20))
    assert all(1 not in view.clients for view in views), "it has more examples than the limit"
    assert any(set(cohort[1:]) == {1, 3} for cohort in cohorts), "client 1 was summed"
    sizes = Counter(view.cohort for view in views)
    assert sizes[2] - sizes[3] in (0, 1), "a sum with any client within the limits is attacked"
    assert 0 < sizes[1] < sizes[3], "a sum of client 1 alone is not"


def test_an_aggregate_is_sought_together_if_its_examples_are_few_and_equal(
    sight: inversion.Sight,
) -> None:
    aggregate = np.zeros(len(sight.target.weights))
    sight.allowed = replace(sight.allowed, at_once=3)
    for clients, sought, said in (
        ([0, 3], [0, 3], "the aggregate of 2 clients; 1 example and 1 local step a client"),
        ([2, 4], [2], "the aggregate of 2 clients; 2 examples and 1 local step a client"),
        ([3, 2], [3], "the aggregate of 2 clients; 1 example and 1 local step a client"),
    ):
        view = sight._aggregate(clients, aggregate)
        assert (list(view.clients), view.known.clients) == (sought, len(sought))
        assert inversion._what_was_seen(view) == said
    sight.allowed = replace(sight.allowed, at_once=4)
    view = sight._aggregate([2, 4], aggregate)
    assert (list(view.clients), view.known.total) == ([2, 4], 4)
    assert inversion._what_was_seen(view) == (
        "the aggregate of 2 clients; 2 examples and 1 local step a client"
    )
    alone = inversion.View([1], Reading(aggregate, aggregate), sight._known([1]))
    assert inversion._what_was_seen(alone) == (
        "one client's report; 3 examples and 2 local steps a client"
    )
    many = replace(view, cohort=1438, known=replace(view.known, count=2000))
    assert inversion._what_was_seen(many).startswith(
        "the aggregate of 1,438 clients; 2,000 examples and "
    )


def test_a_search_keeps_its_best_point_and_stays_in_the_box() -> None:
    visited: list[float] = []

    def apart(point: torch.Tensor) -> torch.Tensor:
        value = (point - torch.tensor([0.52, 7.0])).abs().sum()
        visited.append(value.item())
        return value

    found = by_signed_adam(apart, torch.tensor([0.5, 1.0]), 5, (0.0, 1.0))
    assert found.value == min(visited) < visited[-1]
    assert found.value == apart(found.point).item()
    assert by_signed_adam(apart, torch.tensor([0.5, 0.2]), 60, (0.0, 1.0)).point[1].item() == 1.0
    least = by_lbfgs(lambda point: (point - 3).square().sum(), torch.zeros(2), 20)
    assert least.point.tolist() == pytest.approx([3, 3], abs=1e-4)
    visited.clear()
    least = by_lbfgs(apart, torch.tensor([0.3, 1.0]), 3)
    assert least.value == min(visited) < visited[-1]
    assert least.value == apart(least.point).item()


@pytest.mark.parametrize("scaled", [True, False])
def test_a_reading_without_a_size_is_sought_by_its_angle_alone(
    scaled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does it tell the size of a step, by which labels are counted."""
    known, ran = knowledge(built(), 1), list[Any]()

    def search(name: str) -> Any:
        return lambda objective, start, *_: ran.append(name) or Found(start, 5.0)

    monkeypatch.setattr(reconstruction, "by_lbfgs", search("squared"))
    monkeypatch.setattr(reconstruction, "by_signed_adam", search("cosine"))
    monkeypatch.setattr(
        reconstruction, "recover",
        lambda reading, layer, total, scale: ran.append(scale) or np.zeros(total, np.int64),
    )  # fmt: skip
    reading = replace(report(known, images(1), [1]), scaled=scaled)
    reconstruct(reading, known, [SQUARED, COSINE], generator(0))
    assert ran == ([0.1, "squared", "squared", "cosine"] if scaled else [None, "cosine"])


def test_entries_that_were_not_reported_are_not_sought() -> None:
    known = knowledge(built(), 3)
    unread = np.zeros(known.training.layout.dimension)
    found = reconstruct(Reading(unread + 2.5, unread), known, [SQUARED], generator(0))
    assert (found.by, found.labels.tolist()) == ("guess", [2, 2, 2])


def test_the_best_of_several_starts_is_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the first nor the last, of images and of labels."""
    known, three = knowledge(built(), 3), Search("squared", 7, restarts=3)
    starts: list[torch.Tensor] = []

    def search(objective: Any, start: torch.Tensor, iterations: int) -> Found:
        starts.append(start)
        return Found(start, [0.4, 0.2, 0.7][len(starts) - 1])

    monkeypatch.setattr(reconstruction, "by_lbfgs", search)
    reading = report(known, images(3), [1, 0, 2])
    found = reconstruct(reading, known, [three], generator(0), labels=np.array([1, 0, 2]))
    assert found.value == 0.2
    assert np.allclose(found.examples, starts[1].clamp(0, 1))
    starts.clear()
    labels = reconstruction._joint_labels(reading, known, Distance(reading), three, generator(0))
    each = [start[3 * 64 :].view(3, CLASSES).argmax(1).tolist() for start in starts]
    assert labels.tolist() == each[1]
    assert each[1] not in (each[0], each[2])


def test_clients_of_an_aggregate_are_trained_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two clients of one example, and not one client of two."""
    known, x = knowledge(built(), 1, epochs=3, clients=2), images(2)
    reading, sought = report(known, x, [0, 3]), list[Any]()
    monkeypatch.setattr(
        reconstruction, "by_lbfgs",
        lambda objective, start, *_: sought.append(objective) or Found(start, 1.0),
    )  # fmt: skip
    once = Search("squared", 7)
    reconstruct(reading, known, [once], generator(0), labels=np.array([0, 3]))
    reconstruction._joint_labels(reading, known, Distance(reading), once, generator(0))
    sure = 99 * nn.functional.one_hot(torch.tensor([0, 3]), CLASSES).float()
    points = x, torch.cat([x.reshape(-1), sure.reshape(-1)])
    for objective, point in zip(sought, points, strict=True):
        assert objective(point).item() == pytest.approx(0, abs=1e-9)


def test_rows_of_a_table_have_no_picture_and_small_images_no_structure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(inversion, "bounds", lambda effort: Bounds(2, 4, 10, ()))
    single = {"clients": {"number": 240, "fraction": 0.01}, "training": {"epochs": 1}}
    assert attack(Target.of(table_job(**single)), "quick", Watch()).pictures == []
    flat = Score(np.zeros((1, 3, 8)), common=0)
    flat.add(np.ones((1, 1, 3, 8)), np.array([0]), np.ones((1, 1, 3, 8)), np.array([0]))
    assert [figure.name for figure in flat.figures()] == ["mse", "psnr", "label accuracy"]


def test_data_of_one_value_and_of_another_commonest_class_than_0_can_be_attacked(
    sight: inversion.Sight,
) -> None:
    train = sight.target.dataset.train
    flat = replace(train, x=np.full_like(train.x, 0.25), y=np.full_like(train.y, 6))
    target = replace(sight.target, dataset=replace(sight.target.dataset, train=flat))
    found = inversion.Sight(target, Bounds(6, 2, 1, ()))
    assert found._known([2]).common == 6
    low, high = found._known([2]).box
    assert low == 0.25 < high < 0.2501
    assert found.scaled(np.array([0.25, 0.3])).tolist() == [0, 1]


def test_signed_steps_are_a_share_of_the_box_and_shrink_three_times() -> None:
    """Against a constant slope each step is as long as the rate: 6, 4, 4 and 1 of four rates."""
    found = by_signed_adam(lambda point: -point.sum(), torch.zeros(1), 16, (-2.0, 4.0))
    rate = 0.05 * 6.0
    assert found.point.item() == pytest.approx(rate * (6 + 0.4 + 0.04 + 0.001), rel=1e-5)
    assert found.value == pytest.approx(-found.point.item())
