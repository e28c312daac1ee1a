"""The largest effect of one client on the aggregate through a report that no server half refuses.

Measured with the real server halves, and compared with the formulas and figures of SECURITY.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedveil.base.message import Message, decode, encode
from fedveil.base.packing import pack
from fedveil.entropy import Seeded
from fedveil.errors import ReportRejected, RoundVoid
from fedveil.federated.job import Job
from fedveil.mechanisms.hadamard import rotate
from fedveil.mechanisms.signds.index_code import encode_indices
from fedveil.protections.base import JobContext, RoundContext
from fedveil.protections.catalog import build
from fedveil.protections.exact_sum import MAX_MAGNITUDE
from fedveil.protections.robust_combining import CombiningRule
from fedveil.secagg.client import Client
from round_parts import ROUND, client_half, report_of, server_half
from whole_vector import whole

PAGE = (Path(__file__).parents[2] / "SECURITY.md").read_text(encoding="utf-8")
DIMENSION = 200
HONEST = list(range(19))
LIAR = 19
CLIENTS = 20
MODEL = np.zeros(DIMENSION, np.float32)
pytestmark = pytest.mark.filterwarnings("ignore::fedveil.errors.FedveilWarning")


def make(*overrides: str, **changes: Any) -> Any:
    given = (*overrides, f"clients.number={CLIENTS}", "clients.fraction=1")
    job = Job.load(None, given)
    combining = CombiningRule(job.server.aggregation, job.server.trim, job.server.norm_bound)
    context = JobContext(job.server.weighting, DIMENSION, CLIENTS, rounds=3, combining=combining)
    return build(job.protection.name, job.protection.settings, replace(context, **changes))


def update_of(client: int) -> npt.NDArray[np.float32]:
    return Seeded(2, client).generator().normal(0, 0.1, DIMENSION).astype(np.float32)


class Others:
    """The reports of 19 honest clients, and their aggregate together with a liar's report."""

    def __init__(self, *overrides: str, examples: int = 9) -> None:
        self.protection = make(*overrides)
        opening = server_half(self.protection, [*HONEST, LIAR], MODEL).opening()
        self.reports = {
            client: report_of(
                client_half(self.protection, client, MODEL, examples=examples),
                opening,
                update_of(client),
            )
            for client in HONEST
        }

    def with_report(self, **fields: Any) -> npt.NDArray[np.float64]:
        half = server_half(self.protection, [*HONEST, LIAR], MODEL)
        lie: Message = {"round": ROUND, **fields}
        for client, report in {**self.reports, LIAR: lie}.items():
            data = encode(report)
            assert len(data) <= half.longest
            half.receive(client, decode(data, half.longest))
        half.advance()
        aggregate = half.aggregate()
        assert aggregate.reports == CLIENTS
        update: npt.NDArray[np.float64] = aggregate.update
        return update

    def between(self, low: dict[str, Any], high: dict[str, Any]) -> npt.NDArray[np.float64]:
        """Return the difference of the aggregates with two lies. One lie adds half of it."""
        apart: npt.NDArray[np.float64] = self.with_report(**high) - self.with_report(**low)
        return apart


def row(position: str) -> str:
    """Return the page's row for a protection."""
    (found,) = [line for line in PAGE.splitlines() if line.startswith(f"| {position} |")]
    return found


# --- not_encrypt ------------------------------------------------------------------------------


def full(value: float) -> dict[str, Any]:
    return {"update": np.full(DIMENSION, value, np.float32)}


def test_not_encrypt_equal() -> None:
    others, most = Others("protection=not_encrypt", "server.weighting=equal"), 2.0**40
    apart = others.between(full(-most), full(most))
    np.testing.assert_allclose(apart, 2 * most / CLIENTS, rtol=1e-12)
    with pytest.raises(ReportRejected, match="too large"):
        others.with_report(**full(np.nextafter(np.float32(most), np.float32(np.inf))))
    assert most == MAX_MAGNITUDE
    assert "2^40 / n" in row("`not_encrypt`, `equal`")


def test_a_bound_on_the_norm() -> None:
    others = Others(
        "protection=not_encrypt", "server.aggregation=norm_bound", "server.weighting=equal"
    )
    one = np.zeros(DIMENSION, np.float32)
    one[0] = 2.0**40
    apart = others.between({"update": -one}, {"update": one})
    np.testing.assert_allclose(apart[0], 2 / CLIENTS, rtol=1e-6)
    assert "norm_bound / n" in row("`not_encrypt`, `norm_bound`")


