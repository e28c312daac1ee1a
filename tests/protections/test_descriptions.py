"""Each protection's description: whom it protects against, what it needs, and what it costs."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from fedveil.entropy import Seeded
from fedveil.privacy.audit import Case
from fedveil.privacy.loss import Gaussian
from fedveil.protections.base import JobContext
from fedveil.protections.catalog import POSITIONS, build, fault_phases

EVERYONE, CLIENTS = "everyone, including the server", "everyone except the server"
HONEST = "a server that follows the protocol"
LYING = "a server that lies, within the limits in docs/secure-aggregation.md"


class Told(NamedTuple):
    against: str = EVERYONE
    noised: bool = True
    units: str = "client"
    for_rounds: str | None = None
    window_s: float | None = None
    roster: bool = False
    adapts: bool = False
    most_per_operator: int | None = None


#: Of a round of 30 clients, of which 21 reconstruct a secret.
SECURE = Told(HONEST, window_s=300.0, most_per_operator=20)
ACTIVE = {"active_security": True, "cipher_time_window": 2500}
CASES: list[tuple[str, dict[str, Any], Told]] = [
    ("not_encrypt", {}, Told(noised=False, units="client example")),
    ("dp_encrypt", {}, Told(units="client example")),
    ("dp_encrypt", {"noise": "continuous"}, Told()),
    ("central_gaussian", {}, Told(CLIENTS)),
    ("central_gaussian", {"target_epsilon": 2.5}, Told(CLIENTS, for_rounds="target_epsilon = 2.5")),
    ("signds", {}, Told()),
    ("rr", {}, Told()),
    ("oue", {"adaptive": True}, Told(adapts=True)),
    ("pw_encrypt", {}, SECURE._replace(noised=False)),
    ("pw_encrypt", {"central_eps": 1.0}, SECURE._replace(against=CLIENTS)),
    (
        "pw_encrypt", ACTIVE,
        Told(LYING, noised=False, window_s=2.5, roster=True, most_per_operator=11),
    ),
    (
        "distributed_dp", {},
        SECURE._replace(units="client example", for_rounds="target_epsilon = 8"),
    ),
    (
        "distributed_dp", {"target_epsilon": 0.75, "clip_quantile": 0.5},
        SECURE._replace(for_rounds="target_epsilon = 0.75"),
    ),
    ("distributed_dp", {"noise_multiplier": 1.5}, SECURE._replace(units="client example")),
    (
        "distributed_dp", {**ACTIVE, "noise_multiplier": 1.5},
        Told(LYING, units="client example", window_s=2.5, roster=True, most_per_operator=11),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "options", "told"), CASES)
def test_a_protection_says_what_its_settings_mean(
    name: str, options: dict[str, Any], told: Told
) -> None:
    kind = POSITIONS[name]
    settings = kind.settings_type(**options)
    window = kind.window(settings)
    assert told == Told(
        kind.against(settings), kind.noised(settings), " ".join(kind.units(settings)),
        kind.for_rounds(settings), window and window[1], kind.needs_roster(settings),
        kind.adapts(settings), kind.most_per_operator(settings, 30),
    )  # fmt: skip
    assert kind.rests_on_server(settings) == (told.against == CLIENTS)


def test_every_protection_is_told_of() -> None:
    assert {name for name, _, _ in CASES} == set(POSITIONS)
    amplified = {name for name, kind in POSITIONS.items() if kind.amplified}
    assert amplified == {"central_gaussian"}
    assert {name for name, kind in POSITIONS.items() if kind.secret_turns} == {"distributed_dp"}
    noise = {name: kind.gaussian_noise for name, kind in POSITIONS.items() if kind.gaussian_noise}
    assert noise.pop("dp_encrypt") == "report"
    assert noise == dict.fromkeys(("central_gaussian", "pw_encrypt", "distributed_dp"), "sum")


@pytest.mark.parametrize(
    ("name", "options", "least"),
    [
        ("dp_encrypt", {}, 1),
        ("pw_encrypt", {"reconstruct_secrets_threshold": 5}, 5),
        ("distributed_dp", {"reconstruct_secrets_threshold": 5}, 9),
        ("distributed_dp", {"reconstruct_secrets_threshold": 8, "dropout_tolerance": 0.3}, 8),
    ],
)
def test_a_round_of_fewer_clients_has_no_aggregate(
    name: str, options: dict[str, Any], least: int
) -> None:
    made = build(name, POSITIONS[name].settings_type(**options), JobContext("equal", 7, 10, 3))
    assert made.least_clients == least
    again = made.reseeded(41)
    assert (made.context.seed, again.context.seed) == (0, 41)
    assert again.context.clients_per_round == 10


def test_only_exact_reports_cannot_be_audited() -> None:
    rr = POSITIONS["rr"]
    assert rr.unauditable(rr.settings_type()) is None
    said = rr.unauditable(rr.settings_type(fidelity="aggregate"))
    assert said is not None
    assert said.startswith("protection.unary.fidelity = 'per_client'")


def test_a_fault_plan_names_phases_of_other_protections() -> None:
    """A client that falls silent before it trains elsewhere does so in the only phase here."""
    report = fault_phases(POSITIONS["rr"])
    assert report == {
        "report": "report", "advertise": "report", "share": "report", "masked": "report",
        "consistency": None, "unmask": None,
    }  # fmt: skip
    secure = fault_phases(POSITIONS["pw_encrypt"])
    assert secure == {"report": "masked"} | {
        phase: phase for phase in ("advertise", "share", "masked", "consistency", "unmask")
    }


@pytest.mark.parametrize("name", ["rr", "oue", "signds"])
def test_audits_of_other_noise_try_inputs_at_both_ends(name: str) -> None:
    """Inputs far beyond the clip are as good as those a little closer, and unlike each other."""
    for case in POSITIONS[name].audit_cases(1.0):

        def told(given: Any, case: Case = case) -> list[Any]:
            outputs = [case.release(given, Seeded(n)) for n in range(40)]
            return [np.asarray(getattr(output, "indices", output)).tolist() for output in outputs]

        first, second = told(case.a), told(case.b)
        assert sum(a != b for a, b in zip(first, second, strict=True)) > 5
        if np.asarray(case.a).dtype.kind == "f":
            assert (told(0.5 * case.a), told(0.5 * case.b)) == (first, second)


@pytest.mark.parametrize("name", [name for name in POSITIONS if POSITIONS[name].gaussian_noise])
def test_audits_try_inputs_beyond_the_clip_that_are_as_far_apart_as_the_claim_allows(
    name: str,
) -> None:
    """Nearer inputs would hide noise that is too small, and shorter ones a missing clip."""
    cases = [(case, case.claim.release) for case in POSITIONS[name].audit_cases(1.0)]
    gaussian = [(case, release) for case, release in cases if isinstance(release, Gaussian)]
    assert gaussian
    for case, release in gaussian:
        one = [np.asarray(case.release(case.a, Seeded(n)), np.float64) for n in range(60)]
        other, shorter = (
            np.asarray(case.release(given, Seeded(0)), np.float64)
            for given in (case.b, 0.8 * case.b)
        )
        sigma = np.std([output[:2] for output in one], axis=0).mean()
        # With equal draws, outputs differ only by what the inputs move them.
        assert sigma / np.linalg.norm(one[0] - other) == pytest.approx(release.ratio, rel=0.2)
        np.testing.assert_allclose(shorter, other, atol=1e-3 * sigma)
