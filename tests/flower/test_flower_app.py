"""Two lines in an existing Flower app: the messages, the aggregate and the refusals."""

from __future__ import annotations

import itertools
import logging
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import strategy as flower
from scipy import stats

from fedveil.base.message import decode
from fedveil.entropy import Seeded
from fedveil.errors import InvalidValue, MissingExtra, ModelInvalid
from fedveil.flower import ProtectedStrategy, ProtectMod
from fedveil.flower.app import carrier
from fedveil.flower.app.field_names import OFFER
from fedveil.flower.app.round_record import RoundRecord
from fedveil.flower.own_account import OwnLedger
from fedveil.flower.records import MESSAGE
from fedveil.mechanisms.gaussian import GaussianMechanism
from flower_app_parts import FakeGrid, Node, arrays_of, charged_at_last, client_app, record_of

SHAPES = {"w": (40, 30), "b": (30,), "scale": (), "none": (0, 3)}
PW = {"protection": "pw_encrypt", "reconstruct_secrets_threshold": 3}
PROTECTIONS = [
    {"protection": "dp_encrypt"},
    {"protection": "signds", "sign_k": 0.1},
    {"protection": "rr", "target": "update"},
    {"protection": "oue", "report": "bits"},
    PW,
    {**PW, "protection": "distributed_dp", "noise_multiplier": 1.0, "dropout_tolerance": 0.34},
]
ALL = pytest.mark.parametrize("settings", PROTECTIONS, ids=lambda s: s["protection"])


@pytest.fixture(autouse=True)
def _own_place(monkeypatch, tmp_path):
    """Make reports repeatable, and put the clients' files into a folder of the test."""
    numbers = itertools.count()
    monkeypatch.setattr("fedveil.flower.app.mod.Secure", lambda: Seeded(11, next(numbers)))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))


def start_arrays(dtype=np.float32):
    return {name: np.full(shape, 0.25, dtype) for name, shape in SHAPES.items()}


def drift(node):
    """Return the change of a client's training, which is equal in every round."""
    generator = np.random.default_rng(node % 1000)
    return {name: 0.01 * generator.standard_normal(shape) for name, shape in SHAPES.items()}


def train(arrays, node):
    moves = drift(node)
    new = {name: (a + moves[name]).astype(a.dtype) for name, a in arrays.items()}
    return new, {"num-examples": 10 + node % 7, "loss": 1.5, "accuracy": 0.5}


def federation(clients=6, mods=None, train=train, **kwargs):
    """Make a federation of clients whose ids use all of Flower's 64 bits."""
    mods = [ProtectMod()] if mods is None else mods
    return FakeGrid(
        Node((1 << 63) + 7919 * i + 5, client_app(train, mods), **kwargs) for i in range(clients)
    )


def run(grid, strategy, rounds=1, arrays=None, **kwargs):
    initial = record_of(start_arrays() if arrays is None else arrays)
    result = strategy.start(grid, initial, num_rounds=rounds, timeout=5, **kwargs)
    return result, arrays_of(result.arrays) if result.arrays else None


def mean_drift(grid, weights=None):
    return np.average([flat(drift(node)) for node in grid.nodes], axis=0, weights=weights)


def flat(arrays):
    return np.concatenate([np.asarray(arrays[name], np.float64).ravel() for name in SHAPES])


@ALL
def test_only_the_report_crosses(settings):
    grid = federation()
    strategy = ProtectedStrategy(flower.FedAvg(), **settings)
    _, arrays = run(grid, strategy, rounds=2)
    assert [r.reports for r in strategy.rounds] == [6, 6]
    assert {n: (a.dtype, a.shape) for n, a in arrays.items()} == {
        n: (np.dtype(np.float32), shape) for n, shape in SHAPES.items()
    }
    assert np.isfinite(flat(arrays)).all()
    assert (flat(arrays) != flat(start_arrays())).any()
    for reply in grid.replies:
        assert set(reply.content) == {"fedveil"}
        assert set(decode(reply.content["fedveil"]["encoded"])).isdisjoint({"loss", "examples"})


@ALL
def test_a_zero_update_is_protected_as_any_other(settings):
    grid = federation(train=lambda arrays, node: (arrays, {"num-examples": 1}))
    strategy = ProtectedStrategy(flower.FedAvg(), **settings)
    _, arrays = run(grid, strategy)
    assert strategy.rounds[0].reports == 6
    assert np.isfinite(flat(arrays)).all()
    if settings is PW:
        assert flat(arrays).tolist() == flat(start_arrays()).tolist()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("weighting", ["by_size", "equal"])
def test_secure_aggregation_is_plain_averaging_to_a_step(weighting, dtype):
    grid = federation()
    strategy = ProtectedStrategy(flower.FedAvg(), **PW, weighting=weighting)
    _, arrays = run(grid, strategy, arrays=start_arrays(dtype))
    weights = [10 + node % 7 for node in grid.nodes] if weighting == "by_size" else None
    step = 8 / (2**19 - 1)
    rounding = {np.float16: 3e-4, np.float32: 1e-7, np.float64: 1e-8}[dtype]
    expected = flat(start_arrays()) + mean_drift(grid, weights)
    assert np.abs(flat(arrays) - expected).max() <= step + rounding


