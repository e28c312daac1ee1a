"""The moving clip of both protections that have one: rounds, state, messages, costs and liars."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedveil
from fedveil.base.message import decode, encode
from fedveil.engine.target_epsilon import solve
from fedveil.entropy import Seeded
from fedveil.errors import ClientWithheld, InvalidValue, JobError, ReportRejected, RoundVoid
from fedveil.federated.job import Job
from fedveil.protections.always_answers import answer_trained
from fedveil.protections.base import ClientContext, JobContext, RoundContext
from fedveil.protections.catalog import build, find

DIMENSION, CLIENTS, ROUND, FIRST = 50, 12, 3, 0.5
POSITIONS = ["central_gaussian", "distributed_dp"]
BOTH = pytest.mark.parametrize("name", POSITIONS)
#: Almost no noise, so that the outcome shows the law.
FAINT = {"noise_multiplier": 2e-3, "clip_bit_noise": 4e-3}


def settings_of(name: str, **options: Any) -> dict[str, Any]:
    more = {"reconstruct_secrets_threshold": 7, "bits": 16} if name == "distributed_dp" else {}
    moving = {"clip": FIRST, "clip_quantile": 0.5, "clip_rate": 0.4, **FAINT}
    held = {**more, **moving, **options}
    return {key: value for key, value in held.items() if value is not None}


def protection(name: str, **options: Any) -> Any:
    known = [key for key in options if key in JobContext.__annotations__]
    context = {
        "weighting": "equal", "dimension": DIMENSION, "clients_per_round": CLIENTS, "rounds": 60,
        **{key: options.pop(key) for key in known},
    }  # fmt: skip
    kind = find(name).settings_type
    return build(name, kind(**settings_of(name, **options)), JobContext(**context))


def updates(norm: float = 1.0) -> dict[int, np.ndarray]:
    """Return updates with norms around `norm`, four of them below half of it."""
    draw, found = Seeded(3, "updates").generator(), {}
    for client in range(CLIENTS):
        row = draw.normal(size=DIMENSION)
        length = norm * (0.3 if client < 4 else 1.5)
        found[client] = (length * row / np.linalg.norm(row)).astype(np.float32)
    return found


def halves_of(made: Any, clients: Any) -> dict[int, Any]:
    model = np.zeros(DIMENSION, np.float32)
    return {
        c: made.client_round(ClientContext(c, ROUND, model, 5, Seeded(1, "client", c)))
        for c in clients
    }


def play(made: Any, data: dict[int, Any], state: Any, told: Any = None) -> Any:
    """Play a round whose messages travel as bytes. `told` changes the message to client 0."""
    model = np.zeros(DIMENSION, np.float32)
    server = made.server_round(RoundContext(sorted(data), ROUND, model, state))
    halves = halves_of(made, data)
    messages = dict.fromkeys(data, server.opening())
    while messages is not None:
        for client, message in messages.items():
            if told is not None and client == 0 and "clip" in message:
                message = {**message, **told}
            trains = halves[client].wants_update(message)
            answer = halves[client].respond(message, data[client] if trains else None)
            server.receive(client, decode(encode(answer)))
        messages = server.advance()
    return server.aggregate()


@BOTH
@pytest.mark.parametrize("clip", [0.05, 0.6, 40.0])
def test_a_round_gives_the_mean_of_what_its_clip_leaves_and_moves_the_clip(
    name: str, clip: float
) -> None:
    data = updates()
    result = play(protection(name), data, {"clip": clip})
    clipped = [u * min(1.0, clip / np.linalg.norm(u)) for u in data.values()]
    np.testing.assert_allclose(result.update, np.mean(clipped, axis=0), atol=5e-3 * clip)
    below = np.mean([np.linalg.norm(u) <= clip for u in data.values()])
    assert result.state["clip"] == pytest.approx(clip * math.exp(-0.4 * (below - 0.5)), rel=1e-2)
    assert set(result.state) == {"clip"}
    assert result.reports == CLIENTS


@BOTH
def test_the_noise_is_relative_to_the_clip_that_is_told(name: str) -> None:
    """With updates of zero, the outcome is the noise, in units of the clip."""
    data = {c: np.zeros(DIMENSION, np.float32) for c in range(CLIENTS)}
    made = protection(name, noise_multiplier=3.0, clip_bit_noise=4.0, seeded=True)
    small, large = (play(made, data, {"clip": clip}).update for clip in (0.01, 100.0))
    np.testing.assert_allclose(large, 1e4 * small, rtol=1e-9)
    sigma = 3.0 * 2 * 0.01 * made.clipping.norm / FIRST / CLIENTS
    assert np.std(small) == pytest.approx(sigma, rel=0.4)


@BOTH
def test_an_update_may_be_as_long_as_the_longest_clip(name: str) -> None:
    """An audit's canaries are longer than that."""
    assert protection(name).norm_clip == FIRST * 2**20


