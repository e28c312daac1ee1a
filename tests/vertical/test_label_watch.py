"""The watch notices labels that can be read, however rare a class is, and guarantees nothing."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
import torch

from fedveil.entropy import Seeded
from fedveil.privacy.intervals import CONFIDENCE
from fedveil.vertical import label_watch
from fedveil.vertical.label_watch import STEPS, GradientSums, LabelWatch
from fedveil.vertical.split import SplitModel
from fedveil.vertical.step import Occasion, Returned
from vertical_parts import Bottoms

BATCH, VALUES, EXAMPLES = 29, 5, 1000
#: In this model one part gets gradients, so that a step costs half as much to watch.
LEFT_ALONE = Bottoms().split_model().replace("right", frozen=True)
Gradients = Callable[[np.ndarray, np.random.Generator], np.ndarray]


def by_sign(labels: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """Return gradients with one direction, whose sign is the label: two classes, a linear part."""
    error = np.where(labels == 1, -0.9, 0.1)[:, None]
    return error * np.linspace(1, 2, VALUES) + 1e-4 * draw.normal(size=(len(labels), VALUES))


def by_class(labels: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    centres = np.eye(VALUES)[labels % VALUES]
    return centres + 0.05 * draw.normal(size=(len(labels), VALUES))


def nothing(labels: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    return draw.normal(size=(len(labels), VALUES))


def heard(
    gradients: Gradients, shares: list[float], seed: int, steps: int = STEPS, changes: int = 0,
    returned: Returned = lambda crossing, gradient, labels, occasion: gradient,
    split: SplitModel | None = None,
) -> list[str]:  # fmt: skip
    """Play `steps` steps. Until step `changes` the gradients carry no information."""
    split = split or Bottoms().split_model()
    (first, *_) = [c for c in split.crossings if c.receiver == split.leader and c.gradient]
    said: list[str] = []
    watch = LabelWatch(split, len(shares), returned, said.append, steps)
    parts = [c for c in split.crossings if c.receiver == split.leader and c.gradient]
    draw = Seeded(seed, "labels").generator()
    all_labels = draw.choice(len(shares), size=EXAMPLES, p=shares)
    for step in range(1, steps + 1):
        places = np.arange(step * BATCH, (step + 1) * BATCH) % EXAMPLES
        labels = all_labels[places]
        make = gradients if step > changes else nothing
        rows = make(labels, draw)
        for crossing in parts:
            occasion = Occasion("train", 0, step, 0, places)
            watch(crossing, torch.from_numpy(rows), torch.from_numpy(labels), occasion)
        watch.step_ended(last=step == steps)
    return [text for text in said if f"of {first.part} returned" in text]


@pytest.mark.parametrize("rare", [0.06, 0.03, 0.01, 0.005])
def test_labels_of_a_rare_class_that_are_all_read_are_said_to_be(rare: float) -> None:
    """Accuracy exceeds the common class's share by a few percent at most, and shows nothing."""
    for seed in range(12):
        (text,) = heard(by_sign, [1 - rare, rare], seed)
        assert "reveal them" in text, text
        assert rare < 0.01 or "chance gives" not in text, text  # intervals show it by themselves


def test_nothing_is_vouched_for_beside_an_area_above_one_half() -> None:
    """A run that shows nothing is no evidence that nothing can be read."""
    for seed in range(12):
        (text,) = heard(nothing, [0.99, 0.01], seed)
        if "reveal them" not in text:
            assert "leave open whether they can be read" in text
            unseen = re.search(r"an AUC of up to (\d\.\d\d) is not excluded", text)
            assert unseen
            assert float(unseen[1]) > 0.8


@pytest.mark.parametrize("shares", [[0.99, 0.01], [0.97, 0.01, 0.01, 0.01]])
def test_a_few_examples_of_a_class_are_not_read_by_accident(shares: list[float]) -> None:
    texts = [heard(nothing, shares, seed, split=LEFT_ALONE)[0] for seed in range(60)]
    wrong = sum("reveal them" in text for text in texts)
    assert wrong <= 7


def test_of_several_classes_the_rarest_counts_too() -> None:
    shares = [0.4, 0.35, 0.2, 0.05]
    for seed in range(5):
        (text,) = heard(by_class, shares, seed)
        assert "reveal them" in text


def test_nothing_is_read_where_nothing_is_to_be_read() -> None:
    """At the stated confidence one run in twenty may be wrong."""
    texts = [heard(nothing, [0.9, 0.1], seed, split=LEFT_ALONE)[0] for seed in range(40)]
    wrong = sum("reveal them" in text for text in texts)
    assert wrong <= 6