def test_dp_encrypt_is_plain_averaging_plus_the_stated_noise():
    grid = federation(8)
    strategy = ProtectedStrategy(flower.FedAvg(), protection="dp_encrypt", dp_eps=8.0)
    _, arrays = run(grid, strategy)
    moves = [flat(drift(node)) for node in grid.nodes]
    clipped = [m / max(1.0, np.linalg.norm(m)) for m in moves]
    noise = flat(arrays) - flat(start_arrays()) - np.mean(clipped, axis=0)
    sigma = GaussianMechanism(8.0, 0.01, 1.0, "discrete").sigma / np.sqrt(8)
    square = float(np.sum((noise / sigma) ** 2))
    assert 1e-9 < stats.chi2.cdf(square, noise.size) < 1 - 1e-9
    assert abs(noise.sum()) < 6 * sigma * np.sqrt(noise.size)


@pytest.mark.parametrize("kind", ["rr", "oue"])
@pytest.mark.parametrize("target", ["update", "weights"])
def test_unary_reports_are_unbiased_for_plain_averaging(kind, target):
    grid = federation(8)
    strategy = ProtectedStrategy(
        flower.FedAvg(), protection=kind, eps=6.0, target=target, rounding="stochastic"
    )
    _, arrays = run(grid, strategy)
    error = flat(arrays) - flat(start_arrays()) - mean_drift(grid)
    # Flower draws the order of clients, and thereby which client has which noise.
    assert abs(error.mean()) < 6 * error.std() / np.sqrt(error.size)
    assert error.std() < 0.5


def test_signds_moves_where_all_clients_do():
    direction = {name: np.sign(move) for name, move in drift(1).items()}

    def along(arrays, node):
        return {n: (a + direction[n]).astype(a.dtype) for n, a in arrays.items()}, {}

    grid = federation(train=along)
    strategy = ProtectedStrategy(flower.FedAvg(), protection="signds", sign_k=0.25, sign_eps=100.0)
    _, arrays = run(grid, strategy)
    moved = flat(arrays) - flat(start_arrays())
    agrees = np.sign(moved[moved != 0]) == flat(direction)[moved != 0]
    assert stats.binom.sf(agrees.sum() - 1, agrees.size, 0.5) < 1e-6


@pytest.mark.parametrize(
    "make",
    [
        flower.FedAvg,
        lambda: flower.FedAvgM(server_learning_rate=0.5, server_momentum=0.9),
        lambda: flower.FedProx(proximal_mu=0.1),
        lambda: flower.FedAdagrad(tau=0.1),
        lambda: flower.FedAdam(tau=0.1),
        lambda: flower.FedYogi(tau=0.1),
    ],
)
def test_strategies_that_average_go_on_as_they_do_without_protection(make):
    _, plain = run(federation(mods=()), make(), rounds=3)
    _, protected = run(federation(), ProtectedStrategy(make(), **PW), rounds=3)
    np.testing.assert_allclose(flat(protected), flat(plain), atol=2e-4)


@pytest.mark.parametrize(
    "make",
    [
        flower.FedMedian,
        flower.FedTrimmedAvg,
        flower.Krum,
        flower.Bulyan,
        lambda: flower.QFedAvg(client_learning_rate=0.1),
        lambda: flower.DifferentialPrivacyClientSideFixedClipping(flower.FedAvg(), 1.0, 1.0, 2),
    ],
)
def test_strategies_that_look_at_single_updates_are_refused(make):
    with pytest.raises(InvalidValue, match=r"looks at every client's own reply"):
        ProtectedStrategy(make(), protection="rr")


def test_a_strategy_with_a_loop_of_its_own_is_refused_rather_than_half_used():
    class Own(flower.FedAvg):
        def start(self, *args, **kwargs):
            raise AssertionError

    with pytest.raises(InvalidValue, match=r"Own\(...\) has a start\(\) of its own"):
        ProtectedStrategy(Own(), protection="rr")


@ALL
def test_replies_of_clients_without_the_mod_are_refused_counted_and_never_averaged(settings):
    grid = federation(6)
    honest = list(grid.nodes)[:4]
    for node in list(grid.nodes)[4:]:
        grid.nodes[node] = Node(
            node, client_app(lambda a, n: ({k: v + 1e3 for k, v in a.items()}, {}))
        )
        grid.nodes[node].app = _lenient(grid.nodes[node].app)
    strategy = ProtectedStrategy(flower.FedAvg(), **settings)
    _, arrays = run(grid, strategy)
    record = strategy.rounds[0]
    assert record.reports == len(honest)
    assert sum(record.rejected.values()) == 2
    assert all("runs without ProtectMod" in reason for reason in record.rejected)
    assert np.abs(flat(arrays)).max() < 100


def _lenient(app):
    """Make an app that treats any message as a training message and answers with arrays."""

    def answer(message, context):
        content = message.content
        arrays = content.get("arrays", record_of(start_arrays()))
        message.content = RecordDict({"arrays": arrays, "config": ConfigRecord()})
        return app(message, context)

    return answer


def test_where_no_client_has_the_mod_the_arrays_stay_as_they_are():
    grid = federation(mods=())
    for node in grid.nodes.values():
        node.app = _lenient(node.app)
    strategy = ProtectedStrategy(flower.FedAvg(), protection="rr")
    result, _ = run(grid, strategy)
    assert not result.arrays
    assert strategy.rounds[0].void is not None
    assert sum(strategy.rounds[0].rejected.values()) == 6


