"""Time rounds of federated averaging in Flower's simulation engine.

Stand-alone: run it with the Python of an environment made from ``requirements-peers.txt``. The
last line of standard output is one JSON object.

``--workers`` is the number of Ray actors. It is worth trying more actors than cores: which count
is fastest depends on the model. Every actor keeps the whole synthetic data set and one model,
made when its first message arrives, because the engine gives a client to any free actor. So the
first round, a warm-up one, includes the start of Ray and takes far longer than the others.
``peak_rss_mb`` is the sum of the peaks of the driver, Ray's own processes and the actors, so
pages shared between them count once for each.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.metadata
import json
import logging
import os
import random
import statistics
import sys
import time
from collections.abc import Iterable
from pathlib import Path

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
import torch
from apart import run_apart
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from peer_work import PARAMETERS, build, loss, sent, synthetic
from torch import nn

client_app = ClientApp()


def parse_arguments() -> argparse.Namespace:
    """Read and check the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=sorted(PARAMETERS), default="lenet")
    parser.add_argument("--clients", type=int, default=1000, help="clients in all")
    parser.add_argument("--per-round", type=int, default=100, help="clients in each round")
    parser.add_argument("--examples", type=int, default=60, help="examples of each client")
    parser.add_argument("--batch", type=int, default=20)
    parser.add_argument("--lr", type=float, default=0.1, help="learning rate of the clients")
    parser.add_argument("--epochs", type=int, default=1, help="local epochs")
    parser.add_argument("--rounds", type=int, default=10, help="timed rounds")
    parser.add_argument("--warmup", type=int, default=2, help="rounds before the timed ones")
    parser.add_argument("--workers", type=int, default=4, help="Ray actors")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=900.0, help="seconds before giving up")
    parser.add_argument("--inner", metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if min(options.rounds, options.workers, options.examples, options.batch, options.epochs) < 1:
        parser.error("--rounds, --workers, --examples, --batch and --epochs must be at least 1")
    if options.warmup < 1:
        parser.error("--warmup must be at least 1: the actors start during the first round")
    if not 1 <= options.per_round <= options.clients:
        parser.error("--per-round must lie between 1 and --clients")
    return options


@functools.cache
def actor_state(
    model: str, clients: int, examples: int, seed: int
) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """Return the network and the data of this process, made at the first call."""
    torch.set_num_threads(1)
    return build(model), *synthetic(model, clients, examples, seed)


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Train one client and reply with its weights."""
    del context
    config = message.content["config"]
    network, features, labels = actor_state(
        config["model"], config["clients"], config["examples"], config["seed"]
    )
    arrays = message.content["arrays"].to_torch_state_dict()
    assert arrays.keys() == sent(network).keys()
    network.load_state_dict(arrays, strict=False)
    x, y = features[config["client"]], labels[config["client"]]
    batches = list(zip(x.split(config["batch"]), y.split(config["batch"]), strict=True))
    optimizer = torch.optim.SGD(network.parameters(), lr=config["lr"])
    for _ in range(config["epochs"]):
        for inputs, targets in batches:
            optimizer.zero_grad()
            loss(network, inputs, targets).backward()
            optimizer.step()
    reply = {
        "arrays": ArrayRecord(sent(network)),
        "metrics": MetricRecord({"num-examples": len(y)}),
    }
    return Message(content=RecordDict(reply), reply_to=message)


class TimedFedAvg(FedAvg):
    """Flower's federated averaging with a seeded cohort, which notes when rounds end."""

    def __init__(self, clients: int, per_round: int, seed: int) -> None:
        super().__init__(fraction_evaluate=0.0, min_available_nodes=clients)
        self.stamps: list[float] = []
        self._generator = np.random.default_rng([seed, 1])
        self._clients, self._per_round = clients, per_round

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Yield a message with the model for each client in the round's cohort."""
        if not self.stamps:
            while len(list(grid.get_node_ids())) < self._clients:
                time.sleep(0.1)
            self.stamps.append(time.perf_counter())
        # The engine numbers its nodes at random, so with FedAvg's own sampling the seed would not
        # decide who takes part; here the message tells its node which client's data to use.
        nodes = random.sample(list(grid.get_node_ids()), self._per_round)
        cohort = self._generator.choice(self._clients, self._per_round, replace=False).tolist()
        for node, client in zip(nodes, cohort, strict=True):
            settings = ConfigRecord({**config, "server-round": server_round, "client": client})
            content = RecordDict({"arrays": arrays, "config": settings})
            yield Message(content=content, dst_node_id=node, message_type="train")

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average the replies and note the time."""
        replies = list(replies)
        failures = [reply.error.reason for reply in replies if reply.has_error()]
        if failures or len(replies) != self._per_round:
            # FedAvg would average whatever came back, and the round would look fast.
            raise RuntimeError(f"{len(replies)} replies, failures: {failures[:1]}")
        result = super().aggregate_train(server_round, replies)
        self.stamps.append(time.perf_counter())
        return result


def peak_memory_mb() -> float:
    """Return the sum of the peak resident sizes of this process and its descendants."""
    children: dict[int, list[int]] = {}
    peaks: dict[int, float] = {}
    for path in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):
            fields = dict(line.split(":", 1) for line in path.read_text().splitlines())
            pid = int(path.parent.name)
            children.setdefault(int(fields["PPid"]), []).append(pid)
            peaks[pid] = int(fields.get("VmHWM", "0").split()[0]) / 1024
    family = [os.getpid()]
    for pid in family:
        family.extend(children.get(pid, []))
    return sum(peaks.get(pid, 0.0) for pid in family)


def benchmark(options: argparse.Namespace, folder: str) -> None:
    """Run the simulation and print the result."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    random.seed(options.seed)
    strategy = TimedFedAvg(options.clients, options.per_round, options.seed)
    names = ("model", "clients", "examples", "batch", "lr", "epochs", "seed")
    peaks: list[float] = []
    server_app = ServerApp()

    @server_app.main()
    def serve(grid: Grid, context: Context) -> None:
        result = strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(sent(build(options.model))),
            num_rounds=options.warmup + options.rounds,
            timeout=options.limit,
            train_config=ConfigRecord({name: getattr(options, name) for name in names}),
        )
        # Here, because Ray's processes end with the simulation.
        peaks.append(peak_memory_mb())
        for array in result.arrays.to_numpy_ndarrays():
            assert np.isfinite(array).all(), "the training diverged"

    run_simulation(
        server_app=server_app,
        client_app=client_app,
        num_supernodes=options.clients,
        backend_config={
            # Ray's processors are a count of places: one for each actor makes the pool exactly
            # as large as asked, on any machine.
            "init_args": {
                "num_cpus": options.workers,
                "include_dashboard": False,
                "log_to_driver": False,
                "_temp_dir": folder,
            },
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )
    seconds = np.diff(strategy.stamps)[options.warmup :].tolist()
    assert len(seconds) == options.rounds, "the simulation ended early"
    result = {
        "peer": f"flwr {importlib.metadata.version('flwr')}",
        "model": options.model,
        "clients": options.clients,
        "clients_per_round": options.per_round,
        "workers": options.workers,
        "seconds_per_round": [round(value, 4) for value in seconds],
        "best": round(min(seconds), 4),
        "median": round(statistics.median(seconds), 4),
        "peak_rss_mb": round(peaks[0], 1),
    }
    print(json.dumps(result), flush=True)


def main() -> None:
    """Run the benchmark."""
    options = parse_arguments()
    if options.inner is None:
        sys.exit(run_apart(__file__, options.limit))
    benchmark(options, options.inner)


if __name__ == "__main__":
    # Ray sends what is defined in __main__ by value with every message, caches and all; from a
    # module it sends the names only, and each actor imports the module once.
    import flower_rounds

    flower_rounds.main()
