"""The schedule of a step: the properties that training relies on, for any split model."""

from __future__ import annotations

from collections import Counter, defaultdict, deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedveil.vertical import EmbeddingPrivacy, Part, SplitModel
from fedveil.vertical.schedule import (
    Apply,
    Compute,
    Program,
    ReceiveTensor,
    ReceiveWord,
    SendTensor,
    SendWord,
    micro_sizes,
    programs,
)

BLIND = EmbeddingPrivacy(1.0, "none")


@st.composite
def splits(draw: st.DrawFn) -> SplitModel:
    """Draw split models of up to three parties and seven parts."""
    parts: list[Part] = []
    for number in range(draw(st.integers(0, 6))):
        owner = draw(st.sampled_from(["lead", "a", "b"]))
        readable = [p.name for p in parts if "lead" in (owner, p.owner) or owner == p.owner]
        sources = draw(st.lists(st.sampled_from(readable), unique=True)) if readable else []
        columns = ["data.x"] if not sources or draw(st.booleans()) else []
        parts.append(
            Part(f"p{number}", owner, (*columns, *sources), (2,), frozen=draw(st.booleans()))
        )
    read = {source for part in parts for source in part.sources}
    unread = [part.name for part in parts if part.name not in read]
    parts.append(Part("last", "lead", tuple(unread) or ("data.x",), (2,)))
    split = SplitModel(parts, leader="lead")
    for name in {crossing.part for crossing in split.crossings}:
        if draw(st.booleans()):
            split = split.replace(name, privacy=BLIND)
    return split


@given(splits(), st.integers(1, 5))
def test_every_operation_once_and_micro_batches_in_order(split: SplitModel, micros: int) -> None:
    made = programs(split, micros)
    found: dict[tuple[str, str], list[int]] = defaultdict(list)
    for party, program in made.items():
        for step in program:
            if isinstance(step, Compute):
                assert split.by_name[step.part].owner == party
                found[step.kind, step.part].append(step.micro)
    stages = {("forward", part.name) for part in split.parts[:-1]} | {("loss", "last")}
    stages |= {("backward", p.name) for p in split.parts[:-1] if split.runs_backward(p.name)}
    assert set(found) == stages
    assert all(order == list(range(micros)) for order in found.values())


@given(splits(), st.integers(1, 4))
def test_it_is_the_same_whoever_works_it_out(split: SplitModel, micros: int) -> None:
    again = SplitModel(split.parts, leader=split.leader)
    assert programs(split, micros) == programs(again, micros)


@given(splits(), st.integers(1, 4), st.data())
def test_at_any_speeds_it_ends_and_weights_change_last(
    split: SplitModel, micros: int, data: st.DataObject
) -> None:
    """Play the programs with parties that run in a drawn order, and check every instruction."""
    table = _Table(split, programs(split, micros))
    while table.unfinished():
        ready = table.ready()
        assert ready, "the parties wait for one another"
        table.go(ready[data.draw(st.integers(0, len(ready) - 1))] if len(ready) > 1 else ready[0])
    assert not any(table.queues.values()), "a message that nobody has received"


@given(splits(), st.integers(1, 4))
def test_a_look_runs_every_part_forward_and_changes_nothing(split: SplitModel, micros: int) -> None:
    made = programs(split, micros, training=False)
    steps = [step for program in made.values() for step in program]
    kinds = Counter(step.kind for step in steps if isinstance(step, Compute))
    assert kinds == {"forward": micros * len(split.parts)}
    assert not any(isinstance(s, Apply | SendWord | ReceiveWord) for s in steps)
    assert not any(s.transfer.gradient for s in steps if isinstance(s, SendTensor | ReceiveTensor))


