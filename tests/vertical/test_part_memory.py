"""Every party builds only its own parts, and their memory is known before they are built."""

from __future__ import annotations

import json
import re
import tracemalloc
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from fedveil.errors import MessageInvalid, ModelInvalid
from fedveil.language.transformer import PRESETS
from fedveil.learning.device import free_bytes
from fedveil.record.run_folder import RunFolder
from fedveil.vertical import VerticalJob, memory_reuse, part_memory, train
from fedveil.vertical.batch_memory import batch_bytes
from fedveil.vertical.job_split import make_split, make_task
from fedveil.vertical.optimizer import Optimizer
from fedveil.vertical.part_memory import PartMemory, check_memory, memory_of, needed, sizable, sized
from fedveil.vertical.party import Party
from fedveil.vertical.remote.machine import Machine
from fedveil.vertical.split import Part, SplitModel
from fedveil.vertical.step_checkpoint import Checkpoint
from fedveil.vertical.tensor_fields import fields_of, taken

Command = Callable[..., tuple[int, str, str]]
TASKS = ["mnist_halves", "tabular", "pangu"]


def job_of(*overrides: str) -> VerticalJob:
    return VerticalJob.load(None, list(overrides))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that collects the sizes of all parameters made with values."""
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


class Passing(TorchDispatchMode):
    """Measures the peak memory in bytes of new tensors with more than one number."""

    def __init__(self) -> None:
        super().__init__()
        self.most = self._now = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor) and made.numel() > 1 and not _given(made, args):
            self._now += made.nbytes
            self.most = max(self.most, self._now)
            weakref.finalize(made, self._gone, made.nbytes)
        return made

    def _gone(self, size: int) -> None:
        self._now -= size


def _given(made: torch.Tensor, args: Any) -> bool:
    old = [each.untyped_storage() for each in args if isinstance(each, torch.Tensor)]
    return made.untyped_storage().data_ptr() in [storage.data_ptr() for storage in old]


@pytest.mark.parametrize(
    "rule",
    ["{name: adam}", "{name: sgd, weight_decay: 0.1}", "{name: sgd}", "{name: sgd, momentum: 0.9}"],
)
def test_what_is_told_is_what_a_step_takes_and_leaves(rule: str) -> None:
    names = ("leader_wide", "leader_deep", "bank_wide", "bank_deep", "top")
    parts = {name: {"frozen": name == "bank_deep"} for name in names}
    job = job_of("task=tabular", f"optimizer={rule}").with_(parts=parts)
    task = make_task(job)
    told = {part.part: part for part in memory_of(sized(job, task, ("leader", "bank")))}
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
        with Passing() as passing:
            party._optimizers.step(2)
        assert passing.most == max(told[part].stepping for part in party.modules)
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
    parts = memory_of(sized(job, make_task(job), ("leader", "cloud")))
    assert not made
    assert [(part.owner, part.parameters) for part in parts] == [
        ("leader", leader), ("cloud", cloud), ("leader", 0)]  # fmt: skip
    for part in parts:
        assert needed([part]) == 16 * part.parameters, "AdamW holds two beside"
    assert needed(parts) == 16 * (leader + cloud)
    plain = job.with_(optimizer={"name": "sgd", "weight_decay": 0.1})
    parts = memory_of(sized(plain, make_task(plain), ("leader", "cloud")))
    for part, largest in zip(parts, (shape.vocabulary, 4 * shape.width, 0), strict=True):
        assert part.stepping == 4 * largest * shape.width
    assert needed(parts) == 8 * (leader + cloud) + max(part.stepping for part in parts)


def test_the_memory_check_counts_the_batch(made, monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_of("task=pangu", "task.pangu.preset=1.3B", "batch_size=5")
    task, parties = make_task(job), ("leader", "cloud")
    split = sized(job, task, parties)
    parts = memory_of(split)
    with_batch = needed(parts, batch_bytes(split, task, parties, 5))
    monkeypatch.setattr(part_memory, "free_bytes", lambda device: with_batch)
    check_memory(job, task)
    monkeypatch.setattr(part_memory, "free_bytes", lambda device: with_batch - 1)
    assert with_batch > needed(parts)
    with pytest.raises(ModelInvalid, match=r"with batch_size = 5 needs "):
        check_memory(job, task)
    monkeypatch.setattr(part_memory, "free_bytes", lambda device: 0)
    check_memory(job, task, ())  # no party is here
    assert not made


def test_a_machine_without_the_memory_refuses_before_anything_is_made(
    made, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of("task=pangu", "task.pangu.preset=2.6B")
    monkeypatch.setattr(part_memory, "free_bytes", lambda device: 20_000_000_000)
    with (
        ExitStack() as stack,
        pytest.raises(ModelInvalid, match=r"^device = cpu has 20 GB of memory free, but "
                      r"training the parts of cloud with batch_size = 32 needs "
                      r"241\.8 GB for 2,520,279,040 parameters: weights 10\.1 GB, gradients "
                      r"10\.1 GB, optimiser 20\.2 GB, and 201\.5 GB for a batch$"),
    ):  # fmt: skip
        Machine(job, lambda task: "cloud", stack)
    with pytest.raises(
        ModelInvalid, match=r"parts of leader and cloud with batch_size = 32 needs 264\.5 GB for "
    ):
        train(job)
    assert not made


@pytest.mark.parametrize(
    ("said", "free"),
    [
        ("MemTotal: 9 kB\nMemFree:  5 kB\nMemAvailable:  300 kB\nSwapFree:  41 kB\n", 1024 * 341),
        ("MemFree:  5 kB\n", None),
    ],
)
def test_free_memory_is_what_is_available_and_the_swap(
    said: str, free: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "read_text", lambda path, *given: said)
    assert free_bytes("cpu") == free


def test_a_batch_counts_what_autograd_keeps() -> None:
    bottom = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3))
    parts = [Part("low", "bank", ("data.x",), (3,), bottom),
             Part("top", "lead", ("low",), (2,), nn.Linear(3, 2))]  # fmt: skip
    split = SplitModel(parts, leader="lead")
    for part in parts:
        assert part.module is not None
        part.module.to("meta")

    def loss(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return functional.mse_loss(outputs, labels)

    inputs = {"x": ((5,), torch.float32), "labels": ((2,), torch.float32)}
    task = SimpleNamespace(inputs=inputs, loss=loss)

    def told(task: Any, *parties: str) -> int:
        return batch_bytes(split, task, parties, 11)

    # The columns, the ReLU's output and the part's own; of the leader's: its input, its output,
    # the labels and the loss. Beside them two gradients of the largest.
    assert told(task, "bank") == int(1.15 * 4 * 11 * (5 + 7 + 3 + 2 * 7))
    assert told(task, "lead") == int(1.15 * 4 * (11 * (3 + 2 + 2 + 2 * 3) + 1))
    assert told(SimpleNamespace(loss=loss), "bank", "lead") == 0


class _Attention(nn.Module):
    """Attends from 2 learnt queries of width 3 to the 5 words of each example."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(5)
        self.mixed = nn.ModuleList(nn.Linear(7, 3, bias=False) for _ in range(3))

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        asked, keys, values = (mix(self.norm(words)) for mix in self.mixed)
        return functional.scaled_dot_product_attention(asked, keys, values)


