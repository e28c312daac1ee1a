"""The attack on tokens, aimed at jobs of a small language model."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedveil.attacks.effort import Watch
from fedveil.attacks.split import tokens
from fedveil.attacks.split.split_target import SplitTarget
from fedveil.attacks.split.tokens import attack
from fedveil.entropy import Seeded
from fedveil.errors import AttackImpossible
from fedveil.privacy.finding import Finding
from fedveil.vertical import VerticalJob, train
from fedveil.vertical.blocks import PrivacySettings
from small_pangu import small_job

TEXT = b"".join(b"line %d says that %d is odd or even.\n" % (n, n * n % 97) for n in range(400))


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> SplitTarget:
    path = tmp_path_factory.mktemp("text") / "own" / "text.txt"
    return SplitTarget.of(small_job(path, TEXT, "tokenizer: bytes"))


def found(target: SplitTarget, **privacy: Any) -> Finding:
    return attack(target.under(PrivacySettings(**privacy)), "quick", Watch())


def test_the_attackers_own_text_is_that_of_no_training_example(target: SplitTarget) -> None:
    cut = tokens._Cut.of(target)
    held = target.rows["test"][target.split.leader].columns[cut.column]
    assert np.array_equal(cut.aside, held.reshape(-1).numpy())


def test_gradients_are_read_by_the_table_that_an_attacker_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tokens, "from_gradients", lambda *given: given)
    read: Any = SimpleNamespace(returned=("gradients", "hidden"), truth=np.zeros((2, 3)))
    cut: Any = SimpleNamespace(
        word="known", fresh=("own", "places"), target=SimpleNamespace(trained=True)
    )
    assert tokens._from_gradients(cut, read) == {
        "next tokens, from gradients": ("gradients", "hidden", "known", 6),
        "next tokens, own copy": ("gradients", "hidden", "own", 6),
    }
    cut.target.trained = False
    assert list(tokens._from_gradients(cut, read)) == ["next tokens, from gradients"]
    read.returned = None
    assert tokens._from_gradients(cut, read) == {}


def test_the_nearest_word_is_that_of_the_bits_or_of_the_numbers() -> None:
    """A value of zero is sent as 0."""
    word, position = np.array([[0.0, 4.0], [1.0, 0.5], [-3.0, 0.0]]), np.array([[0.0, 0.0]])
    numbers: Any = SimpleNamespace(bits=False, target=target_with(None), part="part")
    bits: Any = SimpleNamespace(bits=True, target=target_with(0.75), part="part")
    sent = np.array([[[0.0, 0.9]], [[0.9, 0.9]], [[0.1, 0.2]]])
    assert tokens._Cut.nearest(numbers, sent, word, position).ravel().tolist() == [1, 1, 1]
    assert tokens._Cut.nearest(bits, sent, word, position).ravel().tolist() == [0, 1, 2]
    eps: Any = tokens._Cut.eps
    assert (eps.fget(numbers), eps.fget(bits)) == (None, 0.75)


def target_with(eps: float | None) -> Any:
    privacy = None if eps is None else SimpleNamespace(eps=eps)
    return SimpleNamespace(crossing=lambda part: SimpleNamespace(privacy=privacy))


@pytest.mark.parametrize("reuse", [False, True, None])
def test_vectors_are_read_with_what_each_attacker_knows(
    monkeypatch: pytest.MonkeyPatch, reuse: bool | None
) -> None:
    """Own tables are from before the training, so half of their spread may be wrong.

    Without a protection, every report is sent anew.
    """
    monkeypatch.setattr(tokens, "likeliest", lambda *given: given)
    monkeypatch.setattr(tokens.Habits, "of", lambda aside, words: ("habits", aside, words))
    own = np.array([1.0, 5.0]), np.array([2.0])
    privacy = None if reuse is None else SimpleNamespace(reuse=reuse)
    crossing = SimpleNamespace(privacy=privacy)
    cut: Any = SimpleNamespace(
        word="word", position="position", fresh=own, aside="aside", shape=(7, 3), part="part",
        likelihood=lambda *given: given, nearest=lambda *given: given, by_text=lambda *given: given,
        target=SimpleNamespace(trained=True, crossing=lambda part: crossing),
    )  # fmt: skip
    read: Any = SimpleNamespace(first="first", together="all")
    found = tokens._from_vectors(cut, read, "pairs")  # type: ignore[arg-type]
    alone, habits = ("first", 1, "word", "position"), ("habits", "aside", 7)
    added = alone if reuse else ("all", 10, "word", "position")
    assert found == {
        "nearest, known table": ("first", "word", "position"),
        "likeliest, known table": (alone,),
        "likeliest with habits": (alone, habits),
        "likeliest of 10 reports": (added,),
        "likeliest of 10 reports with habits": (added, habits),
        "likeliest, known text": ("pairs", "first"),
        "likeliest, own copy": (("first", 1, *own, 1.0),),
    }


def test_known_text_is_all_that_its_attacker_has() -> None:
    """The text shows the first and the third of four words, near (6, 0) and (0, 6)."""
    heard = np.array([[[6.0, 0.0], [0.0, 6.0]], [[0.0, 5.0], [5.0, 1.0]]])
    pairs: Any = SimpleNamespace(first=heard, truth=np.array([[0, 2], [2, 0]]))
    cut: Any = SimpleNamespace(shape=(4, 2), bits=False, word=np.eye(4, 2))
    found = tokens._Cut.by_text(cut, pairs, np.array([[[5.0, 0.0], [0.0, 4.0], [4.0, 1.0]]]))
    assert found.tolist() == [[0, 2, 0]]
    cut.bits = True
    pairs.first = np.array([[[1.0, 0.0]] * 4, [[0.0, 1.0]] * 4])
    pairs.truth = np.repeat([[3], [1]], 4, axis=1)
    found = tokens._Cut.by_text(cut, pairs, np.array([[[0.0, 1.0]], [[1.0, 0.0]]]))
    assert found.tolist() == [[1], [3]]


def test_a_mean_of_reports_is_blurred_by_less(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[float, float]] = []

    def noted(sent: Any, known: Any, blur: float) -> Any:
        asked.append((float(sent.max()), blur))
        return np.zeros((len(sent), len(known)))

    monkeypatch.setattr(tokens, "number_likelihood", noted)
    cut: Any = SimpleNamespace(bits=False)
    tokens._Cut.likelihood(cut, np.full((5, 1, 2), 8.0), 4, np.ones((7, 2)), np.ones((1, 2)), 0.5)
    assert asked == [(2.0, 0.25)]


def test_without_noise_every_token_is_read(target: SplitTarget) -> None:
    for privacy in ({}, {"embedding_dp": {"eps": None}}):
        reached = found(target, **privacy)
        assert reached.epsilon == math.inf
        for figure in reached.figures:
            assert figure.value == pytest.approx(1, abs=0.05), figure.name


def test_at_eps_0_the_vectors_say_nothing_and_the_gradient_all(target: SplitTarget) -> None:
    reached = found(target, embedding_dp={"eps": 0})
    for name in ("nearest", "likeliest"):
        assert reached.figure(f"{name}, known table").value <= 3 / 257
    habitual = reached.figure("likeliest with habits")
    assert habitual.value == pytest.approx(habitual.guess, abs=0.05)
    assert reached.figure("next tokens, from gradients").value == 1
    assert reached.figure("best guess if codes were random").value == pytest.approx(
        1 / 257, abs=1e-9
    )
    assert (reached.epsilon, reached.protection) == (0, "embedding_dp")


def test_what_is_known_of_the_text_and_repetition_help(
    target: SplitTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[tuple[list[int], int]] = []
    hear = tokens._Heard.of

    def noted(cut: Any, positions: Any, reports: int, watch: Watch) -> Any:
        heard.append((positions.tolist(), reports))
        return hear(cut, positions, reports, watch)

    monkeypatch.setattr(tokens._Heard, "of", noted)
    reached = found(target, embedding_dp={"eps": 1.5})
    (attacked, many), (known, once) = heard
    assert (many, once, len(attacked), len(known)) == (10, 1, 16, 16)
    assert not {*attacked} & {*known}  # the known text is of other windows
    one, habits = (
        reached.figure(name).value for name in ("likeliest, known table", "likeliest with habits")
    )
    many = reached.figure("likeliest of 10 reports").value
    assert one < habits < 1
    assert one < many <= reached.figure("likeliest of 10 reports with habits").value
    assert one == pytest.approx(reached.figure("nearest, known table").value, abs=0.02)
    assert reached.settings["windows"] == 16
    under = target.under(PrivacySettings(embedding_dp={"eps": 1.5}))
    assert (reached.epsilon, reached.delta) == under.promised("embedding", 10)
    assert reached.delta == under.job.privacy.delta > 0
    words = target.rows["train"][target.split.leader]
    drawn = Seeded(0, "tokens").generator().permutation(target.examples)[:16]
    (column,) = target.split.by_name["embedding"].columns
    aside = target.rows["test"][target.split.leader].columns[column].numpy()
    common = np.bincount(aside.ravel()).argmax()
    assert words.labels is not None
    read, following = words.columns[column].numpy()[drawn], words.labels.numpy()[drawn]
    figure = reached.figure("likeliest, known text")
    assert (figure.guess, figure.cases) == ((read == common).mean(), read.size)
    assert reached.figure("next tokens, from gradients").guess == (following == common).mean()


def test_no_gradient_comes_back_where_the_job_says_so(target: SplitTarget) -> None:
    """The embedding's does not; the head's goes to the layers' owner all the same."""
    reached = found(target, embedding_dp={"eps": 0, "gradient": "none"})
    assert reached.figure("next tokens, from gradients").value == 1


