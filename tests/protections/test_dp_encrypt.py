"""dp_encrypt: the client's report, the server's result, and the refusals."""

from __future__ import annotations

import math
import re
import warnings
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedveil.base.message import encode
from fedveil.base.packing import pack, unpack
from fedveil.entropy import Secure, Seeded
from fedveil.errors import ClientWithheld, FedveilWarning, InvalidValue, ReportRejected
from fedveil.mechanisms.gaussian import GaussianMechanism
from fedveil.privacy.grid_sensitivity import moved
from fedveil.privacy.sampled_gaussian import SampledGaussian, sampled_release
from fedveil.protections import exact_sum
from fedveil.protections.advice import Cohort
from fedveil.protections.base import JobContext, RoundContext
from fedveil.protections.catalog import build
from fedveil.protections.dp_encrypt import DPEncrypt, DPEncryptSettings
from folders import DOCS
from round_parts import client_half, report_of, server_half

pytestmark = pytest.mark.filterwarnings("ignore:noise = continuous")

SIZE = 5
MODEL = np.zeros(SIZE, np.float32)
UPDATE = np.array([0.5, -0.25, 0, 0.125, -0.5], np.float32)
CONTEXT = JobContext("by_size", dimension=SIZE, clients_per_round=4, rounds=1)
SETTINGS = DPEncryptSettings(dp_eps=1.0, dp_delta=1e-5, dp_norm_clip=1.0)
FLOATS = DPEncryptSettings(dp_eps=1.0, dp_delta=1e-5, dp_norm_clip=1.0, noise="continuous")
SIGMA = GaussianMechanism(1.0, 1e-5, 1.0).sigma
GRID = GaussianMechanism(1.0, 1e-5, 1.0).grid(SIZE)
LIMIT = math.ceil((1 + 10 * SIGMA) / GRID.step)
WIDTH = (2 * LIMIT).bit_length()


def server(cohort: tuple[int, ...] = (1, 2, 3, 4), settings: DPEncryptSettings = SETTINGS) -> Any:
    return server_half(DPEncrypt(settings, CONTEXT), cohort, MODEL)


def report(client: int, update: Any = UPDATE, settings: DPEncryptSettings = SETTINGS) -> Any:
    half = client_half(DPEncrypt(settings, CONTEXT), client, MODEL, entropy=Seeded(1, client))
    return report_of(half, {"round": 7}, update)


def multiples(message: Any) -> list[int]:
    values = np.empty(SIZE, np.int32)
    assert unpack(message["multiples"], -LIMIT, LIMIT, WIDTH, values)
    return values.tolist()


def test_a_report_is_the_mechanisms_output() -> None:
    message = report(3)
    assert set(message) == {"round", "step", "multiples"}
    expected = GaussianMechanism(1.0, 1e-5, 1.0).multiples(UPDATE, Seeded(1, 3))
    assert multiples(message) == expected.tolist()
    assert message["step"] == GRID.step
    floats = GaussianMechanism(1.0, 1e-5, 1.0, "continuous").privatize(UPDATE, Seeded(1, 3))
    assert report(3, settings=FLOATS)["update"].tobytes() == floats.tobytes()


def test_the_aggregate_is_the_mean_and_clients_count_equally() -> None:
    half, floats = server(), server(settings=FLOATS)
    for client in (1, 2, 4):
        half.receive(client, report(client))
        floats.receive(client, report(client, settings=FLOATS))
    assert half.advance() is None
    total = np.sum([multiples(report(client)) for client in (1, 2, 4)], axis=0)
    aggregate = half.aggregate()
    assert aggregate.update.tolist() == (total * GRID.step / 3).tolist()
    assert aggregate.reports == 3
    values = [report(client, settings=FLOATS)["update"].astype(float) for client in (1, 2, 4)]
    np.testing.assert_allclose(floats.aggregate().update, np.mean(values, axis=0), rtol=1e-15)


