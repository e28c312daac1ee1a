"""distributed_dp: real rounds with and without masks, their costs, and who can break them."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy import stats

from fedveil.base.message import decode, encode
from fedveil.engine.cohorts import Cohorts
from fedveil.entropy import Seeded
from fedveil.entry.simulation import simulate
from fedveil.errors import ClientWithheld, InvalidValue, JobError, RoundVoid
from fedveil.federated.job import Job
from fedveil.mechanisms.hadamard import rotate
from fedveil.privacy.ledger import project
from fedveil.privacy.loss import Gaussian, format_epsilon
from fedveil.privacy.sampled_gaussian import SampledGaussian
from fedveil.protections.base import ClientContext, JobContext, RoundContext
from fedveil.protections.distributed_dp import DistributedDP
from fedveil.protections.distributed_dp_settings import DistributedDPSettings
from fedveil.starter import DEFAULT_JOB

PAGE = (Path(__file__).parents[2] / "SECURITY.md").read_text(encoding="utf-8")
DIMENSION, CLIENTS, ROUND = 50, 10, 3


def protection(clients: int = CLIENTS, **options: Any) -> DistributedDP:
    known = [name for name in options if name in JobContext.__annotations__]
    context = {
        "weighting": "equal", "dimension": DIMENSION, "clients_per_round": clients, "rounds": 60,
        **{name: options.pop(name) for name in known},
    }  # fmt: skip
    options.setdefault("reconstruct_secrets_threshold", clients // 2 + 1)
    return DistributedDP(DistributedDPSettings(**options), JobContext(**context))


def updates(clients: int = CLIENTS) -> dict[int, np.ndarray]:
    draw = Seeded(3, "updates").generator()
    return {c: draw.normal(0, 0.05, DIMENSION).astype(np.float32) for c in range(clients)}


def play(made: DistributedDP, data: dict[int, Any], silent: Any = (), lying: Any = None) -> Any:
    """Play a round whose messages travel as bytes. `silent` send no vector, `lying` a false one."""
    model = np.zeros(DIMENSION, np.float32)
    server = made.server_round(RoundContext(sorted(data), ROUND, model, made.initial_state()))
    halves = {
        c: made.client_round(ClientContext(c, ROUND, model, 5, Seeded(1, "client", c)))
        for c in data
    }
    honest = made.vector
    if lying is not None:
        made.vector = lambda u, c, t: lying if c.client == 0 else honest(u, c, t)  # type: ignore[method-assign]
    messages = dict.fromkeys(data, server.opening())
    while messages is not None:
        for client, message in messages.items():
            trains = halves[client].wants_update(message)
            if trains and client in silent:
                continue
            answer = halves[client].respond(message, data[client] if trains else None)
            server.receive(client, decode(encode(answer)))
        messages = server.advance()
    return server.aggregate()


def epsilon(made: DistributedDP, reports: int | None = None, rounds: int = 60) -> float:
    spent = made.spending({}) if reports is None else made.spent({}, reports)
    figure = project(spent, rounds, 1e-5)["run_every_round"]
    assert figure is not None
    return figure.epsilon


@pytest.mark.parametrize(
    ("job", "target", "row"),
    [
        ("clients-6000", 8, "6,000 x 10"), ("clients-6000", 1, "6,000 x 10"),
        ("clients-1000", 8, "1,000 x 60"), ("clients-1000", 2, "1,000 x 60"),
        ("writers", 8, "`writers.yaml`"), ("writers", 2, "`writers.yaml`, `target_epsilon: 2`"),
    ],
)  # fmt: skip
def test_the_page_rounds_no_epsilon_of_a_run_down(job: str, target: int, row: str) -> None:
    """The runs of the page's tables, in which no client dropped out."""
    root = Path(__file__).parents[2]
    page = (root / "docs/mechanisms/distributed_dp.md").read_text(encoding="utf-8")
    stated = re.findall(rf"^\| {re.escape(row)}[^|]*\| ([\d.]+) \(", page, re.M)
    asked = Job.load(
        root / f"examples/private_mnist/{job}.yaml",
        [f"protection.distributed_dp.target_epsilon={target}"],
    )
    clients = asked.clients.number or 539  # the writers of MNIST's training images
    context = JobContext("equal", 7_850, clients, asked.rounds, delta=asked.privacy.delta)
    exact = epsilon(DistributedDP(asked.protection.settings, context), clients, asked.rounds)
    digits = [len(said.replace(".", "").lstrip("0")) for said in stated]
    assert any(format_epsilon(exact, n) == said for n, said in zip(digits, stated, strict=True))