@pytest.mark.parametrize("position", ["not_encrypt", "dp_encrypt"])
@pytest.mark.parametrize("aggregation", ["median", "trimmed_mean"])
def test_the_middle_stays_among_the_others(position: str, aggregation: str) -> None:
    """The trimmed share is the smallest possible one."""
    others = Others(
        f"protection={position}", f"server.aggregation={aggregation}", "server.trim=0.001"
    )
    reports = list(others.reports.values())
    if position == "not_encrypt":
        values, lies = [report["update"] for report in reports], [full(-(2.0**40)), full(2.0**40)]
    else:
        form = others.protection._form
        values = [form.read(report) * form.step for report in reports]
        ends = [np.full(DIMENSION, sign * form.limit) for sign in (-1, 1)]
        lies = [
            {"multiples": pack(end, -form.limit, form.width), "step": form.step} for end in ends
        ]
    for lie in lies:
        found = others.with_report(**lie)
        assert (found >= np.min(values, axis=0)).all()
        assert (found <= np.max(values, axis=0)).all()
    assert "between the least and the largest value" in row("`median`, `trimmed_mean`")


@pytest.mark.parametrize("largest", [65_535, 1000])
def test_not_encrypt_by_size(largest: int) -> None:
    """If the others have W examples together, the liar's share of the mean is M / (M + W)."""
    others = Others("protection=not_encrypt", f"protection.not_encrypt.max_examples={largest}")
    weight = 9 * len(HONEST)
    share = largest / (largest + weight)
    one = {"examples": largest}
    apart = others.between(full(-1.0) | one, full(1.0) | one)
    np.testing.assert_allclose(apart, 2 * share, rtol=1e-12)
    alone = sum(update_of(c).astype(np.float64) for c in HONEST) / len(HONEST)
    moved = others.with_report(**full(1.0), **one)
    np.testing.assert_allclose(moved, share + (1 - share) * alone, rtol=1e-6)
    # An entry times the weight is bounded, so the largest entry needs a small weight.
    with pytest.raises(ReportRejected, match="too large"):
        others.with_report(**full(2.0**40 / largest * 1.01), **one)
    with pytest.raises(ReportRejected, match="field examples is outside"):
        others.with_report(**full(1.0), examples=largest + 1)
    assert "M / (M + W)" in row("`not_encrypt`, `by_size`")
    share = 65_535 / (65_535 + 99 * 600)
    assert f"{math.ceil(100 * share)}% " in row("`not_encrypt`, `by_size`")


# --- dp_encrypt -------------------------------------------------------------------------------


def test_dp_encrypt() -> None:
    others = Others("protection=dp_encrypt")
    form, mechanism = others.protection._form, others.protection._form._mechanism
    limit = form.limit
    ends = [np.full(DIMENSION, sign * limit) for sign in (-1, 1)]
    low, high = (
        {"multiples": pack(values, -limit, form.width), "step": form.step} for values in ends
    )
    reach = mechanism.clip + 10 * mechanism.sigma
    apart = others.between(low, high)
    assert (apart <= 2 * (reach + form.step) / CLIENTS).all()
    assert (apart >= 2 * reach / CLIENTS * (1 - 1e-12)).all()
    # An honest update has a norm of at most the clip. The lie's norm grows with the model.
    assert np.linalg.norm(apart) / 2 >= math.sqrt(DIMENSION) * reach / CLIENTS * (1 - 1e-12)
    assert "(clip + 10 sigma) / n" in row("`dp_encrypt`")
    assert f"{math.ceil(100 * reach) / 100:.2f} / n" in row("`dp_encrypt`")
    assert "sqrt(d)" in row("`dp_encrypt`")


