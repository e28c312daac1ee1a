"""Vertical job files: valid ones, and the errors for wrong ones."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import vertical_parts
from fedveil.errors import InvalidValue, JobError, LimitReached
from fedveil.record.account_lines import influence, influenced_part
from fedveil.vertical import EmbeddingPrivacy, Optimizer, VerticalJob, account, own_data
from fedveil.vertical.blocks import OptimizerSettings
from fedveil.vertical.compression import Compression
from fedveil.vertical.epsilon_limit import Limit
from fedveil.vertical.job_reference import reference
from fedveil.vertical.job_split import make_split, make_task, own_functions, threads
from fedveil.vertical.remote.machine import follower_of
from fedveil.vertical.split import Part, SplitModel
from fedveil.vertical.task import check_party
from vertical_parts import UShape

WRONG: list[tuple[dict[str, object], str]] = [
    ({"rounds": 3}, "rounds = 3 is not a known key (did you mean epochs?); the keys are name, "),
    ({"epoch": 3}, "epoch = 3 is not a known key (did you mean epochs?); the keys are name, "),
    ({"epochs": 0}, "epochs = 0 is outside [1, inf)"),
    ({"batch_size": "8"}, "batch_size = '8' is not a whole number in [1, inf)"),
    ({"in_flight": 33}, "in_flight = 33 is outside [1, 32], the examples of a step (batch_size)"),
    ({"task": "mnist"}, "task.name = 'mnist' is not one of mnist_halves, tabular, tables, "),
    ({"task": {"name": "pangu", "size": 3}}, "task.size = 3 is not a known key"),
    ({"parts": [1]}, "parts = [1] is not a mapping of names to blocks of keys"),
    ({"parts": {"left": 3}}, "parts.left = 3 is not a block of keys"),
    ({"parts": {3: {}}}, "parts.3 is a name that is not text"),
    ({"parts": {"left": {"input": []}}}, "parts.left.input = [] is not a known key (did you mean"),
    ({"parts": {"left": {"inputs": "x"}}}, "parts.left.inputs = 'x' is not a list of text or null"),
    ({"parts": {"left": {"output": [0]}}}, "parts.left.output = 0 is outside [1, inf)"),
    ({"parts": {"left": {"module": "m.f"}}}, "parts.left.module = 'm.f' is not package.module:f"),
    ({"parts": {"left": {"dtype": "float16"}}}, "parts.left.dtype = 'float16' is not one of float"),
    (
        {"parts": {"left": {"privacy": {"embedding_dp": {"eps": None, "reuse": True}}}}},
        "parts.left.privacy.embedding_dp.reuse = true needs an eps; parts.left.privacy.embeddin",
    ),
    ({"parts": {"left": {"optimizer": {"lr": 0}}}}, "parts.left.optimizer.lr = 0 is outside (0, "),
    (
        {"parts": {"left": {"optimizer": {"name": "adam", "momentum": 0.9}}}},
        "parts.left.optimizer.momentum = 0.9 belongs to sgd; under parts.left.optimizer.name",
    ),
    ({"privacy": {"embedding_dp": 5}}, "privacy.embedding_dp = 5 is not a block of keys"),
    ({"privacy": {"embedding_dp": {"eps": -1}}}, "privacy.embedding_dp.eps = -1 is outside [0, "),
    (
        {"privacy": {"embedding_dp": {"eps": 1401}}},
        "privacy.embedding_dp.eps = 1401 is outside [0, 1400]",
    ),
    (
        {"parts": {"left": {"privacy": {"embedding_dp": {"eps": 1e9}}}}},
        "parts.left.privacy.embedding_dp.eps = 1000000000.0 is outside [0, 1400]",
    ),
    (
        {"privacy": {"label_dp": {"eps": 10_001}}},
        "privacy.label_dp.eps = 10001 is outside [0, 10000]",
    ),
    (
        {"privacy": {"embedding_dp": {"eps": float("nan")}}},
        "privacy.embedding_dp.eps = nan is outside [0, 1400]",
    ),
    (
        {"privacy": {"embedding_dp": {"gradient": "copy"}}},
        "privacy.embedding_dp.gradient = 'copy' is not one of straight_through, none",
    ),
    (
        {"privacy": {"embedding_dp": {"reuse": True}}},
        "privacy.embedding_dp.reuse = true needs an eps; privacy.embedding_dp.eps = null draws",
    ),
    ({"privacy": {"label_dp": {"eps": "1"}}}, "privacy.label_dp.eps = '1' is not a number in"),
    ({"privacy": {"randomness": "random"}}, "privacy.randomness = 'random' is not one of seeded, "),
    ({"evaluation": {"every_epochs": 0}}, "evaluation.every_epochs = 0 is outside [1, inf)"),
    ({"checkpoint": {"every": 5}}, "checkpoint.every = 5 is not a known key (did you mean"),
    ({"device": "gpu"}, "device = 'gpu' is not one of cpu, cuda or cuda:N"),
    ({"threads": 0}, "threads = 0 is outside [1, inf)"),
]


@pytest.mark.parametrize(("data", "sentence"), WRONG, ids=[text for _, text in WRONG])
def test_what_is_wrong_is_said_in_one_sentence(data: dict[str, object], sentence: str) -> None:
    with pytest.raises(JobError) as caught:
        VerticalJob(**data)
    assert len(caught.value.problems) == 1
    assert caught.value.problems[0].startswith(sentence)
    assert "\n" not in caught.value.problems[0]


#: The numbers at the ends of a key's range, and the nearest ones outside.
BOUNDS: list[tuple[str, list[Any], list[Any]]] = [
    ("seed", [0], [-1]),
    ("epochs", [1], [0]),
    ("batch_size", [1], [0]),
    ("in_flight", [1], [0]),
    ("threads", [1, None], [0]),
    ("optimizer.lr", [1e-300, None], [0.0]),
    ("optimizer.momentum", [0.0, 0.999], [-0.001, 1.0]),
    ("optimizer.weight_decay", [0.0], [-1e-9]),
    ("optimizer.warmup_steps", [0], [-1]),
    ("optimizer.decay_steps", [1, None], [0]),
    ("optimizer.gradient_norm", [1e-300], [0.0]),
    ("privacy.embedding_dp.eps", [0.0, None], [-1e-9]),
    ("privacy.label_dp.eps", [0.0], [-1e-9]),
    ("privacy.label_protection.power", [1e-300], [0.0]),
    ("privacy.max_epsilon", [1e-300, None], [0.0]),
    ("privacy.delta", [0.0, 0.999], [-1e-9, 1.0]),
    ("parts.left.output", [[], [1]], [[0]]),
    ("compression.bits", [1, 8], [0, 9]),
    ("alignment.most_ids", [1, None], [0]),
    ("alignment.least_common", [0], [-1]),
    ("checkpoint.every_steps", [1], [0]),
    ("record.every_steps", [1], [0]),
    ("evaluation.every_epochs", [1, None], [0]),
    ("scoring.calibration", [1e-9, 0.999, None], [0.0, 1.0]),
]


@pytest.mark.parametrize(("key", "inside", "outside"), BOUNDS)
def test_a_number_may_be_at_the_end_of_its_range_and_not_beyond(
    key: str, inside: list[Any], outside: list[Any]
) -> None:
    def made(value: Any) -> VerticalJob:
        nested: Any = value
        for name in reversed(key.split(".")):
            nested = {name: nested}
        return VerticalJob(**nested)

    for value in inside:
        found: Any = made(value)
        for name in key.split("."):
            found = found[name] if isinstance(found, dict) else getattr(found, name)
        assert found == value
    for value in outside:
        with pytest.raises(JobError, match=rf"^{re.escape(key)} = .* is outside"):
            made(value)


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(JobError) as caught:
        VerticalJob(epochs=0, in_flight=64, privacy={"delta": 2}, parts={"left": {"owner": 1}})
    assert [problem.partition(" ")[0] for problem in caught.value.problems] == [
        "epochs",
        "parts.left.owner",
        "privacy.delta",
        "in_flight",
    ]


@pytest.mark.parametrize(
    ("overrides", "key", "value"),
    [
        (["parts.left.optimizer.lr=0.5"], "lr", 0.5),
        (["parts.left={optimizer: {lr: 0.5}}", "parts.left.optimizer.name=adam"], "name", "adam"),
        (["parts={left: {optimizer: {momentum: 0.5}}}"], "momentum", 0.5),
    ],
)
def test_parts_are_set_by_their_path(overrides: list[str], key: str, value: object) -> None:
    job = VerticalJob.load(None, overrides)
    assert list(job.parts) == ["left"]
    assert getattr(job.parts["left"].optimizer, key) == value


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("parts.left.optimizr.lr=1", "parts.left.optimizr is not a known key (did"),
        (
            "parts.left.frozen.x=1",
            "parts.left.frozen.x is not a known key: parts.left.frozen holds",
        ),
        ("privacy.embedding_dp.epsilon=1", "privacy.embedding_dp.epsilon = 1 is not a known key"),
    ],
)
def test_settings_that_there_are_not(override: str, problem: str) -> None:
    with pytest.raises(JobError) as caught:
        VerticalJob.load(None, [override])
    assert str(caught.value).startswith(problem)


def test_a_block_that_may_be_null_is_set_as_a_whole_or_key_by_key(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("privacy: {embedding_dp: {eps: 5, gradient: none}}\n")
    path = tmp_path / "job.yaml"
    settings = VerticalJob.load(path, ["privacy.embedding_dp.eps=1"]).privacy.embedding_dp
    assert settings is not None
    assert (settings.eps, settings.gradient) == (1.0, "none")
    assert VerticalJob.load(path, ["privacy.embedding_dp=null"]).privacy.embedding_dp is None
    assert VerticalJob.load(None, ["privacy.label_dp={}"]).privacy.label_dp is not None


def test_yaml_gives_an_equal_job_back(tmp_path: Path) -> None:
    job = VerticalJob(
        task="tabular",
        parts={"left": {"output": [3], "privacy": {"embedding_dp": {"eps": 2}}}},
        privacy={"label_dp": {}},
    )
    (tmp_path / "job.yaml").write_text(job.to_yaml())
    assert VerticalJob.load(tmp_path / "job.yaml") == job


def test_parties_agree_on_all_but_their_own_affairs() -> None:
    job = VerticalJob()
    own = VerticalJob(
        name="mine", device="cuda", threads=4, privacy={"max_epsilon": 3.0},
        alignment={"most_ids": 70, "least_common": 7},
    )  # fmt: skip
    assert job.agreed() == own.agreed()
    for other in ({"seed": 1}, {"privacy": {"delta": 1e-4}}, {"alignment": {"by": "digests"}}):
        assert job.agreed() != VerticalJob(**other).agreed()


# --- the parts of a task as a job changes them


def split_of(**data: object):
    return make_split(VerticalJob(**data), vertical_parts.Bottoms(0))


def test_privacy_is_the_parts_own_or_the_jobs_where_data_leaves() -> None:
    embedding = {"eps": 5.0}
    for data, left, right in (
        ({"privacy": {"embedding_dp": embedding}}, 5.0, 5.0),
        (
            {
                "privacy": {"embedding_dp": embedding},
                "parts": {"left": {"privacy": {}}, "right": {}, "top": {}},
            },
            None,
            5.0,
        ),
        (
            {
                "parts": {
                    "left": {"privacy": {"embedding_dp": {"eps": 1, "gradient": "none"}}},
                    "right": {},
                    "top": {},
                }
            },
            1.0,
            None,
        ),
    ):
        found = split_of(**data).by_name
        assert getattr(found["left"].privacy, "eps", None) == left
        assert getattr(found["right"].privacy, "eps", None) == right
        assert found["top"].privacy is None
    task = vertical_parts.UShape(0)
    u_shape = make_split(VerticalJob(privacy={"embedding_dp": embedding}), task)
    assert u_shape.by_name["embedding"].privacy == EmbeddingPrivacy(5.0)
    assert u_shape.by_name["backbone"].privacy is None


class Deep(vertical_parts.Bottoms):
    """`Bottoms` with a chain of several parts at the bank; the first may be sent as well."""

    def __init__(self, depth: int, *, crosses_early: bool = False) -> None:
        super().__init__(0)
        self.depth, self.crosses_early = depth, crosses_early

    def split_model(self) -> SplitModel:
        wide, below = self.width, "data.x"
        chain = []
        for number in range(self.depth):
            width = 3 if below == "data.x" else wide
            chain.append(Part(f"left{number}", "bank", (below,), (wide,), nn.Linear(width, wide)))
            below = f"left{number}"
        right = Part("right", "shop", ("data.x",), (wide,), nn.Linear(3, wide))
        sources = (below, "right", *(["left0"] if self.crosses_early else []))
        top = Part("top", "lead", sources, (3,), vertical_parts.Joint(len(sources) * wide, 3))
        return SplitModel([*chain, right, top], leader="lead")


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_privacy_is_where_own_data_leaves_however_many_parts_it_passes(depth: int) -> None:
    job = VerticalJob(privacy={"embedding_dp": {"eps": 5.0}})
    split = make_split(job, Deep(depth))
    protected = {part.name for part in split.parts if part.privacy is not None}
    assert protected == {f"left{depth - 1}", "right"}
    if depth == 1:
        return
    both = make_split(job, Deep(depth, crosses_early=True))
    protected = {part.name for part in both.parts if part.privacy is not None}
    assert protected == {"left0", f"left{depth - 1}", "right"}


def test_an_unprotected_crossing_beside_a_protected_one_has_an_infinite_epsilon() -> None:
    job = VerticalJob(
        privacy={"embedding_dp": {"eps": 5.0}},
        parts={"left0": {"privacy": {}}, "left1": {}, "right": {}, "top": {}},
    )
    split = make_split(job, Deep(2, crosses_early=True))
    assert split.by_name["left0"].privacy is None
    releases = SimpleNamespace(train=np.array([2, 1]), looks=0)
    lines = account.figures(split, "bank", releases, 1e-5, None)  # type: ignore[arg-type]
    by_what = {line.what: line.epsilon for line in lines}
    assert by_what["an example's values of left0, sent unprotected"] == math.inf
    assert by_what["an example's own reports in the run, sent 2 times"] == math.inf
    assert account.opening(split, "bank")[-1] == (
        "The output of left0 leaves bank without protection."
    )
    alone = make_split(job.with_(parts={"left0": {"privacy": {}}, "right": {}, "top": {}}), Deep(1))
    (bare, run) = account.figures(alone, "bank", releases, 1e-5, None)  # type: ignore[arg-type]
    assert (bare.epsilon, run.epsilon) == (math.inf, math.inf)
    assert account.opening(alone, "bank") == ["The output of left0 leaves bank without protection."]
    nobody = make_split(VerticalJob(), Deep(1))
    bare_lines = account.figures(nobody, "bank", releases, 1e-5, None)  # type: ignore[arg-type]
    assert [(line.epsilon, line.what) for line in bare_lines] == [
        (math.inf, "an example's values of left0, sent unprotected"),
        (math.inf, "an example's own reports in the run, sent 2 times"),
    ]
    assert account.opening(nobody, "bank") == [
        "The output of left0 leaves bank without protection."
    ]
    assert account.figures(nobody, "lead", releases, 1e-5, None) == []  # type: ignore[arg-type]
    shop = account.figures(split, "shop", releases, 1e-5, None)  # type: ignore[arg-type]
    assert [line.what for line in shop if line.epsilon == math.inf] == [influence("right")]


@pytest.mark.parametrize(
    "frozen", [(), ("left0",), ("left1",), ("left0", "left1"), ("right",), ("top",)]
)
def test_each_part_that_examples_train_has_an_infinite_epsilon(frozen: tuple[str, ...]) -> None:
    """A leader can read an example from the weights that it trained, in the bits of others."""
    job = VerticalJob(
        privacy={"embedding_dp": {"eps": 5.0}},
        parts={name: {"frozen": name in frozen} for name in ("left0", "left1", "right", "top")},
    )
    split = make_split(job, Deep(2))
    releases = SimpleNamespace(train=np.array([2, 1]), looks=0)
    for party, parts in {"bank": ("left0", "left1"), "shop": ("right",)}.items():
        lines = account.figures(split, party, releases, 1e-5, None)  # type: ignore[arg-type]
        stated = [line.what for line in lines if influenced_part(line.what)]
        assert stated == [influence(part) for part in parts if part not in frozen]
        assert all(line.epsilon == math.inf for line in lines if line.what in stated)
        assert lines[-1].epsilon < math.inf
        assert lines[-1].what == "an example's own reports in the run, sent 2 times"
    assert account.figures(split, "lead", releases, 1e-5, None) == []  # type: ignore[arg-type]


@pytest.mark.parametrize("depth", [3, 4])
def test_every_part_of_a_chain_before_the_bits_is_trained_by_examples(depth: int) -> None:
    chain = [f"left{number}" for number in range(depth)]
    parts: dict[str, Any] = {name: {} for name in (*chain, "right", "top")}
    job = VerticalJob(privacy={"embedding_dp": {"eps": 5.0}}, parts=parts)
    assert account.trained_by_examples(make_split(job, Deep(depth)), "bank") == chain
    frozen = job.with_(parts={**parts, "left1": {"frozen": True}})
    chain.remove("left1")  # it passes gradients on to the part before it
    assert account.trained_by_examples(make_split(frozen, Deep(depth)), "bank") == chain


def test_a_part_without_gradients_is_not_trained_by_examples() -> None:
    job = VerticalJob(
        privacy={"embedding_dp": {"eps": 5.0}},
        parts={
            "left0": {},
            "right": {"privacy": {"embedding_dp": {"eps": 5.0, "gradient": "none"}}},
            "top": {},
        },
    )
    split = make_split(job, Deep(1))
    assert own_data.trained_by_examples(split, "bank") == ["left0"]
    assert own_data.trained_by_examples(split, "shop") == []


def test_the_opening_names_every_part_and_its_own_eps() -> None:
    names = ("left0", "left1", "left2", "right", "top")
    parts: dict[str, Any] = {name: {} for name in names}
    for eps, said in ((5.0, "5"), (0.0, "0")):
        alike = VerticalJob(privacy={"embedding_dp": {"eps": eps}}, parts=parts)
        split = make_split(alike, Deep(3, crosses_early=True))
        told = f"The embedding is protected by EmbeddingDP with eps {said}."
        assert account.opening(split, "bank") == [told]
    eps = {"a": 3.5, "b": None, "c": 3.5}
    mixed = [
        Part(name, "bank", ("data.x",), (3,), privacy=EmbeddingPrivacy(one))
        for name, one in eps.items()
    ]
    split = SplitModel([*mixed, Part("top", "lead", tuple(eps), (2,))], leader="lead")
    assert account.opening(split, "bank") == [
        "The embedding of a, c is protected by EmbeddingDP with eps 3.5.",
        "The embedding of b is protected by EmbeddingDP with one bit for each value and no noise.",
    ]


def test_the_largest_in_flight_and_a_jobs_own_momentum() -> None:
    assert VerticalJob(in_flight=32, batch_size=32).in_flight == 32
    wrong = re.escape("optimizer.momentum = 0.75 belongs to sgd; under optimizer.name = adamw")
    with pytest.raises(JobError, match=rf"(^|\s){wrong}"):
        VerticalJob(optimizer={"name": "adamw", "momentum": 0.75})


def test_a_follower_of_several_has_to_say_which_it_is() -> None:
    task: Any = SimpleNamespace(leader="lead", followers=("bank", "shop"))
    assert follower_of(task, "shop", None) == "shop"
    with pytest.raises(InvalidValue, match=r"--party is missing: .* bank, shop"):
        follower_of(task, None, None)
    for name in ("lead", "desk"):
        with pytest.raises(
            InvalidValue, match=rf"'{name}' is not a follower of the job; .* bank, "
        ):
            follower_of(task, name, None)
    check_party(task, "lead")
    with pytest.raises(InvalidValue, match="'desk' is not one of lead, bank, shop"):
        check_party(task, "desk")


def test_an_output_of_others_data_alone_is_no_release_of_ones_own() -> None:
    split = UShape().split_model()
    assert own_data.sends_unprotected(split, "lead") == ["embedding"]
    assert own_data.sends_unprotected(split, "bank") == []


@pytest.mark.parametrize("late", [False, True])
def test_gradients_that_depend_on_a_followers_own_columns_have_an_infinite_epsilon(
    late: bool,
) -> None:
    """The bank's columns enter beside the leader's output, or in a part of its own after it."""
    private = EmbeddingPrivacy(0.5)
    middle = Part("middle", "bank", ("words", "data.x"), (4,), privacy=private)
    if late:
        middle = Part("middle", "bank", ("turned", "data.x"), (4,), privacy=private)
    parts = [
        Part("words", "lead", ("data.z",), (3,)),
        *([Part("turned", "bank", ("words",), (3,))] if late else []),
        middle,
        Part("other", "shop", ("data.y",), (2,), privacy=private),
        Part("top", "lead", ("middle", "other"), (2,)),
    ]
    split = SplitModel(parts, leader="lead")
    sent: Any = SimpleNamespace(train=np.array([2, 1]), looks=0)
    by_what = {line.what: line.epsilon for line in account.figures(split, "bank", sent, 0.0, None)}
    assert by_what["an example's gradients of words, sent unprotected"] == math.inf
    assert by_what["an example's own reports in the run, sent 2 times"] == math.inf
    assert account.opening(split, "bank")[-1] == (
        "The gradients of words, computed from bank's own columns, leave bank without protection."
    )
    with pytest.raises(LimitReached, match="step 1 would return gradients of words that are comp"):
        Limit(split, "bank", 99.0, 0.0, None).check("step 1", 1, labelled=True)
    Limit(split, "shop", 99.0, 0.0, None).check("step 1", 1, labelled=True)
    for party in ("lead", "shop"):
        assert own_data.unprotected_gradients(split, party) == []
    frozen = SplitModel([replace(parts[0], frozen=True), *parts[1:]], leader="lead")
    assert own_data.unprotected_gradients(frozen, "bank") == []
    assert own_data.unprotected_gradients(UShape().split_model(), "bank") == []


def test_every_part_is_compressed_as_the_job_says() -> None:
    settings = {"bits": 3, "forward": False, "backward": True, "error_feedback": True}
    split = split_of(compression=settings)
    assert [part.compression for part in split.parts] == [Compression(**settings)] * 3
    assert [part.compression for part in split_of().parts] == [None] * 3


@pytest.mark.parametrize("own_seed", [0, 7, None])
def test_a_machines_own_seed_chooses_its_weights_also_if_it_is_zero(
    own_seed: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has the job would know weights that are drawn from the job's seed."""
    seeds: list[tuple[str, int]] = []

    def bottoms(seed: int) -> vertical_parts.Bottoms:
        seeds.append(("task", seed))
        return vertical_parts.Bottoms(seed)

    def wider(seed: int) -> nn.Module:
        seeds.append(("module", seed))
        return nn.Linear(3, 5)

    monkeypatch.setattr(vertical_parts, "bottoms", bottoms)
    monkeypatch.setattr(vertical_parts, "wider", wider)
    left = {"module": "vertical_parts:wider", "output": [5]}
    job = VerticalJob(
        task="vertical_parts:bottoms", seed=41, parts={"left": left, "right": {}, "top": {}}
    )
    make_split(job, make_task(job, None, own_seed), own_seed=own_seed)
    wanted = 41 if own_seed is None else own_seed
    assert seeds == [("task", wanted), ("module", wanted)]


