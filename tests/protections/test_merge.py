"""Halves of one round merge associatively: a tree of aggregators ends with one server's bytes."""

from __future__ import annotations

import itertools
import pickle

import numpy as np
import pytest

from fedveil.base.message import encode
from fedveil.entropy import Seeded
from fedveil.errors import InvalidValue, ReportRejected
from fedveil.federated.protection_switch import ProtectionSettings
from fedveil.protections.base import JobContext
from fedveil.protections.catalog import POSITIONS, build
from round_parts import client_half, server_half

DIMENSION, CLIENTS = 400, 7

CASES = {
    "not_encrypt": {},
    "not_encrypt by size": {"weighting": "by_size"},
    "dp_encrypt": {},
    "dp_encrypt continuous": {"noise": "continuous"},
    "central_gaussian": {"clip": 0.5},
    "signds": {"sign_k": 0.2},
    "signds fixed": {"sign_k": 0.2, "magnitude": "fixed"},
    "rr": {},
    "rr bits": {"report": "bits"},
    "rr adaptive": {"adaptive": True, "total_eps": 1e6},
    "oue": {"rounding": "stochastic"},
    "oue aggregate": {"fidelity": "aggregate"},
    "pw_encrypt without masks": {"reconstruct_secrets_threshold": 4, "weighting": "by_size"},
    "distributed_dp without masks": {"reconstruct_secrets_threshold": 4},
}


def protection_of(case):
    position, changes = case.split()[0], dict(CASES.get(case, {}))
    weighting = changes.pop("weighting", "equal")
    block = ProtectionSettings.BLOCKS[position]
    settings = ProtectionSettings(
        name=position, **({} if block is None else {block: changes})
    ).settings
    context = JobContext(
        weighting=weighting,
        dimension=DIMENSION,
        clients_per_round=CLIENTS,
        rounds=3,
        masks=False,
        seeded=True,
    )
    return build(position, settings, context)


@pytest.fixture(scope="module")
def model():
    return Seeded(1).generator().normal(0, 0.3, DIMENSION).astype(np.float32)


def reports_of(protection, model, opening):
    out = {}
    for client in range(CLIENTS):
        entropy = Seeded(2, "client", client)
        update = entropy.stream("update").generator().normal(0, 0.1, DIMENSION).astype(np.float32)
        half = client_half(protection, client, model, examples=10 + client, entropy=entropy)
        out[client] = half.respond(opening, update)
    return out


def server_of(protection, model, reports, clients):
    server = server_half(protection, clients, model)
    for client in clients:
        server.receive(client, reports[client])
    return server


def outcome_of(server):
    server.advance()
    aggregate = server.aggregate()
    return aggregate.update.tobytes(), aggregate.reports, encode(aggregate.state)


def merged(one, *others):
    for other in others:
        one.merge(other)
    return one


def opening_of(protection, model):
    return server_half(protection, range(CLIENTS), model).opening()


@pytest.mark.filterwarnings("ignore::fedveil.errors.FedveilWarning")
@pytest.mark.parametrize("case", CASES)
def test_a_tree_of_aggregators_ends_with_the_bytes_of_one_server(case, model):
    protection = protection_of(case)
    reports = reports_of(protection, model, opening_of(protection, model))

    def parts():
        dealt = ([0, 3, 5], [1], [2, 4, 6])
        return [server_of(protection, model, reports, clients) for clients in dealt]

    one = outcome_of(server_of(protection, model, reports, range(CLIENTS)))
    a, b, c = parts()
    assert outcome_of(merged(merged(a, b), c)) == one
    a, b, c = parts()
    assert outcome_of(merged(a, merged(b, c))) == one
    for order in itertools.permutations(range(3)):
        a, b, c = (parts()[place] for place in order)
        assert outcome_of(merged(a, b, c)) == one
    a, *others = parts()
    # An aggregator on another machine sends the half's pickle.
    assert outcome_of(merged(a, *(pickle.loads(pickle.dumps(o)) for o in others))) == one


@pytest.mark.filterwarnings("ignore::fedveil.errors.FedveilWarning")
@pytest.mark.parametrize("case", ["not_encrypt", "dp_encrypt", "signds", "rr", "oue"])
def test_a_client_that_two_aggregators_have_counted_is_refused(case, model):
    protection = protection_of(case)
    reports = reports_of(protection, model, opening_of(protection, model))
    a, b = (server_of(protection, model, reports, part) for part in ([0, 1], [1, 2]))
    with pytest.raises(ValueError, match=r"share clients .*1"):
        a.merge(b)
    assert outcome_of(a) == outcome_of(server_of(protection, model, reports, [0, 1]))


def test_halves_of_other_rounds_and_of_other_protections_are_refused(model):
    """Both kinds of unary round have an encoding, and only one of them has exact states."""
    sums, exact = protection_of("oue"), protection_of("oue aggregate")
    one = server_of(sums, model, reports_of(sums, model, opening_of(sums, model)), [0, 1])
    for other in (server_half(exact, [2], model), server_half(sums, [2], model, number=8)):
        with pytest.raises(ValueError, match="do not belong to one round"):
            one.merge(other)


@pytest.mark.filterwarnings("ignore::fedveil.errors.FedveilWarning")
@pytest.mark.parametrize("case", CASES)
def test_a_half_that_has_its_aggregate_is_merged_with_no_other(case, model):
    """Its sums may be overwritten by the mean."""
    protection = protection_of(case)
    reports = reports_of(protection, model, opening_of(protection, model))
    done = server_of(protection, model, reports, range(CLIENTS))
    rest = server_of(protection, model, reports, [4])
    whole = outcome_of(done)
    for one, other in ((rest, done), (done, rest)):
        with pytest.raises(ValueError, match="has returned its aggregate"):
            one.merge(other)
    assert (rest.reports, done.reports) == (1, CLIENTS)
    others = [client for client in range(CLIENTS) if client != 4]
    assert outcome_of(merged(rest, server_of(protection, model, reports, others))) == whole


@pytest.mark.filterwarnings("ignore::fedveil.errors.FedveilWarning")
@pytest.mark.parametrize("case", ["not_encrypt", "dp_encrypt", "signds", "rr", "oue"])
def test_after_a_merge_a_half_knows_whom_both_have_counted(case, model):
    protection = protection_of(case)
    reports = reports_of(protection, model, opening_of(protection, model))
    one = server_of(protection, model, reports, [0, 1])
    other = server_half(protection, [2, 3], model)
    other.receive(2, reports[2])
    one.merge(other)
    for client in (0, 1, 2):
        with pytest.raises(ReportRejected):
            one.receive(client, reports[client])
    with pytest.raises(ReportRejected):
        one.receive(4, reports[4])
    one.receive(3, reports[3])
    assert outcome_of(one) == outcome_of(server_of(protection, model, reports, range(4)))


def test_secure_aggregation_has_one_server(model):
    settings = ProtectionSettings(
        name="pw_encrypt", pw_encrypt={"reconstruct_secrets_threshold": 4}
    ).settings
    context = JobContext(
        weighting="equal", dimension=DIMENSION, clients_per_round=CLIENTS, rounds=1
    )
    protection = build("pw_encrypt", settings, context)
    one, other = (server_half(protection, part, model) for part in (range(4), range(4, 7)))
    with pytest.raises(InvalidValue, match="pw_encrypt has one server"):
        one.merge(other)


def test_every_protection_is_tried_here():
    assert {case.split()[0] for case in CASES} == set(POSITIONS)
