"""Time rounds of federated averaging in BlazeFL, by its own trainers, on its own benchmark's work.

Stand-alone: run it with a Python of 3.12 or later that has torch and `blazefl[contrib,
reproducibility]`. The last line of standard output is one JSON object. The work is that of
BlazeFL's README (100 clients, 5 local epochs, batches of 50, a small convolutional net on images of
CIFAR-10's shape) on synthetic images, without its evaluation of the whole test set in every round.
`--mode threads` is its multi-threaded mode, which a Python with a global lock slows down;
`processes` its multi-process mode with shared memory, which starts its pool anew in every round.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import resource
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import peer_work
import torch
from blazefl.contrib import fedavg
from blazefl.core import IPCMode
from torch.utils.data import DataLoader, Dataset, TensorDataset


class Models:
    """Makes a client's model for BlazeFL."""

    def select_model(self, model_name: str) -> torch.nn.Module:
        return peer_work.build(model_name)


class Images:
    """Each client's own examples, in memory."""

    def __init__(self, model: str, clients: int, examples: int, seed: int) -> None:
        self._x, self._y = peer_work.synthetic(model, clients, examples, seed)

    def get_dataset(self, type_: str, cid: int | None) -> Dataset[Any]:
        mine = 0 if cid is None else cid
        return TensorDataset(self._x[mine], self._y[mine])

    def set_dataset(self, type_: str, cid: int | None, dataset: Dataset[Any]) -> None:
        """Do nothing, because a client's examples never change."""

    def get_dataloader(
        self, type_: str, cid: int | None, batch_size: int | None, generator: Any = None
    ) -> DataLoader[Any]:
        return DataLoader(
            self.get_dataset(type_, cid), batch_size, shuffle=True, generator=generator
        )


def trainer(options: argparse.Namespace, data: Images, folder: Path) -> Any:
    """Return BlazeFL's own trainer, for threads or for processes."""
    common = {
        "model_selector": Models(),
        "model_name": options.model,
        "dataset": data,
        "device": "cpu",
        "num_clients": options.clients,
        "epochs": options.epochs,
        "batch_size": options.batch,
        "lr": options.lr,
        "seed": options.seed,
        "num_parallels": options.workers,
    }
    if options.mode == "threads":
        return fedavg.FedAvgThreadPoolClientTrainer(**common)
    return fedavg.FedAvgProcessPoolClientTrainer(
        **common,
        share_dir=folder / "share",
        state_dir=folder / "state",
        ipc_mode=IPCMode.SHARED_MEMORY,
    )


def main() -> None:
    """Run and print."""
    options = parse_arguments()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    data = Images(options.model, options.clients, options.examples, options.seed)
    rounds, times = options.warmup + options.rounds, []
    with tempfile.TemporaryDirectory() as folder:
        server = fedavg.FedAvgBaseServerHandler(
            Models(), options.model, data, rounds, options.clients,
            options.per_round / options.clients, "cpu", options.batch, options.seed,
        )  # fmt: skip
        clients = trainer(options, data, Path(folder))
        for _ in range(rounds):
            began = time.perf_counter()
            clients.local_process(server.downlink_package(), server.sample_clients())
            for report in clients.uplink_package():
                server.load(report)
            times.append(time.perf_counter() - began)
    for value in server.model.parameters():
        assert bool(torch.isfinite(value).all()), "the training diverged"
    times = times[options.warmup :]
    own, child = (
        resource.getrusage(who).ru_maxrss / 1024
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    result = {
        "peer": f"blazefl {importlib.metadata.version('blazefl')}, {options.mode}",
        "model": options.model,
        "clients_per_round": options.per_round,
        "workers": options.workers,
        "seconds_per_round": times,
        "best": min(times),
        "median": statistics.median(times),
        "peak_rss_mb": round(own + (options.workers * child if options.mode != "threads" else 0)),
    }
    print(json.dumps(result))


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mode", choices=("threads", "processes"), default="processes")
    parser.add_argument("--model", choices=("cnn", "lenet", "dense"), default="cnn")
    parser.add_argument("--clients", type=int, default=100, help="clients in all")
    parser.add_argument("--per-round", type=int, default=100, help="clients in each round")
    parser.add_argument("--examples", type=int, default=500, help="examples of each client")
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=2, help="timed rounds")
    parser.add_argument("--warmup", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    # A pool of forked processes inherits the thread's settings and the examples.
    torch.multiprocessing.set_start_method("fork")
    main()
