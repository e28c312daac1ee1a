"""The attack on labels, aimed at jobs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fedveil.attacks.effort import Watch
from fedveil.attacks.split import labels
from fedveil.attacks.split.labels import attack
from fedveil.attacks.split.split_target import SplitTarget
from fedveil.entropy import Seeded
from fedveil.errors import AttackImpossible
from fedveil.privacy.finding import Finding
from fedveil.vertical import VerticalJob
from fedveil.vertical.label_reading import by_norm
from fedveil.vertical.rows import Order


def found(privacy: dict[str, Any], **settings: Any) -> Finding:
    settings = {"task": {"name": "tabular"}, **settings}
    return attack(SplitTarget.of(VerticalJob(privacy=privacy, **settings)), "quick", Watch())


@pytest.fixture(scope="module")
def plain() -> Finding:
    return found({})


def test_two_classes_are_read_at_the_first_step_of_a_table(plain: Finding) -> None:
    assert plain.figure("step 1").value == 1
    assert plain.figure("no label known").value == 1
    assert plain.figure("10 labels known").value == 1
    # the labels that the attacker was given are not counted as inferred
    assert plain.figure("10 labels known").cases == plain.figure("no label known").cases - 10
    assert plain.figure("direction AUC").value == 1
    assert plain.figure("norm AUC").cases - plain.figure("direction AUC").cases == 10
    assert plain.figure("step 1").guess == pytest.approx(0.627, abs=0.05)
    assert plain.protection == "none"
    assert plain.epsilon == np.inf
    assert plain.saw == "the steps' losses and gradients of bank_wide, bank_deep at bank"
    assert plain.settings["steps"] == 60
    assert not [f for f in plain.figures if "randomised" in f.name]  # nothing randomises it


def test_label_dp_leaves_its_formula() -> None:
    reached = found({"label_dp": {"eps": 1.0}})
    figure, best = map(reached.figure, ("no label known", "best guess from the randomised label"))
    assert figure.low <= best.value <= figure.high
    assert best.value == pytest.approx(np.e / (1 + np.e), abs=1e-12)
    assert reached.epsilon == 1
    assert reached.protection == "label_dp"


def test_under_label_dp_the_known_labels_name_clusters_and_no_directions() -> None:
    """Gradients follow the noisy labels, which differ from the known true ones."""
    given: Any = labels._FirstSteps([], np.ones(4), np.array([0, 1, 1, 0]))
    known = np.array([2, 0])
    follower: Any = SimpleNamespace(
        eps=0.5, blind=lambda run, which: run.true[which] + 5, classes=2, shares=np.ones(2) / 2
    )
    assert labels._Follower.guesses(follower, given, known).tolist() == [6, 5]


def test_without_a_gradient_the_most_common_class_is_guessed() -> None:
    reached = found({"embedding_dp": {"gradient": "none"}})
    for name in ("step 1", "10 labels known", "no label known"):
        figure = reached.figure(name)
        assert figure.value == figure.guess
    assert reached.figure("norm AUC").value == 0.5


def test_the_halves_of_digits_are_read() -> None:
    """At the first step all of them; later gradients are of examples that are nearly learnt."""
    reached = found({}, task={"name": "mnist_halves", "mnist_halves": {"width": 64}})
    assert reached.figure("step 1").value >= 0.99
    assert reached.figure("10 labels known").value > 0.85
    assert reached.figure("no label known").value > 0.85


def own_tables(folder: Path, rows: int) -> dict[str, Any]:
    """Return the task of two parties' tables, whose `rows` rows have a label of two classes."""
    values = Seeded(1, "table").generator().standard_normal((rows, 4)).round(3)
    files = {}
    for party, columns in (("leader", values[:, :2]), ("bank", values[:, 2:])):
        lines = [f"{i},{a},{b},{int(values[i].sum() > 0)}" for i, (a, b) in enumerate(columns)]
        head = "id,a,b,label" if party == "leader" else "id,a,b,c"
        (folder / party).write_text("\n".join([head, *lines]) + "\n")
        files[party] = {"path": str(folder / party), "without": [] if party == "leader" else ["c"]}
    files["leader"]["label"] = "label"
    return {"name": "tables", "tables": {"files": files}}


