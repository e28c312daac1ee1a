"""The settings that put a job under another protection, and the parameter that decides its cost."""

from __future__ import annotations

from typing import Any

import pytest

from fedveil.federated.job import Job
from fedveil.protections.cost_key import CostKey
from fedveil.protections.switching import switched

PW = {"cipher_time_window": 1234, "active_security": True, "clip": 3.0}


@pytest.mark.parametrize(
    ("job", "position", "settings"),
    [
        (
            {"protection": {"name": "pw_encrypt", "pw_encrypt": PW}}, "distributed_dp",
            ["protection=distributed_dp", "server.weighting=equal",
             "protection.distributed_dp.cipher_time_window=1234",
             "protection.distributed_dp.active_security=true"],
        ),
        ({"protection": {"name": "pw_encrypt", "pw_encrypt": PW}}, "dp_encrypt",
         ["protection=dp_encrypt", "server.weighting=equal"]),
        ({"protection": "dp_encrypt"}, "dp_encrypt", []),
        ({"protection": {"name": "rr", "unary": {"eps": 2.0}}}, "oue", ["protection=oue"]),
        ({"server": {"aggregation": "median"}}, "dp_encrypt", ["protection=dp_encrypt"]),
        ({"server": {"aggregation": "median"}}, "rr",
         ["protection=rr", "server.aggregation=mean"]),
        ({"server": {"aggregation": "norm_bound"}}, "dp_encrypt",
         ["protection=dp_encrypt", "server.weighting=equal", "server.aggregation=mean"]),
        (
            {"protection": {"name": "central_gaussian",
                            "central_gaussian": {"clip_quantile": 0.3, "clip": 2.0}}},
            "distributed_dp",
            ["protection=distributed_dp", "protection.distributed_dp.clip_quantile=0.3"],
        ),
    ],
)  # fmt: skip
def test_what_both_protections_have_is_kept(
    job: dict[str, Any], position: str, settings: list[str]
) -> None:
    data = Job(**job).model_dump()
    assert switched(data, position) == settings
    assert Job.read(data, settings).protection.name == position


def test_the_parameter_that_decides_the_cost_is_set_in_its_place() -> None:
    key = CostKey("a.b", start=2.5, instead=("c", "d"))
    assert [key.of(held) for held in ({}, {"a": {"b": None}}, {"a": {"b": 0.5}})] == [2.5, 2.5, 0.5]
    held = {"a": {"x": 1, "b": 3}, "c": 4, "d": None}
    assert list(key.changes(held, 7.0)) == [("c", None), ("a.b", 7.0)]
    assert key.put(held, 7.0) == {"a": {"x": 1, "b": 7.0}, "c": None, "d": None}
    assert held == {"a": {"x": 1, "b": 3}, "c": 4, "d": None}
    assert key.put({}, 7.0) == {"a": {"b": 7.0}}


@pytest.mark.parametrize(
    ("falls", "value", "digits", "rounded"),
    [
        (False, 1.2345, 3, 1.23),
        (True, 1.2345, 3, 1.24),
        (True, 0.1, 4, 0.1),
        (False, 98765, 2, 98e3),
    ],
)
def test_a_parameter_is_rounded_to_where_it_costs_less(
    falls: bool, value: float, digits: int, rounded: float
) -> None:
    assert CostKey("a", falls=falls).rounded(value, digits) == rounded