def test_the_number_of_threads_is_that_of_before() -> None:
    before = torch.get_num_threads()
    with threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before
    with pytest.raises(ZeroDivisionError), threads(before + 1):
        raise ZeroDivisionError
    assert torch.get_num_threads() == before


def test_optimizers_are_the_tasks_then_the_jobs_then_the_parts() -> None:
    assert split_of().by_name["left"].optimizer == Optimizer("sgd", 0.2, 0.5)
    job = {"optimizer": {"lr": 0.1}, "parts": {"left": {}, "right": {}, "top": {}}}
    job["parts"]["left"] = {"optimizer": {"name": "adam"}}
    job["parts"]["top"] = {"optimizer": {"lr": 0.03}}
    found = split_of(**job).by_name
    assert found["right"].optimizer == Optimizer("sgd", 0.1, 0.5)
    assert found["left"].optimizer == Optimizer("adam", 0.1)
    assert getattr(found["top"].optimizer, "lr", None) == 0.03
    assert OptimizerSettings().model_dump() == dict.fromkeys(OptimizerSettings.model_fields)


def test_modules_of_others_are_not_made() -> None:
    parts = {"left": {"module": "nowhere:secret"}, "right": {}, "top": {}}
    split = make_split(VerticalJob(parts=parts), vertical_parts.Bottoms(0), here={"shop"})
    assert split.by_name["left"].module is None
    assert split.by_name["right"].module is not None