def test_the_sum_is_of_those_that_share_secrets() -> None:
    made = protection(share_secrets_ratio=0.75, dropout_tolerance=0.2, assume_honest=0.9)
    sharing = math.ceil(0.75 * CLIENTS)
    assert made.noise.clients == made.terms(1).sharing == sharing
    fewest = sharing - math.floor(0.2 * sharing)
    # All dishonest clients of the cohort may be among those that share secrets.
    assert made.noise.least_shares == fewest - math.floor(0.1 * CLIENTS) < fewest
    assert made.least_survivors == made.terms(1).least == fewest


def test_no_sum_has_the_noise_of_clients_that_share_no_secrets() -> None:
    """A client's own account charges a round in which no client of the cohort drops out."""
    made = protection(share_secrets_ratio=0.75)
    (spent,) = made.spent({}, CLIENTS)
    assert spent.loss.release == Gaussian(made.noise.ratio(math.ceil(0.75 * CLIENTS)))


@pytest.mark.parametrize("rotation", [True, False])
@pytest.mark.parametrize("silent", [(), (4,)])
def test_masks_change_nothing_of_the_sum(rotation: bool, silent: tuple[int, ...]) -> None:
    masked, bare = (
        play(protection(masks=masks, rotation=rotation), updates(), silent)
        for masks in (True, False)
    )
    assert masked.update.tobytes() == bare.update.tobytes()
    assert masked.reports == bare.reports == CLIENTS - len(silent)


@pytest.mark.parametrize("neighbours", ["complete", 8])
def test_the_mean_is_that_of_the_clipped_updates_plus_the_noise_of_the_survivors(
    neighbours: Any,
) -> None:
    made = protection(noise_multiplier=0.02, clip=0.3, neighbours=neighbours)
    data = updates()
    data[7] = 20 * data[7]
    result = play(made, data, silent=[2])
    clipped = [u * min(1, 0.3 / np.linalg.norm(u)) for c, u in data.items() if c != 2]
    sigma = math.sqrt(9 * made.noise.share_variance) * made.noise.step / 9
    off = result.update - np.mean(clipped, axis=0)
    assert np.abs(off).max() < 6 * sigma
    assert np.std(off) == pytest.approx(sigma, rel=0.5)


def test_it_costs_what_is_asked_for_and_less_where_more_survive() -> None:
    for target in (0.5, 1.0, 8.0):
        made = protection(target_epsilon=target)
        assert target * 0.999 < epsilon(made) <= target
        assert epsilon(made, 9) == epsilon(made)
        assert epsilon(made, 10) < epsilon(made)
    assert 8 * 0.999 < epsilon(protection()) <= 8
    given = protection(noise_multiplier=2.0, dropout_tolerance=0.0)
    assert given.noise.ratio(10) == pytest.approx(2.0, rel=1e-3)
    assert given.noise.ratio(10) >= 2.0
    (spent,) = given.spending({})
    assert (spent.loss.delta, spent.loss.per, spent.count) == (1e-5, "update", 1)


def test_noise_that_may_be_missing_or_known_is_made_up_for() -> None:
    wide = protection(noise_multiplier=2.0, dropout_tolerance=0.3, assume_honest=0.8)
    # 7 of 10 survive, and 2 of those may have subtracted their noise.
    assert wide.least_survivors == 7
    assert wide.noise.least_shares == 5
    assert wide.noise.ratio(5) >= 2.0
    exact = protection(noise_multiplier=2.0, dropout_tolerance=0.0)
    assert wide.noise.share_variance == pytest.approx(2 * exact.noise.share_variance, rel=1e-3)
    assert wide.spent({}, 10)[0].loss.release == Gaussian(wide.noise.ratio(8))
    written = protection(100, dropout_tolerance=0.07, assume_honest=0.93)
    assert (written.least_survivors, written.noise.least_shares) == (93, 86)


