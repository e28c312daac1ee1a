"""central_gaussian: the report, the noise and its size, and the statement about trust."""

from __future__ import annotations

import math
import tracemalloc
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

import fedveil
from fedveil.attacks.target import Target
from fedveil.base.message import Message, decode, encode
from fedveil.base.packing import pack
from fedveil.engine.job_protection import make_protection
from fedveil.entropy import Secure, Seeded
from fedveil.errors import ClientWithheld, InvalidValue, JobError, ReportRejected
from fedveil.federated.job import Job
from fedveil.mechanisms.central_noise import CentralNoise
from fedveil.privacy.gaussian_curve import epsilon_for
from fedveil.privacy.grid_sensitivity import LARGEST
from fedveil.privacy.ledger import Ledger
from fedveil.privacy.loss import Gaussian
from fedveil.protections.base import JobContext, RoundContext
from fedveil.protections.catalog import POSITIONS, build
from fedveil.protections.central_gaussian import CentralGaussian, CentralGaussianSettings
from round_parts import ROUND, client_half, server_half

DIMENSION, CLIP = 4000, 0.5
MODEL = np.zeros(DIMENSION, np.float32)


def protection(**options: Any) -> CentralGaussian:
    known = {
        name: options.pop(name) for name in list(options) if name in JobContext.__annotations__
    }
    context = {"weighting": "equal", "dimension": DIMENSION, "clients_per_round": 5, "rounds": 10}
    settings = CentralGaussianSettings(**{"clip": CLIP, **options})
    return CentralGaussian(settings, JobContext(**{**context, **known}))


def updates(scales: tuple[float, ...] = (0.1, 0.4, 3.0, 50.0, 1e6)) -> dict[int, np.ndarray]:
    """Return two updates within the norm, and three far beyond it."""
    draw = Seeded(3, "updates").generator()
    rows = {c: draw.normal(size=DIMENSION) for c in range(len(scales))}
    return {c: (scales[c] * r / np.linalg.norm(r)).astype(np.float32) for c, r in rows.items()}


def report(made: CentralGaussian, client: int, update: np.ndarray) -> Message:
    half = client_half(made, client, MODEL)
    return decode(encode(half.respond({"round": ROUND}, update)))


def play(made: CentralGaussian, data: dict[int, np.ndarray]) -> Any:
    server = server_half(made, sorted(data), MODEL)
    for client, update in data.items():
        server.receive(client, report(made, client, update))
    server.advance()
    return server


def test_the_mean_is_that_of_clipped_updates_plus_the_stated_noise() -> None:
    data = updates()
    for z in (0.5, 3.0):
        server = play(protection(noise_multiplier=z), data)
        clipped = [u.astype(float) * min(1.0, CLIP / np.linalg.norm(u)) for u in data.values()]
        result = server.aggregate()
        noise = (result.update - np.mean(clipped, axis=0)) * 5 / (2 * CLIP * z)
        assert 1e-9 < stats.chi2.cdf(float(np.sum(noise**2)), DIMENSION) < 1 - 1e-9
        assert result.reports == 5


def test_no_entry_of_a_report_is_longer_than_the_clip() -> None:
    made = protection(noise_multiplier=0.5)
    assert made.form.limit**2 <= made.noise.limit < (made.form.limit + 1) ** 2


def test_the_noise_follows_its_law() -> None:
    """Many sums of zero updates: multiples of the step, binned at the quantiles of the normal
    law."""
    made = protection(noise_multiplier=1.0)
    noise = play(made, {0: MODEL}).aggregate().update
    assert np.array_equal(noise / made.noise.step, np.rint(noise / made.noise.step))
    counts = np.histogram(stats.norm.cdf(noise / (2 * CLIP)), 20, (0.0, 1.0))[0]
    assert stats.chisquare(counts).pvalue > 1e-9


def test_one_sum_is_noised_once() -> None:
    """Two noised sums of one round would cost twice as much."""
    server = play(protection(), updates())
    assert server.aggregate().update.tobytes() == server.aggregate().update.tobytes()


def test_one_client_moves_the_sum_by_at_most_twice_the_clip() -> None:
    made, data = protection(seeded=True, seed=1), updates()
    before = play(made, data).aggregate().update * 5
    after = play(made, {**data, 4: -data[4]}).aggregate().update * 5
    moved = float(np.linalg.norm(after - before))
    assert moved <= 2 * CLIP * (1 + 1e-12)
    assert moved == pytest.approx(2 * CLIP, rel=5e-2)