@pytest.mark.parametrize(
    "spoil",
    [
        lambda c: c["fedveil"].update(encoded=b"junk"),
        lambda c: c["fedveil"].update(encoded=c["fedveil"]["encoded"] + bytes(1000)),
        lambda c: c["fedveil"].update(encoded=1),
        lambda c: c["fedveil"].update(more=1),
        lambda c: c.update(arrays=record_of(start_arrays())),
        lambda c: c.update(metrics=MetricRecord({"loss": 1.0})),
        lambda c: c.pop("fedveil"),
        lambda c: c.clear(),
    ],
)
def test_malformed_replies_are_refused_one_by_one_and_charged(spoil):
    grid = federation()
    bad = next(iter(grid.nodes))

    def tamper(reply):
        if reply.metadata.src_node_id == bad:
            spoil(reply.content)
        return reply

    grid.tamper_reply = tamper
    strategy = ProtectedStrategy(flower.FedAvg(), protection="signds", sign_k=0.1)
    run(grid, strategy)
    assert strategy.rounds[0].reports == 5
    assert sum(strategy.rounds[0].rejected.values()) == 1
    assert charged_at_last(strategy) == set(grid.nodes)


def test_metrics_in_another_kind_of_record_are_refused_and_the_round_goes_on():
    grid = federation(run_config={"fedveil.reveal": "loss"})
    bad = next(iter(grid.nodes))

    def tamper(reply):
        if reply.metadata.src_node_id == bad:
            reply.content["metrics"] = ConfigRecord({"loss": "high"})
        return reply

    grid.tamper_reply = tamper
    strategy = ProtectedStrategy(flower.FedAvg(), protection="rr", reveal="loss")
    run(grid, strategy)
    record = strategy.rounds[0]
    assert (record.reports, record.metrics) == (5, {"loss": 1.5})
    assert dict(record.rejected) == {"the reply holds metrics in clear that were not asked for": 1}


def test_the_metrics_of_a_refused_report_are_in_no_mean():
    grid = federation(run_config={"fedveil.reveal": "loss"})
    bad = next(iter(grid.nodes))

    def tamper(reply):
        if reply.metadata.src_node_id == bad and "fedveil" in reply.content:
            reply.content["fedveil"]["encoded"] = b"junk"
            reply.content["metrics"]["loss"] = 1e6
        return reply

    grid.tamper_reply = tamper
    strategy = ProtectedStrategy(flower.FedAvg(), protection="rr", reveal="loss")
    result, _ = run(grid, strategy)
    assert (strategy.rounds[0].reports, strategy.rounds[0].metrics) == (5, {"loss": 1.5})
    assert result.train_metrics_clientapp[1] == {"loss": 1.5}


def test_a_void_round_has_no_metrics_even_if_reports_arrived():
    """All clients train, and no one helps to open the sum."""
    grid = federation(run_config={"fedveil.reveal": "loss"})
    trained = set()

    def tamper(message):
        node = message.metadata.dst_node_id
        if message.content.array_records:
            trained.add(node)
        elif node in trained:
            return None
        return message

    grid.tamper = tamper
    strategy = ProtectedStrategy(flower.FedAvg(), **PW, weighting="equal", reveal="loss")
    strategy.start(grid, record_of(start_arrays()), num_rounds=1, timeout=0.2)
    (record,) = strategy.rounds
    assert trained == set(grid.nodes)
    assert (record.reports, record.metrics) == (0, {})
    assert "0 clients answered in phase unmask" in record.void


def test_replies_are_folded_one_at_a_time_as_they_come():
    grid = federation(41)
    strategy = ProtectedStrategy(flower.FedAvg(), protection="signds", sign_k=0.1)
    run(grid, strategy)
    assert strategy.rounds[0].reports == 41
    assert grid.most_pulled == 1


def test_a_client_cannot_make_the_model_infinite():
    """A report within its range moves a model of float16 beyond what float16 holds."""
    grid = federation()
    liars = {list(grid.nodes)[2]}

    def lying(arrays, node):
        far = 900.0 if node in liars else 0.0
        liars.discard(node)
        return {name: np.float32(a) + np.float32(far) for name, a in arrays.items()}, {}

    for node in grid.nodes.values():
        node.app = client_app(lying, [ProtectMod()])
    arrays = {name: np.full(shape, 65504.0, np.float16) for name, shape in SHAPES.items()}
    strategy = ProtectedStrategy(flower.FedAvg(), clip=1024.0, weighting="equal", **PW)
    _, ended = run(grid, strategy, rounds=2, arrays=arrays)
    assert [record.reports for record in strategy.rounds] == [0, 6]
    assert "is not finite" in strategy.rounds[0].void
    assert np.isfinite(flat(ended)).all()


@ALL
def test_a_client_without_a_reply_is_left_out_and_counted_as_having_spent(settings):
    grid = federation()
    gone = next(iter(grid.nodes))
    grid.silent = {gone}
    strategy = ProtectedStrategy(flower.FedAvg(), **settings)
    initial = record_of(start_arrays())
    strategy.start(grid, initial, num_rounds=1, timeout=0.2)
    record = strategy.rounds[0]
    assert (record.reports, record.dropped) == (5, 1)
    before = "reconstruct_secrets_threshold" in settings  # silent before a report is due
    asked = set(grid.nodes) - ({gone} if before else set())
    assert charged_at_last(strategy) == asked


