"""Cohorts that are drawn in secret: their law, rounds of nobody, and what only the models tell."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy import stats

import fedveil
from fedveil.engine.budget import project_job
from fedveil.engine.cohorts import Cohorts
from fedveil.engine.job_protection import make_protection
from fedveil.engine.other_accounts import other_accounts
from fedveil.errors import JobError
from fedveil.federated.job import Job
from fedveil.protections.catalog import POSITIONS

CENTRAL = {"name": "central_gaussian", "central_gaussian": {"noise_multiplier": 2.0}}
ONE_PHASE = [name for name, position in POSITIONS.items() if len(position.phases) == 1]


def job(number: int = 8, fraction: float = 0.3, **blocks: Any) -> Job:
    base: dict[str, Any] = {
        "name": "secret",
        "rounds": 4,
        "clients": {"number": number, "fraction": fraction, "sampling": "poisson"},
        "data": {"name": "parts:data"},
        "model": "parts:plain",
        "training": {"epochs": 1, "batch_size": 5, "lr": 0.2},
        "protection": CENTRAL,
        "simulation": {"workers": 0},
        "record": {"page": False},
    }
    return Job(**{**base, **blocks})


def test_clients_are_drawn_independently_with_the_stated_probability() -> None:
    cohorts = Cohorts(job(number=40, fraction=0.25))
    taken = np.zeros((4000, 40))
    for round in range(len(taken)):
        taken[round, cohorts.draw(round)] = 1
    sizes = np.bincount(taken.sum(axis=1).astype(int), minlength=41)[3:18]
    law = stats.binom.pmf(np.arange(3, 18), 40, 0.25)
    scale = sizes.sum() / law.sum()
    assert stats.chisquare(sizes, law * scale).pvalue > 1e-9
    each = taken.sum(axis=0)
    assert stats.chi2.sf(float(np.sum((each - 1000) ** 2 / 750)), 40) > 1e-9
    pairs = np.corrcoef(taken.T)[np.triu_indices(40, 1)]
    assert np.abs(pairs).max() < 6 / math.sqrt(4000)


def test_who_is_drawn_repeats_with_the_seed_and_is_nobodys_to_repeat_without() -> None:
    seeded, secure = (job(200, 0.5, privacy={"randomness": kind}) for kind in ("seeded", "secure"))
    assert Cohorts(seeded).draw(3) == Cohorts(seeded).draw(3) != Cohorts(seeded).draw(4)
    assert Cohorts(secure).draw(3) != Cohorts(secure).draw(3)
    assert Cohorts(secure).begun(3) == list(range(200))
    fixed = secure.model_copy(update={"clients": seeded.clients.model_copy(
        update={"sampling": "fixed"})})  # fmt: skip
    assert Cohorts(fixed).begun(3) == Cohorts(fixed).draw(3)
    assert len(Cohorts(fixed).draw(3)) == 100


@pytest.mark.parametrize("position", ONE_PHASE)
@pytest.mark.usefixtures("warm_workers")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_round_of_nobody_is_written_down_and_the_run_goes_on(
    position: str, workers: int, tmp_path: Path
) -> None:
    settings = job(6, 0.15, rounds=8, protection=position, simulation={"workers": workers})
    sizes = [len(Cohorts(settings).draw(number)) for number in range(1, 9)]
    assert 0 in sizes
    assert max(sizes) > settings.clients_per_round
    run = fedveil.simulate(settings, tmp_path / "run")
    assert [record["clients"] for record in run.metrics] == sizes
    assert [record["reports"] for record in run.metrics] == sizes
    for record, size in zip(run.metrics, sizes, strict=True):
        without_result = size == 0 and position != "central_gaussian"
        assert (record["void"] is not None) == without_result


def test_a_sum_of_nobody_is_noise_since_that_nobody_was_drawn_is_a_secret(tmp_path: Path) -> None:
    seeds = (job(6, 0.15, rounds=2, seed=seed) for seed in range(1000))
    settings = next(s for s in seeds if Cohorts(s).draw(1) and not Cohorts(s).draw(2))
    two = fedveil.simulate(settings, tmp_path / "two")
    one = fedveil.simulate(settings.model_copy(update={"rounds": 1}), tmp_path / "one")
    assert [r["reports"] for r in two.metrics] == [len(Cohorts(settings).draw(1)), 0]
    pairs = zip(one.model.parameters(), two.model.parameters(), strict=True)
    assert all(not np.any((a == b).numpy()) for a, b in pairs)


def test_the_divisor_is_what_is_expected_whoever_reports() -> None:
    """The mean's own divisor would tell how many were drawn."""
    from round_parts import ROUND, client_half, server_half

    made = make_protection(job(40, 0.25), 30)
    model = np.zeros(30, np.float32)
    update = np.full(30, 0.1, np.float32)
    moved = []
    for cohort in ([0], [0, 1], [], range(13)):  # 10 are expected
        server = server_half(made, cohort, model)
        for client in cohort:
            half = client_half(made, client, model)
            server.receive(client, half.respond({"round": ROUND}, update))
        server.advance()
        result = server.aggregate()
        assert result.reports == len(cohort)
        moved.append(result.update)
    for i, times in ((0, 1), (1, 2), (3, 13)):  # one seed's noise in all
        np.testing.assert_allclose(moved[i] - moved[2], times * 0.1 / 10, rtol=0.1)


