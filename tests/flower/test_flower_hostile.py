"""A server that lies, and rounds of several phases in which clients come and go."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp.strategy import FedAvg

from fedveil.base.message import decode, encode
from fedveil.entropy import Seeded
from fedveil.errors import InvalidValue
from fedveil.flower import ProtectedStrategy, ProtectMod
from fedveil.flower.app.offer import Offer
from fedveil.flower.app.options import parse
from fedveil.flower.records import to_records
from fedveil.secagg import masking_graph
from flower_app_parts import RUN, FakeGrid, Node, arrays_of, client_app, record_of

DIMENSION = 50
PHASES = ("advertise", "share", "masked", "unmask")
PW = {"protection": "pw_encrypt", "reconstruct_secrets_threshold": 3, "weighting": "equal"}


@pytest.fixture(autouse=True)
def _own_place(monkeypatch, tmp_path):
    numbers = itertools.count()
    monkeypatch.setattr("fedveil.flower.app.mod.Secure", lambda: Seeded(12, next(numbers)))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))


def train(arrays, node):
    return {"w": arrays["w"] + np.float32(node)}, {"num-examples": node}


def federation(clients=6, mod=None, calls=None, **kwargs):
    app = client_app(train, [mod or ProtectMod()], calls)
    return FakeGrid(Node(1 + i, app, **kwargs) for i in range(clients))


def start(grid, strategy, rounds=1, timeout=0.2):
    initial = record_of({"w": np.zeros(DIMENSION, np.float32)})
    result = strategy.start(grid, initial, num_rounds=rounds, timeout=timeout)
    return arrays_of(result.arrays)["w"] if result.arrays else None


def content(words, keys, clients=6, dimension=DIMENSION):
    """Return a message content that any kind of server may send."""
    offer = Offer(parse(keys), "num-examples", dimension, clients)
    records = to_records(words)
    records["fedveil.offer"] = to_records(offer.words())["fedveil"]
    records["arrays"] = record_of({"w": np.zeros(DIMENSION, np.float32)})
    records["config"] = ConfigRecord({"server-round": 1})
    return records


def ask(grid, records, node=1, kind="train"):
    return grid.send_and_receive([Message(records, node, kind)])[0]


def phase_of(message):
    return decode(message.content["fedveil"]["encoded"]).get("phase")


def test_a_training_message_without_an_offer_is_refused_and_the_app_never_asked():
    calls = []
    grid = federation(calls=calls)
    records = RecordDict(dict(content({"round": 1}, {"protection": "rr"}).items()))
    del records["fedveil"], records["fedveil.offer"]
    reply = ask(grid, records)
    assert "asks for the arrays in clear" in reply.error.reason
    assert calls == []


def test_an_offer_of_no_protection_is_refused():
    calls = []
    grid = federation(calls=calls)
    records = content({"round": 1}, {"protection": "rr"})
    words = decode(records["fedveil.offer"]["encoded"])
    records["fedveil.offer"]["encoded"] = encode({**words, "protection": "not_encrypt"})
    assert "protection = 'not_encrypt' is not one of" in ask(grid, records).error.reason
    assert calls == []


@pytest.mark.parametrize("own", [{}, {"fedveil.reveal": "", "fedveil.keep": "b"}])
@pytest.mark.parametrize("place", ["run_config", "node_config"])
def test_no_configuration_switches_the_protection_off(place, own):
    """The server names not_encrypt as if it were a class of the client's own."""
    calls, name = [], "fedveil.protections.not_encrypt:NotEncrypt"
    grid = federation(
        calls=calls, **{"node_config": own, place: {**own, "fedveil.protection": name}}
    )
    records = content({"round": 1}, {"protection": "rr"})
    words = decode(records["fedveil.offer"]["encoded"])
    words = {field: v for field, v in words.items() if not field.startswith("parameter.")}
    settings = {"protection": name, "weighting": "by_size", "parameter.max_examples": 65_535}
    records["fedveil.offer"]["encoded"] = encode({**words, **settings})
    reply = ask(grid, records)
    assert reply.has_error()
    assert calls == []