@BOTH
def test_it_costs_what_a_clip_that_stays_costs_at_any_clip(name: str) -> None:
    moving = protection(name, noise_multiplier=2.0, clip_bit_noise=None)
    staying = protection(
        name, noise_multiplier=2.0, clip_bit_noise=None, clip_quantile=None, clip_rate=None
    )
    (mine,), (theirs,) = (m.spending(m.initial_state()) for m in (moving, staying))
    if name == "central_gaussian":
        assert mine == theirs
    assert mine.loss.release.ratio == pytest.approx(2.0, rel=1e-6)
    assert mine.loss.release.ratio >= 2.0
    assert moving.spending({"clip": 1e4 * FIRST})[0] == mine
    assert (staying.initial_state(), staying.clipping.length) == ({}, DIMENSION)


@pytest.mark.parametrize("silent", [0, 1])
def test_masks_change_nothing_of_the_sum_or_of_the_clip(silent: int) -> None:
    data = {c: u for c, u in updates().items() if c >= silent}
    masked, bare = (
        play(protection("distributed_dp", masks=masks), data, {"clip": 0.6})
        for masks in (True, False)
    )
    assert masked.update.tobytes() == bare.update.tobytes()
    assert masked.state == bare.state


WRONG = [
    {"clip": math.nan}, {"clip": math.inf}, {"clip": 0.0}, {"clip": -0.5}, {"clip": 1},
    {"clip": FIRST * 2.0**21}, {"clip": FIRST * 2.0**-21}, {"clip": "0.5"}, {},
]  # fmt: skip


@BOTH
@pytest.mark.parametrize("told", WRONG)
def test_a_client_takes_no_clip_that_there_cannot_be(name: str, told: dict[str, Any]) -> None:
    """The message alone decides, regardless of the client's update."""
    made = protection(name, masks=False)
    server = made.server_round(
        RoundContext([0], ROUND, np.zeros(DIMENSION, np.float32), {"clip": 0.6})
    )
    opening = {key: value for key, value in server.opening().items() if key != "clip"}
    for update in (updates()[0], np.full(DIMENSION, np.nan, np.float32)):
        half = halves_of(made, [0])
        with pytest.raises(ClientWithheld, match="clip"):
            answer_trained(
                made,
                lambda examples: halves_of(made, [0])[0],
                lambda: halves_of(made, [0])[0],
                {**opening, **told},
                lambda u=update: (u, 5),
            )
        assert half


@BOTH
@pytest.mark.parametrize("told", [*WRONG, {"clip": 0.5, "more": 1}])
def test_a_checkpoint_with_such_a_clip_is_refused(name: str, told: dict[str, Any]) -> None:
    made = protection(name)
    with pytest.raises(ValueError, match=r"clip|fields"):
        made.check_state(told)
    made.check_state(made.initial_state())
    made.check_state({"clip": 0.013})


