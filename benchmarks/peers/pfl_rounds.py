"""Time rounds of federated averaging in pfl's simulation.

Stand-alone: run it with the Python of an environment made from ``requirements-peers.txt``. The
last line of standard output is one JSON object.

With ``--workers`` above one the script uses pfl's own multi-process mode: one process per rank,
each with one thread. The processes find each other through ``PFL_WORKER_ADDRESSES`` and
``PFL_WORKER_RANK``, and add up sums by ``torch.distributed`` (gloo). Every rank holds the whole
synthetic data set, because pfl decides anew each round which rank trains which client.
``peak_rss_mb`` is the sum of the ranks' own peaks, so pages shared between them count once for
each.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

MODELS = ("lenet", "dense", "resnet18", "transformer", "adapters")


def parse_arguments() -> argparse.Namespace:
    """Read and check the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=MODELS, default="lenet")
    parser.add_argument("--clients", type=int, default=1000, help="clients in all")
    parser.add_argument("--per-round", type=int, default=100, help="clients in each round")
    parser.add_argument("--examples", type=int, default=60, help="examples of each client")
    parser.add_argument("--batch", type=int, default=20)
    parser.add_argument("--lr", type=float, default=0.1, help="learning rate of the clients")
    parser.add_argument("--epochs", type=int, default=1, help="local epochs")
    parser.add_argument("--rounds", type=int, default=10, help="timed rounds")
    parser.add_argument("--warmup", type=int, default=2, help="rounds before the timed ones")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument("--device", default="cpu", help="torch's name of the device")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=900.0, help="seconds before giving up")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if min(options.rounds, options.workers, options.examples, options.batch, options.epochs) < 1:
        parser.error("--rounds, --workers, --examples, --batch and --epochs must be at least 1")
    if options.warmup < 1:
        parser.error("--warmup must be at least 1: pfl always evaluates in its first round")
    if not 1 <= options.per_round <= options.clients:
        parser.error("--per-round must lie between 1 and --clients")
    if options.per_round % options.workers:
        # pfl's ranks draw from equally seeded samplers and drift apart on uneven shares.
        parser.error("--per-round must be a multiple of --workers")
    return options


class CohortSampler:
    """Hand out clients one by one, every ``per_round`` of them a sample without replacement.

    pfl's own random sampler draws with replacement, so that a client may train twice in a round.
    """

    def __init__(self, clients: int, per_round: int, seed: int) -> None:
        self._generator = np.random.default_rng([seed, 1])
        self._clients, self._per_round = clients, per_round
        self._waiting: list[int] = []

    def __call__(self) -> int:
        """Return the next client."""
        if not self._waiting:
            cohort = self._generator.choice(self._clients, self._per_round, replace=False)
            self._waiting = cohort.tolist()
        return self._waiting.pop()


def train(options: argparse.Namespace) -> dict[str, Any]:
    """Run one rank of the training and return its round times and its peak memory."""
    # pfl joins the process group when it is imported, hence not at the top.
    import peer_work
    import torch
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
    from pfl.metrics import Metrics, Weighted
    from pfl.model.pytorch import PyTorchModel
    from torch import nn

    # pfl still uses the old name of a torch constant.
    warnings.filterwarnings("ignore", message=".*torch.distributed.reduce_op.*")
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    # Every rank must start from the same model and follow the same central random numbers.
    torch.manual_seed(options.seed)
    np.random.seed(options.seed)

    class Network(nn.Sequential):
        """The model with the two methods that pfl asks for."""

        def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return peer_work.loss(self, x, y)

        @torch.no_grad()
        def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, Weighted]:
            return {"loss": Weighted(self.loss(x, y).item() * len(y), len(y))}

    class Clock(TrainingProcessCallback):
        """Note the time before the first round and after every round."""

        stamps: list[float]

        def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
            self.stamps = [time.perf_counter()]
            return Metrics()

        def after_central_iteration(
            self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
        ) -> tuple[bool, Metrics]:
            self.stamps.append(time.perf_counter())
            return False, Metrics()

    network = Network(peer_work.build(options.model))
    model = PyTorchModel(
        model=network,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(network.parameters(), lr=1.0),
    )
    # Built once: a pfl data set keeps its batches after their first use.
    work = peer_work.synthetic(options.model, options.clients, options.examples, options.seed)
    users = [PyTorchTensorDataset(tensors) for tensors in zip(*work, strict=True)]
    sampler = CohortSampler(options.clients, options.per_round, options.seed)
    data = FederatedDataset(users.__getitem__, sampler)
    clock = Clock()
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=options.warmup + options.rounds,
            # pfl evaluates in the rounds this divides; round 0, a warm-up one, is the only one.
            evaluation_frequency=options.warmup + options.rounds,
            train_cohort_size=options.per_round,
            val_cohort_size=None,
        ),
        backend=SimulatedBackend(training_data=data, val_data=data),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=options.epochs,
            local_learning_rate=options.lr,
            local_batch_size=options.batch,
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=None),
        callbacks=[clock],
        send_metrics_to_platform=False,
    )
    for value in network.parameters():
        assert bool(torch.isfinite(value).all()), "the training diverged"
    return {
        "seconds": np.diff(clock.stamps)[options.warmup :].tolist(),
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def launch(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Start one process for each rank and return what each of them reports."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = dict(os.environ, OMP_NUM_THREADS="1", PFL_PYTORCH_DEVICE=options.device)
    for name in ("PFL_WORKER_ADDRESSES", "PFL_WORKER_RANK", "TORCHELASTIC_RUN_ID", "LOCAL_RANK"):
        environment.pop(name, None)
    if options.workers > 1:
        # Only the first address is ever connected to; the others just count the ranks.
        environment["PFL_WORKER_ADDRESSES"] = ",".join([f"127.0.0.1:{port}"] * options.workers)
        environment["GLOO_SOCKET_IFNAME"] = "lo"
    deadline = time.monotonic() + options.limit
    processes: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder, f"rank{rank}") for rank in range(options.workers)]
        try:
            for rank, output in enumerate(outputs):
                if options.workers > 1:
                    environment["PFL_WORKER_RANK"] = str(rank)
                command = [sys.executable, __file__, *sys.argv[1:], "--rank", str(rank)]
                with output.open("wb") as stream:
                    processes.append(subprocess.Popen(command, env=environment, stdout=stream))
            # A rank whose partner died waits for it for long, so all are watched together.
            while any(process.poll() is None for process in processes):
                if any(process.returncode for process in processes):
                    break
                if time.monotonic() > deadline:
                    sys.exit(f"not finished after {options.limit:g} seconds")
                time.sleep(0.2)
        finally:
            for process in processes:
                process.kill()
                process.wait()
        if any(process.returncode for process in processes):
            sys.exit("a rank failed")
        return [json.loads(output.read_text().splitlines()[-1]) for output in outputs]


def main() -> None:
    """Run the benchmark, or one rank of it."""
    options = parse_arguments()
    if options.rank is not None:
        print(json.dumps(train(options)), flush=True)
        return
    reports = launch(options)
    seconds = reports[0]["seconds"]
    result = {
        "peer": f"pfl {importlib.metadata.version('pfl')}",
        "model": options.model,
        "clients": options.clients,
        "clients_per_round": options.per_round,
        "workers": options.workers,
        "seconds_per_round": [round(value, 4) for value in seconds],
        "best": round(min(seconds), 4),
        "median": round(statistics.median(seconds), 4),
        "peak_rss_mb": round(sum(report["peak_rss_mb"] for report in reports), 1),
    }
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
