"""The first screen of a vertical run's page: what crosses, in which direction, and to whom."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path
from typing import Literal

import pytest

from fedveil.pages.page import Page
from fedveil.pages.read_run import read_run
from fedveil.pages.vertical_page import vertical_page
from fedveil.vertical import VerticalJob
from fedveil.vertical.crossed import sentences
from fedveil.vertical.rows import Order
from fedveil.vertical.split import EmbeddingPrivacy, Part, SplitModel
from scoring_parts import trained
from vertical_parts import Bottoms, UShape


@pytest.mark.parametrize("eps", [None, 0.7])
def test_every_direction_has_a_sentence(tmp_path: Path, eps: float | None) -> None:
    folder = trained(tmp_path, eps=eps)
    page: Page = vertical_page(read_run(folder / "run"))
    said = [sentence for sentence in page.lead if isinstance(sentence, str)][1:]
    sent = list(csv.DictReader((folder / "run" / "bank" / "sent.csv").open()))
    times = [int(row["times"]) for row in sent if row["subset"] == "train"]
    train, aside = times.count(2), times.count(1)
    how = "numbers of {}, unprotected" if eps is None else "bits of {} at eps 0.7 of EmbeddingDP"
    assert said == [
        f"bank sends lead, of each of {train} training examples in every epoch and of "
        f"{len(sent) - train - aside} held-out examples in every evaluation, and once of {aside} "
        f"training examples set aside: "
        f"3 {how.format('bank_wide')} and 5 {how.format('bank_deep')}.",
        "lead returns to bank, of each training example: the gradient of bank_wide's output and "
        "the gradient of bank_deep's output, unprotected.",
        "lead tells bank the mean loss of every step, which depends on labels.",
        "The gradients and the losses that lead sends also depend on its own columns, which "
        "nothing protects.",
        "No party sends its weights or its labels. Nothing protects the labels in the gradients.",
    ]
    head = (folder / "run" / "report.html").read_text("utf-8").partition("<main>")[0]
    assert "lead tells bank the mean loss of every step, which depends on labels." in head


def test_a_leader_by_itself_does_not_say_that_nothing_was_promised(tmp_path: Path) -> None:
    """The follower's account is on the follower's machine, so the leader has no account at all."""
    said = []
    for eps in (0.7, None):
        run = trained(tmp_path / str(eps), eps=eps) / "run"
        shutil.rmtree(run / "bank")
        page = vertical_page(read_run(run))
        (promised,) = [part for part in page.sections if part.title == "What was promised"]
        said += promised.parts
    protected, bare = said
    assert protected == (
        "Each party that sends activations states the epsilon in its own account. The gradients "
        "that the leader returns are sent without protection, in no account."
    )
    assert bare == "Nothing: the parties' messages are sent without protection."


@pytest.mark.parametrize("by", ["intersection", "digests"])
def test_between_machines_ids_are_said_to_be_sent(by: Literal["intersection", "digests"]) -> None:
    split, job = Bottoms().split_model(), VerticalJob.model_validate({"task": "vertical_parts:b"})
    said = list(sentences(job, split, Order(0, 50, 9), 20, by))
    kind = {
        "intersection": "lead and {0} send each other their ids, blinded: ",
        "digests": "{0} sends lead keyed digests of its ids, which lead can search for any id that "
        "it guesses: ",
    }[by]
    learns = (
        "lead learns which of its own ids {0} has, and {0} which of its own ids all parties have."
    )
    assert said[:2] == [(kind + learns).format(name) for name in ("bank", "shop")]
    assert said[2:] == list(sentences(job, split, Order(0, 50, 9), 20))
    alone = UShape().split_model()  # only the leader has columns, and so ids
    assert list(sentences(job, alone, Order(0, 50, 9), 20, by)) == list(
        sentences(job, alone, Order(0, 50, 9), 20)
    )


@pytest.mark.parametrize("told", [True, False])
def test_what_is_not_returned_and_not_told_has_no_sentence(told: bool) -> None:
    split = Bottoms().split_model()
    private = EmbeddingPrivacy(None, gradient="none")
    split = split.replace("left", output=(3, 4), privacy=private)
    label = "label_protection" if told else "label_dp"
    job = VerticalJob.model_validate({
        "task": "vertical_parts:bottoms", "evaluation": {"every_epochs": None},
        "record": {"followers_see_loss": told},
        "privacy": {label: {"name": "max_norm"} if told else {"eps": 1.0}},
    })  # fmt: skip
    each = "of each of 50 training examples in every epoch"
    loss = "lead tells bank and shop the mean loss of every step, which depends on labels."
    noise = "under max_norm" if told else "unprotected"
    labels = (
        "The noise in the gradients hinders the reading of labels."
        if told
        else "The labels in training are drawn under label_dp."
    )
    assert list(sentences(job, split, Order(0, 50, 9), 20)) == [
        f"bank sends lead, {each}: 12 bits of left without noise.",
        f"shop sends lead, {each}: 8 numbers of right, unprotected.",
        f"lead returns to shop, of each training example: the gradient of right's output, {noise}.",
        *([loss] if told else []),
        f"No party sends its weights or its labels. {labels}",
    ]


def test_each_receiver_of_an_output_has_a_sentence_of_its_own() -> None:
    """Noise without a signal, at eps 0, is noise all the same."""
    noise = EmbeddingPrivacy(0.0, gradient="none")
    parts = [
        Part("first", "lead", ("data.x",), (6,)),
        Part("left", "bank", ("first",), (2, 5), privacy=noise),
        Part("right", "shop", ("first",), (3,)),
        Part("top", "lead", ("left", "right"), (4,)),
    ]
    job = VerticalJob.model_validate({"task": "vertical_parts:b", "record": {
        "followers_see_loss": False}, "evaluation": {"every_epochs": None}})  # fmt: skip
    each = "of each of 50 training examples in every epoch"
    returns = "of each training example: the gradient of {}'s output, unprotected."
    assert list(sentences(job, SplitModel(parts, leader="lead"), Order(0, 50, 9), 20)) == [
        f"lead sends bank, {each}: 6 numbers of first, unprotected.",
        f"lead sends shop, {each}: 6 numbers of first, unprotected.",
        f"shop returns to lead, {returns.format('first')}",
        f"bank sends lead, {each}: 10 bits of left at eps 0 of EmbeddingDP.",
        f"shop sends lead, {each}: 3 numbers of right, unprotected.",
        f"lead returns to shop, {returns.format('right')}",
        "No party sends its weights or its labels. Nothing protects the labels in the gradients.",
    ]


@pytest.mark.parametrize(("told", "silent", "what"), [
    (True, False, "gradients and the losses"), (False, False, "gradients"), (True, True, "losses"),
    (False, True, None),
])  # fmt: skip
def test_what_depends_on_the_leaders_columns_has_a_sentence(
    told: bool, silent: bool, what: str | None
) -> None:
    """No account of the leader covers them, also if its labels are drawn under label_dp."""
    private = EmbeddingPrivacy(0.7, gradient="none" if silent else "straight_through")
    left = Part("left", "bank", ("data.x",), (4,), privacy=private)
    own, top = Part("own", "lead", ("data.z",), (3,)), Part("top", "lead", ("left", "own"), (2,))
    record, label = {"followers_see_loss": told}, {"label_dp": {"eps": 1.0}}
    job = VerticalJob.model_validate(
        {"task": "vertical_parts:b", "record": record, "privacy": label}
    )

    def stated(*parts: Part) -> list[str]:
        split = SplitModel(parts, leader="lead")
        found = sentences(job, split, Order(0, 50, 9), 20)
        return [one for one in found if "columns" in one]

    told_of = f"The {what} that lead sends also depend on its own columns, which nothing protects."
    assert stated(left, own, top) == ([] if what is None else [told_of])
    assert stated(left, Part("top", "lead", ("left",), (2,))) == []
