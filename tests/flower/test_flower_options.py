"""The settings of a protected Flower app, and the demands of a client."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import pytest

from fedveil.base.message import decode, encode
from fedveil.errors import DeploymentError, InvalidValue, JobError, MessageInvalid
from fedveil.flower.app.offer import Offer, check
from fedveil.flower.app.options import joined, parse
from fedveil.flower.app.pins import kept, limits, may_reveal, pins_of, refuse_weaker
from fedveil.protections.catalog import POSITIONS
from fedveil.protections.directions import directions, weakened
from fedveil.protections.not_encrypt import NotEncrypt
from fedveil.settings.settings import Settings

RUN = 3
NAKED = "fedveil.protections.not_encrypt:NotEncrypt"


class Renamed(NotEncrypt):
    name = "renamed"


def offer(clients=20, **keys):
    return Offer(parse(keys), "num-examples", 100, clients)


def refuse(asked, **sources):
    keys = {"keywords": {}, "run_config": {}, "node_config": {}, **sources}
    refuse_weaker(asked, pins_of(*keys.values()), RUN)


def test_a_configurations_keys_begin_with_fedveil_and_others_are_not_read():
    keys = joined({"fedveil.protection": "signds", "lr": 0.1, "fedveil.sign_eps": 3}, {})
    options = parse(keys)
    assert (options.protection, options.parameters.sign_eps) == ("signds", 3.0)


def test_a_key_that_the_code_and_the_configuration_set_differently_is_an_error():
    assert joined({"fedveil.keep": "a, b"}, {"keep": ["a", "b"]})
    with pytest.raises(JobError, match=r"sign_eps = 1 .* fedveil.sign_eps = 2 .* only one"):
        joined({"fedveil.sign_eps": 2}, {"sign_eps": 1})


@pytest.mark.parametrize("several", [["a", "b.*"], ("a", "b.*"), "a, b.*"])
def test_several_names_are_a_list_a_tuple_or_a_text(several):
    options = parse({"keep": several, "reveal": several})
    assert (options.kept, options.revealed) == (("a", "b.*"), {"a", "b.*"})


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"protection": "signds", "sign_k": 0.4}, r"sign_k = 0.4 is outside \(0, 0.25\]"),
        ({"protection": "signd"}, "protection = 'signd' is not one of .*did you mean signds"),
        ({"protection": "not_encrypt"}, "protection = 'not_encrypt' is not one of"),
        ({"protection": NAKED}, "protection = '.*:NotEncrypt' is not available in an app"),
        (
            {"protection": f"{__name__}:Renamed"},
            "protection = '.*:Renamed' is not available in an app",
        ),
        ({"protection": "rr", "sign_eps": 1.0}, "sign_eps = 1.0 is not a known key"),
        ({"sign_eps": 1.0}, "sign_eps = 1.0 needs protection beside it"),
        ({"protection": "oue", "eps": "2"}, "eps = '2' is not a number"),
        ({"protection": "oue", "delta": 1.5}, r"delta = 1.5 is outside \[0, 1\)"),
        ({"reveal": 3}, "reveal = 3 is not text"),
    ],
)
def test_a_wrong_key_gets_one_sentence(keys, sentence):
    with pytest.raises(JobError, match=sentence):
        parse(keys)
    with pytest.raises(JobError, match=rf"^fedveil\.{sentence.split(' ')[0]}"):
        parse(keys, "fedveil.")


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({}, "protection is not given"),
        ({"protection": "rr", "weighting": "by_size"}, "weighting = 'by_size' breaks"),
        ({"protection": "pw_encrypt", "active_security": True}, "active_security = True needs"),
        ({"protection": "pw_encrypt", "reconstruct_secrets_threshold": 1}, r"= 1 is outside \[2"),
    ],
)
def test_what_does_not_hold_between_the_keys_is_refused(keys, sentence):
    with pytest.raises(InvalidValue, match=sentence):
        check(parse(keys))


@pytest.mark.parametrize(
    "keys",
    [
        {"protection": "signds", "sign_mag_eps": 2.0, "keep": "a,b", "reveal": "loss"},
        {"protection": "signds"},
        {"protection": "dp_encrypt", "noise": "continuous"},
        {"protection": "oue", "cells": 7, "total_eps": 1e6},
        {"protection": "pw_encrypt", "neighbours": 6, "weighting": "equal"},
        {"protection": "pw_encrypt", "neighbours": "complete"},
    ],
)
def test_an_offer_survives_its_encoding(keys):
    sent = offer(**keys)
    received = Offer.read(decode(encode(sent.words())), ())
    assert received.words() == sent.words()
    assert received.job(RUN) == sent.job(RUN) != sent.job(RUN + 1)
    assert received.options.parameters == sent.options.parameters


@pytest.mark.parametrize(
    "change",
    [
        {"protection": "not_encrypt"},
        {"protection": 3},
        {"dimension": 0},
        {"clients": -1},
        {"clients": 2.0},
        {"keep": b""},
        {"parameter.sign_eps": 1000.0},
        {"parameter.sign_eps": float("nan")},
        {"parameter.keep": "*"},
        {"parameter.answer_after_s": 0.5},
        {"answer_after_s": 9.0, "parameter.answer_after_s": 0.5},
        {"parameter.unheard": 1},
        {"more": 1},
    ],
)
def test_a_hostile_offer_is_refused(change):
    with pytest.raises(MessageInvalid):
        Offer.read({**offer(protection="signds").words(), **change}, ())


PINNED = {"fedveil.protection": "signds", "fedveil.sign_eps": 5.0}


@pytest.mark.parametrize("source", ["run_config", "node_config", "keywords"])
def test_a_client_refuses_less_than_any_of_its_sources_demands(source):
    pin = {k.removeprefix("fedveil.") if source == "keywords" else k: v for k, v in PINNED.items()}
    refuse(offer(protection="signds", sign_eps=5.0), **{source: pin})
    refuse(offer(protection="signds", sign_eps=1.0, sign_k=0.2), **{source: pin})
    for weaker in ({"sign_eps": 6.0}, {"sign_eps": 5.0, "sign_mag_eps": 6.0}):
        with pytest.raises(MessageInvalid, match=r"weaker than .* a report costs epsilon 1[12]"):
            refuse(offer(protection="signds", **weaker), **{source: pin})
    with pytest.raises(MessageInvalid, match="dp_encrypt in place of signds"):
        refuse(offer(protection="dp_encrypt", dp_eps=0.1), **{source: pin})


def test_every_source_must_agree():
    strict = {"fedveil.protection": "signds", "fedveil.sign_eps": 1.0}
    with pytest.raises(MessageInvalid, match="the node configuration demands"):
        refuse(offer(protection="signds", sign_eps=5.0), run_config=PINNED, node_config=strict)


@pytest.mark.parametrize(
    ("demanded", "stronger", "weaker"),
    [
        (
            {"protection": "dp_encrypt", "dp_eps": 2.0, "dp_delta": 1e-3},
            [{"dp_eps": 1.0, "dp_delta": 1e-3},
             {"dp_eps": 2.0, "dp_delta": 1e-3, "dp_norm_clip": 9.0}],
            [{"dp_eps": 2.1, "dp_delta": 1e-3}, {"dp_eps": 2.0, "dp_delta": 1e-2},
             {"dp_eps": 2.0, "dp_delta": 1e-3, "noise": "continuous"}],
        ),
        (
            {"protection": "rr", "eps": 1.0},
            [{"eps": 0.5}, {"eps": 1.0, "cells": 9, "total_eps": 1e9}],
            [{"eps": 1.5}, {"eps": 1.0, "report": "bits"},
             {"eps": 1.0, "adaptive": True, "total_eps": 1e9}],
        ),
        (
            {"protection": "oue", "eps": 1.0, "report": "bits",
             "adaptive": True, "total_eps": 150.0},
            [{"eps": 1.0, "report": "bits"}, {"eps": 1.5}],
            [{"eps": 1.6}, {"eps": 1.0, "adaptive": True, "total_eps": 160.0}],
        ),
        (
            {"protection": "pw_encrypt", "reconstruct_secrets_threshold": 11},
            [{"reconstruct_secrets_threshold": 12},
             {"reconstruct_secrets_threshold": 11, "clip": 1.0}],
            [{"reconstruct_secrets_threshold": 10},
             {"reconstruct_secrets_threshold": 11, "neighbours": 12}],
        ),
        (
            {"protection": "pw_encrypt", "reconstruct_secrets_threshold": 5, "neighbours": 8},
            [{"reconstruct_secrets_threshold": 5, "neighbours": 8},
             {"reconstruct_secrets_threshold": 11, "neighbours": "complete"}],
            [{"reconstruct_secrets_threshold": 5, "neighbours": 6},
             {"reconstruct_secrets_threshold": 5, "neighbours": 9},
             {"reconstruct_secrets_threshold": 5, "neighbours": "complete"}],
        ),
        (
            {"protection": "distributed_dp", "reconstruct_secrets_threshold": 11,
             "assume_honest": 0.7, "dropout_tolerance": 0.25, "noise_multiplier": 9.0},
            [{"reconstruct_secrets_threshold": 11, "assume_honest": 0.7,
              "dropout_tolerance": 0.25, "noise_multiplier": 9.0},
             {"reconstruct_secrets_threshold": 11, "assume_honest": 0.6,
              "dropout_tolerance": 0.25, "noise_multiplier": 9.0}],
            [{"reconstruct_secrets_threshold": 11, "assume_honest": 1.0,
              "dropout_tolerance": 0.25, "noise_multiplier": 9.0},
             {"reconstruct_secrets_threshold": 11, "assume_honest": 0.7,
              "dropout_tolerance": 0.1, "noise_multiplier": 9.0},
             {"reconstruct_secrets_threshold": 11, "assume_honest": 0.7, "share_secrets_ratio": 0.8,
              "dropout_tolerance": 0.25, "noise_multiplier": 9.0}],
        ),
    ],
)  # fmt: skip
def test_what_is_weaker_than_what(demanded, stronger, weaker):
    for keys in stronger:
        refuse(offer(protection=demanded["protection"], **keys), keywords=demanded)
    for keys in weaker:
        with pytest.raises(MessageInvalid, match="weaker than ProtectMod demands"):
            refuse(offer(protection=demanded["protection"], **keys), keywords=demanded)


@pytest.mark.parametrize(
    ("clients", "threshold", "weaker"),
    [
        (10, 7, None),
        (10, 9, None),
        (12, 8, "8 of 12 clients reconstruct a secret, but 7 of 10 are required"),
        (20, 14, None),
        (2000, 7, "7 of 2000 clients reconstruct a secret, but 7 of 10 are required"),
        (8, 6, "6 clients reconstruct a secret, but at least 7 are required"),
    ],
)
def test_a_pin_of_the_threshold_is_of_so_many_clients(clients, threshold, weaker):
    pin = {"protection": "pw_encrypt", "reconstruct_secrets_threshold": 7, "clients": 10}
    asked = offer(
        clients, protection="pw_encrypt", reconstruct_secrets_threshold=threshold,
        neighbours="complete",
    )  # fmt: skip
    if weaker is None:
        refuse(asked, keywords=pin)
        return
    with pytest.raises(MessageInvalid, match=weaker):
        refuse(asked, keywords=pin)


def test_a_pin_of_the_threshold_alone_is_more_than_half_of_any_number():
    pin = {"fedveil.protection": "pw_encrypt", "fedveil.reconstruct_secrets_threshold": 7}
    asked = {"protection": "pw_encrypt", "reconstruct_secrets_threshold": 7}
    refuse(offer(13, **asked), node_config=pin)
    with pytest.raises(MessageInvalid, match="7 of 14 clients reconstruct a secret, but more than"):
        refuse(offer(14, **asked), node_config=pin)
    refuse(offer(14, **asked, share_secrets_ratio=0.9), node_config=pin)


def test_weights_are_made_of_a_metric_that_the_client_gives():
    """The server learns the sum of the weights, so the key would reveal any metric."""
    sick = replace(offer(protection="pw_encrypt"), weight_key="sick")
    for sources in (
        {},
        {"keywords": {"weight_key": "num-examples"}, "run_config": {"fedveil.reveal": "sick"}},
        {"keywords": {"weight_key": "sick"}, "node_config": {"fedveil.weight_key": "healthy"}},
        {"run_config": {"fedveil.reveal": "sick"}, "node_config": {"fedveil.reveal": ""}},
        {"run_config": {"fedveil.weight_key": "sick"}, "node_config": {"fedveil.reveal": ""}},
        {"run_config": {"fedveil.weight_key": "sick"}, "keywords": {"reveal": "loss"}},
    ):
        with pytest.raises(MessageInvalid, match="makes weights of the metric sick, whose sum"):
            refuse(sick, **sources)
    refuse(sick, keywords={"weight_key": "sick"})
    refuse(sick, keywords={"weight_key": "sick"}, node_config={"fedveil.reveal": ""})
    refuse(sick, run_config={"fedveil.weight_key": "sick"})
    refuse(sick, node_config={"fedveil.reveal": "sick, loss"})
    refuse(replace(offer(protection="pw_encrypt", weighting="equal"), weight_key="sick"))
    refuse(replace(offer(protection="rr"), weight_key="sick"))
    refuse(offer(protection="pw_encrypt"))


@pytest.mark.parametrize("source", ["run_config", "node_config", "keywords"])
def test_a_pin_of_equal_weights_holds(source):
    """The sum of weights tells the server how many examples the clients have."""
    key = "weighting" if source == "keywords" else "fedveil.weighting"
    with pytest.raises(MessageInvalid, match=r"has weighting = by_size, and .* demands equal"):
        refuse(offer(protection="pw_encrypt"), **{source: {key: "equal"}})
    refuse(offer(protection="pw_encrypt", weighting="equal"), **{source: {key: "equal"}})
    refuse(offer(protection="pw_encrypt", weighting="equal"), **{source: {key: "by_size"}})


def test_metrics_are_revealed_where_the_server_asks_and_every_source_allows():
    asked = offer(protection="rr", reveal="loss, accuracy")
    run, node = {"fedveil.reveal": "loss,num-examples"}, {"fedveil.reveal": ""}
    assert may_reveal(asked, pins_of({}, {}, {})) == frozenset()
    assert may_reveal(asked, pins_of({}, run, {})) == {"loss"}
    assert may_reveal(asked, pins_of({"reveal": ["accuracy"]}, run, {})) == frozenset()
    assert may_reveal(asked, pins_of({}, run, node)) == frozenset()


def test_the_run_configuration_never_lifts_a_limit_of_the_client():
    """It comes from the server, which would name the trust that the client never had."""
    central = {"protection": "central_gaussian", "noise_multiplier": 1.0}
    said = {f"fedveil.{key}": value for key, value in central.items()}
    limit = {"fedveil.max_epsilon": 9.0}
    for sources in ({"node_config": limit}, {"keywords": {"max_epsilon": 9.0}}):
        with pytest.raises(MessageInvalid, match="rests on noise that the server adds"):
            refuse(offer(**central), **sources, run_config=said)
        with pytest.raises(MessageInvalid, match="rests on noise that the server adds"):
            refuse(offer(**central), **sources, run_config={**said, **limit})
    refuse(offer(**central), run_config={**said, **limit})
    refuse(offer(**central), node_config=limit, keywords=central)
    refuse(offer(**central), node_config={**limit, **said})


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("fedviel.max_epsilon", "fedveil.max_epsilon"),
        ("fedveil-reveal", "fedveil.reveal"),
        ("Fedveil.sign_eps", "fedveil.sign_eps"),
        ("reconstruct_secrets_threshold", "fedveil.reconstruct_secrets_threshold"),
        ("state_folder", "state-folder"),
    ],
)
def test_a_misspelt_key_of_an_app_s_node_does_not_count_as_missing(key, meant):
    """Otherwise the client has no such demand, or an account in a place that nobody keeps."""
    own = {"fedveil.protection": "signds", "fedveil.sign_eps": 3.0, key: 2.0}
    with pytest.raises(DeploymentError, match=rf"has {key}, .* \(did you mean {meant}\?\)"):
        pins_of({}, {}, own)


def test_keys_of_jobs_and_of_other_apps_on_a_node_are_ignored():
    others = dict.fromkeys(
        ("client", "clients", "partition-id", "num-partitions", "data", "identity", "roster"), 1
    )
    own = {**others, "max-epsilon": 1.0, "delta": 1e-6, "job": "a.yaml", "lr": 0.1, "seeded": True}
    assert pins_of({}, {"fedviel.max_epsilon": 1.0}, own) == []
    (pin,) = pins_of({}, {}, {**own, "state-folder": "/srv", "fedveil.max_epsilon": 2.0})
    assert pin.options.max_epsilon == 2.0


def test_what_any_source_keeps_is_kept():
    pins = pins_of({"keep": ["a", "b*"]}, {"fedveil.keep": "c"}, {"fedveil.keep": "d, e"})
    assert kept(pins) == ("a", "b*", "c", "d", "e")


def test_an_unknown_protection_is_one_problem():
    with pytest.raises(JobError) as told:
        parse({"protection": "signd", "sign_eps": 1.0, "sign_k": 9, "delta": 2.0})
    assert [problem.partition(" ")[0] for problem in told.value.problems] == ["protection", "delta"]


def test_every_limit_on_the_run_counts():
    pins = pins_of({"max_epsilon": 3.0}, {}, {"fedveil.max_epsilon": 2.0, "fedveil.delta": 1e-6})
    assert limits(pins) == [(3.0, 1e-5), (2.0, 1e-6)]
    total = {"fedveil.protection": "rr", "fedveil.total_eps": 7.0}
    ((epsilon, delta),) = limits(pins_of({}, {}, total))
    assert (epsilon, delta) == (pytest.approx(7.0, rel=1e-8), 0.0)
    both = {"protection": "rr", "total_eps": 5.0, "max_epsilon": 6.0, "delta": 1e-7}
    found = limits(pins_of(both, {"fedveil.reveal": "loss"}, total))
    assert [delta for _, delta in found] == [1e-7, 0.0, 0.0]
    assert [epsilon for epsilon, _ in found] == pytest.approx([6.0, 5.0, 7.0], rel=1e-8)


def test_terms_that_differ_in_anything_are_another_job():
    base = offer(protection="pw_encrypt", reconstruct_secrets_threshold=5)
    others = [
        offer(protection="pw_encrypt", reconstruct_secrets_threshold=6),
        replace(base, clients=21),
        replace(base, dimension=101),
        replace(base, weight_key="n"),
    ]
    assert len({o.job(RUN) for o in (base, *others)}) == 5
    assert [base.protection(run).context.job for run in (3, 8)] == [base.job(3), base.job(8)]
    assert base.job(3) != base.job(8)


@pytest.mark.parametrize("position", POSITIONS.values(), ids=lambda position: position.name)
def test_every_setting_declares_which_way_it_weakens(position):
    """A pin could not enforce a setting without a direction."""
    fields = position.settings_type.model_fields
    assert directions(position.settings_type).keys() == fields.keys()


def test_a_setting_without_a_direction_must_be_as_demanded():
    """A class of one's own may have such settings, on which its bound may rest."""

    class Own(Settings):
        WEAKENS: ClassVar = {"eps": "larger"}
        eps: float = 1.0
        others: int = 3

    assert weakened(Own(eps=0.5), Own()) is None
    for others in (2, 4):
        assert weakened(Own(others=others), Own()) == (
            f"others is {others}, 3 is demanded, and WEAKENS does not list it"
        )


@pytest.mark.parametrize("position", POSITIONS.values(), ids=lambda position: position.name)
def test_a_setting_that_is_weaker_in_its_direction_is_named(position):
    settings = position.settings_type()
    for name, direction in directions(position.settings_type).items():
        if direction not in ("larger", "smaller"):
            continue
        value = getattr(settings, name)
        low, high = (False, True) if isinstance(value, bool) else (value * 0.75, value * 0.5 + 0.5)
        less, more = (settings.model_copy(update={name: held}) for held in (low, high))
        if getattr(less, name) == getattr(more, name):
            continue
        worse, better = (more, less) if direction == "larger" else (less, more)
        assert weakened(better, worse) is None
        assert weakened(worse, better).startswith(f"{name} is ")
        assert weakened(worse, worse) is None