@pytest.mark.parametrize("settings", [SETTINGS, FLOATS])
def test_the_noise_of_many_clients_averages_out(settings: DPEncryptSettings) -> None:
    clients = 2000
    protection = DPEncrypt(settings, CONTEXT)
    half = server_half(protection, range(clients), MODEL)
    for client in range(clients):
        one = client_half(protection, client, MODEL, entropy=Seeded(2, client))
        half.receive(client, one.respond({"round": 7}, UPDATE))
    scores = (half.aggregate().update - UPDATE) / SIGMA * clients**0.5
    # Rounding towards zero takes less than a step, at most a thousandth of this noise.
    assert stats.chi2.sf(np.sum(scores**2), SIZE) > 1e-6
    assert np.sum(scores**2) > stats.chi2.ppf(1e-6, SIZE)


@cache
def reports_of_six(floats: bool) -> list[Any]:
    return [report(client, settings=FLOATS if floats else SETTINGS) for client in range(6)]


@given(st.permutations(range(6)), st.integers(0, 6), st.booleans())
def test_order_and_trees_change_nothing(order: Any, cut: int, floats: bool) -> None:
    cohort, reports = tuple(range(6)), reports_of_six(floats)
    flat, left, right = (server(cohort, FLOATS if floats else SETTINGS) for _ in range(3))
    for client in cohort:
        flat.receive(client, reports[client])
    for i, client in enumerate(order):
        (left if i < cut else right).receive(client, reports[client])
    left.merge(right)
    assert left.aggregate().update.tobytes() == flat.aggregate().update.tobytes()
    assert left.reports == 6


ZEROS = pack(np.zeros(SIZE, np.int64), -LIMIT, WIDTH)
GOOD = {"round": 7, "step": GRID.step, "multiples": ZEROS}


def packed(value: int) -> Any:
    return pack(np.array([0, value, 0, 0, 0]), -LIMIT, WIDTH)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"round": 6}, "wrong round"),
        ({"more": 1}, "fields are missing or unknown"),
        ({"multiples": None}, "fields are missing or unknown"),
        ({"multiples": ZEROS[:-1]}, "field multiples has the wrong length"),
        ({"multiples": np.append(ZEROS, np.uint8(0))}, "field multiples has the wrong length"),
        ({"multiples": ZEROS.tobytes()}, "field multiples is missing or malformed"),
        ({"multiples": UPDATE}, "field multiples has the wrong type"),
        ({"multiples": packed(LIMIT + 1)}, "field multiples holds a value beyond its range"),
        ({"multiples": packed((1 << WIDTH) - 1 - LIMIT)}, "holds a value beyond its range"),
        ({"multiples": ZEROS | np.uint8(128)}, "holds a value beyond its range"),
        ({"step": GRID.step / 2}, "not the step of this job's grid"),
        ({"step": math.nan}, "not the step of this job's grid"),
        ({"step": 1}, "field step is missing or malformed"),
    ],
)
def test_a_wrong_report_is_refused_and_changes_nothing(change: Any, reason: str) -> None:
    half, spared = server(), server()
    half.receive(2, report(2))
    spared.receive(2, report(2))
    with pytest.raises(ReportRejected, match=f"refused: .*{reason}"):
        half.receive(1, {k: v for k, v in {**GOOD, **change}.items() if v is not None})
    half.receive(1, GOOD)  # after a refused report, the client may still send another
    spared.receive(1, GOOD)
    assert half.aggregate().update.tobytes() == spared.aggregate().update.tobytes()


def test_more_reports_than_a_sum_can_hold_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact_sum, "MAX_TERMS", 1)
    half = server(settings=FLOATS)
    half.receive(2, report(2, settings=FLOATS))
    with pytest.raises(ReportRejected, match="cannot be added: more than 1 terms"):
        half.receive(1, report(1, settings=FLOATS))
    assert half.reports == 1


@pytest.mark.parametrize("value", [LIMIT, -LIMIT])
def test_the_largest_values_are_accepted(value: int) -> None:
    half = server()
    half.receive(1, {**GOOD, "multiples": packed(value)})
    assert half.aggregate().update.tolist() == [0, value * GRID.step, 0, 0, 0]