@pytest.mark.parametrize("place", ["run_config", "node_config", "mod"])
def test_an_offer_weaker_than_the_clients_pin_is_refused(place):
    pin = {"protection": "rr", "eps": 1.0}
    configured = {f"fedveil.{name}": value for name, value in pin.items()}
    calls = []
    grid = federation(
        mod=ProtectMod(**pin) if place == "mod" else None,
        calls=calls,
        **({} if place == "mod" else {place: configured}),
    )
    strategy = ProtectedStrategy(FedAvg(), protection="rr", eps=2.0)
    assert start(grid, strategy) is None
    (reason,) = strategy.rounds[0].withheld
    assert "a report costs epsilon 200 at delta 0 (next to none), epsilon 100 at delta 0" in reason
    assert calls == []
    assert start(grid, ProtectedStrategy(FedAvg(), protection="rr", eps=0.5)) is not None


@pytest.mark.parametrize(
    "words",
    [
        {"round": 1, "eps": 9.0},
        {"round": 1},
        {"round": "1", "eps": 1.0},
        {"round": 1, "eps": 1.0, "phase": "masked"},
        {"round": 1, "eps": 1.0, "phase": "share"},
    ],
)
def test_an_opening_that_does_not_fit_its_offer_gets_no_report(words):
    grid = federation()
    assert ask(grid, content(words, {"protection": "rr", "eps": 1.0})).has_error()
    good = ask(grid, content({"round": 1, "eps": 1.0}, {"protection": "rr", "eps": 1.0}))
    assert set(good.content) == {"fedveil"}


def test_arrays_of_another_length_than_offered_are_refused():
    calls = []
    grid = federation(calls=calls)
    asked = {"round": 1, "eps": 1.0}, {"protection": "rr", "eps": 1.0}
    for dimension in (49, 51):
        records = content(*asked, dimension=dimension)
        assert "another number of entries" in ask(grid, records).error.reason
    assert calls == []


def test_a_client_counts_its_reports_itself_and_stops_at_its_limit():
    pin = {"fedveil.max_epsilon": 250.0, "fedveil.delta": 0.0}
    grid = federation(node_config=pin)
    records = content({"round": 1, "eps": 1.0}, {"protection": "rr", "eps": 1.0})
    replies = [ask(grid, records) for _ in range(4)]  # the same round four times
    assert [reply.has_error() for reply in replies] == [False, False, True, True]
    assert "above its max_epsilon = 250" in replies[2].error.reason
    assert not ask(grid, records, node=2).has_error()


def test_reports_that_cost_differently_add_up_plainly():
    limit = {"fedveil.max_epsilon": 1000.0, "fedveil.delta": 1e-5}
    grid = federation(node_config=limit)
    small, large = ({"protection": "rr", "eps": eps} for eps in (1.0, 4.0))
    # On their own, reports of rr compose to far less at this delta than their plain sum of 400
    # each.
    alike = [ask(grid, content({"round": 1, "eps": 4.0}, large)) for _ in range(4)]
    assert [reply.has_error() for reply in alike] == [False] * 4
    mixed = [
        ask(grid, content({"round": 1, "eps": keys["eps"]}, keys), node=2)
        for keys in (small, large, large, large)
    ]
    assert [reply.has_error() for reply in mixed] == [False, False, False, True]
    assert "to epsilon 1,300 at delta" in mixed[3].error.reason


def test_a_failure_of_the_mod_itself_says_its_kind_and_not_its_text(monkeypatch):
    def broken(*args):
        raise KeyError("patient 4711")

    monkeypatch.setattr("fedveil.flower.app.mod.to_records", broken)
    grid = federation()
    reply = ask(grid, content({"round": 1, "eps": 1.0}, {"protection": "rr", "eps": 1.0}))
    assert reply.error.reason == "fedveil failed with KeyError"