@pytest.mark.parametrize("dimension", [DIMENSION, 61_706])
def test_a_report_of_a_batch_reaches_much_further(dimension: int) -> None:
    """The sum of a batch is not clipped, so the server accepts entries up to 2^24 steps."""
    batch = {"unit": "example", "sampling_rate": 0.05, "dimension": dimension}
    form = make("protection=dp_encrypt", **batch)._form
    step, model = form.step, np.zeros(dimension, np.float32)
    assert step == 2.0 ** math.floor(math.log2(1 / (128 * math.sqrt(dimension))))
    found = []
    for sign in (-1, 1):
        half = server_half(make("protection=dp_encrypt", **batch), [*HONEST, LIAR], model)
        for client in HONEST:
            half.receive(client, {"round": ROUND, **form.written(np.zeros(dimension, np.int64))})
        lie = form.written(np.full(dimension, sign * form.limit))
        half.receive(LIAR, decode(encode({"round": ROUND, **lie}), half.longest))
        half.advance()
        found.append(half.aggregate().update)
    reach = 2.0**24 * step + 10 * form._mechanism.sigma
    np.testing.assert_allclose((found[1] - found[0]) / 2 * CLIENTS, reach, rtol=1e-6)
    said = row("`dp_encrypt`, `example`")
    assert "(2^24 step + 10 sigma) / n" in said
    if dimension > DIMENSION:
        assert f"for d = {dimension:,}: {math.ceil(reach)} / n" in said


def test_dp_encrypt_continuous() -> None:
    others = Others("protection=dp_encrypt", "protection.dp_encrypt.noise=continuous")
    mechanism = others.protection._form._mechanism
    reach = np.float32(mechanism.clip + 10 * mechanism.sigma)
    reach = np.nextafter(reach, np.float32(0))
    apart = others.between(full(-reach), full(reach))
    np.testing.assert_allclose(apart, 2 * float(reach) / CLIENTS, rtol=1e-9)
    with pytest.raises(ReportRejected, match="beyond its range"):
        others.with_report(**full(1.001 * reach))


# --- signds -----------------------------------------------------------------------------------

SIGNDS = ("protection=signds", "protection.signds.sign_k=0.2")


def selected(others: Others, sign: int, bit: bool | None) -> dict[str, Any]:
    size = others.protection.mechanism.plan(DIMENSION).dim_out
    report = {"sign": sign, "indices": encode_indices(np.arange(size), DIMENSION)}
    return report if bit is None else {**report, "bit": bit}


def test_signds_with_a_fixed_step() -> None:
    others = Others(*SIGNDS, "protection.signds.magnitude=fixed")
    size = others.protection.mechanism.plan(DIMENSION).dim_out
    apart = others.between(selected(others, -1, None), selected(others, 1, None))
    expected = np.zeros(DIMENSION)
    expected[:size] = 2 * 1.0 / CLIENTS
    np.testing.assert_allclose(apart, expected, atol=1e-15)
    assert "sign_global_lr / n" in row("`signds`, `fixed`")


def test_signds_with_an_estimated_step() -> None:
    """The step is not a mean, so the value of a vote does not shrink with the number of clients."""
    others = Others(*SIGNDS)
    size = others.protection.mechanism.plan(DIMENSION).dim_out
    estimate = others.protection.initial_state()["estimate"]
    for bit in (False, True):
        apart = others.between(selected(others, -1, bit), selected(others, 1, bit))
        assert (apart[size:] == 0).all()
        # In the first phase r_est has doubled, or is unchanged if most bits say so.
        assert set(np.round(apart[:size] / estimate, 9)) <= {4.0, 8.0}
    assert "2 r_est" in row("`signds`, `estimated`")


def test_a_signds_bit_tips_the_step_by_a_factor_of_two() -> None:
    """Eleven bits of twenty are a majority, but ten are not."""
    others = Others(*SIGNDS)
    for client, report in others.reports.items():
        report["bit"] = client < 10
    many, few = (others.with_report(**selected(others, 1, bit)) for bit in (True, False))
    np.testing.assert_allclose(few, 2 * many, rtol=1e-12)
    assert "factor of 2" in row("`signds`, `estimated`")


# --- rr and oue -------------------------------------------------------------------------------


@pytest.mark.parametrize("position", ["rr", "oue"])
def test_unary_sums(position: str) -> None:
    others = Others(f"protection={position}")
    encoding = others.protection.encoding(4.8)
    most = encoding.largest_sum
    low, high = ({"report": encoding.pack(np.full(DIMENSION, s * most))} for s in (-1, 1))
    apart = others.between(low, high)
    reach = (encoding.cells + 1) / (2 * (encoding.p - encoding.q))
    np.testing.assert_allclose(apart, 2 * reach / CLIENTS, rtol=1e-9)
    assert "clip (cells + 1) / (2 (p - q) n)" in row(f"`{position}`")
    assert f"{math.ceil(10 * reach) / 10:.1f} clip / n" in row(f"`{position}`")


