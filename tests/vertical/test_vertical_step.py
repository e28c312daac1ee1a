"""Steps between parties: equal to unsplit training, and nothing unchecked is applied."""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import vertical_parts
from fedveil.base.message import Message, encoded_bytes
from fedveil.entropy import Seeded
from fedveil.errors import ExchangeError, InvalidValue, PeerAborted, PeerAtLimit
from fedveil.link.channel import Exchange
from fedveil.mechanisms import EmbeddingDP
from fedveil.vertical import (
    Batch,
    EmbeddingPrivacy,
    Optimizer,
    Part,
    Party,
    Receive,
    Send,
    SplitModel,
    drive_together,
)
from fedveil.vertical.crossing import abort_message, check_not_abort, from_wire
from fedveil.vertical.crossing_reports import Reports
from fedveil.vertical.schedule import Transfer
from fedveil.vertical.step import Occasion

ROWS = 11
SGD, ADAM = Optimizer("sgd", 0.1, 0.9, 1e-3), Optimizer("adam", 0.01, weight_decay=1e-3)
SHAPES = ("bottoms", "u_shape", "wide_and_deep", "tied")


class Tied(nn.Module):
    """A head that shares its weight with the embedding."""

    def __init__(self, embedding: nn.Linear) -> None:
        super().__init__()
        self.table = embedding.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.table


def layer(inputs: int, outputs: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(inputs, outputs), nn.Tanh())


def split_of(shape: str, step: Optimizer, privacy: EmbeddingPrivacy | None = None) -> SplitModel:
    torch.manual_seed(0)
    first, joint = nn.Linear(6, 6), vertical_parts.Joint(16, 6)
    parts = {
        "bottoms": [
            Part("left", "bank", ("data.x",), (8,), layer(6, 8, 1), privacy=privacy),
            Part("right", "shop", ("data.x",), (8,), layer(6, 8, 2), privacy=privacy),
            Part("top", "lead", ("left", "right"), (6,), joint),
        ],
        "u_shape": [
            Part("first", "lead", ("data.x",), (6,), first, privacy=privacy),
            Part("body", "bank", ("first",), (6,), layer(6, 6, 3)),
            Part("head", "lead", ("body",), (6,), layer(6, 6, 4)),
        ],
        "wide_and_deep": [
            Part("wide", "bank", ("data.x",), (4,), layer(6, 4, 5), privacy=privacy),
            Part("deep", "bank", ("data.x",), (8,), layer(6, 8, 6), privacy=privacy),
            Part("own", "lead", ("data.x",), (4,), layer(6, 4, 7)),
            Part("mixed", "lead", ("deep", "wide"), (4,), vertical_parts.Joint(12, 4)),
            Part(
                "top", "lead", ("wide", "own", "mixed", "deep"), (6,), vertical_parts.Joint(20, 6)
            ),
        ],
        "tied": [
            Part("first", "lead", ("data.x",), (6,), first, privacy=privacy),
            Part("body", "bank", ("first",), (6,), layer(6, 6, 8)),
            Part("head", "lead", ("body",), (6,), Tied(first)),
        ],
    }[shape]
    split = SplitModel(parts, leader="lead")
    for part in parts:
        split = split.replace(part.name, optimizer=step)
    return split


def parties_of(split: SplitModel, in_flight: int = 1) -> dict[str, Party]:
    return {
        name: Party(
            name,
            split,
            loss=nn.functional.cross_entropy if name == split.leader else None,
            in_flight=in_flight,
            entropy=Seeded(1),
            seed=2,
        )
        for name in split.parties
    }


def batches(split: SplitModel, number: int) -> tuple[dict[str, Batch], torch.Tensor, torch.Tensor]:
    """Return a step's batch for every party, and all of its data in one place."""
    source = Seeded(3, number).generator()
    x = torch.from_numpy(source.standard_normal((ROWS, 6)).astype(np.float32))
    y = torch.from_numpy(source.integers(0, 6, ROWS))
    positions = np.arange(ROWS)
    return (
        {
            name: Batch(
                positions,
                dict.fromkeys(split.columns(name), x),
                y if name == split.leader else None,
            )
            for name in split.parties
        },
        x,
        y,
    )


def train(split: SplitModel, in_flight: int, steps: int, *, encoded: bool = False) -> list[float]:
    parties = parties_of(split, in_flight)
    losses = []
    for number in range(1, steps + 1):
        held, _, _ = batches(split, number)
        done = drive_together(
            {name: party.step(number, held[name]) for name, party in parties.items()},
            encoded=encoded,
        )
        assert len(set(done.values())) == 1, "all parties know the same loss"
        losses.append(done[split.leader])
    return losses  # type: ignore[return-value]