@pytest.mark.parametrize("masks", [True, False])
def test_with_fewer_survivors_than_have_enough_noise_nothing_is_shown(masks: bool) -> None:
    made = protection(dropout_tolerance=0.2, masks=masks)
    assert play(made, updates(), silent=[1, 5]).reports == 8
    with pytest.raises(RoundVoid, match="7 clients answered in phase masked, but 8 are needed"):
        play(made, updates(), silent=[1, 5, 6])


def test_no_client_helps_to_unmask_a_sum_with_too_little_noise() -> None:
    """If a server claims more dropouts than allowed, all clients of a complete graph notice."""
    made = protection(dropout_tolerance=0.2)
    model, data = np.zeros(DIMENSION, np.float32), updates()
    server = made.server_round(RoundContext(sorted(data), ROUND, model))
    halves = {
        c: made.client_round(ClientContext(c, ROUND, model, 5, Seeded(1, "client", c)))
        for c in data
    }
    messages = dict.fromkeys(data, server.opening())
    while server.phase != "unmask":
        for client, message in messages.items():
            update = data[client] if halves[client].wants_update(message) else None
            server.receive(client, halves[client].respond(message, update))
        messages = server.advance()
    honest = messages[0]
    few = {
        **honest,
        "survivors": honest["survivors"][:7],
        "dropped": np.sort(np.r_[honest["dropped"], honest["survivors"][7:]]),
    }
    with pytest.raises(ClientWithheld, match="7 survivors are fewer than a sum must have, 8"):
        halves[0].respond(few, None)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_an_update_that_cannot_be_used_is_noise_around_zero(bad: float, tmp_path: Path) -> None:
    made = protection()
    assert made.always_reports
    with pytest.raises(ClientWithheld):
        made.vector(
            np.full(DIMENSION, bad, np.float32),
            ClientContext(0, ROUND, np.zeros(DIMENSION), 5, Seeded(0)),
            {},
        )


@pytest.mark.parametrize("masks", [True, False])
def test_a_sum_that_no_honest_clients_can_have_is_told(masks: bool) -> None:
    made = protection(noise_multiplier=1.0, masks=masks)
    edge = np.full(made.length, made.noise.reach + made.noise.reach // 8)
    with pytest.raises(RoundVoid, match="exceeds the range of clipped updates and their") as void:
        play(made, updates(), lying=edge)
    assert (void.value.phase, void.value.got) == ("unmask", CLIENTS)
    assert void.value.needed == made.least_clients < CLIENTS


def test_how_far_a_liar_moves_an_entry() -> None:
    """Rotate a sum at the edge of the accepted range so that all of it falls on one entry."""
    made = protection(noise_multiplier=1.0)
    noise, signs = made.noise, made.signs(ROUND)
    assert signs is not None
    alone = np.zeros(noise.length)
    alone[7] = math.sqrt(noise.length)
    total = np.rint(rotate(alone, signs, noise.block) * noise.reach).astype(np.int64)
    moved = made.mean(total, CLIENTS, ROUND)
    most = math.sqrt(noise.length) * noise.reach * noise.step / CLIENTS
    assert moved[7] == pytest.approx(most)
    assert np.abs(np.delete(moved, 7)).max() < 1e-9 * most
    (row,) = [line for line in PAGE.splitlines() if line.startswith("| `distributed_dp` |")]
    assert "at most sqrt(D) reach step / n for D entries of a vector" in row


def test_the_rotation_is_anew_in_every_round_and_the_same_for_all() -> None:
    made, other = protection(seed=4), protection(seed=4)
    assert (made.signs(1) == other.signs(1)).all()
    assert (made.signs(1) != made.signs(2)).any()
    assert (made.signs(1) != protection(seed=5).signs(1)).any()
    assert protection(rotation=False).signs(1) is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"noise_multiplier": 1.0, "target_epsilon": 2.0},
            "noise_multiplier = 1.0 and target_epsilon = 2.0 both determine the noise: "
            "set only one of them",
        ),
        (
            {"dropout_tolerance": 0.6, "assume_honest": 0.6},
            "dropout_tolerance = 0.6 and assume_honest = 0.6 leave none of 10 clients with noise "
            "to rely on: lower dropout_tolerance or raise assume_honest",
        ),
        (
            {"assume_honest": 0.7, "reconstruct_secrets_threshold": 3},
            "assume_honest = 0.7 expects that 3 of 10 clients collude with the server, but with "
            "reconstruct_secrets_threshold = 3 at most 2 may: more could unmask the others. Raise "
            "assume_honest or the threshold",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidValue, match=f"^{said}$"):
        protection(**options)
    block = {"reconstruct_secrets_threshold": 5, **options}
    with pytest.raises(JobError) as caught:
        Job(
            clients={"number": 10, "fraction": 1.0},
            protection={"name": "distributed_dp", "distributed_dp": block},
        )
    assert list(caught.value.problems) == [f"protection.distributed_dp.{said}"]