def test_no_report_is_longer_than_the_clip_in_exact_arithmetic() -> None:
    made = protection()
    for update in updates((0.1, 0.5, 0.50001, 7.0, 1e30)).values():
        multiples = made.read(report(made, 0, update))
        length = Fraction(int(multiples @ multiples)) * Fraction(made.noise.step) ** 2
        assert length <= Fraction(CLIP) ** 2
    assert float(length) == pytest.approx(CLIP**2, rel=0.1)


def longer(made: CentralGaussian) -> np.ndarray:
    """Return a vector within the range in every entry, but longer than the clip by one step."""
    multiples = np.zeros(DIMENSION, np.int64)
    multiples[0], multiples[1] = made.form.limit, math.isqrt(2 * made.form.limit) + 1
    assert int(multiples @ multiples) > made.noise.limit
    return multiples


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda m: {"round": 6}, "wrong round"),
        (lambda m: {"more": 1}, "fields are missing or unknown"),
        (lambda m: {"step": m.noise.step / 2}, "field step is not the step of this job's grid"),
        (lambda m: {"multiples": np.zeros(3, np.uint8)}, "field multiples has the wrong length"),
        (
            lambda m: {
                "multiples": pack(np.full(DIMENSION, m.form.limit + 1), -m.form.limit, m.form.width)
            },
            "field multiples holds a value beyond its range",
        ),
        (
            lambda m: {
                "multiples": pack(np.full(DIMENSION, m.form.limit), -m.form.limit, m.form.width)
            },
            "field multiples is longer than the clip",
        ),
        (
            lambda m: {"multiples": pack(longer(m), -m.form.limit, m.form.width)},
            "field multiples is longer than the clip",
        ),
    ],
)
def test_a_wrong_report_is_refused_and_changes_nothing(change: Any, reason: str) -> None:
    made = protection(seeded=True)
    data = updates((0.1, 3.0))
    alone = play(made, {0: data[0]}).aggregate()
    server = server_half(made, [0, 1], MODEL)
    server.receive(0, report(made, 0, data[0]))
    with pytest.raises(ReportRejected, match=f"refused: .*{reason}"):
        server.receive(1, {**report(made, 1, data[1]), **change(made)})
    server.advance()
    assert server.aggregate().update.tobytes() == alone.update.tobytes()


@pytest.mark.parametrize("place", [0, 65_536 + 7, 2 * 65_536 + 2])
def test_a_long_report_is_checked_in_every_part_and_added_without_a_copy(place: int) -> None:
    length = 2 * 65_536 + 3
    made, model = protection(dimension=length, seeded=True), np.zeros(length, np.float32)
    update = np.zeros(length, np.float32)
    update[[5, 65_536 + 5, -1]] = 0.01, -0.02, 0.03
    sent = client_half(made, 0, model).respond({"round": ROUND}, update)
    assert made.read(sent).tolist() == made.noise.clipped(update).tolist()
    server, multiples = server_half(made, [0, 1, 2], model), np.zeros(length, np.int64)
    multiples[place] = made.form.limit
    multiples[place - 1] = math.isqrt(2 * made.form.limit) + 1
    with pytest.raises(ReportRejected, match="longer than the clip"):
        server.receive(1, {**sent, "multiples": pack(multiples, -made.form.limit, made.form.width)})
    server.receive(2, sent)  # compiles
    assert server._sum.tolist() == made.noise.clipped(update).tolist()
    tracemalloc.start()
    server.receive(0, sent)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 3 * 4 * 65_536
    assert server._sum.tolist() == (2 * made.noise.clipped(update)).tolist()


def test_a_client_withholds_what_is_not_finite() -> None:
    half = client_half(protection(), 0, MODEL)
    with pytest.raises(ClientWithheld, match="update holds NaN or infinity"):
        half.respond({"round": ROUND}, np.full(DIMENSION, np.nan, np.float32))


def test_the_noise_is_the_systems_unless_the_jobs_randomness_is_seeded() -> None:
    assert isinstance(protection().noise_entropy(1), Secure)
    assert isinstance(protection(simulated=False).noise_entropy(1), Secure)
    made = protection(seeded=True, seed=4)
    words = [made.noise_entropy(number).words(4).tolist() for number in (1, 1, 2)]
    assert words[0] == words[1] != words[2]