def test_an_update_is_not_asked_of_the_app_before_keys_were_exchanged():
    calls = []
    grid = federation(calls=calls)
    words = {
        "round": 1,
        "phase": "masked",
        "senders": np.arange(2),
        "sealed": np.zeros((2, 9), "u1"),
        "tags": np.zeros((2, 32), "u1"),
    }
    assert "masked is asked for before advertise" in ask(grid, content(words, PW)).error.reason
    assert calls == []


@pytest.mark.parametrize("wrong", ["fedveil.sign_epz", "fedviel.max_epsilon"])
def test_a_wrong_configuration_of_the_clients_own_is_not_told_to_the_server(wrong, caplog):
    calls = []
    own = {wrong: 4711.0, "fedveil.protection": "signds"}
    grid = federation(node_config=own, calls=calls)
    reply = ask(grid, content({"round": 1}, {"protection": "signds"}))
    assert reply.error.reason == "withheld: for a reason in its own log"
    assert wrong in caplog.text
    assert calls == []


@pytest.mark.parametrize("phase", PHASES)
def test_a_client_that_falls_silent_is_left_out_of_the_sum_or_was_in_it_before(phase):
    grid = federation()
    grid.tamper = lambda m: None if m.metadata.dst_node_id == 6 and _at(m, phase) else m
    strategy = ProtectedStrategy(FedAvg(), **PW)
    after = start(grid, strategy)
    present = range(1, 7) if phase == "unmask" else range(1, 6)
    step = PW_STEP
    assert np.abs(after - np.mean([min(n, 8) for n in present])).max() <= step
    assert strategy.rounds[0].reports == len(present)


PW_STEP = 8 / (2**19 - 1) + 1e-6


def _at(message, phase):
    return PHASES.index(phase_of(message)) >= PHASES.index(phase)


@pytest.mark.parametrize("phase", PHASES)
def test_a_round_with_too_few_clients_is_void_and_the_next_one_is_not(phase):
    grid = federation()

    def tamper(message):
        number = decode(message.content["fedveil"]["encoded"])["round"]
        gone = number == 1 and message.metadata.dst_node_id > 2 and _at(message, phase)
        return None if gone else message

    grid.tamper = tamper
    strategy = ProtectedStrategy(FedAvg(), **PW)
    after = start(grid, strategy, rounds=2)
    assert strategy.rounds[0].void is not None
    assert strategy.rounds[1].reports == 6
    assert np.abs(after - 3.5).max() <= PW_STEP


def test_nothing_of_a_round_is_left_when_it_is_over(tmp_path):
    grid = federation()
    start(grid, ProtectedStrategy(FedAvg(), **PW))
    assert not list(Path(tmp_path, "fedveil").iterdir())
    lasting = [p for p in Path(tmp_path, "home", "fedveil").iterdir() if p.stem != "seal-key"]
    kept = Counter(path.suffix for path in lasting)
    assert kept.keys() <= {".answered", ".lock", ".account", ".seal"}
    assert kept[".answered"] == 6
    for node in grid.nodes.values():
        assert not node.context.state


def test_between_phases_the_context_holds_a_sealed_record_alone():
    grid = federation()
    kept = []
    grid.tamper = lambda m: kept.append(dict(grid.nodes[m.metadata.dst_node_id].context.state)) or m
    start(grid, ProtectedStrategy(FedAvg(), **PW))
    between = [state for state in kept if state]
    assert len(between) == 18  # six clients, three times
    assert all(name.startswith("fedveil.state.") for state in between for name in state)


@pytest.mark.parametrize("phase", ["share", "masked", "unmask"])
def test_terms_cannot_change_within_a_round(phase):
    grid = federation()

    def tamper(message):
        if phase_of(message) == phase:
            record = message.content["fedveil.offer"]
            words = decode(record["encoded"])
            record["encoded"] = encode({**words, "parameter.reconstruct_secrets_threshold": 2})
        return message

    grid.tamper = tamper
    strategy = ProtectedStrategy(FedAvg(), **PW)
    assert start(grid, strategy) is None
    (reason,) = strategy.rounds[0].withheld
    assert reason == "the offer is another than at the round's beginning"