@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_continuous_values_are_accepted(sign: int) -> None:
    """The clip and ten standard deviations, with a clip that is not small beside the noise."""
    settings = DPEncryptSettings(dp_eps=50.0, dp_delta=1e-5, dp_norm_clip=3.0, noise="continuous")
    half = server(settings=settings)
    sigma = GaussianMechanism(50.0, 1e-5, 3.0).sigma
    update = np.full(SIZE, 0.999 * sign * (3 + 10 * sigma), np.float32)
    with pytest.raises(ReportRejected, match="beyond its range"):
        half.receive(2, {"round": 7, "update": update * np.float32(1.01)})
    half.receive(1, {"round": 7, "update": update})
    assert half.aggregate().update.tolist() == update.tolist()


def test_what_is_carried_is_clipped() -> None:
    made = DPEncrypt(DPEncryptSettings(dp_norm_clip=0.5), CONTEXT)
    np.testing.assert_allclose(made.carried(2 * UPDATE, {}), UPDATE * 0.5 / 0.76, atol=1e-2)


@pytest.mark.parametrize("rate", [0.25, 1.0])
def test_a_sum_of_examples_is_reported_whole(rate: float) -> None:
    """Only contributions are clipped: a batch's sum may be many times as long as the clip."""
    context = JobContext("equal", SIZE, 4, rounds=1, unit="example", sampling_rate=rate)
    made = DPEncrypt(DPEncryptSettings(dp_eps=8.0, dp_delta=1e-5, dp_norm_clip=0.5), context)
    update = np.array([60, -60, 0, 30, -0.125], np.float32)
    sent = report_of(client_half(made, 1, MODEL), {"round": 7}, update)
    reading = made.reading(RoundContext([1], 7, MODEL), sent)
    assert np.abs(reading.estimate - update).max() < 6 * made._mechanism.sigma < 6
    assert made.carried(update, {}).tolist() == update.tolist()
    (spent,) = made.spending({})
    distance = 2 * moved(0.5, made._mechanism.step, SIZE)
    assert spent.loss.release == sampled_release(made._mechanism.sigma / distance, rate)


@pytest.mark.parametrize(
    ("update", "reason"),
    [
        (np.full(SIZE, np.nan, np.float32), "NaN or beyond its range"),
        (np.full(SIZE, -np.inf, np.float32), "NaN or beyond its range"),
        (np.full(SIZE, 1.1 + 10 * SIGMA, np.float32), "NaN or beyond its range"),
        (np.zeros(SIZE), "field update has the wrong type"),
        (np.zeros(SIZE + 1, np.float32), "field update has the wrong length"),
    ],
)
def test_a_wrong_continuous_report_is_refused(update: Any, reason: str) -> None:
    half = server(settings=FLOATS)
    half.receive(2, report(2, settings=FLOATS))
    with pytest.raises(ReportRejected, match=reason):
        half.receive(1, {"round": 7, "update": update})
    assert half.aggregate().update.tolist() == report(2, settings=FLOATS)["update"].tolist()


@pytest.mark.parametrize("settings", [SETTINGS, FLOATS])
def test_a_client_reports_nothing_and_says_why(settings: DPEncryptSettings) -> None:
    half = client_half(DPEncrypt(settings, CONTEXT), 1, MODEL, entropy=Secure())
    for bad in (np.nan, np.inf, -np.inf):
        update = UPDATE.copy()
        update[3] = bad
        with pytest.raises(ClientWithheld, match="update holds NaN or infinity"):
            half.respond({"round": 7}, update)
    for message, update in (({"round": 8}, UPDATE), ({"round": 7}, None)):
        with pytest.raises(ClientWithheld, match="not the opening"):
            half.respond(message, update)


def test_a_value_beyond_the_range_is_sent_as_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    far = np.array([10 * LIMIT, -(2**50), LIMIT + 1, LIMIT, -3])
    monkeypatch.setattr(
        GaussianMechanism, "drawing", lambda self, update, entropy: lambda part: far[part]
    )
    assert multiples(report(1)) == [LIMIT, -LIMIT, LIMIT, LIMIT, -3]