def train_unsplit(split: SplitModel, step: Optimizer, steps: int) -> list[float]:
    model = split.joined()
    optimizer = step.over(list(model.parameters()))
    losses = []
    for number in range(1, steps + 1):
        _, x, y = batches(split, number)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model({"x": x}), y)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def weights(split: SplitModel) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in split.joined().parameters()])


@pytest.mark.parametrize("step", [SGD, ADAM], ids=["sgd", "adam"])
@pytest.mark.parametrize("shape", SHAPES)
def test_it_trains_as_unsplit_to_the_bit(shape: str, step: Optimizer) -> None:
    split, whole = split_of(shape, step), split_of(shape, step)
    before = weights(split)
    assert train(split, 1, 8) == train_unsplit(whole, step, 8)
    assert torch.equal(weights(split), weights(whole))
    assert not torch.allclose(weights(split), before, atol=1e-2)


@pytest.mark.parametrize("step", [SGD, ADAM], ids=["sgd", "adam"])
@pytest.mark.parametrize("shape", SHAPES)
def test_micro_batches_train_as_unsplit(shape: str, step: Optimizer) -> None:
    split, whole = split_of(shape, step), split_of(shape, step)
    losses, expected = train(split, 4, 8), train_unsplit(whole, step, 8)
    assert losses == pytest.approx(expected, abs=1e-6)
    assert (weights(split) - weights(whole)).abs().max() < 1e-6


@pytest.mark.parametrize("privacy", [None, EmbeddingPrivacy(3.0)], ids=["raw", "bits"])
@pytest.mark.parametrize("shape", SHAPES)
def test_through_its_bytes_it_is_the_same(shape: str, privacy: EmbeddingPrivacy | None) -> None:
    direct, encoded = split_of(shape, SGD, privacy), split_of(shape, SGD, privacy)
    assert train(direct, 3, 4) == train(encoded, 3, 4, encoded=True)
    assert torch.equal(weights(direct), weights(encoded))


@pytest.mark.parametrize("in_flight", [1, 3])
def test_a_part_learns_from_its_owners_parts_and_from_another_party(in_flight: int) -> None:
    def made() -> SplitModel:
        torch.manual_seed(0)
        parts = [
            Part("low", "bank", ("data.x",), (8,), layer(6, 8, 1)),
            Part("high", "bank", ("low",), (4,), layer(8, 4, 2)),
            Part("top", "lead", ("low", "high"), (6,), vertical_parts.Joint(12, 6)),
        ]
        split = SplitModel(parts, leader="lead")
        for part in parts:
            split = split.replace(part.name, optimizer=SGD)
        return split

    split, unsplit = made(), made()
    train(split, in_flight, 3)
    train_unsplit(unsplit, SGD, 3)
    torch.testing.assert_close(weights(split), weights(unsplit), atol=1e-6, rtol=1e-5)


def test_a_bfloat16_cut_crosses_in_two_bytes_a_value() -> None:
    class Narrow(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x).bfloat16()

    class Wide(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x.float())

    def make() -> SplitModel:
        torch.manual_seed(0)
        parts = [
            Part("left", "bank", ("data.x",), (64,), Narrow(6, 64), "bfloat16"),
            Part("top", "lead", ("left",), (6,), Wide(64, 6)),
        ]
        return SplitModel(parts, leader="lead")

    split, whole = make(), make()
    losses = []
    parties = parties_of(split)
    for number in range(1, 5):
        held, _, _ = batches(split, number)
        exchanges = {name: party.step(number, held[name]) for name, party in parties.items()}
        losses.append(drive_together(exchanges, encoded=True)["lead"])
    assert losses == train_unsplit(whole, Optimizer(), 4)
    raw = 4 * ROWS * 64 * 2
    assert raw < parties["bank"].sent_bytes < raw + 4 * 150


