"""Time rounds of secure aggregation in Flower's simulation engine: its own SecAgg+, or fedveil's.

Stand-alone: run it with the Python of an environment made from ``requirements-peers.txt``; for
``--how fedveil`` that environment has fedveil too. The last line of standard output is one JSON
object.

Instead of training, a client adds small noise to the weights that it receives. Nobody drops out.
Every client shares its secrets with all others. ``bytes_up_per_parameter`` counts the content of
every reply of a round, as Flower's own records measure it. ``worst_error`` is the distance of the
last round's average from the true one.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import logging
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

if __name__ == "__main__":
    # Both packages read these when they are imported; Ray's processes inherit them.
    os.environ.update(
        FLWR_TELEMETRY_ENABLED="0",
        RAY_USAGE_STATS_ENABLED="0",
        RAY_DISABLE_IMPORT_WARNING="1",
        RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0",
        OMP_NUM_THREADS="1",
    )

import numpy as np
from apart import run_apart
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import LegacyContext, ServerConfig
from flwr.server.strategy import FedAvg as LegacyFedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from flwr.superlink.grid.inmemory_grid import InMemoryGrid

PARAMETERS = 61_706  # LeNet
EXAMPLES, MOST_EXAMPLES = 60, 1000


def parse_arguments() -> argparse.Namespace:
    """Read and check the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--how", choices=("secaggplus", "fedveil"), required=True)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=2, help="timed rounds")
    parser.add_argument("--warmup", type=int, default=1, help="rounds before the timed ones")
    parser.add_argument("--workers", type=int, default=2, help="Ray actors")
    parser.add_argument("--limit", type=float, default=1200.0, help="seconds before giving up")
    parser.add_argument("--inner", metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if min(options.rounds, options.warmup, options.workers) < 1 or options.clients < 4:
        parser.error("--rounds, --warmup and --workers must be at least 1 and --clients 4")
    return options


def update_of(client: int) -> np.ndarray:
    """Return the update that a client's training adds in every round."""
    return np.random.default_rng(client % 1000).normal(0, 0.01, PARAMETERS).astype(np.float32)


class Wire:
    """Counts the bytes of the replies that the engine's grid hands to the server."""

    def __init__(self) -> None:
        self.bytes_up = 0
        pull = InMemoryGrid.pull_messages

        def counted(grid: InMemoryGrid, message_ids: Any) -> Any:
            replies = list(pull(grid, message_ids))
            for reply in replies:
                if reply.has_error():
                    raise RuntimeError(reply.error.reason)
                self.bytes_up += sum(r.count_bytes() for r in reply.content.values())
            return replies

        InMemoryGrid.pull_messages = counted


def wait_for(grid: Grid, clients: int) -> None:
    """Wait until the engine has started `clients` nodes."""
    while len(list(grid.get_node_ids())) < clients:
        time.sleep(0.1)


# fedveil: the Message API, with ProtectMod and ProtectedStrategy.


def train(message: Message, context: Context) -> Message:
    """Reply with the arrays plus the client's update."""
    arrays = message.content["arrays"].to_numpy_ndarrays()[0]
    content = {
        "arrays": ArrayRecord([arrays + update_of(context.node_id)]),
        "metrics": MetricRecord({"num-examples": EXAMPLES}),
    }
    return Message(RecordDict(content), reply_to=message)


def protected_app() -> ClientApp:
    """Return a client app whose replies fedveil protects."""
    from fedveil.flower import ProtectMod

    app = ClientApp(mods=[ProtectMod()])
    app.train()(train)
    return app


def serve_protected(options: argparse.Namespace, grid: Grid, stamp: Callable[[], None]) -> float:
    """Run the rounds with fedveil. Returns the largest error of the last round's average."""
    from fedveil.flower import ProtectedStrategy

    strategy = ProtectedStrategy(
        FedAvg(
            fraction_evaluate=0.0,
            min_train_nodes=options.clients,
            min_available_nodes=options.clients,
        ),
        protection="pw_encrypt",
        reconstruct_secrets_threshold=threshold(options),
        max_examples=MOST_EXAMPLES,
        neighbours="complete",
    )
    arrays = ArrayRecord([np.zeros(PARAMETERS, np.float32)])
    for _ in range(options.warmup + options.rounds):
        before = arrays
        arrays = strategy.start(grid, before, num_rounds=1, timeout=options.limit).arrays
        assert strategy.rounds[-1].reports == options.clients, str(strategy.rounds[-1])
        stamp()
    moved = arrays.to_numpy_ndarrays()[0] - before.to_numpy_ndarrays()[0]
    return error_of(moved, list(grid.get_node_ids()))


# SecAgg+: the legacy API, as its own documentation has it.


def legacy_app() -> ClientApp:
    """Return the client app of SecAgg+'s example."""
    from flwr.client import NumPyClient
    from flwr.client.mod import secaggplus_mod

    class Client(NumPyClient):
        def __init__(self, node: int) -> None:
            self.node = node

        def fit(self, parameters: Any, config: Any) -> Any:
            return [parameters[0] + update_of(self.node)], EXAMPLES, {}

    return ClientApp(client_fn=lambda c: Client(c.node_id).to_client(), mods=[secaggplus_mod])


def serve_legacy(options: argparse.Namespace, grid: Grid, context: Context, stamp: Any) -> float:
    """Run the rounds with SecAgg+. Returns the largest error of the last round's average."""
    history = [np.zeros(PARAMETERS, np.float32)]

    class Strategy(LegacyFedAvg):
        def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
            assert len(results) == options.clients, f"{len(results)} results, {failures[:1]}"
            parameters, metrics = super().aggregate_fit(server_round, results, failures)
            history.append(parameters_to_ndarrays(parameters)[0])
            stamp()
            return parameters, metrics

    strategy = Strategy(
        fraction_evaluate=0.0,
        min_fit_clients=options.clients,
        min_available_clients=options.clients,
        initial_parameters=ndarrays_to_parameters([history[0]]),
    )
    config = ServerConfig(num_rounds=options.warmup + options.rounds)
    legacy = LegacyContext(context=context, config=config, strategy=strategy)
    workflow = SecAggPlusWorkflow(
        num_shares=options.clients,
        reconstruction_threshold=threshold(options),
        max_weight=float(MOST_EXAMPLES),
    )
    DefaultWorkflow(fit_workflow=workflow)(grid, legacy)
    return error_of(history[-1] - history[-2], list(grid.get_node_ids()))


def threshold(options: argparse.Namespace) -> int:
    """Return the threshold of secret sharing: more than two thirds of the clients."""
    return 2 * options.clients // 3 + 1


def error_of(moved: np.ndarray, nodes: list[int]) -> float:
    """Return the largest error of the average `moved`, over all entries."""
    return float(np.abs(moved - np.mean([update_of(node) for node in nodes], axis=0)).max())


def benchmark(options: argparse.Namespace, folder: str) -> None:
    """Run the simulation and print the result."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    stamps: list[float] = []
    errors: list[float] = []
    wire = Wire()
    bytes_up: list[int] = []
    server_app = ServerApp()

    def stamp() -> None:
        stamps.append(time.perf_counter())
        bytes_up.append(wire.bytes_up)

    @server_app.main()
    def serve(grid: Grid, context: Context) -> None:
        wait_for(grid, options.clients)
        stamp()
        if options.how == "fedveil":
            errors.append(serve_protected(options, grid, stamp))
        else:
            errors.append(serve_legacy(options, grid, context, stamp))

    run_simulation(
        server_app=server_app,
        client_app=protected_app() if options.how == "fedveil" else legacy_app(),
        num_supernodes=options.clients,
        backend_config={
            "init_args": {
                "num_cpus": options.workers,
                "include_dashboard": False,
                "log_to_driver": False,
                "_temp_dir": folder,
            },
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )
    seconds = np.diff(stamps)[options.warmup :].tolist()
    assert len(seconds) == options.rounds, "the simulation ended early"
    last = bytes_up[-1] - bytes_up[-2]
    result = {
        "peer": f"{options.how}, flwr {importlib.metadata.version('flwr')}",
        "clients": options.clients,
        "workers": options.workers,
        "seconds_per_round": [round(value, 3) for value in seconds],
        "best": round(min(seconds), 3),
        "median": round(statistics.median(seconds), 3),
        "bytes_up_per_parameter": round(last / options.clients / PARAMETERS, 3),
        "worst_error": errors[0],
    }
    print(json.dumps(result), flush=True)


def main() -> None:
    """Run the benchmark."""
    options = parse_arguments()
    if options.inner is None:
        sys.exit(run_apart(__file__, options.limit))
    benchmark(options, options.inner)


if __name__ == "__main__":
    # Ray sends what is defined in __main__ by value with every message; from a module it sends
    # the names only, and each actor imports the module once.
    import flower_secure_rounds

    flower_secure_rounds.main()
