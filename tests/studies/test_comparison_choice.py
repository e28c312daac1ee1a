"""The card that says which protection to take, and the sentence about unequal promises."""

from __future__ import annotations

import math
from pathlib import Path

from test_comparison_table import record

from comparing_parts import small_job
from fedveil.pages.read_run import ReadRun
from fedveil.studies.comparison import Setting
from fedveil.studies.comparison_choice import choice, decides_cost, side_by_side, unequal
from fedveil.studies.comparison_table import Line


def line(name: str, epsilon: float | None, *accuracies: float, spent: float = 1.999) -> Line:
    """Return a line with a run for each accuracy. Its first test has an accuracy of 0.3."""
    settings = {"protection": {"name": name}}
    runs = [
        ReadRun(
            Path("run"), settings,
            [
                record(n, value, epsilon_run_every_round=spent, delta_run_every_round=1e-5,
                       rests_on_server=name == "central_gaussian")
                for n, value in ((1, 0.3), (2, accuracy))
            ],
            (), [],
        )
        for accuracy in accuracies
    ]  # fmt: skip
    return Line(Setting(name, epsilon=epsilon), runs, ())


BARE = line("not_encrypt", None, 0.97, spent=math.inf)


def test_the_best_that_holds_against_the_server_is_taken() -> None:
    found = [BARE, line("dp_encrypt", 2.0, 0.4, 0.5), line("distributed_dp", 2.0, 0.86, 0.9),
             line("central_gaussian", 2.0, 0.9, 0.9)]  # fmt: skip
    card = choice(found)
    assert card is not None
    assert (card.value, card.tone) == ("distributed_dp at epsilon 2", "good")
    assert "take distributed_dp, epsilon 2: accuracy 88.0%." in card.text
    assert "holds against a server that follows the protocol" in card.text
    assert "central_gaussian reaches accuracy 90.0%, but trusts the server" in card.text
    assert "Without protection: accuracy 97.0%." in card.text


def test_a_diverged_run_is_never_taken() -> None:
    found = [line("rr", 2.0, 0.99, math.nan), line("oue", 2.0, 0.4, 0.45)]
    card = choice(found)
    assert card is not None
    assert card.value == "oue at epsilon 2"
    lost = choice([line("rr", 2.0, math.nan)])
    assert lost is not None
    assert (lost.value, "no run has a result" in lost.text) == ("no result", True)


def test_the_best_of_an_error_is_the_smallest() -> None:
    """The metric of these runs is called accuracy, and yet it is an error."""
    found = [line("dp_encrypt", 2.0, 0.25, 0.2), line("distributed_dp", 2.0, 0.1, 0.2),
             line("rr", 2.0, 0.29)]  # fmt: skip
    for tested in (test for one in found for run in one.runs for test in run.records):
        tested["measures"] = {"accuracy": "lower"}
    card = choice(found)
    assert card is not None
    assert card.value == "distributed_dp at epsilon 2"


def test_if_every_protection_trusts_the_server_the_best_of_all_is_taken() -> None:
    found = [line("central_gaussian", 2.0, 0.5), line("central_gaussian", 2.0, 0.75),
             line("central_gaussian", 2.0, 0.625)]  # fmt: skip
    card = choice(found)
    assert card is not None
    assert "take central_gaussian, epsilon 2: accuracy 75.0%." in card.text
    assert "but trusts the server" not in card.text


def test_the_card_is_as_good_as_its_promise_and_compares_with_finished_runs_alone() -> None:
    lost = line("not_encrypt", None, 0.97, math.nan, spent=math.inf)
    for spent, tone in ((1.999, "good"), (5.5, "fair"), (9.5, "poor")):
        card = choice([lost, line("rr", 9.0, 0.5, spent=spent)])
        assert card is not None
        assert (card.value, card.tone) == ("rr at epsilon 9", tone)
        assert "Without protection" not in card.text


def test_a_model_that_noise_has_undone_is_named_as_such() -> None:
    card = choice([line("oue", 2.0, 0.29, 0.3)])
    assert card is not None
    assert "these clients are too few for this epsilon" in card.text
    better = choice([line("oue", 2.0, 0.31)])
    assert better is not None
    assert "too few" not in better.text
    same = choice([line("oue", 2.0, 0.3)])
    assert same is not None
    assert "too few" in same.text