def test_without_masks_all_take_part_and_nothing_leaves_a_machine() -> None:
    with pytest.raises(InvalidValue, match="masks can be left out only in a simulation"):
        protection(masks=False, simulated=False)
    with pytest.raises(InvalidValue, match=r"share_secrets_ratio = 0\.9 only some clients take"):
        protection(masks=False, share_secrets_ratio=0.9)


def test_weights_would_break_the_sensitivity() -> None:
    with pytest.raises(InvalidValue, match=r"distributed_dp needs server\.weighting = equal"):
        protection(weighting="by_size")
    with pytest.raises(JobError, match=r"server\.weighting = by_size reveals"):
        Job(protection="distributed_dp", server={"weighting": "by_size"})


def test_an_app_says_its_noise_itself() -> None:
    said = DistributedDP.unfit_for_apps(DistributedDPSettings(reconstruct_secrets_threshold=3))
    assert said is not None
    assert said.startswith("noise_multiplier is not given: an app's number of rounds")
    fit = DistributedDPSettings(reconstruct_secrets_threshold=3, noise_multiplier=1.0)
    assert DistributedDP.unfit_for_apps(fit) is None
    for unfit in ({"active_security": True}, {"reconstruct_secrets_threshold": 1}):
        said = DistributedDP.unfit_for_apps(fit.model_copy(update=unfit))
        assert said is not None
        assert said.startswith(" = ".join(map(str, *unfit.items())))


@pytest.mark.parametrize("path", [DEFAULT_JOB, None])
@pytest.mark.parametrize("settings", [(), ("protection=distributed_dp",)])
def test_no_default_is_warned_about(path: Path | None, settings: tuple[str, ...]) -> None:
    """The guarantee itself says against whom it holds."""
    assert Job.load(path, settings).warnings == []


def drawn(made: DistributedDP, update: Any, rounds: int, client: int = 0) -> np.ndarray:
    """Return which of the rounds have the client's update in its vector."""
    model, taken = np.zeros(DIMENSION, np.float32), np.zeros(rounds, bool)
    for round in range(rounds):
        context = ClientContext(client, round, model, 5, Seeded(7, round, client))
        taken[round] = np.abs(made.vector(update, context, {})).max() > 5 * 2**12
    return taken


def test_a_client_is_in_a_sum_with_the_probability_that_is_charged() -> None:
    made = protection(turn_rate=0.3, rotation=False, bits=16, noise_multiplier=0.05)
    far = np.zeros(DIMENSION, np.float32)
    far[0] = 1.0
    taken = np.stack([drawn(made, far, 600, client) for client in range(4)])
    assert stats.binomtest(int(taken.sum()), taken.size, 0.3).pvalue > 1e-9
    pairs = np.corrcoef(taken)[np.triu_indices(4, 1)]
    assert np.abs(pairs).max() < 6 / math.sqrt(600)
    assert drawn(protection(rotation=False, bits=16, noise_multiplier=0.05), far, 20).all()