def test_tables_of_the_parties_own_are_read(tmp_path: Path) -> None:
    reached = found({}, task=own_tables(tmp_path, 160))
    for name in ("step 1", "10 labels known", "no label known"):
        assert reached.figure(name).value == 1


def test_directions_tell_two_equally_common_classes_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(labels._Follower, "shares", np.array([0.5, 0.5]))
    monkeypatch.setattr(labels, "by_effort", lambda effort, quick, *more: 2)
    assert found({}, task=own_tables(tmp_path, 160)).figure("direction AUC").value == 1


def test_a_share_of_no_examples_is_no_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All labels of so small a table, and of so small a batch, are known to the attacker."""
    monkeypatch.setattr(labels, "by_effort", lambda effort, quick, *more: 6)
    reached = found({}, task=own_tables(tmp_path, 12), batch_size=2)
    for name in ("step 1", "10 labels known"):
        figure = reached.figure(name)
        assert np.isnan(figure.value)
        assert np.isnan(figure.low)
        assert figure.unmeasured == "there are no such examples"
    assert reached.figure("no label known").cases == 10


def follower_of(true: np.ndarray, classes: int, eps: float | None = None) -> labels._Follower:
    nothing: Any = None
    return labels._Follower(nothing, "bank", (), true, classes, eps)


def test_clusters_that_say_nothing_are_right_as_often_as_chance(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Named by the labels of all 600 examples, random clusters would beat 4 of 5 guesses."""
    draw, beats, rights = Seeded(3, "clusters").generator(), 0, []
    for _ in range(60):
        true, groups = draw.integers(0, 10, (2, 600))
        monkeypatch.setattr(labels, "partition", lambda *given, groups=groups: groups)
        follower, run = follower_of(true, 10), labels._FirstSteps([], np.ones(600), true)
        figure = follower.share("", follower.crossed(run), true, np.arange(600))
        beats += figure.low > figure.guess
        rights.append(figure.value)
    assert beats <= 5
    assert np.mean(rights) == pytest.approx(0.1, abs=0.005)


def test_each_half_of_the_examples_is_named_by_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    true = np.array([0, 0, 0, 1, 1, 1, 1, 0, 1])
    monkeypatch.setattr(labels, "partition", lambda *given: np.array([1, 1, 1, 0, 0, 0, 0, 1, 1]))
    run = labels._FirstSteps([], np.array([1.0] * 8 + [0.0]), true)
    # The example without a gradient gets the most common class, 1.
    assert follower_of(true, 2).crossed(run).tolist() == [0, 0, 0, 1, 1, 1, 1, 0, 1]


def test_a_follower_reads_its_own_gradients_alone() -> None:
    target = SplitTarget.of(VerticalJob(task="vertical_parts:bottoms"))
    follower = labels._Follower.of(target)
    assert (follower.party, follower.parts) == ("bank", ("left",))


def test_norms_add_up_over_windows_and_without_a_gradient_the_common_class_is_guessed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(labels, "_WINDOW", 1)
    rows = [np.array([[3.0, 4.0], [0.0, 0.0], [0.0, 2.0]]), np.array([[6.0, 8.0], [0.0, 1.0]])]
    came = [np.array([5, 8, 9]), np.array([9, 5])]
    received = [SimpleNamespace(rows=each, loss=None) for each in rows]
    steps = list(zip(came, received, strict=True))
    monkeypatch.setattr(labels._Follower, "looks", lambda self, crossed, examples: [crossed.rows])
    monkeypatch.setattr(labels._Follower, "shares", np.array([0.2, 0.5, 0.3]))
    target: Any = SimpleNamespace(begun=lambda many: iter(steps))
    follower = labels._Follower(target, "bank", (), np.arange(10), 3, None)
    begun = follower.begun(2, Watch())
    first, second = (by_norm([each]) for each in rows)
    assert begun.norms.tolist() == [first[0] + second[1], 0, first[2] + second[0]]
    monkeypatch.setattr(labels, "partition", lambda *_: np.array([2, 2, 0]))
    monkeypatch.setattr(labels, "named", lambda groups, *_: groups)
    monkeypatch.setattr(labels, "true_of", lambda told, *_: told)
    assert follower.blind(begun, np.array([0])).tolist() == [2, 1, 0]


