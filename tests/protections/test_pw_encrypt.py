"""The protection pw_encrypt: its results in whole runs, and its refusals."""

from __future__ import annotations

import hashlib
import json
import math
import os
import tracemalloc
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedveil
from fedveil.base.message import decode, encode
from fedveil.entropy import Seeded
from fedveil.errors import (
    ClientWithheld,
    FedveilWarning,
    InvalidValue,
    JobError,
    ReportRejected,
    RoundVoid,
    RunFailed,
)
from fedveil.federated.job import Job
from fedveil.protections.base import ClientContext, JobContext, RoundContext
from fedveil.protections.last_answered import Answered
from fedveil.protections.origin import origin_of
from fedveil.protections.pw_encrypt import PWEncrypt, PWEncryptSettings
from fedveil.secagg import masking_graph
from fedveil.secagg.fixed_point import FixedPoint
from fedveil.secagg.keys import Identity
from fedveil.secagg.secret import Secret
from folders import records_of
from secagg_parts import shows
from whole_vector import whole

DIMENSION = 5


def protection(clients: int = 4, **options: Any) -> PWEncrypt:
    known = [name for name in options if name in JobContext.__annotations__]
    context = {
        "weighting": "by_size", "dimension": DIMENSION, "clients_per_round": clients, "rounds": 1,
        "job": b"test", **{name: options.pop(name) for name in known},
    }  # fmt: skip
    options.setdefault("reconstruct_secrets_threshold", clients // 2 + 1)
    return PWEncrypt(PWEncryptSettings(**options), JobContext(**context))


class Round:
    """One round of a protection, with clients that may stop answering in some phase."""

    def __init__(self, made: PWEncrypt, updates: dict[int, np.ndarray], sizes: Any = None) -> None:
        model = np.zeros(DIMENSION, np.float32)
        self.server = made.server_round(RoundContext(sorted(updates), 2, model))
        self.clients = {
            c: made.client_round(
                ClientContext(c, 2, model, (sizes or {}).get(c, c + 1), Seeded(0, "report", 2, c))
            )
            for c in updates
        }
        self.updates = updates

    def play(self, silent: dict[str, set[int]] | None = None) -> Round:
        messages: Any = dict.fromkeys(self.clients, self.server.opening())
        gone: set[int] = set()
        while messages is not None:
            phase = next(iter(messages.values()))["phase"]
            gone |= (silent or {}).get(phase, set())
            for c, message in messages.items():
                if c in gone:
                    continue
                client, asked = self.clients[c], decode(encode(message))
                assert client.wants_update(asked) == (phase == "masked")
                update = self.updates[c] if phase == "masked" else None
                try:
                    answer = encode(client.respond(asked, update))
                    self.server.receive(c, decode(answer))
                except ClientWithheld:
                    gone.add(c)
            messages = self.server.advance()
        return self


def updates(clients: int = 4) -> dict[int, np.ndarray]:
    draw = Seeded(3, "updates").generator()
    return {c: draw.normal(size=DIMENSION).astype(np.float32) for c in range(clients)}


@pytest.mark.parametrize("weighting", ["by_size", "equal"])
@pytest.mark.parametrize("active", [False, True])
def test_the_aggregate_is_the_weighted_mean_of_the_quantised_updates(
    weighting: Any, active: bool
) -> None:
    made, data = protection(weighting=weighting, active_security=active, clip=4.0), updates()
    silences: list[dict[str, set[int]]] = [{}, {"masked": {1}}, {"share": {0}}, {"unmask": {3}}]
    for silent in silences:
        result = Round(made, data).play(silent).server.aggregate()
        there = set(data) - silent.get("masked", set()) - silent.get("share", set())
        fixed = FixedPoint(4.0, 20)
        numbers = {
            c: fixed.quantise(data[c], Seeded(0, "report", 2, c).stream("rounding", 0))
            for c in there
        }
        weights = {c: c + 1 if weighting == "by_size" else 1 for c in there}
        total = sum(weights[c] * numbers[c] for c in there)
        expected = total * (4.0 / fixed.largest) / sum(weights.values())
        assert (result.update == expected).all()
        assert result.reports == len(there)
        assert result.state == {}


def test_below_the_threshold_the_round_is_void() -> None:
    made, data = protection(), updates()
    for phase, silent in (
        ("advertise", {"advertise": {0, 1}}),
        ("share", {"advertise": {2}, "share": {0}}),
        ("masked", {"masked": {0, 1}}),
        ("unmask", {"masked": {0}, "unmask": {1}}),
    ):
        lone = Round(made, data)
        with pytest.raises(RoundVoid) as void:
            lone.play(silent)
        assert (void.value.phase, void.value.got, void.value.needed) == (phase, 2, 3)
        with pytest.raises(RoundVoid):
            lone.server.aggregate()


def test_without_masks_the_round_is_void_below_the_same_threshold() -> None:
    made = protection(5, masks=False, weighting="equal", reconstruct_secrets_threshold=4)
    assert made.least_survivors < 4 == made.least_clients
    data = updates(5)
    assert Round(made, data).play({"masked": {2}}).server.aggregate().reports == 4
    with pytest.raises(RoundVoid) as void:
        Round(made, data).play({"masked": {2, 4}}).server.aggregate()
    assert (void.value.phase, void.value.got, void.value.needed) == ("masked", 3, 4)


def test_the_share_secrets_ratio_says_how_many_share() -> None:
    made = protection(10, share_secrets_ratio=0.65, reconstruct_secrets_threshold=5)
    assert made.terms(1).sharing == 7
    sizes = dict.fromkeys(range(10), 1)
    assert Round(made, updates(10), sizes).play().server.aggregate().reports == 7
    assert PWEncryptSettings(share_secrets_ratio=0.07).sharing_clients(100) == 7


@pytest.mark.parametrize("weight", [3, 0, -1, -3])
def test_weights_that_cannot_be_end_the_round(weight: int) -> None:
    made, data = protection(weighting="equal"), updates()
    lying = Round(made, data)
    lying.clients[2]._vector = lambda update, told: np.array([0, 0, 0, 0, 0, weight])  # type: ignore[method-assign]
    lying.play()
    said = f"the weights of 4 clients cannot have the sum {3 + weight}"
    with pytest.raises(RoundVoid, match=said):
        lying.server.aggregate()


def test_a_client_with_too_many_examples_reports_nothing() -> None:
    made = protection(max_examples=100)
    done = Round(made, updates(), {1: 101, 2: 100}).play()
    assert done.server.aggregate().reports == 3
    messages = done.clients[1]
    with pytest.raises(ClientWithheld, match="max_examples = 100 examples"):
        messages._vector(updates()[1], {})


def test_each_part_of_a_long_update_has_its_own_entries_and_rounding() -> None:
    """Updates are rounded in parts of 65,536 entries. The weight multiplies each of them."""
    length = 2 * 65_536
    made = protection(dimension=length)
    update = np.full(length, 0.5 * made.fixed.step, np.float32)
    update[[7, -2]] = 0.25, -0.5
    context = ClientContext(1, 2, np.zeros(length, np.float32), 3, Seeded(0, "long"))
    vector = whole(made.vector(update, context, {}))
    assert vector[-1] == 3
    steps = vector[:-1] / 3
    np.testing.assert_allclose(steps, update.astype(np.float64) / made.fixed.step, rtol=0, atol=1)
    assert not np.array_equal(steps[8:65_530], steps[65_536 + 8 : 65_536 + 65_530])


def test_two_slices_of_a_vector_have_their_own_rounding_and_no_copy_of_it_is_made() -> None:
    length = 10 * 65_536
    made = protection(dimension=length, masks=False)
    update = np.full(length, 0.5 * made.fixed.step, np.float32)
    context = ClientContext(1, 2, np.zeros(length, np.float32), 3, Seeded(0, "long"))
    vector: Any = made.vector(update, context, {})
    first, second = (next(vector.numbers(slice(begin, length))) for begin in (0, 65_536))
    assert not np.array_equal(first, second)
    half = made.client_round(context)
    size = half.respond({"round": 2}, update)["vector"].nbytes  # type: ignore[union-attr]
    tracemalloc.start()
    half.respond({"round": 2}, update)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < size + 4 * 8 * 65_536


def test_entries_beyond_clip_are_warned_about() -> None:
    made, data = protection(clip=0.5), updates()
    with pytest.warns(FedveilWarning, match=r"pw_encrypt\.clip = 0\.5 and are clipped"):
        result = Round(made, data).play().server.aggregate()
    assert np.abs(result.update).max() <= 0.5
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Round(protection(clip=50.0), data).play()


def test_the_ring_has_room_for_a_whole_cohort_of_the_largest_weights() -> None:
    assert protection(50).ring.bits == (2 * 50 * (2**19 - 1) * 65_535).bit_length() == 42
    assert protection(50, weighting="equal", entry_bits=16).ring.bits == 22
    largest = protection(1 << 20, entry_bits=24, max_examples=1 << 20)
    assert largest.ring.bits == 64
    made = protection(entry_bits=24, max_examples=1 << 20, clip=1.0)
    extreme = {c: np.full(DIMENSION, (-1) ** (c == 3), np.float32) for c in range(4)}
    result = Round(made, extreme, dict.fromkeys(range(4), 1 << 20)).play().server.aggregate()
    assert (result.update == 0.5).all()


def test_what_it_costs_and_what_is_carried() -> None:
    made = protection()
    assert made.initial_state() == {}
    [spent] = made.spending({})
    assert (spent.loss.epsilon, spent.loss.per, spent.count) == (math.inf, "update", 1)


def test_one_server_only() -> None:
    halves = [Round(protection(), updates()).server for _ in range(2)]
    with pytest.raises(InvalidValue, match="one server"):
        halves[0].merge(halves[1])


def test_a_cohort_larger_than_the_terms_is_refused() -> None:
    with pytest.raises(InvalidValue, match="the cohort has 5 clients, but the terms are for 4"):
        Round(protection(), updates(5))


def test_the_graph_of_the_settings() -> None:
    made = protection(20, neighbours=6, reconstruct_secrets_threshold=3)
    assert made.terms(1).neighbours == 6
    done = Round(made, updates(20), dict.fromkeys(range(20), 2)).play({"masked": {4, 9}})
    assert done.server.aggregate().reports == 18
    settings = PWEncryptSettings(reconstruct_secrets_threshold=80)
    assert settings.graph_degree(5000) == masking_graph.automatic(5000, 80)
    assert settings.graph_degree(1000) is None
    for complete in ({"neighbours": "complete"}, {"active_security": True}):
        changed = settings.model_copy(update=complete)
        assert changed.graph_degree(5000) is None


def test_outside_simulation_keys_come_from_the_roster_and_not_from_the_seed() -> None:
    keys = {client: bytes([client]) * 32 for client in (0, 2)}
    own = Secret(bytes(range(32)))
    made = protection(active_security=True, simulated=False, roster=keys, identity=own)
    assert [made.terms(1).roster(client) for client in range(3)] == [keys[0], None, keys[2]]
    mine = made.identity(2)
    assert mine is not None
    assert mine.public == Identity(own).public
    made = protection(active_security=True, simulated=False)
    assert made.terms(1).roster(0) is None
    with pytest.raises(InvalidValue, match="needs the client's own identity"):
        Round(made, updates())
    assert protection(active_security=True).terms(1).roster(0) is not None


def test_each_client_and_each_round_has_randomness_of_its_own() -> None:
    made = protection(active_security=True, seed=5)
    keys = {made.identity(client).public for client in (0, 1, 2)}  # type: ignore[union-attr]
    assert len(keys) == 3
    assert made.identity(1) is made.identity(1)
    other = protection(active_security=True, seed=6).identity(1)
    assert other is not None
    assert other.public not in keys
    assert protection().identity(1) is None
    words = [made.graph_entropy(round).words(2).tolist() for round in (1, 1, 2)]
    assert words[0] == words[1] != words[2]
    away = [protection(simulated=False).graph_entropy(1).words(2).tolist() for _ in range(2)]
    assert away[0] != away[1]


def test_without_masks_bits_behind_the_last_entry_are_refused() -> None:
    made = protection(masks=False, weighting="equal", entry_bits=11)
    assert made.length * made.ring.bits % 8
    lone = Round(made, updates())
    opening = lone.server.opening()
    answer = decode(encode(lone.clients[1].respond(opening, lone.updates[1])))
    spoilt = answer["vector"].copy()
    spoilt[-1] |= 0x80
    with pytest.raises(ReportRejected, match="field vector has bits after its last entry"):
        lone.server.receive(1, {**answer, "vector": spoilt})
    lone.server.receive(1, answer)
    assert lone.server.reports == 1


def test_a_model_is_digested_once_a_round_for_all_that_have_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, sha256, lengths = protection(), hashlib.sha256, []

    def counted(data: Any) -> Any:
        lengths.append(len(bytes(data)))
        return sha256(data)

    monkeypatch.setattr("fedveil.protections.secure_sum.hashlib.sha256", counted)
    model = np.arange(DIMENSION, dtype=np.float32)
    contexts = [ClientContext(c, 2, model, 1, Seeded(0)) for c in range(9)]
    (first,) = {made.origin(context, {}) for context in contexts}
    assert made.origin(RoundContext([0, 1], 2, model), {}) == first
    assert lengths.count(model.nbytes) == 1
    model[0] = 7  # the simulator reuses the memory of the last round's weights
    later = ClientContext(0, 3, model, 1, Seeded(0))
    assert made.origin(later, {}) != first
    assert made.origin(later, {"clip": 1.0}) != made.origin(later, {"clip": 2.0})
    assert made.origin(replace(later, origin=lambda: b"all arrays"), {}) == b"all arrays"


def test_the_digest_covers_what_is_sent_beside_the_model() -> None:
    """A client that was sent other control variates must not share a sum with the others.

    Nor must one that was told another shape of its examples, with which its training fails.
    """
    made, last = protection(), np.zeros(0, np.int64)
    sent = np.arange(DIMENSION + 3, dtype=np.float32)
    other = sent.copy()
    other[-1] += 1
    contexts = [
        RoundContext.of_sent(s, DIMENSION, [4, 1], 2, {}, last, told)
        for told in ({}, {"classes": 10, "fingerprint": "a"}, {"classes": 11, "fingerprint": "a"})
        for s in (sent, other, sent[:DIMENSION])
    ]
    assert len({made.origin(context, {}) for context in contexts}) == 9
    assert [context.sent.tolist() for context in contexts[:3]] == [
        sent.tolist(), other.tolist(), sent[:DIMENSION].tolist(),
    ]  # fmt: skip
    for context, told in ((contexts[0], {}), (contexts[3], {"fingerprint": "a", "classes": 10})):
        origin = partial(origin_of, sent, DIMENSION, told)
        mine = ClientContext(1, 2, sent[:DIMENSION], 5, Seeded(0), origin=origin)
        assert made.origin(mine, {}) == made.origin(context, {})


def test_another_model_for_one_client_leaves_noise() -> None:
    """Masked vectors stay masked in the mean too. An impossible sum of weights ends the round."""
    made, data = protection(), updates()
    lone = Round(made, data)
    context = lone.clients[0]._context
    lone.clients[0]._context = replace(context, model=np.ones(DIMENSION, np.float32))
    lone.play()
    with pytest.raises(RoundVoid, match="the weights of 4 clients cannot have the sum"):
        lone.server.aggregate()


def test_an_update_leaves_once_a_round() -> None:
    answered = {c: Answered() for c in range(4)}
    made, data = protection(), updates()

    def attempt() -> Round:
        lone = Round(made, data)
        for c, client in lone.clients.items():
            client._context = replace(client._context, answered=answered[c])
        return lone

    attempt().play({"masked": {3}})  # client 3 has not sent its vector
    assert {c: a.last for c, a in answered.items()} == {0: 2, 1: 2, 2: 2, 3: -1}
    with pytest.raises(RoundVoid) as void:
        attempt().play()
    assert (void.value.phase, void.value.got) == ("advertise", 1)
    assert answered[3].last == -1


def test_the_deadline_is_the_cipher_time_window() -> None:
    assert protection(cipher_time_window=1500).deadline_s == 1.5


# Whole runs.


def job(position: str = "pw_encrypt", **blocks: Any) -> Job:
    settings = {"reconstruct_secrets_threshold": 5, **blocks.pop("pw_encrypt", {})}
    base: dict[str, Any] = {
        "name": "small",
        "rounds": 3,
        "clients": {"number": 8, "fraction": 1.0},
        "data": {"name": "parts:data"},
        "model": "parts:plain",
        "training": {"epochs": 1, "batch_size": 5, "lr": 0.2},
        "protection": {"name": position, "pw_encrypt": settings},
        "simulation": {"workers": 0, "dropouts": {"masked": 0.25}},
        "record": {"page": False},
    }
    return Job(**{**base, **blocks})


def weights(run: fedveil.Run) -> np.ndarray:
    return np.concatenate([t.numpy().ravel() for t in run.model.state_dict().values()])


def test_a_run_ends_where_plain_averaging_of_the_same_survivors_ends(tmp_path: Path) -> None:
    plain = fedveil.simulate(job("not_encrypt"), tmp_path / "plain")
    for name, change in {
        "complete": {},
        "active": {"active_security": True},
        "sparse": {"neighbours": 6, "reconstruct_secrets_threshold": 3},
    }.items():
        secure = fedveil.simulate(job(pw_encrypt=change), tmp_path / name)
        for record in secure.metrics:
            assert (record["reports"], record["dropped"], record["void"]) == (6, 2, None)
            assert record["rejected"] == record["withheld"] == record["failed"] == {}
            assert math.isinf(record["epsilon_run_most_drawn"])
        assert np.abs(weights(secure) - weights(plain)).max() < 1e-4
        assert np.abs(weights(secure) - weights(plain)).max() > 0


def test_void_rounds_are_recorded_and_the_run_goes_on(tmp_path: Path) -> None:
    """With half of the clients silent, every round is void, and the model does not change."""
    for phase, text in (
        ("share", "4 clients answered in phase share, but 5 are needed"),
        ("masked", "4 clients answered in phase masked, but 5 are needed"),
        ("unmask", "4 clients answered in phase unmask, but 5 are needed"),
    ):
        silent = {"workers": 0, "dropouts": {phase: 0.5}}
        with pytest.raises(RunFailed, match=text):
            fedveil.simulate(job(simulation=silent), tmp_path / phase)
        records = records_of(tmp_path / phase)
        assert [r["void"] for r in records] == [f"the round is void: {text}"] * 3
        assert len({r["loss"] for r in records}) == 1
    plan = {"workers": 0, "dropouts": {"share": 0.125, "masked": 0.125, "unmask": 0.125}}
    run = fedveil.simulate(job(simulation=plan), tmp_path / "all")
    assert [(r["reports"], r["void"]) for r in run.metrics] == [(6, None)] * 3


@pytest.mark.usefixtures("warm_workers")
def test_workers_change_nothing(tmp_path: Path) -> None:
    runs = [
        fedveil.simulate(
            job(simulation={"workers": n, "dropouts": {"masked": 0.25, "unmask": 0.125}}),
            tmp_path / str(n),
        )
        for n in (0, 2)
    ]
    shown = [
        json.dumps([{k: v for k, v in r.items() if "seconds" not in k} for r in run.metrics])
        for run in runs
    ]
    assert shown[0] == shown[1]
    assert (weights(runs[0]) == weights(runs[1])).all()


def test_nothing_in_the_run_folder_shows_a_seed(tmp_path: Path) -> None:
    run = fedveil.simulate(job(rounds=1), tmp_path / "run")
    secrets = [Seeded(run.job.seed, "reports", "report", 1, c).token(32) for c in range(8)]
    for file in run.folder.rglob("*"):
        if file.is_file():
            data = file.read_bytes()
            assert not any(secret in data or shows(repr(data), secret) for secret in secrets)


@pytest.mark.slow
@pytest.mark.skipif("FEDVEIL_DATA" not in os.environ, reason="FEDVEIL_DATA names no folder")
def test_mnist_ends_within_0_3_points_of_plain_averaging_with_the_same_survivors(
    tmp_path: Path,
) -> None:
    accuracy = {}
    for position in ("not_encrypt", "pw_encrypt"):
        run = fedveil.simulate(
            job(
                position,
                rounds=20,
                clients={"number": 100, "fraction": 1.0},
                data={"name": "mnist"},
                model="lenet",
                training={"epochs": 1, "batch_size": 20, "lr": 0.1},
                simulation={"dropouts": {"masked": 0.1}},
                pw_encrypt={"reconstruct_secrets_threshold": 67},
            ),
            tmp_path / position,
        )
        assert [record["reports"] for record in run.metrics] == [90] * 20
        accuracy[position] = run.metrics[-1]["accuracy"]
    assert abs(accuracy["pw_encrypt"] - accuracy["not_encrypt"]) <= 0.003


def test_more_clients_than_can_share_secrets_are_refused_before_anything_is_worked_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A job or the server of an app may state the number. Both are checked."""
    for name in ("automatic", "default_threshold"):
        monkeypatch.setattr(masking_graph, name, lambda *_: pytest.fail("worked out"))
    settings = PWEncryptSettings()
    with pytest.raises(InvalidValue, match=r"sharing = 1048577 is outside \[1, 1048576\]"):
        settings.graph_degree((1 << 20) + 1)
    with pytest.raises(JobError) as refused:
        Job.load(None, ["protection=pw_encrypt", "clients.number=2000000", "clients.fraction=1"])
    assert refused.value.problems[0] == (
        "protection.pw_encrypt.share_secrets_ratio = 1 lets 2000000 of 2000000 clients in a round "
        "share secrets; at most 1048576 can"
    )


def test_the_words_of_a_round_do_not_take_the_place_of_its_model() -> None:
    """Clients agree on the digest: a server cannot hand each of them another model."""
    made = protection()
    context = RoundContext([0, 1], 2, np.zeros(DIMENSION, np.float32))
    other = replace(context, model=np.ones(DIMENSION, np.float32))
    digests = [made.origin(c, words) for c in (context, other) for words in ({}, {"clip": 0.5})]
    assert len(set(digests)) == 4