def test_a_resumed_run_draws_the_same_cohorts_and_ends_with_the_same_bytes(tmp_path: Path) -> None:
    whole = fedveil.simulate(job(), tmp_path / "whole")
    part = fedveil.simulate(job(rounds=2), tmp_path / "part")
    resumed = fedveil.resume(part.folder, rounds=4)
    assert [r["clients"] for r in resumed.metrics] == [r["clients"] for r in whole.metrics]
    first, second = ((r.folder / "model.safetensors").read_bytes() for r in (whole, resumed))
    assert first == second


@pytest.mark.parametrize(("z", "fraction", "rounds"), [(1.0, 0.1, 100), (0.6, 0.02, 400)])
def test_what_only_the_models_tell_agrees_with_dp_accounting(
    z: float, fraction: float, rounds: int
) -> None:
    """Replacing one moves the sum by 2c: dp-accounting's is of vectors c and -c around what is left
    out, so that its sigma is in units of c."""
    block = {"name": "central_gaussian", "central_gaussian": {"noise_multiplier": z}}
    settings = job(1000, fraction, protection=block)
    lines = list(other_accounts(settings, make_protection(settings, 50), rounds))
    assert len(lines) == 3
    for line, rate, relation in (
        (lines[0], 1.0, NeighboringRelation.ADD_OR_REMOVE_ONE),
        (lines[1], fraction, NeighboringRelation.REPLACE_ONE),
        (lines[2], fraction, NeighboringRelation.ADD_OR_REMOVE_ONE),
    ):
        one = pld.from_gaussian_mechanism(
            2 * z, sampling_prob=rate, neighboring_relation=relation,
            value_discretization_interval=5e-4,  # 4e-5 of epsilon here, and a sixth of the time
        )  # fmt: skip
        wanted = one.self_compose(rounds).get_epsilon_for_delta(1e-5)
        assert line.epsilon == pytest.approx(wanted, rel=2e-3)
        assert line.delta == 1e-5
    assert lines[1].what == (
        f"an attacker who only gets the models, amplified by Poisson sampling at rate "
        f"{fraction:g}: {rounds} rounds"
    )
    assert "for comparison only" in lines[0].what
    assert "for comparison only" in lines[2].what


def test_the_ledgers_own_lines_are_not_amplified(tmp_path: Path) -> None:
    for kind in ("poisson", "fixed"):
        clients = {"number": 8, "fraction": 0.3, "sampling": kind}
        *own, _ = [line for line in project_job(job(clients=clients)) if "only" not in line.what]
        assert own[-1].epsilon == pytest.approx(1.9931, rel=1e-4)  # of a round
    run = fedveil.simulate(job(), tmp_path / "run")
    events = (run.folder / "events.log").read_text()
    assert len(run.others) == 3
    for line in run.others:
        assert str(line) in events


@pytest.mark.parametrize(
    ("blocks", "count"),
    [
        ({"protection": "not_encrypt"}, 0),
        ({"protection": "rr"}, 0),
        ({"protection": "dp_encrypt"}, 1),  # every report is noised: there is no sum to hide in
        ({"privacy": {"max_epsilon": 3.0}}, 1),  # when it ends the run tells of the cohorts
        ({"clients": {"number": 8, "fraction": 0.3}}, 1),
        ({}, 3),
    ],
)
def test_where_there_is_nothing_to_say_nothing_is(blocks: Any, count: int) -> None:
    settings = job(**blocks)
    assert len(list(other_accounts(settings, make_protection(settings, 50), 4))) == count


def test_rounds_of_known_size_are_not_made_for_secret_ones() -> None:
    with pytest.raises(
        JobError, match=r"clients\.sampling = poisson is refused under .*pw_encrypt"
    ):
        job(protection="pw_encrypt")
    by_example = {"privacy": {"unit": "example"}, "training": {"lr": 0.2, "sampling_rate": 0.1}}
    with pytest.raises(JobError, match=r"poisson is refused under privacy\.unit = example: it"):
        job(protection="distributed_dp", **by_example)


def test_all_clients_are_asked_where_each_takes_its_turn_in_secret() -> None:
    """So nobody's part in a round is hidden, although the randomness is secret."""
    shares = {"name": "distributed_dp", "distributed_dp": {"noise_multiplier": 2.0}}
    secret = job(protection=shares, privacy={"randomness": "secure"})
    assert secret.secret_turns
    assert Cohorts(secret).until(2) == list(range(secret.clients.number or 0))
    central = job(privacy={"randomness": "secure"})
    assert Cohorts(central).until(2) is None


def test_the_clients_of_the_first_rounds_are_in_the_order_of_their_numbers() -> None:
    """A set of a few large numbers has another order."""
    known = Cohorts(job(number=900, fraction=0.004, privacy={"randomness": "seeded"}))
    drawn = [known.draw(round) for round in (1, 2, 3)]
    assert known.until(2) == sorted({*drawn[0], *drawn[1]})
    assert known.until(3) == sorted({*drawn[0], *drawn[1], *drawn[2]}) != known.until(2)