def test_every_protection_of_labels_is_named() -> None:
    norm, drawn = {"label_protection": {"name": "max_norm"}}, {"label_dp": {"eps": 1.0}}
    for privacy, said in (
        ({}, "none"), (norm, "max_norm"), (drawn, "label_dp"), (drawn | norm, "label_dp, max_norm"),
    ):  # fmt: skip
        assert labels._protection(VerticalJob(privacy=privacy).privacy) == said


def test_labels_that_are_numbers_are_refused() -> None:
    with pytest.raises(AttackImpossible, match=r"are classes, and task\.name = tabular"):
        found({}, task={"name": "tabular", "tabular": {"table": "diabetes"}})


def test_steps_are_the_runs_own() -> None:
    """The first step is what the target plays alone; the second goes on from what it learnt."""
    target = SplitTarget.of(VerticalJob(task={"name": "tabular"}))
    steps = list(target.begun(2))
    order = Order(target.job.seed, target.examples, target.job.batch_size)
    for number, (positions, crossed) in enumerate(steps, start=1):
        assert np.array_equal(positions, order.of_step(number))
        alone = target.crossed(positions, number).gradients["bank_deep"]
        assert bool((alone == crossed.gradients["bank_deep"]).all()) == (number == 1)


def test_gradients_add_up_and_change_between_the_halves() -> None:
    """Four steps, of which the last two are the later half. Each part is divided by its length."""
    came = [np.array(two) for two in ([0, 1], [2, 0], [1, 2], [0, 2])]
    wide = [[[3.0, 4.0], [0.0, 5.0]], [[0.0, 2.0], [2.0, 0.0]], np.zeros((2, 2)), [[3, 0], [3, 0]]]
    narrow = [[[7.0], [1.0]], [[-3.0], [-3.0]], [[2.0], [-2.0]], [[1.0], [1.0]]]
    looks = [[np.array(a), np.array(b)] for a, b in zip(wide, narrow, strict=True)]
    added = labels._added(came, looks, 3)
    assert added["sum"] == pytest.approx(
        np.array([[0.6 + 1 + 1, 0.8, 1.4 - 1 + 1], [0, 1, 0.2 + 1], [1, 1, -1 - 1 + 1]])
    )
    early, later = [[0.8, 0.4, 0.2], [0, 1, 0.2], [0, 1, -1]], [[1, 0, 1], [0, 0, 1], [0.5, 0, 0]]
    assert added["change"] == pytest.approx(np.subtract(later, early))
    once = labels._added(
        [np.array([0, 1]), np.array([1])], [[np.ones((2, 1))], [-np.ones((1, 1))]], 2
    )
    assert once["change"].tolist() == [[0], [-2]]  # the first is in no later step


def test_the_better_sense_of_scores_counts() -> None:
    scores = np.array([5.0, 4.0, 1.0, 2.0, 4.5])
    rare = np.array([True, False, False, False, True])
    for turned in (scores, -scores):
        found = labels._either_way("x AUC", turned, rare)
        assert (found.name, found.value, found.cases) == ("x AUC", 1, 5)
    assert labels._either_way("x", scores, ~rare).value == 1


def test_scores_that_say_nothing_rarely_beat_chance_either_way() -> None:
    """At most 2.5% would be right, and with intervals of 95% it is 5%."""
    drawn = np.random.default_rng(7)
    rare = np.arange(150) < 40
    lows = [labels._either_way("x", drawn.normal(size=150), rare).low for _ in range(3000)]
    assert np.mean(np.array(lows) > 0.5) < 0.034