class _Table:
    """Parties that run their programs one instruction at a time, with queues between them."""

    def __init__(self, split: SplitModel, made: dict[str, Program]) -> None:
        self.split = split
        self.made = made
        self.at = dict.fromkeys(made, 0)
        self.queues: dict[tuple[str, str], deque[object]] = defaultdict(deque)
        self.holds: dict[str, set[object]] = defaultdict(set)

    def unfinished(self) -> list[str]:
        return [party for party in self.made if self.at[party] < len(self.made[party])]

    def ready(self) -> list[str]:
        return [party for party in self.unfinished() if self._can(party)]

    def _can(self, party: str) -> bool:
        step = self.made[party][self.at[party]]
        if isinstance(step, ReceiveTensor):
            return bool(self.queues[step.transfer.sender, party])
        if isinstance(step, ReceiveWord):
            return bool(self.queues[step.peer, party])
        return True

    def go(self, party: str) -> None:
        step = self.made[party][self.at[party]]
        self.at[party] += 1
        match step:
            case SendTensor(transfer):
                assert transfer.sender == party
                stage = self._stages(transfer.crossing.consumers, transfer.micro)
                if not transfer.gradient:
                    stage = {("forward", transfer.crossing.part, transfer.micro)}
                assert stage <= self.holds[party], "sent before it was computed"
                self.queues[party, transfer.receiver].append(transfer)
            case ReceiveTensor(transfer):
                assert self.queues[transfer.sender, party].popleft() == transfer
                kind = "gradient" if transfer.gradient else "forward"
                self.holds[party].add(
                    (kind, transfer.crossing.part, transfer.micro, transfer.sender)
                )
            case SendWord(word, peer):
                self.queues[party, peer].append(word)
            case ReceiveWord(word, peer):
                assert self.queues[peer, party].popleft() == word
            case Compute():
                self._check(party, step)
                self.holds[party].add((step.kind, step.part, step.micro))
            case Apply():
                assert self.at[party] == len(self.made[party])
                for other in self.made:
                    left = self.made[other][self.at[other] :]
                    assert not any(isinstance(s, ReceiveTensor) for s in left), (
                        f"{party} applies while {other} has tensors to check"
                    )
                    losses = (s for s in left if isinstance(s, Compute) and s.kind == "loss")
                    assert not list(losses), "applied before the loss is known to be finite"

    def _stages(self, names: tuple[str, ...], micro: int) -> set[object]:
        return {
            ("loss" if name == "last" else "backward", name, micro)
            for name in names
            if self.split.runs_backward(name)
        }

    def _check(self, party: str, step: Compute) -> None:
        """Check that every input of an operation has been computed here or has arrived."""
        part, holds = self.split.by_name[step.part], self.holds[party]
        if step.kind != "backward":
            for source in part.sources:
                owner = self.split.by_name[source].owner
                place = ("forward", source, step.micro)
                assert (place if owner == party else (*place, owner)) in holds
            return
        for crossing in self.split.crossings:
            if crossing.part == part.name and crossing.gradient:
                place = ("gradient", part.name, step.micro, crossing.receiver)
                assert place in holds
        own = tuple(p.name for p in self.split.consumers(part.name) if p.owner == party)
        assert self._stages(own, step.micro) <= holds


def written(program: Program) -> str:
    """Write a program in one line: F forward, L loss, B backward, < received, > sent."""
    words = []
    for step in program:
        match step:
            case Compute(kind, part, micro):
                words.append(f"{kind[0].upper()}.{part}{micro}")
            case SendTensor(t) | ReceiveTensor(t):
                sign = ">" if isinstance(step, SendTensor) else "<"
                words.append(f"{sign}{t.crossing.part}{'.g' if t.gradient else ''}{t.micro}")
            case SendWord(word, _):
                words.append(f">{word}")
            case ReceiveWord(word, _):
                words.append(f"<{word}")
            case Apply():
                words.append("apply")
    return " ".join(words)


def test_a_follower_runs_ahead_and_the_leader_answers_at_once() -> None:
    split = SplitModel(
        [Part("left", "a", ("data.x",), (2,)), Part("top", "lead", ("left",), (2,))], leader="lead"
    )
    made = programs(split, 3)
    assert written(made["a"]) == (
        "F.left0 >left0 F.left1 >left1 F.left2 >left2 "
        "<left.g0 B.left0 <left.g1 B.left1 <left.g2 >ready B.left2 apply"
    )
    assert written(made["lead"]) == (
        "<left0 L.top0 >left.g0 <left1 L.top1 >left.g1 <left2 L.top2 >left.g2 <ready apply"
    )


