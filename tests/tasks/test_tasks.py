"""The tasks on features: who holds what, what their parts give, and what is refused."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.stats import ks_2samp
from sklearn import datasets
from sklearn.metrics import accuracy_score, log_loss, precision_recall_fscore_support, roc_auc_score

from fedveil.data.datasets import load
from fedveil.entry.vertical import train
from fedveil.errors import DataInvalid, DataUnavailable, InvalidValue
from fedveil.tasks import tabular
from fedveil.tasks.mnist_halves import Joint
from fedveil.tasks.wide_and_deep import Deep, Features, Wide
from fedveil.vertical.calibration import calibrated
from fedveil.vertical.job import VerticalJob
from fedveil.vertical.optimizer import Optimizer
from fedveil.vertical.task import Columns, Task, aligned_by, averages, build, initial
from fedveil.vertical.task_settings import HalvesSettings, TabularSettings

TASKS = [
    ("mnist_halves", HalvesSettings(width=24)),
    ("tabular", TabularSettings()),
    ("tabular", TabularSettings(table="wine", bins=3, width=5, scores=2)),
    ("tabular", TabularSettings(table="diabetes")),
]


def parties(task: Task) -> tuple[str, ...]:
    return (task.leader, *task.followers)


# Properties of every task


@pytest.mark.parametrize(("name", "settings"), TASKS)
@pytest.mark.parametrize("subset", ["train", "test"])
def test_every_party_holds_the_columns_that_its_parts_read(name, settings, subset):
    task = build(name, settings, 1)
    split = task.split_model()
    assert isinstance(task, Task)
    assert split.leader == task.leader
    assert set(split.followers) == set(task.followers)
    owned = {party: task.owned(party, subset) for party in parties(task)}
    for party, columns in owned.items():
        assert set(columns.columns) == set(split.columns(party))
        assert (columns.labels is not None) == (party == task.leader)
        np.testing.assert_array_equal(columns.ids, owned[task.leader].ids)
        assert all(torch.isfinite(column).all() for column in columns.columns.values())


@pytest.mark.parametrize(("name", "settings"), TASKS)
def test_no_example_is_in_both_subsets(name, settings):
    task = build(name, settings, 1)
    ids = [task.owned(task.leader, subset).ids for subset in ("train", "test")]
    assert min(map(len, ids)) > 0
    assert not np.intersect1d(*ids).size


@pytest.mark.parametrize(("name", "settings"), TASKS)
def test_the_parts_give_what_they_declare_and_the_loss_has_a_gradient_everywhere(name, settings):
    task = build(name, settings, 1)
    split = task.split_model()
    rows = slice(0, 6)
    columns = {
        f"{party}.{key}": value[rows]
        for party in parties(task)
        for key, value in task.owned(party, "train").columns.items()
    }
    values = {}
    for part in split.parts:
        read = [
            columns[f"{part.owner}.{key[5:]}"] if key.startswith("data.") else values[key]
            for key in part.inputs
        ]
        values[part.name] = part.module(*read)
        assert values[part.name].shape == (6, *part.output)
        assert values[part.name].dtype == torch.float32
    joined = split.joined()
    outputs = joined(columns)
    assert torch.equal(outputs, values[split.last.name])
    labels = task.owned(task.leader, "train").labels[rows]
    task.loss(outputs, labels).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in joined.parameters())


@pytest.mark.parametrize(("name", "settings"), TASKS)
def test_initial_weights_follow_from_the_seed_alone(name, settings):
    def weights(seed):
        parameters = build(name, settings, seed).split_model().joined().parameters()
        return torch.cat([p.detach().reshape(-1) for p in parameters])

    torch.manual_seed(0)
    first = weights(1)
    state = torch.random.get_rng_state()
    torch.rand(7)
    assert torch.equal(first, weights(1))
    assert not torch.equal(first, weights(2))
    torch.manual_seed(0)
    assert torch.equal(torch.random.get_rng_state(), state), "a task draws from torch's own state"


@pytest.mark.parametrize(("name", "settings"), TASKS)
def test_the_metrics_of_parts_add_up_to_those_of_the_whole(name, settings):
    task = build(name, settings, 1)
    labels = task.owned(task.leader, "train").labels[:50]
    outputs = torch.randn(50, task.classes or 1, generator=torch.Generator().manual_seed(0))
    whole = averages(task.metrics(outputs, labels))
    parts = [task.metrics(outputs[at], labels[at]) for at in (slice(0, 13), slice(13, 50))]
    summed = averages({key: sum(part[key] for part in parts) for key in parts[0]})
    assert summed == pytest.approx(whole, rel=1e-6)
    assert whole["loss"] == pytest.approx(task.loss(outputs, labels).item(), rel=1e-5)


def test_classification_figures_are_scikit_learn_s():
    task = build("tabular", None, 1)
    labels = task.owned("leader", "train").labels
    outputs = torch.randn(len(labels), 2, generator=torch.Generator().manual_seed(1))
    figures = averages(task.metrics(outputs, labels))
    probabilities = torch.softmax(outputs.double(), dim=1)
    assert figures["loss"] == pytest.approx(log_loss(labels, probabilities), rel=1e-6)
    assert figures["accuracy"] == accuracy_score(labels, outputs.argmax(1))


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [2, 0, 3, 1]])
def test_scores_that_tie_at_infinity_tell_no_class(order: list[int]) -> None:
    """A model that masks a class gives it a score of minus infinity."""
    outputs = np.array([[0.0, -np.inf]] * 4)
    labels = np.array([0, 1, 0, 1])[order]
    assert build("tabular", None, 1).figures(outputs.astype(np.float32), labels)["ks"] == 0


def test_figures_of_all_examples_together_are_scikit_learn_s():
    task = build("tabular", None, 1)
    labels = task.owned("leader", "train").labels.numpy()
    outputs = np.random.default_rng(2).normal(size=(len(labels), 2)) + np.eye(2)[labels]
    found = task.figures(outputs.astype(np.float32), labels)
    margin, told = outputs[:, 1] - outputs[:, 0], outputs.argmax(1)
    assert found["auc"] == pytest.approx(roc_auc_score(labels, margin), abs=1e-6)
    assert found["ks"] == pytest.approx(
        ks_2samp(margin[labels == 1], margin[labels == 0]).statistic
    )
    fitted = calibrated(outputs.astype(np.float32), labels)
    assert found["calibrated_loss"] == pytest.approx(log_loss(labels, fitted))
    scores = precision_recall_fscore_support(labels, told)
    for at, of_class in enumerate(found["per_class"].values()):
        expected = [part[at] for part in scores]
        keys = ("precision", "recall", "f1", "examples")
        assert [of_class[key] for key in keys] == pytest.approx(expected)


def test_a_regression_is_measured_in_the_targets_own_unit():
    task = build("tabular", TabularSettings(table="diabetes"), 1)
    target = datasets.load_diabetes().target[task.owned("leader", "test").ids]
    scaled = task.owned("leader", "test").labels.numpy()
    found = task.figures(scaled[:, None] * 0, scaled)
    mean = datasets.load_diabetes().target[task.owned("leader", "train").ids].mean()
    assert found["mae"] == pytest.approx(np.abs(target - mean).mean(), rel=1e-5)
    np.testing.assert_allclose(
        [float(n) for n in task.predictions(scaled[:, None], scaled)["prediction"]],
        target,
        rtol=1e-4,
    )


def test_averages_count_tokens_where_there_are_some():
    sums = {"loss_sum": 12.0, "correct": 3.0, "tokens": 6.0, "examples": 2.0}
    assert averages(sums) == {"loss": 2.0, "accuracy": 0.5}


@pytest.mark.parametrize(("name", "settings"), TASKS)
def test_a_built_in_task_numbers_its_examples_and_makes_the_parts_of_those_here(name, settings):
    task = build(name, settings, 1)
    assert aligned_by(None, task) == "digests"
    assert aligned_by("intersection", task) == "intersection"
    for here in parties(task):
        made = task.split_model(here={here})
        assert {p.name for p in made.parts if p.module} == {p.name for p in made.owned_by(here)}
        # Another rate would give all users other models from the same jobs.
        assert {part.optimizer for part in made.parts} == {Optimizer("adam", lr=0.001)}


def test_a_joint_layer_reads_numbers_below_zero_as_bits_that_are_not_set():
    joint, given = Joint(6, 4, 3), torch.tensor([[1.0, -2.0, 0.0, 1.0, -0.5, 1.0]])
    assert torch.equal(joint(given[:, :2], given[:, 2:]), joint(given.clamp(min=0)))
    assert [layer.out_features for layer in joint.layers if hasattr(layer, "out_features")] == [
        4,
        3,
    ]


def test_initial_tables_are_small_and_of_both_signs_and_what_crosses_is_normalised():
    sizes = Features(intervals=(40, 30), places=(500,))
    table = Wide(sizes, 6).rows.weight.detach()
    assert -table.min().item() == pytest.approx(570**-0.5, rel=0.01)
    assert table.max().item() == pytest.approx(570**-0.5, rel=0.01)
    deep = Deep(sizes, 4, 9)
    assert deep.words.weight.std().item() == pytest.approx(0.05, rel=0.1)
    sent = deep(torch.randn(7, 2) * 9 + 5, torch.arange(7)[:, None])
    torch.testing.assert_close(sent.mean(dim=1), torch.zeros(7), atol=1e-5, rtol=0)
    torch.testing.assert_close(sent.std(dim=1, correction=0), torch.ones(7), atol=1e-2, rtol=0)


# mnist_halves


def test_the_halves_are_the_image_s_and_the_labels_the_leader_s():
    task, digits = build("mnist_halves", None, 1), load("digits")
    left, right = (task.split_model().by_name[side].module for side in task.followers)
    drawn = zip(left.parameters(), right.parameters(), strict=True)
    assert not any(torch.equal(one, other) for one, other in drawn if one.dim() > 1)
    for subset, examples in (("train", digits.train), ("test", digits.test)):
        halves = [task.owned(side, subset).columns["half"] for side in ("left", "right")]
        np.testing.assert_array_equal(torch.cat(halves, dim=3), examples.x)
        np.testing.assert_array_equal(task.owned("leader", subset).labels, examples.y)
        for half in halves:
            assert half.untyped_storage().nbytes() == half.nbytes, "the other half is kept"


def test_about_half_of_what_crosses_is_above_zero():
    """The bits of EmbeddingDP tell nothing where all numbers have one sign."""
    task = build("mnist_halves", None, 3)
    left = task.split_model().by_name["left"]
    with torch.no_grad():
        share = (left.module(task.owned("left", "train").columns["half"]) > 0).float().mean(dim=1)
    assert 0.35 < share.min() < share.max() < 0.65


def test_an_image_set_that_is_not_here_is_one_sentence(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDVEIL_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    task = build("mnist_halves", HalvesSettings(data="mnist"), 1)
    assert len(task.split_model().parts) == 3, "the model needs no data"
    with pytest.raises(DataUnavailable, match="data mnist: train-images-idx3-ubyte is not on this"):
        task.owned("left", "train")


# tabular


def test_the_owners_features_are_the_table_s_halves():
    task = build("tabular", None, 1)
    table = datasets.load_breast_cancer()
    for party, features in (("leader", slice(0, 15)), ("bank", slice(15, 30))):
        train, test = (task.owned(party, subset) for subset in ("train", "test"))
        assert sorted([*train.ids, *test.ids]) == list(range(569))
        own = table.data[:, features]
        mean, deviation = own[train.ids].mean(axis=0), own[train.ids].std(axis=0)
        for held in (train, test):
            expected = (own[held.ids] - mean) / deviation
            np.testing.assert_allclose(held.columns["numbers"], expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(task.owned("leader", "test").labels, table.target[
        task.owned("leader", "test").ids])  # fmt: skip


def test_the_nearest_words_are_those_whose_vectors_are_near_however_long_others_are():
    """Each column of words has its own rows of the table."""
    deep = Deep(Features(intervals=(4,), places=(3, 5)), 2, 6)
    vectors = torch.tensor([[1.0, 0], [8, 0], [0, 1], [0, 1], [1, 1], [9, 9], [-1, 0], [2, 0]])
    deep.words.weight.data = vectors
    words = torch.tensor([[0, 4], [2, 1], [1, 0], [0, 2]])
    sent = deep.words(words + deep.first).flatten(1) + 0.1
    assert deep.nearest(sent).tolist() == words.tolist()
    # By the sum of differences, (9, 9) would be nearer to (8, 2.3) than (2, 0) is.
    assert deep.nearest(torch.tensor([[0.9, 0.2, 8, 2.3]])).tolist() == [[0, 4]]


def test_intervals_hold_equally_many_training_rows():
    task = build("tabular", TabularSettings(bins=4), 1)
    places = task.owned("bank", "train").columns["intervals"]
    for interval in range(4):
        assert (((places == interval).float().mean(dim=0) - 0.25).abs() < 0.01).all()


def test_a_value_on_a_bound_is_in_the_interval_above_it():
    train = np.array([[1.0, 5], [2, 6], [3, 7], [9, 6]])
    found = tabular._intervals(np.array([[2.5, 6.0], [2.4, 5.9], [9, 9]]), train, 2)
    assert found.tolist() == [[1, 1], [0, 0], [1, 1]]


def test_the_wide_parts_have_a_row_for_each_interval_and_each_class_is_held_out_alike():
    task = build("tabular", TabularSettings(table="wine", bins=3), 1)
    parts = task.split_model().by_name
    rows = {name: parts[f"{name}_wide"].module.rows.num_embeddings for name in ("leader", "bank")}
    assert rows == {"leader": 3 * 6, "bank": 3 * 7}
    counts = np.bincount(datasets.load_wine().target)
    held = np.bincount(task.owned("leader", "test").labels)
    assert held.tolist() == [round(count / 5) for count in counts]


def test_a_higher_value_is_in_a_higher_interval_held_out_or_not():
    task = build("tabular", TabularSettings(bins=5), 1)
    both = [task.owned("leader", subset).columns for subset in ("train", "test")]
    places, numbers = (
        torch.cat([columns[kind].float() for columns in both]) for kind in ("intervals", "numbers")
    )
    order = numbers.argsort(dim=0)
    assert (places.gather(0, order).diff(dim=0) >= 0).all()


def test_the_targets_of_a_regression_are_scaled_over_the_training_rows():
    task = build("tabular", TabularSettings(table="diabetes"), 1)
    assert task.classes is None
    target = datasets.load_diabetes().target
    train, test = (task.owned("leader", subset) for subset in ("train", "test"))
    assert train.labels.mean().item() == pytest.approx(0, abs=1e-6)
    assert train.labels.std(correction=0).item() == pytest.approx(1, rel=1e-6)
    back = test.labels.numpy() * target[train.ids].std() + target[train.ids].mean()
    np.testing.assert_allclose(back, target[test.ids], rtol=1e-5)


def is_linear_in(owner: int, wide: str) -> bool:
    """Return True if the outputs are linear in the wide scores of the leader (0) or bank (1)."""
    top = build("tabular", TabularSettings(wide=wide), 1).split_model().last.module
    given = [torch.randn(3, 8), torch.randn(3, 32), torch.randn(3, 8), torch.randn(3, 32)]
    a, b = torch.randn(3, 8), torch.randn(3, 8)

    def scored(scores):
        at = [scores if place == 2 * owner else value for place, value in enumerate(given)]
        return top(*at)

    zero = scored(torch.zeros(3, 8))
    left, right = scored(a) + scored(b) - 2 * zero, scored(a + b) - zero
    return bool(torch.allclose(left, right, atol=1e-5))


def test_no_follower_is_linear_into_an_output():
    """But the leader's own wide part is; and all are where the job says so."""
    assert is_linear_in(0, "hidden")
    assert not is_linear_in(1, "hidden")
    assert is_linear_in(0, "linear")
    assert is_linear_in(1, "linear")