@pytest.mark.parametrize("position", ["rr", "oue"])
def test_unary_bits_reach_as_far(position: str) -> None:
    others = Others(f"protection={position}", "protection.unary.report=bits")
    encoding = others.protection.encoding(4.8)
    codes = np.zeros((DIMENSION, encoding.states), np.uint8)
    codes[:, : encoding.cells] = 1  # all states below zero, and none above
    low, high = (
        {"report": np.packbits(np.append(bits.reshape(-1), 1), bitorder="little")}
        for bits in (codes, codes[:, ::-1])
    )
    apart = others.between(low, high)
    reach = (encoding.cells + 1) / (2 * (encoding.p - encoding.q))
    np.testing.assert_allclose(apart, 2 * reach / CLIENTS, rtol=1e-9)


@given(st.integers(0, 1 << 30))
@settings(max_examples=20, deadline=None)
def test_no_report_reaches_further(seed: int) -> None:
    """Random draws from all well-formed reports."""
    draw = np.random.default_rng(seed)
    others, noised = checked("rr"), checked("dp_encrypt")
    encoding, form = others.protection.encoding(4.8), noised.protection._form
    most, limit = encoding.largest_sum, form.limit
    low, high = (
        {"report": encoding.pack(draw.integers(-most, most + 1, DIMENSION))} for _ in range(2)
    )
    reach = (encoding.cells + 1) / (2 * (encoding.p - encoding.q))
    assert np.abs(others.between(low, high)).max() <= 2 * reach / CLIENTS
    low, high = (
        {"multiples": pack(draw.integers(-limit, limit + 1, DIMENSION), -limit, form.width),
         "step": form.step}
        for _ in range(2)
    )  # fmt: skip
    reach = limit * form.step
    assert np.abs(noised.between(low, high)).max() <= 2 * reach / CLIENTS


@cache
def checked(name: str) -> Others:
    return Others(f"protection={name}")


# --- central_gaussian and distributed_dp ------------------------------------------------------


def central(protection: Any, reports: int, state: Any = None) -> float:
    """Return how much one report of several adds to an entry, under `central_gaussian`."""
    length, most, found = protection.form._dimension, math.isqrt(protection.noise.limit), []
    for sign in (-1, 1):
        half = server_half(protection, range(reports), MODEL, state=state)
        for client in range(reports):
            numbers = np.zeros(length, np.int64)
            numbers[0] = sign * most if client == 0 else 0
            half.receive(client, {"round": ROUND, **protection.form.written(numbers)})
        half.advance()
        found.append(half.aggregate().update[0])
    return float(found[1] - found[0]) / 2


@pytest.mark.parametrize(("reports", "expected"), [(9, 4), (2, 5)])
def test_central_gaussian_divides_by_the_expected_number_of_secret_clients(
    reports: int, expected: int
) -> None:
    secret = make(
        "protection=central_gaussian", clients_per_round=expected, poisson=True, seeded=True
    )
    assert central(secret, reports) == pytest.approx(1 / expected, rel=1e-3)
    known = make("protection=central_gaussian", seeded=True)
    assert central(known, reports) == pytest.approx(1 / reports, rel=1e-3)
    assert "clip / n" in row("`central_gaussian`")
    assert "it is the expected number of\nclients in a round" in PAGE


@pytest.mark.parametrize("clip", [1.0, 64.0])
def test_under_central_gaussian_the_influence_follows_the_clip(clip: float) -> None:
    moving = ("protection=central_gaussian", "protection.central_gaussian.clip_quantile=0.5")
    added = central(make(*moving, seeded=True), CLIENTS, {"clip": clip}) * CLIENTS / clip
    assert 1.04 < added <= 1.05
    assert "adds up to 5% more than the table states" in PAGE