@pytest.mark.parametrize(("classes", "examples"), [(2, 128), (3, 97)])
def test_examples_that_come_again_are_measured_once(classes: int, examples: int) -> None:
    """Each example has its own random gradient in all steps. It tells which example it is."""
    wrong = 0
    for seed in range(20):
        draw = Seeded(seed, "repeated").generator()
        rows = torch.from_numpy(draw.normal(size=(examples, 16)))
        labels = torch.from_numpy(draw.integers(0, classes, examples))
        said: list[str] = []
        watch = LabelWatch(
            LEFT_ALONE, classes, lambda crossing, gradient, *more: gradient, said.append
        )
        for step in range(1, STEPS + 1):
            places = np.arange((step - 1) * 32, step * 32) % examples
            (left,) = [c for c in LEFT_ALONE.crossings if c.part == "left"]
            occasion = Occasion("train", 0, step, 0, places)
            watch(left, rows[places], labels[places], occasion)
            watch.step_ended()
        (text,) = [text for text in said if "of left returned" in text]
        assert f" of {(examples + 1) // 2} right" in text
        wrong += "reveal them" in text
    assert wrong <= 3


def test_what_shows_only_at_the_end_of_a_run_is_said() -> None:
    start, end, _ = heard(by_sign, [0.8, 0.2], 1, steps=3 * STEPS + 7, changes=2 * STEPS)
    assert "leave open whether they can be read" in start
    assert f"measured in steps 1 to {STEPS}" in start
    assert "reveal them" in end
    assert f"measured in steps {2 * STEPS + 8} to {3 * STEPS + 7}" in end


