"""Planted phrases are found in a model without protection, and not under a strong one."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedveil.attacks import extraction
from fedveil.attacks.effort import Watch
from fedveil.attacks.extraction import BEGINNING, COPIES, SECRET, Phrases, exposures, planted
from fedveil.attacks.membership.shadow_runs import Rehearsal
from fedveil.attacks.target import Target
from fedveil.base.example_arrays import ragged
from fedveil.engine.assembly import make_partition
from fedveil.engine.cohorts import Cohorts
from fedveil.entropy import Seeded
from fedveil.errors import AttackImpossible
from fedveil.federated.job import Job
from fedveil.privacy.guarantee_strength import Figure
from phrase_parts import CLIENTS, EACH, LENGTH, TOKENS

ENTROPY = Seeded(9, "test")


def target(*more: str) -> Target:
    return Target.of(Job.load(None, [
        "data.name=phrase_parts:data", "data.split=by_client", "model=phrase_parts:pairs",
        "task=next_token", "clients.fraction=1.0", "rounds=8", "seed=3",
        "training={epochs: 6, batch_size: 4, lr: 3.0}", *more,
    ]))  # fmt: skip


def phrases(count: int = 8) -> Phrases:
    rows = np.random.default_rng(1).integers(0, TOKENS, (count, BEGINNING + SECRET))
    return Phrases(rows, np.arange(count) % 3, np.arange(TOKENS))


class Knows(nn.Module):
    """Predicts the next token of the rows that it was given, and others alike."""

    def __init__(self, rows: Any) -> None:
        super().__init__()
        self.rows = torch.from_numpy(rows)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = torch.zeros(*x.shape, TOKENS)
        for i, row in enumerate(x):
            for known in self.rows:
                for end in range(1, len(row) + 1):
                    if torch.equal(row[:end], known[:end]):
                        scores[i, end - 1, known[end]] = 9.0
        return scores


def test_a_model_that_knows_a_phrase_exposes_it_and_no_other() -> None:
    some = phrases(6)
    bits = exposures(Knows(some.rows[:3]), some, 63, ENTROPY)
    assert bits[:3].tolist() == [6.0] * 3
    assert bits[3:].tolist() == [0.0] * 3  # ties count against the attacker
    assert [extraction.extracted(Knows(some.rows[:3]), row) for row in some.rows] == [
        *[True] * 3,
        *[False] * 3,
    ]


def test_a_phrase_is_extracted_by_its_whole_secret_alone() -> None:
    row = phrases(1).rows[0]
    for place in range(BEGINNING, BEGINNING + SECRET):
        other = row.copy()
        other[place] = (row[place] + 1) % TOKENS
        assert not extraction.extracted(Knows(other[None]), row)


def test_an_untrained_model_exposes_one_bit_in_the_median() -> None:
    torch.manual_seed(2)
    model = nn.Sequential(nn.Embedding(TOKENS, 7), nn.Linear(7, TOKENS))
    bits = exposures(model, phrases(60), 63, ENTROPY)
    assert 0.5 < np.median(bits) < 1.7


def test_a_phrase_is_planted_at_one_client_as_often_as_it_says() -> None:
    made, some = target(), phrases()
    data, whose = planted(made, some, ENTROPY)
    owners = set[int]()
    for row, copies, owner in zip(some.rows, some.copies, whose, strict=True):
        there = (data.train.x[:, : len(row) - 1] == row[:-1]).all(1)
        assert there.sum() == copies
        found = {int(data.owners[i]) for i in np.flatnonzero(there)}  # type: ignore[index]
        assert found == ({int(owner)} if copies else set())
        assert (owner >= 0) == (copies > 0)
        assert not found & owners
        owners |= found
        for y in data.train.y[there]:
            assert y.tolist() == [*row[1:], *[-100] * (LENGTH - len(row) + 1)]
    same = (data.train.x == made.dataset.train.x).all(1)
    assert (~same).sum() == some.copies.sum()
    assert np.array_equal(made.dataset.train.x, target().dataset.train.x)


def test_a_phrase_is_at_one_client_of_the_run_whose_clients_hold_out_examples() -> None:
    made = target("evaluation.clients=0.2", "data.split=iid", f"clients.number={CLIENTS - 1}")
    some = phrases()
    data, _ = planted(made, some, ENTROPY)
    split = make_partition(made.job, data)
    assert len(data.train) < CLIENTS * EACH
    for row, copies in zip(some.rows, some.copies, strict=True):
        there = (data.train.x[:, : len(row) - 1] == row[:-1]).all(1)
        held = [int(there[split.of(client)].sum()) for client in range(split.clients)]
        assert sorted(held)[-1] == sum(held) == copies


def test_the_phrases_with_most_copies_are_at_the_clients_that_have_the_examples() -> None:
    """Three clients have four examples or more, and three phrases have four copies."""
    made = target("data.name=phrase_parts:uneven")
    some = replace(phrases(6), copies=np.array([1, 4, 0, 4, 1, 4]))
    data, whose = planted(made, some, ENTROPY)
    assert sorted(whose[some.copies == 4].tolist()) == [1, 3, 5]
    assert set(whose[some.copies == 1].tolist()) < {0, 2, 4}
    there = [(data.train.x[:, : len(row) - 1] == row[:-1]).all(1).sum() for row in some.rows]
    assert there == some.copies.tolist()
    more = replace(some, copies=np.array([1, 4, 4, 4, 1, 4]))
    with pytest.raises(AttackImpossible, match="needs 6 clients, half of them with 4 examples"):
        planted(made, more, ENTROPY)


def test_clients_that_are_drawn_get_phrases_first() -> None:
    made, some = target("clients.fraction=0.05", "rounds=2"), phrases()
    drawn = {client for round in (1, 2) for client in Cohorts(made.job).draw(round)}
    _, whose = planted(made, some, ENTROPY)
    assert 2 <= len(drawn) <= (some.copies > 0).sum()
    assert drawn < {int(owner) for owner in whose if owner >= 0}


def test_a_phrase_of_a_client_that_took_no_part_is_nobodys() -> None:
    some = replace(phrases(5), copies=np.array([0, 1, 4, 1, 4]))
    owners = np.array([-1, 7, 2, 3, 9])
    there = np.array([2, 3, 8], np.uint64)
    assert extraction.without_absent_owners(some, owners, there).copies.tolist() == [0, 0, 4, 1, 0]
    with pytest.raises(AttackImpossible, match=r"2 clients took part .* and no planted phrase was"):
        extraction.without_absent_owners(some, owners, there[1:])


def test_a_secret_is_scored_without_dropout() -> None:
    torch.manual_seed(5)
    model = nn.Sequential(nn.Embedding(TOKENS, 7), nn.Dropout(0.5), nn.Linear(7, TOKENS)).eval()
    rows = phrases(5).rows
    known = extraction.secret_losses(model, rows)
    assert extraction.secret_losses(model.train(), rows).tolist() == known.tolist()
    assert not extraction.extracted(model.train(), rows[0])
    assert not model.training


@pytest.mark.parametrize(
    ("task", "rows", "said"),
    [("classification", np.zeros((3, 40), np.int64), "this job's task is classification"),
     ("instruction", [np.zeros(40, np.int64), np.zeros(31, np.int64)], "rows of one length"),
     ("next_token", np.zeros((3, BEGINNING + SECRET - 2), np.int64), "but an example has")],
)  # fmt: skip
def test_phrases_are_planted_only_in_long_rows_of_one_length(
    task: str, rows: Any, said: str
) -> None:
    x = rows if isinstance(rows, np.ndarray) else ragged(rows)
    asked: Any = SimpleNamespace(
        job=SimpleNamespace(task=task), dataset=SimpleNamespace(train=SimpleNamespace(x=x))
    )
    with pytest.raises(AttackImpossible, match=said):
        extraction._check(asked)


def test_phrases_are_found_without_protection_and_not_under_a_strong_one() -> None:
    def found(*more: str) -> dict[str, Any]:
        made = target(*more)
        finding = extraction.attack(made, "quick", Watch())
        assert finding.epsilon == made.promised(made.job.rounds).epsilon
        return {figure.name: figure for figure in finding.figures}

    plain = found()
    strong = found(
        "protection=distributed_dp", "protection.distributed_dp.target_epsilon=1",
        "protection.distributed_dp.clip=0.5", "simulation.masks=false",
    )  # fmt: skip
    for of in ("1 copy", "4 copies"):
        assert plain[f"exposure after {of}"].value > 2.5
        assert plain[f"phrases after {of} AUC"].value > 0.9
        assert strong[f"exposure after {of}"].value < 1.9
    assert plain["exposure of phrases that nobody had"].value < 1.9


def test_an_adaptive_job_is_held_against_the_ledger_of_the_run_that_was_attacked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The run ended after 5 of its 8 rounds, and cost more than a forecast says."""
    adaptive = {"name": "rr", "unary": {"eps": 0.01, "adaptive": True}}
    made = target(f"protection={adaptive}")
    forecast = made.promised(5)
    stated = Figure(forecast.epsilon + 1.5, 1e-3)
    run = Rehearsal(made.model, np.arange(CLIENTS, dtype=np.uint64), 5, stated)
    monkeypatch.setattr(extraction, "rehearse", lambda target: run)
    monkeypatch.setattr(extraction, "exposures", lambda model, phrases, *_: phrases.copies)
    monkeypatch.setattr(extraction, "_figures", lambda *_: [])
    finding = extraction.attack(made, "quick", Watch())
    assert (finding.epsilon, finding.delta) == stated
    assert finding.saw.startswith("the model after 5 rounds, ")
    assert finding.saw.endswith("(the epsilon is the ledger's, for all 5 rounds of the run)")
    run = replace(run, claim=None)
    finding = extraction.attack(made, "quick", Watch())
    assert (finding.epsilon, finding.delta) == forecast