def test_what_it_costs_is_one_gaussian_release_of_the_multiplier() -> None:
    [spent] = protection(noise_multiplier=1.5, delta=1e-6).spending({})
    assert spent.loss.release == Gaussian(1.5)
    assert (spent.loss.epsilon, spent.loss.delta) == (epsilon_for(1.5, 1e-6), 1e-6)
    assert (spent.loss.per, spent.count) == ("update", 1)
    assert protection().spending({})[0].loss.release == Gaussian(1.0)


@pytest.mark.parametrize("rounds", [1, 7, 300])
def test_a_target_is_what_all_rounds_together_cost(rounds: int) -> None:
    made = protection(target_epsilon=2.0, rounds=rounds, delta=1e-6)
    ledger = Ledger()
    for number in range(rounds):
        ledger.record_many(made.spending({}), round=number, clients=[0, 1])
    assert 2.0 * (1 - 1e-6) < ledger.epsilon("run", 1e-6) <= 2.0


@pytest.mark.parametrize("z", [2.0**-16, 1e-3, 40.0, 1e5, 2.0**30])
def test_every_allowed_multiplier_is_drawn_as_stated(z: float) -> None:
    made = CentralNoise.of_ratio(z, 1e-5, CLIP, 1000)
    assert made.sigma == 2 * CLIP * z
    total = np.zeros(1000, np.int64)
    made.add_to(total, Seeded(1, "noise"))
    square = float(np.sum((total * made.step / made.sigma) ** 2))
    assert 1e-9 < stats.chi2.cdf(square, 1000) < 1 - 1e-9
    assert made.within([made.clipped(np.full(1000, 1e9))])


def test_numbers_whose_squares_overflow_are_not_within_the_clip() -> None:
    made = CentralNoise.of_ratio(2.0**-16, 1e-5, 1.0, 64)
    assert made.limit >= 2**50
    # 2^68 in total, which 64 bits would reduce to 0
    assert not made.within([np.full(64, 2**31, np.int64)])


def test_a_reading_is_the_clipped_update() -> None:
    made, data = protection(), updates()
    context = RoundContext([0, 1], ROUND, MODEL)
    for client in (0, 4):
        reading = made.reading(context, report(made, client, data[client]))
        shrunk = data[client] * min(1.0, CLIP / np.linalg.norm(data[client]))
        assert np.abs(reading.estimate - shrunk).max() <= 2 * made.noise.step
        assert reading.weight.tolist() == [1] * DIMENSION
        assert reading.log_likelihood is not None
        assert reading.log_likelihood(data[client]) == 0
        assert reading.log_likelihood(-data[client]) == -math.inf


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, None),
        ({"noise_multiplier": 1.5}, None),
        ({"target_epsilon": 2.5}, "target_epsilon = 2.5 is for a whole run"),
    ],
)
def test_an_app_may_use_everything_but_a_target(settings: Any, said: str | None) -> None:
    found = CentralGaussian.unfit_for_apps(CentralGaussianSettings(**settings))
    assert found == said or (said is not None and found is not None and found.startswith(said))


def test_a_sum_of_examples_may_be_as_large_as_the_grid() -> None:
    """Such a sum is not clipped, so a large batch has entries many times as large as the clip."""
    made = protection(unit="example")
    update = np.zeros(DIMENSION, np.float32)
    update[[0, 7]] = LARGEST * made.noise.step * np.array([1, -1])
    server = server_half(made, [0, 1], MODEL)
    server.receive(1, report(made, 1, update))
    server.advance()
    assert np.abs(server.aggregate().update - update).max() < 6 * made.noise.sigma < 6 * CLIP * 3


def job(**blocks: Any) -> Job:
    base: dict[str, Any] = {
        "name": "small",
        "rounds": 3,
        "clients": {"number": 8, "fraction": 1.0},
        "data": {"name": "parts:data"},
        "model": "parts:plain",
        "training": {"epochs": 1, "batch_size": 5, "lr": 0.2},
        "protection": {"name": "central_gaussian", "central_gaussian": {"target_epsilon": 4.0}},
        "simulation": {"workers": 0},
        "record": {"page": False},
    }
    return Job(**{**base, **blocks})


def test_a_run_costs_its_target_and_says_whom_it_trusts(tmp_path: Path) -> None:
    run = fedveil.simulate(job(), tmp_path / "run")
    assert [r["reports"] for r in run.metrics] == [8, 8, 8]
    costs = [r["epsilon_run_most_drawn"] for r in run.metrics]
    assert 0 < costs[0] < costs[1] < costs[2] <= 4.0
    assert costs[2] == pytest.approx(4.0, rel=1e-6)
    events = (run.folder / "events.log").read_text()
    assert "epsilon holds against everyone except the server" in events


