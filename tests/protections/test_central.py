"""pw_encrypt with central noise: the outcome of a round, its cost and its requirements."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

import fedveil
from fedveil.base.message import decode, encode
from fedveil.entropy import Secure, Seeded
from fedveil.errors import InvalidValue, JobError, ModelInvalid
from fedveil.federated.job import Job
from fedveil.mechanisms.gaussian import analytic_sigma
from fedveil.privacy.ledger import Ledger
from fedveil.protections.base import JobContext
from fedveil.protections.pw_encrypt import PWEncrypt, PWEncryptSettings
from fedveil.protections.secure_sum import ImpossibleSum
from round_parts import client_half, server_half

CENTRAL = {"central_eps": 2.0, "central_delta": 1e-6, "central_norm_clip": 0.5}
DIMENSION = 4000


def protection(**options: Any) -> PWEncrypt:
    known = {
        name: options.pop(name) for name in list(options) if name in JobContext.__annotations__
    }
    context = {"weighting": "equal", "dimension": DIMENSION, "clients_per_round": 5, "rounds": 1}
    settings = {"reconstruct_secrets_threshold": 3, **CENTRAL, **options}
    return PWEncrypt(PWEncryptSettings(**settings), JobContext(**{**context, **known}))


def play(
    made: PWEncrypt, updates: dict[int, np.ndarray], gone: int | None = None, liar: Any = None
) -> Any:
    """Play one round over the wire. The client `gone` stops answering in the masked phase."""
    model = np.zeros(DIMENSION)
    server = server_half(made, sorted(updates), model)
    halves = {c: client_half(made, c, model, examples=c + 1) for c in updates}
    if liar is not None:
        halves[4] = liar
    messages: Any = dict.fromkeys(halves, server.opening())
    while messages is not None:
        for client, message in messages.items():
            asked = decode(encode(message))
            update = updates[client] if halves[client].wants_update(asked) else None
            if client != gone or asked["phase"] in ("advertise", "share"):
                server.receive(client, decode(encode(halves[client].respond(asked, update))))
        messages = server.advance()
    return server.aggregate()


def updates() -> dict[int, np.ndarray]:
    """Return two updates within the norm, and three far beyond it."""
    draw = Seeded(3, "updates").generator()
    scales = dict(enumerate((0.1, 0.4, 3.0, 50.0, 1e6)))
    rows = {c: draw.normal(size=DIMENSION) for c in scales}
    return {c: (scales[c] * r / np.linalg.norm(r)).astype(np.float32) for c, r in rows.items()}


@pytest.mark.parametrize("gone", [None, 4])
def test_the_mean_is_that_of_clipped_updates_plus_the_stated_noise(gone: int | None) -> None:
    data = updates()
    result = play(protection(), data, gone)
    there = [data[c].astype(float) for c in data if c != gone]
    assert result.reports == len(there)
    clipped = [u * min(1.0, 0.5 / np.linalg.norm(u)) for u in there]
    noise = result.update - np.mean(clipped, axis=0)
    sigma = analytic_sigma(2.0, 1e-6, 2 * 0.5) / len(there)
    assert 1e-9 < stats.chi2.cdf(float(np.sum((noise / sigma) ** 2)), DIMENSION) < 1 - 1e-9


def test_one_client_moves_the_sum_by_at_most_twice_the_norm() -> None:
    """With the noise of one seed in both, only the difference of the sums remains."""
    made, data = protection(seeded=True, seed=1), updates()
    before = play(made, data).update * 5
    after = play(made, {**data, 4: -data[4]}).update * 5
    moved = float(np.linalg.norm(after - before))
    assert moved <= 2 * 0.5 * (1 + 1e-12)
    assert moved == pytest.approx(2 * 0.5, rel=1e-2)


def test_a_lying_client_cannot_put_the_ring_s_edge_where_it_tells_of_another() -> None:
    """The sum is known up to whole turns of the ring, and a step across its edge flips its sign."""
    made = protection(seeded=True, seed=1)
    edge = np.full(DIMENSION + 1, (1 << made.ring.bits - 1) - 1, np.int64)
    edge[-1] = 1
    shares = []
    for sign in (-1, 1):
        quiet = {c: np.zeros(DIMENSION, np.float32) for c in range(5)}
        quiet[0][:] = sign * 1e-3
        liar = client_half(made, 4, np.zeros(DIMENSION))
        liar._vector = lambda update, told: edge
        shares.append(np.mean(play(made, quiet, liar=liar).update > 0))
    assert shares == pytest.approx([0.5, 0.5], abs=0.05)


def test_the_noise_is_the_systems_unless_the_jobs_randomness_is_seeded() -> None:
    assert isinstance(protection().noise_entropy(1), Secure)
    assert isinstance(protection(simulated=False).noise_entropy(1), Secure)
    made = protection(seeded=True, seed=4)
    words = [made.noise_entropy(number).words(4).tolist() for number in (1, 1, 2)]
    assert words[0] == words[1] != words[2]


def test_what_it_costs_is_one_gaussian_release_a_round() -> None:
    made = protection()
    [spent] = made.spending({})
    assert (spent.loss.epsilon, spent.loss.delta, spent.loss.per) == (2.0, 1e-6, "update")
    ledger = Ledger()
    for number in range(10):
        ledger.record_many(made.spending({}), round=number, clients=[0, 1])
    assert 2.0 < ledger.epsilon("run", 1e-6) < 20.0


def test_a_part_of_the_clients_cannot_share_secrets_without_masks() -> None:
    """All clients of a round would be in the sum."""
    plain = {"masks": False, "simulated": True}
    assert not protection(**plain).context.masks
    with pytest.raises(InvalidValue, match=r"under share_secrets_ratio = 0\.8 only some clients"):
        protection(share_secrets_ratio=0.8, **plain)


def test_clients_must_count_equally() -> None:
    with pytest.raises(InvalidValue, match=r"central_eps needs server\.weighting = equal"):
        protection(weighting="by_size")


def job(central: dict[str, Any] | None = None, **blocks: Any) -> Job:
    settings = {"reconstruct_secrets_threshold": 5, **(CENTRAL if central is None else central)}
    base: dict[str, Any] = {
        "name": "small",
        "rounds": 3,
        "clients": {"number": 8, "fraction": 1.0},
        "data": {"name": "parts:data"},
        "model": "parts:plain",
        "training": {"epochs": 1, "batch_size": 5, "lr": 0.2},
        "protection": {"name": "pw_encrypt", "pw_encrypt": settings},
        "simulation": {"workers": 0},
        "record": {"page": False},
    }
    return Job(**{**base, **blocks})


def test_a_run_says_what_it_cost_and_whom_it_trusts(tmp_path: Path) -> None:
    run = fedveil.simulate(job(), tmp_path / "run")
    assert [r["reports"] for r in run.metrics] == [8, 8, 8]
    costs = [r["epsilon_run_most_drawn"] for r in run.metrics]
    assert 0 < costs[0] < costs[1] < costs[2] < 6.0
    said = "central_eps = 2.0: the server sees the sum and adds the noise itself, so epsilon"
    assert said in (run.folder / "events.log").read_text()
    again = fedveil.simulate(job(), tmp_path / "again")
    first, second = ((r.folder / "model.safetensors").read_bytes() for r in (run, again))
    assert first == second


def test_a_limit_ends_it(tmp_path: Path) -> None:
    run = fedveil.simulate(job(privacy={"max_epsilon": 2.5}), tmp_path / "run")
    assert len(run.metrics) == 1
    assert "round 2" in (run.stopped or "")


def test_a_job_counts_equally_by_itself_and_refuses_otherwise() -> None:
    assert job().server.weighting == "equal"
    assert job({}).server.weighting == "by_size"
    with pytest.raises(JobError, match="by_size breaks the sensitivity of central noise"):
        job(server={"weighting": "by_size"})


def test_statistics_of_batchnorm_do_not_survive_it(tmp_path: Path) -> None:
    with pytest.raises(ModelInvalid, match=r"pw_encrypt adds noise to .* 1\.running_mean"):
        fedveil.simulate(job(model="parts:net"), tmp_path / "run")


@pytest.mark.parametrize(
    ("central", "sentence"),
    [
        ({"central_delta": 1e-6}, "central_delta = 1e-06 needs central_eps"),
        ({"central_norm_clip": 2.0}, "central_norm_clip = 2.0 needs central_eps"),
        (
            {**CENTRAL, "central_norm_clip": 9.0},
            r"central_norm_clip = 9.0 is above clip = 8.0, the bound of every entry",
        ),
        ({"central_eps": 0.0}, r"central_eps = 0.0 is outside \(0, inf\)"),
    ],
)
def test_what_does_not_fit_gets_one_sentence(central: dict[str, Any], sentence: str) -> None:
    with pytest.raises(JobError, match=sentence):
        job(central)
    job({**CENTRAL, "central_norm_clip": 8.0})  # an update of one entry may be as long as its bound


def test_what_is_carried_is_clipped_to_the_central_norm_and_the_ring_has_room_for_the_noise() -> (
    None
):
    made = protection(dimension=4, clip=3.0)
    assert made.norm_clip == 0.5
    carried = made.carried(np.array([3, 0, -4, 0], np.float32), {})
    np.testing.assert_allclose(carried, [0.3, 0, -0.4, 0], atol=1e-4)
    assert made.central is not None
    room = 5 * made.fixed.largest + made.central.reach
    assert made.ring.bits == (2 * room).bit_length()
    plain = protection(dimension=4, clip=0.25, central_eps=None, central_delta=1e-5,
                       central_norm_clip=1.0)  # fmt: skip
    assert plain.carried(np.array([3, 0.125, -4, 0], np.float32), {}).tolist() == [
        0.25,
        0.125,
        -0.25,
        0,
    ]


@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_sum_is_accepted_and_nothing_beyond_it(sign: int) -> None:
    made = protection(dimension=2, central_eps=None, central_delta=1e-5, central_norm_clip=1.0,
                      weighting="by_size", max_examples=9)  # fmt: skip
    most = 17 * made.fixed.largest
    assert made.mean(np.array([0, sign * most, 17]), 5, 1).tolist() == [0, sign * made.fixed.clip]
    with pytest.raises(ImpossibleSum, match="an entry of the sum of 5 clients"):
        made.mean(np.array([0, sign * (most + 1), 17]), 5, 1)
    for weight in (4, 46):
        with pytest.raises(ImpossibleSum, match=f"cannot have the sum {weight}"):
            made.mean(np.array([0, 0, weight]), 5, 1)
    assert made.mean(np.array([0, 0, 45]), 5, 1).tolist() == [0, 0]


def test_noise_beyond_the_clip_is_cut_to_it() -> None:
    """Every entry of a mean is at most the clip, however large the noise is."""
    made = protection(central_eps=0.01, clip=0.5, entry_bits=16, seeded=True)
    mean = made.mean(np.append(np.zeros(DIMENSION, np.int64), 5), 5, 1)
    assert np.abs(mean).max() == pytest.approx(0.5)
    assert 0.3 < np.mean(np.abs(mean) > 0.499) < 1
    other = made.mean(np.append(np.zeros(DIMENSION, np.int64), 5), 5, 2)
    assert (mean != other).any()