class _Top(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(3, 2)

    def forward(self, heard: torch.Tensor) -> torch.Tensor:
        return self.last(functional.softplus(heard).float())


def test_a_batch_counts_attention_and_what_another_party_sends() -> None:
    bottom, top = _Attention().to("meta"), _Top().to("meta")
    split = SplitModel(
        [
            Part("low", "bank", ("data.words",), (5, 3), bottom),
            Part("halved", "shop", ("data.y",), (4, 3), None, "bfloat16"),
            Part("top", "lead", ("halved",), (4, 2), top),
            Part("last", "lead", ("top", "low"), (1,), None),
        ],
        leader="lead",
    )
    task = SimpleNamespace(inputs={"words": ((5, 7), torch.float32)})
    words, mixed = 11 * 5 * 7, 11 * 5 * 3
    # Each of three normalisations keeps its input once for all, its result, and the mean and the
    # deviation of each of 5 words. Attention keeps its three inputs and its result.
    saved = words + 3 * (words + 2 * 5) + 4 * mixed
    assert batch_bytes(split, task, ["bank"], 11) == int(1.15 * 4 * (saved + 2 * words))
    # The output that arrives has a gradient, so it is kept at 2 bytes a value.
    heard, shown = 11 * 4 * 3, 11 * 4 * 2
    found = batch_bytes(split, task, ["lead"], 11)
    assert found == int(1.15 * (2 * heard + 4 * heard + 4 * shown + 2 * 4 * heard))


class _Queries(nn.Module):
    """Attends from 2 learnt queries of width 3 to the 5 words of each example, by keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = nn.Parameter(torch.zeros(2, 3))
        self.keys, self.values = nn.Linear(7, 3, bias=False), nn.Linear(7, 4, bias=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        keys, values = self.keys(words), self.values(words)
        asked = self.asked.expand(len(words), 2, 3)
        return functional.scaled_dot_product_attention(asked, key=keys, value=values).exp()


def test_a_batch_counts_attention_with_fewer_queries_than_words() -> None:
    split = SplitModel(
        [
            Part("low", "bank", ("data.words",), (2, 4), _Queries().to("meta")),
            Part("odd", "bank", ("data.unknown", "data.words"), (6,), nn.Bilinear(2, 7, 6)),
            Part("top", "lead", ("low", "odd"), (1,), None),
        ],
        leader="lead",
    )
    task = SimpleNamespace(inputs={"words": ((5, 7), torch.float32)})
    words, keys, values, mixed = 11 * 5 * 7, 11 * 5 * 3, 11 * 5 * 4, 11 * 2 * 4
    saved = words + keys + values + mixed + mixed  # what it attends to, and the exponential of it
    assert batch_bytes(split, task, ["bank"], 11) == int(1.15 * 4 * (saved + 2 * words))


def test_a_checkpoint_is_written_without_a_copy_and_read_a_tensor_at_a_time(tmp_path: Path) -> None:
    linear = nn.Linear(512, 512, bias=False)
    split = SplitModel([Part("top", "lead", ("data.x",), (512,), linear,
                             optimizer=Optimizer("adam", lr=0.1))], leader="lead")  # fmt: skip
    party, size = Party("lead", split, loss=nn.functional.mse_loss), linear.weight.nbytes
    linear.weight.grad = torch.ones_like(linear.weight)
    party._optimizers.step(1)
    state = {name: tensor.clone() for name, tensor in party.state().items()}
    folder = RunFolder.create(tmp_path / "run")
    window = {"loss": 0.0, "losses": 0, "steps": 0, "sent": 0, "received": 0}
    tracemalloc.start()
    with Passing() as writing:
        Checkpoint(1, "", 0, "", window, party.state()).write(folder)
    with Passing() as reading:
        Checkpoint.read(folder, 1).give(folder, party)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    folder.close()
    assert writing.most == 0
    # The weights until they are in place, and Adam's two moments; one tensor to copy and one to
    # check.
    assert reading.most <= 5 * size
    assert most < size / 2, "beside tensors"
    for name, tensor in party.state().items():
        assert torch.equal(tensor, state[name]), name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.complex64, torch.bool, torch.int64])
def test_tensors_of_any_type_and_shape_are_kept(dtype: torch.dtype) -> None:
    tensors = {"none": torch.zeros(0, 3, dtype=dtype), "one": torch.ones((), dtype=dtype),
               "turned": torch.arange(6).reshape(2, 3).to(dtype).t()}  # fmt: skip
    rest, found = taken({**fields_of(tensors), "step": 3})
    assert rest == {"step": 3}
    assert list(found) == list(tensors)
    for name, tensor in tensors.items():
        assert found[name].dtype == dtype
        assert torch.equal(found[name], tensor)


def test_a_tensor_of_sizes_below_zero_is_refused() -> None:
    """Their product is the number of bytes that there are."""
    fields = fields_of({"x": torch.zeros(2, 3)})
    layout = json.dumps({"x": ["float32", [-2, -3]]})
    with pytest.raises(MessageInvalid, match="its layout does not describe x"):
        taken({**fields, "layout": layout})


def test_the_command_tells_each_part_and_party(command: Command) -> None:
    decay = "optimizer={name: sgd, weight_decay: 0.1}"
    for rule, larger in (("optimizer={name: adam}", ""), (decay, "the larger of ")):
        code, out, _ = command("vertical", "parts", "--set", "task=pangu", "--set", rule)
        assert code == 0
        lines = out.splitlines()
        assert lines[1].startswith("backbone of cloud: ")
        assert lines[2].startswith("head of leader: 0 B")
        parts = [lines[n].partition(": weights ")[2].partition(", and ") for n in (0, 1)]
        for line, party, (part, _, step) in zip(
            lines[-2:], ("leader", "cloud"), parts, strict=True
        ):
            beside = f" and {step}" if larger else ""
            assert bool(step) == bool(larger)
            assert re.match(
                rf"{party} in all: \S+ MB for \S+ parameters: weights {part}, and {larger}\S+ MB "
                rf"for a batch{beside}$", line
            ), line  # fmt: skip
    code, _, err = command("vertical", "parts", "--set", "parts.left.module=x:y")
    assert code != 0
    assert "depend on data that is not here, or on functions of the job's own" in err


@pytest.mark.parametrize("job", [
    {"parts": {"left": {"module": "x:y"}}}, {"task": {"name": "tables"}},
])  # fmt: skip
def test_what_has_no_size_before_it_is_made_is_not_refused(
    job: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part_memory, "free_bytes", lambda device: 0)
    settings = job_of().with_(**job)
    check_memory(settings, make_task(settings))


def test_a_partys_parts_of_tables_are_told_by_its_header(command: Command, tmp_path: Path) -> None:
    """No row is read: the file has none, and the other party's file is missing."""
    (tmp_path / "bank.csv").write_text("client,income,city,branch\n")
    (tmp_path / "lead.csv").write_text("id,age,risk\n")
    words = {"city": 100, "branch": 7}
    bank = {"path": str(tmp_path / "bank.csv"), "id": "client", "categories": words}
    lead = {"path": str(tmp_path / "lead.csv"), "id": "id", "label": "risk"}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump({"task": {"name": "tables", "tables": {
        "files": {"bank": bank, "leader": {"label": "risk"}}}}}))  # fmt: skip
    code, out, err = command("vertical", "parts", str(tmp_path / "job.yaml"))
    assert code == 0, err
    lines = out.splitlines()
    # 8 intervals of a number and all places of words, with 8 scores each.
    assert lines[0].startswith("bank_wide of bank: ")
    assert f" for {(8 + 107) * 8:,} parameters: weights " in lines[0]
    deep = 107 * 8 + (1 + 16 + 1) * 64 + (64 + 1) * 32
    assert f" for {deep:,} parameters: weights " in lines[1]
    assert lines[-1] == (
        "leader: the sizes of its parts depend on data that this job does not name"
    )
    both = job_of("task=tables").with_(task={"name": "tables", "tables": {
        "files": {"bank": bank, "leader": lead}}})  # fmt: skip
    task = make_task(both)
    owners = {part.owner for part in memory_of(sized(both, task, sizable(both, task)))}
    assert owners == {"bank", "leader"}


