"""A user's own optimisers: training equals unsplit training, also after a resumption."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch

import vertical_parts
from fedveil.errors import InvalidValue, JobError
from fedveil.vertical import Batch, Optimizer, Party, SplitModel, VerticalJob, drive_together, train
from fedveil.vertical.job_split import make_split
from fedveil.vertical.remote.handshake import described
from fedveil.vertical.split import Part
from fedveil.vertical.task import Task, initial

STEPS = 6


def slowing(parameters: list[torch.nn.Parameter]) -> Any:
    made = torch.optim.Adagrad(parameters, lr=0.2)
    return made, torch.optim.lr_scheduler.StepLR(made, step_size=2, gamma=0.5)


def plain(parameters: list[torch.nn.Parameter]) -> Any:
    return torch.optim.RMSprop(parameters, lr=0.01)


class Own(vertical_parts.Bottoms):
    """`Bottoms` in which the top has a schedule, and one follower an optimiser that no job has."""

    def split_model(self) -> SplitModel:
        split = super().split_model()
        clipped = Optimizer("sgd", lr=0.5, gradient_norm=0.05)
        split = split.replace("top", optimizer=slowing).replace("left", optimizer=plain)
        return split.replace("right", optimizer=clipped)


def own(seed: int) -> Own:
    return Own(seed)


def parties_of(split: SplitModel) -> dict[str, Party]:
    loss = Own().loss
    return {name: Party(name, split, loss=loss if name == "lead" else None)
            for name in split.parties}  # fmt: skip


def stepped(parties: dict[str, Party], first: int, last: int) -> None:
    x, y = Own().whole("train")
    for number in range(first, last + 1):
        held = {"lead": Batch(np.arange(50), labels=y)}
        held |= {name: Batch(np.arange(50), {"x": part})
                 for name, part in (("bank", x[:, :3]), ("shop", x[:, 3:]))}  # fmt: skip
        drive_together({name: p.step(number, held[name]) for name, p in parties.items()})


def states(parties: dict[str, Party]) -> dict[str, torch.Tensor]:
    return {name: value.clone() for p in parties.values() for name, value in p.state().items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_a_step_is_that_of_the_joined_model() -> None:
    split, reference = Own().split_model(), Own().split_model()
    stepped(parties_of(split), 1, STEPS)
    joined = reference.joined()
    x, y = Own().whole("train")
    made = {name: list(joined.parts[name].parameters()) for name in ("left", "right", "top")}
    top, schedule = slowing(made["top"])
    others = [plain(made["left"]), torch.optim.SGD(made["right"], lr=0.5)]
    for _ in range(STEPS):
        joined.zero_grad()
        Own().loss(joined({"bank.x": x[:, :3], "shop.x": x[:, 3:]}), y).backward()
        torch.nn.utils.clip_grad_norm_(made["right"], 0.05)
        for optimizer in (top, *others):
            optimizer.step()
        schedule.step()
    mine, theirs = split.joined().state_dict(), joined.state_dict()
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
    assert top.param_groups[0]["lr"] == 0.025


def two_bottoms(rule: Optimizer) -> SplitModel:
    """One party owns two bottoms of different sizes, with the same rule."""

    def part(name: str, owner: str, inputs: tuple[str, ...], module: torch.nn.Module) -> Part:
        return Part(name, owner, inputs, (outputs[name],), module, optimizer=rule)

    outputs = {"left": 8, "right": 5, "top": vertical_parts.CLASSES}
    made = {
        name: initial(3, name, lambda n=n: torch.nn.Linear(3, n)) for name, n in outputs.items()
    }
    made["top"] = initial(3, "top", lambda: vertical_parts.Joint(13, vertical_parts.CLASSES))
    bottoms = [part(name, "bank", ("data.x",), made[name]) for name in ("left", "right")]
    top = part("top", "lead", ("left", "right"), made["top"])
    return SplitModel([*bottoms, top], leader="lead")


def test_parts_with_one_rule_are_clipped_and_kept_apart() -> None:
    rule = Optimizer("adam", lr=0.1, gradient_norm=0.05)
    split, joined = two_bottoms(rule), two_bottoms(rule).joined()
    parties = parties_of(split)
    x, y = Own().whole("train")
    own = [list(joined.parts[name].parameters()) for name in ("left", "right", "top")]
    optimizers = [torch.optim.Adam(each, lr=0.1, fused=True) for each in own]
    for number in range(1, STEPS + 1):
        given = {
            "bank": Batch(np.arange(50), {"x": x[:, :3]}),
            "lead": Batch(np.arange(50), labels=y),
        }
        drive_together({name: p.step(number, given[name]) for name, p in parties.items()})
        joined.zero_grad()
        Own().loss(joined({"bank.x": x[:, :3]}), y).backward()
        for each, optimizer in zip(own, optimizers, strict=True):
            torch.nn.utils.clip_grad_norm_(each, 0.05)
            optimizer.step()
    mine, theirs = split.joined().state_dict(), joined.state_dict()
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
    state = parties["bank"].state()
    for part, optimizer in zip(("left", "right"), optimizers, strict=False):
        for number, held in optimizer.state_dict()["state"].items():
            assert all(torch.equal(state[f"{part}//{number}/{n}"], v) for n, v in held.items())


def test_from_what_was_kept_the_steps_are_the_same_again() -> None:
    """This also holds in a party that has trained further meanwhile, and in a new one."""
    parties = parties_of(Own().split_model())
    stepped(parties, 1, 3)
    kept = {name: {k: v.clone() for k, v in p.state().items()} for name, p in parties.items()}
    stepped(parties, 4, STEPS)
    ended = states(parties)
    anew = parties_of(Own(1).split_model())
    for again in (parties, anew):
        for name, party in again.items():
            party.restore(deepcopy(kept[name]))
        stepped(again, 4, STEPS)
        assert same(states(again), ended)


def test_state_of_a_parameter_that_is_not_there_is_refused() -> None:
    party = parties_of(Own().split_model())["bank"]
    with pytest.raises(InvalidValue, match="its optimiser state does not fit the part left"):
        party.restore(party.state() | {"left//7/square_avg": torch.zeros(1)})
    for name in ("right/weight", "right//0/square_avg"):
        with pytest.raises(InvalidValue, match="it contains parts that are not bank's"):
            party.restore(party.state() | {name: torch.zeros(1)})


def test_a_state_has_exactly_the_finite_tensors_of_its_parts() -> None:
    party = parties_of(Own().split_model())["bank"]
    state = party.state()
    (first, tensor), *others = state.items()
    exactly = "it does not contain exactly the tensors of left"
    for changed, why in (
        (dict(others), exactly), (state | {"left/more": tensor}, exactly),
        (state | {first: tensor.double()}, exactly), (state | {first: tensor[1:]}, exactly),
        (state | {first: torch.full_like(tensor, torch.inf)}, f"{first} is not finite"),
    ):  # fmt: skip
        with pytest.raises(InvalidValue, match=why):
            party.restore(changed)
    party.restore(state)


def test_squares_and_steps_are_never_negative() -> None:
    party = Party("bank", vertical_parts.UShape().split_model())
    moments = {"exp_avg": -torch.ones(8, 8), "exp_avg_sq": torch.ones(8, 8),
               "step": torch.tensor(3.0)}  # fmt: skip

    def restored(**changes: torch.Tensor) -> None:
        held = {f"backbone//0/{name}": value for name, value in {**moments, **changes}.items()}
        party.restore(party.state() | held)

    restored()
    for name in ("exp_avg_sq", "step"):
        with pytest.raises(InvalidValue, match="its optimiser state does not fit the part backbo"):
            restored(**{name: -moments[name]})
    variance = {"backbone/1.running_var": torch.linspace(-1, 1, 8)}
    with pytest.raises(InvalidValue, match=r"backbone/1\.running_var is a variance below 0"):
        party.restore(party.state() | variance)


@pytest.mark.parametrize(
    ("number", "changes"),
    [
        (0, {}),
        (-1, {}),
        (4, {}),
        (0, {"step": torch.tensor(3)}),
        (0, {"step": torch.ones(8, 8)}),
        (0, {"exp_avg": torch.ones(8, 7)}),
        (0, {"exp_avg_sq": torch.ones(8)}),
        (0, {"exp_avg": None}),
        (0, {"momentum_buffer": torch.ones(8, 8)}),
    ],
)
def test_a_state_is_that_of_a_parameter_and_its_optimizer(
    number: int, changes: dict[str, torch.Tensor | None]
) -> None:
    shape = (8,) if number else (8, 8)
    moments = {"step": torch.tensor(3.0), "exp_avg": torch.ones(shape),
               "exp_avg_sq": torch.ones(shape)}  # fmt: skip
    party = Party("bank", vertical_parts.UShape().split_model())
    held = {name: value for name, value in (moments | changes).items() if value is not None}
    state = party.state() | {f"backbone//{number}/{name}": value for name, value in held.items()}
    if (number, changes) == (0, {}):
        party.restore(state)
        return
    with pytest.raises(InvalidValue, match="its optimiser state does not fit the part backbone"):
        party.restore(state)


def test_a_function_is_its_owners_affair_and_not_the_jobs() -> None:
    split = Own().split_model()
    parts = described(split)
    assert parts["top"]["optimizer"] == "a function"
    assert parts["right"]["optimizer"]["gradient_norm"] == 0.05
    left, right, top = split.parts
    swapped = SplitModel([right, left, top], leader="lead")
    assert described(swapped) != parts == described(Own().split_model())
    task: Task = Own()
    assert make_split(VerticalJob(), task).by_name["top"].optimizer is slowing
    with pytest.raises(
        JobError, match=r"left\.optimizer is a function of the task, so lr cannot be set"
    ):
        make_split(VerticalJob(optimizer={"lr": 0.1}), task)


def test_a_job_clips_gradients(tmp_path: Any) -> None:
    moved = []
    for norm in (None, 1e-6):
        job = VerticalJob(
            task="vertical_parts:bottoms", epochs=1, optimizer={"gradient_norm": norm}
        )
        run = train(job, tmp_path / str(norm))
        first = vertical_parts.Bottoms().split_model().joined().state_dict()
        now = run.model.state_dict()
        moved.append(max(float((now[name] - first[name]).abs().max()) for name in first))
    assert moved[1] < 1e-4 < moved[0]


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_every_setting_of_a_rule_reaches_torch(name: Any) -> None:
    momentum = {"momentum": 0.3} if name == "sgd" else {}
    rule = Optimizer(name, 0.02, weight_decay=0.07, **momentum).over(
        [torch.nn.Parameter(torch.ones(2))]
    )
    kinds = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    assert type(rule) is kinds[name]
    expected = {"lr": 0.02, "weight_decay": 0.07, **momentum}
    assert expected.items() <= rule.param_groups[0].items()