@pytest.mark.parametrize(
    ("score", "name"),
    [("by_known", "direction AUC"), ("by_norm", "norm AUC"), ("losses_of_examples", "losses AUC")],
)
def test_scores_that_rank_the_rare_class_last_leak_as_much(
    score: str, name: str, plain: Finding, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = getattr(labels, score)
    monkeypatch.setattr(labels, score, lambda *given: -real(*given))
    assert found({}).figure(name) == plain.figure(name)
    assert plain.figure(name).value > 0.5


def test_known_labels_are_spread_over_the_classes() -> None:
    classes = np.array([0] * 6 + [1] * 2 + [2])
    drawn = np.random.default_rng(1)
    assert sorted(classes[labels._spread(classes, 3, drawn)]) == [0, 1, 2]
    assert sorted(classes[labels._spread(classes, 7, drawn)]) == [0, 0, 0, 0, 1, 1, 2]


def test_only_labels_that_were_not_given_are_judged_in_each_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every known label is guessed wrong, all others in the first of three batches right."""
    follower = labels._Follower.of(SplitTarget.of(VerticalJob(task={"name": "tabular"})))
    size, batches = follower.target.job.batch_size, 0

    def guesses(self: object, run: labels._FirstSteps, known: np.ndarray) -> np.ndarray:
        nonlocal batches
        batches += 1
        found = run.true.copy() if batches == 1 else 1 - run.true
        found[known] = 1 - run.true[known]
        return found

    monkeypatch.setattr(labels._Follower, "guesses", guesses)
    figure = labels._first_step(follower, 3, Watch())
    assert (figure.value, figure.cases) == (1 / 3, 3 * (size - 2))


def test_guessing_one_class_is_right_for_the_examples_of_that_class() -> None:
    follower = labels._Follower.of(SplitTarget.of(VerticalJob(task={"name": "tabular"})))
    true = np.array([0, 1, 1, 1, 0, 0])
    figure = follower.share("x", np.array([0, 1, 0, 0, 0, 1]), true, np.array([0, 1, 3]))
    assert follower.shares.argmax() == 1
    assert (figure.value, figure.guess, figure.cases) == (2 / 3, 2 / 3, 3)
    figure = follower.share("x", np.zeros(6, int), true, np.array([0, 1, 4, 5]))
    assert (figure.value, figure.guess) == (3 / 4, 1 / 4)


def test_at_the_first_step_one_label_of_each_class_is_known() -> None:
    """Two batches of six examples and two classes: four labels of each batch are inferred."""
    follower: Any = SimpleNamespace(
        target=SimpleNamespace(job=SimpleNamespace(batch_size=6), crossed=lambda positions: None),
        true=np.arange(40) % 2, classes=2, looks=lambda crossed, count: [np.ones((count, 3))],
        guesses=lambda run, known: 1 - run.true,
        share=lambda name, guesses, true, of, group: (len(of), group.tolist()),
    )  # fmt: skip
    assert labels._first_step(follower, 2, Watch()) == (2 * (6 - 2), [0] * 4 + [1] * 4)


def test_examples_that_were_guessed_together_widen_the_interval() -> None:
    """A batch in which two names are exchanged is wrong as a whole."""
    follower: Any = SimpleNamespace(shares=np.array([0.5, 0.5]))
    true, guesses = np.arange(40) % 2, np.arange(40) % 2
    guesses[30:] = 1 - guesses[30:]
    of, batch = np.arange(40), np.repeat(np.arange(4), 10)
    together, alone = (
        labels._Follower.share(follower, "s", guesses, true, of, group) for group in (batch, None)
    )
    assert together.value == alone.value == 0.75
    assert (together.cases, alone.cases) == (40, 40)
    assert together.low < 0.2 < 0.5 < alone.low


def test_the_attacker_is_the_first_follower_that_receives_a_gradient() -> None:
    """Not one whose output returns none, and not the leader."""
    crossings = [
        SimpleNamespace(sender=sender, gradient=gradient, part=part)
        for sender, gradient, part in (
            ("shop", False, "a"), ("lead", True, "b"), ("bank", True, "c"), ("bank", True, "d"),
        )
    ]  # fmt: skip
    split = SimpleNamespace(followers=("shop", "bank"), leader="lead", crossings=crossings)
    rows = {"train": {"lead": SimpleNamespace(labels=torch.arange(3))}}
    target: Any = SimpleNamespace(
        task=SimpleNamespace(classes=3), split=split, rows=rows,
        job=SimpleNamespace(privacy=SimpleNamespace(label_dp=None)),
    )  # fmt: skip
    found = labels._Follower.of(target)
    assert (found.party, found.parts) == ("bank", ("c", "d"))