def test_a_clip_of_its_own_for_one_client_shows_under_active_security() -> None:
    """The digest of everything that vectors are made from includes the clip, so signatures fail."""
    made = protection("distributed_dp", active_security=True)
    assert play(made, updates(), {"clip": 0.6}).reports == CLIENTS
    with pytest.raises((ClientWithheld, ReportRejected, RoundVoid)):
        play(made, updates(), {"clip": 0.6}, told={"clip": 0.7})


def test_without_it_one_client_alone_is_told_a_clip_and_is_as_short_as_the_others() -> None:
    """Its part of the sum is no longer than the others', in steps, whatever clip it receives."""
    made = protection("distributed_dp")
    signs = made.signs(ROUND)
    for clip in (FIRST * 2.0**-20, 0.6, FIRST * 2.0**20):
        joint = made.clipping.joint(updates()[5], {"clip": clip})
        numbers = made.noise.rounded(joint, signs, Seeded(1))
        assert int(np.sum(numbers.astype(object) ** 2)) <= made.noise.limit


def test_a_trusted_server_refuses_more_than_a_bit() -> None:
    made = protection("central_gaussian")
    server = made.server_round(
        RoundContext([0], ROUND, np.zeros(DIMENSION, np.float32), {"clip": 0.6})
    )
    most = int(made.clipping.moving.half / made.noise.step)
    for bit, fits in ((most, True), (-most, True), (most + 1, False), (-most - 1, False)):
        row = np.zeros(DIMENSION + 1, np.int64)
        row[-1] = bit
        report = {"round": ROUND, **made.form.written(row)}
        if fits:
            assert made.read(report)[-1] == bit
            continue
        with pytest.raises(ReportRejected, match="holds a clip bit beyond its range"):
            server.receive(0, report)


def test_a_reading_of_a_clear_report_is_the_update_as_the_clip_leaves_it() -> None:
    made, state = protection("central_gaussian"), {"clip": 0.6}
    context = RoundContext([0, 5], ROUND, np.zeros(DIMENSION, np.float32), state)
    opening = made.server_round(context).opening()
    for client in (0, 5):
        update = updates()[client]
        reading = made.reading(context, halves_of(made, [client])[client].respond(opening, update))
        left = update * min(1.0, 0.6 / np.linalg.norm(update))
        np.testing.assert_allclose(reading.estimate, left, atol=1e-2)
        assert reading.log_likelihood is not None
        assert reading.log_likelihood(update) == 0


@BOTH
@pytest.mark.parametrize("clip", [0.05, 0.6, 40.0])
def test_what_is_carried_is_the_update_as_the_clip_leaves_it(name: str, clip: float) -> None:
    """It has neither the clip bit nor the scale of the first round's clip."""
    made = protection(name)
    for client in (0, 5):
        update = updates()[client]
        left = update * min(1.0, clip / np.linalg.norm(update))
        carried = made.carried(update, {"clip": clip})
        assert carried.dtype == np.float32
        np.testing.assert_allclose(carried, left, atol=1e-3 * clip)


@pytest.mark.parametrize("clients", [40, 15_000, 100_000, 1_000_000])
@pytest.mark.parametrize("dimension", [1, 7850])
def test_the_share_of_short_updates_is_exact_in_a_cohort_of_any_size(
    clients: int, dimension: int
) -> None:
    """With many clients, a clip bit is small beside the update. It was rounded to less, or to 0."""
    made = protection(
        "central_gaussian", dimension=dimension, clients_per_round=clients, noise_multiplier=1.0,
        clip_bit_noise=None,
    )  # fmt: skip
    law, noise = made.clipping.moving, made.noise
    for length, share in ((0.99, 1.0), (1.01, 0.0), (1e6, 0.0), (0.0, 1.0)):
        update = np.full(dimension, length * FIRST / math.sqrt(dimension), np.float32)
        report = noise.clipped(made.clipping.joint(update, {"clip": FIRST}))
        assert law.parted(report * noise.step, FIRST)[1] == pytest.approx(share, abs=1e-12)
    spread = math.sqrt(noise._noise.variance) * noise.step / (2 * law._read)
    assert law.bit_noise <= spread * (1 + 1e-6) < 1.07 * law.bit_noise  # in the number of updates