def test_a_function_that_makes_no_module_is_named() -> None:
    parts = {"left": {"module": "vertical_parts:bottoms"}, "right": {}, "top": {}}
    why = "^parts.left.module = 'vertical_parts:bottoms' returned Bottoms; it must return an nn.Mod"
    with pytest.raises(InvalidValue, match=why):
        split_of(parts=parts)


def test_a_part_that_the_task_freezes_can_be_thawed() -> None:
    class Frozen(vertical_parts.Bottoms):
        def split_model(self) -> SplitModel:
            return super().split_model().replace("right", frozen=True)

    for changes, frozen in (({}, True), ({"frozen": False}, False), ({"frozen": True}, True)):
        parts: dict[str, Any] = {"left": {}, "right": changes, "top": {}}
        assert make_split(VerticalJob(parts=parts), Frozen()).by_name["right"].frozen == frozen


def test_a_model_with_one_logit_for_two_classes_is_not_calibrated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise the run would fail after its last step."""
    job = VerticalJob(scoring={"calibration": 0.2})
    assert make_split(job, vertical_parts.Bottoms()).last.output == (3,)
    monkeypatch.setattr(vertical_parts.Bottoms, "classes", 2)
    with pytest.raises(JobError, match=r"one output for each of 2 classes, .* top .* shape \(3,\)"):
        make_split(job, vertical_parts.Bottoms())


def test_every_function_of_the_users_own_is_remembered_for_a_resumption() -> None:
    parts: dict[str, Any] = {"left": {"module": "theirs.net:bottom"}, "right": {}}
    job = VerticalJob(task="mine.task:bank", parts=parts)
    assert own_functions(job) == ["mine.task:bank", "theirs.net:bottom"]
    assert own_functions(VerticalJob(parts=parts)) == ["theirs.net:bottom"]


# --- the reference page


def test_every_key_has_a_row() -> None:
    lines = [line for line in reference().splitlines() if line.startswith("| `")]
    rows = {line.split("`")[1]: line for line in lines}
    for key in ("parts", "parts.NAME.optimizer.lr", "parts.NAME.privacy.embedding_dp.eps"):
        assert key in rows
    for block in ("optimizer", "privacy.embedding_dp"):  # each occurs in two places
        assert re.search(rf"`{block}\.\w+`.*: as in `parts\.NAME\.{block}`\.", reference())
    assert "| a block of keys or null | `null` |" in rows["privacy.embedding_dp"]
    assert all(len(line.split(" | ")[-1]) > 10 for line in lines)
