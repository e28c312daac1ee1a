"""Membership of texts: the scores of a model that predicts tokens, and whose texts are members."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedveil.attacks.effort import Watch
from fedveil.attacks.membership import report_scores
from fedveil.attacks.membership.answer_scores import rmia_of_texts
from fedveil.attacks.membership.membership import METHODS, TEXT_METHODS, Case, _of_pieces, attack
from fedveil.attacks.membership.model_answers import Answers, answers
from fedveil.attacks.membership.references import References, halves
from fedveil.attacks.membership.report_scores import ReportScores
from fedveil.attacks.membership.shadow_runs import Pool
from fedveil.attacks.target import Target
from fedveil.base.array_types import Array, Int64s
from fedveil.base.example_arrays import IGNORED, ragged
from fedveil.data.examples import Examples, make_dataset
from fedveil.engine.cohorts import Cohorts
from fedveil.entropy import Seeded
from fedveil.entry.simulation import simulate
from fedveil.errors import AttackImpossible
from fedveil.federated.job import Job
from fedveil.learning.models import transformer
from fedveil.learning.weight_layout import Layout
from fedveil.privacy.finding import Finding
from fedveil.protections.reading import Reading
from phrase_parts import CLIENTS, EACH, TOKENS, pairs

#: Lengths of five texts. None fills the rows of `padded`.
LENGTHS, WIDTH, WORDS = (3, 6, 2, 5, 4), 7, 11


def job(*more: str) -> Job:
    return Job.load(None, [
        "data.name=phrase_parts:data", "data.split=by_client", "model=phrase_parts:pairs",
        "task=next_token", "clients.fraction=1.0", "rounds=3", "seed=3",
        "training={epochs: 6, batch_size: 4, lr: 3.0}", "simulation.workers=0", *more,
    ])  # fmt: skip


def padded(filling: int, width: int = WIDTH) -> tuple[Int64s, Int64s]:
    """Five texts in rows of `width`. The second text has a token inside that is no target."""
    draw = np.random.default_rng(8)
    x = np.full((len(LENGTHS), width), filling, np.int64)
    y = np.full((len(LENGTHS), width), IGNORED, np.int64)
    for i, length in enumerate(LENGTHS):
        x[i, :length], y[i, :length] = draw.integers(0, WORDS, (2, length))
    y[1, 2] = IGNORED
    return x, y


def causal(width: int = WIDTH) -> nn.Module:
    torch.manual_seed(3)
    model = transformer((width,), WORDS)
    with torch.no_grad():
        model[-1].weight.mul_(4)  # type: ignore[operator]  # unequal probabilities
    return model.eval()


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer = nn.Embedding(WORDS, 5), nn.LSTM(5, 6, batch_first=True)
        self.head = nn.Linear(6, WORDS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.layer(self.table(x))[0])
        return scores


class Attending(nn.Module):
    """One causal attention layer, as the library transformers computes it."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.mix = nn.Embedding(WORDS, 8), nn.Linear(8, 24)
        self.head = nn.Linear(8, WORDS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.mix(self.table(x)).reshape(*x.shape, 3, 2, 4).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
        scores: torch.Tensor = self.head(mixed.transpose(1, 2).flatten(2))
        return scores


def logs(model: nn.Module, x: Int64s) -> Array:
    with torch.no_grad():
        found: Array = torch.log_softmax(model(torch.from_numpy(x)).double(), 2).numpy()
    return found


def test_a_texts_values_are_means_over_its_tokens_alone() -> None:
    """Computed text by text, token by token, without the padding."""
    model, (x, y) = causal(), padded(filling=4)
    found = answers(model, x, y)
    for i, length in enumerate(LENGTHS):
        rows = logs(model, x[i : i + 1, :length])[0]
        places = [at for at in range(length) if y[i, at] != IGNORED]
        mean = np.mean([rows[at, y[i, at]] for at in places])
        assert found.truth[i] == pytest.approx(mean, abs=1e-5)
        p = math.exp(mean)
        assert found.margin[i] == pytest.approx(math.log(p / (1 - p)), abs=1e-5)
        top = np.mean([np.sort(rows[at])[:-4:-1] for at in places], axis=0)
        assert found.top[i] == pytest.approx(top, abs=1e-5)
    assert found.columns.shape == (5, 5)


@pytest.mark.parametrize("make", [causal, Recurrent])
def test_padding_changes_no_score(make: Any) -> None:
    """Neither another filling, nor longer rows, nor rows of different lengths."""
    torch.manual_seed(1)
    model = make()
    x, y = padded(filling=4)
    items = [range(length) for length in LENGTHS]
    others = [
        padded(filling=9),
        (x[:, :6], y[:, :6]),
        tuple(ragged([part[i, list(at)] for i, at in enumerate(items)]) for part in (x, y)),
    ]
    scores = ReportScores(model, Layout(model).vector())
    size = Layout(model).dimension
    reading = Reading(np.random.default_rng(2).normal(0, 0.1, size), np.ones(size))
    for other in others:
        for one, same in zip(
            vars(answers(model, x, y)).values(), vars(answers(model, *other)).values(), strict=True
        ):
            assert same == pytest.approx(one, abs=1e-5)
        for scorer in (scores.along, scores.moved):
            assert scorer(reading, *other) == pytest.approx(scorer(reading, x, y), abs=1e-4)


def test_a_text_that_the_model_knows_by_heart_has_a_finite_margin() -> None:
    model = nn.Embedding(3, 3)
    with torch.no_grad():
        model.weight.copy_(90.0 * torch.eye(3))
    x = np.array([[0, 1, 2], [1, 1, 0]])
    found = answers(model, x, np.array([[0, 1, 2], [1, 2, IGNORED]]))
    assert found.truth == pytest.approx([0, -45])
    assert found.margin == pytest.approx([-math.log(np.finfo(float).eps), -45])


def test_a_text_without_a_token_to_predict_has_no_answer() -> None:
    x, y = padded(4)
    y[3] = IGNORED
    with pytest.raises(AttackImpossible, match="the model gives no finite answers"):
        answers(causal(), x, y)


def test_rmia_of_texts_counts_every_text_that_is_relatively_less_likely() -> None:
    draw = np.random.default_rng(9)
    held = halves(7, 4, Seeded(8, "held"))
    truths, asked = -draw.exponential(0.2, (4, 7)), -draw.exponential(0.2, 7)
    asked[5] = asked[4]
    truths[:, 5], held[:, 5] = truths[:, 4], held[:, 4]
    made = [Answers(row, row, row[:, None]) for row in [*truths, asked]]
    known = References(made[:4], held, np.zeros(7, np.int64))
    usual = [
        (np.exp(truths[held[:, i], i]).mean() + np.exp(truths[~held[:, i], i]).mean()) / 2
        for i in range(7)
    ]
    ratio = np.exp(asked) / usual
    expected = [sum(ratio[i] >= ratio[j] for j in range(7) if j != i) / 6 for i in range(7)]
    assert rmia_of_texts(made[4], known) == pytest.approx(expected)
    assert max(expected) == 1
    assert ratio.max() < 2 * ratio.min()  # with a gamma of 2, no text would beat another


@pytest.mark.parametrize("make", [causal, Recurrent, Attending])
def test_a_rate_is_the_inner_product_with_a_texts_gradient(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attention and recurrent layers have forward derivatives. Two batches, the last one short."""
    torch.manual_seed(6)
    model, (x, y) = make(), padded(filling=4)
    monkeypatch.setattr(report_scores, "_BATCH", 3)
    weights = Layout(model).vector()
    draw = np.random.default_rng(5)
    reading = Reading(draw.normal(size=len(weights)), draw.random(len(weights)))
    direction = reading.estimate * reading.weight
    direction /= np.linalg.norm(direction)
    expected = []
    for row, targets in zip(torch.from_numpy(x), torch.from_numpy(y), strict=True):
        loss = nn.functional.cross_entropy(model(row[None])[0], targets, ignore_index=IGNORED)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        expected.append(-np.concatenate([g.numpy().ravel() for g in gradients]) @ direction)
    before = torch.backends.mha.get_fastpath_enabled(), torch.backends.mkldnn.enabled
    # The slow way, a backward pass for each example, is for models without forward derivatives.
    monkeypatch.setattr(torch.autograd, "grad", lambda *_, **__: pytest.fail("a backward pass"))
    assert ReportScores(model, weights).along(reading, x, y) == pytest.approx(expected, abs=1e-5)
    assert (torch.backends.mha.get_fastpath_enabled(), torch.backends.mkldnn.enabled) == before


def test_the_fall_of_a_texts_loss_is_that_of_its_mean_loss() -> None:
    model, (x, y) = causal(), padded(filling=4)
    weights = Layout(model).vector()
    update = np.random.default_rng(7).normal(0, 0.02, len(weights)).astype(np.float32)
    before = answers(model, x, y).truth
    found = ReportScores(model, weights).moved(Reading.exact(update), x, y)
    Layout(model).write(torch.from_numpy(weights + update))
    assert found == pytest.approx(answers(model, x, y).truth - before, abs=1e-5)
    assert np.ptp(found) > 0.01


def test_reports_are_scored_in_batches_that_the_model_allows() -> None:
    model, sizes = causal(), list[int]()
    model.scored_at_once = 2  # type: ignore[assignment]
    x, y = padded(filling=4)
    scores = ReportScores(model, Layout(model).vector())
    scores._model.register_forward_hook(lambda layer, given, out: sizes.append(len(given[0])))
    scores.moved(Reading.exact(scores._weights), x, y)
    assert sizes == [2, 2, 2, 2, 1, 1]  # each batch before and after the update


# A job and a run.

AREAS = [f"{name} AUC" for name in METHODS]


def test_texts_of_an_overfitted_model_are_found() -> None:
    finding = attack(Target.of(job()), "quick", Watch())
    for name in (*AREAS, "report's gradient AUC", "report's loss AUC"):
        assert finding.figure(name).low > 0.6, name
    assert finding.figure("loss AUC").cases == CLIENTS * EACH
    assert finding.figure("median loss on members").high < finding.figure(
        "median loss on others"
    ).low  # fmt: skip
    assert not [f.name for f in finding.figures if "accuracy on" in f.name]


def test_reports_of_a_transformer_betray_its_texts() -> None:
    short = job(
        "model=transformer", "rounds=1", "training={epochs: 2, batch_size: 4, lr: 0.2}"
    )  # fmt: skip
    finding = attack(Target.of(short), "quick", Watch())
    for name in ("report's gradient AUC", "report's loss AUC"):
        assert finding.figure(name).low > 0.6, name
    assert {*AREAS} <= {figure.name for figure in finding.figures}
    assert "each piece of a long text is tested on its own" in finding.saw


@pytest.mark.parametrize(
    ("task", "trained", "cut"),
    [
        ("next_token", False, True), ("next_token", True, False),
        ("instruction", False, False), ("sequence_classification", False, False),
    ],
)  # fmt: skip
def test_only_pieces_of_one_text_can_be_on_both_sides(task: str, trained: bool, cut: bool) -> None:
    """Only the random half of an attacked job is drawn from single pieces."""
    target: Any = SimpleNamespace(trained=trained, job=SimpleNamespace(task=task))
    assert bool(_of_pieces(target)) == cut


def test_texts_are_found_in_a_sum_and_not_under_strong_noise() -> None:
    def found(*more: str) -> Finding:
        return attack(Target.of(job("simulation.masks=false", *more)), "quick", Watch())

    plain = found("protection=pw_encrypt", "protection.pw_encrypt.reconstruct_secrets_threshold=15")
    names = {figure.name for figure in plain.figures}
    assert not [name for name in names if name.startswith("report's")]
    for name in ("sum's gradient AUC", "sum's loss AUC", "client AUC", "online LiRA AUC"):
        assert plain.figure(name).low > 0.6, name
    noised = found(
        "protection=distributed_dp", "protection.distributed_dp.target_epsilon=0.5",
        "protection.distributed_dp.clip=0.5",
    )  # fmt: skip
    for name in (*AREAS, "sum's gradient AUC", "sum's loss AUC"):
        assert noised.figure(name).low < 0.5 < noised.figure(name).high, name


def test_an_untrained_model_betrays_no_text() -> None:
    case = Case.of(Target.of(job()), 4, Seeded(2, "case"), Watch())
    torch.manual_seed(7)
    found = {f.name: f for f in replace(case, model=pairs(TOKENS)).on_model()}
    for name in AREAS:
        assert found[name].low < 0.5 < found[name].high, name
    assert {f.name for f in case.on_model()} == found.keys()


def test_texts_have_their_own_rmia_and_one_class() -> None:
    case = Case.of(Target.of(job("rounds=1")), 4, Seeded(2, "case"), Watch())
    given = answers(case.model, case.pool.x, case.pool.y)
    scores = TEXT_METHODS["RMIA"](given, case.references)
    other = METHODS["RMIA"](given, case.references)
    wins = [(s[case.members][:, None] > s[~case.members]).mean() for s in (scores, other)]
    ties = [(s[case.members][:, None] == s[~case.members]).mean() for s in (scores, other)]
    found = {f.name: f.value for f in case.on_model()}["RMIA AUC"]
    assert found == pytest.approx(wins[0] + ties[0] / 2)
    assert found != pytest.approx(wins[1] + ties[1] / 2)
    assert case.references.y.tolist() == [0] * (CLIENTS * EACH)


def test_members_are_whole_texts_of_clients_that_took_part(tmp_path: Path) -> None:
    """A fifth of 40 clients is drawn in each of two rounds."""
    few = job("clients.fraction=0.2", "rounds=2", "training={epochs: 1, batch_size: 4, lr: 3.0}")
    run = simulate(few, tmp_path / "run")
    target = Target.of_run(run.folder)
    drawn = {client for round in (1, 2) for client in Cohorts(target.job).draw(round)}
    assert 8 < len(drawn) < CLIENTS
    case = Case.of(target, 4, Seeded(4, "case"), Watch())
    train, test = target.dataset.train, target.dataset.test
    assert case.pool.x.shape == (CLIENTS * EACH + 30, train.x.shape[1])
    assert case.members.tolist() == [
        *np.isin(np.repeat(np.arange(CLIENTS), EACH), sorted(drawn)), *[False] * len(test)
    ]  # fmt: skip
    assert np.array_equal(case.pool.y, np.concatenate([train.y, test.y]))
    assert case.asked == (
        f"the members are the {len(drawn) * EACH} examples of {len(drawn)} of {CLIENTS} clients "
        "that took part"
    )
    found = {f.name: f.value for f in case.on_model()}
    given = -answers(run.model, case.pool.x, case.pool.y).truth
    assert found["median loss on members"] == np.median(given[case.members])
    assert found["median loss on others"] == np.median(given[~case.members])


def test_texts_of_different_lengths_are_in_one_pool() -> None:
    """The test texts are shorter than the training texts."""
    draw = np.random.default_rng(3)
    texts = [draw.integers(0, WORDS, length) for length in (9, 4, 6, 3, 5)]
    parts = ([np.array(t) for t in texts[:2]], None), (texts[2:], None)
    data = make_dataset("texts", *parts, targets="tokens", classes=WORDS)
    pool = Pool.everything(data)
    assert (len(pool), pool.of_tokens, pool.labels.tolist()) == (5, True, [0] * 5)
    torch.manual_seed(1)
    model = Recurrent()
    found = answers(model, pool.x, pool.y).truth
    for i, text in enumerate(texts):
        rows = logs(model, text[None, :-1])[0]
        assert found[i] == pytest.approx(np.mean(rows[np.arange(len(text) - 1), text[1:]]))


def test_texts_without_a_token_to_predict_are_left_out() -> None:
    target = Target.of(job())
    assert target.without_empty_texts() is target
    data = target.dataset
    assert data.owners is not None
    parts = [Examples(part.x, part.y.copy()) for part in (data.train, data.test)]
    lost = [EACH * 6, EACH * 6 + 3, EACH * 21]
    parts[0].y[lost], parts[1].y[4] = IGNORED, IGNORED
    parts[0].y[0, 1:] = IGNORED  # one target is left
    broken = replace(target, dataset=replace(data, train=parts[0], test=parts[1]))
    found = broken.without_empty_texts()
    assert len(found.dataset.train) == CLIENTS * EACH - 3
    assert np.array_equal(found.dataset.train.x, np.delete(data.train.x, lost, 0))
    assert np.array_equal(found.dataset.test.x, np.delete(data.test.x, 4, 0))
    assert np.array_equal(found.dataset.owners, np.delete(data.owners, lost))
    assert [len(found.rows(client)) for client in (5, 6, 21, 22)] == [
        EACH,
        EACH - 2,
        EACH - 1,
        EACH,
    ]
    rows = found.rows(22)
    assert np.array_equal(found.dataset.train.x[rows], data.train.x[EACH * 22 : EACH * 23])
    finding = attack(replace(broken, trained=True), "quick", Watch())
    assert finding.figure("loss AUC").cases == CLIENTS * EACH - 3 + 30 - 1


@pytest.mark.parametrize("part", ["training", "test"])
def test_texts_of_which_none_has_a_token_to_predict_are_refused(part: str) -> None:
    target = Target.of(job())
    data = target.dataset
    parts = {"training": data.train, "test": data.test}
    y = np.full_like(parts[part].y, IGNORED)
    parts[part] = Examples(parts[part].x, y)
    broken = replace(target, dataset=replace(data, train=parts["training"], test=parts["test"]))
    with pytest.raises(
        AttackImpossible, match=f"^none of the {len(y)} {part} texts has a token to predict, so"
    ):
        attack(broken, "quick", Watch())


def test_the_clients_need_a_text_with_a_token_to_predict() -> None:
    """The only text with such a token belongs to nobody."""
    target = Target.of(job())
    y = np.full_like(target.dataset.train.y, IGNORED)
    y[2] = target.dataset.train.y[2]
    train = Examples(target.dataset.train.x, y)
    others = target.partition.only(np.arange(len(y)) != 2)
    data = replace(target.dataset, train=train)
    broken = replace(target, dataset=data, partition=others)
    with pytest.raises(AttackImpossible, match=f"^none of the {len(y) - 1} training texts has"):
        broken.without_empty_texts()


def test_a_task_without_a_loss_per_text_is_refused() -> None:
    target = Target.of(job())
    for task in ("next_token", "instruction", "sequence_classification", "classification"):
        named = replace(target, job=target.job.model_copy(update={"task": task}))
        named.needs_classes("membership", of_texts=True)
    own = replace(target, job=target.job.model_copy(update={"task": "own:Task"}))
    with pytest.raises(
        AttackImpossible,
        match="task = classification or next_token or sequence_classification or instruction whose",
    ):
        attack(own, "quick", Watch())
    with pytest.raises(AttackImpossible, match=r"gradient .* task = classification whose examples"):
        target.needs_classes("gradient")


@pytest.mark.parametrize("part", ["train", "test"])
def test_an_empty_text_of_either_part_is_left_out(part: str) -> None:
    target = Target.of(job())
    examples = getattr(target.dataset, part)
    y = examples.y.copy()
    y[4] = IGNORED
    data = replace(target.dataset, **{part: Examples(examples.x, y)})
    found = replace(target, dataset=data).without_empty_texts().dataset
    lost = {
        name: len(getattr(data, name)) - len(getattr(found, name)) for name in ("train", "test")
    }
    assert lost == {"train": 0, "test": 0} | {part: 1}