def test_secret_turns_are_counted_in_a_clients_favour_against_the_server_too() -> None:
    made = protection(turn_rate=0.3, target_epsilon=2.0)
    always = protection(target_epsilon=2.0)
    assert 0.999 * 2 < epsilon(made) <= 2.0
    assert made.noise.ratio(9) < 0.6 * always.noise.ratio(9)
    (spent,) = made.spending({})
    assert spent.loss.release == SampledGaussian(made.noise.ratio(9), 0.3)
    assert spent.loss.per == "update"
    theirs = pld.from_gaussian_mechanism(
        2 * made.noise.ratio(9),
        sampling_prob=0.3,
        neighboring_relation=NeighboringRelation.REPLACE_ONE,
    )
    wanted = theirs.self_compose(60).get_epsilon_for_delta(1e-5)
    assert epsilon(made) == pytest.approx(wanted, rel=2e-3)


@pytest.mark.parametrize("masks", [True, False])
def test_the_mean_is_over_those_whose_turn_is_expected(masks: bool) -> None:
    made = protection(masks=masks, turn_rate=0.5, bits=16, noise_multiplier=0.002)
    data = updates()
    turns = {c: Seeded(1, "client", c).stream("turn").bernoulli(0.5, 1)[0] for c in data}
    assert 0 < sum(turns.values()) < CLIENTS
    wanted = sum(data[c] for c in data if turns[c]) / (0.5 * CLIENTS)
    assert np.abs(wanted).max() > 0.06
    assert np.abs(play(made, data).update - wanted).max() < 0.005


def test_all_are_asked_and_answer_alike_whosever_turn_it_is(tmp_path: Path) -> None:
    settings = job({"number": 12, "fraction": 0.5, "sampling": "poisson"}, masks=False)
    assert Cohorts(settings).draw(1) == list(range(12))
    run = simulate(settings, tmp_path / "run")
    assert all(record["reports"] == 12 for record in run.metrics)
    assert len({record["bytes_up"] for record in run.metrics}) == 1
    options: Any = {"dropout_tolerance": 0.25, "clip": 0.5, "rounds": 3, "dimension": 7850}
    wanted = epsilon(protection(12, turn_rate=0.5, **options), 12, 3)
    assert run.metrics[-1]["epsilon_run_every_round"] == pytest.approx(wanted)


EVERYBODY = {"number": 12, "fraction": 1.0}


def job(clients: Any = EVERYBODY, **simulation: Any) -> Job:
    return Job(
        name="shares", rounds=3, model="logistic",
        clients=clients,
        training={"epochs": 1, "batch_size": 200, "lr": 0.5},
        protection={
            "name": "distributed_dp",
            "distributed_dp": {"reconstruct_secrets_threshold": 7, "clip": 0.5,
                               "dropout_tolerance": 0.25},
        },
        simulation={"workers": 0, **simulation},
        record={"page": False},
    )  # fmt: skip


def test_a_run_records_what_its_survivors_released(tmp_path: Path) -> None:
    full = simulate(job(masks=False), tmp_path / "full")
    some = simulate(job(masks=False, dropouts={"masked": 0.25}), tmp_path / "some")
    masked = simulate(job(), tmp_path / "masked")
    ahead, there = some.metrics[-1], full.metrics[-1]
    assert ahead["reports"] == 9
    assert 8 * 0.999 < ahead["epsilon_run_every_round"] <= 8
    made = protection(12, dropout_tolerance=0.25, clip=0.5, rounds=3, dimension=7850)
    assert there["epsilon_run_every_round"] == pytest.approx(epsilon(made, 12, 3))
    assert there["epsilon_run_every_round"] < ahead["epsilon_run_every_round"] - 0.5
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("full", "masked")]
    assert weights[0] == weights[1]
    assert masked.metrics[-1]["bytes_up"] > there["bytes_up"]
    events = (tmp_path / "full" / "events.log").read_text()
    assert "without masks (simulation.masks = false)" in events
    assert "without masks" not in (tmp_path / "masked" / "events.log").read_text()