def test_every_part_and_micro_batch_drops_other_values() -> None:
    masks = []

    class Dropping(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            values = super().forward(x)
            kept = nn.functional.dropout(torch.ones_like(values), 0.5)
            masks.append(kept[:3].numpy().tobytes())
            return values * kept

    parts = [
        Part("left", "bank", ("data.x",), (8,), Dropping(6, 8)),
        Part("right", "bank", ("data.x",), (8,), Dropping(6, 8)),
        Part("top", "lead", ("left", "right"), (6,), vertical_parts.Joint(16, 6)),
    ]
    train(SplitModel(parts, leader="lead"), 3, 2)
    assert len(set(masks)) == len(masks) == 2 * 3 * 2


# --- bytes


def weighed(name: str, exchange: Exchange[object], sent: dict[str, int]) -> Exchange[object]:
    """Play a party's side, and add the bytes of what it sends to `sent`."""
    answer = None
    while True:
        try:
            request = exchange.send(answer)
        except StopIteration as end:
            return end.value
        if isinstance(request, Send):
            sent[name] += encoded_bytes(request.message)
        answer = yield request


def first_rows(batch: Batch, count: int) -> Batch:
    columns = {name: column[:count] for name, column in batch.columns.items()}
    labels = None if batch.labels is None else batch.labels[:count]
    return Batch(batch.positions[:count], columns, labels)


@pytest.mark.parametrize("privacy", [None, EmbeddingPrivacy(3.0)], ids=["raw", "bits"])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_bytes_that_are_counted_are_those_that_are_sent(
    shape: str, privacy: EmbeddingPrivacy | None
) -> None:
    split = split_of(shape, SGD, privacy)
    parties, sent = parties_of(split, 2), dict.fromkeys(split.parties, 0)
    for number in (1, 2, 130, 131, 132):
        held, _, _ = batches(split, number)
        steps = {n: weighed(n, p.step(number, held[n]), sent) for n, p in parties.items()}
        drive_together(steps)
    assert {name: party.sent_bytes for name, party in parties.items()} == sent
    followers = sum(parties[name].received_bytes for name in split.followers)
    assert followers == sent["lead"]


def test_steps_with_other_rows_and_looks_have_bytes_of_their_own() -> None:
    """The numbers of all of them are encoded in equally many bytes."""
    split = split_of("bottoms", SGD, EmbeddingPrivacy(3.0, reuse=True))
    parties, sent = parties_of(split, 2), dict.fromkeys(split.parties, 0)
    held, _, _ = batches(split, 1)
    for number, rows, settled in ((4, ROWS, None), (4, ROWS, False), (5, 7, False), (6, 7, True)):
        sides: dict[str, Exchange[object]] = {}
        for name, party in parties.items():
            batch = first_rows(held[name], rows)
            look = settled is None
            side = party.look(number, batch) if look else party.step(number, batch, settled=settled)
            sides[name] = weighed(name, side, sent)
        drive_together(sides)
        assert {name: party.sent_bytes for name, party in parties.items()} == sent


def test_a_batch_after_one_with_fewer_rows_than_micro_batches_is_whole() -> None:
    losses = []
    for in_flight in (1, 3):
        split = split_of("bottoms", SGD)
        parties = parties_of(split, in_flight)
        for number, rows in ((1, 2), (2, ROWS)):
            held, _, _ = batches(split, number)
            steps = {n: p.step(number, first_rows(held[n], rows)) for n, p in parties.items()}
            losses.append(drive_together(steps)["lead"])
    assert losses[2:] == pytest.approx(losses[:2], abs=1e-6)


def test_under_embedding_dp_activations_cross_as_bits_and_gradients_raw() -> None:
    split = split_of("bottoms", SGD, EmbeddingPrivacy(3.0))
    seen = []
    for name, held in _messages(split).items():
        seen += [(name, m["name"], m["data"].dtype, m["data"].size) for m in held]  # type: ignore[union-attr]
    assert seen == [
        ("lead", "left.grad", np.float32, ROWS * 8),
        ("lead", "right.grad", np.float32, ROWS * 8),
        ("bank", "left", np.uint8, ROWS * 8 // 8),
        ("shop", "right", np.uint8, ROWS * 8 // 8),
    ]


def _messages(split: SplitModel) -> dict[str, list[Message]]:
    """Return the tensors that each party sends in a step."""
    found: dict[str, list[Message]] = {name: [] for name in split.parties}

    def noted(message: Message, name: str, place: int) -> Message:
        if message["kind"] == "tensor":
            found[name].append(message)
        return message

    _step_with(split, 1, noted)
    return found


# --- any error voids the step at every party

Change = Callable[[Message, str, int], Message]


def _with_changes(name: str, exchange: Exchange[object], change: Change) -> Exchange[object]:
    answer, place = None, 0
    while True:
        try:
            request = exchange.send(answer)
        except StopIteration as end:
            return end.value
        if isinstance(request, Send):
            request = Send(request.peer, change(request.message, name, place))
            place += 1
        answer = yield request


def _step_with(
    split: SplitModel, in_flight: int, change: Change
) -> tuple[dict[str, Party], dict[str, BaseException]]:
    """Run one good step, then one with changed messages. Returns the parties and their errors.

    If one party raises, no party has applied anything.
    """
    parties = parties_of(split, in_flight)
    raised: dict[str, BaseException] = {}

    def watched(name: str, exchange: Exchange[object]) -> Exchange[object]:
        try:
            return (yield from exchange)
        except Exception as error:
            raised[name] = error
            raise

    held, _, _ = batches(split, 1)
    drive_together({name: party.step(1, held[name]) for name, party in parties.items()})
    before = {name: _state(party) for name, party in parties.items()}
    held, _, _ = batches(split, 2)
    steps = {
        name: _with_changes(name, watched(name, party.step(2, held[name])), change)
        for name, party in parties.items()
    }
    try:
        drive_together(steps)
    except ExchangeError:
        for name, party in parties.items():
            assert _same(_state(party), before[name]), f"{name} applied a part of a void step"
            assert all(p.grad is None for p in party.modules.parameters())
    return parties, raised


def _state(party: Party) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in party.state().items()}


def _same(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


def _with_last(message: Message, value: float) -> Message:
    data = np.array(message["data"])
    if data.dtype == np.float32:
        data.reshape(-1)[-1] = value
    return {**message, "data": data}


#: Ways in which a tensor can be wrong, and the receiver's error for each.
WRONG: dict[str, tuple[Callable[[Message], Message], str]] = {
    "name": (lambda m: {**m, "name": "other"}, "sent the tensor 'other' where"),
    "no name": (lambda m: {k: v for k, v in m.items() if k != "name"}, "sent the tensor None"),
    "step": (lambda m: {**m, "step": 3}, "of step 3 where step 2 was due"),
    "earlier step": (lambda m: {**m, "step": 1}, "of step 1 where step 2 was due"),
    "step type": (lambda m: {**m, "step": 2.0}, "of step 2.0 where step 2 was due"),
    "micro": (lambda m: {**m, "micro": 7}, "sent micro-batch 7 of"),
    "micro type": (lambda m: {**m, "micro": float(m["micro"])}, ".0 of"),  # type: ignore[arg-type]
    "kind": (lambda m: {**m, "kind": "ready"}, "sent 'ready' where 'tensor'"),
    "dtype": (lambda m: {**m, "data": np.asarray(m["data"], np.float64)}, "as float64 where"),
    "shape": (lambda m: {**m, "data": np.asarray(m["data"])[:-1]}, "of shape"),
    "scalar": (lambda m: {**m, "data": 1.0}, "with float as data"),
    "no data": (lambda m: {k: v for k, v in m.items() if k != "data"}, "without 'data'"),
    "NaN": (lambda m: _with_last(m, np.nan), "with NaN or infinity in it"),
    "infinity": (lambda m: _with_last(m, -np.inf), "with NaN or infinity in it"),
    "more": (lambda m: {**m, "more": 1}, "with the unknown field 'more'"),
}


def _places(split: SplitModel, in_flight: int) -> Iterator[tuple[str, int, str]]:
    """Yield every message of a step: its sender, its number among the sender's, and its kind."""
    found = []

    def noted(message: Message, name: str, place: int) -> Message:
        found.append((name, place, str(message["kind"])))
        return message

    _step_with(split, in_flight, noted)
    yield from found


@pytest.mark.parametrize("in_flight", [1, 3])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_wrong_tensor_voids_the_step_for_all(shape: str, in_flight: int) -> None:
    """Every tensor of a step is wrong in turn, in several ways."""
    split = split_of(shape, ADAM)
    tensors = [p for p in _places(split, in_flight) if p[2] == "tensor"]
    assert len(tensors) == 2 * in_flight * len(split.crossings)
    wrongs = list(WRONG.items())
    for number, (sender, place, _) in enumerate(tensors):
        # In one case each tensor is wrong in every way, elsewhere in some.
        whole = (shape, in_flight) == ("bottoms", 1)
        for kind, (wrong, sentence) in wrongs if whole else wrongs[number % 5 :: 5]:

            def change(message: Message, name: str, at: int) -> Message:
                return wrong(message) if (name, at) == (sender, place) else message  # noqa: B023

            _, raised = _step_with(split_of(shape, ADAM), in_flight, change)
            assert set(raised) == set(split.parties), f"{kind}: somebody went on"
            told = [str(error) for error in raised.values()]
            assert all("\n" not in text for text in told)
            assert sum(sentence in text for text in told) == len(told), (kind, told)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_wrong_word_voids_the_step_of_its_receiver(shape: str) -> None:
    split = split_of(shape, SGD)
    words = [place for place in _places(split, 2) if place[2] != "tensor"]
    for (sender, place, kind), number in itertools.product(words, (1, 3)):

        def change(message: Message, name: str, at: int) -> Message:
            wrong = {**message, "step": number}  # noqa: B023
            return wrong if (name, at) == (sender, place) else message  # noqa: B023

        parties = parties_of(split_of(shape, SGD), 2)
        held, _, _ = batches(split, 2)
        steps = {n: _with_changes(n, p.step(2, held[n]), change) for n, p in parties.items()}
        wrong = f"sent a {kind} of step {number} where step 2 was due"
        with pytest.raises(ExchangeError, match=wrong):
            drive_together(steps)


def test_a_loss_that_is_not_finite_ends_the_step() -> None:
    split = split_of("bottoms", SGD)
    parties = parties_of(split)
    held, _, _ = batches(split, 1)
    parties["lead"] = Party("lead", split, loss=lambda o, y: o.sum() * float("nan"))
    before = {name: _state(party) for name, party in parties.items()}
    with pytest.raises(ExchangeError, match="the loss of step 1 is nan"):
        drive_together({name: party.step(1, held[name]) for name, party in parties.items()})
    assert all(_same(_state(party), before[name]) for name, party in parties.items())


@pytest.mark.parametrize("loss", [float("nan"), 1, "low"])
def test_a_loss_that_is_told_is_checked_too(loss: object) -> None:
    def change(message: Message, name: str, at: int) -> Message:
        return {**message, "loss": loss} if "loss" in message else message  # type: ignore[dict-item]

    split = split_of("bottoms", SGD)
    held, _, _ = batches(split, 1)
    steps = {
        name: _with_changes(name, party.step(1, held[name]), change)
        for name, party in parties_of(split).items()
    }
    with pytest.raises(ExchangeError, match="where a finite number was due"):
        drive_together(steps)


def test_followers_need_not_hear_the_loss() -> None:
    split = split_of("bottoms", SGD)
    parties = {
        name: Party(
            name, split, loss=nn.functional.cross_entropy if name == "lead" else None,
            tell_loss=False,
        )
        for name in split.parties
    }  # fmt: skip
    held, _, _ = batches(split, 1)
    done = drive_together({name: party.step(1, held[name]) for name, party in parties.items()})
    assert done["lead"] is not None
    assert done["bank"] is done["shop"] is None


def test_statistics_of_a_void_step_are_put_back() -> None:
    split = vertical_parts.UShape().split_model()
    parties = parties_of(split)
    x, y = vertical_parts.UShape().whole("train")
    held = {"lead": Batch(np.arange(50), {"x": x}, y), "bank": Batch(np.arange(50))}

    def spoiled(message: Message, name: str, at: int) -> Message:
        return _with_last(message, np.nan) if message.get("name") == "backbone.grad" else message

    for number in (1, 2, 3):
        before = {name: _state(party) for name, party in parties.items()}
        statistics = before["bank"]["backbone/1.running_mean"]
        steps = {n: _with_changes(n, p.step(number, held[n]), spoiled) for n, p in parties.items()}
        with pytest.raises(ExchangeError, match="NaN"):
            drive_together(steps)
        assert all(_same(_state(party), before[name]) for name, party in parties.items())
        drive_together({n: p.step(number, held[n]) for n, p in parties.items()})
        assert not torch.equal(_state(parties["bank"])["backbone/1.running_mean"], statistics)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ("embedding", "the output of backbone of bank contains NaN or infinity, computed from "
         "embedding of lead"),
        ("backbone.grad", "the gradient of embedding from bank contains NaN or infinity, computed "
         "from embedding of lead, the gradient of backbone of lead"),
    ],
)  # fmt: skip
def test_who_sent_what_overflows_is_named_by_who_computed_with_it(
    changed: str, sentence: str
) -> None:
    """All tensors sent are finite, but the values computed from them are not."""
    backbone = nn.Linear(8, 8)
    nn.init.constant_(backbone.weight, 10.0)
    split = vertical_parts.UShape().split_model().replace("backbone", module=backbone)
    parties = parties_of(split)
    x, y = vertical_parts.UShape().whole("train")
    held = {"lead": Batch(np.arange(50), {"x": x}, y), "bank": Batch(np.arange(50))}

    def spoiled(message: Message, name: str, at: int) -> Message:
        return _with_last(message, 3e38) if message.get("name") == changed else message

    steps = {n: _with_changes(n, p.step(1, held[n]), spoiled) for n, p in parties.items()}
    with pytest.raises(ExchangeError, match=f"^{sentence}$"):
        drive_together(steps)


def test_an_output_that_the_loss_does_not_depend_on_gets_a_gradient_of_zeros() -> None:
    class Left(nn.Linear):
        def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
            return super().forward(left)

    split = split_of("bottoms", Optimizer("sgd", 0.1)).replace("top", module=Left(8, 6))
    parties = parties_of(split)
    before = {name: _state(party) for name, party in parties.items()}
    held, _, _ = batches(split, 1)
    drive_together({name: party.step(1, held[name]) for name, party in parties.items()})
    unchanged = [name for name, party in parties.items() if _same(_state(party), before[name])]
    assert unchanged == ["shop"]


def test_a_leader_at_its_limit_is_heard_where_its_loss_was_due() -> None:
    """Its only message of a step, the gradient, also carries the loss."""
    bottom = Part("left", "bank", ("data.x",), (8,), layer(6, 8, 1))
    top = Part("top", "lead", ("left",), (6,), vertical_parts.Joint(8, 6))
    split = SplitModel([bottom, top], leader="lead")
    held, _, _ = batches(split, 1)
    step = parties_of(split)["bank"].step(1, held["bank"])
    assert isinstance(next(step), Send)
    assert isinstance(step.send(None), Receive)
    with pytest.raises(PeerAtLimit, match=r"^lead ended the step: its limit is reached$"):
        step.send(abort_message("its limit is reached", at_limit=True))


def test_a_part_that_fails_is_named_and_its_words_stay_with_its_owner() -> None:
    class Failing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("patient 4711 has a NaN")

    split = split_of("bottoms", SGD).replace("left", module=Failing())
    _, raised = {}, {}

    def watched(name: str, exchange: Exchange[object]) -> Exchange[object]:
        try:
            return (yield from exchange)
        except Exception as error:
            raised[name] = error
            raise

    held, _, _ = batches(split, 1)
    parties = parties_of(split)
    with pytest.raises(ExchangeError):
        drive_together({n: watched(n, p.step(1, held[n])) for n, p in parties.items()})
    said = "the part left of bank failed: RuntimeError: patient 4711 has a NaN"
    assert re.fullmatch(rf"{said} \(.*step\.py, line \d+\)", str(raised["bank"]))
    assert isinstance(raised["lead"], PeerAborted)
    assert str(raised["lead"]) == "bank ended the step: the part left of bank failed"
    assert str(raised["shop"]) == f"lead ended the step: {raised['lead']}"


def test_gradients_that_break_a_part_are_answered_under_embedding_dp_as_any_others() -> None:
    """The leader makes a follower's part return NaN, and learns nothing from it."""
    notes: list[str] = []
    outcomes = {}
    for privacy in (EmbeddingPrivacy(3.0), EmbeddingPrivacy(None)):
        split = split_of("bottoms", SGD, privacy)
        parties = parties_of(split)
        parties["bank"]._context.report._note = notes.append  # type: ignore[attr-defined]
        held, _, _ = batches(split, 1)

        def huge(message: Message, name: str, at: int) -> Message:
            if message.get("name") != "left.grad":
                return message
            return {**message, "data": np.full((ROWS, 8), 3e38, np.float32)}

        steps = {n: _with_changes(n, p.step(1, held[n]), huge) for n, p in parties.items()}
        drive_together(steps)
        try:
            drive_together({n: p.step(2, held[n]) for n, p in parties.items()})
            outcomes[privacy.eps] = "a report"
        except ExchangeError as error:
            outcomes[privacy.eps] = str(error)[:30]
    assert outcomes == {3.0: "a report", None: "the part left of bank failed: "}
    assert re.fullmatch(
        r"\d+ of 11 examples are reported as zeros: the output of left .*", notes[0]
    )


def test_zeros_stand_for_the_examples_alone_whose_values_are_no_numbers() -> None:
    split = split_of("bottoms", SGD, EmbeddingPrivacy(40.0))
    (crossing,) = [each for each in split.crossings if each.part == "left"]
    values = np.ones((3, 8), np.float32)
    values[1, 5] = np.nan
    values[2, 0] = np.inf
    occasion = Occasion("train", 0, 1, 0, np.arange(3))
    notes: list[str] = []
    report = Reports(Seeded(5), note=notes.append)(crossing, values, occasion)
    assert EmbeddingDP.unpack(report, (3, 8)).tolist() == [[1.0] * 8, [0.0] * 8, [1.0] * 8]
    assert notes == ["1 of 3 examples are reported as zeros: the output of left for them is NaN"]
    assert np.isnan(values[1, 5]), "the part's own values are unchanged"


def test_the_bits_of_a_party_without_given_randomness_are_never_repeated() -> None:
    """Noise that anyone can draw again protects nothing."""
    split = split_of("bottoms", SGD, EmbeddingPrivacy(0.7))
    (crossing,) = [each for each in split.crossings if each.part == "left"]
    occasion = Occasion("train", 0, 3, 1, np.arange(5, 25))

    def drawn(**given: Any) -> bytes:
        report = Party("bank", split, **given)._context.report
        return np.asarray(report(crossing, np.zeros((20, 8), np.float32), occasion)).tobytes()

    assert len({drawn() for _ in range(3)}) == 3
    assert drawn(entropy=Seeded(5)) == drawn(entropy=Seeded(5)) != drawn(entropy=Seeded(6))


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (lambda x: (x, x), "it returned tuple, not a tensor of shape (11, 8)"),
        (lambda x: x.double(), "it returned torch.float64; the part states float32"),
    ],
)
def test_a_part_that_gives_something_else_than_it_states(
    wrong: Callable[[torch.Tensor], object], sentence: str
) -> None:
    class Wrong(nn.Linear):
        def forward(self, x: torch.Tensor) -> object:  # type: ignore[override]
            return wrong(super().forward(x))

    split = split_of("bottoms", SGD).replace("left", module=Wrong(6, 8))
    held, _, _ = batches(split, 1)
    with pytest.raises(ExchangeError) as caught:
        drive_together({n: p.step(1, held[n]) for n, p in parties_of(split).items()})
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("output", "sentence"),
    [
        ((9,), "it returned (11, 8), not a tensor of shape (11, 9)"),
        ((), "not a tensor of shape (11,)"),
    ],
)
def test_a_part_that_gives_another_shape_than_it_states(
    output: tuple[int, ...], sentence: str
) -> None:
    split = split_of("bottoms", SGD).replace("left", output=output)
    held, _, _ = batches(split, 1)
    with pytest.raises(ExchangeError) as caught:
        drive_together({n: p.step(1, held[n]) for n, p in parties_of(split).items()})
    assert sentence in str(caught.value)