@pytest.mark.parametrize(
    ("eps", "delta", "size", "bytes_per_value"),
    [(50.0, 0.001, 66_521, 2.0), (50.0, 0.01, 1_000_000, 2.125), (1.0, 1e-5, 66_521, 2.625)],
)
def test_upload(eps: float, delta: float, size: int, bytes_per_value: float) -> None:
    protection = DPEncrypt(
        DPEncryptSettings(dp_eps=eps, dp_delta=delta), JobContext("equal", size, 4, rounds=1)
    )
    big = np.full(size, 0.01, np.float32)
    half = client_half(protection, 1, big)
    sizes = {len(encode(half.respond({"round": 7}, big))) for _ in range(3)}
    assert len(sizes) == 1
    assert bytes_per_value * size < sizes.pop() < bytes_per_value * size + 64


def test_what_it_costs() -> None:
    protection = build("dp_encrypt", SETTINGS, CONTEXT)
    (spending,) = protection.spending(protection.initial_state())
    loss = spending.loss
    assert (loss.epsilon, loss.delta, loss.per, spending.count) == (1.0, 1e-5, "update", 1)
    assert build("dp_encrypt", FLOATS, CONTEXT).spending({})[0].loss.epsilon == math.inf


def test_an_audit_of_examples_draws_each_with_the_rate_that_its_claim_counts_on() -> None:
    """Two examples are twice the clip apart, and only in a batch that has the example."""
    (case,) = (case for case in DPEncrypt.audit_cases(1.0) if "example" in case.name)
    assert isinstance(case.claim.release, SampledGaussian)
    outputs = [[case.release(given, Seeded(n)) for given in (case.a, case.b)] for n in range(80)]
    apart = np.round([np.linalg.norm(one - other) for one, other in outputs], 3).tolist()
    assert set(apart) == {0.0, 2.0}
    assert abs(apart.count(2.0) / 80 - case.claim.release.rate) < 0.2


@pytest.mark.parametrize(
    ("clients", "per_round", "said"),
    [(25, 9, None), (26, 9, "dp_delta = 0.04 is above 1/clients = 0.0384615: "), (None, 50, None)],
)
def test_a_delta_is_weighed_against_all_clients_of_the_job(
    clients: int | None, per_round: int, said: str | None
) -> None:
    """A delta of a round's clients would let a mechanism publish one client in every round."""
    (advice,) = DPEncrypt.advice
    found = advice(DPEncryptSettings(dp_delta=0.04), Cohort(clients, per_round))
    assert found == said or (said is not None and found is not None and found.startswith(said))


def test_continuous_noise_says_what_it_is() -> None:
    with pytest.warns(FedveilWarning, match="noise = continuous is for comparison only"):
        report(1, settings=FLOATS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report(1)


def test_settings_that_cannot_be_run_are_named() -> None:
    with pytest.raises(InvalidValue, match=r"eps = 1e\+18.* need discrete noise"):
        DPEncrypt(DPEncryptSettings(dp_eps=1e18), CONTEXT)
    with pytest.raises(InvalidValue, match=r"dp_norm_clip = 1e\+16 leads to values of up to"):
        DPEncrypt(DPEncryptSettings(dp_norm_clip=1e16, noise="continuous"), CONTEXT)


def test_the_page_says_how_many_bits_a_number_has() -> None:
    page = " ".join((DOCS / "mechanisms/dp_encrypt.md").read_text("utf-8").split())
    usual, small, example = (
        int(re.findall(pattern, page)[0])
        for pattern in (r"(\d+) bits with the default settings and 61,706 parameters",
                        r"and (\d+) bits at ε = 1 and δ = 1e-5", r"a number has (\d+) bits or more")
    )  # fmt: skip
    context = JobContext("equal", dimension=61_706, clients_per_round=4, rounds=1)
    of_examples = replace(context, unit="example", sampling_rate=0.1)
    widths = [
        DPEncrypt(settings, job)._form.width
        for settings, job in ((DPEncryptSettings(), context), (SETTINGS, context),
                              (SETTINGS, of_examples))
    ]  # fmt: skip
    assert widths == [usual, small, example]