def test_what_cannot_be_attacked_is_told() -> None:
    with pytest.raises(AttackImpossible, match="this job's task is classification"):
        extraction.attack(Target.of(Job.load(None, ["model=logistic"])), "quick", Watch())
    few = target("data.split=iid", "clients.number=7")
    with pytest.raises(AttackImpossible, match="needs 16 clients, half of them with 4 examples"):
        extraction.attack(few, "quick", Watch())
    made = target()
    whole = made.dataset.train
    enough = replace(whole, x=whole.x[:, : BEGINNING + SECRET - 1])
    extraction._check(replace(made, dataset=replace(made.dataset, train=enough)))
    short = replace(whole, x=whole.x[:, :5])
    with pytest.raises(AttackImpossible, match="phrases of 9 tokens, but an example has 5"):
        extraction.attack(
            replace(made, dataset=replace(made.dataset, train=short)), "quick", Watch()
        )


def test_the_numbers_of_copies_fit_the_clients() -> None:
    assert max(COPIES) <= EACH
    assert CLIENTS >= 16


def test_the_loss_of_a_secret_is_that_of_its_tokens_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Computed row by row, in batches of 3 that do not divide the rows."""
    monkeypatch.setattr(extraction, "_AT_ONCE", 3)
    torch.manual_seed(4)
    model = nn.Sequential(nn.Embedding(TOKENS, 7), nn.Linear(7, TOKENS))
    rows = phrases(8).rows
    expected = []
    for row in torch.from_numpy(rows):
        logs = torch.log_softmax(model(row[None, :-1]).double(), dim=2)[0]
        expected.append(-sum(logs[at - 1, row[at]].item() for at in range(BEGINNING, len(row))))
    assert extraction.secret_losses(model, rows) == pytest.approx(expected, abs=1e-5)
    sizes: list[int] = []
    model.register_forward_hook(lambda layer, given, out: sizes.append(len(given[0])))
    model.scored_at_once = 2  # a large model's own limit
    assert extraction.secret_losses(model, rows) == pytest.approx(expected, abs=1e-5)
    assert sizes == [2] * 4


def test_phrases_are_drawn_for_each_number_of_copies_and_as_many_for_none() -> None:
    drawn = extraction._drawn(target().dataset, 3, ENTROPY)
    assert np.bincount(drawn.copies).tolist() == [6, 3, 0, 0, 3]
    assert drawn.rows.shape == (12, BEGINNING + SECRET)
    data = target().dataset
    public = replace(data.test, x=np.full_like(data.test.x, 5))
    known = extraction._drawn(replace(data, test=public), 3, ENTROPY)
    assert set(known.rows.ravel()) == set(known.tokens) == {5}  # no client's tokens


def test_each_number_of_copies_has_its_own_figures() -> None:
    """Two of three phrases with one copy are known to the model, and one of those with four."""
    some = phrases(8)
    some = replace(some, copies=np.array([1, 1, 1, 4, 4, 0, 0, 0]), tokens=np.arange(30))
    bits = np.array([3.0, 1.5, 8.0, 5.0, 2.5, 1.0, 4.0, 0.5])
    found = {f.name: f for f in extraction._figures(Knows(some.rows[[0, 2, 4, 6]]), some, bits)}
    assert found["exposure of phrases that nobody had"].value == 1.0
    once, often = (found[f"exposure after {of}"] for of in ("1 copy", "4 copies"))
    assert (once.value, often.value, once.guess) == (3.0, 3.75, 1.0)
    told = [found[f"extracted after {of}"] for of in ("1 copy", "4 copies")]
    assert [(f.value, f.cases, f.guess) for f in told] == [
        (2 / 3, 3, 30.0**-4),
        (1 / 2, 2, 30.0**-4),
    ]
    assert found["phrases after 1 copy AUC"].value == pytest.approx((2 + 2 + 3) / 9)
    assert found["phrases after 1 copy balanced accuracy"].value == pytest.approx(2 / 3)
