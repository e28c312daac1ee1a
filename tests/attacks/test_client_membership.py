"""Clients that took part are told from others: by reports and by sums, and not through noise."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import stats
from test_membership import EXAMPLES, job, owned

from fedveil.attacks.effort import Watch
from fedveil.attacks.membership import client_membership
from fedveil.attacks.membership.client_evidence import Evidence, View, log_odds, views
from fedveil.attacks.membership.client_membership import Game, attack
from fedveil.attacks.server_view import Seen
from fedveil.attacks.target import Target
from fedveil.base.array_types import Float64s
from fedveil.engine.cohorts import Cohorts
from fedveil.entropy import Seeded
from fedveil.errors import AttackImpossible
from fedveil.privacy.finding import Finding
from fedveil.privacy.guarantee_strength import Figure, attacker_wrong
from fedveil.protections.reading import Reading

CANDIDATES = np.array([[3.0, 0.0, 1.0], [-1.0, 2.0, 0.0], [0.0, -2.0, 5.0], [1.0, 1.0, -1.0]])


def view(estimate: list[float], share: float, scaled: bool = True) -> View:
    return View(Reading(np.array(estimate), np.ones(3), scaled), [0], share)


def test_the_evidence_is_the_ratio_of_two_normal_densities() -> None:
    """Worked out candidate by candidate, each against the mean of the others."""
    seen = np.array([0.6, -0.4, 2.0])
    along, expected = [], []
    for i, candidate in enumerate(CANDIDATES):
        rest = np.delete(CANDIDATES, i, axis=0).mean(axis=0)
        length = np.linalg.norm(candidate - rest)
        along.append((seen - rest) @ (candidate - rest) / length)
        expected.append(0.25 * length)
    spread = np.sqrt(np.mean((np.array(along) - np.array(expected) / 2) ** 2))
    ratio = stats.norm.logpdf(along, expected, spread) - stats.norm.logpdf(along, 0, spread)
    assert log_odds(view(list(seen), 0.25), CANDIDATES) == pytest.approx(ratio)
    # A client that adds its update with probability 0.3 leaves the others' density in place.
    mixed = np.log(0.3 * np.exp(ratio) + 0.7)
    assert log_odds(view(list(seen), 0.25), CANDIDATES, 0.3) == pytest.approx(mixed)


def test_a_reading_without_scale_counts_by_its_direction() -> None:
    once = log_odds(view([1.0, 0.0, 0.5], 1.0, scaled=False), CANDIDATES)
    assert log_odds(view([9.0, 0.0, 4.5], 1.0, scaled=False), CANDIDATES) == pytest.approx(once)
    assert np.argmax(once) == 0


def test_entries_count_by_their_weight() -> None:
    """An entry of weight 0 is as good as absent."""
    reading = Reading(np.array([0.5, -1.0, 1e6]), np.array([2.0, 2.0, 0.0]))
    short = Reading(np.array([0.5, -1.0]), np.ones(2))
    found = log_odds(View(reading, [0], 0.5), CANDIDATES)
    assert found == pytest.approx(log_odds(View(short, [0], 0.5), CANDIDATES[:, :2]))


def test_candidates_that_are_all_alike_say_nothing() -> None:
    same = np.ones((3, 3))
    assert log_odds(view([1.0, 2.0, 3.0], 0.5), same).tolist() == [0, 0, 0]
    assert log_odds(view([1.0, 2.0, 3.0], 0.5, scaled=False), same).tolist() == [0, 0, 0]


@pytest.mark.parametrize("scaled", [True, False])
def test_a_report_that_reveals_nothing_says_nothing(scaled: bool) -> None:
    nothing = replace(Reading.nothing(3), scaled=scaled)
    assert log_odds(View(nothing, [0], 0.5), CANDIDATES).tolist() == [0, 0, 0, 0]


def test_a_view_is_a_report_or_the_mean_of_all() -> None:
    empty, mean = Reading.nothing(2), np.array([1.0, 2.0])
    (summed,) = views(Seen([empty, empty], mean), [4, 7], turn_rate=0.5)
    assert (summed.clients, summed.share) == ([4, 7], 1.0)
    assert summed.reading.estimate.tolist() == [1, 2]
    (rest,) = views(Seen([empty] * 3, mean, silent={1}), [4, 7, 9], turn_rate=0.25)
    assert (list(rest.clients), rest.share) == ([4, 9], 2.0)
    exact = Reading.exact(np.array([3, 4], np.float32))
    apart = views(Seen([exact, exact], mean), [4, 7])
    assert [(one.clients, one.share) for one in apart] == [([4], 1.0), ([7], 1.0)]
    assert len(views(Seen([empty, exact], mean), [4, 7])) == 2


def test_rounds_add_up_for_each_client_that_may_be_the_candidate() -> None:
    evidence = Evidence(3, 2)
    both, last = View(Reading.nothing(1), [0, 1], 0.5), View(Reading.nothing(1), [2], 1.0)
    evidence.add(both, np.array([1.0, -0.5]))
    evidence.add(both, np.array([0.2, 0.1]))
    evidence.add(last, np.array([2.0, 0.0]))
    ratios = np.exp([[1.2, -0.4], [1.2, -0.4], [2.0, 0.0]])
    assert evidence.scores == pytest.approx(np.log(ratios.mean(axis=0)))


def attacked(name: str, clients: int = 4, **settings: Any) -> Finding:
    protection = {"name": name, name: settings}
    made = job(
        protection=protection, rounds=2, clients={"number": clients, "fraction": 1.0},
        training={"epochs": 3, "batch_size": 10, "lr": 0.3},
        simulation={"workers": 0, "masks": False},  # which add nothing to a sum
    )  # fmt: skip
    return attack(Target.of(made), "quick", Watch())


def test_plain_reports_and_plain_sums_say_who_is_there() -> None:
    assert attacked("not_encrypt").figure("client AUC").low > 0.85
    summed = attacked("pw_encrypt", 6, reconstruct_secrets_threshold=4)
    assert summed.figure("client AUC").low > 0.75
    assert summed.figure("client balanced accuracy").low > 0.6
    assert summed.epsilon == np.inf


def test_noise_in_the_sum_leaves_chance_and_no_more_than_is_claimed() -> None:
    noisy = {"reconstruct_secrets_threshold": 3, "dropout_tolerance": 0.0}
    found = attacked("distributed_dp", target_epsilon=0.7, **noisy)
    area, right = found.figure("client AUC"), found.figure("client balanced accuracy")
    assert area.low < 0.5 < area.high
    assert right.low < 1 - attacker_wrong(found.epsilon, found.delta) < 0.69
    weak = attacked("distributed_dp", target_epsilon=500.0, **noisy)
    assert weak.figure("client AUC").low > 0.6
    assert weak.figure("client balanced accuracy").low < 1 - attacker_wrong(weak.epsilon)


def test_the_attacker_does_not_know_a_clients_randomness() -> None:
    """Its own update of a member differs from the member's."""
    target = Target.of(job())
    game = Game.of(target, 3, 1, Seeded(4, "game"))
    mine = game._candidates(1, target.weights, np.inf, Seeded(4, "game"))
    true = np.stack(game.present.updates(game.members, 1))
    assert (len(game.members), mine.shape) == (3, (6, len(target.weights)))
    assert np.abs(mine[:3] - true).max(axis=1).min() > 1e-4
    lengths: Float64s = np.linalg.norm(mine, axis=1)
    clipped = game._candidates(1, target.weights, 0.7 * lengths.max(), Seeded(4, "game"))
    assert np.linalg.norm(clipped, axis=1) == pytest.approx(np.minimum(lengths, 0.7 * max(lengths)))