def test_a_limit_counts_each_sum_as_if_all_permitted_clients_had_dropped_out(
    tmp_path: Path,
) -> None:
    """Each client's own account does so too, and would refuse the third round."""
    limited = {"privacy": {"max_epsilon": 7.9}}
    run = simulate(job(masks=False, dropouts={"masked": 0.1}).with_(limited), tmp_path / "run")
    made = protection(12, dropout_tolerance=0.25, clip=0.5, rounds=3, dimension=7850)
    assert [record["reports"] for record in run.metrics] == [11, 11]
    assert run.metrics[-1]["epsilon_run_every_round"] == pytest.approx(epsilon(made, 9, 2))
    assert "round 3 would bring" in (run.stopped or "")


def test_an_audit_sees_the_sum_before_it_is_decoded() -> None:
    """The sum is rotated, with the entries that no update reaches. Without an audit nothing is
    saved."""
    made = protection(masks=False)
    assert play(made, updates()).released is None
    made.audited = True
    aggregate = play(made, updates())
    domain, released = made.domain(ROUND), made.released(aggregate)
    assert domain.moves
    assert domain.length == len(released) == 64
    decoded = domain.decode(released)
    assert np.allclose(decoded[:DIMENSION], aggregate.reports * aggregate.update)
    assert np.array_equal(released, made.released(aggregate)), "decoding leaves the sum as it was"
    assert np.abs(decoded[DIMENSION:]).min() > 0
    update = updates()[1].astype(np.float64)
    assert np.allclose(domain.decode(domain.encode(update))[:DIMENSION], update)
    assert np.linalg.norm(domain.encode(update)) == pytest.approx(np.linalg.norm(update))
    assert not np.allclose(made.domain(ROUND + 1).encode(update), domain.encode(update))


@pytest.mark.parametrize("options", [{"rotation": False}, {"clip_quantile": 0.5}])
def test_a_sum_that_is_not_rotated_is_seen_as_updates(options: dict[str, Any]) -> None:
    made = protection(masks=False, **options)
    made.audited = True
    aggregate = play(made, updates())
    assert not made.domain(ROUND).moves
    assert np.allclose(made.released(aggregate), aggregate.reports * aggregate.update)


def test_an_amplified_sum_counts_the_honest_clients_noise_alone() -> None:
    """Two of eight reports may come from clients that tell the server their noise."""
    made = protection(
        unit="example", sampling_rate=0.1, delta=1e-6, noise_multiplier=1.0, assume_honest=0.8,
        dropout_tolerance=0.3,
    )  # fmt: skip
    (spending,) = made.spent({}, 8)
    assert spending.loss.release == SampledGaussian(made.noise.ratio(6), 0.1)
    assert spending.loss.per == "example"
    assert made.noise.ratio(6) < made.noise.ratio(8)
    assert made.signs(3) is None  # an example's bound is of vectors that are not rotated


def test_an_update_whose_examples_are_clipped_is_carried_as_it_is() -> None:
    made = protection(unit="example", sampling_rate=0.2, noise_multiplier=1.5, clip=0.5)
    update = np.linspace(-3, 2, DIMENSION, dtype=np.float32)
    assert made.carried(update, {}).tolist() == update.tolist()


class Named(Seeded):
    """Notes the names of the streams that are drawn from it."""

    def stream(self, *names: Any) -> Any:
        self.streams = [*vars(self).get("streams", ()), names]
        return super().stream(*names)


def test_the_noise_does_not_repeat_the_draw_that_decides_the_turn() -> None:
    entropy = Named(1)
    context = ClientContext(0, ROUND, np.zeros(DIMENSION, np.float32), 5, entropy)
    protection(turn_rate=0.5, noise_multiplier=1.0).vector(updates()[0], context, {})
    assert len(set(entropy.streams)) == len(entropy.streams) == 2