# Trained


@pytest.mark.parametrize(
    ("overrides", "reached"),
    [
        (("task=tabular",), 0.92),
        (("task=tabular", "privacy.embedding_dp.eps=5"), 0.88),
        (("task=tabular", "task.tabular.table=wine"), 0.8),
        (("task=mnist_halves", "task.mnist_halves.width=64"), 0.9),
    ],
)
def test_a_short_run_learns(overrides: tuple[str, ...], reached, tmp_path: Path):
    epochs = 2 if "mnist" in overrides[0] else 8
    job = VerticalJob.load(None, [*overrides, f"epochs={epochs}", "seed=3"])
    last = train(job, tmp_path / "run").metrics[-1]
    assert last["test_accuracy"] >= reached, last


# Invalid arguments


@pytest.mark.parametrize(("name", "party"), [("mnist_halves", "bank"), ("tabular", "left")])
def test_an_unknown_party_is_one_sentence(name, party):
    with pytest.raises(InvalidValue, match=f"party = '{party}' is not one of leader"):
        build(name, None, 1).owned(party, "train")


def test_an_unknown_task_is_one_sentence():
    with pytest.raises(InvalidValue, match=r"task\.name = 'halves' is neither one of mnist_halves"):
        build("halves", None, 1)


def test_a_task_of_the_user_s_own(tmp_path, monkeypatch):
    (tmp_path / "own_vertical_task.py").write_text(
        "from fedveil.vertical.task import build\n"
        "def works(seed): return build('tabular', None, seed)\n"
        "def with_folder(folder, seed): return (folder, seed)\n"
        "def raises(seed): raise ValueError('no data today')\n"
        "def lacks(seed): return 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    try:
        assert build("own_vertical_task:works", None, 4).split_model().last.name == "top"
        for function, sentence in (
            ("raises", ": the function raised ValueError: no data today"),
            ("lacks", "returned a int without leader, followers, classes"),
            ("with_folder", "returned a tuple without leader"),
            ("missing", ": the module own_vertical_task has no missing$"),
        ):
            with pytest.raises(InvalidValue, match=sentence):
                build(f"own_vertical_task:{function}", None, 4)
    finally:
        sys.modules.pop("own_vertical_task", None)
    with pytest.raises(InvalidValue, match="there is no module nowhere_at_all, neither in"):
        build("nowhere_at_all:f", None, 4)


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        (lambda: Columns(np.array([1, 2, 1])), "the id 1 occurs 2 times"),
        (lambda: Columns(np.array([1.5])), "ids has dtype float64"),
        (lambda: Columns(np.array([[1]])), r"ids has dtype int64 and shape \(1, 1\)"),
        (lambda: Columns(np.arange(2), {"x": torch.ones(3)}), "x has 3 rows, but ids has 2"),
        (lambda: Columns(np.arange(2), labels=torch.ones(1)), "labels has 1 rows, but ids has 2"),
        (
            lambda: Columns(np.arange(2), {"labels": torch.ones(3)}, torch.ones(2)),
            "labels has 3 rows, but ids has 2",
        ),
    ],
)
def test_columns_that_do_not_fit_are_refused(columns, sentence):
    with pytest.raises(DataInvalid, match=sentence):
        columns()


def test_columns_may_be_empty_and_ids_texts():
    assert len(Columns(np.empty(0, np.int64))) == 0
    assert len(Columns(np.array(["a", "b"]), {"x": torch.ones(2)})) == 2


def test_initial_weights_of_parts_differ():
    made = [initial(1, name, lambda: torch.nn.Linear(3, 3)).weight for name in ("a", "b")]
    assert not torch.equal(*made)


def test_a_protocol_tells_a_task_from_something_else():
    assert not isinstance(SimpleNamespace(leader="x"), Task)