def test_weights_are_no_way_to_the_sum_of_a_metric_that_stays():
    calls = []

    def with_metric(arrays, node):
        return arrays, {"num-examples": 1, "sick": node}

    app = client_app(with_metric, [ProtectMod()], calls)
    grid = FakeGrid(Node(1 + i, app) for i in range(6))
    strategy = ProtectedStrategy(
        FedAvg(weighted_by_key="sick"), protection="pw_encrypt", reconstruct_secrets_threshold=3
    )
    assert start(grid, strategy) is None
    ((reason, count),) = strategy.rounds[0].withheld.items()
    assert "makes weights of the metric sick, whose sum the server would learn" in reason
    assert (count, calls) == (6, [])


@pytest.mark.parametrize("place", ["run_config", "node_config", "mod"])
def test_an_array_that_the_client_keeps_is_not_sent(place):
    """The server's offer says what is kept: it would leave the client's own demand out."""
    calls = []
    pin = {} if place == "mod" else {place: {"fedveil.keep": "v, w*"}}
    mod = ProtectMod(keep="w*") if place == "mod" else None
    asked = content({"round": 1, "eps": 1.0}, {"protection": "rr", "eps": 1.0})
    reply = ask(federation(mod=mod, calls=calls, **pin), asked)
    assert reply.error.reason.endswith("the offer sends what this client keeps (keep): w")
    assert calls == []


@pytest.mark.parametrize("name", ["w", "kept"])
def test_another_model_for_one_client_leaves_noise(name):
    """Otherwise the server could remove all updates but that client's. Fixed arrays count too."""

    def tamper(message):
        if message.metadata.dst_node_id == 1 and phase_of(message) == "masked":
            arrays = arrays_of(message.content["arrays"])
            message.content["arrays"] = record_of({**arrays, name: arrays[name] + 1})
        return message

    app = client_app(lambda a, node: ({**a, "w": a["w"] + 1}, {}), [ProtectMod()])
    for lies, void in ((False, None), (True, "the weights of 6 clients cannot have the sum")):
        grid = FakeGrid(Node(1 + i, app) for i in range(6))
        grid.tamper = tamper if lies else grid.tamper
        strategy = ProtectedStrategy(FedAvg(), **PW, keep="kept")
        strategy.rounds += [None] * lies  # a new round each time, since clients answer a round once
        initial = record_of({"w": np.zeros(DIMENSION, np.float32), "kept": np.zeros(3)})
        strategy.start(grid, initial, num_rounds=1, timeout=0.2)
        record = strategy.rounds[-1]
        assert (record.void is None) if void is None else (void in record.void)


def test_no_phase_is_answered_twice():
    grid = federation()
    strategy = ProtectedStrategy(FedAvg(), **PW)
    start(grid, strategy)
    for message in list(grid.sent):
        if message.metadata.dst_node_id == 1 and phase_of(message) != "advertise":
            assert ask(grid, message.content).has_error()


def test_two_clients_cannot_hide_each_other():
    with pytest.raises(
        InvalidValue, match=r"reconstruct_secrets_threshold = 3 is outside \[1, 3\)"
    ):
        start(federation(3), ProtectedStrategy(FedAvg(), **PW))


def test_a_later_round_with_too_few_clients_is_void_and_does_not_end_the_run():
    grid = federation()
    strategy = ProtectedStrategy(FedAvg(), **PW)
    start(grid, strategy)
    for node in (3, 4, 5, 6):
        del grid.nodes[node]
    start(grid, strategy)
    assert strategy.rounds[0].reports == 6
    assert "outside [1, 2)" in strategy.rounds[1].void


def test_the_runs_number_is_part_of_the_terms():
    offer = Offer(parse(PW), "num-examples", DIMENSION, 6)
    assert offer.job(RUN) != offer.job(RUN + 1)