def test_more_noise_in_the_clip_bits_than_can_be_drawn_is_refused() -> None:
    with pytest.raises(InvalidValue, match=r"at most 1\.34e\+08 are drawn"):
        protection("central_gaussian", noise_multiplier=1.0, clip_bit_noise=1e7)
    with pytest.raises(InvalidValue, match=r"clip_bit_noise = 1e\+60 is too far above"):
        protection("distributed_dp", noise_multiplier=1.0, clip_bit_noise=1e60)


def test_of_a_secret_cohort_the_clip_says_nothing_of_its_size() -> None:
    """Bits are counted around one half and over the expected number, even in an empty cohort."""
    made = protection("central_gaussian", poisson=True)
    context = RoundContext([], ROUND, np.zeros(DIMENSION, np.float32), {"clip": 0.6})
    nobody = made.server_round(context)
    nobody.advance()
    empty = nobody.aggregate()
    assert empty.reports == 0
    assert empty.state["clip"] == pytest.approx(0.6, rel=1e-2)  # half of the expected clients
    few = {c: u for c, u in updates().items() if c < 4}  # all of them below the clip
    told = play(made, few, {"clip": 0.6})
    share = 0.5 + 4 * 0.5 / CLIENTS
    assert told.state["clip"] == pytest.approx(0.6 * math.exp(-0.4 * (share - 0.5)), rel=1e-2)


def test_a_client_that_skips_its_turn_says_nothing_of_its_clip() -> None:
    """Its vector is the share of noise alone: no bit, neither its own nor that of a zero update."""
    made = protection("distributed_dp", turn_rate=0.4)
    for client, update in updates().items():
        entropy = Seeded(1, "client", client)
        context = ClientContext(client, ROUND, np.zeros(DIMENSION, np.float32), 5, entropy)
        sent = made.clipping.joint(update, {"clip": 0.6})
        if not entropy.stream("turn").bernoulli(0.4, 1)[0]:
            sent = np.zeros_like(sent)
        wanted = made.noise.share(sent, made.signs(ROUND), entropy.stream("share of the sum"))
        assert np.array_equal(made.vector(update, context, {"clip": 0.6}), wanted)


@pytest.mark.parametrize("masks", [True, False])
def test_under_secret_turns_the_clip_follows_those_whose_turn_it_is(masks: bool) -> None:
    data = updates()
    taken = {c: Seeded(1, "client", c).stream("turn").bernoulli(0.4, 1)[0] for c in data}
    there = [u for c, u in data.items() if taken[c]]
    below = [bool(np.linalg.norm(u) <= 0.6) for u in there]
    assert 0 < sum(below) < len(there) < CLIENTS - 4
    result = play(protection("distributed_dp", turn_rate=0.4, masks=masks), data, {"clip": 0.6})
    clipped = [u * min(1.0, 0.6 / np.linalg.norm(u)) for u in there]
    expected = 0.4 * CLIENTS
    np.testing.assert_allclose(result.update, np.sum(clipped, axis=0) / expected, atol=5e-3)
    share = 0.5 + sum(0.5 if fits else -0.5 for fits in below) / expected
    assert abs(share - 0.5) > 0.05
    assert result.state["clip"] == pytest.approx(0.6 * math.exp(-0.4 * (share - 0.5)), rel=1e-2)


@BOTH
def test_the_audit_tries_it(name: str) -> None:
    (case,) = (case for case in find(name).audit_cases(1.0) if "shortened" in case.name)
    for _ in range(4):  # one try in some thirty finds nothing by chance
        found = case.audit(4000)
        assert not found.refuted
        if found.bound > 0:
            return
    pytest.fail("four tries told nothing apart: the game is one that nobody can win")


