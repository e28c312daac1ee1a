"""Every party makes its own parts alone, and what they need is said before they are made."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from torch import nn

from fedveil.errors import ModelInvalid
from fedveil.language.transformer import PRESETS
from fedveil.vertical import VerticalJob, part_memory, together
from fedveil.vertical.apart.machine import Machine
from fedveil.vertical.job_split import make_split, make_task
from fedveil.vertical.part_memory import memory_of, sized
from fedveil.vertical.party import Party

Command = Callable[..., tuple[int, str, str]]
TASKS = ["mnist_halves", "tabular", "pangu"]


def job_of(*overrides: str) -> VerticalJob:
    return VerticalJob.load(None, list(overrides))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of all parameters that are made with numbers."""
    sizes: list[int] = []
    new = nn.Parameter.__new__

    def counted(cls: type, data: torch.Tensor, *args: Any, **settings: Any) -> nn.Parameter:
        if not data.is_meta:
            sizes.append(data.numel())
        return new(cls, data, *args, **settings)

    monkeypatch.setattr(nn.Parameter, "__new__", counted)
    return sizes


@pytest.mark.parametrize("name", TASKS)
def test_a_machine_makes_its_own_partys_parameters_and_no_others(name: str, made) -> None:
    job = job_of(f"task={name}")
    whole = make_split(job, make_task(job))
    for party in whole.parties:
        own = {id(each): each.numel() for part in whole.owned_by(party)
               for each in part.module.parameters()}  # fmt: skip
        made.clear()
        with ExitStack() as stack:
            machine = Machine(job, lambda task, who=party: who, stack)
        assert sum(made) == sum(own.values()) > 0
        for part in machine.split.parts:
            assert (part.module is not None) == (part.owner == party)


@pytest.mark.parametrize("rule", ["{name: adam}", "{name: sgd}", "{name: sgd, momentum: 0.9}"])
def test_what_is_told_is_what_a_step_leaves(rule: str) -> None:
    names = ("leader_wide", "leader_deep", "bank_wide", "bank_deep", "top")
    parts = {name: {"frozen": name == "bank_deep"} for name in names}
    job = job_of("task=tabular", f"optimizer={rule}").with_(parts=parts)
    task = make_task(job)
    told = {part.part: part for part in memory_of(sized(job, task))}
    split = make_split(job, task)
    for name in split.parties:
        party = Party(name, split, loss=task.loss if name == split.leader else None)
        for part, module in party.modules.items():
            weights = list(module.parameters())
            assert told[part].weights == sum(each.nbytes for each in weights)
            for each in weights:
                each.grad = torch.ones_like(each) if each.requires_grad else None
            gradients = sum(each.nbytes for each in weights if each.grad is not None)
            assert told[part].gradients == gradients
        party._optimizers.step(1)
        state = party.state()
        for part in party.modules:
            held = sum(
                tensor.nbytes for place, tensor in state.items()
                if place.startswith(f"{part}//") and not place.endswith("/step")
            )  # fmt: skip
            assert told[part].optimizer == held
    assert told["bank_deep"].gradients == told["bank_deep"].optimizer == 0


@pytest.mark.parametrize(("preset", "billions"), [("350M", 0.35), ("1.3B", 1.3), ("2.6B", 2.6)])
def test_the_large_presets_are_sized_without_a_number(preset, billions, made) -> None:
    shape = PRESETS[preset]
    leader = (shape.vocabulary + shape.context) * shape.width
    layer = 12 * shape.width**2 + 13 * shape.width
    cloud = shape.layers * layer + (shape.context + 4) * shape.width
    assert (leader + cloud) / 1e9 == pytest.approx(billions, rel=0.02)
    job = job_of("task=pangu", f"task.pangu.preset={preset}")
    parts = memory_of(sized(job, make_task(job)))
    assert not made
    assert [(part.owner, part.parameters) for part in parts] == [
        ("leader", leader), ("cloud", cloud), ("leader", 0)]  # fmt: skip
    assert all(part.total == 16 * part.parameters for part in parts), "AdamW holds two beside"


def test_a_machine_without_the_memory_refuses_before_anything_is_made(
    made, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of("task=pangu", "task.pangu.preset=2.6B")
    monkeypatch.setattr(part_memory, "free_bytes", lambda device: 20_000_000_000)
    with (
        ExitStack() as stack,
        pytest.raises(ModelInvalid, match=r"^device = cpu has 20\.0 GB of memory free, and to "
                      r"train the parts of cloud takes 40\.3 GB: weights 10\.1 GB, gradients "
                      r"10\.1 GB, optimiser 20\.2 GB, of 2,520,279,040 parameters$"),
    ):  # fmt: skip
        Machine(job, lambda task: "cloud", stack)
    with pytest.raises(ModelInvalid, match=r"parts of leader and cloud takes 42\.0 GB: "):
        together.train(job)
    assert not made


def test_the_command_tells_each_part_and_party(command: Command) -> None:
    code, out, _ = command("vertical", "parts", "--set", "task=pangu")
    assert code == 0
    lines = out.splitlines()
    assert lines[1].startswith("backbone of cloud: ")
    assert lines[2].startswith("head of leader: 0 B")
    assert lines[-1].startswith("cloud in all: ")
    code, _, err = command("vertical", "parts", "--set", "task=tables")
    assert code != 0
    assert "follow from data or from functions of the job's own" in err