def test_an_owner_is_there_with_all_examples_or_with_none() -> None:
    data = {"name": "test_membership:owned", "split": "by_client"}
    owned = job(data=data, clients={"fraction": 1.0})
    game = Game.of(Target.of(owned), 5, 1, Seeded(2, "game"))
    sides = [one.dataset.train.x for one in (game.present, game.absent)]
    assert [len(side) for side in sides] == [EXAMPLES // 2, EXAMPLES // 2]
    owners = Target.of(owned).dataset
    rows = {row.tobytes(): owner for row, owner in zip(owners.train.x, owners.owners, strict=True)}
    here, there = ({rows[row.tobytes()] for row in side} for side in sides)
    assert not here & there
    assert len(here) == len(there) == 2


def five_owners() -> dict[str, object]:
    parts = owned()
    return parts | {"client_ids": np.arange(EXAMPLES) % 5}


def test_as_many_strangers_are_asked_about_as_members() -> None:
    """Two of five owners take part, and three do not."""
    data = {"name": "test_client_membership:five_owners", "split": "by_client"}
    made = job(data=data, clients={"fraction": 1.0})
    game = Game.of(Target.of(made), 9, 1, Seeded(2, "game"))
    assert (game.present.partition.clients, game.absent.partition.clients) == (2, 3)
    assert len(game.members) == len(game.strangers) == 2
    assert len(Game.of(Target.of(job()), 3, 1, Seeded(2, "game")).strangers) == 3


def test_only_clients_that_were_drawn_are_members() -> None:
    """Two of ten clients are drawn in each of two rounds, at most four in all."""
    made = job(clients={"number": 10, "fraction": 0.2})
    game = Game.of(Target.of(made), 8, 2, Seeded(2, "game"))
    drawn = [Cohorts(game.present.job).draw(round) for round in (1, 2)]
    assert game.cohorts == drawn
    assert game.members == sorted({*drawn[0], *drawn[1]})
    assert len(game.strangers) == len(game.members)


def test_a_finding_claims_the_epsilon_of_the_rounds_that_were_played(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = Target.of(job(protection={"name": "dp_encrypt"}, rounds=9))
    monkeypatch.setattr(client_membership, "measured", lambda *_: ([], 3))
    finding = attack(target, "quick", Watch())
    assert (finding.epsilon, finding.delta) == target.promised(3)
    assert target.promised(1).epsilon < finding.epsilon < target.promised(9).epsilon
    assert finding.saw.startswith("3 rounds, ")
    assert finding.saw.endswith("every client that it asks about")


def test_an_adaptive_run_is_held_against_its_ledger_and_a_job_against_a_forecast(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The ledger knows what six rounds cost together, and the attack plays three of them."""
    settings = {"name": "rr", "unary": {"eps": 0.01, "adaptive": True}}
    target = Target.of(job(protection=settings, rounds=9))
    monkeypatch.setattr(client_membership, "measured", lambda *_: ([], 3))
    forecast = attack(target, "quick", Watch())
    assert (forecast.epsilon, forecast.delta) == target.promised(3)
    assert forecast.saw.startswith("3 rounds, ")
    assert forecast.saw.endswith(
        "(the epsilon is a forecast: the cost of a round depends on earlier rounds)"
    )
    stated = Figure(forecast.epsilon + 1.5, 1e-3)
    ran = replace(target, claim=stated, played=6)
    finding = attack(ran, "quick", Watch())
    assert (finding.epsilon, finding.delta) == stated
    assert finding.saw.startswith("3 rounds, ")
    assert finding.saw.endswith("(the epsilon is the ledger's, for all 6 rounds of the run)")
    assert ran.under("rr").claim == stated
    assert ran.under("dp_encrypt").claim is None


@pytest.mark.parametrize(("played", "rounds"), [(None, 4), (2, 2)])
def test_no_more_rounds_are_played_than_the_run_had(
    played: int | None, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def of(target: Target, most: int, rounds: int, entropy: Any) -> Any:
        asked.append(rounds)
        return SimpleNamespace(play=lambda source: (np.arange(40.0), np.arange(40.0)))

    monkeypatch.setattr(Game, "of", of)
    target = replace(Target.of(job(rounds=4)), played=played)
    assert client_membership.measured(target, "quick")[1] == rounds
    assert {*asked} == {rounds}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"clients": {"number": 1}}, "1 client took part in 4 rounds, and the other half"),
        (
            {
                "clients": {"number": None, "fraction": 1.0},
                "data": {"name": "test_client_membership:five_owners", "split": "by_client"},
                "protection": {"name": "pw_encrypt"},
            },
            "half of the clients must take part without the others, .* at least 3",
        ),
        (
            {
                "privacy": {"unit": "example"},
                "training": {"sampling_rate": 0.5, "batch_size": 10, "lr": 0.1},
                "protection": {"name": "dp_encrypt"},
            },
            "under privacy.unit = example the ledger is about one example",
        ),
    ],
)
def test_impossible_attacks_say_why(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(AttackImpossible, match=why):
        attack(Target.of(job(**changes)), "quick", Watch())


def test_a_round_of_too_few_clients_for_a_sum_has_no_member(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn = [[6, 7], [0, 2, 3, 4]]
    monkeypatch.setattr(Cohorts, "draw", lambda self, round: drawn[round - 1])
    masked = {"name": "pw_encrypt", "pw_encrypt": {"reconstruct_secrets_threshold": 3}}
    made = job(clients={"number": 10, "fraction": 0.5}, protection=masked)
    game = Game.of(Target.of(made), 9, 2, Seeded(2, "game"))
    assert game.cohorts == [[], drawn[1]]
    assert game.members == drawn[1]


def test_the_evidence_counts_how_often_a_client_takes_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    game, rates = Game.of(Target.of(job()), 3, 1, Seeded(4, "game")), list[float]()
    protection = game.present.protection
    monkeypatch.setattr(protection, "context", replace(protection.context, turn_rate=0.3))

    def looked(seen: Seen, cohort: Any, turn_rate: float = 1.0) -> list[View]:
        rates.append(turn_rate)
        return views(seen, cohort, turn_rate)

    def odds(view: View, candidates: Float64s, turn_rate: float = 1.0) -> Float64s:
        rates.append(turn_rate)
        return log_odds(view, candidates, turn_rate)

    monkeypatch.setattr(client_membership, "views", looked)
    monkeypatch.setattr(client_membership, "log_odds", odds)
    game.play(Seeded(4, "play"))
    assert rates == [0.3] * (1 + len(game.cohorts[0]))


def test_the_server_knows_which_share_of_the_clients_a_round_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SCAFFOLD's server moves its variate by this share."""
    shares: list[float] = []

    def step(weights: Any, aggregate: Any, share: float) -> Any:
        shares.append(share)
        return weights

    monkeypatch.setattr(
        client_membership, "make_optimizer", lambda *given: SimpleNamespace(step=step)
    )
    game = Game.of(Target.of(job(clients={"number": 10, "fraction": 0.3})), 3, 2, Seeded(4))
    game.play(Seeded(4, "play"))
    assert shares == [0.3, 0.3]