def test_integer_arrays_are_refused_by_name_before_anything_is_sent_or_kept():
    arrays = {**start_arrays(), "bn.num_batches_tracked": np.array(3)}
    grid = federation()
    with pytest.raises(ModelInvalid, match=r"bn\.num_batches_tracked has type int64"):
        run(grid, ProtectedStrategy(flower.FedAvg(), **PW), arrays=arrays)
    assert not grid.sent

    def counting(received, node):
        counter = received["bn.num_batches_tracked"] + node % 100
        return {
            **train({n: received[n] for n in SHAPES}, node)[0],
            "bn.num_batches_tracked": counter,
        }, {"num-examples": 1}

    grid = federation(train=counting)
    strategy = ProtectedStrategy(flower.FedAdam(), **PW, keep="*.num_batches_tracked")
    _, after = run(grid, strategy, rounds=2, arrays=arrays)
    assert strategy.rounds[1].reports == 6
    assert after["bn.num_batches_tracked"].dtype == np.int64
    assert after["bn.num_batches_tracked"] == 3


def _other_arrays(content):
    content["arrays"] = record_of({n: a + 1 for n, a in start_arrays().items()})


def _more_arrays(content):
    content["anchor"] = record_of(start_arrays())


@pytest.mark.parametrize("place", [0, 2, -1])
@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_other_arrays, "does not send every client the global arrays and no others"),
        (_more_arrays, "does not send every client the global arrays and no others"),
        (lambda content: content.pop("arrays"), "the global arrays and no others"),
        (
            lambda content: content.update({MESSAGE: ConfigRecord()}),
            "a record 'fedveil' of its own",
        ),
        (lambda content: content.update({OFFER: ConfigRecord()}), "'fedveil' of its own"),
        (None, "asks a client twice in one round"),
    ],
)
def test_a_strategy_whose_messages_do_not_fit_is_refused_before_any_is_sent(place, spoil, words):
    """One message suffices, wherever it is."""

    class Personal(flower.FedAvg):
        def configure_train(self, *args):
            messages = list(super().configure_train(*args))
            if spoil is None:
                return [*messages, messages[place]]
            content = RecordDict(dict(messages[place].content.items()))
            spoil(content)
            messages[place].content = content
            return messages

    grid = federation(4)
    with pytest.raises(InvalidValue, match=words):
        run(grid, ProtectedStrategy(Personal(), protection="rr"))
    assert not grid.sent


def test_a_training_of_the_apps_own_name_is_protected_as_any_other():
    class Named(flower.FedAvg):
        def configure_train(self, *args):
            for message in super().configure_train(*args):
                node = message.metadata.dst_node_id
                yield Message(message.content, node, "train.last_layers")

    grid = federation()
    for node in grid.nodes.values():
        node.app = ClientApp(mods=[ProtectMod()])

        @node.app.train("last_layers")
        def _train(message, context):
            new = {n: a + np.float32(0.5) for n, a in arrays_of(message.content["arrays"]).items()}
            metrics = MetricRecord({"num-examples": 3})
            content = RecordDict({"arrays": record_of(new), "metrics": metrics})
            return Message(content, reply_to=message)

    strategy = ProtectedStrategy(Named(), **PW)
    _, arrays = run(grid, strategy)
    assert strategy.rounds[0].reports == 6
    np.testing.assert_allclose(flat(arrays), flat(start_arrays()) + 0.5, atol=1e-4)


@pytest.mark.parametrize(
    ("pins", "run_config", "warned"),
    [
        ({}, {}, 1),
        ({"reveal": "loss"}, {}, 1),
        ({"max_epsilon": 1e9}, {}, 1),
        ({}, {"fedveil.protection": "rr"}, 1),
        ({"protection": "rr"}, {}, 0),
    ],
)
def test_a_client_that_demands_no_protection_says_so_once(pins, run_config, warned, caplog):
    """Other demands set no least protection, and the server can change the run configuration."""
    grid = federation(2, [ProtectMod(**pins)])
    for node in grid.nodes.values():
        node.context.run_config.update(run_config)
    run(grid, ProtectedStrategy(flower.FedAvg(), protection="rr"), rounds=2)
    said = "this client pins nothing and takes the server's word for rr"
    assert caplog.text.count(said) == warned


def test_every_client_gets_the_settings_that_the_strategy_has_for_it():
    class Personal(flower.FedAvg):
        def configure_train(self, *args):
            for message in super().configure_train(*args):
                content = RecordDict(dict(message.content.items()))
                content["config"] = ConfigRecord({"for": message.metadata.dst_node_id})
                message.content = content
                yield message

    for settings in (PW, {"protection": "rr"}):
        grid = federation()
        run(grid, ProtectedStrategy(Personal(), **settings))
        told = [m for m in grid.sent if "config" in m.content]
        assert len(told) == 6
        assert all(m.content["config"]["for"] == m.metadata.dst_node_id for m in told)


