"""Whole rounds: the sum is exact whoever drops out when, or there is none; masks hide."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from fedveil.entropy import Seeded
from fedveil.errors import InvalidValue, RoundVoid
from fedveil.secagg import client, masking_graph, run_round, shamir
from fedveil.secagg.masking import add_masks
from fedveil.secagg.phases import PHASES
from secagg_parts import Played


def vectors(count: int, length: int = 6, seed: int = 0) -> dict[int, np.ndarray]:
    draw = Seeded(seed, "vectors").generator()
    return {5 * i + 1: draw.integers(-(10**6), 10**6, length) for i in range(count)}


@st.composite
def plans(draw: Any) -> tuple[int, int, dict[Any, list[int]], bool]:
    count = draw(st.integers(2, 20))
    threshold = draw(st.integers(1, count))
    active = draw(st.booleans())
    silent = draw(
        st.lists(st.sampled_from([*PHASES, *["never"] * 15]), min_size=count, max_size=count)
    )
    drop: dict[Any, list[int]] = {}
    for i, phase in enumerate(silent):
        if phase != "never":
            drop.setdefault(phase, []).append(5 * i + 1)
    return count, threshold, drop, active


def left(data: dict[int, Any], drop: dict[Any, list[int]], phase: str) -> set[int]:
    """Return the clients that have answered a phase."""
    gone = {c for p in PHASES[: PHASES.index(phase) + 1] for c in drop.get(p, ())}  # type: ignore[arg-type]
    return set(data) - gone


@settings(max_examples=35)
@given(plans())
def test_complete_graph_any_pattern(plan: tuple[int, int, dict[Any, list[int]], bool]) -> None:
    """At or above the threshold in every phase the sum is exact; else the first phase below."""
    count, threshold, drop, active = plan
    data = vectors(count)
    flow = [p for p in PHASES if active or p != "consistency"]
    below = [p for p in flow if len(left(data, drop, p)) < threshold]
    if below:
        with pytest.raises(RoundVoid) as void:
            run_round(data, threshold, drop=drop, active_security=active, entropy=Seeded(1))
        got = len(left(data, drop, below[0]))
        assert (void.value.phase, void.value.got, void.value.needed) == (below[0], got, threshold)
        return
    done = run_round(data, threshold, drop=drop, active_security=active, entropy=Seeded(1))
    assert done.survivors == left(data, drop, "masked")
    assert done.total.dtype == np.int64
    assert (done.total == sum(data[c] for c in done.survivors)).all()
    assert list(done.bytes_up) == list(done.bytes_down) == flow


@settings(max_examples=25)
@given(plans(), st.data())
def test_sparse_graph_any_pattern(
    plan: tuple[int, int, dict[Any, list[int]], bool], data: st.DataObject
) -> None:
    """The sum is exact where every neighbourhood keeps the threshold, and the survivors are
    connected. Otherwise the round is void.
    """
    count, _, drop, _ = plan
    drop.pop("consistency", None)
    inputs = vectors(count)
    degree = data.draw(st.integers(1, count - 1))
    threshold = data.draw(st.integers(1, degree + 1))
    sharers = left(inputs, drop, "share")
    there = {p: left(inputs, drop, p) for p in ("advertise", "share", "masked", "unmask")}
    advertised = sorted(there["advertise"])
    graph = masking_graph.sparse(advertised, degree, Seeded(1, "server")) if advertised else None
    fewest = {
        p: min((len(there[p] & set(graph.around(c))) for c in sharers if graph), default=0)
        for p in ("share", "masked", "unmask")
    }
    enough = len(there["advertise"]) >= threshold and min(fewest.values()) >= threshold
    if not enough:
        with pytest.raises(RoundVoid) as void:
            run_round(inputs, threshold, drop=drop, neighbours=degree, entropy=Seeded(1))
        assert void.value.needed == threshold > void.value.got
        return
    if graph is not None and not graph.connects(there["masked"]):
        with pytest.raises(RoundVoid, match="cut the masking graph"):
            run_round(inputs, threshold, drop=drop, neighbours=degree, entropy=Seeded(1))
        return
    done = run_round(inputs, threshold, drop=drop, neighbours=degree, entropy=Seeded(1))
    assert done.survivors == there["masked"]
    assert (done.total == sum(inputs[c] for c in done.survivors)).all()


def test_dropouts_that_cut_the_graph_leave_no_sum_of_a_part() -> None:
    """With a threshold of 2 of 5, a server could unmask the sum of the two between two gaps."""
    played = Played(13, 2, neighbours=4)
    drawn = masking_graph.sparse(played.ids, 4, played.root.stream("server"))
    circle = sorted(drawn.numbers, key=drawn.numbers.__getitem__)
    once = [circle[place] for place in (11, 12, 0)]
    assert Played(13, 2, neighbours=4).play({"masked": once}).exact
    twice = [*once, circle[3], circle[4]]
    with pytest.raises(RoundVoid, match="the clients that dropped out cut the masking graph") as v:
        played.play({"masked": twice})
    assert (v.value.phase, v.value.got, v.value.needed) == ("masked", 0, 2)
    assert played.server._state.name == "void"
    assert not any(phase == "unmask" for phase, _ in played.requests)


@pytest.mark.parametrize("threshold", range(1, 7))
def test_every_threshold_and_nobody_to_spare(threshold: int) -> None:
    data = vectors(6)
    ids = sorted(data)
    drop = {"unmask": ids[threshold:]}
    assert (run_round(data, threshold, drop=drop).total == sum(data.values())).all()


@pytest.mark.parametrize("threshold", range(2, 7))
def test_holders_fewer_than_the_threshold_do_not_have_a_dealers_secrets(threshold: int) -> None:
    """The clients' shares of each other's secrets are combined as a server would do it."""
    played = Played(6, threshold).play()
    for dealer, dealing in played.clients.items():
        held = [client._held[dealer] for client in played.clients.values()]
        shares = np.stack([shamir.decode_shares(both) for both in held], axis=1)
        secrets = [dealing._seed, dealing._mask.secret]
        points = np.arange(1, 7)
        assert shamir.join(points[:threshold], shares[:, :threshold]) == secrets
        for few in (slice(threshold - 1), slice(7 - threshold, 6)):
            joined = shamir.join(points[few], shares[:, few])
            assert all(a != b for a, b in zip(joined, secrets, strict=True))


def test_real_vectors_sum_to_their_quantised_sum() -> None:
    draw = Seeded(0).generator()
    data = {i: draw.normal(size=500) for i in range(7)}
    done = run_round(data, 4, drop={"masked": [2]}, bits=12, clip=2.0, entropy=Seeded(3))
    step = 2.0 / 2047
    numbers = done.total / step
    assert np.abs(numbers - np.round(numbers)).max() < 1e-6
    clipped = sum(np.clip(data[i], -2, 2) for i in done.survivors)
    assert np.abs(done.total - clipped).max() <= 6 * step
    assert np.abs(done.total - clipped).max() > step / 10
    assert np.abs(run_round(data, 4, bits=24).total - sum(data.values())).max() < 1e-5
    below = {i: -np.abs(vector) for i, vector in data.items()}
    assert np.abs(run_round(below, 4, bits=24).total - sum(below.values())).max() < 1e-5


def test_a_sum_is_of_at_least_as_many_clients_as_its_noise_needs() -> None:
    """A secret can be reconstructed by fewer."""
    for active in (False, True):
        assert Played(5, 3, least=4, active_security=active).play({"masked": [6]}).exact
        with pytest.raises(RoundVoid) as void:
            Played(5, 3, least=5, active_security=active).play({"masked": [6]})
        assert (void.value.phase, void.value.got, void.value.needed) == ("masked", 4, 5)
    with pytest.raises(RoundVoid) as void:  # enough vectors, and a secret that one client holds
        Played(9, 3, least=5, neighbours=4).play({"masked": [0, 3, 9, 12]})
    assert (void.value.phase, void.value.got, void.value.needed) == ("masked", 1, 3)


@pytest.mark.parametrize("phase", ["share", "masked", "unmask"])
def test_a_sparse_round_is_void_as_soon_as_too_few_hold_a_secret(phase: str) -> None:
    """Five answer, more than the threshold. Only two of them hold the shares of one client."""
    with pytest.raises(RoundVoid) as void:
        Played(9, 3, neighbours=4).play({phase: [0, 3, 9, 15]})
    assert (void.value.phase, void.value.got, void.value.needed) == (phase, 2, 3)


def test_clients_are_in_the_order_of_their_numbers() -> None:
    """A set holds small numbers by their remainders: 8 and 64 come before 1."""
    assert list({64, 8, 1, 33, 6}) != sorted({64, 8, 1, 33, 6})
    data = dict(zip((64, 8, 1, 33, 6), vectors(5).values(), strict=True))
    of_numpy = {np.int64(client): vector for client, vector in data.items()}
    for each in (data, of_numpy):
        done = run_round(each, 3, active_security=True)
        assert done.survivors == set(data)
        assert done.total.tolist() == sum(data.values()).tolist()


def test_a_silent_client_gets_its_message_and_sends_none() -> None:
    data = vectors(5)
    whole, done = run_round(data, 3), run_round(data, 3, drop={"masked": [6]})
    assert done.bytes_down["masked"] == whole.bytes_down["masked"]
    assert 5 * done.bytes_up["masked"] == 4 * whole.bytes_up["masked"]


def test_extreme_integers_do_not_wrap() -> None:
    for largest in (0, 1, 2**31 - 1, 2**61 - 1):
        data = {i: np.array([largest, -largest, (-1) ** i * largest]) for i in range(3)}
        assert run_round(data, 2).total.tolist() == sum(data.values()).tolist()
        for sign in (-1, 1):  # all of one sign, so that one end alone decides the ring
            data = {i: np.array([sign * largest, 0, sign * (largest // 3)]) for i in range(3)}
            assert run_round(data, 2).total.tolist() == sum(data.values()).tolist()
    with pytest.raises(InvalidValue, match="does not fit 64 bits"):
        run_round({i: np.array([2**62]) for i in range(3)}, 2)


def test_a_seeded_round_repeats_to_the_byte() -> None:
    one, other, third = (Played(4, seed=seed).play({"masked": [3]}).answers for seed in (1, 1, 2))
    assert str(one) == str(other)
    assert str(one) != str(third)


def test_a_client_may_be_silent_from_a_phase_on_that_the_round_leaves_out() -> None:
    """Without signatures there is no phase `consistency`, so the client is silent at the next."""
    data = vectors(5)
    done, same = (run_round(data, 3, drop={p: [6, 16]}) for p in ("consistency", "unmask"))
    assert (done.total == sum(data.values())).all()
    assert done.bytes_up == same.bytes_up
    with pytest.raises(RoundVoid, match="2 clients answered in phase unmask, but 3 are needed"):
        run_round(data, 3, drop={"consistency": [1, 6, 16]})


def test_clients_round_independently_of_each_other() -> None:
    """Errors of equal vectors would otherwise add up in their sum instead of averaging out."""
    halves = {client: np.full(60, 2.5) for client in (1, 4, 6, 9, 10)}
    total = run_round(halves, 3, clip=7.0, bits=4, entropy=Seeded(8)).total
    assert set(total) > {11.0, 12.0, 13.0, 14.0}, "five draws of 2 or 3 for each entry"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"threshold": 0}, r"threshold = 0 is outside \[1, 3\]"),
        ({"threshold": 4}, r"threshold = 4 is outside \[1, 3\]"),
        ({"threshold": 4, "neighbours": 2}, r"threshold = 4 is outside \[1, 3\]"),
        ({"neighbours": 3}, r"neighbours = 3 is outside \[1, 2\]"),
        ({"neighbours": 2, "active_security": True}, "requires the complete"),
        ({"drop": {"later": [1]}}, "drop's phase = 'later' is not one of advertise, "),
        ({"drop": {"share": [2]}}, r"drop\['share'\] names client 2"),
        ({"drop": 1}, "drop = 1 is not a mapping such as {'masked': "),
        ({"drop": {"share": 1}}, r"drop\['share'\] = 1 is not a list of clients"),
        ({"neighbours": "2"}, "neighbours = '2' is not a whole number"),
        ({"clip": 1.0}, "clip = 1.0 is for real vectors"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidValue, match=text):
        run_round(vectors(3), **{"threshold": 2, **arguments})


def test_bad_vectors() -> None:
    with pytest.raises(InvalidValue, match="vectors is a list: use a mapping, client: vector"):
        run_round([np.zeros(2), np.zeros(2)], 1)
    with pytest.raises(InvalidValue, match="vectors of 1 clients"):
        run_round(vectors(1), 1)
    with pytest.raises(InvalidValue, match="different lengths"):
        run_round({1: np.zeros(2), 2: np.zeros(3)}, 1)
    with pytest.raises(InvalidValue, match="NaN"):
        run_round({1: np.zeros(2), 2: np.array([0, np.nan])}, 1)
    with pytest.raises(InvalidValue, match="one dimension"):
        run_round({1: np.zeros((2, 2)), 2: np.zeros((2, 2))}, 1)
    with pytest.raises(InvalidValue, match=r"vectors\[1\] has shape \(0,\), one dimension"):
        run_round({1: np.zeros(0, np.int64), 2: np.zeros(0, np.int64)}, 1)
    for number in (-1, 2**63):
        with pytest.raises(InvalidValue, match=f"client = {number} is outside"):
            run_round({5: np.zeros(3), number: np.ones(3)}, 1)


#: 9,600 entries. Each run has its own masks: what repeats in an entry or a run is not uniform.
RUNS, LENGTH = 20, 480


def masked_entries(value: int, runs: int) -> np.ndarray:
    """Client 0's masked vectors of many rounds, its true one being `value` everywhere."""
    seen = []
    for run in range(runs):
        played = Played(3, 2, seed=run, length=LENGTH, bits=8)
        played.vectors = {c: np.full(LENGTH, value) for c in played.ids}
        seen.append(np.asarray(played.play().answers["masked", 0]["vector"]))
    return np.concatenate(seen)


