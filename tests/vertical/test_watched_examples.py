"""Which examples the label watch measures: of every micro-batch, up to its limits, and once."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np
import pytest
import torch

from fedveil.entropy import Seeded
from fedveil.vertical import label_watch
from fedveil.vertical.label_watch import LabelWatch
from fedveil.vertical.split import SplitModel
from fedveil.vertical.step import Occasion
from vertical_parts import Bottoms

EXAMPLES = 39
LABELS = Seeded(2, "labels").generator().choice(2, EXAMPLES, p=[0.7, 0.3])


def watched(
    split: SplitModel, steps: Iterable[tuple[int, list[tuple[int, list[int]]]]], last: int
) -> list[str]:
    """Return what a watch says after steps, each with its micro-batches: number and positions."""
    said: list[str] = []
    watch = LabelWatch(split, 2, lambda crossing, rows, *more: rows, said.append, last)
    for step, micros in steps:
        for crossing in split.crossings:
            for micro, positions in micros:
                places = np.array(positions)
                signs = torch.from_numpy(LABELS[places] - 0.25)
                rows = signs.reshape(-1, *[1] * len(crossing.output)) * torch.ones(crossing.output)
                occasion = Occasion("train", 0, step, micro, places)
                watch(crossing, rows, torch.from_numpy(LABELS[places]), occasion)
        watch.step_ended(last=step == last)
    return [text for text in said if "returned to" in text]


def judged(texts: list[str]) -> list[int]:
    return [int(re.search(r" of (\d+) right", text)[1]) for text in texts]  # type: ignore[index]


def two_micros(step: int) -> list[tuple[int, list[int]]]:
    places = list(range(13 * (step - 1), 13 * step))
    return [(0, places[:7]), (1, places[7:])]


def test_each_micro_batch_is_measured_once() -> None:
    split = Bottoms().split_model()
    whole = watched(split, [(step, two_micros(step)) for step in (1, 2, 3)], 3)
    assert judged(whole) == [20, 20]
    assert all("measured in steps 1 to 3" in text for text in whole)
    broken = [(1, two_micros(1)), (2, two_micros(2)), (2, two_micros(2)), (3, two_micros(3))]
    assert watched(split, broken, 3) == whole


@pytest.mark.parametrize(("most", "halves"), [(28, 14), (26, 13), (4, 2)])
def test_no_more_examples_are_measured_than_the_limit(
    most: int, halves: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(label_watch, "_EXAMPLES", most)
    told = watched(Bottoms().split_model(), [(step, two_micros(step)) for step in (1, 2, 3)], 3)
    assert judged(told) == [halves, halves]


def test_sums_of_long_and_short_parts_are_read_with_their_own_labels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The memory has room for 36 examples of the short part, and for 12 of the long one."""
    monkeypatch.setattr(label_watch, "_VALUES", 72)
    split = Bottoms().split_model().replace("left", output=(2, 3))
    split = split.replace("right", owner="bank", output=(2,))
    steps = [(step, two_micros((step - 1) % 3 + 1)) for step in range(1, 7)]
    told = watched(split, steps, 6)
    sums = [text for text in told if "added up over steps 1 to 6" in text]
    assert judged(sums) == [6, 18, 6]
    assert all("100.0% of" in text for text in sums)