def test_a_message_keeps_its_settings_lifetime_kind_and_group():
    """Clients of two kinds take turns. Each kind has one content, which its messages share."""

    class Kinds(flower.FedAvg):
        def configure_train(self, *args):
            contents = {}
            for place, message in enumerate(super().configure_train(*args)):
                kind = place % 2
                content = contents.setdefault(kind, RecordDict(dict(message.content.items())))
                content["config"] = ConfigRecord({"kind": kind})
                node = message.metadata.dst_node_id
                yield Message(
                    content, node, "train", ttl=900.0 + kind, group_id=f"{args[0]} of kind {kind}"
                )

    for settings in (PW, {"protection": "rr"}):
        grid = federation()
        run(grid, ProtectedStrategy(Kinds(), **settings))
        kinds = {}
        for message in (m for m in grid.sent if m.metadata.message_type == "train"):
            said = message.metadata
            kind = kinds.setdefault(said.dst_node_id, int(said.ttl - 900.0))
            assert (said.ttl, said.group_id) == (900.0 + kind, f"1 of kind {kind}")
            if "config" in message.content:
                assert message.content["config"]["kind"] == kind
        assert sorted(kinds.values()) == [0, 0, 0, 1, 1, 1]


def test_a_reply_with_two_records_of_arrays_is_not_half_reported():
    """The second one would be lost."""

    def second(message, context, call_next):
        reply = call_next(message, context)
        reply.content["head"] = record_of({"bias": np.ones(4, np.float32)})
        return reply

    strategy = ProtectedStrategy(flower.FedAvg(), **PW)
    run(federation(mods=[ProtectMod(), second]), strategy)
    assert (strategy.rounds[0].reports, sum(strategy.rounds[0].withheld.values())) == (0, 6)


def test_the_averaged_reply_has_the_strategys_own_names_and_counts_its_reports():
    given = []

    class Reads(flower.FedAvg):
        def aggregate_train(self, server_round, replies):
            given.extend(reply.content for reply in replies)
            return super().aggregate_train(server_round, replies)

    grid = federation()
    for node in grid.nodes.values():
        node.app = ClientApp(mods=[ProtectMod(weight_key="rows")])

        @node.app.train()
        def _train(message, context):
            record = record_of({n: a + 1 for n, a in arrays_of(message.content["model"]).items()})
            content = RecordDict({"model": record, "sums": MetricRecord({"rows": 4})})
            return Message(content, reply_to=message)

    grid.silent = {min(grid.nodes)}
    inner = Reads(arrayrecord_key="model", weighted_by_key="rows")
    strategy = ProtectedStrategy(inner, takes_averages=True, **PW)
    result = strategy.start(grid, record_of(start_arrays()), num_rounds=1, timeout=0.2)
    (content,) = given
    assert set(content.array_records) == {"model"}
    assert [dict(record) for record in content.metric_records.values()] == [{"rows": 5}]
    np.testing.assert_allclose(flat(arrays_of(result.arrays)), flat(start_arrays()) + 1, atol=1e-4)


def test_the_apps_own_mods_see_what_they_always_did():
    seen = []

    def spy(message, context, call_next):
        seen.append(set(message.content))
        return call_next(message, context)

    run(federation(mods=[ProtectMod(), spy]), ProtectedStrategy(flower.FedAvg(), **PW))
    assert seen == [{"arrays", "config"}] * 6