def test_in_the_u_shape_the_last_gradient_stands_for_ready() -> None:
    split = SplitModel(
        [
            Part("emb", "lead", ("data.x",), (2,)),
            Part("body", "a", ("emb",), (2,)),
            Part("head", "lead", ("body",), (2,)),
        ],
        leader="lead",
    )
    made = programs(split, 2)
    assert written(made["a"]) == (
        "<emb0 F.body0 >body0 <emb1 F.body1 >body1 "
        "<body.g0 B.body0 >emb.g0 <body.g1 B.body1 >emb.g1 <commit apply"
    )
    assert written(made["lead"]) == (
        "F.emb0 >emb0 F.emb1 >emb1 <body0 L.head0 >body.g0 <body1 L.head1 >body.g1 "
        "<emb.g0 B.emb0 <emb.g1 >commit B.emb1 apply"
    )


def test_each_of_two_followers_waits_for_the_commit() -> None:
    """The leader's last tensor shows that it has checked all, and nothing of the other follower."""
    split = SplitModel(
        [
            Part("left", "a", ("data.x",), (2,)),
            Part("right", "b", ("data.x",), (2,)),
            Part("top", "lead", ("left", "right"), (2,)),
        ],
        leader="lead",
    )
    made = programs(split, 2)
    for follower in ("a", "b"):
        assert made[follower][-2:] == (ReceiveWord("commit", "lead"), Apply())
        assert made["lead"].count(SendWord("commit", follower)) == 1


def test_nobody_commits_before_every_loss_is_known() -> None:
    """Here the leader returns no gradient, so that its losses are the last of its work."""
    parts = [Part("left", "a", ("data.x",), (2,)), Part("last", "lead", ("left",), (2,))]
    split = SplitModel(parts, leader="lead").replace("left", privacy=BLIND)
    assert written(programs(split, 2)["lead"]) == ("<left0 L.last0 <left1 L.last1 >commit apply")


def test_what_nobody_awaits_is_computed_last() -> None:
    """The leader runs its own part ahead of the others' outputs, and backward after the rest."""
    parts = [
        Part("left", "a", ("data.x",), (2,)),
        Part("own", "lead", ("data.y",), (2,)),
        Part("top", "lead", ("left", "own"), (2,)),
    ]
    assert written(programs(SplitModel(parts, leader="lead"), 3)["lead"]) == (
        "F.own0 F.own1 <left0 L.top0 >left.g0 <left1 L.top1 >left.g1 F.own2 <left2 L.top2 >left.g2 "
        "<ready B.own0 B.own1 B.own2 apply"
    )


def test_a_backward_pass_on_the_way_to_another_party_comes_before_one_that_is_not() -> None:
    parts = [
        Part("emb", "lead", ("data.x",), (2,)),
        Part("body", "a", ("emb",), (2,)),
        Part("side", "a", ("data.z",), (2,)),
        Part("last", "a", ("side", "body"), (2,)),
        Part("head", "lead", ("last",), (2,)),
    ]
    assert written(programs(SplitModel(parts, leader="lead"), 2)["a"]) == (
        "F.side0 F.side1 <emb0 F.body0 F.last0 >last0 <emb1 F.body1 F.last1 >last1 "
        "<last.g0 B.last0 B.body0 >emb.g0 <last.g1 B.last1 B.body1 >emb.g1 B.side0 B.side1 "
        "<commit apply"
    )


def test_a_backward_pass_is_awaited_through_any_number_of_own_parts() -> None:
    parts = [
        Part("side", "lead", ("data.x",), (2,)),
        Part("body", "a", ("data.x",), (2,)),
        Part("one", "lead", ("body",), (2,)),
        Part("two", "lead", ("one",), (2,)),
        Part("three", "lead", ("two",), (2,)),
        Part("last", "lead", ("side", "three"), (2,)),
    ]
    program = written(programs(SplitModel(parts, leader="lead"), 1)["lead"])
    assert program == (
        "F.side0 <body0 F.one0 F.two0 F.three0 L.last0 B.three0 B.two0 B.one0 >body.g0 "
        "<ready B.side0 apply"
    )


@pytest.mark.parametrize(
    ("rows", "in_flight", "sizes"),
    [(32, 1, (32,)), (10, 4, (3, 3, 2, 2)), (3, 4, (1, 1, 1)), (8, 4, (2, 2, 2, 2))],
)
def test_how_a_batch_is_cut(rows: int, in_flight: int, sizes: tuple[int, ...]) -> None:
    assert micro_sizes(rows, in_flight) == sizes