def a_run(*accuracies: float, loss: float | None = None) -> ReadRun:
    """Return a run with these accuracies, of which the last has the given loss."""
    records = [record(n, value, epsilon_run_every_round=1.999, rests_on_server=False)
               for n, value in enumerate(accuracies, start=1)]  # fmt: skip
    records[-1] |= {} if loss is None else {"loss": loss}
    return ReadRun(Path("run"), {"protection": {"name": "oue"}}, records, (), [])


def test_a_gain_is_from_the_first_test_to_the_last_one_and_needs_two() -> None:
    for runs, few in (
        ([a_run(0.3, 0.5, 0.4)], False),  # better than the first test, worse than the second
        ([a_run(0.5, 0.3, 0.4)], True),
        ([a_run(0.5), a_run(0.6, 0.3)], True),
        ([a_run(0.5), a_run(0.4)], False),
    ):
        card = choice([Line(Setting("oue", epsilon=2.0), runs, ())])
        assert card is not None
        assert ("too few" in card.text) == few


def test_a_setting_of_which_one_run_has_no_metric_or_no_loss_has_no_result() -> None:
    for lost in (a_run(0.5, math.nan, loss=0.1), a_run(0.5, 0.9, loss=math.nan)):
        card = choice([Line(Setting("oue", epsilon=2.0), [a_run(0.3, 0.8), lost], ())])
        assert card is not None
        assert "no run has a result" in card.text


def test_whom_a_protection_holds_against_follows_from_its_settings() -> None:
    alike = [line("central_gaussian", 2.0, 0.9), line("distributed_dp", 2.0, 0.9)]
    alike[1].runs[0].job["protection"]["distributed_dp"] = {"active_security": True}
    card = choice(alike)
    assert card is not None
    assert "against a server that lies, within" in card.text
    assert "but trusts the server" not in card.text  # it reaches no more


def test_unequal_promises_are_called_unequal() -> None:
    own = [line("rr", None, 0.9, spent=9.0), line("oue", None, 0.8, spent=2.0)]
    said = unequal(own)
    assert said is not None
    assert said.startswith("The promises are unequal")
    assert choice(own) is None
    assert unequal([BARE, line("rr", 2.0, 0.5), line("rr", 8.0, 0.6, spent=7.999)]) is None
    assert unequal([BARE, own[0]]) is None


def test_each_level_has_its_own_choice_and_the_first_is_the_cards() -> None:
    found = [line("oue", 8.0, 0.7, spent=7.5), line("rr", 8.0, 0.8, spent=7.25),
             line("oue", 2.0, 0.6), line("rr", 2.0, 0.5)]  # fmt: skip
    card = choice(found)
    assert card is not None
    assert (card.value, card.tone) == ("oue at epsilon 2", "good")
    assert card.text.index("take oue, epsilon 2:") < card.text.index("take rr, epsilon 8:")
    assert unequal([line("rr", None, 0.5, spent=9.0), *found]) is not None


def test_the_default_protections_are_all_that_differ_and_the_jobs() -> None:
    built_in = side_by_side(small_job())
    assert built_in[0] == "not_encrypt"
    assert "pw_encrypt" not in built_in
    assert len({*built_in}) == len(built_in) > 5
    masked = small_job(protection={"name": "pw_encrypt"}, clients={"number": 9, "fraction": 1.0})
    assert side_by_side(masked) == [*built_in, "pw_encrypt"]


def test_every_parameter_of_cost_decides_cost() -> None:
    for key in ("dp_encrypt.dp_eps", "distributed_dp.noise_multiplier",
                "distributed_dp.target_epsilon", "central_gaussian.noise_multiplier"):  # fmt: skip
        assert decides_cost(f"protection.{key}"), key
    for key in ("protection.dp_encrypt.dp_norm_clip", "training.lr", "protection.unary.cells"):
        assert not decides_cost(key)