@pytest.mark.parametrize(
    ("clients", "sums"), [(1_000_000, 100), ((1 << 20) + 1, 0), (10**9, 0), (10**30, 0)]
)
def test_a_client_that_is_told_of_absurdly_many_clients_works_little_out(
    clients, sums, monkeypatch, caplog
):
    """The number is the server's word, and the graph's degree follows from it."""
    asked, tail = [], masking_graph._tail

    def counted(*numbers):
        asked.append(numbers)
        return tail(*numbers)

    monkeypatch.setattr(masking_graph, "_tail", counted)
    masking_graph.automatic.cache_clear()
    keys = {**PW, "reconstruct_secrets_threshold": 5000}
    records = content({"round": 1, "phase": "advertise"}, keys, clients=clients)
    del records["arrays"], records["config"]
    reply = ask(federation(), records)
    assert reply.has_error() == (sums == 0)
    assert (" is outside [1, " in caplog.text) == (sums == 0)
    assert len(asked) <= sums


def test_arrays_in_an_early_phase_start_no_training():
    """The client has its keys and waits for the others', not for arrays."""
    calls = []
    grid = federation(calls=calls)

    def tamper(message):
        if message.metadata.dst_node_id == 4 and phase_of(message) == "share":
            message.content["arrays"] = record_of({"w": np.zeros(DIMENSION, np.float32)})
        return message

    grid.tamper = tamper
    strategy = ProtectedStrategy(FedAvg(), **PW)
    start(grid, strategy)
    assert len(calls) == strategy.rounds[0].reports == 5
    assert strategy.rounds[0].withheld == {"for a reason in its own log": 1}


def test_a_failed_training_is_told_once_a_round(monkeypatch):
    """With other arrays each time, a server could read examples from the trainings that fail."""
    calls = []

    def picky(arrays, node):
        calls.append(node)
        if node == 2:
            raise ValueError("an example that is not to my taste")
        return train(arrays, node)

    grid = FakeGrid(Node(1 + i, client_app(picky, [ProtectMod()])) for i in range(6))
    for answered in (5, 0):
        strategy = ProtectedStrategy(FedAvg(), **PW)
        start(grid, strategy)
        assert strategy.rounds[0].reports == answered
        assert len(calls) == 6
    ((reason, count),) = strategy.rounds[0].withheld.items()
    assert count == 6
    assert "or its training failed" in reason


@pytest.mark.parametrize("number", [-1, 1 << 62, 1 << 64, 1 << 100])
@pytest.mark.parametrize("phase", ["advertise", "share"])
def test_a_number_of_no_round_is_refused_in_one_sentence(number, phase):
    grid = federation()

    def tamper(message):
        if phase_of(message) == phase:
            record = message.content["fedveil"]
            record["encoded"] = encode({**decode(record["encoded"]), "round": number})
        return message

    grid.tamper = tamper
    strategy = ProtectedStrategy(FedAvg(), **PW)
    start(grid, strategy)
    assert strategy.rounds[0].failed == {}
    ((reason, count),) = strategy.rounds[0].withheld.items()
    assert (reason, count) == (f"round = {number} is outside [0, {(1 << 62) - 1}]", 6)


def test_names_of_the_servers_arrays_write_no_lines_of_the_clients_log(caplog):
    forged = "w\n2026-01-01 all is well " + "x" * 9000

    def forgets(arrays, node):
        return {"w": arrays["w"]}, {"num-examples": 1}

    app = client_app(forgets, [ProtectMod()])
    grid = FakeGrid([Node(1, app)])
    records = content({"round": 1, "eps": 1.0}, {"protection": "rr", "eps": 1.0}, dimension=51)
    records["arrays"] = record_of({"w": np.zeros(50, np.float32), forged: np.zeros(1, np.float32)})
    assert not ask(grid, records).has_error()
    (said,) = [r.getMessage() for r in caplog.records if "update of zero" in r.getMessage()]
    assert "the reply's arrays are not those received" in said
    assert "\n" not in said
    assert len(said) < 2100