def test_a_report_that_is_sent_again_tells_nothing_more(target: SplitTarget) -> None:
    reached = found(target, embedding_dp={"eps": 1.5, "gradient": "none", "reuse": True})
    one, many = (
        reached.figure(name).value for name in ("likeliest, known table", "likeliest of 10 reports")
    )
    assert one == many < 1
    assert reached.epsilon < found(target, embedding_dp={"eps": 1.5}).epsilon


def test_a_runs_tables_are_read_by_a_copy_from_before_it(tmp_path: Path) -> None:
    job = small_job(tmp_path / "own" / "text.txt", TEXT, "tokenizer: bytes", "epochs=1")
    run = train(job, tmp_path / "run")
    reached = attack(SplitTarget.of_run(run.folder), "quick", Watch())
    assert reached.figure("nearest, known table").value == 1
    assert reached.figure("likeliest, own copy").value > 0.9
    assert reached.figure("next tokens, from gradients").value == 1
    assert reached.figure("next tokens, own copy").value > 0.5


def test_a_task_without_an_embedding_that_crosses_is_refused() -> None:
    with pytest.raises(AttackImpossible, match="tokens are read where a language model's embed"):
        attack(SplitTarget.of(VerticalJob(task={"name": "tabular"})), "quick", Watch())


def test_all_values_of_all_positions_are_paid_for(target: SplitTarget) -> None:
    under = target.under(PrivacySettings(embedding_dp={"eps": 1.5}, delta=0))
    length, width = under.crossing("embedding").output
    assert length != width
    assert under.promised("embedding", 3).epsilon == pytest.approx(3 * length * width * 0.75)