def test_an_interrupted_step_leaves_nothing_behind() -> None:
    split = split_of("bottoms", SGD)
    party = parties_of(split)["bank"]
    held, _, _ = batches(split, 1)
    before = _state(party)
    step = party.step(1, held["bank"])
    assert isinstance(step.send(None), Send)
    assert isinstance(step.send(None), Receive)
    step.close()
    assert _same(_state(party), before)


# --- evaluations


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("in_flight", [1, 4])
def test_a_look_gives_what_the_joined_model_gives(shape: str, in_flight: int) -> None:
    split = split_of(shape, SGD)
    parties = parties_of(split, in_flight)
    held, x, _ = batches(split, 1)
    found = drive_together({n: p.look(1, held[n]) for n, p in parties.items()})
    expected = split.joined()({"x": x})
    assert (found.pop("lead") - expected).abs().max() < 1e-6
    assert set(found.values()) == {None}


def test_reports_differ_between_occasions_and_not_within() -> None:
    split = split_of("bottoms", SGD, EmbeddingPrivacy(0.0))
    parties = parties_of(split)
    held, _, _ = batches(split, 1)

    def look(number: int, occasion: int) -> torch.Tensor:
        looks = {n: p.look(number, held[n], occasion=occasion) for n, p in parties.items()}
        return drive_together(looks)["lead"]

    first = look(1, 0)
    assert torch.equal(first, look(1, 0))
    assert not torch.equal(first, look(2, 0))
    assert not torch.equal(first, look(1, 1))