def weakly(labels: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """Return gradients with a weak signal under fresh noise, invisible in a single step."""
    sign = np.where(labels == 1, 1.0, -1.0)[:, None]
    return sign * np.linspace(0.5, 1, VALUES) + 12 * draw.normal(size=(len(labels), VALUES))


def test_what_only_the_sum_over_epochs_tells_is_said() -> None:
    epochs = 60
    *windows, sums = heard(weakly, [0.6, 0.4], 3, steps=EXAMPLES // BATCH * epochs)
    assert all("leave open whether they can be read" in text for text in windows)
    assert "reveal them" in sums
    assert "added up over steps 1 to" in sums


def test_sums_of_nothing_are_not_read() -> None:
    steps = EXAMPLES // BATCH * 12
    ends = [heard(nothing, [0.7, 0.3], s, steps=steps, split=LEFT_ALONE)[-1] for s in range(12)]
    wrong = sum("reveal them" in text for text in ends)
    assert wrong <= 3


def test_what_is_not_returned_is_not_read() -> None:
    """A protection replaces every gradient by noise before it leaves."""
    draw = torch.Generator().manual_seed(5)

    def replaced(crossing: object, gradient: torch.Tensor, *more: object) -> torch.Tensor:
        return torch.randn(gradient.shape, generator=draw)

    steps = EXAMPLES // BATCH * 3
    found = heard(by_sign, [0.6, 0.4], 2, steps=steps, returned=replaced)
    assert len(found) == 3
    assert not any("reveal them" in text for text in found)


def test_each_batch_counts_alike_in_the_sums() -> None:
    sums, rows = GradientSums(3, 100), torch.tensor([[3.0, 4.0], [0.0, 5.0]])
    for factor in (1.0, 1000.0):
        labels, places = torch.tensor([1, 0]), np.array([7, 2])
        sums.add("left", factor * rows, labels, Occasion("train", 0, 1, 0, places))
    assert sums.of(["left"])[0] == pytest.approx(np.array([[1.2, 1.6], [0.0, 2.0]]))


def test_sums_are_of_as_many_examples_as_their_memory_holds() -> None:
    sums, places = GradientSums(9, 40), np.arange(12)
    rows = torch.arange(1.0, 61.0).reshape(12, 5)
    sums.add("left", rows, torch.from_numpy(places), Occasion("train", 0, 1, 0, places))
    assert sums.labels.tolist() == list(range(8))
    assert sums.of(["left"])[0].shape == (8, 5)


def test_parts_with_outputs_of_different_lengths_are_summed_together() -> None:
    """The memory holds 2 examples of the long part, and 8 of the short one."""
    sums = GradientSums(9, 8)
    for step in (1, 2, 3, 4):
        places = np.array([0, 1]) if step % 2 else np.array([2, 3])
        labels, occasion = torch.from_numpy(places), Occasion("train", 0, step, 0, places)
        for part, values in (("short", 1), ("long", 4)):
            sums.add(part, torch.ones(2, values), labels, occasion)
    assert [found.shape for found in sums.of(["short"])] == [(4, 1)]
    assert [found.tolist() for found in sums.of(["short", "long"])] == [[[2]] * 2, [[1] * 4] * 2]


def test_a_part_whose_gradients_are_all_zero_is_summed_too() -> None:
    """The leader's part may ignore a follower's output."""
    sums, places = GradientSums(9, 40), np.arange(3)
    for factor in (0.0, 1.0, 1.0):
        for part in ("left", "ignored"):
            rows = torch.full((3, 2), 0.0 if part == "ignored" else factor)
            sums.add(part, rows, torch.from_numpy(places), Occasion("train", 0, 1, 0, places))
    assert sums.repeated
    assert not sums.of(["left", "ignored"])[1].any()


def test_every_part_is_read_however_long_the_first_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label_watch, "_VALUES", 2 * VALUES)
    assert len(heard(by_sign, [0.6, 0.4], 2)) == 1


def test_parts_of_one_follower_are_read_together_as_far_as_both_were_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first of both is read in two steps, the second in one."""
    monkeypatch.setattr(label_watch, "_VALUES", 2 * BATCH * VALUES + 1)
    split = Bottoms().split_model().replace("right", owner="bank")
    assert len(heard(by_sign, [0.6, 0.4], 2, split=split)) == 1


def test_parts_of_one_follower_are_read_alone_and_together_at_both_ends_and_in_sum(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only the second part's gradients tell the labels. The run is resumed after step 40."""
    monkeypatch.setattr(label_watch, "_VALUES", 9 * BATCH * VALUES)
    split, said = Bottoms().split_model().replace("right", owner="bank"), list[str]()
    steps = 3 * EXAMPLES // BATCH
    watch = LabelWatch(split, 2, lambda crossing, rows, *more: rows, said.append, steps)
    draw = Seeded(6, "labels").generator()
    all_labels = draw.choice(2, size=EXAMPLES, p=[0.7, 0.3])
    for step in range(41, 41 + steps):
        places = np.arange(step * BATCH, (step + 1) * BATCH) % EXAMPLES
        labels = all_labels[places]
        for crossing in split.crossings:
            make = by_sign if crossing.part == "right" else nothing
            rows, occasion = make(labels, draw), Occasion("train", 0, step, 0, places)
            watch(crossing, torch.from_numpy(rows), torch.from_numpy(labels), occasion)
        watch.step_ended(last=step == 40 + steps)
    told = [text for text in said if "returned to bank" in text]
    groups = [re.search(r"gradients of (.*) returned", text)[1] for text in told]  # type: ignore[index]
    assert groups == ["left", "right", "left, right"] * 3
    for group, text in zip(groups, told, strict=True):
        assert ("reveal them" in text) == ("right" in group), text
    judged = [int(re.search(r" of (\d+) right", text)[1]) for text in told]  # type: ignore[index]
    assert judged[:3] == judged[3:6]
    when = ["measured in steps 41 to 60", f"steps {21 + steps} to {40 + steps}"]
    when.append(f"added up over steps 41 to {40 + steps}")
    for number, text in enumerate(told):
        assert text.endswith(when[number // 3])


def test_a_step_that_is_repeated_after_a_restart_is_measured_once() -> None:
    """Steps 3 to 5 are repeated, and a link broke within step 6."""
    split, told = Bottoms().split_model(), list[list[str]]()
    for repeats in (False, True):
        said: list[str] = []
        watch = LabelWatch(split, 2, lambda crossing, rows, *more: rows, said.append, 8)
        order = [1, 2, 3, 4, 5, 3, 4, 5, 6, 6, 7, 8] if repeats else range(1, 9)
        ended = [True] * 8 + [False] + [True] * 3
        for at, step in enumerate(order):
            draw = Seeded(step, "labels").generator()
            places = np.arange(step * BATCH, (step + 1) * BATCH) % (3 * BATCH)
            labels = places % 2
            for crossing in split.crossings:
                rows, occasion = by_sign(labels, draw), Occasion("train", 0, step, 0, places)
                watch(crossing, torch.from_numpy(rows), torch.from_numpy(labels), occasion)
            if not repeats or ended[at]:
                watch.step_ended(last=step == 8)
        told.append(said)
    assert told[0] == told[1]
    assert any("measured in steps 1 to 8" in text for text in told[0])
    assert any("added up over steps 1 to 8" in text for text in told[0])


def longer(labels: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """Return gradients of random directions that are longer for examples of class 1."""
    return nothing(labels, draw) * np.where(labels == 1, 9.0, 1.0)[:, None]


def shorter(labels: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    return longer(1 - labels, draw)


@pytest.mark.parametrize("gradients", [longer, shorter])
@pytest.mark.parametrize("shares", [[0.75, 0.25], [0.9, 0.1]])
def test_lengths_alone_reveal_the_rarer_class(gradients: Gradients, shares: list[float]) -> None:
    (text,) = heard(gradients, shares, 3)
    assert "reveal them" in text
    value, low, high = map(
        float, re.search(r"AUC (\d\.\d\d) by norm \((.*?) to (.*?)\)", text).groups()  # type: ignore[union-attr]
    )  # fmt: skip
    assert value > 0.95
    assert low > 0.5
    assert high >= value
    (open_,) = heard(nothing, shares, 3)
    value, low, high = map(
        float, re.search(r"AUC (\d\.\d\d) by norm \((.*?) to (.*?)\)", open_).groups()  # type: ignore[union-attr]
    )  # fmt: skip
    assert low < value < high


def test_a_run_of_one_epoch_has_no_sums() -> None:
    start, end = heard(by_sign, [0.8, 0.2], 1, steps=STEPS + 7)
    assert f"measured in steps 1 to {STEPS}" in start
    assert f"measured in steps {STEPS + 1} to {STEPS + 7}" in end


@pytest.mark.parametrize("classes", [2, 5])
def test_all_intervals_of_a_finding_hold_together(
    classes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their errors add up to at most the finding's, so that it is as rarely wrong as one."""
    errors: list[float] = []

    def noted(measure: Callable[..., object]) -> Callable[..., object]:
        def measured(*given: object, confidence: float | None = None, **more: object) -> object:
            if confidence is None:  # no interval is read of it
                return measure(*given, **more)
            errors.append(1 - confidence)
            return measure(*given, confidence=confidence, **more)

        return measured

    for name in ("share", "area"):
        monkeypatch.setattr(label_watch, name, noted(getattr(label_watch, name)))
    shares = np.linspace(1, 2, classes)
    heard(nothing, list(shares / shares.sum()), 4)
    parts = sum(c.gradient and c.receiver == "lead" for c in Bottoms().split_model().crossings)
    assert len(errors) >= 3
    assert sum(errors) <= (1 - CONFIDENCE) * max(1, parts) * (1 + 1e-9)


def test_numbers_that_never_vary_are_not_followed() -> None:
    rising = np.arange(3.0)
    assert label_watch._correlation(np.ones(3), rising) == 0
    assert label_watch._correlation(7 - 2 * rising, rising) == pytest.approx(-1, abs=1e-12)


def test_an_examples_gradients_add_up_over_batches_in_any_order() -> None:
    sums = GradientSums(4, 1 << 20)
    rows = {place: torch.tensor([[float(place), 1.0]]) for place in (7, 2, 5, 1, 0)}
    for step, places in enumerate(([7, 2], [5], [2, 1, 7], [0, 5]), start=1):
        positions = np.array(places)
        given = torch.cat([rows[place] for place in places])
        occasion = Occasion("train", 0, step, 0, positions)
        sums.add("left", given, torch.from_numpy(positions % 2), occasion)
    assert sums.repeated
    assert sums.labels.tolist() == [1, 0, 1, 1]  # of 7, 2, 5 and 1, in this order
    scales = [
        np.sqrt(np.mean([p * p + 1 for p in some])) for some in ([7, 2], [2, 1, 7], [5], [0, 5])
    ]
    (found,) = sums.of(["left"])
    np.testing.assert_allclose(found[:, 1], [
        1 / scales[0] + 1 / scales[1], 1 / scales[0] + 1 / scales[1],
        1 / scales[2] + 1 / scales[3], 1 / scales[1],
    ])  # fmt: skip
    np.testing.assert_allclose(found[:, 0], found[:, 1] * [7, 2, 5, 1])


def test_a_gradient_of_one_value_for_each_example_is_read_too() -> None:
    """A part may output a number for each example, without a dimension of its own."""
    split, said = Bottoms().split_model(), list[str]()
    for part in ("left", "right"):
        split = split.replace(part, output=())
    watch = LabelWatch(split, 2, lambda crossing, rows, *more: rows, said.append, 2 * STEPS)
    draw = Seeded(3, "labels").generator()
    all_labels = draw.choice(2, size=BATCH * STEPS, p=[0.7, 0.3])
    for step in range(1, 2 * STEPS + 1):
        places = np.arange(step * BATCH, (step + 1) * BATCH) % len(all_labels)
        for crossing in split.crossings:
            rows = torch.from_numpy(by_sign(all_labels[places], draw)[:, 0])
            occasion = Occasion("train", 0, step, 0, places)
            assert watch(crossing, rows, torch.from_numpy(all_labels[places]), occasion) is rows
        watch.step_ended(last=step == 2 * STEPS)
    told = [text for text in said if "returned to" in text]
    assert len(told) == 3 * 2
    assert all("reveal them: 100.0% of" in text for text in told)