def test_nothing_of_it_needs_torch():
    code = (
        "import sys, fedveil.flower as f; f.ProtectMod, f.ProtectedStrategy;"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_metrics_travel_only_where_both_sides_name_them():
    config = {"fedveil.reveal": "loss, num-examples"}
    grid = federation(run_config=config)
    strategy = ProtectedStrategy(
        flower.FedAvg(), protection="rr", reveal=["loss", "accuracy", "num-examples"]
    )
    result, _ = run(grid, strategy)
    assert result.train_metrics_clientapp[1] == {"loss": 1.5}
    assert result.evaluate_metrics_clientapp[1] == pytest.approx({"loss": 0.5})
    for reply in grid.replies:
        assert set(reply.content) <= {"fedveil", "metrics"}
        assert set(reply.content["metrics"]) == {"loss", "num-examples"}


@pytest.mark.parametrize("reveal", ["loss, num-examples", "loss"])
def test_an_evaluation_counts_clients_by_the_weights_that_they_reveal(reveal):
    grid = federation(run_config={"fedveil.reveal": reveal})
    losses = {node: 0.1 * place for place, node in enumerate(grid.nodes, 1)}
    weights = {node: 3 + place**2 for place, node in enumerate(grid.nodes)}

    def unequal(reply):
        if reply.metadata.message_type == "evaluate":
            node, metrics = reply.metadata.src_node_id, reply.content["metrics"]
            metrics["loss"] = losses[node]
            if "num-examples" in metrics:
                metrics["num-examples"] = weights[node]
        return reply

    grid.tamper_reply = unequal
    result, _ = run(grid, ProtectedStrategy(flower.FedAvg(), protection="rr", reveal=reveal))
    counted = [weights[node] if "num-examples" in reveal else 1 for node in losses]
    mean = np.average([*losses.values()], weights=counted)
    assert result.evaluate_metrics_clientapp[1] == pytest.approx({"loss": mean})


@pytest.mark.parametrize("weight", [1e300, 2**20 + 1, 0, -7, float("inf"), float("nan"), [3, 4]])
def test_a_client_that_reveals_no_weight_there_can_be_is_in_no_mean(weight, caplog):
    """In training, and in the evaluation that the inner strategy averages by weights."""
    config = {"fedveil.reveal": "loss, num-examples"}
    grid = federation(run_config=config)

    def lie(reply):
        if reply.metadata.src_node_id == min(grid.nodes):
            reply.content["metrics"]["num-examples"] = weight
            reply.content["metrics"]["loss"] = 1e6
        return reply

    grid.tamper_reply = lie
    strategy = ProtectedStrategy(flower.FedAvg(), protection="rr", reveal="loss, num-examples")
    result, _ = run(grid, strategy)
    assert strategy.rounds[0].reports == 6
    assert strategy.rounds[0].metrics == {"loss": 1.5}
    assert result.evaluate_metrics_clientapp[1] == pytest.approx({"loss": 0.5})
    assert "its num-examples is outside (0, 1048576]" in caplog.text


def test_a_server_cannot_ask_for_metrics_by_itself_nor_by_another_kind_of_message():
    grid = federation()
    strategy = ProtectedStrategy(flower.FedAvg(), protection="rr", reveal="loss")
    result, _ = run(grid, strategy)
    assert not result.evaluate_metrics_clientapp
    assert not strategy.rounds[0].metrics
    silent, _ = run(federation(), ProtectedStrategy(flower.FedAvg(), protection="rr"))
    assert not silent.train_metrics_clientapp  # and no empty entry for the round
    content = RecordDict({"arrays": record_of(start_arrays()), "config": ConfigRecord()})
    for kind in ("evaluate", "query"):
        reply = _ask(grid, content, kind)
        assert not reply.content["metrics"]
        assert set(reply.content) == {"metrics"}


@pytest.mark.parametrize("kind", ["train", "evaluate", "query"])
@pytest.mark.parametrize(
    ("keywords", "run_config", "node_config", "shown"),
    [
        ("loss", "loss, num-examples", None, {"loss"}),
        (None, "loss, num-examples", "num-examples", {"num-examples"}),
        ("loss", None, "num-examples", set()),
    ],
)
def test_a_metric_is_revealed_if_all_of_a_clients_settings_name_it(
    kind, keywords, run_config, node_config, shown
):
    """The server writes the run's configuration, so it alone may not widen the client's own."""
    own = {} if keywords is None else {"reveal": keywords}
    configs = {
        name: {} if said is None else {"fedveil.reveal": said}
        for name, said in (("run_config", run_config), ("node_config", node_config))
    }
    grid = federation(mods=[ProtectMod(**own)], **configs)
    if kind == "train":
        run(grid, ProtectedStrategy(flower.FedAvg(), protection="rr", reveal="loss, num-examples"))
        reply = next(each for each in grid.replies if each.metadata.message_type == kind)
    else:
        content = RecordDict({"arrays": record_of(start_arrays()), "config": ConfigRecord()})
        reply = _ask(grid, content, kind)
    assert set(reply.content.get("metrics", {})) == shown


def _ask(grid, content, kind):
    node = next(iter(grid.nodes))
    return grid.send_and_receive([Message(content, node, kind)])[0]


def test_clients_are_not_asked_to_evaluate_where_nothing_may_come_back():
    grid = federation()
    run(grid, ProtectedStrategy(flower.FedAvg(), protection="rr", reveal="num-examples"))
    assert {m.metadata.message_type for m in grid.sent} == {"train"}


class Panic(BaseException):
    """A panic of a library written in Rust is no `Exception` either."""


@pytest.mark.parametrize("kind", [ValueError, SystemExit, Panic])
def test_an_apps_error_says_its_kind_and_not_its_text(kind):
    """This is without a guarantee. Under a guarantee there is no error."""

    def failing(arrays, node):
        raise kind("patient 4711 has no label")

    grid = federation(train=failing)
    strategy = ProtectedStrategy(flower.FedAvg(), **PW)
    run(grid, strategy)
    assert dict(strategy.rounds[0].failed) == {f"the client's app failed with {kind.__name__}": 6}
    assert "patient" not in str(grid.replies)
    assert strategy.ledger.epsilon("run") == 0  # no report was sent, and the charge is refunded


@ALL
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_an_update_that_is_not_finite_is_never_averaged_and_the_server_is_not_told(settings, value):
    """Under a guarantee an update of zero replaces it. Otherwise there is no report."""
    grid = federation()
    bad = next(iter(grid.nodes))

    def diverging(arrays, node):
        new, metrics = train(arrays, node)
        if node == bad:
            new["scale"] = np.float32(value)
        return new, metrics

    for node in grid.nodes.values():
        node.app = client_app(diverging, [ProtectMod()])
    strategy = ProtectedStrategy(flower.FedAvg(), **settings)
    _, arrays = run(grid, strategy)
    withheld = {"for a reason in its own log": 1} if settings is PW else {}
    assert dict(strategy.rounds[0].withheld) == withheld
    assert strategy.rounds[0].reports == 6 - len(withheld)
    assert np.isfinite(flat(arrays)).all()


@pytest.mark.parametrize(("eps", "thin"), [(100.0, True), (1.0, False)])
def test_a_report_that_promises_next_to_none_is_warned_of_once(eps, thin, caplog):
    strategy = ProtectedStrategy(flower.FedAvg(), protection="signds", sign_k=0.1, sign_eps=eps)
    with caplog.at_level(logging.WARNING, "flwr"):
        run(federation(), strategy, rounds=2)
    said = (
        "fedveil: a single report is promised epsilon 200 at delta 1e-05 (next to none): a smaller "
        "sign_eps promises more"
    )
    assert [said in record.getMessage() for record in caplog.records].count(True) == int(thin)
    assert ("is promised" in caplog.text) == thin


def test_what_a_report_promises_is_at_the_settings_delta(caplog):
    settings = {"sign_k": 0.1, "sign_eps": 100.0, "delta": 3e-3}
    with caplog.at_level(logging.INFO, "flwr.fedveil"):
        run(federation(), ProtectedStrategy(flower.FedAvg(), protection="signds", **settings))
    for name in ("per round", "run most drawn"):
        assert f"fedveil: {name}: epsilon 200 at delta 0.003 " in caplog.text
    said = [r.getMessage() for r in caplog.records if "a single report is" in r.getMessage()]
    assert len(said) == 1
    assert "at delta 0.003 " in said[0]


def test_the_weights_of_secure_aggregation_are_said_to_have_no_finite_epsilon():
    strategy = ProtectedStrategy(flower.FedAvg(), **PW)
    said = ("the clients' numbers of examples, each or in total (weighting = by_size)",)
    assert strategy.ledger.in_clear == said
    assert ProtectedStrategy(flower.FedAvg(), **PW, weighting="equal").ledger.in_clear == ()


@pytest.mark.parametrize("weighting", ["by_size", "equal"])
def test_so_they_are_in_every_clients_own_account(weighting, tmp_path):
    run(federation(), ProtectedStrategy(flower.FedAvg(), **PW, weighting=weighting))
    accounts = [decode(path.read_bytes()) for path in tmp_path.glob("home/fedveil/*.account")]
    said = "the clients' numbers of examples, each or in total (weighting = by_size)"
    assert len(accounts) == 6
    assert {account["alike.in_clear"] for account in accounts} == {
        said if weighting == "by_size" else ""
    }


def test_a_server_that_ends_in_mid_round_has_charged_those_that_it_asked():
    class Killed(BaseException):
        pass

    def killed(reply):
        raise Killed

    grid = federation()
    grid.tamper_reply = killed
    strategy = ProtectedStrategy(flower.FedAvg(), protection="rr", eps=1.0)
    with pytest.raises(Killed):
        run(grid, strategy)
    assert strategy.ledger.epsilon("run") == 2 * flat(start_arrays()).size


@pytest.mark.parametrize("count", [None, 0, 2.5, -1, 70_000])
def test_a_weight_that_cannot_be_used_is_withheld(count):
    def counting(arrays, node):
        return train(arrays, node)[0], {} if count is None else {"num-examples": count}

    strategy = ProtectedStrategy(flower.FedAvg(), **PW)
    run(federation(train=counting), strategy)
    assert strategy.rounds[0].void is not None
    assert sum(strategy.rounds[0].withheld.values()) == 6


@pytest.mark.parametrize("twice", [False, True])
def test_a_weight_is_found_in_any_one_record_of_a_reply(twice):
    """Two records with the weight are ambiguous, even if they agree."""

    def apart(message, context, call_next):
        reply = call_next(message, context)
        count = reply.content["metrics"].pop("num-examples")
        reply.content["sizes"] = MetricRecord({"num-examples": count})
        if twice:
            reply.content["metrics"]["num-examples"] = count
        return reply

    grid = federation(mods=[ProtectMod(), apart])
    strategy = ProtectedStrategy(flower.FedAvg(), **PW)
    _, arrays = run(grid, strategy)
    record = strategy.rounds[0]
    assert (record.reports, sum(record.withheld.values())) == ((0, 6) if twice else (6, 0))
    if not twice:
        moved = flat(arrays) - flat(start_arrays())
        expected = mean_drift(grid, [10 + node % 7 for node in grid.nodes])
        np.testing.assert_allclose(moved, expected, atol=1e-4)


@pytest.mark.parametrize("limit", [6.0, 6.5])
def test_the_ledger_adds_up_and_a_limit_ends_the_rounds_in_good_order(limit):
    """A run may reach its limit exactly."""
    grid = federation()
    settings = {"protection": "signds", "sign_k": 0.1, "sign_eps": 2.0, "sign_mag_eps": 1.0}
    strategy = ProtectedStrategy(flower.FedAvg(), **settings, max_epsilon=limit, delta=0.0)
    _, arrays = run(grid, strategy, rounds=4)
    assert [r.reports for r in strategy.rounds] == [6, 6]
    assert strategy.ledger.epsilon("run") == pytest.approx(6.0, rel=1e-9)
    assert strategy.ledger.epsilon("round") == pytest.approx(3.0, rel=1e-9)
    assert f"above max_epsilon = {limit:g}" in strategy.stopped
    assert arrays is not None


def test_the_limit_is_about_the_client_that_was_asked_most():
    """Each half of the clients is in every second round."""
    grid = federation()
    nodes = list(grid.nodes)
    few = flower.FedAvg(min_train_nodes=3, min_available_nodes=3, fraction_evaluate=0.0)
    settings = {"protection": "signds", "sign_k": 0.1, "sign_eps": 2.0, "sign_mag_eps": 1.0}
    strategy = ProtectedStrategy(few, **settings, max_epsilon=6.5, delta=0.0)
    grid.get_node_ids = lambda: nodes[:3] if len(strategy.rounds) % 2 else nodes[3:]
    run(grid, strategy, rounds=6)
    assert [r.reports for r in strategy.rounds] == [3, 3, 3, 3]
    assert "would bring the most-drawn client to epsilon 9" in strategy.stopped


def test_an_adaptive_run_ends_at_its_total():
    strategy = ProtectedStrategy(
        flower.FedAvg(), protection="oue", eps=1.0, adaptive=True, total_eps=3000.0
    )
    _, arrays = run(federation(), strategy, rounds=4)
    assert "total_eps = 3000.0" in strategy.stopped
    assert 1 <= len(strategy.rounds) <= 2
    assert strategy.ledger.epsilon("run") <= 3000.0
    assert arrays is not None


def test_a_round_of_an_adaptive_run_costs_a_client_what_it_costs_in_the_servers_ledger(tmp_path):
    """Later rounds have another epsilon, which their openings say."""
    strategy = ProtectedStrategy(
        flower.FedAvg(), protection="oue", eps=1.0, adaptive=True, total_eps=1e9
    )
    run(federation(), strategy, rounds=2)
    paths = list(tmp_path.glob("home/fedveil/*.account"))
    assert len(paths) == 6
    for path in paths:
        reports, (_, added) = OwnLedger(path)._read()
        assert reports == 2
        assert added.epsilon("run") == strategy.ledger.epsilon("run")
    assert strategy.ledger.epsilon("run") < 1.99 * strategy.ledger.epsilon("round")


@pytest.mark.parametrize(("limit", "ratio"), [(None, 0.9), (99.0, 1.0)])
def test_under_a_limit_a_sum_costs_what_each_client_has_charged(limit, ratio, tmp_path):
    """Without a limit, the survivors' noise counts: here everybody reports."""
    strategy = ProtectedStrategy(flower.FedAvg(), **PROTECTIONS[-1], max_epsilon=limit)
    run(federation(), strategy)
    (own,) = {
        OwnLedger(path)._read()[1][0].epsilon("round", 1e-5)
        for path in tmp_path.glob("home/fedveil/*.account")
    }
    assert 0.8 * ratio * own < strategy.ledger.epsilon("run", 1e-5) <= ratio * own
    assert (strategy.ledger.epsilon("run", 1e-5) == own) == (limit is not None)


def test_a_round_whose_replies_are_all_late_counts_in_the_total():
    grid = federation()
    grid.silent = set(grid.nodes)
    size = flat(start_arrays()).size
    strategy = ProtectedStrategy(flower.FedAvg(), protection="oue", eps=1.0, total_eps=2.5 * size)
    strategy.start(grid, record_of(start_arrays()), num_rounds=5, timeout=0.05)
    assert len(strategy.rounds) == 2
    assert "total_eps" in strategy.stopped
    assert strategy.ledger.epsilon("run") == 2 * size


@pytest.mark.parametrize(
    ("settings", "timeout", "window_s"),
    [
        ({**PW, "cipher_time_window": 2500}, 4.0, 2.5),
        ({**PW, "cipher_time_window": 60_000}, 4.0, 4.0),
        ({"protection": "dp_encrypt"}, 4.0, 4.0),
    ],
)
def test_a_phase_ends_with_the_protections_window_and_never_after_the_timeout(
    settings, timeout, window_s, monkeypatch
):
    waited = []

    def exchange(grid, outgoing, timeout_s):
        waited.append(timeout_s)
        return exchanged(grid, outgoing, timeout_s)

    exchanged = carrier.exchange
    monkeypatch.setattr(carrier, "exchange", exchange)
    strategy = ProtectedStrategy(flower.FedAvg(), **settings)
    strategy.start(federation(), record_of(start_arrays()), num_rounds=1, timeout=timeout)
    assert strategy.rounds[0].reports == 6
    assert set(waited) == {window_s}


def test_settings_come_from_the_run_configuration_or_keywords():
    config = {"fedveil.protection": "dp_encrypt", "fedveil.dp_eps": 3, "lr": 0.1}
    strategy = ProtectedStrategy(flower.FedAvg(), run_config=config, dp_delta=1e-3)
    assert strategy.options.parameters.dp_eps == 3
    assert strategy.options.parameters.dp_delta == 1e-3


def test_a_second_start_goes_on_with_the_same_ledger():
    strategy = ProtectedStrategy(flower.FedAvg(), protection="signds", sign_k=0.1, sign_eps=1.0)
    grid = federation()
    run(grid, strategy)
    run(grid, strategy)
    assert strategy.ledger.epsilon("run") == pytest.approx(4.0, rel=1e-9)
    assert [r.round for r in strategy.rounds] == [1, 1]


def test_the_line_of_a_round_has_every_number():
    record = RoundRecord(3, 11, reports=4, dropped=1, void="the round is void: too few")
    assert str(record) == (
        "round 3: 4 reports of 11 clients; 1 without a reply; the round is void: too few"
    )
    record.rejected, record.withheld = Counter({"torn": 2}), Counter({"asleep": 1, "late": 5})
    record.failed, record.void = Counter({"broken": 3}), None
    assert str(record) == (
        "round 3: 4 reports of 11 clients; 2 rejected (torn); 1 withheld (asleep); "
        "5 withheld (late); 3 failed (broken); 1 without a reply"
    )


def test_flower_missing_is_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "flwr", None)
    import fedveil.flower

    with pytest.raises(MissingExtra, match=r"pip install 'fedveil\[flower\]'"):
        _ = fedveil.flower.ProtectMod