def statistic(entries: np.ndarray) -> float:
    counts = np.bincount(entries, minlength=256)
    return float(((counts - counts.mean()) ** 2 / counts.mean()).sum())


def test_what_the_server_sees_is_uniform() -> None:
    """Masked vectors of two chosen inputs have one law, the uniform one."""
    limit = chi2.isf(1e-6, 255)
    one, other = masked_entries(0, RUNS), masked_entries(77, RUNS)
    assert statistic(one) < limit
    assert statistic(other) < limit
    counts = np.stack([np.bincount(e, minlength=256) for e in (one, other)])
    expected = counts.sum(axis=0) / 2
    assert float(((counts - expected) ** 2 / expected).sum()) < limit


@pytest.mark.parametrize("left_out", ["own", "pair"])
def test_every_single_mask_is_needed(left_out: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take all other masks off a masked vector: uniform with the last one, plain without it."""
    real = client.masked
    kept: list[Any] = []

    def spy(vector: Any, ring: Any, seeds: list[Any]) -> np.ndarray:
        if len(seeds) == 3 and not kept:
            kept.extend(seeds)
        return real(vector, ring, seeds)

    monkeypatch.setattr(client, "masked", spy)
    hidden, shown = [], []
    for run in range(RUNS):
        kept.clear()
        played = Played(3, 2, seed=run, length=LENGTH, bits=8)
        played.vectors = {c: np.full(LENGTH, 77) for c in played.ids}
        played.play()
        masked = np.asarray(played.answers["masked", 0]["vector"]).astype(np.uint32)
        last = 0 if left_out == "own" else 1
        add_masks(masked, [(seed, not plus) for i, (seed, plus) in enumerate(kept) if i != last])
        hidden.append(masked.astype(np.uint8))
        seed, plus = kept[last]
        add_masks(masked, [(seed, not plus)])
        shown.append(masked.astype(np.uint8))
    limit = chi2.isf(1e-6, 255)
    assert statistic(np.concatenate(hidden)) < limit
    assert (np.concatenate(shown) == 77).all()
    assert statistic(np.concatenate(shown)) > limit