def test_freed_memory_is_kept_where_glibc_is(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    for library in (SimpleNamespace(mallopt=lambda *option: asked.append(option)), object()):
        monkeypatch.setattr(memory_reuse.ctypes, "CDLL", lambda name, library=library: library)
        memory_reuse.keep_freed_memory()
    assert asked == [(-3, 32 << 20), (-1, 1 << 30)]


def test_each_optimizer_needs_memory_of_its_own() -> None:
    """Only sgd with weight decay needs a copy of the largest parameter during its step."""
    rules: list[Any] = [
        Optimizer("adamw", weight_decay=0.1), Optimizer("sgd", weight_decay=0.1),
        Optimizer("sgd", momentum=0.5), lambda parameters: None,
    ]  # fmt: skip
    parts = [
        Part(f"p{n}", "lead", (f"p{n - 1}" if n else "data.x",), (4,), nn.Linear(4, 4),
             optimizer=rule)
        for n, rule in enumerate(rules)
    ]  # fmt: skip
    found = memory_of(SplitModel(parts, leader="lead"))
    assert [(part.optimizer, part.stepping) for part in found] == [
        (2 * 80, 0), (0, 64), (80, 0), (0, 0)
    ]  # fmt: skip


def test_a_batch_and_the_optimizers_step_need_memory_at_different_times() -> None:
    parts = [PartMemory(name, "lead", 1, 10, 20, 30, step) for name, step in (("a", 7), ("b", 5))]
    assert [needed(parts, batch) for batch in (0, 6, 9)] == [127, 127, 129]