@pytest.mark.parametrize(
    ("changes", "clip", "times"),
    [({}, None, 1.0), ({"turn_rate": 0.25}, None, 4.0), ({}, 64.0, 64.0)],
)
def test_distributed_dp_reaches_what_its_row_says(
    changes: dict[str, Any], clip: float | None, times: float
) -> None:
    """A liar who knows the signs of the rotation moves a single entry of the update."""
    moving = ["protection.distributed_dp.clip_quantile=0.5"] if clip else []
    protection = make("protection=distributed_dp", *moving, **changes)
    noise, signs = protection.noise, protection.signs(ROUND)
    one = np.zeros(noise.dimension, np.float32)
    one[0] = 1
    numbers = np.sign(rotate(one, signs, noise.block)).astype(np.int64) * noise.reach
    state = {"clip": clip} if clip else {}
    context = RoundContext([*HONEST, LIAR], ROUND, MODEL, state)
    low, high = (protection.outcome(n * numbers, CLIENTS, context).update for n in (-1, 1))
    assert noise.length == noise.block  # all entries of the vector are in one block
    reach = math.sqrt(noise.length) * noise.reach * noise.step / CLIENTS
    assert np.abs(high - low).max() / 2 == pytest.approx(times * reach, rel=1e-6)
    with pytest.raises(RoundVoid, match="exceeds the range"):
        protection.outcome(numbers + np.sign(numbers), CLIENTS, context)
    assert "sqrt(D) reach step / n" in row("`distributed_dp`")
    assert "`clients.fraction` times the number of reports" in PAGE
    assert "step grows in the same proportion as the clip" in PAGE


# --- pw_encrypt -------------------------------------------------------------------------------

PW = ("protection=pw_encrypt", "protection.pw_encrypt.reconstruct_secrets_threshold=11")


MASK_VECTOR = Client._mask_vector


def masked_round(
    monkeypatch: pytest.MonkeyPatch, lie: Callable[[npt.NDArray[np.int64]], Any]
) -> npt.NDArray[np.float64]:
    """Play a whole round in which the liar sends another vector, which nobody else can notice."""
    protection = make(*PW)
    server = server_half(protection, [*HONEST, LIAR], MODEL)
    halves = {c: client_half(protection, c, MODEL) for c in [*HONEST, LIAR]}

    def masked(self: Client, senders: list[int], vector: Any) -> Any:
        return MASK_VECTOR(self, senders, lie(whole(vector)) if self.client == LIAR else vector)

    monkeypatch.setattr(Client, "_mask_vector", masked)
    messages = dict.fromkeys(halves, server.opening())
    while messages is not None:
        for client, message in messages.items():
            half = halves[client]
            update = update_of(client) if half.wants_update(message) else None
            server.receive(client, decode(encode(half.respond(message, update)), server.longest))
        messages = server.advance()
    update = server.aggregate().update
    return np.asarray(update, np.float64)


def test_pw_encrypt_stays_within_the_clip(monkeypatch: pytest.MonkeyPatch) -> None:
    """Masks hide each client's part, so one client can determine the whole mean within +-clip."""
    settings, fixed = make(*PW).settings, make(*PW).fixed
    weight = 9 * CLIENTS
    room = fixed.largest * weight - 10 * fixed.largest

    def towards(sign: int) -> Callable[[npt.NDArray[np.int64]], Any]:
        return lambda vector: np.append(np.full(DIMENSION, sign * room), vector[-1])

    low, high = (masked_round(monkeypatch, towards(sign)) for sign in (-1, 1))
    assert np.abs([low, high]).max() <= settings.clip
    assert (high - low).min() >= 1.8 * settings.clip
    assert row("`pw_encrypt`").endswith(f"| {settings.clip:g} |")


@pytest.mark.parametrize("excess", [1, 7])
def test_a_sum_beyond_the_clip_ends_the_round(excess: int, monkeypatch: pytest.MonkeyPatch) -> None:
    protection = make(*PW)
    beyond = protection.fixed.largest * 9 * CLIENTS * (1 + excess / 10)

    def lie(vector: npt.NDArray[np.int64]) -> Any:
        return np.append(np.full(DIMENSION, int(beyond)), vector[-1])

    with pytest.raises(RoundVoid, match="an entry of the sum of 20 clients exceeds their clip"):
        masked_round(monkeypatch, lie)


def test_a_weight_that_no_clients_can_have_ends_the_round(monkeypatch: pytest.MonkeyPatch) -> None:
    for weight in (-9 * len(HONEST), 20 * 65_535):
        with pytest.raises(RoundVoid, match="the weights of 20 clients cannot have the sum"):
            masked_round(monkeypatch, lambda vector, w=weight: np.append(vector[:-1], w))