def test_a_resumed_run_ends_with_the_same_bytes(tmp_path: Path) -> None:
    settings = job(protection={"name": "central_gaussian"})
    whole = fedveil.simulate(settings, tmp_path / "whole")
    part = fedveil.simulate(settings.model_copy(update={"rounds": 1}), tmp_path / "part")
    assert len(part.metrics) == 1
    resumed = fedveil.resume(part.folder, rounds=3)
    first, second = ((r.folder / "model.safetensors").read_bytes() for r in (whole, resumed))
    assert first == second
    assert whole.ledger.to_state().keys() == resumed.ledger.to_state().keys()
    assert whole.metrics[-1]["epsilon_per_round"] == resumed.metrics[-1]["epsilon_per_round"]


def test_its_delta_is_the_jobs() -> None:
    made = make_protection(job(privacy={"delta": 1e-3}), 10)
    assert made.most_of_a_report()[1] == 1e-3


def test_canaries_are_judged_by_the_aggregates_which_the_promise_is_about(tmp_path: Path) -> None:
    """Their own reports, which only the server reads, would refute the guarantee at once."""
    audited = job(audit={"canaries": 8}, rounds=2)
    finding = fedveil.simulate(audited, tmp_path / "run").audit
    assert finding is not None
    assert finding.saw == "the aggregates of 2 rounds"
    assert not finding.refutes


def test_against_the_server_nothing_is_promised() -> None:
    assert Target.of(job()).promised(3).epsilon == math.inf


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"noise_multiplier": 1.0, "target_epsilon": 2.0},
            r"protection\.central_gaussian\.noise_multiplier = 1\.0 and target_epsilon = 2\.0 both "
            r"determine the noise: set only one of them",
        ),
        ({"noise_multiplier": 0.0}, r"noise_multiplier = 0\.0 is outside \(0, inf\)"),
        ({"target_epsilon": -1.0}, r"target_epsilon = -1\.0 is outside \(0, inf\)"),
        ({"clip": 0.0}, r"clip = 0\.0 is outside \(0, inf\)"),
    ],
)
def test_settings_that_do_not_fit_get_one_sentence(settings: Any, sentence: str) -> None:
    with pytest.raises(JobError, match=sentence):
        job(protection={"name": "central_gaussian", "central_gaussian": settings})


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"weighting": "by_size"}, "central_gaussian needs server.weighting = equal"),
        ({"delta": 0.0}, "privacy.delta = 0 leaves central_gaussian without an epsilon"),
        ({"noise_multiplier": 1e-6}, r"ratio = 1e-06 is outside \[1\.52588e-05, "),
        ({"clip": 1e30}, r"clip = 1e\+30 is outside"),
    ],
)
def test_contexts_that_do_not_fit_get_one_sentence(options: Any, sentence: str) -> None:
    with pytest.raises(InvalidValue, match=sentence):
        protection(**options)


def test_what_is_released_of_a_secret_cohort_is_the_sum_over_what_was_expected() -> None:
    """Three of five expected clients reported: the mean is over five, and so is the sum."""
    data = dict(list(updates().items())[:3])
    for poisson, reports in ((False, 3), (True, 5)):
        made = protection(seeded=True, poisson=poisson)
        aggregate = play(made, data).aggregate()
        assert aggregate.reports == 3
        assert np.allclose(made.released(aggregate), reports * aggregate.update)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("central_gaussian", {"noise_multiplier": 2.0}),
        ("dp_encrypt", {"dp_eps": 2.0, "dp_delta": 1e-6}),
        ("pw_encrypt", {"central_eps": 2.0}),
        ("distributed_dp", {"noise_multiplier": 2.0, "bits": 16}),
    ],
)
def test_the_noise_is_made_for_the_distance_that_the_updates_maker_promises(
    name: str, options: dict[str, Any]
) -> None:
    """A quarter of the usual distance, twice the clip, needs a quarter of the noise."""

    def sigma(apart: float | None) -> float:
        settings = POSITIONS[name].settings_type(**options)
        made: Any = build(name, settings, JobContext("equal", 40, 5, rounds=3, apart=apart))
        if name == "distributed_dp":
            return math.sqrt(made.noise.share_variance) * made.noise.step
        noise = {"dp_encrypt": "_mechanism", "pw_encrypt": "central"}.get(name, "noise")
        return float(getattr(made, noise).sigma)

    assert sigma(0.5) == pytest.approx(sigma(None) / 4, rel=0.01)