def job(name: str, **blocks: Any) -> Job:
    held = settings_of(
        name, clip=20.0, noise_multiplier=None, clip_bit_noise=None, target_epsilon=8.0
    )
    base: dict[str, Any] = {
        "name": "moving",
        "rounds": 4,
        "clients": {"number": CLIENTS, "fraction": 1.0},
        "data": {"name": "parts:data"},
        "model": "parts:plain",
        "training": {"epochs": 1, "batch_size": 5, "lr": 0.2},
        "protection": {"name": name, name: held},
        "simulation": {"workers": 0},
        "record": {"page": False},
    }
    return Job(**{**base, **blocks})


@BOTH
def test_a_resumed_run_ends_with_the_same_bytes_and_the_same_clip(
    name: str, tmp_path: Path
) -> None:
    fixed = settings_of(name, clip=20.0, noise_multiplier=3.0, clip_bit_noise=None)
    settings = job(name, protection={"name": name, name: fixed})
    whole = fedveil.simulate(settings, tmp_path / "whole")
    part = fedveil.simulate(settings.model_copy(update={"rounds": 2}), tmp_path / "part")
    resumed = fedveil.resume(part.folder, rounds=4)
    clips = [[record["clip"] for record in run.metrics] for run in (whole, resumed)]
    assert clips[0] == clips[1]
    assert clips[0][0] == 20.0
    assert len(set(clips[0])) > 2
    first, second = ((r.folder / "model.safetensors").read_bytes() for r in (whole, resumed))
    assert first == second


@pytest.mark.usefixtures("warm_workers")
@BOTH
def test_workers_change_nothing(name: str, tmp_path: Path) -> None:
    alone, shared = (
        fedveil.simulate(job(name, simulation={"workers": n}), tmp_path / str(n)) for n in (0, 2)
    )
    first, second = ((r.folder / "model.safetensors").read_bytes() for r in (alone, shared))
    assert first == second
    assert 7 < shared.metrics[-1]["epsilon_run_every_round"] <= 8


@BOTH
def test_canaries_go_with_it(name: str, tmp_path: Path) -> None:
    finding = fedveil.simulate(job(name, audit={"canaries": 4}), tmp_path / "run").audit
    assert finding is not None
    assert not finding.refutes


@BOTH
def test_a_target_is_solved_for_with_it(name: str) -> None:
    settings = job(name)
    made = protection(name, noise_multiplier=None, clip_bit_noise=None, rounds=4)
    found = solve(settings, made, 2.0)
    plain = protection(
        name, noise_multiplier=None, clip_bit_noise=None, clip_quantile=None, clip_rate=None,
        rounds=4,
    )  # fmt: skip
    assert found.value == pytest.approx(solve(settings, plain, 2.0).value, rel=1e-3)


@BOTH
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"clip_quantile": None, "clip_bit_noise": None, "clip_rate": 0.5},
            "clip_rate = 0.5 needs clip_quantile: without it the clip is fixed",
        ),
        (
            {"clip_quantile": None, "clip_rate": None, "clip_bit_noise": 9.0},
            "clip_bit_noise = 9.0 needs clip_quantile: without it the clip is fixed",
        ),
        ({"clip_quantile": 1.0}, r"clip_quantile = 1.0 is outside (0, 1)"),
        ({"clip_rate": 0.0}, r"clip_rate = 0.0 is outside (0, 10]"),
    ],
)
def test_what_does_not_go_together_gets_a_sentence(
    name: str, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(JobError) as caught:
        job(name, protection={"name": name, name: settings_of(name, **options)})
    (problem,) = caught.value.problems
    assert problem.startswith(f"protection.{name}.{said}")


def test_the_unit_is_the_client() -> None:
    with pytest.raises(JobError, match=r"privacy\.unit = example is not offered by"):
        job(
            "distributed_dp",
            privacy={"unit": "example"},
            training={"sampling_rate": 0.5, "batch_size": 5, "lr": 0.2},
        )
    with pytest.raises(InvalidValue, match=r"clip_quantile = 0\.5 needs privacy\.unit = client"):
        protection("distributed_dp", unit="example")