def test_two_receivers_get_one_report() -> None:
    parts = [
        Part("first", "lead", ("data.x",), (6,), nn.Linear(6, 6), privacy=EmbeddingPrivacy(0.0)),
        Part("left", "bank", ("first",), (6,), layer(6, 6, 1)),
        Part("right", "shop", ("first",), (6,), layer(6, 6, 2)),
        Part("top", "lead", ("left", "right"), (6,), vertical_parts.Joint(12, 6)),
    ]
    split = SplitModel(parts, leader="lead")
    losses = {"lead": nn.functional.cross_entropy}
    parties = {name: Party(name, split, loss=losses.get(name)) for name in split.parties}
    held, _, _ = batches(split, 1)
    sent = []

    def noted(message: Message, name: str, place: int) -> Message:
        if message.get("name") == "first":
            sent.append(np.array(message["data"]))
        return message

    drive_together({n: _with_changes(n, p.step(1, held[n]), noted) for n, p in parties.items()})
    assert len(sent) == 2
    assert np.array_equal(*sent)


# --- state, and edge cases


@pytest.mark.parametrize(
    ("decay_steps", "rates"),
    [(None, (0.1, 0.2, 0.3, 0.3, 0.3, 0.3, 0.3)), (3, (0.1, 0.2, 0.3, 0.3, 0.2, 0.1, 0.0, 0.0))],
)
def test_the_learning_rate_rises_and_may_fall(
    decay_steps: int | None, rates: Sequence[float]
) -> None:
    rule = Optimizer("sgd", 0.3, warmup_steps=3, decay_steps=decay_steps)
    split, whole = (split_of("bottoms", rule) for _ in range(2))
    train(split, 1, len(rates))
    model = whole.joined()
    for number, lr in enumerate(rates, start=1):
        _, x, y = batches(whole, number)
        loss = nn.functional.cross_entropy(model({"x": x}), y)
        for parameter, gradient in zip(
            model.parameters(), torch.autograd.grad(loss, [*model.parameters()]), strict=True
        ):
            parameter.data -= lr * gradient
    assert (weights(split) - weights(whole)).abs().max() < 1e-6