def test_the_card_states_delta_and_noise_that_came_from_seeds() -> None:
    """The run without protection has a seed too, but its epsilon assumes nothing."""
    seeded = "The bounds assume randomness from the operating system, as in a deployment. "
    for randomness, says in (("simulation randomness", True), ("operating system", False)):
        taken = line("oue", 2.0, 0.5, 0.6)
        for run in taken.runs:
            run.last["randomness"] = randomness
        bare = line("not_encrypt", None, 0.97, spent=math.inf)
        bare.runs[0].last["randomness"] = "simulation randomness"
        card = choice([bare, taken])
        assert card is not None
        assert card.text.startswith("At epsilon 2 and delta 1e-05 (meaningful), take oue")
        assert (seeded in card.text) == says
        assert card.text.endswith("These runs used their seeds instead.") == says


def with_metric(name: str, *values: float, protection: str, epsilon: float | None) -> Line:
    """Return a line whose accuracy is 0.5, and whose metric `name` has these values."""
    spent = math.inf if epsilon is None else 1.999
    made = line(protection, epsilon, *([0.5] * len(values)), spent=spent)
    for run, value in zip(made.runs, values, strict=True):
        run.last.update({name: value, "measures": {"accuracy": "higher", name: "higher"}})
    return made


def test_a_model_that_only_guesses_is_not_recommended() -> None:
    """Without protection, the AUC is 0.9: a quarter of its gain over guessing is 0.1."""
    bare = with_metric("auc", 0.85, 0.95, protection="not_encrypt", epsilon=None)
    for aucs, learnt in (((0.52, 0.66), False), ((0.52, 0.69), True)):
        taken = with_metric("auc", *aucs, protection="rr", epsilon=2.0)
        card = choice([bare, taken])
        assert card is not None
        assert card.value == ("rr at epsilon 2" if learnt else "none of these")
        assert ("take none of these: no model is much better" in card.text) == (not learnt)
    bad = with_metric("auc", 0.52, 0.66, protection="rr", epsilon=2.0)
    alone = choice([bad])
    assert alone is not None
    assert "The best is that of rr, with accuracy 50.0% (AUC 0.590, where guessing has 0.5). " in (
        alone.text
    )
    assert "These clients are too few" in alone.text
    assert alone.tone == "poor"
    idle = choice([with_metric("auc", 0.54, protection="not_encrypt", epsilon=None), bad])
    assert idle is not None
    assert "rr at epsilon 2" in idle.value  # its AUC is well above that without protection
    lost = with_metric("auc", 0.53, protection="rr", epsilon=2.0)
    idle = choice([with_metric("auc", 0.54, protection="not_encrypt", epsilon=None), lost])
    assert idle is not None
    assert "The model does not learn without protection either" in idle.text


def test_a_better_accuracy_does_not_make_up_for_guessing() -> None:
    guessing = with_metric("auc", 0.51, protection="rr", epsilon=2.0)
    learnt = with_metric("auc", 0.8, protection="oue", epsilon=2.0)
    guessing.runs[0].last["accuracy"] = 0.75
    card = choice([guessing, learnt])
    assert card is not None
    assert card.value == "oue at epsilon 2"


def test_guessing_is_known_for_regression_and_unknown_for_other_metrics() -> None:
    for name, value, taken in (("r2", 0.2, False), ("r2", 0.3, True), ("speed", 0.2, True)):
        card = choice([with_metric(name, value, protection="rr", epsilon=2.0)])
        assert card is not None
        assert (card.value == "rr at epsilon 2") == taken


def test_seeds_that_do_not_tell_the_best_from_others_are_named() -> None:
    best, near = line("rr", 2.0, 0.5, 0.625), line("oue", 2.0, 0.375, 0.5)
    far, trusted = line("dp_encrypt", 2.0, 0.375, 0.4375), line("central_gaussian", 2.0, 0.5)
    card = choice([far, near, best, trusted])
    assert card is not None
    assert "take rr, epsilon 2: accuracy 56.2%" in card.text
    assert "Its lead over oue may be chance: the results of the seeds overlap." in card.text
    clear = choice([far, best, trusted])
    assert clear is not None
    assert "seed" not in clear.text
    single = choice([line("rr", 2.0, 0.625), line("oue", 2.0, 0.375)])
    assert single is not None
    assert "With one seed, its lead over the others may be chance." in single.text
    alone = choice([line("rr", 2.0, 0.625)])
    assert alone is not None
    assert "seed" not in alone.text
