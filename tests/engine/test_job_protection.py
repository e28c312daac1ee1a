"""The job's facts that reach a protection, and the messages of a client besides its report."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from fedveil.engine.job_protection import (
    Deployed,
    in_clear,
    make_protection,
    report_entropy,
    training_entropy,
    whose,
)
from fedveil.entropy import Secure, Seeded
from fedveil.federated.job import Job
from fedveil.protections.base import BY_SIZE, TIMING, JobContext
from fedveil.protections.robust_combining import CombiningRule
from fedveil.secagg.secret import Secret

#: Nothing is at its default, and no two numbers are equal.
UNEQUAL: dict[str, Any] = {
    "seed": 7,
    "rounds": 13,
    "clients": {"number": 40, "fraction": 0.25},
    "server": {"aggregation": "trimmed_mean", "trim": 0.3, "norm_bound": 2.5},
    "privacy": {"delta": 1e-7, "randomness": "secure"},
    "audit": {"canaries": 3},
    "simulation": {"masks": False},
}
EXAMPLES: dict[str, Any] = {
    "privacy": {"unit": "example"},
    "training": {"sampling_rate": 0.2, "epochs": 1},
}
SHARES = {"name": "distributed_dp", "distributed_dp": {"noise_multiplier": 2.0}}
TURNS: dict[str, Any] = {"clients": {"number": 40, "fraction": 0.25, "sampling": "poisson"}}


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (
            {**UNEQUAL, "protection": "dp_encrypt"},
            {
                "weighting": "equal", "clients_per_round": 13, "rounds": 13, "seed": 7,
                "delta": 1e-7, "masks": False, "combining": CombiningRule("trimmed_mean", 0.3, 2.5),
            },
        ),
        ({"server": {"weighting": "by_size"}}, {"weighting": "by_size", "seeded": True}),
        (
            {**EXAMPLES, "protection": "dp_encrypt"},
            {"weighting": "equal", "unit": "example", "sampling_rate": 0.2, "seeded": True},
        ),
        (
            {**TURNS, "protection": SHARES},
            {
                "weighting": "equal", "clients_per_round": 40, "poisson": True, "turn_rate": 0.25,
                "seeded": True,
            },
        ),
        (
            {**TURNS, "protection": "central_gaussian"},
            {"weighting": "equal", "clients_per_round": 10, "poisson": True, "seeded": True},
        ),
    ],
)  # fmt: skip
def test_a_protection_is_told_of_its_job(settings: dict[str, Any], told: dict[str, Any]) -> None:
    job = Job(**settings)
    digest = hashlib.sha256(job.model_dump_json().encode()).digest()
    expected = JobContext(
        **{"dimension": 321, "clients_per_round": 50, "rounds": 20, "job": digest, **told}
    )
    assert make_protection(job, 321).context == expected


def test_a_deployed_protection_has_keys_of_its_own_and_never_leaves_out_masks() -> None:
    job, identity = Job(**{**UNEQUAL, "protection": "pw_encrypt", "server": {}}), Secret(bytes(32))
    context = make_protection(job, 21, Deployed({4: b"key"}, identity)).context
    assert (context.simulated, context.masks) == (False, True)
    assert (context.roster, context.identity) == ({4: b"key"}, identity)


@pytest.mark.parametrize(
    ("settings", "simulated", "deployed"),
    [
        ({}, [BY_SIZE], [BY_SIZE]),
        ({"protection": "dp_encrypt"}, [], [TIMING]),
        ({"protection": "dp_encrypt", "deployment": {"answer_after_s": 9.0}}, [], []),
        (
            {"protection": "dp_encrypt", "deployment": {"reveal": ["examples"]}},
            [],
            ["the number of a client's examples (deployment.reveal = examples)", TIMING],
        ),
        (
            {"server": {"weighting": "equal"}, "evaluation": {"clients": 0.2}},
            *[["metrics on the clients' own examples (evaluation.clients)"]] * 2,
        ),
        (
            {"server": {"weighting": "equal"}, "clients": {"own_layers": ["bias"]}},
            ["metrics with the clients' own layers (clients.own_layers)"],
            [],
        ),
    ],
)
def test_what_leaves_a_client_beside_its_report_is_listed(
    settings: dict[str, Any], simulated: list[str], deployed: list[str]
) -> None:
    job = Job(**settings)
    protection = make_protection(job, 21)
    assert in_clear(job, protection, leaves=False) == simulated
    assert in_clear(job, protection, leaves=True) == deployed


def test_what_a_batch_is_drawn_from_is_a_secret_where_examples_are() -> None:
    secure = {"privacy": {"unit": "example", "randomness": "secure"}}
    hidden = Job(**{**EXAMPLES, **secure, "protection": "dp_encrypt"})
    assert isinstance(training_entropy(hidden), Secure)
    assert isinstance(report_entropy(hidden), Secure)
    job = Job(seed=5, privacy={"randomness": "secure"})
    assert training_entropy(job).words(2).tolist() == Seeded(5, "training").words(2).tolist()
    seeded = Job(**EXAMPLES, seed=5, protection="dp_encrypt")
    own = Seeded(5, "reports").stream("training")
    assert training_entropy(seeded).words(2).tolist() == own.words(2).tolist()
    assert (whose(job, "a client"), whose(hidden, "a client")) == (
        "a client", "one example of a client",
    )  # fmt: skip