@pytest.mark.parametrize("step", [SGD, ADAM, Optimizer("adamw", 0.01)], ids=["sgd", "adam", "w"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_restored_party_goes_on_as_the_other_would(shape: str, step: Optimizer) -> None:
    split, other = split_of(shape, step), split_of(shape, step)
    parties, successors = parties_of(split, 2), parties_of(other, 2)

    def run(held: dict[str, Party], model: SplitModel, numbers: range) -> None:
        for number in numbers:
            rows, _, _ = batches(model, number)
            drive_together({n: p.step(number, rows[n]) for n, p in held.items()})

    run(parties, split, range(1, 4))
    for name, party in successors.items():
        party.restore(copy.deepcopy(parties[name].state()))
    run(parties, split, range(4, 7))
    run(successors, other, range(4, 7))
    assert torch.equal(weights(split), weights(other))


def test_who_may_be_a_party() -> None:
    split = split_of("bottoms", SGD)
    with pytest.raises(InvalidValue, match="name = 'eve' is not one of lead, bank, shop"):
        Party("eve", split)
    with pytest.raises(InvalidValue, match="loss must be given to the leader"):
        Party("bank", split, loss=nn.functional.cross_entropy)
    with pytest.raises(InvalidValue, match="in_flight = 0 is outside"):
        Party("bank", split, in_flight=0)
    with pytest.raises(InvalidValue, match="a step needs at least one example"):
        next(Party("bank", split).step(1, Batch(np.arange(0))))


def test_bits_behind_the_last_value_are_refused() -> None:
    """Nine bits are two bytes, and seven bits of the second are 0."""
    split = vertical_parts.Bottoms().split_model()
    split = split.replace("left", output=(3,), privacy=EmbeddingPrivacy(1.0))
    due = Transfer(split.crossings[0], 2, gradient=False)
    message: Message = {"kind": "tensor", "name": "left", "step": 4, "micro": 2}

    def received(*data: int) -> torch.Tensor:
        sent = {**message, "data": np.array(data, np.uint8)}
        return from_wire(sent, due, training=True, step=4, rows=3)

    assert received(0b00000011, 1).tolist() == [[1, 1, 0], [0, 0, 0], [0, 0, 1]]
    for data, why in (
        ((0, 3), "malformed: packed holds a 1 behind its 9 bits"),
        ((0,), "of shape"),
    ):
        with pytest.raises(ExchangeError, match=f"^bank sent 'left' {why}"):
            received(*data)


@pytest.mark.parametrize(
    ("reason", "told"),
    [("no memory", "no memory"), ("x" * 300, "x" * 197 + "..."), ("a\nb", "it gave no reason"),
     (7, "it gave no reason")],
)  # fmt: skip
def test_why_a_peer_ended_a_step_is_told_briefly(reason: object, told: str) -> None:
    with pytest.raises(PeerAborted) as end:
        check_not_abort({"kind": "abort", "reason": reason}, "bank")
    assert str(end.value) == f"bank ended the step: {told}"
